//! Which pages stay, on a host that sees no accessed bits: profile `pagetide`.
//!
//! What can be seen of a page's use is the fault that brings it in, and the soft fault that it makes while it is out of the page
//! table with its frame kept (*watched*; Babaoglu and Joy 1981). A look therefore costs a move and, if the page is used, a soft
//! fault; it tells not only *whether* the page is used but *when*. So pages are compared by the one thing that is known of
//! pages that are there and of pages that are gone alike: the time between two uses, as LIRS does with exact knowledge (Jiang
//! and Zhang 2002). The clock is the number of pages that have come in: while nothing comes in, nothing has to be decided.
//!
//! ```text
//!     comes in                         used while watched, or came back sooner than
//!        |                             the coldest kept page was used: is kept
//!        v                                          |
//!   [ probation: mapped | watched ] --> goes        v            (as long as `judge` says,
//!     IA                  PW      <---------- [ kept: mapped | watched ]     or all that is not kept)
//!                                               AA             MW --> goes when another is worth its place
//! ```
//!
//! - A page that comes in is on *probation*, a queue in two halves (segmented FIFO, Turner and Levy 1981): mapped, then watched.
//!   A use in the second half proves that it is used again within the length of the queue; each page has to prove it once, so
//!   these soft faults are no more than the pages that are kept. What is not used goes. Bursts of uses fall into the first half
//!   and prove nothing.
//! - The rest of memory is for pages that are *kept*. While there is room, a page is kept as soon as it comes back; then only if the
//!   time since its last use is shorter than the time for which the coldest kept page has been watched without a use. That page
//!   then goes in its place. (One that is used on probation need not be better than the coldest: it is kept if it is used more often
//!   than kept pages are in the mean.) Scans and loops larger than memory so leave the kept pages where they are (in a loop all
//!   pages come back after the same time, and none is worth another's place), and what is gone forgets nothing: the
//!   shadow entry holds the time of the last use for as long as the page is in its slot.
//! - Of the kept pages a sixth at most is watched at a time, and for each page that comes in at most one look is begun: the price of
//!   looking is bounded by a part of the price of the misses, whatever the program does. A page that was used at its look is
//!   passed over at its next turn, then at two, then at three (its level), so that looks go to where something is to be found. While
//!   more is kept than the judge allows, what was hot before tells nothing: none is passed over, up to a third is watched, and a look that
//!   ends with the page's going is free, for it had to leave the page table anyhow. So a set that is not in use any more goes as fast as
//!   others come.
//! - Where nearly all that is watched is used, a soft fault speaks for its neighbours, too (the group of eight pages, but for its first, so
//!   that it stays known): they are put back into the page table with it. Of a hot array one page in eight so makes a soft fault. A page on
//!   probation has another turn by that, two at most, and is then kept: that pages are used is known long before it is known that others
//!   are not, so that after a fill whole places look as if all of them were.
//! - Pages read ahead that nobody has asked for go before all others.
//! - Little goes at a time while little is asked for (the watermarks go down, see `memory::budget`): the
//!   few pages that are watched would else be taken out and let go in one step, with no time to be used in between.
//!
//! Measured by `pagetide sim study`: see docs/sim.md.

use super::Reclaim;
use super::judge::{Judge, Lists};
use super::passes::{LOOKS_MAX, is_balanced};
use super::run::{ReclaimRun, RunEnd, RunKind};
use super::shrink::{Pageout, begin_pageout, cull, unmap};
use crate::effect::{EFFECTS_MAX, Effects};
use crate::memory::lru::{AA, IA, MW, PW};
use crate::memory::page::Flight;
use crate::memory::tally::Tallied;
use crate::memory::used::CERTAIN;
use crate::memory::{Memory, Watched};
use crate::swap::Space;
use crate::vmstat::Counter;

