//! Swap devices of the reference kernel: loop devices on preallocated files, not rotational, switched off and removed
//! whatever happens.

use std::fs;
use std::path::Path;
use std::process::Command;

use pagetide_tests::janitor::Janitor;

/// One swap device to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Device {
    /// Its size.
    pub(crate) pages: u32,
    /// Its swap priority; `None`: automatic.
    pub(crate) priority: Option<i16>,
}

/// Devices that are on as long as this value lives.
#[derive(Debug)]
pub(crate) struct LoopSwap {
    nodes: Vec<String>,
    _janitor: Janitor,
}

impl LoopSwap {
    /// Makes and switches on all of them, in order.
    pub(crate) fn on(directory: &Path, devices: &[Device], settings: &[(&str, &str)]) -> Result<Self, String> {
        if fs::read_to_string("/proc/swaps").map_err(|e| e.to_string())?.lines().count() > 1 {
            return Err("swap is already on; slots and readahead counters are global, so nothing else may swap".into());
        }
        let mut janitor = Janitor::start();
        for (path, value) in settings {
            let before = fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
            janitor.at_end(&format!("echo {} > '{path}'", before.trim()));
            fs::write(path, value).map_err(|e| format!("{path} = {value}: {e}"))?;
        }
        let mut nodes = Vec::new();
        for (n, device) in devices.iter().enumerate() {
            let file = directory.join(format!("pagetide-kernel-diff-{}-{n}", std::process::id()));
            let file = file.display().to_string();
            janitor.at_end(&format!("rm -f '{file}'"));
            // The header's page, and the slots.
            let bytes = (u64::from(device.pages) + 1) * 4096;
            tool("fallocate", &["-l", &bytes.to_string(), &file])?;
            let node = tool("losetup", &["--find", "--show", "--direct-io=on", &file])?;
            janitor.at_end(&format!("losetup -d '{node}'"));
            let name = node.trim_start_matches("/dev/").to_owned();
            let rotational = format!("/sys/block/{name}/queue/rotational");
            fs::write(&rotational, "0").map_err(|e| format!("{rotational}: {e}"))?;
            tool("mkswap", &["--quiet", &node])?;
            // The player dies with us; until its pages are gone, swapoff may find no room for them within the limit.
            janitor.at_end(&format!("for n in 1 2 3 4 5; do swapoff '{node}' 2>/dev/null && break; grep -q '^{node} ' /proc/swaps || break; sleep 1; done"));
            match device.priority {
                Some(priority) => tool("swapon", &["-p", &priority.to_string(), &node])?,
                None => tool("swapon", &[&node])?,
            };
            nodes.push(node);
        }
        Ok(Self { nodes, _janitor: janitor })
    }

    /// Their device files.
    pub(crate) fn nodes(&self) -> &[String] {
        &self.nodes
    }
}

fn tool(name: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(name).args(arguments).output().map_err(|e| format!("{name}: {e}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    Err(format!("{name} {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim()))
}
