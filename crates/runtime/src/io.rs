//! Requests in flight: what was asked of the device, for which pages, and the engine that carries it out.
//!
//! An engine is io_uring where the kernel allows it, otherwise threads that call preadv2 and pwritev2; both are asynchronous
//! and behave the same. An engine keeps what it needs of a request: nothing points into the table.

use std::collections::VecDeque;
use std::sync::Arc;

use pagetide_core::types::{DeviceId, IoId, Nanos, PageIdx, PageRange, SlotIdx};
use pagetide_sys::Errno;
use pagetide_sys::fd::Fd;
use pagetide_sys::file::{self, IoVec};
use pagetide_sys::mem::ManagedRange;
use pagetide_sys::uring::{Entry, Ring};

use crate::extents::begins_extent;

/// Pages in one request at most.
pub(crate) const REQUEST_PAGES: usize = 64;
/// Pages that are worth a write of their own while there is time: 128 KiB.
const GATHER_PAGES: u32 = 32;
/// Requests in flight at most; more wait in a queue.
pub(crate) const REQUESTS: usize = 128;
/// And so many with a small budget: one for so many pages of it, at least.
const REQUESTS_MIN: usize = 24;
const PAGES_FOR_REQUEST: usize = 256;
/// So many are left to reads: a task may wait for one.
const FOR_READS: usize = 8;

/// Read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// One transfer between neighbouring slots and the frames of neighbouring pages, as the core orders it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub(crate) direction: Direction,
    pub(crate) io: IoId,
    pub(crate) device: DeviceId,
    pub(crate) slot: SlotIdx,
    pub(crate) range: PageRange,
}

/// A page of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PagePart {
    pub(crate) page: PageIdx,
    /// The order that it is part of.
    pub(crate) io: IoId,
    /// Of a write: its checksum, to be noted when it is done.
    pub(crate) sum: u128,
}

/// What an engine has: pages of one or several transfers in neighbouring slots, and their memory.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) direction: Direction,
    pub(crate) device: DeviceId,
    /// Slot of the first page.
    pub(crate) slot: SlotIdx,
    pub(crate) parts: [PagePart; REQUEST_PAGES],
    pub(crate) len: usize,
    pieces: [IoVec; REQUEST_PAGES],
    pieces_len: usize,
    pub(crate) fd: i32,
    /// Where in the file it begins.
    pub(crate) offset: u64,
    /// A write that no order of the core asked for: it has no parts.
    pub(crate) is_own: bool,
    /// The next page of the queue has to wait until another write has ended.
    pub(crate) is_blocked: bool,
    /// When the engine got it.
    pub(crate) begun: Nanos,
}

/// Requests that a thread passes on at once without the lock: a fault has one of its own, seldom more.
const PASSING: usize = 4;
/// Calls for them that the kernel may put off.
const PASSING_CALLS: u32 = 100;

/// What says, without the lock over the engine, that it is worth taking results. It keeps the memory of the ring, whatever becomes of that.
#[derive(Debug)]
pub(crate) struct Signs(pub(crate) Arc<Ring>);

impl Signs {
    pub(crate) fn are_there(&self) -> bool {
        self.0.has_news()
    }
}

/// Requests in the hands of the thread that is to pass them on, and no lock is held.
#[derive(Debug)]
pub(crate) struct Passing {
    ring: Arc<Ring>,
    tokens: [u32; PASSING],
    entries: [Entry; PASSING],
    len: usize,
}

/// What came of them.
#[derive(Debug)]
pub(crate) struct Passed {
    tokens: [u32; PASSING],
    len: usize,
    /// Those that the kernel has, from the first on.
    taken: usize,
    answer: Result<u32, Errno>,
}

impl Passing {
    pub(crate) fn new(ring: Arc<Ring>) -> Self {
        Self { ring, tokens: [0; PASSING], entries: [Entry::NOP; PASSING], len: 0 }
    }

    /// One more. False if there is no room.
    pub(crate) fn add(&mut self, token: u32, entry: Entry) -> bool {
        if self.len == PASSING {
            return false;
        }
        (self.tokens[self.len], self.entries[self.len]) = (token, entry);
        self.len += 1;
        true
    }

