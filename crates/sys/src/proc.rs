//! Numbers of processes from /proc: statm, status, stat. Buffers on the stack; a file that is read again and again stays open.

use core::ffi::CStr;
use core::sync::atomic::{AtomicI32, Ordering};

use linux_raw_sys::general::{
    __NR_fchdir, __NR_getdents64, __NR_kcmp, __NR_prlimit64, __NR_process_vm_readv, __NR_process_vm_writev, RLIMIT_AS,
    RLIMIT_DATA, RLIMIT_FSIZE, RLIMIT_NOFILE,
};

use crate::credentials::Credentials;
use crate::fd::Fd;
use crate::file::{self, FsKind, flags};
use crate::syscall;
use crate::syscall::Errno;
use crate::sysinfo::usable_cpus;
use crate::text::{Text, decimal};
use crate::word::{addr_of, int_arg, usize_of};

/// Sizes of a process in pages.
///
/// The kernel sums per-CPU counters without waiting for them: up to 64 pages and one batch per CPU are missing or too many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statm {
    /// Mapped, present or not.
    pub size_pages: u64,
    /// In memory.
    pub resident_pages: u64,
    /// Of those, of files and shared memory.
    pub shared_pages: u64,
    /// Mapped to be written by this process alone, present or not; stacks as far as they have grown.
    pub data_pages: u64,
}

impl Statm {
    /// Anonymous pages in memory.
    pub const fn anon_pages(&self) -> u64 {
        self.resident_pages.saturating_sub(self.shared_pages)
    }

    /// Pages that may be filled without a further call.
    pub const fn untouched_pages(&self) -> u64 {
        self.data_pages.saturating_sub(self.anon_pages())
    }
}

/// Files of this process's own directory in /proc that somebody else opened for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// `pagemap`
    Pagemap,
    /// `maps`, for questions about single addresses.
    Maps,
    /// `statm`
    Statm,
}

static GIVEN: [AtomicI32; 3] = [const { AtomicI32::new(-1) }; 3];

/// Use these from now on instead of opening them: the process may have given up the right, or have no /proc. They stay open. None:
/// there is no such file any more.
pub fn give(which: Given, file: Option<Fd>) {
    GIVEN[which as usize].store(file.map_or(-1, Fd::into_raw), Ordering::Relaxed);
}

/// A descriptor of our own of a file that was given.
pub(crate) fn given(which: Given) -> Option<Fd> {
    let raw = GIVEN[which as usize].load(Ordering::Relaxed);
    if raw < 0 {
        return None;
    }
    // SAFETY: a file that was given stays open; the value is not dropped.
    let file = core::mem::ManuallyDrop::new(unsafe { Fd::from_raw(raw) });
    file.dup_high(0).ok()
}

/// /proc/PID/statm, open.
#[derive(Debug)]
pub struct StatmFile {
    fd: Fd,
}

impl StatmFile {
    /// Of the calling thread's process, as long as this thread lives (the file of the process shows nothing any more when its first
    /// thread has ended). After a fork it still shows the parent: open it anew.
    pub fn open_self() -> Result<Self, Errno> {
        match (open(c"thread-self/statm"), given(Given::Statm)) {
            (Ok(fd), _) | (Err(_), Some(fd)) => Ok(Self { fd }),
            (Err(errno), None) => Err(errno),
        }
    }

    /// Of another process. ENOENT: it is gone.
    pub fn open(pid: i32) -> Result<Self, Errno> {
        let path = Text::<32>::format(format_args!("{pid}/statm"));
        open(path.as_c_str()).map(|fd| Self { fd })
    }

    /// The same under a high number.
    pub fn moved_high(self, lowest: u32) -> Self {
        Self { fd: self.fd.moved_high(lowest) }
    }

    /// Read the numbers of now. ESRCH: the process is gone.
    pub fn read(&self) -> Result<Statm, Errno> {
        let mut buf = [0; 128];
        let len = file::pread(&self.fd, &mut buf, 0)?;
        if len == 0 {
            return Err(Errno::ESRCH);
        }
        let parse = |text| {
            let (size_pages, rest) = decimal(text)?;
            let (resident_pages, rest) = decimal(rest)?;
            let (shared_pages, rest) = decimal(rest)?;
            // The program's code, and a zero.
            let (_, rest) = decimal(rest)?;
            let (_, rest) = decimal(rest)?;
            let (data_pages, _) = decimal(rest)?;
            Some(Statm { size_pages, resident_pages, shared_pages, data_pages })
        };
        parse(&buf[..len]).ok_or(Errno::EIO)
    }
}

