//! Workloads of the simulator: an error or a workload, and what is small runs to its end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagetide_sim::{run, workload};

fuzz_target!(|text: &str| {
    let Ok(workload) = workload::parse(text) else { return };
    let tasks = &workload.tasks;
    let is_small = tasks.iter().map(|task| u64::from(task.count) * u64::from(task.pages)).sum::<u64>() <= 2_000
        && tasks.iter().all(|task| task.count <= 4 && task.accesses.is_some_and(|accesses| accesses <= 1_000))
        && workload.devices.iter().all(|device| device.pages <= 1 << 14)
        && workload.files.iter().all(|file| file.pages <= 2_000)
        && workload.memory_pages <= 1 << 14
        && workload.duration_ns <= 10_000_000_000;
    if is_small {
        let _ = run::run(&workload, |_| {});
    }
});
