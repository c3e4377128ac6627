//! What a scan does with one page: first a verdict, which orders nothing, then its execution.

use crate::config::{Balance, MemoryMode};
use crate::effect::{Effect, Effects};
use crate::memory::lru::UN;
use crate::memory::page::{
    ACTIVE, DIRTY, FILE, FREE_DONE, Flight, JOB_WAIT, MAPPED, PAGEOUT, READAHEAD, RECLAIM, REFERENCED, ROTATE,
    UNEVICTABLE, WORKINGSET, YOUNG,
};
use crate::policy::Core;
use crate::reclaim::references::Use;
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

/// What is to become of the oldest inactive page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It may not be reclaimed: to the unevictable list.
    Cull,
    /// It is used often: to the active list.
    Activate,
    /// Once more round the inactive list.
    Keep,
    /// The same, out of the page table meanwhile: a use is then seen as a soft fault.
    Sample,
    /// It would go if it were clean: the flusher comes first.
    KeepDirty,
    /// It is under write.
    Writeback,
    /// A cold page of a file.
    ReclaimFile,
    /// A cold page that takes time to unmap: the first step of its page-out.
    Unmap,
    /// A cold anonymous page: written to its slot, or dropped if that holds its bytes.
    Pageout,
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
        if self.references.look_active(&mut self.pages, p) {
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
        let verdict = self.judge(p);
        self.carry_out(verdict, run, p, out)
    }

    /// What is to become of the oldest inactive page. The look itself starts the next interval in which a use counts.
    fn judge(&mut self, p: u32) -> Verdict {
        match self.pages.flight(p) {
            Flight::None => {}
            // Locked in the kernel's terms.
            Flight::Reading | Flight::Mapping | Flight::Unmapping => return Verdict::Keep,
            Flight::Writing => return Verdict::Writeback,
        }
        if self.pages.is(p, UNEVICTABLE) {
            return Verdict::Cull;
        }
        let unmaps_first = self.host.answers_moves && self.pages.is(p, MAPPED);
        match self.look_for_use(p) {
            Use::Active => return Verdict::Activate,
            Use::Referenced if unmaps_first && self.references.samples() => return Verdict::Sample,
            Use::Referenced => return Verdict::Keep,
            Use::Once if self.pages.is(p, DIRTY) => return Verdict::KeepDirty,
            // The other CPU's batch holds it.
            Use::Once | Use::Cold if self.cfg.writes_end_elsewhere && self.pages.is(p, ROTATE) => return Verdict::Keep,
            Use::Once | Use::Cold => {}
        }
        if self.pages.is(p, FILE) {
            Verdict::ReclaimFile
        } else if unmaps_first {
            Verdict::Unmap
        } else {
            Verdict::Pageout
        }
    }

    fn look_for_use(&mut self, p: u32) -> Use {
        // A program that runs keeps its pages after one use.
        let word = self.pages.word(p);
        let at_once =
            if word & FILE == 0 { self.cfg.activate_at_once } else { word & YOUNG != 0 && self.is_executable(p) };
        self.references.look_inactive(&mut self.pages, p, at_once)
    }

    fn carry_out(&mut self, verdict: Verdict, run: &mut ReclaimRun, p: u32, out: &mut Effects) -> Look {
        match verdict {
            Verdict::Cull => self.cull(p),
            Verdict::Activate => self.activate(run, p),
            Verdict::Keep => self.keep(p),
            Verdict::Sample => {
                self.start_unmap(p, false, out);
                self.count(Counter::pt_sampled, 1);
                self.keep(p);
            }
            Verdict::KeepDirty => {
                run.batch.unready += 1;
                run.batch.unsent += 1;
                self.keep(p);
            }
            Verdict::Writeback => return self.meet_writeback(run, p),
            Verdict::ReclaimFile => self.shrink_file(run, p, out),
            Verdict::Unmap => {
                self.start_unmap(p, true, out);
                self.keep(p);
                run.note_freed();
                run.batch.pageout += 1;
            }
            Verdict::Pageout => return self.page_out(run, p, out),
        }
        Look::Next
    }

    fn page_out(&mut self, run: &mut ReclaimRun, p: u32, out: &mut Effects) -> Look {
        match self.pageout(p, out) {
            Pageout::Freed => run.note_freed(),
            Pageout::Submitted => {
                run.batch.pageout += 1;
                // A page freed by the end of its write counts when it is sure to go.
                if self.pages.is(p, FREE_DONE) {
                    run.note_freed();
                }
                self.keep(p);
            }
            // What is under way frees memory first, and there may be more slots then.
            Pageout::NoSlot if self.host.waits_for_slots && self.pending > 0 => return Look::NoIo,
            Pageout::NoSlot => self.activate(run, p),
            Pageout::NoIo => return Look::NoIo,
        }
        Look::Next
    }

    /// A page under write: kswapd and most others pass it by; a v1 memcg waits when it meets it again.
    fn meet_writeback(&mut self, run: &mut ReclaimRun, p: u32) -> Look {
        let v1 = matches!(self.cfg.memory, MemoryMode::Memcg { v1: true });
        if self.host.passes_writeback || self.pages.is(p, FREE_DONE) {
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
        if !self.host.answers_needless_writes {
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
