//! A small host for tests: frames, slots and page tables as versions, effects executed in an order that the test chooses.
//!
//! It keeps what every page must hold and checks it at every access, and calls `audit` after every event. It is no
//! simulator: no time passes, and devices never queue.
#![expect(dead_code, reason = "every test binary uses a part of it")]

use pagetide_core::effect::{EffectHash, Source};
use pagetide_core::event::{DeviceSpec, FILE_DEVICE_FIRST, FileSpec, MoveAnswer, Outcome};
use pagetide_core::types::{Access, DeviceId, IoId, PageIdx, PageRange, RegionId, SlotIdx, TaskId};
use pagetide_core::{Config, Core, Effect, Effects, Event, HostKind, PageState, Touch};
use std::collections::{BTreeMap, BTreeSet};

/// An effect that is to be executed and answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pending {
    Read { io: IoId, device: DeviceId, slot: SlotIdx, range: PageRange },
    Write { io: IoId, device: DeviceId, slot: SlotIdx, range: PageRange },
    Map { range: PageRange, source: Source },
    Unmap { range: PageRange },
}

pub(crate) struct World {
    pub(crate) core: Core,
    pub(crate) blind: bool,
    /// What the program must see.
    pub(crate) truth: BTreeMap<u32, u64>,
    /// Content of the frames.
    pub(crate) frames: BTreeMap<u32, u64>,
    pub(crate) mapped: BTreeSet<u32>,
    pub(crate) slots: BTreeMap<(u8, u32), u64>,
    pub(crate) pending: Vec<Pending>,
    pub(crate) blocked: BTreeMap<u32, (u32, Access)>,
    pub(crate) poisoned: BTreeSet<u32>,
    pub(crate) oom: Vec<u32>,
    pub(crate) version: u64,
    pub(crate) hash: EffectHash,
    pub(crate) log: Option<Vec<String>>,
    pub(crate) events: u64,
    pub(crate) audits: bool,
    /// First page of the file region, whose page `i` holds `FILE_CONTENT + i` on the disk.
    pub(crate) file: Option<u32>,
    pub(crate) now: u64,
    /// Pages whose map was ordered, and which were discarded before it was carried out.
    pub(crate) cancelled: BTreeSet<u32>,
    /// A page whose story is told on stderr.
    pub(crate) trace: Option<u32>,
}

pub(crate) const TASK: u32 = 1;
/// What the first page of the file holds.
pub(crate) const FILE_CONTENT: u64 = 1 << 40;

impl World {
    pub(crate) fn new(config: Config, blind: bool) -> Self {
        Self {
            core: Core::new(config),
            blind,
            truth: BTreeMap::new(),
            frames: BTreeMap::new(),
            mapped: BTreeSet::new(),
            slots: BTreeMap::new(),
            pending: Vec::new(),
            blocked: BTreeMap::new(),
            poisoned: BTreeSet::new(),
            oom: Vec::new(),
            version: 0,
            hash: EffectHash::new(),
            log: None,
            events: 0,
            audits: true,
            file: None,
            now: 0,
            cancelled: BTreeSet::new(),
            trace: None,
        }
    }

    /// A profile on a host of a kind, with one region from page 0 and one device.
    pub(crate) fn simple(profile: &str, kind: HostKind, pages: u32, budget: u32, slots: u32) -> Self {
        let config = Config::profile(profile, kind).expect("a profile");
        let config = config.memory(pagetide_core::MemoryMode::Watermarks, pages, budget).slots_max(slots + 1024);
        let mut world = Self::new(config, kind == HostKind::Blind);
        world.event(Event::RegionAdded { region: RegionId(1), range: PageRange::new(PageIdx(0), pages) });
        world.event(Event::DeviceAdded { device: DeviceId(0), spec: device_spec(slots) });
        world
    }

