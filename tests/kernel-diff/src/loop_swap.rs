//! Swap devices of the reference kernel, switched off whatever happens.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::loops::{Loops, tool};

/// So long others may have swap on before a row gives up.
const PATIENCE: Duration = Duration::from_secs(20);

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
    pub(crate) loops: Loops,
}

impl LoopSwap {
    /// Makes and switches on all of them, in order.
    pub(crate) fn on(directory: &Path, devices: &[Device], settings: &[(&str, &str)]) -> Result<Self, String> {
        if !pagetide_tests::clock::wait_until(PATIENCE, || devices_on() == Ok(0)) {
            return Err("swap is already on; slots and readahead counters are global, so nothing else may swap".into());
        }
        let mut loops = Loops::new(directory)?;
        for (path, value) in settings {
            let before = fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
            loops.janitor.at_end(&format!("echo {} > '{path}'", before.trim()));
            fs::write(path, value).map_err(|e| format!("{path} = {value}: {e}"))?;
        }
        let mut nodes = Vec::new();
        for device in devices {
            // The header's page, and the slots.
            let node = loops.device(u64::from(device.pages) + 1)?;
            tool("mkswap", &["--quiet", &node])?;
            // The player dies with us; until its pages are gone, swapoff may find no room for them within the limit.
            loops.janitor.at_end(&format!("for n in 1 2 3 4 5; do swapoff '{node}' 2>/dev/null && break; grep -q '^{node} ' /proc/swaps || break; sleep 1; done"));
            match device.priority {
                Some(priority) => tool("swapon", &["-p", &priority.to_string(), &node])?,
                None => tool("swapon", &[&node])?,
            };
            nodes.push(node);
        }
        Ok(Self { nodes, loops })
    }

    /// No other swap device has been switched on meanwhile.
    pub(crate) fn is_alone(&self) -> bool {
        devices_on().is_ok_and(|on| on <= self.nodes.len())
    }

    /// Their device files.
    pub(crate) fn nodes(&self) -> &[String] {
        &self.nodes
    }
}

/// Swap devices of this machine.
fn devices_on() -> Result<usize, String> {
    let text = fs::read_to_string("/proc/swaps").map_err(|e| format!("/proc/swaps: {e}"))?;
    Ok(text.lines().skip(1).count())
}
