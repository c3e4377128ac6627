//! How much more memory would have saved how many reads, and how much waiting: from how long pages stay away.
//!
//! An *absence* is the time from a page's leaving to its coming back, counted in pages that left meanwhile (its refault distance).
//! Had every page stayed for `d` longer, absences up to `d` would not have been. What that takes follows from Little's law: one page
//! leaves at each tick of the clock, and each stays for `d` longer or until it is used again, whichever is sooner, so the extra
//! memory is the sum over the ticks up to `d` of the share of absences that last longer (the kinetic model of Hu et al. 2016).
//!
//! ```text
//!   share of absences        extra memory for d = the area up to d
//!   that last longer  1 |====.
//!                       |....:==.            reads that are left = those of absences beyond d
//!                       |....:..:===___
//!                       +----------------> pages that left meanwhile
//!                               d
//! ```
//!
//! So each absence has its price: the extra memory that would have spared it. Programs change what they do, and the law holds of what
//! stays as it is: the prices are reckoned in each *epoch* of the run by itself (`log.rs`), by the pages that left in it. The mean of
//! a sort that goes through all its memory now and through a part of it then would advise what is enough for neither.
//!
//! It asks nothing of the policy: whatever a policy keeps is in memory, and what it lets go is seen here. A loop over `N` pages in
//! `B` needs `N - B` more and no less; uniform access is saved in proportion. What is away at the end counts as if it never came
//! back, so short runs are told too much rather than too little, and never more than what was away at once. Background reclaim keeps
//! a share of the budget free, of more memory too: each advice is so much larger.
//!
//! # What is promised of the waiting
//!
//! What the program waits for then is a time, not a share of one: how much it computes meanwhile, nobody here knows (a wait is seen
//! from when its fault is read to when it is answered, and what passes before and after looks like the program's own time). Of the
//! time that was waited,
//!
//! ```text
//!   waited = w(first touches) + w(returns)
//!   left   = w(first touches) * (1 - extra / pages first touched) + min(w(returns), r * (returns that are left))
//!   r      = w(returns) + what would be waited besides if those that came back compressed were read from the disk
//! ```
//!
//! because a page's first touch is no return, and costs its fill whatever the memory; but a program is managed only when it nears its
//! budget, so that with more memory as many more pages are filled without us. (A host that manages from the first page on saves none
//! of these.) It is a bound: pages that readahead brings back return as others do, and nobody waits for them, and what came back
//! compressed is taken to be read from the disk then: with more memory it may not be worth while any more to compress. The share that
//! follows, `left / (ran - waited + left)`, is the least that it can be, and is promised to nobody: the time that looked like the
//! program's own gets shorter, too.
//!
//! Where nearly all that was ever away at once would have to be there, it is all of it that is advised: the last pages cost little,
//! and whether the program just fits or just does not makes all the difference. And where fewer pages came back than were away at once:
//! Little's law holds of what goes on, and that is a program that grows.
//!
//! Invariants: integers only; nothing here decides anything; the same counts give the same answer.

mod log;
mod repriced;

pub(crate) use log::AbsenceLog;
pub use repriced::Repriced;

/// Absences are told apart by so many pages.
pub const UNIT_PAGES: u64 = 16;
/// Buckets of absences: four to each power of two of units.
pub const BUCKETS: usize = 92;
/// The clock in units, as far as a shadow entry holds it: absences of more than 2^28 pages (1 TiB) are taken for shorter ones.
pub(crate) const STAMP_BITS: u32 = 24;

/// A full share.
const WHOLE_BP: u64 = 10_000;
/// Whoever waits for no more than this does not notice: 1 %.
pub const UNNOTICED_BP: u64 = 100;
/// Advice is to leave one part in so many of the waiting that more memory can save.
const WORTH: u64 = 10;
/// Advice of more than all but one part in so many of what was away at once is advice of all of it: the buckets are as coarse.
const NEARLY_ALL: u64 = 4;

/// Of more memory, one part in so many stays free: twice the default distance of the watermarks (`watermark-scale`), and what the
/// buckets round.
const KEPT_FREE: u64 = 32;

/// Absences of the pages of one process, or of several together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absences {
    returns: [u64; BUCKETS],
    prices: [u64; BUCKETS],
    /// Pages that came back and would not have been away with the budget of now.
    spared: u64,
    away_pages_max: u64,
}

/// What so much more memory would have made of the reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prospect {
    /// More memory, in pages.
    pub extra_pages: u64,
    /// Reads that would have been left, in hundredths of a percent.
    pub left_bp: u64,
}

