//! Swap files and what is known of their slots: checksums, requests in flight.
//!
//! A slot's 128-bit keyed checksum is kept when its page is written and compared when it is read: a difference is an I/O
//! error, so wrong bytes never reach the program. Before a write the checksum of the page is compared with the slot's: equal
//! means that the slot holds these bytes already (the live runtime sees no dirty bits). XXH3 with a random seed: 2^-128 a
//! pair for content that does not know the seed.
//!
//! The checksums live in a shared mapping, so that a forked child can read those of the slots it inherits.

use pagetide_core::event::DeviceSpec;
use pagetide_core::types::{DeviceId, Nanos, SlotIdx};
use pagetide_sys::fd::Fd;
use pagetide_sys::file;
use pagetide_sys::mem::{ManagedRange, Mapping, Protection};
use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::extents::Division;
use crate::io::Direction;
use crate::limits;
use crate::protocol::{DeviceHandover, DeviceOffer};
use crate::session::command::PlaceId;
use crate::space::{PAGE_BYTES, PAGE_SHIFT};

/// What was read from a store, or written to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) requests: u64,
    pub(crate) pages: u64,
    /// Time that the requests took, one by one.
    pub(crate) ns: Nanos,
}

impl Traffic {
    /// What another store has, too. The numbers may come from a program that forges them.
    pub(crate) const fn add(&mut self, other: Self) {
        self.requests = self.requests.saturating_add(other.requests);
        self.pages = self.pages.saturating_add(other.pages);
        self.ns = self.ns.saturating_add(other.ns);
    }
}

/// Where a process may swap to.
#[derive(Debug)]
pub(crate) struct SwapFile {
    /// An empty file, or an open description of a device that no other process has.
    file: Fd,
    /// Keeps everybody but this run from the device, as long as it may be written.
    claim: Option<Fd>,
}

impl From<Fd> for SwapFile {
    fn from(file: Fd) -> Self {
        Self { file, claim: None }
    }
}

impl SwapFile {
    /// The next of these descriptors, and the one that keeps others from a device.
    pub(crate) fn take(fds: &mut impl Iterator<Item = Fd>, is_divided: bool) -> Option<Self> {
        let file = fds.next()?;
        Some(Self { file, claim: is_divided.then(|| fds.next()).flatten() })
    }
}

/// One swap file of this process, or of the parent it was forked from.
#[derive(Debug)]
pub(crate) struct Store {
    place: PlaceId,
    file: Fd,
    /// What tells it from the stores of other processes: a forked child's of the same file has the same.
    number: u64,
    sums_file: Fd,
    /// A word for each slot, then one for each extent that it has of a device: the extent's number.
    sums: Mapping,
    slots_max: u32,
    /// Behind the last slot that is or was backed.
    slots_end: u32,
    /// The pieces below that which were given back, and their slots.
    given_back: Vec<bool>,
    given_slots: u32,
    /// Nothing of it can be given back.
    keeps_all: bool,
    /// Others need room there: little is kept ahead.
    short: bool,
    /// It is a device that is shared with others.
    division: Option<Division>,
    _claim: Option<Fd>,
    /// Of a device: the extents that are its own, and where it looks for the next one.
    own_extents: Vec<bool>,
    next_extent: u32,
    /// It is a forked parent's, and read only: whose it is keeps the slots as they are while somebody holds this open.
    lease: Option<Fd>,
    /// As the core was told: places with the highest are filled first.
    priority: Option<i16>,
    rotational: bool,
    /// It is being drained: it is not grown.
    closed: bool,
    /// It could not be grown the last time: the disk is full, up to the floor.
    stuck: bool,
    /// When it may be tried again.
    retry_at: Nanos,
    /// Writes that failed since the last one that did not.
    failed_writes: u32,
    /// A read has failed, or too many writes.
    failed: bool,
    /// Pages that could not be read back.
    lost: u32,
    /// Reads and writes, in the order of `Direction`.
    traffic: [Traffic; 2],
}

