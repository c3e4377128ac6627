//! The compressed tier: a write-back cache in memory, in front of the swap devices.
//!
//! A page that leaves keeps the slot that the core gave it. When its write begins it is compressed into memory of ours and the
//! write is over; a read of its slot is a decompression. What does not compress goes to the disk as it would without a tier.
//! When the tier has all that it may have, its oldest pages are decompressed and written to their slots, in runs of neighbouring
//! slots; a page stays here until that write has succeeded, so nothing is lost if the disk fails or is full. The core knows of none
//! of this: it sees reads and writes that end soon.
//!
//! *Where it sits.* Below the core, keyed by device and slot, not as a device of its own: a page that moves on to the disk keeps
//! its slot, so that neither the core nor the page's owner has to be told, disk space for everything that is held is there from the
//! beginning, and every rule about slots (who owns one, who else reads it, when it may be rewritten) holds unchanged.
//!
//! *What is never held twice for long.* A page that was read from here and then mapped is dropped (`settle`): what the program does
//! with it is not seen, and when it leaves again it gets a new slot. Its slot then holds nothing (its checksum says so) unless the
//! disk has the page, too. A page that came from the disk and leaves unchanged is compressed like any other, and needs no write later.
//!
//! *What is freed.* Slots that nobody uses any more are found by asking the core about the oldest and a few others at each
//! turn (`sweep`); a slot that is written anew replaces what was here. In no case is old content read: the core orders reads of
//! slots that were written before only, and the checksum of the last write is compared.
//!
//! *How much.* [`TierShare`] says what share of the budget pays, from how long pages stay away and what disk, decompression and a
//! fault cost, as measured, and what a fork costs that has to wait until all is on the disk. Memory is granted before it is used: the core's
//! budget shrinks first, by what is free in it. Until the share is more than nothing for the first time, nothing is mapped for it but a few pages.
//!
//! Invariants: `place` of a slot names an entry exactly if that entry names the slot; an entry is dirty if the disk does not hold
//! its page; a slot under write here is not written by anyone else; backed memory never exceeds what is granted.

mod cells;
mod pack;
mod room;
mod writeback;

use std::collections::VecDeque;

use pagetide_core::config::Compress;
use pagetide_core::tier::{PRICES, Prices, RUN_PAGES, SAMPLE, SWEEP, TierShare};
use pagetide_core::types::{DeviceId, Nanos, PageIdx, SlotIdx};
use pagetide_sys::Errno;
use pagetide_sys::clock;
use pagetide_sys::mem::{ManagedRange, PAGE_BYTES};

use cells::{CELL_BYTES_MAX, Cell, Cells, SLAB_PAGES};
pub(crate) use pack::Packer;

/// Writes to the disk in flight.
const WRITES: usize = 4;
/// Memory for them.
pub(crate) const BUFFERS_BYTES: usize = WRITES * RUN_PAGES as usize * PAGE_BYTES;
/// Pages that were read from here and are not known to be mapped yet.
const LOADED: usize = 4096;
/// Of them, looked at in one turn.
const SETTLE: usize = 64;
/// Slots that come to hold nothing in one turn: more than are looked at.
const LOST: usize = 2048;
/// Entries looked at for one run.
const LOOKS: usize = 256;
const _: () = assert!(LOST > SETTLE + SWEEP + (WRITES + 1) * LOOKS);
/// Entries a page of the budget: a page that compresses better than this has to be held by the disk.
const ENTRIES_PER_PAGE: u64 = 8;
/// Fewer accepted pages than this in 10,000, and only one in `TRIES` is tried.
const POOR_BP: u32 = 1_000;
const TRIES: u32 = 16;
/// A fault without what it brings: the exception, the wake, the move in, and the move out of another page. Measured in both fault
/// modes: 20 to 25 us with unpacking and packing.
const FAULT_NS: u64 = 18_000;
/// After a failed write to the disk, none is tried for so long.
const AFTER_FAILURE_NS: Nanos = 1_000_000_000;

