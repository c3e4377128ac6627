//! Our own readahead: many streams at once, up or down, with windows that grow while they are used, and are mapped whole.
//!
//! ```text
//!            marker                     end
//!   |--mapped--|M|------mapped------------|            a touch of M (unmapped: a soft fault) starts the next window
//!              ^ program is here          |M|--being read------------|
//! ```
//!
//! A fault next to the one before makes a stream, and so do three at equal distances (a stride). From then on each window is read in one piece, mapped when it arrives but
//! for its marker, and the touch of the marker starts the next: one fault per window, and the read is ahead by a window. A
//! touched marker proves that the pages before it were used; only then do they count as hits. A stream that faults while its
//! marker has not been touched, or on a page that was read for it and has gone again, has read too much: its window shrinks, and
//! a stream with the smallest window ends. Of random faults some are neighbours by chance: how many of the first windows were used
//! decides how large the next ones are, down to none ahead until a third fault follows. Pages ahead take free frames only: they never reclaim; and all streams together read
//! no more ahead than stays on probation until it is used (see `reclaim::watch`).
//!
//! Soft faults are treated alike, on pages that were taken out of the page table to see whether they are used: the cached pages
//! ahead are mapped with them.

use super::{BUDGET_SHARE, Readahead, Window};
use crate::config::Readahead as Mode;
use crate::event::Advice;
use crate::memory::Memory;
use crate::memory::tally::Tallied;
use crate::memory::used::SURE;

/// Streams of swapped pages, of all regions: a merge of 64 runs, and what else there is.
const SWAP_STREAMS: usize = 96;
/// Streams of soft faults that a region remembers.
const STREAMS: usize = 6;
/// Faults after which a stream that had none counts as idle.
const IDLE_FAULTS: u32 = 256;
/// First window of a stream, while first windows are used; fewer if they are not.
const WINDOW_FIRST: u32 = 4;
/// The pages from one fault of a stream to the next are at most so many.
const STEP_MAX: u32 = 64;
/// Faults that may come between two of a stride before it is known.
const STEP_FAULTS: u32 = 16;
/// Trust in first windows: that all of them are used; from where on they are of two pages, and of one.
const TRUST: u32 = 256;
const TRUST_TWO: u32 = 160;
const TRUST_ONE: u32 = 64;
/// A first window more changes it by so much of the difference.
const TRUST_PACE: u32 = 8;
/// A stream that jumps ahead by no more than this is the same stream.
const GAP_MAX: u32 = 64;

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
    /// From one page to the next, in pages.
    step: u32,
    /// With `Unknown`: what was read with that page, the first and the one after the last.
    around: (u32, u32),
    /// A marker of it was touched.
    is_proven: bool,
    /// First page beyond the latest window, in the direction; with `Unknown`, the page of the fault.
    end: u32,
    window: u32,
    marker: Option<u32>,
    /// Pages mapped ahead that are not yet known to be used: before the marker, and from it on.
    credit: [u32; 2],
    /// When it was used last, in faults and touched markers of its table.
    used: u32,
}

/// The streams of soft faults of a region.
pub(super) type Streams = Table<STREAMS>;

/// The streams of swapped pages.
pub(super) type SwapStreams = Table<SWAP_STREAMS>;

#[derive(Clone, Debug)]
pub(super) struct Table<const N: usize> {
    streams: [Option<Stream>; N],
    clock: u32,
    /// How many of the first windows are used, of [`TRUST`].
    trust: u32,
}

