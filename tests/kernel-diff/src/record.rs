//! The page trace of a real program: an interpreter that fills a dictionary and walks it in the order of its keys.
//!
//! The program runs in a small part of the memory that it needs, and the kernel's own fault trace is the record: all
//! accesses but those to the pages it used last. What is left out would have hit in any memory of that size or more, so
//! the rows have more. The same list of pages is then played on both sides.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pagetide_sim::script::Access;
use pagetide_tests::cgroup::{Cgroup, KernelSwap};
use pagetide_tests::janitor::Janitor;
use pagetide_tests::scratch::Scratch;

use crate::loop_swap::{Device, LoopSwap};

/// What runs: some 6,000 pages, most of them used more than once.
const PROGRAM: &str = "d = {str(i * 7919 % 1000003): [i] for i in range(80000)}\n\
                       s = 0\n\
                       for k in sorted(d): s += d[k][0]\n\
                       for k in d: s += len(d[k])\n\
                       d = {k: v for k, v in d.items() if v[0] % 3}\n\
                       print(s, len(d))\n";
/// In so much memory.
const MEMORY: u64 = 12 << 20;
const DEVICE_PAGES: u32 = 40_000;
const TRACING: &str = "/sys/kernel/tracing";

/// A recorded program.
pub(crate) struct Recording {
    /// Page and kind of each access; pages are numbered in the order of their addresses.
    pub(crate) accesses: Vec<(u32, Access)>,
    /// Distinct pages.
    pub(crate) pages: u32,
    /// The same for the player.
    pub(crate) file: PathBuf,
    _scratch: Option<Scratch>,
}

/// The recording in `file`; if it is not there, it is made.
pub(crate) fn record_once(file: &Path) -> Result<Recording, String> {
    if !file.exists() {
        let made = record()?;
        fs::copy(&made.file, file).map_err(|e| format!("{}: {e}", file.display()))?;
    }
    let bytes = fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let words = bytes.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word));
    let accesses: Vec<(u32, Access)> =
        words.map(|word| (word / 2, if word % 2 == 1 { Access::Write } else { Access::Read })).collect();
    let pages = accesses.iter().map(|&(page, _)| page + 1).max().unwrap_or(0);
    Ok(Recording { accesses, pages, file: file.to_owned(), _scratch: None })
}

/// Records the program.
pub(crate) fn record() -> Result<Recording, String> {
    let _turn = pagetide_tests::serial::turn();
    let scratch = Scratch::new();
    let text = trace_faults(&scratch)?;
    let faults: Vec<(u64, Access)> = text.lines().filter_map(fault).collect();
    let mut numbers: BTreeMap<u64, u32> = faults.iter().map(|&(page, _)| (page, 0)).collect();
    for (number, entry) in numbers.values_mut().zip(0..) {
        *number = entry;
    }
    let accesses: Vec<(u32, Access)> = faults.iter().map(|&(page, access)| (numbers[&page], access)).collect();
    if accesses.len() < 1000 {
        return Err(format!("the fault trace has only {} accesses", accesses.len()));
    }
    let words =
        accesses.iter().flat_map(|&(page, access)| (page * 2 + u32::from(access == Access::Write)).to_ne_bytes());
    let file = scratch.file("trace");
    fs::write(&file, words.collect::<Vec<u8>>()).map_err(|e| e.to_string())?;
    let pages = u32::try_from(numbers.len()).map_err(|_| "too many pages".to_owned())?;
    Ok(Recording { accesses, pages, file, _scratch: Some(scratch) })
}

/// `... page_fault_user: address=0x7f.. ip=0x.. error_code=0x6`: bit 1 says that it was a store.
fn fault(line: &str) -> Option<(u64, Access)> {
    let hexadecimal = |key: &str| {
        let from = line.find(key)? + key.len();
        let digits = line[from..].trim_start_matches("0x").split(|c: char| !c.is_ascii_hexdigit()).next()?;
        u64::from_str_radix(digits, 16).ok()
    };
    let access = if hexadecimal("error_code=")? & 2 != 0 { Access::Write } else { Access::Read };
    Some((hexadecimal("address=")? / 4096, access))
}

/// Runs the program with the fault trace on; the trace as text.
fn trace_faults(scratch: &Scratch) -> Result<String, String> {
    let instance = PathBuf::from(format!("{TRACING}/instances/pagetide-{}", std::process::id()));
    let mut janitor = Janitor::start();
    janitor.at_end(&format!("rmdir '{}' 2>/dev/null", instance.display()));
    fs::create_dir(&instance).map_err(|e| format!("{}: {e}", instance.display()))?;
    let set = |file: &str, value: &str| {
        let path = instance.join(file);
        fs::write(&path, value).map_err(|e| format!("{}: {e}", path.display()))
    };
    set("tracing_on", "0")?;
    set("buffer_size_kb", "100000")?;
    set("options/event-fork", "1")?;
    set("events/exceptions/page_fault_user/enable", "1")?;
    let swap = LoopSwap::on(
        scratch.path(),
        &[Device { pages: DEVICE_PAGES, priority: None }],
        &[("/proc/sys/vm/page-cluster", "0")],
    )?;
    let group = Cgroup::limited(MEMORY, KernelSwap::Allowed(60));
    // The shell names itself, joins the group and becomes the program: nothing else is traced.
    let script = "echo $$ > \"$1/set_event_pid\" && echo $$ > \"$2\" && echo 1 > \"$1/tracing_on\" && \
                  exec /usr/bin/env -i PYTHONHASHSEED=1 python3 -S -E -c \"$3\"";
    let output = Command::new("sh")
        .args(["-c", script, "sh"])
        .arg(&instance)
        .arg(group.procs_file())
        .arg(PROGRAM)
        .output()
        .map_err(|e| format!("sh: {e}"))?;
    set("tracing_on", "0")?;
    let text = read_lossy(&instance.join("trace"))?;
    set("events/exceptions/page_fault_user/enable", "0")?;
    drop(swap);
    if output.status.success() {
        return Ok(text);
    }
    Err(format!("the program to be recorded: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()))
}

fn read_lossy(path: &Path) -> Result<String, String> {
    let bytes = fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_fault_trace_is_a_page_and_a_kind() {
        let line = " python3-17 [000] ..... 1.5: page_fault_user: address=0x7f0000002008 ip=0x1 error_code=0x6";
        assert_eq!(fault(line), Some((0x7_f000_0002, Access::Write)));
        assert_eq!(fault("# tracer: nop"), None);
    }
}
