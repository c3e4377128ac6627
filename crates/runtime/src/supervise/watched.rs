//! The socket at which a run is watched and steered, served from the supervisor's loop.
//!
//! It never waits: a caller that does not take its answer is dropped, and one that says nothing holds a descriptor, of which there
//! are at most [`CALLERS_MAX`]: a newcomer beyond them is told so, and those that are served stay. Who calls must be the user of the
//! run, or root. One request of each caller in a turn of the loop.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use pagetide_core::types::Nanos;
use pagetide_core::vmstat::Counter;
use pagetide_sys::fd::{self, Fd, PollFd, events};
use pagetide_sys::socket::{self, Received};
use pagetide_sys::{Errno, clock, proc, sysinfo, thread};

use super::commands::{Outcome, RunCommand, Ticket};
use super::totals::Totals;
use super::tree::Process;
use super::{BUDGET_BYTES_MIN, RunOptions, RunReport, Supervisor, SwapSpec};
use crate::control::{latency_of_bucket, machine_counter};
use crate::error::{Error, ErrorKind};
use crate::session::command::PlaceState;
use crate::shares;
use crate::space::PAGE_BYTES;
use crate::watch::message::{CALLERS_MAX, PROCESSES_MAX, too_many};
use crate::watch::place::{self, Place};
use crate::watch::{Answer, DeviceView, PRIORITY_BY_ORDER, ProcessView, Request, RunView, Snapshot};

/// How long a caller may take to ask: after that its place is another one's.
const GREETING_NS: Nanos = 1_000_000_000;
/// The same of one that has asked before.
const QUIET_NS: Nanos = 60_000_000_000;
/// Bytes of a request at most.
const REQUEST_BYTES: usize = 4096;

/// How long a caller waits for the agents: less than it waits for us.
const AGENTS_NS: Nanos = 3_000_000_000;
/// Bytes of a command that are told of.
const COMMAND_BYTES_MAX: usize = 200;
/// Seconds over which the recent course is told of.
const RECENT_S: usize = 10;

/// What was counted at a moment.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    at: Nanos,
    major_faults: u64,
    managed_us: u64,
    stall_us: u64,
}

impl Mark {
    /// Now.
    fn of(totals: &Totals) -> Self {
        let machine = |name| machine_counter(name).map_or(0, |index| totals.counters[index]);
        Self {
            at: clock::now(),
            major_faults: totals.counters[Counter::pgmajfault as usize],
            managed_us: machine("pt_managed_us"),
            stall_us: machine("pt_stall_some_us"),
        }
    }
}

/// The socket, and who called.
#[derive(Debug)]
pub(super) struct Watched {
    open: Option<Open>,
    callers: Vec<Caller>,
    /// As given by the user.
    name: Option<String>,
    command: String,
    /// Nanoseconds since 1970.
    started_unix_ns: u64,
    /// Callers that wait for what the agents answer, and since when.
    waiting: Vec<(Caller, Ticket, Nanos)>,
    /// One a second, the oldest first.
    marks: VecDeque<Mark>,
}

/// Who called.
#[derive(Debug)]
struct Caller {
    socket: Fd,
    /// When it called, or asked last.
    since: Nanos,
    has_asked: bool,
    /// The process whose memory it looks at.
    looks_at: Option<u64>,
}

impl Caller {
    /// It has asked nothing for a while, or leaves its answers.
    fn gives_way(&self, now: Nanos) -> bool {
        let patience = if self.has_asked { QUIET_NS } else { GREETING_NS };
        let is_mute = now > self.since + patience;
        is_mute || fd::poll(&mut [PollFd::new(&self.socket, events::OUT)], Some(0)) == Ok(0)
    }

    /// Who does not take that does not listen.
    fn dismiss(self) {
        let _ = socket::send(&self.socket, Answer::Refused(too_many()).encode().as_bytes(), &[], false);
    }
}

#[derive(Debug)]
struct Open {
    listener: Fd,
    place: Place,
    name: String,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.place.remove(&self.name);
    }
}

