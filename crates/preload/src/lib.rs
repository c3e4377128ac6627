//! The LD_PRELOAD object of `pagetide run`: thin, and inert unless its environment names a supervisor.
//!
//! At load it offers the supervisor a foothold; around forks it tells the agent, if one was started. Everything else is in `pagetide`.

mod mapped;
mod advice;
mod threads;
mod clones;
mod credentials;
mod filters;
mod lent;
mod limits;
mod namespaces;
mod raw;
mod rings;
mod next;
mod unwind;
mod sanitizers;
#[cfg(target_arch = "x86_64")]
mod memory;

use std::ffi::CStr;

use pagetide::agent_entry;
use pagetide::alloc::OwnMemory;

/// The handler's thread never uses the program's malloc.
#[global_allocator]
static MEMORY: OwnMemory = OwnMemory::new();

extern "C" fn before_fork() {
    agent_entry::before_fork();
}

extern "C" fn after_fork_in_parent() {
    agent_entry::after_fork_in_parent();
}

extern "C" fn after_fork_in_child() {
    agent_entry::after_fork_in_child();
}

extern "C" fn at_load() {
    // SAFETY: the environment is not changed while the program's constructors run.
    let name = unsafe { libc::getenv(c"PAGETIDE_RUN".as_ptr()) };
    if name.is_null() {
        return;
    }
    // SAFETY: getenv returns a terminated string that stays while the environment is unchanged.
    let name = unsafe { CStr::from_ptr(name) };
    // SAFETY: the handlers have the C ABI and live as long as this object, which is never unloaded.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(after_fork_in_parent), Some(after_fork_in_child)) };
    clones::ASKED.store(1, std::sync::atomic::Ordering::Relaxed);
    pagetide_sys::stderr::note();
    agent_entry::start(name.to_bytes(), &MEMORY);
}

#[used]
// SAFETY: the loader calls the entries of this section once, at load, as C functions.
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;
