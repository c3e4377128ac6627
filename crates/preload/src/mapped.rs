//! Calls that change mappings: the agent is told of fresh memory before it is filled, if it is much, and what came from a file is found
//! as natively.
//!
//! What libc maps for itself (malloc) and a program's own system call instructions are not seen here; the supervisor's looks find them.

use libc::{c_int, c_long, c_void, off_t, size_t};
use pagetide::agent_entry;
use pagetide_sys::syscall::{Errno, answer_of, register_of, syscall6};

use crate::raw::{answered, set_errno};

/// A call that may change mappings, as the program makes it.
///
/// # Safety
/// As for the call itself.
pub(crate) unsafe fn change(number: c_long, arguments: [usize; 6]) -> Result<usize, Errno> {
    let number = u32::try_from(number).expect("numbers of system calls are small");
    let answer = agent_entry::change(number, arguments, |number, arguments| {
        // SAFETY: the caller's; what else is called moves what came from a file back.
        register_of(unsafe { syscall6(number, arguments) })
    });
    answer_of(answer.cast_unsigned())
}

/// The address, or `MAP_FAILED` with `errno` set.
fn mapped(answer: Result<usize, Errno>) -> *mut c_void {
    match answer {
        Ok(start) => std::ptr::with_exposed_provenance_mut(start),
        Err(errno) => {
            set_errno(errno.code());
            libc::MAP_FAILED
        }
    }
}

/// As mmap(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    address: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    let int = |value: c_int| value.cast_unsigned() as usize;
    let offset = usize::try_from(offset.cast_unsigned()).expect("both have 64 bits");
    let (protection, flags) = (int(protection), int(flags));
    // SAFETY: passed on as it came.
    let answer = unsafe { change(libc::SYS_mmap, [address.addr(), length, protection, flags, int(fd), offset]) };
    if answer.is_ok() && agent_entry::is_fresh(protection, flags) {
        agent_entry::mapped(length);
    }
    mapped(answer)
}

/// As mmap64(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn mmap64(
    address: *mut c_void,
    length: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> *mut c_void {
    // SAFETY: the same call where offsets have 64 bits anyway.
    unsafe { mmap(address, length, protection, flags, fd, offset) }
}

/// As shmat(2), which is not told of where it replaces memory.
///
/// # Safety
/// As for the call itself.
pub(crate) unsafe fn attach(arguments: [usize; 6]) -> Result<usize, Errno> {
    let answer = agent_entry::attach(arguments, |number, arguments| {
        // SAFETY: the caller's; what else is called empties the place that is asked for.
        register_of(unsafe { syscall6(number, arguments) })
    });
    answer_of(answer.cast_unsigned())
}

/// As shmat(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn shmat(id: c_int, address: *const c_void, flags: c_int) -> *mut c_void {
    let int = |value: c_int| value.cast_unsigned() as usize;
    // SAFETY: passed on as it came.
    mapped(unsafe { attach([int(id), address.addr(), int(flags), 0, 0, 0]) })
}

/// As munmap(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(address: *mut c_void, length: size_t) -> c_int {
    // SAFETY: passed on as it came.
    answered(unsafe { change(libc::SYS_munmap, [address.addr(), length, 0, 0, 0, 0]) })
}

/// As mprotect(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn mprotect(address: *mut c_void, length: size_t, protection: c_int) -> c_int {
    let protection = protection.cast_unsigned() as usize;
    // SAFETY: passed on as it came.
    answered(unsafe { change(libc::SYS_mprotect, [address.addr(), length, protection, 0, 0, 0]) })
}

/// As mremap(2), whose last argument counts with MREMAP_FIXED only: it is passed where a fifth argument is.
#[unsafe(no_mangle)]
unsafe extern "C" fn mremap(
    old: *mut c_void,
    old_length: size_t,
    new_length: size_t,
    flags: c_int,
    new: *mut c_void,
) -> *mut c_void {
    let flags = flags.cast_unsigned() as usize;
    // SAFETY: passed on as it came.
    mapped(unsafe { change(libc::SYS_mremap, [old.addr(), old_length, new_length, flags, new.addr(), 0]) })
}
