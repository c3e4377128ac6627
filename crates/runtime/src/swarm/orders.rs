//! Scenes of orders that meet a change of the address space half way: each fails where the one condition that is meant is left out.

use pagetide_core::page::PageState;
use pagetide_kernel::model::{Answer, Call, Extent, ForkPolicy, Happened, Mapping, Progress, Quirks, Rights, Tid};
use pagetide_kernel::{AddressSpace, Message};

use super::Dice;
use super::reconciled::assert_reconciled;
use super::rig::Rig;
use super::scenes::{HOME, process, process_in};
use crate::pager::Followup;

/// So many pages of memory that leaves the program are looked at.
const PAGES: u64 = 50;

/// A thread beside the first one.
fn another(rig: &Rig) -> Tid {
    let pid = rig.pid();
    rig.world().new_thread(pid)
}

/// The list of mappings is read, and changes before what it says is registered: registration passes over the hole, of which nothing would
/// be heard once there is memory again.
#[test]
fn memory_that_changes_while_it_is_registered_is_registered_at_the_next_look() {
    let (mut rig, tid) = process(400, 16);
    let (pid, home) = (rig.pid(), HOME + 0x400);
    let hole = Extent::new(home + 40, 20);
    rig.world().map(pid, Mapping::anon(home, home + 100));
    let at = usize::try_from(home << 12).expect("an address");
    let seen = rig.session.pager.machine_mut().space_mut().mapping_at_or_after(at);
    let seen = seen.expect("the list can be read").expect("it is mapped");
    assert_eq!(rig.perform(tid, Call::Unmap(hole)), Answer::Done);
    let now = rig.pager().machine().space().now();
    rig.session.pager.begin_look();
    rig.session.pager.adopt_vma(now, &seen);
    rig.session.pager.end_look();
    assert_eq!(rig.perform(tid, Call::Map(hole)), Answer::Done);
    assert_reconciled(&mut rig);
}

/// The same, where only a few pages are left of it: fewer than are managed otherwise. They are registered, and nobody else would answer.
#[test]
fn memory_that_gets_small_while_it_is_registered_is_managed_at_the_next_look() {
    let (mut rig, tid) = process(400, 16);
    let (pid, home) = (rig.pid(), HOME + 0x400);
    rig.world().map(pid, Mapping::anon(home, home + 100));
    let at = usize::try_from(home << 12).expect("an address");
    let seen = rig.session.pager.machine_mut().space_mut().mapping_at_or_after(at);
    let seen = seen.expect("the list can be read").expect("it is mapped");
    assert_eq!(rig.perform(tid, Call::Unmap(Extent::new(home + 5, 95))), Answer::Done);
    let now = rig.pager().machine().space().now();
    rig.session.pager.begin_look();
    rig.session.pager.adopt_vma(now, &seen);
    rig.session.pager.end_look();
    assert_reconciled(&mut rig);
}

/// Memory was moved and its old place kept (MREMAP_DONTUNMAP), so the end of that is never told. It is taken under management just when
/// another change begins, before some call of the pager, and unmapped: that is told of this memory, and of none before it.
#[test]
fn the_end_of_memory_that_others_were_moved_away_from_is_not_taken_for_the_end_of_those() {
    let mut taken = 0;
    for draws in 0..64 {
        let (mut rig, tid) = process_in(Quirks { interlude: 10_000, ..Quirks::NONE }, 400, 16);
        let (pid, home) = (rig.pid(), HOME + 0x400);
        let other = rig.world().new_thread(pid);
        rig.world().map(pid, Mapping::anon(home, home + 100));
        let from = usize::try_from(home << 12).expect("an address");
        let seen = rig.session.pager.machine_mut().space_mut().mapping_at_or_after(from);
        let seen = seen.expect("the list can be read").expect("it is mapped");
        (0..draws).for_each(|_| assert!(!rig.pager().machine().is_changing()));
        let now = rig.pager().machine().space().now();
        let moved = Message::Remap { from, to: from + (0x1000 << 12), len: 100 << 12 };
        assert!(matches!(rig.session.pager.on_message(now, moved), Followup::None));
        rig.session.pager.end_messages(now);
        rig.world().will(other, Call::Unmap(Extent::new(HOME + 8, 1)));
        rig.session.pager.begin_look();
        rig.session.pager.adopt_vma(now, &seen);
        rig.session.pager.end_look();
        let is_known = |rig: &Rig| rig.pager().machine().mappings.page(home).is_some();
        taken += u32::from(is_known(&rig));
        // Both are read of together.
        rig.world().will(tid, Call::Unmap(Extent::new(home, 100)));
        rig.world().step(tid);
        let mut dice = Dice::new(1);
        while [tid, other].into_iter().any(|tid| rig.world().calls_left(tid) > 0) {
            [tid, other].into_iter().for_each(|tid| _ = rig.step(tid, &mut dice));
        }
        assert!(!is_known(&rig), "what was unmapped is managed still, after {draws} draws");
    }
    assert!(taken > 0);
}

