//! A device that fails, between the pager and the real engine: reads and writes that fail, end short, find no space or bring
//! other bytes. What a program may see is the right bytes, an error, or SIGBUS with a message; never other bytes, never a hang.

use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pagetide_sys::file;

use pagetide_sys::fd::Fd;

use super::*;
use crate::io::{Direction, Passed, Passing, REQUESTS, Request, WATCHED};

/// What the device does while it is armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    ReadFails,
    ReadIsShort,
    OtherBytes,
    WriteFails,
    WriteIsShort,
    NoSpace,
    Quota,
}

const FAULTS: [Fault; 7] = [
    Fault::ReadFails,
    Fault::ReadIsShort,
    Fault::OtherBytes,
    Fault::WriteFails,
    Fault::WriteIsShort,
    Fault::NoSpace,
    Fault::Quota,
];

/// One test at a time: what the device does is one value.
pub(super) static ALONE: Mutex<()> = Mutex::new(());
static FAULT: AtomicUsize = AtomicUsize::new(0);
pub(super) static ARMED: AtomicBool = AtomicBool::new(false);
/// Times that the fault was made.
pub(super) static MADE: AtomicUsize = AtomicUsize::new(0);

#[derive(Debug)]
struct FaultyEngine {
    inner: Box<dyn Engine>,
    directions: [Option<Direction>; REQUESTS],
}

pub(super) fn faulty(inner: Box<dyn Engine>) -> Box<dyn Engine> {
    Box::new(FaultyEngine { inner, directions: [None; REQUESTS] })
}

fn fault_of(direction: Direction) -> Option<Fault> {
    let fault = FAULTS[FAULT.load(Ordering::SeqCst)];
    let is_its = match fault {
        Fault::ReadFails | Fault::ReadIsShort | Fault::OtherBytes => direction == Direction::Read,
        Fault::WriteFails | Fault::WriteIsShort | Fault::NoSpace | Fault::Quota => direction == Direction::Write,
    };
    (is_its && ARMED.load(Ordering::SeqCst)).then_some(fault)
}

/// Direct I/O wants aligned memory.
#[repr(align(4096))]
struct Garbage([u8; PAGE_BYTES]);

static GARBAGE: Garbage = Garbage([0x5a; PAGE_BYTES]);

impl Engine for FaultyEngine {
    fn submit(&mut self, token: u32, request: &Request) {
        self.directions[token as usize] = Some(request.direction);
        if fault_of(request.direction) == Some(Fault::OtherBytes) {
            // SAFETY: the swap file is open while its store lives.
            let file = std::mem::ManuallyDrop::new(unsafe { Fd::from_raw(request.fd) });
            file::pwrite(&file, &GARBAGE.0, request.offset).expect("the swap file can be written");
            MADE.fetch_add(1, Ordering::SeqCst);
        }
        self.inner.submit(token, request);
    }

    fn flush(&mut self) {
        self.inner.flush();
    }

    fn has_unsubmitted(&self) -> bool {
        self.inner.has_unsubmitted()
    }

    fn begin_passing(&mut self, caller: i32) -> Option<Passing> {
        self.inner.begin_passing(caller)
    }

    fn end_passing(&mut self, passed: &Passed) {
        self.inner.end_passing(passed);
    }

    fn reap(&mut self, done: &mut dyn FnMut(u32, Result<usize, Errno>) -> bool) {
        let directions = &self.directions;
        self.inner.reap(&mut |token, result| {
            let direction = directions[token as usize].expect("it was submitted");
            let result = match fault_of(direction) {
                None | Some(Fault::OtherBytes) => result,
                Some(fault) => {
                    MADE.fetch_add(1, Ordering::SeqCst);
                    match fault {
                        Fault::ReadIsShort | Fault::WriteIsShort => result.map(|bytes| bytes / 2),
                        Fault::NoSpace => Err(Errno::ENOSPC),
                        Fault::Quota => Err(Errno::EDQUOT),
                        Fault::ReadFails | Fault::WriteFails | Fault::OtherBytes => Err(Errno::EIO),
                    }
                }
            };
            done(token, result)
        });
    }

