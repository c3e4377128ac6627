//! Words that are told through shared memory.

use std::sync::atomic::Ordering;

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use pagetide_sys::sync::Version;

use crate::explore;

struct Told {
    version: Version,
    words: [AtomicU64; 2],
}

impl Told {
    fn new() -> Arc<Self> {
        Arc::new(Self { version: Version::new(), words: [0, 1].map(|_| AtomicU64::new(0)) })
    }

    fn tell(&self, number: u64) {
        self.version.write(|| self.words.iter().for_each(|word| word.store(number, Ordering::Relaxed)));
    }

    /// What is found: both words alike.
    fn read(&self) -> Option<u64> {
        let [first, second] =
            self.version.read(1, || self.words.each_ref().map(|word| word.load(Ordering::Relaxed)))?;
        assert_eq!(first, second, "half of each");
        Some(first)
    }
}

#[test]
fn who_reads_finds_all_of_one_writing_or_nothing() {
    explore(3, || {
        let told = Told::new();
        told.tell(1);
        let other = Arc::clone(&told);
        let thread = thread::spawn(move || other.tell(2));
        let found = told.read();
        assert!(matches!(found, None | Some(1 | 2)), "{found:?}");
        thread.join().expect("it ends");
        assert_eq!(told.read(), Some(2));
    });
}

#[test]
fn what_is_told_after_a_silence_is_not_taken_for_what_was_told_before() {
    explore(3, || {
        let told = Told::new();
        told.tell(1);
        let other = Arc::clone(&told);
        let thread = thread::spawn(move || {
            other.version.fall_silent();
            other.tell(2);
        });
        let found = told.read();
        assert!(matches!(found, None | Some(1 | 2)), "{found:?}");
        thread.join().expect("it ends");
        told.version.fall_silent();
        assert_eq!(told.read(), None);
    });
}
