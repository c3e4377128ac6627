//! The world around the core: tasks that fault, CPUs, devices, and the clock they share.
//!
//! An exact host keeps young and dirty bits in the core's page table; a blind one, as live, has neither and answers maps and
//! unmaps (see `blind`). Both carry orders out when they are given. A hit is `Core::touch` and a check of the page's version;
//! only a miss reaches the event queue.
//!
//! Invariants: the clock never goes back; an event is handled to its end, with all it caused inside calls, before the
//! next; a task is running, ready, waiting or done, never two of them.

mod blind;
mod files;
mod hits;
mod io;
mod tier;

use std::collections::VecDeque;

use pagetide_core::effect::Source;
use pagetide_core::event::DeviceSpec;
use pagetide_core::types::{Access, DeviceId, Nanos, PMD_PAGES, PageIdx, PageRange, RegionId, TaskId};
use pagetide_core::{Config, Core, Counter, Effect, Effects, Event, HostKind, PageState};

use crate::cpu::{Cpus, SLICE_NS};
use crate::device::{DeviceParams, Mechanism};
use crate::disk::{Disk, DiskStats};
use crate::injection::FaultInjection;
use crate::oracle::{Oracle, WrongContent};
use crate::queue::EventQueue;
use crate::rng::XorShift64;
use crate::task::{Program, Task, TaskState};

pub use blind::{BlindCosts, HOSTS, HostModel};
pub use files::{NewFile, SimFile};
use hits::{Stop, hits};
use io::{Backing, Io};
use tier::SimTier;
pub use tier::{TierCosts, TierCounts};

/// CPU time of the kernel's work, per machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Costs {
    /// A fault that finds its page, entry and exit included.
    pub minor_fault_ns: Nanos,
    /// What a fault that reads costs more.
    pub major_fault_ns: Nanos,
    /// Sending for one page of a read: its frame, its place in the cache, its part of a request.
    pub read_page_ns: Nanos,
    /// Finding one page of a window in the cache (`vma-rfc` looks its window up at every fault).
    pub find_page_ns: Nanos,
    /// A new page of a file that a call writes, beside the copying: its frame, its place in the cache, its block.
    pub fresh_page_ns: Nanos,
    /// Looking at one page of a list.
    pub scan_page_ns: Nanos,
    /// Freeing one page, or bringing it in by swapoff.
    pub free_page_ns: Nanos,
    /// Sending one page to the device.
    pub pageout_page_ns: Nanos,
    /// Giving a CPU to another task, or waking one.
    pub switch_ns: Nanos,
}

impl Default for Costs {
    /// A server CPU of the last ten years: a minor fault of 0.5 us with zeroing; 0.1 us for a page looked at (page lock,
    /// reverse map, accessed bit); 0.6 us to free one; 3 us to send one to the device (unmap, TLB shootdown shared by a
    /// batch of 32, slot, swap cache, its part of a request); 2 us for a new page of a file (`dd` makes 1.0 to 1.7 GB/s of them), and
    /// for a context switch with its wake-up. What the pages of a
    /// window cost by themselves is in the major fault, unless a machine tells it apart.
    fn default() -> Self {
        Self {
            minor_fault_ns: 500,
            major_fault_ns: 1_500,
            read_page_ns: 0,
            find_page_ns: 0,
            fresh_page_ns: 2_000,
            scan_page_ns: 100,
            free_page_ns: 600,
            pageout_page_ns: 3_000,
            switch_ns: 2_000,
        }
    }
}

/// A swap device to be added.
#[derive(Clone, Debug)]
pub struct SwapDevice {
    /// Its times.
    pub params: DeviceParams,
    /// Slots without the header's.
    pub pages: u32,
    /// Swap priority.
    pub priority: Option<i16>,
    /// What the block layer says of it (virtio disks say rotational).
    pub rotational: bool,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// All tasks are done.
    Finished,
    /// The time is over.
    TimeUp,
    /// A load saw what it must not see.
    WrongContent(WrongContent),
    /// Tasks wait and nothing will ever wake them.
    NoProgress {
        /// One that waits.
        task: u32,
    },
}

