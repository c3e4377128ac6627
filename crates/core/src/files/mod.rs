//! The file side: page cache, mapped files, dirty pages and their write-back.
//!
//! A file's pages are pages of the table with the flag `FILE`; *untouched* means not in the page cache, *cached* in it,
//! *mapped* in it and in the program's page table. They live on the file lists, leave shadow entries when reclaim takes
//! them, and are read and written under the file's device number at their offset. Exact hosts only.
//!
//! Reclaim never writes a file page: it sends dirty ones up (they are activated) and wakes the flusher, which also works
//! when more than a tenth of what may be dirty is; a task waits when a fifth is dirty or under write.

use crate::config::Balance;
use crate::effect::{Effect, Effects, Source};
use crate::event::{Advice, FILE_DEVICE_FIRST, FileSpec};
use crate::memory::lru::{AF, IF};
use crate::memory::page::{
    ACTIVE, DIRTY, FILE, FRAME, Flight, LRU, MAP_WRITE, MAPPED, PCP, PageState, READAHEAD, REFERENCED, UNEVICTABLE,
    WORKINGSET, YOUNG,
};
use crate::policy::Core;
use crate::readahead::Window;
use crate::readahead::file::{FileRa, FileWindow, RaLimits};
use crate::readahead::regions::File;
use crate::tasks::job::{Charge, Job, JobKind, JobState, STEP_ROOM, Step};
use crate::types::{Access, DeviceId, PMD_PAGES, PageIdx, PageRange, RegionId, SlotIdx, TaskId};
use crate::vmstat::Counter;

/// A page whose `DIRTY` is counted in `dirty_file`. (Blind hosts use the bit for maps in flight; they have no files.)
const COUNTED: u32 = MAP_WRITE;
/// Cached neighbours are mapped with a faulting page in blocks of this many pages.
const FAULT_AROUND: u32 = 16;
/// Share of the dirtyable memory that may be dirty before the flusher works, and dirty or under write before writers wait: one
/// in so many.
const DIRTY_BACKGROUND: u32 = 10;
const DIRTY_LIMIT: u32 = 5;
/// Pages the flusher looks at in one event, and has under write at most where queues have no end.
const FLUSH_LOOKS: u32 = 8192;
const FLUSH_PAGES: u32 = 1024;

/// The flusher: where it goes on, and whether reclaim asked for it.
#[derive(Debug)]
pub(crate) struct Flusher {
    region: usize,
    page: u32,
    /// Pages still to be looked at in this round; 0: asleep.
    left: u32,
    /// Dirty pages counted, and pages it has under write.
    pub(crate) dirty: u32,
    pub(crate) writing: u32,
}

impl Flusher {
    pub(crate) const fn new() -> Self {
        Self { region: 0, page: 0, left: 0, dirty: 0, writing: 0 }
    }
}

impl Core {
    pub(crate) fn file_added(&mut self, region: RegionId, range: PageRange, device: DeviceId, spec: FileSpec) {
        let fits = u64::from(range.first.0) + u64::from(range.len) <= u64::from(self.pages.len());
        let named = device.0 >= FILE_DEVICE_FIRST && self.host.has_files;
        if !fits || !named || !self.regions.add(region, range) {
            self.count(Counter::pt_late_event, 1);
            return;
        }
        let at = self.regions.by_id(region).expect("added just now");
        self.regions.get_mut(at).file = Some(File { device, spec, ra: FileRa::new(), base: range.first.0 });
    }

    /// The file that a page belongs to.
    pub(crate) fn file_of(&mut self, p: u32) -> Option<(usize, File)> {
        let at = self.regions.find(p)?;
        Some((at, self.regions.get(at).file?))
    }

    /// The page is of a program that is run.
    pub(crate) fn is_executable(&mut self, p: u32) -> bool {
        self.file_of(p).is_some_and(|(_, file)| file.spec.executable)
    }

    fn limits(&self, file: File, advice: Advice) -> RaLimits {
        let ra_pages = if advice == Advice::Sequential { file.spec.ra_pages * 2 } else { file.spec.ra_pages };
        RaLimits { ra_pages, io_pages: file.spec.io_pages, large: false, aligned: self.cfg.aligned_readahead }
    }

    pub(crate) fn on_file_read(&mut self, range: PageRange, task: TaskId, out: &mut Effects) {
        self.start_file_job(JobKind::FileRead, range, Access::Read, task, out);
    }

