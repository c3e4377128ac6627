//! How long the pager looks for what comes next without sleeping.
//!
//! To sleep and be woken costs some 5 us of CPU time, and 10 to 50 us more until a CPU that has gone idle is awake (on a virtual
//! machine); to look costs as much CPU time as it takes, and that of a thread of the program if no CPU is free.
//!
//! - It is looked while a CPU is free, which the kernel tells: no more threads run or wait for a CPU than there are CPUs.
//! - The end of a read that somebody waits for is looked for, up to a time in which a device that is worth it answers.
//! - The next fault is looked for where one comes in time in a quarter of all cases at least: it is seen sooner then by more than a
//!   look takes. It comes late where threads compute. Where it is not looked for, it is tried now and then.
//!
//! Not a clock: the time comes by argument.

use pagetide_core::types::Nanos;

/// The next fault is looked for so long after an answer.
const LOOK_NS: Nanos = 25_000;
/// Of so many looks the last one counts for one in the share that a fault ended.
const AVERAGED: u32 = 16;
/// All of them, and so few that it does not pay.
const ALL: u32 = 1 << 12;
const FEW: u32 = ALL / 4;
/// Where it does not pay, one of so many answers is followed by a look.
const TRIAL: u32 = 32;

/// The end of a read is looked for so long after the fault.
const READ_NS: Nanos = 100_000;
/// Whether a CPU is free is asked after so long again: to ask takes 2 us.
const FREE_NS: Nanos = 500_000;
/// None is, if it was said so often in a row: for a moment there is always somebody.
const FULL: u32 = 2;

/// What the last faults have taught.
#[derive(Debug)]
pub(crate) struct Patience {
    /// The share of looks for a fault that one has ended, in parts of `ALL`.
    ended: u32,
    /// Answers before the next trial.
    trial: u32,
    /// The answer that it was looked after last, and the one that a fault has followed already: each is judged once.
    looked: Nanos,
    judged: Nanos,
    /// No CPU was free, so often in a row; and when it was asked last.
    full: u32,
    asked: Nanos,
}

impl Patience {
    pub(crate) const fn new() -> Self {
        Self { ended: ALL, trial: 0, looked: 0, judged: 0, full: FULL, asked: 0 }
    }

    /// A fault came at `now`; the last one before it was answered at `answered`.
    pub(crate) fn on_fault(&mut self, answered: Nanos, now: Nanos) {
        if answered == self.judged {
            return;
        }
        self.judged = answered;
        self.trial = self.trial.saturating_sub(1);
        if self.looked == answered {
            let came = if now <= answered + LOOK_NS { ALL } else { 0 };
            self.ended = (self.ended * (AVERAGED - 1) + came) / AVERAGED;
            if self.ended < FEW {
                self.trial = TRIAL;
            }
        }
    }

    /// Is it worth looking at `now`, for the next fault after the answer at `answered`, and for the end of a read if somebody waits since
    /// `waits`? `is_free`: does every thread that can run have a CPU?
    pub(crate) fn is_worth(
        &mut self,
        now: Nanos,
        answered: Nanos,
        waits: Option<Nanos>,
        is_free: impl FnOnce() -> bool,
    ) -> bool {
        let for_read = waits.is_some_and(|since| now < since + READ_NS);
        let for_fault = waits.is_none() && now < answered + LOOK_NS && (self.ended >= FEW || self.trial == 0);
        if !for_read && !for_fault {
            return false;
        }
        if now >= self.asked + FREE_NS {
            self.full = if is_free() { 0 } else { (self.full + 1).min(FULL) };
            self.asked = now;
        }
        let looks = self.saw_free_cpu();
        if looks && for_fault {
            self.looked = answered;
        }
        looks
    }

    /// A CPU was free when that was asked last.
    pub(crate) const fn saw_free_cpu(&self) -> bool {
        self.full < FULL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time between two answers of the tests; far more than anyone looks.
    const TURN_NS: Nanos = 1_000_000;

    /// Answers, each followed by a fault after `gap`; how often it was looked for.
    fn play(patience: &mut Patience, turns: u64, gap: Nanos) -> u64 {
        let mut looked = 0;
        for _ in 0..turns {
            let answered = patience.judged + TURN_NS;
            looked += u64::from(patience.is_worth(answered, answered, None, || true));
            patience.on_fault(answered, answered + gap);
        }
        looked
    }

    #[test]
    fn faults_that_follow_at_once_are_looked_for() {
        let mut patience = Patience::new();
        patience.full = 0;
        assert_eq!(play(&mut patience, 100, 10_000), 100);
    }

    #[test]
    fn threads_that_compute_between_faults_are_left_alone() {
        let mut patience = Patience::new();
        let looked = play(&mut patience, 3_200, 200_000);
        assert!((100..150).contains(&looked), "{looked} of 3,200");
    }

    #[test]
    fn looking_is_found_worth_it_again() {
        let mut patience = Patience::new();
        play(&mut patience, 1_000, 200_000);
        assert!(play(&mut patience, 1_000, 10_000) >= 800);
    }

    #[test]
    fn faults_read_together_are_judged_once() {
        let mut patience = Patience::new();
        patience.full = 0;
        assert!(patience.is_worth(1, 1, None, || true));
        for _ in 0..100 {
            patience.on_fault(1, 1 + LOOK_NS + 1);
        }
        assert_eq!(patience.ended, ALL / AVERAGED * (AVERAGED - 1));
    }

    #[test]
    fn a_read_is_looked_for_while_a_cpu_is_free() {
        let mut patience = Patience::new();
        let (first, second) = (TURN_NS, 2 * TURN_NS);
        assert!(!patience.is_worth(first + READ_NS, 0, Some(first), || unreachable!("it takes long")));
        assert!(patience.is_worth(first, 0, Some(first), || true));
        assert!(patience.is_worth(first + 1, 0, Some(first), || unreachable!("it was asked just now")));
        assert!(patience.is_worth(second, 0, Some(second), || false), "for a moment");
        assert!(!patience.is_worth(second + FREE_NS, 0, Some(second + FREE_NS), || false));
    }
}
