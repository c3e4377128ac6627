//! Jobs: faults that need frames, as tasks in the kernel would go about it, step by step.
//!
//! A job that has to stop (for room, a write, or memory) is parked in a table of fixed size and goes on when it can. A fault
//! that needs nothing but an entry in the page table never becomes a job.

use crate::effect::{Effect, Effects};
use crate::memory::page::{ACTIVE, DIRTY, FRAME, Flight, MAPPED, MARKER, READAHEAD, WRITABLE, YOUNG};
use crate::policy::Core;
use crate::readahead::Window;
use crate::reclaim::{MAX_RECLAIM_RETRIES, ReclaimRun, RunEnd, RunKind, SWAP_CLUSTER_MAX};
use crate::types::{Access, DeviceId, Nanos, PageIdx, PageRange, SlotIdx, TaskId};
use crate::vmstat::Counter;
use alloc::vec::Vec;

/// Jobs that can be parked; faults beyond it are looked at again later.
const JOBS_MAX: usize = 512;
/// How often a job waits for pages that could not be moved before it is out of memory.
const RESCUES_MAX: u32 = 100;
/// Effects that one step of a job may need.
pub(crate) const STEP_ROOM: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobState {
    Runnable,
    /// For the write of a page.
    WaitPage(u32),
    /// For a frame.
    WaitMemory,
    /// For that time to come.
    Nap(Nanos),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JobKind {
    /// First touch: a page of zeroes.
    Zero,
    /// Read the page and its window.
    SwapIn,
    /// The budget fell below the charge.
    Shrink,
    /// Swapoff needs a frame.
    Room,
    /// `read`, `write`, and a mapped access.
    FileRead,
    FileWrite,
    FileFault,
    /// A window ahead of a call, and one ahead of a mapped access, which goes on afterwards.
    FileAhead,
    FileFaultAhead,
}

/// A fault (or a cut of the budget) at work.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) kind: JobKind,
    pub(crate) task: TaskId,
    pub(crate) page: u32,
    pub(crate) access: Access,
    pub(crate) window: Window,
    /// Files: the pages asked for.
    pub(crate) first: u32,
    pub(crate) end: u32,
    /// The page of the window that waits for its frame.
    pub(crate) next: Option<u32>,
    pub(crate) run: Option<ReclaimRun>,
    /// A window ahead: it has let reads end once.
    pub(crate) has_paused: bool,
    tries: u32,
    /// How often it waited for pages that could not be moved.
    rescues: u32,
    state: JobState,
    number: u64,
}

impl Job {
    pub(crate) const fn new(kind: JobKind, page: u32, access: Access, task: TaskId, window: Window) -> Self {
        Self {
            kind,
            task,
            page,
            access,
            window,
            first: page,
            end: page,
            next: None,
            run: None,
            has_paused: false,
            tries: 0,
            rescues: 0,
            state: JobState::Runnable,
            number: 0,
        }
    }

    /// It waits for nothing, or for a time that has come.
    const fn is_runnable(&self, now: Nanos) -> bool {
        match self.state {
            JobState::Runnable => true,
            JobState::Nap(until) => until <= now,
            JobState::WaitMemory | JobState::WaitPage(_) => false,
        }
    }
}

/// The parked jobs.
#[derive(Debug)]
pub(crate) struct Jobs {
    parked: Vec<Job>,
    number: u64,
    /// Memory was freed, or a write ended: the oldest job that waits for memory may try again.
    kick: bool,
    waiting_memory: u32,
}

impl Jobs {
    pub(crate) fn new() -> Self {
        Self { parked: Vec::with_capacity(JOBS_MAX), number: 0, kick: false, waiting_memory: 0 }
    }

    pub(crate) const fn is_full(&self) -> bool {
        self.parked.len() >= JOBS_MAX
    }

    pub(crate) const fn memory_freed(&mut self) {
        self.kick = self.waiting_memory > 0;
    }

    pub(crate) fn has_runnable(&self, now: Nanos) -> bool {
        self.kick && self.waiting_memory > 0 || self.parked.iter().any(|job| job.is_runnable(now))
    }

