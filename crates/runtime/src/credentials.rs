//! Our threads are who the program is.
//!
//! The C library changes users and capabilities thread by thread, and does not know ours: a thread of root's would stay in the memory of
//! a program that has given up root, for whoever gains control of that memory. So the preloaded object tells us of each such call, and
//! the caller waits until our threads have followed. What a program changes by its own system call instructions is seen by the
//! agent's looks at the first thread.
//!
//! Invariants: a thread of ours never has a user or a capability that the program's thread which was told of, or seen, lacked;
//! nobody waits for ever: a helper may itself wait for the agent (a page that it touches is out), so it is waited for last and not long.

use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use pagetide_sys::credentials::{self, Credentials};
use pagetide_sys::futex::{self, Scope};
use pagetide_sys::proc;
use pagetide_sys::signal::SignalSet;

/// Threads of ours beside the agent at most.
const HELPERS_MAX: usize = 16;
/// A look of who waits, and how many: 2 s for the agent, which looks every 2 ms at least, 0.2 s for the helpers.
const WAIT_NS: u64 = 200_000;
const WAITS_MAX: u32 = 10_000;
const HELPER_WAITS_MAX: u32 = 1000;
/// Values of `Credentials`.
const WORDS: usize = 9;

/// 1 while a thread of the program waits to be followed: one at a time.
static LOCK: AtomicU32 = AtomicU32::new(0);
/// Whom to follow, in the order of `to_words`.
static WANTED: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// The number of what is wanted, and of what the agent has become.
static ASKED: AtomicU32 = AtomicU32::new(0);
static DONE: AtomicU32 = AtomicU32::new(0);
static HELPERS: [Slot; HELPERS_MAX] =
    [const { Slot { bell: AtomicPtr::new(std::ptr::null_mut()), done: AtomicU32::new(0) } }; HELPERS_MAX];

/// A thread of ours beside the agent.
#[derive(Debug)]
struct Slot {
    /// The word on which it sleeps; a change of its value wakes it for nothing. Null: the slot is free.
    bell: AtomicPtr<AtomicU32>,
    done: AtomicU32,
}

/// In a thread of the program, whose credentials have changed: return when our threads have followed. `is_served`: an agent lives.
pub(crate) fn changed(is_served: impl Fn() -> bool) {
    if !is_served() {
        return;
    }
    // A handler of the program that changes them, too, would wait for us.
    let mask = SignalSet::ALL.block();
    while LOCK.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
        futex::wait(&LOCK, 1, Some(WAIT_NS), Scope::Private);
    }
    if let Ok(own) = Credentials::own() {
        let wanted = publish(&own);
        for _ in 0..WAITS_MAX {
            let done = DONE.load(Ordering::Acquire);
            if done == wanted || !is_served() {
                break;
            }
            futex::wait(&DONE, done, Some(WAIT_NS), Scope::Private);
        }
        for helper in &HELPERS {
            wait_for_helper(helper, wanted);
        }
    }
    LOCK.store(0, Ordering::Release);
    futex::wake(&LOCK, 1, Scope::Private);
    mask.restore();
}

fn wait_for_helper(helper: &Slot, wanted: u32) {
    for _ in 0..HELPER_WAITS_MAX {
        let done = helper.done.load(Ordering::Acquire);
        if helper.bell.load(Ordering::Acquire).is_null() || done == wanted {
            return;
        }
        futex::wait(&helper.done, done, Some(WAIT_NS), Scope::Private);
    }
}

/// Say whom to follow; its number.
fn publish(wanted: &Credentials) -> u32 {
    for (word, value) in WANTED.iter().zip(to_words(wanted)) {
        word.store(value, Ordering::Relaxed);
    }
    ASKED.fetch_add(1, Ordering::AcqRel) + 1
}

