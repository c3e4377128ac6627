//! A call of the program: its memory is brought in and held, and the call is made.

use std::sync::atomic::{AtomicIsize, AtomicU64, AtomicUsize, Ordering};

use pagetide_sys::dispatch::{Context, NOT_MADE, Register, SYS_USER_DISPATCH, call, call_surely, copy};
use pagetide_sys::mem::{Memory, PAGE_BYTES};
use pagetide_sys::signal::{self, SigInfo};
use pagetide_sys::syscall::register_of;
use pagetide_sys::syscalls::{Call, Class, Direction, Range};
use pagetide_sys::trace::Interrupted;
use pagetide_sys::word::{low_u32, usize_of};
use pagetide_sys::{Errno, clock, stderr, text, thread};

use linux::*;

use super::filtered::{self, PRCTL};
use super::pieces::{PREADV2, PWRITEV2, make_long};
use super::threads::Thread;
use super::traced::{self, PTRACE, TRACE_ME};
use super::{actions, clones, compat, forks, waiting};
use crate::space::held::HELD;
use crate::{advice, attach, foothold, leaving, lent, limits, origins, serve};

mod linux {
    //! Calls that are answered here, or changed.
    pub(super) const CLOSE: u32 = 3;
    pub(super) const FSTAT: u32 = 5;
    pub(super) const SIGACTION: u32 = 13;
    pub(super) const SIGPROCMASK: u32 = 14;
    pub(super) const SIGRETURN: u32 = 15;
    pub(super) const MMAP: u32 = 9;
    pub(super) const MPROTECT: u32 = 10;
    pub(super) const MUNMAP: u32 = 11;
    pub(super) const MREMAP: u32 = 25;
    pub(super) const MADVISE: u32 = 28;
    pub(super) const DUP: u32 = 32;
    pub(super) const DUP2: u32 = 33;
    pub(super) const SETSOCKOPT: u32 = 54;
    pub(super) const CLONE: u32 = 56;
    pub(super) const FORK: u32 = 57;
    pub(super) const VFORK: u32 = 58;
    pub(super) const EXECVE: u32 = 59;
    pub(super) const EXIT: u32 = 60;
    pub(super) const FCNTL: u32 = 72;
    pub(super) const SIGPENDING: u32 = 127;
    pub(super) const SIGTIMEDWAIT: u32 = 128;
    pub(super) const SIGALTSTACK: u32 = 131;
    pub(super) const MLOCK: u32 = 149;
    pub(super) const SETRLIMIT: u32 = 160;
    pub(super) const POLL: u32 = 7;
    pub(super) const NANOSLEEP: u32 = 35;
    pub(super) const CLOCK_NANOSLEEP: u32 = 230;
    pub(super) const FUTEX: u32 = 202;
    pub(super) const IO_SETUP: u32 = 206;
    pub(super) const SET_TID_ADDRESS: u32 = 218;
    pub(super) const NEWFSTATAT: u32 = 262;
    pub(super) const SET_ROBUST_LIST: u32 = 273;
    pub(super) const VMSPLICE: u32 = 278;
    pub(super) const SECCOMP: u32 = 317;
    pub(super) const EXECVEAT: u32 = 322;
    pub(super) const MLOCK2: u32 = 325;
    pub(super) const PKEY_MPROTECT: u32 = 329;
    pub(super) const DUP3: u32 = 292;
    pub(super) const PRLIMIT: u32 = 302;
    pub(super) const STATX: u32 = 332;
    pub(super) const RSEQ: u32 = 334;
    pub(super) const IO_URING_SETUP: u32 = 425;
    pub(super) const CLONE3: u32 = 435;
    pub(super) const CLOSE_RANGE: u32 = 436;
}

/// `MADV_POPULATE_READ`
const POPULATE_READ: usize = 22;

/// What is held around an argument of a call that is not known.
const UNKNOWN_BYTES: usize = PAGE_BYTES;
/// Of a thread's control block, with what the kernel writes of restartable sequences.
const CONTROL_BLOCK_BYTES: usize = 4096;

/// Bytes that the kernel may write of restartable sequences.
const SEQUENCES_BYTES: usize = 64;

/// Where they lie, from the thread's control block on.
pub(super) static SEQUENCES_AT: AtomicIsize = AtomicIsize::new(0);

/// The program's memory, of which any page may be out.
pub(super) struct Program;

