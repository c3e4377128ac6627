//! Mappings, and the names by which managed memory is spoken of.
//!
//! Managed memory is never reached through a Rust reference: another thread may write it, the pager may take it away, and
//! touching it may fault. [`ManagedRange`] is a pair of numbers without `Deref`; its constructor is the one place where the
//! caller promises what the memory is, and therefore the operations on it are safe functions.

use core::ffi::CStr;

use linux_raw_sys::general as k;
use linux_raw_sys::general::{
    __NR_madvise, __NR_mincore, __NR_mlock2, __NR_mlockall, __NR_mmap, __NR_mprotect, __NR_mremap, __NR_munlock,
    __NR_munmap, __NR_prctl,
};
use linux_raw_sys::prctl::{PR_SET_VMA, PR_SET_VMA_ANON_NAME};

use core::sync::atomic::{AtomicUsize, Ordering};

use crate::fd::Fd;
use crate::syscall;
use crate::syscall::Errno;
use crate::word::{addr_of, usize_of};

/// Bytes of a page. Both machines are used with 4 KiB pages; the probe refuses others.
pub const PAGE_BYTES: usize = 4096;

/// A range of memory that Rust knows nothing of: pages of the program, or frames of our own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ManagedRange {
    start: usize,
    len: usize,
}

impl ManagedRange {
    /// Name a range.
    ///
    /// # Safety
    /// As long as this value, a part of it, or an I/O started with it is in use: the addresses belong to the caller's purpose
    /// (pages of the program that are managed, or a mapping that the caller owns), and no Rust reference to them exists. Their
    /// content may change, vanish or become inaccessible at any moment.
    pub const unsafe fn new(start: usize, len: usize) -> Self {
        assert!(start.checked_add(len).is_some(), "a range does not wrap around");
        Self { start, len }
    }

    /// First address.
    pub const fn start(self) -> usize {
        self.start
    }

    /// First address after the range.
    pub const fn end(self) -> usize {
        self.start + self.len
    }

    /// Bytes.
    pub const fn len(self) -> usize {
        self.len
    }

    /// True if there are no bytes.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// `len` bytes from `offset`; they must lie in the range.
    pub const fn part(self, offset: usize, len: usize) -> Self {
        assert!(offset <= self.len && len <= self.len - offset, "a part lies in its range");
        Self { start: self.start + offset, len }
    }

    /// The range without its first `offset` bytes.
    pub const fn skip(self, offset: usize) -> Self {
        assert!(offset <= self.len, "a part lies in its range");
        Self { start: self.start + offset, len: self.len - offset }
    }

    /// Page `index` of the range.
    pub const fn page(self, index: usize) -> Self {
        self.part(index * PAGE_BYTES, PAGE_BYTES)
    }

    /// True if `addr` lies in the range.
    pub const fn contains(self, addr: usize) -> bool {
        addr >= self.start && addr - self.start < self.len
    }

    /// The start as a pointer, for reads and writes the caller vouches for.
    pub const fn as_ptr(self) -> *mut u8 {
        core::ptr::with_exposed_provenance_mut(self.start)
    }
}

/// Access rights of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// None.
    None,
    /// Read.
    Read,
    /// Read and write.
    ReadWrite,
    /// Read and execute.
    ReadExecute,
    /// All.
    ReadWriteExecute,
}

impl Protection {
    pub(crate) const fn bits(self) -> usize {
        let bits = match self {
            Self::None => k::PROT_NONE,
            Self::Read => k::PROT_READ,
            Self::ReadWrite => k::PROT_READ | k::PROT_WRITE,
            Self::ReadExecute => k::PROT_READ | k::PROT_EXEC,
            Self::ReadWriteExecute => k::PROT_READ | k::PROT_WRITE | k::PROT_EXEC,
        };
        bits as usize
    }
}

/// Advice about a range (`madvise`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// No transparent huge pages.
    NoHugePage,
    /// Huge pages wanted.
    HugePage,
    /// A child made by fork does not inherit the range.
    DontFork,
    /// A child inherits the range again.
    DoFork,
    /// A child finds zeroes.
    WipeOnFork,
    /// Left out of core dumps.
    DontDump,
    /// In core dumps again.
    DoDump,
    /// Give the pages back now; they read as zero.
    DontNeed,
    /// Give the pages back when memory is short.
    Free,
    /// Fault the pages in for reading.
    PopulateRead,
    /// Fault the pages in for writing.
    PopulateWrite,
    /// The next ones to go where the kernel is short of memory: clears their accessed bits.
    Cold,
    /// Never merge with equal pages.
    Unmergeable,
}

