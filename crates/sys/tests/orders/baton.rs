//! What one fork has at a time.

use loom::sync::Arc;
use loom::thread;
use pagetide_sys::sync::Baton;

use crate::{Watched, explore};

#[test]
fn of_three_threads_each_gets_it_and_one_has_it() {
    explore(3, || {
        let shared = Arc::new((Baton::new(), Watched::new()));
        let threads = [0, 1].map(|_| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.0.take();
                shared.1.add();
                shared.0.give_back();
            })
        });
        shared.0.take();
        shared.1.add();
        shared.0.give_back();
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
        shared.0.take();
        assert_eq!(shared.1.get(), 3);
    });
}
