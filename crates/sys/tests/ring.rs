//! io_uring against the real kernel: data, order, errors, polling, cancelling.

use pagetide_sys::fd::{Fd, PollFd, events, pipe, poll};
use pagetide_sys::file::{self, IoVec, flags};
use pagetide_sys::mem::{AnonOptions, ManagedRange, Mapping, PAGE_BYTES, Protection};
use pagetide_sys::syscall::Errno;
use pagetide_sys::uring::{Completion, Ring, SetupFlags};

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

fn finish(ring: &mut Ring) -> Completion {
    while ring.ready() == 0 {
        ring.enter(1).expect("enter");
    }
    ring.next_completion().expect("ready() said so")
}

#[test]
fn what_is_written_directly_is_read_back_in_every_mode() {
    let fd = disk_file();
    file::allocate(&fd, 0, 64 * 4096).expect("space");
    for mode in MODES {
        let mut ring = Ring::new(8, 16, mode).expect("io_uring");
        let (source, target) = (frames(32), frames(32));
        fill(source.range(), 11);
        ring.put_write(&fd, source.range(), 4096, 1);
        assert_eq!(ring.pending(), 1);
        assert_eq!(ring.enter(1), Ok(1));
        assert_eq!(finish(&mut ring), Completion { user_data: 1, result: Ok(32 * 4096) });

        // Two pieces in reverse order of memory: the vectored form keeps the order of the array.
        let pieces =
            [IoVec::new(target.range().part(16 * 4096, 16 * 4096)), IoVec::new(target.range().part(0, 16 * 4096))];
        // SAFETY: the array lives until the request is submitted below.
        unsafe { ring.put_readv(&fd, &pieces, 4096, 2) };
        assert_eq!(finish(&mut ring), Completion { user_data: 2, result: Ok(32 * 4096) });
        assert_eq!(first_byte(target.range(), 16), first_byte(source.range(), 0));
        assert_eq!(first_byte(target.range(), 15), first_byte(source.range(), 31));
        ring.put_fsync(&fd, 3);
        assert_eq!(finish(&mut ring), Completion { user_data: 3, result: Ok(0) });
    }
}

#[test]
fn errors_come_as_results_of_their_request() {
    let fd = disk_file();
    file::allocate(&fd, 0, 8192).expect("space");
    let frame = frames(1);
    let mut ring = Ring::new(4, 8, SetupFlags::PLAIN).expect("io_uring");
    // A descriptor for reading only cannot be written; past the end of the file there is nothing to read.
    let read_only = Fd::open(c"/proc/self/stat", flags::READ, 0).expect("open");
    ring.put_write(&read_only, frame.range(), 0, 1);
    ring.put_read(&fd, frame.range(), 1 << 40, 2);
    ring.enter(2).expect("enter");
    let mut answers = [finish(&mut ring), finish(&mut ring)];
    answers.sort_by_key(|answer| answer.user_data);
    assert_eq!(answers[0].result, Err(Errno::EBADF));
    assert_eq!(answers[1].result, Ok(0));
}

#[test]
fn a_full_queue_says_so_and_completions_beyond_it_are_kept() {
    let mut ring = Ring::new(4, 4, SetupFlags::PLAIN).expect("io_uring");
    let mut taken = 0;
    for round in 0..4 {
        for place in 0..4 {
            ring.put_nop(round * 4 + place);
        }
        assert_eq!(ring.room(), 0);
        ring.enter(0).expect("enter");
    }
    // 16 answers, 4 places: the rest waits in the kernel and is flushed by the next calls.
    while taken < 16 {
        if let Some(answer) = ring.next_completion() {
            assert_eq!(answer, Completion { user_data: taken, result: Ok(0) });
            taken += 1;
        } else {
            ring.enter(1).expect("enter");
        }
    }
}

#[test]
fn the_ring_is_polled_beside_other_descriptors() {
    let fd = disk_file();
    file::allocate(&fd, 0, 4096).expect("space");
    for mode in MODES {
        let mut ring = Ring::new(4, 8, mode).expect("io_uring");
        let frame = frames(1);
        ring.put_read(&fd, frame.range(), 0, 9);
        ring.enter(0).expect("enter");
        let mut fds = [PollFd::new(ring.fd(), events::IN)];
        assert_eq!(poll(&mut fds, Some(5_000_000_000)), Ok(1), "{mode:?} wakes the poller");
        assert_eq!(finish(&mut ring), Completion { user_data: 9, result: Ok(4096) });
    }
}

#[test]
fn polls_fire_and_are_cancelled() {
    let (read, write) = pipe(0).expect("pipe");
    let mut ring = Ring::new(4, 8, SetupFlags::DEFER).expect("io_uring");
    ring.put_poll(&read, events::IN, 1);
    ring.enter(0).expect("enter");
    assert_eq!(ring.next_completion(), None);
    file::write_all(&write, b"x").expect("write");
    let seen = finish(&mut ring);
    assert_eq!((seen.user_data, seen.result), (1, Ok(1)));

    let (empty, _writer) = pipe(0).expect("pipe");
    ring.put_poll(&empty, events::IN, 2);
    ring.put_cancel(2, 3);
    ring.enter(2).expect("enter");
    let mut answers = [finish(&mut ring), finish(&mut ring)];
    answers.sort_by_key(|answer| answer.user_data);
    assert_eq!(answers[0].result, Err(Errno::ECANCELED));
    assert_eq!(answers[1].result, Ok(0));
}

#[test]
fn a_wait_ends_at_its_time() {
    let mut ring = Ring::new(1, 2, SetupFlags::PLAIN).expect("io_uring");
    let before = pagetide_sys::clock::now();
    assert_eq!(ring.enter_timeout(1, 3_000_000), Ok(0));
    assert!(pagetide_sys::clock::now() - before >= 3_000_000);
}
