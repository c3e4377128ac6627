//! How much more memory would have saved how many reads: from how long pages stay away.
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
//! It asks nothing of the policy: whatever a policy keeps is in memory, and what it lets go is seen here. A loop over `N` pages in
//! `B` needs `N - B` more and no less; uniform access is saved in proportion. What is away at the end counts as if it never came
//! back, so short runs are told too much rather than too little, and never more than what was away at once.
//!
//! Invariants: integers only; nothing here decides anything; the same counts give the same answer.

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
/// Advice is to leave one part in so many of the share of time that was waited.
const WORTH: u64 = 10;

/// Absences of the pages of one process, or of several together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absences {
    returns: [u64; BUCKETS],
    leaves: u64,
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waited {
    /// In all.
    pub ran: u64,
    /// At most all of it.
    pub stalled: u64,
}

impl Waited {
    /// The share of its time for which it waited, in hundredths of a percent.
    pub fn share_bp(self) -> u64 {
        share_bp(self.stalled.min(self.ran), self.ran)
    }

    /// The same if only so much of the waiting had been, in hundredths of a percent: the program would have run for less.
    #[must_use]
    pub fn with_left(self, left_bp: u64) -> Self {
        let stalled = self.stalled.min(self.ran);
        let left = u128::from(stalled) * u128::from(left_bp.min(WHOLE_BP)) / u128::from(WHOLE_BP);
        let left = u64::try_from(left).unwrap_or(stalled);
        Self { ran: self.ran - stalled + left, stalled: left }
    }
}

impl Absences {
    /// None yet.
    pub const fn new() -> Self {
        Self { returns: [0; BUCKETS], leaves: 0, away_pages_max: 0 }
    }

    /// As counted elsewhere: pages that came back by bucket, pages that left, and the most that were away at once.
    pub const fn of(returns: [u64; BUCKETS], leaves: u64, away_pages_max: u64) -> Self {
        Self { returns, leaves, away_pages_max }
    }

    /// Pages that came back, by bucket.
    pub const fn returns(&self) -> &[u64; BUCKETS] {
        &self.returns
    }

    /// Pages that came back: the most pages that left meanwhile, and how many came back so. Empty buckets are left out.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64)> {
        let all = self.returns.iter().enumerate().filter(|&(_, &returns)| returns > 0);
        all.map(|(index, &returns)| (longest_pages(index), returns))
    }

    /// Pages that left.
    pub const fn leaves(&self) -> u64 {
        self.leaves
    }

    /// The most pages that were away at once.
    pub const fn away_pages_max(&self) -> u64 {
        self.away_pages_max
    }

    /// A page leaves, and `away` are away with it. What it is to remember.
    #[inline]
    pub(crate) fn note_leave(&mut self, away: u32) -> u64 {
        let stamp = self.stamp();
        self.leaves += 1;
        self.away_pages_max = self.away_pages_max.max(u64::from(away));
        stamp
    }

    /// A page comes back with what it remembered.
    #[inline]
    pub(crate) fn note_return(&mut self, stamp: u64) {
        let units = self.stamp().wrapping_sub(stamp) & ((1 << STAMP_BITS) - 1);
        self.returns[bucket(units)] += 1;
    }

    const fn stamp(&self) -> u64 {
        (self.leaves / UNIT_PAGES) & ((1 << STAMP_BITS) - 1)
    }

    /// What more and more memory would have made of the reads, from none more on.
    pub fn prospects(&self) -> impl Iterator<Item = Prospect> {
        let all = self.returns.iter().fold(0, |sum: u64, &returns| sum.saturating_add(returns));
        let leaves = self.leaves.max(all).max(1);
        let (mut extra, mut back) = (0_u128, 0_u64);
        let whole = core::iter::once(Prospect { extra_pages: 0, left_bp: if all > 0 { WHOLE_BP } else { 0 } });
        whole.chain((0..BUCKETS).filter(move |_| all > 0).map(move |index| {
            let width = u128::from((end(index) - begin(index)) * UNIT_PAGES);
            // Of those that come back within the bucket, the half are away in the mean.
            let away = leaves - (back + self.returns[index] / 2).min(leaves);
            extra += width * u128::from(away);
            back = back.saturating_add(self.returns[index]);
            let pages = u64::try_from(extra / u128::from(leaves)).unwrap_or(u64::MAX);
            Prospect { extra_pages: pages.min(self.away_pages_max), left_bp: share_bp(all - back.min(all), all) }
        }))
    }

    /// The least memory more that would have left at most this share of the reads, in hundredths of a percent. None: no page came
    /// back.
    pub fn advise(&self, left_bp_max: u64) -> Option<Prospect> {
        self.prospects().skip(1).find(|prospect| prospect.left_bp <= left_bp_max)
    }

    /// The least memory more with which a program that waited so would have waited for a tenth of that share of its time, or hardly at
    /// all. None: no page came back.
    pub fn advise_against(&self, waited: Waited) -> Option<Prospect> {
        let share_bp_max = (waited.share_bp() / WORTH).max(UNNOTICED_BP);
        self.prospects().skip(1).find(|prospect| waited.with_left(prospect.left_bp).share_bp() <= share_bp_max)
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
        let mut absences = Absences::new();
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
        (absences, reads)
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
        assert!((380..=400).contains(&advice.extra_pages), "{advice:?}");
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
    fn a_program_that_waits_less_runs_for_less() {
        let waited = Waited { ran: 1000, stalled: 800 };
        assert_eq!(waited.share_bp(), 8000);
        assert_eq!(waited.with_left(2500), Waited { ran: 400, stalled: 200 });
        assert_eq!(Waited { ran: 0, stalled: 5 }.with_left(5000).share_bp(), 0);
    }

    #[test]
    fn advice_is_to_wait_for_a_tenth_or_unnoticed() {
        let (absences, _) = live(500, random(60_000, 2000), 2000);
        let waited = Waited { ran: 100, stalled: 80 };
        let advice = absences.advise_against(waited).expect("pages came back");
        assert!(waited.with_left(advice.left_bp).share_bp() <= 800, "{advice:?}");
        assert!(advice.extra_pages > 1300, "{advice:?}");
    }

    #[test]
    fn what_never_comes_back_needs_no_memory() {
        let (absences, reads) = live(100, 0..5000, 5000);
        assert_eq!((reads, absences.advise(1000)), (0, None));
    }

    #[test]
    fn the_more_memory_the_fewer_reads() {
        let (absences, _) = live(300, random(20_000, 900), 900);
        let all: Vec<Prospect> = absences.prospects().collect();
        assert!(all.is_sorted_by_key(|prospect| prospect.extra_pages));
        assert!(all.iter().rev().is_sorted_by_key(|prospect| prospect.left_bp));
        assert!(all.iter().all(|prospect| prospect.extra_pages <= 600), "no more than what was away at once");
    }
}
