//! When agents are started, and how often it is looked: before the budget could be full, and no earlier.

use std::os::unix::fs::MetadataExt;

use pagetide_core::types::Nanos;
use pagetide_sys::clock;

use crate::setup;
use crate::space::PAGE_BYTES;
use crate::supervise::Supervisor;
use crate::supervise::start::Starting;

/// How fast a program can fill fresh memory natively, generously: sets how often we look.
const FILL_BYTES_PER_MS: u64 = 4 << 20;
/// Who may fill fresh memory begins within this time.
const FILLED_NS: Nanos = 10_000_000;
/// Time between two looks for a child that was forked.
const BIRTH_LOOK_NS: Nanos = 100_000;
/// Time between two looks while threads are stopped until the memory of their process is managed.
const HELD_LOOK_NS: Nanos = 200_000;
/// Time between two looks while copies are made of what is shared, and little is left for them.
pub(super) const COPYING_LOOK_NS: Nanos = 1_000_000;
/// Time between two looks at a program that has just begun, until its words are known: it has linked by then and made no threads yet. Once these
/// fill memory, words take tens of ms to be read, under a lock for which all of them wait.
const EARLY_LOOK_NS: Nanos = 1_500_000;
/// So many early looks at most: a program that is slow to begin is not looked at all the time.
const EARLY_LOOKS: u32 = 4;
/// Least time between two looks while native processes fill memory.
const GROWING_LOOK_NS: Nanos = 250_000;
/// Most time between two looks where there are native processes: each look costs some microseconds a process.
const NATIVE_LOOK_NS: Nanos = 20_000_000;
/// Less growth between two looks says nothing of the next: 256 KiB.
const GROWN_PAGES_MIN: u64 = 64;
/// An agent is started if the budget would be full in this time: until the next look, and until the process has stopped.
const LEAD_MS: u64 = 4;
/// Where many threads fill memory, the next look may come as late as the last one did, which waits for a CPU, and for a lock that each of them
/// holds once before we do.
const LOCK_NS: Nanos = 500_000;
const LATE_NS_MAX: Nanos = 50_000_000;

/// In this time so many pages are filled, if they are at all, and seen.
pub(super) const fn time_to_fill_ns(pages: u64) -> Nanos {
    FILLED_NS.saturating_add(pages.saturating_mul(4 * 1_000_000 * PAGE_BYTES / FILL_BYTES_PER_MS))
}

/// How long what is left of the budget surely holds, within the bounds of a look's pauses: the time in which half of it could be filled, or
/// a quarter while it `is_filled`.
fn holds_ns(left_pages: u64, is_filled: bool) -> Nanos {
    let (parts, least) = if is_filled { (4, GROWING_LOOK_NS) } else { (2, 1_000_000) };
    (left_pages * PAGE_BYTES / parts * 1_000_000 / FILL_BYTES_PER_MS).clamp(least, NATIVE_LOOK_NS)
}

/// Threads of a process beside its first, which are the directories in one.
fn further_threads(pid: i32) -> u64 {
    std::fs::metadata(format!("/proc/{pid}/task")).map_or(0, |task| task.nlink().saturating_sub(3))
}

impl Supervisor {
    /// How long the budget surely holds: the time in which a program could fill half of what is left. A thread that rings waits for
    /// this long at most.
    pub(super) fn interval_ns(&self) -> u64 {
        self.resting.interval_ns(self.look_interval_ns())
    }

    /// So much is left that whoever is new may be found at the next look, however soon it comes.
    pub(super) fn has_plenty(&self) -> bool {
        self.holds_ns() >= NATIVE_LOOK_NS
    }

    fn look_interval_ns(&self) -> u64 {
        if self.births.iter().any(|birth| !birth.is_answered) {
            return BIRTH_LOOK_NS;
        }
        let mut starting = self.tree.list.iter().filter_map(|process| process.starting.as_ref());
        if let Some(first) = starting.next() {
            let holds = first.is_held() || starting.any(Starting::is_held);
            return if holds { HELD_LOOK_NS } else { 1_000_000 };
        }
        if self.is_copied_soon() {
            return COPYING_LOOK_NS;
        }
        let natives = self.tree.list.iter().any(|process| !process.is_managed());
        if !natives {
            return if self.tree.list.len() > 1 { 5_000_000 } else { 20_000_000 };
        }
        match &self.tree.list[..] {
            [only] if only.is_sought_for_less(EARLY_LOOKS) => EARLY_LOOK_NS.min(self.holds_ns()),
            _ => self.holds_ns(),
        }
    }

