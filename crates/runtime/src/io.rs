//! Requests in flight: what was asked of the device, for which pages, and the engine that carries it out.
//!
//! An engine is io_uring where the kernel allows it, otherwise threads that call preadv2 and pwritev2; both are asynchronous
//! and behave the same. The table of requests is allocated once and its entries do not move: the kernel holds addresses of
//! their vectors until the request is over.

use std::collections::VecDeque;

use pagetide_core::types::{DeviceId, IoId, PageIdx, PageRange, SlotIdx};
use pagetide_sys::Errno;
use pagetide_sys::fd::Fd;
use pagetide_sys::file::IoVec;
use pagetide_sys::mem::ManagedRange;

/// Pages in one request at most.
pub(crate) const REQUEST_PAGES: usize = 64;
/// Requests in flight at most; more wait in a queue.
pub(crate) const REQUESTS: usize = 128;

/// Read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Read,
    Write,
}

/// One transfer between neighbouring slots and the frames of neighbouring pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub(crate) direction: Direction,
    pub(crate) io: IoId,
    pub(crate) device: DeviceId,
    pub(crate) slot: SlotIdx,
    pub(crate) range: PageRange,
}

/// A transfer that an engine has, with what must stay in place meanwhile.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) transfer: Transfer,
    /// The memory, piece by piece.
    pub(crate) pieces: [IoVec; REQUEST_PAGES],
    pub(crate) pieces_len: usize,
    /// Of a write: the checksums, to be noted when it is done.
    pub(crate) sums: [u128; REQUEST_PAGES],
    pub(crate) fd: i32,
}

/// Carries requests out.
pub(crate) trait Engine: Send + std::fmt::Debug {
    /// Take a request; `token` comes back with its result. May only queue it until `flush`.
    fn submit(&mut self, token: u32, request: &Request);
    /// Pass on everything that is queued.
    fn flush(&mut self);
    /// Hand out the results that are there (bytes moved, or the error) while `done` returns true.
    fn reap(&mut self, done: &mut dyn FnMut(u32, Result<usize, Errno>) -> bool);
    /// Becomes readable when results are there.
    fn wait_fd(&self) -> &Fd;
    /// For people.
    fn name(&self) -> &'static str;
}

/// The requests.
#[derive(Debug)]
pub(crate) struct Requests {
    table: Box<[Request]>,
    free: Vec<u32>,
    waiting: VecDeque<Transfer>,
}

impl Requests {
    pub(crate) fn new() -> Self {
        let none = Transfer {
            direction: Direction::Read,
            io: IoId(0),
            device: DeviceId(0),
            slot: SlotIdx(0),
            range: PageRange::new(PageIdx(0), 0),
        };
        let empty = || Request {
            transfer: none,
            pieces: [IoVec::default(); REQUEST_PAGES],
            pieces_len: 0,
            sums: [0; REQUEST_PAGES],
            fd: -1,
        };
        Self {
            table: (0..REQUESTS).map(|_| empty()).collect(),
            free: (0..u32::try_from(REQUESTS).expect("a small constant")).rev().collect(),
            waiting: VecDeque::with_capacity(16 * 1024),
        }
    }

    /// A transfer that is to be carried out as soon as there is an entry for it. Split to what a request can hold.
    pub(crate) fn push(&mut self, transfer: Transfer) {
        let mut offset = 0;
        while offset < transfer.range.len {
            let len = (transfer.range.len - offset).min(REQUEST_PAGES as u32);
            self.waiting.push_back(Transfer {
                slot: SlotIdx(transfer.slot.0 + offset),
                range: PageRange::new(PageIdx(transfer.range.first.0 + offset), len),
                ..transfer
            });
            offset += len;
        }
    }

    /// The next transfer and an entry for it, if there are both.
    pub(crate) fn begin(&mut self) -> Option<(u32, Direction)> {
        if self.free.is_empty() {
            return None;
        }
        let transfer = self.waiting.pop_front()?;
        let token = self.free.pop().expect("seen above");
        let request = &mut self.table[token as usize];
        request.transfer = transfer;
        request.pieces_len = 0;
        Some((token, transfer.direction))
    }

    pub(crate) fn get(&self, token: u32) -> &Request {
        &self.table[token as usize]
    }

    /// Note the checksum of the page at `offset` of a write.
    pub(crate) fn set_sum(&mut self, token: u32, offset: usize, sum: u128) {
        self.table[token as usize].sums[offset] = sum;
    }

    /// The entry now stands for `run`, which begins at page `first` of what it stood for.
    pub(crate) fn narrow(&mut self, token: u32, run: Transfer, first: usize) {
        let request = &mut self.table[token as usize];
        request.sums.copy_within(first..first + run.range.len as usize, 0);
        request.transfer = run;
    }

    /// Append a piece of memory.
    pub(crate) fn push_piece(&mut self, token: u32, memory: ManagedRange) {
        let request = &mut self.table[token as usize];
        request.pieces[request.pieces_len] = IoVec::new(memory);
        request.pieces_len += 1;
    }

    pub(crate) fn set_fd(&mut self, token: u32, fd: i32) {
        self.table[token as usize].fd = fd;
    }

    pub(crate) fn end(&mut self, token: u32) {
        self.free.push(token);
    }

    /// Transfers in flight or waiting.
    pub(crate) fn pending(&self) -> usize {
        self.waiting.len() + REQUESTS - self.free.len()
    }
}

impl Request {
    /// The memory, piece by piece.
    pub(crate) fn pieces(&self) -> &[IoVec] {
        &self.pieces[..self.pieces_len]
    }

    /// Where in the file the transfer begins.
    pub(crate) fn offset(&self) -> u64 {
        u64::from(self.transfer.slot.0) << crate::spans::PAGE_SHIFT
    }
}
