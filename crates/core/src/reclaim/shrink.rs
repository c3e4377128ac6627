//! What a scan does with one page.
//!
//! | r (used) | R (used before) | anonymous | file |
//! | --- | --- | --- | --- |
//! | 1 | 1 | activate | activate |
//! | 1 | 0 | keep, R := 1 (until 5.8: activate) | keep, R := 1; executable: activate |
//! | 0 | 1 | reclaim, R := 0 | reclaim if clean, R := 0 |
//! | 0 | 0 | reclaim | reclaim |
//!
//! With an exact host `r` is the accessed bit. A blind host has none: a mapped page at the tail that was used, or may have
//! been, is *kept* by taking it out of the page table with its frame kept (a sample): a use brings a soft fault, which maps
//! it again and sets `r`. So a page that is still unmapped at its next look was not used.

use crate::config::{Balance, MemoryMode, Sample};
use crate::effect::{Effect, Effects};
use crate::memory::lru::UN;
use crate::memory::page::{
    ACTIVE, DIRTY, FILE, FREE_DONE, Flight, JOB_WAIT, MAPPED, PAGEOUT, READAHEAD, RECLAIM, REFERENCED, ROTATE,
    UNEVICTABLE, WORKINGSET, YOUNG,
};
use crate::policy::Core;
use crate::reclaim::{ReclaimRun, RunKind};
use crate::types::{DeviceId, PageIdx, PageRange, SlotIdx};
use crate::vmstat::Counter;

/// What a look at a page led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// Dealt with: the page has left the tail.
    Next,
    /// Its write has to end first.
    Wait,
    /// No I/O can be started now.
    NoIo,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Activate,
    Keep,
    Reclaim,
    /// Only if it is clean.
    ReclaimClean,
}

/// What a page-out led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pageout {
    Freed,
    Submitted,
    /// No slot to be had.
    NoSlot,
    /// The table of I/Os is full.
    NoIo,
}

impl Core {
    /// The oldest page of an active list goes to the inactive list.
    pub(crate) fn shrink_active(&mut self, run: &mut ReclaimRun, p: u32) {
        let word = self.pages.word(p);
        if word & UNEVICTABLE != 0 {
            self.cull(p);
            return;
        }
        // A blind host's pages keep the mark: it says "used, or unknown" until the page is sampled.
        let young = if self.cfg.is_blind() { false } else { word & MAPPED != 0 && self.pages.take(p, YOUNG) };
        if young {
            run.batch.referenced += 1;
            if word & FILE != 0 && self.is_executable(p) {
                // A program that runs keeps its pages.
                run.batch.rotated += 1;
                self.lru.putback(&mut self.pages, p);
                return;
            }
        }
        self.lru.remove(&mut self.pages, p);
        self.pages.clear(p, ACTIVE);
        self.pages.set(p, WORKINGSET);
        self.push(p);
        self.count(Counter::pgdeactivate, 1);
    }

    fn push(&mut self, p: u32) {
        let list = crate::memory::lru::Lru::list_of(&self.pages, p);
        self.lru.push_head(&mut self.pages, list, p);
    }

    fn cull(&mut self, p: u32) {
        self.lru.remove(&mut self.pages, p);
        self.lru.push_head(&mut self.pages, UN, p);
        self.count(Counter::unevictable_pgs_culled, 1);
    }

    fn keep(&mut self, p: u32) {
        self.lru.putback(&mut self.pages, p);
    }

    fn activate(&mut self, run: &mut ReclaimRun, p: u32) {
        if self.swap.is_filling()
            && !self.pages.in_flight(p)
            && self.pages.slot(p).is_some()
            && self.pages.is(p, MAPPED)
        {
            self.drop_slot(p);
            self.pages.set(p, DIRTY);
        }
        if self.cfg.balance == Balance::LruCost2016 {
            // The posted series marked every activation; what comes back from there has a cost.
            self.pages.set(p, WORKINGSET);
        }
        self.pages.set(p, ACTIVE);
        self.lru.putback(&mut self.pages, p);
        self.count(Counter::pgactivate, 1);
        run.batch.activated += 1;
    }

