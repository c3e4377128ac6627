//! The machine's side of the compressed tier: pages between frames and tier, and the tier's own writes to the disk.

use pagetide_core::Core;
use pagetide_core::config::Config;
use pagetide_core::event::Outcome;
use pagetide_core::types::{DeviceId, Nanos, PageIdx, PageRange, SlotIdx};
use pagetide_kernel::{AddressSpace, OwnMapping as _};
use pagetide_sys::Errno;
use pagetide_sys::mem::ManagedRange;

use super::LiveMachine;
use crate::frames::{Frame, FrameRun};
use crate::store::checksum;
use crate::tier::{BUFFERS_BYTES, Found, Offer, Packer, Tier, TierStats};

impl<K: AddressSpace> LiveMachine<K> {
    /// Pages that leave are compressed from now on if the settings say so and it pays, into a part of at most `budget_pages`. Before any
    /// store is added. `map` maps memory of our own for what the tier writes.
    ///
    /// # Errors
    /// There are no addresses for it: the machine goes on without.
    pub(crate) fn attach_tier(
        &mut self,
        config: &Config,
        budget_pages: u64,
        map: impl FnOnce(usize) -> Result<K::Mapping, Errno>,
    ) -> Result<(), Errno> {
        assert!(self.stores.is_empty(), "the tier knows every store");
        let how = config.compress();
        if let Some(packer) = Packer::new(how)? {
            let buffers = self.tier_buffers.insert(map(BUFFERS_BYTES)?).range();
            self.tier = Some(Box::new(Tier::new(packer, how, budget_pages, buffers)?));
        }
        Ok(())
    }

    pub(crate) fn tier(&self) -> Option<&Tier> {
        self.tier.as_deref()
    }

    #[cfg(test)]
    pub(crate) fn tier_mut(&mut self) -> Option<&mut Tier> {
        self.tier.as_deref_mut()
    }

    /// Pages of memory that the tier has.
    pub(crate) fn tier_pages(&self) -> u32 {
        self.tier().map_or(0, Tier::backed_pages)
    }

    /// Pages that are held compressed now.
    pub(crate) fn compressed_pages(&self) -> u64 {
        self.tier.as_ref().map_or(0, |tier| u64::from(tier.held_pages()))
    }

    pub(crate) fn tier_stats(&self) -> TierStats {
        self.tier().map_or_else(TierStats::default, |tier| tier.stats)
    }

    /// Bring a page from the tier into its frame. None: it has to come from the disk.
    pub(super) fn read_from_tier(&mut self, page: PageIdx, device: DeviceId, slot: SlotIdx) -> Option<Outcome> {
        let tier = self.tier.as_deref_mut()?;
        let is_fault = self.waiting.iter().any(|fault| fault.page == page);
        let frame = self.frame_of[page.0 as usize].checked_sub(1).expect("a page in flight has its frame");
        let memory = self.staging.memory(FrameRun { first: Frame(frame), len: 1 });
        let found = self.space.edit(memory, |bytes| tier.read(device, slot, bytes, Some((page, is_fault))));
        if found == Found::No {
            return None;
        }
        if self.is_intact(page, device, slot) {
            return Some(Outcome::Done);
        }
        // What the tier has is damaged. The disk may hold the page, too.
        let tier = self.tier.as_deref_mut()?;
        if tier.is_only_here(device, slot) {
            return Some(Outcome::Failed);
        }
        tier.forget(device, slot);
        None
    }

    /// Read a slot for somebody else, here and now, into a page that is the caller's. False: the device fails, or the checksum does
    /// not match.
    pub(crate) fn read_now(&mut self, device: DeviceId, slot: SlotIdx, to: ManagedRange) -> bool {
        let Self { space, engine, stores, tier, seed, .. } = self;
        let from_tier = tier.as_deref_mut().map(|tier| space.edit(to, |bytes| tier.read(device, slot, bytes, None)));
        let Some((_, store)) = stores.iter().find(|(id, _)| *id == device) else { return false };
        let is_read =
            from_tier == Some(Found::Read) || engine.read_now(store.file(), store.offset(slot), to) == Ok(to.len());
        is_read && space.look(to, |bytes| checksum(*seed, bytes)) == store.sum(slot)
    }