impl Memory for Program {
    fn read(&mut self, address: usize, into: &mut [u8]) -> bool {
        // SAFETY: into a buffer of ours.
        unsafe { copy(into.as_mut_ptr().addr(), address, into.len()) }
    }
}

/// A value of the program's. EFAULT: it is not there.
pub(super) fn read<T: Copy>(from: usize) -> Result<T, Errno> {
    let mut value = std::mem::MaybeUninit::<T>::uninit();
    // SAFETY: the bytes go into our own value.
    if !unsafe { copy(value.as_mut_ptr().addr(), from, size_of::<T>()) } {
        return Err(Errno::EFAULT);
    }
    // SAFETY: all its bytes were written; the types are integers throughout.
    Ok(unsafe { value.assume_init() })
}

/// A value for the program. EFAULT: there is no room.
pub(super) fn write<T: Copy>(to: usize, value: &T) -> Result<(), Errno> {
    // SAFETY: the program has named the place for this.
    let is_there = unsafe { copy(to, std::ptr::from_ref(value).addr(), size_of::<T>()) };
    if is_there { Ok(()) } else { Err(Errno::EFAULT) }
}

/// A call was stopped. The block whose thread is to go on; null: it was a signal within one of our handlers.
///
/// # Safety
/// The arguments are those of the handler of SIGSYS, which runs on the stack of a block.
pub(super) unsafe fn on_call(info: *mut SigInfo, context: *mut Context) -> *const Thread {
    // SAFETY: the kernel's own record.
    let SigInfo { code, architecture, .. } = unsafe { info.read() };
    if code != SYS_USER_DISPATCH {
        // SAFETY: the caller's.
        return unsafe { actions::on_signal(actions::SYS, info, context) };
    }
    let Some(block) = Thread::of(context.addr() as u64) else {
        stderr::write(b"pagetide: a system call of a thread that is not known: the process ends\n");
        signal::abort();
    };
    block.switch().allow();
    // SAFETY: the kernel's own frame, which is this handler's.
    let context = unsafe { &mut *context };
    let meant = if compat::is_meant(architecture) {
        compat::translate(context)
    } else {
        Some((number_of(context), context.arguments()))
    };
    let Some((number, arguments)) = meant else {
        compat::tell_of_refusal(number_of(context));
        context.set(Register::Rax, register_of(Err(Errno::ENOSYS)).cast_unsigned() as u64);
        actions::deliver_waiting(block, context);
        return block;
    };
    if number == SIGRETURN {
        if !actions::return_from_handler(block, context) {
            stderr::write(b"pagetide: the program returns from a handler to nowhere: the process ends\n");
            signal::abort();
        }
        actions::deliver_waiting(block, context);
        return block;
    }
    let answer = answer(block, context, number, arguments);
    block.release();
    if answer == NOT_MADE {
        // A signal first; then the program makes its call again.
        const INSTRUCTION_BYTES: u64 = 2;
        context.set(Register::Rip, context.get(Register::Rip) - INSTRUCTION_BYTES);
    } else {
        context.set(Register::Rax, answer.cast_unsigned() as u64);
    }
    actions::deliver_waiting(block, context);
    block
}

fn number_of(context: &Context) -> u32 {
    low_u32(context.get(Register::Rax))
}

