//! The program's address space: what each mapping is, which are managed and as which pages of the core, and why the others are not.
//!
//! [`Mappings`] joins two tables. Its *regions* say which addresses are managed and as which pages: every fault, order and message
//! is looked up there. Its *list* is the kernel's list of mappings as it was read last, judged (`mapping.rs` has the rules) and cut
//! where the judgement changes.
//!
//! The two are reconciled with the kernel by these rules:
//!
//! 1. Only a look at the kernel's list says that something is there. What a look finds wanted is registered; it becomes a region
//!    when all of it was registered, and stays native with the kernel's reason when it was refused.
//! 2. Only messages say that something managed is gone or has moved: a region never ends because the list lacks it (the list is
//!    read piece by piece while the program goes on), and it ends as soon as its message has been read.
//! 3. A change of protection, lock or fork policy makes no message and ends no region. The next look tells it.
//! 4. A look replaces the whole list when it ends; between two looks only the regions are up to date. A long list is looked through
//!    piece by piece, while faults are served in between.
//! 5. Locks and fork policies are told by the list that the kernel is slow to make (smaps), which is read at a fork only. After any
//!    other look they are not known.
//!
//! After a look in which nothing was refused and no message was waiting, the regions are exactly what is registered, and the list
//! covers exactly what is mapped; but for what a registered mapping has grown by (mremap tells nobody of that): it is managed once it can
//! be written, and a small rest of it once a thread asks for a page.
//!
//! Files have their place in the list (private or shared, each with its reason) and are not managed.

pub(crate) mod held;
pub(crate) mod locks;
mod mapping;
pub(crate) mod recent;
mod regions;
pub(crate) mod unpaged;
pub(crate) mod unshare;
mod untold;

use pagetide_core::types::{PageIdx, PageRange};

use mapping::Rights;
pub(crate) use mapping::{Backing, Census, ForkPolicy, Listed, Mapping, Standing, Verdict, Why};
pub(crate) use regions::{Change, PAGE_BYTES, PAGE_SHIFT, Region};

use crate::origins;
use crate::own;
use regions::Regions;
pub(crate) use untold::is_aside;
use untold::{Told, Untold};

/// The mappings of one process.
#[derive(Debug)]
pub(crate) struct Mappings {
    regions: Regions,
    /// Ascending, without overlaps.
    list: Vec<Mapping>,
    census: Census,
    /// The look that is under way.
    look: Option<Look>,
    /// Small mappings are managed too: there are too many of them to be left alone.
    takes_small: bool,
    /// Small mappings that the last look left alone.
    small: u64,
    /// What existed before the runtime, in page numbers.
    before: Vec<(u64, u64)>,
    /// Registered, as far as it was there, and no region was made: what was there had changed since the list was read, or a parent was copied
    /// before its agent had heard of the move. In page numbers.
    registered: Vec<(u64, u64)>,
    /// Places that were taken again before the end of what was there was told.
    untold: Untold,
    /// Places whose end was told and that are registered still: the call failed, or others came there by a move that is still to be told.
    doubted: Vec<Doubt>,
}

/// `[vpn, end)` is there still although its end was told, as a part of an end from page `told` on.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    vpn: u64,
    end: u64,
    told: u64,
}

/// A look through the kernel's list, as far as it has come.
#[derive(Debug)]
struct Look {
    list: Vec<Mapping>,
    census: Census,
    /// The first page that was not looked at.
    at: u64,
    /// Small mappings that it left alone.
    small: u64,
}

/// Small mappings are left alone while all together have at most so many pages: 1 MiB.
const SMALL_TOGETHER: u64 = 256;
/// And while so many of them have less than one page there: each costs a quarter of a kilobyte of tables.
const SMALL_FOR_A_PAGE: u64 = 2;
/// Ranges of `registered` at most: a program that changes its mappings all the time does not make it grow.
const REGISTERED_MAX: usize = 64;