/// A word of `places` with this bit names an entry; without it, when its page left for the disk (0: not known).
const HELD: u32 = 1 << 31;
const NONE: u32 = u32::MAX;

/// The disk does not hold the page.
const DIRTY: u8 = 1;
/// Its write to the disk is in flight.
const WRITING: u8 = 2;
/// What is under write is not what the slot is to hold any more: the cell is new, or there is none (`GONE`).
const RENEWED: u8 = 4;
/// Nothing is held any more; the entry waits for its write to end.
const GONE: u8 = 8;
/// The entry stands for nothing.
const UNUSED: u8 = 16;
/// What is held cannot be decompressed: the disk is not to get it.
const DAMAGED: u8 = 32;

/// A page that is held.
#[derive(Clone, Copy, Debug)]
struct Entry {
    cell: Option<Cell>,
    slot: SlotIdx,
    /// When it left, by the clock of leaving pages.
    stamp: u32,
    newer: u32,
    older: u32,
    len: u16,
    device: DeviceId,
    flags: u8,
}

/// What became of a page that was offered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    /// It is held here.
    Held,
    /// The disk is to take it.
    Declined,
    /// The disk is to take it, when the write of what its slot held before has ended.
    Wait,
}

/// What a slot's page was found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Not here.
    No,
    /// Here. Whether it is what was written is for the checksum to say.
    Read,
}

/// A write to the disk under way.
#[derive(Clone, Copy, Debug)]
struct Write {
    token: u32,
    device: DeviceId,
    slot: SlotIdx,
    len: u32,
}

/// A run of pages in neighbouring slots that is to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) device: DeviceId,
    pub(crate) slot: SlotIdx,
    pub(crate) len: u32,
    /// Where the pages are.
    pub(crate) memory: ManagedRange,
    buffer: usize,
}

/// Counters, with the kernel's names and meanings.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TierStats {
    /// Pages read from here.
    pub(crate) zswpin: u64,
    /// Pages taken in.
    pub(crate) zswpout: u64,
    /// Of those, pages that the disk holds, too.
    pub(crate) clean: u64,
    /// Pages written to the disk from here.
    pub(crate) zswpwb: u64,
    /// Pages that did not compress well enough.
    pub(crate) reject_compress_poor: u64,
    /// Memory, at most.
    pub(crate) pool_pages_max: u64,
    /// Pages held, at most.
    pub(crate) stored_pages_max: u64,
}

/// What was measured since some looks ago.
#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    disk_pages: u64,
    disk_faults: u64,
    disk_wait_ns: u64,
    tier_pages: u64,
    tier_faults: u64,
    unpack_ns: u64,
    packed: u64,
    pack_ns: u64,
}

/// The tier.
#[derive(Debug)]
pub(crate) struct Tier {
    packer: Packer,
    cells: Cells,
    room: Box<[u8]>,
    /// None has room before the tier begins.
    entries: Vec<Entry>,
    entries_max: usize,
    /// Pages that the cells may have once it begins.
    pages_max: u32,
    /// Entries that are not used, linked by `newer`.
    unused: u32,
    oldest: u32,
    newest: u32,
    /// Where the flush is.
    cursor: u32,
    held: u32,
    dirty: u32,
    /// One word for each slot of each device.
    places: Vec<(DeviceId, Vec<u32>)>,
    loaded: VecDeque<(PageIdx, DeviceId, SlotIdx, u32)>,
    lost: Vec<(DeviceId, SlotIdx)>,
    /// Entries that the sweep has passed.
    swept: usize,
    buffers: ManagedRange,
    writes: [Option<Write>; WRITES],
    share: TierShare,
    /// Pages that have left so far; wraps.
    left: u32,
    budget: u32,
    granted: u32,
    target: u32,
    /// An offer was declined for want of memory.
    is_full: bool,
    /// Room is being made.
    is_evicting: bool,
    is_flushing: bool,
    /// Since when somebody waits for all to be on the disk.
    flush_since: Option<Nanos>,
    failed_at: Option<Nanos>,
    accepted_bp: u32,
    packed_bytes: u32,
    measured: Measured,
    prices: Prices,
    #[cfg(test)]
    fixed_share: Option<u32>,
    pub(crate) stats: TierStats,
}

