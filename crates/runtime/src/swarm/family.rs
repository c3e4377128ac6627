//! Forks in the swarm: children that page by themselves, the supervisor that starts their agents, and processes that end.
//!
//! A child whose fork was announced waits for its agent before any code of the program. What the C library does in it before is its
//! first calls; where they change mappings, its agent is not started before they have ended. Who copies a process without a word runs
//! at once, and so does a child whose memory its parent's agent is to complete.

use pagetide_kernel::model::{Call, Extent, Gate, Happened, Pid, Tid};
use pagetide_sys::fd::{self, Fd, PollFd, events};
use pagetide_sys::socket;

use super::rig::{ForkMode, Rig};
use super::seen::Making;
use super::{AREA, Actor, Dice, Swarm};
use crate::protocol::{BORN, COMPLETE, OVER};

/// Children at a time.
const CHILDREN_MAX: usize = 4;

/// Pages to be made private left between the note where all pages are and the copy.
const FOUND_SEEN: [u64; 1] = [2158];

/// How a child lives.
#[derive(Debug)]
pub(super) enum Life {
    /// It waits for its agent, whose end of the connection with its parent's this is.
    Waits(Option<Fd>),
    /// Nobody pages it.
    Native,
    /// An agent of its own does.
    Pages(Box<Rig>),
}

/// A forked child.
#[derive(Debug)]
pub(super) struct Child {
    pub(super) pid: Pid,
    pub(super) parent: Pid,
    pub(super) tid: Tid,
    pub(super) life: Life,
    /// Its first calls change its mappings.
    pub(super) changes: bool,
}

/// A child that its parent's agent has told of.
#[derive(Debug)]
struct Birth {
    parent: Pid,
    child: Option<Pid>,
    is_answered: bool,
}

/// A thread that forks.
#[derive(Debug)]
struct Forking {
    tid: Tid,
    pid: Pid,
    is_announced: bool,
    changes: bool,
    /// The last call of the fork.
    last: Call,
}

/// What was played.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Played {
    pub(super) taken_over: u32,
    pub(super) by_grandchildren: u32,
    pub(super) completed: u32,
    pub(super) unannounced: u32,
    pub(super) ended_waiting: u32,
    pub(super) unserved: u32,
    pub(super) orphans: u32,
}

/// The processes of one seed beside its first one.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) dice: Dice,
    pub(super) children: Vec<Child>,
    births: Vec<Birth>,
    forking: Vec<Forking>,
    /// Forks that are seen.
    pub(super) making: Vec<Making>,
    /// The first process ends when so many turns are over and it has children: those that page by themselves go on.
    first_ends_at: Option<u32>,
    pub(super) played: Played,
    /// A mistake is made on purpose: a part of each snapshot is left out.
    pub(super) is_careless: bool,
}

impl Family {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            dice: Dice::new(seed ^ 0xf0f0_5eed),
            children: Vec::new(),
            births: Vec::new(),
            forking: Vec::new(),
            making: Vec::new(),
            first_ends_at: seed
                .is_multiple_of(3)
                .then(|| u32::try_from(Dice::new(seed).below(u64::from(super::WILD_TURNS))).expect("a turn")),
            played: Played::default(),
            is_careless: false,
        }
    }

    pub(super) fn rigs(&mut self) -> impl Iterator<Item = &mut Rig> {
        self.children.iter_mut().filter_map(|child| match &mut child.life {
            Life::Pages(rig) => Some(&mut **rig),
            Life::Waits(_) | Life::Native => None,
        })
    }

    fn rig(&mut self, pid: Pid) -> Option<&mut Rig> {
        self.rigs().find(|rig| rig.pid() == pid)
    }

    /// True while no code of the program runs in this process.
    pub(super) fn waits(&self, pid: Pid) -> bool {
        self.children.iter().any(|child| child.pid == pid && matches!(child.life, Life::Waits(_)))
    }

    /// No child waits for its agent.
    pub(super) fn is_born(&self) -> bool {
        self.children.iter().all(|child| !matches!(child.life, Life::Waits(_)))
    }

    /// The processes that run, each with a thread.
    pub(super) fn running(&self) -> impl Iterator<Item = (Pid, Tid)> {
        self.children.iter().filter(|child| !matches!(child.life, Life::Waits(_))).map(|child| (child.pid, child.tid))
    }

    /// Something happened. A thread forked, and this is the child and its first thread.
    pub(super) fn hear(&mut self, happened: Happened) -> Option<(Tid, Pid, Tid)> {
        match happened {
            Happened::Started(by, pid, tid) => {
                let forking =
                    self.forking.iter().find(|forking| forking.tid == by).expect("a thread of the swarm forked");
                let life = if forking.is_announced { Life::Waits(None) } else { Life::Native };
                self.played.unannounced += u32::from(!forking.is_announced);
                let (parent, changes) = (forking.pid, forking.changes);
                self.children.push(Child { pid, parent, tid, life, changes });
                Some((by, pid, tid))
            }
            Happened::Ended(tid, call, _) => {
                self.forking.retain(|forking| forking.tid != tid || forking.last != call);
                None
            }
            Happened::Began(..) | Happened::Copied(..) | Happened::Looked(..) | Happened::Covered(..) => None,
        }
    }

    /// True if another process may come, by a thread of `pid`. One fork of a process at a time: copies without a word that are made
    /// while a fork is announced are a known gap (K17).
    fn may_fork(&self, pid: Pid) -> bool {
        let forking = self.forking.iter().map(|forking| forking.pid).chain(self.making.iter().map(|making| making.pid));
        self.children.len() + forking.clone().count() < CHILDREN_MAX && forking.into_iter().all(|other| other != pid)
    }

    /// True if this thread is in a fork that is seen.
    pub(super) fn is_making(&self, tid: Tid) -> bool {
        self.making.iter().any(|making| making.tid == tid)
    }
}

