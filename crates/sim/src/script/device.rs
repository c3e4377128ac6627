//! The devices of scripts: loop devices, and the plug in front of them.
//!
//! The kernel holds a task's requests back in a *plug* while the task submits a readahead window, or while reclaim makes a
//! pass over the lists. Nothing of it reaches the device before the plug holds 32 requests, or its first request has 128 KiB
//! when the next one begins, or the task sleeps, or what it was for is complete. Plugs do not nest: the writes of reclaim
//! that a charge within a window needs wait in the window's plug, behind its small reads. So reclaim inside a window
//! finds none of its writes done and writes on, some 4,000 pages (32 requests of 128), where reclaim outside of one has its
//! first pages back after a hundred microseconds.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use pagetide_core::types::{IoId, Nanos, PageIdx, PageRange};

/// Requests a plug holds.
const PLUG_REQUESTS: usize = 32;
/// Pages of a request: the device takes 128 segments.
const REQUEST_PAGES: u32 = 128;
/// Once the first request of a plug has so many pages, the plug is not filled further.
const PLUG_PAGES: u32 = 32;

/// How long a device takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// From the request to the task that goes on, beside what follows.
    read_ns: Nanos,
    write_ns: Nanos,
    /// What a request and each of its pages keep the device busy.
    read_busy_ns: Nanos,
    read_page_ns: Nanos,
    write_busy_ns: Nanos,
    write_page_ns: Nanos,
    /// What it takes longer after a moment without requests: its thread sleeps.
    wake_ns: Nanos,
    /// Reads and writes are taken in their order, one after the other; otherwise reads overtake.
    in_order: bool,
}

/// The device's thread sleeps when it has had nothing to do for so long.
const IDLE_NS: Nanos = 20_000;

/// A read goes before the writes that wait, but behind those that a disk has taken in already: at most so long.
const READ_WAIT_NS_MAX: Nanos = 7_000_000;

impl Timing {
    /// A loop device on a file on a fast disk: its thread, the file system, the disk, and the task's way to sleep and back. A
    /// second read begins when half of the first is done; writes go over one data path.
    pub const DISK: Self = Self {
        read_ns: 100_000,
        write_ns: 90_000,
        read_busy_ns: 0,
        read_page_ns: 2_500,
        write_busy_ns: 0,
        write_page_ns: 3_900,
        wake_ns: 0,
        in_order: false,
    };
    /// A loop device on a file in memory: its thread copies, one request after the other. Fitted to the kernel's block trace
    /// (6.18.44, 2 virtual CPUs): an idle device ends a read of 1 page 9 us after its issue, of 8 pages 15 us; a write of 1
    /// page 8 us, of 32 pages 25 us, of 60 pages 44 us; of 128 pages in a row each takes 70 us and more. That is a device that
    /// had something to do within 20 us; after longer idle times a write of 1 page takes 44 to 50 us, of 128 pages some 150.
    pub const MEMORY: Self = Self {
        read_ns: 11_000,
        write_ns: 5_000,
        read_busy_ns: 3_500,
        read_page_ns: 600,
        write_busy_ns: 3_500,
        write_page_ns: 580,
        wake_ns: 40_000,
        in_order: true,
    };
}

/// One I/O of the core, or the part of it that is in one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Part {
    pub(super) io: u32,
    pub(super) first: u32,
    pub(super) len: u32,
    pub(super) device: u8,
    pub(super) slot: u32,
    pub(super) write: bool,
}

impl Part {
    pub(super) const fn io(self) -> IoId {
        IoId(self.io)
    }

    pub(super) const fn pages(self) -> PageRange {
        PageRange::new(PageIdx(self.first), self.len)
    }
}

#[derive(Debug)]
struct Request {
    write: bool,
    device: u8,
    slot: u32,
    len: u32,
    parts: Vec<Part>,
}

impl Request {
    const fn new(part: Part) -> Self {
        Self { write: part.write, device: part.device, slot: part.slot, len: 0, parts: Vec::new() }
    }

