//! The monotonic clock by raw system call. No vDSO: its data page and symbol table belong to the program's view of the world,
//! and the call costs little against what is timed (figures in the crate's bench).

use linux_raw_sys::general::{__NR_clock_gettime, CLOCK_MONOTONIC, CLOCK_MONOTONIC_COARSE};

use crate::syscall;
use crate::word::addr_of;

/// Seconds and nanoseconds as the kernel has them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timespec {
    /// Seconds.
    pub sec: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nsec: i64,
}

impl Timespec {
    /// A duration or time in nanoseconds.
    pub const fn from_ns(ns: u64) -> Self {
        Self { sec: (ns / 1_000_000_000).cast_signed(), nsec: (ns % 1_000_000_000).cast_signed() }
    }

    /// The same in nanoseconds; negative times count as zero.
    pub const fn as_ns(self) -> u64 {
        if self.sec < 0 || self.nsec < 0 {
            return 0;
        }
        self.sec.cast_unsigned() * 1_000_000_000 + self.nsec.cast_unsigned()
    }
}

fn read(clock: u32) -> u64 {
    let mut now = Timespec::default();
    // SAFETY: the kernel writes one Timespec into `now`.
    let answer = unsafe { syscall!(__NR_clock_gettime, clock as usize, addr_of(&raw mut now)) };
    assert!(answer.is_ok(), "CLOCK_MONOTONIC exists on every Linux");
    now.as_ns()
}

/// Nanoseconds of `CLOCK_MONOTONIC`.
pub fn now() -> u64 {
    read(CLOCK_MONOTONIC)
}

/// The same, as of the last timer tick (1 to 10 ms old).
pub fn now_coarse() -> u64 {
    read(CLOCK_MONOTONIC_COARSE)
}

#[cfg(test)]
mod tests {
    #[test]
    fn time_does_not_go_back_and_coarse_is_not_ahead() {
        let first = super::now();
        let coarse = super::now_coarse();
        let second = super::now();
        assert!(first <= second);
        assert!(coarse <= second);
        assert!(second - coarse < 1_000_000_000, "a tick is at most 10 ms");
    }
}
