//! `pagetide doctor`: what this machine offers, what is missing, what follows from that, and how to get it.
//!
//! The probe (crate `sys`) finds out; this module judges and prints. Every line that is not `ok` carries a remedy or says
//! what happens instead.

use std::fmt::Write;
use std::process::ExitCode;

use pagetide_sys::Errno;
use pagetide_sys::probe::{HugePages, Overcommit, Probe, Seccomp};
use pagetide_sys::uffd::{Features, OpenedBy, Refused};
use pagetide_sys::uring;

use crate::args::DoctorArgs;
use crate::failure::{Exit, Failure};
use crate::machine::{self, Place};
use crate::size::Bytes;
use crate::{output, preload, swap};

/// How good an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// As wanted.
    Ok,
    /// Works, with a loss that the line names.
    Limited,
    /// `pagetide run` cannot work without it.
    Missing,
    /// Good to know.
    Info,
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
struct Check {
    name: &'static str,
    state: State,
    value: String,
    /// What follows, and how to change it; empty where there is nothing to say.
    note: String,
}

impl Check {
    fn new(name: &'static str, state: State, value: impl Into<String>, note: impl Into<String>) -> Self {
        Self { name, state, value: value.into(), note: note.into() }
    }
}

/// The whole answer.
#[derive(Debug, serde::Serialize)]
struct Diagnosis {
    can_run: bool,
    thread_mode: bool,
    signal_mode: bool,
    checks: Vec<Check>,
}

/// How to get a full userfaultfd.
const UFFD_REMEDY: &str = "run as root or with CAP_SYS_PTRACE (containers: --cap-add SYS_PTRACE), with access to \
                           /dev/userfaultfd or a call filter that lets userfaultfd pass";

/// The page size that everything here is built for.
const PAGE_BYTES: u64 = 4096;

/// Pages are moved (`UFFDIO_MOVE`) since this kernel.
const KERNEL_MIN: (u64, u64) = (6, 8);

/// Mappings that a program split by paging may need, and then some; Linux's own default.
const MAPS_WANTED: u64 = 65_530;

/// Prints the diagnosis; ends with 3 if `pagetide run` cannot work here.
pub(crate) fn run(args: &DoctorArgs) -> Result<ExitCode, Failure> {
    let diagnosis = diagnose(&Probe::run());
    if args.json {
        let json = serde_json::to_string_pretty(&diagnosis).expect("names and texts are always JSON");
        output::print(&format!("{json}\n"))?;
    } else {
        output::print(&table(&diagnosis))?;
    }
    Ok(if diagnosis.can_run { ExitCode::SUCCESS } else { ExitCode::from(Exit::Unsupported.code()) })
}

fn diagnose(probe: &Probe) -> Diagnosis {
    let mut checks = vec![kernel(probe), page_size(probe), fault_mode(probe), thread_mode(probe), signal_mode(probe)];
    checks.extend(uffd_features(probe));
    checks.extend([io_uring(probe), pagemap_scan(probe), procmap_query(probe)]);
    checks.extend([seccomp(probe), privileges(probe), mappings(probe), overcommit(probe), huge_pages(probe)]);
    checks.extend([memory(probe), cpus(probe), swap_place(), library()]);
    Diagnosis {
        can_run: checks.iter().all(|check| check.state != State::Missing),
        thread_mode: probe.has_thread_mode(),
        signal_mode: probe.has_signal_mode(),
        checks,
    }
}

fn kernel(probe: &Probe) -> Check {
    let value = format!("Linux {} {}", probe.kernel.as_str(), probe.machine.as_str());
    if probe.version < KERNEL_MIN {
        return Check::new("kernel", State::Missing, value, "needs Linux 6.8 or newer: update the kernel");
    }
    Check::new("kernel", State::Ok, value, "")
}

fn page_size(probe: &Probe) -> Check {
    let value = format!("{} bytes", probe.page_bytes);
    if probe.page_bytes == PAGE_BYTES {
        return Check::new("page size", State::Ok, value, "");
    }
    Check::new("page size", State::Missing, value, "pagetide serves kernels with pages of 4096 bytes")
}

/// True if whole programs are served in thread mode: faults of every kind are caught, and forks followed.
const fn grants_thread_mode(probe: &Probe) -> bool {
    probe.has_thread_mode() && probe.uffd.event_fork.is_ok()
}

/// True if whole programs are served in signal mode.
fn grants_signal_mode(probe: &Probe) -> bool {
    probe.uffd.user_mode_only.is_ok() && can_dispatch()
}