/// After so many writes that failed one after the other, nothing more is written: a fault that waits for room would wait for
/// ever.
const FAILED_WRITES_MAX: u32 = 64;

/// Time between two tries to have disk space that was not there.
const RETRY_NS: Nanos = 100_000_000;
/// Slots whose disk space is allocated in one step: 32 MiB.
const GROW_SLOTS: u32 = 8192;
/// Slots of a file whose disk space is given back together: 2 MiB.
const FILE_PIECE_SLOTS: u32 = 512;

/// Slots of a place that are given back and had again together.
pub(crate) fn piece_slots(division: Option<Division>) -> u32 {
    division.map_or(FILE_PIECE_SLOTS, |division| division.extent_slots)
}

impl Store {
    /// A store in `file`, which is empty, or no part of which it has yet; no slot is backed.
    pub(crate) fn new(offer: DeviceOffer, file: SwapFile) -> Result<Self, pagetide_sys::Errno> {
        let DeviceOffer { place, slots, priority, rotational, division } = offer;
        let sums_file = pagetide_sys::fd::memfd(c"pagetide-checksums")?;
        let raised = limits::for_file_size();
        file::truncate(&sums_file, words_of(slots, division) * 16)?;
        drop(raised);
        let sums = map_sums(&sums_file, words_of(slots, division))?;
        let own_extents = vec![false; division.map_or(0, |division| division.extents as usize)];
        let SwapFile { file, claim } = file;
        let store = Self::over(file, sums_file, sums, (place, slots))?;
        let store = Self { priority, rotational, division, own_extents, _claim: claim, ..store };
        let pieces = slots.div_ceil(store.piece_slots()) as usize;
        Ok(Self { given_back: vec![false; pieces], ..store })
    }

    fn over(
        file: Fd,
        sums_file: Fd,
        sums: Mapping,
        (place, slots_max): (PlaceId, u32),
    ) -> Result<Self, pagetide_sys::Errno> {
        let [_, number] = file::identity(&sums_file)?.number;
        Ok(Self {
            place,
            file,
            number,
            sums_file,
            sums,
            slots_max,
            slots_end: 0,
            given_back: Vec::new(),
            given_slots: 0,
            keeps_all: false,
            short: false,
            division: None,
            _claim: None,
            own_extents: Vec::new(),
            next_extent: 0,
            lease: None,
            priority: None,
            rotational: false,
            closed: false,
            stuck: false,
            retry_at: 0,
            failed_writes: 0,
            failed: false,
            lost: 0,
            traffic: [Traffic { requests: 0, pages: 0, ns: 0 }; 2],
        })
    }

    /// The store of a parent, as handed over at a fork.
    pub(crate) fn inherit(
        file: Fd,
        sums_file: Fd,
        lease: Fd,
        what: &DeviceHandover,
    ) -> Result<Self, pagetide_sys::Errno> {
        let &DeviceHandover { place, slots_max, slots_end, division, .. } = what;
        let sums = map_sums(&sums_file, words_of(slots_max, division))?;
        let store = Self::over(file, sums_file, sums, (place, slots_max))?;
        Ok(Self { slots_end, division, lease: Some(lease), ..store })
    }

    /// What is left of it when nothing is read from it any more.
    pub(crate) fn into_file(self) -> Fd {
        self.file
    }

    /// What a forked child has to know of it.
    pub(crate) const fn handover(&self, device: DeviceId) -> DeviceHandover {
        let Self { place, slots_max, slots_end, division, .. } = *self;
        DeviceHandover { device: device.0, place, slots_max, slots_end, division }
    }

