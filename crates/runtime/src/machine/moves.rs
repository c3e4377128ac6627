//! Moving runs of pages between the program and the staging area, and what the kernel's answers mean.
//!
//! A move may stop anywhere: what it did is answered for, the page that stopped it is judged alone, the rest is tried again or
//! deferred. No request to a device is made here.

use pagetide_core::Core;
use pagetide_core::effect::{Effect, Source};
use pagetide_core::event::{Event, MoveAnswer};
use pagetide_core::types::{Access, Nanos, PageIdx, PageRange};
use pagetide_driver::Answers;
use pagetide_kernel::{AddressSpace, OwnSide};
use pagetide_sys::mem::ManagedRange;
use pagetide_sys::uffd::{RangeAnswer, Stop, Wake};

use super::deferred::with_range;
use super::{LiveMachine, PAGE, Unsharing, ZEROES_PAGES, managed};
use crate::frames::{Frame, FrameRun, Kind};
use crate::origins;
use crate::space::held::{Held, Leading};
use crate::space::unshare::WAITING_MAX;
use crate::space::{PAGE_SHIFT, is_aside};

/// What to do with a page that cannot be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Busy {
    /// A fork may share it: make it private, then try again.
    MakePrivate,
    /// That has been tried.
    Answer,
}

/// The event that explains why a page's place is gone comes within this time.
const PLACELESS_MAX_NS: Nanos = 10_000_000_000;
/// So many pages are made private ahead of their moves: until those are done, each is there twice.
const UNSHARING_PAGES: u32 = 256;
/// This part of the budget too much, and what is shared leaves as all else does.
const FAR_PART: u32 = 4;
/// Runs up to this length are copied in where moves are dear.
const COPY_PAGES_MAX: u32 = 8;

impl<K: AddressSpace> LiveMachine<K> {
    pub(super) fn map(&mut self, range: PageRange, source: Source, access: Access, answers: &mut Answers) {
        let mut offset = 0;
        while offset < range.len {
            let page = PageIdx(range.first.0 + offset);
            let Some((vpn, in_region)) = self.mappings.place(page) else {
                // The program unmapped it while the order was on its way.
                self.gone(PageRange::one(page), answers);
                offset += 1;
                continue;
            };
            let most = (range.len - offset).min(in_region);
            let piece = PageRange::new(page, most);
            if is_aside(vpn) {
                self.deferred.push_back(Effect::Map { range: piece, source, access });
                offset += most;
                continue;
            }
            let done = match source {
                Source::Zero => self.zero_run(vpn, piece, access, answers),
                Source::Frame => self.map_run(vpn, piece, access, answers),
            };
            offset += done;
        }
    }

    /// Let those who wait for the page try again, unless they were woken when it was mapped and none has come since.
    pub(super) fn wake(&mut self, page: PageIdx) {
        if self.woken.contains(page) {
            return;
        }
        self.count_answered(PageRange::one(page), false);
        if let Some((vpn, _)) = self.mappings.place(page).filter(|&(vpn, _)| !is_aside(vpn)) {
            // An error says that the place is not registered any more: then nobody waits there.
            let _ = self.space.wake(managed(vpn, 1));
        }
    }