/// Memory is moved away, and before the end of its old place is told another thread has mapped memory there and moved its own over that. A
/// look in between leaves the mapped memory alone: the end of it would be told as well, and nobody could say which of the two is which.
#[test]
fn memory_that_is_mapped_while_another_change_is_told_is_registered_at_the_next_look() {
    let (mut rig, first) = process(96, 200);
    let (pid, second) = (rig.pid(), another(&rig));
    let (theirs, far, old) = (HOME + 0x800, HOME + 0x1000, Extent::new(HOME, 200));
    assert_eq!(rig.perform(second, Call::Map(Extent::new(theirs, 150))), Answer::Done);
    rig.adopt();
    for page in theirs..theirs + 150 {
        assert_eq!(rig.perform(second, Call::Store(page, page)), Answer::Done);
    }
    rig.world().will(first, Call::Remap(old, old.at(far)));
    while rig.world().step(first) != Progress::Sleeps {}
    assert!(rig.read_message());
    rig.world().map(pid, Mapping::anon(HOME + 10, HOME + 160));
    rig.adopt();
    rig.world().will(second, Call::Remap(Extent::new(theirs, 150), Extent::new(HOME + 10, 150)));
    while rig.world().calls_left(second) > 0 {
        if rig.world().step(second) == Progress::Sleeps {
            assert!(rig.read_message());
        }
    }
    rig.finish(first);
    for page in theirs..theirs + 150 {
        let there = page - theirs + HOME + 10;
        assert_eq!(rig.perform(second, Call::Load(there)), Answer::Value(page), "page {page:#x}");
    }
    assert_reconciled(&mut rig);
}

/// A page is on its way back when it is discarded. The kernel lets it through only after the discard: it must not come.
#[test]
fn a_page_that_is_discarded_on_its_way_back_is_empty() {
    let (mut rig, tid) = process(96, 600);
    let (changes, discards) = (another(&rig), another(&rig));
    let mut dice = Dice::new(1);
    // A change that was heard of and is not over: the kernel lets nothing through.
    rig.world().will(changes, Call::Unmap(Extent::new(HOME + 300, 1)));
    assert_eq!(rig.step(changes, &mut dice), Progress::Runs);
    assert_eq!(rig.step(changes, &mut dice), Progress::Sleeps);
    rig.world().will(tid, Call::Load(HOME));
    assert_eq!(rig.step(tid, &mut dice), Progress::Sleeps);
    rig.turns(50, &mut dice);
    rig.world().will(discards, Call::Discard(Extent::new(HOME, PAGES)));
    while rig.world().step(discards) != Progress::Sleeps {}
    rig.turns(5, &mut dice);
    // Both go on before anything else is done.
    assert_eq!(rig.world().step(discards), Progress::Ended(Answer::Done));
    assert_eq!(rig.world().step(changes), Progress::Ended(Answer::Done));
    rig.finish(tid);
    for page in HOME..HOME + PAGES {
        assert_eq!(rig.perform(tid, Call::Load(page)), Answer::Value(0), "page {page:#x}");
    }
}

/// The kernel tells of a discard before it carries it out. Pages that are there until then are not taken for pages that came back.
#[test]
fn pages_that_are_about_to_be_discarded_are_not_charged_again() {
    let (mut rig, tid) = process(400, 200);
    let mut dice = Dice::new(1);
    rig.world().will(tid, Call::Discard(Extent::new(HOME, 200)));
    while rig.world().step(tid) != Progress::Sleeps {}
    rig.turns(100, &mut dice);
    assert_eq!(rig.finish(tid), Answer::Done);
    rig.turns(100, &mut dice);
    assert_eq!(rig.pager().core().charged(), 0, "nothing is there");
}

