//! Read-around: what is read with a fault that no stream continues.
//!
//! Programs put together what they use together, and what went together comes back together: under a heap the neighbours of a page that
//! is missed are mostly missed next, in no order that a stream would find. So the aligned block of pages round such a fault is read with it,
//! as large as the use of earlier ones there allows (`memory::used`). Its pages stay out of the page table until somebody asks for
//! them, which costs each a soft fault and tells all there is to know; where nearly all are used, one of eight does for all. (The kernel's
//! windows by region, S0 and `vma.rs`, are the model; theirs go by the hits since the last fault, and come to rest at one page between
//! two dense places.)
//!
//! Blocks that are hardly used are tried now and then all the same, or nothing would ever be known of them again.

use super::Readahead;
use crate::memory::Memory;
use crate::memory::used::{ALL, SURE};

/// Pages of a block, and the part of them that has to be used.
const BLOCKS: [(u32, u32); 3] = [(16, SURE), (8, ALL / 4 * 3), (4, ALL / 8 * 5)];
/// Where less is used, the smallest block is tried at every so manyth fault of a place, by the part of them that is used.
const TRIED: [(u32, u32); 2] = [(8, ALL / 8 * 3), (64, 0)];

impl Readahead {
    /// The block to be read with the page, within `low..high` and of at most `max` pages: first page, and the one after the last.
    pub(super) fn block(mem: &mut Memory, p: u32, (low, high): (u32, u32), max: u32) -> (u32, u32) {
        let (used, faults) = mem.around.on_fault(p);
        let smallest = BLOCKS[BLOCKS.len() - 1].0;
        let every = TRIED.iter().find(|(_, least)| used >= *least).map_or(1, |(every, _)| *every);
        let tried = if faults.is_multiple_of(every) { smallest } else { 1 };
        let pages = BLOCKS.iter().find(|(_, least)| used >= *least).map_or(tried, |(pages, _)| *pages).min(max).max(1);
        let first = p / pages * pages;
        (first.max(low), (first + pages).min(high))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, HostKind, MemoryMode};
    use crate::host::Host;

    #[test]
    fn blocks_are_aligned_lie_in_their_region_and_follow_their_use() {
        let config = Config::profile("pagetide", HostKind::Blind).expect("a profile");
        let config = config.memory(MemoryMode::Watermarks, 65_536, 16_384);
        let mut mem = Memory::new(&config, &Host::of(&config));
        let region = (1003, 1100);
        let pages = |(from, to): (u32, u32)| to - from;
        let sizes = |mem: &mut Memory| (0..64).map(|_| pages(Readahead::block(mem, 1020, region, 64))).sum::<u32>();
        assert_eq!(sizes(&mut mem), 64 + 8 * 3, "nothing is known: one of eight is tried");
        (0..64).for_each(|_| mem.around.note(1004, true));
        assert_eq!(Readahead::block(&mut mem, 1020, region, 64), (1008, 1024));
        assert_eq!(Readahead::block(&mut mem, 1004, region, 64), (1003, 1008));
        assert_eq!(Readahead::block(&mut mem, 1097, region, 64), (1088, 1100));
        assert_eq!(Readahead::block(&mut mem, 1097, region, 2), (1096, 1098), "no more than allowed");
        (0..64).for_each(|_| mem.around.note(1004, false));
        assert_eq!(sizes(&mut mem), 64 + 3, "they are not used: one of sixty-four is tried");
    }
}
