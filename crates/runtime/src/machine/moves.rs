//! Moving runs of pages between the program and the staging area, and what the kernel's answers mean.
//!
//! A move may stop anywhere: what it did is answered for, the page that stopped it is judged alone, the rest is tried again or
//! deferred. No request to a device is made here.

use pagetide_core::effect::{Effect, Source};
use pagetide_core::event::{Event, MoveAnswer};
use pagetide_core::types::{Access, PageIdx, PageRange};
use pagetide_driver::Answers;
use pagetide_sys::mem::ManagedRange;
use pagetide_sys::uffd::{RangeAnswer, Stop, Wake};

use super::deferred::with_range;
use super::{LiveMachine, ZEROES_PAGES, managed};
use crate::frames::{Frame, FrameRun};
use crate::spans::PAGE_SHIFT;
use crate::unshare::WAITING_MAX;

/// What to do with a page that cannot be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Busy {
    /// A fork may share it: make it private, then try again.
    MakePrivate,
    /// That has been tried.
    Answer,
}

impl LiveMachine {
    pub(super) fn map(&mut self, range: PageRange, source: Source, access: Access, answers: &mut Answers) {
        let mut offset = 0;
        while offset < range.len {
            let page = PageIdx(range.first.0 + offset);
            let Some((vpn, in_span)) = self.spans.place(page) else {
                // The program unmapped it while the order was on its way.
                self.gone(PageRange::one(page), answers);
                offset += 1;
                continue;
            };
            let most = (range.len - offset).min(in_span);
            let piece = PageRange::new(page, most);
            let done = match source {
                Source::Zero => self.zero_run(vpn, piece, access, answers),
                Source::Frame => self.map_run(vpn, piece, access, answers),
            };
            offset += done;
        }
    }

    /// Let those who wait for the page try again.
    pub(super) fn wake(&mut self, page: PageIdx) {
        if let Some((vpn, _)) = self.spans.place(page) {
            // An error says that the place is not registered any more: then nobody waits there.
            let _ = self.uffd.wake(managed(vpn, 1));
        }
    }

    pub(super) fn gone(&mut self, range: PageRange, answers: &mut Answers) {
        for page in range.pages() {
            if let Some(frame) = self.take_frame(page) {
                self.frames.now_spare(frame);
            }
        }
        answers.push(Event::Mapped { range, answer: MoveAnswer::Gone });
    }

    /// Map zero pages at the start of `piece`; the number of pages answered for or deferred.
    pub(super) fn zero_run(&mut self, vpn: u64, piece: PageRange, access: Access, answers: &mut Answers) -> u32 {
        // Memory that is there already goes first: beside it a fresh page would exceed the budget.
        let answer = if let Some(run) = self.spare_for_zero(piece.len) {
            self.zero_from_spare(managed(vpn, run.len), run)
        } else if access == Access::Read && piece.len == 1 {
            self.uffd.zeropage_run(managed(vpn, 1), Wake::Now)
        } else {
            let pages = piece.len.min(ZEROES_PAGES);
            self.uffd.copy_run(managed(vpn, pages), self.zeroes(pages), false, Wake::Now)
        };
        if self.crosses_a_mapping(&answer, piece.len) {
            return self.zero_run(vpn, piece.part(0, piece.len / 2), access, answers);
        }
        let done = pages_of(answer.done);
        self.stats.zero_filled_pages += u64::from(done);
        if let Some(half) = half_to_retry(piece, answer) {
            return self.zero_run(vpn, half, access, answers);
        }
        self.answer_map(piece, done, answer.stop, Effect::Map { range: piece, source: Source::Zero, access }, answers)
    }

    fn zero_from_spare(&mut self, to: ManagedRange, run: FrameRun) -> RangeAnswer {
        let memory = self.frames_memory(run);
        zero_memory(memory);
        let answer = self.uffd.move_run(to, memory, false, Wake::Now);
        self.stats.moves += 1;
        for (index, frame) in run.frames().enumerate() {
            if (index << PAGE_SHIFT) < answer.done {
                self.frames.now_hole(frame);
            } else {
                self.frames.now_spare(frame);
            }
        }
        if answer.done == 0 && answer.stop == Some(Stop::Invalid) {
            return self.uffd.copy_run(to, self.zeroes(run.len), false, Wake::Now);
        }
        answer
    }

    fn spare_for_zero(&mut self, most: u32) -> Option<FrameRun> {
        self.can_move.then(|| self.frames.take_spare(most.min(ZEROES_PAGES))).flatten()
    }

