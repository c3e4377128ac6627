//! What must be known to repeat a figure: machine, kernel, settings, commands.

use std::fs;

use crate::side::Bench;

/// One line per fact.
pub(crate) fn describe(bench: &Bench) -> Vec<String> {
    let load = word_of("/proc/loadavg", 0);
    let processors = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    vec![
        format!(
            "kernel {}, {processors} processors ({}), {} memory",
            word_of("/proc/version", 2),
            processor(),
            memory()
        ),
        format!("load before the start {load} (above 0.3 something else runs: the spread will tell)"),
        format!(
            "transparent huge pages {}; page-cluster {}",
            line("/sys/kernel/mm/transparent_hugepage/enabled"),
            line("/proc/sys/vm/page-cluster")
        ),
        format!(
            "budget and limit {} MiB, {} runs of each side in turns, medians (least..most)",
            bench.budget_mib, bench.runs
        ),
        format!(
            "kernel side: memory cgroup with the limit, swappiness {}, a fresh swap file in {} straight on the disk, queue/rotational 0 before swapon",
            bench.swappiness,
            bench.directory.display()
        ),
        format!(
            "our side: pagetide run --memory {}MiB --swap {} -- PROGRAM",
            bench.budget_mib,
            bench.directory.display()
        ),
        "memload MIB SCRIPT THREADS: see bench/victims/memload.c; every page it touches is checked".to_owned(),
    ]
}

fn line(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

fn word_of(path: &str, index: usize) -> String {
    line(path).split_whitespace().nth(index).unwrap_or("unknown").to_owned()
}

fn processor() -> String {
    let text = line("/proc/cpuinfo");
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or_else(|| "unknown".to_owned(), |(_, name)| name.to_owned())
}

fn memory() -> String {
    let text = line("/proc/meminfo");
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    total.map_or_else(|| "unknown".to_owned(), |total| total.trim().to_owned())
}
