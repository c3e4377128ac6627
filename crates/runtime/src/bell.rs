//! The bell: a thread of the program that maps more than the budget has left tells the agent before it fills it.
//!
//! The supervisor looks at a native process every few milliseconds, and a thread fills 10 MiB in each of them: too late for a small
//! budget. A large mapping is told of by the thread that made it, which waits until the memory is managed. The bell is a
//! signal to the agent's thread alone, which has it blocked and polls for it: no descriptor is shared with a program that may
//! close or reuse it, and no handler runs.

use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use pagetide_sys::futex::{self, Scope};
use pagetide_sys::signal::{self, SignalSet, number};
use pagetide_sys::thread;

use crate::control::Header;
use crate::spans::PAGE_SHIFT;

/// What the agent polls for. No program can send it by mistake: libc refuses its number.
pub(crate) const SIGNAL: SignalSet = SignalSet::one(number::RESERVED);
/// A mapping of fewer bytes is not worth a look.
const BYTES_MIN: usize = 1 << 20;
/// Who waits for the agent looks again after this time, and rings again.
const WAIT_NS: u64 = 100_000_000;
/// After so many waits the agent has ended, and with it soon the process.
const WAITS_MAX: u32 = 100;

/// What the run has and uses, while somebody listens.
static HEADER: AtomicPtr<Header> = AtomicPtr::new(std::ptr::null_mut());
/// What the agent does.
static AGENT: AtomicU32 = AtomicU32::new(DEAF);
/// It manages the memory, or there is none.
const DEAF: u32 = 0;
/// It begins: it will be listening in less than a millisecond.
const COMING: u32 = 1;
const LISTENING: u32 = 2;

/// An agent that is to listen starts.
pub(crate) fn order() {
    AGENT.store(COMING, Ordering::Relaxed);
}

/// The agent listens from now on. The header is of a mapping that stays as long as the process.
pub(crate) fn hang(header: &Header) {
    HEADER.store(std::ptr::from_ref(header).cast_mut(), Ordering::Release);
    now(LISTENING);
}

/// The memory is managed, or nobody can ring: who waits goes on.
pub(crate) fn take_down() {
    now(DEAF);
}

fn now(state: u32) {
    AGENT.store(state, Ordering::Release);
    futex::wake(&AGENT, u32::MAX, Scope::Private);
}

/// The process `pid`, whose agent is the thread `agent`, has mapped so much fresh private memory: manage it before it is filled, if
/// it does not fit into what is left.
pub(crate) fn mapped(bytes: usize, pid: i32, agent: &AtomicU32) {
    if bytes < BYTES_MIN || AGENT.load(Ordering::Acquire) == DEAF || thread::getpid() != pid {
        return;
    }
    for _ in 0..WAITS_MAX {
        let state = AGENT.load(Ordering::Acquire);
        if state == DEAF {
            return;
        }
        if state == LISTENING {
            // SAFETY: stored before the state, of a mapping of atomics that stays as long as the process.
            let header = unsafe { &*HEADER.load(Ordering::Acquire) };
            let (budget, used) = (&header.budget_pages, &header.resident_pages);
            let fits = used.load(Ordering::Relaxed) + (bytes >> PAGE_SHIFT) as u64 <= budget.load(Ordering::Relaxed);
            let tid = agent.load(Ordering::Relaxed).cast_signed();
            if fits || signal::kill_thread(pid, tid, number::RESERVED).is_err() {
                return;
            }
        }
        futex::wait(&AGENT, state, Some(WAIT_NS), Scope::Private);
    }
}
