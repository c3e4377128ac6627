//! Reads and writes in flight: a table of fixed size, and the orders that begin them. No policy.

use crate::effect::{Effect, Effects, RANGE_MAX};
use crate::types::{DeviceId, IoId, PageIdx, PageRange, SlotIdx};
use alloc::vec::Vec;

const NONE: u32 = u32::MAX;

/// Reads and writes in flight at most.
const IO_MAX: u32 = 1 << 14;

/// A read or write in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Io {
    pub(crate) range: PageRange,
    /// Pages not answered for yet.
    pub(crate) left: u32,
    pub(crate) write: bool,
    generation: u32,
    next_free: u32,
}

#[derive(Debug)]
pub(crate) struct IoTable {
    entries: Vec<Io>,
    free: u32,
    live: u32,
}

impl IoTable {
    pub(crate) fn new() -> Self {
        Self { entries: Vec::with_capacity(IO_MAX as usize), free: NONE, live: 0 }
    }

    pub(crate) const fn live(&self) -> u32 {
        self.live
    }

    pub(crate) const fn is_full(&self) -> bool {
        self.live >= IO_MAX
    }

    fn insert(&mut self, range: PageRange, write: bool) -> IoId {
        assert!(!self.is_full(), "checked by the caller");
        self.live += 1;
        let at = if self.free == NONE {
            let at = u32::try_from(self.entries.len()).expect("at most IO_MAX");
            self.entries.push(Io { range, left: range.len, write, generation: 0, next_free: NONE });
            at
        } else {
            let at = self.free;
            let entry = &mut self.entries[at as usize];
            self.free = entry.next_free;
            let generation = (entry.generation + 1) & 0xffff;
            *entry = Io { range, left: range.len, write, generation, next_free: NONE };
            at
        };
        IoId(at | (self.entries[at as usize].generation << 14))
    }

    pub(crate) fn get_mut(&mut self, id: IoId) -> Option<&mut Io> {
        let entry = self.entries.get_mut((id.0 & (IO_MAX - 1)) as usize)?;
        (entry.left > 0 && entry.generation == id.0 >> 14).then_some(entry)
    }

    /// `n` of its pages are answered for.
    pub(crate) fn answer(&mut self, id: IoId, n: u32) {
        let at = id.0 & (IO_MAX - 1);
        let free = self.free;
        let entry = self.get_mut(id).expect("checked by the caller");
        entry.left -= n;
        if entry.left == 0 {
            entry.next_free = free;
            self.free = at;
            self.live -= 1;
        }
    }

    /// Order a write, together with its neighbour if that was ordered just now.
    pub(crate) fn write(&mut self, p: u32, device: DeviceId, place: SlotIdx, out: &mut Effects) {
        for old in out.recent_mut() {
            if old.touches(p) {
                // Not before the unmap: hosts that execute in order rely on it.
                break;
            }
            if let Effect::Write { io, device: d, slot: s, range } = old {
                let next = range.end().0 == p && s.0 + range.len == place.0;
                if *d == device && next && range.len < RANGE_MAX {
                    range.len += 1;
                    let io = *io;
                    let entry = self.get_mut(io).expect("it was made for this event");
                    entry.range.len += 1;
                    entry.left += 1;
                    return;
                }
            }
        }
        let range = PageRange::one(PageIdx(p));
        let io = self.insert(range, true);
        out.push(Effect::Write { io, device, slot: place, range });
    }

    /// Order a read, together with its neighbour if that was ordered just now.
    pub(crate) fn read(&mut self, p: u32, device: DeviceId, place: SlotIdx, demand: bool, out: &mut Effects) {
        for old in out.recent_mut() {
            if old.touches(p) {
                break;
            }
            if let Effect::Read { io, device: d, slot: s, range, demand: wanted } = old {
                if *d != device || range.len >= RANGE_MAX {
                    continue;
                }
                if range.end().0 == p && s.0 + range.len == place.0 {
                    range.len += 1;
                } else if range.first.0 == p + 1 && s.0 == place.0 + 1 {
                    range.first = PageIdx(p);
                    *s = place;
                    range.len += 1;
                } else {
                    continue;
                }
                *wanted |= demand;
                let (io, range) = (*io, *range);
                let entry = self.get_mut(io).expect("it was made for this event");
                entry.range = range;
                entry.left += 1;
                return;
            }
        }
        let range = PageRange::one(PageIdx(p));
        let io = self.insert(range, false);
        out.push(Effect::Read { io, device, slot: place, range, demand });
    }
}
