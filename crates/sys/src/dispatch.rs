//! Standing in for the kernel at system calls: Syscall User Dispatch, the saved context of a handler, calls that a signal can call
//! off, and copies of memory that may not be there. x86-64.
//!
//! The kernel sends SIGSYS instead of making a call while a thread's *switch* says so. Each thread has its switch in memory of its
//! own that is always there. A handler turns the switch, makes the call itself by [`call`], and turns it back at its end.
//!
//! A signal that arrives in the midst of that must neither be lost nor be handled here. Who receives it notes it in the switch
//! ([`Switch::note`]); a call that has not begun by then is not made any more ([`step_aside`] sees to those that are just at
//! the instruction), and answers [`NOT_MADE`]. What must be made all the same, because something has been done already of which it is
//! the rest, and waits for nothing, no signal calls off ([`call_surely`]).

use core::arch::global_asm;
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use linux_raw_sys::general::__NR_prctl;

use crate::signal::SignalSet;
use crate::syscall;
use crate::syscall::Errno;
use crate::word::addr_of;

const PR_SET_SYSCALL_USER_DISPATCH: usize = 59;
const ALLOW: u8 = 0;
const BLOCK: u8 = 1;

/// The answer of a call that was not made, because a signal came first (`ERESTARTSYS`, which the kernel keeps to itself).
pub const NOT_MADE: isize = -512;

/// `si_code` of SIGSYS for a call that the switch has stopped.
pub const SYS_USER_DISPATCH: i32 = 2;

/// A thread's switch: whether its system calls are made or told of, and the signal that waits for the end of one.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Switch {
    selector: AtomicU8,
    _pad: [u8; 3],
    noted: AtomicU32,
}

/// Where [`Switch`] has what the code of handlers compares and sets.
pub const SELECTOR_AT: usize = core::mem::offset_of!(Switch, selector);
/// As [`SELECTOR_AT`].
pub const NOTED_AT: usize = core::mem::offset_of!(Switch, noted);
const _: () = assert!(NOTED_AT == 4 && SELECTOR_AT == 0);

impl Switch {
    /// A switch that lets calls through.
    pub const fn new() -> Self {
        Self { selector: AtomicU8::new(ALLOW), _pad: [0; 3], noted: AtomicU32::new(0) }
    }

    /// Calls of this thread are made.
    pub fn allow(&self) {
        self.selector.store(ALLOW, Ordering::SeqCst);
    }

    /// Calls of this thread are told of.
    pub fn block(&self) {
        self.selector.store(BLOCK, Ordering::SeqCst);
    }

    /// A signal waits.
    pub fn note(&self, signal: u32) {
        self.noted.store(signal, Ordering::SeqCst);
    }

    /// True if a signal waits.
    pub fn is_noted(&self) -> bool {
        self.noted.load(Ordering::SeqCst) != 0
    }

    /// The signal that waits, which does so no longer; 0: none.
    pub fn take_noted(&self) -> u32 {
        self.noted.swap(0, Ordering::SeqCst)
    }

    /// From now on the calling thread's calls go by this switch, but for those whose instruction ends in `from..from + len`.
    ///
    /// # Safety
    /// The switch stays in memory, without ever being paged, as long as the thread; SIGSYS has a handler that answers for the calls.
    pub unsafe fn arm(&self, from: usize, len: usize) -> Result<(), Errno> {
        const ON: usize = 1;
        let place = addr_of(self.selector.as_ptr());
        // SAFETY: the kernel reads one byte, which the caller keeps.
        unsafe { syscall!(__NR_prctl, PR_SET_SYSCALL_USER_DISPATCH, ON, from, len, place) }.map(|_| ())
    }
}

/// Ok if the kernel lets threads be armed.
pub fn is_available() -> Result<(), Errno> {
    // SAFETY: a thread that is not armed is not armed.
    unsafe { syscall!(__NR_prctl, PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0) }.map(|_| ())
}

/// What the kernel saves for a handler and restores after it: `struct ucontext`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Context {
    /// What of the rest is there.
    pub flags: u64,
    link: u64,
    /// The alternate stack: start, flags, length.
    pub stack: [u64; 3],
    registers: [u64; 23],
    /// Address of the vector registers.
    pub vector: u64,
    reserved: [u64; 8],
    /// Signals that are blocked when the handler returns.
    pub mask: SignalSet,
}

/// Index of a general register in a [`Context`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the machine's names")]
pub enum Register {
    R8 = 0,
    R9 = 1,
    R10 = 2,
    Rdi = 8,
    Rsi = 9,
    Rbp = 10,
    Rbx = 11,
    Rdx = 12,
    Rax = 13,
    Rcx = 14,
    Rsp = 15,
    Rip = 16,
    Flags = 17,
}
const _: () = assert!(size_of::<Context>() == 304);

impl Context {
    /// The value of a register.
    pub const fn get(&self, register: Register) -> u64 {
        self.registers[register as usize]
    }