    pub(crate) fn event(&mut self, event: Event) {
        let mut out = Effects::new();
        self.core.handle(self.now, &event, &mut out);
        self.events += 1;
        self.hash.add(out.as_slice());
        if let Some(p) = self.trace {
            eprintln!("{event:?}");
            for effect in out.as_slice() {
                eprintln!("    {}", text(effect));
            }
            eprintln!(
                "        {:?} frame {:?} truth {}",
                self.core.page(PageIdx(p)),
                self.frames.get(&p),
                self.truth(p)
            );
        }
        for &effect in out.as_slice() {
            self.take(effect);
        }
        if self.audits {
            self.core.audit();
        }
    }

    fn take(&mut self, effect: Effect) {
        if let Some(log) = &mut self.log {
            log.push(text(&effect));
        }
        match effect {
            Effect::Read { io, device, slot, range, .. } => {
                self.pending.push(Pending::Read { io, device, slot, range })
            }
            Effect::Write { io, device, slot, range } => {
                for page in range.pages() {
                    assert!(!self.mapped.contains(&page.0), "page {} is written while it is mapped", page.0);
                }
                self.pending.push(Pending::Write { io, device, slot, range });
            }
            Effect::Map { range, source, .. } => {
                if self.blind {
                    self.pending.push(Pending::Map { range, source });
                } else {
                    self.map(range, source);
                }
            }
            Effect::Unmap { range } => {
                if self.blind {
                    self.pending.push(Pending::Unmap { range });
                } else {
                    range.pages().for_each(|p| assert!(self.mapped.remove(&p.0), "page {} was not mapped", p.0));
                }
            }
            Effect::Drop { range } => range.pages().for_each(|p| self.drop_frame(p.0)),
            Effect::Wake { task, .. } => {
                if let Some((p, access)) = self.blocked.remove(&task.0)
                    && self.file.is_some_and(|base| p >= base)
                    && self.frames.contains_key(&p)
                    && !self.mapped.contains(&p)
                {
                    self.copy_file_page(p, access);
                }
            }
            Effect::Poison { range } => {
                for page in range.pages() {
                    self.frames.remove(&page.0);
                    self.poisoned.insert(page.0);
                }
            }
            Effect::OutOfMemory { task, .. } => {
                self.blocked.remove(&task.0);
                self.oom.push(task.0);
            }
        }
    }

    /// The copy between a page of the page cache and the caller's buffer.
    fn copy_file_page(&mut self, p: u32, access: Access) {
        if access == Access::Write {
            self.version += 1;
            self.frames.insert(p, self.version);
            self.truth.insert(p, self.version);
        } else {
            assert_eq!(self.frames[&p], self.truth(p), "file page {p} has the wrong content");
        }
    }

    fn map(&mut self, range: PageRange, source: Source) {
        for page in range.pages() {
            let p = page.0;
            assert!(!self.mapped.contains(&p) || self.blind, "page {p} is mapped twice");
            match source {
                Source::Zero => assert!(self.frames.insert(p, 0).is_none(), "page {p} has a frame already"),
                Source::Frame => assert!(self.frames.contains_key(&p), "page {p} is mapped without a frame"),
            }
            self.mapped.insert(p);
        }
    }

    /// I5: what is dropped must be on the device, or not needed.
    fn drop_frame(&mut self, p: u32) {
        assert!(!self.mapped.contains(&p), "page {p} is dropped while it is mapped");
        let content = self.frames.remove(&p).unwrap_or_else(|| panic!("page {p} is dropped without a frame"));
        if content != self.truth(p) {
            // Discarded: the old content is not needed.
            return;
        }
        if let Some(base) = self.file.filter(|base| p >= *base) {
            let stored = self.stored((FILE_DEVICE_FIRST, p - base));
            assert_eq!(stored, content, "I5: the only copy of file page {p} is dropped");
            return;
        }
        let view = self.core.page(PageIdx(p));
        let copy = match view.slot {
            Some((device, slot)) => self.slots.get(&(device.0, slot.0)).copied(),
            None => Some(0),
        };
        assert!(view.state != PageState::Swapped || copy == Some(content), "I5: the only copy of page {p} is dropped");
        assert!(view.state != PageState::Untouched || content == 0, "I5: page {p} is dropped with content");
    }

