//! The program's signals: its actions, masks and alternate stacks, as it would find them natively.
//!
//! In the kernel every handler of the program is replaced by ours, which runs on our stack. Where a signal interrupts the program, ours
//! writes the frame where the kernel would have written it, and returns into the program's handler; where it interrupts our own code,
//! it is noted, and delivered when that ends. When the program's handler returns, `rt_sigreturn` comes as a call like any other,
//! and the frame is read back.
//!
//! Differences that stay: a handler that interrupts `sigsuspend` or `ppoll` runs with the mask from before the call, not with that of
//! the call; `signalfd` does not see SIGSYS, SIGSEGV and SIGBUS that somebody has sent, nor does a program that is executed, if they
//! were blocked and came before; where further threads run, it finds these three
//! with their default action even if they were ignored.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

use pagetide_core::types::Access;
use pagetide_sys::dispatch::{Context, Register, copy, step_aside, vector_bytes, was_call, was_copy};
use pagetide_sys::signal::{self, Action, AltStack, DEFAULT, IGNORE, SigInfo, SignalSet, action_flags, number};
use pagetide_sys::{Errno, stderr, text, thread};

use super::dispatch::{read, write};
use super::inplace::{self, Found};
use super::threads::{self, INFO_WORDS, Thread};
use super::waiting::{self, code_of};
use super::{OURS, entry, faults, sites, traced};

/// `SIGSYS`
pub(super) const SYS: u32 = 31;
const SIGNALS: usize = 64;
const KILL: u32 = number::KILL;
const STOP: u32 = 19;
const NEVER: SignalSet = SignalSet(SignalSet::one(KILL).0 | SignalSet::one(STOP).0);
/// Room that a function may use below its stack pointer.
const RED_ZONE: u64 = 128;
/// Of a frame: the way back, the context, and what came with the signal.
const FRAME_BYTES: u64 = INFO_AT + (INFO_WORDS as u64) * 8;
const INFO_AT: u64 = 8 + size_of::<Context>() as u64;
/// Flags that are clear where a handler begins: direction, trap, resume.
const HANDLER_CLEARS: u64 = 0x400 | 0x100 | 0x1_0000;
/// `SA_UNSUPPORTED`: a program finds by it that the kernel takes away the flags that it does not know.
const UNKNOWN_FLAG: u64 = 0x400;
/// Smallest alternate stack.
const STACK_MIN: usize = 2048;
/// Illegal instructions, breakpoints and divisions by zero.
const FAULTS: [u32; 3] = [4, TRAP, 8];
/// `SIGTRAP`
pub(super) const TRAP: u32 = 5;
const RESET_HAND: u64 = 0x8000_0000;
const NO_CHILD_STOP: u64 = 1;
const NO_CHILD_WAIT: u64 = 2;
/// `si_code` of SIGSYS for a call that a system call filter has stopped.
const BY_FILTER: i32 = 1;
const AUTO_DISARM: i32 = i32::MIN;

/// What a process wants to be done on each signal.
#[derive(Debug)]
pub(crate) struct Actions {
    is_locked: AtomicBool,
    list: UnsafeCell<[Action; SIGNALS]>,
}

// SAFETY: the list is only used while the lock is held.
unsafe impl Sync for Actions {}

static PROCESS: Actions = Actions::new();
static IS_TAKEN_OVER: AtomicBool = AtomicBool::new(false);

/// The process's actions.
pub(super) fn of_process() -> *const Actions {
    &raw const PROCESS
}

impl Actions {
    const fn new() -> Self {
        Self { is_locked: AtomicBool::new(false), list: UnsafeCell::new([Action::DEFAULT; SIGNALS]) }
    }

    /// No handler of the program runs while the lock is held, so it is held for a moment.
    fn with<R>(&self, use_list: impl FnOnce(&mut [Action; SIGNALS]) -> R) -> R {
        while self.is_locked.swap(true, Ordering::Acquire) {
            std::hint::spin_loop();
        }
        // SAFETY: the lock is held.
        let answer = use_list(unsafe { &mut *self.list.get() });
        self.is_locked.store(false, Ordering::Release);
        answer
    }

