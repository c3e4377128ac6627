//! The live machine: carries the core's orders out with userfaultfd and a swap file.
//!
//! Pages leave the program by UFFDIO_MOVE, a run at a time and atomically: what is written to the device is what was there
//! when the page left, and no store is lost. They come back by UFFDIO_MOVE from the frame they were read into.
//!
//! What a move answers is a value: see `moves`. EAGAIN (the program is inside
//! munmap or madvise and waits for us to read its event) puts the rest of the order into `deferred`, to be tried again when
//! the events have been read.
//!
//! Invariants: `frame_of` names a frame exactly for pages that are resident and not mapped; a deferred order's pages have no
//! other order in flight (I2); content that the program has discarded is never mapped again.

use std::collections::VecDeque;

mod backing;
mod compressed;
mod cost;
mod deferred;
mod moves;
mod sparing;
mod staging;
pub(crate) mod stalls;
mod told;
mod transfers;
mod waits;
mod windows;

use pagetide_core::Core;
use pagetide_core::effect::Effect;
use pagetide_core::types::{DeviceId, IoId, Nanos, PageIdx, PageRange, SlotIdx, TaskId};
use pagetide_driver::{Answers, Machine};
use pagetide_kernel::{AddressSpace, Linux, OwnMapping};
use pagetide_sys::fd::Fd;
use pagetide_sys::mem::ManagedRange;
use pagetide_sys::uffd::{Modes, Stop, Uffd, Wake};

use crate::control::MACHINE_COUNTERS;
use crate::frames::{Frame, FrameRun, Frames, Kind};
use crate::io::{Direction, Engine, Requests, Signs, Transfer};
use crate::own;
use crate::session::command::PlaceId;
use crate::space::held::Held;
use sparing::Sparing;

use crate::space::unshare::{MakePrivate, WAITING_MAX};
use crate::space::{Mappings, PAGE_SHIFT, is_aside};
use crate::spans::Span;
use crate::store::{Store, checksum};
use crate::tier::Tier;
pub(crate) use backing::{SLOTS_AHEAD, Search, short_bit};
use cost::MoveCost;
use moves::{Busy, pages_of};
use staging::Staging;
pub(crate) use staging::{MapFrames, frames_for};
use stalls::Stalls;
pub(crate) use waits::Answered;
use waits::Waiting;
use windows::Window;

/// A page in bytes, as a length.
const PAGE: usize = 1 << PAGE_SHIFT;
/// Zero pages that one copy can take.
pub(crate) const ZEROES_PAGES: u32 = 256;

/// Neighbouring spare frames that are worth taking for a read of at least as many pages.
const TOGETHER_PAGES: u32 = 8;

/// What the host must do beyond effects: filled while effects run, read by the host after each step.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// Pages whose content is lost, to be marked after the person has been told: the program may end of it.
    pub(crate) poisoned: Vec<PageRange>,
    /// Those of which the person has been told, and which the kernel would not let us mark yet.
    pub(crate) unmarked: Vec<PageRange>,
    /// A fault that cannot be answered.
    pub(crate) out_of_memory: Option<(TaskId, PageIdx)>,
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
    /// Time that requests took, one by one.
    pub(crate) read_ns: Nanos,
    pub(crate) write_ns: Nanos,
}

/// Pages to be moved out that are being made private.
#[derive(Clone, Copy, Debug)]
struct Unsharing {
    /// What is left of the order: pages that were discarded since are not part of it any more.
    pages: PageRange,
    /// The virtual pages that were asked to be made private.
    asked: (u64, u32),
}

/// How the machine is set up.
#[derive(Debug)]
pub(crate) struct MachineParts<K: AddressSpace = Linux> {
    pub(crate) space: K,
    pub(crate) engine: Box<dyn Engine>,
    /// Where a fork may share pages.
    pub(crate) unsharer: Option<Box<dyn MakePrivate>>,
    /// Pages that are never taken; None where there are none.
    pub(crate) held: Option<&'static Held>,
    pub(crate) staging: K::Mapping,
    /// Maps more frames when the budget grows.
    pub(crate) map_frames: MapFrames<K>,
    pub(crate) zeroes: K::Mapping,
    pub(crate) pages_max: u32,
    pub(crate) seed: u64,
}