/// A page is to be put back where mremap has taken the place away, of which the message is yet to be read. The kernel may look the place up
/// before it looks whether mappings change, and say that there is none: the content follows.
#[test]
fn content_whose_place_is_moved_on_its_way_back_follows() {
    let quirks = Quirks { looked_up_early: 10_000, ..Quirks::NONE };
    let (mut rig, tid) = process_in(quirks, 96, 600);
    let other = another(&rig);
    let (mut dice, there) = (Dice::new(1), HOME + 0x800);
    rig.world().will(tid, Call::Load(HOME));
    assert_eq!(rig.step(tid, &mut dice), Progress::Sleeps);
    rig.world().will(other, Call::Remap(Extent::new(HOME, PAGES), Extent::new(there, PAGES)));
    while rig.world().step(other) != Progress::Sleeps {}
    for _ in 0..50 {
        rig.ground.disk.end_one(&mut dice);
        let now = rig.pager().machine().space().now();
        rig.session.work(now);
        rig.world().pass(1_000);
    }
    assert_eq!(rig.finish(other), Answer::Done);
    assert_eq!(rig.finish(tid), Answer::Segv);
    for page in 0..PAGES {
        assert_eq!(rig.perform(other, Call::Load(there + page)), Answer::Value(HOME + page), "page {page}");
    }
}

/// The kernel refuses any run that crosses the border of two of its mappings. What it says is about the border, and about no page.
#[test]
fn a_run_that_crosses_a_border_leaves_as_if_there_were_none() {
    let (mut rig, tid) = process(400, 200);
    for page in (HOME..HOME + 200).step_by(7) {
        assert_eq!(rig.perform(tid, Call::OnFork(Extent::new(page, 3), ForkPolicy::Wipe)), Answer::Done);
    }
    rig.set_share(96);
    rig.rest();
    assert!(rig.pager().core().charged() <= 96, "{} pages are charged", rig.pager().core().charged());
    assert_eq!(rig.pager().machine().stats.busy_pages, 0, "nobody else has any of these pages");
}

/// Where moves are dear, pages come back as copies. For some of them there is no memory, and what is locked takes no page that is moved.
#[test]
fn a_page_that_can_only_be_copied_back_waits_for_memory() {
    let quirks = Quirks { no_memory: 5_000, interrupts: 10_000, ..Quirks::NONE };
    let (mut rig, tid) = process_in(quirks, 96, 300);
    assert_eq!(rig.perform(tid, Call::Lock(Extent::new(HOME, 40))), Answer::Done);
    for page in HOME..HOME + 40 {
        assert_eq!(rig.perform(tid, Call::Load(page)), Answer::Value(page), "page {page:#x}");
    }
}

/// A page of a run has moved when the kernel says that it has not (Linux 6.18), and the call that asks what has stopped the run hears of
/// a change that has begun since. What is held of that page is its only copy.
#[test]
fn a_page_that_was_moved_and_denied_is_found_though_mappings_change() {
    let quirks = Quirks { moved_and_denied: 300, interlude: 10_000, ..Quirks::NONE };
    let (mut rig, tid) = process_in(quirks, 400, 300);
    let (pid, changes, place) = (rig.pid(), another(&rig), Extent::new(HOME + 0x400, 20));
    rig.world().map(pid, Mapping::anon(place.start, place.end));
    rig.adopt();
    for (round, share) in (1..=20).zip([96, 400].into_iter().cycle()) {
        let mut dice = Dice::new(round);
        (0..100).for_each(|_| rig.world().will(changes, Call::Discard(place)));
        rig.set_share(share);
        rig.turns(200, &mut dice);
        rig.world().take_log();
        (HOME..HOME + 300).for_each(|page| rig.world().will(tid, Call::Load(page)));
        while rig.world().calls_left(tid) > 0 {
            rig.step(tid, &mut dice);
        }
        for happened in rig.world().take_log() {
            if let Happened::Ended(_, Call::Load(page), answer) = happened {
                assert_eq!(answer, Answer::Value(page), "page {page:#x}, round {round}");
            }
        }
    }
}

/// The thread that makes pages private goes on until nothing is left for it to do.
fn make_all_private(rig: &mut Rig) {
    while rig.world().calls_left(rig.private) > 0 {
        rig.finish(rig.private);
    }
}

/// A process of 200 pages that a fork shares, in a budget of 96, its thread, and pages that wait to be made private.
fn process_that_shares() -> (Rig, Tid, Extent) {
    let (mut rig, tid) = process(400, 200);
    assert!(matches!(rig.perform(tid, Call::Fork), Answer::Child(_)));
    rig.set_share(96);
    rig.turns(50, &mut Dice::new(1));
    let (start, end) = rig.pager().machine().first_private().expect("what is shared cannot leave as it is");
    (rig, tid, Extent { start, end })
}

