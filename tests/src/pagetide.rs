//! The program under test: where it is, and the arguments of one `pagetide run`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::need::source_directory;
use crate::program::Program;
use crate::scratch::Scratch;
use crate::stats::Stats;

/// How faults are caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultMode {
    /// What `run` chooses by itself.
    Default,
    /// `--fault-mode thread`.
    Thread,
    /// `--fault-mode signal`.
    Signal,
}

/// The binary: `PAGETIDE_BIN`, else `target/release/pagetide` of this workspace.
pub fn binary() -> PathBuf {
    let path = std::env::var_os("PAGETIDE_BIN").map_or_else(
        || source_directory().parent().expect("tests/ is in the workspace").join("target/release/pagetide"),
        PathBuf::from,
    );
    assert!(path.exists(), "{} does not exist: build it (cargo build --release) or set PAGETIDE_BIN", path.display());
    path
}

/// One `pagetide run`, before the program's own arguments.
#[derive(Clone, Debug)]
pub struct PagetideRun {
    binary: PathBuf,
    memory_bytes: u64,
    swap: OsString,
    mode: FaultMode,
    stats: PathBuf,
    extra: Vec<OsString>,
}

impl PagetideRun {
    /// A run with this budget; the swap file goes to the directory `swap` of `scratch`, which is made if need be.
    pub fn new(scratch: &Scratch, memory_bytes: u64) -> Self {
        let swap = scratch.file("swap");
        if !swap.exists() {
            scratch.directory("swap");
        }
        Self {
            binary: binary(),
            memory_bytes,
            swap: swap.into(),
            mode: FaultMode::Default,
            stats: scratch.file("stats.json"),
            extra: Vec::new(),
        }
    }

    /// Another binary (a copy that another user may read).
    #[must_use]
    pub fn binary(mut self, binary: &Path) -> Self {
        self.binary = binary.to_owned();
        self
    }

    /// How faults are caught.
    #[must_use]
    pub fn mode(mut self, mode: FaultMode) -> Self {
        self.mode = mode;
        self
    }

    /// The swap file may take this much disk.
    #[must_use]
    pub fn swap_size(mut self, bytes: u64) -> Self {
        self.swap.push(format!(":{}MiB", bytes >> 20));
        self
    }

    /// One more argument before `--`.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.extra.push(argument.into());
        self
    }

    /// `program` under `pagetide run`.
    pub fn wrap(&self, program: &Program) -> Program {
        let mut prefix: Vec<OsString> = vec![self.binary.clone().into(), "run".into(), "--memory".into()];
        prefix.push(format!("{}KiB", self.memory_bytes >> 10).into());
        prefix.extend(["--swap".into(), self.swap.clone(), "--stats".into(), self.stats.clone().into()]);
        match self.mode {
            FaultMode::Default => {}
            FaultMode::Thread => prefix.extend(["--fault-mode".into(), "thread".into()]),
            FaultMode::Signal => prefix.extend(["--fault-mode".into(), "signal".into()]),
        }
        prefix.extend(self.extra.iter().cloned());
        prefix.push("--".into());
        program.behind(prefix)
    }

    /// The budget.
    pub const fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// How faults are caught.
    pub const fn fault_mode(&self) -> FaultMode {
        self.mode
    }

    /// What `--stats` wrote.
    pub fn stats(&self) -> Stats {
        Stats::read(&self.stats)
    }

    /// Where `--stats` writes.
    pub fn stats_path(&self) -> &Path {
        &self.stats
    }
}