    /// True if the disk does not hold the slot's page.
    pub(crate) fn is_only_in_tier(&self, device: DeviceId, slot: SlotIdx) -> bool {
        self.tier().is_some_and(|tier| tier.is_only_here(device, slot))
    }

    /// A page that differs from its slot is to be written.
    pub(super) fn offer_to_tier(&mut self, page: PageIdx, device: DeviceId, slot: SlotIdx) -> Offer {
        let frame = self.frame(page).expect("a page under write has its frame");
        let memory = self.frame_memory(frame);
        let Some(tier) = self.tier.as_deref_mut() else { return Offer::Declined };
        self.space.look(memory, |bytes| tier.offer(device, slot, bytes))
    }

    /// Pages whose frames are about to be dropped: what came from the disk and is still as it was there may stay compressed.
    pub(super) fn keep_clean(&mut self, core: &Core, range: PageRange) {
        for page in range.pages() {
            let view = core.page(page);
            let (Some((device, slot)), Some(frame)) = (view.slot, self.frame(page)) else { continue };
            let memory = self.frame_memory(frame);
            let sum = self.store(device).sum(slot);
            let Some(tier) = self.tier.as_deref_mut() else { return };
            if view.discarded || sum == 0 || !tier.is_unknown(device, slot) || !tier.leaves_clean(device, slot) {
                continue;
            }
            let seed = self.seed;
            self.space.look(memory, |bytes| {
                if checksum(seed, bytes) == sum {
                    tier.keep_clean(device, slot, bytes);
                }
            });
        }
    }

    /// One turn of what the tier has to do besides: drop what is not needed, make room.
    pub(crate) fn tend_tier(&mut self, core: &Core, now: Nanos) {
        let Some(tier) = self.tier.as_deref_mut() else { return };
        tier.settle(core);
        tier.sweep(core);
        tier.compact();
        // One run a turn, so that a fault need not wait for more; all that there is room for if a fork waits.
        while let Some(run) = tier.next_run(&self.space, core, now) {
            let store = self.stores.iter().find(|(id, _)| *id == run.device);
            let store = &store.expect("it holds pages of this store").1;
            let place = (store.file().raw(), store.offset(run.slot));
            let Some(token) = self.requests.begin_own_write(run.device, run.slot, run.len, place, run.memory) else {
                tier.cancel(&run);
                break;
            };
            tier.begin(&run, token);
            self.stats.write_requests += 1;
            self.requests.note_begin(token, now);
            self.engine.submit(token, self.requests.get(token));
            if !tier.is_flushing() {
                break;
            }
        }
        let stores = &mut self.stores;
        tier.take_lost(|(device, slot)| {
            let store = stores.iter_mut().find(|(id, _)| *id == device);
            store.expect("the core names devices that were added").1.set_sum(slot, 0);
        });
    }

    /// A write of the tier's own has ended.
    pub(super) fn end_tier_write(&mut self, token: u32, is_done: bool) {
        let now = self.space.now();
        if let Some(tier) = self.tier.as_deref_mut() {
            tier.written(token, is_done, now);
        }
    }

    /// A page came from the disk: how long did a fault wait for it? The disk serves those who wait at once, a tier one after the other.
    pub(super) fn note_disk_wait(&mut self, page: PageIdx) {
        let Some(tier) = self.tier.as_deref_mut() else { return };
        if let Some(since) = self.waiting.iter().find(|fault| fault.page == page).map(|fault| fault.since) {
            let waited = self.space.now().saturating_sub(since);
            tier.note_disk_wait(waited / self.waiting.len() as u64);
        }
    }

    /// Follow the budget; see [`Tier::adjust`]. The pages that are the tier's.
    pub(crate) fn adjust_tier(&mut self, budget: u32, free: u32, uses: u64) -> u32 {
        self.tier.as_deref_mut().map_or(0, |tier| tier.adjust(budget, free, uses))
    }

    /// Everything is to be on the disk, and nothing new to be taken in, until told otherwise.
    pub(crate) fn flush_tier(&mut self, on: bool) {
        let now = self.space.now();
        if let Some(tier) = self.tier.as_deref_mut() {
            tier.flush(now, on);
        }
    }

    /// True if the disk holds all pages, as far as it can be had.
    pub(crate) fn is_tier_flushed(&self) -> bool {
        self.tier().is_none_or(Tier::is_flushed)
    }
}
