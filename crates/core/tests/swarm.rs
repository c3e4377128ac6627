//! Random lives of a core: many tasks, effects executed in any order, I/O that fails, pages discarded, adopted, locked,
//! advised and held while effects are in flight, budgets cut, devices swapped off. After every event the audit; at every
//! access the content; at the end everything settles and every page is still what it must be (I1 to I10).

mod common;

use common::{Pending, World, device_spec};
use pagetide_core::config::PROFILES;
use pagetide_core::event::{Advice, DeviceSpec, Outcome};
use pagetide_core::types::{Access, DeviceId, PageIdx, PageRange, RegionId, TaskId};
use pagetide_core::{Config, Event, HostKind, MemoryMode, PageState};
use proptest::prelude::*;

const PAGES: u32 = 96;

#[derive(Clone)]
enum Step {
    Access { task: u32, page: u32, write: bool },
    Answer { which: usize, fail: bool },
    Timeout,
    Discard { first: u32, len: u32 },
    Budget { pages: u32 },
    Advise { first: u32, len: u32, advice: Advice },
    Hold { on: bool },
    Referenced { page: u32 },
    Swapoff { device: u8 },
    AddDevice { device: u8, slots: u32, priority: Option<i16> },
    Late { number: u32 },
    Split { at: u32 },
}

impl std::fmt::Debug for Step {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Access { task, page, write } => write!(f, "access({task}, {page}, {write})"),
            Self::Answer { which, fail } => write!(f, "answer({which}, {fail})"),
            Self::Timeout => write!(f, "timeout"),
            Self::Discard { first, len } => write!(f, "discard({first}, {len})"),
            Self::Budget { pages } => write!(f, "budget({pages})"),
            Self::Advise { first, len, advice } => write!(f, "advise({first}, {len}, {advice:?})"),
            Self::Hold { on } => write!(f, "hold({on})"),
            Self::Referenced { page } => write!(f, "referenced({page})"),
            Self::Swapoff { device } => write!(f, "swapoff({device})"),
            Self::AddDevice { device, slots, priority } => write!(f, "add({device}, {slots}, {priority:?})"),
            Self::Late { number } => write!(f, "late({number})"),
            Self::Split { at } => write!(f, "split({at})"),
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let advice = prop_oneof![
        Just(Advice::Normal),
        Just(Advice::Sequential),
        Just(Advice::Random),
        Just(Advice::WillNeed),
        Just(Advice::Cold),
        Just(Advice::PageOut),
        Just(Advice::Lock),
        Just(Advice::Unlock),
    ];
    prop_oneof![
        30 => (0..6u32, 0..PAGES, any::<bool>()).prop_map(|(task, page, write)| Step::Access { task, page, write }),
        30 => (any::<usize>(), 0..20u32).prop_map(|(which, n)| Step::Answer { which, fail: n == 0 }),
        8 => Just(Step::Timeout),
        3 => (0..PAGES, 1..24u32).prop_map(|(first, len)| Step::Discard { first, len }),
        1 => (12..40u32).prop_map(|pages| Step::Budget { pages }),
        3 => (0..PAGES, 1..12u32, advice).prop_map(|(first, len, advice)| Step::Advise { first, len, advice }),
        1 => any::<bool>().prop_map(|on| Step::Hold { on }),
        1 => (0..PAGES).prop_map(|page| Step::Referenced { page }),
        1 => (0..3u8).prop_map(|device| Step::Swapoff { device }),
        1 => (0..3u8, 20..200u32, proptest::option::of(0..3i16))
            .prop_map(|(device, slots, priority)| Step::AddDevice { device, slots, priority }),
        1 => any::<u32>().prop_map(|number| Step::Late { number }),
        1 => (1..PAGES).prop_map(|at| Step::Split { at }),
    ]
}

fn world(profile: &str, kind: HostKind, memory: MemoryMode, settings: &[&str]) -> World {
    let mut config = Config::profile(profile, kind).expect("a profile");
    for setting in settings {
        config.set(setting).expect("a setting");
    }
    let config = config.memory(memory, PAGES, 24).slots_max(8192);
    let mut world = World::new(config, kind == HostKind::Blind);
    world.event(Event::RegionAdded { region: RegionId(0), range: PageRange::new(PageIdx(0), PAGES) });
    world.event(Event::DeviceAdded { device: DeviceId(0), spec: device_spec(300) });
    world
}

