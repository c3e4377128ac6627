//! The two engines: io_uring, and threads that call preadv2 and pwritev2 where io_uring is refused (containers: `workers`).

#[cfg(test)]
mod tests;
mod workers;

pub(crate) use workers::ThreadEngine;

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use pagetide_core::types::Nanos;
use pagetide_sys::fd::{self, Fd, PollFd, events};
use pagetide_sys::file::{self, IoVec};
use pagetide_sys::thread;
use pagetide_sys::uring::{Entry, Refused, Ring, SetupFlags, Target, UnmappedRing};
use pagetide_sys::{Errno, clock};

use crate::io::{Direction, Engine, Passed, Passing, REQUEST_PAGES, REQUESTS, Request, Signs, WATCHED};

/// User data of the wait for the first watched descriptor; those of requests are smaller.
const WATCH_TOKEN: u64 = 1 << 32;
/// Calls in a row that the kernel may put off. More are no lack of memory for a moment.
const PUT_OFF_MAX: u32 = 10_000;
/// Files that a ring for threads with tables of their own can hold; place 0 is the pipe's.
const FILES: usize = 64;
/// Requests of a ring that is given up end within this time.
const LAST_REQUESTS_NS: Nanos = 120_000_000_000;
/// Who waits for requests looks again after this long.
const LOOK_NS: Nanos = 10_000_000;

/// Entries of a ring: all requests at once, and the waits.
const ENTRIES: u32 = 256;
const _: () = assert!(ENTRIES as usize >= REQUESTS + WATCHED);

/// A request as an engine keeps it: the table of requests is the host's to change meanwhile.
#[derive(Clone, Copy, Debug)]
struct Job {
    direction: Direction,
    fd: i32,
    offset: u64,
    pieces: [IoVec; REQUEST_PAGES],
    pieces_len: usize,
}

impl Job {
    fn new(request: &Request) -> Self {
        let mut pieces = [IoVec::default(); REQUEST_PAGES];
        let used = request.pieces();
        pieces[..used.len()].copy_from_slice(used);
        let (direction, fd, offset) = (request.direction, request.fd, request.offset);
        Self { direction, fd, offset, pieces, pieces_len: used.len() }
    }

    fn pieces(&self) -> &[IoVec] {
        &self.pieces[..self.pieces_len]
    }

    fn file(&self) -> std::mem::ManuallyDrop<Fd> {
        // SAFETY: the swap file stays open while its store lives, which outlasts its requests.
        std::mem::ManuallyDrop::new(unsafe { Fd::from_raw(self.fd) })
    }

    /// Read or write in this thread.
    fn carry_out(&self) -> Result<usize, Errno> {
        match self.direction {
            Direction::Read => file::preadv(&self.file(), self.pieces(), self.offset, 0),
            Direction::Write => file::pwritev(&self.file(), self.pieces(), self.offset, 0),
        }
    }
}

/// Sleep until one of the descriptors is readable; which of the watched ones are.
fn poll_watched([first, second]: [&Fd; WATCHED], event: PollFd, timeout_ns: u64) -> [bool; WATCHED] {
    let mut fds = [PollFd::new(first, events::IN), PollFd::new(second, events::IN), event];
    match fd::poll(&mut fds, Some(timeout_ns)) {
        Ok(_) => [fds[0].seen() != 0, fds[1].seen() != 0],
        // An interrupted wait is one that saw nothing.
        Err(Errno::EINTR | Errno::EAGAIN) => [false; WATCHED],
        // A filter of the program: look at both without sleeping.
        Err(_) => {
            thread::yield_now();
            [true; WATCHED]
        }
    }
}

