//! Files of the world: where they lie, and the calls by which tasks read, write and sync them.
//!
//! A mapped file is a region like any other: touches, faults and write-back go the common way. `read` and `write` are calls: a
//! task is in one until the core wakes it. A write goes page by page, so that the content of each page is the writer's from
//! the moment in which the core says it is dirty. What tasks write past the page cache (a database's log) goes to the disk at
//! once.

use pagetide_core::Event;
use pagetide_core::event::{FILE_DEVICE_FIRST, FileSpec};
use pagetide_core::types::{DeviceId, Nanos, PageIdx, PageRange, RegionId};

use super::io::Backing;
use super::{Happening, World};
use crate::device::DeviceParams;
use crate::disk::Disk;
use crate::oracle::WrongContent;
use crate::rng::XorShift64;
use crate::task::{Call, TaskState};

/// Names of files' regions begin here, apart from those of anonymous ones.
const FILE_REGION_FIRST: u32 = 1 << 30;
/// The kernel's flusher looks for what has been dirty for long at this period (dirty_expire_centisecs).
const WRITEBACK_NS: Nanos = 30_000_000_000;
/// A task that waits for write-back looks again after this long.
const SYNC_LOOK_NS: Nanos = 5_000_000;
/// CPU time of entering and leaving a call, and of copying a page.
const CALL_NS: Nanos = 300;
const COPY_PAGE_NS: Nanos = 500;

/// A file.
#[derive(Clone, Copy, Debug)]
pub struct SimFile {
    /// Its pages in the page table.
    pub range: PageRange,
    pub(super) backing: Backing,
}

/// A file to be added.
#[derive(Clone, Copy, Debug)]
pub struct NewFile {
    /// Its size.
    pub pages: u32,
    /// The disk it lies on, as [`World::add_disk`] or a swap device's place names it.
    pub disk: usize,
    /// First page on that disk.
    pub at: u64,
    /// Its readahead, and whether it is a program.
    pub spec: FileSpec,
}

impl World {
    /// Adds a disk; the number names it. (Swap devices have disks of their own, numbered in the same row.)
    pub fn add_disk(&mut self, params: &DeviceParams) -> usize {
        let stream = XorShift64::stream(self.seed, 700 + self.disks.len() as u64);
        self.disks.push(Disk::new(params.clone(), stream));
        self.disks.len() - 1
    }

    /// Adds a file with content on its disk and nothing in the page cache.
    ///
    /// # Panics
    /// With more than 200 files.
    pub fn add_file(&mut self, file: NewFile) -> SimFile {
        let number = u8::try_from(self.files.len()).ok().filter(|n| *n < 200).expect("at most 200 files");
        let range = self.place(file.pages);
        let store = self.oracle.add_device(file.pages);
        self.oracle.fill_file(range, store);
        let file_at = SimFile { range, backing: Backing { disk: file.disk, at: file.at, store } };
        self.files.push(file_at);
        let region = RegionId(FILE_REGION_FIRST + u32::from(number));
        let device = DeviceId(FILE_DEVICE_FIRST + number);
        self.step(self.now(), Event::FileAdded { region, range, device, spec: file.spec }, None);
        if number == 0 {
            self.queue.push(self.now() + WRITEBACK_NS, Happening::Writeback);
        }
        file_at
    }

    /// What is on the disks must be what was written last, for every page of a file that the core calls clean.
    ///
    /// # Errors
    /// A page for which it is not.
    pub fn audit_files(&self) -> Result<(), WrongContent> {
        for file in &self.files {
            for (page, slot) in file.range.pages().zip(0..) {
                let view = self.core.page(page);
                if !view.dirty && view.flight == pagetide_core::Flight::None {
                    self.oracle.at_rest(page, file.backing.store, slot)?;
                }
            }
        }
        Ok(())
    }

    /// Pages of files are in this part of the table.
    pub(super) fn is_file(&self, page: PageIdx) -> bool {
        self.files.iter().any(|file| file.range.contains(page))
    }

    /// What has been dirty for long is written; so it goes on for as long as tasks do.
    pub(super) fn writeback(&mut self, now: Nanos) {
        if self.unfinished > 0 {
            self.step(now, Event::Writeback, None);
            self.queue.push(now + WRITEBACK_NS, Happening::Writeback);
        }
    }

