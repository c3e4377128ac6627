//! System calls past libc, and `syscall(3)` itself: what a program calls by number is what it calls by name.
//!
//! Numbers that nothing here wants to know of go straight to the kernel, by the same few instructions as in libc. (A clone returns
//! twice, and in the child perhaps on another stack: no function of Rust may stand in between.) A program's own system call
//! instructions are not seen.

use libc::{c_int, c_long, c_void, socklen_t};
use pagetide::agent_entry;
use pagetide_sys::mem::PAGE_BYTES;
use pagetide_sys::syscall::{Errno, syscall6};

use crate::{advice, clones, filters, lent, mapped, rings};

/// A system call past libc.
///
/// # Safety
/// As for the call itself.
pub(crate) unsafe fn call(number: c_long, arguments: [usize; 4]) -> Result<usize, Errno> {
    let number = u32::try_from(number).expect("numbers of system calls are small");
    let [a, b, c, d] = arguments;
    // SAFETY: the caller's.
    unsafe { syscall6(number, [a, b, c, d, 0, 0]) }
}

/// 0, or -1 with `errno` set.
pub(crate) fn answered(answer: Result<usize, Errno>) -> c_int {
    match answer {
        Ok(_) => 0,
        Err(errno) => {
            set_errno(errno.code());
            -1
        }
    }
}

pub(crate) fn set_errno(code: c_int) {
    // SAFETY: libc's errno of this thread.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: it lives as long as the thread.
    unsafe { *place = code };
}

/// What the kernel answered was an error.
extern "C" fn failed(negated: c_long) -> c_long {
    set_errno(c_int::try_from(-negated).expect("an errno is small"));
    -1
}

/// As syscall(2) returns: the value, or -1 with `errno` set.
fn returned(answer: Result<usize, Errno>) -> c_long {
    match answer {
        Ok(value) => long(value.cast_signed()),
        Err(errno) => failed(long(errno.negated())),
    }
}

/// The lower half of an argument.
fn int(word: usize) -> c_int {
    u32::try_from(word & 0xffff_ffff).expect("the lower half").cast_signed()
}

fn long(value: isize) -> c_long {
    c_long::try_from(value).expect("both have 64 bits")
}

/// A call that somebody here wants to know of. By nothing that is exported: who writes a jump to a hook of its own over the beginning of an
/// exported function (UCX does) calls the original by its number from there.
unsafe extern "C" fn known(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
    let pointer = std::ptr::with_exposed_provenance_mut::<c_void>;
    match number {
        libc::SYS_vmsplice => {
            // SAFETY: the same arguments as for the call by its name, which are the program's to answer for.
            return long(unsafe { lent::lend(int(a), pointer(b).cast(), c, int(d).cast_unsigned()) });
        }
        libc::SYS_setsockopt => {
            let len = socklen_t::try_from(e).unwrap_or(socklen_t::MAX);
            // SAFETY: as above.
            return returned(unsafe { lent::set_option(int(a), int(b), int(c), pointer(d), len) });
        }
        libc::SYS_mmap | libc::SYS_munmap | libc::SYS_mremap | libc::SYS_mprotect | libc::SYS_pkey_mprotect => {
            // SAFETY: as above.
            return returned(unsafe { mapped::change(number, [a, b, c, d, e, f]) });
        }
        // SAFETY: as above.
        libc::SYS_shmat => return returned(unsafe { mapped::attach([a, b, c, d, e, f]) }),
        // SAFETY: as above.
        libc::SYS_madvise => return returned(unsafe { advice::advise(a, b, int(c)) }),
        // SAFETY: as above.
        libc::SYS_process_madvise => return returned(unsafe { advice::advise_process([a, b, c, d, e, f]) }),
        libc::SYS_mlock | libc::SYS_mlock2 => return returned(advice::lock(number, a, b, c)),
        libc::SYS_mlockall => return returned(agent_entry::lock_all(int(a).cast_unsigned())),
        libc::SYS_io_uring_setup | libc::SYS_io_setup if !rings::may_make(number) => {
            return returned(Err(Errno::ENOSYS));
        }
        libc::SYS_seccomp => match filters::refused(a, b, c) {
            None => {}
            Some(Ok(thread)) => return c_long::from(thread),
            Some(Err(errno)) => return returned(Err(errno)),
        },
        libc::SYS_futex => words_worked_on(int(b), a, e).into_iter().flatten().for_each(hold_word),
        // A thread that says so before it pages is not asked again.
        libc::SYS_rseq => hold_in_page(a, int(b).cast_unsigned() as usize),
        libc::SYS_set_tid_address => hold_word(a),
        _ => {}
    }
    let number = u32::try_from(number).expect("one of the numbers above");
    // SAFETY: the program's own call.
    returned(unsafe { syscall6(number, [a, b, c, d, e, f]) })
}

