//! What a scan does with one page: first a verdict, which orders nothing, then its execution.

use super::Reclaim;
use super::references::Use;
use super::run::{ReclaimRun, RunKind};
use crate::config::{Balance, MemoryMode};
use crate::effect::{Effect, Effects};
use crate::memory::Memory;
use crate::memory::page::Flight;
use crate::swap::Space;
use crate::types::{PageIdx, PageRange};
use crate::vmstat::Counter;

/// What a look at a page led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Dealt with: the page has left the tail.
    Next,
    /// Its write has to end first.
    Wait,
    /// No I/O can be started now.
    NoIo,
}

/// What is to become of the oldest inactive page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
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

impl Reclaim {
    /// The oldest page of an active list goes to the inactive list.
    pub(super) fn shrink_active(&self, mem: &mut Memory, run: &mut ReclaimRun, p: u32) {
        let page = mem.at(p);
        if page.is_unevictable() {
            cull(mem, p);
            return;
        }
        if self.references.look_active(mem, p) {
            run.batch.referenced += 1;
            if page.is_executable() {
                // A program that runs keeps its pages.
                run.batch.rotated += 1;
                mem.putback(p);
                return;
            }
        }
        mem.deactivate(p);
        mem.count(Counter::pgdeactivate, 1);
    }

    /// A look at the oldest inactive page.
    pub(super) fn shrink_inactive(
        &mut self,
        space: &mut Space,
        run: &mut ReclaimRun,
        p: u32,
        out: &mut Effects,
    ) -> Look {
        let verdict = self.judge(&mut space.mem, p);
        self.carry_out(verdict, space, run, p, out)
    }

    /// What is to become of the oldest inactive page. The look itself starts the next interval in which a use counts.
    fn judge(&self, mem: &mut Memory, p: u32) -> Verdict {
        let page = mem.at(p);
        match page.flight() {
            Flight::None => {}
            // Locked in the kernel's terms.
            Flight::Reading | Flight::Mapping | Flight::Unmapping => return Verdict::Keep,
            Flight::Writing => return Verdict::Writeback,
        }
        if page.is_unevictable() {
            return Verdict::Cull;
        }
        let unmaps_first = self.host.answers_moves && page.is_mapped();
        // A program that runs keeps its pages after one use.
        let at_once = if page.is_file() { page.is_executable() } else { self.cfg.activate_at_once };
        match self.references.look_inactive(mem, p, at_once) {
            Use::Active => return Verdict::Activate,
            Use::Referenced if unmaps_first && self.references.samples() => return Verdict::Sample,
            Use::Referenced => return Verdict::Keep,
            Use::Once if page.is_dirty() => return Verdict::KeepDirty,
            // The other CPU's batch holds it.
            Use::Once | Use::Cold if self.cfg.writes_end_elsewhere && page.is_rotating() => return Verdict::Keep,
            Use::Once | Use::Cold => {}
        }
        if page.is_file() {
            Verdict::ReclaimFile
        } else if unmaps_first {
            Verdict::Unmap
        } else {
            Verdict::Pageout
        }
    }

    fn carry_out(
        &mut self,
        verdict: Verdict,
        space: &mut Space,
        run: &mut ReclaimRun,
        p: u32,
        out: &mut Effects,
    ) -> Look {
        match verdict {
            Verdict::Cull => cull(&mut space.mem, p),
            Verdict::Activate => self.activate(space, run, p),
            Verdict::Keep => space.mem.putback(p),
            Verdict::Sample => {
                space.mem.begin_sample(p);
                unmap(p, out);
                space.mem.count(Counter::pt_sampled, 1);
                space.mem.putback(p);
            }
            Verdict::KeepDirty => {
                run.batch.unready += 1;
                run.batch.unsent += 1;
                space.mem.putback(p);
            }
            Verdict::Writeback => return self.meet_writeback(space, run, p),
            Verdict::ReclaimFile => self.shrink_file(space, run, p, out),
            Verdict::Unmap => {
                begin_pageout(&mut space.mem, p, out);
                space.mem.putback(p);
                run.note_freed();
                run.batch.pageout += 1;
            }
            Verdict::Pageout => return self.page_out(space, run, p, out),
        }
        Look::Next
    }