/// Small, so that the queue copies it in registers.
#[derive(Clone, Copy, Debug)]
enum Happening {
    Run(u32),
    DiskEnds { key: u32 },
    RestEnds { key: u32 },
    Timeout { generation: u32 },
    BudgetCut { pages: u32 },
    RemoveRegion,
    Writeback,
    SyncLook { task: u32 },
    CallEnds { task: u32 },
}

/// Events of one moment after which nothing can be going forward.
const STUCK_EVENTS_MAX: u32 = 20_000_000;

/// The world.
#[derive(Debug)]
pub struct World {
    /// The policy.
    pub core: Core,
    /// The tasks.
    pub tasks: Vec<Task>,
    /// Faults of the world.
    pub injection: FaultInjection,
    /// Makes the canary's bug happen: of every so many pages written, one is stored with the bytes of another.
    pub canary: Option<u32>,
    canary_writes: u32,
    oracle: Oracle,
    /// The buffer for effects, but during a step.
    effects: Option<Box<Effects>>,
    queue: EventQueue<Happening>,
    disks: Vec<Disk>,
    /// Where swap devices lie.
    swaps: Vec<Backing>,
    files: Vec<SimFile>,
    ios: Vec<Io>,
    free_ios: Vec<u32>,
    cpus: Cpus,
    costs: Costs,
    /// Of a blind host.
    blind: Option<BlindCosts>,
    /// Of a blind host that compresses.
    tier: Option<Box<SimTier>>,
    rng: XorShift64,
    seed: u64,
    budget: u32,
    regions: Vec<PageRange>,
    next_page: u32,
    /// Events that effects carried out inside the call have caused.
    follow_ups: VecDeque<Event>,
    /// What the last map of the event being handled has mapped.
    mapped: PageRange,
    woken: Vec<u32>,
    /// CPU time that the event being handled has cost so far.
    cost_ns: Nanos,
    /// CPU time of reclaim until the last event.
    reclaimed_ns: Nanos,
    timeout_at: Option<Nanos>,
    timeout_generation: u32,
    /// The kernel's own thread is busy until then.
    kernel_free_at: Nanos,
    /// CPU time that the kernel's thread took from tasks where no CPU was free.
    stolen_ns: Nanos,
    unfinished: u32,
    stuck_events: u32,
    failure: Option<WrongContent>,
    out_of_memory: u64,
}

impl World {
    /// A world without tasks and devices. `budget` is what `config` was given.
    pub fn new(config: Config, pages_max: u32, budget: u32, cpus: u32, costs: Costs, seed: u64) -> Self {
        Self {
            blind: (config.host() == HostKind::Blind).then_some(BlindCosts::THREAD),
            core: Core::new(config),
            tier: None,
            tasks: Vec::new(),
            injection: FaultInjection::default(),
            canary: None,
            canary_writes: 0,
            oracle: Oracle::new(pages_max),
            effects: Some(Box::default()),
            queue: EventQueue::default(),
            disks: Vec::new(),
            swaps: Vec::new(),
            files: Vec::new(),
            ios: Vec::new(),
            free_ios: Vec::new(),
            cpus: Cpus::new(cpus),
            costs,
            rng: XorShift64::stream(seed, 901),
            seed,
            budget,
            regions: Vec::new(),
            next_page: 0,
            follow_ups: VecDeque::new(),
            mapped: PageRange::new(PageIdx(0), 0),
            woken: Vec::new(),
            cost_ns: 0,
            reclaimed_ns: 0,
            timeout_at: None,
            timeout_generation: 0,
            kernel_free_at: 0,
            stolen_ns: 0,
            unfinished: 0,
            stuck_events: 0,
            failure: None,
            out_of_memory: 0,
        }
    }

