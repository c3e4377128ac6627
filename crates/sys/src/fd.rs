//! Descriptors: owning, duplicating, hiding, waiting. Reading and writing files is in [`crate::file`].
//!
//! Descriptors of the runtime that lie in the program's table sit high and are close-on-exec.

use core::ffi::CStr;

use linux_raw_sys::general::{
    __NR_close, __NR_close_range, __NR_dup3, __NR_eventfd2, __NR_fcntl, __NR_inotify_add_watch, __NR_inotify_init1,
    __NR_ioctl, __NR_memfd_create, __NR_openat, __NR_pidfd_getfd, __NR_pidfd_open, __NR_pipe2, __NR_ppoll, AT_FDCWD,
    EFD_CLOEXEC, EFD_NONBLOCK, EFD_SEMAPHORE, F_DUPFD_CLOEXEC, F_GETFD, F_GETFL, MFD_CLOEXEC, O_CLOEXEC, O_EXCL,
    O_NONBLOCK,
};

use crate::clock::Timespec;
use crate::syscall;
use crate::syscall::{Errno, retry_eintr};
use crate::word::{addr_of, int_arg, int_of};

/// `CLOSE_RANGE_UNSHARE`
const CLOSE_RANGE_UNSHARE: u32 = 2;

/// An open descriptor that this value owns: closed when dropped.
#[derive(Debug, PartialEq, Eq)]
pub struct Fd(i32);

impl Fd {
    /// Take ownership of a descriptor number.
    ///
    /// # Safety
    /// The number is open and nobody else closes it.
    pub const unsafe fn from_raw(raw: i32) -> Self {
        Self(raw)
    }

    /// The result of a call that returns a new descriptor.
    ///
    /// # Safety
    /// `register` is what such a call just returned.
    pub(crate) const unsafe fn from_register(register: usize) -> Self {
        Self(int_of(register))
    }

    /// The number, still owned by `self`.
    pub const fn raw(&self) -> i32 {
        self.0
    }

    /// Give the descriptor up without closing it.
    pub const fn into_raw(self) -> i32 {
        let raw = self.0;
        core::mem::forget(self);
        raw
    }

    pub(crate) const fn arg(&self) -> usize {
        int_arg(self.0)
    }

    /// Open a path. `flags` are the kernel's `O_*` ([`crate::file::flags`]); close-on-exec is added.
    pub fn open(path: &CStr, flags: u32, mode: u32) -> Result<Self, Errno> {
        Self::open_at(None, path, flags, mode)
    }

    /// Open a path relative to a directory (`None`: the working directory).
    pub fn open_at(dir: Option<&Self>, path: &CStr, flags: u32, mode: u32) -> Result<Self, Errno> {
        let dir = dir.map_or(int_arg(AT_FDCWD), Self::arg);
        let flags = flags | O_CLOEXEC;
        // SAFETY: the kernel reads the zero-terminated path.
        let open = || unsafe { syscall!(__NR_openat, dir, addr_of(path.as_ptr()), flags as usize, mode as usize) };
        let register = retry_eintr(open)?;
        // SAFETY: openat returned it.
        Ok(unsafe { Self::from_register(register) })
    }

    /// A second descriptor for the same open file, close-on-exec, numbered `lowest` or above.
    pub fn dup_high(&self, lowest: u32) -> Result<Self, Errno> {
        let register = self.fcntl(F_DUPFD_CLOEXEC, lowest as usize)?;
        // SAFETY: F_DUPFD_CLOEXEC returned it.
        Ok(unsafe { Self::from_register(register) })
    }

    /// The same open file under a number of `lowest` or above; the old number is closed. On failure the old one is kept.
    pub fn moved_high(self, lowest: u32) -> Self {
        self.dup_high(lowest).unwrap_or(self)
    }

    fn fcntl(&self, command: u32, arg: usize) -> Result<usize, Errno> {
        // SAFETY: the commands used here take a number and write no memory.
        unsafe { syscall!(__NR_fcntl, self.arg(), command as usize, arg) }
    }

    /// An ioctl.
    ///
    /// # Safety
    /// `arg` is what request `request` of this kind of file expects, and what the request does to memory is the caller's right.
    pub unsafe fn ioctl(&self, request: u32, arg: usize) -> Result<usize, Errno> {
        // SAFETY: the caller vouches for request and argument.
        unsafe { syscall!(__NR_ioctl, self.arg(), request as usize, arg) }
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // The descriptor is gone whatever the answer is; a failing close has nothing to retry.
        // SAFETY: we own the descriptor.
        let _ = unsafe { syscall!(__NR_close, self.arg()) };
    }
}

