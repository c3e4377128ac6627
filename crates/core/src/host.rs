//! What the kind of host makes different, as switches that are chosen when the core is built.
//!
//! The only place that knows the kinds (but for `config`, which takes the choice): everything else asks for the property it
//! means. How use is seen is a strategy of its own, see `reclaim::references`.

use crate::config::{Config, HostKind};
use crate::effect::EFFECTS_MAX;

/// Fruitless runs after which the kernel's kswapd sleeps, and a fault of its tasks is out of memory.
pub(crate) const MAX_RECLAIM_RETRIES: u32 = 16;

/// The properties of a host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host {
    /// An access leaves the young and dirty bits in the core's page table.
    pub(crate) sees_accesses: bool,
    /// Maps and unmaps take time: the page is in flight until the host has answered.
    pub(crate) answers_moves: bool,
    /// It may map a page for reading only, and then faults on the first store to it.
    pub(crate) maps_read_only: bool,
    /// It has page caches of files.
    pub(crate) has_files: bool,
    /// New pages pass through batches before they are on a list, as on the CPUs of a machine.
    pub(crate) has_lru_batches: bool,
    /// A write may turn out not to be needed: it counts when it has ended, not when it is submitted.
    pub(crate) answers_needless_writes: bool,
    /// A page under write that a scan meets is only passed by: writes are tracked one by one, and their ends free memory.
    pub(crate) passes_writeback: bool,
    /// Writes end while a run is going on: after each batch that wrote, the run lets the host take a turn.
    pub(crate) yields_after_writes: bool,
    /// A look for a free slot that finds none is put off while pages are on their way out. (Writes end one by one, and each end
    /// lets the runs go on: to look for what has a slot every time would be a look at every page for every page.)
    pub(crate) waits_for_slots: bool,
    /// Anonymous pages that have kept their slots can go when no slot is free.
    pub(crate) reclaims_kept_slots: bool,
    /// As in the kernel, the mark of a page read ahead and that of a page to be freed after its write are one bit.
    pub(crate) shares_reclaim_mark: bool,
    /// A soft fault that continues a stream maps the cached pages ahead, too.
    pub(crate) maps_ahead_of_soft_faults: bool,
    /// A charge for a page that nobody waits for may reclaim.
    pub(crate) reclaims_for_readahead: bool,
    /// Fruitless runs of direct reclaim after which a fault waits for what is in flight, or is out of memory.
    pub(crate) direct_runs_max: u32,
    /// Answers after which jobs that wait for memory look again while others are still to come.
    pub(crate) answers_per_look: u32,
    /// Swapoff gives up the slots of pages that cannot be read. (The kernel keeps such a device on.)
    pub(crate) drops_lost_slots: bool,
    /// Pages that swapoff looks at beyond the one whose read it waits for. 0: it waits, as the kernel does.
    pub(crate) swapoff_ahead: u32,
    /// Background reclaim goes on at timeouts only: the host decides when there is time for it.
    pub(crate) kswapd_at_timeouts: bool,
    /// Effects of one step of background reclaim. A host that carries each out by system calls looks at faults in between.
    pub(crate) kswapd_effects: usize,
}

/// The simulator: young and dirty bits in the core's page table, moves that take no time.
const EXACT: Host = Host {
    sees_accesses: true,
    answers_moves: false,
    maps_read_only: false,
    has_files: true,
    has_lru_batches: true,
    answers_needless_writes: false,
    passes_writeback: false,
    yields_after_writes: true,
    waits_for_slots: false,
    reclaims_kept_slots: false,
    shares_reclaim_mark: true,
    maps_ahead_of_soft_faults: false,
    reclaims_for_readahead: true,
    direct_runs_max: MAX_RECLAIM_RETRIES,
    answers_per_look: 1,
    drops_lost_slots: false,
    swapoff_ahead: 0,
    kswapd_at_timeouts: false,
    kswapd_effects: EFFECTS_MAX,
};

/// The live runtime: neither bit can be seen, and moves are system calls.
const BLIND: Host = Host {
    sees_accesses: false,
    answers_moves: true,
    maps_read_only: true,
    has_files: false,
    has_lru_batches: false,
    answers_needless_writes: true,
    passes_writeback: true,
    yields_after_writes: false,
    waits_for_slots: true,
    reclaims_kept_slots: true,
    shares_reclaim_mark: false,
    maps_ahead_of_soft_faults: true,
    reclaims_for_readahead: false,
    direct_runs_max: 2,
    answers_per_look: 64,
    drops_lost_slots: true,
    swapoff_ahead: 512,
    kswapd_at_timeouts: true,
    kswapd_effects: 6,
};

impl Host {
    pub(crate) const fn of(config: &Config) -> Self {
        match config.host {
            HostKind::Exact => EXACT,
            HostKind::Blind => BLIND,
        }
    }
}
