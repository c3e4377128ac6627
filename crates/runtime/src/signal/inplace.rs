//! Calls that are made in place, without a signal: the ones that programs make most, from call sites that lead here (`sites`).
//!
//! What the handler of stopped calls does, in a few instructions that need no stack: the registers are kept in the thread's block, the
//! ranges that the call may touch are published and touched as its [`shape`] says, and the call is made by an instruction that no switch
//! stops. Whatever is not so simple goes back to the site, whose own instruction is still there and is stopped as ever.
//!
//! Invariants: at every instruction here, [`step_out`] puts the thread back to the site, before its call or behind it, as if it had
//! never left: so signals find the program where they find it natively, and a call that a signal interrupts is restarted or not by
//! the kernel itself. A thread that shares its control block with another one has no block here.

use std::arch::global_asm;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pagetide_sys::dispatch::{Context, Register};
use pagetide_sys::syscalls::{Call, Class, Place, Size};

use super::threads::{self, Thread};
use crate::space::held::{HELD, Held, TAKING_AT};

/// Numbers that have a shape are below.
const NUMBERS: usize = 512;
/// A call that may touch more at one place is not made here.
const BYTES_MAX: usize = 64 << 10;
/// Places of one call.
const PLACES_MAX: usize = 3;
const PLACE_BITS: u32 = 16;
/// Of a place: its length is its unit.
const NO_COUNT: u64 = 7;
const UNIT_MAX: u64 = (1 << 10) - 1;
/// Where the arguments are noted that must be 0.
const ZERO_AT: u32 = 48;
const IS_SHAPE: u64 = 1 << 63;
const FUTEX: u32 = 202;
/// A word that is waited for, or woken at.
const FUTEX_WAKE: u64 = IS_SHAPE | place(0, NO_COUNT, 4);
/// The same, with a time.
const FUTEX_WAIT: u64 = FUTEX_WAKE | place(3, NO_COUNT, 16) << PLACE_BITS;

/// Never anything but 0.
static RESTING: AtomicU32 = AtomicU32::new(0);
/// What each call touches, by number; 0: it is not made here.
static SHAPES: [AtomicU64; NUMBERS] = [const { AtomicU64::new(0) }; NUMBERS];

/// Of a thread's block: a call that is made in place.
#[repr(C)]
#[derive(Debug)]
pub(super) struct InPlace {
    arguments: [Cell<u64>; 6],
    number: Cell<u64>,
    /// The site's system call instruction.
    site: Cell<u64>,
}

/// Memory at an argument: as many units as another one says.
const fn place(argument: u64, count: u64, unit: u64) -> u64 {
    (argument + 1) | count << 3 | unit << 6
}

/// What a call touches, if that is said by its registers alone: up to three places, and arguments that must be 0 for it to hold.
fn shape(call: &Call) -> Option<u64> {
    /// Calls that the handler changes or looks into: `close`, `fstat`, `dup`, `dup2`, `setsockopt`, `rt_sigtimedwait`, `setrlimit`,
    /// `restart_syscall`, `dup3`, `prlimit64`, `close_range`.
    const LOOKED_INTO: [u32; 11] = [3, 5, 32, 33, 54, 128, 160, 219, 292, 302, 436];
    if !matches!(call.class, Class::Plain | Class::Waiting | Class::Stream | Class::Consuming)
        || LOOKED_INTO.contains(&call.number)
    {
        return None;
    }
    let mut shape = IS_SHAPE;
    let mut places = 0;
    for (&kind, argument) in call.places.iter().zip(0_u64..) {
        let (count, unit) = match kind {
            Place::V => continue,
            // An address whose length stands elsewhere: only without one.
            Place::In(Size::At(_)) | Place::Out(Size::At(_)) | Place::Both(Size::At(_)) => {
                shape |= 1 << (ZERO_AT + u32::try_from(argument).ok()?);
                continue;
            }
            Place::In(size) | Place::Out(size) | Place::Both(size) => match size {
                Size::Bytes(bytes) => (NO_COUNT, u64::from(bytes)),
                Size::Arg(count) => (u64::from(count), 1),
                Size::Times(count, unit) => (u64::from(count), u64::from(unit)),
                Size::ArgPlus(..)
                | Size::Bits(_)
                | Size::PagesOf(_)
                | Size::At(_)
                | Size::Own
                | Size::OwnPlus(_)
                | Size::Loose(_) => return None,
            },
            Place::Text
            | Place::Texts
            | Place::VectorsIn(_)
            | Place::VectorsOut(_)
            | Place::MessageIn
            | Place::MessageOut
            | Place::MessagesIn(_)
            | Place::MessagesOut(_)
            | Place::Odd(_) => return None,
        };
        if places == PLACES_MAX || unit > UNIT_MAX {
            return None;
        }
        shape |= place(argument, count, unit) << (PLACE_BITS * u32::try_from(places).ok()?);
        places += 1;
    }
    Some(shape)
}

