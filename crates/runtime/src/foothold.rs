//! What the preloaded object offers the supervisor: a few words in the object's own memory, found from outside.
//!
//! A process begins without anything of ours but these words: no thread, no descriptor, no name. The supervisor finds them in the
//! mapping of the object by their magic, reads them with process_vm_readv, and when the memory is to be managed it makes one of the
//! process's threads run `enter` for a moment, which starts the agent (see `supervise::start`). So a process that never pages
//! has no thread of ours, and it does not matter what it does to its descriptors, environment, namespaces and credentials before.
//!
//! *The bell*: a thread that maps more than the run has left, by the supervisor's last word, waits here until its memory is managed or
//! found to fit: the supervisor looks at a native process every few milliseconds, and a thread fills 10 MiB in each of them.
//!
//! Any word may be written by the program, which is not trusted: `View::decode` checks what has a range, and the addresses matter
//! to the process itself only.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use pagetide_sys::futex::{self, Scope};
use pagetide_sys::signal::SignalSet;
use pagetide_sys::thread;

use crate::agent::end_with_run;
use crate::lifeline;
use crate::space::PAGE_SHIFT;

/// A mapping of fewer bytes is not worth a look.
const BYTES_MIN: usize = 1 << 20;
/// Who waits looks again after this time.
const WAIT_NS: u64 = 500_000;
/// After so many waits (2 s) nobody listens: the thread goes on.
const WAITS_MAX: u32 = 4000;
/// The same (20 ms) where nobody but root may look into the process.
const WAITS_MAX_IN_PRIVATE: u32 = 40;
/// Bytes that were mapped since the agent was asked to look.
static UNSEEN: AtomicUsize = AtomicUsize::new(0);
/// They may be this part of the budget, beside `BYTES_MIN`.
const UNSEEN_PART: u64 = 32;
/// Looks that the agent was asked for, and how many of these requests it has met: who comes while it looks waits for another look.
static ASKED: AtomicU32 = AtomicU32::new(0);
static LOOKED: AtomicU32 = AtomicU32::new(0);
static IS_FILTERED: AtomicBool = AtomicBool::new(false);
/// After so many (20 ms) who waits for the agent goes on: it looks anyway, and may have a fork to see to.
const LOOKS_MAX: u32 = 40;

const MAGIC: [u64; 3] = [0x7065_6761_7469_6465, 0x666f_6f74_686f_6c64, 0x9e37_79b9_7f4a_7c15];
/// Of the words' layout and of what the commands mean.
const VERSION: u64 = 3;

/// No agent.
pub(crate) const NATIVE: u32 = 1;
/// The agent manages the memory.
pub(crate) const MANAGED: u32 = 2;
/// A forked child of a managed process, which waits for an agent of its own.
pub(crate) const FORKED: u32 = 3;
/// The same, whose memory is complete: it needs no agent.
pub(crate) const COMPLETE: u32 = 4;

/// A copy of an address space that becomes a process of its own.
pub(crate) const BUSY: u32 = 5;

/// Command to `enter`: start the agent.
pub(crate) const START: u32 = 1;
/// Command to `enter`: start the agent with its socket in its own table of descriptors, for a program that may open no more.
pub(crate) const APART: u32 = 3;
/// Command to `enter`: close the two ends of the agent's socket in the program's table.
pub(crate) const CLOSE: u32 = 2;

/// Command to `enter`: arm the thread for signal mode; the upper half says which of [`UNBLOCKED`] the program blocks in it.
pub(crate) const ARM: u32 = 4;

/// Command to `enter`: make the pages of the range in the words anonymous, as `origins::take` says.
pub(crate) const TAKE: u32 = 5;
/// In the bytes of that range, which are whole pages: they may be read only.
pub(crate) const READ_ONLY: usize = 1;

/// Signals that no armed thread blocks in the kernel: SIGBUS, SIGSEGV, SIGSYS.
pub(crate) const UNBLOCKED: SignalSet = SignalSet(1 << 6 | 1 << 10 | 1 << 30);

