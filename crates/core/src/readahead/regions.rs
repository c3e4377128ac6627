//! Regions: sorted ranges of pages, each with its readahead state.

use super::RegionRa;
use super::file::FileRa;
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

/// All regions, ascending.
///
/// A region's readahead state is large, and stays where it is: what moves when one of thousands comes or goes are spans.
#[derive(Debug)]
pub(crate) struct Regions {
    list: Vec<Span>,
    slots: Vec<Region>,
    free_slots: Vec<u32>,
    last: usize,
}

/// Room kept for splits, so that only `RegionAdded` allocates.
const SPARE: usize = 1024;

impl Regions {
    pub(crate) fn new() -> Self {
        let list = Vec::with_capacity(2 * SPARE);
        Self { list, slots: Vec::with_capacity(2 * SPARE), free_slots: Vec::with_capacity(2 * SPARE), last: 0 }
    }

    fn slot(&self, at: usize) -> usize {
        self.list[at].slot as usize
    }

    /// A region lies at this place of the list from now on.
    fn insert(&mut self, at: usize, region: Region) {
        let Region { id, start, end, .. } = region;
        let slot = if let Some(slot) = self.free_slots.pop() {
            self.slots[slot as usize] = region;
            slot
        } else {
            self.slots.push(region);
            u32::try_from(self.slots.len() - 1).expect("regions have 32-bit names")
        };
        self.list.insert(at, Span { start, end, id, slot });
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

    pub(crate) fn get(&self, at: usize) -> &Region {
        &self.slots[self.slot(at)]
    }

    /// To change its readahead state: its bounds are changed here only.
    pub(crate) fn get_mut(&mut self, at: usize) -> &mut Region {
        let slot = self.slot(at);
        &mut self.slots[slot]
    }

    /// The region and the file that a page belongs to.
    pub(crate) fn file_of(&mut self, page: u32) -> Option<(usize, File)> {
        let at = self.find(page)?;
        Some((at, self.get(at).file?))
    }

    /// The file of a region that is known to have one.
    pub(crate) fn file_mut(&mut self, at: usize) -> &mut File {
        self.get_mut(at).file.as_mut().expect("it is a file")
    }

    pub(crate) fn by_id(&self, id: RegionId) -> Option<usize> {
        self.list.iter().position(|r| r.id == id)
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
        }
        if self.slots.capacity() < self.slots.len() + SPARE {
            self.slots.reserve(SPARE * 2);
        }
        if self.free_slots.capacity() < self.slots.len() + SPARE {
            self.free_slots.reserve(self.slots.len() + SPARE * 2 - self.free_slots.len());
        }
        self.insert(at, Region { id, start, end, ra: RegionRa::new(), file: None });
        true
    }

    pub(crate) fn remove(&mut self, at: usize) -> Region {
        self.last = 0;
        let slot = self.list.remove(at).slot;
        self.free_slots.push(slot);
        self.slots[slot as usize].clone()
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
        let (ra, file) = (self.get(at).ra.clone(), self.get(at).file);
        self.set_bounds(at, start, page);
        self.insert(at + 1, Region { id: upper, start: page, end, ra, file });
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
        true
    }

    fn set_bounds(&mut self, at: usize, start: u32, end: u32) {
        let span = &mut self.list[at];
        (span.start, span.end) = (start, end);
        let region = &mut self.slots[span.slot as usize];
        (region.start, region.end) = (start, end);
    }
}
