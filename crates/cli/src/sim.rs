//! `pagetide sim`: the simulator's commands. This module reads the command line and prints; the simulator does the rest.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use pagetide_sim::cli::{self, CliError};
use pagetide_sim::reproduce::{self, Reproduction};
use pagetide_sim::script::{self, PhaseResult, ScriptSpec};
use serde_json::{Map, Value, json};

use crate::failure::{Exit, Failure, Told};

const SIM_HELP: &str = "\
Exit codes: 0 done, 2 wrong input; 65 wrong content and 66 no progress are bugs
of the policy, found; 67 a recorded run goes another way here.
Virtual time: the same input and seed give the same output, to the last count.";

/// `pagetide sim`.
#[derive(Debug, Args)]
#[command(after_help = SIM_HELP)]
pub(crate) struct SimArgs {
    #[command(subcommand)]
    command: SimCommand,
}

/// What to simulate.
#[derive(Debug, Subcommand)]
enum SimCommand {
    /// Play a script of page accesses under a memory limit: what would the kernel's counters say?
    Script(ScriptArgs),
    /// Simulate the result tables of the source documents, the source's value beside ours
    Reproduce(ReproduceArgs),
    /// Run a workload that a TOML file describes
    Run(RunArgs),
    /// Replay an access trace under several budgets: how much memory does this job need?
    Replay(ReplayArgs),
    /// Compare a policy that sees no accessed bits with a kernel and with Belady's optimum, program by program
    Study(StudyArgs),
    /// Tell the policy the events of a recorded run (`pagetide run --record`) again: does it decide the same?
    Rerun {
        /// The record
        record: PathBuf,
        /// Print one JSON object
        #[arg(long)]
        json: bool,
    },
}

const SCRIPT_HELP: &str = "\
Phases, over one anonymous region: w write all pages ascending, r read all, b
read all descending, s read every second page, sN every Nth, RN and WN read or
write N random pages, LN make the limit N pages, oN swapoff of device N (there is
one, 0).

Over a file (--file): f and fN read it in order by calls of 1 and of N pages, FN
reads N random pages by calls, m loads from each page of a mapping, MN from N
random ones, aN and AN read N random pages of the region, each followed by the
next, or a random, page of the file.

A script has at most 2,000,000,000 accesses.

Examples:
  pagetide sim script 'w r b s R40000' --pages 32768 --memory 16384 --json
  pagetide sim script 'w A40000' --pages 12288 --file 12288 --memory 16384";

/// `pagetide sim script`.
#[derive(Debug, Args)]
#[command(after_help = SCRIPT_HELP)]
struct ScriptArgs {
    /// The phases, separated by blanks
    script: String,
    /// Pages of the region
    #[arg(long, value_name = "PAGES")]
    pages: u32,
    /// Pages of the file; 0: there is none
    #[arg(long, value_name = "PAGES", default_value_t = 0)]
    file: u32,
    /// The memory limit, in pages; the process itself takes a few of them
    #[arg(long, value_name = "PAGES")]
    memory: u32,
    /// The policy (see `pagetide knobs`)
    #[arg(long, value_name = "NAME", default_value = "linux-6.18")]
    profile: String,
    /// One setting of the policy; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Print one JSON object for each phase
    #[arg(long)]
    json: bool,
}

/// `pagetide sim reproduce`.
#[derive(Debug, Args)]
struct ReproduceArgs {
    /// Only this document or table, such as S0 or S3/random
    #[arg(long, value_name = "NAME")]
    table: Option<String>,
    /// Print a list of objects, one for each row
    #[arg(long)]
    json: bool,
}

/// `pagetide sim run`.
#[derive(Debug, Args)]
struct RunArgs {
    /// The workload
    #[arg(value_name = "WORKLOAD.toml")]
    workload: PathBuf,
    /// Another seed than the workload's
    #[arg(long)]
    seed: Option<u64>,
    /// Another profile than the workload's (see `pagetide knobs`)
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// One setting of the policy, after the workload's; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// `pagetide sim replay`.
#[derive(Debug, Args)]
struct ReplayArgs {
    /// The trace: our binary format, valgrind lackey text, or CSV of page and kind; gzip and zstd are read directly
    trace: PathBuf,
    /// A budget: a size, or a share of the pages touched, such as 25%; may be given several times [default: a ladder]
    #[arg(long, value_name = "SIZE")]
    memory: Vec<String>,
    /// The policy (see `pagetide knobs`)
    #[arg(long, value_name = "NAME", default_value = "pagetide")]
    profile: String,
    /// One setting of the policy; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The swap device's model
    #[arg(long, value_name = "NAME", default_value = "nvme")]
    device: String,
    /// CPU time of one access
    #[arg(long, value_name = "TIME", default_value = "100ns")]
    access: String,
    /// Who plays the host: exact (a kernel sees accessed bits), blind or blind-thread, blind-signal (the live runtime)
    #[arg(long, value_name = "NAME", default_value = "exact")]
    host: String,
    /// Bytes that a page takes compressed, 1 to 4096, with a blind host and --set compress=lz4 or zstd
    #[arg(long, value_name = "BYTES", default_value_t = 1365, value_parser = clap::value_parser!(u32).range(1..=4096))]
    packed_bytes: u32,
    /// Watermarks and background reclaim, as on a whole machine, instead of a control group's limit
    #[arg(long)]
    machine: bool,
    /// Decides the spread of the device's times
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// `pagetide sim study`.
#[derive(Debug, Args)]
struct StudyArgs {
    /// Only programs whose name has this in it; may be given several times
    #[arg(long, value_name = "NAME")]
    program: Vec<String>,
    /// Who plays the host of our profile: blind or blind-thread, blind-signal, exact
    #[arg(long, value_name = "NAME", default_value = "blind")]
    host: String,
    /// One setting of our profile; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Bytes that a page takes compressed, 1 to 4096, instead of each program's; with --set compress=lz4 or zstd
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=4096))]
    packed_bytes: Option<u32>,
    /// Print a list of objects, one for each program
    #[arg(long)]
    json: bool,
}

