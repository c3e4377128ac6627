//! Where the preload object enters the runtime: at load, and around forks.
//!
//! Inert unless the environment names a supervisor.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

use pagetide_sys::fd::Fd;
use pagetide_sys::futex::{self, Scope};
use pagetide_sys::maps::{Kind, MapsText};
use pagetide_sys::thread::{self, Table};
use pagetide_sys::{Errno, signal};

use crate::agent::{self, Agent};
use crate::alloc::OwnMemory;
use crate::bell;
use crate::fork;
use crate::held::HELD;
use crate::{limits, locks};

/// Length of a supervisor's name at most.
const NAME_BYTES: usize = 64;
/// Mappings that exist before the runtime, at most.
const INITIAL_MAX: usize = 128;
const STACK_BYTES: usize = 512 << 10;
/// Who wants to know the budget looks again after this time, so many times.
const BUDGET_WAIT_NS: u64 = 1_000_000;
const BUDGET_WAITS_MAX: u32 = 1000;
/// Of a thread's control block, at most, what the kernel or the C library uses at the end of the thread: its first page is what
/// counts, the rest may lie in the next.
const THREAD_BLOCK_BYTES: usize = 1024;

/// The supervisor's name, and the mappings to leave alone. Written once, before any thread of ours exists.
#[derive(Debug)]
struct Birth {
    name: [u8; NAME_BYTES],
    name_len: usize,
    initial: [(u64, u64); INITIAL_MAX],
    initial_len: usize,
}

/// Set by `start`, read by the agents of this process and of its forked children.
static mut BIRTH: Birth = Birth { name: [0; NAME_BYTES], name_len: 0, initial: [(0, 0); INITIAL_MAX], initial_len: 0 };
/// Number of the agent's thread while it lives.
static AGENT_ALIVE: AtomicU32 = AtomicU32::new(0);
/// The process from which this one was forked under management; 0 for none.
static PARENT: AtomicI32 = AtomicI32::new(0);
/// 1 once a forked child's agent serves its memory.
static TAKEN_OVER: AtomicU32 = AtomicU32::new(0);
/// The agent's socket, for the panic hook.
static SUPERVISOR: AtomicI32 = AtomicI32::new(-1);
static OWN_PID: AtomicI32 = AtomicI32::new(0);

fn birth() -> &'static Birth {
    let birth = &raw const BIRTH;
    // SAFETY: written by `start` alone, before the first thread that reads it.
    unsafe { &*birth }
}

/// At load: note what exists, and start the agent that calls the supervisor `name`.
pub fn start(name: &[u8]) {
    if name.is_empty() || name.len() > NAME_BYTES {
        return;
    }
    let birth = &raw mut BIRTH;
    // SAFETY: no thread of ours exists yet.
    let birth = unsafe { &mut *birth };
    birth.name[..name.len()].copy_from_slice(name);
    birth.name_len = name.len();
    let mut buffer = [0; 8192];
    let Ok(mut maps) = MapsText::open(&mut buffer) else { return };
    while let Ok(Some(vma)) = maps.next_vma() {
        if vma.is_private_anon() && vma.kind != Kind::Heap && birth.initial_len < INITIAL_MAX {
            birth.initial[birth.initial_len] = (vma.start as u64, vma.end as u64);
            birth.initial_len += 1;
        }
    }
    OWN_PID.store(thread::getpid(), Ordering::Relaxed);
    spawn_agent(true);
}

/// The program has mapped so many bytes of fresh private memory, and has not touched them yet.
pub fn mapped(bytes: usize) {
    bell::mapped(bytes, OWN_PID.load(Ordering::Relaxed), &AGENT_ALIVE);
}

/// True in a process whose memory is, or may come, under management.
pub fn is_running() -> bool {
    OWN_PID.load(Ordering::Relaxed) != 0
}

/// True once this process's memory is managed.
pub fn is_managed() -> bool {
    fork::is_announced()
}

/// These bytes stay in memory from now on: the kernel will want them without waiting.
///
/// `start` and `bytes` name memory of the program that is mapped.
pub fn hold(start: usize, bytes: usize) {
    if !is_running() || bytes == 0 {
        return;
    }
    HELD.hold(start, bytes);
    for address in [start, start + bytes - 1] {
        // SAFETY: mapped memory of the caller; the value is not used.
        unsafe { std::ptr::with_exposed_provenance::<u8>(address).read_volatile() };
    }
}

/// First thing in a new thread: its control block stays.
pub fn thread_begins() {
    // SAFETY: asks for the caller's own.
    let block = unsafe { libc::pthread_self() };
    hold(usize::try_from(block).expect("addresses are 64 bit"), THREAD_BLOCK_BYTES);
    if let Ok(Some(list)) = thread::robust_list(0) {
        hold(list.start(), list.len());
    }
}

