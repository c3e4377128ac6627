//! Starting the agent in a process of the program, from outside.
//!
//! One of the process's threads is stopped, runs `enter` of the preloaded object twice on a stack of ours (make a pair of sockets and
//! a thread; close the pair again), and goes on as if nothing had been: its registers and its mask are put back, and a system
//! call that was interrupted is started again by the kernel. Between the two our end of the pair is taken out of the process. So
//! nothing has a name, nothing is inherited, and what the program did to its descriptors, environment, namespaces and credentials
//! does not matter.
//!
//! The thread may be anywhere, also where it cannot be stopped for long (`vfork`): it is asked, and looked at again later. A process that
//! is stopped (SIGSTOP) gets its agent without going on.

mod everyone;
pub(super) mod written;

use std::fmt;
use std::sync::atomic::{Ordering, fence};

use pagetide_core::types::Nanos;
use pagetide_sys::fd::{self, Fd};
use pagetide_sys::proc;
use pagetide_sys::signal::SignalSet;
use pagetide_sys::trace::{self, Halt, Saved, Tracee};
use pagetide_sys::{Errno, clock, signal, socket, stderr, thread};

use crate::foothold::{self, View};
use crate::supervise::FaultMode;
use crate::supervise::brake::{Brake, Whom};
use crate::supervise::image::{self, Named};

/// A stop usually takes some 10 us; after this long other processes are looked at first.
const STOP_WAIT: Nanos = 500_000;
/// What runs in the thread is a handful of system calls.
const RUN_WAIT: Nanos = 2_000_000_000;
/// The same while the thread waits for a CPU: it is less nice than others, say.
const CPU_WAIT: Nanos = 20_000_000_000;
/// An agent takes some milliseconds to manage what is there; after this long the thread goes on without.
const HOLD_MAX: Nanos = 100_000_000;

/// Why a process cannot have an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The kernel says so.
    Errno(Errno),
    /// Its threads have system call filters, which would bind ours.
    Filter,
    /// The kernel may use its memory when no system call is under way: signal mode cannot serve it.
    Lasting,
    /// It does not do what ours would.
    Foreign(Oddity),
    /// The words are of a program that it emulates.
    Emulator,
    /// It has ended, with this status if it is known.
    Ended(Option<i32>),
}

/// What a process did in place of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Oddity {
    /// Its words are not what ours are.
    Words,
    /// It was to receive this signal in the midst of our code.
    Signal(u32),
    /// It was not done after [`RUN_WAIT`], or [`CPU_WAIT`].
    Slow,
    /// What it handed over is no socket of ours.
    Socket,
}

impl fmt::Display for Oddity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Words => f.write_str("its memory has changed"),
            Self::Signal(signal) => write!(f, "signal {signal} came"),
            Self::Slow => f.write_str("not in time"),
            Self::Socket => f.write_str("no socket came"),
        }
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        match errno {
            // Nobody is left to stop; another wait may have taken its end.
            Errno::ESRCH | Errno::ECHILD => Self::Ended(None),
            _ => Self::Errno(errno),
        }
    }
}

/// What is done now and then while a thread is waited for, which may have to wait for a CPU.
pub(super) type Meanwhile<'a> = &'a mut dyn FnMut();

/// A thread that was asked to stop.
#[derive(Debug)]
pub(super) struct Starting {
    tracee: Tracee,
    is_stopped: bool,
    /// The agent was started; the thread stays stopped until it manages the memory, or until then.
    held_until: Option<Nanos>,
    /// The process may have written private mappings of files.
    may_have_written: bool,
    /// Of the process's other threads.
    brake: Option<Brake>,
    /// For signal mode: the other threads that were asked to stop, held by the same thread.
    others: Vec<Starting>,
    asked: Nanos,
    /// What it is to go on with once it has stopped: it was not in time.
    unrestored: Option<Box<Saved>>,
    is_leaving: bool,
}