    /// Pages of the table that regions of these sizes need: each begins at a 2 MiB border, with a hole before it.
    pub fn table_pages(regions: impl IntoIterator<Item = u32>) -> u32 {
        regions.into_iter().fold(0, |sum, pages| sum + (pages.div_ceil(PMD_PAGES) + 1) * PMD_PAGES)
    }

    /// The moment.
    pub const fn now(&self) -> Nanos {
        self.queue.now()
    }

    /// What each device has done.
    pub fn disk_stats(&self) -> Vec<DiskStats> {
        self.disks.iter().map(Disk::stats).collect()
    }

    /// Tasks that were ended for want of memory.
    pub const fn out_of_memory(&self) -> u64 {
        self.out_of_memory
    }

    /// Adds a swap device on a disk of its own.
    pub fn add_device(&mut self, device: &SwapDevice) -> DeviceId {
        let disk = self.add_disk(&device.params);
        self.add_device_on(device, disk, 0)
    }

    /// Adds a swap device that begins at page `at` of a disk.
    pub fn add_device_on(&mut self, device: &SwapDevice, disk: usize, at: u64) -> DeviceId {
        let id = DeviceId(u8::try_from(self.swaps.len()).expect("few devices"));
        let slots = device.pages + 1;
        let store = self.oracle.add_device(slots);
        self.add_to_tier(slots);
        self.swaps.push(Backing { disk, at, store });
        let spec = DeviceSpec {
            slots,
            priority: device.priority,
            rotational: device.rotational,
            synchronous: device.params.mechanism == Mechanism::Synchronous,
            inherited: false,
        };
        self.step(self.now(), Event::DeviceAdded { device: id, spec }, None);
        id
    }

    /// Adds a region of `pages` pages.
    pub fn add_region(&mut self, pages: u32) -> PageRange {
        let range = self.place(pages);
        self.add_region_at(range);
        range
    }

    /// The next place in the table.
    fn place(&mut self, pages: u32) -> PageRange {
        let range = PageRange::new(PageIdx(self.next_page), pages);
        // A hole after each region: neighbours in the table are no neighbours in the program.
        self.next_page += (pages.div_ceil(PMD_PAGES) + 1) * PMD_PAGES;
        range
    }

    /// Adds a region whose place in the table the caller keeps.
    pub fn add_region_at(&mut self, range: PageRange) {
        let region = RegionId(u32::try_from(self.regions.len()).expect("few regions"));
        self.regions.push(range);
        self.step(self.now(), Event::RegionAdded { region, range }, None);
    }

    /// Adds a task that begins at `at`.
    pub fn spawn(&mut self, mut task: Task, at: Nanos) -> u32 {
        let id = u32::try_from(self.tasks.len()).expect("few tasks");
        task.clock = at;
        self.tasks.push(task);
        self.unfinished += 1;
        self.queue.push(at, Happening::Run(id));
        id
    }

    /// Arms the faults of the world that happen by the clock.
    pub fn inject_faults(&mut self, injection: FaultInjection) {
        if let Some((at, percent)) = injection.budget_cut {
            let cut = u64::from(self.budget) * u64::from(percent) / 100;
            self.queue.push(at, Happening::BudgetCut { pages: u32::try_from(cut).expect("below the budget") });
            self.queue.push(injection.heals_at, Happening::BudgetCut { pages: self.budget });
        }
        if let Some(at) = injection.remove_region_at {
            self.queue.push(at, Happening::RemoveRegion);
        }
        self.injection = injection;
    }

    /// Changes the budget now.
    pub fn set_budget(&mut self, pages: u32) {
        self.step(self.now(), Event::BudgetChanged { pages }, None);
    }

    /// Begins a swapoff of the device now.
    pub fn swapoff(&mut self, device: DeviceId) {
        self.step(self.now(), Event::Swapoff { device }, None);
    }

