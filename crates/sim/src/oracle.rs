//! What every page must hold, and what every frame and slot does hold: memory as versions.
//!
//! A store gives its page a version that no store had before; frames and slots carry versions as real ones carry bytes.
//! A load whose frame does not hold the version of the last store is wrong content, whoever lost or mixed it up.

use pagetide_core::types::{PageIdx, PageRange};

/// A version: 0 is a page of zeroes.
type Version = u32;

/// No frame is there: nobody may load it.
const GONE: Version = u32::MAX;
/// Half old, half new, or never written: what a failed or overtaken write leaves.
const TORN: Version = u32::MAX - 1;
/// The content was lost and the program told so.
const POISONED: Version = u32::MAX - 2;
/// A slot whose write is still under way.
const UNDER_WAY: Version = 1 << 31;
/// Versions of stores: 1..=this, then from 1 again.
const VERSION_MAX: Version = UNDER_WAY - 4;

/// A load that saw what it must not see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongContent {
    /// The page.
    pub page: PageIdx,
    /// Version of the last store.
    pub expected: u32,
    /// What was there; the highest numbers are no versions but: gone, torn, poisoned.
    pub found: u32,
}

#[derive(Clone, Copy, Debug)]
struct Cell {
    expected: Version,
    frame: Version,
}

/// The versions of all pages, frames and slots.
#[derive(Debug, Default)]
pub struct Oracle {
    pages: Vec<Cell>,
    slots: Vec<Vec<Version>>,
    last: Version,
}

impl Oracle {
    /// Pages 0..`pages`, untouched.
    pub fn new(pages: u32) -> Self {
        Self { pages: vec![Cell { expected: 0, frame: GONE }; pages as usize], slots: Vec::new(), last: 0 }
    }

    /// One more device; its number.
    pub fn add_device(&mut self, slots: u32) -> usize {
        self.slots.push(vec![TORN; slots as usize]);
        self.slots.len() - 1
    }

    fn next_version(&mut self) -> Version {
        self.last = if self.last >= VERSION_MAX { 1 } else { self.last + 1 };
        self.last
    }

    /// The pages of a file, and its device: each page has a content that no other has.
    pub fn fill_file(&mut self, range: PageRange, device: usize) {
        for (page, slot) in range.pages().zip(0..) {
            let version = self.next_version();
            self.pages[page.0 as usize].expected = version;
            self.slots[device][usize::try_from(slot).expect("small")] = version;
        }
    }

    /// The pages of a file from `store`'s slot on are cut off: what is there now are zeroes.
    pub fn empty_file(&mut self, range: PageRange, (device, first): (usize, u32)) {
        for (page, slot) in range.pages().zip(first..) {
            self.pages[page.0 as usize] = Cell { expected: 0, frame: GONE };
            self.slots[device][slot as usize] = 0;
        }
    }

    /// A store of the whole page, whatever it held.
    pub fn overwrite(&mut self, page: PageIdx) {
        let version = self.next_version();
        self.pages[page.0 as usize] = Cell { expected: version, frame: version };
    }

    /// A load of a page that may have lost its frame since.
    ///
    /// # Errors
    /// The frame is there and does not hold the last store.
    pub fn load_present(&self, page: PageIdx) -> Result<(), WrongContent> {
        if self.pages[page.0 as usize].frame == GONE { Ok(()) } else { self.load(page) }
    }

    /// A store into a part of a mapped page: the rest of it must be what was stored last.
    ///
    /// # Errors
    /// It is not.
    #[inline]
    pub fn store(&mut self, page: PageIdx) -> Result<(), WrongContent> {
        self.load(page)?;
        let version = self.next_version();
        self.pages[page.0 as usize] = Cell { expected: version, frame: version };
        Ok(())
    }

    /// A load from a mapped page.
    ///
    /// # Errors
    /// The frame does not hold the last store.
    #[inline]
    pub fn load(&self, page: PageIdx) -> Result<(), WrongContent> {
        let cell = self.pages[page.0 as usize];
        if cell.expected == cell.frame {
            return Ok(());
        }
        Err(WrongContent { page, expected: cell.expected, found: cell.frame })
    }

    /// The slot of a page that is clean holds the last store.
    ///
    /// # Errors
    /// It does not.
    pub fn at_rest(&self, page: PageIdx, device: usize, slot: u32) -> Result<(), WrongContent> {
        let (expected, found) = (self.pages[page.0 as usize].expected, self.slots[device][slot as usize]);
        if expected == found { Ok(()) } else { Err(WrongContent { page, expected, found }) }
    }

