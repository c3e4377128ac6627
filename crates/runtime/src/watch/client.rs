//! Asking a run.
//!
//! Waits for an answer for at most [`ANSWER_NS`]: a supervisor that is stopped or swamped is an error, not a hang.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;

use pagetide_sys::fd::{self, Fd, PollFd, events};
use pagetide_sys::socket::{self, Received};
use pagetide_sys::{Errno, clock, proc};

use super::message::{Answer, Memory, PACKET_BYTES, Request, Snapshot, too_many};
use super::place::{self, Place};

/// How long an answer may take.
const ANSWER_NS: u64 = 5_000_000_000;
/// How long a run that has closed its socket may take to end.
const END_NS: u64 = 1_000_000_000;
/// Time between two calls of a run at which too many wait to be heard.
const CALL_AGAIN_NS: u64 = 10_000_000;
/// Parents of a process that are looked at, at most.
const GENERATIONS_MAX: usize = 4096;

/// Why a run cannot be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchError {
    /// There is no such run, or none of this user's. The text says which.
    Unknown(String),
    /// It ended meanwhile.
    Ended,
    /// It serves as many callers as it can. The text says how many.
    Busy(String),
    /// It goes on, and has closed the connection.
    Dropped,
    /// It does not answer: it is stopped, or its machine is swamped.
    Silent,
    /// It answers what cannot be understood.
    Foreign(String),
    /// The kernel refused something.
    System(String),
}

impl fmt::Display for WatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(text) | Self::Busy(text) | Self::Foreign(text) | Self::System(text) => f.write_str(text),
            Self::Ended => f.write_str("the run has ended"),
            Self::Dropped => f.write_str("the run goes on, and has closed the connection: try again"),
            Self::Silent => write!(f, "the run does not answer for {} s: is it stopped?", ANSWER_NS / 1_000_000_000),
        }
    }
}

impl std::error::Error for WatchError {}

/// A line to a run.
#[derive(Debug)]
pub struct Connection {
    socket: Fd,
    /// The run's process, if the kernel tells of it.
    process: Option<Fd>,
}

impl Connection {
    /// Call a run of this user: by its name, or by the number of its supervisor or of any of its processes.
    pub fn open(run: &str) -> Result<Self, WatchError> {
        let unknown = |text: String| Err(WatchError::Unknown(text));
        let Ok(place) = Place::open(false) else { return unknown(describe_absent(run)) };
        match call(&place, run) {
            Ok(socket) => return Self::to_own(socket),
            Err(Errno::ECONNREFUSED) => place.clean(run),
            Err(Errno::EAGAIN) => return Err(WatchError::Silent),
            Err(_) => {}
        }
        let Ok(pid) = run.parse::<u64>() else { return unknown(describe_absent(run)) };
        let line = line_of(pid);
        let (mut nearest, mut mute) = (None, None);
        for answer in all(&place) {
            match answer {
                Ok((connection, snapshot)) => {
                    let Some(generations) = line.iter().position(|&ancestor| ancestor == snapshot.run.pid) else {
                        continue;
                    };
                    // Of runs inside of runs the innermost.
                    if nearest.as_ref().is_none_or(|&(nearer, _)| generations < nearer) {
                        nearest = Some((generations, connection));
                    }
                }
                Err((name, error)) => mute = Some(format!("{}, unless to {name}: {error}", describe_absent(run))),
            }
        }
        match nearest {
            Some((_, connection)) => Ok(connection),
            None => unknown(mute.unwrap_or_else(|| describe_absent(run))),
        }
    }

    /// Nobody but the user, or root, takes our requests: the directory is private, and this makes sure.
    fn to_own(socket: Fd) -> Result<Self, WatchError> {
        let peer = socket::peer(&socket).map_err(|errno| WatchError::System(errno.name().to_owned()))?;
        if peer.uid == place::user() || peer.uid == 0 {
            Ok(Self { socket, process: fd::pidfd(peer.pid).ok() })
        } else {
            Err(WatchError::Unknown(format!("the run belongs to user {}", peer.uid)))
        }
    }

    /// Ask, and wait for the answer.
    pub fn ask(&mut self, request: &Request) -> Result<Answer, WatchError> {
        match socket::send(&self.socket, request.encode().as_bytes(), &[], false) {
            Ok(()) => {}
            Err(Errno::EPIPE | Errno::ECONNRESET) => return Err(self.why_closed()),
            Err(Errno::EAGAIN) => return Err(WatchError::Silent),
            Err(errno) => return Err(WatchError::System(format!("the run cannot be asked: {}", errno.name()))),
        }
        let mut packet = vec![0; PACKET_BYTES];
        loop {
            match socket::receive(&self.socket, &mut packet, &mut [], false) {
                Ok(Received::Message { bytes, .. }) => {
                    let answer = Answer::decode(&packet[..bytes]).map_err(WatchError::Foreign)?;
                    let is_too_many = answer == Answer::Refused(too_many());
                    return if is_too_many { Err(WatchError::Busy(too_many())) } else { Ok(answer) };
                }
                Ok(Received::Empty) => {}
                Ok(Received::Closed) | Err(_) => return Err(self.why_closed()),
                Ok(Received::Cut) => return Err(WatchError::Foreign("the run's answer is too long".to_owned())),
            }
            let mut fds = [PollFd::new(&self.socket, events::IN)];
            if fd::poll(&mut fds, Some(ANSWER_NS)) == Ok(0) {
                return Err(WatchError::Silent);
            }
        }
    }

