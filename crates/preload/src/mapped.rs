//! Calls that map fresh memory: the agent is told of large ones before they are filled.
//!
//! What libc maps for itself (malloc) and raw system calls are not seen here; the supervisor's looks find them.

use libc::{c_int, c_void, off_t, size_t};
use pagetide::agent_entry;

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
    // SAFETY: passed on as it came.
    let answer = unsafe { libc::syscall(libc::SYS_mmap, address, length, protection, flags, fd, offset) };
    let wanted = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // Who reserves addresses does not mean to fill them.
    if answer != -1 && protection & libc::PROT_WRITE != 0 && flags & (wanted | libc::MAP_NORESERVE) == wanted {
        agent_entry::mapped(length);
    }
    std::ptr::with_exposed_provenance_mut(usize::try_from(answer.cast_unsigned()).expect("both have 64 bits"))
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
