//! A task: what it touches, how long it thinks, what it has waited for.

use std::rc::Rc;

use pagetide_core::types::{Access, Nanos, PageIdx, PageRange};
use pagetide_trace::Op;
use pagetide_trace::dense::DenseTrace;

use crate::histogram::Histogram;
use crate::pattern::Walk;
use crate::rng::XorShift64;

/// What a task does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Touches a page.
    Touch(PageIdx, Access),
    /// Throws a page away (MADV_DONTNEED).
    Discard(PageIdx),
    /// Enters a call of the system.
    Call(Call),
    /// Computes, touching nothing that counts.
    Think(Nanos),
    /// A unit of its work (a transaction, a file) is done.
    UnitDone,
}

/// A call of the system that may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Reads pages of a file.
    Read(PageRange),
    /// Overwrites pages of a file.
    Write(PageRange),
    /// Waits until these pages of a file are on their disk.
    Sync(PageRange),
    /// Cuts these pages off a file; nothing of them may be in the page cache afterwards.
    Drop(PageRange),
    /// Writes to a disk past the page cache (the log of a database), and waits.
    WritePast {
        /// As `World::add_disk` names it.
        disk: usize,
        /// First page on the disk.
        at: u64,
        /// Pages.
        pages: u32,
    },
    /// Waits for the clock.
    Sleep(Nanos),
}

/// A program whose steps are computed.
pub trait Behaviour: std::fmt::Debug {
    /// What it does next at `now`; `None` at its end.
    fn step(&mut self, now: Nanos) -> Option<Step>;

    /// True as long as nothing is to be counted.
    fn is_filling(&self) -> bool {
        false
    }
}

/// Where a task's accesses come from.
#[derive(Debug)]
pub enum Program {
    /// A pattern over a region.
    Walk(WalkProgram),
    /// The records of a trace, in order.
    Trace {
        /// The trace.
        trace: Rc<DenseTrace>,
        /// The next record.
        next: usize,
    },
    /// Whatever the behaviour says.
    Custom(Box<dyn Behaviour>),
}

/// A pattern over a region, after writing all of it once if `fill` is not over.
#[derive(Debug)]
pub struct WalkProgram {
    /// The region.
    pub region: PageRange,
    /// The region is this task's alone, and goes with it when it is ended.
    pub owned: bool,
    /// The order of pages.
    pub walk: Walk,
    /// Of 100 accesses, so many are stores.
    pub write_percent: u32,
    /// Pages that were written by the filling.
    pub filled: u32,
    /// Accesses still to come, without filling; `None`: no end.
    pub left: Option<u64>,
    /// Decides pages and kinds.
    pub rng: XorShift64,
}

impl WalkProgram {
    fn step(&mut self) -> Option<Step> {
        if self.filled < self.region.len {
            let page = PageIdx(self.region.first.0 + self.filled);
            self.filled += 1;
            return Some(Step::Touch(page, Access::Write));
        }
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(1)?;
        }
        let page = PageIdx(self.region.first.0 + self.walk.step(&mut self.rng));
        let write = match self.write_percent {
            0 => false,
            100 => true,
            percent => self.rng.chance_bp(percent * 100),
        };
        Some(Step::Touch(page, if write { Access::Write } else { Access::Read }))
    }
}

impl Program {
    /// The next step; `None` at the end.
    #[inline]
    pub fn step(&mut self, now: Nanos) -> Option<Step> {
        match self {
            Self::Custom(behaviour) => behaviour.step(now),
            Self::Walk(program) => program.step(),
            Self::Trace { trace, next } => {
                let record = trace.records.get(*next)?;
                *next += 1;
                let page = PageIdx(record.page());
                Some(match record.op() {
                    Op::Read => Step::Touch(page, Access::Read),
                    Op::Write => Step::Touch(page, Access::Write),
                    Op::Discard => Step::Discard(page),
                })
            }
        }
    }

    /// True while the region is being written for the first time.
    pub fn is_filling(&self) -> bool {
        match self {
            Self::Custom(behaviour) => behaviour.is_filling(),
            Self::Walk(program) => program.filled < program.region.len,
            Self::Trace { .. } => false,
        }
    }
}

/// What a task is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskState {
    /// Not begun.
    New,
    /// Has work but no CPU.
    Ready,
    /// Has a CPU.
    Running,
    /// Waits for its fault to be answered.
    Waiting,
    /// At its end.
    Done,
}

