//! `pagetide run`: start a program with the runtime inside, divide the budget among its processes, and say how it went.
//!
//! The supervisor pages nothing itself. It watches the resident size of processes that still run natively, tells an agent
//! to begin when the budget is near, sets each process's share, passes signals on, and collects what the processes counted.
//! It stays until the last process of the tree has ended, because the budget is the tree's.

mod signals;

use std::ffi::{CString, OsString};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::Ordering;

use pagetide_core::types::Nanos;
use pagetide_core::vmstat::COUNTERS;
use pagetide_sys::fd::{self, Fd, PollFd, events};
use pagetide_sys::mem::{Mapping, Protection};
use pagetide_sys::proc::{self, StatmFile};
use pagetide_sys::signal::SignalSet;
use pagetide_sys::socket::{self, Received};
use pagetide_sys::uffd::{ReadMode, Uffd};
use pagetide_sys::{Errno, clock, file, thread};

use crate::control::{CONTROL_BYTES, COUNTERS_MAX, Control, ENTRIES, LATENCY_BUCKETS, MACHINE_COUNTERS, summary};
use crate::error::{Error, ErrorKind};
use crate::protocol::{ADOPT, DeviceOffer, Hello, PACKET_BYTES, SAY};
use crate::setup;
use crate::shares::{Claim, divide};
use crate::spans::PAGE_BYTES;
use crate::supervise::signals::SignalQueue;

pub use crate::control::LatencySummary;

/// Name of the environment variable that makes the preload object call its supervisor.
pub const RUN_VARIABLE: &str = "PAGETIDE_RUN";
/// The smallest budget that is accepted: 8 MiB. Less does not hold a C program's own libraries.
pub const BUDGET_BYTES_MIN: u64 = 8 << 20;
/// Space that stays free on the file system of a swap file.
const FLOOR_BYTES: u64 = 256 << 20;
/// Slots of one device at most: 256 GiB.
const SLOTS_MAX: u64 = 1 << 26;
/// How fast a program can fill fresh memory natively, generously: sets how often we look.
const FILL_BYTES_PER_MS: u64 = 4 << 20;

/// How faults are caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultMode {
    /// The best that the machine offers.
    Auto,
    /// A thread of ours reads them from a full userfaultfd.
    Thread,
    /// The faulting thread handles its own fault in a signal handler.
    Signal,
}

/// What to do when the machine cannot page for the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfUnsupported {
    /// Say why, and do not start it.
    Refuse,
    /// Start it without a budget.
    Run,
}

/// A place to swap to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwapSpec {
    /// A directory, or a file whose directory is meant: the swap file itself has no name.
    pub path: PathBuf,
    /// Its size at most; `None`: what is free, at most 16 times the budget.
    pub size_bytes: Option<u64>,
    /// 0..=32767, higher is used first; `None`: after those, in the order given.
    pub priority: Option<i16>,
}

/// A run.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// What the program's processes together may keep resident, in bytes.
    pub budget_bytes: u64,
    /// Where to swap.
    pub swap: Vec<SwapSpec>,
    /// Knobs of the policy, in order.
    pub settings: Vec<(String, String)>,
    /// How faults are caught.
    pub fault_mode: FaultMode,
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Absolute path of the preload object.
    pub preload: PathBuf,
    /// Record all events of each process under management in this file's directory: its name, a dot and the process.
    pub record: Option<PathBuf>,
    /// What to do without what paging needs.
    pub if_unsupported: IfUnsupported,
}

