//! Something that one has at a time, who takes it in one function and gives it back in another.

use core::sync::atomic::Ordering;

use super::atomic::AtomicU32;
use super::{wait, wake};
use crate::futex::Scope;

/// The word: 1 while somebody has it.
#[derive(Debug)]
pub struct Baton(AtomicU32);

impl Baton {
    constant! {
        /// Nobody has it.
        pub fn new() -> Self {
            Self(AtomicU32::new(0))
        }
    }

    /// Returns when the caller has it.
    pub fn take(&self) {
        while self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            wait(&self.0, 1, None, Scope::Private);
        }
    }

    /// Of who has it.
    pub fn give_back(&self) {
        self.0.store(0, Ordering::Release);
        wake(&self.0, 1, Scope::Private);
    }

    /// In a copy of the address space: who had it is not there, or has it no more.
    pub fn forget(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}
