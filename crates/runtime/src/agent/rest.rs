//! The agent rests while nothing runs in the program.
//!
//! Its look at the memory every 2 ms is for what the program's threads do without a word to anybody. Threads that have used no CPU time
//! for a while have done nothing, and as long as they sleep there is nothing to see. Then the agent sleeps until it is told of something;
//! the supervisor, which looks at the CPU time of all processes at once, rings when they run again (`supervise::rest`).
//!
//! Invariant: it rests only while no fault, fork, request, order or watcher waits for its next look.

use std::sync::atomic::Ordering;

use pagetide_core::types::Nanos;
use pagetide_sys::clock;

use super::{Agent, Managed};

/// So long nothing runs before it rests: longer than it takes until the last act of a thread has been looked at, in every way but one: what
/// stays native is looked through in pieces, which may take longer, and is waited for.
const QUIET_NS: Nanos = 300_000_000;
/// And so long it rests at most: a ring that is lost costs time, not life.
const REST_NS: Nanos = 1_000_000_000;
/// CPU time of the program below this is none: the two clocks are not read at once.
const NONE_NS: Nanos = 30_000;

/// What is known of the program's CPU time.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// It was this much, since then.
    used: Nanos,
    since: Nanos,
    /// When the agent was told of something last.
    told: Nanos,
    is_on: bool,
    /// The share that the budget follows, and the places that are known to be short of room.
    share: u64,
    short_places: u64,
}

impl Rest {
    /// The program's threads have used `used` so far. True if they have done nothing for long enough.
    fn is_quiet(&mut self, used: Nanos, now: Nanos) -> bool {
        if used > self.used + NONE_NS {
            (self.used, self.since) = (used, now);
        }
        now >= self.since.max(self.told) + QUIET_NS
    }

    /// The budget follows this share from now on.
    pub(super) const fn note_share(&mut self, share: u64) {
        self.share = share;
    }

    /// These places are known to be short of room from now on.
    pub(super) const fn note_short_places(&mut self, places: u64) {
        self.short_places = places;
    }

    /// The agent was told of something. True if it has rested: its next look is due.
    const fn end(&mut self, now: Nanos) -> bool {
        self.told = now;
        std::mem::replace(&mut self.is_on, false)
    }
}

impl Managed {
    /// There is something to look at.
    pub(super) const fn end_rest(&mut self, now: Nanos) {
        if self.rest.end(now) {
            self.next_tick = now;
        }
    }
}

impl Agent {
    /// Begin to rest, or go on: then there is nothing to look at until the time that is returned.
    pub(super) fn rest(&self, managed: &mut Managed, now: Nanos) -> Option<Nanos> {
        let used = clock::process_cpu(None).and_then(|all| Ok((all, all.saturating_sub(clock::thread_cpu()?))));
        // A filter may deny the call: then it looks as if the program ran.
        let is_quiet = used.is_ok_and(|(_, program)| managed.rest.is_quiet(program, now));
        let is_waited = managed.session.pager.machine().waiting_count() > 0;
        let since = if used.is_err() || is_waited { 0 } else { managed.rest.since };
        self.entry().quiet_since.store(since, Ordering::Relaxed);
        let told = used.ok().filter(|_| is_quiet && !self.is_awaited(managed)).map(|(all, _)| all);
        self.entry().rests_at.swap(told.unwrap_or(0), Ordering::SeqCst);
        // The supervisor rings for a new share or a short place only if it finds the word above.
        let [share, short] =
            [&self.entry().share_pages, &self.entry().short_places].map(|word| word.load(Ordering::SeqCst));
        let is_missed = told.is_some() && (share, short) != (managed.rest.share, managed.rest.short_places);
        if is_missed {
            self.entry().rests_at.store(0, Ordering::Release);
        }
        managed.rest.is_on = told.is_some() && !is_missed;
        managed.rest.is_on.then_some(now + REST_NS)
    }

    /// Does anything wait for the next look?
    fn is_awaited(&self, managed: &Managed) -> bool {
        let Managed { session, forks, .. } = managed;
        let machine = session.pager.machine();
        !session.pager.core().is_settled()
            || !session.pager.unpaged().has_looked_since(managed.rest.since)
            || session.is_busy()
            || machine.has_waiting_requests(false)
            || machine.waiting_count() > 0
            || forks.waits_since().is_some()
            || forks.is_under_way()
            || forks.is_waiting_for_child()
            || self.entry().heat.is_wanted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_rests_when_nothing_has_run_for_long_and_not_when_a_little_has() {
        let mut rest = Rest::default();
        let (start, used) = (5 * QUIET_NS, 7_000_000);
        assert!(!rest.is_quiet(used, start), "it has run");
        assert!(!rest.is_quiet(used + NONE_NS, start + QUIET_NS - 1));
        assert!(rest.is_quiet(used + NONE_NS, start + QUIET_NS), "the clocks differ by that");
        // A little each time is not nothing.
        assert!(!rest.is_quiet(used + NONE_NS + 1, start + QUIET_NS));
        assert!(rest.is_quiet(used + NONE_NS + 1, start + 2 * QUIET_NS));
        rest.is_on = true;
        assert!(rest.end(start + 3 * QUIET_NS) && !rest.end(start + 3 * QUIET_NS));
        assert!(!rest.is_quiet(used, start + 4 * QUIET_NS - 1), "it was told of something");
    }
}
