//! The small world: 3 pages, 2 frames, 2 tasks. Every sequence of faults, completions (done or failed), discards and
//! timeouts up to a depth is played; after every event the audit, at every leaf the world is healed and must settle with
//! the right contents. The search shares nothing: a sequence is replayed from the start, which is also a test of I8.

mod common;

use common::{Pending, World, device_spec};
use pagetide_core::event::Outcome;
use pagetide_core::types::{Access, DeviceId, PageIdx, PageRange, RegionId};
use pagetide_core::{Config, Event, HostKind, MemoryMode, PageState};

const PAGES: u32 = 3;
const DEPTH: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    Access { task: u32, page: u32, access: Access },
    Answer { which: usize, outcome: Outcome },
    Discard { page: u32 },
    Timeout,
}

fn new_world(profile: &str, kind: HostKind) -> World {
    let config = Config::profile(profile, kind).expect("a profile");
    let config = config.memory(MemoryMode::Watermarks, PAGES, 2).slots_max(512);
    let mut world = World::new(config, kind == HostKind::Blind);
    world.event(Event::RegionAdded { region: RegionId(0), range: PageRange::new(PageIdx(0), PAGES) });
    world.event(Event::DeviceAdded { device: DeviceId(0), spec: device_spec(8) });
    world
}

fn play(world: &mut World, step: Move) {
    match step {
        Move::Access { task, page, access } => {
            world.begin(task, page, access);
        }
        Move::Answer { which, outcome } => {
            let pending = world.pending.remove(which);
            world.answer_with(pending, outcome);
            world.forget_poisoned();
        }
        Move::Discard { page } => world.discard(page, 1),
        Move::Timeout => world.event(Event::Timeout),
    }
}

/// What can happen next. Discards and failures only once in a life, or there would be nothing but them.
fn moves(world: &World, life: &[Move]) -> Vec<Move> {
    let mut moves = Vec::new();
    for task in 0..2 {
        if world.blocked.contains_key(&task) {
            continue;
        }
        for page in 0..PAGES {
            // A read that hits changes nothing that a write that hits does not.
            let access = if task == 0 { Access::Write } else { Access::Read };
            if !world.poisoned.contains(&page) && !world.mapped.contains(&page) {
                moves.push(Move::Access { task, page, access });
            }
        }
    }
    let unlucky =
        life.iter().any(|m| matches!(m, Move::Discard { .. } | Move::Answer { outcome: Outcome::Failed, .. }));
    for (which, pending) in world.pending.iter().enumerate() {
        moves.push(Move::Answer { which, outcome: Outcome::Done });
        if !unlucky && !matches!(pending, Pending::Map { source: pagetide_core::effect::Source::Zero, .. }) {
            moves.push(Move::Answer { which, outcome: Outcome::Failed });
        }
    }
    if !unlucky && life.len() > 3 {
        moves.extend((0..PAGES).map(|page| Move::Discard { page }));
    }
    if world.core.deadline().is_some() {
        moves.push(Move::Timeout);
    }
    moves
}

fn search(profile: &str, kind: HostKind, life: &mut Vec<Move>, lives: &mut u64) {
    let mut world = new_world(profile, kind);
    for &step in life.iter() {
        play(&mut world, step);
    }
    if life.len() < DEPTH {
        for step in moves(&world, life) {
            life.push(step);
            search(profile, kind, life, lives);
            life.pop();
        }
        return;
    }
    *lives += 1;
    world.settle();
    assert!(world.blocked.is_empty(), "I9: {:?} wait after {life:?}", world.blocked);
    for p in 0..PAGES {
        if world.core.page(PageIdx(p)).state != PageState::Poisoned {
            assert!(world.access(p, Access::Read), "page {p} after {life:?}");
        }
    }
}

#[test]
fn every_life_of_the_small_world_ends_well() {
    for (profile, kind) in [("pagetide", HostKind::Blind), ("linux-6.18", HostKind::Exact)] {
        let mut lives = 0;
        search(profile, kind, &mut Vec::new(), &mut lives);
        assert!(lives > 10_000, "only {lives} lives");
    }
}
