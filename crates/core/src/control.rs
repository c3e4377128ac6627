//! Changes of the world: regions, devices, the budget, advice, and the long work that some of them bring.
//!
//! State changes at once, over the whole range; what needs effects (dropping frames, mapping everything back while held)
//! goes on at the deadline as far as there is room (I1).

use crate::effect::{Effect, Effects, Source};
use crate::event::{Advice, Event};
use crate::memory::lru::{DI, Lru, UN};
use crate::memory::page::{
    ACTIVE, BUSY, DISCARD, FRAME, Flight, MAPPED, NIL, POISON, PageState, READAHEAD, SHADOW, UNEVICTABLE, YOUNG,
};
use crate::policy::Core;
use crate::readahead::Window;
use crate::swapoff::Swapoff;
use crate::tasks::job::{Job, JobKind, STEP_ROOM};
use crate::types::{Access, DeviceId, Nanos, PageIdx, PageRange, RegionId, SlotIdx, TaskId};
use crate::vmstat::Counter;

/// How long a page that could not be moved is left alone.
const RESCUE_AFTER_NS: u64 = 20_000_000;
/// Hints at work at the same time; more are dropped, they are only hints.
const HINTS_MAX: usize = 16;
/// Pages of long work looked at in one event.
const LOOKS_MAX: u32 = 4096;

#[derive(Clone, Copy, Debug)]
enum Hint {
    WillNeed,
    PageOut,
}

/// Long work of the control events.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) hold: bool,
    /// Where the search for resident, unmapped pages goes on: region, page.
    hold_cursor: (usize, u32),
    hints: [(Hint, PageRange); HINTS_MAX],
    hints_len: usize,
    pub(crate) rescue_at: Option<Nanos>,
    pub(crate) swapoff: Option<Swapoff>,
    shrink: bool,
    /// Swapoff needs a frame: not asked for, to be asked for, being made.
    room: Room,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Enough,
    Wanted,
    Making,
}

impl Control {
    pub(crate) const fn new() -> Self {
        Self {
            hold: false,
            hold_cursor: (0, 0),
            hints: [(Hint::WillNeed, PageRange::new(PageIdx(0), 0)); HINTS_MAX],
            hints_len: 0,
            rescue_at: None,
            swapoff: None,
            shrink: false,
            room: Room::Enough,
        }
    }

    pub(crate) fn want_room(&mut self) {
        if self.room == Room::Enough {
            self.room = Room::Wanted;
        }
    }

    pub(crate) fn room_made(&mut self) {
        self.room = Room::Enough;
        if let Some(off) = &mut self.swapoff {
            off.wake();
        }
    }

    pub(crate) fn schedule_rescue(&mut self, now: Nanos) {
        if self.rescue_at.is_none() {
            self.rescue_at = Some(now + RESCUE_AFTER_NS);
        }
    }

    pub(crate) fn has_work(&self, cached: u32) -> bool {
        self.shrink
            || self.room == Room::Wanted
            || (self.hold && cached > 0 && !self.hold_waits())
            || self.hints_len > 0
            || self.swapoff.as_ref().is_some_and(Swapoff::is_runnable)
    }

    /// A whole search has found nothing that could be mapped now.
    const fn hold_waits(&self) -> bool {
        self.hold_cursor.0 == usize::MAX
    }

    /// Something changed: search again.
    pub(crate) const fn hold_again(&mut self) {
        if self.hold_cursor.0 == usize::MAX {
            self.hold_cursor = (0, 0);
        }
    }
}

impl Core {
    pub(crate) fn on_control(&mut self, event: Event) {
        match event {
            Event::RegionAdded { region, range } => self.region_added(region, range),
            Event::FileAdded { region, range, device, spec } => self.file_added(region, range, device, spec),
            Event::RegionResized { region, range } => self.region_resized(region, range),
            Event::RegionSplit { region, at, upper } => {
                self.late_unless(|core| core.regions.split(region, at.0, upper))
            }
            Event::RegionRemoved { region } => self.region_removed(region),
            Event::Adopted { range } => self.adopted(range),
            Event::Inherited { range, device, slot } => self.inherited(range, device, slot),
            Event::Discarded { range } => self.discarded(range),
            Event::Referenced { range } => self.referenced(range),
            Event::Advice { range, advice } => self.advice(range, advice),
            Event::BudgetChanged { pages } => self.budget_changed(pages),
            Event::DeviceAdded { device, spec } => {
                self.late_unless(|core| core.swap.add_device(device, spec));
                self.swap_grew();
            }
            Event::DeviceGrown { device, slots } => {
                self.swap.grow(device, slots);
                self.swap_grew();
            }
            Event::Swapoff { device } => self.swapoff(device),
            Event::Hold { on } => {
                self.control.hold = on;
                self.control.hold_cursor = (0, 0);
                if !on {
                    self.budget_changed(self.mem.budget);
                }
            }
            Event::SlotsPinned { device, slot, len, pin } => self.slots_pinned(device, slot, len, pin),
            Event::FileRead { .. } | Event::FileWrite { .. } => {}
            Event::Fault { .. }
            | Event::Mapped { .. }
            | Event::Unmapped { .. }
            | Event::IoDone { .. }
            | Event::Writeback
            | Event::Timeout => {}
        }
    }