/// In the agent, at every turn: follow if it was asked for.
pub(crate) fn follow() {
    let asked = ASKED.load(Ordering::Acquire);
    if DONE.load(Ordering::Relaxed) == asked {
        return;
    }
    become_wanted();
    for helper in &HELPERS {
        let bell = helper.bell.load(Ordering::Acquire);
        if !bell.is_null() {
            // SAFETY: a helper withdraws its word before the word goes, and both are done by threads that the agent starts and joins.
            let bell = unsafe { &*bell };
            bell.fetch_add(1, Ordering::Release);
            futex::wake(bell, u32::MAX, Scope::Private);
        }
    }
    DONE.store(asked, Ordering::Release);
    futex::wake(&DONE, u32::MAX, Scope::Private);
}

/// In the agent, now and then: follow the first thread if it is no longer who it was. `seen` is who it was.
pub(crate) fn follow_first(seen: &mut Option<Credentials>) {
    let Ok(first) = proc::credentials_of_first_thread() else { return };
    let is_changed = seen.replace(first).is_some_and(|before| before != first);
    // Who was told of comes first.
    if is_changed && LOCK.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
        publish(&first);
        follow();
        LOCK.store(0, Ordering::Release);
        futex::wake(&LOCK, 1, Scope::Private);
    }
}

fn become_wanted() {
    let words = WANTED.each_ref().map(|word| word.load(Ordering::Relaxed));
    // A thread that may not become it has given up more before.
    let _ = from_words(words).take();
}

/// A thread of ours beside the agent, as long as this lives.
#[derive(Debug)]
pub(crate) struct Helper(Option<&'static Slot>);

impl Helper {
    /// The calling thread, which sleeps on `bell` alone. Where there are more than `HELPERS_MAX` (a library with many pools, which no
    /// agent serves) it follows nobody.
    pub(crate) fn begin(bell: &AtomicU32) -> Self {
        let bell = std::ptr::from_ref(bell).cast_mut();
        let null = std::ptr::null_mut();
        let free = |slot: &&Slot| slot.bell.compare_exchange(null, bell, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        let slot = HELPERS.iter().find(free);
        let asked = ASKED.load(Ordering::Acquire);
        if let Some(slot) = slot {
            // What was asked for while the thread was made is followed at once.
            slot.done.store(asked.saturating_sub(1), Ordering::Relaxed);
        }
        Self(slot)
    }

    /// Before it sleeps, with the value of the word read before.
    pub(crate) fn follow(&self) {
        let Some(slot) = self.0 else { return };
        let asked = ASKED.load(Ordering::Acquire);
        if slot.done.load(Ordering::Relaxed) != asked {
            become_wanted();
            slot.done.store(asked, Ordering::Release);
            futex::wake(&slot.done, u32::MAX, Scope::Private);
        }
    }

    /// The thread goes.
    pub(crate) fn end(self) {
        if let Some(slot) = self.0 {
            slot.bell.store(std::ptr::null_mut(), Ordering::Release);
        }
    }
}

/// In a copy of the address space: none of our threads is in it, and whoever waited is not either.
pub(crate) fn forget() {
    for helper in &HELPERS {
        helper.bell.store(std::ptr::null_mut(), Ordering::Relaxed);
    }
    DONE.store(ASKED.load(Ordering::Relaxed), Ordering::Relaxed);
    LOCK.store(0, Ordering::Release);
}

/// At the start of a thread of ours: nothing that it might be made to execute gains anything.
pub(crate) fn begin() {
    // Every kernel that is served knows it.
    let _ = credentials::gain_nothing();
}

fn to_words(credentials: &Credentials) -> [u64; WORDS] {
    let [a, b, c] = credentials.users.map(u64::from);
    let [d, e, f] = credentials.groups.map(u64::from);
    let [g, h, i] = credentials.capabilities;
    [a, b, c, d, e, f, g, h, i]
}

fn from_words(words: [u64; WORDS]) -> Credentials {
    let id = |index: usize| u32::try_from(words[index]).expect("it was 32 bits");
    Credentials {
        users: [id(0), id(1), id(2)],
        groups: [id(3), id(4), id(5)],
        capabilities: [words[6], words[7], words[8]],
    }
}