/// Calls that are about what is kept here, and all others.
fn answer(block: &'static Thread, context: &mut Context, number: u32, arguments: [usize; 6]) -> isize {
    match number {
        SIGACTION => register_of(actions::set_action(block, arguments)),
        SIGPROCMASK => register_of(actions::set_mask(block, context, arguments)),
        SIGTIMEDWAIT => waiting::wait(block, number, arguments),
        SIGPENDING => waiting::pending(block, number, arguments),
        SIGALTSTACK => register_of(actions::set_stack(block, context, arguments)),
        CLONE | CLONE3 | FORK | VFORK => clones::make(block, context, number, arguments),
        EXIT => {
            block.ends();
            make(block, number, arguments)
        }
        IO_SETUP | IO_URING_SETUP => {
            tell_refused(number);
            Errno::ENOSYS.negated()
        }
        PRCTL if arguments[0] == 59 => {
            tell_once(number, "(PR_SET_SYSCALL_USER_DISPATCH) is refused (EINVAL): it is in use");
            Errno::EINVAL.negated()
        }
        // `PR_SET_TSC`
        PRCTL if arguments[0] == 26 => {
            clock::deny();
            make(block, number, arguments)
        }
        PTRACE if arguments[0] == TRACE_ME => traced::ask(block),
        // `PR_SET_SECCOMP`
        PRCTL if arguments[0] == 22 => filtered::install(block, number, arguments),
        SECCOMP => filtered::install(block, number, arguments),
        // `SOL_SOCKET`, `SO_ZEROCOPY`
        SETSOCKOPT if arguments[1] == 1 && arguments[2] == 60 => Errno::EOPNOTSUPP.negated(),
        VMSPLICE => by_copy(block, arguments),
        // The calls by which programs look for what is open.
        CLOSE | FSTAT | NEWFSTATAT | STATX | FCNTL | DUP | DUP2 | DUP3 if is_own_file(arguments[0]) => {
            Errno::EBADF.negated()
        }
        DUP2 | DUP3 if is_own_file(arguments[1]) => Errno::EBADF.negated(),
        CLOSE_RANGE => close_range(block, arguments),
        SETRLIMIT => set_limit(block, number, arguments, [0, arguments[0], arguments[1]]),
        PRLIMIT => set_limit(block, number, arguments, [arguments[0], arguments[1], arguments[2]]),
        MMAP | MUNMAP | MREMAP | MADVISE | MPROTECT | PKEY_MPROTECT => change(block, number, arguments),
        advice::PROCESS_MADVISE => advice::by_process(
            arguments,
            |address| read(address).ok(),
            |number, arguments| {
                if number == MADVISE { change(block, number, arguments) } else { make(block, number, arguments) }
            },
        ),
        attach::SHMAT => attach::around(arguments, |number, arguments| {
            origins::around(number, arguments, |number, arguments| make(block, number, arguments))
        }),
        _ => make_long(block, number, arguments).unwrap_or_else(|| make(block, number, arguments)),
    }
}

/// A call that sets this limit of a process, by its number, to what lies at an address; 0: to nothing.
fn set_limit(block: &Thread, number: u32, arguments: [usize; 6], [process, which, new]: [usize; 3]) -> isize {
    let [process, which] = [process, which].map(|argument| low_u32(argument as u64));
    // `RLIMIT_FSIZE`
    if which == 1 {
        serve::limit_file_size();
    }
    let answer = make(block, number, arguments);
    if answer == 0 && new != 0 {
        limits::was_set(process.cast_signed(), which as usize);
    }
    answer
}

/// A call after which the kernel would keep using memory is refused.
pub(crate) fn tell_refused(number: u32) {
    tell_once(number, "is refused (ENOSYS): the kernel would use memory that may be out");
}

/// A call that changes mappings, or what is in them.
fn change(block: &Thread, number: u32, arguments: [usize; 6]) -> isize {
    origins::around(number, arguments, |number, arguments| {
        make_long(block, number, arguments).unwrap_or_else(|| make(block, number, arguments))
    })
}

/// Bring in and hold what a call may touch, and make it.
pub(super) fn make(block: &Thread, number: u32, arguments: [usize; 6]) -> isize {
    let known = Call::find(number);
    let changes = known.is_some_and(|known| known.class == Class::Space);
    let change = changes.then(|| forks::Change::begin(block));
    // Who shares the memory and is no thread may be killed with it, and a filter may not let a thread wait.
    let goes_beside = block.is_apart() || block.is_filtered();
    let alone = if goes_beside { None } else { leaving::alone(number, &arguments) };
    match known {
        Some(known) => {
            if !known.is_free() {
                known.ranges(&arguments, &mut Program, &mut |range| bring_in(block, range));
                further(block, number, arguments);
            }
        }
        None => {
            tell_once(number, "is not known: what its arguments point to is held for a page");
            for argument in arguments {
                bring_in(block, Range { start: argument, len: UNKNOWN_BYTES, direction: Direction::Both });
            }
        }
    }
    // All that it touches is there by now.
    let is_traced = traced::begin(block, number);
    let _executes = matches!(number, EXECVE | EXECVEAT).then(|| actions::AsBelieved::begin(block));
    let answer = if changes {
        // It may be one of several, after the first of which there is no way back.
        // SAFETY: the program's own call, in its own thread.
        unsafe { call_surely(number, &arguments) }
    } else {
        // SAFETY: as above.
        unsafe { call(block.switch(), number, &arguments) }
    };
    if is_traced {
        traced::stop_no_calls();
    }
    if number == MADVISE && arguments[2] == advice::GUARD_INSTALL {
        // No copy is made in between: the call that changes the address space is not over.
        advice::forget_under_guard(arguments[0], arguments[1], answer, |start, bytes, advice| {
            // SAFETY: what the program has asked for: these pages are empty, and a guard.
            unsafe { call_surely(MADVISE, &[start, bytes, advice, 0, 0, 0]) }
        });
    }
    drop(alone);
    drop(change);
    if changes {
        crate::agent_entry::mapped(fresh_bytes(number, arguments, answer));
    }
    answer
}

