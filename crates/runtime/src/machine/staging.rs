//! Where the frames are: pieces of our own address space, of which more are mapped as the budget grows.
//!
//! Invariant: a run of frames lies in one piece (between two pieces a frame is left out that is never given out).

use pagetide_kernel::{AddressSpace, OwnMapping};
use pagetide_sys::Errno;
use pagetide_sys::mem::ManagedRange;

use super::LiveMachine;
use crate::frames::{Frame, FrameRun, Kind};
use crate::space::PAGE_SHIFT;

/// Frames beyond twice the budget, so that runs are found: 64 MiB of addresses.
const SLACK_PAGES: u64 = 16 << 10;

/// Maps so many frames of a kind, registered. The first one's number tells the pieces apart.
pub(crate) type MapFrames<K> = fn(&K, u64, u32, Kind) -> Result<<K as AddressSpace>::Mapping, Errno>;

/// Frames for a budget.
pub(crate) fn frames_for(budget_pages: u64) -> u64 {
    (budget_pages * 2 + SLACK_PAGES).min(u64::from(u32::MAX / 2))
}

/// The pieces, by the number of their first frame.
#[derive(Debug)]
pub(super) struct Staging<M> {
    pieces: Vec<(u32, M)>,
}

impl<M: OwnMapping> Staging<M> {
    pub(super) fn new(first: M) -> Self {
        Self { pieces: vec![(0, first)] }
    }

    fn piece_of(&self, frame: Frame) -> (u32, ManagedRange) {
        let piece = self.pieces.iter().rfind(|(first, _)| *first <= frame.0);
        let (first, mapping) = piece.expect("the first piece begins at frame 0");
        (*first, mapping.range())
    }

    /// The memory of a run of frames.
    pub(super) fn memory(&self, run: FrameRun) -> ManagedRange {
        let (first, piece) = self.piece_of(run.first);
        piece.part(((run.first.0 - first) as usize) << PAGE_SHIFT, (run.len as usize) << PAGE_SHIFT)
    }

    /// The piece that the frame is in.
    pub(super) fn piece(&self, frame: Frame) -> ManagedRange {
        self.piece_of(frame).1
    }

    /// All of it.
    pub(super) fn ranges(&self) -> impl Iterator<Item = ManagedRange> {
        self.pieces.iter().map(|(_, mapping)| mapping.range())
    }
}

impl<K: AddressSpace> LiveMachine<K> {
    /// Have frames for a budget of so many pages. False: no more can be mapped.
    pub(crate) fn reserve_frames(&mut self, budget_pages: u32) -> bool {
        let wanted = frames_for(u64::from(budget_pages));
        if self.frames.executable_count() > 0 {
            // With fewer of them such pages stay in memory longer.
            self.reserve(wanted, Kind::Executable);
        }
        self.reserve(wanted, Kind::Plain)
    }

    /// Have frames for pages that may be executed. False: they cannot be mapped.
    pub(crate) fn reserve_executable(&mut self) -> bool {
        self.frames.executable_count() > 0 || self.reserve(self.plain_frames(), Kind::Executable)
    }

    fn plain_frames(&self) -> u64 {
        u64::from(self.frames.total() - self.frames.executable_count())
    }

    fn reserve(&mut self, wanted: u64, kind: Kind) -> bool {
        let have = match kind {
            Kind::Plain => self.plain_frames(),
            Kind::Executable => u64::from(self.frames.executable_count()),
        };
        if wanted <= have {
            return true;
        }
        // Half as much again at least: few pieces, however often it grows.
        let more = (wanted - have).max(have / 2);
        let first = self.frames.total() + 1;
        let Ok(mapping) = (self.map_frames)(&self.space, more, first, kind) else { return false };
        self.frames.grow(u32::try_from(more).expect("less than 2^32 frames in all"), kind);
        self.staging.pieces.push((first, mapping));
        true
    }

    /// Of what kind the frame of a page must be to be moved, as the last look has left it.
    pub(super) fn kind_at(&self, vpn: u64) -> Kind {
        let is_executable = self.frames.executable_count() > 0 && self.mappings.is_executable(vpn);
        if is_executable { Kind::Executable } else { Kind::Plain }
    }

    /// The largest budget that there are frames for.
    pub(crate) fn budget_pages_max(&self) -> u32 {
        let frames = self.plain_frames().saturating_sub(SLACK_PAGES) / 2;
        u32::try_from(frames).expect("less than the frames")
    }

    /// Frames that are neither holes nor spare, nor a page's that is managed: they would never be used again.
    #[cfg(test)]
    pub(crate) fn lost_frames(&self) -> u32 {
        let pages = self.mappings.regions().iter().flat_map(|region| region.range.pages());
        let held = u32::try_from(pages.filter(|&page| self.frame(page).is_some()).count()).expect("few pages");
        let between_pieces = u32::try_from(self.staging.pieces.len() - 1).expect("few pieces");
        self.frames.total() - between_pieces - self.frames.hole_count() - self.frames.spare_count() - held
    }

    /// True if the addresses from here on are frames.
    pub(crate) fn is_staging(&self, start: usize) -> bool {
        self.staging.ranges().any(|range| range.start() == start)
    }
}
