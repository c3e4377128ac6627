//! Swapoff: bring every page of a device in, then forget the device.
//!
//! The device is closed first; then all pages in address order whose slot lies on it are read (with readahead, as a fault
//! would), and their slots freed. Pages that have a frame already only give up their slot. How pages found in the swap cache
//! are treated is a switch (see [`crate::config::SwapoffMode`]): it decides what the readahead statistics learn.
//!
//! A host may let it look ahead (`swapoff_ahead`): then pages are looked up, counted and read while the reads of those before are
//! still under way, so that the device always has something to do; what is learnt is the same. Faults of the program have
//! precedence. While much is out still, the program misses again soon whatever is done for one fault, and to bring pages in is what
//! helps it: two large windows are read at a time. When little is out, it is the wait at each fault that keeps it from its work: windows
//! are small, one is read at a time, the device is idle between them, and none begins while a fault waits. (Accesses a second are
//! 1 / (m L + h) where a share m of the memory is out, a fault takes L and an access to what is here h; of a given time for the whole
//! the least is lost if as much of it as can be is spent where m L is small, so as fast as the device can until there, then slowly.)
//! What was brought in is mapped while memory is plentiful, as the program would have to fault on it otherwise.

use core::ops::Range;

use super::Tasks;
use crate::config::SwapoffMode;
use crate::effect::Effects;
use crate::memory::page::{Flight, PageState};
use crate::paging::STEP_ROOM;
use crate::readahead::Window;
use crate::types::{Access, DeviceId, Nanos};
use crate::vmstat::Counter;

/// Pages of a window of swapoff where it has windows of its own: 256 KiB, as a read of a disk may be long.
const SWAPOFF_WINDOW: u32 = 64;
/// Pages read at a time beside a program that faults: while one window is mapped the device has another.
const BESIDE_MOST: u32 = 2 * SWAPOFF_WINDOW;
/// Pages of a window, and read at a time, where little is out.
const LITTLE_WINDOW: u32 = 16;
/// Pages read at a time beside a program that faults where the windows are those that a kernel's readahead makes.
const KERNEL_MOST: u32 = 32;
/// Little is out: less than one page in so many of those that are here or on the device.
const LITTLE_OUT: u32 = 16;
/// Beside a program at work a window of the last ones begins after the device was left to it for so many times as long as the one before
/// took, or for [`BESIDE_NS`].
const PAUSES: Nanos = 3;
/// Where faults wait at all times, a window begins nevertheless after so long.
const YIELD_NS: Nanos = 1_000_000;
/// Pages looked at in one event.
const LOOKS_MAX: u32 = 1 << 14;
/// The program is at work while it waits for a page, and for so long after a fault.
const BESIDE_NS: Nanos = 5_000_000;
/// Windows that were read, one after the other, after which no page could do without its slot: what they brought lost its frames
/// again, as nothing else could make room, and nothing will.
const VAIN_MAX: u32 = 64;
/// Time between two walks that find nothing.
const HELD_LOOK_NS: Nanos = 1_000_000_000;

#[derive(Clone, Debug)]
pub(super) struct Swapoff {
    device: DeviceId,
    region: usize,
    page: u32,
    /// Where it looks ahead: the first page that was not looked up yet.
    looked: u32,
    window: Option<Window>,
    /// The page that the readahead code was asked for last (modes without lookup).
    asked: Option<u32>,
    /// The page to be finished when its read ends.
    waits: bool,
    /// Slots that were in use at the end of a walk that found no page to bring in: they are held outside. It goes on when there
    /// are not as many, or with the first event after this time.
    held: Option<(u32, Nanos)>,
    /// This walk has found something.
    found: bool,
    /// When the program faulted last.
    faulted: Option<Nanos>,
    /// When a window was begun last.
    begun: Nanos,
    /// When its reads were seen to have ended.
    ended: Option<Nanos>,
    /// It goes on at this moment though nothing ends.
    pauses: Option<Nanos>,
    /// The page that is read for its own sake.
    read: u32,
    /// Windows that were begun since a page was done with, or found to be lost.
    vain: u32,
}

