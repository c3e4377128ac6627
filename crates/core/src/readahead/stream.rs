//! Our own readahead: many streams at once, up or down, with windows that grow while they are used, and are mapped whole.
//!
//! ```text
//!            marker                     end
//!   |--mapped--|M|------mapped------------|            a touch of M (unmapped: a soft fault) starts the next window
//!              ^ program is here          |M|--being read------------|
//! ```
//!
//! A fault next to the one before makes a stream. From then on each window is read in one piece, mapped when it arrives but
//! for its marker, and the touch of the marker starts the next: one fault per window, and the read is ahead by a window. A
//! touched marker proves that the pages before it were used; only then do they count as hits. A stream that faults while its
//! marker has not been touched, or on a page that was read for it and has gone again, has read too much: its window shrinks, and
//! a stream with the smallest window ends. Pages ahead take free frames only: they never reclaim; and all streams together read
//! no more ahead than stays on probation until it is used (see `reclaim::watch`).
//!
//! First touches are treated alike: when they form a stream, zero pages are mapped ahead of it. So are soft faults, on pages
//! that were taken out of the page table to see whether they are used: the cached pages ahead are mapped with them.

use super::{Readahead, Window};
use crate::config::Readahead as Mode;
use crate::event::Advice;
use crate::memory::Memory;
use crate::vmstat::Counter;

/// Streams of swapped pages, of all regions: a merge of 64 runs, and what else there is.
const SWAP_STREAMS: usize = 96;
/// Streams of each other kind that a region remembers.
const STREAMS: usize = 6;
/// Faults after which a stream that had none counts as idle.
const IDLE_FAULTS: u32 = 256;
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
    /// When it was used last, in faults and touched markers of its table.
    used: u32,
}

/// The streams of a region: of first touches, and of soft faults.
#[derive(Clone, Debug)]
pub(crate) struct Streams {
    zero: Table<STREAMS>,
    soft: Table<STREAMS>,
}

/// The streams of swapped pages.
pub(super) type SwapStreams = Table<SWAP_STREAMS>;

#[derive(Clone, Debug)]
pub(super) struct Table<const N: usize> {
    streams: [Option<Stream>; N],
    clock: u32,
}

impl Streams {
    pub(crate) const fn new() -> Self {
        Self { zero: Table::new(), soft: Table::new() }
    }
}

impl<const N: usize> Table<N> {
    pub(super) const fn new() -> Self {
        Self { streams: [None; N], clock: 0 }
    }

    /// Streams that have faulted lately.
    fn active(&self) -> u32 {
        let is_active =
            |s: &&Stream| s.direction != Direction::Unknown && self.clock.wrapping_sub(s.used) < IDLE_FAULTS;
        u32::try_from(self.streams.iter().flatten().filter(is_active).count()).expect("at most N")
    }

