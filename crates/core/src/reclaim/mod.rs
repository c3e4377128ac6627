//! Reclaim runs: which lists are scanned, how far, and when it is enough.
//!
//! A run goes through priorities 12..0; at priority p every list is asked for its size >> p (times the balance). It is a
//! state machine that can stop after any page, because the effect buffer is full (I1) or because it waits for a write, and
//! goes on later. What happens to one page is in `shrink`.

pub(crate) mod balance;
pub(crate) mod references;
pub(crate) mod shrink;
mod workingset;

use crate::config::{Balance, MemoryMode};
use crate::effect::{EFFECTS_MAX, Effects};
use crate::memory::lru::{AA, AF, IA, IF};
use crate::policy::Core;
use crate::reclaim::shrink::Look;
use crate::types::Nanos;
use crate::vmstat::Counter;
use balance::ScanFacts;

/// Priority at which a run starts.
pub(crate) const DEF_PRIORITY: u32 = 12;
/// From this priority down, pages in the batches of all CPUs are put on their lists first.
const DRAIN_ALL_PRIORITY: u32 = 2;
/// Pages a direct run is to reclaim.
pub(crate) const SWAP_CLUSTER_MAX: u32 = 32;
/// Fruitless runs after which kswapd sleeps, or a fault is out of memory.
pub(crate) const MAX_RECLAIM_RETRIES: u32 = 16;
/// One look can bring an unmap, a write and a drop.
const LOOK_EFFECTS: usize = 4;
/// Pages looked at in one event; then the run goes on in the next (I1).
const LOOKS_MAX: u32 = 1 << 15;

/// On whose behalf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunKind {
    Kswapd,
    Direct,
    Memcg,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
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
pub(crate) struct Batch {
    pub(crate) left: u32,
    pub(crate) scanned: u32,
    pub(crate) freed: u32,
    pub(crate) pageout: u32,
    pub(crate) activated: u32,
    pub(crate) rotated: u32,
    pub(crate) referenced: u32,
    /// Met under write, or dirty and left to the flusher.
    pub(crate) unready: u32,
    /// Of them dirty, and not under write yet.
    pub(crate) unsent: u32,
}

/// A run of reclaim.
#[derive(Clone, Debug)]
pub(crate) struct ReclaimRun {
    pub(crate) kind: RunKind,
    stage: Stage,
    priority: u32,
    nr_to_reclaim: u32,
    pub(crate) nr_reclaimed: u32,
    /// Freed since the first priority, of an unlimited kswapd.
    loop_reclaimed: u32,
    /// Looked at in this pass, and freed in this pass.
    pass_scanned: u32,
    pass_reclaimed: u32,
    nr: [u32; 4],
    target: [u32; 4],
    list: usize,
    pub(crate) batch: Batch,
    may_deactivate: [bool; 2],
    force_deactivate: bool,
    skipped_deactivate: bool,
    full_walk: bool,
    /// S4: the one pass at priority 0.
    last_pass: bool,
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
    pub(crate) const fn has_sunk(&self) -> bool {
        self.priority < DEF_PRIORITY - 2
    }

    /// The current batch freed a page (or is sure to).
    pub(crate) const fn note_freed(&mut self) {
        self.batch.freed += 1;
    }
}

/// The background reclaimer.
#[derive(Debug)]
pub(crate) struct Kswapd {
    run: Option<ReclaimRun>,
    waits_io: bool,
    /// It naps until then.
    naps_until: Nanos,
    failures: u32,
}

impl Kswapd {
    pub(crate) const fn new() -> Self {
        Self { run: None, waits_io: false, naps_until: 0, failures: 0 }
    }

    pub(crate) const fn is_runnable(&self, now: Nanos) -> bool {
        self.run.is_some() && !self.waits_io && self.naps_until <= now
    }

    /// The end of its nap.
    pub(crate) fn wakes_at(&self, now: Nanos) -> Option<Nanos> {
        (self.run.is_some() && self.naps_until > now).then_some(self.naps_until)
    }

