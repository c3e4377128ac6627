//! Stopping the threads of a process while its agent is started, or while they copy faster than pages can leave.
//!
//! What a thread fills between the decision that a process is to be managed and the moment it is comes on top of the budget: with a
//! loaded machine that is tens of MiB. The thread that starts the agent is stopped anyway; this stops those that run beside it. Threads
//! that sleep fill nothing and are left alone, because some system calls of theirs would end with EINTR; unless memory is taken that nobody
//! may touch meanwhile (`start/written.rs`).
//!
//! A thread of our own does it, for two reasons. A seize waits for an exec of the process, which waits until we have collected the
//! threads of it that we have seized already: the supervisor's first thread goes on collecting. And its end lets all go, whatever
//! happened to them meanwhile.

use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::Duration;

use pagetide_core::types::Nanos;
use pagetide_sys::{clock, proc};

use super::start::{self, Starting, written};

/// Who is stopped may be needed by what the agent's start waits for, such as a thread in vfork: it goes on after this long.
const HELD_MAX: Duration = Duration::from_millis(100);
/// All threads stop within this time, and the one that starts the agent, or they are not held: on a busy machine each of them has to come to
/// a CPU first.
const STOP_MAX: Duration = Duration::from_secs(2);
/// One that sleeps uninterruptibly for so long waits for somebody (vfork), who may wait for one that is stopped.
const SLEEP_MAX: Duration = Duration::from_millis(50);

/// Who is to be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Whom {
    /// Threads that run, or wait for a page or a lock of the address space; then all threads, if written mappings of files are to be taken.
    Filling {
        /// Where the words of the process are.
        words: u64,
    },
    /// Threads that run the program's code, from one look to the next.
    Storing {
        /// Threads that serve themselves are let alone.
        is_signal_mode: bool,
    },
}

/// Threads that are stopped as long as this lives, and for a while at most unless all of them are to be held.
#[derive(Debug)]
pub(super) struct Brake {
    /// Says that they are to be held; dropped: all go on.
    hold: Sender<()>,
    /// Tells who is stopped for certain, and again when they are held.
    told: Receiver<Vec<i32>>,
    is_settled: bool,
    stops_all: bool,
    pulled: Nanos,
}

impl Brake {
    /// Stop threads of process `pid` beside `first` (0: it leaves nobody out). None: there are none.
    pub(super) fn pull(pid: i32, first: i32, whom: Whom) -> Option<Self> {
        let is_meant = |tid: &i32| match whom {
            Whom::Filling { .. } => is_in(*tid, b"RD"),
            Whom::Storing { .. } => is_in(*tid, b"R") && !is_ours(pid, *tid),
        };
        let others: Vec<i32> = start::threads(pid).into_iter().filter(|&tid| tid != first).collect();
        let meant: Vec<i32> = others.iter().copied().filter(is_meant).collect();
        // Those that sleep are stopped, too, if all are.
        let is_idle = if matches!(whom, Whom::Filling { .. }) { others.is_empty() } else { meant.is_empty() };
        if is_idle {
            return None;
        }
        let (hold, asked) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let stop = move || {
            // A thread that cannot be stopped goes on: its memory counts.
            let mut tracees: Vec<Starting> =
                meant.into_iter().filter_map(|tid| Starting::stop_soon(tid, 0).ok()).collect();
            let stopped = match whom {
                // The list of mappings is read when those are stopped that would change it.
                Whom::Filling { words } if written::may_be(pid, words) => stop_all(pid, first, &mut tracees),
                Whom::Filling { .. } => Vec::new(),
                Whom::Storing { is_signal_mode } => {
                    if is_signal_mode {
                        let_servers_go(&mut tracees);
                    }
                    Vec::new()
                }
            };
            // With the end of this thread the kernel lets them go.
            let held_max = if stopped.is_empty() { HELD_MAX } else { STOP_MAX };
            let is_wanted = tell.send(stopped.clone()).is_ok() && asked.recv_timeout(held_max).is_ok();
            if is_wanted && tell.send(stopped).is_ok() {
                let _ = asked.recv();
            }
        };
        // Without it the budget is kept a little later.
        std::thread::Builder::new().name("brake".into()).stack_size(128 << 10).spawn(stop).ok()?;
        Some(Self { hold, told, is_settled: false, stops_all: false, pulled: clock::now() })
    }

    /// True as long as threads are stopped that nobody has asked to hold.
    pub(super) fn holds(&self) -> bool {
        Duration::from_nanos(clock::now() - self.pulled) < HELD_MAX
    }

    /// True once it is known who is stopped.
    pub(super) fn is_settled(&mut self) -> bool {
        let told = self.told.try_recv();
        self.is_settled |= told != Err(TryRecvError::Empty);
        self.stops_all |= told.is_ok_and(|stopped| !stopped.is_empty());
        self.is_settled
    }

    /// All threads were stopped, for what was written of files. Once it is known.
    pub(super) const fn stops_all(&self) -> bool {
        self.stops_all
    }

    /// Hold those that are stopped until this is dropped; who they are. Once it is known.
    pub(super) fn hold_all(&self) -> Vec<i32> {
        // They may have been let go.
        let is_asked = self.hold.send(()).is_ok();
        is_asked.then(|| self.told.recv().ok()).flatten().unwrap_or_default()
    }
}

/// Stop all threads of the process but `first`, those that are made meanwhile included, and say which are stopped.
fn stop_all(pid: i32, first: i32, tracees: &mut Vec<Starting>) -> Vec<i32> {
    let begin = clock::now();
    let is_late = |tid: i32| {
        let waited = Duration::from_nanos(clock::now() - begin);
        waited >= STOP_MAX || (waited >= SLEEP_MAX && is_in(tid, b"D"))
    };
    let mut stopped = Vec::new();
    while stopped.len() < tracees.len() {
        for tracee in &mut tracees[stopped.len()..] {
            loop {
                match tracee.is_stopped() {
                    Ok(true) => break,
                    Ok(false) if !is_late(tracee.tid()) => {}
                    // It has ended, which the list of threads says, or is not stopped.
                    Ok(false) | Err(_) => break,
                }
            }
            stopped.push(tracee.tid());
        }
        let is_new = |tid: &i32| *tid != first && !stopped.contains(tid);
        let new = start::threads(pid).into_iter().filter(is_new);
        tracees.extend(new.filter_map(|tid| Starting::stop_soon(tid, 0).ok()));
    }
    let mut all = tracees.iter_mut();
    stopped.retain(|_| all.next().is_some_and(|tracee| tracee.is_stopped() == Ok(true)));
    stopped
}

/// Let those go on that serve themselves, or another thread, and so may have what our threads need.
fn let_servers_go(tracees: &mut Vec<Starting>) {
    for mut tracee in std::mem::take(tracees) {
        if tracee.is_stopped() == Ok(true) && tracee.is_in_handler() {
            tracees.extend(tracee.let_go().ok().flatten());
        } else {
            tracees.push(tracee);
        }
    }
}

/// True of a thread of ours in process `pid`, by its name.
fn is_ours(pid: i32, tid: i32) -> bool {
    start::thread_name(pid, tid).starts_with(b"pagetide")
}

fn is_in(tid: i32, states: &[u8]) -> bool {
    proc::stat(Some(tid)).is_ok_and(|stat| states.contains(&stat.state))
}
