//! Jobs: faults that need frames, as tasks in the kernel would go about it, step by step.
//!
//! A job that has to stop (for room, a write, or memory) is parked in a table of fixed size and goes on when it can. A fault
//! that needs nothing but an entry in the page table never becomes a job.

use super::Tasks;
use crate::effect::{Effect, Effects};
use crate::host::MAX_RECLAIM_RETRIES;
use crate::memory::page::PageState;
use crate::paging::STEP_ROOM;
use crate::readahead::Window;
use crate::reclaim::{ReclaimRun, RunEnd, RunKind};
use crate::types::{Access, Nanos, PageIdx, TaskId};
use crate::vmstat::Counter;
use alloc::vec::Vec;

/// Jobs that can be parked; faults beyond it are looked at again later.
const JOBS_MAX: usize = 512;
/// How often a job waits for pages that could not be moved before it is out of memory.
const RESCUES_MAX: u32 = 100;
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobState {
    Runnable,
    /// For the write of a page.
    WaitPage(u32),
    /// For a frame.
    WaitMemory,
    /// For that time to come.
    Nap(Nanos),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JobKind {
    /// First touch: a page of zeroes.
    Zero,
    /// Read the page and its window.
    SwapIn,
    /// The budget fell below the charge.
    Shrink,
    /// Swapoff needs a frame.
    Room,
    /// `read`, `write`, and a mapped access.
    FileRead,
    FileWrite,
    FileFault,
    /// A window ahead of a call, and one ahead of a mapped access, which goes on afterwards.
    FileAhead,
    FileFaultAhead,
}

/// A fault (or a cut of the budget) at work.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(crate) kind: JobKind,
    pub(crate) task: TaskId,
    pub(crate) page: u32,
    pub(crate) access: Access,
    pub(crate) window: Window,
    /// Files: the pages asked for.
    pub(crate) first: u32,
    pub(crate) end: u32,
    /// The page of the window that waits for its frame.
    pub(crate) next: Option<u32>,
    pub(crate) run: Option<ReclaimRun>,
    /// A window ahead: it has let reads end once.
    pub(crate) has_paused: bool,
    tries: u32,
    /// How often it waited for pages that could not be moved.
    rescues: u32,
    state: JobState,
    pub(super) number: u64,
}

impl Job {
    pub(super) const fn new(kind: JobKind, page: u32, access: Access, task: TaskId, window: Window) -> Self {
        Self {
            kind,
            task,
            page,
            access,
            window,
            first: page,
            end: page,
            next: None,
            run: None,
            has_paused: false,
            tries: 0,
            rescues: 0,
            state: JobState::Runnable,
            number: 0,
        }
    }

    /// Work of the core's own, for no page.
    pub(super) const fn of_nobody(kind: JobKind) -> Self {
        Self::new(kind, 0, Access::Read, TaskId(0), Window::one(0))
    }

    /// It waits for a frame, or did when it was parked last.
    pub(super) fn waits_memory(&self) -> bool {
        self.state == JobState::WaitMemory
    }

    /// It waits for nothing, or for a time that has come.
    const fn is_runnable(&self, now: Nanos) -> bool {
        match self.state {
            JobState::Runnable => true,
            JobState::Nap(until) => until <= now,
            JobState::WaitMemory | JobState::WaitPage(_) => false,
        }
    }
}

/// The parked jobs.
#[derive(Debug)]
pub(super) struct Jobs {
    parked: Vec<Job>,
    number: u64,
}

impl Jobs {
    pub(super) fn new() -> Self {
        Self { parked: Vec::with_capacity(JOBS_MAX), number: 0 }
    }

    #[inline]
    pub(super) const fn is_full(&self) -> bool {
        self.parked.len() >= JOBS_MAX
    }

    #[inline]
    pub(super) fn has_runnable(&self, now: Nanos) -> bool {
        self.parked.iter().any(|job| job.is_runnable(now))
    }

    /// When the next nap ends.
    #[inline]
    pub(super) fn wakes_at(&self) -> Option<Nanos> {
        let naps =
            self.parked.iter().filter_map(|job| if let JobState::Nap(until) = job.state { Some(until) } else { None });
        naps.min()
    }

