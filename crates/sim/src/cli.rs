//! The `sim` commands as functions: arguments in, text or JSON out, an exit code back. The program around them parses
//! the command line.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::json;

use crate::replay::{Budget, ReplayRow, ReplaySetup};
use crate::study::{self, Candidate, PROGRAMS, StudyProgram};
use crate::world::{HOSTS, HostModel, RunEnd};
use crate::{device, nearest, replay, rerun, run, workload};

/// All went well.
pub const EXIT_OK: u8 = 0;
/// The input is wrong.
pub const EXIT_USAGE: u8 = 2;
/// The simulation showed wrong content: a bug of ours, never to be passed over.
pub const EXIT_WRONG_CONTENT: u8 = 65;
/// The simulation stood still: a bug of ours.
pub const EXIT_NO_PROGRESS: u8 = 66;

/// A recorded run has other effects here than it had live: a bug of ours, or another version.
pub const EXIT_DIFFERENT: u8 = 67;

/// Why a command could not do its work.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The arguments or an input are wrong; the text says which and where.
    #[error("{0}")]
    Usage(String),
    /// The output could not be written.
    #[error("output: {0}")]
    Output(#[from] std::io::Error),
}

impl CliError {
    /// The exit code for it.
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => EXIT_USAGE,
            Self::Output(_) => 1,
        }
    }
}

/// Arguments of `sim run`.
#[derive(Clone, Debug)]
pub struct RunArgs {
    /// The workload's text.
    pub workload: PathBuf,
    /// One JSON object instead of text.
    pub json: bool,
    /// Instead of the workload's.
    pub seed: Option<u64>,
    /// Instead of the workload's.
    pub profile: Option<String>,
    /// `KEY=VALUE`, after the workload's.
    pub settings: Vec<String>,
    /// Draw a progress bar (the caller knows whether standard error is a terminal).
    pub progress: bool,
}

/// Arguments of `sim replay`.
#[derive(Clone, Debug)]
pub struct ReplayArgs {
    /// The trace.
    pub trace: PathBuf,
    /// Budgets, as sizes or percentages of the touched pages; none: a ladder from 10 % to 100 %.
    pub memory: Vec<String>,
    /// Profile of the core.
    pub profile: String,
    /// `KEY=VALUE`.
    pub settings: Vec<String>,
    /// Name of the swap device's parameters.
    pub device: String,
    /// CPU time of an access, as `100ns`.
    pub access: String,
    /// Who plays the host, by name.
    pub host: String,
    /// Bytes that a page takes if the settings let a blind host compress.
    pub packed_bytes: u32,
    /// Watermarks and kswapd instead of a group's limit.
    pub machine: bool,
    /// Decides the device's spread.
    pub seed: u64,
    /// One JSON object instead of text.
    pub json: bool,
    /// Draw a progress bar.
    pub progress: bool,
}

/// `sim run WORKLOAD.toml`.
///
/// # Errors
/// A wrong workload, with its line; or an output that cannot be written.
pub fn run_workload(args: &RunArgs, out: &mut dyn Write) -> Result<u8, CliError> {
    let text = read_text(&args.workload)?;
    let named = |e: workload::WorkloadError| CliError::Usage(format!("{}: {e}", args.workload.display()));
    let mut workload = workload::parse(&text).map_err(named)?;
    if let Some(seed) = args.seed {
        workload.seed = seed;
    }
    if let Some(profile) = &args.profile {
        workload.profile.clone_from(profile);
    }
    for setting in &args.settings {
        let Some((key, value)) = setting.split_once('=') else {
            return Err(CliError::Usage(format!("--set {setting}: KEY=VALUE expected")));
        };
        workload.settings.push(workload::Setting { key: key.to_owned(), value: value.to_owned(), line: 0 });
    }
    let bar = bar(args.progress, 10_000, "simulating");
    let report = run::run(&workload, |done| bar.set_position(done)).map_err(named)?;
    bar.finish_and_clear();
    if args.json {
        writeln!(out, "{}", report.json())?;
    } else {
        write!(out, "{}", report.text())?;
    }
    Ok(exit_of(report.end))
}

