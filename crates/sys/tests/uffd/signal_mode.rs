//! Signal mode: the faulting thread answers its own fault in the handler of SIGBUS. And what poison looks like there.

use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::OnceLock;

use crate::common::{PAGE, alone, done, fork, frames, program_memory, stamp, stamp_all, stamp_of, uffd, wait};
use pagetide_sys::mem::ManagedRange;
use pagetide_sys::signal::{self, Action, SigInfo, SignalSet, action_flags, number};
use pagetide_sys::syscall::Errno;
use pagetide_sys::uffd::{Features, Modes, Reach, ReadMode, Uffd, Wake};
use pagetide_sys::{fd, file};

struct World {
    uffd: Uffd,
    region: ManagedRange,
    source: ManagedRange,
}

static WORLD: OnceLock<World> = OnceLock::new();
static FAULTS: AtomicUsize = AtomicUsize::new(0);
static WRITES: AtomicUsize = AtomicUsize::new(0);
static CODE: AtomicI32 = AtomicI32::new(0);

unsafe extern "C" fn answer(_signal: i32, info: *mut SigInfo, context: *mut u8) {
    // SAFETY: the kernel hands the context of the fault to the handler of SIGBUS.
    if unsafe { signal::fault_was_write(context) } == Some(true) {
        WRITES.fetch_add(1, Ordering::SeqCst);
    }
    // SAFETY: the kernel hands a valid record to a handler with three arguments.
    let info = unsafe { &*info };
    let (code, addr) = (info.code, info.addr);
    CODE.store(code, Ordering::SeqCst);
    let Some(world) = WORLD.get() else { return };
    assert!(world.region.contains(addr), "a foreign SIGBUS at {addr:#x}");
    let index = (addr - world.region.start()) / PAGE;
    let answer = world.uffd.copy_run(world.region.page(index), world.source.page(index), false, Wake::Now);
    assert_eq!(answer, done(1));
    FAULTS.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn a_thread_serves_its_own_faults_and_system_calls_see_efault() {
    let _alone = alone();
    // Any user may do this.
    let Some(uffd) = uffd(Reach::UserMode, ReadMode::NonBlocking, Features::SIGBUS) else { return };
    let (region, source) = (program_memory(16).into_range(), frames(16).into_range());
    stamp_all(source, 30);
    uffd.register(region, Modes::MISSING).expect("register");
    assert!(WORLD.set(World { uffd, region, source }).is_ok());
    let new = Action::run(answer, action_flags::NO_DEFER, SignalSet::NONE);
    // SAFETY: the handler answers faults of the test's region and asserts that there are no others.
    let old = unsafe { signal::action(number::BUS, Some(&new)) }.expect("sigaction");

    for index in 0..8 {
        assert_eq!(stamp_of(region, index), Some(30 + index as u64));
    }
    assert_eq!((FAULTS.load(Ordering::SeqCst), WRITES.load(Ordering::SeqCst)), (8, 0));
    assert_eq!(CODE.load(Ordering::SeqCst), signal::BUS_ADDRESS_ERROR);

    // A system call does not call the handler.
    let (_read, write) = fd::pipe(0).expect("pipe");
    let piece = |first: usize, pages: usize| [file::IoVec::new(region.part(first * PAGE, pages * PAGE))];
    assert_eq!(file::writev(&write, &piece(8, 1)), Err(Errno::EFAULT));
    // Not even when part of the buffer is there: what was done by then is all that is told.
    let answer = file::writev(&write, &piece(7, 2));
    assert!(answer == Err(Errno::EFAULT) || answer == Ok(PAGE), "{answer:?}");
    assert_eq!(FAULTS.load(Ordering::SeqCst), 8);
    stamp(region, 8, 1);
    // The context tells reads from writes, which the message of this mode does not.
    assert_eq!((FAULTS.load(Ordering::SeqCst), WRITES.load(Ordering::SeqCst)), (9, 1));
    assert_eq!(file::writev(&write, &piece(8, 1)), Ok(PAGE));
    // SAFETY: puts back what was there.
    unsafe { signal::action(number::BUS, Some(&old)) }.expect("sigaction");
}

unsafe extern "C" fn end_with_code(_signal: i32, info: *mut SigInfo, _context: *mut u8) {
    // SAFETY: the kernel hands a valid record to a handler with three arguments.
    let code = unsafe { (*info).code };
    let code = usize::try_from(code).unwrap_or(99);
    // SAFETY: ends the child.
    let _ = unsafe { pagetide_sys::syscall!(linux_raw_sys::general::__NR_exit_group, 40 + code) };
}

#[test]
fn touching_a_poisoned_page_is_sigbus() {
    let _alone = alone();
    let Some(uffd) = uffd(Reach::Best, ReadMode::NonBlocking, Features::POISON) else { return };
    let region = program_memory(2);
    uffd.register(region.range(), Modes::MISSING).expect("register");
    assert_eq!(uffd.poison_run(region.range(), Wake::Now), done(2));
    // The mark is inherited by a child, in which it is looked at.
    let child = fork(|| {
        let new = Action::run(end_with_code, 0, SignalSet::NONE);
        // SAFETY: the child's own table of actions.
        let _ = unsafe { signal::action(number::BUS, Some(&new)) };
        usize::from(stamp_of(region.range(), 0).is_some())
    });
    let code = i32::try_from(wait(child)).expect("a status") - 40;
    assert!(code == signal::BUS_POISONED || code == signal::BUS_ADDRESS_ERROR, "si_code {code}");
    eprintln!("a poisoned page gives si_code {code}");
}