/// Of so many kept pages one is watched.
const WATCHED_SHARE: u32 = 6;
/// The same while far more is kept than the judge allows.
const WATCHED_SHARE_GIVING: u32 = 3;
/// So much of the budget is far more.
const GIVING_SHARE: u32 = 32;
/// Looks that may be begun at once, after a time in which pages came in and none was begun.
const LOOKS_SAVED_MAX: u32 = 64;
/// While far more is kept than the judge allows, a look that ends with the page's going costs none of these, and one that finds a use
/// so many more: a set that is not in use any more goes as fast as others come, one that is in use is not looked at for nothing.
const USED_LOOK_PRICE: u32 = 3;
/// Kept pages passed over, or looked at, for each page that goes; and those looked at alone.
const TURNS: u32 = 8;
const TURN_LOOKS: u32 = 3;
/// Pages of a loop that are kept unproven, for each page that goes.
const LOOP_PAGES: u32 = 64;
/// A kept page goes instead of one on probation only if it has been watched for so many parts of probation's length.
const RIPE_SHARE: u64 = 16;
/// Pages on probation that are taken out of the page table for each page that goes.
const UNMAPS: u32 = 2;
/// How often a page is passed over at most.
const LEVEL_MAX: u32 = 3;
/// Turns on probation that a page may have because a neighbour is used: its level counts them. Then it is kept.
const TURNS_SPOKEN_FOR: u32 = 2;
/// Orders that one page's going may take, with the looks that go with it.
const STEP_EFFECTS: usize = 8;

/// What is remembered beside the lists.
#[derive(Debug)]
pub(super) struct Watch {
    /// Pages that have come in.
    clock: u64,
    /// Looks at kept pages that may be begun.
    looks: u32,
    judge: Judge,
    /// Background reclaim waits until more is to go.
    is_at_rest: bool,
}

impl Watch {
    pub(super) const fn new() -> Self {
        Self { clock: 0, looks: 0, judge: Judge::new(), is_at_rest: false }
    }

    fn allow_look(&mut self) {
        self.looks = (self.looks + 1).min(LOOKS_SAVED_MAX);
    }

    /// Pages that may be kept.
    fn kept_max(&self, mem: &Memory) -> u32 {
        let budget = mem.budget.budget;
        budget - (self.judge.probation(budget) + mem.budget.high).min(budget - budget / 8)
    }

    /// Far more is kept than may be: what was in use before is not any more.
    fn is_giving(&self, mem: &Memory) -> bool {
        kept_len(mem) > self.kept_max(mem) + mem.budget.budget / GIVING_SHARE
    }
}

/// What came of the attempt to let a page go.
enum Gone {
    Yes,
    /// It stays; another may go.
    No,
    /// None can go before something has ended.
    Blocked,
}

fn kept_len(mem: &Memory) -> u32 {
    mem.list_len(AA) + mem.list_len(MW)
}

fn probation_len(mem: &Memory) -> u32 {
    mem.list_len(IA) + mem.list_len(PW)
}

impl Reclaim {
    /// A page comes in.
    pub(crate) fn note_arrival(&mut self) {
        self.watch.clock += 1;
        self.watch.judge.note_arrival();
        self.watch.allow_look();
    }

    /// Uses of one of the coldest kept pages for each page that comes in, in parts of [`crate::types::USE_RATE`]; 0: not known.
    pub(crate) const fn kept_worth(&self) -> u64 {
        self.watch.judge.kept_worth()
    }

    /// For how long the coldest kept page is known not to have been used.
    fn coldest(&self, mem: &Memory) -> u64 {
        mem.oldest_kept().map_or(0, |since| self.watch.clock - since)
    }

    /// Is a page that is used again after `interval` to be kept?
    fn is_worth_keeping(&self, mem: &Memory, interval: u64) -> bool {
        kept_len(mem) < self.watch.kept_max(mem) || interval < self.coldest(mem)
    }

    /// Is a page that was used while it was watched on probation?
    fn is_proven(&self, mem: &Memory) -> bool {
        let interval = u64::from(probation_len(mem));
        self.is_worth_keeping(mem, interval) || interval < self.watch.judge.kept_interval()
    }

