//! The stage on Linux: this process is the program and its runtime. Calls are made by a thread of their own, loads and stores by
//! system calls, which say EFAULT where an instruction would be a signal.
//!
//! What is mapped here is leaked: to unmap it while the userfaultfd is open would wait for a reader.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use linux_raw_sys::general as k;
use pagetide_kernel::model::{Call, Extent, ForkPolicy, Rights};
use pagetide_kernel::{Faults, Linux};
use pagetide_sys::fd::{self, Fd, PollFd, events};
use pagetide_sys::mem::{self, Advice, ManagedRange, Mapping, PAGE_BYTES, Protection, Remap};
use pagetide_sys::uffd::{Features, RangeAnswer, Reach, ReadMode, Uffd, Wake};
use pagetide_sys::{Errno, file, proc, syscall};

use crate::scripts::HUGE_PAGES;
use crate::stage::{Made, OnMessage, Stage};

const EVENTS: Features = Features::EVENT_REMAP
    .with(Features::EVENT_REMOVE)
    .with(Features::EVENT_UNMAP)
    .with(Features::MOVE)
    .with(Features::POISON);
const MADV_COLLAPSE: usize = 25;
const MADV_GUARD_INSTALL: usize = 102;
const MADV_GUARD_REMOVE: usize = 103;
const PR_SET_THP_DISABLE: usize = 41;

static ALONE: Mutex<()> = Mutex::new(());

