//! Scenes: what was found once, played in the order that matters.

use std::sync::atomic::Ordering;

use pagetide_core::config::SwapoffMode;
use pagetide_core::event::Event;
use pagetide_core::types::{DeviceId, SlotIdx};
use pagetide_kernel::AddressSpace;
use pagetide_kernel::model::{
    Answer, Call, Extent, ForkPolicy, Gate, Happened, Mapping, Pid, Progress, Quirks, Rights, Tid,
};
use pagetide_sys::socket;

use super::Dice;
use super::family::at_gate;
use super::reconciled::assert_reconciled;
use super::rig::Rig;
use crate::protocol::DeviceOffer;
use crate::session::command::{Answer as Done, Command, PlaceId, PlaceState};

pub(super) const HOME: u64 = 0x1000;

/// A process with `pages` pages of memory, all written, under management within a budget of `share` pages; and its thread.
pub(super) fn process(share: u32, pages: u64) -> (Rig, Tid) {
    process_in(Quirks::NONE, share, pages)
}

/// The same under a kernel with these faces.
pub(super) fn process_in(quirks: Quirks, share: u32, pages: u64) -> (Rig, Tid) {
    let settings = [("profile".to_owned(), "pagetide".to_owned())];
    let mut rig = Rig::new(1, quirks, share, &settings, 0);
    let pid = rig.pid();
    rig.world().map(pid, Mapping::anon(HOME, HOME + pages));
    rig.adopt();
    let tid = rig.world().new_thread(pid);
    for page in HOME..HOME + pages {
        assert_eq!(rig.perform(tid, Call::Store(page, page)), Answer::Done);
    }
    (rig, tid)
}

/// MADV_GUARD_INSTALL empties pages and tells nobody; the kernel answers EFAULT when such a page is to be moved out.
#[test]
fn pages_under_a_guard_leave_memory_without_a_word() {
    let (mut rig, tid) = process(400, 200);
    assert_eq!(rig.perform(tid, Call::GuardInstall(Extent::new(HOME, 200))), Answer::Done);
    rig.set_share(96);
    rig.rest();
    assert!(rig.pager().core().charged() <= 96, "{} pages are charged", rig.pager().core().charged());
    assert_eq!(rig.perform(tid, Call::Load(HOME)), Answer::Segv);
    assert_eq!(rig.perform(tid, Call::GuardRemove(Extent::new(HOME, 200))), Answer::Done);
    for page in [HOME, HOME + 100, HOME + 199] {
        assert_eq!(rig.perform(tid, Call::Load(page)), Answer::Value(0), "what a guard has covered is empty");
    }
}

/// Fresh memory is filled some pages at a time, and a copy takes the place of a guard: in the midst of what is filled together, and
/// as its last page.
#[test]
fn zeroes_beside_a_touched_page_leave_guards_alone() {
    for place in 0..16 {
        let (mut rig, tid) = process(400, 16);
        let pid = rig.pid();
        rig.world().map(pid, Mapping::anon(HOME + 0x400, HOME + 0x400 + 256));
        rig.adopt();
        for guard in (HOME + 0x400..HOME + 0x500).filter(|page| page % 16 == place) {
            assert_eq!(rig.perform(tid, Call::GuardInstall(Extent::new(guard, 1))), Answer::Done);
        }
        for page in HOME + 0x400..HOME + 0x500 {
            let expected = if page % 16 == place { Answer::Segv } else { Answer::Done };
            assert_eq!(rig.perform(tid, Call::Store(page, 1)), expected, "page {page:#x}, guards at {place}");
        }
    }
}

/// A guard that comes between a thread's fault and its answer, as a page of zeroes: the thread finds the guard, and the pager goes on.
#[test]
fn a_guard_that_comes_before_a_fault_is_answered_ends_the_fault() {
    let (mut rig, tid) = process(400, 16);
    let pid = rig.pid();
    let other = rig.world().new_thread(pid);
    let page = HOME + 0x420;
    rig.world().map(pid, Mapping::anon(HOME + 0x400, HOME + 0x440));
    rig.adopt();
    rig.world().will(tid, Call::Load(page));
    assert_eq!(rig.world().step(tid), Progress::Sleeps, "the fault waits");
    assert_eq!(rig.perform(other, Call::GuardInstall(Extent::new(page, 4))), Answer::Done);
    assert_eq!(rig.finish(tid), Answer::Segv);
    assert_eq!(rig.perform(other, Call::GuardRemove(Extent::new(page, 4))), Answer::Done);
    assert_eq!(rig.perform(tid, Call::Load(page)), Answer::Value(0));
}