    /// The part continues the request.
    const fn takes(&self, part: &Part) -> bool {
        self.write == part.write
            && self.device == part.device
            && self.slot + self.len == part.slot
            && self.len < REQUEST_PAGES
    }

    /// Takes as much of the part as fits; the rest.
    fn push(&mut self, part: Part) -> Option<Part> {
        let len = part.len.min(REQUEST_PAGES - self.len);
        self.parts.push(Part { len, ..part });
        self.len += len;
        let rest = Part { first: part.first + len, slot: part.slot + len, len: part.len - len, ..part };
        (rest.len > 0).then_some(rest)
    }
}

/// When a part ends; the number keeps the order of those that end together.
type Ending = (Nanos, u64, Part);

/// The device and its plug.
#[derive(Debug)]
pub(super) struct Line {
    timing: Timing,
    plug: Vec<Request>,
    /// A window's requests are being gathered.
    in_window: bool,
    read_free: Nanos,
    write_free: Nanos,
    endings: BinaryHeap<Reverse<Ending>>,
    numbers: u64,
}

impl Line {
    pub(super) const fn new(timing: Timing) -> Self {
        Self {
            timing,
            plug: Vec::new(),
            in_window: false,
            read_free: 0,
            write_free: 0,
            endings: BinaryHeap::new(),
            numbers: 0,
        }
    }

    /// A window of more than one page begins.
    pub(super) const fn begin_window(&mut self) {
        self.in_window = true;
    }

    /// The task's fault is answered.
    pub(super) fn end_window(&mut self, now: Nanos) {
        self.in_window = false;
        self.flush(now);
    }

    /// A pass of reclaim is over.
    pub(super) fn end_pass(&mut self, now: Nanos) {
        if !self.in_window {
            self.flush(now);
        }
    }

    pub(super) fn submit(&mut self, now: Nanos, part: Part) {
        let mut left = Some(part);
        while let Some(part) = left {
            let merges = self.plug.last().is_some_and(|last| last.takes(&part));
            if !merges {
                let large = self.plug.first().is_some_and(|first| first.len >= PLUG_PAGES);
                if self.plug.len() >= PLUG_REQUESTS || large {
                    self.flush(now);
                }
                self.plug.push(Request::new(part));
            }
            left = self.plug.last_mut().and_then(|last| last.push(part));
        }
        if !part.write && !self.in_window {
            self.flush(now);
        }
    }

    /// The plug's requests go to the device: its window is complete, or the task sleeps.
    pub(super) fn flush(&mut self, now: Nanos) {
        for request in std::mem::take(&mut self.plug) {
            let at = if request.write { self.write_ends(now, request.len) } else { self.read_ends(now, request.len) };
            for part in request.parts {
                self.numbers += 1;
                self.endings.push(Reverse((at, self.numbers, part)));
            }
        }
    }

    fn read_ends(&mut self, now: Nanos, len: u32) -> Nanos {
        let timing = self.timing;
        let busy = timing.read_busy_ns + u64::from(len) * timing.read_page_ns;
        if timing.in_order {
            self.write_free = self.writes_from(now) + busy;
            return self.write_free + timing.read_ns;
        }
        let cost = timing.read_ns + busy;
        let behind = self.write_free.saturating_sub(now).min(READ_WAIT_NS_MAX);
        let start = (now + behind).max(self.read_free);
        self.read_free = start + cost / 2;
        start + cost
    }

    fn write_ends(&mut self, now: Nanos, len: u32) -> Nanos {
        let timing = self.timing;
        let busy = timing.write_busy_ns + u64::from(len) * timing.write_page_ns;
        self.write_free = self.writes_from(now) + busy;
        self.write_free + timing.write_ns
    }

    /// When the data path is free, and awake.
    fn writes_from(&self, now: Nanos) -> Nanos {
        let sleeps = now.saturating_sub(self.write_free) > IDLE_NS;
        now.max(self.write_free) + if sleeps { self.timing.wake_ns } else { 0 }
    }

    /// When something ends next.
    pub(super) fn next_at(&self) -> Option<Nanos> {
        self.endings.peek().map(|Reverse(ending)| ending.0)
    }

