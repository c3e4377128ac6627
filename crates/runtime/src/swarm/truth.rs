//! What every address must hold, by what the programs did to it: a second, simple account, against which each load is checked.
//!
//! While a call on a range is under way, what its pages hold is not known to other threads, and is not checked.

use std::collections::BTreeMap;

use pagetide_kernel::model::{Answer, Call, Extent, ForkPolicy, Happened, Mapping, Pid, Rights, Tid};
use pagetide_sys::Errno;

use super::rig::OWN_VPN;

/// A page of a program.
#[derive(Clone, Copy, Debug)]
struct PageTruth {
    /// None: not known.
    value: Option<u64>,
    rights: Rights,
    fork: ForkPolicy,
    guarded: bool,
    /// The runtime has looked since the guard was installed.
    guard_was_seen: bool,
    /// Of a child: the parent began to change it after the copy and while the fork was under way. Which of the two the runtime hears of
    /// first is the kernel's to choose, so the page may be empty: right after a discard, a known gap (K14) after the others. What was to
    /// be wiped may have its old bytes after an unmapping or a move, the same gap.
    or_zero: bool,
    /// Of a child: what its parent had there at the copy. None: not known.
    at_copy: Option<u64>,
}

/// The account.
#[derive(Debug, Default)]
pub(super) struct Truth {
    pages: BTreeMap<(Pid, u64), PageTruth>,
    owners: BTreeMap<Tid, Pid>,
    under_way: Vec<(Tid, Pid, Extent)>,
    /// Accesses under way.
    touching: Vec<(Tid, Extent)>,
    /// Forks under way whose copy is made: thread, parent and child.
    forking: Vec<(Tid, Pid, Pid)>,
    /// What a call of the parent was changing when a child was copied: whether the child has mappings there is not known.
    unsure: Vec<(Pid, Extent)>,
    /// Where a device writes for a thread.
    pinned: BTreeMap<Tid, u64>,
    /// Accesses that were checked.
    pub(super) checked: u64,
}

impl Truth {
    pub(super) fn add_thread(&mut self, tid: Tid, pid: Pid) {
        self.owners.insert(tid, pid);
    }

    pub(super) fn map(&mut self, pid: Pid, mapping: Mapping) {
        let (value, guarded, guard_was_seen, or_zero, at_copy) = (Some(0), false, false, false, None);
        let Mapping { rights, fork, .. } = mapping;
        let page = PageTruth { value, rights, fork, guarded, guard_was_seen, or_zero, at_copy };
        self.pages.extend((mapping.start..mapping.end).map(|vpn| ((pid, vpn), page)));
    }

    pub(super) fn forget(&mut self, pid: Pid) {
        self.pages.retain(|&(owner, _), _| owner != pid);
        let owners = &self.owners;
        self.touching.retain(|(tid, _)| owners.get(tid) != Some(&pid));
        self.forking.retain(|&(_, parent, child)| parent != pid && child != pid);
        self.pinned.retain(|tid, _| owners.get(tid) != Some(&pid));
        self.owners.retain(|_, owner| *owner != pid);
        self.under_way.retain(|&(_, owner, _)| owner != pid);
        self.unsure.retain(|&(owner, _)| owner != pid);
    }

    /// The pages of a process whose content is known and can be read.
    pub(super) fn readable(&self, pid: Pid) -> impl Iterator<Item = u64> {
        let pages = self.pages.range((pid, 0)..=(pid, u64::MAX));
        pages.filter(|(_, page)| page.rights.allow(false) && !page.guarded).map(|(&(_, vpn), _)| vpn)
    }

    /// True of calls that change the address space.
    pub(super) fn changes(call: Call) -> bool {
        Self::changed(call).iter().any(Option::is_some)
    }

