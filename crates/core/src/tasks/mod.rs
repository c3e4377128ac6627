//! Tasks: their faults, the jobs that faults become, and what each waits for.
//!
//! The layer that knows who waits. A fault is answered at once, waits for a flight to end, or becomes a job; a job is driven step
//! by step and parked where it has to wait. The parts below (`fault`, `job`, `file_job`, `answers`, `work`, `swapoff`) do one
//! thing each and return what is to happen next; this file lets it happen.

mod answers;
mod fault;
mod file_job;
mod job;
mod swapoff;
mod waiters;
mod work;

use crate::config::Config;
use crate::effect::Effects;
use crate::files::Files;
use crate::paging::{Paging, STEP_ROOM};
use crate::types::{Access, Nanos, TaskId};
use crate::vmstat::Counter;
use fault::Look;
use job::{Job, JobKind, JobState, Jobs, Step};
use waiters::Waiters;
pub(crate) use work::Hint;
use work::Work;

/// All that waits, and what it waits for.
#[derive(Debug)]
pub(crate) struct Tasks {
    pub(crate) paging: Paging,
    pub(crate) files: Files,
    waiters: Waiters,
    jobs: Jobs,
    pub(crate) work: Work,
    /// Answers of the host so far; wraps.
    answers: u32,
}

impl Tasks {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            paging: Paging::new(config),
            files: Files::new(config),
            waiters: Waiters::new(),
            jobs: Jobs::new(),
            work: Work::new(),
            answers: 0,
        }
    }

    #[inline]
    fn count(&mut self, counter: Counter, n: u32) {
        self.paging.space.mem.count(counter, n);
    }

    /// Answer a fault, or find what it has to wait for. `first`: the first look, which the statistics count.
    pub(crate) fn fault(&mut self, p: u32, access: Access, task: TaskId, first: bool, out: &mut Effects) {
        match self.look(p, access, task, first, out) {
            Look::Answered => {}
            Look::Job(job) => self.start_job(job, out),
            Look::Ahead { job, around } => {
                if let Some(job) = job {
                    self.start_job(job, out);
                }
                if around {
                    self.files.map_around(&mut self.paging, p, out);
                }
            }
        }
    }

    /// Start a job now; park it if it has to stop.
    fn start_job(&mut self, mut job: Job, out: &mut Effects) {
        self.jobs.number(&mut job);
        self.drive(job, out);
    }

    /// Let a job go on. True: it is done, or could go on at once.
    fn drive(&mut self, mut job: Job, out: &mut Effects) -> bool {
        self.paging.space.mem.on_cpu_of(job.task.0);
        self.resume(&mut job);
        let state = loop {
            match self.job_step(&mut job, out) {
                Step::Next => {}
                Step::Ahead(window) => {
                    if let Some(ahead) = window.filter(|_| !self.jobs.is_full()) {
                        self.start_job(Job::new(JobKind::FileAhead, job.page, Access::Read, TaskId(0), ahead), out);
                    }
                    if let Some(state) = self.file_call_goes_on(&mut job) {
                        break state;
                    }
                }
                Step::Done => return true,
                Step::LookAgain => {
                    self.fault(job.page, job.access, job.task, false, out);
                    return true;
                }
                Step::Park(state) => break state,
            }
        };
        if state == JobState::WaitMemory && !job.waits_memory() {
            self.count(Counter::pt_wait_memory, 1);
        }
        if state == JobState::WaitMemory {
            self.paging.space.mem.budget.begin_wait();
        }
        self.jobs.park(job, state);
        state == JobState::Runnable
    }

    /// Let everything go on that can, as far as the room for effects allows. `amid`: an answer came amid others.
    pub(crate) fn run_ready(&mut self, is_timeout: bool, amid: bool, out: &mut Effects) {
        self.drain_discards(out);
        let mut left = self.waiters.ready_len();
        while left > 0 && out.room() >= STEP_ROOM {
            let Some(waiter) = self.waiters.pop_ready() else {
                break;
            };
            left -= 1;
            self.fault(waiter.page, waiter.access, waiter.task, false, out);
        }
        let mut after = 0;
        while out.room() >= STEP_ROOM && self.jobs.parked() > 0 {
            let mem = &mut self.paging.space.mem;
            let Some(job) = self.jobs.take(after, amid, mem.budget.is_kicked(), mem.now) else {
                break;
            };
            let waited = job.waits_memory();
            if waited {
                mem.budget.end_wait();
            } else {
                after = job.number;
            }
            let went_on = self.drive(job, out);
            if waited && !went_on {
                self.paging.space.mem.budget.found_nothing();
            }
        }
        self.run_work(out);
        let in_turn = is_timeout || !self.paging.host.kswapd_at_timeouts;
        if out.room() >= STEP_ROOM && !amid && in_turn {
            self.paging.reclaim.run_kswapd(&mut self.paging.space, out);
        }
    }

    /// Go on with the long work.
    fn run_work(&mut self, out: &mut Effects) {
        if self.work.take_shrink() && !self.paging.space.mem.is_held {
            // Until moves are answered a job may wait long: one is enough, more would leave no room for faults.
            if self.paging.host.answers_moves && self.jobs.renew_shrink() {
                self.paging.space.mem.budget.freed();
            } else if self.jobs.is_full() || out.room() < STEP_ROOM {
                self.work.want_shrink(true);
            } else {
                self.start_job(Job::of_nobody(JobKind::Shrink), out);
            }
        }
        if !self.jobs.is_full() && out.room() >= STEP_ROOM && self.work.take_room() {
            self.start_job(Job::of_nobody(JobKind::Room), out);
        }
        if self.paging.space.mem.is_held {
            self.map_everything(out);
        }
        self.rescue();
        self.run_hints(out);
        self.run_swapoff(out);
        if self.files.is_flusher_runnable(&self.paging.space.mem) {
            self.files.run_flusher(&mut self.paging, out);
        }
    }

    /// Drop the frames of pages that were discarded while there was no room for the order.
    #[inline]
    fn drain_discards(&mut self, out: &mut Effects) {
        while out.room() > 1
            && let Some(p) = self.paging.space.mem.next_discard()
        {
            self.paging.space.finish_discard(p, out);
        }
    }

    // What is left to do.

    /// When a nap, the rest of pages that could not be moved, or a pause of swapoff ends.
    pub(crate) fn wakes_at(&self) -> Option<Nanos> {
        let naps = [self.paging.reclaim.kswapd_wakes_at(self.now()), self.jobs.wakes_at()];
        naps.into_iter().chain([self.work.rescue_at(), self.work.swapoff_wakes_at()]).flatten().min()
    }

    #[inline]
    pub(crate) const fn now(&self) -> Nanos {
        self.paging.space.mem.now
    }

    pub(crate) fn has_work(&self) -> bool {
        let mem = &self.paging.space.mem;
        self.has_prompt_work() || (self.paging.reclaim.is_kswapd_runnable(mem.now) && !mem.is_held)
    }

    /// Work other than background reclaim.
    pub(crate) fn has_prompt_work(&self) -> bool {
        let mem = &self.paging.space.mem;
        self.waiters.ready_len() > 0
            || mem.budget.may_retry()
            || self.jobs.has_runnable(mem.now)
            || mem.next_discard().is_some()
            || self.files.is_flusher_runnable(mem)
            || self.work.has_any(mem.is_held && mem.counts().cached > 0)
    }
}