/// /proc/loadavg, open.
#[derive(Debug)]
pub struct LoadFile {
    fd: Fd,
    cpus: u32,
}

impl LoadFile {
    /// Open it under `/proc`. ENOENT: there is none.
    pub fn open() -> Result<Self, Errno> {
        open(c"loadavg").map(|fd| Self { fd, cpus: usable_cpus() })
    }

    /// The same under a high number.
    #[must_use]
    pub fn moved_high(self, lowest: u32) -> Self {
        Self { fd: self.fd.moved_high(lowest), ..self }
    }

    /// The descriptor.
    pub const fn fd(&self) -> &Fd {
        &self.fd
    }

    /// True if no more threads of the whole machine run, or wait for a CPU, than there were CPUs for the opening thread. False as well
    /// where the file does not tell.
    pub fn has_cpus_for_all(&self) -> bool {
        let mut buf = [0; 64];
        let runnable = file::pread(&self.fd, &mut buf, 0).ok().and_then(|len| runnable_in(&buf[..len]));
        runnable.is_some_and(|runnable| runnable <= self.cpus)
    }
}

/// The fourth field: `runnable/all`.
fn runnable_in(line: &[u8]) -> Option<u32> {
    let field = line.split(|&byte| byte == b' ').nth(3)?;
    let (runnable, rest) = decimal(field)?;
    u32::try_from(runnable).ok().filter(|_| rest.first() == Some(&b'/'))
}

/// Fields of /proc/PID/status. Sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// `VmHWM`: most that was ever resident.
    pub peak_resident_bytes: u64,
    /// `VmRSS`.
    pub resident_bytes: u64,
    /// `RssAnon`.
    pub resident_anon_bytes: u64,
    /// `RssFile`.
    pub resident_file_bytes: u64,
    /// `RssShmem`.
    pub resident_shmem_bytes: u64,
    /// `VmLck`.
    pub locked_bytes: u64,
    /// `VmPTE`: page tables.
    pub page_table_bytes: u64,
    /// `VmSwap`: in the kernel's swap.
    pub swapped_bytes: u64,
    /// `Threads`.
    pub threads: u64,
    /// `Seccomp`: 0 off, 1 strict, 2 filter.
    pub seccomp: u64,
    /// `NoNewPrivs`.
    pub no_new_privileges: u64,
    /// `CapEff`: effective capabilities, one bit each.
    pub capabilities: u64,
    /// `SigPnd` and `ShdPnd`: signals that its first thread, or all of it, has yet to take; number 1 is bit 0.
    pub pending: u64,
}

/// Read the fields of a process (`None`: this one). A kernel thread has no sizes.
pub fn status(pid: Option<i32>) -> Result<Status, Errno> {
    // The file is 1.2 to 1.6 KiB; two long lines (allowed CPUs and nodes) grow with the machine.
    let mut buf = [0; 8192];
    let text = read_of(pid, "status", &mut buf)?;
    let mut status = Status::default();
    for (key, value) in fields(text) {
        let set = || crate::text::hexadecimal(value).map_or(0, |(value, _)| value);
        match key {
            b"CapEff" => status.capabilities = set(),
            b"SigPnd" | b"ShdPnd" => status.pending |= set(),
            _ => {}
        }
        let Some(value) = number(value) else { continue };
        let place = match key {
            b"VmHWM" => &mut status.peak_resident_bytes,
            b"VmRSS" => &mut status.resident_bytes,
            b"RssAnon" => &mut status.resident_anon_bytes,
            b"RssFile" => &mut status.resident_file_bytes,
            b"RssShmem" => &mut status.resident_shmem_bytes,
            b"VmLck" => &mut status.locked_bytes,
            b"VmPTE" => &mut status.page_table_bytes,
            b"VmSwap" => &mut status.swapped_bytes,
            b"Threads" => &mut status.threads,
            b"Seccomp" => &mut status.seccomp,
            b"NoNewPrivs" => &mut status.no_new_privileges,
            _ => continue,
        };
        *place = value;
    }
    Ok(status)
}

