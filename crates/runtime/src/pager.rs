//! One process's pager: the driver over the live machine, and what turns kernel messages into events.
//!
//! The same code serves both fault modes and both hosts (the agent under `pagetide run`, a pool of the library): a fault that
//! is known goes to [`Pager::on_fault`], whoever caught it.
//!
//! Order matters in one place: the program's munmap, mremap and madvise wait until their event has been read, and until then
//! the kernel answers every move with EAGAIN. Events are therefore read and applied before anything is tried again, and no
//! move can hit an address whose meaning has changed.
//!
//! Invariants: one thread at a time (the host holds the lock); every fault message is answered, parked in the core, or ends
//! the program.

mod adopt;
mod measure;

use pagetide_core::Core;
use pagetide_core::event::Event;
use pagetide_core::page::{Flight, PageState};
use pagetide_core::types::{Access, Nanos, PageIdx, PageRange, TaskId};
use pagetide_driver::record::RecordWriter;
use pagetide_driver::{Driver, Recorder};
use pagetide_kernel::{AddressSpace, Linux, Message};
use pagetide_sys::pagemap::Run;

use crate::fork::asked::Notes;
use crate::machine::{Answered, LiveMachine, Search};
use crate::origins;
use crate::patience::Patience;
use crate::setup::SHARE_PAGES_MIN;
use crate::space::recent::Recent;
use crate::space::unpaged::Unpaged;
use crate::space::{Change, PAGE_SHIFT};
use crate::tier::Tier;

/// Events kept for the dump after a broken invariant.
const RECORDED_EVENTS: usize = 256;
/// How long background work waits for the next fault.
const QUIET_NS: Nanos = 50_000;
/// The same, where the threads that fault do it while they wait.
const QUIET_BESIDE_NS: Nanos = 1_000_000;
/// Frames beyond the budget that are given back together: 256 KiB at most.
const SURPLUS_PAGES: u32 = 64;
/// Of a small budget, one part in so many.
const SURPLUS_SHARE: u32 = 64;
/// Page indices kept free behind a heap, which grows in small steps: 16 GiB.
const HEAP_SLACK_PAGES: u32 = 1 << 22;
/// Pages beyond the budget for a fault that memory waits for.
const LENT_PAGES: u32 = 16;
/// A page that the program asked to discard may still be there for a moment; within this time it is not looked for.
const REMOVE_QUIET_NS: Nanos = 1_000_000_000;

/// Time between two looks for disk space that others need.
const GIVE_BACK_NS: Nanos = 100_000_000;

/// The pager, over an address space.
#[derive(Debug)]
pub(crate) struct Pager<K: AddressSpace = Linux> {
    driver: Driver<LiveMachine<K>>,
    runs: Vec<Run>,
    floor_bytes: u64,
    last_fault: Nanos,
    patience: Patience,
    overhead: Overhead,
    recent: Recent,
    unpaged: Unpaged,
    /// What the core and the tier may have together.
    budget_pages: u32,
    /// A fork is under way: the core may have just this.
    fork_pages: Option<u32>,
    /// The budget that has room for a page that the thread that makes pages private waits for; 0: it waits for none.
    lent_budget: u32,
    has_grown: bool,
    /// When it is looked again for room to give back.
    next_give_back: Nanos,
    /// The threads that fault call `pump_for`.
    is_beside: bool,
    /// What this process, a forked child, may still note for its maker.
    notes: Option<Notes>,
}

/// Memory beside the program's own and its frames, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Overhead {
    /// Our tables, stacks and buffers: part of the process's anonymous memory.
    pub(crate) private: u64,
    /// Our tables of checksums, which are shared memory.
    pub(crate) sums: u64,
    /// Page tables of the whole process.
    pub(crate) page_tables: u64,
}

/// A thread's touch of a missing page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) address: u64,
    pub(crate) access: Access,
    /// The thread, if the kernel says; else 0. For those who watch.
    pub(crate) thread: u32,
}

/// What a message leaves for the host to do.
#[derive(Debug)]
pub(crate) enum Followup<C> {
    /// Nothing.
    None,
    /// A thread faults: see [`Pager::on_fault`].
    Fault(Fault),
    /// A forked child's address space.
    Forked(C),
}

/// What became of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultAnswer {
    /// It is answered, or the core answers it.
    Taken,
    /// No region covers the address: the maps must be read again.
    Unknown,
    /// Not before the kernel's events have been read.
    Later,
}

