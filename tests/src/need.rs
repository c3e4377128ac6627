//! What a test needs of the machine. A test that cannot run says what is missing; `PAGETIDE_REQUIRE=uffd,cgroup,...` turns
//! each named lack into a failure.

use std::path::{Path, PathBuf};

/// A feature of the machine that not every machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// A full userfaultfd (kernel faults included) may be opened.
    Uffd,
    /// The memory controller, version 1 or 2, and the right to make groups.
    Cgroup,
    /// Root.
    Root,
    /// A program that the test runs.
    Tool(&'static str),
    /// A file system of this name may be made and mounted.
    FileSystem(&'static str),
    /// A process that dumps core leaves a file of this name in its directory.
    CoreFiles,
    /// The readers of what we write that `tests/setup.sh` installs: [`readers_python`] has them.
    Readers,
}

impl Feature {
    fn name(self) -> &'static str {
        match self {
            Self::Uffd => "uffd",
            Self::Cgroup => "cgroup",
            Self::Root => "root",
            Self::Tool(name) | Self::FileSystem(name) => name,
            Self::CoreFiles => "core files",
            Self::Readers => "readers",
        }
    }

    fn is_present(self) -> bool {
        match self {
            Self::Uffd => rustix::fs::access("/dev/userfaultfd", rustix::fs::Access::READ_OK).is_ok() || is_root(),
            Self::Cgroup => crate::cgroup::controller().is_some(),
            Self::Root => is_root(),
            Self::Tool(name) => on_path(name),
            Self::FileSystem(name) => {
                let known = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
                known.split_whitespace().any(|word| word == name)
                    && on_path(&format!("mkfs.{name}"))
                    && on_path("mount")
            }
            Self::CoreFiles => {
                let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
                let limit = rustix::process::getrlimit(rustix::process::Resource::Core);
                pattern.starts_with("core") && !pattern.contains('/') && limit.maximum != Some(0)
            }
            Self::Readers => readers_python().with_file_name("../installed").exists(),
        }
    }
}

/// True if all of `features` are here. Otherwise prints what is missing, or panics where it is required.
pub fn has(features: &[Feature]) -> bool {
    let required = std::env::var("PAGETIDE_REQUIRE").unwrap_or_default();
    let missing: Vec<&str> =
        features.iter().filter(|feature| !feature.is_present()).map(|feature| feature.name()).collect();
    let wanted = missing.iter().find(|name| required.split(',').any(|word| word == **name || word == "all"));
    assert!(wanted.is_none(), "PAGETIDE_REQUIRE={required}, but {wanted:?} is missing on this machine");
    if !missing.is_empty() {
        eprintln!("SKIPPED: missing on this machine: {}", missing.join(", "));
    }
    missing.is_empty()
}

/// True if `name` is an executable on PATH.
pub fn on_path(name: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|paths| {
        std::env::split_paths(&paths)
            .any(|directory| rustix::fs::access(directory.join(name), rustix::fs::Access::EXEC_OK).is_ok())
    })
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Directory of the test sources of this crate.
pub fn source_directory() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The python that has the readers.
pub fn readers_python() -> PathBuf {
    source_directory().parent().expect("tests/ is in the workspace").join("target/readers/bin/python3")
}

/// True if the tests of what is known not to hold yet are to run (`PAGETIDE_GAPS=1`). Otherwise it says which gap it is; the
/// gaps are listed in GUARANTEES.md, and a test leaves this list when its promise holds.
pub fn runs_gap(gap: &str) -> bool {
    let runs = std::env::var_os("PAGETIDE_GAPS").is_some_and(|value| value == "1");
    if !runs {
        eprintln!("not run: known gap: {gap} (PAGETIDE_GAPS=1 runs it)");
    }
    runs
}
