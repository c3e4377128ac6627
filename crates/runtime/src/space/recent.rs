//! Addresses whose content the program gave back a moment ago.
//!
//! The kernel tells of MADV_DONTNEED before it carries it out, and its thread may be held up in between. Until then a page may be
//! there that reads as zero in a moment: who looks for pages that are there without our knowing must pass it over.
//!
//! Invariants: a range is in the table from [`Recent::note`] on for at least the time given to [`Recent::new`], and at most
//! for twice as long; ranges of a generation are ascending, do not touch, and are at most [`RANGES`]: where there would be more,
//! neighbours are joined over what lies between them.

use pagetide_core::types::Nanos;

/// Ranges of one generation.
const RANGES: usize = 1024;

/// The table.
#[derive(Debug)]
pub(crate) struct Recent {
    keep_ns: Nanos,
    turned_at: Nanos,
    /// This one's and the one before.
    generations: [Vec<(u64, u64)>; 2],
}

impl Recent {
    /// What is noted is kept for so long.
    pub(crate) fn new(keep_ns: Nanos) -> Self {
        Self { keep_ns, turned_at: 0, generations: [Vec::new(), Vec::new()] }
    }

    fn turn(&mut self, now: Nanos) {
        if now < self.turned_at.saturating_add(self.keep_ns) {
            return;
        }
        self.generations.swap(0, 1);
        self.generations[0].clear();
        if now >= self.turned_at.saturating_add(2 * self.keep_ns) {
            self.generations[1].clear();
        }
        self.turned_at = now;
    }

    /// The pages `[from, to)` are being given back.
    pub(crate) fn note(&mut self, now: Nanos, from: u64, to: u64) {
        self.turn(now);
        let ranges = &mut self.generations[0];
        let first = ranges.partition_point(|&(_, end)| end < from);
        let behind = first + ranges[first..].partition_point(|&(start, _)| start <= to);
        let joined = ranges[first..behind].iter().fold((from, to), |(a, b), &(start, end)| (a.min(start), b.max(end)));
        ranges.splice(first..behind, [joined]);
        if ranges.len() > RANGES {
            let nearest = (1..ranges.len()).min_by_key(|&index| ranges[index].0 - ranges[index - 1].1);
            let index = nearest.expect("there are many");
            ranges[index - 1].1 = ranges[index].1;
            ranges.remove(index);
        }
    }

    /// The first piece of `[from, to)` that was not given back lately.
    pub(crate) fn first_old(&mut self, now: Nanos, from: u64, to: u64) -> Option<(u64, u64)> {
        self.turn(now);
        let mut from = from;
        // Each turn passes over a range of a table.
        while let Some(end) = self.generations.iter().filter_map(|ranges| covering(ranges, from)).max() {
            from = end;
        }
        let next = self.generations.iter().filter_map(|ranges| {
            let index = ranges.partition_point(|&(start, _)| start <= from);
            ranges.get(index).map(|&(start, _)| start)
        });
        let to = next.min().map_or(to, |start| start.min(to));
        (from < to).then_some((from, to))
    }
}

/// The end of the range that covers `page`.
fn covering(ranges: &[(u64, u64)], page: u64) -> Option<u64> {
    let index = ranges.partition_point(|&(_, end)| end <= page);
    ranges.get(index).filter(|&&(start, _)| start <= page).map(|&(_, end)| end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn old(recent: &mut Recent, now: Nanos, from: u64, to: u64) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        let mut at = from;
        while let Some((start, end)) = recent.first_old(now, at, to) {
            found.push((start, end));
            at = end;
        }
        found
    }

    #[test]
    fn what_was_given_back_is_passed_over_for_a_while() {
        let mut recent = Recent::new(100);
        recent.note(1000, 10, 20);
        recent.note(1050, 30, 40);
        recent.note(1150, 35, 50);
        assert_eq!(old(&mut recent, 1150, 0, 100), [(0, 10), (20, 30), (50, 100)]);
        assert_eq!(old(&mut recent, 1150, 12, 18), []);
        assert_eq!(old(&mut recent, 1260, 0, 100), [(0, 35), (50, 100)]);
        assert_eq!(old(&mut recent, 2000, 0, 100), [(0, 100)]);
    }

    /// Against a table of times, one for each page.
    #[test]
    fn nothing_is_forgotten_early_and_little_is_kept_long() {
        let mut random = 88_172_645_463_325_252_u64;
        let mut draw = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let mut recent = Recent::new(50);
        let mut given_back = vec![None; 400];
        let mut now = 500;
        for _ in 0..20_000 {
            now += draw(4);
            let from = draw(390);
            let to = from + 1 + draw(10);
            if draw(3) == 0 {
                recent.note(now, from, to);
                given_back[usize::try_from(from).expect("small")..usize::try_from(to).expect("small")].fill(Some(now));
            } else {
                let found = old(&mut recent, now, from, to);
                for page in from..to {
                    let is_old = found.iter().any(|&(start, end)| start <= page && page < end);
                    let age = given_back[usize::try_from(page).expect("small")].map(|then: u64| now - then);
                    assert!(!is_old || age.is_none_or(|age| age >= 50), "page {page} was given back {age:?} ago");
                    assert!(is_old || age.is_some_and(|age| age <= 150), "page {page} was given back {age:?} ago");
                }
            }
        }
    }

    #[test]
    fn a_full_table_keeps_more_than_it_must_and_never_less() {
        let mut recent = Recent::new(100);
        for place in 0..3000 {
            recent.note(0, place * 10, place * 10 + 1);
        }
        for place in 0..3000 {
            assert_eq!(recent.first_old(0, place * 10, place * 10 + 1), None);
        }
        assert_eq!(recent.first_old(0, 29_991, 30_000), Some((29_991, 30_000)));
    }
}