    fn changed(call: Call) -> [Option<Extent>; 2] {
        match call {
            Call::Unmap(extent)
            | Call::Discard(extent)
            | Call::GuardInstall(extent)
            | Call::GuardRemove(extent)
            | Call::Protect(extent, _)
            | Call::Map(extent)
            | Call::Lock(extent)
            | Call::Unlock(extent) => [Some(extent), None],
            Call::OnFork(extent, _) => [Some(extent), None],
            Call::Remap(from, to) => [Some(from), Some(to)],
            Call::RemapKeeping(from, to) => [Some(from), Some(from.at(to))],
            Call::Grow(extent, by) => [Some(Extent::new(extent.end, by)), None],
            Call::Load(_)
            | Call::Store(..)
            | Call::UnmapInVain(_)
            | Call::Populate(_)
            | Call::Collapse(_)
            | Call::Pin(_)
            | Call::Unpin(_)
            | Call::Fork
            | Call::ForbidHuge(_)
            | Call::AtGate(_) => [None, None],
        }
    }

    fn touched(call: Call) -> Option<Extent> {
        match call {
            Call::Load(vpn) | Call::Store(vpn, _) | Call::Pin(vpn) => Some(Extent::new(vpn, 1)),
            Call::Populate(extent) => Some(extent),
            Call::Unmap(_)
            | Call::UnmapInVain(_)
            | Call::Discard(_)
            | Call::GuardInstall(_)
            | Call::GuardRemove(_)
            | Call::Protect(..)
            | Call::Map(_)
            | Call::Lock(_)
            | Call::Unlock(_)
            | Call::OnFork(..)
            | Call::Remap(..)
            | Call::RemapKeeping(..)
            | Call::Grow(..)
            | Call::Collapse(_)
            | Call::Unpin(_)
            | Call::Fork
            | Call::ForbidHuge(_)
            | Call::AtGate(_) => None,
        }
    }

    /// `losses`: pages may have been lost, and say so by SIGBUS.
    pub(super) fn hear(&mut self, happened: Happened, losses: bool) {
        match happened {
            Happened::Began(tid, call) => {
                self.touching.extend(Self::touched(call).map(|extent| (tid, extent)));
                let Some(&pid) = self.owners.get(&tid) else { return };
                let extents = Self::changed(call).into_iter().flatten();
                for (_, _, child) in self.forking.clone().into_iter().filter(|&(_, parent, _)| parent == pid) {
                    let is_gone = matches!(call, Call::Unmap(_) | Call::Remap(..) | Call::RemapKeeping(..));
                    let change = |page: &mut PageTruth| {
                        page.or_zero = true;
                        if is_gone && page.fork == ForkPolicy::Wipe {
                            page.value = page.at_copy;
                        }
                    };
                    extents.clone().for_each(|extent| self.each(child, extent, change));
                }
                self.under_way.extend(extents.map(|extent| (tid, pid, extent)));
            }
            Happened::Copied(tid, child) => self.copy(tid, child),
            Happened::Started(_, pid, tid) => self.add_thread(tid, pid),
            Happened::Looked(pid, extent) => self.each(pid, extent, |page| page.guard_was_seen = page.guarded),
            Happened::Covered(pid, vpn) => self.covered(pid, vpn),
            Happened::Ended(tid, call, answer) => {
                self.touching.retain(|&(other, _)| other != tid);
                let Some(&pid) = self.owners.get(&tid) else { return };
                self.under_way.retain(|&(other, _, _)| other != tid);
                self.forking.retain(|&(other, _, _)| other != tid);
                self.ended(tid, pid, call, answer, losses);
            }
        }
    }

    fn is_changing(&self, pid: Pid, vpn: u64) -> bool {
        self.under_way.iter().any(|&(_, owner, extent)| owner == pid && (extent.start..extent.end).contains(&vpn))
    }

    fn copy(&mut self, tid: Tid, child: Pid) {
        let Some(&parent) = self.owners.get(&tid) else { return };
        self.forking.push((tid, parent, child));
        let copies: Vec<_> = self
            .pages
            .range((parent, 0)..=(parent, u64::MAX))
            .filter(|(_, page)| page.fork != ForkPolicy::Dont)
            .map(|(&(_, vpn), &page)| {
                let known = |value: Option<u64>| value.filter(|_| !self.is_changing(parent, vpn));
                let value = known(if page.fork == ForkPolicy::Wipe { Some(0) } else { page.value });
                let guarded = page.guarded && page.fork == ForkPolicy::Copy;
                ((child, vpn), PageTruth { value, guarded, at_copy: known(page.value), ..page })
            })
            .collect();
        self.pages.extend(copies);
        let unsure: Vec<_> =
            self.under_way.iter().map(|&(_, owner, extent)| (owner, extent)).chain(self.unsure.clone()).collect();
        self.unsure.extend(unsure.into_iter().filter(|&(owner, _)| owner == parent).map(|(_, extent)| (child, extent)));
    }

