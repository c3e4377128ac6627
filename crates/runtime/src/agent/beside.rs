//! The agent beside threads that serve their own faults (`serve`): it does what nobody waits for, and serves the faults that a thread
//! leaves to it (`signal::faults`).

use pagetide_core::page::{Flight, PageState};

use pagetide_core::types::Nanos;
use pagetide_sys::fd::{self, PollFd, events};
use pagetide_sys::{Errno, clock, file, thread};

use super::{Agent, Managed};
use crate::serve::{self, ASK_AGAIN_NS, State};
use crate::session::{POLL_NS, Session};
#[cfg(target_arch = "x86_64")]
use crate::signal::faults;
use crate::sleepers::{self, Sleepers};
use crate::space::PAGE_SHIFT;

/// An agent that has something to do asks for messages after so long again: to ask takes 1 us.
const ASK_NS: Nanos = 20_000;

impl Agent {
    /// Sleep while the program's threads serve their own faults: is there a message of the kernel, or of the supervisor? `asked`: when
    /// that was asked last.
    pub(super) fn sleep_beside(
        &self,
        sleepers: &Sleepers,
        [uffd, event]: [PollFd; 2],
        timeout_ns: Nanos,
        asked: &mut Nanos,
    ) -> [bool; 2] {
        let now = clock::now();
        if timeout_ns == 0 && now < *asked + ASK_NS {
            if self.looks {
                sleepers.look(faults::has_unseen);
            } else {
                sleepers::spin();
            }
            return [false; 2];
        }
        *asked = now;
        let mut fds =
            [uffd, PollFd::new(&self.supervisor, events::IN), PollFd::new(sleepers.bell(), events::IN), event];
        match fd::poll(&mut fds, Some(timeout_ns)) {
            Ok(_) => {
                if fds[2].seen() != 0 {
                    let _ = file::take_event(sleepers.bell());
                }
                [fds[0].seen() != 0, fds[1].seen() != 0]
            }
            // An interrupted wait is one that saw nothing.
            Err(Errno::EINTR | Errno::EAGAIN) => [false; 2],
            // A filter of the program: look at both without sleeping.
            Err(_) => {
                thread::yield_now();
                [true; 2]
            }
        }
    }

    /// A turn beside threads that serve their own faults.
    pub(super) fn turn_beside(&mut self, state: &mut State, sleepers: &Sleepers, seen: [bool; 2]) -> Nanos {
        let State { managed, watch, is_agent_asleep } = state;
        *is_agent_asleep = false;
        managed.session.pager.machine_mut().set_caller(thread::gettid());
        let ended = managed.session.pager.machine().requests_ended();
        faults::wake();
        take(&mut managed.session);
        if are_there() {
            managed.end_rest(clock::now());
        }
        let timeout = self.turn(managed, seen, !are_there());
        answer(managed);
        if watch.is_watched() && managed.session.pager.machine().requests_ended() != ended {
            sleepers.tell_watcher();
        }
        sleepers.next_turn(watch);
        if timeout == 0 || !faults::may_sleep() {
            0
        } else if are_there() {
            timeout.min(POLL_NS)
        } else {
            timeout
        }
    }
}

/// The engine's event, while requests of the agent are under way. Whoever waits for a read looks for its end: to wake the agent with him
/// would cost him as much as a small part of it.
pub(super) fn event_of_own(state: &State, sleepers: &Sleepers) -> PollFd {
    let has_begun = state.managed.session.pager.machine().has_begun(thread::gettid());
    sleepers.unwatched_event(state.watch.is_watched() || !has_begun)
}

/// Those that were posted are faults like others from now on.
fn take(session: &mut Session) {
    faults::take_posted(|fault| session.note_fault(fault));
}

/// True while one is not answered.
fn are_there() -> bool {
    faults::has_posted()
}

/// Let those go on that were seen to.
fn answer(managed: &Managed) {
    let (session, forks) = (&managed.session, &managed.forks);
    let is_cpu_free = session.pager.saw_free_cpu();
    serve::note_free_cpu(is_cpu_free);
    faults::answer_posted(is_cpu_free, |address, seen_at| {
        if forks.is_doorbell(address) {
            return (!forks.is_rung(address)).then_some(true);
        }
        if session.has_unanswered(address as u64) {
            return None;
        }
        let Some(page) = session.pager.machine().mappings.page((address >> PAGE_SHIFT) as u64) else {
            return Some(false);
        };
        let view = session.pager.core().page(page);
        // A page that could not be mapped is asked for again, if it is still missed.
        let is_answered = view.state == PageState::Mapped || !session.pager.machine().is_awaited(page);
        let is_over = || is_answered || clock::now() >= seen_at + ASK_AGAIN_NS;
        (view.flight == Flight::None && is_over()).then_some(true)
    });
}

/// There is no signal mode.
#[cfg(not(target_arch = "x86_64"))]
mod faults {
    use pagetide_core::types::Nanos;

    use crate::pager::Fault;

    pub(super) fn take_posted(_each: impl FnMut(Fault)) {}

    pub(super) fn answer_posted(_wake_each_other: bool, _answer: impl FnMut(usize, Nanos) -> Option<bool>) {}

    pub(super) const fn has_posted() -> bool {
        false
    }

    pub(super) const fn has_unseen() -> bool {
        false
    }

    pub(super) const fn may_sleep() -> bool {
        true
    }

    pub(super) const fn wake() {}
}