impl Tier {
    /// Pages that are held now.
    pub(crate) const fn held_pages(&self) -> u32 {
        self.held
    }

    /// A tier for a budget of at most `budget_pages`, which begins as `how` says; `buffers` are `BUFFERS_BYTES`.
    pub(crate) fn new(packer: Packer, how: Compress, budget_pages: u64, buffers: ManagedRange) -> Result<Self, Errno> {
        let pages = u32::try_from(budget_pages).unwrap_or(u32::MAX);
        let entries_max = usize::try_from((budget_pages * ENTRIES_PER_PAGE).min(u64::from(HELD - 1))).expect("64 bit");
        Ok(Self {
            packer,
            cells: Cells::new(0)?,
            room: vec![0; Packer::room_bytes()].into_boxed_slice(),
            entries: Vec::new(),
            entries_max,
            pages_max: pages,
            unused: NONE,
            oldest: NONE,
            newest: NONE,
            cursor: NONE,
            held: 0,
            dirty: 0,
            places: Vec::with_capacity(8),
            loaded: VecDeque::with_capacity(LOADED),
            lost: Vec::with_capacity(LOST),
            swept: 0,
            buffers,
            writes: [None; WRITES],
            share: TierShare::new(how),
            left: 0,
            budget: 0,
            granted: 0,
            target: 0,
            is_full: false,
            is_evicting: false,
            is_flushing: false,
            flush_since: None,
            failed_at: None,
            accepted_bp: 5_000,
            packed_bytes: 2048,
            measured: Measured::default(),
            prices: PRICES,
            #[cfg(test)]
            fixed_share: None,
            stats: TierStats::default(),
        })
    }

    /// Map what it is to use. Without it there is no tier, ever.
    fn map_room(&mut self) {
        match Cells::new(self.pages_max) {
            Ok(cells) => {
                self.cells = cells;
                self.entries.reserve_exact(self.entries_max);
            }
            Err(_) => self.pages_max = 0,
        }
    }

    /// A device with so many slots is there.
    pub(crate) fn add_device(&mut self, device: DeviceId, slots: u32) {
        self.places.push((device, vec![0; slots as usize]));
    }

    /// No slot of the device is in use: forget it. False: a write to it is still under way.
    pub(crate) fn remove_device(&mut self, device: DeviceId) -> bool {
        let Some(at) = self.places.iter().position(|(id, _)| *id == device) else { return true };
        for slot in 0..self.places[at].1.len() {
            let word = self.places[at].1[slot];
            if word & HELD != 0 {
                self.remove(word & !HELD);
            }
        }
        if self.places[at].1.iter().any(|word| word & HELD != 0) {
            return false;
        }
        self.lost.retain(|(of, _)| *of != device);
        self.places.remove(at);
        true
    }

    /// True if nothing is held of these slots.
    pub(crate) fn is_clear_of(&self, device: DeviceId, slot: SlotIdx, len: u32) -> bool {
        let places = self.places.iter().find(|(id, _)| *id == device).map(|(_, words)| words);
        let words = places.and_then(|words| words.get(slot.0 as usize..(slot.0 + len) as usize));
        words.is_some_and(|words| words.iter().all(|word| word & HELD == 0))
    }

    /// Pages of the budget that are the tier's: what it has, or may take at once.
    pub(crate) const fn granted_pages(&self) -> u32 {
        self.granted
    }

    /// Pages of memory that it has.
    pub(crate) const fn backed_pages(&self) -> u32 {
        self.cells.backed_pages()
    }

    /// Where its memory is.
    pub(crate) const fn range(&self) -> ManagedRange {
        self.cells.range()
    }