/// The credentials of this process's first thread.
pub fn credentials_of_first_thread() -> Result<Credentials, Errno> {
    let mut buf = [0; 8192];
    let text = read_of(None, "status", &mut buf)?;
    let mut of = Credentials::default();
    for (key, value) in fields(text) {
        let set = match key {
            b"Uid" => {
                of.users = three_numbers(value).ok_or(Errno::EIO)?;
                continue;
            }
            b"Gid" => {
                of.groups = three_numbers(value).ok_or(Errno::EIO)?;
                continue;
            }
            b"CapEff" => 0,
            b"CapPrm" => 1,
            b"CapInh" => 2,
            _ => continue,
        };
        of.capabilities[set] = crate::text::hexadecimal(value).ok_or(Errno::EIO)?.0;
    }
    Ok(of)
}

fn three_numbers(mut text: &[u8]) -> Option<[u32; 3]> {
    let mut numbers = [0; 3];
    for number in &mut numbers {
        let (value, rest) = decimal(text)?;
        (*number, text) = (u32::try_from(value).ok()?, rest);
    }
    Some(numbers)
}

/// The lines `key: value` of a file of /proc.
fn fields(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    text.split(|byte| *byte == b'\n').filter_map(|line| {
        let colon = line.iter().position(|byte| *byte == b':')?;
        Some((&line[..colon], &line[colon + 1..]))
    })
}

/// A value: a number, or a number of kB in bytes.
fn number(value: &[u8]) -> Option<u64> {
    let (value, rest) = decimal(value)?;
    Some(if rest.trim_ascii() == b"kB" { value * 1024 } else { value })
}

/// Anonymous memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnonSizes {
    /// What it maps, in bytes.
    pub mapped_bytes: u64,
    /// The same, but a page that N processes map counts as an Nth of a page.
    pub share_bytes: u64,
}

/// `Anonymous` and `Pss_Anon` of /proc/PID/smaps_rollup (Linux 5.4). The kernel looks at every page that is mapped: 30 ns each. ENOENT,
/// ESRCH: it is gone.
pub fn anon_sizes(pid: i32) -> Result<AnonSizes, Errno> {
    let mut buf = [0; 2048];
    let text = read_of(Some(pid), "smaps_rollup", &mut buf)?;
    let value = |name: &[u8]| fields(text).find(|(key, _)| *key == name).and_then(|(_, value)| number(value));
    let sizes = value(b"Anonymous").zip(value(b"Pss_Anon"));
    let (mapped_bytes, share_bytes) = sizes.ok_or(Errno::EIO)?;
    Ok(AnonSizes { mapped_bytes, share_bytes: share_bytes.min(mapped_bytes) })
}

/// Basics of /proc/PID/stat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// `R`, `S`, `D`, `Z`, `T`..
    pub state: u8,
    /// The parent.
    pub parent: i32,
    /// The process group.
    pub group: i32,
    /// Minor faults.
    pub minor_faults: u64,
    /// Major faults.
    pub major_faults: u64,
    /// CPU time in user mode, in clock ticks.
    pub user_ticks: u64,
    /// CPU time in the kernel, in clock ticks.
    pub system_ticks: u64,
    /// When it was started, in clock ticks since boot: with the number, the identity of a process.
    pub start_ticks: u64,
    /// The status with which it ended, as wait(2) has it; 0 before, and where it may not be known.
    pub exit_status: i32,
    /// Its environment is in its memory: from the end of its exec on. False as well where it may not be known.
    pub has_environment: bool,
}

/// Read the basics of a process (`None`: this one).
pub fn stat(pid: Option<i32>) -> Result<Stat, Errno> {
    let mut buf = [0; 1024];
    let text = read_of(pid, "stat", &mut buf)?;
    parse_stat(text).ok_or(Errno::EIO)
}

/// What a thread of this process does: `R`, `S`, `D`...
pub fn thread_state(tid: i32) -> Result<u8, Errno> {
    let path = Text::<48>::format(format_args!("self/task/{tid}/stat"));
    let mut buf = [0; 1024];
    let text = file::read_to_end(&open(path.as_c_str())?, &mut buf)?;
    parse_stat(text).map(|stat| stat.state).ok_or(Errno::EIO)
}

