//! Lines for the person, from inside a program: on its standard error, as long as that is one.
//!
//! A program may close it, and a file that it opens then has its number: a line there would be a wrong byte in the midst of a data base. So
//! lines go to what standard error was when the program began, and besides that to a terminal or another device, or to a file that is only
//! appended to, which the program has turned it to since. Nothing waits: what cannot be written at once is not written, nor where nobody
//! reads it (SIGPIPE).
//!
//! To find that out takes calls that a system call filter of the program may answer by its end. From the first such filter on, lines are
//! left for a thread of ours, which has none.

use core::fmt;
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use linux_raw_sys::general::O_APPEND;

use crate::fd::{self, Fd, PollFd, events};
use crate::file::{self, FileKind, Identity};
use crate::text::Text;

const STANDARD_ERROR: i32 = 2;

/// Nobody has asked for it to be noted: all there is counts.
const UNKNOWN: u32 = 0;
const OPEN: u32 = 1;
const CLOSED: u32 = 2;

/// What standard error was, and its device and inode.
static BEGAN: AtomicU32 = AtomicU32::new(UNKNOWN);
static NUMBER: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

/// The program begins: what standard error is now, it is. Only the first call counts.
pub fn note() {
    if BEGAN.load(Ordering::Acquire) != UNKNOWN {
        return;
    }
    let state = match with_standard_error(file::identity) {
        Ok(Identity { number, .. }) => {
            NUMBER.iter().zip(number).for_each(|(noted, part)| noted.store(part, Ordering::Relaxed));
            OPEN
        }
        Err(_) => CLOSED,
    };
    BEGAN.store(state, Ordering::Release);
}

/// Write to standard error by system calls, or leave it to be told once a thread is [confined](confine). Failure is not reported: there is
/// nowhere to.
pub fn write(message: &[u8]) {
    if IS_CONFINED.load(Ordering::Acquire) {
        LEFT.leave(message);
    } else {
        with_standard_error(|place| write_to(place, message));
    }
}

/// A line of less than 2 KiB, as [`write()`].
pub fn tell(line: fmt::Arguments<'_>) {
    write(Text::<2048>::format(format_args!("{line}\n")).as_bytes());
}

static IS_CONFINED: AtomicBool = AtomicBool::new(false);
static LEFT: Left = Left::new();

/// A thread of the program is about to be where the calls of [`write()`] may end it: no thread makes them from now on.
pub fn confine() {
    IS_CONFINED.store(true, Ordering::Release);
}

/// Lines that were left since, each once.
pub fn take_left(tell: impl FnMut(&[u8])) {
    LEFT.take(tell);
}

/// So many lines wait at most; one that finds no room is not told.
const LINES: usize = 4;
const LINE_BYTES: usize = 512;

/// Nothing is in it; somebody writes or reads it; a line is in it.
const EMPTY: u8 = 0;
const TAKEN: u8 = 1;
const FULL: u8 = 2;

struct Line {
    state: AtomicU8,
    len: AtomicUsize,
    bytes: [AtomicU8; LINE_BYTES],
}

struct Left([Line; LINES]);

impl Left {
    const fn new() -> Self {
        Self(
            [const {
                Line {
                    state: AtomicU8::new(EMPTY),
                    len: AtomicUsize::new(0),
                    bytes: [const { AtomicU8::new(0) }; LINE_BYTES],
                }
            }; LINES],
        )
    }

    fn leave(&self, message: &[u8]) {
        let Some(line) = self.0.iter().find(|line| line.goes(EMPTY, TAKEN)) else { return };
        line.len.store(message.len().min(LINE_BYTES), Ordering::Relaxed);
        for (to, &byte) in line.bytes.iter().zip(message) {
            to.store(byte, Ordering::Relaxed);
        }
        line.state.store(FULL, Ordering::Release);
    }

    fn take(&self, mut tell: impl FnMut(&[u8])) {
        for line in &self.0 {
            if line.state.load(Ordering::Relaxed) != FULL || !line.goes(FULL, TAKEN) {
                continue;
            }
            let mut bytes = [0; LINE_BYTES];
            for (to, byte) in bytes.iter_mut().zip(&line.bytes) {
                *to = byte.load(Ordering::Relaxed);
            }
            let len = line.len.load(Ordering::Relaxed).min(LINE_BYTES);
            line.state.store(EMPTY, Ordering::Release);
            tell(&bytes[..len]);
        }
    }
}

impl Line {
    fn goes(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
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
    let Ok(Identity { number, kind }) = file::identity(place) else { return false };
    let began = BEGAN.load(Ordering::Acquire);
    let is_same = || NUMBER.each_ref().map(|noted| noted.load(Ordering::Relaxed)) == number;
    let is_appended_to = || fd::flags(place).is_ok_and(|flags| flags & O_APPEND != 0);
    began == UNKNOWN || began == OPEN && is_same() || kind == FileKind::Char || is_appended_to()
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
    fn lines_that_were_left_are_taken_once_and_no_more_than_there_is_room_for() {
        let left = Left::new();
        let taken = || {
            let mut taken = std::vec::Vec::new();
            left.take(|line| taken.push(line.to_vec()));
            taken
        };
        left.leave(b"one\n");
        left.leave(&[b'x'; LINE_BYTES + 1]);
        assert_eq!(taken(), [b"one\n".to_vec(), std::vec![b'x'; LINE_BYTES]]);
        assert!(taken().is_empty());
        (0..=LINES).for_each(|_| left.leave(b"again"));
        assert_eq!(taken().len(), LINES);
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
