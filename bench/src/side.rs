//! The sides of a comparison: a program natively, under the kernel's limit and swap, or under `pagetide run`.

use std::cell::RefCell;
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
use crate::contest::Counts;

/// Period of the samples of a running group's memory.
const SAMPLE_PERIOD: Duration = Duration::from_millis(5);
/// Period of the looks at the kernel's compressed pages.
const POOL_PERIOD: Duration = Duration::from_millis(100);

/// Who pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Nobody: no limit.
    Native,
    /// The kernel, in a memory cgroup.
    Kernel,
    /// The same with the kernel's compressed cache before the swap file, and its compressor.
    Zswap(&'static str),
    /// `pagetide run`, as shipped.
    Pagetide(FaultMode),
    /// The same with this value of its setting `compress`.
    Compressing(FaultMode, &'static str),
}

impl Side {
    /// For tables.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Kernel => "kernel",
            Self::Zswap("lzo") => "zswap lzo",
            Self::Zswap("lz4") => "zswap lz4",
            Self::Zswap(_) => "zswap",
            Self::Pagetide(FaultMode::Default | FaultMode::Thread) => "pagetide",
            Self::Pagetide(FaultMode::Signal) => "pagetide signal",
            Self::Compressing(FaultMode::Signal, "lz4") => "pagetide signal lz4",
            Self::Compressing(FaultMode::Signal, _) => "pagetide signal off",
            Self::Compressing(_, "lz4") => "pagetide lz4",
            Self::Compressing(..) => "pagetide off",
        }
    }

    /// True of `pagetide run`.
    pub(crate) const fn is_ours(self) -> bool {
        matches!(self, Self::Pagetide(_) | Self::Compressing(..))
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
    /// What the pager counted; nothing of native runs.
    pub(crate) counts: Counts,
    /// How often the kernel killed for memory, on its sides.
    pub(crate) oom_kills: u64,
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
    pub(crate) small: bool,
    pub(crate) deadline_s: u64,
    rows: Option<String>,
    sides: Vec<String>,
    settings: Vec<String>,
    log: RefCell<Vec<Value>>,
    hotload: PathBuf,
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
        let hotload = victim::compile(&source.with_file_name("hotload.c"), &scratch.file("hotload"), &["-lm"]);
        Ok(Self {
            runs: if arguments.quick { 1 } else { arguments.runs.max(1) },
            quick: arguments.quick,
            budget_mib: arguments.budget_mib,
            swappiness: arguments.swappiness,
            directory: arguments.directory.clone(),
            reference_only: arguments.reference_only,
            small: arguments.small,
            deadline_s: arguments.deadline_s,
            rows: arguments.row.clone(),
            sides: arguments.sides.clone(),
            settings: arguments.settings.clone(),
            log: RefCell::new(Vec::new()),
            hotload,
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
        self.outcome(side, program, budget_bytes).and_then(judged)
    }

    /// The same, however it ends.
    pub(crate) fn outcome(&self, side: Side, program: &Program, budget_bytes: u64) -> Result<Outcome, String> {
        match side {
            Side::Native => Ok(Outcome::of(program.run(&self.scratch, "run"), None)),
            Side::Kernel => {
                let swap = KernelSwapFile::on(&self.directory, 16 * budget_bytes)?;
                Ok(self.limited(program, budget_bytes, swap))
            }
            Side::Zswap(compressor) => {
                let swap = KernelSwapFile::on(&self.directory, 16 * budget_bytes)?.compressed_by(compressor)?;
                Ok(self.limited(program, budget_bytes, swap))
            }
            Side::Pagetide(mode) | Side::Compressing(mode, _) => {
                let mut run = PagetideRun::new(&self.scratch, budget_bytes).mode(mode);
                for setting in &self.settings {
                    run = run.argument("--set").argument(setting);
                }
                if let Side::Compressing(_, how) = side {
                    run = run.argument("--set").argument(format!("compress={how}"));
                }
                // A run that is killed leaves none: that of the run before is not its own.
                let _ = std::fs::remove_file(run.stats_path());
                Ok(Outcome::of(run.wrap(program).run(&self.scratch, "run"), Some(&run)))
            }
        }
    }

    /// `program` in a group of its own while `swap` is on. The size of the compressed cache is looked at ten times a second, which
    /// reads one file of the whole machine and costs the group nothing.
    fn limited(&self, program: &Program, budget_bytes: u64, mut swap: KernelSwapFile) -> Outcome {
        let group = Cgroup::limited(budget_bytes, KernelSwap::Allowed(self.swappiness));
        swap.janitor().at_end(&group.removal_line());
        let before = Vmstat::read();
        let running = program.clone().inside(&group).start(&self.scratch, "run");
        let mut pool_peak_bytes = 0;
        while !running.ends_within(POOL_PERIOD) && !running.is_late() {
            pool_peak_bytes = pool_peak_bytes.max(zswap_pool_bytes());
        }
        let mut outcome = Outcome::of(running.finish(), None);
        let after = Vmstat::read();
        let difference = |names: &[&str]| names.iter().map(|name| after.counter(name) - before.counter(name)).sum();
        outcome.oom_kills = group.oom_kills();
        let (ahead, ahead_used) = (difference(&["swap_ra"]), difference(&["swap_ra_hit"]));
        outcome.counts = Counts {
            major_faults: group.major_faults(),
            pages_in: difference(&["pswpin", "zswpin"]),
            pages_out: difference(&["pswpout", "zswpout"]),
            ahead,
            ahead_used,
            // The kernel maps no page before it is asked for: what is not a hit went without.
            ahead_unused: ahead.saturating_sub(ahead_used),
            pool_peak_bytes,
        };
        outcome
    }

    /// True if `--row` names a row of this name: all its words occur in it.
    pub(crate) fn wants(&self, row: &str) -> bool {
        self.rows.as_ref().is_none_or(|words| words.split_whitespace().all(|word| row.contains(word)))
    }

    /// True if `--side` was not given or names this one; `zswap` names both of its compressors.
    pub(crate) fn runs_on(&self, side: Side) -> bool {
        let is_named = |name: &String| side.name() == name || matches!(side, Side::Zswap(_)) && name == "zswap";
        let wanted = self.sides.is_empty() || self.sides.iter().any(is_named);
        // What is compressed is chosen by name only.
        let is_wanted = if matches!(side, Side::Compressing(..)) { self.sides.iter().any(is_named) } else { wanted };
        is_wanted && !(self.reference_only && side.is_ours())
    }

    /// The program of the suite `hot`.
    pub(crate) fn hotload(&self) -> PathBuf {
        self.hotload.clone()
    }

    /// Keeps what `--json` writes of one run.
    pub(crate) fn log(&self, run: Value) {
        self.log.borrow_mut().push(run);
    }

    /// Everything that was logged.
    pub(crate) fn logged(&self) -> Vec<Value> {
        self.log.borrow().clone()
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
        let outcome = Outcome { anon_peak_bytes, ..Outcome::of(running.finish(), Some(&run)) };
        judged(outcome)
    }
}

impl Outcome {
    fn of(finished: Finished, run: Option<&PagetideRun>) -> Self {
        let stats = run.filter(|run| run.stats_path().exists()).map(PagetideRun::stats);
        let counts = stats.as_ref().map_or_else(Counts::default, |stats| Counts {
            major_faults: stats.counter("pgmajfault"),
            pages_in: stats.counter("pswpin") + stats.counter_if_any("zswpin"),
            pages_out: stats.counter("pswpout") + stats.counter_if_any("zswpout"),
            ahead: stats.counter("swap_ra"),
            ahead_used: stats.counter("swap_ra_hit"),
            ahead_unused: stats.counter("pt_ra_unused"),
            pool_peak_bytes: 0,
        });
        Self { finished, stats, anon_peak_bytes: 0, counts, oom_kills: 0 }
    }
}

fn judged(outcome: Outcome) -> Result<Outcome, String> {
    if outcome.finished.exit == Exit::Code(0) { Ok(outcome) } else { Err(outcome.finished.report()) }
}

/// The kernel's counters of the whole machine; the reference is its only swap user.
struct Vmstat(String);

impl Vmstat {
    fn read() -> Self {
        Self(std::fs::read_to_string("/proc/vmstat").unwrap_or_default())
    }

    fn counter(&self, name: &str) -> u64 {
        let value = self.0.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.and_then(|value| value.parse().ok()).unwrap_or(0)
    }
}

fn zswap_pool_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let value =
        text.lines().find_map(|line| line.strip_prefix("Zswap:")?.split_whitespace().next()?.parse::<u64>().ok());
    value.unwrap_or(0) * 1024
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