/// The words.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Foothold {
    magic: [u64; 3],
    version: u64,
    /// Its own address once the object is loaded: bytes that look like it elsewhere are none.
    address: AtomicU64,
    /// Address of `enter`, and the end of its stack.
    enter: AtomicU64,
    stack: AtomicU64,
    /// The number of the last command that was run, and its answer.
    done: AtomicU64,
    answer: AtomicU64,
    /// Pages that the run has left, as the supervisor saw it last.
    left_pages: AtomicU64,
    /// Pages that a thread has mapped and waits with; 0: none waits.
    wanted_pages: AtomicU64,
    state: AtomicU32,
    /// The process whose words these are: a copy of the address space that was not announced has its maker's.
    pid: AtomicI32,
    /// Forks so far, as far as libc made them: the supervisor looks for the children.
    forks: AtomicU64,
    /// The run's budget: at load what the environment says, which is what the run began with. The supervisor, or the agent if there is
    /// one, writes what it is now.
    budget_pages: AtomicU64,
    /// The range that the command [`TAKE`] is about: its address, and bytes.
    range: [AtomicU64; 2],
}

/// Bytes of the words.
pub(crate) const BYTES: usize = size_of::<Foothold>();
/// Where the words lie that the supervisor writes.
pub(crate) const LEFT_AT: u64 = std::mem::offset_of!(Foothold, left_pages) as u64;
/// As `LEFT_AT`.
pub(crate) const WANTED_AT: u64 = std::mem::offset_of!(Foothold, wanted_pages) as u64;
/// As `LEFT_AT`.
pub(crate) const STATE_AT: u64 = std::mem::offset_of!(Foothold, state) as u64;
/// As `LEFT_AT`.
pub(crate) const BUDGET_AT: u64 = std::mem::offset_of!(Foothold, budget_pages) as u64;
/// As `LEFT_AT`.
pub(crate) const RANGE_AT: u64 = std::mem::offset_of!(Foothold, range) as u64;

// In the object's initialised data: the search looks there.
static FOOTHOLD: Foothold = Foothold::new();

impl Foothold {
    const fn new() -> Self {
        Self {
            magic: MAGIC,
            version: VERSION,
            address: AtomicU64::new(0),
            enter: AtomicU64::new(0),
            stack: AtomicU64::new(0),
            done: AtomicU64::new(0),
            answer: AtomicU64::new(0),
            left_pages: AtomicU64::new(u64::MAX),
            wanted_pages: AtomicU64::new(0),
            state: AtomicU32::new(NATIVE),
            pid: AtomicI32::new(0),
            forks: AtomicU64::new(0),
            budget_pages: AtomicU64::new(0),
            range: [const { AtomicU64::new(0) }; 2],
        }
    }

    fn answer(&self, ticket: u32, answer: u64) {
        self.answer.store(answer, Ordering::Relaxed);
        self.done.store(u64::from(ticket), Ordering::Release);
    }
}

/// The words as the supervisor reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct View {
    pub(crate) address: u64,
    pub(crate) enter: u64,
    pub(crate) stack: u64,
    pub(crate) done: u64,
    pub(crate) answer: u64,
    pub(crate) left_pages: u64,
    pub(crate) wanted_pages: u64,
    pub(crate) state: u32,
    pub(crate) pid: i32,
    pub(crate) forks: u64,
    pub(crate) budget_pages: u64,
}