    /// Map the longest run of neighbouring frames at the start of `piece`; the number of pages answered for or deferred.
    pub(super) fn map_run(&mut self, vpn: u64, piece: PageRange, access: Access, answers: &mut Answers) -> u32 {
        let Some(first) = self.frame(piece.first) else {
            // Only an answer to a discard that crossed the order takes a frame away.
            answers.push(Event::Mapped { range: PageRange::one(piece.first), answer: MoveAnswer::Gone });
            return 1;
        };
        let neighbours = |offset: &u32| self.frame(PageIdx(piece.first.0 + offset)) == Some(Frame(first.0 + offset));
        let len = 1 + u32::try_from((1..piece.len).take_while(neighbours).count()).expect("at most piece.len");
        let piece = PageRange::new(piece.first, len);
        let (to, from) = (managed(vpn, len), self.frames_memory(FrameRun { first, len }));
        let none = RangeAnswer { done: 0, stop: Some(Stop::Invalid) };
        let mut answer = if self.can_move { self.uffd.move_run(to, from, false, Wake::Now) } else { none };
        self.stats.moves += 1;
        if self.crosses_a_mapping(&answer, len) {
            return self.map_run(vpn, piece.part(0, len / 2), access, answers);
        }
        let moved = pages_of(answer.done);
        self.stats.moved_in_pages += u64::from(moved);
        if let Some(half) = half_to_retry(piece, answer) {
            return self.map_run(vpn, half, access, answers);
        }
        // EINVAL: the place is not writable at present, or locked; EBUSY: the frame is pinned for a moment. A copy works.
        let must_copy = answer.done == 0 && matches!(answer.stop, Some(Stop::Invalid | Stop::Busy));
        if must_copy {
            answer = self.uffd.copy_run(to, from, false, Wake::Now);
            self.stats.copied_pages += u64::from(pages_of(answer.done));
        }
        for page in PageRange::new(piece.first, pages_of(answer.done)).pages() {
            let frame = self.take_frame(page).expect("it was mapped from its frame");
            if must_copy { self.frames.now_spare(frame) } else { self.frames.now_hole(frame) }
        }
        let rest = Effect::Map { range: piece, source: Source::Frame, access };
        self.answer_map(piece, pages_of(answer.done), answer.stop, rest, answers)
    }

    /// True if a call over several pages was refused as a whole. A span may lie in several mappings of the kernel (which does
    /// not join all neighbours), and a call that crosses from one into the next does nothing (EINVAL from a move, ENOENT from a
    /// copy): half of it may not cross.
    fn crosses_a_mapping(&self, answer: &RangeAnswer, pages: u32) -> bool {
        self.can_move && pages > 1 && answer.done == 0 && matches!(answer.stop, Some(Stop::Invalid | Stop::Hole))
    }

    /// Answer for the `done` pages at the start of `piece`, and for the page that stopped the call or defer the rest.
    fn answer_map(
        &mut self,
        piece: PageRange,
        done: u32,
        stop: Option<Stop>,
        rest: Effect,
        answers: &mut Answers,
    ) -> u32 {
        if done > 0 {
            let range = PageRange::new(piece.first, done);
            self.count_answered(range);
            answers.push(Event::Mapped { range, answer: MoveAnswer::Done });
        }
        let Some(stop) = stop.filter(|_| done < piece.len) else { return done };
        let next = PageRange::one(PageIdx(piece.first.0 + done));
        match stop {
            Stop::Present => {
                if let Some(frame) = self.take_frame(next.first) {
                    self.frames.now_spare(frame);
                }
                self.wake(next.first);
                // A page that is present where zeroes were to be filled in is on its way out: its MADV_DONTNEED has been
                // announced and not yet carried out. It is not ours to charge.
                let is_zero_fill = matches!(rest, Effect::Map { source: Source::Zero, .. });
                let answer = if is_zero_fill { MoveAnswer::Gone } else { MoveAnswer::Present };
                answers.push(Event::Mapped { range: next, answer });
                done + 1
            }
            Stop::Hole | Stop::Gone => {
                // An unmapped place is told of before the kernel answers anything but EAGAIN: content without a place is a
                // broken invariant.
                assert!(
                    self.frame(next.first).is_none(),
                    "I5: the place of page {next:?} ({:x?}) is gone while we hold its content: {stop:?}",
                    self.spans.place(next.first)
                );
                self.gone(next, answers);
                done + 1
            }
            Stop::Again | Stop::Busy => {
                let left = PageRange::new(next.first, piece.len - done);
                self.deferred.push_back(with_range(rest, left));
                piece.len
            }
            Stop::Invalid | Stop::NoMemory | Stop::Other(_) => {
                panic!("page {next:?} of {piece:?} cannot be mapped: {stop:?}");
            }
        }
    }

