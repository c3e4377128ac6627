//! The first and the last instructions of our handlers.
//!
//! A handler that interrupted the program ends with its switch blocking, by a system call that the switch lets through because of where
//! its instruction is. A signal that comes between the last look at what is noted and that call sends the handler back to look again.

use std::arch::global_asm;

use pagetide_sys::Errno;
use pagetide_sys::dispatch::{Context, NOTED_AT, Register, SELECTOR_AT};
use pagetide_sys::signal::SigInfo;

use super::threads::Thread;
use super::{actions, clones, dispatch, inplace};

global_asm!(
    ".pushsection .text.pagetide_entry,\"ax\",@progbits",
    ".macro pagetide_entry name, body",
    ".hidden \\name",
    ".globl \\name",
    ".type \\name,@function",
    "\\name:",
    ".cfi_startproc",
    "mov rbx, rsp",
    ".cfi_def_cfa rbx, 8",
    "mov r12, rdx",
    "sub rsp, 8",
    "cld",
    // The program may have itself told of accesses that are not aligned (SIGBUS): ours are not.
    "pushfq",
    "and dword ptr [rsp], ~{alignment_check}",
    "popfq",
    "call \\body",
    "mov r13, rax",
    "test rax, rax",
    "jnz pagetide_tail",
    // A handler that interrupted one of ours ends as any other.
    "mov rsp, rbx",
    "ret",
    ".cfi_endproc",
    ".size \\name, . - \\name",
    ".endm",
    "pagetide_entry pagetide_on_call, {on_call}",
    "pagetide_entry pagetide_on_signal, {on_signal}",
    ".purgem pagetide_entry",
    ".hidden pagetide_tail_again",
    ".globl pagetide_tail_again",
    "pagetide_tail_again:",
    "mov byte ptr [r13 + {selector}], 0",
    "lea rsp, [rbx - 8]",
    "mov rdi, r13",
    "lea rsi, [rbx + 8]",
    "call {deliver}",
    ".hidden pagetide_tail",
    ".globl pagetide_tail",
    "pagetide_tail:",
    "cmp dword ptr [r13 + {noted}], 0",
    "jne pagetide_tail_again",
    "mov byte ptr [r13 + {selector}], 1",
    "lea rsp, [rbx + 8]",
    "jmp pagetide_gate",
    ".hidden pagetide_tail_end",
    ".globl pagetide_tail_end",
    "pagetide_tail_end:",
    "ud2",
    // A new thread or process in our memory: rdi: arguments, rsi: number, rdx: its frame, rcx: its block.
    ".hidden pagetide_clone",
    ".globl pagetide_clone",
    ".type pagetide_clone,@function",
    "pagetide_clone:",
    "push rbx",
    "push r12",
    "push r13",
    "mov r12, rdi",
    "mov rax, rsi",
    "mov rbx, rdx",
    "mov r13, rcx",
    "mov rdi, [r12]",
    "mov rsi, [r12 + 8]",
    "mov rdx, [r12 + 16]",
    "mov r10, [r12 + 24]",
    "mov r8, [r12 + 32]",
    "mov r9, [r12 + 40]",
    "syscall",
    "test rax, rax",
    "jz 2f",
    "pop r13",
    "pop r12",
    "pop rbx",
    "ret",
    "2:",
    "xor ebp, ebp",
    "lea rsp, [rbx - 8]",
    "mov rdi, r13",
    "call {begin}",
    "jmp pagetide_tail",
    ".size pagetide_clone, . - pagetide_clone",
    ".popsection",
    on_call = sym on_call_body,
    on_signal = sym on_signal_body,
    deliver = sym deliver_body,
    begin = sym clones::begin,
    selector = const SELECTOR_AT,
    noted = const NOTED_AT,
    alignment_check = const 1 << 18,
);

unsafe extern "C" {
    /// The handler of stopped calls.
    #[link_name = "pagetide_on_call"]
    pub(super) fn on_call(signal: i32, info: *mut SigInfo, context: *mut u8);
    /// The handler of all other signals.
    #[link_name = "pagetide_on_signal"]
    pub(super) fn on_signal(signal: i32, info: *mut SigInfo, context: *mut u8);
    fn pagetide_tail();
    fn pagetide_tail_end();
    fn pagetide_tail_again();
    fn pagetide_clone(arguments: *const [usize; 6], number: usize, frame: usize, block: usize) -> isize;
}

/// Calls of the calling thread go by the block's switch from now on.
pub(super) fn arm(block: &Thread) -> Result<(), Errno> {
    let range = inplace::unstopped();
    // SAFETY: blocks are never paged or unmapped, and SIGSYS is handled here.
    unsafe { block.switch().arm(*range.start(), range.end() + 1 - range.start()) }
}

/// In a handler that has noted a signal: one of ours that was about to return looks again.
pub(super) fn step_aside(context: &mut Context) {
    let at = context.get(Register::Rip);
    let (from, end) = (pagetide_tail as *const () as u64, pagetide_tail_end as *const () as u64);
    if (from..end).contains(&at) || inplace::ends_handler(at) {
        context.set(Register::Rip, pagetide_tail_again as *const () as u64);
    }
}

/// Make a thread or process that runs in our memory, from `frame` on in `block`.
///
/// # Safety
/// The arguments name the block's stack below the frame as its stack; the frame is one that `rt_sigreturn` takes, 8 below a multiple of 16.
pub(super) unsafe fn clone(arguments: &[usize; 6], number: u32, frame: usize, block: &Thread) -> isize {
    // SAFETY: the caller's.
    unsafe { pagetide_clone(arguments, number as usize, frame, block.start()) }
}

unsafe extern "C" fn on_call_body(_signal: i32, info: *mut SigInfo, context: *mut Context) -> *const Thread {
    // SAFETY: the kernel's arguments of a handler of SIGSYS.
    unsafe { dispatch::on_call(info, context) }
}

unsafe extern "C" fn on_signal_body(signal: i32, info: *mut SigInfo, context: *mut Context) -> *const Thread {
    // SAFETY: the kernel's arguments of a handler.
    unsafe { actions::on_signal(signal.cast_unsigned(), info, context) }
}

unsafe extern "C" fn deliver_body(block: *const Thread, context: *mut Context) {
    // SAFETY: the block of the handler, which ends with this.
    let block = unsafe { &*block };
    // SAFETY: the handler's own frame.
    let context = unsafe { &mut *context };
    actions::deliver_noted(block, context);
}
