//! The port over the model: what the runtime asks of it.

use std::sync::{Arc, Mutex, MutexGuard};

use pagetide_sys::Errno;
use pagetide_sys::fd::{self, Fd};
use pagetide_sys::maps::{self, Vma};
use pagetide_sys::mem::{ManagedRange, PAGE_BYTES};
use pagetide_sys::pagemap::{Categories, Run, Scanned};
use pagetide_sys::smaps::Flags;
use pagetide_sys::uffd::{Modes, RangeAnswer, Stop, Wake};

use super::calls::{Change, Extent, Happened};
use super::memory::{Entry, ForkPolicy, Kind, Mapping, Rights};
use super::{Pid, World};
use crate::port::{AddressSpace, Faults, Message, OwnMapping, Sizes};

/// What an interrupt of another CPU takes.
const INTERRUPT_NS: u64 = 20_000;

/// A process of a model, as its runtime sees it.
#[derive(Clone, Debug)]
pub struct Model {
    world: Arc<Mutex<World>>,
    /// Whose address space it is.
    pid: Pid,
    /// Who asks: a forked child's pages are filled by its parent at first.
    caller: Pid,
}

/// Memory that a runtime has mapped for itself in a model.
#[derive(Debug)]
pub struct ModelMapping {
    range: ManagedRange,
    space: Model,
}

impl OwnMapping for ModelMapping {
    fn range(&self) -> ManagedRange {
        self.range
    }
}

impl Drop for ModelMapping {
    fn drop(&mut self) {
        let (vpn, end) = pages(self.range);
        let mut world = self.space.world();
        if world.is_alive(self.space.pid) {
            world.process_mut(self.space.pid).cut(vpn, end);
            world.zap(self.space.pid, vpn, end);
        }
    }
}

/// A forked child's faults, as its parent has them. When this goes, nobody answers them any more, unless the child's own runtime has
/// taken them over.
#[derive(Debug)]
pub struct ModelChild {
    space: Model,
}

impl ModelChild {
    /// The child, asked for by its parent.
    pub const fn space(&self) -> &Model {
        &self.space
    }
}

impl Drop for ModelChild {
    fn drop(&mut self) {
        self.space.world().close_faults(self.space.pid);
    }
}

/// What a call that fills missing pages takes the place of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Nothing,
    Markers,
}

/// First page number, and the one behind the last.
fn pages(range: ManagedRange) -> (u64, u64) {
    ((range.start() / PAGE_BYTES) as u64, (range.end() / PAGE_BYTES) as u64)
}

fn address(vpn: u64) -> usize {
    usize::try_from(vpn).expect("64 bits") * PAGE_BYTES
}

fn vma_of(mapping: &Mapping) -> Vma<'static> {
    Vma {
        start: address(mapping.start),
        end: address(mapping.end),
        read: mapping.rights.allow(false),
        write: mapping.rights.allow(true),
        exec: mapping.rights == Rights::All,
        shared: mapping.kind == Kind::Shared,
        offset: 0,
        device: (0, 0),
        inode: 0,
        kind: if mapping.kind == Kind::Stack { maps::Kind::Stack } else { maps::Kind::Anon },
        name: b"",
    }
}

fn flags_of(mapping: &Mapping) -> Flags {
    let fork = match mapping.fork {
        ForkPolicy::Copy => Flags::NONE,
        ForkPolicy::Dont => Flags::DONT_COPY,
        ForkPolicy::Wipe => Flags::WIPE_ON_FORK,
    };
    let told = [
        (mapping.locked, Flags::LOCKED),
        (mapping.registered, Flags::USERFAULT),
        (mapping.kind == Kind::Stack, Flags::GROWS_DOWN),
    ];
    told.iter().filter(|(holds, _)| *holds).fold(fork, |flags, &(_, flag)| flags.with(flag))
}

/// How far a run of pages came.
fn stopped(done: u64, stop: Option<Stop>) -> RangeAnswer {
    let stop = if done > 0 { stop.map(|_| Stop::Again) } else { stop };
    RangeAnswer { done: address(done), stop }
}

impl Model {
    /// The address space of `pid`, which asks for itself.
    pub const fn new(world: Arc<Mutex<World>>, pid: Pid) -> Self {
        Self { world, pid, caller: pid }
    }

    /// The address space of another process of its world, which asks for itself.
    pub fn of_process(&self, pid: Pid) -> Self {
        Self::new(Arc::clone(&self.world), pid)
    }

    /// Whose address space it is.
    pub const fn pid(&self) -> Pid {
        self.pid
    }