/// The machine, over an address space.
#[derive(Debug)]
pub(crate) struct LiveMachine<K: AddressSpace = Linux> {
    space: K,
    engine: Box<dyn Engine>,
    requests: Requests,
    pub(crate) mappings: Mappings,
    frames: Frames,
    /// Frame + 1 of each page; 0 for none. Backed lazily.
    frame_of: Vec<u32>,
    staging: Staging<K::Mapping>,
    map_frames: MapFrames<K>,
    zeroes: K::Mapping,
    /// Where the tier has what it writes.
    tier_buffers: Option<K::Mapping>,
    stores: Vec<(DeviceId, Store)>,
    /// Where pages are compressed before they are written.
    tier: Option<Box<Tier>>,
    deferred: VecDeque<Effect>,
    unsharer: Option<Box<dyn MakePrivate>>,
    held: Option<&'static Held>,
    /// Pages to be moved out that are being made private, in the order asked.
    unsharing: VecDeque<Unsharing>,
    unshared: u32,
    sparing: Sparing,
    /// Spare memory cannot be given back.
    is_stuck: bool,
    /// Requests that have ended; wraps.
    ended: u32,
    /// A page whose place was not found, and when.
    placeless: Option<(PageIdx, Nanos)>,
    /// Pages that were mapped just now, whose waiters the kernel woke with that.
    woken: PageRange,
    /// Faults that are not answered yet.
    waiting: Vec<Waiting>,
    /// Those that were answered since they were taken last.
    answered: Vec<Answered>,
    /// Requests that have ended, if they are noted.
    request_spans: Vec<Span>,
    /// Those that found no room.
    request_spans_lost: u64,
    /// Windows of readahead under way, if requests are noted.
    windows: Vec<Window>,
    answered_at: Nanos,
    pub(crate) stalls: Stalls,
    /// When it was made.
    begun: Nanos,
    move_cost: MoveCost,
    seed: u64,
    zero_sum: u128,
    pub(crate) outbox: Outbox,
    pub(crate) stats: MachineStats,
}

impl<K: AddressSpace> Machine for LiveMachine<K> {
    fn execute(&mut self, core: &Core, _now: Nanos, effects: &[Effect], answers: &mut Answers) {
        for &effect in effects {
            self.carry_out(core, effect, answers);
        }
    }
}

impl LiveMachine {
    pub(crate) const fn uffd(&self) -> &Uffd {
        self.space.uffd()
    }

    /// Begin what is queued and sleep until there is something to do for the faults (first answer), for `other` (second), or
    /// for a request; at most `timeout_ns`.
    pub(crate) fn wait(&mut self, other: &Fd, timeout_ns: u64) -> [bool; 2] {
        self.engine.wait([self.space.uffd().fd(), other], timeout_ns)
    }
}

impl<K: AddressSpace> LiveMachine<K> {
    pub(crate) fn new(parts: MachineParts<K>) -> Self {
        let frames = u32::try_from(parts.staging.range().len() >> PAGE_SHIFT)
            .expect("the staging area has less than 2^32 frames");
        let begun = parts.space.now();
        Self {
            space: parts.space,
            engine: parts.engine,
            requests: Requests::new(),
            mappings: Mappings::new(parts.pages_max),
            frames: Frames::new(frames),
            frame_of: vec![0; parts.pages_max as usize],
            zero_sum: checksum(parts.seed, &[0; PAGE]),
            staging: Staging::new(parts.staging),
            map_frames: parts.map_frames,
            zeroes: parts.zeroes,
            tier_buffers: None,
            stores: Vec::with_capacity(8),
            tier: None,
            deferred: VecDeque::with_capacity(4096),
            unsharer: parts.unsharer,
            held: parts.held,
            unsharing: VecDeque::with_capacity(WAITING_MAX),
            unshared: 0,
            sparing: Sparing::new(),
            is_stuck: false,
            ended: 0,
            placeless: None,
            woken: PageRange::new(PageIdx(0), 0),
            waiting: Vec::with_capacity(256),
            answered: Vec::with_capacity(256),
            request_spans: Vec::new(),
            request_spans_lost: 0,
            windows: Vec::new(),
            answered_at: 0,
            stalls: Stalls::default(),
            begun,
            move_cost: MoveCost::default(),
            seed: parts.seed,
            outbox: Outbox::default(),
            stats: MachineStats::default(),
        }
    }