/// What `run --fault-mode auto` takes, and why.
fn fault_mode(probe: &Probe) -> Check {
    const NAME: &str = "fault mode";
    if grants_thread_mode(probe) {
        return Check::new(NAME, State::Ok, "thread: a full userfaultfd is granted, and following forks", "");
    }
    if grants_signal_mode(probe) {
        let note = "programs have no io_uring and no AIO in it (all gaps: GUARANTEES.md, K3); root or CAP_SYS_PTRACE grants thread mode";
        return Check::new(NAME, State::Ok, "signal: no privilege for thread mode, and none is needed", note);
    }
    Check::new(NAME, State::Missing, "none: neither mode is granted, see below", UFFD_REMEDY)
}

/// What is missing for thread mode: no loss where signal mode serves.
fn without(probe: &Probe) -> State {
    if grants_signal_mode(probe) { State::Info } else { State::Missing }
}

fn thread_mode(probe: &Probe) -> Check {
    const NAME: &str = "thread mode";
    let missing = without(probe);
    match probe.uffd.opened_by {
        Ok(OpenedBy::Device) => Check::new(NAME, State::Ok, "full userfaultfd through /dev/userfaultfd", ""),
        Ok(OpenedBy::Syscall) => Check::new(NAME, State::Ok, "full userfaultfd through the system call", ""),
        Ok(OpenedBy::UserModeOnly) => Check::new(NAME, missing, "userfaultfd for user code only", UFFD_REMEDY),
        Err(refused) if is_absent(refused) => Check::new(
            NAME,
            missing,
            "no userfaultfd in this kernel",
            "use a kernel built with CONFIG_USERFAULTFD, or let the container's filter pass the call",
        ),
        Err(refused) => {
            let said = |errno: Option<Errno>| errno.map_or("not tried", Errno::name);
            let value = format!("refused: device {}, call {}", said(refused.device), said(refused.syscall));
            Check::new(NAME, missing, value, UFFD_REMEDY)
        }
    }
}

/// The call itself is unknown to the kernel, or a filter hides it.
fn is_absent(refused: Refused) -> bool {
    refused.syscall == Some(Errno::ENOSYS)
}

fn signal_mode(probe: &Probe) -> Check {
    let note = "needed by `run` and by regions of the library, for users without privileges";
    match probe.uffd.user_mode_only {
        Ok(()) if probe.has_signal_mode() => Check::new("signal mode", State::Info, signal_mode_reach(), ""),
        Ok(()) => Check::new("signal mode", State::Info, "no UFFD_FEATURE_SIGBUS", note),
        Err(errno) => Check::new("signal mode", State::Info, format!("refused: {}", errno.name()), note),
    }
}

/// What signal mode serves here.
fn signal_mode_reach() -> &'static str {
    if can_dispatch() {
        return "userfaultfd for user code, and system calls can be dispatched: whole programs, for any user";
    }
    "userfaultfd for user code: regions of the library; system calls cannot be dispatched, so no whole programs"
}

#[cfg(target_arch = "x86_64")]
fn can_dispatch() -> bool {
    pagetide_sys::dispatch::is_available().is_ok()
}

/// Syscall User Dispatch is used on x86-64 only.
#[cfg(not(target_arch = "x86_64"))]
const fn can_dispatch() -> bool {
    false
}

fn uffd_features(probe: &Probe) -> Vec<Check> {
    let features = probe.uffd.features;
    let needed = |name, present: bool, remedy: &str| {
        if present { Check::new(name, State::Ok, "yes", "") } else { Check::new(name, State::Missing, "no", remedy) }
    };
    let follow = Features::EVENT_REMAP.with(Features::EVENT_REMOVE).with(Features::EVENT_UNMAP);
    vec![
        needed("move pages", probe.uffd.move_works, "use Linux 6.8 or newer"),
        needed("poison pages", features.has(Features::POISON), "use Linux 6.6 or newer"),
        needed("follow unmap", features.has(follow), "use a kernel that tells of changed mappings"),
        follow_fork(probe),
    ]
}

fn follow_fork(probe: &Probe) -> Check {
    const NAME: &str = "follow fork";
    if probe.uffd.event_fork.is_ok() {
        return Check::new(NAME, State::Ok, "yes", "");
    }
    let note =
        if grants_signal_mode(probe) { "signal mode sees forks itself" } else { "run as root or with CAP_SYS_PTRACE" };
    Check::new(NAME, without(probe), "no", note)
}

