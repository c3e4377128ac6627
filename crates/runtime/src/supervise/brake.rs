//! Stopping the running threads of a process while its agent is started.
//!
//! What a thread fills between the decision that a process is to be managed and the moment it is comes on top of the budget: with a
//! loaded machine that is tens of MiB. The thread that starts the agent is stopped anyway; this stops those that run beside it. Threads
//! that sleep fill nothing and are left alone: some system calls of theirs would end with EINTR.
//!
//! A thread of our own does it, for two reasons. A seize waits for an exec of the process, which waits until we have collected the
//! threads of it that we have seized already: the supervisor's first thread goes on collecting. And its end lets all go, whatever
//! happened to them meanwhile.

use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use pagetide_sys::proc;
use pagetide_sys::trace::Tracee;

/// Who is stopped may be needed by what the agent's start waits for, such as a thread in vfork: it goes on after this long.
const HELD_MAX: Duration = Duration::from_millis(100);

/// Threads that are stopped as long as this lives, and for `HELD_MAX` at most.
#[derive(Debug)]
pub(super) struct Brake {
    /// Dropped: all go on.
    _held: Sender<()>,
}

impl Brake {
    /// Stop what runs in process `pid` beside `tid`. None: nothing does.
    pub(super) fn pull(pid: i32, tid: i32) -> Option<Self> {
        let running: Vec<i32> =
            super::start::threads(pid).into_iter().filter(|&other| other != tid && runs(other)).collect();
        if running.is_empty() {
            return None;
        }
        let (held, release) = mpsc::channel();
        let stop = move || {
            // A thread that cannot be stopped goes on: its memory counts.
            let tracees: Vec<Tracee> = running.into_iter().filter_map(|tid| Tracee::seize(tid, 0).ok()).collect();
            for tracee in &tracees {
                let _ = tracee.interrupt();
            }
            // With the end of this thread the kernel lets them go.
            let _ = release.recv_timeout(HELD_MAX);
        };
        // Without it the budget is kept a little later.
        std::thread::Builder::new().name("brake".into()).stack_size(64 << 10).spawn(stop).ok()?;
        Some(Self { _held: held })
    }
}

fn runs(tid: i32) -> bool {
    proc::stat(Some(tid)).is_ok_and(|stat| stat.state == b'R')
}
