//! The command line. Its help is the manual: examples, units and exit codes stand here and nowhere else.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::backend;
use crate::metrics;
use crate::settings;
use crate::sim;
use crate::size::{self, Amount};
use crate::summary;
use crate::swap;
use crate::timeline;

const EXAMPLES: &str = "\
Examples:
  pagetide run --memory 8G -- python3 job.py
  pagetide run --memory 25% --swap /data/tmp:64G -- sort -S 4G big.txt
  pagetide doctor

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 this machine or program cannot be
served. `run` passes on the program's own exit code (128+N after signal N; 126
and 127 as shells say them).";

/// Runs programs whose memory does not fit: a fixed budget in RAM, the rest in a swap file, without changing the program
/// or the kernel.
#[derive(Debug, Parser)]
#[command(name = "pagetide", version, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a program inside a memory budget
    Run(RunArgs),
    /// Simulate: scripts, workloads, recorded traces, the source documents' tables
    Sim(sim::SimArgs),
    /// Say what this machine offers, what is missing and how to get it
    Doctor(DoctorArgs),
    /// List the settings of the policy, their values and the profiles
    Knobs(KnobsArgs),
    /// List the runs of this user: their budgets, what they keep, and how they fare
    Ps(PsArgs),
    /// Show what a run has counted, or what it does while it runs
    Stat(StatArgs),
    /// Show the runs of this user, or one of them, on a screen that is drawn again and again, with keys that steer it
    Top(TopArgs),
    /// Change a run while it runs
    Ctl(CtlArgs),
    /// Show how a run went, as one HTML file
    Report(ReportArgs),
    /// Print a completion script for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

const RUN_HELP: &str = "\
Sizes: 512M, 8G, 8GiB, 1.5G (K M G T and KiB... are powers of 1024, KB MB GB TB
of 1000); a lone number is bytes; a share such as 25% is of this machine's
memory, or of the container's limit.

Examples:
  pagetide run --memory 512M -- python3 job.py
      The program and its children share 512 MiB; the rest goes to a file in
      /var/tmp.
  pagetide run --memory 2G --swap /fast:20G:10 --swap /slow:200G:1 -- ./solver
      /fast is filled first, because its priority is higher.
  pagetide run --memory 25% --profile linux-6.18 --set page-cluster=5 -- ./job
      Decide as Linux 6.18 does, with larger readahead.

Exit codes:
  the program's own    it ran; 128+N if signal N ended it
  1                    nothing was started: a file cannot be written, or descriptors or
                       memory are exhausted
  2                    the command line is wrong
  3                    nothing was started: the machine, the program or the budget
                       cannot be served
  126, 127             the command cannot be executed, or was not found";

/// `pagetide run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_HELP, override_usage = "pagetide run --memory SIZE [OPTIONS] -- COMMAND [ARGS]...")]
pub(crate) struct RunArgs {
    /// Memory that the program and its children may use together, for example 512M, 8G or 25%
    #[arg(long, short = 'm', value_name = "SIZE", value_parser = size::parse_amount)]
    pub(crate) memory: Amount,

    /// Where the rest goes: a directory on a disk, or a block device that is empty or a swap area; may be given several
    /// times [default: /var/tmp, else the current directory]. The file has no name and vanishes with the run. SIZE: how far it may grow, in a directory
    /// for each process [default: 16 budgets, within the free space]. PRIO 0 to 32767: higher is used first, equal ones take turns; places without
    /// one come after all that have one, in the order given, as with swapon(8)
    #[arg(long, value_name = "PATH[:SIZE][:PRIO]", value_parser = swap::parse)]
    pub(crate) swap: Vec<backend::SwapSpec>,

    /// How readily anonymous memory goes to swap compared with file pages
    #[arg(long, value_name = "0..200", value_parser = clap::value_parser!(u8).range(0..=200))]
    pub(crate) swappiness: Option<u8>,

    /// The paging policy: pagetide, or that of a Linux version, such as linux-6.18 (see `pagetide knobs`)
    #[arg(long, value_name = "NAME")]
    pub(crate) profile: Option<String>,