    /// The world that it is part of.
    pub fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// The world, for a call of the runtime: the programs may have gone on before it.
    fn enter(&self) -> MutexGuard<'_, World> {
        let mut world = self.world();
        world.interlude();
        world.collapse_somewhere();
        world
    }

    /// Fresh memory of the runtime's own, at this page number.
    pub fn map_own(&self, vpn: u64, pages: u64) -> ModelMapping {
        let mapping = Mapping { fork: ForkPolicy::Dont, ..Mapping::anon(vpn, vpn + pages) };
        self.world().map(self.pid, mapping);
        // SAFETY: an address of the model is never used as one of this process.
        let range = unsafe { ManagedRange::new(address(vpn), address(pages)) };
        ModelMapping { range, space: self.clone() }
    }

    /// The same, which may be executed.
    pub fn map_own_executable(&self, vpn: u64, pages: u64) -> ModelMapping {
        let mapping = self.map_own(vpn, pages);
        self.world().process_mut(self.pid).change(vpn, vpn + pages, |mapping| mapping.rights = Rights::All);
        mapping
    }

    /// The same, which children have a copy of.
    pub fn map_own_inherited(&self, vpn: u64, pages: u64) -> ModelMapping {
        let mapping = self.map_own(vpn, pages);
        self.world().process_mut(self.pid).change(vpn, vpn + pages, |mapping| mapping.fork = ForkPolicy::Copy);
        mapping
    }

    /// What a device reads from this page of the runtime's own.
    pub fn device_load(&self, address: usize) -> u64 {
        let world = self.world();
        let entry = world.process(self.caller).entries.get(&((address / PAGE_BYTES) as u64)).copied();
        world.value_of(entry.expect("a request is about frames with memory"))
    }

    /// A device writes this page of the runtime's own.
    pub fn device_store(&self, address: usize, value: u64) {
        let mut world = self.world();
        let vpn = (address / PAGE_BYTES) as u64;
        match world.process(self.caller).entries.get(&vpn).copied() {
            Some(Entry::Page { page, .. }) => world.page_mut(page).value = value,
            // A zero page that was moved out is written as any page is.
            Some(Entry::Zero) => {
                let own = world.new_page(value);
                world.process_mut(self.caller).entries.insert(vpn, own);
            }
            entry => unreachable!("a request is about frames with memory: {entry:?}"),
        }
    }

    /// What keeps every call on pages from being done.
    fn refusal(world: &World, pid: Pid) -> Option<Stop> {
        if !world.is_alive(pid) {
            return Some(Stop::Gone);
        }
        (world.process(pid).monitor.changing > 0).then_some(Stop::Again)
    }

    fn has_registered(world: &World, pid: Pid, page: ManagedRange) -> bool {
        let (vpn, end) = pages(page);
        world.is_alive(pid)
            && world.process(pid).at(vpn).is_some_and(|mapping| mapping.end >= end && mapping.registered)
    }

    /// Fill the missing pages of `to`, one by one, with what `fill` gives.
    fn fill(
        &self,
        to: ManagedRange,
        wake: Wake,
        over: Over,
        mut fill: impl FnMut(&mut World, u64) -> Result<Entry, Stop>,
    ) -> RangeAnswer {
        let mut world = self.enter();
        let (vpn, end) = pages(to);
        if let Some(stop) = Self::refusal(&world, self.pid) {
            return stopped(0, Some(stop));
        }
        let inside = world.process(self.pid).at(vpn).is_some_and(|mapping| mapping.end >= end && mapping.registered);
        if !inside {
            return stopped(0, Some(Stop::Hole));
        }
        let mut stop = None;
        let mut at = vpn;
        while at < end {
            let entry = world.process(self.pid).entries.get(&at).copied();
            // A copy takes the place of a marker, of a guard's too.
            let is_in_the_way = match entry {
                Some(Entry::Zero | Entry::Page { .. }) => true,
                Some(Entry::Poison | Entry::Guard) => over == Over::Nothing,
                None => false,
            };
            if is_in_the_way {
                stop = Some(Stop::Present);
                break;
            }
            match fill(&mut world, at - vpn) {
                Ok(entry) => {
                    let before = world.process_mut(self.pid).entries.insert(at, entry);
                    if before == Some(Entry::Guard) {
                        world.log.push(Happened::Covered(self.pid, at));
                    }
                }
                Err(why) => {
                    stop = Some(why);
                    break;
                }
            }
            at += 1;
        }
        if wake == Wake::Now {
            world.wake_faults(self.pid, vpn, at);
        }
        stopped(at - vpn, stop)
    }

    /// Why pages of `from` cannot be moved to `to` at all.
    fn move_refusal(&self, world: &World, to: ManagedRange, from: ManagedRange) -> Option<Stop> {
        if self.pid != self.caller {
            return Some(Stop::Invalid);
        }
        let process = world.process(self.pid);
        let ((to, to_end), (from, from_end)) = (pages(to), pages(from));
        let (Some(target), Some(source)) = (process.at(to), process.at(from)) else { return Some(Stop::Hole) };
        let is_inside = target.end >= to_end && source.end >= from_end;
        let is_alike = target.rights == source.rights && target.locked == source.locked;
        let is_private = target.kind != Kind::Shared && source.kind != Kind::Shared;
        let is_movable = source.rights.allow(true) && target.registered;
        (!(is_inside && is_alike && is_private && is_movable)).then_some(Stop::Invalid)
    }

    /// Move one page.
    fn move_one(&self, world: &mut World, to: u64, from: u64) -> Result<(), Stop> {
        let process = world.process(self.pid);
        if process.entries.contains_key(&to) {
            return Err(Stop::Present);
        }
        match process.entries.get(&from).copied() {
            None => return Err(Stop::Hole),
            Some(Entry::Poison | Entry::Guard) => return Err(Stop::Marked),
            Some(Entry::Page { page, exclusive }) if !exclusive || world.is_pinned(page) => return Err(Stop::Busy),
            Some(Entry::Page { .. }) if world.chance(world.quirks.held_for_a_moment) => return Err(Stop::Busy),
            Some(Entry::Page { .. } | Entry::Zero) => {}
        }
        let entries = &mut world.process_mut(self.pid).entries;
        let entry = entries.remove(&from).expect("it was found");
        entries.insert(to, entry);
        if let Entry::Page { page, .. } = entry {
            world.split_huge(page);
        }
        if let Entry::Page { page, .. } = entry
            && world.chance(world.quirks.spoiled)
        {
            world.page_mut(page).value ^= 1;
        }
        Ok(())
    }
}