    /// The kernel, as far as this address space goes.
    pub(crate) const fn space(&self) -> &K {
        &self.space
    }

    pub(crate) const fn space_mut(&mut self) -> &mut K {
        &mut self.space
    }

    /// Readable while results of requests wait to be collected.
    pub(crate) fn event(&self) -> &Fd {
        self.engine.event()
    }

    /// The same for who looks and does not sleep.
    pub(crate) fn signs(&self) -> Option<Signs> {
        self.engine.signs()
    }

    /// True if threads with descriptor tables of their own may begin requests and wait for them.
    pub(crate) fn is_for_all_tables(&self) -> bool {
        self.engine.is_for_all_tables()
    }

    /// See [`Engine::set_caller`].
    pub(crate) fn set_caller(&mut self, thread: i32) {
        self.engine.set_caller(thread);
    }

    /// See [`Engine::has_begun`].
    pub(crate) fn has_begun(&self, thread: i32) -> bool {
        self.engine.has_begun(thread)
    }

    /// Requests wait to begin, and are worth it.
    pub(crate) fn has_waiting_requests(&self, is_gathering: bool) -> bool {
        self.requests.has_waiting(is_gathering)
    }

    /// Requests whose results have been collected, in all; wraps.
    pub(crate) const fn requests_ended(&self) -> u32 {
        self.ended
    }

    /// Requests that the engine has.
    pub(crate) fn requests_in_flight(&self) -> usize {
        self.requests.in_flight()
    }

    pub(crate) const fn seed(&self) -> u64 {
        self.seed
    }

    pub(crate) fn add_store(&mut self, device: DeviceId, store: Store) {
        if let Some(tier) = self.tier.as_deref_mut() {
            tier.add_device(device, store.slots_max());
        }
        self.engine.opened(store.file());
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
        !self.deferred.is_empty() || !self.unsharing.is_empty() || !self.outbox.unmarked.is_empty()
    }

    /// True if pages are being read, or are to be.
    pub(crate) fn is_reading(&self) -> bool {
        self.requests.is_reading()
    }