impl Starting {
    /// Ask a thread of `pid`, whose words are at `at`, to stop.
    pub(super) fn ask(pid: i32, at: u64, mode: FaultMode) -> Result<Self, Refusal> {
        if image::is_emulator(pid) {
            return Err(Refusal::Emulator);
        }
        let tid = choose_thread(pid)?;
        let mut starting = Self::stop_soon(tid, trace::END_WITH_TRACER)?;
        // For signal mode all are stopped, by this thread: at once, for they may fill memory faster than this one comes to a CPU.
        if mode == FaultMode::Signal {
            starting.others = everyone::ask(pid, tid);
        } else {
            starting.brake = Brake::pull(pid, tid, Whom::Filling { words: at });
        }
        // Or the brake sees to it.
        starting.may_have_written = starting.brake.is_none() && written::may_be(pid, at);
        Ok(starting)
    }

    /// Ask this thread to stop, to be held by the calling thread. With that one's end it goes on, or ends, as the options say.
    pub(super) fn stop_soon(tid: i32, options: usize) -> Result<Self, Refusal> {
        let seized = Tracee::seize(tid, options);
        // Of one that has ended the kernel says the same as of one that another process traces.
        let tracee = seized.map_err(|errno| if has_ended(tid) { Refusal::Ended(None) } else { errno.into() })?;
        tracee.interrupt()?;
        Ok(Self {
            tracee,
            is_stopped: false,
            held_until: None,
            may_have_written: false,
            brake: None,
            others: Vec::new(),
            asked: clock::now(),
            unrestored: None,
            is_leaving: false,
        })
    }

    /// True if its process may have pages that are to be taken before the agent starts.
    pub(super) fn may_have_written(&self) -> bool {
        self.may_have_written || self.brake.as_ref().is_some_and(Brake::stops_all)
    }

    pub(super) const fn tid(&self) -> i32 {
        self.tracee.tid()
    }

    /// It has asked this thread to stop.
    pub(super) fn asks(&self, tid: i32) -> bool {
        self.tid() == tid || self.others.iter().any(|other| other.tid() == tid)
    }

    /// A status of such a thread that another wait has collected.
    pub(super) fn note(&mut self, tid: i32, status: i32) -> Result<(), Refusal> {
        if tid == self.tid() {
            return self.on_halt(Halt::of(status));
        }
        // One that has ended is nobody's.
        self.others.retain_mut(|other| other.tid() != tid || other.on_halt(Halt::of(status)).is_ok());
        Ok(())
    }

    fn on_halt(&mut self, halt: Halt) -> Result<(), Refusal> {
        match halt {
            Halt::None => {}
            Halt::Trap | Halt::Group => self.is_stopped = true,
            Halt::Signal(signal) => {
                self.tracee.resume(signal)?;
                // A stop for a signal takes the place of the one that was asked for.
                self.tracee.interrupt()?;
            }
            Halt::Ended(status) => return Err(Refusal::Ended(Some(status))),
        }
        Ok(())
    }

    /// True once it is stopped. Waits for a moment at most.
    pub(super) fn is_stopped(&mut self) -> Result<bool, Refusal> {
        let end = clock::now() + STOP_WAIT;
        while !self.is_stopped {
            let halt = self.tracee.look()?;
            self.on_halt(halt)?;
            if !self.is_stopped {
                if clock::now() > end {
                    return Ok(false);
                }
                thread::yield_now();
            }
        }
        Ok(true)
    }

    /// True once the agent can be started. Waits for a moment at most.
    pub(super) fn is_ready(&mut self) -> Result<bool, Refusal> {
        let is_stopped = self.is_stopped()?;
        if !is_stopped && clock::now() > self.asked + HOLD_MAX {
            // It may wait for one of them.
            let_stopped_go(&mut self.others);
        }
        Ok(is_stopped && self.brake.as_mut().is_none_or(Brake::is_settled))
    }

    /// The stopped thread is in a handler of ours, which blocks all signals.
    pub(super) fn is_in_handler(&self) -> bool {
        self.tracee.save().is_ok_and(|saved| saved.mask() == SignalSet::ALL)
    }

