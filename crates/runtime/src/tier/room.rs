//! The tier's housekeeping: what need not be held, and how much memory there is for the rest.

use pagetide_core::Core;
use pagetide_core::page::{Flight, PageState};
use pagetide_core::tier::{CORE_PAGES_MIN, GRANT_PAGES, PARTS, Packing, Resident, SWEEP};

use super::cells::{Cell, SLAB_PAGES};
use super::{DIRTY, Entry, FAULT_NS, GONE, SETTLE, Tier, UNUSED, WRITING};

impl Tier {
    /// What was read from here and is mapped now is dropped.
    pub(crate) fn settle(&mut self, core: &Core) {
        for _ in 0..self.loaded.len().min(SETTLE) {
            let Some(loaded) = self.loaded.pop_front() else { break };
            let (page, device, slot, stamp) = loaded;
            let Some(index) = self.entry_at(device, slot) else { continue };
            let view = core.page(page);
            let Entry { stamp: now, flags, .. } = self.entries[index as usize];
            // What is under write will be on the disk; of what has another owner the sweep takes care.
            if now != stamp || flags & WRITING != 0 || view.slot != Some((device, slot)) {
                continue;
            }
            if view.flight != Flight::None || view.state == PageState::Cached {
                self.loaded.push_back(loaded);
                continue;
            }
            let is_dirty = flags & DIRTY != 0;
            if view.state != PageState::Mapped || (is_dirty && core.is_slot_pinned(device, slot)) {
                continue;
            }
            self.remove_unused(index);
            *self.place(device, slot) = 0;
        }
    }

    /// Drop what nobody can ask for any more, of a few entries.
    pub(crate) fn sweep(&mut self, core: &Core) {
        for _ in 0..SWEEP.min(self.entries.len()) {
            self.swept = if self.swept + 1 < self.entries.len() { self.swept + 1 } else { 0 };
            let Entry { device, slot, flags, .. } = self.entries[self.swept];
            if flags & (UNUSED | GONE) == 0 && !core.is_slot_used(device, slot) {
                self.remove_unused(u32::try_from(self.swept).expect("31 bits"));
            }
        }
    }

    /// Follow the budget, of which `free` pages are neither charged nor ours. The pages that are the tier's from now on.
    /// `uses`: of the coldest pages in memory, see [`Resident`].
    pub(crate) fn adjust(&mut self, budget: u32, free: u32, uses: u64) -> u32 {
        self.budget = budget;
        if self.share.is_due(budget) {
            self.look(uses);
        }
        let (share, core_pages_min) = self.share();
        if share > 0 && self.entries.capacity() == 0 && self.pages_max > 0 {
            self.map_room();
        }
        let most = budget.saturating_sub(core_pages_min).min(self.pages_max);
        self.target = (budget / PARTS * share).min(most) / SLAB_PAGES * SLAB_PAGES;
        if self.is_full && self.granted < self.target {
            let step = (self.target - self.granted).min(GRANT_PAGES).min(free) / SLAB_PAGES * SLAB_PAGES;
            self.granted += step;
            self.is_full = step == 0;
        }
        // Cells of other sizes are free: they can be made into one that fits (`squeeze`), as long as there are some.
        if self.cells.free_bytes() >= u64::from(self.backed_pages()) << 6 {
            self.is_full = false;
        }
        if self.granted > self.target {
            self.cells.give_back(self.backed_pages().saturating_sub(self.target) / SLAB_PAGES);
            self.granted = self.backed_pages().max(self.target);
        }
        self.stats.pool_pages_max = self.stats.pool_pages_max.max(u64::from(self.backed_pages()));
        self.stats.stored_pages_max = self.stats.stored_pages_max.max(u64::from(self.held));
        self.granted
    }

    fn look(&mut self, uses: u64) {
        let m = &mut self.measured;
        if m.disk_pages >= 16 {
            // What else a fault costs passes while it waits.
            self.prices.disk_ns = m.disk_wait_ns / m.disk_pages;
            // Until something came from the tier: as many faults a page as the disk's.
            self.prices.tier_ns = m.disk_faults * FAULT_NS / m.disk_pages + 3_000;
        }
        if m.tier_pages >= 16 {
            self.prices.tier_ns = (m.unpack_ns + m.tier_faults * FAULT_NS) / m.tier_pages;
        }
        if m.packed >= 16 {
            self.prices.pack_ns = m.pack_ns / m.packed;
        }
        for sum in [
            &mut m.disk_pages,
            &mut m.disk_faults,
            &mut m.disk_wait_ns,
            &mut m.tier_pages,
            &mut m.tier_faults,
            &mut m.unpack_ns,
            &mut m.packed,
            &mut m.pack_ns,
        ] {
            *sum /= 2;
        }
        let packing = Packing { bytes: self.packed_bytes, accepted_bp: self.accepted_bp };
        let resident = Resident { budget: self.budget, has_all: self.granted >= self.target, uses };
        self.share.look(packing, self.prices, resident);
    }

    /// The share that it is to have, and the pages that the core keeps at least.
    const fn share(&self) -> (u32, u32) {
        #[cfg(test)]
        if let Some(share) = self.fixed_share {
            return (share, 32);
        }
        (self.share.share(), CORE_PAGES_MIN)
    }

    /// Empty a slab, where the free cells of a class would fill one.
    pub(crate) fn compact(&mut self) {
        let entries = &mut self.entries;
        self.cells.compact(|owner, from, to| has_moved(entries, owner, from, to));
    }

    /// Empty a slab into cells of any size that are free.
    pub(super) fn squeeze(&mut self) {
        let entries = &mut self.entries;
        self.cells.squeeze(|owner, from, to| has_moved(entries, owner, from, to));
    }
}

fn has_moved(entries: &mut [Entry], owner: u32, from: Cell, to: Cell) -> bool {
    let Some(entry) = entries.get_mut(owner as usize).filter(|entry| entry.cell == Some(from)) else {
        return false;
    };
    entry.cell = Some(to);
    true
}
