//! System calls by inline assembly: no libc, no `errno`, no thread-local storage.
//!
//! The functions are unsafe because a system call can do anything to the memory it is given; the typed wrappers of the other
//! modules carry the arguments why theirs does not.

use core::arch::asm;
use core::fmt;

use linux_raw_sys::errno as k;

/// The largest number that the kernel returns as a negated error (`MAX_ERRNO`).
const ERRNO_MAX: u16 = 4095;

/// A kernel error number: 1..=4095.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(u16);

macro_rules! errno_names {
    ($($name:ident)*) => {
        impl Errno {
            $(
                #[doc = concat!("`", stringify!($name), "`")]
                pub const $name: Self = Self::of(k::$name);
            )*

            /// The kernel's name of the error, or `"E?"` for one that this crate has no use for.
            pub const fn name(self) -> &'static str {
                match self.0 as u32 {
                    $(k::$name => stringify!($name),)*
                    0 | 1.. => "E?",
                }
            }
        }
    };
}

errno_names! {
    EPERM ENOENT ESRCH EINTR EIO ENXIO E2BIG ENOEXEC EBADF ECHILD EAGAIN ENOMEM EACCES EFAULT ENOTBLK EBUSY EEXIST EXDEV
    ENODEV ENOTDIR EISDIR EINVAL ENFILE EMFILE ENOTTY ETXTBSY EFBIG ENOSPC ESPIPE EROFS EMLINK EPIPE EDOM ERANGE EDEADLK
    ENAMETOOLONG ENOSYS ENOTEMPTY ELOOP EOVERFLOW ENOTSOCK EMSGSIZE EPROTO EOPNOTSUPP EADDRINUSE ECONNABORTED ECONNRESET
    ENOBUFS EISCONN ENOTCONN ETIMEDOUT ECONNREFUSED EALREADY EINPROGRESS ESTALE EUSERS EDQUOT ECANCELED EHWPOISON EBADMSG
}

impl Errno {
    #[expect(clippy::cast_possible_truncation, reason = "asserted to be at most 4095")]
    const fn of(code: u32) -> Self {
        assert!(code != 0 && code <= ERRNO_MAX as u32, "not an errno");
        Self(code as u16)
    }

    /// The error that a kernel field (`cqe.res`, `uffdio_move.move`) carries negated; `None` if the field is not negative.
    pub const fn from_negated(field: i64) -> Option<Self> {
        if field >= 0 || field < -(ERRNO_MAX as i64) {
            return None;
        }
        Some(Self::of(crate::word::low_u32(field.unsigned_abs())))
    }

    /// The number.
    pub const fn code(self) -> i32 {
        self.0 as i32
    }

    /// As the kernel returns it from a system call.
    pub const fn negated(self) -> isize {
        -(self.code() as isize)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}({})", self.name(), self.0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (errno {})", self.name(), self.0)
    }
}

impl core::error::Error for Errno {}

/// What the kernel returned, split into value and error.
#[inline(always)]
pub const fn answer_of(register: usize) -> Result<usize, Errno> {
    if register > usize::MAX - ERRNO_MAX as usize {
        return Err(Errno::of(crate::word::low_u32(crate::word::u64_of(register.wrapping_neg()))));
    }
    Ok(register)
}

/// What the kernel would have returned: the value, or the error negated.
pub const fn register_of(answer: Result<usize, Errno>) -> isize {
    match answer {
        Ok(value) => value.cast_signed(),
        Err(errno) => errno.negated(),
    }
}

/// A system call of six arguments; unused ones are zero.
///
/// # Safety
/// The call with these arguments must be one that breaks no rule of Rust in this process: memory it writes is the caller's to
/// write, mappings it changes are the caller's to change.
#[inline(always)]
pub unsafe fn syscall6(nr: u32, args: [usize; 6]) -> Result<usize, Errno> {
    let register: usize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the kernel's calling convention for x86_64: it changes rax, rcx, r11 and what the caller vouches for.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") nr as usize => register,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the kernel's calling convention for aarch64: it changes x0 and what the caller vouches for.
    unsafe {
        asm!(
            "svc 0",
            in("x8") nr as usize,
            inlateout("x0") args[0] => register,
            in("x1") args[1],
            in("x2") args[2],
            in("x3") args[3],
            in("x4") args[4],
            in("x5") args[5],
            options(nostack),
        );
    }
    answer_of(register)
}

/// Make a system call: `syscall!(NR, a, b, ..)` with up to six `usize` arguments. Unsafe as [`syscall6`] is.
#[macro_export]
macro_rules! syscall {
    ($nr:expr) => {
        $crate::syscall::syscall6($nr, [0; 6])
    };
    ($nr:expr, $a:expr) => {
        $crate::syscall::syscall6($nr, [$a, 0, 0, 0, 0, 0])
    };
    ($nr:expr, $a:expr, $b:expr) => {
        $crate::syscall::syscall6($nr, [$a, $b, 0, 0, 0, 0])
    };
    ($nr:expr, $a:expr, $b:expr, $c:expr) => {
        $crate::syscall::syscall6($nr, [$a, $b, $c, 0, 0, 0])
    };
    ($nr:expr, $a:expr, $b:expr, $c:expr, $d:expr) => {
        $crate::syscall::syscall6($nr, [$a, $b, $c, $d, 0, 0])
    };
    ($nr:expr, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr) => {
        $crate::syscall::syscall6($nr, [$a, $b, $c, $d, $e, 0])
    };
    ($nr:expr, $a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr) => {
        $crate::syscall::syscall6($nr, [$a, $b, $c, $d, $e, $f])
    };
}

/// Call again as long as a signal cut the call short before it did anything.
///
/// The loop is bounded by the number of signals that arrive; our own threads block all of them.
pub fn retry_eintr<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            done => return done,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux_raw_sys::general::{__NR_close, __NR_getpid};

    #[test]
    fn value_and_error_are_told_apart() {
        // SAFETY: getpid changes nothing.
        let pid = unsafe { syscall!(__NR_getpid) };
        assert_eq!(pid, Ok(std::process::id() as usize));
        // SAFETY: no descriptor has this number.
        let closed = unsafe { syscall!(__NR_close, usize::MAX) };
        assert_eq!(closed, Err(Errno::EBADF));
    }

    #[test]
    fn negative_fields_are_errors_and_counts_are_not() {
        assert_eq!(Errno::from_negated(-17), Some(Errno::EEXIST));
        assert_eq!(Errno::from_negated(4096), None);
        assert_eq!(Errno::from_negated(0), None);
        assert_eq!(Errno::from_negated(-4096), None);
        assert_eq!(std::format!("{}", Errno::EBUSY), "EBUSY (errno 16)");
    }

    #[test]
    fn an_answer_goes_into_a_register_and_comes_back() {
        for answer in [Ok(0), Ok(usize::MAX - 4095), Err(Errno::EPERM), Err(Errno::EBADMSG)] {
            assert_eq!(answer_of(register_of(answer).cast_unsigned()), answer);
        }
        assert_eq!(register_of(Err(Errno::ENOMEM)), -12);
    }
}