    fn place(&mut self, device: DeviceId, slot: SlotIdx) -> &mut u32 {
        let places = self.places.iter_mut().find(|(id, _)| *id == device);
        let (_, words) = places.expect("the core names devices that were added");
        &mut words[slot.0 as usize]
    }

    fn entry_at(&self, device: DeviceId, slot: SlotIdx) -> Option<u32> {
        let (_, words) = self.places.iter().find(|(id, _)| *id == device)?;
        let word = *words.get(slot.0 as usize)?;
        (word & HELD != 0).then_some(word & !HELD)
    }

    const fn stamp(&self) -> u32 {
        // Never 0, which stands for none.
        (self.left & !HELD) | 1
    }

    const fn age(&self, stamp: u32) -> u32 {
        self.left.wrapping_sub(stamp) & !HELD
    }

    /// A page is to be written to its slot: take it, or leave it to the disk.
    pub(crate) fn offer(&mut self, device: DeviceId, slot: SlotIdx, page: &[u8]) -> Offer {
        self.left = self.left.wrapping_add(1);
        self.share.note_leave();
        let before = self.entry_at(device, slot);
        let cell = if self.is_worth_a_try() { self.pack(page, before) } else { None };
        let Some((cell, len)) = cell else {
            return self.decline(device, slot, before);
        };
        self.stats.zswpout += 1;
        match before {
            Some(index) => self.renew(index, cell, len),
            None => self.insert(device, slot, cell, len, DIRTY),
        }
        Offer::Held
    }

    /// A page that its slot on the disk holds as well is about to be dropped. True: it is to be offered with `keep_clean`.
    pub(crate) fn leaves_clean(&mut self, device: DeviceId, slot: SlotIdx) -> bool {
        self.left = self.left.wrapping_add(1);
        self.share.note_leave();
        *self.place(device, slot) = self.stamp();
        self.is_worth_a_try()
    }

    /// Hold a page that its slot on the disk holds as well, if it compresses.
    pub(crate) fn keep_clean(&mut self, device: DeviceId, slot: SlotIdx, page: &[u8]) {
        if let Some((cell, len)) = self.pack(page, None) {
            self.stats.zswpout += 1;
            self.stats.clean += 1;
            self.insert(device, slot, cell, len, 0);
        }
    }

    /// True if the slot's page was read from the disk and has not left since: if it leaves, it is to be offered.
    pub(crate) fn is_unknown(&mut self, device: DeviceId, slot: SlotIdx) -> bool {
        *self.place(device, slot) == 0
    }

    fn decline(&mut self, device: DeviceId, slot: SlotIdx, before: Option<u32>) -> Offer {
        if let Some(index) = before {
            if self.entries[index as usize].flags & WRITING != 0 {
                return Offer::Wait;
            }
            self.remove(index);
        }
        *self.place(device, slot) = self.stamp();
        Offer::Declined
    }

    fn is_worth_a_try(&self) -> bool {
        if self.target == 0 {
            return self.left.is_multiple_of(SAMPLE);
        }
        !self.is_flushing && !self.is_full && (self.accepted_bp >= POOR_BP || self.left.is_multiple_of(TRIES))
    }

