//! userfaultfd: registering memory, reading its faults and events, and answering them.
//!
//! **What is promised where.** A page that is missing in a registered range has no content: a thread that touches it sleeps
//! (or gets SIGBUS) until someone gives it one. Giving content to a missing page, moving it elsewhere, protecting or
//! poisoning it therefore cannot break a rule that Rust relies on, *as long as no Rust reference to the range exists*,
//! because a reference promises that the bytes behind it neither change nor vanish. That promise is made once, by whoever
//! makes a [`ManagedRange`]; registering is where it begins to matter, and so neither [`Uffd::register`] nor the answers are
//! unsafe functions: they accept only ranges for which it was made. The second promise is liveness: a registered range needs
//! someone who answers its faults, who must never fault on it himself. Rust cannot see that one; the runtime's design does.
//!
//! **Errors are answers.** The calls work on runs of pages and may stop in the middle. Each returns how many bytes were done
//! and why it stopped ([`RangeAnswer`]). The kernel tells it in a field of the argument; an error there (negative) and the
//! call's own error are both read. After a partly done run the kernel says EAGAIN and not the reason: the `_run` methods
//! call once more from the place where it stopped, and report the reason of that call.

use core::ffi::CStr;

use linux_raw_sys::general as k;
use linux_raw_sys::general::__NR_userfaultfd;

use crate::fd::Fd;
use crate::file;
use crate::mem::ManagedRange;
use crate::syscall;
use crate::syscall::Errno;
use crate::word::{addr_of, low_u8, low_u32, u64_of, usize_of};

const fn ioc(direction: u32, nr: u32, words: u32) -> u32 {
    (direction << 30) | ((words * 8) << 16) | (k::UFFDIO << 8) | nr
}

const READ_WRITE: u32 = 3;
const READ_ONLY: u32 = 2;

const UFFDIO_API: u32 = ioc(READ_WRITE, k::_UFFDIO_API, 3);
const UFFDIO_REGISTER: u32 = ioc(READ_WRITE, k::_UFFDIO_REGISTER, 4);
const UFFDIO_UNREGISTER: u32 = ioc(READ_ONLY, k::_UFFDIO_UNREGISTER, 2);
const UFFDIO_WAKE: u32 = ioc(READ_ONLY, k::_UFFDIO_WAKE, 2);
pub(crate) const UFFDIO_COPY: u32 = ioc(READ_WRITE, k::_UFFDIO_COPY, 5);
const UFFDIO_ZEROPAGE: u32 = ioc(READ_WRITE, k::_UFFDIO_ZEROPAGE, 4);
pub(crate) const UFFDIO_MOVE: u32 = ioc(READ_WRITE, k::_UFFDIO_MOVE, 5);
const UFFDIO_WRITEPROTECT: u32 = ioc(READ_WRITE, k::_UFFDIO_WRITEPROTECT, 3);
const UFFDIO_CONTINUE: u32 = ioc(READ_WRITE, k::_UFFDIO_CONTINUE, 4);
const UFFDIO_POISON: u32 = ioc(READ_WRITE, k::_UFFDIO_POISON, 4);
const UFFDIO_MOVE_MODE_DONTWAKE: u64 = 1;
const UFFDIO_MOVE_MODE_ALLOW_SRC_HOLES: u64 = 2;
const UFFDIO_POISON_MODE_DONTWAKE: u64 = 1;
const UFFDIO_WRITEPROTECT_MODE_WP: u64 = 1;
const UFFDIO_WRITEPROTECT_MODE_DONTWAKE: u64 = 2;
/// `_IO(0xAA, 0)` on /dev/userfaultfd.
const USERFAULTFD_IOC_NEW: u32 = 0xAA00;

