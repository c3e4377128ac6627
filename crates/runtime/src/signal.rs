//! Signal mode: a program whose memory is paged without any privilege.
//!
//! A userfaultfd for user code is open to everyone; what it does not catch are the kernel's own accesses. So every thread of the
//! program is armed (Syscall User Dispatch) before anything is paged: the kernel sends SIGSYS instead of making a call, and the
//! handler (`dispatch`) brings in what the call may touch, holds it, makes the call and lets go. Faults of user code come as SIGBUS, and
//! the thread serves itself (`faults`).
//!
//! Handlers run on a stack of ours, which is never paged; so do, for a moment, all handlers of the program, because the kernel cannot
//! write the frame of a signal to a stack whose page is out: `actions` writes it there itself. To the program it looks as if it had the
//! kernel for itself: its actions, masks and alternate stacks are kept here.
//!
//! Invariants: while a thread runs the program's code its switch blocks, and its stack pointer is not in a block of ours; while it
//! runs ours, it is. No code of the program runs in between. SIGSYS, SIGSEGV and SIGBUS are never blocked in the kernel.

mod actions;
mod clones;
mod compat;
mod dispatch;
mod entry;
pub(crate) mod faults;
mod filtered;
mod forks;
mod traced;
mod inplace;
mod messages;
mod sites;
mod pieces;
mod waiting;
pub(crate) mod threads;

pub(crate) use dispatch::tell_refused;
pub use inplace::call_in_place;
pub(crate) use inplace::rest;

use pagetide_sys::signal::{AltStack, SignalSet};
use pagetide_sys::trace::Interrupted;
use pagetide_sys::{Errno, clock, thread};

use crate::foothold;
use threads::Thread;

/// Signals that the kernel must never find blocked, because ours are among them.
const OURS: SignalSet = foothold::UNBLOCKED;

/// Arm the calling thread; `hidden` are the signals of ours that the program blocks in it, `interrupted` the call that it goes on with. Again: does nothing. All other threads of
/// the process that are not armed are stopped, and all signals are blocked.
pub(crate) fn arm(hidden: u64, interrupted: Option<Interrupted>) -> Result<(), Errno> {
    if !thread::has_counter() {
        clock::deny();
    }
    threads::prepare()?;
    actions::take_over()?;
    let tid = thread::gettid();
    if threads::all().any(|thread| thread.is_of(tid)) {
        return Ok(());
    }
    let block = Thread::take().ok_or(Errno::EAGAIN)?;
    // SAFETY: the block is the thread's as long as it lives.
    let before = unsafe { AltStack::set(Some(&block.stack())) }?;
    block.begin(tid, SignalSet(hidden), before, actions::of_process());
    entry::arm(block)?;
    dispatch::hold_control_block();
    if let Some(interrupted) = interrupted {
        dispatch::hold_interrupted(block, interrupted);
    }
    inplace::begin(block);
    block.switch().block();
    Ok(())
}

/// The code of the C library.
pub(crate) fn note_text(start: usize, end: usize) {
    sites::note_text(start, end);
}

/// Where the C library keeps what the kernel writes of a thread's restartable sequences, from its control block on.
pub(crate) fn note_sequences(offset: isize) {
    dispatch::SEQUENCES_AT.store(offset, std::sync::atomic::Ordering::Relaxed);
}