    /// When the next nap ends.
    pub(crate) fn wakes_at(&self) -> Option<Nanos> {
        let naps =
            self.parked.iter().filter_map(|job| if let JobState::Nap(until) = job.state { Some(until) } else { None });
        naps.min()
    }

    /// The write of the page has ended.
    pub(crate) fn page_done(&mut self, page: u32) {
        for job in &mut self.parked {
            if job.state == JobState::WaitPage(page) {
                job.state = JobState::Runnable;
            }
        }
    }

    /// A new job while the table is full: it starts as soon as it can. (The table grows: tasks in system calls are few.)
    pub(crate) fn queue(&mut self, mut job: Job) {
        self.number += 1;
        job.number = self.number;
        self.parked.push(job);
    }

    fn park(&mut self, job: Job) {
        if job.state == JobState::WaitMemory {
            self.waiting_memory += 1;
        }
        self.parked.push(job);
    }

    /// Take out the oldest job above `after` that can go on. Of those that wait for memory only the oldest can. `amid`: not
    /// one that is in the middle of reclaim.
    fn take(&mut self, after: u64, amid: bool, now: Nanos) -> Option<Job> {
        let kick = self.kick;
        let can = |job: &&Job| match job.state {
            JobState::WaitMemory => kick,
            JobState::Runnable | JobState::Nap(_) | JobState::WaitPage(_) => {
                job.is_runnable(now) && job.number > after && !(amid && job.run.is_some())
            }
        };
        let number = self.parked.iter().filter(can).map(|job| job.number).min()?;
        let at = self.parked.iter().position(|job| job.number == number)?;
        let job = self.parked.swap_remove(at);
        if job.state == JobState::WaitMemory {
            self.waiting_memory -= 1;
        }
        Some(job)
    }

    pub(crate) fn parked(&self) -> usize {
        self.parked.len()
    }
}

pub(crate) enum Step {
    Done,
    Park(JobState),
}

pub(crate) enum Charge {
    Got,
    /// A reclaim run was set up.
    Reclaim,
    Park(JobState),
    /// No memory to be had.
    Fail,
}

impl Core {
    /// Start a job now; park it if it has to stop.
    pub(crate) fn start_job(&mut self, mut job: Job, out: &mut Effects) {
        self.jobs.number += 1;
        job.number = self.jobs.number;
        self.drive(job, out);
    }

    fn drive(&mut self, mut job: Job, out: &mut Effects) -> bool {
        self.lru.on_cpu_of(job.task.0);
        match self.job_step(&mut job, out) {
            Step::Done => true,
            Step::Park(state) => {
                if state == JobState::WaitMemory && job.state != JobState::WaitMemory {
                    self.count(Counter::pt_wait_memory, 1);
                }
                job.state = state;
                self.jobs.park(job);
                state == JobState::Runnable
            }
        }
    }

    /// Let everything go on that can, as far as the room for effects allows.
    pub(crate) fn run_ready(&mut self, is_timeout: bool, amid: bool, out: &mut Effects) {
        self.drain_discards(out);
        let mut left = self.waiters.ready_len();
        while left > 0 && out.room() >= STEP_ROOM {
            let Some(waiter) = self.waiters.pop_ready() else {
                break;
            };
            left -= 1;
            self.fault(waiter.page, waiter.access, waiter.task, false, out);
        }
        let mut after = 0;
        while out.room() >= STEP_ROOM && self.jobs.parked() > 0 {
            let Some(job) = self.jobs.take(after, amid, self.now) else {
                break;
            };
            let waited = job.state == JobState::WaitMemory;
            if !waited {
                after = job.number;
            }
            let went_on = self.drive(job, out);
            if waited && !went_on {
                self.jobs.kick = false;
            }
        }
        self.run_control(out);
        if out.room() >= STEP_ROOM && !amid && (is_timeout || !self.host.kswapd_at_timeouts) {
            self.run_kswapd(out);
        }
    }