    fn late_unless(&mut self, act: impl FnOnce(&mut Self) -> bool) {
        if !act(self) {
            self.count(Counter::pt_late_event, 1);
        }
    }

    fn region_added(&mut self, region: RegionId, range: PageRange) {
        let fits = u64::from(range.first.0) + u64::from(range.len) <= u64::from(self.pages.len());
        self.late_unless(|core| fits && core.regions.add(region, range));
    }

    fn region_removed(&mut self, region: RegionId) {
        let Some(at) = self.regions.by_id(region) else {
            self.count(Counter::pt_late_event, 1);
            return;
        };
        let gone = self.regions.remove(at);
        self.discard_pages(gone.start, gone.end);
        for p in gone.start..gone.end {
            self.pages.clear(p, UNEVICTABLE);
        }
    }

    fn region_resized(&mut self, region: RegionId, range: PageRange) {
        let fits = u64::from(range.first.0) + u64::from(range.len) <= u64::from(self.pages.len());
        let Some(at) = self.regions.by_id(region).filter(|_| fits) else {
            self.count(Counter::pt_late_event, 1);
            return;
        };
        let (start, end) = (self.regions.get(at).start, self.regions.get(at).end);
        if !self.regions.resize(at, range.first.0, range.end().0) {
            self.count(Counter::pt_late_event, 1);
            return;
        }
        self.discard_pages(start, range.first.0.clamp(start, end));
        self.discard_pages(range.end().0.clamp(start, end), end);
    }

    fn clip(&self, range: PageRange) -> (u32, u32) {
        let len = self.pages.len();
        (range.first.0.min(len), range.first.0.saturating_add(range.len).min(len))
    }

    fn adopted(&mut self, range: PageRange) {
        let (from, to) = self.clip(range);
        for p in from..to {
            if self.pages.state(p) != PageState::Untouched || self.pages.in_flight(p) || self.regions.find(p).is_none()
            {
                continue;
            }
            self.mem.charged += 1;
            self.new_page(p);
            self.set_mapped(p);
            self.pages.set(p, crate::memory::page::WRITABLE);
        }
        if self.mem.free() <= self.mem.low {
            self.wake_kswapd();
        }
        if self.mem.charged > self.mem.budget {
            self.control.shrink = true;
        }
    }

    fn inherited(&mut self, range: PageRange, device: DeviceId, slot: SlotIdx) {
        let (from, to) = self.clip(range);
        for p in from..to {
            let place = SlotIdx(slot.0 + (p - range.first.0));
            let (Some(pool), PageState::Untouched) = (self.swap.pool_slot(device, place), self.pages.state(p)) else {
                self.count(Counter::pt_late_event, 1);
                continue;
            };
            if !self.pages.in_flight(p) && self.swap.adopt_slot(pool, p) {
                self.give_slot(p, pool);
            } else {
                self.count(Counter::pt_late_event, 1);
            }
        }
    }

    fn discarded(&mut self, range: PageRange) {
        let (from, to) = self.clip(range);
        self.discard_pages(from, to);
    }

    /// The contents of the pages are gone.
    fn discard_pages(&mut self, from: u32, to: u32) {
        for p in from..to {
            if self.pages.word(p) & !UNEVICTABLE != 0 {
                self.discard(p);
            }
        }
    }

    fn discard(&mut self, p: u32) {
        if self.pages.in_flight(p) {
            self.pages.set(p, DISCARD);
            return;
        }
        match self.pages.state(p) {
            // The frame was in the program's page table and went with it.
            PageState::Mapped => self.forget(p),
            PageState::Cached => {
                if !self.pages.is(p, DISCARD) {
                    self.queue_discard(p);
                }
            }
            PageState::Swapped | PageState::Poisoned | PageState::Untouched => {
                self.drop_slot(p);
                self.pages.clear(p, SHADOW | POISON);
                self.pages.reset(p);
            }
        }
    }