const _: () = assert!(UFFDIO_COPY == linux_raw_sys::ioctl::UFFDIO_COPY);
const _: () = assert!(UFFDIO_REGISTER == linux_raw_sys::ioctl::UFFDIO_REGISTER);
const _: () = assert!(UFFDIO_WAKE == linux_raw_sys::ioctl::UFFDIO_WAKE);
const _: () = assert!(UFFDIO_CONTINUE == linux_raw_sys::ioctl::UFFDIO_CONTINUE);
const _: () = assert!(size_of::<k::uffdio_move>() == 40 && size_of::<k::uffdio_poison>() == 32);
const _: () = assert!(size_of::<k::uffd_msg>() == size_of::<RawMsg>());

/// A set of userfaultfd features.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u64);

impl Features {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// fork is told with a descriptor of the child. Needs `CAP_SYS_PTRACE`.
    pub const EVENT_FORK: Self = Self(k::UFFD_FEATURE_EVENT_FORK as u64);
    /// mremap is told.
    pub const EVENT_REMAP: Self = Self(k::UFFD_FEATURE_EVENT_REMAP as u64);
    /// `MADV_DONTNEED` and `MADV_REMOVE` are told.
    pub const EVENT_REMOVE: Self = Self(k::UFFD_FEATURE_EVENT_REMOVE as u64);
    /// munmap is told.
    pub const EVENT_UNMAP: Self = Self(k::UFFD_FEATURE_EVENT_UNMAP as u64);
    /// No messages: the faulting thread gets SIGBUS.
    pub const SIGBUS: Self = Self(k::UFFD_FEATURE_SIGBUS as u64);
    /// Fault messages carry the thread id.
    pub const THREAD_ID: Self = Self(k::UFFD_FEATURE_THREAD_ID as u64);
    /// Fault messages carry the address to the byte.
    pub const EXACT_ADDRESS: Self = Self(k::UFFD_FEATURE_EXACT_ADDRESS as u64);
    /// Write protection works.
    pub const PAGEFAULT_FLAG_WP: Self = Self(k::UFFD_FEATURE_PAGEFAULT_FLAG_WP as u64);
    /// Missing pages can be write-protected.
    pub const WP_UNPOPULATED: Self = Self(k::UFFD_FEATURE_WP_UNPOPULATED as u64);
    /// Write protection is resolved by the kernel, which remembers it.
    pub const WP_ASYNC: Self = Self(k::UFFD_FEATURE_WP_ASYNC as u64);
    /// Pages can be poisoned.
    pub const POISON: Self = Self(k::UFFD_FEATURE_POISON as u64);
    /// Pages can be moved.
    pub const MOVE: Self = Self(k::UFFD_FEATURE_MOVE as u64);

    /// Both sets.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// True if all of `other` is in this set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// What is in both.
    pub const fn both(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// Which faults a userfaultfd may catch, and how it was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenedBy {
    /// All faults, through /dev/userfaultfd (Linux 6.1).
    Device,
    /// All faults, through the system call.
    Syscall,
    /// Faults of user code only; system calls on missing pages fail with EFAULT (Linux 5.11).
    UserModeOnly,
}

/// Which ways of opening one to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// All faults or nothing.
    Full,
    /// Faults of user code are enough.
    UserMode,
    /// All faults, or else those of user code.
    Best,
}

/// What reading an empty queue does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadMode {
    /// Sleeps. Such a descriptor cannot be polled.
    Blocking,
    /// Says [`ReadAnswer::Empty`].
    NonBlocking,
}

/// None could be opened: what each way said (`None`: not tried).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// /dev/userfaultfd
    pub device: Option<Errno>,
    /// The system call without `UFFD_USER_MODE_ONLY`.
    pub syscall: Option<Errno>,
    /// The system call with it.
    pub user_mode_only: Option<Errno>,
}

/// What a handshake granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Features of this kernel.
    pub features: Features,
    /// ioctls of this kernel, one bit each.
    pub ioctls: u64,
}

/// Which faults of a range are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Modes {
    /// Faults on missing pages.
    pub missing: bool,
    /// Writes to protected pages.
    pub write_protect: bool,
}