    /// By the thread in whose name it is. Others who pass something on come one after the other.
    pub(crate) fn pass_on(self) -> Passed {
        let mut submissions = self.ring.submissions();
        self.entries[..self.len].iter().for_each(|&entry| submissions.put(entry));
        let mut answer = Ok(0);
        for _ in 0..PASSING_CALLS {
            answer = submissions.enter(0);
            if submissions.pending() == 0 || !matches!(answer, Ok(_) | Err(Errno::EINTR | Errno::EAGAIN)) {
                break;
            }
        }
        let taken = self.len - (submissions.pending() as usize).min(self.len);
        submissions.take_back();
        Passed { tokens: self.tokens, len: self.len, taken, answer }
    }
}

impl Passed {
    /// Those that nobody has passed on.
    pub(crate) fn left(&self) -> &[u32] {
        &self.tokens[self.taken..self.len]
    }

    /// What the last call answered, and of how many.
    pub(crate) fn answer(&self) -> (u32, Result<u32, Errno>) {
        let asked = u32::try_from(self.len).expect("a small constant");
        (asked, self.answer)
    }
}

/// Descriptors that an engine watches while it waits.
pub(crate) const WATCHED: usize = 2;

/// Carries requests out.
pub(crate) trait Engine: Send + std::fmt::Debug {
    /// Take a request; `token` comes back with its result. May only queue it until `flush` or `wait`, or carry it out at once.
    fn submit(&mut self, token: u32, request: &Request);
    /// Pass on everything that is queued.
    fn flush(&mut self);
    /// True if something is queued that a flush would pass on.
    fn has_unsubmitted(&self) -> bool {
        false
    }
    /// What is queued, for a thread (`caller`, as for `set_caller`) that passes it on without the lock over the engine. None: there is
    /// nothing.
    fn begin_passing(&mut self, _caller: i32) -> Option<Passing> {
        None
    }
    /// The thread has the lock again.
    fn end_passing(&mut self, _passed: &Passed) {}
    /// Hand out the results that are there (bytes moved, or the error) while `done` returns true.
    fn reap(&mut self, done: &mut dyn FnMut(u32, Result<usize, Errno>) -> bool);
    /// Read from a file into a page, here and now: bytes.
    fn read_now(&self, file: &Fd, offset: u64, to: ManagedRange) -> Result<usize, Errno> {
        file::preadv(file, &[IoVec::new(to)], offset, 0)
    }
    /// Readable while results are there. For hosts whose threads wait for results without having the engine at hand.
    fn event(&self) -> &Fd;
    /// The same for who looks and does not sleep. For hosts whose engine is there for ever.
    fn signs(&self) -> Option<Signs> {
        None
    }
    /// A file that requests will name.
    fn opened(&mut self, _file: &Fd) {}
    /// No request names the file any more.
    fn closing(&mut self, _file: &Fd) {}
    /// Requests are passed on by this thread from now on; 0: by the engine's own.
    fn set_caller(&mut self, _thread: i32) {}
    /// True while a request is under way that this thread has passed on. It must not go on with what it does: the kernel interrupts
    /// its calls to end the request, and cannot end it while the thread waits for what it cannot be interrupted in (vfork).
    fn has_begun(&self, _thread: i32) -> bool {
        false
    }
    /// True if requests can be begun and waited for by threads with other descriptor tables.
    fn is_for_all_tables(&self) -> bool {
        false
    }
    /// Pass on what is queued, then sleep until a result is there, one of the descriptors is readable or the time is up.
    /// Which descriptors are readable. They are the same ones at every call.
    fn wait(&mut self, watched: [&Fd; WATCHED], timeout_ns: u64) -> [bool; WATCHED];
}

/// The requests.
#[derive(Debug)]
pub(crate) struct Requests {
    /// Entries that were ever used.
    table: Vec<Request>,
    free: Vec<u32>,
    /// Entries at most, [`REQUESTS`] or less.
    most: usize,
    /// Reads go first: a task may wait for one.
    reads: VecDeque<Transfer>,
    writes: VecDeque<Transfer>,
    reading: usize,
    /// Pages in `writes`.
    write_pages: u32,
}

impl Requests {
    pub(crate) fn new() -> Self {
        Self {
            table: Vec::with_capacity(REQUESTS),
            free: Vec::with_capacity(REQUESTS),
            most: REQUESTS,
            reads: VecDeque::with_capacity(1024),
            writes: VecDeque::with_capacity(4096),
            reading: 0,
            write_pages: 0,
        }
    }

