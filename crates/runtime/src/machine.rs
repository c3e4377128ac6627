//! The live machine: carries the core's orders out with userfaultfd and a swap file.
//!
//! Pages leave the program by UFFDIO_MOVE, a run at a time and atomically: what is written to the device is what was there
//! when the page left, and no store is lost. They come back by UFFDIO_MOVE from the frame they were read into.
//!
//! What a move answers is a value: see [`LiveMachine::unmap_run`] and [`LiveMachine::map_run`]. EAGAIN (the program is inside
//! munmap or madvise and waits for us to read its event) puts the rest of the order into `deferred`, to be tried again when
//! the events have been read.
//!
//! Invariants: `frame_of` names a frame exactly for pages that are resident and not mapped; a deferred order's pages have no
//! other order in flight (I2); content that the program has discarded is never mapped again.

use std::collections::VecDeque;

use pagetide_core::Core;
use pagetide_core::effect::{Effect, Source};
use pagetide_core::event::{Event, MoveAnswer, Outcome};
use pagetide_core::types::{Access, DeviceId, IoId, Nanos, PageIdx, PageRange, SlotIdx, TaskId};
use pagetide_driver::{Answers, Machine};
use pagetide_sys::Errno;
use pagetide_sys::fd::Fd;
use pagetide_sys::mem::{self, ManagedRange, Mapping};
use pagetide_sys::uffd::{Modes, RangeAnswer, Stop, Uffd, Wake};

use crate::frames::{Frame, FrameRun, Frames};
use crate::io::{Direction, Engine, PagePart, REQUEST_PAGES, Requests, Transfer};
use crate::spans::{PAGE_SHIFT, Spans};
use crate::store::{Store, checksum};
use crate::unshare::{Unsharer, WAITING_MAX};

/// A page in bytes, as a length.
const PAGE: usize = 1 << PAGE_SHIFT;
/// Zero pages that one copy can take.
pub(crate) const ZEROES_PAGES: u32 = 256;

/// Slots kept backed ahead of need.
const SLOTS_AHEAD: u64 = 4096;

/// What the host must do beyond effects: filled while effects run, read by the host after each step.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Pages whose content is lost.
    pub(crate) poisoned: u64,
    /// A fault that cannot be answered.
    pub(crate) out_of_memory: Option<(TaskId, PageIdx)>,
}

/// What to do with a page that cannot be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Busy {
    /// A fork may share it: make it private, then try again.
    MakePrivate,
    /// That has been tried.
    Answer,
}

/// Counters that the core cannot know.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MachineStats {
    pub(crate) moved_in_pages: u64,
    pub(crate) moved_out_pages: u64,
    pub(crate) copied_pages: u64,
    pub(crate) zero_filled_pages: u64,
    pub(crate) read_requests: u64,
    pub(crate) write_requests: u64,
    pub(crate) moves: u64,
    pub(crate) busy_pages: u64,
}

impl MachineStats {
    /// In the order of `MACHINE_COUNTERS`.
    pub(crate) const fn values(&self) -> [u64; 8] {
        [
            self.moved_in_pages,
            self.moved_out_pages,
            self.copied_pages,
            self.zero_filled_pages,
            self.moves,
            self.busy_pages,
            self.read_requests,
            self.write_requests,
        ]
    }
}

/// How the machine is set up.
#[derive(Debug)]
pub(crate) struct MachineParts {
    pub(crate) uffd: Uffd,
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) unsharer: Unsharer,
    pub(crate) staging: Mapping,
    pub(crate) zeroes: Mapping,
    pub(crate) pages_max: u32,
    pub(crate) seed: u64,
    pub(crate) can_move: bool,
}

/// The machine.
#[derive(Debug)]
pub(crate) struct LiveMachine {
    uffd: Uffd,
    engine: Box<dyn Engine>,
    requests: Requests,
    pub(crate) spans: Spans,
    frames: Frames,
    /// Frame + 1 of each page; 0 for none. Backed lazily.
    frame_of: Vec<u32>,
    staging: Mapping,
    zeroes: Mapping,
    stores: Vec<(DeviceId, Store)>,
    deferred: VecDeque<Effect>,
    unsharer: Unsharer,
    /// Pages to be moved out that are being made private, in the order asked.
    unsharing: VecDeque<PageRange>,
    unshared: u32,
    /// Faults that are not answered yet, with the time when they were seen.
    waiting: Vec<(PageIdx, Nanos)>,
    latencies: Vec<Nanos>,
    seed: u64,
    zero_sum: u128,
    can_move: bool,
    pub(crate) outbox: Outbox,
    pub(crate) stats: MachineStats,
}