impl Watched {
    /// Listen. A run that was given no name goes on unwatched where there is no place for a socket.
    pub(super) fn new(options: &RunOptions) -> Result<Self, Error> {
        let open = match (&options.name, Self::open(options.name.as_deref())) {
            (_, Ok(open)) => Some(open),
            (None, Err(_)) => None,
            (Some(name), Err(why)) => {
                return Err(Error::new(ErrorKind::Config, format!("--name {name}: {why}")));
            }
        };
        let words: Vec<_> = options.command.iter().map(|word| word.to_string_lossy()).collect();
        let mut command = words.join(" ");
        command.truncate(command.floor_char_boundary(COMMAND_BYTES_MAX));
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Ok(Self {
            open,
            callers: Vec::new(),
            name: options.name.clone(),
            command,
            started_unix_ns: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX),
            waiting: Vec::new(),
            marks: VecDeque::from([Mark { at: clock::now(), ..Mark::default() }]),
        })
    }

    fn open(name: Option<&str>) -> Result<Open, String> {
        if let Some(name) = name {
            place::check_name(name)?;
        }
        let place = Place::open(true).map_err(|error| {
            format!("there is no directory for its socket ($XDG_RUNTIME_DIR, or below $HOME): {error}")
        })?;
        let name = name.map_or_else(|| thread::getpid().to_string(), str::to_owned);
        match place.listen(&name) {
            Ok(listener) => Ok(Open { listener, place, name }),
            Err(Errno::EADDRINUSE) => Err("another run has this name; `pagetide ps` lists the runs".to_owned()),
            Err(errno) => Err(format!("no socket in {}: {}", place.path.display(), errno.name())),
        }
    }

    /// What to wait for.
    pub(super) fn fds(&self) -> impl Iterator<Item = PollFd> {
        let listener = self.open.iter().map(|open| &open.listener);
        let callers = self.callers.iter().map(|caller| &caller.socket);
        listener.chain(callers).map(|fd| PollFd::new(fd, events::IN))
    }

    /// Take calls. `heard`: callers that are being answered.
    fn accept(&mut self, heard: usize) {
        let now = clock::now();
        let Some(open) = &self.open else { return };
        while let Ok(Some(socket)) = socket::accept(&open.listener) {
            let is_allowed = socket::peer(&socket).is_ok_and(|peer| peer.uid == place::user() || peer.uid == 0);
            if !is_allowed {
                continue;
            }
            let newcomer = Caller { socket, since: now, has_asked: false, looks_at: None };
            let served = heard + self.callers.len() + self.waiting.len();
            if served < CALLERS_MAX {
                self.callers.push(newcomer);
            } else if let Some(caller) = self.callers.iter_mut().find(|caller| caller.gives_way(now)) {
                std::mem::replace(caller, newcomer).dismiss();
            } else {
                newcomer.dismiss();
            }
        }
    }

    /// One request of each caller that has one, and who it is. Who has hung up is forgotten.
    fn hear(&mut self) -> Vec<(Caller, Result<Request, String>)> {
        let mut requests = Vec::new();
        let mut packet = [0; REQUEST_BYTES];
        for caller in std::mem::take(&mut self.callers) {
            match socket::receive(&caller.socket, &mut packet, &mut [], false) {
                Ok(Received::Empty) => self.callers.push(caller),
                Ok(Received::Message { bytes, .. }) => requests.push((caller, Request::decode(&packet[..bytes]))),
                Ok(Received::Cut) => requests.push((caller, Err("the request is too long".to_owned()))),
                Ok(Received::Closed) | Err(_) => {}
            }
        }
        requests
    }

    /// A caller whose queue is full does not listen, and is dropped.
    fn reply(&mut self, caller: Caller, answer: &Answer) {
        if socket::send(&caller.socket, answer.encode().as_bytes(), &[], false).is_ok() {
            self.callers.push(caller);
        }
    }
}

impl Supervisor {
    /// About every second: what was counted so far, for the recent course.
    pub(super) fn mark(&mut self) {
        let mark = Mark::of(&self.counted());
        if self.watched.marks.len() > RECENT_S {
            self.watched.marks.pop_front();
        }
        self.watched.marks.push_back(mark);
    }

