//! The border to the live runtime: what `run` hands over and gets back.

use std::ffi::OsString;
use std::path::PathBuf;

use crate::failure::Failure;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultMode {
    Auto,
    Thread,
    Signal,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IfUnsupported {
    Refuse,
    Run,
}
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SwapSpec {
    pub(crate) path: PathBuf,
    pub(crate) size_bytes: Option<u64>,
    pub(crate) priority: Option<i16>,
}
#[derive(Clone, Debug)]
pub(crate) struct RunOptions {
    pub(crate) budget_bytes: u64,
    pub(crate) swap: Vec<SwapSpec>,
    pub(crate) settings: Vec<(String, String)>,
    pub(crate) fault_mode: FaultMode,
    pub(crate) command: Vec<OsString>,
    pub(crate) preload: PathBuf,
    pub(crate) if_unsupported: IfUnsupported,
}
#[derive(Clone, Copy, Debug)]
pub(crate) struct LatencySummary {
    pub(crate) count: u64,
    pub(crate) p50: u64,
    pub(crate) p90: u64,
    pub(crate) p99: u64,
    pub(crate) max: u64,
}
#[derive(Clone, Debug)]
pub(crate) struct RunReport {
    pub(crate) exit_status: i32,
    pub(crate) memory_budget_bytes: u64,
    pub(crate) peak_resident_bytes: u64,
    pub(crate) peak_overhead_bytes: u64,
    pub(crate) peak_metadata_bytes: u64,
    pub(crate) peak_managed_bytes: u64,
    pub(crate) processes: u32,
    pub(crate) managed_processes: u32,
    pub(crate) vmstat: Vec<(&'static str, u64)>,
    pub(crate) fault_latency_ns: LatencySummary,
}
/// Smallest budget.
pub(crate) const BUDGET_BYTES_MIN: u64 = 8 << 20;

pub(crate) fn run(options: &RunOptions) -> Result<RunReport, Failure> {
    Err(Failure::unsupported(format!("this build has no live runtime: {options:?}"), "use one that has"))
}
