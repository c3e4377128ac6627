//! What a mapping is: its range, what fills it, what may be done with it, what a forked child gets of it, and whether it is managed
//! or why not. The rules by which a mapping of the kernel's list is judged are here, too; what becomes of them is the caller's.
//!
//! A mapping is judged by these rules, in this order; the first that applies is its reason:
//!
//! 1. What the kernel itself put there, files, and memory shared with others are not managed (a private mapping of a file
//!    holds written pages of its own, which a userfaultfd cannot manage: they count against the budget).
//! 2. The first thread's stack, and what cannot be read and written, stay native (the kernel moves pages only between mappings of the same
//!    rights, and out of none that cannot be written). Memory that is managed
//!    already stays managed whatever becomes of its protection, its lock or its fork policy, and what is reserved behind it (no access,
//!    at most [`RESERVE_PAGES`]) is managed with it: malloc's heaps of threads grow into it by mprotect, which tells nobody.
//! 3. A piece that was in use before the runtime (`agent_entry.rs` says what of it), or is the runtime's own, is never managed: the
//!    agent would wait for itself.
//! 4. A mapping of fewer than [`SMALL_PAGES`] pages is left alone, unless it touches managed memory, is what is left of a
//!    larger one that was registered while it changed, had moved, registered, when it was copied from a parent, or is one of many that
//!    hold something (`SMALL_TOGETHER` of `space.rs`).
//! 5. What the kernel refuses to register (another userfaultfd has it) stays native, and so does what no page index is left for.
//!
//! No system call is made here. Pages are named by their virtual page number.

use pagetide_sys::maps::{Kind, Vma};
use pagetide_sys::smaps::Flags;

use super::regions::{PAGE_SHIFT, Regions};

/// A mapping of fewer pages is left alone, unless it touches a managed one.
const SMALL_PAGES: u64 = 16;
/// What is reserved behind managed memory has at most so many pages: a heap of malloc's for a thread has no more.
const RESERVE_PAGES: u64 = (64 << 20) >> PAGE_SHIFT;

/// What fills a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// Nothing: private anonymous memory.
    Anon,
    /// The same, and it grows upwards in small steps: the brk area.
    Heap,
    /// The same, and it grows downwards: the first thread's stack.
    Stack,
    /// A file, privately: pages that are written become anonymous.
    PrivateFile,
    /// A file or memory that others may map too.
    Shared,
    /// The kernel.
    Kernel,
}

/// What may be done with a mapping at present (mprotect changes it).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rights {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) exec: bool,
}

/// What a forked child finds where a mapping is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForkPolicy {
    /// The same bytes.
    Copy,
    /// Zeroes (`MADV_WIPEONFORK`).
    Wipe,
    /// No mapping (`MADV_DONTFORK`).
    Dont,
}

/// What only smaps tells of a mapping, and nobody tells of changes to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) fork: ForkPolicy,
    pub(crate) locked: bool,
}

impl Told {
    const fn of(flags: Flags) -> Self {
        // Both may be set: then there is no mapping in which zeroes could be found.
        let fork = if flags.meets(Flags::DONT_COPY) {
            ForkPolicy::Dont
        } else if flags.meets(Flags::WIPE_ON_FORK) {
            ForkPolicy::Wipe
        } else {
            ForkPolicy::Copy
        };
        Self { fork, locked: flags.meets(Flags::LOCKED) }
    }
}

/// Why something is not managed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Kernel,
    Shared,
    PrivateFile,
    Stack,
    /// Not to be written at present.
    ReadOnly,
    /// No access at present.
    NoAccess,
    /// To be executed, and not to be written at present; or we may have no memory of these rights.
    Executable,
    /// It existed before the runtime.
    Before,
    /// It is the runtime's own.
    Ours,
    Small,
    /// The kernel refuses to register it.
    Refused,
    /// No page index is left for it.
    NoIndices,
    /// It has come since memory was taken under management last.
    New,
}

/// How many reasons there are.
pub(crate) const REASONS: usize = Why::New as usize + 1;

