//! Pages that are taken, and pages that must not be.

use std::sync::atomic::Ordering;

use loom::sync::atomic::AtomicBool;
use loom::sync::{Arc, Mutex};
use loom::thread;
use pagetide_sys::sync::{HeldPages, HeldRuns};

use crate::{Watched, explore};

const PAGES: usize = 4;

/// What is held, and the page table: which pages are there, and their bytes, which change their place when a page is taken. Only a
/// fault brings an order: it sees what the taker did before.
struct Memory {
    pages: HeldPages<4>,
    runs: HeldRuns<2>,
    is_there: [AtomicBool; PAGES],
    bytes: [Watched; PAGES],
    /// Who takes has it: what others wait for.
    taker: Mutex<()>,
}

impl Memory {
    fn new() -> Arc<Self> {
        let is_there = [(); PAGES].map(|()| AtomicBool::new(true));
        let bytes = [(); PAGES].map(|()| Watched::new());
        Arc::new(Self { pages: HeldPages::new(), runs: HeldRuns::new(), is_there, bytes, taker: Mutex::new(()) })
    }

    /// As the pager: nothing that is held.
    fn take(&self, pages: impl IntoIterator<Item = usize>) {
        let _under_way = self.taker.lock();
        let taking = self.pages.begin_taking();
        for page in pages {
            let number = page as u64;
            let is_in_call = self.runs.iter().any(|(from, to)| from <= number && number < to);
            if !is_in_call && !(taking.is_any() && taking.has(number)) {
                self.bytes[page].add();
                self.is_there[page].swap(false, Ordering::Release);
            }
        }
    }

    fn pause(&self) {
        drop(self.taker.lock());
    }

    /// A page that is out comes back.
    fn touch(&self, page: usize) {
        self.is_there[page].swap(true, Ordering::Acquire);
    }

    /// As the kernel, where it does not wait for a page.
    fn use_at_once(&self, page: usize) {
        assert!(self.is_there[page].fetch_and(true, Ordering::Relaxed), "page {page} was taken while it was held");
        self.bytes[page].get();
    }

    fn hold_for_ever(&self, page: usize) {
        self.pages.hold(std::iter::once(page as u64), || self.pause());
        self.touch(page);
        self.use_at_once(page);
    }

    fn hold_for_call(&self, pages: std::ops::Range<usize>) {
        self.runs.hold((pages.start as u64, pages.end as u64), &self.pages, || self.pause());
        pages.clone().for_each(|page| self.touch(page));
        pages.for_each(|page| self.use_at_once(page));
    }
}

#[test]
fn a_page_that_two_threads_hold_for_ever_stays_for_each_of_them() {
    explore(3, || {
        let memory = Memory::new();
        let threads = [0, 1].map(|_| {
            let memory = Arc::clone(&memory);
            thread::spawn(move || memory.hold_for_ever(1))
        });
        memory.take([1]);
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
    });
}

#[test]
fn pages_that_are_held_for_ever_stay_though_all_is_taken_twice() {
    explore(3, || {
        let memory = Memory::new();
        let other = Arc::clone(&memory);
        let thread = thread::spawn(move || {
            other.hold_for_ever(1);
            other.hold_for_ever(2);
            other.use_at_once(1);
        });
        memory.take([1, 2]);
        memory.take([1, 2]);
        thread.join().expect("it ends");
    });
}

#[test]
fn the_pages_of_a_call_stay_until_it_is_over_and_those_of_the_next_one_too() {
    explore(3, || {
        let memory = Memory::new();
        let other = Arc::clone(&memory);
        let thread = thread::spawn(move || {
            other.hold_for_call(3..4);
            other.runs.release();
            other.hold_for_call(1..2);
            other.runs.release();
        });
        memory.take([1, 3]);
        memory.take([1]);
        thread.join().expect("it ends");
    });
}

#[test]
fn what_a_call_adds_to_its_pages_takes_none_of_them_away() {
    explore(3, || {
        let memory = Memory::new();
        let other = Arc::clone(&memory);
        let thread = thread::spawn(move || {
            other.hold_for_call(2..3);
            other.hold_for_call(1..2);
            other.use_at_once(2);
            other.runs.release();
        });
        memory.take([1, 2]);
        thread.join().expect("it ends");
    });
}

#[test]
fn where_there_is_no_room_for_a_run_more_the_nearest_takes_it_in() {
    explore(3, || {
        let memory = Memory::new();
        let far = 1 << 35;
        for run in [(far, far + 1), (100, 102), (110, 111), (far + 3, far + 4)] {
            memory.runs.hold(run, &memory.pages, || memory.pause());
        }
        assert_eq!(memory.runs.iter().collect::<Vec<_>>(), [(far, far + 4), (100, 111)]);
        memory.runs.hold((95, 100), &memory.pages, || memory.pause());
        assert_eq!(memory.runs.iter().collect::<Vec<_>>(), [(far, far + 4), (95, 111)]);
    });
}