    /// What has ended by now, one after the other.
    pub(super) fn ended(&mut self, now: Nanos) -> Option<Part> {
        if self.next_at()? > now {
            return None;
        }
        self.endings.pop().map(|Reverse(ending)| ending.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: Timing = Timing::DISK;

    fn part(slot: u32, len: u32, write: bool) -> Part {
        Part { io: 0, first: 0, len, device: 0, slot, write }
    }

    #[test]
    fn what_is_plugged_waits_for_thirty_two_requests() {
        let mut line = Line::new(DISK);
        line.begin_window();
        line.submit(0, part(9_000, 3, false));
        line.submit(0, part(1, 31 * 128, true));
        assert_eq!(line.next_at(), None, "one read and 31 writes are in the plug");
        line.submit(0, part(1 + 31 * 128, 1, true));
        assert_eq!(line.next_at(), Some(DISK.read_ns + 3 * DISK.read_page_ns), "the next request flushes them");
        line.flush(0);
        let mut ended = 0;
        while let Some(part) = line.ended(Nanos::MAX) {
            ended += part.len;
        }
        assert_eq!(ended, 3 + 31 * 128 + 1);
    }

    #[test]
    fn a_plug_that_begins_with_a_large_write_is_not_filled() {
        let mut line = Line::new(DISK);
        line.begin_window();
        line.submit(0, part(1, 128, true));
        assert_eq!(line.next_at(), None);
        line.submit(0, part(129, 1, true));
        assert_eq!(line.next_at(), Some(DISK.write_ns + 128 * DISK.write_page_ns));
    }

    #[test]
    fn outside_of_a_window_the_end_of_a_pass_sends_its_writes() {
        let mut line = Line::new(DISK);
        line.submit(7, part(1, 1, true));
        assert_eq!(line.next_at(), None);
        line.end_pass(9);
        assert_eq!(line.next_at(), Some(9 + DISK.write_ns + DISK.write_page_ns));
        line.begin_window();
        line.submit(9, part(2, 40, true));
        line.end_pass(9);
        assert_eq!(line.ended(Nanos::MAX).map(|part| part.len), Some(1));
        assert_eq!(line.next_at(), None, "a plug within a plug is none");
    }

    #[test]
    fn a_read_waits_behind_some_of_the_writes() {
        let mut line = Line::new(DISK);
        line.submit(0, part(1, 128, true));
        line.flush(0);
        line.submit(0, part(9_000, 1, false));
        assert_eq!(line.ended(Nanos::MAX).map(|part| part.write), Some(true));
        assert_eq!(line.next_at(), Some(128 * DISK.write_page_ns + DISK.read_ns + DISK.read_page_ns));
    }

    #[test]
    fn a_thread_that_copies_takes_reads_and_writes_in_their_order() {
        let memory = Timing::MEMORY;
        let mut line = Line::new(memory);
        line.submit(0, part(1, 128, true));
        line.flush(0);
        line.submit(0, part(9_000, 1, false));
        let write_busy = memory.write_busy_ns + 128 * memory.write_page_ns;
        assert_eq!(line.ended(Nanos::MAX).map(|part| part.write), Some(true));
        let read = write_busy + memory.read_busy_ns + memory.read_page_ns + memory.read_ns;
        assert_eq!(line.next_at(), Some(read));
    }

    #[test]
    fn a_thread_that_sleeps_is_woken_first() {
        let memory = Timing::MEMORY;
        let mut line = Line::new(memory);
        let mut ends_after = |now: Nanos| {
            line.submit(now, part(1, 1, true));
            line.flush(now);
            let at = line.next_at().expect("it was submitted");
            line.ended(at).expect("it is due");
            at - now
        };
        let alone = memory.write_busy_ns + memory.write_page_ns + memory.write_ns;
        assert_eq!(ends_after(0), alone);
        assert_eq!(ends_after(IDLE_NS), alone, "it had a request just before");
        assert_eq!(ends_after(10 * IDLE_NS), memory.wake_ns + alone);
    }
}