    /// Answer those who watch.
    pub(super) fn serve_watchers(&mut self) {
        // First who has hung up is forgotten.
        let mut requests = self.watched.hear();
        self.watched.accept(requests.len());
        requests.extend(self.watched.hear());
        if !self.watched.waiting.is_empty() {
            self.answer_waiting();
        }
        for (mut caller, request) in requests {
            if request.is_ok() {
                (caller.has_asked, caller.since) = (true, clock::now());
            }
            if let Ok(Request::Regions { pid }) = request {
                caller.looks_at = Some(pid);
            }
            match request.map_or_else(|why| Reply::Now(Answer::Refused(why)), |request| self.obey(request)) {
                Reply::Now(answer) => self.watched.reply(caller, &answer),
                Reply::When(ticket) => self.watched.waiting.push((caller, ticket, clock::now())),
            }
        }
        self.want_heat();
    }

    /// The agents count by parts of memory as long as somebody looks at their process.
    fn want_heat(&self) {
        let Watched { callers, waiting, .. } = &self.watched;
        let looked_at = |pid: i32| {
            let mut callers = callers.iter().chain(waiting.iter().map(|(caller, ..)| caller));
            callers.any(|caller| caller.looks_at == Some(u64::from(pid.cast_unsigned())))
        };
        for process in &self.tree.list {
            if let Some(link) = &process.link {
                let is_wanted = looked_at(process.pid);
                link.control.entry().heat.want(is_wanted);
                if is_wanted {
                    link.ring();
                }
            }
        }
    }

    fn obey(&mut self, request: Request) -> Reply {
        let command = match request {
            Request::Stat => {
                let totals = self.counted();
                return Reply::Now(Answer::Snapshot(Box::new(self.snapshot(&self.report(&totals), &totals))));
            }
            Request::Regions { pid } => return Reply::Now(self.memory_of(pid)),
            Request::Memory(bytes) => return Reply::Now(self.change_budget(bytes)),
            Request::PageOut(bytes) => RunCommand::PageOut { bytes },
            Request::Pause => RunCommand::Pause,
            Request::Resume => RunCommand::Resume,
            Request::Set { key, value } => RunCommand::Set { knob: key, value },
            Request::SwapOn { path, size_bytes, priority } => {
                RunCommand::SwapOn(SwapSpec { path: PathBuf::from(path), size_bytes, priority })
            }
            Request::SwapOff { path, mode } => RunCommand::SwapOff { path: PathBuf::from(path), mode },
            Request::StopSwapOff { path } => RunCommand::StopSwapOff { path: PathBuf::from(path) },
        };
        match self.command(command) {
            Ok(ticket) => Reply::When(ticket),
            Err(error) => Reply::Now(Answer::Refused(error.to_string())),
        }
    }

    /// Tell those who wait what the agents said, or that some say nothing.
    fn answer_waiting(&mut self) {
        let now = clock::now();
        for (caller, ticket, since) in std::mem::take(&mut self.watched.waiting) {
            if let Some(outcome) = self.outcome(ticket) {
                self.watched.reply(caller, &tell(&outcome));
            } else if now > since + AGENTS_NS {
                self.forget(ticket);
                let text = "done where the program runs; a process that is stopped follows when it goes on".to_owned();
                self.watched.reply(caller, &Answer::Done(text));
            } else {
                self.watched.waiting.push((caller, ticket, since));
            }
        }
    }