    /// A transfer that is to be carried out as soon as there is an entry for it.
    pub(crate) fn push(&mut self, transfer: Transfer) {
        match transfer.direction {
            Direction::Read => self.reads.push_back(transfer),
            Direction::Write => {
                self.write_pages += transfer.range.len;
                self.writes.push_back(transfer);
            }
        }
    }

    /// No more entries are made than a process with so many pages can use: each costs 4 KiB, here and in the engine, and is kept.
    pub(crate) fn limit(&mut self, budget_pages: u32) {
        self.most = (budget_pages as usize / PAGES_FOR_REQUEST).clamp(REQUESTS_MIN, REQUESTS);
    }

    /// An entry for the next transfers, if there are any and an entry is free. Writes wait for more to join them if
    /// `is_gathering`.
    pub(crate) fn begin(&mut self, is_gathering: bool) -> Option<(u32, Direction)> {
        let direction = if self.reads.is_empty() { Direction::Write } else { Direction::Read };
        if direction == Direction::Write && is_gathering && self.write_pages < GATHER_PAGES {
            return None;
        }
        if direction == Direction::Write && self.in_flight() - self.reading + FOR_READS >= self.most {
            return None;
        }
        let device = self.queue(direction).front()?.device;
        let token = self.free.pop().or_else(|| self.new_entry())?;
        self.reading += usize::from(direction == Direction::Read);
        let request = &mut self.table[token as usize];
        (request.direction, request.device, request.len) = (direction, device, 0);
        (request.is_own, request.is_blocked) = (false, false);
        Some((token, direction))
    }

    /// An entry for a write of `len` slots from memory that stays as it is until the end; None: all are in use.
    pub(crate) fn begin_own_write(
        &mut self,
        device: DeviceId,
        slot: SlotIdx,
        len: u32,
        (fd, offset): (i32, u64),
        memory: ManagedRange,
    ) -> Option<u32> {
        let token = self.free.pop().or_else(|| self.new_entry())?;
        let request = &mut self.table[token as usize];
        (request.direction, request.device, request.slot) = (Direction::Write, device, slot);
        (request.len, request.is_own) = (len as usize, true);
        self.fill(token, (fd, offset), std::iter::once(memory));
        Some(token)
    }

    /// The page that was taken last cannot be written yet: it comes again.
    pub(crate) fn put_back(&mut self, token: u32, io: IoId, slot: SlotIdx, page: PageIdx) {
        let request = &mut self.table[token as usize];
        request.is_blocked = true;
        let (device, range) = (request.device, PageRange::one(page));
        self.write_pages += 1;
        self.writes.push_front(Transfer { direction: Direction::Write, io, device, slot, range });
    }

    fn new_entry(&mut self) -> Option<u32> {
        if self.table.len() >= self.most {
            return None;
        }
        let part = PagePart { page: PageIdx(0), io: IoId(0), sum: 0 };
        self.table.push(Request {
            direction: Direction::Read,
            device: DeviceId(0),
            slot: SlotIdx(0),
            parts: [part; REQUEST_PAGES],
            len: 0,
            pieces: [IoVec::default(); REQUEST_PAGES],
            pieces_len: 0,
            fd: -1,
            offset: 0,
            is_own: false,
            is_blocked: false,
            begun: 0,
        });
        u32::try_from(self.table.len() - 1).ok()
    }

    fn queue(&mut self, direction: Direction) -> &mut VecDeque<Transfer> {
        match direction {
            Direction::Read => &mut self.reads,
            Direction::Write => &mut self.writes,
        }
    }