/// The state of one that has ended: a zombie, or hardly that any more.
pub const fn is_over(state: u8) -> bool {
    matches!(state, b'Z' | b'X')
}

/// Does the name of a thread of this process begin with one of these? False for one that is gone.
pub fn is_thread_named(tid: i32, beginnings: &[&[u8]]) -> bool {
    let path = Text::<48>::format(format_args!("self/task/{tid}/comm"));
    let mut buf = [0; 64];
    let name = open(path.as_c_str()).and_then(|file| file::read_to_end(&file, &mut buf).map(|name| name.len()));
    name.is_ok_and(|len| beginnings.iter().any(|beginning| buf[..len].starts_with(beginning)))
}

/// Fields of the list of numbers in /proc/PID/stat that every kernel has.
const FIELDS_MIN: usize = 19;

fn parse_stat(text: &[u8]) -> Option<Stat> {
    // The name stands in brackets and may itself hold brackets and blanks: the last closing one counts.
    let close = text.iter().rposition(|byte| *byte == b')')?;
    let rest = text[close + 1..].trim_ascii_start();
    let (state, mut rest) = rest.split_first()?;
    // Fields 4 to 52 of the manual page, as far as they are there; field 8 may be negative.
    let mut fields = [0u64; 49];
    for (index, field) in fields.iter_mut().enumerate() {
        if index >= FIELDS_MIN && rest.trim_ascii_start().is_empty() {
            break;
        }
        rest = rest.trim_ascii_start();
        rest = rest.strip_prefix(b"-").unwrap_or(rest);
        (*field, rest) = decimal(rest)?;
    }
    Some(Stat {
        state: *state,
        parent: i32::try_from(fields[0]).ok()?,
        group: i32::try_from(fields[1]).ok()?,
        minor_faults: fields[6],
        major_faults: fields[8],
        user_ticks: fields[10],
        system_ticks: fields[11],
        start_ticks: fields[18],
        exit_status: i32::try_from(fields[48]).ok()?,
        has_environment: fields[47] != 0,
    })
}

fn read_of<'a>(pid: Option<i32>, name: &str, buf: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let path = match pid {
        Some(pid) => Text::<48>::format(format_args!("{pid}/{name}")),
        None => Text::<48>::format(format_args!("self/{name}")),
    };
    file::read_to_end(&open(path.as_c_str())?, buf)
}

/// Open a file of /proc for reading: `self/maps`. A thread whose root has no /proc (chroot) may have made /proc its current
/// directory before ([`stay`]).
pub fn open(name: &CStr) -> Result<Fd, Errno> {
    let mut path = Text::<64>::new();
    path.push_bytes(b"/proc/");
    path.push_bytes(name.to_bytes());
    match Fd::open(path.as_c_str(), flags::READ, 0) {
        // ESRCH: the root is a directory of a process that has ended (the sandbox of browsers).
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::EACCES | Errno::ESRCH) => {
            let here = Fd::open(name, flags::READ, 0)?;
            // A file of this name in a directory of the program is none of the kernel's.
            if file::fs_info(&here)?.kind == FsKind::Proc { Ok(here) } else { Err(Errno::ENOENT) }
        }
        answer => answer,
    }
}

/// Make `directory`, which is an open /proc, the current directory of the calling thread, which has one of its own: /proc is found
/// from there whatever becomes of the program's root.
pub fn stay(directory: &Fd) -> Result<(), Errno> {
    // SAFETY: the current directory is the thread's own by the caller's word.
    unsafe { syscall!(__NR_fchdir, directory.arg()) }.map(|_| ())
}

/// Call `each` with the number of every thread of this process, in no order. A thread that begins or ends meanwhile is told of or
/// not.
pub fn each_thread(mut each: impl FnMut(i32)) -> Result<(), Errno> {
    let tasks = open(c"self/task")?;
    let mut buf = [0_u8; 2048];
    loop {
        // SAFETY: the kernel writes at most the length given.
        let len = unsafe { syscall!(__NR_getdents64, tasks.arg(), addr_of(buf.as_mut_ptr()), buf.len()) }?;
        if len == 0 {
            return Ok(());
        }
        threads_in(&buf[..len], &mut each).ok_or(Errno::EIO)?;
    }
}

