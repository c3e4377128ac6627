//! The staging area: a range of our own address space, one frame a page, where pages are between program and device.
//!
//! A frame is a *hole* (no memory behind it: the destination of a move out of the program), *held* (it holds a page of
//! the core: swap cache, read or write in flight) or *spare* (memory whose content nobody needs: the target of the next
//! read, so that the steady state neither allocates nor zeroes). The whole area is registered with the userfaultfd, which
//! makes a hole fault instead of filling silently, and is what UFFDIO_MOVE asks of a destination.
//!
//! This file is bookkeeping only: bitmaps and their counts. It makes no system call.
//!
//! The kernel moves pages only between mappings of the same rights, so frames are of two kinds. A page that may be executed is moved out
//! into one that may be, too; into the program it is copied if its frame is of the other kind.
//!
//! Invariants: a frame is in exactly one state; `spare` and `held` counts equal the bitmaps; only the memory of spare and
//! held frames counts against the budget.

/// A frame of the staging area, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Frame(pub(crate) u32);

/// What may be done with the memory of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It is read and written.
    Plain,
    /// And executed.
    Executable,
}

impl Kind {
    /// The other one.
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Plain => Self::Executable,
            Self::Executable => Self::Plain,
        }
    }
}

/// `len` neighbouring frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameRun {
    pub(crate) first: Frame,
    pub(crate) len: u32,
}

/// One bit a frame, with a cursor: the next search begins where the last one ended, which keeps neighbours together.
#[derive(Debug)]
struct Bits {
    words: Vec<u64>,
    count: u32,
    cursor: u32,
}

impl Bits {
    fn new(frames: u32) -> Self {
        Self { words: vec![0; frames.div_ceil(64) as usize], count: 0, cursor: 0 }
    }

    fn extend(&mut self, frames: u32) {
        self.words.resize(frames.div_ceil(64) as usize, 0);
    }

    const fn mask(frame: u32) -> u64 {
        1 << (frame % 64)
    }

    fn has(&self, frame: u32) -> bool {
        self.words[(frame / 64) as usize] & Self::mask(frame) != 0
    }

    fn set(&mut self, frame: u32) {
        debug_assert!(!self.has(frame), "frame {frame} is set twice");
        self.words[(frame / 64) as usize] |= Self::mask(frame);
        self.count += 1;
    }

    fn clear(&mut self, frame: u32) {
        debug_assert!(self.has(frame), "frame {frame} is cleared twice");
        self.words[(frame / 64) as usize] &= !Self::mask(frame);
        self.count -= 1;
    }

    /// First set bit at or after `from`.
    fn next_set(&self, from: u32) -> Option<u32> {
        let mut index = (from / 64) as usize;
        let mut word = *self.words.get(index)? & (u64::MAX << (from % 64));
        loop {
            if word != 0 {
                return Some(u32::try_from(index).expect("frames are counted in u32") * 64 + word.trailing_zeros());
            }
            index += 1;
            word = *self.words.get(index)?;
        }
    }

    /// Length of the run of set bits from `first`, at most `most`.
    fn run_len(&self, first: u32, most: u32) -> u32 {
        let mut len = 0;
        while len < most {
            let frame = first + len;
            let Some(&word) = self.words.get((frame / 64) as usize) else { break };
            let ones = (word >> (frame % 64)).trailing_ones().min(64 - frame % 64);
            len += ones.min(most - len);
            if ones < 64 - frame % 64 {
                break;
            }
        }
        len
    }

    /// A run of at most `most` set bits from the cursor on, wrapping once. None if no bit is set, or if those are fewer than `least`.
    fn find(&mut self, most: u32, least: u32) -> Option<FrameRun> {
        if self.count == 0 || most == 0 {
            return None;
        }
        let first = self.next_set(self.cursor).or_else(|| self.next_set(0)).expect("count says that a bit is set");
        let len = self.run_len(first, most);
        self.cursor = first + len;
        (len >= least).then_some(FrameRun { first: Frame(first), len })
    }
}

/// The states of all frames.
#[derive(Debug)]
pub(crate) struct Frames {
    total: u32,
    /// By [`Kind`].
    holes: [Bits; 2],
    spare: Bits,
    /// Those that may be executed: first, and the one behind the last.
    executable: Vec<(u32, u32)>,
}

impl Frames {
    /// `total` plain frames, all holes.
    pub(crate) fn new(total: u32) -> Self {
        let mut holes = Bits::new(total);
        for frame in 0..total {
            holes.set(frame);
        }
        Self { total, holes: [holes, Bits::new(total)], spare: Bits::new(total), executable: Vec::new() }
    }

    /// Numbers of frames.
    pub(crate) const fn total(&self) -> u32 {
        self.total
    }

    /// So many frames more, all holes, behind one that is left out.
    pub(crate) fn grow(&mut self, more: u32, kind: Kind) {
        let first = self.total + 1;
        self.total = first + more;
        for bits in self.holes.iter_mut().chain([&mut self.spare]) {
            bits.extend(self.total);
        }
        if kind == Kind::Executable {
            self.executable.push((first, self.total));
        }
        (first..self.total).for_each(|frame| self.now_hole(Frame(frame)));
    }

    /// How many there are that may be executed.
    pub(crate) fn executable_count(&self) -> u32 {
        self.executable.iter().map(|(first, end)| end - first).sum()
    }

    /// Of what kind the frame is.
    pub(crate) fn kind(&self, frame: Frame) -> Kind {
        let is_executable = self.executable.iter().any(|&(first, end)| first <= frame.0 && frame.0 < end);
        if is_executable { Kind::Executable } else { Kind::Plain }
    }

