//! A swarm over the pager: many small worlds from seeds, in a model of the kernel, with every load checked.
//!
//! Forks are those of the live runtime (`fork`); in `family` children page by themselves, and any of them ends at any time.
//!
//! Each seed draws a budget, a profile, how often the kernel and the device show a rare face, and what the threads do: loads and
//! stores, mmap, munmap, mremap, discards, protections, guards, locks, pins and forks. A step of a thread may come between any
//! two calls that the pager makes. First the faults of the world are on (no load may see wrong content, no invariant may break),
//! then it heals (every thread must come to its end, and every page is read).
//!
//! `PAGETIDE_SWARM_SEEDS=FROM..TO` (or a number) plays other seeds than the few of every run.

mod changes;
mod crowd;
mod disk;
mod family;
mod orders;
mod reconciled;
mod rig;
mod scenes;
mod seen;
mod truth;

use pagetide_kernel::model::{Answer, Call, Extent, ForkPolicy, Gate, Happened, Mapping, Pid, Quirks, Rights, Tid};

use rig::{ForkMode, Ground, Rig};
use truth::Truth;

/// Seeds of every run, beside those that have found something.
const SEEDS: u64 = 30;
/// Seeds that find what no scene does: a drain that reads one page again and again, as nothing but that page could make room for it, and one
/// that reads two pages in turns (places that change); a page filled for the thread that makes pages private, which left before that
/// thread went on, without end, as nothing else could; and a mapping that grows into a place whose end was read and not acted upon. What
/// else a seed has found is a scene by now, which does not depend on what is drawn.
const FOUND: [u64; 4] = [2753, 20076, 582, 304];
/// Turns with the faults of the world on.
const WILD_TURNS: u32 = 1_500;
/// Turns in which a healed world must come to its end.
const CALM_TURNS: u32 = 200_000;
/// Pages from one thread's addresses to the next one's.
const AREA: u64 = 1 << 12;
/// Profiles that seeds draw.
const PROFILES: [&str; 4] = ["pagetide", "linux-6.18", "linux-6.1", "linux-4.10"];

/// True for a third of the seeds: what their threads have alone may be huge pages.
const fn has_huge_pages(seed: u64) -> bool {
    seed % 3 == 2
}

/// True for the seeds whose processes compress what leaves.
const fn is_compressing(seed: u64) -> bool {
    seed % 4 == 1
}

/// True for a fourth of the seeds: they swap to a block device.
const fn is_on_device(seed: u64) -> bool {
    seed % 4 == 1
}

/// Draws.
#[derive(Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    fn new(seed: u64) -> Self {
        let mut dice = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..8 {
            dice.next();
        }
        dice
    }

    const fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, most: u64) -> u64 {
        (self.next() >> 11) % most
    }

    fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("an index")
    }

    fn chance(&mut self, basis_points: u64) -> bool {
        self.below(10_000) < basis_points
    }
}

/// A thread of the program, and where it is at home.
#[derive(Clone, Copy, Debug)]
struct Actor {
    tid: Tid,
    pid: Pid,
    /// First page of its own addresses.
    home: u64,
    /// Where its sequential loads are.
    at: u64,
}

/// One seed's world.
#[derive(Debug)]
struct Swarm {
    /// What all its processes stand on.
    ground: Ground,
    /// The first process, until it ends.
    first: Option<Rig>,
    dice: Dice,
    truth: Truth,
    actors: Vec<Actor>,
    children: Vec<(Pid, Tid)>,
    stored: u64,
    pages: u64,
    /// What is changed about the session while it runs.
    changes: Option<changes::Changes>,
    /// Children that page by themselves. None: all run natively.
    family: Option<family::Family>,
}

impl Swarm {
    fn new(seed: u64, spoiled: u32) -> Self {
        Self::with_forks(seed, spoiled, ForkMode::Told)
    }

