//! Which pages of a range are there: PAGEMAP_SCAN (Linux 6.7) and, before it, /proc/self/pagemap. No allocation.
//!
//! Both give the same [`Run`]s in ascending order; pages of no wanted category are left out. What only the scan can know (the
//! zero page, huge mappings) the other never reports.

use linux_raw_sys::general as k;

use crate::fd::Fd;
use crate::file;
use crate::mem::{ManagedRange, PAGE_BYTES};
use crate::proc;
use crate::syscall::Errno;
use crate::word::{addr_of, u64_of, usize_of};

/// `_IOWR('f', 16, struct pm_scan_arg)`
const PAGEMAP_SCAN: u32 = 0xc060_6610;
const _: () = assert!(size_of::<k::pm_scan_arg>() == 0x60 && k::PROCFS_IOCTL_MAGIC == b'f');

/// A set of properties of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Categories(pub u64);

impl Categories {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Written since it was write-protected (pages that never were count as written).
    pub const WRITTEN: Self = Self(2);
    /// Of a file or of shared memory.
    pub const FILE: Self = Self(4);
    /// In memory.
    pub const PRESENT: Self = Self(8);
    /// In the kernel's swap.
    pub const SWAPPED: Self = Self(16);
    /// The shared zero page.
    pub const ZERO: Self = Self(32);

    /// Both sets.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// True if all of `other` is in this set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// True if something is in both.
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// Neighbouring pages of the same categories: the kernel's `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// What they are, of the wanted categories.
    pub categories: Categories,
}

impl Run {
    /// Pages.
    pub const fn pages(&self) -> u64 {
        (self.end - self.start) / PAGE_BYTES as u64
    }
}

/// What a scan found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scanned {
    /// So many runs, in the caller's buffer.
    pub runs: usize,
    /// Where the scan stopped: the end of the range, or where the buffer was full.
    pub walked_to: usize,
}

/// /proc/self/pagemap, open.
#[derive(Debug)]
pub struct Pagemap {
    fd: Fd,
}

impl Pagemap {
    /// Open the map of this process. After a fork it still shows the parent: open it anew.
    pub fn open() -> Result<Self, Errno> {
        if let Some(fd) = proc::given(proc::Given::Pagemap) {
            return Ok(Self { fd });
        }
        Self::open_here()
    }

    /// The same whatever was given, which is in the table of another thread.
    pub fn open_here() -> Result<Self, Errno> {
        proc::open(c"self/pagemap").map(|fd| Self { fd })
    }

    /// The same under a high number.
    pub fn moved_high(self, lowest: u32) -> Self {
        Self { fd: self.fd.moved_high(lowest) }
    }

    /// The descriptor.
    pub const fn fd(&self) -> &Fd {
        &self.fd
    }

    /// Find the runs of pages of `range` that are of any category of `wanted`. ENOTTY or EINVAL: not on this kernel.
    ///
    /// `runs` should hold two and more entries; the kernel joins neighbours.
    pub fn scan(&self, range: ManagedRange, wanted: Categories, runs: &mut [Run]) -> Result<Scanned, Errno> {
        self.scan_with(range, wanted, wanted, 0, runs)
    }

    /// Find the runs of written pages and protect them again in the same step (needs `WP_ASYNC` registration).
    pub fn take_written(&self, range: ManagedRange, runs: &mut [Run]) -> Result<Scanned, Errno> {
        // PM_SCAN_WP_MATCHING with PM_SCAN_CHECK_WPASYNC: fail rather than protect what nobody resolves.
        self.scan_with(range, Categories::WRITTEN, Categories::WRITTEN, 1 | 2, runs)
    }

    fn scan_with(
        &self,
        range: ManagedRange,
        any_of: Categories,
        told: Categories,
        scan_flags: u64,
        runs: &mut [Run],
    ) -> Result<Scanned, Errno> {
        let mut arg = k::pm_scan_arg {
            size: u64_of(size_of::<k::pm_scan_arg>()),
            flags: scan_flags,
            start: u64_of(range.start()),
            end: u64_of(range.end()),
            walk_end: u64_of(range.start()),
            vec: u64_of(addr_of(runs.as_mut_ptr())),
            vec_len: u64_of(runs.len()),
            max_pages: 0,
            category_inverted: 0,
            category_mask: 0,
            category_anyof_mask: any_of.0,
            return_mask: told.0,
        };
        // SAFETY: the kernel reads and writes `arg` and writes at most `vec_len` entries into `runs`.
        let runs = unsafe { self.fd.ioctl(PAGEMAP_SCAN, addr_of(&raw mut arg)) }?;
        Ok(Scanned { runs, walked_to: usize_of(arg.walk_end) })
    }

