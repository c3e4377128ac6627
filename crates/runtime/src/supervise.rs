//! `pagetide run`: start a program with the runtime inside, divide the budget among its processes, and say how it went.
//!
//! The supervisor pages nothing itself. It finds the processes of the tree and watches their resident sizes from outside, starts an
//! agent in those that are to page when the budget is near, sets each process's share, passes signals on, and collects what the
//! processes counted. It stays until the last process of the tree has ended, because the budget is the tree's.

mod adopt;
mod awake;
mod near;
mod brake;
mod brief;
mod closer;
mod commands;
mod divide;
mod drains;
mod given;
mod image;
mod memory;
mod options;
mod places;
mod probe;
mod reap;
mod rest;
mod sharing;
mod signals;
mod start;
mod teller;
mod totals;
mod tree;
mod watched;
mod worth;

use std::collections::BTreeSet;
use std::ffi::{CString, OsString};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use pagetide_core::absences::Repriced;
use pagetide_core::types::Nanos;
use pagetide_core::vmstat::COUNTERS;
use pagetide_sys::fd::{self, Fd, PollFd, events};
use pagetide_sys::proc::{self, Limit};
use pagetide_sys::signal::SignalSet;
use pagetide_sys::socket::{self, Received};
use pagetide_sys::uffd::Uffd;
use pagetide_sys::{Errno, clock, file, stderr, thread};

use crate::control::{MACHINE_COUNTERS, summary};
use crate::error::{Error, ErrorKind};
use crate::foreign;
use crate::lifeline::Lifeline;
use crate::protocol::{BORN, CLOSE, COMPLETE, DID, HANDSHAKE, Hello, OVER, PACKET_BYTES, REFUSED, SAY};
use crate::setup::{self, SharesChoice};
use crate::space::PAGE_BYTES;
use crate::space::unpaged::UNPAGED;
use crate::spans::ProcessSpans;
use crate::supervise::awake::Awake;
use crate::supervise::brief::Child;
use crate::supervise::commands::Commands;
use crate::supervise::places::{FLOOR_BYTES, Place, choose_mode, open_places, open_record};
use crate::supervise::rest::Resting;
use crate::supervise::sharing::Sharing;
use crate::supervise::signals::{CPU_TIMER, SignalQueue};
use crate::supervise::teller::Teller;
use crate::supervise::totals::Totals;
use crate::supervise::tree::Tree;
use crate::supervise::watched::Watched;

pub use crate::control::LatencySummary;
pub use options::{FaultMode, IfUnsupported, Progress, RunOptions, RunReport, SwapSpec};

/// Name of the environment variable that makes the preloaded object offer itself to the supervisor: the budget in pages with
/// which the run began, and the mode. What the budget is now a process hears from the supervisor.
pub const RUN_VARIABLE: &str = "PAGETIDE_RUN";
/// The smallest budget that is accepted: 8 MiB. Less does not hold a C program's own libraries.
pub const BUDGET_BYTES_MIN: u64 = 8 << 20;
/// Time between two walks of the tree, and from a load of the object to the next.
const SCAN_NS: Nanos = 20_000_000;
const OPENED_SCAN_NS: Nanos = 300_000;
/// Time between two marks of the recent course.
const MARK_NS: Nanos = 1_000_000_000;

/// A forked child that waits for its agent.
#[derive(Debug)]
struct Birth {
    /// The process whose agent told of it.
    parent: i32,
    /// The child, once it was found.
    child: Option<i32>,
    /// The parent's agent was answered.
    is_answered: bool,
}