/// Are more pages about to be written, and is there time to wait for them?
fn gathers(core: &Core, now: Nanos) -> bool {
    core.can_wait() && core.deadline().is_some_and(|deadline| deadline <= now)
}

impl<K: AddressSpace> Pager<K> {
    pub(crate) fn new(core: Core, mut machine: LiveMachine<K>, floor_bytes: u64, record: Option<RecordWriter>) -> Self {
        let budget_pages = core.budget();
        machine.limit_requests(budget_pages);
        Self {
            driver: Driver::new(core, machine, Recorder::new(RECORDED_EVENTS, record)),
            runs: vec![Run::default(); 512],
            floor_bytes,
            last_fault: 0,
            patience: Patience::new(),
            overhead: Overhead::default(),
            recent: Recent::new(REMOVE_QUIET_NS),
            unpaged: Unpaged::default(),
            budget_pages,
            fork_pages: None,
            lent_budget: 0,
            has_grown: false,
            next_give_back: 0,
            is_beside: false,
            notes: None,
        }
    }

    pub(crate) const fn core(&self) -> &Core {
        self.driver.core()
    }

    /// For what no decision depends on.
    pub(crate) const fn core_mut(&mut self) -> &mut Core {
        self.driver.core_mut()
    }

    pub(crate) const fn machine(&self) -> &LiveMachine<K> {
        self.driver.machine()
    }

    pub(crate) const fn machine_mut(&mut self) -> &mut LiveMachine<K> {
        self.driver.machine_mut()
    }

    /// Never manage these addresses.
    pub(crate) fn exclude(&mut self, start: u64, end: u64) {
        self.machine_mut().mappings.note_before(start, end);
    }

    /// The last `most` events that the core was told, oldest first.
    pub(crate) fn last_events(&self, most: usize) -> impl Iterator<Item = &(Nanos, Event)> {
        let recorder = self.driver.recorder();
        recorder.last().skip(recorder.last().count().saturating_sub(most))
    }

    /// Feed one event.
    pub(crate) fn step(&mut self, now: Nanos, event: Event) {
        self.driver.step(now, event);
    }

    /// Apply one message of the kernel, or say what the host has to do about it.
    pub(crate) fn on_message(&mut self, now: Nanos, message: Message<K::Child>) -> Followup<K::Child> {
        match message {
            Message::Fault { address, write, thread } => {
                let access = if write { Access::Write } else { Access::Read };
                Followup::Fault(Fault { address: address as u64, access, thread })
            }
            Message::Fork(child) => Followup::Forked(child),
            Message::Remap { from, to, len } => {
                assert!(
                    !origins::meet(from, from + len),
                    "the program moves memory by instructions of its own that was a file's"
                );
                self.on_remap(now, from as u64, to as u64, len as u64);
                Followup::None
            }
            Message::Remove { start, end } => {
                assert!(
                    !origins::meet(start, end),
                    "the program discards memory by instructions of its own that was a file's"
                );
                self.discard(now, start as u64, end as u64);
                Followup::None
            }
            Message::Unmap { start, end } => {
                self.on_told_unmap(now, start, end);
                Followup::None
            }
            Message::Unknown(event) => panic!("the userfaultfd told of an event that was not asked for: {event}"),
        }
    }

    /// Is this page managed, and not where the program has it?
    pub(crate) fn is_out(&self, vpn: u64) -> bool {
        let page = self.machine().mappings.page(vpn);
        page.is_some_and(|page| self.core().page(page).state != PageState::Mapped)
    }

    /// A thread touched a missing page.
    pub(crate) fn on_fault(&mut self, now: Nanos, fault: Fault, task: TaskId) -> FaultAnswer {
        let Fault { address, access, thread } = fault;
        let vpn = address >> PAGE_SHIFT;
        let Some(page) = self.machine().mappings.page(vpn) else { return FaultAnswer::Unknown };
        let view = self.core().page(page);
        if view.state == PageState::Mapped && view.flight == Flight::None {
            return self.fill_vanished(vpn);
        }
        if view.state == PageState::Untouched
            && view.flight == Flight::None
            && self.machine().is_being_made_private(vpn)
        {
            return self.fill_for_unsharer(now, page, vpn);
        }
        if view.flight == Flight::Unmapping && self.machine().is_gone_before_it_left(page, vpn) {
            // Whoever makes pages private may be the one that waits here: its order ends with this.
            let range = PageRange::one(page);
            self.driver.drain(now, |machine, _core, answers| machine.forget_deferred(range, answers));
        }
        self.patience.on_fault(self.machine().answered_at(), now);
        self.last_fault = now;
        if view.state == PageState::Swapped && self.notes.as_mut().is_some_and(|notes| !notes.note(vpn)) {
            self.notes = None;
        }
        self.machine_mut().note_fault(page, now, thread);
        self.driver.step(now, Event::Fault { page, access, task });
        FaultAnswer::Taken
    }

