//! The steps by which a page changes its state, and the table of what each may start from and lead to.
//!
//! Over each state lies the *flight*: reading and mapping (towards cached, mapped), writing and unmapping (away). A page in
//! flight changes its state only when the flight ends (I2). The counts of pages that are in some state are kept here, with the
//! steps that change them.

use super::Memory;
use super::lru::DI;
use super::page::{
    ACTIVE, BUSY, COUNTED, DIRTY, DISCARD, EXECUTABLE, FILE, FRAME, FREE_DONE, Flight, JOB_WAIT, MAP_WRITE, MAPPED,
    PAGEOUT, POISON, POISON_DUE, PageState, READAHEAD, RECLAIM, REFERENCED, SHADOW, SLOT, WAITED, WORKINGSET, WRITABLE,
    YOUNG,
};
use crate::types::Access;

/// A step from state to state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    TakeFrame,
    LoseFrame,
    Map,
    Unmap,
    GiveSlot,
    TakeSlot,
    Poison,
    Heal,
    Reset,
}

use PageState::{Cached, Mapped, Poisoned, Swapped, Untouched};

/// What each step may start from, and what it may lead to.
const TRANSITIONS: [(Step, &[PageState], &[PageState]); 9] = [
    (Step::TakeFrame, &[Untouched, Swapped], &[Cached]),
    (Step::LoseFrame, &[Cached, Mapped], &[Untouched, Swapped]),
    (Step::Map, &[Cached], &[Mapped]),
    (Step::Unmap, &[Mapped], &[Cached]),
    (Step::GiveSlot, &[Untouched, Cached, Mapped], &[Swapped, Cached, Mapped]),
    (Step::TakeSlot, &[Swapped, Cached, Mapped, Poisoned], &[Untouched, Cached, Mapped, Poisoned]),
    (Step::Poison, &[Untouched, Swapped], &[Poisoned]),
    (Step::Heal, &[Poisoned], &[Untouched, Swapped]),
    (Step::Reset, &[Untouched, Poisoned], &[Untouched]),
];

fn may(step: Step, before: PageState, after: PageState) -> bool {
    TRANSITIONS.iter().any(|(s, from, to)| *s == step && from.contains(&before) && to.contains(&after))
}

/// What a write that has ended was for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteEnd {
    /// Its frame was to be freed at once.
    pub(crate) frees: bool,
    /// It was to go to the tail of its list.
    pub(crate) rotates: bool,
    /// A job waits for it.
    pub(crate) is_awaited: bool,
}

impl Memory {
    #[inline]
    fn step(&mut self, p: u32, step: Step, set: u32, clear: u32) {
        let before = self.table.word(p);
        let after = before & !clear | set;
        *self.table.word_mut(p) = after;
        let state = |word| super::page::Flags::of(word).state();
        debug_assert!(may(step, state(before), state(after)), "page {p}: {step:?} of a {:?} page", state(before));
    }

    /// Give a page that was just charged its frame. It is on no list yet.
    #[inline]
    fn take_frame(&mut self, p: u32, set: u32, clear: u32) {
        debug_assert!(!self.table.is(p, FRAME));
        self.step(p, Step::TakeFrame, FRAME | set, clear);
        self.counts.cached += 1;
        self.counts.kept_slots += u32::from(self.table.is(p, SLOT));
    }

    /// A charged page of zeroes to be written by the program.
    #[inline]
    pub(crate) fn begin_zero_page(&mut self, p: u32, active: bool) {
        self.take_frame(p, if active { DIRTY | ACTIVE } else { DIRTY }, 0);
    }

    /// A charged frame for what is to be read from the page's slot. Its shadow entry, if there is one.
    #[inline]
    pub(crate) fn begin_swap_in(&mut self, p: u32) -> Option<u64> {
        let shadow = self.table.take_shadow(p);
        self.take_frame(p, 0, ACTIVE | READAHEAD | DIRTY | YOUNG);
        shadow
    }

