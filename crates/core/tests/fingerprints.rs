//! What the core decides, as numbers: random lives on every profile and both kinds of host, their effects folded into one
//! number for each (I8). A change that is to change no decision leaves `fingerprints.txt` as it is; one that is to
//! change a profile's decisions changes that profile's lines. `UPDATE=1` rewrites the file.

mod common;

use common::{Pending, World, device_spec};
use pagetide_core::config::PROFILES;
use pagetide_core::event::{Advice, DeviceSpec, Outcome};
use pagetide_core::types::{Access, DeviceId, PageIdx, PageRange, RegionId};
use pagetide_core::{Config, Event, HostKind, MemoryMode};
use std::fmt::Write as _;

const PAGES: u32 = 192;
const BUDGET: u32 = 48;
/// Lives of each kind, and steps of each life.
const LIVES: u64 = 24;
const STEPS: u32 = 900;

/// Settings beside the defaults of a profile, so that each mode of readahead and reclaim is met.
const TURNS: [&[&str]; 8] = [
    &[],
    &["readahead=stream", "zero-ahead=16"],
    &["readahead=vma"],
    &["readahead=vma-rfc", "page-cluster=5"],
    &["readahead=cluster", "lru-batch=0"],
    &["sample=none"],
    &["free-on-write-done=on", "min-scan-priority=1"],
    &["charge-batch=4", "swappiness=200"],
];

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from((self.0 >> 11) % u64::from(n)).expect("below a u32")
    }
}

fn world(profile: &str, kind: HostKind, memory: MemoryMode, seed: u64) -> World {
    let mut config = Config::profile(profile, kind).expect("a profile");
    for setting in TURNS[usize::try_from(seed).expect("small") % TURNS.len()] {
        config.set(setting).expect("a setting");
    }
    let mut world = World::new(config.memory(memory, PAGES, BUDGET).slots_max(8192), kind == HostKind::Blind);
    world.audits = false;
    world.event(Event::RegionAdded { region: RegionId(0), range: PageRange::new(PageIdx(0), PAGES) });
    world.event(Event::DeviceAdded { device: DeviceId(0), spec: device_spec(600) });
    world
}

fn access(world: &mut World, rng: &mut Rng, walks: &mut [u32; 3]) {
    let task = 2 + rng.below(3);
    let walk = &mut walks[task as usize - 2];
    *walk = match rng.below(8) {
        0 => rng.below(PAGES),
        1..4 => (*walk + PAGES - 1) % PAGES,
        _ => (*walk + 1) % PAGES,
    };
    let how = if rng.below(3) == 0 { Access::Write } else { Access::Read };
    if !world.blocked.contains_key(&task) && !world.poisoned.contains(walk) {
        world.begin(task, *walk, how);
    }
}

fn answer(world: &mut World, rng: &mut Rng) {
    if world.pending.is_empty() {
        return;
    }
    let pending = world.pending.remove(rng.below(u32::try_from(world.pending.len()).expect("small")) as usize);
    let fail = rng.below(40) == 0;
    let read = matches!(pending, Pending::Read { .. });
    world.answer_with(pending, if fail { Outcome::Failed } else { Outcome::Done });
    if fail && read {
        world.forget_poisoned();
    }
}

fn advise(world: &mut World, rng: &mut Rng) {
    const ALL: [Advice; 8] = [
        Advice::Normal,
        Advice::Sequential,
        Advice::Random,
        Advice::WillNeed,
        Advice::Cold,
        Advice::PageOut,
        Advice::Lock,
        Advice::Unlock,
    ];
    let first = rng.below(PAGES);
    let range = PageRange::new(PageIdx(first), (1 + rng.below(12)).min(PAGES - first));
    world.event(Event::Advice { range, advice: ALL[rng.below(8) as usize] });
}

/// The number of one life.
fn live(profile: &str, kind: HostKind, memory: MemoryMode, seed: u64) -> u64 {
    let mut world = world(profile, kind, memory, seed);
    let mut rng = Rng(0x9e37_79b9_7f4a_7c15 ^ (seed + 1).wrapping_mul(0xd134_2543_de82_ef95));
    let mut walks = [0, PAGES / 2, PAGES - 1];
    let mut regions = 1;
    for _ in 0..STEPS {
        match rng.below(1000) {
            0..560 => access(&mut world, &mut rng, &mut walks),
            560..850 => answer(&mut world, &mut rng),
            850..930 => {
                world.now = world.core.deadline().map_or(world.now, |at| world.now.max(at));
                world.event(Event::Timeout);
            }
            930..945 => {
                let first = rng.below(PAGES);
                world.discard(first, (1 + rng.below(24)).min(PAGES - first));
            }
            945..950 => {
                let pages = BUDGET / 2 + rng.below(BUDGET);
                world.event(Event::BudgetChanged { pages });
            }
            950..975 => advise(&mut world, &mut rng),
            975..980 => {
                let on = rng.below(3) == 0;
                world.event(Event::Hold { on });
            }
            980..988 => {
                let page = rng.below(PAGES);
                world.event(Event::Referenced { range: PageRange::one(PageIdx(page)) });
            }
            988..991 => {
                let device = DeviceId(u8::try_from(rng.below(3)).expect("small"));
                world.event(Event::Swapoff { device });
            }
            991..997 => {
                let device = DeviceId(u8::try_from(rng.below(3)).expect("small"));
                let priority = [None, Some(0), Some(1)][rng.below(3) as usize];
                let (rotational, synchronous) = (rng.below(6) == 0, rng.below(6) == 0);
                let slots = 20 + rng.below(400);
                let spec = DeviceSpec { priority, rotational, synchronous, ..device_spec(slots) };
                world.event(Event::DeviceAdded { device, spec });
            }
            _ => {
                let at = PageIdx(1 + rng.below(PAGES - 1));
                world.event(Event::RegionSplit { region: RegionId(0), at, upper: RegionId(regions) });
                regions += 1;
            }
        }
    }
    let mut number = world.hash.value();
    let lists = world.core.list_sizes();
    let counters = world.core.vmstat().iter().map(|(_, n)| n);
    for value in counters.chain(lists.map(u64::from)).chain([u64::from(world.core.charged()), world.now]) {
        number = (number ^ value).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }
    number
}

#[test]
fn every_profile_decides_as_it_did() {
    let modes = [
        ("watermarks", MemoryMode::Watermarks),
        ("memcg-v1", MemoryMode::Memcg { v1: true }),
        ("memcg-v2", MemoryMode::Memcg { v1: false }),
    ];
    let mut text = String::new();
    for profile in PROFILES {
        for (kind, host) in [(HostKind::Exact, "exact"), (HostKind::Blind, "blind")] {
            for (name, memory) in modes {
                if kind == HostKind::Blind && memory != MemoryMode::Watermarks {
                    continue;
                }
                let fold = |sum: u64, seed| sum.rotate_left(9) ^ live(profile, kind, memory, seed);
                let number = (0..LIVES).fold(0, fold);
                writeln!(text, "{profile} {host} {name} {number:016x}").expect("a string grows");
            }
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fingerprints.txt");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, &text).expect("the tree can be written");
        return;
    }
    let want = std::fs::read_to_string(path).expect("the file is part of the tree");
    assert_eq!(text, want, "other decisions than before: if that is the aim, UPDATE=1 rewrites {path}");
}
