//! Faults that the threads of a program serve themselves, in signal mode.
//!
//! The kernel sends SIGBUS to the thread that touches a missing page. Its handler (`signal::faults`) takes the agent's lock, gives the
//! fault to the pager and waits for the page itself (`sleepers`): no other thread has to be woken. What it cannot do it leaves to the agent:
//! an address that no region covers, a fault while a fork is made, a thread with a system call filter, a process that shares memory, and all
//! faults while several threads have one.
//!
//! Agent and program have different descriptor tables. What a fault needs is in both, under the same number ([`Files`]): a thread of
//! the program opens it before it makes the agent, whose table begins as a copy. All other descriptors are the agent's, so what needs
//! them is left out here: swap files that grow, messages, commands. The ring holds the swap files itself.
//!
//! Invariants: nobody touches memory of the program, or allocates, while he holds the lock in a handler; all that is done there with
//! descriptors goes by those of [`Files`]; a child that has copied the address space has none of this.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering};

use pagetide_core::page::{Flight, PageState};
use pagetide_core::types::{Access, Nanos, TaskId};
use pagetide_sys::fd::{self, Fd};
use pagetide_sys::file;
use pagetide_sys::futex::{self, Scope};
use pagetide_sys::pagemap::Pagemap;
use pagetide_sys::proc::{self, LoadFile, Resource, UNLIMITED};
use pagetide_sys::sync::{Guard, Mutex};
use pagetide_sys::uffd::{Reach, ReadMode, Uffd};
use pagetide_sys::uring::UnmappedRing;
use pagetide_sys::{Errno, clock, thread};

use crate::agent::Managed;
use crate::engine::UringEngine;
use crate::limits;
use crate::pager::{Fault, FaultAnswer};
use crate::sleepers::{self, Sleepers, Watch};
use crate::space::PAGE_SHIFT;

/// A fault that is parked nowhere any more is put again.
pub(crate) const ASK_AGAIN_NS: Nanos = 10_000_000;
/// Between two looks of a thread that has taken another one's word.
const TURNS: u32 = 1000;
/// Descriptors of ours in the program's table have this number or a higher one, or follow those that it may have if these are less.
const LOWEST: u64 = 4000;
/// Where the program may have no more than it has: so many are ours.
const ROOM: u64 = 16;

/// Descriptors that agent and program have under the same numbers.
#[derive(Debug)]
pub(crate) struct Files {
    /// Until the agent's pager has them.
    pub(crate) uffd: Option<Uffd>,
    pub(crate) ring: Option<UnmappedRing>,
    pub(crate) pagemap: Option<Pagemap>,
    bell: Fd,
    again: Fd,
    answered: Fd,
    load: Option<LoadFile>,
}

/// For the agent, from when a thread of the program has opened them until it takes them.
static OPENED: Mutex<Option<Files>> = Mutex::new(None);
/// Their numbers.
static NUMBERS: [AtomicI32; 7] = [const { AtomicI32::new(-1) }; 7];
/// What the agent and the faulting threads share; null: faults are the agent's.
static SERVED: AtomicPtr<Served> = AtomicPtr::new(std::ptr::null_mut());
/// From when on SIGBUS may come until the agent can be rung: 1.
static IS_COMING: AtomicU32 = AtomicU32::new(0);
/// The size of files is limited: a write beyond it would end the thread that begins it.
static IS_LIMITED: AtomicBool = AtomicBool::new(false);
/// A CPU was free when the kernel was asked last.
static IS_CPU_FREE: AtomicBool = AtomicBool::new(false);

/// Open in the calling thread's table what its process's agent will share with it. Without it, the agent alone serves faults.
///
/// Allocates nothing.
pub(crate) fn open() -> Result<(), Errno> {
    let before = proc::limit(Resource::Files)?.soft;
    let _raised = limits::for_files();
    // A hard limit may leave the program's soft one where it is.
    let (wanted, end) = (before.min(LOWEST), proc::limit(Resource::Files)?.soft);
    let lowest = if end > wanted + ROOM { wanted } else { end.saturating_sub(ROOM) };
    let lowest = u32::try_from(lowest).unwrap_or(u32::MAX);
    let (uffd, _door) = Uffd::open(Reach::UserMode, ReadMode::NonBlocking).map_err(|_| Errno::EPERM)?;
    let uffd = Uffd::from_fd(uffd.into_fd().moved_high(lowest));
    let ring = UringEngine::unmapped().map_err(|_| Errno::EPERM)?.moved_high(lowest);
    let pagemap = Pagemap::open_here()?.moved_high(lowest);
    let [bell, again, answered] =
        [fd::eventfd(0)?, fd::eventfd(0)?, fd::semaphore()?].map(|counter| counter.moved_high(lowest));
    let load = LoadFile::open().ok().map(|load| load.moved_high(lowest));
    let raws = [uffd.fd(), ring.fd(), pagemap.fd(), &bell, &again, &answered].map(Fd::raw);
    let raws = raws.into_iter().chain([load.as_ref().map_or(-1, |load| load.fd().raw())]);
    for (number, raw) in NUMBERS.iter().zip(raws) {
        number.store(raw, Ordering::Relaxed);
    }
    let files = Files { uffd: Some(uffd), ring: Some(ring), pagemap: Some(pagemap), bell, again, answered, load };
    *OPENED.lock("files for the agent") = Some(files);
    Ok(())
}