    /// A store whose pages are a modelled device's: it only keeps the checksums.
    #[cfg(test)]
    pub(crate) fn modelled(slots: u32) -> Self {
        let file = pagetide_sys::fd::memfd(c"pagetide-test").expect("a memory file");
        let offer = DeviceOffer { place: PlaceId(0), slots, priority: None, rotational: false, division: None };
        let store = Self::new(offer, file.into()).expect("a few checksums");
        Self { slots_end: slots, ..store }
    }

    /// The place of the run or pool that it lies in.
    pub(crate) const fn place(&self) -> PlaceId {
        self.place
    }

    /// Its file among those of all processes of the run.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// The swap file.
    pub(crate) const fn file(&self) -> &Fd {
        &self.file
    }

    /// The checksums' file, for a child to map.
    pub(crate) const fn sums_file(&self) -> &Fd {
        &self.sums_file
    }

    /// Where the checksums are.
    pub(crate) const fn sums_range(&self) -> ManagedRange {
        self.sums.range()
    }

    pub(crate) const fn slots_max(&self) -> u32 {
        self.slots_max
    }

    pub(crate) const fn slots_backed(&self) -> u32 {
        self.slots_end - self.given_slots
    }

    /// Behind the last slot that is or was backed.
    pub(crate) const fn slots_end(&self) -> u32 {
        self.slots_end
    }

    pub(crate) const fn is_inherited(&self) -> bool {
        self.lease.is_some()
    }

    /// What keeps the slots of a forked parent as they are, for its owner's grandchildren to hold as well.
    pub(crate) const fn lease(&self) -> Option<&Fd> {
        self.lease.as_ref()
    }

    /// As the core is to know it.
    pub(crate) const fn spec(&self) -> DeviceSpec {
        let Self { slots_end: slots, priority, rotational, .. } = *self;
        DeviceSpec { slots, priority, rotational, synchronous: false, inherited: self.is_inherited() }
    }

    /// What is filled first is larger. As in swapon(2), places without a priority come after all that have one, the older first.
    pub(crate) fn rank(&self) -> i32 {
        self.priority.map_or_else(|| i32::try_from(self.place.0).map_or(i32::MIN, |order| -1 - order), i32::from)
    }

    /// It is being drained, or not any more.
    pub(crate) const fn close(&mut self, closed: bool) {
        self.closed = closed;
    }

    /// Pages may go there.
    pub(crate) const fn is_open(&self) -> bool {
        !self.is_inherited() && !self.closed
    }

    /// Others need room there, or not any more.
    pub(crate) const fn set_short(&mut self, short: bool) {
        self.short = short;
    }

    /// Others need room there.
    pub(crate) const fn is_short(&self) -> bool {
        self.short
    }

    /// It has as many slots as it needs: that it got no more does not count.
    pub(crate) const fn note_enough(&mut self) {
        self.stuck = false;
    }

    /// More slots may be backed.
    pub(crate) const fn can_grow(&self, now: Nanos) -> bool {
        self.is_open() && !self.failed && self.slots_backed() < self.slots_max && now >= self.retry_at
    }

    /// The disk had no room when it was asked last.
    pub(crate) const fn is_stuck(&self) -> bool {
        self.stuck && self.slots_backed() < self.slots_max
    }

    /// It has as many slots as it may have, and this many in use leave none.
    pub(crate) const fn is_full(&self, used: u32) -> bool {
        self.slots_backed() == self.slots_max && used.saturating_add(1) >= self.slots_max
    }

    /// A write has ended. True if so many have failed that no more are worth a try.
    pub(crate) const fn note_write(&mut self, is_done: bool) -> bool {
        self.failed_writes = if is_done { 0 } else { self.failed_writes.saturating_add(1) };
        self.failed |= self.failed_writes > FAILED_WRITES_MAX;
        self.failed_writes > FAILED_WRITES_MAX
    }

    /// Pages cannot be read back.
    pub(crate) const fn note_lost(&mut self, pages: u32) {
        self.lost = self.lost.saturating_add(pages);
        self.failed = true;
    }

