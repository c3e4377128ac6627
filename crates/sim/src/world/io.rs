//! Reads and writes between their effect and their last answer: devices, the faults of the world, the content that moves.
//!
//! A device number of an effect names a swap device or a file; both lie somewhere on a disk, and both have a store of
//! versions in the oracle. Answers go back to the core, but for what tasks write past it.

use pagetide_core::Event;
use pagetide_core::event::{FILE_DEVICE_FIRST, Outcome};
use pagetide_core::types::{DeviceId, IoId, Nanos, PageIdx, PageRange, SlotIdx};

use super::{Happening, World};
use crate::device::Mechanism;
use crate::disk::{Direction, Request};
use crate::injection::Fate;

/// In the place of a task that waits for a request: none waits, and the core does not know of it.
const NOBODY: u32 = u32::MAX;
/// The core has asked for it.
const CORE: u32 = u32::MAX - 1;

/// Where the pages of a device number lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Backing {
    pub(super) disk: usize,
    /// First page on the disk.
    pub(super) at: u64,
    /// Number of its versions in the oracle.
    pub(super) store: usize,
}

/// An I/O between its effect and its last answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Io {
    io: IoId,
    disk: usize,
    store: usize,
    slot: u32,
    range: PageRange,
    direction: Direction,
    submitted_at: Nanos,
    fate: Fate,
    live: bool,
    /// A task that wrote past the core, [`NOBODY`] or [`CORE`]. One word: an entry is copied in pieces as it was put together.
    waiter: u32,
}

impl World {
    pub(super) fn backing(&self, device: DeviceId) -> Backing {
        match device.0.checked_sub(FILE_DEVICE_FIRST) {
            Some(file) => self.files[file as usize].backing,
            None => self.swaps[device.0 as usize],
        }
    }

    /// Read the pages of neighbouring slots: from the tier those that it has, the others from the disk, in one request for each run.
    pub(super) fn read(&mut self, now: Nanos, io: IoId, at: (DeviceId, SlotIdx), range: PageRange, demand: bool) {
        let (device, slot) = at;
        if self.tier.is_none() {
            self.submit(now, io, device, slot, range, Direction::Read);
            return;
        }
        let mut rest = PageRange::new(range.first, 0);
        for (page, slot) in range.pages().zip(slot.0..) {
            if !self.reads_from_tier(device, SlotIdx(slot), demand && page == range.first) {
                rest = if rest.len == 0 { PageRange::one(page) } else { PageRange::new(rest.first, rest.len + 1) };
                continue;
            }
            self.read_rest(now, io, (device, slot), rest);
            rest.len = 0;
            let store = self.backing(device).store;
            self.oracle.read_ends(page, store, slot);
            self.follow_ups.push_back(Event::IoDone { io, range: PageRange::one(page), outcome: Outcome::Done });
        }
        self.read_rest(now, io, (device, slot.0 + range.len), rest);
    }

    /// The pages before that slot, if there are any.
    fn read_rest(&mut self, now: Nanos, io: IoId, before: (DeviceId, u32), rest: PageRange) {
        if rest.len > 0 {
            self.submit(now, io, before.0, SlotIdx(before.1 - rest.len), rest, Direction::Read);
        }
    }

    /// Write the pages to their slots, unless the tier takes them.
    pub(super) fn write(&mut self, now: Nanos, io: IoId, device: DeviceId, slot: SlotIdx, range: PageRange) {
        if !self.offer_to_tier(device, slot, range.len) {
            self.submit(now, io, device, slot, range, Direction::Write);
            return;
        }
        let store = self.backing(device).store;
        for (page, slot) in range.pages().zip(slot.0..) {
            self.oracle.write_begins(page, store, slot);
            self.oracle.write_ends(page, store, slot, true);
        }
        self.follow_ups.push_back(Event::IoDone { io, range, outcome: Outcome::Done });
    }

    /// A write that nobody waits for and the core does not know of.
    pub(super) fn write_for_nobody(&mut self, now: Nanos, device: DeviceId, slot: SlotIdx, pages: u32) {
        let Backing { disk, at, .. } = self.backing(device);
        self.write_past(now, NOBODY, disk, at + u64::from(slot.0), pages);
    }

    pub(super) fn submit(
        &mut self,
        now: Nanos,
        io: IoId,
        device: DeviceId,
        slot: SlotIdx,
        range: PageRange,
        direction: Direction,
    ) {
        let Backing { disk: index, at, store } = self.backing(device);
        if direction == Direction::Write {
            for (page, slot) in range.pages().zip(slot.0..) {
                self.oracle.write_begins(page, store, slot);
            }
        }
        let fate = self.injection.fate(now, direction == Direction::Write, range.len, &mut self.rng);
        let slot = slot.0;
        let new =
            Io { io, disk: index, store, slot, range, direction, submitted_at: now, fate, live: true, waiter: CORE };
        if self.disks[index].params().mechanism == Mechanism::Synchronous {
            self.cost_ns += self.disks[index].call_ns(direction, range.len);
            self.finish_content(new, Outcome::Done);
            // The core hears of it when it has returned.
            self.follow_ups.push_back(Event::IoDone { io, range, outcome: Outcome::Done });
            return;
        }
        self.cost_ns += self.disks[index].params().cpu_ns;
        self.start_io(now, new, at + u64::from(slot));
    }

