//! What of the program's address space is managed, and why the rest is not.
//!
//! The kernel's list of mappings is looked through when the process's size has changed. Each mapping is judged by these rules, in
//! this order; the first that applies is its reason:
//!
//! 1. What the kernel itself put there, files, and memory shared with others are not ours to page (a private mapping of a file
//!    holds written pages of its own, which a userfaultfd cannot manage: they count against the budget).
//! 2. The first thread's stack, and what cannot be read and written, or can be executed, stay native. Memory that is managed
//!    already stays managed whatever becomes of its protection.
//! 3. A piece that existed before the runtime, or is the runtime's own, is never managed: the agent would wait for itself.
//! 4. A mapping of fewer than [`SMALL_PAGES`] pages is left alone, unless it touches managed memory.
//! 5. What the kernel refuses to register (another userfaultfd has it) stays native, and so does what no page index is left for.
//!
//! Only the list says that something is there, and only events say that something is gone: a piece that is managed is forgotten when
//! the kernel tells of its end, never because the list lacks it (the list is read piece by piece while the program goes on).
//!
//! No system call is made here. Pages are named by their virtual page number; their indices in the core are in `spans`.
//!
//! Invariants: the pieces of a mapping cover it without gaps or overlaps, in ascending order; the counts of a look are those of all
//! pieces that were judged in it.

use pagetide_sys::maps::{Kind, Vma};

use crate::space::{PAGE_SHIFT, Spans};

/// A mapping of fewer pages is left alone, unless it touches a managed one.
const SMALL_PAGES: u64 = 16;

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
}

/// How many reasons there are.
const REASONS: usize = Why::NoIndices as usize + 1;

/// What is to be done with a piece of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It is managed.
    Managed,
    /// It is to be managed.
    Wanted,
    /// It stays native.
    Native(Why),
}

/// A mapping as the kernel lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    /// First page.
    pub(crate) from: u64,
    /// The page behind the last.
    pub(crate) to: u64,
    pub(crate) backing: Backing,
    read: bool,
    write: bool,
    exec: bool,
}

/// A part of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) standing: Standing,
}

impl Mapping {
    /// From the list.
    pub(crate) fn of(vma: &Vma<'_>) -> Self {
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
        let (from, to) = (page(vma.start), page(vma.end));
        Self { from, to, backing, read: vma.read, write: vma.write, exec: vma.exec }
    }

    /// Rules 1 and 2.
    const fn native(&self) -> Option<Why> {
        match self.backing {
            Backing::Kernel => Some(Why::Kernel),
            Backing::Shared => Some(Why::Shared),
            Backing::PrivateFile => Some(Why::PrivateFile),
            Backing::Stack => Some(Why::Stack),
            Backing::Anon | Backing::Heap if self.exec => Some(Why::Executable),
            Backing::Anon | Backing::Heap if self.read && self.write => None,
            Backing::Anon | Backing::Heap if self.read => Some(Why::ReadOnly),
            Backing::Anon | Backing::Heap => Some(Why::NoAccess),
        }
    }

    /// The piece that begins at `vpn`, which lies in the mapping. `before` are the ranges of rule 3 that existed, in any order;
    /// `ours` names the lowest range of our own that overlaps another.
    pub(crate) fn piece(
        &self,
        vpn: u64,
        managed: &Spans,
        before: &[(u64, u64)],
        ours: impl Fn(u64, u64) -> Option<(u64, u64)>,
    ) -> Piece {
        debug_assert!(self.from <= vpn && vpn < self.to, "page {vpn} of {self:?}");
        let piece = |to: u64, standing: Standing| Piece { from: vpn, to: to.min(self.to), standing };
        if let Some(span) = managed.find(vpn) {
            return piece(span.end_vpn(), Standing::Managed);
        }
        let (_, to) = managed.gap(vpn, self.to).expect("no span covers the page");
        if let Some(why) = self.native() {
            return piece(to, Standing::Native(why));
        }
        let old = before.iter().filter(|&&(start, stop)| start < to && vpn < stop).min().copied();
        let nearest = [(old, Why::Before), (ours(vpn, to), Why::Ours)];
        let nearest = nearest.into_iter().filter_map(|(range, why)| range.map(|(start, stop)| (start, stop, why)));
        let to = match nearest.min_by_key(|&(start, ..)| start) {
            Some((start, stop, why)) if start <= vpn => return piece(stop.min(to), Standing::Native(why)),
            Some((start, ..)) => start,
            None => to,
        };
        let is_whole = vpn == self.from && to == self.to;
        if is_whole && to - vpn < SMALL_PAGES {
            piece(to, Standing::Native(Why::Small))
        } else {
            piece(to, Standing::Wanted)
        }
    }
}

/// Native pages by reason: addresses, whether memory is behind them or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Census {
    pages: [u64; REASONS],
}