/// How a run went.
#[derive(Clone, Debug)]
pub struct RunReport {
    /// As a shell says it: the status, or 128 + the signal.
    pub exit_status: i32,
    /// The budget.
    pub memory_budget_bytes: u64,
    /// The most that was resident: the processes' anonymous memory, our frames and our metadata. What processes share since a fork
    /// counts once.
    pub peak_resident_bytes: u64,
    /// Of that, at most: our frames that held nothing, and our metadata.
    pub peak_overhead_bytes: u64,
    /// Our metadata alone, at most.
    pub peak_metadata_bytes: u64,
    /// Memory under management, at most.
    pub peak_managed_bytes: u64,
    /// Counters by their kernel name, then those of the machine.
    pub vmstat: Vec<(&'static str, u64)>,
    /// Fault latency.
    pub fault_latency_ns: LatencySummary,
    /// Program images that ran (a process counts again at exec).
    pub processes: u32,
    /// Those whose memory came under management.
    pub managed_processes: u32,
}

/// One process of the tree.
#[derive(Debug)]
struct Process {
    socket: Fd,
    pid: i32,
    entry: usize,
    statm: Option<StatmFile>,
    resident: u64,
    major_faults: u64,
    asked: bool,
}

/// What ended processes counted.
#[derive(Debug)]
struct Totals {
    counters: [u64; COUNTERS_MAX],
    latency: [u64; LATENCY_BUCKETS],
    metadata_pages_max: u64,
    managed_pages_max: u64,
    processes: u32,
    managed_processes: u32,
}

/// The supervisor of one run.
#[derive(Debug)]
struct Supervisor {
    budget_pages: u64,
    control: Control,
    control_file: Fd,
    /// /proc, for processes whose root has none.
    proc: Fd,
    listener: Fd,
    directories: Vec<Fd>,
    record_directory: Option<Fd>,
    uffd_device: Option<Fd>,
    hello: Hello,
    processes: Vec<Process>,
    free_entries: Vec<usize>,
    totals: Totals,
    resident_max: u64,
    /// When the proportional sizes of several processes may be read again.
    next_proportional: Nanos,
    overhead_max: u64,
    main_pid: i32,
    main_status: Option<i32>,
    warned_full: bool,
}

/// Start the program, stay until its tree has ended, and report.
pub fn run(options: &RunOptions) -> Result<RunReport, Error> {
    let mut supervisor = Supervisor::new(options)?;
    let signals = SignalQueue::new()?;
    supervisor.start(options, signals.outer)?;
    crate::agent::go_first();
    loop {
        supervisor.wait(&signals);
        supervisor.accept();
        supervisor.listen_to_agents();
        supervisor.forward(&signals);
        if supervisor.reap() {
            break;
        }
        supervisor.look();
    }
    Ok(supervisor.report())
}

impl Supervisor {
    fn new(options: &RunOptions) -> Result<Self, Error> {
        if options.budget_bytes < BUDGET_BYTES_MIN {
            let (bytes, least) = (options.budget_bytes, BUDGET_BYTES_MIN >> 20);
            let text = format!("a budget of {bytes} bytes is under the minimum of {least} MiB: give --memory more");
            return Err(Error::new(ErrorKind::Config, text));
        }
        let budget_pages = options.budget_bytes / PAGE_BYTES;
        let uffd_device = open_uffd_device(options.fault_mode)?;
        let (directories, devices) = open_devices(options)?;
        let (_, policy) =
            setup::split_settings(&options.settings).map_err(|text| Error::new(ErrorKind::Config, text))?;
        setup::live_config(&policy, 1, 1, 1)
            .build()
            .map_err(|error| Error::new(ErrorKind::Config, error.to_string()))?;
        let (record_directory, record) = open_record(options)?.unzip();
        let hello = Hello {
            entry: 0,
            signal_mode: options.fault_mode == FaultMode::Signal,
            floor_bytes: FLOOR_BYTES,
            devices,
            record,
            settings: options.settings.clone(),
        };
        let control_file = system("a shared page", fd::memfd(c"pagetide-control"))?;
        system("a shared page", file::truncate(&control_file, CONTROL_BYTES as u64))?;
        let mapping = system("a shared page", Mapping::shared(&control_file, 0, CONTROL_BYTES, Protection::ReadWrite))?;
        let control = Control::new(mapping);
        control.header().budget_pages.store(budget_pages, Ordering::Relaxed);
        let name = run_name();
        let listener = system("a socket for the program's processes", socket::listen(name.as_bytes(), 64))?;
        Ok(Self {
            budget_pages,
            control,
            control_file,
            proc: system("/proc", Fd::open(c"/proc", file::flags::READ | file::flags::DIRECTORY, 0))?,
            listener,
            directories,
            record_directory,
            uffd_device,
            hello,
            processes: Vec::new(),
            free_entries: (0..ENTRIES).rev().collect(),
            totals: Totals {
                counters: [0; COUNTERS_MAX],
                latency: [0; LATENCY_BUCKETS],
                metadata_pages_max: 0,
                managed_pages_max: 0,
                processes: 0,
                managed_processes: 0,
            },
            resident_max: 0,
            next_proportional: 0,
            overhead_max: 0,
            main_pid: 0,
            main_status: None,
            warned_full: false,
        })
    }

