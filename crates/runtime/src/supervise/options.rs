//! What a run is asked for, and what it reports: plain values.

use std::ffi::OsString;
use std::path::PathBuf;

use pagetide_core::absences::Absences;
use pagetide_core::types::Nanos;

use crate::control::LatencySummary;
use crate::spans::ProcessSpans;
use crate::watch::Snapshot;

/// How faults are caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultMode {
    /// The best that the machine offers.
    Auto,
    /// A thread of ours reads them from a full userfaultfd.
    Thread,
    /// The faulting thread handles its own fault in a signal handler.
    Signal,
}

/// What to do when the machine cannot page for the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfUnsupported {
    /// Say why, and do not start it.
    Refuse,
    /// Start it without a budget.
    Run,
}

/// A place to swap to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapSpec {
    /// A directory, or a file whose directory is meant: the swap file itself has no name.
    pub path: PathBuf,
    /// Its size at most; `None`: what is free, at most 16 times the budget.
    pub size_bytes: Option<u64>,
    /// 0..=32767, higher is used first; `None`: after those, in the order given.
    pub priority: Option<i16>,
}

/// A run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// What the program's processes together may keep resident, in bytes.
    pub budget_bytes: u64,
    /// Where to swap.
    pub swap: Vec<SwapSpec>,
    /// Knobs of the policy, in order.
    pub settings: Vec<(String, String)>,
    /// How faults are caught.
    pub fault_mode: FaultMode,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// What it is called by those who watch it; None: by its process number. See [`crate::watch::check_name`].
    pub name: Option<String>,
    /// Absolute path of the preload object.
    pub preload: PathBuf,
    /// Record all events of each process under management in this file's directory: its name, a dot and the process.
    pub record: Option<PathBuf>,
    /// What to do without what paging needs.
    pub if_unsupported: IfUnsupported,
    /// Time between two tellings of how it goes, at least. None: it is told at the end only.
    pub progress_ns: Option<Nanos>,
    /// Tell what the processes did with their time, too.
    pub draws_spans: bool,
}

/// What is known of a run at a moment.
#[derive(Clone, Debug)]
pub struct Progress {
    /// What was counted so far.
    pub report: RunReport,
    /// How it goes.
    pub snapshot: Snapshot,
    /// What the processes did with their time since the last telling, if that was asked for.
    pub spans: Vec<ProcessSpans>,
}

/// How a run went.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// Of the first process, as a shell says it: the status, or 128 + the signal. None while any process of the run goes on.
    pub exit_status: Option<i32>,
    /// The budget.
    pub memory_budget_bytes: u64,
    /// The most that was resident: the processes' anonymous memory, our frames and our metadata. What processes share since a fork
    /// counts once.
    pub peak_resident_bytes: u64,
    /// Of that, at most: our frames that held nothing, and our metadata.
    pub peak_overhead_bytes: u64,
    /// Our metadata alone, at most.
    pub peak_metadata_bytes: u64,
    /// Memory under management, at most.
    pub peak_managed_bytes: u64,
    /// Memory that is not paged, in bytes, by the reasons of [`UNPAGED`](crate::UNPAGED): what one process had of each, at most.
    pub peak_unpaged_bytes: Vec<(&'static str, u64)>,
    /// Counters by their kernel name, then those of the machine.
    pub vmstat: Vec<(&'static str, u64)>,
    /// How long it has run, in nanoseconds.
    pub elapsed_ns: u64,
    /// How long pages stayed away that came back.
    pub absences: Absences,
    /// Fault latency.
    pub fault_latency_ns: LatencySummary,
    /// Program images that ran (a process counts again at exec).
    pub processes: u32,
    /// Those whose memory came under management.
    pub managed_processes: u32,
}
