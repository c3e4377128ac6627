//! The mutex.

use loom::sync::Arc;
use loom::thread;
use pagetide_sys::sync::Mutex;

use crate::{Watched, explore};

#[test]
fn two_threads_exclude_each_other_and_neither_sleeps_for_ever() {
    explore(4, || {
        let mutex = Arc::new(Mutex::new(Watched::new()));
        let other = Arc::clone(&mutex);
        let thread = thread::spawn(move || {
            other.lock("loom").add();
            other.lock("loom").add();
        });
        mutex.lock("loom").add();
        thread.join().expect("it ends");
        assert_eq!(mutex.lock("loom").get(), 3);
    });
}

#[test]
fn of_three_threads_whoever_lets_go_wakes_one_that_sleeps() {
    explore(2, || {
        let mutex = Arc::new(Mutex::new(Watched::new()));
        let threads = [0, 1].map(|_| {
            let other = Arc::clone(&mutex);
            thread::spawn(move || other.lock("loom").add())
        });
        mutex.lock("loom").add();
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
        assert_eq!(mutex.lock("loom").get(), 3);
    });
}

#[test]
fn who_tries_gets_it_or_not_and_sees_what_was_written() {
    explore(4, || {
        let mutex = Arc::new(Mutex::new(Watched::new()));
        let other = Arc::clone(&mutex);
        let thread = thread::spawn(move || other.lock("loom").add());
        if let Some(guard) = mutex.try_lock() {
            guard.add();
        }
        thread.join().expect("it ends");
        assert!(matches!(mutex.lock("loom").get(), 1 | 2));
    });
}
