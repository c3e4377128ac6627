//! Words that one writes and others read, in other processes too: who reads finds all of one writing, or learns that he did not.

use core::sync::atomic::Ordering;

use super::atomic::{AtomicU64, fence};

/// The number of what is told: odd while it is written, or while nothing is told; 0 if nothing ever was. It only grows: who reads for long
/// does not take what was told later for what he has begun with.
///
/// The words themselves are atomic ones, written and read without an order.
#[repr(transparent)]
#[derive(Debug)]
pub struct Version(AtomicU64);

impl Version {
    constant! {
        /// Nothing was told.
        pub fn new() -> Self {
            Self(AtomicU64::new(0))
        }
    }

    /// Tell what `write` stores. One writer.
    pub fn write(&self, write: impl FnOnce()) {
        let odd = self.silence();
        fence(Ordering::Release);
        write();
        self.0.store(odd.wrapping_add(1), Ordering::Release);
    }

    /// Nothing is told any more. By the writer.
    pub fn fall_silent(&self) {
        self.silence();
    }

    fn silence(&self) -> u64 {
        let odd = self.0.load(Ordering::Relaxed) | 1;
        self.0.store(odd, Ordering::Relaxed);
        odd
    }

    /// What `read` loads, in up to so many tries; None: nothing is told, or it changed each time.
    pub fn read<T>(&self, tries: u32, read: impl Fn() -> T) -> Option<T> {
        (0..tries).find_map(|_| {
            let before = self.0.load(Ordering::Acquire);
            if before == 0 || before % 2 == 1 {
                return None;
            }
            let found = read();
            fence(Ordering::Acquire);
            (self.0.load(Ordering::Relaxed) == before).then_some(found)
        })
    }
}
