//! The full check of every invariant, in time linear in the number of pages. For tests; never in the hot path.

use crate::memory::lru::{DI, Lru};
use crate::memory::page::{DISCARD, FRAME, FREE_DONE, Flight, LRU, MAPPED, PAGEOUT, PCP, POISON, SHADOW};
use crate::policy::Core;
use crate::vmstat::Counter;

impl Core {
    /// Panic if an invariant does not hold.
    pub fn audit(&self) {
        let (mut frames, mut cached, mut kept, mut flights, mut pending, mut sure) = (0, 0, 0, 0, 0, 0);
        let mut on_list = 0;
        for p in 0..self.pages.len() {
            let word = self.pages.word(p);
            if word == 0 {
                continue;
            }
            let has = |bit: u32| word & bit != 0;
            assert!(has(FRAME) || !has(MAPPED), "page {p} is mapped without a frame");
            assert_eq!(has(FRAME), has(LRU) || has(PCP), "page {p}: a frame is on exactly one list");
            assert!(!(has(LRU) && has(PCP)), "page {p} is on a list and in the batch");
            assert!(!has(SHADOW) || !has(FRAME), "page {p} has a frame and a shadow entry");
            assert!(!(has(POISON) && has(FRAME)), "page {p} is poisoned and has a frame");
            frames += u32::from(has(FRAME));
            on_list += u32::from(has(LRU));
            cached += u32::from(has(FRAME) && !has(MAPPED));
            if let Some(slot) = self.pages.slot(p) {
                assert_eq!(self.swap.owner(slot), Some(p), "I4: slot {slot} of page {p}");
                assert!(!has(MAPPED) || self.swap.is_kept(slot), "page {p} is mapped, and its slot does not say so");
                kept += u32::from(has(FRAME));
            }
            let flight = self.pages.flight(p);
            flights += u32::from(flight != Flight::None);
            assert!(flight == Flight::None || has(FRAME), "I2: page {p} is in flight without a frame");
            let leaving = flight == Flight::Writing || has(PAGEOUT);
            pending += u32::from(leaving);
            sure += u32::from(has(PAGEOUT) || flight == Flight::Writing && has(FREE_DONE));
            assert!(!has(PAGEOUT) || flight == Flight::Unmapping, "page {p}: page-out without its unmap");
            if has(LRU) && self.pages.list(p) == DI {
                assert!(has(DISCARD), "page {p} waits to be dropped, but was not discarded");
            }
        }
        assert_eq!(frames + self.mem.stock, self.mem.charged, "I3: frames and charge");
        assert_eq!(cached, self.cached, "unmapped frames");
        assert_eq!(kept, self.kept_slots, "frames with a slot");
        assert_eq!(flights, self.flights, "I2: pages in flight");
        assert_eq!(pending, self.pending, "pages on their way out");
        assert_eq!(sure, self.sure, "pages sure to be freed");
        self.audit_lists(on_list);
        self.swap.audit();
        self.audit_counters();
    }

    fn audit_lists(&self, on_list: u32) {
        let mut sum = 0;
        for list in 0..=DI {
            let mut count = 0;
            let mut last = crate::memory::page::NIL;
            for p in self.lru.iter(&self.pages, list) {
                assert!(self.pages.is(p, LRU) && self.pages.list(p) == list, "page {p} strayed to list {list}");
                assert_eq!(self.pages.prev(p), last, "page {p}: broken link");
                let named = Lru::list_of(&self.pages, p);
                let culled_late = named == crate::memory::lru::UN;
                assert!(
                    list == DI || named == list || culled_late,
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

    /// The laws of the counters (I10).
    fn audit_counters(&self) {
        let get = |counter| self.stats.get(counter);
        // As in the kernel, a page met under its own write passes for one read ahead (see `swap_cache_hit`).
        let marked = get(Counter::nr_vmscan_write) + get(Counter::nr_vmscan_immediate_reclaim);
        let ahead = get(Counter::swap_ra) + if self.host.shares_reclaim_mark { marked } else { 0 };
        assert!(get(Counter::swap_ra_hit) <= ahead, "I10: more readahead hits than pages read ahead");
        assert_eq!(get(Counter::pswpin), get(Counter::swap_ra) + get(Counter::pt_demand_read), "I10: pages read");
        assert!(get(Counter::pgmajfault) <= get(Counter::pgfault), "I10: major faults are faults");
        for (steal, scan) in
            [(Counter::pgsteal_kswapd, Counter::pgscan_kswapd), (Counter::pgsteal_direct, Counter::pgscan_direct)]
        {
            assert!(get(steal) <= get(scan), "I10: {steal:?} over {scan:?}");
        }
        for (restore, activate, refault) in [
            (Counter::workingset_restore_anon, Counter::workingset_activate_anon, Counter::workingset_refault_anon),
            (Counter::workingset_restore_file, Counter::workingset_activate_file, Counter::workingset_refault_file),
        ] {
            assert!(get(restore) <= get(activate) && get(activate) <= get(refault), "I10: {restore:?}");
        }
    }
}