    /// Let all that are stopped go on as they were. Who is not stopped yet, as where the disk is waited for, is left: it goes on once it is
    /// (this is called again).
    pub(super) fn let_go(mut self) -> Result<Option<Self>, Refusal> {
        (self.is_leaving, self.brake) = (true, None);
        let_stopped_go(&mut self.others);
        match self.is_put_back() {
            Ok(true) if self.others.is_empty() => {
                // It may have ended meanwhile.
                let _ = self.tracee.release();
                Ok(None)
            }
            Ok(_) => Ok(Some(self)),
            Err(refusal) => {
                self.let_others_go();
                Err(refusal)
            }
        }
    }

    /// Of a thread that has ended: those of its process that were asked to stop, which they do soon, go on.
    pub(super) fn let_others_go(&mut self) {
        while !self.others.is_empty() {
            let_stopped_go(&mut self.others);
        }
    }

    /// It does nothing any more but let go who is not stopped yet.
    pub(super) const fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// Start the agent; the supervisor's end of its socket. Only while the thread is stopped, and it stays so. `is_copy`:
    /// a forked child that has not gone on yet; `takes_written`: after pages of private file mappings were taken.
    pub(super) fn finish(
        &mut self,
        pid: i32,
        at: u64,
        mode: FaultMode,
        is_copy: bool,
        takes_written: bool,
        meanwhile: Meanwhile<'_>,
    ) -> Result<Fd, Refusal> {
        let mut saved = Box::new(self.tracee.save()?);
        let started = if mode == FaultMode::Signal {
            everyone::start(self, pid, at, &mut saved, is_copy, takes_written, meanwhile)
        } else {
            let takes_written = takes_written && self.holds_all(pid);
            let taken = if takes_written { self.take_written(pid, at, &saved, meanwhile) } else { Ok(()) };
            taken.and_then(|()| self.start(pid, at, &saved, meanwhile))
        };
        if let Err(refusal) = self.stop(meanwhile) {
            self.unrestored = Some(saved);
            return Err(refusal);
        }
        self.tracee.restore(&saved)?;
        self.held_until = Some(clock::now() + HOLD_MAX);
        started
    }

    /// True once it is as it was.
    fn is_put_back(&mut self) -> Result<bool, Refusal> {
        if !self.is_stopped()? {
            return Ok(false);
        }
        if let Some(saved) = self.unrestored.take() {
            self.tracee.restore(&saved)?;
        }
        Ok(true)
    }

    /// The agent was started, and the thread waits until it manages the memory: what it fills before is beyond the budget.
    pub(super) const fn is_held(&self) -> bool {
        self.held_until.is_some()
    }

    /// It has waited long enough: an agent may be slow, and must not be waited for by who may be what it waits for.
    pub(super) fn is_overdue(&self) -> bool {
        self.held_until.is_some_and(|end| clock::now() > end)
    }

    /// True if no thread of the process runs until this one is let go.
    fn holds_all(&self, pid: i32) -> bool {
        let stopped = self.brake.as_ref().map_or_else(Vec::new, Brake::hold_all);
        let first = self.tid();
        threads(pid).into_iter().all(|tid| tid == first || stopped.contains(&tid))
    }

    /// Make anonymous what the process has written of private mappings of files. Only while none of its threads runs.
    fn take_written(&mut self, pid: i32, at: u64, saved: &Saved, meanwhile: Meanwhile<'_>) -> Result<(), Refusal> {
        if everyone::uses_memory_lastingly(pid) {
            return Ok(());
        }
        for written::Range { start, bytes, is_read_only } in written::find(pid, at) {
            let bytes = bytes | if is_read_only { foothold::READ_ONLY as u64 } else { 0 };
            write(pid, at + foothold::RANGE_AT, &[start.to_ne_bytes(), bytes.to_ne_bytes()].concat());
            match self.run(at, saved, u64::from(foothold::TAKE), meanwhile) {
                Ok(0) => {}
                // Mappings that the dynamic linker has sealed (mseal) cannot be moved.
                Ok(answer) if answer == -i64::from(libc::EPERM) => {}
                // No memory or mappings for it: what is left stays native.
                Ok(_) => break,
                Err(Refusal::Foreign(what)) => {
                    // In the midst of it nothing may be where the program's memory was.
                    stderr::tell(format_args!(
                        "pagetide: process {pid}: its memory cannot be taken over ({what}): it is killed"
                    ));
                    let _ = signal::kill(pid, signal::number::KILL);
                    return Err(Refusal::Ended(None));
                }
                Err(refusal) => return Err(refusal),
            }
        }
        self.stop(meanwhile)
    }