impl View {
    /// From bytes at `address` of a process; None if they are no words of this version.
    pub(crate) fn decode(bytes: &[u8], address: u64) -> Option<Self> {
        let word = |index: usize| {
            let bytes = bytes.get(index * 8..index * 8 + 8)?;
            Some(u64::from_ne_bytes(bytes.try_into().expect("eight bytes")))
        };
        let has_magic = MAGIC.iter().enumerate().all(|(index, &magic)| word(index) == Some(magic));
        if bytes.len() < BYTES || !has_magic || word(3) != Some(VERSION) || word(4) != Some(address) {
            return None;
        }
        let last = word(11)?.to_ne_bytes();
        Some(Self {
            address,
            enter: word(5)?,
            stack: word(6)?,
            done: word(7)?,
            answer: word(8)?,
            left_pages: word(9)?,
            wanted_pages: word(10)?,
            state: u32::from_ne_bytes(last[..4].try_into().expect("four bytes")),
            pid: i32::from_ne_bytes(last[4..].try_into().expect("four bytes")),
            forks: word(12)?,
            budget_pages: word(13)?,
        })
    }

    /// Where the magic may begin in the object's memory.
    pub(crate) fn offsets(bytes: &[u8]) -> impl Iterator<Item = usize> {
        let first = MAGIC[0].to_ne_bytes();
        bytes.chunks_exact(8).enumerate().filter(move |(_, word)| *word == first).map(|(index, _)| index * 8)
    }
}
const _: () = assert!(
    BYTES == 16 * 8
        && RANGE_AT == 14 * 8
        && BUDGET_AT == 13 * 8
        && STATE_AT == 11 * 8
        && LEFT_AT == 9 * 8
        && WANTED_AT == 10 * 8
);

/// Who maps more pages than this is told of, in a run of this budget, until the supervisor says otherwise.
pub(crate) const fn left_at_first(budget_pages: u64) -> u64 {
    budget_pages / 8
}

/// The run's budget in pages; 0 if there is no run.
pub(crate) fn budget_pages() -> u64 {
    FOOTHOLD.budget_pages.load(Ordering::Relaxed)
}

/// The run has this budget now.
pub(crate) fn note_budget(pages: u64) {
    FOOTHOLD.budget_pages.store(pages, Ordering::Relaxed);
}

/// At load: publish the words.
pub(crate) fn publish(enter: u64, stack: u64, budget_pages: u64) {
    note_budget(budget_pages);
    FOOTHOLD.enter.store(enter, Ordering::Relaxed);
    FOOTHOLD.stack.store(stack, Ordering::Relaxed);
    FOOTHOLD.left_pages.store(left_at_first(budget_pages), Ordering::Relaxed);
    FOOTHOLD.pid.store(thread::getpid(), Ordering::Relaxed);
    FOOTHOLD.address.store(std::ptr::from_ref(&FOOTHOLD).addr() as u64, Ordering::Release);
}

/// What the command [`TAKE`] is about, as the supervisor has written it: an address, bytes, and whether they may be read only.
pub(crate) fn range() -> (usize, usize, bool) {
    let [start, bytes] = &FOOTHOLD.range;
    let word = |word: &AtomicU64| usize::try_from(word.load(Ordering::Acquire)).expect("addresses are 64 bit");
    let bytes = word(bytes);
    (word(start), bytes & !READ_ONLY, bytes & READ_ONLY != 0)
}

/// A command was run.
pub(crate) fn answer(ticket: u32, answer: u64) {
    FOOTHOLD.answer(ticket, answer);
}

/// A child was forked.
pub(crate) fn count_fork() {
    FOOTHOLD.forks.fetch_add(1, Ordering::Relaxed);
}

/// The process that the words are of.
pub(crate) fn owner() -> i32 {
    FOOTHOLD.pid.load(Ordering::Acquire)
}

/// In a copy of the address space: it begins anew, in this state, after `reset`. Once: later calls do nothing.
pub(crate) fn restart(state: u32, reset: impl FnOnce()) {
    if owner() == thread::getpid() {
        return;
    }
    // The supervisor starts no agent in the midst of this. A child that was stopped at birth may be complete already.
    let state = if FOOTHOLD.state.swap(BUSY, Ordering::AcqRel) == COMPLETE { NATIVE } else { state };
    reset();
    FOOTHOLD.wanted_pages.store(0, Ordering::Relaxed);
    ASKED.store(0, Ordering::Relaxed);
    LOOKED.store(0, Ordering::Relaxed);
    // What the supervisor has said last was said to another process, maybe long ago.
    FOOTHOLD.left_pages.store(left_at_first(budget_pages()), Ordering::Relaxed);
    FOOTHOLD.pid.store(thread::getpid(), Ordering::Release);
    FOOTHOLD.state.store(state, Ordering::Release);
}