/// What a task has done.
#[derive(Clone, Debug, Default)]
pub struct TaskStats {
    /// Accesses, filling not counted.
    pub accesses: u64,
    /// Faults on the way.
    pub faults: u64,
    /// CPU time of paging in its faults and calls.
    pub system_ns: Nanos,
    /// How much longer than a hit the accesses took that were the first of their page.
    pub first_touch_ns: Nanos,
    /// Of all accesses counted: how long each took.
    pub latency: Histogram,
    /// When the counting began (the filling was over).
    pub counted_from: Nanos,
    /// When the task ended.
    pub ended_at: Option<Nanos>,
    /// Accesses of pages whose content was lost and who said so.
    pub poisoned: u64,
    /// The task was ended for want of memory.
    pub out_of_memory: bool,
    /// How long each unit of its work took.
    pub units: Histogram,
}

/// One thread of the simulated program.
#[derive(Debug)]
pub struct Task {
    /// What it does.
    pub program: Program,
    /// Its state.
    pub state: TaskState,
    /// The moment up to which it has computed.
    pub clock: Nanos,
    /// CPU time before each access.
    pub think_ns: Nanos,
    /// CPU time of an access that hits.
    pub access_ns: Nanos,
    /// The access that faulted and is to be tried again, and when it was tried first.
    pub pending: Option<(PageIdx, Access, Nanos)>,
    /// The access that faulted was done when its fault was answered.
    pub served: bool,
    /// The access that faulted is the first of its page.
    pub is_first_touch: bool,
    /// The call that it is in, and since when.
    pub call: Option<(Call, Nanos)>,
    /// When the unit of work at hand began.
    pub unit_from: Nanos,
    /// Since when it has its CPU.
    pub slice_from: Nanos,
    /// The filling is over: what comes is counted.
    pub is_counting: bool,
    /// Hits that took exactly `access_ns`, not yet in the histogram.
    pub plain_hits: u64,
    /// What it has done.
    pub stats: TaskStats,
}

impl Task {
    /// A task that has not begun.
    pub fn new(program: Program, think_ns: Nanos, access_ns: Nanos) -> Self {
        Self {
            program,
            state: TaskState::New,
            clock: 0,
            think_ns,
            access_ns: access_ns.max(1),
            pending: None,
            served: false,
            is_first_touch: false,
            call: None,
            unit_from: 0,
            slice_from: 0,
            is_counting: false,
            plain_hits: 0,
            stats: TaskStats::default(),
        }
    }

    /// The accesses of the filling are no part of the statistics: begin again at `now`.
    pub fn begin_counting(&mut self, now: Nanos) {
        self.is_counting = true;
        self.plain_hits = 0;
        self.stats = TaskStats { counted_from: now, poisoned: self.stats.poisoned, ..TaskStats::default() };
    }

    /// Puts the plain hits into the histogram.
    pub fn settle(&mut self) {
        self.stats.latency.record_n(self.access_ns, self.plain_hits);
        self.plain_hits = 0;
    }

    /// An access is done that was tried first at `tried_at`; `cost` is that of a hit with its thinking.
    #[inline]
    pub fn count_access(&mut self, tried_at: Nanos, cost: Nanos) {
        self.stats.accesses += 1;
        if tried_at == self.clock + self.think_ns {
            self.clock += cost;
            self.plain_hits += 1;
        } else {
            self.clock = self.clock.max(tried_at) + self.access_ns;
            self.stats.latency.record(self.clock - tried_at);
            if std::mem::take(&mut self.is_first_touch) {
                self.stats.first_touch_ns += self.clock - tried_at - self.access_ns;
            }
        }
    }

    /// The call that it was in is over: it counts as an access.
    pub fn settle_call(&mut self) {
        let Some((call, began)) = self.call.take() else { return };
        match call {
            Call::Read(_) | Call::Write(_) | Call::Sync(_) | Call::WritePast { .. } => {
                self.stats.accesses += 1;
                self.stats.latency.record(self.clock - began);
            }
            Call::Drop(_) | Call::Sleep(_) => {}
        }
    }

    /// A unit of work is done.
    pub fn unit_done(&mut self) {
        self.stats.units.record(self.clock - self.unit_from.max(self.stats.counted_from));
        self.unit_from = self.clock;
    }
}
