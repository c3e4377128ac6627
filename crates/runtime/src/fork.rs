//! Fork: the child sees every byte, and pages with a runtime of its own.
//!
//! What the kernel does: the child's page table is a copy; pages that were swapped out are missing in it too, and with
//! EVENT_FORK its faults arrive at a new userfaultfd that the parent's agent reads from its queue. From the moment of the copy
//! until that read, every move in the parent fails with EAGAIN: the state at the read is the state at the copy.
//!
//! The protocol, parent on the left:
//!
//! 1. *prepare* (the forking thread, just before): touches doorbell 0, a missing page of ours. Its fault is the message. The
//!    agent makes room first, because what both sides write after the copy exists twice, and the kernel does not ask us then: how much,
//!    the supervisor says by what is free and what earlier children were like (`supervise/brief.rs`). It holds the core
//!    (nothing is unmapped any more, everything resident is mapped back), lets what is in flight end, and answers by filling the page.
//! 2. The kernel copies. The agent reads EVENT_FORK, takes a snapshot (regions, and which page is in which slot), pins those
//!    slots, tells the supervisor, and serves the child's faults from the snapshot. A page that every child inherits is
//!    registered, so the event comes even if all large memory is left out of the copy.
//! 3. *child* (the forked thread, before any code of the program): waits. The supervisor starts an agent in it, as in any process,
//!    and gives both agents an end of a socket. The child's agent receives the userfaultfd, the snapshot and the swap files, charges
//!    what is present in its own page table and serves itself. A child that is stopped meanwhile gets its agent all the same.
//! 4. *parent* (the forking thread, just after): touches doorbell 1, answered when the child has taken over or has ended. So
//!    a parent that exits at once does not leave a child without a pager. Nothing is decided by a time that has passed.
//!
//! Signals are blocked from 1 to 4: a handler that forks would wait for the fork that it interrupts. From the copy to 4 no guard is
//! made, and what a child gets does not change (`guards`).
//!
//! The pins of a child on one device end with the last descriptor of a pipe that the child and its own children hold: when it hangs
//! up, the parent's slots are free again. Who has no page there any more closes it with the device's files, so a device is drained in
//! all processes while they live. What a child's own child finds on a device of an earlier parent is kept by that parent's pipe, which
//! is handed on.
//!
//! A copy of the address space that was not announced (clone without libc), or in which no agent can be started, has no agent of its
//! own: the parent's agent fills every page into it at once, and it runs natively from then on.

pub(crate) mod asked;
pub(crate) mod doorbells;
pub(crate) mod guards;
mod handover;
mod newborn;
pub(crate) mod seen;
pub(crate) mod snapshot;
pub(crate) mod takeover;

use std::fmt::Arguments;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use pagetide_core::event::Event;
use pagetide_core::types::{DeviceId, Nanos, SlotIdx};
use pagetide_kernel::{AddressSpace, Faults, Linux, Message};
use pagetide_sys::fd::{self, Fd, PollFd};
use pagetide_sys::mem::{self, ManagedRange};
use pagetide_sys::signal::SignalSet;
use pagetide_sys::socket::{self, Received};
use pagetide_sys::sync::Baton;
use pagetide_sys::thread;
use pagetide_sys::uffd::{Modes, Stop, Wake};

use crate::agent::{Agent, die};
use crate::control::Entry;
use crate::fork::doorbells::Doorbells;
use crate::fork::newborn::Newborn;
use crate::fork::seen::{Seen, Talk};
use crate::fork::snapshot::{SlotRun, snapshot};
use crate::machine::managed;
use crate::pager::Pager;
use crate::protocol::{BORN, COMPLETE, OVER};
use crate::space::PAGE_SHIFT;
use crate::{foothold, setup};

/// A fork waits this long for memory to be paged out.
const SHRINK_NS: Nanos = 2_000_000_000;
/// A fork waits this long for what is in flight to end.
const SETTLE_NS: Nanos = 100_000_000;
/// Attempts to fill a page while the kernel says "again".
const FILL_TRIES: u32 = 100_000;
/// How often it is asked at once whether what a copy was to unmap is gone: some hundred microseconds.
const BELIEF_TRIES: u32 = 1000;

