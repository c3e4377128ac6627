//! The mutex in every order of its threads' steps, with the orders of memory that its atomics allow (`make loom`).
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::thread;
use pagetide_sys::futex::Mutex;

/// Data of which loom says if two threads could use it at once, or one could miss what another wrote.
struct Watched(UnsafeCell<u32>);

fn add(mutex: &Mutex<Watched>) {
    let guard = mutex.lock("loom");
    // SAFETY: the guard gives this thread the data alone, which loom checks.
    guard.0.with_mut(|count| unsafe { *count += 1 });
}

fn count(mutex: &Mutex<Watched>) -> u32 {
    // SAFETY: as in `add`.
    mutex.lock("loom").0.with(|count| unsafe { *count })
}

fn explore(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(4);
    builder.check(run);
}

#[test]
fn two_threads_exclude_each_other_and_neither_sleeps_for_ever() {
    explore(|| {
        let mutex = Arc::new(Mutex::new(Watched(UnsafeCell::new(0))));
        let other = Arc::clone(&mutex);
        let thread = thread::spawn(move || {
            add(&other);
            add(&other);
        });
        add(&mutex);
        thread.join().expect("it ends");
        assert_eq!(count(&mutex), 3);
    });
}

#[test]
fn of_three_threads_whoever_lets_go_wakes_one_that_sleeps() {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(|| {
        let mutex = Arc::new(Mutex::new(Watched(UnsafeCell::new(0))));
        let threads = [0, 1].map(|_| {
            let other = Arc::clone(&mutex);
            thread::spawn(move || add(&other))
        });
        add(&mutex);
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
        assert_eq!(count(&mutex), 3);
    });
}

#[test]
fn who_tries_gets_it_or_not_and_sees_what_was_written() {
    explore(|| {
        let mutex = Arc::new(Mutex::new(Watched(UnsafeCell::new(0))));
        let other = Arc::clone(&mutex);
        let thread = thread::spawn(move || add(&other));
        if let Some(guard) = mutex.try_lock() {
            // SAFETY: as in `add`.
            guard.0.with_mut(|count| unsafe { *count += 1 });
        }
        thread.join().expect("it ends");
        assert!(matches!(count(&mutex), 1 | 2));
    });
}
