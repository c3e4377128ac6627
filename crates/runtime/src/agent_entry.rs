//! Where the preload object enters the runtime: at load, around forks, and when the supervisor starts the agent.
//!
//! Inert unless the environment names a run.

use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use pagetide_sys::fd::{self, Fd};
use pagetide_sys::maps::{Kind, MapsText, Vma};
use pagetide_sys::mem;
use pagetide_sys::proc::StatmFile;
use pagetide_sys::seccomp::{Denied, Program};
use pagetide_sys::socket;
use pagetide_sys::stderr;
use pagetide_sys::text::Text;
use pagetide_sys::thread::{self, Table};
use pagetide_sys::trace::Interrupted;
use pagetide_sys::word::usize_of;
use pagetide_sys::{Errno, signal};

use crate::advice;
use crate::agent::{self, Agent};
use crate::alloc::OwnMemory;
use crate::attach;
use crate::credentials;
use crate::filters;
use crate::foothold;
use crate::foreign;
use crate::fork::{self, guards};
use crate::leaving;
use crate::lent;
use crate::limits;
use crate::origins;
use crate::own;
use crate::serve;
use crate::sleepers::Sleepers;
use crate::space::PAGE_SHIFT;
use crate::space::held::HELD;
use crate::space::locks;

/// So many budgets of memory are reserved, and not meant to be filled.
const RESERVED_BUDGETS: u64 = 16;
/// Mappings that exist before the runtime, at most.
const INITIAL_MAX: usize = 128;
/// A mapping of so many bytes that exists at load is managed.
const LARGE_BYTES_MIN: usize = 1 << 20;
/// So much to both sides of the first thread's control block is not: the loader has put it there, with what it needed before.
const BESIDE_BLOCK_BYTES: usize = 256 << 10;
const STACK_BYTES: usize = 512 << 10;
/// Of a thread's control block, at most, what the kernel or the C library uses at the end of the thread: its first page is what
/// counts, the rest may lie in the next.
const THREAD_BLOCK_BYTES: usize = 1024;
/// How far behind a control block the C library keeps the thread's list of robust futexes; 0: not known. A new thread does not ask the
/// kernel for it: a system call filter may end who asks.
static ROBUST_LIST_BEHIND: AtomicUsize = AtomicUsize::new(0);
/// Where our mappings go: neither near the top, where kernels place what programs map, nor near the program, nor where sanitizers have
/// their shadows, nor at an address that anyone would choose.
#[cfg(target_arch = "x86_64")]
const PLACE: usize = 0x4a9d_3b62_7000;
#[cfg(not(target_arch = "x86_64"))]
const PLACE: usize = 0x4a_9d62_7000;
/// Stack of `enter`: a few system calls.
const ENTER_STACK_BYTES: usize = 64 << 10;

/// The mappings to leave alone. Written once, before any thread of ours exists.
#[derive(Debug)]
struct Birth {
    initial: [(u64, u64); INITIAL_MAX],
    initial_len: usize,
}

/// Set by `start`, read by the agents of this process and of its forked children.
static mut BIRTH: Birth = Birth { initial: [(0, 0); INITIAL_MAX], initial_len: 0 };
/// The object's allocator.
static MEMORY: AtomicPtr<OwnMemory> = AtomicPtr::new(std::ptr::null_mut());
/// Number of the agent's thread while it lives.
static AGENT_ALIVE: AtomicU32 = AtomicU32::new(0);
/// The agent's socket, for the panic hook.
static SUPERVISOR: AtomicI32 = AtomicI32::new(-1);
/// Both ends of the agent's socket, while they are in the program's table.
static ENDS: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];

/// The run is one in signal mode: forks of managed memory are calls that are seen, and need no word of the C library's.
static IS_SIGNAL_MODE: AtomicBool = AtomicBool::new(false);
/// The supervisor's end of a socket that the agent made itself, in its own table; -1 before, a negative errno if it cannot.
static OUTSIDE: AtomicI32 = AtomicI32::new(-1);
/// The agent makes its socket itself.
const NO_SOCKET: i32 = i32::MAX;