/// Address of the doorbells; 0 while this process is native.
static DOORBELLS: AtomicUsize = AtomicUsize::new(0);
/// One fork at a time.
static FORKING: Baton = Baton::new();
/// The fork that is under way was announced to the agent.
static ANNOUNCED: AtomicBool = AtomicBool::new(false);
/// What the forking thread blocked before.
static MASK: AtomicU64 = AtomicU64::new(0);

/// True once forks of this process are to be announced: its memory is managed.
pub(crate) fn is_announced() -> bool {
    DOORBELLS.load(Ordering::Acquire) != 0
}

/// Before a fork, in the forking thread.
pub(crate) fn prepare() {
    let mask = SignalSet::ALL.block();
    FORKING.take();
    MASK.store(mask.0, Ordering::Relaxed);
    // A copy that nobody was told of, and a child of vfork, have the words of another process; who copies them is not announced either.
    let is_own = foothold::owner() == thread::getpid();
    let doorbells = if is_own { DOORBELLS.load(Ordering::Acquire) } else { 0 };
    if doorbells != 0 {
        ANNOUNCED.store(true, Ordering::Relaxed);
        touch(doorbells);
    }
    guards::wait();
}

/// After a fork, in the parent's forking thread.
pub(crate) fn parent() {
    if ANNOUNCED.swap(false, Ordering::Relaxed) {
        touch(DOORBELLS.load(Ordering::Acquire) + mem::PAGE_BYTES);
    }
    guards::go_on();
    let mask = SignalSet(MASK.load(Ordering::Relaxed));
    FORKING.give_back();
    mask.restore();
}

/// After a fork, in the child's only thread: true if its memory was managed in the parent.
pub(crate) fn child() -> bool {
    DOORBELLS.store(0, Ordering::Relaxed);
    FORKING.forget();
    guards::forget();
    ANNOUNCED.swap(false, Ordering::Relaxed)
}

/// The child's memory is served, or was never managed: the program goes on.
pub(crate) fn child_goes_on() {
    SignalSet(MASK.load(Ordering::Relaxed)).restore();
}

/// Wake the agent, which the kernel tells of faults and of what is discarded. False: it cannot be woken so.
pub(crate) fn wake_agent() -> bool {
    let doorbells = DOORBELLS.load(Ordering::Acquire);
    // A copy that nobody was told of, and a child of vfork, would wake the agent of another process, or nobody's.
    if doorbells == 0 || foothold::owner() != thread::getpid() {
        return false;
    }
    // The page behind the doorbells is mapped as long as their address is published, and nothing is there.
    let behind = (doorbells as u64 >> PAGE_SHIFT) + 2;
    mem::advise(managed(behind, 1), mem::Advice::DontNeed).is_ok()
}

/// Read a byte of a missing page: returns when the agent has filled it.
fn touch(address: usize) {
    // SAFETY: the doorbells are mapped as long as their address is published.
    unsafe { std::ptr::with_exposed_provenance::<u8>(address).read_volatile() };
}

