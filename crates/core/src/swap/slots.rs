//! Swap devices, clusters and slots: who owns which slot, and which slot comes next.
//!
//! All devices share one pool of slots, cut into clusters of 512; a device owns whole clusters. A slot of the pool is
//! named by its index there ("pool slot"), effects name device and slot. A slot is free, or owned by one page, and may
//! have holders outside of this core (forked children); with such a holder it is never rewritten nor reused (I4).
//!
//! Order of allocation (Linux 6.13 and later): on in the current cluster, then the devices by priority, equal ones in
//! turn; in a device a started cluster before a free one. Freed clusters go to the end of the free list. Older kernels, and
//! our own profile: see [`SlotOrder`].

mod allocate;
mod backing;

use crate::config::SlotOrder;
use crate::event::DeviceSpec;
use crate::memory::page::NIL;
use crate::types::{DeviceId, SlotIdx};
use alloc::{vec, vec::Vec};

/// Slots of a cluster.
pub(crate) const CLUSTER: u32 = 512;
/// Devices there can be.
pub(crate) const DEVICES_MAX: usize = 32;
/// Pieces of the pool that a device may have: it grows in steps, and others between.
const EXTENTS_MAX: usize = 64;
/// Slots that devices of equal priority take in turn under `SlotOrder::Free`.
const TURN_SLOTS: u32 = 64;

const OWNED: u16 = 1 << 15;
const BAD: u16 = 1 << 14;
const PINS: u16 = BAD - 1;

/// Which list of its device a cluster is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClusterList {
    Free = 0,
    Nonfull = 1,
    Frag = 2,
    Full = 3,
    /// On none: it is the current one.
    Current = 4,
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    head: u32,
    tail: u32,
}

const EMPTY: Ends = Ends { head: NIL, tail: NIL };

/// A cluster: device cluster number, prev, next, and packed: used slots, list, device.
type Cluster = [u32; 4];

#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) spec: DeviceSpec,
    /// First pool cluster, number of clusters: the device's clusters in order.
    extents: [(u32, u32); EXTENTS_MAX],
    extents_len: usize,
    clusters: u32,
    pub(crate) slots: u32,
    /// Of them, those that the host has given back.
    unbacked: u32,
    pub(crate) used: u32,
    priority: i32,
    lists: [Ends; 4],
    /// No new slots: full on the host's side, or being swapped off.
    pub(crate) closed: bool,
}

impl Device {
    /// Slots that pages may have.
    const fn usable(&self) -> u32 {
        self.slots.saturating_sub(1) - self.unbacked
    }
}

/// All devices and slots.
#[derive(Debug)]
pub(crate) struct Slots {
    devices: [Option<Device>; DEVICES_MAX],
    /// Open devices, highest priority first; equal ones in turn.
    order: [u8; DEVICES_MAX],
    order_len: usize,
    owner: Vec<u32>,
    count: Vec<u16>,
    /// A bit for each slot: nobody has it.
    unused: Vec<u64>,
    /// A bit for each slot: its page is mapped, or was. A slot without it cannot be robbed.
    kept: Vec<u64>,
    clusters: Vec<Cluster>,
    pool_used: u32,
    /// Pool clusters given back by removed devices: (first, len).
    returned: [(u32, u32); 64],
    returned_len: usize,
    current: u32,
    next: u32,
    turn_left: u32,
    slot_order: SlotOrder,
    /// Slots are freed early once fewer than one in so many is free.
    early_free: u32,
    auto_priority: i32,
    pub(crate) rotational: u32,
    /// Slots of open devices, and how many of them are in use.
    pub(crate) total: u32,
    pub(crate) used: u32,
}

fn set_bit(bits: &mut [u64], slot: u32, value: bool) {
    let word = &mut bits[slot as usize / 64];
    *word = *word & !(1 << (slot % 64)) | u64::from(value) << (slot % 64);
}

fn has_bit(bits: &[u64], slot: u32) -> bool {
    bits[slot as usize / 64] >> (slot % 64) & 1 != 0
}

/// A slot found, and the page that had only kept it and lost it now.
pub(crate) struct Found {
    pub(crate) slot: u32,
    pub(crate) robbed: Option<u32>,
}

