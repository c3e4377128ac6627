//! The scripts. Each writes one line an answer; a line names what was done, so that two stages can be laid side by side.
//!
//! A thread of the program never touches a missing page here unless the script answers its fault.

use pagetide_kernel::model::{Call, Extent, ForkPolicy, Rights};
use pagetide_kernel::{AddressSpace, Faults, Message};
use pagetide_sys::fd::{self, PollFd, events};
use pagetide_sys::pagemap::{Categories, Run};
use pagetide_sys::uffd::{Modes, RangeAnswer, Wake};

use crate::stage::{Made, Stage, quietly, vpn};

/// Pages in a huge page of x86-64, and of arm64 with pages of 4 KiB.
pub(crate) const HUGE_PAGES: u64 = 512;

/// What a page is before the runtime's call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Missing,
    Zero,
    Written,
    SharedWithChild,
    WasShared,
    Pinned,
    Guarded,
    Unguarded,
    Poisoned,
}

const STATES: [State; 9] = [
    State::Missing,
    State::Zero,
    State::Written,
    State::SharedWithChild,
    State::WasShared,
    State::Pinned,
    State::Guarded,
    State::Unguarded,
    State::Poisoned,
];

/// What the mapping is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Plain,
    Executable,
    ReadOnly,
    NoAccess,
    Locked,
    DontFork,
    Wipe,
    Stack,
    Shared,
    Unregistered,
}

const PLACES: [Place; 10] = [
    Place::Plain,
    Place::Executable,
    Place::ReadOnly,
    Place::NoAccess,
    Place::Locked,
    Place::DontFork,
    Place::Wipe,
    Place::Stack,
    Place::Shared,
    Place::Unregistered,
];

/// What the runtime asks for.
#[derive(Clone, Copy, Debug)]
enum Asked {
    MoveOut,
    MoveIn,
    Copy,
    Zero,
    Poison,
}

const ASKED: [Asked; 5] = [Asked::MoveOut, Asked::MoveIn, Asked::Copy, Asked::Zero, Asked::Poison];

/// What the page map shows of a page, if others map it as well, and its content where there is one that can be read.
fn shown<S: Stage>(stage: &mut S, extent: Extent, readable: bool) -> String {
    let mut text = String::new();
    for page in extent.start..extent.end {
        let range = stage.range(Extent::new(page, 1));
        let mut runs = [Run::default(); 2];
        let wanted = Categories::PRESENT.with(Categories::SWAPPED);
        let scan = stage.space().scan(range, wanted, &mut runs).expect("the page map can be read");
        let is_present = scan.runs > 0 && runs[0].categories.has(Categories::PRESENT);
        text += match (scan.runs, is_present) {
            (0, _) => " missing",
            (_, true) => " present",
            (_, false) => " marked",
        };
        let shared = stage.space().shared(range).expect("the page map can be read");
        text += if shared > 0 { " shared" } else { "" };
        if is_present && readable {
            text += &format!(" {}", quietly(stage, Call::Load(page)));
        }
    }
    text
}

fn told(answer: RangeAnswer) -> String {
    format!("{} pages, {:?}", answer.done / 4096, answer.stop)
}

