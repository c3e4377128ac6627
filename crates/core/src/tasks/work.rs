//! Long work that events of the control kind bring: what needs effects goes on at the deadline, as far as there is room (I1).

use core::ops::RangeInclusive;

use super::Tasks;
use super::swapoff::Swapoff;
use crate::effect::Effects;
use crate::memory::page::PageState;
use crate::paging::STEP_ROOM;
use crate::reclaim;
use crate::types::{Access, Nanos, PageIdx, PageRange};

/// How long a page that could not be moved is left alone at least, and at most.
const RESCUE_AFTER_NS: RangeInclusive<Nanos> = 20_000_000..=160_000_000;
/// Hints at work at the same time; more are dropped, they are only hints.
const HINTS_MAX: usize = 16;
/// Pages of long work looked at in one event.
const LOOKS_MAX: u32 = 4096;

/// A hint that takes effects.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hint {
    WillNeed,
    PageOut,
}

/// What is under way.
#[derive(Debug)]
pub(crate) struct Work {
    /// Where the search for resident, unmapped pages goes on: region, page.
    hold_cursor: (usize, u32),
    hints: [(Hint, PageRange); HINTS_MAX],
    hints_len: usize,
    rescue: Rescue,
    pub(super) swapoff: Option<Swapoff>,
    shrink: bool,
    /// Swapoff needs a frame: not asked for, to be asked for, being made.
    room: Room,
}

/// Pages that could not be moved. What was tried again in vain waits twice as long for its next try: to try is dear.
#[derive(Debug)]
struct Rescue {
    /// When they are looked at again.
    at: Option<Nanos>,
    /// So long after the first of them was set aside.
    after: Nanos,
    /// How many the last look gave free.
    rescued: u32,
    /// How many were set aside since.
    set_aside: u32,
}

impl Rescue {
    fn set_aside(&mut self, now: Nanos) {
        self.set_aside = self.set_aside.saturating_add(1);
        self.at.get_or_insert(now + self.after);
    }

    /// So many are given free.
    fn done(&mut self, rescued: u32) {
        let is_vain = self.rescued > 0 && self.set_aside >= self.rescued - self.rescued / 8;
        let (least, most) = RESCUE_AFTER_NS.into_inner();
        self.after = if is_vain { (2 * self.after).min(most) } else { least };
        (self.rescued, self.set_aside) = (rescued, 0);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Enough,
    Wanted,
    Making,
}

impl Work {
    pub(super) const fn new() -> Self {
        Self {
            hold_cursor: (0, 0),
            hints: [(Hint::WillNeed, PageRange::new(PageIdx(0), 0)); HINTS_MAX],
            hints_len: 0,
            rescue: Rescue { at: None, after: *RESCUE_AFTER_NS.start(), rescued: 0, set_aside: 0 },
            swapoff: None,
            shrink: false,
            room: Room::Enough,
        }
    }

    /// Memory is held from now on, or not any more: the search for what is to be mapped begins anew.
    pub(crate) const fn hold_changed(&mut self) {
        self.hold_cursor = (0, 0);
    }

    /// More is charged than the budget allows, or not any more.
    pub(crate) const fn want_shrink(&mut self, on: bool) {
        self.shrink = on;
    }

    pub(super) const fn take_shrink(&mut self) -> bool {
        core::mem::replace(&mut self.shrink, false)
    }

    pub(super) fn want_room(&mut self) {
        if self.room == Room::Enough {
            self.room = Room::Wanted;
        }
    }

    pub(super) fn take_room(&mut self) -> bool {
        let wanted = self.room == Room::Wanted;
        if wanted {
            self.room = Room::Making;
        }
        wanted
    }

    pub(super) const fn room_made(&mut self) {
        self.room = Room::Enough;
        if let Some(off) = &mut self.swapoff {
            off.wake();
        }
    }

    /// When pages that could not be moved are looked at again.
    pub(super) const fn rescue_at(&self) -> Option<Nanos> {
        self.rescue.at
    }

    /// When swapoff goes on though nothing ends.
    pub(super) fn swapoff_wakes_at(&self) -> Option<Nanos> {
        self.swapoff.as_ref().and_then(Swapoff::wakes_at)
    }

    /// A page could not be moved.
    pub(super) fn note_immovable(&mut self, now: Nanos) {
        self.rescue.set_aside(now);
    }

    pub(crate) fn push_hint(&mut self, hint: Hint, from: u32, to: u32) {
        if from < to && self.hints_len < HINTS_MAX {
            self.hints[self.hints_len] = (hint, PageRange::new(PageIdx(from), to - from));
            self.hints_len += 1;
        }
    }

