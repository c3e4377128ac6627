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
mod report;
mod rows;

use std::collections::BTreeMap;
use std::process::ExitCode;

use kept::Kept;
use kernel::{Measured, Phases};
use pagetide_sim::script::{OwnPages, ScriptSpec, Timing, run_script};
use record::Recording;
use rows::Row;

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

/// The player's name of the time that a phase took. Shown, and no part of the errors: what it depends on was measured on one
/// machine.
const ELAPSED: &str = "elapsed_ns";

/// A difference of so many pages is noise of the process's own pages, whatever the relative error.
const PAGES_OF_NOISE: u64 = 40;

/// The kernel's value is the median of so many runs, and its own spread is what lies between them.
const KERNEL_RUNS: usize = 5;

/// The error that is wanted of a value, in 1/100 %.
const WANTED_BP: u64 = 800;

/// The player reads memory.stat so often.
const STAT_ACCESSES: u32 = 200;

/// One counter of one phase, on both sides.
struct Compared {
    row: String,
    phase: String,
    counter: &'static str,
    /// Median of the kernel's runs.
    kernel: u64,
    /// The smallest and the largest of them.
    least: u64,
    most: u64,
    simulated: u64,
    /// Other programs were busy in one of the kernel's runs.
    disturbed: bool,
    /// The row has a file.
    file: bool,
}

impl Compared {
    /// It is more than noise on one side at least.
    const fn counts(&self) -> bool {
        self.kernel > PAGES_OF_NOISE || self.simulated > PAGES_OF_NOISE
    }

    /// Whole-machine counters of activation, and what follows from it, apart from what is read, written and scanned.
    fn is_main(&self) -> bool {
        !self.counter.contains("activate")
    }

    /// Relative error in 1/100 %, 0 within the noise.
    fn error_bp(&self) -> u64 {
        let difference = self.kernel.abs_diff(self.simulated);
        if difference <= PAGES_OF_NOISE { 0 } else { difference * 10_000 / self.kernel.max(1) }
    }

    /// No run of the kernel gave such a value, or one above and one below it.
    const fn is_unlike_all_runs(&self) -> bool {
        self.simulated + PAGES_OF_NOISE < self.least || self.simulated > self.most + PAGES_OF_NOISE
    }

    /// The error is as wanted, or smaller than what the kernel's own runs lie apart.
    fn is_met(&self) -> bool {
        self.error_bp() <= WANTED_BP || !self.is_unlike_all_runs()
    }

    /// How far the kernel's own runs lie apart, likewise.
    fn spread_bp(&self) -> u64 {
        let spread = self.most - self.least;
        if spread <= PAGES_OF_NOISE { 0 } else { spread * 10_000 / self.kernel.max(1) }
    }
}

/// Pages of the kernel that the player needs, beside page tables of its regions: memory.kmem.usage_in_bytes had 3 of them in 15 of
/// 24 runs, 4 in 7 and 5 in 2. A page more or less moves bursts of writes and passes over whole lists across the end of a
/// phase, so the simulator plays all three, and its median is compared with the median of the kernel's runs.
const PLAYER_PAGES: [u32; 3] = [3, 4, 5];
/// The player flushes translations with each access of a trace.
const FLUSH_NS: u64 = 8_000;
/// Its own anonymous pages, as the kernel's trace of the first reclaim shows them: 4,086 pages on the lists of 4,096, ten slots
/// taken first, seven of which are free again at the next phase, three pages that are active from then on.
const PLAYER_OWN: OwnPages = OwnPages { hot: 3, between: 7, cold: 3 };

/// What the command line asks for.
struct Arguments {
    json: bool,
    /// The kernel is not measured: rows that were not kept show the simulator's side only.
    simulate: bool,
    /// Where the kernel's runs are kept: rows found there are not measured again.
    kept: Option<Kept>,
    /// Parts of row names; none: all rows.
    wanted: Vec<String>,
}