    fn page_out(&mut self, space: &mut Space, run: &mut ReclaimRun, p: u32, out: &mut Effects) -> Look {
        match self.pageout(space, p, out) {
            Pageout::Freed => run.note_freed(),
            Pageout::Submitted => {
                run.batch.pageout += 1;
                // A page freed by the end of its write counts when it is sure to go.
                if space.mem.at(p).frees_when_written() {
                    run.note_freed();
                }
                space.mem.putback(p);
            }
            // What is under way frees memory first, and there may be more slots then.
            Pageout::NoSlot if self.host.waits_for_slots && space.mem.counts().pending > 0 => return Look::NoIo,
            Pageout::NoSlot => self.activate(space, run, p),
            Pageout::NoIo => return Look::NoIo,
        }
        Look::Next
    }

    fn activate(&self, space: &mut Space, run: &mut ReclaimRun, p: u32) {
        let page = space.mem.at(p);
        if space.slots.is_filling() && !page.in_flight() && page.has_slot() && page.is_mapped() {
            space.free_swap(p);
        }
        if self.cfg.balance == Balance::LruCost2016 {
            // The posted series marked every activation; what comes back from there has a cost.
            space.mem.mark_workingset(p);
        }
        space.mem.activate(p);
        space.mem.count(Counter::pgactivate, 1);
        run.batch.activated += 1;
    }

    /// A page under write: kswapd and most others pass it by; a v1 memcg waits when it meets it again.
    fn meet_writeback(&self, space: &mut Space, run: &mut ReclaimRun, p: u32) -> Look {
        let page = space.mem.at(p);
        let v1 = matches!(self.cfg.memory, MemoryMode::Memcg { v1: true });
        if self.host.passes_writeback || page.frees_when_written() {
            space.mem.putback(p);
            return Look::Next;
        }
        if run.kind == RunKind::Memcg && v1 && page.is_reclaim() {
            space.mem.mark_job_waited(p);
            return Look::Wait;
        }
        // Only what has come round the list and is still under write is worth waiting for.
        run.batch.unready += u32::from(page.is_reclaim());
        space.mem.mark_reclaim(p);
        if self.cfg.activate_dirty {
            self.activate(space, run, p);
        } else {
            space.mem.putback(p);
        }
        Look::Next
    }

    /// A cold file page: dropped if it is clean, sent up for the flusher if it is dirty.
    fn shrink_file(&mut self, space: &mut Space, run: &mut ReclaimRun, p: u32, out: &mut Effects) {
        let page = space.mem.at(p);
        if page.is_dirty() {
            run.batch.unready += 1;
            run.batch.unsent += 1;
            let hands_over = run.is_tail_dirty || self.cfg.kswapd_unlimited && run.has_sunk();
            if hands_over && run.kind == RunKind::Kswapd {
                // The file system gave it back.
                space.mem.count(Counter::nr_vmscan_write, 1);
                space.mem.clear_reclaim(p);
            } else {
                space.mem.count(Counter::nr_vmscan_immediate_reclaim, 1);
                space.mem.mark_reclaim(p);
            }
            // It may have been dirtied through a mapping, which nobody has counted.
            space.mem.count_dirty(p);
            space.mem.wake_flusher();
            if self.cfg.activate_dirty {
                self.activate(space, run, p);
            } else {
                space.mem.putback(p);
            }
            return;
        }
        if page.is_mapped() {
            space.unmap(p);
            unmap(p, out);
        }
        if run.held == Some(p) {
            space.mem.putback(p);
            return;
        }
        self.steal(space, p, out);
        run.note_freed();
    }

    /// Write a cold page out, or drop it if its slot still holds its bytes. It is unmapped first (exact hosts).
    pub(crate) fn pageout(&mut self, space: &mut Space, p: u32, out: &mut Effects) -> Pageout {
        if let Some(slot) = space.mem.slot(p)
            && space.mem.at(p).is_dirty()
            && space.slots.is_read_only(slot)
        {
            space.drop_slot(p);
        }
        if space.mem.at(p).is_dirty() && space.io.is_full() {
            return Pageout::NoIo;
        }
        if !space.mem.at(p).has_slot() {
            if !space.allocate_slot(p) {
                return Pageout::NoSlot;
            }
            space.mem.mark_dirty(p);
        }
        if space.mem.at(p).is_mapped() {
            space.unmap(p);
            space.mem.clear_young(p);
            unmap(p, out);
        }
        if !space.mem.at(p).is_dirty() {
            space.mem.count(Counter::pt_drop_clean, 1);
            self.steal(space, p, out);
            return Pageout::Freed;
        }
        self.submit_write(space, p, out);
        Pageout::Submitted
    }

