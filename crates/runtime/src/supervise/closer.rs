//! Closes files for agents: who closes the last descriptor of a swap file waits until its disk space is free, and the program's faults
//! would wait with him.

use std::sync::atomic::{AtomicU32, Ordering};

use pagetide_sys::fd::Fd;

/// Threads at one time, at most: what comes beyond them is closed by the caller.
const CLOSERS_MAX: u32 = 16;

static CLOSERS: AtomicU32 = AtomicU32::new(0);

/// Descriptors on their way to be closed, in this order.
struct Files {
    file: Option<Fd>,
    told: Option<Fd>,
}

impl Drop for Files {
    fn drop(&mut self) {
        drop(self.file.take());
        drop(self.told.take());
        CLOSERS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Close `file`, and then `told`, in a thread of their own; where there can be none, here.
pub(super) fn close_aside(file: Option<Fd>, told: Option<Fd>) {
    let before = CLOSERS.fetch_add(1, Ordering::Relaxed);
    let files = Files { file, told };
    if before < CLOSERS_MAX {
        let thread = std::thread::Builder::new().name("closer".to_owned());
        // What cannot be moved to a thread is dropped here.
        let _ = thread.spawn(move || drop(files));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pagetide_sys::fd::{self, PollFd, events};

    use super::*;

    #[test]
    fn who_waits_for_the_end_hears_of_it() {
        let (file, _kept) = fd::pipe(0).expect("descriptors are left");
        let (end, told) = fd::pipe(0).expect("descriptors are left");
        close_aside(Some(file), Some(told));
        let mut fds = [PollFd::new(&end, 0)];
        let limit = u64::try_from(Duration::from_secs(60).as_nanos()).expect("a minute");
        assert!(fd::poll(&mut fds, Some(limit)).is_ok());
        assert!(fds[0].seen() & events::HUP != 0);
    }
}
