//! A process whose own threads have all ended, one by one (`exit` past the C library), has ended: ours must not keep it.

use pagetide_sys::{proc, signal, thread};

/// Names of threads that are ours, or the kernel's on our behalf.
const OURS: [&[u8]; 2] = [b"pagetide", b"iou-"];

/// End the process, as its first thread ended, if nobody but us lives in it.
pub(super) fn end_if_alone() {
    let Ok(first) = proc::stat(None) else { return };
    if !proc::is_over(first.state) {
        return;
    }
    let own = thread::getpid();
    let mut is_alone = true;
    let seen = proc::each_thread(|tid| is_alone &= tid == own || has_ended(tid) || proc::is_thread_named(tid, &OURS));
    if seen.is_ok() && is_alone {
        if first.exit_status & 0x7f != 0 {
            // The kernel ended that thread alone, as it does under strict seccomp.
            signal::end();
        }
        thread::exit_process((first.exit_status >> 8) & 0xff);
    }
}

fn has_ended(tid: i32) -> bool {
    proc::thread_state(tid).map_or(true, proc::is_over)
}
