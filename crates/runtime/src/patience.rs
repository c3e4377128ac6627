//! How long the pager looks for what comes next without sleeping.
//!
//! To sleep and be woken costs some 5 us of CPU time, and 10 to 50 us more until a CPU that has gone idle is awake (on a virtual
//! machine); to look costs as much CPU time as it takes, and that of a thread of the program if no CPU is idle.
//!
//! - The end of a read that somebody waits for is looked for while a CPU is idle. Whether one is, is seen by giving it away between
//!   two looks: if another thread ran there, the next reads are waited for asleep, twice as many each time.
//! - The next fault is looked for only where it comes within about the cost of a sleep. Whether it does is learned from what
//!   came: of the time between an answer and the next fault, which is long where threads compute, and long as well where the
//!   pager itself keeps the only CPU from the thread that it has answered.
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

/// The end of a read is looked for so long after the fault.
const READ_NS: Nanos = 100_000;
/// Faults whose reads are waited for asleep once somebody had use for the CPU: doubled each time, less by a sixteenth with each
/// fault whose read may be looked for.
const ASLEEP: u32 = 8;
const ASLEEP_MAX: u32 = 1024;

/// What the last faults have taught.
#[derive(Debug)]
pub(crate) struct Patience {
    /// Faults in a row that came, or would have come, in time.
    in_time: u32,
    /// As many are asked for before looking is tried.
    trial_after: u32,
    /// The answer that a fault has followed already: its gap is judged once.
    judged: Nanos,
    /// Faults whose reads are waited for asleep.
    asleep: u32,
    /// As many when the CPU is used by somebody the next time.
    asleep_next: u32,
    /// The fault whose read was looked for last, and how often other threads had run in our place then.
    look: (Nanos, u64),
}

impl Patience {
    pub(crate) const fn new() -> Self {
        Self { in_time: 0, trial_after: TRIAL_AFTER, judged: 0, asleep: 0, asleep_next: ASLEEP, look: (0, 0) }
    }

    const fn looks(&self) -> bool {
        self.in_time >= self.trial_after
    }

    /// A fault came at `now`; the last one before it was answered at `answered`.
    pub(crate) fn on_fault(&mut self, answered: Nanos, now: Nanos) {
        if self.asleep == 0 {
            self.asleep_next = (self.asleep_next - self.asleep_next / 16).max(ASLEEP);
        }
        self.asleep = self.asleep.saturating_sub(1);
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

    /// The CPU was given away after a look for the read of the fault that came at `since`; other threads have run in our place so
    /// often by now.
    pub(crate) fn note_look(&mut self, since: Nanos, displaced: u64) {
        let is_used = self.look.0 == since && self.look.1 != displaced;
        self.look = (since, displaced);
        if is_used && self.asleep == 0 {
            self.asleep = self.asleep_next;
            self.asleep_next = (self.asleep_next * 2).min(ASLEEP_MAX);
        }
    }

    /// Until then it is worth looking without sleeping: for the next fault, and for the end of a read if somebody waits since `waits`.
    pub(crate) fn until(&self, answered: Nanos, waits: Option<Nanos>) -> Nanos {
        let read = waits.filter(|_| self.asleep == 0).map_or(0, |since| since + READ_NS);
        let fault = if self.looks() { answered + LOOK_NS } else { 0 };
        read.max(fault)
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
            let looks = patience.until(answered, None) > answered;
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

    #[test]
    fn a_read_is_looked_for_while_a_cpu_is_idle() {
        let mut patience = Patience::new();
        patience.note_look(5, 7);
        patience.note_look(5, 7);
        // Between two faults the CPU was others': that says nothing.
        patience.note_look(6, 8);
        assert_eq!(patience.until(0, Some(6)), 6 + READ_NS);
        patience.note_look(6, 9);
        assert_eq!(patience.until(0, Some(6)), 0);
    }

    #[test]
    fn reads_are_waited_for_asleep_the_longer_the_more_often_somebody_has_use_for_the_cpu() {
        let mut patience = Patience::new();
        let mut looked = 0;
        for turn in 1..10_000 {
            if patience.until(0, Some(turn)) > 0 {
                looked += 1;
                patience.note_look(turn, 2 * turn);
                patience.note_look(turn, 2 * turn + 1);
            }
            patience.on_fault(turn, turn + LOOK_NS * 4);
        }
        assert!((8..32).contains(&looked), "{looked} of 10,000");
    }
}