    pub(crate) fn on_file_write(&mut self, range: PageRange, task: TaskId, out: &mut Effects) {
        self.start_file_job(JobKind::FileWrite, range, Access::Write, task, out);
    }

    fn start_file_job(&mut self, kind: JobKind, range: PageRange, access: Access, task: TaskId, out: &mut Effects) {
        let inside = |core: &mut Self| {
            let (at, _) = core.file_of(range.first.0)?;
            (range.len > 0 && range.end().0 <= core.regions.get(at).end).then_some(())
        };
        let fits = range.first.0.checked_add(range.len).is_some_and(|end| end <= self.pages.len());
        if !fits || inside(self).is_none() {
            self.count(Counter::pt_late_event, 1);
            self.wake(range.first.0, task, out);
            return;
        }
        let mut job = Job::new(kind, range.first.0, access, task, Window::one(range.first.0));
        job.window = Window::none(range.first.0);
        job.first = range.first.0;
        job.end = range.end().0;
        if self.jobs.is_full() {
            self.jobs.queue(job);
        } else {
            self.start_job(job, out);
        }
    }

    /// A mapped access to a file page that is not mapped.
    pub(crate) fn fault_file(&mut self, p: u32, access: Access, task: TaskId, first: bool, out: &mut Effects) {
        // A fault that has read begins anew, so it comes here twice.
        if access == Access::Read {
            self.map_around(p, out);
        }
        if self.pages.is(p, MAPPED) {
            self.wake(p, task, out);
            return;
        }
        if self.pages.state(p) == PageState::Cached {
            self.map_cached_file(p, out);
            if access == Access::Write {
                self.pages.set(p, DIRTY);
            }
            let marked = self.pages.take(p, READAHEAD);
            if first && self.file_found(p, marked, access, task, out) {
                return;
            }
            self.wake(p, task, out);
            if marked && let Some((_, file)) = self.file_of(p) {
                self.start_async(p, file.spec.ra_pages, out);
            }
            if access == Access::Read {
                self.map_around(p, out);
            }
            return;
        }
        if self.jobs.is_full() {
            self.defer(p, access, task, out);
            return;
        }
        if first {
            self.count(Counter::pgmajfault, 1);
        }
        let Some((at, file)) = self.file_of(p) else {
            return;
        };
        let advice = self.regions.get(at).ra.advice;
        let limits = self.limits(file, advice);
        let ra = &mut self.regions.get_mut(at).file.as_mut().expect("it is a file").ra;
        let (sequential, random) = (advice == Advice::Sequential, advice == Advice::Random);
        let window = ra.mmap_miss(limits, p - file.base, sequential, random);
        let mut job = Job::new(JobKind::FileFault, p, access, task, Window::one(p));
        job.window = self.file_window(p, window.unwrap_or(FileWindow { start: p - file.base, size: 1, marker: None }));
        self.start_job(job, out);
    }

    /// A mapped access found its page in the page cache at its first look. True: the page is `marked`, and the fault goes on
    /// when memory has been found for the next window. (At a second look the task goes on at once: the window may push the page out.)
    pub(crate) fn file_found(&mut self, p: u32, marked: bool, access: Access, task: TaskId, out: &mut Effects) -> bool {
        let Some((at, file)) = self.file_of(p) else {
            return false;
        };
        self.regions.get_mut(at).file.as_mut().expect("it is a file").ra.mmap_hits(1);
        if !marked || self.jobs.is_full() {
            return false;
        }
        let Some(window) = self.next_window(p, file.spec.ra_pages) else {
            return false;
        };
        self.start_job(Job::new(JobKind::FileFaultAhead, p, access, task, window), out);
        true
    }

    /// A load faulted: map what is in the page cache of the block around it, but for markers and what is in flight. Each page
    /// that was met there, mapped before or not, makes up for a miss, unless it belongs to the working set.
    pub(crate) fn map_around(&mut self, p: u32, out: &mut Effects) {
        let Some((at, _)) = self.file_of(p) else {
            return;
        };
        let region = self.regions.get(at);
        let block = p / FAULT_AROUND * FAULT_AROUND;
        let (from, to) = (block.max(region.start), (block + FAULT_AROUND).min(region.end));
        debug_assert!(PMD_PAGES.is_multiple_of(FAULT_AROUND));
        let mut met = 0;
        for q in from..to {
            let word = self.pages.word(q);
            if word & (FRAME | READAHEAD | crate::memory::page::DISCARD) != FRAME || self.pages.in_flight(q) {
                continue;
            }
            met += u32::from(word & WORKINGSET == 0);
            // Every second page may be one of its own effect: room is kept for the page itself and its wake.
            if word & MAPPED == 0 && (q == p || out.room() >= STEP_ROOM / 2) {
                self.map_cached_file(q, out);
            }
        }
        self.regions.get_mut(at).file.as_mut().expect("it is a file").ra.mmap_hits(met);
    }

