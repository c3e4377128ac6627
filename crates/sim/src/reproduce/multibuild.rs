//! S4, multibuild: twelve kernels built two at a time in 1 GiB.
//!
//! | parameter | value | |
//! | --- | --- | --- |
//! | memory, builds, at a time | 1 GiB, 12, 2 | known |
//! | CPUs, compilers of a build at a time | 8, 4 | known: a build keeps 3.2 CPUs busy and no more than 4 |
//! | compilers of a build | 2,000 | known: about so many files are compiled |
//! | CPU of a compiler | 0.3 s of its own, 15 ms of the kernel's beside paging | known: the user time by their number; fitted to the system time |
//! | memory of a compiler | 24 MiB, touched twice | assumed |
//! | files of a compiler | 8 of 76 KiB read, at random places of 450 MiB of sources; 60 KiB written | assumed |
//! | disk | the `disk` preset, swap behind the files | assumed: as in [`super::parallelio`] |
//! | scale | 1/4 of the compilers of a build; memory as it is, since a compiler's cannot be scaled | |

use pagetide_core::event::FileSpec;
use pagetide_core::types::{Access, Nanos, PageIdx, PageRange};
use pagetide_core::{Config, MemoryMode};

use super::{Metrics, Modelled, parallelio};
use crate::device::preset;
use crate::rng::XorShift64;
use crate::task::{Behaviour, Call, Program, Step, Task};
use crate::world::{Costs, NewFile, SwapDevice, World};

const SCALE: u32 = 4;
const MEMORY: u32 = 262_144 / 100 * 93;
const CPUS: u32 = 8;
const BUILDS: u32 = 12;
const AT_A_TIME: u32 = 2;
const JOBS: u32 = 4;
/// Compilers that one job of a build runs one after the other.
const UNITS: u32 = 2_000 / JOBS / SCALE;
const UNIT_NS: Nanos = 300_000_000;
/// The kernel's part beside paging: forks, opens, pipes.
const UNIT_SYSTEM_NS: Nanos = 15_000_000;
const ANON: u32 = 6_144;
const SOURCES: u32 = 115_200;
const OBJECTS: u32 = 60_000;
const READS: u32 = 8;
const READ: u32 = 19;
const WRITE: u32 = 15;
/// Pages between two slices of computing.
const SLICE: u32 = 64;
const LIMIT_NS: Nanos = 1_000_000_000_000;
/// Whether a build has ended is looked at this often.
const LOOK_NS: Nanos = 10_000_000;

/// One job of `make`: compilers, one after the other, for one build after the other.
#[derive(Debug)]
struct Job {
    anon: PageRange,
    sources: PageRange,
    objects: PageRange,
    left: u32,
    at: u32,
    reads: u32,
    ending: u32,
    rng: XorShift64,
}

impl Behaviour for Job {
    fn step(&mut self, _now: Nanos) -> Option<Step> {
        if self.left == 0 {
            return None;
        }
        if self.reads < READS {
            self.reads += 1;
            let at = self.rng.below(self.sources.len - READ);
            return Some(Step::Call(Call::Read(self.sources.part(at, READ))));
        }
        // Twice over its memory, computing in between.
        if self.at < 2 * ANON + 2 * ANON / SLICE {
            self.at += 1;
            if self.at.is_multiple_of(SLICE + 1) {
                return Some(Step::Think((UNIT_NS + UNIT_SYSTEM_NS) / u64::from(2 * ANON / SLICE)));
            }
            return Some(Step::Touch(
                PageIdx(self.anon.first.0 + (self.at - self.at / (SLICE + 1)) % ANON),
                Access::Write,
            ));
        }
        self.ending += 1;
        if self.ending == 1 {
            let at = self.rng.below(self.objects.len - WRITE);
            return Some(Step::Call(Call::Write(self.objects.part(at, WRITE))));
        }
        // Its memory goes with it.
        if self.ending < 2 + ANON {
            return Some(Step::Discard(PageIdx(self.anon.first.0 + self.ending - 2)));
        }
        (self.left, self.at, self.reads, self.ending) = (self.left - 1, 0, 0, 0);
        Some(Step::UnitDone)
    }
}

/// One build of the kernel.
#[derive(Clone, Copy, Debug)]
struct Build {
    /// From its begin until the last of its jobs has ended, in full seconds of the source.
    elapsed_s: f64,
    system_s: f64,
}