    /// The flight of the page has ended.
    pub(super) fn page_done(&mut self, page: u32) {
        for job in &mut self.parked {
            if job.state == JobState::WaitPage(page) {
                job.state = JobState::Runnable;
            }
        }
    }

    /// Jobs go on in the order of their numbers.
    #[inline]
    pub(super) const fn number(&mut self, job: &mut Job) {
        self.number += 1;
        job.number = self.number;
    }

    /// A new job while the table is full: it starts as soon as it can. (The table grows: tasks in system calls are few.)
    pub(super) fn queue(&mut self, mut job: Job) {
        self.number(&mut job);
        self.parked.push(job);
    }

    pub(super) fn park(&mut self, mut job: Job, state: JobState) {
        job.state = state;
        self.parked.push(job);
    }

    /// Take out the oldest job above `after` that can go on. Of those that wait for memory only the oldest can, if something was
    /// `freed`. `amid`: not one that is in the middle of reclaim.
    pub(super) fn take(&mut self, after: u64, amid: bool, freed: bool, now: Nanos) -> Option<Job> {
        let can = |job: &&Job| match job.state {
            JobState::WaitMemory => freed,
            JobState::Runnable | JobState::Nap(_) | JobState::WaitPage(_) => {
                job.is_runnable(now) && job.number > after && !(amid && job.run.is_some())
            }
        };
        let number = self.parked.iter().filter(can).map(|job| job.number).min()?;
        let at = self.parked.iter().position(|job| job.number == number)?;
        Some(self.parked.swap_remove(at))
    }

    pub(super) fn parked(&self) -> usize {
        self.parked.len()
    }

    /// The budget is exceeded by more than when a job for that began: it makes all its tries from here on. False: there is none.
    pub(super) fn renew_shrink(&mut self) -> bool {
        let found = self.parked.iter_mut().find(|job| job.kind == JobKind::Shrink);
        found.is_some_and(|job| {
            job.tries = 0;
            true
        })
    }
}

/// What a step of a job leads to.
pub(super) enum Step {
    /// The next step.
    Next,
    /// A window is to be read meanwhile; then the job goes on where it was.
    Ahead(Option<Window>),
    Done,
    /// Its fault is looked at again, and the job is done.
    LookAgain,
    Park(JobState),
}

/// What the charge of a page led to.
pub(super) enum Charge {
    Got,
    /// A reclaim run was set up.
    Reclaim,
    Park(JobState),
    /// No memory to be had.
    Fail,
}

impl Tasks {
    /// A job that waited for memory goes on: others may have made room meanwhile.
    #[inline]
    pub(super) fn resume(&self, job: &mut Job) {
        if matches!(job.state, JobState::WaitMemory | JobState::Nap(_)) && self.is_free_again(job) {
            job.run = None;
        }
    }

    /// One step: reclaim as far as it goes, and then what the job is about.
    pub(super) fn job_step(&mut self, job: &mut Job, out: &mut Effects) -> Step {
        if let Some(mut run) = job.run.take() {
            let end = self.paging.reclaim.run(&mut self.paging.space, &mut run, out);
            let state = match end {
                RunEnd::Done if run.nr_reclaimed > 0 => {
                    job.tries = 0;
                    None
                }
                // All that could go is under write, or being sampled.
                RunEnd::Done if self.is_waiting_worthwhile() => return Step::Park(JobState::WaitMemory),
                RunEnd::Done => {
                    job.tries += 1;
                    None
                }
                RunEnd::Yield => Some(JobState::Runnable),
                RunEnd::WaitPage(p) => Some(JobState::WaitPage(p)),
                RunEnd::Nap(until) => Some(JobState::Nap(until)),
                // What it would wait for may itself wait for a page that is to be charged.
                RunEnd::WaitIo if self.has_room_meanwhile() => None,
                RunEnd::WaitIo => Some(JobState::WaitMemory),
            };
            if let Some(state) = state {
                job.run = Some(run);
                return Step::Park(state);
            }
        }
        if out.room() < STEP_ROOM {
            return Step::Park(JobState::Runnable);
        }
        match job.kind {
            JobKind::Zero => self.step_zero(job, out),
            JobKind::SwapIn => self.step_swap_in(job, out),
            JobKind::Shrink => self.step_shrink(job),
            JobKind::Room => self.step_room(job),
            JobKind::FileRead
            | JobKind::FileWrite
            | JobKind::FileFault
            | JobKind::FileAhead
            | JobKind::FileFaultAhead => self.step_file(job, out),
        }
    }