    /// The same as [`Self::scan`] from the table of words, one per page: slower, on every kernel.
    pub fn read(&self, range: ManagedRange, wanted: Categories, runs: &mut [Run]) -> Result<Scanned, Errno> {
        let mut words = [0u64; 256];
        let mut found = 0;
        let mut addr = range.start();
        while addr < range.end() {
            let left = (range.end() - addr) / PAGE_BYTES;
            let count = left.min(words.len());
            if count == 0 {
                break;
            }
            let count = self.read_words(addr, &mut words[..count])?;
            for word in &words[..count] {
                let categories = Categories(categories_of(*word).0 & wanted.0);
                if categories.0 != 0 && !push(runs, &mut found, addr, categories) {
                    return Ok(Scanned { runs: found, walked_to: addr });
                }
                addr += PAGE_BYTES;
            }
        }
        Ok(Scanned { runs: found, walked_to: range.end() })
    }

    /// Bytes of the pages at the start of `range` that are all there (in memory, in the kernel's swap or on their way), or all
    /// missing. On every kernel.
    pub fn leading(&self, range: ManagedRange, there: bool) -> Result<usize, Errno> {
        self.while_words(range, |word| (word & THERE != 0) == there)
    }

    /// Bytes of the pages at the start of `range` that are in memory, and that other page tables have as well, as the page of zeroes is.
    /// On every kernel.
    pub fn shared(&self, range: ManagedRange) -> Result<usize, Errno> {
        self.while_words(range, |word| word & (PRESENT | ALONE) == PRESENT)
    }

    /// Bytes of the pages at the start of `range` of whose words this is true.
    fn while_words(&self, range: ManagedRange, is_meant: impl Fn(u64) -> bool) -> Result<usize, Errno> {
        let mut words = [0u64; 256];
        let mut addr = range.start();
        while addr < range.end() {
            let left = ((range.end() - addr) / PAGE_BYTES).min(words.len());
            let count = self.read_words(addr, &mut words[..left])?;
            for &word in &words[..count] {
                if !is_meant(word) {
                    return Ok(addr - range.start());
                }
                addr += PAGE_BYTES;
            }
        }
        Ok(range.len())
    }

    fn read_words(&self, addr: usize, words: &mut [u64]) -> Result<usize, Errno> {
        let mut bytes = [0u8; 256 * 8];
        let bytes = &mut bytes[..words.len() * 8];
        let offset = u64_of(addr / PAGE_BYTES * 8);
        let len = file::pread(&self.fd, bytes, offset)?;
        if len < 8 {
            return Err(Errno::EIO);
        }
        for (word, piece) in words.iter_mut().zip(bytes[..len].chunks_exact(8)) {
            *word = piece.try_into().map_or(0, u64::from_ne_bytes);
        }
        Ok(len / 8)
    }
}

/// The bits of a word of the table that a page without content has not: present, swapped.
const THERE: u64 = 3 << 62;
/// Present; in no other page table (Linux 4.2).
const PRESENT: u64 = 1 << 63;
const ALONE: u64 = 1 << 56;

/// The categories that a word of the table shows.
const fn categories_of(word: u64) -> Categories {
    const SHOWN: [(u32, Categories); 3] =
        [(63, Categories::PRESENT), (62, Categories::SWAPPED), (61, Categories::FILE)];
    const PROTECTED: u64 = 1 << 57;
    let mut categories = Categories::NONE;
    let mut index = 0;
    while index < SHOWN.len() {
        let (bit, category) = SHOWN[index];
        if word & (1 << bit) != 0 {
            categories = categories.with(category);
        }
        index += 1;
    }
    if word & THERE != 0 && word & PROTECTED == 0 {
        categories = categories.with(Categories::WRITTEN);
    }
    categories
}

/// Append a page to the last run or as a new one; false if the buffer is full.
fn push(runs: &mut [Run], found: &mut usize, addr: usize, categories: Categories) -> bool {
    let (start, end) = (u64_of(addr), u64_of(addr + PAGE_BYTES));
    if let Some(last) = runs[..*found].last_mut()
        && last.end == start
        && last.categories == categories
    {
        last.end = end;
        return true;
    }
    let Some(place) = runs.get_mut(*found) else { return false };
    *place = Run { start, end, categories };
    *found += 1;
    true
}
