//! Regions: sorted ranges of pages, each with its readahead state.

use super::RegionRa;
use super::file::FileRa;
use super::stream::Streams;
use crate::event::FileSpec;
use crate::types::{DeviceId, PageRange, RegionId};
use alloc::vec::Vec;

/// A region (the kernel: a VMA).
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) id: RegionId,
    pub(crate) start: u32,
    pub(crate) end: u32,
    pub(crate) ra: RegionRa,
    /// Where its streams are.
    streams: Option<u32>,
    /// The file whose page cache it is.
    pub(crate) file: Option<File>,
}

/// A file: its name in effects, and its readahead.
#[derive(Clone, Copy, Debug)]
pub(crate) struct File {
    pub(crate) device: DeviceId,
    pub(crate) spec: FileSpec,
    pub(crate) ra: FileRa,
    /// First page of the file in the page table: the region may be cut, the file's offsets stay.
    pub(crate) base: u32,
}

/// Where a region lies.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u32,
    end: u32,
    id: RegionId,
    /// Its place among the slots.
    slot: u32,
}

/// Things that stay where they are, in blocks of 2 MiB at most: a program may have every mapping that the kernel grants (65,530), and a list
/// that grows by doubling then wants tens of MiB in one piece just where the runtime has nothing left but its reserve.
#[derive(Debug)]
struct Slots<T> {
    blocks: Vec<Vec<T>>,
    free: Vec<u32>,
}

/// All regions, ascending.
///
/// What moves when one of thousands comes or goes are spans and names.
#[derive(Debug)]
pub(crate) struct Regions {
    list: Vec<Span>,
    /// By name, ascending, where each begins. The runtime gives ascending names, so that one more is added at the end.
    names: Vec<(RegionId, u32)>,
    slots: Slots<Region>,
    /// Those of regions larger than a page, which alone can have any.
    streams: Slots<Streams>,
    last: usize,
    /// Some were files: where none was, no page is looked up for its file.
    had_files: bool,
}

/// Room kept for splits, so that only `RegionAdded` allocates.
const SPARE: usize = 1024;

impl<T> Slots<T> {
    /// Slots of a block: a power of two, which is divided by at every fault.
    const BLOCK: usize = 1 << ((2 << 20) / size_of::<T>()).ilog2();

    fn new() -> Self {
        let mut slots = Self { blocks: Vec::new(), free: Vec::new() };
        slots.reserve(2 * SPARE);
        slots
    }

    fn get(&self, slot: u32) -> &T {
        &self.blocks[slot as usize / Self::BLOCK][slot as usize % Self::BLOCK]
    }

    fn get_mut(&mut self, slot: u32) -> &mut T {
        &mut self.blocks[slot as usize / Self::BLOCK][slot as usize % Self::BLOCK]
    }

    /// Make room for so many more, and for all to be free.
    fn reserve(&mut self, more: usize) {
        let used: usize = self.blocks.iter().map(Vec::len).sum();
        while self.blocks.len() * Self::BLOCK < used + more {
            self.blocks.push(Vec::with_capacity(Self::BLOCK));
        }
        let all = used + more;
        if self.free.capacity() < all {
            self.free.reserve(all + SPARE - self.free.len());
        }
    }

    /// Its slot.
    fn add(&mut self, value: T) -> u32 {
        if let Some(slot) = self.free.pop() {
            *self.get_mut(slot) = value;
            return slot;
        }
        self.reserve(1);
        let number = self.blocks.iter().position(|block| block.len() < Self::BLOCK).expect("there is room for one");
        self.blocks[number].push(value);
        u32::try_from(number * Self::BLOCK + self.blocks[number].len() - 1).expect("slots have 32-bit names")
    }

    /// The slot may be another one's. What is in it stays until then.
    fn remove(&mut self, slot: u32) {
        self.free.push(slot);
    }
}

impl Regions {
    pub(crate) fn new() -> Self {
        let (list, names) = (Vec::with_capacity(2 * SPARE), Vec::with_capacity(2 * SPARE));
        Self { list, names, slots: Slots::new(), streams: Slots::new(), last: 0, had_files: false }
    }

    /// A region lies at this place of the list from now on.
    fn insert(&mut self, at: usize, region: Region) {
        let Region { id, start, end, .. } = region;
        let slot = self.slots.add(region);
        self.list.insert(at, Span { start, end, id, slot });
        let name = self.names.partition_point(|(name, _)| *name < id);
        self.names.insert(name, (id, start));
    }

