//! io_uring on raw system calls: no allocation after the set-up, no libc.
//!
//! Requests are put into the submission queue, submitted in one call, and their completions taken from the completion queue; the
//! caller's `user_data` ties the two. Threads may share a [`Ring`]: one at a time puts and submits ([`Submissions`]: so what one has
//! put is submitted in its name), and another one may take completions meanwhile. The ring's memory is not inherited by children.
//!
//! Requests name memory by [`ManagedRange`] or by [`IoVec`] arrays. The range's promise covers the data. The array itself must
//! stay where it is until the request is *submitted* (the kernel copies it then), and so takes a static or pinned place of
//! the owner: hence those two calls are unsafe.

use core::sync::atomic::{AtomicU32, Ordering};

use linux_raw_sys::general::{__NR_io_uring_enter, __NR_io_uring_register, __NR_io_uring_setup};
use linux_raw_sys::io_uring as k;

use crate::clock::Timespec;
use crate::fd::Fd;
use crate::file::IoVec;
use crate::mem::{Advice, ManagedRange, Mapping, Protection, advise};
use crate::sync::{Guard, Mutex};
use crate::syscall;
use crate::syscall::Errno;
use crate::word::{addr_of, low_u32, u64_of, usize_of};

const ENTRY_BYTES: usize = 64;

/// Why there is no ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// ENOSYS: the kernel has none, or a filter hides it.
    Missing,
    /// EPERM: forbidden by sysctl or by a filter.
    Forbidden,
    /// The ring is there but lacks what this wrapper needs (one mapping, no dropped completions).
    TooOld,
    /// EINVAL: not with these flags.
    BadFlags,
    /// Anything else (ENOMEM, EMFILE..).
    Other(Errno),
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::ENOSYS => Self::Missing,
            Errno::EPERM | Errno::EACCES => Self::Forbidden,
            Errno::EINVAL => Self::BadFlags,
            other => Self::Other(other),
        }
    }
}

/// How a ring is set up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetupFlags(pub u32);

impl SetupFlags {
    /// Completions interrupt the owner to be run, as in every kernel.
    pub const PLAIN: Self = Self(0);
    /// Completions are run when the thread that submitted the request enters the kernel anyway (5.19): who only looks for them has them
    /// run by [`Ring::run_completions`].
    pub const COOP: Self = Self(k::IORING_SETUP_COOP_TASKRUN | k::IORING_SETUP_TASKRUN_FLAG);
    /// Only the thread that makes the ring submits; completions are run when it asks for them (6.1).
    ///
    /// Not for a thread that sleeps in `ppoll` on the ring's descriptor: on Linux 6.18 a finished request does not wake it
    /// (`a_deferred_ring_is_waited_for_through_its_event`). Sleep in [`Submissions::enter`], or poll a [`Ring::set_event`] counter.
    pub const DEFER: Self = Self(k::IORING_SETUP_SINGLE_ISSUER | k::IORING_SETUP_DEFER_TASKRUN);
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// As the request was given.
    pub user_data: u64,
    /// Bytes done (for polls: events), or the error.
    pub result: Result<u32, Errno>,
    /// More completions of the same request will come ([`Submissions::put_poll_multi`]).
    pub more: bool,
}

/// The file of a request.
#[derive(Clone, Copy, Debug)]
pub enum Target<'f> {
    /// By its descriptor in the table of the thread that submits.
    File(&'f Fd),
    /// By its place in [`Ring::register_files`]: for threads with tables of their own.
    Registered(u32),
}

impl<'f> From<&'f Fd> for Target<'f> {
    fn from(fd: &'f Fd) -> Self {
        Self::File(fd)
    }
}

/// `IOSQE_FIXED_FILE`
const FIXED_FILE: u64 = 1;

/// The head and tail of a queue, shared with the kernel.
#[derive(Debug)]
struct Ends {
    head: usize,
    tail: usize,
    mask: u32,
}

/// A ring.
#[derive(Debug)]
pub struct Ring {
    fd: Fd,
    flags: SetupFlags,
    /// Holds both queues' ends and the completions.
    rings: Mapping,
    entries: Mapping,
    /// Where the kernel says how the submission queue is.
    state: usize,
    submissions: Ends,
    completions: Ends,
    completions_start: usize,
    nr_entries: u32,
    /// Of who puts and submits requests: the tail of what was put.
    submitting: Mutex<u32>,
    /// Of who takes completions.
    completing: Mutex<()>,
}

