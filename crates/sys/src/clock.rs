//! The monotonic clock. [`init`] once finds the kernel's clock function in the page that it maps into every process (22 to 36 ns a
//! call); before that, or without it, time is read by system call (280 to 400 ns on the virtual machine where this was measured).
//! Neither touches thread-local storage.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use linux_raw_sys::general::{
    __NR_clock_gettime, CLOCK_MONOTONIC, CLOCK_MONOTONIC_COARSE, CLOCK_PROCESS_CPUTIME_ID, CLOCK_THREAD_CPUTIME_ID,
};

use crate::Errno;
use crate::syscall;
use crate::vdso;
use crate::word::{addr_of, int_arg};

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

/// `int clock_gettime(clockid_t, struct timespec *)` as the kernel's page has it.
type ClockFunction = unsafe extern "C" fn(i32, *mut Timespec) -> i32;

/// `CPUCLOCK_SCHED`: as the scheduler counts it, in nanoseconds.
const PRECISE_CPU_TIME: i32 = 2;

/// Address of the function; 0: not looked up or not there.
static FUNCTION: AtomicUsize = AtomicUsize::new(0);

/// A thread that reads the time may be denied the CPU's counter, on which the function relies: it would end there.
static IS_DENIED: AtomicBool = AtomicBool::new(false);

/// Find the fast clock. Reads a file of /proc: once, at start. Says whether there is one.
pub fn init() -> bool {
    let address = vdso::clock_function().unwrap_or(0);
    FUNCTION.store(address, Ordering::SeqCst);
    if IS_DENIED.load(Ordering::SeqCst) {
        deny();
    }
    FUNCTION.load(Ordering::Relaxed) != 0
}

/// From now on time is read by system call, in every thread: one of them may not read the CPU's counter (PR_SET_TSC).
pub fn deny() {
    IS_DENIED.store(true, Ordering::SeqCst);
    FUNCTION.store(0, Ordering::SeqCst);
}

#[inline]
fn read(clock: u32) -> u64 {
    let mut now = Timespec::default();
    let address = FUNCTION.load(Ordering::Relaxed);
    if address != 0 {
        let function: *const () = core::ptr::with_exposed_provenance(address);
        // SAFETY: `init` stored the address of a function of this type, which the kernel keeps mapped.
        let function = unsafe { core::mem::transmute::<*const (), ClockFunction>(function) };
        // SAFETY: the function writes one Timespec into `now`.
        if unsafe { function(clock.cast_signed(), &raw mut now) } == 0 {
            return now.as_ns();
        }
    }
    read_by_call(clock, now)
}

#[cold]
fn read_by_call(clock: u32, mut now: Timespec) -> u64 {
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

/// CPU time that a process has used, by its number (`None`: the calling one), in nanoseconds. What a thread has used that runs at
/// this moment on another CPU is missing since the last timer tick.
pub fn process_cpu(pid: Option<i32>) -> Result<u64, Errno> {
    cpu_time(pid.map_or(CLOCK_PROCESS_CPUTIME_ID.cast_signed(), cpu_clock))
}

/// The kernel's number of the clock of somebody's CPU time: the inverted number of the process, shifted, and which of its clocks.
pub(crate) const fn cpu_clock(pid: i32) -> i32 {
    (!pid << 3) | PRECISE_CPU_TIME
}

/// The same of the calling thread, to the moment.
pub fn thread_cpu() -> Result<u64, Errno> {
    cpu_time(CLOCK_THREAD_CPUTIME_ID.cast_signed())
}

fn cpu_time(clock: i32) -> Result<u64, Errno> {
    let mut time = Timespec::default();
    // SAFETY: the kernel writes one Timespec into `time`.
    unsafe { syscall!(__NR_clock_gettime, int_arg(clock), addr_of(&raw mut time)) }?;
    Ok(time.as_ns())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn goes_forward() {
        let first = now();
        let coarse = now_coarse();
        let second = now();
        assert!(first <= second);
        assert!(coarse <= second);
        assert!(second - coarse < 1_000_000_000, "a tick is at most 10 ms");
    }

    #[test]
    fn time_does_not_go_back_whichever_way_it_is_read() {
        goes_forward();
        let by_call = read_by_call(CLOCK_MONOTONIC, Timespec::default());
        // Every kernel of these machines has the page, unless it was started with vdso=0.
        assert!(init());
        assert!(now() >= by_call);
        goes_forward();
        assert!(read_by_call(CLOCK_MONOTONIC, Timespec::default()) >= by_call);
        assert!(now() - by_call < 10_000_000_000, "both ways read the same clock");
    }

    #[test]
    fn cpu_time_is_that_of_who_is_asked_for() {
        let own = std::process::id().cast_signed();
        let [by_number, own] = [Some(own), None].map(|pid| process_cpu(pid).expect("it runs"));
        assert!(own >= by_number && own - by_number < 1_000_000_000, "{by_number} {own}");
        let before = thread_cpu().expect("it runs");
        let until = before + 1_000_000;
        while thread_cpu().expect("it runs") < until {}
        assert!(process_cpu(None).expect("it runs") >= own + 1_000_000);
        assert_eq!(process_cpu(Some(i32::MAX / 16)), Err(Errno::EINVAL));
    }
}
