//! Faults: a task touched a page that is not mapped.
//!
//! Every fault is answered by exactly one wake, or by out of memory: now, or when what it waits for has happened. A page in
//! flight makes it wait (I2).

use super::Tasks;
use super::job::{Job, JobKind};
use crate::effect::{Effect, Effects};
use crate::files;
use crate::memory::page::{Flight, PageState};
use crate::memory::tally::Tallied;
use crate::paging::STEP_ROOM;
use crate::readahead::Window;
use crate::types::{Access, PageIdx, PageRange, TaskId};
use crate::vmstat::Counter;

/// What a look at a fault leads to.
#[derive(Debug)]
pub(super) enum Look {
    /// It is answered, or waits.
    Answered,
    /// It needs frames.
    Job(Job),
    /// It is answered, and a window is to be read ahead of it; then its neighbours are mapped.
    Ahead { job: Option<Job>, around: bool },
}

impl Tasks {
    pub(crate) fn on_fault(&mut self, p: u32, access: Access, task: TaskId, out: &mut Effects) {
        self.paging.space.mem.count_at(p, Tallied::Fault, 1);
        if p >= self.paging.space.mem.len() {
            self.count(Counter::pt_late_event, 1);
            out.wake(p, task);
            return;
        }
        if let Some(off) = &mut self.work.swapoff {
            off.note_fault(self.paging.space.mem.now);
        }
        self.fault(p, access, task, true, out);
    }

    pub(super) fn look(&mut self, p: u32, access: Access, task: TaskId, first: bool, out: &mut Effects) -> Look {
        if out.room() < STEP_ROOM {
            return self.defer(p, access, task, out);
        }
        let page = self.paging.space.mem.at(p);
        if page.is_discarded() && !page.in_flight() {
            self.paging.space.finish_discard(p, out);
        }
        if first && self.paging.space.mem.at(p).is_swap_cached() {
            self.paging.swap_cache_hit(p, out);
        }
        if first && self.is_soft(p) {
            self.count(Counter::pt_soft_fault, 1);
        }
        if self.paging.space.mem.at(p).in_flight() {
            return self.look_in_flight(p, access, task, first, out);
        }
        let is_file = self.paging.readahead.regions.file_of(p).is_some();
        if first && is_file {
            // A file's content is still on its device: every new access tries again.
            self.paging.space.mem.heal(p);
        }
        let state = self.paging.space.mem.at(p).state();
        match state {
            PageState::Cached | PageState::Untouched if is_file => self.look_file(p, access, task, first, out),
            PageState::Poisoned => {
                // The host was told, unless there was no room then.
                if self.paging.space.mem.take_owed_poison(p) {
                    out.push(Effect::Poison { range: PageRange::one(PageIdx(p)) });
                }
                out.wake(p, task);
                Look::Answered
            }
            PageState::Mapped => self.look_mapped(p, access, task, first, out),
            PageState::Cached => {
                self.map_cached(p, access, task, out);
                if first && self.paging.space.mem.watched(p).is_some() {
                    self.paging.neighbours_ahead(p, access, out);
                }
                if first {
                    self.paging.soft_ahead(p, access, out);
                }
                Look::Answered
            }
            PageState::Swapped => self.look_swapped(p, access, task, first, out),
            PageState::Untouched => self.look_untouched(p, access, task, out),
        }
    }

    fn look_in_flight(&mut self, p: u32, access: Access, task: TaskId, first: bool, out: &mut Effects) -> Look {
        let page = self.paging.space.mem.at(p);
        if page.flight() == Flight::Mapping && self.paging.space.mem.take_readahead(p) && page.has_slot() {
            self.paging.space.mem.count_at(p, Tallied::ReadAheadHit, 1);
        }
        if first && page.is_file() {
            if access == Access::Read {
                self.files.map_around(&mut self.paging, p, out);
            }
            let marked = self.paging.space.mem.take_readahead(p);
            if let Some(job) = self.file_found(p, marked, access, task) {
                return Look::Job(job);
            }
        }
        if first && page.flight() == Flight::Reading && page.is_readahead() {
            self.paging.space.mem.around.note(p, true);
        }
        self.wait_for(p, access, task, out);
        if page.flight() == Flight::Reading && self.paging.space.mem.take_marker(p) {
            self.paging.marker_touched(p, out);
        }
        Look::Answered
    }

    /// The fault is on a page that was taken out of the page table with its frame kept: to see whether it is used, or on its way
    /// out. (One on a page that came by readahead is no such fault; a kernel's swap cache has counters of its own.)
    fn is_soft(&self, p: u32) -> bool {
        let page = self.paging.space.mem.at(p);
        if !self.paging.host.answers_moves {
            return page.is_cached() && !page.has_slot() && !page.is_file() && !page.in_flight();
        }
        let is_out = match page.flight() {
            Flight::None | Flight::Writing => !page.is_mapped(),
            Flight::Unmapping => true,
            Flight::Reading | Flight::Mapping => false,
        };
        page.has_frame() && is_out && !page.is_readahead() && !page.is_marker() && !page.is_discarded()
    }