    /// What this process asks for first is noted for the one that it was forked from.
    pub(crate) fn note_for_maker(&mut self, notes: Option<Notes>) {
        self.notes = notes;
    }

    /// A child has asked for this page, which it has from here: as if a thread had used it here, for which nobody waits.
    pub(crate) fn bring_for_child(&mut self, now: Nanos, vpn: u64) {
        let Some(page) = self.machine().mappings.page(vpn) else { return };
        let view = self.core().page(page);
        if view.state == PageState::Swapped && view.flight == Flight::None {
            self.driver.step(now, Event::Fault { page, access: Access::Read, task: TaskId(0) });
        }
    }

    /// Another page may have come to the address of one that is to be made private, and have left memory; or one was filled for the thread
    /// that does so, left before the thread went on, and was found empty. The thread waits for it then, and all memory that could make
    /// room may wait for that thread: the budget is exceeded by this page, and by those that others waited for before.
    fn tend_loan(&mut self, now: Nanos) {
        let (core, mappings) = (self.core(), &self.machine().mappings);
        let is_out = |vpn: u64| {
            let Some(page) = mappings.page(vpn) else { return false };
            let view = core.page(page);
            // An empty page for which nobody waits is filled at the fault.
            let is_awaited = || view.state == PageState::Untouched && self.machine().is_awaited(page);
            view.flight == Flight::None && (view.state == PageState::Swapped || is_awaited())
        };
        let lent = match self.machine().first_private() {
            None => 0,
            Some((first, end)) if core.charged() >= core.budget() && (first..end).any(is_out) => {
                core.charged() + LENT_PAGES
            }
            Some(_) => self.lent_budget,
        };
        self.lend(now, lent);
    }

    fn lend(&mut self, now: Nanos, lent: u32) {
        if lent != self.lent_budget {
            self.lent_budget = lent;
            let granted = self.machine().tier().map_or(0, Tier::granted_pages);
            self.set_core_budget(now, granted);
        }
    }

    /// A fault on a page that is mapped as far as we know: usually another thread's fault on it was answered a moment ago.
    /// Otherwise the kernel freed it at the program's own wish (a MADV_FREE that came true, a MADV_DONTNEED that crossed our
    /// filling): it reads as zero.
    fn fill_vanished(&mut self, vpn: u64) -> FaultAnswer {
        if self.machine_mut().zero_fill_now(vpn) { FaultAnswer::Taken } else { FaultAnswer::Later }
    }

    /// A page that was given back after it was asked to be made private. Who waits for it may be the thread that does so, and
    /// it may be what all memory waits for that could make room: the page is filled first and charged then. Nothing else may be there to
    /// leave for it, and it would leave before the thread went on, each time: the budget is exceeded for it.
    fn fill_for_unsharer(&mut self, now: Nanos, page: PageIdx, vpn: u64) -> FaultAnswer {
        let answer = self.fill_vanished(vpn);
        if answer == FaultAnswer::Taken {
            let core = self.core();
            if core.charged() >= core.budget() {
                self.lend(now, core.charged() + LENT_PAGES);
            }
            self.driver.step(now, Event::Adopted { range: PageRange::one(page) });
        }
        answer
    }

    /// A thread waits for a page that no region covers: it is registered, and the next look takes what is around it.
    pub(crate) fn note_unknown(&mut self, address: u64) {
        let vpn = address >> PAGE_SHIFT;
        self.machine_mut().mappings.note_registered(vpn, vpn + 1);
    }

    /// Fill a page that no region covers, in a mapping that is registered: only a mapping that grew beyond what we know.
    pub(crate) fn fill_unknown(&mut self, address: u64) -> FaultAnswer {
        self.fill_vanished(address >> PAGE_SHIFT)
    }

