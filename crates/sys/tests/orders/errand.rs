//! Faults that threads leave to the agent.

use loom::sync::Arc;
use loom::thread;
use pagetide_sys::sync::{Errand, Errands};

use crate::{Bell, Watched, explore};

struct Shared {
    errands: Errands,
    bell: Bell,
    /// By thread: its errand, what it is about, and what was done for it.
    each: [(Errand, Watched, Watched); 2],
}

impl Shared {
    fn new() -> Arc<Self> {
        let each = [0, 1].map(|_| (Errand::new(), Watched::new(), Watched::new()));
        Arc::new(Self { errands: Errands::new(), bell: Bell::new(), each })
    }

    /// In the thread.
    fn ask(&self, at: usize, times: u32) {
        let (errand, about, done) = &self.each[at];
        for time in 1..=times {
            about.add();
            if errand.leave(&self.errands) {
                self.bell.ring();
            }
            assert_eq!(errand.wait(0), time, "it has the answer to this errand");
            assert_eq!(done.get(), time);
            errand.take_back(&self.errands);
        }
    }

    /// In the agent: see to so many, as it is rung for.
    fn serve(&self, mut left: u32) {
        while left > 0 {
            if self.errands.may_sleep() {
                self.bell.sleep();
            }
            self.errands.wake();
            if self.errands.are_seen() {
                continue;
            }
            let seen = self.each.iter().filter(|(errand, ..)| errand.see(&self.errands)).count();
            for (errand, about, done) in self.each.iter().filter(|(errand, ..)| errand.is_seen()) {
                done.add();
                errand.answer(about.get());
                errand.wake();
            }
            left -= u32::try_from(seen).expect("two at most");
        }
    }
}

#[test]
fn who_leaves_one_errand_after_the_other_gets_each_answer() {
    explore(3, || {
        let shared = Shared::new();
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || other.ask(0, 2));
        shared.serve(2);
        thread.join().expect("it ends");
        assert!(shared.errands.are_none());
    });
}

#[test]
fn errands_of_two_threads_are_both_seen_to() {
    explore(2, || {
        let shared = Shared::new();
        let threads = [0, 1].map(|at| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.ask(at, 1))
        });
        shared.serve(2);
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
        assert!(shared.errands.are_none());
    });
}