    /// Charge one page, whatever it takes. `ahead`: nobody waits for the page.
    pub(super) fn charge(&mut self, job: &mut Job, ahead: bool) -> Charge {
        if self.paging.try_charge() {
            job.tries = 0;
            return Charge::Got;
        }
        let mem = &mut self.paging.space.mem;
        if mem.is_held {
            mem.budget.force_charge();
            return Charge::Got;
        }
        if ahead && !self.paging.host.reclaims_for_readahead {
            return Charge::Fail;
        }
        // Enough is on its way to be freed for everyone who waits.
        if mem.counts().sure > mem.budget.waiting() {
            return Charge::Park(JobState::WaitMemory);
        }
        let limit = self.paging.host.direct_runs_max;
        if job.tries >= limit {
            return if self.waits_all_the_same(job, limit) { Charge::Park(JobState::WaitMemory) } else { Charge::Fail };
        }
        let mut run = self.paging.reclaim.direct_run(&mut self.paging.space);
        // It has found the marker's page and goes on with it afterwards.
        run.held = matches!(job.kind, JobKind::FileAhead | JobKind::FileFaultAhead).then_some(job.page);
        job.run = Some(run);
        Charge::Reclaim
    }

    /// Others have made room while a task waited in direct reclaim: until 4.10 its waits are short, and then it looks. (Reclaim of
    /// newer kernels does not wait.)
    fn is_free_again(&self, job: &Job) -> bool {
        let direct = job.run.as_ref().is_some_and(|run| run.kind == RunKind::Direct);
        let mem = &self.paging.space.mem;
        direct && !self.paging.cfg.activate_dirty && mem.free() > mem.budget.min
    }

    /// There is memory although reclaim could not go on, where moves are answered: kernels do not look.
    const fn has_room_meanwhile(&self) -> bool {
        let mem = &self.paging.space.mem;
        self.paging.host.answers_moves && mem.free() > mem.budget.min
    }

    /// Something will end that can change what reclaim finds.
    const fn is_waiting_worthwhile(&self) -> bool {
        self.paging.space.mem.counts().flights > 0
    }

    /// A job has made all its tries, `limit` of them, in vain. Does it wait for what may be found then?
    fn waits_all_the_same(&self, job: &mut Job, limit: u32) -> bool {
        if self.is_waiting_worthwhile() {
            return true;
        }
        if self.work.rescue_at().is_none() || job.rescues >= RESCUES_MAX {
            return false;
        }
        // All that is left could not be moved a moment ago: it has one more try after that.
        job.rescues += 1;
        job.tries = limit - 1;
        true
    }

    pub(super) fn out_of_memory(&mut self, job: &Job, out: &mut Effects) -> Step {
        self.count(Counter::oom_kill, 1);
        out.push(Effect::OutOfMemory { task: job.task, page: PageIdx(job.page) });
        Step::Done
    }

    fn step_zero(&mut self, job: &mut Job, out: &mut Effects) -> Step {
        let p = job.page;
        let page = self.paging.space.mem.at(p);
        if page.has_frame() || page.has_slot() || page.is_poisoned() || !self.paging.is_managed(p) {
            // Another task was first, or the page is gone.
            return Step::LookAgain;
        }
        match self.charge(job, false) {
            Charge::Got => {}
            Charge::Reclaim => return Step::Next,
            Charge::Park(state) => return Step::Park(state),
            Charge::Fail => return self.out_of_memory(job, out),
        }
        self.paging.new_page(p);
        self.paging.map_zero(p, job.access, out);
        if self.paging.host.answers_moves {
            self.wait_for(p, job.access, job.task, out);
        } else {
            out.wake(p, job.task);
        }
        self.paging.zero_ahead(p, out);
        Step::Done
    }

