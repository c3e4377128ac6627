//! Changes of the world: regions, devices, the budget, advice. State changes at once, over the whole range; what needs effects
//! is left to the tasks as long work (I1).

use crate::config::LiveSetting;
use crate::event::{Advice, Event, FILE_DEVICE_FIRST, FileSpec};
use crate::memory::Memory;
use crate::memory::page::PageState;
use crate::policy::Core;
use crate::readahead::file::FileRa;
use crate::readahead::regions::{File, Regions};
use crate::swap::Space;
use crate::tasks::{Hint, Tasks};
use crate::types::{DeviceId, PageRange, RegionId, SlotIdx};
use crate::vmstat::Counter;

impl Core {
    pub(crate) fn on_control(&mut self, event: &Event) {
        match *event {
            Event::RegionAdded { region, range } => self.region_added(region, range),
            Event::FileAdded { region, range, device, spec } => self.file_added(region, range, device, spec),
            Event::RegionResized { region, range } => self.region_resized(region, range),
            Event::RegionSplit { region, at, upper } => {
                self.late_unless(|core| core.regions().split(region, at.0, upper));
            }
            Event::RegionRemoved { region } => self.region_removed(region),
            Event::Adopted { range } => self.adopted(range),
            Event::Inherited { range, device, slot } => self.inherited(range, device, slot),
            Event::Discarded { range } => self.discarded(range),
            Event::Referenced { range } => self.referenced(range),
            Event::Advice { range, advice } => self.advice(range, advice),
            Event::BudgetChanged { pages } => self.budget_changed(pages),
            Event::DeviceAdded { device, spec } => {
                self.late_unless(|core| core.space().slots.add_device(device, spec));
                self.swap_grew();
            }
            Event::DeviceGrown { device, slots } => {
                self.space().slots.grow(device, slots);
                self.swap_grew();
            }
            Event::SlotsBacked { device, slot, len, is_backed } => {
                self.space().slots.set_backed(device, slot, len, is_backed);
                if is_backed {
                    self.swap_grew();
                }
            }
            Event::Swapoff { device } => self.tasks.swapoff(device),
            Event::SwapoffStopped { device } => self.late_unless(|core| core.tasks.stop_swapoff(device)),
            Event::KnobSet { setting } => self.late_unless(|core| core.knob_set(setting)),
            Event::Hold { on } => {
                self.mem().is_held = on;
                self.tasks.work.hold_changed();
                if !on {
                    let pages = self.mem().budget.budget;
                    self.budget_changed(pages);
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

    fn mem(&mut self) -> &mut Memory {
        &mut self.tasks.paging.space.mem
    }

    fn space(&mut self) -> &mut Space {
        &mut self.tasks.paging.space
    }

    fn regions(&mut self) -> &mut Regions {
        &mut self.tasks.paging.readahead.regions
    }

    fn late(&mut self) {
        self.mem().count(Counter::pt_late_event, 1);
    }

    fn late_unless(&mut self, act: impl FnOnce(&mut Self) -> bool) {
        if !act(self) {
            self.late();
        }
    }

    /// The range lies in the table of pages.
    fn fits(&mut self, range: PageRange) -> bool {
        u64::from(range.first.0) + u64::from(range.len) <= u64::from(self.mem().len())
    }

    fn region_added(&mut self, region: RegionId, range: PageRange) {
        let fits = self.fits(range);
        self.late_unless(|core| fits && core.regions().add(region, range));
    }

    fn file_added(&mut self, region: RegionId, range: PageRange, device: DeviceId, spec: FileSpec) {
        let named = device.0 >= FILE_DEVICE_FIRST && self.tasks.paging.host.has_files;
        if !self.fits(range) || !named || !self.regions().add(region, range) {
            self.late();
            return;
        }
        let regions = self.regions();
        let at = regions.by_id(region).expect("added just now");
        regions.set_file(at, File { device, spec, ra: FileRa::new(), base: range.first.0 });
    }

    fn region_removed(&mut self, region: RegionId) {
        let Some(at) = self.regions().by_id(region) else {
            self.late();
            return;
        };
        let gone = self.regions().remove(at);
        self.discard_pages(gone.start, gone.end);
        for p in gone.start..gone.end {
            self.mem().forget_lock(p);
        }
    }

    fn region_resized(&mut self, region: RegionId, range: PageRange) {
        let fits = self.fits(range);
        let Some(at) = self.regions().by_id(region).filter(|_| fits) else {
            self.late();
            return;
        };
        let (start, end) = (self.regions().get(at).start, self.regions().get(at).end);
        if !self.regions().resize(at, range.first.0, range.end().0) {
            self.late();
            return;
        }
        self.discard_pages(start, range.first.0.clamp(start, end));
        self.discard_pages(range.end().0.clamp(start, end), end);
    }

    fn clip(&mut self, range: PageRange) -> (u32, u32) {
        let len = self.mem().len();
        (range.first.0.min(len), range.first.0.saturating_add(range.len).min(len))
    }

    fn adopted(&mut self, range: PageRange) {
        let (from, to) = self.clip(range);
        let paging = &mut self.tasks.paging;
        for p in from..to {
            let page = paging.space.mem.at(p);
            if page.state() != PageState::Untouched || page.in_flight() || !paging.is_managed(p) {
                continue;
            }
            paging.space.mem.budget.force_charge();
            paging.new_page(p);
            paging.space.map(p);
            paging.space.mem.mark_writable(p);
        }
        let budget = &paging.space.mem.budget;
        let is_exceeded = budget.is_exceeded();
        if budget.is_low() {
            paging.wake_kswapd();
        }
        if is_exceeded {
            self.tasks.work.want_shrink(true);
        }
    }

    fn inherited(&mut self, range: PageRange, device: DeviceId, slot: SlotIdx) {
        let (from, to) = self.clip(range);
        for p in from..to {
            let place = SlotIdx(slot.0 + (p - range.first.0));
            let space = self.space();
            let page = space.mem.at(p);
            let (Some(pool), PageState::Untouched) = (space.slots.pool_slot(device, place), page.state()) else {
                self.late();
                continue;
            };
            if !page.in_flight() && space.slots.adopt_slot(pool, p) {
                space.give_slot(p, pool);
            } else {
                self.late();
            }
        }
    }

    fn discarded(&mut self, range: PageRange) {
        let (from, to) = self.clip(range);
        self.discard_pages(from, to);
    }

    /// The contents of the pages are gone.
    fn discard_pages(&mut self, from: u32, to: u32) {
        let space = self.space();
        for p in from..to {
            if !space.mem.at(p).is_blank_but_locked() {
                discard(space, p);
            }
        }
    }

    fn referenced(&mut self, range: PageRange) {
        let (from, to) = self.clip(range);
        for p in from..to {
            self.mem().mark_seen(p);
        }
    }

    fn advice(&mut self, range: PageRange, advice: Advice) {
        let (from, to) = self.clip(range);
        match advice {
            Advice::Normal | Advice::Sequential | Advice::Random => {
                let regions = self.regions();
                for at in 0..regions.len() {
                    let region = regions.get_mut(at);
                    if region.start < to && region.end > from {
                        region.ra.advice = advice;
                    }
                }
            }
            Advice::WillNeed => self.tasks.work.push_hint(Hint::WillNeed, from, to),
            Advice::PageOut => self.tasks.work.push_hint(Hint::PageOut, from, to),
            Advice::Cold => {
                for p in from..to {
                    self.tasks.make_cold(p);
                }
            }
            Advice::Lock => {
                for p in from..to {
                    self.mem().lock(p);
                }
            }
            Advice::Unlock => {
                for p in from..to {
                    let rescued = self.mem().unlock(p);
                    self.mem().count(Counter::unevictable_pgs_rescued, u32::from(rescued));
                }
            }
        }
    }

    fn budget_changed(&mut self, pages: u32) {
        let Tasks { paging, work, .. } = &mut self.tasks;
        let budget = &mut paging.space.mem.budget;
        budget.set(&paging.cfg, pages);
        budget.freed();
        if budget.is_exceeded() {
            work.want_shrink(true);
        }
    }

    fn knob_set(&mut self, setting: LiveSetting) -> bool {
        let Tasks { paging, files, .. } = &mut self.tasks;
        let configs = [&mut paging.cfg, &mut paging.reclaim.cfg, &mut paging.readahead.cfg, &mut files.cfg];
        if !configs.into_iter().all(|config| config.set_live(setting)) {
            return false;
        }
        let pages = paging.space.mem.budget.budget;
        self.budget_changed(pages);
        true
    }

    /// What could not be reclaimed for want of slots may go now.
    fn swap_grew(&mut self) {
        let Tasks { paging, work, .. } = &mut self.tasks;
        paging.space.mem.budget.freed();
        paging.reclaim.progress();
        work.want_shrink(paging.space.mem.budget.is_exceeded());
    }

    fn slots_pinned(&mut self, device: DeviceId, slot: SlotIdx, len: u32, pin: bool) {
        let slots = &mut self.space().slots;
        for s in slot.0..slot.0.saturating_add(len) {
            let Some(pool) = slots.pool_slot(device, SlotIdx(s)) else {
                break;
            };
            slots.pin(pool, pin);
        }
    }
}

fn discard(space: &mut Space, p: u32) {
    let page = space.mem.at(p);
    if page.in_flight() {
        space.mem.discard_in_flight(p);
        return;
    }
    match page.state() {
        // The frame was in the program's page table and went with it.
        PageState::Mapped => space.forget(p),
        PageState::Cached => {
            if !page.is_discarded() {
                space.mem.queue_discard(p);
            }
        }
        PageState::Swapped | PageState::Poisoned | PageState::Untouched => space.forget_swapped(p),
    }
}