    /// Nobody changes them while this runs.
    pub(super) fn still<R>(&self, run: impl FnOnce() -> R) -> R {
        self.with(|_| run())
    }

    fn get(&self, signal: u32) -> Action {
        self.with(|list| list[signal as usize - 1])
    }

    /// As in another process with the same.
    pub(super) fn copy_from(&self, other: &Self, is_cleared: bool) {
        let copied = other.with(|list| *list);
        self.is_locked.store(false, Ordering::Relaxed);
        self.with(|list| *list = copied);
        if is_cleared {
            self.clear();
        }
    }

    /// No signal has a handler, as in a process that is made with CLONE_CLEAR_SIGHAND.
    pub(super) fn clear(&self) {
        self.with(|list| {
            list.iter_mut().filter(|action| action.handler != IGNORE).for_each(|action| *action = Action::DEFAULT);
        });
    }
}

/// What the kernel is to do on a signal whose handler is the program's. Nothing interrupts ours before it has looked: whoever sends
/// faster than one frame is written would fill the stack with them.
fn ours(flags: u64) -> Action {
    let kept = flags & (action_flags::RESTART | NO_CHILD_STOP | NO_CHILD_WAIT);
    Action::run(entry::on_signal, kept | action_flags::ON_STACK, SignalSet::ALL)
}

fn install(signal: u32, action: &Action) -> Result<(), Errno> {
    // SAFETY: our handlers keep to what the module says; default and ignored actions are the program's wish.
    unsafe { signal::action(signal, Some(action)) }.map(|_| ())
}

/// The three signals that must come to us, whatever the program wants.
pub(super) fn install_ours() -> Result<(), Errno> {
    // Calls are told of with the program's own mask: a call that sleeps is to be interrupted. A filter of the program may stop the call
    // that we make. So nothing keeps further ones from interrupting this handler: to block them and let them in again would be a call
    // for each call of the program.
    let flags = action_flags::ON_STACK | action_flags::NO_DEFER;
    install(SYS, &Action::run(entry::on_call, flags, SignalSet::NONE))?;
    install(number::SEGV, &ours(0))?;
    install(number::BUS, &ours(0))
}

/// Those of a fault come to us, too, that have no handler of the program's: the thread is to be traced from the first one on.
pub(super) fn see_faults(block: &Thread) {
    for signal in FAULTS.into_iter().filter(|&signal| block.actions().get(signal).handler == DEFAULT) {
        let _ = install(signal, &ours(0));
    }
}

/// Put our handlers before the program's. No other thread of the program runs. Again: does nothing.
pub(super) fn take_over() -> Result<(), Errno> {
    if IS_TAKEN_OVER.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    for signal in (1..=64).filter(|&signal| signal != KILL && signal != STOP) {
        // SAFETY: only asks.
        let action = unsafe { signal::action(signal, None) }?;
        PROCESS.with(|list| list[signal as usize - 1] = action);
        if !matches!(action.handler, DEFAULT | IGNORE) {
            install(signal, &ours(action.flags))?;
        }
    }
    install_ours()
}