    /// The next page for this entry: one in the slot behind its last one. Pages of several transfers become one request:
    /// random pages that are evicted together have neighbouring slots, and a device does few large transfers faster.
    /// `is_divided`: neighbouring slots of this device may lie apart.
    pub(crate) fn next_page(
        &mut self,
        token: u32,
        is_divided: impl Fn(DeviceId) -> bool,
    ) -> Option<(PageIdx, SlotIdx, IoId)> {
        let request = &self.table[token as usize];
        let (len, device, direction) = (request.len, request.device, request.direction);
        let expected = SlotIdx(request.slot.0 + u32::try_from(len).expect("a small constant"));
        if len == REQUEST_PAGES {
            return None;
        }
        let queue = self.queue(direction);
        let front = queue.front_mut()?;
        if len > 0 && (front.slot != expected || front.device != device) {
            return None;
        }
        if len > 0 && begins_extent(expected) && is_divided(device) {
            return None;
        }
        let (page, slot, io, device) = (front.range.first, front.slot, front.io, front.device);
        front.range = front.range.part(1, front.range.len - 1);
        front.slot = SlotIdx(slot.0 + 1);
        if front.range.len == 0 {
            queue.pop_front();
        }
        if queue.is_empty() {
            // It begins again at the start of its memory, and so never uses more of it than it is long.
            queue.clear();
        }
        self.write_pages -= u32::from(direction == Direction::Write);
        self.table[token as usize].device = device;
        Some((page, slot, io))
    }

    /// Put a page into the entry.
    pub(crate) fn add(&mut self, token: u32, slot: SlotIdx, part: PagePart) {
        let request = &mut self.table[token as usize];
        if request.len == 0 {
            request.slot = slot;
        }
        request.parts[request.len] = part;
        request.len += 1;
    }

    /// The engine gets the entry now.
    pub(crate) fn note_begin(&mut self, token: u32, now: Nanos) {
        self.table[token as usize].begun = now;
    }

    /// Name the memory of the entry, run by run, its file, and where in the file it begins.
    pub(crate) fn fill(&mut self, token: u32, (fd, offset): (i32, u64), memory: impl Iterator<Item = ManagedRange>) {
        let request = &mut self.table[token as usize];
        (request.fd, request.offset, request.pieces_len) = (fd, offset, 0);
        for piece in memory {
            request.pieces[request.pieces_len] = IoVec::new(piece);
            request.pieces_len += 1;
        }
    }

    /// A request in flight, or one that waits, names the device.
    pub(crate) fn name(&self, device: DeviceId) -> bool {
        self.name_slots(device, SlotIdx(0), u32::MAX)
    }

    /// The same of one of these slots.
    pub(crate) fn name_slots(&self, device: DeviceId, slot: SlotIdx, len: u32) -> bool {
        let names = |of: DeviceId, first: SlotIdx, pages: u64| {
            let (first, asked) = (u64::from(first.0), u64::from(slot.0));
            of == device && first < asked + u64::from(len) && asked < first + pages
        };
        let in_flight = (0..).zip(&self.table).filter(|(token, _)| !self.free.contains(token));
        let mut waiting = self.reads.iter().chain(&self.writes);
        in_flight.map(|(_, request)| request).any(|of| names(of.device, of.slot, of.len as u64))
            || waiting.any(|of| names(of.device, of.slot, of.range.len.into()))
    }

    /// Requests that an engine has.
    pub(crate) fn in_flight(&self) -> usize {
        self.table.len() - self.free.len()
    }

    /// A read of this page waits to begin.
    pub(crate) fn waits_to_read(&self, page: PageIdx) -> bool {
        self.reads.iter().any(|transfer| transfer.range.contains(page))
    }

    /// What waits to begin is worth a request.
    pub(crate) fn has_waiting(&self, is_gathering: bool) -> bool {
        let least = if is_gathering { GATHER_PAGES } else { 1 };
        !self.reads.is_empty() || self.write_pages >= least
    }

    /// Reads are in flight or waiting.
    pub(crate) fn is_reading(&self) -> bool {
        self.reading > 0 || !self.reads.is_empty()
    }

    pub(crate) fn get(&self, token: u32) -> &Request {
        &self.table[token as usize]
    }

    pub(crate) fn end(&mut self, token: u32) {
        self.reading -= usize::from(self.table[token as usize].direction == Direction::Read);
        self.free.push(token);
    }
}

impl Request {
    /// The memory, piece by piece.
    pub(crate) fn pieces(&self) -> &[IoVec] {
        &self.pieces[..self.pieces_len]
    }

    /// Bytes in all.
    pub(crate) const fn bytes(&self) -> usize {
        self.len << crate::space::PAGE_SHIFT
    }

    /// The slot of the page at `index`.
    pub(crate) fn slot_at(&self, index: usize) -> SlotIdx {
        SlotIdx(self.slot.0 + u32::try_from(index).expect("a small constant"))
    }
}
