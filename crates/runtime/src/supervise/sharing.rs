//! Pages that several processes map since a fork: each process counts them, the budget counts them once.
//!
//! The kernel walks all that is mapped to tell what is shared (`Pss_Anon`), so it is asked where the processes seem to keep more than half
//! of the budget, and for at most a twentieth of the time. A store to a shared page makes a copy, of which nobody is told but the count of
//! minor faults: each since then may have made one. In a process without an agent that is as if it filled fresh memory, and there is as much
//! room for it. Those that page are to keep to their shares, so they may count less beyond the budget than what they share:
//!
//! - What has stayed shared for a while: most copies are made soon after a fork.
//! - No more than [`most`]: if copies of all of it were made between two looks, a run of a budget `B` would still keep to `1.10 B + 32 MiB`.
//!   Beside it all that is in mappings that may not be written, of which no store makes a copy. That is most of what the processes of a browser
//!   share (what the loader has relocated in a large library: 14 of 16 MiB of each), and since none of it can be paged either, it would
//!   else be all that they keep. What may be written is told mapping by mapping (/proc/PID/smaps), which takes longer: it is asked for
//!   seldom.

use pagetide_core::types::Nanos;
use pagetide_sys::{clock, maps, proc};

use super::Supervisor;
use super::tree::{Process, Tree};
use crate::space::PAGE_BYTES;

/// What is counted has stayed shared for so long, and up to twice as long.
const AGE_NS: Nanos = 200_000_000;
/// One part of so many of the time goes into asking the kernel.
const TIME_SHARE: u64 = 20;
/// Least time between two measurements.
const PAUSE_NS: Nanos = 20_000_000;
/// What may not be written is looked for in a process so often, and where it was found.
const SEEK_FIXED_NS: Nanos = 1_000_000_000;
const FIXED_AGAIN_NS: Nanos = 10_000_000_000;
/// So long at a time (a process takes some milliseconds).
const SEEK_NS: Nanos = 50_000_000;
/// What the processes that page may count beyond the budget, beside a sixteenth of it: 16 MiB.
const BEYOND_PAGES: u64 = 4096;

/// What one process shares.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shared {
    /// Its part of what is counted more than once: what it maps, less an Nth of each page that N processes map.
    pages: u64,
    /// The same in mappings that may not be written; and when it may be asked for again.
    fixed: u64,
    next_fixed: Nanos,
    /// Its minor faults, when that was known.
    faults: u64,
}

/// What these mappings (the text of smaps) share and no store copies, in pages: a page that N processes map counts less an Nth.
fn fixed_pages(smaps: &str) -> u64 {
    let kib = |line: &str, key| line.strip_prefix(key)?.trim().strip_suffix(" kB")?.parse::<u64>().ok();
    let (mut is_fixed, mut part, mut fixed) = (false, 0, 0);
    for line in smaps.lines() {
        // Anonymous pages are dirty as long as they are mapped.
        if let Some(dirty) = kib(line, "Pss_Dirty:") {
            part = dirty;
        } else if let Some(anonymous) = kib(line, "Anonymous:") {
            fixed += if is_fixed { anonymous.saturating_sub(part) } else { 0 };
        } else if let Some(vma) = maps::parse_line(line.as_bytes()) {
            is_fixed = !vma.write && !vma.shared;
            part = u64::MAX;
        }
    }
    fixed * 1024 / PAGE_BYTES
}

impl Process {
    /// What it keeps, of what it shares only its part.
    pub(super) fn own_part(&self) -> u64 {
        self.resident.saturating_sub(self.shared_pages())
    }

    /// What of it is counted where the budget is divided: all, if it is told what it may keep.
    pub(super) fn counted(&self) -> u64 {
        if self.is_managed() { self.resident } else { self.own_part() }
    }

    pub(super) fn shared_pages(&self) -> u64 {
        self.shared.map_or(0, |shared| shared.pages)
    }

    /// Of these, what no store copies.
    fn fixed_pages(&self) -> u64 {
        self.shared.map_or(0, |shared| shared.fixed.min(shared.pages))
    }