impl Advice {
    const fn code(self) -> usize {
        let code = match self {
            Self::NoHugePage => k::MADV_NOHUGEPAGE,
            Self::HugePage => k::MADV_HUGEPAGE,
            Self::DontFork => k::MADV_DONTFORK,
            Self::DoFork => k::MADV_DOFORK,
            Self::WipeOnFork => k::MADV_WIPEONFORK,
            Self::DontDump => k::MADV_DONTDUMP,
            Self::DoDump => k::MADV_DODUMP,
            Self::DontNeed => k::MADV_DONTNEED,
            Self::Free => k::MADV_FREE,
            Self::PopulateRead => k::MADV_POPULATE_READ,
            Self::PopulateWrite => k::MADV_POPULATE_WRITE,
            Self::Cold => k::MADV_COLD,
            Self::Unmergeable => k::MADV_UNMERGEABLE,
        };
        code as usize
    }
}

/// Advise the kernel about `range`. The content may vanish by it, which every holder of a managed range expects.
pub fn advise(range: ManagedRange, advice: Advice) -> Result<(), Errno> {
    // SAFETY: the range may change and vanish at any time by its promise.
    unsafe { syscall!(__NR_madvise, range.start, range.len, advice.code()) }.map(|_| ())
}

/// Change the access rights of `range`.
pub fn protect(range: ManagedRange, protection: Protection) -> Result<(), Errno> {
    // SAFETY: the range may become inaccessible at any time by its promise.
    unsafe { syscall!(__NR_mprotect, range.start, range.len, protection.bits()) }.map(|_| ())
}

/// Lock a range into memory (`mlock2`); `on_fault`: a page when it is there, without bringing it in. ENOMEM, EPERM, EAGAIN as
/// the manual page says.
pub fn lock(range: ManagedRange, on_fault: bool) -> Result<(), Errno> {
    let flags = if on_fault { k::MLOCK_ONFAULT as usize } else { 0 };
    // SAFETY: changes no content.
    unsafe { syscall!(__NR_mlock2, range.start, range.len, flags) }.map(|_| ())
}

/// Lock all mappings that are made from now on, each page when it is there.
pub fn lock_future() -> Result<(), Errno> {
    // SAFETY: changes no content.
    unsafe { syscall!(__NR_mlockall, (k::MCL_FUTURE | k::MCL_ONFAULT) as usize) }.map(|_| ())
}

/// Undo a lock on a range.
pub fn unlock(range: ManagedRange) -> Result<(), Errno> {
    // SAFETY: changes no content.
    unsafe { syscall!(__NR_munlock, range.start, range.len) }.map(|_| ())
}

/// Give `range` a name in /proc/PID/maps, `[anon:NAME]`. Kernels without the option answer EINVAL, which is not an error.
pub fn set_name(range: ManagedRange, name: &'static CStr) {
    let (option, what) = (PR_SET_VMA as usize, PR_SET_VMA_ANON_NAME as usize);
    // SAFETY: only a label is changed; the kernel copies the name.
    let _ = unsafe { syscall!(__NR_prctl, option, what, range.start, range.len, addr_of(name.as_ptr())) };
}

/// One byte per page into `out`: bit 0 says that the page is in memory (for anonymous memory: mapped or swap-cached).
pub fn in_core(range: ManagedRange, out: &mut [u8]) -> Result<&[u8], Errno> {
    let pages = range.len.div_ceil(PAGE_BYTES);
    let out = &mut out[..pages];
    // SAFETY: the kernel writes one byte per page into `out`, which has that many.
    unsafe { syscall!(__NR_mincore, range.start, range.len, addr_of(out.as_mut_ptr())) }?;
    Ok(out)
}

/// How an anonymous mapping is made.
#[derive(Clone, Copy, Debug)]
pub struct AnonOptions {
    /// Access rights.
    pub protection: Protection,
    /// Fault the pages in at once.
    pub populate: bool,
    /// A child made by fork inherits it.
    pub inherit: bool,
}

/// Anonymous memory of ours.
const ANONYMOUS: u32 = k::MAP_PRIVATE | k::MAP_ANONYMOUS | k::MAP_NORESERVE;
/// All kinds of mappings that are made here: a system call filter is asked for these.
pub(crate) const KINDS: [u32; 5] = [
    ANONYMOUS,
    ANONYMOUS | k::MAP_POPULATE,
    ANONYMOUS | k::MAP_FIXED,
    ANONYMOUS | k::MAP_FIXED_NOREPLACE,
    k::MAP_SHARED,
];

