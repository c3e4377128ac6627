//! A gate that a program's own threads keep among themselves: many may be inside, and whoever closes it waits until none is.
//!
//! It says nothing about a kernel. What a library does around calls that must not meet is played with it.

use super::{Answer, Pid, World};

/// What a thread does at the gate of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// Go inside, once it is open.
    Enter,
    /// Come out again.
    Leave,
    /// Close it, once it is open and nobody is inside.
    Close,
    /// Open it again.
    Open,
}

/// A gate. A copy of a process has one of its own, open and empty.
#[derive(Debug, Default)]
pub(super) struct Passers {
    inside: u32,
    is_closed: bool,
}

impl World {
    /// None: the thread waits, and asks again.
    pub(super) fn at_gate(&mut self, pid: Pid, what: Gate) -> Option<Answer> {
        let gate = &mut self.process_mut(pid).gate;
        match what {
            Gate::Enter | Gate::Close if gate.is_closed => return None,
            Gate::Close if gate.inside > 0 => return None,
            Gate::Enter => gate.inside += 1,
            Gate::Leave => gate.inside -= 1,
            Gate::Close => gate.is_closed = true,
            Gate::Open => gate.is_closed = false,
        }
        Some(Answer::Done)
    }
}
