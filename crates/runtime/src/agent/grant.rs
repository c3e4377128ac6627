//! Memory that a process is still to be given: its share of the budget grows as others need less, and the supervisor looks only now and
//! then. Until it has, a fault that finds neither memory nor a slot is asked again.

use pagetide_core::types::Nanos;

/// Who is short of memory has more within this time if there is any, also on a busy machine.
const GRANT_NS: Nanos = 500_000_000;
/// Faults that lie as far apart have nothing to do with each other.
const APART_NS: Nanos = 2_000_000_000;

/// What the process was refused for want of memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Grant {
    /// Its share when it began to wait, and since when it has not grown by a sixteenth.
    share: u64,
    since: Nanos,
    refused: Nanos,
}

impl Grant {
    /// A fault was refused with this share of a budget. True: it may grow.
    pub(super) fn may_come(&mut self, now: Nanos, share: u64, budget: u64) -> bool {
        if now >= self.refused + APART_NS || share > self.share + self.share / 16 {
            (self.share, self.since) = (share, now);
        }
        self.refused = now;
        share < budget && now < self.since + GRANT_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_be_given_more_waits_and_not_for_ever() {
        let mut grant = Grant::default();
        let begin = 10 * APART_NS;
        assert!(!grant.may_come(begin, 1_000, 1_000), "it has all");
        let begin = 20 * APART_NS;
        assert!(grant.may_come(begin, 1_000, 9_000) && grant.may_come(begin + GRANT_NS - 1, 1_000, 9_000));
        assert!(!grant.may_come(begin + GRANT_NS, 1_062, 9_000), "that is no growth");
        assert!(grant.may_come(begin + GRANT_NS, 1_063, 9_000));
        assert!(!grant.may_come(begin + 2 * GRANT_NS, 1_063, 9_000));
        assert!(grant.may_come(begin + 2 * GRANT_NS + APART_NS, 1_063, 9_000), "another time");
    }
}
