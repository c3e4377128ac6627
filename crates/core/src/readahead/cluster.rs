//! Readahead by slots: the aligned block of slots around the fault, one state for everything.
//!
//! `cluster` sizes the block by hits (3.15 and later); `cluster-fixed` always takes the largest.

use super::{Readahead, Window, window_size};
use crate::swap::Space;
use crate::swap::slots::CLUSTER;

#[derive(Clone, Copy, Debug)]
pub(crate) struct ClusterRa {
    hits: u32,
    last_slot: u32,
    window: u32,
}

impl ClusterRa {
    pub(crate) const fn new() -> Self {
        Self { hits: 4, last_slot: 0, window: 0 }
    }

    pub(crate) const fn hit(&mut self) {
        self.hits += 1;
    }
}

impl Readahead {
    pub(super) fn cluster_window(&mut self, space: &mut Space, p: u32, pool: u32, fixed: bool) -> Window {
        let max = 1u32.checked_shl(self.cfg.page_cluster).unwrap_or(1 << 31);
        if max == 1 {
            return Window::one(p);
        }
        // Adjacency is by slot number; the device is not looked at.
        let (device, slot) = space.slots.locate(pool);
        let n = if fixed {
            max
        } else {
            let ra = &mut self.cluster;
            let hits = core::mem::take(&mut ra.hits);
            let n = window_size(Some(ra.last_slot), slot.0, hits, max, ra.window);
            if hits == 0 {
                ra.last_slot = slot.0;
            }
            ra.window = n;
            n
        };
        super::count_window(&mut space.mem, n);
        if n == 1 {
            return Window::one(p);
        }
        // A block of at most a cluster lies in one pool cluster; larger blocks are cut to it.
        let n = n.min(CLUSTER);
        let first = pool & !(n - 1);
        let slots = space.slots.device(device).map_or(0, |d| d.slots);
        let end = (first + n).min(pool + (slots - slot.0));
        let mut window = Window::slots(p, first, end);
        window.single = false;
        window
    }
}