    fn on_remap(&mut self, now: Nanos, from: u64, to: u64, len: u64) {
        let (from, to, pages) = (from >> PAGE_SHIFT, to >> PAGE_SHIFT, len >> PAGE_SHIFT);
        let mut changes = Vec::with_capacity(4);
        let changed_to = self.machine_mut().mappings.moved(from, to, pages, |change| changes.push(change));
        self.forget_all(now, &changes);
        self.machine().wake_gone(from, pages);
        self.machine().wake_gone(to, changed_to - to);
    }

    /// Messages have been read. Where no change is under way any more, all is told.
    pub(crate) fn end_messages(&mut self, now: Nanos) {
        if self.machine().mappings.awaits() && !self.machine().is_changing() {
            self.end_awaiting(now);
        }
    }

    /// No change was under way at some moment since the last message: all is told.
    fn end_awaiting(&mut self, now: Nanos) {
        let mut changes = Vec::new();
        self.machine_mut().mappings.end_awaiting(|change| changes.push(change));
        self.forget_all(now, &changes);
    }

    /// The kernel has told of the end of `[start, end)`. What is registered there even so is still there: the call failed, or others came.
    fn on_told_unmap(&mut self, now: Nanos, start: usize, end: usize) {
        let (vpn, behind) = ((start >> PAGE_SHIFT) as u64, (end >> PAGE_SHIFT) as u64);
        let mut changes = Vec::with_capacity(8);
        let mut kept = Vec::new();
        self.driver.drain(now, |machine, core, _answers| {
            kept = machine.told_unmapped(core, vpn, behind, |change| changes.push(change));
        });
        self.forget_all(now, &changes);
        kept.sort_unstable();
        let mut at = vpn;
        for (from, to) in kept.into_iter().chain([(behind, behind)]) {
            let [gone, until] = [at, from].map(|vpn| usize::try_from(vpn << PAGE_SHIFT).expect("addresses are 64 bit"));
            origins::forget(gone, until);
            at = to;
        }
        self.machine().wake_gone(vpn, behind - vpn);
    }

    /// `[start, end)` is not managed any more; it is unmapped, or will be before anything else happens.
    pub(crate) fn on_unmap(&mut self, now: Nanos, start: u64, end: u64) {
        let (vpn, end) = (start >> PAGE_SHIFT, end >> PAGE_SHIFT);
        let mut changes = Vec::with_capacity(8);
        self.machine_mut().mappings.remove(vpn, end, |from, _| from, |change| changes.push(change));
        self.forget_all(now, &changes);
        self.machine().wake_gone(vpn, end - vpn);
    }

    /// These addresses are not managed any more, and their contents are gone.
    ///
    /// The event has been read, so the kernel refuses no move any longer: nothing may be carried out for these addresses. The
    /// table has forgotten them, now the core does, then the orders that waited (their page indices will be used again).
    fn forget_all(&mut self, now: Nanos, changes: &[Change]) {
        for &change in changes {
            self.tell(now, change);
        }
        for &change in changes {
            if let Change::Removed { range, .. } = change {
                self.driver.drain(now, |machine, _core, answers| machine.forget_deferred(range, answers));
            }
        }
    }

    fn tell(&mut self, now: Nanos, change: Change) {
        let event = match change {
            Change::Split { region, at, upper } => Event::RegionSplit { region, at, upper },
            Change::Removed { region, .. } => Event::RegionRemoved { region },
        };
        self.driver.step(now, event);
    }

    /// The contents of these addresses are gone; the mapping stays. The core first: what it is told in answer to an order that
    /// waited must not bring the old content back.
    pub(crate) fn discard(&mut self, now: Nanos, start: u64, end: u64) {
        let (mut vpn, end) = (start >> PAGE_SHIFT, end >> PAGE_SHIFT);
        self.recent.note(now, vpn, end);
        while let Some((range, behind)) = self.machine().mappings.first_piece(vpn, end) {
            self.driver.step(now, Event::Discarded { range });
            self.driver.drain(now, |machine, _core, answers| machine.forget_deferred(range, answers));
            vpn = behind;
        }
    }