    /// `mask`: the signals that were blocked when we were started. `Command` hands ours down, which blocks what we read.
    fn start(&mut self, options: &RunOptions, mask: SignalSet) -> Result<(), Error> {
        // Orphans of the tree come to us: they are of the run, and their end is ours to wait for.
        system("collecting orphans", thread::set_child_subreaper(true))?;
        let (program, arguments) =
            options.command.split_first().ok_or_else(|| Error::new(ErrorKind::Command, "no command is given"))?;
        let mut command = Command::new(program);
        command.args(arguments).env("LD_PRELOAD", preload_list(&options.preload)).env(RUN_VARIABLE, run_name());
        let parent = thread::getpid();
        // SAFETY: the hook makes three system calls and touches no memory that is not its own.
        unsafe {
            command.pre_exec(move || {
                mask.restore();
                thread::set_parent_death_signal(pagetide_sys::signal::number::KILL)
                    .map_err(|errno| std::io::Error::from_raw_os_error(errno.code()))?;
                // We may have ended before the call.
                if thread::getppid() == parent { Ok(()) } else { Err(std::io::Error::from_raw_os_error(libc::ESRCH)) }
            })
        };
        let child = command
            .spawn()
            .map_err(|error| Error::new(ErrorKind::Command, format!("{}", program.to_string_lossy())).because(error))?;
        self.main_pid = i32::try_from(child.id()).expect("process numbers fit");
        Ok(())
    }

    /// Sleep until something happens or it is time to look.
    fn wait(&self, signals: &SignalQueue) {
        let mut fds = Vec::with_capacity(self.processes.len() + 2);
        fds.push(PollFd::new(&self.listener, events::IN));
        fds.push(PollFd::new(&signals.fd, events::IN));
        fds.extend(self.processes.iter().map(|process| PollFd::new(&process.socket, events::IN)));
        let _ = fd::poll(&mut fds, Some(self.interval_ns()));
    }

    /// How long the budget surely holds: the time in which a program could fill half of what is left.
    fn interval_ns(&self) -> u64 {
        let natives = self.processes.iter().any(|process| !self.is_managed(process));
        if !natives {
            return if self.processes.len() > 1 { 5_000_000 } else { 20_000_000 };
        }
        let left = self.budget_pages.saturating_sub(self.resident()) * PAGE_BYTES;
        (left / 2 * 1_000_000 / FILL_BYTES_PER_MS).clamp(1_000_000, 50_000_000)
    }

    fn is_managed(&self, process: &Process) -> bool {
        self.control.entry(process.entry).is_managed()
    }

    fn resident(&self) -> u64 {
        self.processes.iter().map(|process| process.resident).sum()
    }

    fn accept(&mut self) {
        while let Ok(Some(socket)) = socket::accept(&self.listener) {
            // The name is in a namespace that every user of the machine can reach: only the tree is answered.
            let Ok(peer) = socket::peer(&socket) else { continue };
            if !proc::is_descendant(peer.pid, thread::getpid()) {
                continue;
            }
            let Some(entry) = self.free_entries.pop() else {
                if !self.warned_full {
                    self.warned_full = true;
                    eprintln!("pagetide: more than {ENTRIES} processes at once: the rest runs without a budget");
                }
                continue;
            };
            self.control.entry(entry).reset();
            let share = self.budget_pages.saturating_sub(self.resident()).max(self.budget_pages / 16);
            self.control.entry(entry).share_pages.store(share, Ordering::Relaxed);
            let hello = Hello { entry, ..self.hello.clone() };
            let mut fds = vec![&self.control_file, &self.proc];
            fds.extend(&self.directories);
            fds.extend(&self.record_directory);
            fds.extend(&self.uffd_device);
            if socket::send(&socket, hello.encode().as_bytes(), &fds, false).is_err() {
                self.free_entries.push(entry);
                continue;
            }
            let statm = StatmFile::open(peer.pid).ok();
            self.totals.processes += 1;
            let pid = peer.pid;
            self.processes.push(Process { socket, pid, entry, statm, resident: 0, major_faults: 0, asked: false });
        }
    }

