//! Absences as they are counted: in epochs of the run, by when the page left.
//!
//! The run is cut into at most [`EPOCHS`] epochs of equal length, counted in pages that left. When there is no room for another one,
//! every two become one: so a run of any length has between half of them and all.

use super::{Absences, BUCKETS, STAMP_BITS, UNIT_PAGES, begin, bucket, end};

/// Epochs of a run, at most.
const EPOCHS: usize = 16;

/// What is counted of one process.
#[derive(Clone, Debug)]
pub(crate) struct AbsenceLog {
    /// Pages that left in an epoch and came back, by bucket.
    epochs: [[u64; BUCKETS]; EPOCHS],
    /// Units of an epoch: two to the power of this.
    epoch_shift: u32,
    leaves: u64,
    away_pages_max: u64,
}

impl AbsenceLog {
    /// None yet.
    pub(crate) const fn new() -> Self {
        Self { epochs: [[0; BUCKETS]; EPOCHS], epoch_shift: 0, leaves: 0, away_pages_max: 0 }
    }

    /// A page leaves, and `away` are away with it. What it is to remember.
    #[inline]
    pub(crate) fn note_leave(&mut self, away: u32) -> u64 {
        let stamp = self.unit() & STAMP_MASK;
        self.leaves += 1;
        self.away_pages_max = self.away_pages_max.max(u64::from(away));
        stamp
    }

    /// A page comes back with what it remembered.
    #[inline]
    pub(crate) fn note_return(&mut self, stamp: u64) {
        let units = self.unit().wrapping_sub(stamp) & STAMP_MASK;
        while self.unit() >> self.epoch_shift >= EPOCHS as u64 {
            self.join_epochs();
        }
        let epoch = self.unit().saturating_sub(units) >> self.epoch_shift;
        self.epochs[usize::try_from(epoch).expect("few epochs")][bucket(units)] += 1;
    }

    /// The most pages that were away at once.
    pub(crate) const fn away_pages_max(&self) -> u64 {
        self.away_pages_max
    }

    const fn unit(&self) -> u64 {
        self.leaves / UNIT_PAGES
    }

    fn join_epochs(&mut self) {
        for to in 0..EPOCHS {
            let joined = self.epochs.get(2 * to).zip(self.epochs.get(2 * to + 1));
            self.epochs[to] =
                joined.map_or([0; BUCKETS], |(one, other)| core::array::from_fn(|at| one[at] + other[at]));
        }
        self.epoch_shift += 1;
    }

    /// What is known by now.
    pub(crate) fn absences(&self) -> Absences {
        let (mut returns, mut prices) = ([0; BUCKETS], [0; BUCKETS]);
        for (number, epoch) in self.epochs.iter().enumerate() {
            for (sum, count) in returns.iter_mut().zip(epoch) {
                *sum += count;
            }
            self.price(number, &mut prices);
        }
        Absences::of(returns, prices, self.away_pages_max)
    }

    /// Of the pages that came back of those that left in this epoch: what it would have taken that they had stayed.
    fn price(&self, number: usize, prices: &mut [u64; BUCKETS]) {
        let epoch = &self.epochs[number];
        let pages = UNIT_PAGES << self.epoch_shift;
        let before = pages * number as u64;
        let leaves = self.leaves.saturating_sub(before).min(pages).max(epoch.iter().sum()).max(1);
        let (mut area, mut back) = (0_u128, 0_u64);
        for (index, &count) in epoch.iter().enumerate() {
            let width = u128::from((end(index) - begin(index)) * UNIT_PAGES);
            // Of those that come back within the bucket, the half are away in the mean.
            area += width * u128::from(leaves - (back + count / 2).min(leaves));
            back += count;
            let extra = u64::try_from(area / u128::from(leaves)).unwrap_or(u64::MAX).min(self.away_pages_max);
            prices[bucket(extra / UNIT_PAGES)] += count;
        }
    }
}

/// Of the clock, what a shadow entry holds.
const STAMP_MASK: u64 = (1 << STAMP_BITS) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_are_joined_and_lose_nothing() {
        let mut log = AbsenceLog::new();
        let mut stamps = std::collections::VecDeque::new();
        for _ in 0..100_000 {
            stamps.push_back(log.note_leave(100));
            if stamps.len() == 100 {
                log.note_return(stamps.pop_front().expect("it is full"));
            }
        }
        assert!(log.unit() >> log.epoch_shift < EPOCHS as u64 && log.unit() >> log.epoch_shift >= EPOCHS as u64 / 2);
        let absences = log.absences();
        assert_eq!(absences.returns().iter().sum::<u64>(), 100_000 - 99);
        assert_eq!(absences.prices().iter().sum::<u64>(), 100_000 - 99);
    }

    #[test]
    fn what_is_done_for_a_while_has_the_price_that_it_has_then() {
        let mut log = AbsenceLog::new();
        // For a while all that leaves is back 1000 pages later; then nothing comes back.
        let mut stamps = std::collections::VecDeque::new();
        for at in 0..40_000 {
            stamps.push_back(log.note_leave(5000));
            if at < 10_000 && stamps.len() > 1000 {
                log.note_return(stamps.pop_front().expect("it is full"));
            }
        }
        let absences = log.absences();
        // All that left had to stay for it, not the quarter of it that the whole run had in the mean.
        let advice = absences.advise(1000).expect("pages came back");
        assert!((900..1300).contains(&advice.extra_pages), "{advice:?}");
    }
}
