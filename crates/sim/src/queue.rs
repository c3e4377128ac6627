//! What happens when: a heap keyed by (time, sequence), so that events of one moment come in the order they were put in.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use pagetide_core::types::Nanos;

#[derive(Debug)]
struct Entry<E> {
    at: Nanos,
    sequence: u64,
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

/// Events in virtual time.
#[derive(Debug)]
pub struct EventQueue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    sequence: u64,
    now: Nanos,
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self { heap: BinaryHeap::new(), sequence: 0, now: 0 }
    }
}

impl<E> EventQueue<E> {
    /// The moment of the last event taken.
    pub const fn now(&self) -> Nanos {
        self.now
    }

    /// Puts `event` in at `at`; a moment that has passed means now.
    pub fn push(&mut self, at: Nanos, event: E) {
        self.sequence += 1;
        self.heap.push(Reverse(Entry { at: at.max(self.now), sequence: self.sequence, event }));
    }

    /// When the next event is due.
    pub fn next_at(&self) -> Option<Nanos> {
        self.heap.peek().map(|entry| entry.0.at)
    }

    /// Takes the next event and moves the clock there.
    pub fn pop(&mut self) -> Option<(Nanos, E)> {
        let Reverse(entry) = self.heap.pop()?;
        self.now = entry.at;
        Some((entry.at, entry.event))
    }

    /// Events waiting.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// True if nothing waits.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_moment_keep_their_order_and_the_clock_never_goes_back() {
        let mut queue = EventQueue::default();
        queue.push(5, 'b');
        queue.push(3, 'a');
        queue.push(5, 'c');
        assert_eq!(queue.pop(), Some((3, 'a')));
        queue.push(1, 'x');
        assert_eq!(queue.pop(), Some((3, 'x')));
        assert_eq!(queue.pop(), Some((5, 'b')));
        assert_eq!(queue.pop(), Some((5, 'c')));
        assert_eq!(queue.pop(), None);
    }
}