    /// Completions, orders that waited, new requests, and one step of what the core has to do at its deadline. True if there is
    /// more to do at once.
    pub(crate) fn pump(&mut self, now: Nanos) -> bool {
        if self.machine().mappings.has_doubts() {
            self.end_messages(now);
        }
        self.grow_stores(now);
        self.driver.drain(now, |machine, core, answers| {
            machine.reap(answers);
            machine.retry_deferred(core, answers);
            machine.begin_requests(gathers(core, now), answers);
        });
        self.tend_tier(now);
        self.tend_loan(now);
        // Threads that serve themselves do the rest while they wait.
        if !self.is_beside || now >= self.quiet_until() {
            self.release_surplus();
        }
        let is_time = !self.is_beside && self.machine().is_reading();
        let is_more = self.step_of_core(now, is_time);
        if is_more {
            self.driver.drain(now, |machine, core, answers| machine.begin_requests(gathers(core, now), answers));
        }
        is_more
    }

    /// The part of it that a thread does that waits for this page. All requests but those for the page are for the next `pump`.
    pub(crate) fn pump_for(&mut self, now: Nanos, page: PageIdx) -> bool {
        self.driver.drain(now, |machine, core, answers| {
            machine.reap(answers);
            machine.retry_deferred(core, answers);
            machine.begin_read_of(page, answers);
        });
        if self.machine().has_unsubmitted() {
            // It is passed on first, without the lock: the device works during all that follows.
            return true;
        }
        // With a tier few faults wait for a device, so that nobody else may have a turn for long.
        self.tend_tier(now);
        if self.core().can_wait() && self.core().page(page).state == PageState::Mapped {
            // The rest can be done when the program waits again.
            return false;
        }
        self.tend_loan(now);
        self.release_surplus();
        let is_more = self.step_of_core(now, self.machine().is_reading());
        if is_more {
            self.driver.drain(now, |machine, _core, answers| machine.begin_read_of(page, answers));
        }
        is_more
    }

    /// Requests wait to begin, and are worth it now.
    pub(crate) fn has_waiting_requests(&self, now: Nanos) -> bool {
        self.machine().has_waiting_requests(gathers(self.core(), now))
    }

    /// One step of what the core has to do at its deadline. False: nothing now. `is_time`: the program waits for a read meanwhile.
    fn step_of_core(&mut self, now: Nanos, is_time: bool) -> bool {
        if self.core().deadline().is_none_or(|deadline| deadline > now) {
            return false;
        }
        // Taking pages out interrupts the CPUs that run the program. While it waits for a read there is time for that; when it has
        // just been answered, it will soon wait again.
        if self.core().can_wait() && now < self.quiet_until() && !is_time {
            return false;
        }
        if !self.is_beside {
            // The devices work meanwhile.
            self.machine_mut().flush();
        }
        self.driver.step(now, Event::Timeout);
        true
    }

    /// Begin the writes that waited for more.
    pub(crate) fn begin_writes(&mut self, now: Nanos) {
        self.driver.drain(now, |machine, _core, answers| machine.begin_requests(false, answers));
    }

    /// Until then background work may wait for the next fault.
    pub(crate) const fn quiet_until(&self) -> Nanos {
        self.last_fault + if self.is_beside { QUIET_BESIDE_NS } else { QUIET_NS }
    }

    /// The threads that fault call [`Pager::pump_for`] from now on.
    pub(crate) const fn serve_beside(&mut self) {
        self.is_beside = true;
    }

    /// Is it worth looking for the end of a read, or for the next fault, without sleeping? `is_free`: does every thread that can run
    /// have a CPU?
    pub(crate) fn is_worth_looking(&mut self, now: Nanos, is_free: impl FnOnce() -> bool) -> bool {
        let machine = self.driver.machine();
        let waits = machine.oldest_fault().map(|_| self.last_fault);
        self.patience.is_worth(now, machine.answered_at(), waits, is_free)
    }

    /// A CPU was free when it was last asked whether it is worth looking.
    pub(crate) const fn saw_free_cpu(&self) -> bool {
        self.patience.saw_free_cpu()
    }

    /// True if slots were backed since the last call.
    pub(crate) const fn take_grown(&mut self) -> bool {
        std::mem::replace(&mut self.has_grown, false)
    }

    /// Back more slots before the core runs out of the ones it has.
    pub(crate) fn grow_stores(&mut self, now: Nanos) {
        loop {
            let core = self.core();
            let leaving = core.charged().saturating_sub(core.budget());
            let mut grown = None;
            let floor_bytes = self.floor_bytes;
            self.driver.drain(now, |machine, core, _answers| {
                grown = machine.grow_if_needed(core, leaving, floor_bytes);
            });
            let Some(event) = grown else { return };
            self.has_grown = true;
            self.driver.step(now, event);
        }
    }

