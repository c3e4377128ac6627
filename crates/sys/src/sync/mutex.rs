//! A mutex on a futex, which needs no thread-local storage.
//!
//! It does not poison, does not know its owner and is not fair; a thread that takes it twice deadlocks. A process that forks
//! inherits the word as it is: re-initialise it in the child.

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::Ordering;

use super::atomic::AtomicU32;
use super::{wait, wake};
use crate::futex::{Scope, Waited};

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// Turns of the spin before sleeping: some 4 us. Who holds it computes for about as long; where it takes longer, its thread does not run,
/// and a spin would keep it from its CPU.
const SPIN_TURNS: u32 = if cfg!(loom) { 1 } else { 100 };

/// A mutex for data that several of our threads share. Not for managed memory: the word itself must always be present.
#[derive(Debug)]
pub struct Mutex<T> {
    word: AtomicU32,
    data: UnsafeCell<T>,
}

// SAFETY: the lock gives `&mut T` to one thread at a time.
unsafe impl<T: Send> Sync for Mutex<T> {}

impl<T> Mutex<T> {
    constant! {
        /// A free mutex.
        pub fn new(data: T) -> Self {
            Self { word: AtomicU32::new(FREE), data: UnsafeCell::new(data) }
        }
    }

    /// Take it; `purpose` is for the reader of the code.
    #[inline]
    pub fn lock(&self, purpose: &'static str) -> Guard<'_, T> {
        if self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_slow(None, purpose);
        }
        Guard { mutex: self, _data: PhantomData }
    }

    /// Take it, unless a sleep for it lasts this long: None. For what may be done without it where its holder waits for the caller.
    pub fn lock_within(&self, sleep_ns: u64, purpose: &'static str) -> Option<Guard<'_, T>> {
        let is_taken = self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
            || self.lock_slow(Some(sleep_ns), purpose);
        is_taken.then(|| Guard { mutex: self, _data: PhantomData })
    }

    /// Take it if it is free.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(Guard { mutex: self, _data: PhantomData })
    }

    #[cold]
    fn lock_slow(&self, sleep_ns: Option<u64>, _purpose: &'static str) -> bool {
        // Others may sleep, too, once this one has slept: whoever takes it then says so.
        let mut taken = HELD;
        loop {
            for _ in 0..SPIN_TURNS {
                match self.word.load(Ordering::Relaxed) {
                    FREE => {
                        if self.word.compare_exchange(FREE, taken, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                            return true;
                        }
                    }
                    HELD => {}
                    // Others sleep already: it takes longer than a spin.
                    _ => break,
                }
                core::hint::spin_loop();
            }
            taken = CONTENDED;
            // Bounded by the holders before us: each of them lets go and wakes one.
            if self.word.swap(CONTENDED, Ordering::Acquire) == FREE {
                return true;
            }
            if wait(&self.word, CONTENDED, sleep_ns, Scope::Private) == Waited::TimedOut {
                return false;
            }
        }
    }

    /// The data, when the mutex is not shared.
    pub fn get_mut(&mut self) -> &mut T {
        self.data.get_mut()
    }
}

impl Mutex<()> {
    /// In a copy of the address space: nobody holds it.
    pub fn forget(&self) {
        self.word.store(FREE, Ordering::Relaxed);
    }
}

/// The right to the data of a [`Mutex`] until it is dropped.
#[derive(Debug)]
pub struct Guard<'a, T> {
    mutex: &'a Mutex<T>,
    /// Makes the guard `Sync` only where `T` is.
    _data: PhantomData<&'a mut T>,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the guard exists, so this thread holds the mutex.
        unsafe { &*self.mutex.data.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard exists, so this thread holds the mutex; `&mut self` excludes a second reference.
        unsafe { &mut *self.mutex.data.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        if self.mutex.word.swap(FREE, Ordering::Release) == CONTENDED {
            wake(&self.mutex.word, 1, Scope::Private);
        }
    }
}
