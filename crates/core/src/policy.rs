//! The core itself: its state, and the way of an event through it.
//!
//! `handle` is a dispatch: faults go to `fault`, answers to `completion`, changes of the world to `control`; then `job` lets
//! everything go on that can. No policy in this file.

use crate::config::{Config, MemoryMode};
use crate::control::Control;
use crate::effect::{Effect, Effects};
use crate::event::Event;
use crate::files::Flusher;
use crate::host::Host;
use crate::io::IoTable;
use crate::memory::budget::Budget;
use crate::memory::lru::{DI, Lru};
use crate::memory::page::{DIRTY, DISCARD, FRAME, MAPPED, PageTable, PageView, YOUNG};
use crate::readahead::ClusterRa;
use crate::readahead::regions::Regions;
use crate::reclaim::Kswapd;
use crate::reclaim::balance::LruCost;
use crate::reclaim::references::References;
use crate::swap::Swap;
use crate::tasks::job::Jobs;
use crate::tasks::waiters::Waiters;
use crate::types::{Access, Nanos, PageIdx};
use crate::vmstat::{Counter, Vmstat};
use alloc::string::String;
use alloc::vec::Vec;

/// The paging policy of one address space and its budget.
#[derive(Debug)]
pub struct Core {
    pub(crate) cfg: Config,
    pub(crate) host: Host,
    pub(crate) references: References,
    pub(crate) pages: PageTable,
    pub(crate) lru: Lru,
    pub(crate) regions: Regions,
    pub(crate) swap: Swap,
    pub(crate) mem: Budget,
    pub(crate) io: IoTable,
    pub(crate) waiters: Waiters,
    pub(crate) jobs: Jobs,
    pub(crate) kswapd: Kswapd,
    pub(crate) control: Control,
    pub(crate) flusher: Flusher,
    pub(crate) cost: LruCost,
    pub(crate) cluster_ra: ClusterRa,
    pub(crate) stats: Vmstat,
    pub(crate) now: Nanos,
    /// Effects that were in the buffer when the event came.
    pub(crate) base: usize,
    /// The nonresident clock.
    pub(crate) age: u64,
    /// Activations by refault so far, by type; and their number when the last reclaim run ended.
    pub(crate) ws_activate: [u64; 2],
    pub(crate) ws_snapshot: [u64; 2],
    pub(crate) stat_sizes: [u32; 4],
    pub(crate) stat_activate: [u64; 2],
    pub(crate) stat_next: Nanos,
    /// Pages on their way out: unmapped for page-out, or under write.
    pub(crate) pending: u32,
    /// Those of them that will be freed at the end, if nobody asks for them.
    pub(crate) sure: u32,
    /// Pages with an effect in flight.
    pub(crate) flights: u32,
    /// Pages of files that are being read.
    pub(crate) file_reads: u32,
    /// Answers of the host so far; wraps.
    pub(crate) answers: u32,
    /// Pages with a frame that are not mapped.
    pub(crate) cached: u32,
    /// Pages that have a frame and a slot.
    pub(crate) kept_slots: u32,
    /// What an access leaves in a page's word: nothing where the host is blind.
    seen_bits: u32,
}

/// What an access met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touch {
    /// The page is there.
    Hit,
    /// It is not: hand in [`Event::Fault`].
    Fault,
}

impl Core {
    /// A core with all its memory: nothing is allocated later but for regions.
    pub fn new(config: Config) -> Self {
        let host = Host::of(&config);
        let lru_batch = if host.has_lru_batches { config.lru_batch as usize } else { 0 };
        Self {
            pages: PageTable::new(config.pages_max),
            lru: Lru::new(lru_batch, config.budget, config.writes_end_elsewhere),
            regions: Regions::new(),
            swap: Swap::new(config.slots_max, config.slot_order, config.early_free),
            mem: Budget::new(&config),
            io: IoTable::new(),
            waiters: Waiters::new(),
            jobs: Jobs::new(),
            kswapd: Kswapd::new(),
            control: Control::new(),
            flusher: Flusher::new(),
            cost: LruCost::default(),
            cluster_ra: ClusterRa::new(),
            stats: Vmstat::new(),
            now: 0,
            base: 0,
            age: 0,
            ws_activate: [0; 2],
            ws_snapshot: [0; 2],
            stat_sizes: config.stat_start,
            stat_activate: [0; 2],
            stat_next: config.stat_first_ns,
            pending: 0,
            sure: 0,
            flights: 0,
            file_reads: 0,
            answers: 0,
            cached: 0,
            kept_slots: 0,
            seen_bits: if host.sees_accesses { u32::MAX } else { 0 },
            host,
            references: References::of(&config),
            cfg: config,
        }
    }

