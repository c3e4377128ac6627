//! Threads and their words that the kernel writes without waiting for a page: they are held in memory from the start.
//!
//! At the end of a thread the kernel clears a word in its control block, for `pthread_join`, and marks the robust mutexes that it
//! held; on priority-inheriting mutexes it works at once or not at all. None of that waits for a userfaultfd.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use libc::{c_int, c_void, pthread_attr_t, pthread_mutex_t, pthread_mutexattr_t, pthread_t};
use pagetide::agent_entry;

use crate::next::next;

type Body = unsafe extern "C-unwind" fn(*mut c_void) -> *mut c_void;
type Create = unsafe extern "C" fn(*mut pthread_t, *const pthread_attr_t, Body, *mut c_void) -> c_int;
type MutexInit = unsafe extern "C" fn(*mut pthread_mutex_t, *const pthread_mutexattr_t) -> c_int;

unsafe extern "C" {
    fn pthread_mutexattr_getrobust(attributes: *const pthread_mutexattr_t, robust: *mut c_int) -> c_int;
    fn pthread_mutexattr_getprotocol(attributes: *const pthread_mutexattr_t, protocol: *mut c_int) -> c_int;
}

/// What a thread was asked to do, on its way into the thread.
#[repr(C)]
struct Task {
    body: Body,
    argument: *mut c_void,
}

/// Tasks on their way at once that need no allocator: a handler that interrupts a new thread in one would hold the allocator's locks, and
/// a fork that it waits for needs them.
const PLACES: usize = 256;

/// Room for a task.
struct Place {
    is_taken: AtomicBool,
    task: UnsafeCell<MaybeUninit<Task>>,
}

// SAFETY: the task is only touched by who has taken the place, and handed on with it.
unsafe impl Sync for Place {}

static TASKS: [Place; PLACES] =
    [const { Place { is_taken: AtomicBool::new(false), task: UnsafeCell::new(MaybeUninit::uninit()) } }; PLACES];

/// Room for a task; null: there is no memory.
fn take_place() -> *mut Task {
    let take =
        |place: &&Place| place.is_taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
    match TASKS.iter().find(take) {
        Some(place) => place.task.get().cast(),
        // SAFETY: a plain allocation, from the program's allocator: the thread may end before this call returns.
        None => unsafe { libc::malloc(size_of::<Task>()) }.cast(),
    }
}

/// It is used no more.
fn give_place(task: *mut Task) {
    match TASKS.iter().find(|place| std::ptr::eq(place.task.get().cast(), task)) {
        Some(place) => place.is_taken.store(false, Ordering::Release),
        // SAFETY: it was allocated.
        None => unsafe { libc::free(task.cast()) },
    }
}

/// A stack of at least so many bytes is announced before it is filled.
const DEEP_STACK_BYTES: usize = 32 << 20;

/// As pthread_create(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_create(
    thread: *mut pthread_t,
    attributes: *const pthread_attr_t,
    body: Body,
    argument: *mut c_void,
) -> c_int {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    // SAFETY: libc's function of this name has this type.
    let create: Create = unsafe { std::mem::transmute(next(&NEXT, c"pthread_create")) };
    let mut stack_bytes = 0;
    if !attributes.is_null() {
        // SAFETY: attributes that the caller has initialised, and a place for a number.
        unsafe { libc::pthread_attr_getstacksize(attributes, &raw mut stack_bytes) };
    }
    // A usual stack is hardly used; who asks for more means to.
    if stack_bytes >= DEEP_STACK_BYTES {
        agent_entry::mapped(stack_bytes);
    }
    static HAS_THREADS: AtomicBool = AtomicBool::new(false);
    if !HAS_THREADS.swap(true, Ordering::Relaxed) {
        agent_entry::first_thread_comes();
    }
    let task = take_place();
    if task.is_null() {
        return libc::EAGAIN;
    }
    // SAFETY: room of that size, aligned for pointers, that is nobody else's.
    unsafe { task.write(Task { body, argument }) };
    // SAFETY: passed on as it came, but for the body, which takes what it is given.
    let answer = unsafe { create(thread, attributes, begin, task.cast()) };
    if answer != 0 {
        // No thread has it.
        give_place(task);
    }
    answer
}

/// The first code of each thread: leaves no frame behind, because exceptions, cancellation and pthread_exit unwind the program's own,
/// and an object without an unwinder must not lie among them.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
unsafe extern "C-unwind" fn begin(task: *mut c_void) -> *mut c_void {
    core::arch::naked_asm!(
        "sub rsp, 24",
        "mov rsi, rsp",
        "call {open}",
        "mov rax, [rsp]",
        "mov rdi, [rsp + 8]",
        "add rsp, 24",
        "jmp rax",
        open = sym open,
    )
}

/// As for x86_64.
#[cfg(target_arch = "aarch64")]
#[unsafe(naked)]
unsafe extern "C-unwind" fn begin(task: *mut c_void) -> *mut c_void {
    core::arch::naked_asm!(
        "stp x29, x30, [sp, -32]!",
        "add x1, sp, 16",
        "bl {open}",
        "ldp x9, x0, [sp, 16]",
        "ldp x29, x30, [sp], 32",
        "br x9",
        open = sym open,
    )
}

/// In the new thread: take out what it was asked to do.
unsafe extern "C" fn open(task: *mut Task, to: *mut Task) {
    // SAFETY: `pthread_create` passes what it has filled; `begin` has room for a copy.
    unsafe { task.copy_to_nonoverlapping(to, 1) };
    give_place(task);
    agent_entry::thread_begins();
}

/// As pthread_mutex_init(3).
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_mutex_init(mutex: *mut pthread_mutex_t, attributes: *const pthread_mutexattr_t) -> c_int {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    // SAFETY: libc's function of this name has this type.
    let init: MutexInit = unsafe { std::mem::transmute(next(&NEXT, c"pthread_mutex_init")) };
    if !attributes.is_null() {
        let (mut robust, mut protocol) = (0, 0);
        // SAFETY: attributes that the caller has initialised, and a place for a number.
        unsafe { pthread_mutexattr_getrobust(attributes, &raw mut robust) };
        // SAFETY: as above.
        unsafe { pthread_mutexattr_getprotocol(attributes, &raw mut protocol) };
        if robust != 0 || protocol == libc::PTHREAD_PRIO_INHERIT {
            agent_entry::hold(mutex.addr(), size_of::<pthread_mutex_t>());
        }
    }
    // SAFETY: passed on as it came.
    unsafe { init(mutex, attributes) }
}