impl Slots {
    pub(crate) fn new(slots_max: u32, slot_order: SlotOrder, early_free: u32) -> Self {
        let clusters = slots_max.div_ceil(CLUSTER);
        let slots = (clusters * CLUSTER) as usize;
        Self {
            devices: [const { None }; DEVICES_MAX],
            order: [0; DEVICES_MAX],
            order_len: 0,
            owner: vec![0; slots],
            count: vec![0; slots],
            unused: vec![0; slots / 64],
            kept: vec![0; slots / 64],
            clusters: vec![[0; 4]; clusters as usize],
            pool_used: 0,
            returned: [(0, 0); 64],
            returned_len: 0,
            current: NIL,
            next: 0,
            turn_left: 0,
            slot_order,
            early_free,
            auto_priority: -1,
            rotational: 0,
            total: 0,
            used: 0,
        }
    }

    pub(crate) fn device(&self, id: DeviceId) -> Option<&Device> {
        self.devices.get(id.0 as usize)?.as_ref()
    }

    fn dev(&self, d: u8) -> &Device {
        self.devices[d as usize].as_ref().expect("I4: a slot's device is there")
    }

    fn dev_mut(&mut self, d: u8) -> &mut Device {
        self.devices[d as usize].as_mut().expect("I4: a slot's device is there")
    }

    pub(crate) fn close(&mut self, id: DeviceId) {
        let Some(device) = self.devices.get_mut(id.0 as usize).and_then(Option::as_mut) else {
            return;
        };
        if device.closed {
            return;
        }
        device.closed = true;
        if !device.spec.inherited {
            self.total -= device.usable();
            self.used -= device.used;
        }
        if self.current != NIL && self.cluster_device(self.current) == id.0 {
            self.leave_current();
        }
        self.rebuild_order();
    }

    /// A swapoff failed: the device takes slots again.
    pub(crate) fn reopen(&mut self, id: DeviceId) {
        let Some(device) = self.devices.get_mut(id.0 as usize).and_then(Option::as_mut) else {
            return;
        };
        if core::mem::replace(&mut device.closed, false) && !device.spec.inherited {
            self.total += device.usable();
            self.used += device.used;
        }
        self.rebuild_order();
    }

    /// Free slots of open devices.
    pub(crate) const fn free(&self) -> u32 {
        self.total - self.used
    }

    /// So many slots are in use (the kernel: more than half) that those only kept for clean pages are freed early.
    pub(crate) const fn is_filling(&self) -> bool {
        self.free() as u64 * (self.early_free as u64) < self.total as u64
    }

    pub(crate) fn add_device(&mut self, id: DeviceId, spec: DeviceSpec) -> bool {
        if id.0 as usize >= DEVICES_MAX || self.devices[id.0 as usize].is_some() {
            return false;
        }
        let priority = match spec.priority {
            Some(p) => i32::from(p),
            None => {
                self.auto_priority -= 1;
                self.auto_priority
            }
        };
        let device = Device {
            spec,
            extents: [(0, 0); EXTENTS_MAX],
            extents_len: 0,
            clusters: 0,
            slots: 0,
            unbacked: 0,
            used: 0,
            priority,
            lists: [EMPTY; 4],
            closed: false,
        };
        self.devices[id.0 as usize] = Some(device);
        if spec.rotational && !spec.inherited {
            self.rotational += 1;
        }
        self.grow(id, spec.slots);
        self.rebuild_order();
        true
    }

    /// The device has `slots` usable slots now. Slots beyond what the pool holds are not used.
    pub(crate) fn grow(&mut self, id: DeviceId, slots: u32) {
        let Some(device) = self.devices.get(id.0 as usize).and_then(Option::as_ref) else {
            return;
        };
        let (old, mut have) = (device.slots, device.clusters);
        if slots <= old || device.closed {
            return;
        }
        let want = slots.div_ceil(CLUSTER);
        let mut fresh_from = have;
        while have < want {
            let Some((first, len)) = self.take_pool(want - have) else {
                break;
            };
            if !self.append_extent(id.0, first, len) {
                break;
            }
            have += len;
        }
        let slots = slots.min(have * CLUSTER);
        // Slots that do not exist (beyond the end) and slot 0 are bad; those that now exist are free.
        for c in fresh_from..have {
            let pool = self.pool_cluster(id.0, c);
            for s in 0..CLUSTER {
                let bad = c * CLUSTER + s >= slots || (c == 0 && s == 0);
                self.count[(pool * CLUSTER + s) as usize] = if bad { BAD } else { 0 };
                set_bit(&mut self.unused, pool * CLUSTER + s, !bad);
            }
            let used = (0..CLUSTER).filter(|s| self.count[(pool * CLUSTER + s) as usize] != 0).count();
            self.clusters[pool as usize] = [c, NIL, NIL, 0];
            self.set_meta(pool, u32::try_from(used).expect("at most 512"), ClusterList::Current, id.0);
            self.list_cluster(pool);
        }
        if fresh_from > 0 {
            fresh_from -= 1;
            self.unbad_tail(id.0, fresh_from, old, slots);
        }
        self.dev_mut(id.0).slots = slots;
        if !self.dev(id.0).spec.inherited {
            self.total += slots.saturating_sub(1) - old.saturating_sub(1);
        }
    }

