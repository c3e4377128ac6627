//! Landmarks of a list, which let the host's memory work ahead of a scan.
//!
//! A scan follows the links from the tail, and each step waits until the line of the next page has come from memory: most of a
//! scan's time. So of the pages pushed at the head every eighth is noted here, and when the scan comes there, the pages
//! from several landmarks on are walked side by side: their lines come together, and the scan finds them in the cache.
//!
//! A hint: a landmark whose page has left its place costs a walk over wrong pages, and nothing is decided by it. Exact hosts
//! only: a blind host stops after each page or two, to carry its orders out.

use crate::memory::page::{Flight, NIL, PageTable};
use alloc::{vec, vec::Vec};

/// Pages pushed for each landmark.
const STRIDE: usize = 8;
/// Landmarks from which pages are walked side by side.
const ABREAST: usize = 8;
/// Landmarks among which the page of the scan is looked for: those before it have left their place.
const NEAR: usize = 8;
/// So many pages without the next landmark, and it may have left its place.
const LATE: usize = 2 * STRIDE;
/// So many without any of those near, and they must all have.
const LOST: usize = 6 * STRIDE;

#[derive(Debug)]
pub(super) struct Landmarks {
    /// The pages of the latest, each at its number modulo the length; empty: none are kept.
    ring: Vec<u32>,
    /// Pages pushed so far.
    pushed: usize,
    /// Number of the next landmark that the scan will meet, and of the next to be walked from.
    next: usize,
    walked: usize,
    /// The page of the next.
    expected: u32,
    /// Pages scanned since one was met.
    unmet: usize,
}

impl Landmarks {
    /// For a list of about so many pages.
    pub(super) fn new(pages: u32) -> Self {
        let kept = if pages == 0 { 0 } else { (pages as usize / STRIDE).next_power_of_two() };
        Self { ring: vec![0; kept], pushed: 0, next: 0, walked: 0, expected: NIL, unmet: 0 }
    }

    fn get(&self, number: usize) -> u32 {
        if number < self.pushed / STRIDE { self.ring[number & (self.ring.len() - 1)] } else { NIL }
    }

    /// The page is now the head of the list.
    pub(super) fn push(&mut self, pages: &PageTable, p: u32) {
        // A page under write goes to the tail when that ends.
        if self.ring.is_empty() || pages.at(p).flight() == Flight::Writing {
            return;
        }
        if self.pushed.is_multiple_of(STRIDE) {
            let at = (self.pushed / STRIDE) & (self.ring.len() - 1);
            self.ring[at] = p;
        }
        self.pushed += 1;
    }

    /// The scan has come to the page, with `left` pages on the list.
    #[inline]
    pub(super) fn pass(&mut self, pages: &PageTable, p: u32, left: u32) {
        if self.ring.is_empty() {
            return;
        }
        self.unmet += 1;
        if p == self.expected || self.unmet > LATE {
            self.look(pages, p, left);
        }
    }

    /// Meets the page, if it is a landmark.
    fn look(&mut self, pages: &PageTable, p: u32, left: u32) {
        if let Some(ahead) = (0..NEAR).find(|&ahead| self.get(self.next + ahead) == p) {
            self.next += ahead + 1;
            self.unmet = 0;
            if self.next > self.walked {
                self.walk(pages);
            }
        } else if self.unmet > LOST {
            // Of the pages on the list at least every eighth has a landmark: the scan comes to no later one.
            let left = left as usize / STRIDE;
            self.next = self.next.max((self.pushed / STRIDE).saturating_sub(left));
            self.unmet = LATE;
        }
        self.expected = self.get(self.next);
    }

    /// Looks at all pages from the landmark just met to the eighth after it.
    fn walk(&mut self, pages: &PageTable) {
        let first = self.next - 1;
        self.walked = first + ABREAST;
        let mut at: [u32; ABREAST] = core::array::from_fn(|ahead| self.get(first + ahead));
        for _ in 0..STRIDE {
            at = at.map(|p| pages.peek_prev(p));
        }
        core::hint::black_box(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::lru::{IA, Lru};

    #[test]
    fn a_scan_meets_its_landmarks_also_after_many_pages_have_left_the_list() {
        let mut pages = PageTable::new(4096);
        let mut lru = Lru::new(1, 4096, false);
        (0..4096).for_each(|p| lru.push_head(&mut pages, IA, p));
        (1000..2000).for_each(|p| lru.remove(&mut pages, p));
        let mut met = 0;
        for _ in 0..2500 {
            let p = lru.scan_tail(&pages, IA);
            met += u32::from(lru.landmarks[IA].unmet == 0);
            lru.remove(&mut pages, p);
        }
        assert_eq!(lru.tail(IA), 3500);
        assert_eq!(lru.landmarks[IA].expected, 3504, "the next page whose number is a multiple of 8");
        assert!(met > 2500 / 8 - 12, "{met} landmarks were met");
    }
}