impl Swarm {
    /// What pages this process, if it lives and anything does.
    pub(super) fn rig_of<'a>(&'a mut self, family: &'a mut Family, pid: Pid) -> Option<&'a mut Rig> {
        if pid == self.ground.pid() { self.first.as_mut() } else { family.rig(pid) }
    }

    /// A thread forks: its calls, and what the child begins with.
    pub(super) fn plan_fork(&mut self, index: usize) -> Vec<Call> {
        let Actor { tid, pid, home, .. } = self.actors[index];
        let Some(mut family) = self.family.take() else {
            return if self.children.len() < 3 { at_gate(&[Call::Fork]) } else { Vec::new() };
        };
        let mut calls = Vec::new();
        if family.may_fork(pid) && self.ground.forks == ForkMode::Seen {
            calls = self.begin_fork(&mut family, index);
        } else if family.may_fork(pid) {
            let rig = self.rig_of(&mut family, pid);
            let managed = rig.filter(|rig| rig.is_managed()).map(|rig| rig.doorbells());
            let doorbells = managed.filter(|_| family.dice.chance(8_000));
            let changes = family.dice.chance(5_000);
            calls = match doorbells {
                Some([before, after]) => at_gate(&[Call::Load(before), Call::Fork, Call::Load(after)]),
                None => at_gate(&[Call::Fork]),
            };
            let (last, is_announced) = (*calls.last().expect("a fork has calls"), doorbells.is_some());
            family.forking.push(Forking { tid, pid, is_announced, changes, last });
            for call in self.first_calls(&mut family.dice, home, changes) {
                self.ground.world().will_in_child(tid, call);
            }
        }
        self.family = Some(family);
        calls
    }

    /// What a child does before it waits for its agent, or before anybody knows of it.
    fn first_calls(&mut self, dice: &mut Dice, home: u64, changes: bool) -> Vec<Call> {
        let mut calls = vec![Call::Load(home)];
        for _ in 0..dice.below(8) {
            let start = dice.below(self.pages);
            let extent = Extent::new(home + start, 1 + dice.below((self.pages - start).min(30)));
            match dice.below(if changes { 10 } else { 5 }) {
                0..3 => calls.extend((extent.start..extent.end).map(Call::Load).take(5)),
                3..5 => calls.push(Call::Store(extent.start, self.value())),
                5..7 => calls.push(Call::Discard(extent)),
                7 => calls.push(Call::Unmap(extent)),
                _ => {
                    let more = dice.below(2) * dice.below(20);
                    calls.push(Call::Remap(extent, Extent::new(extent.start + AREA / 2, extent.pages() + more)));
                }
            }
        }
        calls
    }