/// As rt_sigaction(2).
pub(super) fn set_action(block: &Thread, [signal, new, old, bytes, ..]: [usize; 6]) -> Result<usize, Errno> {
    let signal = u32::try_from(signal & 0xffff_ffff).unwrap_or(0);
    if bytes != size_of::<SignalSet>() {
        return Err(Errno::EINVAL);
    }
    // An action that cannot be read is told of before a signal that there is not.
    let wanted = if new == 0 { None } else { Some(read::<Action>(new)?) };
    if signal == 0 || signal as usize > SIGNALS || wanted.is_some() && NEVER.has(signal) {
        return Err(Errno::EINVAL);
    }
    let before = block.actions().with(|list| {
        let place = &mut list[signal as usize - 1];
        let before = *place;
        if let Some(mut action) = wanted {
            action.mask.0 &= !NEVER.0;
            action.flags &= !UNKNOWN_FLAG;
            *place = action;
            if !OURS.has(signal) {
                let is_handler = !matches!(action.handler, DEFAULT | IGNORE);
                let set = if is_handler { ours(action.flags) } else { action };
                let installed = install(signal, &set);
                debug_assert!(installed.is_ok(), "the kernel takes an action that it takes natively: {installed:?}");
            }
        }
        before
    });
    if old != 0 {
        write(old, &before)?;
    }
    Ok(0)
}

/// As rt_sigprocmask(2).
pub(super) fn set_mask(
    block: &Thread,
    context: &mut Context,
    [how, new, old, bytes, ..]: [usize; 6],
) -> Result<usize, Errno> {
    if bytes != size_of::<SignalSet>() {
        return Err(Errno::EINVAL);
    }
    let before = mask_of(block, context);
    if new != 0 {
        let set: SignalSet = read(new)?;
        let mask = match how & 0xffff_ffff {
            0 => before.0 | set.0,
            1 => before.0 & !set.0,
            2 => set.0,
            _ => return Err(Errno::EINVAL),
        };
        give_mask(block, context, SignalSet(mask & !NEVER.0));
    }
    if old != 0 {
        write(old, &before)?;
    }
    Ok(0)
}

/// What the program believes to be blocked.
fn mask_of(block: &Thread, context: &Context) -> SignalSet {
    SignalSet(context.mask.0 | block.hidden().get())
}

fn give_mask(block: &Thread, context: &mut Context, mask: SignalSet) {
    block.hidden().set(mask.0 & OURS.0);
    context.mask = SignalSet(mask.0 & !OURS.0);
}

/// The kernel has of our signals what the program believes, as long as this lives: a program that is executed finds them so.
///
/// No other bit of the mask is touched: it is the program's already, or all is blocked because a signal is noted.
pub(super) struct AsBelieved<'b> {
    block: &'b Thread,
    blocked: SignalSet,
    was_blocked: SignalSet,
    has_ignored: bool,
}

impl<'b> AsBelieved<'b> {
    /// Nothing that may be missing is touched while it lives.
    pub(super) fn begin(block: &'b Thread) -> Self {
        let blocked = SignalSet(block.hidden().get());
        let was_blocked = SignalSet(blocked.block().0 & OURS.0);
        SignalSet(OURS.0 & !blocked.0).unblock();
        // Another thread's next call or copy would end the process: there they become default ones.
        let may_ignore = threads::all().all(|thread| std::ptr::eq(thread, block) || !thread.runs_with(block));
        let is_ignored = |signal: &u32| may_ignore && block.actions().get(*signal).handler == IGNORE;
        let mut has_ignored = false;
        for signal in [SYS, number::SEGV, number::BUS].into_iter().filter(is_ignored) {
            has_ignored |= install(signal, &Action { handler: IGNORE, ..Action::DEFAULT }).is_ok();
        }
        Self { block, blocked, was_blocked, has_ignored }
    }
}

impl Drop for AsBelieved<'_> {
    fn drop(&mut self) {
        debug_assert_eq!(self.block.hidden().get(), self.blocked.0, "only the thread itself changes what it believes");
        if self.has_ignored
            && let Err(errno) = install_ours()
        {
            text::die(format_args!("pagetide: the handlers cannot be put back: {}", errno.name()));
        }
        self.was_blocked.block();
        SignalSet(OURS.0 & !self.was_blocked.0).unblock();
    }
}

