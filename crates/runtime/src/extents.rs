//! A block device that the processes of a run share: it is divided into extents, which each process takes as it needs slots.
//!
//! Who has which extent the kernel knows, and nobody else: each process has an open description of the device of its own, and an
//! extent is a range that this description has locked. A forked child that inherits pages has a descriptor of its parent's description.
//! So an extent comes back when no process, child or snapshot names it any more, however they ended, and nobody need tell. One in which
//! nothing is may be given back before.
//!
//! The first and the last part of the device are left as they are: what they say of it (a swap area, nothing) holds after the run.
//!
//! Invariants: neighbouring slots lie side by side on the device within an extent, and an extent begins at a multiple of
//! [`JOINED_SLOTS`] slots.

use pagetide_core::types::SlotIdx;
use pagetide_sys::fd::Fd;
use pagetide_sys::{Errno, block};

use crate::space::PAGE_BYTES;

/// Neighbouring slots that surely lie side by side: 1 MiB.
pub(crate) const JOINED_SLOTS: u32 = 256;
/// Extents are as large as gives this many, from 1 to 64 MiB.
const EXTENTS_WANTED: u64 = 1024;
const EXTENT_SLOTS_MAX: u64 = 16_384;
/// Extents at most: 256 GiB of the largest.
const EXTENTS_MAX: u32 = 4096;
/// What is left alone at either end.
pub(crate) const END_BYTES: u64 = 1 << 20;

/// True if a run of slots that reaches this one may go on elsewhere.
pub(crate) const fn begins_extent(slot: SlotIdx) -> bool {
    slot.0.is_multiple_of(JOINED_SLOTS)
}

/// How a device is divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Division {
    /// Slots of an extent: a power of two.
    pub(crate) extent_slots: u32,
    pub(crate) extents: u32,
}

impl Division {
    /// Of a device of which so many bytes may be used, its ends included. `None`: it holds no extent.
    pub(crate) fn of_bytes(bytes: u64) -> Option<Self> {
        let pages = bytes.saturating_sub(2 * END_BYTES) / PAGE_BYTES;
        let joined = u64::from(JOINED_SLOTS);
        let wanted = (pages / EXTENTS_WANTED).next_power_of_two().clamp(joined, EXTENT_SLOTS_MAX);
        let extents = u32::try_from(pages / wanted).unwrap_or(u32::MAX).min(EXTENTS_MAX);
        (extents > 0).then(|| Self { extent_slots: u32::try_from(wanted).expect("limited"), extents })
    }

    /// By its numbers, which may be anything: `Some(None)` for two zeroes, which stand for a file, `None` if they are no division.
    pub(crate) fn of(extent_slots: u32, extents: u32) -> Option<Option<Self>> {
        let is_good =
            extent_slots.is_power_of_two() && extent_slots >= JOINED_SLOTS && (1..=EXTENTS_MAX).contains(&extents);
        match (extent_slots, extents) {
            (0, 0) => Some(None),
            _ => is_good.then_some(Some(Self { extent_slots, extents })),
        }
    }

    /// Slots of the whole device.
    pub(crate) const fn slots(self) -> u32 {
        self.extents.saturating_mul(self.extent_slots)
    }

    /// Where a slot lies on the device whose extent is this one.
    pub(crate) fn offset(self, extent: u32, slot: SlotIdx) -> u64 {
        let begin = u64::from(extent) * u64::from(self.extent_slots) + u64::from(slot.0 % self.extent_slots);
        END_BYTES + begin * PAGE_BYTES
    }

    fn bytes(self) -> u64 {
        u64::from(self.extent_slots) * PAGE_BYTES
    }

    /// True if this open description of the device has the extent from now on.
    pub(crate) fn take(self, device: &Fd, extent: u32) -> Result<bool, Errno> {
        block::try_lock(device, self.offset(extent, SlotIdx(0)), self.bytes())
    }

    /// Let others have an extent that this open description has, and in which nothing is.
    pub(crate) fn give_back(self, device: &Fd, extent: u32) -> Result<(), Errno> {
        block::unlock(device, self.offset(extent, SlotIdx(0)), self.bytes())
    }

    /// Slots that nobody but this open description has.
    pub(crate) fn free_slots(self, device: &Fd) -> u32 {
        let is_free =
            |&extent: &u32| block::is_unlocked(device, self.offset(extent, SlotIdx(0)), self.bytes()).unwrap_or(false);
        let free = (0..self.extents).filter(is_free).count();
        u32::try_from(free).expect("few extents") * self.extent_slots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_device_is_divided_into_extents_of_1_to_64_mib() {
        let of =
            |bytes: u64| Division::of_bytes(bytes).map(|d| (u64::from(d.extent_slots) * PAGE_BYTES / MIB, d.extents));
        assert_eq!(of(2 * MIB + MIB / 2), None, "the ends are all there is");
        assert_eq!(of(3 * MIB), Some((1, 1)));
        assert_eq!(of(64 * MIB), Some((1, 62)));
        assert_eq!(of(16 << 30), Some((16, 1023)));
        assert_eq!(of(1 << 40), Some((64, 4096)), "no more than 256 GiB");
        for bytes in [3 * MIB, 64 * MIB, 16 << 30, 1 << 40] {
            let division = Division::of_bytes(bytes).expect("room");
            let last = division.offset(division.extents - 1, SlotIdx(division.extent_slots - 1));
            assert!(last + PAGE_BYTES + END_BYTES <= bytes, "{bytes}");
            assert_eq!(Division::of(division.extent_slots, division.extents), Some(Some(division)));
        }
    }

    #[test]
    fn numbers_that_are_no_division_are_refused() {
        assert_eq!(Division::of(0, 0), Some(None));
        for (slots, extents) in [(0, 1), (512, 0), (500, 4), (128, 4), (512, 4097)] {
            assert_eq!(Division::of(slots, extents), None, "{slots} {extents}");
        }
    }

    #[test]
    fn two_descriptions_never_have_the_same_extent() {
        let first = pagetide_sys::fd::memfd(c"pagetide-test").expect("a memory file");
        let path = format!("/proc/self/fd/{}\0", first.raw());
        let path = std::ffi::CStr::from_bytes_with_nul(path.as_bytes()).expect("a path");
        let second = Fd::open(path, pagetide_sys::file::flags::READ_WRITE, 0).expect("it may be opened again");
        let division = Division::of_bytes(6 * MIB).expect("four extents");
        assert_eq!((division.take(&first, 1), division.take(&second, 1)), (Ok(true), Ok(false)));
        assert_eq!((division.take(&second, 2), division.take(&first, 2)), (Ok(true), Ok(false)));
        assert_eq!(division.free_slots(&second), 3 * 256);
        drop(first);
        assert_eq!(division.take(&second, 1), Ok(true));
    }
}
