//! The sides of a comparison: a program natively, under the kernel's limit and swap, or under `pagetide run`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pagetide_tests::MIB;
use pagetide_tests::cgroup::{Cgroup, KernelSwap};
use pagetide_tests::janitor::Janitor;
use pagetide_tests::kernel_swap::KernelSwapFile;
use pagetide_tests::need::{self, Feature};
use pagetide_tests::pagetide::{FaultMode, PagetideRun};
use pagetide_tests::program::{Exit, Finished, Program};
use pagetide_tests::scratch::Scratch;
use pagetide_tests::stats::Stats;
use pagetide_tests::victim;
use serde_json::Value;

use crate::Arguments;

/// Period of the samples of a running group's memory.
const SAMPLE_PERIOD: Duration = Duration::from_millis(5);

/// Who pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Nobody: no limit.
    Native,
    /// The kernel, in a memory cgroup.
    Kernel,
    /// `pagetide run`.
    Pagetide(FaultMode),
}

impl Side {
    /// For tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Kernel => "kernel",
            Self::Pagetide(FaultMode::Default | FaultMode::Thread) => "pagetide",
            Self::Pagetide(FaultMode::Signal) => "pagetide in signal mode",
        }
    }
}

/// One phase of memload.
#[derive(Clone, Debug)]
pub(crate) struct Phase {
    /// Accesses per second.
    pub(crate) pages_per_s: u64,
    /// Percentiles of the accesses that took 1 us or more.
    pub(crate) slow_p50_ns: u64,
    /// See `slow_p50_ns`.
    pub(crate) slow_p99_ns: u64,
}

/// A finished run and what was seen from outside.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The run.
    pub(crate) finished: Finished,
    /// `--stats`, of pagetide runs.
    pub(crate) stats: Option<Stats>,
    /// The most anonymous memory of the whole tree, ours included, in any sample; 0 if it was not watched.
    pub(crate) anon_peak_bytes: u64,
}

/// Everything a suite needs.
#[derive(Debug)]
pub(crate) struct Bench {
    pub(crate) runs: usize,
    pub(crate) quick: bool,
    pub(crate) budget_mib: u64,
    pub(crate) swappiness: u32,
    pub(crate) directory: PathBuf,
    pub(crate) reference_only: bool,
    memload: PathBuf,
    scratch: Scratch,
    _janitor: Janitor,
}

impl Bench {
    /// Compiles the load program and checks what the machine offers.
    pub(crate) fn new(arguments: &Arguments) -> Result<Self, String> {
        if !need::has(&[Feature::Root, Feature::Cgroup]) {
            return Err("the kernel's side needs root and the memory controller".to_owned());
        }
        let scratch = Scratch::new();
        let mut janitor = Janitor::start();
        janitor.at_end(&format!("rm -rf '{}'", scratch.path().display()));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("victims/memload.c");
        let memload = victim::compile(&source, &scratch.file("memload"), &[]);
        Ok(Self {
            runs: if arguments.quick { 1 } else { arguments.runs.max(1) },
            quick: arguments.quick,
            budget_mib: arguments.budget_mib,
            swappiness: arguments.swappiness,
            directory: arguments.directory.clone(),
            reference_only: arguments.reference_only,
            memload,
            scratch,
            _janitor: janitor,
        })
    }

    /// The directory for files of a suite.
    pub(crate) fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// memload over `mib` with `threads`, timing each access if `latency`.
    pub(crate) fn memload(&self, mib: u64, script: &str, threads: u32, latency: bool) -> Program {
        let mut argv: Vec<OsString> =
            vec![self.memload.clone().into(), mib.to_string().into(), script.into(), threads.to_string().into()];
        argv.extend(latency.then(|| "--latency".into()));
        Program::new(argv).deadline_s(300)
    }

    /// Runs `program` on `side` under the budget of the command line.
    pub(crate) fn run(&self, side: Side, program: &Program) -> Result<Outcome, String> {
        self.run_with(side, program, self.budget_mib * MIB)
    }

    /// Runs `program` on `side` under `budget_bytes`.
    pub(crate) fn run_with(&self, side: Side, program: &Program, budget_bytes: u64) -> Result<Outcome, String> {
        match side {
            Side::Native => judged(program.run(&self.scratch, "run"), None, 0),
            Side::Kernel => {
                let mut swap = KernelSwapFile::on(&self.directory, 16 * budget_bytes)?;
                let group = Cgroup::limited(budget_bytes, KernelSwap::Allowed(self.swappiness));
                swap.janitor().at_end(&group.removal_line());
                judged(program.clone().inside(&group).run(&self.scratch, "run"), None, 0)
            }
            Side::Pagetide(mode) => {
                let run = PagetideRun::new(&self.scratch, budget_bytes).mode(mode);
                judged(run.wrap(program).run(&self.scratch, "run"), Some(&run), 0)
            }
        }
    }

    /// Runs `program` under `pagetide run` and samples its tree's memory meanwhile. Not for timing: reading a group's
    /// statistics costs the group something.
    pub(crate) fn run_watched(&self, program: &Program) -> Result<Outcome, String> {
        let run = PagetideRun::new(&self.scratch, self.budget_mib * MIB);
        let group = Cgroup::counting();
        let running = run.wrap(program).inside(&group).start(&self.scratch, "run");
        let mut anon_peak_bytes = 0;
        while !running.ends_within(SAMPLE_PERIOD) && !running.is_late() {
            anon_peak_bytes = anon_peak_bytes.max(group.anon_bytes());
        }
        judged(running.finish(), Some(&run), anon_peak_bytes)
    }
}

fn judged(finished: Finished, run: Option<&PagetideRun>, anon_peak_bytes: u64) -> Result<Outcome, String> {
    if finished.exit != Exit::Code(0) {
        return Err(finished.report());
    }
    Ok(Outcome { finished, stats: run.map(PagetideRun::stats), anon_peak_bytes })
}

/// The phases that memload printed.
pub(crate) fn phases(outcome: &Outcome) -> Vec<Phase> {
    let parse = |line: &str| -> Phase {
        let object: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("memload printed {line}: {error}"));
        let number = |key: &str| object[key].as_u64().unwrap_or(0);
        Phase {
            pages_per_s: number("pages_per_s"),
            slow_p50_ns: number("slow_p50_ns"),
            slow_p99_ns: number("slow_p99_ns"),
        }
    };
    outcome.finished.stdout().lines().map(parse).collect()
}
