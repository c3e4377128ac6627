//! Locked memory: what of it a budget can carry.
//!
//! A locked page cannot be paged. Locks beyond what leaves room for everything else are refused where they are asked for, as a
//! system with a small RLIMIT_MEMLOCK refuses them; granted ones would end the run later, in the midst of something else.

use std::sync::atomic::{AtomicBool, Ordering};

use pagetide_sys::maps::{Kind, MapsText, NAME_BYTES};
use pagetide_sys::mem::{self, ManagedRange};
use pagetide_sys::text::Text;
use pagetide_sys::{Errno, proc, stderr, thread};

use crate::space::PAGE_BYTES;
use crate::{foothold, own};

/// `MCL_CURRENT`, `MCL_FUTURE`, `MCL_ONFAULT`.
const CURRENT: u32 = 1;
const FUTURE: u32 = 2;
const ON_FAULT: u32 = 4;

/// Locked bytes that one process may have: three quarters of the budget.
fn bytes_max() -> u64 {
    match foothold::budget_pages() {
        0 => u64::MAX,
        pages => pages * PAGE_BYTES / 4 * 3,
    }
}

/// True if so many more bytes may be locked.
pub(crate) fn may_lock(bytes: usize) -> bool {
    let most = bytes_max();
    if most == u64::MAX {
        return true;
    }
    let locked = proc::status(None).map_or(0, |status| status.locked_bytes);
    let may = locked.saturating_add(bytes as u64) <= most;
    if !may {
        tell_refused();
    }
    may
}

/// Say once that memory is not locked: who gets ENOMEM looks for a limit of the system.
fn tell_refused() {
    static IS_TOLD: AtomicBool = AtomicBool::new(false);
    if !IS_TOLD.swap(true, Ordering::Relaxed) {
        let line = Text::<256>::format(format_args!(
            "pagetide: process {}: more memory is to be locked than three quarters of the budget, {} MiB: refused (ENOMEM)\n",
            thread::getpid(),
            bytes_max() >> 20
        ));
        stderr::write(line.as_bytes());
    }
}

/// As mlockall(2), without our own mappings. With `MCL_FUTURE`, pages of later mappings are locked as they come.
pub(crate) fn lock_all(flags: u32) -> Result<usize, Errno> {
    if flags & !(CURRENT | FUTURE | ON_FAULT) != 0 || flags & (CURRENT | FUTURE) == 0 {
        return Err(Errno::EINVAL);
    }
    if flags & CURRENT != 0 {
        let mut bytes = 0_u64;
        each_of_the_program(|range, is_memory| {
            bytes += if is_memory { range.len() as u64 } else { 0 };
            Ok(())
        })?;
        if bytes > bytes_max() {
            tell_refused();
            return Err(Errno::ENOMEM);
        }
        each_of_the_program(|range, _| match mem::lock(range, flags & ON_FAULT != 0) {
            // What cannot be brought in (no access, gone) stays out, as with mlockall itself.
            Err(errno @ Errno::EPERM) => Err(errno),
            _ => Ok(()),
        })?;
    }
    if flags & FUTURE != 0 {
        mem::lock_future()?;
    }
    Ok(0)
}

/// Every mapping of the program, cut around ours; `is_memory`: private and writable.
fn each_of_the_program(mut each: impl FnMut(ManagedRange, bool) -> Result<(), Errno>) -> Result<(), Errno> {
    let mut buffer = [0; NAME_BYTES + 4096];
    let mut maps = MapsText::open(&mut buffer)?;
    while let Some(vma) = maps.next_vma()? {
        let is_memory = !vma.shared && vma.write;
        if vma.kind == Kind::Kernel {
            continue;
        }
        let (mut from, end) = (vma.start, vma.end);
        while from < end {
            let (to, next) = match own::first_in(from, end) {
                Some((start, stop)) => (start.max(from), stop),
                None => (end, end),
            };
            if to > from {
                // SAFETY: a mapping of the program; only its lock is changed.
                each(unsafe { ManagedRange::new(from, to - from) }, is_memory)?;
            }
            from = next;
        }
    }
    Ok(())
}