    fn map_cached_file(&mut self, p: u32, out: &mut Effects) {
        self.set_mapped(p);
        self.pages.set(p, YOUNG);
        let range = PageRange::one(PageIdx(p));
        self.emit(Effect::Map { range, source: Source::Frame, access: Access::Read }, out);
    }

    /// The pages of a window, cut to the file.
    fn file_window(&mut self, target: u32, window: FileWindow) -> Window {
        let Some((at, file)) = self.file_of(target) else {
            return Window::none(target);
        };
        let region = self.regions.get(at);
        let from = (file.base + window.start).max(region.start);
        let to = (file.base + window.start + window.size).min(region.end);
        let mut pages = Window::file(target, from, to.max(from));
        pages.marker = window.marker.map(|marker| file.base + marker);
        pages
    }

    /// One step of `read` and `write`: the page at hand, or what it needs.
    pub(crate) fn next_file_page(&mut self, job: &mut Job, out: &mut Effects) -> FileStep {
        let p = job.page;
        if p >= job.end {
            if let Some((at, file)) = self.file_of(job.first) {
                let ra = &mut self.regions.get_mut(at).file.as_mut().expect("it is a file").ra;
                if job.kind == JobKind::FileRead {
                    ra.read_to(job.end - file.base);
                }
            }
            self.wake(job.first, job.task, out);
            return FileStep::Done;
        }
        if self.file_of(p).is_none() {
            self.wake(job.first, job.task, out);
            return FileStep::Done;
        }
        if self.pages.is(p, crate::memory::page::DISCARD) && !self.pages.in_flight(p) {
            self.finish_discard(p, out);
        }
        if self.pages.is(p, crate::memory::page::POISON) {
            self.pages.clear(p, crate::memory::page::POISON);
        }
        if job.kind == JobKind::FileWrite { self.write_file_page(job, p) } else { self.read_file_page(job, p, out) }
    }

    fn read_file_page(&mut self, job: &mut Job, p: u32, out: &mut Effects) -> FileStep {
        if !self.pages.is(p, FRAME) {
            job.window = self.sync_window(p, job.end - p);
            return FileStep::Window;
        }
        if self.pages.take(p, READAHEAD) {
            self.start_async(p, job.end - p, out);
        }
        if self.pages.flight(p) == Flight::Reading {
            return FileStep::Wait(p);
        }
        self.mark_accessed(p);
        job.page += 1;
        FileStep::Again
    }

    fn write_file_page(&mut self, job: &mut Job, p: u32) -> FileStep {
        if self.flusher.dirty + self.flusher.writing > self.dirty_limit().max(4) {
            self.wake_flusher();
            return FileStep::Throttle;
        }
        if !self.pages.is(p, FRAME) {
            job.window = Window::none(p);
            return FileStep::Fresh(p);
        }
        if self.pages.in_flight(p) {
            return FileStep::Wait(p);
        }
        self.mark_written(p);
        self.dirty_file(p);
        job.page += 1;
        FileStep::Again
    }

    /// A charged page that is to be overwritten whole: it is not read, and no refault.
    pub(crate) fn fresh_file_page(&mut self, p: u32, out: &mut Effects) {
        self.pages.take_shadow(p);
        self.take_frame(p);
        self.pages.set(p, FILE);
        self.insert_lru(p);
        let range = PageRange::one(PageIdx(p));
        // A frame, and no mapping: an exact host makes both of zeroes.
        self.emit(Effect::Map { range, source: Source::Zero, access: Access::Write }, out);
        self.emit(Effect::Unmap { range }, out);
        self.dirty_file(p);
    }

