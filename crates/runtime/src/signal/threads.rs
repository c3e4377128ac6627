//! What each armed thread has in memory of ours: its switch, the stack of its handlers, what it holds, what the program believes of
//! its signals.
//!
//! A call holds the pages that it may touch (`pagetide_sys::sync`), touches them, and is made.
//!
//! Invariants: a block is found by any address in it; blocks are never paged, never unmapped, and inherited by forked children. Only
//! its own thread writes a block, but for its number, which whoever takes it or finds its thread gone changes.

use std::cell::{Cell, UnsafeCell};
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicUsize, Ordering};

use pagetide_sys::dispatch::Switch;
use pagetide_sys::mem::{self, Advice, AnonOptions, ManagedRange, Mapping, PAGE_BYTES, Protection};
use pagetide_sys::seccomp::Leaves;
use pagetide_sys::signal::{AltStack, SignalSet};
use pagetide_sys::sync::{Changing, HeldRuns};
use pagetide_sys::syscalls::Range;
use pagetide_sys::{Errno, signal, thread};

use super::actions::Actions;
use super::faults::{self, Post};
use super::inplace::{self, InPlace};
use super::sites;
use super::waiting::{Slots, Waiting};
use crate::space::held::{HELD, Leading};
use crate::{foothold, limits, own};

/// Of a block: three frames of signals, and the deepest of our handlers, which serves a fault, take half.
const BLOCK_BYTES: usize = 128 << 10;
/// Armed threads at most.
const BLOCKS: usize = 1024;
/// So many blocks are one mapping to others: who looks at a thread from outside takes what lies between its stack pointer and the end of
/// the mapping for its stack, as crash reporters do. Each mapping more is one that the program does not have.
const BLOCKS_IN_SIGHT: usize = 8;
/// Ranges that one call may name; further ones are held together with what lies between them and the nearest.
const RANGES: usize = 1024;
/// Bytes of the kernel's `siginfo_t`.
pub(super) const INFO_WORDS: usize = 16;

/// Nobody has the block.
const FREE: i32 = 0;
/// It is taken, for a thread that does not run yet.
const TAKEN: i32 = -1;

/// Address of the first block; 0: there are none.
static FIRST: AtomicUsize = AtomicUsize::new(0);
/// Start and length of the mapping that they are in.
static MAPPED: (AtomicUsize, AtomicUsize) = (AtomicUsize::new(0), AtomicUsize::new(0));
/// Blocks that were ever taken: those behind them are free.
static USED: AtomicUsize = AtomicUsize::new(0);

/// A block of one thread; the rest of its bytes, up to the last page of [`BLOCK_BYTES`], is its handlers' stack.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Thread {
    switch: Switch,
    tid: AtomicI32,
    /// It is about to end.
    is_ending: AtomicBool,
    in_place: InPlace,
    /// Its call may change the address space.
    changing: Changing,
    /// What its system call filter leaves to our handlers, as [`Leaves`]; none leaves everything.
    leaves: AtomicU8,
    /// It has one.
    is_filtered: AtomicBool,
    /// It has a control block of its own.
    has_control_block: Cell<bool>,
    /// It is a process of its own, which may end while others go on.
    is_apart: AtomicBool,
    /// It has asked to be traced by its parent.
    pub(super) is_to_be_traced: Cell<bool>,
    /// Of [`super::OURS`]: what the program believes to be blocked.
    hidden: Cell<u64>,
    alternate: Cell<AltStack>,
    /// What came with the signal that the switch notes.
    noted: UnsafeCell<[u64; INFO_WORDS]>,
    /// Signals of ours that came while one was noted.
    late: Slots,
    waiting: Waiting,
    actions: Cell<*const Actions>,
    /// A fault that the agent is to see to.
    post: Post,
    /// What is held: few runs at most times, in the block's first page with all that is before them.
    held: HeldRuns<RANGES>,
    /// Of a process that shares our memory until it executes another program.
    pub(super) own_actions: Actions,
}
const _: () = assert!(size_of::<Thread>() <= BLOCK_BYTES / 2);
const _: () = assert!(offset_of!(Thread, held) <= PAGE_BYTES / 2, "a thread that calls needs one page, and its stack");

