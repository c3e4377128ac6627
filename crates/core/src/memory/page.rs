//! The page table: what the core knows of each page, in 16 bytes.
//!
//! Not a list (see `lru`) and not a policy. A page without a word set costs nothing: the table is one zeroed
//! allocation, and all-zero means *untouched*.
//!
//! ```text
//! word 0  flags, flight, list          word 1, 2  LRU links (with a frame) or the shadow entry (without)
//! word 3  slot, if SLOT is set
//! ```
//!
//! | state | FRAME | MAPPED | SLOT | becomes |
//! | --- | --- | --- | --- | --- |
//! | untouched | 0 | 0 | 0 | mapped (first touch, adoption), swapped (inherited) |
//! | mapped | 1 | 1 | 0/1 | cached (unmap), untouched (discard) |
//! | cached | 1 | 0 | 0/1 | mapped (fault), swapped (write done, or clean), untouched (discard, zero) |
//! | swapped | 0 | 0 | 1 | cached (read), untouched (discard) |
//! | poisoned | 0 | 0 | 0/1 | untouched (discard) |
//!
//! Over each of them lies the *flight*: reading and mapping (towards cached, mapped), writing and unmapping (away).
//! A page in flight changes its state only when the flight ends (I2).

use crate::types::PageIdx;
use alloc::{vec, vec::Vec};

/// No page: end of a list.
pub(crate) const NIL: u32 = u32::MAX;

pub(crate) const MAPPED: u32 = 1 << 0;
pub(crate) const YOUNG: u32 = 1 << 1;
pub(crate) const DIRTY: u32 = 1 << 2;
pub(crate) const FRAME: u32 = 1 << 3;
pub(crate) const SLOT: u32 = 1 << 4;
pub(crate) const REFERENCED: u32 = 1 << 5;
pub(crate) const ACTIVE: u32 = 1 << 6;
pub(crate) const WORKINGSET: u32 = 1 << 7;
pub(crate) const READAHEAD: u32 = 1 << 8;
/// To be moved to the tail, or freed, when its write ends.
pub(crate) const RECLAIM: u32 = 1 << 9;
/// Locked by the program (mlock), or found immovable.
pub(crate) const UNEVICTABLE: u32 = 1 << 10;
pub(crate) const FILE: u32 = 1 << 11;
pub(crate) const POISON: u32 = 1 << 12;
/// Its content was discarded while an effect was in flight, or before its frame could be dropped.
pub(crate) const DISCARD: u32 = 1 << 13;
/// Faults wait for the flight to end.
pub(crate) const WAITED: u32 = 1 << 14;
/// On a list.
pub(crate) const LRU: u32 = 1 << 15;
/// In the batch of pages not yet on a list.
pub(crate) const PCP: u32 = 1 << 16;
/// Words 1 and 2 hold a shadow entry.
pub(crate) const SHADOW: u32 = 1 << 17;
/// In the batch of pages to be rotated.
pub(crate) const ROTATE: u32 = 1 << 18;
/// Its frame is freed as soon as its write is done.
pub(crate) const FREE_DONE: u32 = 1 << 19;
/// The unmap in flight is the first step of a page-out (else a sample of its use).
pub(crate) const PAGEOUT: u32 = 1 << 20;
/// A reclaim run waits for its write.
pub(crate) const JOB_WAIT: u32 = 1 << 21;
/// The map in flight asks for write access.
pub(crate) const MAP_WRITE: u32 = 1 << 25;
/// The program may write it (blind hosts may map for reading only).
pub(crate) const WRITABLE: u32 = 1 << 26;
/// Last unmapped page of a mapped window: its fault starts the next one.
pub(crate) const MARKER: u32 = 1 << 27;

/// Could not be moved; on the unevictable list for a while.
pub(crate) const BUSY: u32 = 1 << 31;

/// Of a poisoned page: the host has still to be told.
pub(crate) const POISON_DUE: u32 = READAHEAD;

const FLIGHT_SHIFT: u32 = 22;
const FLIGHT_MASK: u32 = 7 << FLIGHT_SHIFT;
const LIST_SHIFT: u32 = 28;
const LIST_MASK: u32 = 7 << LIST_SHIFT;

/// The effect that is in flight for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Flight {
    /// None.
    None,
    /// Its slot is being read.
    Reading,
    /// Its frame is being written.
    Writing,
    /// It is being mapped (blind hosts).
    Mapping,
    /// It is being unmapped (blind hosts).
    Unmapping,
}

/// The state of a page, without its flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PageState {
    /// No content but zeroes, no frame.
    Untouched,
    /// The program can use it.
    Mapped,
    /// It has a frame, but is not mapped: swap cache, or under observation.
    Cached,
    /// Its content is in a slot only.
    Swapped,
    /// Its content is lost.
    Poisoned,
}

type PageMeta = [u32; 4];
const _: () = assert!(size_of::<PageMeta>() <= 16, "the page table costs at most 16 bytes a page");

/// The flat table of all pages.
#[derive(Debug)]
pub(crate) struct PageTable {
    meta: Vec<PageMeta>,
}

