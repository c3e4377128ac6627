//! The end of a process that must not go on.

use linux_raw_sys::general::{__NR_clone, __NR_exit_group, __NR_wait4, CLONE_NEWPID};
use pagetide_sys::signal::{self, Action, SigInfo, SignalSet, number};
use pagetide_sys::{Errno, clock, syscall};

unsafe extern "C" fn goes_on(_signal: i32, _info: *mut SigInfo, _context: *mut u8) {
    // SAFETY: ends the child, as a handler that the program survives with would.
    let _ = unsafe { syscall!(__NR_exit_group, 7) };
}

/// The signal that ended a child in which everything is blocked and SIGABRT handled, and its exit status.
fn end_of_child(flags: usize, end: fn() -> !) -> Result<(u32, u32), Errno> {
    const SIGCHLD: usize = 17;
    const WNOHANG: usize = 1;
    // SAFETY: the child has its own copy of this thread's stack, makes system calls only and ends.
    let child = unsafe { syscall!(__NR_clone, flags | SIGCHLD, 0, 0, 0, 0) }?;
    if child == 0 {
        let handler = Action::run(goes_on, 0, SignalSet::NONE);
        // SAFETY: the handler makes a system call only.
        let _ = unsafe { signal::action(number::ABRT, Some(&handler)) };
        SignalSet::ALL.block();
        end();
    }
    let mut status = 0u32;
    let place = (&raw mut status).expose_provenance();
    let begin = clock::now();
    // SAFETY: the kernel writes one word into `status`.
    while unsafe { syscall!(__NR_wait4, child, place, WNOHANG, 0) }? == 0 {
        if clock::now() - begin > 10_000_000_000 {
            let _ = signal::kill(i32::try_from(child).expect("process numbers fit"), number::KILL);
            panic!("the child goes on");
        }
        std::thread::yield_now();
    }
    Ok((status & 0x7f, status >> 8))
}

#[test]
fn no_handler_of_the_program_runs_at_an_abort() {
    let ended = end_of_child(0, signal::abort).expect("a child of ours");
    assert_eq!(ended, (number::ABRT, 0), "by the signal, not by the handler");
    assert_eq!(end_of_child(0, signal::end), Ok((number::KILL, 0)));
    assert_eq!(end_of_child(0, || pagetide_sys::text::die(format_args!("the last word"))), Ok((number::ABRT, 0)));
}

/// It ignores all signals of its own, and waited for the end for ever.
#[test]
fn the_first_process_of_a_pid_namespace_can_end_itself() {
    let flags = CLONE_NEWPID as usize;
    match end_of_child(flags, signal::abort) {
        Err(Errno::EPERM) => eprintln!("SKIPPED: no right to make a pid namespace"),
        ended => {
            assert_eq!(ended, Ok((0, 128 + number::ABRT)));
            assert_eq!(end_of_child(flags, signal::end), Ok((0, 128 + number::KILL)));
        }
    }
}
