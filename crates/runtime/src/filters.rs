//! System call filters (seccomp) that a program installs in all its threads: ours are among them.
//!
//! A filter that denies what paging needs would end the process at a call of ours, or let its faults wait for ever. So each is judged
//! before it is installed; one for all threads is refused if it or an earlier one denies too much, as the kernel refuses where a thread
//! cannot take it over: with that thread's number. A program's own system call instructions are not seen.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pagetide_sys::seccomp::Denied;
use pagetide_sys::stderr;
use pagetide_sys::text::Text;
use pagetide_sys::thread;

use crate::foothold;

/// A call that a filter of some thread denies, plus one: with a filter for all threads, that one becomes ours, too.
static DENIED: AtomicU32 = AtomicU32::new(0);
static TOLD: AtomicBool = AtomicBool::new(false);

/// The program is about to install a filter that denies this, for all threads if `agent` is the number of ours. False: it must not.
pub(crate) fn may_install(denied: Denied, agent: Option<u32>) -> bool {
    if denied.confines {
        stderr::confine();
        foothold::note_filter();
    }
    if let Some(number) = denied.needed {
        DENIED.store(number + 1, Ordering::Relaxed);
    }
    let (Some(number), Some(agent)) = (DENIED.load(Ordering::Relaxed).checked_sub(1), agent) else { return true };
    if !TOLD.swap(true, Ordering::Relaxed) {
        let line = Text::<256>::format(format_args!(
            "pagetide: process {}: its system call filter denies call {number}, which paging needs: thread {agent}, ours, does not take it \
             over, and it is refused\n",
            thread::getpid()
        ));
        stderr::write(line.as_bytes());
    }
    false
}
