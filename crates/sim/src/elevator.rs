//! The queue of a rotational disk: requests that wait, merged and sorted, as a deadline elevator does it.
//!
//! A request that continues a waiting one of its kind, or ends where one begins, becomes a part of it, up to
//! [`MERGED_PAGES_MAX`]; all parts end together. Requests are served in batches, each in a one-way sweep that begins with the
//! oldest request if that has waited for too long; what a task waits for (reads, and writes past the page cache) before what
//! the kernel writes by itself, until that has been passed over often enough. Facts of the kernel's block layer, from memory:
//! `max_sectors_kb` 512; of its deadline elevator `fifo_batch` 16 and `writes_starved` 2; of CFQ, which was the default until
//! 2018, the times after which a request is old, 125 ms and 250 ms.

use std::collections::BTreeMap;

use pagetide_core::types::Nanos;

use crate::disk::{Direction, Request};

/// Pages of a merged request.
const MERGED_PAGES_MAX: u32 = 128;
/// Requests of one class that are served before the other is thought of.
const BATCH: u32 = 16;
/// A batch begins with the oldest request if that has waited for longer (urgent, others).
const EXPIRE_NS: [Nanos; 2] = [125_000_000, 250_000_000];
/// Batches of urgent requests that are served over waiting others.
const WRITES_STARVED: u32 = 2;

/// One request to the device: those that were asked for, the earliest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Merged {
    pub(crate) direction: Direction,
    pub(crate) at: u64,
    pub(crate) pages: u32,
    /// When the earliest came.
    since: Nanos,
    /// The callers' numbers.
    pub(crate) ids: Vec<u64>,
}

impl Merged {
    pub(crate) fn new(request: Request, since: Nanos) -> Self {
        let Request { id, direction, at, pages, urgent: _ } = request;
        Self { direction, at, pages, since, ids: vec![id] }
    }
}

/// What waits.
#[derive(Debug)]
pub(crate) struct Elevator {
    /// Urgent ones and others, by place and then by the first caller's number.
    waiting: [BTreeMap<(u64, u64), Merged>; 2],
    /// Which of them the batch is of.
    class: usize,
    /// Requests left of the batch, and urgent batches that others have waited for.
    batch_left: u32,
    starved: u32,
}

impl Elevator {
    pub(crate) const fn new() -> Self {
        Self { waiting: [BTreeMap::new(), BTreeMap::new()], class: 0, batch_left: 0, starved: 0 }
    }

    /// Takes a request in. True: it became a part of one that waited already.
    pub(crate) fn add(&mut self, now: Nanos, request: Request) -> bool {
        let waiting = &mut self.waiting[class(request.urgent)];
        let mut new = Merged::new(request, now);
        let before = waiting.range_mut(..(new.at, 0)).next_back();
        if let Some((_, before)) = before
            && before.direction == new.direction
            && before.at + u64::from(before.pages) == new.at
            && before.pages + new.pages <= MERGED_PAGES_MAX
        {
            before.pages += new.pages;
            before.ids.append(&mut new.ids);
            return true;
        }
        let end = new.at + u64::from(new.pages);
        let fits = |after: &Merged| after.direction == new.direction && after.pages + new.pages <= MERGED_PAGES_MAX;
        let after = waiting.range((end, 0)..=(end, u64::MAX)).next().filter(|(_, after)| fits(after));
        if let Some(key) = after.map(|(key, _)| *key) {
            let mut after = waiting.remove(&key).expect("it was found just now");
            after.at = new.at;
            after.pages += new.pages;
            after.ids.append(&mut new.ids);
            waiting.insert((after.at, after.ids[0]), after);
            return true;
        }
        waiting.insert((new.at, new.ids[0]), new);
        false
    }