    /// Arm the stopped thread for signal mode; it stays stopped.
    fn arm(&mut self, at: u64, saved: &mut Saved, meanwhile: Meanwhile<'_>) -> Result<(), Refusal> {
        let mask = saved.mask().0;
        let hidden = mask & foothold::UNBLOCKED.0;
        let answer = self.run(at, saved, u64::from(foothold::ARM) | (hidden << 32), meanwhile)?;
        self.stop(meanwhile)?;
        saved.set_mask(SignalSet(mask & !hidden));
        Errno::from_negated(answer).map_or(Ok(()), |errno| Err(Refusal::Errno(errno)))
    }

    fn start(&mut self, pid: i32, at: u64, saved: &Saved, meanwhile: Meanwhile<'_>) -> Result<Fd, Refusal> {
        let mut answer = self.run(at, saved, u64::from(foothold::START), meanwhile)?;
        let mut holder = self.tracee.tid();
        let is_full = Errno::from_negated(answer) == Some(Errno::EMFILE);
        if is_full {
            answer = self.run(at, saved, u64::from(foothold::APART), meanwhile)?;
        }
        if let Some(errno) = Errno::from_negated(answer) {
            return Err(Refusal::Errno(errno));
        }
        if is_full {
            holder = agent_of(pid).ok_or(Refusal::Foreign(Oddity::Socket))?;
        }
        let outside = i32::try_from(answer).map_err(|_| Refusal::Foreign(Oddity::Socket))?;
        let taken = fd::pidfd_of_thread(pid, holder).and_then(|process| fd::take_from(&process, outside));
        let socket = taken?;
        if !is_full {
            // An agent that is there serves, also if two of its descriptors stay in the program's table.
            if let Err(ended @ Refusal::Ended(_)) = self.run(at, saved, u64::from(foothold::CLOSE), meanwhile) {
                return Err(ended);
            }
        }
        if socket::is_packets(&socket) { Ok(socket) } else { Err(Refusal::Foreign(Oddity::Socket)) }
    }

    /// Run one command in the thread.
    fn run(&mut self, at: u64, saved: &Saved, command: u64, meanwhile: Meanwhile<'_>) -> Result<i64, Refusal> {
        self.stop(meanwhile)?;
        let before = read(self.tracee.tid(), at).ok_or(Refusal::Foreign(Oddity::Words))?;
        let ticket = (before.done & 0xffff) + 1;
        // SAFETY: `enter` does not return, and only one thread of the process runs it at a time, because one supervisor asks. If
        // the program forged the words, it is its own memory that it runs on.
        unsafe { self.tracee.call(saved, before.enter, before.stack, ticket, command) }?;
        self.is_stopped = false;
        let begun = clock::now();
        loop {
            let view = read(self.tracee.tid(), at).ok_or(Refusal::Foreign(Oddity::Words))?;
            if view.done == ticket {
                return Ok(view.answer.cast_signed());
            }
            match self.tracee.look()? {
                Halt::None => thread::yield_now(),
                Halt::Trap | Halt::Group => self.tracee.resume(0)?,
                // Only signals that cannot be blocked come here: the process is stopped, or our code is at fault.
                Halt::Signal(signal) if signal == libc::SIGSTOP.cast_unsigned() => self.tracee.resume(signal)?,
                Halt::Signal(signal) => {
                    self.is_stopped = true;
                    return Err(Refusal::Foreign(Oddity::Signal(signal)));
                }
                Halt::Ended(status) => return Err(Refusal::Ended(Some(status))),
            }
            if self.is_late(begun) {
                return Err(Refusal::Foreign(Oddity::Slow));
            }
            meanwhile();
        }
    }

    /// It would have been done by now, if it had a CPU to run on, and what it reads of the disk.
    fn is_late(&self, begun: Nanos) -> bool {
        let waited = clock::now() - begun;
        let is_running = || proc::stat(Some(self.tracee.tid())).is_ok_and(|stat| matches!(stat.state, b'R' | b'D'));
        waited > CPU_WAIT || (waited > RUN_WAIT && !is_running())
    }