/// One page in this state.
fn make<S: Stage>(stage: &mut S, place: Place, state: State) -> Extent {
    let made = match place {
        Place::Shared => Made::Shared,
        Place::Stack => Made::Stack,
        Place::Plain
        | Place::Executable
        | Place::ReadOnly
        | Place::NoAccess
        | Place::Locked
        | Place::DontFork
        | Place::Wipe
        | Place::Unregistered => Made::Plain,
    };
    let extent = stage.map(1, made);
    let page = extent.start;
    match state {
        State::Missing | State::Poisoned => {}
        State::Zero => drop(quietly(stage, Call::Load(page))),
        State::Guarded => drop(quietly(stage, Call::GuardInstall(extent))),
        State::Unguarded => {
            quietly(stage, Call::Store(page, 7));
            quietly(stage, Call::GuardInstall(extent));
            quietly(stage, Call::GuardRemove(extent));
        }
        State::Pinned => {
            quietly(stage, Call::Store(page, 7));
            quietly(stage, Call::Pin(page));
        }
        State::Written => drop(quietly(stage, Call::Store(page, 7))),
        State::SharedWithChild | State::WasShared => {
            quietly(stage, Call::Store(page, 7));
            quietly(stage, Call::Fork);
            if state == State::WasShared {
                stage.end_children();
            }
        }
    }
    if place != Place::Unregistered || state == State::Poisoned {
        stage.space().register(stage.range(extent), Modes::MISSING).expect("it can be registered");
    }
    if state == State::Poisoned {
        let _ = stage.space().poison(stage.range(extent), Wake::Now);
    }
    match place {
        Place::Plain | Place::Stack | Place::Shared => {}
        Place::Executable => drop(quietly(stage, Call::Protect(extent, Rights::All))),
        Place::ReadOnly => drop(quietly(stage, Call::Protect(extent, Rights::Read))),
        Place::NoAccess => drop(quietly(stage, Call::Protect(extent, Rights::None))),
        Place::Locked => drop(quietly(stage, Call::Lock(extent))),
        Place::DontFork => drop(quietly(stage, Call::OnFork(extent, ForkPolicy::Dont))),
        Place::Wipe => drop(quietly(stage, Call::OnFork(extent, ForkPolicy::Wipe))),
        Place::Unregistered => stage.space().unregister(stage.range(extent)).expect("it was mapped"),
    }
    extent
}

/// Frames of the runtime: `with` of them hold the value 9.
fn frames<S: Stage>(stage: &mut S, pages: u64, with: bool) -> Extent {
    let frames = stage.map(pages, Made::Plain);
    if with {
        for page in frames.start..frames.end {
            quietly(stage, Call::Store(page, 9));
        }
    }
    stage.space().register(stage.range(frames), Modes::MISSING).expect("frames can be registered");
    frames
}

fn ask<S: Stage>(stage: &S, asked: Asked, page: Extent, frame: Extent) -> RangeAnswer {
    let (space, page, frame) = (stage.space(), stage.range(page), stage.range(frame));
    match asked {
        Asked::MoveOut => space.move_pages(frame, page, Wake::Now),
        Asked::MoveIn => space.move_pages(page, frame, Wake::Now),
        Asked::Copy => space.copy(page, frame, Wake::Now),
        Asked::Zero => space.zeropage(page, Wake::Now),
        Asked::Poison => space.poison(page, Wake::Now),
    }
}

/// Every call on one page, of every state, in every kind of mapping.
pub(crate) fn pages<S: Stage>(stage: &mut S) -> Vec<String> {
    let mut lines = Vec::new();
    for place in PLACES {
        for state in STATES {
            // Memory that is shared has no page of zeroes of its own.
            if place == Place::Shared && !matches!(state, State::Missing | State::Written | State::Poisoned) {
                continue;
            }
            for asked in ASKED {
                let page = make(stage, place, state);
                let frame = frames(stage, 1, !matches!(asked, Asked::MoveOut));
                let answer = told(ask(stage, asked, page, frame));
                let is_readable = place != Place::NoAccess;
                let (page, frame) = (shown(stage, page, is_readable), shown(stage, frame, true));
                lines.push(format!("{place:?} {state:?} {asked:?}: {answer};{page}; frame{frame}"));
                stage.end_children();
            }
        }
    }
    lines
}

/// What is said to be registered, which changes nothing; and while the address space changes.
pub(crate) fn registered<S: Stage>(stage: &mut S) -> Vec<String> {
    let mut lines = Vec::new();
    for place in PLACES.into_iter().filter(|place| *place != Place::Shared) {
        for state in STATES {
            let page = make(stage, place, state);
            let answer = stage.space().is_registered(stage.range(page));
            assert_eq!(stage.space().is_registered_now(stage.range(page)), answer.ok());
            lines.push(format!("{place:?} {state:?}: {answer:?};{}", shown(stage, page, place != Place::NoAccess)));
            stage.end_children();
        }
    }
    let nowhere = stage.place(1);
    lines.push(format!("nowhere: {:?}", stage.space().is_registered(stage.range(nowhere))));
    lines.push(format!("nowhere now: {:?}", stage.space().is_registered_now(stage.range(nowhere))));
    let (page, other) = (frames(stage, 1, false), frames(stage, 1, true));
    quietly_asking(stage, Call::Discard(other), page, &mut lines);
    lines
}