impl Swapoff {
    /// At the start of a walk.
    const fn new(device: DeviceId) -> Self {
        Self {
            device,
            region: 0,
            page: 0,
            looked: 0,
            window: None,
            asked: None,
            waits: false,
            held: None,
            found: false,
            faulted: None,
            begun: 0,
            ended: Some(0),
            pauses: None,
            read: 0,
            vain: 0,
        }
    }

    /// This page is to be read.
    const fn note_read(&mut self, p: u32) {
        (self.read, self.vain) = (p, self.vain + 1);
    }

    pub(super) const fn is_runnable(&self) -> bool {
        !self.waits
    }

    pub(super) const fn wake(&mut self) {
        self.waits = false;
        self.pauses = None;
    }

    /// When the pause between two windows ends.
    pub(super) const fn wakes_at(&self) -> Option<Nanos> {
        self.pauses
    }

    /// The program faults.
    pub(super) const fn note_fault(&mut self, now: Nanos) {
        self.faulted = Some(now);
    }
}

impl Tasks {
    pub(crate) fn swapoff(&mut self, device: DeviceId) {
        if self.paging.space.slots.device(device).is_none() || self.work.swapoff.is_some() {
            self.count(Counter::pt_late_event, 1);
            return;
        }
        self.paging.space.slots.close(device);
        self.work.swapoff = Some(Swapoff::new(device));
    }

    /// Swapoff is given up. False: there is none of this device.
    pub(crate) fn stop_swapoff(&mut self, device: DeviceId) -> bool {
        let is_this = self.swapoff_device() == Some(device);
        if is_this {
            self.swapoff_failed();
        }
        is_this
    }

    pub(crate) fn swapoff_device(&self) -> Option<DeviceId> {
        self.work.swapoff.as_ref().map(|off| off.device)
    }

    /// An effect has ended: swapoff may go on.
    pub(super) fn run_swapoff(&mut self, out: &mut Effects) {
        let Some(mut off) = self.work.swapoff.take() else {
            return;
        };
        off.wake();
        if let Some((held, again)) = off.held {
            let used = self.paging.space.slots.device(off.device).map_or(0, |device| device.used);
            if used == held && self.now() < again {
                off.waits = true;
                self.work.swapoff = Some(off);
                return;
            }
            off.held = None;
        }
        let mut looks = 0;
        loop {
            if off.vain > VAIN_MAX {
                self.paging.space.slots.reopen(off.device);
                return;
            }
            if out.room() < STEP_ROOM || looks >= LOOKS_MAX || self.paging.space.mem.is_held {
                break;
            }
            looks += 1;
            if self.paging.host.swapoff_ahead == 0 && !self.swapoff_go_on(&mut off, out) {
                break;
            }
            if off.region >= self.paging.readahead.regions.len() {
                if !self.swapoff_end(&mut off) {
                    break;
                }
                return;
            }
            let (start, end) = (
                self.paging.readahead.regions.get(off.region).start,
                self.paging.readahead.regions.get(off.region).end,
            );
            off.page = off.page.max(start);
            if off.page >= end {
                off.region += 1;
                (off.page, off.looked) = (0, 0);
                continue;
            }
            let goes_on = if self.paging.host.swapoff_ahead > 0 {
                self.swapoff_ahead(&mut off, end, out)
            } else {
                self.swapoff_page(&mut off, out)
            };
            if !goes_on {
                break;
            }
        }
        self.work.swapoff = Some(off);
    }

    /// One page, of those that were looked up already or of those that are to be. False: it has to wait for an effect in flight.
    fn swapoff_ahead(&mut self, off: &mut Swapoff, end: u32, out: &mut Effects) -> bool {
        off.looked = off.looked.max(off.page);
        if off.page < off.looked && self.swapoff_finish(off, out) {
            return true;
        }
        if off.window.is_some() {
            return self.swapoff_go_on(off, out);
        }
        if off.looked < end.min(off.page.saturating_add(self.paging.host.swapoff_ahead)) && !self.swapoff_yields(off) {
            self.swapoff_look(off, out);
            return true;
        }
        off.waits = true;
        false
    }

    /// The program is at work.
    fn is_beside(&self, off: &Swapoff) -> bool {
        self.waiters.is_any() || off.faulted.is_some_and(|at| self.now() < at + BESIDE_NS)
    }

    /// Pages of the next window, where swapoff has windows of its own.
    fn swapoff_pages(&self, off: &Swapoff) -> u32 {
        if self.is_beside(off) && self.is_little_out(off) { LITTLE_WINDOW } else { SWAPOFF_WINDOW }
    }

