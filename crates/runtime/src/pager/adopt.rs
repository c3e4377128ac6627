//! Taking memory under management: mappings of the list, regions of a forked parent, pages that are there already.

use pagetide_core::event::Event;
use pagetide_core::types::{Nanos, PageIdx, PageRange};
use pagetide_kernel::AddressSpace;
use pagetide_sys::Errno;
use pagetide_sys::maps::Vma;
use pagetide_sys::mem::ManagedRange;
use pagetide_sys::pagemap::Categories;
use pagetide_sys::uffd::{Modes, Stop, Wake};

use super::{HEAP_SLACK_PAGES, Pager};
use crate::fork::snapshot::RegionRecord;
use crate::machine::managed;
use crate::space::{Backing, Census, Listed, PAGE_SHIFT, Standing, Verdict, Why, own_pages};

impl<K: AddressSpace> Pager<K> {
    /// A look through the kernel's list of mappings begins.
    pub(crate) fn begin_look(&mut self) {
        self.machine_mut().mappings.begin_look();
    }

    /// The address at which the look that is under way goes on.
    pub(crate) fn look_at(&self) -> Option<u64> {
        self.machine().mappings.look_at().map(|vpn| vpn << PAGE_SHIFT)
    }

    /// The look has come to the end of the list.
    pub(crate) fn end_look(&mut self) {
        self.machine_mut().mappings.end_look();
    }

    /// As [`Mappings::takes_small_for`](crate::space::Mappings::takes_small_for).
    pub(crate) fn takes_small_for(&mut self, unseen_pages: u64) -> bool {
        self.machine_mut().mappings.takes_small_for(unseen_pages)
    }

    /// Judge a mapping of the list, and take what is wanted of it under management.
    pub(crate) fn adopt_vma(&mut self, now: Nanos, vma: &Vma<'_>) {
        let listed = Listed::of(vma, None);
        let mut from = listed.from;
        while from < listed.to {
            let (to, verdict) = self.machine().mappings.judge(&listed, from);
            let is_plain = !listed.rights.exec || matches!(verdict, Verdict::Native(_));
            let has_frames = is_plain || self.machine_mut().reserve_executable();
            let standing = match verdict {
                Verdict::Managed => Some(Standing::Managed),
                Verdict::Native(why) => Some(Standing::Native(why)),
                Verdict::Wanted if !has_frames => Some(Standing::Native(Why::Executable)),
                Verdict::Wanted => self.adopt_range(now, from, to, listed.backing == Backing::Heap),
            };
            if let Some(standing) = standing {
                self.machine_mut().mappings.note(listed.part(from, to, standing));
            }
            from = to;
        }
        self.machine_mut().mappings.note_looked(listed.to);
    }

    /// A look that tells locks and fork policies, and takes nothing under management.
    pub(crate) fn look_at_fork_policies(&mut self) -> Result<(), Errno> {
        let mut list = Vec::with_capacity(self.machine().mappings.list().len());
        self.machine().space().flagged_mappings(&mut |vma, flags| list.push(Listed::of(vma, Some(flags))))?;
        self.begin_look();
        let mappings = &mut self.machine_mut().mappings;
        for listed in list {
            let mut from = listed.from;
            while from < listed.to {
                let (to, verdict) = mappings.judge(&listed, from);
                let standing = match verdict {
                    Verdict::Managed => Standing::Managed,
                    Verdict::Native(why) => Standing::Native(why),
                    Verdict::Wanted => Standing::Native(Why::New),
                };
                mappings.note(listed.part(from, to, standing));
                from = to;
            }
        }
        mappings.end_look();
        Ok(())
    }

    /// What the last look left native, and why.
    pub(crate) fn census(&self) -> &Census {
        self.machine().mappings.census()
    }