    /// An access: of an exact host it sets the young and dirty bits if the page is mapped; of a blind one it leaves no trace. No
    /// list is touched.
    #[inline]
    pub fn touch(&mut self, page: PageIdx, access: Access) -> Touch {
        let word = self.pages.word_mut(page.0);
        if *word & MAPPED == 0 {
            return Touch::Fault;
        }
        let bits = match access {
            Access::Read => YOUNG,
            Access::Write => YOUNG | DIRTY,
        } & self.seen_bits;
        // Mostly they are set: the line of the host's cache stays clean.
        if *word & bits != bits {
            *word |= bits;
        }
        Touch::Hit
    }

    /// True if the program can use the page without a fault.
    #[inline]
    pub fn is_mapped(&self, page: PageIdx) -> bool {
        self.pages.is(page.0, MAPPED)
    }

    /// Take a fact in; append orders to `out`.
    pub fn handle(&mut self, now: Nanos, event: Event, out: &mut Effects) {
        self.now = self.now.max(now);
        self.base = out.len();
        match event {
            Event::Fault { page, access, task } => self.on_fault(page.0, access, task, out),
            Event::Mapped { range, answer } => self.on_mapped(range, answer, out),
            Event::Unmapped { range, answer } => self.on_unmapped(range, answer, out),
            Event::IoDone { io, range, outcome } => self.on_io_done(io, range, outcome, out),
            Event::FileRead { range, task } => self.on_file_read(range, task, out),
            Event::FileWrite { range, task } => self.on_file_write(range, task, out),
            Event::Writeback => self.write_back(),
            Event::Timeout => {}
            Event::RegionAdded { .. }
            | Event::FileAdded { .. }
            | Event::RegionResized { .. }
            | Event::RegionSplit { .. }
            | Event::RegionRemoved { .. }
            | Event::Adopted { .. }
            | Event::Inherited { .. }
            | Event::Discarded { .. }
            | Event::Referenced { .. }
            | Event::Advice { .. }
            | Event::BudgetChanged { .. }
            | Event::DeviceAdded { .. }
            | Event::DeviceGrown { .. }
            | Event::Swapoff { .. }
            | Event::Hold { .. }
            | Event::SlotsPinned { .. } => self.on_control(event),
        }
        let amid = self.cfg.request_ends && matches!(event, Event::IoDone { .. });
        self.run_ready(event == Event::Timeout, amid, out);
    }

    /// When the core wants a [`Event::Timeout`]; a time that is past means at once.
    pub fn deadline(&self) -> Option<Nanos> {
        if self.has_work() {
            return Some(self.now);
        }
        let naps = [self.kswapd.wakes_at(self.now), self.jobs.wakes_at()];
        naps.into_iter().chain([self.control.rescue_at]).flatten().min()
    }

    /// True if the timeout may come later than at the deadline: all there is to do is background reclaim, and more than half of
    /// the frames between the watermarks min and low are free.
    pub fn can_wait(&self) -> bool {
        !self.has_prompt_work() && self.mem.free() > self.mem.min.midpoint(self.mem.low)
    }

    /// The counters.
    pub const fn vmstat(&self) -> &Vmstat {
        &self.stats
    }

    /// The settings.
    pub const fn config(&self) -> &Config {
        &self.cfg
    }

    /// What is known of a page.
    pub fn page(&self, page: PageIdx) -> PageView {
        let p = page.0;
        PageView {
            page,
            state: self.pages.state(p),
            flight: self.pages.flight(p),
            slot: self.pages.slot(p).map(|slot| self.swap.locate(slot)),
            dirty: self.pages.is(p, DIRTY),
            young: self.pages.is(p, YOUNG),
            discarded: self.pages.is(p, DISCARD),
        }
    }

    /// Frames in use, in pages (a memcg's unused charge included).
    pub const fn charged(&self) -> u32 {
        self.mem.charged
    }

    /// The budget in pages.
    pub const fn budget(&self) -> u32 {
        self.mem.budget
    }

    /// Slots that are free on all open devices.
    pub const fn swap_free(&self) -> u32 {
        self.swap.free()
    }

    /// Slots in use on a device; `None` if it is gone.
    pub fn device_used(&self, device: crate::types::DeviceId) -> Option<u32> {
        self.swap.device(device).map(|d| d.used)
    }

    /// Pages of each list: inactive anon, active anon, inactive file, active file, unevictable.
    pub const fn list_sizes(&self) -> [u32; 5] {
        let s = self.lru.sizes();
        [s[0], s[1], s[2], s[3], self.lru.len(crate::memory::lru::UN)]
    }

