//! The shares of the budget, from what the processes keep and need.
//!
//! Max-min fairness (`shares`) leaves each process what it keeps, up to an equal share, however long ago it was used. As reclaim of all
//! memory together would, this looks at ages. A process that reads pages back tells by how many it reads in a time how long a page of it
//! stays in memory, and how long it stays away. One whose threads have not run for longer than either keeps older pages, or pages that it
//! will want later: it lends a quarter of what it keeps, and a quarter of the rest when that is out. It has it back when it faults, when pages
//! of it are read without a fault (swapoff), and when nobody is short any more.
//!
//! One that works on what it keeps may keep much that it does not use: while others are short it is asked (`probe.rs`).

use std::sync::atomic::{AtomicU64, Ordering};

use pagetide_core::types::Nanos;
use pagetide_core::vmstat::Counter;
use pagetide_sys::clock;

use super::Supervisor;
use super::tree::Process;
use super::worth::{self, weigh};
use crate::control::Entry;
use crate::setup::SharesChoice;
use crate::shares::{Claim, divide, floor, rooms_min};

/// The threads of a process that lends have not run for so long at least: some looks of its agent.
const QUIET_NS: Nanos = 20_000_000;
/// Reads are counted for so long.
const SPAN_NS: Nanos = 50_000_000;
/// And what it has grown by for so long.
const GROWTH_NS: Nanos = 100_000_000;
/// Who exchanges what it keeps so many times as slowly as another is asked whether it uses it.
const SLOWER: u64 = 8;

/// While one part in so many of the budget is free, beside the room that each has at least, nobody is short, whoever reads pages back: they
/// have left before.
const FREE_PARTS: u64 = 32;

/// How fast a process exchanges what it keeps for what it does not.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Exchange {
    began: Nanos,
    /// Pages that it had read from swap space when the span began.
    read: u64,
    /// How long a page of it stays in memory, or away, whichever is less; None: it reads nothing.
    takes: Option<Nanos>,
}

impl Exchange {
    /// `read` pages were read by now, `resident` are in memory and `away` are not.
    fn look(&mut self, now: Nanos, read: u64, resident: u64, away: u64) {
        let passed = now.saturating_sub(self.began);
        if passed < SPAN_NS {
            return;
        }
        let pages = read.saturating_sub(self.read);
        self.takes = passed.saturating_mul(resident.min(away)).checked_div(pages);
        (self.began, self.read) = (now, read);
    }
}

/// What a process has lent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lent {
    /// It keeps no more than this; None: it has lent nothing.
    keeps: Option<u64>,
    /// Since when its threads have not run, or have run on what it keeps.
    since: Nanos,
    /// Its faults of all kinds, at the last look.
    faults: u64,
}

impl Lent {
    /// `faults` were counted by now; its threads run if they have not stopped `since`.
    fn note(&mut self, faults: u64, since: Option<Nanos>) {
        if faults != self.faults {
            *self = Self { faults, ..Self::default() };
        }
        if self.keeps.is_none() {
            self.since = since.unwrap_or(Nanos::MAX);
        }
    }

    /// Others exchange what they keep in the time `others`, if they do: who has not run for longer lends of its `resident` pages. Never
    /// keeps less than `least`.
    fn look(&mut self, now: Nanos, others: Option<Nanos>, resident: u64, least: u64) {
        match others {
            None => self.keeps = None,
            Some(others) if now.saturating_sub(self.since) > others.max(QUIET_NS) => self.lend(resident, least),
            Some(_) => {}
        }
    }

    fn lend(&mut self, resident: u64, least: u64) {
        let keeps = self.keeps.unwrap_or(resident).min(resident);
        if resident <= keeps + keeps / 16 {
            self.keeps = Some((keeps - keeps / 4).max(least).min(keeps));
        }
    }
}

/// How much more a process keeps than a tenth of a second ago, or two.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Growth {
    began: Nanos,
    /// What it kept when the span began, and by how much that was more than when the one before began.
    kept: u64,
    before: u64,
}

impl Growth {
    /// It keeps `resident`: by how much it has grown.
    fn look(&mut self, now: Nanos, resident: u64) -> u64 {
        let grown = resident.saturating_sub(self.kept);
        if now.saturating_sub(self.began) < GROWTH_NS {
            return grown.max(self.before);
        }
        (self.began, self.kept, self.before) = (now, resident, grown);
        grown
    }
}