    fn listen_to_agents(&mut self) {
        let mut packet = vec![0; PACKET_BYTES];
        let mut index = 0;
        while index < self.processes.len() {
            match socket::receive(&self.processes[index].socket, &mut packet, &mut [], false) {
                Ok(Received::Empty) => index += 1,
                Ok(Received::Message { bytes, .. }) => {
                    if let Some(text) = packet[..bytes].strip_prefix(SAY) {
                        eprintln!("pagetide: {}", printable(text));
                    }
                    self.processes[index].asked |= &packet[..bytes] == ADOPT;
                }
                Ok(Received::Cut) => {}
                Ok(Received::Closed) | Err(_) => {
                    let process = self.processes.swap_remove(index);
                    self.fold(&process);
                }
            }
        }
    }

    /// Add what an ended process counted.
    fn fold(&mut self, process: &Process) {
        let entry = self.control.entry(process.entry);
        let relaxed = Ordering::Relaxed;
        for (total, word) in self.totals.counters.iter_mut().zip(&entry.counters) {
            *total += word.load(relaxed);
        }
        for (total, word) in self.totals.latency.iter_mut().zip(&entry.latency) {
            *total += word.load(relaxed);
        }
        self.totals.metadata_pages_max = self.totals.metadata_pages_max.max(entry.metadata_pages_max.load(relaxed));
        self.totals.managed_pages_max = self.totals.managed_pages_max.max(entry.managed_pages_max.load(relaxed));
        self.totals.managed_processes += u32::from(entry.is_managed());
        if self.processes.is_empty() && entry.is_managed() {
            // Its own peak is exact where it was alone.
            self.resident_max = self.resident_max.max(entry.resident_pages_max.load(relaxed));
        }
        self.overhead_max = self.overhead_max.max(entry.overhead_pages_max.load(relaxed));
        self.free_entries.push(process.entry);
    }

    /// Signals that were sent to us go to the program. Those that the terminal sends reach it anyway.
    fn forward(&self, signals: &SignalQueue) {
        while let Some((signal, from_kernel)) = signals.next() {
            if signal != libc::SIGCHLD && !from_kernel && self.main_status.is_none() {
                let number = u32::try_from(signal).expect("signals are positive");
                let _ = pagetide_sys::signal::kill(self.main_pid, number);
            }
        }
    }

    /// Collect ended processes. True when none is left.
    fn reap(&mut self) -> bool {
        loop {
            let mut status = 0;
            // SAFETY: the status is a live integer.
            let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
            if pid == 0 {
                return false;
            }
            if pid < 0 {
                return std::io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD);
            }
            if pid == self.main_pid {
                self.main_status = Some(shell_status(status));
            }
        }
    }

    /// Look at the sizes, ask agents to begin, divide the budget.
    fn look(&mut self) {
        for index in 0..self.processes.len() {
            self.processes[index].resident = self.size_of(index);
        }
        let resident = self.resident();
        self.control.header().resident_pages.store(resident, Ordering::Relaxed);
        if resident > self.resident_max {
            self.note_peak(resident);
        }
        self.adopt_if_near();
        self.divide();
    }

    /// `resident` pages are the sum of the processes. What several of them map since a fork counts once: the kernel walks all that
    /// is mapped to tell it, so it is asked only where a new peak may be reached, and for at most a twentieth of the time.
    fn note_peak(&mut self, resident: u64) {
        if self.processes.len() == 1 {
            self.resident_max = resident;
            return;
        }
        let begin = clock::now();
        if begin < self.next_proportional {
            return;
        }
        let shares = self.processes.iter().filter_map(|process| proc::anon_share(process.pid).ok());
        let proportional = shares.sum::<u64>() / PAGE_BYTES;
        let end = clock::now();
        self.next_proportional = end + 20 * (end - begin);
        self.resident_max = self.resident_max.max(proportional.min(resident));
    }

