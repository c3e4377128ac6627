//! Faults that wait for their pages, and how long those have waited that were answered.

use pagetide_core::types::{Nanos, PageIdx, PageRange};
use pagetide_kernel::AddressSpace;

use super::LiveMachine;

/// A fault that waits for its page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) page: PageIdx,
    thread: u32,
    pub(super) since: Nanos,
}

/// A fault that was answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answered {
    pub(crate) page: PageIdx,
    /// 0: the kernel did not say.
    pub(crate) thread: u32,
    /// When it was seen, and how long it waited.
    pub(crate) since: Nanos,
    pub(crate) ns: Nanos,
}

impl<K: AddressSpace> LiveMachine<K> {
    /// A fault of this thread on this page was seen at `now`: its latency is counted when the page is mapped.
    pub(crate) fn note_fault(&mut self, page: PageIdx, now: Nanos, thread: u32) {
        if self.woken.contains(page) {
            self.woken.len = 0;
        }
        if self.waiting.len() < self.waiting.capacity() {
            self.waiting.push(Waiting { page, thread, since: now });
            self.stalls.begin(now);
        }
    }

    /// Faults that wait, as far as they are counted.
    pub(crate) const fn waiting_count(&self) -> usize {
        self.waiting.len()
    }

    /// True if a fault of this thread is known to wait.
    pub(crate) fn waits(&self, thread: u32) -> bool {
        self.waiting.iter().any(|fault| fault.thread == thread)
    }

    /// True if a fault on this page is known to wait.
    pub(super) fn has_fault(&self, page: PageIdx) -> bool {
        self.waiting.iter().any(|fault| fault.page == page)
    }

    /// True if a fault on this page may wait: not all are known.
    pub(crate) fn is_awaited(&self, page: PageIdx) -> bool {
        self.waiting.len() == self.waiting.capacity() || self.has_fault(page)
    }

    /// The fault that has waited longest.
    pub(crate) fn oldest_fault(&self) -> Option<(PageIdx, Nanos)> {
        self.waiting.iter().map(|fault| (fault.page, fault.since)).min_by_key(|&(_, since)| since)
    }

    /// The faults that were answered since the last call.
    pub(crate) fn take_answered(&mut self, each: impl FnMut(Answered)) {
        self.answered.drain(..).for_each(each);
    }

    /// When a fault was answered last.
    pub(crate) const fn answered_at(&self) -> Nanos {
        self.answered_at
    }

    /// The faults on this range are answered; or they were the first touches of its pages.
    pub(super) fn count_answered(&mut self, range: PageRange, is_first_touch: bool) {
        if self.waiting.is_empty() {
            return;
        }
        let now = self.space.now();
        self.answered_at = now;
        let (answered, stalls) = (&mut self.answered, &mut self.stalls);
        self.waiting.retain(|&Waiting { page, thread, since }| {
            let (is_answered, ns) = (range.contains(page), now.saturating_sub(since));
            if is_answered {
                stalls.note_wait(ns, is_first_touch);
            }
            if is_answered && answered.len() < answered.capacity() {
                answered.push(Answered { page, thread, since, ns });
            }
            !is_answered
        });
        if self.waiting.is_empty() {
            self.stalls.end(now);
        }
    }
}
