//! Threads without libc: made by raw `clone`, on a stack of ours, with every signal blocked.
//!
//! Such a thread shares the thread register of the thread that made it. It must not touch anything that goes through it:
//! libc, thread-locals of Rust, the stack protector's canary of C code, std I/O. It is not known to libc, which therefore
//! neither waits for it nor counts it. Its end is seen through a word the kernel clears ([`RawThread::is_over`]).

use core::arch::asm;
use core::ffi::CStr;
use core::sync::atomic::{AtomicU32, Ordering};

use linux_raw_sys::general as k;
use linux_raw_sys::general::{
    __NR_clone, __NR_exit, __NR_exit_group, __NR_get_robust_list, __NR_getpid, __NR_getppid, __NR_getpriority,
    __NR_gettid, __NR_personality, __NR_prctl, __NR_sched_getaffinity, __NR_sched_setaffinity, __NR_sched_yield,
    __NR_setpriority,
};
use linux_raw_sys::prctl::{
    PR_GET_DUMPABLE, PR_GET_THP_DISABLE, PR_GET_TSC, PR_SET_CHILD_SUBREAPER, PR_SET_DUMPABLE, PR_SET_NAME,
    PR_SET_PDEATHSIG, PR_SET_THP_DISABLE, PR_SET_TSC, PR_TSC_ENABLE,
};

use crate::futex;
use crate::mem::ManagedRange;
use crate::signal::SignalSet;
use crate::syscall;
use crate::syscall::{Errno, answer_of};
use crate::word::{addr_of, int_arg, int_of};

/// `READ_IMPLIES_EXEC`, of a personality.
const READ_IMPLIES_EXEC: u32 = 0x40_0000;

/// What runs on the new thread. It ends with [`exit_thread`].
pub type Entry = extern "C" fn(*mut u8) -> !;

/// Whose descriptor table the thread uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// The program's: what one opens or closes, the other sees.
    Shared,
    /// A copy as of the start: a program that closes all descriptors does not close ours. Root and current directory likewise: a
    /// program that changes its root does not take /proc from us.
    Own,
}

/// A thread made by [`spawn`]. Dropping the value does not end it.
#[derive(Debug)]
pub struct RawThread {
    tid: i32,
    alive: &'static AtomicU32,
}

impl RawThread {
    /// The kernel's number of the thread.
    pub const fn tid(&self) -> i32 {
        self.tid
    }

    /// True once the thread has ended and left its stack.
    pub fn is_over(&self) -> bool {
        self.alive.load(Ordering::Acquire) == 0
    }

    /// Wait for the end.
    pub fn join(&self) {
        // Ends when the kernel clears the word; a spurious wake only looks again.
        loop {
            let tid = self.alive.load(Ordering::Acquire);
            if tid == 0 {
                return;
            }
            // The kernel's wake at the end of a thread is of the shared kind.
            futex::wait(self.alive, tid, None, futex::Scope::Shared);
        }
    }
}

/// Start a thread on `stack` (which must be writable and nobody else's; the top is the high end), all signals blocked.
///
/// `alive` holds the thread's number while it lives and becomes 0 when it has ended.
///
/// # Safety
/// `stack` stays mapped until the thread has ended. `entry(arg)` must be sound to run beside the others and must keep to what
/// the module header says.
pub unsafe fn spawn(
    stack: ManagedRange,
    alive: &'static AtomicU32,
    table: Table,
    entry: Entry,
    arg: *mut u8,
) -> Result<RawThread, Errno> {
    let mut flags = k::CLONE_VM
        | k::CLONE_SIGHAND
        | k::CLONE_THREAD
        | k::CLONE_SYSVSEM
        | k::CLONE_PARENT_SETTID
        | k::CLONE_CHILD_CLEARTID;
    if table == Table::Shared {
        flags |= k::CLONE_FILES | k::CLONE_FS;
    }
    let top = (stack.end() & !15) - 16;
    assert!(top > stack.start() + 4096, "a stack has room for more than its first frame");
    let frame: *mut [usize; 2] = core::ptr::with_exposed_provenance_mut(top);
    // SAFETY: inside `stack`, aligned to 16, and nobody else's.
    unsafe { frame.write([entry as usize, addr_of(arg)]) };

    let before = SignalSet::ALL.block();
    // SAFETY: flags, stack and frame are as `clone_on` wants them; the caller vouches for the entry.
    let answer = unsafe { clone_on(flags as usize, top, addr_of(alive.as_ptr())) };
    before.restore();
    answer.map(|tid| RawThread { tid, alive })
}

/// # Safety
/// `top` points to {entry, argument} at the high end of a free stack, aligned to 16; `word` is a live 32-bit word.
#[cfg(target_arch = "x86_64")]
unsafe fn clone_on(flags: usize, top: usize, word: usize) -> Result<i32, Errno> {
    let register: usize;
    // SAFETY: the parent goes on after the block with rax set. The child never leaves it: it pops entry and argument from its
    // own stack and jumps; the call leaves the stack pointer 8 below a multiple of 16, as functions expect.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "pop rax",
            "pop rdi",
            "call rax",
            "ud2",
            "2:",
            inlateout("rax") __NR_clone as usize => register,
            in("rdi") flags,
            in("rsi") top,
            in("rdx") word,
            in("r10") word,
            in("r8") 0usize,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    tid_of(register)
}