/// Pages come back some at a time, too. A guard that was installed as the preload object does it stays one.
#[test]
fn pages_that_are_read_ahead_leave_guards_alone() {
    let (mut rig, tid) = process(96, 600);
    let guard = Extent::new(HOME + 40, 3);
    for call in [Call::GuardInstall(guard), Call::Discard(guard), Call::GuardInstall(guard)] {
        assert_eq!(rig.perform(tid, call), Answer::Done);
    }
    for page in HOME..HOME + 100 {
        let guarded = (guard.start..guard.end).contains(&page);
        let expected = if guarded { Answer::Segv } else { Answer::Value(page) };
        assert_eq!(rig.perform(tid, Call::Load(page)), expected, "page {page:#x}");
    }
}

/// Two threads: one installs a guard as the preload object does it, in three steps of which only the second one is told; when it has made
/// `steps` of them, the other one forks. True if the child has the guard, and empty pages under it, or what was there before.
fn guard_beside_fork(steps: u32, at_gate: bool) -> bool {
    let (mut rig, tid) = process(96, 600);
    let pid = rig.pid();
    let other = rig.world().new_thread(pid);
    // A part of it is out.
    let guard = Extent::new(HOME + 400, 200);
    let [enter, leave, close, open] = [Gate::Enter, Gate::Leave, Gate::Close, Gate::Open].map(Call::AtGate);
    let mut first = vec![enter, Call::GuardInstall(guard), Call::Discard(guard), Call::GuardInstall(guard), leave];
    let mut second = vec![close, Call::Fork, open];
    for calls in [&mut first, &mut second] {
        calls.retain(|call| at_gate || !matches!(call, Call::AtGate(_)));
    }
    rig.world().take_log();
    first.into_iter().for_each(|call| rig.world().will(tid, call));
    let mut dice = Dice::new(1);
    for _ in 0..steps {
        rig.step(tid, &mut dice);
    }
    second.into_iter().for_each(|call| rig.world().will(other, call));
    while [tid, other].into_iter().any(|tid| rig.world().calls_left(tid) > 0) {
        rig.step(other, &mut dice);
        rig.step(tid, &mut dice);
    }
    let forked = rig.world().take_log().into_iter().find_map(|happened| {
        if let Happened::Ended(_, Call::Fork, Answer::Child(child)) = happened { Some(child) } else { None }
    });
    let of_child = rig.world().new_thread(forked.expect("it was forked"));
    let before: Vec<_> = (guard.start..guard.end).map(|page| rig.perform(of_child, Call::Load(page))).collect();
    rig.perform(of_child, Call::GuardRemove(guard));
    let after: Vec<_> = (guard.start..guard.end).map(|page| rig.perform(of_child, Call::Load(page))).collect();
    let was_there: Vec<_> = (guard.start..guard.end).map(Answer::Value).collect();
    let is_guarded = before.iter().all(|answer| *answer == Answer::Segv);
    if is_guarded {
        after.iter().all(|answer| *answer == Answer::Value(0))
    } else {
        [before, after] == [&was_there; 2].map(Vec::clone)
    }
}

/// A fork between the first two steps took a child that had the guard in some pages, and the bytes from before it in others.
#[test]
fn a_child_of_a_process_that_installs_a_guard_has_it_or_what_was_there_before() {
    let wrong = |at_gate| (0..12).filter(|&steps| !guard_beside_fork(steps, at_gate)).count();
    assert_eq!(wrong(true), 0);
    assert_ne!(wrong(false), 0, "guards and forks that do not wait for each other are noticed");
}