    /// A mapping of the list, of which `regions` (ascending) were a forked parent's. The kernel registered it with the child's
    /// userfaultfd when it copied the address space, or did not in signal mode: then it is registered here. No code of the program has
    /// run since.
    pub(crate) fn take_over_vma(
        &mut self,
        now: Nanos,
        vma: &Vma<'_>,
        regions: &[RegionRecord],
        is_signal_mode: bool,
    ) -> Result<(), Errno> {
        let Listed { from, to, .. } = Listed::of(vma, None);
        let first = regions.partition_point(|region| region.vpn + region.pages <= from);
        if vma.is_private_anon() && !is_signal_mode {
            self.note_unrecorded(from, to, &regions[first..]);
        }
        let regions = regions[first..].iter().take_while(|region| region.vpn < to).filter(|_| vma.is_private_anon());
        for region in regions {
            if vma.exec {
                // Without frames for them, such pages stay in memory.
                self.machine_mut().reserve_executable();
            }
            self.take_over_region(now, region.vpn.max(from), (region.vpn + region.pages).min(to), is_signal_mode)?;
        }
        Ok(())
    }

    /// What of `[from, to)` is none of `regions` came to its place while the parent was copied (mremap), and the parent's agent had not read
    /// of it. The kernel has it registered: the next look takes it, however small.
    fn note_unrecorded(&mut self, from: u64, to: u64, regions: &[RegionRecord]) {
        let mut at = from;
        let inside = regions.iter().take_while(|region| region.vpn < to).map(|region| (region.vpn, region.pages));
        for (vpn, pages) in inside.chain([(to, 0)]) {
            // Where changes of the child's own are yet to be read, the look asks again.
            if at < vpn && self.machine().space().is_registered(managed(at, 1)) != Ok(false) {
                self.machine_mut().mappings.note_registered(at, vpn);
            }
            at = at.max(vpn + pages);
        }
    }

    /// What the child's agent has mapped since may lie where the copy left something out (MADV_DONTFORK).
    fn take_over_region(&mut self, now: Nanos, from: u64, to: u64, is_signal_mode: bool) -> Result<(), Errno> {
        let mut vpn = from;
        while vpn < to {
            let (start, stop) = own_pages(vpn, to).unwrap_or((to, to));
            if start > vpn {
                if is_signal_mode {
                    let pages = u32::try_from(start - vpn).expect("a region has 32-bit page indices");
                    self.machine().space().register(managed(vpn, pages), Modes::MISSING)?;
                }
                let added = self.add_region(now, vpn, start, false);
                assert!(added, "a child has as many page indices as its parent");
            }
            vpn = stop;
        }
        Ok(())
    }

    /// Register the range, tell the core of it, and charge what is there already; or why it stays native. None: it has changed since
    /// the list was read, or the end of who was there before is yet to be told, and the next look judges what has become of it.
    fn adopt_range(&mut self, now: Nanos, from: u64, to: u64, is_heap: bool) -> Option<Standing> {
        let Ok(pages) = u32::try_from(to - from) else { return Some(Standing::Native(Why::NoIndices)) };
        // What is registered tells of its own end, and may do so before who was here.
        if self.machine().mappings.awaits_at(from, to) {
            return None;
        }
        match self.machine().space().register(managed(from, pages), Modes::MISSING) {
            Ok(()) => {}
            Err(Errno::EBUSY) => return Some(Standing::Native(Why::Refused)),
            Err(_) => return None,
        }
        if !self.is_registered(from, to) {
            // What is left of it at the next look is registered already, however small.
            self.machine_mut().mappings.note_registered(from, to);
            return None;
        }
        // Nothing was under way, or the kernel had not let a page be filled. Another change may be by now: what is told of its end is about
        // this region, and not about what was here before.
        self.end_awaiting(now);
        let is_added = self.add_region(now, from, to, is_heap);
        Some(if is_added { Standing::Managed } else { Standing::Native(Why::NoIndices) })
    }

    /// Manage a fresh mapping of our own making, which nobody knows yet. False: no page indices are left for it.
    pub(crate) fn add_fresh(&mut self, now: Nanos, range: ManagedRange) -> Result<bool, Errno> {
        let vpn = (range.start() >> PAGE_SHIFT) as u64;
        let Ok(pages) = u32::try_from(range.len() >> PAGE_SHIFT) else { return Ok(false) };
        self.machine().space().register(range, Modes::MISSING)?;
        let Some(region) = self.machine_mut().mappings.add(vpn, pages, 0) else { return Ok(false) };
        self.driver.step(now, Event::RegionAdded { region: region.id, range: region.range });
        Ok(true)
    }

