//! Answers of the host: reads and writes that ended, maps and unmaps of a host that answers them.
//!
//! An answer may cover a part of its effect. Pages that are not in the flight the answer speaks of are passed over and
//! counted (I7).

use super::Tasks;
use crate::effect::{Effect, Effects};
use crate::event::{MoveAnswer, Outcome};
use crate::memory::page::Flight;
use crate::paging::STEP_ROOM;
use crate::reclaim::Pageout;
use crate::types::{IoId, PageIdx, PageRange};
use crate::vmstat::Counter;

impl Tasks {
    pub(crate) fn on_io_done(&mut self, io: IoId, range: PageRange, outcome: Outcome, out: &mut Effects) {
        let Some(entry) = self.paging.space.io.get_mut(io) else {
            self.count(Counter::pt_late_event, 1);
            return;
        };
        let (whole, write) = (entry.range, entry.write);
        let flight = if write { Flight::Writing } else { Flight::Reading };
        let mut answered = 0;
        for page in range.pages() {
            let p = page.0;
            if !whole.contains(page) || self.paging.space.mem.at(p).flight() != flight {
                self.count(Counter::pt_late_event, 1);
                continue;
            }
            answered += 1;
            if write {
                self.write_ended(p, outcome, out);
            } else {
                self.read_ended(p, outcome, out);
            }
            self.release_waiters(p);
        }
        if answered > 0 {
            self.paging.space.io.answer(io, answered);
        }
        self.answered();
        self.paging.reclaim.io_done();
    }

    /// Faults that wait for the page may look again.
    fn release_waiters(&mut self, p: u32) {
        if self.paging.space.mem.take_waited(p) {
            self.waiters.release(p);
        }
    }

    /// Faults that wait for the page are to fault again, if they still miss it: what keeps it from being mapped may never go (a guard),
    /// or only when the host has heard of it, and to order the same again here would not end.
    fn send_back(&mut self, p: u32, out: &mut Effects) {
        if !self.paging.space.mem.take_waited(p) {
            return;
        }
        while out.room() > STEP_ROOM
            && let Some(waiter) = self.waiters.take(p)
        {
            out.wake(p, waiter.task);
        }
        self.waiters.release(p);
    }

    fn read_ended(&mut self, p: u32, outcome: Outcome, out: &mut Effects) {
        let space = &mut self.paging.space;
        if space.mem.end_read(p) {
            self.jobs.page_done(p);
        }
        let page = space.mem.at(p);
        if page.is_discarded() {
            space.discard_when_room(p, out);
            return;
        }
        match outcome {
            Outcome::Done | Outcome::Unchanged | Outcome::Zero if page.is_file() => {}
            Outcome::Done | Outcome::Unchanged | Outcome::Zero => {
                let slot = space.mem.slot(p).expect("I4: a page that was read has a slot");
                if space.slots.spec_of(slot).synchronous {
                    // Such devices are read past the swap cache: the slot is not kept.
                    space.free_swap(p);
                }
                self.paging.read_arrived(p, out);
            }
            Outcome::Failed | Outcome::NoSpace => {
                self.count(Counter::pt_poisoned, 1);
                self.paging.space.mem.poison(p);
                self.emit_poison(p, out);
            }
        }
    }

    fn emit_poison(&mut self, p: u32, out: &mut Effects) {
        for old in out.recent_mut() {
            if let Effect::Poison { range } = old
                && range.end().0 == p
            {
                range.len += 1;
                return;
            }
        }
        if out.room() > 0 {
            out.push(Effect::Poison { range: PageRange::one(PageIdx(p)) });
        } else {
            self.paging.space.mem.owe_poison(p);
        }
    }

    fn write_ended(&mut self, p: u32, outcome: Outcome, out: &mut Effects) {
        let mem = &mut self.paging.space.mem;
        let ended = mem.end_write(p);
        if ended.is_awaited {
            self.jobs.page_done(p);
        }
        if self.paging.host.answers_needless_writes && outcome == Outcome::Done {
            mem.count(Counter::pswpout, 1);
        }
        let page = mem.at(p);
        if page.is_discarded() {
            self.paging.space.discard_when_room(p, out);
            return;
        }
        match outcome {
            Outcome::Done | Outcome::Unchanged | Outcome::Zero if page.is_file() || outcome != Outcome::Zero => {
                if outcome == Outcome::Unchanged {
                    mem.count(Counter::pt_write_unchanged, 1);
                }
                if ended.frees && !page.is_waited() && out.room() > 1 && !mem.is_held {
                    self.paging.reclaim.steal(&mut self.paging.space, p, out);
                } else if ended.rotates && !ended.is_awaited && !page.is_waited() {
                    let rotated = mem.rotate(p);
                    mem.count(Counter::pgrotated, rotated);
                }
            }
            Outcome::Done | Outcome::Unchanged | Outcome::Zero => self.found_zero(p, out),
            Outcome::Failed | Outcome::NoSpace => {
                mem.count(Counter::pt_write_failed, 1);
                if page.is_file() {
                    self.files.dirty(mem, p);
                } else {
                    self.swap_write_failed(p, outcome);
                }
            }
        }
    }

