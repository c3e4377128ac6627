//! The library: a pool of memory with a fixed budget, and regions in it that may be larger.
//!
//! A [`Region`] is private anonymous memory of this process. What of it is used stays in memory, as far as the [`Pool`]'s
//! budget goes; the rest is in a swap file without a name. No privilege is needed: a thread that touches a page that is not
//! there gets SIGBUS, and the handler (`handler`) brings the page in before the thread goes on.
//!
//! ```no_run
//! use pagetide::Pool;
//! # fn main() -> Result<(), pagetide::Error> {
//! let pool = Pool::builder(256 << 20).swap("/var/tmp", 4 << 30).build()?;
//! let region = pool.region(2 << 30)?;
//! let first: *mut u64 = region.as_ptr().cast();
//! // SAFETY: the region is mapped and writable, and no other thread uses this word.
//! unsafe { first.write(7) };
//! # Ok(())
//! # }
//! ```
//!
//! What it is not: an allocator (a region is one piece), and not memory that system calls may use as it is. A system call on
//! a page that is not there fails with EFAULT; [`Region::hold`] makes a part stay in memory for as long as one is made.
//!
//! A finite limit on the address space (RLIMIT_AS) is raised by what the pool's own tables map, as far as that is allowed.
//!
//! Invariants: the pager is used under the lock `state`, which is only taken with all signals blocked, so that no handler
//! can interrupt its holder; nobody touches a region while he holds it; the thread of the pool never touches a region.

mod handler;
mod places;
mod region;
mod serve;

#[cfg(test)]
mod faults;
#[cfg(test)]
mod faults_compressed;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use pagetide_core::Core;
use pagetide_core::types::{DeviceId, Nanos, PageIdx, PageRange, TaskId};
use pagetide_kernel::Linux;
use pagetide_sys::fd;
use pagetide_sys::mem::PAGE_BYTES;
use pagetide_sys::proc::LoadFile;
use pagetide_sys::signal::{self, SignalSet};
use pagetide_sys::stderr;
use pagetide_sys::sync::{Guard, Mutex};
use pagetide_sys::uffd::{Features, Reach, ReadMode, Uffd};
use pagetide_sys::{Errno, clock, thread};

use crate::control::{LatencySummary, MACHINE_COUNTERS, summary};
use crate::engine::{ThreadEngine, UringEngine};
use crate::io::Engine;
use crate::pager::Pager;
use crate::session::Session;
use crate::session::command::PlaceId;
use crate::setup::{self, BUDGET_PAGES_MIN, PAGES_MAX, SLOTS_LATER, SetupError, step};
use crate::sleepers::{Sleepers, Watch};
use crate::{Error, ErrorKind, own};

pub use pagetide_core::event::Advice;
pub use places::{SwapPlace, SwapState};
pub use region::{Hold, Region};

/// The smallest budget.
const BUDGET_BYTES_MIN: u64 = BUDGET_PAGES_MIN * PAGE_BYTES as u64;
/// Bytes left free on the file system of a swap file, if the builder names no other floor.
const FLOOR_BYTES: u64 = 64 << 20;
/// Faults that may wait to be told that they cannot be answered.
const FAILED_FAULTS: usize = 256;
/// Lost ranges that may wait to be marked: more than one step of the core makes.
const POISONED_RANGES: usize = 1024;
/// Holds that exist at the same time.
const HOLDS: usize = 4096;
/// How the pool's engine may be wrapped: tests put a failing device between.
type Wrap = fn(Box<dyn Engine>) -> Box<dyn Engine>;

/// How requests reach the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineChoice {
    /// io_uring where the kernel allows it, else threads.
    #[default]
    Auto,
    /// io_uring; an error where it is refused.
    Uring,
    /// Threads that call preadv2 and pwritev2.
    Threads,
}

/// What a [`Pool`] is made of.
#[derive(Clone, Debug)]
#[must_use = "a builder builds nothing until `build`"]
pub struct PoolBuilder {
    budget_bytes: u64,
    places: Vec<Place>,
    settings: Vec<(String, String)>,
    engine: EngineChoice,
    floor_bytes: u64,
}

#[derive(Clone, Debug)]
struct Place {
    directory: PathBuf,
    bytes: u64,
    priority: Option<i16>,
}

impl PoolBuilder {
    /// A place for a swap file: a directory on a disk, and the bytes it may take there. Several places are used in turn.
    pub fn swap(mut self, directory: impl Into<PathBuf>, bytes: u64) -> Self {
        self.places.push(Place { directory: directory.into(), bytes, priority: None });
        self
    }

