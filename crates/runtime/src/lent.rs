//! vmsplice(2) by copy where it is not to wait: a pipe that was spliced from or to, or has a name, cannot be asked so for one call (RWF_NOWAIT:
//! EOPNOTSUPP). Another description of the same pipe can, for all calls, and whoever shares the first one does not see it.

use pagetide_sys::Errno;
use pagetide_sys::text::Text;

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "numbers of system calls are small")]
const fn number(of: libc::c_long) -> u32 {
    of as u32
}

/// Move what `pieces` name from or to the pipe `fd` by `call`, which answers as the kernel does, as far as nothing has to be waited for.
pub(crate) fn without_waiting(
    reads: bool,
    [fd, pieces, count]: [usize; 3],
    mut call: impl FnMut(u32, [usize; 6]) -> isize,
) -> isize {
    let path = Text::<40>::format(format_args!("/proc/self/fd/{}\0", fd & 0xffff_ffff));
    let (access, transfer) = if reads { (libc::O_RDONLY, libc::SYS_readv) } else { (libc::O_WRONLY, libc::SYS_writev) };
    let flags = (access | libc::O_NONBLOCK | libc::O_CLOEXEC).cast_unsigned() as usize;
    let here = libc::AT_FDCWD.cast_unsigned() as usize;
    let other = call(number(libc::SYS_openat), [here, path.as_bytes().as_ptr().addr(), flags, 0, 0, 0]);
    if other < 0 {
        return Errno::EOPNOTSUPP.negated();
    }
    let answer = call(number(transfer), [other.cast_unsigned(), pieces, count, 0, 0, 0]);
    call(number(libc::SYS_close), [other.cast_unsigned(), 0, 0, 0, 0, 0]);
    answer
}
