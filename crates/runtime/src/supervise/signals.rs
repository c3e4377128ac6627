//! Signals that the supervisor passes on to the program, and the ends of its children.

use pagetide_sys::fd::Fd;
use pagetide_sys::file;
use pagetide_sys::signal::SignalSet;

use crate::error::{Error, ErrorKind};

/// Signals as readable events: they stay blocked for us, not for the program.
#[derive(Debug)]
pub(super) struct SignalQueue {
    pub(super) fd: Fd,
    /// What was blocked before.
    pub(super) outer: SignalSet,
}

const FORWARDED: [i32; 8] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGCHLD,
];

/// From the timers on the processes' CPU time (`rest`). No other use of it is known.
pub(super) const CPU_TIMER: u32 = 50;

impl SignalQueue {
    pub(super) fn new() -> Result<Self, Error> {
        let number = |signal: i32| u32::try_from(signal).expect("signals are positive");
        let timer = SignalSet::one(CPU_TIMER).0;
        let set = SignalSet(FORWARDED.into_iter().fold(timer, |set, signal| set | SignalSet::one(number(signal)).0));
        let outer = set.block();
        match set.descriptor() {
            Ok(fd) => Ok(Self { fd, outer }),
            Err(errno) => Err(Error::new(ErrorKind::Io, format!("signals cannot be received: {}", errno.name()))),
        }
    }

    /// The next signal, and whether the kernel (the terminal) sent it.
    pub(super) fn next(&self) -> Option<(i32, bool)> {
        let mut record = [0; size_of::<libc::signalfd_siginfo>()];
        let read = file::read(&self.fd, &mut record).ok()?;
        if read < record.len() {
            return None;
        }
        let word = |at: usize| i32::from_ne_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
        // signalfd_siginfo: signal at 0, errno at 4, code at 8. SI_KERNEL is 0x80.
        Some((word(0), word(8) == 0x80))
    }
}
