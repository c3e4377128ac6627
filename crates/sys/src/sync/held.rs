//! Pages that one thread takes away now and then, and others say of that they must stay.
//!
//! *Holding.* Who holds pages notes them, waits if pages are just being taken, and touches them afterwards. Who takes looks at what is
//! noted after he has begun and before he takes. So he sees the pages, or they are gone before they are touched, and the touch brings
//! them back. Both look after they have said so, with a fence between.
//!
//! No lock: a thread that holds may fault in the midst of it, and that fault must be answered.

use core::mem::offset_of;
use core::sync::atomic::Ordering;

use super::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, fence};

/// Places looked at for one page.
const PROBES: usize = 64;

#[cfg(not(loom))]
const fn zeroes<const N: usize>() -> [AtomicU64; N] {
    [const { AtomicU64::new(0) }; N]
}

#[cfg(loom)]
fn zeroes<const N: usize>() -> [AtomicU64; N] {
    core::array::from_fn(|_| AtomicU64::new(0))
}

/// Pages that are held for ever, and whether pages are being taken.
///
/// Invariant: a page that [`HeldPages::hold`] has returned for, and that fitted in, is not taken.
#[derive(Debug)]
pub struct HeldPages<const PLACES: usize> {
    /// Page numbers by hash; 0: free.
    places: [AtomicU64; PLACES],
    /// Pages in them, and those that are about to be.
    count: AtomicU32,
    /// Odd while pages are looked up and taken.
    taking: AtomicU32,
    /// A page found no place.
    is_full: AtomicBool,
}

/// As long as it lives, what it has said of pages stays true.
#[derive(Debug)]
pub struct Taking<'h, const PLACES: usize> {
    held: &'h HeldPages<PLACES>,
}

impl<const PLACES: usize> HeldPages<PLACES> {
    /// Where it says whether pages are being taken: in its lowest bit.
    pub const TAKING_AT: usize = offset_of!(Self, taking);

    constant! {
        /// Nothing is held.
        pub fn new() -> Self {
            const { assert!(PLACES.is_power_of_two() && PLACES > 1, "a hash has whole bits") };
            Self {
                places: zeroes(),
                count: AtomicU32::new(0),
                taking: AtomicU32::new(0),
                is_full: AtomicBool::new(false),
            }
        }
    }

    fn places_of(&self, page: u64) -> impl Iterator<Item = &AtomicU64> {
        // Fibonacci hashing: the upper bits of the product are mixed best.
        let hash = page.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (u64::BITS - PLACES.ilog2());
        let first = usize::try_from(hash).expect("less than the places");
        (0..PROBES.min(PLACES)).map(move |probe| &self.places[(first + probe) % PLACES])
    }

    fn note(&self, page: u64) {
        // Counted first: whoever finds the page noted relies on that it is looked for.
        self.count.fetch_add(1, Ordering::Relaxed);
        for place in self.places_of(page) {
            match place.compare_exchange(0, page, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(found) if found == page => {
                    self.count.fetch_sub(1, Ordering::Relaxed);
                    return;
                }
                Err(_) => {}
            }
        }
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.is_full.store(true, Ordering::Relaxed);
    }

    /// These pages stay from now on. They may be out at this moment: who needs them touches them afterwards. `pause` lets some time
    /// pass.
    pub fn hold(&self, pages: impl Iterator<Item = u64>, pause: impl Fn()) {
        pages.for_each(|page| self.note(page));
        // Also if all were noted before: who did so may be waiting still.
        self.wait_for_taker(pause);
    }

    /// What was noted before is seen by whoever takes pages from now on.
    fn wait_for_taker(&self, pause: impl Fn()) {
        fence(Ordering::SeqCst);
        // Who takes pages now may have looked before. It is in one system call and ends it without us.
        let turn = self.taking.load(Ordering::Acquire);
        while turn % 2 == 1 && self.taking.load(Ordering::Acquire) == turn {
            pause();
        }
    }