impl Modes {
    /// Missing pages only.
    pub const MISSING: Self = Self { missing: true, write_protect: false };
    /// Both.
    pub const MISSING_AND_WP: Self = Self { missing: true, write_protect: true };
    /// Protected pages only.
    pub const WP: Self = Self { missing: false, write_protect: true };
}

/// Why a run was not done to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// EEXIST: the page is there already.
    Present,
    /// ENOENT: there is no page to move, or nothing is mapped at either place (for copies: or not registered).
    Hole,
    /// EBUSY: the page is shared with a child, merged, pinned, or in the kernel's own swap cache.
    Busy,
    /// EAGAIN: the address space is changing (an event waits to be read), or the run was cut short.
    Again,
    /// EINVAL: mlocked, not anonymous, not registered, or the run leaves its mapping on either side (then nothing is done).
    Invalid,
    /// ENOMEM: no memory for the page or its table.
    NoMemory,
    /// ESRCH: the process is gone.
    Gone,
    /// EFAULT: instead of a page there is a mark that every access fails (`MADV_GUARD_INSTALL`, poison).
    Marked,
    /// Anything else.
    Other(Errno),
}

impl Stop {
    const fn of(errno: Errno) -> Self {
        match errno {
            Errno::EEXIST => Self::Present,
            Errno::ENOENT => Self::Hole,
            Errno::EBUSY => Self::Busy,
            Errno::EAGAIN => Self::Again,
            Errno::EINVAL => Self::Invalid,
            Errno::ENOMEM => Self::NoMemory,
            Errno::ESRCH => Self::Gone,
            Errno::EFAULT => Self::Marked,
            other => Self::Other(other),
        }
    }
}

/// How far a call on a run of pages came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a run may be done in part"]
pub struct RangeAnswer {
    /// Bytes done, from the start of the run.
    pub done: usize,
    /// Why not more; `None` when all was done. `Again` with `done > 0` does not tell the reason: call again from there.
    pub stop: Option<Stop>,
}

impl RangeAnswer {
    /// Read the call's own result together with the result field of its argument.
    fn of(call: Result<usize, Errno>, field: u64, len: usize) -> Self {
        let field = field.cast_signed();
        let (done, inner) = match Errno::from_negated(field) {
            Some(errno) => (0, Some(errno)),
            None => (usize_of(field.cast_unsigned()), None),
        };
        assert!(done <= len, "the kernel did {done} bytes of {len}");
        let stop = match (call, inner) {
            (Ok(_), None) if done == len => None,
            (Ok(_), None) => Some(Stop::Again),
            (_, Some(errno)) | (Err(errno), None) => Some(Stop::of(errno)),
        };
        Self { done, stop }
    }

    /// True if all was done.
    pub const fn is_complete(self) -> bool {
        self.stop.is_none()
    }
}

/// Repeat a partly done call on `len` bytes from where it stopped, until it is complete or says why not. `call` gets the bytes
/// that are done.
///
/// Bounded by the number of pages: every turn but the last does at least one.
pub fn run(len: usize, mut call: impl FnMut(usize) -> RangeAnswer) -> RangeAnswer {
    let mut done = 0;
    loop {
        let answer = call(done);
        done += answer.done;
        if answer.done == 0 || answer.is_complete() || done == len {
            return RangeAnswer { done, stop: if done == len { None } else { answer.stop } };
        }
    }
}

/// How an answer treats the threads that wait for the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Let them go on.
    Now,
    /// Leave them asleep until [`Uffd::wake`].
    Later,
}

/// One message of the queue, as the kernel wrote it.
#[repr(C)]
#[derive(Debug, Default)]
pub struct RawMsg([u64; 4]);

