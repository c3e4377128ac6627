//! Signals by raw system call: actions, masks, sending. For threads that must not touch libc, and for the interposed calls,
//! which must see the kernel's truth and not libc's.

use linux_raw_sys::general as k;
use linux_raw_sys::general::{
    __NR_kill, __NR_rt_sigaction, __NR_rt_sigprocmask, __NR_rt_tgsigqueueinfo, __NR_sigaltstack, __NR_signalfd4,
    __NR_tgkill,
};

use crate::fd::Fd;
use crate::mem::{ManagedRange, PAGE_BYTES};
use crate::syscall;
use crate::syscall::Errno;
use crate::thread;
use crate::word::{addr_of, int_arg, low_u32, usize_of};

/// Numbers of signals.
pub mod number {
    use linux_raw_sys::general as k;

    /// `SIGABRT`
    pub const ABRT: u32 = k::SIGABRT;
    /// `SIGBUS`
    pub const BUS: u32 = k::SIGBUS;
    /// `SIGHUP`
    pub const HUP: u32 = k::SIGHUP;
    /// `SIGINT`
    pub const INT: u32 = k::SIGINT;
    /// `SIGKILL`
    pub const KILL: u32 = k::SIGKILL;
    /// `SIGSEGV`
    pub const SEGV: u32 = k::SIGSEGV;
    /// `SIGTERM`
    pub const TERM: u32 = k::SIGTERM;
    /// `SIGUSR1`
    pub const USR1: u32 = k::SIGUSR1;
}

/// Flags of an [`Action`].
pub mod action_flags {
    use linux_raw_sys::general as k;

    /// `SA_SIGINFO`: the handler gets three arguments.
    pub const INFO: u64 = k::SA_SIGINFO as u64;
    /// `SA_ONSTACK`: on the alternate stack, if there is one.
    pub const ON_STACK: u64 = k::SA_ONSTACK as u64;
    /// `SA_NODEFER`: the signal is not blocked in its handler.
    pub const NO_DEFER: u64 = k::SA_NODEFER as u64;
    /// `SA_RESTART`: interrupted calls start again.
    pub const RESTART: u64 = k::SA_RESTART as u64;
    /// `SA_RESTORER`: the action names its way back (x86_64).
    pub const RESTORER: u64 = 0x0400_0000;
}

/// The default action.
pub const DEFAULT: usize = 0;
/// The signal is dropped.
pub const IGNORE: usize = 1;

/// A set of signals, as the kernel has it: bit `n - 1` for signal `n`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct SignalSet(pub u64);

impl SignalSet {
    /// No signal.
    pub const NONE: Self = Self(0);
    /// Every signal; the kernel leaves SIGKILL and SIGSTOP out by itself.
    pub const ALL: Self = Self(u64::MAX);

    /// Just this one.
    pub const fn one(signal: u32) -> Self {
        Self(1 << (signal - 1))
    }

    /// Is it in?
    pub const fn has(self, signal: u32) -> bool {
        self.0 & Self::one(signal).0 != 0
    }

    /// Without one.
    pub const fn without(self, signal: u32) -> Self {
        Self(self.0 & !Self::one(signal).0)
    }

    /// Block these in the calling thread, besides what is blocked; the mask as it was.
    pub fn block(self) -> Self {
        change_mask(k::SIG_BLOCK, self)
    }

    /// Unblock these in the calling thread; the mask as it was.
    pub fn unblock(self) -> Self {
        change_mask(k::SIG_UNBLOCK, self)
    }

    /// A descriptor that is readable while one of these, which the calling thread blocks, waits for it.
    pub fn descriptor(self) -> Result<Fd, Errno> {
        const FLAGS: u32 = k::O_CLOEXEC | k::O_NONBLOCK;
        let (set, none) = (addr_of(&raw const self), usize::MAX);
        // SAFETY: the kernel reads the set and makes a new descriptor.
        let register = unsafe { syscall!(__NR_signalfd4, none, set, size_of::<Self>(), FLAGS as usize) }?;
        // SAFETY: signalfd4 returned it.
        Ok(unsafe { Fd::from_register(register) })
    }

    /// Make this the mask of the calling thread.
    pub fn restore(self) {
        change_mask(k::SIG_SETMASK, self);
    }
}