/// So little of `countable` pages is free that somebody of so many processes may be short.
const fn is_nearly_full(counted: u64, countable: u64, processes: usize) -> bool {
    counted + rooms_min(counted, processes) + countable / FREE_PARTS > countable
}

impl Supervisor {
    pub(super) fn divide(&mut self) {
        let list = &self.tree.list;
        // Who is about to be managed has a claim already: what it maps will be filled at once.
        let claims = |process: &Process| process.link.is_some() || process.starting.is_some();
        let managed: Vec<usize> = (0..list.len()).filter(|&index| claims(&list[index])).collect();
        let natives: u64 = list.iter().filter(|process| !claims(process)).map(Process::own_part).sum();
        let now = clock::now();
        let floor = floor(self.budget_pages, managed.len());
        let sharers = self.tree.sharers();
        let mut claims: Vec<Claim> = managed.iter().map(|&index| self.claim(index, floor, sharers, now)).collect();
        self.weigh(now, &managed, &mut claims);
        let times = managed.iter().filter_map(|&index| self.tree.list[index].exchange.takes);
        let countable = self.countable_pages();
        let are_short = is_nearly_full(self.counted_pages(), countable, managed.len());
        self.exchanged_in = times.min().filter(|_| are_short).unwrap_or(Nanos::MAX);
        let available = countable.saturating_sub(natives);
        for (&index, share) in managed.iter().zip(divide(available, &claims)) {
            if let Some(link) = &self.tree.list[index].link
                && link.control.entry().share_pages.swap(share, Ordering::SeqCst) != share
            {
                link.ring();
            }
        }
    }

    /// What memory is worth to each, from time to time, and so the parts of those that are short. `managed`: ascending.
    fn weigh(&mut self, now: Nanos, managed: &[usize], claims: &mut [Claim]) {
        if self.shares == SharesChoice::Worth && managed.len() > 1 && now >= self.next_weighing {
            self.next_weighing = now + worth::SPAN_NS;
            let mut short = Vec::with_capacity(managed.len());
            for (index, process) in self.tree.list.iter_mut().enumerate() {
                let (Ok(place), Some(link)) = (managed.binary_search(&index), &process.link) else { continue };
                let entry = link.control.entry();
                let returns = entry.returns.each_ref().map(|word| word.load(Ordering::Relaxed));
                let waited_us = entry.waited_us.load(Ordering::Relaxed);
                process.worth.look(now, returns, waited_us, process.resident, self.budget_pages);
                if claims[place].pressed {
                    short.push((&mut process.worth, process.resident));
                }
            }
            weigh(&mut short);
            for (claim, &index) in claims.iter_mut().zip(managed) {
                claim.weight = self.tree.list[index].worth.weight;
            }
        }
    }