/// The agent manages the memory: who waits goes on.
pub(crate) fn managed() {
    FOOTHOLD.left_pages.store(left_at_first(budget_pages()), Ordering::Relaxed);
    FOOTHOLD.state.store(MANAGED, Ordering::Release);
    futex::wake(&FOOTHOLD.state, u32::MAX, Scope::Private);
}

/// An agent manages the memory.
pub(crate) fn is_managed() -> bool {
    FOOTHOLD.state.load(Ordering::Acquire) == MANAGED
}

/// A thread of a process whose agent has been started waits until the memory is managed.
pub(crate) fn wait_until_managed() {
    while FOOTHOLD.state.load(Ordering::Acquire) == NATIVE {
        futex::wait(&FOOTHOLD.state, NATIVE, Some(WAIT_NS), Scope::Private);
    }
}

/// A forked child waits until its memory is served by its own agent, or complete, or the run is over. The supervisor cannot wake a thread
/// of another process, so it looks now and then.
pub(crate) fn wait_for_agent() {
    while FOOTHOLD.state.load(Ordering::Acquire) == FORKED {
        futex::wait(&FOOTHOLD.state, FORKED, Some(WAIT_NS), Scope::Private);
        if lifeline::is_cut() {
            end_with_run();
        }
    }
    let _ = FOOTHOLD.state.compare_exchange(COMPLETE, NATIVE, Ordering::AcqRel, Ordering::Relaxed);
}

/// Is memory that is mapped with these arguments of mmap(2) fresh, private, and to be filled? Who reserves addresses does not mean
/// to fill them.
pub(crate) const fn is_fresh(protection: usize, flags: usize) -> bool {
    const WRITE: usize = libc::PROT_WRITE.cast_unsigned() as usize;
    const WANTED: usize = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS).cast_unsigned() as usize;
    const NO_RESERVE: usize = libc::MAP_NORESERVE.cast_unsigned() as usize;
    protection & WRITE != 0 && flags & (WANTED | NO_RESERVE) == WANTED
}

/// The program has mapped so much fresh private memory: manage it before it is filled, if it does not fit into what is left.
/// `wake` wakes the agent of a process that has one; false: it cannot be woken.
pub(crate) fn mapped(bytes: usize, wake: impl FnOnce() -> bool) {
    if IS_FILTERED.load(Ordering::Relaxed) {
        return;
    }
    match FOOTHOLD.state.load(Ordering::Acquire) {
        NATIVE => wait_for_word(bytes),
        MANAGED => wait_until_looked_at(bytes, wake),
        _ => {}
    }
}

/// What is mapped between two words of the supervisor is added up: it may be late on a busy machine.
fn wait_for_word(bytes: usize) {
    let pages = (bytes >> PAGE_SHIFT) as u64;
    let take = |left| if left == u64::MAX { None } else { Some(u64::saturating_sub(left, pages)) };
    match FOOTHOLD.left_pages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) {
        Ok(left) if pages > left => {}
        Ok(_) | Err(_) => return,
    }
    FOOTHOLD.wanted_pages.fetch_max(pages, Ordering::AcqRel);
    for _ in 0..if thread::is_traceable() { WAITS_MAX } else { WAITS_MAX_IN_PRIVATE } {
        if FOOTHOLD.state.load(Ordering::Acquire) != NATIVE || FOOTHOLD.wanted_pages.load(Ordering::Acquire) == 0 {
            return;
        }
        futex::wait(&FOOTHOLD.state, NATIVE, Some(WAIT_NS), Scope::Private);
    }
    // Nobody looks: no more of this.
    FOOTHOLD.left_pages.store(u64::MAX, Ordering::Relaxed);
    FOOTHOLD.wanted_pages.store(0, Ordering::Relaxed);
}