    fn frames_memory(&self, run: FrameRun) -> ManagedRange {
        self.staging.memory(run)
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

    /// Give up this device, if nothing names it any more: its store, whose file is to be closed.
    pub(crate) fn remove_store(&mut self, device: DeviceId) -> Option<Store> {
        if self.requests.name(device) || !self.tier.as_deref_mut().is_none_or(|tier| tier.remove_device(device)) {
            return None;
        }
        let index = self.stores.iter().position(|(id, _)| *id == device)?;
        let store = self.stores.remove(index).1;
        self.engine.closing(store.file());
        Some(store)
    }

    /// The files of a place are being drained, or not any more.
    pub(crate) fn close_place(&mut self, place: PlaceId, closed: bool) {
        let stores = self.stores.iter_mut().filter(|(_, store)| store.place() == place);
        stores.for_each(|(_, store)| store.close(closed));
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

    fn carry_out(&mut self, core: &Core, effect: Effect, answers: &mut Answers) {
        match effect {
            Effect::Read { io, device, slot, range, demand } => {
                self.window_begins(io, range.len, demand);
                let least = self.least_spare(core, range.len);
                self.read(io, device, slot, range, demand, least);
            }
            // The pages are hashed when the request begins, just before the device reads them.
            Effect::Write { io, device, slot, range } => {
                self.requests.push(Transfer { direction: Direction::Write, io, device, slot, range });
            }
            Effect::Map { range, source, access } => self.map(range, source, access, answers),
            Effect::Unmap { range } => self.unmap(core, range, Busy::MakePrivate, answers),
            Effect::Drop { range } => {
                if self.tier.is_some() {
                    self.keep_clean(core, range);
                }
                self.drop_frames(range);
            }
            // The ioctl that maps a page wakes its waiters; they must wake too where nothing was mapped (the page was discarded
            // meanwhile, or its place is gone), and look again.
            Effect::Wake { page, .. } => self.wake(page),
            Effect::Poison { range } => self.outbox.poisoned.push(range),
            Effect::OutOfMemory { task, page } => {
                // One is told of; whoever waits for another page asks again.
                if let Some((_, before)) = self.outbox.out_of_memory.replace((task, page)) {
                    self.wake_waiters(before);
                }
            }
        }
    }

    /// Pages that are read together are mapped by one call if their frames are neighbours: while memory is plentiful, scattered
    /// spare frames are left to single pages. The least length of a run of them that is worth taking for a read of `pages`.
    fn least_spare(&self, core: &Core, pages: u32) -> u32 {
        let taken = core.charged().saturating_add(self.spare_frames());
        if core.budget().saturating_sub(taken) > pages { pages.min(TOGETHER_PAGES) } else { 1 }
    }

    /// Frames for pages that are about to be read: spare ones first, so that nothing is allocated in the steady state.
    fn read(&mut self, io: IoId, device: DeviceId, slot: SlotIdx, range: PageRange, demand: bool, least: u32) {
        let mut offset = 0;
        while offset < range.len {
            let left = range.len - offset;
            let Some(run) = self.populated_run(left, least.min(left)) else { break };
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

    /// Spare frames for new content, at least so many. None if there are none, or if the kernel may still read what they held.
    fn spare_run(&mut self, most: u32, least: u32) -> Option<FrameRun> {
        if self.lends() { None } else { self.frames.take_spare(most, least) }
    }

    /// True if memory that has held a page of the program must not hold another's.
    pub(crate) fn lends(&self) -> bool {
        self.held.is_some_and(Held::lends)
    }

    /// A run of at most `most` frames with memory behind them. None: the kernel fills nothing until the program's events are
    /// read, or has no memory at the moment.
    fn populated_run(&mut self, most: u32, least: u32) -> Option<FrameRun> {
        if let Some(run) = self.spare_run(most, least) {
            return Some(run);
        }
        let run = self
            .frames
            .take_holes(most.min(ZEROES_PAGES), Kind::Plain)
            .expect("the staging area is larger than the budget");
        let answer = self.space.copy_run(self.frames_memory(run), self.zeroes(run.len), Wake::Later);
        let done = pages_of(answer.done);
        for frame in run.frames().skip(done as usize) {
            self.frames.now_hole(frame);
        }
        assert!(
            answer.is_complete() || matches!(answer.stop, Some(Stop::Again | Stop::NoMemory)),
            "a hole of the staging area cannot be filled: {answer:?}"
        );
        (done > 0).then_some(FrameRun { first: run.first, len: done })
    }

    fn drop_frames(&mut self, range: PageRange) {
        for page in range.pages() {
            if let Some(frame) = self.take_frame(page) {
                self.frames.now_spare(frame);
            }
        }
    }

    /// Mark lost pages: who touches one gets SIGBUS.
    pub(crate) fn poison(&mut self, range: PageRange) {
        for page in range.pages() {
            if let Some(frame) = self.take_frame(page) {
                self.frames.now_spare(frame);
            }
            let Some((vpn, _)) = self.mappings.place(page) else { continue };
            let marked = (!is_aside(vpn)).then(|| self.space.poison_run(managed(vpn, 1), Wake::Now));
            let Some(answer) = marked.filter(|answer| answer.stop != Some(Stop::Again)) else {
                self.outbox.unmarked.push(PageRange::one(page));
                continue;
            };
            assert!(answer.is_complete(), "a lost page cannot be marked: {answer:?}");
        }
    }

    /// Let those who wait for the page fault again.
    pub(crate) fn wake_waiters(&mut self, page: PageIdx) {
        self.woken.len = 0;
        self.wake(page);
    }

    /// True while the kernel lets no page be filled: a change of the address space is under way, told or not.
    pub(crate) fn is_changing(&self) -> bool {
        // Of memory that is not registered the kernel says so only after it has looked whether anything changes.
        self.space.zeropage(self.zeroes(1), Wake::Later).stop == Some(Stop::Again)
    }

    /// The machine's counters, in the order of [`MACHINE_COUNTERS`]; `away_pages_max` is the core's.
    pub(crate) fn counters(&self, away_pages_max: u64) -> [u64; MACHINE_COUNTERS.len()] {
        let (stats, tier, now) = (&self.stats, self.tier_stats(), self.space.now());
        let us = |ns: Nanos| ns / 1000;
        [
            stats.moved_in_pages,
            stats.moved_out_pages,
            stats.copied_pages,
            stats.zero_filled_pages,
            stats.moves,
            stats.busy_pages,
            stats.read_requests,
            stats.write_requests,
            us(stats.read_ns),
            us(stats.write_ns),
            tier.zswpin,
            tier.zswpout,
            tier.zswpwb,
            tier.reject_compress_poor,
            tier.pool_pages_max,
            tier.stored_pages_max,
            us(now.saturating_sub(self.begun)),
            us(self.stalls.some_ns(now)),
            us(self.stalls.full_ns()),
            us(self.stalls.reading_ns(now)),
            us(self.stalls.first_touch_ns()),
            away_pages_max,
        ]
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

    /// Fill this page with zeroes if it is missing; wake its waiters in any case: who still misses it asks again.
    /// False: the kernel does not let it happen until its events are read, and nobody was woken.
    pub(crate) fn zero_fill_now(&mut self, vpn: u64) -> bool {
        // Not by a copy, which would take the place of a guard that was installed since the fault.
        let answer = self.space.zeropage_run(managed(vpn, 1), Wake::Now);
        if answer.stop == Some(Stop::Again) {
            return false;
        }
        if !answer.is_complete() {
            let _ = self.space.wake(managed(vpn, 1));
        }
        true
    }

    /// Give at most `most` spare frames' memory back to the kernel.
    ///
    /// The area is registered, and MADV_DONTNEED on a registered range raises an event that only this thread could read: the
    /// piece of it is unregistered for the moment. All of the piece: that costs as much as a frame alone, and splits no mapping.
    pub(crate) fn release_spare(&mut self, most: u32) -> u32 {
        let mut released = 0;
        while let Some(first) = self.frames.next_spare().filter(|_| released < most) {
            let piece = self.staging.piece(first);
            if self.space.unregister(piece).is_err() {
                // ENOMEM: the program has used up all mappings, and a neighbour of the piece was one with it. The memory stays spare,
                // and pages are moved in so that no more of it comes up.
                self.is_stuck = true;
                return released;
            }
            while let Some(run) = self.frames.take_spare(most - released, 1) {
                let memory = self.frames_memory(run);
                if memory.start() < piece.start() || memory.end() > piece.end() {
                    run.frames().for_each(|frame| self.frames.now_spare(frame));
                    break;
                }
                self.space.give_back(memory).expect("the staging area is ours");
                run.frames().for_each(|frame| self.frames.now_hole(frame));
                released += run.len;
            }
            self.space.register(piece, Modes::MISSING).expect("the piece is as it was");
            self.is_stuck = false;
        }
        released
    }
}

impl<K: AddressSpace> Drop for LiveMachine<K> {
    fn drop(&mut self) {
        self.staging.ranges().for_each(own::forget);
        own::forget(self.zeroes.range());
        self.tier_buffers.iter().for_each(|buffers| own::forget(buffers.range()));
    }
}

/// The program's memory at these virtual pages, by name.
pub(crate) fn managed(vpn: u64, pages: u32) -> ManagedRange {
    let start = usize::try_from(vpn << PAGE_SHIFT).expect("addresses are 64 bit");
    // SAFETY: pages of a region belong to the program and are managed; no Rust reference to them is ever made.
    unsafe { ManagedRange::new(start, (pages as usize) << PAGE_SHIFT) }
}