    fn unbad_tail(&mut self, d: u8, cluster: u32, old: u32, slots: u32) {
        let pool = self.pool_cluster(d, cluster);
        let mut opened = 0;
        for slot in old.max(cluster * CLUSTER)..slots.min((cluster + 1) * CLUSTER) {
            self.count[(pool * CLUSTER + slot % CLUSTER) as usize] = 0;
            set_bit(&mut self.unused, pool * CLUSTER + slot % CLUSTER, true);
            opened += 1;
        }
        if opened > 0 {
            let (used, list) = (self.cluster_used(pool), self.cluster_list(pool));
            self.unlist(pool);
            self.set_meta(pool, used - opened, list, d);
            if list != ClusterList::Current {
                self.list_cluster(pool);
            }
        }
    }

    fn take_pool(&mut self, want: u32) -> Option<(u32, u32)> {
        if self.returned_len > 0 {
            let (first, len) = self.returned[self.returned_len - 1];
            let n = len.min(want);
            if n == len {
                self.returned_len -= 1;
            } else {
                self.returned[self.returned_len - 1] = (first + n, len - n);
            }
            return Some((first, n));
        }
        let all = u32::try_from(self.clusters.len()).expect("built from a u32");
        let n = want.min(all - self.pool_used);
        if n == 0 {
            return None;
        }
        let first = self.pool_used;
        self.pool_used += n;
        Some((first, n))
    }

    fn append_extent(&mut self, d: u8, first: u32, len: u32) -> bool {
        let device = self.dev_mut(d);
        let at = device.extents_len;
        if at > 0 && device.extents[at - 1].0 + device.extents[at - 1].1 == first {
            device.extents[at - 1].1 += len;
        } else if at < device.extents.len() {
            device.extents[at] = (first, len);
            device.extents_len += 1;
        } else {
            return false;
        }
        device.clusters += len;
        true
    }

    fn pool_cluster(&self, d: u8, cluster: u32) -> u32 {
        let device = self.dev(d);
        let mut left = cluster;
        for &(first, len) in &device.extents[..device.extents_len] {
            if left < len {
                return first + left;
            }
            left -= len;
        }
        unreachable!("I4: device {d} has no cluster {cluster}")
    }

    /// The pool slot of a device's slot, if the device has it.
    pub(crate) fn pool_slot(&self, id: DeviceId, slot: SlotIdx) -> Option<u32> {
        let device = self.device(id)?;
        if slot.0 == 0 || slot.0 >= device.slots {
            return None;
        }
        Some(self.pool_cluster(id.0, slot.0 / CLUSTER) * CLUSTER + slot.0 % CLUSTER)
    }

    /// Device and slot of a pool slot.
    pub(crate) fn locate(&self, slot: u32) -> (DeviceId, SlotIdx) {
        let pool = slot / CLUSTER;
        (DeviceId(self.cluster_device(pool)), SlotIdx(self.clusters[pool as usize][0] * CLUSTER + slot % CLUSTER))
    }

    pub(crate) fn spec_of(&self, slot: u32) -> DeviceSpec {
        self.dev(self.cluster_device(slot / CLUSTER)).spec
    }

    /// The page that owns the slot.
    pub(crate) fn owner(&self, slot: u32) -> Option<u32> {
        if self.count[slot as usize] & OWNED != 0 { Some(self.owner[slot as usize]) } else { None }
    }

    /// True if a page owns the slot, or a forked child holds it.
    pub(crate) fn is_used(&self, slot: u32) -> bool {
        let count = self.count[slot as usize];
        count != 0 && count & BAD == 0
    }

    /// True if a forked child or the like holds the slot too.
    pub(crate) fn is_pinned(&self, slot: u32) -> bool {
        self.count[slot as usize] & PINS != 0
    }

    /// True if the slot may not be rewritten: held elsewhere, or on an inherited or closed device.
    pub(crate) fn is_read_only(&self, slot: u32) -> bool {
        let device = self.dev(self.cluster_device(slot / CLUSTER));
        self.is_pinned(slot) || device.spec.inherited || device.closed
    }

