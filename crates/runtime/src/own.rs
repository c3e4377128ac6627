//! Our own memory inside a program, so that it is never taken for the program's.
//!
//! Every private mapping that the runtime makes in a program is noted here before anything can adopt it: the thread that
//! serves faults must never wait for a page of its own.

use pagetide_sys::Errno;
use pagetide_sys::mem::{self, AnonOptions, ManagedRange, Mapping, Protection};
use pagetide_sys::sync::Mutex;

use crate::limits;

/// Mappings of ours at most. The allocator makes one for each large table, and few others exist.
const RANGES: usize = 1024;

/// What the calls that give a stack back may need of it themselves.
const STACK_IN_USE: usize = 16 << 10;

#[derive(Debug)]
struct Ranges {
    list: [(usize, usize); RANGES],
    len: usize,
}

static OWN: Mutex<Ranges> = Mutex::new(Ranges { list: [(0, 0); RANGES], len: 0 });

/// Private anonymous memory of our own, backed when it is used, absent in forked children.
pub(crate) fn map(bytes: usize, populate: bool) -> Result<Mapping, Errno> {
    map_as(bytes, AnonOptions { protection: Protection::ReadWrite, populate, inherit: false })
}

/// The same, for bytes of the program that may be executed. EACCES: a security module does not allow that.
pub(crate) fn map_executable(bytes: usize) -> Result<Mapping, Errno> {
    map_as(bytes, AnonOptions { protection: Protection::ReadWriteExecute, populate: false, inherit: false })
}

fn map_as(bytes: usize, options: AnonOptions) -> Result<Mapping, Errno> {
    limits::make_room(bytes);
    let mapping = Mapping::anonymous(bytes, options)?;
    // A program that locks all its future mappings (MCL_FUTURE) does not mean ours, and pages cannot be moved between locked and
    // other memory.
    let _ = mem::unlock(mapping.range());
    let mut own = OWN.lock("a mapping of ours");
    assert!(own.len < RANGES, "the runtime has more than {RANGES} mappings");
    let len = own.len;
    own.list[len] = (mapping.range().start(), mapping.range().end());
    own.len += 1;
    Ok(mapping)
}

/// A mapping of ours that was made otherwise, and stays.
pub(crate) fn note(range: ManagedRange) {
    let mut own = OWN.lock("a mapping that stays");
    assert!(own.len < RANGES, "the runtime has more than {RANGES} mappings");
    let len = own.len;
    own.list[len] = (range.start(), range.end());
    own.len += 1;
}

/// The mapping is about to be unmapped.
pub(crate) fn forget(range: ManagedRange) {
    let mut own = OWN.lock("a mapping of ours ends");
    let len = own.len;
    if let Some(index) = own.list[..len].iter().position(|&(start, _)| start == range.start()) {
        own.list[index] = own.list[len - 1];
        own.len -= 1;
    }
}

/// The lowest range of ours that overlaps `[start, end)`.
pub(crate) fn first_in(start: usize, end: usize) -> Option<(usize, usize)> {
    let own = OWN.lock("is it ours");
    own.list[..own.len].iter().filter(|&&(from, to)| from < end && start < to).min().copied()
}

/// One range after the other, in no order; None after the last.
pub(crate) fn at(index: usize) -> Option<ManagedRange> {
    let own = OWN.lock("what is ours");
    // SAFETY: it was mapped with these bounds, and is noted here until it is unmapped.
    own.list[..own.len].get(index).map(|&(start, end)| unsafe { ManagedRange::new(start, end - start) })
}

/// Of the calling thread's stack, if that is a mapping of ours: what lies deeper than its caller needs is given back.
#[inline(never)]
pub(crate) fn give_stack_back() {
    let here = 0_u8;
    let at = (&raw const here).addr();
    let Some((start, _)) = first_in(at, at + 1) else { return };
    let end = at.saturating_sub(STACK_IN_USE) / mem::PAGE_BYTES * mem::PAGE_BYTES;
    if end > start {
        // SAFETY: the mapping is ours, and nothing lies there but what calls have left that have returned.
        let unused = unsafe { ManagedRange::new(start, end - start) };
        let _ = mem::advise(unused, mem::Advice::DontNeed);
    }
}

/// In a forked child: none of them exists.
///
/// # Safety
/// The caller is the only thread.
pub(crate) unsafe fn forget_after_fork() {
    // SAFETY: no other thread exists; the lock may have been copied while it was held.
    unsafe { (&raw const OWN).cast_mut().write(Mutex::new(Ranges { list: [(0, 0); RANGES], len: 0 })) };
}
