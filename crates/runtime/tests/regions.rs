//! Regions of a pool on the real kernel, with both engines: content under threads, holding, discarding, foreign faults, bad
//! arguments, users without privilege, and what is left behind.
//!
//! What ends a process, or needs another user, runs in a child: this test program again, with the case in its environment.

use std::io::{Read as _, Seek as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

use pagetide::{EngineChoice, ErrorKind, Pool, PoolBuilder, Region};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
const ENGINES: [EngineChoice; 2] = [EngineChoice::Uring, EngineChoice::Threads];
/// Names the case that a child runs.
const CASE: &str = "PAGETIDE_CASE";
const SIGBUS: i32 = 7;
const SIGABRT: i32 = 6;

/// A directory on a disk: /tmp may lie in memory.
fn place() -> PathBuf {
    std::env::var_os("PAGETIDE_SWAP_PLACE").map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from)
}

fn builder(budget: usize) -> PoolBuilder {
    Pool::builder(budget as u64).swap(place(), 256 * MIB as u64).floor(0)
}

/// A pool, or `None` (said) where this machine has no io_uring.
fn pool(budget: usize, engine: EngineChoice) -> Option<Pool> {
    match builder(budget).engine(engine).build() {
        Err(error) if error.kind() == ErrorKind::Unsupported && engine == EngineChoice::Uring => {
            eprintln!("skipped: {error}");
            None
        }
        built => Some(built.expect("a pool")),
    }
}

fn word(region: &Region, page: usize, index: usize) -> *mut u64 {
    assert!(page * PAGE < region.len() && index < PAGE / 8);
    // SAFETY: inside the region.
    unsafe { region.as_ptr().add(page * PAGE + index * 8).cast() }
}

fn put(region: &Region, page: usize, index: usize, value: u64) {
    // SAFETY: inside the region; the tests share no word between threads without a lock.
    unsafe { word(region, page, index).write_volatile(value) };
}

fn get(region: &Region, page: usize, index: usize) -> u64 {
    // SAFETY: as in `put`.
    unsafe { word(region, page, index).read_volatile() }
}

fn counter(pool: &Pool, name: &str) -> u64 {
    let found = pool.vmstat().into_iter().find(|(counter, _)| *counter == name);
    found.expect("the counter exists").1
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).expect("below a usize")
    }
}

/// The first and the last word of a page say which page and which version it is.
fn check(region: &Region, page: usize, version: u64) {
    let expected = if version == 0 { 0 } else { (page as u64) << 32 | version };
    for index in [0, 511] {
        assert_eq!(get(region, page, index), expected, "page {page} word {index} version {version}");
    }
}

/// Threads write and check pages in random order under an eighth of the memory. A lock per page keeps its version.
fn many_threads(pool: &Pool, bytes: usize, operations: usize) {
    let region = pool.region(bytes).expect("a region");
    let pages = bytes / PAGE;
    let versions: Vec<std::sync::Mutex<u64>> = (0..pages).map(|_| std::sync::Mutex::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (region, versions) = (&region, &versions);
            scope.spawn(move || {
                let mut random = Random(88_172_645_463_325_252 + thread);
                for _ in 0..operations {
                    let page = random.below(pages);
                    let mut version = versions[page].lock().expect("no thread panics");
                    check(region, page, *version);
                    if random.below(2) == 0 {
                        *version += 1;
                        put(region, page, 0, (page as u64) << 32 | *version);
                        put(region, page, 511, (page as u64) << 32 | *version);
                    }
                }
            });
        }
    });
    for (page, version) in versions.iter().enumerate() {
        check(&region, page, *version.lock().expect("no thread panics"));
    }
    assert!(counter(pool, "pswpin") > 0, "the region never left memory: the test says nothing");
}

/// Of each thread: some seconds of them, or as many as `PAGETIDE_TEST_SECONDS` says.
fn operations() -> usize {
    const A_SECOND: usize = 1_500;
    std::env::var("PAGETIDE_TEST_SECONDS").map_or(4_000, |text| text.parse::<usize>().expect("a number") * A_SECOND)
}