    /// One setting of the policy; may be given several times (`pagetide knobs` lists them). Also io=uring or io=threads: how
    /// pages are read and written; idle=poll or idle=sleep: what idle CPUs do while the program waits for memory; shares=equal: each process that is
    /// short of memory gets as much as another
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = settings::parse_pair)]
    pub(crate) set: Vec<(String, String)>,

    /// How faults and the kernel's own accesses are caught. auto: thread mode where root or CAP_SYS_PTRACE grants it, signal mode
    /// elsewhere
    #[arg(long, value_enum, default_value_t = FaultMode::Auto)]
    pub(crate) fault_mode: FaultMode,

    /// Call the run NAME: `pagetide stat NAME`. Letters, digits and . _ -, not a number; no other run of yours may have it
    #[arg(long, value_name = "NAME", value_parser = parse_name)]
    pub(crate) name: Option<String>,

    /// Write counters and fault latencies to FILE as JSON, every second and when the program has ended
    #[arg(long, value_name = "FILE")]
    pub(crate) stats: Option<PathBuf>,

    /// Tell what is counted as OpenMetrics text: in FILE (ending in .prom for node_exporter's textfile collector), or over HTTP at
    /// /metrics of an address of this machine: 127.0.0.1:9100, :9100 (the same) or unix:PATH
    #[arg(long, value_name = "FILE|ADDRESS:PORT", value_parser = metrics::parse_target)]
    pub(crate) metrics: Option<metrics::Target>,

    /// Say on standard error what the run waited for and what would have helped: when it has ended, or a line every SECONDS (0.1 to
    /// 3600) too [default: end on a terminal, else never]
    #[arg(long, value_name = "SECONDS|end|never", num_args = 0..=1, require_equals = true,
        default_missing_value = summary::END, value_parser = summary::parse)]
    pub(crate) summary: Option<summary::When>,

    /// Let --metrics listen where other machines can read it
    #[arg(long, requires = "metrics")]
    pub(crate) metrics_exposed: bool,

    /// Draw how the run goes, for Perfetto's viewer (https://ui.perfetto.dev) and `pagetide report`: sizes, rates, when faults
    /// waited and what the devices did
    #[arg(long, value_name = "FILE")]
    pub(crate) timeline: Option<PathBuf>,

    /// Bytes of the timeline at most, 1M to 64G [default: 64M]: beyond, slices are counted only and numbers told less often
    #[arg(long, value_name = "SIZE", requires = "timeline", value_parser = parse_timeline_size)]
    pub(crate) timeline_size: Option<u64>,

    /// Record every event of each process under management in FILE.PID, at most 256 MiB each, for `pagetide sim rerun`
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,

    /// When paging cannot start: refuse with exit code 3, or run the program without a budget
    #[arg(long, value_enum, default_value_t = IfUnsupported::Refuse)]
    pub(crate) if_unsupported: IfUnsupported,

    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND", value_hint = clap::ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

/// `--fault-mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FaultMode {
    /// The best mode that this machine grants (see `pagetide doctor`)
    Auto,
    /// Threads of ours read the kernel's fault messages
    Thread,
    /// For users without any privilege (x86-64): system calls are dispatched to the program's own threads, which bring in what the
    /// kernel is about to touch
    Signal,
}

impl From<FaultMode> for backend::FaultMode {
    fn from(mode: FaultMode) -> Self {
        match mode {
            FaultMode::Auto => Self::Auto,
            FaultMode::Thread => Self::Thread,
            FaultMode::Signal => Self::Signal,
        }
    }
}

/// `--if-unsupported`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IfUnsupported {
    /// Do not start the program; exit code 3
    Refuse,
    /// Start it without a budget, with a warning
    Run,
}

impl From<IfUnsupported> for backend::IfUnsupported {
    fn from(choice: IfUnsupported) -> Self {
        match choice {
            IfUnsupported::Refuse => Self::Refuse,
            IfUnsupported::Run => Self::Run,
        }
    }
}

fn parse_timeline_size(text: &str) -> Result<u64, String> {
    match size::parse_amount(text)? {
        Amount::Bytes(bytes) if (timeline::SIZE_MIN..=64 << 30).contains(&bytes) => Ok(bytes),
        Amount::Bytes(_) | Amount::ShareBp(_) => Err("give 1M to 64G".to_owned()),
    }
}

