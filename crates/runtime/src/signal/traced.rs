//! PTRACE_TRACEME: debuggers make a child that asks for it and executes another program.
//!
//! Each of our signals would stop a traced thread, and its parent, who may be waiting for it to execute (`vfork`), knows nothing of them. So
//! what was asked for is done just before the thread executes, or sends a signal, which may be the one that its parent waits for, or when it
//! faults. After that its calls are made by itself: their memory may be out, but nearly all such threads do nothing but execute.

use pagetide_sys::dispatch::{Context, Register, call_surely};
use pagetide_sys::{proc, thread};

use super::actions::{self, TRAP};
use super::filtered::PRCTL;
use super::threads::Thread;

pub(super) const PTRACE: u32 = 101;
/// `PTRACE_TRACEME`
pub(super) const TRACE_ME: usize = 0;
const EXECVE: u32 = 59;
const EXECVEAT: u32 = 322;
/// `kill`, `rt_sigqueueinfo`, `tkill`, `tgkill`, `rt_tgsigqueueinfo`
const SENDS: [u32; 5] = [62, 129, 200, 234, 297];

/// The thread asks for it.
pub(super) fn ask(block: &Thread) -> isize {
    block.is_to_be_traced.set(true);
    actions::see_faults(block);
    0
}

/// The program has faulted at `context`. True: it does so again, and its tracer sees it.
pub(super) fn begin_at_fault(block: &Thread, context: &mut Context, signal: u32) -> bool {
    const BREAKPOINT: u8 = 0xcc;
    if !block.is_to_be_traced.get() {
        return false;
    }
    if signal == TRAP {
        // The kernel tells of a breakpoint when it is behind; other traps do not come again.
        let at = context.get(Register::Rip).wrapping_sub(1);
        let mut byte = [0];
        let is_breakpoint = proc::read_memory(thread::getpid(), at, &mut byte).is_ok() && byte == [BREAKPOINT];
        if !is_breakpoint {
            return false;
        }
        context.set(Register::Rip, at);
    }
    begin_now(block);
    stop_no_calls();
    true
}

/// Before the call of this number: it may be the one by which the parent hears of the thread. True: it executes, traced.
pub(super) fn begin(block: &Thread, number: u32) -> bool {
    let executes = matches!(number, EXECVE | EXECVEAT);
    if !block.is_to_be_traced.get() || !(executes || SENDS.contains(&number)) {
        return false;
    }
    begin_now(block);
    if !executes {
        stop_no_calls();
    }
    executes
}

fn begin_now(block: &Thread) {
    block.is_to_be_traced.set(false);
    // SAFETY: what the program has asked for; it refers to no memory.
    unsafe { call_surely(PTRACE, &[TRACE_ME, 0, 0, 0, 0, 0]) };
}

/// The calling thread makes its calls itself from now on.
pub(super) fn stop_no_calls() {
    const DISPATCH: usize = 59;
    const OFF: usize = 0;
    // SAFETY: no handler of ours is needed for calls that are not stopped.
    unsafe { call_surely(PRCTL, &[DISPATCH, OFF, 0, 0, 0, 0]) };
}