/// In the agent: what was opened for it.
pub(crate) fn take() -> Option<Files> {
    OPENED.lock("the agent's files").take()
}

/// The numbers of ours in the program's table, in no order.
pub(crate) fn numbers() -> impl Iterator<Item = i32> {
    NUMBERS.iter().map(|number| number.load(Ordering::Relaxed)).filter(|&raw| raw >= 0)
}

/// Faults come as SIGBUS from now on, and [`Served::begin`] will follow.
pub(crate) fn expect() {
    IS_COMING.store(1, Ordering::Release);
}

/// In a copy of the address space that becomes a process of its own: what was its maker's is closed in the caller's table.
pub(crate) fn forget() {
    SERVED.store(std::ptr::null_mut(), Ordering::Relaxed);
    IS_COMING.store(0, Ordering::Relaxed);
    IS_LIMITED.store(false, Ordering::Relaxed);
    IS_CPU_FREE.store(false, Ordering::Relaxed);
    for number in &NUMBERS {
        let raw = number.swap(-1, Ordering::Relaxed);
        if raw >= 0 {
            // SAFETY: the number is the copy's own, and nothing else uses it.
            drop(unsafe { Fd::from_raw(raw) });
        }
    }
}

/// The program limits the size of its files, or may do so.
pub(crate) fn limit_file_size() {
    IS_LIMITED.store(true, Ordering::Relaxed);
}

/// Was a CPU free when whoever serves faults asked last?
pub(crate) fn saw_free_cpu() -> bool {
    IS_CPU_FREE.load(Ordering::Relaxed)
}

pub(crate) fn note_free_cpu(is_free: bool) {
    IS_CPU_FREE.store(is_free, Ordering::Relaxed);
}

/// What the agent and the threads that fault have in common.
#[derive(Debug)]
pub(crate) struct Served {
    state: Mutex<State>,
    /// None: faults are the agent's.
    pub(crate) sleepers: Option<Sleepers>,
    /// One for each fault of a thread that can do nothing but read, write and return, once the agent has answered it.
    answered: Option<Fd>,
}

/// Under the lock.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) managed: Managed,
    pub(crate) watch: Watch,
    /// The agent sleeps, and was not rung for.
    pub(crate) is_agent_asleep: bool,
}

impl Served {
    /// For ever. `files`: threads of the program serve their own faults from now on.
    pub(crate) fn begin(mut managed: Managed, files: Option<Files>) -> &'static Self {
        if files.is_some() {
            managed.session.pager.serve_beside();
        }
        let machine = managed.session.pager.machine();
        let (event, signs) = (machine.event().raw(), machine.signs());
        let (sleepers, answered) = files
            .map(|files| (Sleepers::new(event, signs, files.bell, files.again, files.load), files.answered))
            .unzip();
        let is_limited = proc::limit(Resource::FileSize).map_or(true, |limit| limit.soft != UNLIMITED);
        IS_LIMITED.fetch_or(is_limited, Ordering::Relaxed);
        let state = Mutex::new(State { managed, watch: Watch::default(), is_agent_asleep: false });
        let served: &'static Self = Box::leak(Box::new(Self { state, sleepers, answered }));
        if served.sleepers.is_some() {
            SERVED.store(std::ptr::from_ref(served).cast_mut(), Ordering::Release);
            IS_COMING.store(0, Ordering::Release);
            futex::wake(&IS_COMING, u32::MAX, Scope::Private);
        }
        served
    }

    pub(crate) fn lock(&self, purpose: &'static str) -> Guard<'_, State> {
        self.state.lock(purpose)
    }

    /// Pass on what the caller has queued. False: the kernel has not taken all of it.
    pub(crate) fn pass_on<'s>(&'s self, state: Guard<'s, State>, caller: i32) -> (Guard<'s, State>, bool) {
        let lock = || self.lock("requests were passed on");
        sleepers::pass_on(state, caller, |state| state.managed.session.pager.machine_mut(), lock)
    }
}

/// How a fault was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The thread goes on: it finds its page, or faults again.
    GoOn,
    /// The agent has to see to it.
    Agents,
}

/// Where the agent is rung for, as soon as it is there. None: it serves no faults that it is not told of by the kernel. A thread that
/// `is_confined` cannot sleep until then.
pub(crate) fn bell(is_confined: bool) -> Option<&'static Sleepers> {
    while IS_COMING.load(Ordering::Acquire) == 1 {
        if is_confined {
            std::hint::spin_loop();
        } else {
            futex::wait(&IS_COMING, 1, Some(ASK_AGAIN_NS), Scope::Private);
        }
    }
    served().and_then(|served| served.sleepers.as_ref())
}

/// In the agent: a thread goes on that sleeps in [`wait_by_read`].
pub(crate) fn end_read() {
    let told = served().and_then(|served| served.answered.as_ref()).map(|answered| file::signal_event(answered, 1));
    debug_assert!(told.is_none_or(|told| told.is_ok()), "the counter is open: {told:?}");
}