    fn queue_discard(&mut self, p: u32) {
        self.lru.remove(&mut self.pages, p);
        self.pages.set(p, DISCARD);
        self.lru.push_tail(&mut self.pages, DI, p);
    }

    /// The flight of a discarded page has ended.
    pub(crate) fn discard_when_room(&mut self, p: u32, out: &mut Effects) {
        if out.room() > 1 {
            self.finish_discard(p, out);
        } else {
            self.queue_discard(p);
        }
    }

    /// Drop the frame of a discarded page.
    pub(crate) fn finish_discard(&mut self, p: u32, out: &mut Effects) {
        debug_assert!(!self.pages.is(p, MAPPED), "a mapped page goes with the program's page table entry");
        self.forget(p);
        self.emit(Effect::Drop { range: PageRange::one(PageIdx(p)) }, out);
    }

    pub(crate) fn drain_discards(&mut self, out: &mut Effects) {
        while out.room() > 1 && self.lru.tail(DI) != NIL {
            let p = self.lru.tail(DI);
            self.finish_discard(p, out);
        }
    }

    fn referenced(&mut self, range: PageRange) {
        let (from, to) = self.clip(range);
        for p in from..to {
            if self.pages.is(p, MAPPED) {
                self.pages.set(p, YOUNG);
            }
        }
    }

    fn advice(&mut self, range: PageRange, advice: Advice) {
        let (from, to) = self.clip(range);
        match advice {
            Advice::Normal | Advice::Sequential | Advice::Random => {
                for at in 0..self.regions.len() {
                    let region = self.regions.get_mut(at);
                    if region.start < to && region.end > from {
                        region.ra.advice = advice;
                    }
                }
            }
            Advice::WillNeed => self.push_hint(Hint::WillNeed, from, to),
            Advice::PageOut => self.push_hint(Hint::PageOut, from, to),
            Advice::Cold => {
                for p in from..to {
                    self.make_cold(p);
                }
            }
            Advice::Lock => {
                for p in from..to {
                    self.pages.set(p, UNEVICTABLE);
                }
            }
            Advice::Unlock => {
                for p in from..to {
                    if self.pages.take(p, UNEVICTABLE)
                        && self.pages.is(p, crate::memory::page::LRU)
                        && self.pages.list(p) == UN
                    {
                        self.lru.putback(&mut self.pages, p);
                        self.count(Counter::unevictable_pgs_rescued, 1);
                    }
                }
            }
        }
    }

    fn make_cold(&mut self, p: u32) {
        let word = self.pages.word(p);
        if word & FRAME == 0 || word & (UNEVICTABLE | BUSY | DISCARD) != 0 || self.pages.in_flight(p) {
            return;
        }
        if word & ACTIVE != 0 {
            self.count(Counter::pgdeactivate, 1);
        }
        self.lru.remove(&mut self.pages, p);
        self.pages.clear(p, ACTIVE | YOUNG | crate::memory::page::REFERENCED);
        let list = Lru::list_of(&self.pages, p);
        self.lru.push_tail(&mut self.pages, list, p);
    }

    fn push_hint(&mut self, hint: Hint, from: u32, to: u32) {
        if from < to && self.control.hints_len < HINTS_MAX {
            self.control.hints[self.control.hints_len] = (hint, PageRange::new(PageIdx(from), to - from));
            self.control.hints_len += 1;
        }
    }

    fn budget_changed(&mut self, pages: u32) {
        let cfg = self.cfg.clone();
        self.mem.set(&cfg, pages);
        self.jobs.memory_freed();
        if self.mem.charged > self.mem.budget {
            self.control.shrink = true;
        }
    }

    /// What could not be reclaimed for want of slots may go now.
    fn swap_grew(&mut self) {
        self.jobs.memory_freed();
        self.kswapd.progress();
        self.control.shrink = self.mem.charged > self.mem.budget;
    }

    fn slots_pinned(&mut self, device: DeviceId, slot: SlotIdx, len: u32, pin: bool) {
        for s in slot.0..slot.0.saturating_add(len) {
            let Some(pool) = self.swap.pool_slot(device, SlotIdx(s)) else {
                break;
            };
            self.swap.pin(pool, pin);
        }
    }