/// The way to the supervisor.
pub(crate) trait Voice {
    /// A word for it.
    fn tell(&self, word: &[u8]);
    /// A line for the person who started the run.
    fn say(&self, text: Arguments<'_>);
    /// Why this process ends now.
    fn die(&self, text: Arguments<'_>) -> !;
}

/// The slots of one device of ours that a child and its children may still need.
#[derive(Debug)]
struct Lease {
    hangup: Fd,
    device: DeviceId,
    /// `(first slot, length)`.
    pins: Vec<(SlotIdx, u32)>,
}

/// What an agent knows of forks.
#[derive(Debug)]
pub(crate) struct Forks<K: AddressSpace = Linux> {
    doorbells: Doorbells<K::Mapping>,
    newborn: Option<Newborn<K::Child>>,
    /// In signal mode, where forks are seen before they are made.
    seen: Option<Seen<K::Child>>,
    /// What the supervisor says of the newborn: the socket of its agent, or that it will have none.
    answered: Option<Option<Fd>>,
    leases: Vec<Lease>,
    /// Doorbell 0 was rung: the core is held until doorbell 1.
    held: bool,
    held_at: Nanos,
    /// The fork waits until so many pages are charged, or until this time.
    shrinking: Option<(u32, Nanos)>,
    rung: [bool; 2],
    rung_at: Nanos,
}

impl<K: AddressSpace> Forks<K> {
    /// `talk`: where forks are seen before they are made, and the kernel does not tell of them.
    pub(crate) fn new(doorbells: Doorbells<K::Mapping>, talk: Option<&'static Talk>) -> Self {
        Self {
            doorbells,
            newborn: None,
            seen: talk.map(Seen::new),
            answered: None,
            leases: Vec::new(),
            held: false,
            held_at: 0,
            shrinking: None,
            rung: [false; 2],
            rung_at: 0,
        }
    }

    /// Where the doorbells are.
    pub(crate) fn doorbells(&self) -> ManagedRange {
        self.doorbells.range()
    }

    pub(crate) fn is_doorbell(&self, address: usize) -> bool {
        self.doorbells.range().contains(address)
    }

    /// True until the doorbell at this address is answered.
    pub(crate) fn is_rung(&self, address: usize) -> bool {
        self.rung[self.which(address)]
    }

    fn which(&self, address: usize) -> usize {
        usize::from(address >= self.doorbells.range().page(1).start())
    }

    /// True while a child has not taken over yet: its faults and its call must be looked for.
    pub(crate) const fn is_waiting_for_child(&self) -> bool {
        self.newborn.is_some()
    }

    /// The supervisor has started the newborn's agent, or cannot.
    pub(crate) fn on_child(&mut self, call: Option<Fd>) {
        self.answered = Some(call);
    }

    /// A doorbell was touched. So many pages are to be `given` before a fork, up to half of the budget.
    pub(crate) fn ring(&mut self, pager: &mut Pager<K>, now: Nanos, address: usize, given: u32) {
        let which = self.which(address);
        self.rung[which] = true;
        self.rung_at = now;
        if which == 0 {
            self.reset(pager, 1);
            if let Some(seen) = &mut self.seen {
                seen.begin();
            }
        }
        if which == 0 && !self.held {
            let (budget, charged) = (pager.core().budget(), pager.core().charged());
            let kept = if given == 0 { budget } else { charged.saturating_sub(given).min(budget) };
            let pages = kept.max(budget / 2).max(setup::SHARE_PAGES_MIN);
            pager.shrink_for_fork(now, pages);
            self.shrinking = Some((pages, now + SHRINK_NS));
        }
    }

    /// Since when a forking thread waits at a doorbell.
    pub(crate) fn waits_since(&self) -> Option<Nanos> {
        (self.rung[0] || self.rung[1]).then_some(self.rung_at)
    }

    /// What a forking thread waits for, for the person who is told that it waits for long.
    pub(crate) const fn awaited(&self) -> &'static str {
        if self.shrinking.is_some() {
            "memory to be paged out"
        } else if self.newborn.is_some() {
            "the child's own agent to take over"
        } else {
            "what is under way to end"
        }
    }

    /// True while the core unmaps nothing: what is asked for meanwhile is beyond the budget.
    #[cfg(test)]
    pub(crate) const fn is_holding(&self) -> bool {
        self.held
    }

    /// True from the announcement of a fork until the child is on its own: the budget is the fork's.
    pub(crate) const fn is_under_way(&self) -> bool {
        self.shrinking.is_some() || self.held
    }

    /// Hold the core once no more is charged than is to be, or half of what can leave has left, or it takes too long; not before what is
    /// compressed is on the disk, which may take longer: the child is to find it there, not all at once in its memory, and what other
    /// threads ask for while the core is held is beyond the budget.
    fn hold_when_small(&mut self, pager: &mut Pager<K>, now: Nanos) -> bool {
        let Some((pages, deadline)) = self.shrinking else { return false };
        let [.., unevictable] = pager.core().list_sizes();
        let is_small = pager.core().charged() <= pages.max(unevictable + pages / 2);
        if !(is_small || now >= deadline) || !pager.machine().is_tier_flushed() {
            return false;
        }
        self.shrinking = None;
        self.held = true;
        self.held_at = now;
        pager.shrink_for_fork(now, pages);
        pager.step(now, Event::Hold { on: true });
        true
    }

    fn answer(&mut self, pager: &Pager<K>, which: usize) {
        self.rung[which] = false;
        let filled = pager.machine().space().zeropage_run(self.doorbells.range().page(which), Wake::Now);
        if filled.stop == Some(Stop::Again) {
            self.rung[which] = true;
        }
    }

    /// Progress of whatever is under way. True if there was any.
    pub(crate) fn serve(&mut self, voice: &impl Voice, pager: &mut Pager<K>, now: Nanos) -> bool {
        if !self.leases.is_empty() {
            self.end_leases(pager, now);
        }
        if self.hold_when_small(pager, now) {
            return true;
        }
        if self.rung[0] && self.held && !pager.core().is_settled() {
            // A page that came in behind the search for what is to be mapped is found by another one.
            pager.step(now, Event::Timeout);
        }
        // What is not settled by then is copied into the child at once: slower, and as right.
        let settled = pager.core().is_settled() && !pager.machine().has_deferred() || now > self.held_at + SETTLE_NS;
        if self.rung[0] && self.held && settled {
            if !self.expect_copy(voice, pager, now) {
                return false;
            }
            self.answer(pager, 0);
            return true;
        }
        let progress = self.newborn.is_some() && self.serve_newborn(voice, pager, now);
        if self.rung[1] && self.newborn.is_none() {
            self.end_fork(pager, now);
            return true;
        }
        progress
    }

    /// The parent's thread waits at doorbell 1 and the child is on its own: everything goes on as before.
    fn end_fork(&mut self, pager: &mut Pager<K>, now: Nanos) {
        // As soon as it is answered, the thread may fork again.
        self.reset(pager, 0);
        self.answer(pager, 1);
        if self.rung[1] {
            return;
        }
        if self.held {
            self.held = false;
            pager.step(now, Event::Hold { on: false });
            pager.machine_mut().flush_tier(false);
        }
    }

    /// Empty a doorbell, so that the next touch is a fault. Only while no thread can touch it: the other one is what a forking
    /// thread waits at, or has to come past first.
    fn reset(&self, pager: &Pager<K>, which: usize) {
        let doorbell = self.doorbells.range().page(which);
        let space = pager.machine().space();
        space.unregister(doorbell).expect("the doorbells are registered");
        space.give_back(doorbell).expect("the doorbells are ours");
        space.register(doorbell, Modes::MISSING).expect("the doorbells were registered before");
    }

    /// The kernel has copied the address space.
    pub(crate) fn on_fork(&mut self, voice: &impl Voice, pager: &mut Pager<K>, now: Nanos, child: K::Child) {
        if let Err(errno) = pager.look_at_fork_policies() {
            voice
                .die(format_args!("what a forked child is to get cannot be read (/proc/self/smaps): {}", errno.name()));
        }
        let (content, regions) = snapshot(pager);
        let mut newborn = Newborn::new(Some(child), content, regions);
        self.copy_frames(voice, pager, &mut newborn);
        if self.held && self.newborn.is_none() {
            // What the disk could not take in time.
            self.fill_from_tier(voice, pager, &mut newborn);
            self.pin(pager, now, &mut newborn);
            self.newborn = Some(newborn);
            self.answered = None;
            voice.tell(BORN);
        } else {
            self.fill_completely(voice, pager, &mut newborn);
        }
    }

    /// Pages between program and device are copied into the child at once, and lost ones are marked in it. It may run and change its mappings meanwhile.
    fn copy_frames(&mut self, voice: &impl Voice, pager: &mut Pager<K>, newborn: &mut Newborn<K::Child>) {
        let mut tries = 0;
        while let Some(&(vpn, frame)) = newborn.content.frames.last() {
            let filled = newborn.faults().copy_run(managed(vpn, 1), frame, Wake::Later);
            if is_for_now(filled.stop) {
                self.try_again(voice, pager, newborn, &mut tries);
                continue;
            }
            // Gone, or not in the copy at all (MADV_DONTFORK), or there already.
            newborn.content.frames.pop();
        }
        while let Some(&vpn) = newborn.content.lost.last() {
            // The kernel copies marks; one that was not made in time is made here.
            if is_for_now(newborn.faults().poison_run(managed(vpn, 1), Wake::Later).stop) {
                self.try_again(voice, pager, newborn, &mut tries);
                continue;
            }
            newborn.content.lost.pop();
        }
    }

    /// The copy changes its mappings: hear of it, and try again.
    fn try_again(
        &mut self,
        voice: &impl Voice,
        pager: &mut Pager<K>,
        newborn: &mut Newborn<K::Child>,
        tries: &mut u32,
    ) {
        *tries += 1;
        if *tries > FILL_TRIES {
            voice.die(format_args!("a copy of the address space cannot be filled"));
        }
        if !self.serve_faults(voice, pager, newborn) {
            thread::yield_now();
        }
    }

    /// The slots of the snapshot stay as they are until the child and its children are done with them: ours by a pipe for each device,
    /// those of earlier parents until the child holds their pipes itself.
    fn pin(&mut self, pager: &mut Pager<K>, now: Nanos, newborn: &mut Newborn<K::Child>) {
        let runs = newborn.content.runs.iter();
        let runs =
            runs.map(|run| (DeviceId(u8::try_from(run.device).expect("few devices")), SlotIdx(run.slot), run.len));
        for (device, slot, len) in runs {
            pager.step(now, Event::SlotsPinned { device, slot, len, pin: true });
            if pager.machine().stores().iter().any(|(id, store)| *id == device && store.is_inherited()) {
                newborn.borrowed.push((device, slot, len));
                continue;
            }
            let known = newborn.leases.iter().position(|(of, _)| *of == device);
            if known.is_none() {
                let (hangup, held) = fd::pipe(0).expect("a pipe can be made");
                newborn.leases.push((device, held));
                self.leases.push(Lease { hangup, device, pins: Vec::new() });
            }
            // The newest one of the device is this child's.
            let lease = self.leases.iter_mut().rfind(|lease| lease.device == device).expect("it was made");
            lease.pins.push((slot, len));
        }
    }

    /// Serve the child until it serves itself. True if something happened.
    fn serve_newborn(&mut self, voice: &impl Voice, pager: &mut Pager<K>, now: Nanos) -> bool {
        let mut newborn = self.newborn.take().expect("the caller looked");
        let mut progress = self.serve_faults(voice, pager, &mut newborn);
        if !newborn.told.is_empty() {
            // What it has is known in a moment.
            self.newborn = Some(newborn);
            return true;
        }
        let mut over = None;
        match (&newborn.call, self.answered.take()) {
            (None, Some(Some(call))) => {
                progress = true;
                match self.hand_over(pager, &newborn, &call) {
                    Ok(()) => newborn.call = Some(call),
                    Err(errno) => {
                        voice.say(format_args!("a forked child's memory cannot be handed over: {}", errno.name()));
                        over = Some(OVER);
                    }
                }
            }
            // In signal mode it cannot live without one.
            (None, Some(None)) if newborn.faults.is_none() => over = Some(OVER),
            (None, Some(None)) => {
                self.fill_completely(voice, pager, &mut newborn);
                over = Some(COMPLETE);
            }
            (None, None) => over = newborn.is_dead().then_some(OVER),
            (Some(call), _) => {
                let mut packet = [0; 16];
                match socket::receive(call, &mut packet, &mut [], false) {
                    Ok(Received::Empty) => {}
                    // It serves itself, or ended before it could take over.
                    Ok(Received::Message { .. } | Received::Closed | Received::Cut) | Err(_) => over = Some(OVER),
                }
            }
        }
        let Some(word) = over else {
            self.newborn = Some(newborn);
            return progress;
        };
        newborn.give_back(pager, now);
        // The child's userfaultfd closes before anybody is told that it needs none.
        drop(newborn);
        voice.tell(word);
        true
    }

    /// The child's faults, from the snapshot, and what it does to its mappings. True if there was something.
    fn serve_faults(&mut self, voice: &impl Voice, pager: &mut Pager<K>, newborn: &mut Newborn<K::Child>) -> bool {
        if newborn.call.is_some() {
            return false;
        }
        newborn.believe();
        // One at a time: as soon as a change has been read, the kernel lets pages through again.
        let Some(Ok(Some(message))) = newborn.faults.as_ref().map(Faults::next_message) else { return false };
        let vpn = |address: usize| (address as u64) >> PAGE_SHIFT;
        match message {
            Message::Fault { address, .. } => {
                self.fill(voice, pager, newborn, vpn(address));
            }
            Message::Remove { start, end } => newborn.content.forget(vpn(start), vpn(end)),
            Message::Unmap { start, end } => {
                newborn.told.push((vpn(start), vpn(end)));
                // Before the copy maps something else there, as far as that can be: its thread has yet to wake.
                (0..BELIEF_TRIES).any(|_| newborn.believe());
            }
            Message::Remap { from, to, len } => newborn.moved(vpn(from), vpn(to), vpn(len)),
            Message::Fork(child) => {
                let mut next = Newborn::new(Some(child), newborn.content.clone(), Vec::new());
                self.copy_frames(voice, pager, &mut next);
                self.fill_completely(voice, pager, &mut next);
            }
            Message::Unknown(_) => {}
        }
        true
    }

    /// Fill one page of a child. False: the kernel cannot at the moment.
    fn fill(&mut self, voice: &impl Voice, pager: &mut Pager<K>, newborn: &Newborn<K::Child>, vpn: u64) -> bool {
        let page = managed(vpn, 1);
        let filled = match (newborn.content.frame(vpn), newborn.content.slot(vpn)) {
            (Some(frame), _) => newborn.faults().copy_run(page, frame, Wake::Now),
            (None, None) => newborn.faults().zeropage_run(page, Wake::Now),
            (None, Some(run)) => {
                let device = DeviceId(u8::try_from(run.device).expect("few devices"));
                if pager.machine_mut().read_now(device, SlotIdx(run.slot), self.doorbells.bounce()) {
                    newborn.faults().copy_run(page, self.doorbells.bounce(), Wake::Now)
                } else {
                    voice.say(format_args!("a page of a forked child cannot be read back"));
                    newborn.faults().poison_run(page, Wake::Now)
                }
            }
        };
        match filled.stop {
            None | Some(Stop::Gone) => true,
            // Present already; or it cannot be done now: the child's thread asks again.
            stop @ Some(_) => {
                let _ = newborn.faults().wake(page);
                !is_for_now(stop)
            }
        }
    }

    /// Fill the pages that no device holds yet: the child reads devices only.
    fn fill_from_tier(&mut self, voice: &impl Voice, pager: &mut Pager<K>, newborn: &mut Newborn<K::Child>) {
        let mut pages = Vec::new();
        for &SlotRun { vpn, len, device, slot, .. } in &newborn.content.runs {
            let device = DeviceId(u8::try_from(device).expect("few devices"));
            let is_only_there = |ahead: &u32| pager.machine().is_only_in_tier(device, SlotIdx(slot + ahead));
            pages.extend((0..len).filter(is_only_there).map(|ahead| vpn + u64::from(ahead)));
        }
        let mut tries = 0;
        for vpn in pages {
            while !self.fill(voice, pager, newborn, vpn) {
                self.try_again(voice, pager, newborn, &mut tries);
            }
        }
    }

    /// Fill everything into a copy of the address space that will have no agent, and let it go.
    fn fill_completely(&mut self, voice: &impl Voice, pager: &mut Pager<K>, newborn: &mut Newborn<K::Child>) {
        let mut tries = 0;
        while let Some(run) = newborn.content.runs.last() {
            let vpn = run.vpn + u64::from(run.len) - 1;
            if self.fill(voice, pager, newborn, vpn) {
                newborn.content.drop_last_page();
            } else {
                self.try_again(voice, pager, newborn, &mut tries);
            }
        }
        // Who waits for a page asks the kernel when the descriptor is closed; who waits for us to read goes on.
        while self.serve_faults(voice, pager, newborn) {}
    }

    fn end_leases(&mut self, pager: &mut Pager<K>, now: Nanos) {
        let mut index = 0;
        while index < self.leases.len() {
            let mut poll = [PollFd::new(&self.leases[index].hangup, 0)];
            let over = fd::poll(&mut poll, Some(0)).is_ok() && poll[0].seen() != 0;
            if !over {
                index += 1;
                continue;
            }
            let lease = self.leases.swap_remove(index);
            let device = lease.device;
            for (slot, len) in lease.pins {
                pager.step(now, Event::SlotsPinned { device, slot, len, pin: false });
            }
        }
    }
}

/// True if a page cannot be filled at the moment: the copy changes its mappings, or there is no memory.
fn is_for_now(stop: Option<Stop>) -> bool {
    matches!(stop, Some(Stop::Again | Stop::NoMemory))
}

/// What forks of this process need: nothing is announced yet.
pub(crate) fn begin(agent: &Agent, pager: &Pager) -> Forks {
    match Doorbells::map(pager.machine().space()) {
        Ok(doorbells) => Forks::new(doorbells, agent.hello().signal_mode.then_some(&seen::TALK)),
        Err(errno) => die(agent.supervisor(), format_args!("forks cannot be prepared: {}", errno.name())),
    }
}

impl Forks {
    /// Memory is managed from now on: forks are announced, and children note what they ask for.
    pub(crate) fn publish(&self, entry: &Entry) {
        asked::publish(entry);
        DOORBELLS.store(self.doorbells().start(), Ordering::Release);
    }
}
