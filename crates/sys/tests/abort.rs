//! The end of a process that must not go on.

use linux_raw_sys::general::{__NR_clone, __NR_exit_group, __NR_wait4};
use pagetide_sys::signal::{self, Action, SigInfo, SignalSet, number};
use pagetide_sys::syscall;

unsafe extern "C" fn goes_on(_signal: i32, _info: *mut SigInfo, _context: *mut u8) {
    // SAFETY: ends the child, as a handler that the program survives with would.
    let _ = unsafe { syscall!(__NR_exit_group, 7) };
}

#[test]
fn no_handler_of_the_program_runs_at_an_abort() {
    const SIGCHLD: usize = 17;
    // SAFETY: the child has its own copy of this thread's stack, makes system calls only and ends.
    let child = unsafe { syscall!(__NR_clone, SIGCHLD, 0, 0, 0, 0) }.expect("fork");
    if child == 0 {
        let handler = Action::run(goes_on, 0, SignalSet::NONE);
        // SAFETY: the handler makes a system call only.
        let _ = unsafe { signal::action(number::ABRT, Some(&handler)) };
        SignalSet::ALL.block();
        signal::abort();
    }
    let mut status = 0u32;
    let place = (&raw mut status).expose_provenance();
    // SAFETY: the kernel writes one word into `status`.
    unsafe { syscall!(__NR_wait4, child, place, 0, 0) }.expect("a child of ours");
    assert_eq!((status & 0x7f, status >> 8), (number::ABRT, 0), "ended by the signal, not by the handler");
}
