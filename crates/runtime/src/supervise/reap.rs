//! Collecting what has ended or stopped: children of the run, threads that are stopped to start an agent, and threads that a brake traces.
//!
//! A wait takes what it tells of away, a signal that a stopped thread is to receive included. So the first thread, which has all children,
//! waits for its own only, and leaves stops of others' threads to them.

use std::io::Error;

use super::{Supervisor, shell_status};

/// What a wait has collected.
#[derive(Clone, Copy, Debug)]
enum Collected {
    One {
        pid: i32,
        status: i32,
    },
    Nothing,
    /// There are no children.
    Alone,
}

impl Supervisor {
    /// Collect what has ended. True when nothing is left.
    pub(super) fn reap(&mut self) -> bool {
        loop {
            let (pid, status) = match collect(-1, libc::__WNOTHREAD) {
                Collected::One { pid, status } => (pid, status),
                Collected::Alone => return true,
                Collected::Nothing => match ended() {
                    None => return false,
                    Some(pid) => match collect(pid, libc::__WNOTHREAD) {
                        Collected::One { pid, status } => (pid, status),
                        // A brake's: it may wait for an exec of the process, which waits for this.
                        Collected::Nothing | Collected::Alone => match collect(pid, 0) {
                            Collected::One { .. } => continue,
                            Collected::Nothing | Collected::Alone => return false,
                        },
                    },
                },
            };
            match self.tree.list.iter().position(|process| process.is_started_by(pid)) {
                Some(index) => self.note_stop(index, pid, status),
                None => self.note_end(pid, status),
            }
        }
    }

    pub(super) fn note_end(&mut self, pid: i32, status: i32) {
        let is_end = libc::WIFEXITED(status) || libc::WIFSIGNALED(status);
        if pid == self.main_pid && is_end {
            self.main_status = Some(shell_status(status));
        }
    }
}

fn collect(pid: i32, flags: i32) -> Collected {
    let mut status = 0;
    // SAFETY: the status is a live integer.
    match unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG | flags) } {
        0 => Collected::Nothing,
        pid if pid > 0 => Collected::One { pid, status },
        _ if Error::last_os_error().raw_os_error() == Some(libc::ECHILD) => Collected::Alone,
        _ => Collected::Nothing,
    }
}

/// A child, or a thread that some thread of ours traces, that has ended; it is not collected.
fn ended() -> Option<i32> {
    // SAFETY: all zeroes are a value of it.
    let mut what: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the record is live.
    let seen = unsafe { libc::waitid(libc::P_ALL, 0, &raw mut what, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT) };
    let is_end = matches!(what.si_code, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED);
    // SAFETY: filled in by the kernel, or zero.
    let pid = unsafe { what.si_pid() };
    (seen == 0 && pid > 0 && is_end).then_some(pid)
}