/// Play a call, and ask of another page before each message is read.
fn quietly_asking<S: Stage>(stage: &mut S, call: Call, page: Extent, lines: &mut Vec<String>) {
    let answer = stage.perform(call, &mut |stage, message| {
        if message.is_none() {
            let space = stage.space();
            let range = stage.range(page);
            lines.push(format!("meanwhile: {:?}, {:?}", space.is_registered(range), space.is_registered_now(range)));
        }
    });
    lines.push(answer);
}

/// Runs that stop in the middle, leave their mapping, or have no place at all.
pub(crate) fn runs<S: Stage>(stage: &mut S) -> Vec<String> {
    let mut lines = Vec::new();
    for asked in ASKED {
        for in_the_way in [0, 1, 2, 3] {
            let region = stage.map(3, Made::Plain);
            let is_out = matches!(asked, Asked::MoveOut);
            for page in (region.start..region.end).filter(|page| (*page == region.start + in_the_way) != is_out) {
                quietly(stage, Call::Store(page, page - region.start));
            }
            stage.space().register(stage.range(region), Modes::MISSING).expect("register");
            let frames = frames(stage, 3, !is_out);
            let answer = told(ask(stage, asked, region, frames));
            let (pages, frames) = (shown(stage, region, true), shown(stage, frames, true));
            lines.push(format!("{asked:?} with {in_the_way} in the way: {answer};{pages}; frames{frames}"));
        }
        for lock in [false, true] {
            let region = stage.map(3, Made::Plain);
            let is_out = matches!(asked, Asked::MoveOut);
            if is_out {
                (region.start..region.end).for_each(|page| drop(quietly(stage, Call::Store(page, 5))));
            }
            stage.space().register(stage.range(region), Modes::MISSING).expect("register");
            let upper = Extent::new(region.start + 1, 2);
            let border = if lock { Call::Lock(upper) } else { Call::Protect(upper, Rights::Read) };
            quietly(stage, border);
            let frames = frames(stage, 3, !is_out);
            let answer = told(ask(stage, asked, region, frames));
            let (pages, frames) = (shown(stage, region, true), shown(stage, frames, true));
            lines.push(format!("{asked:?} over a border: {answer};{pages}; frames{frames}"));
        }
        let nowhere = stage.place(1);
        let frames = frames(stage, 1, true);
        lines.push(format!("{asked:?} nowhere: {}", told(ask(stage, asked, nowhere, frames))));
    }
    lines
}