/// Two threads: one forks, and when the kernel has copied, and the agent has not looked yet what a child gets of which pages, the other one
/// changes that from `was` to `becomes`, if it may. Of 600 pages that are out for the most part, those that are wrong in the child.
fn policy_beside_fork(was: ForkPolicy, becomes: ForkPolicy, waits: bool) -> usize {
    let (mut rig, tid) = process(96, 600);
    let pid = rig.pid();
    let other = rig.world().new_thread(pid);
    let pages = Extent::new(HOME, 600);
    assert_eq!(rig.perform(tid, Call::OnFork(pages, was)), Answer::Done);
    let [before, after] = rig.doorbells();
    let forks = at_gate(&[Call::Load(before), Call::Fork, Call::Load(after)]);
    let changes = [Call::AtGate(Gate::Enter), Call::OnFork(pages, becomes), Call::AtGate(Gate::Leave)];
    for (tid, calls) in [(tid, &forks[..]), (other, &changes)] {
        let calls = calls.iter().filter(|call| waits || !matches!(call, Call::AtGate(_)));
        calls.for_each(|&call| rig.world().will(tid, call));
    }
    let mut dice = Dice::new(1);
    let child = (0..10_000).find_map(|_| {
        rig.turns(1, &mut dice);
        rig.world().step(tid);
        copied(&mut rig)
    });
    assert_eq!(rig.world().step(tid), Progress::Sleeps, "the fork is told of");
    rig.read_fork(|world| {
        for _ in 0..20 {
            world.step(tid);
            world.step(other);
        }
    });
    // It will have no agent.
    rig.forks.on_child(None);
    while [tid, other].into_iter().any(|tid| rig.world().calls_left(tid) > 0) {
        rig.step(tid, &mut dice);
        rig.step(other, &mut dice);
    }
    let of_child = rig.world().new_thread(child.expect("it was copied"));
    let expected = |page| match was {
        ForkPolicy::Copy => Answer::Value(page),
        ForkPolicy::Dont => Answer::Segv,
        ForkPolicy::Wipe => Answer::Value(0),
    };
    (pages.start..pages.end).filter(|&page| rig.perform(of_child, Call::Load(page)) != expected(page)).count()
}

/// A child read old bytes where they were to be wiped at the fork: another thread had the memory copied again, after the copy.
#[test]
fn a_child_gets_of_memory_what_held_when_it_was_copied() {
    use ForkPolicy::{Copy, Dont, Wipe};
    for (was, becomes) in [(Wipe, Copy), (Copy, Wipe), (Copy, Dont), (Dont, Copy), (Wipe, Dont)] {
        assert_eq!(policy_beside_fork(was, becomes, true), 0, "from {was:?} to {becomes:?}");
    }
    for (was, becomes) in [(Wipe, Copy), (Copy, Wipe), (Copy, Dont)] {
        assert_ne!(policy_beside_fork(was, becomes, false), 0, "who does not wait is noticed: {was:?} to {becomes:?}");
    }
}

/// A few pages that one thread has moved when another one's fork copies, and of which the agent reads after the fork: the child has them
/// where they went to, registered, and is told of where they were.
#[test]
fn a_child_takes_over_what_was_moved_in_the_moment_of_its_fork() {
    let (mut rig, tid) = process(96, 600);
    let pid = rig.pid();
    let other = rig.world().new_thread(pid);
    let [before, after] = rig.doorbells();
    rig.perform(tid, Call::Load(before));
    rig.world().will(other, Call::Remap(Extent::new(HOME + 100, 5), Extent::new(HOME + 0x800, 5)));
    [Call::Fork, Call::Load(after)].into_iter().for_each(|call| rig.world().will(tid, call));
    rig.world().take_log();
    let steps = [other, tid, tid].map(|tid| rig.world().step(tid));
    assert_eq!(steps, [Progress::Runs, Progress::Runs, Progress::Sleeps], "of the move is not told yet");
    let child = copied(&mut rig).expect("it was copied");
    rig.read_fork(|_| {});
    let (ours, theirs) = socket::pair().expect("descriptors are left");
    rig.world().serves_itself(child);
    rig.forks.on_child(Some(ours));
    let mut dice = Dice::new(1);
    while rig.world().calls_left(other) > 0 {
        rig.step(other, &mut dice);
    }
    let mut child = Rig::of_child(&rig.ground, child, &theirs, false).expect("its parent lives");
    rig.finish(tid);
    [&mut rig, &mut child].into_iter().for_each(assert_reconciled);
}