    /// The frame's version, for looks that decide nothing.
    #[inline]
    pub fn peek(&self, page: PageIdx) -> u32 {
        self.pages[page.0 as usize].frame
    }

    /// The slot's version, for looks that decide nothing.
    pub fn peek_slot(&self, device: usize, slot: u32) -> u32 {
        self.slots[device][slot as usize]
    }

    /// True if the program knows that the page is lost.
    pub fn is_poisoned(&self, page: PageIdx) -> bool {
        self.pages[page.0 as usize].expected == POISONED
    }

    /// Fresh frames of zeroes.
    pub fn zero(&mut self, range: PageRange) {
        for page in range.pages() {
            self.pages[page.0 as usize].frame = 0;
        }
    }

    /// The frames are freed.
    pub fn drop_frames(&mut self, range: PageRange) {
        for page in range.pages() {
            self.pages[page.0 as usize].frame = GONE;
        }
    }

    /// The program threw the content away.
    pub fn discard(&mut self, range: PageRange) {
        for page in range.pages() {
            self.pages[page.0 as usize].expected = 0;
        }
    }

    /// The program is told that the content is lost.
    pub fn poison(&mut self, range: PageRange) {
        for page in range.pages() {
            self.pages[page.0 as usize] = Cell { expected: POISONED, frame: POISONED };
        }
    }

    /// A write of the page's frame to the slot begins.
    pub fn write_begins(&mut self, page: PageIdx, device: usize, slot: u32) {
        let frame = self.pages[page.0 as usize].frame;
        self.slots[device][slot as usize] = if frame < UNDER_WAY { frame | UNDER_WAY } else { TORN };
    }

    /// It ends. A frame that changed or went meanwhile leaves nonsense on the device.
    pub fn write_ends(&mut self, page: PageIdx, device: usize, slot: u32, good: bool) {
        let frame = self.pages[page.0 as usize].frame;
        let cell = &mut self.slots[device][slot as usize];
        *cell = if good && frame < UNDER_WAY && *cell == frame | UNDER_WAY { frame } else { TORN };
    }

    /// A read of the slot into the page's frame ends.
    pub fn read_ends(&mut self, page: PageIdx, device: usize, slot: u32) {
        let version = self.slots[device][slot as usize];
        self.pages[page.0 as usize].frame = if version < UNDER_WAY { version } else { TORN };
    }

    /// The canary's bug: the slot now holds what another store wrote.
    pub fn plant_bug(&mut self, device: usize, slot: u32) {
        self.slots[device][slot as usize] = self.last;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: PageIdx = PageIdx(1);

    fn world() -> Oracle {
        let mut oracle = Oracle::new(4);
        oracle.add_device(4);
        oracle.zero(PageRange::one(PAGE));
        oracle.store(PAGE).expect("a page of zeroes");
        oracle
    }

    #[test]
    fn content_comes_back_through_a_slot() {
        let mut oracle = world();
        oracle.write_begins(PAGE, 0, 2);
        oracle.write_ends(PAGE, 0, 2, true);
        oracle.drop_frames(PageRange::one(PAGE));
        assert!(oracle.load(PAGE).is_err(), "no frame");
        oracle.read_ends(PAGE, 0, 2);
        assert_eq!(oracle.load(PAGE), Ok(()));
    }

    #[test]
    fn a_frame_that_goes_before_its_write_is_done_is_lost() {
        let mut oracle = world();
        oracle.write_begins(PAGE, 0, 2);
        oracle.drop_frames(PageRange::one(PAGE));
        oracle.write_ends(PAGE, 0, 2, true);
        oracle.read_ends(PAGE, 0, 2);
        assert!(oracle.load(PAGE).is_err());
    }

    #[test]
    fn a_store_during_the_write_and_an_early_read_are_seen() {
        let mut oracle = world();
        oracle.write_begins(PAGE, 0, 2);
        oracle.read_ends(PAGE, 0, 2);
        assert!(oracle.load(PAGE).is_err(), "read before the write was done");
        let mut oracle = world();
        oracle.write_begins(PAGE, 0, 2);
        oracle.store(PAGE).expect("the frame is still good");
        oracle.write_ends(PAGE, 0, 2, true);
        oracle.read_ends(PAGE, 0, 2);
        assert!(oracle.load(PAGE).is_err(), "the slot holds neither store");
    }

    #[test]
    fn a_discarded_page_must_read_zero() {
        let mut oracle = world();
        oracle.discard(PageRange::one(PAGE));
        assert!(oracle.load(PAGE).is_err(), "the old store shines through");
        oracle.zero(PageRange::one(PAGE));
        assert_eq!(oracle.load(PAGE), Ok(()));
    }
}
