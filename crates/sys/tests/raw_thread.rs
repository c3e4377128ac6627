//! Threads without libc and the mutex they share.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pagetide_sys::futex::{self, Scope, Waited};
use pagetide_sys::mem::{AnonOptions, ManagedRange, Mapping, Protection};
use pagetide_sys::sync::Mutex;
use pagetide_sys::thread::{self, Table};
use pagetide_sys::{fd, signal};

fn stack() -> ManagedRange {
    let options = AnonOptions { protection: Protection::ReadWrite, populate: false, inherit: false };
    Mapping::anonymous(64 << 10, options).expect("mmap").into_range()
}

static COUNTER: Mutex<u64> = Mutex::new(0);
const TURNS: u64 = 200_000;

extern "C" fn count(_arg: *mut u8) -> ! {
    for _ in 0..TURNS {
        *COUNTER.lock("count") += 1;
    }
    thread::exit_thread()
}

#[test]
fn four_threads_count_without_losing_one() {
    static ALIVE: [AtomicU32; 4] = [const { AtomicU32::new(1) }; 4];
    let threads = ALIVE.each_ref().map(|alive| {
        // SAFETY: the stack is leaked; `count` uses nothing but the mutex.
        unsafe { thread::spawn(stack(), alive, Table::Shared, count, core::ptr::null_mut()) }.expect("clone")
    });
    for thread in &threads {
        thread.join();
        assert!(thread.is_over());
    }
    assert_eq!(*COUNTER.lock("look"), 4 * TURNS);
    assert!(COUNTER.try_lock().is_some());
}

static MASK: AtomicU64 = AtomicU64::new(0);
static ARG: AtomicU64 = AtomicU64::new(0);
static TID: AtomicU32 = AtomicU32::new(0);

extern "C" fn look(arg: *mut u8) -> ! {
    MASK.store(signal::SignalSet::NONE.block().0, Ordering::SeqCst);
    ARG.store(arg.addr() as u64, Ordering::SeqCst);
    // An aligned stack: a vector store to a local would fault otherwise.
    let local = core::hint::black_box([0u128; 4]);
    assert_eq!(local.as_ptr().addr() % 16, 0);
    TID.store(thread::gettid().cast_unsigned(), Ordering::SeqCst);
    thread::exit_thread()
}

#[test]
fn the_thread_blocks_all_signals_and_the_parent_keeps_its_mask() {
    static ALIVE: AtomicU32 = AtomicU32::new(1);
    let before = signal::SignalSet::NONE.block();
    // SAFETY: the stack is leaked; `look` stores numbers.
    let thread =
        unsafe { thread::spawn(stack(), &ALIVE, Table::Shared, look, core::ptr::without_provenance_mut(0x1234)) }
            .expect("clone");
    thread.join();
    assert_eq!(signal::SignalSet::NONE.block(), before);
    assert_eq!(ARG.load(Ordering::SeqCst), 0x1234);
    assert_eq!(TID.load(Ordering::SeqCst), thread.tid().cast_unsigned());
    let mask = signal::SignalSet(MASK.load(Ordering::SeqCst));
    assert!(mask.has(signal::number::SEGV) && mask.has(signal::number::TERM) && mask.has(32));
    assert!(!mask.has(signal::number::KILL), "the kernel never blocks it");
}

static TABLE_FD: AtomicU32 = AtomicU32::new(0);
static TABLE_GO: AtomicU32 = AtomicU32::new(0);
static TABLE_SEEN: AtomicU32 = AtomicU32::new(0);

extern "C" fn keep_table(_arg: *mut u8) -> ! {
    while TABLE_GO.load(Ordering::SeqCst) == 0 {
        futex::wait(&TABLE_GO, 0, None, Scope::Private);
    }
    let open = fd::is_open(TABLE_FD.load(Ordering::SeqCst).cast_signed());
    TABLE_SEEN.store(1 + u32::from(open), Ordering::SeqCst);
    thread::exit_thread()
}

#[test]
fn a_thread_with_its_own_table_keeps_what_the_program_closes() {
    static ALIVE: AtomicU32 = AtomicU32::new(1);
    let event = fd::eventfd(0).expect("eventfd").moved_high(700);
    TABLE_FD.store(event.raw().cast_unsigned(), Ordering::SeqCst);
    // SAFETY: the stack is leaked; `keep_table` uses atomics only.
    let thread =
        unsafe { thread::spawn(stack(), &ALIVE, Table::Own, keep_table, core::ptr::null_mut()) }.expect("clone");
    drop(event);
    TABLE_GO.store(1, Ordering::SeqCst);
    futex::wake(&TABLE_GO, 1, Scope::Private);
    thread.join();
    assert_eq!(TABLE_SEEN.load(Ordering::SeqCst), 2);
}

#[test]
fn a_wait_tells_why_it_ended() {
    let word = AtomicU32::new(5);
    assert_eq!(futex::wait(&word, 4, None, Scope::Private), Waited::Changed);
    let before = pagetide_sys::clock::now();
    assert_eq!(futex::wait(&word, 5, Some(2_000_000), Scope::Private), Waited::TimedOut);
    assert!(pagetide_sys::clock::now() - before >= 2_000_000);
    assert_eq!(futex::wake(&word, 1, Scope::Shared), 0);
}