    fn is_unsure(&self, pid: Pid, vpn: u64) -> bool {
        self.unsure.iter().any(|&(owner, extent)| owner == pid && (extent.start..extent.end).contains(&vpn))
    }

    /// A guard was lost. That is so only of one that was installed after the runtime had looked (a known gap), or while a thread waited
    /// for the very page.
    fn covered(&mut self, pid: Pid, vpn: u64) {
        let is_touched = self.touching.iter().any(|(_, extent)| (extent.start..extent.end).contains(&vpn));
        let page = self.pages.get(&(pid, vpn));
        let was_seen = page.is_some_and(|page| page.guarded && page.guard_was_seen);
        assert!(is_touched || !was_seen, "a guard was filled over: page {vpn:#x} of {pid:?}, {page:?}");
        self.each(pid, Extent::new(vpn, 1), |page| page.guarded = false);
    }

    /// What an access must come to.
    fn check(&mut self, pid: Pid, vpn: u64, write: bool, answer: Answer, losses: bool) {
        if self.is_changing(pid, vpn) || self.is_unsure(pid, vpn) || (answer == Answer::Bus && losses) {
            return;
        }
        self.checked += 1;
        let page = self.pages.get(&(pid, vpn));
        let may = page.is_some_and(|page| !page.guarded && page.rights.allow(write));
        let what = format!("page {vpn:#x} of {pid:?}, {page:?}");
        match answer {
            Answer::Segv => assert!(!may || page.is_some_and(|page| page.value.is_none()), "SIGSEGV at {what}"),
            Answer::Value(_) | Answer::Done if page.is_some_and(|page| page.guarded) => panic!("no guard at {what}"),
            Answer::Value(0) if may && page.is_some_and(|page| page.or_zero) => {
                self.each(pid, Extent::new(vpn, 1), |page| (page.value, page.or_zero) = (Some(0), false));
            }
            Answer::Value(value) => {
                let expected = page.and_then(|page| page.value);
                assert!(may || page.is_some_and(|page| page.value.is_none()), "a load from {what} gave {value}");
                assert!(expected.is_none_or(|expected| expected == value), "wrong bytes: {value} loaded from {what}");
            }
            Answer::Done => {
                assert!(may || page.is_some_and(|page| page.value.is_none()), "a store to {what} was let through")
            }
            Answer::Bus | Answer::Failed(_) | Answer::Child(_) => panic!("{answer:?} at {what}"),
        }
    }

    fn each(&mut self, pid: Pid, extent: Extent, how: impl Fn(&mut PageTruth)) {
        self.pages.range_mut((pid, extent.start)..(pid, extent.end)).for_each(|(_, page)| how(page));
    }

    fn unmapped(&mut self, pid: Pid, extent: Extent) {
        self.pages.retain(|&(owner, vpn), _| owner != pid || !(extent.start..extent.end).contains(&vpn));
    }

    /// A mapping has these pages more, which are as those before them.
    fn grown(&mut self, pid: Pid, more: Extent) {
        let Some(&PageTruth { rights, fork, .. }) = self.pages.get(&(pid, more.start - 1)) else {
            return self.unsure.push((pid, more));
        };
        if more.start < more.end {
            self.map(pid, Mapping { rights, fork, ..Mapping::anon(more.start, more.end) });
        }
    }