    /// There is something to do. `unmapped`: memory is held, and not all of it is mapped.
    pub(super) fn has_any(&self, unmapped: bool) -> bool {
        self.shrink
            || self.room == Room::Wanted
            || (unmapped && !self.hold_waits())
            || self.hints_len > 0
            || self.swapoff.as_ref().is_some_and(Swapoff::is_runnable)
    }

    /// A whole search has found nothing that could be mapped now.
    const fn hold_waits(&self) -> bool {
        self.hold_cursor.0 == usize::MAX
    }
}

impl Tasks {
    /// Hold: map the pages that have a frame but are not mapped.
    pub(super) fn map_everything(&mut self, out: &mut Effects) {
        // Something changed: search again.
        if self.work.hold_waits() {
            self.work.hold_cursor = (0, 0);
        }
        let (mut at, mut p) = self.work.hold_cursor;
        let mut looks = 0;
        while self.paging.space.mem.counts().cached > 0 && out.room() >= STEP_ROOM && looks < LOOKS_MAX {
            let regions = &self.paging.readahead.regions;
            if at >= regions.len() {
                self.work.hold_cursor = (usize::MAX, 0);
                return;
            }
            let (start, end) = (regions.get(at).start, regions.get(at).end);
            p = p.max(start);
            while p < end && looks < LOOKS_MAX && out.room() >= STEP_ROOM {
                self.paging.map_ahead(p, Access::Read, out);
                p += 1;
                looks += 1;
            }
            if p >= end {
                at += 1;
                p = 0;
            }
        }
        self.work.hold_cursor = (at, p);
    }

    /// Pages that could not be moved some time ago may be looked at again.
    pub(super) fn rescue(&mut self) {
        let mem = &mut self.paging.space.mem;
        let rescue = &mut self.work.rescue;
        if rescue.at.is_none_or(|at| at > mem.now) {
            return;
        }
        mem.budget.freed();
        let (rescued, is_all) = mem.end_busy(LOOKS_MAX);
        rescue.done(rescued);
        rescue.at = if is_all { None } else { Some(mem.now + rescue.after) };
    }

    pub(super) fn run_hints(&mut self, out: &mut Effects) {
        let mut looks = 0;
        while self.work.hints_len > 0 && out.room() >= STEP_ROOM && looks < LOOKS_MAX {
            let (hint, range) = self.work.hints[0];
            let p = range.first.0;
            looks += 1;
            match hint {
                Hint::WillNeed => self.will_need(p, out),
                Hint::PageOut => self.page_out_hint(p, out),
            }
            if range.len > 1 {
                self.work.hints[0].1 = PageRange::new(PageIdx(p + 1), range.len - 1);
            } else {
                self.work.hints.copy_within(1.., 0);
                self.work.hints_len -= 1;
            }
        }
    }

    fn will_need(&mut self, p: u32, out: &mut Effects) {
        let there = self.paging.space.mem.at(p).state() == PageState::Swapped;
        if !there || !self.paging.is_managed(p) || self.paging.space.io.is_full() {
            return;
        }
        if !self.paging.space.mem.budget.is_low() && self.paging.try_charge() {
            self.paging.read_page(p, false, out);
        }
    }

    fn page_out_hint(&mut self, p: u32, out: &mut Effects) {
        let mem = &self.paging.space.mem;
        let page = mem.at(p);
        let may_go = page.has_frame() && !page.is_unevictable() && !page.is_busy() && !page.is_discarded();
        if !may_go || page.in_flight() || mem.is_held {
            return;
        }
        self.make_cold(p);
        if page.is_file() {
            // Reclaim takes it from the tail.
            return;
        }
        if self.paging.host.answers_moves && page.is_mapped() {
            reclaim::begin_pageout(&mut self.paging.space.mem, p, out);
        } else {
            self.paging.pageout(p, out);
        }
    }

    /// To the tail of the inactive list, if it may be reclaimed.
    pub(crate) fn make_cold(&mut self, p: u32) {
        let mem = &mut self.paging.space.mem;
        let page = mem.at(p);
        let may_go = page.has_frame() && !page.is_unevictable() && !page.is_busy() && !page.is_discarded();
        if !may_go || page.in_flight() {
            return;
        }
        if page.is_active() {
            mem.count(crate::vmstat::Counter::pgdeactivate, 1);
        }
        mem.make_cold(p);
    }
}
