//! Calls that install a system call filter: one for all threads is one for ours.

use std::sync::atomic::AtomicPtr;

use libc::{c_int, c_ulong, c_void};
use pagetide::agent_entry;
use pagetide_sys::seccomp::{ALL_THREADS, ALL_THREADS_OR_ERROR, Program, SET_FILTER};
use pagetide_sys::syscall::Errno;
use pagetide_sys::word::{low_u32, u64_of};

use crate::next::next;

/// The answer to seccomp(2) if this one is refused; None: it is the kernel's to answer.
pub(crate) fn refused(operation: usize, flags: usize, program: usize) -> Option<Result<u32, Errno>> {
    let [operation, flags] = [operation, flags].map(|word| low_u32(u64_of(word)));
    let agent = judged(operation == SET_FILTER, program, flags & ALL_THREADS != 0)?;
    Some(if flags & ALL_THREADS_OR_ERROR != 0 { Err(Errno::ESRCH) } else { Ok(agent) })
}

fn judged(is_filter: bool, program: usize, in_all: bool) -> Option<u32> {
    if !is_filter || !agent_entry::is_running() {
        return None;
    }
    // SAFETY: the program hands it to the kernel.
    unsafe { agent_entry::filter(std::ptr::with_exposed_provenance::<Program>(program), in_all) }
}

/// As prctl(2), whose filters are the calling thread's.
#[unsafe(no_mangle)]
unsafe extern "C" fn prctl(option: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    if option == libc::PR_SET_SECCOMP {
        let program = usize::try_from(b).expect("both have 64 bits");
        judged(a == c_ulong::from(libc::SECCOMP_MODE_FILTER), program, false);
    }
    type Prctl = unsafe extern "C" fn(c_int, c_ulong, c_ulong, c_ulong, c_ulong) -> c_int;
    // SAFETY: libc's function of this name; what it takes beyond the first argument are words.
    let prctl: Prctl = unsafe { std::mem::transmute(next(&NEXT, c"prctl")) };
    // SAFETY: passed on as it came.
    unsafe { prctl(option, a, b, c, d) }
}
