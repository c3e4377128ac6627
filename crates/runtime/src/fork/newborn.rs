//! A copy of the address space between the kernel's copying and the moment when it needs its parent's agent no longer: what is where,
//! and what the copy does to its mappings meanwhile.

use pagetide_core::event::Event;
use pagetide_core::types::{DeviceId, Nanos, SlotIdx};
use pagetide_kernel::{AddressSpace, Faults};
use pagetide_sys::Errno;
use pagetide_sys::fd::Fd;
use pagetide_sys::mem::ManagedRange;
use pagetide_sys::uffd::{Stop, Wake};

use super::snapshot::{RegionRecord, SlotRun};
use crate::machine::managed;
use crate::pager::Pager;

impl SlotRun {
    fn end(&self) -> u64 {
        self.vpn + u64::from(self.len)
    }

    /// The pages of it in `[from, to)`.
    fn part(&self, from: u64, to: u64) -> Option<Self> {
        let (from, to) = (from.max(self.vpn), to.min(self.end()));
        let offset = u32::try_from(from.checked_sub(self.vpn)?).ok()?;
        let len = u32::try_from(to.checked_sub(from)?).ok().filter(|&len| len > 0)?;
        Some(Self { vpn: from, len, slot: self.slot + offset, ..*self })
    }
}

impl RegionRecord {
    /// The pages of it in `[from, to)`.
    fn part(&self, from: u64, to: u64) -> Option<Self> {
        let (from, to) = (from.max(self.vpn), to.min(self.vpn + self.pages));
        (from < to).then(|| Self { vpn: from, pages: to - from })
    }
}

/// What the copy has to find at its addresses: in slots, and in frames of the parent's agent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Content {
    /// Ascending by address.
    pub(crate) runs: Vec<SlotRun>,
    /// Ascending by address; empty as soon as the parent's agent goes on.
    pub(crate) frames: Vec<(u64, ManagedRange)>,
    /// Pages that could not be read back, and have no slot any more; empty as soon as the copy has their marks.
    pub(crate) lost: Vec<u64>,
}

impl Content {
    /// The slot of a page.
    pub(super) fn slot(&self, vpn: u64) -> Option<SlotRun> {
        let index = self.runs.partition_point(|run| run.end() <= vpn);
        self.runs.get(index)?.part(vpn, vpn + 1)
    }

    /// The first of these pages that the copy has to find.
    fn first(&self, from: u64, to: u64) -> Option<u64> {
        let run = self.runs.iter().find_map(|run| run.part(from, to)).map(|run| run.vpn);
        let frame = self.frames.iter().map(|&(vpn, _)| vpn).find(|vpn| (from..to).contains(vpn));
        run.into_iter().chain(frame).min()
    }

    /// The frame of a page.
    pub(super) fn frame(&self, vpn: u64) -> Option<ManagedRange> {
        let index = self.frames.binary_search_by_key(&vpn, |&(vpn, _)| vpn).ok()?;
        Some(self.frames[index].1)
    }

    /// These pages of the copy are empty.
    pub(super) fn forget(&mut self, from: u64, to: u64) {
        self.frames.retain(|&(vpn, _)| vpn < from || vpn >= to);
        self.lost.retain(|&vpn| vpn < from || vpn >= to);
        let kept = |run: &SlotRun| [run.part(0, from), run.part(to, u64::MAX)].into_iter().flatten();
        self.runs = self.runs.iter().flat_map(kept).collect();
    }

    /// `[from, from + pages)` of the copy is at `to`.
    fn relocate(&mut self, from: u64, to: u64, pages: u64) {
        let place = |vpn: u64| vpn - from + to;
        let moved = self.runs.iter().filter_map(|run| run.part(from, from + pages));
        let moved: Vec<_> = moved.map(|run| SlotRun { vpn: place(run.vpn), ..run }).collect();
        let frames = self.frames.iter().filter(|(vpn, _)| (from..from + pages).contains(vpn));
        let frames: Vec<_> = frames.map(|&(vpn, frame)| (place(vpn), frame)).collect();
        let lost: Vec<_> =
            self.lost.iter().filter(|vpn| (from..from + pages).contains(vpn)).map(|&vpn| place(vpn)).collect();
        self.forget(from, from + pages);
        self.forget(to, to + pages);
        self.runs.extend(moved);
        self.runs.sort_unstable_by_key(|run| run.vpn);
        self.frames.extend(frames);
        self.frames.sort_unstable_by_key(|&(vpn, _)| vpn);
        self.lost.extend(lost);
    }

    /// The last page of the runs is there.
    pub(super) fn drop_last_page(&mut self) {
        if let Some(run) = self.runs.last_mut() {
            run.len -= 1;
            if run.len == 0 {
                self.runs.pop();
            }
        }
    }
}

/// The copy.
#[derive(Debug)]
pub(super) struct Newborn<C: Faults> {
    /// Its userfaultfd; in signal mode it makes one itself.
    pub(super) faults: Option<C>,
    /// The process, where its end is looked for.
    pub(super) process: Result<Fd, Errno>,
    pub(super) content: Content,
    pub(super) regions: Vec<RegionRecord>,
    /// Ends that were told: `(first page, the one behind the last)`. What is there still is not known yet.
    pub(super) told: Vec<(u64, u64)>,
    /// Sent; the child has yet to say that it serves itself.
    pub(super) call: Option<Fd>,
    /// The writing end of the pipe of each device of ours that it has pages on, for the child to hold.
    pub(super) leases: Vec<(DeviceId, Fd)>,
    /// What is pinned on devices of earlier parents as long as this lives: `(device, first slot, length)`.
    pub(super) borrowed: Vec<(DeviceId, SlotIdx, u32)>,
}

