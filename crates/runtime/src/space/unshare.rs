//! Pages that a fork shares cannot be moved (EBUSY) until they are written: this thread makes them private.
//!
//! MADV_POPULATE_WRITE breaks the sharing exactly as a store of the program would, without changing a byte. It may fault (the
//! program may just have discarded the page), and then it waits for the pager - which is why the pager does not do it itself.

use std::sync::atomic::{AtomicU32, Ordering};

use pagetide_sys::futex::{self, Scope};
use pagetide_sys::mem::{self, ManagedRange};
use pagetide_sys::sync::Mutex;
use pagetide_sys::thread::{self, Table};

use crate::credentials::{self, Helper};
use crate::own;

const STACK_BYTES: usize = 64 << 10;
/// Ranges that may wait.
pub(crate) const WAITING_MAX: usize = 256;

#[derive(Debug)]
struct Queue {
    ranges: [Option<ManagedRange>; WAITING_MAX],
    head: usize,
    len: usize,
}

/// What the pager and the thread share; lives as long as the process.
#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    asked: AtomicU32,
    /// Ranges that are done, in the order in which they were asked for; wraps.
    done: AtomicU32,
    alive: AtomicU32,
}

/// Makes pages private, one range after the other.
pub(crate) trait MakePrivate: std::fmt::Debug + Send {
    /// Make these pages private. The caller keeps at most `WAITING_MAX` ranges waiting. False: it cannot be done now (the program has
    /// used up all threads); the pages stay where they are, as others that cannot be moved at the moment.
    fn ask(&mut self, range: ManagedRange) -> bool;
    /// How many ranges are done, in all; wraps.
    fn done(&self) -> u32;
}

/// The pager's end.
#[derive(Debug)]
pub(crate) struct Unsharer {
    /// None until a page is to be made private that a fork shares: few programs need it.
    shared: Option<&'static Shared>,
    /// After a refusal: so many asks pass before the next try.
    patience: u32,
}

/// Asks that are turned away between two tries to start the thread.
const PATIENCE: u32 = 1024;

impl Unsharer {
    /// No thread yet.
    pub(crate) const fn new() -> Self {
        Self { shared: None, patience: 0 }
    }

    fn start(&mut self) -> Option<&'static Shared> {
        if self.patience > 0 {
            self.patience -= 1;
            return None;
        }
        self.patience = PATIENCE;
        let stack = own::map(STACK_BYTES, true).ok()?;
        let shared: &'static Shared = Box::leak(Box::new(Shared {
            queue: Mutex::new(Queue { ranges: [None; WAITING_MAX], head: 0, len: 0 }),
            asked: AtomicU32::new(0),
            done: AtomicU32::new(0),
            alive: AtomicU32::new(0),
        }));
        let arg = std::ptr::from_ref(shared).cast_mut().cast::<u8>();
        let range = stack.range();
        // SAFETY: the stack is the thread's for ever; `work` keeps to system calls and the shared queue.
        match unsafe { thread::spawn(range, &shared.alive, Table::Shared, work, arg) } {
            Ok(_) => {
                let _ = stack.into_range();
                self.shared = Some(shared);
                self.shared
            }
            Err(_) => {
                own::forget(range);
                None
            }
        }
    }
}

impl MakePrivate for Unsharer {
    fn ask(&mut self, range: ManagedRange) -> bool {
        let Some(shared) = self.shared.or_else(|| self.start()) else { return false };
        let mut queue = shared.queue.lock("a range to make private");
        assert!(queue.len < WAITING_MAX, "more than {WAITING_MAX} ranges wait to be made private");
        let place = (queue.head + queue.len) % WAITING_MAX;
        queue.ranges[place] = Some(range);
        queue.len += 1;
        drop(queue);
        shared.asked.fetch_add(1, Ordering::Release);
        futex::wake(&shared.asked, 1, Scope::Private);
        true
    }

    fn done(&self) -> u32 {
        self.shared.map_or(0, |shared| shared.done.load(Ordering::Acquire))
    }
}

extern "C" fn work(arg: *mut u8) -> ! {
    // SAFETY: `start` passes a reference that lives for ever.
    let shared = unsafe { &*arg.cast_const().cast::<Shared>() };
    thread::set_name(c"pagetide-cow");
    credentials::begin();
    let helper = Helper::begin(&shared.asked);
    loop {
        let asked = shared.asked.load(Ordering::Acquire);
        let mut queue = shared.queue.lock("the next range");
        let head = queue.head;
        let Some(range) = queue.ranges[head].take() else {
            drop(queue);
            helper.follow();
            futex::wait(&shared.asked, asked, None, Scope::Private);
            continue;
        };
        queue.head = (head + 1) % WAITING_MAX;
        queue.len -= 1;
        drop(queue);
        // An error says that the mapping is gone or may not be written: the move that follows finds out which.
        let _ = mem::advise(range, mem::Advice::PopulateWrite);
        shared.done.fetch_add(1, Ordering::Release);
    }
}
