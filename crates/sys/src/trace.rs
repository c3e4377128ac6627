//! Running a piece of code in a thread of another process: stop it, save what it is about, set its registers, put all back.
//!
//! For the tracer's thread alone: the kernel ties a tracee to the thread that seized it. A tracee that was seized and not let go
//! is let go when the tracer ends; with [`END_WITH_TRACER`] it is killed instead, so that nobody runs on half-set registers.

use linux_raw_sys::general::{__NR_ptrace, __NR_wait4};

use crate::signal::SignalSet;
use crate::syscall;
use crate::syscall::{Errno, retry_eintr};
use crate::word::{addr_of, int_arg, int_of, u64_of};

/// The tracee is killed when the tracer ends.
pub const END_WITH_TRACER: usize = 1 << 20;

const CONT: usize = 7;
const DETACH: usize = 17;
const GET_REGISTER_SET: usize = 0x4204;
const SET_REGISTER_SET: usize = 0x4205;
const SEIZE: usize = 0x4206;
const INTERRUPT: usize = 0x4207;
const GET_SIGNAL_MASK: usize = 0x420a;
const SET_SIGNAL_MASK: usize = 0x420b;

/// `NT_PRSTATUS`: the general registers.
const GENERAL: usize = 1;
/// `PTRACE_EVENT_STOP`
const EVENT_STOP: i32 = 128;
const SIGTRAP: i32 = 5;
/// `__WALL | WNOHANG`
const LOOK: usize = 0x4000_0000 | 1;

#[cfg(target_arch = "x86_64")]
mod arch {
    use super::Interrupted;

    /// `struct user_regs_struct`
    pub(super) const WORDS: usize = 27;
    /// `NT_X86_XSTATE`: all vector registers.
    pub(super) const VECTOR: usize = 0x202;
    const R10: usize = 7;
    const R9: usize = 8;
    const R8: usize = 9;
    const RAX: usize = 10;
    const RCX: usize = 11;
    const RDX: usize = 12;
    const RSI: usize = 13;
    const RDI: usize = 14;
    const ORIG_RAX: usize = 15;
    const RIP: usize = 16;
    const EFLAGS: usize = 18;
    const RSP: usize = 19;

    /// As [`Interrupted::NONE`] if none was, or if it is made anew from its beginning.
    pub(super) fn interrupted(words: &[u64; WORDS]) -> Interrupted {
        /// `-ERESTART_RESTARTBLOCK`
        const GOES_ON: u64 = (-516_i64).cast_unsigned();
        if words[RAX] != GOES_ON {
            return Interrupted::NONE;
        }
        Interrupted { number: words[ORIG_RAX], first: words[RDI], second: words[RSI], fourth: words[R10] }
    }

    /// As just after a call of `entry(first, second, interrupted)`; no system call is started again.
    pub(super) fn call(words: &mut [u64; WORDS], entry: u64, stack: u64, first: u64, second: u64) {
        let interrupted = interrupted(words);
        words[RDI] = first;
        words[RSI] = second;
        words[RDX] = interrupted.number;
        words[RCX] = interrupted.first;
        words[R8] = interrupted.second;
        words[R9] = interrupted.fourth;
        words[RIP] = entry;
        words[RSP] = (stack & !15) - 8;
        words[ORIG_RAX] = u64::MAX;
        // The direction flag is clear where functions begin.
        words[EFLAGS] &= !0x400;
    }
}

#[cfg(target_arch = "aarch64")]
mod arch {
    /// `struct user_pt_regs`
    pub(super) const WORDS: usize = 34;
    /// `NT_PRFPREG`
    pub(super) const VECTOR: usize = 2;
    const SP: usize = 31;
    const PC: usize = 32;

    /// As just after a call of `entry(first, second)`.
    pub(super) fn call(words: &mut [u64; WORDS], entry: u64, stack: u64, first: u64, second: u64) {
        words[0] = first;
        words[1] = second;
        words[29] = 0;
        words[30] = 0;
        words[SP] = stack & !15;
        words[PC] = entry;
    }
}