impl PageTable {
    pub(crate) fn new(pages: u32) -> Self {
        Self { meta: vec![[0u32; 4]; pages as usize] }
    }

    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.meta.len()).expect("built from a u32")
    }

    #[inline]
    pub(crate) fn word(&self, p: u32) -> u32 {
        self.meta[p as usize][0]
    }

    #[inline]
    pub(crate) fn word_mut(&mut self, p: u32) -> &mut u32 {
        &mut self.meta[p as usize][0]
    }

    #[inline]
    pub(crate) fn is(&self, p: u32, bits: u32) -> bool {
        self.word(p) & bits != 0
    }

    #[inline]
    pub(crate) fn set(&mut self, p: u32, bits: u32) {
        *self.word_mut(p) |= bits;
    }

    #[inline]
    pub(crate) fn clear(&mut self, p: u32, bits: u32) {
        *self.word_mut(p) &= !bits;
    }

    /// Clear `bits` and tell whether one was set.
    pub(crate) fn take(&mut self, p: u32, bits: u32) -> bool {
        let was = self.is(p, bits);
        self.clear(p, bits);
        was
    }

    #[inline]
    pub(crate) fn flight(&self, p: u32) -> Flight {
        match (self.word(p) & FLIGHT_MASK) >> FLIGHT_SHIFT {
            0 => Flight::None,
            1 => Flight::Reading,
            2 => Flight::Writing,
            3 => Flight::Mapping,
            4 => Flight::Unmapping,
            n => unreachable!("I2: flight {n}"),
        }
    }

    pub(crate) fn in_flight(&self, p: u32) -> bool {
        self.is(p, FLIGHT_MASK)
    }

    pub(crate) fn set_flight(&mut self, p: u32, flight: Flight) {
        let code = match flight {
            Flight::None => 0,
            Flight::Reading => 1,
            Flight::Writing => 2,
            Flight::Mapping => 3,
            Flight::Unmapping => 4,
        };
        let was = self.word(p) & FLIGHT_MASK;
        assert!(code == 0 || was == 0, "I2: page {p} has an effect in flight");
        *self.word_mut(p) = (self.word(p) & !FLIGHT_MASK) | (code << FLIGHT_SHIFT);
    }

    pub(crate) fn list(&self, p: u32) -> usize {
        ((self.word(p) & LIST_MASK) >> LIST_SHIFT) as usize
    }

    pub(crate) fn set_list(&mut self, p: u32, list: usize) {
        let code = u32::try_from(list).expect("a list number");
        *self.word_mut(p) = (self.word(p) & !LIST_MASK) | (code << LIST_SHIFT);
    }

    pub(crate) fn prev(&self, p: u32) -> u32 {
        self.meta[p as usize][1]
    }

    /// The link, or whatever else is kept there, of whatever number: for looks that decide nothing.
    pub(crate) fn peek_prev(&self, p: u32) -> u32 {
        self.meta.get(p as usize).map_or(NIL, |meta| meta[1])
    }

    pub(crate) fn next(&self, p: u32) -> u32 {
        self.meta[p as usize][2]
    }

    pub(crate) fn set_prev(&mut self, p: u32, to: u32) {
        self.meta[p as usize][1] = to;
    }

    pub(crate) fn set_next(&mut self, p: u32, to: u32) {
        self.meta[p as usize][2] = to;
    }

    /// The slot, as an index of the slot pool.
    #[inline]
    pub(crate) fn slot(&self, p: u32) -> Option<u32> {
        if self.is(p, SLOT) { Some(self.meta[p as usize][3]) } else { None }
    }

    pub(crate) fn set_slot(&mut self, p: u32, slot: u32) {
        self.set(p, SLOT);
        self.meta[p as usize][3] = slot;
    }

    pub(crate) fn take_slot(&mut self, p: u32) -> Option<u32> {
        let slot = self.slot(p);
        self.clear(p, SLOT);
        slot
    }

    pub(crate) fn set_shadow(&mut self, p: u32, shadow: u64) {
        debug_assert!(!self.is(p, LRU | PCP | FRAME));
        self.set(p, SHADOW);
        let bytes = shadow.to_le_bytes();
        let meta = &mut self.meta[p as usize];
        meta[1] = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        meta[2] = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    }

    pub(crate) fn take_shadow(&mut self, p: u32) -> Option<u64> {
        if !self.take(p, SHADOW) {
            return None;
        }
        let meta = &self.meta[p as usize];
        Some(u64::from(meta[1]) | (u64::from(meta[2]) << 32))
    }

    pub(crate) fn state(&self, p: u32) -> PageState {
        let word = self.word(p);
        if word & POISON != 0 {
            PageState::Poisoned
        } else if word & MAPPED != 0 {
            PageState::Mapped
        } else if word & FRAME != 0 {
            PageState::Cached
        } else if word & SLOT != 0 {
            PageState::Swapped
        } else {
            PageState::Untouched
        }
    }

    /// Forget everything but the fact that faults wait.
    pub(crate) fn reset(&mut self, p: u32) {
        debug_assert!(!self.is(p, LRU | PCP | SLOT | FLIGHT_MASK));
        *self.word_mut(p) &= WAITED | UNEVICTABLE;
    }
}

/// What a host may know of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageView {
    /// The page.
    pub page: PageIdx,
    /// Its state.
    pub state: PageState,
    /// The effect in flight.
    pub flight: Flight,
    /// The slot it owns, if any.
    pub slot: Option<(crate::types::DeviceId, crate::types::SlotIdx)>,
    /// It may differ from its slot.
    pub dirty: bool,
    /// It was used since the core looked last.
    pub young: bool,
    /// The program has discarded its content; what is in flight, in its frame or slot is to be dropped.
    pub discarded: bool,
}
