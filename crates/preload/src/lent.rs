//! Calls that lend pages to the kernel beyond the call: `vmsplice`, and the zero-copy sending of sockets.
//!
//! The kernel then holds the physical page without pinning it. The kernel's own swap leaves such a page alone; UFFDIO_MOVE does not
//! see it, and the frame would be used again for other content while a pipe or a socket still refers to it. So `vmsplice` copies
//! (what the caller may rely on is the same), and `SO_ZEROCOPY` is refused as by a protocol that lacks it, for which programs
//! are prepared. Direct I/O and registered buffers are pinned: the kernel refuses to move those.
//!
//! Raw system calls are not seen here.

use libc::{c_int, c_long, c_uint, c_void, iovec, size_t, socklen_t, ssize_t};

/// As vmsplice(2), by copy.
#[unsafe(no_mangle)]
unsafe extern "C" fn vmsplice(fd: c_int, pieces: *const iovec, count: size_t, flags: c_uint) -> ssize_t {
    let Ok(count) = c_int::try_from(count) else { return refuse(libc::EINVAL) };
    let wait = if flags & libc::SPLICE_F_NONBLOCK == 0 { 0 } else { libc::RWF_NOWAIT };
    // SAFETY: changes nothing.
    let mode = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    match mode & libc::O_ACCMODE {
        _ if mode < 0 => -1,
        // SAFETY: the pieces are the caller's to promise, as for the call itself; offset -1 means that there is none.
        libc::O_RDONLY => unsafe { libc::preadv2(fd, pieces, count, -1, wait) },
        // SAFETY: as above.
        _ => unsafe { libc::pwritev2(fd, pieces, count, -1, wait) },
    }
}

/// As setsockopt(2), without `SO_ZEROCOPY`.
#[unsafe(no_mangle)]
unsafe extern "C" fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
    if level == libc::SOL_SOCKET && name == libc::SO_ZEROCOPY {
        refuse(libc::EOPNOTSUPP);
        return -1;
    }
    // SAFETY: passed on as it came.
    let answer = unsafe { libc::syscall(libc::SYS_setsockopt, c_long::from(fd), level, name, value, len) };
    if answer == 0 { 0 } else { -1 }
}

fn refuse(errno: c_int) -> ssize_t {
    // SAFETY: libc's errno of this thread.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: it lives as long as the thread.
    unsafe { *place = errno };
    -1
}
