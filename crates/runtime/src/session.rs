//! One pager, and what drives it: whoever catches its faults.
//!
//! The agent under `pagetide run` (a thread that reads messages), a pool of the library (threads that fault) and the swarm over the
//! modelled kernel run this; what differs between them is a [`Host`], and who sleeps where. A session holds the pager with its
//! engine, what is known of the time of its next work, the latencies, the size it may have, and the commands that change it while
//! it runs (`command`, `devices`).
//!
//! A host's turn: read messages, answer faults, `work`, `mark_lost`, and a `look_at_memory` now and then. A host whose threads fault
//! themselves hands each fault to the pager, and does the rest alike.
//!
//! Invariants: one thread at a time; a change of the address space is applied before anything else is done; a command takes
//! effect between two turns, and is answered.

pub(crate) mod command;
mod devices;
mod page_out;

use std::collections::VecDeque;

use pagetide_core::types::{Access, Nanos, PageIdx, TaskId};
use pagetide_kernel::{AddressSpace, Linux};
use pagetide_sys::Errno;
use pagetide_sys::fd::Fd;

use crate::control::{LATENCY_BUCKETS, latency_bucket};
use crate::heat::{Heat, Look};
use crate::machine::Answered;
use crate::pager::{Fault, FaultAnswer, Followup, Pager};
use crate::session::command::{Answer, Command, PlaceReport, Report};
use crate::session::devices::Devices;
use crate::session::page_out::PageOut;
use crate::store::SwapFile;

/// Messages read in one turn at most.
const MESSAGES: usize = 1024;
/// Faults noted before the list grows: threads of the program that fault at once.
const FAULTS: usize = 1024;
/// Time between two searches of all managed memory for pages that are there without our knowing.
const RECONCILE_NS: Nanos = 50_000_000;
/// A look at a long list of mappings goes on for so long at a time, unless so many times what may be resident unseen is.
const LOOK_NS: Nanos = 500_000;
const UNSEEN_MUCH: u64 = 16;
/// The knob that says what the statistics of readahead learn of a swapoff.
const SWAPOFF: &str = "swapoff";
/// Time between two tries of what the kernel refused for the moment, and two looks at a newborn child.
pub(crate) const POLL_NS: Nanos = 50_000;

/// Who runs a session: what differs between the sources of faults.
pub(crate) trait Host<K: AddressSpace> {
    /// Hand the kernel's list of mappings to the pager: all of it, or what comes next of it until a time. True: the list has ended.
    fn look(&mut self, pager: &mut Pager<K>, now: Nanos, until: Option<Nanos>) -> bool;
    /// True if a fault at this address is the host's own business, and was seen to.
    fn takes(&mut self, _pager: &mut Pager<K>, _now: Nanos, _address: u64) -> bool {
        false
    }
    /// The address space was copied.
    fn forked(&mut self, pager: &mut Pager<K>, now: Nanos, child: K::Child);
}

/// What the process keeps, as its kernel tells it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    pub(crate) mappings: MappingsMark,
    /// Anonymous memory.
    pub(crate) anon_pages: u64,
}

/// What changes when mappings do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MappingsMark {
    /// What is mapped.
    pub(crate) size_pages: u64,
    /// How often threads have said that they map much.
    pub(crate) asked: u32,
}

/// An order that was not carried out yet.
#[derive(Debug)]
struct Order {
    number: u64,
    command: Command,
    file: Option<SwapFile>,
}

/// The session.
#[derive(Debug)]
pub(crate) struct Session<K: AddressSpace = Linux> {
    pub(crate) pager: Pager<K>,
    devices: Devices,
    /// Faults that were read and are not answered or with the core yet.
    faults: Vec<Fault>,
    /// Faults by latency.
    latency: [u64; LATENCY_BUCKETS],
    orders: VecDeque<Order>,
    answers: VecDeque<(u64, Answer)>,
    /// The last look that has ended.
    looked: MappingsMark,
    /// The look that is under way, if any.
    looking: Option<MappingsMark>,
    /// Pages that are there and that the pager does not know.
    unseen_pages: u64,
    /// As many as the last look at the list of mappings has left, or fewer. Not as many as there were last: what comes slowly would
    /// never be looked at.
    unseen_base: u64,
    /// So many more of them, and the list of mappings is read again.
    unseen_slack: u64,
    next_reconcile: Nanos,
    /// What the pager may have unless reclaim is paused.
    budget_pages: u32,
    is_paused: bool,
    page_out: Option<PageOut>,
    /// What the knob `swapoff` says when the drains that have a mode of their own have ended.
    swapoff_setting: Option<String>,
    look: Look,
}