    /// What the supervisor and the children's agents do in a turn, and who ends.
    pub(super) fn family_lives(&mut self) {
        let Some(mut family) = self.family.take() else { return };
        self.hear_agents(&mut family);
        self.serve_births(&mut family);
        self.start_agents(&mut family);
        self.device_is_slow(&mut family);
        for rig in family.rigs() {
            for _ in 0..self.dice.below(3) {
                rig.ground.disk.end_one(&mut self.dice);
            }
            if self.dice.chance(8_000) {
                rig.turn(&mut self.dice);
            }
        }
        self.family = Some(family);
    }

    /// A process ends now and then, wherever it is.
    pub(super) fn somebody_ends(&mut self, turn: u32) {
        let Some(mut family) = self.family.take() else { return };
        let first_ends = family.first_ends_at.is_some_and(|at| at <= turn) && !family.children.is_empty();
        if first_ends && self.first.is_some() {
            let pid = self.ground.pid();
            self.end(&mut family, pid);
            family.played.orphans += u32::try_from(family.children.len()).expect("few children");
        }
        if let Some(index) = (0..family.children.len()).find(|_| family.dice.chance(40)) {
            let child = &family.children[index];
            family.played.ended_waiting += u32::from(matches!(child.life, Life::Waits(_)));
            let pid = child.pid;
            self.end(&mut family, pid);
        }
        self.family = Some(family);
    }

    /// With a process end those of its children that wait for memory of it.
    fn end(&mut self, family: &mut Family, pid: Pid) {
        self.ground.world().end_process(pid);
        if pid == self.ground.pid() {
            self.first = None;
        }
        self.truth.forget(pid);
        self.actors.retain(|actor| actor.pid != pid);
        family.forking.retain(|forking| forking.pid != pid);
        family.making.retain(|making| making.pid != pid);
        family.births.retain(|birth| birth.parent != pid);
        family.children.retain(|child| child.pid != pid);
        let waits = |child: &Child| child.parent == pid && matches!(child.life, Life::Waits(_));
        let waiting: Vec<Pid> = family.children.iter().filter(|child| waits(child)).map(|child| child.pid).collect();
        waiting.into_iter().for_each(|child| self.end(family, child));
    }

    fn hear_agents(&mut self, family: &mut Family) {
        let mut words = Vec::new();
        for rig in self.first.iter_mut().chain(family.rigs()) {
            let pid = rig.pid();
            words.extend(rig.hear().into_iter().map(|word| (pid, word)));
        }
        for (parent, word) in words {
            match word.as_slice() {
                BORN => family.births.push(Birth { parent, child: None, is_answered: false }),
                OVER => family.births.retain(|birth| birth.parent != parent),
                COMPLETE => {
                    for birth in family.births.extract_if(.., |birth| birth.parent == parent) {
                        let child = family.children.iter_mut().find(|child| Some(child.pid) == birth.child);
                        child.into_iter().for_each(|child| child.life = Life::Native);
                        family.played.completed += 1;
                    }
                }
                other => panic!("an agent says {other:?}"),
            }
        }
    }

    /// The children that are told of get an agent, or will have none.
    fn serve_births(&mut self, family: &mut Family) {
        for index in 0..family.births.len() {
            let Birth { parent, child, is_answered: false } = family.births[index] else { continue };
            let taken = |pid: Pid| family.births.iter().any(|birth| birth.child == Some(pid));
            let is_newborn =
                |found: &Child| found.parent == parent && matches!(found.life, Life::Waits(None)) && !taken(found.pid);
            let found = child.or_else(|| family.children.iter().find(|found| is_newborn(found)).map(|found| found.pid));
            family.births[index].child = found;
            let Some(pid) = found.filter(|_| family.dice.chance(2_000)) else { continue };
            // One that has ended: its parent will see.
            let Some(child) = family.children.iter_mut().find(|child| child.pid == pid) else { continue };
            if child.changes && self.ground.world().calls_left(child.tid) > 0 {
                continue;
            }
            let call = (!family.dice.chance(2_500)).then(|| socket::pair().expect("descriptors are left"));
            if let Some((_, theirs)) = &call {
                child.life = Life::Waits(Some(theirs.dup_high(0).expect("a descriptor is left")));
                self.ground.world().serves_itself(pid);
            }
            family.births[index].is_answered = true;
            if call.is_none() && self.ground.forks == ForkMode::Seen {
                // Its parent cannot complete it.
                self.end(family, pid);
                family.played.unserved += 1;
            }
            let rig = self.rig_of(family, parent);
            let rig = rig.expect("the births of who ends are forgotten");
            rig.forks.on_child(call.map(|(ours, _)| ours));
        }
    }