    pub(crate) fn truth(&self, p: u32) -> u64 {
        let fresh = match self.file {
            Some(base) if p >= base => FILE_CONTENT + u64::from(p - base),
            Some(_) | None => 0,
        };
        self.truth.get(&p).copied().unwrap_or(fresh)
    }

    /// What a place on a device holds.
    fn stored(&self, place: (u8, u32)) -> u64 {
        match self.slots.get(&place) {
            Some(&content) => content,
            None if place.0 >= FILE_DEVICE_FIRST => FILE_CONTENT + u64::from(place.1),
            None => panic!("slot {place:?} was never written"),
        }
    }

    /// True if the page's slot holds its content.
    fn is_clean(&self, page: PageIdx) -> bool {
        let place = self.core.page(page).slot.map(|(device, slot)| (device.0, slot.0));
        place.is_some_and(|place| self.slots.get(&place) == self.frames.get(&page.0))
    }

    /// Add a file from page `base` to the end of the table.
    pub(crate) fn add_file(&mut self, base: u32, pages: u32, ra_pages: u32) {
        self.file = Some(base);
        let spec = FileSpec { ra_pages, io_pages: 0, executable: false };
        let range = PageRange::new(PageIdx(base), pages);
        self.event(Event::FileAdded { region: RegionId(70), range, device: DeviceId(FILE_DEVICE_FIRST), spec });
    }

    /// A system call of the only task on file pages; the content of single pages is checked and changed.
    pub(crate) fn file_call(&mut self, first: u32, pages: u32, access: Access) {
        assert!(self.try_file_call(first, pages, access), "out of memory");
    }

    /// The same; false when out of memory.
    pub(crate) fn try_file_call(&mut self, first: u32, pages: u32, access: Access) -> bool {
        let range = PageRange::new(PageIdx(self.file.expect("there is a file") + first), pages);
        self.blocked.insert(TASK, (range.first.0, access));
        let task = TaskId(TASK);
        self.event(match access {
            Access::Read => Event::FileRead { range, task },
            Access::Write => Event::FileWrite { range, task },
        });
        let mut steps = 0;
        while self.blocked.contains_key(&TASK) {
            if !self.pending.is_empty() {
                self.answer(0);
            } else {
                assert!(self.core.deadline().is_some(), "I9: the call on page {first} is never answered");
                self.event(Event::Timeout);
            }
            steps += 1;
            assert!(
                steps < 1_000_000,
                "I9: the call on page {first} takes forever: {:?} {:?} {}",
                self.core.list_sizes(),
                self.nonzero(),
                self.core.charged()
            );
        }
        self.oom.pop().is_none()
    }

    /// Execute and answer the pending effect at `at`.
    pub(crate) fn answer(&mut self, at: usize) {
        let pending = self.pending.remove(at);
        self.answer_with(pending, Outcome::Done);
    }

