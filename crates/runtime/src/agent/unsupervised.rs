//! The end of a process that nobody supervises any more: nothing may be left behind, and nothing ends without a word.

use pagetide_sys::fd;
use pagetide_sys::text::Text;
use pagetide_sys::{proc, signal, stderr, thread};

use crate::limits;

/// The supervisor is gone.
pub(crate) fn end_with_run() -> ! {
    end_unsupervised(format_args!("the run has ended: it is killed"))
}

/// The supervisor listens no more, so its tree ends: nothing may be left behind.
pub(crate) fn end_unsupervised(why: std::fmt::Arguments<'_>) -> ! {
    tell_beside_program(why);
    signal::end()
}

/// A line where the program itself tells of errors: our own table of descriptors has no standard error. Nothing under a system
/// call filter, which could end this thread alone.
fn tell_beside_program(text: std::fmt::Arguments<'_>) {
    const STANDARD_ERROR: i32 = 2;
    let line = Text::<512>::format(format_args!("pagetide: process {}: {text}\n", thread::getpid()));
    let is_filtered = proc::status(Some(thread::gettid())).is_ok_and(|status| status.seccomp != 0);
    if is_filtered {
        return;
    }
    let _files = limits::for_files();
    let Ok(place) = fd::pidfd(thread::getpid()).and_then(|own| fd::take_from(&own, STANDARD_ERROR)) else { return };
    stderr::write_to(&place, line.as_bytes());
}