impl Faults for Model {
    type Child = ModelChild;

    fn next_message(&self) -> Result<Option<Message<ModelChild>>, Errno> {
        let mut world = self.enter();
        if !world.is_alive(self.pid) {
            return Ok(None);
        }
        let monitor = &mut world.process_mut(self.pid).monitor;
        if let Some(fault) = monitor.faults.pop_front() {
            return Ok(Some(Message::Fault {
                address: address(fault.vpn),
                write: fault.write,
                thread: fault.thread.0,
            }));
        }
        let Some(event) = monitor.events.pop_front() else { return Ok(None) };
        world.was_read(event.thread);
        Ok(Some(match event.change {
            Change::Fork(child) => {
                let space = Self { world: Arc::clone(&self.world), pid: child, caller: self.caller };
                Message::Fork(ModelChild { space })
            }
            Change::Remap { from, to, pages } => {
                Message::Remap { from: address(from), to: address(to), len: address(pages) }
            }
            Change::Remove { vpn, end } => Message::Remove { start: address(vpn), end: address(end) },
            Change::Unmap { vpn, end } => Message::Unmap { start: address(vpn), end: address(end) },
        }))
    }

    fn wake(&self, range: ManagedRange) -> Result<(), Errno> {
        let (vpn, end) = pages(range);
        self.enter().wake_faults(self.pid, vpn, end);
        Ok(())
    }

    fn copy(&self, to: ManagedRange, from: ManagedRange, wake: Wake) -> RangeAnswer {
        let (source, _) = pages(from);
        let caller = self.caller;
        self.fill(to, wake, Over::Markers, |world, index| {
            if world.chance(world.quirks.no_memory) {
                return Err(Stop::NoMemory);
            }
            if index > 0 && world.chance(world.quirks.cut_short) {
                return Err(Stop::Again);
            }
            let entry = world.process(caller).entries.get(&(source + index)).copied();
            let registered = world.process(caller).at(source + index).is_none_or(|mapping| mapping.registered);
            assert!(entry.is_some() || !registered, "a copy from a frame without memory waits for itself");
            let value = entry.map_or(0, |entry| world.value_of(entry));
            Ok(world.new_page(value))
        })
    }

    fn zeropage(&self, to: ManagedRange, wake: Wake) -> RangeAnswer {
        let (vpn, _) = pages(to);
        let world = self.world();
        let process = world.processes.get(&self.pid);
        // Shared memory has no page of zeroes: it is filled as by a copy, with a page of its own.
        let is_shared = process.and_then(|process| process.at(vpn)).is_some_and(|mapping| mapping.kind == Kind::Shared);
        drop(world);
        if is_shared {
            return self.fill(to, wake, Over::Markers, |world, _| Ok(world.new_page(0)));
        }
        self.fill(to, wake, Over::Nothing, |_, _| Ok(Entry::Zero))
    }