fn io_uring(probe: &Probe) -> Check {
    const NAME: &str = "io_uring";
    let instead = "preadv2 and pwritev2 are used instead";
    match probe.io_uring {
        Ok(()) => Check::new(NAME, State::Ok, "yes", ""),
        Err(uring::Refused::Missing) => Check::new(NAME, State::Limited, "not there, or filtered", instead),
        Err(uring::Refused::Forbidden) => Check::new(
            NAME,
            State::Limited,
            "forbidden",
            format!("{instead}; sysctl kernel.io_uring_disabled=0 allows it"),
        ),
        Err(uring::Refused::TooOld | uring::Refused::BadFlags) => Check::new(NAME, State::Limited, "too old", instead),
        Err(uring::Refused::Other(errno)) => Check::new(NAME, State::Limited, errno.name(), instead),
    }
}

fn pagemap_scan(probe: &Probe) -> Check {
    match probe.pagemap_scan {
        Ok(()) => Check::new("PAGEMAP_SCAN", State::Ok, "yes", ""),
        Err(errno) => Check::new(
            "PAGEMAP_SCAN",
            State::Limited,
            errno.name(),
            "page tables are read word by word (Linux 6.7 scans)",
        ),
    }
}

fn procmap_query(probe: &Probe) -> Check {
    match probe.procmap_query {
        Ok(()) => Check::new("PROCMAP_QUERY", State::Ok, "yes", ""),
        Err(errno) => {
            Check::new("PROCMAP_QUERY", State::Limited, errno.name(), "/proc/PID/maps is read as text (Linux 6.11)")
        }
    }
}

fn seccomp(probe: &Probe) -> Check {
    match probe.seccomp {
        Seccomp::Off => Check::new("call filter", State::Ok, "none", ""),
        Seccomp::Strict => Check::new("call filter", State::Missing, "seccomp strict mode", "start outside of it"),
        Seccomp::Filter => Check::new("call filter", State::Info, "seccomp filter, as containers have it", ""),
    }
}

fn privileges(probe: &Probe) -> Check {
    let capability = if probe.cap_sys_ptrace { "CAP_SYS_PTRACE" } else { "no CAP_SYS_PTRACE" };
    let gains = if probe.no_new_privileges { "no new privileges" } else { "setuid programs gain privileges" };
    Check::new("privileges", State::Info, format!("{capability}; {gains}"), "")
}

fn mappings(probe: &Probe) -> Check {
    const NAME: &str = "mappings";
    match probe.max_map_count {
        Some(count) if count < MAPS_WANTED => {
            let note = format!("programs with many mappings may run out: sysctl vm.max_map_count={MAPS_WANTED}");
            Check::new(NAME, State::Limited, format!("at most {count} a process"), note)
        }
        Some(count) => Check::new(NAME, State::Ok, format!("at most {count} a process"), ""),
        None => Check::new(NAME, State::Info, "limit unknown", ""),
    }
}

fn overcommit(probe: &Probe) -> Check {
    const NAME: &str = "overcommit";
    match probe.overcommit {
        Overcommit::Heuristic => Check::new(NAME, State::Ok, "heuristic", ""),
        Overcommit::Always => Check::new(NAME, State::Ok, "always", ""),
        Overcommit::Never => Check::new(
            NAME,
            State::Limited,
            "never",
            "a program may not even ask for more than the machine promises: sysctl vm.overcommit_memory=0",
        ),
        Overcommit::Unknown => Check::new(NAME, State::Info, "unknown", ""),
    }
}

fn huge_pages(probe: &Probe) -> Check {
    let value = match probe.huge_pages {
        HugePages::Always => "always",
        HugePages::Madvise => "where advised",
        HugePages::Never => "never",
        HugePages::Unknown => "unknown",
    };
    Check::new("huge pages", State::Info, value, "")
}

fn memory(probe: &Probe) -> Check {
    let total = Bytes(probe.memory.total_bytes);
    let available = Bytes(probe.memory.available_bytes);
    let limit =
        probe.cgroup.limit_bytes.map_or_else(String::new, |bytes| format!(", control group limit {}", Bytes(bytes)));
    let share =
        machine::memory_bytes().map_or_else(String::new, |bytes| format!("--memory 25% is {}", Bytes(bytes / 4)));
    Check::new("memory", State::Info, format!("{total}, available {available}{limit}"), share)
}

fn cpus(probe: &Probe) -> Check {
    let note = if probe.cpus == 1 { "handler and program share one: faults wait for each other" } else { "" };
    Check::new("CPUs", State::Info, probe.cpus.to_string(), note)
}

/// A budget for which the default place is looked for when none is known.
const BUDGET_BYTES_ASSUMED: u64 = 1 << 30;

