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
    pub fn step(&mut self) -> Option<Step> {
        match self {
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
    pub const fn is_filling(&self) -> bool {
        match self {
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
}
