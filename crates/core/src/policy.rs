//! The core itself: the way of an event through it.
//!
//! `handle` is a dispatch: faults, answers and calls go to `tasks`, changes of the world to `control`; then `tasks` lets everything
//! go on that can. No policy in this file.

use crate::config::Config;
use crate::effect::Effects;
use crate::event::Event;
use crate::memory::page::{PageState, PageView};
use crate::memory::tally::{PartCounts, Tally};
use crate::tasks::Tasks;
use crate::types::{Access, Nanos, PageIdx, PageRange};
use crate::vmstat::Vmstat;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;

/// The paging policy of one address space and its budget.
#[derive(Debug)]
pub struct Core {
    pub(crate) tasks: Tasks,
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
        Self { tasks: Tasks::new(&config) }
    }

    /// An access: of an exact host it sets the young and dirty bits if the page is mapped; of a blind one it leaves no trace. No
    /// list is touched.
    #[inline]
    pub fn touch(&mut self, page: PageIdx, access: Access) -> Touch {
        if self.tasks.paging.space.mem.touch(page.0, access) { Touch::Hit } else { Touch::Fault }
    }

    /// True if the program can use the page without a fault.
    #[inline]
    pub fn is_mapped(&self, page: PageIdx) -> bool {
        self.tasks.paging.space.mem.at(page.0).is_mapped()
    }

    /// Take a fact in; append orders to `out`.
    pub fn handle(&mut self, now: Nanos, event: &Event, out: &mut Effects) {
        let mem = &mut self.tasks.paging.space.mem;
        mem.now = mem.now.max(now);
        out.begin_event();
        // By reference: who copies an event that was just put together piece by piece waits for those stores.
        match *event {
            Event::Fault { page, access, task } => self.tasks.on_fault(page.0, access, task, out),
            Event::Mapped { range, answer } => self.tasks.on_mapped(range, answer, out),
            Event::Unmapped { range, answer } => self.tasks.on_unmapped(range, answer, out),
            Event::IoDone { io, range, outcome } => self.tasks.on_io_done(io, range, outcome, out),
            Event::FileRead { range, task } => self.tasks.on_file_read(range, task, out),
            Event::FileWrite { range, task } => self.tasks.on_file_write(range, task, out),
            Event::Writeback => self.tasks.files.write_back(&mut self.tasks.paging.space.mem),
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
            | Event::SlotsBacked { .. }
            | Event::Swapoff { .. }
            | Event::SwapoffStopped { .. }
            | Event::KnobSet { .. }
            | Event::Hold { .. }
            | Event::SlotsPinned { .. } => self.on_control(event),
        }
        let amid = self.tasks.paging.cfg.request_ends && matches!(event, Event::IoDone { .. });
        self.tasks.run_ready(*event == Event::Timeout, amid, out);
    }

    /// When the core wants a [`Event::Timeout`]; a time that is past means at once.
    pub fn deadline(&self) -> Option<Nanos> {
        if self.tasks.has_work() {
            return Some(self.tasks.now());
        }
        self.tasks.wakes_at()
    }

    /// True if the timeout may come later than at the deadline: all there is to do is background reclaim, and more than half of
    /// the frames between the watermarks min and low are free.
    pub fn can_wait(&self) -> bool {
        let budget = &self.tasks.paging.space.mem.budget;
        !self.tasks.has_prompt_work() && budget.free() > budget.min.midpoint(budget.low)
    }

    /// The counters.
    pub const fn vmstat(&self) -> &Vmstat {
        &self.tasks.paging.space.mem.stats
    }

    /// Anonymous pages that are away: in swap space and not in memory as well.
    pub fn away_pages(&self) -> u64 {
        self.tasks.paging.space.mem.counts().away().into()
    }

    /// The most anonymous pages that were away at once.
    pub const fn away_pages_max(&self) -> u64 {
        self.tasks.paging.reclaim.absences.away_pages_max()
    }

    /// How long anonymous pages stayed away that came back: reckoned at each call.
    pub fn absences(&self) -> crate::absences::Absences {
        self.tasks.paging.reclaim.absences.absences()
    }

    /// The settings.
    pub const fn config(&self) -> &Config {
        &self.tasks.paging.cfg
    }

    /// What is known of a page.
    pub fn page(&self, page: PageIdx) -> PageView {
        let space = &self.tasks.paging.space;
        let known = space.mem.at(page.0);
        PageView {
            page,
            state: known.state(),
            flight: known.flight(),
            slot: space.mem.slot(page.0).map(|slot| space.slots.locate(slot)),
            dirty: known.is_dirty(),
            young: known.is_young(),
            discarded: known.is_discarded(),
        }
    }

    /// What is known of a page, in a word.
    #[inline]
    pub fn state(&self, page: PageIdx) -> PageState {
        self.tasks.paging.space.mem.at(page.0).state()
    }

    /// Count faults and readahead by these ranges from now on, which are ascending and apart; by none: no longer. No decision
    /// depends on it.
    pub fn tally_by(&mut self, ranges: &[PageRange]) {
        let tally = (!ranges.is_empty()).then(|| Box::new(Tally::new(ranges)));
        self.tasks.paging.space.mem.tally = tally;
    }

    /// What was counted since then, in the order of the ranges.
    pub fn tallied(&self) -> &[PartCounts] {
        self.tasks.paging.space.mem.tally.as_ref().map_or(&[], |tally| tally.counts())
    }

    /// Where among the ranges a page lies.
    pub fn tallied_in(&self, page: PageIdx) -> Option<usize> {
        self.tasks.paging.space.mem.tally.as_ref()?.find(page.0)
    }

    /// Frames in use, in pages (a memcg's unused charge included).
    pub const fn charged(&self) -> u32 {
        self.tasks.paging.space.mem.budget.charged
    }

    /// The budget in pages.
    pub const fn budget(&self) -> u32 {
        self.tasks.paging.space.mem.budget.budget
    }

    /// Slots that are free on all open devices.
    pub const fn swap_free(&self) -> u32 {
        self.tasks.paging.space.slots.free()
    }

    /// Slots in use on a device; `None` if it is gone.
    pub fn device_used(&self, device: crate::types::DeviceId) -> Option<u32> {
        self.tasks.paging.space.slots.device(device).map(|d| d.used)
    }

    /// True if all of these slots are backed and neither a page nor a child names one: they may be given back.
    pub fn are_slots_unused(&self, device: crate::types::DeviceId, slot: crate::types::SlotIdx, len: u32) -> bool {
        self.tasks.paging.space.slots.are_unused(device, slot, len)
    }

    /// The device that is being swapped off.
    pub fn swapoff(&self) -> Option<crate::types::DeviceId> {
        self.tasks.swapoff_device()
    }

    /// True if the device takes no new slots, or is gone.
    pub fn is_device_closed(&self, device: crate::types::DeviceId) -> bool {
        self.tasks.paging.space.slots.device(device).is_none_or(|device| device.closed)
    }

    /// How often one of the coldest pages that stay in memory is used while one page comes in, in parts of
    /// [`crate::types::USE_RATE`]; 0: not known.
    pub const fn kept_worth(&self) -> u64 {
        self.tasks.paging.reclaim.kept_worth()
    }

    /// True if a page owns the slot or somebody outside holds it: what it holds may be read. What is kept of other slots beside
    /// the device can go.
    pub fn is_slot_used(&self, device: crate::types::DeviceId, slot: crate::types::SlotIdx) -> bool {
        let slots = &self.tasks.paging.space.slots;
        slots.pool_slot(device, slot).is_some_and(|slot| slots.is_used(slot))
    }

    /// True if somebody outside holds the slot: its content must stay.
    pub fn is_slot_pinned(&self, device: crate::types::DeviceId, slot: crate::types::SlotIdx) -> bool {
        let slots = &self.tasks.paging.space.slots;
        slots.pool_slot(device, slot).is_some_and(|slot| slots.is_pinned(slot))
    }

    /// Pages of each list: inactive anon, active anon, inactive file, active file, unevictable.
    pub const fn list_sizes(&self) -> [u32; 5] {
        let mem = &self.tasks.paging.space.mem;
        let s = mem.list_sizes();
        [s[0], s[1], s[2], s[3], mem.unevictable_len()]
    }

    /// True if no effect is in flight and nothing is left to do; while held, also that every resident page is mapped.
    pub fn is_settled(&self) -> bool {
        let space = &self.tasks.paging.space;
        let counts = space.mem.counts();
        let is_mapped = !space.mem.is_held || counts.cached == 0;
        counts.flights == 0 && space.io.live() == 0 && !self.tasks.has_work() && is_mapped
    }

    /// The lists, head first, as text: for tests and reports.
    pub fn dump(&self) -> String {
        use core::fmt::Write as _;
        let mut text = String::new();
        for (list, name) in [
            "inactive_anon",
            "active_anon",
            "inactive_file",
            "active_file",
            "unevictable",
            "discarded",
            "probation_watched",
            "kept_watched",
        ]
        .iter()
        .enumerate()
        {
            let mem = &self.tasks.paging.space.mem;
            if mem.list_len(list) == 0 && list > 0 {
                continue;
            }
            let pages: Vec<String> = mem.list(list).map(|p| alloc::format!("{p}")).collect();
            write!(text, "{name}: {}", pages.join(" ")).expect("a string grows");
            text.push('\n');
        }
        text
    }

    /// Gather the statistics that decisions see, before their time: somebody reads memory.stat.
    pub fn gather_stats(&mut self) {
        self.tasks.paging.reclaim.gather_stats(&self.tasks.paging.space.mem);
    }
}