/// A thread of the program runs `enter` here, and finds its own stack as it was.
#[repr(C, align(64))]
struct EnterStack([u8; ENTER_STACK_BYTES]);
static mut ENTER_STACK: EnterStack = EnterStack([0; ENTER_STACK_BYTES]);

fn birth() -> &'static Birth {
    let birth = &raw const BIRTH;
    // SAFETY: written by `start` alone, before the first thread that reads it.
    unsafe { &*birth }
}

/// At load: note what exists, and offer the supervisor its words. `run` is the value of `RUN_VARIABLE`: the pages of the
/// budget that the run began with, and the mode if it is signal mode.
pub fn start(run: &[u8], memory: &'static OwnMemory) {
    let Some((budget_pages, mode)) = pagetide_sys::text::decimal(run) else { return };
    if mode == b" signal" {
        IS_SIGNAL_MODE.store(true, Ordering::Relaxed);
        find_sequences();
    }
    let birth = &raw mut BIRTH;
    // SAFETY: no thread of ours exists yet.
    let birth = unsafe { &mut *birth };
    let mut buffer = [0; 8192];
    let Ok(mut maps) = MapsText::open(&mut buffer) else { return };
    while let Ok(Some(vma)) = maps.next_vma() {
        note_library(vma.start..vma.end);
        if let Some(part) = left_alone(&vma)
            && birth.initial_len < INITIAL_MAX
        {
            birth.initial[birth.initial_len] = (part.start as u64, part.end as u64);
            birth.initial_len += 1;
        }
    }
    MEMORY.store(std::ptr::from_ref(memory).cast_mut(), Ordering::Relaxed);
    if let Ok(Some(list)) = thread::robust_list(0) {
        ROBUST_LIST_BEHIND.store(list.start().wrapping_sub(control_block()), Ordering::Relaxed);
    }
    let stack = (&raw const ENTER_STACK).addr() + ENTER_STACK_BYTES;
    foothold::publish(enter as *const () as u64, stack as u64, budget_pages);
}

/// What of a mapping that exists at load is never to be managed: it may hold what the loader, the C library or the runtime needs.
fn left_alone(vma: &Vma<'_>) -> Option<Range<usize>> {
    let whole = vma.start..vma.end;
    // What is only reserved holds nothing yet: what comes to be there is the program's. (An allocator in place of the C library's may have
    // reserved all that it will ever use.)
    let is_reserved = !vma.read && !vma.write && !vma.exec;
    if !vma.is_private_anon() || vma.kind == Kind::Heap || is_reserved {
        return None;
    }
    if whole.len() < LARGE_BYTES_MIN || whole.contains(&(&raw const BIRTH).addr()) {
        return Some(whole);
    }
    // Large memory is no loader's, and no C library's: it is static data, or an allocator's in place of the C library's. Mappings side by
    // side may be one.
    let block = control_block();
    let beside = block.saturating_sub(BESIDE_BLOCK_BYTES)..block + BESIDE_BLOCK_BYTES;
    whole.contains(&block).then(|| whole.start.max(beside.start)..whole.end.min(beside.end))
}

/// Note where the C library keeps what the kernel writes of restartable sequences.
#[cfg(target_arch = "x86_64")]
fn find_sequences() {
    // SAFETY: a lookup by name, while the object is loaded.
    let place = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()) }.cast::<isize>();
    if !place.is_null() {
        // SAFETY: the C library's constant of this name has this type.
        crate::signal::note_sequences(unsafe { place.read() });
    }
}

/// There is no signal mode.
#[cfg(not(target_arch = "x86_64"))]
const fn find_sequences() {}