    /// The same with a priority (0..=32767): the place with the highest is filled first.
    pub fn swap_with_priority(mut self, directory: impl Into<PathBuf>, bytes: u64, priority: i16) -> Self {
        self.places.push(Place { directory: directory.into(), bytes, priority: Some(priority) });
        self
    }

    /// The policy: `pagetide` (the default) or one of the kernels' (`linux-6.18` ...).
    pub fn profile(self, name: &str) -> Self {
        self.set("profile", name)
    }

    /// A knob of docs/knobs.md.
    pub fn set(mut self, key: &str, value: &str) -> Self {
        self.settings.push((key.to_owned(), value.to_owned()));
        self
    }

    /// How requests reach the disk.
    pub const fn engine(mut self, engine: EngineChoice) -> Self {
        self.engine = engine;
        self
    }

    /// Bytes to leave free on the file system of each swap file: 64 MiB if not named.
    pub const fn floor(mut self, bytes: u64) -> Self {
        self.floor_bytes = bytes;
        self
    }

    /// The pool.
    ///
    /// # Errors
    /// `Config`: a value cannot be used. `Unsupported` and `Permission`: the kernel does not let this user catch his own
    /// faults. `NoSwapSpace`: a place has no room. `Io`: descriptors or memory are exhausted.
    pub fn build(self) -> Result<Pool, Error> {
        self.build_with(|engine| engine)
    }

    fn build_with(self, wrap: Wrap) -> Result<Pool, Error> {
        clock::init();
        let budget_pages = self.budget_bytes / PAGE_BYTES as u64;
        if budget_pages < BUDGET_PAGES_MIN {
            let text = format!("a budget of {} bytes is too small: {BUDGET_BYTES_MIN} at least", self.budget_bytes);
            return Err(Error::new(ErrorKind::Config, text));
        }
        if self.places.is_empty() {
            return Err(Error::new(ErrorKind::Config, "the pool has no swap place: name a directory on a disk"));
        }
        let slots = self.places.iter().map(|place| slots_of(place.bytes)).fold(0, u32::saturating_add);
        let config = setup::live_config(&self.settings, PAGES_MAX, budget_pages, slots.saturating_add(SLOTS_LATER))
            .build()
            .map_err(|error| Error::new(ErrorKind::Config, error.to_string()))?;
        let uffd = open_uffd()?;
        let engine = wrap(self.open_engine()?);
        let seed = clock::now() ^ 0x9e37_79b9_7f4a_7c15;
        let mut machine = setup::machine(Linux::new(uffd), seed, budget_pages, engine, None, None)
            .map_err(|error| io_error(&error))?;
        machine
            .attach_tier(&config, budget_pages, |bytes| own::map(bytes, false))
            .map_err(|errno| io_error(&SetupError::Step("memory for compressed pages", errno)))?;
        let mut pager = Pager::new(Core::new(config), machine, self.floor_bytes, None);
        for (number, place) in (0..).zip(&self.places) {
            self.add_place(&mut pager, DeviceId(number), place)?;
        }
        stderr::note();
        handler::install().map_err(|errno| io_error(&SetupError::Step("the SIGBUS handler", errno)))?;
        Pool::start(Session::new(pager, self.floor_bytes, 0), places::named(&self.places))
    }

    fn open_engine(&self) -> Result<Box<dyn Engine>, Error> {
        if self.engine != EngineChoice::Threads {
            match UringEngine::for_threads() {
                Ok(engine) => return Ok(Box::new(engine)),
                Err(refused) if self.engine == EngineChoice::Uring => {
                    return Err(Error::new(ErrorKind::Unsupported, format!("io_uring is refused: {refused:?}")));
                }
                Err(_refused) => {}
            }
        }
        let engine = with_signals_blocked(ThreadEngine::new);
        Ok(Box::new(step("the I/O threads", engine).map_err(|error| io_error(&error))?))
    }

    fn add_place(&self, pager: &mut Pager, device: DeviceId, place: &Place) -> Result<(), Error> {
        let (directory, offer) = places::open(place, places::of_device(device))?;
        setup::add_swap(pager, device, &directory, offer, self.floor_bytes)
            .map_err(|error| places::refusal(&place.directory, &error.to_string()))
    }
}

/// Slots in a file of so many bytes; slot 0 is never used.
fn slots_of(bytes: u64) -> u32 {
    u32::try_from(bytes / PAGE_BYTES as u64).unwrap_or(u32::MAX - 1).saturating_add(1)
}

fn io_error(error: &SetupError) -> Error {
    Error::new(ErrorKind::Io, error.to_string())
}

