//! The page cache: which pages of files are there, are mapped with others, are dirty.
//!
//! A file's pages are pages of the table with the flag `FILE`; *untouched* means not in the page cache, *cached* in it,
//! *mapped* in it and in the program's page table. They live on the file lists, leave shadow entries when reclaim takes
//! them, and are read and written under the file's device number at their offset. Exact hosts only.
//!
//! Reclaim never writes a file page: it sends dirty ones up (they are activated) and wakes the flusher, which also works
//! when more than a tenth of what may be dirty is; a task waits when a fifth is dirty or under write.

mod flusher;

use crate::config::{Balance, Config};
use crate::effect::{Effect, Effects, Source};
use crate::event::Advice;
use crate::memory::Memory;
use crate::memory::lru::{AF, IF};
use crate::memory::page::{Flight, PageState};
use crate::paging::{Paging, STEP_ROOM};
use crate::readahead::Window;
use crate::readahead::file::{FileWindow, RaLimits};
use crate::readahead::regions::{File, Regions};
use crate::types::{Access, PMD_PAGES, PageIdx, PageRange};
use crate::vmstat::Counter;

/// Cached neighbours are mapped with a faulting page in blocks of this many pages.
const FAULT_AROUND: u32 = 16;
/// Share of the dirtyable memory that may be dirty before the flusher works, and dirty or under write before writers wait: one
/// in so many.
const DIRTY_BACKGROUND: u32 = 10;
const DIRTY_LIMIT: u32 = 5;

/// The page cache of all files, and where the flusher goes on.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) cfg: Config,
    /// Region and page.
    flusher_at: (usize, u32),
}

/// A call on pages of a file: how far it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) access: Access,
    pub(crate) page: u32,
    pub(crate) end: u32,
}

/// What a step of `read` or `write` asks for.
#[derive(Clone, Debug)]
pub(crate) enum CallStep {
    /// All pages have been there.
    Done,
    /// On to the next page.
    Again,
    /// The page is a marker: the next window is to be read meanwhile. Then the page itself.
    Ahead(Option<Window>),
    /// This window is to be read first.
    Window(Window),
    /// For the flight of the page to end.
    Wait,
    /// For some write to end: too much is dirty.
    Throttle,
    /// The page needs a frame, and no read.
    Fresh,
}

impl Files {
    pub(crate) fn new(config: &Config) -> Self {
        Self { cfg: config.clone(), flusher_at: (0, 0) }
    }

    // Windows.

    fn limits(&self, file: &File, advice: Advice) -> RaLimits {
        let ra_pages = if advice == Advice::Sequential { file.spec.ra_pages * 2 } else { file.spec.ra_pages };
        RaLimits { ra_pages, io_pages: file.spec.io_pages, large: false, aligned: self.cfg.aligned_readahead }
    }

    /// The window of a mapped access that found nothing.
    pub(crate) fn fault_window(&self, regions: &mut Regions, p: u32) -> Option<Window> {
        let (at, file) = regions.file_of(p)?;
        let advice = regions.get(at).ra.advice;
        let limits = self.limits(&file, advice);
        let ra = &mut regions.file_mut(at).ra;
        let (sequential, random) = (advice == Advice::Sequential, advice == Advice::Random);
        let window = ra.mmap_miss(limits, p - file.base, sequential, random);
        Some(clip(regions, p, window.unwrap_or(FileWindow { start: p - file.base, size: 1, marker: None })))
    }

    /// The window of a call that found nothing at `p`, of whose pages `request` are asked for.
    fn sync_window(&self, paging: &mut Paging, p: u32, request: u32) -> Window {
        let regions = &mut paging.readahead.regions;
        let Some((at, file)) = regions.file_of(p) else {
            return Window::none(p);
        };
        let advice = regions.get(at).ra.advice;
        let i = p - file.base;
        if advice == Advice::Random {
            return clip(regions, p, FileWindow { start: i, size: request, marker: None });
        }
        let limits = self.limits(&file, advice);
        let mem = &paging.space.mem;
        let before = |max: u32| {
            let run = (1..=max).take_while(|n| *n <= i && mem.at(p - n).has_frame()).count();
            u32::try_from(run).expect("at most max")
        };
        let window = regions.file_mut(at).ra.sync(limits, i, request, before);
        clip(regions, p, window)
    }

