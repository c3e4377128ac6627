//! Children that end soon, and what their makers keep for that.
//!
//! Before a fork half of the memory is paged out, because a store to a page that is shared since makes a copy, of which the kernel tells
//! nobody: parent and child may have twice as much in a moment. But most children end, or execute another program, before they have
//! written much (perl's `system`, what a test harness forks, tasks of a server), and then the parent has written for nothing and reads back
//! all that it uses. So it is seen how children end, and who had some brief ones keeps at the next fork what it has.
//!
//! Of what a child and its maker have then, the child's part counts beyond the budget as long as it is shared: what it has at its birth,
//! less all minor faults of both since, each of which may have made a copy, but for those on the tables of its agent. That is never too
//! much, so what the copies need is paged out as they are made. Who is expected to be brief and is not may write faster than any disk
//! does: while too much is counted and copies are made, the threads that make them are stopped (`brake.rs`). A child that stays counts
//! whole after a while, as all do.

use std::sync::atomic::Ordering;

use pagetide_core::types::Nanos;
use pagetide_sys::{clock, proc};

use super::Supervisor;
use super::brake::{Brake, Whom};
use super::tree::{Process, Tree};

/// A brief child has ended, or executed another program, within this time.
const BRIEF_NS: Nanos = 1_000_000_000;
/// It and its maker have made no more copies than these meanwhile, as far as that is known: 8 MiB.
const COPIES_MAX: u64 = 2048;
/// So many brief children one after the other, and the next one is expected to be; twice as many after each that was not.
const PROOFS: u32 = 2;
const PROOFS_MAX: u32 = 1024;
/// Time between two looks at children that share what is not counted.
pub(super) const LOOK_NS: Nanos = 1_000_000;
/// So much may be counted too much before threads are stopped: 4 MiB, half of what may be in excess.
const EXCESS_PAGES: u64 = 1024;
/// Copies from one look to the next that make it worth to stop who makes them.
const COPYING_PAGES: u64 = 64;
/// What was copied too much leaves within this time, or it is not the copies.
const SETTLE_NS: Nanos = 10_000_000_000;

/// The children that a process has had.
#[derive(Clone, Copy, Debug)]
pub(super) struct Children {
    /// Brief ones, one after the other.
    brief: u32,
    /// So many are needed.
    proofs: u32,
}

impl Children {
    pub(super) const fn new() -> Self {
        Self { brief: 0, proofs: PROOFS }
    }

    fn note(&mut self, is_brief: bool) {
        if is_brief {
            self.brief = self.brief.saturating_add(1);
        } else {
            let was_wrong = self.are_brief();
            *self = Self { brief: 0, proofs: if was_wrong { (self.proofs * 2).min(PROOFS_MAX) } else { self.proofs } };
        }
    }

    const fn are_brief(&self) -> bool {
        self.brief >= self.proofs
    }
}

/// A forked child, from when it is told of until it is known whether it was brief.
#[derive(Debug)]
pub(super) struct Child {
    pid: i32,
    maker: i32,
    since: Nanos,
    /// Its maker has kept what it had.
    is_beside_all: bool,
    /// What it kept when its agent was started, before it ran; None: that is to come.
    born_with: Option<u64>,
    /// Its life is over, or was too long: it counts whole.
    is_judged: bool,
    /// Minor faults of it and of its maker when it was told of.
    first: [u64; 2],
    /// At the last look.
    faults: [u64; 2],
    /// Those of both since the look before.
    recent: u64,
    /// What its agent's tables take: as many minor faults, which make no copies.
    tables: u64,
}

impl Child {
    /// Copies that it and its maker may have made.
    fn copies(&self) -> u64 {
        let [own, makers] = [0, 1].map(|index| self.faults[index].saturating_sub(self.first[index]));
        own.saturating_sub(self.tables).saturating_add(makers)
    }

    /// Copies of what they shared, where that counts beyond the budget.
    fn copied(&self) -> u64 {
        self.born_with.filter(|_| self.is_beside_all).map_or(0, |pages| pages.min(self.copies()))
    }