/// True if a call of this number may be made here.
pub(super) fn has(number: u32) -> bool {
    number == FUTEX || Call::find(number).is_some_and(|call| shape(call).is_some())
}

/// Before the first thread is armed.
pub(super) fn prepare() {
    for (word, number) in SHAPES.iter().zip(0..) {
        word.store(Call::find(number).and_then(shape).unwrap_or(0), Ordering::Relaxed);
    }
}

/// The calling thread's calls are made in place from now on, if they come from a site that leads here.
pub(super) fn begin(block: &Thread) {
    // SAFETY: a word of this thread's that nothing else uses; the block is the thread's.
    unsafe { pagetide_in_place_set(block.start()) };
}

/// No call is made in place by whoever has the calling thread's control block, until [`go_on`]; what that needs.
pub(super) fn pause() -> Paused {
    // SAFETY: as above; without a block every call is stopped.
    Paused(unsafe { pagetide_in_place_set(0) })
}

/// As before [`pause`].
pub(super) fn go_on(paused: Paused) {
    // SAFETY: as above; the block that was the thread's.
    unsafe { pagetide_in_place_set(paused.0) };
}

/// What the control block had.
pub(super) struct Paused(usize);

/// The address that a site jumps to: the number in RAX, the address of its system call instruction in RCX.
pub(super) fn entry() -> u64 {
    address(call_in_place)
}

fn address(code: unsafe extern "C" fn()) -> u64 {
    code as *const () as u64
}

/// The addresses of the system call instructions that no switch stops: as the kernel compares, behind them.
pub(super) fn unstopped() -> std::ops::RangeInclusive<usize> {
    let [from, to] = [pagetide_gate_return, pagetide_in_place_called].map(address);
    pagetide_sys::word::usize_of(from)..=pagetide_sys::word::usize_of(to)
}

/// Sleep, with all signals blocked, until the supervisor puts the thread elsewhere. A call that it was interrupted in is restarted as
/// if this one had not been: a sleep without a time leaves nothing with the kernel.
pub(crate) fn rest() -> ! {
    // SAFETY: it touches a word of ours only, and does not return.
    unsafe { pagetide_rest() }
}

/// True at the last instructions of a handler of ours.
pub(super) fn ends_handler(at: u64) -> bool {
    (address(pagetide_gate)..=address(pagetide_gate_return)).contains(&at)
}

/// Where a signal has found a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// Not here.
    Elsewhere,
    /// Here, and put back to its site.
    Here,
    /// The same, about to touch what its call may touch.
    AtTouch,
}

