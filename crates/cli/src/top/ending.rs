//! Ends from outside: a signal, or a terminal that is gone. The terminal is given back as it was, then the signal takes its course.
//!
//! The main loop cannot be trusted with it alone: it may wait for a run that does not answer, and crossterm reads a terminal that is
//! gone again and again without end. So a thread waits for both, tells the main loop, and ends the process where that does not do it.
//! Nothing here can wait for ever: what may (a terminal whose other side is stuck) is done by a thread of its own, and left behind.

use std::io;
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use pagetide_sys::fd::{self, Fd, PollFd, events};
use pagetide_sys::file;
use pagetide_sys::signal::{self, SignalSet, number};
use pagetide_sys::thread::getpid;
use ratatui::crossterm::{cursor, execute};

/// So long the main loop has to end by itself, and so long the terminal to be given back.
const GRACE: Duration = Duration::from_millis(500);

/// The kernel's `signalfd_siginfo`: the signal's number comes first.
const RECORD_BYTES: usize = 128;

/// The signal that is to end this process, once there is one.
#[derive(Debug)]
pub(super) struct Ending {
    /// 0: none yet.
    signal: Arc<AtomicU32>,
}

impl Ending {
    /// From now on signals end nothing at once. To be called before any other thread is made: a thread that does not block them
    /// would be ended by them, and the process with it.
    ///
    /// Err: no descriptor or no thread is to be had; signals do what they did.
    pub(super) fn watch() -> io::Result<Self> {
        let set = [number::HUP, number::INT, number::TERM];
        let set = SignalSet(set.into_iter().fold(0, |set, signal| set | SignalSet::one(signal).0));
        let before = set.block();
        let watched = set.descriptor().map_err(|errno| io::Error::other(errno.name())).and_then(|signals| {
            let signal = Arc::new(AtomicU32::new(0));
            let told = Arc::clone(&signal);
            thread::Builder::new().name("ending".to_owned()).spawn(move || end_late(&signals, &told))?;
            Ok(Self { signal })
        });
        if watched.is_err() {
            before.restore();
        }
        watched
    }

    /// The signal by which this process is to end.
    pub(super) fn asked(&self) -> Option<u32> {
        match self.signal.load(Ordering::Acquire) {
            0 => None,
            signal => Some(signal),
        }
    }
}

/// Wait for an end, tell the main loop of it, and end the process where that has not done it in time.
fn end_late(signals: &Fd, told: &AtomicU32) {
    let signal = next(signals);
    told.store(signal, Ordering::Release);
    thread::park_timeout(GRACE);
    let (done, given_back) = mpsc::channel::<()>();
    // Where there is no thread to be had, `done` is gone, and the wait is over at once.
    let _ = thread::Builder::new().spawn(move || {
        give_back();
        drop(done);
    });
    let _ = given_back.recv_timeout(GRACE);
    die(signal);
}

/// The signal that came; SIGHUP where the terminal is gone, whether or not one was sent.
fn next(signals: &Fd) -> u32 {
    loop {
        let mut both = [PollFd::new(signals, events::IN), PollFd::numbered(0, 0)];
        // An interrupted wait (the size of the terminal has changed) has seen nothing.
        if fd::poll(&mut both, None).is_err() {
            continue;
        }
        let mut record = [0; RECORD_BYTES];
        if both[0].seen() != 0 && file::read(signals, &mut record) == Ok(RECORD_BYTES) {
            return u32::from_ne_bytes([record[0], record[1], record[2], record[3]]);
        }
        if both[1].seen() != 0 {
            return number::HUP;
        }
    }
}

/// The terminal as it was: its mode, its screen, its cursor, as far as it can still be told of them.
pub(super) fn give_back() {
    let _ = ratatui::try_restore();
    let _ = execute!(io::stdout(), cursor::Show);
}

/// End by this signal, so that whoever waits for this process sees it.
pub(super) fn die(signal: u32) -> ! {
    SignalSet::one(signal).unblock();
    let _ = signal::kill(getpid(), signal);
    // Whoever started us had it ignored.
    process::exit(i32::try_from(128 + signal).unwrap_or(1))
}
