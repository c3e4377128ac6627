//! Absences of a run whose budget was changed: each is priced beside the budget of now.
//!
//! What was counted until a change is priced beside the budget of then. Beside a larger one it would have taken as much less, and what
//! that leaves nothing of is spared by now; beside a smaller one it would take as much more.

use super::{Absences, BUCKETS, UNIT_PAGES, bucket, longest_pages};

/// What was counted until the last change, as it was counted then, and what it is beside the budget of now.
#[derive(Clone, Debug)]
pub struct Repriced {
    counted: [u64; BUCKETS],
    prices: [u64; BUCKETS],
    spared: u64,
    is_changed: bool,
}

impl Repriced {
    /// The budget is what it was.
    pub const fn new() -> Self {
        Self { counted: [0; BUCKETS], prices: [0; BUCKETS], spared: 0, is_changed: false }
    }

    /// From now on there are `after` pages instead of `before`; `counted` is what was counted until now.
    pub fn change(&mut self, counted: &Absences, before: u64, after: u64) {
        let now = self.priced(counted);
        self.prices = [0; BUCKETS];
        for (index, count) in now.into_iter().enumerate().filter(|&(_, count)| count > 0) {
            match longest_pages(index).saturating_add(before).saturating_sub(after) {
                0 => self.spared = self.spared.saturating_add(count),
                price => {
                    let priced = &mut self.prices[bucket(price / UNIT_PAGES)];
                    *priced = priced.saturating_add(count);
                }
            }
        }
        self.counted = counted.prices;
        self.is_changed = true;
    }

    /// All that was counted until now, if the program never needed more than `short_pages` beyond the budget of now.
    #[must_use]
    pub fn absences(&self, counted: Absences, short_pages: u64) -> Absences {
        if !self.is_changed {
            return counted;
        }
        let prices = self.priced(&counted);
        Absences { prices, spared: self.spared, away_pages_max: short_pages, ..counted }
    }

    /// With what came since the last change. Who counts may count a page anew at another price: none is less than nothing.
    fn priced(&self, counted: &Absences) -> [u64; BUCKETS] {
        core::array::from_fn(|index| {
            let since = counted.prices[index].saturating_sub(self.counted[index]);
            self.prices[index].saturating_add(since)
        })
    }
}

impl Default for Repriced {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::absences::{Prospect, Waited};

    /// So many pages came back that `price` pages more would have spared.
    fn returns(pairs: &[(u64, u64)]) -> Absences {
        let mut prices = [0; BUCKETS];
        pairs.iter().for_each(|&(price, count)| prices[bucket(price / UNIT_PAGES)] += count);
        Absences::of(prices, prices, pairs.iter().map(|&(price, _)| price).max().unwrap_or(0))
    }

    const WAITED: Waited = Waited { ran: 100, stalled: 80, first_touch: 0, first_touch_pages: 0, from_disk: 0 };

    #[test]
    fn what_a_larger_budget_spares_by_now_needs_no_more() {
        let counted = returns(&[(3000, 50_000)]);
        let mut repriced = Repriced::new();
        repriced.change(&counted, 4000, 8000);
        let absences = repriced.absences(counted, 0);
        assert_eq!(absences.advise_against(WAITED), Some(Prospect { extra_pages: 0, left_bp: 0 }));
        assert_eq!(absences.prospects().next(), Some(Prospect { extra_pages: 0, left_bp: 0 }));
    }

    #[test]
    fn what_is_still_missing_is_advised_beside_the_budget_of_now() {
        // A loop over 16,000 pages in 4000, then in 8000.
        let before = returns(&[(12_000, 50_000)]);
        let mut repriced = Repriced::new();
        repriced.change(&before, 4000, 8000);
        let after = returns(&[(12_000, 50_000), (8000, 30_000)]);
        let advice = repriced.absences(after, 8000).advise_against(WAITED).expect("pages came back");
        assert!((7900..8400).contains(&advice.extra_pages) && advice.left_bp == 0, "{advice:?}");
    }

    #[test]
    fn beside_a_smaller_budget_as_much_more_is_needed_and_back_is_as_it_was() {
        let counted = returns(&[(12_000, 50_000)]);
        let mut repriced = Repriced::new();
        repriced.change(&counted, 8000, 4000);
        let advice = repriced.absences(counted.clone(), 16_000).advise_against(WAITED).expect("pages came back");
        assert!((15_500..16_600).contains(&advice.extra_pages), "{advice:?}");
        repriced.change(&counted, 4000, 8000);
        let advice = repriced.absences(counted, 12_000).advise_against(WAITED).expect("pages came back");
        assert!((11_500..12_500).contains(&advice.extra_pages), "{advice:?}");
    }

    #[test]
    fn a_budget_that_stayed_changes_nothing() {
        let counted = returns(&[(12_000, 50_000)]);
        assert_eq!(Repriced::new().absences(counted.clone(), 0), counted);
    }
}