    /// The request that is served next by a head at `head`.
    pub(crate) fn next(&mut self, now: Nanos, mut head: u64) -> Option<Merged> {
        if self.batch_left == 0 || self.waiting[self.class].is_empty() {
            self.choose()?;
            let oldest = self.waiting[self.class].values().min_by_key(|r| (r.since, r.at))?;
            if now > oldest.since + EXPIRE_NS[self.class] {
                head = oldest.at;
            }
        }
        self.batch_left -= 1;
        let waiting = &mut self.waiting[self.class];
        // Nearest ahead, then the lowest: one-way sweeps starve nobody.
        let key = waiting.range((head, 0)..).next().or_else(|| waiting.iter().next()).map(|(key, _)| *key)?;
        waiting.remove(&key)
    }

    /// The class of the next batch, if anything waits.
    fn choose(&mut self) -> Option<()> {
        let [urgents, others] = [0, 1].map(|class: usize| !self.waiting[class].is_empty());
        (urgents || others).then_some(())?;
        let urgent = urgents && (!others || self.starved < WRITES_STARVED);
        self.class = class(urgent);
        self.starved = if urgent && others { self.starved + 1 } else { 0 };
        self.batch_left = BATCH;
        Some(())
    }
}

const fn class(urgent: bool) -> usize {
    if urgent { 0 } else { 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(direction: Direction, id: u64, at: u64, pages: u32) -> Request {
        Request { id, direction, at, pages, urgent: direction == Direction::Read }
    }

    fn served(elevator: &mut Elevator) -> Vec<Merged> {
        let mut head = 0;
        std::iter::from_fn(|| {
            let next = elevator.next(0, head)?;
            head = next.at + u64::from(next.pages);
            Some(next)
        })
        .collect()
    }

    #[test]
    fn neighbours_become_one_request_from_both_sides() {
        let mut elevator = Elevator::new();
        let joined = [(0, 100, 8), (1, 108, 1), (2, 99, 1), (3, 110, 1)]
            .map(|(id, at, pages)| elevator.add(0, request(Direction::Write, id, at, pages)));
        assert_eq!(joined, [false, true, true, false]);
        let all = served(&mut elevator);
        assert_eq!((all[0].at, all[0].pages, &all[0].ids[..]), (99, 10, &[0, 1, 2][..]));
        assert_eq!((all[1].at, all.len()), (110, 2));
    }

    #[test]
    fn a_read_joins_no_write_and_no_request_grows_past_its_limit() {
        let mut elevator = Elevator::new();
        elevator.add(0, request(Direction::Write, 0, 0, 120));
        assert!(!elevator.add(0, request(Direction::Read, 1, 120, 8)));
        assert!(elevator.add(0, request(Direction::Write, 2, 120, 8)));
        assert!(!elevator.add(0, request(Direction::Write, 3, 128, 1)));
        assert_eq!(served(&mut elevator).len(), 3);
    }

    #[test]
    fn a_batch_begins_with_a_request_that_has_waited_long() {
        let late = EXPIRE_NS[1] + 1;
        for (now, first) in [(late - 1, 500), (late, 9_000)] {
            let mut elevator = Elevator::new();
            elevator.add(0, request(Direction::Write, 0, 9_000, 1));
            elevator.add(now, request(Direction::Write, 1, 500, 1));
            assert_eq!(elevator.next(now, 0).map(|r| r.at), Some(first), "at {now}");
        }
    }

    #[test]
    fn writes_get_a_batch_after_two_of_reads() {
        let mut elevator = Elevator::new();
        for id in 0..100 {
            elevator.add(0, request(Direction::Read, id, id * 1000, 1));
            elevator.add(0, request(Direction::Write, 1000 + id, id * 1000, 1));
        }
        let order: Vec<Direction> = served(&mut elevator).iter().map(|r| r.direction).collect();
        let runs: Vec<usize> = order.chunk_by(|a, b| a == b).map(<[_]>::len).collect();
        assert_eq!(runs[..4], [32, 16, 32, 16]);
    }
}
