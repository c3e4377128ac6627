//! Huge pages: what one store fills, and what is made of small ones, by the kernel itself or when a program asks for it.
//!
//! A huge page is some small ones with one number: it is pinned and split as a whole.

use pagetide_sys::Errno;

use super::memory::{Entry, Kind, Mapping, PageId};
use super::{Answer, Extent, Pid, World};

impl World {
    /// The huge page that this page is a part of is one no more.
    pub(super) fn split_huge(&mut self, id: PageId) {
        let huge = self.page(id).huge;
        if huge > 0 {
            self.pages.iter_mut().filter(|page| page.huge == huge).for_each(|page| page.huge = 0);
        }
    }

    /// The pages that one store to `vpn` fills: a mapping that may have huge pages, where nothing is yet and nobody is asked.
    pub(super) fn huge_place(&self, pid: Pid, vpn: u64) -> Option<(u64, u64)> {
        let start = vpn.checked_div(self.huge_pages)? * self.huge_pages;
        let end = start + self.huge_pages;
        let process = self.process(pid);
        let is_allowed = |m: &Mapping| m.huge && !process.has_no_huge;
        let fits =
            |m: &Mapping| is_allowed(m) && !m.registered && m.kind == Kind::Anon && m.start <= start && end <= m.end;
        (process.at(vpn).is_some_and(fits) && process.entries.range(start..end).next().is_none())
            .then_some((start, end))
    }

    /// A huge page in place of what is at `[start, end)`, with the same content.
    pub(super) fn make_huge(&mut self, pid: Pid, start: u64, end: u64) {
        self.huge_made += 1;
        for vpn in start..end {
            let before = self.process(pid).entries.get(&vpn).copied();
            let entry = self.new_page(before.map_or(0, |entry| self.value_of(entry)));
            if let Entry::Page { page, .. } = entry {
                self.page_mut(page).huge = self.huge_made;
            }
            self.process_mut(pid).entries.insert(vpn, entry);
            before.into_iter().for_each(|entry| self.release(entry));
        }
    }

    /// Where a userfaultfd is told of missing pages, none may be missing: the huge page would fill it in.
    pub(super) fn collapse(&mut self, pid: Pid, Extent { start, end }: Extent) -> Answer {
        if self.process(pid).has_no_huge {
            return Answer::Failed(Errno::EINVAL);
        }
        let huge = self.huge_pages.max(1);
        let mut answer = Answer::Done;
        for start in (start.next_multiple_of(huge)..end).step_by(usize::try_from(huge).expect("few pages")) {
            let stop = start + huge;
            let process = self.process(pid);
            let Some(mapping) = process.at(start).filter(|m| stop <= end.min(m.end) && m.huge) else { continue };
            let there = process.entries.range(start..stop);
            let written = there.clone().filter(|(_, entry)| matches!(entry, Entry::Page { .. })).count();
            let is_full = written as u64 == huge || (!mapping.registered && written == there.count());
            let pages = process.entries.range(start..stop).filter_map(|(_, entry)| match entry {
                Entry::Page { page, .. } => Some(*page),
                Entry::Zero | Entry::Poison | Entry::Guard => None,
            });
            let is_pinned = pages.into_iter().any(|page| self.is_pinned(page));
            if !mapping.rights.allow(true) || !is_full || is_pinned {
                answer = Answer::Failed(match (is_full, is_pinned) {
                    (false, _) => Errno::EBUSY,
                    (true, true) => Errno::EAGAIN,
                    (true, false) => Errno::EINVAL,
                });
                continue;
            }
            self.make_huge(pid, start, stop);
        }
        answer
    }

    /// Now and then the kernel makes a huge page by itself.
    pub(super) fn collapse_somewhere(&mut self) {
        if !self.chance(self.quirks.collapsed) {
            return;
        }
        let places: Vec<(Pid, u64, u64)> = self
            .processes
            .iter()
            .flat_map(|(&pid, process)| process.mappings.iter().map(move |m| (pid, m.start, m.end)))
            .filter(|&(_, start, end)| end - start >= self.huge_pages && self.huge_pages > 0)
            .collect();
        let Some(count) = u64::try_from(places.len()).ok().filter(|count| *count > 0) else { return };
        let (pid, start, end) = places[usize::try_from(self.dice % count).expect("few mappings")];
        let at = start + (self.dice >> 20) % (end - start);
        let start = at / self.huge_pages * self.huge_pages;
        self.collapse(pid, Extent { start, end: start + self.huge_pages });
    }
}