/// The supervisor of one run.
#[derive(Debug)]
struct Supervisor {
    budget_pages: u64,
    awake: Awake,
    watched: Watched,
    /// /proc, for processes whose root has none.
    proc: Fd,
    lifeline: Lifeline,
    places: Vec<Place>,
    /// Numbers of places that were given out.
    places_made: u32,
    commands: Commands,
    is_paused: bool,
    /// It is asked what the processes do with their time.
    draws_spans: bool,
    /// What ended processes did since the last telling.
    spans: Vec<ProcessSpans>,
    record_directory: Option<Fd>,
    uffd_device: Option<Fd>,
    hello: Hello,
    /// Tells when somebody loads the preloaded object. Not there for a run of one process: to close it takes 10 to 15 ms (the kernel
    /// waits until no CPU can look at it any more), which a short run would feel.
    opened: Option<Fd>,
    /// The object, as long as nothing watches it.
    unwatched: Option<CString>,
    /// The object's file name.
    library: String,
    tree: Tree,
    births: Vec<Birth>,
    /// Forked ones that have not been judged.
    children: Vec<Child>,
    next_scan: Nanos,
    /// The limit on open descriptors that we were started with, if ours is another.
    descriptors: Option<Limit>,
    totals: Totals,
    /// What was counted with another budget.
    repriced: Repriced,
    resident_max: u64,
    /// What the processes have had in memory and outside it together.
    needed_max: u64,
    /// What processes without an agent kept at the last look, when that was, and how fast they grew until then.
    native_pages: u64,
    looked: Nanos,
    resting: Resting,
    filled_pages_per_ms: u64,
    /// See [`Supervisor::measure_filling`], and when that was.
    filled_soon_pages: u64,
    sized: Nanos,
    sharing: Sharing,
    /// The least time in which a process exchanges what it keeps, at the last look.
    exchanged_in: Nanos,
    shares: SharesChoice,
    /// When it is looked again at what memory is worth to each.
    next_weighing: Nanos,
    overhead_max: u64,
    /// When the program was started.
    began: Nanos,
    main_pid: i32,
    main_status: Option<i32>,
    told: BTreeSet<&'static str>,
}

/// Start the program, stay until its tree has ended, and report. `progress` is called with what is known when the last process has
/// ended; with `options.progress_ns` also when the program has been started, and about that often from then on: on a thread of its own,
/// and left out while it still does what it did with the last.
pub fn run(options: &RunOptions, progress: &mut (dyn FnMut(&Progress) + Send)) -> Result<RunReport, Error> {
    let mut supervisor = Supervisor::new(options)?;
    let signals = SignalQueue::new()?;
    let Some(progress_ns) = options.progress_ns else {
        supervisor.start(options, signals.outer)?;
        supervisor.stay(&signals, None);
        let last = supervisor.progress();
        progress(&last);
        return Ok(last.report);
    };
    let is_telling = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let teller = Teller::spawn(scope, &is_telling, progress)?;
        supervisor.start(options, signals.outer)?;
        supervisor.stay(&signals, Some((&teller, progress_ns)));
        let last = supervisor.progress();
        let report = last.report.clone();
        teller.tell(last);
        Ok(report)
    })
}