    /// Lets the world go on until all tasks are done or `until` has come.
    pub fn run(&mut self, until: Nanos) -> RunEnd {
        loop {
            if let Some(wrong) = self.failure {
                return RunEnd::WrongContent(wrong);
            }
            if self.unfinished == 0 {
                return RunEnd::Finished;
            }
            let Some(at) = self.queue.next_at() else { return self.no_progress() };
            if at > until {
                return RunEnd::TimeUp;
            }
            self.stuck_events = if at > self.now() { 0 } else { self.stuck_events + 1 };
            if self.stuck_events > STUCK_EVENTS_MAX {
                return self.no_progress();
            }
            self.happen(until);
        }
    }

    /// Lets the world go on until nothing is due before `until`, tasks or no tasks.
    pub fn drain(&mut self, until: Nanos) {
        for _ in 0..STUCK_EVENTS_MAX {
            match self.queue.next_at() {
                Some(at) if at <= until => self.happen(until),
                Some(_) | None => return,
            }
        }
    }

    fn no_progress(&self) -> RunEnd {
        let waits = |t: &Task| t.state != TaskState::Done;
        let task = self.tasks.iter().position(waits).unwrap_or(0);
        RunEnd::NoProgress { task: u32::try_from(task).expect("few tasks") }
    }

    fn happen(&mut self, until: Nanos) {
        let Some((now, happening)) = self.queue.pop() else { return };
        self.tend_tier(now);
        match happening {
            Happening::Run(task) => self.schedule(task, now, until),
            Happening::DiskEnds { key } => self.disk_ends(now, key),
            Happening::RestEnds { key } => self.rest_ends(now, key),
            Happening::Timeout { generation } if generation == self.timeout_generation => self.kernel_thread(now),
            Happening::Timeout { .. } => {}
            Happening::BudgetCut { pages } => self.step(now, Event::BudgetChanged { pages }, None),
            Happening::RemoveRegion => self.remove_region(now),
            Happening::Writeback => self.writeback(now),
            Happening::SyncLook { task } => self.sync_again(task, now),
            Happening::CallEnds { task } => self.call_ends(now, task),
        }
    }

    /// A task has something to do: on its CPU, or in the queue for one.
    fn schedule(&mut self, id: u32, now: Nanos, until: Nanos) {
        let task = &mut self.tasks[id as usize];
        match task.state {
            TaskState::Done => return,
            TaskState::Running => {}
            TaskState::New | TaskState::Ready | TaskState::Waiting => {
                task.state = TaskState::Ready;
                if !self.cpus.take(id) {
                    return;
                }
                self.put_on_cpu(id, now);
            }
        }
        self.compute(id, until);
    }

    fn put_on_cpu(&mut self, id: u32, now: Nanos) {
        let task = &mut self.tasks[id as usize];
        task.state = TaskState::Running;
        task.clock = task.clock.max(now);
        task.slice_from = task.clock;
    }

    /// The task leaves its CPU; the next one gets it.
    fn leave_cpu(&mut self, id: u32, now: Nanos, state: TaskState) {
        self.tasks[id as usize].state = state;
        while let Some(next) = self.cpus.give() {
            // One that was ended while it waited for a CPU does not take it.
            if self.tasks[next as usize].state == TaskState::Ready {
                self.put_on_cpu(next, now + self.costs.switch_ns);
                let at = self.tasks[next as usize].clock;
                self.queue.push(at, Happening::Run(next));
                return;
            }
        }
    }