    /// A charged frame for a page of a file. Its shadow entry, if there is one.
    #[inline]
    pub(crate) fn begin_file_page(&mut self, p: u32, executable: bool) -> Option<u64> {
        let shadow = self.table.take_shadow(p);
        self.take_frame(p, if executable { FILE | EXECUTABLE } else { FILE }, EXECUTABLE);
        shadow
    }

    /// The frame is gone; the page is on no list any more.
    #[inline]
    fn lose_frame(&mut self, p: u32) {
        self.counts.cached -= u32::from(!self.table.is(p, MAPPED));
        self.uncount_dirty(p);
        self.step(p, Step::LoseFrame, 0, FRAME | MAPPED | YOUNG | DIRTY);
        self.counts.kept_slots -= u32::from(self.table.is(p, SLOT));
        self.uncharge(1);
    }

    /// The program can use the page from now on. Its slot, if it has one and was not mapped.
    #[inline]
    pub(crate) fn map(&mut self, p: u32) -> Option<u32> {
        if self.table.is(p, MAPPED) {
            return None;
        }
        self.step(p, Step::Map, MAPPED, 0);
        self.counts.cached -= 1;
        self.table.slot(p)
    }

    /// It cannot any more. Its slot, if it has one and was mapped.
    #[inline]
    pub(crate) fn unmap(&mut self, p: u32) -> Option<u32> {
        if !self.table.is(p, MAPPED) {
            return None;
        }
        self.step(p, Step::Unmap, 0, MAPPED | WRITABLE);
        self.counts.cached += 1;
        self.table.slot(p)
    }

    /// Own a slot, with or without a frame.
    #[inline]
    pub(crate) fn give_slot(&mut self, p: u32, slot: u32) {
        self.table.put_slot(p, slot);
        self.step(p, Step::GiveSlot, SLOT, 0);
        self.counts.owned_slots += 1;
        self.counts.kept_slots += u32::from(self.table.is(p, FRAME));
    }

    /// Own no slot any more.
    #[inline]
    pub(crate) fn take_slot(&mut self, p: u32) -> Option<u32> {
        let slot = self.table.slot(p)?;
        self.step(p, Step::TakeSlot, 0, SLOT);
        self.counts.owned_slots -= 1;
        self.counts.kept_slots -= u32::from(self.table.is(p, FRAME));
        Some(slot)
    }

    /// Another page has taken its slot: what it holds in memory is the only copy.
    #[inline]
    pub(crate) fn robbed_of_slot(&mut self, p: u32) -> Option<u32> {
        let slot = self.take_slot(p);
        self.table.set(p, DIRTY);
        slot
    }

    /// Reclaimed, clean and unmapped: its content is in its slot or file. It may leave a shadow entry.
    #[inline]
    pub(crate) fn evict(&mut self, p: u32, shadow: Option<u64>) {
        debug_assert!(!self.table.is(p, MAPPED | DIRTY) && !self.at(p).in_flight());
        self.lru.remove(&mut self.table, p);
        if !self.at(p).is_file() {
            self.goes_unasked(p);
        }
        self.lose_frame(p);
        self.table.clear(p, REFERENCED | ACTIVE | WORKINGSET | READAHEAD | RECLAIM | FREE_DONE | PAGEOUT);
        if let Some(shadow) = shadow {
            self.table.set_shadow(p, shadow);
        }
    }

    /// Its content could not be read.
    #[inline]
    pub(crate) fn poison(&mut self, p: u32) {
        self.lru.remove(&mut self.table, p);
        self.lose_frame(p);
        self.step(p, Step::Poison, POISON, READAHEAD | ACTIVE | REFERENCED);
    }

    /// The host has still to be told of the lost page.
    #[inline]
    pub(crate) fn owe_poison(&mut self, p: u32) {
        self.table.set(p, POISON_DUE);
    }