    /// Pages are looked up and taken while the answer lives. One taker at a time.
    pub fn begin_taking(&self) -> Taking<'_, PLACES> {
        let before = self.taking.fetch_add(1, Ordering::Relaxed);
        debug_assert!(before.is_multiple_of(2), "one taker at a time");
        fence(Ordering::SeqCst);
        Taking { held: self }
    }

    /// Pages that are held for ever.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Relaxed)
    }

    /// True once a page found no place: it may be taken.
    pub fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// In a forked child: the thread that took pages is not there.
    pub fn after_fork(&self) {
        self.taking.store(0, Ordering::Relaxed);
    }
}

impl<const PLACES: usize> Taking<'_, PLACES> {
    /// Is any page held for ever?
    pub fn is_any(&self) -> bool {
        self.held.count() > 0
    }

    /// Is this page held for ever?
    pub fn has(&self, page: u64) -> bool {
        let found = self.held.places_of(page).map(|place| place.load(Ordering::Acquire));
        found.take_while(|&found| found != 0).any(|found| found == page)
    }
}

impl<const PLACES: usize> Drop for Taking<'_, PLACES> {
    fn drop(&mut self) {
        self.held.taking.fetch_add(1, Ordering::Release);
    }
}

/// A run of pages: its first, and the one behind its last.
#[repr(C)]
#[derive(Debug)]
struct Run {
    from: AtomicU64,
    to: AtomicU64,
}
#[cfg(not(loom))]
const _: () = assert!(size_of::<Run>() == 16 && offset_of!(Run, to) == 8);

/// Runs of pages that one thread holds for a while.
///
/// Only that thread writes it. Who takes pages may find words of two calls beside each other: of the second it is waited for.
#[repr(C)]
#[derive(Debug)]
pub struct HeldRuns<const RUNS: usize> {
    count: AtomicUsize,
    runs: [Run; RUNS],
}

impl<const RUNS: usize> HeldRuns<RUNS> {
    /// Where the runs are, as pairs of words, for code that holds by itself.
    pub const RUNS_AT: usize = offset_of!(Self, runs);
    /// Where the word is that says how many there are.
    pub const COUNT_AT: usize = offset_of!(Self, count);

    /// Nothing is held. Elsewhere it begins as memory that is zero.
    #[cfg(loom)]
    pub fn new() -> Self {
        let run = |_| Run { from: AtomicU64::new(0), to: AtomicU64::new(0) };
        Self { runs: core::array::from_fn(run), count: AtomicUsize::new(0) }
    }

    /// What is held, between the beginning and the end of a [`Taking`].
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        let count = self.count.load(Ordering::Acquire).min(RUNS);
        self.runs[..count].iter().map(|run| (run.from.load(Ordering::Acquire), run.to.load(Ordering::Acquire)))
    }

    /// These pages stay from now on until [`HeldRuns::release`]; they may be out at this moment. Where there is no room for a run more, those
    /// between them and the nearest run stay, too. `pause` lets some time pass.
    pub fn hold<const PLACES: usize>(&self, (from, to): (u64, u64), pages: &HeldPages<PLACES>, pause: impl Fn()) {
        let count = self.count.load(Ordering::Relaxed);
        let ends = |run: &Run| (run.from.load(Ordering::Relaxed), run.to.load(Ordering::Relaxed));
        let away = |run: &&Run| {
            let (known, end) = ends(run);
            known.max(from).saturating_sub(end.min(to))
        };
        if let Some(run) = self.runs[..count].iter().min_by_key(away)
            && (count == RUNS || away(&run) == 0)
        {
            let (known, end) = ends(run);
            if known <= from && to <= end {
                return;
            }
            run.from.store(known.min(from), Ordering::Release);
            run.to.store(end.max(to), Ordering::Release);
            return pages.wait_for_taker(pause);
        }
        self.runs[count].from.store(from, Ordering::Release);
        self.runs[count].to.store(to, Ordering::Release);
        self.count.store(count + 1, Ordering::Release);
        pages.wait_for_taker(pause);
    }

    /// What was held may go.
    pub fn release(&self) {
        self.count.store(0, Ordering::Release);
    }
}
