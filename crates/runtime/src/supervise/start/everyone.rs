//! Starting the agent of a process for signal mode: all its threads are stopped and armed before any of them goes on.
//!
//! A thread that is stopped in a system call makes it again, as after SIGSTOP and SIGCONT; the few calls that end with EINTR then do so
//! here. Who cannot be stopped in time is killed: it would stop later, when nobody lets it go on.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use pagetide_sys::fd::Fd;
use pagetide_sys::trace::{self, Saved};
use pagetide_sys::{proc, signal, stderr};

use super::{Meanwhile, Refusal, Starting, let_stopped_go, threads};

/// A thread is stopped, or armed, within this time; one that waits for a child of `vfork` takes as long as that.
const STOP_WAIT: Duration = Duration::from_secs(10);

/// Start the agent and arm everyone; `first` is stopped, and stays so.
pub(super) fn start(
    first: &mut Starting,
    pid: i32,
    at: u64,
    saved: &mut Saved,
    is_copy: bool,
    takes_written: bool,
    meanwhile: Meanwhile<'_>,
) -> Result<Fd, Refusal> {
    // A copy that was stopped before it could begin anew has its maker's ring still, which is ours.
    if !is_copy && uses_memory_lastingly(first.tid()) {
        return Err(Refusal::Lasting);
    }
    let watchdog = Watchdog::new(pid);
    let mut others = std::mem::take(&mut first.others);
    let stopped = stop(pid, first.tid(), &mut others, watchdog.as_ref(), meanwhile);
    let take = |()| if takes_written { first.take_written(pid, at, saved, meanwhile) } else { Ok(()) };
    let taken = stopped.and_then(take);
    let started = taken.and_then(|()| first.start(pid, at, saved, meanwhile));
    let armed = first.stop(meanwhile).and(started).and_then(|socket| {
        for other in &mut others {
            let mut saved = Box::new(other.tracee.save()?);
            let armed = other.arm(at, &mut saved, meanwhile);
            other.tracee.restore(&saved)?;
            armed?;
            note_progress(watchdog.as_ref());
        }
        first.arm(at, saved, meanwhile).map(|()| socket)
    });
    if armed.is_ok() {
        // What they fill before the memory is managed is beyond the budget, too.
        first.others = others;
    } else {
        while !others.is_empty() {
            // Only who is stopped can be let go; the watchdog ends it.
            let_stopped_go(&mut others);
            meanwhile();
        }
    }
    drop(watchdog);
    armed
}

/// Ask all threads that there are but `first` to stop, so that they fill nothing meanwhile. Who cannot be asked is a reason to refuse the
/// process, which [`start`] finds.
pub(super) fn ask(pid: i32, first: i32) -> Vec<Starting> {
    let watchdog = Watchdog::new(pid);
    let mut others = Vec::new();
    let _ = ask_further(pid, first, &mut others);
    drop(watchdog);
    others
}

/// Ask those threads but `first` to stop that were not asked.
fn ask_further(pid: i32, first: i32, others: &mut Vec<Starting>) -> Result<(), Refusal> {
    for tid in threads(pid) {
        if tid == first || others.iter().any(|other| other.tid() == tid) {
            continue;
        }
        if proc::status(Some(tid)).is_ok_and(|status| status.seccomp != 0) {
            return Err(Refusal::Filter);
        }
        match Starting::stop_soon(tid, trace::END_WITH_TRACER) {
            Ok(other) => others.push(other),
            Err(Refusal::Ended(_)) => {}
            Err(refusal) => return Err(refusal),
        }
    }
    Ok(())
}

/// Stop all threads of a process but `first`. None of them makes another one meanwhile, so that in the end all are.
fn stop(
    pid: i32,
    first: i32,
    others: &mut Vec<Starting>,
    watchdog: Option<&Watchdog>,
    meanwhile: Meanwhile<'_>,
) -> Result<(), Refusal> {
    let mut known = 0;
    loop {
        ask_further(pid, first, others)?;
        if others.len() == known {
            return Ok(());
        }
        for index in (known..others.len()).rev() {
            loop {
                match others[index].is_stopped() {
                    Ok(true) => {
                        note_progress(watchdog);
                        break;
                    }
                    // The watchdog ends it.
                    Ok(false) => meanwhile(),
                    Err(Refusal::Ended(_)) => {
                        others.swap_remove(index);
                        break;
                    }
                    Err(refusal) => return Err(refusal),
                }
            }
        }
        known = others.len();
    }
}

/// Kills a process whose threads do not stop: a seize waits for an exec of the process, which may wait for the threads of it that are
/// stopped already. A thousand threads may take longer than one of them may.
#[derive(Debug)]
struct Watchdog {
    /// Dropped: all is well.
    progress: Sender<()>,
}

impl Watchdog {
    fn new(pid: i32) -> Option<Self> {
        let (progress, seen) = mpsc::channel::<()>();
        let watch = move || {
            let end = loop {
                if let Err(end) = seen.recv_timeout(STOP_WAIT) {
                    break end;
                }
            };
            if end == RecvTimeoutError::Timeout {
                stderr::tell(format_args!(
                    "pagetide: process {pid}: its threads do not stop to be armed for signal mode: it is killed"
                ));
                let _ = signal::kill(pid, signal::number::KILL);
            }
        };
        std::thread::Builder::new().name("watchdog".into()).stack_size(64 << 10).spawn(watch).ok()?;
        Some(Self { progress })
    }
}

/// One more thread is stopped, or armed.
fn note_progress(watchdog: Option<&Watchdog>) {
    if let Some(watchdog) = watchdog {
        // It has ended if it could not wait any longer.
        let _ = watchdog.progress.send(());
    }
}

/// True if it has a ring of io_uring or a context of AIO.
pub(super) fn uses_memory_lastingly(pid: i32) -> bool {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let is_ring = |path: std::path::PathBuf| {
        std::fs::read_link(path).is_ok_and(|target| target.as_os_str() == "anon_inode:[io_uring]")
    };
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    maps.lines().any(|line| line.ends_with("/[aio]")) || descriptors.into_iter().any(|entry| is_ring(entry.path()))
}