/// As sigaltstack(2).
pub(super) fn set_stack(block: &Thread, context: &Context, [new, old, ..]: [usize; 6]) -> Result<usize, Errno> {
    let before = block.alternate().get();
    let is_on = is_on(&before, context.get(Register::Rsp));
    let wanted = if new == 0 { None } else { Some(read::<AltStack>(new)?) };
    if let Some(stack) = wanted {
        if is_on {
            return Err(Errno::EPERM);
        }
        if stack.flags() & !(AUTO_DISARM | AltStack::DISABLED | AltStack::ON_STACK) != 0 {
            return Err(Errno::EINVAL);
        }
        if !stack.is_none() && stack.place().1 < STACK_MIN {
            return Err(Errno::ENOMEM);
        }
        block.alternate().set(if stack.is_none() { AltStack::none() } else { stack });
    }
    if old != 0 {
        write(old, &before.told(is_on))?;
    }
    Ok(0)
}

/// True if the stack pointer is in the alternate stack.
fn is_on(stack: &AltStack, pointer: u64) -> bool {
    let (start, len) = stack.place();
    !stack.is_none()
        && stack.flags() & AUTO_DISARM == 0
        && pointer > start as u64
        && pointer - start as u64 <= len as u64
}

/// A signal. The block whose thread is to go on by [`entry`]'s end; null: it returns as any handler does.
///
/// # Safety
/// The arguments are those of a handler of ours, which runs on the stack of a block.
pub(super) unsafe fn on_signal(signal: u32, info: *mut SigInfo, context: *mut Context) -> *const Thread {
    let place = context.addr() as u64;
    // SAFETY: the kernel's own frame, which is this handler's.
    let context = unsafe { &mut *context };
    // SAFETY: as above.
    let code = unsafe { (*info).code };
    let is_fault = code > 0 && (FAULTS.contains(&signal) || OURS.has(signal));
    if signal == number::BUS
        && code == faults::MISSING
        && let Some(block) = Thread::of(place)
    {
        let was_program = !block.contains(context.get(Register::Rsp));
        block.switch().allow();
        // SAFETY: as above.
        let address = unsafe { (*info).addr };
        // SAFETY: the signal is about a fault of this thread.
        let is_write = unsafe { signal::fault_was_write(std::ptr::from_mut(context).cast()) };
        let access = if is_write == Some(false) { Access::Read } else { Access::Write };
        if faults::serve(block, address, access) {
            return if was_program { block } else { std::ptr::null() };
        }
    }
    if is_fault && was_copy(context) {
        return std::ptr::null();
    }
    let Some(block) = Thread::of(place) else {
        stderr::write(b"pagetide: a signal reached a thread that is not known: the process ends\n");
        signal::abort();
    };
    if !block.contains(context.get(Register::Rsp)) {
        block.switch().allow();
        if is_fault && traced::begin_at_fault(block, context, signal) {
            return std::ptr::null();
        }
        sites::step_out(context);
        if inplace::step_out(block, context) == Found::AtTouch && is_fault {
            // Nothing is there: the kernel is to say so, to the site's own call.
            return block;
        }
        // The frame that is written may be in memory that is out. A thread that cannot ask for it ends there.
        if !block.is_confined() {
            OURS.unblock();
        }
        // SAFETY: the kernel's own record, of so many bytes.
        deliver(block, context, signal, unsafe { *info.cast() });
        return block;
    }
    // A filter of the program has stopped the call that we make for it, as it would have stopped the program's.
    let is_filter = signal == SYS && code == BY_FILTER && was_call(context);
    if is_fault && !is_filter {
        let at = context.get(Register::Rip);
        text::die(format_args!("pagetide: signal {signal} in the handler of system calls, at {at:#x}"));
    }
    block.switch().allow();
    if block.switch().is_noted() {
        // One of ours that was sent: all others are blocked since the first one.
        // SAFETY: a record of so many bytes.
        block.late().put(signal, unsafe { &*info.cast() });
    } else {
        // SAFETY: a record of so many bytes; the room is this thread's.
        unsafe { block.noted().copy_from_nonoverlapping(info.cast(), 1) };
        block.switch().note(signal);
    }
    step_aside(context);
    entry::step_aside(context);
    // What the handler has blocked that was interrupted stays so.
    context.mask.0 |= !OURS.0;
    std::ptr::null()
}

