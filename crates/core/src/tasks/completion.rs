//! Answers of the host: reads and writes that ended, maps and unmaps of a blind host.
//!
//! An answer may cover a part of its effect. Pages that are not in the flight the answer speaks of are passed over and
//! counted (I7).

use crate::effect::{Effect, Effects};
use crate::event::{MoveAnswer, Outcome};
use crate::memory::page::{
    ACTIVE, BUSY, DIRTY, DISCARD, FILE, FREE_DONE, Flight, JOB_WAIT, MAP_WRITE, MAPPED, PAGEOUT, POISON, POISON_DUE,
    READAHEAD, RECLAIM, SLOT, WAITED, WRITABLE, YOUNG,
};
use crate::policy::Core;
use crate::reclaim::shrink::Pageout;
use crate::types::{IoId, PageIdx, PageRange};
use crate::vmstat::Counter;

impl Core {
    pub(crate) fn on_io_done(&mut self, io: IoId, range: PageRange, outcome: Outcome, out: &mut Effects) {
        let Some(entry) = self.io.get_mut(io) else {
            self.count(Counter::pt_late_event, 1);
            return;
        };
        let (whole, write) = (entry.range, entry.write);
        let flight = if write { Flight::Writing } else { Flight::Reading };
        let mut answered = 0;
        for page in range.pages() {
            let p = page.0;
            if !whole.contains(page) || self.pages.flight(p) != flight {
                self.count(Counter::pt_late_event, 1);
                continue;
            }
            answered += 1;
            self.end_flight(p);
            if write {
                self.write_ended(p, outcome, out);
            } else {
                self.read_ended(p, outcome, out);
            }
            self.release_waiters(p);
        }
        if answered > 0 {
            self.io.answer(io, answered);
        }
        self.answered();
        self.kswapd.io_done();
    }

    /// Faults that wait for the page may look again.
    pub(crate) fn release_waiters(&mut self, p: u32) {
        if self.pages.take(p, WAITED) {
            self.waiters.release(p);
        }
    }

    fn read_ended(&mut self, p: u32, outcome: Outcome, out: &mut Effects) {
        self.file_reads -= u32::from(self.pages.is(p, FILE));
        if self.pages.take(p, JOB_WAIT) {
            self.jobs.page_done(p);
        }
        if self.pages.is(p, DISCARD) {
            self.discard_when_room(p, out);
            return;
        }
        match outcome {
            Outcome::Done | Outcome::Unchanged | Outcome::Zero if self.pages.is(p, FILE) => {}
            Outcome::Done | Outcome::Unchanged | Outcome::Zero => {
                let slot = self.pages.slot(p).expect("I4: a page that was read has a slot");
                if self.swap.spec_of(slot).synchronous {
                    // Such devices are read past the swap cache: the slot is not kept.
                    self.drop_slot(p);
                    self.pages.set(p, DIRTY);
                }
                self.read_arrived(p, out);
            }
            Outcome::Failed | Outcome::NoSpace => {
                self.count(Counter::pt_poisoned, 1);
                self.lru.remove(&mut self.pages, p);
                self.lose_frame(p);
                self.pages.clear(p, READAHEAD | ACTIVE | crate::memory::page::REFERENCED);
                self.pages.set(p, POISON);
                self.emit_poison(p, out);
            }
        }
    }

    fn emit_poison(&mut self, p: u32, out: &mut Effects) {
        for old in out.recent_mut(self.base) {
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
            self.pages.set(p, POISON_DUE);
        }
    }

    fn write_ended(&mut self, p: u32, outcome: Outcome, out: &mut Effects) {
        self.pending -= 1;
        let file = self.pages.is(p, FILE);
        if file {
            self.flusher.writing -= 1;
        }
        let free = self.pages.take(p, FREE_DONE);
        if free {
            self.sure -= 1;
        }
        let reclaim = self.pages.take(p, RECLAIM);
        let examined = self.pages.take(p, JOB_WAIT);
        if examined {
            self.jobs.page_done(p);
        }
        if self.host.answers_needless_writes && outcome == Outcome::Done {
            self.count(Counter::pswpout, 1);
        }
        if self.pages.is(p, DISCARD) {
            self.discard_when_room(p, out);
            return;
        }
        match outcome {
            Outcome::Done | Outcome::Unchanged | Outcome::Zero if file || outcome != Outcome::Zero => {
                if outcome == Outcome::Unchanged {
                    self.count(Counter::pt_write_unchanged, 1);
                }
                if free && !self.pages.is(p, WAITED) && out.room() > 1 && !self.control.hold {
                    self.steal(p);
                    self.emit(Effect::Drop { range: PageRange::one(PageIdx(p)) }, out);
                } else if reclaim && !examined && !self.pages.is(p, WAITED) {
                    let rotated = self.lru.rotate(&mut self.pages, p);
                    self.count(Counter::pgrotated, rotated);
                }
            }
            Outcome::Done | Outcome::Unchanged | Outcome::Zero => self.found_zero(p, out),
            Outcome::Failed | Outcome::NoSpace if file => {
                self.count(Counter::pt_write_failed, 1);
                self.dirty_file(p);
            }
            Outcome::Failed | Outcome::NoSpace => {
                self.count(Counter::pt_write_failed, 1);
                if outcome == Outcome::NoSpace {
                    let slot = self.pages.slot(p).expect("I4: a written page has a slot");
                    let (device, _) = self.swap.locate(slot);
                    self.swap.close(device);
                }
                self.drop_slot(p);
                self.pages.set(p, DIRTY | ACTIVE);
                self.lru.putback(&mut self.pages, p);
            }
        }
    }

