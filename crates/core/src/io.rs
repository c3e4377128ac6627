//! Reads and writes in flight: a table of fixed size. No policy.

use crate::types::{IoId, PageRange};
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

    pub(crate) fn insert(&mut self, range: PageRange, write: bool) -> IoId {
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
}
