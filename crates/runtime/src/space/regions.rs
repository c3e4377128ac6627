//! Which address is which page of the core: the table of regions.
//!
//! A region is a managed range of the program's addresses, one region of the core. The core's page index of an address never
//! changes while the page is managed, even when mremap moves it: only the region's address does.
//!
//! Invariants: regions do not overlap in address or in page index; a fresh region's index is congruent to its address modulo
//! 512 pages (see `PageIdx`); index 0 is never used.

use pagetide_core::types::{PMD_PAGES, PageIdx, PageRange, RegionId};

/// Bytes in a page, as a power of two.
pub(crate) const PAGE_SHIFT: u32 = 12;
/// Bytes in a page.
pub(crate) const PAGE_BYTES: u64 = 1 << PAGE_SHIFT;

/// A managed range of the program's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    /// Virtual page number of its first page.
    pub(crate) vpn: u64,
    /// Its pages in the core.
    pub(crate) range: PageRange,
    /// Its name in the core.
    pub(crate) id: RegionId,
}

impl Region {
    pub(crate) fn end_vpn(&self) -> u64 {
        self.vpn + u64::from(self.range.len)
    }

    fn page_at(&self, vpn: u64) -> PageIdx {
        PageIdx(self.range.first.0 + pages_u32(vpn - self.vpn))
    }
}

/// A count of pages that lies inside one region.
fn pages_u32(pages: u64) -> u32 {
    u32::try_from(pages).expect("a region has less than 2^32 pages")
}

/// What a change of the address space did to a region; the caller tells the core in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The region was split at this page; the upper part has a new region.
    Split { region: RegionId, at: PageIdx, upper: RegionId },
    /// The region is gone.
    Removed { region: RegionId, range: PageRange },
}

/// The table.
#[derive(Debug)]
pub(crate) struct Regions {
    /// Ascending by address.
    by_address: Vec<Region>,
    /// The same, ascending by page.
    by_page: Vec<Region>,
    /// Free page indices, ascending, coalesced.
    free: Vec<PageRange>,
    free_ids: Vec<RegionId>,
    ids_seen: u32,
    managed_pages: u64,
}

impl Regions {
    /// An empty table over page indices `1..pages_max`.
    pub(crate) fn new(pages_max: u32) -> Self {
        Self {
            by_address: Vec::with_capacity(256),
            by_page: Vec::with_capacity(256),
            free: vec![PageRange::new(PageIdx(1), pages_max - 1)],
            free_ids: Vec::new(),
            ids_seen: 0,
            managed_pages: 0,
        }
    }

    /// Pages under management.
    pub(crate) const fn managed_pages(&self) -> u64 {
        self.managed_pages
    }

    /// All regions, ascending by address.
    pub(crate) fn all(&self) -> &[Region] {
        &self.by_address
    }

    fn index_at_or_after(&self, vpn: u64) -> usize {
        self.by_address.partition_point(|region| region.end_vpn() <= vpn)
    }

    /// The region that covers this virtual page.
    pub(crate) fn find(&self, vpn: u64) -> Option<&Region> {
        self.by_address.get(self.index_at_or_after(vpn)).filter(|region| region.vpn <= vpn)
    }

    /// The core's page for this virtual page.
    pub(crate) fn page(&self, vpn: u64) -> Option<PageIdx> {
        self.find(vpn).map(|region| region.page_at(vpn))
    }

    /// The virtual page number of a page, and how many pages from it on lie in the same region.
    pub(crate) fn place(&self, page: PageIdx) -> Option<(u64, u32)> {
        let after = self.by_page.partition_point(|region| region.range.first <= page);
        let region = self.by_page.get(after.checked_sub(1)?)?;
        let offset = page.0 - region.range.first.0;
        (offset < region.range.len).then(|| (region.vpn + u64::from(offset), region.range.len - offset))
    }

    /// The pages of the first region inside `[vpn, end)`, clipped to it, and the address behind them.
    pub(crate) fn first_piece(&self, vpn: u64, end: u64) -> Option<(PageRange, u64)> {
        // Also when `vpn` has reached `end` inside a region that goes on: an empty piece would be found for ever.
        let region = self.by_address.get(self.index_at_or_after(vpn)).filter(|region| vpn < end && region.vpn < end)?;
        let (from, to) = (region.vpn.max(vpn), region.end_vpn().min(end));
        Some((PageRange::new(region.page_at(from), pages_u32(to - from)), to))
    }