    /// Ask the kernel. The part of what it maps that is its own; None: it has ended.
    pub(super) fn measure_sharing(&mut self) -> Option<u64> {
        let (fixed, next_fixed) = self.shared.take().map_or((0, 0), |shared| (shared.fixed, shared.next_fixed));
        let faults = proc::stat(Some(self.pid)).ok()?.minor_faults;
        let sizes = proc::anon_sizes(self.pid).ok()?;
        let pages = (sizes.mapped_bytes - sizes.share_bytes) / PAGE_BYTES;
        self.shared = Some(Shared { pages, fixed, next_fixed, faults });
        Some(sizes.share_bytes / PAGE_BYTES)
    }

    /// Ask for what no store copies, if it is time.
    fn measure_fixed(&mut self, now: Nanos) {
        let pid = self.pid;
        let Some(shared) = self.shared.as_mut().filter(|shared| shared.pages > 0 && now >= shared.next_fixed) else {
            return;
        };
        // Nothing is known of one that has ended, or may not be looked at.
        shared.fixed = std::fs::read_to_string(format!("/proc/{pid}/smaps")).map_or(0, |smaps| fixed_pages(&smaps));
        shared.next_fixed = now + if shared.fixed > 0 { FIXED_AGAIN_NS } else { SEEK_FIXED_NS };
    }

    /// It may have made copies, if it has run since `looked`.
    fn note_copies(&mut self, looked: Nanos) {
        let has_run = self.used.is_none_or(|(_, since)| since >= looked);
        let Some(shared) = self.shared.as_mut().filter(|shared| shared.pages > 0 && has_run) else { return };
        let Ok(stat) = proc::stat(Some(self.pid)) else { return };
        let made = stat.minor_faults.saturating_sub(shared.faults);
        let pages = shared.pages.saturating_sub(made).max(shared.fixed.min(shared.pages));
        *shared = Shared { pages, faults: stat.minor_faults, ..*shared };
    }
}

impl Tree {
    /// A process has ended: what it shared with one other is that one's alone. Taken off whoever shares, until it is measured.
    pub(super) fn end_sharing(&mut self, gone: &Process) {
        let mut left = gone.shared_pages();
        for shared in self.list.iter_mut().filter_map(|process| process.shared.as_mut()) {
            let part = left.min(shared.pages);
            shared.pages -= part;
            left -= part;
        }
    }
}

/// What those that page share, over time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sharing {
    /// The least in the span of [`AGE_NS`] that is under way, and in the one before.
    least: [u64; 2],
    /// When the span under way began.
    since: Nanos,
    /// When it may be measured again.
    next: Nanos,
}

impl Sharing {
    pub(super) const fn new() -> Self {
        Self { least: [0; 2], since: 0, next: 0 }
    }

    /// So many pages that may be written are counted more than once.
    fn note(&mut self, at: Nanos, pages: u64) {
        if at >= self.since + AGE_NS {
            (self.least, self.since) = ([u64::MAX, self.least[0]], at);
        }
        self.least[0] = self.least[0].min(pages);
    }

    /// What may be counted beyond a budget, of `pages` that are counted more than once now, `fixed` of which no store copies.
    fn beyond(&self, budget_pages: u64, pages: u64, fixed: u64) -> u64 {
        fixed + self.least[0].min(self.least[1]).min(pages - fixed).min(most(budget_pages))
    }
}

/// What may be counted beyond a budget at most, of what may be written.
const fn most(budget_pages: u64) -> u64 {
    budget_pages / 16 + BEYOND_PAGES
}

impl Supervisor {
    /// Pages that those that page may count together, and what the others keep.
    pub(super) fn countable_pages(&self) -> u64 {
        let paging = || self.tree.list.iter().filter(|process| process.is_managed());
        let [shared, fixed] = [Process::shared_pages, Process::fixed_pages].map(|pages| paging().map(pages).sum());
        self.budget_pages + self.sharing.beyond(self.budget_pages, shared, fixed).max(self.pages_beside())
    }

    /// What of that they count, and what the others keep.
    pub(super) fn counted_pages(&self) -> u64 {
        self.tree.list.iter().map(Process::counted).fold(0, u64::saturating_add)
    }

