//! A memory control group of one run, version 1 or 2: a hard limit, counters read from outside, gone when dropped.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::clock;

const PREFIX: &str = "pagetide-test-";

/// Which memory controller this machine offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `/sys/fs/cgroup/memory`.
    V1,
    /// The memory controller in the unified hierarchy.
    V2,
}

/// What may happen to anonymous memory over the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelSwap {
    /// It may go to the swap devices that are on, with this swappiness (0..=200; version 2 has no such knob per group).
    Allowed(u32),
    /// It may not, even if some device is on: the run is killed instead.
    Forbidden,
}

/// The controller, if this process may make groups in it.
pub fn controller() -> Option<Version> {
    let writable = |path: &str| rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok();
    if Path::new("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists() && writable("/sys/fs/cgroup/memory") {
        return Some(Version::V1);
    }
    let controllers = fs::read_to_string("/sys/fs/cgroup/cgroup.subtree_control").unwrap_or_default();
    (controllers.split_whitespace().any(|name| name == "memory") && writable("/sys/fs/cgroup")).then_some(Version::V2)
}

/// One group.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    version: Version,
}

impl Cgroup {
    /// A fresh group without a limit, for counting only.
    pub fn counting() -> Self {
        static SWEEP: Once = Once::new();
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let version = controller().expect("the caller asked need::has(Feature::Cgroup)");
        SWEEP.call_once(|| remove_stale(version));
        let name = format!("{PREFIX}{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = root(version).join(name);
        fs::create_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { path, version }
    }

    /// A fresh group that may hold `limit_bytes`, page cache and kernel memory included.
    pub fn limited(limit_bytes: u64, swap: KernelSwap) -> Self {
        let group = Self::counting();
        let limit = (limit_bytes & !4095).to_string();
        match (group.version, swap) {
            (Version::V1, KernelSwap::Forbidden) => {
                group.set("memory.limit_in_bytes", &limit);
                group.set("memory.memsw.limit_in_bytes", &limit);
            }
            (Version::V1, KernelSwap::Allowed(swappiness)) => {
                group.set("memory.limit_in_bytes", &limit);
                group.set("memory.swappiness", &swappiness.to_string());
            }
            (Version::V2, KernelSwap::Forbidden) => {
                group.set("memory.max", &limit);
                group.set("memory.swap.max", "0");
            }
            (Version::V2, KernelSwap::Allowed(_)) => group.set("memory.max", &limit),
        }
        group
    }

    /// A larger limit from now on.
    pub fn raise_limit(&self, limit_bytes: u64) {
        let file = match self.version {
            Version::V1 => "memory.limit_in_bytes",
            Version::V2 => "memory.max",
        };
        self.set(file, &(limit_bytes & !4095).to_string());
    }

    /// The file that takes the pid of a new member.
    pub fn procs_file(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }

    /// A shell line that removes the group once its members are gone, and does nothing if it is gone already.
    pub fn removal_line(&self) -> String {
        let path = self.path.display();
        format!(
            "for try in 1 2 3 4 5 6 7 8 9; do [ -d '{path}' ] || break; rmdir '{path}' 2>/dev/null || sleep 0.2; done"
        )
    }

    /// The most that was ever charged.
    pub fn peak_bytes(&self) -> u64 {
        match self.version {
            Version::V1 => self.number("memory.max_usage_in_bytes"),
            Version::V2 => self.number("memory.peak"),
        }
    }

    /// Anonymous memory charged now.
    pub fn anon_bytes(&self) -> u64 {
        match self.version {
            Version::V1 => self.keyed("memory.stat", "total_rss"),
            Version::V2 => self.keyed("memory.stat", "anon"),
        }
    }

    /// Faults of its members that waited for a read.
    pub fn major_faults(&self) -> u64 {
        match self.version {
            Version::V1 => self.keyed("memory.stat", "total_pgmajfault"),
            Version::V2 => self.keyed("memory.stat", "pgmajfault"),
        }
    }

    /// How often the kernel killed a member for memory.
    pub fn oom_kills(&self) -> u64 {
        match self.version {
            Version::V1 => self.keyed("memory.oom_control", "oom_kill"),
            Version::V2 => self.keyed("memory.events", "oom_kill"),
        }
    }

    /// How often a charge met the limit.
    pub fn limit_hits(&self) -> u64 {
        match self.version {
            Version::V1 => self.number("memory.failcnt"),
            Version::V2 => self.keyed("memory.events", "max"),
        }
    }

    /// One line for reports.
    pub fn summary(&self) -> String {
        format!(
            "cgroup: peak {} MiB, met its limit {} times, killed for memory {} times",
            self.peak_bytes() >> 20,
            self.limit_hits(),
            self.oom_kills()
        )
    }

    fn set(&self, file: &str, value: &str) {
        let path = self.path.join(file);
        fs::write(&path, value).unwrap_or_else(|error| panic!("{} = {value}: {error}", path.display()));
    }

    fn text(&self, file: &str) -> String {
        let path = self.path.join(file);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    fn number(&self, file: &str) -> u64 {
        self.text(file).trim().parse().expect("a number in this file")
    }

    fn keyed(&self, file: &str, key: &str) -> u64 {
        let text = self.text(file);
        let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {key} in {file}: {text}")).trim().parse().expect("a number after the key")
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

fn root(version: Version) -> PathBuf {
    PathBuf::from(match version {
        Version::V1 => "/sys/fs/cgroup/memory",
        Version::V2 => "/sys/fs/cgroup",
    })
}

/// Kills the members (they are children of the harness: nobody else knows the group) and removes the group.
fn remove(path: &Path) {
    let removed = clock::wait_until(Duration::from_secs(10), || {
        for pid in fs::read_to_string(path.join("cgroup.procs")).unwrap_or_default().lines() {
            if let Some(pid) = pid.parse().ok().and_then(Pid::from_raw) {
                // It may have ended meanwhile.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        fs::remove_dir(path).is_ok() || !path.exists()
    });
    if !removed {
        eprintln!("control group {} could not be removed", path.display());
    }
}

/// Groups of test processes that no longer live (killed from outside before they could clean up).
fn remove_stale(version: Version) {
    let Ok(entries) = fs::read_dir(root(version)) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)).and_then(|rest| rest.split('-').next());
        if owner.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            remove(&entry.path());
        }
    }
}
