//! What many change at any time, each with a flag of its own, and one now and then wants to find as it is.
//!
//! Both look after they have said so, with a fence between: one of the two sees the other. A change writes no word that other changes
//! write, and one whose thread is gone is forgotten by clearing its flag.

use core::sync::atomic::Ordering;

use super::atomic::{AtomicBool, AtomicU32, fence};
use super::{wait, wake};
use crate::futex::Scope;

/// A thread changes something.
#[derive(Debug)]
pub struct Changing(AtomicBool);

impl Changing {
    /// It does not. Elsewhere it begins as memory that is zero.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// It does not any more.
    pub fn end(&self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The word: 1 while nothing is to change.
#[derive(Debug)]
pub struct Stillness(AtomicU32);

impl Stillness {
    constant! {
        /// Everything may change.
        pub fn new() -> Self {
            Self(AtomicU32::new(0))
        }
    }

    /// Before a change, by the thread that the flag is of: returns when it may be made. It lasts until [`Changing::end`].
    pub fn begin_change(&self, changing: &Changing) {
        loop {
            changing.0.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if self.0.load(Ordering::Acquire) == 0 {
                return;
            }
            changing.end();
            wait(&self.0, 1, None, Scope::Private);
        }
    }

    /// Returns when nothing changes, and nothing will until [`Stillness::end`]. `all`: the flags that there are. `pause` lets some
    /// time pass: each change ends by itself.
    pub fn begin<'c, I: Iterator<Item = &'c Changing>>(&self, all: impl FnOnce() -> I, pause: impl Fn()) {
        while self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            wait(&self.0, 1, None, Scope::Private);
        }
        fence(Ordering::SeqCst);
        for changing in all() {
            while changing.0.load(Ordering::Acquire) {
                pause();
            }
        }
    }

    /// Everything may change again.
    pub fn end(&self) {
        self.0.store(0, Ordering::Release);
        wake(&self.0, u32::MAX, Scope::Private);
    }
}