    /// True if no effect is in flight and nothing is left to do; while held, also that every resident page is mapped.
    pub fn is_settled(&self) -> bool {
        self.flights == 0 && self.io.live() == 0 && !self.has_work() && !(self.control.hold && self.cached > 0)
    }

    /// The lists, head first, as text: for tests and reports.
    pub fn dump(&self) -> String {
        use core::fmt::Write as _;
        let mut text = String::new();
        for (list, name) in
            ["inactive_anon", "active_anon", "inactive_file", "active_file", "unevictable"].iter().enumerate()
        {
            if self.lru.len(list) == 0 && list > 0 {
                continue;
            }
            let pages: Vec<String> = self.lru.iter(&self.pages, list).map(|p| alloc::format!("{p}")).collect();
            write!(text, "{name}: {}", pages.join(" ")).expect("a string grows");
            text.push('\n');
        }
        text
    }

    pub(crate) const fn is_memcg(&self) -> bool {
        matches!(self.cfg.memory, MemoryMode::Memcg { .. })
    }

    pub(crate) fn has_work(&self) -> bool {
        self.has_prompt_work() || (self.kswapd.is_runnable(self.now) && !self.control.hold)
    }

    /// Work other than background reclaim.
    fn has_prompt_work(&self) -> bool {
        self.waiters.ready_len() > 0
            || self.jobs.has_runnable(self.now)
            || self.lru.len(DI) > 0
            || self.is_flusher_runnable()
            || self.control.has_work(self.cached)
    }

    /// Give a page that was just charged its frame. It is on no list yet.
    pub(crate) fn take_frame(&mut self, p: u32) {
        debug_assert!(!self.pages.is(p, FRAME));
        self.pages.set(p, FRAME);
        self.cached += 1;
        if self.pages.slot(p).is_some() {
            self.kept_slots += 1;
        }
    }

    /// The frame is gone; the page is on no list any more.
    pub(crate) fn lose_frame(&mut self, p: u32) {
        if !self.pages.is(p, MAPPED) {
            self.cached -= 1;
        }
        self.uncount_dirty(p);
        self.pages.clear(p, FRAME | MAPPED | YOUNG | DIRTY);
        if self.pages.slot(p).is_some() {
            self.kept_slots -= 1;
        }
        self.uncharge(1);
    }

    pub(crate) fn set_mapped(&mut self, p: u32) {
        if !self.pages.is(p, MAPPED) {
            self.pages.set(p, MAPPED);
            self.cached -= 1;
            if let Some(slot) = self.pages.slot(p) {
                self.swap.note_mapped(slot, true);
            }
        }
    }

    pub(crate) fn set_unmapped(&mut self, p: u32) {
        if self.pages.is(p, MAPPED) {
            self.pages.clear(p, MAPPED | crate::memory::page::WRITABLE);
            self.cached += 1;
            if let Some(slot) = self.pages.slot(p) {
                self.swap.note_mapped(slot, false);
            }
        }
    }

    /// Own a slot (with or without a frame).
    pub(crate) fn give_slot(&mut self, p: u32, slot: u32) {
        self.pages.set_slot(p, slot);
        self.swap.note_mapped(slot, self.pages.is(p, MAPPED));
        if self.pages.is(p, FRAME) {
            self.kept_slots += 1;
        }
    }

    /// Free the page's slot, if it has one.
    pub(crate) fn drop_slot(&mut self, p: u32) {
        if let Some(slot) = self.pages.take_slot(p) {
            self.swap.free_slot(slot);
            if self.pages.is(p, FRAME) {
                self.kept_slots -= 1;
            }
        }
    }

    pub(crate) fn uncharge(&mut self, n: u32) {
        assert!(self.mem.charged >= n, "I3: uncharged more than was charged");
        self.mem.charged -= n;
        self.jobs.memory_freed();
    }

    pub(crate) fn begin_flight(&mut self, p: u32, flight: crate::memory::page::Flight) {
        self.pages.set_flight(p, flight);
        self.flights += 1;
    }

    pub(crate) fn end_flight(&mut self, p: u32) {
        self.pages.set_flight(p, crate::memory::page::Flight::None);
        self.flights -= 1;
    }

    pub(crate) fn emit(&self, effect: Effect, out: &mut Effects) {
        out.push_merged(effect, self.base);
    }

    pub(crate) fn count(&mut self, counter: Counter, n: u32) {
        self.stats.add(counter, n);
    }
}