    /// A request has ended, whatever became of it.
    pub(crate) const fn note_request(&mut self, direction: Direction, pages: usize, took: Nanos) {
        let traffic = &mut self.traffic[direction as usize];
        traffic.requests += 1;
        traffic.pages += pages as u64;
        traffic.ns += took;
    }

    /// Reads and writes so far, in the order of `Direction`.
    pub(crate) const fn traffic(&self) -> [Traffic; 2] {
        self.traffic
    }

    /// Reads or writes fail.
    pub(crate) const fn has_failed(&self) -> bool {
        self.failed
    }

    /// Pages that could not be read back.
    pub(crate) const fn lost_pages(&self) -> u32 {
        self.lost
    }

    /// Slots that it may have at most: what is backed, and what the disk has room for beyond the floor.
    pub(crate) fn slots_possible(&self, floor_bytes: u64) -> u32 {
        if self.division.is_some() {
            return self.slots_max;
        }
        let free = file::fs_info(&self.file).map_or(0, |info| info.available_bytes.saturating_sub(floor_bytes));
        let more = u32::try_from(free / PAGE_BYTES).unwrap_or(u32::MAX);
        self.slots_backed().saturating_add(more).min(self.slots_max)
    }

    /// Back more slots with disk space, while `floor_bytes` stay free on the file system. Those that are backed now: the first, and how many.
    pub(crate) fn grow(&mut self, floor_bytes: u64, now: Nanos) -> Result<(SlotIdx, u32), pagetide_sys::Errno> {
        let grown = self.allocate_more(floor_bytes);
        self.stuck = grown.is_err();
        self.retry_at = if self.stuck { now + RETRY_NS } else { 0 };
        grown
    }

    fn allocate_more(&mut self, floor_bytes: u64) -> Result<(SlotIdx, u32), pagetide_sys::Errno> {
        if let Some(piece) = self.given_back.iter().position(|&is_given| is_given) {
            let piece = u32::try_from(piece).expect("few pieces");
            return self.have_again(piece, floor_bytes);
        }
        // Larger steps as it gets larger: the core keeps a list of the pieces. Of a device, a 64th, which leaves something to others.
        let first = self.slots_end;
        let (least, share, unit) = match self.division {
            _ if self.short => (self.piece_slots(), 16, self.piece_slots()),
            Some(device) => (GROW_SLOTS.min(device.slots() / 64).max(device.extent_slots), 8, GROW_SLOTS),
            None => (GROW_SLOTS, 8, GROW_SLOTS),
        };
        let next = first.saturating_add(least.max(first / share / unit * unit)).min(self.slots_max);
        if next == first {
            return Err(pagetide_sys::Errno::ENOSPC);
        }
        if let Some(division) = self.division {
            return self.take_extents(division, next);
        }
        self.allocate_slots(first, next - first, floor_bytes)?;
        self.slots_end = next;
        Ok((SlotIdx(first), next - first))
    }

    /// Have disk space for these slots of a file.
    fn allocate_slots(&self, first: u32, len: u32, floor_bytes: u64) -> Result<(), pagetide_sys::Errno> {
        let (offset, bytes) = (u64::from(first) * PAGE_BYTES, u64::from(len) * PAGE_BYTES);
        if file::fs_info(&self.file)?.available_bytes < floor_bytes.saturating_add(bytes) {
            return Err(pagetide_sys::Errno::ENOSPC);
        }
        let _raised = limits::for_file_size();
        match file::allocate(&self.file, offset, bytes) {
            // A file system that cannot preallocate: the space was there a moment ago, and a write that finds none is
            // answered as such.
            Err(pagetide_sys::Errno::EOPNOTSUPP) => {
                file::truncate(&self.file, u64::from(self.slots_end.max(first + len)) * PAGE_BYTES)
            }
            allocated => allocated,
        }
    }

