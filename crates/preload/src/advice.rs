//! Advice and locks: what the kernel does by them without telling a userfaultfd, and what a budget cannot grant.
//!
//! A guard region (Linux 6.13) empties its pages, and nobody hears of it (`agent_entry::guard_was_made`). What a forked child is to get
//! of memory (MADV_WIPEONFORK, MADV_DONTFORK) is looked up when it is copied, so it does not change beside a fork. Locked pages cannot
//! be paged: more of them than the budget can carry is refused, as RLIMIT_MEMLOCK refuses it.

use libc::{c_int, c_long, c_uint, c_void, iovec, size_t, ssize_t};
use pagetide::agent_entry;
use pagetide_sys::syscall::{Errno, answer_of, register_of, syscall6};

use crate::mapped::change;
use crate::raw::{answered, call};

/// `MADV_GUARD_INSTALL`
const GUARD_INSTALL: c_int = 102;

/// As madvise(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn madvise(address: *mut c_void, length: size_t, advice: c_int) -> c_int {
    // SAFETY: passed on as it came.
    answered(unsafe { advise(address.addr(), length, advice) })
}

/// # Safety
/// As for madvise(2).
pub(crate) unsafe fn advise(address: usize, length: usize, advice: c_int) -> Result<usize, Errno> {
    let advise = |advice: c_int| {
        // SAFETY: the program's own memory and wish.
        unsafe { change(libc::SYS_madvise, [address, length, advice.cast_unsigned() as usize, 0, 0, 0]) }
    };
    // Pages that are freed some time and may be taken back by a store are neither there nor gone: under management they are gone, where the
    // kernel would free them at all.
    if advice == libc::MADV_FREE && agent_entry::is_managed() {
        return advise(advice).and_then(|_| advise(libc::MADV_DONTNEED));
    }
    let is_guard = advice == GUARD_INSTALL;
    let is_of_children =
        matches!(advice, libc::MADV_DONTFORK | libc::MADV_DOFORK | libc::MADV_WIPEONFORK | libc::MADV_KEEPONFORK);
    if !is_guard && !is_of_children {
        return advise(advice);
    }
    // What is still known of the pages between the steps of a guard would come back in a child.
    let advising = agent_entry::advises_beside_forks();
    let answer = advise(advice);
    if is_guard && advising.is_some() {
        agent_entry::guard_was_made(address, length, register_of(answer), |start, bytes, advice| {
            // SAFETY: a part of the same.
            register_of(unsafe { change(libc::SYS_madvise, [start, bytes, advice, 0, 0, 0]) })
        });
    }
    drop(advising);
    answer
}

/// As process_madvise(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn process_madvise(
    process: c_int,
    list: *const iovec,
    count: size_t,
    advice: c_int,
    flags: c_uint,
) -> ssize_t {
    let int = |value: c_int| value.cast_unsigned() as usize;
    // SAFETY: passed on as it came.
    match unsafe { advise_process([int(process), list.addr(), count, int(advice), flags as usize, 0]) } {
        Ok(bytes) => bytes.cast_signed(),
        Err(errno) => answered(Err(errno)) as ssize_t,
    }
}

/// # Safety
/// As for process_madvise(2).
pub(crate) unsafe fn advise_process(arguments: [usize; 6]) -> Result<usize, Errno> {
    let answer = agent_entry::advise_process(arguments, |number, arguments| {
        let [start, bytes, advice, ..] = arguments;
        if c_long::from(number) == libc::SYS_madvise {
            let advice = c_int::try_from(advice & 0x7fff_ffff).expect("31 bits");
            // SAFETY: the caller's.
            return register_of(unsafe { advise(start, bytes, advice) });
        }
        // SAFETY: the caller's.
        register_of(unsafe { syscall6(number, arguments) })
    });
    answer_of(answer.cast_unsigned())
}

/// As mlock(2).
#[unsafe(no_mangle)]
extern "C" fn mlock(address: *const c_void, length: size_t) -> c_int {
    answered(lock(libc::SYS_mlock, address.addr(), length, 0))
}

/// As mlock2(2).
#[unsafe(no_mangle)]
extern "C" fn mlock2(address: *const c_void, length: size_t, flags: c_uint) -> c_int {
    answered(lock(libc::SYS_mlock2, address.addr(), length, flags as usize))
}

/// As mlock(2) or mlock2(2), by its number.
pub(crate) fn lock(number: c_long, address: usize, length: usize, flags: usize) -> Result<usize, Errno> {
    if !agent_entry::may_lock(length) {
        return Err(Errno::ENOMEM);
    }
    // SAFETY: changes no content.
    unsafe { call(number, [address, length, flags, 0]) }
}

/// As mlockall(2): mapping by mapping, because ours must not be locked.
#[unsafe(no_mangle)]
extern "C" fn mlockall(flags: c_int) -> c_int {
    answered(agent_entry::lock_all(flags.cast_unsigned()))
}