    /// What was here is gone, or elsewhere. Who waits here since before does so until woken, whatever is mapped here now, and its page has
    /// no place any more by which it would be.
    pub(crate) fn wake_gone(&self, vpn: u64, pages: u64) {
        let mut at = vpn;
        while at < vpn + pages {
            let len = u32::try_from(vpn + pages - at).unwrap_or(u32::MAX);
            let _ = self.space.wake(managed(at, len));
            at += u64::from(len);
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
        let unmarked = self.unmarked(vpn, piece);
        // What stands before a mark is filled; the mark itself is found by the call that does not take its place.
        let access = if unmarked == 0 { Access::Read } else { access };
        let piece = PageRange::new(piece.first, unmarked.max(1));
        // Memory that is there already goes first: beside it a fresh page would exceed the budget.
        let answer = if unmarked > 0
            && self.kind_at(vpn) == Kind::Plain
            && let Some(run) = self.spare_run(piece.len.min(ZEROES_PAGES), 1)
        {
            self.zero_from_spare(managed(vpn, run.len), run)
        } else if access == Access::Read && piece.len == 1 {
            self.space.zeropage_run(managed(vpn, 1), Wake::Now)
        } else {
            let pages = piece.len.min(ZEROES_PAGES);
            self.space.copy_run(managed(vpn, pages), self.zeroes(pages), Wake::Now)
        };
        let done = pages_of(answer.done);
        self.stats.zero_filled_pages += u64::from(done);
        if let Some(half) = half_to_retry(piece, answer) {
            return self.zero_run(vpn, half, access, answers);
        }
        self.answer_map(piece, done, answer.stop, Effect::Map { range: piece, source: Source::Zero, access }, answers)
    }

    /// How many of these pages may be filled together: a copy would take the place of a guard, and of pages that come beside the
    /// one that was touched some may have one. A page that was touched has none.
    fn unmarked(&self, vpn: u64, piece: PageRange) -> u32 {
        if piece.len == 1 && self.has_fault(piece.first) {
            return 1;
        }
        // Where the page map cannot be looked at, there are no guards that anyone could see.
        self.space.leading(managed(vpn, piece.len.min(ZEROES_PAGES)), false).map_or(piece.len, pages_of)
    }

    fn zero_from_spare(&mut self, to: ManagedRange, run: FrameRun) -> RangeAnswer {
        let memory = self.frames_memory(run);
        self.space.clear(memory);
        let answer = self.move_in(to, memory);
        for (index, frame) in run.frames().enumerate() {
            if (index << PAGE_SHIFT) < answer.done {
                self.frames.now_hole(frame);
            } else {
                self.frames.now_spare(frame);
            }
        }
        if answer.done == 0 && answer.stop == Some(Stop::Invalid) {
            return self.space.copy_run(to, self.zeroes(run.len), Wake::Now);
        }
        answer
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
        let (mut piece, run) = (PageRange::new(piece.first, len), FrameRun { first, len });
        let (to, from) = (managed(vpn, len), self.frames_memory(run));
        let is_cheaper = self.move_cost.is_dear() && len <= COPY_PAGES_MAX;
        // What the kernel may refer to goes back as it is, not as a copy.
        let is_sealed = origins::is_sealed(to.start(), to.start() + to.len());
        let mut is_copy = (is_cheaper || is_sealed || self.frames.kind(first) != self.kind_at(vpn))
            && !self.is_stuck
            && !self.lends()
            && self.unmarked(vpn, piece) == len;
        let mut answer = self.map_once(to, from, is_copy);
        if let Some(half) = half_to_retry(piece, answer) {
            return self.map_run(vpn, half, access, answers);
        }
        // A move is refused (EINVAL) where the place is not writable at present, or locked, and (EBUSY) while the frame is pinned
        // for a moment; a copy where no page is to be had (ENOMEM). The other one works.
        let is_refused = if is_copy {
            answer.stop == Some(Stop::NoMemory)
        } else {
            matches!(answer.stop, Some(Stop::Invalid | Stop::Busy))
        };
        if answer.done == 0 && is_refused {
            let before = answer.stop;
            is_copy = !is_copy;
            // The kernel has looked at the first page at most: any may have a guard, of which only a move that is let through tells.
            let unmarked = if is_copy { self.unmarked(vpn, piece).min(len) } else { len };
            answer = if unmarked == 0 {
                RangeAnswer { done: 0, stop: Some(Stop::Present) }
            } else {
                piece = PageRange::new(piece.first, unmarked);
                let bytes = (unmarked as usize) << PAGE_SHIFT;
                self.map_once(to.part(0, bytes), from.part(0, bytes), is_copy)
            };
            if before == Some(Stop::NoMemory) && answer.stop == Some(Stop::Invalid) {
                // The place takes copies only, and for a copy there will be memory again.
                answer.stop = before;
            }
        }
        for page in PageRange::new(piece.first, pages_of(answer.done)).pages() {
            let frame = self.take_frame(page).expect("it was mapped from its frame");
            if is_copy { self.frames.now_spare(frame) } else { self.frames.now_hole(frame) }
        }
        let rest = Effect::Map { range: piece, source: Source::Frame, access };
        self.answer_map(piece, pages_of(answer.done), answer.stop, rest, answers)
    }

    /// One call to the kernel, which wakes those who wait.
    fn map_once(&mut self, to: ManagedRange, from: ManagedRange, is_copy: bool) -> RangeAnswer {
        if is_copy {
            let answer = self.space.copy_run(to, from, Wake::Now);
            self.stats.copied_pages += u64::from(pages_of(answer.done));
            return answer;
        }
        let answer = self.move_in(to, from);
        self.stats.moved_in_pages += u64::from(pages_of(answer.done));
        answer
    }

    /// Move frames into the program, and wake those who wait.
    fn move_in(&mut self, to: ManagedRange, from: ManagedRange) -> RangeAnswer {
        self.move_timed(to, from, OwnSide::From, Wake::Now)
    }

    /// One call to the kernel, which shows what a move costs at present.
    fn move_timed(&mut self, to: ManagedRange, from: ManagedRange, own: OwnSide, wake: Wake) -> RangeAnswer {
        self.stats.moves += 1;
        let began = self.space.now();
        let answer = self.space.move_frames(to, from, own, wake);
        if answer.done == PAGE {
            self.move_cost.note(self.space.now().saturating_sub(began));
        }
        answer
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
            self.count_answered(range, matches!(rest, Effect::Map { source: Source::Zero, .. }));
            self.woken = range;
            self.sparing.note_mapped(range);
            self.placeless = None;
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
            // The kernel looks the mapping up before it looks whether mappings are changing: a place may be gone and its event not
            // read yet. It comes, and the content is dropped then; content that stays without a place is a broken invariant.
            Stop::Hole if self.frame(next.first).is_some() => {
                let now = self.space.now();
                let (page, since) = *self.placeless.get_or_insert((next.first, now));
                assert!(
                    page != next.first || now < since + PLACELESS_MAX_NS,
                    "I5: the place of page {next:?} ({:x?}) is gone while we hold its content",
                    self.mappings.place(next.first)
                );
                let left = PageRange::new(next.first, piece.len - done);
                self.deferred.push_back(with_range(rest, left));
                piece.len
            }
            Stop::Hole | Stop::Gone => {
                self.gone(next, answers);
                done + 1
            }
            // Without memory there will be some when the pages that are leaving have left.
            Stop::Again | Stop::Busy | Stop::NoMemory => {
                let left = PageRange::new(next.first, piece.len - done);
                self.deferred.push_back(with_range(rest, left));
                piece.len
            }
            Stop::Invalid | Stop::Marked | Stop::Other(_) => {
                panic!("page {next:?} of {piece:?} cannot be mapped: {stop:?}");
            }
        }
    }

