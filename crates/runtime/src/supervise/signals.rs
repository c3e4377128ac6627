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

/// And those for real time: who is in the program's process group gets what is sent to the group, and by default it would end us.
const FORWARDED: [i32; 14] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGCHLD,
    libc::SIGIO,
    libc::SIGPROF,
    libc::SIGPWR,
    libc::SIGSTKFLT,
    libc::SIGURG,
    libc::SIGVTALRM,
];
/// The first two of the kernel's are the C library's own.
const REAL_TIME: std::ops::RangeInclusive<i32> = 34..=64;

/// One of these, from the timers on the processes' CPU time (`rest`). No other use of it is known.
pub(super) const CPU_TIMER: u32 = 50;

impl SignalQueue {
    pub(super) fn new() -> Result<Self, Error> {
        let number = |signal: i32| u32::try_from(signal).expect("signals are positive");
        let set = SignalSet(
            FORWARDED.into_iter().chain(REAL_TIME).fold(0, |set, signal| set | SignalSet::one(number(signal)).0),
        );
        let outer = set.block();
        match set.descriptor() {
            Ok(fd) => Ok(Self { fd, outer }),
            Err(errno) => Err(Error::new(ErrorKind::Io, format!("signals cannot be received: {}", errno.name()))),
        }
    }

    /// The next signal, and the process that sent it; None: the kernel (the terminal).
    pub(super) fn next(&self) -> Option<(i32, Option<i32>)> {
        let mut record = [0; size_of::<libc::signalfd_siginfo>()];
        let read = file::read(&self.fd, &mut record).ok()?;
        if read < record.len() {
            return None;
        }
        let word = |at: usize| i32::from_ne_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
        // signalfd_siginfo: signal at 0, errno at 4, code at 8, the sender at 12. SI_KERNEL is 0x80.
        Some((word(0), (word(8) != 0x80).then(|| word(12))))
    }
}
