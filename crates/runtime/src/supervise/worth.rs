//! What memory is worth to each process: how much less it would wait with a page more.
//!
//! Equal shares serve a process that goes through more memory than there is as well as one that lacks a little: the first one waits as much
//! with twice its share, the second one not at all. So those that are short of memory get parts by weights, which follow from how long the
//! pages stayed away that came back (`pagetide_core::absences`): had every page stayed for as many departures longer as an absence lasted,
//! it would not have been, and by Little's law that takes as many pages more as the absences last up to that, summed up. Ten times a second
//! the weights go up where a page more saves more waiting than in the mean of all pages that are kept, and down where it saves less.
//!
//! Equals do not stay equal: who lacks less gains more by a page, and gets it, and a page counts double where the most memory goes already
//! ([`COMMITMENT`]), so that what is measured in a tenth of a second, which varies by a factor of two, does not send it to and fro. So of several
//! that do not fit together one soon has what it needs, ends earlier, and leaves it to the next, as load control would have it (Denning
//! 1968), but none is stopped: with [`WEIGHT_RATIO`] the last of two has a seventeenth.

use pagetide_core::absences::{BUCKETS, longest_pages};
use pagetide_core::types::Nanos;

use crate::shares::WEIGHT;

/// What is counted in this time decides.
pub(super) const SPAN_NS: Nanos = 100_000_000;
/// Weights are at most so many times that of one of whom nothing is known, and one part in so many of it at least.
const WEIGHT_RATIO: u64 = 4;
/// Memory is given in steps: one part in so many of what is kept is too little to tell.
const STEP_PARTS: u64 = 16;
/// A difference from the mean of less than one part in so many is none.
const MEANS: u128 = 16;
/// A page more counts so many times as much for the one with the greatest weight, the first of them.
const COMMITMENT: u64 = 2;
/// Fewer pages that came back say nothing.
const RETURNS_MIN: u64 = 32;

/// What is known of one process.
#[derive(Clone, Debug)]
pub(super) struct Worth {
    began: Nanos,
    /// As they were when the span began.
    returns: [u64; BUCKETS],
    waited_us: u64,
    /// Nanoseconds of a second that a page more saves; None: it does not wait.
    per_page: Option<u64>,
    pub(super) weight: u64,
}

impl Worth {
    pub(super) const fn new() -> Self {
        Self { began: 0, returns: [0; BUCKETS], waited_us: 0, per_page: None, weight: WEIGHT }
    }

    /// A span ends. What was counted by now: pages that came back by how many left meanwhile, and for how long it was waited. `resident`
    /// pages are kept; at most `most` more can be had.
    pub(super) fn look(&mut self, now: Nanos, returns: [u64; BUCKETS], waited_us: u64, resident: u64, most: u64) {
        let passed = now.saturating_sub(self.began).max(1);
        let came: [u64; BUCKETS] = std::array::from_fn(|at| returns[at].saturating_sub(self.returns[at]));
        let waited_ns = waited_us.saturating_sub(self.waited_us).saturating_mul(1000).min(passed);
        let per_s = u64::try_from(u128::from(waited_ns) * 1_000_000_000 / u128::from(passed)).unwrap_or(0);
        self.per_page = best(&came, per_s, (resident / STEP_PARTS).max(1), most);
        (self.began, self.returns, self.waited_us) = (now, returns, waited_us);
    }
}

/// The most waiting of `waited` that a page more saves, where from `least` to `most` pages more are had.
fn best(came: &[u64; BUCKETS], waited: u64, least: u64, most: u64) -> Option<u64> {
    let all = came.iter().fold(0, |sum: u64, &count| sum.saturating_add(count));
    if all < RETURNS_MIN {
        return None;
    }
    let (mut back, mut before, mut extra, mut best) = (0_u64, 0, 0_u64, 0);
    for (index, &count) in came.iter().enumerate() {
        let end = longest_pages(index);
        // Departures between the last bucket and this one, times the share of absences that last longer; in the mean of the bucket.
        let longer = u128::from(all - back) - u128::from(count / 2);
        extra = extra
            .saturating_add(u64::try_from(u128::from(end - before) * longer / u128::from(all)).unwrap_or(u64::MAX));
        (back, before) = (back + count, end);
        if extra > most {
            break;
        }
        let saved = u128::from(waited) * u128::from(back) / u128::from(all);
        best = best.max(u64::try_from(saved / u128::from(extra.max(least))).unwrap_or(0));
    }
    Some(best)
}

