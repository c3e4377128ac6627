//! What a process that works keeps and does not use, found by taking it away.
//!
//! It may keep much that it uses seldom, or never again, while others read pages back all the time. It gives up a little at a time, and more
//! if it reads nothing back. What it does read back tells in what time it exchanges what it has given up; others exchange what they have in
//! less. As long as theirs is less than half of its, a page is worth more to them, and it goes on giving. If not, it has its part of what there
//! is, and is asked again the later.

use pagetide_core::types::Nanos;

/// The time from one step to the next, at least and at most.
const STEP_NS_MIN: Nanos = 100_000_000;
const STEP_NS_MAX: Nanos = 3_200_000_000;
/// One part in so many of what it keeps is given up in a step: in the first one, and in the largest.
const PARTS: u64 = 128;
const PARTS_MIN: u64 = 16;
/// First touches in the time of a step that make it one that grows.
const GROWTH_PAGES: u64 = 32;
/// What it gives up comes back so many times as slowly as what others have given up, at least.
const SLOWER: u64 = 2;
/// And more is asked of it the sooner where that is so many times as slowly.
const HASTE: u64 = 4;
/// In so long at least. What it reads back comes at once, as a rule, and the others have the rest for longer than a step.
const HORIZON_NS: Nanos = 500_000_000;

#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    /// It keeps no more than this; None: it is not asked.
    keeps: Option<u64>,
    next: Nanos,
    pause: Nanos,
    parts: u64,
    /// What it has given up in this step, or at least was asked for.
    given: u64,
    /// Major faults when the step began, and at the last look.
    began_with: u64,
    major_faults: u64,
    first_touches: u64,
}

impl Default for Probe {
    fn default() -> Self {
        Self {
            keeps: None,
            next: 0,
            pause: STEP_NS_MIN,
            parts: PARTS,
            given: 0,
            began_with: 0,
            major_faults: 0,
            first_touches: 0,
        }
    }
}

impl Probe {
    pub(super) const fn keeps(&self) -> Option<u64> {
        self.keeps
    }

    /// Others exchange what they keep in the time `others`, if they are short of memory. Faults were counted by now, major ones and first
    /// touches; it keeps `resident`, and never less than `least`.
    pub(super) fn look(
        &mut self,
        now: Nanos,
        others: Option<Nanos>,
        major_faults: u64,
        first_touches: u64,
        resident: u64,
        least: u64,
    ) {
        let has_read = major_faults != std::mem::replace(&mut self.major_faults, major_faults);
        let is_too_much = self.keeps.is_some() && !others.is_some_and(|others| self.is_worth_it(others));
        if has_read && is_too_much {
            self.keeps = None;
            self.pause = (self.pause * 2).min(STEP_NS_MAX);
        }
        if has_read && (is_too_much || others.is_none()) {
            self.parts = PARTS;
            self.next = now + self.pause;
        }
        if self.next == 0 {
            // Of a new one nothing is known; and what a forked child gives up at once its maker would have to copy.
            self.next = now + self.pause;
        }
        if others.is_none() || now < self.next {
            self.keeps = self.keeps.filter(|_| others.is_some());
            return;
        }
        self.next = now + self.pause;
        let grows = first_touches > std::mem::replace(&mut self.first_touches, first_touches) + GROWTH_PAGES;
        if self.keeps.is_some() && others.is_some_and(|others| self.is_worth_it(others.saturating_mul(HASTE))) {
            self.pause = (self.pause / 2).max(STEP_NS_MIN);
            self.parts = (self.parts / 2).max(PARTS_MIN);
        }
        let keeps = (resident - resident / self.parts).max(least);
        self.given = resident.saturating_sub(keeps);
        self.began_with = major_faults;
        self.keeps = (!grows).then_some(keeps);
    }

    /// What it has read back in this step is little for what it has given up, beside what others read.
    fn is_worth_it(&self, others: Nanos) -> bool {
        let reads = self.major_faults.saturating_sub(self.began_with);
        self.pause.max(HORIZON_NS).saturating_mul(self.given) > others.saturating_mul(SLOWER).saturating_mul(reads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    /// Others exchange what they keep in ten seconds.
    const OTHERS: Option<Nanos> = Some(10_000_000_000);

    fn steps() -> impl FnMut(&mut Probe, Option<Nanos>, u64, u64, u64) -> Option<u64> {
        let mut now = 0;
        move |probe, others, major_faults, first_touches, resident| {
            now += STEP_NS_MIN;
            probe.look(now, others, major_faults, first_touches, resident, 1_000);
            probe.keeps()
        }
    }

    #[test]
    fn what_a_process_that_works_does_not_use_is_found_and_what_it_uses_is_left() {
        let (mut probe, mut step) = (Probe::default(), steps());
        let mut resident = 12_800;
        assert_eq!(step(&mut probe, OTHERS, 0, 0, resident), None, "it is new");
        let mut left = Vec::new();
        while resident > 9_000 {
            resident = step(&mut probe, OTHERS, 0, 0, resident).expect("it is asked");
            left.push(resident);
        }
        assert_eq!(left[..4], [12_700, 12_502, 12_112, 11_355], "more each time: it reads nothing");
        assert_eq!(step(&mut probe, OTHERS, 40, 0, resident), None, "it has what it read");
        let asked = (0..8).filter(|_| step(&mut probe, OTHERS, 40, 0, resident).is_some()).count();
        assert!((1..8).contains(&asked), "and is left alone for a while: {asked}");
        assert_eq!(step(&mut probe, OTHERS, 40, 500, resident), None, "it grows");
        (0..20).for_each(|reads| assert_eq!(step(&mut probe, None, 41 + reads, 500, resident), None, "it reads"));
        let least = (0..200).filter_map(|_| step(&mut probe, OTHERS, 60, 500, 1_010)).min();
        assert_eq!(least, Some(1_000));
        probe.look(Nanos::MAX, None, 60, 500, resident, 1_000);
        assert_eq!(probe.keeps(), None, "nobody is short");
    }

    #[test]
    fn a_page_that_comes_back_now_and_then_is_no_reason_to_keep_all_from_those_that_read_much_more() {
        // Others exchange all they have in half a second: a hundred pages spare them a hundred reads in that time.
        let others = Some(500_000_000);
        let (mut probe, mut step) = (Probe::default(), steps());
        let mut resident = 12_800;
        for read in 0..14 {
            resident = step(&mut probe, others, read, 0, resident).unwrap_or(resident);
        }
        assert!(resident < 9_000, "{resident}");
        let kept = step(&mut probe, others, 13 + 400, 0, resident);
        assert_eq!(kept, None, "it reads more than half of what they would");
        assert_eq!(step(&mut probe, others, 414, 0, resident), None);
        assert!(step(&mut probe, others, 415, 0, resident).is_some(), "it is asked again all the same");
    }
}