/// The right to put requests and to submit them.
#[derive(Debug)]
pub struct Submissions<'r> {
    ring: &'r Ring,
    tail: Guard<'r, u32>,
}

/// A request as it is put: words as the kernel's `struct io_uring_sqe` has them.
#[derive(Clone, Copy, Debug)]
pub struct Entry([u64; 8]);

/// A ring whose memory is not mapped yet: made in one descriptor table, for a thread with another one that has the same number in it.
#[derive(Debug)]
pub struct UnmappedRing {
    fd: Fd,
    flags: SetupFlags,
    params: k::io_uring_params,
}

impl UnmappedRing {
    /// See [`Ring::new`]. Allocates nothing.
    pub fn new(entries: u32, completions: u32, flags: SetupFlags) -> Result<Self, Refused> {
        assert!(entries > 0 && completions >= entries, "a ring holds the answers of what it can submit");
        let mut params = k::io_uring_params {
            sq_entries: 0,
            cq_entries: completions,
            flags: flags.0 | k::IORING_SETUP_CQSIZE | k::IORING_SETUP_CLAMP,
            sq_thread_cpu: 0,
            sq_thread_idle: 0,
            features: 0,
            wq_fd: 0,
            resv: [0; 3],
            // SAFETY: offsets are integers, for which zeroes are values.
            sq_off: unsafe { core::mem::zeroed() },
            // SAFETY: as above.
            cq_off: unsafe { core::mem::zeroed() },
        };
        // SAFETY: the kernel reads and writes `params`.
        let register = unsafe { syscall!(__NR_io_uring_setup, entries as usize, addr_of(&raw mut params)) }?;
        // SAFETY: io_uring_setup returned it.
        let fd = unsafe { Fd::from_register(register) };
        let needed = k::IORING_FEAT_SINGLE_MMAP | k::IORING_FEAT_NODROP;
        if params.features & needed != needed {
            return Err(Refused::TooOld);
        }
        Ok(Self { fd, flags, params })
    }

    /// The same under a number of `lowest` or above.
    #[must_use]
    pub fn moved_high(self, lowest: u32) -> Self {
        Self { fd: self.fd.moved_high(lowest), ..self }
    }

    /// The descriptor.
    pub const fn fd(&self) -> &Fd {
        &self.fd
    }
}

impl Entry {
    /// Nothing.
    pub const NOP: Self = Self([k::io_uring_op::IORING_OP_NOP as u64, 0, 0, 0, 0, 0, 0, 0]);

    /// An operation `op` on `fd`.
    fn new(op: u32, fd: i32, offset: u64, addr: usize, len: u32, op_flags: u32, user_data: u64) -> Self {
        let head = u64::from(op) | (u64::from(fd.cast_unsigned()) << 32);
        let middle = u64::from(len) | (u64::from(op_flags) << 32);
        Self([head, offset, u64_of(addr), middle, user_data, 0, 0, 0])
    }

    fn of_range(op: u32, fd: &Fd, range: ManagedRange, offset: u64, user_data: u64) -> Self {
        let len = low_u32(u64_of(range.len()));
        assert!(len as usize == range.len(), "one request is smaller than 4 GiB");
        Self::new(op, fd.raw(), offset, range.start(), len, 0, user_data)
    }

    /// A read at `offset` into several pieces.
    ///
    /// # Safety
    /// `pieces` stays in place and unchanged until the request was submitted.
    pub unsafe fn readv<'f>(file: impl Into<Target<'f>>, pieces: &[IoVec], offset: u64, user_data: u64) -> Self {
        Self::of_pieces(k::io_uring_op::IORING_OP_READV as u32, file.into(), pieces, offset, user_data)
    }

    /// A write at `offset` of several pieces.
    ///
    /// # Safety
    /// `pieces` stays in place and unchanged until the request was submitted.
    pub unsafe fn writev<'f>(file: impl Into<Target<'f>>, pieces: &[IoVec], offset: u64, user_data: u64) -> Self {
        Self::of_pieces(k::io_uring_op::IORING_OP_WRITEV as u32, file.into(), pieces, offset, user_data)
    }

    fn of_pieces(op: u32, file: Target<'_>, pieces: &[IoVec], offset: u64, user_data: u64) -> Self {
        let count = low_u32(u64_of(pieces.len()));
        let (fd, flags) = match file {
            Target::File(fd) => (fd.raw(), 0),
            Target::Registered(place) => (place.cast_signed(), FIXED_FILE),
        };
        let mut entry = Self::new(op, fd, offset, addr_of(pieces.as_ptr()), count, 0, user_data);
        entry.0[0] |= flags << 8;
        entry
    }
}

