//! Slots that are backed with disk space before they are needed, and those that are given back because others need the room.
//!
//! What one process of a run has of a place, no other can have. Where there is room for all, much is kept ahead: slots that lie together
//! make large writes. As soon as a process finds no more, the supervisor says to all that the place is short of room
//! (`supervise::drains`): then each keeps just what its next writes need, and gives whole pieces back in which nothing is.
//!
//! Invariant: a piece is given back only while the core says that nobody has a slot of it, which is when it may write there anew: no page,
//! no child, no order in flight. Nor does a request or the compressed tier name it.

use pagetide_core::Core;
use pagetide_core::event::Event;
use pagetide_core::types::{DeviceId, SlotIdx};
use pagetide_kernel::AddressSpace;

use super::LiveMachine;
use crate::session::command::PlaceId;
use crate::store::Store;

/// Slots kept backed ahead of need.
pub(crate) const SLOTS_AHEAD: u32 = 4096;
/// The same on a place that is short of room: 1 MiB.
const SLOTS_NEAR: u32 = 256;

/// Where the search for what can be given back is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Search {
    store: usize,
    /// Everything from this slot on was looked at; 0: nothing.
    end: u32,
}

impl<K: AddressSpace> LiveMachine<K> {
    /// Back more slots of a device, where less than a third of them is free, which is what lies together in runs long enough for
    /// large writes, or fewer than `leaving` pages need at once. Devices of a higher rank are filled before others are grown; equal
    /// ones grow alike. What the core is to know, if there are more.
    pub(crate) fn grow_if_needed(&mut self, core: &Core, leaving: u32, floor_bytes: u64) -> Option<Event> {
        let now = self.space.now();
        let mut above = i32::MAX;
        // Nothing is allocated: a thread that faults may be here.
        loop {
            let is_open = |(device, store): &&(DeviceId, Store)| store.is_open() && !core.is_device_closed(*device);
            let open = || self.stores.iter().filter(is_open);
            let rank = open().map(|(_, store)| store.rank()).filter(|&rank| rank < above).max()?;
            let (mut backed, mut used) = (0_u32, 0_u32);
            for (device, store) in open().filter(|(_, store)| store.rank() == rank) {
                backed = backed.saturating_add(store.slots_backed());
                used = used.saturating_add(core.device_used(*device).unwrap_or(0));
            }
            let free = backed.saturating_sub(used);
            let is_near = free < leaving + SLOTS_NEAR;
            if !is_near {
                let short = self.stores.iter_mut().filter(|(_, store)| store.rank() == rank && store.is_short());
                short.for_each(|(_, store)| store.note_enough());
            }
            if free >= (backed / 3).max(leaving + SLOTS_AHEAD) {
                return None;
            }
            let may_grow = |entry: &&mut (DeviceId, Store)| {
                let store = &entry.1;
                is_open(&&**entry) && store.rank() == rank && store.can_grow(now) && (is_near || !store.is_short())
            };
            while let Some((device, store)) =
                self.stores.iter_mut().filter(may_grow).min_by_key(|(_, store)| store.slots_backed())
            {
                let end = store.slots_end();
                // One that cannot is left alone for a while.
                if let Ok((slot, len)) = store.grow(floor_bytes, now) {
                    let device = *device;
                    return Some(if slot.0 < end {
                        Event::SlotsBacked { device, slot, len, is_backed: true }
                    } else {
                        Event::DeviceGrown { device, slots: slot.0 + len }
                    });
                }
            }
            above = rank;
        }
    }

    /// Places that are short of room: a bit for each, by its number. True if it is one more than before.
    pub(crate) fn set_short_places(&mut self, places: u64) -> bool {
        let mut is_new = false;
        for (_, store) in &mut self.stores {
            let is_short = places & short_bit(store.place()) != 0;
            is_new |= is_short && !store.is_short();
            store.set_short(is_short);
        }
        is_new
    }

    /// Give back one piece of a place that is short, beyond what `leaving` pages need. What the core is to know at once; None: there is no more.
    pub(crate) fn give_back_next(&mut self, core: &Core, leaving: u32, search: &mut Search) -> Option<Event> {
        while let Some((device, store)) = self.stores.get_mut(search.store) {
            let device = *device;
            let free = store.slots_backed().saturating_sub(core.device_used(device).unwrap_or(0));
            let is_due = store.is_short()
                && store.is_open()
                && !core.is_device_closed(device)
                && free >= leaving + SLOTS_NEAR + store.piece_slots();
            let len = store.piece_slots();
            let is_clear = |&slot: &SlotIdx| {
                core.are_slots_unused(device, slot, len)
                    && !self.requests.name_slots(device, slot, len)
                    && self.tier.as_deref().is_none_or(|tier| tier.is_clear_of(device, slot, len))
            };
            let end = if search.end == 0 { u32::MAX } else { search.end };
            let found = if is_due { store.pieces_below(end).find(is_clear) } else { None };
            let Some(slot) = found else {
                *search = Search { store: search.store + 1, end: 0 };
                continue;
            };
            search.end = slot.0;
            if store.give_back(slot) {
                return Some(Event::SlotsBacked { device, slot, len, is_backed: false });
            }
        }
        None
    }

    /// Slots that are backed, of those that there can be, where pages may go.
    pub(crate) fn backed_slots(&self) -> [u64; 2] {
        let open = self.stores.iter().filter(|(_, store)| store.is_open());
        open.fold([0; 2], |[backed, most], (_, store)| {
            [backed + u64::from(store.slots_backed()), most + u64::from(store.slots_max())]
        })
    }
}

/// The bit that says that this place is short of room. Numbers that share one are short together.
pub(crate) const fn short_bit(place: PlaceId) -> u64 {
    1 << (place.0 % u64::BITS)
}