/// The ladder of budgets where none is named.
const LADDER: [u32; 10] = [10, 20, 30, 40, 50, 60, 70, 80, 90, 105];

/// `sim replay TRACE`.
///
/// # Errors
/// A trace that cannot be read, with its place; wrong arguments; or an output that cannot be written.
pub fn replay_trace(args: &ReplayArgs, out: &mut dyn Write) -> Result<u8, CliError> {
    let usage = |what: String| CliError::Usage(what);
    let Some(preset) = device::preset(&args.device) else {
        let names: Vec<&str> = device::names().collect();
        let hint = nearest::hint(&args.device, names.iter().copied());
        return Err(usage(format!("--device {}: one of {}{hint}", args.device, names.join(", "))));
    };
    let setup = ReplaySetup {
        packed_bytes: args.packed_bytes,
        profile: args.profile.clone(),
        settings: args.settings.clone(),
        device: preset.params.clone(),
        access_ns: crate::units::nanos(&args.access).map_err(|e| usage(format!("--access: {e}")))?.max(1),
        host: host(&args.host)?,
        machine: args.machine,
        seed: args.seed,
    };
    let mut budgets: Vec<Budget> = Vec::new();
    for text in args.memory.iter().flat_map(|list| list.split(',')) {
        budgets.push(Budget::parse(text).map_err(|e| usage(format!("--memory: {e}")))?);
    }
    if budgets.is_empty() {
        budgets.extend(LADDER.map(Budget::Percent));
    }
    let trace = load(&args.trace, args.progress)?;
    let mut budgets: Vec<u32> = budgets.into_iter().map(|budget| budget.pages(trace.touched_pages)).collect();
    // Shares of a short trace may be the same budget.
    budgets.dedup();
    let bar = bar(args.progress, budgets.len() as u64, "replaying");
    let mut rows: Vec<ReplayRow> = Vec::new();
    for budget in budgets {
        rows.push(replay::replay(&trace, budget, &setup).map_err(usage)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    if args.json {
        let rows: Vec<_> = rows.iter().map(ReplayRow::json).collect();
        let accesses = trace.records.len();
        writeln!(out, "{}", json!({"accesses": accesses, "touched_pages": trace.touched_pages, "budgets": rows}))?;
    } else {
        write!(out, "{}", replay::text(&trace, &rows))?;
    }
    Ok(rows.iter().map(|row| exit_of(row.end)).max().unwrap_or(EXIT_OK))
}

/// Arguments of `sim study`.
#[derive(Clone, Debug)]
pub struct StudyArgs {
    /// Parts of the names of the programs wanted; none: all.
    pub programs: Vec<String>,
    /// Who plays the host of profile `pagetide`, by name.
    pub host: String,
    /// `KEY=VALUE` for profile `pagetide`.
    pub settings: Vec<String>,
    /// Bytes that a page takes compressed, instead of each program's.
    pub packed_bytes: Option<u32>,
    /// JSON instead of text.
    pub json: bool,
    /// Draw a progress bar.
    pub progress: bool,
}

/// `sim study`.
///
/// # Errors
/// A name that no program has, wrong settings, or an output that cannot be written.
pub fn study_programs(args: &StudyArgs, out: &mut dyn Write) -> Result<u8, CliError> {
    let wanted = |name: &str| args.programs.is_empty() || args.programs.iter().any(|part| name.contains(part.as_str()));
    let programs: Vec<&StudyProgram> = PROGRAMS.iter().filter(|program| wanted(program.name)).collect();
    if programs.is_empty() {
        let names: Vec<&str> = PROGRAMS.iter().map(|program| program.name).collect();
        return Err(CliError::Usage(format!("--program: none of {}", names.join(", "))));
    }
    let kernel = Candidate { profile: "linux-6.18", host: HostModel::Exact, settings: Vec::new(), packed_bytes: None };
    let ours = Candidate {
        profile: "pagetide",
        host: host(&args.host)?,
        settings: args.settings.clone(),
        packed_bytes: args.packed_bytes,
    };
    let candidates = [kernel, ours];
    let bar = bar(args.progress, programs.len() as u64, "simulating");
    let mut rows = Vec::new();
    for program in programs {
        rows.push(study::study(program, &candidates).map_err(CliError::Usage)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    if args.json {
        writeln!(out, "{:#}", study::json(&candidates, &rows))?;
    } else {
        write!(out, "{}", study::text(&candidates, &rows))?;
    }
    let ends = rows.iter().flat_map(|row| &row.rows).map(|cell| exit_of(cell.end));
    Ok(ends.max().unwrap_or(EXIT_OK))
}

/// `sim rerun RECORD`.
///
/// # Errors
/// A record that cannot be read, with its place; or an output that cannot be written.
pub fn rerun_record(path: &Path, json: bool, out: &mut dyn Write) -> Result<u8, CliError> {
    let named = |what: String| CliError::Usage(format!("{}: {what}", path.display()));
    let bytes = std::fs::read(path).map_err(|error| named(error.to_string()))?;
    let last_told = |number, now, event| {
        if !json {
            // Before it is told: a broken invariant ends the process.
            eprintln!("the last event, number {number} at {now} ns: {event:?}");
        }
    };
    let done = rerun::rerun(&bytes, last_told).map_err(named)?;
    let hash = format!("{:08x}", done.hash);
    if json {
        let difference = done.difference.as_ref().map(|(event, what)| json!({"event": event, "what": what}));
        writeln!(
            out,
            "{}",
            json!({
                "events": done.events, "effects": done.effects, "hash": hash, "full": done.is_full,
                "difference": difference,
            })
        )?;
    } else if let Some((event, what)) = &done.difference {
        writeln!(out, "the first difference is at event {event}: {what}")?;
    } else {
        let rest = if done.is_full { "; the record was full before the run ended" } else { "" };
        writeln!(out, "{} events, {} effects, the same as live (hash {hash}){rest}", done.events, done.effects)?;
    }
    Ok(if done.difference.is_some() { EXIT_DIFFERENT } else { EXIT_OK })
}

fn host(name: &str) -> Result<HostModel, CliError> {
    HostModel::named(name).ok_or_else(|| {
        let names: Vec<&str> = HOSTS.iter().map(|(name, _)| *name).collect();
        let hint = nearest::hint(name, names.iter().copied());
        CliError::Usage(format!("--host {name}: one of {}{hint}", names.join(", ")))
    })
}

fn load(path: &Path, progress: bool) -> Result<Rc<pagetide_trace::dense::DenseTrace>, CliError> {
    let named = |e: pagetide_trace::TraceError| CliError::Usage(format!("{}: {e}", path.display()));
    let spinner = if progress { ProgressBar::new_spinner() } else { hidden() };
    let mut source = pagetide_trace::open::open(path).map_err(named)?;
    let seen = |n| {
        spinner.set_message(format!("reading {}: {n} accesses", path.display()));
        spinner.tick();
    };
    let trace = pagetide_trace::dense::load(&mut *source, seen).map_err(named)?;
    spinner.finish_and_clear();
    Ok(Rc::new(trace))
}

fn read_text(path: &Path) -> Result<String, CliError> {
    std::fs::read_to_string(path).map_err(|e| CliError::Usage(format!("{}: {e}", path.display())))
}

fn hidden() -> ProgressBar {
    ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden())
}

/// A bar on standard error, or none.
pub(crate) fn bar(show: bool, len: u64, what: &'static str) -> ProgressBar {
    if !show {
        return hidden();
    }
    let style = ProgressStyle::with_template("{msg} {wide_bar} {percent}% {eta}");
    let bar = ProgressBar::new(len).with_message(what);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// The exit code of a run.
pub const fn exit_of(end: RunEnd) -> u8 {
    match end {
        RunEnd::Finished | RunEnd::TimeUp => EXIT_OK,
        RunEnd::WrongContent(_) => EXIT_WRONG_CONTENT,
        RunEnd::NoProgress { .. } => EXIT_NO_PROGRESS,
    }
}