/// The child that was copied, if any was since the log was taken last.
fn copied(rig: &mut Rig) -> Option<Pid> {
    let log = rig.world().take_log();
    log.into_iter().find_map(|happened| if let Happened::Copied(_, child) = happened { Some(child) } else { None })
}

/// A program that has used up all threads: the pages that a fork shares stay where they are, and nobody is killed for it.
#[test]
fn pages_that_nobody_can_make_private_stay_and_are_served() {
    let (mut rig, tid) = process(400, 200);
    rig.is_refused.store(true, Ordering::Relaxed);
    assert!(matches!(rig.perform(tid, Call::Fork), Answer::Child(_)));
    rig.set_share(96);
    rig.rest();
    for page in HOME..HOME + 200 {
        assert_eq!(rig.perform(tid, Call::Load(page)), Answer::Value(page), "page {page:#x}");
    }
    assert_eq!(rig.pager().machine().stats.moved_out_pages, 0, "a page that is shared cannot leave");
}

/// The kernel has no memory for some pages of a copy when they are to be filled: they were left out, and read as zero.
#[test]
fn pages_of_a_copy_for_which_there_is_no_memory_are_filled_when_there_is() {
    let quirks = Quirks { no_memory: 3_000, ..Quirks::NONE };
    let (mut rig, tid) = process_in(quirks, 96, 300);
    let Answer::Child(child) = rig.perform(tid, Call::Fork) else { panic!("a fork ends with a child") };
    let of_child = rig.world().new_thread(child);
    for page in HOME..HOME + 300 {
        assert_eq!(rig.perform(of_child, Call::Load(page)), Answer::Value(page), "page {page:#x}");
    }
}

/// The kernel moves pages only between mappings of the same rights. Some change theirs while they are in memory, others while they are out.
#[test]
fn pages_that_may_be_executed_leave_and_come_back() {
    let (mut rig, tid) = process(400, 300);
    let half = Extent::new(HOME, 150);
    assert_eq!(rig.perform(tid, Call::Protect(half, Rights::All)), Answer::Done);
    rig.adopt();
    // Not in any list that was read.
    rig.world().map(rig.pid(), Mapping { rights: Rights::All, ..Mapping::anon(HOME + 400, HOME + 600) });
    rig.adopt();
    let fresh = HOME + 400..HOME + 500;
    for page in fresh.clone() {
        assert_eq!(rig.perform(tid, Call::Store(page, page)), Answer::Done);
    }
    rig.set_share(96);
    rig.rest();
    assert!(rig.pager().core().charged() <= 96, "{} pages are charged", rig.pager().core().charged());
    assert_eq!(rig.pager().machine().stats.busy_pages, 0, "nothing keeps them");
    let (read_only, all) = (Extent::new(HOME + 140, 20), Extent::new(HOME + 200, 50));
    assert_eq!(rig.perform(tid, Call::Protect(read_only, Rights::Read)), Answer::Done);
    assert_eq!(rig.perform(tid, Call::Protect(all, Rights::All)), Answer::Done);
    for page in (HOME..HOME + 300).chain(fresh) {
        assert_eq!(rig.perform(tid, Call::Load(page)), Answer::Value(page), "page {page:#x}");
    }
}

/// Huge pages from before the budget was near: parts of them leave, and they are split for it.
#[test]
fn parts_of_huge_pages_leave_and_come_back() {
    let (mut rig, tid) = process(400, 32);
    let pid = rig.pid();
    let home = HOME + 0x400;
    rig.world().map(pid, Mapping { huge: true, ..Mapping::anon(home, home + 256) });
    for page in (home..home + 256).step_by(16) {
        assert_eq!(rig.perform(tid, Call::Store(page, page)), Answer::Done);
    }
    assert_eq!(rig.world().resident(pid, home, home + 256), 256, "a store fills a huge page");
    rig.adopt();
    rig.set_share(96);
    rig.rest();
    assert!(rig.pager().core().charged() <= 96, "{} pages are charged", rig.pager().core().charged());
    for page in home..home + 256 {
        let expected = if page % 16 == 0 { page } else { 0 };
        assert_eq!(rig.perform(tid, Call::Load(page)), Answer::Value(expected), "page {page:#x}");
    }
}