fn parse_name(name: &str) -> Result<String, String> {
    backend::check_name(name).map(|()| name.to_owned())
}

/// `pagetide ps`.
#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// Print JSON: a list of the objects that `pagetide stat --json` prints
    #[arg(long)]
    pub(crate) json: bool,
}

const STAT_HELP: &str = "\
RUN is a name given by `run --name`, or the number of any process of the run.

Examples:
  pagetide stat job
      The counters so far, as /proc/vmstat has them: see docs/counters.md.
  pagetide stat job --interval 1
      A line each second; the first tells of the time since the run began.
      Memory in MiB; pages in and out, faults, and faults that were read for,
      each a second; hits of readahead in percent of what was read ahead.
  pagetide stat 4711 --interval 5 --count 12 --json
      An object a line, for a minute.";

/// `pagetide stat`.
#[derive(Debug, Args)]
#[command(after_help = STAT_HELP)]
pub(crate) struct StatArgs {
    /// The run: its name, or a process of it
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) run: String,

    /// Seconds between two lines, 0.1 to 3600
    #[arg(long, short = 'i', value_name = "SECONDS", value_parser = size::parse_seconds)]
    pub(crate) interval: Option<u64>,

    /// Lines to print [default: until the run ends]
    #[arg(long, short = 'c', value_name = "N", requires = "interval", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `pagetide top`.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// The run: its name, or a process of it [default: a list to choose from]
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) run: Option<String>,

    /// Seconds between two looks, 0.1 to 3600
    #[arg(long, short = 'i', value_name = "SECONDS", default_value = "1", value_parser = size::parse_seconds)]
    pub(crate) interval: u64,
}

const CTL_HELP: &str = "\
RUN is a name given by `run --name`, or the number of any process of the run.
What is refused changes nothing; the exit code is 1 then, 2 for wrong usage.

Examples:
  pagetide ctl job memory 2G
      2 GiB from now on; what is over is paged out as fast as the disk takes
      it.
  pagetide ctl job page-out 500M
      What was not used for longest leaves, and stays away until it is touched.
  pagetide ctl job swapon /data/tmp:64G
      A further place for what does not fit.
  pagetide ctl job swapoff /var/tmp
      Bring back what is there, or move it to other places, and wait until it
      is empty. Whoever stops waiting (Ctrl-C) stops nothing; `swapoff --stop`
      does.
  pagetide ctl job set page-cluster=5
      Another value of a knob (`pagetide knobs`), in all processes and in those
      that start later.";

/// `pagetide ctl`.
#[derive(Debug, Args)]
#[command(after_help = CTL_HELP)]
pub(crate) struct CtlArgs {
    /// The run: its name, or a process of it
    #[arg(value_parser = clap::builder::NonEmptyStringValueParser::new())]
    pub(crate) run: String,

    /// What to change
    #[command(subcommand)]
    pub(crate) order: Order,
}

/// What `pagetide ctl` changes.
#[derive(Debug, Subcommand)]
pub(crate) enum Order {
    /// Another budget, larger or smaller
    Memory {
        /// As for `run --memory`: 512M, 8G, 25%
        #[arg(value_parser = size::parse_amount)]
        size: Amount,
    },
    /// Page out memory that the budget has room for; what the program touches comes back
    PageOut {
        /// So much, of each process as much as it is large: 512M, 8G, 25% of the machine's memory
        #[arg(value_parser = size::parse_amount)]
        size: Amount,
    },
    /// Page nothing out until `resume`: the budget does not hold meanwhile
    Pause,
    /// Let the budget hold again
    Resume,
    /// Another value of a knob
    Set {
        /// As for `run --set`
        #[arg(value_name = "KEY=VALUE", value_parser = settings::parse_pair)]
        setting: (String, String),
    },
    /// A further place to swap to
    Swapon {
        /// As for `run --swap`
        #[arg(value_name = "PATH[:SIZE][:PRIO]", value_parser = swap::parse)]
        place: backend::SwapSpec,
    },
    /// Empty a place to swap to, and forget it
    Swapoff {
        /// Its path
        path: PathBuf,

        /// What the statistics of readahead learn of it: no-lookup, lookup or lookup-stats [default: as the settings say]
        #[arg(long, value_parser = parse_mode, conflicts_with = "stop")]
        mode: Option<backend::SwapoffMode>,

        /// Use a place again that is being emptied
        #[arg(long)]
        stop: bool,

        /// Do not wait until it is empty
        #[arg(long)]
        no_wait: bool,
    },
}

