//! Swarms: many small worlds from seeds, with faults of the world and all oracles on.
//!
//! Each seed draws a machine, a profile, devices, tasks and a subset of faults. First the faults are on (safety: no load
//! may see wrong content, no invariant may break), then the world heals (liveness: every task must reach its end).

use pagetide_core::types::{Nanos, PageIdx};
use pagetide_core::{Config, HostKind, MemoryMode};

use crate::device::{DeviceParams, PRESETS};
use crate::files::FileWalk;
use crate::injection::FaultInjection;
use crate::pattern::{Pattern, Walk};
use crate::rng::{XorShift64, Zipf};
use crate::task::{Program, Task, WalkProgram};
use crate::world::{Costs, NewFile, RunEnd, SimFile, SwapDevice, World};
use pagetide_core::event::FileSpec;

/// The world heals then.
const HEALS_AT: Nanos = 400_000_000;
/// Every task must be done by then.
const ENDS_BY: Nanos = 3_600_000_000_000;
/// Knobs that a seed may turn, with values that every profile admits.
const TURNS: [&str; 14] = [
    "swappiness=0",
    "swappiness=200",
    "page-cluster=0",
    "page-cluster=5",
    "readahead=off",
    "readahead=cluster",
    "readahead=vma",
    "readahead=vma-rfc",
    "readahead=stream",
    "min-scan-priority=1",
    "free-on-write-done=on",
    "anon-list=active",
    "lru-batch=0",
    "charge-batch=0",
];

/// How one seed ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwarmEnd {
    /// The seed.
    pub seed: u64,
    /// How the run ended.
    pub end: RunEnd,
    /// Loads and stores checked.
    pub accesses: u64,
    /// A number that two runs of one seed share and two seeds do not: the counters, folded.
    pub fingerprint: u64,
}