    /// The task computes until something else is due.
    fn compute(&mut self, id: u32, until: Nanos) {
        let stolen = std::mem::take(&mut self.stolen_ns);
        self.tasks[id as usize].clock += stolen;
        self.tasks[id as usize].settle_call();
        loop {
            let mut horizon = self.queue.next_at().unwrap_or(until).min(until);
            let task = &mut self.tasks[id as usize];
            if self.cpus.is_contended() {
                horizon = horizon.min(task.slice_from + SLICE_NS);
            }
            match hits(&mut self.core, &mut self.oracle, task, horizon) {
                Stop::Horizon => return self.yield_cpu(id),
                Stop::Finished => return self.finish(id),
                Stop::Wrong(wrong) => {
                    self.failure = Some(wrong);
                    return;
                }
                Stop::Discard(page) => {
                    let range = PageRange::one(page);
                    self.oracle.discard(range);
                    let now = self.tasks[id as usize].clock;
                    self.step(now, Event::Discarded { range }, Some(id));
                }
                Stop::Call(call) => {
                    if !self.call(id, call) {
                        return;
                    }
                    self.tasks[id as usize].settle_call();
                }
                Stop::Miss(page, access, first_tried_at) => {
                    if !self.fault(id, page, access, first_tried_at) {
                        return;
                    }
                }
            }
        }
    }

    fn yield_cpu(&mut self, id: u32) {
        let task = &self.tasks[id as usize];
        let (clock, used) = (task.clock, task.clock - task.slice_from);
        if self.cpus.is_contended() && used >= SLICE_NS {
            self.leave_cpu(id, clock, TaskState::Ready);
            // Behind the others: it cannot get the CPU back at once, another task has just been given it.
            if self.cpus.take(id) {
                self.put_on_cpu(id, clock);
                self.queue.push(clock, Happening::Run(id));
            }
            return;
        }
        self.queue.push(clock, Happening::Run(id));
    }

    fn finish(&mut self, id: u32) {
        let task = &mut self.tasks[id as usize];
        let clock = task.clock;
        task.stats.ended_at = Some(clock);
        self.unfinished -= 1;
        self.leave_cpu(id, clock, TaskState::Done);
    }

    /// A page was not there. True: answered, go on; false: the task waits, or is no more.
    fn fault(&mut self, id: u32, page: PageIdx, access: Access, first_tried_at: Nanos) -> bool {
        if self.oracle.is_poisoned(page) {
            // The program gets its signal; this task of ours notes it and goes on.
            self.tasks[id as usize].stats.poisoned += 1;
            return true;
        }
        let is_untouched = self.core.state(page) == PageState::Untouched;
        let task = &mut self.tasks[id as usize];
        task.is_first_touch |= is_untouched;
        task.stats.faults += 1;
        task.pending = Some((page, access, first_tried_at));
        // Until the core says `Wake`, the task waits; a wake within the call takes the state back.
        task.state = TaskState::Waiting;
        let now = task.clock;
        self.cost_ns = self.blind.map_or(self.costs.minor_fault_ns, |blind| blind.fault_ns);
        self.step(now, Event::Fault { page, access, task: TaskId(id) }, Some(id));
        self.tend_tier(now);
        self.still_running(id)
    }

    /// After a fault or a call: the task goes on, or gives up its CPU.
    fn still_running(&mut self, id: u32) -> bool {
        let task = &mut self.tasks[id as usize];
        match task.state {
            TaskState::Running => true,
            TaskState::Waiting => {
                let clock = task.clock;
                self.leave_cpu(id, clock, TaskState::Waiting);
                false
            }
            TaskState::Done => {
                let clock = task.clock;
                self.leave_cpu(id, clock, TaskState::Done);
                false
            }
            TaskState::New | TaskState::Ready => unreachable!("a faulting task had a CPU"),
        }
    }

    /// The kernel's own thread: background reclaim, swapoff, whatever goes on through the deadline.
    fn kernel_thread(&mut self, now: Nanos) {
        self.timeout_at = None;
        self.step(now, Event::Timeout, None);
    }