/// Two threads of a process that has 200 pages in memory and the rest of 600 outside: the first one makes `early`, of which it tells
/// only after the second one has made `late` from beginning to end.
fn told_after(early: Call, late: Call) -> (Rig, Tid) {
    let (mut rig, tid) = process(96, 600);
    let pid = rig.pid();
    let other = rig.world().new_thread(pid);
    rig.world().will(tid, early);
    rig.world().step(tid);
    assert_eq!(rig.perform(other, late), Answer::Done);
    assert_eq!(rig.finish(tid), Answer::Done);
    rig.rest();
    (rig, other)
}

/// realloc and free of large blocks: the kernel gives an address that was unmapped just now to the next mremap, which may be told first.
#[test]
fn memory_moved_to_a_place_whose_end_is_told_later_keeps_its_bytes() {
    let (freed, grown) = (Extent::new(HOME + 100, 50), Extent::new(HOME + 300, 50));
    let (mut rig, tid) = told_after(Call::Unmap(freed), Call::Remap(grown, grown.at(freed.start)));
    for page in 0..50 {
        assert_eq!(rig.perform(tid, Call::Load(freed.start + page)), Answer::Value(grown.start + page), "page {page}");
    }
}

/// The same with a place that another mremap has left: both are told, and whatever is told of the old place afterwards.
#[test]
fn memory_moved_to_a_place_that_was_left_keeps_its_bytes_and_so_does_what_left() {
    let (left, grown, free) = (Extent::new(HOME + 100, 50), Extent::new(HOME + 300, 50), HOME + 0x800);
    let (mut rig, tid) = told_after(Call::Remap(left, left.at(free)), Call::Remap(grown, grown.at(left.start)));
    for page in 0..50 {
        assert_eq!(rig.perform(tid, Call::Load(left.start + page)), Answer::Value(grown.start + page), "page {page}");
        assert_eq!(rig.perform(tid, Call::Load(free + page)), Answer::Value(left.start + page), "page {page}");
    }
}

/// A place to swap to beside the first one.
fn swap_on(rig: &mut Rig, place: u32) {
    swap_on_with(rig, place, 1 << 14);
}

fn swap_on_with(rig: &mut Rig, place: u32, slots: u32) {
    let place = PlaceId(place);
    let command = Command::SwapOn(DeviceOffer { place, slots, priority: None, rotational: false, division: None });
    assert_eq!(rig.carry_out(command), Done::Done, "there is room for a place");
}

fn state_of(rig: &Rig, place: u32) -> PlaceState {
    let found = rig.session.places().find(|found| found.place == PlaceId(place));
    found.map(|found| found.state).expect("a place of the session")
}

/// The pager works for seconds.
fn rest_long(rig: &mut Rig) {
    for _ in 0..60 {
        rig.rest();
    }
}

/// A drain with a mode of its own left the setting at that mode, for those that came after it.
#[test]
fn the_mode_of_one_swapoff_is_not_the_setting_of_the_next() {
    let setting = |rig: &Rig| rig.session.pager.core().config().get("swapoff").expect("a knob");
    let swap_off = |rig: &mut Rig, mode| rig.carry_out(Command::SwapOff { place: PlaceId(0), mode: Some(mode) });
    let (mut rig, _) = process(96, 300);
    swap_on(&mut rig, 1);
    let before = setting(&rig);
    assert_ne!(before, "no-lookup");
    assert_eq!(swap_off(&mut rig, SwapoffMode::NoLookup), Done::Done);
    assert_eq!(setting(&rig), "no-lookup");
    rest_long(&mut rig);
    assert_eq!((state_of(&rig, 0), setting(&rig)), (PlaceState::Gone, before));
    // What is set meanwhile stays; a drain that is stopped ends, too.
    swap_on(&mut rig, 0);
    rig.set_share(64);
    for (wanted, ends) in [("lookup", false), ("no-lookup", true)] {
        assert_eq!(rig.carry_out(Command::Set { knob: "swapoff".into(), value: wanted.into() }), Done::Done);
        if ends {
            assert_eq!(rig.carry_out(Command::StopSwapOff { place: PlaceId(1) }), Done::Done);
        } else {
            let command = Command::SwapOff { place: PlaceId(1), mode: Some(SwapoffMode::LookupStats) };
            assert_eq!(rig.carry_out(command), Done::Done);
        }
    }
    rest_long(&mut rig);
    assert_eq!(setting(&rig), "no-lookup");
}