/// True if these bytes can be read by the kernel, as a call of the caller's would: what is there at `start`, at its end, and where pages begin.
pub fn can_read(start: usize, bytes: usize) -> bool {
    const NO_SUCH_HOW: usize = usize::MAX >> 1;
    let Some(end) = start.checked_add(bytes) else { return false };
    let pages = (start / PAGE_BYTES + 1..end.div_ceil(PAGE_BYTES)).map(|page| page * PAGE_BYTES);
    let last = end.saturating_sub(size_of::<SignalSet>()).max(start);
    // The set is read first; then nothing is done, as no such change is known.
    let is_there = |at: usize| ask_for_mask(NO_SUCH_HOW, at, 0) != Err(Errno::EFAULT);
    [start, last].into_iter().chain(pages).all(is_there)
}

fn change_mask(how: u32, set: SignalSet) -> SignalSet {
    let mut old = SignalSet::NONE;
    let (new_addr, old_addr) = (addr_of(&raw const set), addr_of(&raw mut old));
    let answer = ask_for_mask(how as usize, new_addr, old_addr);
    assert!(answer.is_ok(), "a mask change fails only on bad arguments");
    old
}

/// Of the calling thread. `old` is 0, or the address of a set of the caller's.
fn ask_for_mask(how: usize, new: usize, old: usize) -> Result<usize, Errno> {
    // SAFETY: the kernel reads `new` if it can, and writes `old`; the mask is the calling thread's own.
    unsafe { syscall!(__NR_rt_sigprocmask, how, new, old, size_of::<SignalSet>()) }
}

/// What happens on a signal: the kernel's `struct sigaction`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Action {
    /// Address of the handler, or [`DEFAULT`] or [`IGNORE`].
    pub handler: usize,
    /// From [`action_flags`].
    pub flags: u64,
    /// Address of the code a handler returns to (x86_64; elsewhere the vDSO has it).
    pub restorer: usize,
    /// Blocked while the handler runs.
    pub mask: SignalSet,
}

/// A handler with three arguments: signal, information, context.
pub type Handler = unsafe extern "C" fn(i32, *mut SigInfo, *mut u8);

impl Action {
    /// The default action.
    pub const DEFAULT: Self = Self { handler: DEFAULT, flags: 0, restorer: 0, mask: SignalSet::NONE };

    /// Run `handler`; `flags` besides [`action_flags::INFO`].
    pub fn run(handler: Handler, flags: u64, mask: SignalSet) -> Self {
        Self {
            handler: handler as usize,
            flags: flags | action_flags::INFO | RESTORER_FLAG,
            restorer: restorer(),
            mask,
        }
    }
}

#[cfg(target_arch = "x86_64")]
const RESTORER_FLAG: u64 = action_flags::RESTORER;
#[cfg(not(target_arch = "x86_64"))]
const RESTORER_FLAG: u64 = 0;

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(
    ".pushsection .text.pagetide_sigreturn,\"ax\",@progbits",
    ".hidden pagetide_sigreturn",
    ".globl pagetide_sigreturn",
    ".type pagetide_sigreturn,@function",
    // Where everything is that a signal has interrupted: in the context at rsp, registers from its byte 40 on in the kernel's order. An
    // unwinder looks a return address up at the byte before it.
    ".cfi_startproc",
    ".cfi_signal_frame",
    ".cfi_escape 0x0f, 4, 0x77, 0xa0, 0x1, 0x06", // the frame begins at the interrupted rsp
    ".cfi_escape 0x10, 0, 3, 0x77, 0x90, 0x1",    // rax
    ".cfi_escape 0x10, 1, 3, 0x77, 0x88, 0x1",    // rdx
    ".cfi_escape 0x10, 2, 3, 0x77, 0x98, 0x1",    // rcx
    ".cfi_escape 0x10, 3, 3, 0x77, 0x80, 0x1",    // rbx
    ".cfi_escape 0x10, 4, 3, 0x77, 0xf0, 0x0",    // rsi
    ".cfi_escape 0x10, 5, 3, 0x77, 0xe8, 0x0",    // rdi
    ".cfi_escape 0x10, 6, 3, 0x77, 0xf8, 0x0",    // rbp
    ".cfi_escape 0x10, 7, 3, 0x77, 0xa0, 0x1",    // rsp
    ".cfi_escape 0x10, 8, 2, 0x77, 0x28",         // r8
    ".cfi_escape 0x10, 9, 2, 0x77, 0x30",         // r9
    ".cfi_escape 0x10, 10, 2, 0x77, 0x38",        // r10
    ".cfi_escape 0x10, 11, 3, 0x77, 0xc0, 0x0",   // r11
    ".cfi_escape 0x10, 12, 3, 0x77, 0xc8, 0x0",   // r12
    ".cfi_escape 0x10, 13, 3, 0x77, 0xd0, 0x0",   // r13
    ".cfi_escape 0x10, 14, 3, 0x77, 0xd8, 0x0",   // r14
    ".cfi_escape 0x10, 15, 3, 0x77, 0xe0, 0x0",   // r15
    ".cfi_escape 0x10, 16, 3, 0x77, 0xa8, 0x1",   // rip
    "nop",
    // Those that do not read that know the frame of a signal by these two instructions.
    "pagetide_sigreturn:",
    "mov rax, 15",
    "syscall",
    ".cfi_endproc",
    ".size pagetide_sigreturn, . - pagetide_sigreturn",
    ".popsection",
);

