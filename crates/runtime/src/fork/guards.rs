//! Forks wait for advice about memory that concerns the copy, and such advice for them: guard regions (MADV_GUARD_INSTALL), and what a
//! child gets (MADV_WIPEONFORK, MADV_DONTFORK, and back).
//!
//! The kernel tells nobody of a guard, so one is made in three steps, of which the second is told (`preload/src/advice.rs`). A copy that
//! was made between them would have the guard, while its pages are still known: old bytes would come back once it is removed, or at
//! once. So a fork waits until no guard is being made, and keeps new ones waiting.
//!
//! What a child gets, the agent looks up after the copy. Changed between the two, memory that was to be wiped would be taken for copied, and
//! the child read old bytes there. So advice waits until doorbell 1 is answered.
//!
//! Copies that no fork handler is told of (`clone`, the program's own system call instructions) wait for nobody.

use std::sync::atomic::{AtomicI32, Ordering};

use pagetide_sys::signal::SignalSet;
use pagetide_sys::sync::Gate;
use pagetide_sys::thread;

use crate::foothold;

/// Of this process: such advice is given inside.
static DOOR: Door = Door::new();

/// A gate that does not keep out who has closed it: another library's fork handlers may run while it is closed, and advise.
#[derive(Debug)]
struct Door {
    gate: Gate,
    /// The thread that has closed it; 0: it is open.
    closed_by: AtomicI32,
}

impl Door {
    const fn new() -> Self {
        Self { gate: Gate::new(), closed_by: AtomicI32::new(0) }
    }

    /// False: the caller has closed it, and is alone.
    fn enter(&self) -> bool {
        let is_other = self.closed_by.load(Ordering::Relaxed) != thread::gettid();
        if is_other {
            self.gate.enter();
        }
        is_other
    }

    fn close(&self) {
        self.gate.close();
        self.closed_by.store(thread::gettid(), Ordering::Relaxed);
    }

    fn open(&self) {
        self.closed_by.store(0, Ordering::Relaxed);
        self.gate.open();
    }

    fn forget(&self) {
        self.closed_by.store(0, Ordering::Relaxed);
        self.gate.forget();
    }
}

fn is_ours() -> bool {
    foothold::owner() == thread::getpid()
}

/// Advice is being given: as long as this lives, no fork of this process makes its copy.
#[derive(Debug)]
pub(crate) struct Advising {
    /// What the thread blocked before: a handler that forks would wait for the advice that it interrupts. None in a child of vfork, in a
    /// copy that is not known yet, and in a fork's own handlers: they are not inside.
    mask: Option<SignalSet>,
}

impl Advising {
    pub(crate) fn begin() -> Self {
        if !is_ours() {
            return Self { mask: None };
        }
        let mask = SignalSet::ALL.block();
        if DOOR.enter() {
            return Self { mask: Some(mask) };
        }
        mask.restore();
        Self { mask: None }
    }
}

impl Drop for Advising {
    fn drop(&mut self) {
        if let Some(mask) = self.mask {
            DOOR.gate.leave();
            mask.restore();
        }
    }
}

/// Before the copy, in the forking thread, with all signals blocked: returns when no advice is being given.
pub(super) fn wait() {
    if is_ours() {
        DOOR.close();
    }
}

/// When the child needs its parent no more, in the parent's forking thread.
pub(super) fn go_on() {
    if is_ours() {
        DOOR.open();
    }
}

/// In a copy.
pub(super) fn forget() {
    DOOR.forget();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_closed_the_door_does_not_wait_for_itself() {
        let door = Door::new();
        door.close();
        assert!(!door.enter());
        door.open();
        assert!(door.enter());
    }
}