/// Put a thread that a signal has found here back to its site.
pub(super) fn step_out(block: &Thread, context: &mut Context) -> Found {
    let at = context.get(Register::Rip);
    if at == address(pagetide_in_place_leave) {
        context.set(Register::Rip, context.get(Register::Rcx));
        return Found::Here;
    }
    if !(address(call_in_place)..address(pagetide_in_place_end)).contains(&at) {
        return Found::Elsewhere;
    }
    let call = block.in_place();
    if at < address(pagetide_in_place_saved) {
        context.set(Register::Rip, context.get(Register::Rcx));
    } else if at < address(pagetide_in_place_called) {
        use Register::{R8, R9, R10, Rdi, Rdx, Rsi};
        for (register, value) in [Rdi, Rsi, Rdx, R10, R8, R9].into_iter().zip(&call.arguments) {
            context.set(register, value.get());
        }
        // At the instruction itself it may be another number: that of `restart_syscall`.
        if at != address(pagetide_in_place_call) {
            context.set(Register::Rax, call.number.get());
        }
        context.set(Register::Rip, call.site.get());
        block.release();
    } else {
        const INSTRUCTION_BYTES: u64 = 2;
        context.set(Register::Rip, call.site.get() + INSTRUCTION_BYTES);
        block.release();
    }
    if at == address(pagetide_in_place_touch) { Found::AtTouch } else { Found::Here }
}