impl Submissions<'_> {
    fn head(&self) -> u32 {
        self.ring.word(self.ring.submissions.head).load(Ordering::Acquire)
    }

    fn show_tail(&self) {
        self.ring.word(self.ring.submissions.tail).store(*self.tail, Ordering::Release);
    }

    /// How many more requests can be put before the next submission.
    pub fn room(&self) -> u32 {
        self.ring.nr_entries - self.pending()
    }

    /// How many requests are put but not submitted.
    pub fn pending(&self) -> u32 {
        self.tail.wrapping_sub(self.head())
    }

    /// Put a request.
    pub fn put(&mut self, Entry(words): Entry) {
        assert!(self.room() > 0, "the caller looks at room() first");
        let index = (*self.tail & self.ring.submissions.mask) as usize;
        let place = self.ring.entries.range().part(index * ENTRY_BYTES, ENTRY_BYTES);
        let pointer = place.as_ptr().cast::<[u64; 8]>();
        // SAFETY: the entry lies in the mapping that the ring keeps; one thread at a time has the tail, and the kernel does not read
        // the entry before the tail is shown.
        unsafe { pointer.write(words) };
        *self.tail = self.tail.wrapping_add(1);
        self.show_tail();
    }

    /// What was put and not submitted was not put.
    pub fn take_back(&mut self) {
        *self.tail = self.head();
        self.show_tail();
    }

    /// Put a read of `range.len()` bytes at `offset`.
    pub fn put_read(&mut self, fd: &Fd, range: ManagedRange, offset: u64, user_data: u64) {
        self.put(Entry::of_range(k::io_uring_op::IORING_OP_READ as u32, fd, range, offset, user_data));
    }

    /// Put a write of `range` at `offset`.
    pub fn put_write(&mut self, fd: &Fd, range: ManagedRange, offset: u64, user_data: u64) {
        self.put(Entry::of_range(k::io_uring_op::IORING_OP_WRITE as u32, fd, range, offset, user_data));
    }

    /// Put a wait for `events` of `fd`; the result is what was seen. Once.
    pub fn put_poll(&mut self, fd: &Fd, events: i16, user_data: u64) {
        let events = u32::from(events.cast_unsigned());
        self.put(Entry::new(k::io_uring_op::IORING_OP_POLL_ADD as u32, fd.raw(), 0, 0, 0, events, user_data));
    }

    /// Put a lasting wait for `events` of `fd`: a completion each time it is woken, with `more` as long as the wait lasts.
    ///
    /// It tells of a wake, not of a state: read until nothing is left, or what is left waits for the next wake.
    pub fn put_poll_multi(&mut self, fd: &Fd, events: i16, user_data: u64) {
        let events = u32::from(events.cast_unsigned());
        let op = k::io_uring_op::IORING_OP_POLL_ADD as u32;
        self.put(Entry::new(op, fd.raw(), 0, 0, k::IORING_POLL_ADD_MULTI, events, user_data));
    }

    /// Put a request to cancel the request with `target` as its user data. Result ENOENT: it is done or was never there;
    /// EALREADY: it can no longer be stopped.
    pub fn put_cancel(&mut self, target: u64, user_data: u64) {
        let op = k::io_uring_op::IORING_OP_ASYNC_CANCEL as u32;
        self.put(Entry::new(op, -1, 0, usize_of(target), 0, 0, user_data));
    }

    /// Put a request that does nothing.
    pub fn put_nop(&mut self, user_data: u64) {
        self.put(Entry::new(k::io_uring_op::IORING_OP_NOP as u32, -1, 0, 0, 0, 0, user_data));
    }

    /// Submit what was put and wait until `wait_for` completions are there. How many requests were taken.
    ///
    /// EINTR and EAGAIN (out of memory for a moment) and EBUSY (completions must be taken first) are for the caller.
    pub fn enter(&mut self, wait_for: u32) -> Result<u32, Errno> {
        let pending = self.pending();
        // With deferred task work, completions are run only by a call that asks for events.
        let wants_events = wait_for > 0 || self.ring.flags.0 & k::IORING_SETUP_DEFER_TASKRUN != 0;
        let flags = if wants_events { k::IORING_ENTER_GETEVENTS } else { 0 };
        self.ring.enter_raw(pending, wait_for, flags, 0, 0)
    }

    /// The same, waiting at most `timeout_ns`; `Err(ETIME)` counts as success with nothing more to tell. Linux 5.11.
    pub fn enter_timeout(&mut self, wait_for: u32, timeout_ns: u64) -> Result<u32, Errno> {
        let pending = self.pending();
        let timeout = Timespec::from_ns(timeout_ns);
        // struct io_uring_getevents_arg: no signal mask; its size (and no minimal wait); the timeout.
        let arg = [0u64, 8, u64_of(addr_of(&raw const timeout))];
        let flags = k::IORING_ENTER_GETEVENTS | k::IORING_ENTER_EXT_ARG;
        match self.ring.enter_raw(pending, wait_for, flags, addr_of(&raw const arg), size_of_val(&arg)) {
            Err(errno) if errno.code() == ETIME => Ok(0),
            answer => answer,
        }
    }
}

