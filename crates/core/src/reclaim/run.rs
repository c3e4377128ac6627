//! A run of reclaim: how far it is, and why it stops.

use crate::types::Nanos;

/// Priority at which a run starts.
pub(super) const DEF_PRIORITY: u32 = 12;
/// Pages a direct run is to reclaim.
pub(crate) const SWAP_CLUSTER_MAX: u32 = 32;

/// On whose behalf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunKind {
    Kswapd,
    Direct,
    Memcg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// kswapd: is there still need; both: targets of this priority.
    Pass,
    /// Start of a round over the lists.
    Round,
    /// The next list of the round.
    Lists,
    /// In a batch of the list.
    Batch,
    /// The extra look at active anonymous pages after the loop.
    Aging,
    /// kswapd: aging before the pass.
    AgingFirst,
    /// What the pass brought.
    PassEnd,
    Done,
}

/// A batch: pages of one list looked at together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Batch {
    pub(super) left: u32,
    pub(super) scanned: u32,
    pub(super) freed: u32,
    pub(super) pageout: u32,
    pub(super) activated: u32,
    pub(super) rotated: u32,
    pub(super) referenced: u32,
    /// Met under write, or dirty and left to the flusher.
    pub(super) unready: u32,
    /// Of them dirty, and not under write yet.
    pub(super) unsent: u32,
}

/// A run of reclaim.
#[derive(Clone, Debug)]
pub(crate) struct ReclaimRun {
    pub(crate) kind: RunKind,
    pub(super) stage: Stage,
    pub(super) priority: u32,
    pub(super) nr_to_reclaim: u32,
    pub(crate) nr_reclaimed: u32,
    /// Freed since the first priority, of an unlimited kswapd.
    pub(super) loop_reclaimed: u32,
    /// Looked at in this pass, and freed in this pass.
    pub(super) pass_scanned: u32,
    pub(super) pass_reclaimed: u32,
    pub(super) nr: [u32; 4],
    pub(super) target: [u32; 4],
    pub(super) list: usize,
    pub(super) batch: Batch,
    pub(super) may_deactivate: [bool; 2],
    pub(super) force_deactivate: bool,
    pub(super) skipped_deactivate: bool,
    pub(super) full_walk: bool,
    /// S4: the one pass at priority 0.
    pub(super) last_pass: bool,
    /// It has napped: a batch was nothing but dirty pages.
    pub(crate) is_tail_dirty: bool,
    /// The page of the page cache that the task holds on to meanwhile: nobody can take it.
    pub(crate) held: Option<u32>,
    /// For a window of a file that nobody waits for: the reads of the window before it end while passes go on.
    pub(crate) lets_reads_end: bool,
}

/// Why a run stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunEnd {
    Done,
    /// Out of room for effects, or of turns: goes on at the deadline.
    Yield,
    /// For the write of this page.
    WaitPage(u32),
    /// For some write to end: enough are under way.
    WaitIo,
    /// For that time to come.
    Nap(Nanos),
}

impl ReclaimRun {
    pub(crate) const fn new(kind: RunKind, nr_to_reclaim: u32) -> Self {
        Self {
            kind,
            stage: Stage::Pass,
            priority: DEF_PRIORITY,
            nr_to_reclaim,
            nr_reclaimed: 0,
            loop_reclaimed: 0,
            pass_scanned: 0,
            pass_reclaimed: 0,
            nr: [0; 4],
            target: [0; 4],
            list: 0,
            batch: Batch {
                left: 0,
                scanned: 0,
                freed: 0,
                pageout: 0,
                activated: 0,
                rotated: 0,
                referenced: 0,
                unready: 0,
                unsent: 0,
            },
            may_deactivate: [false; 2],
            force_deactivate: false,
            skipped_deactivate: false,
            full_walk: false,
            last_pass: false,
            is_tail_dirty: false,
            held: None,
            lets_reads_end: false,
        }
    }

    /// So little was found that the run is below its first three priorities.
    pub(super) const fn has_sunk(&self) -> bool {
        self.priority < DEF_PRIORITY - 2
    }

    /// It has done what it was to do.
    pub(super) const fn is_enough(&self) -> bool {
        self.nr_reclaimed >= self.nr_to_reclaim
    }

    /// The current batch freed a page (or is sure to).
    pub(super) const fn note_freed(&mut self) {
        self.batch.freed += 1;
    }
}