global_asm!(
    ".pushsection .tbss.pagetide_block,\"awT\",@nobits",
    ".hidden pagetide_block",
    ".type pagetide_block,@object",
    ".size pagetide_block, 8",
    ".p2align 3",
    "pagetide_block:",
    ".zero 8",
    ".popsection",
    ".pushsection .text.pagetide_in_place,\"ax\",@progbits",
    ".macro pagetide_in_place_name name",
    ".hidden \\name",
    ".globl \\name",
    "\\name:",
    ".endm",
    "pagetide_in_place_name pagetide_in_place_set",
    "mov rcx, qword ptr [rip + pagetide_block@GOTTPOFF]",
    "mov rax, qword ptr fs:[rcx]",
    "mov qword ptr fs:[rcx], rdi",
    "ret",
    "pagetide_in_place_name pagetide_in_place_leave",
    "jmp rcx",
    "pagetide_in_place_name pagetide_in_place",
    "mov r11, qword ptr [rip + pagetide_block@GOTTPOFF]",
    "mov r11, qword ptr fs:[r11]",
    "test r11, r11",
    "jz pagetide_in_place_leave",
    "mov [r11 + {site}], rcx",
    "mov [r11 + {number}], rax",
    "mov [r11 + {arguments}], rdi",
    "mov [r11 + {arguments} + 8], rsi",
    "mov [r11 + {arguments} + 16], rdx",
    "mov [r11 + {arguments} + 24], r10",
    "mov [r11 + {arguments} + 32], r8",
    "mov [r11 + {arguments} + 40], r9",
    "pagetide_in_place_name pagetide_in_place_saved",
    // R9: places that are published.
    "xor r9d, r9d",
    "cmp rax, {numbers}",
    "jae .Lin_place_stopped",
    "cmp eax, {futex}",
    "je .Lin_place_futex",
    "lea rcx, [rip + {shapes}]",
    "mov rcx, [rcx + rax * 8]",
    "test rcx, rcx",
    "jz .Lin_place_stopped",
    // The arguments that must be 0, one after the other.
    "mov r10, rcx",
    "shr r10, {zero_at}",
    "and r10d, 63",
    "jz 3f",
    "2:",
    "bsf edx, r10d",
    "lea eax, [r10 - 1]",
    "cmp qword ptr [r11 + rdx * 8 + {arguments}], 0",
    "jne .Lin_place_stopped",
    "and r10d, eax",
    "jnz 2b",
    "3:",
    "shl rcx, 16",
    "shr rcx, 16",
    // The next place: RDI its address, RSI its length.
    ".Lin_place_next:",
    "mov edx, ecx",
    "and edx, 7",
    "jz .Lin_place_publish",
    "mov rdi, [r11 + rdx * 8 + {arguments} - 8]",
    "mov eax, ecx",
    "shr eax, 3",
    "and eax, 7",
    "movzx esi, cx",
    "shr esi, 6",
    "shr rcx, 16",
    "cmp eax, {no_count}",
    "je 4f",
    "mov rdx, [r11 + rax * 8 + {arguments}]",
    "cmp rdx, {bytes_max}",
    "ja .Lin_place_stopped",
    "imul rsi, rdx",
    "4:",
    "test rdi, rdi",
    "jz .Lin_place_next",
    "test rsi, rsi",
    "jz .Lin_place_next",
    "cmp rsi, {bytes_max}",
    "ja .Lin_place_stopped",
    "add rsi, rdi",
    "jc .Lin_place_stopped",
    "add rsi, 4095",
    "jc .Lin_place_stopped",
    "shr rdi, 12",
    "shr rsi, 12",
    "mov eax, r9d",
    "shl eax, 4",
    "mov [r11 + rax + {held}], rdi",
    "mov [r11 + rax + {held} + 8], rsi",
    "inc r9d",
    "jmp .Lin_place_next",
    // A futex: what it touches depends on the operation.
    ".Lin_place_futex:",
    "mov ecx, esi",
    "and ecx, 0x7f",
    "mov eax, 1 << 1 | 1 << 10",
    "bt eax, ecx",
    "jc 5f",
    "mov eax, 1 << 0 | 1 << 9",
    "cmp ecx, 31",
    "ja .Lin_place_stopped",
    "bt eax, ecx",
    "jnc .Lin_place_stopped",
    "movabs rcx, {futex_wait}",
    "jmp 3b",
    "5:",
    "cmp ecx, 31",
    "ja .Lin_place_stopped",
    "movabs rcx, {futex_wake}",
    "jmp 3b",
    // All are known. A locked instruction: what is published is seen before the taker is looked at.
    ".Lin_place_publish:",
    "test r9d, r9d",
    "jz .Lin_place_make",
    "mov eax, r9d",
    "xchg [r11 + {held_count}], rax",
    "lea rcx, [rip + {takers}]",
    "test byte ptr [rcx + {taking}], 1",
    "jnz .Lin_place_stopped",
    ".Lin_place_pages:",
    "dec r9d",
    "js .Lin_place_make",
    "mov eax, r9d",
    "shl eax, 4",
    "mov rdi, [r11 + rax + {held}]",
    "mov rsi, [r11 + rax + {held} + 8]",
    "6:",
    "mov rdx, rdi",
    "shl rdx, 12",
    "pagetide_in_place_name pagetide_in_place_touch",
    "mov al, [rdx]",
    "inc rdi",
    "cmp rdi, rsi",
    "jb 6b",
    "jmp .Lin_place_pages",
    // Not here: the site's own instruction, which is stopped.
    ".Lin_place_stopped:",
    "mov qword ptr [r11 + {held_count}], 0",
    ".macro pagetide_in_place_restore",
    "mov rax, [r11 + {number}]",
    "mov rdi, [r11 + {arguments}]",
    "mov rsi, [r11 + {arguments} + 8]",
    "mov rdx, [r11 + {arguments} + 16]",
    "mov r10, [r11 + {arguments} + 24]",
    "mov r8, [r11 + {arguments} + 32]",
    "mov r9, [r11 + {arguments} + 40]",
    ".endm",
    "pagetide_in_place_restore",
    "mov rcx, [r11 + {site}]",
    "jmp pagetide_in_place_leave",
    ".Lin_place_make:",
    "pagetide_in_place_restore",
    "jmp pagetide_in_place_call",
    // The calls that no switch stops: the end of a handler, ...
    "pagetide_in_place_name pagetide_gate",
    "mov eax, 15",
    "pagetide_in_place_name pagetide_gate_return",
    "syscall",
    "ud2",
    // ... the sleep of a thread that is about to be put elsewhere, ...
    "pagetide_in_place_name pagetide_rest",
    "mov eax, {futex}",
    "lea rdi, [rip + {resting}]",
    "mov esi, {futex_private}",
    "xor edx, edx",
    "xor r10d, r10d",
    "syscall",
    "jmp pagetide_rest",
    // ... and this.
    "pagetide_in_place_name pagetide_in_place_call",
    "syscall",
    "pagetide_in_place_name pagetide_in_place_called",
    "mov r11, qword ptr [rip + pagetide_block@GOTTPOFF]",
    "mov r11, qword ptr fs:[r11]",
    "mov qword ptr [r11 + {held_count}], 0",
    "mov rcx, [r11 + {site}]",
    "add rcx, 2",
    "jmp rcx",
    "pagetide_in_place_name pagetide_in_place_end",
    ".purgem pagetide_in_place_name",
    ".purgem pagetide_in_place_restore",
    ".popsection",
    site = const threads::IN_PLACE_AT + std::mem::offset_of!(InPlace, site),
    number = const threads::IN_PLACE_AT + std::mem::offset_of!(InPlace, number),
    arguments = const threads::IN_PLACE_AT + std::mem::offset_of!(InPlace, arguments),
    held = const threads::HELD_AT,
    held_count = const threads::HELD_COUNT_AT,
    numbers = const NUMBERS,
    futex = const FUTEX,
    shapes = sym SHAPES,
    zero_at = const ZERO_AT,
    no_count = const NO_COUNT,
    bytes_max = const BYTES_MAX,
    futex_wait = const FUTEX_WAIT,
    futex_wake = const FUTEX_WAKE,
    takers = sym HELD,
    taking = const TAKING_AT,
    resting = sym RESTING,
    futex_private = const 128,
);
const _: () = assert!(size_of::<Held>() > TAKING_AT);