impl Ring {
    /// Make a ring with room for `entries` requests per submission and `completions` answers (both become powers of two).
    pub fn new(entries: u32, completions: u32, flags: SetupFlags) -> Result<Self, Refused> {
        Self::map(UnmappedRing::new(entries, completions, flags)?)
    }

    /// Map a ring, and take it over.
    pub fn map(ring: UnmappedRing) -> Result<Self, Refused> {
        let UnmappedRing { fd, flags, params } = ring;
        let (sq, cq) = (&params.sq_off, &params.cq_off);
        let sq_bytes = sq.array as usize + params.sq_entries as usize * size_of::<u32>();
        let cq_bytes = cq.cqes as usize + params.cq_entries as usize * size_of::<k::io_uring_cqe>();
        let rings =
            Mapping::shared(&fd, u64::from(k::IORING_OFF_SQ_RING), sq_bytes.max(cq_bytes), Protection::ReadWrite)?;
        let entries_bytes = params.sq_entries as usize * ENTRY_BYTES;
        let entries = Mapping::shared(&fd, u64::from(k::IORING_OFF_SQES), entries_bytes, Protection::ReadWrite)?;
        for mapping in [&rings, &entries] {
            advise(mapping.range(), Advice::DontFork)?;
        }
        let base = rings.range().start();
        let ring = Self {
            state: base + sq.flags as usize,
            submissions: Ends {
                head: base + sq.head as usize,
                tail: base + sq.tail as usize,
                mask: params.sq_entries - 1,
            },
            completions: Ends {
                head: base + cq.head as usize,
                tail: base + cq.tail as usize,
                mask: params.cq_entries - 1,
            },
            completions_start: base + cq.cqes as usize,
            fd,
            flags,
            rings,
            entries,
            nr_entries: params.sq_entries,
            submitting: Mutex::new(0),
            completing: Mutex::new(()),
        };
        // The indirection of the submission queue is not used: place n of the array always names entry n.
        for index in 0..params.sq_entries {
            let place = ring.word(base + sq.array as usize + index as usize * size_of::<u32>());
            place.store(index, Ordering::Relaxed);
        }
        Ok(ring)
    }

    fn enter_raw(&self, submit: u32, wait_for: u32, flags: u32, arg: usize, arg_len: usize) -> Result<u32, Errno> {
        let (submit, wait_for, flags) = (submit as usize, wait_for as usize, flags as usize);
        // SAFETY: the requests were put by the methods above, whose callers promised their memory; `arg` lives across the call.
        unsafe { syscall!(__NR_io_uring_enter, self.fd.arg(), submit, wait_for, flags, arg, arg_len) }
            .map(|taken| low_u32(u64_of(taken)))
    }

    /// A word of the shared memory.
    fn word(&self, addr: usize) -> &AtomicU32 {
        debug_assert!(self.rings.range().contains(addr), "a word of the rings lies in their mapping");
        let pointer: *mut u32 = core::ptr::with_exposed_provenance_mut(addr);
        // SAFETY: inside the mapping that `self` keeps, aligned by the kernel, and touched by atomics only on both sides.
        unsafe { AtomicU32::from_ptr(pointer) }
    }

    /// Readable when a completion waits. Do not sleep on it with [`SetupFlags::DEFER`].
    pub const fn fd(&self) -> &Fd {
        &self.fd
    }

