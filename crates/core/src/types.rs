//! The nouns of the core: indices, ranges and small enums. No behaviour beyond arithmetic.

/// Nanoseconds since an origin that the host chooses. The core has no clock: time enters by argument.
pub type Nanos = u64;

/// A page of 4096 bytes, by its index in the host's flat page table.
///
/// The host chooses the index so that `index % 512` equals the virtual page number `% 512`: swap readahead clips
/// its windows at 2 MiB page-table (PMD) borders, and the core sees no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageIdx(pub u32);

/// Pages covered by one page-table page (PMD range): 512 pages, 2 MiB.
pub const PMD_PAGES: u32 = 512;

/// The unit of how often a page in memory is used: rates of use are in parts of this.
pub const USE_RATE: u64 = 1 << 30;

/// A region: a range of managed pages that the kernel would hold in one VMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u32);

/// A thread that faults. The host chooses the number; the core only hands it back in [`crate::effect::Effect::Wake`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId(pub u32);

/// A swap device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u8);

/// A slot of one swap device: the page-sized piece at `index * 4096`. Slot 0 is never used (the header's place).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotIdx(pub u32);

/// One read or write in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IoId(pub u32);

/// `len` pages from `first`, ascending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageRange {
    /// First page.
    pub first: PageIdx,
    /// Number of pages.
    pub len: u32,
}

impl PageRange {
    /// The range of `len` pages from `first`.
    pub const fn new(first: PageIdx, len: u32) -> Self {
        Self { first, len }
    }

    /// One page.
    pub const fn one(page: PageIdx) -> Self {
        Self { first: page, len: 1 }
    }

    /// The `len` pages from `offset` on.
    pub const fn part(self, offset: u32, len: u32) -> Self {
        Self { first: PageIdx(self.first.0 + offset), len }
    }

    /// The first page after the range.
    pub const fn end(self) -> PageIdx {
        PageIdx(self.first.0 + self.len)
    }

    /// True if `page` lies in the range.
    pub const fn contains(self, page: PageIdx) -> bool {
        page.0 >= self.first.0 && page.0 < self.first.0 + self.len
    }

    /// The pages, ascending.
    pub fn pages(self) -> impl DoubleEndedIterator<Item = PageIdx> + ExactSizeIterator {
        (self.first.0..self.first.0 + self.len).map(PageIdx)
    }
}

/// What a task did to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
}