    fn with_forks(seed: u64, spoiled: u32, forks: ForkMode) -> Self {
        let mut dice = Dice::new(seed);
        let mut often = |most: u64| if dice.chance(5_000) { 0 } else { u32::try_from(dice.below(most)).unwrap_or(0) };
        let quirks = Quirks {
            moved_and_denied: often(300),
            cut_short: often(300),
            held_for_a_moment: often(300),
            looked_up_early: often(3_000),
            no_memory: often(200),
            collapsed: if has_huge_pages(seed) { 300 } else { 0 },
            interlude: 500 + often(5_000),
            interrupts: [0, 5_000, 10_000][usize::try_from(seed % 3).expect("a small number")],
            spoiled,
        };
        let failing_bp = u64::from(often(300));
        let share = 96 + u32::try_from(dice.below(300)).expect("a small number");
        let pages = u64::from(share) / 2 + dice.below(u64::from(share) * 2);
        let profile = PROFILES[dice.index(PROFILES.len())];
        let compress = if is_compressing(seed) { "lz4" } else { "off" };
        let settings = [("profile", profile), ("compress", compress)];
        let settings = settings.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let device = is_on_device(seed).then(rig::device);
        let ground = Ground::new((seed, quirks), (share, failing_bp), (&settings, device), forks);
        let mut first = Rig::over(ground.clone(), seed, Vec::new());
        first.given_at_fork = if seed.is_multiple_of(2) { 0 } else { u32::MAX };
        let first = Some(first);
        let mut swarm = Self {
            ground,
            first,
            dice,
            truth: Truth::default(),
            actors: Vec::new(),
            children: Vec::new(),
            stored: 0,
            pages,
            changes: None,
            family: None,
        };
        for index in 0..=swarm.dice.below(4) {
            let home = AREA * (index + 2);
            swarm.map(Mapping { huge: has_huge_pages(seed), ..Mapping::anon(home, home + pages) });
            let pid = swarm.ground.pid();
            let tid = swarm.ground.world().new_thread(pid);
            swarm.truth.add_thread(tid, pid);
            swarm.actors.push(Actor { tid, pid, home, at: 0 });
        }
        // What all share, and change by loads and stores only.
        swarm.map(Mapping::anon(AREA, AREA + pages));
        swarm
    }

    fn map(&mut self, mapping: Mapping) {
        let pid = self.ground.pid();
        self.ground.world().map(pid, mapping);
        self.truth.map(pid, mapping);
    }

    fn extent(&mut self, home: u64) -> Extent {
        let start = self.dice.below(self.pages);
        let pages = 1 + self.dice.below((self.pages - start).min(40));
        Extent::new(home + start, pages)
    }

    fn value(&mut self) -> u64 {
        self.stored += 1;
        // Some pages become zero again.
        if self.dice.chance(500) { 0 } else { self.stored }
    }

    /// What a thread does next.
    fn plan(&mut self, index: usize) {
        let Actor { tid, home, at, .. } = self.actors[index];
        let extent = self.extent(home);
        let anywhere = match self.dice.below(10) {
            0..6 => home + self.dice.below(self.pages),
            6..8 => AREA + self.dice.below(self.pages),
            // A place that others may be changing.
            _ => AREA * (1 + self.dice.below(5)) + self.dice.below(self.pages),
        };
        let own = if (AREA..AREA * 2).contains(&anywhere) { anywhere } else { home + anywhere % AREA };
        let mut calls = Vec::new();
        match self.dice.below(200) {
            0..50 => calls.push(Call::Load(anywhere)),
            50..110 => calls.push(Call::Store(own, self.value())),
            110..160 => {
                let run = 1 + self.dice.below(24);
                calls.extend((0..run).map(|step| Call::Load(home + (at + step) % self.pages)));
                self.actors[index].at = (at + run) % self.pages;
            }
            160..166 => calls.push(Call::Discard(extent)),
            166..170 => calls.extend([Call::Unmap(extent), Call::Map(extent)]),
            170 => calls.push(Call::Unmap(extent)),
            171 => calls.push(Call::UnmapInVain(extent)),
            172..176 => calls.push(Call::Map(extent)),
            // To another part of its own addresses, and perhaps back.
            176..181 => {
                let more = if self.dice.chance(3_000) { self.dice.below(20) } else { 0 };
                let there = Extent::new(extent.start + AREA / 2, extent.pages() + more);
                calls.push(Call::Remap(extent, there));
                calls.extend((there.start..there.end).rev().map(Call::Load).take(5));
                if self.dice.chance(7_000) {
                    calls.push(Call::Remap(there, there.at(extent.start)));
                }
            }
            181..185 => {
                let rights = [Rights::None, Rights::Read, Rights::ReadWrite][self.dice.index(3)];
                calls.extend([Call::Protect(extent, rights), Call::Load(extent.start)]);
                // From then on some of it may be executed: those pages need frames of other rights.
                let after = if extent.start.is_multiple_of(3) { Rights::All } else { Rights::ReadWrite };
                calls.push(Call::Protect(extent, after));
            }
            185..188 => {
                calls.extend([Call::Lock(extent), Call::Load(extent.start), Call::Unlock(extent)]);
            }
            188..191 => {
                let policy = [ForkPolicy::Copy, ForkPolicy::Dont, ForkPolicy::Wipe][self.dice.index(3)];
                // As the preload object does it: a fork looks what children get after its copy.
                calls.extend([Call::AtGate(Gate::Enter), Call::OnFork(extent, policy), Call::AtGate(Gate::Leave)]);
            }
            191..195 => {
                let value = self.value();
                calls.extend([Call::Pin(own), Call::Load(home), Call::Load(home + 1)]);
                calls.push(Call::Unpin(value));
            }
            195..197 => {
                // As the preload object does it: nobody is told of a guard.
                calls.push(Call::AtGate(Gate::Enter));
                calls.extend([Call::GuardInstall(extent), Call::Discard(extent), Call::GuardInstall(extent)]);
                calls.push(Call::AtGate(Gate::Leave));
                calls.extend([Call::Load(extent.start), Call::Load(home)]);
                if self.dice.chance(7_000) {
                    calls.push(Call::GuardRemove(extent));
                }
            }
            197..199 => calls = self.plan_fork(index),
            // Over other memory of its own, or in place.
            199 => {
                let (over, more) = (self.extent(home), self.dice.below(20));
                calls.extend([Call::Unmap(Extent::new(over.end, more + 1)), Call::Grow(over, more + 1)]);
                calls.push(Call::Remap(extent, Extent::new(over.start, extent.pages() + more)));
                calls.extend([Call::Load(over.start), Call::Load(over.start + extent.pages())]);
            }
            _ => {}
        }
        if self.ground.forks == ForkMode::Seen && !self.is_forking(tid) {
            calls = seen::at_gate(calls);
        }
        let mut world = self.ground.world();
        calls.into_iter().for_each(|call| world.will(tid, call));
    }

