//! What the primitives cost on this machine: `cargo bench -p pagetide-sys`. Medians over many turns, 99th percentile where a
//! single event is timed. Needs a full userfaultfd, and a disk under /var/tmp.

#![expect(clippy::print_stdout, reason = "a table for people")]

use core::sync::atomic::AtomicU32;

use pagetide_sys::fd::{Fd, PollFd, eventfd, events, poll};
use pagetide_sys::file::{self, IoVec, flags};
use pagetide_sys::maps::{MapsQuery, MapsText, NAME_BYTES};
use pagetide_sys::mem::{self, Advice, AnonOptions, ManagedRange, Mapping, PAGE_BYTES, Protection};
use pagetide_sys::pagemap::{Categories, Pagemap, Run};
use pagetide_sys::proc::StatmFile;
use pagetide_sys::thread::{self, CpuSet, Table};
use pagetide_sys::uffd::{Features, Modes, Msg, RawMsg, Reach, ReadAnswer, ReadMode, Uffd, Wake};
use pagetide_sys::uring::{Entry, Ring, SetupFlags};
use pagetide_sys::{clock, syscall};

fn main() {
    // `cargo test --all-targets` runs this program too, without the argument.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    let probe = pagetide_sys::probe::Probe::run();
    println!("kernel {} {}, {} CPUs", probe.kernel, probe.machine, probe.cpus);
    clocks();
    lists();
    moves();
    faults();
    disk();
}

fn frames(pages: usize) -> ManagedRange {
    let options = AnonOptions { protection: Protection::ReadWrite, populate: true, inherit: false };
    Mapping::anonymous(pages * PAGE_BYTES, options).expect("mmap").into_range()
}

/// Nanoseconds of one turn: the median of `rounds` rounds of `turns` turns.
fn per_turn(rounds: usize, turns: u32, mut work: impl FnMut()) -> u64 {
    let mut samples: Vec<u64> = (0..rounds)
        .map(|_| {
            let start = clock::now();
            for _ in 0..turns {
                work();
            }
            (clock::now() - start) / u64::from(turns)
        })
        .collect();
    samples.sort_unstable();
    samples[rounds / 2]
}

/// Median and 99th percentile.
fn spread(mut samples: Vec<u64>) -> (u64, u64) {
    samples.sort_unstable();
    (samples[samples.len() / 2], samples[samples.len() * 99 / 100])
}

fn row(name: &str, (median, p99): (u64, u64)) {
    println!("  {name:<58} {median:>8} ns  p99 {p99:>8} ns");
}

fn clocks() {
    println!("clock and call");
    let call = per_turn(9, 20_000, || {
        // SAFETY: gettid changes nothing.
        let _ = unsafe { syscall!(linux_raw_sys::general::__NR_gettid) };
    });
    let raw = per_turn(9, 20_000, || {
        core::hint::black_box(clock::now());
    });
    let coarse = per_turn(9, 20_000, || {
        core::hint::black_box(clock::now_coarse());
    });
    clock::init();
    let vdso = per_turn(9, 20_000, || {
        core::hint::black_box(clock::now());
    });
    println!("  gettid {call} ns, clock by call {raw} ns, coarse {coarse} ns, by the kernel's page {vdso} ns");
}

fn lists() {
    println!("sizes and lists");
    let statm = StatmFile::open_self().expect("statm");
    println!(
        "  statm read {} ns",
        per_turn(9, 2000, || {
            let _ = core::hint::black_box(statm.read());
        })
    );
    // 1000 mappings that do not merge: every second one may not be written.
    let many = frames(2000);
    for index in (0..2000).step_by(2) {
        mem::protect(many.page(index), Protection::Read).expect("mprotect");
    }
    let query = MapsQuery::open().expect("PROCMAP_QUERY");
    let mut buf = vec![0; 64 << 10];
    let mut count = 0u64;
    let text = per_turn(5, 1, || {
        count = 0;
        let mut text = MapsText::open(&mut buf).expect("maps");
        while text.next_vma().expect("a line").is_some() {
            count += 1;
        }
    });
    let mut name = [0; NAME_BYTES];
    let named = per_turn(5, 1, || {
        let mut at = 0;
        while let Some(vma) = query.at_or_after(at, &mut name).expect("an answer") {
            at = vma.end;
        }
    });
    let unnamed = per_turn(5, 1, || {
        let mut at = 0;
        while let Some(vma) = query.at_or_after_unnamed(at).expect("an answer") {
            at = vma.end;
        }
    });
    println!(
        "  per mapping of {count}: text {} ns, question {} ns, question without name {} ns",
        text / count,
        named / count,
        unnamed / count
    );
    mem::protect(many, Protection::ReadWrite).expect("mprotect");
    let pagemap = Pagemap::open().expect("pagemap");
    let large = frames(16384);
    let mut runs = vec![Run::default(); 64];
    let scan = per_turn(5, 4, || {
        let scanned = pagemap.scan(large, Categories::PRESENT, &mut runs).expect("scan");
        assert_eq!(scanned.walked_to, large.end());
    });
    let table = per_turn(5, 4, || {
        let scanned = pagemap.read(large, Categories::PRESENT, &mut runs).expect("table");
        assert_eq!(scanned.walked_to, large.end());
    });
    println!("  per page: scan {:.1} ns, table {:.1} ns", tenths(scan, 16384), tenths(table, 16384));
}