/// Is this number open in the caller's table?
pub fn is_open(raw: i32) -> bool {
    // SAFETY: F_GETFD changes nothing.
    unsafe { syscall!(__NR_fcntl, int_arg(raw), F_GETFD as usize) }.is_ok()
}

/// Make `target` another number for what `fd` is, closing what `target` was. Close-on-exec as asked.
///
/// # Safety
/// Nobody relies on what `target` was.
pub unsafe fn dup_onto(fd: &Fd, target: i32, close_on_exec: bool) -> Result<(), Errno> {
    let flags = if close_on_exec { O_CLOEXEC } else { 0 };
    // SAFETY: the caller gives `target` up.
    unsafe { syscall!(__NR_dup3, fd.arg(), int_arg(target), flags as usize) }.map(|_| ())
}

/// Close the numbers `first..=last`, after leaving a shared table if `unshare`.
///
/// # Safety
/// Nobody in this table relies on these numbers.
pub unsafe fn close_range(first: u32, last: u32, unshare: bool) -> Result<(), Errno> {
    let flags = if unshare { CLOSE_RANGE_UNSHARE } else { 0 };
    // SAFETY: the caller gives the numbers up.
    unsafe { syscall!(__NR_close_range, first as usize, last as usize, flags as usize) }.map(|_| ())
}

/// An event counter, close-on-exec and non-blocking.
pub fn eventfd(initial: u32) -> Result<Fd, Errno> {
    counter(initial, EFD_CLOEXEC | EFD_NONBLOCK)
}

/// The same, of which each reader takes one, and sleeps while there is none. Close-on-exec.
pub fn semaphore() -> Result<Fd, Errno> {
    counter(0, EFD_CLOEXEC | EFD_SEMAPHORE)
}

fn counter(initial: u32, flags: u32) -> Result<Fd, Errno> {
    // SAFETY: makes a new descriptor.
    let register = unsafe { syscall!(__NR_eventfd2, initial as usize, flags as usize) }?;
    // SAFETY: eventfd2 returned it.
    Ok(unsafe { Fd::from_register(register) })
}

/// An unnamed file in memory, close-on-exec.
pub fn memfd(name: &CStr) -> Result<Fd, Errno> {
    // SAFETY: the kernel reads the name.
    let register = unsafe { syscall!(__NR_memfd_create, addr_of(name.as_ptr()), MFD_CLOEXEC as usize) }?;
    // SAFETY: memfd_create returned it.
    Ok(unsafe { Fd::from_register(register) })
}

/// A descriptor of a process, which becomes readable when the process ends.
pub fn pidfd(pid: i32) -> Result<Fd, Errno> {
    // SAFETY: makes a new descriptor.
    let register = unsafe { syscall!(__NR_pidfd_open, int_arg(pid), 0) }?;
    // SAFETY: pidfd_open returned it.
    Ok(unsafe { Fd::from_register(register) })
}

/// A descriptor of one thread, where the kernel knows such (Linux 6.9), else of its process `pid`.
pub fn pidfd_of_thread(pid: i32, tid: i32) -> Result<Fd, Errno> {
    /// `PIDFD_THREAD`
    const THREAD: u32 = O_EXCL;
    // SAFETY: makes a new descriptor.
    match unsafe { syscall!(__NR_pidfd_open, int_arg(tid), THREAD as usize) } {
        // SAFETY: pidfd_open returned it.
        Ok(register) => Ok(unsafe { Fd::from_register(register) }),
        Err(Errno::EINVAL) => pidfd(pid),
        Err(errno) => Err(errno),
    }
}

/// A descriptor of our own for what is open under this number in a process or thread. EPERM: it may not be traced.
pub fn take_from(process: &Fd, raw: i32) -> Result<Fd, Errno> {
    // SAFETY: makes a new descriptor.
    let register = unsafe { syscall!(__NR_pidfd_getfd, process.arg(), int_arg(raw), 0) }?;
    // SAFETY: pidfd_getfd returned it.
    Ok(unsafe { Fd::from_register(register) })
}