    fn job_step(&mut self, job: &mut Job, out: &mut Effects) -> Step {
        if matches!(job.state, JobState::WaitMemory | JobState::Nap(_)) && self.is_free_again(job) {
            job.run = None;
        }
        loop {
            if let Some(mut run) = job.run.take() {
                match self.reclaim(&mut run, out) {
                    RunEnd::Done => {
                        if run.nr_reclaimed > 0 {
                            job.tries = 0;
                        } else if self.is_waiting_worthwhile() {
                            // All that could go is under write, or being sampled.
                            return Step::Park(JobState::WaitMemory);
                        } else {
                            job.tries += 1;
                        }
                    }
                    RunEnd::Yield => {
                        job.run = Some(run);
                        return Step::Park(JobState::Runnable);
                    }
                    RunEnd::WaitPage(p) => {
                        job.run = Some(run);
                        return Step::Park(JobState::WaitPage(p));
                    }
                    RunEnd::Nap(until) => {
                        job.run = Some(run);
                        return Step::Park(JobState::Nap(until));
                    }
                    RunEnd::WaitIo => {
                        job.run = Some(run);
                        return Step::Park(JobState::WaitMemory);
                    }
                }
            }
            if out.room() < STEP_ROOM {
                return Step::Park(JobState::Runnable);
            }
            let step = match job.kind {
                JobKind::Zero => self.step_zero(job, out),
                JobKind::SwapIn => self.step_swap_in(job, out),
                JobKind::Shrink => self.step_shrink(job),
                JobKind::Room => self.step_room(job),
                JobKind::FileRead
                | JobKind::FileWrite
                | JobKind::FileFault
                | JobKind::FileAhead
                | JobKind::FileFaultAhead => self.step_file(job, out),
            };
            if let Some(step) = step {
                return step;
            }
        }
    }

    /// Charge one page if that is possible without reclaim.
    pub(crate) fn try_charge(&mut self) -> bool {
        if self.is_memcg() {
            if self.mem.stock > 0 {
                self.mem.stock -= 1;
                return true;
            }
            let batch = self.cfg.charge_batch.max(1);
            let free = self.mem.free();
            let n = if batch <= free { batch } else { free.min(1) };
            self.mem.charged += n;
            self.mem.stock += n.saturating_sub(1);
            return n > 0;
        }
        let enough = self.mem.free() > self.mem.min;
        if enough {
            self.mem.charged += 1;
        }
        if self.mem.free() <= self.mem.low {
            self.wake_kswapd();
        }
        enough
    }

    /// Charge one page, whatever it takes. `ahead`: nobody waits for the page.
    pub(crate) fn charge(&mut self, job: &mut Job, ahead: bool) -> Charge {
        if self.try_charge() {
            job.tries = 0;
            return Charge::Got;
        }
        if self.control.hold {
            self.mem.charged += 1;
            return Charge::Got;
        }
        if ahead && !self.host.reclaims_for_readahead {
            return Charge::Fail;
        }
        // Enough is on its way to be freed for everyone who waits.
        if self.sure > self.jobs.waiting_memory {
            return Charge::Park(JobState::WaitMemory);
        }
        let limit = self.host.direct_runs_max;
        if job.tries >= limit {
            if self.is_waiting_worthwhile() {
                return Charge::Park(JobState::WaitMemory);
            }
            if self.control.rescue_at.is_none() || job.rescues >= RESCUES_MAX {
                return Charge::Fail;
            }
            // All that is left could not be moved a moment ago.
            job.rescues += 1;
            job.tries = limit - 1;
            return Charge::Park(JobState::WaitMemory);
        }
        let mut run = self.direct_run();
        // It has found the marker's page and goes on with it afterwards.
        run.held = matches!(job.kind, JobKind::FileAhead | JobKind::FileFaultAhead).then_some(job.page);
        job.run = Some(run);
        Charge::Reclaim
    }

    /// Others have made room while a task waited in direct reclaim: until 4.10 its waits are short, and then it looks. (Reclaim of
    /// newer kernels does not wait.)
    fn is_free_again(&self, job: &Job) -> bool {
        let direct = job.run.as_ref().is_some_and(|run| run.kind == RunKind::Direct);
        direct && !self.cfg.activate_dirty && self.mem.free() > self.mem.min
    }

    /// Something will end that can change what reclaim finds.
    fn is_waiting_worthwhile(&self) -> bool {
        self.flights > 0
    }