/// Time that a program ran, and that it waited for memory in it, in one unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waited {
    /// In all.
    pub ran: u64,
    /// At most all of it.
    pub stalled: u64,
    /// What of `stalled` was waited for pages that had never been used.
    pub first_touch: u64,
    /// These pages, as far as more memory lets them be filled before the program is managed; 0: none.
    pub first_touch_pages: u64,
    /// What would be waited besides if each page that came back compressed were read from the disk; 0: none did.
    pub from_disk: u64,
}

impl Waited {
    /// The share of its time for which it waited, in hundredths of a percent.
    pub fn share_bp(self) -> u64 {
        share_bp(self.stalled.min(self.ran), self.ran)
    }

    /// The same with more memory. The head of this file says how it follows.
    #[must_use]
    pub fn with(self, prospect: Prospect) -> Self {
        let stalled = self.stalled.min(self.ran);
        let first_touch = self.first_touch.min(stalled);
        let pages = self.first_touch_pages;
        let managed = pages - prospect.extra_pages.min(pages);
        let first_touch_left = if pages == 0 { first_touch } else { part(first_touch, managed, pages) };
        let returns = stalled - first_touch;
        let dearer = returns.saturating_add(self.from_disk);
        let left = first_touch_left + part(dearer, prospect.left_bp.min(WHOLE_BP), WHOLE_BP).min(returns);
        Self {
            ran: self.ran - stalled + left,
            stalled: left,
            first_touch: first_touch_left,
            first_touch_pages: managed,
            from_disk: 0,
        }
    }
}

/// `number * numerator / denominator`, for a true fraction.
fn part(number: u64, numerator: u64, denominator: u64) -> u64 {
    let exact = u128::from(number) * u128::from(numerator) / u128::from(denominator.max(1));
    u64::try_from(exact).unwrap_or(number)
}

impl Absences {
    /// None yet.
    pub const fn new() -> Self {
        Self { returns: [0; BUCKETS], prices: [0; BUCKETS], spared: 0, away_pages_max: 0 }
    }

    /// As counted elsewhere: pages that came back by bucket, the same by their price, and the most pages that were away at once.
    pub const fn of(returns: [u64; BUCKETS], prices: [u64; BUCKETS], away_pages_max: u64) -> Self {
        Self { returns, prices, spared: 0, away_pages_max }
    }

    /// Pages that came back, by how many pages left meanwhile: a bucket each.
    pub const fn returns(&self) -> &[u64; BUCKETS] {
        &self.returns
    }

    /// Pages that came back, by how many pages of memory more would have spared them: a bucket each.
    pub const fn prices(&self) -> &[u64; BUCKETS] {
        &self.prices
    }

    /// Pages that came back: the most pages that left meanwhile, and how many came back so. Empty buckets are left out.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let all = self.returns.iter().enumerate().filter(|&(_, &returns)| returns > 0);
        all.map(|(index, &returns)| (longest_pages(index), returns))
    }

    /// The most pages that were away at once.
    pub const fn away_pages_max(&self) -> u64 {
        self.away_pages_max
    }

    /// What more and more memory would have made of the reads, from none more on.
    pub fn prospects(&self) -> impl Iterator<Item = Prospect> {
        let all = self.prices.iter().fold(self.spared, |sum, &returns| sum.saturating_add(returns));
        let mut back = self.spared;
        let none_more = core::iter::once(Prospect { extra_pages: 0, left_bp: share_bp(all - back, all) });
        none_more.chain((0..BUCKETS).filter(move |_| all > 0).map(move |index| {
            back = back.saturating_add(self.prices[index]);
            let extra_pages = self.with_kept_free(longest_pages(index));
            Prospect { extra_pages, left_bp: share_bp(all - back.min(all), all) }
        }))
    }

    /// The same without none more, unless the budget was changed: it may be enough by now.
    fn advisable(&self) -> impl Iterator<Item = Prospect> {
        self.prospects().skip(usize::from(self.spared == 0))
    }

    /// Fewer pages came back than were away at once, so the program grew rather than went round: what comes back soon then is what is
    /// taken out by mistake, and so it would be with more memory as long as not all fits.
    fn is_little_known(&self) -> bool {
        let returns = self.prices.iter().fold(self.spared, |sum, &returns| sum.saturating_add(returns));
        returns < self.away_pages_max
    }

    /// So many pages for the program, and what stays free beside them.
    fn with_kept_free(&self, pages: u64) -> u64 {
        let pages = pages.min(self.away_pages_max);
        pages.saturating_add(pages / KEPT_FREE)
    }

    /// The least memory more that would have left at most this share of the reads, in hundredths of a percent. None: no page came
    /// back.
    pub fn advise(&self, left_bp_max: u64) -> Option<Prospect> {
        self.advisable().find(|prospect| prospect.left_bp <= left_bp_max)
    }

    /// The least memory more with which a program that waited so would have waited for hardly more than it must, or hardly at all.
    /// None: no page came back. No page more: the budget, which was raised, is enough by now.
    pub fn advise_against(&self, waited: Waited) -> Option<Prospect> {
        let all = Prospect { extra_pages: self.with_kept_free(self.away_pages_max), left_bp: 0 };
        let least = waited.with(all).stalled;
        let most = least + waited.stalled.saturating_sub(least) / WORTH;
        let is_enough = |&prospect: &Prospect| {
            let then = waited.with(prospect);
            then.stalled <= most || then.share_bp() < UNNOTICED_BP
        };
        let enough = self.advisable().find(is_enough)?;
        let is_nearly_all = enough.extra_pages >= all.extra_pages - all.extra_pages / NEARLY_ALL;
        Some(if is_nearly_all || self.is_little_known() { all } else { enough })
    }
}

