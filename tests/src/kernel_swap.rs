//! The kernel's own swap as the reference: a swap file straight on the disk, with the disk marked as not rotational before
//! swapon (otherwise the kernel turns VMA readahead off for every device), everything put back afterwards.
//!
//! Not through a loop device: that adds about 15 us to each fault and would flatter us.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::janitor::Janitor;

const ZSWAP: &str = "/sys/module/zswap/parameters";

/// True if the kernel can compress pages with `compressor` before its swap device. Until zswap has been enabled once it takes any
/// name and falls back to its default later, so that the list of algorithms decides.
pub fn has_zswap(compressor: &str) -> bool {
    let algorithms = fs::read_to_string("/proc/crypto").unwrap_or_default();
    let mut names = algorithms.lines().filter_map(|line| line.strip_prefix("name")?.split_once(": "));
    Path::new(ZSWAP).exists() && names.any(|(_, name)| name == compressor)
}

/// A swap file that is on as long as this value lives.
#[derive(Debug)]
pub struct KernelSwapFile {
    path: PathBuf,
    janitor: Janitor,
}

impl KernelSwapFile {
    /// Makes, formats and switches on a swap file of `bytes` in `directory`. Needs root.
    ///
    /// # Errors
    /// The step that failed and what the tool said.
    pub fn on(directory: &Path, bytes: u64) -> Result<Self, String> {
        if fs::read_to_string("/proc/swaps").map_err(|error| error.to_string())?.lines().count() > 1 {
            return Err(
                "swap is already on; the reference needs the machine's only swap device to be its own".to_owned()
            );
        }
        let file = directory.join(format!("pagetide-kernel-swap-{}", std::process::id()));
        let rotational = rotational_file(directory)?;
        let before = fs::read_to_string(&rotational).map_err(|error| format!("{}: {error}", rotational.display()))?;

        let mut janitor = Janitor::start();
        janitor.at_end(&format!("rm -f '{}'", file.display()));
        janitor.at_end(&format!("echo {} > '{}'", before.trim(), rotational.display()));
        janitor.at_end(&format!("swapoff '{}' 2>/dev/null", file.display()));

        tool("fallocate", &["-l", &bytes.to_string(), &file.display().to_string()])?;
        tool("chmod", &["600", &file.display().to_string()])?;
        tool("mkswap", &["--quiet", &file.display().to_string()])?;
        fs::write(&rotational, "0").map_err(|error| format!("{}: {error}", rotational.display()))?;
        tool("swapon", &[&file.display().to_string()])?;
        Ok(Self { path: file, janitor })
    }

    /// Puts the kernel's compressed cache before the file, with this compressor and else as it is configured.
    ///
    /// # Errors
    /// If the kernel has no zswap or not this compressor.
    pub fn compressed_by(mut self, compressor: &str) -> Result<Self, String> {
        for (name, value) in [("compressor", compressor), ("enabled", "Y")] {
            let path = format!("{ZSWAP}/{name}");
            let before = fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
            self.janitor.at_end(&format!("echo {} > '{path}'", before.trim()));
            fs::write(&path, value).map_err(|error| format!("{path} = {value}: {error}"))?;
        }
        Ok(self)
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Undoes the rest of a set-up before the swap file goes.
    pub fn janitor(&mut self) -> &mut Janitor {
        &mut self.janitor
    }
}

/// `queue/rotational` of the disk that holds `directory`.
///
/// # Errors
/// If the file system is not on one block device (overlay, network, memory).
pub fn rotational_file(directory: &Path) -> Result<PathBuf, String> {
    let device = fs::metadata(directory).map_err(|error| format!("{}: {error}", directory.display()))?.dev();
    let number = format!("{}:{}", libc::major(device), libc::minor(device));
    let node = fs::canonicalize(format!("/sys/dev/block/{number}"))
        .map_err(|_| format!("{} is not on a block device ({number})", directory.display()))?;
    // A partition has its queue one level up.
    [node.join("queue/rotational"), node.join("../queue/rotational")]
        .into_iter()
        .find(|path| path.exists())
        .ok_or_else(|| format!("{} has no request queue", node.display()))
}

fn tool(name: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(name).args(arguments).output().map_err(|error| format!("{name}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{name} {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}