    /// First piece of `[vpn, end)` that no region covers.
    pub(crate) fn gap(&self, vpn: u64, end: u64) -> Option<(u64, u64)> {
        let mut from = vpn;
        for region in &self.by_address[self.index_at_or_after(vpn)..] {
            if region.vpn > from {
                break;
            }
            from = region.end_vpn();
        }
        if from >= end {
            return None;
        }
        let next = self.by_address.get(self.index_at_or_after(from)).map_or(end, |region| region.vpn.min(end));
        Some((from, next))
    }

    /// The region that ends where `vpn` begins and whose next `pages` page indices are free: it can grow in place.
    pub(crate) fn grow(&mut self, vpn: u64, pages: u32) -> Option<Region> {
        let index = self.by_address.partition_point(|region| region.vpn < vpn).checked_sub(1)?;
        let region = self.by_address[index];
        if region.end_vpn() != vpn || !self.take_free(PageRange::new(region.range.end(), pages)) {
            return None;
        }
        self.set_len(index, region.range.len + pages);
        self.managed_pages += u64::from(pages);
        Some(self.by_address[index])
    }

    /// A new region over `[vpn, vpn + pages)`, which no region covers. `slack` more page indices are left free behind it, so
    /// that it can grow. None: no page indices are left.
    pub(crate) fn add(&mut self, vpn: u64, pages: u32, slack: u32) -> Option<Region> {
        let range = match self.beside(vpn, pages) {
            Some(range) if slack == 0 && self.take_free(range) => range,
            Some(_) | None => self.take_first_fit(vpn, pages, slack)?,
        };
        let region = Region { vpn, range, id: self.new_id() };
        self.insert(region);
        Some(region)
    }

    /// The page indices that have the same distance from those of the region below as the addresses have: thousands of small regions
    /// side by side keep their order, and nobody looks for gaps among them.
    fn beside(&self, vpn: u64, pages: u32) -> Option<PageRange> {
        let index = self.by_address.partition_point(|region| region.vpn < vpn).checked_sub(1)?;
        let below = self.by_address[index];
        let distance = vpn - below.vpn;
        let is_near = vpn - below.end_vpn() < u64::from(PMD_PAGES);
        let is_congruent = u64::from(below.range.first.0) % u64::from(PMD_PAGES) == below.vpn % u64::from(PMD_PAGES);
        if !is_near || !is_congruent {
            return None;
        }
        let first = u32::try_from(u64::from(below.range.first.0) + distance).ok()?;
        first.checked_add(pages).map(|_| PageRange::new(PageIdx(first), pages))
    }

    fn take_first_fit(&mut self, vpn: u64, pages: u32, slack: u32) -> Option<PageRange> {
        let phase = u32::try_from(vpn % u64::from(PMD_PAGES)).expect("a remainder of 512");
        let place = |free: &PageRange, need: u32| {
            let skip = (phase + PMD_PAGES - free.first.0 % PMD_PAGES) % PMD_PAGES;
            (free.len > skip && free.len - skip >= need).then(|| PageIdx(free.first.0 + skip))
        };
        let first = (self.free.iter().find_map(|free| place(free, pages.saturating_add(slack))))
            .or_else(|| self.free.iter().find_map(|free| place(free, pages)))?;
        let range = PageRange::new(first, pages);
        let taken = self.take_free(range);
        assert!(taken, "the range was found in the free list");
        Some(range)
    }

    fn new_id(&mut self) -> RegionId {
        self.free_ids.pop().unwrap_or_else(|| {
            self.ids_seen += 1;
            RegionId(self.ids_seen - 1)
        })
    }

    /// The region at this place of `by_address` has so many pages from now on.
    fn set_len(&mut self, index: usize, len: u32) {
        let region = &mut self.by_address[index];
        region.range.len = len;
        let index = self.by_page.binary_search_by_key(&region.range.first, |region| region.range.first);
        self.by_page[index.expect("every region is in both tables")].range.len = len;
    }