fn tenths(total: u64, count: u64) -> f64 {
    f64::from(u32::try_from(total * 10 / count).unwrap_or(u32::MAX)) / 10.0
}

fn full_uffd(mode: ReadMode, features: Features) -> Uffd {
    let (uffd, _) = Uffd::open(Reach::Full, mode).expect("a full userfaultfd");
    uffd.handshake(features).expect("MOVE");
    uffd
}

fn moves() {
    println!("moving and copying runs, per page");
    let uffd = full_uffd(ReadMode::NonBlocking, Features::MOVE);
    let (region, staging) = (frames(4096), frames(4096));
    mem::advise(staging, Advice::DontNeed).expect("madvise");
    uffd.register(region, Modes::MISSING).expect("register");
    uffd.register(staging, Modes::MISSING).expect("register");
    for pages in [1, 8, 32, 64, 512] {
        let bytes = pages * PAGE_BYTES;
        let mut out = Vec::new();
        let mut back = Vec::new();
        for _ in 0..5 {
            let pass = |to: ManagedRange, from: ManagedRange| {
                let start = clock::now();
                for offset in (0..to.len()).step_by(bytes) {
                    let answer = uffd.move_pages(to.part(offset, bytes), from.part(offset, bytes), false, Wake::Now);
                    assert!(answer.is_complete());
                }
                (clock::now() - start) / 4096
            };
            out.push(pass(staging, region));
            back.push(pass(region, staging));
        }
        println!("  move, runs of {pages:>3}: out {:>5} ns, in {:>5} ns", spread(out).0, spread(back).0);
    }
    let source = frames(512);
    for pages in [1, 32, 512] {
        let bytes = pages * PAGE_BYTES;
        let mut samples = Vec::new();
        for _ in 0..5 {
            let start = clock::now();
            for offset in (0..512 * PAGE_BYTES).step_by(bytes) {
                let answer = uffd.copy(staging.part(offset, bytes), source.part(offset, bytes), false, Wake::Now);
                assert!(answer.is_complete());
            }
            samples.push((clock::now() - start) / 512);
            mem::advise(staging.part(0, 512 * PAGE_BYTES), Advice::DontNeed).expect("madvise");
        }
        println!("  copy, runs of {pages:>3}:     {:>5} ns", spread(samples).0);
    }
}

/// How the handler waits for messages.
#[derive(Clone, Copy, Debug)]
enum Wait {
    Blocking,
    Poll(usize),
    /// A lasting poll in a ring, then `read`.
    RingPoll,
    /// The message is read through the ring.
    RingRead,
}

/// How the handler answers.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Move,
    Copy,
}

struct Handler {
    uffd: Uffd,
    region: ManagedRange,
    source: ManagedRange,
    wait: Wait,
    answer: Answer,
    others: [Fd; 3],
    cpu: Option<usize>,
}