impl Machine for LiveMachine {
    fn execute(&mut self, _core: &Core, _now: Nanos, effects: &[Effect], answers: &mut Answers) {
        for &effect in effects {
            self.carry_out(effect, answers);
        }
    }
}

impl LiveMachine {
    pub(crate) fn new(parts: MachineParts) -> Self {
        let frames = u32::try_from(parts.staging.range().len() >> PAGE_SHIFT)
            .expect("the staging area has less than 2^32 frames");
        Self {
            uffd: parts.uffd,
            engine: parts.engine,
            requests: Requests::new(),
            spans: Spans::new(parts.pages_max),
            frames: Frames::new(frames),
            frame_of: vec![0; parts.pages_max as usize],
            zero_sum: checksum(parts.seed, &[0; PAGE]),
            staging: parts.staging,
            zeroes: parts.zeroes,
            stores: Vec::with_capacity(8),
            deferred: VecDeque::with_capacity(4096),
            unsharer: parts.unsharer,
            unsharing: VecDeque::with_capacity(WAITING_MAX),
            unshared: 0,
            waiting: Vec::with_capacity(256),
            latencies: Vec::with_capacity(256),
            seed: parts.seed,
            can_move: parts.can_move,
            outbox: Outbox::default(),
            stats: MachineStats::default(),
        }
    }

    pub(crate) const fn uffd(&self) -> &Uffd {
        &self.uffd
    }

    pub(crate) fn engine_fd(&self) -> &Fd {
        self.engine.wait_fd()
    }

    pub(crate) const fn seed(&self) -> u64 {
        self.seed
    }

    pub(crate) fn add_store(&mut self, device: DeviceId, store: Store) {
        self.stores.push((device, store));
    }

    pub(crate) fn stores(&self) -> &[(DeviceId, Store)] {
        &self.stores
    }

    fn store(&mut self, device: DeviceId) -> &mut Store {
        let found = self.stores.iter_mut().find(|(id, _)| *id == device);
        &mut found.expect("the core names devices that were added").1
    }

    /// Frames with memory that hold nothing.
    pub(crate) const fn spare_frames(&self) -> u32 {
        self.frames.spare_count()
    }

    /// True if orders wait for the program's own system call to go on.
    pub(crate) fn has_deferred(&self) -> bool {
        !self.deferred.is_empty() || !self.unsharing.is_empty()
    }

    fn frames_memory(&self, run: FrameRun) -> ManagedRange {
        run_of(self.staging.range(), run)
    }

    fn frame_memory(&self, frame: Frame) -> ManagedRange {
        self.frames_memory(FrameRun { first: frame, len: 1 })
    }

    fn zeroes(&self, pages: u32) -> ManagedRange {
        self.zeroes.range().part(0, (pages as usize) << PAGE_SHIFT)
    }

    fn frame(&self, page: PageIdx) -> Option<Frame> {
        self.frame_of[page.0 as usize].checked_sub(1).map(Frame)
    }

    /// The memory of a page that is resident and not mapped.
    pub(crate) fn resident_frame(&self, page: PageIdx) -> Option<ManagedRange> {
        self.frame(page).map(|frame| self.frame_memory(frame))
    }

    /// Back more slots of a device when few are left. The device and its slots, if there are more.
    pub(crate) fn grow_if_needed(&mut self, free_slots: u64, floor_bytes: u64) -> Option<(DeviceId, u32)> {
        if free_slots >= SLOTS_AHEAD {
            return None;
        }
        self.stores
            .iter_mut()
            .filter(|(_, store)| !store.is_inherited())
            .find_map(|(device, store)| store.grow(floor_bytes).ok().map(|slots| (*device, slots)))
    }

    fn set_frame(&mut self, page: PageIdx, frame: Frame) {
        debug_assert!(self.frame(page).is_none(), "page {page:?} has a frame already");
        self.frame_of[page.0 as usize] = frame.0 + 1;
    }

    fn take_frame(&mut self, page: PageIdx) -> Option<Frame> {
        let frame = self.frame(page);
        self.frame_of[page.0 as usize] = 0;
        frame
    }