/// What happened in a registered range.
#[derive(Debug, PartialEq, Eq)]
pub enum Msg {
    /// A thread touched a page and waits.
    PageFault {
        /// The address: of the page, or to the byte with [`Features::EXACT_ADDRESS`].
        addr: usize,
        /// It was a write.
        write: bool,
        /// The page is there but protected.
        wp: bool,
        /// The page is in the page cache but not mapped.
        minor: bool,
        /// The thread, with [`Features::THREAD_ID`]; else 0.
        tid: i32,
    },
    /// The process forked; this descriptor is the child's.
    Fork {
        /// Ours to close.
        fd: Fd,
    },
    /// A range was moved by mremap.
    Remap {
        /// Old start.
        from: usize,
        /// New start.
        to: usize,
        /// Bytes.
        len: usize,
    },
    /// The pages of a range were given back by madvise and read as zero from now on.
    Remove {
        /// First address.
        start: usize,
        /// First address after it.
        end: usize,
    },
    /// A range is no longer mapped.
    Unmap {
        /// First address.
        start: usize,
        /// First address after it.
        end: usize,
    },
    /// A message of a kind this crate does not know, or one that was taken already (0).
    Unknown {
        /// The kernel's event number.
        event: u8,
    },
}

impl RawMsg {
    /// An empty buffer entry.
    pub const EMPTY: Self = Self([0; 4]);

    /// Decode the message and empty the entry: the descriptor of a fork message has one owner.
    pub fn take(&mut self) -> Msg {
        let [head, first, second, third] = core::mem::take(&mut self.0);
        let event = low_u8(head);
        match u32::from(event) {
            k::UFFD_EVENT_PAGEFAULT => Msg::PageFault {
                addr: usize_of(second),
                write: first & u64::from(k::UFFD_PAGEFAULT_FLAG_WRITE) != 0,
                wp: first & u64::from(k::UFFD_PAGEFAULT_FLAG_WP) != 0,
                minor: first & u64::from(k::UFFD_PAGEFAULT_FLAG_MINOR) != 0,
                tid: low_u32(third).cast_signed(),
            },
            k::UFFD_EVENT_FORK => {
                // SAFETY: the kernel put a new descriptor into our table with this message, which is now consumed.
                Msg::Fork { fd: unsafe { Fd::from_raw(low_u32(first).cast_signed()) } }
            }
            k::UFFD_EVENT_REMAP => Msg::Remap { from: usize_of(first), to: usize_of(second), len: usize_of(third) },
            k::UFFD_EVENT_REMOVE => Msg::Remove { start: usize_of(first), end: usize_of(second) },
            k::UFFD_EVENT_UNMAP => Msg::Unmap { start: usize_of(first), end: usize_of(second) },
            0.. => Msg::Unknown { event },
        }
    }
}

/// What reading the queue gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadAnswer {
    /// So many messages, in order.
    Read(usize),
    /// None at the moment.
    Empty,
    /// A signal came first.
    Interrupted,
}

/// A userfaultfd.
#[derive(Debug)]
pub struct Uffd {
    fd: Fd,
}

impl Uffd {
    /// Open one by the best way of `reach`. The handshake comes next.
    pub fn open(reach: Reach, mode: ReadMode) -> Result<(Self, OpenedBy), Refused> {
        let mut refused = Refused { device: None, syscall: None, user_mode_only: None };
        if reach != Reach::UserMode {
            match Self::open_device(c"/dev/userfaultfd", mode) {
                Ok(uffd) => return Ok((uffd, OpenedBy::Device)),
                Err(errno) => refused.device = Some(errno),
            }
            match Self::open_syscall(0, mode) {
                Ok(uffd) => return Ok((uffd, OpenedBy::Syscall)),
                Err(errno) => refused.syscall = Some(errno),
            }
        }
        if reach != Reach::Full {
            match Self::open_syscall(k::UFFD_USER_MODE_ONLY, mode) {
                Ok(uffd) => return Ok((uffd, OpenedBy::UserModeOnly)),
                Err(errno) => refused.user_mode_only = Some(errno),
            }
        }
        Err(refused)
    }