/// Two places fail one after the other: what is left in the first one fits nowhere. Its drain ends, no byte is lost, and it is not drained
/// again before there is a place that takes pages.
#[test]
fn a_place_that_fails_beside_another_one_is_given_up_and_drained_when_a_third_comes() {
    let (mut rig, tid) = process(96, 300);
    swap_on(&mut rig, 1);
    rig.set_share(400);
    for page in HOME..HOME + 100 {
        assert_eq!(rig.perform(tid, Call::Store(page, page + 1)), Answer::Done);
    }
    (0..2).for_each(|place| rig.break_place(PlaceId(place)));
    rig.set_share(130);
    rest_long(&mut rig);
    for place in [0, 1] {
        let state = state_of(&rig, place);
        assert!(matches!(state, PlaceState::GivenUp | PlaceState::Full), "place {place} is {state:?}");
        // Who has heard of it says so, and may ask again.
        assert_eq!(rig.carry_out(Command::StopSwapOff { place: PlaceId(place) }), Done::Done);
        assert_ne!(state_of(&rig, place), PlaceState::GivenUp);
    }
    let holds = |rig: &mut Rig, page: u64| {
        let stored = if page < HOME + 100 { page + 1 } else { page };
        assert_eq!(rig.perform(tid, Call::Load(page)), Answer::Value(stored), "page {page:#x}");
    };
    swap_on(&mut rig, 2);
    rest_long(&mut rig);
    for place in [0, 1] {
        assert_eq!(state_of(&rig, place), PlaceState::Gone, "place {place}");
    }
    (HOME..HOME + 300).for_each(|page| holds(&mut rig, page));
}

/// Threads that store to these pages at the same time, each to its own part of them, until all have ended; in so many turns at most.
fn store_together(rig: &mut Rig, threads: u64, (first, pages): (u64, u64), turns: u32) {
    let pid = rig.pid();
    let mut dice = Dice::new(1);
    let tids: Vec<Tid> = (0..threads).map(|_| rig.world().new_thread(pid)).collect();
    for page in first..first + pages {
        let tid = tids[usize::try_from(page % threads).expect("few threads")];
        rig.world().will(tid, Call::Store(page, page + 1));
    }
    for _ in 0..turns {
        for &tid in &tids {
            rig.world().step(tid);
        }
        rig.turns(1, &mut dice);
    }
    let left: usize = tids.iter().map(|&tid| rig.world().calls_left(tid)).sum();
    assert_eq!((left, rig.out_of_memory), (0, false), "there is room where the pages were");
}

/// All is here that was in the place, and a child has the slots still. They are needed again: the place is given back, and all threads go on
/// that found no slot, not only the one that it was told of.
#[test]
fn a_place_whose_drain_waits_is_given_back_to_threads_that_find_no_slot() {
    for threads in [1, 4] {
        let (mut rig, tid) = process(96, 600);
        let (pid, fresh) = (rig.pid(), HOME + 0x400);
        rig.rest();
        swap_on_with(&mut rig, 1, 32);
        rig.world().map(pid, Mapping::anon(fresh, fresh + 64));
        rig.adopt();
        let now = rig.pager().machine().space().now();
        let (device, used) = (DeviceId(0), rig.pager().core().device_used(DeviceId(0)).expect("a device"));
        let pinned = Event::SlotsPinned { device, slot: SlotIdx(1), len: used, pin: true };
        rig.session.pager.step(now, pinned);
        rig.set_share(1_000);
        assert_eq!(rig.carry_out(Command::SwapOff { place: PlaceId(0), mode: None }), Done::Done);
        rig.rest();
        assert_eq!(state_of(&rig, 0), PlaceState::Draining);
        rig.set_share(96);
        rig.rest();
        store_together(&mut rig, threads, (fresh, 64), 5_000);
        assert_eq!(state_of(&rig, 0), PlaceState::GivenUp);
        for page in HOME..HOME + 600 {
            assert_eq!(rig.perform(tid, Call::Load(page)), Answer::Value(page), "page {page:#x}");
        }
    }
}