/// # Safety
/// As for x86_64.
#[cfg(target_arch = "aarch64")]
unsafe fn clone_on(flags: usize, top: usize, word: usize) -> Result<i32, Errno> {
    let register: usize;
    // SAFETY: the parent goes on after the block with x0 set. The child never leaves it: it loads entry and argument from its
    // own stack and jumps, with the stack pointer still aligned to 16. The fourth argument of clone is the thread register
    // here and the fifth the word; without CLONE_SETTLS the fourth is ignored.
    unsafe {
        asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x30, xzr",
            "ldp x1, x0, [sp], #16",
            "blr x1",
            "brk 1",
            "2:",
            in("x8") __NR_clone as usize,
            inlateout("x0") flags => register,
            inlateout("x1") top => _,
            in("x2") word,
            in("x3") 0usize,
            in("x4") word,
        );
    }
    tid_of(register)
}

fn tid_of(register: usize) -> Result<i32, Errno> {
    answer_of(register).map(int_of)
}

/// End the calling thread, and only it.
pub fn exit_thread() -> ! {
    loop {
        // SAFETY: the thread ends; it holds nothing that others wait for but what its caller left.
        let _ = unsafe { syscall!(__NR_exit, 0) };
    }
}

/// End the process, with this status.
pub fn exit_process(status: i32) -> ! {
    loop {
        // SAFETY: the process ends.
        let _ = unsafe { syscall!(__NR_exit_group, int_arg(status)) };
    }
}

/// The calling thread's number.
pub fn gettid() -> i32 {
    // SAFETY: changes nothing.
    int_of(unsafe { syscall!(__NR_gettid) }.unwrap_or(0))
}

/// The process's number.
pub fn getpid() -> i32 {
    // SAFETY: changes nothing.
    int_of(unsafe { syscall!(__NR_getpid) }.unwrap_or(0))
}

/// The parent's number.
pub fn getppid() -> i32 {
    // SAFETY: changes nothing.
    int_of(unsafe { syscall!(__NR_getppid) }.unwrap_or(0))
}

/// `struct robust_list_head`.
pub const ROBUST_LIST_BYTES: usize = 3 * size_of::<usize>();

/// Where a thread of this process (0: the calling one) keeps the list of its robust futexes, for the kernel to go through at its
/// end; with the C library a part of its control block. None: it has said nothing.
pub fn robust_list(tid: i32) -> Result<Option<ManagedRange>, Errno> {
    let (mut head, mut len) = (0_usize, 0_usize);
    // SAFETY: the kernel writes two words.
    unsafe { syscall!(__NR_get_robust_list, int_arg(tid), addr_of(&raw mut head), addr_of(&raw mut len)) }?;
    if head == 0 || head.checked_add(len).is_none() {
        return Ok(None);
    }
    // SAFETY: only named: the thread's memory, which may vanish as it likes.
    Ok(Some(unsafe { ManagedRange::new(head, len) }))
}

/// Let another thread run.
pub fn yield_now() {
    // SAFETY: changes nothing.
    let _ = unsafe { syscall!(__NR_sched_yield) };
}

/// The niceness of the calling thread: -20 (first) to 19 (last).
pub fn nice() -> i32 {
    // SAFETY: changes nothing. The kernel answers 20 less the niceness.
    20 - int_of(unsafe { syscall!(__NR_getpriority, 0, 0) }.unwrap_or(20))
}

/// Set the niceness of the calling thread. EACCES or EPERM: lower than RLIMIT_NICE allows.
pub fn set_nice(nice: i32) -> Result<(), Errno> {
    // SAFETY: scheduling only.
    unsafe { syscall!(__NR_setpriority, 0, 0, int_arg(nice)) }.map(|_| ())
}

/// A set of up to 1024 CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuSet([u64; 16]);

impl CpuSet {
    /// No CPU.
    pub const EMPTY: Self = Self([0; 16]);

    /// Just this one.
    pub const fn one(cpu: usize) -> Self {
        let mut set = Self::EMPTY;
        set.0[cpu / 64] = 1 << (cpu % 64);
        set
    }

    /// How many.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// Is it in?
    pub const fn has(&self, cpu: usize) -> bool {
        cpu < 1024 && self.0[cpu / 64] & (1 << (cpu % 64)) != 0
    }
}

/// The CPUs on which a thread (0: the calling one) may run.
pub fn affinity(tid: i32) -> Result<CpuSet, Errno> {
    let mut set = CpuSet::EMPTY;
    // SAFETY: the kernel writes at most the size given into `set`.
    unsafe { syscall!(__NR_sched_getaffinity, int_arg(tid), size_of::<CpuSet>(), addr_of(&raw mut set)) }?;
    Ok(set)
}