    /// So many faults were counted by now.
    fn note(&mut self, faults: [u64; 2]) {
        let sum = |faults: [u64; 2]| faults.into_iter().fold(0, u64::saturating_add);
        self.recent = sum(faults).saturating_sub(sum(self.faults));
        self.faults = faults;
    }

    /// See whether it lives, and what it has copied; judge it if it is time.
    fn look(&mut self, now: Nanos, tree: &mut Tree) {
        let process = tree.list.iter().find(|process| process.pid == self.pid);
        let lives = process.is_some_and(|process| self.born_with.is_none() || process.link.is_some());
        if lives && let (Some(own), Some(makers)) = (minor_faults(self.pid), minor_faults(self.maker)) {
            self.note([own, makers]);
        }
        self.tables = process.map_or(self.tables, Process::overhead_pages);
        let is_late = now > self.since + BRIEF_NS;
        if self.is_judged || (lives && !is_late) {
            return;
        }
        self.is_judged = true;
        // Of one whose maker has paged out half most copies are of pages that leave.
        let is_brief = !is_late && (!self.is_beside_all || self.copies() <= COPIES_MAX);
        if let Some(maker) = tree.list.iter_mut().find(|process| process.pid == self.maker) {
            maker.note_child(is_brief);
        }
    }

    /// What of its pages, of which it keeps `resident`, is its maker's as well.
    fn shared(&self, resident: u64) -> u64 {
        let all = self.born_with.map_or(resident, |pages| pages.saturating_sub(self.copies()).min(resident));
        if self.is_beside_all { all } else { 0 }
    }

    /// What of that counts beyond the budget.
    fn beside(&self, resident: u64) -> u64 {
        if self.is_judged { 0 } else { self.shared(resident) }
    }
}

/// True if copies are why so much is kept too much, `once` of which is there once. What is kept for other reasons does not leave while who
/// copies stands.
const fn are_cause(copied: u64, excess: u64, once: u64) -> bool {
    let twice = excess.saturating_sub(once);
    twice > EXCESS_PAGES && twice <= EXCESS_PAGES + copied
}

/// What is known of children of late, and the brakes on those that copy.
#[derive(Debug, Default)]
pub(super) struct Brief {
    children: Vec<Child>,
    brakes: Vec<Brake>,
}

impl Brief {
    /// Some are to be looked at soon.
    pub(super) fn is_watching(&self) -> bool {
        self.children.iter().any(|child| child.is_beside_all)
    }
}

/// How many minor faults a process had; None: it has ended.
fn minor_faults(pid: i32) -> Option<u64> {
    proc::stat(Some(pid)).ok().filter(|stat| !proc::is_over(stat.state)).map(|stat| stat.minor_faults)
}

impl Supervisor {
    /// Process `pid` was forked, and its agent is to be started. `is_beside_all`: its maker has paged out nothing.
    pub(super) fn expect_brief(&mut self, pid: i32, maker: i32, is_beside_all: bool) {
        let first = [pid, maker].map(|pid| minor_faults(pid).unwrap_or(0));
        self.brief.children.push(Child {
            pid,
            maker,
            since: clock::now(),
            is_beside_all,
            born_with: None,
            is_judged: false,
            first,
            faults: first,
            recent: 0,
            tables: 0,
        });
    }

    /// The agent of a process is started, which keeps so much. If it was forked, it has not run since.
    pub(super) fn note_linked(&mut self, pid: i32, resident: u64) {
        for child in self.brief.children.iter_mut().filter(|child| child.pid == pid) {
            child.born_with = Some(resident);
        }
    }

    /// Pages that count beyond the budget: those of children that their makers have as well.
    pub(super) fn pages_beside(&self) -> u64 {
        let beside = |child: &Child| child.beside(self.tree.resident_of(child.pid));
        self.brief.children.iter().map(beside).sum()
    }