    /// These places are short of room, a bit for each: keep little ahead there, and give back what nobody uses.
    pub(crate) fn follow_short_places(&mut self, now: Nanos, places: u64) {
        let is_new = self.machine_mut().set_short_places(places);
        if places == 0 || (!is_new && now < self.next_give_back) {
            return;
        }
        self.next_give_back = now + GIVE_BACK_NS;
        let mut search = Search::default();
        loop {
            let leaving = self.core().charged().saturating_sub(self.core().budget());
            let mut given = None;
            self.driver.drain(now, |machine, core, _answers| {
                given = machine.give_back_next(core, leaving, &mut search);
            });
            let Some(event) = given else { return };
            self.driver.step(now, event);
        }
    }

    /// Core and tier together may have this many pages; frames that nobody needs go back to the kernel if they no longer fit.
    pub(crate) fn set_budget(&mut self, now: Nanos, pages: u32) {
        (self.budget_pages, self.fork_pages) = (pages, None);
        let granted = self.machine().tier().map_or(0, Tier::granted_pages);
        self.set_core_budget(now, granted);
        self.release_surplus();
    }

    /// For a fork: the core may charge this many pages, and what is compressed goes to the disk, where a child finds it. Until the
    /// next budget.
    pub(crate) fn shrink_for_fork(&mut self, now: Nanos, pages: u32) {
        self.fork_pages = Some(pages);
        self.set_core_budget(now, 0);
        self.release_all_surplus();
        self.machine_mut().flush_tier(true);
    }

    fn set_core_budget(&mut self, now: Nanos, granted: u32) {
        let least = SHARE_PAGES_MIN.min(self.budget_pages);
        let pages = self.fork_pages.unwrap_or_else(|| self.budget_pages.saturating_sub(granted).max(least));
        let pages = pages.max(self.lent_budget);
        if pages != self.core().budget() {
            self.machine_mut().limit_requests(pages);
            self.driver.step(now, Event::BudgetChanged { pages });
        }
    }

    /// Let the tier do its work, and have the share of the budget that is its.
    fn tend_tier(&mut self, now: Nanos) {
        if self.machine().tier().is_none() {
            return;
        }
        self.driver.drain(now, |machine, core, _answers| machine.tend_tier(core, now));
        let (budget, before) = (self.budget_pages, self.machine().tier().map_or(0, Tier::granted_pages));
        // What is not charged is spare frames, which go back to the kernel when the core's budget gets smaller.
        let free = self.core().budget().saturating_sub(self.core().charged());
        let uses = self.core().kept_worth();
        let granted = self.machine_mut().adjust_tier(budget, free, uses);
        if granted != before {
            self.set_core_budget(now, granted);
            self.release_all_surplus();
        }
    }

    /// Spare frames beyond the budget go back to the kernel, many at a time.
    fn release_surplus(&mut self) {
        self.release_surplus_beyond(SURPLUS_PAGES.min(self.core().budget() / SURPLUS_SHARE));
    }

    fn release_all_surplus(&mut self) {
        self.release_surplus_beyond(0);
    }

    fn release_surplus_beyond(&mut self, slack: u32) {
        let (charged, budget) = (self.core().charged(), self.core().budget());
        let spare = self.machine().spare_frames();
        let is_lending = self.machine().lends();
        let surplus = if is_lending { spare } else { (charged + spare).saturating_sub(budget.max(charged)) };
        if surplus > slack {
            self.machine_mut().release_spare(surplus);
        }
    }

    /// Pages whose memory we account for: those that the core has charged, spare frames, and the tier's.
    pub(crate) fn known_pages(&self) -> u64 {
        u64::from(self.core().charged())
            + u64::from(self.machine().spare_frames())
            + u64::from(self.machine().tier_pages())
    }

    /// The faults that were answered since the last call.
    pub(crate) fn take_answered(&mut self, each: impl FnMut(Answered)) {
        self.machine_mut().take_answered(each);
    }

    /// True if a page that is paged out is in memory, compressed.
    pub(crate) fn is_compressed(&self, page: PageIdx) -> bool {
        let Some(tier) = self.machine().tier() else { return false };
        self.core().page(page).slot.is_some_and(|(device, slot)| tier.holds(device, slot))
    }
}