    /// Pages that may be read at a time beside a program at work while much is out.
    fn swapoff_most(&self) -> u32 {
        if self.paging.readahead.knows_swapoff(&self.paging.space) { BESIDE_MOST } else { KERNEL_MOST }
    }

    fn is_little_out(&self, off: &Swapoff) -> bool {
        let space = &self.paging.space;
        let used = space.slots.device(off.device).map_or(0, |device| device.used);
        let out = used.saturating_sub(space.mem.counts().kept_slots);
        self.paging.readahead.knows_swapoff(space) && out < (space.mem.budget.charged + out) / LITTLE_OUT
    }

    /// The program is at work, and it is read for it, or enough beside it: the next end of a read lets swapoff go on.
    fn swapoff_yields(&self, off: &mut Swapoff) -> bool {
        if !self.is_beside(off) {
            return false;
        }
        if self.is_little_out(off) {
            return self.swapoff_pauses(off);
        }
        let most = self.swapoff_most() as usize;
        self.reading(off.page..off.looked).take(most).count() == most
    }

    /// One window is read, then the device is left to the program for a while.
    fn swapoff_pauses(&self, off: &mut Swapoff) -> bool {
        let window_end = off.read.saturating_add(LITTLE_WINDOW).min(self.paging.space.mem.len());
        if self.reading(off.page..off.looked.max(window_end)).next().is_some() {
            return true;
        }
        let now = self.now();
        let ended = *off.ended.get_or_insert(now);
        let again = ended + (PAUSES * (ended - off.begun)).min(BESIDE_NS);
        if now < again {
            off.pauses = Some(again);
            return true;
        }
        self.waiters.is_any() && now < off.begun + YIELD_NS
    }

    /// The pages of these that are being read.
    fn reading(&self, pages: Range<u32>) -> impl Iterator<Item = u32> {
        pages.filter(|&p| self.paging.space.mem.at(p).flight() == Flight::Reading)
    }

    /// Free the slot of a page that was looked up, if it is here by now.
    fn swapoff_finish(&mut self, off: &mut Swapoff, out: &mut Effects) -> bool {
        let p = off.page;
        let page = self.paging.space.mem.at(p);
        if self.is_on(off.device, p) {
            off.found = true;
            if page.is_poisoned() {
                off.vain = 0;
                if self.paging.host.drops_lost_slots {
                    self.paging.space.drop_slot(p);
                }
            } else if page.in_flight() {
                return false;
            } else if page.state() == PageState::Swapped {
                // It could not be read, or has gone again.
                if off.window.is_none() {
                    (off.looked, off.asked) = (p, None);
                }
                return false;
            } else {
                self.swapoff_done(off, p);
                if !self.paging.space.mem.budget.is_low() {
                    self.paging.map_ahead(p, Access::Read, out);
                }
            }
        }
        off.page += 1;
        true
    }

    /// Look the next page up: what the statistics learn of it, and the window that is to be read if it is not here.
    fn swapoff_look(&mut self, off: &mut Swapoff, out: &mut Effects) {
        let p = off.looked;
        let page = self.paging.space.mem.at(p);
        if self.is_on(off.device, p) && !page.is_poisoned() && off.asked != Some(p) {
            let is_coming = page.flight() == Flight::Reading;
            let is_cached = page.is_cached() && !page.is_dirty();
            let mode = self.paging.cfg.swapoff;
            if page.state() == PageState::Swapped && !page.in_flight() {
                off.note_read(p);
                off.window = Some(self.paging.swapoff_window(p, self.swapoff_pages(off)));
                (off.begun, off.ended) = (self.now(), None);
                off.asked = Some(p);
                return;
            }
            if mode == SwapoffMode::LookupStats && (page.is_cached() || is_coming) {
                self.paging.swap_cache_hit(p, out);
            } else if mode == SwapoffMode::NoLookup
                && (is_cached || is_coming)
                && !self.paging.readahead.knows_swapoff(&self.paging.space)
            {
                self.ask_without_target(off, p);
            }
        }
        off.looked += 1;
    }

    fn is_on(&self, device: DeviceId, p: u32) -> bool {
        let space = &self.paging.space;
        space.mem.slot(p).is_some_and(|slot| space.slots.locate(slot).0 == device)
    }

