//! What a run is given before its program starts: a userfaultfd, places to swap to, a directory for records.

mod device;

use std::ffi::CString;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use pagetide_core::types::Nanos;
use pagetide_sys::fd::Fd;
use pagetide_sys::uffd::{ReadMode, Uffd};
use pagetide_sys::{Errno, file, stderr};

use crate::error::{Error, ErrorKind};
use crate::extents::Division;
use crate::protocol::{DeviceOffer, Hello};
use crate::session::command::PlaceId;
use crate::setup;
use crate::space::PAGE_BYTES;
use crate::supervise::commands::Drain;
use crate::supervise::{FaultMode, RunOptions, SwapSpec};
use crate::watch::is_same;

/// Space that stays free on the file system of a swap file.
pub(super) const FLOOR_BYTES: u64 = 256 << 20;
/// The smallest swap file that makes sense.
const SIZE_BYTES_MIN: u64 = 1 << 20;
/// Slots of one device at most: 256 GiB.
const SLOTS_MAX: u64 = 1 << 26;

/// How faults will be caught, which is never `Auto`, and the device that gives a full userfaultfd without a privilege of the program's
/// own. None: the agents use the system call.
pub(super) fn choose_mode(wanted: FaultMode) -> Result<(FaultMode, Option<Fd>), Error> {
    let thread = |device| (FaultMode::Thread, device);
    match wanted {
        FaultMode::Thread => open_uffd_device().map(thread),
        FaultMode::Signal => check_signal_mode().map(|()| (FaultMode::Signal, None)),
        FaultMode::Auto => open_uffd_device().map(thread).or_else(|no_thread| match check_signal_mode() {
            Ok(()) => Ok((FaultMode::Signal, None)),
            Err(no_signal) => Err(Error::new(ErrorKind::Unsupported, format!("{no_thread}; {no_signal}"))),
        }),
    }
}

fn open_uffd_device() -> Result<Option<Fd>, Error> {
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
                    "thread mode: no full userfaultfd ({why}): run as root or with CAP_SYS_PTRACE, or leave the choice to \
                     --fault-mode auto; `pagetide doctor` tells more"
                ),
            ))
        }
    }
}

/// What the preloaded object learns of the run: the pages of the budget, and the mode.
pub(super) fn run_text(budget_pages: u64, hello: &Hello) -> String {
    format!("{budget_pages}{}", if hello.signal_mode { " signal" } else { "" })
}