    /// Hands the event to the core and carries out all that follows inside the call.
    fn step(&mut self, now: Nanos, event: Event, actor: Option<u32>) {
        let mut effects = self.effects.take().expect("no step within a step");
        self.hand_over(now, &event, &mut effects, actor);
        while let Some(event) = self.follow_ups.pop_front() {
            self.hand_over(now, &event, &mut effects, actor);
        }
        self.effects = Some(effects);
        let reclaimed_ns = self.reclaim_ns();
        let cost = std::mem::take(&mut self.cost_ns) + (reclaimed_ns - self.reclaimed_ns);
        self.reclaimed_ns = reclaimed_ns;
        match actor {
            Some(task) => {
                let task = &mut self.tasks[task as usize];
                task.clock += cost;
                task.stats.system_ns += cost;
            }
            None => {
                self.kernel_free_at = now + cost;
                if !self.cpus.has_free() {
                    self.stolen_ns += cost;
                }
            }
        }
        self.wake_tasks(now);
        self.arm_timeout(now);
    }

    /// One event, and its effects.
    fn hand_over(&mut self, now: Nanos, event: &Event, effects: &mut Effects, actor: Option<u32>) {
        self.mapped = PageRange::new(PageIdx(0), 0);
        self.core.handle(now, event, effects);
        self.look_ahead(effects);
        for effect in effects.as_slice() {
            self.apply(now, *effect, actor);
        }
        effects.clear();
    }

    /// Looks at the versions that the effects are about, so that their lines come from the host's memory side by side.
    fn look_ahead(&self, effects: &Effects) {
        let peek = |effect: &Effect| match *effect {
            Effect::Read { device, slot, .. } => self.oracle.peek_slot(self.backing(device).store, slot.0),
            Effect::Write { range, .. } | Effect::Drop { range } => self.oracle.peek(range.first),
            Effect::Map { .. }
            | Effect::Unmap { .. }
            | Effect::Poison { .. }
            | Effect::Wake { .. }
            | Effect::OutOfMemory { .. } => 0,
        };
        std::hint::black_box(effects.as_slice().iter().fold(0, |seen, effect| seen | peek(effect)));
    }

    /// CPU time of reclaim, swapoff and lookups of windows since the beginning.
    fn reclaim_ns(&self) -> Nanos {
        let get = |counter| self.core.vmstat().get(counter);
        let scanned = get(Counter::pgscan_anon) + get(Counter::pgscan_file) + get(Counter::pgrefill);
        let freed = get(Counter::pgsteal_anon) + get(Counter::pgsteal_file) + get(Counter::pt_swapoff_in);
        scanned * self.costs.scan_page_ns
            + freed * self.costs.free_page_ns
            + get(Counter::pswpout) * self.costs.pageout_page_ns
            + get(Counter::pt_ra_found) * self.costs.find_page_ns
    }

    fn arm_timeout(&mut self, now: Nanos) {
        let wanted = self.core.deadline().map(|at| at.max(now).max(self.kernel_free_at));
        if wanted == self.timeout_at {
            return;
        }
        self.timeout_at = wanted;
        self.timeout_generation = self.timeout_generation.wrapping_add(1);
        if let Some(at) = wanted {
            self.queue.push(at, Happening::Timeout { generation: self.timeout_generation });
        }
    }

    fn wake_tasks(&mut self, now: Nanos) {
        for i in 0..self.woken.len() {
            let id = self.woken[i];
            let task = &mut self.tasks[id as usize];
            if task.state == TaskState::Waiting {
                task.state = TaskState::Ready;
                task.clock = task.clock.max(now + self.costs.switch_ns);
                self.queue.push(task.clock, Happening::Run(id));
            }
        }
        self.woken.clear();
    }