impl Mappings {
    /// Nothing is known yet; regions have the page indices `1..pages_max`.
    pub(crate) fn new(pages_max: u32) -> Self {
        Self {
            regions: Regions::new(pages_max),
            list: Vec::with_capacity(256),
            census: Census::default(),
            look: None,
            takes_small: false,
            small: 0,
            before: Vec::with_capacity(256),
            registered: Vec::new(),
            untold: Untold::new(),
            doubted: Vec::new(),
        }
    }

    /// These addresses existed before the runtime: they are never managed.
    pub(crate) fn note_before(&mut self, start: u64, end: u64) {
        self.before.push((start >> PAGE_SHIFT, end.div_ceil(PAGE_BYTES)));
    }

    /// These addresses were registered, as far as something was there, and make no region yet.
    pub(crate) fn note_registered(&mut self, vpn: u64, end: u64) {
        if self.registered.len() == REGISTERED_MAX {
            self.registered.remove(0);
        }
        self.registered.push((vpn, end));
    }

    /// The core's page for this virtual page.
    pub(crate) fn page(&self, vpn: u64) -> Option<PageIdx> {
        self.regions.page(vpn)
    }

    /// The virtual page number of a page, and how many pages from it on lie in the same region.
    pub(crate) fn place(&self, page: PageIdx) -> Option<(u64, u32)> {
        self.regions.place(page)
    }

    /// The pages of the first region inside `[vpn, end)`, clipped to it, and the address behind them.
    pub(crate) fn first_piece(&self, vpn: u64, end: u64) -> Option<(PageRange, u64)> {
        self.regions.first_piece(vpn, end)
    }

    /// All regions, ascending by address. Not those that were set aside: nobody can say where they are.
    pub(crate) fn regions(&self) -> &[Region] {
        let all = self.regions.all();
        &all[..all.partition_point(|region| !is_aside(region.vpn))]
    }

    /// Pages under management.
    pub(crate) const fn managed_pages(&self) -> u64 {
        self.regions.managed_pages()
    }

    /// As [`Regions::grow`].
    pub(crate) fn grow(&mut self, vpn: u64, pages: u32) -> Option<Region> {
        self.regions.grow(vpn, pages)
    }

    /// As [`Regions::add`].
    pub(crate) fn add(&mut self, vpn: u64, pages: u32, slack: u32) -> Option<Region> {
        self.regions.add(vpn, pages, slack)
    }

    /// A message has told of the end of `[vpn, end)`: of what was there first. Not of what is there now, if that is registered, which
    /// `registered` tells (up to where, from a page on that has these pages): the kernel tells of an end before it knows whether the call fails.
    /// What was kept.
    pub(crate) fn remove(
        &mut self,
        vpn: u64,
        end: u64,
        mut registered: impl FnMut(u64, PageRange) -> u64,
        mut tell: impl FnMut(Change),
    ) -> Vec<(u64, u64)> {
        let mut kept = Vec::new();
        for piece in self.untold.claim(Told::Unmap, vpn, end) {
            let Some(mut from) = piece.place else { continue };
            let to = from + piece.pages;
            while let Some((pages, behind)) = self.regions.first_piece(from, to) {
                let first = behind - u64::from(pages.len);
                from = if is_aside(first) { first } else { registered(first, pages) };
                if from > first {
                    kept.push((first, from));
                } else {
                    self.regions.remove(first, behind, &mut tell);
                    from = behind;
                }
            }
        }
        self.doubted.extend(kept.iter().map(|&(first, end)| Doubt { vpn: first, end, told: vpn }));
        kept
    }

