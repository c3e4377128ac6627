//! A workload becomes a world, runs, and becomes a report.

use std::fmt::Write as _;

use pagetide_core::types::Nanos;
use pagetide_core::{Config, HostKind, MemoryMode};
use serde_json::{Value, json};

use crate::device::{DeviceParams, Mechanism};
use crate::disk::DiskStats;
use crate::files::FileWalk;
use crate::histogram::Histogram;
use crate::pattern::Walk;
use crate::rng::XorShift64;
use crate::task::{Program, Task, WalkProgram};
use crate::units::{show_nanos, show_pages};
use crate::workload::{MemoryKind, TaskSetup, Workload, WorkloadError};
use crate::world::{Costs, NewFile, RunEnd, SimFile, SwapDevice, World};
use pagetide_core::event::FileSpec;

/// Percentiles that reports show.
pub const PERCENTILES: [u64; 7] = [50, 60, 70, 80, 90, 95, 99];

/// What a group of equal tasks has done.
#[derive(Clone, Debug)]
pub struct GroupReport {
    /// Its name in the workload.
    pub name: String,
    /// How many tasks.
    pub count: u32,
    /// Accesses after the filling.
    pub accesses: u64,
    /// Faults after the filling.
    pub faults: u64,
    /// Accesses per second and task group, from the end of its filling to its end.
    pub accesses_per_s: u64,
    /// Time of an access.
    pub latency: Histogram,
    /// When the last of them ended.
    pub ended_at: Option<Nanos>,
    /// Tasks ended for want of memory.
    pub out_of_memory: u32,
}