/// Runs the command; the answer is the simulator's exit code.
pub(crate) fn run(args: SimArgs) -> Result<ExitCode, Failure> {
    let progress = io::stderr().is_terminal();
    let mut out = BufWriter::new(io::stdout().lock());
    let answer = match args.command {
        SimCommand::Script(args) => play_script(args, &mut out),
        SimCommand::Reproduce(args) => reproduce_tables(&args, progress, &mut out),
        SimCommand::Run(RunArgs { workload, seed, profile, set, json }) => {
            cli::run_workload(&cli::RunArgs { workload, json, seed, profile, settings: set, progress }, &mut out)
        }
        SimCommand::Rerun { record, json } => cli::rerun_record(&record, json, &mut out),
        SimCommand::Replay(args) => cli::replay_trace(&args.into_library(progress), &mut out),
        SimCommand::Study(StudyArgs { program, host, set, packed_bytes, json }) => cli::study_programs(
            &cli::StudyArgs { programs: program, host, settings: set, packed_bytes, json, progress },
            &mut out,
        ),
    };
    let code = answer.and_then(|code| out.flush().map(|()| code).map_err(CliError::from)).map_err(failed)?;
    Ok(ExitCode::from(code))
}

/// Plays a script and prints the change of every counter in each phase.
fn play_script(args: ScriptArgs, out: &mut dyn Write) -> Result<u8, CliError> {
    let mut spec = ScriptSpec::new(&args.script, args.pages, args.memory, &args.profile);
    spec.settings = args.set;
    spec.file_pages = args.file;
    let phases = script::run_script(&spec).map_err(|error| CliError::Usage(error.to_string()))?;
    for PhaseResult { phase, vmstat, elapsed_ns, .. } in phases {
        if args.json {
            let vmstat: Map<String, Value> =
                vmstat.iter().map(|(name, change)| ((*name).to_owned(), json!(change))).collect();
            writeln!(out, "{}", json!({"phase": phase, "elapsed_ns": elapsed_ns, "vmstat": vmstat}))?;
            continue;
        }
        writeln!(out, "{phase}: {} us of virtual time", elapsed_ns / 1_000)?;
        for (name, change) in vmstat.iter().filter(|(_, change)| *change > 0) {
            writeln!(out, "  {name:<28} {change:>12}")?;
        }
    }
    Ok(cli::EXIT_OK)
}

/// Simulates the documents' tables.
fn reproduce_tables(args: &ReproduceArgs, progress: bool, out: &mut dyn Write) -> Result<u8, CliError> {
    let reproduction: Reproduction = reproduce::reproduce(args.table.as_deref(), |done, all| {
        if progress {
            let _ = write!(io::stderr(), "\rtable {done} of {all}");
        }
    });
    if progress {
        let _ = writeln!(io::stderr());
    }
    if reproduction.rows.is_empty() {
        let tables = reproduce::tables().join(", ");
        return Err(CliError::Usage(format!("--table: no such document or table; there are {tables}")));
    }
    if args.json {
        writeln!(out, "{:#}", reproduction.json())?;
    } else {
        write!(out, "{}", reproduction.text())?;
    }
    Ok(cli::EXIT_OK)
}

impl ReplayArgs {
    fn into_library(self, progress: bool) -> cli::ReplayArgs {
        let Self { trace, memory, profile, set, device, access, host, packed_bytes, machine, seed, json } = self;
        cli::ReplayArgs {
            trace,
            memory,
            profile,
            settings: set,
            device,
            access,
            host,
            packed_bytes,
            machine,
            seed,
            json,
            progress,
        }
    }
}

fn failed(error: CliError) -> Failure {
    match error {
        CliError::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => Failure::BrokenPipe,
        CliError::Output(error) => Failure::told(Exit::Failed, format!("cannot write the result: {error}"), ""),
        CliError::Usage(what) => Failure::Told(Told { exit: Exit::Usage, what, remedy: String::new() }),
    }
}