/// Bring the weights of those that are short nearer to what memory is worth to them. Each with what it keeps.
pub(super) fn weigh(short: &mut [(&mut Worth, u64)]) {
    let greatest = short.iter().map(|(worth, _)| worth.weight).max();
    if let Some((worth, _)) = short.iter_mut().find(|(worth, _)| Some(worth.weight) == greatest) {
        worth.per_page = worth.per_page.map(|per_page| per_page.saturating_mul(COMMITMENT));
    }
    let known = || short.iter().filter_map(|(worth, resident)| Some((worth.per_page?, *resident)));
    let kept: u128 = known().map(|(_, resident)| u128::from(resident)).sum();
    let all: u128 = known().map(|(per_page, resident)| u128::from(per_page) * u128::from(resident)).sum();
    let Some(mean) = all.checked_div(kept) else { return };
    for (worth, _) in short {
        let Some(per_page) = worth.per_page else { continue };
        let step = worth.weight / 4;
        if u128::from(per_page) * MEANS > mean * (MEANS + 1) {
            worth.weight = (worth.weight + step).min(WEIGHT * WEIGHT_RATIO);
        } else if u128::from(per_page) * (MEANS + 1) < mean * MEANS {
            worth.weight = (worth.weight - step).max(WEIGHT / WEIGHT_RATIO);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(pages: u64) -> usize {
        (0..BUCKETS).find(|&index| longest_pages(index) >= pages).expect("a bucket")
    }

    /// Uniform over 3,000 pages more than there are: absences end with the same chance at each departure.
    fn uniform() -> [u64; BUCKETS] {
        let mut came = [0; BUCKETS];
        let mut left = 3_000_000_000;
        for at in 0..30_000 {
            came[bucket(at)] += left / 3_000;
            left -= left / 3_000;
        }
        came
    }

    /// A stream over more than there is: every page comes back after as many departures as pages do not fit.
    fn stream(pages: u64) -> [u64; BUCKETS] {
        let mut came = [0; BUCKETS];
        came[bucket(pages)] = 100_000;
        came
    }

    #[test]
    fn a_page_more_is_worth_what_it_saves() {
        let waited = 900_000_000;
        let uniform = best(&uniform(), waited, 500, 10_000).expect("enough came back");
        assert!((waited / 3_600..waited / 2_400).contains(&uniform), "{uniform}");
        assert_eq!(best(&stream(17_000), waited, 500, 10_000), Some(0), "it would have to have all");
        let all = best(&stream(17_000), waited, 500, 30_000).expect("enough came back");
        assert!((waited / 22_000..waited / 14_000).contains(&all), "{all}");
        assert_eq!(best(&stream(17_000).map(|count| count / 10_000), waited, 500, 30_000), None, "ten pages");
    }

    fn worth(per_page: u64) -> Worth {
        Worth { per_page: Some(per_page), ..Worth::new() }
    }

    #[test]
    fn weights_follow_what_memory_is_worth_within_bounds() {
        let (mut one, mut other, mut silent) = (worth(1_000), worth(10), Worth::new());
        weigh(&mut [(&mut one, 8_000), (&mut other, 8_000), (&mut silent, 100)]);
        assert_eq!([one.weight, other.weight, silent.weight], [WEIGHT + WEIGHT / 4, WEIGHT - WEIGHT / 4, WEIGHT]);
        (0..100).for_each(|_| weigh(&mut [(&mut one, 8_000), (&mut other, 8_000)]));
        assert_eq!([one.weight, other.weight], [WEIGHT * WEIGHT_RATIO, WEIGHT / WEIGHT_RATIO]);
        let (mut one, mut other) = (worth(100), worth(195));
        weigh(&mut [(&mut one, 8_000), (&mut other, 8_000)]);
        assert_eq!([one.weight, other.weight], [WEIGHT; 2], "as good as equal");
    }

    #[test]
    fn equals_do_not_stay_equal() {
        let (mut one, mut other) = (worth(100), worth(100));
        for per_page in [70, 140, 100, 120] {
            one.per_page = Some(per_page);
            other.per_page = Some(100);
            weigh(&mut [(&mut one, 8_000), (&mut other, 8_000)]);
        }
        assert!(one.weight > 2 * other.weight, "{} {}", one.weight, other.weight);
    }
}
