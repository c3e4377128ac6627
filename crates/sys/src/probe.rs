//! What this machine offers, found out in this process without lasting effects: descriptors and rings are made and dropped,
//! a few pages are mapped, moved, and unmapped. `pagetide doctor` prints it; the runtime chooses by it.

use crate::file::{self};
use crate::maps::MapsQuery;
use crate::mem::{AnonOptions, Mapping, PAGE_BYTES, Protection};
use crate::pagemap::{Categories, Pagemap, Run};
use crate::proc;
use crate::syscall;
use crate::syscall::Errno;
use crate::sysinfo::{self, CgroupMemory};
use crate::text::{Text, decimal};
use crate::uffd::{Features, Modes, OpenedBy, RangeAnswer, Reach, ReadMode, Refused, Uffd, Wake};
use crate::uring;
use crate::word::addr_of;

/// Number of `CAP_SYS_PTRACE`.
const CAP_SYS_PTRACE: u32 = 19;

/// Which userfaultfd is to be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UffdOffer {
    /// The best way in which one can be opened, or what each one said.
    pub opened_by: Result<OpenedBy, Refused>,
    /// Can one be opened without privilege as well? (Signal mode uses it.)
    pub user_mode_only: Result<(), Errno>,
    /// Features of the kernel.
    pub features: Features,
    /// `EVENT_FORK` is granted on a handshake (it needs a privilege of its own).
    pub event_fork: Result<(), Errno>,
    /// A page was really moved and came out whole: the feature bit alone is not believed.
    pub move_works: bool,
    /// `vm.unprivileged_userfaultfd`
    pub sysctl_unprivileged: Option<u64>,
}

/// `vm.overcommit_memory`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overcommit {
    /// 0: obvious excess is refused.
    Heuristic,
    /// 1: nothing is refused.
    Always,
    /// 2: nothing beyond the commit limit.
    Never,
    /// Not told.
    Unknown,
}

/// The word in brackets of /sys/kernel/mm/transparent_hugepage/enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HugePages {
    /// Everywhere.
    Always,
    /// Where advised.
    Madvise,
    /// Nowhere.
    Never,
    /// The kernel has none, or does not tell.
    Unknown,
}

/// Filters on the system calls of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seccomp {
    /// None.
    Off,
    /// Strict mode.
    Strict,
    /// A filter, as containers have it.
    Filter,
}

/// What this machine offers.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Kernel release, as `uname -r` says.
    pub kernel: Text<65>,
    /// Its first two numbers.
    pub version: (u64, u64),
    /// Machine, as `uname -m` says.
    pub machine: Text<65>,
    /// Bytes of a page as the kernel has it.
    pub page_bytes: u64,
    /// userfaultfd.
    pub uffd: UffdOffer,
    /// io_uring.
    pub io_uring: Result<(), uring::Refused>,
    /// The PAGEMAP_SCAN ioctl.
    pub pagemap_scan: Result<(), Errno>,
    /// The PROCMAP_QUERY ioctl.
    pub procmap_query: Result<(), Errno>,
    /// `vm.max_map_count`
    pub max_map_count: Option<u64>,
    /// How much may be promised.
    pub overcommit: Overcommit,
    /// Transparent huge pages.
    pub huge_pages: HugePages,
    /// System call filters.
    pub seccomp: Seccomp,
    /// Setuid programs are not honoured below this process.
    pub no_new_privileges: bool,
    /// `CAP_SYS_PTRACE` is effective.
    pub cap_sys_ptrace: bool,
    /// The cgroup's memory.
    pub cgroup: CgroupMemory,
    /// The machine's memory; its swap among it.
    pub memory: sysinfo::MemInfo,
    /// CPUs this thread may use.
    pub cpus: u32,
}

impl Probe {
    /// Look.
    pub fn run() -> Self {
        let (kernel, machine) = uname();
        let status = proc::status(None).unwrap_or_default();
        Self {
            version: version_of(kernel.as_bytes()),
            kernel,
            machine,
            page_bytes: page_bytes(),
            uffd: probe_uffd(),
            io_uring: uring::probe(),
            pagemap_scan: probe_pagemap_scan(),
            procmap_query: MapsQuery::open().map(|_| ()),
            max_map_count: sysinfo::number_in(c"/proc/sys/vm/max_map_count"),
            overcommit: match sysinfo::number_in(c"/proc/sys/vm/overcommit_memory") {
                Some(0) => Overcommit::Heuristic,
                Some(1) => Overcommit::Always,
                Some(2) => Overcommit::Never,
                Some(3..) | None => Overcommit::Unknown,
            },
            huge_pages: huge_pages(),
            seccomp: match status.seccomp {
                0 => Seccomp::Off,
                1 => Seccomp::Strict,
                2.. => Seccomp::Filter,
            },
            no_new_privileges: status.no_new_privileges != 0,
            cap_sys_ptrace: status.capabilities & (1 << CAP_SYS_PTRACE) != 0,
            cgroup: sysinfo::cgroup_memory(),
            memory: sysinfo::meminfo().unwrap_or_default(),
            cpus: sysinfo::usable_cpus(),
        }
    }

    /// Can faults of every kind, system calls among them, be served by a handler thread here?
    pub const fn has_thread_mode(&self) -> bool {
        matches!(self.uffd.opened_by, Ok(OpenedBy::Device | OpenedBy::Syscall))
    }

