//! Calls that map fresh memory: the agent is told of large ones before they are filled.
//!
//! What libc maps for itself (malloc) and a program's own system call instructions are not seen here; the supervisor's looks find them.

use libc::{c_int, c_void, off_t, size_t};
use pagetide::agent_entry;
use pagetide_sys::syscall::syscall6;

use crate::raw::set_errno;

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
    let number = u32::try_from(libc::SYS_mmap).expect("numbers of system calls are small");
    let offset = usize::try_from(offset.cast_unsigned()).expect("both have 64 bits");
    let (protection, flags) = (int(protection), int(flags));
    // SAFETY: passed on as it came.
    let answer = unsafe { syscall6(number, [address.addr(), length, protection, flags, int(fd), offset]) };
    let start = match answer {
        Ok(start) => start,
        Err(errno) => {
            set_errno(errno.code());
            return libc::MAP_FAILED;
        }
    };
    if agent_entry::is_fresh(protection, flags) {
        agent_entry::mapped(length);
    }
    std::ptr::with_exposed_provenance_mut(start)
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
