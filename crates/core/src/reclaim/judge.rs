//! How much of memory is for pages on probation: the judge of `watch`.
//!
//! A page more on probation turns those returns into uses that come just after a page has gone: with `n` pages on probation,
//! the uses whose time since the last one is near `n` tell how many. A page more that is kept saves what the coldest kept page is used.
//! Both are rates of the same kind, uses for each page and each page that comes in, and both are seen without a look of their own:
//!
//! ```text
//!     edge = uses at an age of n/2 to n  (soft faults on watched pages)  +  returns after n to 3n/2,   for each page of n
//!     kept = the least of  uses of watched kept pages, for each of them,  and  1 / (time the coldest is watched without a use)
//! ```
//!
//! If the edge is worth more than twice as much (eight times, where a page of it is used less than once while the whole of memory comes
//! in), probation grows by half; if less than a kept page, it shrinks by a sixteenth. A hot set that moves so takes memory from what was
//! hot before after some hundred faults: its pages come back at a rate that the kept ones no longer have. A loop larger than memory comes
//! back at one distance, far behind the edge: probation shrinks to next to nothing, and what is kept stays.
//!
//! A loop is found at its first return, before anything is kept: most pages that come in were gone for up to two and a half times the
//! length of probation, while hardly any page was used at a lesser age. Then the oldest pages on probation are those that
//! will be used soonest, and the newest the latest; so the oldest are kept, unproven, and the newest go.
//!
//! Pages read ahead need a place until they are used: the more of what comes in is read ahead, the longer probation is at least.
//!
//! What it is not: it holds no pages and knows no clock but the pages that come in. Invariants: integers only; the length stays between
//! [`LEAST`] and [`MOST`].

use crate::types::USE_RATE;

/// Shares are counted in so many parts of the budget.
const WHOLE: u64 = 1 << 16;
/// At first a page in so many is on probation when all kept pages have their places.
const FIRST: u64 = WHOLE / 16;
/// The least and the most.
const LEAST: u64 = WHOLE / 128;
const MOST: u64 = WHOLE * 3 / 4;
/// A use in the sums, of which a third is forgotten at each look.
const USE: u64 = 16;
const FORGET: u64 = 3;
/// The unit of rates: below one use in so many, for each page, nothing is told apart.
const RATE: u64 = USE_RATE;
/// A page of the edge must be worth so many kept ones for probation to grow.
const GROWTH_WORTH: u64 = 2;
/// What is seldom used, but so many times as often as kept pages, and was seen so often, makes probation grow, too.
const PLAIN_WORTH: u64 = 8;
const PLAIN_USES: u64 = 16;
/// A look for every so many parts of the budget that come in, and at least so many pages.
const WINDOW_SHARE: u32 = 64;
const WINDOW_MIN: u32 = 64;

/// Uses, and for how many pages and arrivals they were counted.
#[derive(Clone, Copy, Debug, Default)]
struct Uses {
    uses: u64,
    exposure: u64,
}

impl Uses {
    const fn add(&mut self) {
        self.uses += USE;
    }

    const fn expose(&mut self, pages: u32, arrivals: u32) {
        self.exposure += pages as u64 * arrivals as u64;
    }

    /// Uses for each page and arrival.
    fn rate(self) -> u64 {
        self.uses * (RATE / USE) / self.exposure.max(1)
    }

    /// Arrivals between two uses of a page, as far as is known.
    fn interval(self) -> u64 {
        self.exposure * USE / self.uses.max(USE)
    }

    const fn forget(&mut self) {
        self.uses -= self.uses / FORGET;
        self.exposure -= self.exposure / FORGET;
    }
}

/// What the judge is told of the lists.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lists {
    pub(super) budget: u32,
    pub(super) probation: u32,
    pub(super) kept_watched: u32,
    /// Most pages that may be kept have their places.
    pub(super) is_settled: bool,
    /// For how long the coldest kept page is watched.
    pub(super) coldest: u64,
}

/// Streams have one page in some thirty waited for, and what they miss.
const DEMANDED_SHARE: u32 = 20;

#[derive(Debug)]
pub(super) struct Judge {
    /// Probation's part of the budget, of [`WHOLE`].
    share: u64,
    /// Pages that came in since the last look.
    arrivals: u32,
    /// Those that were read ahead, and those that were waited for.
    ahead: u32,
    demanded: u32,
    edge: Uses,
    kept: Uses,
    /// Since the last look: returns from behind the edge, and uses before it.
    far: u32,
    near: u32,
    is_loop: bool,
    /// What the coldest kept pages are used, as of the last look.
    kept_worth: u64,
}

impl Judge {
    pub(super) const fn new() -> Self {
        let none = Uses { uses: 0, exposure: 0 };
        Self {
            share: FIRST,
            arrivals: 0,
            ahead: 0,
            demanded: 0,
            edge: none,
            kept: none,
            far: 0,
            near: 0,
            is_loop: false,
            kept_worth: 0,
        }
    }

    /// Pages on probation when all kept pages have their places.
    pub(super) fn probation(&self, budget: u32) -> u32 {
        u32::try_from(u64::from(budget) * self.share / WHOLE).expect("a part of a u32")
    }

    /// The pages on probation are a loop's: the oldest of them are worth keeping.
    pub(super) const fn is_loop(&self) -> bool {
        self.is_loop
    }

    /// Arrivals between two uses of a kept page, as far as is known.
    pub(super) fn kept_interval(&self) -> u64 {
        self.kept.interval()
    }

    /// Uses of one of the coldest kept pages for each page that comes in, in parts of [`USE_RATE`]; 0: not known.
    pub(super) const fn kept_worth(&self) -> u64 {
        self.kept_worth
    }