impl<const N: usize> Table<N> {
    pub(super) const fn new() -> Self {
        Self { streams: [None; N], clock: 0, trust: TRUST }
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
                if let Some(old) = self.streams[at].replace(Stream::at(p)) {
                    self.note_end(old);
                }
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

    /// The last of three faults at equal distances, that no stream continues, makes a stream of that stride.
    fn find_stride(&mut self, p: u32) {
        if self.streams.iter().flatten().any(|s| s.continues(p)) {
            return;
        }
        let alone = |s: &Option<Stream>| s.filter(|s| s.direction == Direction::Unknown);
        let is_recent = |s: &Stream| self.clock.wrapping_sub(s.used) < STEP_FAULTS;
        for at in 0..N {
            let Some(last) = alone(&self.streams[at]).filter(is_recent) else { continue };
            let (step, around) = (last.end.abs_diff(p), last.around.1 - last.around.0);
            let before = if p > last.end { last.end.checked_sub(step) } else { last.end.checked_add(step) };
            let is_first = |s: &Option<Stream>| alone(s).is_some_and(|s| Some(s.end) == before);
            if step > around
                && (2..=STEP_MAX).contains(&step)
                && let Some(first) = self.streams.iter().position(is_first)
            {
                self.streams[first] = None;
                let direction = if p > last.end { Direction::Up } else { Direction::Down };
                self.streams[at] = Some(Stream { direction, step, end: p, ..last });
                return;
            }
        }
    }

    /// A stream has come to its end: was its first window used?
    const fn note_end(&mut self, stream: Stream) {
        if stream.window > 1 && !stream.is_proven {
            self.trust -= self.trust / TRUST_PACE;
        }
    }

    /// A marker of a stream was touched, the first or a later one.
    const fn note_proof(&mut self, was_proven: bool) {
        if !was_proven {
            self.trust += (TRUST - self.trust) / TRUST_PACE;
        }
    }

    /// Pages of a stream's first window.
    const fn first_window(&self) -> u32 {
        if self.trust > TRUST_TWO {
            WINDOW_FIRST
        } else if self.trust > TRUST_ONE {
            2
        } else {
            1
        }
    }
}

impl Stream {
    /// One fault so far.
    const fn at(p: u32) -> Self {
        Self {
            direction: Direction::Unknown,
            step: 1,
            is_proven: false,
            around: (p, p + 1),
            end: p,
            window: 0,
            marker: None,
            credit: [0; 2],
            used: 0,
        }
    }

    /// So many steps from its end on.
    const fn beyond(&self, p: u32) -> Option<u32> {
        let distance = match self.direction {
            Direction::Unknown => None,
            Direction::Up => p.checked_sub(self.end),
            Direction::Down => self.end.checked_sub(p),
        };
        self.steps(distance)
    }

    /// So many steps before its end.
    const fn behind(&self, p: u32) -> Option<u32> {
        let distance = match self.direction {
            Direction::Unknown => None,
            Direction::Up => self.end.checked_sub(p),
            Direction::Down => p.checked_sub(self.end),
        };
        self.steps(distance)
    }

    const fn steps(&self, distance: Option<u32>) -> Option<u32> {
        match distance {
            Some(distance) if distance.is_multiple_of(self.step) => Some(distance / self.step),
            Some(_) | None => None,
        }
    }

    fn continues(&self, p: u32) -> bool {
        let is_next = match self.direction {
            Direction::Unknown => p == self.around.1 || p + 1 == self.around.0,
            Direction::Up | Direction::Down => self.beyond(p).is_some_and(|n| n <= self.window.min(GAP_MAX)),
        };
        is_next || self.has_read(p)
    }

    /// The page lies in the latest window.
    fn has_read(&self, p: u32) -> bool {
        self.behind(p).is_some_and(|n| (1..=self.window).contains(&n))
    }

    /// The page lies behind the end, within two windows: it was read for this stream.
    fn covers(&self, p: u32) -> bool {
        self.behind(p).is_some_and(|n| (1..=self.window * 2 + GAP_MAX).contains(&n))
    }

    /// A fault at `p` continues it. What it has read was not used, or is gone before it was: it is to read less, or nothing.
    fn judge(&mut self, p: u32) {
        if self.window == 0 || self.marker.is_none() && !self.has_read(p) {
            return;
        }
        if self.window > WINDOW_FIRST {
            self.window /= 4;
        } else {
            *self =
                Self { direction: Direction::Unknown, around: (p, p + 1), end: p, window: 0, marker: None, ..*self };
        }
    }

    /// The next window from `p` on, at least `first` and at most `max` pages, within the region.
    fn advance(&mut self, p: u32, first: u32, max: u32, region: (u32, u32)) -> Ahead {
        self.window = (self.window * 2).max(first).min(max);
        let up = self.direction != Direction::Down;
        let room = if up { region.1.saturating_sub(p).div_ceil(self.step) } else { (p - region.0) / self.step + 1 };
        let len = self.window.min(room);
        let mut ahead = Ahead { first: p, len, up, clock: self.used, stream: *self };
        self.end = ahead.page(len);
        ahead.stream = *self;
        ahead
    }
}

/// Pages to be read or mapped ahead of a stream, nearest first, and the stream they belong to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    first: u32,
    len: u32,
    up: bool,
    /// When the stream was used last.
    clock: u32,
    stream: Stream,
}

impl Ahead {
    /// How many pages.
    pub(crate) const fn len(&self) -> u32 {
        self.len
    }