    /// The page is all zero: it needs no slot, and no frame until it is touched.
    fn found_zero(&mut self, p: u32, out: &mut Effects) {
        self.count(Counter::swpout_zero, 1);
        self.drop_slot(p);
        if out.room() < 2 {
            self.pages.set(p, DIRTY);
            return;
        }
        self.count(Counter::pgsteal_anon, 1);
        self.forget(p);
        self.emit(Effect::Drop { range: PageRange::one(PageIdx(p)) }, out);
    }

    /// The page's frame and slot are gone: it is untouched.
    pub(crate) fn forget(&mut self, p: u32) {
        self.lru.remove(&mut self.pages, p);
        self.drop_slot(p);
        self.lose_frame(p);
        self.pages.reset(p);
    }

    /// An answer came: may jobs that wait for memory look again? A freed page lets them at once (see `uncharge`). A look goes
    /// over all lists, so of many answers it is worth it once in a while, and after the last.
    fn answered(&mut self) {
        self.answers = self.answers.wrapping_add(1);
        if self.flights == 0 || self.answers.is_multiple_of(self.host.answers_per_look) {
            self.jobs.memory_freed();
        }
    }

    pub(crate) fn on_mapped(&mut self, range: PageRange, answer: MoveAnswer, out: &mut Effects) {
        for page in range.pages() {
            let p = page.0;
            if p >= self.pages.len() || self.pages.flight(p) != Flight::Mapping {
                self.count(Counter::pt_late_event, 1);
                continue;
            }
            self.end_flight(p);
            match answer {
                MoveAnswer::Done | MoveAnswer::Clean | MoveAnswer::Present => {
                    self.mapped(p, answer == MoveAnswer::Present);
                }
                MoveAnswer::Gone => self.forget(p),
                // Still under way to write access, or not mapped at all: in both cases the discard decides.
                MoveAnswer::Busy if self.pages.is(p, DISCARD | MAPPED) => {
                    if !self.pages.is(p, MAPPED) {
                        self.discard_when_room(p, out);
                    } else if self.pages.is(p, DISCARD) {
                        self.forget(p);
                    }
                }
                MoveAnswer::Busy => {}
            }
            self.release_waiters(p);
        }
        self.answered();
    }

    fn mapped(&mut self, p: u32, present: bool) {
        if self.pages.is(p, DISCARD) && !present {
            // It was mapped before the discard, which took the program's page table entry with it.
            self.forget(p);
            return;
        }
        self.set_mapped(p);
        // Blind: what is mapped may be written.
        self.pages.set(p, DIRTY);
        if self.pages.take(p, MAP_WRITE) {
            self.pages.set(p, WRITABLE);
        }
        if !self.pages.is(p, READAHEAD) || self.pages.is(p, WAITED) {
            self.pages.set(p, YOUNG);
        }
        self.credit(p);
        if present {
            // What the program has there is the truth, and no slot holds it.
            self.drop_slot(p);
            self.pages.clear(p, DISCARD);
            self.pages.set(p, WRITABLE);
        }
    }

    pub(crate) fn on_unmapped(&mut self, range: PageRange, answer: MoveAnswer, out: &mut Effects) {
        for page in range.pages() {
            let p = page.0;
            if p >= self.pages.len() || self.pages.flight(p) != Flight::Unmapping {
                self.count(Counter::pt_late_event, 1);
                continue;
            }
            self.end_flight(p);
            let pageout = self.pages.take(p, PAGEOUT);
            if pageout {
                self.pending -= 1;
                self.sure -= 1;
            }
            match answer {
                MoveAnswer::Clean if self.pages.is(p, SLOT) => {
                    self.pages.clear(p, DIRTY);
                    self.unmapped(p, pageout, out);
                }
                MoveAnswer::Done | MoveAnswer::Clean | MoveAnswer::Present => {
                    // Pages that leave together get new slots together: one request, where their old slots lie anywhere.
                    self.drop_slot(p);
                    self.unmapped(p, pageout, out);
                }
                MoveAnswer::Gone => self.forget(p),
                MoveAnswer::Busy => self.immovable(p),
            }
            self.release_waiters(p);
        }
        self.answered();
        self.kswapd.io_done();
    }

    fn unmapped(&mut self, p: u32, pageout: bool, out: &mut Effects) {
        self.set_unmapped(p);
        self.pages.clear(p, YOUNG);
        if self.pages.is(p, DISCARD) {
            self.discard_when_room(p, out);
            return;
        }
        if !pageout || self.pages.is(p, WAITED) || self.control.hold {
            return;
        }
        if out.room() < 4 || self.pageout(p, out) == Pageout::NoIo {
            // It is cold and unmapped: the next look takes it.
            self.lru.remove(&mut self.pages, p);
            self.pages.clear(p, ACTIVE);
            let list = crate::memory::lru::Lru::list_of(&self.pages, p);
            self.lru.push_tail(&mut self.pages, list, p);
        }
    }

    /// Busy: it stays mapped, out of the way for a while.
    fn immovable(&mut self, p: u32) {
        if self.pages.is(p, DISCARD) {
            // The program's own page table entry goes with the discard.
            self.forget(p);
            return;
        }
        self.pages.set(p, BUSY | YOUNG);
        self.lru.putback(&mut self.pages, p);
        self.control.schedule_rescue(self.now);
    }
}
