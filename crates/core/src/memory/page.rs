//! The page table: what the core knows of each page, in 16 bytes.
//!
//! Not a list (see `lru`) and not a policy. The bits are known in this folder only: everything else asks [`Flags`], and changes
//! a page by the named steps of `transitions` and `marks`. A page without a word set costs nothing: the table is one zeroed
//! allocation, and all-zero means *untouched*.
//!
//! ```text
//! word 0  flags, flight, list          word 1, 2  LRU links (with a frame) or the shadow entry (without)
//! word 3  slot, if SLOT is set
//! ```
//!
//! What may become of which state is the table in `transitions`, where the *flight* is explained, too.

use crate::types::PageIdx;
use alloc::{vec, vec::Vec};

/// No page: end of a list.
pub(crate) const NIL: u32 = u32::MAX;

pub(super) const MAPPED: u32 = 1 << 0;
pub(super) const YOUNG: u32 = 1 << 1;
pub(super) const DIRTY: u32 = 1 << 2;
pub(super) const FRAME: u32 = 1 << 3;
pub(super) const SLOT: u32 = 1 << 4;
pub(super) const REFERENCED: u32 = 1 << 5;
pub(super) const ACTIVE: u32 = 1 << 6;
pub(super) const WORKINGSET: u32 = 1 << 7;
pub(super) const READAHEAD: u32 = 1 << 8;
/// To be moved to the tail, or freed, when its write ends.
pub(super) const RECLAIM: u32 = 1 << 9;
/// Locked by the program (mlock), or found immovable.
pub(super) const UNEVICTABLE: u32 = 1 << 10;
pub(super) const FILE: u32 = 1 << 11;
pub(super) const POISON: u32 = 1 << 12;
/// Its content was discarded while an effect was in flight, or before its frame could be dropped.
pub(super) const DISCARD: u32 = 1 << 13;
/// Faults wait for the flight to end.
pub(super) const WAITED: u32 = 1 << 14;
/// On a list.
pub(super) const LRU: u32 = 1 << 15;
/// In the batch of pages not yet on a list.
pub(super) const PCP: u32 = 1 << 16;
/// Words 1 and 2 hold a shadow entry.
pub(super) const SHADOW: u32 = 1 << 17;
/// In the batch of pages to be rotated.
pub(super) const ROTATE: u32 = 1 << 18;
/// Its frame is freed as soon as its write is done.
pub(super) const FREE_DONE: u32 = 1 << 19;
/// The unmap in flight is the first step of a page-out (else a sample of its use).
pub(super) const PAGEOUT: u32 = 1 << 20;
/// A reclaim run waits for its write.
pub(super) const JOB_WAIT: u32 = 1 << 21;
/// The map in flight asks for write access.
pub(super) const MAP_WRITE: u32 = 1 << 25;
/// The program may write it (blind hosts may map for reading only).
pub(super) const WRITABLE: u32 = 1 << 26;
/// Last unmapped page of a mapped window: its fault starts the next one.
pub(super) const MARKER: u32 = 1 << 27;

/// Could not be moved; on the unevictable list for a while.
pub(super) const BUSY: u32 = 1 << 31;

/// Of a poisoned page: the host has still to be told.
pub(super) const POISON_DUE: u32 = READAHEAD;
/// Of a file's page: its `DIRTY` is counted. (Blind hosts use the bit for maps in flight; they have no files.)
pub(super) const COUNTED: u32 = MAP_WRITE;
/// Of a file's page: it is of a program that is run. (Only blind hosts unmap for page-out; they have no files.)
pub(super) const EXECUTABLE: u32 = PAGEOUT;

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

/// What is known of a page at one moment: its bits, asked by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flags(u32);

