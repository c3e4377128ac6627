//! Calls that lend pages to the kernel beyond the call: `vmsplice`, and the zero-copy sending of sockets.
//!
//! The kernel then holds the physical page without pinning it. The kernel's own swap leaves such a page alone; UFFDIO_MOVE does not
//! see it, and the frame would be used again for other content while a pipe or a socket still refers to it. So `vmsplice` copies
//! (what the caller may rely on is the same), and `SO_ZEROCOPY` is refused as by a protocol that lacks it, for which programs
//! are prepared. Direct I/O and registered buffers are pinned: the kernel refuses to move those.
//!
//! A program's own system call instructions are not seen here; `syscall(3)` is (`raw`). Rings of io_uring send without copying at
//! the program's word (IORING_OP_SEND_ZC): a process that makes one keeps its pages from being used again (`agent_entry::may_have_kept`).

use libc::{c_int, c_uint, c_void, iovec, size_t, socklen_t, ssize_t};
use pagetide::agent_entry;
use pagetide_sys::syscall::{Errno, answer_of, register_of, syscall6};

use crate::raw::{answered, set_errno};

/// As vmsplice(2), by copy.
#[unsafe(no_mangle)]
unsafe extern "C" fn vmsplice(fd: c_int, pieces: *const iovec, count: size_t, flags: c_uint) -> ssize_t {
    // SAFETY: passed on as it came.
    unsafe { lend(fd, pieces, count, flags) }
}

/// # Safety
/// As for vmsplice(2), which it answers as.
pub(crate) unsafe fn lend(fd: c_int, pieces: *const iovec, count: size_t, flags: c_uint) -> ssize_t {
    const FLAGS: c_uint = libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;
    let Ok(count) = c_int::try_from(count) else { return refuse(libc::EINVAL) };
    if flags & !FLAGS != 0 {
        return refuse(libc::EINVAL);
    }
    let wait = if flags & libc::SPLICE_F_NONBLOCK == 0 { 0 } else { libc::RWF_NOWAIT };
    // SAFETY: changes nothing.
    let ask = |what| unsafe { libc::fcntl(fd, what) };
    let mode = ask(libc::F_GETFL);
    if mode >= 0 && ask(libc::F_GETPIPE_SZ) < 0 {
        return refuse(libc::EBADF);
    }
    let reads = mode & libc::O_ACCMODE == libc::O_RDONLY;
    let answer = match mode {
        ..0 => return -1,
        // SAFETY: the pieces are the caller's to promise, as for the call itself; offset -1 means that there is none.
        _ if reads => unsafe { libc::preadv2(fd, pieces, count, -1, wait) },
        // SAFETY: as above.
        _ => unsafe { libc::pwritev2(fd, pieces, count, -1, wait) },
    };
    if wait == 0 || answer >= 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EOPNOTSUPP) {
        return answer;
    }
    let [fd, count] = [fd, count].map(|value| value.cast_unsigned() as usize);
    let answer = agent_entry::lend_without_waiting(reads, [fd, pieces.addr(), count], |number, arguments| {
        // SAFETY: as above; what else is called opens the pipe once more and closes that.
        register_of(unsafe { syscall6(number, arguments) })
    });
    match answer_of(answer.cast_unsigned()) {
        Ok(_) => answer,
        Err(errno) => refuse(errno.code()),
    }
}

/// As setsockopt(2), without `SO_ZEROCOPY`.
#[unsafe(no_mangle)]
unsafe extern "C" fn setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int {
    // SAFETY: passed on as it came.
    answered(unsafe { set_option(fd, level, name, value, len) })
}

/// # Safety
/// As for setsockopt(2).
pub(crate) unsafe fn set_option(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> Result<usize, Errno> {
    if level == libc::SOL_SOCKET && name == libc::SO_ZEROCOPY {
        return Err(Errno::EOPNOTSUPP);
    }
    let int = |value: c_int| value.cast_unsigned() as usize;
    let number = u32::try_from(libc::SYS_setsockopt).expect("numbers of system calls are small");
    // SAFETY: passed on as it came.
    unsafe { syscall6(number, [int(fd), int(level), int(name), value.addr(), len as usize, 0]) }
}

fn refuse(errno: c_int) -> ssize_t {
    set_errno(errno);
    -1
}