    /// What is resident, as far as is known: a page that several processes map counts once.
    pub(super) fn resident_pages(&self) -> u64 {
        self.tree.list.iter().map(Process::own_part).fold(0, u64::saturating_add)
    }

    /// See what is counted more than once, and what the most is that was resident.
    pub(super) fn look_at_sharing(&mut self) {
        let counted = self.tree.resident();
        let list = &mut self.tree.list;
        if list.len() == 1 {
            self.sharing = Sharing::new();
            list[0].shared = None;
            self.resident_max = self.resident_max.max(counted);
            return;
        }
        list.iter_mut().for_each(|process| process.note_copies(self.looked));
        let begin = clock::now();
        if begin < self.sharing.next || counted <= self.resident_max.min(self.budget_pages / 2) {
            return;
        }
        let own = list.iter_mut().filter(|process| !process.is_borrower);
        let resident = own.filter_map(Process::measure_sharing).sum::<u64>().min(counted);
        let end = clock::now();
        self.sharing.next = end + (TIME_SHARE * (end - begin)).max(PAUSE_NS);
        let paging = |list: &[Process], pages: fn(&Process) -> u64| -> u64 {
            list.iter().filter(|process| process.is_managed()).map(pages).sum()
        };
        if paging(list, Process::shared_pages) > most(self.budget_pages) {
            for process in list.iter_mut().filter(|process| process.is_managed()) {
                let now = clock::now();
                if now < end + SEEK_NS {
                    process.measure_fixed(now);
                }
            }
        }
        self.sharing.note(end, paging(list, |process| process.shared_pages() - process.fixed_pages()));
        self.resident_max = self.resident_max.max(resident);
        self.tell_of_floors(resident);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: u64 = 1 << 30;

    #[test]
    fn what_has_stayed_shared_for_a_while_counts_once() {
        let mut sharing = Sharing::new();
        let beyond = |sharing: &Sharing| sharing.beyond(1 << 20, ALL, 0);
        sharing.note(10 * AGE_NS, 500);
        assert_eq!(beyond(&sharing), 0, "it may be written in a moment");
        sharing.note(10 * AGE_NS + 1, 400);
        sharing.note(11 * AGE_NS, 600);
        assert_eq!(beyond(&sharing), 400);
        sharing.note(12 * AGE_NS, 700);
        assert_eq!(beyond(&sharing), 600);
        sharing.note(12 * AGE_NS + 1, 300);
        assert_eq!(beyond(&sharing), 300, "what is less is known at once");
        assert_eq!(sharing.beyond(1 << 20, 200, 0), 200, "copies may have been made since");
    }

    #[test]
    fn copies_of_all_that_is_shared_stay_within_a_hard_limit() {
        let mut sharing = Sharing::new();
        (1..=3).for_each(|span| sharing.note(span * AGE_NS, ALL));
        for budget in [1 << 11, 1 << 14, 1 << 20] {
            let excess = sharing.beyond(budget, ALL, 0) + budget / 50 + 2048;
            assert!(excess > 2048 && excess <= budget / 10 + 8192, "{budget}");
            assert_eq!(sharing.beyond(budget, ALL, 777), sharing.beyond(budget, ALL, 0) + 777, "no store copies that");
        }
    }

    #[test]
    fn what_may_not_be_written_is_told_from_smaps() {
        let smaps = "\
55d0e0000000-55d0e0a00000 r--p 0a000000 fd:00 42 /usr/lib/large.so
Rss:               12000 kB
Pss_Dirty:          2000 kB
Anonymous:         10240 kB
VmFlags: rd mr mw me ac
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Pss_Dirty:          1000 kB
Anonymous:          4096 kB
7f0000400000-7f0000800000 r--s 00000000 00:05 7 /dev/shm/x
Pss_Dirty:             4 kB
Anonymous:          4096 kB
a000000000-a000400000 ---p 00000000 00:00 0 [anon: none]
Anonymous:          4096 kB
";
        assert_eq!(fixed_pages(smaps), 8240 / 4, "of the first, less its part; an old kernel tells of no parts");
        assert_eq!(fixed_pages("no smaps"), 0);
    }
}
