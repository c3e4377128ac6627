//! Tests of the ring's engine.

use std::sync::atomic::{AtomicU32, Ordering};

use pagetide_core::types::{DeviceId, IoId, PageIdx, PageRange, SlotIdx};
use pagetide_sys::file::flags;
use pagetide_sys::mem::{Mapping, PAGE_BYTES};

use super::*;
use crate::io::{PagePart, Requests, Transfer};

const PAGES: u32 = 120;

/// A file whose pages say which they are, past the page cache if its file system lets us.
fn numbered_file() -> Fd {
    let place = std::env::current_exe().expect("our own path").parent().expect("a directory").to_owned();
    let place = std::ffi::CString::new(place.as_os_str().as_encoded_bytes()).expect("no zero byte");
    let unnamed = flags::READ_WRITE | flags::UNNAMED;
    let file = Fd::open_at(None, &place, unnamed | flags::DIRECT, 0o600)
        .or_else(|_| Fd::open_at(None, &place, unnamed, 0o600))
        .expect("a file beside the test");
    let memory = Mapping::plain(PAGES as usize * PAGE_BYTES, PAGE_BYTES).expect("memory");
    for page in 0..PAGES {
        word(&memory, page).store(page + 1, Ordering::Relaxed);
    }
    let all = [IoVec::new(memory.range())];
    assert_eq!(file::pwritev(&file, &all, 0, 0), Ok(memory.range().len()));
    file
}

fn word(memory: &Mapping, page: u32) -> &AtomicU32 {
    let pointer = memory.range().part(page as usize * PAGE_BYTES, PAGE_BYTES).as_ptr().cast();
    // SAFETY: the first word of a page of the test's own memory, which lives as long as the reference.
    unsafe { AtomicU32::from_ptr(pointer) }
}

/// One request for each page, begun and passed on.
fn begin(engine: &mut UringEngine, requests: &mut Requests, file: &Fd, direction: Direction, memory: &Mapping) {
    for page in 0..PAGES {
        let (io, device, slot) = (IoId(page), DeviceId(0), SlotIdx(page));
        // Every second slot first, so that no two pages are neighbours.
        let slot = SlotIdx(if slot.0 < PAGES / 2 { slot.0 * 2 } else { (slot.0 - PAGES / 2) * 2 + 1 });
        requests.push(Transfer { direction, io, device, slot, range: PageRange::one(PageIdx(slot.0)) });
        begin_next(engine, requests, file, memory);
    }
    engine.flush();
}

/// The request that waits, of one page.
fn begin_next(engine: &mut UringEngine, requests: &mut Requests, file: &Fd, memory: &Mapping) {
    let (token, _) = requests.begin(false).expect("an entry is free");
    let (page, slot, io) = requests.next_page(token, |_| false).expect("a page");
    requests.add(token, slot, PagePart { page, io, sum: 0 });
    let part = memory.range().part(page.0 as usize * PAGE_BYTES, PAGE_BYTES);
    let offset = u64::from(slot.0) * PAGE_BYTES as u64;
    requests.fill(token, (file.raw(), offset), std::iter::once(part));
    engine.submit(token, requests.get(token));
}

fn expect_all_done(engine: &mut UringEngine, requests: &mut Requests) {
    assert!(file::take_event(engine.event()).is_ok(), "the results are told of");
    let mut count = 0;
    engine.reap(&mut |token, result| {
        assert_eq!(result, Ok(PAGE_BYTES));
        requests.end(token);
        count += 1;
        true
    });
    assert_eq!(count, PAGES, "each request ends once");
}

fn give_up_with_requests_under_way(make: fn() -> Result<UringEngine, Refused>) {
    clock::init();
    match make() {
        Ok(engine) => go_on_without_ring(engine),
        Err(_) => eprintln!("skipped: io_uring is refused here"),
    }
}

fn go_on_without_ring(mut engine: UringEngine) {
    let file = numbered_file();
    let mut requests = Requests::new();
    let memory = Mapping::plain(PAGES as usize * PAGE_BYTES, PAGE_BYTES).expect("memory");
    let number = engine.event().raw();
    let signs = engine.signs();
    begin(&mut engine, &mut requests, &file, Direction::Read, &memory);
    engine.give_up_ring(Errno::EPERM);
    assert_eq!(engine.event().raw(), number, "who sleeps on the number goes on");
    // Who looks may do so when the ring is no more.
    let _ = signs.map(|signs| signs.are_there());
    expect_all_done(&mut engine, &mut requests);
    for page in 0..PAGES {
        assert_eq!(word(&memory, page).load(Ordering::Relaxed), page + 1);
        word(&memory, page).store(page + 1001, Ordering::Relaxed);
    }
    // And from now on without a ring.
    begin(&mut engine, &mut requests, &file, Direction::Write, &memory);
    expect_all_done(&mut engine, &mut requests);
    begin(&mut engine, &mut requests, &file, Direction::Read, &memory);
    expect_all_done(&mut engine, &mut requests);
    for page in 0..PAGES {
        assert_eq!(word(&memory, page).load(Ordering::Relaxed), page + 1001);
    }
}

#[test]
fn a_ring_of_one_thread_is_given_up_with_requests_under_way() {
    give_up_with_requests_under_way(UringEngine::new);
}