/// Play the steps; phase 1, with faults of the world.
fn play(world: &mut World, steps: &[Step]) {
    let mut regions = 1;
    for step in steps {
        match *step {
            Step::Access { task, page, write } => {
                let access = if write { Access::Write } else { Access::Read };
                if !world.blocked.contains_key(&task) && !world.poisoned.contains(&page) {
                    world.begin(task, page, access);
                }
            }
            Step::Answer { which, fail } => {
                if !world.pending.is_empty() {
                    let pending = world.pending.remove(which % world.pending.len());
                    let read = matches!(pending, Pending::Read { .. });
                    world.answer_with(pending, if fail { Outcome::Failed } else { Outcome::Done });
                    if fail && read {
                        world.forget_poisoned();
                    }
                }
            }
            Step::Timeout => world.event(Event::Timeout),
            Step::Discard { first, len } => world.discard(first, len.min(PAGES - first)),
            Step::Budget { pages } => world.event(Event::BudgetChanged { pages }),
            Step::Advise { first, len, advice } => {
                world.event(Event::Advice { range: PageRange::new(PageIdx(first), len.min(PAGES - first)), advice });
            }
            Step::Hold { on } => world.event(Event::Hold { on }),
            Step::Referenced { page } => world.event(Event::Referenced { range: PageRange::one(PageIdx(page)) }),
            Step::Swapoff { device } => world.event(Event::Swapoff { device: DeviceId(device) }),
            Step::AddDevice { device, slots, priority } => {
                let spec = DeviceSpec { priority, ..device_spec(slots) };
                world.event(Event::DeviceAdded { device: DeviceId(device), spec });
            }
            Step::Late { number } => {
                let range = PageRange::one(PageIdx(number % PAGES));
                let io = pagetide_core::types::IoId(number | 1 << 29);
                world.event(Event::IoDone { io, range, outcome: Outcome::Done });
            }
            Step::Split { at } => {
                world.event(Event::RegionSplit { region: RegionId(0), at: PageIdx(at), upper: RegionId(regions) });
                regions += 1;
            }
        }
    }
}

/// Phase 2: the world is healed; everything settles, and every page holds what it must.
fn heal(world: &mut World) {
    world.event(Event::Hold { on: false });
    world.event(Event::Advice { range: PageRange::new(PageIdx(0), PAGES), advice: Advice::Unlock });
    world.event(Event::BudgetChanged { pages: 24 });
    world.event(Event::DeviceAdded { device: DeviceId(9), spec: device_spec(400) });
    world.settle();
    assert!(world.blocked.is_empty(), "I9: faults are never answered: {:?}", world.blocked);
    assert!(world.core.is_settled());
    // Without a device some tasks may have been told so.
    world.oom.clear();
    assert!(world.core.charged() <= 24, "I3: {} pages charged", world.core.charged());
    for p in 0..PAGES {
        if world.core.page(PageIdx(p)).state != PageState::Poisoned {
            let answered = world.access(p, Access::Read);
            assert!(answered, "page {p}: {}{:?}", world.core.dump(), world.nonzero());
        }
    }
    world.settle();
    world.discard(0, PAGES);
    world.settle();
    assert_eq!(world.core.list_sizes(), [0; 5], "nothing is left");
    assert_eq!(world.core.device_used(DeviceId(9)), Some(0), "I4: no slot is lost");
}

fn check(profile: &str, kind: HostKind, memory: MemoryMode, settings: &[&str], steps: &[Step]) {
    let hashes: Vec<u64> = (0..2)
        .map(|_| {
            let mut world = world(profile, kind, memory, settings);
            world.trace = std::env::var("TRACE").ok().and_then(|p| p.parse().ok());
            play(&mut world, steps);
            heal(&mut world);
            world.hash.value()
        })
        .collect();
    assert_eq!(hashes[0], hashes[1], "I8: the same events bring the same effects");
}

fn cases() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(192);
    ProptestConfig { cases, failure_persistence: None, max_shrink_iters: 20_000, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn blind_hosts_under_our_profile(steps in proptest::collection::vec(step(), 1..400)) {
        check("pagetide", HostKind::Blind, MemoryMode::Watermarks, &[], &steps);
    }

    #[test]
    fn blind_hosts_under_any_profile(steps in proptest::collection::vec(step(), 1..300), profile in 0..PROFILES.len()) {
        check(PROFILES[profile], HostKind::Blind, MemoryMode::Watermarks, &["sample=none"], &steps);
    }

    #[test]
    fn exact_hosts_with_watermarks(steps in proptest::collection::vec(step(), 1..300), profile in 0..PROFILES.len()) {
        check(PROFILES[profile], HostKind::Exact, MemoryMode::Watermarks, &[], &steps);
    }

    #[test]
    fn exact_hosts_in_a_memcg(steps in proptest::collection::vec(step(), 1..300), profile in 0..PROFILES.len(), v1: bool) {
        check(PROFILES[profile], HostKind::Exact, MemoryMode::Memcg { v1 }, &["charge-batch=4", "min-scan-priority=1"], &steps);
    }
}

#[test]
fn a_canary_that_loses_a_write_is_caught() {
    let caught = std::panic::catch_unwind(|| {
        let mut world = world("pagetide", HostKind::Blind, MemoryMode::Watermarks, &[]);
        world.write(3);
        // Somebody changes a page behind the host's back.
        world.frames.insert(3, 777);
        world.read(3);
    });
    assert!(caught.is_err());
    let _ = TaskId(0);
}
