//! Scripts of page accesses under a memory cgroup limit: the language of the golden rows.
//!
//! A small exact host around the core: one task at a time, anonymous regions, one file, asynchronous devices, virtual time. It
//! is not the simulator proper (no CPUs, no write-back of files); what it models is just what the counters of such a run
//! depend on. The task has a CPU to itself: the device's thread, and with it the ends of writes, have another. The phases of a script
//! are listed in [`mod@parse`].
//!
//! Invariants: the same spec gives the same result, no access is answered wrongly (page versions are checked), and no script
//! is endless.

mod device;
mod file;
pub mod parse;
mod player;

use std::fmt;

use pagetide_core::ConfigError;
pub use pagetide_core::types::Access;
use pagetide_core::types::Nanos;

pub use device::Timing;
pub use parse::{ACCESSES_MAX, Phase, parse};
use player::Player;

/// What a small program has beside its regions, as in the golden runs.
const PROCESS_PAGES: u32 = 36;
/// The kernel's default: 128 KiB.
const READAHEAD_PAGES: u32 = 32;
/// The kernel gathers a group's statistics every two seconds.
const STAT_INTERVAL_NS: Nanos = 2_000_000_000;
/// When it does so first is chance.
const STAT_FIRST_NS: Nanos = 400_000_000;

/// Anonymous pages that the program uses beside its regions: its stack, its libraries' data, what it reads counters into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnPages {
    /// Used with every access.
    pub hot: u32,
    /// Written between phases, where nothing is counted. A slot that such a page gives up leaves a hole: the next cluster is
    /// not begun before it is filled, and the writes of reclaim fall into more requests.
    pub between: u32,
    /// Never used again.
    pub cold: u32,
}

impl OwnPages {
    const fn all(self) -> u32 {
        self.hot + self.between + self.cold
    }
}

/// What is to be played.
#[derive(Clone, Debug)]
pub struct ScriptSpec {
    /// The phases, separated by blanks.
    pub script: String,
    /// Pages of each region: their pages are numbered on.
    pub regions: Vec<u32>,
    /// Processes: with two or more, each region after the first belongs to one of its own.
    pub processes: u32,
    /// Pages that the program has beside its regions and their page tables, and that reclaim cannot take.
    pub process_pages: u32,
    /// Anonymous pages of its own that reclaim can take.
    pub own: OwnPages,
    /// The cgroup's limit in pages.
    pub memory: u32,
    /// A profile of the core.
    pub profile: String,
    /// Settings of the core, `KEY=VALUE`: `page-cluster`, `readahead`, `swappiness`...
    pub settings: Vec<String>,
    /// Swap devices: size in slots (0: as large as needed) and priority.
    pub devices: Vec<(u32, Option<i16>)>,
    /// Pages of the file; 0: there is none.
    pub file_pages: u32,
    /// Limit of the file's readahead, in pages.
    pub file_readahead: u32,
    /// How long the devices take.
    pub timing: Timing,
    /// What phase `t` plays.
    pub trace: Vec<(u32, Access)>,
    /// Time before each access of the trace, beside the access itself.
    pub trace_pause_ns: Nanos,
    /// Age of the statistics that reclaim decides by (the kernel: 2 s; 0: always fresh).
    pub stat_interval_ns: Nanos,
    /// When they are gathered first.
    pub stat_first_ns: Nanos,
    /// They are also gathered after so many accesses, and at the start of a phase, as when somebody reads memory.stat (0: not).
    pub stat_accesses: u32,
    /// What they are before (inactive and active anonymous, inactive and active file pages): left by earlier runs in the
    /// same group.
    pub stat_start: [u32; 4],
}

impl ScriptSpec {
    /// A script over one region on one device, with the defaults of a profile.
    pub fn new(script: &str, pages: u32, memory: u32, profile: &str) -> Self {
        Self {
            script: script.to_owned(),
            regions: vec![pages],
            processes: 1,
            process_pages: PROCESS_PAGES,
            own: OwnPages::default(),
            memory,
            profile: profile.to_owned(),
            settings: Vec::new(),
            devices: vec![(0, None)],
            file_pages: 0,
            file_readahead: READAHEAD_PAGES,
            timing: Timing::DISK,
            trace: Vec::new(),
            trace_pause_ns: 0,
            stat_interval_ns: STAT_INTERVAL_NS,
            stat_first_ns: STAT_FIRST_NS,
            stat_accesses: 0,
            stat_start: [0; 4],
        }
    }
}

/// Counter changes of one phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseResult {
    /// As it is spelled in the script.
    pub phase: String,
    /// Every counter by name, as it changed.
    pub vmstat: Vec<(&'static str, u64)>,
    /// Virtual time it took.
    pub elapsed_ns: Nanos,
    /// Reclaim calls: pages looked at, and how many calls looked at so many.
    pub reclaim_calls: Vec<(u64, u64)>,
}

impl PhaseResult {
    /// The change of one counter; 0 for a name that is none.
    pub fn get(&self, name: &str) -> u64 {
        self.vmstat.iter().find(|(n, _)| *n == name).map_or(0, |&(_, value)| value)
    }
}

/// A script that cannot be played.
#[derive(Debug, PartialEq, Eq)]
pub enum ScriptError {
    /// Not a phase.
    Phase {
        /// The word.
        word: String,
        /// Its place among the phases, from 1.
        place: usize,
    },
    /// With this phase the script makes more accesses than anyone will wait for.
    TooLong {
        /// The phase.
        word: String,
        /// Its place, from 1.
        place: usize,
    },
    /// The phase uses a file, and there is none.
    NoFile {
        /// The phase.
        word: String,
    },
    /// Sizes that make no sense.
    Size(String),
    /// A wrong setting.
    Config(ConfigError),
    /// Memory and swap are used up.
    OutOfMemory {
        /// The phase in which it happened.
        phase: String,
    },
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Phase { word, place } => {
                write!(
                    f,
                    "phase {place}: `{word}` is none of w, r, b, s, sN, RN, WN, x, X, f, fN, FN, m, MN, aN, AN, t, LN, oN \
                     (as in `w r R40000`)"
                )
            }
            Self::TooLong { word, place } => {
                write!(f, "phase {place}: `{word}` makes the script longer than {ACCESSES_MAX} accesses")
            }
            Self::NoFile { word } => write!(f, "phase `{word}` uses a file: give its size"),
            Self::Size(what) => f.write_str(what),
            Self::Config(error) => error.fmt(f),
            Self::OutOfMemory { phase } => write!(f, "phase `{phase}`: out of memory and swap; give a larger device"),
        }
    }
}

impl std::error::Error for ScriptError {}

impl From<ConfigError> for ScriptError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

/// Play a script.
///
/// # Errors
/// A wrong script or set-up, or one that runs out of memory; see [`ScriptError`].
pub fn run_script(spec: &ScriptSpec) -> Result<Vec<PhaseResult>, ScriptError> {
    let phases = parse(&spec.script)?;
    let mut player = Player::new(spec)?;
    parse::check_length(&phases, player.pages(), spec.file_pages, spec.trace.len() as u64)?;
    if let Some((word, _)) = phases.iter().find(|(_, phase)| phase.needs_file() && spec.file_pages == 0) {
        return Err(ScriptError::NoFile { word: word.clone() });
    }
    phases.into_iter().map(|(word, phase)| player.play(word, phase)).collect()
}