    /// The page so many steps from the nearest.
    pub(crate) const fn page(&self, i: u32) -> u32 {
        let distance = i.saturating_mul(self.stream.step);
        if self.up { self.first.saturating_add(distance) } else { self.first.saturating_sub(distance) }
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

    /// A fault that has to read: with the window of its stream, or with what lies around it.
    pub(super) fn stream_window(&mut self, mem: &mut Memory, at: usize, p: u32) -> Window {
        let (max, widest) = (self.swap_stream_max(mem), self.stream_max(mem));
        let region = self.regions.get(at);
        let (low, high, advice) = (region.start, region.end, region.ra.advice);
        if advice != Advice::Random {
            self.swap_streams.find_stride(p);
        }
        let first = self.swap_streams.first_window();
        let stream = self.swap_streams.on_fault(p);
        let before = *stream;
        stream.judge(p);
        let has_ended = stream.direction == Direction::Unknown && before.direction != Direction::Unknown;
        if stream.direction == Direction::Unknown && advice == Advice::Sequential {
            stream.direction = Direction::Up;
            stream.window = max;
        }
        if stream.direction == Direction::Unknown || advice == Advice::Random || max < 2 {
            let alone = (p, p + 1);
            let (from, to) = if advice == Advice::Random { alone } else { Self::block(mem, p, (low, high), widest) };
            stream.around = (from, to);
            if has_ended {
                self.swap_streams.note_end(before);
            }
            return Window::pages(p, from, to);
        }
        let ahead = stream.advance(p, first, max, (low, high));
        let marker = ahead.page(ahead.len / 2);
        stream.marker = (marker != p).then_some(marker);
        stream.credit = [0; 2];
        let last = ahead.page(ahead.len - 1);
        let mut window = Window::pages(p, p.min(last), p.max(last) + 1).every(stream.step);
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
        let was_proven = core::mem::replace(&mut stream.is_proven, true);
        let proven = stream.credit[0];
        stream.credit = [stream.credit[1], 0];
        stream.marker = None;
        let start = stream.end;
        let room = match stream.direction {
            Direction::Up | Direction::Unknown => start < high,
            Direction::Down => start > low && start < high,
        };
        let mut stream = *stream;
        table.note_proof(was_proven);
        mem.count_at(p, Tallied::ReadAheadHit, proven);
        if !room {
            return None;
        }
        let mut ahead = stream.advance(start, WINDOW_FIRST, max, (low, high));
        ahead.stream.end = start;
        Some(ahead)
    }

    /// So many pages of the window are being read, or were there; `marker` is the first of them that is being read.
    pub(crate) fn window_read(&mut self, ahead: &Ahead, reached: u32, marker: Option<u32>) {
        let mut stream = ahead.stream;
        if reached > 0 {
            stream.end = ahead.page(reached);
        }
        stream.marker = marker;
        let table = &mut self.swap_streams;
        if let Some(found) = table.streams.iter_mut().flatten().find(|s| s.used == ahead.clock) {
            *found = stream;
        }
    }

    /// A page of a window has arrived that nobody waits for: it is mapped at once if a stream is sure of it, or nearly all that is
    /// read around faults there is used.
    pub(crate) fn is_mapped_on_arrival(&self, mem: &Memory, p: u32) -> bool {
        let page = mem.at(p);
        let ahead = page.is_readahead() && !page.is_marker() && !page.is_waited();
        if !ahead || self.cfg.readahead != Mode::Stream {
            return false;
        }
        self.swap_streams.streams.iter().flatten().any(|s| s.covers(p)) || mem.around.is_sure(p, SURE)
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
        let region = self.regions.get(at);
        let (low, high) = (region.start, region.end);
        let stream = self.regions.streams_mut(at)?.on_fault(p);
        (stream.direction != Direction::Unknown).then(|| stream.advance(p, WINDOW_FIRST, max, (low, high)))
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

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
        no_blocks(&mut mem);
        readahead.stream_window(&mut mem, 0, 10);
        let window = readahead.stream_window(&mut mem, 0, 11);
        assert_eq!((window.next, window.end, window.marker), (11, 15, Some(13)));
        assert!(readahead.marker_touched(&mut mem, 12).is_none(), "12 is no marker");
        let ahead = readahead.marker_touched(&mut mem, 13).expect("13 is the marker");
        assert_eq!((ahead.page(0), ahead.len()), (15, 8));
        readahead.window_read(&ahead, 3, Some(16));
        let ahead = readahead.marker_touched(&mut mem, 16).expect("the first that was read");
        assert_eq!((ahead.page(0), ahead.len()), (18, 16), "three of the eight were read");
    }

    /// What is read around faults is not used, so that only streams are seen.
    fn no_blocks(mem: &mut Memory) {
        for _ in 0..1000 {
            mem.around.note(0, false);
        }
    }

    fn streams() -> (Memory, Readahead) {
        let config = Config::profile("pagetide", HostKind::Blind).expect("a profile");
        let config = config.memory(MemoryMode::Watermarks, 65_536, 16_384);
        let host = Host::of(&config);
        let mut mem = Memory::new(&config, &host);
        no_blocks(&mut mem);
        let mut readahead = Readahead::new(&config, host);
        assert!(readahead.regions.add(RegionId(0), PageRange::new(PageIdx(0), 65_536)));
        (mem, readahead)
    }

    /// A region remembered six, and a merge of more runs was read page by page.
    #[test]
    fn sixty_four_streams_at_once_are_found() {
        let (mut mem, mut readahead) = streams();
        let mut alone = 0;
        for step in 0..2 {
            for run in 0..64 {
                let window = readahead.stream_window(&mut mem, 0, run * 1000 + step);
                alone += u32::from(window.end - window.next == 1);
            }
        }
        assert_eq!(alone, 64, "the first page of each run is read alone, the second with a window");
    }

    /// Of a python program's dictionary 78 of 100 pages read ahead were never used.
    #[test]
    fn a_window_that_is_not_used_shrinks_and_the_stream_ends() {
        let (mut mem, mut readahead) = streams();
        let pages = |window: Window| window.end - window.next;
        readahead.stream_window(&mut mem, 0, 100);
        assert_eq!(pages(readahead.stream_window(&mut mem, 0, 101)), 4);
        // A fault behind the window, whose marker nobody has touched.
        assert_eq!(pages(readahead.stream_window(&mut mem, 0, 106)), 1);
        assert_eq!(pages(readahead.stream_window(&mut mem, 0, 108)), 1, "no stream comes here any more");
    }

    /// Every third page was read by itself.
    #[test]
    fn three_faults_at_equal_distances_are_a_stride() {
        for (start, step, up) in [(3000, 3, true), (3000, 3, false), (0, 64, true)] {
            let (mut mem, mut readahead) = streams();
            let page = |i: u32| if up { start + i * step } else { start - i * step };
            for i in 0..2 {
                assert_eq!(readahead.stream_window(&mut mem, 0, page(i)).marker, None);
            }
            let mut window = readahead.stream_window(&mut mem, 0, page(2));
            let pages: Vec<u32> =
                core::iter::from_fn(|| (window.next < window.end).then(|| (window.next, window.next += step).0))
                    .collect();
            let mut want: Vec<u32> = (2..6).map(page).collect();
            want.sort_unstable();
            assert_eq!((pages, window.marker, window.step), (want, Some(page(4)), step));
            let ahead = readahead.marker_touched(&mut mem, page(4)).expect("the marker");
            assert_eq!((ahead.page(0), ahead.page(7), ahead.len()), (page(6), page(13), 8));
        }
    }

    #[test]
    fn a_stride_ends_at_the_border_of_its_region() {
        let (mut mem, mut readahead) = streams();
        for p in [30, 20] {
            readahead.stream_window(&mut mem, 0, p);
        }
        let window = readahead.stream_window(&mut mem, 0, 10);
        assert_eq!((window.next, window.end), (0, 11));
        for p in [65_480, 65_500] {
            readahead.stream_window(&mut mem, 0, p);
        }
        let window = readahead.stream_window(&mut mem, 0, 65_520);
        assert_eq!((window.next, window.end, window.marker), (65_520, 65_521, None));
    }

    /// Pages of the window that two neighbours bring.
    fn first_window(mem: &mut Memory, readahead: &mut Readahead, p: u32) -> u32 {
        readahead.stream_window(mem, 0, p);
        let window = readahead.stream_window(mem, 0, p + 1);
        window.end - window.next
    }

    /// Among random faults some are neighbours by chance: three of the four pages of a first window were read for nothing.
    #[test]
    fn first_windows_that_are_not_used_become_smaller() {
        let (mut mem, mut readahead) = streams();
        let sizes: Vec<u32> = (0..160).map(|i| first_window(&mut mem, &mut readahead, i * 400)).collect();
        assert_eq!((sizes[0], sizes[159]), (4, 1));
        assert!(sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
        // Streams that go on are trusted again.
        for run in 0..32 {
            let p = 100 + run * 1000;
            readahead.stream_window(&mut mem, 0, p);
            let marker =
                (1..4).find_map(|i| readahead.stream_window(&mut mem, 0, p + i).marker).expect("a stream by now");
            readahead.marker_touched(&mut mem, marker);
        }
        assert!(first_window(&mut mem, &mut readahead, 50_000) > 1);
    }
}
