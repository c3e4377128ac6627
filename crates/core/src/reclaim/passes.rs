//! The passes of a run: which lists are scanned, how far, and when it is enough.
//!
//! A run goes through priorities 12..0; at priority p every list is asked for its size >> p (times the balance). It is a
//! state machine that can stop after any page, because the effect buffer is full (I1) or because it waits for a write, and
//! goes on later. What happens to one page is in `shrink`.

use super::Reclaim;
use super::balance::ScanFacts;
use super::references::References;
use super::run::{Batch, DEF_PRIORITY, ReclaimRun, RunEnd, RunKind, SWAP_CLUSTER_MAX, Stage};
use super::shrink::Look;
use crate::config::Balance;
use crate::effect::{EFFECTS_MAX, Effects};
use crate::memory::Memory;
use crate::memory::lru::{AA, AF, IA, IF};
use crate::swap::Space;
use crate::vmstat::Counter;

/// From this priority down, pages in the batches of all CPUs are put on their lists first.
const DRAIN_ALL_PRIORITY: u32 = 2;
/// One look can bring an unmap, a write and a drop.
const LOOK_EFFECTS: usize = 4;
/// Pages looked at in one event; then the run goes on in the next (I1).
pub(super) const LOOKS_MAX: u32 = 1 << 15;

impl Reclaim {
    /// Let a run go on until it is done or has to stop.
    pub(crate) fn run(&mut self, space: &mut Space, run: &mut ReclaimRun, out: &mut Effects) -> RunEnd {
        if self.references == References::Watched {
            return self.run_watched(space, run, out);
        }
        let mut looks = 0;
        loop {
            match run.stage {
                Stage::Pass => {
                    if let Some(stop) = self.begin_pass(space, run) {
                        return stop;
                    }
                }
                Stage::Round => {
                    run.list = 0;
                    let any = run.nr[IA] > 0 || run.nr[IF] > 0 || run.nr[AF] > 0;
                    run.stage = if any { Stage::Lists } else { Stage::Aging };
                    if !any {
                        self.begin_aging(space, run);
                    }
                }
                Stage::Lists => self.next_list(space, run),
                Stage::Batch | Stage::AgingFirst | Stage::Aging => {
                    if let Some(stop) = self.run_batch(space, run, &mut looks, out) {
                        return stop;
                    }
                    let wrote = run.batch.pageout > 0;
                    let clogged = self.is_clogged(&space.mem, run);
                    let naps = self.naps_after(run);
                    self.end_batch(space, run);
                    if naps {
                        run.is_tail_dirty = true;
                        return RunEnd::Nap(space.mem.now + self.cfg.nap_ns);
                    }
                    if clogged || wrote && self.is_swap_queue_full(&space.mem) {
                        return RunEnd::WaitIo;
                    }
                    if wrote && self.host.yields_after_writes {
                        // Writes end while a run is going on: in virtual time that takes a turn of the host.
                        return RunEnd::Yield;
                    }
                }
                Stage::PassEnd => {
                    let fruitless = self.end_pass(space, run);
                    if fruitless && space.mem.counts().pending > 0 {
                        // 2013: it went on at once, and found the same until a write had ended.
                        return RunEnd::WaitIo;
                    }
                    if run.lets_reads_end && run.stage == Stage::Pass && space.mem.counts().file_reads > 0 {
                        // A pass over long lists takes longer than they do.
                        return RunEnd::Yield;
                    }
                }
                Stage::Done => {
                    self.ws_snapshot = self.policy_activations(&space.mem);
                    if run.nr_reclaimed > 0 {
                        self.progress();
                    }
                    return RunEnd::Done;
                }
            }
        }
    }

    /// Kswapd ends its run when enough is free, and ages the active list first where the inactive one is low. Why it has to stop.
    fn begin_pass(&mut self, space: &mut Space, run: &mut ReclaimRun) -> Option<RunEnd> {
        if run.kind == RunKind::Kswapd {
            if is_balanced(&space.mem) {
                run.stage = Stage::Done;
                return None;
            }
            // What is being written is as good as free: more would only be written for nothing.
            let leaving = space.mem.leaving();
            let wait = leaving > 0 && !self.cfg.kswapd_unlimited;
            if wait && space.mem.free() + leaving >= space.mem.budget.high {
                return Some(RunEnd::WaitIo);
            }
            if self.inactive_is_low(space, 0) && space.slots.total > 0 {
                run.batch = Batch { left: SWAP_CLUSTER_MAX, ..Batch::default() };
                run.list = AA;
                run.stage = Stage::AgingFirst;
                return None;
            }
        }
        self.prepare_pass(space, run);
        None
    }

