//! The allocator of the preload object: memory of our own, never the program's.
//!
//! The fault handler's thread allocates when a region is added. The program's malloc cannot serve it: its lock may be held by
//! a thread that waits for the handler. Small pieces come from size classes of one chunk after another, large ones are
//! mappings of their own (zero and lazily backed, which the page tables rely on). A program may use up the mappings that the
//! kernel grants a process: large pieces then come from a reserve of addresses that was mapped with the first chunk. Nothing here
//! survives a fork: the mappings are left out of the child, which starts with [`OwnMemory::forget_after_fork`].

use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::{AtomicUsize, Ordering};

use pagetide_sys::mem::{self, ManagedRange};
use pagetide_sys::sync::Mutex;

use crate::agent_entry;
use crate::own;

/// Larger pieces are mappings of their own.
const LARGE_BYTES: usize = 16 << 10;
/// Addresses, not memory: a program that meets its address-space limit later does not stop the runtime.
const CHUNK_BYTES: usize = 8 << 20;
/// Powers of two from 16 bytes to `LARGE_BYTES`.
const CLASSES: usize = 11;
const _: () = assert!(16 << (CLASSES - 1) == LARGE_BYTES);
/// Addresses for large pieces once the kernel grants no mapping more: lists of a process that has them all (65,530 unless the
/// machine's owner said otherwise) take some MiB, and grow by doubling.
const RESERVE_BYTES: usize = 64 << 20;
/// Powers of two from twice `LARGE_BYTES` to the reserve.
const RESERVE_CLASSES: usize = 12;
const _: () = assert!((LARGE_BYTES << RESERVE_CLASSES) == RESERVE_BYTES);

/// The allocator.
#[derive(Debug)]
pub struct OwnMemory {
    heap: Mutex<Heap>,
    mapped_bytes: AtomicUsize,
}

#[derive(Debug)]
struct Heap {
    /// Head of the free list of each class; the link is in the piece.
    free: [usize; CLASSES],
    next: usize,
    end: usize,
    reserve: Reserve,
}

impl Heap {
    const EMPTY: Self = Self { free: [0; CLASSES], next: 0, end: 0, reserve: Reserve::NONE };
}

/// Large pieces without a mapping of their own. A piece given back keeps its addresses and loses its memory, so that it is zero
/// when it is taken again.
#[derive(Debug)]
struct Reserve {
    start: usize,
    used: usize,
    /// Free pieces of each class: the first ones' places in pages, plus 1. More are forgotten.
    free: [[u32; 4]; RESERVE_CLASSES],
}

impl Reserve {
    const NONE: Self = Self { start: 0, used: 0, free: [[0; 4]; RESERVE_CLASSES] };

    const fn class_of(bytes: usize) -> usize {
        (bytes.next_power_of_two() / LARGE_BYTES).trailing_zeros() as usize - 1
    }

    fn has(&self, piece: usize) -> bool {
        self.start != 0 && (self.start..self.start + RESERVE_BYTES).contains(&piece)
    }

    /// A piece of at least so many bytes, more than `LARGE_BYTES`; 0 if there is none.
    fn take(&mut self, bytes: usize) -> usize {
        if self.start == 0 || bytes > RESERVE_BYTES {
            return 0;
        }
        let class = Self::class_of(bytes);
        if let Some(place) = self.free[class].iter_mut().find(|place| **place != 0) {
            let piece = self.start + (*place as usize - 1) * mem::PAGE_BYTES;
            *place = 0;
            return piece;
        }
        let bytes = bytes.next_power_of_two();
        if RESERVE_BYTES - self.used < bytes {
            return 0;
        }
        self.used += bytes;
        self.start + self.used - bytes
    }

    fn give_back(&mut self, range: ManagedRange) {
        // What is not taken back stays resident, and would not be zero: it is forgotten.
        let is_empty = mem::advise(range, mem::Advice::DontNeed).is_ok();
        let page = u32::try_from((range.start() - self.start) / mem::PAGE_BYTES).expect("a page of the reserve");
        let class = Self::class_of(range.len());
        if let Some(place) = self.free[class].iter_mut().find(|place| **place == 0).filter(|_| is_empty) {
            *place = page + 1;
        }
    }
}

