//! Threads that wait for the same source of events: one of them watches it, the others sleep until they are to look again.
//!
//! Whose thing is done goes; who watches and goes leaves the watch to one of the others. All of it is decided under the lock that the
//! threads share; only the sleep is not.

use core::sync::atomic::Ordering;

use super::atomic::AtomicU32;
use super::{wait, wake};
use crate::futex::Scope;

/// Who watches, under the lock.
#[derive(Debug, Default)]
pub struct Watch {
    is_watched: bool,
    /// Threads that sleep without watching.
    sleeping: u32,
}

impl Watch {
    /// A thread watches.
    pub const fn is_watched(&self) -> bool {
        self.is_watched
    }
}

/// The word changes when those who sleep are to look again.
#[derive(Debug)]
pub struct Turns(AtomicU32);

impl Turns {
    constant! {
        /// Nobody sleeps.
        pub fn new() -> Self {
            Self(AtomicU32::new(0))
        }
    }

    /// Under the lock: something has changed that others wait for.
    pub fn next(&self, watch: &Watch) {
        if watch.sleeping > 0 {
            self.0.fetch_add(1, Ordering::Relaxed);
            wake(&self.0, u32::MAX, Scope::Private);
        }
    }

    /// With the lock held: sleep without it until something may have changed, `look_ns` at most; or, where nobody watches, `look` does.
    /// A watch that `goes_on` is taken up again by the same thread at once: nobody else is told of its end.
    pub fn wait<G>(
        &self,
        mut held: G,
        watch: impl Fn(&mut G) -> &mut Watch,
        lock: impl FnOnce() -> G,
        (look_ns, goes_on): (u64, bool),
        look: impl FnOnce(),
    ) -> G {
        let of = watch(&mut held);
        if of.is_watched {
            of.sleeping += 1;
            let turn = self.0.load(Ordering::Relaxed);
            drop(held);
            wait(&self.0, turn, Some(look_ns), Scope::Private);
            let mut held = lock();
            watch(&mut held).sleeping -= 1;
            return held;
        }
        of.is_watched = true;
        drop(held);
        look();
        let mut held = lock();
        watch(&mut held).is_watched = false;
        if !goes_on {
            self.next(watch(&mut held));
        }
        held
    }
}
