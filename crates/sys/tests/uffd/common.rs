//! What the live tests share. A test that the kernel cannot run says so; with `PAGETIDE_REQUIRE=uffd` that is a failure.

use pagetide_sys::mem::{AnonOptions, ManagedRange, Mapping, PAGE_BYTES, Protection};
use pagetide_sys::thread;
use pagetide_sys::uffd::{Features, RangeAnswer, Reach, ReadMode, Stop, Uffd};

pub(crate) const PAGE: usize = PAGE_BYTES;

/// Tests of one program that must not run side by side: forks and events touch the whole process.
pub(crate) static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

pub(crate) fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Say that a test is skipped for lack of `what`, or fail if it is required.
pub(crate) fn skip(what: &str, why: &dyn core::fmt::Debug) {
    let required = std::env::var("PAGETIDE_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|name| name == what), "{what} is required but missing: {why:?}");
    eprintln!("skipped: no {what}: {why:?}");
}

/// End the test program by SIGALRM after a minute: a fault that nobody answers sleeps for ever, and so would its test.
fn limit_time() {
    use pagetide_sys::syscall;
    // struct itimerval: no repetition, 60 s.
    let timer = [0u64, 0, 60, 0];
    let place = (&raw const timer).expose_provenance();
    // SAFETY: the kernel reads the timer.
    unsafe { syscall!(linux_raw_sys::general::__NR_setitimer, 0, place, 0) }.expect("a timer");
}

/// A userfaultfd with `features`, or `None` after saying why not.
pub(crate) fn uffd(reach: Reach, mode: ReadMode, features: Features) -> Option<Uffd> {
    limit_time();
    let uffd = match Uffd::open(reach, mode) {
        Ok((uffd, _)) => uffd,
        Err(refused) => {
            skip("uffd", &refused);
            return None;
        }
    };
    match uffd.handshake(features) {
        Ok(_) => Some(uffd),
        Err(errno) => {
            skip("uffd", &(features, errno));
            None
        }
    }
}

/// Private anonymous memory, without huge pages, not inherited by children.
pub(crate) fn frames(pages: usize) -> Mapping {
    let options = AnonOptions { protection: Protection::ReadWrite, populate: false, inherit: false };
    Mapping::anonymous(pages * PAGE, options).expect("mmap")
}

/// The same, inherited by children: as a program's own memory is.
pub(crate) fn program_memory(pages: usize) -> Mapping {
    let options = AnonOptions { protection: Protection::ReadWrite, populate: false, inherit: true };
    Mapping::anonymous(pages * PAGE, options).expect("mmap")
}

/// Write `value` to the first and last word of page `index`.
pub(crate) fn stamp(range: ManagedRange, index: usize, value: u64) {
    let page = range.page(index).as_ptr().cast::<u64>();
    // SAFETY: the test's own memory, mapped and writable.
    unsafe { page.write_volatile(value) };
    // SAFETY: as above; word 511 is the last of the page.
    let last = unsafe { page.add(511) };
    // SAFETY: as above.
    unsafe { last.write_volatile(!value) };
}

/// Read the stamp of page `index`; `None` if the two words do not agree.
pub(crate) fn stamp_of(range: ManagedRange, index: usize) -> Option<u64> {
    let page = range.page(index).as_ptr().cast::<u64>();
    // SAFETY: the test's own memory, mapped and readable.
    let value = unsafe { page.read_volatile() };
    // SAFETY: as above; word 511 is the last of the page.
    let last = unsafe { page.add(511) };
    // SAFETY: as above.
    let check = unsafe { last.read_volatile() };
    (check == !value).then_some(value)
}

pub(crate) fn stamp_all(range: ManagedRange, seed: u64) {
    for index in 0..range.len() / PAGE {
        stamp(range, index, seed + index as u64);
    }
}

pub(crate) fn done(pages: usize) -> RangeAnswer {
    RangeAnswer { done: pages * PAGE, stop: None }
}

pub(crate) fn stopped(pages: usize, stop: Stop) -> RangeAnswer {
    RangeAnswer { done: pages * PAGE, stop: Some(stop) }
}

/// Fork by system call. The child runs `child` and ends with its value; it must use nothing but raw calls.
pub(crate) fn fork(child: impl FnOnce() -> usize) -> i32 {
    use pagetide_sys::syscall;
    const SIGCHLD: usize = 17;
    // SAFETY: the child runs only `child` and ends; it has its own copy of this thread's stack.
    match unsafe { syscall!(linux_raw_sys::general::__NR_clone, SIGCHLD, 0, 0, 0, 0) } {
        Ok(0) => {
            let code = child();
            loop {
                // SAFETY: ends the child.
                let _ = unsafe { syscall!(linux_raw_sys::general::__NR_exit_group, code) };
            }
        }
        Ok(pid) => i32::try_from(pid).expect("a process number"),
        Err(error) => panic!("fork: {error}"),
    }
}

/// Wait for a child of [`fork`]; its exit status.
pub(crate) fn wait(pid: i32) -> u32 {
    use pagetide_sys::syscall;
    let mut status = 0u32;
    let place = (&raw mut status).expose_provenance();
    let pid = usize::try_from(pid).expect("a process number");
    // SAFETY: the kernel writes one word into `status`.
    unsafe { syscall!(linux_raw_sys::general::__NR_wait4, pid, place, 0, 0) }.expect("a child of ours");
    assert_eq!(status & 0x7f, 0, "the child was killed by signal {}", status & 0x7f);
    status >> 8
}

/// Give other threads a moment until `condition` holds.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let limit = pagetide_sys::clock::now() + 10_000_000_000;
    while !condition() {
        assert!(pagetide_sys::clock::now() < limit, "{what}: not within 10 s");
        thread::yield_now();
    }
}