    fn event(&self) -> &Fd {
        self.inner.event()
    }

    fn set_caller(&mut self, thread: i32) {
        self.inner.set_caller(thread);
    }

    fn has_begun(&self, thread: i32) -> bool {
        self.inner.has_begun(thread)
    }

    fn wait(&mut self, watched: [&Fd; WATCHED], timeout_ns: u64) -> [bool; WATCHED] {
        self.inner.wait(watched, timeout_ns)
    }
}

pub(super) const MIB: usize = 1 << 20;

fn pool(engine: EngineChoice, fault: Fault) -> Pool {
    choose(fault);
    builder(4 * MIB, engine).build_with(faulty).expect("a pool")
}

/// The device does this when it is armed.
pub(super) fn choose(fault: Fault) {
    ARMED.store(false, Ordering::SeqCst);
    MADE.store(0, Ordering::SeqCst);
    let index = FAULTS.iter().position(|other| *other == fault).expect("it is in the list");
    FAULT.store(index, Ordering::SeqCst);
}

pub(super) fn builder(budget: usize, engine: EngineChoice) -> PoolBuilder {
    let place = std::env::current_exe().expect("our own path").parent().expect("a directory").to_owned();
    Pool::builder(budget as u64).swap(place, 64 * MIB as u64).floor(0).engine(engine)
}

pub(super) fn engines() -> Vec<EngineChoice> {
    let mut engines = vec![EngineChoice::Threads];
    if UringEngine::for_threads().is_ok() {
        engines.push(EngineChoice::Uring);
    } else {
        eprintln!("skipped: io_uring is refused here");
    }
    engines
}

pub(super) fn word(region: &Region, page: usize) -> *mut u64 {
    assert!(page * PAGE_BYTES < region.len(), "a page of the region");
    // SAFETY: inside the region.
    unsafe { region.as_ptr().add(page * PAGE_BYTES) }.cast()
}

pub(super) fn put(region: &Region, page: usize, value: u64) {
    // SAFETY: inside the region, used by one thread.
    unsafe { word(region, page).write_volatile(value) };
}

pub(super) fn get(region: &Region, page: usize) -> u64 {
    // SAFETY: as in `put`.
    unsafe { word(region, page).read_volatile() }
}

/// A page through a hold, which says what is wrong instead of ending the process.
pub(super) fn held<T>(region: &Region, page: usize, use_it: impl FnOnce() -> T) -> Result<T, ErrorKind> {
    let hold = region.hold(page * PAGE_BYTES..(page + 1) * PAGE_BYTES).map_err(|error| error.kind())?;
    let value = use_it();
    drop(hold);
    Ok(value)
}

/// Reads that fail poison their pages, and nothing else; what is discarded can be used again.
fn reads(engine: EngineChoice, fault: Fault) {
    let pool = pool(engine, fault);
    let region = pool.region(16 * MIB).expect("a region");
    let pages = region.len() / PAGE_BYTES;
    (0..pages).for_each(|page| put(&region, page, page as u64 + 1));
    ARMED.store(true, Ordering::SeqCst);
    let mut lost = Vec::new();
    for page in 0..64 {
        match held(&region, page, || get(&region, page)) {
            Ok(value) => assert_eq!(value, page as u64 + 1, "{fault:?}: other bytes"),
            Err(kind) => {
                assert_eq!(kind, ErrorKind::Io);
                lost.push(page);
            }
        }
    }
    ARMED.store(false, Ordering::SeqCst);
    assert!(!lost.is_empty() && MADE.load(Ordering::SeqCst) > 0, "{fault:?}: the device never failed");
    for page in 0..pages {
        match held(&region, page, || get(&region, page)) {
            Ok(value) => assert_eq!(value, page as u64 + 1, "{fault:?}: other bytes"),
            Err(kind) => assert_eq!(kind, ErrorKind::Io, "page {page}"),
        }
    }
    for &page in &lost {
        assert!(held(&region, page, || ()).is_err(), "what is lost stays lost");
        region.discard(page * PAGE_BYTES..(page + 1) * PAGE_BYTES).expect("it is not held");
        assert_eq!(held(&region, page, || get(&region, page)), Ok(0), "and is zero when it was discarded");
    }
}

