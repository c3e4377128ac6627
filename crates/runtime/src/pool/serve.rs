//! Waiting for pages: what a faulting thread does under the lock and between, and the pool's own thread.
//!
//! A fault goes to the pager as in thread mode; `sleepers` says how its thread waits. The thread begins the read of its page alone, and
//! goes on only when that is over (see [`crate::io::Engine::has_begun`]): readahead and the writes are the pool's thread's to begin.

use std::sync::atomic::Ordering;

use pagetide_core::page::{Flight, PageState};
use pagetide_core::types::{Access, Nanos, PageIdx, TaskId};
use pagetide_sys::fd::{self, PollFd, events};
use pagetide_sys::file;
use pagetide_sys::{clock, thread};

use super::{FAILED_FAULTS, Locked, Shared, Sleep, State, until};
use crate::pager::{Fault, FaultAnswer};
use crate::sleepers::{self, Sleepers};
use crate::space::PAGE_SHIFT;

/// A fault that is parked nowhere any more is put again.
const ASK_AGAIN_NS: Nanos = 10_000_000;
/// The pool's thread while someone else watches the engine.
const BESIDE_NS: Nanos = 500_000;
/// The pool's thread while requests are under way.
const BUSY_NS: Nanos = 2_000_000;
/// The pool's thread while nothing is.
const IDLE_NS: Nanos = 1_000_000_000;
/// It is looked so often whether they have ended.
const CHECK_NS: Nanos = 1_000_000;
/// Requests of a pool that is dropped end within this time, or are left to the kernel.
const FINISH_NS: Nanos = 30_000_000_000;

/// The pool's thread as a caller: it makes no calls that could be interrupted.
const OWN_THREAD: i32 = 0;

/// How a fault ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The page is there.
    Mapped,
    /// Its content is lost.
    Lost,
    /// There is no room for it.
    NoSpace,
    /// The address is not ours.
    Unknown,
}

impl State {
    /// The page of an address.
    pub(super) fn page(&self, address: usize) -> Option<PageIdx> {
        self.session.pager.machine().mappings.page((address >> PAGE_SHIFT) as u64)
    }

    /// One step of all that is to be done. True if there is more at once. `missed`: of what a thread does that has faulted on this page,
    /// and must not allocate.
    fn work(&mut self, now: Nanos, sleepers: &Sleepers, missed: Option<PageIdx>) -> bool {
        let session = &mut self.session;
        let ended = session.pager.machine().requests_ended();
        let busy = if let Some(page) = missed {
            session.pager.grow_stores(now);
            session.pager.pump_for(now, page)
        } else {
            session.work(now)
        };
        if self.watch.is_watched() && session.pager.machine().requests_ended() != ended {
            sleepers.tell_watcher();
        }
        if let Some(failed) = session.take_failed_fault(now, || false)
            && self.failed.len() < FAILED_FAULTS
        {
            self.failed.push(failed);
        }
        // Who touches a lost page is told then. The kernel marks at once: no change of the address space waits to be read.
        session.mark_lost(|_| {});
        if missed.is_some() && self.sleep != Sleep::Awake && session.pager.has_waiting_requests(now) {
            self.sleep = Sleep::Awake;
            sleepers.ring();
        }
        busy
    }

    /// A request is under way that this thread has begun.
    fn has_begun(&self, thread: i32) -> bool {
        self.session.pager.machine().has_begun(thread)
    }

    /// How this page's fault stands; `None`: not answered yet.
    fn answer(&mut self, page: PageIdx, task: TaskId) -> Option<Answer> {
        let view = self.session.pager.core().page(page);
        if view.flight != Flight::None {
            return None;
        }
        match view.state {
            PageState::Mapped => Some(Answer::Mapped),
            PageState::Poisoned => Some(Answer::Lost),
            PageState::Untouched | PageState::Cached | PageState::Swapped => {
                let before = self.failed.len();
                self.failed.retain(|&failed| failed != (task, page));
                (self.failed.len() < before).then_some(Answer::NoSpace)
            }
        }
    }
}

impl Shared {
    /// Bring the page of a fault in. In the signal handler: all signals are blocked already.
    pub(super) fn serve(&self, address: usize, access: Access) -> Answer {
        let state = self.lock("a fault");
        self.bring_in(state, address, access).1
    }