impl Default for Absences {
    fn default() -> Self {
        Self::new()
    }
}

fn share_bp(part: u64, whole: u64) -> u64 {
    u64::try_from(u128::from(part) * u128::from(WHOLE_BP) / u128::from(whole.max(1))).unwrap_or(WHOLE_BP)
}

/// The bucket of so many units.
fn bucket(units: u64) -> usize {
    let (power, fourth) = match units {
        0..4 => (1, units),
        4.. => {
            let power = 63 - units.leading_zeros();
            (power, (units >> (power - 2)) & 3)
        }
    };
    let index = ((power - 1) * 4) as usize + usize::try_from(fourth).expect("two bits");
    index.min(BUCKETS - 1)
}

/// The first number of units in a bucket.
const fn begin(index: usize) -> u64 {
    if index < 4 { index as u64 } else { (4 + (index % 4) as u64) << (index / 4 - 1) }
}

/// The first number of units beyond a bucket.
const fn end(index: usize) -> u64 {
    begin(index + 1)
}

/// The most pages that left during an absence of this bucket.
pub const fn longest_pages(index: usize) -> u64 {
    end(index) * UNIT_PAGES - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::vec::Vec;

    /// A memory of `memory` pages from which the oldest goes, and uses of pages in the order that `uses` gives. The absences, and the
    /// reads.
    fn live(memory: usize, uses: impl Iterator<Item = usize>, pages: usize) -> (Absences, u64) {
        let mut absences = AbsenceLog::new();
        let mut stamps: Vec<Option<u64>> = std::vec![None; pages];
        let mut there: Vec<bool> = std::vec![false; pages];
        let mut queue = VecDeque::new();
        let (mut reads, mut away) = (0, 0);
        for page in uses {
            if there[page] {
                queue.retain(|&other| other != page);
                queue.push_back(page);
                continue;
            }
            if let Some(stamp) = stamps[page].take() {
                absences.note_return(stamp);
                away -= 1;
                reads += 1;
            }
            if queue.len() == memory {
                let gone: usize = queue.pop_front().expect("it is full");
                there[gone] = false;
                away += 1;
                stamps[gone] = Some(absences.note_leave(away));
            }
            there[page] = true;
            queue.push_back(page);
        }
        (absences.absences(), reads)
    }

    /// Numbers below `below` that look random.
    fn random(count: usize, below: usize) -> impl Iterator<Item = usize> {
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        (0..count).map(move |_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state >> 33).expect("31 bits") % below
        })
    }

    #[test]
    fn buckets_join_without_gap() {
        for index in 0..BUCKETS {
            assert_eq!(bucket(begin(index)), index);
            assert_eq!(bucket(end(index) - 1), index);
        }
        assert_eq!(bucket((1 << STAMP_BITS) - 1), BUCKETS - 1);
        assert_eq!(longest_pages(0), UNIT_PAGES - 1);
    }

    #[test]
    fn a_loop_needs_all_of_it() {
        let (absences, reads) = live(600, (0..20_000).map(|at| at % 1000), 1000);
        assert!(reads > 15_000);
        let advice = absences.advise(500).expect("pages came back");
        assert!((380..=415).contains(&advice.extra_pages), "{advice:?}");
        // Half of it saves nothing.
        let half = absences.prospects().take_while(|prospect| prospect.extra_pages <= 200).last();
        assert!(half.is_some_and(|prospect| prospect.left_bp > 9_900), "{half:?}");
    }

    #[test]
    fn uniform_use_is_saved_in_proportion() {
        let (memory, pages, uses) = (500, 2000, 60_000);
        let (absences, reads) = live(memory, random(uses, pages), pages);
        for more in [500_u32, 1000] {
            let said =
                absences.prospects().take_while(|said| said.extra_pages <= more.into()).last().expect("none more");
            let (_, left) = live(memory + more as usize, random(uses, pages), pages);
            let promised = reads * said.left_bp / 10_000;
            assert!(left.abs_diff(promised) <= left / 3, "{more} more: {left} are left, {promised} were promised");
        }
    }

    #[test]
    fn a_hot_set_needs_what_it_misses_and_not_the_rest() {
        // Nine of ten uses go to 700 pages, the others to 4000; 500 fit.
        let both = || {
            let (hot, cold) = (random(60_000, 700), random(60_000, 4000));
            hot.zip(cold).enumerate().map(|(at, (hot, cold))| if at % 10 == 0 { 700 + cold } else { hot })
        };
        let (absences, reads) = live(500, both(), 4700);
        let advice = absences.advise(5_000).expect("pages came back");
        let (_, left) = live(500 + usize::try_from(advice.extra_pages).expect("few"), both(), 4700);
        let promised = reads * advice.left_bp / 10_000;
        assert!(advice.extra_pages < 1500, "{advice:?}");
        assert!(left.abs_diff(promised) <= left / 3, "{left} are left, {promised} were promised: {advice:?}");
    }

    #[test]
    fn a_program_that_waits_less_runs_for_less_and_fills_what_it_touches_first() {
        let waited = Waited { ran: 1000, stalled: 800, first_touch: 400, first_touch_pages: 200, from_disk: 0 };
        assert_eq!(waited.share_bp(), 8000);
        let more = Prospect { extra_pages: 50, left_bp: 2500 };
        // 300 of the 400, and a quarter of the others.
        let then = Waited { ran: 600, stalled: 400, first_touch: 300, first_touch_pages: 150, from_disk: 0 };
        assert_eq!(waited.with(more), then);
        // What came back compressed is read from the disk, and costs no more than all that it saves.
        let compressed = [400, 1200, 2000].map(|from_disk| Waited { from_disk, ..waited }.with(more).stalled);
        assert_eq!(compressed, [500, 700, 700]);
        // Managed from the first page on.
        let always = Waited { first_touch_pages: 0, ..waited };
        assert_eq!((always.with(more).stalled, always.with(Prospect { left_bp: 0, ..more }).stalled), (500, 400));
        assert_eq!(Waited { stalled: 5, ..Waited::default() }.with(more).share_bp(), 0);
    }

    #[test]
    fn advice_is_to_wait_for_a_tenth_or_unnoticed() {
        let uses = || random(60_000, 700).zip(random(60_000, 40_000)).enumerate();
        let (absences, _) = live(500, uses().map(|(at, (hot, cold))| if at % 50 == 0 { cold } else { hot }), 40_000);
        let waited = Waited { ran: 100_000, stalled: 80_000, first_touch: 20_000, ..Waited::default() };
        let advice = absences.advise_against(waited).expect("pages came back");
        assert!((20_000..=26_000).contains(&waited.with(advice).stalled), "{advice:?}");
        assert!((150..400).contains(&advice.extra_pages), "{advice:?}");
    }

    #[test]
    fn where_nearly_all_is_needed_all_is_advised() {
        let (absences, _) = live(500, random(60_000, 2000), 2000);
        let waited = Waited { ran: 100, stalled: 80, ..Waited::default() };
        let advice = absences.advise_against(waited);
        assert_eq!(advice.map(|advice| advice.left_bp), Some(0));
        assert!(advice.is_some_and(|advice| (1500..1560).contains(&advice.extra_pages)), "{advice:?}");
    }

    #[test]
    fn what_never_comes_back_needs_no_memory() {
        let (absences, reads) = live(100, 0..5000, 5000);
        assert_eq!((reads, absences.advise(1000)), (0, None));
    }

    #[test]
    fn a_program_that_grows_is_advised_all_of_it() {
        // Goes on to new pages, and back to some of those that have just left.
        let uses = (0..4000_usize).flat_map(|at| [at, if at % 20 == 0 { at.saturating_sub(320) } else { at }]);
        let (absences, reads) = live(300, uses, 4000);
        assert!(reads > 100);
        let waited = Waited { ran: 100, stalled: 80, ..Waited::default() };
        let advice = absences.advise_against(waited).expect("pages came back");
        assert!(advice.extra_pages >= absences.away_pages_max() && advice.left_bp == 0, "{advice:?}");
    }

    #[test]
    fn the_more_memory_the_fewer_reads() {
        let (absences, _) = live(300, random(20_000, 900), 900);
        let all: Vec<Prospect> = absences.prospects().collect();
        assert!(all.is_sorted_by_key(|prospect| prospect.extra_pages));
        assert!(all.iter().rev().is_sorted_by_key(|prospect| prospect.left_bp));
        assert!(all.iter().all(|prospect| prospect.extra_pages <= 620), "no more than what was away at once");
    }
}
