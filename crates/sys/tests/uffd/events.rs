//! What a monitored process does to its address space, as the queue tells it; and the child that a fork makes.
//!
//! Ranges registered with unmap events are leaked: unmapping one while its descriptor is open waits for a reader, who would be
//! the waiting test itself.

use std::thread;

use crate::common::{
    PAGE, alone, done, fork, frames, program_memory, stamp, stamp_all, stamp_of, stopped, uffd, until, wait,
};
use pagetide_sys::fd::{PollFd, events, poll};
use pagetide_sys::mem::{self, Advice, Remap};
use pagetide_sys::uffd::{Features, Modes, Msg, RawMsg, Reach, ReadAnswer, ReadMode, Stop, Uffd, Wake};

/// Events of one process, and moving.
const EVENTS: Features =
    Features::EVENT_UNMAP.with(Features::EVENT_REMOVE).with(Features::EVENT_REMAP).with(Features::MOVE);

fn monitor(features: Features) -> Option<Uffd> {
    uffd(Reach::Full, ReadMode::NonBlocking, features)
}

/// Wait for one message and take it.
fn next(uffd: &Uffd) -> Msg {
    let mut fds = [PollFd::new(uffd.fd(), events::IN)];
    assert_eq!(poll(&mut fds, Some(10_000_000_000)), Ok(1), "a message within 10 s");
    let mut messages = [RawMsg::EMPTY];
    assert_eq!(uffd.read(&mut messages), Ok(ReadAnswer::Read(1)));
    messages[0].take()
}

#[test]
fn an_empty_queue_is_empty() {
    let _alone = alone();
    let Some(uffd) = monitor(EVENTS) else { return };
    assert_eq!(uffd.read(&mut [RawMsg::EMPTY]), Ok(ReadAnswer::Empty));
}

#[test]
fn faults_tell_address_kind_and_thread_and_end_when_answered() {
    let _alone = alone();
    let features = EVENTS.with(Features::THREAD_ID).with(Features::EXACT_ADDRESS).with(Features::PAGEFAULT_FLAG_WP);
    let Some(uffd) = monitor(features) else { return };
    let (region, source) = (program_memory(4).into_range(), frames(4).into_range());
    stamp_all(source, 40);
    uffd.register(region, Modes::MISSING_AND_WP).expect("register");
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            // SAFETY: the test's own memory; the read sleeps until it has content.
            let value = unsafe { region.skip(PAGE + 24).as_ptr().read_volatile() };
            (pagetide_sys::thread::gettid(), value)
        });
        let Msg::PageFault { addr, write, wp, minor, tid } = next(&uffd) else { panic!("a fault") };
        assert_eq!((addr, write, wp, minor), (region.start() + PAGE + 24, false, false, false));
        // Mapped without a wake the reader goes on sleeping; waking lets it go.
        assert_eq!(uffd.copy(region.page(1), source.page(1), true, Wake::Later), done(1));
        uffd.wake(region.page(1)).expect("wake");
        assert_eq!(reader.join().expect("the reader ends"), (tid, 0));

        // The page was mapped read only: a write is told, and waits.
        let writer = scope.spawn(|| stamp(region, 1, 99));
        let Msg::PageFault { addr, write, wp, .. } = next(&uffd) else { panic!("a fault") };
        assert_eq!((addr, write, wp), (region.page(1).start(), true, true));
        assert_eq!(stamp_of(region, 1), Some(41));
        uffd.unprotect(region.page(1), Wake::Now).expect("unprotect");
        writer.join().expect("the writer ends");
        assert_eq!(stamp_of(region, 1), Some(99));
    });
}

