//! Which slot comes next: the order of devices, clusters and slots.

use super::{CLUSTER, ClusterList, Found, OWNED, Slots, TURN_SLOTS};
use crate::config::SlotOrder;
use crate::memory::page::NIL;

impl Slots {
    /// Take the next slot for a page. `may_rob(owner)` tells whether the owner of a used slot can do without it.
    pub(crate) fn allocate(&mut self, page: u32, may_rob: impl Fn(u32) -> bool) -> Option<Found> {
        let rob = self.is_filling();
        let stays = self.slot_order != SlotOrder::Free || self.turn_left > 0;
        if self.current != NIL
            && stays
            && let Some(found) = self.scan_current(page, rob, &may_rob)
        {
            return Some(found);
        }
        self.leave_current();
        for at in 0..self.order_len {
            let d = self.order[at];
            if self.dev(d).used >= self.dev(d).usable() && !rob {
                continue;
            }
            self.rotate_device(at);
            if let Some(found) = self.allocate_in(d, page, rob, &may_rob) {
                return Some(found);
            }
        }
        None
    }

    /// Move a device behind those of its priority.
    fn rotate_device(&mut self, at: usize) {
        let d = self.order[at];
        let priority = self.dev(d).priority;
        let mut to = at;
        while to + 1 < self.order_len && self.dev(self.order[to + 1]).priority == priority {
            self.order[to] = self.order[to + 1];
            to += 1;
        }
        self.order[to] = d;
    }

    fn allocate_in(&mut self, d: u8, page: u32, rob: bool, may_rob: &impl Fn(u32) -> bool) -> Option<Found> {
        let first = |list: ClusterList| self.dev(d).lists[list as usize].head;
        let (free, nonfull, frag) = (first(ClusterList::Free), first(ClusterList::Nonfull), first(ClusterList::Frag));
        let pools = match self.slot_order {
            SlotOrder::Nonfull => [nonfull, free, frag],
            SlotOrder::Free => [free, nonfull, frag],
            SlotOrder::Emptiest if free != NIL => [free, NIL, NIL],
            SlotOrder::Emptiest => [self.emptiest(d), NIL, NIL],
        };
        for pool in pools {
            // A listed cluster has a free slot, so one look is enough.
            if pool != NIL {
                self.enter(pool);
                if let Some(found) = self.scan_current(page, rob, may_rob) {
                    return Some(found);
                }
                self.leave_current();
            }
        }
        if rob {
            // One full cluster, whose kept slots can be taken back.
            let pool = self.dev(d).lists[ClusterList::Full as usize].head;
            if pool != NIL {
                self.enter(pool);
                if let Some(found) = self.scan_current(page, rob, may_rob) {
                    return Some(found);
                }
                self.leave_current();
            }
        }
        None
    }

    /// The started cluster with the most free slots: one look at each cluster of the device, once a cluster.
    fn emptiest(&self, d: u8) -> u32 {
        let device = self.dev(d);
        let pools = device.extents[..device.extents_len].iter().flat_map(|&(first, len)| first..first + len);
        let started = pools.filter(|&pool| matches!(self.cluster_list(pool), ClusterList::Nonfull | ClusterList::Frag));
        started.min_by_key(|&pool| self.cluster_used(pool)).unwrap_or(NIL)
    }

    fn enter(&mut self, pool: u32) {
        self.unlist(pool);
        self.current = pool;
        self.next = 0;
        self.turn_left = TURN_SLOTS;
    }

    fn scan_current(&mut self, page: u32, rob: bool, may_rob: &impl Fn(u32) -> bool) -> Option<Found> {
        let pool = self.current;
        let first = pool * CLUSTER;
        while let Some(at) = self.next_candidate(first, rob) {
            let slot = first + at;
            self.next = at + 1;
            let count = self.count[slot as usize];
            let robbed = if count == 0 {
                None
            } else if count == OWNED && may_rob(self.owner[slot as usize]) {
                Some(self.owner[slot as usize])
            } else {
                continue;
            };
            self.count[slot as usize] = OWNED;
            self.owner[slot as usize] = page;
            super::set_bit(&mut self.unused, slot, false);
            self.note_mapped(slot, false);
            if robbed.is_none() {
                self.count_use(pool);
            }
            self.turn_left = self.turn_left.saturating_sub(1);
            if self.next >= CLUSTER || self.cluster_used(pool) >= CLUSTER && !rob {
                self.leave_current();
            }
            return Some(Found { slot, robbed });
        }
        self.next = CLUSTER;
        None
    }

    /// The next slot of the current cluster, which begins at `first`, that is free or, if `rob`, may only be kept.
    fn next_candidate(&self, first: u32, rob: bool) -> Option<u32> {
        let mut at = self.next;
        while at < CLUSTER {
            let word = ((first + at) / 64) as usize;
            let candidates = self.unused[word] | if rob { self.kept[word] } else { 0 };
            let left = candidates >> (at % 64);
            if left != 0 {
                return Some(at + left.trailing_zeros());
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }
}