    /// Go on with the long work.
    pub(crate) fn run_control(&mut self, out: &mut Effects) {
        if core::mem::take(&mut self.control.shrink) && !self.control.hold {
            let job = Job::new(JobKind::Shrink, 0, Access::Read, TaskId(0), Window::one(0));
            if self.jobs.is_full() || out.room() < STEP_ROOM {
                self.control.shrink = true;
            } else {
                self.start_job(job, out);
            }
        }
        if self.control.room == Room::Wanted && !self.jobs.is_full() && out.room() >= STEP_ROOM {
            self.control.room = Room::Making;
            self.start_job(Job::new(JobKind::Room, 0, Access::Read, TaskId(0), Window::one(0)), out);
        }
        if self.control.hold {
            self.map_everything(out);
        }
        self.rescue();
        self.run_hints(out);
        self.run_swapoff(out);
        self.run_flusher(out);
    }

    /// Hold: map the pages that have a frame but are not mapped.
    fn map_everything(&mut self, out: &mut Effects) {
        self.control.hold_again();
        let (mut at, mut p) = self.control.hold_cursor;
        let mut looks = 0;
        while self.cached > 0 && out.room() >= STEP_ROOM && looks < LOOKS_MAX {
            if at >= self.regions.len() {
                self.control.hold_cursor = (usize::MAX, 0);
                return;
            }
            let (start, end) = (self.regions.get(at).start, self.regions.get(at).end);
            p = p.max(start);
            while p < end && looks < LOOKS_MAX && out.room() >= STEP_ROOM {
                self.map_ahead(p, Access::Read, out);
                p += 1;
                looks += 1;
            }
            if p >= end {
                at += 1;
                p = 0;
            }
        }
        self.control.hold_cursor = (at, p);
    }

    /// Map a cached page that nobody asked for. Its slot is kept.
    pub(crate) fn map_ahead(&mut self, p: u32, access: Access, out: &mut Effects) {
        let word = self.pages.word(p);
        if word & (FRAME | MAPPED | DISCARD) != FRAME || self.pages.in_flight(p) {
            return;
        }
        self.emit(Effect::Map { range: PageRange::one(PageIdx(p)), source: Source::Frame, access }, out);
        if self.host.answers_moves {
            self.begin_flight(p, Flight::Mapping);
            self.note_map_access(p, access);
        } else {
            self.set_mapped(p);
        }
        self.count(Counter::pt_map_ahead, 1);
    }

    /// Pages that could not be moved some time ago may be looked at again.
    fn rescue(&mut self) {
        if self.control.rescue_at.is_none_or(|at| at > self.now) {
            return;
        }
        self.control.rescue_at = None;
        self.jobs.memory_freed();
        let mut p = self.lru.tail(UN);
        let mut looks = 0;
        while p != NIL && looks < LOOKS_MAX {
            let prev = self.pages.prev(p);
            if self.pages.take(p, BUSY) && !self.pages.is(p, UNEVICTABLE) {
                self.lru.putback(&mut self.pages, p);
            }
            p = prev;
            looks += 1;
        }
        if p != NIL {
            self.control.schedule_rescue(self.now);
        }
    }

    fn run_hints(&mut self, out: &mut Effects) {
        let mut looks = 0;
        while self.control.hints_len > 0 && out.room() >= STEP_ROOM && looks < LOOKS_MAX {
            let (hint, range) = self.control.hints[0];
            let p = range.first.0;
            looks += 1;
            match hint {
                Hint::WillNeed => self.will_need(p, out),
                Hint::PageOut => self.page_out_hint(p, out),
            }
            if range.len > 1 {
                self.control.hints[0].1 = PageRange::new(PageIdx(p + 1), range.len - 1);
            } else {
                self.control.hints.copy_within(1.., 0);
                self.control.hints_len -= 1;
            }
        }
    }

    fn will_need(&mut self, p: u32, out: &mut Effects) {
        let there = self.pages.state(p) == PageState::Swapped;
        if !there || self.regions.find(p).is_none() || self.io.is_full() {
            return;
        }
        if self.mem.free() > self.mem.low && self.try_charge() {
            self.read_page(p, false, out);
            self.pages.set(p, READAHEAD);
        }
    }

    fn page_out_hint(&mut self, p: u32, out: &mut Effects) {
        let word = self.pages.word(p);
        if word & FRAME == 0
            || word & (UNEVICTABLE | BUSY | DISCARD) != 0
            || self.pages.in_flight(p)
            || self.control.hold
        {
            return;
        }
        self.make_cold(p);
        if word & crate::memory::page::FILE != 0 {
            // Reclaim takes it from the tail.
            return;
        }
        if self.host.answers_moves && word & MAPPED != 0 {
            self.start_unmap(p, true, out);
        } else {
            self.pageout(p, out);
        }
    }
}