/// Bind a thread (0: the calling one) to CPUs.
pub fn set_affinity(tid: i32, set: &CpuSet) -> Result<(), Errno> {
    // SAFETY: the kernel reads `set`.
    unsafe { syscall!(__NR_sched_setaffinity, int_arg(tid), size_of::<CpuSet>(), addr_of(set)) }.map(|_| ())
}

fn prctl(option: u32, arg: usize) -> Result<(), Errno> {
    // SAFETY: the options used here set an attribute of the thread or process and write no memory.
    unsafe { syscall!(__NR_prctl, option as usize, arg) }.map(|_| ())
}

/// Name the calling thread (15 bytes are kept).
pub fn set_name(name: &CStr) {
    // SAFETY of the address: a zero-terminated string, which the kernel copies.
    let named = prctl(PR_SET_NAME, addr_of(name.as_ptr()));
    debug_assert!(named.is_ok(), "PR_SET_NAME fails only on a bad address");
}

/// For a thread of ours that the program's has made: what else it inherits and would be in our way. It may read the CPU's counter (the clock
/// does), and what it maps to be read may not be executed for that (the kernel moves pages only between mappings of the same rights).
pub fn be_plain() {
    // Fails where there is no such thing.
    let _ = prctl(PR_SET_TSC, PR_TSC_ENABLE as usize);
    let (ask, implies_execution) = (0xffff_ffff, READ_IMPLIES_EXEC as usize);
    // SAFETY: the personality is a number of the thread.
    if let Ok(before) = unsafe { syscall!(__NR_personality, ask) }
        && before & implies_execution != 0
    {
        // SAFETY: as above.
        let _ = unsafe { syscall!(__NR_personality, before & !implies_execution) };
    }
}

/// May the calling thread read the CPU's counter?
pub fn has_counter() -> bool {
    let mut value = PR_TSC_ENABLE;
    // SAFETY: the kernel writes one int into `value`.
    let answer = unsafe { syscall!(__NR_prctl, PR_GET_TSC as usize, addr_of(&raw mut value)) };
    answer.is_err() || value == PR_TSC_ENABLE
}

/// Get `signal` when the thread that made this process ends (0: none). Look at the parent afterwards: it may be gone already.
pub fn set_parent_death_signal(signal: u32) -> Result<(), Errno> {
    prctl(PR_SET_PDEATHSIG, signal as usize)
}

/// Adopt the orphans among the descendants.
pub fn set_child_subreaper(on: bool) -> Result<(), Errno> {
    prctl(PR_SET_CHILD_SUBREAPER, usize::from(on))
}

/// How a process had forbidden huge pages, for [`HugePages::restore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HugePages(usize);

impl HugePages {
    /// No page of this process, and of children that are copied from it, becomes a huge one.
    pub fn forbid() -> Result<Self, Errno> {
        // SAFETY: asks only.
        let before = unsafe { syscall!(__NR_prctl, PR_GET_THP_DISABLE as usize, 0, 0, 0, 0) }?;
        if before != 1 {
            Self(1).set()?;
        }
        Ok(Self(before))
    }

    /// As it was.
    pub fn restore(self) {
        let restored = if self.0 == 1 { Ok(()) } else { self.set() };
        debug_assert!(restored.is_ok(), "what was set before may be set again: {restored:?}");
    }

    fn set(self) -> Result<(), Errno> {
        // The lowest bit says that they are forbidden, the others are flags (Linux 6.18).
        let (on, flags) = (self.0 & 1, self.0 & !1);
        // SAFETY: sets an attribute of the process.
        unsafe { syscall!(__NR_prctl, PR_SET_THP_DISABLE as usize, on, flags, 0, 0) }.map(|_| ())
    }
}

/// A process may be traced by its user, whatever it has asked for (PR_SET_DUMPABLE).
#[derive(Debug)]
#[must_use = "it may be traced until this is ended"]
pub struct Traceable {
    /// It might not.
    is_news: bool,
}

/// May the process be traced, and its memory be read, by others of its user?
pub fn is_traceable() -> bool {
    dumpable() == Ok(1)
}

/// 0: not, as it has asked for; 1: yes; 2: not, because of its program file, and nobody can ask for that again.
fn dumpable() -> Result<usize, Errno> {
    // SAFETY: asks only.
    unsafe { syscall!(__NR_prctl, PR_GET_DUMPABLE as usize, 0, 0, 0, 0) }
}

impl Traceable {
    /// The process of the calling thread, and copies that it makes.
    pub fn begin() -> Self {
        // SAFETY: sets an attribute of the process.
        let is_news =
            dumpable() == Ok(0) && unsafe { syscall!(__NR_prctl, PR_SET_DUMPABLE as usize, 1, 0, 0, 0) }.is_ok();
        Self { is_news }
    }

    /// As it was, in the process or in a copy of it.
    pub fn end(self) {
        if self.is_news {
            // SAFETY: as above.
            let ended = unsafe { syscall!(__NR_prctl, PR_SET_DUMPABLE as usize, 0, 0, 0, 0) };
            debug_assert!(ended.is_ok(), "nobody is refused this: {ended:?}");
        }
    }
}