    /// Stop the thread, wherever it is.
    fn stop(&mut self, meanwhile: Meanwhile<'_>) -> Result<(), Refusal> {
        let begun = clock::now();
        if !self.is_stopped {
            self.tracee.interrupt()?;
        }
        while !self.is_stopped()? {
            if self.is_late(begun) {
                return Err(Refusal::Foreign(Oddity::Slow));
            }
            meanwhile();
        }
        Ok(())
    }
}

/// Those that are stopped go on as they were; the others are left.
fn let_stopped_go(threads: &mut Vec<Starting>) {
    for thread in std::mem::take(threads) {
        // One that has ended is nobody's.
        threads.extend(thread.let_go().ok().flatten());
    }
}

/// True of a thread that is nothing but a number any more.
fn has_ended(tid: i32) -> bool {
    proc::stat(Some(tid)).map_or(true, |stat| proc::is_over(stat.state))
}

/// The agent's thread: the newest that has its name.
fn agent_of(pid: i32) -> Option<i32> {
    threads(pid).into_iter().filter(|&tid| thread_name(pid, tid) == b"pagetide\n").max()
}

/// The name of a thread, with the line end; empty: it is gone.
pub(super) fn thread_name(pid: i32, tid: i32) -> Vec<u8> {
    std::fs::read(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default()
}

/// The words of a process at an address. Once `done` is what was asked for, the answer is the one to it, and the state is no older than
/// the process it is of: one copy does not give that, for the kernel copies bytes in no stated order. A word that changes meanwhile may
/// be in part of before: `done` is the number that was asked for only if the bytes that have changed are all of after.
pub(super) fn read(pid: i32, at: u64) -> Option<View> {
    let first = copy(pid, at)?;
    fence(Ordering::SeqCst);
    Some(View { done: first.done, pid: first.pid, ..copy(pid, at)? })
}

fn copy(pid: i32, at: u64) -> Option<View> {
    let mut words = [0; foothold::BYTES];
    proc::read_memory(pid, at, &mut words).ok()?;
    View::decode(&words, at)
}

/// What is seen of the preloaded object in a process.
pub(super) enum Object {
    /// It has said where its words are.
    At(u64),
    /// It is mapped and has said nothing so far: a large program is still being linked when its objects are mapped.
    Silent,
    /// It is not mapped, but its environment names it: it is not linked yet, or is a static program.
    Awaited,
    /// It is not mapped, and nothing is known of its environment.
    Unknown,
    /// Nothing will map it.
    Absent,
}

/// Look for the words of a process: in the writable mapping of the object called `library`.
pub(super) fn find(pid: i32, library: &str) -> Object {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let is_object = |line: &&str| line.strip_suffix(" (deleted)").unwrap_or(line).ends_with(library);
    let mut object = None;
    for line in maps.lines().filter(is_object) {
        object = Some(Object::Silent);
        if line.contains(" rw-p ")
            && let Some(at) = words_in(pid, line)
        {
            return Object::At(at);
        }
    }
    object.unwrap_or_else(|| awaited(pid, library))
}

/// What the environment of a process that has not mapped the object says.
fn awaited(pid: i32, library: &str) -> Object {
    match image::named(pid, library) {
        Named::InSight => Object::Awaited,
        Named::OutOfSight(_) | Named::Nowhere => Object::Absent,
        Named::Forbidden | Named::Unknown => Object::Unknown,
    }
}

/// The address of the words in the mapping that a line of the list tells of.
fn words_in(pid: i32, line: &str) -> Option<u64> {
    let (start, rest) = line.split_once('-')?;
    let start = u64::from_str_radix(start, 16).ok()?;
    let end = u64::from_str_radix(rest.split(' ').next()?, 16).ok()?;
    let mut bytes = vec![0; usize::try_from((end.checked_sub(start)?).min(1 << 20)).ok()?];
    proc::read_memory(pid, start, &mut bytes).ok()?;
    let words = |offset| Some((start + offset as u64, bytes.get(offset..offset + foothold::BYTES)?));
    View::offsets(&bytes).filter_map(words).find(|(at, words)| View::decode(words, *at).is_some()).map(|(at, _)| at)
}

/// Change a word of a process.
pub(super) fn write(pid: i32, at: u64, bytes: &[u8]) {
    // It may have ended meanwhile: then nobody reads them.
    // SAFETY: the words are there to be written by the supervisor; a process that forged them forged its own.
    let _ = unsafe { proc::write_memory(pid, at, bytes) };
}

/// The threads of a process; none if it is gone.
pub(super) fn threads(pid: i32) -> Vec<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_str()?.parse().ok()).collect()
}

