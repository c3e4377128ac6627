//! What there is beside the pages that the core has charged: our own tables, memory that stays native, and pages that cannot leave.
//!
//! All of it is looked up in the page table, which takes time: how often is the host's to say.

use pagetide_core::types::Nanos;
use pagetide_kernel::AddressSpace;
use pagetide_sys::mem::ManagedRange;
use pagetide_sys::pagemap::{Categories, Run};

use super::{Overhead, Pager};
use crate::machine::managed;
use crate::origins;
use crate::own;
use crate::space::PAGE_SHIFT;
use crate::space::unpaged::{Unpaged, counts_file_pages};

/// Time between the beginnings of two passes over what is native; how long a piece of one may keep the host; pages looked at
/// together, 64 MiB, and where nothing is found up to 16 GiB: programs reserve a TiB, and to look at nothing takes no time.
const PASS_NS: Nanos = 100_000_000;
const PIECE_NS: Nanos = 100_000;
const PIECE_PAGES: u64 = 1 << 14;
const EMPTY_PAGES: u64 = 1 << 22;

impl<K: AddressSpace> Pager<K> {
    /// Look how much memory our tables and the page tables of the process take.
    pub(crate) fn measure_overhead(&mut self) {
        let mut runs = std::mem::take(&mut self.runs);
        let machine = self.driver.machine();
        let mut private = 0;
        let mut index = 0;
        while let Some(range) = own::at(index) {
            index += 1;
            let is_tier = machine.tier().is_some_and(|tier| tier.range().start() == range.start());
            if !machine.is_staging(range.start()) && !is_tier {
                private += self.resident_pages(range, &mut runs);
            }
        }
        let sums = machine.stores().iter().map(|(_, store)| self.resident_pages(store.sums_range(), &mut runs)).sum();
        self.runs = runs;
        let page_tables = self.machine().space().sizes().page_table_bytes >> PAGE_SHIFT;
        self.overhead = Overhead { private, sums, page_tables };
    }

    /// Look for memory behind native mappings for a moment, if it is time; the next call goes on where this one has stopped.
    pub(crate) fn count_unpaged(&mut self, now: Nanos) {
        if !self.unpaged.begins_or_goes_on(now, PASS_NS) {
            return;
        }
        let mut runs = std::mem::take(&mut self.runs);
        let space = self.driver.machine().space();
        let begin = space.now();
        let mappings = &self.driver.machine().mappings;
        let mut piece = PIECE_PAGES;
        loop {
            let Some((mapping, why)) = mappings.native_at_or_after(self.unpaged.at()) else {
                self.unpaged.end_pass(space.sizes().locked_bytes >> PAGE_SHIFT);
                break;
            };
            let from = self.unpaged.at().max(mapping.from);
            let pages = u32::try_from((mapping.to - from).min(piece)).expect("a small constant");
            let found = match why.unpaged() {
                Some(_) => self.memory_behind(managed(from, pages), counts_file_pages(mapping.backing), &mut runs),
                None => 0,
            };
            piece = if found == 0 { (piece * 2).min(EMPTY_PAGES) } else { PIECE_PAGES };
            self.unpaged.add(why, found, from + u64::from(pages));
            if space.now() >= begin + PIECE_NS {
                break;
            }
        }
        self.unpaged.spend(space.now().saturating_sub(begin));
        self.runs = runs;
    }

    /// What stays native, by reason, in pages that have memory.
    pub(crate) const fn unpaged(&self) -> &Unpaged {
        &self.unpaged
    }

    /// As last measured.
    pub(crate) const fn overhead(&self) -> Overhead {
        self.overhead
    }

    /// Pages of `range` with memory of their own.
    fn resident_pages(&self, range: ManagedRange, runs: &mut [Run]) -> u64 {
        self.memory_behind(range, true, runs)
    }

    /// Pages of `range` that are there, those of files included or not.
    fn memory_behind(&self, range: ManagedRange, with_files: bool, runs: &mut [Run]) -> u64 {
        let not = if with_files { Categories::ZERO } else { Categories::ZERO.with(Categories::FILE) };
        let mut pages = 0;
        let mut left = range;
        while !left.is_empty() {
            let wanted = Categories::PRESENT.with(not);
            let Ok(scan) = self.machine().space().scan(left, wanted, runs) else { return pages };
            let own = |run: &&Run| run.categories.has(Categories::PRESENT) && !run.categories.meets(not);
            pages += runs[..scan.runs].iter().filter(own).map(Run::pages).sum::<u64>();
            left = left.skip(scan.walked_to - left.start());
        }
        pages
    }

    /// Pages that are there and cannot be taken out, because the program may not write them: the kernel moves pages only out of
    /// writable mappings.
    pub(crate) fn read_only_pages(&mut self) -> u64 {
        let mut runs = std::mem::take(&mut self.runs);
        let (mut pages, mut index) = (0, 0);
        while let Some(&region) = self.machine().mappings.regions().get(index) {
            index += 1;
            let mut vpn = region.vpn;
            while vpn < region.end_vpn() {
                let address = usize::try_from(vpn << PAGE_SHIFT).expect("addresses are 64 bit");
                let Ok(Some(vma)) = self.machine_mut().space_mut().mapping_at_or_after(address) else { break };
                let (start, end) = ((vma.start >> PAGE_SHIFT) as u64, (vma.end >> PAGE_SHIFT) as u64);
                let (from, to) = (start.clamp(vpn, region.end_vpn()), end.min(region.end_vpn()));
                let is_sealed = origins::is_sealed(vma.start, vma.end);
                if !vma.write && !is_sealed && from < to {
                    let range = managed(from, u32::try_from(to - from).expect("inside the region"));
                    pages += self.resident_pages(range, &mut runs);
                }
                vpn = to.max(from);
            }
        }
        self.runs = runs;
        self.unpaged.note_read_only(pages);
        pages
    }
}
