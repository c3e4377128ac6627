//! What threads share, in every order of their steps, with all that the orders of memory let a load see (`make loom`).
#![cfg(loom)]

mod baton;
mod errand;
mod gate;
mod held;
mod mutex;
mod still;
mod turns;
mod version;

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::{Condvar, Mutex};

/// Try every order in which at most so many threads are interrupted where they could have gone on.
fn explore(preemptions: usize, run: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(run);
}

/// A number of which loom says if two threads could use it at once, or one could miss what another wrote.
struct Watched(UnsafeCell<u32>);

// SAFETY: whether threads use it one after the other is what is tried.
unsafe impl Sync for Watched {}

impl Watched {
    fn new() -> Self {
        Self(UnsafeCell::new(0))
    }

    fn add(&self) {
        // SAFETY: loom checks that nobody else uses it.
        self.0.with_mut(|number| unsafe { *number += 1 });
    }

    fn get(&self) -> u32 {
        // SAFETY: loom checks that nobody changes it.
        self.0.with(|number| unsafe { *number })
    }
}

/// A counter of events as the kernel has it: it is rung, and who sleeps on it takes all that was rung.
struct Bell {
    rung: Mutex<bool>,
    sleepers: Condvar,
}

impl Bell {
    fn new() -> Self {
        Self { rung: Mutex::new(false), sleepers: Condvar::new() }
    }

    fn ring(&self) {
        *self.rung.lock().expect("nobody panics with it") = true;
        self.sleepers.notify_all();
    }

    fn sleep(&self) {
        let mut rung = self.rung.lock().expect("nobody panics with it");
        while !std::mem::take(&mut *rung) {
            rung = self.sleepers.wait(rung).expect("nobody panics with it");
        }
    }
}
