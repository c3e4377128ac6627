//! Limits that a program sets on itself: what our tables take of them is added.

use libc::{c_int, c_uint, pid_t, rlimit};
use pagetide::agent_entry;

use crate::raw::{answered, call};

/// # Safety
/// As prlimit(2).
unsafe fn set(process: pid_t, which: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int {
    let arguments = [process.cast_unsigned() as usize, which as usize, new.addr(), old.addr()];
    // SAFETY: the caller's.
    let answer = unsafe { call(libc::SYS_prlimit64, arguments) };
    if answer.is_ok() && !new.is_null() {
        agent_entry::limit_was_set(process, which as usize);
    }
    answered(answer)
}

macro_rules! named {
    ($($set:ident, $set_of:ident;)*) => {$(
        /// As setrlimit(2).
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $set(which: c_uint, limit: *const rlimit) -> c_int {
            // SAFETY: passed on as it came.
            unsafe { set(0, which, limit, std::ptr::null_mut()) }
        }

        /// As prlimit(2).
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $set_of(process: pid_t, which: c_uint, new: *const rlimit, old: *mut rlimit) -> c_int {
            // SAFETY: passed on as it came.
            unsafe { set(process, which, new, old) }
        }
    )*};
}

named! {
    setrlimit, prlimit;
    setrlimit64, prlimit64;
}