/// All is made private, the budget holds, and each page is what it was but for those that are empty.
fn expect_all_private_but(rig: &mut Rig, tid: Tid, empty: Extent) {
    make_all_private(rig);
    rig.rest();
    assert!(rig.pager().core().charged() <= 96, "{} pages are charged", rig.pager().core().charged());
    for page in HOME..HOME + 200 {
        let expected = if (empty.start..empty.end).contains(&page) { 0 } else { page };
        assert_eq!(rig.perform(tid, Call::Load(page)), Answer::Value(expected), "page {page:#x}");
    }
}

/// While an order waits, what other pages leave behind when they leave memory goes back to the kernel. (Where a ring has registered buffers,
/// some order always waits: 56 MiB in a budget of 16 were in memory for nothing.)
#[test]
fn memory_that_nobody_needs_goes_while_an_order_waits() {
    let (mut rig, tid) = process(400, 200);
    let (pid, home) = (rig.pid(), HOME + 0x400);
    assert!(matches!(rig.perform(tid, Call::Fork), Answer::Child(_)));
    rig.world().map(pid, Mapping::anon(home, home + 150));
    rig.adopt();
    for page in home..home + 150 {
        assert_eq!(rig.perform(tid, Call::Store(page, page)), Answer::Done);
    }
    rig.set_share(96);
    rig.turns(200, &mut Dice::new(1));
    assert!(rig.pager().machine().has_deferred(), "what is shared waits");
    let spare = rig.pager().machine().spare_frames();
    assert!(spare <= 8, "{spare} frames are kept");
}

/// Pages that a fork shares wait to be made private before they can leave. One is given back meanwhile, of which nobody is told (a guard
/// that comes and goes): the thread that makes them private waits for it, and its own order for that thread.
#[test]
fn a_page_that_is_given_back_before_it_was_made_private_ends_its_order() {
    let (mut rig, tid, waits) = process_that_shares();
    for call in [Call::GuardInstall, Call::GuardRemove] {
        assert_eq!(rig.perform(tid, call(waits)), Answer::Done);
    }
    expect_all_private_but(&mut rig, tid, waits);
}

/// The same where the program says so: the thread that makes pages private faults on an empty page then, and all memory that could make room
/// waits for that thread. The page is there at once, and the budget is exceeded for it, so that it may stay.
#[test]
fn a_page_that_is_discarded_before_it_was_made_private_is_filled_at_once() {
    let (mut rig, tid, waits) = process_that_shares();
    let empty = Extent::new(waits.start, 1);
    assert_eq!(rig.perform(tid, Call::Discard(empty)), Answer::Done);
    let (private, charged) = (rig.private, rig.pager().core().charged());
    while rig.world().step(private) != Progress::Sleeps {}
    rig.turns(1, &mut Dice::new(1));
    assert_eq!((rig.pager().core().charged(), rig.pager().core().budget()), (charged + 1, charged + 16));
    assert_ne!(rig.world().step(private), Progress::Sleeps, "it has its page");
    expect_all_private_but(&mut rig, tid, empty);
}

/// The same, found at the fault: a page that is given back without a word while nothing else can make room. Its order ends, the page is
/// empty, and the thread that makes pages private waits for memory that waits for that thread: the budget is exceeded for it.
#[test]
fn a_page_that_is_found_given_back_before_it_was_made_private_has_room() {
    let (mut rig, tid, waits) = process_that_shares();
    let empty = Extent::new(waits.start, 1);
    for call in [Call::GuardInstall, Call::GuardRemove] {
        assert_eq!(rig.perform(tid, call(empty)), Answer::Done);
    }
    expect_all_private_but(&mut rig, tid, empty);
}

