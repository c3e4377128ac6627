//! The one clock of the harness. Tests measure the world from outside, so they may read it.

use std::time::{Duration, Instant};

/// Now.
#[expect(
    clippy::disallowed_methods,
    reason = "the harness measures programs from outside; there is no virtual time here"
)]
pub fn now() -> Instant {
    Instant::now()
}

/// Waits between two looks at something that has no event to wait for (a cgroup's counters, /proc).
#[expect(clippy::disallowed_methods, reason = "sampling period of files that cannot be polled")]
pub fn pause(period: Duration) {
    std::thread::sleep(period);
}

/// Looks at `ready` every 10 ms until it holds or `limit` has passed; says whether it held.
pub fn wait_until(limit: Duration, mut ready: impl FnMut() -> bool) -> bool {
    let begin = now();
    loop {
        if ready() {
            return true;
        }
        if begin.elapsed() > limit {
            return false;
        }
        pause(Duration::from_millis(10));
    }
}