    pub(super) fn unmap(&mut self, core: &Core, range: PageRange, busy: Busy, answers: &mut Answers) {
        let mut offset = 0;
        while offset < range.len {
            let page = PageIdx(range.first.0 + offset);
            let Some((vpn, in_region)) = self.mappings.place(page) else {
                answers.push(Event::Unmapped { range: PageRange::one(page), answer: MoveAnswer::Gone });
                offset += 1;
                continue;
            };
            let piece = PageRange::new(page, (range.len - offset).min(in_region));
            if is_aside(vpn) {
                self.deferred.push_back(Effect::Unmap { range: piece });
                offset += piece.len;
                continue;
            }
            offset += self.unmap_run(core, vpn, piece, busy, answers);
        }
    }

    /// These pages have left the program: which of them are still what their slots hold?
    fn answer_unmapped(&mut self, core: &Core, range: PageRange, answers: &mut Answers) {
        let mut run = PageRange::new(range.first, 0);
        let mut answer = MoveAnswer::Done;
        for page in range.pages() {
            let slot = core.page(page).slot;
            let is_clean = slot.is_some_and(|(device, slot)| self.is_intact(page, device, slot));
            let this = if is_clean { MoveAnswer::Clean } else { MoveAnswer::Done };
            if this != answer && run.len > 0 {
                answers.push(Event::Unmapped { range: run, answer });
                run = PageRange::new(page, 0);
            }
            answer = this;
            run.len += 1;
        }
        answers.push(Event::Unmapped { range: run, answer });
    }

    /// Further ones wait until some of those that were asked for are private.
    pub(super) fn are_many_unsharing(&self) -> bool {
        let pages = || self.unsharing.iter().map(|unsharing| unsharing.pages.len).sum::<u32>();
        self.unsharing.len() >= WAITING_MAX || pages() >= UNSHARING_PAGES
    }

    /// Of these pages, the first of which could not be moved, so many at the start that all leave, or all stay because others map them as well.
    fn leaving_of(&mut self, core: &Core, vpn: u64, pages: PageRange) -> (PageRange, bool) {
        let is_far_too_much = core.charged() > core.budget() + core.budget() / FAR_PART;
        let shared = if is_far_too_much { 0 } else { self.space.shared(managed(vpn, pages.len)).map_or(0, pages_of) };
        if shared == 0 {
            return (pages, true);
        }
        let (now, since) = (self.space.now(), self.oldest_fault().map(|(_, since)| since));
        match self.sparing.take(now, since, PageRange::new(pages.first, shared)) {
            0 => (PageRange::new(pages.first, shared), false),
            leaving => (PageRange::new(pages.first, leaving), true),
        }
    }