    /// A page that is here needs its slot no more.
    fn swapoff_done(&mut self, off: &mut Swapoff, p: u32) {
        off.vain = 0;
        self.paging.space.free_swap(p);
        self.paging.space.mem.take_readahead(p);
        self.count(Counter::pt_swapoff_in, 1);
    }

    /// Go on with the window that was begun. False: no memory now.
    fn swapoff_go_on(&mut self, off: &mut Swapoff, out: &mut Effects) -> bool {
        let Some(window) = &mut off.window else { return true };
        if !self.swapoff_window(window, out) {
            off.waits = true;
            return false;
        }
        off.window = None;
        true
    }

    /// One page. False: it has to wait for an effect in flight.
    fn swapoff_page(&mut self, off: &mut Swapoff, out: &mut Effects) -> bool {
        let p = off.page;
        let page = self.paging.space.mem.at(p);
        if !self.is_on(off.device, p) {
            off.page += 1;
            return true;
        }
        off.found = true;
        if page.is_poisoned() && self.paging.host.drops_lost_slots {
            // What is lost is lost: it needs no slot.
            self.paging.space.drop_slot(p);
        }
        if page.is_poisoned() {
            off.vain = 0;
            off.page += 1;
            return true;
        }
        let no_lookup = self.paging.cfg.swapoff == SwapoffMode::NoLookup;
        if page.in_flight() {
            if no_lookup && page.flight() == Flight::Reading && off.asked != Some(p) {
                // Asked for while its read is under way: the next read begins before this one is waited for.
                self.ask_without_target(off, p);
                return true;
            }
            off.waits = true;
            return false;
        }
        let state = page.state();
        if no_lookup && state != PageState::Mapped && !page.is_dirty() {
            // The readahead code is asked for every page, cached or not, but only once.
            if state == PageState::Swapped {
                off.note_read(p);
                off.window = Some(self.paging.window(p));
                off.asked = Some(p);
                return true;
            }
            if off.asked != Some(p) {
                self.ask_without_target(off, p);
                return true;
            }
        } else if state == PageState::Swapped {
            off.note_read(p);
            off.window = Some(self.paging.window(p));
            return true;
        } else if page.is_cached() && self.paging.cfg.swapoff == SwapoffMode::LookupStats {
            self.paging.swap_cache_hit(p, out);
        }
        self.swapoff_done(off, p);
        off.page += 1;
        true
    }

    /// Ask the readahead code for a page that is in the swap cache already.
    fn ask_without_target(&mut self, off: &mut Swapoff, p: u32) {
        let mut window = self.paging.window(p);
        off.asked = Some(p);
        window.without_target(p);
        off.window = Some(window);
    }

    /// Read the window. False: no memory now.
    fn swapoff_window(&mut self, window: &mut Window, out: &mut Effects) -> bool {
        let target = window.target();
        while out.room() >= 2 {
            // The charge first: a page taken from the window has to be read.
            if self.paging.space.io.is_full() || !self.charge_for_swapoff() {
                return false;
            }
            let Some(p) = self.paging.window_next(window) else {
                self.paging.uncharge_unused();
                return true;
            };
            self.paging.read_page(p, p == target, out);
        }
        false
    }

    fn charge_for_swapoff(&mut self) -> bool {
        if self.paging.try_charge() {
            return true;
        }
        self.work.want_room();
        false
    }

    /// No frame can be had: the device stays on.
    pub(super) fn swapoff_failed(&mut self) {
        if let Some(off) = self.work.swapoff.take() {
            self.paging.space.slots.reopen(off.device);
        }
    }

    /// The end of the walk: if slots are still in use (pages came out late, or are held), go round again.
    fn swapoff_end(&mut self, off: &mut Swapoff) -> bool {
        let used = self.paging.space.slots.device(off.device).map_or(0, |device| device.used);
        if used == 0 {
            self.paging.space.slots.remove_device(off.device);
            return true;
        }
        let held = (!off.found).then(|| (used, self.now() + HELD_LOOK_NS));
        *off = Swapoff {
            waits: true,
            held,
            faulted: off.faulted,
            begun: off.begun,
            ended: off.ended,
            ..Swapoff::new(off.device)
        };
        false
    }
}
