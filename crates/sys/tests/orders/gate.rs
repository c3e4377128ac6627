//! The gate between guards and forks.

use loom::sync::Arc;
use loom::thread;
use pagetide_sys::sync::Gate;

use crate::{Watched, explore};

#[test]
fn who_has_closed_the_gate_is_alone_and_everybody_comes_through() {
    explore(3, || {
        let shared = Arc::new((Gate::new(), [Watched::new(), Watched::new()]));
        let threads = [0, 1].map(|at| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                let (gate, made) = &*shared;
                gate.enter();
                made[at].add();
                gate.leave();
            })
        });
        let (gate, made) = &*shared;
        gate.close();
        let before = made.each_ref().map(Watched::get);
        made.iter().for_each(Watched::add);
        gate.open();
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
        assert!(before.iter().all(|&number| number <= 1));
        assert_eq!(made.each_ref().map(Watched::get), [2, 2]);
    });
}

#[test]
fn a_gate_that_is_closed_again_is_waited_for_by_both_sides() {
    explore(3, || {
        let shared = Arc::new((Gate::new(), Watched::new()));
        let other = Arc::clone(&shared);
        let thread = thread::spawn(move || {
            for _ in 0..2 {
                other.0.enter();
                other.1.add();
                other.0.leave();
            }
        });
        for _ in 0..2 {
            shared.0.close();
            shared.1.add();
            shared.0.open();
        }
        thread.join().expect("it ends");
        assert_eq!(shared.1.get(), 4);
    });
}