/// Deliver the signal that is noted, if there is one, to the program at `context`.
pub(super) fn deliver_noted(block: &Thread, context: &mut Context) {
    if block.switch().is_noted() {
        // SAFETY: this thread's own room. Copied first: once the signal is taken, the next one of ours that is sent is noted in its place.
        let info = unsafe { *block.noted() };
        let signal = block.switch().take_noted();
        // What was interrupted first may have been a touch of a missing page on the way to a call.
        sites::step_out(context);
        inplace::step_out(block, context);
        deliver(block, context, signal, info);
        while let Some((signal, info)) = block.late().take(OURS, |_| true) {
            deliver(block, context, signal, info);
        }
    }
}

/// What was sent while the program believed it blocked, if it does not any more.
pub(super) fn deliver_waiting(block: &Thread, context: &mut Context) {
    while let Some((signal, info)) = block.waiting().take_unblocked(SignalSet(block.hidden().get())) {
        deliver(block, context, signal, info);
    }
}

/// Let the program find itself at the start of its handler, or let the kernel do what it does without one.
/// `info` is what came with the signal.
fn deliver(block: &Thread, context: &mut Context, signal: u32, mut info: [u64; INFO_WORDS]) {
    if signal == SYS && code_of(&info) == BY_FILTER {
        // The program's own instruction, as its handler expects.
        info[2] = context.get(Register::Rip);
    }
    let is_forced = code_of(&info) > 0 && (FAULTS.contains(&signal) || OURS.has(signal));
    let is_hidden = SignalSet(block.hidden().get()).has(signal);
    let action = block.actions().get(signal);
    if is_hidden && !is_forced {
        return waiting::put(block, signal, &info);
    }
    let leave = |context: &mut Context, signal| {
        if is_forced && block.is_confined() {
            // A call would end this thread alone. Its fault comes again, and one that is blocked ends the process.
            context.mask = SignalSet::ALL;
        } else {
            leave_to_kernel(context, signal, &info);
        }
    };
    match action.handler {
        IGNORE if !is_forced => {}
        DEFAULT | IGNORE => leave(context, signal),
        _ if is_hidden => leave(context, signal),
        _ => {
            if action.flags & RESET_HAND != 0 {
                block.actions().with(|list| list[signal as usize - 1].handler = DEFAULT);
                if !OURS.has(signal) {
                    let _ = install(signal, &Action::DEFAULT);
                }
            }
            if enter(block, context, signal, &info, &action).is_none() {
                // As the kernel does where there is no room for the frame.
                leave(context, number::SEGV);
            }
        }
    }
}

/// The default action of a signal of ours: again, for the kernel, once the program has its registers back: a core has them, too.
fn leave_to_kernel(context: &mut Context, signal: u32, info: &[u64; INFO_WORDS]) {
    let _ = install(signal, &Action::DEFAULT);
    let again = SignalSet::one(signal);
    again.block();
    let told = signal::queue_to_thread(thread::getpid(), thread::gettid(), signal, info);
    if told.is_err() {
        // What the kernel alone may say of a signal (a fault): the number is what counts.
        let _ = signal::kill_thread(thread::getpid(), thread::gettid(), signal);
    }
    context.mask.0 &= !again.0;
}