    /// Open one through a device file.
    pub fn open_device(path: &CStr, mode: ReadMode) -> Result<Self, Errno> {
        Self::from_device(&Fd::open(path, file::flags::READ_WRITE, 0)?, mode)
    }

    /// Open one through an open /dev/userfaultfd, inherited or passed: no privilege is asked for.
    pub fn from_device(device: &Fd, mode: ReadMode) -> Result<Self, Errno> {
        // SAFETY: the request takes flags by value and makes a descriptor.
        let register = unsafe { device.ioctl(USERFAULTFD_IOC_NEW, Self::open_flags(0, mode)) }?;
        // SAFETY: the request returned it.
        Ok(Self { fd: unsafe { Fd::from_register(register) } })
    }

    fn open_syscall(flags: u32, mode: ReadMode) -> Result<Self, Errno> {
        // SAFETY: makes a new descriptor.
        let register = unsafe { syscall!(__NR_userfaultfd, Self::open_flags(flags, mode)) }?;
        // SAFETY: userfaultfd returned it.
        Ok(Self { fd: unsafe { Fd::from_register(register) } })
    }

    const fn open_flags(flags: u32, mode: ReadMode) -> usize {
        let block = match mode {
            ReadMode::Blocking => 0,
            ReadMode::NonBlocking => k::O_NONBLOCK,
        };
        (flags | block | k::O_CLOEXEC) as usize
    }

    /// A userfaultfd that came with a fork message or through a socket, its handshake done.
    pub const fn from_fd(fd: Fd) -> Self {
        Self { fd }
    }

    /// The descriptor, to poll or pass on.
    pub const fn fd(&self) -> &Fd {
        &self.fd
    }

    /// The descriptor, given up.
    pub fn into_fd(self) -> Fd {
        self.fd
    }

    /// Ask for features, once per descriptor. EINVAL: the kernel lacks one; EPERM: `EVENT_FORK` without `CAP_SYS_PTRACE`.
    ///
    /// With [`Features::NONE`] it tells what the kernel offers.
    pub fn handshake(&self, features: Features) -> Result<Offer, Errno> {
        let mut api = [u64::from(k::UFFD_API), features.0, 0];
        self.ioctl(UFFDIO_API, &mut api)?;
        Ok(Offer { features: Features(api[1]), ioctls: api[2] })
    }

    fn ioctl<const N: usize>(&self, request: u32, words: &mut [u64; N]) -> Result<usize, Errno> {
        // SAFETY: each request here reads and writes exactly its N words (checked against the kernel's structures above);
        // what it does to memory is covered by the promise of the managed ranges the callers were given.
        unsafe { self.fd.ioctl(request, addr_of(words)) }
    }

    /// Begin to catch the faults of `range`, which may hold pages already. The ioctls that work on it, one bit each.
    pub fn register(&self, range: ManagedRange, modes: Modes) -> Result<u64, Errno> {
        let mut mode = 0;
        if modes.missing {
            mode |= u64::from(k::UFFDIO_REGISTER_MODE_MISSING);
        }
        if modes.write_protect {
            mode |= u64::from(k::UFFDIO_REGISTER_MODE_WP);
        }
        let mut words = [u64_of(range.start()), u64_of(range.len()), mode, 0];
        self.ioctl(UFFDIO_REGISTER, &mut words)?;
        Ok(words[3])
    }

    /// Stop catching the faults of `range`; sleepers wake. Its missing pages read as zero from now on.
    pub fn unregister(&self, range: ManagedRange) -> Result<(), Errno> {
        self.ioctl(UFFDIO_UNREGISTER, &mut [u64_of(range.start()), u64_of(range.len())]).map(|_| ())
    }

    /// Let the threads that wait for a page of `range` try again.
    pub fn wake(&self, range: ManagedRange) -> Result<(), Errno> {
        self.ioctl(UFFDIO_WAKE, &mut [u64_of(range.start()), u64_of(range.len())]).map(|_| ())
    }

