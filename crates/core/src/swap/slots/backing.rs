//! Slots that the host has disk space for no longer, and those that it has again: it may give some back that nobody uses.
//!
//! Such a slot is bad, like those behind the end of its device, as long as it is not backed.

use super::{BAD, CLUSTER, ClusterList, Slots, has_bit, set_bit};
use crate::types::{DeviceId, SlotIdx};

impl Slots {
    /// True if all of these slots are backed and nobody has one of them.
    pub(crate) fn are_unused(&self, id: DeviceId, slot: SlotIdx, len: u32) -> bool {
        let Some(device) = self.device(id) else { return false };
        slot.0.checked_add(len).is_some_and(|end| end <= device.slots)
            && pieces(slot.0, len).all(|(cluster, from, to)| {
                let first = self.pool_cluster(id.0, cluster) * CLUSTER;
                (first + from..first + to).all(|slot| has_bit(&self.unused, slot))
            })
    }

    /// These slots, which nobody has, are backed from now on, or no longer.
    pub(crate) fn set_backed(&mut self, id: DeviceId, slot: SlotIdx, len: u32, is_backed: bool) {
        let Some(device) = self.device(id).filter(|device| slot.0.saturating_add(len) <= device.slots) else { return };
        let is_counted = !device.closed && !device.spec.inherited;
        let before = if is_backed { BAD } else { 0 };
        for (cluster, from, to) in pieces(slot.0, len) {
            let pool = self.pool_cluster(id.0, cluster);
            for slot in pool * CLUSTER + from..pool * CLUSTER + to {
                let count = core::mem::replace(&mut self.count[slot as usize], BAD - before);
                assert!(count == before, "I4: slot {slot} comes or goes, backed {is_backed}: {count:#x}");
                set_bit(&mut self.unused, slot, is_backed);
                set_bit(&mut self.kept, slot, false);
            }
            let (used, list) = (self.cluster_used(pool), self.cluster_list(pool));
            self.unlist(pool);
            let used = if is_backed { used - (to - from) } else { used + (to - from) };
            self.set_meta(pool, used, list, id.0);
            if list != ClusterList::Current {
                self.list_cluster(pool);
            }
        }
        let device = self.dev_mut(id.0);
        device.unbacked = if is_backed { device.unbacked - len } else { device.unbacked + len };
        if is_counted {
            self.total = if is_backed { self.total + len } else { self.total - len };
        }
    }
}

/// The parts of a run of slots: cluster, first slot in it, end.
fn pieces(first: u32, len: u32) -> impl Iterator<Item = (u32, u32, u32)> {
    let end = first + len;
    (first / CLUSTER..end.div_ceil(CLUSTER)).map(move |cluster| {
        let begin = cluster * CLUSTER;
        (cluster, first.max(begin) - begin, end.min(begin + CLUSTER) - begin)
    })
}
