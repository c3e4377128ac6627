//! Reclaim: which pages go. Background reclaim (kswapd), direct reclaim, and the looks at single pages.
//!
//! Works on memory and swap space and calls nothing above them: a run ends with why it stopped, and whoever began it decides
//! what waits for that.

mod balance;
mod judge;
mod passes;
mod references;
mod run;
mod shrink;
mod watch;
mod workingset;

use crate::absences::AbsenceLog;
use crate::config::Config;
use crate::effect::Effects;
use crate::host::{Host, MAX_RECLAIM_RETRIES};
use crate::swap::Space;
use crate::types::Nanos;
use crate::vmstat::Counter;
use balance::{LruCost, SeenStats};
use references::References;
pub(crate) use run::{ReclaimRun, RunEnd, RunKind, SWAP_CLUSTER_MAX};
pub(crate) use shrink::{Pageout, begin_pageout};
use watch::Watch;

/// What reclaim remembers.
#[derive(Debug)]
pub(crate) struct Reclaim {
    pub(crate) cfg: Config,
    host: Host,
    references: References,
    cost: LruCost,
    seen: SeenStats,
    /// The nonresident clock.
    age: u64,
    /// Activations by refault so far, by type; and their number when the last run ended.
    ws_activate: [u64; 2],
    ws_snapshot: [u64; 2],
    kswapd: Kswapd,
    watch: Watch,
    /// How long pages stay away: counted, and not decided by.
    pub(crate) absences: AbsenceLog,
}

/// The background reclaimer.
#[derive(Debug)]
struct Kswapd {
    run: Option<ReclaimRun>,
    waits_io: bool,
    /// It naps until then.
    naps_until: Nanos,
    failures: u32,
}

impl Kswapd {
    const fn new() -> Self {
        Self { run: None, waits_io: false, naps_until: 0, failures: 0 }
    }

    const fn is_runnable(&self, now: Nanos) -> bool {
        self.run.is_some() && !self.waits_io && self.naps_until <= now
    }

    /// The end of its nap.
    fn wakes_at(&self, now: Nanos) -> Option<Nanos> {
        (self.run.is_some() && self.naps_until > now).then_some(self.naps_until)
    }
}

impl Reclaim {
    pub(crate) fn new(config: &Config, host: Host) -> Self {
        Self {
            references: References::of(config),
            cost: LruCost::default(),
            seen: SeenStats::new(config),
            age: 0,
            ws_activate: [0; 2],
            ws_snapshot: [0; 2],
            kswapd: Kswapd::new(),
            watch: Watch::new(),
            absences: AbsenceLog::new(),
            host,
            cfg: config.clone(),
        }
    }

    /// kswapd has something to do, and waits for nothing.
    #[inline]
    pub(crate) const fn is_kswapd_runnable(&self, now: Nanos) -> bool {
        self.kswapd.is_runnable(now)
    }

    /// The end of kswapd's nap.
    #[inline]
    pub(crate) fn kswapd_wakes_at(&self, now: Nanos) -> Option<Nanos> {
        self.kswapd.wakes_at(now)
    }

    /// Some I/O has ended: kswapd need not wait for any.
    #[inline]
    pub(crate) const fn io_done(&mut self) {
        self.kswapd.waits_io = false;
    }

    /// Memory was freed, or there is more swap space: kswapd may hope again.
    pub(crate) const fn progress(&mut self) {
        self.kswapd.failures = 0;
    }

    /// Free frames are at the low watermark: wake kswapd.
    pub(crate) fn wake_kswapd(&mut self, space: &mut Space) {
        if self.cfg.is_memcg() || self.kswapd.run.is_some() || self.kswapd.failures >= MAX_RECLAIM_RETRIES {
            return;
        }
        if passes::is_balanced(&space.mem) {
            return;
        }
        space.mem.count(Counter::pageoutrun, 1);
        let goal = space.mem.budget.high.max(SWAP_CLUSTER_MAX);
        self.kswapd.run = Some(ReclaimRun::new(RunKind::Kswapd, goal));
        self.kswapd.waits_io = false;
    }

    /// Let kswapd go on.
    pub(crate) fn run_kswapd(&mut self, space: &mut Space, out: &mut Effects) {
        if !self.kswapd.is_runnable(space.mem.now) || space.mem.is_held {
            return;
        }
        let Some(mut run) = self.kswapd.run.take() else {
            return;
        };
        let pending = |space: &Space| space.mem.counts().pending;
        match self.run(space, &mut run, out) {
            RunEnd::Done => {
                if run.nr_reclaimed == 0 {
                    // Old kernels had no such end; what is under write will be there to be freed.
                    self.kswapd.failures += u32::from(self.cfg.activate_dirty || pending(space) == 0);
                } else {
                    self.kswapd.failures = 0;
                }
            }
            RunEnd::Yield => self.kswapd.run = Some(run),
            RunEnd::Nap(until) => {
                self.kswapd.run = Some(run);
                self.kswapd.naps_until = until;
            }
            RunEnd::WaitPage(_) | RunEnd::WaitIo => {
                self.kswapd.run = Some(run);
                self.kswapd.waits_io = pending(space) > 0 || space.io.live() > 0;
            }
        }
    }

    /// A run of direct reclaim, for a task that needs a frame.
    pub(crate) fn direct_run(&self, space: &mut Space) -> ReclaimRun {
        if self.cfg.is_memcg() {
            space.mem.count(Counter::max, 1);
            ReclaimRun::new(RunKind::Memcg, SWAP_CLUSTER_MAX)
        } else {
            space.mem.count(Counter::allocstall, 1);
            ReclaimRun::new(RunKind::Direct, SWAP_CLUSTER_MAX)
        }
    }
}