#[test]
fn eight_threads_under_an_eighth_lose_no_byte_in_a_region() {
    for engine in ENGINES {
        let Some(pool) = pool(4 * MIB, engine) else { continue };
        many_threads(&pool, 32 * MIB, operations());
        assert!(pool.resident_bytes() <= 5 * MIB as u64, "{} bytes resident", pool.resident_bytes());
    }
}

#[test]
fn eight_threads_under_an_eighth_lose_no_byte_with_pages_compressed() {
    for (engine, how) in ENGINES.into_iter().zip(["lz4", "zstd"]) {
        if pool(4 * MIB, engine).is_none() {
            continue;
        }
        let pool = builder(8 * MIB).engine(engine).set("compress", how).build().expect("a pool");
        many_threads(&pool, 64 * MIB, operations());
        assert!(counter(&pool, "zswpin") > 1000, "the pages went to the disk: the test says nothing");
        assert!(pool.resident_bytes() <= 9 * MIB as u64, "{} bytes resident", pool.resident_bytes());
    }
}

#[test]
fn a_region_is_zero_and_keeps_what_is_written() {
    for engine in ENGINES {
        let Some(pool) = pool(2 * MIB, engine) else { continue };
        let region = pool.region(16 * MIB).expect("a region");
        let pages = region.len() / PAGE;
        for page in 0..pages {
            assert_eq!(get(&region, page, 7), 0);
            put(&region, page, 7, page as u64 + 1);
        }
        for page in (0..pages).rev() {
            assert_eq!(get(&region, page, 7), page as u64 + 1);
        }
    }
}

#[test]
fn a_system_call_needs_a_hold_and_works_with_one() {
    for engine in ENGINES {
        let Some(pool) = pool(4 * MIB, engine) else { continue };
        let region = pool.region(32 * MIB).expect("a region");
        let pages = region.len() / PAGE;
        let sweep = |value: u64| (0..pages).for_each(|page| put(&region, page, 0, value + page as u64));
        sweep(1);
        let mut file = std::fs::OpenOptions::new();
        let path = place().join(format!("hold-{}-{engine:?}", std::process::id()));
        let mut file = file.read(true).write(true).create_new(true).open(&path).expect("a file");
        std::fs::remove_file(&path).expect("unlink");
        // SAFETY: write reads the region's memory, or fails with EFAULT.
        let refused = unsafe { libc::write(file.as_raw_fd(), region.as_ptr().cast(), 64 * PAGE) };
        assert_eq!(refused, -1, "the first pages have left memory");
        let hold = region.hold(0..64 * PAGE).expect("a hold");
        // Everything else goes through memory; what is held stays.
        for page in 64..pages {
            put(&region, page, 0, 1 + page as u64);
        }
        // SAFETY: as above.
        let written = unsafe { libc::write(file.as_raw_fd(), hold.as_ptr().cast(), hold.len()) };
        assert_eq!(usize::try_from(written), Ok(64 * PAGE));
        file.rewind().expect("seek");
        drop(hold);
        let hold = region.hold(128 * PAGE..192 * PAGE).expect("a hold");
        // SAFETY: read writes the region's memory, which nobody else uses.
        let read = unsafe { libc::read(file.as_raw_fd(), hold.as_ptr().cast(), hold.len()) };
        assert_eq!(usize::try_from(read), Ok(64 * PAGE));
        drop(hold);
        for page in 192..pages {
            put(&region, page, 0, 1 + page as u64);
        }
        for page in 0..64 {
            assert_eq!(get(&region, page, 0), 1 + page as u64);
            assert_eq!(get(&region, 128 + page, 0), 1 + page as u64, "what read() brought is kept");
        }
        let mut rest = [0; 1];
        assert_eq!(file.read(&mut rest).expect("read"), 0);
        file.flush().expect("flush");
    }
}

