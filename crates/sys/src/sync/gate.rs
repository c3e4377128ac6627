//! A gate: many may be inside; who closes it waits until nobody is, and keeps those out who come.

use core::sync::atomic::Ordering;

use super::atomic::AtomicU32;
use super::{wait, wake};
use crate::futex::Scope;

/// It is closed, or is being closed.
const CLOSED: u32 = 1 << 31;

/// The word: how many are inside, and [`CLOSED`].
#[derive(Debug)]
pub struct Gate(AtomicU32);

impl Gate {
    constant! {
        /// An open one.
        pub fn new() -> Self {
            Self(AtomicU32::new(0))
        }
    }

    /// Returns inside, when it is open.
    pub fn enter(&self) {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            if word & CLOSED != 0 {
                wait(&self.0, word, None, Scope::Private);
                word = self.0.load(Ordering::Relaxed);
                continue;
            }
            match self.0.compare_exchange_weak(word, word + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return,
                Err(changed) => word = changed,
            }
        }
    }

    /// Of who has entered.
    pub fn leave(&self) {
        if self.0.fetch_sub(1, Ordering::Release) == CLOSED | 1 {
            wake(&self.0, u32::MAX, Scope::Private);
        }
    }

    /// Returns when nobody is inside. By one thread at a time.
    pub fn close(&self) {
        let mut word = self.0.fetch_or(CLOSED, Ordering::Acquire) | CLOSED;
        while word != CLOSED {
            wait(&self.0, word, None, Scope::Private);
            word = self.0.load(Ordering::Acquire);
        }
    }

    /// Of who has closed it.
    pub fn open(&self) {
        self.0.fetch_and(!CLOSED, Ordering::Release);
        wake(&self.0, u32::MAX, Scope::Private);
    }

    /// In a copy of the address space: nobody is there.
    pub fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn nobody_is_inside_while_the_gate_is_closed_and_everybody_comes_through() {
        const ROUNDS: u32 = 2_000;
        let (gate, inside, is_over) = (Gate::new(), AtomicU32::new(0), AtomicBool::new(false));
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