    /// Execute and answer; a write or read ends with `outcome` unless that is `Done`.
    pub(crate) fn answer_with(&mut self, pending: Pending, outcome: Outcome) {
        match pending {
            Pending::Read { io, device, slot, range } => {
                for (i, page) in range.pages().enumerate() {
                    let place = (device.0, slot.0 + u32::try_from(i).expect("small"));
                    // The frame is there from the order on; a failed read leaves garbage in it.
                    let content = if outcome == Outcome::Done { self.stored(place) } else { u64::MAX };
                    assert!(self.frames.insert(page.0, content).is_none(), "page {} is read over a frame", page.0);
                }
                self.event(Event::IoDone { io, range, outcome });
            }
            Pending::Write { io, device, slot, range } => self.answer_write(io, device, slot, range, outcome),
            Pending::Map { range, source } => {
                if outcome != Outcome::Done && source == Source::Frame {
                    self.event(Event::Mapped { range, answer: MoveAnswer::Busy });
                    return;
                }
                for page in range.pages() {
                    let p = page.0;
                    let gone = self.cancelled.remove(&p);
                    if gone {
                        self.frames.remove(&p);
                    }
                    if !gone && !self.mapped.contains(&p) {
                        self.map(PageRange::one(page), source);
                    }
                    let answer = if gone { MoveAnswer::Gone } else { MoveAnswer::Done };
                    self.event(Event::Mapped { range: PageRange::one(page), answer });
                }
            }
            Pending::Unmap { range } => {
                if outcome != Outcome::Done {
                    self.event(Event::Unmapped { range, answer: MoveAnswer::Busy });
                    return;
                }
                for page in range.pages() {
                    if self.mapped.remove(&page.0) {
                        let answer = if self.is_clean(page) { MoveAnswer::Clean } else { MoveAnswer::Done };
                        self.event(Event::Unmapped { range: PageRange::one(page), answer });
                    } else {
                        self.event(Event::Unmapped { range: PageRange::one(page), answer: MoveAnswer::Gone });
                    }
                }
            }
        }
    }

    fn answer_write(&mut self, io: IoId, device: DeviceId, slot: SlotIdx, range: PageRange, outcome: Outcome) {
        if outcome != Outcome::Done {
            self.event(Event::IoDone { io, range, outcome });
            return;
        }
        for (i, page) in range.pages().enumerate() {
            let place = (device.0, slot.0 + u32::try_from(i).expect("small"));
            let content = self.frames[&page.0];
            let outcome = if self.blind && content == 0 {
                self.slots.remove(&place);
                Outcome::Zero
            } else if self.blind && self.slots.get(&place) == Some(&content) {
                Outcome::Unchanged
            } else {
                self.slots.insert(place, content);
                Outcome::Done
            };
            self.event(Event::IoDone { io, range: PageRange::one(page), outcome });
        }
    }

    /// Answer everything, oldest first, and let the core finish its work.
    pub(crate) fn settle(&mut self) {
        for _ in 0..1_000_000 {
            if !self.pending.is_empty() {
                self.answer(0);
            } else if let Some(at) = self.core.deadline() {
                self.now = self.now.max(at);
                self.event(Event::Timeout);
            } else {
                return;
            }
        }
        panic!("I9: the core never settles");
    }

    /// A task begins to access a page. True if it had it at once.
    pub(crate) fn begin(&mut self, task: u32, p: u32, access: Access) -> bool {
        if self.mapped.contains(&p) {
            self.finish(p, access);
            return true;
        }
        let fault = self.blind || self.core.touch(PageIdx(p), access) == Touch::Fault;
        assert!(fault, "the core thinks page {p} is mapped");
        self.blocked.insert(task, (p, access));
        self.event(Event::Fault { page: PageIdx(p), access, task: TaskId(task) });
        false
    }

    /// The access itself, on a mapped page.
    fn finish(&mut self, p: u32, access: Access) {
        if !self.blind {
            assert_eq!(self.core.touch(PageIdx(p), access), Touch::Hit);
        }
        assert_eq!(self.frames[&p], self.truth(p), "page {p} has the wrong content");
        if access == Access::Write {
            self.version += 1;
            self.frames.insert(p, self.version);
            self.truth.insert(p, self.version);
        }
    }