/// Bytes of fresh private memory that a call has mapped and that may be filled.
fn fresh_bytes(number: u32, [_, second, third, fourth, ..]: [usize; 6], answer: isize) -> usize {
    /// The break as it was set last.
    static BREAK: AtomicUsize = AtomicUsize::new(0);
    match number {
        MMAP if answer > 0 && foothold::is_fresh(third, fourth) => second,
        leaving::BRK => {
            let end = answer.cast_unsigned();
            let before = BREAK.swap(end, Ordering::Relaxed);
            if before == 0 { 0 } else { end.saturating_sub(before) }
        }
        MREMAP if answer > 0 => third.saturating_sub(second),
        _ => 0,
    }
}

/// A descriptor that the program has not opened.
fn is_own_file(raw: usize) -> bool {
    serve::numbers().any(|number| number.cast_unsigned() as usize == raw & 0xffff_ffff)
}

/// As close_range(2), without what the program has not opened.
fn close_range(block: &Thread, [first, last, flags, ..]: [usize; 6]) -> isize {
    let (mut from, last) = (first & 0xffff_ffff, last & 0xffff_ffff);
    let next_own = |from: usize| {
        let own = serve::numbers().map(|number| number.cast_unsigned() as usize);
        own.filter(|number| (from..=last).contains(number)).min()
    };
    let mut answer = 0;
    while let Some(own) = next_own(from) {
        if own > from {
            answer = make(block, CLOSE_RANGE, [from, own - 1, flags, 0, 0, 0]);
        }
        from = own + 1;
    }
    // Whether it could be made at all is said by the last one, or by the one that there is.
    if from <= last || from == first { make(block, CLOSE_RANGE, [from, last, flags, 0, 0, 0]) } else { answer }
}

/// What the table does not tell of.
fn further(block: &Thread, number: u32, arguments: [usize; 6]) {
    let [first, second, third, _, fifth, _] = arguments;
    let hold = |start, len| bring_in(block, Range { start, len, direction: Direction::Both });
    match number {
        MLOCK | MLOCK2 => hold(first, second),
        // Or `MADV_POPULATE_WRITE`.
        MADVISE if matches!(third, POPULATE_READ | 23) => hold(first, second),
        // What the kernel writes when no call is under way stays for ever.
        SET_TID_ADDRESS => hold_for_ever(first, 4),
        SET_ROBUST_LIST => hold_for_ever(first, 24),
        RSEQ => hold_for_ever(first, second & 0xffff),
        FUTEX if matches!(second & 0x7f, 6..=8 | 13) => hold_for_ever(first, 4),
        // Waiters are moved to a lock: they have it when they wake.
        FUTEX if matches!(second & 0x7f, 11 | 12) => {
            hold_for_ever(first, 4);
            hold_for_ever(fifth, 4);
        }
        _ => {}
    }
}

/// The thread was interrupted in a call, and goes on with it by `restart_syscall`, which names no memory. What that call touches is held
/// until it is over, and is made present here: a fault on the way would end the call with EINTR.
pub(super) fn hold_interrupted(block: &Thread, interrupted: Interrupted) {
    let Interrupted { number, first, second, fourth } = interrupted;
    let ranges: [(u64, usize); 3] = match u32::try_from(number) {
        Ok(POLL) => [(first, usize_of(second).saturating_mul(8)), (0, 0), (0, 0)],
        Ok(FUTEX) => [(first, 4), (0, 0), (0, 0)],
        Ok(NANOSLEEP) => [(second, 16), (0, 0), (0, 0)],
        Ok(CLOCK_NANOSLEEP) => [(fourth, 16), (0, 0), (0, 0)],
        Ok(_) | Err(_) => [first, second, fourth].map(|place| (place, UNKNOWN_BYTES)),
    };
    for (start, len) in ranges.into_iter().filter(|&(start, len)| start != 0 && len != 0) {
        let start = usize_of(start);
        block.hold(Range { start, len, direction: Direction::Both });
        let pages = start & !(PAGE_BYTES - 1);
        // SAFETY: it changes no byte. What is no memory the call finds missing, as natively.
        unsafe { call(block.switch(), MADVISE, &[pages, start.saturating_add(len) - pages, POPULATE_READ, 0, 0, 0]) };
    }
}

