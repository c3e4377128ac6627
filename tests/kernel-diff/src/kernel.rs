//! The kernel's side of a row: the player in a memory cgroup, on loop devices, at a quiet moment.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use pagetide_tests::cgroup::{Cgroup, KernelSwap};
use pagetide_tests::scratch::Scratch;

use crate::file_system::make_file;
use crate::loop_swap::LoopSwap;
use crate::rows::Row;
use crate::say;

/// Changes of counters per phase.
pub(crate) type Phases = Vec<(String, BTreeMap<String, u64>)>;

/// A run counts as quiet if other programs used less of one CPU than this, in 1/100. On a busy machine the end of a swap
/// write comes late, reclaim finds nothing to free meanwhile and writes thousands of pages more.
const DISTURBANCE_MAX: u64 = 4;
/// So often a quiet moment is waited for.
const ATTEMPTS_MAX: usize = 4;
const PAUSE: Duration = Duration::from_millis(700);

/// What the kernel counted.
pub(crate) struct Measured {
    /// One for each run, the quietest ones.
    pub(crate) runs: Vec<Phases>,
    /// How many of them were disturbed: no quieter moment was found.
    pub(crate) disturbed: usize,
}

/// Plays the row `runs` times, again where other programs were busy meanwhile.
pub(crate) fn measure(row: &Row, trace: Option<&Path>, runs: usize) -> Result<Measured, String> {
    let mut found: Vec<(u64, Phases)> = Vec::new();
    let quiet = |found: &[(u64, Phases)]| found.iter().filter(|(busy, _)| *busy <= DISTURBANCE_MAX).count();
    for attempt in 0..runs.max(ATTEMPTS_MAX) {
        if attempt > 0 && found.last().is_some_and(|(busy, _)| *busy > DISTURBANCE_MAX) {
            pagetide_tests::clock::pause(PAUSE);
        }
        found.push(play(row, trace)?);
        if quiet(&found) >= runs {
            break;
        }
    }
    found.sort_by_key(|(busy, _)| *busy);
    found.truncate(runs);
    let disturbed = runs - quiet(&found).min(runs);
    if disturbed > 0 {
        say(&format!("{}: {disturbed} of {runs} runs were disturbed by other programs", row.name));
    }
    Ok(Measured { runs: found.into_iter().map(|(_, phases)| phases).collect(), disturbed })
}

/// One run, and how busy other programs were meanwhile, in 1/100 of a CPU.
fn play(row: &Row, trace: Option<&Path>) -> Result<(u64, Phases), String> {
    let _turn = pagetide_tests::serial::turn();
    let scratch = Scratch::new();
    let source = scratch.write("player.c", include_str!("../player.c"));
    let player = pagetide_tests::victim::compile(&source, &scratch.file("player"), &[]);
    let cluster = row.page_cluster.to_string();
    let settings = [
        ("/proc/sys/vm/page-cluster", cluster.as_str()),
        ("/sys/kernel/mm/swap/vma_ra_enabled", if row.vma { "true" } else { "false" }),
    ];
    let mut swap = LoopSwap::on(scratch.path(), &row.devices, &settings)?;
    let file = match row.file {
        0 => PathBuf::from("-"),
        pages => make_file(&mut swap.loops, scratch.path(), pages)?,
    };
    let group = Cgroup::limited(u64::from(row.memory) * 4096, KernelSwap::Allowed(row.swappiness));
    let procs = group.procs_file();
    let directory = procs.parent().ok_or("a cgroup has a directory")?;
    let regions: Vec<String> = row.regions.iter().map(u32::to_string).collect();
    let before = busy_ticks()?;
    let output = Command::new(player)
        .arg(&procs)
        .arg(directory.join("memory.stat"))
        .arg(directory.join("memory.limit_in_bytes"))
        .arg(swap.nodes().join(","))
        .arg(regions.join(","))
        .arg(row.processes.to_string())
        .arg(trace.unwrap_or_else(|| Path::new("-")))
        .arg(file)
        .args(row.script.split_whitespace())
        .output()
        .map_err(|e| format!("player: {e}"))?;
    let after = busy_ticks()?;
    if !output.status.success() {
        return Err(format!("player: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim()));
    }
    if !swap.is_alone() {
        return Err("somebody switched swap on meanwhile".into());
    }
    let phases = parse(&String::from_utf8_lossy(&output.stdout))?;
    let others = (after.0 - before.0).saturating_sub(after.1 - before.1);
    let elapsed = after.2.saturating_sub(before.2).max(1);
    Ok((others * 100 / elapsed, phases))
}

/// Ticks of user time of the whole machine, of our children, and since boot.
fn busy_ticks() -> Result<(u64, u64, u64), String> {
    let read = |path: &str| fs::read_to_string(path).map_err(|e| format!("{path}: {e}"));
    let stat = read("/proc/stat")?;
    let all: Vec<u64> = stat.lines().next().unwrap_or("").split_whitespace().flat_map(str::parse).collect();
    let own = read("/proc/self/stat")?;
    // After the name in brackets: the 13th and 14th are user time of us, and of our children.
    let own: Vec<&str> = own.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ours = [11, 13].iter().filter_map(|at| own.get(*at)?.parse::<u64>().ok()).sum();
    let uptime = read("/proc/uptime")?;
    let hundredths: String = uptime.split_whitespace().next().unwrap_or("").replace('.', "");
    Ok((all.iter().take(2).sum(), ours, hundredths.parse().map_err(|e| format!("/proc/uptime: {e}"))?))
}

/// The player's output: `phase NAME`, then `counter change`.
fn parse(text: &str) -> Result<Phases, String> {
    let mut phases: Phases = Vec::new();
    for line in text.lines() {
        let (name, value) = line.split_once(' ').ok_or_else(|| format!("player said `{line}`"))?;
        if name == "phase" {
            phases.push((value.to_owned(), BTreeMap::new()));
        } else if let (Some((_, counters)), Ok(value)) = (phases.last_mut(), value.parse::<u64>()) {
            // Gauges may fall; they are not compared.
            counters.insert(name.to_owned(), value);
        }
    }
    Ok(phases)
}
