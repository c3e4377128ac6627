//! CPUs: a task computes only while it has one. First come first served, with a time slice where tasks wait.

use std::collections::VecDeque;

use pagetide_core::types::Nanos;

/// After so long a running task gives way to a waiting one (the kernel's base slice is about 3 ms).
pub const SLICE_NS: Nanos = 3_000_000;

/// Who has a CPU, and who waits for one.
#[derive(Debug)]
pub struct Cpus {
    free: u32,
    ready: VecDeque<u32>,
}

impl Cpus {
    /// So many CPUs, at least one.
    pub fn new(count: u32) -> Self {
        Self { free: count.max(1), ready: VecDeque::new() }
    }

    /// Gives the task a CPU; false if it has to wait in the queue.
    pub fn take(&mut self, task: u32) -> bool {
        if self.free == 0 {
            self.ready.push_back(task);
            return false;
        }
        self.free -= 1;
        true
    }

    /// A CPU is given back; the task that gets it at once, if one waits.
    pub fn give(&mut self) -> Option<u32> {
        let next = self.ready.pop_front();
        self.free += u32::from(next.is_none());
        next
    }

    /// True if a task waits for a CPU.
    pub fn is_contended(&self) -> bool {
        !self.ready.is_empty()
    }

    /// True if a CPU idles.
    pub const fn has_free(&self) -> bool {
        self.free > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_get_cpus_in_the_order_they_asked() {
        let mut cpus = Cpus::new(1);
        assert!(cpus.take(7));
        assert!(!cpus.take(8));
        assert!(!cpus.take(9));
        assert_eq!(cpus.give(), Some(8));
        assert_eq!(cpus.give(), Some(9));
        assert_eq!(cpus.give(), None);
        assert!(cpus.has_free());
    }
}