/// io_uring. Should the kernel refuse to go on with the ring (a seccomp filter of the program), preadv and pwritev in the calling
/// thread take its place.
#[derive(Debug)]
pub(crate) struct UringEngine {
    /// None once it was given up.
    ring: Option<Arc<Ring>>,
    /// Of a ring for threads with tables of their own: the thread in whose table all files are.
    home: Option<i32>,
    /// The files that the ring holds, by their numbers in the home's table; -1: none.
    files: [i32; FILES],
    has_all_files: bool,
    /// Who uses a ring for several threads at present; 0: its home, or a thread of ours.
    caller: Option<i32>,
    /// Requests that nobody has passed on yet, oldest first, and who has passed on, or is about to, those that are open.
    unsubmitted: VecDeque<u32>,
    /// Open requests that the kernel has given back undone: the thread that had passed them on has ended, or the kernel may make no thread
    /// for them (RLIMIT_NPROC, `pids.max` of a cgroup). The home makes them.
    called_off: Vec<u32>,
    owners: [i32; REQUESTS],
    /// Threads that have requests with them, and pass them on.
    passing: u32,
    /// Reading end of a pipe whose other end only the ring holds: hung up when the last request of a ring that was given up is over.
    last_request: Option<Fd>,
    /// Readable while results are there, once the ring was given up.
    event: Fd,
    /// A ring that was given up, and whose memory somebody looks at: its number is the event's.
    given_up: Option<Arc<Ring>>,
    /// By token. The kernel reads the pieces of those that are open, so they are changed through `Cell` only.
    jobs: Vec<Cell<Job>>,
    is_open: [bool; REQUESTS],
    /// Calls in a row that were put off.
    put_off: u32,
    /// Waits for watched descriptors that the kernel has.
    armed: [bool; WATCHED],
    readable: [bool; WATCHED],
    finished: VecDeque<(u32, Result<usize, Errno>)>,
}

/// Where several threads pass requests on, the completions of what one has passed on are run when it looks for them. To interrupt it for
/// that would cost it a tenth of a fault: an interrupt between CPUs, which in a virtual machine the host has to deliver.
const FOR_THREADS: SetupFlags = SetupFlags::COOP;

/// A ring with these flags; on a kernel that is older than they are, one without.
fn with_older<R>(flags: SetupFlags, make: impl Fn(SetupFlags) -> Result<R, Refused>) -> Result<R, Refused> {
    match make(flags) {
        Err(Refused::BadFlags) => make(SetupFlags::PLAIN),
        answer => answer,
    }
}

impl UringEngine {
    /// A ring for the one thread that makes it: completions are run when that thread asks for them, not by interrupting it.
    pub(crate) fn new() -> Result<Self, Refused> {
        // Since Linux 6.1.
        with_older(SetupFlags::DEFER, |flags| Self::make(flags, false))
    }

    /// A ring for several threads, one at a time.
    pub(crate) fn for_threads() -> Result<Self, Refused> {
        with_older(FOR_THREADS, |flags| Self::make(flags, true))
    }

    /// The descriptor of a ring for several threads, one at a time, which may have descriptor tables of their own.
    pub(crate) fn unmapped() -> Result<UnmappedRing, Refused> {
        with_older(FOR_THREADS, |flags| UnmappedRing::new(ENTRIES, ENTRIES * 2, flags))
    }

    /// An engine over such a ring, whose descriptor has the same number in the tables of all threads that use it. The calling thread
    /// alone has the files, and makes what goes by their numbers.
    pub(crate) fn for_tables(ring: UnmappedRing) -> Result<Self, Refused> {
        Self::over(Ring::map(ring)?, Some(thread::gettid()), true)
    }

    /// A ring that holds all requests at once.
    fn make(flags: SetupFlags, is_shared: bool) -> Result<Self, Refused> {
        Self::over(Ring::new(ENTRIES, ENTRIES * 2, flags)?, None, is_shared)
    }

    fn over(ring: Ring, home: Option<i32>, is_shared: bool) -> Result<Self, Refused> {
        // Without it, a ring can be given up only while it has no request.
        let pipe = fd::pipe(0).and_then(|(read, write)| {
            let mut held = [-1; FILES];
            held[0] = write.raw();
            ring.register_files(&held[..if home.is_some() { FILES } else { 1 }]).map(|()| read)
        });
        if let (Some(_), Err(errno)) = (home, &pipe) {
            return Err(Refused::Other(*errno));
        }
        Ok(Self {
            ring: Some(Arc::new(ring)),
            home,
            files: [-1; FILES],
            has_all_files: true,
            caller: is_shared.then_some(0),
            unsubmitted: VecDeque::with_capacity(REQUESTS),
            called_off: Vec::with_capacity(REQUESTS),
            owners: [0; REQUESTS],
            passing: 0,
            last_request: pipe.ok(),
            event: fd::eventfd(0)?,
            given_up: None,
            jobs: Vec::with_capacity(REQUESTS),
            is_open: [false; REQUESTS],
            put_off: 0,
            armed: [false; WATCHED],
            readable: [false; WATCHED],
            finished: VecDeque::with_capacity(REQUESTS),
        })
    }

