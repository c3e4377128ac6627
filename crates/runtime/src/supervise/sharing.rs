//! Pages that several processes map since a fork: each process counts them, the budget counts them once.
//!
//! The kernel walks all that is mapped to tell what is shared (`Pss_Anon`), so it is asked where the processes seem to keep more than half
//! of the budget, and for at most a twentieth of the time. Of a forked child it is known without asking: at its birth it shares all that it has
//! with its maker. A store to a shared page makes a copy, of which nobody is told but the count of minor faults: each since then that the
//! process's agent has not answered may have made one, up to what the process shares. So what is counted once is never more than what is
//! shared, and what copies need is paged out as they are made.
//!
//! No store copies what is in mappings that may not be written. That is most of what the processes of a browser share (what the loader has
//! relocated in a large library: 14 of 16 MiB of each), and they have many minor faults that are no copies. It is told mapping by mapping
//! (/proc/PID/smaps), which takes longer: it is asked for seldom, and only where memory is short.
//!
//! Stores are faster than any disk. While copies are made and too much is kept because of them, the threads that run in the processes that
//! make them are stopped (`brake.rs`).

use std::sync::atomic::Ordering;

use pagetide_core::types::Nanos;
use pagetide_core::vmstat::Counter;
use pagetide_sys::{clock, maps, proc};

use super::Supervisor;
use super::brake::{Brake, Whom};
use super::near::COPYING_LOOK_NS;
use super::tree::{Process, Tree};
use crate::space::PAGE_BYTES;

/// One part of so many of the time goes into asking the kernel.
const TIME_SHARE: u64 = 20;
/// The same where less than half of the budget is kept: what counts once is to be known for the peak alone.
const TIME_SHARE_OF_PEAK: u64 = 100;
/// Least time between two measurements.
const PAUSE_NS: Nanos = 20_000_000;
/// What may not be written is looked for in a process so often, and where it was found.
const SEEK_FIXED_NS: Nanos = 1_000_000_000;
/// While what may be written is more than this part of the budget.
const SEEK_FIXED_PART: u64 = 16;
const FIXED_AGAIN_NS: Nanos = 10_000_000_000;
/// So long at a time (a process takes some milliseconds).
const SEEK_NS: Nanos = 50_000_000;
/// So much may be kept too much before threads are stopped: 4 MiB, half of what may be in excess.
const EXCESS_PAGES: u64 = 1024;
/// While copies are made, or may be soon, and less than this is left, it is looked more often: 32 MiB, more than two CPUs copy from one look
/// to the next.
const ROOM_PAGES: u64 = 8192;
/// Copies of a process from one look to the next that make it worth to stop it.
const COPYING_PAGES: u64 = 64;

/// What one process shares.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shared {
    /// Its part of what is counted more than once: what it maps, less an Nth of each page that N processes map.
    pages: u64,
    /// The same in mappings that may not be written; and when it may be asked for again.
    fixed: u64,
    next_fixed: Nanos,
    /// Its stores since that was known, each of which may have made a copy.
    stores: u64,
    /// Those since the last look.
    recent: u64,
    /// All it has had by then.
    all_stores: u64,
    /// It was forked, and has not run yet.
    is_newborn: bool,
    /// Part of it is known from births alone.
    is_guess: bool,
}

impl Shared {
    /// So many stores were counted by now.
    const fn note(&mut self, all_stores: u64) {
        self.recent = all_stores.saturating_sub(self.all_stores);
        self.stores = self.stores.saturating_add(self.recent);
        self.all_stores = all_stores;
    }

    /// It was let go when there had been so many: what came before was its agent's. It may have run for long by now.
    fn begin(&mut self, begun_stores: u64) {
        let all_stores = self.all_stores.max(begun_stores);
        *self = Self { stores: 0, recent: 0, all_stores, is_newborn: false, ..*self };
    }

    /// Of its part, what may be written.
    const fn writable(&self) -> u64 {
        self.pages.saturating_sub(self.fixed)
    }

    /// Copies that it may have made. Of a page that two map each has half, and each of them may copy it.
    fn copies(&self) -> u64 {
        self.stores.min(self.writable().saturating_mul(2))
    }
}

/// What of this is counted more than once, at least: any copy may be of a page that others share.
fn counted_again<'a>(all: impl Iterator<Item = &'a Shared>) -> u64 {
    let [fixed, writable, copies] = all.fold([0_u64; 3], |[fixed, writable, copies], shared| {
        [fixed + (shared.pages - shared.writable()), writable + shared.writable(), copies + shared.copies()]
    });
    fixed + writable.saturating_sub(copies)
}

