//! The full check of every invariant, in time linear in the number of pages. For tests; never in the hot path.

use crate::policy::Core;
use crate::vmstat::Counter;

impl Core {
    /// Panic if an invariant does not hold.
    pub fn audit(&self) {
        self.tasks.paging.space.audit();
        self.audit_counters();
    }

    /// The laws of the counters (I10).
    fn audit_counters(&self) {
        let get = |counter| self.tasks.paging.space.mem.stats.get(counter);
        // As in the kernel, a page met under its own write passes for one read ahead (see `swap_cache_hit`).
        let marked = get(Counter::nr_vmscan_write) + get(Counter::nr_vmscan_immediate_reclaim);
        let ahead = get(Counter::swap_ra) + if self.tasks.paging.host.shares_reclaim_mark { marked } else { 0 };
        let known = get(Counter::swap_ra_hit) + get(Counter::pt_ra_unused);
        assert!(known <= ahead, "I10: more pages read ahead were used or not than were read ahead");
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
