//! The two engines: io_uring, and threads that call preadv2 and pwritev2 where io_uring is refused (containers).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pagetide_sys::Errno;
use pagetide_sys::fd::{self, Fd, PollFd, events};
use pagetide_sys::file;
use pagetide_sys::futex::{self, Mutex, Scope};
use pagetide_sys::mem::Mapping;
use pagetide_sys::thread::{self, RawThread, Table};
use pagetide_sys::uring::{Refused, Ring, SetupFlags};

use crate::io::{Direction, Engine, REQUESTS, Request, WATCHED};
use crate::own;

/// User data of the wait for the first watched descriptor; those of requests are smaller.
const WATCH_TOKEN: u64 = 1 << 32;

/// io_uring.
#[derive(Debug)]
pub(crate) struct UringEngine {
    ring: Ring,
    /// Waits for watched descriptors that the kernel has.
    armed: [bool; WATCHED],
    readable: [bool; WATCHED],
    finished: VecDeque<(u32, Result<usize, Errno>)>,
}

impl UringEngine {
    /// A ring for the one thread that makes it: completions are run when that thread asks for them, not by interrupting it.
    pub(crate) fn new() -> Result<Self, Refused> {
        match Self::make(SetupFlags::DEFER) {
            // Before Linux 6.1.
            Err(Refused::BadFlags) => Self::make(SetupFlags::PLAIN),
            answer => answer,
        }
    }

    /// A ring for several threads, one at a time.
    pub(crate) fn for_threads() -> Result<Self, Refused> {
        Self::make(SetupFlags::PLAIN)
    }

    /// A ring that holds all requests at once.
    fn make(flags: SetupFlags) -> Result<Self, Refused> {
        let entries = u32::try_from((REQUESTS + WATCHED).next_power_of_two()).expect("a small constant");
        let ring = Ring::new(entries, entries * 2, flags)?;
        let finished = VecDeque::with_capacity(REQUESTS);
        Ok(Self { ring, armed: [false; WATCHED], readable: [false; WATCHED], finished })
    }

    /// Take what the kernel has finished.
    fn collect(&mut self) {
        while let Some(completion) = self.ring.next_completion() {
            if let Some(watch) = completion.user_data.checked_sub(WATCH_TOKEN) {
                let watch = usize::try_from(watch).expect("few are watched");
                (self.armed[watch], self.readable[watch]) = (false, true);
                continue;
            }
            let token = u32::try_from(completion.user_data).expect("tokens are 32 bit");
            self.finished.push_back((token, completion.result.map(|bytes| bytes as usize)));
        }
    }
}

impl Engine for UringEngine {
    fn submit(&mut self, token: u32, request: &Request) {
        // SAFETY: the swap file stays open while its store lives, which outlasts its requests.
        let file = std::mem::ManuallyDrop::new(unsafe { Fd::from_raw(request.fd) });
        let (pieces, offset, token) = (request.pieces(), request.offset(), u64::from(token));
        match request.direction {
            // SAFETY: the pieces lie in the table of requests, which does not move, and stay as they are until the request
            // is over; their memory is frames that the machine leaves alone meanwhile.
            Direction::Read => unsafe { self.ring.put_readv(&file, pieces, offset, token) },
            // SAFETY: as for reads.
            Direction::Write => unsafe { self.ring.put_writev(&file, pieces, offset, token) },
        }
    }

    fn flush(&mut self) {
        // Interrupted or short of memory for a moment: what is left is passed on at the next flush.
        while self.ring.pending() > 0 && self.ring.enter(0).is_ok_and(|taken| taken > 0) {}
    }

    fn reap(&mut self, done: &mut dyn FnMut(u32, Result<usize, Errno>) -> bool) {
        self.collect();
        while let Some((token, result)) = self.finished.pop_front() {
            if !done(token, result) {
                break;
            }
        }
    }

    fn event(&self) -> &Fd {
        self.ring.fd()
    }

    fn wait(&mut self, watched: [&Fd; WATCHED], timeout_ns: u64) -> [bool; WATCHED] {
        for (index, fd) in watched.into_iter().enumerate() {
            if !self.armed[index] {
                // Tells of the state, not of a change: what is readable now ends the wait at once.
                self.ring.put_poll(fd, events::IN, WATCH_TOKEN + index as u64);
                self.armed[index] = true;
            }
        }
        let wait_for = u32::from(timeout_ns > 0 && self.finished.is_empty());
        // Interrupted, or short of memory for a moment: the caller comes again, and what is pending is passed on then.
        let _ = self.ring.enter_timeout(wait_for, timeout_ns);
        self.collect();
        std::mem::take(&mut self.readable)
    }
}

/// Threads of the fallback: as many requests are in flight at the device.
const WORKERS: usize = 4;
const STACK_BYTES: usize = 64 << 10;

/// What a worker needs of a request, and where its pieces are.
#[derive(Clone, Copy, Debug)]
struct Job {
    token: u32,
    request: *const Request,
}

// SAFETY: the request lies in a table that does not move and is left alone until the job's result has been taken.
unsafe impl Send for Job {}

/// What engine and workers share; lives until the workers have ended.
#[derive(Debug)]
struct Shared {
    jobs: Mutex<Queue<Job>>,
    results: Mutex<Queue<(u32, Result<usize, Errno>)>>,
    /// Counts submissions; workers sleep on it.
    submitted: AtomicU32,
    event: Fd,
    is_over: AtomicBool,
    alive: [AtomicU32; WORKERS],
}