const fn class_of(bytes: usize) -> usize {
    let bytes = if bytes < 16 { 16 } else { bytes.next_power_of_two() };
    bytes.trailing_zeros() as usize - 4
}

impl OwnMemory {
    /// An allocator that holds nothing yet.
    pub const fn new() -> Self {
        Self { heap: Mutex::new(Heap::EMPTY), mapped_bytes: AtomicUsize::new(0) }
    }

    /// Addresses taken from the kernel so far, not given back.
    pub fn mapped_bytes(&self) -> usize {
        self.mapped_bytes.load(Ordering::Relaxed)
    }

    /// In a forked child, before anything else of ours runs there: what the parent's runtime had allocated does not exist.
    ///
    /// # Safety
    /// No other thread exists, and nothing allocated before is used again.
    pub unsafe fn forget_after_fork(&self) {
        // SAFETY: the child's only thread runs this; the lock's word may have been copied while it was held.
        unsafe { (&raw const self.heap).cast_mut().write(Mutex::new(Heap::EMPTY)) };
        self.mapped_bytes.store(0, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { own::forget_after_fork() };
    }

    fn map(&self, bytes: usize) -> usize {
        match own::map(bytes, false) {
            Ok(mapping) => {
                self.mapped_bytes.fetch_add(bytes, Ordering::Relaxed);
                mapping.into_range().start()
            }
            Err(_) => 0,
        }
    }

    fn small(&self, class: usize) -> usize {
        let mut heap = self.heap.lock("a small piece");
        let piece = heap.free[class];
        if piece != 0 {
            // SAFETY: a piece on the free list is ours, and its first word is the link.
            heap.free[class] = unsafe { std::ptr::with_exposed_provenance::<usize>(piece).read() };
            return piece;
        }
        let bytes = 16 << class;
        if heap.end - heap.next < bytes {
            let chunk = self.map(CHUNK_BYTES);
            if chunk == 0 {
                return 0;
            }
            (heap.next, heap.end) = (chunk, chunk + CHUNK_BYTES);
            if heap.reserve.start == 0 {
                heap.reserve.start = self.map(RESERVE_BYTES);
            }
        }
        // A chunk begins at a page, and pieces are powers of two: rounding up aligns each to its size.
        let piece = heap.next.next_multiple_of(bytes);
        if piece + bytes > heap.end {
            heap.next = heap.end;
            drop(heap);
            return self.small(class);
        }
        heap.next = piece + bytes;
        piece
    }
}

impl Default for OwnMemory {
    fn default() -> Self {
        Self::new()
    }
}

// SAFETY: pieces are disjoint, aligned to their size (a power of two no smaller than the layout's size and alignment) or to a
// page, and stay until they are given back. Alignments above a page are refused.
unsafe impl GlobalAlloc for OwnMemory {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let bytes = layout.size().max(layout.align());
        let piece = if layout.align() > mem::PAGE_BYTES {
            0
        } else if bytes > LARGE_BYTES {
            match self.map(bytes.next_multiple_of(mem::PAGE_BYTES)) {
                0 => self.heap.lock("a large piece without a mapping").reserve.take(bytes),
                piece => piece,
            }
        } else {
            self.small(class_of(bytes))
        };
        if piece == 0 {
            agent_entry::end_without_memory(bytes);
        }
        std::ptr::with_exposed_provenance_mut(piece)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's layout.
        let piece = unsafe { self.alloc(layout) };
        let bytes = layout.size().max(layout.align());
        if !piece.is_null() && bytes <= LARGE_BYTES {
            // SAFETY: the piece is that long; larger ones are fresh mappings, which are zero.
            unsafe { piece.write_bytes(0, layout.size()) };
        }
        piece
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        let bytes = layout.size().max(layout.align());
        if bytes > LARGE_BYTES {
            let bytes = bytes.next_multiple_of(mem::PAGE_BYTES);
            // SAFETY: `alloc` mapped exactly this, and the caller gives it up.
            let range = unsafe { ManagedRange::new(piece.expose_provenance(), bytes) };
            let mut heap = self.heap.lock("a large piece given back");
            if heap.reserve.has(range.start()) {
                heap.reserve.give_back(range);
                return;
            }
            drop(heap);
            own::forget(range);
            // SAFETY: as above.
            if unsafe { mem::unmap(range) }.is_ok() {
                self.mapped_bytes.fetch_sub(bytes, Ordering::Relaxed);
                return;
            }
            // The kernel had made it one with a neighbour, and the program has used up all mappings. The addresses stay ours.
            own::note(range);
            let _ = mem::advise(range, mem::Advice::DontNeed);
            return;
        }
        let class = class_of(bytes);
        let mut heap = self.heap.lock("a piece given back");
        // SAFETY: the piece is ours again, at least 16 bytes and aligned.
        unsafe { piece.cast::<usize>().write(heap.free[class]) };
        heap.free[class] = piece.expose_provenance();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_aligned_disjoint_and_come_back() {
        let memory = OwnMemory::new();
        let mut pieces = Vec::new();
        for size in [1, 16, 17, 100, 4096, 5000, LARGE_BYTES, LARGE_BYTES + 1, 1 << 20] {
            for align in [1, 8, 64, 4096] {
                let layout = Layout::from_size_align(size, align).expect("a valid layout");
                // SAFETY: the layout has a size.
                let piece = unsafe { memory.alloc_zeroed(layout) };
                assert!(!piece.is_null() && piece.addr() % align == 0, "{layout:?}");
                // SAFETY: the piece is that long.
                let bytes = unsafe { std::slice::from_raw_parts_mut(piece, size) };
                assert!(bytes.iter().all(|&byte| byte == 0), "{layout:?} is not zero");
                bytes.fill(0xa5);
                pieces.push((piece, layout));
            }
        }
        let mut ranges: Vec<_> = pieces.iter().map(|(piece, layout)| (piece.addr(), layout.size())).collect();
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "pieces overlap");
        for (piece, layout) in pieces {
            // SAFETY: allocated above with this layout.
            unsafe { memory.dealloc(piece, layout) };
        }
        let layout = Layout::from_size_align(100, 8).expect("a valid layout");
        // SAFETY: the layout has a size.
        let again = unsafe { memory.alloc_zeroed(layout) };
        // SAFETY: the piece is that long.
        let bytes = unsafe { std::slice::from_raw_parts(again, 100) };
        assert!(bytes.iter().all(|&byte| byte == 0), "a used piece is cleared");
    }

