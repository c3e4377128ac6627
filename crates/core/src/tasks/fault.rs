//! Faults: a task touched a page that is not mapped.
//!
//! Every fault is answered by exactly one wake, or by out of memory: now, or when what it waits for has happened. A page in
//! flight makes it wait (I2).

use crate::effect::{Effect, Effects, Source};
use crate::memory::page::{
    DIRTY, DISCARD, FILE, FRAME, Flight, MAP_WRITE, MARKER, PCP, POISON_DUE, PageState, READAHEAD, SLOT, WAITED,
    WRITABLE, YOUNG,
};
use crate::policy::Core;
use crate::readahead::Window;
use crate::tasks::job::{Job, JobKind, STEP_ROOM};
use crate::types::{Access, PageIdx, PageRange, TaskId};
use crate::vmstat::Counter;

impl Core {
    pub(crate) fn on_fault(&mut self, p: u32, access: Access, task: TaskId, out: &mut Effects) {
        self.count(Counter::pgfault, 1);
        if p >= self.pages.len() {
            self.count(Counter::pt_late_event, 1);
            self.wake(p, task, out);
            return;
        }
        self.fault(p, access, task, true, out);
    }

    /// Answer a fault, or find what it has to wait for. `first`: the first look, which the statistics count.
    pub(crate) fn fault(&mut self, p: u32, access: Access, task: TaskId, first: bool, out: &mut Effects) {
        if out.room() < STEP_ROOM {
            self.defer(p, access, task, out);
            return;
        }
        if self.pages.is(p, DISCARD) && !self.pages.in_flight(p) {
            self.finish_discard(p, out);
        }
        if first && self.pages.word(p) & (FRAME | SLOT | crate::memory::page::MAPPED) == FRAME | SLOT {
            self.swap_cache_hit(p, out);
        }
        if self.pages.in_flight(p) {
            if self.pages.flight(p) == Flight::Mapping && self.pages.take(p, READAHEAD) && self.pages.is(p, SLOT) {
                self.count(Counter::swap_ra_hit, 1);
            }
            if first && self.pages.is(p, FILE) {
                if access == Access::Read {
                    self.map_around(p, out);
                }
                let marked = self.pages.take(p, READAHEAD);
                if self.file_found(p, marked, access, task, out) {
                    return;
                }
            }
            self.wait_for(p, access, task, out);
            if self.pages.flight(p) == Flight::Reading && self.pages.take(p, MARKER) {
                self.marker_touched(p, out);
            }
            return;
        }
        if first && self.pages.is(p, crate::memory::page::POISON) && self.file_of(p).is_some() {
            // A file's content is still on its device: every new access tries again.
            self.pages.clear(p, crate::memory::page::POISON | POISON_DUE);
        }
        let state = self.pages.state(p);
        if matches!(state, PageState::Cached | PageState::Untouched) && self.file_of(p).is_some() {
            self.fault_file(p, access, task, first, out);
            return;
        }
        match state {
            PageState::Poisoned => {
                // The host was told, unless there was no room then.
                if self.pages.take(p, POISON_DUE) {
                    out.push(Effect::Poison { range: PageRange::one(PageIdx(p)) });
                }
                self.wake(p, task, out);
            }
            PageState::Mapped => self.fault_mapped(p, access, task, first, out),
            PageState::Cached => {
                if first && !self.pages.is(p, SLOT) {
                    self.count(Counter::pt_soft_fault, 1);
                }
                self.map_cached(p, access, task, out);
                if first {
                    self.soft_ahead(p, access, out);
                }
            }
            PageState::Swapped => self.fault_swapped(p, access, task, first, out),
            PageState::Untouched => self.fault_zero(p, access, task, out),
        }
    }

    pub(crate) fn defer(&mut self, p: u32, access: Access, task: TaskId, out: &mut Effects) {
        if !self.waiters.defer(p, task, access) {
            self.wake(p, task, out);
        }
    }

    pub(crate) fn wake(&self, p: u32, task: TaskId, out: &mut Effects) {
        out.push(Effect::Wake { task, page: PageIdx(p) });
    }

    /// The fault is looked at again when the page's flight ends.
    pub(crate) fn wait_for(&mut self, p: u32, access: Access, task: TaskId, out: &mut Effects) {
        if self.waiters.wait(p, task, access) {
            self.pages.set(p, WAITED);
        } else {
            self.wake(p, task, out);
        }
    }

    fn fault_mapped(&mut self, p: u32, access: Access, task: TaskId, first: bool, out: &mut Effects) {
        let write = access == Access::Write;
        // Only the host knows whether it mapped for reading only: then the task faults on the mapped page.
        if self.host.maps_read_only && write && first && !self.pages.is(p, WRITABLE) {
            self.map_frame(p, access, out);
            self.wait_for(p, access, task, out);
            return;
        }
        self.pages.set(p, if write { YOUNG | DIRTY } else { YOUNG });
        self.wake(p, task, out);
    }

    /// Remember in the page what access its map in flight asks for.
    pub(crate) fn note_map_access(&mut self, p: u32, access: Access) {
        self.pages.clear(p, MAP_WRITE);
        if access == Access::Write {
            self.pages.set(p, MAP_WRITE);
        }
    }

    fn map_frame(&mut self, p: u32, access: Access, out: &mut Effects) {
        self.begin_flight(p, Flight::Mapping);
        self.note_map_access(p, access);
        self.emit(Effect::Map { range: PageRange::one(PageIdx(p)), source: Source::Frame, access }, out);
    }

    /// Map a page that has a frame. A write, or swap that is more than half full, frees its slot.
    fn map_cached(&mut self, p: u32, access: Access, task: TaskId, out: &mut Effects) {
        let write = access == Access::Write;
        if write && self.pages.is(p, PCP) {
            let rotated = self.lru.drain(&mut self.pages);
            self.count(Counter::pgrotated, rotated);
        }
        if self.pages.is(p, SLOT) && (write || self.swap.is_filling()) {
            self.drop_slot(p);
            self.pages.set(p, DIRTY);
        }
        let marker = self.pages.take(p, MARKER);
        if self.host.answers_moves {
            self.map_frame(p, access, out);
            self.wait_for(p, access, task, out);
        } else {
            self.set_mapped(p);
            self.pages.set(p, if write { YOUNG | DIRTY } else { YOUNG });
            self.emit(Effect::Map { range: PageRange::one(PageIdx(p)), source: Source::Frame, access }, out);
            self.wake(p, task, out);
        }
        if marker {
            self.marker_touched(p, out);
        }
    }

    fn fault_zero(&mut self, p: u32, access: Access, task: TaskId, out: &mut Effects) {
        if self.regions.find(p).is_none() {
            // Not ours, or not any more.
            self.wake(p, task, out);
            return;
        }
        if self.jobs.is_full() {
            self.defer(p, access, task, out);
            return;
        }
        self.start_job(Job::new(JobKind::Zero, p, access, task, Window::one(p)), out);
    }

    fn fault_swapped(&mut self, p: u32, access: Access, task: TaskId, first: bool, out: &mut Effects) {
        if self.jobs.is_full() {
            self.defer(p, access, task, out);
            return;
        }
        if first {
            self.count(Counter::pgmajfault, 1);
        }
        let window = self.readahead_window(p);
        self.start_job(Job::new(JobKind::SwapIn, p, access, task, window), out);
    }
}