    fn hear(&mut self) {
        let log = self.ground.world().take_log();
        let losses = self.ground.disk.failed_reads() > 0;
        for happened in log {
            self.truth.hear(happened, losses);
            if let Happened::Ended(tid, call, answer) = happened {
                self.go_on_forking(tid, call, answer);
            }
            if let Some(family) = &mut self.family {
                if let Some((by, pid, tid)) = family.hear(happened) {
                    let home = self.actors.iter().find(|actor| actor.tid == by).map(|actor| actor.home);
                    self.actors.push(Actor { tid, pid, home: home.expect("it is an actor"), at: 0 });
                }
            } else if let Happened::Ended(_, Call::Fork, Answer::Child(child)) = happened {
                let tid = self.ground.world().new_thread(child);
                self.truth.add_thread(tid, child);
                self.children.push((child, tid));
            }
        }
    }

    /// A child runs: it loads and stores, and ends at some time.
    fn children_live(&mut self) {
        let Some(&(pid, tid)) = self.children.first() else { return };
        if self.dice.chance(100) {
            self.ground.world().end_process(pid);
            self.truth.forget(pid);
            self.children.remove(0);
            return;
        }
        let pages: Vec<u64> = self.truth.readable(pid).collect();
        if pages.is_empty() || self.ground.world().calls_left(tid) > 0 {
            return;
        }
        let (vpn, value) = (pages[self.dice.index(pages.len())], self.value());
        let mut world = self.ground.world();
        world.will(tid, Call::Load(vpn));
        if value % 2 == 0 {
            world.will(tid, Call::Store(vpn, value));
        }
    }

    fn threads_go_on(&mut self, steps: u64) {
        let threads: Vec<Tid> = self.ground.world().threads().collect();
        for _ in 0..if threads.is_empty() { 0 } else { steps } {
            let tid = threads[self.dice.index(threads.len())];
            self.ground.world().step(tid);
        }
    }

    fn turn(&mut self) {
        let steps = self.dice.below(12);
        self.threads_go_on(steps);
        let ends = self.dice.below(3);
        if let Some(rig) = &mut self.first {
            (0..ends).for_each(|_| rig.ground.disk.end_one(&mut self.dice));
            rig.turn(&mut self.dice);
        }
        self.family_lives();
        let nanos = if self.dice.chance(1_000) { 5_000_000 } else { 20_000 };
        self.ground.world().pass(self.dice.below(nanos));
        self.hear();
    }

