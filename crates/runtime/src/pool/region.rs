//! Regions, and holding parts of them in memory.
//!
//! Invariants: a region's memory is in the handler's table from before its first fault until after its last; a held page is
//! resident, and stays so until the last hold on it ends.

use std::ops::Range;
use std::sync::Arc;

use pagetide_core::event::Event;
use pagetide_core::types::{Access, PageRange};
use pagetide_sys::clock;
use pagetide_sys::mem::{self, AnonOptions, ManagedRange, Mapping, PAGE_BYTES, Protection};
use pagetide_sys::signal::{SignalSet, number};

use super::serve::Answer;
use super::{Advice, HOLDS, Running, handler};
use crate::setup::PAGES_MAX;
use crate::{Error, ErrorKind};

/// Memory that may be larger than its pool's budget.
///
/// It is reached through a raw pointer only: other threads may write it at any time, and every access may fault. A forked
/// child does not have it. Do not unmap, remap, mlock or madvise it by system call; [`Region::discard`] and
/// [`Region::advise`] do what madvise does.
#[derive(Debug)]
pub struct Region {
    memory: Option<Mapping>,
    running: Arc<Running>,
}

impl Region {
    pub(super) fn new(running: Arc<Running>, bytes: usize) -> Result<Self, Error> {
        // An empty set blocks nothing more, and says what is blocked.
        if SignalSet::NONE.block().has(number::BUS) {
            let text =
                "SIGBUS is blocked in this thread: the kernel would end the process at its first fault in a region";
            return Err(Error::new(ErrorKind::Config, text));
        }
        let most = (PAGES_MAX as usize) * PAGE_BYTES;
        if bytes == 0 || bytes > most {
            return Err(Error::new(ErrorKind::Config, format!("a region of {bytes} bytes: 1 to {most} are possible")));
        }
        let bytes = bytes.next_multiple_of(PAGE_BYTES);
        let failed = |errno: pagetide_sys::Errno| {
            Error::new(ErrorKind::Io, format!("a region of {bytes} bytes cannot be mapped: {}", errno.name()))
        };
        let options = AnonOptions { protection: Protection::ReadWrite, populate: false, inherit: false };
        let memory = Mapping::anonymous(bytes, options).map_err(failed)?;
        let range = memory.range();
        if !handler::add(range, Arc::as_ptr(&running.shared)) {
            let text = format!("a process has at most {} regions", handler::REGIONS);
            return Err(Error::new(ErrorKind::Config, text));
        }
        let mut state = running.shared.lock("a new region");
        let added = state.session.pager.add_fresh(clock::now(), range);
        drop(state);
        match added {
            Ok(true) => Ok(Self { memory: Some(memory), running }),
            Ok(false) => {
                handler::remove(range);
                Err(Error::new(ErrorKind::Config, format!("the pool's regions exceed {most} bytes in all")))
            }
            Err(errno) => {
                handler::remove(range);
                Err(failed(errno))
            }
        }
    }

    fn range(&self) -> ManagedRange {
        self.memory.as_ref().expect("mapped until the drop").range()
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.range().as_ptr()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.range().len()
    }

    /// Never: a region has at least one page.
    pub fn is_empty(&self) -> bool {
        self.range().is_empty()
    }

    /// The pages that hold these bytes.
    fn pages(&self, bytes: &Range<usize>) -> Result<ManagedRange, Error> {
        if bytes.start >= bytes.end || bytes.end > self.len() {
            let text = format!("bytes {}..{} of a region of {}", bytes.start, bytes.end, self.len());
            return Err(Error::new(ErrorKind::Config, text));
        }
        let first = bytes.start / PAGE_BYTES * PAGE_BYTES;
        Ok(self.range().part(first, bytes.end.next_multiple_of(PAGE_BYTES) - first))
    }

