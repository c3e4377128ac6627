//! Guard regions (MADV_GUARD_INSTALL) and forks of one process wait for each other.
//!
//! The kernel tells nobody of a guard, so one is made in three steps, of which the second is told (`preload/src/advice.rs`). A copy that
//! was made between them would have the guard, while its pages are still known: old bytes would come back once it is removed, or at
//! once. So a fork waits until no guard is being made, and keeps new ones waiting for as long as the copy takes.
//!
//! Copies that no fork handler is told of (`clone`, the program's own system call instructions) wait for nobody.

use pagetide_sys::signal::SignalSet;
use pagetide_sys::sync::Gate;
use pagetide_sys::thread;

use crate::foothold;

/// Of this process: guards are made inside.
static GATE: Gate = Gate::new();

fn is_ours() -> bool {
    foothold::owner() == thread::getpid()
}

/// A guard is being made: as long as this lives, no fork of this process makes its copy.
#[derive(Debug)]
pub(crate) struct Making {
    /// What the thread blocked before: a handler that forks would wait for the guard that it interrupts. None in a child of vfork, and in
    /// a copy that is not known yet: the gate is not theirs.
    mask: Option<SignalSet>,
}

impl Making {
    pub(crate) fn begin() -> Self {
        let mask = is_ours().then(|| SignalSet::ALL.block());
        if mask.is_some() {
            GATE.enter();
        }
        Self { mask }
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        if let Some(mask) = self.mask {
            GATE.leave();
            mask.restore();
        }
    }
}

/// Before the copy, in the forking thread, with all signals blocked: returns when no guard is being made.
pub(super) fn wait() {
    if is_ours() {
        GATE.close();
    }
}

/// After the copy, in the parent's forking thread.
pub(super) fn go_on() {
    if is_ours() {
        GATE.open();
    }
}

/// In a copy.
pub(super) fn forget() {
    GATE.forget();
}