    pub(super) fn snapshot(&self, report: &RunReport, totals: &Totals) -> Snapshot {
        let (first, last) = (self.watched.marks.front().copied().unwrap_or_default(), Mark::of(totals));
        let list = &self.tree.list;
        let largest = self.tree.largest(PROCESSES_MAX);
        let buckets = totals.latency.iter().enumerate().filter(|&(_, &faults)| faults > 0);
        let count = |number: usize| u64::try_from(number).expect("a length");
        Snapshot {
            run: RunView {
                pid: u64::from(thread::getpid().cast_unsigned()),
                main_pid: u64::from(self.main_pid.cast_unsigned()),
                started_unix_ns: self.watched.started_unix_ns,
                now_ns: clock::now(),
                budget_bytes: self.budget_pages * PAGE_BYTES,
                resident_bytes: self.resident_pages() * PAGE_BYTES,
                peak_resident_bytes: report.peak_resident_bytes,
                swapped_bytes: self.tree.away().saturating_mul(PAGE_BYTES),
                recent_ns: last.at - first.at,
                recent_major_faults: last.major_faults.saturating_sub(first.major_faults),
                recent_managed_us: last.managed_us.saturating_sub(first.managed_us),
                recent_stall_us: last.stall_us.saturating_sub(first.stall_us),
                processes: count(list.len()),
                managed_processes: count(list.iter().filter(|process| process.is_managed()).count()),
                name: self.watched.name.clone().unwrap_or_default(),
            },
            command: self.watched.command.clone(),
            counters: report.vmstat.iter().map(|&(name, value)| (name.to_owned(), value)).collect(),
            latency: buckets.map(|(bucket, &faults)| (latency_of_bucket(bucket), faults)).collect(),
            returns: report.absences.buckets().collect(),
            processes: largest.into_iter().map(view).collect(),
            devices: self.device_views(),
        }
    }

    /// Another budget for the whole run: the shares follow from the next turn of the loop on.
    fn change_budget(&mut self, bytes: u64) -> Answer {
        let mib = |pages: u64| pages.div_ceil(256);
        let (pages, before) = (bytes / PAGE_BYTES, self.budget_pages);
        if bytes < BUDGET_BYTES_MIN {
            let (kib, least) = (bytes >> 10, BUDGET_BYTES_MIN >> 20);
            return Answer::Refused(format!("a budget of {kib} KiB is under the minimum of {least} MiB"));
        }
        let pinned = self.pinned_pages(pages);
        if pages < pinned {
            let text = format!(
                "{} MiB are less than the {} MiB that cannot be paged out (locked, read-only, our own tables)",
                pages >> 8,
                mib(pinned)
            );
            return Answer::Refused(text);
        }
        let most = sysinfo::usable_memory_bytes().unwrap_or(u64::MAX);
        if bytes > most {
            let text = format!("a budget of {} MiB: the machine has {} MiB", mib(pages), most >> 20);
            return Answer::Refused(text);
        }
        // What is counted of several processes is what each of them needed.
        let managed = self.tree.list.iter().filter(|process| process.is_managed()).count().max(1);
        let managed = u64::try_from(managed).expect("a length");
        self.repriced.change(&self.counted().absences(), before / managed, pages / managed);
        self.budget_pages = pages;
        for link in self.tree.list.iter().filter_map(|process| process.link.as_ref()) {
            link.control.entry().budget_pages.store(pages, Ordering::Relaxed);
            link.ring();
        }
        Answer::Done(format!("budget {} MiB, was {} MiB", mib(pages), mib(before)))
    }

    /// What such a budget could not make leave.
    pub(super) fn pinned_pages(&self, budget_pages: u64) -> u64 {
        let managed = self.tree.list.iter().filter(|process| process.is_managed());
        let floor = shares::floor(budget_pages, managed.clone().count());
        let pinned = managed.map(|process| {
            let entry = process.link.as_ref().map(|link| link.control.entry());
            // The program may write its page: a number to compare with, and no more.
            let told = entry.map_or(0, |entry| entry.pinned_pages.load(Ordering::Relaxed)).min(process.resident);
            let locked = proc::status(Some(process.pid)).map_or(0, |status| status.locked_bytes / PAGE_BYTES);
            told.max(locked.min(process.resident)).max(floor)
        });
        pinned.sum()
    }