    /// Fill the missing pages of `to` with copies of the pages from `from` (same length), mapped read only if `protect`.
    pub fn copy(&self, to: ManagedRange, from: ManagedRange, protect: bool, wake: Wake) -> RangeAnswer {
        assert_eq!(to.len(), from.len(), "a copy has one length");
        let mut mode = 0;
        if protect {
            mode |= u64::from(k::UFFDIO_COPY_MODE_WP);
        }
        if wake == Wake::Later {
            mode |= u64::from(k::UFFDIO_COPY_MODE_DONTWAKE);
        }
        let mut words = [u64_of(to.start()), u64_of(from.start()), u64_of(to.len()), mode, 0];
        let call = self.ioctl(UFFDIO_COPY, &mut words);
        RangeAnswer::of(call, words[4], to.len())
    }

    /// [`Self::copy`], with the reason of a stop in the middle.
    pub fn copy_run(&self, to: ManagedRange, from: ManagedRange, protect: bool, wake: Wake) -> RangeAnswer {
        run(to.len(), |done| self.copy(to.skip(done), from.skip(done), protect, wake))
    }

    /// Fill the missing pages of `to` with the zero page.
    pub fn zeropage(&self, to: ManagedRange, wake: Wake) -> RangeAnswer {
        let mode = if wake == Wake::Later { u64::from(k::UFFDIO_ZEROPAGE_MODE_DONTWAKE) } else { 0 };
        let mut words = [u64_of(to.start()), u64_of(to.len()), mode, 0];
        let call = self.ioctl(UFFDIO_ZEROPAGE, &mut words);
        RangeAnswer::of(call, words[3], to.len())
    }

    /// [`Self::zeropage`], with the reason of a stop in the middle.
    pub fn zeropage_run(&self, to: ManagedRange, wake: Wake) -> RangeAnswer {
        run(to.len(), |done| self.zeropage(to.skip(done), wake))
    }

    /// Move the pages of `from` to the missing pages of `to` (same length), writable. `from` need not be registered.
    ///
    /// With `allow_holes` a missing page of `from` counts as moved; else it stops the run.
    pub fn move_pages(&self, to: ManagedRange, from: ManagedRange, allow_holes: bool, wake: Wake) -> RangeAnswer {
        assert_eq!(to.len(), from.len(), "a move has one length");
        let mut mode = 0;
        if allow_holes {
            mode |= UFFDIO_MOVE_MODE_ALLOW_SRC_HOLES;
        }
        if wake == Wake::Later {
            mode |= UFFDIO_MOVE_MODE_DONTWAKE;
        }
        let mut words = [u64_of(to.start()), u64_of(from.start()), u64_of(to.len()), mode, 0];
        let call = self.ioctl(UFFDIO_MOVE, &mut words);
        RangeAnswer::of(call, words[4], to.len())
    }

    /// [`Self::move_pages`], with the reason of a stop in the middle.
    pub fn move_run(&self, to: ManagedRange, from: ManagedRange, allow_holes: bool, wake: Wake) -> RangeAnswer {
        run(to.len(), |done| self.move_pages(to.skip(done), from.skip(done), allow_holes, wake))
    }

    /// Protect the pages of `range` against writing. EAGAIN: the address space is changing.
    pub fn protect(&self, range: ManagedRange) -> Result<(), Errno> {
        let mode = UFFDIO_WRITEPROTECT_MODE_WP;
        self.ioctl(UFFDIO_WRITEPROTECT, &mut [u64_of(range.start()), u64_of(range.len()), mode]).map(|_| ())
    }

    /// Allow writing to the pages of `range` again.
    pub fn unprotect(&self, range: ManagedRange, wake: Wake) -> Result<(), Errno> {
        let mode = if wake == Wake::Later { UFFDIO_WRITEPROTECT_MODE_DONTWAKE } else { 0 };
        self.ioctl(UFFDIO_WRITEPROTECT, &mut [u64_of(range.start()), u64_of(range.len()), mode]).map(|_| ())
    }

