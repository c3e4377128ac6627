//! Waiting for a 32-bit word to change.

use core::sync::atomic::AtomicU32;

use linux_raw_sys::general::{__NR_futex, FUTEX_PRIVATE_FLAG, FUTEX_WAIT, FUTEX_WAKE};

use crate::clock::Timespec;
use crate::syscall;
use crate::syscall::Errno;
use crate::word::addr_of;

/// Who shares the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Threads of one process.
    Private,
    /// Processes that map the same memory.
    Shared,
}

impl Scope {
    const fn flag(self) -> u32 {
        match self {
            Self::Private => FUTEX_PRIVATE_FLAG,
            Self::Shared => 0,
        }
    }
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// Someone woke the word (or a spurious wake: look again).
    Woken,
    /// The word did not hold the expected value.
    Changed,
    /// The time was up.
    TimedOut,
    /// A signal came.
    Interrupted,
}

/// Sleep while `word` holds `expected`, at most `timeout_ns`.
pub fn wait(word: &AtomicU32, expected: u32, timeout_ns: Option<u64>, scope: Scope) -> Waited {
    let timeout = timeout_ns.map(Timespec::from_ns);
    let timeout_addr = timeout.as_ref().map_or(0, |timeout| addr_of(timeout));
    let op = FUTEX_WAIT | scope.flag();
    // SAFETY: the kernel reads the word and the timeout; both live across the call.
    let answer = unsafe { syscall!(__NR_futex, addr_of(word.as_ptr()), op as usize, expected as usize, timeout_addr) };
    match answer {
        Ok(_) => Waited::Woken,
        Err(Errno::EAGAIN) => Waited::Changed,
        Err(Errno::ETIMEDOUT) => Waited::TimedOut,
        Err(Errno::EINTR) => Waited::Interrupted,
        Err(error) => panic!("futex wait on a live aligned word: {error}"),
    }
}

/// Wake up to `count` sleepers; how many there were.
pub fn wake(word: &AtomicU32, count: u32, scope: Scope) -> usize {
    let op = FUTEX_WAKE | scope.flag();
    let count = count.min(i32::MAX.cast_unsigned());
    // SAFETY: the kernel only uses the address of the word.
    let answer = unsafe { syscall!(__NR_futex, addr_of(word.as_ptr()), op as usize, count as usize) };
    answer.expect("futex wake on a live aligned word")
}