    fn apply(&mut self, now: Nanos, effect: Effect, actor: Option<u32>) {
        match effect {
            Effect::Read { io, device, slot, range, demand } => {
                if actor.is_some() {
                    let fault = if demand { self.costs.major_fault_ns } else { 0 };
                    self.cost_ns += fault + u64::from(range.len) * self.costs.read_page_ns;
                }
                self.read(now, io, (device, slot), range, demand);
            }
            Effect::Write { io, device, slot, range } => self.write(now, io, device, slot, range),
            Effect::Map { range, source, .. } => {
                if source == Source::Zero {
                    if self.is_file(range.first) {
                        self.cost_ns += u64::from(range.len) * self.costs.fresh_page_ns;
                    }
                    self.oracle.zero(range);
                }
                self.mapped = range;
                self.answer_map(range);
            }
            Effect::Unmap { range } => self.answer_unmap(range),
            Effect::Drop { range } => {
                self.keep_clean(range);
                self.oracle.drop_frames(range);
            }
            // A file's content is still on its disk: the next read may succeed.
            Effect::Poison { range } if self.is_file(range.first) => self.oracle.drop_frames(range),
            Effect::Poison { range } => self.oracle.poison(range),
            Effect::Wake { task, page } => {
                self.serve(task.0, page);
                if self.tasks[task.0 as usize].call.is_some() && self.call_woken(task.0) {
                    return;
                }
                if actor == Some(task.0) {
                    let task = &mut self.tasks[task.0 as usize];
                    if task.state == TaskState::Waiting {
                        task.state = TaskState::Running;
                    }
                } else {
                    self.woken.push(task.0);
                }
            }
            Effect::OutOfMemory { task, .. } => self.kill(now, task.0),
        }
    }

    /// A fault that is answered by a map: the task's access is the next thing that happens to the page, whatever else the
    /// same event leads to. (The core has set the page's bits for it.)
    fn serve(&mut self, id: u32, page: PageIdx) {
        let task = &mut self.tasks[id as usize];
        let Some((wanted, access, _)) = task.pending else { return };
        let is_there = self.mapped.contains(page) || self.blind.is_some() && self.core.is_mapped(page);
        if wanted == page && is_there && !task.served {
            task.served = true;
            let checked = match access {
                Access::Write => self.oracle.store(page),
                Access::Read => self.oracle.load(page),
            };
            self.failure = self.failure.or(checked.err());
        }
    }

    /// The kernel would end the task that cannot be given memory; so does the world.
    fn kill(&mut self, now: Nanos, id: u32) {
        let task = &mut self.tasks[id as usize];
        if task.state == TaskState::Done {
            return;
        }
        self.out_of_memory += 1;
        self.unfinished -= 1;
        task.stats.out_of_memory = true;
        task.stats.ended_at = Some(now);
        task.pending = None;
        task.state = TaskState::Done;
        if let Program::Walk(walk) = &task.program {
            let (owned, range) = (walk.owned, walk.region);
            if owned {
                self.oracle.discard(range);
                let index = self.regions.iter().position(|r| *r == range).expect("a walk's region is one of ours");
                let region = RegionId(u32::try_from(index).expect("few regions"));
                self.follow_ups.push_back(Event::RegionRemoved { region });
            }
        }
    }

    fn remove_region(&mut self, now: Nanos) {
        let Some(range) = self.regions.last().copied().filter(|_| self.regions.len() > 1) else { return };
        let region = RegionId(u32::try_from(self.regions.len() - 1).expect("few regions"));
        for id in 0..self.tasks.len() {
            let task = &mut self.tasks[id];
            if !matches!(&task.program, Program::Walk(w) if w.region == range) || task.state == TaskState::Done {
                continue;
            }
            let id = u32::try_from(id).expect("few tasks");
            task.stats.ended_at = Some(now);
            task.pending = None;
            self.unfinished -= 1;
            match task.state {
                TaskState::Running => self.leave_cpu(id, now, TaskState::Done),
                TaskState::New | TaskState::Ready | TaskState::Waiting | TaskState::Done => {
                    task.state = TaskState::Done
                }
            }
        }
        self.oracle.discard(range);
        self.step(now, Event::RegionRemoved { region }, None);
    }
}