    fn name(&self, id: RegionId) -> Option<usize> {
        self.names.binary_search_by_key(&id, |(name, _)| *name).ok()
    }

    /// Index of the region of a page.
    pub(crate) fn find(&mut self, page: u32) -> Option<usize> {
        if self.list.get(self.last).is_some_and(|r| page >= r.start && page < r.end) {
            return Some(self.last);
        }
        let at = self.list.partition_point(|r| r.end <= page);
        if self.list.get(at)?.start <= page {
            self.last = at;
            return Some(at);
        }
        None
    }

    #[inline]
    pub(crate) fn get(&self, at: usize) -> &Region {
        self.slots.get(self.list[at].slot)
    }

    /// To change its readahead state: its bounds are changed here only.
    #[inline]
    pub(crate) fn get_mut(&mut self, at: usize) -> &mut Region {
        self.slots.get_mut(self.list[at].slot)
    }

    /// The region is the page cache of a file from now on.
    pub(crate) fn set_file(&mut self, at: usize, file: File) {
        self.had_files = true;
        self.get_mut(at).file = Some(file);
    }

    /// The region and the file that a page belongs to.
    #[inline]
    pub(crate) fn file_of(&mut self, page: u32) -> Option<(usize, File)> {
        if !self.had_files {
            return None;
        }
        let at = self.find(page)?;
        Some((at, self.get(at).file?))
    }

    /// The file of a region that is known to have one.
    pub(crate) fn file_mut(&mut self, at: usize) -> &mut File {
        self.get_mut(at).file.as_mut().expect("it is a file")
    }

    /// The streams of a region; None if it was never more than one page.
    pub(super) fn streams_mut(&mut self, at: usize) -> Option<&mut Streams> {
        let slot = self.get(at).streams?;
        Some(self.streams.get_mut(slot))
    }