/// Runs one seed. With `canary`, one of so many writes stores the wrong bytes, and the run must say so.
pub fn run_seed(seed: u64, canary: Option<u32>) -> SwarmEnd {
    let mut rng = XorShift64::stream(seed, 1000);
    let tasks = 1 + rng.below(4);
    let sizes: Vec<u32> = (0..tasks).map(|_| 64 + rng.below(1500)).collect();
    let total: u32 = sizes.iter().sum();
    let memory = (total / (2 + rng.below(6))).max(128);
    let files: Vec<u32> = (0..rng.below(3)).map(|_| 64 + rng.below(1500)).collect();
    let all: Vec<u32> = sizes.iter().chain(&files).copied().collect();
    // A host that sees no accessed bits pages anonymous memory only.
    let host = if files.is_empty() { HostKind::Blind } else { HostKind::Exact };
    let host = if seed.is_multiple_of(2) { HostKind::Exact } else { host };
    let mut world = build(seed, &mut rng, (&all, host), memory, total);
    for (n, pages) in files.iter().enumerate() {
        let file = add_file(&mut world, &mut rng, *pages);
        spawn_on_file(&mut world, &mut rng, file, seed ^ n as u64);
    }
    for (n, pages) in sizes.iter().enumerate() {
        let region = world.add_region(*pages);
        let program = Program::Walk(WalkProgram {
            region,
            owned: true,
            walk: Walk::new(pattern(&mut rng, *pages), *pages),
            write_percent: [0, 30, 100][rng.below(3) as usize],
            filled: 0,
            left: Some(u64::from(*pages) * 4 + 500),
            rng: XorShift64::stream(seed, 2000 + n as u64),
        });
        let think = u64::from(rng.below(5_000));
        world.spawn(Task::new(program, think, 200), u64::from(rng.below(1_000_000)));
    }
    world.canary = canary;
    if canary.is_none() {
        world.inject_faults(FaultInjection::swarm(seed, HEALS_AT));
    }
    let mut end = world.run(ENDS_BY);
    if end == RunEnd::Finished
        && let Err(wrong) = world.audit_files()
    {
        end = RunEnd::WrongContent(wrong);
    }
    let accesses = world.tasks.iter().map(|t| t.stats.accesses).sum();
    let mut fingerprint = world.now();
    for (_, value) in world.core.vmstat().iter() {
        fingerprint = (fingerprint.rotate_left(7) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    if end == RunEnd::Finished {
        check_laws(&world);
    }
    SwarmEnd { seed, end, accesses, fingerprint }
}

fn any_device(rng: &mut XorShift64) -> DeviceParams {
    PRESETS[rng.below(u32::try_from(PRESETS.len()).expect("few")) as usize].params.clone()
}

/// A file on a disk of its own, or behind the swap space of the first device.
fn add_file(world: &mut World, rng: &mut XorShift64, pages: u32) -> SimFile {
    let disk = if rng.chance_bp(5_000) { 0 } else { world.add_disk(&any_device(rng)) };
    let spec =
        FileSpec { ra_pages: [0, 8, 32, 256][rng.below(4) as usize], io_pages: 0, executable: rng.chance_bp(2_000) };
    world.add_file(NewFile { pages, disk, at: 1 << 20, spec })
}

/// Two tasks that share the file, by calls or through a mapping.
fn spawn_on_file(world: &mut World, rng: &mut XorShift64, file: SimFile, seed: u64) {
    for n in 0..2 {
        let write_percent = [0, 30, 100][rng.below(3) as usize];
        let left = Some(u64::from(file.range.len) * 2 + 200);
        let own = XorShift64::stream(seed, 3000 + n);
        let program = if rng.chance_bp(6_000) {
            let request = 1 + rng.below(16);
            let walk = Walk::new(pattern(rng, file.range.len / request), file.range.len / request);
            let think_ns = u64::from(rng.below(20_000));
            let file = file.range;
            Program::Custom(Box::new(FileWalk {
                file,
                request,
                walk,
                write_percent,
                left,
                think_ns,
                rng: own,
                has_thought: false,
            }))
        } else {
            let walk = Walk::new(pattern(rng, file.range.len), file.range.len);
            let (region, filled) = (file.range, file.range.len);
            Program::Walk(WalkProgram { region, owned: false, walk, write_percent, filled, left, rng: own })
        };
        world.spawn(Task::new(program, u64::from(rng.below(5_000)), 200), u64::from(rng.below(1_000_000)));
    }
}

fn pattern(rng: &mut XorShift64, pages: u32) -> Pattern {
    match rng.below(6) {
        0 => Pattern::Sequential,
        1 => Pattern::Backward,
        2 => Pattern::Stride(1 + rng.below(7)),
        3 => Pattern::Random,
        4 => Pattern::Zipf(Zipf::new(pages, 1.0)),
        _ => Pattern::Hot { pages: pages / 5, share_bp: 9_000 },
    }
}

fn build(seed: u64, rng: &mut XorShift64, (sizes, host): (&[u32], HostKind), memory: u32, total: u32) -> World {
    let profiles = pagetide_core::config::PROFILES;
    let profile = profiles[rng.below(u32::try_from(profiles.len()).expect("few")) as usize];
    let mut config = Config::profile(profile, host).expect("a name of the list");
    for turn in TURNS {
        if rng.chance_bp(1_500) {
            config.set(turn).expect("every profile takes it");
        }
    }
    let mode = match rng.below(3) {
        _ if host == HostKind::Blind => MemoryMode::Watermarks,
        0 => MemoryMode::Watermarks,
        1 => MemoryMode::Memcg { v1: true },
        _ => MemoryMode::Memcg { v1: false },
    };
    let pages_max = World::table_pages(sizes.iter().copied());
    let devices = 1 + rng.below(3);
    let each = total * 2 / devices + 600;
    let config = config.memory(mode, pages_max, memory).slots_max((each + 1024) * devices).min_free(memory / 64);
    let mut world = World::new(config, pages_max, memory, 1 + rng.below(4), Costs::default(), seed);
    for _ in 0..devices {
        let params = any_device(rng);
        let priority = rng.chance_bp(5_000).then(|| i16::try_from(rng.below(3)).expect("small"));
        let rotational = rng.chance_bp(2_000);
        world.add_device(&SwapDevice { params, pages: each, priority, rotational });
    }
    world
}

/// The laws of the counters (I10) and of the content at a quiet end.
fn check_laws(world: &World) {
    use pagetide_core::Counter as C;
    let get = |counter| world.core.vmstat().get(counter);
    assert!(get(C::pgsteal_anon) <= get(C::pgscan_anon), "I10: more stolen than scanned");
    assert!(get(C::pgsteal_file) <= get(C::pgscan_file), "I10: more file pages stolen than scanned");
    // A page met under its own write passes for one read ahead.
    let marked = get(C::nr_vmscan_write) + get(C::nr_vmscan_immediate_reclaim);
    assert!(get(C::swap_ra_hit) <= get(C::swap_ra) + marked, "I10: more readahead hits than readahead");
    assert!(get(C::pgmajfault) <= get(C::pgfault), "I10: more major faults than faults");
    for task in &world.tasks {
        let Program::Walk(walk) = &task.program else { continue };
        let last = PageIdx(walk.region.first.0 + walk.region.len - 1);
        let view = world.core.page(last);
        assert_eq!(view.page, last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seeds of the ordinary test run; `PAGETIDE_SWARM_SEEDS` asks for more at night.
    const SEEDS: u64 = 300;

    fn seeds() -> u64 {
        let asked = std::env::var("PAGETIDE_SWARM_SEEDS").ok();
        asked.map_or(SEEDS, |n| n.parse().expect("PAGETIDE_SWARM_SEEDS is a number"))
    }

    #[test]
    fn no_seed_loses_a_store_or_stands_still() {
        let mut accesses = 0;
        for seed in 0..seeds() {
            let end = run_seed(seed, None);
            assert_eq!(end.end, RunEnd::Finished, "seed {seed}");
            accesses += end.accesses;
        }
        assert!(accesses > 5_000 * seeds(), "only {accesses} accesses: the swarm tests nothing");
    }

    #[test]
    fn one_seed_is_one_run() {
        for seed in [3, 17, 40] {
            assert_eq!(run_seed(seed, None), run_seed(seed, None));
        }
        assert_ne!(run_seed(1, None).fingerprint, run_seed(2, None).fingerprint);
    }

    #[test]
    fn the_canary_is_heard() {
        let heard = (0..20).filter(|seed| matches!(run_seed(*seed, Some(10)).end, RunEnd::WrongContent(_))).count();
        assert!(heard >= 18, "a planted bug was seen in {heard} of 20 seeds");
    }
}