    /// Children that have been given what they need take over.
    fn start_agents(&mut self, family: &mut Family) {
        let is_given = |child: &Child| match &child.life {
            Life::Waits(Some(call)) => {
                let mut poll = [PollFd::new(call, events::IN)];
                fd::poll(&mut poll, Some(0)).is_ok_and(|seen| seen > 0)
            }
            Life::Waits(None) | Life::Native | Life::Pages(_) => false,
        };
        let Some(index) = family.children.iter().position(is_given).filter(|_| family.dice.chance(5_000)) else {
            return;
        };
        let child = &mut family.children[index];
        let Life::Waits(Some(call)) = &child.life else { unreachable!("it was looked for") };
        if let Some(mut rig) = Rig::of_child(&self.ground, child.pid, call, family.is_careless) {
            rig.given_at_fork = if child.pid.0.is_multiple_of(2) { 0 } else { u32::MAX };
            if rig.ground.forks == ForkMode::Seen {
                rig.world().will(child.tid, Call::ForbidHuge(false));
            }
            child.life = Life::Pages(Box::new(rig));
            family.played.taken_over += 1;
            family.played.by_grandchildren += u32::from(child.parent != self.ground.pid());
        } else {
            let pid = child.pid;
            self.end(family, pid);
        }
    }
}

/// Calls that no guard is made beside, and nothing is advised about children; the first one apart where there are several.
pub(super) fn at_gate(calls: &[Call]) -> Vec<Call> {
    let [close, open] = [Gate::Close, Gate::Open].map(Call::AtGate);
    match calls {
        [before, fork, after] => vec![*before, close, *fork, *after, open],
        calls => std::iter::once(close).chain(calls.iter().copied()).chain([open]).collect(),
    }
}

/// Play these seeds: how many accesses were checked, and what was played.
fn play(seeds: Vec<u64>, forks: ForkMode) -> (u64, Played) {
    let (mut checked, mut played) = (0, Played::default());
    for seed in seeds {
        eprintln!("seed {seed}");
        let mut swarm = Swarm::with_forks(seed, 0, forks);
        swarm.family = Some(Family::new(seed));
        swarm.run();
        checked += swarm.truth.checked;
        let family = swarm.family.expect("it was there").played;
        played.taken_over += family.taken_over;
        played.by_grandchildren += family.by_grandchildren;
        played.completed += family.completed;
        played.unannounced += family.unannounced;
        played.ended_waiting += family.ended_waiting;
        played.unserved += family.unserved;
        played.orphans += family.orphans;
    }
    eprintln!("{checked} accesses were checked, {played:?}");
    (checked, played)
}

#[test]
fn a_swarm_of_processes_that_fork_loses_no_store() {
    let (seeds, are_usual) = super::seeds(40, &[]);
    let (checked, played) = play(seeds, ForkMode::Told);
    assert!(checked > 1_000 || !are_usual, "{checked} accesses were checked");
    let least = [
        played.taken_over / 4,
        played.by_grandchildren,
        played.completed,
        played.unannounced,
        played.ended_waiting,
        played.orphans,
    ];
    assert!(least.into_iter().all(|count| count > 2) || !are_usual, "{played:?}");
}

#[test]
fn a_swarm_of_processes_whose_forks_are_seen_loses_no_store() {
    let (seeds, are_usual) = super::seeds(64, &FOUND_SEEN);
    let (checked, played) = play(seeds, ForkMode::Seen);
    assert!(checked > 1_000 || !are_usual, "{checked} accesses were checked");
    let least =
        [played.taken_over / 4, played.by_grandchildren, played.unserved, played.ended_waiting * 3, played.orphans];
    assert!(least.into_iter().all(|count| count > 2) || !are_usual, "{played:?}");
    assert_eq!((played.completed, played.unannounced), (0, 0), "nobody but its own agent serves a child");
}

#[test]
fn a_canary_snapshot_that_leaves_a_page_out_is_caught() {
    for forks in [ForkMode::Told, ForkMode::Seen] {
        let told = std::panic::catch_unwind(|| {
            for seed in 1..=12 {
                let mut swarm = Swarm::with_forks(seed, 0, forks);
                swarm.family = Some(Family { is_careless: true, ..Family::new(seed) });
                swarm.run();
            }
        });
        let told = told.expect_err("a store was lost");
        let text = told.downcast_ref::<String>().expect("a message");
        assert!(text.contains("wrong bytes"), "{text}");
    }
}