    /// Returns when nobody else puts or submits requests.
    pub fn submissions(&self) -> Submissions<'_> {
        Submissions { ring: self, tail: self.submitting.lock("requests for a ring") }
    }

    /// Take the oldest completion.
    pub fn next_completion(&self) -> Option<Completion> {
        let _turn = self.completing.lock("completions of a ring");
        let head_word = self.word(self.completions.head);
        let head = head_word.load(Ordering::Relaxed);
        if head == self.word(self.completions.tail).load(Ordering::Acquire) {
            return None;
        }
        let index = (head & self.completions.mask) as usize;
        let addr = self.completions_start + index * size_of::<[u64; 2]>();
        let pointer: *const [u64; 2] = core::ptr::with_exposed_provenance(addr);
        // SAFETY: in the mapping that `self` keeps; the tail says that the kernel has written it and will not again before the
        // head is moved on.
        let [user_data, result_word] = unsafe { pointer.read() };
        head_word.store(head.wrapping_add(1), Ordering::Release);
        let field = low_u32(result_word).cast_signed();
        let result = match Errno::from_negated(i64::from(field)) {
            Some(errno) => Err(errno),
            None => Ok(field.cast_unsigned()),
        };
        let more = result_word >> 32 & u64::from(k::IORING_CQE_F_MORE) != 0;
        Some(Completion { user_data, result, more })
    }

    /// With [`SetupFlags::COOP`]: run the completions of requests that the calling thread has submitted, if anybody's wait to be run. True
    /// if so.
    pub fn run_completions(&self) -> bool {
        let is_any = self.waits_to_be_run();
        if is_any {
            // Whatever it answers, the completions were run on its way.
            let _ = self.enter_raw(0, 0, k::IORING_ENTER_GETEVENTS, 0, 0);
        }
        is_any
    }

    fn waits_to_be_run(&self) -> bool {
        self.word(self.state).load(Ordering::Relaxed) & k::IORING_SQ_TASKRUN != 0
    }

    /// Completions wait, or wait to be run.
    pub fn has_news(&self) -> bool {
        self.waits_to_be_run() || self.ready() > 0
    }

    /// How many completions wait.
    pub fn ready(&self) -> u32 {
        let tail = self.word(self.completions.tail).load(Ordering::Acquire);
        tail.wrapping_sub(self.word(self.completions.head).load(Ordering::Relaxed))
    }

    /// The flags the ring was made with.
    pub const fn flags(&self) -> SetupFlags {
        self.flags
    }

    /// Let the ring hold these files (-1: none yet), which requests name by their places. The kernel lets them go when the ring is no
    /// more, which is when its last request is over: a pipe's reader sees it hung up then. Once for a ring.
    pub fn register_files(&self, raws: &[i32]) -> Result<(), Errno> {
        let op = k::io_uring_register_op::IORING_REGISTER_FILES as usize;
        // SAFETY: the kernel reads so many descriptor numbers.
        unsafe { syscall!(__NR_io_uring_register, self.fd.arg(), op, addr_of(raws.as_ptr()), raws.len()) }.map(|_| ())
    }

    /// Put another file in a registered place; None: none.
    pub fn replace_file(&self, place: u32, file: Option<&Fd>) -> Result<(), Errno> {
        let raw = file.map_or(-1, Fd::raw);
        let update = k::io_uring_files_update { offset: place, resv: 0, fds: u64_of(addr_of(&raw const raw)) };
        let op = k::io_uring_register_op::IORING_REGISTER_FILES_UPDATE as usize;
        // SAFETY: the kernel reads the record and one descriptor number.
        unsafe { syscall!(__NR_io_uring_register, self.fd.arg(), op, addr_of(&raw const update), 1) }.map(|_| ())
    }

    /// Unmap the ring: its descriptor is all that keeps it then. Results that were not taken are lost.
    pub fn into_fd(self) -> Fd {
        self.fd
    }

    /// Wake `event` (an event counter) on every completion.
    pub fn set_event(&self, event: &Fd) -> Result<(), Errno> {
        let raw = event.raw();
        let op = k::io_uring_register_op::IORING_REGISTER_EVENTFD as usize;
        // SAFETY: the kernel reads one descriptor number.
        unsafe { syscall!(__NR_io_uring_register, self.fd.arg(), op, addr_of(&raw const raw), 1) }.map(|_| ())
    }
}

const ETIME: i32 = 62;

/// Is io_uring allowed here? Makes a small ring and drops it.
pub fn probe() -> Result<(), Refused> {
    Ring::new(1, 1, SetupFlags::PLAIN).map(|_| ())
}
