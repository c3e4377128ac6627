//! Pages that a fork shares cannot be moved (EBUSY) until they are written: this thread makes them private.
//!
//! MADV_POPULATE_WRITE breaks the sharing exactly as a store of the program would, without changing a byte. It may fault (the
//! program may just have discarded the page), and then it waits for the pager - which is why the pager does not do it itself.

use std::sync::atomic::{AtomicU32, Ordering};

use pagetide_sys::Errno;
use pagetide_sys::futex::{self, Mutex, Scope};
use pagetide_sys::mem::{self, ManagedRange};
use pagetide_sys::thread::{self, Table};

use crate::own;

const STACK_BYTES: usize = 64 << 10;
/// Ranges that may wait; the machine answers further ones as busy.
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

/// The pager's end.
#[derive(Debug)]
pub(crate) struct Unsharer {
    shared: &'static Shared,
}

impl Unsharer {
    /// Start the thread.
    pub(crate) fn start() -> Result<Self, Errno> {
        let shared: &'static Shared = Box::leak(Box::new(Shared {
            queue: Mutex::new(Queue { ranges: [None; WAITING_MAX], head: 0, len: 0 }),
            asked: AtomicU32::new(0),
            done: AtomicU32::new(0),
            alive: AtomicU32::new(0),
        }));
        let stack = own::map(STACK_BYTES, true)?.into_range();
        let arg = std::ptr::from_ref(shared).cast_mut().cast::<u8>();
        // SAFETY: the stack is the thread's for ever; `work` keeps to system calls and the shared queue.
        unsafe { thread::spawn(stack, &shared.alive, Table::Shared, work, arg) }?;
        Ok(Self { shared })
    }

    /// Make these pages private. The caller keeps at most `WAITING_MAX` ranges waiting.
    pub(crate) fn ask(&self, range: ManagedRange) {
        let mut queue = self.shared.queue.lock("a range to make private");
        assert!(queue.len < WAITING_MAX, "more than {WAITING_MAX} ranges wait to be made private");
        let place = (queue.head + queue.len) % WAITING_MAX;
        queue.ranges[place] = Some(range);
        queue.len += 1;
        drop(queue);
        self.shared.asked.fetch_add(1, Ordering::Release);
        futex::wake(&self.shared.asked, 1, Scope::Private);
    }

    /// How many ranges are done, in all; wraps.
    pub(crate) fn done(&self) -> u32 {
        self.shared.done.load(Ordering::Acquire)
    }
}

extern "C" fn work(arg: *mut u8) -> ! {
    // SAFETY: `start` passes a reference that lives for ever.
    let shared = unsafe { &*arg.cast_const().cast::<Shared>() };
    thread::set_name(c"pagetide-cow");
    loop {
        let asked = shared.asked.load(Ordering::Acquire);
        let mut queue = shared.queue.lock("the next range");
        let head = queue.head;
        let Some(range) = queue.ranges[head].take() else {
            drop(queue);
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