    fn insert(&mut self, region: Region) {
        let index = self.by_address.partition_point(|other| other.vpn < region.vpn);
        assert!(
            self.by_address.get(index).is_none_or(|next| region.end_vpn() <= next.vpn),
            "regions overlap: {region:?}"
        );
        self.by_address.insert(index, region);
        let index = self.by_page.partition_point(|other| other.range.first < region.range.first);
        self.by_page.insert(index, region);
        self.managed_pages += u64::from(region.range.len);
    }

    fn detach(&mut self, index: usize) -> Region {
        let region = self.by_address.remove(index);
        let index = self.by_page.binary_search_by_key(&region.range.first, |region| region.range.first);
        self.by_page.remove(index.expect("every region is in both tables"));
        self.managed_pages -= u64::from(region.range.len);
        region
    }

    /// Split the region that straddles `vpn`, if there is one.
    fn split_at(&mut self, vpn: u64) -> Option<Change> {
        let index = self.index_at_or_after(vpn);
        let region = *self.by_address.get(index).filter(|region| region.vpn < vpn)?;
        let lower_len = pages_u32(vpn - region.vpn);
        let upper = self.new_id();
        self.set_len(index, lower_len);
        let range = PageRange::new(region.page_at(vpn), region.range.len - lower_len);
        self.managed_pages -= u64::from(range.len);
        self.insert(Region { vpn, range, id: upper });
        Some(Change::Split { region: region.id, at: range.first, upper })
    }

    /// `[vpn, end)` is not mapped any more. `tell` gets the changes in order.
    pub(crate) fn remove(&mut self, vpn: u64, end: u64, mut tell: impl FnMut(Change)) {
        for border in [vpn, end] {
            if let Some(change) = self.split_at(border) {
                tell(change);
            }
        }
        let index = self.index_at_or_after(vpn);
        while self.by_address.get(index).is_some_and(|region| region.vpn < end) {
            let region = self.detach(index);
            self.give_free(region.range);
            self.free_ids.push(region.id);
            tell(Change::Removed { region: region.id, range: region.range });
        }
    }

    /// `[from, from + pages)` is now at `to`. What was at `to` has been removed before.
    pub(crate) fn moved(&mut self, from: u64, to: u64, pages: u64, mut tell: impl FnMut(Change)) {
        for border in [from, from + pages] {
            if let Some(change) = self.split_at(border) {
                tell(change);
            }
        }
        let mut moved = Vec::new();
        let index = self.index_at_or_after(from);
        while self.by_address.get(index).is_some_and(|region| region.vpn < from + pages) {
            moved.push(self.detach(index));
        }
        for region in moved {
            self.insert(Region { vpn: region.vpn - from + to, ..region });
        }
    }

    fn take_free(&mut self, range: PageRange) -> bool {
        let after = self.free.partition_point(|free| free.first <= range.first);
        let Some(index) = after.checked_sub(1).filter(|&index| range.end() <= self.free[index].end()) else {
            return false;
        };
        let free = self.free[index];
        let before = PageRange::new(free.first, range.first.0 - free.first.0);
        let after = PageRange::new(range.end(), free.end().0 - range.end().0);
        self.free.remove(index);
        for piece in [after, before] {
            if piece.len > 0 {
                self.free.insert(index, piece);
            }
        }
        true
    }

