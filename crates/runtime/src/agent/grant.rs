//! Memory that a process is still to be given: its share of the budget grows as others need less, and the supervisor looks only now and
//! then. Until it has, a fault that finds neither memory nor a slot is asked again. The same goes for disk space, which other processes
//! give back when it is short (`machine::backing`).

use pagetide_core::types::Nanos;

/// Who is short of memory has more within this time if there is any, also on a busy machine.
const GRANT_NS: Nanos = 500_000_000;
/// Faults that lie as far apart have nothing to do with each other.
const APART_NS: Nanos = 2_000_000_000;

/// What the process was refused for want of memory.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Grant {
    /// What it had when it began to wait, and since when that has not grown by a sixteenth.
    had: u64,
    since: Nanos,
    refused: Nanos,
}

impl Grant {
    /// A fault was refused while the process has so much, of the most that it can have. True: it may be given more.
    pub(super) fn may_come(&mut self, now: Nanos, has: u64, most: u64) -> bool {
        if now >= self.refused + APART_NS || has > self.had + self.had / 16 {
            (self.had, self.since) = (has, now);
        }
        self.refused = now;
        has < most && now < self.since + GRANT_NS
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