/// A system call that a stop has interrupted, and that goes on where it was (`restart_syscall`): its number and those of its arguments
/// that may name memory which the rest of it touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted {
    /// [`u64::MAX`]: there is none.
    pub number: u64,
    /// Its first argument.
    pub first: u64,
    /// Its second.
    pub second: u64,
    /// Its fourth.
    pub fourth: u64,
}

impl Interrupted {
    /// No call goes on.
    pub const NONE: Self = Self { number: u64::MAX, first: 0, second: 0, fourth: 0 };

    /// True if there is one.
    pub const fn is_any(&self) -> bool {
        self.number != u64::MAX
    }
}

/// Bytes of vector registers at most.
const VECTOR_BYTES: usize = 16 << 10;

/// What a thread is about: registers and blocked signals.
#[derive(Clone, Copy)]
pub struct Saved {
    general: [u64; arch::WORDS],
    #[cfg(target_arch = "aarch64")]
    system_call: [u32; 1],
    vector: [u8; VECTOR_BYTES],
    vector_bytes: usize,
    mask: u64,
}

impl core::fmt::Debug for Saved {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Saved").field("general", &self.general).field("mask", &self.mask).finish_non_exhaustive()
    }
}

impl Saved {
    /// The signals that the thread blocks.
    pub const fn mask(&self) -> SignalSet {
        SignalSet(self.mask)
    }

    /// It blocks these from now on.
    pub const fn set_mask(&mut self, mask: SignalSet) {
        self.mask = mask.0;
    }
}

/// Where a tracee is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt {
    /// It runs.
    None,
    /// Stopped by [`Tracee::interrupt`].
    Trap,
    /// Stopped because its process is (SIGSTOP and the like).
    Group,
    /// About to receive this signal, which has to be handed on.
    Signal(u32),
    /// Gone, with this status of wait.
    Ended(i32),
}

impl Halt {
    /// What a status of wait says.
    pub const fn of(status: i32) -> Self {
        if status & 0xff != 0x7f {
            return Self::Ended(status);
        }
        let signal = (status >> 8) & 0xff;
        match status >> 16 {
            EVENT_STOP if signal == SIGTRAP => Self::Trap,
            EVENT_STOP => Self::Group,
            0 => Self::Signal(signal.cast_unsigned()),
            // An event that nobody asked for: goes on as from an interrupt.
            _ => Self::Trap,
        }
    }
}

/// A thread that this thread traces.
#[derive(Debug)]
pub struct Tracee {
    tid: i32,
}

#[repr(C)]
struct Piece {
    base: usize,
    len: usize,
}

impl Tracee {
    /// Trace a thread, which goes on. EPERM: it has a tracer, or may not be traced. ESRCH: it is gone.
    pub fn seize(tid: i32, options: usize) -> Result<Self, Errno> {
        // SAFETY: the thread goes on as it was.
        unsafe { request(SEIZE, tid, 0, options) }.map(|_| Self { tid })
    }

    /// Its number.
    pub const fn tid(&self) -> i32 {
        self.tid
    }

    /// Stop it soon.
    pub fn interrupt(&self) -> Result<(), Errno> {
        // SAFETY: a stop changes nothing.
        unsafe { request(INTERRUPT, self.tid, 0, 0) }.map(|_| ())
    }

    /// Where it is; each stop is told once. The end of a child of ours is told here and by no later wait.
    pub fn look(&self) -> Result<Halt, Errno> {
        let mut status = 0i32;
        // SAFETY: the kernel writes the status.
        let call = || unsafe { syscall!(__NR_wait4, int_arg(self.tid), addr_of(&raw mut status), LOOK, 0) };
        let seen = int_of(retry_eintr(call)?);
        Ok(if seen == 0 { Halt::None } else { Halt::of(status) })
    }