/// What a run has shown.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// How it ended.
    pub end: RunEnd,
    /// Virtual time at its end.
    pub ended_at: Nanos,
    /// The core's counters.
    pub vmstat: Vec<(&'static str, u64)>,
    /// Per task group.
    pub groups: Vec<GroupReport>,
    /// Per device.
    pub devices: Vec<(&'static str, DiskStats)>,
    /// As the workload said.
    pub profile: String,
    /// As the workload said.
    pub seed: u64,
    /// As the workload said.
    pub memory_pages: u32,
}

/// Virtual time between two looks at the progress.
const PROGRESS_STEP_NS: Nanos = 50_000_000;

/// Runs a workload. `progress` is told the part of the duration that is over, in 1/10,000.
///
/// # Errors
/// A profile or knob that the core does not know; devices or regions too large.
pub fn run(workload: &Workload, mut progress: impl FnMut(u64)) -> Result<RunReport, WorkloadError> {
    let mut world = build(workload)?;
    let mut until = 0;
    let end = loop {
        until = (until + PROGRESS_STEP_NS).min(workload.duration_ns);
        match world.run(until) {
            RunEnd::TimeUp if until < workload.duration_ns => progress(until / (workload.duration_ns / 10_000).max(1)),
            end @ (RunEnd::TimeUp | RunEnd::Finished | RunEnd::WrongContent(_) | RunEnd::NoProgress { .. }) => {
                break end;
            }
        }
    };
    Ok(report(workload, &mut world, end))
}

/// The core's configuration for a workload.
fn config(workload: &Workload, pages_max: u32, slots_max: u32) -> Result<Config, WorkloadError> {
    let at = |line: usize, what: String| WorkloadError { line, what };
    let mut config = Config::profile(&workload.profile, workload.host.kind())
        .map_err(|e| at(workload.profile_line, e.to_string()))?;
    for setting in &workload.settings {
        let text = format!("{}={}", setting.key, setting.value);
        config.set(&text).map_err(|e| at(setting.line, e.to_string()))?;
    }
    let mode = match workload.memory_kind {
        MemoryKind::Group if workload.host.kind() == HostKind::Exact => MemoryMode::Memcg { v1: true },
        // The live budget has watermarks.
        MemoryKind::Group | MemoryKind::Machine => MemoryMode::Watermarks,
    };
    Ok(config.memory(mode, pages_max, workload.memory_pages).slots_max(slots_max))
}

/// Slots of a cluster: the core rounds each device up to whole ones.
const CLUSTER: u32 = 512;

/// The world of a workload, at its beginning.
///
/// # Errors
/// As [`run`].
pub fn build(workload: &Workload) -> Result<World, WorkloadError> {
    let regions = workload.tasks.iter().flat_map(|t| std::iter::repeat_n(t.pages, t.regions() as usize));
    let pages_max = World::table_pages(regions.chain(workload.files.iter().map(|f| f.pages)));
    let slots =
        workload.devices.iter().map(|d| u64::from((d.pages + 1).div_ceil(CLUSTER)) * u64::from(CLUSTER)).sum::<u64>();
    let slots_max = u32::try_from(slots).ok().filter(|s| *s <= 1 << 30);
    let Some(slots_max) = slots_max else {
        return Err(WorkloadError { line: 1, what: "the devices' sizes sum to more than 4 TiB".to_owned() });
    };
    let config = config(workload, pages_max, slots_max)?;
    let mut world =
        World::new(config, pages_max, workload.memory_pages, workload.cpus, Costs::default(), workload.seed);
    world.set_host(workload.host);
    for device in &workload.devices {
        let rotational = device.params.mechanism == Mechanism::Rotational;
        world.add_device(&SwapDevice {
            params: device.params.clone(),
            pages: device.pages,
            priority: device.priority,
            rotational,
        });
    }
    let files = add_files(&mut world, workload);
    for (group, setup) in workload.tasks.iter().enumerate() {
        match setup.file {
            Some(used) => spawn_file_group(&mut world, workload, group, setup, (files[used.file], used.request)),
            None => spawn_group(&mut world, workload, group, setup),
        }
    }
    Ok(world)
}

/// The disks of files: those of equal parameters share one.
fn file_disks(workload: &Workload) -> Vec<&DeviceParams> {
    let mut disks: Vec<&DeviceParams> = Vec::new();
    for file in workload.files.iter().filter(|file| !file.on_swap) {
        if !disks.contains(&&file.params) {
            disks.push(&file.params);
        }
    }
    disks
}

/// Files lie behind each other on their disks; those on the first swap device's disk behind the swap space.
fn add_files(world: &mut World, workload: &Workload) -> Vec<SimFile> {
    let disks = file_disks(workload);
    let first = disks.iter().fold(None, |first, params| {
        let disk = world.add_disk(params);
        first.or(Some(disk))
    });
    let mut ends = vec![0; disks.len()];
    let mut swap_end = workload.devices.first().map_or(0, |d| u64::from(d.pages) + 1);
    let mut out = Vec::new();
    for file in &workload.files {
        let spec = FileSpec { ra_pages: file.ra_pages, io_pages: 0, executable: file.executable };
        let place = disks.iter().position(|params| **params == file.params).filter(|_| !file.on_swap);
        let (disk, end) = match place {
            Some(n) => (first.expect("there is a disk for it") + n, &mut ends[n]),
            None => (0, &mut swap_end),
        };
        out.push(world.add_file(NewFile { pages: file.pages, disk, at: *end, spec }));
        *end += u64::from(file.pages);
    }
    out
}

fn spawn_file_group(
    world: &mut World,
    workload: &Workload,
    group: usize,
    setup: &TaskSetup,
    (file, request): (SimFile, Option<u32>),
) {
    for n in 0..setup.count {
        let rng = XorShift64::stream(workload.seed, (group as u64 + 1) << 32 | u64::from(n));
        let pages = file.range.len / request.unwrap_or(1);
        let walk = Walk::new(setup.pattern.clone(), pages);
        let (write_percent, left) = (setup.write_percent, setup.accesses);
        let program = match request {
            Some(request) => Program::Custom(Box::new(FileWalk {
                file: file.range,
                request,
                walk,
                write_percent,
                left,
                think_ns: setup.think_ns,
                rng,
                has_thought: false,
            })),
            None => Program::Walk(WalkProgram {
                region: file.range,
                owned: false,
                walk,
                write_percent,
                filled: pages,
                left,
                rng,
            }),
        };
        let think_ns = if request.is_some() { 0 } else { setup.think_ns };
        world.spawn(Task::new(program, think_ns, setup.access_ns), setup.start_ns);
    }
}

fn spawn_group(world: &mut World, workload: &Workload, group: usize, setup: &TaskSetup) {
    let mut region = None;
    for n in 0..setup.count {
        let first = n == 0 || !setup.shared;
        if first {
            region = Some(world.add_region(setup.pages));
        }
        let region = region.expect("the first task of the group has added it");
        let stream = (group as u64 + 1) << 32 | u64::from(n);
        let program = Program::Walk(WalkProgram {
            region,
            owned: !setup.shared,
            walk: Walk::new(setup.pattern.clone(), setup.pages),
            write_percent: setup.write_percent,
            filled: if setup.fill && first { 0 } else { setup.pages },
            left: setup.accesses,
            rng: XorShift64::stream(workload.seed, stream),
        });
        world.spawn(Task::new(program, setup.think_ns, setup.access_ns), setup.start_ns);
    }
}

fn report(workload: &Workload, world: &mut World, end: RunEnd) -> RunReport {
    let ended_at = world.now();
    let mut tasks = world.tasks.iter_mut();
    let mut groups = Vec::new();
    for setup in &workload.tasks {
        let mut group = GroupReport {
            name: setup.name.clone(),
            count: setup.count,
            accesses: 0,
            faults: 0,
            accesses_per_s: 0,
            latency: Histogram::default(),
            ended_at: Some(0),
            out_of_memory: 0,
        };
        for task in tasks.by_ref().take(setup.count as usize) {
            task.settle();
            let stats = &task.stats;
            group.accesses += stats.accesses;
            group.faults += stats.faults;
            group.latency.merge(&stats.latency);
            group.out_of_memory += u32::from(stats.out_of_memory);
            let span = stats.ended_at.unwrap_or(ended_at).saturating_sub(stats.counted_from).max(1);
            let rate = u128::from(stats.accesses) * 1_000_000_000 / u128::from(span);
            group.accesses_per_s += u64::try_from(rate).unwrap_or(u64::MAX);
            group.ended_at = group.ended_at.zip(stats.ended_at).map(|(a, b)| a.max(b));
        }
        groups.push(group);
    }
    let names = workload.devices.iter().map(|d| d.params.preset);
    let names = names.chain(file_disks(workload).into_iter().map(|params| params.preset));
    RunReport {
        end,
        ended_at,
        vmstat: world.core.vmstat().iter().collect(),
        groups,
        devices: names.zip(world.disk_stats()).collect(),
        profile: workload.profile.clone(),
        seed: workload.seed,
        memory_pages: workload.memory_pages,
    }
}

/// A word for how a run ended that killed so many tasks for want of memory.
pub const fn end_word(end: RunEnd, killed: u64) -> &'static str {
    match end {
        RunEnd::Finished | RunEnd::TimeUp if killed > 0 => "out-of-memory",
        RunEnd::Finished => "finished",
        RunEnd::TimeUp => "time-up",
        RunEnd::WrongContent(_) => "wrong-content",
        RunEnd::NoProgress { .. } => "no-progress",
    }
}

