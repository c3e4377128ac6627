//! Agents go on while their processes are stopped: others read a stopped process's memory, and wait for what is out.
//!
//! A signal (SIGSTOP) stops every thread of a process, and a tracer attaches to every one that it finds: crash reporters and profilers do
//! both, and then read (`process_vm_readv`), which waits for the agent. So the supervisor traces agents itself. A thread has one tracer:
//! others are refused it (EPERM) and go on without. It is asked for no stop, and goes on from each that comes to it.
//!
//! A thread that is traced has ended for its process when its tracer has collected it, which the first thread does in any case.

use pagetide_sys::trace::{Halt, Tracee};

use super::tree::Process;
use super::{Supervisor, start};

/// What of an agent's thread is known.
#[derive(Debug, Default)]
pub(super) enum Unstopped {
    /// Nobody has asked.
    #[default]
    Unknown,
    /// It is ours to let go on.
    Traced(Tracee),
    /// It stops as others do: it has a tracer, or may have none.
    Refused,
}

impl Supervisor {
    /// Take care of agents that have begun their work. (In signal mode nobody waits for them but threads of their own process.)
    pub(super) fn keep_agents_going(&mut self) {
        if !self.hello.signal_mode {
            self.tree.list.iter_mut().for_each(Process::keep_agent_going);
        }
    }
}

impl Process {
    /// Take care of its agent, if it has one that is at work. Only if no thread of the process is held: an exec waits until we collect
    /// these, and a seize for the exec.
    fn keep_agent_going(&mut self) {
        let is_due = matches!(self.unstopped, Unstopped::Unknown) && self.starting.is_none() && self.is_managed();
        if is_due {
            let seized = start::agent_of(self.pid).and_then(|tid| Tracee::seize(tid, 0).ok());
            self.unstopped = seized.map_or(Unstopped::Refused, Unstopped::Traced);
        }
    }

    /// Its agent has ended; it may get another one.
    pub(super) fn forget_refusal(&mut self) {
        if matches!(self.unstopped, Unstopped::Refused) {
            self.unstopped = Unstopped::Unknown;
        }
    }

    /// The thread `tid` of it is its agent, which is traced.
    pub(super) fn has_traced(&self, tid: i32) -> bool {
        matches!(&self.unstopped, Unstopped::Traced(tracee) if tracee.tid() == tid)
    }

    /// Its agent has stopped or ended.
    pub(super) fn let_agent_go_on(&mut self, status: i32) {
        let Unstopped::Traced(tracee) = &self.unstopped else { return };
        // It may have been killed meanwhile.
        let _ = match Halt::of(status) {
            Halt::None => Ok(()),
            Halt::Trap | Halt::Group => tracee.resume(0),
            Halt::Signal(signal) => tracee.resume(signal),
            Halt::Ended(_) => {
                self.unstopped = Unstopped::Unknown;
                Ok(())
            }
        };
    }
}