    fn run(&mut self) {
        for turn in 0..WILD_TURNS {
            // A program runs natively at first, and may end so.
            if let Some(first) = self.first.as_mut().filter(|_| turn == 20) {
                first.adopt();
            }
            for index in 0..self.actors.len() {
                let Actor { tid, pid, .. } = self.actors[index];
                let waits = self.family.as_ref().is_some_and(|family| family.waits(pid));
                if !waits && !self.is_forking(tid) && self.ground.world().calls_left(tid) < 2 {
                    self.plan(index);
                }
            }
            self.children_live();
            self.somebody_ends(turn);
            self.change_something();
            self.turn();
            if turn % 64 == 0 {
                self.rigs().for_each(|rig| rig.pager().core().audit());
            }
            if self.is_out_of_memory() {
                let stands: Vec<_> = self.rigs().map(|rig| rig.session.report()).collect();
                assert!(self.ground.disk.failed() > 0, "out of memory, and no write has failed: {stands:?}");
                return;
            }
        }
        self.ground.world().calm();
        self.ground.disk.heal();
        self.settle();
        self.finish_changes();
        self.read_all();
        let is_out_of_memory = self.is_out_of_memory();
        for rig in self.rigs() {
            rig.pager().core().audit();
            if !is_out_of_memory {
                reconciled::assert_reconciled_but(rig, true);
                assert_eq!(rig.pager().machine().lost_frames(), 0, "a frame is a page's, spare, or a hole");
            }
        }
    }

    fn is_forking(&self, tid: Tid) -> bool {
        self.family.as_ref().is_some_and(|family| family.is_making(tid))
    }

    /// The first process, where none ends.
    const fn first(&mut self) -> &mut Rig {
        self.first.as_mut().expect("the first process has not ended")
    }

    fn rigs(&mut self) -> impl Iterator<Item = &mut Rig> {
        self.first.iter_mut().chain(self.family.iter_mut().flat_map(family::Family::rigs))
    }

    fn is_out_of_memory(&mut self) -> bool {
        self.rigs().any(|rig| rig.out_of_memory)
    }

    /// Every thread comes to its end.
    fn settle(&mut self) {
        for _ in 0..CALM_TURNS {
            let threads: Vec<Tid> = self.ground.world().threads().collect();
            let left: usize = threads.iter().map(|&tid| self.ground.world().calls_left(tid)).sum();
            let is_born = self.family.as_ref().is_none_or(family::Family::is_born);
            let is_quiet = is_born && self.rigs().all(|rig| rig.is_quiet());
            if left == 0 && is_quiet || self.is_out_of_memory() {
                return;
            }
            self.turn();
        }
        let stands: Vec<String> = self.rigs().map(|rig| rig.pager().machine().describe().to_string()).collect();
        panic!("a thread does not come to its end: {stands:?}");
    }

    fn read_all(&mut self) {
        let first = self.first.as_ref().map(|rig| (rig.pid(), self.actors[0].tid));
        let mut readers: Vec<_> = first.into_iter().collect();
        readers.extend(&self.children);
        readers.extend(self.family.iter().flat_map(family::Family::running));
        for (pid, tid) in readers {
            let pages: Vec<u64> = self.truth.readable(pid).collect();
            for vpn in pages {
                self.ground.world().will(tid, Call::Load(vpn));
            }
        }
        self.settle();
    }
}

/// The seeds that are asked for, or the few of every run; and whether they are these, which are known to play a good deal.
fn seeds(few: u64, found: &[u64]) -> (Vec<u64>, bool) {
    let Ok(asked) = std::env::var("PAGETIDE_SWARM_SEEDS") else {
        return ((1..=few).chain(found.iter().copied()).collect(), true);
    };
    let number = |text: &str| text.parse().expect("PAGETIDE_SWARM_SEEDS is a number or FROM..TO");
    let asked = match asked.split_once("..") {
        Some((from, to)) => (number(from)..number(to)).collect(),
        None => (1..=number(&asked)).collect(),
    };
    (asked, false)
}

#[test]
fn a_swarm_of_threads_loses_no_store_in_any_order() {
    let (mut checked, mut unpacked) = (0, 0);
    let (seeds, are_usual) = seeds(SEEDS, &FOUND);
    for seed in seeds {
        // What goes wrong says which seed it was.
        eprintln!("seed {seed}");
        let mut swarm = Swarm::new(seed, 0);
        swarm.run();
        checked += swarm.truth.checked;
        unpacked += swarm.rigs().map(|rig| rig.pager().machine().tier_stats().zswpin).sum::<u64>();
    }
    assert!(checked > 1_000 || !are_usual, "{checked} accesses were checked");
    assert!(unpacked > 100 || !are_usual, "{unpacked} pages came back compressed");
}

#[test]
fn a_canary_move_that_changes_a_byte_is_caught() {
    let told = std::panic::catch_unwind(|| Swarm::new(2, 20).run()).expect_err("a store was lost");
    let text = told.downcast_ref::<String>().expect("a message");
    assert!(text.contains("wrong bytes"), "{text}");
}