    /// The fault is looked at again soon.
    fn defer(&mut self, p: u32, access: Access, task: TaskId, out: &mut Effects) -> Look {
        if !self.waiters.defer(p, task, access) {
            out.wake(p, task);
        }
        Look::Answered
    }

    /// The fault is looked at again when the page's flight ends.
    pub(super) fn wait_for(&mut self, p: u32, access: Access, task: TaskId, out: &mut Effects) {
        if self.waiters.wait(p, task, access) {
            self.paging.space.mem.mark_waited(p);
        } else {
            out.wake(p, task);
        }
    }

    fn look_mapped(&mut self, p: u32, access: Access, task: TaskId, first: bool, out: &mut Effects) -> Look {
        // Only the host knows whether it mapped for reading only: then the task faults on the mapped page.
        let may_write = !self.paging.host.maps_read_only || self.paging.space.mem.at(p).is_writable();
        if access == Access::Write && first && !may_write {
            self.paging.map_frame(p, access, out);
            self.wait_for(p, access, task, out);
        } else {
            self.paging.space.mem.mark_used(p, access);
            out.wake(p, task);
        }
        Look::Answered
    }

    /// Map a page that has a frame. A write, or swap that is more than half full, frees its slot.
    fn map_cached(&mut self, p: u32, access: Access, task: TaskId, out: &mut Effects) {
        let space = &mut self.paging.space;
        let (page, write) = (space.mem.at(p), access == Access::Write);
        if write && page.is_in_batch() {
            space.mem.drain();
        }
        if page.has_slot() && (write || space.slots.is_filling()) {
            space.free_swap(p);
        }
        let marker = space.mem.take_marker(p);
        self.paging.map_frame(p, access, out);
        if self.paging.host.answers_moves {
            self.wait_for(p, access, task, out);
        } else {
            self.paging.space.mem.mark_used(p, access);
            out.wake(p, task);
        }
        if marker {
            self.paging.marker_touched(p, out);
        }
    }

    fn look_untouched(&mut self, p: u32, access: Access, task: TaskId, out: &mut Effects) -> Look {
        if !self.paging.is_managed(p) {
            // Not ours, or not any more.
            out.wake(p, task);
            return Look::Answered;
        }
        if self.jobs.is_full() {
            return self.defer(p, access, task, out);
        }
        Look::Job(Job::new(JobKind::Zero, p, access, task, Window::one(p)))
    }

    fn look_swapped(&mut self, p: u32, access: Access, task: TaskId, first: bool, out: &mut Effects) -> Look {
        if self.jobs.is_full() {
            return self.defer(p, access, task, out);
        }
        if first {
            self.paging.space.mem.count_at(p, Tallied::MajorFault, 1);
        }
        let window = self.paging.window(p);
        Look::Job(Job::new(JobKind::SwapIn, p, access, task, window))
    }

    /// A mapped access to a file page that is not mapped.
    fn look_file(&mut self, p: u32, access: Access, task: TaskId, first: bool, out: &mut Effects) -> Look {
        // A fault that has read begins anew, so it comes here twice.
        if access == Access::Read {
            self.files.map_around(&mut self.paging, p, out);
        }
        if self.paging.space.mem.at(p).is_mapped() {
            out.wake(p, task);
            return Look::Answered;
        }
        if !files::is_absent(&self.paging.space.mem, p) {
            return self.look_page_cache(p, access, task, first, out);
        }
        if self.jobs.is_full() {
            return self.defer(p, access, task, out);
        }
        if first {
            self.paging.space.mem.count_at(p, Tallied::MajorFault, 1);
        }
        match self.files.fault_window(&mut self.paging.readahead.regions, p) {
            Some(window) => Look::Job(Job::new(JobKind::FileFault, p, access, task, window)),
            None => Look::Answered,
        }
    }

    fn look_page_cache(&mut self, p: u32, access: Access, task: TaskId, first: bool, out: &mut Effects) -> Look {
        self.files.map_cached(&mut self.paging, p, out);
        if access == Access::Write {
            self.paging.space.mem.mark_dirty(p);
        }
        let marked = self.paging.space.mem.take_readahead(p);
        if first && let Some(job) = self.file_found(p, marked, access, task) {
            return Look::Job(job);
        }
        out.wake(p, task);
        let window = if marked { self.files.next_window(&mut self.paging, p, None) } else { None };
        let ahead = |window| Job::new(JobKind::FileAhead, p, Access::Read, TaskId(0), window);
        Look::Ahead { job: window.filter(|_| !self.jobs.is_full()).map(ahead), around: access == Access::Read }
    }

    /// A mapped access found its page in the page cache at its first look. If the page is `marked`, the fault goes on when memory
    /// has been found for the next window. (At a second look the task goes on at once: the window may push the page out.)
    fn file_found(&mut self, p: u32, marked: bool, access: Access, task: TaskId) -> Option<Job> {
        self.files.note_found(&mut self.paging.readahead.regions, p);
        if !marked || self.jobs.is_full() {
            return None;
        }
        let window = self.files.next_window(&mut self.paging, p, None)?;
        Some(Job::new(JobKind::FileFaultAhead, p, access, task, window))
    }
}
