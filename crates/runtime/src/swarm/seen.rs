//! Forks in the swarm that are seen, as signal mode makes them (`signal::forks`, `fork::seen`).
//!
//! The kernel tells of no copy and registers nothing of it. Who forks closes the gate that all changes of the address space come
//! through, tells the agent before and after, and the child does nothing at all before its own agent serves it. Nobody completes it: without
//! an agent it is ended.

use pagetide_kernel::model::{Answer, Call, Gate, Mapping, Pid, Progress, Quirks, Tid};
use pagetide_sys::fd::Fd;
use pagetide_sys::socket;

use super::family::{Child, Family, Life};
use super::rig::{ForkMode, Ground, Rig};
use super::scenes::HOME;
use super::truth::Truth;
use super::{Actor, Dice, Swarm};
use crate::fork::seen::{self, Talk};

/// Of 10,000 forks, so many fail in the kernel.
const FAILING_BP: u64 = 1_000;

/// Of 10,000 turns with a fork under way, so many take that long.
const SLOW_BP: u64 = 300;
const SLOW_NS: u64 = 150_000_000;

/// A fork, from before its announcement until the child needs its parent no more.
#[derive(Debug)]
pub(super) struct Making {
    pub(super) tid: Tid,
    pub(super) pid: Pid,
    talk: &'static Talk,
    doorbells: [u64; 2],
    /// Doorbell 0 was answered.
    is_announced: bool,
    child: Option<Pid>,
}

impl Making {
    /// With the calls up to the announcement.
    pub(super) fn begin(Actor { tid, pid, .. }: Actor, talk: &'static Talk, doorbells: [u64; 2]) -> (Self, Vec<Call>) {
        talk.begin();
        let calls = vec![Call::AtGate(Gate::Close), Call::ForbidHuge(true), Call::Load(doorbells[0])];
        (Self { tid, pid, talk, doorbells, is_announced: false, child: None }, calls)
    }

    /// The calls that follow when this one has ended.
    fn go_on(&mut self, call: Call, answer: Answer, fails: bool) -> Vec<Call> {
        let after = [Call::AtGate(Gate::Open), Call::ForbidHuge(false)];
        match (call, answer) {
            (Call::Load(page), _) if page == self.doorbells[0] => {
                self.is_announced = true;
                let is_made = !self.talk.is_refused() && !fails;
                is_made.then_some(Call::Fork).into_iter().chain(after).collect()
            }
            (Call::Fork, Answer::Child(child)) => {
                self.child = Some(child);
                Vec::new()
            }
            (Call::ForbidHuge(false), _) if self.is_announced => {
                let number = |child: Pid| i32::try_from(child.0).expect("few processes");
                self.talk.end(self.child.map_or(seen::NONE, number));
                vec![Call::Load(self.doorbells[1])]
            }
            (_, _) => Vec::new(),
        }
    }
}

impl Swarm {
    /// A thread forks: its first calls. None where nothing is managed yet: then a fork is the kernel's business alone.
    pub(super) fn begin_fork(&mut self, family: &mut Family, index: usize) -> Vec<Call> {
        let actor = self.actors[index];
        let rig = self.rig_of(family, actor.pid);
        let managed = rig.filter(|rig| rig.is_managed()).and_then(|rig| rig.talk.zip(Some(rig.doorbells())));
        let Some((talk, doorbells)) = managed else { return Vec::new() };
        let (making, calls) = Making::begin(actor, talk, doorbells);
        family.making.push(making);
        calls
    }

    /// A call has ended: if it was one of a fork's, the fork goes on.
    pub(super) fn go_on_forking(&mut self, tid: Tid, call: Call, answer: Answer) {
        let Some(mut family) = self.family.take() else { return };
        if let Some(index) = family.making.iter().position(|making| making.tid == tid) {
            let fails = family.dice.chance(FAILING_BP);
            let making = &mut family.making[index];
            let next = making.go_on(call, answer, fails);
            next.into_iter().for_each(|call| self.ground.world().will(tid, call));
            let (parent, is_over) = (making.pid, call == Call::Load(making.doorbells[1]));
            if let Answer::Child(pid) = answer {
                self.is_born(&mut family, (parent, tid), pid);
            }
            if is_over {
                family.making.remove(index);
            }
        }
        self.family = Some(family);
    }

    /// Now and then an agent that has announced waits for its device longer than for all to be settled.
    pub(super) fn device_is_slow(&self, family: &mut Family) {
        if !family.making.is_empty() && family.dice.chance(SLOW_BP) {
            self.ground.world().pass(SLOW_NS);
        }
    }

    /// A child that waits, with the thread that will go on in it.
    fn is_born(&mut self, family: &mut Family, (parent, by): (Pid, Tid), pid: Pid) {
        let tid = self.ground.world().new_thread(pid);
        self.truth.add_thread(tid, pid);
        let home = self.actors.iter().find(|actor| actor.tid == by).map(|actor| actor.home);
        self.actors.push(Actor { tid, pid, home: home.expect("it is an actor"), at: 0 });
        family.children.push(Child { pid, parent, tid, life: Life::Waits(None), changes: false });
    }
}