    /// Compress, and find a cell. `before` is the entry whose place the page takes: it needs no other.
    fn pack(&mut self, page: &[u8], before: Option<u32>) -> Option<(Cell, u16)> {
        let since = clock::now();
        let packed = self.packer.pack(page, &mut self.room).filter(|&len| len <= CELL_BYTES_MAX);
        self.measured.pack_ns += clock::now().saturating_sub(since);
        self.measured.packed += 1;
        self.accepted_bp -= self.accepted_bp / 64;
        let Some(len) = packed else {
            self.stats.reject_compress_poor += 1;
            return None;
        };
        self.accepted_bp += 10_000 / 64;
        let bytes = u32::try_from((len + 4).next_multiple_of(64)).expect("less than a page");
        self.packed_bytes = self.packed_bytes - self.packed_bytes / 64 + (bytes + bytes / 16) / 64;
        let owner = before.unwrap_or_else(|| self.next_index());
        if self.target == 0 || owner as usize >= self.entries_max {
            return None;
        }
        let mut cell = self.cells.put(owner, &self.room[..len]);
        if cell.is_none() && self.cells.backed_pages() + SLAB_PAGES <= self.granted && self.cells.back() {
            cell = self.cells.put(owner, &self.room[..len]);
        }
        if cell.is_none() {
            self.squeeze();
            cell = self.cells.put(owner, &self.room[..len]);
        }
        self.is_full = cell.is_none();
        Some((cell?, u16::try_from(len).expect("less than a page")))
    }

    fn next_index(&self) -> u32 {
        if self.unused == NONE { u32::try_from(self.entries.len()).expect("31 bits") } else { self.unused }
    }

    fn insert(&mut self, device: DeviceId, slot: SlotIdx, cell: Cell, len: u16, flags: u8) {
        let index = self.next_index();
        let stamp = self.stamp();
        let entry = Entry { cell: Some(cell), slot, stamp, newer: NONE, older: NONE, len, device, flags };
        if self.unused == NONE {
            self.entries.push(entry);
        } else {
            self.unused = self.entries[index as usize].newer;
            self.entries[index as usize] = entry;
        }
        *self.place(device, slot) = HELD | index;
        self.held += 1;
        self.dirty += u32::from(flags & DIRTY);
        self.link_newest(index);
    }

    /// The slot of the entry is written anew.
    fn renew(&mut self, index: u32, cell: Cell, len: u16) {
        let stamp = self.stamp();
        let entry = &mut self.entries[index as usize];
        let (old, flags) = (entry.cell.replace(cell), entry.flags);
        (entry.len, entry.stamp) = (len, stamp);
        entry.flags = DIRTY | (flags & WRITING) | if flags & WRITING != 0 { RENEWED } else { 0 };
        self.dirty += u32::from(flags & DIRTY == 0);
        if let Some(old) = old {
            self.cells.free(old);
        }
        self.unlink(index);
        self.link_newest(index);
    }

    fn link_newest(&mut self, index: u32) {
        let before = self.newest;
        let entry = &mut self.entries[index as usize];
        (entry.older, entry.newer) = (before, NONE);
        if before == NONE {
            self.oldest = index;
        } else {
            self.entries[before as usize].newer = index;
        }
        self.newest = index;
    }

    fn unlink(&mut self, index: u32) {
        let Entry { newer, older, .. } = self.entries[index as usize];
        if self.cursor == index {
            self.cursor = newer;
        }
        if older == NONE {
            self.oldest = newer;
        } else {
            self.entries[older as usize].newer = newer;
        }
        if newer == NONE {
            self.newest = older;
        } else {
            self.entries[newer as usize].older = older;
        }
    }

    /// Hold the page of a slot that nobody uses no longer. The slot then holds nothing, as its checksum is to say: a page with the same
    /// content would be taken for written there.
    fn remove_unused(&mut self, index: u32) {
        let Entry { device, slot, flags, .. } = self.entries[index as usize];
        if flags & DIRTY != 0 {
            self.lost.push((device, slot));
        }
        self.remove(index);
    }

    /// Slots that hold nothing any more, since this was asked last.
    pub(crate) fn take_lost(&mut self, each: impl FnMut((DeviceId, SlotIdx))) {
        self.lost.drain(..).for_each(each);
    }

