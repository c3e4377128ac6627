//! Our own readahead: several streams per region, up or down, with windows that grow and are mapped whole.
//!
//! ```text
//!            marker                     end
//!   |--mapped--|M|------mapped------------|            a touch of M (unmapped: a soft fault) starts the next window
//!              ^ program is here          |M|--being read------------|
//! ```
//!
//! A fault next to the one before makes a stream. From then on each window is read in one piece, mapped when it arrives but
//! for its marker, and the touch of the marker starts the next: one fault per window, and the read is ahead by a window. A
//! touched marker proves that the pages before it were used; only then do they count as hits. Pages ahead take free frames
//! only: they never reclaim.
//!
//! First touches are treated alike: when they form a stream, zero pages are mapped ahead of it. So are soft faults, on pages
//! that were taken out of the page table to see whether they are used: the cached pages ahead are mapped with them.

use super::Window;
use crate::config::Readahead;
use crate::effect::{Effect, Effects, Source};
use crate::event::Advice;
use crate::memory::page::{Flight, MARKER, PageState, READAHEAD, YOUNG};
use crate::policy::Core;
use crate::tasks::job::STEP_ROOM;
use crate::types::{Access, PageIdx, PageRange};
use crate::vmstat::Counter;

/// Streams of each kind that a region remembers.
const STREAMS: usize = 6;
/// First window of a stream.
const WINDOW_FIRST: u32 = 4;
/// A stream that jumps ahead by no more than this is the same stream.
const GAP_MAX: u32 = 64;
/// A window takes at most this share of the budget.
const BUDGET_SHARE: u32 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    /// Not known: one fault so far.
    Unknown,
    Up,
    Down,
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    direction: Direction,
    /// First page beyond the latest window, in the direction; with `Unknown`, the page of the fault.
    end: u32,
    window: u32,
    marker: Option<u32>,
    /// Pages mapped ahead that are not yet known to be used: before the marker, and from it on.
    credit: [u32; 2],
    /// When it was used last, in faults of the region.
    used: u32,
}

/// The streams of a region: of swapped pages, and of first touches.
#[derive(Clone, Debug)]
pub(crate) struct Streams {
    swap: Table,
    zero: Table,
    soft: Table,
}

#[derive(Clone, Debug)]
struct Table {
    streams: [Option<Stream>; STREAMS],
    clock: u32,
}

impl Streams {
    pub(crate) const fn new() -> Self {
        Self { swap: Table::new(), zero: Table::new(), soft: Table::new() }
    }
}

impl Table {
    const fn new() -> Self {
        Self { streams: [None; STREAMS], clock: 0 }
    }

    /// The stream that a fault at `p` continues or begins, with its direction known from now on; or a new one.
    fn on_fault(&mut self, p: u32) -> &mut Stream {
        self.clock += 1;
        let clock = self.clock;
        let at = match self.streams.iter().position(|s| s.is_some_and(|s| s.continues(p))) {
            Some(at) => at,
            None => {
                let oldest = |s: &Option<Stream>| s.map_or(0, |s| s.used);
                let at = (0..STREAMS).min_by_key(|&at| oldest(&self.streams[at])).expect("there are some");
                let fresh =
                    Stream { direction: Direction::Unknown, end: p, window: 0, marker: None, credit: [0; 2], used: 0 };
                self.streams[at] = Some(fresh);
                at
            }
        };
        let stream = self.streams[at].as_mut().expect("found or made");
        stream.used = clock;
        if stream.direction == Direction::Unknown && stream.end != p {
            stream.direction = if p > stream.end { Direction::Up } else { Direction::Down };
        }
        stream
    }
}

impl Stream {
    fn continues(&self, p: u32) -> bool {
        match self.direction {
            Direction::Unknown => self.end.abs_diff(p) == 1,
            Direction::Up => p >= self.end && p - self.end <= GAP_MAX,
            Direction::Down => p <= self.end && self.end - p <= GAP_MAX,
        }
    }

    /// The next window from `p` on, at most `max` pages and within the region: (from, to).
    fn advance(&mut self, p: u32, max: u32, low: u32, high: u32) -> (u32, u32) {
        self.window = (self.window * 2).max(WINDOW_FIRST).min(max);
        match self.direction {
            Direction::Up | Direction::Unknown => {
                let to = p.saturating_add(self.window).min(high);
                self.end = to;
                (p, to)
            }
            Direction::Down => {
                let from = (p + 1).saturating_sub(self.window).max(low);
                self.end = from.saturating_sub(1);
                (from, p + 1)
            }
        }
    }
}