/// A userfaultfd for the faults of our own code, which any user may have.
fn open_uffd() -> Result<Uffd, Error> {
    let (uffd, _door) = Uffd::open(Reach::UserMode, ReadMode::NonBlocking).map_err(|refused| {
        let errno = refused.user_mode_only.unwrap_or(Errno::ENOSYS);
        let kind = if errno == Errno::EPERM { ErrorKind::Permission } else { ErrorKind::Unsupported };
        Error::new(kind, format!("userfaultfd(UFFD_USER_MODE_ONLY) is refused: {}", errno.name()))
    })?;
    let wanted = Features::SIGBUS.with(Features::MOVE).with(Features::POISON);
    uffd.handshake(wanted).map_err(|errno| {
        let text = format!("the kernel lacks UFFD_FEATURE_SIGBUS, MOVE or POISON (Linux 6.8): {}", errno.name());
        Error::new(ErrorKind::Unsupported, text)
    })?;
    Ok(uffd)
}

/// Memory with a budget. Lives until it and all its regions are dropped.
#[derive(Clone, Debug)]
pub struct Pool {
    running: Arc<Running>,
}

/// The pool's thread, and what it shares with the faulting ones.
#[derive(Debug)]
struct Running {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// The process that made it: a forked child has neither the thread nor the memory.
    pid: i32,
}

/// What all threads share.
#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    is_over: AtomicBool,
    sleepers: Sleepers,
}

/// What the pool's thread does when nobody has rung for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sleep {
    Awake,
    /// It looks again soon.
    Short,
    Long,
}

/// The pager, and who waits for it.
#[derive(Debug)]
struct State {
    session: Session,
    watch: Watch,
    sleep: Sleep,
    /// Faults that cannot be answered: the swap space is full.
    failed: Vec<(TaskId, PageIdx)>,
    /// The swap places by their directories.
    places: Vec<(PlaceId, PathBuf)>,
    places_made: u32,
    /// Pages that must stay.
    holds: Vec<PageRange>,
    held_pages: u64,
}

/// Ends the process when a panic unwinds through it: the state is then half changed, and other threads would go on with it. Who
/// builds with `panic = "abort"` never gets here.
#[derive(Debug)]
struct EndsWithPanic {
    /// A destructor that runs while the program unwinds for reasons of its own is as good as any caller.
    was_panicking: bool,
}

impl EndsWithPanic {
    fn new() -> Self {
        Self { was_panicking: std::thread::panicking() }
    }

    fn check(&self) {
        if std::thread::panicking() && !self.was_panicking {
            stderr::write(b"pagetide: an invariant of the pager broke (above): the process ends\n");
            signal::abort();
        }
    }
}

impl Drop for EndsWithPanic {
    fn drop(&mut self) {
        self.check();
    }
}

/// The state, with all signals blocked in this thread.
#[derive(Debug)]
struct Locked<'a> {
    ends_with_panic: EndsWithPanic,
    state: Option<Guard<'a, State>>,
    before: SignalSet,
}

impl std::ops::Deref for Locked<'_> {
    type Target = State;
    fn deref(&self) -> &State {
        self.state.as_ref().expect("held until the drop")
    }
}

impl std::ops::DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_mut().expect("held until the drop")
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.ends_with_panic.check();
        // The lock first: a handler that runs as soon as signals come may want it.
        self.state = None;
        self.before.restore();
    }
}

fn with_signals_blocked<T>(run: impl FnOnce() -> T) -> T {
    let before = SignalSet::ALL.block();
    let _ends_with_panic = EndsWithPanic::new();
    let result = run();
    before.restore();
    result
}

impl Shared {
    fn lock(&self, purpose: &'static str) -> Locked<'_> {
        let before = SignalSet::ALL.block();
        let ends_with_panic = EndsWithPanic::new();
        Locked { ends_with_panic, state: Some(self.state.lock(purpose)), before }
    }
}

impl Pool {
    /// A pool of at most this much memory; at least 2 MiB.
    pub const fn builder(budget_bytes: u64) -> PoolBuilder {
        PoolBuilder {
            budget_bytes,
            places: Vec::new(),
            settings: Vec::new(),
            engine: EngineChoice::Auto,
            floor_bytes: FLOOR_BYTES,
        }
    }