    /// The task enters a call. True: it is over already; false: the task waits, or is no more.
    pub(super) fn call(&mut self, id: u32, call: Call) -> bool {
        let task = &mut self.tasks[id as usize];
        let now = task.clock;
        task.call = Some((call, now));
        task.state = TaskState::Waiting;
        match call {
            Call::Read(range) => {
                self.cost_ns = CALL_NS + COPY_PAGE_NS * u64::from(range.len);
                self.step(now, Event::FileRead { range, task: pagetide_core::types::TaskId(id) }, Some(id));
            }
            Call::Write(range) => {
                self.cost_ns = CALL_NS + COPY_PAGE_NS * u64::from(range.len);
                let range = PageRange::one(range.first);
                self.step(now, Event::FileWrite { range, task: pagetide_core::types::TaskId(id) }, Some(id));
            }
            Call::Sync(range) => {
                self.step(now, Event::Writeback, Some(id));
                self.sync_look(id, range, now);
            }
            Call::Drop(range) => {
                self.oracle.empty_file(range, self.store_of(range));
                self.step(now, Event::Discarded { range }, Some(id));
                self.tasks[id as usize].state = TaskState::Running;
            }
            Call::WritePast { disk, at, pages } => self.write_past(now, id, disk, at, pages),
            Call::Sleep(ns) => self.queue.push(now + ns, Happening::CallEnds { task: id }),
        }
        self.still_running(id)
    }

    fn store_of(&self, range: PageRange) -> (usize, u32) {
        let file = self.files.iter().find(|file| file.range.contains(range.first)).expect("a page of a file");
        (file.backing.store, range.first.0 - file.range.first.0)
    }

    /// Is all of it clean by now? Else look again later.
    fn sync_look(&mut self, id: u32, range: PageRange, now: Nanos) {
        let dirty = |page: &PageIdx| {
            let view = self.core.page(*page);
            view.dirty || view.flight == pagetide_core::Flight::Writing
        };
        let Some(first) = range.pages().find(dirty) else {
            self.tasks[id as usize].state = TaskState::Running;
            return;
        };
        let left = PageRange::new(first, range.end().0 - first.0);
        self.tasks[id as usize].call.as_mut().expect("it is in a call").0 = Call::Sync(left);
        self.queue.push(now + SYNC_LOOK_NS, Happening::SyncLook { task: id });
    }

    /// A task that waits for write-back looks again.
    pub(super) fn sync_again(&mut self, id: u32, now: Nanos) {
        let task = &self.tasks[id as usize];
        let Some((Call::Sync(range), _)) = task.call.filter(|_| task.state == TaskState::Waiting) else { return };
        if self.core.page(range.first).dirty {
            self.step(now, Event::Writeback, None);
        }
        self.sync_look(id, range, now);
        if self.tasks[id as usize].state == TaskState::Running {
            self.tasks[id as usize].state = TaskState::Waiting;
            self.call_ends(now, id);
        }
    }

    /// What a task waited for, other than the core, is there.
    pub(super) fn call_ends(&mut self, now: Nanos, id: u32) {
        self.woken.push(id);
        self.wake_tasks(now);
    }

    /// The core woke a task that is in a call: its bytes are checked or become the page's. True: the call goes on.
    pub(super) fn call_woken(&mut self, id: u32) -> bool {
        let task = &mut self.tasks[id as usize];
        if task.state == TaskState::Done {
            return false;
        }
        match &mut task.call {
            Some((Call::Read(range), _)) => {
                let wrong = range.pages().filter_map(|page| self.oracle.load_present(page).err()).next();
                self.failure = self.failure.or(wrong);
                false
            }
            Some((Call::Write(range), _)) => {
                self.oracle.overwrite(range.first);
                *range = range.part(1, range.len - 1);
                if range.len == 0 {
                    return false;
                }
                let range = PageRange::one(range.first);
                self.follow_ups.push_back(Event::FileWrite { range, task: pagetide_core::types::TaskId(id) });
                true
            }
            Some((Call::Sync(_) | Call::Drop(_) | Call::WritePast { .. } | Call::Sleep(_), _)) | None => false,
        }
    }
}
