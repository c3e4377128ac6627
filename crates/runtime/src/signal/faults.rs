//! A thread of the program has touched a page that is missing: SIGBUS.
//!
//! It serves itself (`serve`) where it can. Where it cannot, it posts the fault in its block, rings for the agent and sleeps until that has
//! seen to it. A process that shares our memory without being of our own always posts: it may be killed at any moment, and must
//! have no lock then.
//!
//! Where several threads fault at once (three, or two while a CPU is free), all of them post: each would take the lock twice, and to
//! wait for it costs more (two switches of threads) than what is done under it. The agent takes what was posted together, in one turn and
//! one call to the device.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use pagetide_core::types::{Access, Nanos};
use pagetide_sys::clock;
use pagetide_sys::sync::{Errand, Errands};

use super::threads::{self, Thread};
use crate::pager::Fault;
use crate::serve::{self, Outcome};

/// `BUS_ADRERR`: what a userfaultfd sends for a missing page.
pub(super) const MISSING: i32 = 2;
/// A missing page at an address that the agent does not know may be one that has just become native: it is touched again so often
/// before it is the program's own fault.
const TOUCHES: u32 = 3;
/// Who sleeps looks again after this long.
const LOOK_NS: u64 = 10_000_000;

/// The thread goes on, and touches its page again.
const OURS: u32 = 0;
/// The same, and no memory of ours is there.
const FOREIGN: u32 = 1;

/// Posts that no thread has taken back yet.
static POSTS: Errands = Errands::new();
/// Threads that are in a fault, as far as they could serve it themselves.
static IN_FAULTS: AtomicU32 = AtomicU32::new(0);
/// So many, and all leave their faults to the agent until one finds itself alone: where a CPU is free the agent needs none of theirs, and
/// elsewhere two do better alone.
const MANY: u32 = 3;
const MANY_BESIDE_FREE_CPU: u32 = 2;
static ARE_MANY: AtomicBool = AtomicBool::new(false);

/// What a block has of this.
#[derive(Debug)]
pub(super) struct Post {
    errand: Errand,
    address: AtomicUsize,
    is_write: AtomicBool,
    /// When the agent saw it.
    seen_at: AtomicU64,
    /// The block of whom it wakes once it has its answer, or 0: the agent wakes one of those that it has answered together.
    next: AtomicUsize,
    /// The last address that was foreign, and how often in a row.
    foreign: Cell<(usize, u32)>,
}

impl Post {
    /// Nobody waits with it.
    pub(super) fn clear(&self) {
        self.errand.take_back(&POSTS);
    }
}

/// Bring in what a thread has missed. False: it is not memory of ours.
pub(super) fn serve(block: &Thread, address: usize, access: Access) -> bool {
    if block.is_apart() || block.is_filtered() {
        return post(block, address, access);
    }
    let others = IN_FAULTS.fetch_add(1, Ordering::Relaxed);
    let many = if serve::saw_free_cpu() { MANY_BESIDE_FREE_CPU } else { MANY };
    if others == 0 || others + 1 >= many {
        ARE_MANY.store(others > 0, Ordering::Relaxed);
    }
    let is_left = ARE_MANY.load(Ordering::Relaxed);
    let goes_on = !is_left && serve::fault(address, access) == Outcome::GoOn || post(block, address, access);
    IN_FAULTS.fetch_sub(1, Ordering::Relaxed);
    goes_on
}

/// The same by the agent.
fn post(block: &Thread, address: usize, access: Access) -> bool {
    let post = block.post();
    let is_foreign = leave_to_agent(post, address, access, block.is_confined());
    let (last, count) = post.foreign.get();
    let count = if is_foreign { 1 + if last == address { count } else { 0 } } else { 0 };
    post.foreign.set((address, count));
    count < TOUCHES
}

/// Post the fault. True: nothing of ours is there.
fn leave_to_agent(post: &Post, address: usize, access: Access, is_confined: bool) -> bool {
    post.address.store(address, Ordering::Relaxed);
    post.is_write.store(access == Access::Write, Ordering::Relaxed);
    let is_asleep = post.errand.leave(&POSTS);
    let Some(sleepers) = serve::bell(is_confined) else {
        post.clear();
        return true;
    };
    if is_asleep {
        sleepers.ring();
    }
    if is_confined {
        serve::wait_by_read(|| post.errand.answered().is_some());
    }
    let answer = post.errand.wait(LOOK_NS);
    post.clear();
    wake_block(post.next.swap(0, Ordering::Relaxed));
    answer == FOREIGN
}

/// In the agent: every fault that was posted since the last call.
pub(crate) fn take_posted(mut each: impl FnMut(Fault)) {
    if POSTS.are_seen() {
        return;
    }
    for block in threads::all() {
        let post = block.post();
        if post.errand.see(&POSTS) {
            post.seen_at.store(clock::now(), Ordering::Relaxed);
            let access = if post.is_write.load(Ordering::Relaxed) { Access::Write } else { Access::Read };
            let address = post.address.load(Ordering::Relaxed) as u64;
            each(Fault { address, access, thread: block.tid().cast_unsigned() });
        }
    }
}

/// In the agent: let those go on of which `answer` says, by address and time of being seen, that they were seen to; and whether memory of
/// ours is there. Where no CPU is free each would wait for one before it wakes the next: unless they are to `wake_each_other`, the agent
/// wakes all.
pub(crate) fn answer_posted(wake_each_other: bool, mut answer: impl FnMut(usize, Nanos) -> Option<bool>) {
    if POSTS.are_none() {
        return;
    }
    let mut first = 0;
    for block in threads::all() {
        let post = block.post();
        if !post.errand.is_seen() {
            continue;
        }
        let seen_at = post.seen_at.load(Ordering::Relaxed);
        if let Some(is_ours) = answer(post.address.load(Ordering::Relaxed), seen_at) {
            // Who may be killed at any moment, or may not wake anybody, is woken alone.
            let is_alone = !wake_each_other || block.is_apart() || block.is_confined();
            post.next.store(if is_alone { 0 } else { first }, Ordering::Relaxed);
            post.errand.answer(if is_ours { OURS } else { FOREIGN });
            if block.is_confined() {
                serve::end_read();
            }
            if is_alone {
                post.errand.wake();
            } else {
                first = block.start();
            }
        }
    }
    wake_block(first);
}

/// Who has this block, if it is one, looks for its answer.
fn wake_block(start: usize) {
    if let Some(block) = Thread::of(start as u64) {
        block.post().errand.wake();
    }
}

/// In the agent: a fault was posted since [`take_posted`].
pub(crate) fn has_unseen() -> bool {
    !POSTS.are_seen()
}

/// True while a fault is posted that is not answered.
pub(crate) fn has_posted() -> bool {
    !POSTS.are_none()
}

/// In the agent, which is about to sleep. False: a fault is posted that it has not seen, and it is not rung for.
pub(crate) fn may_sleep() -> bool {
    POSTS.may_sleep()
}

/// In the agent, before it takes what is posted.
pub(crate) fn wake() {
    POSTS.wake();
}

/// In a copy of the address space: its own are none.
pub(super) fn forget() {
    POSTS.forget();
    IN_FAULTS.store(0, Ordering::Relaxed);
    ARE_MANY.store(false, Ordering::Relaxed);
}