    /// True, once, if the host has still to be told.
    #[inline]
    pub(crate) fn take_owed_poison(&mut self, p: u32) -> bool {
        self.table.take(p, POISON_DUE)
    }

    /// A file's page that could not be read may be tried again.
    #[inline]
    pub(crate) fn heal(&mut self, p: u32) {
        if self.table.is(p, POISON) {
            self.step(p, Step::Heal, 0, POISON | POISON_DUE);
        }
    }

    /// Off its list and without its frame and slot (which the caller took): untouched.
    #[inline]
    pub(crate) fn forget_frame(&mut self, p: u32) {
        self.lru.remove(&mut self.table, p);
    }

    /// The frame goes, and all that is known of the page but that faults wait and that it is locked.
    #[inline]
    pub(crate) fn lose_and_reset(&mut self, p: u32) {
        self.lose_frame(p);
        self.reset_word(p);
    }

    /// Without frame and slot: all that is known of the page goes, but that faults wait and that it is locked.
    #[inline]
    pub(crate) fn reset(&mut self, p: u32) {
        debug_assert!(!self.table.is(p, FRAME | SLOT));
        self.table.clear(p, SHADOW);
        self.reset_word(p);
    }

    #[inline]
    fn reset_word(&mut self, p: u32) {
        let keep = self.table.reset_mask(p);
        self.step(p, Step::Reset, 0, !keep);
    }

    // Flights.

    #[inline]
    fn begin_flight(&mut self, p: u32, flight: Flight) {
        self.table.set_flight(p, flight);
        self.counts.flights += 1;
    }

    #[inline]
    fn end_flight(&mut self, p: u32) {
        self.table.set_flight(p, Flight::None);
        self.counts.flights -= 1;
    }

    /// Its slot is being read.
    #[inline]
    pub(crate) fn begin_read(&mut self, p: u32) {
        self.begin_flight(p, Flight::Reading);
    }

    /// It is being read from its file.
    #[inline]
    pub(crate) fn begin_file_read(&mut self, p: u32) {
        self.begin_flight(p, Flight::Reading);
        self.counts.file_reads += 1;
    }

    /// The read has ended. True if a job waits for it.
    #[inline]
    pub(crate) fn end_read(&mut self, p: u32) -> bool {
        self.end_flight(p);
        self.counts.file_reads -= u32::from(self.table.is(p, FILE));
        self.table.take(p, JOB_WAIT)
    }

    /// It is being mapped, for this access.
    #[inline]
    pub(crate) fn begin_map(&mut self, p: u32, access: Access) {
        self.begin_flight(p, Flight::Mapping);
        self.table.clear(p, MAP_WRITE);
        if access == Access::Write {
            self.table.set(p, MAP_WRITE);
        }
    }

    #[inline]
    pub(crate) fn end_map(&mut self, p: u32) {
        self.end_flight(p);
    }

    /// It is being unmapped, to see whether it is used.
    #[inline]
    pub(crate) fn begin_sample(&mut self, p: u32) {
        self.begin_flight(p, Flight::Unmapping);
    }

    /// It is being unmapped, as the first step of its page-out.
    #[inline]
    pub(crate) fn begin_pageout(&mut self, p: u32) {
        self.begin_flight(p, Flight::Unmapping);
        self.table.set(p, PAGEOUT);
        self.counts.pending += 1;
        self.counts.sure += 1;
    }

    /// The unmap has ended. True if it was the first step of a page-out.
    #[inline]
    pub(crate) fn end_unmap(&mut self, p: u32) -> bool {
        self.end_flight(p);
        let pageout = self.table.take(p, PAGEOUT);
        self.counts.pending -= u32::from(pageout);
        self.counts.sure -= u32::from(pageout);
        pageout
    }