    /// Frames with memory that nobody needs.
    pub(crate) const fn spare_count(&self) -> u32 {
        self.spare.count
    }

    /// Frames without memory.
    pub(crate) const fn hole_count(&self) -> u32 {
        self.holes[0].count + self.holes[1].count
    }

    /// Take a run of at most `most` holes to hold pages that are moved in. None: there is none left of this kind.
    pub(crate) fn take_holes(&mut self, most: u32, kind: Kind) -> Option<FrameRun> {
        let holes = &mut self.holes[kind as usize];
        let run = holes.find(most, 1)?;
        for frame in run.frames() {
            holes.clear(frame.0);
        }
        Some(run)
    }

    /// The frame that the next run of spare ones begins with.
    pub(crate) fn next_spare(&self) -> Option<Frame> {
        let next = self.spare.next_set(self.spare.cursor).or_else(|| self.spare.next_set(0));
        next.map(Frame)
    }

    /// Take a run of at most `most` spare frames to read into. None: there is no spare memory, or the next of it is shorter than
    /// `least`.
    pub(crate) fn take_spare(&mut self, most: u32, least: u32) -> Option<FrameRun> {
        let run = self.spare.find(most, least)?;
        for frame in run.frames() {
            self.spare.clear(frame.0);
        }
        Some(run)
    }

    /// The held frame's memory has left it (moved into the program).
    pub(crate) fn now_hole(&mut self, frame: Frame) {
        debug_assert!(!self.spare.has(frame.0), "a spare frame does not become a hole by a move");
        let kind = self.kind(frame);
        self.holes[kind as usize].set(frame.0);
    }

    /// The held frame's content is not needed any more; its memory stays.
    pub(crate) fn now_spare(&mut self, frame: Frame) {
        debug_assert!(!self.holes.iter().any(|holes| holes.has(frame.0)), "a hole has no memory to spare");
        self.spare.set(frame.0);
    }
}

impl FrameRun {
    pub(crate) fn frames(self) -> impl Iterator<Item = Frame> {
        (self.first.0..self.first.0 + self.len).map(Frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u32, len: u32) -> FrameRun {
        FrameRun { first: Frame(first), len }
    }

    #[test]
    fn runs_of_holes_are_taken_in_order_and_wrap() {
        let mut frames = Frames::new(130);
        assert_eq!(frames.take_holes(100, Kind::Plain), Some(run(0, 100)));
        assert_eq!(frames.take_holes(100, Kind::Plain), Some(run(100, 30)), "the area ends at 130");
        assert_eq!(frames.take_holes(1, Kind::Plain), None);
        frames.now_hole(Frame(64));
        frames.now_hole(Frame(65));
        frames.now_hole(Frame(3));
        assert_eq!(frames.take_holes(8, Kind::Plain), Some(run(3, 1)), "the cursor was at the end: the search wraps");
        assert_eq!(frames.take_holes(8, Kind::Plain), Some(run(64, 2)));
        assert_eq!(frames.hole_count(), 0);
    }

    #[test]
    fn a_frame_goes_from_hole_to_held_to_spare_to_held_to_hole() {
        let mut frames = Frames::new(4);
        let held = frames.take_holes(2, Kind::Plain).expect("all frames are holes");
        for frame in held.frames() {
            frames.now_spare(frame);
        }
        assert_eq!((frames.spare_count(), frames.hole_count()), (2, 2));
        assert_eq!(frames.take_spare(9, 1), Some(run(0, 2)));
        frames.now_hole(Frame(0));
        frames.now_hole(Frame(1));
        assert_eq!((frames.spare_count(), frames.hole_count()), (0, 4));
    }

    #[test]
    fn a_run_that_is_too_short_is_passed_over() {
        let mut frames = Frames::new(64);
        frames.take_holes(64, Kind::Plain).expect("all frames are holes");
        for frame in [3, 9, 10, 11] {
            frames.now_spare(Frame(frame));
        }
        assert_eq!(frames.take_spare(8, 2), None);
        assert_eq!(frames.take_spare(8, 2), Some(run(9, 3)));
        assert_eq!(frames.take_spare(8, 1), Some(run(3, 1)));
    }

    #[test]
    fn frames_of_each_kind_are_taken_apart_and_go_back_where_they_were() {
        let mut frames = Frames::new(70);
        assert_eq!(frames.take_holes(1, Kind::Executable), None);
        frames.grow(10, Kind::Executable);
        frames.grow(5, Kind::Plain);
        assert_eq!((frames.total(), frames.hole_count(), frames.executable_count()), (87, 85, 10));
        assert_eq!(frames.take_holes(99, Kind::Executable), Some(run(71, 10)));
        assert_eq!(frames.take_holes(99, Kind::Executable), None);
        frames.now_spare(Frame(72));
        assert_eq!(frames.take_spare(9, 1), Some(run(72, 1)), "memory is memory");
        frames.now_hole(Frame(72));
        assert_eq!(frames.take_holes(99, Kind::Executable), Some(run(72, 1)));
        assert_eq!(frames.take_holes(99, Kind::Plain), Some(run(0, 70)));
        assert_eq!(frames.take_holes(99, Kind::Plain), Some(run(82, 5)));
    }

    #[test]
    fn runs_cross_word_borders() {
        let mut frames = Frames::new(256);
        assert_eq!(frames.take_holes(60, Kind::Plain), Some(run(0, 60)));
        assert_eq!(frames.take_holes(140, Kind::Plain), Some(run(60, 140)));
    }
}