/// Where a block has what `inplace` uses: pairs of words.
pub(super) const HELD_AT: usize = offset_of!(Thread, held) + HeldRuns::<RANGES>::RUNS_AT;
/// As [`HELD_AT`].
pub(super) const HELD_COUNT_AT: usize = offset_of!(Thread, held) + HeldRuns::<RANGES>::COUNT_AT;
/// As [`HELD_AT`].
pub(super) const IN_PLACE_AT: usize = offset_of!(Thread, in_place);

/// Make the blocks. Again: does nothing.
pub(crate) fn prepare() -> Result<(), Errno> {
    if FIRST.load(Ordering::Acquire) != 0 {
        return Ok(());
    }
    let bytes = (BLOCKS + 1) * BLOCK_BYTES;
    limits::make_room(bytes);
    let options = AnonOptions { protection: Protection::ReadWrite, populate: false, inherit: true };
    let range = Mapping::anonymous(bytes, options)?.into_range();
    own::note(range);
    inplace::prepare();
    sites::change();
    MAPPED.0.store(range.start(), Ordering::Relaxed);
    MAPPED.1.store(range.len(), Ordering::Relaxed);
    let first = range.start().next_multiple_of(BLOCK_BYTES);
    for last in (BLOCKS_IN_SIGHT..=BLOCKS).step_by(BLOCKS_IN_SIGHT) {
        // The block's last page, which nobody uses. Where the program has used up all mappings more is in sight.
        let _ = mem::protect(
            range.part(first + last * BLOCK_BYTES - PAGE_BYTES - range.start(), PAGE_BYTES),
            Protection::None,
        );
    }
    FIRST.store(first, Ordering::Release);
    Ok(())
}

/// In a forked child: the blocks are its own.
pub(crate) fn note() {
    if let Some(blocks) = mapped() {
        own::note(blocks);
    }
    sites::note();
}

/// The mapping that the blocks are in.
fn mapped() -> Option<ManagedRange> {
    let [start, len] = [&MAPPED.0, &MAPPED.1].map(|word| word.load(Ordering::Relaxed));
    // SAFETY: mapped for ever, and nothing else.
    (len != 0).then(|| unsafe { ManagedRange::new(start, len) })
}

/// In a forked child: of all threads there is just this one, and no signal waits for it.
pub(super) fn begin_copy(own: &Thread) {
    for block in all() {
        block.changing.end();
        block.post.clear();
        if std::ptr::eq(block, own) {
            block.late.clear();
            block.waiting.clear();
            block.switch.take_noted();
            block.set_tid(thread::gettid());
        } else {
            block.give_back();
        }
    }
    faults::forget();
}

/// What the threads of these blocks were about is in core files from now on: their handlers' frames, and the program's registers in them.
fn show(first: usize) {
    let at = FIRST.load(Ordering::Acquire) + first * BLOCK_BYTES;
    if let Some(all) = mapped() {
        let blocks = all.part(at - all.start(), BLOCKS_IN_SIGHT * BLOCK_BYTES - PAGE_BYTES);
        // ENOMEM where the program has used up all mappings: its cores have no frames of ours then.
        let _ = mem::advise(blocks, Advice::DoDump);
    }
}

fn at(index: usize) -> &'static Thread {
    let address = FIRST.load(Ordering::Acquire) + index * BLOCK_BYTES;
    // SAFETY: a block: mapped for ever, zero at first, which is a valid value, and changed by its thread through cells only.
    unsafe { &*std::ptr::with_exposed_provenance::<Thread>(address) }
}

/// The blocks that were ever taken.
pub(crate) fn all() -> impl Iterator<Item = &'static Thread> {
    (0..USED.load(Ordering::Acquire)).map(at)
}