impl<C: Faults> Newborn<C> {
    pub(super) const fn new(faults: Option<C>, content: Content, regions: Vec<RegionRecord>) -> Self {
        let process = Err(Errno::ENOENT);
        Self {
            faults,
            process,
            content,
            regions,
            told: Vec::new(),
            call: None,
            leases: Vec::new(),
            borrowed: Vec::new(),
        }
    }

    /// Of a copy that the kernel has told of.
    pub(super) const fn faults(&self) -> &C {
        self.faults.as_ref().expect("only thread mode fills copies from outside")
    }

    /// What the copy has unmapped, as it was told, is not brought back, unless it is there still: the kernel tells of an end before it
    /// knows whether the call fails. False while a change is under way: then nobody can look.
    pub(super) fn believe(&mut self) -> bool {
        while let Some(&(from, to)) = self.told.first() {
            // All of it is there, or nothing.
            match self.content.first(from, to).map(|vpn| self.faults().is_registered(managed(vpn, 1))) {
                Some(Err(Errno::EAGAIN)) => return false,
                Some(Ok(true)) => {}
                Some(Ok(false) | Err(_)) | None => self.unmapped(from, to),
            }
            self.told.remove(0);
        }
        true
    }

    /// The copy unmapped these pages. What it maps there later is not registered.
    fn unmapped(&mut self, from: u64, to: u64) {
        self.content.forget(from, to);
        self.regions = self.regions_beside(from, to).collect();
    }

    /// The copy moved `[from, from + pages)` to `to`, in place of what was there.
    pub(super) fn moved(&mut self, from: u64, to: u64, pages: u64) {
        // What was there has gone: the end that the same call has told of, perhaps of more pages than were moved.
        if let Some(index) = self.told.iter().position(|&(first, _)| first == to) {
            let (first, end) = self.told.remove(index);
            self.unmapped(first, end);
        }
        let moved = self.regions.iter().filter_map(|region| region.part(from, from + pages));
        let moved: Vec<_> = moved.map(|part| RegionRecord { vpn: part.vpn - from + to, ..part }).collect();
        self.content.relocate(from, to, pages);
        self.regions = self.regions_beside(from, from + pages).collect();
        self.regions = self.regions_beside(to, to + pages).chain(moved).collect();
        self.regions.sort_unstable_by_key(|region| region.vpn);
    }

    fn regions_beside(&self, from: u64, to: u64) -> impl Iterator<Item = RegionRecord> {
        self.regions.iter().flat_map(move |region| [region.part(0, from), region.part(to, u64::MAX)]).flatten()
    }

    /// It is on its own, or gone: what earlier parents' devices keep for it is not needed here any more.
    pub(super) fn give_back<K: AddressSpace>(&mut self, pager: &mut Pager<K>, now: Nanos) {
        for (device, slot, len) in std::mem::take(&mut self.borrowed) {
            pager.step(now, Event::SlotsPinned { device, slot, len, pin: false });
        }
    }

    /// True if the child's address space is gone.
    pub(super) fn is_dead(&self) -> bool {
        let Some(faults) = &self.faults else { return self.has_ended() };
        // A page that lies in no registered mapping: a living child answers ENOENT or EINVAL, a dead one ESRCH.
        faults.zeropage_run(managed(1, 1), Wake::Later).stop == Some(Stop::Gone)
    }
}

#[cfg(test)]
mod tests {
    use pagetide_kernel::model::ModelChild;

    use super::*;

    const fn run(vpn: u64, len: u32, slot: u32) -> SlotRun {
        SlotRun { vpn, len, device: 0, slot, _pad: 0 }
    }

    #[test]
    fn what_a_copy_maps_in_place_of_a_region_is_none_and_what_it_moves_stays_one() {
        let region = |vpn, pages| RegionRecord { vpn, pages };
        let mut newborn = Newborn::<ModelChild>::new(None, Content::default(), vec![region(10, 10), region(30, 2)]);
        newborn.unmapped(13, 15);
        assert_eq!(newborn.regions, [region(10, 3), region(15, 5), region(30, 2)]);
        newborn.moved(16, 30, 3);
        assert_eq!(newborn.regions, [region(10, 3), region(15, 1), region(19, 1), region(30, 3)]);
    }

    /// `mremap` to pages that the copy has, growing on the way: old bytes of the longer place came back behind what was moved.
    #[test]
    fn what_makes_room_for_a_move_is_gone_although_the_place_is_registered() {
        let content = Content { runs: vec![run(10, 3, 100), run(30, 6, 500)], ..Content::default() };
        let mut newborn = Newborn::<ModelChild>::new(None, content, vec![RegionRecord { vpn: 10, pages: 30 }]);
        newborn.told.push((30, 36));
        newborn.moved(10, 30, 3);
        assert_eq!((newborn.content.runs, newborn.told), (vec![run(30, 3, 100)], Vec::new()));
    }

    #[test]
    fn what_a_copy_unmaps_is_not_brought_back_and_what_it_moves_is_found_there() {
        let mut content =
            Content { runs: vec![run(10, 10, 100), run(30, 2, 500)], frames: Vec::new(), lost: Vec::new() };
        content.forget(13, 15);
        assert_eq!(content.runs, [run(10, 3, 100), run(15, 5, 105), run(30, 2, 500)]);
        content.relocate(16, 28, 3);
        assert_eq!(content.runs, [run(10, 3, 100), run(15, 1, 105), run(19, 1, 109), run(28, 3, 106), run(31, 1, 501)]);
        assert_eq!(content.slot(29), Some(run(29, 1, 107)));
        assert_eq!((content.slot(14), content.slot(16), content.slot(32)), (None, None, None));
        content.drop_last_page();
        assert_eq!(content.slot(31), None);
    }
}
