//! The futex as loom sees it: comparing the word and going to sleep is one step, and a wake reaches those who sleep on its word.
//!
//! There is no time: a wake that is lost is a deadlock here, also where the program would look again after a while.

use core::ptr;
use core::sync::atomic::Ordering;
use std::collections::VecDeque;

use loom::sync::atomic::AtomicU32;
use loom::sync::{Arc, Condvar, Mutex};

use crate::futex::{Scope, Waited};

/// Who sleeps, on which word, in the order in which they came.
type Sleepers = VecDeque<(usize, Arc<Condvar>)>;

loom::lazy_static! {
    static ref SLEEPERS: Mutex<Sleepers> = Mutex::new(VecDeque::new());
}

/// As [`crate::futex::wait`].
pub(super) fn wait(word: &AtomicU32, expected: u32, _timeout_ns: Option<u64>, _scope: Scope) -> Waited {
    let mut sleepers = SLEEPERS.lock().expect("no thread panics with it");
    if word.load(Ordering::SeqCst) != expected {
        return Waited::Changed;
    }
    let bell = Arc::new(Condvar::new());
    sleepers.push_back((ptr::from_ref(word).addr(), Arc::clone(&bell)));
    drop(bell.wait(sleepers).expect("no thread panics with it"));
    Waited::Woken
}

/// As [`crate::futex::wake`].
pub(super) fn wake(word: &AtomicU32, count: u32, _scope: Scope) -> usize {
    let mut sleepers = SLEEPERS.lock().expect("no thread panics with it");
    let mut woken = 0;
    while woken < count as usize
        && let Some(at) = sleepers.iter().position(|(on, _)| *on == ptr::from_ref(word).addr())
        && let Some((_, bell)) = sleepers.remove(at)
    {
        bell.notify_one();
        woken += 1;
    }
    woken
}