    /// A message has told that `[from, from + pages)` was moved to `to`. What is known there is gone, or elsewhere: that is still to be
    /// told, and it is set aside. So is the end of the old place. The page behind the last at the new place of which something is known to
    /// have changed.
    pub(crate) fn moved(&mut self, from: u64, to: u64, pages: u64, mut tell: impl FnMut(Change)) -> u64 {
        let changed_to = self.end_doubts(from, to, pages, &mut tell).max(to + pages);
        if self.regions.first_piece(to, to + pages).is_some() {
            let aside = self.untold.set_aside(to, pages);
            self.regions.moved(to, aside, pages, &mut tell);
        }
        for piece in self.untold.claim(Told::Remap, from, from + pages) {
            if let Some(place) = piece.place {
                self.regions.moved(place, piece.vpn - from + to, piece.pages, &mut tell);
            }
        }
        self.untold.owe(from, pages);
        let inside = |&(vpn, end): &(u64, u64)| (vpn.max(from), end.min(from + pages));
        let moved = self.registered.iter().map(inside).filter(|(vpn, end)| vpn < end);
        let moved: Vec<_> = moved.map(|(vpn, end)| (vpn - from + to, end - from + to)).collect();
        moved.into_iter().for_each(|(vpn, end)| self.note_registered(vpn, end));
        changed_to
    }

    /// What moves to where an end was told is what was registered there: all of that end, for a mapping may grow on the way.
    /// Up to which page.
    fn end_doubts(&mut self, from: u64, to: u64, pages: u64, mut tell: impl FnMut(Change)) -> u64 {
        let doubted = std::mem::take(&mut self.doubted);
        let mut ended = to;
        for &Doubt { vpn, end, told } in &doubted {
            let (first, stop) = if told == to { (vpn, end) } else { (vpn.max(to), end.min(to + pages)) };
            if first < stop {
                self.regions.remove(first, stop, &mut tell);
                ended = ended.max(stop);
            }
        }
        let outside = |doubt: Doubt, of: u64| {
            let parts = [(doubt.vpn, doubt.end.min(of)), (doubt.vpn.max(of + pages), doubt.end)];
            parts.into_iter().filter(|(vpn, end)| vpn < end).map(move |(vpn, end)| Doubt { vpn, end, ..doubt })
        };
        let left = doubted.into_iter().filter(|doubt| doubt.told != to).flat_map(|doubt| outside(doubt, to));
        self.doubted = left.flat_map(|doubt| outside(doubt, from)).collect();
        ended
    }

    /// True if something is still to be told, unless no change is under way.
    pub(crate) const fn awaits(&self) -> bool {
        !self.untold.is_empty() || !self.doubted.is_empty()
    }

    /// True if an end was told of what is still there, and it is not known yet that nothing else will be told.
    pub(crate) const fn has_doubts(&self) -> bool {
        !self.doubted.is_empty()
    }

    /// True if something is still to be told of who was at `[vpn, end)`, unless no change is under way.
    pub(crate) fn awaits_at(&self, vpn: u64, end: u64) -> bool {
        self.untold.is_about(vpn, end)
    }

    /// No change is under way: what was set aside is no more.
    pub(crate) fn end_awaiting(&mut self, mut tell: impl FnMut(Change)) {
        self.doubted.clear();
        for (vpn, end) in self.untold.clear() {
            self.regions.remove(vpn, end, &mut tell);
        }
    }

    /// A look through the kernel's list begins, from its first mapping on.
    pub(crate) fn begin_look(&mut self) {
        let list = Vec::with_capacity(self.list.len());
        self.look = Some(Look { list, census: Census::default(), at: 0, small: 0 });
    }

    /// Where the look that is under way goes on: the first page that it has not seen.
    pub(crate) fn look_at(&self) -> Option<u64> {
        self.look.as_ref().map(|look| look.at)
    }

    /// The look has come to the end of the list.
    pub(crate) fn end_look(&mut self) {
        let look = self.look.take().expect("a look is under way");
        (self.list, self.census, self.small) = (look.list, look.census, look.small);
    }

    /// So many pages are there that are still not known after the last look. True: they may be those of the small mappings that it left
    /// alone, and another one is to take these.
    pub(crate) fn takes_small_for(&mut self, unseen_pages: u64) -> bool {
        let are_many = self.census.pages(Why::Small) > SMALL_TOGETHER && unseen_pages > SMALL_TOGETHER;
        let is_first = !self.takes_small && are_many && self.small <= unseen_pages * SMALL_FOR_A_PAGE;
        self.takes_small |= is_first;
        is_first
    }

