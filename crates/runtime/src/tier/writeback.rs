//! What goes on to the disk: which pages, when, and what the end of a write means.

use pagetide_core::Core;
use pagetide_core::types::{DeviceId, Nanos, SlotIdx};
use pagetide_kernel::AddressSpace;
use pagetide_sys::mem::PAGE_BYTES;

use crate::extents::begins_extent;

use super::cells::SLAB_PAGES;
use super::{
    AFTER_FAILURE_NS, DAMAGED, DIRTY, Entry, GONE, LOOKS, NONE, RENEWED, RUN_PAGES, Run, Tier, WRITING, Write,
};

impl Tier {
    fn is_short_of_room(&mut self) -> bool {
        let target = u64::from(self.target) << 12;
        let room = self.cells.free_bytes() + (u64::from(self.granted.saturating_sub(self.backed_pages())) << 12);
        if self.backed_pages() > self.target {
            return true;
        }
        let is_grown = self.granted + SLAB_PAGES > self.target && target > 0;
        let least = if self.is_evicting { target / 16 } else { target / 32 };
        self.is_evicting = is_grown && (self.is_full || room < least);
        self.is_evicting
    }

    /// The next pages that go on to the disk, decompressed: the oldest, with those in neighbouring slots.
    pub(crate) fn next_run(&mut self, space: &impl AddressSpace, core: &Core, now: Nanos) -> Option<Run> {
        let buffer = self.writes.iter().position(Option::is_none)?;
        if self.failed_at.is_some_and(|at| now < at + AFTER_FAILURE_NS && !self.is_flushing) {
            return None;
        }
        if !self.is_flushing && !self.is_short_of_room() {
            return None;
        }
        let mut index = if self.is_flushing { self.cursor } else { self.oldest };
        for _ in 0..LOOKS {
            if index == NONE {
                break;
            }
            let Entry { device, slot, flags, newer, .. } = self.entries[index as usize];
            if flags & (WRITING | GONE | DAMAGED) != 0 {
            } else if !core.is_slot_used(device, slot) || (flags & DIRTY == 0 && !self.is_flushing) {
                self.remove_unused(index);
            } else if flags & DIRTY != 0
                && let Some(run) = self.run_around(space, core, device, slot, buffer)
            {
                return Some(run);
            }
            index = newer;
            if self.is_flushing {
                self.cursor = newer;
            }
        }
        None
    }

    fn is_writable(&self, core: &Core, device: DeviceId, slot: SlotIdx) -> Option<u32> {
        let index = self.entry_at(device, slot)?;
        (self.entries[index as usize].flags == DIRTY && core.is_slot_used(device, slot)).then_some(index)
    }

    fn run_around(
        &mut self,
        space: &impl AddressSpace,
        core: &Core,
        device: DeviceId,
        slot: SlotIdx,
        buffer: usize,
    ) -> Option<Run> {
        let mut first = slot.0;
        while first > 0
            && slot.0 - first < RUN_PAGES - 1
            && !begins_extent(SlotIdx(first))
            && self.is_writable(core, device, SlotIdx(first - 1)).is_some()
        {
            first -= 1;
        }
        let memory = self.buffers.part(buffer * RUN_PAGES as usize * PAGE_BYTES, RUN_PAGES as usize * PAGE_BYTES);
        let mut len = 0;
        while len < RUN_PAGES
            && (len == 0 || !begins_extent(SlotIdx(first + len)))
            && self.slots_of(device) > first + len
            && let Some(index) = self.is_writable(core, device, SlotIdx(first + len))
        {
            let Entry { cell: Some(cell), len: bytes, .. } = self.entries[index as usize] else { break };
            let part = memory.part(len as usize * PAGE_BYTES, PAGE_BYTES);
            let Self { packer, cells, .. } = self;
            // No write uses the buffer.
            let is_whole =
                space.edit(part, |page| cells.get(cell, usize::from(bytes), |bytes| packer.unpack(bytes, page)));
            if !is_whole {
                self.entries[index as usize].flags |= DAMAGED;
                break;
            }
            self.entries[index as usize].flags |= WRITING;
            len += 1;
        }
        let memory = memory.part(0, len as usize * PAGE_BYTES);
        (len > 0).then_some(Run { device, slot: SlotIdx(first), len, memory, buffer })
    }

    fn slots_of(&self, device: DeviceId) -> u32 {
        let found = self.places.iter().find(|(id, _)| *id == device);
        found.map_or(0, |(_, words)| u32::try_from(words.len()).expect("slots are counted in u32"))
    }

    /// The run is being written; `token` comes back with its end.
    pub(crate) const fn begin(&mut self, run: &Run, token: u32) {
        self.writes[run.buffer] = Some(Write { token, device: run.device, slot: run.slot, len: run.len });
    }

    /// The run cannot be written now.
    pub(crate) fn cancel(&mut self, run: &Run) {
        self.end_write(run.device, run.slot, run.len, false);
    }

    /// A write has ended.
    pub(crate) fn written(&mut self, token: u32, is_done: bool, now: Nanos) {
        let found = self.writes.iter_mut().find(|write| write.is_some_and(|write| write.token == token));
        let Some(Write { device, slot, len, .. }) = found.and_then(Option::take) else { return };
        self.failed_at = (!is_done).then_some(now);
        self.end_write(device, slot, len, is_done);
        if self.is_flushed() {
            self.note_flush(now);
        }
    }

    /// Nobody waits for a flush any more.
    fn note_flush(&mut self, now: Nanos) {
        if let Some(since) = self.flush_since.take() {
            self.share.note_loss(now.saturating_sub(since));
        }
    }

    fn end_write(&mut self, device: DeviceId, slot: SlotIdx, len: u32, is_done: bool) {
        for slot in (slot.0..slot.0 + len).map(SlotIdx) {
            let index = self.entry_at(device, slot).expect("an entry stays until its write has ended");
            let entry = &mut self.entries[index as usize];
            let flags = entry.flags;
            entry.flags &= !(WRITING | RENEWED | GONE);
            if flags & GONE != 0 {
                self.remove(index);
            } else if flags & RENEWED == 0 && is_done {
                entry.flags &= !DIRTY;
                self.dirty -= 1;
                self.stats.zswpwb += 1;
                // A child of a fork reads the disk; for us the page is still here.
                if !self.is_flushing {
                    self.remove(index);
                }
            }
        }
    }

    /// Write everything out and take nothing in, until told otherwise: what is copied at a fork must be on the disk.
    pub(crate) fn flush(&mut self, now: Nanos, on: bool) {
        if on && !self.is_flushing {
            self.cursor = self.oldest;
            self.flush_since = (self.dirty > 0).then_some(now);
        }
        if !on {
            self.note_flush(now);
        }
        self.is_flushing = on;
    }

    /// True while everything is to be written.
    pub(crate) const fn is_flushing(&self) -> bool {
        self.is_flushing
    }

    /// True if the disk holds all that is here, or will not.
    pub(crate) fn is_flushed(&self) -> bool {
        self.dirty == 0 || (self.cursor == NONE && self.writes.iter().all(Option::is_none))
    }
}