/// Hold a range and touch its pages, as far as they are there: beyond, the kernel finds what it would have found.
pub(super) fn bring_in(block: &Thread, range: Range) {
    if range.start == 0 || range.len == 0 {
        return;
    }
    block.hold(range);
    let end = range.start.saturating_add(range.len);
    let mut at = range.start;
    let mut byte = 0_u8;
    while at < end {
        // SAFETY: into a byte of ours.
        if !unsafe { copy((&raw mut byte).addr(), at, 1) } {
            return;
        }
        at = (at | (PAGE_BYTES - 1)).saturating_add(1);
    }
}

/// Words that the kernel uses on its own account.
pub(super) fn hold_for_ever(start: usize, bytes: usize) {
    if start == 0 || bytes == 0 {
        return;
    }
    HELD.hold(start, bytes);
    let mut byte = 0_u8;
    for at in [start, start.saturating_add(bytes - 1)] {
        // SAFETY: into a byte of ours. Where nothing is, the kernel finds nothing either.
        let _ = unsafe { copy((&raw mut byte).addr(), at, 1) };
    }
}

/// What the kernel writes of the calling thread, which was not armed when it said where.
pub(super) fn hold_control_block() {
    let block: usize;
    // SAFETY: reads the word that the C library keeps at the start of the control block: its own address.
    unsafe { std::arch::asm!("mov {}, fs:[0]", out(reg) block, options(nostack, readonly, preserves_flags)) };
    // It may end with its mapping: no byte is touched that is not known to be there, because a fault would end the process here.
    HELD.hold(block, CONTROL_BLOCK_BYTES);
    hold_for_ever(block, size_of::<usize>());
    if let Ok(Some(list)) = thread::robust_list(0) {
        hold_for_ever(list.start(), list.len());
    }
    let sequences = block.wrapping_add_signed(SEQUENCES_AT.load(Ordering::Relaxed));
    HELD.hold(sequences, SEQUENCES_BYTES);
    hold_for_ever(sequences, 1);
}

/// As vmsplice(2): the kernel would refer to the pages without holding them, so it copies.
fn by_copy(block: &Thread, [fd, pieces, count, flags, ..]: [usize; 6]) -> isize {
    const GET_FLAGS: usize = 3;
    const GET_PIPE_SIZE: usize = 1032;
    const NO_WAIT: usize = 8;
    /// `SPLICE_F_MOVE`, `SPLICE_F_NONBLOCK`, `SPLICE_F_MORE`, `SPLICE_F_GIFT`
    const FLAGS: usize = 15;
    if flags & 0xffff_ffff & !FLAGS != 0 {
        return Errno::EINVAL.negated();
    }
    // SAFETY: changes nothing.
    let ask = |what| unsafe { call(block.switch(), FCNTL, &[fd, what, 0, 0, 0, 0]) };
    let mode = ask(GET_FLAGS);
    // Of what is no pipe it has none.
    if mode >= 0 && ask(GET_PIPE_SIZE) < 0 {
        return Errno::EBADF.negated();
    }
    let wait = if flags & 2 == 0 { 0 } else { NO_WAIT };
    let reads = mode & 3 == 0;
    let number = if reads { PREADV2 } else { PWRITEV2 };
    if mode < 0 {
        return mode;
    }
    let copy =
        |number, arguments| make_long(block, number, arguments).unwrap_or_else(|| make(block, number, arguments));
    let answer = copy(number, [fd, pieces, count, usize::MAX, usize::MAX, wait]);
    if wait != 0 && answer == Errno::EOPNOTSUPP.negated() {
        return lent::without_waiting(reads, [fd, pieces, count], copy);
    }
    answer
}

/// A line for the person, once for each call.
pub(super) fn tell_once(number: u32, what: &str) {
    static TOLD: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];
    let bit = 1 << (number % 64);
    let word = &TOLD[usize::try_from(number / 64).unwrap_or(0).min(7)];
    if word.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
        let name = Call::find(number).map_or("?", Call::name);
        let line = text::Text::<256>::format(format_args!(
            "pagetide: process {}: system call {number} ({name}) {what}\n",
            thread::getpid()
        ));
        stderr::write(line.as_bytes());
    }
}