/// Linux ends a request in the name of the thread that has begun it, and interrupts a call in which that thread sleeps.
#[test]
fn no_call_of_a_thread_that_has_faulted_is_interrupted() {
    let Some(pool) = pool(4 * MIB, EngineChoice::Uring) else { return };
    let region = pool.region(32 * MIB).expect("a region");
    let (mut silent, _other) = UnixStream::pair().expect("two sockets");
    // A call with a deadline is one that is not made again by itself.
    silent.set_read_timeout(Some(Duration::from_millis(1))).expect("a deadline");
    let pages = region.len() / PAGE;
    let mut random = Random(88_172_645_463_325_252);
    // Neighbours, some of which are read ahead later, and pages without order, for which others leave.
    for page in (0..pages).step_by(16) {
        for index in 0..16 {
            put(&region, page + index, 1, 7);
            put(&region, random.below(pages), 2, 7);
        }
        let told = silent.read(&mut [0]).expect_err("nobody writes");
        assert_eq!(told.kind(), std::io::ErrorKind::WouldBlock, "{told}");
    }
    assert!(counter(&pool, "pswpin") > 0, "the region never left memory: the test says nothing");
}

#[test]
fn a_hold_is_bounded_and_ends() {
    let pool = pool(4 * MIB, EngineChoice::Auto).expect("a pool");
    let region = pool.region(32 * MIB).expect("a region");
    for _ in 0..100 {
        let first = region.hold(0..MIB).expect("a quarter of the budget");
        let again = region.hold(MIB / 2..MIB).expect("what is held can be held again");
        let error = region.hold(2 * MIB..3 * MIB).expect_err("more than half of the budget");
        assert_eq!(error.kind(), ErrorKind::Config);
        let error = region.discard(0..PAGE).expect_err("it is held");
        assert_eq!(error.kind(), ErrorKind::Config);
        drop(first);
        drop(again);
    }
    region.hold(4 * MIB..6 * MIB).expect("nothing is held any more");
}

#[test]
fn what_is_discarded_reads_as_zero() {
    for engine in ENGINES {
        let Some(pool) = pool(2 * MIB, engine) else { continue };
        let region = pool.region(8 * MIB).expect("a region");
        let pages = region.len() / PAGE;
        (0..pages).for_each(|page| put(&region, page, 3, 9));
        region.discard(PAGE..(pages - 1) * PAGE).expect("whole pages");
        let expected = |page| if page == 0 || page == pages - 1 { 9 } else { 0 };
        (0..pages).for_each(|page| assert_eq!(get(&region, page, 3), expected(page), "page {page}"));
    }
}

#[test]
fn bad_arguments_are_named() {
    let kind = |built: Result<Pool, pagetide::Error>| built.expect_err("refused").kind();
    assert_eq!(kind(builder(MIB).build()), ErrorKind::Config);
    assert_eq!(kind(Pool::builder(8 << 20).build()), ErrorKind::Config);
    assert_eq!(kind(builder(4 * MIB).profile("no-such").build()), ErrorKind::Config);
    assert_eq!(kind(builder(4 * MIB).set("no-such-knob", "1").build()), ErrorKind::Config);
    let nowhere = Pool::builder(8 << 20).swap("/no/such/place", 1 << 20);
    assert_eq!(kind(nowhere.build()), ErrorKind::NoSwapSpace);
    let memory = Pool::builder(8 << 20).swap("/dev/shm", 1 << 20);
    assert_eq!(kind(memory.build()), ErrorKind::NoSwapSpace);
    let pool = builder(4 * MIB).build().expect("a pool");
    assert_eq!(pool.region(0).expect_err("no bytes").kind(), ErrorKind::Config);
    assert_eq!(pool.region(usize::MAX).expect_err("too large").kind(), ErrorKind::Config);
    let region = pool.region(10).expect("rounded up");
    assert_eq!(region.len(), PAGE);
    assert_eq!(region.hold(0..PAGE + 1).expect_err("outside").kind(), ErrorKind::Config);
    assert_eq!(region.discard(0..10).expect_err("not whole pages").kind(), ErrorKind::Config);
    assert_eq!(pool.set_budget(1).expect_err("too small").kind(), ErrorKind::Config);
}