    /// The window that the marker at `p` starts; `None`: a fault's, as large as the file's limit.
    pub(crate) fn next_window(&self, paging: &mut Paging, p: u32, request: Option<u32>) -> Option<Window> {
        let regions = &mut paging.readahead.regions;
        let (at, file) = regions.file_of(p)?;
        let limits = self.limits(&file, regions.get(at).ra.advice);
        let (i, end) = (p - file.base, regions.get(at).end);
        let mem = &paging.space.mem;
        let hole = |max: u32| (p + 1..(p + max + 1).min(end)).find(|q| !mem.at(*q).has_frame()).map(|q| q - file.base);
        let request = request.unwrap_or(file.spec.ra_pages);
        let window = regions.file_mut(at).ra.advance(limits, i, request, hole);
        Some(clip(regions, p, window?))
    }

    // Mapped accesses.

    /// A mapped access found its page in the page cache at its first look.
    pub(crate) fn note_found(&self, regions: &mut Regions, p: u32) {
        if let Some((at, _)) = regions.file_of(p) {
            regions.file_mut(at).ra.mmap_hits(1);
        }
    }

    /// A load faulted: map what is in the page cache of the block around it, but for markers and what is in flight. Each page
    /// that was met there, mapped before or not, makes up for a miss, unless it belongs to the working set.
    pub(crate) fn map_around(&self, paging: &mut Paging, p: u32, out: &mut Effects) {
        let Some((at, _)) = paging.readahead.regions.file_of(p) else {
            return;
        };
        let region = paging.readahead.regions.get(at);
        let block = p / FAULT_AROUND * FAULT_AROUND;
        let (from, to) = (block.max(region.start), (block + FAULT_AROUND).min(region.end));
        debug_assert!(PMD_PAGES.is_multiple_of(FAULT_AROUND));
        let mut met = 0;
        for q in from..to {
            let page = paging.space.mem.at(q);
            if !page.has_frame() || page.is_readahead() || page.is_discarded() || page.in_flight() {
                continue;
            }
            met += u32::from(!page.is_workingset());
            // Every second page may be one of its own effect: room is kept for the page itself and its wake.
            if !page.is_mapped() && (q == p || out.room() >= STEP_ROOM / 2) {
                self.map_cached(paging, q, out);
            }
        }
        paging.readahead.regions.file_mut(at).ra.mmap_hits(met);
    }

    /// Map a page of the page cache.
    pub(crate) fn map_cached(&self, paging: &mut Paging, p: u32, out: &mut Effects) {
        paging.space.map(p);
        paging.space.mem.mark_used(p, Access::Read);
        let range = PageRange::one(PageIdx(p));
        out.push_merged(Effect::Map { range, source: Source::Frame, access: Access::Read });
    }

    // Calls.

    /// One step of `read` or `write`: the page at hand, or what it needs.
    pub(crate) fn call_step(&self, paging: &mut Paging, call: &mut Call, out: &mut Effects) -> CallStep {
        let p = call.page;
        if p >= call.end || paging.readahead.regions.file_of(p).is_none() {
            return CallStep::Done;
        }
        let page = paging.space.mem.at(p);
        if page.is_discarded() && !page.in_flight() {
            paging.space.finish_discard(p, out);
        }
        paging.space.mem.heal(p);
        match call.access {
            Access::Write => self.write_step(paging, call),
            Access::Read => self.read_step(paging, call),
        }
    }

    fn read_step(&self, paging: &mut Paging, call: &mut Call) -> CallStep {
        let p = call.page;
        if !paging.space.mem.at(p).has_frame() {
            return CallStep::Window(self.sync_window(paging, p, call.end - p));
        }
        if paging.space.mem.take_readahead(p) {
            return CallStep::Ahead(self.next_window(paging, p, Some(call.end - p)));
        }
        self.read_found(paging, call)
    }

    /// The page of a `read` is in the page cache, or on its way there.
    pub(crate) fn read_found(&self, paging: &mut Paging, call: &mut Call) -> CallStep {
        if paging.space.mem.at(call.page).flight() == Flight::Reading {
            return CallStep::Wait;
        }
        self.mark_accessed(paging, call.page);
        call.page += 1;
        CallStep::Again
    }

    fn write_step(&self, paging: &mut Paging, call: &mut Call) -> CallStep {
        let p = call.page;
        let writeback = paging.space.mem.writeback;
        if writeback.dirty + writeback.writing > self.dirty_limit(&paging.space.mem).max(4) {
            paging.space.mem.wake_flusher();
            return CallStep::Throttle;
        }
        let page = paging.space.mem.at(p);
        if !page.has_frame() {
            return CallStep::Fresh;
        }
        if page.in_flight() {
            return CallStep::Wait;
        }
        self.mark_written(paging, p);
        self.dirty(&mut paging.space.mem, p);
        call.page += 1;
        CallStep::Again
    }

