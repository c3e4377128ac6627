//! What happens when: a heap keyed by (time, sequence), so that events of one moment come in the order they were put in.
//!
//! Not the library's: it writes a new entry to its place and takes it from there again, which waits for the writes to end, and the queue
//! is gone through once or twice for each miss.

use pagetide_core::types::Nanos;

#[derive(Clone, Copy, Debug)]
struct Entry<E> {
    at: Nanos,
    sequence: u64,
    event: E,
}

impl<E> Entry<E> {
    const fn is_before(&self, other: &Self) -> bool {
        self.at < other.at || (self.at == other.at && self.sequence < other.sequence)
    }
}

/// Events in virtual time. Small ones: they are copied.
#[derive(Debug)]
pub struct EventQueue<E> {
    /// A binary heap: none comes before the one at half its place (counted from one).
    heap: Vec<Entry<E>>,
    sequence: u64,
    now: Nanos,
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self { heap: Vec::new(), sequence: 0, now: 0 }
    }
}

impl<E: Copy> EventQueue<E> {
    /// The moment of the last event taken.
    pub const fn now(&self) -> Nanos {
        self.now
    }

    /// Puts `event` in at `at`; a moment that has passed means now.
    pub fn push(&mut self, at: Nanos, event: E) {
        self.sequence += 1;
        let entry = Entry { at: at.max(self.now), sequence: self.sequence, event };
        let mut place = self.heap.len();
        self.heap.push(entry);
        while place > 0 {
            let above = (place - 1) / 2;
            if self.heap[above].is_before(&entry) {
                break;
            }
            self.heap[place] = self.heap[above];
            self.heap[above] = entry;
            place = above;
        }
    }

    /// When the next event is due.
    pub fn next_at(&self) -> Option<Nanos> {
        self.heap.first().map(|entry| entry.at)
    }

    /// Takes the next event and moves the clock there.
    pub fn pop(&mut self) -> Option<(Nanos, E)> {
        let last = self.heap.pop()?;
        let Some(&next) = self.heap.first() else {
            self.now = last.at;
            return Some((last.at, last.event));
        };
        let (mut place, end) = (0, self.heap.len());
        loop {
            let mut below = 2 * place + 1;
            if below >= end {
                break;
            }
            if below + 1 < end && self.heap[below + 1].is_before(&self.heap[below]) {
                below += 1;
            }
            if last.is_before(&self.heap[below]) {
                break;
            }
            self.heap[place] = self.heap[below];
            place = below;
        }
        self.heap[place] = last;
        self.now = next.at;
        Some((next.at, next.event))
    }

    /// Events waiting.
    pub const fn len(&self) -> usize {
        self.heap.len()
    }

    /// True if nothing waits.
    pub const fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::XorShift64;

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

    #[test]
    fn events_come_by_their_time_however_many_there_are() {
        let (mut queue, mut rng) = (EventQueue::default(), XorShift64::stream(7, 1));
        let mut left = Vec::new();
        for number in 0..3000_u64 {
            let at = queue.now() + u64::from(rng.below(50));
            queue.push(at, number);
            left.push((at, number));
            if rng.below(3) == 0 {
                let first = *left.iter().min().expect("one was put in");
                left.retain(|&entry| entry != first);
                assert_eq!(queue.pop(), Some(first));
            }
        }
        left.sort_unstable();
        assert_eq!(std::iter::from_fn(|| queue.pop()).collect::<Vec<_>>(), left);
    }
}