    fn start_io(&mut self, now: Nanos, io: Io, at: u64) {
        let (index, direction, pages) = (io.disk, io.direction, io.range.len);
        let urgent = direction == Direction::Read || io.waiter < CORE;
        let key = self.new_io(io);
        let request = Request { id: u64::from(key), direction, at, pages, urgent };
        if let Some(begun) = self.disks[index].submit(now, request) {
            self.queue.push(begun.ends_at, Happening::DiskEnds { key });
        }
    }

    /// A task writes `pages` pages at `at` of a disk, past the page cache, and waits.
    pub(super) fn write_past(&mut self, now: Nanos, task: u32, disk: usize, at: u64, pages: u32) {
        let io = Io {
            io: IoId(u32::MAX),
            disk,
            store: 0,
            slot: 0,
            range: PageRange::new(PageIdx(0), pages),
            direction: Direction::Write,
            submitted_at: now,
            fate: Fate::Good,
            live: true,
            waiter: task,
        };
        self.start_io(now, io, at);
    }

    #[inline]
    fn new_io(&mut self, entry: Io) -> u32 {
        if let Some(key) = self.free_ios.pop() {
            self.ios[key as usize] = entry;
            return key;
        }
        self.ios.push(entry);
        u32::try_from(self.ios.len() - 1).expect("few requests at once")
    }

    fn free_io(&mut self, key: u32) {
        self.ios[key as usize].live = false;
        self.free_ios.push(key);
    }

    /// The device has ended a request: the next one begins, and the core is told, unless the world says otherwise.
    pub(super) fn disk_ends(&mut self, now: Nanos, key: u32) {
        let io = self.ios[key as usize];
        let waited = now - io.submitted_at;
        if io.direction == Direction::Read {
            self.note_disk_wait(io.range, waited);
        }
        let ended = self.disks[io.disk].ended(now, waited, io.direction);
        if let Some(begun) = ended.next {
            let key = u32::try_from(begun.id).expect("a key");
            self.queue.push(begun.ends_at, Happening::DiskEnds { key });
        }
        self.io_ends(now, key);
        for id in ended.joined {
            self.io_ends(now, u32::try_from(id).expect("a key"));
        }
    }

    /// The device is done with what was asked for.
    fn io_ends(&mut self, now: Nanos, key: u32) {
        let io = self.ios[key as usize];
        if io.waiter != CORE {
            self.free_io(key);
            if io.waiter != NOBODY {
                self.call_ends(now, io.waiter);
            }
            return;
        }
        let (range, outcome) = match io.fate {
            Fate::Late(ns) => {
                self.ios[key as usize].fate = Fate::Good;
                self.queue.push(now + ns, Happening::RestEnds { key });
                return;
            }
            Fate::Short(ns) => {
                let first = io.range.len.div_ceil(2);
                let rest = PageRange::new(PageIdx(io.range.first.0 + first), io.range.len - first);
                self.ios[key as usize].fate = Fate::Good;
                self.ios[key as usize].range = rest;
                self.ios[key as usize].slot = io.slot + first;
                self.queue.push(now + ns, Happening::RestEnds { key });
                let part = Io { range: PageRange::new(io.range.first, first), ..io };
                self.answer(now, part, Outcome::Done);
                return;
            }
            Fate::Good => (io.range, Outcome::Done),
            Fate::Fails => (io.range, Outcome::Failed),
            Fate::Full => (io.range, Outcome::NoSpace),
        };
        self.free_io(key);
        self.answer(now, Io { range, ..io }, outcome);
    }

    /// What was held back of a request.
    pub(super) fn rest_ends(&mut self, now: Nanos, key: u32) {
        let io = self.ios[key as usize];
        self.free_io(key);
        self.answer(now, io, Outcome::Done);
    }

    fn answer(&mut self, now: Nanos, io: Io, outcome: Outcome) {
        self.finish_content(io, outcome);
        self.step(now, Event::IoDone { io: io.io, range: io.range, outcome }, None);
    }

    fn finish_content(&mut self, io: Io, outcome: Outcome) {
        let good = outcome == Outcome::Done;
        for (page, slot) in io.range.pages().zip(io.slot..) {
            match io.direction {
                Direction::Read if good => self.oracle.read_ends(page, io.store, slot),
                Direction::Read => {}
                Direction::Write => {
                    self.oracle.write_ends(page, io.store, slot, good);
                    self.let_canary_sing(io.store, slot);
                }
            }
        }
    }

    fn let_canary_sing(&mut self, store: usize, slot: u32) {
        let Some(every) = self.canary else { return };
        self.canary_writes += 1;
        if self.canary_writes.is_multiple_of(every) {
            self.oracle.plant_bug(store, slot);
        }
    }
}