    /// Take what the kernel has finished.
    fn collect(&mut self) {
        // Nobody else can run the completions of what a thread has passed on.
        if let (Some(ring), Some(caller)) = (&self.ring, self.caller)
            && self.has_begun(caller)
        {
            ring.run_completions();
        }
        while let Some(completion) = self.ring.as_ref().and_then(|ring| ring.next_completion()) {
            if let Some(watch) = completion.user_data.checked_sub(WATCH_TOKEN) {
                let watch = usize::try_from(watch).expect("few are watched");
                (self.armed[watch], self.readable[watch]) = (false, true);
                continue;
            }
            let token = u32::try_from(completion.user_data).expect("tokens are 32 bit");
            self.owners[token as usize] = 0;
            if matches!(completion.result, Err(Errno::ECANCELED | Errno::EINTR)) {
                self.called_off.push(token);
                continue;
            }
            self.is_open[token as usize] = false;
            self.finished.push_back((token, completion.result.map(|bytes| bytes as usize)));
        }
        while self.is_home()
            && let Some(token) = self.called_off.pop()
        {
            self.carry_out(token);
        }
    }

    /// What a call that was to pass on `pending` requests answered. False: it did not get on.
    fn heed(&mut self, pending: u32, answer: Result<u32, Errno>) -> bool {
        match answer {
            Ok(taken) if taken > 0 || pending == 0 => {
                self.put_off = 0;
                return true;
            }
            // Interrupted, short of memory for a moment or full of completions: what is left is passed on at the next call.
            Ok(_) | Err(Errno::EINTR | Errno::EAGAIN | Errno::EBUSY) if self.put_off < PUT_OFF_MAX => self.put_off += 1,
            // The home finds the same, and goes on by the files' numbers; once nobody has the ring in his hands.
            _ if !self.is_home() || self.passing > 0 => {}
            Ok(_) => self.give_up_ring(Errno::EAGAIN),
            Err(errno) => self.give_up_ring(errno),
        }
        false
    }

    /// The request as the ring has it.
    fn entry(&self, token: u32) -> Entry {
        // SAFETY: nothing changes a job while its request is open.
        let job = unsafe { &*self.jobs[token as usize].as_ptr() };
        let file = job.file();
        let target = self.target(job).map_or(Target::File(&file), Target::Registered);
        match job.direction {
            // SAFETY: the pieces lie in the table of jobs, which never grows beyond its capacity and so does not move, and stay as
            // they are until the request is over; their memory is frames that the machine leaves alone meanwhile.
            Direction::Read => unsafe { Entry::readv(target, job.pieces(), job.offset, u64::from(token)) },
            // SAFETY: as for reads.
            Direction::Write => unsafe { Entry::writev(target, job.pieces(), job.offset, u64::from(token)) },
        }
    }

    /// So many of the requests that wait were passed on by the caller: the kernel ends them in its name, and interrupts its calls for that.
    fn note_owners(&mut self, taken: u32) {
        for token in self.unsubmitted.drain(..taken as usize) {
            self.owners[token as usize] = self.caller.unwrap_or(0);
        }
    }

    fn is_home(&self) -> bool {
        self.home.is_none_or(|home| home == thread::gettid())
    }

    /// Where the ring has the file of a request.
    fn target(&self, job: &Job) -> Option<u32> {
        (0..).zip(&self.files).find(|&(_, &raw)| raw == job.fd).map(|(place, _)| place)
    }