/// A ring of at most all requests.
#[derive(Debug)]
struct Queue<T> {
    entries: [Option<T>; REQUESTS],
    head: usize,
    len: usize,
}

impl<T: Copy> Queue<T> {
    const fn new() -> Self {
        Self { entries: [None; REQUESTS], head: 0, len: 0 }
    }

    fn push(&mut self, entry: T) {
        assert!(self.len < REQUESTS, "more entries than requests");
        self.entries[(self.head + self.len) % REQUESTS] = Some(entry);
        self.len += 1;
    }

    fn pop(&mut self) -> Option<T> {
        let entry = self.entries[self.head].take()?;
        self.head = (self.head + 1) % REQUESTS;
        self.len -= 1;
        Some(entry)
    }
}

/// preadv2 and pwritev2 on threads of our own.
#[derive(Debug)]
pub(crate) struct ThreadEngine {
    shared: &'static Shared,
    workers: Vec<(RawThread, Mapping)>,
}

impl ThreadEngine {
    /// Start the workers. They use the descriptor table of the calling thread.
    pub(crate) fn new() -> Result<Self, Errno> {
        let shared: &'static Shared = Box::leak(Box::new(Shared {
            jobs: Mutex::new(Queue::new()),
            results: Mutex::new(Queue::new()),
            submitted: AtomicU32::new(0),
            event: fd::eventfd(0)?,
            is_over: AtomicBool::new(false),
            alive: [const { AtomicU32::new(0) }; WORKERS],
        }));
        let mut engine = Self { shared, workers: Vec::with_capacity(WORKERS) };
        for alive in &shared.alive {
            let stack = own::map(STACK_BYTES, true)?;
            let arg = std::ptr::from_ref(shared).cast_mut().cast::<u8>();
            // SAFETY: the stack is kept until the worker has ended; `work` keeps to system calls and the shared tables.
            let worker = unsafe { thread::spawn(stack.range(), alive, Table::Shared, work, arg) }?;
            engine.workers.push((worker, stack));
        }
        Ok(engine)
    }
}

impl Drop for ThreadEngine {
    /// The workers end, and with them all that they share.
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        self.shared.submitted.fetch_add(1, Ordering::Release);
        futex::wake(&self.shared.submitted, u32::MAX, Scope::Private);
        for (worker, stack) in self.workers.drain(..) {
            worker.join();
            own::forget(stack.range());
        }
        let shared = std::ptr::from_ref(self.shared).cast_mut();
        // SAFETY: `new` leaked the box; the workers have ended, and the engine is being dropped.
        drop(unsafe { Box::from_raw(shared) });
    }
}

extern "C" fn work(arg: *mut u8) -> ! {
    // SAFETY: `new` passes a reference that outlives the worker.
    let shared = unsafe { &*arg.cast_const().cast::<Shared>() };
    thread::set_name(c"pagetide-io");
    loop {
        let seen = shared.submitted.load(Ordering::Acquire);
        let job = shared.jobs.lock("next job").pop();
        let Some(job) = job else {
            if shared.is_over.load(Ordering::Acquire) {
                thread::exit_thread();
            }
            futex::wait(&shared.submitted, seen, None, Scope::Private);
            continue;
        };
        // SAFETY: the engine hands a request out once and leaves it alone until its result is taken.
        let request = unsafe { &*job.request };
        // SAFETY: the swap file stays open while its store lives, which outlasts its requests.
        let file = std::mem::ManuallyDrop::new(unsafe { Fd::from_raw(request.fd) });
        let result = match request.direction {
            Direction::Read => file::preadv(&file, request.pieces(), request.offset(), 0),
            Direction::Write => file::pwritev(&file, request.pieces(), request.offset(), 0),
        };
        shared.results.lock("a result").push((job.token, result));
        let told = file::signal_event(&shared.event, 1);
        debug_assert!(told.is_ok(), "the engine's eventfd is open: {told:?}");
    }
}

impl Engine for ThreadEngine {
    fn submit(&mut self, token: u32, request: &Request) {
        self.shared.jobs.lock("a new job").push(Job { token, request });
        self.shared.submitted.fetch_add(1, Ordering::Release);
        futex::wake(&self.shared.submitted, 1, Scope::Private);
    }

    fn flush(&mut self) {}

    fn reap(&mut self, done: &mut dyn FnMut(u32, Result<usize, Errno>) -> bool) {
        // Taken before the results: a result that comes in between signals again.
        let _ = file::take_event(&self.shared.event);
        loop {
            let result = self.shared.results.lock("results").pop();
            let Some((token, result)) = result else { break };
            if !done(token, result) {
                // More are left: make the descriptor readable for the next look.
                let _ = file::signal_event(&self.shared.event, 1);
                break;
            }
        }
    }

    fn event(&self) -> &Fd {
        &self.shared.event
    }

    fn wait(&mut self, watched: [&Fd; WATCHED], timeout_ns: u64) -> [bool; WATCHED] {
        let [first, second] = watched;
        let mut fds = [first, second, &self.shared.event].map(|fd| PollFd::new(fd, events::IN));
        // An interrupted wait is one that saw nothing.
        let _ = fd::poll(&mut fds, Some(timeout_ns));
        [fds[0].seen() != 0, fds[1].seen() != 0]
    }
}
