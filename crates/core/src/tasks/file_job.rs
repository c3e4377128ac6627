//! Jobs on files: `read`, `write` and mapped accesses that need frames. What they do page by page is decided in `files`.

use super::Tasks;
use super::job::{Charge, Job, JobKind, JobState, Step};
use crate::effect::Effects;
use crate::files::{self, Call, CallStep};
use crate::readahead::Window;
use crate::types::{Access, PageRange, TaskId};
use crate::vmstat::Counter;

impl Tasks {
    pub(crate) fn on_file_read(&mut self, range: PageRange, task: TaskId, out: &mut Effects) {
        self.start_file_call(JobKind::FileRead, range, Access::Read, task, out);
    }

    pub(crate) fn on_file_write(&mut self, range: PageRange, task: TaskId, out: &mut Effects) {
        self.start_file_call(JobKind::FileWrite, range, Access::Write, task, out);
    }

    fn start_file_call(&mut self, kind: JobKind, range: PageRange, access: Access, task: TaskId, out: &mut Effects) {
        let regions = &mut self.paging.readahead.regions;
        let file_end = regions.file_of(range.first.0).map(|(at, _)| regions.get(at).end);
        let end = range.first.0.checked_add(range.len).filter(|_| range.len > 0);
        let fits = |end: u32| end <= self.paging.space.mem.len() && file_end.is_some_and(|file_end| end <= file_end);
        let Some(end) = end.filter(|end| fits(*end)) else {
            self.count(Counter::pt_late_event, 1);
            out.wake(range.first.0, task);
            return;
        };
        let mut job = Job::new(kind, range.first.0, access, task, Window::none(range.first.0));
        job.end = end;
        if self.jobs.is_full() {
            self.jobs.queue(job);
        } else {
            self.start_job(job, out);
        }
    }

    /// A file job: its window first, then its pages.
    pub(super) fn step_file(&mut self, job: &mut Job, out: &mut Effects) -> Step {
        if let Some(p) = job.next.take().or_else(|| self.paging.window_next(&mut job.window)) {
            return self.step_file_window(job, p, out);
        }
        if job.window.drains() {
            self.paging.space.mem.drain();
            job.window = Window::none(job.page);
        }
        match job.kind {
            JobKind::FileAhead => Step::Done,
            JobKind::FileFault if files::is_absent(&self.paging.space.mem, job.page) => {
                // The window ended before it came to the page: it is read alone.
                match files::alone(&mut self.paging.readahead.regions, job.page) {
                    Some(window) => {
                        job.window = window;
                        Step::Next
                    }
                    None => Step::LookAgain,
                }
            }
            JobKind::FileFault => Step::LookAgain,
            JobKind::FileFaultAhead => {
                // What came with the page is mapped now, unless the window has pushed it out.
                if job.access == Access::Read && !self.paging.space.mem.at(job.page).in_flight() {
                    self.files.map_around(&mut self.paging, job.page, out);
                }
                Step::LookAgain
            }
            JobKind::Zero
            | JobKind::SwapIn
            | JobKind::Shrink
            | JobKind::Room
            | JobKind::FileRead
            | JobKind::FileWrite => self.step_file_call(job, out),
        }
    }

    /// The next page of the window that has no frame.
    fn step_file_window(&mut self, job: &mut Job, p: u32, out: &mut Effects) -> Step {
        let mem = &self.paging.space.mem;
        let regions = &mut self.paging.readahead.regions;
        let Some((_, file)) = regions.file_of(p).filter(|_| !mem.at(p).has_frame()) else {
            return Step::Next;
        };
        let only_ahead = matches!(job.kind, JobKind::FileAhead | JobKind::FileFaultAhead);
        let ahead = p != job.page || only_ahead;
        let wanted = mem.at(job.page);
        let short = mem.budget.stock == 0 && mem.free() <= mem.budget.min;
        if ahead && wanted.has_frame() && !wanted.in_flight() && short && !only_ahead {
            // What is ahead must not push out what is wanted.
            job.window = Window::none(job.page);
            return Step::Next;
        }
        match self.charge(job, false) {
            Charge::Got => {}
            Charge::Reclaim => {
                job.next = Some(p);
                let in_turn = only_ahead && self.paging.cfg.is_memcg() && !job.has_paused;
                let Some(run) = job.run.as_mut().filter(|_| in_turn) else {
                    return Step::Next;
                };
                // The pages before it took their time: reads that were under way have ended by now.
                run.lets_reads_end = true;
                job.has_paused = true;
                return Step::Park(JobState::Runnable);
            }
            // Nobody waits for a page ahead: the kernel does not retry for it either.
            Charge::Park(_) | Charge::Fail if ahead => {
                job.window = Window::none(job.page);
                return Step::Next;
            }
            Charge::Park(state) => {
                job.next = Some(p);
                return Step::Park(state);
            }
            Charge::Fail => return self.out_of_memory(job, out),
        }
        let fresh = job.kind == JobKind::FileWrite;
        let page = self.paging.space.mem.at(p);
        let no_io = self.paging.space.io.is_full() && !fresh;
        if page.has_frame() || page.is_discarded() || page.is_poisoned() || no_io {
            self.paging.uncharge_unused();
            if no_io && p == job.page && !only_ahead {
                job.next = Some(p);
                return Step::Park(JobState::WaitMemory);
            }
        } else if fresh {
            // Its zeroes and the writer's bytes in one step: until both are there nobody else may see the page.
            self.files.write_fresh(&mut self.paging, p, out);
            job.page += 1;
            if job.page >= job.end {
                return self.step_file_call(job, out);
            }
        } else {
            self.paging.read_file_page(p, &file, job.window.marker == Some(p), !ahead, out);
        }
        Step::Next
    }

    fn step_file_call(&mut self, job: &mut Job, out: &mut Effects) -> Step {
        let mut call = Call { access: job.access, page: job.page, end: job.end };
        let step = self.files.call_step(&mut self.paging, &mut call, out);
        job.page = call.page;
        match step {
            CallStep::Ahead(window) => Step::Ahead(window),
            CallStep::Done => {
                if job.page >= job.end && job.access == Access::Read {
                    self.files.read_to(&mut self.paging.readahead.regions, job.first, job.end);
                }
                out.wake(job.first, job.task);
                Step::Done
            }
            CallStep::Window(window) => {
                job.window = window;
                Step::Next
            }
            CallStep::Fresh => {
                job.window = Window::none(job.page);
                job.next = Some(job.page);
                Step::Next
            }
            CallStep::Again => Step::Next,
            CallStep::Wait => Step::Park(self.wait_for_page(job.page)),
            CallStep::Throttle => Step::Park(JobState::WaitMemory),
        }
    }

    fn wait_for_page(&mut self, p: u32) -> JobState {
        self.paging.space.mem.mark_job_waited(p);
        JobState::WaitPage(p)
    }

    /// A `read` whose page was a marker goes on with that page. It may have to wait for its flight.
    pub(super) fn file_call_goes_on(&mut self, job: &mut Job) -> Option<JobState> {
        let mut call = Call { access: job.access, page: job.page, end: job.end };
        let step = self.files.read_found(&mut self.paging, &mut call);
        job.page = call.page;
        matches!(step, CallStep::Wait).then(|| self.wait_for_page(job.page))
    }
}
