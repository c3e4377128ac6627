//! io_uring against the real kernel: data, order, errors, polling, cancelling.

use pagetide_sys::clock;
use pagetide_sys::fd::{Fd, PollFd, eventfd, events, pipe, poll};
use pagetide_sys::file::{self, IoVec, flags};
use pagetide_sys::mem::{AnonOptions, ManagedRange, Mapping, PAGE_BYTES, Protection};
use pagetide_sys::syscall::Errno;
use pagetide_sys::uring::{Completion, Entry, Ring, SetupFlags};

const MODES: [SetupFlags; 3] = [SetupFlags::PLAIN, SetupFlags::COOP, SetupFlags::DEFER];

fn frames(pages: usize) -> Mapping {
    let options = AnonOptions { protection: Protection::ReadWrite, populate: true, inherit: false };
    Mapping::anonymous(pages * PAGE_BYTES, options).expect("mmap")
}

fn fill(range: ManagedRange, seed: u8) {
    for page in 0..range.len() / PAGE_BYTES {
        let value = seed.wrapping_add(u8::try_from(page % 251).expect("below 251"));
        // SAFETY: the test's own frames, mapped and writable, used by nobody else now.
        unsafe { range.page(page).as_ptr().write_bytes(value, PAGE_BYTES) };
    }
}

fn first_byte(range: ManagedRange, page: usize) -> u8 {
    // SAFETY: the test's own frames, mapped and readable.
    unsafe { range.page(page).as_ptr().read_volatile() }
}

fn disk_file() -> Fd {
    let open = flags::READ_WRITE | flags::UNNAMED | flags::DIRECT;
    Fd::open(c"/var/tmp", open, 0o600).expect("an unnamed file for direct I/O under /var/tmp")
}

fn finish(ring: &Ring) -> Completion {
    while ring.ready() == 0 {
        ring.submissions().enter(1).expect("enter");
    }
    ring.next_completion().expect("ready() said so")
}

#[test]
fn what_is_written_directly_is_read_back_in_every_mode() {
    let fd = disk_file();
    file::allocate(&fd, 0, 64 * 4096).expect("space");
    for mode in MODES {
        let ring = Ring::new(8, 16, mode).expect("io_uring");
        let (source, target) = (frames(32), frames(32));
        fill(source.range(), 11);
        ring.submissions().put_write(&fd, source.range(), 4096, 1);
        assert_eq!(ring.submissions().pending(), 1);
        assert_eq!(ring.submissions().enter(1), Ok(1));
        assert_eq!(finish(&ring), Completion { user_data: 1, result: Ok(32 * 4096), more: false });

        // Two pieces in reverse order of memory: the vectored form keeps the order of the array.
        let pieces =
            [IoVec::new(target.range().part(16 * 4096, 16 * 4096)), IoVec::new(target.range().part(0, 16 * 4096))];
        // SAFETY: the array lives until the request is submitted below.
        ring.submissions().put(unsafe { Entry::readv(&fd, &pieces, 4096, 2) });
        assert_eq!(finish(&ring), Completion { user_data: 2, result: Ok(32 * 4096), more: false });
        assert_eq!(first_byte(target.range(), 16), first_byte(source.range(), 0));
        assert_eq!(first_byte(target.range(), 15), first_byte(source.range(), 31));
    }
}

#[test]
fn errors_come_as_results_of_their_request() {
    let fd = disk_file();
    file::allocate(&fd, 0, 8192).expect("space");
    let frame = frames(1);
    let ring = Ring::new(4, 8, SetupFlags::PLAIN).expect("io_uring");
    // A descriptor for reading only cannot be written; past the end of the file there is nothing to read.
    let read_only = Fd::open(c"/proc/self/stat", flags::READ, 0).expect("open");
    ring.submissions().put_write(&read_only, frame.range(), 0, 1);
    ring.submissions().put_read(&fd, frame.range(), 1 << 40, 2);
    ring.submissions().enter(2).expect("enter");
    let mut answers = [finish(&ring), finish(&ring)];
    answers.sort_by_key(|answer| answer.user_data);
    assert_eq!(answers[0].result, Err(Errno::EBADF));
    assert_eq!(answers[1].result, Ok(0));
}

#[test]
fn a_full_queue_says_so_and_completions_beyond_it_are_kept() {
    let ring = Ring::new(4, 4, SetupFlags::PLAIN).expect("io_uring");
    let mut taken = 0;
    for round in 0..4 {
        for place in 0..4 {
            ring.submissions().put_nop(round * 4 + place);
        }
        assert_eq!(ring.submissions().room(), 0);
        ring.submissions().enter(0).expect("enter");
    }
    // 16 answers, 4 places: the rest waits in the kernel and is flushed by the next calls.
    while taken < 16 {
        if let Some(answer) = ring.next_completion() {
            assert_eq!(answer, Completion { user_data: taken, result: Ok(0), more: false });
            taken += 1;
        } else {
            ring.submissions().enter(1).expect("enter");
        }
    }
}

