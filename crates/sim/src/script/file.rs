//! The file of a script: it is read by calls and through a mapping, and lies on a device of its own.
//!
//! Page `i` holds `i + 1` from the start, and nothing changes it: so nothing is written back.

use pagetide_core::Event;
use pagetide_core::event::{FILE_DEVICE_FIRST, FileSpec, Outcome};
use pagetide_core::types::{Access, DeviceId, Nanos, PMD_PAGES, PageIdx, PageRange, RegionId, SlotIdx, TaskId};

use super::device::{Line, Part};
use super::player::Player;
use super::{ScriptError, ScriptSpec};

/// Names the file's region, apart from the anonymous ones.
const REGION: RegionId = RegionId(1 << 30);
/// A call, beside the copying of its pages.
const CALL_NS: Nanos = 400;
const COPY_PAGE_NS: Nanos = 300;
/// The page cache is a tree with a node for so many pages, also where it has only shadow entries.
const NODE_PAGES: u32 = 64;
/// Nodes in a page: 28 of 576 bytes in 4 pages.
const NODES_OF_A_PAGE: u32 = 7;

pub(super) struct File {
    range: PageRange,
    readahead: u32,
    pub(super) line: Line,
    /// Where `aN` reads next.
    next: u32,
    /// The nodes that are there, and how many.
    nodes: Vec<bool>,
    node_count: u32,
}

impl File {
    /// The file behind `table` pages, and the table that holds both.
    pub(super) fn place(spec: &ScriptSpec, table: u32) -> Result<(Option<Self>, u32), ScriptError> {
        if spec.file_pages == 0 {
            return Ok((None, table));
        }
        let first = table.next_multiple_of(PMD_PAGES) + PMD_PAGES;
        let end = first.checked_add(spec.file_pages).filter(|end| *end <= 1 << 27);
        let end = end.ok_or_else(|| ScriptError::Size(format!("file: {} pages are too many", spec.file_pages)))?;
        let file = Self {
            range: PageRange::new(PageIdx(first), spec.file_pages),
            readahead: spec.file_readahead,
            line: Line::new(spec.timing),
            next: 0,
            nodes: vec![false; spec.file_pages.div_ceil(NODE_PAGES) as usize],
            node_count: 0,
        };
        Ok((Some(file), end))
    }
}

impl Player {
    pub(super) fn add_file(&mut self) {
        let Some(file) = &self.file else { return };
        let (range, ra_pages) = (file.range, file.readahead);
        for (page, content) in range.pages().zip(1..) {
            self.truth[page.0 as usize] = content;
        }
        let spec = FileSpec { ra_pages, io_pages: 0, executable: false };
        self.event(Event::FileAdded { region: REGION, range, device: DeviceId(FILE_DEVICE_FIRST), spec });
    }

    fn file_range(&self) -> PageRange {
        self.file.as_ref().expect("the script was checked for its file").range
    }

    /// `f`: false when out of memory, as for all.
    pub(super) fn read_in_order(&mut self, pages: u32) -> bool {
        let len = self.file_range().len;
        (0..len).step_by(pages as usize).all(|at| self.call(at, pages.min(len - at)))
    }

    /// `F`.
    pub(super) fn read_at_random(&mut self) -> bool {
        let at = self.random_below(self.file_range().len);
        self.call(at, 1)
    }

    /// A step of `a`.
    pub(super) fn read_next(&mut self) -> bool {
        let len = self.file_range().len;
        let file = self.file.as_mut().expect("it has a range");
        let at = file.next;
        file.next = (at + 1) % len;
        self.call(at, 1)
    }

    /// `m`.
    pub(super) fn load_in_order(&mut self) -> bool {
        self.file_range().pages().all(|page| self.access_at(page.0, Access::Read))
    }

    /// `M`.
    pub(super) fn load_at_random(&mut self) -> bool {
        let range = self.file_range();
        let at = self.random_below(range.len);
        self.access_at(range.first.0 + at, Access::Read)
    }

    /// A call that reads pages of the file.
    fn call(&mut self, at: u32, pages: u32) -> bool {
        let range = self.file_range().part(at, pages);
        self.now += CALL_NS + COPY_PAGE_NS * u64::from(pages);
        if !self.until_woken(Event::FileRead { range, task: TaskId(0) }) {
            return false;
        }
        for page in range.pages() {
            // The call copied it when it was there; reclaim on behalf of a later page may have taken it since.
            if self.frames[page.0 as usize] != u32::MAX {
                self.check(page.0, Access::Read);
            }
        }
        self.note_access();
        true
    }

    pub(super) fn submit_file(&mut self, io: u32, slot: SlotIdx, range: PageRange) {
        let now = self.now;
        let file = self.file.as_mut().expect("only the file's device reads here");
        let mut fresh = 0;
        for node in slot.0 / NODE_PAGES..=(slot.0 + range.len - 1) / NODE_PAGES {
            let there = &mut file.nodes[node as usize];
            fresh += u32::from(!std::mem::replace(there, true));
        }
        let pages = file.node_count.div_ceil(NODES_OF_A_PAGE);
        file.node_count += fresh;
        let more = file.node_count.div_ceil(NODES_OF_A_PAGE) - pages;
        // The task submits a window as a whole.
        file.line.begin_window();
        file.line.submit(
            now,
            Part { io, first: range.first.0, len: range.len, device: FILE_DEVICE_FIRST, slot: slot.0, write: false },
        );
        self.kernel_pages_due += more;
    }

    /// Reads of the file that have ended.
    pub(super) fn end_file_reads(&mut self) {
        while let Some(part) = self.file.as_mut().and_then(|file| file.line.ended(self.now)) {
            for (page, content) in part.pages().pages().zip(part.slot + 1..) {
                self.frames[page.0 as usize] = content;
            }
            self.event(Event::IoDone { io: part.io(), range: part.pages(), outcome: Outcome::Done });
        }
    }
}
