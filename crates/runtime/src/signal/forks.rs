//! Copies of the address space: fork(2), and clone(2) without CLONE_VM.
//!
//! The child finds pages missing that are out, and the kernel registers none of its mappings: nobody may touch them before its own agent
//! serves them (`fork::seen`). So the call is made here, and the child waits here.
//!
//! The state is settled before the copy, so nothing may change the address space meanwhile: calls that do say so in their thread's block
//! ([`Change`]), and a fork waits until there are none, and keeps new ones waiting.
//!
//! Who may not be traced (PR_SET_DUMPABLE) may be while its child is made, and the child until it has its agent, which only a tracer starts.
//!
//! No page becomes a huge one from before the copy until the child's memory is registered: where small pages are missing, the kernel
//! would fill zeroes in.

use pagetide_sys::dispatch::{Context, Register, call};
use pagetide_sys::signal::SignalSet;
use pagetide_sys::sync::Stillness;
use pagetide_sys::thread::{HugePages, Traceable};
use pagetide_sys::{Errno, text, thread};

use super::clones::{CLEAR_SIGHAND, FILES, PARENT, Wish};
use super::dispatch::tell_once;
use super::threads::{self, Thread};
use super::{OURS, actions, entry};
use crate::fork::seen;
use crate::{agent_entry, foothold};

/// Of the address space, while a fork is being made.
static STILLNESS: Stillness = Stillness::new();

/// A call that changes the address space is under way.
pub(super) struct Change<'b>(&'b Thread);

impl<'b> Change<'b> {
    /// Returns when no fork is being made.
    pub(super) fn begin(block: &'b Thread) -> Self {
        STILLNESS.begin_change(block.changing());
        Self(block)
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.0.changing().end();
    }
}

/// The address space stays as it is as long as this lives.
struct Still;

impl Still {
    fn begin() -> Self {
        // Each ends by itself: the agent still answers.
        STILLNESS.begin(|| threads::all().map(Thread::changing), thread::yield_now);
        Self
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        STILLNESS.end();
    }
}

/// Make a copy; what its maker, or the copy, is to be answered.
pub(super) fn make(block: &Thread, context: &mut Context, number: u32, wish: &Wish) -> isize {
    if foothold::owner() != thread::getpid() {
        tell_once(number, "is refused (ENOMEM) in a child of vfork that has not executed yet");
        return Errno::ENOMEM.negated();
    }
    if block.is_filtered() {
        tell_once(
            number,
            "is refused (ENOMEM) in a thread with a system call filter: no agent could be started in the child",
        );
        return Errno::ENOMEM.negated();
    }
    if wish.flags & FILES != 0 {
        // Closing them in the child would close them here.
        tell_once(
            number,
            "with CLONE_FILES is refused (ENOMEM): some of the descriptors belong to the memory of one process",
        );
        return Errno::ENOMEM.negated();
    }
    if wish.flags & PARENT != 0 {
        tell_once(number, "with CLONE_PARENT is refused (ENOMEM): a child is known by its parent");
        return Errno::ENOMEM.negated();
    }
    SignalSet(!OURS.0).block();
    let still = Still::begin();
    let huge = HugePages::forbid();
    let traceable = Traceable::begin();
    let answer = if seen::announce() { copy(block, number, wish) } else { Errno::ENOMEM.negated() };
    drop(still);
    if answer == 0 {
        begin(block, context, wish);
    }
    traceable.end();
    if let Ok(huge) = huge {
        huge.restore();
    }
    if answer != 0 {
        let child = i32::try_from(answer).ok().filter(|&child| child > 0);
        seen::copied(child.unwrap_or(seen::NONE));
    }
    answer
}

/// The call itself, on the stack that there is.
fn copy(block: &Thread, number: u32, wish: &Wish) -> isize {
    let (mut arguments, mut new) = (wish.arguments, wish.new);
    match number {
        super::clones::CLONE => arguments[1] = 0,
        super::clones::CLONE3 => {
            (new[5], new[6]) = (0, 0);
            arguments[0] = new.as_mut_ptr().addr();
        }
        _ => {}
    }
    // Nobody else has the lock at the copy, where it would stay locked.
    block.actions().still(|| {
        // SAFETY: the program's own call; the copy goes on with a copy of this stack.
        unsafe { call(block.switch(), number, &arguments) }
    })
}

/// In the copy, before any code of the program: returns when its memory is served.
fn begin(block: &Thread, context: &mut Context, wish: &Wish) {
    threads::begin_copy(block);
    agent_entry::begin_copy();
    let is_cleared = wish.flags & CLEAR_SIGHAND != 0;
    if is_cleared {
        // Ours as well.
        block.actions().clear();
    }
    let handled = if is_cleared { actions::install_ours() } else { Ok(()) };
    if let Err(errno) = handled.and_then(|()| entry::arm(block)) {
        text::die(format_args!("pagetide: a forked child cannot be armed: {}", errno.name()));
    }
    if wish.stack != 0 {
        context.set(Register::Rsp, wish.stack);
    }
}