/// The words of a futex operation that the kernel works on at once or not at all: locks that inherit priority, and a second word that is
/// changed.
const fn words_worked_on(operation: c_int, first: usize, second: usize) -> [Option<usize>; 2] {
    const LOCK_PI2: c_int = 13;
    const COMMAND: c_int = !(libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME);
    match operation & COMMAND {
        libc::FUTEX_LOCK_PI | libc::FUTEX_UNLOCK_PI | libc::FUTEX_TRYLOCK_PI | LOCK_PI2 => [Some(first), None],
        libc::FUTEX_WAIT_REQUEUE_PI | libc::FUTEX_CMP_REQUEUE_PI => [Some(first), Some(second)],
        libc::FUTEX_WAKE_OP => [None, Some(second)],
        _ => [None, None],
    }
}

/// The word stays in memory from now on.
fn hold_word(address: usize) {
    const BYTES: usize = size_of::<u32>();
    if address.is_multiple_of(BYTES) {
        hold_in_page(address, BYTES);
    }
}

/// These bytes of one page stay in memory from now on. They may be no memory at all: of that the call speaks.
fn hold_in_page(address: usize, bytes: usize) {
    const POPULATE_READ: usize = 22;
    if (1..=PAGE_BYTES - address % PAGE_BYTES).contains(&bytes) && agent_entry::note(address, bytes) {
        // SAFETY: changes no byte.
        let _ = unsafe { call(libc::SYS_madvise, [address & !(PAGE_BYTES - 1), PAGE_BYTES, POPULATE_READ, 0]) };
    }
}

/// As syscall(2).
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn syscall() {
    core::arch::naked_asm!(
        "cmp rdi, {vmsplice}",
        "je {known}",
        "cmp rdi, {setsockopt}",
        "je {known}",
        "cmp rdi, {madvise}",
        "je {known}",
        "cmp rdi, {process_madvise}",
        "je {known}",
        "cmp rdi, {mmap}",
        "je {known}",
        "cmp rdi, {munmap}",
        "je {known}",
        "cmp rdi, {mremap}",
        "je {known}",
        "cmp rdi, {mprotect}",
        "je {known}",
        "cmp rdi, {pkey_mprotect}",
        "je {known}",
        "cmp rdi, {shmat}",
        "je {known}",
        "cmp rdi, {mlock}",
        "je {known}",
        "cmp rdi, {mlock2}",
        "je {known}",
        "cmp rdi, {mlockall}",
        "je {known}",
        "cmp rdi, {ring}",
        "je {known}",
        "cmp rdi, {context}",
        "je {known}",
        // A futex: only those of the operations above are looked into.
        "cmp rdi, {futex}",
        "jne 5f",
        "mov eax, edx",
        "and eax, 0x7f",
        "cmp eax, {wake_op}",
        "je {known}",
        "cmp eax, {lock}",
        "jb 2f",
        "cmp eax, {wait_bits}",
        "je 2f",
        "cmp eax, {wake_bits}",
        "jne {known}",
        "jmp 2f",
        "5:",
        "cmp rdi, {seccomp}",
        "je {known}",
        "cmp rdi, {sequences}",
        "je {known}",
        "cmp rdi, {tid_address}",
        "je {known}",
        "cmp rdi, {clone}",
        "jne 2f",
        "cmp dword ptr [rip + {asked}], 0",
        "je 2f",
        "mov eax, esi",
        "and eax, {kinds}",
        "cmp eax, {shared}",
        "je {refused}",
        "2:",
        "mov rax, rdi",
        "mov rdi, rsi",
        "mov rsi, rdx",
        "mov rdx, rcx",
        "mov r10, r8",
        "mov r8, r9",
        "mov r9, [rsp + 8]",
        // A call site of signal mode, where it may be made without a signal; elsewhere the jump comes back at once.
        "lea rcx, [rip + 4f]",
        "jmp {in_place}",
        "4:",
        "syscall",
        "cmp rax, -4095",
        "jae 3f",
        "ret",
        "3:",
        "mov rdi, rax",
        "jmp {failed}",
        vmsplice = const libc::SYS_vmsplice,
        setsockopt = const libc::SYS_setsockopt,
        madvise = const libc::SYS_madvise,
        process_madvise = const libc::SYS_process_madvise,
        mmap = const libc::SYS_mmap,
        munmap = const libc::SYS_munmap,
        mremap = const libc::SYS_mremap,
        mprotect = const libc::SYS_mprotect,
        pkey_mprotect = const libc::SYS_pkey_mprotect,
        shmat = const libc::SYS_shmat,
        mlock = const libc::SYS_mlock,
        sequences = const libc::SYS_rseq,
        tid_address = const libc::SYS_set_tid_address,
        mlock2 = const libc::SYS_mlock2,
        mlockall = const libc::SYS_mlockall,
        ring = const libc::SYS_io_uring_setup,
        context = const libc::SYS_io_setup,
        futex = const libc::SYS_futex,
        wake_op = const libc::FUTEX_WAKE_OP,
        lock = const libc::FUTEX_LOCK_PI,
        wait_bits = const libc::FUTEX_WAIT_BITSET,
        wake_bits = const libc::FUTEX_WAKE_BITSET,
        seccomp = const libc::SYS_seccomp,
        clone = const libc::SYS_clone,
        kinds = const clones::KINDS,
        shared = const libc::CLONE_VM,
        known = sym known,
        failed = sym failed,
        refused = sym clones::refused,
        asked = sym clones::ASKED,
        in_place = sym pagetide::call_in_place,
    )
}

