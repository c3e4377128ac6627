//! What a move of one page costs at present, and whether a copy is cheaper.
//!
//! A move takes 2 us and 0.1 us a page, and then 9 to 16 us for each other CPU that runs the program at that moment, whose address
//! translations the kernel flushes by an interrupt: none while the program waits. A copy in takes 1.2 us a page, and later some 3 us
//! to give back the memory of the frame that it leaves. Which of the two it is changes with what the program does, so it is measured.

use pagetide_core::types::Nanos;

/// A move that takes longer is dearer than a copy.
const DEAR_NS: Nanos = 8_000;
/// What took longer than this was kept from its CPU.
const NS_MAX: Nanos = 2 * DEAR_NS;
/// The last one counts for one in so many in the average.
const AVERAGED: Nanos = 8;

/// The moving average.
#[derive(Debug, Default)]
pub(super) struct MoveCost {
    ns: Nanos,
}

impl MoveCost {
    /// A move of one page took so long.
    pub(super) fn note(&mut self, took: Nanos) {
        self.ns = (self.ns * (AVERAGED - 1) + took.min(NS_MAX)) / AVERAGED;
    }

    /// True if a copy is cheaper.
    pub(super) const fn is_dear(&self) -> bool {
        self.ns > DEAR_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_are_dear_while_they_interrupt_and_cheap_again_when_they_do_not() {
        let mut cost = MoveCost::default();
        (0..20).for_each(|_| cost.note(12_000));
        assert!(cost.is_dear());
        (0..20).for_each(|_| cost.note(2_000));
        assert!(!cost.is_dear());
    }

    #[test]
    fn a_move_that_lost_its_cpu_says_nothing_of_moves() {
        let mut cost = MoveCost::default();
        (0..20).for_each(|_| cost.note(2_000));
        cost.note(4_000_000);
        assert!(!cost.is_dear());
    }
}