/// In a thread that may only read, write and return: until [`end_read`] was called for it, and it `is_over`.
pub(crate) fn wait_by_read(is_over: impl Fn() -> bool) {
    let answered = served().and_then(|served| served.answered.as_ref());
    loop {
        let is_told = answered.is_none_or(|answered| matches!(file::take_event(answered), Ok(Some(_))));
        if is_told && is_over() {
            return;
        }
        if is_told && let Some(answered) = answered {
            // It was another thread's, which gets it back.
            let given = file::signal_event(answered, 1);
            debug_assert!(given.is_ok(), "the counter is open: {given:?}");
        }
        (0..TURNS).for_each(|_| std::hint::spin_loop());
    }
}

fn served() -> Option<&'static Served> {
    let served = SERVED.load(Ordering::Acquire);
    // SAFETY: it is made for ever, and null in a copy of the address space.
    (!served.is_null()).then(|| unsafe { &*served })
}

impl State {
    /// May a thread of the program use the pager at this moment?
    fn is_open(&self) -> bool {
        !self.managed.forks.is_frozen()
            && !IS_LIMITED.load(Ordering::Relaxed)
            && self.managed.session.pager.machine().is_for_all_tables()
    }

    /// The page of this address is there, or was to be waited for no longer: who still misses it faults again.
    fn is_over(&self, vpn: u64) -> bool {
        let pager = &self.managed.session.pager;
        pager.machine().mappings.page(vpn).is_none_or(|page| {
            let view = pager.core().page(page);
            let is_answered = view.state == PageState::Mapped || !pager.machine().is_awaited(page);
            view.flight == Flight::None && is_answered
        })
    }

    /// Nothing will be done for a fault on this address that is not asked for again.
    fn is_parked_nowhere(&self, vpn: u64) -> bool {
        let pager = &self.managed.session.pager;
        pager.machine().mappings.page(vpn).is_none_or(|page| pager.core().page(page).flight == Flight::None)
    }

    /// A step of what the pager has to do. True if there is more at once.
    fn work(&mut self, now: Nanos, vpn: u64, sleepers: &Sleepers) -> bool {
        let pager = &mut self.managed.session.pager;
        let Some(page) = pager.machine().mappings.page(vpn) else { return false };
        let ended = pager.machine().requests_ended();
        let is_busy = pager.pump_for(now, page);
        if self.watch.is_watched() && pager.machine().requests_ended() != ended {
            sleepers.tell_watcher();
        }
        let outbox = &pager.machine().outbox;
        let is_for_agent =
            outbox.out_of_memory.is_some() || !outbox.poisoned.is_empty() || pager.has_waiting_requests(now);
        if is_for_agent && self.is_agent_asleep && !is_busy {
            self.is_agent_asleep = false;
            sleepers.ring();
        }
        is_busy
    }
}

/// A thread of the program has touched a missing page. In its handler, with its signals blocked.
///
/// It begins the read of its page alone, and goes on only when that is over (see [`crate::io::Engine::has_begun`]): further reads, and
/// the writes, are the agent's to begin.
pub(crate) fn fault(address: usize, access: Access) -> Outcome {
    let Some(served) = served() else { return Outcome::Agents };
    let Some(sleepers) = &served.sleepers else { return Outcome::Agents };
    let (vpn, thread) = ((address >> PAGE_SHIFT) as u64, thread::gettid());
    let mut state = served.lock("a fault");
    let fault = Fault { address: address as u64, access, thread: thread.cast_unsigned() };
    let asked = clock::now();
    if !state.is_open() || state.managed.session.pager.on_fault(asked, fault, TaskId(0)) != FaultAnswer::Taken {
        return Outcome::Agents;
    }
    loop {
        let now = clock::now();
        state.managed.session.pager.machine_mut().set_caller(thread);
        let may_leave = !state.managed.session.pager.machine().has_begun(thread);
        let is_over = state.is_over(vpn) || (now >= asked + ASK_AGAIN_NS && state.is_parked_nowhere(vpn));
        if may_leave && is_over {
            sleepers.next_turn(&state.watch);
            return Outcome::GoOn;
        }
        if may_leave && !state.is_open() {
            sleepers.next_turn(&state.watch);
            return Outcome::Agents;
        }
        let is_busy = state.work(now, vpn, sleepers);
        if state.managed.session.pager.machine().has_unsubmitted() {
            let is_taken;
            (state, is_taken) = served.pass_on(state, thread);
            if is_taken {
                continue;
            }
            // The agent looks why, and is not to find the ring in anybody's hands.
            sleepers.ring();
        } else if is_busy || (state.is_over(vpn) && !state.managed.session.pager.machine().has_begun(thread)) {
            continue;
        }
        let is_free = || sleepers.is_cpu_free();
        let looks = !state.watch.is_watched() && state.managed.session.pager.is_worth_looking(now, is_free);
        note_free_cpu(state.managed.session.pager.saw_free_cpu());
        state = sleepers.wait(state, looks, |state| &mut state.watch, || served.lock("after a wait"));
    }
}
