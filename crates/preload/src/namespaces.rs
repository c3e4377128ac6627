//! Namespaces that Linux lets nobody enter or leave who has threads: a process that pages has one of ours, and who is refused is told why.

use std::sync::atomic::{AtomicBool, Ordering};

use libc::{c_int, c_long};
use pagetide::agent_entry;
use pagetide_sys::stderr;
use pagetide_sys::syscall::Errno;
use pagetide_sys::text::Text;

use crate::raw::{answered, call};

/// Flags of `unshare` that are for processes with one thread.
const ALONE: c_int = libc::CLONE_NEWUSER | libc::CLONE_THREAD | libc::CLONE_SIGHAND | libc::CLONE_VM;
/// Kinds of namespaces that only such processes enter.
const ENTERED_ALONE: c_int = libc::CLONE_NEWUSER | CLONE_NEWTIME;
const CLONE_NEWTIME: c_int = 0x80;

/// As unshare(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    changed("unshare", libc::SYS_unshare, [int(flags), 0], flags & ALONE != 0)
}

/// As setns(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn setns(fd: c_int, kinds: c_int) -> c_int {
    changed("setns", libc::SYS_setns, [int(fd), int(kinds)], kinds == 0 || kinds & ENTERED_ALONE != 0)
}

const fn int(value: c_int) -> usize {
    value.cast_unsigned() as usize
}

fn changed(name: &str, number: c_long, [first, second]: [usize; 2], is_for_one_thread: bool) -> c_int {
    static TOLD: AtomicBool = AtomicBool::new(false);
    // SAFETY: passed on as it came; the call refers to no memory.
    let answer = unsafe { call(number, [first, second, 0, 0]) };
    let is_refused = matches!(answer, Err(Errno::EINVAL | Errno::EUSERS));
    if is_refused && is_for_one_thread && agent_entry::is_managed() && !TOLD.swap(true, Ordering::Relaxed) {
        let line = Text::<256>::format(format_args!(
            "pagetide: {name} fails in process {}, which pages and so has a thread of ours: Linux changes the user namespace of \
             processes with one thread only. Change it before memory is filled, or in a child that executes\n",
            pagetide_sys::thread::getpid(),
        ));
        stderr::write(line.as_bytes());
    }
    answered(answer)
}
