//! Guard regions (MADV_GUARD_INSTALL) and forks of one process wait for each other.
//!
//! The kernel tells nobody of a guard, so one is made in three steps, of which the second is told (`preload/src/advice.rs`). A copy that
//! was made between them would have the guard, while its pages are still known: old bytes would come back once it is removed, or at
//! once. So a fork waits until no guard is being made, and keeps new ones waiting for as long as the copy takes.
//!
//! Copies that no fork handler is told of (`clone`, the program's own system call instructions) wait for nobody.

use std::sync::atomic::{AtomicU32, Ordering};

use pagetide_sys::futex::{self, Scope};
use pagetide_sys::signal::SignalSet;
use pagetide_sys::thread;

use crate::foothold;

/// A fork is being made.
const CLOSED: u32 = 1 << 31;

/// Of this process.
static GATE: Gate = Gate(AtomicU32::new(0));

/// Many may be inside; who closes it waits until nobody is. The word: how many are inside, and [`CLOSED`].
#[derive(Debug)]
struct Gate(AtomicU32);

impl Gate {
    fn enter(&self) {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            if word & CLOSED != 0 {
                futex::wait(&self.0, word, None, Scope::Private);
                word = self.0.load(Ordering::Relaxed);
                continue;
            }
            match self.0.compare_exchange_weak(word, word + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return,
                Err(changed) => word = changed,
            }
        }
    }

    fn leave(&self) {
        if self.0.fetch_sub(1, Ordering::Release) == CLOSED | 1 {
            futex::wake(&self.0, u32::MAX, Scope::Private);
        }
    }

    /// By one thread at a time.
    fn close(&self) {
        let mut word = self.0.fetch_or(CLOSED, Ordering::Acquire) | CLOSED;
        while word != CLOSED {
            futex::wait(&self.0, word, None, Scope::Private);
            word = self.0.load(Ordering::Acquire);
        }
    }

    fn open(&self) {
        self.0.fetch_and(!CLOSED, Ordering::Release);
        futex::wake(&self.0, u32::MAX, Scope::Private);
    }

    fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn nobody_is_inside_while_the_gate_is_closed_and_everybody_comes_through() {
        const ROUNDS: u32 = 2_000;
        let (gate, inside, is_over) = (Gate(AtomicU32::new(0)), AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        gate.enter();
                        inside.fetch_add(1, Ordering::Relaxed);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::Relaxed);
                        gate.leave();
                    }
                });
            }
            for _ in 0..ROUNDS {
                gate.close();
                assert_eq!(inside.load(Ordering::Relaxed), 0);
                std::thread::yield_now();
                assert_eq!(inside.load(Ordering::Relaxed), 0);
                gate.open();
            }
            is_over.store(true, Ordering::Relaxed);
        });
        assert_eq!(gate.0.load(Ordering::Relaxed), 0);
    }
}
