//! Readahead per region, sized by hits (S0; Linux 4.14 and later).
//!
//! A region remembers the page of its last swap fault, the size of its last window and how many pages of it were used since.
//! A window lies ahead of an ascending fault, behind a descending one, and around any other; it never leaves the region nor
//! the 2 MiB range of the page-table page.

use super::{Readahead, Window, window_size};
use crate::memory::Memory;
use crate::types::PMD_PAGES;

/// Hits are kept in six bits.
const HITS_MAX: u32 = 63;
/// page-cluster beyond this makes no larger windows.
const ORDER_MAX: u32 = 5;

#[derive(Clone, Copy, Debug)]
pub(crate) struct VmaRa {
    last: Option<u32>,
    window: u32,
    hits: u32,
}

impl VmaRa {
    pub(crate) const fn new() -> Self {
        Self { last: None, window: 0, hits: 4 }
    }

    /// A fault found its page in the swap cache.
    pub(crate) fn found(&mut self, p: u32, hit: bool) {
        self.last = Some(p);
        if hit {
            self.hits = (self.hits + 1).min(HITS_MAX);
        }
    }
}

impl Readahead {
    pub(super) fn vma_window(&mut self, mem: &mut Memory, at: usize, p: u32) -> Window {
        let max = 1 << self.cfg.page_cluster.min(ORDER_MAX);
        let region = self.regions.get_mut(at);
        if max == 1 {
            return Window::one(p);
        }
        let (start, end) = (region.start, region.end);
        let ra = &mut region.ra.vma;
        let last = ra.last;
        let n = window_size(last, p, ra.hits, max, ra.window);
        *ra = VmaRa { last: Some(p), window: n, hits: 0 };
        super::count_window(mem, n);
        if n == 1 {
            return Window::one(p);
        }
        let (p64, n64) = (i64::from(p), i64::from(n));
        let from = if last.is_some_and(|q| q.wrapping_add(1) == p) {
            p64
        } else if last.is_some_and(|q| q == p.wrapping_add(1)) {
            p64 - n64 + 1
        } else {
            p64 - (n64 - 1) / 2
        };
        let pmd = p / PMD_PAGES * PMD_PAGES;
        let low = i64::from(start.max(pmd));
        let high = i64::from(end).min(i64::from(pmd) + i64::from(PMD_PAGES));
        let (from, to) = (from.max(low), (from + n64).min(high));
        let bound = |x: i64| u32::try_from(x).expect("clipped to the region");
        let mut window = Window::pages(p, bound(from), bound(to));
        window.single = false;
        window
    }
}