/// Writes that fail lose nothing: the page stays, or there is no room for another.
fn writes(engine: EngineChoice, fault: Fault) {
    let pool = pool(engine, fault);
    let region = pool.region(16 * MIB).expect("a region");
    let pages = region.len() / PAGE_BYTES;
    ARMED.store(true, Ordering::SeqCst);
    let mut written = vec![0; pages];
    for (page, version) in written.iter_mut().enumerate() {
        match held(&region, page, || put(&region, page, page as u64 + 1)) {
            Ok(()) => *version = page as u64 + 1,
            Err(kind) => {
                assert_eq!(kind, ErrorKind::NoSwapSpace, "page {page}");
                break;
            }
        }
    }
    assert!(MADE.load(Ordering::SeqCst) > 0, "{fault:?}: the device never failed");
    ARMED.store(false, Ordering::SeqCst);
    // A device that was given up gets no new slots any more, and what does not fit is refused.
    for (page, &version) in written.iter().enumerate() {
        match held(&region, page, || get(&region, page)) {
            Ok(value) => assert_eq!(value, version, "{fault:?}: page {page}"),
            Err(kind) => assert_eq!((kind, version), (ErrorKind::NoSwapSpace, 0), "page {page}"),
        }
    }
}

#[test]
fn a_failing_read_is_an_error_and_never_other_bytes() {
    let _alone = ALONE.lock().expect("no test panics here");
    engines().into_iter().for_each(|engine| reads(engine, Fault::ReadFails));
}

#[test]
fn a_short_read_is_an_error_and_never_other_bytes() {
    let _alone = ALONE.lock().expect("no test panics here");
    engines().into_iter().for_each(|engine| reads(engine, Fault::ReadIsShort));
}

#[test]
fn a_corrupted_page_is_an_error_and_never_other_bytes() {
    let _alone = ALONE.lock().expect("no test panics here");
    engines().into_iter().for_each(|engine| reads(engine, Fault::OtherBytes));
}

#[test]
fn failing_writes_lose_nothing() {
    let _alone = ALONE.lock().expect("no test panics here");
    engines().into_iter().for_each(|engine| writes(engine, Fault::WriteFails));
}

#[test]
fn short_writes_lose_nothing() {
    let _alone = ALONE.lock().expect("no test panics here");
    engines().into_iter().for_each(|engine| writes(engine, Fault::WriteIsShort));
}

#[test]
fn a_device_without_space_loses_nothing() {
    let _alone = ALONE.lock().expect("no test panics here");
    engines().into_iter().for_each(|engine| writes(engine, Fault::NoSpace));
}

#[test]
fn a_quota_that_is_reached_at_a_write_loses_nothing() {
    let _alone = ALONE.lock().expect("no test panics here");
    engines().into_iter().for_each(|engine| writes(engine, Fault::Quota));
}

/// Names the fault that a child meets.
const CASE: &str = "PAGETIDE_FAULT_CASE";

/// Does nothing but in a child: touches lost pages as a program does.
#[test]
fn a_lost_page_in_a_child() {
    if std::env::var_os(CASE).is_none() {
        return;
    }
    let pool = pool(EngineChoice::Auto, Fault::OtherBytes);
    let region = pool.region(16 * MIB).expect("a region");
    let pages = region.len() / PAGE_BYTES;
    (0..pages).for_each(|page| put(&region, page, page as u64 + 1));
    ARMED.store(true, Ordering::SeqCst);
    (0..pages).for_each(|page| assert_eq!(get(&region, page), page as u64 + 1));
}

#[test]
fn touching_a_corrupted_page_is_sigbus_and_a_message() {
    let mut child = Command::new(std::env::current_exe().expect("our own path"));
    child.args(["--exact", "pool::faults::a_lost_page_in_a_child", "--nocapture"]).env(CASE, "1");
    let output = child.output().expect("the child starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(7), "{:?} {text}", output.status);
    assert!(text.contains("cannot be read back from the swap file"), "{text}");
}