    /// Can a thread serve its own faults in a signal handler here?
    pub const fn has_signal_mode(&self) -> bool {
        self.uffd.opened_by.is_ok() && self.uffd.features.has(Features::SIGBUS)
    }
}

/// Release and machine.
fn uname() -> (Text<65>, Text<65>) {
    // struct new_utsname: six fields of 65 bytes.
    let mut fields = [[0u8; 65]; 6];
    // SAFETY: the kernel writes 390 bytes into `fields`.
    let answer = unsafe { syscall!(linux_raw_sys::general::__NR_uname, addr_of(&raw mut fields)) };
    assert!(answer.is_ok(), "uname fails only on a bad address");
    let text = |field: &[u8; 65]| {
        let mut text = Text::new();
        text.push_bytes(field.split(|byte| *byte == 0).next().unwrap_or_default());
        text
    };
    (text(&fields[2]), text(&fields[4]))
}

fn version_of(release: &[u8]) -> (u64, u64) {
    let parse = || {
        let (major, rest) = decimal(release)?;
        let (minor, _) = decimal(rest.strip_prefix(b".")?)?;
        Some((major, minor))
    };
    parse().unwrap_or((0, 0))
}

/// The page size from the auxiliary vector.
fn page_bytes() -> u64 {
    const AT_PAGESZ: u64 = 6;
    let mut buf = [0; 1024];
    let Ok(bytes) = file::read_path(c"/proc/self/auxv", &mut buf) else { return 0 };
    let word = |piece: &[u8]| piece.try_into().map_or(0, u64::from_ne_bytes);
    let mut pairs = bytes.chunks_exact(16).map(|pair| (word(&pair[..8]), word(&pair[8..])));
    pairs.find(|(key, _)| *key == AT_PAGESZ).map_or(0, |(_, value)| value)
}

fn huge_pages() -> HugePages {
    let mut buf = [0; 64];
    let text = file::read_path(c"/sys/kernel/mm/transparent_hugepage/enabled", &mut buf).unwrap_or_default();
    let chosen = text.split(|byte| *byte == b'[').nth(1).and_then(|rest| rest.split(|byte| *byte == b']').next());
    match chosen {
        Some(b"always") => HugePages::Always,
        Some(b"madvise") => HugePages::Madvise,
        Some(b"never") => HugePages::Never,
        Some(_) | None => HugePages::Unknown,
    }
}

fn probe_uffd() -> UffdOffer {
    let sysctl_unprivileged = sysinfo::number_in(c"/proc/sys/vm/unprivileged_userfaultfd");
    let user_mode_only = match Uffd::open(Reach::UserMode, ReadMode::NonBlocking) {
        Ok(_) => Ok(()),
        Err(refused) => Err(refused.user_mode_only.unwrap_or(Errno::ENOSYS)),
    };
    match Uffd::open(Reach::Best, ReadMode::NonBlocking) {
        Ok((uffd, opened_by)) => {
            let features = uffd.handshake(Features::NONE).map_or(Features::NONE, |offer| offer.features);
            let event_fork = try_event_fork();
            let move_works = features.has(Features::MOVE) && try_move().is_ok_and(|works| works);
            UffdOffer {
                opened_by: Ok(opened_by),
                user_mode_only,
                features,
                event_fork,
                move_works,
                sysctl_unprivileged,
            }
        }
        Err(refused) => UffdOffer {
            opened_by: Err(refused),
            user_mode_only,
            features: Features::NONE,
            event_fork: Err(Errno::EPERM),
            move_works: false,
            sysctl_unprivileged,
        },
    }
}

fn try_event_fork() -> Result<(), Errno> {
    let (uffd, _) = Uffd::open(Reach::Best, ReadMode::NonBlocking).map_err(|_| Errno::EPERM)?;
    uffd.handshake(Features::EVENT_FORK).map(|_| ())
}

/// Move a page and look at its bytes.
fn try_move() -> Result<bool, Errno> {
    let (uffd, _) = Uffd::open(Reach::Best, ReadMode::NonBlocking).map_err(|_| Errno::EPERM)?;
    uffd.handshake(Features::MOVE)?;
    let options = AnonOptions { protection: Protection::ReadWrite, populate: false, inherit: false };
    let from = Mapping::anonymous(PAGE_BYTES, options)?;
    let to = Mapping::anonymous(PAGE_BYTES, options)?;
    // SAFETY: mapped, writable and only ours.
    unsafe { from.range().as_ptr().write(0x5a) };
    uffd.register(to.range(), Modes::MISSING)?;
    let answer = uffd.move_run(to.range(), from.range(), false, Wake::Now);
    if answer != (RangeAnswer { done: PAGE_BYTES, stop: None }) {
        return Ok(false);
    }
    // SAFETY: mapped, present by the answer, and only ours.
    Ok(unsafe { to.range().as_ptr().read_volatile() } == 0x5a)
}

fn probe_pagemap_scan() -> Result<(), Errno> {
    let options = AnonOptions { protection: Protection::ReadWrite, populate: true, inherit: false };
    let page = Mapping::anonymous(PAGE_BYTES, options)?;
    let mut runs = [Run::default(); 2];
    let scanned = Pagemap::open()?.scan(page.range(), Categories::PRESENT, &mut runs)?;
    if scanned.runs == 1 { Ok(()) } else { Err(Errno::EIO) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_two_numbers() {
        assert_eq!(version_of(b"6.18.44-fc-v657"), (6, 18));
        assert_eq!(version_of(b"strange"), (0, 0));
    }
}