    fn claim(&mut self, index: usize, floor: u64, sharers: u64, now: Nanos) -> Claim {
        let exchanged_in = self.exchanged_in;
        let process = &mut self.tree.list[index];
        let entry = process.link.as_ref().map(|link| link.control.entry());
        let read = |word: fn(&Entry) -> &AtomicU64| entry.map_or(0, |entry| word(entry).load(Ordering::Relaxed));
        // The program may write into its page: no more than the budget is ever given.
        let share = read(|entry| &entry.share_pages).min(self.budget_pages);
        let major_faults = read(|entry| &entry.major_faults);
        let since = Some(read(|entry| &entry.quiet_since)).filter(|&since| since != 0);
        process.lent.note(read(|entry| &entry.counters[Counter::pgfault as usize]), since);
        let swapped_in = read(|entry| &entry.counters[Counter::pswpin as usize]);
        process.exchange.look(now, swapped_in, process.resident, read(|entry| &entry.away_pages));
        // Who has pages read without a fault is drained (swapoff): it sleeps, and needs what it had.
        let is_slower = process.exchange.takes.is_none_or(|takes| takes / SLOWER > exchanged_in);
        let others = Some(exchanged_in).filter(|&time| time < Nanos::MAX && is_slower);
        // What it shares frees nothing when it leaves here alone.
        let stays = read(|entry| &entry.pinned_pages).saturating_add(process.shared_among(sharers));
        let least = floor.saturating_add(stays.min(process.resident));
        process.lent.look(now, others, process.resident, least);
        let first_touches = read(|entry| &entry.counters[Counter::pgfault as usize])
            .saturating_sub(major_faults)
            .saturating_sub(read(|entry| &entry.counters[Counter::pt_soft_fault as usize]));
        let grown = process.growth.look(now, process.resident);
        process.probe.look(now, others, major_faults, first_touches, process.resident, least);
        let keeps = process.lent.keeps.or(process.probe.keeps());
        // What it fills then leaves at once: it keeps a little less than it may.
        let stolen = read(|entry| &entry.counters[Counter::pgsteal_anon as usize]);
        let has_stolen = stolen != std::mem::replace(&mut process.stolen, stolen);
        let is_at_share = has_stolen || process.resident + process.resident / 64 >= share;
        if major_faults > process.major_faults {
            (process.major_faults, process.read_at) = (major_faults, now);
        }
        let has_read = now < process.read_at + SPAN_NS;
        let pressed = entry.is_none() || (keeps.is_none() && (has_read || is_at_share));
        Claim { resident: process.resident, share, least, pressed, keeps, grown, weight: process.worth.weight }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lent_is_a_quarter_at_a_time_and_comes_back_at_a_fault() {
        let mut lent = Lent::default();
        lent.note(7, Some(50));
        lent.lend(10_000, 600);
        assert_eq!(lent.keeps, Some(7_500));
        lent.lend(8_000, 600);
        assert_eq!(lent.keeps, Some(7_500), "it is on its way out");
        lent.note(7, None);
        assert_eq!((lent.keeps, lent.since), (Some(7_500), 50), "paging out takes CPU time in it");
        (0..20).for_each(|_| lent.lend(600, 600));
        assert_eq!(lent.keeps, Some(600));
        lent.note(8, None);
        assert_eq!((lent.keeps, lent.since), (None, Nanos::MAX), "it has faulted");
        lent.lend(500, 600);
        assert_eq!(lent.keeps, Some(500), "no more than it has");
    }

    #[test]
    fn who_sleeps_lends_while_somebody_is_short_and_no_longer() {
        let mut lent = Lent::default();
        lent.note(7, Some(50));
        lent.look(50 + QUIET_NS, Some(9), 10_000, 600);
        assert_eq!(lent.keeps, None, "it may just have been waited for");
        lent.look(51 + QUIET_NS, Some(2 * QUIET_NS), 10_000, 600);
        assert_eq!(lent.keeps, None, "the others' pages are older");
        lent.look(51 + QUIET_NS, Some(9), 10_000, 600);
        assert_eq!(lent.keeps, Some(7_500));
        lent.look(52 + QUIET_NS, None, 7_500, 600);
        assert_eq!(lent.keeps, None, "nobody is short, or it is drained");
    }

    #[test]
    fn nobody_is_short_while_much_is_free_besides_the_room_that_each_has() {
        assert!(!is_nearly_full(85_000, 116_000, 9) && is_nearly_full(112_000, 116_000, 9), "a browser in 400 MiB");
        assert!(is_nearly_full(16_300, 16_700, 2), "a server and its child in 64 MiB");
        assert!(is_nearly_full(14_700, 16_384, 20), "room lies idle in each of many");
    }

    #[test]
    fn what_a_process_has_grown_by_is_known_for_a_moment() {
        let mut growth = Growth::default();
        assert_eq!(growth.look(GROWTH_NS, 5_000), 5_000);
        assert_eq!(growth.look(GROWTH_NS + 1, 5_700), 5_000);
        assert_eq!(growth.look(2 * GROWTH_NS, 5_700), 700);
        assert_eq!(growth.look(2 * GROWTH_NS + 1, 5_700), 700, "in the span before");
        assert_eq!(growth.look(3 * GROWTH_NS, 5_600), 0);
        assert_eq!(growth.look(4 * GROWTH_NS, 5_500), 0, "it has given up");
    }

    #[test]
    fn a_process_exchanges_what_it_keeps_in_the_time_that_its_reads_tell() {
        let mut exchange = Exchange::default();
        exchange.look(SPAN_NS, 100, 1_000, 5_000);
        assert_eq!(exchange.takes, Some(SPAN_NS * 10));
        exchange.look(SPAN_NS + 1, 500, 1_000, 5_000);
        assert_eq!(exchange.takes, Some(SPAN_NS * 10), "the span is not over");
        exchange.look(2 * SPAN_NS, 200, 1_000, 500);
        assert_eq!(exchange.takes, Some(SPAN_NS * 5), "what is away is soon wanted");
        exchange.look(3 * SPAN_NS, 200, 1_000, 500);
        assert_eq!(exchange.takes, None, "it has read nothing");
        exchange.look(4 * SPAN_NS, 90, u64::MAX, u64::MAX);
        assert_eq!(exchange.takes, None, "forged numbers are no reads");
    }
}
