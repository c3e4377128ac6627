//! The full check of this layer, in time linear in the number of pages. For tests; never in the hot path.

use super::lru::{DI, Lru, MW, PW, UN};
use super::page::{DISCARD, FRAME, FREE_DONE, Flight, LRU, MAPPED, NIL, PCP, POISON, SHADOW};
use super::{Counts, Memory};

impl Memory {
    /// Panic if an invariant of pages, lists, charge or counts does not hold.
    pub(crate) fn audit(&self) {
        let mut counts = Counts::default();
        let (mut frames, mut on_list, mut writing) = (0, 0, 0);
        for p in 0..self.table.len() {
            let (word, page) = (self.table.word(p), self.at(p));
            if word == 0 {
                continue;
            }
            let has = |bit: u32| word & bit != 0;
            assert!(has(FRAME) || !has(MAPPED), "page {p} is mapped without a frame");
            assert_eq!(has(FRAME), has(LRU) || has(PCP), "page {p}: a frame is on exactly one list");
            assert!(!(has(LRU) && has(PCP)), "page {p} is on a list and in the batch");
            assert!(!has(SHADOW) || !has(FRAME), "page {p} has a frame and a shadow entry");
            assert!(!(has(POISON) && has(FRAME)), "page {p} is poisoned and has a frame");
            let flight = page.flight();
            assert!(flight == Flight::None || has(FRAME), "I2: page {p} is in flight without a frame");
            assert!(!page.is_leaving() || flight == Flight::Unmapping, "page {p}: page-out without its unmap");
            if has(LRU) && self.table.list(p) == DI {
                assert!(has(DISCARD), "page {p} waits to be dropped, but was not discarded");
            }
            frames += u32::from(has(FRAME));
            on_list += u32::from(has(LRU));
            writing += u32::from(page.is_file() && flight == Flight::Writing);
            counts.cached += u32::from(page.is_cached());
            counts.owned_slots += u32::from(page.has_slot());
            counts.kept_slots += u32::from(has(FRAME) && page.has_slot());
            counts.flights += u32::from(flight != Flight::None);
            counts.file_reads += u32::from(page.is_file() && flight == Flight::Reading);
            counts.pending += u32::from(flight == Flight::Writing || page.is_leaving());
            counts.sure += u32::from(page.is_leaving() || flight == Flight::Writing && has(FREE_DONE));
        }
        assert_eq!(frames + self.budget.stock, self.budget.charged, "I3: frames and charge");
        assert_eq!(counts, self.counts, "pages by what they are about");
        assert_eq!(writing, self.writeback.writing, "pages the flusher writes");
        self.audit_lists(on_list);
    }

    fn audit_lists(&self, on_list: u32) {
        let mut sum = 0;
        for list in 0..=MW {
            let mut count = 0;
            let mut last = NIL;
            for p in self.list(list) {
                assert!(self.table.is(p, LRU) && self.table.list(p) == list, "page {p} strayed to list {list}");
                assert_eq!(self.table.prev(p), last, "page {p}: broken link");
                let named = Lru::list_of(&self.table, p);
                let culled_late = named == UN;
                assert!(
                    matches!(list, DI | PW | MW) || named == list || culled_late,
                    "page {p}: flags name list {named}, it is on {list}"
                );
                last = p;
                count += 1;
            }
            assert_eq!(self.lru.tail(list), last, "tail of list {list}");
            assert_eq!(count, self.lru.len(list), "length of list {list}");
            sum += count;
        }
        assert_eq!(sum, on_list, "pages on lists");
    }
}