    pub(crate) fn dirty_file(&mut self, p: u32) {
        self.pages.set(p, DIRTY);
        if !self.pages.is(p, COUNTED) {
            self.pages.set(p, COUNTED);
            self.flusher.dirty += 1;
        }
        if self.flusher.dirty > self.dirtyable() / DIRTY_BACKGROUND {
            self.wake_flusher();
        }
    }

    /// Pages dirty or under write from which on writers wait.
    fn dirty_limit(&self) -> u32 {
        let all = self.dirtyable();
        if self.cfg.dirty_of_all {
            return (all / DIRTY_BACKGROUND).midpoint(all / DIRTY_LIMIT);
        }
        all / DIRTY_LIMIT
    }

    /// What the limits of dirty pages are parts of: since 3.14 what is free or holds files, before it all memory above the
    /// zones' watermarks. (A group has no limits of its own in version 1; its budget stands for them.)
    fn dirtyable(&self) -> u32 {
        if self.is_memcg() {
            return self.mem.budget;
        }
        if self.cfg.dirty_of_all {
            return self.mem.budget - (self.mem.high - self.cfg.reserve).min(self.mem.budget);
        }
        self.mem.free() + self.lru.len(IF) + self.lru.len(AF)
    }

    /// The page is not dirty any more, or gone.
    pub(crate) fn uncount_dirty(&mut self, p: u32) {
        if self.pages.is(p, FILE) && self.pages.take(p, COUNTED) {
            self.flusher.dirty -= 1;
        }
    }

    fn sync_window(&mut self, p: u32, request: u32) -> Window {
        let Some((at, file)) = self.file_of(p) else {
            return Window::none(p);
        };
        let advice = self.regions.get(at).ra.advice;
        let i = p - file.base;
        if advice == Advice::Random {
            return self.file_window(p, FileWindow { start: i, size: request, marker: None });
        }
        let limits = self.limits(file, advice);
        let mut ra = file.ra;
        let pages = &self.pages;
        let before = |max: u32| {
            let run = (1..=max).take_while(|n| *n <= i && pages.is(p - n, FRAME)).count();
            u32::try_from(run).expect("at most max")
        };
        let window = ra.sync(limits, i, request, before);
        self.regions.get_mut(at).file.as_mut().expect("it is a file").ra = ra;
        self.file_window(p, window)
    }

    /// A marker was met: read the next window now, while the task goes on.
    fn start_async(&mut self, p: u32, request: u32, out: &mut Effects) {
        let Some(window) = self.next_window(p, request) else { return };
        if self.jobs.is_full() {
            return;
        }
        let mut job = Job::new(JobKind::FileAhead, p, Access::Read, TaskId(0), window);
        job.end = p;
        self.start_job(job, out);
    }

    /// The window that the marker at `p` starts.
    fn next_window(&mut self, p: u32, request: u32) -> Option<Window> {
        let (at, file) = self.file_of(p)?;
        let limits = self.limits(file, self.regions.get(at).ra.advice);
        let (i, end) = (p - file.base, self.regions.get(at).end);
        let mut ra = file.ra;
        let pages = &self.pages;
        let hole = |max: u32| (p + 1..(p + max + 1).min(end)).find(|q| !pages.is(*q, FRAME)).map(|q| q - file.base);
        let window = ra.advance(limits, i, request, hole);
        self.regions.get_mut(at).file.as_mut().expect("it is a file").ra = ra;
        Some(self.file_window(p, window?))
    }

    /// Read a charged page of a file into the page cache.
    pub(crate) fn read_file(&mut self, p: u32, marker: bool, demand: bool, out: &mut Effects) {
        let Some((_, file)) = self.file_of(p) else {
            return;
        };
        let shadow = self.pages.take_shadow(p);
        self.take_frame(p);
        self.pages.set(p, FILE);
        if let Some(shadow) = shadow {
            self.refault(p, shadow);
        }
        if marker {
            self.pages.set(p, READAHEAD);
        }
        self.insert_lru(p);
        self.begin_flight(p, Flight::Reading);
        self.file_reads += 1;
        self.count(Counter::pgpgin, 4);
        self.push_read(p, file.device, SlotIdx(p - file.base), demand, out);
    }

    /// A call wrote to the page. Since 4.7 only reads tell that a page is worth keeping.
    fn mark_written(&mut self, p: u32) {
        if self.cfg.write_marks {
            self.mark_accessed(p);
        }
    }