unsafe extern "C" {
    fn pagetide_in_place_set(block: usize) -> usize;
    fn pagetide_in_place_leave();
    /// A system call from a site: its number in RAX, its arguments as the kernel takes them, the address of the site's system call
    /// instruction in RCX. Goes on at this instruction, or behind it with the answer in RAX; needs no stack. Not to be called.
    #[link_name = "pagetide_in_place"]
    pub fn call_in_place();
    fn pagetide_in_place_saved();
    fn pagetide_rest() -> !;
    fn pagetide_gate();
    fn pagetide_gate_return();
    fn pagetide_in_place_touch();
    fn pagetide_in_place_call();
    fn pagetide_in_place_called();
    fn pagetide_in_place_end();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape_of(number: u32) -> Option<u64> {
        shape(Call::find(number).expect("it is in the table"))
    }

    #[test]
    fn what_registers_alone_tell_has_a_shape() {
        assert_eq!(shape_of(0), Some(IS_SHAPE | place(1, 2, 1)), "read");
        assert_eq!(shape_of(39), Some(IS_SHAPE), "getpid");
        assert_eq!(shape_of(232), Some(IS_SHAPE | place(1, 2, 12)), "epoll_wait");
        let received = place(1, 2, 1) | place(5, NO_COUNT, 4) << PLACE_BITS | 1 << (ZERO_AT + 4);
        assert_eq!(shape_of(45), Some(IS_SHAPE | received), "recvfrom without an address");
    }

    #[test]
    fn what_is_looked_into_is_stopped() {
        // close, fstat, dup, dup2, setrlimit, dup3, prlimit64, close_range, open, writev, mmap, rt_sigaction, rt_sigreturn, clone, exit, prctl, restart_syscall, setsockopt, io_uring_setup.
        for number in [3, 5, 32, 33, 160, 292, 302, 436, 2, 20, 9, 13, 15, 56, 60, 157, 219, 54, 425, 435] {
            assert_eq!(shape_of(number), None, "{number}");
        }
    }
}
