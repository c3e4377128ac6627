//! The parent's side of a fork, once the child has an agent: what that one needs is sent to it (`takeover.rs` receives it).

use pagetide_kernel::{AddressSpace, Faults};
use pagetide_sys::fd::{self, Fd};
use pagetide_sys::{Errno, file, socket};

use super::Forks;
use super::newborn::Newborn;
use super::snapshot::{RegionRecord, SlotRun};
use crate::limits;
use crate::pager::Pager;
use crate::protocol::{HANDOVER_FDS_MAX, Handover, MORE, PACKET_FDS};

impl<K: AddressSpace> Forks<K> {
    /// Send the child's agent what it needs.
    pub(super) fn hand_over(&mut self, pager: &Pager<K>, newborn: &Newborn<K::Child>, call: &Fd) -> Result<(), Errno> {
        let snapshot = fd::memfd(c"pagetide-snapshot")?;
        let raised = limits::for_file_size();
        file::write_all(&snapshot, bytes_of(&newborn.regions))?;
        file::write_all(&snapshot, bytes_of(&newborn.content.runs))?;
        drop(raised);
        let mut fds: Vec<&Fd> = newborn.faults.iter().filter_map(Faults::descriptor).collect();
        fds.push(&snapshot);
        let mut devices = Vec::new();
        for (id, store) in pager.machine().stores() {
            let ours = newborn.leases.iter().find(|(device, _)| device == id).map(|(_, lease)| lease);
            let borrowed = || store.lease().filter(|_| newborn.borrowed.iter().any(|(device, ..)| device == id));
            // Where the child has no page it needs nothing.
            if let Some(lease) = ours.or_else(borrowed) {
                fds.extend([store.file(), store.sums_file(), lease]);
                devices.push(store.handover(*id));
            }
        }
        if fds.len() > HANDOVER_FDS_MAX {
            return Err(Errno::E2BIG);
        }
        let handover = Handover {
            seed: pager.machine().seed(),
            devices,
            fds: fds.len(),
            regions: newborn.regions.len(),
            runs: newborn.content.runs.len(),
        };
        let text = handover.encode();
        for (index, fds) in fds.chunks(PACKET_FDS).enumerate() {
            socket::send(call, if index == 0 { text.as_bytes() } else { MORE }, fds, true)?;
        }
        Ok(())
    }
}

/// The records as bytes.
fn bytes_of<T: Copy>(records: &[T]) -> &[u8] {
    // SAFETY: the records are plain integers without padding.
    unsafe { std::slice::from_raw_parts(records.as_ptr().cast::<u8>(), size_of_val(records)) }
}
const _: () = assert!(size_of::<SlotRun>() == 24 && size_of::<RegionRecord>() == 16);