extern "C" fn handle(arg: *mut u8) -> ! {
    // SAFETY: `faults_with` leaks the handler's description.
    let handler = unsafe { &*arg.cast::<Handler>() };
    if let Some(cpu) = handler.cpu {
        thread::set_affinity(0, &CpuSet::one(cpu)).expect("a CPU");
    }
    match handler.wait {
        Wait::Blocking => loop {
            handler.read_and_answer();
        },
        Wait::Poll(nr_fds) => loop {
            let mut fds = [PollFd::new(handler.uffd.fd(), events::IN), PollFd::none(), PollFd::none(), PollFd::none()];
            for (place, fd) in fds[1..nr_fds].iter_mut().zip(&handler.others) {
                *place = PollFd::new(fd, events::IN);
            }
            poll(&mut fds[..nr_fds], None).expect("poll");
            handler.read_and_answer();
        },
        Wait::RingPoll => {
            let ring = Ring::new(8, 16, SetupFlags::DEFER).expect("io_uring");
            ring.submissions().put_poll_multi(handler.uffd.fd(), events::IN, 1);
            loop {
                ring.submissions().enter(1).expect("enter");
                while let Some(answer) = ring.next_completion() {
                    assert!(answer.more);
                    while handler.read_and_answer() {}
                }
            }
        }
        Wait::RingRead => {
            let ring = Ring::new(8, 16, SetupFlags::DEFER).expect("io_uring");
            let buffer = frames(1);
            loop {
                ring.submissions().put_read(handler.uffd.fd(), buffer.part(0, size_of::<RawMsg>()), u64::MAX, 1);
                ring.submissions().enter(1).expect("enter");
                while let Some(answer) = ring.next_completion() {
                    assert!(answer.result.is_ok_and(|len| len as usize == size_of::<RawMsg>()));
                    // SAFETY: our own memory, which the kernel has filled with a message and writes no more.
                    let mut message = unsafe { buffer.as_ptr().cast::<RawMsg>().read() };
                    handler.answer_one(message.take());
                }
            }
        }
    }
}

impl Handler {
    fn read_and_answer(&self) -> bool {
        let mut messages = [RawMsg::EMPTY];
        let read = matches!(self.uffd.read(&mut messages), Ok(ReadAnswer::Read(1)));
        if read {
            self.answer_one(messages[0].take());
        }
        read
    }

    fn answer_one(&self, message: Msg) {
        let Msg::PageFault { addr, .. } = message else { return };
        let offset = (addr - self.region.start()) & !(PAGE_BYTES - 1);
        let (to, from) = (self.region.part(offset, PAGE_BYTES), self.source.part(offset, PAGE_BYTES));
        let answer = match self.answer {
            Answer::Move => self.uffd.move_pages(to, from, false, Wake::Now),
            Answer::Copy => self.uffd.copy(to, from, false, Wake::Now),
        };
        assert!(answer.is_complete(), "{answer:?}");
        if offset + PAGE_BYTES == self.region.len() {
            thread::exit_thread();
        }
    }
}

fn faults_with(wait: Wait, answer: Answer, cpus: Option<(usize, usize)>) -> (u64, u64) {
    const PAGES: usize = 20_000;
    let mode = if matches!(wait, Wait::Blocking) { ReadMode::Blocking } else { ReadMode::NonBlocking };
    let uffd = full_uffd(mode, Features::MOVE);
    let (region, source) = (frames(PAGES), frames(PAGES));
    mem::advise(region, Advice::DontNeed).expect("madvise");
    uffd.register(region, Modes::MISSING).expect("register");
    let others = [eventfd(0), eventfd(0), eventfd(0)].map(|event| event.expect("eventfd"));
    let cpu = cpus.map(|(_, cpu)| cpu);
    let handler: &'static Handler = Box::leak(Box::new(Handler { uffd, region, source, wait, answer, others, cpu }));
    let alive: &'static AtomicU32 = Box::leak(Box::new(AtomicU32::new(1)));
    let arg = core::ptr::from_ref(handler).cast_mut().cast();
    // SAFETY: the stack and the description are leaked; `handle` keeps to raw calls.
    let running = unsafe { thread::spawn(frames(16), alive, Table::Shared, handle, arg) }.expect("clone");
    let before = thread::affinity(0).expect("affinity");
    if let Some((cpu, _)) = cpus {
        thread::set_affinity(0, &CpuSet::one(cpu)).expect("a CPU");
    }
    let mut samples = Vec::with_capacity(PAGES);
    for index in 0..PAGES {
        let page = region.page(index).as_ptr();
        let start = clock::now();
        // SAFETY: our own memory; the read sleeps until the handler has answered.
        unsafe { page.read_volatile() };
        samples.push(clock::now() - start);
    }
    running.join();
    thread::set_affinity(0, &before).expect("affinity");
    for range in [region, source] {
        // SAFETY: the handler has ended, and nobody else knows the range.
        unsafe { mem::unmap(range) }.expect("munmap");
    }
    spread(samples)
}

