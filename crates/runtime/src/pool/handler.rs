//! The SIGBUS handler, and the table that tells whose an address is.
//!
//! It runs on the stack of the faulting thread, with all signals blocked, and makes system calls only: it may interrupt any
//! code, malloc among it. A SIGBUS that is not about a region goes to the handler that was there before, or ends the process
//! as if there were none.
//!
//! Invariants: `TABLE` is sorted by address; it is changed with signals blocked.

use pagetide_core::types::Access;
use pagetide_sys::Errno;
use pagetide_sys::mem::ManagedRange;
use pagetide_sys::signal::{self, Action, SigInfo, SignalSet, number};
use pagetide_sys::stderr;
use pagetide_sys::sync::Mutex;
use pagetide_sys::text::Text;
use pagetide_sys::thread;

use super::serve::Answer;
use super::{Shared, with_signals_blocked};

/// Regions of a process at most.
pub(super) const REGIONS: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct Entry {
    start: usize,
    end: usize,
    shared: *const Shared,
}

#[derive(Debug)]
struct Table {
    entries: [Entry; REGIONS],
    len: usize,
}

// SAFETY: the pointers are to values that are shared between threads, and stay while their entry is there.
unsafe impl Send for Table {}

const NO_ENTRY: Entry = Entry { start: 0, end: 0, shared: std::ptr::null() };
static TABLE: Mutex<Table> = Mutex::new(Table { entries: [NO_ENTRY; REGIONS], len: 0 });
/// The action that was there before ours.
static PREVIOUS: Mutex<Option<Action>> = Mutex::new(None);

/// Catch SIGBUS, once in a process.
pub(super) fn install() -> Result<(), Errno> {
    with_signals_blocked(|| {
        let mut previous = PREVIOUS.lock("install");
        if previous.is_none() {
            let ours = Action::run(on_sigbus, 0, SignalSet::ALL);
            // SAFETY: the handler keeps to system calls and our own tables, and hands on what is not its own.
            *previous = Some(unsafe { signal::action(number::BUS, Some(&ours)) }?);
        }
        Ok(())
    })
}

/// Faults in `range` are `shared`'s from now on. False: the table is full.
pub(super) fn add(range: ManagedRange, shared: *const Shared) -> bool {
    with_signals_blocked(|| {
        let mut table = TABLE.lock("a new region");
        let len = table.len;
        if len == REGIONS {
            return false;
        }
        let index = table.entries[..len].partition_point(|entry| entry.start < range.start());
        table.entries.copy_within(index..len, index + 1);
        table.entries[index] = Entry { start: range.start(), end: range.end(), shared };
        table.len += 1;
        true
    })
}

/// They are nobody's from now on.
pub(super) fn remove(range: ManagedRange) {
    with_signals_blocked(|| {
        let mut table = TABLE.lock("a region ends");
        let len = table.len;
        let index = table.entries[..len].partition_point(|entry| entry.start < range.start());
        assert!(index < len && table.entries[index].start == range.start(), "every region is in the table");
        table.entries.copy_within(index + 1..len, index);
        table.len -= 1;
    });
}

fn find(address: usize) -> Option<*const Shared> {
    let table = TABLE.lock("a fault");
    let entries = &table.entries[..table.len];
    let index = entries.partition_point(|entry| entry.end <= address);
    entries.get(index).filter(|entry| entry.start <= address).map(|entry| entry.shared)
}

unsafe extern "C" fn on_sigbus(signal: i32, info: *mut SigInfo, context: *mut u8) {
    // SAFETY: the kernel hands a valid record to a handler with three arguments.
    let &SigInfo { code, addr: address, .. } = unsafe { &*info };
    let pool = if code > 0 { find(address) } else { None };
    if let Some(shared) = pool {
        // SAFETY: the region is in the table, so its pool lives; a region that is dropped while it is used is the caller's
        // error, as with any memory.
        let shared = unsafe { &*shared };
        // SAFETY: the context is that of a fault of this thread.
        let is_write = unsafe { signal::fault_was_write(context) };
        // A write is the safe answer where the machine does not say.
        let access = if is_write == Some(false) { Access::Read } else { Access::Write };
        match shared.serve(address, access) {
            Answer::Mapped => return,
            Answer::Lost => tell(address, "cannot be read back from the swap file (I/O error or checksum mismatch)"),
            Answer::NoSpace => tell(address, "cannot be brought in: the budget is full and so is the swap space"),
            Answer::Unknown => {}
        }
    }
    hand_on(signal.cast_unsigned(), code, info, context);
}

fn tell(address: usize, what: &str) {
    let text = Text::<256>::format(format_args!("pagetide: the page at {address:#x} {what}: SIGBUS\n"));
    stderr::write(text.as_bytes());
}

/// Not ours, or not to be helped: what would have happened without us.
fn hand_on(signal: u32, code: i32, info: *mut SigInfo, context: *mut u8) {
    let previous = (*PREVIOUS.lock("hand on")).unwrap_or(Action::DEFAULT);
    // SAFETY: the action was installed before ours, and is handed what the kernel handed to us.
    if unsafe { signal::run_action(&previous, signal, info, context) } {
        return;
    }
    if code <= 0 && previous.handler == signal::IGNORE {
        return;
    }
    // SAFETY: the default action ends the process, as it would have without us.
    let reset = unsafe { signal::action(signal, Some(&Action::DEFAULT)) };
    debug_assert!(reset.is_ok(), "an action can be set back: {reset:?}");
    if code <= 0 {
        // It was sent, and comes again when this handler returns. A fault happens again by itself.
        let _ = signal::kill_thread(thread::getpid(), thread::gettid(), signal);
    }
}
