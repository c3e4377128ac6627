//! Calls that take memory away or to another place, one at a time.
//!
//! The kernel changes the address space under its lock and tells of it afterwards, so what two threads do is told in any order: memory that
//! was registered and not managed yet goes, another thread's is moved to its place, and the end of the first is told last. Nothing in the
//! message says which of the two has ended. Here the next call begins when the one before has been told.
//!
//! And who has unmapped the end of a mapping goes on as soon as that has been read. Where the mapping grows into the same place at once
//! (mremap, of which the kernel tells nobody), it is registered there when the agent looks whether that end is true: none of its pages was
//! in memory, and what it has grown by would have the old bytes. So an mremap begins when the agent has acted upon what it has read.
//!
//! In signal mode that is every call of the program, in thread mode those that it makes by name. What the C library calls for itself
//! (malloc) and a program's own instructions are not seen there.

use std::sync::atomic::{AtomicU32, Ordering};

use pagetide_sys::futex::{self, Scope};
use pagetide_sys::signal::SignalSet;
use pagetide_sys::sync::{Guard, Mutex};
use pagetide_sys::{clock, thread};

use crate::foothold;
use crate::origins::{MMAP, MREMAP, MUNMAP, number};

pub(crate) const BRK: u32 = number(libc::SYS_brk);

static LEAVING: Mutex<()> = Mutex::new(());
/// Who holds it may wait for the caller, as where a program serves memory by a userfaultfd of its own: they go on side by side then.
const SLEEP_NS: u64 = 200_000_000;
/// Odd while the agent reads messages, and until it has acted upon them.
static HEARING: AtomicU32 = AtomicU32::new(0);
/// It does so in some microseconds, unless its thread does not run: turns of a spin, and a sleep between two looks.
const SPIN_TURNS: u32 = 100;
const LOOK_NS: u64 = 50_000;

/// `MAP_FIXED`, `MAP_LOCKED`, `MAP_POPULATE`
const FIXED: usize = 0x10;
const FILLS: usize = 0x2000 | 0x8000;

/// No other call does the same as long as this lives. None: this one does not, or it goes beside others.
pub(crate) fn alone(number: u32, arguments: &[usize; 6]) -> Option<Guard<'static, ()>> {
    if !leaves(number, arguments) {
        return None;
    }
    let alone = LEAVING.lock_within(SLEEP_NS, "memory leaves its place");
    if number == MREMAP {
        wait_until_heard();
    }
    alone
}

const fn leaves(number: u32, arguments: &[usize; 6]) -> bool {
    let flags = arguments[3];
    match number {
        MUNMAP | MREMAP | BRK => true,
        MMAP => flags & FIXED != 0 && flags & FILLS == 0,
        _ => false,
    }
}

/// In the agent: it reads messages, and acts upon them.
pub(crate) fn hear<T>(read: impl FnOnce() -> T) -> T {
    let odd = HEARING.load(Ordering::Relaxed) | 1;
    // Whoever goes on because his message is read finds this: the kernel has woken him since.
    HEARING.store(odd, Ordering::Relaxed);
    let answer = read();
    HEARING.store(odd.wrapping_add(1), Ordering::Release);
    answer
}

fn wait_until_heard() {
    let word = HEARING.load(Ordering::Acquire);
    let is_heard = || word.is_multiple_of(2) || HEARING.load(Ordering::Acquire) != word;
    for _ in 0..SPIN_TURNS {
        if is_heard() {
            return;
        }
        core::hint::spin_loop();
    }
    let end = clock::now() + SLEEP_NS;
    while !is_heard() && clock::now() < end {
        futex::wait(&HEARING, word, Some(LOOK_NS), Scope::Private);
    }
}

/// A call by name begins as [`alone`] says. A handler that interrupts it might make such a call, too, or not return: signals wait for its end.
#[derive(Debug)]
pub(crate) struct ByName {
    alone: Option<Guard<'static, ()>>,
    mask: SignalSet,
}

impl ByName {
    /// None where nothing leaves, or nobody is told of it (no memory is managed), and in a child of vfork, which may be killed in it.
    pub(crate) fn begin(number: u32, arguments: &[usize; 6]) -> Option<Self> {
        if !leaves(number, arguments) || !foothold::is_managed() || foothold::owner() != thread::getpid() {
            return None;
        }
        let mask = SignalSet::ALL.block();
        Some(Self { alone: alone(number, arguments), mask })
    }
}

impl Drop for ByName {
    fn drop(&mut self) {
        self.alone = None;
        self.mask.restore();
    }
}

/// In a forked child: the lock may have been copied while it was held, and the agent hears its maker.
pub(crate) fn after_fork() {
    HEARING.store(0, Ordering::Relaxed);
    LEAVING.forget();
}