/// The numbers among the names of a run of `struct linux_dirent64`: two words, a length of 16 bits, a type, a name that ends with 0.
fn threads_in(mut entries: &[u8], each: &mut impl FnMut(i32)) -> Option<()> {
    while !entries.is_empty() {
        let len = usize::from(u16::from_ne_bytes([*entries.get(16)?, *entries.get(17)?]));
        let name = entries.get(19..len)?;
        if let Some((tid, _)) = decimal(name) {
            each(i32::try_from(tid).ok()?);
        }
        entries = &entries[len..];
    }
    Some(())
}

/// Something of which a process may be allowed only so much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// RLIMIT_AS: bytes mapped.
    Addresses,
    /// RLIMIT_DATA: bytes of private writable mappings.
    Data,
    /// RLIMIT_NOFILE: one more than the highest number of a descriptor.
    Files,
    /// RLIMIT_FSIZE: bytes of a file that is written to.
    FileSize,
}

impl Resource {
    /// The kernel's number for it.
    pub const fn number(self) -> usize {
        let code = match self {
            Self::Addresses => RLIMIT_AS,
            Self::Data => RLIMIT_DATA,
            Self::Files => RLIMIT_NOFILE,
            Self::FileSize => RLIMIT_FSIZE,
        };
        code as usize
    }
}

/// A limit on this process's resources: soft and hard. [`UNLIMITED`] is none.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// In force.
    pub soft: u64,
    /// The most that the soft one may be set to.
    pub hard: u64,
}

/// No limit.
pub const UNLIMITED: u64 = u64::MAX;

/// Copy bytes out of another process's memory, all or none. EPERM: it may not be traced; EFAULT: they are not there; ESRCH.
pub fn read_memory(pid: i32, address: u64, bytes: &mut [u8]) -> Result<(), Errno> {
    let here = [addr_of(bytes.as_mut_ptr()), bytes.len()];
    let there = [usize_of(address), bytes.len()];
    let (here, there) = (addr_of(here.as_ptr()), addr_of(there.as_ptr()));
    // SAFETY: the kernel writes into `bytes`.
    let copied = unsafe { syscall!(__NR_process_vm_readv, int_arg(pid), here, 1, there, 1, 0) }?;
    if copied == bytes.len() { Ok(()) } else { Err(Errno::EFAULT) }
}

/// Write bytes into another process's memory, as [`read_memory`].
///
/// # Safety
/// Whoever runs there expects that they change.
pub unsafe fn write_memory(pid: i32, address: u64, bytes: &[u8]) -> Result<(), Errno> {
    let here = [addr_of(bytes.as_ptr()), bytes.len()];
    let there = [usize_of(address), bytes.len()];
    let (here, there) = (addr_of(here.as_ptr()), addr_of(there.as_ptr()));
    // SAFETY: the kernel reads `bytes`; the caller vouches for the other process.
    let copied = unsafe { syscall!(__NR_process_vm_writev, int_arg(pid), here, 1, there, 1, 0) }?;
    if copied == bytes.len() { Ok(()) } else { Err(Errno::EFAULT) }
}

/// Have two processes one address space (`vfork`)? Kernels without kcmp(2) say ENOSYS.
pub fn share_memory(one: i32, other: i32) -> Result<bool, Errno> {
    /// `KCMP_VM`
    const ADDRESS_SPACE: usize = 1;
    // SAFETY: changes nothing.
    unsafe { syscall!(__NR_kcmp, int_arg(one), int_arg(other), ADDRESS_SPACE, 0, 0) }.map(|order| order == 0)
}

/// Replace the limit on open descriptors of a process (0: this one), if `new` is given; the one before. EPERM: not ours to change.
pub fn descriptor_limit(pid: i32, new: Option<Limit>) -> Result<Limit, Errno> {
    let mut limit = Limit { soft: UNLIMITED, hard: UNLIMITED };
    let new = new.as_ref().map_or(0, |new| addr_of(new));
    let old = addr_of(&raw mut limit);
    // SAFETY: the kernel reads one limit and writes one.
    unsafe { syscall!(__NR_prlimit64, int_arg(pid), RLIMIT_NOFILE as usize, new, old) }.map(|_| limit)
}