fn faults() {
    println!("one fault, timed in the faulting thread (two clock calls included)");
    for (place, cpus) in [("same CPU", Some((0, 0))), ("two CPUs", Some((0, 1))), ("free", None)] {
        row(&format!("blocking read, move, {place}"), faults_with(Wait::Blocking, Answer::Move, cpus));
        row(&format!("blocking read, copy, {place}"), faults_with(Wait::Blocking, Answer::Copy, cpus));
        row(&format!("ppoll of 1, move, {place}"), faults_with(Wait::Poll(1), Answer::Move, cpus));
        row(&format!("ppoll of 4, move, {place}"), faults_with(Wait::Poll(4), Answer::Move, cpus));
        row(&format!("lasting poll in a ring, move, {place}"), faults_with(Wait::RingPoll, Answer::Move, cpus));
        row(&format!("read through a ring, move, {place}"), faults_with(Wait::RingRead, Answer::Move, cpus));
    }
}

const FILE_PAGES: u64 = 65_536;

fn disk() {
    println!("direct reads of a 256 MiB file under /var/tmp, random, one at a time");
    let open = flags::READ_WRITE | flags::UNNAMED | flags::DIRECT;
    let file = Fd::open(c"/var/tmp", open, 0o600).expect("an unnamed file");
    file::allocate(&file, 0, FILE_PAGES * 4096).expect("space");
    let frame = frames(256);
    for start in (0..FILE_PAGES).step_by(256) {
        file::pwritev(&file, &[IoVec::new(frame)], start * 4096, 0).expect("write");
    }
    for pages in [1usize, 32] {
        let range = frame.part(0, pages * PAGE_BYTES);
        let time = |work: &mut dyn FnMut(u64)| {
            let mut random = 88_172_645_463_325_252u64;
            let samples = (0..3000).map(|_| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let offset = random % (FILE_PAGES - 32) * 4096;
                let start = clock::now();
                work(offset);
                clock::now() - start
            });
            spread(samples.collect())
        };
        let pieces = [IoVec::new(range)];
        for _ in 0..2 {
            let plain = time(&mut |offset| {
                file::preadv(&file, &pieces, offset, 0).expect("read");
            });
            row(&format!("preadv2, {pages} pages"), plain);
        }
        for (name, setup) in [("plain", SetupFlags::PLAIN), ("coop", SetupFlags::COOP), ("defer", SetupFlags::DEFER)] {
            let ring = Ring::new(8, 16, setup).expect("io_uring");
            let waited = time(&mut |offset| {
                ring.submissions().put_read(&file, range, offset, 1);
                ring.submissions().enter(1).expect("enter");
                assert!(ring.next_completion().is_some_and(|answer| answer.result.is_ok()));
            });
            row(&format!("io_uring {name}, wait in enter, {pages} pages"), waited);
            let event = eventfd(0).expect("eventfd");
            let own = setup != SetupFlags::DEFER;
            if !own {
                ring.set_event(&event).expect("register");
            }
            let polled = time(&mut |offset| {
                ring.submissions().put_read(&file, range, offset, 1);
                ring.submissions().enter(0).expect("enter");
                finish_by_poll(&ring, if own { None } else { Some(&event) });
            });
            let what = if own { "the ring" } else { "its event" };
            row(&format!("io_uring {name}, ppoll on {what}, {pages} pages"), polled);
        }
        let separate: Vec<IoVec> = (0..pages).map(|index| IoVec::new(range.page((index * 7) % pages))).collect();
        let ring = Ring::new(8, 16, SetupFlags::DEFER).expect("io_uring");
        let vectored = time(&mut |offset| {
            // SAFETY: the array outlives the loop.
            ring.submissions().put(unsafe { Entry::readv(&file, &separate, offset, 1) });
            ring.submissions().enter(1).expect("enter");
            assert!(ring.next_completion().is_some_and(|answer| answer.result.is_ok()));
        });
        row(&format!("io_uring defer, readv of {pages} separate pieces"), vectored);
    }
}

fn finish_by_poll(ring: &Ring, event: Option<&Fd>) {
    loop {
        if let Some(answer) = ring.next_completion() {
            assert!(answer.result.is_ok());
            return;
        }
        let mut fds = [PollFd::new(event.unwrap_or(ring.fd()), events::IN)];
        poll(&mut fds, None).expect("poll");
        if let Some(event) = event {
            file::take_event(event).expect("read");
            ring.submissions().enter(0).expect("enter");
        }
    }
}