#[cfg(target_arch = "x86_64")]
fn restorer() -> usize {
    unsafe extern "C" {
        fn pagetide_sigreturn();
    }
    pagetide_sigreturn as *const () as usize
}

#[cfg(not(target_arch = "x86_64"))]
fn restorer() -> usize {
    0
}

/// Read and, if `new` is given, replace the action of a signal; the one before.
///
/// # Safety
/// A new handler is code that may run between any two instructions of any thread that does not block the signal, and the
/// program must be able to do without the old one.
pub unsafe fn action(signal: u32, new: Option<&Action>) -> Result<Action, Errno> {
    let mut old = Action::default();
    let new = new.map_or(0, |new| addr_of(new));
    let old_addr = addr_of(&raw mut old);
    // SAFETY: the kernel reads `new` and writes `old`, which have its layout; the caller vouches for the handler.
    unsafe { syscall!(__NR_rt_sigaction, signal as usize, new, old_addr, size_of::<SignalSet>()) }?;
    Ok(old)
}

/// The head of the kernel's `siginfo_t`, as a fault fills it.
#[repr(C)]
#[derive(Debug)]
pub struct SigInfo {
    /// Signal number.
    pub signal: i32,
    /// Error number, mostly 0.
    pub errno: i32,
    /// Why: `BUS_ADRERR` and the like; 0 and below: sent by a process.
    pub code: i32,
    _pad: i32,
    /// For SIGSEGV and SIGBUS of a fault: the address.
    pub addr: usize,
    _call: u32,
    /// For SIGSYS of a stopped call: what kind of call it is (`AUDIT_ARCH_...`).
    pub architecture: u32,
}

/// `si_code` of SIGBUS for a page that has no content: what userfaultfd in SIGBUS mode sends.
pub const BUS_ADDRESS_ERROR: i32 = 2;
/// `si_code` of SIGBUS for a poisoned page, on kernels built with memory failure handling; others send
/// [`BUS_ADDRESS_ERROR`] for it too.
pub const BUS_POISONED: i32 = 4;

/// Was the access that a SIGSEGV or SIGBUS handler is called for a write? `None` if the machine did not say.
///
/// # Safety
/// `context` is the third argument of such a handler, called for a fault of its own thread.
#[cfg(target_arch = "x86_64")]
pub unsafe fn fault_was_write(context: *const u8) -> Option<bool> {
    /// The error code of the fault: word 19 of the saved registers, which begin at byte 40.
    const ERROR_CODE: usize = 40 + 19 * 8;
    const WRITE: u64 = 2;
    // SAFETY: the context holds at least the saved registers.
    let place = unsafe { context.add(ERROR_CODE) };
    // SAFETY: as above; the kernel aligns the context to 8 and more.
    let code = unsafe { place.cast::<u64>().read() };
    Some(code & WRITE != 0)
}