/// As syscall(2).
#[cfg(target_arch = "aarch64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
unsafe extern "C" fn syscall() {
    core::arch::naked_asm!(
        "cmp x0, {vmsplice}",
        "b.eq 4f",
        "cmp x0, {setsockopt}",
        "b.eq 4f",
        "cmp x0, {madvise}",
        "b.eq 4f",
        "cmp x0, {process_madvise}",
        "b.eq 4f",
        "cmp x0, {mmap}",
        "b.eq 4f",
        "cmp x0, {munmap}",
        "b.eq 4f",
        "cmp x0, {mremap}",
        "b.eq 4f",
        "cmp x0, {shmat}",
        "b.eq 4f",
        "cmp x0, {mlock}",
        "b.eq 4f",
        "cmp x0, {mlock2}",
        "b.eq 4f",
        "cmp x0, {mlockall}",
        "b.eq 4f",
        "cmp x0, {ring}",
        "b.eq 4f",
        "cmp x0, {context}",
        "b.eq 4f",
        "cmp x0, {futex}",
        "b.eq 4f",
        "cmp x0, {seccomp}",
        "b.eq 4f",
        "cmp x0, {clone}",
        "b.ne 2f",
        "adrp x9, {asked}",
        "ldr w9, [x9, :lo12:{asked}]",
        "cbz w9, 2f",
        "movz w9, {kinds_low}",
        "movk w9, {kinds_high}, lsl 16",
        "and w9, w1, w9",
        "cmp w9, {shared}",
        "b.eq 5f",
        "2:",
        "mov x8, x0",
        "mov x0, x1",
        "mov x1, x2",
        "mov x2, x3",
        "mov x3, x4",
        "mov x4, x5",
        "mov x5, x6",
        "svc 0",
        "cmn x0, 4095",
        "b.cs 3f",
        "ret",
        "3:",
        "b {failed}",
        "4:",
        "b {known}",
        "5:",
        "b {refused}",
        vmsplice = const libc::SYS_vmsplice,
        setsockopt = const libc::SYS_setsockopt,
        madvise = const libc::SYS_madvise,
        process_madvise = const libc::SYS_process_madvise,
        mmap = const libc::SYS_mmap,
        munmap = const libc::SYS_munmap,
        mremap = const libc::SYS_mremap,
        shmat = const libc::SYS_shmat,
        mlock = const libc::SYS_mlock,
        mlock2 = const libc::SYS_mlock2,
        mlockall = const libc::SYS_mlockall,
        ring = const libc::SYS_io_uring_setup,
        context = const libc::SYS_io_setup,
        futex = const libc::SYS_futex,
        seccomp = const libc::SYS_seccomp,
        clone = const libc::SYS_clone,
        kinds_low = const clones::KINDS & 0xffff,
        kinds_high = const clones::KINDS >> 16,
        shared = const libc::CLONE_VM,
        known = sym known,
        failed = sym failed,
        refused = sym clones::refused,
        asked = sym clones::ASKED,
    )
}
