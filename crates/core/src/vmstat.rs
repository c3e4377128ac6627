//! The counters. One table: identifier, name, what it counts. A name of `/proc/vmstat` has the kernel's meaning; where
//! the meaning differs, the name differs (`pt_…`).

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $id:ident),+ $(,)?) => {
        /// A counter; see [`COUNTERS`] for its description.
        #[expect(non_camel_case_types, reason = "a counter has exactly one spelling, the kernel's")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Counter { $($(#[doc = $doc])+ $id),+ }

        /// Every counter: identifier, name, description.
        pub const COUNTERS: &[(Counter, &str, &str)] = &[$((Counter::$id, stringify!($id), concat!($($doc),+))),+];
    };
}

counters! {
    /// Faults handed to the core.
    pgfault,
    /// Faults whose page was not in memory and had to be read.
    pgmajfault,
    /// Pages read from swap, at submission: demand and readahead.
    pswpin,
    /// Pages written to swap, at submission.
    pswpout,
    /// KiB read from files.
    pgpgin,
    /// KiB written to files.
    pgpgout,
    /// Pages found all zero at swap-out: not written, slot freed.
    swpout_zero,
    /// Pages read ahead into the swap cache.
    swap_ra,
    /// Pages of a window that readahead by direction (`vma-rfc`) looked up and found in memory.
    pt_ra_found,
    /// Pages read ahead that were touched later, as far as that is known: a page that is mapped when it arrives tells nothing by itself.
    swap_ra_hit,
    /// Pages read ahead that went before anybody asked for them (profile `pagetide`); those mapped on arrival are not among them.
    pt_ra_unused,
    /// Pages looked at by background reclaim.
    pgscan_kswapd,
    /// Pages looked at by direct reclaim (not memcg).
    pgscan_direct,
    /// Anonymous pages looked at on the inactive list.
    pgscan_anon,
    /// File pages looked at on the inactive list.
    pgscan_file,
    /// Pages freed by background reclaim.
    pgsteal_kswapd,
    /// Pages freed by direct reclaim (not memcg).
    pgsteal_direct,
    /// Anonymous pages freed by reclaim.
    pgsteal_anon,
    /// File pages freed by reclaim.
    pgsteal_file,
    /// Pages activated by an inactive scan or marked accessed twice; not by a refault.
    pgactivate,
    /// Pages moved from an active to an inactive list.
    pgdeactivate,
    /// Pages moved to the tail of the inactive list when their write ended.
    pgrotated,
    /// Active pages looked at.
    pgrefill,
    /// Direct reclaim runs (not memcg).
    allocstall,
    /// Background reclaim runs.
    pageoutrun,
    /// Anonymous pages that came back after reclaim.
    workingset_refault_anon,
    /// File pages that came back after reclaim.
    workingset_refault_file,
    /// Refaults within reach of memory: activated.
    workingset_activate_anon,
    /// File refaults within reach of memory: activated.
    workingset_activate_file,
    /// Activated refaults that had been in the working set before.
    workingset_restore_anon,
    /// Activated file refaults that had been in the working set before.
    workingset_restore_file,
    /// Pages handed to write-back by reclaim.
    nr_vmscan_write,
    /// Dirty file pages that reclaim met and left to be written first.
    nr_vmscan_immediate_reclaim,
    /// Pages put on the unevictable list.
    unevictable_pgs_culled,
    /// Pages taken off the unevictable list.
    unevictable_pgs_rescued,
    /// Charges that hit the limit (memory.events `max`).
    max,
    /// Faults that could not be answered for want of memory and swap.
    oom_kill,
    /// Pages dropped without a write because their slot still held their bytes.
    pt_drop_clean,
    /// Pages the host found unchanged since their slot was written.
    pt_write_unchanged,
    /// Faults on a page that was out of the page table with its frame kept, to see whether it is used or on its way out: no read,
    /// no charge.
    pt_soft_fault,
    /// Pages taken out of the page table to see whether they are used.
    pt_sampled,
    /// Pages mapped ahead of their fault.
    pt_map_ahead,
    /// Zero pages mapped ahead of their first touch.
    pt_zero_ahead,
    /// Completions that named no effect in flight.
    pt_late_event,
    /// Pages lost to a failed read.
    pt_poisoned,
    /// Writes that failed; the page stayed in memory.
    pt_write_failed,
    /// Pages read because a task waited for them.
    pt_demand_read,
    /// Pages brought in by swapoff.
    pt_swapoff_in,
    /// Faults that waited for memory.
    pt_wait_memory,
    /// Passes of reclaim over the lists, one for each priority of a run.
    pt_reclaim_pass,
    /// Readahead windows of 1 page that were chosen (VMA and cluster readahead, also by swapoff).
    pt_ra_window_1,
    /// Of 2 pages.
    pt_ra_window_2,
    /// Of 4 pages.
    pt_ra_window_4,
    /// Of 8 pages.
    pt_ra_window_8,
    /// Of more.
    pt_ra_window_more,
}

/// The values of all counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vmstat {
    values: [u64; COUNTERS.len()],
}

impl Vmstat {
    pub(crate) const fn new() -> Self {
        Self { values: [0; COUNTERS.len()] }
    }

    pub(crate) fn add(&mut self, counter: Counter, n: u32) {
        self.values[counter as usize] += u64::from(n);
    }

    /// The value of one counter.
    pub const fn get(&self, counter: Counter) -> u64 {
        self.values[counter as usize]
    }

    /// Name and value of every counter, in the order of the table.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        COUNTERS.iter().map(|&(counter, name, _)| (name, self.get(counter)))
    }
}