/// A histogram as JSON.
pub fn latency_json(latency: &Histogram) -> Value {
    let mut out = serde_json::Map::new();
    out.insert("mean".into(), json!(latency.mean()));
    out.insert("min".into(), json!(latency.min()));
    for p in PERCENTILES {
        out.insert(format!("p{p}"), json!(latency.percentile(p)));
    }
    out.insert("max".into(), json!(latency.max()));
    Value::Object(out)
}

/// Counters as JSON, by name.
pub fn vmstat_json(vmstat: &[(&'static str, u64)]) -> Value {
    Value::Object(vmstat.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect())
}

impl RunReport {
    /// The counter of that name.
    pub fn counter(&self, name: &str) -> u64 {
        self.vmstat.iter().find(|(n, _)| *n == name).map_or(0, |(_, value)| *value)
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let groups: Vec<Value> = self.groups.iter().map(group_json).collect();
        let devices: Vec<Value> = self.devices.iter().map(|(name, stats)| device_json(name, stats)).collect();
        json!({
            "end": end_word(self.end, self.counter("oom_kill")),
            "profile": self.profile,
            "seed": self.seed,
            "memory_budget_bytes": u64::from(self.memory_pages) * crate::units::PAGE_BYTES,
            "virtual_ns": self.ended_at,
            "tasks": groups,
            "devices": devices,
            "vmstat": vmstat_json(&self.vmstat),
        })
    }

    /// For people.
    pub fn text(&self) -> String {
        let mut out = String::new();
        let memory = show_pages(u64::from(self.memory_pages));
        let _ = writeln!(
            out,
            "{} after {} of virtual time; {memory} of memory, profile {}, seed {}\n",
            end_word(self.end, self.counter("oom_kill")),
            show_nanos(self.ended_at),
            self.profile,
            self.seed
        );
        let _ = writeln!(
            out,
            "{:<14} {:>5} {:>12} {:>12} {:>10} {:>11} {:>11} {:>11}",
            "tasks", "count", "accesses", "accesses/s", "faults", "mean", "p50", "p99"
        );
        for g in &self.groups {
            let _ = writeln!(
                out,
                "{:<14} {:>5} {:>12} {:>12} {:>10} {:>11} {:>11} {:>11}",
                g.name,
                g.count,
                g.accesses,
                g.accesses_per_s,
                g.faults,
                show_nanos(g.latency.mean()),
                show_nanos(g.latency.percentile(50)),
                show_nanos(g.latency.percentile(99))
            );
        }
        for g in self.groups.iter().filter(|g| g.out_of_memory > 0) {
            let _ = writeln!(out, "{}: {} of {} killed, out of memory", g.name, g.out_of_memory, g.count);
        }
        let _ = writeln!(out);
        for (name, stats) in &self.devices {
            let _ = writeln!(
                out,
                "device {name}: {} read in {} requests, {} written in {}, busy {} of 100",
                show_pages(stats.pages[0]),
                stats.requests[0],
                show_pages(stats.pages[1]),
                stats.requests[1],
                stats.busy_ns * 100 / self.ended_at.max(1)
            );
        }
        let _ = writeln!(out);
        for (name, value) in self.vmstat.iter().filter(|(_, value)| *value > 0) {
            let _ = writeln!(out, "{name:<28} {value:>14}");
        }
        out
    }
}

fn group_json(g: &GroupReport) -> Value {
    json!({
        "name": g.name,
        "count": g.count,
        "accesses": g.accesses,
        "accesses_per_s": g.accesses_per_s,
        "faults": g.faults,
        "ended_ns": g.ended_at,
        "out_of_memory": g.out_of_memory,
        "latency_ns": latency_json(&g.latency),
    })
}

fn device_json(name: &str, stats: &DiskStats) -> Value {
    json!({
        "name": name,
        "read_requests": stats.requests[0],
        "read_pages": stats.pages[0],
        "write_requests": stats.requests[1],
        "write_pages": stats.pages[1],
        "busy_ns": stats.busy_ns,
    })
}

#[cfg(test)]
mod tests {
    use crate::workload::parse;

    #[test]
    fn a_job_that_was_killed_has_not_finished() {
        const TOO_LARGE: &str = r#"
memory = "8MiB"
profile = "linux-6.18"
[[device]]
preset = "nvme"
size = "1MiB"
[[task]]
name = "job"
size = "16MiB"
pattern = "sequential"
write_percent = 100
laps = 1
"#;
        for (size, end) in [("1MiB", "out-of-memory"), ("64MiB", "finished")] {
            let workload = parse(&TOO_LARGE.replace("1MiB", size)).expect("sound");
            let report = super::run(&workload, |_| ()).expect("it can be built");
            assert_eq!(report.json()["end"], end);
            assert_eq!(report.text().contains("job: 1 of 1 killed, out of memory"), end == "out-of-memory");
        }
    }
}