/// The limit of this process.
pub fn limit(of: Resource) -> Result<Limit, Errno> {
    let mut limit = Limit { soft: UNLIMITED, hard: UNLIMITED };
    // SAFETY: the kernel writes one limit.
    unsafe { syscall!(__NR_prlimit64, 0, of.number(), 0, addr_of(&raw mut limit)) }.map(|_| limit)
}

/// Set it. EPERM: a hard limit above the present one is for `CAP_SYS_RESOURCE`.
pub fn set_limit(of: Resource, limit: Limit) -> Result<(), Errno> {
    // SAFETY: the kernel reads one limit.
    unsafe { syscall!(__NR_prlimit64, 0, of.number(), addr_of(&raw const limit), 0) }.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_can_be_lowered_to_what_it_is() {
        for of in [Resource::Addresses, Resource::Data, Resource::Files, Resource::FileSize] {
            let found = limit(of).expect("prlimit");
            assert!(found.soft <= found.hard);
            assert_eq!(set_limit(of, found), Ok(()));
            assert_eq!(limit(of), Ok(found));
        }
    }

    #[test]
    fn the_threads_of_this_process_are_told() {
        let own = crate::thread::gettid();
        let mut found = std::vec::Vec::new();
        each_thread(|tid| found.push(tid)).expect("/proc/self/task");
        assert!(found.contains(&own) && found.contains(&crate::thread::getpid()));
        assert_eq!(threads_in(&[0; 20], &mut |_| ()), None, "an entry that is shorter than its head");
        assert_eq!(threads_in(&[1; 30], &mut |_| ()), None, "an entry that ends behind the run");
        assert_eq!(threads_in(&[1; 3], &mut |_| ()), None);
    }

    #[test]
    fn who_runs_is_the_fourth_field_of_the_load() {
        assert_eq!(runnable_in(b"6.06 6.35 5.87 14/182 10053\n"), Some(14));
        assert_eq!(runnable_in(b"6.06 6.35 5.87 14 10053\n"), None);
        assert_eq!(runnable_in(b"6.06 6.35"), None);
        let load = LoadFile::open().expect("/proc/loadavg");
        assert!(!LoadFile { cpus: 0, ..load }.has_cpus_for_all(), "this thread runs");
    }

    #[test]
    fn a_name_with_brackets_does_not_shift_the_fields() {
        let text = b"42 (a) b (c)) S 7 42 42 0 -1 4194304 10 0 3 0 5 6 0 0 20 0 1 0 999 1 2";
        let stat = parse_stat(text).expect("a good line");
        assert_eq!((stat.state, stat.parent, stat.group), (b'S', 7, 42));
        assert_eq!((stat.minor_faults, stat.major_faults), (10, 3));
        assert_eq!((stat.user_ticks, stat.system_ticks, stat.start_ticks), (5, 6, 999));
        assert_eq!(parse_stat(b"42 (cut"), None);
    }

    #[test]
    fn this_process_is_read_and_a_missing_one_is_not() {
        let statm = StatmFile::open_self().expect("open").read().expect("read");
        assert!(statm.resident_pages > 0 && statm.resident_pages <= statm.size_pages);
        let status = status(None).expect("status");
        assert!(status.threads >= 1 && status.peak_resident_bytes >= status.resident_bytes);
        let all = status.resident_anon_bytes + status.resident_file_bytes + status.resident_shmem_bytes;
        assert_eq!(all, status.resident_bytes);
        assert_eq!(stat(None).map(|stat| stat.parent), Ok(crate::thread::getppid()));
        assert_eq!(stat(Some(i32::MAX)), Err(Errno::ENOENT));
        assert_eq!(thread_state(crate::thread::gettid()), Ok(b'R'));
        let sizes = anon_sizes(crate::thread::getpid()).expect("smaps_rollup");
        assert!(sizes.share_bytes > 0 && sizes.mapped_bytes <= status.peak_resident_bytes);
        assert_eq!(anon_sizes(i32::MAX), Err(Errno::ENOENT));
    }
}
