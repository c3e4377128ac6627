//! System call filters and strict mode (seccomp) that the program gives a thread: they hold for the calls of our handlers in it as well.
//!
//! A filter is judged before it is installed. What it leaves decides how the thread is served from then on: as others are, without
//! threads of its own, or as strict mode leaves it, by calls that read, write and return. One that leaves less is refused: the next
//! touch of a page that is out would end the thread. So is one for all threads that the agent cannot live with.

use std::sync::atomic::{AtomicBool, Ordering};

use pagetide_sys::seccomp::{self, ALL_THREADS, ALL_THREADS_OR_ERROR, Denied, Leaves, STEPS_MAX, Step};
use pagetide_sys::{Errno, stderr};

use super::dispatch::{Program, make, tell_once};
use super::threads::{self, Thread};
use crate::agent_entry;

pub(super) const PRCTL: u32 = 157;
/// Of prctl and of seccomp: strict mode, or a filter.
const PR_MODE_STRICT: usize = 1;
const PR_MODE_FILTER: usize = 2;
const SET_MODE_STRICT: usize = 0;
const SET_MODE_FILTER: usize = 1;

/// What a call asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Strict,
    Filter {
        at: usize,
        flags: u32,
    },
    /// Nothing that the kernel would install.
    Other,
}

impl Wish {
    fn of(number: u32, [first, second, third, ..]: [usize; 6]) -> Self {
        match (number, first, second) {
            (PRCTL, _, PR_MODE_STRICT) => Self::Strict,
            (PRCTL, _, PR_MODE_FILTER) => Self::Filter { at: third, flags: 0 },
            (PRCTL, ..) => Self::Other,
            (_, SET_MODE_STRICT, _) => Self::Strict,
            (_, SET_MODE_FILTER, flags) => {
                Self::Filter { at: third, flags: pagetide_sys::word::low_u32(pagetide_sys::word::u64_of(flags)) }
            }
            _ => Self::Other,
        }
    }
}

/// `prctl(PR_SET_SECCOMP)` and seccomp(2).
pub(super) fn install(block: &Thread, number: u32, arguments: [usize; 6]) -> isize {
    let (leaves, flags) = match Wish::of(number, arguments) {
        Wish::Other => return make(block, number, arguments),
        Wish::Strict => {
            stderr::confine();
            (Leaves::Little, 0)
        }
        Wish::Filter { at, flags } => {
            let (leaves, denied) = judge(at);
            if let Some(agent) = agent_entry::filter_that_denies(denied, flags & ALL_THREADS != 0) {
                let number = isize::try_from(agent).expect("a small number");
                return if flags & ALL_THREADS_OR_ERROR != 0 { Errno::ESRCH.negated() } else { number };
            }
            (leaves, flags)
        }
    };
    if leaves == Leaves::Nothing {
        tell_once(
            number,
            "is refused (EINVAL): the filter denies what a thread needs whose memory is out (to write, to return from handlers, and to \
             read or to sleep)",
        );
        return Errno::EINVAL.negated();
    }
    let answer = make(block, number, arguments);
    if answer == 0 && flags & ALL_THREADS != 0 {
        threads::all().for_each(|thread| thread.filter(leaves));
    } else if answer >= 0 {
        block.filter(leaves);
    }
    answer
}

/// What a filter leaves, and what it denies us. What cannot be read is the kernel's to refuse.
fn judge(at: usize) -> (Leaves, Denied) {
    struct Steps(std::cell::UnsafeCell<[Step; STEPS_MAX]>);
    // SAFETY: used while the lock is held.
    unsafe impl Sync for Steps {}
    static STEPS: Steps =
        Steps(std::cell::UnsafeCell::new([Step { code: 0, then: 0, otherwise: 0, value: 0 }; STEPS_MAX]));
    static IS_LOCKED: AtomicBool = AtomicBool::new(false);
    while IS_LOCKED.swap(true, Ordering::Acquire) {
        std::hint::spin_loop();
    }
    // SAFETY: the lock is held. Too large for a handler's stack.
    let steps = seccomp::read(&mut Program, at, unsafe { &mut *STEPS.0.get() });
    let judged =
        steps.map_or((Leaves::Everything, Denied::default()), |steps| (seccomp::leaves(steps), seccomp::denied(steps)));
    IS_LOCKED.store(false, Ordering::Release);
    judged
}