    fn carry_out(&mut self, effect: Effect, answers: &mut Answers) {
        match effect {
            Effect::Read { io, device, slot, range, demand } => self.read(io, device, slot, range, demand),
            // The pages are hashed when the request begins, just before the device reads them.
            Effect::Write { io, device, slot, range } => {
                self.requests.push(Transfer { direction: Direction::Write, io, device, slot, range });
            }
            Effect::Map { range, source, access } => self.map(range, source, access, answers),
            Effect::Unmap { range } => self.unmap(range, Busy::MakePrivate, answers),
            Effect::Drop { range } => self.drop_frames(range),
            // The ioctl that maps a page wakes its waiters; they must wake too where nothing was mapped (the page was discarded
            // meanwhile, or its place is gone), and look again.
            Effect::Wake { page, .. } => self.wake(page),
            Effect::Poison { range } => self.poison(range),
            Effect::OutOfMemory { task, page } => self.outbox.out_of_memory = Some((task, page)),
        }
    }

    /// Frames for pages that are about to be read: spare ones first, so that nothing is allocated in the steady state.
    fn read(&mut self, io: IoId, device: DeviceId, slot: SlotIdx, range: PageRange, demand: bool) {
        let mut offset = 0;
        while offset < range.len {
            let Some(run) = self.populated_run(range.len - offset) else { break };
            for frame in run.frames() {
                self.set_frame(PageIdx(range.first.0 + offset), frame);
                offset += 1;
            }
        }
        let (now, later) = (range.part(0, offset), range.part(offset, range.len - offset));
        if now.len > 0 {
            self.requests.push(Transfer { direction: Direction::Read, io, device, slot, range: now });
        }
        if later.len > 0 {
            let slot = SlotIdx(slot.0 + offset);
            self.deferred.push_back(Effect::Read { io, device, slot, range: later, demand });
        }
    }

    /// A run of at most `most` frames with memory behind them. None: the kernel fills nothing until the program's events are
    /// read.
    fn populated_run(&mut self, most: u32) -> Option<FrameRun> {
        if let Some(run) = self.frames.take_spare(most) {
            return Some(run);
        }
        let run = self.frames.take_holes(most.min(ZEROES_PAGES)).expect("the staging area is larger than the budget");
        let answer = self.uffd.copy_run(self.frames_memory(run), self.zeroes(run.len), false, Wake::Later);
        let done = pages_of(answer.done);
        for frame in run.frames().skip(done as usize) {
            self.frames.now_hole(frame);
        }
        assert!(
            answer.is_complete() || answer.stop == Some(Stop::Again),
            "a hole of the staging area cannot be filled: {answer:?}"
        );
        (done > 0).then_some(FrameRun { first: run.first, len: done })
    }