    /// Its frame is being written to its slot. `frees`: it is freed when that is done.
    #[inline]
    pub(crate) fn begin_write(&mut self, p: u32, frees: bool) {
        self.table.clear(p, DIRTY | PAGEOUT);
        self.table.set(p, if frees { RECLAIM | FREE_DONE } else { RECLAIM });
        self.counts.sure += u32::from(frees);
        self.begin_flight(p, Flight::Writing);
        self.counts.pending += 1;
    }

    /// Its frame is being written to its file.
    #[inline]
    pub(crate) fn begin_writeback(&mut self, p: u32) {
        self.uncount_dirty(p);
        self.table.clear(p, DIRTY);
        self.begin_flight(p, Flight::Writing);
        self.counts.pending += 1;
        self.writeback.writing += 1;
    }

    /// The write has ended.
    #[inline]
    pub(crate) fn end_write(&mut self, p: u32) -> WriteEnd {
        self.end_flight(p);
        self.counts.pending -= 1;
        self.writeback.writing -= u32::from(self.table.is(p, FILE));
        let frees = self.table.take(p, FREE_DONE);
        self.counts.sure -= u32::from(frees);
        WriteEnd { frees, rotates: self.table.take(p, RECLAIM), is_awaited: self.table.take(p, JOB_WAIT) }
    }

    // What is discarded.

    /// Its content is not needed any more; the end of the flight decides what goes.
    #[inline]
    pub(crate) fn discard_in_flight(&mut self, p: u32) {
        if self.table.is(p, FILE) {
            self.table.clear(p, EXECUTABLE);
        }
        self.table.set(p, DISCARD);
    }

    /// Its content is not needed any more; its frame is dropped when there is room for the order.
    #[inline]
    pub(crate) fn queue_discard(&mut self, p: u32) {
        self.lru.remove(&mut self.table, p);
        self.table.set(p, DISCARD);
        self.lru.push_tail(&mut self.table, DI, p);
    }

    /// The program has a page of its own there after all.
    #[inline]
    pub(crate) fn undo_discard(&mut self, p: u32) {
        self.table.clear(p, DISCARD);
        self.table.set(p, WRITABLE);
    }

    /// A blind host has mapped it. It may be written from now on, and was asked for unless it was read ahead.
    #[inline]
    pub(crate) fn note_mapped(&mut self, p: u32) {
        self.table.set(p, DIRTY);
        if self.table.take(p, MAP_WRITE) {
            self.table.set(p, WRITABLE);
        }
        if !self.table.is(p, READAHEAD) || self.table.is(p, WAITED) {
            self.table.set(p, YOUNG);
        }
    }

    /// It could not be moved: out of the way for a while, mapped.
    #[inline]
    pub(crate) fn set_aside(&mut self, p: u32) {
        self.table.set(p, BUSY | YOUNG);
        self.lru.putback(&mut self.table, p);
    }

    // Dirty pages of files.

    /// A file's page is dirty and was not counted: it is now.
    #[inline]
    pub(crate) fn count_dirty(&mut self, p: u32) {
        if !self.table.is(p, COUNTED) {
            self.table.set(p, COUNTED);
            self.writeback.dirty += 1;
        }
    }

    #[inline]
    fn uncount_dirty(&mut self, p: u32) {
        if self.table.is(p, FILE) && self.table.take(p, COUNTED) {
            self.writeback.dirty -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_is_entered_and_left_by_some_step() {
        for state in [Untouched, Mapped, Cached, Swapped, Poisoned] {
            assert!(TRANSITIONS.iter().any(|(_, from, to)| from.contains(&state) && !to.contains(&state)), "{state:?}");
            assert!(TRANSITIONS.iter().any(|(_, from, to)| to.contains(&state) && !from.contains(&state)), "{state:?}");
        }
        assert!(!may(Step::Map, Swapped, Mapped), "a page is read before it is mapped");
        assert!(!may(Step::Poison, Mapped, Poisoned), "what the program holds is not lost");
    }
}