/// What holds for the first of `pages` pages from `vpn` on, and for how many.
pub(crate) fn leading(vpn: u64, pages: u32) -> Leading {
    let end = vpn + u64::from(pages);
    let mut free_to = end;
    for (from, to) in all().flat_map(|block| block.held.iter()) {
        if from <= vpn && vpn < to {
            let held = u32::try_from(to.min(end) - vpn).expect("at most pages");
            return Leading::Held(held);
        }
        if vpn < from {
            free_to = free_to.min(from);
        }
    }
    Leading::Free(u32::try_from(free_to - vpn).expect("at most pages"))
}

/// Pages that calls hold which are under way; those that several name count for each.
pub(crate) fn held_pages() -> u64 {
    all().flat_map(|block| block.held.iter()).fold(0, |pages, (from, to)| pages.saturating_add(to.saturating_sub(from)))
}

impl Thread {
    /// The block that an address lies in.
    pub(super) fn of(address: u64) -> Option<&'static Self> {
        let first = FIRST.load(Ordering::Acquire);
        let offset = usize::try_from(address).ok()?.checked_sub(first)?;
        (first != 0 && offset < BLOCKS * BLOCK_BYTES).then(|| at(offset / BLOCK_BYTES))
    }

    /// A block for a thread that is about to exist.
    pub(super) fn take() -> Option<&'static Self> {
        let is_taken =
            |block: &Self| block.tid.compare_exchange(FREE, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if let Some(block) = all().find(|block| is_taken(block) || block.take_over()) {
            return Some(block);
        }
        loop {
            let next = USED.load(Ordering::Acquire);
            if next >= BLOCKS {
                return None;
            }
            if is_taken(at(next)) {
                if next.is_multiple_of(BLOCKS_IN_SIGHT) {
                    show(next);
                }
                USED.fetch_max(next + 1, Ordering::AcqRel);
                return Some(at(next));
            }
            USED.fetch_max(next + 1, Ordering::AcqRel);
        }
    }

    /// Take the block of a thread that has ended.
    fn take_over(&self) -> bool {
        let tid = self.tid.load(Ordering::Acquire);
        let is_over = tid > 0
            && self.is_ending.load(Ordering::Acquire)
            && signal::kill_thread(thread::getpid(), tid, 0) == Err(Errno::ESRCH);
        is_over && self.tid.compare_exchange(tid, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Nobody's again.
    pub(super) fn give_back(&self) {
        self.release();
        self.changing.end();
        self.tid.store(FREE, Ordering::Release);
    }

    /// It is this thread's, which does nothing of its own meanwhile.
    pub(super) fn begin(&self, tid: i32, hidden: SignalSet, alternate: AltStack, actions: *const Actions) {
        self.release();
        self.changing.end();
        self.post.clear();
        self.leaves.store(Leaves::Everything as u8, Ordering::Relaxed);
        self.is_filtered.store(false, Ordering::Relaxed);
        self.set_apart(false);
        self.is_to_be_traced.set(false);
        self.switch.allow();
        self.switch.take_noted();
        self.is_ending.store(false, Ordering::Relaxed);
        self.hidden.set(hidden.0);
        self.late.clear();
        self.waiting.clear();
        self.alternate.set(alternate);
        self.actions.set(actions);
        self.tid.store(tid, Ordering::Release);
    }

    pub(super) fn is_of(&self, tid: i32) -> bool {
        self.tid.load(Ordering::Acquire) == tid
    }

    pub(super) fn tid(&self) -> i32 {
        self.tid.load(Ordering::Acquire)
    }

    pub(super) const fn post(&self) -> &Post {
        &self.post
    }

    pub(super) fn set_tid(&self, tid: i32) {
        self.tid.store(tid, Ordering::Release);
    }

    pub(super) const fn changing(&self) -> &Changing {
        &self.changing
    }

    /// It has one filter more.
    pub(super) fn filter(&self, leaves: Leaves) {
        self.leaves.fetch_max(leaves as u8, Ordering::Relaxed);
        self.is_filtered.store(true, Ordering::Relaxed);
        foothold::note_filter();
    }

    /// As the thread that makes it.
    pub(super) fn inherit_filters(&self, maker: &Self) {
        self.leaves.store(maker.leaves.load(Ordering::Relaxed), Ordering::Relaxed);
        self.is_filtered.store(maker.is_filtered(), Ordering::Relaxed);
    }

    pub(super) fn set_apart(&self, is_apart: bool) {
        self.is_apart.store(is_apart, Ordering::Relaxed);
    }

    pub(super) fn is_apart(&self) -> bool {
        self.is_apart.load(Ordering::Relaxed)
    }

    pub(super) fn is_filtered(&self) -> bool {
        self.is_filtered.load(Ordering::Relaxed)
    }

    /// Its filter denies what a new thread does first.
    pub(super) fn is_without_threads(&self) -> bool {
        self.leaves.load(Ordering::Relaxed) >= Leaves::NoThreads as u8
    }

    /// It may do nothing but read, write and return.
    pub(super) fn is_confined(&self) -> bool {
        self.leaves.load(Ordering::Relaxed) >= Leaves::Little as u8
    }

    pub(super) fn set_control_block(&self, is_own: bool) {
        self.has_control_block.set(is_own);
    }

    pub(super) const fn has_control_block(&self) -> bool {
        self.has_control_block.get()
    }

    pub(super) fn ends(&self) {
        self.is_ending.store(true, Ordering::Release);
    }

    /// True if it may make calls with the same actions as `other`.
    pub(super) fn runs_with(&self, other: &Self) -> bool {
        self.tid.load(Ordering::Acquire) != FREE
            && !self.is_ending.load(Ordering::Acquire)
            && std::ptr::eq(self.actions_place(), other.actions_place())
    }

    pub(super) const fn switch(&self) -> &Switch {
        &self.switch
    }

    /// Address of the block's first byte.
    pub(super) fn start(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// The address behind the handlers' stack.
    pub(super) fn top(&self) -> usize {
        self.start() + BLOCK_BYTES - PAGE_BYTES
    }

    /// The stack of the handlers, as the kernel has to know it.
    pub(super) fn stack(&self) -> AltStack {
        let from = (self.start() + size_of::<Self>()).next_multiple_of(64);
        // SAFETY: a part of the block that nothing else uses.
        AltStack::new(unsafe { ManagedRange::new(from, self.top() - from) })
    }

    /// True for an address in the block.
    pub(super) fn contains(&self, address: u64) -> bool {
        (self.start() as u64..self.top() as u64).contains(&address)
    }

    pub(super) const fn hidden(&self) -> &Cell<u64> {
        &self.hidden
    }

    pub(super) const fn alternate(&self) -> &Cell<AltStack> {
        &self.alternate
    }

    pub(super) const fn late(&self) -> &Slots {
        &self.late
    }

    pub(super) const fn waiting(&self) -> &Waiting {
        &self.waiting
    }

    /// What the program wants to be done on signals.
    pub(super) fn actions(&self) -> &Actions {
        // SAFETY: set when the thread was armed; the process's, or those of this block.
        unsafe { &*self.actions.get() }
    }

    pub(super) const fn actions_place(&self) -> *const Actions {
        self.actions.get()
    }

    /// Room for what came with the noted signal.
    pub(super) const fn noted(&self) -> *mut [u64; INFO_WORDS] {
        self.noted.get()
    }

    pub(super) const fn in_place(&self) -> &InPlace {
        &self.in_place
    }

    /// The pages of a range stay from now on until [`Thread::release`]; they may be out at this moment.
    pub(super) fn hold(&self, range: Range) {
        let from = (range.start / PAGE_BYTES) as u64;
        let to = (range.start.saturating_add(range.len).div_ceil(PAGE_BYTES)) as u64;
        let pause = if self.is_confined() { std::hint::spin_loop } else { thread::yield_now };
        self.held.hold((from, to), HELD.pages(), pause);
    }

    /// What was held may go.
    pub(super) fn release(&self) {
        self.held.release();
    }
}