    /// A look at the oldest inactive page.
    pub(crate) fn shrink_inactive(&mut self, run: &mut ReclaimRun, p: u32, out: &mut Effects) -> Look {
        match self.pages.flight(p) {
            Flight::None => {}
            // Locked in the kernel's terms.
            Flight::Reading | Flight::Mapping | Flight::Unmapping => {
                self.keep(p);
                return Look::Next;
            }
            Flight::Writing => return self.meet_writeback(run, p),
        }
        if self.pages.is(p, UNEVICTABLE) {
            self.cull(p);
            return Look::Next;
        }
        match self.check_references(p) {
            Verdict::Activate => {
                self.activate(run, p);
                return Look::Next;
            }
            Verdict::Keep => {
                if self.cfg.is_blind() && self.pages.is(p, MAPPED) {
                    self.start_unmap(p, false, out);
                    self.count(Counter::pt_sampled, 1);
                }
                self.keep(p);
                return Look::Next;
            }
            Verdict::ReclaimClean if self.pages.is(p, DIRTY) => {
                run.batch.unready += 1;
                run.batch.unsent += 1;
                self.keep(p);
                return Look::Next;
            }
            // The other CPU's batch holds it.
            Verdict::Reclaim | Verdict::ReclaimClean if self.cfg.writes_end_elsewhere && self.pages.is(p, ROTATE) => {
                self.keep(p);
                return Look::Next;
            }
            Verdict::Reclaim | Verdict::ReclaimClean => {}
        }
        if self.pages.is(p, FILE) {
            self.shrink_file(run, p, out);
            return Look::Next;
        }
        if self.cfg.is_blind() && self.pages.is(p, MAPPED) {
            self.start_unmap(p, true, out);
            self.keep(p);
            run.note_freed();
            run.batch.pageout += 1;
            return Look::Next;
        }
        match self.pageout(p, out) {
            Pageout::Freed => {
                run.note_freed();
                Look::Next
            }
            Pageout::Submitted => {
                run.batch.pageout += 1;
                // A page freed by the end of its write counts when it is sure to go.
                if self.pages.is(p, FREE_DONE) {
                    run.note_freed();
                }
                self.keep(p);
                Look::Next
            }
            // A blind host's writes end one by one, and each end lets the runs go on: to look for what has a slot every time would
            // be a look at every page for every page. What is under way frees memory first, and there may be more slots then.
            Pageout::NoSlot if self.cfg.is_blind() && self.pending > 0 => Look::NoIo,
            Pageout::NoSlot => {
                self.activate(run, p);
                Look::Next
            }
            Pageout::NoIo => Look::NoIo,
        }
    }

    /// A page under write: kswapd and most others pass it by; a v1 memcg waits when it meets it again.
    fn meet_writeback(&mut self, run: &mut ReclaimRun, p: u32) -> Look {
        let v1 = matches!(self.cfg.memory, MemoryMode::Memcg { v1: true });
        if self.cfg.is_blind() || self.pages.is(p, FREE_DONE) {
            self.keep(p);
            return Look::Next;
        }
        if run.kind == RunKind::Memcg && v1 && self.pages.is(p, RECLAIM) {
            self.pages.set(p, JOB_WAIT);
            return Look::Wait;
        }
        // Only what has come round the list and is still under write is worth waiting for.
        run.batch.unready += u32::from(self.pages.is(p, RECLAIM));
        self.pages.set(p, RECLAIM);
        if self.cfg.activate_dirty {
            self.activate(run, p);
        } else {
            self.keep(p);
        }
        Look::Next
    }

    fn check_references(&mut self, p: u32) -> Verdict {
        let word = self.pages.word(p);
        let young = word & MAPPED != 0 && word & YOUNG != 0;
        let referenced = word & REFERENCED != 0;
        if self.cfg.is_blind() && self.cfg.sample == Sample::None {
            self.pages.clear(p, YOUNG | REFERENCED);
            return Verdict::Reclaim;
        }
        self.pages.clear(p, YOUNG | REFERENCED);
        let file = word & FILE != 0;
        if !young {
            return if referenced && file { Verdict::ReclaimClean } else { Verdict::Reclaim };
        }
        self.pages.set(p, REFERENCED);
        let at_once = if file { self.is_executable(p) } else { self.cfg.activate_at_once };
        if referenced || at_once { Verdict::Activate } else { Verdict::Keep }
    }

    /// A cold file page: dropped if it is clean, sent up for the flusher if it is dirty.
    fn shrink_file(&mut self, run: &mut ReclaimRun, p: u32, out: &mut Effects) {
        if self.pages.is(p, DIRTY) {
            run.batch.unready += 1;
            run.batch.unsent += 1;
            let hands_over = run.is_tail_dirty || self.cfg.kswapd_unlimited && run.has_sunk();
            if hands_over && run.kind == RunKind::Kswapd {
                // The file system gave it back.
                self.count(Counter::nr_vmscan_write, 1);
                self.pages.clear(p, RECLAIM);
            } else {
                self.count(Counter::nr_vmscan_immediate_reclaim, 1);
                self.pages.set(p, RECLAIM);
            }
            self.dirty_file_met(p);
            if self.cfg.activate_dirty {
                self.activate(run, p);
            } else {
                self.keep(p);
            }
            return;
        }
        if self.pages.is(p, MAPPED) {
            self.set_unmapped(p);
            self.emit(Effect::Unmap { range: PageRange::one(PageIdx(p)) }, out);
        }
        if run.held == Some(p) {
            self.keep(p);
            return;
        }
        self.steal(p);
        self.emit(Effect::Drop { range: PageRange::one(PageIdx(p)) }, out);
        run.note_freed();
    }

