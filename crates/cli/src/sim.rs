//! `pagetide sim`: the simulator's commands. This module reads the command line; the simulator does and prints the rest.

use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use pagetide_sim::cli::{self, CliError};

use crate::failure::{Exit, Failure, Told};

const SIM_HELP: &str = "\
Exit codes: 0 done, 2 wrong input; 65 wrong content and 66 no progress are bugs of the policy, found.
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
    /// Run a workload that a TOML file describes
    Run(RunArgs),
    /// Replay an access trace under several budgets: how much memory does this job need?
    Replay(ReplayArgs),
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

/// Runs the command; the answer is the simulator's exit code.
pub(crate) fn run(args: SimArgs) -> Result<ExitCode, Failure> {
    let progress = io::stderr().is_terminal();
    let mut out = BufWriter::new(io::stdout().lock());
    let answer = match args.command {
        SimCommand::Run(RunArgs { workload, seed, profile, set, json }) => {
            cli::run_workload(&cli::RunArgs { workload, json, seed, profile, settings: set, progress }, &mut out)
        }
        SimCommand::Replay(args) => cli::replay_trace(&args.into_library(progress), &mut out),
    };
    let code = answer.and_then(|code| out.flush().map(|()| code).map_err(CliError::from)).map_err(failed)?;
    Ok(ExitCode::from(code))
}

impl ReplayArgs {
    fn into_library(self, progress: bool) -> cli::ReplayArgs {
        let Self { trace, memory, profile, set, device, access, machine, seed, json } = self;
        cli::ReplayArgs { trace, memory, profile, settings: set, device, access, machine, seed, json, progress }
    }
}

fn failed(error: CliError) -> Failure {
    match error {
        CliError::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => Failure::BrokenPipe,
        CliError::Output(error) => Failure::told(Exit::Failed, format!("cannot write the result: {error}"), ""),
        CliError::Usage(what) => Failure::Told(Told { exit: Exit::Usage, what, remedy: String::new() }),
    }
}
