//! The two engines: io_uring, and threads that call preadv2 and pwritev2 where io_uring is refused (containers).

use std::sync::atomic::{AtomicU32, Ordering};

use pagetide_sys::Errno;
use pagetide_sys::fd::{self, Fd};
use pagetide_sys::file;
use pagetide_sys::futex::{self, Mutex, Scope};
use pagetide_sys::thread::{self, Table};
use pagetide_sys::uring::{Refused, Ring, SetupFlags};

use crate::io::{Direction, Engine, REQUESTS, Request};
use crate::own;

/// io_uring.
#[derive(Debug)]
pub(crate) struct UringEngine {
    ring: Ring,
}

impl UringEngine {
    /// A ring that holds all requests at once.
    pub(crate) fn new() -> Result<Self, Refused> {
        let entries = u32::try_from(REQUESTS).expect("a small constant");
        Ok(Self { ring: Ring::new(entries, entries * 2, SetupFlags::PLAIN)? })
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
        while let Some(completion) = self.ring.next_completion() {
            let token = u32::try_from(completion.user_data).expect("tokens are 32 bit");
            if !done(token, completion.result.map(|bytes| bytes as usize)) {
                break;
            }
        }
    }

    fn wait_fd(&self) -> &Fd {
        self.ring.fd()
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

/// What engine and workers share; lives as long as the process.
#[derive(Debug)]
struct Shared {
    jobs: Mutex<Queue<Job>>,
    results: Mutex<Queue<(u32, Result<usize, Errno>)>>,
    /// Counts submissions; workers sleep on it.
    submitted: AtomicU32,
    event: Fd,
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
}

impl ThreadEngine {
    /// Start the workers. They use the descriptor table of the calling thread.
    pub(crate) fn new() -> Result<Self, Errno> {
        let shared: &'static Shared = Box::leak(Box::new(Shared {
            jobs: Mutex::new(Queue::new()),
            results: Mutex::new(Queue::new()),
            submitted: AtomicU32::new(0),
            event: fd::eventfd(0)?,
            alive: [const { AtomicU32::new(0) }; WORKERS],
        }));
        for alive in &shared.alive {
            let stack = own::map(STACK_BYTES, true)?.into_range();
            let arg = std::ptr::from_ref(shared).cast_mut().cast::<u8>();
            // SAFETY: the stack is ours for ever; `work` keeps to system calls and the shared tables.
            unsafe { thread::spawn(stack, alive, Table::Shared, work, arg) }?;
        }
        Ok(Self { shared })
    }
}

extern "C" fn work(arg: *mut u8) -> ! {
    // SAFETY: `new` passes a reference that lives for ever.
    let shared = unsafe { &*arg.cast_const().cast::<Shared>() };
    thread::set_name(c"pagetide-io");
    loop {
        let seen = shared.submitted.load(Ordering::Acquire);
        let job = shared.jobs.lock("next job").pop();
        let Some(job) = job else {
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

    fn wait_fd(&self) -> &Fd {
        &self.shared.event
    }
}
