//! The staging area: a range of our own address space, one frame a page, where pages are between program and device.
//!
//! A frame is a *hole* (no memory behind it: the destination of a move out of the program), *held* (it holds a page of
//! the core: swap cache, read or write in flight) or *spare* (memory whose content nobody needs: the target of the next
//! read, so that the steady state neither allocates nor zeroes). The whole area is registered with the userfaultfd, which
//! makes a hole fault instead of filling silently, and is what UFFDIO_MOVE asks of a destination.
//!
//! This file is bookkeeping only: two bitmaps and their counts. It makes no system call.
//!
//! Invariants: a frame is in exactly one state; `spare` and `held` counts equal the bitmaps; only the memory of spare and
//! held frames counts against the budget.

/// A frame of the staging area, by index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Frame(pub(crate) u32);

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
    holes: Bits,
    spare: Bits,
}

impl Frames {
    /// `total` frames, all holes.
    pub(crate) fn new(total: u32) -> Self {
        let mut holes = Bits::new(total);
        for frame in 0..total {
            holes.set(frame);
        }
        Self { total, holes, spare: Bits::new(total) }
    }

    /// Numbers of frames.
    pub(crate) const fn total(&self) -> u32 {
        self.total
    }

    /// Numbers below `total` from now on; the new ones are in no state yet.
    pub(crate) fn extend(&mut self, total: u32) {
        self.total = total;
        self.holes.extend(total);
        self.spare.extend(total);
    }

    /// Frames with memory that nobody needs.
    pub(crate) const fn spare_count(&self) -> u32 {
        self.spare.count
    }

    /// Frames without memory.
    pub(crate) const fn hole_count(&self) -> u32 {
        self.holes.count
    }

    /// Take a run of at most `most` holes to hold pages that are moved in. None: the area is full.
    pub(crate) fn take_holes(&mut self, most: u32) -> Option<FrameRun> {
        let run = self.holes.find(most, 1)?;
        for frame in run.frames() {
            self.holes.clear(frame.0);
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
        self.holes.set(frame.0);
    }

    /// The held frame's content is not needed any more; its memory stays.
    pub(crate) fn now_spare(&mut self, frame: Frame) {
        debug_assert!(!self.holes.has(frame.0), "a hole has no memory to spare");
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
        assert_eq!(frames.take_holes(100), Some(run(0, 100)));
        assert_eq!(frames.take_holes(100), Some(run(100, 30)), "the area ends at 130");
        assert_eq!(frames.take_holes(1), None);
        frames.now_hole(Frame(64));
        frames.now_hole(Frame(65));
        frames.now_hole(Frame(3));
        assert_eq!(frames.take_holes(8), Some(run(3, 1)), "the cursor was at the end: the search wraps");
        assert_eq!(frames.take_holes(8), Some(run(64, 2)));
        assert_eq!(frames.hole_count(), 0);
    }

    #[test]
    fn a_frame_goes_from_hole_to_held_to_spare_to_held_to_hole() {
        let mut frames = Frames::new(4);
        let held = frames.take_holes(2).expect("all frames are holes");
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
        frames.take_holes(64).expect("all frames are holes");
        for frame in [3, 9, 10, 11] {
            frames.now_spare(Frame(frame));
        }
        assert_eq!(frames.take_spare(8, 2), None);
        assert_eq!(frames.take_spare(8, 2), Some(run(9, 3)));
        assert_eq!(frames.take_spare(8, 1), Some(run(3, 1)));
    }

    #[test]
    fn runs_cross_word_borders() {
        let mut frames = Frames::new(256);
        assert_eq!(frames.take_holes(60), Some(run(0, 60)));
        assert_eq!(frames.take_holes(140), Some(run(60, 140)));
    }
}