    /// The shadow entry of a page that goes: when it was used last, as far as is known.
    pub(super) fn last_use(&self, mem: &Memory, p: u32) -> u64 {
        let since = if mem.at(p).is_active() { self.coldest(mem) } else { u64::from(probation_len(mem)) };
        self.watch.clock.saturating_sub(since)
    }

    /// A page comes back. What is read ahead is not used yet.
    pub(super) fn came_back(&mut self, mem: &mut Memory, p: u32, last_use: u64, demand: bool) {
        mem.count_at(p, Tallied::Refault, 1);
        if !demand {
            self.watch.judge.note_ahead();
            return;
        }
        let interval = self.watch.clock - last_use;
        self.watch.judge.note_return(interval, probation_len(mem));
        if self.is_worth_keeping(mem, interval) {
            mem.start_active(p);
            mem.count(Counter::workingset_activate_anon, 1);
        }
    }

    /// A page was mapped. If somebody waited for it, it is in use.
    pub(crate) fn end_watch(&mut self, mem: &mut Memory, p: u32) {
        let used = mem.at(p).is_waited();
        match mem.watched(p) {
            None => {}
            Some(Watched::OnProbation) => {
                if used {
                    mem.tried.note(p, true);
                    self.watch.judge.note_probation_use();
                    self.prove(mem, p);
                } else {
                    mem.put_on_probation(p);
                }
            }
            Some(Watched::Kept) => {
                if used {
                    mem.kept.note(p, true);
                    self.watch.judge.note_kept_use();
                    if self.watch.is_giving(mem) {
                        self.watch.looks = self.watch.looks.saturating_sub(USED_LOOK_PRICE);
                    }
                    keep_on(mem, p);
                } else {
                    mem.keep(p);
                }
            }
        }
    }

    /// A page on probation is used: it is kept, or has another turn.
    fn prove(&self, mem: &mut Memory, p: u32) {
        if self.is_proven(mem) {
            mem.keep(p);
            mem.count(Counter::pgactivate, 1);
        } else {
            mem.put_on_probation(p);
        }
    }

    /// A watched page of the same group was used. True if this one is held to be used, too, and is to be mapped.
    pub(crate) fn is_used_with(&self, mem: &mut Memory, p: u32) -> bool {
        let page = mem.at(p);
        if !page.is_cached() || page.in_flight() || page.is_discarded() {
            return false;
        }
        match mem.watched(p) {
            Some(Watched::OnProbation) if mem.tried.is_sure(p, CERTAIN) => {
                let turns = mem.level(p);
                if turns >= TURNS_SPOKEN_FOR {
                    self.prove(mem, p);
                } else {
                    mem.put_on_probation(p);
                    mem.set_level(p, turns + 1);
                }
            }
            Some(Watched::Kept) if mem.kept.is_sure(p, CERTAIN) => keep_on(mem, p),
            _ => return false,
        }
        true
    }