    /// Hold the page no longer. An entry whose write is in flight stays until that has ended: nothing else may be written to
    /// its slot before.
    fn remove(&mut self, index: u32) {
        let entry = &mut self.entries[index as usize];
        self.dirty -= u32::from(entry.flags & DIRTY);
        entry.flags &= !DIRTY;
        if let Some(cell) = entry.cell.take() {
            self.cells.free(cell);
        }
        if entry.flags & WRITING != 0 {
            entry.flags |= GONE | RENEWED;
            return;
        }
        let (device, slot, stamp) = (entry.device, entry.slot, entry.stamp);
        *self.place(device, slot) = stamp;
        self.unlink(index);
        let entry = &mut self.entries[index as usize];
        (entry.newer, entry.flags) = (self.unused, UNUSED);
        self.unused = index;
        self.held -= 1;
    }

    /// The page of a slot, into `page`. `reader` is the page that it becomes, and whether a fault waits for it; None: a copy for
    /// somebody else.
    pub(crate) fn read(
        &mut self,
        device: DeviceId,
        slot: SlotIdx,
        page: &mut [u8],
        reader: Option<(PageIdx, bool)>,
    ) -> Found {
        let Some(index) = self.entry_at(device, slot) else {
            if reader.is_some() {
                self.note_disk_read(device, slot);
            }
            return Found::No;
        };
        let Entry { cell, len, stamp, .. } = self.entries[index as usize];
        let Some(cell) = cell else { return Found::No };
        let since = clock::now();
        let packer = &mut self.packer;
        if !self.cells.get(cell, usize::from(len), |bytes| packer.unpack(bytes, page)) {
            // Not what was written, whatever that was: the checksum says so.
            page.fill(0);
        }
        let Some((reader, is_fault)) = reader else { return Found::Read };
        self.measured.unpack_ns += clock::now().saturating_sub(since);
        self.measured.tier_pages += 1;
        self.measured.tier_faults += u64::from(is_fault);
        self.stats.zswpin += 1;
        self.note_return(stamp);
        if self.loaded.len() < LOADED {
            self.loaded.push_back((reader, device, slot, stamp));
        }
        Found::Read
    }

    fn note_disk_read(&mut self, device: DeviceId, slot: SlotIdx) {
        self.measured.disk_pages += 1;
        let stamp = std::mem::take(self.place(device, slot));
        if stamp != 0 {
            self.note_return(stamp);
        }
    }

    fn note_return(&mut self, stamp: u32) {
        let age = self.age(stamp);
        self.share.note_return(self.budget, self.budget.saturating_sub(self.granted), age);
    }

    /// A fault waited so long for the disk.
    pub(crate) const fn note_disk_wait(&mut self, ns: Nanos) {
        self.measured.disk_faults += 1;
        self.measured.disk_wait_ns += ns;
    }

    /// What is here of the slot is of no use; the disk holds it.
    pub(crate) fn forget(&mut self, device: DeviceId, slot: SlotIdx) {
        if let Some(index) = self.entry_at(device, slot) {
            self.remove(index);
        }
    }

    /// In a world of few pages, whose time is not the clock's: have this share of the budget from the beginning.
    #[cfg(test)]
    pub(crate) const fn keep_to(&mut self, share: u32) {
        self.fixed_share = Some(share);
    }

    /// Change a byte of every page that is held.
    #[cfg(test)]
    pub(crate) fn damage(&mut self) -> u32 {
        let held: Vec<(Cell, u16)> =
            self.entries.iter().filter_map(|entry| entry.cell.map(|cell| (cell, entry.len))).collect();
        for &(cell, len) in &held {
            self.cells.damage(cell, usize::from(len) / 2);
        }
        u32::try_from(held.len()).expect("31 bits")
    }

    /// True if the slot's page is here, whether the disk holds it or not.
    pub(crate) fn holds(&self, device: DeviceId, slot: SlotIdx) -> bool {
        self.entry_at(device, slot).is_some()
    }

    /// The disk does not hold the slot's page: who writes it there must not be overtaken, who copies the disk misses it.
    pub(crate) fn is_only_here(&self, device: DeviceId, slot: SlotIdx) -> bool {
        self.entry_at(device, slot).is_some_and(|index| self.entries[index as usize].flags & DIRTY != 0)
    }
}
