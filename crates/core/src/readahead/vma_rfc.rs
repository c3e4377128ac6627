//! Readahead as first proposed (S3): by direction, before the swap cache is looked at.
//!
//! A region remembers its last swap fault and a count that near faults raise and far ones halve; the window is
//! `2^(count/2)` pages in the direction of the last step.

use super::{Readahead, Walk, Window};
use crate::memory::Memory;
use crate::memory::page::PageState;
use crate::types::PMD_PAGES;
use crate::vmstat::Counter;

/// Largest window, log2.
const ORDER: u32 = 3;

#[derive(Clone, Copy, Debug)]
pub(crate) struct RfcRa {
    last: u32,
    hits: u32,
}

impl RfcRa {
    pub(crate) const fn new() -> Self {
        Self { last: 0, hits: 0 }
    }
}

impl Readahead {
    /// Steps 1 to 4 of the proposal: direction and size. Called for faults that find their page cached, too.
    pub(super) fn rfc_window(&mut self, mem: &Memory, at: usize, p: u32) -> Window {
        let region = self.regions.get(at);
        let (start, end, RfcRa { last, hits }) = (region.start, region.end, region.ra.rfc);
        let back = p < last;
        let hits = match class(mem, start, end, last, p) {
            Class::Far => hits / 2,
            Class::Same => hits.min(2 * ORDER),
            Class::Near => (hits + 1).min(2 * ORDER),
        };
        self.regions.get_mut(at).ra.rfc = RfcRa { last: p, hits };
        let size = 1 << (hits / 2);
        if size == 1 {
            return Window::one(p);
        }
        let pmd = p / PMD_PAGES * PMD_PAGES;
        let (low, high) = (start.max(pmd), end.min(pmd + PMD_PAGES));
        let mut window = Window::one(p);
        window.single = false;
        window.next = p;
        window.end = if back { low.max(p.saturating_sub(2 * size - 1)) } else { high.min(p + 2 * size) };
        window.walk = Walk::Rfc { back, allocations: 0, found: 0, size };
        window
    }
}

/// Step 5: the target first, then entries in the direction until enough pages are on their way.
pub(super) fn next(mem: &mut Memory, window: &mut Window) -> Option<u32> {
    let Walk::Rfc { back, mut allocations, mut found, size } = window.walk else {
        return None;
    };
    loop {
        let at = window.next;
        let more = if back { at >= window.end && at != u32::MAX } else { at < window.end };
        if !more || allocations >= size || (allocations == 0 && found >= size) {
            window.next = if back { u32::MAX } else { window.end };
            return None;
        }
        window.next = if back { at.wrapping_sub(1) } else { at + 1 };
        match mem.at(at).state() {
            PageState::Swapped => {
                allocations += 1;
                window.walk = Walk::Rfc { back, allocations, found, size };
                return Some(at);
            }
            PageState::Mapped => {}
            PageState::Cached => {
                found += 1;
                mem.count(Counter::pt_ra_found, 1);
            }
            PageState::Untouched | PageState::Poisoned => {
                window.next = if back { u32::MAX } else { window.end };
                return None;
            }
        }
        window.walk = Walk::Rfc { back, allocations, found, size };
    }
}

enum Class {
    Far,
    Same,
    Near,
}

fn class(mem: &Memory, start: u32, end: u32, last: u32, p: u32) -> Class {
    if p == last {
        return Class::Same;
    }
    if last < start || last >= end || p.abs_diff(last) >= 1 << ORDER {
        return Class::Far;
    }
    let pmd = p / PMD_PAGES;
    let between = p.min(last) + 1..p.max(last);
    if between.filter(|q| q / PMD_PAGES == pmd).any(|q| !mem.at(q).is_mapped()) {
        return Class::Far;
    }
    if last / PMD_PAGES == pmd { Class::Near } else { Class::Same }
}