    fn poison(&self, range: ManagedRange, wake: Wake) -> RangeAnswer {
        self.fill(range, wake, Over::Nothing, |_, _| Ok(Entry::Poison))
    }

    fn is_registered(&self, page: ManagedRange) -> Result<bool, Errno> {
        let world = self.enter();
        match Self::refusal(&world, self.pid) {
            None => Ok(Self::has_registered(&world, self.pid, page)),
            Some(Stop::Gone) => Err(Errno::ESRCH),
            Some(_) => Err(Errno::EAGAIN),
        }
    }

    fn descriptor(&self) -> Option<&Fd> {
        None
    }
}

impl Faults for ModelChild {
    type Child = Self;

    fn next_message(&self) -> Result<Option<Message<Self>>, Errno> {
        self.space.next_message()
    }

    fn wake(&self, range: ManagedRange) -> Result<(), Errno> {
        self.space.wake(range)
    }

    fn copy(&self, to: ManagedRange, from: ManagedRange, wake: Wake) -> RangeAnswer {
        self.space.copy(to, from, wake)
    }

    fn zeropage(&self, to: ManagedRange, wake: Wake) -> RangeAnswer {
        self.space.zeropage(to, wake)
    }

    fn poison(&self, range: ManagedRange, wake: Wake) -> RangeAnswer {
        self.space.poison(range, wake)
    }

    fn is_registered(&self, page: ManagedRange) -> Result<bool, Errno> {
        self.space.is_registered(page)
    }

    fn descriptor(&self) -> Option<&Fd> {
        None
    }
}

impl AddressSpace for Model {
    type Mapping = ModelMapping;

    fn now(&self) -> u64 {
        self.world().now
    }

    fn register(&self, range: ManagedRange, modes: Modes) -> Result<(), Errno> {
        assert_eq!(modes, Modes::MISSING, "only missing pages are modelled");
        let mut world = self.enter();
        let (vpn, end) = pages(range);
        let process = world.process_mut(self.pid);
        if process.within(vpn, end).next().is_none() {
            return Err(Errno::EINVAL);
        }
        process.change(vpn, end, |mapping| mapping.registered = true);
        Ok(())
    }

    fn unregister(&self, range: ManagedRange) -> Result<(), Errno> {
        let mut world = self.enter();
        let (vpn, end) = pages(range);
        let process = world.process_mut(self.pid);
        if process.within(vpn, end).next().is_none() {
            return Err(Errno::EINVAL);
        }
        process.change(vpn, end, |mapping| mapping.registered = false);
        world.wake_faults(self.pid, vpn, end);
        Ok(())
    }

    fn is_registered_now(&self, page: ManagedRange) -> Option<bool> {
        Some(Self::has_registered(&self.enter(), self.pid, page))
    }

    fn move_pages(&self, to: ManagedRange, from: ManagedRange, wake: Wake) -> RangeAnswer {
        assert_eq!(to.len(), from.len(), "a move has one length");
        let mut world = self.enter();
        let quirks = world.quirks;
        if let Some(stop) = Self::refusal(&world, self.pid) {
            let hole = stop == Stop::Again && self.move_refusal(&world, to, from) == Some(Stop::Hole);
            let early = hole && world.chance(quirks.looked_up_early);
            return stopped(0, Some(if early { Stop::Hole } else { stop }));
        }
        if let Some(stop) = self.move_refusal(&world, to, from) {
            return stopped(0, Some(stop));
        }
        let ((target, end), (source, _)) = (pages(to), pages(from));
        let mut stop = None;
        let mut done = 0;
        while target + done < end {
            if world.chance(quirks.cut_short) {
                stop = Some(Stop::Again);
                break;
            }
            if world.chance(quirks.interrupts) {
                world.pass(INTERRUPT_NS);
            }
            match self.move_one(&mut world, target + done, source + done) {
                Ok(()) if world.chance(quirks.moved_and_denied) => {
                    stop = Some(Stop::Present);
                    break;
                }
                Ok(()) => done += 1,
                Err(why) => {
                    stop = Some(why);
                    break;
                }
            }
        }
        if wake == Wake::Now {
            world.wake_faults(self.pid, target, target + done);
        }
        stopped(done, stop)
    }

    fn leading(&self, range: ManagedRange, there: bool) -> Result<usize, Errno> {
        let mut world = self.world();
        let (vpn, end) = pages(range);
        world.log.push(Happened::Looked(self.pid, Extent { start: vpn, end }));
        let entries = &world.process(self.pid).entries;
        // The page map shows markers as swapped, which is something that is there.
        let leading = (vpn..end).take_while(|vpn| entries.contains_key(vpn) == there).count();
        Ok(leading * PAGE_BYTES)
    }