#[test]
fn a_thread_with_a_stack_of_64_kib_is_enough() {
    let pool = pool(2 * MIB, EngineChoice::Auto).expect("a pool");
    let region = pool.region(8 * MIB).expect("a region");
    std::thread::scope(|scope| {
        let sweep = || {
            for round in 0..2 {
                (0..region.len() / PAGE).for_each(|page| put(&region, page, 0, page as u64 + round));
            }
            (0..region.len() / PAGE).for_each(|page| assert_eq!(get(&region, page, 0), page as u64 + 1));
        };
        let thread = std::thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, sweep);
        thread.expect("a thread").join().expect("no panic");
    });
}

#[test]
fn a_smaller_budget_holds() {
    let pool = pool(16 * MIB, EngineChoice::Auto).expect("a pool");
    let region = pool.region(12 * MIB).expect("a region");
    (0..region.len() / PAGE).for_each(|page| put(&region, page, 0, page as u64));
    pool.set_budget(4 << 20).expect("enough");
    let deadline = std::time::SystemTime::now() + std::time::Duration::from_secs(60);
    while pool.resident_bytes() > 5 << 20 {
        assert!(std::time::SystemTime::now() < deadline, "{} bytes stay", pool.resident_bytes());
        std::thread::yield_now();
    }
    (0..region.len() / PAGE).for_each(|page| assert_eq!(get(&region, page, 0), page as u64));
}

// ---- children ----

