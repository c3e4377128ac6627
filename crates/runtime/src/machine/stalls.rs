//! How long threads of the program have waited for memory: as the kernel's pressure stall information has it, *some* is the time in
//! which at least one waited, *full* the part of it in which none did anything else.
//!
//! *Reading* is the part of *some* in which the disk was read: what a faster disk would have cut. *First touch* is the part that was
//! waited for pages that had never been used: what more memory would not have cut. Faults of both kinds may wait at once; then
//! the time belongs to them as their waits are long.
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
    /// Reads in flight, and since when one is that is counted while a fault waits.
    reads: u32,
    reading_since: Nanos,
    reading_ns: Nanos,
    /// Faults answered since `since`: how long they waited in all, and those of them for the first touch of a page.
    waits_ns: Nanos,
    first_waits_ns: Nanos,
    first_touch_ns: Nanos,
    /// What `some_ns` was at the last look.
    looked_at_ns: Nanos,
}

impl Stalls {
    /// A fault waits from now on.
    pub(super) fn begin(&mut self, now: Nanos) {
        if self.since.is_none() {
            (self.since, self.reading_since) = (Some(now), now);
        }
    }

    /// A fault is answered that waited for so long; or for the first touch of a page.
    pub(super) const fn note_wait(&mut self, ns: Nanos, is_first_touch: bool) {
        self.waits_ns += ns;
        self.first_waits_ns += if is_first_touch { ns } else { 0 };
    }

    /// No fault waits any more.
    pub(super) fn end(&mut self, now: Nanos) {
        let ended_ns = self.since.map_or(0, |since| now.saturating_sub(since));
        let first = u128::from(ended_ns) * u128::from(self.first_waits_ns) / u128::from(self.waits_ns.max(1));
        self.first_touch_ns += Nanos::try_from(first).unwrap_or(ended_ns);
        (self.waits_ns, self.first_waits_ns) = (0, 0);
        (self.some_ns, self.reading_ns) = (self.some_ns(now), self.reading_ns(now));
        self.since = None;
    }

    /// A read begins.
    pub(super) fn begin_read(&mut self, now: Nanos) {
        if self.reads == 0 {
            self.reading_since = now;
        }
        self.reads += 1;
    }

    /// A read has ended.
    pub(super) fn end_read(&mut self, now: Nanos) {
        if self.reads == 1 {
            self.reading_ns = self.reading_ns(now);
        }
        self.reads = self.reads.saturating_sub(1);
    }

    /// At least one thread waited while the disk was read.
    pub(super) fn reading_ns(&self, now: Nanos) -> Nanos {
        let is_both = self.since.is_some() && self.reads > 0;
        self.reading_ns + if is_both { now.saturating_sub(self.reading_since) } else { 0 }
    }

    /// At least one thread waited.
    pub(crate) fn some_ns(&self, now: Nanos) -> Nanos {
        self.some_ns + self.since.map_or(0, |since| now.saturating_sub(since))
    }

    /// At least one thread waited, and that was for the first touch of a page. Told when nobody waits any more.
    pub(super) const fn first_touch_ns(&self) -> Nanos {
        self.first_touch_ns
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
    fn first_touches_have_the_share_of_the_time_that_their_waits_have() {
        let mut stalls = Stalls::default();
        stalls.begin(0);
        stalls.note_wait(40, true);
        stalls.note_wait(120, false);
        stalls.end(120);
        assert_eq!(stalls.first_touch_ns(), 30);
        stalls.begin(200);
        stalls.note_wait(10, true);
        stalls.end(210);
        stalls.begin(300);
        stalls.note_wait(10, false);
        stalls.end(310);
        assert_eq!((stalls.some_ns(310), stalls.first_touch_ns()), (140, 40));
    }

    #[test]
    fn reads_count_while_somebody_waits() {
        let mut stalls = Stalls::default();
        stalls.begin_read(0);
        stalls.begin(100);
        stalls.begin_read(110);
        stalls.end_read(120);
        assert_eq!(stalls.reading_ns(130), 30);
        stalls.end_read(150);
        stalls.end(200);
        stalls.begin_read(300);
        assert_eq!((stalls.some_ns(400), stalls.reading_ns(400)), (100, 50));
        stalls.begin(400);
        assert_eq!(stalls.reading_ns(410), 60);
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