/// The thread that is to run our code: the first if it lives, one without a system call filter in any case.
fn choose_thread(pid: i32) -> Result<i32, Refusal> {
    let mut tids = threads(pid);
    tids.sort_unstable_by_key(|&tid| (tid != pid, tid));
    let mut filtered = false;
    let mut waiting = None;
    for tid in tids {
        let (Ok(stat), Ok(status)) = (proc::stat(Some(tid)), proc::status(Some(tid))) else { continue };
        if proc::is_over(stat.state) {
            continue;
        }
        if status.seccomp != 0 {
            filtered = true;
            continue;
        }
        if stat.state != b'D' {
            return Ok(tid);
        }
        waiting = waiting.or(Some(tid));
    }
    waiting.ok_or(if filtered { Refusal::Filter } else { Refusal::Ended(None) })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32};

    use super::*;

    /// Answers that were older than the word that tells of them, while another thread answers on and on. How often a single copy shows
    /// one depends on where the words lie in their cache lines. Of a word only one byte changes while it is looked at: words that are
    /// in part of before are not what this is about.
    fn old_answers<const BY: usize>() -> u64 {
        const LOOKS_NS: Nanos = 300_000_000;
        let words = foothold::Shifted::<BY>::new();
        let (asked, begun, is_over) = (AtomicU32::new(0), AtomicU32::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    let high = asked.load(Ordering::Acquire);
                    if high == begun.load(Ordering::Relaxed) {
                        continue;
                    }
                    for ticket in high << 8..=(high << 8 | 0xff) {
                        words.answer(ticket, u64::from(ticket));
                        begun.store(high, Ordering::Release);
                        std::hint::spin_loop();
                    }
                }
            });
            let (mut old, end) = (0, clock::now() + LOOKS_NS);
            for high in 1.. {
                if clock::now() > end {
                    break;
                }
                asked.store(high, Ordering::Release);
                while begun.load(Ordering::Acquire) != high {
                    std::hint::spin_loop();
                }
                loop {
                    let view = read(thread::getpid(), words.address()).expect("words of ours");
                    old += u64::from(view.answer < view.done);
                    if view.done == u64::from(high << 8 | 0xff) {
                        break;
                    }
                }
            }
            is_over.store(true, Ordering::Release);
            old
        })
    }

    #[test]
    fn whose_end_another_wait_has_taken_has_ended() {
        assert_eq!(Refusal::from(Errno::ECHILD), Refusal::Ended(None));
        assert_eq!(Refusal::from(Errno::ESRCH), Refusal::Ended(None));
        assert_eq!(Refusal::from(Errno::EPERM), Refusal::Errno(Errno::EPERM));
    }

    #[test]
    fn who_is_about_to_be_collected_has_ended() {
        let mut child = std::process::Command::new("true").spawn().expect("there is a program of that name");
        let pid = i32::try_from(child.id()).expect("a process id");
        while !has_ended(pid) {
            thread::yield_now();
        }
        assert_eq!(Starting::stop_soon(pid, 0).err(), Some(Refusal::Ended(None)));
        child.wait().expect("it has ended");
    }

    #[test]
    fn an_answer_is_no_older_than_the_word_that_tells_of_it() {
        let old = [
            old_answers::<0>(),
            old_answers::<1>(),
            old_answers::<2>(),
            old_answers::<3>(),
            old_answers::<4>(),
            old_answers::<5>(),
            old_answers::<6>(),
            old_answers::<7>(),
        ];
        assert_eq!(old, [0; 8]);
    }
}