    /// Blind hosts: begin to take a page out of the page table, as a sample of its use or as the first step of its page-out.
    pub(crate) fn start_unmap(&mut self, p: u32, pageout: bool, out: &mut Effects) {
        self.begin_flight(p, Flight::Unmapping);
        if pageout {
            self.pages.set(p, PAGEOUT);
            self.pending += 1;
            self.sure += 1;
        }
        self.emit(Effect::Unmap { range: PageRange::one(PageIdx(p)) }, out);
    }

    /// Write a cold page out, or drop it if its slot still holds its bytes. It is unmapped first (exact hosts).
    pub(crate) fn pageout(&mut self, p: u32, out: &mut Effects) -> Pageout {
        if let Some(slot) = self.pages.slot(p)
            && self.pages.is(p, DIRTY)
            && self.swap.is_read_only(slot)
        {
            self.drop_slot(p);
        }
        if self.pages.is(p, DIRTY) && self.io.is_full() {
            return Pageout::NoIo;
        }
        if self.pages.slot(p).is_none() {
            let Some(slot) = self.allocate_slot(p) else {
                return Pageout::NoSlot;
            };
            self.give_slot(p, slot);
            self.pages.set(p, DIRTY);
        }
        if self.pages.is(p, MAPPED) {
            self.set_unmapped(p);
            self.pages.clear(p, YOUNG);
            self.emit(Effect::Unmap { range: PageRange::one(PageIdx(p)) }, out);
        }
        if !self.pages.is(p, DIRTY) {
            self.count(Counter::pt_drop_clean, 1);
            self.steal(p);
            self.emit(Effect::Drop { range: PageRange::one(PageIdx(p)) }, out);
            return Pageout::Freed;
        }
        self.submit_write(p, out);
        Pageout::Submitted
    }

    /// A slot for the page; when swap is more than half full, one that a mapped page only kept will do.
    fn allocate_slot(&mut self, p: u32) -> Option<u32> {
        let pages = &self.pages;
        let found = self
            .swap
            .allocate(p, |owner| pages.is(owner, MAPPED) && !pages.in_flight(owner) && pages.slot(owner).is_some())?;
        if let Some(owner) = found.robbed {
            let slot = self.pages.take_slot(owner).expect("I4: it owned the slot");
            debug_assert_eq!(slot, found.slot);
            self.kept_slots -= 1;
            self.pages.set(owner, DIRTY);
        }
        Some(found.slot)
    }

    fn submit_write(&mut self, p: u32, out: &mut Effects) {
        let slot = self.pages.slot(p).expect("allocated by the caller");
        let (device, place) = self.swap.locate(slot);
        let synchronous = self.swap.spec_of(slot).synchronous;
        self.pages.clear(p, DIRTY | PAGEOUT);
        self.pages.set(p, RECLAIM);
        if self.cfg.free_on_write_done || synchronous {
            self.pages.set(p, FREE_DONE);
            self.sure += 1;
        }
        self.begin_flight(p, Flight::Writing);
        self.pending += 1;
        if !self.cfg.is_blind() {
            self.count(Counter::pswpout, 1);
        }
        self.count(Counter::nr_vmscan_write, 1);
        self.push_write(p, device, place, out);
    }

    /// Order a write, together with its neighbour if that was ordered just now.
    pub(crate) fn push_write(&mut self, p: u32, device: DeviceId, place: SlotIdx, out: &mut Effects) {
        let base = self.base;
        for old in out.recent_mut(base) {
            if old.touches(p) {
                // Not before the unmap: hosts that execute in order rely on it.
                break;
            }
            if let Effect::Write { io, device: d, slot: s, range } = old {
                let next = range.end().0 == p && s.0 + range.len == place.0;
                if *d == device && next && range.len < crate::effect::RANGE_MAX {
                    range.len += 1;
                    let io = *io;
                    let entry = self.io.get_mut(io).expect("it was made for this event");
                    entry.range.len += 1;
                    entry.left += 1;
                    return;
                }
            }
        }
        let range = PageRange::one(PageIdx(p));
        let io = self.io.insert(range, true);
        out.push(Effect::Write { io, device, slot: place, range });
    }

    /// Reclaim a clean, unmapped page: its content is in its slot. Leaves a shadow entry. The caller orders the drop.
    pub(crate) fn steal(&mut self, p: u32) {
        debug_assert!(!self.pages.is(p, MAPPED | DIRTY) && !self.pages.in_flight(p));
        self.lru.remove(&mut self.pages, p);
        let kind = usize::from(self.pages.is(p, FILE));
        let shadow = self.evict_shadow(p);
        self.count([Counter::pgsteal_anon, Counter::pgsteal_file][kind], 1);
        self.lose_frame(p);
        self.pages.clear(p, REFERENCED | ACTIVE | WORKINGSET | READAHEAD | RECLAIM | FREE_DONE | PAGEOUT);
        if let Some(shadow) = shadow {
            self.pages.set_shadow(p, shadow);
        }
    }
}