#[test]
fn moves_wait_while_an_unread_event_changes_the_address_space() {
    let _alone = alone();
    let Some(uffd) = monitor(EVENTS) else { return };
    let (region, staging) = (program_memory(8).into_range(), frames(8).into_range());
    stamp_all(region, 1);
    uffd.register(region, Modes::MISSING).expect("register");
    uffd.register(staging, Modes::MISSING).expect("register");
    let victim = region.part(4 * PAGE, 2 * PAGE);
    thread::scope(|scope| {
        // SAFETY: nobody uses these two pages again.
        let unmapper = scope.spawn(move || unsafe { mem::unmap(victim) });
        let mut fds = [PollFd::new(uffd.fd(), events::IN)];
        assert_eq!(poll(&mut fds, Some(10_000_000_000)), Ok(1));
        // Until the event is read, every answer is EAGAIN, and nothing is done.
        assert_eq!(uffd.move_run(staging.page(0), region.page(0), false, Wake::Now), stopped(0, Stop::Again));
        assert_eq!(uffd.copy_run(staging.page(0), region.page(0), false, Wake::Now), stopped(0, Stop::Again));
        assert_eq!(uffd.zeropage_run(staging.page(0), Wake::Now), stopped(0, Stop::Again));
        assert_eq!(stamp_of(region, 0), Some(1));
        assert_eq!(next(&uffd), Msg::Unmap { start: victim.start(), end: victim.end() });
        assert_eq!(unmapper.join().expect("the unmapper ends"), Ok(()));
    });
    // The reader woke it, but the count of changes falls only when it runs.
    until("moves work again", || uffd.move_run(staging.page(0), region.page(0), false, Wake::Now) == done(1));
    assert_eq!(stamp_of(staging, 0), Some(1));
    // A run that leaves its mapping is refused as a whole; what is not mapped at all is a hole.
    let answer = uffd.move_run(staging.part(PAGE, 4 * PAGE), region.part(PAGE, 4 * PAGE), false, Wake::Now);
    assert_eq!(answer, stopped(0, Stop::Invalid));
    let answer = uffd.move_run(staging.page(4), region.page(4), false, Wake::Now);
    assert_eq!(answer, stopped(0, Stop::Hole));
}

#[test]
fn removed_and_remapped_ranges_are_told() {
    let _alone = alone();
    let Some(uffd) = monitor(EVENTS) else { return };
    let region = program_memory(8).into_range();
    let target = program_memory(16).into_range();
    stamp_all(region, 1);
    uffd.register(region, Modes::MISSING).expect("register");
    thread::scope(|scope| {
        let remover = scope.spawn(move || mem::advise(region.part(PAGE, 2 * PAGE), Advice::DontNeed));
        let start = region.page(1).start();
        assert_eq!(next(&uffd), Msg::Remove { start, end: start + 2 * PAGE });
        assert_eq!(remover.join().expect("the remover ends"), Ok(()));

        // SAFETY: the old place is not used again, the new one is the test's to replace.
        let mover = scope.spawn(move || unsafe { mem::remap(region, 8 * PAGE, Remap::To(target.start())) });
        let mut told = Vec::new();
        while told.len() < 2 {
            told.push(next(&uffd));
            if mover.is_finished() {
                break;
            }
        }
        assert_eq!(mover.join().expect("the mover ends"), Ok(target.start()));
        let remap = Msg::Remap { from: region.start(), to: target.start(), len: 8 * PAGE };
        assert!(told.contains(&remap), "{told:?}");
    });
    // The registration went with the pages: the missing one at the new place faults.
    let answer = uffd.zeropage(target.part(PAGE, 2 * PAGE), Wake::Now);
    assert_eq!(answer, done(2));
    assert_eq!(stamp_of(target, 7), Some(8));
}