    fn ended(&mut self, tid: Tid, pid: Pid, call: Call, answer: Answer, losses: bool) {
        let done = answer == Answer::Done;
        match call {
            // A doorbell is the runtime's.
            Call::Load(OWN_VPN..) => {}
            Call::Load(vpn) => self.check(pid, vpn, false, answer, losses),
            Call::Store(vpn, value) => {
                self.check(pid, vpn, true, answer, losses);
                if done {
                    let value = Some(value).filter(|_| !self.is_changing(pid, vpn));
                    self.each(pid, Extent::new(vpn, 1), |page| (page.value, page.or_zero) = (value, false));
                }
            }
            Call::Pin(vpn) => {
                self.check(pid, vpn, true, answer, losses);
                if done {
                    self.pinned.insert(tid, vpn);
                }
            }
            Call::Unpin(value) => {
                if let Some(vpn) = self.pinned.remove(&tid) {
                    self.each(pid, Extent::new(vpn, 1), |page| page.value = Some(value));
                }
            }
            Call::Map(extent) if done => self.map(pid, Mapping::anon(extent.start, extent.end)),
            Call::Unmap(extent) => self.unmapped(pid, extent),
            Call::Remap(from, to) if done => {
                let unsure = (from.start..from.end).any(|vpn| self.is_unsure(pid, vpn));
                self.unsure.extend(unsure.then_some((pid, to)));
                self.unmapped(pid, to);
                for index in 0..from.pages() {
                    let page = self.pages.remove(&(pid, from.start + index));
                    assert!(page.is_some() || unsure, "what was moved was mapped");
                    self.pages.extend(page.map(|page| ((pid, to.start + index), page)));
                }
                self.grown(pid, Extent { start: to.start + from.pages(), end: to.end });
            }
            // The target may be gone even so.
            Call::Remap(_, to) => self.each(pid, to, |page| page.value = None),
            Call::RemapKeeping(from, to) => self.each(pid, from.at(to), |page| page.value = None),
            Call::Grow(extent, by) if done => self.grown(pid, Extent::new(extent.end, by)),
            Call::Discard(extent) => {
                let value = (answer != Answer::Failed(Errno::EINVAL)).then_some(0);
                self.each(pid, extent, |page| page.value = value);
            }
            Call::GuardInstall(extent) if done => {
                self.each(pid, extent, |page| {
                    (page.value, page.guarded, page.guard_was_seen) = (Some(0), true, false);
                });
            }
            Call::GuardRemove(extent) if done => self.each(pid, extent, |page| page.guarded = false),
            Call::Protect(extent, rights) if done => self.each(pid, extent, |page| page.rights = rights),
            Call::OnFork(extent, policy) if done => self.each(pid, extent, |page| page.fork = policy),
            Call::Map(_)
            | Call::GuardInstall(_)
            | Call::GuardRemove(_)
            | Call::Protect(..)
            | Call::OnFork(..)
            | Call::Grow(..)
            | Call::Lock(_)
            | Call::Unlock(_)
            | Call::Populate(_)
            | Call::Collapse(_)
            | Call::UnmapInVain(_)
            | Call::Fork
            | Call::ForbidHuge(_)
            | Call::AtGate(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: Pid = Pid(1);
    const CHILD: Pid = Pid(2);
    const FORKING: Tid = Tid(1);
    const CHANGING: Tid = Tid(2);
    const OF_CHILD: Tid = Tid(3);

    /// Two threads of a parent that has pages 8 and 9, and one of its child to be.
    fn family(fork: ForkPolicy) -> Truth {
        let mut truth = Truth::default();
        for (tid, pid) in [(FORKING, PARENT), (CHANGING, PARENT), (OF_CHILD, CHILD)] {
            truth.add_thread(tid, pid);
        }
        truth.map(PARENT, Mapping { fork, ..Mapping::anon(8, 10) });
        truth
    }

    /// A child that was copied while another thread of its parent began to discard page 8, then reads pages 8 and 9.
    fn child() -> Truth {
        let mut truth = family(ForkPolicy::Copy);
        for vpn in [8, 9] {
            truth.hear(Happened::Ended(FORKING, Call::Store(vpn, 7), Answer::Done), false);
        }
        let discard = Call::Discard(Extent::new(8, 1));
        for happened in [
            Happened::Began(FORKING, Call::Fork),
            Happened::Copied(FORKING, CHILD),
            Happened::Began(CHANGING, discard),
            Happened::Ended(CHANGING, discard, Answer::Done),
            Happened::Ended(FORKING, Call::Fork, Answer::Child(CHILD)),
        ] {
            truth.hear(happened, false);
        }
        truth
    }

    fn loads(truth: &mut Truth, vpn: u64, value: u64) {
        truth.hear(Happened::Ended(OF_CHILD, Call::Load(vpn), Answer::Value(value)), false);
    }

    fn may_load(truth: &mut Truth, vpn: u64, value: u64) -> bool {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| loads(truth, vpn, value))).is_ok()
    }

    #[test]
    fn what_changes_while_a_fork_is_under_way_is_old_or_empty_in_the_child() {
        let mut truth = child();
        [7, 7, 0, 0].into_iter().for_each(|value| loads(&mut truth, 8, value));
        loads(&mut truth, 9, 7);
    }

    #[test]
    fn what_does_not_change_is_old_and_what_was_empty_once_stays_empty() {
        for loaded in [&[(9, 0)][..], &[(8, 0), (8, 7)]] {
            let told = std::panic::catch_unwind(|| {
                let mut truth = child();
                loaded.iter().for_each(|&(vpn, value)| loads(&mut truth, vpn, value));
            });
            let told = told.expect_err("these are not what was stored");
            let text = told.downcast_ref::<String>().expect("a message");
            assert!(text.contains("wrong bytes"), "{text}");
        }
    }

    #[test]
    fn what_was_to_be_wiped_may_be_old_only_if_it_was_unmapped_after_the_copy() {
        let pages = Extent::new(8, 2);
        let orders = [
            (Call::Unmap(pages), 7, true),
            (Call::Unmap(pages), 0, true),
            (Call::Unmap(pages), 5, false),
            (Call::Discard(pages), 7, false),
        ];
        for (call, value, may) in orders {
            let mut truth = family(ForkPolicy::Wipe);
            for happened in [
                Happened::Ended(CHANGING, Call::Store(8, 7), Answer::Done),
                Happened::Copied(FORKING, CHILD),
                Happened::Began(CHANGING, call),
                Happened::Ended(CHANGING, call, Answer::Done),
            ] {
                truth.hear(happened, false);
            }
            assert_eq!(may_load(&mut truth, 8, value), may, "{call:?}: {value}");
        }
    }

    #[test]
    fn a_copy_that_is_made_while_pages_move_has_them_at_either_place() {
        let to = 20;
        let moves = Call::Remap(Extent::new(8, 2), Extent::new(to, 2));
        let copied_within = [Happened::Began(CHANGING, moves), Happened::Copied(FORKING, CHILD)];
        let copied_before = [Happened::Copied(FORKING, CHILD), Happened::Began(CHANGING, moves)];
        for (order, may) in [(copied_within, true), (copied_before, false)] {
            let mut truth = family(ForkPolicy::Copy);
            let events = [&order[..], &[Happened::Ended(CHANGING, moves, Answer::Done)]].concat();
            events.into_iter().for_each(|happened| truth.hear(happened, false));
            assert_eq!(may_load(&mut truth, to, 0), may, "{order:?}");
        }
    }

    #[test]
    fn a_guard_is_lost_only_where_nobody_could_have_seen_it() {
        let page = Extent::new(9, 1);
        let installed = Happened::Ended(OF_CHILD, Call::GuardInstall(page), Answer::Done);
        let (looked, covered) = (Happened::Looked(CHILD, page), Happened::Covered(CHILD, 9));
        let waits = Happened::Began(CHANGING, Call::Load(9));
        for told in [&[looked, installed, covered][..], &[waits, installed, looked, covered]] {
            let mut truth = child();
            told.iter().for_each(|&happened| truth.hear(happened, false));
            loads(&mut truth, 9, 0);
        }
        for told in [
            &[installed, looked, covered][..],
            &[installed, Happened::Ended(OF_CHILD, Call::Load(9), Answer::Value(0))],
        ] {
            let mut truth = child();
            let played = std::panic::AssertUnwindSafe(|| told.iter().for_each(|&happened| truth.hear(happened, false)));
            let told = std::panic::catch_unwind(played).expect_err("a guard was there");
            let text = told.downcast_ref::<String>().expect("a message");
            assert!(text.contains("guard"), "{text}");
        }
    }
}
