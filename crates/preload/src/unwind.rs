//! No unwinder: a panic aborts, so nothing is ever unwound, and libgcc's would be loaded into every process of the program
//! (0.14 ms of each start).
//!
//! The standard library's references end here. The names are hidden: the program's own exceptions keep their unwinder.

#[cfg(target_arch = "x86_64")]
macro_rules! code {
    (end of stack) => {
        "mov eax, 5\nret"
    };
    (trap) => {
        "ud2"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! code {
    (end of stack) => {
        "mov w0, #5\nret"
    };
    (trap) => {
        "brk #1"
    };
}

// What a backtrace asks says that the stack ends (_URC_END_OF_STACK); the rest is never called and traps.
core::arch::global_asm!(
    ".macro unwinder name",
    ".globl \\name",
    ".hidden \\name",
    ".type \\name, @function",
    "\\name:",
    ".endm",
    ".section .text.pagetide_unwind, \"ax\", @progbits",
    "unwinder _Unwind_Backtrace",
    code!(end of stack),
    "unwinder _Unwind_GetDataRelBase",
    "unwinder _Unwind_GetIP",
    "unwinder _Unwind_GetIPInfo",
    "unwinder _Unwind_GetLanguageSpecificData",
    "unwinder _Unwind_GetRegionStart",
    "unwinder _Unwind_GetTextRelBase",
    "unwinder _Unwind_Resume",
    "unwinder _Unwind_SetGR",
    "unwinder _Unwind_SetIP",
    code!(trap),
    ".previous",
    ".purgem unwinder",
);
