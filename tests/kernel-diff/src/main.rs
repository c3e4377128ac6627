//! `make kernel-diff`: the same scripts on the real kernel and in the simulator, counter by counter.
//!
//! The kernel side runs a small C player in a memory cgroup of version 1 with loop devices as swap; the simulator's side
//! is `pagetide sim script`. What it sets on the machine (swap devices, page-cluster, readahead mode) is undone whatever
//! happens. It needs root and a quiet machine: slots and swap counters are global. It is no test of the core alone: a
//! difference may be the machine's noise, so every figure is printed and the distribution is what counts.

mod loop_swap;
mod rows;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, ExitCode};

use loop_swap::LoopSwap;
use pagetide_sim::script::{ScriptSpec, run_script};
use pagetide_tests::cgroup::{Cgroup, KernelSwap};
use pagetide_tests::scratch::Scratch;
use rows::Row;
use serde_json::json;

/// The counters that are compared.
const COUNTERS: [&str; 11] = [
    "pswpin",
    "pswpout",
    "pgscan_anon",
    "pgsteal_anon",
    "pgactivate",
    "pgdeactivate",
    "pgmajfault",
    "swap_ra",
    "swap_ra_hit",
    "workingset_refault_anon",
    "workingset_activate_anon",
];

/// A difference of so many pages is noise of the process's own pages, whatever the relative error.
const PAGES_OF_NOISE: u64 = 40;

/// The kernel's value is the median of so many runs.
const KERNEL_RUNS: usize = 3;

/// Changes of counters per phase.
type Phases = Vec<(String, BTreeMap<String, u64>)>;

/// One counter of one phase, on both sides.
struct Compared {
    row: String,
    phase: String,
    counter: &'static str,
    /// Median of the kernel's runs.
    kernel: u64,
    /// Largest of them less the smallest.
    spread: u64,
    simulated: u64,
}

impl Compared {
    /// Relative error in 1/100 %, 0 within the noise.
    fn error_bp(&self) -> u64 {
        let difference = self.kernel.abs_diff(self.simulated);
        if difference <= PAGES_OF_NOISE { 0 } else { difference * 10_000 / self.kernel.max(1) }
    }

