//! Our own memory inside a program, so that it is never taken for the program's.
//!
//! Every private mapping that the runtime makes in a program is noted here before anything can adopt it: the thread that
//! serves faults must never wait for a page of its own.

use pagetide_sys::Errno;
use pagetide_sys::futex::Mutex;
use pagetide_sys::mem::{AnonOptions, ManagedRange, Mapping, Protection};
use pagetide_sys::proc::{self, Limit};

/// Mappings of ours at most. The allocator makes one for each large table, and few others exist.
const RANGES: usize = 1024;

#[derive(Debug)]
struct Ranges {
    list: [(usize, usize); RANGES],
    len: usize,
}

static OWN: Mutex<Ranges> = Mutex::new(Ranges { list: [(0, 0); RANGES], len: 0 });

/// Private anonymous memory of our own, backed when it is used, absent in forked children.
pub(crate) fn map(bytes: usize, populate: bool) -> Result<Mapping, Errno> {
    make_room(bytes);
    let options = AnonOptions { protection: Protection::ReadWrite, populate, inherit: false };
    let mapping = Mapping::anonymous(bytes, options)?;
    let mut own = OWN.lock("a mapping of ours");
    assert!(own.len < RANGES, "the runtime has more than {RANGES} mappings");
    let len = own.len;
    own.list[len] = (mapping.range().start(), mapping.range().end());
    own.len += 1;
    Ok(mapping)
}

/// Our tables are not the program's: a limit that it or its shell set on its address space (`ulimit -v`) is raised by what we are
/// about to map. Where that is not allowed (the hard limit of a user), the soft one goes as far as it can.
pub(crate) fn make_room(bytes: usize) {
    let Ok(limit) = proc::address_space_limit() else { return };
    if limit.soft == proc::UNLIMITED {
        return;
    }
    let soft = limit.soft.saturating_add(bytes as u64);
    let wanted = Limit { soft, hard: limit.hard.max(soft) };
    if proc::set_address_space_limit(wanted).is_err() {
        let _ = proc::set_address_space_limit(Limit { soft: soft.min(limit.hard), hard: limit.hard });
    }
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

/// In a forked child: none of them exists.
///
/// # Safety
/// The caller is the only thread.
pub(crate) unsafe fn forget_after_fork() {
    // SAFETY: no other thread exists; the lock may have been copied while it was held.
    unsafe { (&raw const OWN).cast_mut().write(Mutex::new(Ranges { list: [(0, 0); RANGES], len: 0 })) };
}
