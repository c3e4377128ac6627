//! The futex as loom sees it: comparing the word and going to sleep is one step, and a wake reaches those who sleep.
//!
//! One queue for all words, as if all of them fell into one of the kernel's buckets: a test has one word.

pub(super) use loom::sync::atomic::AtomicU32;

use core::sync::atomic::Ordering;
use loom::sync::{Condvar, Mutex};

use super::{Scope, Waited};

loom::lazy_static! {
    static ref BUCKET: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
}

/// As [`super::wait`], without a timeout.
pub(super) fn wait(word: &AtomicU32, expected: u32, timeout_ns: Option<u64>, _scope: Scope) -> Waited {
    assert!(timeout_ns.is_none(), "loom has no clock");
    let (bucket, sleepers) = &*BUCKET;
    let held = bucket.lock().expect("no thread panics with it");
    if word.load(Ordering::SeqCst) != expected {
        return Waited::Changed;
    }
    drop(sleepers.wait(held).expect("no thread panics with it"));
    Waited::Woken
}

/// As [`super::wake`]; loom does not count sleepers.
pub(super) fn wake(_word: &AtomicU32, count: u32, _scope: Scope) -> usize {
    let (bucket, sleepers) = &*BUCKET;
    let _held = bucket.lock().expect("no thread panics with it");
    if count == 1 {
        sleepers.notify_one();
    } else {
        sleepers.notify_all();
    }
    0
}