/// An agent looks now and then, late on a busy machine, and fresh memory is filled at some MiB a millisecond. It is asked to look as soon
/// as a part of the budget has been mapped.
fn wait_until_looked_at(bytes: usize, wake: impl FnOnce() -> bool) {
    let unseen = UNSEEN.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
    let most = BYTES_MIN as u64 + (budget_pages() << PAGE_SHIFT) / UNSEEN_PART;
    if (unseen as u64) < most {
        return;
    }
    UNSEEN.store(0, Ordering::Relaxed);
    let request = ASKED.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
    if !wake() {
        return;
    }
    for _ in 0..LOOKS_MAX {
        let looked = LOOKED.load(Ordering::Acquire);
        if is_met(request, looked) {
            return;
        }
        futex::wait(&LOOKED, looked, Some(WAIT_NS), Scope::Private);
    }
}

/// Is this request among the first so many? Both count round.
const fn is_met(request: u32, looked: u32) -> bool {
    looked.wrapping_sub(request) < 1 << 31
}

/// The program has a system call filter, which may end a thread that asks or waits: none does any more.
pub(crate) fn note_filter() {
    IS_FILTERED.store(true, Ordering::Relaxed);
}

/// In the agent: so many looks were asked for.
pub(crate) fn asked() -> u32 {
    ASKED.load(Ordering::Acquire)
}

/// In the agent: a look was asked for and has not ended.
pub(crate) fn is_awaited() -> bool {
    asked() != LOOKED.load(Ordering::Relaxed)
}

/// In the agent: a look has ended that began when so many were asked for.
pub(crate) fn looked(asked: u32) {
    if LOOKED.swap(asked, Ordering::Release) != asked {
        futex::wake(&LOOKED, u32::MAX, Scope::Private);
    }
}

/// Words for tests, so many words behind the beginning of a cache line.
#[cfg(test)]
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Shifted<const BY: usize> {
    _before: [u64; BY],
    words: Foothold,
}

#[cfg(test)]
impl<const BY: usize> Shifted<BY> {
    pub(crate) fn new() -> Box<Self> {
        let shifted = Box::new(Self { _before: [0; BY], words: Foothold::new() });
        shifted.words.address.store(shifted.address(), Ordering::Relaxed);
        shifted
    }

    pub(crate) fn address(&self) -> u64 {
        std::ptr::from_ref(&self.words).addr() as u64
    }

    pub(crate) fn answer(&self, ticket: u32, answer: u64) {
        self.words.answer(ticket, answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_while_it_looks_waits_for_another_look() {
        let (first, second) = (u32::MAX, 0);
        assert!(is_met(first, u32::MAX) && !is_met(second, u32::MAX), "the second came while it looked");
        assert!(is_met(first, 0) && is_met(second, 0) && !is_met(1, 0));
    }

    #[test]
    fn words_are_known_by_their_magic_version_and_place() {
        let mut bytes = [0u8; BYTES];
        let words = [
            MAGIC[0],
            MAGIC[1],
            MAGIC[2],
            VERSION,
            0x7000,
            1,
            2,
            3,
            4,
            5,
            6,
            u64::from(FORKED) | (42 << 32),
            7,
            8,
            0,
            0,
        ];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        let view = View::decode(&bytes, 0x7000).expect("good words");
        assert_eq!((view.enter, view.stack, view.wanted_pages, view.state, view.pid), (1, 2, 6, FORKED, 42));
        assert_eq!((view.forks, view.budget_pages), (7, 8));
        assert_eq!(View::decode(&bytes, 0x7008), None, "a copy of them elsewhere");
        assert_eq!(View::decode(&bytes[..BYTES - 1], 0x7000), None, "cut");
        assert_eq!(View::offsets(&bytes).collect::<Vec<_>>(), [0]);
        bytes[24] += 1;
        assert_eq!(View::decode(&bytes, 0x7000), None, "another version");
    }
}