    /// Let a run go on until it is done or has to stop.
    pub(super) fn run_watched(&mut self, space: &mut Space, run: &mut ReclaimRun, out: &mut Effects) -> RunEnd {
        let is_kswapd = run.kind == RunKind::Kswapd;
        let (scan, steal) = if is_kswapd {
            (Counter::pgscan_kswapd, Counter::pgsteal_kswapd)
        } else {
            (Counter::pgscan_direct, Counter::pgsteal_direct)
        };
        let step = if is_kswapd { self.host.kswapd_effects } else { EFFECTS_MAX };
        let mut orders = EFFECTS_MAX - out.room();
        for _ in 0..LOOKS_MAX {
            let is_done = if is_kswapd { is_balanced(&space.mem) } else { run.is_enough() };
            // While held, nothing is taken out of the page table.
            if is_done || space.mem.is_held {
                return RunEnd::Done;
            }
            // What is on its way out is as good as free.
            let leaving = space.mem.leaving();
            if is_kswapd && self.rests(&space.mem) && leaving > 0 {
                return RunEnd::WaitIo;
            }
            // Neighbours that widen the orders of this step cost next to nothing more.
            let len = EFFECTS_MAX - out.room();
            if orders >= step && len != orders || out.room() < STEP_EFFECTS {
                return RunEnd::Yield;
            }
            orders = len;
            // Every page has been looked at, and looked at again.
            if !self.can_reclaim_anon(space) || run.pass_scanned > 2 * space.mem.budget.charged {
                return RunEnd::Done;
            }
            run.pass_scanned += 1;
            space.mem.count(Counter::pgscan_anon, 1);
            space.mem.count(scan, 1);
            self.weigh(&mut space.mem);
            watch_probation(&mut space.mem, out);
            self.watch_kept(&mut space.mem, out);
            match self.let_one_go(space, out) {
                Gone::Yes => {
                    run.nr_reclaimed += 1;
                    space.mem.count(steal, 1);
                    self.progress();
                }
                Gone::No => {}
                Gone::Blocked if space.mem.counts().flights > 0 => return RunEnd::WaitIo,
                Gone::Blocked => return RunEnd::Done,
            }
        }
        RunEnd::Yield
    }

    /// Enough is free, or will be. Once it is, a good part of it is taken before more goes: pages that leave together lie together,
    /// are moved and written together.
    fn rests(&mut self, mem: &Memory) -> bool {
        let (there, budget) = (mem.free() + mem.leaving(), &mem.budget);
        let half = (budget.high - budget.low) / 2;
        let enough = if self.watch.is_at_rest { budget.high - half } else { budget.high + half };
        self.watch.is_at_rest = there >= enough;
        self.watch.is_at_rest
    }

    /// How long probation is, and whether what is on it is to be kept unproven.
    fn weigh(&mut self, mem: &mut Memory) {
        let budget = mem.budget.budget;
        if self.watch.judge.is_due(budget) {
            let lists = Lists {
                budget,
                probation: probation_len(mem),
                kept_watched: mem.list_len(MW),
                is_settled: kept_len(mem) >= self.watch.kept_max(mem) / 8 * 7,
                coldest: self.coldest(mem),
            };
            let is_demanded = self.watch.judge.look(lists);
            mem.budget.lower_watermarks(is_demanded);
        }
        if self.watch.judge.is_loop() {
            self.keep_loop(mem);
        }
    }

    /// The oldest pages on probation are the first that a loop comes back to.
    fn keep_loop(&self, mem: &mut Memory) {
        for _ in 0..LOOP_PAGES {
            if kept_len(mem) >= self.watch.kept_max(mem) {
                return;
            }
            let is_watched = |p: &u32| !mem.at(*p).in_flight() && !mem.at(*p).is_mapped();
            if let Some(p) = mem.tail(PW).filter(is_watched) {
                mem.keep(p);
                mem.watch_kept(p, self.watch.clock);
            } else if let Some(p) = mem.tail(IA).filter(|&p| mem.at(p).is_mapped()) {
                mem.keep(p);
            } else {
                return;
            }
        }
    }

    /// Some of the kept pages are to be watched.
    fn watch_kept(&mut self, mem: &mut Memory, out: &mut Effects) {
        let is_giving = self.watch.is_giving(mem);
        let share = if is_giving { WATCHED_SHARE_GIVING } else { WATCHED_SHARE };
        let mut begun = 0;
        for _ in 0..TURNS {
            let is_enough = self.watch.looks == 0 || begun == TURN_LOOKS || mem.list_len(MW) > kept_len(mem) / share;
            let Some(p) = mem.tail(AA).filter(|_| !is_enough) else { return };
            let (page, level) = (mem.at(p), mem.level(p));
            if page.is_unevictable() {
                cull(mem, p);
            } else if level > 0 && !is_giving || page.in_flight() {
                mem.set_level(p, level.saturating_sub(1));
                mem.putback(p);
            } else {
                mem.watch_kept(p, self.watch.clock);
                if page.is_mapped() {
                    self.watch.looks -= 1;
                    begun += 1;
                    begin_watch(mem, p, out);
                }
            }
        }
    }