    fn device_views(&self) -> Vec<DeviceView> {
        let places = self.places().into_iter().zip(PRIORITY_BY_ORDER..);
        places
            .map(|(place, order)| DeviceView {
                size_bytes: place.size_pages.saturating_mul(PAGE_BYTES),
                used_bytes: place.used_pages.saturating_mul(PAGE_BYTES),
                lost_bytes: place.lost_pages.saturating_mul(PAGE_BYTES),
                priority: place.priority.map_or(order, |priority| u64::from(priority.cast_unsigned())),
                state: match place.state {
                    PlaceState::Open => 0,
                    PlaceState::Full => 1,
                    PlaceState::Draining | PlaceState::Gone => 2,
                    PlaceState::Failed => 3,
                    PlaceState::GivenUp => 4,
                },
                pages_per_s: place.rate,
                left_ns: place.left_ns.unwrap_or(0),
                read_requests: place.traffic[0].requests,
                read_bytes: place.traffic[0].pages.saturating_mul(PAGE_BYTES),
                read_ns: place.traffic[0].ns,
                write_requests: place.traffic[1].requests,
                write_bytes: place.traffic[1].pages.saturating_mul(PAGE_BYTES),
                write_ns: place.traffic[1].ns,
                path: place.path.display().to_string(),
            })
            .collect()
    }
}

/// When an answer comes.
enum Reply {
    Now(Answer),
    When(Ticket),
}

/// What the agents made of a command.
fn tell(outcome: &Outcome) -> Answer {
    let count = outcome.asked;
    match outcome.refused.first() {
        None if count > 1 => Answer::Done(format!("{} ({count} processes)", outcome.told)),
        None => Answer::Done(outcome.told.clone()),
        Some((pid, why)) => {
            Answer::Refused(format!("{} of {count} processes refuse: process {pid}: {why}", outcome.refused.len()))
        }
    }
}

fn view(process: &Process) -> ProcessView {
    let entry = process.link.as_ref().map(|link| link.control.entry());
    let read = |word: fn(&crate::control::Entry) -> &std::sync::atomic::AtomicU64| {
        entry.map_or(0, |entry| word(entry).load(Ordering::Relaxed))
    };
    let machine = |name| {
        let word = machine_counter(name).and_then(|index| entry?.counters.get(index));
        word.map_or(0, |word| word.load(Ordering::Relaxed))
    };
    ProcessView {
        pid: u64::from(process.pid.cast_unsigned()),
        is_managed: u64::from(process.is_managed()),
        share_bytes: read(|entry| &entry.share_pages).saturating_mul(PAGE_BYTES),
        resident_bytes: process.resident.saturating_mul(PAGE_BYTES),
        swapped_bytes: process.swapped_pages().saturating_mul(PAGE_BYTES),
        compressed_bytes: read(|entry| &entry.compressed_pages).saturating_mul(PAGE_BYTES),
        inactive_bytes: read(|entry| &entry.lists[0]).saturating_mul(PAGE_BYTES),
        active_bytes: read(|entry| &entry.lists[1]).saturating_mul(PAGE_BYTES),
        faults: read(|entry| &entry.counters[Counter::pgfault as usize]),
        major_faults: read(|entry| &entry.major_faults),
        refaults: read(|entry| &entry.counters[Counter::workingset_refault_anon as usize]),
        read_ahead: read(|entry| &entry.counters[Counter::swap_ra as usize]),
        read_ahead_hits: read(|entry| &entry.counters[Counter::swap_ra_hit as usize]),
        read_ahead_unused: read(|entry| &entry.counters[Counter::pt_ra_unused as usize]),
        managed_us: machine("pt_managed_us"),
        stall_some_us: machine("pt_stall_some_us"),
        stall_full_us: machine("pt_stall_full_us"),
        command: comm(process.pid),
    }
}

/// The name of its program. What a program calls itself may hold anything but an end of a line.
fn comm(pid: i32) -> String {
    let comm = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    super::printable(comm.strip_suffix(b"\n").unwrap_or(&comm))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_asked_gives_way_after_a_minute_and_who_never_asks_after_a_second() {
        let (socket, _other) = socket::pair().expect("a socket pair");
        let mut caller = Caller { socket, since: 5 * GREETING_NS, has_asked: false, looks_at: None };
        assert!(!caller.gives_way(6 * GREETING_NS));
        assert!(caller.gives_way(6 * GREETING_NS + 1));
        caller.has_asked = true;
        assert!(!caller.gives_way(5 * GREETING_NS + QUIET_NS));
        assert!(caller.gives_way(5 * GREETING_NS + QUIET_NS + 1), "one that asked once keeps nobody out for ever");
    }
}