/// Reads that really wait for the disk, each slept for in `ppoll` on what `wait_on` gives.
fn read_and_poll(mode: SetupFlags, use_event: bool) {
    const SLEEP_NS: u64 = 10_000_000_000;
    let fd = disk_file();
    let frame = frames(64);
    fill(frame.range(), 1);
    file::pwritev(&fd, &[IoVec::new(frame.range())], 0, 0).expect("write");
    let ring = Ring::new(4, 8, mode).expect("io_uring");
    let event = eventfd(0).expect("eventfd");
    if use_event {
        ring.set_event(&event).expect("register");
    }
    let start = clock::now();
    for turn in 0..64 {
        ring.submissions().put_read(&fd, frame.range().page(0), turn * 4096, turn);
        ring.submissions().enter(0).expect("enter");
        while ring.ready() == 0 {
            let mut fds = [PollFd::new(if use_event { &event } else { ring.fd() }, events::IN)];
            assert_eq!(poll(&mut fds, Some(SLEEP_NS)), Ok(1));
            file::take_event(&event).expect("read");
            ring.submissions().enter(0).expect("enter");
        }
        assert_eq!(finish(&ring), Completion { user_data: turn, result: Ok(4096), more: false });
    }
    // A wake that is missed shows as a poll that ends by its time.
    assert!(clock::now() - start < SLEEP_NS, "{mode:?}: a finished read did not wake the poller");
}

#[test]
fn the_ring_is_polled_beside_other_descriptors() {
    read_and_poll(SetupFlags::PLAIN, false);
    read_and_poll(SetupFlags::COOP, false);
}

/// A deferred ring's own descriptor does not wake a poller on Linux 6.18: only its event does.
#[test]
fn a_deferred_ring_is_waited_for_through_its_event() {
    read_and_poll(SetupFlags::DEFER, true);
    read_and_poll(SetupFlags::COOP, true);
}

#[test]
fn completions_of_a_cooperative_ring_are_run_for_who_only_looks() {
    let (read, write) = pipe(flags::NONBLOCK).expect("pipe");
    let ring = Ring::new(4, 8, SetupFlags::COOP).expect("io_uring");
    assert!(!ring.run_completions(), "nothing is under way");
    for round in 0..100 {
        ring.submissions().put_poll(&read, events::IN, round);
        ring.submissions().enter(0).expect("enter");
        std::thread::scope(|scope| {
            scope.spawn(|| file::write_all(&write, b"x").expect("write"));
            // An interrupt may have run it before. The kernel says that there is something to run a moment before it can be run.
            let end = clock::now() + 10_000_000_000;
            while ring.ready() == 0 {
                ring.run_completions();
                assert!(clock::now() < end, "it is not run");
            }
            assert_eq!(ring.ready(), 1);
        });
        assert_eq!(ring.next_completion().map(|seen| seen.user_data), Some(round));
        assert_eq!(file::read(&read, &mut [0; 8]), Ok(1));
    }
}

#[test]
fn a_lasting_poll_fires_again() {
    let (read, write) = pipe(flags::NONBLOCK).expect("pipe");
    let ring = Ring::new(4, 8, SetupFlags::DEFER).expect("io_uring");
    ring.submissions().put_poll_multi(&read, events::IN, 5);
    ring.submissions().enter(0).expect("enter");
    for _ in 0..3 {
        assert_eq!(ring.next_completion(), None);
        file::write_all(&write, b"x").expect("write");
        let seen = finish(&ring);
        assert_eq!((seen.user_data, seen.result, seen.more), (5, Ok(1), true));
        assert_eq!(file::read(&read, &mut [0; 8]), Ok(1));
    }
    ring.submissions().put_cancel(5, 6);
    let answers = [finish(&ring), finish(&ring)];
    assert!(answers.iter().any(|answer| answer.result == Err(Errno::ECANCELED) && !answer.more));
}

#[test]
fn polls_fire_and_are_cancelled() {
    let (read, write) = pipe(0).expect("pipe");
    let ring = Ring::new(4, 8, SetupFlags::DEFER).expect("io_uring");
    ring.submissions().put_poll(&read, events::IN, 1);
    ring.submissions().enter(0).expect("enter");
    assert_eq!(ring.next_completion(), None);
    file::write_all(&write, b"x").expect("write");
    let seen = finish(&ring);
    assert_eq!((seen.user_data, seen.result), (1, Ok(1)));

    let (empty, _writer) = pipe(0).expect("pipe");
    ring.submissions().put_poll(&empty, events::IN, 2);
    ring.submissions().put_cancel(2, 3);
    ring.submissions().enter(2).expect("enter");
    let mut answers = [finish(&ring), finish(&ring)];
    answers.sort_by_key(|answer| answer.user_data);
    assert_eq!(answers[0].result, Err(Errno::ECANCELED));
    assert_eq!(answers[1].result, Ok(0));
}

#[test]
fn a_wait_ends_at_its_time() {
    let ring = Ring::new(1, 2, SetupFlags::PLAIN).expect("io_uring");
    let before = clock::now();
    assert_eq!(ring.submissions().enter_timeout(1, 3_000_000), Ok(0));
    assert!(clock::now() - before >= 3_000_000);
}

#[test]
fn what_was_taken_back_is_not_submitted() {
    let ring = Ring::new(4, 8, SetupFlags::PLAIN).expect("io_uring");
    for turn in 0..10 {
        let mut submissions = ring.submissions();
        submissions.put_nop(100);
        submissions.put_nop(101);
        submissions.take_back();
        assert_eq!((submissions.pending(), submissions.room()), (0, 4));
        submissions.put_nop(turn);
        assert_eq!(submissions.enter(1), Ok(1));
        drop(submissions);
        assert_eq!(finish(&ring).user_data, turn);
        assert_eq!(ring.next_completion(), None);
    }
}