    fn shared(&self, range: ManagedRange) -> Result<usize, Errno> {
        let world = self.world();
        let (vpn, end) = pages(range);
        let entries = &world.process(self.pid).entries;
        let is_shared = |vpn: &u64| match entries.get(vpn) {
            Some(&Entry::Page { page, .. }) => world.page(page).mapped > 1,
            Some(Entry::Zero) => true,
            _ => false,
        };
        Ok((vpn..end).take_while(is_shared).count() * PAGE_BYTES)
    }

    fn give_back(&self, range: ManagedRange) -> Result<(), Errno> {
        let (vpn, end) = pages(range);
        let mut world = self.enter();
        let registered = world.process(self.pid).within(vpn, end).any(|mapping| mapping.registered);
        assert!(!registered, "the thread that reads messages would wait for its own");
        world.zap(self.pid, vpn, end);
        Ok(())
    }

    fn scan(&self, range: ManagedRange, wanted: Categories, runs: &mut [Run]) -> Result<Scanned, Errno> {
        let world = self.enter();
        let (vpn, end) = pages(range);
        let mut found = 0;
        for (&vpn, entry) in world.process(self.pid).entries.range(vpn..end) {
            let shown = match entry {
                Entry::Zero => Categories::PRESENT.with(Categories::ZERO),
                Entry::Page { .. } => Categories::PRESENT,
                Entry::Poison | Entry::Guard => Categories::SWAPPED,
            };
            let categories = Categories(shown.0 & wanted.0);
            if categories == Categories::NONE {
                continue;
            }
            let (start, stop) = (address(vpn) as u64, address(vpn + 1) as u64);
            if let Some(last) = runs[..found].last_mut()
                && last.end == start
                && last.categories == categories
            {
                last.end = stop;
                continue;
            }
            let Some(place) = runs.get_mut(found) else {
                return Ok(Scanned { runs: found, walked_to: address(vpn) });
            };
            *place = Run { start, end: stop, categories };
            found += 1;
        }
        Ok(Scanned { runs: found, walked_to: range.end() })
    }

    fn mapping_at_or_after(&mut self, at: usize) -> Result<Option<Vma<'static>>, Errno> {
        let world = self.enter();
        Ok(world.process(self.pid).at_or_after((at / PAGE_BYTES) as u64).map(vma_of))
    }

    fn flagged_mappings(&self, each: &mut dyn FnMut(&Vma<'_>, Flags)) -> Result<(), Errno> {
        let mappings = self.enter().process(self.pid).mappings.clone();
        mappings.iter().for_each(|mapping| each(&vma_of(mapping), flags_of(mapping)));
        Ok(())
    }

    fn end_of(&self, number: i32) -> Result<Fd, Errno> {
        let child = u32::try_from(number).map_or(Err(Errno::ESRCH), |number| Ok(Pid(number)))?;
        let mut world = self.enter();
        let process = world.processes.get_mut(&child).ok_or(Errno::ESRCH)?;
        let (hangup, held) = fd::pipe(0)?;
        process.ends.push(held);
        Ok(hangup)
    }

    fn sizes(&self) -> Sizes {
        let world = self.world();
        let locked = world.process(self.pid).mappings.iter().filter(|mapping| mapping.locked);
        let pages: u64 = locked.map(|mapping| mapping.end - mapping.start).sum();
        Sizes { page_table_bytes: 0, locked_bytes: address(pages) as u64 }
    }

    fn look<R>(&self, range: ManagedRange, at: impl FnOnce(&[u8]) -> R) -> R {
        assert_eq!(range.len(), PAGE_BYTES, "frames are looked at one by one");
        let mut bytes = [0; PAGE_BYTES];
        bytes[..8].copy_from_slice(&self.device_load(range.start()).to_le_bytes());
        at(&bytes)
    }

    fn edit<R>(&self, range: ManagedRange, at: impl FnOnce(&mut [u8]) -> R) -> R {
        assert_eq!(range.len(), PAGE_BYTES, "frames are written one by one");
        let mut bytes = [0; PAGE_BYTES];
        let result = at(&mut bytes);
        let word = bytes.first_chunk().expect("a page is longer than a word");
        self.device_store(range.start(), u64::from_le_bytes(*word));
        result
    }

    fn clear(&self, range: ManagedRange) {
        let (vpn, end) = pages(range);
        for vpn in vpn..end {
            self.device_store(address(vpn), 0);
        }
    }
}