/// A descriptor that is readable when `path` was opened by anybody; never blocks.
pub fn watch_opens(path: &CStr) -> Result<Fd, Errno> {
    /// `IN_OPEN`
    const OPEN: usize = 0x20;
    // SAFETY: makes a new descriptor.
    let register = unsafe { syscall!(__NR_inotify_init1, (O_CLOEXEC | O_NONBLOCK) as usize) }?;
    // SAFETY: inotify_init1 returned it.
    let watch = unsafe { Fd::from_register(register) };
    // SAFETY: the kernel reads the path.
    unsafe { syscall!(__NR_inotify_add_watch, watch.arg(), addr_of(path.as_ptr()), OPEN) }?;
    Ok(watch)
}

/// How a file was opened, and its status: `O_...`.
pub fn flags(fd: &Fd) -> Result<u32, Errno> {
    fd.fcntl(F_GETFL, 0).map(|flags| u32::try_from(flags).expect("a word of flags"))
}

/// A pipe: (read end, write end), close-on-exec; `flags` may add `O_NONBLOCK` or `O_DIRECT`.
pub fn pipe(flags: u32) -> Result<(Fd, Fd), Errno> {
    let mut ends = [0i32; 2];
    // SAFETY: the kernel writes two numbers into `ends`.
    unsafe { syscall!(__NR_pipe2, addr_of(&raw mut ends), (flags | O_CLOEXEC) as usize) }?;
    // SAFETY: pipe2 returned it.
    let read = unsafe { Fd::from_raw(ends[0]) };
    // SAFETY: pipe2 returned it.
    let write = unsafe { Fd::from_raw(ends[1]) };
    Ok((read, write))
}

/// One descriptor to wait for, as the kernel has it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PollFd {
    fd: i32,
    events: i16,
    revents: i16,
}

/// Events of [`PollFd`].
pub mod events {
    /// Readable.
    pub const IN: i16 = 0x1;
    /// Writable.
    pub const OUT: i16 = 0x4;
    /// An error is pending (reported always).
    pub const ERR: i16 = 0x8;
    /// The other end is gone (reported always).
    pub const HUP: i16 = 0x10;
}

impl PollFd {
    /// Wait for `events` of `fd`.
    pub const fn new(fd: &Fd, events: i16) -> Self {
        Self { fd: fd.raw(), events, revents: 0 }
    }

    /// Wait for `events` of what has this number then; `POLLNVAL` is seen where nothing has.
    pub const fn numbered(number: i32, events: i16) -> Self {
        Self { fd: number, events, revents: 0 }
    }

    /// An entry that is skipped.
    pub const fn none() -> Self {
        Self { fd: -1, events: 0, revents: 0 }
    }

    /// What was seen by the last [`poll`].
    pub const fn seen(self) -> i16 {
        self.revents
    }
}

/// Wait until one of `fds` has an event or the time is up (`None`: for ever). How many have one.
///
/// `Err(EINTR)` is passed on: whoever unblocked signals wants to know.
pub fn poll(fds: &mut [PollFd], timeout_ns: Option<u64>) -> Result<usize, Errno> {
    let mut timeout = Timespec::from_ns(timeout_ns.unwrap_or(0));
    let timeout_addr = if timeout_ns.is_some() { addr_of(&raw mut timeout) } else { 0 };
    // SAFETY: the kernel writes `revents` of the entries and the remaining time into `timeout`, which live across the call.
    unsafe { syscall!(__NR_ppoll, addr_of(fds.as_mut_ptr()), fds.len(), timeout_addr, 0, 8) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_closed_once_and_can_sit_high() {
        let (read, write) = pipe(0).expect("pipe");
        // Numbers that no other test of this process takes.
        let high = write.dup_high(600).expect("dup");
        let higher = high.dup_high(650).expect("dup");
        assert!(high.raw() >= 600 && higher.raw() >= 650);
        drop(write);
        let raw = higher.raw();
        drop(higher);
        assert!(!is_open(raw) && is_open(high.raw()));

        let mut fds = [PollFd::new(&read, events::IN), PollFd::none()];
        assert_eq!(poll(&mut fds, Some(0)), Ok(0));
        drop(high);
        assert_eq!(poll(&mut fds, None), Ok(1));
        assert_eq!(fds[0].seen() & events::HUP, events::HUP);
    }
}