    /// Why the run has closed the connection: what it said last, or its end.
    fn why_closed(&self) -> WatchError {
        let mut packet = vec![0; PACKET_BYTES];
        // The kernel tells first that a request was left unread, then what was said.
        for _ in 0..2 {
            if let Ok(Received::Message { bytes, .. }) = socket::receive(&self.socket, &mut packet, &mut [], false)
                && let Ok(Answer::Refused(text)) = Answer::decode(&packet[..bytes])
                && text == too_many()
            {
                return WatchError::Busy(text);
            }
        }
        // It closes its socket a little before it ends.
        let lives = |process| fd::poll(&mut [PollFd::new(process, events::IN)], Some(END_NS)) == Ok(0);
        if self.process.as_ref().is_some_and(lives) { WatchError::Dropped } else { WatchError::Ended }
    }

    /// Wait for so many nanoseconds. Err: the connection was closed meanwhile.
    pub fn wait(&mut self, ns: u64) -> Result<(), WatchError> {
        // Nothing is asked for, so nothing comes but the end. A signal cuts the wait short.
        let mut fds = [PollFd::new(&self.socket, events::IN)];
        if matches!(fd::poll(&mut fds, Some(ns)), Ok(1..)) { Err(self.why_closed()) } else { Ok(()) }
    }

    /// How it goes.
    pub fn stat(&mut self) -> Result<Snapshot, WatchError> {
        match self.ask(&Request::Stat)? {
            Answer::Snapshot(snapshot) => Ok(*snapshot),
            Answer::Done(text) | Answer::Refused(text) => Err(WatchError::Foreign(text)),
            Answer::Regions(_) => Err(WatchError::Foreign("the run answers what was not asked".to_owned())),
        }
    }

    /// What the memory of a process of it holds and does. None: the process has ended, or is not paged.
    pub fn memory(&mut self, pid: u64) -> Result<Option<Memory>, WatchError> {
        match self.ask(&Request::Regions { pid })? {
            Answer::Regions(memory) => Ok(Some(*memory)),
            Answer::Done(_) | Answer::Refused(_) => Ok(None),
            Answer::Snapshot(_) => Err(WatchError::Foreign("the run answers what was not asked".to_owned())),
        }
    }
}

/// Call the run with this name. While too many wait to be heard, again, as long as an answer may take.
fn call(place: &Place, name: &str) -> Result<Fd, Errno> {
    let end = clock::now() + ANSWER_NS;
    loop {
        match place.connect(name) {
            Err(Errno::EAGAIN) if clock::now() < end => {
                // A signal cuts the wait short.
                let _ = fd::poll(&mut [], Some(CALL_AGAIN_NS));
            }
            answer => return answer,
        }
    }
}

/// How the runs of this user go, in the order of their names; what could not be asked, with its name.
pub fn runs() -> Vec<Result<Snapshot, (String, WatchError)>> {
    let Ok(place) = Place::open(false) else { return Vec::new() };
    all(&place).map(|answer| answer.map(|(_, snapshot)| snapshot)).collect()
}

/// Those that have ended are left out, and their sockets removed.
fn all(place: &Place) -> impl Iterator<Item = Result<(Connection, Snapshot), (String, WatchError)>> {
    place.names().into_iter().filter_map(|name| {
        let opened = match call(place, &name) {
            Ok(socket) => Connection::to_own(socket),
            Err(Errno::ECONNREFUSED) => {
                place.clean(&name);
                return None;
            }
            Err(Errno::ENOENT) => return None,
            Err(Errno::EAGAIN) => Err(WatchError::Silent),
            Err(errno) => Err(WatchError::System(errno.name().to_owned())),
        };
        match opened.and_then(|mut connection| connection.stat().map(|snapshot| (connection, snapshot))) {
            Ok(answer) => Some(Ok(answer)),
            Err(WatchError::Ended) => None,
            Err(error) => Some(Err((name, error))),
        }
    })
}

/// A process and those that it descends from, itself first: all processes of a run descend from its supervisor, which collects orphans.
fn line_of(pid: u64) -> Vec<u64> {
    let parent = |&pid: &u64| {
        let stat = proc::stat(Some(i32::try_from(pid).ok()?)).ok()?;
        u64::try_from(stat.parent).ok().filter(|&parent| parent > 0)
    };
    std::iter::successors(Some(pid), parent).take(GENERATIONS_MAX).collect()
}

/// What is to be said of a run that is not there.
fn describe_absent(run: &str) -> String {
    let process = run.parse::<u32>().ok().and_then(|pid| fs::metadata(format!("/proc/{pid}")).ok());
    match process {
        Some(process) if process.uid() != place::user() => {
            format!("process {run} belongs to user {}: its runs are watched by that user only", process.uid())
        }
        Some(_) => format!("process {run} belongs to no run"),
        None if run.bytes().all(|byte| byte.is_ascii_digit()) => format!("there is no process {run}"),
        None => format!("there is no run '{run}'"),
    }
}
