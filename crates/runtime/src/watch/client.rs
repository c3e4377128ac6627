//! Asking a run.
//!
//! Waits for an answer for at most [`ANSWER_NS`]: a supervisor that is stopped or swamped is an error, not a hang.

use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt;

use pagetide_sys::fd::{self, Fd, PollFd, events};
use pagetide_sys::socket::{self, Received};
use pagetide_sys::{Errno, proc};

use super::message::{Answer, Memory, PACKET_BYTES, Request, Snapshot};
use super::place::{self, Place};

/// How long an answer may take.
const ANSWER_NS: u64 = 5_000_000_000;
/// Parents of a process that are looked at, at most.
const GENERATIONS_MAX: usize = 4096;

/// Why a run cannot be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchError {
    /// There is no such run, or none of this user's. The text says which.
    Unknown(String),
    /// It ended meanwhile.
    Ended,
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
            Self::Unknown(text) | Self::Foreign(text) | Self::System(text) => f.write_str(text),
            Self::Ended => f.write_str("the run has ended"),
            Self::Silent => write!(f, "the run does not answer for {} s: is it stopped?", ANSWER_NS / 1_000_000_000),
        }
    }
}

impl std::error::Error for WatchError {}

/// A line to a run.
#[derive(Debug)]
pub struct Connection {
    socket: Fd,
}

impl Connection {
    /// Call a run of this user: by its name, or by the number of its supervisor or of any of its processes.
    pub fn open(run: &str) -> Result<Self, WatchError> {
        let unknown = |text: String| Err(WatchError::Unknown(text));
        let Ok(place) = Place::open(false) else { return unknown(describe_absent(run)) };
        match place.connect(run) {
            Ok(socket) => return Self::to_own(socket),
            Err(Errno::ECONNREFUSED) => place.clean(run),
            Err(Errno::EAGAIN) => return Err(WatchError::Silent),
            Err(_) => {}
        }
        let Ok(pid) = run.parse::<u64>() else { return unknown(describe_absent(run)) };
        let line = line_of(pid);
        // Of runs inside of runs the innermost.
        let found = all(&place).flatten().filter_map(|(connection, snapshot)| {
            let generations = line.iter().position(|&ancestor| ancestor == snapshot.run.pid)?;
            Some((generations, connection))
        });
        let nearest = found.min_by_key(|(generations, _)| *generations);
        nearest.map_or_else(|| unknown(describe_absent(run)), |(_, connection)| Ok(connection))
    }

    /// Nobody but the user, or root, takes our requests: the directory is private, and this makes sure.
    fn to_own(socket: Fd) -> Result<Self, WatchError> {
        let peer = socket::peer(&socket).map_err(|errno| WatchError::System(errno.name().to_owned()))?;
        if peer.uid == place::user() || peer.uid == 0 {
            Ok(Self { socket })
        } else {
            Err(WatchError::Unknown(format!("the run belongs to user {}", peer.uid)))
        }
    }

    /// Ask, and wait for the answer.
    pub fn ask(&mut self, request: &Request) -> Result<Answer, WatchError> {
        match socket::send(&self.socket, request.encode().as_bytes(), &[], false) {
            Ok(()) => {}
            Err(Errno::EPIPE | Errno::ECONNRESET) => return Err(WatchError::Ended),
            Err(Errno::EAGAIN) => return Err(WatchError::Silent),
            Err(errno) => return Err(WatchError::System(format!("the run cannot be asked: {}", errno.name()))),
        }
        let mut packet = vec![0; PACKET_BYTES];
        loop {
            match socket::receive(&self.socket, &mut packet, &mut [], false) {
                Ok(Received::Message { bytes, .. }) => {
                    return Answer::decode(&packet[..bytes]).map_err(WatchError::Foreign);
                }
                Ok(Received::Empty) => {}
                Ok(Received::Closed) | Err(_) => return Err(WatchError::Ended),
                Ok(Received::Cut) => return Err(WatchError::Foreign("the run's answer is too long".to_owned())),
            }
            let mut fds = [PollFd::new(&self.socket, events::IN)];
            if fd::poll(&mut fds, Some(ANSWER_NS)) == Ok(0) {
                return Err(WatchError::Silent);
            }
        }
    }

    /// Wait for so many nanoseconds; true if the run has ended meanwhile.
    pub fn wait(&mut self, ns: u64) -> bool {
        // Nothing is asked for, so nothing comes but the end. A signal cuts the wait short.
        let mut fds = [PollFd::new(&self.socket, events::IN)];
        matches!(fd::poll(&mut fds, Some(ns)), Ok(1..))
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

/// How the runs of this user go, in the order of their names; what could not be asked, with its name.
pub fn runs() -> Vec<Result<Snapshot, (String, WatchError)>> {
    let Ok(place) = Place::open(false) else { return Vec::new() };
    all(&place).map(|answer| answer.map(|(_, snapshot)| snapshot)).collect()
}

/// Those that have ended are left out, and their sockets removed.
fn all(place: &Place) -> impl Iterator<Item = Result<(Connection, Snapshot), (String, WatchError)>> {
    place.names().into_iter().filter_map(|name| {
        let opened = match place.connect(&name) {
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
