//! New threads and processes: each begins on a block of its own, armed, before any code of the program runs in it.
//!
//! A thread, and a process that shares our memory until it executes another program (`vfork`, `posix_spawn`), returns from its call
//! on another stack, so nothing may be left to return to: it begins in [`begin`], on the stack of its block, and goes on where the
//! program expects it by the frame of a signal that is written there.
//!
//! Copies of the address space are another matter: see `forks`.

use pagetide_sys::dispatch::{Context, Register, copy, vector_bytes};
use pagetide_sys::mem::PAGE_BYTES;
use pagetide_sys::signal::{AltStack, SignalSet};
use pagetide_sys::syscalls::{Direction, Range};
use pagetide_sys::{Errno, thread, word};

use super::dispatch::{bring_in, hold_for_ever, read, tell_once};
use super::threads::Thread;
use super::{actions, entry, forks, inplace};

pub(super) const CLONE: u32 = 56;
const FORK: u32 = 57;
const VFORK: u32 = 58;
pub(super) const CLONE3: u32 = 435;

const SIGCHLD: u64 = 17;
const VM: u64 = 0x100;
pub(super) const FILES: u64 = 0x400;
const SIGHAND: u64 = 0x800;
const IS_VFORK: u64 = 0x4000;
pub(super) const PARENT: u64 = 0x8000;
const THREAD: u64 = 0x1_0000;
const SET_TLS: u64 = 0x8_0000;
pub(super) const CLEAR_SIGHAND: u64 = 0x1_0000_0000;

/// Words of `struct clone_args`.
const NEW_WORDS: usize = 11;
/// Of the frame of a signal: the way back, the context, what came with it.
const FRAME_BYTES: usize = 8 + size_of::<Context>() + 128;

/// What is to be made.
pub(super) struct Wish {
    pub(super) flags: u64,
    /// The stack's end; 0: as the maker's.
    pub(super) stack: u64,
    pub(super) arguments: [usize; 6],
    pub(super) new: [u64; NEW_WORDS],
}

impl Wish {
    fn read(number: u32, mut arguments: [usize; 6]) -> Result<Self, Errno> {
        let [flags, stack, ..] = arguments.map(word::u64_of);
        let mut new = [0_u64; NEW_WORDS];
        let (flags, stack) = match number {
            CLONE => (flags, stack),
            VFORK => (IS_VFORK | VM | SIGCHLD, 0),
            FORK => (SIGCHLD, 0),
            _ => {
                let [place, len, ..] = arguments;
                if len > PAGE_BYTES {
                    return Err(Errno::E2BIG);
                }
                arguments[1] = len.min(size_of_val(&new));
                // As the kernel of words that it does not know: they are 0.
                for at in arguments[1]..len {
                    if read::<u8>(place.saturating_add(at))? != 0 {
                        return Err(Errno::E2BIG);
                    }
                }
                // SAFETY: into our own words.
                if !unsafe { copy(new.as_mut_ptr().addr(), place, arguments[1]) } {
                    return Err(Errno::EFAULT);
                }
                let [flags, _, _, _, _, stack, stack_bytes, ..]: [u64; NEW_WORDS] = new;
                (flags, if stack == 0 { 0 } else { stack.wrapping_add(stack_bytes) })
            }
        };
        Ok(Self { flags, stack, arguments, new })
    }

    /// The list of the numbers that the child is to have in its namespaces.
    fn numbers(&self) -> Range {
        let [.., list, count, _] = self.new;
        Range { start: word::usize_of(list), len: word::usize_of(count.min(32)) * 4, direction: Direction::In }
    }
}

/// clone, clone3, fork and vfork.
pub(super) fn make(block: &Thread, context: &mut Context, number: u32, arguments: [usize; 6]) -> isize {
    let wish = match Wish::read(number, arguments) {
        Ok(wish) => wish,
        Err(errno) => return errno.negated(),
    };
    bring_in(block, wish.numbers());
    if wish.flags & VM == 0 {
        hold_words(number, &wish);
        return forks::make(block, context, number, &wish);
    }
    if wish.flags & (THREAD | IS_VFORK) == 0 {
        tell_once(
            CLONE,
            "of a process that shares memory is refused (EPERM): nobody would serve it once its maker has ended",
        );
        return Errno::EPERM.negated();
    }
    if block.is_without_threads() {
        tell_once(number, "is refused (EPERM): a system call filter denies what a new thread does before it begins");
        return Errno::EPERM.negated();
    }
    let Some(child) = Thread::take() else { return Errno::EAGAIN.negated() };
    // Who shares our control block must not find our block in it: for as long as we wait, or for ever.
    let paused = (wish.flags & SET_TLS == 0).then(inplace::pause);
    let answer = in_our_memory(block, context, number, &wish, child);
    if let Some(paused) = paused
        && (wish.flags & IS_VFORK != 0 || answer < 0)
    {
        inplace::go_on(paused);
    }
    if answer < 0 || wish.flags & IS_VFORK != 0 {
        child.give_back();
    }
    answer
}