    /// Bring a page in, and give the lock back.
    pub(super) fn bring_in<'a>(
        &'a self,
        mut state: Locked<'a>,
        address: usize,
        access: Access,
    ) -> (Locked<'a>, Answer) {
        let thread = thread::gettid();
        let task = TaskId(thread.cast_unsigned());
        let fault = Fault { address: address as u64, access, thread: task.0 };
        state.failed.retain(|&(failed, _)| failed != task);
        let mut asked = clock::now();
        if state.session.pager.on_fault(asked, fault, task) == FaultAnswer::Unknown {
            return (state, Answer::Unknown);
        }
        let page = state.page(address).expect("the fault was on a page of ours");
        let mut answer = None;
        loop {
            let now = clock::now();
            state.session.pager.machine_mut().set_caller(thread);
            answer = state.answer(page, task).or(answer);
            let mut is_busy = false;
            if answer.is_none() || state.has_begun(thread) {
                is_busy = state.work(now, &self.sleepers, Some(page));
                answer = state.answer(page, task).or(answer);
            }
            if let Some(answer) = answer
                && !state.has_begun(thread)
            {
                self.leave(&mut state, now);
                return (state, answer);
            }
            if state.session.pager.machine().has_unsubmitted() {
                let is_taken;
                (state, is_taken) = self.pass_on(state, thread);
                if is_taken {
                    continue;
                }
            } else if is_busy {
                continue;
            }
            if answer.is_none()
                && now >= asked + ASK_AGAIN_NS
                && state.session.pager.core().page(page).flight == Flight::None
            {
                asked = now;
                // `Later` too is looked at again at the next turn.
                let _ = state.session.pager.on_fault(now, fault, task);
                continue;
            }
            let is_free = || self.sleepers.is_cpu_free();
            let looks = !state.watch.is_watched() && state.session.pager.is_worth_looking(now, is_free);
            state = self.sleepers.wait(state, looks, |state| &mut state.watch, || self.lock("after a wait"));
        }
    }

    /// Pass on what the caller has queued. False: the kernel has not taken all of it.
    fn pass_on<'a>(&'a self, state: Locked<'a>, caller: i32) -> (Locked<'a>, bool) {
        let lock = || self.lock("requests were passed on");
        sleepers::pass_on(state, caller, |state| state.session.pager.machine_mut(), lock)
    }

    /// Let the others go on, and the pool's thread do what is left.
    fn leave(&self, state: &mut State, now: Nanos) {
        state.session.count_latencies(|_, _| {});
        self.sleepers.next_turn(&state.watch);
        let has_work = state.session.pager.core().deadline().is_some_and(|deadline| deadline < now + BUSY_NS)
            || state.session.pager.machine().requests_in_flight() > 0;
        if state.sleep == Sleep::Long && has_work {
            state.sleep = Sleep::Awake;
            self.sleepers.ring();
        }
    }

    /// Wait until no request names the pool's memory any more.
    pub(super) fn finish_requests(&self) {
        let end = clock::now() + FINISH_NS;
        loop {
            let mut state = self.lock("the end");
            state.session.pager.machine_mut().abandon_results();
            if state.session.pager.machine().requests_in_flight() == 0 {
                return;
            }
            drop(state);
            assert!(clock::now() < end, "the disk did not answer for 30 s while a pool was dropped");
            self.sleepers.wait_for_engine(CHECK_NS);
        }
    }
}

/// The pool's thread: background reclaim, results that nobody waits for, writes that were gathered.
pub(super) fn run_thread(shared: &Shared) {
    loop {
        let mut state = shared.lock("background work");
        if shared.is_over.load(Ordering::Acquire) {
            return;
        }
        state.sleep = Sleep::Awake;
        let now = clock::now();
        state.session.pager.machine_mut().set_caller(OWN_THREAD);
        let is_busy = state.work(now, &shared.sleepers, None);
        if is_busy {
            drop(shared.pass_on(state, OWN_THREAD).0);
            thread::yield_now();
            continue;
        }
        state.session.pager.begin_writes(now);
        if state.session.pager.machine().has_unsubmitted() {
            let is_taken;
            (state, is_taken) = shared.pass_on(state, OWN_THREAD);
            if is_taken {
                // Others may have left something to do meanwhile, and rung for nobody.
                continue;
            }
        }
        state.session.count_latencies(|_, _| {});
        let is_watched = state.watch.is_watched();
        let has_requests =
            state.session.pager.machine().requests_in_flight() > 0 || state.session.pager.machine().has_deferred();
        let deadline = state.session.deadline();
        let most = match (is_watched, has_requests) {
            (true, _) => BESIDE_NS,
            (false, true) => BUSY_NS,
            (false, false) => IDLE_NS,
        };
        state.sleep = if most == IDLE_NS { Sleep::Long } else { Sleep::Short };
        drop(state);
        let engine = shared.sleepers.unwatched_event(is_watched);
        // An interrupted wait is one that saw nothing.
        let bell = shared.sleepers.bell();
        let _ = fd::poll(&mut [PollFd::new(bell, events::IN), engine], Some(until(deadline, now, most)));
        let _ = file::take_event(bell);
    }
}
