//! Threads that wait for reads: one watches the engine, the others sleep.

use loom::sync::{Arc, Mutex as Results};
use loom::thread;
use pagetide_sys::sync::{Mutex, Turns, Watch};

use crate::{Bell, explore};

/// Under the lock.
#[derive(Default)]
struct State {
    watch: Watch,
    is_done: [bool; 3],
}

struct Shared {
    state: Mutex<State>,
    turns: Turns,
    /// What the engine has answered and nobody has taken.
    results: Results<Vec<usize>>,
    /// The engine's event, and what wakes who watches for a result that another one has taken.
    bell: Bell,
}

impl Shared {
    fn new() -> Arc<Self> {
        let state = Mutex::new(State::default());
        Arc::new(Self { state, turns: Turns::new(), results: Results::new(Vec::new()), bell: Bell::new() })
    }

    /// In the engine.
    fn answer(&self, thread: usize) {
        self.results.lock().expect("nobody panics with it").push(thread);
        self.bell.ring();
    }

    /// In a thread: take what was answered to anybody, until one's own is done. `looks`: as long as a watch of its own, it does not sleep.
    fn wait(&self, thread: usize, mut looks: u32) {
        let mut state = self.state.lock("a fault");
        loop {
            let results = std::mem::take(&mut *self.results.lock().expect("nobody panics with it"));
            results.iter().for_each(|&of| state.is_done[of] = true);
            if !results.is_empty() && state.watch.is_watched() {
                self.bell.ring();
            }
            if state.is_done[thread] {
                self.turns.next(&state.watch);
                return;
            }
            let is_look = looks > 0 && !state.watch.is_watched();
            looks -= u32::from(is_look);
            let look = || if is_look { thread::yield_now() } else { self.bell.sleep() };
            let lock = || self.state.lock("after a wait");
            state = self.turns.wait(state, |state| &mut state.watch, lock, (0, is_look), look);
        }
    }
}

/// The reads are over in this order, each when the thread of the one before has gone.
fn one_read_after_the_other(order: &[usize], looks: u32) {
    let shared = Shared::new();
    let wait = |at| {
        let shared = Arc::clone(&shared);
        Some(thread::spawn(move || shared.wait(at, looks)))
    };
    let mut threads: Vec<_> = (0..order.len()).map(wait).collect();
    for &at in order {
        shared.answer(at);
        threads[at].take().expect("each is there once").join().expect("it ends");
    }
}

#[test]
fn who_sleeps_goes_on_though_who_watches_waits_on() {
    explore(3, || one_read_after_the_other(&[0, 1], 0));
}

#[test]
fn of_two_that_sleep_each_goes_on_when_its_read_is_over() {
    explore(2, || one_read_after_the_other(&[1, 0, 2], 0));
}

#[test]
fn a_watch_that_goes_on_is_left_to_another_one_when_its_thread_goes() {
    explore(3, || one_read_after_the_other(&[0, 1], 1));
}