/// Run `case` in a child; `user`: as which user.
fn run_case(case: &str, user: Option<u32>) -> Output {
    let mut program = std::env::current_exe().expect("our own path");
    let mut place = place();
    let mut copy = None;
    if user.is_some() {
        // The build directory may lie where only its owner may look.
        let directory = PathBuf::from("/var/tmp").join(format!("pagetide-regions-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        std::fs::copy(&program, directory.join("regions")).expect("a copy of this program");
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(&directory, open).expect("permissions");
        (program, place) = (directory.join("regions"), directory.clone());
        copy = Some(directory);
    }
    let mut command = Command::new(program);
    command.args(["--exact", "a_case_in_a_child", "--nocapture", "--test-threads=1"]);
    command.env(CASE, case).env("PAGETIDE_SWAP_PLACE", place).current_dir("/");
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    let output = command.output().expect("the child starts");
    if let Some(copy) = copy {
        std::fs::remove_dir_all(copy).expect("the copy goes");
    }
    output
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Does nothing but in a child.
#[test]
fn a_case_in_a_child() {
    match std::env::var(CASE).as_deref() {
        Ok("nobody") => case_nobody(),
        Ok("full") => case_full(),
        Ok("chained") => case_chained(),
        Ok("foreign") => case_foreign(),
        Ok("panic") => case_panic(),
        Ok("fork") => case_fork(),
        Ok("leave") => case_leave(),
        Ok(other) => panic!("no such case: {other}"),
        Err(_) => {}
    }
}

fn case_nobody() {
    // SAFETY: changes nothing.
    assert_eq!(unsafe { libc::geteuid() }, 65534);
    for engine in ENGINES {
        let Some(pool) = pool(4 * MIB, engine) else { continue };
        many_threads(&pool, 32 * MIB, 1_000);
    }
}

#[test]
fn nobody_has_regions_without_any_privilege() {
    // SAFETY: changes nothing.
    if unsafe { libc::geteuid() } != 0 {
        eprintln!("skipped: only root can become nobody; the other tests run without privilege already");
        return;
    }
    let output = run_case("nobody", Some(65534));
    assert!(output.status.success(), "{:?}: {}", output.status, errors(&output));
}

fn case_full() {
    let pool = Pool::builder(4 << 20).swap(place(), 8 << 20).floor(0).build().expect("a pool");
    let region = pool.region(64 * MIB).expect("a region");
    let mut random = Random(88_172_645_463_325_252);
    for page in 0..region.len() / PAGE {
        for index in 0..512 {
            put(&region, page, index, random.below(usize::MAX) as u64);
        }
    }
    eprintln!("reached the end");
}

#[test]
fn a_full_swap_place_is_a_message_and_sigbus_and_never_a_hang() {
    let output = run_case("full", None);
    assert_eq!(output.status.signal(), Some(SIGBUS), "{:?} {}", output.status, errors(&output));
    assert!(errors(&output).contains("so is the swap space"), "{}", errors(&output));
}

static SEEN: AtomicUsize = AtomicUsize::new(0);
static TIMES: AtomicU32 = AtomicU32::new(0);

extern "C" fn program_handler(_signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel hands a valid record to a handler with three arguments.
    let info = unsafe { &*info };
    // SAFETY: the record is that of a fault.
    let address = unsafe { info.si_addr() } as usize;
    SEEN.store(address, Ordering::SeqCst);
    TIMES.fetch_add(1, Ordering::SeqCst);
    // SAFETY: fresh memory in place of the page that has none, which the test owns.
    let mapped = unsafe {
        libc::mmap(
            (address & !(PAGE - 1)) as *mut libc::c_void,
            PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    assert!(mapped != libc::MAP_FAILED);
}

/// A mapping of a file that is shorter than it: touching it is a SIGBUS of the program's own.
fn beyond_the_end() -> *mut u8 {
    let path = place().join(format!("short-{}", std::process::id()));
    let file = std::fs::File::create_new(&path).expect("a file");
    std::fs::remove_file(&path).expect("unlink");
    // SAFETY: a new mapping at a place of the kernel's choice.
    let mapped =
        unsafe { libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    assert!(mapped != libc::MAP_FAILED);
    mapped.cast()
}

fn case_chained() {
    // SAFETY: an empty action with the flags that the handler wants.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = program_handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler keeps to atomics and mmap.
    assert_eq!(unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) }, 0);
    let pool = builder(2 * MIB).build().expect("a pool");
    let region = pool.region(8 * MIB).expect("a region");
    (0..region.len() / PAGE).for_each(|page| put(&region, page, 0, page as u64));
    assert_eq!(TIMES.load(Ordering::SeqCst), 0, "the program sees none of our faults");
    let place = beyond_the_end();
    // SAFETY: the program's handler puts memory there.
    assert_eq!(unsafe { place.read_volatile() }, 0);
    assert_eq!((SEEN.load(Ordering::SeqCst), TIMES.load(Ordering::SeqCst)), (place as usize, 1));
    (0..region.len() / PAGE).for_each(|page| assert_eq!(get(&region, page, 0), page as u64));
    assert_eq!(TIMES.load(Ordering::SeqCst), 1);
}

#[test]
fn a_foreign_fault_reaches_the_handler_that_was_there_before() {
    let output = run_case("chained", None);
    assert!(output.status.success(), "{:?} {}", output.status, errors(&output));
}

fn case_foreign() {
    let pool = builder(2 * MIB).build().expect("a pool");
    let region = pool.region(8 * MIB).expect("a region");
    put(&region, 0, 0, 1);
    // SAFETY: ends this process.
    unsafe { beyond_the_end().read_volatile() };
}

#[test]
fn a_foreign_fault_without_a_handler_ends_the_process_as_it_would_without_us() {
    let output = run_case("foreign", None);
    assert_eq!(output.status.signal(), Some(SIGBUS), "{:?} {}", output.status, errors(&output));
}

/// Takes the userfaultfd from under the pool, so that the next page that is to move breaks an invariant.
fn break_userfaultfds() {
    let null = std::fs::File::open("/dev/null").expect("/dev/null");
    for entry in std::fs::read_dir("/proc/self/fd").expect("/proc").flatten() {
        let is_uffd = std::fs::read_link(entry.path()).is_ok_and(|to| to.as_os_str() == "anon_inode:[userfaultfd]");
        if let (true, Some(raw)) = (is_uffd, entry.file_name().to_str().and_then(|name| name.parse().ok())) {
            // SAFETY: the number stays open, as another file.
            assert_eq!(unsafe { libc::dup2(null.as_raw_fd(), raw) }, raw);
        }
    }
}

/// The test harness unwinds: what is built for it is what a user with `panic = "unwind"` gets.
fn case_panic() {
    let pool = builder(4 * MIB).build().expect("a pool");
    let region = pool.region(16 * MIB).expect("a region");
    (0..region.len() / PAGE).for_each(|page| put(&region, page, 0, page as u64));
    let _used = region.hold(0..PAGE).expect("a hold");
    std::thread::scope(|scope| {
        for _ in 0..2 {
            // They use what is in memory, and must not go on either.
            scope.spawn(|| (0..u64::from(u32::MAX)).for_each(|value| put(&region, 0, 1, value)));
        }
        break_userfaultfds();
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for first in (1..13).map(|piece| piece * MIB) {
                drop(region.hold(first..first + MIB));
            }
        }));
        eprintln!("went on: {:?}", caught.is_err());
        std::process::exit(0);
    });
}

#[test]
fn a_panic_inside_the_library_ends_a_process_that_unwinds() {
    let output = run_case("panic", None);
    assert_eq!(output.status.signal(), Some(SIGABRT), "{:?} {}", output.status, errors(&output));
    assert!(errors(&output).contains("an invariant of the pager broke"), "{}", errors(&output));
}

/// Descriptors, threads and mappings of this process.
fn belongings() -> [usize; 3] {
    let entries = |path| std::fs::read_dir(path).expect("/proc").count();
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
    [entries("/proc/self/fd"), entries("/proc/self/task"), maps.lines().count()]
}

fn case_leave() {
    let run = |engine| {
        let Some(pool) = pool(2 * MIB, engine) else { return };
        for _ in 0..3 {
            let region = pool.region(4 * MIB).expect("a region");
            (0..region.len() / PAGE).for_each(|page| put(&region, page, 0, 5));
            let other = pool.region(PAGE).expect("a second region");
            assert_eq!(get(&other, 0, 0), 0);
        }
        assert!(pool.resident_bytes() <= 3 * MIB as u64, "{} bytes stay", pool.resident_bytes());
    };
    for engine in ENGINES {
        // Once before counting: what is made once in a process stays.
        (0..3).for_each(|_| run(engine));
        let before = belongings();
        (0..20).for_each(|_| run(engine));
        let after = belongings();
        // The C library maps and keeps an arena now and then.
        assert!(after[0] == before[0] && after[1] == before[1] && after[2] < before[2] + 10, "{before:?} {after:?}");
    }
}

#[test]
fn pools_and_regions_that_are_dropped_leave_nothing() {
    let output = run_case("leave", None);
    assert!(output.status.success(), "{:?} {}", output.status, errors(&output));
}

fn case_fork() {
    let pool = builder(2 * MIB).build().expect("a pool");
    let region = pool.region(8 * MIB).expect("a region");
    (0..region.len() / PAGE).for_each(|page| put(&region, page, 0, page as u64 + 1));
    // SAFETY: the child only drops what it has inherited, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(region);
        drop(pool);
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child drops its copies and ends");
    (0..region.len() / PAGE).for_each(|page| assert_eq!(get(&region, page, 0), page as u64 + 1));
}

#[test]
fn a_forked_child_drops_its_copies_and_the_parent_goes_on() {
    let output = run_case("fork", None);
    assert!(output.status.success(), "{:?} {}", output.status, errors(&output));
}

#[test]
fn a_pool_tells_how_long_its_faults_took() {
    let pool = builder(2 * MIB).build().expect("a pool");
    assert_eq!(pool.fault_latency_ns().count, 0);
    let region = pool.region(8 * MIB).expect("a region");
    for _ in 0..2 {
        (0..region.len() / PAGE).for_each(|page| put(&region, page, 0, 1));
    }
    let latency = pool.fault_latency_ns();
    assert!(latency.count >= counter(&pool, "pgmajfault") && latency.count > 0, "{latency:?}");
    assert!(0 < latency.p50 && latency.p50 <= latency.p99 && latency.p99 <= latency.max, "{latency:?}");
}

#[test]
fn a_region_in_a_thread_that_blocks_sigbus_is_a_clear_error() {
    let pool = builder(2 * MIB).build().expect("a pool");
    let refused = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let _before = pagetide_sys::signal::SignalSet::one(pagetide_sys::signal::number::BUS).block();
            pool.region(MIB).map(|_region| ()).expect_err("SIGBUS is blocked")
        });
        thread.join().expect("no panic")
    });
    assert_eq!(refused.kind(), ErrorKind::Config);
    assert!(refused.to_string().contains("SIGBUS is blocked"), "{refused}");
    assert!(pool.region(MIB).is_ok(), "other threads have regions");
}