fn in_our_memory(block: &Thread, context: &Context, number: u32, wish: &Wish, child: &'static Thread) -> isize {
    let shares_actions = wish.flags & SIGHAND != 0;
    let actions = if shares_actions {
        block.actions_place()
    } else {
        child.own_actions.copy_from(block.actions(), wish.flags & CLEAR_SIGHAND != 0);
        &raw const child.own_actions
    };
    // A new stack of the program's has no alternate one beside it.
    let alternate = if wish.flags & IS_VFORK == 0 { AltStack::none() } else { block.alternate().get() };
    child.begin(TO_COME, SignalSet(block.hidden().get()), alternate, actions);
    child.inherit_filters(block);
    child.set_control_block(wish.flags & SET_TLS != 0);
    child.set_apart(block.is_apart() || wish.flags & THREAD == 0);
    hold_words(number, wish);
    let frame = write_frame(context, wish, child);
    let (from, len) = child.stack().place();
    let mut arguments = wish.arguments;
    let mut new = wish.new;
    let number = match number {
        CLONE3 => {
            new[5] = from as u64;
            new[6] = (frame - 8 - from) as u64;
            arguments[0] = new.as_ptr().addr();
            CLONE3
        }
        VFORK => {
            arguments = [word::usize_of(wish.flags), frame - 8, 0, 0, 0, 0];
            CLONE
        }
        _ => {
            arguments[1] = frame - 8;
            CLONE
        }
    };
    debug_assert!(frame > from && frame < from + len, "the frame is on the stack");
    // Until the child has found itself; the maker's mask comes back as it goes on.
    SignalSet(!super::OURS.0).block();
    // SAFETY: the block and the frame are the child's alone.
    unsafe { entry::clone(&arguments, number, frame, child) }
}

/// What the kernel writes of the child's number, in its maker and in it, now and at its end.
fn hold_words(number: u32, wish: &Wish) {
    const WORDS: u64 = 0x1000 | 0x10_0000 | 0x20_0000 | 0x100_0000;
    let [_, _, parent, child, ..] = wish.arguments;
    if wish.flags & WORDS == 0 {
        return;
    }
    let words = match number {
        CLONE => [parent, child, 0],
        CLONE3 => [1, 2, 3].map(|index| word::usize_of(wish.new[index])),
        _ => [0; 3],
    };
    words.into_iter().for_each(|place| hold_for_ever(place, 4));
}

/// No number yet: the child says its own.
const TO_COME: i32 = -1;

/// The frame by which the child goes on: as its maker, with 0 for an answer, and on its stack. Its address.
fn write_frame(context: &Context, wish: &Wish, child: &Thread) -> usize {
    let place = word::usize_of(context.vector);
    // SAFETY: the kernel's own frame.
    let bytes = if place == 0 { 0 } else { unsafe { vector_bytes(std::ptr::with_exposed_provenance(place)) } };
    let vector = (child.top() - bytes) & !63;
    let frame = ((vector - FRAME_BYTES) & !15) - 8;
    let mut begun = *context;
    begun.set(Register::Rax, 0);
    if wish.stack != 0 {
        begun.set(Register::Rsp, wish.stack);
    }
    begun.stack = child.stack().words();
    if bytes > 0 {
        begun.vector = vector as u64;
        // SAFETY: from the kernel's frame to the child's block, which nobody uses.
        let is_there = unsafe { copy(vector, place, bytes) };
        assert!(is_there, "both are ours");
    }
    // SAFETY: as above.
    let is_there = unsafe { copy(frame + 8, (&raw const begun).addr(), size_of::<Context>()) };
    assert!(is_there, "both are ours");
    frame
}

/// The first code of a new thread or process, with all signals blocked.
pub(super) unsafe extern "C" fn begin(block: *const Thread) {
    // SAFETY: the block that its maker took for it.
    let block = unsafe { &*block };
    block.set_tid(thread::gettid());
    if block.has_control_block() {
        inplace::begin(block);
    }
    // SAFETY: the block is the thread's as long as it lives.
    let stack = unsafe { AltStack::set(Some(&block.stack())) };
    let armed = stack.and_then(|_| entry::arm(block)).and_then(|()| {
        if std::ptr::eq(block.actions_place(), &raw const block.own_actions) { actions::install_ours() } else { Ok(()) }
    });
    if let Err(errno) = armed {
        pagetide_sys::text::die(format_args!("pagetide: a thread cannot be armed: {}", errno.name()));
    }
}