    pub(super) const fn note_arrival(&mut self) {
        self.arrivals += 1;
    }

    /// A page comes in that nobody waits for.
    pub(super) const fn note_ahead(&mut self) {
        self.ahead += 1;
    }

    /// Somebody waits for a page that was used `interval` ago.
    pub(super) fn note_return(&mut self, interval: u64, probation: u32) {
        self.demanded += 1;
        let edge = u64::from(probation);
        if interval <= edge {
            return;
        }
        self.far += u32::from(2 * interval <= 5 * edge);
        if 2 * interval <= 3 * edge {
            self.edge.add();
        }
    }

    /// A page on probation was used while it was watched.
    pub(super) const fn note_probation_use(&mut self) {
        self.near += 1;
        self.edge.add();
    }

    /// So was a kept one.
    pub(super) const fn note_kept_use(&mut self) {
        self.kept.add();
    }

    /// Enough has come in to look again.
    pub(super) fn is_due(&self, budget: u32) -> bool {
        self.arrivals >= (budget / WINDOW_SHARE).max(WINDOW_MIN)
    }

    /// True if of the pages that came in since the last look at least one in [`DEMANDED_SHARE`] was waited for.
    pub(super) fn look(&mut self, lists: Lists) -> bool {
        self.edge.expose(lists.probation, self.arrivals);
        self.kept.expose(lists.kept_watched, self.arrivals);
        if lists.is_settled {
            self.weigh(lists);
        }
        self.is_loop = 2 * self.far > self.arrivals && 8 * self.near < self.far;
        let is_demanded = self.demanded * DEMANDED_SHARE >= self.arrivals;
        (self.arrivals, self.ahead, self.demanded, self.far, self.near) = (0, 0, 0, 0, 0);
        self.edge.forget();
        self.kept.forget();
        is_demanded
    }

    fn weigh(&mut self, lists: Lists) {
        let edge = self.edge.rate();
        let kept = self.kept.rate().min(RATE / lists.coldest.max(1));
        self.kept_worth = kept;
        // Less than one use of a page while the whole of memory comes in is chance, unless kept pages are hardly used at all: a set that
        // is used at random shows little of itself at the age of a short probation. A loop shows itself by returns, not by uses.
        let is_plain =
            edge > PLAIN_WORTH * kept && self.edge.uses >= PLAIN_USES * USE && self.near > 0 && self.near >= self.far;
        let is_known = is_plain || edge > RATE / u64::from(lists.budget.max(1));
        let share = if is_known && edge > GROWTH_WORTH * kept {
            let there = u64::from(lists.probation) * WHOLE / u64::from(lists.budget.max(1));
            self.share.max(self.share.min(there) * 3 / 2 + 1)
        } else if edge < kept {
            self.share - self.share / 16
        } else {
            self.share
        };
        // What is read ahead has to stay until it is used.
        let least = (2 * FIRST * u64::from(self.ahead) / u64::from(self.arrivals.max(1))).clamp(LEAST, FIRST);
        self.share = share.clamp(least, MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: u32 = 8192;
    const SETTLED: Lists =
        Lists { budget: BUDGET, probation: 512, kept_watched: 1280, is_settled: true, coldest: 4000 };

    /// So many looks at what `notes` tell of 128 arrivals each.
    fn after(judge: &mut Judge, looks: u32, lists: Lists, notes: impl Fn(&mut Judge)) -> u32 {
        for _ in 0..looks {
            (0..128).for_each(|_| judge.note_arrival());
            assert!(judge.is_due(BUDGET));
            notes(judge);
            judge.look(lists);
        }
        judge.probation(BUDGET)
    }

    #[test]
    fn probation_grows_while_pages_come_back_that_it_would_have_held_and_kept_ones_are_not_used() {
        let mut judge = Judge::new();
        assert_eq!(judge.probation(BUDGET), 512);
        let pages = after(&mut judge, 4, SETTLED, |judge| (0..20).for_each(|_| judge.note_return(600, 512)));
        assert!(pages > 700, "{pages}");
        let pages = after(&mut judge, 40, Lists { probation: 6000, ..SETTLED }, |judge| {
            (0..100).for_each(|_| judge.note_probation_use());
        });
        assert_eq!(pages, BUDGET * 3 / 4);
    }

    #[test]
    fn probation_shrinks_while_kept_pages_are_used_more_often() {
        let busy = Lists { coldest: 100, ..SETTLED };
        let pages = after(&mut Judge::new(), 100, busy, |judge| (0..200).for_each(|_| judge.note_kept_use()));
        assert_eq!(pages, BUDGET / 128);
    }

    /// 72,087 major faults of a kernel, 18,891 of a policy that kept what came back while there was room, 6,552 at least.
    #[test]
    fn a_loop_is_found_by_returns_from_behind_the_edge_and_by_nothing_else() {
        let start = Lists { probation: 8000, kept_watched: 0, is_settled: false, coldest: 0, ..SETTLED };
        let mut judge = Judge::new();
        after(&mut judge, 1, start, |judge| (0..100).for_each(|_| judge.note_return(9000, 8000)));
        assert!(judge.is_loop());
        after(&mut judge, 1, start, |judge| (0..100).for_each(|_| judge.note_return(30_000, 8000)));
        assert!(!judge.is_loop(), "too far away to be kept");
        after(&mut judge, 1, start, |judge| {
            (0..70).for_each(|_| judge.note_return(9000, 8000));
            (0..30).for_each(|_| judge.note_probation_use());
        });
        assert!(!judge.is_loop(), "pages are used at all ages: a hot set");
    }
}