    /// `read` and the like used the page.
    pub(crate) fn mark_accessed(&mut self, p: u32) {
        let word = self.pages.word(p);
        if word & (UNEVICTABLE | crate::memory::page::BUSY) != 0 {
            return;
        }
        if word & REFERENCED == 0 {
            self.pages.set(p, REFERENCED);
        } else if word & ACTIVE == 0 {
            self.pages.clear(p, REFERENCED);
            self.pages.set(p, ACTIVE);
            if self.cfg.balance == Balance::LruCost2016 {
                self.pages.set(p, WORKINGSET);
            }
            self.age += 1;
            if word & LRU != 0 && word & PCP == 0 {
                self.lru.putback(&mut self.pages, p);
                self.count(Counter::pgactivate, 1);
                self.note_scanned(1, 1, 1);
            }
        }
    }

    pub(crate) fn wake_flusher(&mut self) {
        if self.flusher.left == 0 && self.flusher.dirty > 0 {
            self.flusher.left = self.pages.len();
        }
    }

    /// The host asks for write-back: what was dirtied through mappings, too, which nobody has counted.
    pub(crate) fn write_back(&mut self) {
        if self.flusher.left == 0 {
            self.flusher.region = 0;
            self.flusher.page = 0;
            self.flusher.left = self.pages.len();
        }
    }

    /// The flusher has something to do, and room for it in the disk's queue.
    pub(crate) fn is_flusher_runnable(&self) -> bool {
        let queue =
            if self.cfg.write_queue > 0 { self.queue_share(self.pending - self.flusher.writing) } else { FLUSH_PAGES };
        self.flusher.left > 0 && self.flusher.writing < queue
    }

    /// Let the flusher write dirty pages, in the order of the files.
    pub(crate) fn run_flusher(&mut self, out: &mut Effects) {
        let mut looks = 0;
        while self.is_flusher_runnable() && out.room() >= STEP_ROOM && looks < FLUSH_LOOKS && !self.io.is_full() {
            if self.flusher.region >= self.regions.len() {
                self.flusher.region = 0;
                self.flusher.page = 0;
                self.flusher.left /= 2;
                if self.regions.len() == 0 || self.flusher.dirty == 0 {
                    self.flusher.left = 0;
                    return;
                }
            }
            let region = self.regions.get(self.flusher.region);
            let (start, end, file) = (region.start, region.end, region.file);
            let p = self.flusher.page.max(start);
            let Some(file) = file.filter(|_| p < end) else {
                self.flusher.region += 1;
                self.flusher.page = 0;
                looks += 1;
                continue;
            };
            looks += 1;
            self.flusher.left -= 1;
            self.flusher.page = p + 1;
            let word = self.pages.word(p);
            if word & (DIRTY | FRAME | FILE) == DIRTY | FRAME | FILE && !self.pages.in_flight(p) {
                self.write_file(p, file, out);
            }
        }
    }

    fn write_file(&mut self, p: u32, file: File, out: &mut Effects) {
        if self.pages.is(p, MAPPED) {
            // The next store is to be seen: it faults.
            self.set_unmapped(p);
            self.emit(Effect::Unmap { range: PageRange::one(PageIdx(p)) }, out);
        }
        self.uncount_dirty(p);
        self.pages.clear(p, DIRTY);
        self.begin_flight(p, Flight::Writing);
        self.pending += 1;
        self.flusher.writing += 1;
        self.count(Counter::pgpgout, 4);
        self.push_write(p, file.device, SlotIdx(p - file.base), out);
    }

    /// Reclaim has met a dirty file page: the flusher is to write it.
    pub(crate) fn dirty_file_met(&mut self, p: u32) {
        if !self.pages.is(p, COUNTED) {
            // Dirtied through a mapping.
            self.pages.set(p, COUNTED);
            self.flusher.dirty += 1;
        }
        self.wake_flusher();
    }