impl<K: AddressSpace> Session<K> {
    /// A session over a pager that has its devices. `unseen_slack`: pages that may be resident unseen before the list of mappings is
    /// read again.
    pub(crate) fn new(pager: Pager<K>, floor_bytes: u64, unseen_slack: u64) -> Self {
        let budget_pages = pager.core().budget();
        Self {
            pager,
            devices: Devices::new(floor_bytes),
            faults: Vec::with_capacity(FAULTS),
            latency: [0; LATENCY_BUCKETS],
            orders: VecDeque::new(),
            answers: VecDeque::new(),
            looked: MappingsMark::default(),
            looking: None,
            unseen_pages: 0,
            unseen_base: 0,
            unseen_slack,
            next_reconcile: 0,
            budget_pages,
            is_paused: false,
            page_out: None,
            swapoff_setting: None,
            look: Look::default(),
        }
    }

    /// Read messages, one at a time: as soon as a change of the address space has been read, the kernel lets moves through again,
    /// and none may be made by a table that does not know of the change yet.
    ///
    /// The kernel hands out faults before changes, so faults are only noted here: threads that are sent back to fault again would
    /// keep the changes from being read for ever.
    pub(crate) fn read_messages(&mut self, now: Nanos, host: &mut impl Host<K>) -> Result<(), Errno> {
        for _ in 0..MESSAGES {
            let Some(message) = self.pager.machine().space().next_message()? else { break };
            match self.pager.on_message(now, message) {
                Followup::None => {}
                Followup::Fault(fault) => self.faults.push(fault),
                Followup::Forked(child) => host.forked(&mut self.pager, now, child),
            }
        }
        self.pager.end_messages(now);
        Ok(())
    }