    pub(super) fn unmap(&mut self, range: PageRange, busy: Busy, answers: &mut Answers) {
        let mut offset = 0;
        while offset < range.len {
            let page = PageIdx(range.first.0 + offset);
            let Some((vpn, in_span)) = self.spans.place(page) else {
                answers.push(Event::Unmapped { range: PageRange::one(page), answer: MoveAnswer::Gone });
                offset += 1;
                continue;
            };
            let piece = PageRange::new(page, (range.len - offset).min(in_span));
            offset += self.unmap_run(vpn, piece, busy, answers);
        }
    }

    /// Move pages out, from the start of `piece`; the number of pages answered for or deferred.
    pub(super) fn unmap_run(&mut self, vpn: u64, piece: PageRange, busy: Busy, answers: &mut Answers) -> u32 {
        let Some(run) = self.frames.take_holes(piece.len) else {
            answers.push(Event::Unmapped { range: piece, answer: MoveAnswer::Busy });
            return piece.len;
        };
        let piece = PageRange::new(piece.first, run.len);
        let answer = self.uffd.move_run(self.frames_memory(run), managed(vpn, run.len), false, Wake::Later);
        self.stats.moves += 1;
        if piece.len > 1 && answer.done == 0 && answer.stop == Some(Stop::Invalid) {
            run.frames().for_each(|frame| self.frames.now_hole(frame));
            return self.unmap_run(vpn, piece.part(0, piece.len / 2), busy, answers);
        }
        let done = pages_of(answer.done);
        self.stats.moved_out_pages += u64::from(done);
        for (offset, frame) in (0..).zip(run.frames()) {
            if offset < done {
                self.set_frame(PageIdx(piece.first.0 + offset), frame);
            } else {
                self.frames.now_hole(frame);
            }
        }
        if let Some(half) = half_to_retry(piece, answer) {
            return self.unmap_run(vpn, half, busy, answers);
        }
        if done > 0 {
            answers.push(Event::Unmapped { range: PageRange::new(piece.first, done), answer: MoveAnswer::Done });
        }
        let Some(stop) = answer.stop.filter(|_| done < piece.len) else { return done };
        let next = PageRange::one(PageIdx(piece.first.0 + done));
        match stop {
            Stop::Hole | Stop::Gone => answers.push(Event::Unmapped { range: next, answer: MoveAnswer::Gone }),
            Stop::Busy if busy == Busy::MakePrivate && self.unsharing.len() < WAITING_MAX => {
                let rest = PageRange::new(next.first, piece.len - done);
                self.unsharer.ask(managed(vpn + u64::from(done), rest.len));
                self.unsharing.push_back(rest);
                return piece.len;
            }
            Stop::Busy | Stop::Invalid | Stop::NoMemory => {
                self.stats.busy_pages += 1;
                answers.push(Event::Unmapped { range: next, answer: MoveAnswer::Busy });
            }
            Stop::Again => {
                self.deferred.push_back(Effect::Unmap { range: PageRange::new(next.first, piece.len - done) });
                return piece.len;
            }
            Stop::Present | Stop::Other(_) => panic!("page {next:?} cannot be moved out: {stop:?}"),
        }
        done + 1
    }
}

/// Clear spare frames.
fn zero_memory(frames: ManagedRange) {
    // SAFETY: spare frames have memory, belong to the machine and hold nothing.
    unsafe { frames.as_ptr().write_bytes(0, frames.len()) };
}

/// The first half of a run that was refused as a whole. The kernel refuses any run that crosses the border of two of its
/// mappings (MOVE: EINVAL, COPY: ENOENT), and mprotect, mlock and madvise make such borders inside a region at any time: only
/// what it says of a single page is about that page.
fn half_to_retry(piece: PageRange, answer: RangeAnswer) -> Option<PageRange> {
    let refused = answer.done == 0 && matches!(answer.stop, Some(Stop::Invalid | Stop::Hole));
    (refused && piece.len > 1).then(|| PageRange::new(piece.first, piece.len / 2))
}

pub(super) fn pages_of(bytes: usize) -> u32 {
    u32::try_from(bytes >> PAGE_SHIFT).expect("a run has less than 2^32 pages")
}
