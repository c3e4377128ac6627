//! Swapoff: bring every page of a device in, then forget the device.
//!
//! The device is closed first; then all pages in address order whose slot lies on it are read (with readahead, as a fault
//! would), and their slots freed. Pages that have a frame already only give up their slot. How pages found in the swap cache
//! are treated is a switch (see [`crate::config::SwapoffMode`]): it decides what the readahead statistics learn.

use crate::config::SwapoffMode;
use crate::effect::Effects;
use crate::memory::page::{DIRTY, FRAME, Flight, MAPPED, PageState, READAHEAD};
use crate::policy::Core;
use crate::readahead::Window;
use crate::tasks::job::STEP_ROOM;
use crate::types::DeviceId;
use crate::vmstat::Counter;

/// Pages looked at in one event.
const LOOKS_MAX: u32 = 1 << 14;

#[derive(Clone, Debug)]
pub(crate) struct Swapoff {
    device: DeviceId,
    region: usize,
    page: u32,
    window: Option<Window>,
    /// The page that the readahead code was asked for last (modes without lookup).
    asked: Option<u32>,
    /// The page to be finished when its read ends.
    waits: bool,
}

impl Swapoff {
    pub(crate) const fn is_runnable(&self) -> bool {
        !self.waits
    }

    pub(crate) const fn wake(&mut self) {
        self.waits = false;
    }
}

impl Core {
    pub(crate) fn swapoff(&mut self, device: DeviceId) {
        if self.swap.device(device).is_none() || self.control.swapoff.is_some() {
            self.count(Counter::pt_late_event, 1);
            return;
        }
        self.swap.close(device);
        self.control.swapoff = Some(Swapoff { device, region: 0, page: 0, window: None, asked: None, waits: false });
    }

    /// An effect has ended: swapoff may go on.
    pub(crate) fn run_swapoff(&mut self, out: &mut Effects) {
        let Some(mut off) = self.control.swapoff.take() else {
            return;
        };
        off.wake();
        let mut looks = 0;
        loop {
            if out.room() < STEP_ROOM || looks >= LOOKS_MAX || self.control.hold {
                break;
            }
            looks += 1;
            if let Some(window) = &mut off.window {
                if !self.swapoff_window(window, out) {
                    off.waits = true;
                    break;
                }
                off.window = None;
            }
            if off.region >= self.regions.len() {
                if !self.swapoff_end(&mut off) {
                    break;
                }
                return;
            }
            let (start, end) = (self.regions.get(off.region).start, self.regions.get(off.region).end);
            off.page = off.page.max(start);
            if off.page >= end {
                off.region += 1;
                off.page = 0;
                continue;
            }
            if !self.swapoff_page(&mut off, out) {
                break;
            }
        }
        self.control.swapoff = Some(off);
    }

    /// One page. False: it has to wait for an effect in flight.
    fn swapoff_page(&mut self, off: &mut Swapoff, out: &mut Effects) -> bool {
        let p = off.page;
        let on_device = self.pages.slot(p).is_some_and(|slot| self.swap.locate(slot).0 == off.device);
        if !on_device || self.pages.is(p, crate::memory::page::POISON) {
            off.page += 1;
            return true;
        }
        if self.pages.in_flight(p) {
            if self.cfg.swapoff == SwapoffMode::NoLookup
                && self.pages.flight(p) == Flight::Reading
                && off.asked != Some(p)
            {
                // Asked for while its read is under way: the next read begins before this one is waited for.
                let mut window = self.readahead_window(p);
                off.asked = Some(p);
                window.without_target(p);
                off.window = Some(window);
                return true;
            }
            off.waits = true;
            return false;
        }
        let cached = self.pages.word(p) & (FRAME | MAPPED) == FRAME;
        if self.cfg.swapoff == SwapoffMode::NoLookup
            && self.pages.state(p) != PageState::Mapped
            && !self.pages.is(p, DIRTY)
        {
            // The readahead code is asked for every page, cached or not, but only once.
            if self.pages.state(p) == PageState::Swapped {
                off.window = Some(self.readahead_window(p));
                off.asked = Some(p);
                return true;
            }
            if off.asked != Some(p) {
                let mut window = self.readahead_window(p);
                off.asked = Some(p);
                window.without_target(p);
                off.window = Some(window);
                return true;
            }
        } else if self.pages.state(p) == PageState::Swapped {
            off.window = Some(self.readahead_window(p));
            return true;
        } else if cached && self.cfg.swapoff == SwapoffMode::LookupStats {
            self.swap_cache_hit(p, out);
        }
        self.drop_slot(p);
        self.pages.set(p, DIRTY);
        self.pages.clear(p, READAHEAD);
        self.count(Counter::pt_swapoff_in, 1);
        off.page += 1;
        true
    }

    /// Read the window. False: no memory now.
    fn swapoff_window(&mut self, window: &mut Window, out: &mut Effects) -> bool {
        let target = window.target();
        while out.room() >= 2 {
            // The charge first: a page taken from the window has to be read.
            if self.io.is_full() || !self.charge_for_swapoff() {
                return false;
            }
            let Some(p) = self.window_next(window) else {
                self.uncharge_unused();
                return true;
            };
            self.read_page(p, p == target, out);
        }
        false
    }

    fn charge_for_swapoff(&mut self) -> bool {
        if self.try_charge() {
            return true;
        }
        self.control.want_room();
        false
    }

    /// No frame can be had: the device stays on.
    pub(crate) fn swapoff_failed(&mut self) {
        if let Some(off) = self.control.swapoff.take() {
            self.swap.reopen(off.device);
        }
    }

    /// The end of the walk: if slots are still in use (pages came out late, or are held), go round again.
    fn swapoff_end(&mut self, off: &mut Swapoff) -> bool {
        let used = self.swap.device(off.device).map_or(0, |device| device.used);
        if used == 0 {
            self.swap.remove_device(off.device);
            return true;
        }
        *off = Swapoff { device: off.device, region: 0, page: 0, window: None, asked: None, waits: true };
        false
    }
}