    /// A fault that the kernel did not tell of.
    pub(crate) fn note_fault(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    /// True if a fault on this address is not with the core yet.
    pub(crate) fn has_unanswered(&self, address: u64) -> bool {
        self.faults.iter().any(|fault| fault.address == address)
    }

    /// Answer the faults that were read. One in a registered mapping that no region covers: it grew in place since the maps were
    /// read, and is managed from then on, however little that is. What cannot be answered yet is kept.
    pub(crate) fn answer_faults(&mut self, now: Nanos, host: &mut impl Host<K>) {
        if self.faults.is_empty() {
            return;
        }
        let mut faults = std::mem::take(&mut self.faults);
        let mut has_looked = false;
        faults.retain(|&fault| {
            if host.takes(&mut self.pager, now, fault.address) {
                return false;
            }
            let mut answer = self.pager.on_fault(now, fault, TaskId(0));
            if answer == FaultAnswer::Unknown {
                if !has_looked {
                    self.pager.note_unknown(fault.address);
                    host.look(&mut self.pager, now, None);
                    has_looked = true;
                }
                answer = self.pager.on_fault(now, fault, TaskId(0));
            }
            if answer == FaultAnswer::Unknown {
                answer = self.pager.fill_unknown(fault.address);
            }
            answer == FaultAnswer::Later
        });
        self.faults = faults;
    }

    /// Bring these pages in, by their numbers in the address space, as far as they are managed.
    pub(crate) fn bring(&mut self, now: Nanos, vpns: std::ops::Range<usize>, access: Access) {
        for vpn in vpns {
            let fault = Fault { address: (vpn as u64) << crate::space::PAGE_SHIFT, access, thread: 0 };
            if self.pager.is_out(vpn as u64) {
                // Who needs them asks again for what does not come.
                let _ = self.pager.on_fault(now, fault, TaskId(0));
            }
        }
    }

    /// Commands, places that are being drained, what ended, what waits to begin, and one step of what the core has to do. True if
    /// there is more at once. Not in a signal handler, where `pump` of the pager does the part that allocates nothing.
    pub(crate) fn work(&mut self, now: Nanos) -> bool {
        while let Some(order) = self.orders.pop_front() {
            let answer = self.carry_out(now, order.command, order.file);
            self.answers.push_back((order.number, answer));
        }
        self.tend_page_out(now);
        let is_draining = self.devices.serve(&mut self.pager, now);
        if !self.devices.are_draining()
            && let Some(mode) = self.swapoff_setting.take()
        {
            self.set_knob(now, SWAPOFF, &mode);
        }
        self.pager.pump(now) || is_draining
    }

    /// Mark lost pages, after `tell` was called with their number: the program may end of it. What cannot be marked at the moment
    /// comes again.
    pub(crate) fn mark_lost(&mut self, tell: impl FnOnce(u32)) {
        let machine = self.pager.machine_mut();
        let told: u32 = machine.outbox.poisoned.iter().map(|range| range.len).sum();
        for _ in 0..machine.outbox.unmarked.len() {
            let range = machine.outbox.unmarked.remove(0);
            machine.poison(range);
        }
        if told == 0 {
            return;
        }
        tell(told);
        while let Some(range) = machine.outbox.poisoned.pop() {
            machine.poison(range);
        }
    }

    /// True if `take_failed_fault` has something to tell.
    pub(crate) fn has_failed_fault(&self) -> bool {
        self.pager.machine().outbox.out_of_memory.is_some()
    }

    /// A fault that cannot be answered: the swap space is full, and the budget, which may be raised soon or not.
    ///
    /// A place that is being drained is given back first: its slots may be what is missing, and the fault is to be asked again.
    pub(crate) fn take_failed_fault(
        &mut self,
        now: Nanos,
        may_be_raised: impl FnOnce() -> bool,
    ) -> Option<(TaskId, PageIdx)> {
        let (task, page) = self.pager.machine_mut().outbox.out_of_memory.take()?;
        // A thread that serves itself may have found no slot just before more were backed.
        if self.pager.take_grown() || may_be_raised() || self.devices.give_back(&mut self.pager, now) {
            self.pager.machine_mut().wake_waiters(page);
            return None;
        }
        Some((task, page))
    }

    /// Compare what is resident with what the pager knows: what is there unseen is charged, or counts as outside of it.
    pub(crate) fn look_at_memory(&mut self, now: Nanos, kept: Kept, host: &mut impl Host<K>) {
        let unseen = |session: &Self| kept.anon_pages.saturating_sub(session.pager.known_pages());
        let most = self.unseen_base + self.unseen_slack;
        // It looks at every page that is managed: a twentieth of the time at most.
        let may_reconcile = now >= self.next_reconcile;
        let is_much = may_reconcile && unseen(self) > most + UNSEEN_MUCH * self.unseen_slack;
        let is_wanted = self.looking.is_some() || kept.mappings != self.looked || unseen(self) > most;
        let until = (!is_much).then(|| self.pager.machine().space().now() + LOOK_NS);
        if is_wanted {
            self.looking.get_or_insert(kept.mappings);
        }
        if is_wanted && host.look(&mut self.pager, now, until) {
            // A look in pieces does not know of what has come since behind it.
            self.looked = self.looking.take().expect("it was wanted");
            if may_reconcile && unseen(self) > most {
                self.pager.reconcile(now);
                let end = self.pager.machine().space().now();
                self.next_reconcile = end + RECONCILE_NS.max(20 * end.saturating_sub(now));
                if self.pager.takes_small_for(unseen(self)) {
                    host.look(&mut self.pager, now, None);
                }
                self.unseen_base = unseen(self);
            }
        }
        self.unseen_pages = unseen(self);
        self.unseen_base = self.unseen_base.min(self.unseen_pages);
    }

    /// How often it had been asked for a look when the last one began that has ended.
    pub(crate) const fn looked_for(&self) -> u32 {
        self.looked.asked
    }

    /// Pages that are there and that the pager does not know, as last seen.
    pub(crate) const fn unseen_pages(&self) -> u64 {
        self.unseen_pages
    }

    /// What the pager may have from now on. False: less than that, because no frames can be mapped for it.
    pub(crate) fn set_budget(&mut self, now: Nanos, pages: u32) -> bool {
        let is_granted = self.pager.machine_mut().reserve_frames(pages);
        self.budget_pages = if is_granted { pages } else { pages.min(self.pager.machine().budget_pages_max()) };
        self.apply_budget(now);
        is_granted
    }

    fn apply_budget(&mut self, now: Nanos) {
        let pages = match (self.is_paused, &self.page_out) {
            (true, _) => crate::setup::PAGES_MAX,
            (false, Some(page_out)) => self.budget_pages.min(page_out.left_pages()),
            (false, None) => self.budget_pages,
        };
        self.pager.set_budget(now, pages);
    }

    /// Paging out that was asked for: has it ended?
    fn tend_page_out(&mut self, now: Nanos) {
        let charged = self.pager.core().charged();
        if self.page_out.as_mut().is_some_and(|page_out| page_out.ends(charged, now)) {
            // The host sets the budget again with its next look, if no fork has its own.
            self.page_out = None;
        }
    }

    fn begin_page_out(&mut self, now: Nanos, pages: u32) -> Answer {
        if self.is_paused {
            return Answer::Refused("paging out is paused".to_owned());
        }
        // As of the host's next look at the budget.
        self.page_out = Some(PageOut::new(self.pager.core().charged(), pages, now));
        Answer::Done
    }

    /// When there is something to do, if nothing happens before.
    pub(crate) fn deadline(&self) -> Nanos {
        let core = self.pager.core();
        let work = core.deadline().unwrap_or(Nanos::MAX);
        let work = if core.can_wait() { work.max(self.pager.quiet_until()) } else { work };
        work.min(self.devices.deadline(&self.pager))
    }

    /// Something waits for the kernel or for another process to go on, without a word when it does.
    pub(crate) fn is_polling(&self) -> bool {
        let machine = self.pager.machine();
        machine.has_deferred() || !self.faults.is_empty() || machine.mappings.has_doubts()
    }

    /// Something was ordered that is not over, or waits for the host's next look.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_polling() || self.page_out.is_some() || self.devices.deadline(&self.pager) != Nanos::MAX
    }