    /// Give a register a value.
    pub const fn set(&mut self, register: Register, value: u64) {
        self.registers[register as usize] = value;
    }

    /// Go on where `saved` says: all general registers but those of the machine's segments and faults.
    pub fn take_registers(&mut self, saved: &Self) {
        const GENERAL: usize = Register::Flags as usize + 1;
        self.registers[..GENERAL].copy_from_slice(&saved.registers[..GENERAL]);
    }

    /// The arguments of the call that was stopped.
    pub fn arguments(&self) -> [usize; 6] {
        use Register::{R8, R9, R10, Rdi, Rdx, Rsi};
        [Rdi, Rsi, Rdx, R10, R8, R9].map(|register| crate::word::usize_of(self.get(register)))
    }
}

/// Bytes of the vector registers at `place`, as the first 512 of them say.
///
/// # Safety
/// `place` is the `vector` of a context that the kernel has saved, or a copy of so many bytes.
pub unsafe fn vector_bytes(place: *const u8) -> usize {
    const MAGIC: u32 = 0x4650_5853;
    const LEGACY: usize = 512;
    /// In the part that software may use.
    const TOLD_AT: usize = 464;
    // SAFETY: within the first 512 bytes.
    let told = unsafe { place.add(TOLD_AT) };
    // SAFETY: as above; the place is aligned to 16 and more.
    let [magic, bytes] = unsafe { told.cast::<[u32; 2]>().read_unaligned() };
    if magic == MAGIC { bytes as usize } else { LEGACY }
}

global_asm!(
    ".pushsection .text.pagetide_dispatch,\"ax\",@progbits",
    ".hidden pagetide_call",
    ".globl pagetide_call",
    ".type pagetide_call,@function",
    "pagetide_call:",
    ".cfi_startproc",
    "push rbx",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rbx, 0",
    "mov rbx, rdi",
    "mov rax, rdx",
    "mov rdi, [rsi]",
    "mov rdx, [rsi + 16]",
    "mov r10, [rsi + 24]",
    "mov r8, [rsi + 32]",
    "mov r9, [rsi + 40]",
    "mov rsi, [rsi + 8]",
    ".hidden pagetide_call_from",
    ".globl pagetide_call_from",
    "pagetide_call_from:",
    "cmp dword ptr [rbx + 4], 0",
    "jne pagetide_call_not",
    ".hidden pagetide_call_at",
    ".globl pagetide_call_at",
    "pagetide_call_at:",
    "syscall",
    ".cfi_remember_state",
    "pop rbx",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore rbx",
    "ret",
    ".cfi_restore_state",
    ".hidden pagetide_call_not",
    ".globl pagetide_call_not",
    "pagetide_call_not:",
    "mov rax, -512",
    "pop rbx",
    ".cfi_adjust_cfa_offset -8",
    ".cfi_restore rbx",
    "ret",
    ".cfi_endproc",
    ".size pagetide_call, . - pagetide_call",
    ".hidden pagetide_copy",
    ".globl pagetide_copy",
    ".type pagetide_copy,@function",
    "pagetide_copy:",
    ".cfi_startproc",
    "mov rcx, rdx",
    ".hidden pagetide_copy_at",
    ".globl pagetide_copy_at",
    "pagetide_copy_at:",
    "rep movsb",
    "xor eax, eax",
    "ret",
    ".hidden pagetide_copy_failed",
    ".globl pagetide_copy_failed",
    "pagetide_copy_failed:",
    "mov eax, 1",
    "ret",
    ".cfi_endproc",
    ".size pagetide_copy, . - pagetide_copy",
    ".popsection",
);

unsafe extern "C" {
    fn pagetide_call(switch: *const Switch, arguments: *const [usize; 6], number: usize) -> isize;
    fn pagetide_call_from();
    fn pagetide_call_at();
    fn pagetide_call_not();
    fn pagetide_copy(to: usize, from: usize, len: usize) -> u32;
    fn pagetide_copy_at();
    fn pagetide_copy_failed();
}

/// Make a call: what the kernel answers, negative errors and all, or [`NOT_MADE`].
///
/// # Safety
/// As for the call itself. It makes no other thread or process that returns here on another stack.
pub unsafe fn call(switch: &Switch, number: u32, arguments: &[usize; 6]) -> isize {
    // SAFETY: the caller's; the code keeps to the C calling convention.
    unsafe { pagetide_call(switch, arguments, number as usize) }
}

/// In it no signal is ever noted.
static NEVER: Switch = Switch::new();

/// Make a call that does not wait for anything, whether or not a signal has come: what the kernel answers, negative errors and all.
///
/// # Safety
/// As for [`call`].
pub unsafe fn call_surely(number: u32, arguments: &[usize; 6]) -> isize {
    // SAFETY: the caller's.
    unsafe { call(&NEVER, number, arguments) }
}

fn place(code: unsafe extern "C" fn()) -> u64 {
    crate::word::u64_of(code as *const () as usize)
}