    /// The stream that a fault at `p` continues or begins, with its direction known from now on; or a new one.
    fn on_fault(&mut self, p: u32) -> &mut Stream {
        self.clock += 1;
        let clock = self.clock;
        let at = match self.streams.iter().position(|s| s.is_some_and(|s| s.continues(p))) {
            Some(at) => at,
            None => {
                let oldest = |s: &Option<Stream>| s.map_or(0, |s| s.used);
                let at = (0..N).min_by_key(|&at| oldest(&self.streams[at])).expect("there are some");
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
            Direction::Up => p >= self.end && p - self.end <= self.window.min(GAP_MAX) || self.has_read(p),
            Direction::Down => p <= self.end && self.end - p <= self.window.min(GAP_MAX) || self.has_read(p),
        }
    }

    /// The page lies in the latest window.
    const fn has_read(&self, p: u32) -> bool {
        match self.direction {
            Direction::Unknown => false,
            Direction::Up => p < self.end && self.end - p <= self.window,
            Direction::Down => p > self.end && p - self.end <= self.window,
        }
    }

    /// A fault at `p` continues it. What it has read was not used, or is gone before it was: it is to read less, or nothing.
    fn judge(&mut self, p: u32) {
        if self.window == 0 || self.marker.is_none() && !self.has_read(p) {
            return;
        }
        if self.window > WINDOW_FIRST {
            self.window /= 4;
        } else {
            *self = Self { direction: Direction::Unknown, end: p, window: 0, marker: None, ..*self };
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

/// Pages to be read or mapped ahead of a stream, nearest first, and the stream they belong to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    from: u32,
    to: u32,
    up: bool,
    /// The region, and when the stream was used last.
    at: usize,
    clock: u32,
    stream: Stream,
}

impl Ahead {
    /// How many pages.
    pub(crate) const fn len(&self) -> u32 {
        self.to - self.from
    }

    /// The page so far from the nearest.
    pub(crate) const fn page(&self, i: u32) -> u32 {
        if self.up { self.from + i } else { self.to - 1 - i }
    }
}

impl Readahead {
    fn stream_max(&self, mem: &Memory) -> u32 {
        self.cfg.readahead_max.min(mem.budget.budget / BUDGET_SHARE).max(1)
    }

    /// The largest window of a stream of swapped pages, of which two may be there at once.
    fn swap_stream_max(&self, mem: &Memory) -> u32 {
        let room = mem.budget.budget / BUDGET_SHARE + mem.budget.high;
        let share = room / (2 * self.swap_streams.active().max(1));
        self.stream_max(mem).min(share.max(2 * WINDOW_FIRST))
    }

    /// A fault that has to read: alone, or with the window of its stream.
    pub(super) fn stream_window(&mut self, mem: &Memory, at: usize, p: u32) -> Window {
        let max = self.swap_stream_max(mem);
        let region = self.regions.get(at);
        let (low, high, advice) = (region.start, region.end, region.ra.advice);
        let stream = self.swap_streams.on_fault(p);
        stream.judge(p);
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
    pub(crate) fn marker_touched(&mut self, mem: &mut Memory, p: u32) -> Option<Ahead> {
        let at = self.regions.find(p)?;
        let max = self.swap_stream_max(mem);
        let region = self.regions.get(at);
        let (low, high) = (region.start, region.end);
        let table = &mut self.swap_streams;
        table.clock += 1;
        let clock = table.clock;
        let stream = table.streams.iter_mut().flatten().find(|s| s.marker == Some(p))?;
        stream.used = clock;
        let proven = stream.credit[0];
        stream.credit = [stream.credit[1], 0];
        stream.marker = None;
        let start = stream.end;
        let room = match stream.direction {
            Direction::Up | Direction::Unknown => start < high,
            Direction::Down => start > low && start < high,
        };
        mem.count(Counter::swap_ra_hit, proven);
        if !room {
            return None;
        }
        let mut stream = *stream;
        let (from, to) = stream.advance(start, max, low, high);
        stream.end = start;
        Some(Ahead { from, to, up: stream.direction != Direction::Down, at, clock, stream })
    }

    /// So many pages of the window are being read, or were there; `marker` is the first of them that is being read.
    pub(crate) fn window_read(&mut self, ahead: &Ahead, reached: u32, marker: Option<u32>) {
        let mut stream = ahead.stream;
        if reached > 0 {
            let last = ahead.page(reached - 1);
            stream.end = if ahead.up { last + 1 } else { last.saturating_sub(1) };
        }
        stream.marker = marker;
        let table = &mut self.swap_streams;
        if let Some(found) = table.streams.iter_mut().flatten().find(|s| s.used == ahead.clock) {
            *found = stream;
        }
    }

    /// A page of a window has arrived that nobody waits for: it is mapped at once if a stream is sure of it.
    pub(crate) fn is_mapped_on_arrival(&self, mem: &Memory, p: u32) -> bool {
        let page = mem.at(p);
        let ahead = page.is_readahead() && !page.is_marker() && !page.is_waited();
        if !ahead || self.cfg.readahead != Mode::Stream {
            return false;
        }
        self.swap_streams.streams.iter().flatten().any(|s| s.covers(p))
    }

    /// A page was mapped before anybody asked for it. It counts as a hit when a later marker is touched.
    pub(crate) fn credit(&mut self, mem: &mut Memory, p: u32) {
        if !mem.take_readahead(p) || !mem.at(p).has_slot() {
            return;
        }
        if let Some(stream) = self.swap_streams.streams.iter_mut().flatten().find(|s| s.covers(p)) {
            let later = match (stream.direction, stream.marker) {
                (Direction::Up | Direction::Unknown, Some(marker)) => p > marker,
                (Direction::Down, Some(marker)) => p < marker,
                (Direction::Up | Direction::Unknown | Direction::Down, None) => false,
            };
            stream.credit[usize::from(later)] += 1;
        }
    }

    /// A soft fault at `p`: if it continues a stream, what is cached ahead of it (from the second page on) is mapped, too.
    /// Nothing is known of the use of those pages, so they count as used, and are sampled again in their turn.
    pub(crate) fn soft_ahead(&mut self, mem: &Memory, p: u32) -> Option<Ahead> {
        let max = self.stream_max(mem);
        if self.cfg.readahead != Mode::Stream || !self.host.maps_ahead_of_soft_faults || max < 2 {
            return None;
        }
        let at = self.regions.find(p)?;
        let region = self.regions.get_mut(at);
        let (low, high) = (region.start, region.end);
        let table = &mut region.ra.streams.soft;
        let stream = table.on_fault(p);
        if stream.direction == Direction::Unknown {
            return None;
        }
        let (from, to) = stream.advance(p, max, low, high);
        Some(Ahead { from, to, up: stream.direction != Direction::Down, at, clock: stream.used, stream: *stream })
    }

    /// A first touch at `p`: if it continues a stream, zero pages are mapped ahead of it (from the second page on).
    pub(crate) fn zero_ahead(&mut self, mem: &Memory, p: u32) -> Option<Ahead> {
        let max = self.cfg.zero_ahead.min(mem.budget.budget / BUDGET_SHARE);
        let at = self.regions.find(p)?;
        if max < 2 {
            return None;
        }
        let region = self.regions.get_mut(at);
        let (low, high, advice) = (region.start, region.end, region.ra.advice);
        let stream = region.ra.streams.zero.on_fault(p);
        if stream.direction == Direction::Unknown || advice == Advice::Random {
            return None;
        }
        let (from, to) = stream.advance(p, max, low, high);
        Some(Ahead { from, to, up: stream.direction != Direction::Down, at, clock: stream.used, stream: *stream })
    }

    /// `reached` is the last page that was mapped ahead.
    pub(crate) fn zeroes_mapped(&mut self, ahead: &Ahead, reached: u32) {
        let table = &mut self.regions.get_mut(ahead.at).ra.streams.zero;
        if let Some(stream) = table.streams.iter_mut().flatten().find(|s| s.used == ahead.clock) {
            stream.end = if ahead.up { reached + 1 } else { reached.saturating_sub(1) };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, HostKind, MemoryMode};
    use crate::host::Host;
    use crate::types::{PageIdx, PageRange, RegionId};

    #[test]
    fn a_touched_marker_asks_for_the_next_window_from_where_the_last_one_came_to() {
        let config = Config::profile("pagetide", HostKind::Blind).expect("a profile");
        let config = config.memory(MemoryMode::Watermarks, 256, 256);
        let host = Host::of(&config);
        let mut mem = Memory::new(&config, &host);
        let mut readahead = Readahead::new(&config, host);
        assert!(readahead.regions.add(RegionId(0), PageRange::new(PageIdx(0), 256)));
        readahead.stream_window(&mem, 0, 10);
        let window = readahead.stream_window(&mem, 0, 11);
        assert_eq!((window.next, window.end, window.marker), (11, 15, Some(13)));
        assert!(readahead.marker_touched(&mut mem, 12).is_none(), "12 is no marker");
        let ahead = readahead.marker_touched(&mut mem, 13).expect("13 is the marker");
        assert_eq!((ahead.page(0), ahead.len()), (15, 8));
        readahead.window_read(&ahead, 3, Some(16));
        let ahead = readahead.marker_touched(&mut mem, 16).expect("the first that was read");
        assert_eq!((ahead.page(0), ahead.len()), (18, 16), "three of the eight were read");
    }

    fn streams() -> (Memory, Readahead) {
        let config = Config::profile("pagetide", HostKind::Blind).expect("a profile");
        let config = config.memory(MemoryMode::Watermarks, 65_536, 16_384);
        let host = Host::of(&config);
        let mem = Memory::new(&config, &host);
        let mut readahead = Readahead::new(&config, host);
        assert!(readahead.regions.add(RegionId(0), PageRange::new(PageIdx(0), 65_536)));
        (mem, readahead)
    }

    /// A region remembered six, and a merge of more runs was read page by page.
    #[test]
    fn sixty_four_streams_at_once_are_found() {
        let (mem, mut readahead) = streams();
        let mut alone = 0;
        for step in 0..2 {
            for run in 0..64 {
                let window = readahead.stream_window(&mem, 0, run * 1000 + step);
                alone += u32::from(window.end - window.next == 1);
            }
        }
        assert_eq!(alone, 64, "the first page of each run is read alone, the second with a window");
    }

    /// Of a python program's dictionary 78 of 100 pages read ahead were never used.
    #[test]
    fn a_window_that_is_not_used_shrinks_and_the_stream_ends() {
        let (mem, mut readahead) = streams();
        let pages = |window: Window| window.end - window.next;
        readahead.stream_window(&mem, 0, 100);
        assert_eq!(pages(readahead.stream_window(&mem, 0, 101)), 4);
        // A fault behind the window, whose marker nobody has touched.
        assert_eq!(pages(readahead.stream_window(&mem, 0, 106)), 1);
        assert_eq!(pages(readahead.stream_window(&mem, 0, 108)), 1, "no stream comes here any more");
    }
}