    fn submit_write(&self, space: &mut Space, p: u32, out: &mut Effects) {
        let slot = space.mem.slot(p).expect("allocated by the caller");
        let (device, place) = space.slots.locate(slot);
        let synchronous = space.slots.spec_of(slot).synchronous;
        space.mem.begin_write(p, self.cfg.free_on_write_done || synchronous);
        if !self.host.answers_needless_writes {
            space.mem.count(Counter::pswpout, 1);
        }
        space.mem.count(Counter::nr_vmscan_write, 1);
        space.io.write(p, device, place, out);
    }

    /// Reclaim a clean, unmapped page: its content is in its slot. Leaves a shadow entry.
    pub(crate) fn steal(&mut self, space: &mut Space, p: u32, out: &mut Effects) {
        let kind = usize::from(space.mem.at(p).is_file());
        let shadow = self.evict_shadow(space, p);
        space.mem.count([Counter::pgsteal_anon, Counter::pgsteal_file][kind], 1);
        space.mem.evict(p, shadow);
        out.push_merged(Effect::Drop { range: PageRange::one(PageIdx(p)) });
    }
}

pub(super) fn cull(mem: &mut Memory, p: u32) {
    mem.cull(p);
    mem.count(Counter::unevictable_pgs_culled, 1);
}

pub(super) fn unmap(p: u32, out: &mut Effects) {
    out.push_merged(Effect::Unmap { range: PageRange::one(PageIdx(p)) });
}

/// Begin to take a page out of the page table of a host that answers moves, as the first step of its page-out.
pub(crate) fn begin_pageout(mem: &mut Memory, p: u32, out: &mut Effects) {
    mem.begin_pageout(p);
    unmap(p, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, HostKind};
    use crate::host::Host;
    use crate::types::Access;

    /// Reclaim and memory of a host, with page 0 resident, mapped and used once.
    fn with_page(host: HostKind, settings: &[&str], file: bool) -> (Reclaim, Space) {
        let mut config = Config::profile("linux-6.18", host).expect("a profile");
        for setting in settings {
            config.set(setting).expect("a setting");
        }
        let config = config.memory(MemoryMode::Watermarks, 4, 4).slots_max(512);
        let host = Host::of(&config);
        let mut space = Space::new(&config, &host);
        space.mem.budget.force_charge();
        if file {
            space.mem.begin_file_page(0, false);
        } else {
            space.mem.begin_zero_page(0, false);
        }
        space.mem.add_to_list(0);
        space.map(0);
        space.mem.mark_used(0, Access::Read);
        (Reclaim::new(&config, host), space)
    }

    #[test]
    fn a_page_is_kept_once_activated_when_used_twice_and_goes_when_cold() {
        let (reclaim, mut space) = with_page(HostKind::Exact, &[], false);
        assert_eq!(reclaim.judge(&mut space.mem, 0), Verdict::Keep);
        space.mem.mark_used(0, Access::Read);
        assert_eq!(reclaim.judge(&mut space.mem, 0), Verdict::Activate);
        assert_eq!(reclaim.judge(&mut space.mem, 0), Verdict::Pageout, "used twice, but not since");
    }

    #[test]
    fn a_host_that_sees_no_use_is_asked_by_a_sample() {
        let (reclaim, mut space) = with_page(HostKind::Blind, &[], false);
        assert_eq!(reclaim.judge(&mut space.mem, 0), Verdict::Sample);
        assert_eq!(reclaim.judge(&mut space.mem, 0), Verdict::Unmap, "mapped, and nothing says that it was used");
        space.unmap(0);
        assert_eq!(reclaim.judge(&mut space.mem, 0), Verdict::Pageout);
        let (reclaim, mut space) = with_page(HostKind::Blind, &["sample=none"], false);
        assert_eq!(reclaim.judge(&mut space.mem, 0), Verdict::Unmap);
    }

    #[test]
    fn a_dirty_file_page_that_was_used_before_waits_for_the_flusher() {
        let (reclaim, mut space) = with_page(HostKind::Exact, &[], true);
        assert_eq!(reclaim.judge(&mut space.mem, 0), Verdict::Keep);
        space.mem.mark_dirty(0);
        assert_eq!(reclaim.judge(&mut space.mem, 0), Verdict::KeepDirty);
        assert_eq!(reclaim.judge(&mut space.mem, 0), Verdict::ReclaimFile);
    }

    #[test]
    fn what_is_locked_or_under_write_does_not_go() {
        let (reclaim, mut space) = with_page(HostKind::Exact, &[], false);
        space.mem.lock(0);
        assert_eq!(reclaim.judge(&mut space.mem, 0), Verdict::Cull);
        space.mem.unlock(0);
        space.unmap(0);
        space.mem.begin_write(0, false);
        assert_eq!(reclaim.judge(&mut space.mem, 0), Verdict::Writeback);
    }
}