/// In a handler that has noted a signal: a call that was about to begin, or to begin again, is not made.
pub fn step_aside(context: &mut Context) {
    let at = context.get(Register::Rip);
    let is_call = (place(pagetide_call_from)..=place(pagetide_call_at)).contains(&at);
    // Where the call has its switch.
    if is_call && context.get(Register::Rbx) != crate::word::u64_of(addr_of(&raw const NEVER)) {
        context.set(Register::Rip, place(pagetide_call_not));
    }
}

/// In a handler of SIGSEGV and SIGBUS: true if it was a copy of ours that met memory that is not there, and the copy will say so.
pub fn was_copy(context: &mut Context) -> bool {
    let is_ours = context.get(Register::Rip) == place(pagetide_copy_at);
    if is_ours {
        context.set(Register::Rip, place(pagetide_copy_failed));
    }
    is_ours
}

/// In a handler of SIGSYS: true if a call of ours was stopped, by something other than a switch.
pub fn was_call(context: &Context) -> bool {
    const INSTRUCTION_BYTES: u64 = 2;
    context.get(Register::Rip) == place(pagetide_call_at) + INSTRUCTION_BYTES
}

/// Copy memory of which either side may not be there. False: it was not, and some of it may have been copied.
///
/// # Safety
/// The bytes at `to` are the caller's to write, and nobody relies on them; a handler calls [`was_copy`].
#[must_use]
pub unsafe fn copy(to: usize, from: usize, len: usize) -> bool {
    // SAFETY: the caller's.
    unsafe { pagetide_copy(to, from, len) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux_raw_sys::general::__NR_getpid;

    #[test]
    fn a_call_is_not_made_once_a_signal_waits() {
        let switch = Switch::new();
        // SAFETY: changes nothing.
        let pid = unsafe { call(&switch, __NR_getpid, &[0; 6]) };
        assert_eq!(pid, isize::try_from(std::process::id()).expect("small"));
        switch.note(10);
        // SAFETY: changes nothing.
        assert_eq!(unsafe { call(&switch, __NR_getpid, &[0; 6]) }, NOT_MADE);
        assert_eq!((switch.take_noted(), switch.take_noted()), (10, 0));
    }

    /// As a debugger does, from a handler that has interrupted a call of ours back to who made it.
    #[test]
    fn what_a_handler_has_interrupted_is_found_by_unwinding() {
        static FOUND: std::sync::Mutex<std::string::String> = std::sync::Mutex::new(std::string::String::new());
        unsafe extern "C" fn look(_signal: i32, _info: *mut crate::signal::SigInfo, _context: *mut u8) {
            let frames = std::format!("{}", std::backtrace::Backtrace::force_capture());
            *FOUND.lock().expect("nobody else has it") = frames;
        }
        const SIGNAL: u32 = 12;
        let looks = crate::signal::Action::run(look, 0, SignalSet::NONE);
        // SAFETY: the handler interrupts the call below and nothing else.
        let before = unsafe { crate::signal::action(SIGNAL, Some(&looks)) }.expect("a handler can be installed");
        let own = [crate::thread::getpid(), crate::thread::gettid(), SIGNAL.cast_signed()];
        let [process, thread, signal] = own.map(|number| usize::try_from(number).expect("positive"));
        // SAFETY: a signal to this thread.
        let sent = unsafe { call_surely(linux_raw_sys::general::__NR_tgkill, &[process, thread, signal, 0, 0, 0]) };
        // SAFETY: as it was.
        unsafe { crate::signal::action(SIGNAL, Some(&before)) }.expect("as above");
        let found = FOUND.lock().expect("nobody else has it");
        assert!(sent == 0 && found.contains("what_a_handler_has_interrupted"), "{sent}: {found}");
    }

    #[test]
    fn what_is_there_is_copied() {
        let from = *b"some bytes";
        let mut to = [0; 10];
        // SAFETY: both are here.
        assert!(unsafe { copy(addr_of(&raw mut to), addr_of(&raw const from), 10) });
        assert_eq!(to, from);
    }

    #[test]
    fn a_call_that_would_begin_steps_aside_and_others_do_not() {
        // SAFETY: integers alone.
        let mut context: Context = unsafe { core::mem::zeroed() };
        context.set(Register::Rip, place(pagetide_call_at));
        step_aside(&mut context);
        assert_eq!(context.get(Register::Rip), place(pagetide_call_not));
        context.set(Register::Rip, place(pagetide_call_at));
        context.set(Register::Rbx, crate::word::u64_of(addr_of(&raw const NEVER)));
        step_aside(&mut context);
        assert_eq!(context.get(Register::Rip), place(pagetide_call_at), "no signal calls it off");
        context.set(Register::Rip, 0x1000);
        step_aside(&mut context);
        assert!(!was_copy(&mut context) && context.get(Register::Rip) == 0x1000);
        context.set(Register::Rip, place(pagetide_copy_at));
        assert!(was_copy(&mut context) && context.get(Register::Rip) == place(pagetide_copy_failed));
    }
}