    /// All pages of the batch have to be written before they can go: until 4.10 the reclaimer then waits for some write to
    /// end, later such pages go out of its way.
    const fn is_clogged(&self, mem: &Memory, run: &ReclaimRun) -> bool {
        let unlimited = self.cfg.kswapd_unlimited && matches!(run.kind, RunKind::Kswapd);
        let batch = &run.batch;
        !self.cfg.activate_dirty
            && !unlimited
            && mem.counts().pending > 0
            && batch.scanned > 0
            && batch.unready == batch.scanned
    }

    /// The batch brought nothing but dirty pages that nobody writes yet, and reclaim naps then.
    const fn naps_after(&self, run: &ReclaimRun) -> bool {
        let batch = &run.batch;
        self.cfg.nap_ns > 0 && batch.scanned > 0 && batch.unsent == batch.scanned
    }

    /// Reclaim has as much under write as the disk's queue has room for beside the flusher.
    const fn is_swap_queue_full(&self, mem: &Memory) -> bool {
        self.cfg.write_queue > 0 && mem.leaving() >= self.cfg.queue_share(mem.writeback.writing)
    }

    /// Decide what this priority asks for.
    fn prepare_pass(&mut self, space: &Space, run: &mut ReclaimRun) {
        let activations = self.policy_activations(&space.mem);
        for (kind, &now) in activations.iter().enumerate() {
            let came_back = self.cfg.refault_deactivates && now != self.ws_snapshot[kind];
            run.may_deactivate[kind] = run.force_deactivate || came_back || self.inactive_is_low(space, kind);
        }
        let sizes = self.policy_sizes(&space.mem);
        let cache_trim = (sizes[IF] >> run.priority) != 0 && !run.may_deactivate[1];
        let memcg = run.kind == RunKind::Memcg;
        let file_is_tiny = !memcg
            && sizes[IF] + sizes[AF] + space.mem.free() <= space.mem.budget.high
            && !run.may_deactivate[0]
            && (sizes[IA] >> run.priority) != 0;
        run.nr = self.scan_targets(space, ScanFacts { priority: run.priority, memcg, file_is_tiny, cache_trim });
        run.target = run.nr;
        run.pass_scanned = 0;
        run.pass_reclaimed = 0;
        run.stage = Stage::Round;
    }

    fn next_list(&mut self, space: &mut Space, run: &mut ReclaimRun) {
        while run.list < 4 {
            let list = run.list;
            if run.nr[list] > 0 {
                let k = run.nr[list].min(self.cfg.reclaim_batch);
                run.nr[list] -= k;
                if list % 2 == 1 && !run.may_deactivate[list / 2] {
                    run.skipped_deactivate = true;
                } else {
                    begin_batch(&mut space.mem, run, k);
                    run.stage = Stage::Batch;
                    return;
                }
            }
            run.list += 1;
        }
        self.end_round(run);
    }