const USAGE: &str = "the options are --json, --keep=DIRECTORY (runs of the kernel, kept and used again), --simulate (nothing \
                     but such runs is used of the kernel); other words choose rows by a part of their name";

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
    if arguments.json {
        report::json(&all);
    } else if !all.is_empty() {
        report::summary(&all);
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
    let kept = arguments.kept.as_ref().map_or(Ok(None), |kept| kept.load(&row))?;
    if kept.is_none() && arguments.simulate {
        for (phase, counters) in simulate(&row, recording)? {
            let shown: Vec<String> =
                COUNTERS.iter().map(|name| format!("{name} {}", counters.get(*name).unwrap_or(&0))).collect();
            out(&format!("{} {phase}: {}", row.name, shown.join(", ")));
        }
        return Ok(Vec::new());
    }
    let measured = if let Some(measured) = kept {
        measured
    } else {
        let measured = kernel::measure(&row, recording.map(|r| r.file.as_path()), KERNEL_RUNS)?;
        arguments.kept.as_ref().map_or(Ok(()), |kept| kept.save(&row, &measured))?;
        measured
    };
    let simulated = simulate(&row, recording)?;
    let compared = compare(&row, &measured, &simulated)?;
    if !arguments.json {
        report::row(&row, &compared, measured.disturbed);
        for (at, (phase, counters)) in simulated.iter().enumerate() {
            let times = measured.runs.iter().filter_map(|run| run.get(at)?.1.get(ELAPSED).copied());
            let (kernel, ours) = (times.min().unwrap_or(0) / 1000, counters.get(ELAPSED).copied().unwrap_or(0) / 1000);
            out(&format!("{phase:<10} us, quickest run {kernel:>18} {ours:>12}"));
        }
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
        // Files are read by other programs, too, and the counters are the machine's.
        for counter in COUNTERS.into_iter().filter(|counter| row.file > 0 || !counter.ends_with("_file")) {
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
                least: values[0],
                most: values[values.len() - 1],
                simulated: get(simulated),
                disturbed: measured.disturbed > 0,
                file: row.file > 0,
            });
        }
    }
    Ok(compared)
}

/// The simulator's side: of each counter the median of the set-ups.
fn simulate(row: &Row, recording: Option<&Recording>) -> Result<Phases, String> {
    let runs = PLAYER_PAGES.map(|pages| simulate_with(pages, row, recording)).into_iter();
    let runs = runs.collect::<Result<Vec<Phases>, String>>()?;
    let mut medians = runs[0].clone();
    for (at, (_, counters)) in medians.iter_mut().enumerate() {
        for (name, value) in counters {
            let mut values: Vec<u64> = runs.iter().filter_map(|run| run[at].1.get(name).copied()).collect();
            values.sort_unstable();
            *value = values[values.len() / 2];
        }
    }
    Ok(medians)
}

fn simulate_with(kernel_pages: u32, row: &Row, recording: Option<&Recording>) -> Result<Phases, String> {
    let mut spec = ScriptSpec::new(&row.script, 1, row.memory, "linux-6.18");
    spec.regions.clone_from(&row.regions);
    spec.processes = row.processes;
    // What the player had before it joined the group is charged elsewhere.
    spec.process_pages = kernel_pages;
    spec.own = PLAYER_OWN;
    spec.settings = vec![
        format!("page-cluster={}", row.page_cluster),
        format!("readahead={}", if row.vma { "vma" } else { "cluster" }),
        format!("swappiness={}", row.swappiness),
    ];
    spec.stat_accesses = STAT_ACCESSES;
    spec.devices = row.devices.iter().map(|d| (d.pages + 1, d.priority)).collect();
    spec.file_pages = row.file;
    spec.timing = Timing::MEMORY;
    spec.trace_pause_ns = FLUSH_NS;
    spec.trace = recording.map(|r| r.accesses.clone()).unwrap_or_default();
    let result = run_script(&spec).map_err(|e| format!("simulator: {e}"))?;
    let phases = result.iter().map(|phase| {
        let counters = phase.vmstat.iter().map(|(name, value)| ((*name).to_owned(), *value));
        let counters = counters.chain([(ELAPSED.to_owned(), phase.elapsed_ns)]).collect();
        (phase.phase.clone(), counters)
    });
    Ok(phases.collect())
}