    fn give_free(&mut self, range: PageRange) {
        let index = self.free.partition_point(|free| free.first < range.first);
        self.free.insert(index, range);
        if index + 1 < self.free.len() && self.free[index].end() == self.free[index + 1].first {
            self.free[index].len += self.free[index + 1].len;
            self.free.remove(index + 1);
        }
        if index > 0 && self.free[index - 1].end() == self.free[index].first {
            self.free[index - 1].len += self.free[index].len;
            self.free.remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Regions {
        Regions::new(1 << 20)
    }

    fn removed(regions: &mut Regions, vpn: u64, end: u64) -> Vec<Change> {
        let mut changes = Vec::new();
        regions.remove(vpn, end, |change| changes.push(change));
        changes
    }

    #[test]
    fn an_index_is_congruent_to_its_address() {
        let mut regions = table();
        let region = regions.add(0x7_f123_4567, 10, 0).expect("the table is empty");
        assert_eq!(u64::from(region.range.first.0) % 512, 0x7_f123_4567 % 512);
        assert_eq!(regions.page(0x7_f123_4567 + 9), Some(PageIdx(region.range.first.0 + 9)));
        assert_eq!(regions.page(0x7_f123_4567 + 10), None);
        assert_eq!(regions.place(PageIdx(region.range.first.0 + 4)), Some((0x7_f123_4567 + 4, 6)));
    }

    /// A program unmapped the first part of a mapping while a move waited: the pager walked the pieces of the part, came to
    /// its end inside the region, and found an empty piece there for ever, while the program waited for its munmap.
    #[test]
    fn the_pieces_of_a_part_of_a_span_end_with_the_part() {
        let mut regions = table();
        regions.add(1000, 100, 0).expect("the table is empty");
        let (range, behind) = regions.first_piece(1010, 1020).expect("the region covers it");
        assert_eq!((range.len, behind), (10, 1020));
        assert_eq!(regions.first_piece(behind, 1020), None);
        assert_eq!(regions.first_piece(1100, 1200), None);
    }

    #[test]
    fn a_hole_in_the_middle_leaves_two_regions() {
        let mut regions = table();
        let region = regions.add(1000, 100, 0).expect("the table is empty");
        let changes = removed(&mut regions, 1010, 1020);
        let at = |offset: u32| PageIdx(region.range.first.0 + offset);
        assert_eq!(
            changes,
            [
                Change::Split { region: RegionId(0), at: at(10), upper: RegionId(1) },
                Change::Split { region: RegionId(1), at: at(20), upper: RegionId(2) },
                Change::Removed { region: RegionId(1), range: PageRange::new(at(10), 10) },
            ]
        );
        assert_eq!(regions.managed_pages(), 90);
        assert_eq!(regions.page(1009), Some(at(9)));
        assert_eq!(regions.page(1015), None);
        assert_eq!(regions.page(1020), Some(at(20)));
        assert_eq!(regions.gap(1000, 1100), Some((1010, 1020)));
    }

    #[test]
    fn a_moved_range_keeps_its_pages() {
        let mut regions = table();
        let region = regions.add(1000, 100, 0).expect("the table is empty");
        let page = regions.page(1050).expect("it is in the region");
        regions.moved(1040, 5000, 20, |_| {});
        assert_eq!(regions.page(5010), Some(page));
        assert_eq!(regions.place(page), Some((5010, 10)));
        assert_eq!(regions.page(1050), None);
        assert_eq!(regions.page(1060), Some(PageIdx(region.range.first.0 + 60)));
    }

    #[test]
    fn a_heap_grows_in_place_while_indices_are_free() {
        let mut regions = table();
        regions.add(1000, 10, 1000).expect("the table is empty");
        regions.add(9000, 10, 0).expect("there is room behind the slack");
        let grown = regions.grow(1010, 500).expect("the slack is free");
        assert_eq!((grown.vpn, grown.range.len), (1000, 510));
        assert_eq!(regions.grow(9999, 1), None, "no region ends there");
    }

    #[test]
    fn freed_indices_coalesce_and_are_used_again() {
        // Index 0 is never used, so the first PMD range is lost to addresses at the start of one.
        let mut regions = Regions::new(512 * 5);
        for place in 0..4 {
            regions.add(512 * place, 500, 0).expect("four fit");
        }
        assert_eq!(regions.add(0x1_0000, 512, 0), None);
        removed(&mut regions, 512, 512 * 3);
        assert!(regions.add(0x1_0000, 900, 0).is_some(), "two neighbours that were freed are one range again");
    }

    #[test]
    fn pieces_are_clipped_to_the_asked_range() {
        let mut regions = table();
        regions.add(100, 10, 0).expect("the table is empty");
        regions.add(200, 10, 0).expect("there is room");
        let piece = |vpn, end| regions.first_piece(vpn, end).map(|(range, behind)| (range.len, behind));
        assert_eq!(piece(105, 203), Some((5, 110)));
        assert_eq!(piece(110, 203), Some((3, 203)));
        assert_eq!(piece(110, 200), None);
        assert_eq!(regions.gap(100, 110), None);
        assert_eq!(regions.gap(105, 203), Some((110, 200)));
    }
}
