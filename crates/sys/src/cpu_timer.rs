//! A timer on the CPU time of a process, which may be another one: it sends a thread a signal when the process has used so much.
//!
//! The kernel looks at it when the scheduler's tick finds a thread of the process at work, and sends the signal when that thread is
//! about to go on in user code.

use linux_raw_sys::general::{__NR_timer_create, __NR_timer_delete, __NR_timer_settime, SIGEV_THREAD_ID, sigevent};

use crate::clock::{Timespec, cpu_clock};
use crate::syscall;
use crate::syscall::Errno;
use crate::thread;
use crate::word::{addr_of, int_arg};

/// `TIMER_ABSTIME`: the time is on the clock itself.
const ABSOLUTE: usize = 1;

/// The timer.
#[derive(Debug)]
pub struct CpuTimer {
    id: i32,
}

impl CpuTimer {
    /// On the CPU time of process `pid`; it sends `signal` to the calling thread, which should block it: it ends who does not.
    pub fn new(pid: i32, signal: u32) -> Result<Self, Errno> {
        // SAFETY: all zeroes are a value of this plain C structure.
        let mut event: sigevent = unsafe { core::mem::zeroed() };
        event.sigev_signo = signal.cast_signed();
        event.sigev_notify = SIGEV_THREAD_ID.cast_signed();
        event._sigev_un._tid = thread::gettid();
        let mut id = 0_i32;
        // SAFETY: the kernel reads `event` and writes one int into `id`.
        unsafe {
            syscall!(__NR_timer_create, int_arg(cpu_clock(pid)), addr_of(&raw const event), addr_of(&raw mut id))
        }?;
        Ok(Self { id })
    }

    /// Once, when the process has used `used_ns` nanoseconds in all.
    pub fn set(&self, used_ns: u64) -> Result<(), Errno> {
        // `struct itimerspec`: the interval, and the first time.
        let setting = [Timespec::default(), Timespec::from_ns(used_ns)];
        // SAFETY: the kernel reads `setting`.
        unsafe { syscall!(__NR_timer_settime, int_arg(self.id), ABSOLUTE, addr_of(&raw const setting), 0) }.map(drop)
    }
}

impl Drop for CpuTimer {
    fn drop(&mut self) {
        // SAFETY: the number is this value's own; no memory is passed.
        let deleted = unsafe { syscall!(__NR_timer_delete, int_arg(self.id)) };
        debug_assert!(deleted.is_ok(), "the timer is ours: {deleted:?}");
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;
    use crate::fd::{PollFd, events, poll};
    use crate::signal::SignalSet;

    /// Nobody else of this process uses it.
    const SIGNAL: u32 = 50;

    #[test]
    fn a_process_that_works_sends_the_signal_and_one_that_sleeps_does_not() {
        let outer = SignalSet::one(SIGNAL).block();
        let told = SignalSet::one(SIGNAL).descriptor().expect("a descriptor");
        let mut child = Command::new("sh")
            .args(["-c", "read line; while :; do :; done"])
            .stdin(Stdio::piped())
            .spawn()
            .expect("sh");
        let pid = child.id().cast_signed();
        // It has started when it uses no more.
        let mut used = 0;
        while used != crate::clock::process_cpu(Some(pid)).expect("it lives") {
            used = crate::clock::process_cpu(Some(pid)).expect("it lives");
            poll(&mut [], Some(200_000_000)).expect("a pause");
        }
        let timer = CpuTimer::new(pid, SIGNAL).expect("a timer");
        timer.set(used + 1_000_000).expect("it is set");
        let asleep = poll(&mut [PollFd::new(&told, events::IN)], Some(50_000_000));
        drop(child.stdin.take());
        let at_work = poll(&mut [PollFd::new(&told, events::IN)], Some(20_000_000_000));
        child.kill().expect("our own");
        child.wait().expect("our own");
        // A signal that is still there would end us.
        let mut record = [0; 128];
        assert_eq!(crate::file::read(&told, &mut record), Ok(128));
        assert_eq!((asleep, at_work), (Ok(0), Ok(1)), "signals while it sleeps and while it works");
        assert!(CpuTimer::new(i32::MAX / 16, SIGNAL).is_err(), "no such process");
        outer.restore();
    }
}