    fn map(&mut self, range: PageRange, source: Source, access: Access, answers: &mut Answers) {
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
    fn wake(&mut self, page: PageIdx) {
        if let Some((vpn, _)) = self.spans.place(page) {
            // An error says that the place is not registered any more: then nobody waits there.
            let _ = self.uffd.wake(managed(vpn, 1));
        }
    }

    fn gone(&mut self, range: PageRange, answers: &mut Answers) {
        for page in range.pages() {
            if let Some(frame) = self.take_frame(page) {
                self.frames.now_spare(frame);
            }
        }
        answers.push(Event::Mapped { range, answer: MoveAnswer::Gone });
    }

    /// Map zero pages at the start of `piece`; the number of pages answered for or deferred.
    fn zero_run(&mut self, vpn: u64, piece: PageRange, access: Access, answers: &mut Answers) -> u32 {
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
    fn map_run(&mut self, vpn: u64, piece: PageRange, access: Access, answers: &mut Answers) -> u32 {
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

    fn unmap(&mut self, range: PageRange, busy: Busy, answers: &mut Answers) {
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
    fn unmap_run(&mut self, vpn: u64, piece: PageRange, busy: Busy, answers: &mut Answers) -> u32 {
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

    fn drop_frames(&mut self, range: PageRange) {
        for page in range.pages() {
            if let Some(frame) = self.take_frame(page) {
                self.frames.now_spare(frame);
            }
        }
    }

    fn poison(&mut self, range: PageRange) {
        for page in range.pages() {
            if let Some(frame) = self.take_frame(page) {
                self.frames.now_spare(frame);
            }
            let Some((vpn, _)) = self.spans.place(page) else { continue };
            let answer = self.uffd.poison_run(managed(vpn, 1), Wake::Now);
            if answer.stop == Some(Stop::Again) {
                self.deferred.push_back(Effect::Poison { range: PageRange::one(page) });
                continue;
            }
            assert!(answer.is_complete(), "a lost page cannot be marked: {answer:?}");
            self.outbox.poisoned += 1;
        }
    }

    /// A fault on this page was seen at `now`: its latency is counted when the page is mapped.
    pub(crate) fn note_fault(&mut self, page: PageIdx, now: Nanos) {
        if self.waiting.len() < self.waiting.capacity() {
            self.waiting.push((page, now));
        }
    }

    /// The fault that has waited longest.
    pub(crate) fn oldest_fault(&self) -> Option<(PageIdx, Nanos)> {
        self.waiting.iter().copied().min_by_key(|&(_, since)| since)
    }

    /// What is under way, for a message about a pager that does not get on.
    pub(crate) fn describe(&self) -> impl std::fmt::Display {
        let (deferred, private) = (self.deferred.len(), self.unsharing.len());
        let (holes, spare) = (self.frames.hole_count(), self.frames.spare_count());
        let requests = self.requests.in_flight();
        std::fmt::from_fn(move |f| {
            write!(
                f,
                "{requests} requests in flight, {deferred} orders deferred, {private} ranges being made private, "
            )?;
            write!(f, "{holes} holes, {spare} spare frames")
        })
    }

    /// The latencies of faults that were answered since the last call.
    pub(crate) fn take_latencies(&mut self, mut each: impl FnMut(Nanos)) {
        self.latencies.drain(..).for_each(&mut each);
    }

    fn count_answered(&mut self, range: PageRange) {
        if self.waiting.is_empty() {
            return;
        }
        let now = pagetide_sys::clock::now();
        let latencies = &mut self.latencies;
        self.waiting.retain(|&(page, since)| {
            let answered = range.contains(page);
            if answered && latencies.len() < latencies.capacity() {
                latencies.push(now.saturating_sub(since));
            }
            !answered
        });
    }

    /// Fill this page with zeroes if it is missing; wake its waiters in any case: who still misses it asks again.
    pub(crate) fn zero_fill_now(&mut self, vpn: u64) {
        let answer = self.uffd.copy_run(managed(vpn, 1), self.zeroes(1), false, Wake::Now);
        if !answer.is_complete() {
            let _ = self.uffd.wake(managed(vpn, 1));
        }
    }

    /// Orders that waited for the program, or for pages to be made private, are tried again.
    pub(crate) fn retry_deferred(&mut self, answers: &mut Answers) {
        while self.unshared != self.unsharer.done() {
            self.unshared = self.unshared.wrapping_add(1);
            let range = self.unsharing.pop_front().expect("ranges are done in the order asked");
            self.unmap(range, Busy::Answer, answers);
        }
        for _ in 0..self.deferred.len() {
            let Some(effect) = self.deferred.pop_front() else { break };
            self.carry_out(effect, answers);
        }
    }

    /// The content of these pages is gone: orders that wait are answered as such, so that no old copy is mapped.
    pub(crate) fn forget_deferred(&mut self, range: PageRange, answers: &mut Answers) {
        for index in 0..self.unsharing.len() {
            let (before, hit, after) = cut(self.unsharing[index], range);
            if hit.len == 0 {
                continue;
            }
            // The entry stays, if empty: entries end in the order in which they were asked for.
            self.unsharing[index] = before;
            if after.len > 0 {
                self.deferred.push_back(Effect::Unmap { range: after });
            }
            answers.push(Event::Unmapped { range: hit, answer: MoveAnswer::Gone });
        }
        for _ in 0..self.deferred.len() {
            let Some(effect) = self.deferred.pop_front() else { break };
            let (pages, is_map) = match effect {
                Effect::Map { range, .. } => (range, true),
                Effect::Unmap { range } => (range, false),
                other @ (Effect::Read { .. }
                | Effect::Write { .. }
                | Effect::Drop { .. }
                | Effect::Wake { .. }
                | Effect::Poison { .. }
                | Effect::OutOfMemory { .. }) => {
                    // A read goes on, and the core drops what it brings; a lost page is marked or its address is gone.
                    self.deferred.push_back(other);
                    continue;
                }
            };
            let (before, hit, after) = cut(pages, range);
            for left in [before, after] {
                if left.len > 0 {
                    self.deferred.push_back(with_range(effect, left));
                }
            }
            if hit.len == 0 {
                continue;
            }
            if is_map {
                self.gone(hit, answers);
            } else {
                answers.push(Event::Unmapped { range: hit, answer: MoveAnswer::Gone });
            }
        }
    }

    /// Hand waiting transfers to the engine, and pass on what it queued.
    pub(crate) fn begin_requests(&mut self, answers: &mut Answers) {
        while let Some((token, direction)) = self.requests.begin() {
            match direction {
                Direction::Read => self.gather_read(token),
                Direction::Write => self.gather_write(token, answers),
            }
            if self.requests.get(token).len == 0 {
                self.requests.end(token);
                continue;
            }
            self.submit(token);
        }
        self.engine.flush();
    }

    fn gather_read(&mut self, token: u32) {
        while let Some((page, slot, io)) = self.requests.next_page(token) {
            self.requests.add(token, slot, PagePart { page, io, sum: 0 });
        }
        self.stats.read_requests += 1;
    }

    /// Hash the pages; answer for those that need no write; gather the others as long as their slots are neighbours.
    fn gather_write(&mut self, token: u32, answers: &mut Answers) {
        while let Some((page, slot, io)) = self.requests.next_page(token) {
            let frame = self.frame(page).expect("a page under write has its frame");
            let sum = checksum(self.seed, page_bytes(&self.frame_memory(frame)));
            let device = self.requests.get(token).device;
            let outcome = if sum == self.zero_sum {
                Outcome::Zero
            } else if self.store(device).sum(slot) == sum {
                Outcome::Unchanged
            } else {
                // Until the write is done the slot holds neither the old page nor surely the new one.
                self.store(device).set_sum(slot, 0);
                self.requests.add(token, slot, PagePart { page, io, sum });
                continue;
            };
            answers.push(Event::IoDone { io, range: PageRange::one(page), outcome });
            if self.requests.get(token).len > 0 {
                break;
            }
        }
        self.stats.write_requests += 1;
    }

    fn submit(&mut self, token: u32) {
        let request = self.requests.get(token);
        let (device, len) = (request.device, request.len);
        let fd = self.store(device).file().raw();
        let mut runs = [FrameRun { first: Frame(0), len: 0 }; REQUEST_PAGES];
        let mut count = 0;
        for index in 0..len {
            let page = self.requests.get(token).parts[index].page;
            let frame = self.frame(page).expect("a page in flight has its frame");
            if count > 0 && runs[count - 1].first.0 + runs[count - 1].len == frame.0 {
                runs[count - 1].len += 1;
            } else {
                runs[count] = FrameRun { first: frame, len: 1 };
                count += 1;
            }
        }
        let staging = self.staging.range();
        self.requests.fill(token, fd, runs[..count].iter().map(|&run| run_of(staging, run)));
        self.engine.submit(token, self.requests.get(token));
    }

    /// Collect finished requests.
    pub(crate) fn reap(&mut self, answers: &mut Answers) {
        let mut done = [(0_u32, Ok(0_usize)); 64];
        loop {
            let mut count = 0;
            self.engine.reap(&mut |token, result| {
                done[count] = (token, result);
                count += 1;
                count < done.len()
            });
            for &(token, result) in &done[..count] {
                self.end_request(token, result, answers);
            }
            if count < done.len() {
                break;
            }
        }
    }

    fn end_request(&mut self, token: u32, result: Result<usize, Errno>, answers: &mut Answers) {
        let request = self.requests.get(token);
        let (direction, device, len) = (request.direction, request.device, request.len);
        let outcome = match result {
            Ok(bytes) if bytes == request.bytes() => Outcome::Done,
            Err(Errno::ENOSPC | Errno::EDQUOT) if direction == Direction::Write => Outcome::NoSpace,
            Ok(_) | Err(_) => Outcome::Failed,
        };
        let mut run: Option<(IoId, PageRange, Outcome)> = None;
        for index in 0..len {
            let part = self.requests.get(token).parts[index];
            let slot = self.requests.get(token).slot_at(index);
            let outcome = match (direction, outcome) {
                (Direction::Write, Outcome::Done) => {
                    self.store(device).set_sum(slot, part.sum);
                    outcome
                }
                (Direction::Read, Outcome::Done) if !self.is_intact(part.page, device, slot) => Outcome::Failed,
                _ => outcome,
            };
            match &mut run {
                Some((io, range, last)) if *io == part.io && *last == outcome && range.end() == part.page => {
                    range.len += 1
                }
                _ => {
                    if let Some((io, range, outcome)) = run.replace((part.io, PageRange::one(part.page), outcome)) {
                        answers.push(Event::IoDone { io, range, outcome });
                    }
                }
            }
        }
        if let Some((io, range, outcome)) = run {
            answers.push(Event::IoDone { io, range, outcome });
        }
        self.requests.end(token);
    }

    /// True if what was read into the page's frame is what was written to the slot.
    fn is_intact(&mut self, page: PageIdx, device: DeviceId, slot: SlotIdx) -> bool {
        let frame = self.frame(page).expect("a page in flight has its frame");
        let sum = checksum(self.seed, page_bytes(&self.frame_memory(frame)));
        sum == self.store(device).sum(slot)
    }

    /// Give at most `most` spare frames' memory back to the kernel.
    ///
    /// The area is registered, and MADV_DONTNEED on a registered range raises an event that only this thread could read: the
    /// range is unregistered for the moment.
    pub(crate) fn release_spare(&mut self, most: u32) -> u32 {
        let mut released = 0;
        while released < most {
            let Some(run) = self.frames.take_spare(most - released) else { break };
            let memory = self.frames_memory(run);
            if self.uffd.unregister(memory).is_err() {
                // ENOMEM: the program has used up all mappings, and this would take one more. The memory stays spare.
                run.frames().for_each(|frame| self.frames.now_spare(frame));
                break;
            }
            mem::advise(memory, mem::Advice::DontNeed).expect("the staging area is ours");
            self.uffd.register(memory, Modes::MISSING).expect("joining the neighbours again takes no new mapping");
            run.frames().for_each(|frame| self.frames.now_hole(frame));
            released += run.len;
        }
        released
    }
}

/// The memory of a run of frames of the staging area.
fn run_of(staging: ManagedRange, run: FrameRun) -> ManagedRange {
    staging.part((run.first.0 as usize) << PAGE_SHIFT, (run.len as usize) << PAGE_SHIFT)
}

/// The program's memory at these virtual pages, by name.
pub(crate) fn managed(vpn: u64, pages: u32) -> ManagedRange {
    let start = usize::try_from(vpn << PAGE_SHIFT).expect("addresses are 64 bit");
    // SAFETY: pages of a span belong to the program and are managed; no Rust reference to them is ever made.
    unsafe { ManagedRange::new(start, (pages as usize) << PAGE_SHIFT) }
}

/// The bytes of a frame that is held by us alone: it has left the program, and no request writes it.
fn page_bytes(frame: &ManagedRange) -> &[u8] {
    // SAFETY: the frame has memory, and nobody writes it while the machine is borrowed: the program cannot reach it, and the
    // device reads it at most.
    unsafe { std::slice::from_raw_parts(frame.as_ptr(), frame.len()) }
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

fn pages_of(bytes: usize) -> u32 {
    u32::try_from(bytes >> PAGE_SHIFT).expect("a run has less than 2^32 pages")
}

fn with_range(effect: Effect, range: PageRange) -> Effect {
    match effect {
        Effect::Map { source, access, .. } => Effect::Map { range, source, access },
        Effect::Unmap { .. } => Effect::Unmap { range },
        other @ (Effect::Read { .. }
        | Effect::Write { .. }
        | Effect::Drop { .. }
        | Effect::Wake { .. }
        | Effect::Poison { .. }
        | Effect::OutOfMemory { .. }) => unreachable!("only moves are cut, not {other:?}"),
    }
}

/// `pages` as the parts before, inside and after `hole`.
fn cut(pages: PageRange, hole: PageRange) -> (PageRange, PageRange, PageRange) {
    let (from, to) = (pages.first.0, pages.end().0);
    let cut_from = hole.first.0.clamp(from, to);
    let cut_to = hole.end().0.clamp(cut_from, to);
    let piece = |from: u32, to: u32| PageRange::new(PageIdx(from), to - from);
    (piece(from, cut_from), piece(cut_from, cut_to), piece(cut_to, to))
}
