//! Lines for the person, from inside a program: on its standard error, as long as that is one.
//!
//! A program may close it, and a file that it opens then has its number: a line there would be a wrong byte in the midst of a data base. So
//! lines go to what standard error was when the program began, and besides that to a terminal or another device, or to a file that is only
//! appended to, which the program has turned it to since. Nothing waits: what cannot be written at once is not written, nor where nobody
//! reads it (SIGPIPE).

use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use linux_raw_sys::general::O_APPEND;

use crate::fd::{self, Fd, PollFd, events};
use crate::file::{self, FileInfo, FileKind};

const STANDARD_ERROR: i32 = 2;

/// Nobody has asked for it to be noted: all there is counts.
const UNKNOWN: u32 = 0;
const OPEN: u32 = 1;
const CLOSED: u32 = 2;

/// What standard error was, and its device and inode.
static BEGAN: AtomicU32 = AtomicU32::new(UNKNOWN);
static DEVICE: AtomicU64 = AtomicU64::new(0);
static INODE: AtomicU64 = AtomicU64::new(0);

/// The program begins: what standard error is now, it is. Only the first call counts.
pub fn note() {
    if BEGAN.load(Ordering::Acquire) != UNKNOWN {
        return;
    }
    let state = match with_standard_error(file::info) {
        Ok(info) => {
            DEVICE.store(device(&info), Ordering::Relaxed);
            INODE.store(info.inode, Ordering::Relaxed);
            OPEN
        }
        Err(_) => CLOSED,
    };
    BEGAN.store(state, Ordering::Release);
}

/// Write to standard error by system calls. Failure is not reported: there is nowhere to.
pub fn write(message: &[u8]) {
    with_standard_error(|place| write_to(place, message));
}

/// The same where another table of descriptors has it, of which `place` was taken.
pub fn write_to(place: &Fd, message: &[u8]) {
    if is_for_lines(place) {
        write_at_once(place, message);
    }
}

fn write_at_once(place: &Fd, message: &[u8]) {
    let mut room = [PollFd::new(place, events::OUT)];
    if fd::poll(&mut room, Some(0)).is_ok() && room[0].seen() == events::OUT {
        let _ = file::write(place, message);
    }
}

fn is_for_lines(place: &Fd) -> bool {
    let Ok(info) = file::info(place) else { return false };
    let began = BEGAN.load(Ordering::Acquire);
    let is_same = || DEVICE.load(Ordering::Relaxed) == device(&info) && INODE.load(Ordering::Relaxed) == info.inode;
    let is_appended_to = || fd::flags(place).is_ok_and(|flags| flags & O_APPEND != 0);
    began == UNKNOWN || began == OPEN && is_same() || info.kind == FileKind::Char || is_appended_to()
}

fn device(info: &FileInfo) -> u64 {
    u64::from(info.device.0) << 32 | u64::from(info.device.1)
}

fn with_standard_error<T>(what: impl FnOnce(&Fd) -> T) -> T {
    // SAFETY: never dropped, so that the program's descriptor is not closed here; where it has none, calls say EBADF.
    what(&ManuallyDrop::new(unsafe { Fd::from_raw(STANDARD_ERROR) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_the_program_gets_no_lines_and_a_log_does() {
        note();
        let path = c"/tmp";
        let file = |flags| Fd::open(path, linux_raw_sys::general::O_TMPFILE | flags, 0o600).expect("a file");
        let own = file(linux_raw_sys::general::O_RDWR);
        write_to(&own, b"a line\n");
        assert_eq!(file::info(&own).expect("a file").size_bytes, 0);
        let log = file(linux_raw_sys::general::O_RDWR | O_APPEND);
        write_to(&log, b"a line\n");
        assert_eq!(file::info(&log).expect("a file").size_bytes, 7);
    }

    #[test]
    fn what_nobody_reads_or_has_room_for_is_not_waited_for() {
        let (read, full) = fd::pipe(0).expect("a pipe");
        for _ in 0..100 {
            write_at_once(&full, &[b'x'; 4096]);
        }
        drop(read);
        write_at_once(&full, b"nobody reads this");
    }
}