fn swap_place() -> Check {
    const NAME: &str = "swap place";
    let found = swap::default_directory(BUDGET_BYTES_ASSUMED);
    match found.map(|path| (Place::of(&path).map_or(0, |place| place.free_bytes), path)) {
        Ok((free_bytes, path)) => {
            Check::new(NAME, State::Ok, format!("{}, {} free", path.display(), Bytes(free_bytes)), "")
        }
        Err(_) => Check::new(NAME, State::Limited, "no default directory is on a disk", "name one: --swap DIR"),
    }
}

fn library() -> Check {
    match preload::find() {
        Ok(path) => Check::new("preload library", State::Ok, path.display().to_string(), ""),
        Err(Failure::Told(told)) => Check::new("preload library", State::Missing, told.what, told.remedy),
        Err(Failure::BrokenPipe) => unreachable!("finding a file prints nothing"),
    }
}

/// The table as people read it: a mark, a name, a value; notes below.
fn table(diagnosis: &Diagnosis) -> String {
    let mut text = String::new();
    for check in &diagnosis.checks {
        let mark = match check.state {
            State::Ok => "ok     ",
            State::Limited => "limited",
            State::Missing => "MISSING",
            State::Info => "       ",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{mark}  {:<16} {}", check.name, check.value);
        if !check.note.is_empty() {
            let _ = writeln!(text, "{:27}{}", "", check.note);
        }
    }
    let verdict = if diagnosis.can_run {
        "`pagetide run` works here."
    } else {
        "`pagetide run` does not work here: see the lines marked MISSING."
    };
    let _ = writeln!(text, "\n{verdict}");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<'a>(diagnosis: &'a Diagnosis, name: &str) -> &'a Check {
        diagnosis.checks.iter().find(|check| check.name == name).expect(name)
    }

    #[test]
    fn a_user_without_userfaultfd_is_told_how_to_get_it() {
        let mut probe = Probe::run();
        probe.uffd.opened_by =
            Err(Refused { device: Some(Errno::EACCES), syscall: Some(Errno::EPERM), user_mode_only: None });
        probe.uffd.user_mode_only = Err(Errno::EPERM);
        let diagnosis = diagnose(&probe);
        let line = check(&diagnosis, "thread mode");
        assert!(!diagnosis.can_run);
        assert_eq!(line.state, State::Missing);
        assert!(line.value.contains("EPERM") && line.note.contains("CAP_SYS_PTRACE"), "{line:?}");
        assert!(table(&diagnosis).contains("MISSING  thread mode"), "{}", table(&diagnosis));
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_user_without_privileges_is_served_in_signal_mode() {
        let mut probe = Probe::run();
        if probe.uffd.user_mode_only.is_err() || !can_dispatch() {
            return eprintln!("SKIPPED: no userfaultfd for user code, or no Syscall User Dispatch");
        }
        probe.uffd.opened_by = Ok(OpenedBy::UserModeOnly);
        probe.uffd.event_fork = Err(Errno::EPERM);
        let diagnosis = diagnose(&probe);
        assert!(check(&diagnosis, "fault mode").value.starts_with("signal"), "{}", table(&diagnosis));
        assert_eq!(check(&diagnosis, "thread mode").state, State::Info);
        assert_eq!(check(&diagnosis, "follow fork").state, State::Info);
    }

    #[test]
    fn an_old_kernel_is_named() {
        let mut probe = Probe::run();
        probe.version = (6, 7);
        assert_eq!(check(&diagnose(&probe), "kernel").state, State::Missing);
        probe.version = (6, 8);
        assert_eq!(check(&diagnose(&probe), "kernel").state, State::Ok);
    }

    #[test]
    fn what_is_not_ok_says_what_follows() {
        let mut probe = Probe::run();
        probe.uffd.features = Features::NONE;
        probe.uffd.move_works = false;
        probe.uffd.event_fork = Err(Errno::EPERM);
        probe.io_uring = Err(uring::Refused::Forbidden);
        probe.pagemap_scan = Err(Errno::ENOTTY);
        probe.procmap_query = Err(Errno::ENOTTY);
        probe.overcommit = Overcommit::Never;
        probe.max_map_count = Some(100);
        probe.page_bytes = 65_536;
        probe.seccomp = Seccomp::Strict;
        for check in diagnose(&probe).checks {
            let must_speak = matches!(check.state, State::Limited | State::Missing);
            assert!(!must_speak || !check.note.is_empty(), "{check:?}");
        }
    }

    #[test]
    fn json_and_table_come_from_the_same_checks() {
        let diagnosis = diagnose(&Probe::run());
        let json = serde_json::to_value(&diagnosis).expect("plain data");
        assert_eq!(json["checks"].as_array().map(Vec::len), Some(diagnosis.checks.len()));
        assert_eq!(json["checks"][0]["name"], "kernel");
    }
}