impl Core {
    fn stream_max(&self) -> u32 {
        self.cfg.readahead_max.min(self.mem.budget / BUDGET_SHARE).max(1)
    }

    /// A fault that has to read: alone, or with the window of its stream.
    pub(crate) fn stream_window(&mut self, at: usize, p: u32) -> Window {
        let max = self.stream_max();
        let region = self.regions.get_mut(at);
        let (low, high, advice) = (region.start, region.end, region.ra.advice);
        let stream = region.ra.streams.swap.on_fault(p);
        if stream.direction == Direction::Unknown && advice == Advice::Sequential {
            stream.direction = Direction::Up;
            stream.window = max;
        }
        if stream.direction == Direction::Unknown || advice == Advice::Random || max < 2 {
            return Window::one(p);
        }
        let (from, to) = stream.advance(p, max, low, high);
        let marker = match stream.direction {
            Direction::Up | Direction::Unknown => p + (to - p) / 2,
            Direction::Down => p - (p - from).div_ceil(2),
        };
        stream.marker = (marker != p).then_some(marker);
        stream.credit = [0; 2];
        let mut window = Window::pages(p, from, to);
        window.marker = stream.marker;
        window
    }

    /// The marker of a window was touched: what lies before it was used, and the next window is due.
    pub(crate) fn marker_touched(&mut self, p: u32, out: &mut Effects) {
        let Some(at) = self.regions.find(p) else {
            return;
        };
        let max = self.stream_max();
        let (low, high) = (self.regions.get(at).start, self.regions.get(at).end);
        let table = &mut self.regions.get_mut(at).ra.streams.swap;
        table.clock += 1;
        let clock = table.clock;
        let Some(stream) = table.streams.iter_mut().flatten().find(|s| s.marker == Some(p)) else {
            return;
        };
        stream.used = clock;
        let proven = stream.credit[0];
        stream.credit = [stream.credit[1], 0];
        stream.marker = None;
        let start = stream.end;
        let room = match stream.direction {
            Direction::Up | Direction::Unknown => start < high,
            Direction::Down => start > low && start < high,
        };
        let mut ahead = *stream;
        self.count(Counter::swap_ra_hit, proven);
        if !room {
            return;
        }
        let (from, to) = ahead.advance(start, max, low, high);
        let up = ahead.direction != Direction::Down;
        let mut reached = start;
        let mut first = None;
        for i in 0..to - from {
            let q = if up { from + i } else { to - 1 - i };
            if !self.read_ahead(q, out) {
                break;
            }
            reached = if up { q + 1 } else { q.saturating_sub(1) };
            if first.is_none() && self.pages.flight(q) == Flight::Reading {
                first = Some(q);
                self.pages.set(q, MARKER);
            }
        }
        ahead.end = reached;
        ahead.marker = first;
        let table = &mut self.regions.get_mut(at).ra.streams.swap;
        if let Some(stream) = table.streams.iter_mut().flatten().find(|s| s.used == clock) {
            *stream = ahead;
        }
    }

    /// Read a page that is only in its slot, if a frame is free. False: no more can be read now.
    pub(crate) fn read_ahead(&mut self, q: u32, out: &mut Effects) -> bool {
        if self.pages.state(q) != PageState::Swapped {
            return true;
        }
        if out.room() < STEP_ROOM || self.io.is_full() || !self.try_charge() {
            return false;
        }
        self.read_page(q, false, out);
        true
    }

    /// A page of a window has arrived: map it, unless it is a marker or somebody waits for it anyway.
    pub(crate) fn stream_arrived(&mut self, p: u32, out: &mut Effects) {
        let word = self.pages.word(p);
        let ahead = word & READAHEAD != 0 && word & (MARKER | crate::memory::page::WAITED) == 0;
        if !ahead || out.room() < 2 || self.cfg.readahead != Readahead::Stream {
            return;
        }
        let Some(at) = self.regions.find(p) else {
            return;
        };
        let sure = self.regions.get(at).ra.streams.swap.streams.iter().flatten().any(|s| s.covers(p));
        if sure {
            self.map_ahead(p, Access::Read, out);
            if !self.host.answers_moves {
                self.credit(p);
            }
        }
    }