/// The program is about to make a ring of io_uring, with which it may send pages without copying them.
pub fn begins_lending() {
    if is_running() {
        HELD.begin_lending();
    }
}

/// May so many more bytes be locked?
pub fn may_lock(bytes: usize) -> bool {
    if !is_running() {
        return true;
    }
    // A program may lock its memory first of all: the agent is about to learn the budget.
    for _ in 0..BUDGET_WAITS_MAX {
        if locks::is_budget_known() || AGENT_ALIVE.load(Ordering::Relaxed) == 0 {
            break;
        }
        futex::wait(&AtomicU32::new(0), 0, Some(BUDGET_WAIT_NS), Scope::Private);
    }
    locks::may_lock(bytes)
}

/// As mlockall(2), without the runtime's own memory. EINVAL, ENOMEM, EPERM as there; ENOMEM also if the budget cannot carry it.
pub fn lock_all(flags: u32) -> Result<usize, Errno> {
    locks::lock_all(flags)
}

/// Before a fork.
pub fn before_fork() {
    fork::prepare();
}

/// After a fork, in the parent.
pub fn after_fork_in_parent() {
    fork::parent();
}

/// After a fork, in the child: it gets an agent of its own.
pub fn after_fork_in_child(memory: &OwnMemory) {
    HELD.after_fork();
    let taken_over = fork::child();
    // SAFETY: the child has one thread, and the parent's runtime is not used in it.
    unsafe { memory.forget_after_fork() };
    let parent = OWN_PID.swap(thread::getpid(), Ordering::Relaxed);
    PARENT.store(if taken_over { parent } else { 0 }, Ordering::Relaxed);
    TAKEN_OVER.store(0, Ordering::Relaxed);
    spawn_agent(!taken_over);
    // No code of the program runs before its memory is served by its own agent: what it would change meanwhile would reach the
    // parent's agent, which cannot tell ours.
    while taken_over && TAKEN_OVER.load(Ordering::Acquire) == 0 {
        futex::wait(&TAKEN_OVER, 0, None, Scope::Private);
    }
}

/// `listens`: it will wait for the supervisor and the bell first.
fn spawn_agent(listens: bool) {
    if listens {
        bell::order()
    } else {
        bell::take_down()
    }
    let Ok(stack) = agent::stack(STACK_BYTES) else { return bell::take_down() };
    // SAFETY: the stack is the thread's for ever; `agent_main` uses system calls and memory of our own only.
    let spawned =
        unsafe { thread::spawn(stack.into_range(), &AGENT_ALIVE, Table::Own, agent_main, std::ptr::null_mut()) };
    if let Err(errno) = spawned {
        bell::take_down();
        pagetide_sys::text::write_stderr(b"pagetide: no thread can be started in this process: ");
        pagetide_sys::text::write_stderr(errno.name().as_bytes());
        pagetide_sys::text::write_stderr(b"\n");
    }
}

/// A broken invariant ends the program: a pager that goes on corrupts memory. The reason goes to the person first; our own
/// table of descriptors has no standard error.
fn tell_of_panics(supervisor: &Fd) {
    SUPERVISOR.store(supervisor.raw(), Ordering::Relaxed);
    // The closure captures nothing, so the box is no memory: in a forked child the parent's hook is replaced, and its memory is
    // not there.
    std::panic::set_hook(Box::new(|info| {
        // SAFETY: the agent keeps the socket open as long as the process lives.
        let supervisor = ManuallyDrop::new(unsafe { Fd::from_raw(SUPERVISOR.load(Ordering::Relaxed)) });
        agent::say(
            &supervisor,
            format_args!("process {}: a broken invariant: {info}; the last events:", thread::getpid()),
        );
        agent::tell_last_events(&supervisor);
        signal::abort();
    }));
}

extern "C" fn agent_main(_: *mut u8) -> ! {
    thread::set_name(c"pagetide");
    agent::close_inherited();
    let files = limits::for_files();
    agent::go_first();
    let birth = birth();
    let initial = birth.initial[..birth.initial_len].to_vec();
    let mut agent = match Agent::call(&birth.name[..birth.name_len], initial) {
        Ok(agent) => agent,
        // The supervisor has ended: so does its tree.
        Err(_) => {
            let _ = signal::kill(thread::getpid(), signal::number::KILL);
            thread::exit_thread();
        }
    };
    tell_of_panics(agent.supervisor());
    let parent = PARENT.load(Ordering::Relaxed);
    if parent != 0 {
        match fork::take_over(&mut agent) {
            Ok(managed) => {
                drop(files);
                agent.serve_child(managed, &TAKEN_OVER)
            }
            Err(error) => agent::die(
                agent.supervisor(),
                format_args!("process {}: a forked child cannot take over its memory: {error}", thread::getpid()),
            ),
        }
    }
    drop(files);
    agent.wait_for_adoption();
    agent.manage()
}