/// True if copies are why so much is kept too much, or will be. What is kept for other reasons does not leave while who copies stands.
const fn are_cause(copied: u64, excess: u64) -> bool {
    copied > 0 && excess <= EXCESS_PAGES + copied
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

    /// What of it is counted where the budget is divided: all, if it has an agent.
    pub(super) fn counted(&self) -> u64 {
        if self.link.is_some() { self.resident } else { self.own_part() }
    }

    /// Its part of what is counted more than once.
    pub(super) fn shared_pages(&self) -> u64 {
        self.shared.map_or(0, |shared| shared.pages - shared.copies().min(shared.writable()))
    }

    /// What it shares, if that is with all of so many (itself included): of each page an Nth is its own.
    pub(super) fn shared_among(&self, sharers: u64) -> u64 {
        let sharers = sharers.max(2);
        self.shared_pages().saturating_mul(sharers) / (sharers - 1)
    }

    /// Its minor faults, but for those that its agent has answered. In signal mode these are none in the kernel's count.
    pub(super) fn stores(&self) -> Option<u64> {
        let entry = self.link.as_ref().filter(|link| !link.is_signal_mode).map(|link| link.control.entry());
        // Before the kernel's count: what is answered between is taken for a store.
        let answered = entry.map_or(0, |entry| entry.counters[Counter::pgfault as usize].load(Ordering::Relaxed));
        Some(proc::stat(Some(self.pid)).ok()?.minor_faults.saturating_sub(answered))
    }

    /// True if the kernel was asked, and it has not forked since.
    pub(super) fn is_sharing_known(&self) -> bool {
        self.shared.is_some_and(|shared| !shared.is_guess)
    }

    /// Ask the kernel. The part of what it maps that is its own; None: it has ended.
    pub(super) fn measure_sharing(&mut self) -> Option<u64> {
        let before = self.shared.take().unwrap_or_default();
        let all_stores = self.stores()?;
        let sizes = proc::anon_sizes(self.pid).ok()?;
        let pages = (sizes.mapped_bytes - sizes.share_bytes) / PAGE_BYTES;
        self.shared =
            Some(Shared { pages, stores: 0, recent: 0, all_stores, is_newborn: false, is_guess: false, ..before });
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

    /// It shares so many pages more.
    fn share_more(&mut self, pages: u64) {
        let begin = || Shared { all_stores: self.stores().unwrap_or(0), ..Shared::default() };
        let shared = self.shared.unwrap_or_else(begin);
        self.shared = Some(Shared { pages: shared.pages + pages, is_guess: true, ..shared });
    }

    /// See how many copies it may have made, if it has run since `looked`.
    fn note_stores(&mut self, looked: Nanos) {
        let entry = self.link.as_ref().map(|link| link.control.entry()).filter(|entry| entry.is_managed());
        let begun = entry.map(|entry| entry.begun_faults.load(Ordering::Relaxed));
        let has_run = self.used.is_none_or(|(_, since)| since >= looked);
        let Some(before) = self.shared.filter(|shared| shared.pages > 0) else { return };
        let all_stores = if has_run { self.stores() } else { Some(before.all_stores) };
        let (Some(shared), Some(all_stores)) = (&mut self.shared, all_stores) else { return };
        if let Some(begun) = begun.filter(|_| shared.is_newborn) {
            shared.begin(begun);
        }
        shared.note(all_stores);
    }
}

impl Tree {
    /// Process `pid`, which is new, is a copy of `maker` and has `resident` pages: it shares all of them, with all that share if its maker does.
    pub(super) fn share_among(&mut self, pid: i32, maker: i32, resident: u64) {
        let are_many = self.process(maker).is_some_and(|process| process.shared_pages() > 0);
        let before = if are_many { self.sharers() } else { 1 };
        for process in &mut self.list {
            if process.pid == pid {
                // An Nth of it is its own, and an Nth less that of the others together.
                process.share_more(resident * before / (before + 1));
                process.shared.iter_mut().for_each(|shared| shared.is_newborn = true);
            } else if process.pid == maker || (are_many && process.shared_pages() > 0) {
                process.share_more(resident / (before + 1) / before);
            }
        }
    }

    /// Processes that share something.
    pub(super) fn sharers(&self) -> u64 {
        self.list.iter().filter(|process| process.shared_pages() > 0).count() as u64
    }

    /// Stores of one process, each of which may have made a copy; None: it has ended.
    pub(super) fn stores_of(&self, pid: i32) -> Option<u64> {
        self.process(pid)?.stores()
    }

    /// Who keeps less than it shared has given it back, or executed another program.
    fn shrink_sharing(&mut self) {
        for index in 0..self.list.len() {
            let Process { resident, shared: Some(shared), .. } = &mut self.list[index] else { continue };
            let gone = shared.pages.saturating_sub(*resident);
            // One that is new has not been looked at.
            if gone > 0 && *resident > 0 {
                shared.pages -= gone;
                self.end_sharing(gone, self.sharers().saturating_sub(1));
            }
        }
    }

    /// A process shares so much less with so many others. Of what N share each counts an Nth once, and there is one less that counts: the others
    /// lose its part divided among them. Taken off whoever shares, until it is measured.
    pub(super) fn end_sharing(&mut self, part: u64, others: u64) {
        let mut left = part / others.max(1);
        for most in [left / others.max(1), u64::MAX] {
            for shared in self.list.iter_mut().filter_map(|process| process.shared.as_mut()) {
                let part = left.min(most).min(shared.pages);
                shared.pages -= part;
                left -= part;
            }
        }
    }
}

/// When it was measured, and who is stopped because it copies.
#[derive(Debug, Default)]
pub(super) struct Sharing {
    /// When it was measured, and how long that took.
    measured: Nanos,
    took: Nanos,
    /// When stores were last counted.
    noted: Nanos,
    /// Copies that may have been made since too much is kept.
    copied: u64,
    brakes: Vec<Brake>,
}

impl Supervisor {
    /// Pages that those that page may count together, and what the others keep.
    pub(super) fn countable_pages(&self) -> u64 {
        self.budget_pages + self.counted_again()
    }

    /// What those that page count more than once.
    fn counted_again(&self) -> u64 {
        let paging = self.tree.list.iter().filter(|process| process.link.is_some());
        counted_again(paging.filter_map(|process| process.shared.as_ref()))
    }

    /// What of that they count, and what the others keep.
    pub(super) fn counted_pages(&self) -> u64 {
        self.tree.list.iter().map(Process::counted).fold(0, u64::saturating_add)
    }

    /// What is resident, as far as is known: a page that several processes map counts once.
    pub(super) fn resident_pages(&self) -> u64 {
        self.tree.list.iter().map(Process::own_part).fold(0, u64::saturating_add)
    }

    /// Stop those that copy while too much is counted because of it, or will be by the next look, and let them go. `copied`: since the last one.
    fn brake(&mut self, copied: u64) {
        let (counted, countable) = (self.counted_pages(), self.countable_pages());
        let excess = counted.saturating_sub(countable);
        if excess <= EXCESS_PAGES {
            self.sharing.copied = 0;
        }
        self.sharing.copied += copied;
        if counted + copied <= countable + EXCESS_PAGES {
            self.sharing.brakes.clear();
            return;
        }
        self.sharing.brakes.retain(Brake::holds);
        if copied < COPYING_PAGES || !are_cause(self.sharing.copied, excess) {
            return;
        }
        let whom = Whom::Storing { is_signal_mode: self.hello.signal_mode };
        let copies = |process: &&Process| process.shared.is_some_and(|shared| shared.recent >= COPYING_PAGES);
        let copying = self.tree.list.iter().filter(|process| process.is_managed()).filter(copies);
        self.sharing.brakes.extend(copying.filter_map(|process| Brake::pull(process.pid, 0, whom)));
    }

    /// True while copies of what is shared could be too many until the next look: some are made, or a child was just forked.
    pub(super) fn is_copied_soon(&self) -> bool {
        let may_copy = self.sharing.copied >= COPYING_PAGES || !self.children.is_empty();
        may_copy && self.counted_again() > 0 && self.counted_pages() + ROOM_PAGES > self.countable_pages()
    }

    /// See how many copies may have been made by those that have run since `looked`, and stop who makes too many.
    fn note_copies(&mut self, looked: Nanos) {
        let before = self.counted_again();
        self.tree.list.iter_mut().for_each(|process| process.note_stores(looked));
        self.tree.shrink_sharing();
        self.brake(before.saturating_sub(self.counted_again()));
        self.sharing.noted = clock::now();
    }

    /// While the kernel is asked, or a thread is waited for, the program makes copies.
    pub(super) fn note_copies_if_due(&mut self, now: Nanos) {
        if now >= self.sharing.noted + COPYING_LOOK_NS {
            // Who has run since the last look is not known before the next.
            self.note_copies(0);
        }
    }

    /// See what is counted more than once, and what the most is that was resident.
    pub(super) fn look_at_sharing(&mut self) {
        let counted = self.tree.resident();
        let list = &mut self.tree.list;
        if list.len() == 1 {
            self.sharing = Sharing::default();
            list[0].shared = None;
            self.resident_max = self.resident_max.max(counted);
            return;
        }
        self.note_copies(self.looked);
        let begin = self.sharing.noted;
        let half = self.budget_pages / 2;
        let time_share = if counted <= half { TIME_SHARE_OF_PEAK } else { TIME_SHARE };
        let next = self.sharing.measured + (time_share * self.sharing.took).max(PAUSE_NS);
        if begin < next || counted <= self.resident_max.min(half) {
            return;
        }
        let mut resident = 0;
        for index in 0..self.tree.list.len() {
            let process = &mut self.tree.list[index];
            resident += if process.is_borrower { 0 } else { process.measure_sharing().unwrap_or(0) };
            self.note_copies_if_due(clock::now());
        }
        let resident = resident.min(counted);
        let end = clock::now();
        (self.sharing.measured, self.sharing.took) = (end, end - begin);
        let writable: u64 =
            self.tree.list.iter().filter_map(|process| process.shared).map(|shared| shared.writable()).sum();
        if writable > self.budget_pages / SEEK_FIXED_PART {
            for index in 0..self.tree.list.len() {
                let now = clock::now();
                self.note_copies_if_due(now);
                if now < end + SEEK_NS && self.tree.list[index].is_managed() {
                    self.tree.list[index].measure_fixed(now);
                }
            }
        }
        self.resident_max = self.resident_max.max(resident);
        self.tell_of_floors(resident);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_once_is_what_is_shared_less_the_copies_of_all() {
        let half = Shared { pages: 500, all_stores: 70, ..Shared::default() };
        let mut family = [half, half, Shared { pages: 0, ..half }];
        let counted = |family: &[Shared]| counted_again(family.iter());
        assert_eq!(counted(&family), 1000);
        family[0].note(370);
        assert_eq!((counted(&family), family[0].recent), (700, 300));
        family[0].note(370);
        assert_eq!((counted(&family), family[0].recent), (700, 0), "it has not run");
        family[2].note(170);
        assert_eq!(counted(&family), 700, "it shares nothing");
        family[0].note(870);
        assert_eq!(counted(&family), 200, "the other's part is no more than that");
        family[0].fixed = 200;
        assert_eq!(counted(&family), 200 + 200, "no store copies that");
        family[0].note(u64::MAX);
        assert_eq!(counted(&family), 200 + 200);
        family[1].note(u64::MAX);
        assert_eq!(counted(&family), 200);
    }

    #[test]
    fn what_a_child_stores_before_it_is_looked_at_may_be_copies() {
        let mut child = Shared { pages: 500, all_stores: 20, is_newborn: true, ..Shared::default() };
        child.note(120);
        child.begin(300);
        assert_eq!((child.copies(), child.recent, child.is_newborn), (0, 0, false), "its agent's");
        child.note(700);
        assert_eq!((child.copies(), child.recent), (400, 400));
    }

    #[test]
    fn each_birth_and_each_end_is_of_all_that_is_shared() {
        let mut tree = Tree::default();
        let all = |tree: &Tree| tree.list.iter().map(Process::shared_pages).collect::<Vec<_>>();
        // None of these numbers is of a process.
        for (pid, expected) in [(-1, vec![0]), (-2, vec![600; 2]), (-3, vec![800; 3]), (-4, vec![900; 4])] {
            tree.add(pid, -1);
            if pid != -1 {
                tree.share_among(pid, -1, 1200);
            }
            assert_eq!(all(&tree), expected);
        }
        for (others, left) in [(3, 2400), (2, 1200), (1, 0)] {
            let gone = tree.list.remove(0);
            tree.end_sharing(gone.shared_pages(), tree.sharers());
            assert_eq!((all(&tree).len(), all(&tree).iter().sum::<u64>()), (others, left));
        }
    }

    #[test]
    fn who_copies_is_stopped_for_what_was_copied_and_for_nothing_else() {
        assert!(!are_cause(0, 5_000), "nothing was copied");
        assert!(are_cause(4_000, 0) && are_cause(4_000, EXCESS_PAGES + 4_000));
        assert!(!are_cause(4_000, EXCESS_PAGES + 4_001), "more than was copied");
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