/// To the address of a page that is to be made private comes another one, which is out. All memory that could make room for it waits for
/// the thread that waits for it.
#[test]
fn a_page_that_comes_to_the_address_of_one_to_be_made_private_has_room() {
    let (mut rig, tid) = process(96, 300);
    rig.rest();
    rig.set_share(1000);
    for page in HOME + 100..HOME + 300 {
        assert_eq!(rig.perform(tid, Call::Load(page)), Answer::Value(page));
    }
    let page = rig.pager().machine().mappings.page(HOME).expect("it is managed");
    assert_eq!(rig.pager().core().page(page).state, PageState::Swapped);
    assert!(matches!(rig.perform(tid, Call::Fork), Answer::Child(_)));
    rig.set_share(96);
    rig.turns(50, &mut Dice::new(1));
    let (first, _) = rig.pager().machine().first_private().expect("what is shared cannot leave as it is");
    assert_eq!(rig.perform(tid, Call::Remap(Extent::new(HOME, 1), Extent::new(first, 1))), Answer::Done);
    make_all_private(&mut rig);
    rig.rest();
    assert!(rig.pager().core().charged() <= 96, "{} pages are charged", rig.pager().core().charged());
    assert_eq!(rig.perform(tid, Call::Load(first)), Answer::Value(HOME));
}

/// The kernel moves pages only between mappings of the same rights, and none that someone holds for a moment; it says so before it looks for
/// guards. Pages that could be executed when they left are copied back then, and so are those whose place is read-only by now: beside
/// them are guards of which nobody was told.
#[test]
fn pages_that_cannot_be_moved_back_leave_guards_alone() {
    let held = Quirks { held_for_a_moment: 4_000, ..Quirks::NONE };
    for (quirks, before, after) in [
        (Quirks::NONE, Rights::All, Rights::ReadWrite),
        (Quirks::NONE, Rights::ReadWrite, Rights::Read),
        (held, Rights::ReadWrite, Rights::ReadWrite),
    ] {
        let (mut rig, tid) = process_in(quirks, 400, 300);
        assert_eq!(rig.perform(tid, Call::Protect(Extent::new(HOME, 300), before)), Answer::Done);
        rig.adopt();
        rig.set_share(96);
        while rig.pager().core().charged() > 96 {
            rig.rest();
            make_all_private(&mut rig);
        }
        rig.set_share(400);
        let place = Extent::new(HOME, 200);
        assert_eq!(rig.perform(tid, Call::Protect(place, after)), Answer::Done);
        let is_guarded = |page: u64| page % 3 == 2;
        for page in (place.start..place.end).filter(|&page| is_guarded(page)) {
            assert_eq!(rig.perform(tid, Call::GuardInstall(Extent::new(page, 1))), Answer::Done);
        }
        for page in place.start..place.end {
            let expected = if is_guarded(page) { Answer::Segv } else { Answer::Value(page) };
            assert_eq!(rig.perform(tid, Call::Load(page)), expected, "page {page:#x}, {before:?}, {after:?}");
        }
    }
}

/// Memory is moved over other memory, whose end is told first. A thread then waits for a page there, which is the old one as far as is known
/// by then, and goes when the move is told: the thread finds what has moved there, or what that has grown by.
#[test]
fn who_waits_for_a_page_that_memory_is_moved_over_goes_on() {
    let (from, over) = (Extent::new(HOME + 400, 50), Extent::new(HOME + 100, 80));
    for (offset, value) in [(10, HOME + 410), (70, 0)] {
        let (mut rig, first) = process(96, 600);
        let (second, mut dice) = (another(&rig), Dice::new(1));
        rig.world().will(first, Call::Remap(from, over));
        while rig.world().step(first) != Progress::Sleeps {}
        assert!(rig.read_message());
        rig.world().will(second, Call::Load(over.start + offset));
        assert_eq!(rig.step(second, &mut dice), Progress::Sleeps);
        assert_eq!(rig.finish(first), Answer::Done);
        assert_eq!(rig.finish(second), Answer::Value(value), "page {offset}");
    }
}

/// Memory is unmapped, and the mapping before it grows into its place (mremap, of which nobody is told) before anybody looks whether what was
/// told to end is still there.
#[test]
fn what_grows_into_a_place_whose_end_is_told_is_empty() {
    let (mut rig, first) = process(96, 400);
    let second = another(&rig);
    // One page of it is in memory, others are not.
    assert_eq!(rig.perform(first, Call::Load(HOME + 120)), Answer::Value(HOME + 120));
    rig.world().will(first, Call::Unmap(Extent::new(HOME + 100, 100)));
    while rig.world().step(first) != Progress::Sleeps {}
    rig.world().will(second, Call::Grow(Extent::new(HOME, 100), 50));
    assert_eq!(rig.world().step(second), Progress::Ended(Answer::Done));
    assert_eq!(rig.finish(first), Answer::Done);
    for page in 0..150 {
        let expected = if page < 100 { HOME + page } else { 0 };
        assert_eq!(rig.perform(second, Call::Load(HOME + page)), Answer::Value(expected), "page {page}");
    }
}