/// What a change of the address space tells, and what calls answer until it has been read.
pub(crate) fn changes<S: Stage>(stage: &mut S) -> Vec<String> {
    let mut lines = Vec::new();
    let frame = frames(stage, 1, true);
    let hole = frames(stage, 8, false);
    let mut play = |stage: &mut S, name: &str, call: Call, from: u64| {
        let mut heard = Vec::new();
        let answer = stage.perform(call, &mut |stage, message| match message {
            None => {
                for (index, asked) in (0..).zip(ASKED) {
                    heard.push(told(ask(stage, asked, Extent::new(hole.start + index, 1), frame)));
                }
            }
            Some(message) => heard.push(named(message, from)),
        });
        lines.push(format!("{name}: {heard:?}, {answer}"));
    };
    let fresh = |stage: &mut S, pages: u64| {
        let extent = stage.map(pages, Made::Plain);
        (extent.start..extent.end).for_each(|page| drop(quietly(stage, Call::Store(page, page - extent.start + 1))));
        stage.space().register(stage.range(extent), Modes::MISSING).expect("register");
        extent
    };
    let part = |extent: Extent| Extent::new(extent.start + 1, 2);

    let region = fresh(stage, 4);
    play(stage, "munmap of a part", Call::Unmap(part(region)), region.start);
    play(stage, "munmap over a hole", Call::Unmap(region), region.start);
    let region = fresh(stage, 4);
    play(stage, "munmap that fails", Call::UnmapInVain(region), region.start);
    let in_vain = shown_after(stage, region);
    let region = fresh(stage, 4);
    play(stage, "MADV_DONTNEED of a part", Call::Discard(part(region)), region.start);
    let after = shown_after(stage, region);
    let region = fresh(stage, 4);
    quietly(stage, Call::GuardInstall(part(region)));
    play(stage, "MADV_DONTNEED over guards", Call::Discard(region), region.start);
    let guarded = shown_after(stage, region);
    let region = fresh(stage, 4);
    quietly(stage, Call::Protect(part(region), Rights::Read));
    play(stage, "MADV_DONTNEED over borders", Call::Discard(region), region.start);
    let region = fresh(stage, 4);
    quietly(stage, Call::Lock(part(region)));
    play(stage, "MADV_DONTNEED of what is locked", Call::Discard(region), region.start);
    let region = fresh(stage, 4);
    play(stage, "mprotect", Call::Protect(part(region), Rights::None), region.start);
    play(stage, "MADV_GUARD_INSTALL", Call::GuardInstall(region), region.start);
    play(stage, "MADV_GUARD_REMOVE", Call::GuardRemove(region), region.start);
    let (region, target) = (fresh(stage, 4), stage.place(4));
    play(stage, "mremap", Call::Remap(region, target), region.start);
    let (region, target) = (fresh(stage, 4), fresh(stage, 4));
    play(stage, "mremap onto a mapping", Call::Remap(region, target), region.start.min(target.start));
    let remapped = shown_after(stage, target);
    let (region, target) = (fresh(stage, 4), fresh(stage, 8));
    play(stage, "mremap that grows onto a mapping", Call::Remap(region, target), region.start.min(target.start));
    let grown = shown_after(stage, target);
    let region = fresh(stage, 8);
    play(stage, "munmap of an end", Call::Unmap(Extent::new(region.start + 4, 4)), region.start);
    play(stage, "mremap in place", Call::Grow(Extent::new(region.start, 4), 2), region.start);
    play(stage, "mremap in place without room", Call::Grow(Extent::new(region.start, 2), 2), region.start);
    play(stage, "munmap of what has grown", Call::Unmap(Extent::new(region.start + 4, 2)), region.start);
    let (region, target) = (fresh(stage, 4), stage.place(2));
    play(stage, "mremap of a part", Call::Remap(part(region), target), region.start);
    let (region, target) = (fresh(stage, 4), stage.place(4));
    play(stage, "mremap that keeps the old place", Call::RemapKeeping(region, target.start), region.start);
    let kept = [shown_after(stage, region), shown_after(stage, target)];
    play(stage, "munmap of the kept place", Call::Unmap(region), region.start);
    lines.extend([in_vain, after, guarded, remapped, grown]);
    lines.extend(kept);
    lines
}

fn shown_after<S: Stage>(stage: &mut S, extent: Extent) -> String {
    format!("afterwards:{}", shown(stage, extent, true))
}

/// What a discard that has told of a mapping and waits does with the memory beside it that is registered meanwhile.
pub(crate) fn joined<S: Stage>(stage: &mut S) -> Vec<String> {
    let region = stage.map(4, Made::Plain);
    (region.start..region.end).for_each(|page| drop(quietly(stage, Call::Store(page, 7))));
    let (lower, upper) = (Extent::new(region.start, 2), Extent::new(region.start + 2, 2));
    stage.space().register(stage.range(lower), Modes::MISSING).expect("register");
    let mut heard = Vec::new();
    let answer = stage.perform(Call::Discard(region), &mut |stage, message| match message {
        None => stage.space().register(stage.range(upper), Modes::MISSING).expect("register"),
        Some(message) => heard.push(named(message, region.start)),
    });
    vec![format!("MADV_DONTNEED of what is joined meanwhile: {heard:?}, {answer};{}", shown(stage, region, true))]
}

