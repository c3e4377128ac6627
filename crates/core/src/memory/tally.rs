//! What is counted by parts of memory while somebody looks: faults and readahead, by ranges of pages that the host names.
//!
//! Nothing is decided by it. While nobody looks, it costs a look at one word.

use alloc::vec;
use alloc::vec::Vec;

use crate::types::PageRange;
use crate::vmstat::Counter;

/// Of the counters, those that are counted by parts too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tallied {
    Fault,
    MajorFault,
    Refault,
    ReadAheadHit,
    ReadAheadUnused,
}

impl Tallied {
    pub(super) const fn counter(self) -> Counter {
        match self {
            Self::Fault => Counter::pgfault,
            Self::MajorFault => Counter::pgmajfault,
            Self::Refault => Counter::workingset_refault_anon,
            Self::ReadAheadHit => Counter::swap_ra_hit,
            Self::ReadAheadUnused => Counter::pt_ra_unused,
        }
    }
}

/// What was counted in a range. Each field is the part of the counter that is named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartCounts {
    /// `pgfault`.
    pub faults: u64,
    /// `pgmajfault`.
    pub major_faults: u64,
    /// `workingset_refault_anon`.
    pub refaults: u64,
    /// `swap_ra_hit`.
    pub read_ahead_hits: u64,
    /// `pt_ra_unused`.
    pub read_ahead_unused: u64,
}

/// The ranges, and their counts.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    ranges: Vec<PageRange>,
    counts: Vec<PartCounts>,
}

impl Tally {
    /// Nothing is counted yet. The ranges are ascending and apart.
    pub(crate) fn new(ranges: &[PageRange]) -> Self {
        assert!(ranges.is_sorted_by_key(|range| range.first), "the parts of memory are not ascending");
        Self { ranges: ranges.to_vec(), counts: vec![PartCounts::default(); ranges.len()] }
    }

    pub(crate) fn counts(&self) -> &[PartCounts] {
        &self.counts
    }

    /// The range in which a page lies.
    pub(crate) fn find(&self, p: u32) -> Option<usize> {
        let after = self.ranges.partition_point(|range| range.first.0 <= p);
        let range = self.ranges.get(after.checked_sub(1)?)?;
        (p - range.first.0 < range.len).then_some(after - 1)
    }

    pub(super) fn add(&mut self, p: u32, what: Tallied, n: u32) {
        let Some(at) = self.find(p) else { return };
        let counts = &mut self.counts[at];
        let count = match what {
            Tallied::Fault => &mut counts.faults,
            Tallied::MajorFault => &mut counts.major_faults,
            Tallied::Refault => &mut counts.refaults,
            Tallied::ReadAheadHit => &mut counts.read_ahead_hits,
            Tallied::ReadAheadUnused => &mut counts.read_ahead_unused,
        };
        *count += u64::from(n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::PageIdx;

    #[test]
    fn a_page_counts_in_the_range_in_which_it_lies() {
        let range = |first, len| PageRange::new(PageIdx(first), len);
        let mut tally = Tally::new(&[range(10, 5), range(15, 1), range(20, 2)]);
        let found: Vec<_> = [9, 10, 14, 15, 16, 20, 21, 22].into_iter().map(|p| tally.find(p)).collect();
        assert_eq!(found, [None, Some(0), Some(0), Some(1), None, Some(2), Some(2), None]);
        tally.add(15, Tallied::Refault, 3);
        tally.add(16, Tallied::Fault, 3);
        assert_eq!(tally.counts()[1], PartCounts { refaults: 3, ..PartCounts::default() });
        assert_eq!(tally.counts().iter().map(|counts| counts.faults).sum::<u64>(), 0);
    }
}