    /// Go on without the ring.
    ///
    /// What its requests have come to can no longer be learned: their completions are run by the call that is refused. They are
    /// made again as soon as none of them is under way in the kernel, which would otherwise still read or write the frames. (A ring for
    /// threads with tables of their own completes its requests without that call, and stays open in the other tables.)
    fn give_up_ring(&mut self, errno: Errno) {
        self.collect();
        if self.home.is_some() {
            self.await_requests(errno);
        }
        let Some(ring) = self.ring.take() else { return };
        assert_eq!(self.passing, 0, "nobody passes requests on");
        // Other threads sleep on this number.
        // SAFETY: what it was is the ring, which nothing uses any more.
        let replaced = unsafe { fd::dup_onto(&self.event, ring.fd().raw(), true) };
        assert!(replaced.is_ok(), "io_uring is refused ({}), and so is dup3: {replaced:?}", errno.name());
        match Arc::try_unwrap(ring) {
            Ok(ring) => self.event = ring.into_fd(),
            Err(ring) => self.given_up = Some(ring),
        }
        self.armed = [false; WATCHED];
        self.owners = [0; REQUESTS];
        self.unsubmitted.clear();
        if self.home.is_none() && self.is_open.contains(&true) {
            self.await_last_request(errno);
        }
        for (index, token) in (0..REQUESTS).zip(0..) {
            if self.is_open[index] {
                self.carry_out(token);
            }
        }
        if !self.finished.is_empty() {
            self.tell();
        }
    }

    /// Wait until every request that was passed on is over, and take what it has come to.
    fn await_requests(&mut self, errno: Errno) {
        let end = clock::now().saturating_add(LAST_REQUESTS_NS);
        let is_passed_on =
            |engine: &Self, token| engine.is_open[token as usize] && !engine.unsubmitted.contains(&token);
        while (0..).take(REQUESTS).any(|token: u32| is_passed_on(self, token)) {
            let left = end.saturating_sub(clock::now());
            assert!(left > 0, "io_uring is refused ({}), and what it reads or writes does not end", errno.name());
            let Some(ring) = &self.ring else { return };
            // Interrupted: that is how the kernel ends a request of this thread.
            let _ = fd::poll(&mut [PollFd::new(ring.fd(), events::IN)], Some(left.min(LOOK_NS)));
            self.collect();
        }
    }

    /// Wait until no request of the ring is under way.
    fn await_last_request(&self, errno: Errno) {
        let why = errno.name();
        let Some(last_request) = &self.last_request else {
            panic!("io_uring is refused ({why}) while it reads or writes pages, and nothing tells when it has ended");
        };
        let end = clock::now().saturating_add(LAST_REQUESTS_NS);
        loop {
            let left = end.saturating_sub(clock::now());
            assert!(left > 0, "io_uring is refused ({why}), and what it reads or writes does not end");
            let mut fds = [PollFd::new(last_request, 0)];
            match fd::poll(&mut fds, Some(left)) {
                Ok(_) if fds[0].seen() & events::HUP != 0 => return,
                Ok(_) | Err(Errno::EINTR | Errno::EAGAIN) => {}
                Err(other) => panic!("io_uring is refused ({why}), and so is ppoll ({})", other.name()),
            }
        }
    }

    /// Carry an open request out in this thread.
    fn carry_out(&mut self, token: u32) {
        let result = self.jobs[token as usize].get().carry_out();
        self.is_open[token as usize] = false;
        self.finished.push_back((token, result));
        self.tell();
    }

    /// Results are there, and no ring that says so.
    fn tell(&self) {
        let told = file::signal_event(&self.event, 1);
        debug_assert!(told.is_ok(), "the engine's eventfd is open: {told:?}");
    }
}

impl Engine for UringEngine {
    fn submit(&mut self, token: u32, request: &Request) {
        let (index, job) = (token as usize, Job::new(request));
        while self.jobs.len() <= index {
            self.jobs.push(Cell::new(job));
        }
        self.jobs[index].set(job);
        self.is_open[index] = true;
        if self.ring.is_none() {
            return self.carry_out(token);
        }
        self.unsubmitted.push_back(token);
    }

    fn flush(&mut self) {
        while let Some(ring) = self.ring.as_ref().filter(|_| !self.unsubmitted.is_empty()) {
            let mut submissions = ring.submissions();
            self.unsubmitted.iter().for_each(|&token| submissions.put(self.entry(token)));
            let pending = submissions.pending();
            let answer = submissions.enter(0);
            submissions.take_back();
            drop(submissions);
            self.note_owners(answer.unwrap_or(0));
            if !self.heed(pending, answer) {
                break;
            }
        }
    }

    fn has_unsubmitted(&self) -> bool {
        !self.unsubmitted.is_empty()
    }