/// A message, its addresses relative to a page.
fn named<C>(message: &Message<C>, from: u64) -> String {
    let at = |address: usize| vpn(address).wrapping_sub(from);
    match *message {
        Message::Fault { address, write, .. } => format!("fault {} {write}", at(address)),
        Message::Fork(_) => "fork".to_owned(),
        Message::Remap { from, len, .. } => format!("remap {} {}", at(from), len / 4096),
        Message::Remove { start, end } => format!("remove {} {}", at(start), at(end)),
        Message::Unmap { start, end } => format!("unmap {} pages", (end - start) / 4096),
        Message::Unknown(event) => format!("event {event}"),
    }
}

/// Faults that are answered, and a child that is filled by its parent.
pub(crate) fn forks<S: Stage>(stage: &mut S) -> Vec<String> {
    let mut lines = Vec::new();
    let frame = frames(stage, 1, true);
    for asked in [Asked::MoveIn, Asked::Copy, Asked::Zero, Asked::Poison] {
        for write in [false, true] {
            let region = stage.map(1, Made::Plain);
            stage.space().register(stage.range(region), Modes::MISSING).expect("register");
            let frame = frames(stage, 1, true);
            let call = if write { Call::Store(region.start, 3) } else { Call::Load(region.start) };
            let mut heard = Vec::new();
            let answer = stage.perform(call, &mut |stage, message| {
                if let Some(message) = message {
                    heard.push(named(message, region.start));
                    heard.push(told(ask(stage, asked, region, frame)));
                }
            });
            let shown = shown(stage, region, true);
            lines.push(format!("a fault answered by {asked:?}: {heard:?}, {answer};{shown}"));
        }
    }
    for policy in [ForkPolicy::Copy, ForkPolicy::Dont, ForkPolicy::Wipe] {
        let region = stage.map(2, Made::Plain);
        quietly(stage, Call::Store(region.start, 3));
        stage.space().register(stage.range(region), Modes::MISSING).expect("register");
        quietly(stage, Call::OnFork(region, policy));
        let mut heard = Vec::new();
        let answer = stage.perform(Call::Fork, &mut |stage, message| {
            if let Some(Message::Fork(child)) = message {
                for page in region.start..region.end {
                    let (to, from) = (stage.range(Extent::new(page, 1)), stage.range(frame));
                    heard.push(told(stage.move_to_child(child, to, from)));
                    heard.push(told(stage.copy_to_child(child, to, from)));
                }
            }
        });
        lines.push(format!("fork {policy:?}: {heard:?}, {answer}"));
        stage.end_children();
    }
    lines
}

/// What a child finds in memory that is registered in its parent, of whose forks nobody is told.
pub(crate) fn copies<S: Stage>(stage: &mut S) -> Vec<String> {
    let mut lines = Vec::new();
    for state in [State::Missing, State::Zero, State::Written, State::Poisoned, State::Guarded] {
        for policy in [ForkPolicy::Copy, ForkPolicy::Dont, ForkPolicy::Wipe] {
            let extent = make(stage, Place::Plain, state);
            quietly(stage, Call::OnFork(extent, policy));
            let mut heard = Vec::new();
            let answer = stage.perform(Call::Fork, &mut |_, message| {
                heard.extend(message.map(|message| named(message, extent.start)));
            });
            let found = stage.load_in_child(extent.start);
            let end = stage.space().end_of(stage.child()).expect("it runs");
            let is_over = || fd::poll(&mut [PollFd::new(&end, events::IN)], Some(0)) == Ok(1);
            let (before, _) = (is_over(), stage.end_children());
            lines.push(format!("{state:?}, {policy:?}: {heard:?}, {answer}; {found}; ended {before}, {}", is_over()));
        }
    }
    lines
}

/// How many pages of the extent are there.
fn present<S: Stage>(stage: &S, extent: Extent) -> u64 {
    let mut runs = [Run::default(); 600];
    let scan =
        stage.space().scan(stage.range(extent), Categories::PRESENT, &mut runs).expect("the page map can be read");
    runs[..scan.runs].iter().map(Run::pages).sum()
}