    /// The page stays in memory, and is the only copy.
    fn swap_write_failed(&mut self, p: u32, outcome: Outcome) {
        let space = &mut self.paging.space;
        if outcome == Outcome::NoSpace {
            let slot = space.mem.slot(p).expect("I4: a written page has a slot");
            let (device, _) = space.slots.locate(slot);
            space.slots.close(device);
        }
        space.free_swap(p);
        space.mem.activate(p);
    }

    /// The page is all zero: it needs no slot, and no frame until it is touched.
    fn found_zero(&mut self, p: u32, out: &mut Effects) {
        self.count(Counter::swpout_zero, 1);
        let space = &mut self.paging.space;
        if out.room() < 2 {
            space.free_swap(p);
            return;
        }
        space.mem.count(Counter::pgsteal_anon, 1);
        space.forget(p);
        out.push_merged(Effect::Drop { range: PageRange::one(PageIdx(p)) });
    }

    /// An answer came: may jobs that wait for memory look again? A freed page lets them at once. A look goes over all lists, so
    /// of many answers it is worth it once in a while, and after the last.
    fn answered(&mut self) {
        self.answers = self.answers.wrapping_add(1);
        let mem = &mut self.paging.space.mem;
        if mem.counts().flights == 0 || self.answers.is_multiple_of(self.paging.host.answers_per_look) {
            mem.budget.freed();
        }
    }

    pub(crate) fn on_mapped(&mut self, range: PageRange, answer: MoveAnswer, out: &mut Effects) {
        for page in range.pages() {
            let p = page.0;
            let mem = &mut self.paging.space.mem;
            if p >= mem.len() || mem.at(p).flight() != Flight::Mapping {
                mem.count(Counter::pt_late_event, 1);
                continue;
            }
            mem.end_map(p);
            let page = mem.at(p);
            match answer {
                MoveAnswer::Done | MoveAnswer::Clean | MoveAnswer::Present => {
                    self.mapped(p, answer == MoveAnswer::Present);
                }
                MoveAnswer::Gone => {
                    self.paging.space.forget(p);
                    self.send_back(p, out);
                }
                // Still under way to write access, or not mapped at all: in both cases the discard decides.
                MoveAnswer::Busy if page.is_discarded() => {
                    if page.is_mapped() {
                        self.paging.space.forget(p);
                    } else {
                        self.paging.space.discard_when_room(p, out);
                    }
                }
                MoveAnswer::Busy => {}
            }
            self.release_waiters(p);
        }
        self.answered();
    }

    fn mapped(&mut self, p: u32, present: bool) {
        let space = &mut self.paging.space;
        if space.mem.at(p).is_discarded() && !present {
            // It was mapped before the discard, which took the program's page table entry with it.
            space.forget(p);
            return;
        }
        space.map(p);
        // What is mapped may be written, unseen.
        space.mem.note_mapped(p);
        self.paging.reclaim.end_watch(&mut space.mem, p);
        self.paging.credit(p);
        if present {
            // What the program has there is the truth, and no slot holds it.
            self.paging.space.drop_slot(p);
            self.paging.space.mem.undo_discard(p);
        }
    }

    pub(crate) fn on_unmapped(&mut self, range: PageRange, answer: MoveAnswer, out: &mut Effects) {
        for page in range.pages() {
            let p = page.0;
            let space = &mut self.paging.space;
            if p >= space.mem.len() || space.mem.at(p).flight() != Flight::Unmapping {
                space.mem.count(Counter::pt_late_event, 1);
                continue;
            }
            let pageout = space.mem.end_unmap(p);
            match answer {
                MoveAnswer::Clean if space.mem.at(p).has_slot() => {
                    space.mem.mark_clean(p);
                    self.unmapped(p, pageout, out);
                }
                MoveAnswer::Done | MoveAnswer::Clean | MoveAnswer::Present => {
                    // Pages that leave together get new slots together: one request, where their old slots lie anywhere.
                    space.drop_slot(p);
                    self.unmapped(p, pageout, out);
                }
                MoveAnswer::Gone => space.forget(p),
                MoveAnswer::Busy => self.immovable(p),
            }
            self.release_waiters(p);
        }
        self.answered();
        self.paging.reclaim.io_done();
    }

    fn unmapped(&mut self, p: u32, pageout: bool, out: &mut Effects) {
        let space = &mut self.paging.space;
        space.unmap(p);
        space.mem.clear_young(p);
        let page = space.mem.at(p);
        if page.is_discarded() {
            space.discard_when_room(p, out);
            return;
        }
        if !pageout || page.is_waited() || space.mem.is_held {
            return;
        }
        if out.room() < 4 || self.paging.pageout(p, out) == Pageout::NoIo {
            // It is cold and unmapped: the next look takes it.
            self.paging.space.mem.move_to_tail(p);
        }
    }

    /// Busy: it stays mapped, out of the way for a while.
    fn immovable(&mut self, p: u32) {
        let space = &mut self.paging.space;
        if space.mem.at(p).is_discarded() {
            // The program's own page table entry goes with the discard.
            space.forget(p);
            return;
        }
        space.mem.set_aside(p);
        self.work.note_immovable(space.mem.now);
    }
}
