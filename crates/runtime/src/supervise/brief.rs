//! Children that end soon, or store little, and what their makers keep for that.
//!
//! A store to a page that is shared since a fork makes a copy, of which the kernel tells nobody: parent and child may have twice as much in a
//! moment. So room is made before a fork. But most children end, or execute another program, before they have written much (perl's
//! `system`, what a test harness forks, tasks of a server), or only read what they share, and then the parent has written for nothing and
//! reads back all that it uses. So it is seen what children do: for one of whom nothing is known a quarter of the budget is free, after some
//! sparing ones a sixteenth, after one that copied a half. A guess can be wrong: the copies are seen as they are made (`sharing.rs`), and the
//! next guess needs more proof.

use std::sync::atomic::Ordering;

use pagetide_core::types::Nanos;
use pagetide_sys::clock;

use super::Supervisor;

/// A child is judged when it has ended, or executed another program, and after this time at the latest.
const JUDGED_NS: Nanos = 1_000_000_000;
/// A sparing one and its maker have made no more copies than these until then: 8 MiB.
const COPIES_MAX: u64 = 2048;
/// So many sparing children one after the other, and the next one is expected to be; twice as many after each that was not.
const PROOFS: u32 = 2;
const PROOFS_MAX: u32 = 1024;
/// One part in so many of the budget is to be free when a child is made that is expected to be sparing; of which nothing is known; and whose
/// predecessor was not sparing.
const SPARING_PART: u64 = 16;
const UNKNOWN_PART: u64 = 4;
const WASTEFUL_PART: u64 = 2;
/// Less than one part in so many is not worth to page out.
const LITTLE_PART: u64 = 64;

/// The children that a process has had.
#[derive(Clone, Copy, Debug)]
pub(super) struct Children {
    /// Sparing ones, one after the other.
    sparing: u32,
    /// So many are needed.
    proofs: u32,
    /// The last one was not.
    are_wasteful: bool,
}

impl Children {
    pub(super) const fn new() -> Self {
        Self { sparing: 0, proofs: PROOFS, are_wasteful: false }
    }

    fn note(&mut self, is_sparing: bool) {
        if is_sparing {
            (self.sparing, self.are_wasteful) = (self.sparing.saturating_add(1), false);
        } else {
            let was_wrong = self.are_sparing();
            let proofs = if was_wrong { (self.proofs * 2).min(PROOFS_MAX) } else { self.proofs };
            *self = Self { sparing: 0, proofs, are_wasteful: true };
        }
    }

    /// The next one is expected to be sparing.
    const fn are_sparing(&self) -> bool {
        self.sparing >= self.proofs
    }

    /// One part in so many of the budget is to be free when the next one is made.
    const fn part(&self) -> u64 {
        match (self.are_sparing(), self.are_wasteful) {
            (true, _) => SPARING_PART,
            (false, false) => UNKNOWN_PART,
            (false, true) => WASTEFUL_PART,
        }
    }
}

/// A forked child that has not been judged.
#[derive(Debug)]
pub(super) struct Child {
    pid: i32,
    maker: i32,
    since: Nanos,
    /// So many pages it shared when it was told of.
    shared: u64,
    /// Its agent was started.
    is_linked: bool,
    /// Stores of it and of its maker when it was told of, and at the last look.
    stores: [[u64; 2]; 2],
    /// What its agent's tables take: as many minor faults, which make no copies.
    tables: u64,
}

impl Child {
    /// Copies that it and its maker may have made.
    fn copies(&self) -> u64 {
        let [first, last] = self.stores;
        let [own, makers] = [0, 1].map(|index| last[index].saturating_sub(first[index]));
        own.saturating_sub(self.tables).saturating_add(makers)
    }

    /// What it was like. `left`: of one that lives, what it shares still.
    fn is_sparing(&self, left: Option<u64>) -> bool {
        self.copies() <= COPIES_MAX || left.is_some_and(|left| left >= self.shared / 2)
    }
}