/// A mapping that this value owns: unmapped when dropped.
#[derive(Debug)]
pub struct Mapping {
    range: ManagedRange,
}

/// Where the next mapping is asked for; 0: the kernel chooses.
static PLACE: AtomicUsize = AtomicUsize::new(0);

/// Ask for mappings from this address on: a part of the address space that programs and kernels leave alone, so that nothing of ours
/// lies where the program means to map something. Where it is taken the kernel chooses. Again, as in a forked child: the next ones lie
/// behind those that were mapped before, some of which a child has, too.
pub fn set_place(address: usize) {
    let _ = PLACE.compare_exchange(0, address, Ordering::Relaxed, Ordering::Relaxed);
}

fn place(len: usize) -> usize {
    if PLACE.load(Ordering::Relaxed) == 0 {
        return 0;
    }
    // The page between two mappings is nobody's. Neighbours would be made one by the kernel, and one of them could not be unmapped where
    // the program has used up all mappings: that would take a mapping more.
    PLACE.fetch_add(len.next_multiple_of(PAGE_BYTES) + PAGE_BYTES, Ordering::Relaxed)
}

impl Mapping {
    /// Reserve private anonymous memory: no swap reservation, no huge pages, not in core dumps.
    ///
    /// These are our frames and tables: the program's core dump and its children have no use for them.
    pub fn anonymous(len: usize, options: AnonOptions) -> Result<Self, Errno> {
        let mut flags = ANONYMOUS;
        if options.populate {
            flags |= k::MAP_POPULATE;
        }
        // SAFETY: a new mapping at an address of the kernel's choice is nobody else's; ours is a wish.
        let mapping = unsafe { Self::map(place(len), len, options.protection, flags, None, 0) }?;
        advise(mapping.range, Advice::DontDump)?;
        // EINVAL where the kernel is built without transparent huge pages: then there are none to refuse.
        let _ = advise(mapping.range, Advice::NoHugePage);
        if !options.inherit {
            advise(mapping.range, Advice::DontFork)?;
        }
        Ok(mapping)
    }

    /// Private anonymous memory exactly as a program would get it, aligned to `align` (a power of two of at least a page).
    pub fn plain(len: usize, align: usize) -> Result<Self, Errno> {
        assert!(align.is_power_of_two() && align >= PAGE_BYTES, "alignment is a power of two of pages");
        // SAFETY: as in `anonymous`.
        let wide = unsafe { Self::map(0, len + align, Protection::ReadWrite, ANONYMOUS, None, 0) }?;
        let head = wide.range.start.next_multiple_of(align) - wide.range.start;
        let whole = wide.into_range();
        let kept = whole.part(head, len);
        for rest in [whole.part(0, head), whole.skip(head + len)] {
            if !rest.is_empty() {
                // SAFETY: this part of the new mapping has no other owner.
                unsafe { unmap(rest) }?;
            }
        }
        // SAFETY: the kept part is mapped and ours.
        Ok(unsafe { Self::from_range(kept) })
    }

    /// Map a file or device shared with others who map it. A page is backed when it is touched first.
    pub fn shared(fd: &Fd, offset: u64, len: usize, protection: Protection) -> Result<Self, Errno> {
        // SAFETY: a new mapping at an address of the kernel's choice is nobody else's; ours is a wish.
        match unsafe { Self::map(place(len), len, protection, k::MAP_SHARED, Some(fd), offset) } {
            // The memory of an io_uring lies where the kernel says.
            // SAFETY: as above.
            Err(Errno::EINVAL) => unsafe { Self::map(0, len, protection, k::MAP_SHARED, Some(fd), offset) },
            answer => answer,
        }
    }

    /// Take addresses where nothing is mapped, so that nothing else comes there. EEXIST: something is.
    pub fn reserve(start: u64, len: u64) -> Result<Self, Errno> {
        let flags = ANONYMOUS | k::MAP_FIXED_NOREPLACE;
        // SAFETY: nothing that is mapped is replaced.
        unsafe { Self::map(usize_of(start), usize_of(len), Protection::None, flags, None, 0) }
    }

    /// # Safety
    /// With an address and `MAP_FIXED`, what is mapped there must be the caller's.
    unsafe fn map(
        addr: usize,
        len: usize,
        protection: Protection,
        flags: u32,
        fd: Option<&Fd>,
        offset: u64,
    ) -> Result<Self, Errno> {
        debug_assert!(KINDS.contains(&flags), "a filter was not asked for a mapping like this: {flags:#x}");
        let fd = fd.map_or(usize::MAX, Fd::arg);
        // SAFETY: the caller owns the place, or the kernel chooses a free one.
        let start = unsafe { syscall!(__NR_mmap, addr, len, protection.bits(), flags as usize, fd, usize_of(offset)) }?;
        // SAFETY: the mapping is new and owned by the value that is made of it.
        let range = unsafe { ManagedRange::new(start, len) };
        Ok(Self { range })
    }