    /// What the rules say of the page `vpn` of a mapping, and up to where they say the same.
    pub(crate) fn judge(&self, listed: &Listed, vpn: u64) -> (u64, Verdict) {
        let address = |vpn: u64| usize::try_from(vpn << PAGE_SHIFT).expect("addresses are 64 bit");
        // What is sealed is opened when its pages leave.
        let is_sealed = !listed.rights.write && origins::is_sealed(address(listed.from), address(listed.to));
        let rights = Rights { write: listed.rights.write || is_sealed, ..listed.rights };
        let (to, verdict) = Listed { rights, ..*listed }.judge(vpn, &self.regions, &self.before, own_pages);
        let is_registered = self.registered.iter().any(|&(from, end)| from < to && vpn < end);
        match verdict {
            Verdict::Native(Why::Small) if is_registered || self.takes_small => (to, Verdict::Wanted),
            Verdict::Native(_) | Verdict::Wanted | Verdict::Managed => (to, verdict),
        }
    }

    /// A look has found this, in ascending order; what became of it is its standing.
    pub(crate) fn note(&mut self, mapping: Mapping) {
        let look = self.look.as_mut().expect("a look is under way");
        // Mappings that change while the list is read may be told twice: what was told first counts.
        let from = mapping.from.max(look.list.last().map_or(0, |last| last.to));
        if from >= mapping.to {
            return;
        }
        if let Standing::Native(why) = mapping.standing {
            look.census.add(why, mapping.to - from);
            look.small += u64::from(why == Why::Small);
        }
        look.list.push(Mapping { from, ..mapping });
    }

    /// The look has seen all that lies below this page.
    pub(crate) fn note_looked(&mut self, vpn: u64) {
        self.look.as_mut().expect("a look is under way").at = vpn;
    }

    /// The list as the last look has left it.
    pub(crate) fn list(&self) -> &[Mapping] {
        &self.list
    }

    /// May the page be executed? As the last look has left it.
    pub(crate) fn is_executable(&self, vpn: u64) -> bool {
        let at = self.list.partition_point(|mapping| mapping.to <= vpn);
        self.list.get(at).is_some_and(|mapping| mapping.from <= vpn && mapping.rights.exec)
    }

    /// The native mapping that covers this page, or the next one, and its reason. As the last look has left it.
    pub(crate) fn native_at_or_after(&self, vpn: u64) -> Option<(&Mapping, Why)> {
        let after = self.list.partition_point(|mapping| mapping.to <= vpn);
        self.list[after..].iter().find_map(|mapping| match mapping.standing {
            Standing::Native(why) => Some((mapping, why)),
            Standing::Managed => None,
        })
    }

    /// What the last look left native, and why.
    pub(crate) const fn census(&self) -> &Census {
        &self.census
    }

    /// What a child finds from `vpn` on, and up to which page (at most `end`). After a look that tells fork policies; where it found
    /// nothing, a child does not either, or the parent has unmapped it since the copy: then a child reads what was there (K14).
    pub(crate) fn fork_policy(&self, vpn: u64, end: u64) -> (ForkPolicy, u64) {
        let after = self.list.partition_point(|mapping| mapping.to <= vpn);
        match self.list.get(after) {
            Some(mapping) if mapping.from <= vpn => {
                (mapping.told.map_or(ForkPolicy::Copy, |told| told.fork), mapping.to.min(end))
            }
            Some(mapping) => (ForkPolicy::Copy, mapping.from.min(end)),
            None => (ForkPolicy::Copy, end),
        }
    }
}

/// The lowest range of our own that overlaps the pages `[from, to)`.
pub(crate) fn own_pages(from: u64, to: u64) -> Option<(u64, u64)> {
    let address = |vpn: u64| usize::try_from(vpn << PAGE_SHIFT).expect("addresses are 64 bit");
    let vpn = |address: usize| (address >> PAGE_SHIFT) as u64;
    own::first_in(address(from), address(to)).map(|(start, stop)| (vpn(start), vpn(stop)))
}