    /// The range is registered: it becomes a region, and what is there is charged. False: no page indices are left, it stays native.
    fn add_region(&mut self, now: Nanos, from: u64, to: u64, is_heap: bool) -> bool {
        let pages = u32::try_from(to - from).unwrap_or(u32::MAX);
        let slack = if is_heap { HEAP_SLACK_PAGES } else { 0 };
        let added = if let Some(region) = self.machine_mut().mappings.grow(from, pages) {
            self.driver.step(now, Event::RegionResized { region: region.id, range: region.range });
            PageRange::new(PageIdx(region.range.end().0 - pages), pages)
        } else if let Some(region) = self.machine_mut().mappings.add(from, pages, slack) {
            self.driver.step(now, Event::RegionAdded { region: region.id, range: region.range });
            region.range
        } else {
            let _ = self.machine().space().unregister(managed(from, pages));
            return false;
        };
        self.adopt_present(now, from, added);
        true
    }

    /// True if all of `[from, to)` is mapped and registered, after it was asked to be.
    ///
    /// The program may have unmapped a part between our reading of the maps and the registration, and mapped something new
    /// there since: registration passes over holes, and of what is mapped later we would hear nothing - its pages would be
    /// taken out and never brought back. Filling a page answers ENOENT in a mapping that is not registered; one that is cannot
    /// go without an event any more.
    fn is_registered(&mut self, from: u64, to: u64) -> bool {
        let mut vpn = from;
        while vpn < to {
            let Some((start, end)) = self.mapping_at(vpn) else { return false };
            if start > vpn {
                return false;
            }
            let probed = self.machine().space().zeropage_run(managed(vpn, 1), Wake::Now);
            if !probed.is_complete() && probed.stop != Some(Stop::Present) {
                return false;
            }
            vpn = end;
        }
        true
    }

    /// The mapping that covers this page or is the next one: first page, and the page behind the last.
    fn mapping_at(&mut self, vpn: u64) -> Option<(u64, u64)> {
        let address = usize::try_from(vpn << PAGE_SHIFT).expect("addresses are 64 bit");
        let vma = self.machine_mut().space_mut().mapping_at_or_after(address).ok().flatten()?;
        Some(((vma.start >> PAGE_SHIFT) as u64, (vma.end >> PAGE_SHIFT) as u64))
    }

    /// Charge the pages of `pages`, from address `vpn` on, that are there already.
    fn adopt_present(&mut self, now: Nanos, vpn: u64, pages: PageRange) {
        let mut runs = std::mem::take(&mut self.runs);
        let mut from = vpn;
        let end = vpn + u64::from(pages.len);
        while from < end {
            let left = managed(from, u32::try_from(end - from).expect("inside the region"));
            let wanted = Categories::PRESENT.with(Categories::SWAPPED);
            let scan = self.machine().space().scan(left, wanted, &mut runs).expect("our own page table can be read");
            for run in &runs[..scan.runs] {
                let offset = |address: u64| u32::try_from((address >> PAGE_SHIFT) - vpn).expect("inside the region");
                let (first, stop) = (offset(run.start), offset(run.end));
                self.driver.step(now, Event::Adopted { range: pages.part(first, stop - first) });
            }
            from = (scan.walked_to as u64) >> PAGE_SHIFT;
        }
        self.runs = runs;
    }

    /// Look for pages that are there without our knowing (MADV_FREE that was taken back by a store), and charge them. Not where
    /// the program may be giving pages back at this moment.
    pub(crate) fn reconcile(&mut self, now: Nanos) {
        let mut index = 0;
        while let Some(&region) = self.machine().mappings.regions().get(index) {
            let mut vpn = region.vpn;
            while let Some((from, to)) = self.recent.first_old(now, vpn, region.end_vpn()) {
                let [first, len] =
                    [from - region.vpn, to - from].map(|pages| u32::try_from(pages).expect("inside the region"));
                self.adopt_present(now, from, region.range.part(first, len));
                vpn = to;
            }
            index += 1;
        }
    }
}
