//! What a forked child's agent finds of its parent's regions in its own address space.

use pagetide_core::types::Nanos;
use pagetide_sys::maps::MapsWalk;
use pagetide_sys::mem::Mapping;

use crate::agent::{Agent, die};
use crate::fork::snapshot::RegionRecord;
use crate::pager::Pager;
use crate::space::PAGE_SHIFT;

impl Agent {
    /// What the copy left out of the parent's regions (MADV_DONTFORK) is the program's to map: the rings, which cannot be placed, must
    /// not come there. Taken as long as the answer lives.
    pub(crate) fn fill_holes(&mut self, regions: &[RegionRecord]) -> Vec<Mapping> {
        let mut holes = Vec::new();
        let mut regions =
            regions.iter().map(|region| (region.vpn << PAGE_SHIFT, (region.vpn + region.pages) << PAGE_SHIFT));
        let mut region = regions.next();
        let Ok(mut walk) = MapsWalk::open(&mut self.maps_buffer) else { return Vec::new() };
        let mut walked = 0;
        while let Some((from, to)) = region {
            let (start, end) = match walk.next_vma() {
                Ok(Some(vma)) => (vma.start as u64, vma.end as u64),
                Ok(None) | Err(_) => (u64::MAX, u64::MAX),
            };
            // What lies between the mapping before and this one.
            let mut left = Some((from, to));
            while let Some((from, to)) = left.filter(|&(from, _)| from < end) {
                let (first, last) = (from.max(walked), to.min(start));
                if first < last {
                    holes.push((first, last));
                }
                if to > end {
                    break;
                }
                left = regions.next();
            }
            region = left;
            walked = end;
        }
        holes.into_iter().filter_map(|(from, to)| Mapping::reserve(from, to - from).ok()).collect()
    }

    /// The regions of a forked parent, as far as this process has them: what was MADV_DONTFORK is not there.
    pub(crate) fn take_over_regions(&mut self, pager: &mut Pager, now: Nanos, regions: &[RegionRecord]) {
        let mut walk = match MapsWalk::open(&mut self.maps_buffer) {
            Ok(walk) => walk,
            Err(errno) => die(&self.supervisor, format_args!("/proc/self/maps cannot be read: {}", errno.name())),
        };
        while let Ok(Some(vma)) = walk.next_vma() {
            if let Err(errno) = pager.take_over_vma(now, &vma, regions, self.hello.signal_mode) {
                die(&self.supervisor, format_args!("a forked child's memory cannot be registered: {}", errno.name()));
            }
        }
    }
}