/// What a thread does, with the gate around whatever changes the address space.
pub(super) fn at_gate(calls: Vec<Call>) -> Vec<Call> {
    let [enter, leave] = [Gate::Enter, Gate::Leave].map(Call::AtGate);
    let mut is_inside = false;
    let mut with_gate = Vec::with_capacity(calls.len());
    for call in calls {
        let enters = !is_inside && Truth::changes(call);
        with_gate.extend(enters.then_some(enter));
        with_gate.push(call);
        with_gate.extend(enters.then_some(leave));
        is_inside = call == enter || is_inside && call != leave;
    }
    with_gate
}

/// A process whose forks are seen, with 300 pages of memory in a budget of 96; and a thread of it.
fn process() -> (Rig, Tid) {
    let settings = [("profile".to_owned(), "pagetide".to_owned())];
    let ground = Ground::new((1, Quirks::NONE), (96, 0), (&settings, None), ForkMode::Seen);
    let mut rig = Rig::over(ground, 1, Vec::new());
    let pid = rig.pid();
    rig.world().map(pid, Mapping::anon(HOME, HOME + 300));
    rig.adopt();
    let tid = rig.world().new_thread(pid);
    for page in HOME..HOME + 300 {
        assert_eq!(rig.perform(tid, Call::Store(page, page)), Answer::Done);
    }
    rig.rest();
    (rig, tid)
}

/// A thread whose doorbell before a fork is to be answered.
fn announce(rig: &Rig, tid: Tid) {
    rig.talk.expect("its forks are seen").begin();
    rig.world().will(tid, Call::Load(rig.doorbells()[0]));
}

/// The copy is made. Its agent has this end of the connection; without one it stays, and shares its pages.
fn copy(rig: &mut Rig, tid: Tid, agent: Option<Fd>) -> Pid {
    let Answer::Child(child) = rig.perform(tid, Call::Fork) else { panic!("it was forked") };
    rig.talk.expect("its forks are seen").end(i32::try_from(child.0).expect("few processes"));
    rig.forks.on_child(agent);
    let after = rig.doorbells()[1];
    rig.world().will(tid, Call::Load(after));
    child
}

/// Pages that a first child shares are to leave for a second one's sake, and who makes them private is slow. They left in the moment
/// between the note where everything is and the copy, so that the second child read zeroes.
#[test]
fn a_child_has_pages_that_were_to_be_made_private_when_it_was_copied() {
    let (mut rig, tid) = process();
    rig.set_share(400);
    for page in HOME..HOME + 300 {
        rig.perform(tid, Call::Load(page));
    }
    announce(&rig, tid);
    rig.finish(tid);
    copy(&mut rig, tid, None);
    rig.finish(tid);
    rig.set_share(200);
    announce(&rig, tid);
    let mut dice = Dice::new(1);
    for second in 0..10 {
        rig.world().step(tid);
        (0..20).for_each(|_| rig.turn(&mut dice));
        rig.world().pass(1_000_000_000);
        assert!(rig.pager().machine().is_taking_out(), "pages are to be made private after {second} s");
    }
    assert_eq!(rig.world().calls_left(tid), 1, "the doorbell is not answered");
    let private = rig.private;
    while rig.world().calls_left(tid) > 0 {
        rig.step(private, &mut dice);
        rig.world().step(tid);
    }
    let (ours, theirs) = socket::pair().expect("descriptors are left");
    let child = copy(&mut rig, tid, Some(ours));
    rig.world().serves_itself(child);
    (0..20).for_each(|_| _ = rig.step(tid, &mut dice));
    let mut of_child = Rig::of_child(&rig.ground, child, &theirs, false).expect("its parent lives");
    rig.finish(tid);
    let (reader, private) = (of_child.world().new_thread(child), of_child.private);
    for page in HOME..HOME + 300 {
        of_child.world().will(reader, Call::Load(page));
        let loaded = (0..10_000).find_map(|_| {
            of_child.step(private, &mut dice);
            let progress = of_child.step(reader, &mut dice);
            if let Progress::Ended(answer) = progress { Some(answer) } else { None }
        });
        assert_eq!(loaded, Some(Answer::Value(page)), "page {page:#x}");
    }
}

/// A write does not end: a page that is held would not be where a child finds it. There is no fork, and all goes on as if there had never
/// been one.
#[test]
fn a_fork_whose_pages_are_not_written_in_time_is_refused() {
    let (mut rig, tid) = process();
    let (talk, [before, after]) = (rig.talk.expect("its forks are seen"), rig.doorbells());
    let mut dice = Dice::new(1);
    rig.set_share(400);
    for page in HOME..HOME + 300 {
        assert_eq!(rig.perform(tid, Call::Store(page, page + 1)), Answer::Done);
    }
    rig.set_share(96);
    (0..20).for_each(|_| rig.turn(&mut dice));
    assert!(!rig.ground.disk.is_idle(), "pages are being written");
    talk.begin();
    rig.world().will(tid, Call::Load(before));
    for seconds in 0..80 {
        rig.world().step(tid);
        rig.turn(&mut dice);
        rig.world().pass(1_000_000_000);
        assert!(!talk.is_refused() || seconds > 60, "after {seconds} s");
    }
    assert!(talk.is_refused());
    assert_eq!(rig.world().calls_left(tid), 0, "the doorbell is answered");
    talk.end(seen::NONE);
    assert!(matches!(rig.perform(tid, Call::Load(after)), Answer::Value(_)));
    assert!(!rig.forks.is_under_way());
    for page in HOME..HOME + 300 {
        assert_eq!(rig.perform(tid, Call::Load(page)), Answer::Value(page + 1), "page {page:#x}");
    }
}