    /// Make every access to the missing pages of `range` fail with SIGBUS (EFAULT in system calls, EHWPOISON to `pread`).
    pub fn poison(&self, range: ManagedRange, wake: Wake) -> RangeAnswer {
        let mode = if wake == Wake::Later { UFFDIO_POISON_MODE_DONTWAKE } else { 0 };
        let mut words = [u64_of(range.start()), u64_of(range.len()), mode, 0];
        let call = self.ioctl(UFFDIO_POISON, &mut words);
        RangeAnswer::of(call, words[3], range.len())
    }

    /// [`Self::poison`], with the reason of a stop in the middle.
    pub fn poison_run(&self, range: ManagedRange, wake: Wake) -> RangeAnswer {
        run(range.len(), |done| self.poison(range.skip(done), wake))
    }

    /// Is this page of private anonymous memory registered, with whatever userfaultfd?
    ///
    /// Asked by `UFFDIO_CONTINUE`, which fills nothing there: ENOENT where nothing is registered, and else EINVAL, as only shared memory
    /// knows such pages (`crates/kernel/tests/contract` compares).
    ///
    /// EAGAIN: the address space is changing, of which one that has registered nothing is not told; ESRCH: the process is gone.
    pub fn is_registered(&self, page: ManagedRange) -> Result<bool, Errno> {
        match self.ioctl(UFFDIO_CONTINUE, &mut [u64_of(page.start()), u64_of(page.len()), 0, 0]) {
            Ok(_) | Err(Errno::EINVAL) => Ok(true),
            Err(Errno::ENOENT) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Read up to `messages.len()` messages. Threads that wait for an event to be read go on by it.
    pub fn read(&self, messages: &mut [RawMsg]) -> Result<ReadAnswer, Errno> {
        let bytes = size_of_val(messages);
        // SAFETY: the kernel writes whole messages, for which all bit patterns are values, into the caller's buffer.
        let call = unsafe { syscall!(k::__NR_read, self.fd.arg(), addr_of(messages.as_mut_ptr()), bytes) };
        match call {
            Ok(bytes) => Ok(ReadAnswer::Read(bytes / size_of::<RawMsg>())),
            Err(Errno::EAGAIN) => Ok(ReadAnswer::Empty),
            Err(Errno::EINTR) => Ok(ReadAnswer::Interrupted),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_results_of_a_call_are_read() {
        let of = RangeAnswer::of;
        assert_eq!(of(Ok(0), 8192, 8192), RangeAnswer { done: 8192, stop: None });
        assert_eq!(of(Err(Errno::EAGAIN), 4096, 8192), RangeAnswer { done: 4096, stop: Some(Stop::Again) });
        assert_eq!(of(Err(Errno::EAGAIN), 0, 8192), RangeAnswer { done: 0, stop: Some(Stop::Again) });
        let exists = (-17i64).cast_unsigned();
        assert_eq!(of(Err(Errno::EEXIST), exists, 8192), RangeAnswer { done: 0, stop: Some(Stop::Present) });
    }

    #[test]
    fn a_run_goes_on_until_the_reason_is_known() {
        let mut calls = 0;
        let answer = run(3 * 4096, |done| {
            calls += 1;
            match done {
                0 => RangeAnswer { done: 8192, stop: Some(Stop::Again) },
                _ => RangeAnswer { done: 0, stop: Some(Stop::Busy) },
            }
        });
        assert_eq!((calls, answer), (2, RangeAnswer { done: 8192, stop: Some(Stop::Busy) }));
    }

    #[test]
    fn a_message_is_taken_once() {
        let mut raw = RawMsg([0x12, 3, 0x7000, 42]);
        assert_eq!(raw.take(), Msg::PageFault { addr: 0x7000, write: true, wp: true, minor: false, tid: 42 });
        assert_eq!(raw.take(), Msg::Unknown { event: 0 });
    }
}