pub(crate) fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Say that a test is skipped for lack of `what`, or fail if it is required.
fn skip(what: &str, why: &dyn core::fmt::Debug) {
    let required = std::env::var("PAGETIDE_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|name| name == what), "{what} is required but missing: {why:?}");
    eprintln!("skipped: no {what}: {why:?}");
}

/// A userfaultfd with `features`; None after saying why not.
pub(crate) fn uffd(features: Features) -> Option<Uffd> {
    let opened = Uffd::open(Reach::Full, ReadMode::NonBlocking);
    let uffd = opened.map_err(|refused| skip("uffd", &refused)).ok()?.0;
    uffd.handshake(features).map_err(|errno| skip("uffd", &errno)).ok()?;
    Some(uffd)
}

pub(crate) struct OnLinux {
    space: Linux,
    children: Vec<(usize, Fd)>,
    pins: Vec<pagetide_sys::uring::Ring>,
}

impl OnLinux {
    pub(crate) fn new() -> Option<Self> {
        Self::told_of(EVENTS.with(Features::EVENT_FORK))
    }

    /// A runtime that is told of no copies.
    pub(crate) fn without_copies() -> Option<Self> {
        Self::told_of(EVENTS)
    }

    fn told_of(features: Features) -> Option<Self> {
        Some(Self { space: Linux::new(uffd(features)?), children: Vec::new(), pins: Vec::new() })
    }
}

fn bytes(pages: u64) -> usize {
    usize::try_from(pages).expect("64 bits") * PAGE_BYTES
}

fn range(extent: Extent) -> ManagedRange {
    // SAFETY: the test's own memory, to which no reference is made.
    unsafe { ManagedRange::new(bytes(extent.start), bytes(extent.pages())) }
}

fn arg(fd: &Fd) -> usize {
    usize::try_from(fd.raw()).expect("a descriptor")
}

/// How a call of the program ended.
pub(crate) enum Ended {
    Done,
    Value(u64),
    Child(usize, Fd),
    Pinned(pagetide_sys::uring::Ring),
}

fn load(at: usize) -> Result<Ended, Errno> {
    let (read, write) = fd::pipe(0)?;
    // SAFETY: the kernel reads the test's own memory, or finds that it cannot.
    unsafe { syscall!(k::__NR_write, arg(&write), at, 8) }?;
    let mut word = [0; 8];
    file::read(&read, &mut word)?;
    Ok(Ended::Value(u64::from_le_bytes(word)))
}

fn store(at: usize, value: u64) -> Result<Ended, Errno> {
    let (read, write) = fd::pipe(0)?;
    file::write_all(&write, &value.to_le_bytes())?;
    // SAFETY: the kernel writes the test's own memory, or finds that it cannot.
    unsafe { syscall!(k::__NR_read, arg(&read), at, 8) }.map(|_| Ended::Done)
}

/// A child that does nothing until its pipe is closed.
pub(crate) fn fork() -> Result<Ended, Errno> {
    let (read, write) = fd::pipe(0)?;
    // SAFETY: the child makes two system calls and ends; it has its own copy of this thread's stack.
    match unsafe { syscall!(k::__NR_clone, 17, 0, 0, 0, 0) }? {
        0 => {
            drop(write);
            let mut byte = [0];
            let _ = file::read(&read, &mut byte);
            loop {
                // SAFETY: ends the child.
                let _ = unsafe { syscall!(k::__NR_exit_group, 0) };
            }
        }
        child => Ok(Ended::Child(child, write)),
    }
}

/// Direct I/O that lasts: a buffer that is registered with a ring is pinned.
fn pin(page: ManagedRange) -> Result<Ended, Errno> {
    let ring = pagetide_sys::uring::Ring::new(4, 8, pagetide_sys::uring::SetupFlags::PLAIN);
    let ring = ring.map_err(|_refused| Errno::ENOSYS)?;
    let pieces = [page.start(), page.len()];
    let place = (&raw const pieces).expose_provenance();
    // SAFETY: the kernel reads one iovec, and keeps the test's own page until the ring is closed.
    unsafe { syscall!(k::__NR_io_uring_register, arg(ring.fd()), 0, place, 1) }?;
    Ok(Ended::Pinned(ring))
}

fn advise(extent: Extent, advice: usize) -> Result<Ended, Errno> {
    of_pages(k::__NR_madvise, extent, advice)
}

/// A call about pages that has one argument more.
fn of_pages(number: u32, extent: Extent, argument: usize) -> Result<Ended, Errno> {
    let range = range(extent);
    // SAFETY: the test's own memory.
    unsafe { syscall!(number, range.start(), range.len(), argument) }.map(|_| Ended::Done)
}

fn call(call: Call) -> Result<Ended, Errno> {
    match call {
        Call::Load(vpn) => load(bytes(vpn)),
        Call::Store(vpn, value) => store(bytes(vpn), value),
        // SAFETY: the test's own memory, which is not used again.
        Call::Unmap(extent) => unsafe { mem::unmap(range(extent)) }.map(|()| Ended::Done),
        Call::UnmapInVain(extent) => {
            of_pages(k::__NR_mseal, Extent::new(extent.end - 1, 1), 0)?;
            self::call(Call::Unmap(extent))
        }
        Call::Grow(extent, by) => {
            let (range, len) = (range(extent), bytes(extent.pages() + by));
            // SAFETY: the test's own memory, and what is free behind it.
            unsafe { syscall!(k::__NR_mremap, range.start(), range.len(), len, 0) }.map(|_| Ended::Done)
        }
        Call::Remap(extent, to) => moves(extent, to.pages(), Remap::To(bytes(to.start))),
        Call::RemapKeeping(extent, to) => moves(extent, extent.pages(), Remap::KeepOldTo(bytes(to))),
        Call::Discard(extent) => mem::advise(range(extent), Advice::DontNeed).map(|()| Ended::Done),
        Call::Populate(extent) => mem::advise(range(extent), Advice::PopulateWrite).map(|()| Ended::Done),
        Call::Collapse(extent) => advise(extent, MADV_COLLAPSE),
        Call::GuardInstall(extent) => advise(extent, MADV_GUARD_INSTALL),
        Call::GuardRemove(extent) => advise(extent, MADV_GUARD_REMOVE),
        Call::Protect(extent, rights) => {
            let protection = match rights {
                Rights::None => Protection::None,
                Rights::Read => Protection::Read,
                Rights::ReadWrite => Protection::ReadWrite,
                Rights::All => Protection::ReadWriteExecute,
            };
            mem::protect(range(extent), protection).map(|()| Ended::Done)
        }
        Call::Lock(extent) => {
            let range = range(extent);
            // SAFETY: locks the test's own pages, as they come.
            unsafe { syscall!(k::__NR_mlock2, range.start(), range.len(), 1) }.map(|_| Ended::Done)
        }
        Call::Unlock(extent) => {
            let range = range(extent);
            // SAFETY: unlocks the test's own pages.
            unsafe { syscall!(k::__NR_munlock, range.start(), range.len()) }.map(|_| Ended::Done)
        }
        Call::OnFork(extent, policy) => {
            let advice = match policy {
                ForkPolicy::Copy => Advice::DoFork,
                ForkPolicy::Dont => Advice::DontFork,
                ForkPolicy::Wipe => Advice::WipeOnFork,
            };
            mem::advise(range(extent), advice).map(|()| Ended::Done)
        }
        Call::Map(_) | Call::AtGate(_) => Err(Errno::ENOSYS),
        Call::Pin(vpn) => pin(range(Extent::new(vpn, 1))),
        Call::Unpin(_) => Err(Errno::ENOSYS),
        Call::Fork => fork(),
        Call::ForbidHuge(is_forbidden) => {
            let on = usize::from(is_forbidden);
            // SAFETY: sets an attribute of the process.
            unsafe { syscall!(k::__NR_prctl, PR_SET_THP_DISABLE, on, 0, 0, 0) }.map(|_| Ended::Done)
        }
    }
}

impl Stage for OnLinux {
    type Space = Linux;

    fn space(&self) -> &Linux {
        &self.space
    }

    fn map(&mut self, pages: u64, made: Made) -> Extent {
        let extent = self.place(pages + if made == Made::Huge { HUGE_PAGES } else { 0 });
        let extent = match made {
            Made::Huge => Extent::new(extent.start.next_multiple_of(HUGE_PAGES), pages),
            Made::Plain | Made::Shared | Made::Stack => extent,
        };
        let flags = match made {
            Made::Plain | Made::Huge => k::MAP_PRIVATE,
            Made::Shared => k::MAP_SHARED,
            Made::Stack => k::MAP_PRIVATE | k::MAP_GROWSDOWN,
        };
        let flags = (flags | k::MAP_ANONYMOUS | k::MAP_FIXED | k::MAP_NORESERVE) as usize;
        let rights = (k::PROT_READ | k::PROT_WRITE) as usize;
        let target = range(extent);
        // SAFETY: the place was found free just now, and tests run one at a time.
        unsafe { syscall!(k::__NR_mmap, target.start(), target.len(), rights, flags, usize::MAX, 0) }.expect("mmap");
        // EINVAL where the kernel is built without huge pages.
        let huge = if made == Made::Huge { Advice::HugePage } else { Advice::NoHugePage };
        let _ = mem::advise(target, huge);
        extent
    }

    fn place(&mut self, pages: u64) -> Extent {
        // What other tests and the allocator map lies elsewhere: the kernel goes downward from the top.
        static NEXT: Mutex<u64> = Mutex::new(0x2_0000_0000);
        let mut next = NEXT.lock().unwrap_or_else(PoisonError::into_inner);
        let extent = Extent::new(*next, pages);
        *next += pages + 1024;
        extent
    }

    fn range(&self, extent: Extent) -> ManagedRange {
        range(extent)
    }

    fn copy_to_child(&self, child: &Uffd, to: ManagedRange, from: ManagedRange) -> RangeAnswer {
        child.copy_run(to, from, false, Wake::Now)
    }

    fn move_to_child(&self, child: &Uffd, to: ManagedRange, from: ManagedRange) -> RangeAnswer {
        child.move_pages(to, from, false, Wake::Now)
    }

    fn perform(&mut self, program: Call, on_message: OnMessage<'_, Self>) -> String {
        let ended = thread::scope(|scope| {
            let program = scope.spawn(move || call(program));
            while !program.is_finished() {
                let mut fds = [PollFd::new(self.space.uffd().fd(), events::IN)];
                if fd::poll(&mut fds, Some(1_000_000)) != Ok(1) {
                    continue;
                }
                on_message(self, None);
                let message = self.space.next_message().expect("the userfaultfd can be read");
                on_message(self, message.as_ref());
            }
            program.join().expect("the program's thread ends")
        });
        // The count of changes falls when the thread goes on: it has.
        match ended {
            Ok(Ended::Done) => "Done".to_owned(),
            Ok(Ended::Value(value)) => format!("Value({value})"),
            Ok(Ended::Child(child, pipe)) => {
                self.children.push((child, pipe));
                "a child".to_owned()
            }
            Ok(Ended::Pinned(ring)) => {
                self.pins.push(ring);
                "Done".to_owned()
            }
            Err(errno) => format!("Failed({})", errno.name()),
        }
    }

    fn child(&self) -> i32 {
        i32::try_from(self.children.last().expect("a child").0).expect("a process number")
    }

    fn load_in_child(&mut self, page: u64) -> String {
        let mut word = [0; 8];
        match proc::read_memory(self.child(), page * PAGE_BYTES as u64, &mut word) {
            Ok(()) => format!("Value({})", u64::from_le_bytes(word)),
            Err(errno) => format!("Failed({})", errno.name()),
        }
    }

    fn end_children(&mut self) {
        for (child, pipe) in self.children.drain(..) {
            drop(pipe);
            // SAFETY: waits for a child of ours and takes no status.
            unsafe { syscall!(k::__NR_wait4, child, 0, 0, 0) }.expect("a child of ours");
        }
    }
}

/// Memory of the test's own.
pub(crate) fn frames(pages: u64) -> Mapping {
    let options = mem::AnonOptions { protection: Protection::ReadWrite, populate: false, inherit: true };
    Mapping::anonymous(bytes(pages), options).expect("mmap")
}

fn moves(extent: Extent, pages: u64, how: Remap) -> Result<Ended, Errno> {
    // SAFETY: both places are the test's own.
    unsafe { mem::remap(range(extent), bytes(pages), how) }.map(|_| Ended::Done)
}