    /// See who has ended or stays, and who copies.
    pub(super) fn look_at_brief(&mut self) {
        if self.brief.children.is_empty() {
            return;
        }
        let now = clock::now();
        let excess = self.counted_pages().saturating_sub(self.countable_pages());
        let is_settled = excess <= EXCESS_PAGES;
        for child in &mut self.brief.children {
            child.look(now, &mut self.tree);
        }
        self.brake(excess, is_settled);
        let is_over = |child: &Child| !child.is_beside_all || is_settled || now > child.since + SETTLE_NS;
        self.brief.children.retain(|child| !child.is_judged || !is_over(child));
    }

    /// Stop those that copy while too much is counted because of it, and let them go.
    fn brake(&mut self, excess: u64, is_settled: bool) {
        let Brief { children, brakes } = &mut self.brief;
        brakes.retain(|brake| !is_settled && brake.holds());
        if is_settled {
            return;
        }
        let [copied, once] = children.iter().fold([0_u64; 2], |[copied, once], child| {
            let resident = self.tree.resident_of(child.pid);
            [copied + child.copied(), once + child.shared(resident) - child.beside(resident)]
        });
        let is_cause = are_cause(copied, excess, once);
        let whom = Whom::Storing { is_signal_mode: self.hello.signal_mode };
        for child in children.iter_mut().filter(|child| child.is_beside_all) {
            if std::mem::take(&mut child.recent) >= COPYING_PAGES && is_cause {
                brakes.extend([child.pid, child.maker].into_iter().filter_map(|pid| Brake::pull(pid, 0, whom)));
            }
        }
    }
}

impl Process {
    /// A child of it has lived, briefly or not.
    fn note_child(&mut self, is_brief: bool) {
        self.children.note(is_brief);
        if let Some(link) = &self.link {
            link.control.entry().keeps_at_fork.store(u32::from(self.children.are_brief()), Ordering::Relaxed);
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
                children.are_brief()
            });
            children.note(false);
            assert!(!children.are_brief());
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
    fn who_copies_is_stopped_for_what_is_there_twice_and_for_nothing_else() {
        assert!(!are_cause(0, 5_000, 0), "nothing was copied");
        assert!(!are_cause(4_000, EXCESS_PAGES, 0), "not too much");
        assert!(are_cause(4_000, EXCESS_PAGES + 1, 0) && are_cause(4_000, EXCESS_PAGES + 4_000, 0));
        assert!(!are_cause(4_000, EXCESS_PAGES + 4_001, 0), "more than was copied");
        assert!(!are_cause(4_000, 6_000, 6_000), "it counts whole, and is there once");
        assert!(are_cause(4_000, 6_000 + EXCESS_PAGES + 1, 6_000));
    }

    #[test]
    fn what_a_child_shares_is_what_it_was_born_with_less_the_copies_of_both() {
        let mut child = Child {
            pid: 2,
            maker: 1,
            since: 0,
            is_beside_all: true,
            born_with: None,
            is_judged: false,
            first: [100, 1000],
            faults: [100, 1000],
            recent: 0,
            tables: 0,
        };
        assert_eq!(child.shared(5000), 5000, "it has not run yet");
        child.born_with = Some(4800);
        assert_eq!(child.shared(5000), 4800, "its agent's tables are its own");
        child.note([300, 1100]);
        assert_eq!(child.copied(), 300);
        assert_eq!((child.shared(5000), child.recent), (4500, 300));
        assert_eq!(child.shared(30), 30, "no more than it keeps");
        child.note([200, u64::MAX]);
        assert_eq!((child.shared(5000), child.copied()), (0, 4800), "there were no more");
        child.note([100, 1000]);
        child.is_judged = true;
        assert_eq!((child.shared(5000), child.beside(5000)), (4800, 0), "it has stayed");
        child.is_beside_all = false;
        assert_eq!((child.shared(5000), child.copied()), (0, 0), "its maker has paged out half");
    }
}
