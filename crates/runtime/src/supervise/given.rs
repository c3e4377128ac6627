//! What the standard library changes before `main`, and the program is to find as we were given it: SIGPIPE, which it ignores and lets
//! children have as the default, and standard streams that are closed, in whose place it opens /dev/null.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};

use pagetide_sys::fd::Fd;
use pagetide_sys::signal::{self, Action};
use pagetide_sys::{Errno, file};

const PIPE: u32 = 13;

static IGNORES_PIPES: AtomicBool = AtomicBool::new(false);
static IS_CLOSED: [AtomicBool; 3] = [const { AtomicBool::new(false) }; 3];

extern "C" fn at_load() {
    // miri knows no system calls.
    if cfg!(miri) {
        return;
    }
    // The preloaded object has this code as well: a program of a run is left alone.
    // SAFETY: the environment is not changed while constructors run.
    if !unsafe { libc::getenv(c"PAGETIDE_RUN".as_ptr()) }.is_null() {
        return;
    }
    for (raw, is_closed) in (0..).zip(&IS_CLOSED) {
        // SAFETY: it is only asked about, and not closed here.
        let stream = ManuallyDrop::new(unsafe { Fd::from_raw(raw) });
        is_closed.store(matches!(file::info(&stream), Err(Errno::EBADF)), Ordering::Relaxed);
    }
    // SAFETY: only asks.
    let action = unsafe { signal::action(PIPE, None) };
    IGNORES_PIPES.store(action.is_ok_and(|action| action.handler == signal::IGNORE), Ordering::Relaxed);
}

#[used]
// SAFETY: the loader calls the entries of this section once, before `main`, as C functions.
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

/// In the child that becomes the program, last of all.
pub(super) fn hand_down() {
    if IGNORES_PIPES.load(Ordering::Relaxed) {
        let ignored = Action { handler: signal::IGNORE, ..Action::DEFAULT };
        // SAFETY: no handler is set.
        let _ = unsafe { signal::action(PIPE, Some(&ignored)) };
    }
    for (raw, is_closed) in (0..).zip(&IS_CLOSED) {
        if is_closed.load(Ordering::Relaxed) {
            // SAFETY: what the standard library opened there, which the program is not to have.
            drop(unsafe { Fd::from_raw(raw) });
        }
    }
}