    fn step_swap_in(&mut self, job: &mut Job, out: &mut Effects) -> Step {
        let Some(page) = job.next.take().or_else(|| self.paging.window_next(&mut job.window)) else {
            return self.end_window(job);
        };
        // Still only in its slot? Otherwise another task was first, or it is gone.
        if self.paging.space.mem.at(page).state() != PageState::Swapped {
            return Step::Next;
        }
        let target = page == job.page;
        match self.charge(job, !target) {
            Charge::Got => {}
            Charge::Reclaim => {
                job.next = Some(page);
                return Step::Next;
            }
            Charge::Park(state) => {
                job.next = Some(page);
                return Step::Park(state);
            }
            Charge::Fail => return if target { self.out_of_memory(job, out) } else { Step::Next },
        }
        if self.paging.space.io.is_full() {
            self.paging.uncharge_unused();
            if target {
                job.next = Some(page);
                return Step::Park(JobState::WaitMemory);
            }
            return Step::Next;
        }
        self.paging.read_page(page, target, out);
        if job.window.marker == Some(page) {
            self.paging.space.mem.mark_marker(page);
        }
        Step::Next
    }

    /// The window has been submitted: the target is awaited, or was brought by someone else.
    fn end_window(&mut self, job: &mut Job) -> Step {
        if job.window.drains() {
            self.paging.space.mem.drain();
        }
        if self.paging.space.mem.at(job.page).state() == PageState::Swapped && self.paging.is_managed(job.page) {
            job.window = Window::one(job.page);
            return Step::Next;
        }
        Step::LookAgain
    }

    /// Reclaim until a frame could be charged.
    fn step_room(&mut self, job: &mut Job) -> Step {
        match self.charge(job, false) {
            Charge::Got => self.paging.uncharge_unused(),
            Charge::Reclaim => return Step::Next,
            Charge::Park(state) => return Step::Park(state),
            Charge::Fail => self.swapoff_failed(),
        }
        self.work.room_made();
        Step::Done
    }

    /// Reclaim until the charge is within a lowered budget.
    fn step_shrink(&mut self, job: &mut Job) -> Step {
        let mem = &mut self.paging.space.mem;
        if !mem.budget.is_exceeded() || mem.is_held {
            return Step::Done;
        }
        // Enough is on its way out: writing still more would push out what may stay.
        let leaving = mem.counts().sure.max(mem.counts().pending);
        if mem.budget.charged.saturating_sub(leaving) <= mem.budget.budget && leaving > 0 {
            return Step::Park(JobState::WaitMemory);
        }
        if mem.budget.return_stock() {
            return Step::Next;
        }
        if job.tries == 0 {
            job.rescues = 0;
        }
        if job.tries >= MAX_RECLAIM_RETRIES {
            let waits = self.waits_all_the_same(job, MAX_RECLAIM_RETRIES);
            // If nothing more can go, faults will find out for themselves.
            return if waits { Step::Park(JobState::WaitMemory) } else { Step::Done };
        }
        job.run = Some(self.paging.reclaim.direct_run(&mut self.paging.space));
        Step::Next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_wait_for_memory_go_on_one_by_one_and_only_if_something_was_freed() {
        let mut jobs = Jobs::new();
        for state in [JobState::WaitMemory, JobState::WaitPage(7), JobState::WaitMemory, JobState::Nap(50)] {
            let mut job = Job::of_nobody(JobKind::Shrink);
            jobs.number(&mut job);
            jobs.park(job, state);
        }
        assert!(jobs.take(0, false, false, 0).is_none(), "nothing was freed, and no time has passed");
        let took = |job: Option<Job>| job.map(|job| job.number);
        assert_eq!(took(jobs.take(0, false, true, 0)), Some(1), "the oldest of two");
        jobs.page_done(7);
        assert_eq!(took(jobs.take(0, false, false, 50)), Some(2));
        assert_eq!(took(jobs.take(2, false, false, 50)), Some(4), "its nap is over");
        assert_eq!(took(jobs.take(4, false, true, 50)), Some(3));
    }
}