#[cfg(test)]
mod tests {
    use pagetide_sys::maps::{Kind, Vma};
    use pagetide_sys::smaps::Flags;

    use super::*;

    fn listed(from: usize, to: usize, flags: Flags) -> Listed {
        let (start, end) = (from << PAGE_SHIFT, to << PAGE_SHIFT);
        let (offset, device, inode, kind) = (0, (0, 0), 0, Kind::Anon);
        let (read, write, exec, shared, name) = (true, true, false, false, b"".as_slice());
        Listed::of(&Vma { start, end, read, write, exec, shared, offset, device, inode, kind, name }, Some(flags))
    }

    #[test]
    fn what_is_told_twice_counts_once_and_pages_between_exceptions_are_copied() {
        let mut mappings = Mappings::new(1 << 20);
        mappings.begin_look();
        for (from, to, flags) in [
            (10, 20, Flags::WIPE_ON_FORK),
            (20, 30, Flags::DONT_COPY.with(Flags::WIPE_ON_FORK)),
            (25, 28, Flags::WIPE_ON_FORK),
            (40, 60, Flags::LOCKED),
        ] {
            mappings.note(listed(from, to, flags).part(from as u64, to as u64, Standing::Native(Why::New)));
        }
        mappings.end_look();
        assert_eq!(mappings.fork_policy(0, 15), (ForkPolicy::Copy, 10));
        assert_eq!(mappings.fork_policy(10, 15), (ForkPolicy::Wipe, 15));
        assert_eq!(mappings.fork_policy(19, 100), (ForkPolicy::Wipe, 20));
        assert_eq!(mappings.fork_policy(26, 100), (ForkPolicy::Dont, 30));
        assert_eq!(mappings.fork_policy(30, 100), (ForkPolicy::Copy, 40));
        assert_eq!(mappings.fork_policy(70, 100), (ForkPolicy::Copy, 100));
        assert_eq!(mappings.census().pages(Why::New), 40);
    }

    fn look_through(mappings: &mut Mappings, small: usize) -> usize {
        let mut wanted = 0;
        mappings.begin_look();
        for place in 0..small {
            let listed = listed(place * 4, place * 4 + 2, Flags::NONE);
            let (to, verdict) = mappings.judge(&listed, listed.from);
            wanted += usize::from(verdict == Verdict::Wanted);
            mappings.note(listed.part(listed.from, to, Standing::Native(Why::Small)));
        }
        mappings.end_look();
        wanted
    }

    #[test]
    fn small_mappings_are_left_alone_until_they_are_many_that_hold_something() {
        let mut mappings = Mappings::new(1 << 20);
        assert_eq!(look_through(&mut mappings, 128), 0);
        assert!(!mappings.takes_small_for(1000), "they are few");
        assert_eq!(look_through(&mut mappings, 1000), 0);
        assert!(!mappings.takes_small_for(499), "their tables would cost more than what is there");
        assert!(mappings.takes_small_for(500) && !mappings.takes_small_for(500), "another look takes them");
        assert_eq!(look_through(&mut mappings, 1000), 1000);
        assert_eq!(look_through(&mut mappings, 5), 5, "also when there are fewer again");
    }

    #[test]
    fn a_look_in_pieces_replaces_the_list_at_its_end() {
        let mut mappings = Mappings::new(1 << 20);
        look_through(&mut mappings, 3);
        mappings.begin_look();
        assert_eq!(mappings.look_at(), Some(0));
        mappings.note(listed(100, 150, Flags::NONE).part(100, 150, Standing::Native(Why::Stack)));
        mappings.note_looked(150);
        assert_eq!((mappings.look_at(), mappings.list().len()), (Some(150), 3));
        assert_eq!(mappings.census().pages(Why::Stack), 0);
        mappings.end_look();
        assert_eq!((mappings.look_at(), mappings.list().len()), (None, 1));
        assert_eq!(mappings.census().pages(Why::Stack), 50);
    }
}