/// Whether a mapping is managed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is a region of the core, or several.
    Managed,
    /// It stays native.
    Native(Why),
}

/// What the rules say of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Managed,
    /// It is to be managed.
    Wanted,
    Native(Why),
}

/// A mapping, or the part of one for which the same holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// First page.
    pub(crate) from: u64,
    /// The page behind the last.
    pub(crate) to: u64,
    pub(crate) backing: Backing,
    pub(crate) rights: Rights,
    /// None: the list that was read last does not tell.
    pub(crate) told: Option<Told>,
    pub(crate) standing: Standing,
}

/// A mapping as the kernel lists it, not judged yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) backing: Backing,
    pub(crate) rights: Rights,
    pub(crate) told: Option<Told>,
}

impl Listed {
    /// From the list; `flags` if it is the one that has them.
    pub(crate) fn of(vma: &Vma<'_>, flags: Option<Flags>) -> Self {
        let backing = match vma.kind {
            Kind::Kernel => Backing::Kernel,
            _ if vma.shared => Backing::Shared,
            Kind::File => Backing::PrivateFile,
            Kind::Anon | Kind::AnonNamed if vma.inode != 0 => Backing::PrivateFile,
            Kind::Anon | Kind::AnonNamed => Backing::Anon,
            Kind::Heap => Backing::Heap,
            Kind::Stack => Backing::Stack,
        };
        let page = |address: usize| (address >> PAGE_SHIFT) as u64;
        let rights = Rights { read: vma.read, write: vma.write, exec: vma.exec };
        Self { from: page(vma.start), to: page(vma.end), backing, rights, told: flags.map(Told::of) }
    }

    /// The part `[from, to)` of it, judged.
    pub(crate) const fn part(&self, from: u64, to: u64, standing: Standing) -> Mapping {
        Mapping { from, to, backing: self.backing, rights: self.rights, told: self.told, standing }
    }

    /// Rules 1 and 2.
    const fn native(&self) -> Option<Why> {
        match self.backing {
            Backing::Kernel => Some(Why::Kernel),
            Backing::Shared => Some(Why::Shared),
            Backing::PrivateFile => Some(Why::PrivateFile),
            Backing::Stack => Some(Why::Stack),
            Backing::Anon | Backing::Heap if self.rights.read && self.rights.write => None,
            Backing::Anon | Backing::Heap if self.rights.exec => Some(Why::Executable),
            Backing::Anon | Backing::Heap if self.rights.read => Some(Why::ReadOnly),
            Backing::Anon | Backing::Heap => Some(Why::NoAccess),
        }
    }

    /// Is it reserved for managed memory to grow into?
    fn is_reserve(&self, managed: &Regions) -> bool {
        let is_sized = (SMALL_PAGES..=RESERVE_PAGES).contains(&(self.to - self.from));
        let is_behind = || self.from.checked_sub(1).is_some_and(|before| managed.find(before).is_some());
        self.native() == Some(Why::NoAccess) && !self.rights.write && is_sized && is_behind()
    }

    /// What the rules say of the page `vpn`, which lies in the mapping, and up to where they say the same. `before` are the ranges of
    /// rule 3 that existed, in any order; `ours` names the lowest range of our own that overlaps another.
    pub(crate) fn judge(
        &self,
        vpn: u64,
        managed: &Regions,
        before: &[(u64, u64)],
        ours: impl Fn(u64, u64) -> Option<(u64, u64)>,
    ) -> (u64, Verdict) {
        debug_assert!(self.from <= vpn && vpn < self.to, "page {vpn} of {self:?}");
        if let Some(region) = managed.find(vpn) {
            return (region.end_vpn().min(self.to), Verdict::Managed);
        }
        let (_, to) = managed.gap(vpn, self.to).expect("no region covers the page");
        if let Some(why) = self.native()
            && !self.is_reserve(managed)
        {
            return (to, Verdict::Native(why));
        }
        let old = before.iter().filter(|&&(start, stop)| start < to && vpn < stop).min().copied();
        let nearest = [(old, Why::Before), (ours(vpn, to), Why::Ours)];
        let nearest = nearest.into_iter().filter_map(|(range, why)| range.map(|(start, stop)| (start, stop, why)));
        let to = match nearest.min_by_key(|&(start, ..)| start) {
            Some((start, stop, why)) if start <= vpn => return (stop.min(to), Verdict::Native(why)),
            Some((start, ..)) => start,
            None => to,
        };
        let is_whole = vpn == self.from && to == self.to;
        let is_small = is_whole && to - vpn < SMALL_PAGES;
        (to, if is_small { Verdict::Native(Why::Small) } else { Verdict::Wanted })
    }
}