/// Was the access that a SIGSEGV or SIGBUS handler is called for a write? `None` if the machine did not say.
///
/// # Safety
/// `context` is the third argument of such a handler, called for a fault of its own thread.
#[cfg(target_arch = "aarch64")]
pub unsafe fn fault_was_write(context: *const u8) -> Option<bool> {
    /// The list of records after the saved registers, and its length.
    const RECORDS: usize = 464;
    const RECORDS_BYTES: usize = 4096;
    /// The record with the syndrome of the fault.
    const SYNDROME: u32 = 0x4553_5201;
    const WRITE: u64 = 1 << 6;
    let mut offset = 0;
    while offset < RECORDS_BYTES {
        // SAFETY: the context holds this list, of records that begin with a magic number and a length.
        let record = unsafe { context.add(RECORDS + offset) };
        // SAFETY: as above; records are aligned to 16.
        let [magic, bytes] = unsafe { record.cast::<[u32; 2]>().read() };
        if magic == SYNDROME {
            // SAFETY: the record's value follows its head.
            let value = unsafe { record.cast::<[u64; 2]>().read() };
            return Some(value[1] & WRITE != 0);
        }
        if magic == 0 || bytes == 0 {
            break;
        }
        offset += bytes as usize;
    }
    None
}

/// The signals that the thread blocked when it was interrupted: what is blocked again when the handler returns.
///
/// # Safety
/// `context` is the third argument of a handler that runs.
pub unsafe fn interrupted_mask(context: *const u8) -> SignalSet {
    // Flags, link and stack; on x86_64 the registers come before the mask.
    #[cfg(target_arch = "x86_64")]
    const MASK: usize = 40 + 256;
    #[cfg(target_arch = "aarch64")]
    const MASK: usize = 40;
    // SAFETY: the context holds the mask there.
    let place = unsafe { context.add(MASK) };
    // SAFETY: as above; the kernel aligns the context to 8 and more.
    SignalSet(unsafe { place.cast::<u64>().read() })
}

/// Run the handler of `action` as the kernel would have for this signal, from within another handler of it. False: it has none.
///
/// # Safety
/// `action` was installed for this signal and its handler's code is still there; `info` and `context` are the arguments of a
/// handler that runs.
pub unsafe fn run_action(action: &Action, signal: u32, info: *mut SigInfo, context: *mut u8) -> bool {
    if matches!(action.handler, DEFAULT | IGNORE) {
        return false;
    }
    // SAFETY: as the caller promises.
    let interrupted = unsafe { interrupted_mask(context) };
    let own = if action.flags & action_flags::NO_DEFER == 0 { SignalSet::one(signal).0 } else { 0 };
    let before = change_mask(k::SIG_SETMASK, SignalSet(interrupted.0 | action.mask.0 | own));
    let pointer: *const u8 = core::ptr::with_exposed_provenance(action.handler);
    if action.flags & action_flags::INFO == 0 {
        // SAFETY: without the flag a handler takes the signal's number only.
        let handler = unsafe { core::mem::transmute::<*const u8, unsafe extern "C" fn(i32)>(pointer) };
        // SAFETY: as the caller promises.
        unsafe { handler(signal.cast_signed()) };
    } else {
        // SAFETY: with the flag a handler takes all three arguments.
        let handler = unsafe { core::mem::transmute::<*const u8, Handler>(pointer) };
        // SAFETY: as the caller promises.
        unsafe { handler(signal.cast_signed(), info, context) };
    }
    before.restore();
    true
}

/// An alternate signal stack: the kernel's `stack_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AltStack {
    start: usize,
    flags: i32,
    len: usize,
}

impl AltStack {
    /// `SS_DISABLE`
    pub const DISABLED: i32 = 2;
    /// `SS_ONSTACK`: told of a stack that is in use.
    pub const ON_STACK: i32 = 1;

    /// The memory of `range`.
    pub const fn new(range: ManagedRange) -> Self {
        Self { start: range.start(), flags: 0, len: range.len() }
    }

    /// True if there is none.
    pub const fn is_none(&self) -> bool {
        self.flags & Self::DISABLED != 0
    }

    /// First address and length.
    pub const fn place(&self) -> (usize, usize) {
        (self.start, self.len)
    }

    /// No stack.
    pub const fn none() -> Self {
        Self { start: 0, flags: Self::DISABLED, len: 0 }
    }

    /// Its flags.
    pub const fn flags(&self) -> i32 {
        self.flags
    }

    /// As the kernel tells of it.
    pub const fn told(self, is_in_use: bool) -> Self {
        Self { flags: self.flags | if is_in_use { Self::ON_STACK } else { 0 }, ..self }
    }

    /// Without a flag.
    pub const fn without(self, flag: i32) -> Self {
        Self { flags: self.flags & !flag, ..self }
    }

    /// As three words.
    pub const fn words(self) -> [u64; 3] {
        [self.start as u64, self.flags.cast_unsigned() as u64, self.len as u64]
    }