/// Note the mapping that has the C library's code.
#[cfg(target_arch = "x86_64")]
fn note_library(mapping: Range<usize>) {
    if mapping.contains(&(libc::gnu_get_libc_version as *const () as usize)) {
        crate::signal::note_text(mapping.start, mapping.end);
    }
}

/// There is no signal mode.
#[cfg(not(target_arch = "x86_64"))]
fn note_library(_mapping: Range<usize>) {}

/// The program has mapped so many bytes of fresh private memory, and has not touched them yet.
pub fn mapped(bytes: usize) {
    foothold::mapped(bytes, || serve::bell(false).map(Sleepers::ring).is_some() || fork::wake_agent());
}

/// The program is about to make its first thread. What malloc has mapped for it itself (arrays that the threads are to fill, at some GiB a
/// second) is announced by nobody before.
pub fn first_thread_comes() {
    if !is_running() || foothold::is_managed() {
        return;
    }
    let Ok(sizes) = StatmFile::open_self().and_then(|file| file.read()) else { return };
    let untouched = sizes.untouched_pages();
    // What is many times the budget is reserved, not to be filled.
    if untouched <= foothold::budget_pages() * RESERVED_BUDGETS {
        mapped(usize_of(untouched << PAGE_SHIFT));
    }
}

/// Has mmap(2) with these arguments mapped such memory?
pub const fn is_fresh(protection: usize, flags: usize) -> bool {
    foothold::is_fresh(protection, flags)
}

