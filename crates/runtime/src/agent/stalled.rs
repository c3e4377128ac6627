//! Whether the whole program waits for memory.

use pagetide_core::page::Flight;
use pagetide_core::types::Nanos;
use pagetide_sys::{clock, proc, thread};

use super::Managed;
use crate::limits;

/// Time between two looks at what the other threads do while one waits for memory; and of the time that passes, a fiftieth at most.
const THREAD_LOOK_NS: Nanos = 20_000_000;
const THREAD_LOOK_SHARE: Nanos = 50;

/// What a fault waits for on a page with this in flight.
pub(super) const fn awaited(flight: Flight) -> &'static str {
    match flight {
        Flight::Reading => "the disk, which reads its page",
        Flight::Writing => "the disk, which writes its page",
        Flight::Mapping => "its page, which is being moved in",
        Flight::Unmapping => "its page, which is being moved out",
        Flight::None => "room in the budget",
    }
}

/// Do all threads of the program wait for memory, or sleep, while one at least waits?
pub(super) fn look_at_threads(managed: &mut Managed, now: Nanos) {
    let files = limits::for_files();
    let own = thread::gettid();
    let mut is_any_running = false;
    // A thread that serves its own fault looks for its page without sleeping.
    let waits = |tid: i32| managed.session.pager.machine().waits(tid.cast_unsigned());
    let told = proc::each_thread(|tid| {
        is_any_running |= tid != own && !waits(tid) && proc::thread_state(tid).is_ok_and(|state| state == b'R');
    });
    drop(files);
    let machine = managed.session.pager.machine_mut();
    machine.stalls.note_look(now, told.is_ok() && !is_any_running);
    let end = clock::now();
    managed.next_thread_look = end + THREAD_LOOK_NS.max(THREAD_LOOK_SHARE * end.saturating_sub(now));
}
