//! Swap space: the devices and their slots, and the swap cache, which is the pages that have a frame and a slot.
//!
//! Above memory: a step that concerns a page and its slot is here, so that both sides always agree. Nothing is decided but
//! which slot comes next.

pub(crate) mod slots;

use crate::config::Config;
use crate::effect::{Effect, Effects};
use crate::host::Host;
use crate::io::IoTable;
use crate::memory::Memory;
use crate::types::{PageIdx, PageRange};
use slots::Slots;

/// Memory, the slots that its pages own, and the I/O between them.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) mem: Memory,
    pub(crate) slots: Slots,
    pub(crate) io: IoTable,
}

impl Space {
    pub(crate) fn new(config: &Config, host: &Host) -> Self {
        Self {
            mem: Memory::new(config, host),
            slots: Slots::new(config.slots_max, config.slot_order, config.early_free),
            io: IoTable::new(),
        }
    }

    /// The program can use the page from now on.
    #[inline]
    pub(crate) fn map(&mut self, p: u32) {
        if let Some(slot) = self.mem.map(p) {
            self.slots.note_mapped(slot, true);
        }
    }

    /// It cannot any more.
    #[inline]
    pub(crate) fn unmap(&mut self, p: u32) {
        if let Some(slot) = self.mem.unmap(p) {
            self.slots.note_mapped(slot, false);
        }
    }

    /// The page owns the slot from now on, with or without a frame.
    #[inline]
    pub(crate) fn give_slot(&mut self, p: u32, slot: u32) {
        self.mem.give_slot(p, slot);
        self.slots.note_mapped(slot, self.mem.at(p).is_mapped());
    }

    /// Free the page's slot, if it has one.
    #[inline]
    pub(crate) fn drop_slot(&mut self, p: u32) {
        if let Some(slot) = self.mem.take_slot(p) {
            self.slots.free_slot(slot);
        }
    }

    /// The same of a page in memory, which is the only copy then.
    #[inline]
    pub(crate) fn free_swap(&mut self, p: u32) {
        self.drop_slot(p);
        self.mem.mark_dirty(p);
    }

    /// The page's frame and slot are gone: it is untouched.
    pub(crate) fn forget(&mut self, p: u32) {
        self.mem.forget_frame(p);
        self.drop_slot(p);
        self.mem.lose_and_reset(p);
    }

    /// The same of a page without a frame.
    #[inline]
    pub(crate) fn forget_swapped(&mut self, p: u32) {
        self.drop_slot(p);
        self.mem.reset(p);
    }

    /// Drop the frame of a discarded page.
    pub(crate) fn finish_discard(&mut self, p: u32, out: &mut Effects) {
        debug_assert!(!self.mem.at(p).is_mapped(), "a mapped page goes with the program's page table entry");
        self.forget(p);
        out.push_merged(Effect::Drop { range: PageRange::one(PageIdx(p)) });
    }

    /// The same, now or when there is room for the order: the flight of a discarded page has ended.
    pub(crate) fn discard_when_room(&mut self, p: u32, out: &mut Effects) {
        if out.room() > 1 {
            self.finish_discard(p, out);
        } else {
            self.mem.queue_discard(p);
        }
    }

    /// A slot for the page; when swap is more than half full, one that a mapped page only kept will do.
    #[inline]
    pub(crate) fn allocate_slot(&mut self, p: u32) -> bool {
        let mem = &self.mem;
        let found = self.slots.allocate(p, |owner| {
            let page = mem.at(owner);
            page.is_mapped() && page.has_slot() && !page.in_flight()
        });
        let Some(found) = found else {
            return false;
        };
        if let Some(owner) = found.robbed {
            let slot = self.mem.robbed_of_slot(owner);
            debug_assert_eq!(slot, Some(found.slot), "I4: it owned the slot");
        }
        self.give_slot(p, found.slot);
        true
    }

    /// Panic if an invariant of this layer or the one below does not hold.
    pub(crate) fn audit(&self) {
        self.mem.audit();
        for p in 0..self.mem.len() {
            if let Some(slot) = self.mem.slot(p) {
                assert_eq!(self.slots.owner(slot), Some(p), "I4: slot {slot} of page {p}");
                let is_mapped = self.mem.at(p).is_mapped();
                assert!(!is_mapped || self.slots.is_kept(slot), "page {p} is mapped, and its slot does not say so");
            }
        }
        self.slots.audit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{HostKind, MemoryMode};
    use crate::event::DeviceSpec;
    use crate::memory::page::PageState;
    use crate::types::{DeviceId, SlotIdx};

    #[test]
    fn a_page_and_its_slot_agree_on_every_way_through_memory() {
        let config = Config::profile("linux-6.18", HostKind::Exact).expect("a profile");
        let config = config.memory(MemoryMode::Watermarks, 8, 8).slots_max(512);
        let mut space = Space::new(&config, &Host::of(&config));
        let spec = DeviceSpec { slots: 16, priority: None, rotational: false, synchronous: false, inherited: false };
        assert!(space.slots.add_device(DeviceId(0), spec));
        space.mem.budget.force_charge();
        space.mem.begin_zero_page(3, false);
        space.mem.add_to_list(3);
        assert!(space.allocate_slot(3));
        let slot = space.mem.slot(3).expect("it was just given one");
        space.map(3);
        assert!(space.slots.is_kept(slot) && space.mem.counts().kept_slots == 1);
        space.audit();
        space.unmap(3);
        assert!(!space.slots.is_kept(slot));
        space.mem.mark_clean(3);
        space.mem.evict(3, None);
        assert_eq!((space.mem.at(3).state(), space.mem.free()), (PageState::Swapped, 8));
        space.audit();
        space.forget_swapped(3);
        assert_eq!((space.slots.owner(slot), space.mem.at(3).state()), (None, PageState::Untouched));
        space.audit();
    }

    #[test]
    fn a_slot_that_only_a_child_needs_is_not_away() {
        let config = Config::profile("linux-6.18", HostKind::Exact).expect("a profile");
        let config = config.memory(MemoryMode::Watermarks, 8, 8).slots_max(2 * 512);
        let mut space = Space::new(&config, &Host::of(&config));
        let spec = DeviceSpec { slots: 16, priority: None, rotational: false, synchronous: false, inherited: false };
        assert!(space.slots.add_device(DeviceId(0), spec));
        assert!(space.slots.add_device(DeviceId(1), DeviceSpec { inherited: true, ..spec }));
        assert!(space.allocate_slot(3));
        assert_eq!(space.mem.counts().away(), 1);
        let slot = space.mem.slot(3).expect("it was just given one");
        space.slots.pin(slot, true);
        space.forget_swapped(3);
        assert_eq!((space.mem.counts().away(), space.slots.used), (0, 1), "it is kept, for another process");
        let inherited = space.slots.pool_slot(DeviceId(1), SlotIdx(5)).expect("the device has it");
        assert!(space.slots.adopt_slot(inherited, 4));
        space.give_slot(4, inherited);
        assert_eq!(space.mem.counts().away(), 1, "a page of this process is in a slot of its parent's");
        space.slots.close(DeviceId(1));
        assert_eq!(space.mem.counts().away(), 1, "a device that is drained has its pages still");
        space.audit();
    }
}