    /// A file job: its window first, then its pages.
    pub(crate) fn step_file(&mut self, job: &mut Job, out: &mut Effects) -> Option<Step> {
        let marker = job.window.marker;
        let next = job.next.take().or_else(|| self.window_next(&mut job.window));
        if let Some(p) = next {
            let fresh = job.kind == JobKind::FileWrite;
            if self.pages.is(p, FRAME) || self.file_of(p).is_none() {
                return None;
            }
            let only_ahead = matches!(job.kind, JobKind::FileAhead | JobKind::FileFaultAhead);
            let ahead = p != job.page || only_ahead;
            let arrived = self.pages.is(job.page, FRAME) && !self.pages.in_flight(job.page);
            let short = self.mem.stock == 0 && self.mem.free() <= self.mem.min;
            if ahead && arrived && short && !only_ahead {
                // What is ahead must not push out what is wanted.
                job.window = Window::none(job.page);
                return None;
            }
            match self.charge(job, false) {
                Charge::Got => {}
                Charge::Reclaim => {
                    job.next = Some(p);
                    let in_turn = only_ahead && self.is_memcg() && !job.has_paused;
                    let run = job.run.as_mut().filter(|_| in_turn)?;
                    // The pages before it took their time: reads that were under way have ended by now.
                    run.lets_reads_end = true;
                    job.has_paused = true;
                    return Some(Step::Park(JobState::Runnable));
                }
                // Nobody waits for a page ahead: the kernel does not retry for it either.
                Charge::Park(_) | Charge::Fail if ahead => {
                    job.window = Window::none(job.page);
                    return None;
                }
                Charge::Park(state) => {
                    job.next = Some(p);
                    return Some(Step::Park(state));
                }
                Charge::Fail => return Some(self.out_of_memory(job, out)),
            }
            let no_io = self.io.is_full() && !fresh;
            if self.pages.is(p, FRAME | crate::memory::page::DISCARD | crate::memory::page::POISON) || no_io {
                self.uncharge_unused();
                if no_io && p == job.page && !only_ahead {
                    job.next = Some(p);
                    return Some(Step::Park(JobState::WaitMemory));
                }
            } else if fresh {
                // Its zeroes and the writer's bytes in one step: until both are there nobody else may see the page.
                self.fresh_file_page(p, out);
                self.mark_written(p);
                job.page += 1;
                return (job.page >= job.end).then(|| self.file_step(job, out)).flatten();
            } else {
                self.read_file(p, marker == Some(p), !ahead, out);
            }
            return None;
        }
        if job.window.drains() {
            let rotated = self.lru.drain(&mut self.pages);
            self.count(Counter::pgrotated, rotated);
            job.window = Window::none(job.page);
        }
        match job.kind {
            JobKind::FileAhead => Some(Step::Done),
            JobKind::FileFault
                if self.pages.state(job.page) == PageState::Untouched
                    && !self.pages.is(job.page, crate::memory::page::DISCARD) =>
            {
                // The window ended before it came to the page: it is read alone.
                let Some((_, file)) = self.file_of(job.page) else {
                    self.fault(job.page, job.access, job.task, false, out);
                    return Some(Step::Done);
                };
                let alone = FileWindow { start: job.page - file.base, size: 1, marker: None };
                job.window = self.file_window(job.page, alone);
                None
            }
            JobKind::FileFault => {
                self.fault(job.page, job.access, job.task, false, out);
                Some(Step::Done)
            }
            JobKind::FileFaultAhead => {
                // What came with the page is mapped now, unless the window has pushed it out.
                if job.access == Access::Read && !self.pages.in_flight(job.page) {
                    self.map_around(job.page, out);
                }
                self.fault(job.page, job.access, job.task, false, out);
                Some(Step::Done)
            }
            JobKind::Zero
            | JobKind::SwapIn
            | JobKind::Shrink
            | JobKind::Room
            | JobKind::FileRead
            | JobKind::FileWrite => self.file_step(job, out),
        }
    }

    fn file_step(&mut self, job: &mut Job, out: &mut Effects) -> Option<Step> {
        match self.next_file_page(job, out) {
            FileStep::Done => Some(Step::Done),
            FileStep::Again | FileStep::Window => None,
            FileStep::Wait(p) => {
                self.pages.set(p, crate::memory::page::JOB_WAIT);
                Some(Step::Park(JobState::WaitPage(p)))
            }
            FileStep::Throttle => Some(Step::Park(JobState::WaitMemory)),
            FileStep::Fresh(p) => {
                job.next = Some(p);
                None
            }
        }
    }
}

/// What a step of `read` or `write` asks of its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileStep {
    Done,
    Again,
    /// A window was set up: read it first.
    Window,
    /// For the flight of this page.
    Wait(u32),
    /// Too much is dirty.
    Throttle,
    /// This page needs a frame, and no read.
    Fresh(u32),
}
