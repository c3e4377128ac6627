//! What is still there of memory whose end was told.

use pagetide_core::Core;
use pagetide_core::page::{Flight, PageState};
use pagetide_core::types::PageRange;
use pagetide_kernel::AddressSpace;
use pagetide_sys::pagemap::{Categories, Run};

use super::{LiveMachine, managed};
use crate::space::{Change, PAGE_SHIFT};

impl<K: AddressSpace> LiveMachine<K> {
    /// A message has told of the end of these pages: those that are there still. See [`Mappings::remove`](crate::space::Mappings::remove).
    pub(crate) fn told_unmapped(
        &mut self,
        core: &Core,
        vpn: u64,
        end: u64,
        tell: impl FnMut(Change),
    ) -> Vec<(u64, u64)> {
        let space = &mut self.space;
        let is_here = |from: u64, pages: PageRange| {
            let until = registered_until(space, from, from + u64::from(pages.len));
            let len = u32::try_from(until - from).expect("inside the region");
            if may_be_here(space, core, from, pages.part(0, len)) { until } else { from }
        };
        self.mappings.remove(vpn, end, is_here, tell)
    }
}

/// Pages that are registered at `vpn`: may they be those that we know, or are they gone, and the mapping before them has grown (mremap, of
/// which nobody is told)? Those that the program had in memory tell, if there were any.
fn may_be_here(space: &impl AddressSpace, core: &Core, vpn: u64, pages: PageRange) -> bool {
    let in_memory = |page| {
        let view = core.page(page);
        view.state == PageState::Mapped && view.flight == Flight::None
    };
    if !pages.pages().any(in_memory) {
        return true;
    }
    let found =
        space.scan(managed(vpn, pages.len), Categories::PRESENT.with(Categories::SWAPPED), &mut [Run::default()]);
    found.is_ok_and(|found| found.runs > 0)
}

/// How far from page `from` on, which was managed, pages are still registered. `from`: not even that.
fn registered_until<K: AddressSpace>(space: &mut K, from: u64, end: u64) -> u64 {
    // Nearly always the end of it is true, and this tells.
    if space.is_registered_now(managed(from, 1)) != Some(true) {
        return from;
    }
    let address = usize::try_from(from << PAGE_SHIFT).expect("addresses are 64 bit");
    let Ok(Some(vma)) = space.mapping_at_or_after(address) else { return from };
    let is_here = vma.start <= address && vma.is_private_anon();
    if is_here { end.min((vma.end >> PAGE_SHIFT) as u64) } else { from }
}
