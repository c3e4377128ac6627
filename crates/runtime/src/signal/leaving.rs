//! Calls that take memory away or to another place, one at a time.
//!
//! The kernel changes the address space under its lock and tells of it afterwards, so what two threads do is told in any order: memory that
//! was registered and not managed yet goes, another thread's is moved to its place, and the end of the first is told last. Nothing in the
//! message says which of the two has ended. Here the next call begins when the one before has been told.

use pagetide_sys::sync::{Guard, Mutex};

use super::threads::Thread;
use crate::origins::{MMAP, MREMAP, MUNMAP};

pub(super) const BRK: u32 = 12;

static LEAVING: Mutex<()> = Mutex::new(());
/// Who holds it may wait for the caller, as where a program serves memory by a userfaultfd of its own: they go on side by side then.
const SLEEP_NS: u64 = 200_000_000;

/// `MAP_FIXED`, `MAP_LOCKED`, `MAP_POPULATE`
const FIXED: usize = 0x10;
const FILLS: usize = 0x2000 | 0x8000;

/// No other call does the same as long as this lives. None: this one does not, or it goes beside others.
pub(super) fn alone(block: &Thread, number: u32, arguments: &[usize; 6]) -> Option<Guard<'static, ()>> {
    let flags = arguments[3];
    let leaves = match number {
        MUNMAP | MREMAP | BRK => true,
        MMAP => flags & FIXED != 0 && flags & FILLS == 0,
        _ => false,
    };
    // Who shares the memory and is no thread may be killed with it, and a filter may not let a thread wait.
    if leaves && !block.is_apart() && !block.is_filtered() {
        LEAVING.lock_within(SLEEP_NS, "memory leaves its place")
    } else {
        None
    }
}
