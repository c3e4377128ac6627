//! How long threads of the program have waited for memory: as the kernel's pressure stall information has it, *some* is the time in
//! which at least one waited, *full* the part of it in which none did anything else.
//!
//! *Some* is exact: from when the first fault is read to when the last one is answered. What the other threads do is looked at now
//! and then (`note_look`), and the time since the last look goes by what was seen: so *full* is a sample, and never more than *some*.

use pagetide_core::types::Nanos;

/// The times.
#[derive(Debug, Default)]
pub(crate) struct Stalls {
    /// Since when a fault waits that is counted up to then.
    since: Option<Nanos>,
    some_ns: Nanos,
    full_ns: Nanos,
    /// What `some_ns` was at the last look.
    looked_at_ns: Nanos,
}

impl Stalls {
    /// A fault waits from now on.
    pub(super) fn begin(&mut self, now: Nanos) {
        self.since = self.since.or(Some(now));
    }

    /// No fault waits any more.
    pub(super) fn end(&mut self, now: Nanos) {
        self.some_ns = self.some_ns(now);
        self.since = None;
    }

    /// At least one thread waited.
    pub(super) fn some_ns(&self, now: Nanos) -> Nanos {
        self.some_ns + self.since.map_or(0, |since| now.saturating_sub(since))
    }

    /// None did anything else.
    pub(super) const fn full_ns(&self) -> Nanos {
        self.full_ns
    }

    /// What the threads do, while one waits at least.
    pub(crate) fn note_look(&mut self, now: Nanos, do_all_wait: bool) {
        let some_ns = self.some_ns(now);
        if do_all_wait {
            self.full_ns += some_ns - self.looked_at_ns;
        }
        self.looked_at_ns = some_ns;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_counts_once_however_many_wait_and_goes_on_counting_before_the_answer() {
        let mut stalls = Stalls::default();
        stalls.begin(100);
        stalls.begin(150);
        assert_eq!(stalls.some_ns(180), 80);
        stalls.end(200);
        stalls.begin(300);
        stalls.end(310);
        assert_eq!((stalls.some_ns(900), stalls.full_ns()), (110, 0));
    }

    #[test]
    fn time_between_two_looks_goes_by_the_second() {
        let mut stalls = Stalls::default();
        stalls.begin(0);
        stalls.note_look(40, true);
        stalls.note_look(70, false);
        stalls.note_look(100, true);
        assert_eq!((stalls.some_ns(100), stalls.full_ns()), (100, 70));
    }
}