/// True in a process whose memory is, or may come, under management.
pub fn is_running() -> bool {
    foothold::owner() != 0
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

/// As [`hold`], of bytes that may be no memory: who names them brings them in. False: there is nobody to note it.
pub fn note(start: usize, bytes: usize) -> bool {
    let is_noted = is_running() && start.checked_add(bytes).is_some();
    if is_noted {
        HELD.hold(start, bytes);
    }
    is_noted
}

/// Where the C library keeps what it knows of the calling thread.
fn control_block() -> usize {
    // SAFETY: asks for the caller's own.
    usize::try_from(unsafe { libc::pthread_self() }).expect("addresses are 64 bit")
}

/// First thing in a new thread: its control block stays.
pub fn thread_begins() {
    let block = control_block();
    hold(block, THREAD_BLOCK_BYTES);
    let behind = ROBUST_LIST_BEHIND.load(Ordering::Relaxed);
    if behind != 0 {
        hold(block.wrapping_add(behind), thread::ROBUST_LIST_BYTES);
    }
}

/// May the program make the call `number`, after which the kernel keeps using its memory: a ring of io_uring, with which it may send pages
/// without copying them, or a context of AIO? False: in signal mode nobody would see that use, and it is refused (ENOSYS).
pub fn may_have_kept(number: u32) -> bool {
    if !is_running() {
        return true;
    }
    let is_refused = IS_SIGNAL_MODE.load(Ordering::Relaxed);
    if is_refused {
        tell_refused(number);
    } else if i64::from(number) == libc::SYS_io_uring_setup {
        HELD.begin_lending();
    }
    !is_refused
}

#[cfg(target_arch = "x86_64")]
fn tell_refused(number: u32) {
    crate::signal::tell_refused(number);
}

/// There is no signal mode.
#[cfg(not(target_arch = "x86_64"))]
const fn tell_refused(_number: u32) {}

/// The calling thread of the program, or all of them, changed users, groups or capabilities: ours follow before it goes on.
pub fn credentials_changed() {
    // A child of vfork runs in its parent's memory, and is someone else.
    credentials::changed(|| AGENT_ALIVE.load(Ordering::Acquire) != 0 && foothold::owner() == thread::getpid());
}

/// The program is about to install a system call filter, in all its threads or not. The number of ours that cannot take it over: it is
/// refused.
///
/// # Safety
/// `program` is what the program hands to the kernel: it is there, and nobody changes it.
pub unsafe fn filter(program: *const Program, in_all: bool) -> Option<u32> {
    // SAFETY: the caller's.
    filter_that_denies(unsafe { Program::denied(program) }, in_all)
}

/// The same, of one that denies this.
pub(crate) fn filter_that_denies(denied: Denied, in_all: bool) -> Option<u32> {
    let agent = AGENT_ALIVE.load(Ordering::Acquire);
    let agent = (in_all && agent != 0 && foothold::owner() == thread::getpid()).then_some(agent);
    if filters::may_install(denied, agent) { None } else { agent }
}

/// The program is about to make a guard region, or to change what a child gets, of which the kernel tells nobody: no fork makes its copy as
/// long as the answer lives. None where nothing is to be told of: outside of a run, or where the call itself is seen.
pub fn advises_beside_forks() -> Option<impl Drop> {
    (is_running() && !IS_SIGNAL_MODE.load(Ordering::Relaxed)).then(guards::Advising::begin)
}

/// The program has set the limit of this number (RLIMIT_DATA, RLIMIT_AS and others) of a process; 0 is its own.
pub fn limit_was_set(process: i32, number: usize) {
    // In signal mode the call itself is seen.
    if is_running() && !IS_SIGNAL_MODE.load(Ordering::Relaxed) {
        limits::was_set(process, number);
    }
}

/// Make a call that may change mappings by `call`, which answers as the kernel does: pages that came from a file are found as natively, and
/// one that takes memory away begins when the one before it has been told.
pub fn change(number: u32, arguments: [usize; 6], call: impl FnMut(u32, [usize; 6]) -> isize) -> isize {
    // In signal mode the call itself is seen.
    let _alone = (!IS_SIGNAL_MODE.load(Ordering::Relaxed)).then(|| leaving::ByName::begin(number, &arguments));
    origins::around(number, arguments, call)
}

/// The kernel has answered a guard (MADV_GUARD_INSTALL) in this range: what is known of the pages under it is forgotten. `advise` is as
/// madvise(2): a start, a length, advice.
pub fn guard_was_made(start: usize, bytes: usize, answer: isize, advise: impl FnMut(usize, usize, usize) -> isize) {
    advice::forget_under_guard(start, bytes, answer, advise);
}

/// As process_madvise(2), made by `call` or by calls of madvise(2) in its place.
pub fn advise_process(arguments: [usize; 6], call: impl FnMut(u32, [usize; 6]) -> isize) -> isize {
    advice::by_process(arguments, advice::vector_of, call)
}

/// As shmat(2), made by `call` with others before it: a segment that takes the place of memory is told of.
pub fn attach(arguments: [usize; 6], mut call: impl FnMut(u32, [usize; 6]) -> isize) -> isize {
    attach::around(arguments, |number, arguments| origins::around(number, arguments, &mut call))
}

/// vmsplice(2) by copy, made by `call`, where it is not to wait and the pipe cannot be asked so.
pub fn lend_without_waiting(reads: bool, of: [usize; 3], call: impl FnMut(u32, [usize; 6]) -> isize) -> isize {
    lent::without_waiting(reads, of, call)
}

/// May so many more bytes be locked?
pub fn may_lock(bytes: usize) -> bool {
    // The budget is known since the object was loaded.
    !is_running() || locks::may_lock(bytes)
}

/// As mlockall(2), without the runtime's own memory. EINVAL, ENOMEM, EPERM as there; ENOMEM also if the budget cannot carry it.
pub fn lock_all(flags: u32) -> Result<usize, Errno> {
    locks::lock_all(flags)
}

/// Before a fork.
pub fn before_fork() {
    if !IS_SIGNAL_MODE.load(Ordering::Relaxed) {
        fork::prepare();
    }
}

/// After a fork, in the parent.
pub fn after_fork_in_parent() {
    foothold::count_fork();
    if !IS_SIGNAL_MODE.load(Ordering::Relaxed) {
        fork::parent();
    }
}

/// After a fork, in the child: it waits for an agent of its own if its memory was managed in the parent. No code of the program
/// runs before: what it would change meanwhile would reach the parent's agent, which cannot tell ours.
pub fn after_fork_in_child() {
    if IS_SIGNAL_MODE.load(Ordering::Relaxed) {
        // What was managed was seen to in the call itself.
        return restart(foothold::NATIVE);
    }
    restart(if fork::child() { foothold::FORKED } else { foothold::NATIVE });
    foothold::wait_for_agent();
    fork::child_goes_on();
}

/// In a child whose maker's memory was managed in signal mode, before any code of the program: returns when an agent serves its memory.
#[cfg(target_arch = "x86_64")]
pub(crate) fn begin_copy() {
    fork::child();
    restart(foothold::FORKED);
    foothold::wait_for_agent();
}

/// What the parent's runtime had does not exist in a copy of its address space.
fn restart(state: u32) {
    foothold::restart(state, || {
        serve::forget();
        HELD.after_fork();
        // SAFETY: this is the copy's first thread.
        unsafe { origins::after_fork() };
        leaving::after_fork();
        // SAFETY: as above.
        unsafe { foreign::after_fork() };
        limits::after_fork();
        for end in &ENDS {
            close(end.swap(-1, Ordering::Relaxed));
        }
        AGENT_ALIVE.store(0, Ordering::Relaxed);
        credentials::forget();
        let memory = MEMORY.load(Ordering::Relaxed);
        if !memory.is_null() {
            // SAFETY: it lives as long as the object.
            let memory = unsafe { &*memory };
            // SAFETY: this is the copy's first thread, no agent runs in it, and the parent's runtime is not used in it.
            unsafe { memory.forget_after_fork() };
        }
        note_blocks();
    });
}

fn close(raw: i32) {
    if raw >= 0 {
        // SAFETY: the number is one of the agent's socket, which nobody else closes.
        drop(unsafe { Fd::from_raw(raw) });
    }
}

/// The supervisor makes a thread of the program run this, with all signals blocked, and puts the thread back where it was when the
/// command is answered. Commands: `foothold::START` and `APART`, answered by the supervisor's end of the agent's socket or a
/// negative errno; `foothold::CLOSE`, `ARM` and `TAKE`. Behind the command stands the call that the thread goes on with, see [`Interrupted`].
extern "C" fn enter(ticket: u64, command: u64, number: u64, first: u64, second: u64, fourth: u64) -> ! {
    let interrupted = Interrupted { number, first, second, fourth };
    let ticket = u32::try_from(ticket).unwrap_or(0);
    let kind = u32::try_from(command & 0xffff_ffff);
    let answer = match kind {
        Ok(foothold::START) => start_agent(false),
        Ok(foothold::ARM) => arm(command >> 32, interrupted.is_any().then_some(interrupted)),
        Ok(foothold::APART) => start_agent(true),
        Ok(foothold::TAKE) => {
            let (start, bytes, is_sealed) = foothold::range();
            origins::take(start, bytes, is_sealed).map_or_else(|errno| -i64::from(errno.code()), |()| 0)
        }
        Ok(foothold::CLOSE) => {
            ENDS.iter().for_each(|end| close(end.swap(-1, Ordering::Relaxed)));
            0
        }
        Ok(_) | Err(_) => -1,
    };
    foothold::answer(ticket, answer.cast_unsigned());
    rest()
}

/// 0, or a negative errno.
#[cfg(target_arch = "x86_64")]
fn arm(hidden: u64, interrupted: Option<Interrupted>) -> i64 {
    crate::signal::arm(hidden, interrupted).map_or_else(|errno| -i64::from(errno.code()), |()| 0)
}

/// Sleep until the supervisor puts the thread elsewhere. The agent's thread inherits a real-time policy and its CPU, and the supervisor may
/// have no other: neither would run beside one that does not sleep.
#[cfg(target_arch = "x86_64")]
fn rest() -> ! {
    crate::signal::rest()
}

/// No thread is armed: any system call will do.
#[cfg(not(target_arch = "x86_64"))]
fn rest() -> ! {
    use pagetide_sys::futex;

    static RESTING: AtomicU32 = AtomicU32::new(0);
    loop {
        futex::wait(&RESTING, 0, None, futex::Scope::Private);
    }
}

/// Those of threads to be armed, before there is an agent, which could not go back.
#[cfg(target_arch = "x86_64")]
fn make_blocks() -> Result<(), Errno> {
    crate::signal::threads::prepare()
}

/// There are none.
#[cfg(not(target_arch = "x86_64"))]
const fn make_blocks() -> Result<(), Errno> {
    Ok(())
}

/// The blocks of armed threads are the copy's, too.
#[cfg(target_arch = "x86_64")]
fn note_blocks() {
    crate::signal::threads::note();
}

/// There are none.
#[cfg(not(target_arch = "x86_64"))]
const fn note_blocks() {}

/// Without Syscall User Dispatch there is no signal mode.
#[cfg(not(target_arch = "x86_64"))]
fn arm(_hidden: u64, _interrupted: Option<Interrupted>) -> i64 {
    -i64::from(Errno::ENOSYS.code())
}

/// `apart`: it makes its socket itself, in its own table.
fn start_agent(apart: bool) -> i64 {
    if foothold::owner() != thread::getpid() {
        // A forked child whose thread was stopped before it could do this itself.
        fork::child();
        restart(foothold::FORKED);
    }
    mem::set_place(PLACE);
    let is_signal_mode = IS_SIGNAL_MODE.load(Ordering::Relaxed);
    if !limits::leaves_files(is_signal_mode) {
        return -i64::from(Errno::EMFILE.code());
    }
    if is_signal_mode && !apart {
        // Without them the agent serves all faults.
        let _ = serve::open();
    }
    if is_signal_mode && let Err(errno) = make_blocks() {
        return -i64::from(errno.code());
    }
    OUTSIDE.store(-1, Ordering::Relaxed);
    let pair = if apart { Ok(None) } else { socket::pair().map(Some) };
    let made = pair.and_then(|pair| {
        let stack = own::map(STACK_BYTES, false)?;
        let inside = pair.as_ref().map_or(NO_SOCKET, |(_, inside)| inside.raw());
        let arg = std::ptr::without_provenance_mut(inside.cast_unsigned() as usize);
        // SAFETY: the stack is the thread's for ever; `agent_main` uses system calls and memory of our own only.
        unsafe { thread::spawn(stack.into_range(), &AGENT_ALIVE, Table::Own, agent_main, arg) }?;
        Ok(pair)
    });
    match made {
        Ok(Some((outside, inside))) => {
            ENDS[1].store(inside.into_raw(), Ordering::Relaxed);
            let outside = outside.into_raw();
            ENDS[0].store(outside, Ordering::Relaxed);
            i64::from(outside)
        }
        Ok(None) => loop {
            match OUTSIDE.load(Ordering::Acquire) {
                -1 => thread::yield_now(),
                outside => break i64::from(outside),
            }
        },
        Err(errno) => -i64::from(errno.code()),
    }
}

/// The agent's socket: what it was given, or one end of a pair in its own table, with the supervisor's end.
fn own_socket(arg: *mut u8) -> Result<(Fd, Option<Fd>), Errno> {
    let inside = i32::try_from(arg.addr()).unwrap_or(NO_SOCKET);
    if inside != NO_SOCKET {
        // SAFETY: the thread has a table of its own, and this is its copy of the socket.
        let socket = unsafe { Fd::from_raw(inside) };
        close_others(Some(&socket));
        return Ok((socket, None));
    }
    close_others(None);
    let (outside, inside) = socket::pair()?;
    OUTSIDE.store(outside.raw(), Ordering::Release);
    Ok((inside, Some(outside)))
}

/// In the agent, once it has been noted: its socket.
fn noted_supervisor() -> Option<ManuallyDrop<Fd>> {
    let raw = SUPERVISOR.load(Ordering::Relaxed);
    // SAFETY: the agent keeps the socket open as long as the process lives.
    (raw >= 0).then(|| ManuallyDrop::new(unsafe { Fd::from_raw(raw) }))
}

/// A broken invariant ends the program: a pager that goes on corrupts memory. The reason goes to the person first; our own
/// table of descriptors has no standard error.
fn tell_of_panics(supervisor: &Fd) {
    SUPERVISOR.store(supervisor.raw(), Ordering::Relaxed);
    // The closure captures nothing, so the box is no memory: in a forked child the parent's hook is replaced, and its memory is
    // not there.
    std::panic::set_hook(Box::new(|info| {
        if thread::gettid().cast_unsigned() != AGENT_ALIVE.load(Ordering::Relaxed) {
            // A thread of the program that serves its own fault: the socket is not in its table.
            let line = Text::<512>::format(format_args!(
                "pagetide: process {}: a broken invariant: {info}\n",
                thread::getpid()
            ));
            stderr::write(line.as_bytes());
            signal::abort();
        }
        let supervisor = noted_supervisor().expect("it was noted before");
        agent::say(
            &supervisor,
            format_args!("process {}: a broken invariant: {info}; the last events:", thread::getpid()),
        );
        agent::tell_last_events(&supervisor);
        signal::abort();
    }));
}

/// In the agent: there is no memory for what it needs. The standard library would abort with a line on a standard error that our own table
/// of descriptors does not have. Returns in any other thread.
pub(crate) fn end_without_memory(bytes: usize) {
    let is_agent = thread::gettid().cast_unsigned() == AGENT_ALIVE.load(Ordering::Relaxed);
    let Some(supervisor) = noted_supervisor().filter(|_| is_agent) else { return };
    let of = format_args!(
        "process {}: no memory for the runtime ({bytes} bytes of addresses): its limits of addresses and data (ulimit -v, -d) leave none",
        thread::getpid()
    );
    agent::die(&supervisor, of)
}

extern "C" fn agent_main(arg: *mut u8) -> ! {
    thread::set_name(c"pagetide");
    thread::be_plain();
    credentials::begin();
    let Ok((socket, outside)) = own_socket(arg) else {
        OUTSIDE.store(-Errno::EMFILE.code(), Ordering::Release);
        thread::exit_thread();
    };
    let files = limits::for_files();
    agent::go_first();
    tell_of_panics(&socket);
    let birth = birth();
    let initial = birth.initial[..birth.initial_len].to_vec();
    let (agent, call) = match Agent::meet(socket, initial) {
        Ok(met) => met,
        // The supervisor has ended: so does its tree.
        Err(errno) => agent::end_unsupervised(format_args!(
            "the supervisor of the run has not said what is to be done ({}): it is killed",
            errno.name()
        )),
    };
    drop(outside);
    drop(files);
    match call {
        Some(call) => agent.manage_child(&call),
        None => agent.manage(),
    }
}

/// Keep none of the program's descriptors in this thread's own table, and forget the pager of a forking parent.
fn close_others(kept: Option<&Fd>) {
    agent::forget_served();
    let mut from = 0;
    loop {
        let all = kept.map(Fd::raw).into_iter().chain(serve::numbers()).map(i32::cast_unsigned);
        let next = all.filter(|&raw| raw >= from).min();
        let end = next.map_or(Some(u32::MAX), |next| next.checked_sub(1));
        if let Some(end) = end.filter(|&end| end >= from) {
            // SAFETY: the thread's table is its own copy, and nothing else of ours is open yet.
            let closed = unsafe { fd::close_range(from, end, false) };
            debug_assert!(closed.is_ok(), "close_range exists since Linux 5.9: {closed:?}");
        }
        let Some(next) = next else { return };
        from = next + 1;
    }
}
