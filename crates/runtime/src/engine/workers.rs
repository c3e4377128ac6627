//! Requests carried out by threads of ours that call preadv2 and pwritev2.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pagetide_sys::Errno;
use pagetide_sys::fd::{self, Fd, PollFd, events};
use pagetide_sys::file;
use pagetide_sys::futex::{self, Scope};
use pagetide_sys::mem::Mapping;
use pagetide_sys::sync::Mutex;
use pagetide_sys::thread::{self, RawThread, Table};

use super::{Job, poll_watched};
use crate::credentials::{self, Helper};
use crate::io::{Engine, REQUESTS, Request, WATCHED};
use crate::own;

/// Threads of the fallback: as many requests are in flight at the device.
const WORKERS: usize = 4;
const STACK_BYTES: usize = 64 << 10;

/// What engine and workers share; lives until the workers have ended.
#[derive(Debug)]
struct Shared {
    jobs: Mutex<Queue<(u32, Job)>>,
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
    entries: Box<[Option<T>]>,
    head: usize,
    len: usize,
}

impl<T: Copy> Queue<T> {
    fn new() -> Self {
        Self { entries: vec![None; REQUESTS].into_boxed_slice(), head: 0, len: 0 }
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
    credentials::begin();
    let helper = Helper::begin(&shared.submitted);
    loop {
        let seen = shared.submitted.load(Ordering::Acquire);
        let job = shared.jobs.lock("next job").pop();
        let Some((token, job)) = job else {
            if shared.is_over.load(Ordering::Acquire) {
                helper.end();
                thread::exit_thread();
            }
            helper.follow();
            futex::wait(&shared.submitted, seen, None, Scope::Private);
            continue;
        };
        shared.results.lock("a result").push((token, job.carry_out()));
        let told = file::signal_event(&shared.event, 1);
        debug_assert!(told.is_ok(), "the engine's eventfd is open: {told:?}");
    }
}

impl Engine for ThreadEngine {
    fn submit(&mut self, token: u32, request: &Request) {
        self.shared.jobs.lock("a new job").push((token, Job::new(request)));
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
        poll_watched(watched, PollFd::new(&self.shared.event, events::IN), timeout_ns)
    }
}
