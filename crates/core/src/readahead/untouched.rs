//! Zero pages that come before they are touched.
//!
//! A first touch costs a fault, and pages of zeroes cost next to nothing more in the same call. What is filled for the first time is mostly
//! filled in order, by many hands at once (a partitioned join fills hundreds of streams in turn), so nothing is remembered: how many
//! pages in a row are mapped right before this one says how far the order is likely to go on. From the third page of an order on, as
//! many come with it, whoever else fills what, and less comes for nothing than was touched. They end before the first page that anything
//! is known of. One neighbour proves nothing: of what is touched in random order half of all pages have one before the half is full, and
//! pages that come before their time push others out (a loop of two memories in random order had 8 % more major faults).

use core::iter::Rev;
use core::ops::Range;

use super::{BUDGET_SHARE, Readahead};
use crate::event::Advice;
use crate::memory::Memory;

/// So many pages in a row are an order.
const ORDER_PAGES: u32 = 2;

/// Pages beside one that is touched for the first time, nearest first.
#[derive(Clone, Debug)]
pub(crate) enum Beside {
    Above(Range<u32>),
    Below(Rev<Range<u32>>),
}

impl Iterator for Beside {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        match self {
            Self::Above(pages) => pages.next(),
            Self::Below(pages) => pages.next(),
        }
    }
}

impl Readahead {
    /// A first touch at `p`: the pages to be filled with zeroes beside it, as far as nothing is known of them. None: no order is seen.
    pub(crate) fn zero_ahead(&mut self, mem: &Memory, p: u32) -> Option<Beside> {
        let max = self.cfg.zero_ahead.min(mem.budget.budget / BUDGET_SHARE);
        let at = self.regions.find(p)?;
        let region = self.regions.get(at);
        if max < 2 || region.ra.advice == Advice::Random {
            return None;
        }
        let below = |pages: u32| (p.saturating_sub(pages).max(region.start)..p).rev();
        let above = |pages: u32| p + 1..(p + 1 + pages).min(region.end);
        let before = mapped(mem, below(max - 1));
        if before >= ORDER_PAGES {
            return Some(Beside::Above(above(before)));
        }
        let after = mapped(mem, above(max - 1));
        (after >= ORDER_PAGES).then(|| Beside::Below(below(after)))
    }
}

/// So many of the pages are mapped, one after the other from the first on.
fn mapped(mem: &Memory, pages: impl Iterator<Item = u32>) -> u32 {
    let run = pages.take_while(|&q| mem.at(q).is_mapped()).count();
    u32::try_from(run).expect("pages have 32-bit numbers")
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::config::{Config, HostKind, MemoryMode};
    use crate::host::Host;
    use crate::types::{PageIdx, PageRange, RegionId};

    const START: u32 = 1_000;
    const PAGES: u32 = 60_000;

    struct Program {
        mem: Memory,
        readahead: Readahead,
        faults: u32,
    }

    impl Program {
        fn new() -> Self {
            let config = Config::profile("pagetide", HostKind::Blind).expect("a profile");
            let config = config.memory(MemoryMode::Watermarks, START + PAGES, 16_384);
            let host = Host::of(&config);
            let mut readahead = Readahead::new(&config, host);
            assert!(readahead.regions.add(RegionId(0), PageRange::new(PageIdx(START), PAGES)));
            Self { mem: Memory::new(&config, &host), readahead, faults: 0 }
        }

        /// Touch a page; the pages that come with it.
        fn touch(&mut self, p: u32) -> Vec<u32> {
            if !self.mem.at(p).is_blank() {
                return Vec::new();
            }
            self.faults += 1;
            self.fill(p);
            let beside = self.readahead.zero_ahead(&self.mem, p).into_iter().flatten();
            let beside: Vec<u32> = beside.take_while(|&q| self.mem.at(q).is_blank()).collect();
            beside.iter().for_each(|&q| self.fill(q));
            beside
        }

        fn fill(&mut self, p: u32) {
            self.mem.begin_zero_page(p, false);
            self.mem.map(p);
        }

        fn touched(&self) -> usize {
            (START..START + PAGES).filter(|&p| !self.mem.at(p).is_blank()).count()
        }
    }

    /// A region remembered six streams: a join into 64 partitions by two threads had a fault for each page.
    #[test]
    fn streams_of_first_touches_are_found_however_many_there_are() {
        for up in [true, false] {
            let mut program = Program::new();
            for step in 0..200 {
                for stream in 0..300 {
                    program.touch(START + stream * 200 + if up { step } else { 199 - step });
                }
            }
            assert_eq!(program.touched(), PAGES as usize);
            assert!(program.faults < PAGES / 20, "{} faults", program.faults);
        }
    }

    #[test]
    fn as_many_come_as_are_mapped_before_and_none_beyond_what_is_known() {
        let mut program = Program::new();
        assert!(program.touch(START).is_empty());
        assert!(program.touch(START + 1).is_empty(), "two neighbours are no order");
        assert_eq!(program.touch(START + 2), [START + 3, START + 4]);
        program.touch(START + 9);
        assert_eq!(program.touch(START + 5), [START + 6, START + 7, START + 8], "the next is touched");
        let end = START + PAGES;
        (1..=2).for_each(|i| drop(program.touch(end - i)));
        assert_eq!(program.touch(end - 3), [end - 4, end - 5]);
        (0..=1).for_each(|i| drop(program.touch(START + 50_000 + i)));
        program.mem.unmap(START + 50_000);
        assert!(program.touch(START + 50_002).is_empty(), "one of them is not mapped any more");
    }

    /// Of first touches at random few bring others as long as most of the region is untouched.
    #[test]
    fn sparse_touches_bring_few_pages() {
        let (mut program, mut state, mut touches) = (Program::new(), 88_172_645_463_325_252_u64, 0);
        while touches < PAGES / 20 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            program.touch(START + u32::try_from(state % u64::from(PAGES)).expect("it is small"));
            touches += 1;
        }
        assert!(program.touched() < touches as usize * 11 / 10, "{} pages for {touches} touches", program.touched());
    }
}