    /// A `read` has come to its end: where the next one would go on.
    pub(crate) fn read_to(&self, regions: &mut Regions, first: u32, end: u32) {
        if let Some((at, file)) = regions.file_of(first) {
            regions.file_mut(at).ra.read_to(end - file.base);
        }
    }

    /// A charged page that is to be overwritten whole: it is not read, and no refault.
    pub(crate) fn write_fresh(&self, paging: &mut Paging, p: u32, out: &mut Effects) {
        let Some((_, file)) = paging.readahead.regions.file_of(p) else {
            return;
        };
        paging.new_file_page(p, &file, false, false);
        let range = PageRange::one(PageIdx(p));
        // A frame, and no mapping: an exact host makes both of zeroes.
        out.push_merged(Effect::Map { range, source: Source::Zero, access: Access::Write });
        out.push_merged(Effect::Unmap { range });
        self.dirty(&mut paging.space.mem, p);
        self.mark_written(paging, p);
    }

    /// A call wrote to the page. Since 4.7 only reads tell that a page is worth keeping.
    fn mark_written(&self, paging: &mut Paging, p: u32) {
        if self.cfg.write_marks {
            self.mark_accessed(paging, p);
        }
    }

    /// `read` and the like used the page.
    fn mark_accessed(&self, paging: &mut Paging, p: u32) {
        let mem = &mut paging.space.mem;
        let page = mem.at(p);
        if page.is_unevictable() || page.is_busy() {
            return;
        }
        if !page.is_referenced() {
            mem.mark_referenced(p);
        } else if !page.is_active() {
            let is_listed = mem.promote(p);
            if self.cfg.balance == Balance::LruCost2016 {
                mem.mark_workingset(p);
            }
            paging.reclaim.note_promoted();
            if is_listed {
                mem.count(Counter::pgactivate, 1);
                paging.reclaim.note_scanned(1, 1, 1);
            }
        }
    }

    // Dirty pages.

    pub(crate) fn dirty(&self, mem: &mut Memory, p: u32) {
        mem.mark_dirty(p);
        mem.count_dirty(p);
        if mem.writeback.dirty > self.dirtyable(mem) / DIRTY_BACKGROUND {
            mem.wake_flusher();
        }
    }

    /// Pages dirty or under write from which on writers wait.
    fn dirty_limit(&self, mem: &Memory) -> u32 {
        let all = self.dirtyable(mem);
        if self.cfg.dirty_of_all {
            return (all / DIRTY_BACKGROUND).midpoint(all / DIRTY_LIMIT);
        }
        all / DIRTY_LIMIT
    }

    /// What the limits of dirty pages are parts of: since 3.14 what is free or holds files, before it all memory above the
    /// zones' watermarks. (A group has no limits of its own in version 1; its budget stands for them.)
    fn dirtyable(&self, mem: &Memory) -> u32 {
        let budget = mem.budget.budget;
        if self.cfg.is_memcg() {
            return budget;
        }
        if self.cfg.dirty_of_all {
            return budget - (mem.budget.high - self.cfg.reserve).min(budget);
        }
        mem.free() + mem.list_len(IF) + mem.list_len(AF)
    }
}

/// The pages of a window, cut to the file.
fn clip(regions: &mut Regions, target: u32, window: FileWindow) -> Window {
    let Some((at, file)) = regions.file_of(target) else {
        return Window::none(target);
    };
    let region = regions.get(at);
    let from = (file.base + window.start).max(region.start);
    let to = (file.base + window.start + window.size).min(region.end);
    let mut pages = Window::file(target, from, to.max(from));
    pages.marker = window.marker.map(|marker| file.base + marker);
    pages
}

/// The page alone.
pub(crate) fn alone(regions: &mut Regions, p: u32) -> Option<Window> {
    let (_, file) = regions.file_of(p)?;
    Some(clip(regions, p, FileWindow { start: p - file.base, size: 1, marker: None }))
}

/// A mapped access begins anew, or a call comes back: the page is neither in memory nor on its way there.
pub(crate) fn is_absent(mem: &Memory, p: u32) -> bool {
    let page = mem.at(p);
    page.state() == PageState::Untouched && !page.is_discarded()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{HostKind, MemoryMode};

    #[test]
    fn writers_wait_at_a_fifth_of_what_is_free_or_holds_files_and_before_3_14_nearer_to_a_tenth_of_all() {
        let limit = |profile| {
            let config = Config::profile(profile, HostKind::Exact).expect("a profile");
            let paging = Paging::new(&config.memory(MemoryMode::Watermarks, 8, 1000).min_free(100));
            Files::new(&paging.cfg).dirty_limit(&paging.space.mem)
        };
        assert_eq!((limit("linux-6.18"), limit("linux-3.10")), (200, 127));
    }
}