    /// The page of the slot is mapped now, or is not any more.
    pub(crate) fn note_mapped(&mut self, slot: u32, is_mapped: bool) {
        set_bit(&mut self.kept, slot, is_mapped);
    }

    pub(crate) fn is_kept(&self, slot: u32) -> bool {
        has_bit(&self.kept, slot)
    }

    fn cluster_used(&self, pool: u32) -> u32 {
        self.clusters[pool as usize][3] & 0x3ff
    }

    fn cluster_device(&self, pool: u32) -> u8 {
        self.clusters[pool as usize][3].to_le_bytes()[2]
    }

    fn cluster_list(&self, pool: u32) -> ClusterList {
        match (self.clusters[pool as usize][3] >> 10) & 7 {
            0 => ClusterList::Free,
            1 => ClusterList::Nonfull,
            2 => ClusterList::Frag,
            3 => ClusterList::Full,
            4 => ClusterList::Current,
            n => unreachable!("cluster list {n}"),
        }
    }

    fn set_meta(&mut self, pool: u32, used: u32, list: ClusterList, device: u8) {
        self.clusters[pool as usize][3] = used | ((list as u32) << 10) | (u32::from(device) << 16);
    }

    fn unlist(&mut self, pool: u32) {
        let list = self.cluster_list(pool);
        if list == ClusterList::Current {
            return;
        }
        let [_, prev, next, _] = self.clusters[pool as usize];
        let d = self.cluster_device(pool);
        if prev == NIL {
            self.dev_mut(d).lists[list as usize].head = next;
        } else {
            self.clusters[prev as usize][2] = next;
        }
        if next == NIL {
            self.dev_mut(d).lists[list as usize].tail = prev;
        } else {
            self.clusters[next as usize][1] = prev;
        }
        let used = self.cluster_used(pool);
        self.set_meta(pool, used, ClusterList::Current, d);
    }

    fn push_list(&mut self, pool: u32, list: ClusterList) {
        let d = self.cluster_device(pool);
        let used = self.cluster_used(pool);
        let tail = self.dev(d).lists[list as usize].tail;
        self.clusters[pool as usize][1] = tail;
        self.clusters[pool as usize][2] = NIL;
        if tail == NIL {
            self.dev_mut(d).lists[list as usize].head = pool;
        } else {
            self.clusters[tail as usize][2] = pool;
        }
        self.dev_mut(d).lists[list as usize].tail = pool;
        self.set_meta(pool, used, list, d);
    }

    /// Put a cluster that is on no list on the one its use asks for.
    fn list_cluster(&mut self, pool: u32) {
        let used = self.cluster_used(pool);
        let list = if used == 0 {
            ClusterList::Free
        } else if used >= CLUSTER {
            ClusterList::Full
        } else {
            ClusterList::Nonfull
        };
        self.push_list(pool, list);
    }

    fn leave_current(&mut self) {
        let pool = core::mem::replace(&mut self.current, NIL);
        if pool != NIL {
            // Scanned to its end: what is free lies behind the scan, so it counts as fragmented.
            let full = self.cluster_used(pool) >= CLUSTER;
            let list = match self.cluster_used(pool) {
                0 => ClusterList::Free,
                _ => {
                    if full {
                        ClusterList::Full
                    } else {
                        ClusterList::Frag
                    }
                }
            };
            self.push_list(pool, list);
        }
    }

    fn rebuild_order(&mut self) {
        let mut order: [(i32, u8); DEVICES_MAX] = [(0, 0); DEVICES_MAX];
        let mut len = 0;
        // Those known already keep their turn; new ones come last among their equals.
        let known = self.order;
        let known = &known[..self.order_len];
        let all = known.iter().copied().chain((0..32u8).filter(|d| !known.contains(d)));
        for d in all {
            if let Some(device) = &self.devices[d as usize]
                && !device.closed
                && !device.spec.inherited
            {
                order[len] = (device.priority, d);
                len += 1;
            }
        }
        order[..len].sort_by_key(|&(priority, _)| core::cmp::Reverse(priority));
        self.order_len = len;
        for (at, &(_, d)) in order[..len].iter().enumerate() {
            self.order[at] = d;
        }
    }

    fn count_use(&mut self, pool: u32) {
        let (used, d) = (self.cluster_used(pool), self.cluster_device(pool));
        let list = self.cluster_list(pool);
        self.set_meta(pool, used + 1, list, d);
        let device = self.dev_mut(d);
        device.used += 1;
        if !device.spec.inherited && !device.closed {
            self.used += 1;
        }
    }