    /// Move pages out, from the start of `piece`; the number of pages answered for or deferred.
    pub(super) fn unmap_run(
        &mut self,
        core: &Core,
        vpn: u64,
        piece: PageRange,
        busy: Busy,
        answers: &mut Answers,
    ) -> u32 {
        let taking = self.held.map(Held::begin_taking);
        let piece = match taking.as_ref().map_or(Leading::Free(piece.len), |taking| taking.leading(vpn, piece.len)) {
            Leading::Free(pages) => PageRange::new(piece.first, pages),
            Leading::Held(pages) => {
                answers.push(Event::Unmapped { range: PageRange::new(piece.first, pages), answer: MoveAnswer::Busy });
                return pages;
            }
        };
        let kind = self.kind_at(vpn);
        let Some((mut piece, mut answer)) = self.move_out(vpn, piece, kind) else {
            answers.push(Event::Unmapped { range: piece, answer: MoveAnswer::Busy });
            return piece.len;
        };
        // Its rights may have changed since the last look.
        if answer.done == 0
            && answer.stop == Some(Stop::Invalid)
            && piece.len == 1
            && let Some(other) = self.move_out(vpn, piece, kind.other())
        {
            (piece, answer) = other;
        }
        drop(taking);
        self.woken.len = 0;
        let done = pages_of(answer.done);
        if let Some(half) = half_to_retry(piece, answer) {
            return self.unmap_run(core, vpn, half, busy, answers);
        }
        if done > 0 {
            self.sparing.note_left(done);
            self.answer_unmapped(core, PageRange::new(piece.first, done), answers);
        }
        let Some(stop) = answer.stop.filter(|_| done < piece.len) else { return done };
        let rest = PageRange::new(PageIdx(piece.first.0 + done), piece.len - done);
        let next = PageRange::one(rest.first);
        match stop {
            // MADV_GUARD_INSTALL gives pages back without a message.
            Stop::Hole | Stop::Marked | Stop::Gone => {
                answers.push(Event::Unmapped { range: next, answer: MoveAnswer::Gone });
            }
            Stop::Busy if busy == Busy::MakePrivate && self.are_many_unsharing() => {
                self.deferred.push_back(Effect::Unmap { range: rest });
                return piece.len;
            }
            Stop::Busy if busy == Busy::MakePrivate && self.unsharer.is_some() => {
                let from = vpn + u64::from(done);
                let (rest, leaves) = self.leaving_of(core, from, rest);
                if !leaves {
                    answers.push(Event::Unmapped { range: rest, answer: MoveAnswer::Busy });
                    return done + rest.len;
                }
                if self.unsharer.as_mut().is_some_and(|unsharer| unsharer.ask(managed(from, rest.len))) {
                    self.unsharing.push_back(Unsharing { pages: rest, asked: (from, rest.len) });
                    return done + rest.len;
                }
                self.stats.busy_pages += 1;
                answers.push(Event::Unmapped { range: next, answer: MoveAnswer::Busy });
            }
            Stop::Busy | Stop::Invalid | Stop::NoMemory => {
                self.stats.busy_pages += 1;
                answers.push(Event::Unmapped { range: next, answer: MoveAnswer::Busy });
            }
            Stop::Again => {
                self.deferred.push_back(Effect::Unmap { range: rest });
                return piece.len;
            }
            Stop::Present | Stop::Other(_) => panic!("page {next:?} cannot be moved out: {stop:?}"),
        }
        done + 1
    }

    /// Move pages out that may be read only.
    fn move_sealed(&mut self, to: ManagedRange, from: ManagedRange) -> RangeAnswer {
        let none = |stop| RangeAnswer { done: 0, stop: Some(stop) };
        // Something else may be there by now, whose rights are not ours to change: a move would be refused for as long.
        if self.is_changing() {
            return none(Stop::Again);
        }
        let moved = origins::while_open(from, || self.move_timed(to, from, OwnSide::To, Wake::Later));
        moved.unwrap_or(none(Stop::Invalid))
    }

    /// Move pages into frames of a kind, as many as there are in a row: how many that was asked for, and what came of it. None: there are
    /// no such frames.
    fn move_out(&mut self, vpn: u64, piece: PageRange, kind: Kind) -> Option<(PageRange, RangeAnswer)> {
        let run = self.frames.take_holes(piece.len, kind)?;
        let (to, from) = (self.frames_memory(run), managed(vpn, run.len));
        let answer = if origins::is_sealed(from.start(), from.start() + from.len()) {
            self.move_sealed(to, from)
        } else {
            self.move_timed(to, from, OwnSide::To, Wake::Later)
        };
        let done = pages_of(answer.done);
        self.stats.moved_out_pages += u64::from(done);
        for (offset, frame) in (0..).zip(run.frames()) {
            if offset < done {
                self.set_frame(PageIdx(piece.first.0 + offset), frame);
            } else {
                self.frames.now_hole(frame);
            }
        }
        Some((PageRange::new(piece.first, run.len), answer))
    }
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