    /// A whole access by the only task. False: out of memory or poisoned.
    pub(crate) fn access(&mut self, p: u32, access: Access) -> bool {
        for _ in 0..100_000 {
            if !self.blocked.contains_key(&TASK) && self.begin(TASK, p, access) {
                return true;
            }
            let mut steps = 0;
            while self.blocked.contains_key(&TASK) {
                if !self.pending.is_empty() {
                    self.answer(0);
                } else {
                    assert!(self.core.deadline().is_some(), "I9: the fault on page {p} is never answered");
                    self.now = self.now.max(self.core.deadline().unwrap_or(0));
                    self.event(Event::Timeout);
                }
                steps += 1;
                assert!(steps < 1_000_000, "I9: the fault on page {p} takes forever");
            }
            if self.oom.pop().is_some() || self.poisoned.contains(&p) {
                return false;
            }
        }
        panic!("I9: page {p} is never mapped");
    }

    pub(crate) fn write(&mut self, p: u32) {
        assert!(
            self.access(p, Access::Write),
            "out of memory: {} {:?} {:?}",
            self.core.dump(),
            self.core.vmstat(),
            self.core.config()
        );
    }

    pub(crate) fn read(&mut self, p: u32) {
        assert!(
            self.access(p, Access::Read),
            "out of memory: {} {:?} {:?}",
            self.core.dump(),
            self.core.vmstat(),
            self.core.config()
        );
    }

    /// The program gives pages back.
    pub(crate) fn discard(&mut self, first: u32, len: u32) {
        let range = PageRange::new(PageIdx(first), len);
        for page in range.pages() {
            self.truth.remove(&page.0);
            self.poisoned.remove(&page.0);
            let ordered = |pending: &Pending| matches!(pending, Pending::Map { range, .. } if range.contains(page));
            if self.pending.iter().any(ordered) {
                self.cancelled.insert(page.0);
            }
            if self.mapped.remove(&page.0) {
                self.frames.remove(&page.0);
            }
        }
        self.event(Event::Discarded { range });
    }

    /// A failed read has poisoned its pages: what they held is gone for good.
    pub(crate) fn forget_poisoned(&mut self) {
        for p in &self.poisoned {
            if self.core.page(PageIdx(*p)).state == PageState::Poisoned {
                self.truth.remove(p);
            }
        }
    }

    pub(crate) fn nonzero(&self) -> Vec<(&'static str, u64)> {
        self.core.vmstat().iter().filter(|c| c.1 > 0).collect()
    }

    pub(crate) fn count(&self, name: &str) -> u64 {
        self.core.vmstat().iter().find(|(n, _)| *n == name).unwrap_or_else(|| panic!("no counter {name}")).1
    }
}

pub(crate) fn device_spec(slots: u32) -> DeviceSpec {
    DeviceSpec { slots, priority: None, rotational: false, synchronous: false, inherited: false }
}

fn pages(range: PageRange) -> String {
    if range.len == 1 { format!("{}", range.first.0) } else { format!("{}-{}", range.first.0, range.end().0 - 1) }
}

/// An effect as scripts show it.
pub(crate) fn text(effect: &Effect) -> String {
    match *effect {
        Effect::Read { io, device, slot, range, demand } => {
            let kind = if demand { "demand" } else { "ahead" };
            format!("read {} from {}:{} {kind} io={}", pages(range), device.0, slot.0, io.0)
        }
        Effect::Write { io, device, slot, range } => {
            format!("write {} to {}:{} io={}", pages(range), device.0, slot.0, io.0)
        }
        Effect::Map { range, source, access } => {
            let from = if source == Source::Zero { "zero" } else { "frame" };
            let how = if access == Access::Write { "w" } else { "r" };
            format!("map {} {from} {how}", pages(range))
        }
        Effect::Unmap { range } => format!("unmap {}", pages(range)),
        Effect::Drop { range } => format!("drop {}", pages(range)),
        Effect::Wake { task, page } => format!("wake task {} page {}", task.0, page.0),
        Effect::Poison { range } => format!("poison {}", pages(range)),
        Effect::OutOfMemory { task, page } => {
            format!("out of memory task {} page {}", task.0, page.0)
        }
    }
}