#[test]
fn pages_shared_with_a_child_are_busy_until_they_are_written() {
    let _alone = alone();
    let Some(uffd) = monitor(Features::MOVE) else { return };
    let (region, staging) = (program_memory(4), frames(4));
    let (region, staging) = (region.range(), staging.range());
    stamp_all(region, 1);
    uffd.register(staging, Modes::MISSING).expect("register");
    let (read, write) = pagetide_sys::fd::pipe(0).expect("pipe");
    let child = fork(|| {
        let mut byte = [0];
        usize::from(pagetide_sys::file::read(&read, &mut byte) != Ok(1))
    });
    assert_eq!(uffd.move_run(staging, region, false, Wake::Now), stopped(0, Stop::Busy));
    stamp(region, 0, 9);
    assert_eq!(uffd.move_run(staging, region, false, Wake::Now), stopped(1, Stop::Busy));
    pagetide_sys::file::write_all(&write, b"x").expect("write");
    assert_eq!(wait(child), 0);
    // The child is gone, the mark of sharing is not, until a write finds the page alone.
    assert_eq!(uffd.move_run(staging.skip(PAGE), region.skip(PAGE), false, Wake::Now), stopped(0, Stop::Busy));
    // Copying works at once, and dropping what was copied.
    assert_eq!(uffd.copy_run(staging.skip(PAGE), region.skip(PAGE), false, Wake::Now), done(3));
    mem::advise(region.skip(PAGE), Advice::DontNeed).expect("madvise");
    assert_eq!((stamp_of(staging, 0), stamp_of(staging, 3)), (Some(9), Some(4)));
}

#[test]
fn a_child_gets_its_missing_pages_through_its_own_descriptor() {
    let _alone = alone();
    let Some(uffd) = monitor(Features::EVENT_FORK.with(Features::MOVE)) else { return };
    let (region, source) = (program_memory(4), frames(4));
    let (region, source) = (region.range(), source.range());
    stamp_all(source, 70);
    uffd.register(region, Modes::MISSING).expect("register");
    thread::scope(|scope| {
        // The forking thread sleeps until the event is read.
        let forker = scope.spawn(|| {
            let child = fork(|| usize::from((0..4).any(|index| stamp_of(region, index) != Some(70 + index as u64))));
            wait(child)
        });
        let Msg::Fork { fd } = next(&uffd) else { panic!("a fork") };
        let child = Uffd::from_fd(fd.moved_high(500));
        for index in 0..4 {
            let Msg::PageFault { addr, .. } = next(&child) else { panic!("a fault of the child") };
            assert_eq!(addr, region.page(index).start());
            // Another process's pages can be copied to, not moved to.
            let answer = child.move_run(region.page(index), source.page(index), false, Wake::Now);
            assert_eq!(answer, stopped(0, Stop::Invalid));
            assert_eq!(child.copy_run(region.page(index), source.page(index), false, Wake::Now), done(1));
        }
        assert_eq!(forker.join().expect("the forker ends"), 0);
        // The child has ended: its address space is gone.
        let gone = child.copy_run(region.page(0), source.page(0), false, Wake::Now);
        assert_eq!(gone, stopped(0, Stop::Gone));
    });
    // The parent's own page is still missing.
    assert_eq!(uffd.zeropage(region, Wake::Now), done(4));
}

#[test]
fn system_calls_on_missing_pages_wait_for_the_answer_in_full_mode() {
    let _alone = alone();
    let Some(uffd) = monitor(EVENTS) else { return };
    let (region, source) = (program_memory(2).into_range(), frames(2).into_range());
    stamp_all(source, 5);
    uffd.register(region, Modes::MISSING).expect("register");
    let (read, write) = pagetide_sys::fd::pipe(0).expect("pipe");
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let pieces = [pagetide_sys::file::IoVec::new(region)];
            pagetide_sys::file::writev(&write, &pieces)
        });
        for index in 0..2 {
            let Msg::PageFault { addr, write, .. } = next(&uffd) else { panic!("a fault") };
            assert_eq!((addr & !(PAGE - 1), write), (region.page(index).start(), false));
            assert_eq!(uffd.move_run(region.page(index), source.page(index), false, Wake::Now), done(1));
        }
        let mut bytes = vec![0; 2 * PAGE];
        let got = pagetide_sys::file::read_to_end(&read, &mut bytes).expect("read");
        assert_eq!(writer.join().expect("the writer ends"), Ok(2 * PAGE));
        assert_eq!((got[0], got[PAGE]), (5, 6));
    });
}