impl Supervisor {
    /// Until the last process has ended. `teller`: who is told meanwhile, and how often.
    fn stay(&mut self, signals: &SignalQueue, teller: Option<(&Teller<'_>, Nanos)>) {
        crate::agent::go_first();
        let mut next_progress = clock::now();
        let mut next_mark = next_progress + MARK_NS;
        loop {
            let is_told = self.wait(signals);
            if !self.nothing_runs() || is_told {
                self.listen_to_agents();
                self.forward(signals);
                if self.reap() {
                    break;
                }
                self.scan();
                self.look();
                self.serve_watchers();
            }
            let now = clock::now();
            self.tend_idle_cpus(now);
            if now >= next_mark {
                next_mark = now + MARK_NS;
                self.mark();
            }
            if let Some((teller, progress_ns)) = teller
                && now >= next_progress
                && teller.is_free()
            {
                next_progress = now + progress_ns;
                teller.tell(self.progress());
            }
        }
        (0..self.tree.list.len()).for_each(|index| self.unlink(index));
        // What is told last is told for long: nothing is resident any more.
        self.tree.clear();
    }

    fn new(options: &RunOptions) -> Result<Self, Error> {
        if options.budget_bytes < BUDGET_BYTES_MIN {
            let (bytes, least) = (options.budget_bytes, BUDGET_BYTES_MIN >> 20);
            let text = format!("a budget of {bytes} bytes is under the minimum of {least} MiB: give --memory more");
            return Err(Error::new(ErrorKind::Config, text));
        }
        let budget_pages = options.budget_bytes / PAGE_BYTES;
        let (fault_mode, uffd_device) = choose_mode(options.fault_mode)?;
        let places = open_places(options)?;
        let no_setting =
            |why| Error::new(ErrorKind::Config, format!("{why}; `pagetide knobs` lists settings and profiles"));
        let (choices, policy) = setup::split_settings(&options.settings).map_err(no_setting)?;
        setup::live_config(&policy, 1, 1, 1).build().map_err(|error| no_setting(error.to_string()))?;
        let (record_directory, record) = open_record(options)?.unzip();
        let hello = Hello {
            forked: false,
            signal_mode: fault_mode == FaultMode::Signal,
            floor_bytes: FLOOR_BYTES,
            devices: Vec::new(),
            record,
            settings: options.settings.clone(),
        };
        let library = options.preload.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let unwatched = CString::new(options.preload.as_os_str().as_encoded_bytes()).ok();
        let descriptors = raise_descriptor_limit();
        Ok(Self {
            budget_pages,
            awake: Awake::new(choices.idle),
            watched: Watched::new(options)?,
            proc: system("/proc", Fd::open(c"/proc", file::flags::READ | file::flags::DIRECTORY, 0))?,
            lifeline: system("a robust mutex", Lifeline::begin())?,
            places_made: u32::try_from(places.len()).expect("few places"),
            places,
            commands: Commands::default(),
            is_paused: false,
            draws_spans: options.draws_spans,
            spans: Vec::new(),
            record_directory,
            uffd_device,
            hello,
            opened: None,
            unwatched,
            library,
            tree: Tree::default(),
            births: Vec::new(),
            children: Vec::new(),
            next_scan: 0,
            descriptors,
            totals: Totals::new(),
            repriced: Repriced::new(),
            needed_max: 0,
            resident_max: 0,
            native_pages: 0,
            looked: clock::now(),
            resting: Resting::default(),
            filled_pages_per_ms: 0,
            filled_soon_pages: 0,
            sized: clock::now(),
            sharing: Sharing::default(),
            exchanged_in: Nanos::MAX,
            shares: choices.shares,
            next_weighing: 0,
            overhead_max: 0,
            began: clock::now(),
            main_pid: 0,
            main_status: None,
            told: BTreeSet::new(),
        })
    }

    /// `mask`: the signals that were blocked when we were started. `Command` hands ours down, which blocks what we read.
    fn start(&mut self, options: &RunOptions, mask: SignalSet) -> Result<(), Error> {
        // Orphans of the tree come to us: they are of the run, and their end is ours to wait for.
        system("collecting orphans", thread::set_child_subreaper(true))?;
        let (program, arguments) =
            options.command.split_first().ok_or_else(|| Error::new(ErrorKind::Command, "no command is given"))?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("LD_PRELOAD", preload_list(&options.preload))
            .env(RUN_VARIABLE, places::run_text(self.budget_pages, &self.hello));
        let parent = thread::getpid();
        let descriptors = self.descriptors;
        // SAFETY: the hook makes system calls and touches no memory that is not its own.
        unsafe {
            command.pre_exec(move || {
                mask.restore();
                if let Some(limit) = descriptors {
                    let _ = proc::descriptor_limit(0, Some(limit));
                }
                thread::set_parent_death_signal(pagetide_sys::signal::number::KILL)
                    .map_err(|errno| std::io::Error::from_raw_os_error(errno.code()))?;
                given::hand_down();
                // We may have ended before the call.
                if thread::getppid() == parent { Ok(()) } else { Err(std::io::Error::from_raw_os_error(libc::ESRCH)) }
            })
        };
        let child = command
            .spawn()
            .map_err(|error| Error::new(ErrorKind::Command, format!("{}", program.to_string_lossy())).because(error))?;
        self.main_pid = i32::try_from(child.id()).expect("process numbers fit");
        self.tree.add(self.main_pid, parent);
        Ok(())
    }

    /// Sleep until something happens or it is time to look. True if something has happened.
    fn wait(&self, signals: &SignalQueue) -> bool {
        let links = self.tree.list.iter().filter_map(|process| process.link.as_ref());
        let mut fds = vec![PollFd::new(&signals.fd, events::IN)];
        // A new process is found at the next look where it cannot fill what is left by then.
        let opened = self.opened.iter().filter(|_| !self.has_plenty());
        fds.extend(opened.map(|opened| PollFd::new(opened, events::IN)));
        fds.extend(links.map(|link| PollFd::new(&link.socket, events::IN)));
        fds.extend(self.watched.fds());
        fd::poll(&mut fds, Some(self.interval_ns())) != Ok(0)
    }

    /// What of the budget nobody keeps.
    fn left_pages(&self) -> u64 {
        self.countable_pages().saturating_sub(self.counted_pages())
    }

    /// See who is new, if it is time. A tenth of our time at most.
    fn scan(&mut self) {
        let begin = clock::now();
        if self.tree.may_grow_unseen()
            && let Some(object) = self.unwatched.take()
        {
            // Without it the processes are found a little later.
            self.opened = fd::watch_opens(&object).ok();
            self.tree.seek_again();
        }
        let mut events = [0; 4096];
        let mut was_opened = false;
        while let Some(opened) = &self.opened
            && file::read(opened, &mut events).is_ok_and(|read| read > 0)
        {
            was_opened = true;
        }
        if was_opened {
            self.tree.seek_again();
            self.next_scan = self.next_scan.min(begin + OPENED_SCAN_NS);
        }
        if begin < self.next_scan {
            return;
        }
        self.tree.scan(thread::getpid());
        let end = clock::now();
        self.next_scan = end + SCAN_NS.max(10 * (end - begin));
    }

    fn listen_to_agents(&mut self) {
        let mut packet = vec![0; PACKET_BYTES];
        for index in 0..self.tree.list.len() {
            if self.hear_all(index, &mut packet) {
                self.unlink(index);
            }
        }
    }

    /// What the agent of a process has said so far. True if it says nothing more.
    fn hear_all(&mut self, index: usize, packet: &mut [u8]) -> bool {
        while let Some(link) = &self.tree.list[index].link {
            let mut fds = [const { None }; 2];
            match socket::receive(&link.socket, packet, &mut fds, false) {
                Ok(Received::Empty) => return false,
                Ok(Received::Message { bytes, .. }) => self.hear(index, &packet[..bytes], fds),
                Ok(Received::Cut) => {}
                Ok(Received::Closed) | Err(_) => return true,
            }
        }
        false
    }

    /// A word of an agent. It may be forged by the program: what it can cause concerns its own process and its children.
    fn hear(&mut self, index: usize, word: &[u8], [passed, told]: [Option<Fd>; 2]) {
        let process = &self.tree.list[index];
        let Some(link) = &process.link else { return };
        let parent = process.pid;
        match word {
            BORN => self.births.push(Birth { parent, child: None, is_answered: false }),
            OVER => self.births.retain(|birth| birth.parent != parent),
            COMPLETE => {
                for birth in self.births.extract_if(.., |birth| birth.parent == parent) {
                    let child = self.tree.list.iter_mut().find(|process| Some(process.pid) == birth.child);
                    child.into_iter().for_each(|child| child.is_complete = true);
                }
            }
            CLOSE => closer::close_aside(passed, told),
            HANDSHAKE => {
                let shaken = passed.is_some_and(shake_hands);
                let _ = socket::send(&link.socket, if shaken { HANDSHAKE } else { REFUSED }, &[], false);
            }
            _ => {
                if let Some(text) = word.strip_prefix(SAY) {
                    stderr::tell(format_args!("pagetide: {}", printable(text)));
                } else if let Some(text) = word.strip_prefix(DID) {
                    self.hear_answer(parent, text);
                } else {
                    let list = &self.tree.list;
                    foreign::pass_on(word, passed, |pid| {
                        Some(&list.iter().find(|process| process.pid == pid)?.link.as_ref()?.socket)
                    });
                }
            }
        }
    }

    /// The agent of a process is gone: the process ended, or became another program.
    fn unlink(&mut self, index: usize) {
        // Its last words may have come since it was listened to: why it ends itself is one of them.
        self.hear_all(index, &mut vec![0; PACKET_BYTES]);
        let is_alone = self.tree.list.len() == 1;
        let process = &mut self.tree.list[index];
        let pid = process.pid;
        let Some(link) = process.link.take() else { return };
        self.commands.ended(pid);
        let entry = link.control.entry();
        self.totals.add(entry);
        if self.draws_spans {
            self.spans.extend(entry.spans.take(pid.cast_unsigned()));
        }
        if is_alone && entry.is_managed() {
            // Its own peak is exact where it was alone.
            self.resident_max = self.resident_max.max(entry.resident_pages_max.load(Ordering::Relaxed));
        }
        self.overhead_max = self.overhead_max.max(entry.overhead_pages_max.load(Ordering::Relaxed));
        // A child that waits for memory of this process cannot have it any more.
        for birth in self.births.extract_if(.., |birth| birth.parent == pid) {
            if let Some(child) = birth.child {
                stderr::tell(format_args!(
                    "pagetide: process {child}: its parent ended before its memory was handed over"
                ));
                let _ = pagetide_sys::signal::kill(child, pagetide_sys::signal::number::KILL);
            }
        }
    }

    /// Signals that were sent to us go to the program, or to all that it has left. Those that the terminal sends reach it anyway, and those of
    /// its own processes were sent to its group (kill(0)), which may be ours as well.
    fn forward(&self, signals: &SignalQueue) {
        while let Some((signal, sender)) = signals.next() {
            let number = u32::try_from(signal).expect("signals are positive");
            let is_from_outside = sender.is_some_and(|sender| self.tree.process(sender).is_none());
            if [libc::SIGCHLD.cast_unsigned(), CPU_TIMER].contains(&number) || !is_from_outside {
                continue;
            }
            let is_meant = |pid: &i32| self.main_status.is_some() || *pid == self.main_pid;
            for pid in self.tree.list.iter().map(|process| process.pid).filter(is_meant) {
                let _ = pagetide_sys::signal::kill(pid, number);
            }
        }
    }

    /// Look at the processes, start agents, divide the budget.
    fn look(&mut self) {
        let mut index = 0;
        while index < self.tree.list.len() {
            let process = &mut self.tree.list[index];
            process.look_at_size();
            if process.is_gone {
                self.unlink(index);
                let gone = self.tree.remove(index);
                self.tree.end_sharing(gone.shared_pages(), self.tree.sharers());
            } else {
                index += 1;
            }
        }
        self.measure_filling();
        if self.is_filled_soon() {
            self.adopt_if_near();
        }
        let are_filling = self.filled_soon_pages > 0;
        for process in &mut self.tree.list {
            self.totals.processes += u32::from(process.look_at_words(&self.library, are_filling));
        }
        self.tree.scan_forked();
        self.look_at_shared_memory();
        self.look_at_sharing();
        self.look_at_children();
        self.needed_max = self.needed_max.max(self.resident_pages().saturating_add(self.tree.away()));
        self.measure_growth();
        self.answer_bells();
        self.adopt_if_near();
        self.serve_births();
        self.end_orphans();
        self.serve_starting();
        self.divide();
        self.serve_commands();
        self.look_at_places();
    }

    /// What all processes counted so far.
    fn counted(&self) -> Totals {
        let mut totals = self.totals.clone();
        let links = self.tree.list.iter().filter_map(|process| process.link.as_ref());
        links.for_each(|link| totals.add(link.control.entry()));
        totals
    }

    /// What is known so far.
    fn progress(&mut self) -> Progress {
        for process in self.tree.list.iter().filter(|_| self.draws_spans) {
            if let Some(link) = &process.link {
                self.spans.extend(link.control.entry().spans.take(process.pid.cast_unsigned()));
            }
        }
        let totals = self.counted();
        let report = self.report(&totals);
        Progress { snapshot: self.snapshot(&report, &totals), report, spans: std::mem::take(&mut self.spans) }
    }

    fn report(&self, totals: &Totals) -> RunReport {
        let names = COUNTERS.iter().map(|&(_, name, _)| name).chain(MACHINE_COUNTERS.map(|(name, _)| name));
        let unpaged = UNPAGED.into_iter().zip(totals.unpaged_pages_max);
        RunReport {
            // Other processes may go on for long once the first has ended.
            exit_status: self.main_status.filter(|_| self.tree.list.is_empty()),
            memory_budget_bytes: self.budget_pages * PAGE_BYTES,
            peak_resident_bytes: self.resident_max * PAGE_BYTES,
            peak_overhead_bytes: self.overhead_max * PAGE_BYTES,
            peak_metadata_bytes: totals.metadata_pages_max * PAGE_BYTES,
            peak_managed_bytes: totals.managed_pages_max * PAGE_BYTES,
            peak_unpaged_bytes: unpaged.map(|((name, _), pages)| (name, pages.saturating_mul(PAGE_BYTES))).collect(),
            vmstat: names.zip(totals.counters).collect(),
            elapsed_ns: clock::now().saturating_sub(self.began),
            absences: self.repriced.absences(totals.absences(), self.needed_max.saturating_sub(self.budget_pages)),
            fault_latency_ns: summary(&totals.latency),
            // A program that ends at once may not have been seen.
            // An agent may have come and gone between two looks.
            processes: totals.processes.max(totals.managed_processes).max(1),
            managed_processes: totals.managed_processes,
        }
    }
}

/// Room for the sockets of thousands of processes, as far as the hard limit goes; the limit as it was.
fn raise_descriptor_limit() -> Option<Limit> {
    let limit = proc::descriptor_limit(0, None).ok()?;
    proc::descriptor_limit(0, Some(Limit { soft: limit.hard, hard: limit.hard })).ok()?;
    Some(limit)
}

/// Make the handshake of an agent's userfaultfd, and of nothing else that was passed.
fn shake_hands(passed: Fd) -> bool {
    let path = format!("/proc/self/fd/{}", passed.raw());
    let is_uffd = std::fs::read_link(path).is_ok_and(|target| target.as_os_str() == "anon_inode:[userfaultfd]");
    is_uffd && Uffd::from_fd(passed).handshake(setup::thread_features()).is_ok()
}

/// What a process of the program says may be anything: no control character reaches the terminal.
fn printable(text: &[u8]) -> String {
    String::from_utf8_lossy(text).chars().map(|sign| if sign.is_control() { ' ' } else { sign }).collect()
}

fn preload_list(preload: &std::path::Path) -> OsString {
    let mut list = preload.as_os_str().to_owned();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        list.push(":");
        list.push(others);
    }
    list
}

fn system<T>(what: &str, result: Result<T, Errno>) -> Result<T, Error> {
    result.map_err(|errno| Error::new(ErrorKind::Io, format!("{what} cannot be had: {}", errno.name())))
}

const fn shell_status(status: i32) -> i32 {
    if libc::WIFSIGNALED(status) { 128 + libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_says_reaches_the_terminal_without_control_characters() {
        assert_eq!(printable(b"a\x1b[2Jb\r\nc\x07\xff\xc2\x9bd"), "a [2Jb  c \u{fffd} d");
    }
}