/// Signal mode needs a userfaultfd for user code, and system calls that are told of.
fn check_signal_mode() -> Result<(), Error> {
    let refuse = |what: &str, errno: Errno| {
        let text = format!("signal mode: {what} is refused ({}); `pagetide doctor` tells more", errno.name());
        Err(Error::new(ErrorKind::Unsupported, text))
    };
    match Uffd::open(pagetide_sys::uffd::Reach::UserMode, ReadMode::NonBlocking) {
        Ok((uffd, _)) => {
            if let Err(errno) = uffd.handshake(setup::signal_features()) {
                return refuse("moving and poisoning pages (Linux 6.8)", errno);
            }
        }
        Err(refused) => return refuse("userfaultfd", refused.user_mode_only.unwrap_or(Errno::ENOSYS)),
    }
    #[cfg(target_arch = "x86_64")]
    let dispatch = pagetide_sys::dispatch::is_available();
    #[cfg(not(target_arch = "x86_64"))]
    let dispatch = Err(Errno::ENOSYS);
    dispatch.or_else(|errno| refuse("Syscall User Dispatch", errno))
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

/// What a place lies on.
#[derive(Debug)]
enum Ground {
    /// Every process has a file of its own in this directory.
    Directory(Fd),
    /// Every process has extents of this device, which was opened so that nobody else can mount it, swap to it or open it so.
    Device { claim: Fd, division: Division },
}

/// A place to swap to.
#[derive(Debug)]
pub(super) struct Place {
    /// As it was named.
    pub(super) path: PathBuf,
    ground: Ground,
    /// As agents learn of it.
    pub(super) offer: DeviceOffer,
    /// It is being drained.
    pub(super) drain: Option<Drain>,
    /// It was being drained, and what is left fits nowhere else.
    pub(super) is_given_up: bool,
    /// Processes keep little of its room that they do not need, as others found none: since when.
    pub(super) short_since: Option<Nanos>,
    /// When it is looked whether that is over.
    pub(super) next_room_look: Nanos,
    /// The person was told that its disk is full.
    pub(super) is_full_told: bool,
    /// The person was told that a process has no file there.
    pub(super) is_lack_told: bool,
}

impl Place {
    /// Pages that fit on its file system beyond the floor, or on what nobody has of its device.
    pub(super) fn free_pages(&self) -> u64 {
        match &self.ground {
            Ground::Directory(directory) => {
                let free = file::fs_info(directory).map_or(0, |info| info.available_bytes);
                free.saturating_sub(FLOOR_BYTES) / PAGE_BYTES
            }
            Ground::Device { claim, division } => u64::from(division.free_slots(claim)),
        }
    }

    /// The file system that it shares with others on the same one; None: nobody else has a part of its room.
    pub(super) fn file_system(&self) -> Option<(u32, u32)> {
        match &self.ground {
            Ground::Directory(directory) => file::info(directory).ok().map(|info| info.device),
            Ground::Device { .. } => None,
        }
    }

    /// Its room is a device's, of which nothing is left to others.
    pub(super) const fn is_device(&self) -> bool {
        matches!(self.ground, Ground::Device { .. })
    }

    /// What keeps others from its device, which goes with each file.
    pub(super) const fn claim(&self) -> Option<&Fd> {
        match &self.ground {
            Ground::Directory(_) => None,
            Ground::Device { claim, .. } => Some(claim),
        }
    }

    /// An empty swap file for a process, or an open description of the device.
    pub(super) fn new_file(&self) -> Result<Fd, String> {
        match &self.ground {
            Ground::Directory(directory) => new_file(directory),
            Ground::Device { claim, .. } => {
                device::open_again(claim).map_err(|errno| format!("it cannot be opened again ({})", errno.name()))
            }
        }
    }

    /// The same for process `pid`, which does without this place if there is none; the person is told once.
    pub(super) fn file_for(&mut self, pid: i32) -> Option<Fd> {
        let refused = match self.new_file() {
            Ok(file) => return Some(file),
            Err(refused) => refused,
        };
        if !std::mem::replace(&mut self.is_lack_told, true) {
            stderr::tell(format_args!("pagetide: {}: process {pid} swaps elsewhere: {refused}", self.path.display()));
        }
        None
    }
}

/// An empty swap file, or what is in the way: no room for one, a quota, a file system that has no files without names (FAT).
fn new_file(directory: &Fd) -> Result<Fd, String> {
    setup::swap_file(directory).map_err(|errno| format!("no swap file can be made there ({})", errno.name()))
}

/// The places that the options name.
pub(super) fn open_places(options: &RunOptions) -> Result<Vec<Place>, Error> {
    let budget_pages = options.budget_bytes / PAGE_BYTES;
    let mut places: Vec<Place> = Vec::with_capacity(options.swap.len());
    for (id, spec) in (0..).map(PlaceId).zip(&options.swap) {
        if places.iter().any(|place| is_same(&place.path, &spec.path)) {
            let text = format!("--swap {}: it is named twice", spec.path.display());
            return Err(Error::new(ErrorKind::Config, text));
        }
        let place = open_place(spec, id, budget_pages)
            .map_err(|why| Error::new(ErrorKind::NoSwapSpace, format!("--swap {}: {why}", spec.path.display())));
        places.push(place?);
    }
    Ok(places)
}

/// Open a place, and size it. The error says why it cannot be used, for who knows how the user named it.
pub(super) fn open_place(spec: &SwapSpec, id: PlaceId, budget_pages: u64) -> Result<Place, String> {
    let place = |ground: Ground, slots: u32, division: Option<Division>| {
        let rotational = setup::is_rotational(&spec.path);
        let offer = DeviceOffer { place: id, slots, priority: spec.priority, rotational, division };
        let path = spec.path.clone();
        Place {
            path,
            ground,
            offer,
            drain: None,
            is_given_up: false,
            short_since: None,
            next_room_look: 0,
            is_full_told: false,
            is_lack_told: false,
        }
    };
    let what = std::fs::metadata(&spec.path);
    if what.as_ref().is_ok_and(|what| what.file_type().is_block_device()) {
        let (claim, division) = device::open(&spec.path, spec.size_bytes)?;
        return Ok(place(Ground::Device { claim, division }, division.slots(), Some(division)));
    }
    if what.is_ok_and(|what| !what.is_dir()) {
        return Err(
            "it is neither a directory nor a block device; the swap file has no name: name its directory".to_owned()
        );
    }
    let directory = open_directory(&spec.path)?;
    let info = file::fs_info(&directory).map_err(|errno| format!("its file system says nothing ({})", errno.name()))?;
    if info.kind.is_memory() {
        return Err("it lies in memory (tmpfs); name a directory on a disk".to_owned());
    }
    // What cannot be is said now, not when a process is to page.
    new_file(&directory)?;
    let budget_bytes = budget_pages.saturating_mul(PAGE_BYTES);
    let slots = slots_of(info.available_bytes, spec.size_bytes, budget_bytes)?;
    Ok(place(Ground::Directory(directory), slots, None))
}

/// Slots of a place on a file system with so much room; `asked` is the SIZE that was given. The error says what is missing.
fn slots_of(available_bytes: u64, asked: Option<u64>, budget_bytes: u64) -> Result<u32, String> {
    let free = available_bytes.saturating_sub(FLOOR_BYTES);
    let size = asked.unwrap_or_else(|| free.min(budget_bytes.saturating_mul(16)));
    let room = || {
        let (available, floor) = (available_bytes >> 20, FLOOR_BYTES >> 20);
        format!("{available} MiB are free on its file system, of which {floor} MiB stay free for others")
    };
    if size > free {
        return Err(format!("{} MiB are asked for; {}: give a smaller SIZE or another place", size >> 20, room()));
    }
    if size < SIZE_BYTES_MIN && asked.is_none() {
        return Err(format!("no room for a swap file: {}; name another place", room()));
    }
    if size < SIZE_BYTES_MIN {
        return Err(format!("{size} bytes are too small for a swap file (at least 1 MiB)"));
    }
    Ok(u32::try_from((size / PAGE_BYTES).min(SLOTS_MAX)).expect("limited"))
}

/// The directory of the records, and how they are named.
pub(super) fn open_record(options: &RunOptions) -> Result<Option<(Fd, String)>, Error> {
    let Some(path) = &options.record else { return Ok(None) };
    let refuse = |why: &str| Error::new(ErrorKind::Config, format!("--record {}: {why}", path.display()));
    let name = path.file_name().and_then(|name| name.to_str()).filter(|name| !name.contains('\n'));
    let name = name.ok_or_else(|| refuse("no name of a file in UTF-8"))?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(std::path::Path::new("."));
    let directory = open_directory(directory).map_err(|why| refuse(&why))?;
    Ok(Some((directory, name.to_owned())))
}

fn open_directory(path: &Path) -> Result<Fd, String> {
    let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_| "a zero byte in its name".to_owned())?;
    Fd::open(&name, file::flags::READ | file::flags::DIRECTORY, 0).map_err(|errno| match errno {
        Errno::ENOENT | Errno::ENOTDIR => "there is no such directory".to_owned(),
        Errno::EACCES => "this user may not open the directory; name one that the user can write to".to_owned(),
        other => format!("the directory cannot be opened ({})", other.name()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_small_disk_is_told_how_much_stays_free() {
        let refused = |available: u64, asked: Option<u64>| slots_of(available, asked, 64 * MIB).expect_err("no room");
        for text in [refused(256 * MIB, None), refused(100 * MIB, None), refused(300 * MIB, Some(64 * MIB))] {
            assert!(text.contains("256 MiB stay free"), "{text}");
        }
        assert!(refused(300 * MIB, Some(64 * MIB)).contains("64 MiB are asked for; 300 MiB are free"));
        assert!(refused(900 * MIB, Some(4096)).contains("too small"));
    }

    #[test]
    fn a_place_without_a_size_has_sixteen_budgets_or_what_is_free() {
        assert_eq!(slots_of(8192 * MIB, None, 64 * MIB), Ok(16 * 64 * 256));
        assert_eq!(slots_of(512 * MIB, None, 64 * MIB), Ok(256 * 256));
    }
}
