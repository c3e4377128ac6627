//! Block devices in memory: loop devices on files in ramfs, not rotational, removed whatever happens.
//!
//! In memory, because other programs' use of a disk moves the ends of writes by milliseconds, and with them what reclaim
//! finds. The devices stay asynchronous: a loop device has a thread of its own. In ramfs and not in tmpfs, because reads of
//! a tmpfs file activate its pages, which /proc/vmstat does not tell from those of the group.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;

use pagetide_tests::janitor::Janitor;

/// Where such devices are made, and what is undone at the end.
#[derive(Debug)]
pub(crate) struct Loops {
    memory: PathBuf,
    made: u32,
    pub(crate) janitor: Janitor,
}

impl Loops {
    /// In a directory that is the caller's own.
    pub(crate) fn new(directory: &Path) -> Result<Self, String> {
        let memory = directory.join("memory");
        fs::create_dir(&memory).map_err(|e| format!("{}: {e}", memory.display()))?;
        let mut janitor = Janitor::start();
        janitor.at_end(&format!("umount '{}'", memory.display()));
        tool("mount", &["-t", "ramfs", "pagetide-kernel-diff", &memory.display().to_string()])?;
        Ok(Self { memory, made: 0, janitor })
    }

    /// A device of so many pages; its device file.
    pub(crate) fn device(&mut self, pages: u64) -> Result<String, String> {
        let file = self.memory.join(self.made.to_string());
        self.made += 1;
        let mut zeroes = io::repeat(0).take(pages * 4096);
        // Filled now: later its pages might be charged to the group.
        let filled = File::create(&file).and_then(|mut file| io::copy(&mut zeroes, &mut file));
        filled.map_err(|e| format!("{}: {e}", file.display()))?;
        let node = tool("losetup", &["--find", "--show", &file.display().to_string()])?;
        self.janitor.at_end(&format!("losetup -d '{node}'"));
        let rotational = format!("/sys/block/{}/queue/rotational", node.trim_start_matches("/dev/"));
        fs::write(&rotational, "0").map_err(|e| format!("{rotational}: {e}"))?;
        Ok(node)
    }
}

/// Runs a program; what it printed, or what it complained of.
pub(crate) fn tool(name: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(name).args(arguments).output().map_err(|e| format!("{name}: {e}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    Err(format!("{name} {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}