#[test]
fn a_ring_of_several_threads_is_given_up_with_requests_under_way() {
    give_up_with_requests_under_way(UringEngine::for_threads);
}

#[test]
fn every_result_is_seen_without_the_engine() {
    clock::init();
    let Ok(mut engine) = UringEngine::unmapped().and_then(UringEngine::for_tables) else {
        eprintln!("skipped: io_uring is refused here");
        return;
    };
    let signs = engine.signs().expect("it has a ring for ever");
    let (file, mut requests) = (numbered_file(), Requests::new());
    let memory = Mapping::plain(PAGES as usize * PAGE_BYTES, PAGE_BYTES).expect("memory");
    engine.set_caller(thread::gettid());
    assert!(!signs.are_there(), "nothing was begun");
    begin(&mut engine, &mut requests, &file, Direction::Read, &memory);
    let (mut left, end) = (PAGES, clock::now() + 10_000_000_000);
    while left > 0 {
        assert!(clock::now() < end, "of {left} requests nothing is seen");
        if signs.are_there() {
            engine.reap(&mut |token, result| {
                assert_eq!(result, Ok(PAGE_BYTES));
                requests.end(token);
                left -= 1;
                true
            });
        }
    }
    assert!(!signs.are_there(), "all was taken");
}

/// The program's table has it for ever: nothing hangs up, which was waited for.
#[test]
fn a_ring_that_another_table_has_open_is_given_up_with_requests_under_way() {
    clock::init();
    let made = UringEngine::unmapped().and_then(|ring| {
        let other = ring.fd().dup_high(100)?;
        Ok((other, UringEngine::for_tables(ring)?))
    });
    let Ok((_other, engine)) = made else {
        eprintln!("skipped: io_uring is refused here");
        return;
    };
    go_on_without_ring(engine);
}

#[test]
fn threads_pass_on_their_reads_without_the_engine_and_are_told_of_their_own() {
    const THREADS: u32 = 4;
    const ROUNDS: u32 = 300;
    clock::init();
    let Ok(engine) = UringEngine::for_threads() else {
        eprintln!("skipped: io_uring is refused here");
        return;
    };
    let (file, memory) = (numbered_file(), Mapping::plain(PAGES as usize * PAGE_BYTES, PAGE_BYTES).expect("memory"));
    let shared = std::sync::Mutex::new((engine, Requests::new()));
    let lock = || shared.lock().expect("no thread has panicked");
    let read = |thread: u32| {
        let caller = pagetide_sys::thread::gettid();
        for round in 0..ROUNDS {
            let page = thread + THREADS * (round % (PAGES / THREADS));
            word(&memory, page).store(0, Ordering::Relaxed);
            let mut held = lock();
            let (engine, requests) = &mut *held;
            let (slot, range) = (SlotIdx(page), PageRange::one(PageIdx(page)));
            let direction = Direction::Read;
            requests.push(Transfer { direction, io: IoId(page), device: DeviceId(0), slot, range });
            begin_next(engine, requests, &file, &memory);
            assert!(engine.has_unsubmitted());
            let passing = engine.begin_passing(caller).expect("a request waits");
            assert!(engine.has_begun(caller), "it is to stay from now on");
            drop(held);
            let passed = passing.pass_on();
            assert!(passed.left().is_empty(), "the kernel has taken it: {:?}", passed.answer());
            lock().0.end_passing(&passed);
            loop {
                let mut held = lock();
                let (engine, requests) = &mut *held;
                engine.reap(&mut |token, result| {
                    assert_eq!(result, Ok(PAGE_BYTES));
                    requests.end(token);
                    true
                });
                if !engine.has_begun(caller) {
                    break;
                }
                drop(held);
                std::thread::yield_now();
            }
            assert_eq!(word(&memory, page).load(Ordering::Relaxed), page + 1);
        }
    };
    std::thread::scope(|scope| (0..THREADS).for_each(|thread| drop(scope.spawn(move || read(thread)))));
    assert_eq!(lock().1.in_flight(), 0);
}

#[test]
fn a_ring_is_not_given_up_while_a_thread_passes_requests_on() {
    clock::init();
    let Ok(mut engine) = UringEngine::for_threads() else {
        eprintln!("skipped: io_uring is refused here");
        return;
    };
    let (file, memory) = (numbered_file(), Mapping::plain(PAGES as usize * PAGE_BYTES, PAGE_BYTES).expect("memory"));
    let mut requests = Requests::new();
    let range = PageRange::one(PageIdx(3));
    let transfer = Transfer { direction: Direction::Read, io: IoId(0), device: DeviceId(0), slot: SlotIdx(3), range };
    requests.push(transfer);
    begin_next(&mut engine, &mut requests, &file, &memory);
    let passing = engine.begin_passing(1).expect("a request waits");
    assert!(!engine.heed(1, Err(Errno::EPERM)));
    assert!(engine.ring.is_some(), "a thread has it in its hands");
    engine.end_passing(&passing.pass_on());
    assert!(!engine.heed(1, Err(Errno::EPERM)));
    assert!(engine.ring.is_none());
    let mut results = 0;
    engine.reap(&mut |token, result| {
        assert_eq!(result, Ok(PAGE_BYTES));
        requests.end(token);
        results += 1;
        true
    });
    assert_eq!((results, word(&memory, 3).load(Ordering::Relaxed)), (1, 4));
}