    /// Make these bytes resident and keep them so until the guard is dropped: for system calls, which fail with EFAULT on
    /// pages that are not there.
    ///
    /// # Errors
    /// `Config`: outside of the region, or more than half of the budget would be held. `Io`: a page cannot be read back.
    /// `NoSwapSpace`: no page can make room.
    pub fn hold(&self, bytes: Range<usize>) -> Result<Hold<'_>, Error> {
        let memory = self.pages(&bytes)?;
        let shared = &self.running.shared;
        let count = (memory.len() / PAGE_BYTES) as u64;
        let mut state = shared.lock("a hold");
        let budget = u64::from(state.session.pager.core().budget());
        if state.holds.len() == HOLDS || 2 * (state.held_pages + count) > budget {
            drop(state);
            let text = format!("a hold of {} bytes: at most half of the budget may be held", memory.len());
            return Err(Error::new(ErrorKind::Config, text));
        }
        let first = state.page(memory.start()).expect("the region is managed");
        let range = PageRange::new(first, u32::try_from(count).expect("a region has less than 2^32 pages"));
        state.holds.push(range);
        state.held_pages += count;
        state.session.pager.step(clock::now(), Event::Advice { range, advice: Advice::Lock });
        drop(state);
        let hold = Hold { region: self, range, start: memory.start() + bytes.start % PAGE_BYTES, len: bytes.len() };
        for index in 0..memory.len() / PAGE_BYTES {
            match self.bring_in(memory.page(index)) {
                Answer::Mapped => {}
                Answer::Lost => {
                    let text = "a page cannot be read back from the swap file (I/O error or checksum mismatch)";
                    return Err(Error::new(ErrorKind::Io, text));
                }
                Answer::NoSpace => {
                    let text = "the budget is full and so is the swap space; give the pool more of either";
                    return Err(Error::new(ErrorKind::NoSwapSpace, text));
                }
                Answer::Unknown => unreachable!("the region is managed until it is dropped"),
            }
        }
        Ok(hold)
    }

    /// The page is there, and a system call finds it.
    fn bring_in(&self, page: ManagedRange) -> Answer {
        let shared = &self.running.shared;
        let state = shared.lock("a held page");
        let (state, answer) = shared.bring_in(state, page.start(), Access::Write);
        drop(state);
        answer
    }

    /// Forget the content of these bytes, which must be whole pages: they read as zero from now on, and hold no memory.
    ///
    /// # Errors
    /// `Config`: outside of the region, not whole pages, or a part of it is held.
    pub fn discard(&self, bytes: Range<usize>) -> Result<(), Error> {
        let memory = self.pages(&bytes)?;
        if bytes.len() != memory.len() {
            return Err(Error::new(ErrorKind::Config, "only whole pages can be discarded"));
        }
        let mut state = self.running.shared.lock("a discard");
        let first = state.page(memory.start()).expect("the region is managed");
        let range = PageRange::new(first, u32::try_from(memory.len() / PAGE_BYTES).expect("a region's pages"));
        if state.holds.iter().any(|held| overlap(held, &range)) {
            drop(state);
            return Err(Error::new(ErrorKind::Config, "what is held cannot be discarded"));
        }
        state.session.pager.discard(clock::now(), memory.start() as u64, memory.end() as u64);
        let dropped = mem::advise(memory, mem::Advice::DontNeed);
        drop(state);
        dropped.map_err(|errno| Error::new(ErrorKind::Io, format!("a discard: {}", errno.name())))
    }

    /// A hint about these bytes.
    ///
    /// # Errors
    /// `Config`: outside of the region, or `Lock` or `Unlock`, which [`Region::hold`] is for.
    pub fn advise(&self, bytes: Range<usize>, advice: Advice) -> Result<(), Error> {
        let memory = self.pages(&bytes)?;
        if matches!(advice, Advice::Lock | Advice::Unlock) {
            return Err(Error::new(ErrorKind::Config, "pages are locked by `hold`"));
        }
        let shared = &self.running.shared;
        let mut state = shared.lock("advice");
        let first = state.page(memory.start()).expect("the region is managed");
        let range = PageRange::new(first, u32::try_from(memory.len() / PAGE_BYTES).expect("a region's pages"));
        state.session.pager.step(clock::now(), Event::Advice { range, advice });
        drop(state);
        shared.sleepers.ring();
        Ok(())
    }
}

fn overlap(a: &PageRange, b: &PageRange) -> bool {
    a.first < b.end() && b.first < a.end()
}

impl Drop for Region {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        if !self.running.is_ours() {
            // A forked child does not have the memory; what is at the addresses is not ours.
            std::mem::forget(memory);
            return;
        }
        let range = memory.range();
        handler::remove(range);
        let mut state = self.running.shared.lock("a region ends");
        state.session.pager.on_unmap(clock::now(), range.start() as u64, range.end() as u64);
        // Under the lock: nothing can be mapped there between.
        drop(memory);
        drop(state);
    }
}

/// Bytes that stay in memory as long as this lives.
#[derive(Debug)]
pub struct Hold<'a> {
    region: &'a Region,
    range: PageRange,
    start: usize,
    len: usize,
}

impl Hold<'_> {
    /// The first byte that was asked for.
    pub const fn as_ptr(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.start)
    }

    /// Bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Never: a hold has at least one byte.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        if !self.region.running.is_ours() {
            return;
        }
        let mut state = self.region.running.shared.lock("a hold ends");
        let index = state.holds.iter().position(|held| *held == self.range);
        state.holds.swap_remove(index.expect("every hold is in the list"));
        state.held_pages -= u64::from(self.range.len);
        let now = clock::now();
        for page in self.range.pages() {
            if state.holds.iter().all(|held| !held.contains(page)) {
                state.session.pager.step(now, Event::Advice { range: PageRange::one(page), advice: Advice::Unlock });
            }
        }
    }
}