    /// A page was mapped before anybody asked for it. It counts as a hit when a later marker is touched.
    pub(crate) fn credit(&mut self, p: u32) {
        if !self.pages.take(p, READAHEAD) || !self.pages.is(p, crate::memory::page::SLOT) {
            return;
        }
        let Some(at) = self.regions.find(p) else {
            return;
        };
        let table = &mut self.regions.get_mut(at).ra.streams.swap;
        if let Some(stream) = table.streams.iter_mut().flatten().find(|s| s.covers(p)) {
            let later = match (stream.direction, stream.marker) {
                (Direction::Up | Direction::Unknown, Some(marker)) => p > marker,
                (Direction::Down, Some(marker)) => p < marker,
                (Direction::Up | Direction::Unknown | Direction::Down, None) => false,
            };
            stream.credit[usize::from(later)] += 1;
        }
    }

    /// A soft fault at `p`: if it continues a stream, map what is cached ahead of it, too. Nothing is known of the use of
    /// those pages, so they count as used, and are sampled again in their turn.
    pub(crate) fn soft_ahead(&mut self, p: u32, access: Access, out: &mut Effects) {
        let max = self.stream_max();
        if self.cfg.readahead != Readahead::Stream || !self.host.maps_ahead_of_soft_faults || max < 2 {
            return;
        }
        let Some(at) = self.regions.find(p) else { return };
        let region = self.regions.get_mut(at);
        let (low, high) = (region.start, region.end);
        let stream = region.ra.streams.soft.on_fault(p);
        if stream.direction == Direction::Unknown {
            return;
        }
        let (from, to) = stream.advance(p, max, low, high);
        let up = stream.direction != Direction::Down;
        for i in 1..to - from {
            let q = if up { from + i } else { to - 1 - i };
            let word = self.pages.word(q);
            if out.room() < STEP_ROOM || word & (READAHEAD | MARKER) != 0 {
                break;
            }
            self.map_ahead(q, access, out);
        }
    }

    /// A first touch at `p`: if it continues a stream, map zero pages ahead of it.
    pub(crate) fn zero_ahead(&mut self, p: u32, out: &mut Effects) {
        let max = self.cfg.zero_ahead.min(self.mem.budget / BUDGET_SHARE);
        let Some(at) = self.regions.find(p) else {
            return;
        };
        if max < 2 {
            return;
        }
        let region = self.regions.get_mut(at);
        let (low, high, advice) = (region.start, region.end, region.ra.advice);
        let stream = region.ra.streams.zero.on_fault(p);
        if stream.direction == Direction::Unknown || advice == Advice::Random {
            return;
        }
        let (from, to) = stream.advance(p, max, low, high);
        let up = stream.direction != Direction::Down;
        let mut reached = p;
        for i in 1..to - from {
            let q = if up { from + i } else { to - 1 - i };
            let untouched = self.pages.word(q) == 0;
            if !untouched || out.room() < STEP_ROOM || self.mem.free() <= self.mem.low || !self.try_charge() {
                break;
            }
            self.new_page(q);
            let range = PageRange::one(PageIdx(q));
            self.emit(Effect::Map { range, source: Source::Zero, access: Access::Write }, out);
            self.count(Counter::pt_zero_ahead, 1);
            if self.host.answers_moves {
                self.begin_flight(q, Flight::Mapping);
                self.note_map_access(q, Access::Write);
            } else {
                self.set_mapped(q);
                self.pages.set(q, YOUNG);
            }
            reached = q;
        }
        let region = self.regions.get_mut(at);
        let clock = region.ra.streams.zero.clock;
        if let Some(stream) = region.ra.streams.zero.streams.iter_mut().flatten().find(|s| s.used == clock) {
            stream.end = if up { reached + 1 } else { reached.saturating_sub(1) };
        }
    }
}

impl Stream {
    /// The page lies behind the end, within two windows: it was read for this stream.
    fn covers(&self, p: u32) -> bool {
        match self.direction {
            Direction::Unknown => false,
            Direction::Up => p < self.end && self.end - p <= self.window * 2 + GAP_MAX,
            Direction::Down => p > self.end && p - self.end <= self.window * 2 + GAP_MAX,
        }
    }
}
