//! Pages of the program that are never taken out, and what else the program's own threads tell the pager about its memory.
//!
//! Linux writes some words of a process without waiting for a page: what it does at the end of a thread (`clear_child_tid`, the
//! robust futexes) and on priority-inheriting futexes fails at once where a userfaultfd would have to be asked. Such words must be
//! there. The threads that know of them say so here, before the kernel may need them; the agent looks before it takes a page.
//!
//! No lock: a thread that says something may fault on its own stack in the midst of it, and the agent must be able to answer; who
//! sees what is `pagetide_sys::sync`'s. A page stays in the table for ever: where a thread's control block lay, the C library puts the
//! next one.
//!
//! Invariants: a page that [`Held::hold`] has returned for is not taken until the process ends; the table is memory that is never
//! managed (it is part of this object).

use std::sync::atomic::{AtomicBool, Ordering};

use pagetide_sys::mem::PAGE_BYTES;
use pagetide_sys::sync::{self, HeldPages};
use pagetide_sys::thread;

/// Pages that can be held: 256 MiB.
const PLACES: usize = 1 << 16;

/// What is held in one process.
#[derive(Debug)]
pub(crate) struct Held {
    pages: HeldPages<PLACES>,
    /// The kernel may refer to pages of this process without pinning them.
    lends: AtomicBool,
}

/// Where [`Held`] says whether pages are being taken: in its lowest bit.
#[cfg(target_arch = "x86_64")]
pub(crate) const TAKING_AT: usize = std::mem::offset_of!(Held, pages) + HeldPages::<PLACES>::TAKING_AT;

/// This process's.
pub(crate) static HELD: Held = Held::new();

/// The pages of a run up to where the next answer begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leading {
    /// So many may be taken.
    Free(u32),
    /// So many may not.
    Held(u32),
}

/// As long as it lives, what it has said of pages stays true.
#[derive(Debug)]
pub(crate) struct Taking<'h>(sync::Taking<'h, PLACES>);

impl Held {
    pub(crate) const fn new() -> Self {
        Self { pages: HeldPages::new(), lends: AtomicBool::new(false) }
    }

    /// The pages of these bytes stay from now on. They may be out at this moment: who needs them touches them afterwards.
    pub(crate) fn hold(&self, start: usize, bytes: usize) {
        let (first, end) = (start / PAGE_BYTES, (start + bytes).div_ceil(PAGE_BYTES));
        self.pages.hold((first..end).map(|vpn| vpn as u64), thread::yield_now);
    }

    /// For who holds pages for a while.
    #[cfg(target_arch = "x86_64")]
    pub(crate) const fn pages(&self) -> &HeldPages<PLACES> {
        &self.pages
    }

    /// Pages of a process that ends with its thread are looked up and taken while the answer lives. One taker at a time.
    pub(crate) fn begin_taking(&self) -> Taking<'_> {
        Taking(self.pages.begin_taking())
    }

    /// Pages that are held.
    pub(crate) fn count(&self) -> u32 {
        self.pages.count()
    }

    /// True once a page could not be noted: it may be taken.
    pub(crate) fn is_full(&self) -> bool {
        self.pages.is_full()
    }

    /// From now on the kernel may refer to pages without pinning them (the zero-copy sends of io_uring).
    pub(crate) fn begin_lending(&self) {
        self.lends.store(true, Ordering::Relaxed);
    }

    /// True if a page's memory may still be read by the kernel after the page has left the program: it must not be used for
    /// other content, only given back.
    pub(crate) fn lends(&self) -> bool {
        self.lends.load(Ordering::Relaxed)
    }

    /// In a forked child: the thread that took pages is not there.
    pub(crate) fn after_fork(&self) {
        self.pages.after_fork();
    }
}

impl Taking<'_> {
    /// What holds for the first of `pages` pages from `vpn` on, and for how many.
    pub(crate) fn leading(&self, vpn: u64, pages: u32) -> Leading {
        let pages = match during_calls(vpn, pages) {
            Leading::Free(pages) => pages,
            held @ Leading::Held(_) => return held,
        };
        if !self.0.is_any() {
            return Leading::Free(pages);
        }
        let is_held = self.0.has(vpn);
        let same = (1..pages).take_while(|&ahead| self.0.has(vpn + u64::from(ahead)) == is_held).count();
        let same = u32::try_from(same).expect("at most pages") + 1;
        if is_held { Leading::Held(same) } else { Leading::Free(same) }
    }
}

/// What system calls that are under way hold, in signal mode.
#[cfg(target_arch = "x86_64")]
fn during_calls(vpn: u64, pages: u32) -> Leading {
    crate::signal::threads::leading(vpn, pages)
}

/// Pages that these hold, those that two of them hold twice.
#[cfg(target_arch = "x86_64")]
pub(crate) fn pages_in_calls() -> u64 {
    crate::signal::threads::held_pages()
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) const fn pages_in_calls() -> u64 {
    0
}

#[cfg(not(target_arch = "x86_64"))]
const fn during_calls(_vpn: u64, pages: u32) -> Leading {
    Leading::Free(pages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_cut_where_held_pages_begin_and_end() {
        static HERE: Held = Held::new();
        assert_eq!(HERE.begin_taking().leading(100, 50), Leading::Free(50));
        HERE.hold(110 * PAGE_BYTES + 4000, 200);
        let taking = HERE.begin_taking();
        assert_eq!(taking.leading(100, 50), Leading::Free(10));
        assert_eq!(taking.leading(110, 40), Leading::Held(2));
        assert_eq!(taking.leading(112, 38), Leading::Free(38));
        assert_eq!(HERE.count(), 2);
    }

    #[test]
    fn what_is_held_twice_is_held_once() {
        static HERE: Held = Held::new();
        HERE.hold(PAGE_BYTES, 1);
        HERE.hold(PAGE_BYTES, 1);
        assert_eq!(HERE.count(), 1);
    }

    #[test]
    fn who_holds_waits_for_who_takes() {
        static HERE: Held = Held::new();
        static RETURNED: AtomicBool = AtomicBool::new(false);
        let taking = HERE.begin_taking();
        let holder = std::thread::spawn(|| {
            HERE.hold(7 * PAGE_BYTES, 1);
            RETURNED.store(true, Ordering::SeqCst);
        });
        while HERE.count() == 0 {
            thread::yield_now();
        }
        assert!(!RETURNED.load(Ordering::SeqCst));
        drop(taking);
        assert!(holder.join().is_ok() && RETURNED.load(Ordering::SeqCst));
    }

    #[test]
    fn tens_of_thousands_of_pages_are_found_again_or_said_to_be_too_many() {
        static HERE: Held = Held::new();
        for vpn in 1..40_000 {
            HERE.hold(vpn * 2 * PAGE_BYTES, 1);
        }
        assert!(!HERE.is_full());
        let taking = HERE.begin_taking();
        for vpn in 1..40_000 {
            assert_eq!(taking.leading(vpn * 2, 2), Leading::Held(1));
        }
        drop(taking);
        for vpn in 40_000..80_000 {
            HERE.hold(vpn * 2 * PAGE_BYTES, 1);
        }
        assert!(HERE.is_full());
    }
}