/// Builds that follow each other: the jobs of the one at hand, and when it began.
#[derive(Debug)]
struct Lane {
    jobs: std::ops::Range<usize>,
    begun: Nanos,
    /// Where its jobs have their memory.
    anon: Vec<PageRange>,
}

fn builds(after: bool) -> Vec<Build> {
    let regions = std::iter::repeat_n(ANON, (JOBS * AT_A_TIME) as usize).chain([SOURCES, OBJECTS]);
    let pages_max = World::table_pages(regions);
    let swap = 2 * MEMORY;
    let config: Config = parallelio::s4_config(after, 1).memory(MemoryMode::Watermarks, pages_max, MEMORY);
    let config = config.slots_max(swap + 1024).min_free(1_000);
    let mut world = World::new(config, pages_max, MEMORY, CPUS, Costs::default(), 1);
    let params = preset("disk").expect("a preset").params.clone();
    let disk = world.add_disk(&params);
    world.add_device_on(&SwapDevice { params, pages: swap, priority: None, rotational: true }, disk, 1 << 22);
    let spec = FileSpec { ra_pages: 32, io_pages: 0, executable: false };
    let sources = world.add_file(NewFile { pages: SOURCES, disk, at: 0, spec }).range;
    let objects = world.add_file(NewFile { pages: OBJECTS, disk, at: 1 << 18, spec }).range;
    let begin = |world: &mut World, anon: Vec<PageRange>| {
        let (first, begun) = (world.tasks.len(), world.now());
        for (n, anon) in (first as u64..).zip(&anon) {
            let rng = XorShift64::stream(21, n);
            let job = Job { anon: *anon, sources, objects, left: UNITS, at: 0, reads: 0, ending: 0, rng };
            world.spawn(Task::new(Program::Custom(Box::new(job)), 0, 500), begun);
        }
        Lane { jobs: first..world.tasks.len(), begun, anon }
    };
    let mut lanes: Vec<Lane> = Vec::new();
    for _ in 0..AT_A_TIME {
        let anon = (0..JOBS).map(|_| world.add_region(ANON)).collect();
        lanes.push(begin(&mut world, anon));
    }
    let mut done = Vec::new();
    let mut left = BUILDS - AT_A_TIME;
    while !lanes.is_empty() && world.now() < LIMIT_NS {
        world.run(world.now() + LOOK_NS);
        for lane in std::mem::take(&mut lanes) {
            let jobs = &world.tasks[lane.jobs.clone()];
            if jobs.iter().any(|job| job.stats.ended_at.is_none()) {
                lanes.push(lane);
                continue;
            }
            let ended = jobs.iter().filter_map(|job| job.stats.ended_at).max().unwrap_or(lane.begun);
            let paging: Nanos = jobs.iter().map(|job| job.stats.system_ns).sum();
            let system = paging + u64::from(UNITS * JOBS) * UNIT_SYSTEM_NS;
            let [elapsed_s, system_s] = [ended - lane.begun, system].map(|ns| super::full(ns, SCALE) / 1e9);
            done.push(Build { elapsed_s, system_s });
            if left > 0 {
                left -= 1;
                lanes.push(begin(&mut world, lane.anon));
            }
        }
    }
    done
}

fn metrics(builds: &[Build]) -> Metrics {
    let user_s = f64::from(UNITS * JOBS) * super::full(UNIT_NS, SCALE) / 1e9;
    let column = |value: &dyn Fn(&Build) -> f64| builds.iter().map(value).collect::<Vec<f64>>();
    let columns = [
        ("System", column(&|b| b.system_s)),
        ("Elapsed", column(&|b| b.elapsed_s)),
        ("CPU", column(&|b| 100.0 * (user_s + b.system_s) / b.elapsed_s)),
    ];
    let mut out = Metrics::new();
    for (name, values) in columns {
        out.insert(format!("{name}/min"), super::least(&values));
        out.insert(format!("{name}/mean"), super::mean(&values));
        out.insert(format!("{name}/max"), super::greatest(&values));
    }
    out
}

/// Times of a build.
pub(super) fn table() -> Modelled {
    let recipe = format!(
        "12 builds, 2 at a time, in 1 GiB, profile linux-3.10 against its limited kswapd with min-scan-priority=1, compilers / {SCALE}"
    );
    let at = "/S4_priority0_2013/multibuild/table";
    let (before, after) = super::both(builds);
    Modelled::columns("S4", "multibuild", at, "2", &recipe).with(metrics(&before), metrics(&after))
}