    /// Of the pages that can go, the one that is to.
    fn let_one_go(&mut self, space: &mut Space, out: &mut Effects) -> Gone {
        let mem = &mut space.mem;
        let is_unused = |mem: &Memory, p: u32| !mem.at(p).in_flight() && !mem.at(p).is_mapped();
        if let Some(p) = mem.tail(IA).filter(|&p| is_unused(mem, p)) {
            // Read ahead for nobody, or written and not freed.
            return self.let_go(space, p, out);
        }
        let is_ripe = self.coldest(mem) >= u64::from(probation_len(mem)) / RIPE_SHARE;
        let watched = if is_ripe && kept_len(mem) > self.watch.kept_max(mem) { [MW, PW] } else { [PW, MW] };
        for list in watched {
            let Some(p) = space.mem.tail(list) else { continue };
            match space.mem.at(p).flight() {
                Flight::None => return self.let_go(space, p, out),
                // Pages on their way out have gone round.
                Flight::Writing => space.mem.watch_on_probation(p),
                Flight::Reading | Flight::Mapping | Flight::Unmapping => {}
            }
        }
        for list in [IA, AA] {
            let Some(p) = space.mem.tail(list) else { continue };
            if !space.mem.at(p).in_flight() {
                return self.let_go(space, p, out);
            }
            space.mem.putback(p);
        }
        Gone::Blocked
    }

    /// A page on its way out is among the watched ones: who asks for it has used it again.
    fn let_go(&mut self, space: &mut Space, p: u32, out: &mut Effects) -> Gone {
        let page = space.mem.at(p);
        if page.is_unevictable() {
            cull(&mut space.mem, p);
            return Gone::No;
        }
        if page.is_mapped() {
            space.mem.watch_on_probation(p);
            begin_pageout(&mut space.mem, p, out);
            return Gone::Yes;
        }
        match space.mem.watched(p) {
            Some(Watched::OnProbation) => space.mem.tried.note(p, false),
            Some(Watched::Kept) => {
                space.mem.kept.note(p, false);
                if self.watch.is_giving(&space.mem) {
                    self.watch.allow_look();
                }
            }
            None => {}
        }
        space.mem.goes_unasked(p);
        match self.pageout(space, p, out) {
            Pageout::Freed => Gone::Yes,
            Pageout::Submitted => {
                space.mem.watch_on_probation(p);
                Gone::Yes
            }
            Pageout::NoSlot if self.host.waits_for_slots && space.mem.counts().pending > 0 => Gone::Blocked,
            Pageout::NoSlot => {
                // Out of the way of those that have kept their slots.
                space.mem.keep(p);
                Gone::No
            }
            Pageout::NoIo => Gone::Blocked,
        }
    }
}

/// The older half of the pages on probation is to be watched.
fn watch_probation(mem: &mut Memory, out: &mut Effects) {
    for _ in 0..UNMAPS {
        let is_enough = mem.list_len(PW) >= probation_len(mem) / 2;
        let Some(p) = mem.tail(IA).filter(|_| !is_enough) else { return };
        let page = mem.at(p);
        if page.in_flight() {
            mem.putback(p);
        } else if page.is_mapped() && !page.is_unevictable() {
            mem.watch_on_probation(p);
            begin_watch(mem, p, out);
        } else {
            // It goes first, or is in the way: see `let_one_go`.
            return;
        }
    }
}

/// A kept page is used: it stays, and is passed over more often.
fn keep_on(mem: &mut Memory, p: u32) {
    mem.keep(p);
    let level = mem.level(p);
    mem.set_level(p, (level + 1).min(LEVEL_MAX));
}

fn begin_watch(mem: &mut Memory, p: u32, out: &mut Effects) {
    mem.begin_sample(p);
    unmap(p, out);
    mem.count(Counter::pt_sampled, 1);
}