    fn start(mut session: Session, places: Vec<(PlaceId, PathBuf)>) -> Result<Self, Error> {
        // Filled by faulting threads, which do not allocate.
        session.pager.machine_mut().outbox.poisoned.reserve(POISONED_RANGES);
        let failed = |errno: Errno| io_error(&SetupError::Step("an event counter", errno));
        let event = session.pager.machine().event().raw();
        let (bell, again) = (fd::eventfd(0).map_err(failed)?, fd::eventfd(0).map_err(failed)?);
        let shared = Arc::new(Shared {
            is_over: AtomicBool::new(false),
            sleepers: Sleepers::new(event, None, bell, again, LoadFile::open().ok()),
            state: Mutex::new(State {
                session,
                watch: Watch::default(),
                sleep: Sleep::Awake,
                failed: Vec::with_capacity(FAILED_FAULTS),
                places_made: u32::try_from(places.len()).expect("few places"),
                places,
                holds: Vec::with_capacity(HOLDS),
                held_pages: 0,
            }),
        });
        let for_thread = Arc::clone(&shared);
        let builder = std::thread::Builder::new().name("pagetide-pool".to_owned());
        let thread = with_signals_blocked(|| builder.spawn(move || run_thread(&for_thread)))
            .map_err(|error| Error::new(ErrorKind::Io, "the pool's thread cannot be started").because(error))?;
        Ok(Self { running: Arc::new(Running { shared, thread: Some(thread), pid: thread::getpid() }) })
    }

    /// A region of `bytes` (rounded up to pages), all zero.
    ///
    /// # Errors
    /// `Config`: no bytes, more than the tables of a pool can name, or SIGBUS is blocked in the calling thread. `Io`: the address space or the mappings are used up.
    pub fn region(&self, bytes: usize) -> Result<Region, Error> {
        Region::new(Arc::clone(&self.running), bytes)
    }

    /// The counters, by the names of docs/counters.md.
    pub fn vmstat(&self) -> Vec<(&'static str, u64)> {
        let mut counters = Vec::with_capacity(256);
        let state = self.running.shared.lock("counters");
        let machine = state.session.pager.machine();
        let tier = machine.tier_stats();
        counters.extend(setup::with_tier(state.session.pager.core().vmstat(), tier));
        let away_pages_max = state.session.pager.core().away_pages_max();
        counters.extend(MACHINE_COUNTERS.iter().map(|(name, _)| *name).zip(machine.counters(away_pages_max)));
        counters
    }

    /// How long faults took, from the signal to the mapped page, since the pool was made. In nanoseconds.
    pub fn fault_latency_ns(&self) -> LatencySummary {
        let mut state = self.running.shared.lock("latencies");
        state.session.count_latencies(|_, _| {});
        summary(state.session.latency())
    }

    /// Pages of memory that the pool holds: those of its regions and its own spare frames, in bytes.
    pub fn resident_bytes(&self) -> u64 {
        self.running.shared.lock("resident").session.pager.known_pages() * PAGE_BYTES as u64
    }

    /// Change the budget; what exceeds a smaller one leaves memory in the background.
    ///
    /// # Errors
    /// `Config`: less than 2 MiB, or less than twice what is held. `Io`: no addresses are left for the frames of a larger one.
    pub fn set_budget(&self, bytes: u64) -> Result<(), Error> {
        let pages = bytes / PAGE_BYTES as u64;
        let shared = &self.running.shared;
        let mut state = shared.lock("a new budget");
        if pages < BUDGET_PAGES_MIN.max(2 * state.held_pages) {
            drop(state);
            return Err(Error::new(ErrorKind::Config, format!("a budget of {bytes} bytes is too small")));
        }
        let pages = u32::try_from(pages).unwrap_or(u32::MAX);
        let is_granted = state.session.set_budget(clock::now(), pages);
        drop(state);
        shared.sleepers.ring();
        if is_granted {
            Ok(())
        } else {
            Err(Error::new(ErrorKind::Io, "no addresses are left for the frames of the budget"))
        }
    }
}

impl Running {
    fn is_ours(&self) -> bool {
        thread::getpid() == self.pid
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if !self.is_ours() {
            // A forked child: the thread is not there, and what it shared is the parent's.
            std::mem::forget(thread);
            std::mem::forget(Arc::clone(&self.shared));
            return;
        }
        self.shared.is_over.store(true, Ordering::Release);
        self.shared.sleepers.ring();
        if let Some(thread) = thread {
            let joined = thread.join();
            debug_assert!(joined.is_ok(), "a panic of the pool's thread aborts the process");
        }
        self.shared.finish_requests();
    }
}

/// A pool whose thread has ended serves nobody: its panic is the end, wherever it comes from.
fn run_thread(shared: &Shared) {
    let _ends_with_panic = EndsWithPanic::new();
    serve::run_thread(shared);
}

/// How long until `then`, at most `most`.
fn until(then: Nanos, now: Nanos, most: Nanos) -> Nanos {
    then.saturating_sub(now).min(most)
}