    /// How far the kernel's own runs lie apart, likewise.
    fn spread_bp(&self) -> u64 {
        if self.spread <= PAGES_OF_NOISE { 0 } else { self.spread * 10_000 / self.kernel.max(1) }
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let as_json = arguments.iter().any(|a| a == "--json");
    let wanted: Vec<&String> = arguments.iter().filter(|a| *a != "--json").collect();
    let mut all = Vec::new();
    let mut failed = false;
    for row in
        rows::all().iter().filter(|row| wanted.is_empty() || wanted.iter().any(|w| row.name.contains(w.as_str())))
    {
        match compare(row) {
            Ok(compared) => {
                if !as_json {
                    print(row, &compared);
                }
                all.extend(compared);
            }
            Err(error) => {
                say(&format!("{}: {error}", row.name));
                failed = true;
            }
        }
    }
    summary(&all, as_json);
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

#[expect(clippy::print_stdout, reason = "the report is the program's purpose")]
fn out(line: &str) {
    println!("{line}");
}

fn say(line: &str) {
    eprintln!("kernel-diff: {line}");
}

fn compare(row: &Row) -> Result<Vec<Compared>, String> {
    let runs = (0..KERNEL_RUNS).map(|_| on_kernel(row)).collect::<Result<Vec<Phases>, String>>()?;
    let simulated = simulate(row)?;
    let mut compared = Vec::new();
    for (at, (phase, simulated)) in simulated.iter().enumerate() {
        for counter in COUNTERS {
            let get = |side: &BTreeMap<String, u64>| side.get(counter).copied().unwrap_or(0);
            let of_phase = |run: &Phases| run.get(at).filter(|(name, _)| name == phase).map(|(_, side)| get(side));
            let mut values =
                runs.iter().map(of_phase).collect::<Option<Vec<u64>>>().ok_or("the player left a phase out")?;
            values.sort_unstable();
            compared.push(Compared {
                row: row.name.clone(),
                phase: phase.clone(),
                counter,
                kernel: values[values.len() / 2],
                spread: values[values.len() - 1] - values[0],
                simulated: get(simulated),
            });
        }
    }
    Ok(compared)
}

fn simulate(row: &Row) -> Result<Phases, String> {
    let mut spec = ScriptSpec::new(&row.script, row.pages, row.memory, "linux-6.18");
    spec.settings = vec![
        format!("page-cluster={}", row.page_cluster),
        format!("readahead={}", if row.vma { "vma" } else { "cluster" }),
        format!("swappiness={}", row.swappiness),
    ];
    // The player reads memory.stat every 200 accesses, so the kernel decides by fresh statistics.
    spec.stat_interval_ns = 0;
    spec.devices = row.devices.iter().map(|d| (d.pages + 1, d.priority)).collect();
    let result = run_script(&spec).map_err(|e| format!("simulator: {e}"))?;
    let phases = result.iter().map(|phase| {
        let counters = phase.vmstat.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        (phase.phase.clone(), counters)
    });
    Ok(phases.collect())
}

fn on_kernel(row: &Row) -> Result<Phases, String> {
    let _turn = pagetide_tests::serial::turn();
    let scratch = Scratch::new();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("player.c");
    let player = pagetide_tests::victim::compile(&source, &scratch.file("player"), &[]);
    let cluster = row.page_cluster.to_string();
    let settings = [
        ("/proc/sys/vm/page-cluster", cluster.as_str()),
        ("/sys/kernel/mm/swap/vma_ra_enabled", if row.vma { "true" } else { "false" }),
    ];
    let swap = LoopSwap::on(scratch.path(), &row.devices, &settings)?;
    let group = Cgroup::limited(u64::from(row.memory) * 4096, KernelSwap::Allowed(row.swappiness));
    let procs = group.procs_file();
    let directory = procs.parent().ok_or("a cgroup has a directory")?;
    let output = Command::new(player)
        .arg(&procs)
        .arg(directory.join("memory.stat"))
        .arg(directory.join("memory.limit_in_bytes"))
        .arg(swap.first())
        .arg(row.pages.to_string())
        .args(row.script.split_whitespace())
        .output()
        .map_err(|e| format!("player: {e}"))?;
    if !output.status.success() {
        return Err(format!("player: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()));
    }
    parse(&String::from_utf8_lossy(&output.stdout))
}

/// The player's output: `phase NAME`, then `counter change`.
fn parse(text: &str) -> Result<Phases, String> {
    let mut phases: Phases = Vec::new();
    for line in text.lines() {
        let (name, value) = line.split_once(' ').ok_or_else(|| format!("player said `{line}`"))?;
        if name == "phase" {
            phases.push((value.to_owned(), BTreeMap::new()));
        } else if let (Some((_, counters)), Ok(value)) = (phases.last_mut(), value.parse::<u64>()) {
            // Gauges may fall; they are not compared.
            counters.insert(name.to_owned(), value);
        }
    }
    Ok(phases)
}

fn print(row: &Row, compared: &[Compared]) {
    out(&format!("\n{}: {}", row.name, row.describe()));
    out(&format!(
        "{:<10} {:<26} {:>10} {:>10} {:>9} {:>12}",
        "phase", "counter", "kernel", "simulated", "error", "its spread"
    ));
    for c in compared.iter().filter(|c| c.kernel > PAGES_OF_NOISE || c.simulated > PAGES_OF_NOISE) {
        let (error, spread) = (c.error_bp(), c.spread_bp());
        out(&format!(
            "{:<10} {:<26} {:>10} {:>10} {:>5}.{:02} % {:>7}.{:02} %",
            c.phase,
            c.counter,
            c.kernel,
            c.simulated,
            error / 100,
            error % 100,
            spread / 100,
            spread % 100
        ));
    }
}

/// The distribution of the errors of all counters that are more than noise, and of the kernel's own spread.
fn summary(all: &[Compared], as_json: bool) {
    let counted: Vec<&Compared> = all.iter().filter(|c| c.kernel > PAGES_OF_NOISE || c.error_bp() > 0).collect();
    let sorted = |value: fn(&Compared) -> u64, only: Option<&str>| {
        let chosen = counted.iter().filter(|c| only.is_none_or(|name| c.counter == name));
        let mut values: Vec<u64> = chosen.map(|c| value(c)).collect();
        values.sort_unstable();
        values
    };
    let errors = sorted(Compared::error_bp, None);
    let spreads = sorted(Compared::spread_bp, None);
    if as_json {
        let item = |c: &Compared| {
            json!({"row": c.row, "phase": c.phase, "counter": c.counter, "kernel": c.kernel,
                   "kernel_spread": c.spread, "simulated": c.simulated})
        };
        let rows: Vec<_> = all.iter().map(item).collect();
        let report = json!({"rows": rows, "compared": errors.len(), "median_error_bp": percentile(&errors, 50),
            "p90_error_bp": percentile(&errors, 90), "p95_error_bp": percentile(&errors, 95),
            "kernel_median_spread_bp": percentile(&spreads, 50), "kernel_p95_spread_bp": percentile(&spreads, 95)});
        out(&report.to_string());
        return;
    }
    out(&format!("\n{} values compared; in %:      error   kernel's own spread of {KERNEL_RUNS} runs", errors.len()));
    for p in [50, 75, 90, 95, 99] {
        out(&format!("  p{p:<3} {:>28} {:>12}", percent(percentile(&errors, p)), percent(percentile(&spreads, p))));
    }
    for counter in COUNTERS {
        let of = sorted(Compared::error_bp, Some(counter));
        let (median, p95) = (percent(percentile(&of, 50)), percent(percentile(&of, 95)));
        out(&format!("  {counter:<26} {:>4} values, error median {median}, p95 {p95}", of.len()));
    }
}

fn percentile(sorted: &[u64], p: usize) -> u64 {
    sorted.get((sorted.len() * p / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0)
}

fn percent(bp: u64) -> String {
    format!("{}.{:02}", bp / 100, bp % 100)
}