fn parse_mode(text: &str) -> Result<backend::SwapoffMode, String> {
    backend::SwapoffMode::parse(text).ok_or_else(|| "it is no-lookup, lookup or lookup-stats".to_owned())
}

const REPORT_HELP: &str = "\
Example:
  pagetide run --memory 1G --stats job.json --timeline job.pftrace -- ./job
  pagetide report job.json job.pftrace -o job.html
      Summary, sizes and rates over time, waits, what a larger budget would
      save, all counters. One of the two files is enough; what it does not tell
      is left out.
  pagetide report job.json job.record.4711 -o job.html
      What `run --record job.record` wrote of process 4711 besides, or a trace
      of accesses (see `pagetide sim replay`): what the simulator says of larger
      budgets.";

/// `pagetide report`.
#[derive(Debug, Args)]
#[command(after_help = REPORT_HELP)]
pub(crate) struct ReportArgs {
    /// What `run --stats`, `run --timeline` and `run --record` wrote of one run, one of each at most
    #[arg(required = true, num_args = 1..=3, value_name = "STATS|TIMELINE|RECORD")]
    pub(crate) files: Vec<PathBuf>,

    /// The page: it needs no network and has no script
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

/// `pagetide doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `pagetide knobs`.
#[derive(Debug, Args)]
pub(crate) struct KnobsArgs {
    /// Show the values of this profile
    #[arg(long, value_name = "NAME", default_value = "pagetide")]
    pub(crate) profile: String,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    fn run_args(line: &str) -> RunArgs {
        match parse(line).expect(line).command {
            Command::Run(args) => args,
            other @ (Command::Sim(_)
            | Command::Doctor(_)
            | Command::Knobs(_)
            | Command::Ps(_)
            | Command::Stat(_)
            | Command::Top(_)
            | Command::Ctl(_)
            | Command::Report(_)
            | Command::Completions { .. }) => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_follows_the_command_belongs_to_it() {
        let args = run_args("pagetide run --memory 1G -- sort --stats -m x");
        assert_eq!(args.command, ["sort", "--stats", "-m", "x"].map(OsString::from));
        assert!(args.stats.is_none());
        let args = run_args("pagetide run -m 1G sort -S 2G --swap");
        assert_eq!(args.command, ["sort", "-S", "2G", "--swap"].map(OsString::from));
    }

    #[test]
    fn errors_name_flag_value_and_remedy() {
        for (line, parts) in [
            ("pagetide run --memory 8Q -- true", ["--memory", "8Q", "not a unit"]),
            ("pagetide run --memory 1G --swap /t:8G:x -- true", ["--swap", "/t:8G:x", "0 to 32767"]),
            ("pagetide run --memory 1G --swappiness 201 -- true", ["--swappiness", "201", "0..=200"]),
            ("pagetide run --memory 1G --set nonsense -- true", ["--set", "nonsense", "KEY=VALUE"]),
            ("pagetide run --memory 1G --fault-mode threads -- true", ["--fault-mode", "threads", "thread"]),
            ("pagetide run --memory 1G --name 12 -- true", ["--name", "12", "letter"]),
            ("pagetide stat job --interval 0", ["--interval", "0", "0.1 to 3600"]),
            ("pagetide ctl job memory 8Q", ["<SIZE>", "8Q", "not a unit"]),
            ("pagetide run --memroy 1G -- true", ["--memroy", "--memory", "similar"]),
        ] {
            let error = parse(line).expect_err(line);
            let text = error.to_string();
            assert_eq!(error.exit_code(), 2);
            for part in parts {
                assert!(text.contains(part), "{line}: {text}");
            }
        }
    }

    #[test]
    fn a_budget_and_a_command_are_required() {
        assert!(parse("pagetide run -- true").is_err());
        assert!(parse("pagetide run --memory 1G").is_err());
    }
}
