//! What a thread leaves to another one, which looks for it when it is rung for, and sleeps on until it has an answer.

use core::sync::atomic::Ordering;

use super::atomic::{AtomicU32, fence};
use super::{wait, wake};
use crate::futex::Scope;

/// Nothing is left.
const NONE: u32 = 0;
/// It is to be seen.
const LEFT: u32 = 1;
/// It was seen.
const SEEN: u32 = 2;
/// It has this answer, or a higher one.
const ANSWERED: u32 = 3;

/// One thread's. What it is about lies beside it: whoever sees the errand sees what was written before it was left, and the other way round.
#[derive(Debug)]
pub struct Errand(AtomicU32);

/// What all threads have left, and whether the one that sees to it sleeps.
#[derive(Debug)]
pub struct Errands {
    /// Not taken back yet.
    left: AtomicU32,
    /// Of these: not seen yet.
    unseen: AtomicU32,
    /// 1: it sleeps, or is about to.
    is_asleep: AtomicU32,
}

impl Errands {
    constant! {
        /// None.
        pub fn new() -> Self {
            Self { left: AtomicU32::new(0), unseen: AtomicU32::new(0), is_asleep: AtomicU32::new(1) }
        }
    }

    /// True if each was seen: there is nothing to look for. Whoever was rung for one that was left before finds it.
    pub fn are_seen(&self) -> bool {
        self.unseen.load(Ordering::Acquire) == 0
    }

    /// True if there is none that was not taken back.
    pub fn are_none(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }

    /// Who sees to errands is about to sleep. False: one was left that it has not seen, and it is not rung for that.
    pub fn may_sleep(&self) -> bool {
        self.is_asleep.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.unseen.load(Ordering::Relaxed) == 0
    }

    /// It does not sleep: nobody has to ring before it asks the next time whether it may.
    pub fn wake(&self) {
        self.is_asleep.store(0, Ordering::Relaxed);
    }

    /// In a copy of the address space, once each was taken back: they are none.
    pub fn forget(&self) {
        self.left.store(0, Ordering::Relaxed);
        self.unseen.store(0, Ordering::Relaxed);
        self.is_asleep.store(1, Ordering::Relaxed);
    }
}

impl Errand {
    /// Nothing is left. Elsewhere it begins as memory that is zero.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self(AtomicU32::new(NONE))
    }

    /// Leave it. True: the other thread sleeps, and is to be rung for now.
    pub fn leave(&self, all: &Errands) -> bool {
        self.0.store(LEFT, Ordering::Release);
        all.left.fetch_add(1, Ordering::Release);
        all.unseen.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        all.is_asleep.swap(0, Ordering::Relaxed) == 1
    }

    /// Take it back, if it was left: nobody waits with it.
    pub fn take_back(&self, all: &Errands) {
        let was = self.0.swap(NONE, Ordering::Release);
        if was == LEFT {
            all.unseen.fetch_sub(1, Ordering::Relaxed);
        }
        if was != NONE {
            all.left.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// See it. True: it was left, and not seen yet.
    pub fn see(&self, all: &Errands) -> bool {
        let is_new = self.0.compare_exchange(LEFT, SEEN, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if is_new {
            all.unseen.fetch_sub(1, Ordering::Relaxed);
        }
        is_new
    }

    /// It was seen, and has no answer.
    pub fn is_seen(&self) -> bool {
        self.0.load(Ordering::Relaxed) == SEEN
    }

    /// Answer what was seen. Who waits for it is to be woken ([`Errand::wake`]).
    pub fn answer(&self, answer: u32) {
        self.0.store(ANSWERED + answer, Ordering::Release);
    }

    /// Who waits for the answer looks for it.
    pub fn wake(&self) {
        wake(&self.0, 1, Scope::Private);
    }

    /// What was answered, once it was.
    pub fn answered(&self) -> Option<u32> {
        self.0.load(Ordering::Acquire).checked_sub(ANSWERED)
    }

    /// Returns what was answered. Looks again after `look_ns`, whatever happens.
    pub fn wait(&self, look_ns: u64) -> u32 {
        loop {
            let state = self.0.load(Ordering::Acquire);
            if let Some(answer) = state.checked_sub(ANSWERED) {
                return answer;
            }
            wait(&self.0, state, Some(look_ns), Scope::Private);
        }
    }
}