    /// What the stopped thread is about.
    pub fn save(&self) -> Result<Saved, Errno> {
        let mut saved = Saved {
            general: [0; arch::WORDS],
            #[cfg(target_arch = "aarch64")]
            system_call: [0],
            vector: [0; VECTOR_BYTES],
            vector_bytes: 0,
            mask: 0,
        };
        self.get(GENERAL, &mut saved.general)?;
        #[cfg(target_arch = "aarch64")]
        self.get(SYSTEM_CALL, &mut saved.system_call)?;
        saved.vector_bytes = self.get(arch::VECTOR, &mut saved.vector)?;
        let place = addr_of(&raw mut saved.mask);
        // SAFETY: the kernel writes one mask.
        unsafe { request(GET_SIGNAL_MASK, self.tid, size_of::<SignalSet>(), place) }?;
        Ok(saved)
    }

    /// Let the stopped thread run `entry(first, second)` on a stack that ends at `stack`, with all signals blocked. On x86-64 the words of
    /// an [`Interrupted`] follow as arguments.
    ///
    /// # Safety
    /// The code does not return, and nothing else runs on that stack.
    pub unsafe fn call(&self, saved: &Saved, entry: u64, stack: u64, first: u64, second: u64) -> Result<(), Errno> {
        let mut general = saved.general;
        arch::call(&mut general, entry, stack, first, second);
        self.set(GENERAL, &general)?;
        #[cfg(target_arch = "aarch64")]
        self.set(SYSTEM_CALL, &[u32::MAX])?;
        self.set_mask(u64::MAX)?;
        self.resume(0)
    }

    /// Put back what was saved.
    pub fn restore(&self, saved: &Saved) -> Result<(), Errno> {
        self.set(arch::VECTOR, &saved.vector[..saved.vector_bytes])?;
        #[cfg(target_arch = "aarch64")]
        self.set(SYSTEM_CALL, &saved.system_call)?;
        self.set(GENERAL, &saved.general)?;
        self.set_mask(saved.mask)
    }

    /// Go on, with this signal if it is not 0.
    pub fn resume(&self, signal: u32) -> Result<(), Errno> {
        // SAFETY: the stopped thread goes on with the registers that it has.
        unsafe { request(CONT, self.tid, 0, signal as usize) }.map(|_| ())
    }

    /// Trace it no longer. Only while it is stopped.
    pub fn release(self) -> Result<(), Errno> {
        // SAFETY: the stopped thread goes on with the registers that it has.
        unsafe { request(DETACH, self.tid, 0, 0) }.map(|_| ())
    }

    fn get<T>(&self, set: usize, words: &mut [T]) -> Result<usize, Errno> {
        let piece = Piece { base: addr_of(words.as_mut_ptr()), len: size_of_val(words) };
        // SAFETY: the kernel writes at most that many bytes, into integers, and the number into `piece`.
        unsafe { request(GET_REGISTER_SET, self.tid, set, addr_of(&raw const piece)) }?;
        // SAFETY: the kernel wrote the field behind our back.
        Ok(unsafe { (&raw const piece.len).read_volatile() })
    }

    fn set<T>(&self, set: usize, words: &[T]) -> Result<(), Errno> {
        let piece = Piece { base: addr_of(words.as_ptr()), len: size_of_val(words) };
        // SAFETY: the kernel reads the registers; who calls `call` vouches for what they make the thread do.
        unsafe { request(SET_REGISTER_SET, self.tid, set, addr_of(&raw const piece)) }.map(|_| ())
    }

    fn set_mask(&self, mask: u64) -> Result<(), Errno> {
        let place = addr_of(&raw const mask);
        // SAFETY: the kernel reads one mask.
        unsafe { request(SET_SIGNAL_MASK, self.tid, size_of::<SignalSet>(), place) }.map(|_| ())
    }
}

/// `NT_ARM_SYSTEM_CALL`
#[cfg(target_arch = "aarch64")]
const SYSTEM_CALL: usize = 0x404;

/// # Safety
/// The request reads and writes what the caller says, in this process and in the tracee.
unsafe fn request(request: usize, tid: i32, address: usize, data: usize) -> Result<u64, Errno> {
    // SAFETY: as the caller promises.
    unsafe { syscall!(__NR_ptrace, request, int_arg(tid), address, data) }.map(u64_of)
}