    fn begin_passing(&mut self, caller: i32) -> Option<Passing> {
        let ring = Arc::clone(self.ring.as_ref().filter(|_| !self.unsubmitted.is_empty())?);
        let mut passing = Passing::new(ring);
        while let Some(&token) = self.unsubmitted.front()
            && passing.add(token, self.entry(token))
        {
            self.unsubmitted.pop_front();
            self.owners[token as usize] = caller;
        }
        self.passing += 1;
        Some(passing)
    }

    fn end_passing(&mut self, passed: &Passed) {
        self.passing -= 1;
        for &token in passed.left().iter().rev() {
            self.owners[token as usize] = 0;
            self.unsubmitted.push_front(token);
        }
        let (asked, answer) = passed.answer();
        self.heed(asked, answer);
    }

    fn reap(&mut self, done: &mut dyn FnMut(u32, Result<usize, Errno>) -> bool) {
        self.collect();
        if self.ring.is_none() {
            let _ = file::take_event(&self.event);
        }
        while let Some((token, result)) = self.finished.pop_front() {
            if !done(token, result) {
                break;
            }
        }
        if self.ring.is_none() && !self.finished.is_empty() {
            self.tell();
        }
    }

    fn event(&self) -> &Fd {
        self.ring.as_ref().or(self.given_up.as_ref()).map_or(&self.event, |ring| ring.fd())
    }

    fn signs(&self) -> Option<Signs> {
        let ring = self.ring.as_ref().filter(|_| self.home.is_some())?;
        Some(Signs(Arc::clone(ring)))
    }

    fn opened(&mut self, file: &Fd) {
        let (Some(ring), true) = (&self.ring, self.home.is_some()) else { return };
        // The first place is the pipe's.
        let free = (1..).zip(&mut self.files[1..]).find(|(_, raw)| **raw < 0);
        if let Some((place, raw)) = free
            && ring.replace_file(place, Some(file)).is_ok()
        {
            *raw = file.raw();
        } else {
            self.has_all_files = false;
        }
    }

    fn closing(&mut self, file: &Fd) {
        for (place, raw) in (0..).zip(&mut self.files) {
            if *raw == file.raw() {
                *raw = -1;
                let gone = self.ring.as_ref().map_or(Ok(()), |ring| ring.replace_file(place, None));
                debug_assert!(gone.is_ok(), "a registered place can be emptied: {gone:?}");
            }
        }
    }

    fn set_caller(&mut self, thread: i32) {
        self.caller = self.caller.map(|_| thread);
    }

    fn has_begun(&self, thread: i32) -> bool {
        self.owners.contains(&thread)
    }

    fn is_for_all_tables(&self) -> bool {
        self.ring.is_some() && self.home.is_some() && self.has_all_files
    }

    fn wait(&mut self, watched: [&Fd; WATCHED], timeout_ns: u64) -> [bool; WATCHED] {
        if let Some(ring) = &self.ring {
            let mut submissions = ring.submissions();
            self.unsubmitted.iter().for_each(|&token| submissions.put(self.entry(token)));
            let requests = submissions.pending();
            for (index, fd) in watched.into_iter().enumerate().filter(|(index, _)| !self.armed[*index]) {
                // Tells of the state, not of a change: what is readable now ends the wait at once.
                submissions.put_poll(fd, events::IN, WATCH_TOKEN + index as u64);
            }
            let wait_for = u32::from(timeout_ns > 0 && self.finished.is_empty());
            let pending = submissions.pending();
            let answer = submissions.enter_timeout(wait_for, timeout_ns);
            submissions.take_back();
            drop(submissions);
            let taken = answer.unwrap_or(0);
            let unarmed = self.armed.iter_mut().filter(|is_armed| !**is_armed);
            unarmed.take(taken.saturating_sub(requests) as usize).for_each(|is_armed| *is_armed = true);
            self.note_owners(taken.min(requests));
            self.heed(pending, answer);
            self.collect();
        }
        if self.ring.is_none() {
            let is_idle = self.finished.is_empty() && !self.readable.contains(&true);
            let timeout_ns = if is_idle { timeout_ns } else { 0 };
            let seen = poll_watched(watched, PollFd::none(), timeout_ns);
            (0..WATCHED).for_each(|index| self.readable[index] |= seen[index]);
        }
        std::mem::take(&mut self.readable)
    }
}