    fn size_of(&self, index: usize) -> u64 {
        let process = &self.processes[index];
        if self.is_managed(process) {
            return self.control.entry(process.entry).resident_pages.load(Ordering::Relaxed);
        }
        process.statm.as_ref().and_then(|statm| statm.read().ok()).map_or(0, |statm| statm.anon_pages())
    }

    /// Ask the largest native processes to begin while what is left of the budget could be filled before we look again.
    fn adopt_if_near(&mut self) {
        let room = (self.budget_pages / 4).clamp((8 << 20) / PAGE_BYTES, (256 << 20) / PAGE_BYTES);
        if self.budget_pages.saturating_sub(self.resident()) >= room {
            return;
        }
        let mut natives: Vec<usize> = (0..self.processes.len())
            .filter(|&index| !self.processes[index].asked && !self.is_managed(&self.processes[index]))
            .collect();
        natives.sort_by_key(|&index| std::cmp::Reverse(self.processes[index].resident));
        let mut left: u64 = natives.iter().map(|&index| self.processes[index].resident).sum();
        for index in natives {
            if left < self.budget_pages / 16 && self.processes[index].resident < 1024 {
                break;
            }
            left -= self.processes[index].resident;
            let process = &mut self.processes[index];
            process.asked = socket::send(&process.socket, ADOPT, &[], false).is_ok();
        }
    }

    fn divide(&mut self) {
        let managed: Vec<usize> = (0..self.processes.len())
            .filter(|&index| self.processes[index].asked || self.is_managed(&self.processes[index]))
            .collect();
        let natives: u64 = self.resident() - managed.iter().map(|&index| self.processes[index].resident).sum::<u64>();
        let claims: Vec<Claim> = managed.iter().map(|&index| self.claim(index)).collect();
        let available = self.budget_pages.saturating_sub(natives);
        for (&index, share) in managed.iter().zip(divide(available, &claims)) {
            self.control.entry(self.processes[index].entry).share_pages.store(share, Ordering::Relaxed);
        }
    }

    fn claim(&mut self, index: usize) -> Claim {
        let process = &mut self.processes[index];
        let entry = self.control.entry(process.entry);
        let share = entry.share_pages.load(Ordering::Relaxed);
        let major_faults = entry.major_faults.load(Ordering::Relaxed);
        let pressed = major_faults > process.major_faults || process.resident + process.resident / 16 >= share;
        process.major_faults = major_faults;
        Claim { resident: process.resident, share, pressed }
    }

    fn report(&mut self) -> RunReport {
        while let Some(process) = self.processes.pop() {
            self.fold(&process);
        }
        let names = COUNTERS.iter().map(|&(_, name, _)| name).chain(MACHINE_COUNTERS.map(|(name, _)| name));
        RunReport {
            exit_status: self.main_status.unwrap_or(1),
            memory_budget_bytes: self.budget_pages * PAGE_BYTES,
            peak_resident_bytes: self.resident_max * PAGE_BYTES,
            peak_overhead_bytes: self.overhead_max * PAGE_BYTES,
            peak_metadata_bytes: self.totals.metadata_pages_max * PAGE_BYTES,
            peak_managed_bytes: self.totals.managed_pages_max * PAGE_BYTES,
            vmstat: names.zip(self.totals.counters).collect(),
            fault_latency_ns: summary(&self.totals.latency),
            processes: self.totals.processes,
            managed_processes: self.totals.managed_processes,
        }
    }
}

/// The name that the program's processes call.
fn run_name() -> String {
    format!("pagetide-run-{}", thread::getpid())
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

/// The device that gives a full userfaultfd without a privilege of the program's own. None: the agents use the system call.
fn open_uffd_device(mode: FaultMode) -> Result<Option<Fd>, Error> {
    if mode == FaultMode::Signal {
        return Ok(None);
    }
    if let Ok(device) = Fd::open(c"/dev/userfaultfd", file::flags::READ_WRITE, 0)
        && let Ok(uffd) = Uffd::from_device(&device, ReadMode::NonBlocking)
    {
        check_features(&uffd)?;
        return Ok(Some(device));
    }
    match Uffd::open(pagetide_sys::uffd::Reach::Full, ReadMode::NonBlocking) {
        Ok((uffd, _)) => check_features(&uffd).map(|()| None),
        Err(refused) => {
            let why = refused.syscall.map_or("", Errno::name);
            Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "no full userfaultfd ({why}): run as root or with CAP_SYS_PTRACE; `pagetide doctor` tells more"
                ),
            ))
        }
    }
}