    pub(crate) fn by_id(&self, id: RegionId) -> Option<usize> {
        let (_, start) = self.names[self.name(id)?];
        Some(self.list.partition_point(|r| r.start < start))
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Add a region. False if it is empty, its name is in use or it overlaps another.
    pub(crate) fn add(&mut self, id: RegionId, range: PageRange) -> bool {
        let (start, Some(end)) = (range.first.0, range.first.0.checked_add(range.len)) else {
            return false;
        };
        if start == end || self.by_id(id).is_some() {
            return false;
        }
        let at = self.list.partition_point(|r| r.end <= start);
        if self.list.get(at).is_some_and(|r| r.start < end) {
            return false;
        }
        if self.list.capacity() < self.list.len() + SPARE {
            self.list.reserve(SPARE * 2);
            self.names.reserve(SPARE * 2);
        }
        self.slots.reserve(SPARE);
        self.streams.reserve(SPARE);
        let streams = (end - start > 1).then(|| self.streams.add(Streams::new()));
        self.insert(at, Region { id, start, end, ra: RegionRa::new(), streams, file: None });
        true
    }

    pub(crate) fn remove(&mut self, at: usize) -> Region {
        self.last = 0;
        let Span { slot, id, .. } = self.list.remove(at);
        let name = self.name(id).expect("each region has a name");
        self.names.remove(name);
        let region = self.slots.get(slot).clone();
        self.slots.remove(slot);
        if let Some(streams) = region.streams {
            self.streams.remove(streams);
        }
        region
    }

    /// Split at `page`. False if that makes no two parts.
    pub(crate) fn split(&mut self, id: RegionId, page: u32, upper: RegionId) -> bool {
        let Some(at) = self.by_id(id) else {
            return false;
        };
        let (start, end) = (self.list[at].start, self.list[at].end);
        if page <= start || page >= end || self.by_id(upper).is_some() {
            return false;
        }
        let Region { ra, file, streams, .. } = self.get(at).clone();
        let copied = streams.map(|slot| self.streams.get(slot).clone());
        let streams = copied.map(|streams| self.streams.add(streams));
        self.set_bounds(at, start, page);
        self.insert(at + 1, Region { id: upper, start: page, end, ra, streams, file });
        self.last = 0;
        true
    }

    /// Change the bounds. False if they overlap a neighbour.
    pub(crate) fn resize(&mut self, at: usize, start: u32, end: u32) -> bool {
        let below = at == 0 || self.list[at - 1].end <= start;
        let above = self.list.get(at + 1).is_none_or(|r| r.start >= end);
        if !below || !above || start >= end {
            return false;
        }
        self.last = 0;
        self.set_bounds(at, start, end);
        if end - start > 1 && self.get(at).streams.is_none() {
            self.streams.reserve(SPARE);
            self.get_mut(at).streams = Some(self.streams.add(Streams::new()));
        }
        true
    }

    fn set_bounds(&mut self, at: usize, start: u32, end: u32) {
        let span = &mut self.list[at];
        (span.start, span.end) = (start, end);
        let (id, slot) = (span.id, span.slot);
        let name = self.name(id).expect("each region has a name");
        self.names[name].1 = start;
        let region = self.slots.get_mut(slot);
        (region.start, region.end) = (start, end);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::types::PageIdx;

    #[derive(Clone, Copy, Debug)]
    enum Change {
        Add { first: u32, pages: u32 },
        Remove { which: usize },
        Split { which: usize, pages: u32 },
        Resize { which: usize, pages: u32 },
    }

    fn change() -> impl Strategy<Value = Change> {
        prop_oneof![
            4 => (0..400_u32, 1..6_u32).prop_map(|(first, pages)| Change::Add { first, pages }),
            1 => any::<usize>().prop_map(|which| Change::Remove { which }),
            1 => (any::<usize>(), 1..6_u32).prop_map(|(which, pages)| Change::Split { which, pages }),
            1 => (any::<usize>(), 1..6_u32).prop_map(|(which, pages)| Change::Resize { which, pages }),
        ]
    }

    fn is_free(plain: &[(RegionId, u32, u32)], id: Option<RegionId>, start: u32, end: u32) -> bool {
        plain.iter().all(|&(other, from, to)| Some(other) == id || to <= start || end <= from)
    }

    proptest! {
        /// Against a plain list. Names descend, which no other test does.
        #[test]
        fn regions_are_found_by_name_and_page_whatever_comes_and_goes(changes in prop::collection::vec(change(), 1..300)) {
            let (mut regions, mut plain) = (Regions::new(), Vec::<(RegionId, u32, u32)>::new());
            let mut names = (0..u32::MAX).rev().map(RegionId);
            for change in changes {
                let any = |which: usize| (!plain.is_empty()).then(|| which % plain.len());
                match change {
                    Change::Add { first, pages } => {
                        let (id, end) = (names.next().expect("there are more"), first + pages);
                        let is_added = regions.add(id, PageRange::new(PageIdx(first), pages));
                        prop_assert_eq!(is_added, is_free(&plain, None, first, end));
                        if is_added {
                            plain.push((id, first, end));
                        }
                    }
                    Change::Remove { which } => {
                        let Some(at) = any(which) else { continue };
                        let (id, start, end) = plain.remove(at);
                        let removed = regions.remove(regions.by_id(id).expect("it is there"));
                        prop_assert_eq!((removed.id, removed.start, removed.end), (id, start, end));
                    }
                    Change::Split { which, pages } => {
                        let Some(at) = any(which) else { continue };
                        let ((id, start, end), upper) = (plain[at], names.next().expect("there are more"));
                        let page = start + pages;
                        prop_assert_eq!(regions.split(id, page, upper), page < end);
                        if page < end {
                            plain[at].2 = page;
                            plain.push((upper, page, end));
                        }
                    }
                    Change::Resize { which, pages } => {
                        let Some(at) = any(which) else { continue };
                        let (id, start, _) = plain[at];
                        let is_resized = regions.resize(regions.by_id(id).expect("it is there"), start, start + pages);
                        prop_assert_eq!(is_resized, is_free(&plain, Some(id), start, start + pages));
                        if is_resized {
                            plain[at].2 = start + pages;
                        }
                    }
                }
                prop_assert_eq!(regions.len(), plain.len());
                for &(id, start, end) in &plain {
                    let at = regions.by_id(id).expect("it is there");
                    prop_assert_eq!((regions.find(start), regions.find(end - 1)), (Some(at), Some(at)));
                    prop_assert_eq!((regions.get(at).id, regions.get(at).start, regions.get(at).end), (id, start, end));
                    prop_assert!(end - start == 1 || regions.streams_mut(at).is_some());
                }
                let mut slots: Vec<_> = (0..regions.len()).filter_map(|at| regions.get(at).streams).collect();
                slots.sort_unstable();
                prop_assert!(slots.windows(2).all(|two| two[0] != two[1]), "two regions have the same streams");
            }
        }
    }
}