    pub(crate) const fn io_done(&mut self) {
        self.waits_io = false;
    }

    pub(crate) const fn progress(&mut self) {
        self.failures = 0;
    }
}

impl Core {
    /// Free frames are at the low watermark: wake kswapd.
    pub(crate) fn wake_kswapd(&mut self) {
        if self.is_memcg() || self.kswapd.run.is_some() || self.kswapd.failures >= MAX_RECLAIM_RETRIES {
            return;
        }
        if self.is_balanced() {
            return;
        }
        self.count(Counter::pageoutrun, 1);
        let goal = self.mem.high.max(SWAP_CLUSTER_MAX);
        self.kswapd.run = Some(ReclaimRun::new(RunKind::Kswapd, goal));
        self.kswapd.waits_io = false;
    }

    /// Enough frames are free, or on their way to it.
    fn is_balanced(&self) -> bool {
        self.mem.charged <= self.mem.budget && self.mem.free() >= self.mem.high
    }

    /// Let kswapd go on.
    pub(crate) fn run_kswapd(&mut self, out: &mut Effects) {
        if !self.kswapd.is_runnable(self.now) || self.control.hold {
            return;
        }
        let Some(mut run) = self.kswapd.run.take() else {
            return;
        };
        match self.reclaim(&mut run, out) {
            RunEnd::Done => {
                if run.nr_reclaimed == 0 {
                    // Old kernels had no such end; what is under write will be there to be freed.
                    self.kswapd.failures += u32::from(self.cfg.activate_dirty || self.pending == 0);
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
                self.kswapd.waits_io = self.pending > 0 || self.io.live() > 0;
            }
        }
    }

    /// Let a run go on until it is done or has to stop.
    pub(crate) fn reclaim(&mut self, run: &mut ReclaimRun, out: &mut Effects) -> RunEnd {
        let mut looks = 0;
        loop {
            match run.stage {
                Stage::Pass => {
                    if run.kind == RunKind::Kswapd {
                        if self.is_balanced() {
                            run.stage = Stage::Done;
                            continue;
                        }
                        // What is being written is as good as free: more would only be written for nothing.
                        // (What the flusher writes stays in memory.)
                        let leaving = self.pending - self.flusher.writing;
                        let wait = leaving > 0 && !self.cfg.kswapd_unlimited;
                        if wait && self.mem.free() + leaving >= self.mem.high {
                            return RunEnd::WaitIo;
                        }
                        if self.inactive_is_low(0) && self.swap.total > 0 {
                            run.batch = Batch { left: SWAP_CLUSTER_MAX, ..Batch::default() };
                            run.list = AA;
                            run.stage = Stage::AgingFirst;
                            continue;
                        }
                    }
                    self.prepare_pass(run);
                }
                Stage::Round => {
                    run.list = 0;
                    let any = run.nr[IA] > 0 || run.nr[IF] > 0 || run.nr[AF] > 0;
                    run.stage = if any { Stage::Lists } else { Stage::Aging };
                    if !any {
                        self.begin_aging(run);
                    }
                }
                Stage::Lists => self.next_list(run),
                Stage::Batch | Stage::AgingFirst | Stage::Aging => {
                    if let Some(stop) = self.run_batch(run, &mut looks, out) {
                        return stop;
                    }
                    let wrote = run.batch.pageout > 0;
                    let clogged = self.is_clogged(run);
                    let naps = self.naps_after(run);
                    self.end_batch(run);
                    if naps {
                        run.is_tail_dirty = true;
                        return RunEnd::Nap(self.now + self.cfg.nap_ns);
                    }
                    if clogged || wrote && self.is_swap_queue_full() {
                        return RunEnd::WaitIo;
                    }
                    if wrote && self.host.yields_after_writes {
                        // Writes end while a run is going on: in virtual time that takes a turn of the host.
                        return RunEnd::Yield;
                    }
                }
                Stage::PassEnd => {
                    let fruitless = self.end_pass(run);
                    if fruitless && self.pending > 0 {
                        // 2013: it went on at once, and found the same until a write had ended.
                        return RunEnd::WaitIo;
                    }
                    if run.lets_reads_end && run.stage == Stage::Pass && self.file_reads > 0 {
                        // A pass over long lists takes longer than they do.
                        return RunEnd::Yield;
                    }
                }
                Stage::Done => {
                    self.ws_snapshot = self.policy_activations();
                    if run.nr_reclaimed > 0 {
                        self.kswapd.progress();
                    }
                    return RunEnd::Done;
                }
            }
        }
    }

    /// All pages of the batch have to be written before they can go: until 4.10 the reclaimer then waits for some write to
    /// end, later such pages go out of its way.
    const fn is_clogged(&self, run: &ReclaimRun) -> bool {
        let unlimited = self.cfg.kswapd_unlimited && matches!(run.kind, RunKind::Kswapd);
        let batch = &run.batch;
        !self.cfg.activate_dirty
            && !unlimited
            && self.pending > 0
            && batch.scanned > 0
            && batch.unready == batch.scanned
    }

    /// The batch brought nothing but dirty pages that nobody writes yet, and reclaim naps then.
    const fn naps_after(&self, run: &ReclaimRun) -> bool {
        let batch = &run.batch;
        self.cfg.nap_ns > 0 && batch.scanned > 0 && batch.unsent == batch.scanned
    }

    /// Reclaim has as much under write as the disk's queue has room for beside the flusher.
    const fn is_swap_queue_full(&self) -> bool {
        let writing = self.pending - self.flusher.writing;
        self.cfg.write_queue > 0 && writing >= self.queue_share(self.flusher.writing)
    }

    /// What the queue holds for one who writes, while `others` pages of another are in it.
    pub(crate) const fn queue_share(&self, others: u32) -> u32 {
        let (half, rest) = (self.cfg.write_queue / 2, self.cfg.write_queue.saturating_sub(others));
        if half > rest { half } else { rest }
    }

    /// Decide what this priority asks for.
    fn prepare_pass(&mut self, run: &mut ReclaimRun) {
        let activations = self.policy_activations();
        for (kind, &now) in activations.iter().enumerate() {
            let came_back = self.cfg.refault_deactivates && now != self.ws_snapshot[kind];
            run.may_deactivate[kind] = run.force_deactivate || came_back || self.inactive_is_low(kind);
        }
        let sizes = self.policy_sizes();
        let cache_trim = (sizes[IF] >> run.priority) != 0 && !run.may_deactivate[1];
        let memcg = run.kind == RunKind::Memcg;
        let file_is_tiny = !memcg
            && sizes[IF] + sizes[AF] + self.mem.free() <= self.mem.high
            && !run.may_deactivate[0]
            && (sizes[IA] >> run.priority) != 0;
        run.nr = self.scan_targets(ScanFacts { priority: run.priority, memcg, file_is_tiny, cache_trim });
        run.target = run.nr;
        run.pass_scanned = 0;
        run.pass_reclaimed = 0;
        run.stage = Stage::Round;
    }

    fn next_list(&mut self, run: &mut ReclaimRun) {
        while run.list < 4 {
            let list = run.list;
            if run.nr[list] > 0 {
                let k = run.nr[list].min(self.cfg.reclaim_batch);
                run.nr[list] -= k;
                if list % 2 == 1 && !run.may_deactivate[list / 2] {
                    run.skipped_deactivate = true;
                } else {
                    self.begin_batch(run, k);
                    run.stage = Stage::Batch;
                    return;
                }
            }
            run.list += 1;
        }
        self.end_round(run);
    }

    fn begin_batch(&mut self, run: &mut ReclaimRun, k: u32) {
        // kswapd has a CPU to itself: the batches of the others fill up without it. Where nothing else is left, all go.
        let rotated = if run.priority <= DRAIN_ALL_PRIORITY {
            self.lru.drain_all(&mut self.pages)
        } else if run.kind == RunKind::Kswapd {
            self.lru.drain_rotate(&mut self.pages)
        } else {
            self.lru.drain(&mut self.pages)
        };
        self.count(Counter::pgrotated, rotated);
        run.batch = Batch { left: k.min(self.lru.len(run.list)), ..Batch::default() };
    }

    /// Goal met? Then scan the larger side down to the share that the smaller one has reached, and stop.
    fn end_round(&mut self, run: &mut ReclaimRun) {
        run.stage = Stage::Round;
        let unlimited = self.cfg.kswapd_unlimited && run.kind == RunKind::Kswapd;
        let proportional = unlimited || run.kind == RunKind::Direct && run.priority == DEF_PRIORITY;
        if run.pass_reclaimed < run.nr_to_reclaim || proportional {
            return;
        }
        let file = run.nr[IF] + run.nr[AF];
        let anon = run.nr[IA] + run.nr[AA];
        if file == 0 || anon == 0 {
            run.nr = [0; 4];
            return;
        }
        let (less, more) = if file > anon { (0, 1) } else { (1, 0) };
        let left = u64::from(run.nr[less * 2] + run.nr[less * 2 + 1]);
        let sum = u64::from(run.target[less * 2] + run.target[less * 2 + 1]) + 1;
        let percentage = left * 100 / sum;
        run.nr[less * 2] = 0;
        run.nr[less * 2 + 1] = 0;
        for list in [more * 2, more * 2 + 1] {
            let done = run.target[list] - run.nr[list];
            let share = u64::from(run.target[list]) * (100 - percentage) / 100;
            run.nr[list] = u32::try_from(share).expect("a share of a u32").saturating_sub(done);
        }
    }

    /// One look at the active anonymous pages after the loop, if their inactive list is short.
    fn begin_aging(&mut self, run: &mut ReclaimRun) {
        if self.swap.total > 0 && self.inactive_is_low(0) {
            run.list = AA;
            self.begin_batch(run, SWAP_CLUSTER_MAX);
        } else {
            run.batch = Batch::default();
            run.stage = Stage::PassEnd;
        }
    }

    /// Look at the pages of the batch. Returns why it has to stop in between.
    fn run_batch(&mut self, run: &mut ReclaimRun, looks: &mut u32, out: &mut Effects) -> Option<RunEnd> {
        let step = if run.kind == RunKind::Kswapd { self.host.kswapd_effects } else { EFFECTS_MAX };
        let room = LOOK_EFFECTS.max(EFFECTS_MAX - step);
        while run.batch.left > 0 {
            if out.room() < room || *looks >= LOOKS_MAX {
                return Some(RunEnd::Yield);
            }
            let p = self.lru.scan_tail(&self.pages, run.list);
            if p == crate::memory::page::NIL {
                run.batch.left = 0;
                break;
            }
            *looks += 1;
            if run.list % 2 == 1 {
                run.batch.left -= 1;
                run.batch.scanned += 1;
                self.shrink_active(run, p);
                continue;
            }
            match self.shrink_inactive(run, p, out) {
                Look::Wait => return Some(RunEnd::WaitPage(p)),
                Look::NoIo => return Some(RunEnd::WaitIo),
                Look::Next => {
                    run.batch.left -= 1;
                    run.batch.scanned += 1;
                }
            }
        }
        None
    }

    fn end_batch(&mut self, run: &mut ReclaimRun) {
        let batch = run.batch;
        let kind = run.list / 2;
        if run.list % 2 == 1 {
            if self.is_memcg() {
                // The kernel's pgrefill in /proc/vmstat counts global reclaim only.
            } else {
                self.count(Counter::pgrefill, batch.scanned);
            }
            self.note_cost(kind, 0, batch.rotated);
            self.note_scanned(kind, batch.scanned, batch.referenced);
        } else {
            self.age += u64::from(batch.activated);
            if self.cfg.balance == Balance::LruCost2016 {
                self.note_cost(kind, 0, batch.activated);
            } else {
                self.note_cost(kind, batch.pageout, batch.scanned - batch.freed.min(batch.scanned));
            }
            self.note_scanned(kind, batch.scanned, batch.activated);
            self.count([Counter::pgscan_anon, Counter::pgscan_file][kind], batch.scanned);
            match run.kind {
                RunKind::Kswapd => {
                    self.count(Counter::pgscan_kswapd, batch.scanned);
                    self.count(Counter::pgsteal_kswapd, batch.freed);
                }
                RunKind::Direct => {
                    self.count(Counter::pgscan_direct, batch.scanned);
                    self.count(Counter::pgsteal_direct, batch.freed);
                }
                RunKind::Memcg => {}
            }
            run.pass_scanned += batch.scanned;
            run.pass_reclaimed += batch.freed;
        }
        match run.stage {
            Stage::AgingFirst => self.prepare_pass(run),
            Stage::Aging => run.stage = Stage::PassEnd,
            Stage::Batch => {
                run.list += 1;
                run.stage = Stage::Lists;
            }
            Stage::Pass | Stage::Round | Stage::Lists | Stage::PassEnd | Stage::Done => {
                unreachable!("no batch here")
            }
        }
        run.batch = Batch::default();
    }

    /// What the pass brought. True: all priorities of an unlimited kswapd brought nothing.
    fn end_pass(&mut self, run: &mut ReclaimRun) -> bool {
        self.count(Counter::pt_reclaim_pass, 1);
        run.nr_reclaimed += run.pass_reclaimed;
        run.stage = Stage::Pass;
        if run.kind == RunKind::Kswapd && self.cfg.kswapd_unlimited {
            return self.end_unlimited_pass(run);
        }
        if run.kind == RunKind::Kswapd {
            let enough = run.pass_scanned >= run.nr_to_reclaim;
            if !enough || run.pass_reclaimed == 0 {
                run.priority -= 1;
            }
            if run.priority < 1 {
                run.stage = Stage::Done;
            }
            return false;
        }
        let floor = if run.last_pass { 0 } else { self.cfg.min_scan_priority };
        if run.nr_reclaimed >= run.nr_to_reclaim || run.priority <= floor {
            run.stage = self.end_priorities(run);
        } else {
            run.priority -= 1;
        }
        false
    }

    /// 2013: on to the next priority, or to the first one after a batch was freed or at the end. Zones in which nothing is left to
    /// be had were let be.
    const fn end_unlimited_pass(&self, run: &mut ReclaimRun) -> bool {
        run.loop_reclaimed += run.pass_reclaimed;
        if run.loop_reclaimed < SWAP_CLUSTER_MAX && run.priority > 0 {
            run.priority -= 1;
            return false;
        }
        let fruitless = run.loop_reclaimed == 0;
        if fruitless && self.pending == 0 {
            run.stage = Stage::Done;
        }
        run.loop_reclaimed = 0;
        run.priority = DEF_PRIORITY;
        fruitless
    }

    /// After the last priority: done, or once more from the start for one of the reasons the kernel knows.
    fn end_priorities(&mut self, run: &mut ReclaimRun) -> Stage {
        self.ws_snapshot = self.policy_activations();
        if run.nr_reclaimed > 0 {
            return Stage::Done;
        }
        // With less memory than a batch holds, all pages may be in it.
        let rotated = self.lru.drain(&mut self.pages) + self.lru.drain_rotate(&mut self.pages);
        self.count(Counter::pgrotated, rotated);
        let memcg = matches!(self.cfg.memory, MemoryMode::Memcg { .. });
        if memcg && self.cfg.full_walk_retry && !run.full_walk {
            run.full_walk = true;
        } else if run.skipped_deactivate {
            run.skipped_deactivate = false;
            run.force_deactivate = true;
        } else if self.cfg.min_scan_priority > 0 && !run.last_pass && self.pending == 0 {
            // S4: priority 0 only when the alternative is out of memory.
            run.last_pass = true;
            run.priority = 0;
            return Stage::Pass;
        } else {
            return Stage::Done;
        }
        if run.kind == RunKind::Direct {
            self.count(Counter::allocstall, 1);
        }
        run.priority = DEF_PRIORITY;
        Stage::Pass
    }
}