    /// The owner gives the slot up. It is free when nobody else holds it.
    pub(crate) fn free_slot(&mut self, slot: u32) {
        let count = &mut self.count[slot as usize];
        assert!(*count & OWNED != 0, "I4: slot {slot} is freed by a page that does not own it");
        *count &= !OWNED;
        if *count == 0 {
            self.uncount(slot);
        }
    }

    fn uncount(&mut self, slot: u32) {
        set_bit(&mut self.unused, slot, true);
        let pool = slot / CLUSTER;
        let (used, d, list) = (self.cluster_used(pool), self.cluster_device(pool), self.cluster_list(pool));
        self.unlist(pool);
        self.set_meta(pool, used - 1, ClusterList::Current, d);
        if list != ClusterList::Current || pool != self.current {
            self.list_cluster(pool);
        }
        let device = self.dev_mut(d);
        device.used -= 1;
        if !device.spec.inherited && !device.closed {
            self.used -= 1;
        }
    }

    /// A page takes over a slot that another process wrote.
    pub(crate) fn adopt_slot(&mut self, slot: u32, page: u32) -> bool {
        if self.count[slot as usize] & (OWNED | BAD) != 0 {
            return false;
        }
        let fresh = self.count[slot as usize] == 0;
        self.count[slot as usize] |= OWNED;
        self.owner[slot as usize] = page;
        if fresh {
            set_bit(&mut self.unused, slot, false);
            let pool = slot / CLUSTER;
            self.unlist(pool);
            self.count_use(pool);
            if pool != self.current {
                self.list_cluster(pool);
            }
        }
        true
    }

    /// One outside holder more, or less. Free slots are passed over.
    pub(crate) fn pin(&mut self, slot: u32, pin: bool) {
        let count = self.count[slot as usize];
        if count == 0 || count & BAD != 0 {
            return;
        }
        if pin {
            assert!(count & PINS != PINS, "I4: slot {slot} has too many holders");
            self.count[slot as usize] += 1;
        } else if count & PINS != 0 {
            self.count[slot as usize] -= 1;
            if self.count[slot as usize] == 0 {
                self.uncount(slot);
            }
        }
    }

    /// Forget a device with no slot in use; give its clusters back.
    pub(crate) fn remove_device(&mut self, id: DeviceId) {
        self.close(id);
        let Some(device) = self.devices.get_mut(id.0 as usize).and_then(Option::take) else {
            return;
        };
        assert!(device.used == 0, "I4: device {} goes with {} slots in use", id.0, device.used);
        if device.spec.rotational && !device.spec.inherited {
            self.rotational -= 1;
        }
        for &extent in &device.extents[..device.extents_len] {
            for c in extent.0..extent.0 + extent.1 {
                self.clusters[c as usize] = [0; 4];
            }
            if self.returned_len < self.returned.len() {
                self.returned[self.returned_len] = extent;
                self.returned_len += 1;
            }
        }
        // The devices that came later without a priority of their own move up by one.
        if device.spec.priority.is_none() {
            for other in self.devices.iter_mut().flatten() {
                if other.spec.priority.is_none() && other.priority < device.priority {
                    other.priority += 1;
                }
            }
            self.auto_priority += 1;
        }
        self.rebuild_order();
    }

    /// Every invariant of this file, checked from scratch.
    pub(crate) fn audit(&self) {
        for (d, device) in self.devices.iter().enumerate() {
            let Some(device) = device else { continue };
            let d = u8::try_from(d).expect("at most 32");
            let mut used = 0;
            for c in 0..device.clusters {
                let pool = self.pool_cluster(d, c);
                let slots = (pool * CLUSTER) as usize..((pool + 1) * CLUSTER) as usize;
                let taken = self.count[slots.clone()].iter().filter(|c| **c != 0).count();
                assert_eq!(taken, self.cluster_used(pool) as usize, "I4: cluster {c} of device {d}");
                used += self.count[slots].iter().filter(|c| **c != 0 && **c & BAD == 0).count();
                for slot in pool * CLUSTER..(pool + 1) * CLUSTER {
                    assert_eq!(has_bit(&self.unused, slot), self.count[slot as usize] == 0, "I4: slot {slot}");
                }
                assert!(self.cluster_list(pool) != ClusterList::Current || self.current == pool, "I4: lost cluster");
            }
            assert_eq!(used, device.used as usize, "I4: slots in use on device {d}");
        }
    }
}

#[cfg(test)]
mod tests;