    /// From three words.
    pub const fn from_words([start, flags, len]: [u64; 3]) -> Self {
        Self { start: usize_of(start), flags: low_u32(flags).cast_signed(), len: usize_of(len) }
    }

    /// Read and, if `new` is given, replace the calling thread's alternate stack; the one before.
    ///
    /// # Safety
    /// The memory stays mapped, and nobody else's, as long as it is the thread's alternate stack.
    pub unsafe fn set(new: Option<&Self>) -> Result<Self, Errno> {
        let mut old = Self::default();
        let new = new.map_or(0, |new| addr_of(new));
        // SAFETY: the kernel reads `new` and writes `old`; the caller vouches for the memory.
        unsafe { syscall!(__NR_sigaltstack, new, addr_of(&raw mut old)) }?;
        Ok(old)
    }
}

/// Send a signal to a process (or, negative, to a group); 0 only looks whether it is there.
pub fn kill(pid: i32, signal: u32) -> Result<(), Errno> {
    // SAFETY: what the receiver does is its own affair.
    unsafe { syscall!(__NR_kill, int_arg(pid), signal as usize) }.map(|_| ())
}

/// Send a signal to one thread of a process.
pub fn kill_thread(pid: i32, tid: i32, signal: u32) -> Result<(), Errno> {
    // SAFETY: as for `kill`.
    unsafe { syscall!(__NR_tgkill, int_arg(pid), int_arg(tid), signal as usize) }.map(|_| ())
}

/// Send a signal to one thread of a process, with what comes with it (the kernel's `siginfo_t`). EPERM: only the kernel may say that.
pub fn queue_to_thread(pid: i32, tid: i32, signal: u32, info: &[u64; 16]) -> Result<(), Errno> {
    let info = addr_of(info);
    // SAFETY: the kernel reads the record; as for `kill` otherwise.
    unsafe { syscall!(__NR_rt_tgsigqueueinfo, int_arg(pid), int_arg(tid), signal as usize, info) }.map(|_| ())
}

/// End the process by SIGABRT, whatever the program does about that signal: its handler would run on this thread, and may touch
/// memory that waits for this thread.
pub fn abort() -> ! {
    // SAFETY: the process ends here, and no handler of the program runs any more.
    let _ = unsafe { action(number::ABRT, Some(&Action::DEFAULT)) };
    SignalSet::one(number::ABRT).unblock();
    let _ = kill_thread(thread::getpid(), thread::gettid(), number::ABRT);
    end_as_by(number::ABRT)
}

/// End the process by SIGKILL, as the kernel's own memory killer does: no handler of the program runs on memory that is not there.
pub fn end() -> ! {
    end_as_by(number::KILL)
}

/// The first process of a pid namespace ignores what it sends itself, SIGKILL too: it exits with the status that a shell shows for
/// `signal`.
fn end_as_by(signal: u32) -> ! {
    let _ = kill(thread::getpid(), number::KILL);
    thread::exit_process(128 + signal.cast_signed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicI32, Ordering};

    static SEEN: AtomicI32 = AtomicI32::new(0);

    unsafe extern "C" fn note(signal: i32, info: *mut SigInfo, _context: *mut u8) {
        // SAFETY: the kernel hands a valid record to a handler with three arguments.
        let code = unsafe { (*info).code };
        SEEN.store(signal * 100 + code, Ordering::SeqCst);
    }

    #[test]
    fn a_handler_runs_and_returns_and_a_blocked_signal_waits() {
        let new = Action::run(note, action_flags::RESTART, SignalSet::NONE);
        // SAFETY: the handler only stores a number; nobody else uses SIGUSR1 in this test program.
        let old = unsafe { action(number::USR1, Some(&new)) }.expect("sigaction");
        let before = SignalSet::one(number::USR1).block();
        let (pid, tid) = (crate::thread::getpid(), crate::thread::gettid());
        kill_thread(pid, tid, number::USR1).expect("tgkill");
        assert_eq!(SEEN.load(Ordering::SeqCst), 0);
        before.restore();
        // SI_TKILL is -6.
        assert_eq!(SEEN.load(Ordering::SeqCst), 10 * 100 - 6);
        // SAFETY: puts back what was there.
        let ours = unsafe { action(number::USR1, Some(&old)) }.expect("sigaction");
        assert_eq!(ours.handler, new.handler);
    }
}