    /// Put fresh anonymous memory in place of what is mapped at `range`, atomically.
    ///
    /// # Safety
    /// What is mapped there is the caller's to discard.
    pub unsafe fn replace(range: ManagedRange, protection: Protection) -> Result<Self, Errno> {
        let flags = ANONYMOUS | k::MAP_FIXED;
        // SAFETY: the caller owns the place.
        unsafe { Self::map(range.start, range.len, protection, flags, None, 0) }
    }

    /// Own what is mapped at `range`.
    ///
    /// # Safety
    /// It is mapped, and nobody else unmaps it.
    pub const unsafe fn from_range(range: ManagedRange) -> Self {
        Self { range }
    }

    /// The addresses.
    pub const fn range(&self) -> ManagedRange {
        self.range
    }

    /// Give the mapping up without unmapping it: it lives as long as the process.
    pub const fn into_range(self) -> ManagedRange {
        let range = self.range;
        core::mem::forget(self);
        range
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the value owns the mapping, and nothing can use it after the drop.
        let _ = unsafe { unmap(self.range) };
    }
}

/// Unmap a range.
///
/// # Safety
/// Nobody uses the range any more.
pub unsafe fn unmap(range: ManagedRange) -> Result<(), Errno> {
    // SAFETY: the caller gives the range up.
    unsafe { syscall!(__NR_munmap, range.start, range.len) }.map(|_| ())
}

/// How [`remap`] moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remap {
    /// Grow or shrink, moving if there is no room.
    MayMove,
    /// Move to this address, replacing what is there.
    To(usize),
    /// Move the pages away to a new place and leave the old one mapped and empty (`MREMAP_DONTUNMAP`).
    KeepOld,
    /// The same, to this address, replacing what is there.
    KeepOldTo(usize),
}

/// Move or resize a mapping; the new start.
///
/// # Safety
/// The old range is the caller's to move, and a named target is the caller's to replace.
pub unsafe fn remap(old: ManagedRange, new_len: usize, how: Remap) -> Result<usize, Errno> {
    let (flags, target) = match how {
        Remap::MayMove => (k::MREMAP_MAYMOVE, 0),
        Remap::To(target) => (k::MREMAP_MAYMOVE | k::MREMAP_FIXED, target),
        Remap::KeepOld => (k::MREMAP_MAYMOVE | k::MREMAP_DONTUNMAP, 0),
        Remap::KeepOldTo(target) => (k::MREMAP_MAYMOVE | k::MREMAP_FIXED | k::MREMAP_DONTUNMAP, target),
    };
    // SAFETY: the caller owns both places.
    unsafe { syscall!(__NR_mremap, old.start, old.len, new_len, flags as usize, target) }
}

/// Reads the caller's memory.
pub trait Memory {
    /// Fill `into` from `address` on. False: some of it leads nowhere.
    fn read(&mut self, address: usize, into: &mut [u8]) -> bool;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_mapping_is_aligned_and_its_rests_are_gone() {
        let align = 1 << 21;
        let mapping = Mapping::plain(3 * PAGE_BYTES, align).expect("mmap");
        let range = mapping.range();
        assert_eq!(range.start() % align, 0);
        assert_eq!(range.len(), 3 * PAGE_BYTES);
        let mut pages = [0; 3];
        assert_eq!(in_core(range, &mut pages).map(<[u8]>::len), Ok(3));
        drop(mapping);
        assert_eq!(in_core(range, &mut pages), Err(Errno::ENOMEM));
    }

    #[test]
    fn populated_pages_are_present_and_dropped_ones_read_as_zero() {
        let options = AnonOptions { protection: Protection::ReadWrite, populate: true, inherit: false };
        let mapping = Mapping::anonymous(2 * PAGE_BYTES, options).expect("mmap");
        let first = mapping.range().as_ptr();
        // SAFETY: mapped, writable and only ours.
        unsafe { first.write(7) };
        let mut pages = [0; 2];
        assert_eq!(in_core(mapping.range(), &mut pages), Ok([1, 1].as_slice()));
        advise(mapping.range(), Advice::DontNeed).expect("madvise");
        // SAFETY: mapped, readable and only ours.
        assert_eq!(unsafe { first.read_volatile() }, 0);
    }
}
