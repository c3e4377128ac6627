//! Faults that wait: for the flight of their page to end, or for their next look.
//!
//! The table is of fixed size. No policy: who waits for what is decided elsewhere.

use crate::types::{Access, TaskId};
use alloc::{vec, vec::Vec};

const NONE: u32 = u32::MAX;

/// A fault that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiter {
    pub(crate) page: u32,
    pub(crate) task: TaskId,
    pub(crate) access: Access,
    next: u32,
}

const BUCKETS: usize = 1024;
/// Faults that wait at most; tasks beyond it are sent back to fault again.
const WAITERS_MAX: usize = 1 << 16;

/// Faults by the page they wait for, and those whose page is ready for another look.
#[derive(Debug)]
pub(crate) struct Waiters {
    pool: Vec<Waiter>,
    free: u32,
    heads: Vec<u32>,
    ready_head: u32,
    ready_tail: u32,
    ready_len: u32,
    /// All of them.
    len: u32,
}

impl Waiters {
    pub(crate) fn new() -> Self {
        Self {
            pool: Vec::with_capacity(WAITERS_MAX),
            free: NONE,
            heads: vec![NONE; BUCKETS],
            ready_head: NONE,
            ready_tail: NONE,
            ready_len: 0,
            len: 0,
        }
    }

    /// Somebody waits.
    pub(crate) const fn is_any(&self) -> bool {
        self.len > 0
    }

    fn bucket(page: u32) -> usize {
        page as usize % BUCKETS
    }

    fn take_entry(&mut self, page: u32, task: TaskId, access: Access) -> Option<u32> {
        let waiter = Waiter { page, task, access, next: NONE };
        if self.free != NONE {
            let at = self.free;
            self.free = self.pool[at as usize].next;
            self.pool[at as usize] = waiter;
            self.len += 1;
            return Some(at);
        }
        if self.pool.len() >= WAITERS_MAX {
            return None;
        }
        self.pool.push(waiter);
        self.len += 1;
        Some(u32::try_from(self.pool.len() - 1).expect("at most WAITERS_MAX"))
    }

    /// Wait for the page. False if the table is full.
    pub(crate) fn wait(&mut self, page: u32, task: TaskId, access: Access) -> bool {
        let Some(at) = self.take_entry(page, task, access) else {
            return false;
        };
        // At the end of the chain, so that those who came first are answered first.
        let bucket = Self::bucket(page);
        let mut last = self.heads[bucket];
        if last == NONE {
            self.heads[bucket] = at;
            return true;
        }
        while self.pool[last as usize].next != NONE {
            last = self.pool[last as usize].next;
        }
        self.pool[last as usize].next = at;
        true
    }

    /// The fault that has waited longest for the page waits no more.
    pub(crate) fn take(&mut self, page: u32) -> Option<Waiter> {
        let bucket = Self::bucket(page);
        let (mut previous, mut at) = (NONE, self.heads[bucket]);
        while at != NONE {
            let waiter = self.pool[at as usize];
            if waiter.page == page {
                if previous == NONE {
                    self.heads[bucket] = waiter.next;
                } else {
                    self.pool[previous as usize].next = waiter.next;
                }
                self.pool[at as usize].next = self.free;
                self.free = at;
                self.len -= 1;
                return Some(waiter);
            }
            (previous, at) = (at, waiter.next);
        }
        None
    }

    fn push_ready(&mut self, at: u32) {
        self.pool[at as usize].next = NONE;
        if self.ready_tail == NONE {
            self.ready_head = at;
        } else {
            self.pool[self.ready_tail as usize].next = at;
        }
        self.ready_tail = at;
        self.ready_len += 1;
    }

    /// Those who wait for the page may look again. Returns how many.
    pub(crate) fn release(&mut self, page: u32) -> u32 {
        let bucket = Self::bucket(page);
        let (mut previous, mut at, mut released) = (NONE, self.heads[bucket], 0);
        while at != NONE {
            let next = self.pool[at as usize].next;
            if self.pool[at as usize].page == page {
                if previous == NONE {
                    self.heads[bucket] = next;
                } else {
                    self.pool[previous as usize].next = next;
                }
                self.push_ready(at);
                released += 1;
            } else {
                previous = at;
            }
            at = next;
        }
        released
    }

    /// A fault that is to be looked at again soon. False if the table is full.
    pub(crate) fn defer(&mut self, page: u32, task: TaskId, access: Access) -> bool {
        let Some(at) = self.take_entry(page, task, access) else {
            return false;
        };
        self.push_ready(at);
        true
    }

    pub(crate) fn pop_ready(&mut self) -> Option<Waiter> {
        let at = self.ready_head;
        if at == NONE {
            return None;
        }
        let waiter = self.pool[at as usize];
        self.ready_head = waiter.next;
        if self.ready_head == NONE {
            self.ready_tail = NONE;
        }
        self.pool[at as usize].next = self.free;
        self.free = at;
        self.ready_len -= 1;
        self.len -= 1;
        Some(waiter)
    }

    pub(crate) const fn ready_len(&self) -> u32 {
        self.ready_len
    }
}
