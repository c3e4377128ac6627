//! Memory: what is known of each page, the lists it is on, and the charge against the budget.
//!
//! The lowest layer, and the only one in which a page changes: by the named steps of `transitions` and `marks`. It decides
//! nothing. What is counted of pages is counted here.

mod audit;
pub(crate) mod budget;
pub(crate) mod lru;
mod marks;
pub mod page;
pub(crate) mod tally;
mod transitions;
pub(crate) mod used;
mod watched;

use alloc::boxed::Box;

use crate::config::Config;
use crate::host::Host;
use crate::types::Nanos;
use crate::vmstat::{Counter, Vmstat};
use budget::Budget;
use lru::{DI, Lru, UN};
use page::{Flags, NIL, PageTable};
use tally::{Tallied, Tally};
use used::Used;
pub(crate) use watched::Watched;

/// Pages by what they are about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// On their way out: unmapped for page-out, or under write.
    pub(crate) pending: u32,
    /// Those of them that will be freed at the end, if nobody asks for them.
    pub(crate) sure: u32,
    /// With an effect in flight.
    pub(crate) flights: u32,
    /// Pages of files that are being read.
    pub(crate) file_reads: u32,
    /// With a frame, and not mapped.
    pub(crate) cached: u32,
    /// With a slot.
    pub(crate) owned_slots: u32,
    /// With a frame and a slot.
    pub(crate) kept_slots: u32,
}

impl Counts {
    /// In swap space, and not in memory as well.
    #[inline]
    pub(crate) const fn away(&self) -> u32 {
        self.owned_slots - self.kept_slots
    }
}

/// Dirty pages of files, and what the flusher has to do with them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Writeback {
    /// Pages still to be looked at in this round of the flusher; 0: it is asleep.
    pub(crate) left: u32,
    /// Dirty pages counted, and pages it has under write.
    pub(crate) dirty: u32,
    pub(crate) writing: u32,
}

/// All pages, and the frames they may have.
#[derive(Debug)]
pub(crate) struct Memory {
    table: PageTable,
    lru: Lru,
    pub(crate) budget: Budget,
    counts: Counts,
    pub(crate) writeback: Writeback,
    /// While held, nothing is unmapped and all that has a frame is mapped: the moments around a fork.
    pub(crate) is_held: bool,
    /// Of the bits of a page, those that an access may set: none where the host is blind.
    seen_bits: u32,
    pub(crate) now: Nanos,
    pub(crate) stats: Vmstat,
    /// By parts of memory, while somebody looks.
    pub(crate) tally: Option<Box<Tally>>,
    /// The use of what is read around faults.
    pub(crate) around: Used,
    /// The use of pages that are watched, on probation and kept.
    pub(crate) tried: Used,
    pub(crate) kept: Used,
}

impl Memory {
    pub(crate) fn new(config: &Config, host: &Host) -> Self {
        let batch = if host.has_lru_batches { config.lru_batch as usize } else { 0 };
        Self {
            table: PageTable::new(config.pages_max),
            lru: Lru::new(batch, config.budget, config.writes_end_elsewhere),
            budget: Budget::new(config),
            counts: Counts::default(),
            writeback: Writeback::default(),
            is_held: false,
            seen_bits: if host.sees_accesses { u32::MAX } else { 0 },
            now: 0,
            stats: Vmstat::new(),
            tally: None,
            around: Used::new(),
            tried: Used::new(),
            kept: Used::new(),
        }
    }

    /// Pages of the table.
    #[inline]
    pub(crate) fn len(&self) -> u32 {
        self.table.len()
    }

    /// What is known of a page just now.
    #[inline]
    pub(crate) fn at(&self, p: u32) -> Flags {
        self.table.at(p)
    }

    /// The slot, as an index of the slot pool.
    #[inline]
    pub(crate) fn slot(&self, p: u32) -> Option<u32> {
        self.table.slot(p)
    }

    #[inline]
    pub(crate) const fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Anonymous pages on their way out. (What the flusher writes stays in memory.)
    #[inline]
    pub(crate) const fn leaving(&self) -> u32 {
        self.counts.pending - self.writeback.writing
    }

    #[inline]
    pub(crate) fn count(&mut self, counter: Counter, n: u32) {
        self.stats.add(counter, n);
    }

    /// The same of what is counted by parts of memory, too.
    #[inline]
    pub(crate) fn count_at(&mut self, p: u32, what: Tallied, n: u32) {
        self.stats.add(what.counter(), n);
        if let Some(tally) = &mut self.tally {
            tally.add(p, what, n);
        }
    }

    #[inline]
    pub(crate) const fn free(&self) -> u32 {
        self.budget.free()
    }

    #[inline]
    pub(crate) fn uncharge(&mut self, n: u32) {
        self.budget.uncharge(n);
    }

    /// Dirty pages are to be written: the flusher begins a round, if it is not at work.
    #[inline]
    pub(crate) fn wake_flusher(&mut self) {
        if self.writeback.left == 0 && self.writeback.dirty > 0 {
            self.writeback.left = self.table.len();
        }
    }

    // The lists, to be looked at.

    #[inline]
    pub(crate) const fn list_len(&self, list: usize) -> u32 {
        self.lru.len(list)
    }

    /// Inactive anon, active anon, inactive file, active file.
    #[inline]
    pub(crate) const fn list_sizes(&self) -> [u32; 4] {
        self.lru.sizes()
    }

    /// Pages on the unevictable list.
    #[inline]
    pub(crate) const fn unevictable_len(&self) -> u32 {
        self.lru.len(UN)
    }

    /// The pages of a list, head first.
    pub(crate) fn list(&self, list: usize) -> impl Iterator<Item = u32> + '_ {
        self.lru.iter(&self.table, list)
    }

    /// The oldest page of a list, at which a scan is about to look.
    #[inline]
    pub(crate) fn scan_tail(&mut self, list: usize) -> Option<u32> {
        let p = self.lru.scan_tail(&self.table, list);
        (p != NIL).then_some(p)
    }

    /// The oldest page of a list.
    pub(crate) fn tail(&self, list: usize) -> Option<u32> {
        let p = self.lru.tail(list);
        (p != NIL).then_some(p)
    }

    /// The discarded page whose frame has waited longest to be dropped.
    #[inline]
    pub(crate) fn next_discard(&self) -> Option<u32> {
        let p = self.lru.tail(DI);
        (p != NIL).then_some(p)
    }

    /// From now on the core works for `task`, on its CPU.
    #[inline]
    pub(crate) const fn on_cpu_of(&mut self, task: u32) {
        self.lru.on_cpu_of(task);
    }

    /// Empty the batches of this CPU (the kernel's `lru_add_drain`).
    #[inline]
    pub(crate) fn drain(&mut self) {
        let rotated = self.lru.drain(&mut self.table);
        self.count(Counter::pgrotated, rotated);
    }

    /// Empty only the batch of pages to be rotated.
    #[inline]
    pub(crate) fn drain_rotate(&mut self) {
        let rotated = self.lru.drain_rotate(&mut self.table);
        self.count(Counter::pgrotated, rotated);
    }

    /// Empty the batches of all CPUs.
    #[inline]
    pub(crate) fn drain_all(&mut self) {
        let rotated = self.lru.drain_all(&mut self.table);
        self.count(Counter::pgrotated, rotated);
    }
}