/// Write the frame of a signal where the kernel would have written it, and set the registers as it would have. None: there is no
/// room.
fn enter(block: &Thread, context: &mut Context, signal: u32, info: &[u64; INFO_WORDS], action: &Action) -> Option<()> {
    let pointer = context.get(Register::Rsp);
    let alternate = block.alternate().get();
    let on_alternate = is_on(&alternate, pointer);
    let (start, len) = alternate.place();
    let moves = action.flags & action_flags::ON_STACK != 0 && !alternate.is_none() && !on_alternate;
    let top = if moves { (start + len) as u64 } else { pointer.checked_sub(RED_ZONE)? };
    let vector_bytes = vector_bytes_of(context);
    let vector = top.checked_sub(vector_bytes as u64)? & !63;
    let frame = (vector.checked_sub(FRAME_BYTES)? & !15).checked_sub(8)?;
    if moves && frame < start as u64 {
        return None;
    }
    let mut saved = *context;
    saved.stack = alternate.told(on_alternate).words();
    saved.mask = mask_of(block, context);
    let place = |address: u64| pagetide_sys::word::usize_of(address);
    if vector_bytes > 0 {
        saved.vector = vector;
        // SAFETY: below the stack pointer of the program, where the kernel would write.
        unsafe { copy(place(vector), place(context.vector), vector_bytes) }.then_some(())?;
    }
    write(place(frame), &action.restorer).ok()?;
    write(place(frame + 8), &saved).ok()?;
    write(place(frame + INFO_AT), info).ok()?;
    if alternate.flags() & AUTO_DISARM != 0 && moves {
        block.alternate().set(AltStack::none());
    }
    context.set(Register::Rax, 0);
    context.set(Register::Rdi, u64::from(signal));
    context.set(Register::Rsi, frame + INFO_AT);
    context.set(Register::Rdx, frame + 8);
    context.set(Register::Rsp, frame);
    context.set(Register::Rip, action.handler as u64);
    context.set(Register::Flags, context.get(Register::Flags) & !HANDLER_CLEARS);
    let own = if action.flags & action_flags::NO_DEFER == 0 { SignalSet::one(signal).0 } else { 0 };
    give_mask(block, context, SignalSet(mask_of(block, context).0 | action.mask.0 | own));
    Some(())
}

/// Bytes of the vector registers that the kernel has saved; 0: none.
fn vector_bytes_of(context: &Context) -> usize {
    if context.vector == 0 {
        return 0;
    }
    let place = std::ptr::with_exposed_provenance(pagetide_sys::word::usize_of(context.vector));
    // SAFETY: the kernel's own frame.
    unsafe { vector_bytes(place) }
}

/// As rt_sigreturn(2): the program's handler is done, and its frame is at the stack pointer. False: it is not there.
pub(super) fn return_from_handler(block: &Thread, context: &mut Context) -> bool {
    let place = pagetide_sys::word::usize_of(context.get(Register::Rsp));
    let Ok(saved) = read::<Context>(place) else { return false };
    if saved.vector == 0 {
        context.vector = 0;
    } else if context.vector != 0 && !take_vector(context, saved.vector) {
        return false;
    }
    context.take_registers(&saved);
    give_mask(block, context, SignalSet(saved.mask.0 & !NEVER.0));
    let stack = AltStack::from_words(saved.stack);
    if !is_on(&block.alternate().get(), context.get(Register::Rsp)) && (stack.is_none() || stack.place().1 >= STACK_MIN)
    {
        block.alternate().set(if stack.is_none() { AltStack::none() } else { stack.without(AltStack::ON_STACK) });
    }
    true
}

/// Vector registers from the program's frame into the kernel's.
fn take_vector(context: &Context, from: u64) -> bool {
    const LEGACY: usize = 512;
    let (to, from) = (pagetide_sys::word::usize_of(context.vector), pagetide_sys::word::usize_of(from));
    let room = vector_bytes_of(context);
    // SAFETY: the kernel's frame has at least so many bytes, and is this handler's.
    if !unsafe { copy(to, from, LEGACY) } {
        return false;
    }
    // What follows is only believed where the program left it as it was.
    // SAFETY: as above: at most the bytes that the kernel has written.
    room != vector_bytes_of(context) || room <= LEGACY || unsafe { copy(to + LEGACY, from + LEGACY, room - LEGACY) }
}