/// Native pages by reason: addresses, whether memory is behind them or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Census {
    pages: [u64; REASONS],
}

impl Census {
    /// One more piece.
    pub(crate) const fn add(&mut self, why: Why, pages: u64) {
        self.pages[why as usize] += pages;
    }

    /// How many pages stay native for this reason.
    pub(crate) const fn pages(&self, why: Why) -> u64 {
        self.pages[why as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: u64 = 200;
    const ALL: Rights = Rights { read: true, write: true, exec: false };

    const fn anon(from: u64, to: u64) -> Listed {
        Listed { from, to, backing: Backing::Anon, rights: ALL, told: None }
    }

    const fn may(read: bool, write: bool, exec: bool, listed: Listed) -> Listed {
        Listed { rights: Rights { read, write, exec }, ..listed }
    }

    /// The pieces: where each begins and ends, and what is said of it.
    fn pieces(
        listed: Listed,
        managed: &Regions,
        before: &[(u64, u64)],
        ours: &[(u64, u64)],
    ) -> Vec<(u64, u64, Verdict)> {
        let lowest =
            |from: u64, to: u64| ours.iter().filter(|&&(start, stop)| start < to && from < stop).min().copied();
        let mut found = Vec::new();
        let mut vpn = listed.from;
        while vpn < listed.to {
            let (to, verdict) = listed.judge(vpn, managed, before, lowest);
            assert!(to > vpn && to <= listed.to, "{vpn} to {to} of {listed:?}");
            found.push((vpn, to, verdict));
            vpn = to;
        }
        found
    }

    #[test]
    fn the_first_rule_that_applies_is_the_reason() {
        let managed = Regions::new(1 << 20);
        let judge = |listed: Listed| pieces(listed, &managed, &[(0, 5)], &[])[0].2;
        assert_eq!(judge(anon(10, 100)), Verdict::Wanted);
        assert_eq!(judge(anon(0, 100)), Verdict::Native(Why::Before));
        assert_eq!(judge(anon(10, 25)), Verdict::Native(Why::Small));
        assert_eq!(judge(may(true, false, true, anon(0, 100))), Verdict::Native(Why::Executable));
        assert_eq!(judge(may(true, true, true, anon(10, 100))), Verdict::Wanted);
        assert_eq!(judge(may(true, false, false, anon(0, 100))), Verdict::Native(Why::ReadOnly));
        assert_eq!(judge(may(false, false, false, anon(0, 3))), Verdict::Native(Why::NoAccess));
        assert_eq!(judge(Listed { backing: Backing::Stack, ..anon(0, 3) }), Verdict::Native(Why::Stack));
        let shared = Listed { backing: Backing::Shared, ..anon(0, 3) };
        assert_eq!(judge(may(true, true, true, shared)), Verdict::Native(Why::Shared));
    }

    #[test]
    fn a_small_rest_beside_managed_memory_is_wanted() {
        let mut managed = Regions::new(1 << 20);
        managed.add(20, 50, 0).expect("the table is empty");
        let found = pieces(anon(15, 75), &managed, &[], &[]);
        assert_eq!(found, [(15, 20, Verdict::Wanted), (20, 70, Verdict::Managed), (70, 75, Verdict::Wanted)]);
    }

    #[test]
    fn what_is_managed_stays_so_when_it_may_not_be_written_any_more() {
        let mut managed = Regions::new(1 << 20);
        managed.add(20, 50, 0).expect("the table is empty");
        let found = pieces(may(true, false, false, anon(10, 70)), &managed, &[], &[]);
        assert_eq!(found, [(10, 20, Verdict::Native(Why::ReadOnly)), (20, 70, Verdict::Managed)]);
    }

    #[test]
    fn what_is_reserved_behind_managed_memory_is_wanted_where_it_is_no_guard_and_no_large_reserve() {
        let mut managed = Regions::new(1 << 20);
        managed.add(20, 50, 0).expect("the table is empty");
        let reserved =
            |from, pages| pieces(may(false, false, false, anon(from, from + pages)), &managed, &[], &[])[0].2;
        assert_eq!([SMALL_PAGES, RESERVE_PAGES].map(|pages| reserved(70, pages)), [Verdict::Wanted; 2]);
        let native = Verdict::Native(Why::NoAccess);
        assert_eq!([SMALL_PAGES - 1, RESERVE_PAGES + 1].map(|pages| reserved(70, pages)), [native; 2]);
        assert_eq!(reserved(71, RESERVE_PAGES), native, "it is behind nothing that is managed");
        let read_only = may(true, false, false, anon(70, 100));
        assert_eq!(pieces(read_only, &managed, &[], &[])[0].2, Verdict::Native(Why::ReadOnly));
    }

    #[test]
    fn what_is_not_copied_is_not_wiped_either() {
        let told = |flags: Flags| Told::of(flags).fork;
        assert_eq!(told(Flags::WIPE_ON_FORK), ForkPolicy::Wipe);
        assert_eq!(told(Flags::WIPE_ON_FORK.with(Flags::DONT_COPY)), ForkPolicy::Dont);
        assert_eq!(Told::of(Flags::LOCKED), Told { fork: ForkPolicy::Copy, locked: true });
    }

    /// Against a twin that asks the same of each page alone.
    #[test]
    fn pieces_are_what_their_pages_are() {
        let mut random = 88_172_645_463_325_252_u64;
        let mut draw = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        for _ in 0..3000 {
            let mut range = || {
                let from = draw(PAGES - 1);
                (from, from + 1 + draw(PAGES - from - 1).min(draw(60)))
            };
            let before = [range(), range()];
            let ours = [range(), range(), range()];
            let mut managed = Regions::new(1 << 20);
            for _ in 0..3 {
                let (from, to) = range();
                if managed.gap(from, to) == Some((from, to)) {
                    managed.add(from, u32::try_from(to - from).expect("small"), 0).expect("there is room");
                }
            }
            let (from, to) = range();
            let mut listed = may(draw(5) > 0, draw(5) > 0, draw(9) == 0, anon(from, to));
            listed.backing =
                [Backing::Anon, Backing::Heap, Backing::PrivateFile][usize::try_from(draw(3)).expect("small")];
            let found = pieces(listed, &managed, &before, &ours);
            let is_whole = found.len() == 1;
            let is_reserved =
                !listed.rights.read && !listed.rights.write && !listed.rights.exec && to - from >= SMALL_PAGES;
            let is_reserve = is_reserved && from > 0 && managed.find(from - 1).is_some();
            for (start, stop, verdict) in found {
                for vpn in start..stop {
                    let is_in = |ranges: &[(u64, u64)]| ranges.iter().any(|&(start, stop)| start <= vpn && vpn < stop);
                    let expected = match listed.native() {
                        _ if managed.find(vpn).is_some() => Verdict::Managed,
                        Some(why) if why != Why::NoAccess || !is_reserve => Verdict::Native(why),
                        // Where both apply, either is a reason.
                        _ if is_in(&before) && verdict == Verdict::Native(Why::Before) => verdict,
                        _ if is_in(&ours) => Verdict::Native(Why::Ours),
                        _ if is_in(&before) => Verdict::Native(Why::Before),
                        _ if is_whole && to - from < SMALL_PAGES => Verdict::Native(Why::Small),
                        _ => Verdict::Wanted,
                    };
                    assert_eq!(verdict, expected, "page {vpn} of {listed:?} in {start}..{stop}");
                }
            }
        }
    }
}