    #[test]
    fn the_reserve_gives_zeroes_disjoint_and_takes_back() {
        let memory = OwnMemory::new();
        // SAFETY: the layout has a size. The first piece maps the reserve.
        let _first = unsafe { memory.alloc(Layout::new::<u64>()) };
        let mut heap = memory.heap.lock("a test");
        let reserve = &mut heap.reserve;
        let sizes = [LARGE_BYTES + 1, 40_000, 1 << 20, LARGE_BYTES + 1];
        let pieces = sizes.map(|bytes| (reserve.take(bytes), bytes.next_multiple_of(mem::PAGE_BYTES)));
        assert!(pieces.iter().all(|&(piece, _)| reserve.has(piece)), "{pieces:?}");
        let mut sorted = pieces;
        sorted.sort_unstable();
        assert!(sorted.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "pieces overlap");
        let (piece, bytes) = pieces[2];
        // SAFETY: the piece is that long, and nobody else's.
        let slice =
            unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut::<u8>(piece), bytes) };
        slice.fill(0xa5);
        // SAFETY: it was taken above, and is not used again unless it is taken again.
        reserve.give_back(unsafe { ManagedRange::new(piece, bytes) });
        assert_eq!(reserve.take(bytes), piece);
        assert!(slice.iter().all(|&byte| byte == 0), "a used piece is zero again");
        assert_eq!(reserve.take(RESERVE_BYTES + 1), 0);
        assert_eq!(reserve.take(RESERVE_BYTES), 0, "the reserve was used in part");
    }
}