    fn direct_run(&mut self) -> ReclaimRun {
        if self.is_memcg() {
            self.count(Counter::max, 1);
            ReclaimRun::new(RunKind::Memcg, SWAP_CLUSTER_MAX)
        } else {
            self.count(Counter::allocstall, 1);
            ReclaimRun::new(RunKind::Direct, SWAP_CLUSTER_MAX)
        }
    }

    pub(crate) fn out_of_memory(&mut self, job: &Job, out: &mut Effects) -> Step {
        self.count(Counter::oom_kill, 1);
        out.push(Effect::OutOfMemory { task: job.task, page: PageIdx(job.page) });
        Step::Done
    }

    fn step_zero(&mut self, job: &mut Job, out: &mut Effects) -> Option<Step> {
        let p = job.page;
        if self.pages.word(p) & (FRAME | crate::memory::page::SLOT | crate::memory::page::POISON) != 0
            || self.regions.find(p).is_none()
        {
            // Another task was first, or the page is gone.
            self.fault(p, job.access, job.task, false, out);
            return Some(Step::Done);
        }
        match self.charge(job, false) {
            Charge::Got => {}
            Charge::Reclaim => return None,
            Charge::Park(state) => return Some(Step::Park(state)),
            Charge::Fail => return Some(self.out_of_memory(job, out)),
        }
        self.new_page(p);
        self.map_zero(p, job.access, job.task, out);
        self.zero_ahead(p, out);
        Some(Step::Done)
    }

    /// A charged, new anonymous page, put on its list.
    pub(crate) fn new_page(&mut self, p: u32) {
        self.take_frame(p);
        self.pages.set(p, DIRTY);
        if self.cfg.anon_active {
            self.pages.set(p, ACTIVE);
        }
        self.insert_lru(p);
    }

    /// A page enters its list for the first time.
    pub(crate) fn insert_lru(&mut self, p: u32) {
        let word = self.pages.word(p);
        let kind = usize::from(word & crate::memory::page::FILE != 0);
        self.note_scanned(kind, 1, u32::from(word & ACTIVE != 0));
        self.lru.add(&mut self.pages, p);
    }

    fn map_zero(&mut self, p: u32, access: Access, task: TaskId, out: &mut Effects) {
        let range = PageRange::one(PageIdx(p));
        out.push_merged(Effect::Map { range, source: crate::effect::Source::Zero, access }, self.base);
        if self.host.answers_moves {
            self.begin_flight(p, Flight::Mapping);
            self.note_map_access(p, access);
            self.wait_for(p, access, task, out);
            return;
        }
        self.set_mapped(p);
        self.pages.set(p, YOUNG | WRITABLE);
        out.push(Effect::Wake { task, page: PageIdx(p) });
    }

    fn step_swap_in(&mut self, job: &mut Job, out: &mut Effects) -> Option<Step> {
        let page = match job.next.take() {
            Some(page) => page,
            None => match self.window_next(&mut job.window) {
                Some(page) => page,
                None => return self.end_window(job, out),
            },
        };
        // Still only in its slot? Otherwise another task was first, or it is gone.
        if self.pages.state(page) != crate::memory::page::PageState::Swapped {
            return None;
        }
        let target = page == job.page;
        match self.charge(job, !target) {
            Charge::Got => {}
            Charge::Reclaim => {
                job.next = Some(page);
                return None;
            }
            Charge::Park(state) => {
                job.next = Some(page);
                return Some(Step::Park(state));
            }
            Charge::Fail => {
                return if target { Some(self.out_of_memory(job, out)) } else { None };
            }
        }
        if self.io.is_full() {
            self.uncharge_unused();
            if target {
                job.next = Some(page);
                return Some(Step::Park(JobState::WaitMemory));
            }
            return None;
        }
        self.read_page(page, target, out);
        if job.window.marker == Some(page) {
            self.pages.set(page, MARKER);
        }
        None
    }

    /// The window has been submitted: the target is awaited, or was brought by someone else.
    fn end_window(&mut self, job: &mut Job, out: &mut Effects) -> Option<Step> {
        if job.window.drains() {
            let rotated = self.lru.drain(&mut self.pages);
            self.count(Counter::pgrotated, rotated);
        }
        if self.pages.state(job.page) == crate::memory::page::PageState::Swapped
            && self.regions.find(job.page).is_some()
        {
            job.window = Window::one(job.page);
            return None;
        }
        self.fault(job.page, job.access, job.task, false, out);
        Some(Step::Done)
    }