    /// Sort the latencies of the faults that were answered into their buckets, and tell of each, with its bucket.
    pub(crate) fn count_latencies(&mut self, mut each: impl FnMut(usize, Answered)) {
        let Self { pager, latency, look, .. } = self;
        let mut waited = Vec::new();
        pager.take_answered(|answered| {
            let bucket = latency_bucket(answered.ns);
            latency[bucket] += 1;
            if look.is_on() {
                waited.push((answered.page, answered.ns));
            }
            each(bucket, answered);
        });
        waited.into_iter().for_each(|(page, ns)| look.note_wait(pager, page, ns));
    }

    /// Now and then: what each part of the memory holds and does, if somebody looks.
    pub(crate) fn tell_heat(&mut self, heat: &Heat, now: Nanos) {
        self.look.serve(heat, &mut self.pager, now);
    }

    /// Faults by latency, as last counted.
    pub(crate) const fn latency(&self) -> &[u64; LATENCY_BUCKETS] {
        &self.latency
    }

    /// Take a command in: it is carried out at the next `work`. `file`: the empty swap file of a `SwapOn`.
    pub(crate) fn order(&mut self, number: u64, command: Command, file: Option<SwapFile>) {
        self.orders.push_back(Order { number, command, file });
    }

    /// The next answer to a command.
    pub(crate) fn next_answer(&mut self) -> Option<(u64, Answer)> {
        self.answers.pop_front()
    }

    /// Carry a command out at once.
    pub(crate) fn carry_out(&mut self, now: Nanos, command: Command, file: Option<SwapFile>) -> Answer {
        match command {
            Command::SetBudget { bytes } => {
                let pages = u32::try_from(bytes >> crate::space::PAGE_SHIFT).unwrap_or(u32::MAX);
                if self.set_budget(now, pages) {
                    Answer::Done
                } else {
                    Answer::Refused(format!("no addresses are left for the frames of {} MiB", bytes >> 20))
                }
            }
            Command::Set { knob, value } => {
                let answer = self.set_knob(now, &knob, &value);
                if knob == SWAPOFF && answer == Answer::Done {
                    self.swapoff_setting = None;
                }
                answer
            }
            Command::SwapOn(offer) => refusal(self.devices.swapon(&mut self.pager, now, offer, file)),
            Command::SwapOff { place, mode } => {
                if let Some(mode) = mode {
                    let setting = self.pager.core().config().get(SWAPOFF);
                    if let refused @ Answer::Refused(_) = self.set_knob(now, SWAPOFF, mode.name()) {
                        return refused;
                    }
                    self.swapoff_setting = self.swapoff_setting.take().or(setting);
                }
                refusal(self.devices.swapoff(&mut self.pager, now, place))
            }
            Command::StopSwapOff { place } => refusal(self.devices.stop_swapoff(&mut self.pager, now, place)),
            Command::PageOut { pages } => self.begin_page_out(now, pages),
            Command::PauseReclaim => {
                (self.is_paused, self.page_out) = (true, None);
                self.apply_budget(now);
                Answer::Done
            }
            Command::ResumeReclaim => {
                self.is_paused = false;
                self.apply_budget(now);
                Answer::Done
            }
            Command::Report => Answer::Report(self.report()),
        }
    }

    fn set_knob(&mut self, now: Nanos, knob: &str, value: &str) -> Answer {
        match self.pager.core().config().live_setting(knob, value) {
            Ok(setting) => {
                self.pager.step(now, pagetide_core::event::Event::KnobSet { setting });
                Answer::Done
            }
            Err(error) => Answer::Refused(error.to_string()),
        }
    }

    /// How it stands.
    pub(crate) fn report(&self) -> Report {
        Report {
            budget_pages: u64::from(self.budget_pages),
            charged_pages: u64::from(self.pager.core().charged()),
            is_paused: self.is_paused,
            places: self.places().collect(),
        }
    }

    /// The host has a supervisor: he checks what a swapoff needs, and closes files that are done with.
    pub(crate) const fn supervised(&mut self) {
        self.devices.supervised();
    }

    /// See `supervised`: the file, and what is to be closed after it.
    pub(crate) fn next_file_to_close(&mut self) -> Option<[Fd; 2]> {
        self.devices.next_file_to_close()
    }

    /// How each place stands.
    pub(crate) fn places(&self) -> impl Iterator<Item = PlaceReport> {
        self.devices.reports(&self.pager)
    }
}

fn refusal(result: Result<(), String>) -> Answer {
    result.map_or_else(Answer::Refused, |()| Answer::Done)
}