impl Supervisor {
    /// Process `pid` was forked, and its agent is to be started.
    pub(super) fn expect_sparing(&mut self, pid: i32, maker: i32) {
        let stores = [[pid, maker].map(|pid| self.tree.stores_of(pid).unwrap_or(0)); 2];
        let sharers = self.tree.sharers();
        let shared = self.tree.process(pid).map_or(0, |process| process.shared_among(sharers));
        let since = clock::now();
        self.children.push(Child { pid, maker, since, shared, is_linked: false, stores, tables: 0 });
    }

    /// The agent of a process is started.
    pub(super) fn note_linked(&mut self, pid: i32) {
        self.children.iter_mut().filter(|child| child.pid == pid).for_each(|child| child.is_linked = true);
    }

    /// See who has ended, and who stays.
    pub(super) fn look_at_children(&mut self) {
        let now = clock::now();
        let tree = &mut self.tree;
        self.children.retain_mut(|child| {
            let process = tree.process(child.pid);
            let lives = process.is_some_and(|process| !child.is_linked || process.link.is_some());
            if let Some(process) = process.filter(|_| lives)
                && let (Some(own), Some(makers)) = (tree.stores_of(child.pid), tree.stores_of(child.maker))
            {
                child.stores[1] = [own, makers];
                child.tables = process.overhead_pages();
            }
            if lives && now <= child.since + JUDGED_NS {
                return true;
            }
            let left = process.filter(|_| lives).map(|process| process.shared_among(tree.sharers()));
            let is_sparing = child.is_sparing(left);
            if let Some(maker) = tree.list.iter_mut().find(|process| process.pid == child.maker) {
                maker.children.note(is_sparing);
            }
            false
        });
        self.say_what_is_given();
    }

    /// Tell all that page what they page out before a fork. What one shares with other children would free nothing.
    pub(super) fn say_what_is_given(&self) {
        let free = self.budget_pages.saturating_sub(self.resident_pages());
        let sharers = self.tree.sharers();
        for process in &self.tree.list {
            let Some(link) = &process.link else { continue };
            let wanted = (self.budget_pages / process.children.part()).saturating_sub(free);
            let given = wanted.min(process.resident.saturating_sub(process.shared_among(sharers)));
            let given = if given < self.budget_pages / LITTLE_PART { 0 } else { given };
            link.control.entry().given_at_fork.store(given, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guess_that_was_wrong_needs_twice_the_proof_the_next_time() {
        let mut children = Children::new();
        let proofs = |children: &mut Children| {
            let needed = (1..5000).find(|_| {
                children.note(true);
                children.are_sparing()
            });
            children.note(false);
            assert!(!children.are_sparing());
            needed
        };
        assert_eq!([proofs(&mut children), proofs(&mut children), proofs(&mut children)], [Some(2), Some(4), Some(8)]);
        children.note(true);
        children.note(false);
        assert_eq!(proofs(&mut children), Some(16), "nothing was guessed");
        (0..20).for_each(|_| _ = proofs(&mut children));
        assert_eq!(proofs(&mut children), Some(1024));
    }

    #[test]
    fn a_child_is_sparing_that_stores_little_or_still_shares() {
        let child = Child {
            pid: 2,
            maker: 1,
            since: 0,
            shared: 10_000,
            is_linked: true,
            stores: [[100, 1000], [600, 3000]],
            tables: 452,
        };
        assert!(child.is_sparing(None) && child.is_sparing(Some(0)), "2048 copies");
        let child = Child { tables: 451, ..child };
        assert!(!child.is_sparing(None));
        assert!(child.is_sparing(Some(5_000)) && !child.is_sparing(Some(4_999)), "what it stored was its own");
    }

    #[test]
    fn the_less_is_known_of_children_the_more_is_free_for_them() {
        let mut children = Children::new();
        let mut part = |is_sparing| {
            children.note(is_sparing);
            children.part()
        };
        assert_eq!(Children::new().part(), 4);
        assert_eq!([part(true), part(true), part(false), part(true), part(true)], [4, 16, 2, 4, 4]);
        assert_eq!([part(true), part(true)], [4, 16], "it was wrong once");
    }
}