    /// Return the charge for a page that was not taken after all.
    pub(crate) fn uncharge_unused(&mut self) {
        self.mem.charged -= 1;
        self.jobs.memory_freed();
    }

    /// Read a charged page from its slot into the swap cache.
    pub(crate) fn read_page(&mut self, p: u32, demand: bool, out: &mut Effects) {
        let shadow = self.pages.take_shadow(p);
        self.pages.clear(p, ACTIVE | READAHEAD | DIRTY | MAPPED | YOUNG);
        self.take_frame(p);
        if let Some(shadow) = shadow {
            self.refault(p, shadow);
        } else if self.cfg.balance == crate::config::Balance::LruCost2016 {
            self.note_cost(0, 1, 0);
        }
        if !demand {
            self.pages.set(p, READAHEAD);
            self.count(Counter::swap_ra, 1);
        } else {
            self.count(Counter::pt_demand_read, 1);
        }
        if self.cfg.swapin_active {
            self.pages.set(p, ACTIVE);
        }
        self.insert_lru(p);
        self.begin_flight(p, Flight::Reading);
        self.count(Counter::pswpin, 1);
        self.emit_read(p, demand, out);
    }

    fn emit_read(&mut self, p: u32, demand: bool, out: &mut Effects) {
        let slot = self.pages.slot(p).expect("I4: a swapped page has a slot");
        let (device, place) = self.swap.locate(slot);
        self.push_read(p, device, place, demand, out);
    }

    /// Order a read, together with its neighbour if that was ordered just now.
    pub(crate) fn push_read(&mut self, p: u32, device: DeviceId, place: SlotIdx, demand: bool, out: &mut Effects) {
        for old in out.recent_mut(self.base) {
            if old.touches(p) {
                break;
            }
            if let Effect::Read { io, device: d, slot: s, range, demand: wanted } = old {
                if *d != device || range.len >= crate::effect::RANGE_MAX {
                    continue;
                }
                if range.end().0 == p && s.0 + range.len == place.0 {
                    range.len += 1;
                } else if range.first.0 == p + 1 && s.0 == place.0 + 1 {
                    range.first = PageIdx(p);
                    *s = place;
                    range.len += 1;
                } else {
                    continue;
                }
                *wanted |= demand;
                let (io, range) = (*io, *range);
                let entry = self.io.get_mut(io).expect("it was made for this event");
                entry.range = range;
                entry.left += 1;
                return;
            }
        }
        let range = PageRange::one(PageIdx(p));
        let io = self.io.insert(range, false);
        out.push(Effect::Read { io, device, slot: place, range, demand });
    }

    /// Reclaim until a frame could be charged.
    fn step_room(&mut self, job: &mut Job) -> Option<Step> {
        match self.charge(job, false) {
            Charge::Got => self.uncharge_unused(),
            Charge::Reclaim => return None,
            Charge::Park(state) => return Some(Step::Park(state)),
            Charge::Fail => self.swapoff_failed(),
        }
        self.control.room_made();
        Some(Step::Done)
    }

    /// Reclaim until the charge is within a lowered budget.
    fn step_shrink(&mut self, job: &mut Job) -> Option<Step> {
        if self.mem.charged <= self.mem.budget || self.control.hold {
            return Some(Step::Done);
        }
        // Enough is on its way out: writing still more would push out what may stay.
        let leaving = self.sure.max(self.pending);
        if self.mem.charged.saturating_sub(leaving) <= self.mem.budget && leaving > 0 {
            return Some(Step::Park(JobState::WaitMemory));
        }
        if self.mem.stock > 0 {
            self.mem.charged -= core::mem::take(&mut self.mem.stock);
            return None;
        }
        if job.tries >= MAX_RECLAIM_RETRIES {
            // Nothing more can go; faults will find out for themselves.
            return Some(if self.is_waiting_worthwhile() { Step::Park(JobState::WaitMemory) } else { Step::Done });
        }
        job.run = Some(self.direct_run());
        None
    }
}