/// What the agents will ask of the kernel must be granted now: later the program is running already. Following forks needs
/// CAP_SYS_PTRACE even where the userfaultfd itself does not.
fn check_features(uffd: &Uffd) -> Result<(), Error> {
    let missing = match uffd.handshake(setup::thread_features()) {
        Ok(offer) if offer.features.has(setup::thread_features()) => return Ok(()),
        Ok(_) => "the kernel does not know them all",
        Err(errno) => errno.name(),
    };
    Err(Error::new(
        ErrorKind::Unsupported,
        format!(
            "the userfaultfd lacks what paging a whole program needs ({missing}): following forks needs root or \
             CAP_SYS_PTRACE, moving and poisoning pages Linux 6.8; `pagetide doctor` shows what this machine offers"
        ),
    ))
}

/// Open the directories of the swap devices, and size them.
fn open_devices(options: &RunOptions) -> Result<(Vec<Fd>, Vec<DeviceOffer>), Error> {
    let mut directories = Vec::new();
    let mut offers = Vec::new();
    for spec in &options.swap {
        let directory = open_directory(&spec.path)?;
        let refuse =
            |text: String| Error::new(ErrorKind::NoSwapSpace, format!("--swap {}: {text}", spec.path.display()));
        let info = system("the file system's size", file::fs_info(&directory))?;
        if info.kind.is_memory() {
            return Err(refuse("it lies in memory (tmpfs); name a directory on a disk".to_owned()));
        }
        let free = info.available_bytes.saturating_sub(FLOOR_BYTES);
        let size = spec.size_bytes.unwrap_or_else(|| free.min(options.budget_bytes.saturating_mul(16)));
        if size > free {
            let text = format!("{} MiB are asked for, {} MiB are free beyond the floor", size >> 20, free >> 20);
            return Err(refuse(format!("{text} of {} MiB; give a smaller SIZE or another place", FLOOR_BYTES >> 20)));
        }
        let slots = (size / PAGE_BYTES).min(SLOTS_MAX);
        if slots < 256 {
            return Err(refuse(format!("{size} bytes are too small for a swap file (at least 1 MiB)")));
        }
        let rotational = setup::is_rotational(&spec.path);
        let slots = u32::try_from(slots).expect("limited above");
        offers.push(DeviceOffer { slots, priority: spec.priority, rotational });
        directories.push(directory);
    }
    Ok((directories, offers))
}

/// The directory of the records, and how they are named.
fn open_record(options: &RunOptions) -> Result<Option<(Fd, String)>, Error> {
    let Some(path) = &options.record else { return Ok(None) };
    let refuse = |why: &str| Error::new(ErrorKind::Config, format!("--record {}: {why}", path.display()));
    let name = path.file_name().and_then(|name| name.to_str()).filter(|name| !name.contains('\n'));
    let name = name.ok_or_else(|| refuse("no name of a file in UTF-8"))?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(std::path::Path::new("."));
    let directory = CString::new(directory.as_os_str().as_encoded_bytes()).map_err(|_| refuse("a zero byte"))?;
    let directory = Fd::open(&directory, file::flags::READ | file::flags::DIRECTORY, 0)
        .map_err(|errno| refuse(&format!("the directory cannot be opened: {}", errno.name())))?;
    Ok(Some((directory, name.to_owned())))
}

fn open_directory(path: &std::path::Path) -> Result<Fd, Error> {
    let directory = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
    let name = CString::new(directory.as_os_str().as_encoded_bytes())
        .map_err(|error| Error::new(ErrorKind::Config, format!("--swap {}", path.display())).because(error))?;
    Fd::open(&name, file::flags::READ | file::flags::DIRECTORY, 0).map_err(|errno| {
        let text = format!("--swap {}: the directory cannot be opened: {}", path.display(), errno.name());
        Error::new(ErrorKind::NoSwapSpace, text)
    })
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