impl Census {
    /// One more piece.
    pub(crate) fn add(&mut self, why: Why, pages: u64) {
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

    fn anon(from: u64, to: u64) -> Mapping {
        Mapping { from, to, backing: Backing::Anon, read: true, write: true, exec: false }
    }

    fn pieces(mapping: Mapping, managed: &Spans, before: &[(u64, u64)], ours: &[(u64, u64)]) -> Vec<Piece> {
        let lowest =
            |from: u64, to: u64| ours.iter().filter(|&&(start, stop)| start < to && from < stop).min().copied();
        let mut found: Vec<Piece> = Vec::new();
        let mut vpn = mapping.from;
        while vpn < mapping.to {
            let piece = mapping.piece(vpn, managed, before, lowest);
            assert!(piece.from == vpn && piece.to > vpn && piece.to <= mapping.to, "{piece:?} of {mapping:?}");
            found.push(piece);
            vpn = piece.to;
        }
        found
    }

    #[test]
    fn the_first_rule_that_applies_is_the_reason() {
        let managed = Spans::new(1 << 20);
        let judge = |mapping: Mapping| pieces(mapping, &managed, &[(0, 5)], &[])[0].standing;
        assert_eq!(judge(anon(10, 100)), Standing::Wanted);
        assert_eq!(judge(anon(0, 100)), Standing::Native(Why::Before));
        assert_eq!(judge(anon(10, 25)), Standing::Native(Why::Small));
        assert_eq!(judge(Mapping { exec: true, ..anon(0, 100) }), Standing::Native(Why::Executable));
        assert_eq!(judge(Mapping { write: false, ..anon(0, 100) }), Standing::Native(Why::ReadOnly));
        assert_eq!(judge(Mapping { write: false, read: false, ..anon(0, 3) }), Standing::Native(Why::NoAccess));
        assert_eq!(judge(Mapping { backing: Backing::Stack, ..anon(0, 3) }), Standing::Native(Why::Stack));
        assert_eq!(
            judge(Mapping { backing: Backing::Shared, exec: true, ..anon(0, 3) }),
            Standing::Native(Why::Shared)
        );
    }

    #[test]
    fn a_small_rest_beside_managed_memory_is_wanted() {
        let mut managed = Spans::new(1 << 20);
        managed.add(20, 50, 0).expect("the table is empty");
        let found = pieces(anon(15, 75), &managed, &[], &[]);
        let standings: Vec<_> = found.iter().map(|piece| (piece.to, piece.standing)).collect();
        assert_eq!(standings, [(20, Standing::Wanted), (70, Standing::Managed), (75, Standing::Wanted)]);
    }

    #[test]
    fn what_is_managed_stays_so_when_it_may_not_be_written_any_more() {
        let mut managed = Spans::new(1 << 20);
        managed.add(20, 50, 0).expect("the table is empty");
        let found = pieces(Mapping { write: false, ..anon(10, 70) }, &managed, &[], &[]);
        let standings: Vec<_> = found.iter().map(|piece| (piece.to, piece.standing)).collect();
        assert_eq!(standings, [(20, Standing::Native(Why::ReadOnly)), (70, Standing::Managed)]);
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
            let mut managed = Spans::new(1 << 20);
            for _ in 0..3 {
                let (from, to) = range();
                if managed.gap(from, to) == Some((from, to)) {
                    managed.add(from, u32::try_from(to - from).expect("small"), 0).expect("there is room");
                }
            }
            let (from, to) = range();
            let mut mapping = anon(from, to);
            (mapping.read, mapping.write, mapping.exec) = (draw(5) > 0, draw(5) > 0, draw(9) == 0);
            mapping.backing =
                [Backing::Anon, Backing::Heap, Backing::PrivateFile][usize::try_from(draw(3)).expect("small")];
            let found = pieces(mapping, &managed, &before, &ours);
            let is_whole = found.len() == 1;
            for piece in found {
                for vpn in piece.from..piece.to {
                    let is_in = |ranges: &[(u64, u64)]| ranges.iter().any(|&(start, stop)| start <= vpn && vpn < stop);
                    let expected = match mapping.native() {
                        _ if managed.find(vpn).is_some() => Standing::Managed,
                        Some(why) => Standing::Native(why),
                        // Where both apply, either is a reason.
                        None if is_in(&before) && piece.standing == Standing::Native(Why::Before) => piece.standing,
                        None if is_in(&ours) => Standing::Native(Why::Ours),
                        None if is_in(&before) => Standing::Native(Why::Before),
                        None if is_whole && to - from < SMALL_PAGES => Standing::Native(Why::Small),
                        None => Standing::Wanted,
                    };
                    assert_eq!(piece.standing, expected, "page {vpn} of {mapping:?} in {piece:?}");
                }
            }
        }
    }
}