/// A huge page that a store has made, with some values, registered afterwards. None: the kernel gave small ones.
fn huge<S: Stage>(stage: &mut S) -> Option<Extent> {
    let region = stage.map(HUGE_PAGES, Made::Huge);
    for index in [5, 6, 7, 300] {
        quietly(stage, Call::Store(region.start + index, index));
    }
    let is_huge = present(stage, region) == HUGE_PAGES;
    stage.space().register(stage.range(region), Modes::MISSING).expect("register");
    is_huge.then_some(region)
}

fn values<S: Stage>(stage: &mut S, region: Extent, indices: &[u64]) -> String {
    indices.iter().map(|index| format!(" {}", quietly(stage, Call::Load(region.start + index)))).collect()
}

/// Huge pages of which parts are moved, pinned and made again. Nothing: the kernel gives none.
pub(crate) fn huge_pages<S: Stage>(stage: &mut S) -> Vec<String> {
    let mut lines = Vec::new();
    let Some(region) = huge(stage) else { return Vec::new() };
    for (index, pages) in [(5, 1), (6, 2), (300, 40)] {
        let frame = frames(stage, pages, false);
        let answer = told(ask(stage, Asked::MoveOut, Extent::new(region.start + index, pages), frame));
        let (left, frame) = (present(stage, region), shown(stage, Extent::new(frame.start, 1), true));
        lines.push(format!("{pages} pages of a huge page: {answer}; {left} left; frame{frame}"));
    }
    lines.push(format!("MADV_COLLAPSE over holes: {}", quietly(stage, Call::Collapse(region))));
    lines.push(format!("afterwards {} pages{}", present(stage, region), values(stage, region, &[4, 8, 511])));

    let Some(region) = huge(stage) else { return Vec::new() };
    quietly(stage, Call::Pin(region.start + 7));
    for index in [7, 300] {
        let frame = frames(stage, 1, false);
        let answer = told(ask(stage, Asked::MoveOut, Extent::new(region.start + index, 1), frame));
        lines.push(format!("page {index} of a huge page with one pinned: {answer}; {} left", present(stage, region)));
    }

    let region = stage.map(HUGE_PAGES, Made::Huge);
    stage.space().register(stage.range(region), Modes::MISSING).expect("register");
    let frame = frames(stage, 1, true);
    let mut heard = Vec::new();
    let answer = stage.perform(Call::Store(region.start + 9, 3), &mut |stage, message| {
        if let Some(message) = message {
            heard.push(named(message, region.start));
            heard.push(told(ask(stage, Asked::Copy, Extent::new(region.start + 9, 1), frame)));
        }
    });
    lines.push(format!("a fault where huge pages may be: {heard:?}, {answer}; {} pages", present(stage, region)));
    let rest = frames(stage, HUGE_PAGES, true);
    for (from, pages) in [(0, 9), (10, HUGE_PAGES - 10)] {
        let (to, from) = (Extent::new(region.start + from, pages), Extent::new(rest.start + from, pages));
        lines.push(told(ask(stage, Asked::Copy, to, from)));
    }
    lines.push(format!("MADV_COLLAPSE of what is there: {}", quietly(stage, Call::Collapse(region))));
    lines.push(format!("afterwards {} pages{}", present(stage, region), values(stage, region, &[0, 9, 511])));
    for is_forbidden in [true, false] {
        quietly(stage, Call::ForbidHuge(is_forbidden));
        let answer = quietly(stage, Call::Collapse(region));
        lines.push(format!("MADV_COLLAPSE where PR_SET_THP_DISABLE is {is_forbidden}: {answer}"));
    }
    let frame = frames(stage, 1, false);
    let answer = told(ask(stage, Asked::MoveOut, Extent::new(region.start + 9, 1), frame));
    lines.push(format!("a page of it: {answer}; {} left; frame{}", present(stage, region), shown(stage, frame, true)));
    lines
}
