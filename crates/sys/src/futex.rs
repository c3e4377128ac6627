//! Waiting for a 32-bit word to change, and a mutex on top of it that needs no thread-local storage.
//!
//! The mutex does not poison, does not know its owner and is not fair; a thread that takes it twice deadlocks. A process
//! that forks inherits the word as it is: re-initialise it in the child.

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

use linux_raw_sys::general::{__NR_futex, FUTEX_PRIVATE_FLAG, FUTEX_WAIT, FUTEX_WAKE};

use crate::clock::Timespec;
use crate::syscall;
use crate::syscall::Errno;
use crate::word::addr_of;

/// Who shares the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Threads of one process.
    Private,
    /// Processes that map the same memory.
    Shared,
}

impl Scope {
    const fn flag(self) -> u32 {
        match self {
            Self::Private => FUTEX_PRIVATE_FLAG,
            Self::Shared => 0,
        }
    }
}

/// Why a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// Someone woke the word (or a spurious wake: look again).
    Woken,
    /// The word did not hold the expected value.
    Changed,
    /// The time was up.
    TimedOut,
    /// A signal came.
    Interrupted,
}

/// Sleep while `word` holds `expected`, at most `timeout_ns`.
pub fn wait(word: &AtomicU32, expected: u32, timeout_ns: Option<u64>, scope: Scope) -> Waited {
    let timeout = timeout_ns.map(Timespec::from_ns);
    let timeout_addr = timeout.as_ref().map_or(0, |timeout| addr_of(timeout));
    let op = FUTEX_WAIT | scope.flag();
    // SAFETY: the kernel reads the word and the timeout; both live across the call.
    let answer = unsafe { syscall!(__NR_futex, addr_of(word.as_ptr()), op as usize, expected as usize, timeout_addr) };
    match answer {
        Ok(_) => Waited::Woken,
        Err(Errno::EAGAIN) => Waited::Changed,
        Err(Errno::ETIMEDOUT) => Waited::TimedOut,
        Err(Errno::EINTR) => Waited::Interrupted,
        Err(error) => panic!("futex wait on a live aligned word: {error}"),
    }
}

/// Wake up to `count` sleepers; how many there were.
pub fn wake(word: &AtomicU32, count: u32, scope: Scope) -> usize {
    let op = FUTEX_WAKE | scope.flag();
    let count = count.min(i32::MAX.cast_unsigned());
    // SAFETY: the kernel only uses the address of the word.
    let answer = unsafe { syscall!(__NR_futex, addr_of(word.as_ptr()), op as usize, count as usize) };
    answer.expect("futex wake on a live aligned word")
}

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// Turns of the spin before sleeping: about a microsecond, less than a futex sleep and wake costs.
const SPIN_TURNS: u32 = 100;

/// A mutex for data that several of our threads share. Not for managed memory: the word itself must always be present.
#[derive(Debug)]
pub struct Mutex<T> {
    word: AtomicU32,
    data: UnsafeCell<T>,
}

// SAFETY: the lock gives `&mut T` to one thread at a time.
unsafe impl<T: Send> Sync for Mutex<T> {}

impl<T> Mutex<T> {
    /// A free mutex.
    pub const fn new(data: T) -> Self {
        Self { word: AtomicU32::new(FREE), data: UnsafeCell::new(data) }
    }

    /// Take it; `purpose` is for the reader of the code.
    #[inline]
    pub fn lock(&self, purpose: &'static str) -> Guard<'_, T> {
        if self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_err() {
            self.lock_slow(purpose);
        }
        Guard { mutex: self, _data: PhantomData }
    }

    /// Take it if it is free.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(Guard { mutex: self, _data: PhantomData })
    }

    #[cold]
    fn lock_slow(&self, _purpose: &'static str) {
        for _ in 0..SPIN_TURNS {
            if self.word.load(Ordering::Relaxed) == FREE
                && self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
            {
                return;
            }
            core::hint::spin_loop();
        }
        // Bounded by the holders before us: each of them lets go and wakes one.
        while self.word.swap(CONTENDED, Ordering::Acquire) != FREE {
            wait(&self.word, CONTENDED, None, Scope::Private);
        }
    }

    /// The data, when the mutex is not shared.
    pub fn get_mut(&mut self) -> &mut T {
        self.data.get_mut()
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
