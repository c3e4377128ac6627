//! Raw Linux interfaces of Pagetide: the one crate whose purpose is `unsafe`.
//!
//! It is not a general binding: only what the runtime calls is here, in the shape in which the runtime wants the answer.
//! Answers that the kernel gives in the normal course (a page is present, a queue is empty) are enums; the rest is [`Errno`].
//!
//! Invariants, on which the fault handler rests. It runs on a thread made by raw `clone` that shares the thread register of a
//! thread of the program, and while it runs any page of the program may be missing:
//! - nothing here touches libc, `errno`, thread-local storage, a global allocator or standard streams: system calls are
//!   made by inline assembly, buffers come from the caller or the stack;
//! - no function creates a Rust reference to managed memory: it is named by [`mem::ManagedRange`], a plain pair of numbers;
//! - a panic here says that a caller broke a stated condition; the embedding program aborts on it.
//!
//! 64-bit only; x86_64 and aarch64.
#![no_std]

#[cfg(any(test, loom))]
extern crate std;

pub mod word;

pub mod syscall;
#[cfg(target_arch = "x86_64")]
pub mod syscalls;
#[cfg(target_arch = "x86_64")]
pub mod dispatch;

pub mod clock;
pub mod cpu_timer;
pub mod futex;
pub mod sync;
pub mod stderr;
pub mod text;
mod vdso;

pub mod block;
pub mod fd;
pub mod file;
pub mod mem;
pub mod socket;

pub mod maps;
pub mod pagemap;
pub mod proc;
pub mod smaps;

pub mod uffd;
pub mod uring;

pub mod credentials;
pub mod seccomp;
pub mod signal;
pub mod thread;
pub mod trace;

pub mod probe;
pub mod sysinfo;

pub use syscall::Errno;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("pagetide-sys is 64-bit only");