macro_rules! questions {
    ($($name:ident: $bit:ident),+ $(,)?) => {
        impl Flags { $(#[inline] pub(crate) const fn $name(self) -> bool { self.0 & $bit != 0 })+ }
    };
}

questions! {
    is_mapped: MAPPED,
    is_young: YOUNG,
    is_dirty: DIRTY,
    has_frame: FRAME,
    has_slot: SLOT,
    is_referenced: REFERENCED,
    is_active: ACTIVE,
    is_workingset: WORKINGSET,
    is_readahead: READAHEAD,
    is_reclaim: RECLAIM,
    is_unevictable: UNEVICTABLE,
    is_file: FILE,
    is_poisoned: POISON,
    is_discarded: DISCARD,
    is_waited: WAITED,
    is_in_batch: PCP,
    is_rotating: ROTATE,
    frees_when_written: FREE_DONE,
    is_writable: WRITABLE,
    is_marker: MARKER,
    is_busy: BUSY,
    in_flight: FLIGHT_MASK,
}

impl Flags {
    #[inline]
    pub(super) const fn of(word: u32) -> Self {
        Self(word)
    }

    /// Nothing at all is known of it.
    pub(crate) const fn is_blank(self) -> bool {
        self.0 == 0
    }

    /// Nothing is known but that it is locked.
    pub(crate) const fn is_blank_but_locked(self) -> bool {
        self.0 & !UNEVICTABLE == 0
    }

    /// Of a file's page: it is of a program that is run.
    pub(crate) const fn is_executable(self) -> bool {
        self.0 & (FILE | EXECUTABLE) == FILE | EXECUTABLE
    }

    /// The unmap in flight is the first step of a page-out.
    pub(crate) const fn is_leaving(self) -> bool {
        self.0 & (FILE | PAGEOUT) == PAGEOUT
    }

    /// In the swap cache: it has a frame and a slot, and is not mapped.
    #[inline]
    pub(crate) const fn is_swap_cached(self) -> bool {
        self.0 & (FRAME | SLOT | MAPPED) == FRAME | SLOT
    }

    /// Has a frame, and is not mapped.
    #[inline]
    pub(crate) const fn is_cached(self) -> bool {
        self.0 & (FRAME | MAPPED) == FRAME
    }

    #[inline]
    pub(crate) fn flight(self) -> Flight {
        match (self.0 & FLIGHT_MASK) >> FLIGHT_SHIFT {
            0 => Flight::None,
            1 => Flight::Reading,
            2 => Flight::Writing,
            3 => Flight::Mapping,
            4 => Flight::Unmapping,
            n => unreachable!("I2: flight {n}"),
        }
    }

    #[inline]
    pub(crate) const fn state(self) -> PageState {
        if self.0 & POISON != 0 {
            PageState::Poisoned
        } else if self.0 & MAPPED != 0 {
            PageState::Mapped
        } else if self.0 & FRAME != 0 {
            PageState::Cached
        } else if self.0 & SLOT != 0 {
            PageState::Swapped
        } else {
            PageState::Untouched
        }
    }
}

type PageMeta = [u32; 4];
const _: () = assert!(size_of::<PageMeta>() <= 16, "the page table costs at most 16 bytes a page");

/// The flat table of all pages.
#[derive(Debug)]
pub(super) struct PageTable {
    meta: Vec<PageMeta>,
}

impl PageTable {
    pub(super) fn new(pages: u32) -> Self {
        Self { meta: vec![[0u32; 4]; pages as usize] }
    }

    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.meta.len()).expect("built from a u32")
    }

    #[inline]
    pub(super) fn word(&self, p: u32) -> u32 {
        self.meta[p as usize][0]
    }

    #[inline]
    pub(super) fn word_mut(&mut self, p: u32) -> &mut u32 {
        &mut self.meta[p as usize][0]
    }

    #[inline]
    pub(super) fn is(&self, p: u32, bits: u32) -> bool {
        self.word(p) & bits != 0
    }

    #[inline]
    pub(super) fn set(&mut self, p: u32, bits: u32) {
        *self.word_mut(p) |= bits;
    }

    #[inline]
    pub(super) fn clear(&mut self, p: u32, bits: u32) {
        *self.word_mut(p) &= !bits;
    }

    /// Clear `bits` and tell whether one was set.
    pub(super) fn take(&mut self, p: u32, bits: u32) -> bool {
        let was = self.is(p, bits);
        self.clear(p, bits);
        was
    }

    #[inline]
    pub(super) fn at(&self, p: u32) -> Flags {
        Flags::of(self.word(p))
    }

    pub(super) fn set_flight(&mut self, p: u32, flight: Flight) {
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

    pub(super) fn list(&self, p: u32) -> usize {
        ((self.word(p) & LIST_MASK) >> LIST_SHIFT) as usize
    }

    pub(super) fn set_list(&mut self, p: u32, list: usize) {
        let code = u32::try_from(list).expect("a list number");
        *self.word_mut(p) = (self.word(p) & !LIST_MASK) | (code << LIST_SHIFT);
    }

    pub(super) fn prev(&self, p: u32) -> u32 {
        self.meta[p as usize][1]
    }

    /// The link, or whatever else is kept there, of whatever number: for looks that decide nothing.
    pub(super) fn peek_prev(&self, p: u32) -> u32 {
        self.meta.get(p as usize).map_or(NIL, |meta| meta[1])
    }

    pub(super) fn next(&self, p: u32) -> u32 {
        self.meta[p as usize][2]
    }

    pub(super) fn set_prev(&mut self, p: u32, to: u32) {
        self.meta[p as usize][1] = to;
    }

    pub(super) fn set_next(&mut self, p: u32, to: u32) {
        self.meta[p as usize][2] = to;
    }

    /// The slot, as an index of the slot pool.
    #[inline]
    pub(super) fn slot(&self, p: u32) -> Option<u32> {
        if self.is(p, SLOT) { Some(self.meta[p as usize][3]) } else { None }
    }

    /// Where the slot is kept; it is the page's while `SLOT` is set.
    pub(super) fn put_slot(&mut self, p: u32, slot: u32) {
        self.meta[p as usize][3] = slot;
    }

    pub(super) fn set_shadow(&mut self, p: u32, shadow: u64) {
        debug_assert!(!self.is(p, LRU | PCP | FRAME));
        self.set(p, SHADOW);
        let bytes = shadow.to_le_bytes();
        let meta = &mut self.meta[p as usize];
        meta[1] = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        meta[2] = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    }

    pub(super) fn take_shadow(&mut self, p: u32) -> Option<u64> {
        if !self.take(p, SHADOW) {
            return None;
        }
        let meta = &self.meta[p as usize];
        Some(u64::from(meta[1]) | (u64::from(meta[2]) << 32))
    }

    /// What stays of a page of which all else is forgotten: that faults wait, and that it is locked.
    pub(super) fn reset_mask(&self, p: u32) -> u32 {
        debug_assert!(!self.is(p, LRU | PCP | SLOT | FLIGHT_MASK));
        WAITED | UNEVICTABLE
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
