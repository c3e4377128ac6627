//! How long the pager looks for the next fault without sleeping.
//!
//! To sleep and be woken costs some 5 us of CPU time, and 10 to 25 us more until a CPU that has gone idle is awake (on a virtual
//! machine); to look costs as much CPU time as it takes, and that of a thread of the program if no CPU is idle. So looking pays
//! only where the next fault comes within about the cost of a sleep. Whether it does is learned from what came: of the time between
//! an answer and the next fault, which is long where threads compute, and long as well where the pager itself keeps
//! the only CPU from the thread that it has answered. A read is always waited for asleep: devices take longer than a wake.
//!
//! Not a clock: the time comes by argument.

use pagetide_core::types::Nanos;

/// Looked for so long after an answer, where it pays.
const LOOK_NS: Nanos = 15_000;
/// A sleeping pager that hears of a fault within this time would have seen it while it looked.
const HEARD_NS: Nanos = LOOK_NS + 20_000;
/// Faults in a row that came in time, before looking is tried.
const TRIAL_AFTER: u32 = 4;
/// The same, after looks that were in vain: doubled by each.
const TRIAL_AFTER_MAX: u32 = 512;

/// What the last faults have taught.
#[derive(Debug)]
pub(crate) struct Patience {
    /// Faults in a row that came, or would have come, in time.
    in_time: u32,
    /// As many are asked for before looking is tried.
    trial_after: u32,
    /// The answer that a fault has followed already: its gap is judged once.
    judged: Nanos,
}

impl Patience {
    pub(crate) const fn new() -> Self {
        Self { in_time: 0, trial_after: TRIAL_AFTER, judged: 0 }
    }

    const fn looks(&self) -> bool {
        self.in_time >= self.trial_after
    }

    /// A fault came at `now`; the last one before it was answered at `answered`.
    pub(crate) fn on_fault(&mut self, answered: Nanos, now: Nanos) {
        if answered == self.judged {
            return;
        }
        self.judged = answered;
        let gap = now.saturating_sub(answered);
        if self.looks() {
            if gap <= LOOK_NS {
                self.trial_after = (self.trial_after - 1).max(TRIAL_AFTER);
            } else {
                self.trial_after = (self.trial_after * 2).min(TRIAL_AFTER_MAX);
                self.in_time = 0;
            }
        } else if gap <= HEARD_NS {
            self.in_time += 1;
        } else {
            self.in_time = 0;
        }
    }

    /// Until then it is worth looking for the next fault without sleeping.
    pub(crate) const fn until(&self, answered: Nanos) -> Nanos {
        if self.looks() { answered + LOOK_NS } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time between two answers of the tests; far more than anyone looks.
    const TURN_NS: Nanos = 1_000_000;

    /// Answers, each followed by a fault after `gap` if the pager sleeps, or `gap_looking` if it looks; how often it looked.
    fn play(patience: &mut Patience, turns: u64, gap: Nanos, gap_looking: Nanos) -> u64 {
        let mut looked = 0;
        for _ in 0..turns {
            let answered = patience.judged + TURN_NS;
            let looks = patience.until(answered) > answered;
            looked += u64::from(looks);
            patience.on_fault(answered, answered + if looks { gap_looking } else { gap });
        }
        looked
    }

    #[test]
    fn faults_that_follow_at_once_are_looked_for() {
        let mut patience = Patience::new();
        assert_eq!(play(&mut patience, 100, 25_000, 5_000), 100 - u64::from(TRIAL_AFTER));
    }

    #[test]
    fn threads_that_compute_between_faults_are_left_alone() {
        let mut patience = Patience::new();
        assert_eq!(play(&mut patience, 1_000, 200_000, 200_000), 0);
    }

    #[test]
    fn a_look_that_keeps_the_answered_thread_from_its_cpu_is_tried_ever_more_rarely() {
        let mut patience = Patience::new();
        let looked = play(&mut patience, 10_000, 10_000, LOOK_NS + 5_000);
        assert!((10..40).contains(&looked), "{looked} of 10,000");
    }

    #[test]
    fn looking_is_found_worth_it_again_when_the_cpu_is_free_again() {
        let mut patience = Patience::new();
        play(&mut patience, 10_000, 10_000, LOOK_NS + 5_000);
        assert!(play(&mut patience, 1_000, 10_000, 5_000) >= 400);
    }

    #[test]
    fn faults_read_together_are_judged_once() {
        let mut patience = Patience::new();
        for _ in 0..100 {
            patience.on_fault(1, 10);
        }
        assert_eq!(patience.in_time, 1);
    }
}
