//! `make kernel-diff`: the same scripts on the real kernel and in the simulator, counter by counter.
//!
//! The kernel side runs a small C player in a memory cgroup of version 1 with loop devices as swap; the simulator's side
//! is `pagetide sim script`. What it sets on the machine (swap devices, page-cluster, readahead mode) is undone whatever
//! happens. It needs root and a quiet machine: slots and swap counters are global. It is no test of the core alone: a
//! difference may be the machine's noise, so every figure is printed and the distribution is what counts.

mod file_system;
mod kept;
mod kernel;
mod loop_swap;
mod loops;
mod record;
mod rows;

use std::collections::BTreeMap;
use std::process::ExitCode;

use kept::Kept;
use kernel::{Measured, Phases};
use pagetide_sim::script::{ScriptSpec, Timing, run_script};
use record::Recording;
use rows::Row;
use serde_json::json;

/// The counters that are compared.
const COUNTERS: [&str; 15] = [
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
    "pgscan_file",
    "pgsteal_file",
    "workingset_refault_file",
    "workingset_activate_file",
];

/// A difference of so many pages is noise of the process's own pages, whatever the relative error.
const PAGES_OF_NOISE: u64 = 40;

/// The kernel's value is the median of so many runs.
const KERNEL_RUNS: usize = 3;

/// The player reads memory.stat so often.
const STAT_ACCESSES: u32 = 200;

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
    /// Other programs were busy in one of the kernel's runs.
    disturbed: bool,
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

/// Pages of the player itself that count against the limit.
const PLAYER_PAGES: u32 = 16;

/// What the command line asks for.
struct Arguments {
    json: bool,
    /// Only the simulator's side.
    simulate: bool,
    /// Where the kernel's runs are kept: rows found there are not measured again.
    kept: Option<Kept>,
    /// Parts of row names; none: all rows.
    wanted: Vec<String>,
}

const USAGE: &str = "the options are --json, --simulate (no kernel), --keep=DIRECTORY (runs of the kernel, kept and used \
                     again); other words choose rows by a part of their name";

fn arguments() -> Result<Arguments, String> {
    let mut arguments = Arguments { json: false, simulate: false, kept: None, wanted: Vec::new() };
    for word in std::env::args().skip(1) {
        if word == "--json" {
            arguments.json = true;
        } else if word == "--simulate" {
            arguments.simulate = true;
        } else if let Some(directory) = word.strip_prefix("--keep=") {
            arguments.kept = Some(Kept::new(directory)?);
        } else if word.starts_with("--") {
            return Err(format!("{word}: {USAGE}"));
        } else {
            arguments.wanted.push(word);
        }
    }
    Ok(arguments)
}

fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(error) => {
            say(&error);
            return ExitCode::from(2);
        }
    };
    let mut all = Vec::new();
    let mut failed = false;
    let mut recording = None;
    let is_wanted = |row: &Row| {
        arguments.wanted.is_empty() || arguments.wanted.iter().any(|wanted| row.name.contains(wanted.as_str()))
    };
    for row in rows::all().iter().filter(|row| is_wanted(row)) {
        match one_row(row, &arguments, &mut recording) {
            Ok(compared) => all.extend(compared),
            Err(error) => {
                say(&format!("{}: {error}", row.name));
                failed = true;
            }
        }
    }
    if !arguments.simulate {
        summary(&all, arguments.json);
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn one_row(row: &Row, arguments: &Arguments, recording: &mut Option<Recording>) -> Result<Vec<Compared>, String> {
    if row.traced && recording.is_none() {
        *recording = Some(match &arguments.kept {
            Some(kept) => record::record_once(&kept.trace())?,
            None => record::record()?,
        });
    }
    let recording = recording.as_ref().filter(|_| row.traced);
    let row = row.with_trace(recording.map_or(0, |r| r.pages));
    let simulated = simulate(&row, recording)?;
    if arguments.simulate {
        for (phase, counters) in simulated {
            let shown: Vec<String> =
                COUNTERS.iter().map(|name| format!("{name} {}", counters.get(*name).unwrap_or(&0))).collect();
            out(&format!("{} {phase}: {}", row.name, shown.join(", ")));
        }
        return Ok(Vec::new());
    }
    let kept = arguments.kept.as_ref().map_or(Ok(None), |kept| kept.load(&row))?;
    let measured = if let Some(measured) = kept {
        measured
    } else {
        let measured = kernel::measure(&row, recording.map(|r| r.file.as_path()), KERNEL_RUNS)?;
        arguments.kept.as_ref().map_or(Ok(()), |kept| kept.save(&row, &measured))?;
        measured
    };
    let compared = compare(&row, &measured, &simulated)?;
    if !arguments.json {
        print(&row, &compared, measured.disturbed);
    }
    Ok(compared)
}

#[expect(clippy::print_stdout, reason = "the report is the program's purpose")]
fn out(line: &str) {
    println!("{line}");
}

fn say(line: &str) {
    eprintln!("kernel-diff: {line}");
}

fn compare(row: &Row, measured: &Measured, simulated: &Phases) -> Result<Vec<Compared>, String> {
    let mut compared = Vec::new();
    for (at, (phase, simulated)) in simulated.iter().enumerate() {
        for counter in COUNTERS {
            let get = |side: &BTreeMap<String, u64>| side.get(counter).copied().unwrap_or(0);
            let of_phase = |run: &Phases| run.get(at).filter(|(name, _)| name == phase).map(|(_, side)| get(side));
            let mut values = measured
                .runs
                .iter()
                .map(of_phase)
                .collect::<Option<Vec<u64>>>()
                .ok_or("the player left a phase out")?;
            values.sort_unstable();
            compared.push(Compared {
                row: row.name.clone(),
                phase: phase.clone(),
                counter,
                // Other programs' reads of files activate pages, too, and only the sum is to be had: the least is nearest.
                kernel: if counter == "pgactivate" { values[0] } else { values[values.len() / 2] },
                spread: values[values.len() - 1] - values[0],
                simulated: get(simulated),
                disturbed: measured.disturbed > 0,
            });
        }
    }
    Ok(compared)
}

fn simulate(row: &Row, recording: Option<&Recording>) -> Result<Phases, String> {
    let mut spec = ScriptSpec::new(&row.script, 1, row.memory, "linux-6.18");
    spec.regions.clone_from(&row.regions);
    spec.processes = row.processes;
    // What the player had before it joined the group is charged elsewhere.
    spec.process_pages = PLAYER_PAGES;
    spec.settings = vec![
        format!("page-cluster={}", row.page_cluster),
        format!("readahead={}", if row.vma { "vma" } else { "cluster" }),
        format!("swappiness={}", row.swappiness),
    ];
    spec.stat_accesses = STAT_ACCESSES;
    spec.devices = row.devices.iter().map(|d| (d.pages + 1, d.priority)).collect();
    spec.file_pages = row.file;
    spec.timing = Timing::MEMORY;
    spec.trace = recording.map(|r| r.accesses.clone()).unwrap_or_default();
    let result = run_script(&spec).map_err(|e| format!("simulator: {e}"))?;
    let phases = result.iter().map(|phase| {
        let counters = phase.vmstat.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
        (phase.phase.clone(), counters)
    });
    Ok(phases.collect())
}

fn print(row: &Row, compared: &[Compared], disturbed: usize) {
    out(&format!("\n{}: {}", row.name, row.describe()));
    if !row.note.is_empty() {
        out(&format!("note: {}", row.note));
    }
    if disturbed > 0 {
        out(&format!("{disturbed} of {KERNEL_RUNS} runs of the kernel were disturbed by other programs"));
    }
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
    let mut quiet: Vec<u64> = counted.iter().filter(|c| !c.disturbed).map(|c| c.error_bp()).collect();
    quiet.sort_unstable();
    let spreads = sorted(Compared::spread_bp, None);
    if as_json {
        let item = |c: &Compared| {
            json!({"row": c.row, "phase": c.phase, "counter": c.counter, "kernel": c.kernel,
                   "kernel_spread": c.spread, "simulated": c.simulated, "disturbed": c.disturbed})
        };
        let rows: Vec<_> = all.iter().map(item).collect();
        let report = json!({"rows": rows, "compared": errors.len(), "median_error_bp": percentile(&errors, 50),
            "p90_error_bp": percentile(&errors, 90), "p95_error_bp": percentile(&errors, 95),
            "compared_quiet": quiet.len(), "quiet_median_error_bp": percentile(&quiet, 50),
            "quiet_p95_error_bp": percentile(&quiet, 95), "kernel_median_spread_bp": percentile(&spreads, 50), "kernel_p95_spread_bp": percentile(&spreads, 95)});
        out(&report.to_string());
        return;
    }
    out(&format!("\n{} values compared; in %:      error   kernel's own spread of {KERNEL_RUNS} runs", errors.len()));
    for p in [50, 75, 90, 95, 99] {
        out(&format!("  p{p:<3} {:>28} {:>12}", percent(percentile(&errors, p)), percent(percentile(&spreads, p))));
    }
    out(&format!(
        "  of the {} values whose runs were all quiet: median {}, p95 {}",
        quiet.len(),
        percent(percentile(&quiet, 50)),
        percent(percentile(&quiet, 95))
    ));
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