    /// Have extents that nobody else has, until there are `slots` slots or no more can be had.
    fn take_extents(&mut self, division: Division, slots: u32) -> Result<(SlotIdx, u32), pagetide_sys::Errno> {
        let before = self.slots_end;
        while self.slots_end < slots {
            let piece = self.slots_end / division.extent_slots;
            if !self.take_extent(division, piece)? {
                break;
            }
            self.slots_end += division.extent_slots;
        }
        let len = self.slots_end - before;
        if len == 0 { Err(pagetide_sys::Errno::ENOSPC) } else { Ok((SlotIdx(before), len)) }
    }

    /// Have an extent for this piece of the slots. False: others have them all.
    fn take_extent(&mut self, division: Division, piece: u32) -> Result<bool, pagetide_sys::Errno> {
        for offset in 0..division.extents {
            let extent = (self.next_extent + offset) % division.extents;
            if !self.own_extents[extent as usize] && division.take(&self.file, extent)? {
                self.next_extent = (extent + 1) % division.extents;
                self.own_extents[extent as usize] = true;
                self.set_word(self.slots_max + piece, u128::from(extent));
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// See [`piece_slots`].
    pub(crate) fn piece_slots(&self) -> u32 {
        piece_slots(self.division)
    }

    /// The pieces below `end` that may be given back if nobody uses them, from the last one: the first has slot 0, which the core never uses.
    pub(crate) fn pieces_below(&self, end: u32) -> impl Iterator<Item = SlotIdx> {
        let slots = self.piece_slots();
        let last = if self.keeps_all { 0 } else { end.min(self.slots_end) / slots };
        let is_here = |piece: &u32| !self.given_back[*piece as usize];
        (1..last).rev().filter(is_here).map(move |piece| SlotIdx(piece * slots))
    }

    /// Give the disk space of a piece back in which nothing is, and which nothing names. False: it cannot be.
    pub(crate) fn give_back(&mut self, first: SlotIdx) -> bool {
        let (slots, piece) = (self.piece_slots(), first.0 / self.piece_slots());
        assert!(self.is_open() && self.is_backed(first) && first.0 == piece * slots, "no piece to give back");
        let given = match self.division {
            Some(division) => {
                let extent = u32::try_from(self.word(self.slots_max + piece)).ok();
                // The program may have written there: only what is its own is let go.
                let extent = extent.filter(|&extent| self.own_extents.get(extent as usize) == Some(&true));
                extent.is_some_and(|extent| {
                    self.own_extents[extent as usize] = false;
                    division.give_back(&self.file, extent).is_ok()
                })
            }
            None => file::punch(&self.file, u64::from(first.0) * PAGE_BYTES, u64::from(slots) * PAGE_BYTES).is_ok(),
        };
        self.keeps_all |= !given;
        if given {
            // What comes to lie there does not hold what was there: a page with that content would be taken for written.
            for slot in first.0..first.0 + slots {
                if self.word(slot) != 0 {
                    self.set_word(slot, 0);
                }
            }
            self.given_back[piece as usize] = true;
            self.given_slots += slots;
        }
        given
    }

    fn have_again(&mut self, piece: u32, floor_bytes: u64) -> Result<(SlotIdx, u32), pagetide_sys::Errno> {
        let slots = self.piece_slots();
        match self.division {
            Some(division) => {
                if !self.take_extent(division, piece)? {
                    return Err(pagetide_sys::Errno::ENOSPC);
                }
            }
            None => self.allocate_slots(piece * slots, slots, floor_bytes)?,
        }
        self.given_back[piece as usize] = false;
        self.given_slots -= slots;
        Ok((SlotIdx(piece * slots), slots))
    }

    /// The slots below [`Self::slots_end`] that are given back, piece by piece.
    pub(crate) fn given_back(&self) -> impl Iterator<Item = (SlotIdx, u32)> {
        let slots = self.piece_slots();
        let given = (0..).zip(&self.given_back).filter(|(_, is_given)| **is_given);
        given.map(move |(piece, _)| (SlotIdx(piece * slots), slots))
    }

    fn is_backed(&self, slot: SlotIdx) -> bool {
        slot.0 < self.slots_end
            && !self.given_back.get((slot.0 / self.piece_slots()) as usize).is_some_and(|&given| given)
    }

    /// Neighbouring slots may lie apart.
    pub(crate) const fn is_divided(&self) -> bool {
        self.division.is_some()
    }

    /// Where `slot`, which is backed, lies in the file.
    pub(crate) fn offset(&self, slot: SlotIdx) -> u64 {
        assert!(self.is_backed(slot), "slot {} was given back, or never there", slot.0);
        let Some(division) = self.division else { return u64::from(slot.0) * PAGE_BYTES };
        let extent = u32::try_from(self.word(self.slots_max + slot.0 / division.extent_slots));
        // The program may write to what it shares with its children: no number leads out of the device.
        division.offset(extent.unwrap_or(0).min(division.extents - 1), slot)
    }

    fn at(&self, index: u32) -> *mut u128 {
        assert!(u64::from(index) < words_of(self.slots_max, self.division), "word {index} of {}", self.slots_max);
        let address = self.sums.range().start() + index as usize * 16;
        std::ptr::with_exposed_provenance_mut(address)
    }

    fn word(&self, index: u32) -> u128 {
        // SAFETY: it lies in the mapping, which is aligned; a store to it by a parent would be to another word.
        unsafe { self.at(index).read_volatile() }
    }

    fn set_word(&mut self, index: u32, word: u128) {
        assert!(!self.is_inherited(), "a parent's slot is never written");
        // SAFETY: as in `word`; the store is ours alone.
        unsafe { self.at(index).write_volatile(word) };
    }

    /// The checksum of the page that `slot` holds; 0 if none was written.
    pub(crate) fn sum(&self, slot: SlotIdx) -> u128 {
        assert!(slot.0 < self.slots_max, "slot {} of {}", slot.0, self.slots_max);
        self.word(slot.0)
    }

    /// `slot` now holds, or is about to hold, a page with this checksum.
    pub(crate) fn set_sum(&mut self, slot: SlotIdx, sum: u128) {
        assert!(slot.0 < self.slots_max, "slot {} of {}", slot.0, self.slots_max);
        self.set_word(slot.0, sum);
    }
}

/// Words of the table: for slots, and for extents.
fn words_of(slots_max: u32, division: Option<Division>) -> u64 {
    u64::from(slots_max) + division.map_or(0, |division| u64::from(division.extents))
}

/// Whole pages, backed when they are used.
fn map_sums(file: &Fd, words: u64) -> Result<Mapping, pagetide_sys::Errno> {
    let words = usize::try_from(words).expect("addresses are 64 bit");
    let bytes = (words * 16).next_multiple_of(1 << PAGE_SHIFT);
    limits::make_room(bytes);
    Mapping::shared(file, 0, bytes, Protection::ReadWrite)
}

/// The checksum of a page. Never 0, which stands for none.
pub(crate) fn checksum(seed: u64, page: &[u8]) -> u128 {
    xxh3_128_with_seed(page, seed).max(1)
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use pagetide_sys::file::flags;

    use super::*;

    /// Stores of two processes on one device: a large file stands for it.
    fn sharing(mib: u64) -> [Store; 2] {
        let device = pagetide_sys::fd::memfd(c"pagetide-test").expect("a memory file");
        file::truncate(&device, mib << 20).expect("it may grow");
        let path = format!("/proc/self/fd/{}\0", device.raw());
        let path = CStr::from_bytes_with_nul(path.as_bytes()).expect("a path");
        let division = Division::of_bytes(mib << 20);
        let slots = division.expect("room").slots();
        let offer = DeviceOffer { place: PlaceId(0), slots, priority: None, rotational: false, division };
        let open = || Fd::open(path, flags::READ_WRITE, 0).expect("it may be opened again");
        [(); 2].map(|()| Store::new(offer, open().into()).expect("a few checksums"))
    }

    fn grow(store: &mut Store) -> Option<(SlotIdx, u32)> {
        store.grow(0, 0).ok()
    }

    #[test]
    fn processes_never_share_a_page_of_a_device_and_use_all_of_it() {
        let [mut one, mut two] = sharing(102);
        // Both grow in steps until neither can.
        while [grow(&mut one), grow(&mut two)].iter().any(Option::is_some) {}
        assert!(one.is_stuck() && two.is_stuck() && one.slots_backed() >= 49 * 256 && two.slots_backed() >= 49 * 256);
        let offsets =
            |store: &Store| -> Vec<u64> { (0..store.slots_backed()).map(|slot| store.offset(SlotIdx(slot))).collect() };
        let mut all = [offsets(&one), offsets(&two)].concat();
        all.sort_unstable();
        let expected: Vec<u64> = (0..100 * 256).map(|page| (1 << 20) + page * PAGE_BYTES).collect();
        assert_eq!(all, expected);
    }

    #[test]
    fn what_one_gives_back_the_other_gets_and_no_slot_remembers_what_it_held() {
        let [mut one, mut two] = sharing(18);
        while grow(&mut one).is_some() {}
        assert!(one.slots_backed() == 16 * 256 && grow(&mut two).is_none());
        one.set_sum(SlotIdx(256 * 5 + 7), 77);
        let pieces: Vec<SlotIdx> = one.pieces_below(u32::MAX).filter(|slot| [2, 5].contains(&(slot.0 / 256))).collect();
        assert!(pieces.iter().all(|&piece| one.give_back(piece)));
        assert_eq!((one.slots_backed(), one.slots_end(), one.given_back().count()), (14 * 256, 16 * 256, 2));
        assert!(one.is_backed(SlotIdx(511)) && !one.is_backed(SlotIdx(512)) && one.is_backed(SlotIdx(768)));
        assert!(!one.pieces_below(u32::MAX).any(|slot| pieces.contains(&slot)));
        assert_eq!(grow(&mut two), Some((SlotIdx(0), 256)));
        let theirs = two.offset(SlotIdx(0));
        let again = grow(&mut one).expect("one piece is left");
        assert_eq!((again, grow(&mut two), grow(&mut one)), ((SlotIdx(512), 256), None, None));
        assert_eq!(one.sum(SlotIdx(256 * 5 + 7)), 0);
        assert!((0..5 * 256).all(|slot| !(theirs..theirs + (1 << 20)).contains(&one.offset(SlotIdx(slot)))));
    }

    #[test]
    fn a_child_finds_the_pages_that_it_inherits_where_its_parent_put_them() {
        let [mut other, mut parent] = sharing(70);
        assert!(grow(&mut other).is_some() && grow(&mut parent).is_some());
        let copy = |fd: &Fd| fd.dup_high(0).expect("a descriptor is left");
        let (lease, _) = pagetide_sys::fd::pipe(0).expect("descriptors are left");
        let what = parent.handover(DeviceId(3));
        let child =
            Store::inherit(copy(parent.file()), copy(parent.sums_file()), lease, &what).expect("a few checksums");
        let at = |store: &Store, slot: u32| store.offset(SlotIdx(slot));
        assert!((0..parent.slots_backed()).all(|slot| at(&child, slot) == at(&parent, slot)));
        // What the child needs stays its own when its parent has ended.
        let inherited = parent.slots_backed();
        drop(parent);
        while grow(&mut other).is_some() {}
        assert_eq!(other.slots_backed(), 68 * 256 - inherited);
        drop(child);
        while grow(&mut other).is_some() {}
        assert_eq!(other.slots_backed(), 68 * 256);
    }
}