    /// See [`holds_ns`].
    fn holds_ns(&self) -> Nanos {
        holds_ns(self.left_pages(), self.filled_pages_per_ms > 0)
    }

    /// See how fast processes without an agent grow.
    pub(super) fn measure_growth(&mut self) {
        let now = clock::now();
        let natives: u64 =
            self.tree.list.iter().filter(|process| !process.is_managed()).map(|process| process.resident).sum();
        let grown = natives.saturating_sub(self.native_pages);
        let passed = (now - self.looked).max(1);
        self.filled_pages_per_ms = if grown < GROWN_PAGES_MIN { 0 } else { grown * 1_000_000 / passed };
        (self.native_pages, self.looked) = (natives, now);
    }

    /// As long as no process pages: see how much will be filled until one that is asked at the next look has stopped, as fast as it was last.
    /// What a process has that was not there at the last look is not new.
    pub(super) fn measure_filling(&mut self) {
        let now = clock::now();
        let passed = (now - std::mem::replace(&mut self.sized, now)).max(1);
        let is_native = self.tree.list.iter().all(|process| process.link.is_none());
        let (mut grown, mut threads) = (0_u64, 0);
        for process in &mut self.tree.list {
            let before = process.sized.replace(process.resident);
            let by = process.resident.saturating_sub(before.unwrap_or(process.resident));
            if is_native && by >= GROWN_PAGES_MIN && process.may_start() {
                grown += by;
                threads += further_threads(process.pid);
            }
        }
        let until_stopped = LEAD_MS * 1_000_000 + (threads * LOCK_NS).min(LATE_NS_MAX) + passed.min(LATE_NS_MAX);
        self.filled_soon_pages = grown.saturating_mul(until_stopped) / passed;
    }

    /// They would fill what is left.
    pub(super) fn is_filled_soon(&self) -> bool {
        self.filled_soon_pages > self.left_pages()
    }

    /// Start agents in the largest native processes while what is left of the budget could be filled before we look again.
    pub(super) fn adopt_if_near(&mut self) {
        let room = (self.budget_pages / 4).clamp((8 << 20) / PAGE_BYTES, (256 << 20) / PAGE_BYTES);
        let room = room.max(self.filled_pages_per_ms * LEAD_MS).max(self.filled_soon_pages);
        if self.left_pages() >= room {
            return;
        }
        let is_family = self.tree.list.len() > 1;
        let list = &mut self.tree.list;
        for process in list.iter_mut().filter(|process| is_family && !process.is_sharing_known() && process.may_start())
        {
            process.measure_sharing();
        }
        let mut natives: Vec<usize> = (0..list.len()).filter(|&index| list[index].may_start()).collect();
        natives.sort_by_key(|&index| std::cmp::Reverse(list[index].own_part()));
        let mut left: u64 = natives.iter().map(|&index| list[index].own_part()).sum();
        for index in natives {
            // To page out what others have as well frees nothing.
            let own = self.tree.list[index].own_part();
            if own < setup::BUDGET_PAGES_MIN || (left < self.budget_pages / 16 && own < 1024) {
                break;
            }
            left -= own;
            self.ask(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_looked_before_half_of_what_is_left_can_be_filled() {
        let pages = |mib: u64| mib << 8;
        assert_eq!([0, 8, 16].map(|mib| holds_ns(pages(mib), false)), [1_000_000, 1_000_000, 2_000_000]);
        assert_eq!([0, 8, 16].map(|mib| holds_ns(pages(mib), true)), [GROWING_LOOK_NS, 500_000, 1_000_000]);
        assert!(holds_ns(pages(159), false) < NATIVE_LOOK_NS && holds_ns(pages(160), false) == NATIVE_LOOK_NS);
        assert!(holds_ns(pages(319), true) < NATIVE_LOOK_NS && holds_ns(pages(4_000), true) == NATIVE_LOOK_NS);
    }
}
