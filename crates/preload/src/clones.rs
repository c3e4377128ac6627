//! Processes that share the memory of the one that made them, and may outlive it.
//!
//! The pager is a thread of one process. When that process ends, the kernel takes the userfaultfd's registrations away, and in a
//! process that still uses the memory every page that is out would read as zero. `vfork` and `posix_spawn` are not meant:
//! their maker waits. Linux offers no way to keep the others right, so they are refused before they exist.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use libc::{c_int, c_long, c_void};

use crate::next::next;
use crate::raw::set_errno;

/// The flags that say which kind of child it is to be.
pub(crate) const KINDS: c_int = libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_VFORK;

type Body = unsafe extern "C" fn(*mut c_void) -> c_int;
type Clone = unsafe extern "C" fn(Body, *mut c_void, c_int, *mut c_void, usize, usize, usize) -> c_int;

/// Not 0 in a process whose memory may be paged.
pub(crate) static ASKED: AtomicU32 = AtomicU32::new(0);

/// The answer to such a call, and a line for the person, once.
pub(crate) extern "C" fn refused() -> c_long {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        pagetide_sys::stderr::write(
            b"pagetide: clone(CLONE_VM) of a process is refused (EPERM): its memory could not be served once its maker has ended\n",
        );
    }
    set_errno(libc::EPERM);
    -1
}

/// As clone(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn clone(
    body: Body,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: usize,
    tls: usize,
    child: usize,
) -> c_int {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    if flags & KINDS == libc::CLONE_VM && ASKED.load(Ordering::Relaxed) != 0 {
        refused();
        return -1;
    }
    // SAFETY: libc's function of this name has this type; its last arguments are words.
    let clone: Clone = unsafe { std::mem::transmute(next(&NEXT, c"clone")) };
    // SAFETY: passed on as it came.
    unsafe { clone(body, stack, flags, argument, parent, tls, child) }
}