    /// Goal met? Then scan the larger side down to the share that the smaller one has reached, and stop.
    fn end_round(&self, run: &mut ReclaimRun) {
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
    fn begin_aging(&mut self, space: &mut Space, run: &mut ReclaimRun) {
        if space.slots.total > 0 && self.inactive_is_low(space, 0) {
            run.list = AA;
            begin_batch(&mut space.mem, run, SWAP_CLUSTER_MAX);
        } else {
            run.batch = Batch::default();
            run.stage = Stage::PassEnd;
        }
    }

    /// Look at the pages of the batch. Returns why it has to stop in between.
    fn run_batch(
        &mut self,
        space: &mut Space,
        run: &mut ReclaimRun,
        looks: &mut u32,
        out: &mut Effects,
    ) -> Option<RunEnd> {
        let step = if run.kind == RunKind::Kswapd { self.host.kswapd_effects } else { EFFECTS_MAX };
        let room = LOOK_EFFECTS.max(EFFECTS_MAX - step);
        while run.batch.left > 0 {
            if out.room() < room || *looks >= LOOKS_MAX {
                return Some(RunEnd::Yield);
            }
            let Some(p) = space.mem.scan_tail(run.list) else {
                run.batch.left = 0;
                break;
            };
            *looks += 1;
            if run.list % 2 == 1 {
                run.batch.left -= 1;
                run.batch.scanned += 1;
                self.shrink_active(&mut space.mem, run, p);
                continue;
            }
            match self.shrink_inactive(space, run, p, out) {
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

    fn end_batch(&mut self, space: &mut Space, run: &mut ReclaimRun) {
        let batch = run.batch;
        let kind = run.list / 2;
        if run.list % 2 == 1 {
            if self.cfg.is_memcg() {
                // The kernel's pgrefill in /proc/vmstat counts global reclaim only.
            } else {
                space.mem.count(Counter::pgrefill, batch.scanned);
            }
            self.note_cost(&space.mem, kind, 0, batch.rotated);
            self.note_scanned(kind, batch.scanned, batch.referenced);
        } else {
            self.age += u64::from(batch.activated);
            if self.cfg.balance == Balance::LruCost2016 {
                self.note_cost(&space.mem, kind, 0, batch.activated);
            } else {
                self.note_cost(&space.mem, kind, batch.pageout, batch.scanned - batch.freed.min(batch.scanned));
            }
            self.note_scanned(kind, batch.scanned, batch.activated);
            space.mem.count([Counter::pgscan_anon, Counter::pgscan_file][kind], batch.scanned);
            match run.kind {
                RunKind::Kswapd => {
                    space.mem.count(Counter::pgscan_kswapd, batch.scanned);
                    space.mem.count(Counter::pgsteal_kswapd, batch.freed);
                }
                RunKind::Direct => {
                    space.mem.count(Counter::pgscan_direct, batch.scanned);
                    space.mem.count(Counter::pgsteal_direct, batch.freed);
                }
                RunKind::Memcg => {}
            }
            run.pass_scanned += batch.scanned;
            run.pass_reclaimed += batch.freed;
        }
        match run.stage {
            Stage::AgingFirst => self.prepare_pass(space, run),
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
    fn end_pass(&mut self, space: &mut Space, run: &mut ReclaimRun) -> bool {
        space.mem.count(Counter::pt_reclaim_pass, 1);
        run.nr_reclaimed += run.pass_reclaimed;
        run.stage = Stage::Pass;
        if run.kind == RunKind::Kswapd && self.cfg.kswapd_unlimited {
            return end_unlimited_pass(space.mem.counts().pending, run);
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
            run.stage = self.end_priorities(space, run);
        } else {
            run.priority -= 1;
        }
        false
    }

    /// After the last priority: done, or once more from the start for one of the reasons the kernel knows.
    fn end_priorities(&mut self, space: &mut Space, run: &mut ReclaimRun) -> Stage {
        self.ws_snapshot = self.policy_activations(&space.mem);
        if run.nr_reclaimed > 0 {
            return Stage::Done;
        }
        // With less memory than a batch holds, all pages may be in it.
        space.mem.drain();
        space.mem.drain_rotate();
        if self.cfg.is_memcg() && self.cfg.full_walk_retry && !run.full_walk {
            run.full_walk = true;
        } else if run.skipped_deactivate {
            run.skipped_deactivate = false;
            run.force_deactivate = true;
        } else if self.cfg.min_scan_priority > 0 && !run.last_pass && space.mem.counts().pending == 0 {
            // S4: priority 0 only when the alternative is out of memory.
            run.last_pass = true;
            run.priority = 0;
            return Stage::Pass;
        } else {
            return Stage::Done;
        }
        if run.kind == RunKind::Direct {
            space.mem.count(Counter::allocstall, 1);
        }
        run.priority = DEF_PRIORITY;
        Stage::Pass
    }
}

/// Enough frames are free, or on their way to it.
pub(super) const fn is_balanced(mem: &Memory) -> bool {
    !mem.budget.is_exceeded() && mem.free() >= mem.budget.high
}

fn begin_batch(mem: &mut Memory, run: &mut ReclaimRun, k: u32) {
    // kswapd has a CPU to itself: the batches of the others fill up without it. Where nothing else is left, all go.
    if run.priority <= DRAIN_ALL_PRIORITY {
        mem.drain_all();
    } else if run.kind == RunKind::Kswapd {
        mem.drain_rotate();
    } else {
        mem.drain();
    }
    run.batch = Batch { left: k.min(mem.list_len(run.list)), ..Batch::default() };
}

/// 2013: on to the next priority, or to the first one after a batch was freed or at the end. Zones in which nothing is left to
/// be had were let be.
const fn end_unlimited_pass(pending: u32, run: &mut ReclaimRun) -> bool {
    run.loop_reclaimed += run.pass_reclaimed;
    if run.loop_reclaimed < SWAP_CLUSTER_MAX && run.priority > 0 {
        run.priority -= 1;
        return false;
    }
    let fruitless = run.loop_reclaimed == 0;
    if fruitless && pending == 0 {
        run.stage = Stage::Done;
    }
    run.loop_reclaimed = 0;
    run.priority = DEF_PRIORITY;
    fruitless
}
