//! Putting a pager together: userfaultfd, staging area, engine, core, swap files.

use std::sync::atomic::Ordering;

use pagetide_core::Core;
use pagetide_core::config::ConfigError;
use pagetide_core::event::Event;
use pagetide_core::types::{DeviceId, Nanos};
use pagetide_core::vmstat::{Counter, Vmstat};
use pagetide_driver::record::LiveConfig;
use pagetide_kernel::Linux;
use pagetide_sys::fd::Fd;
use pagetide_sys::file::flags;
use pagetide_sys::mem::{self, Mapping};
use pagetide_sys::uffd::{Features, Modes, Reach, ReadMode, Uffd};
use pagetide_sys::{Errno, clock, sysinfo, thread};

use crate::agent::{self, Agent};
use crate::control::Entry;
use crate::engine::{ThreadEngine, UringEngine};
use crate::frames::Kind;
use crate::io::Engine;
use crate::machine::{LiveMachine, MachineParts, ZEROES_PAGES, frames_for};
use crate::pager::Pager;
use crate::pool::EngineChoice;
use crate::protocol::DeviceOffer;
use crate::record;
use crate::serve;
use crate::session::Session;
use crate::session::command::{PlaceId, PlaceReport};
use crate::space::PAGE_SHIFT;
use crate::space::held::{HELD, Held};
use crate::space::unshare::{MakePrivate, Unsharer};
use crate::store::{Store, SwapFile, Traffic};
use crate::tier::TierStats;
use crate::{limits, own};

/// Pages that the core can name: 64 GiB of addresses under management. The tables are backed only where they are used.
pub(crate) const PAGES_MAX: u32 = 1 << 24;
/// Slots for places that come while a session runs: 32 GiB at a time. The tables are backed only where they are used.
pub(crate) const SLOTS_LATER: u32 = 1 << 23;
/// More than the rings of an engine take.
const RINGS_BYTES: usize = 256 << 10;
/// The smallest budget of a session: 2 MiB.
pub(crate) const BUDGET_PAGES_MIN: u64 = 512;
/// One of many processes is not squeezed below this, whatever lies outside of our management: 512 KiB (see `shares::floor`).
pub(crate) const SHARE_PAGES_MIN: u32 = 128;

/// Why a pager cannot be set up.
#[derive(Debug)]
pub(crate) enum SetupError {
    /// The kernel refused a step.
    Step(&'static str, Errno),
    /// A knob was refused.
    Knob(ConfigError),
    /// A setting of ours was refused.
    Io(String),
}

impl std::fmt::Display for SetupError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Step(step, errno) => write!(f, "{step}: {}", errno.name()),
            Self::Knob(error) => write!(f, "{error}"),
            Self::Io(what) => f.write_str(what),
        }
    }
}

pub(crate) fn step<T>(name: &'static str, result: Result<T, Errno>) -> Result<T, SetupError> {
    result.map_err(|errno| SetupError::Step(name, errno))
}

/// What idle CPUs do while the program waits for its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum IdleChoice {
    /// Poll where the machine has few of them.
    #[default]
    Auto,
    Poll,
    Sleep,
}

/// How the budget is divided among processes that are short of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SharesChoice {
    /// By how much less each would wait with more.
    #[default]
    Worth,
    Equal,
}

/// Settings that are no concern of the core, and no part of what a record of its events must say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Choices {
    /// `io`: how pages are read and written.
    pub(crate) engine: EngineChoice,
    /// `idle`: what idle CPUs do.
    pub(crate) idle: IdleChoice,
    /// `shares`: what each process gets.
    pub(crate) shares: SharesChoice,
}

/// Takes [`Choices`] out of the settings of the policy.
pub(crate) fn split_settings(settings: &[(String, String)]) -> Result<(Choices, Vec<(String, String)>), String> {
    let mut choices = Choices::default();
    let mut policy = Vec::new();
    for (key, value) in settings {
        match (key.as_str(), value.as_str()) {
            ("io", "auto") => choices.engine = EngineChoice::Auto,
            ("io", "uring") => choices.engine = EngineChoice::Uring,
            ("io", "threads") => choices.engine = EngineChoice::Threads,
            ("io", other) => return Err(format!("io = {other}: it is auto, uring or threads")),
            ("idle", "auto") => choices.idle = IdleChoice::Auto,
            ("idle", "poll") => choices.idle = IdleChoice::Poll,
            ("idle", "sleep") => choices.idle = IdleChoice::Sleep,
            ("shares", "worth") => choices.shares = SharesChoice::Worth,
            ("shares", "equal") => choices.shares = SharesChoice::Equal,
            ("shares", other) => return Err(format!("shares = {other}: it is worth or equal")),
            ("idle", other) => return Err(format!("idle = {other}: it is auto, poll or sleep")),
            _ => policy.push((key.clone(), value.clone())),
        }
    }
    Ok((choices, policy))
}

fn open_engine(choice: EngineChoice) -> Result<Box<dyn Engine>, SetupError> {
    if choice != EngineChoice::Threads {
        match UringEngine::new() {
            Ok(engine) => return Ok(Box::new(engine)),
            Err(refused) if choice == EngineChoice::Uring => {
                return Err(SetupError::Io(format!("io = uring: io_uring is refused: {refused:?}")));
            }
            Err(_refused) => {}
        }
    }
    Ok(Box::new(step("the I/O threads", ThreadEngine::new())?))
}

/// The userfaultfd of this process in thread mode.
fn open_uffd(agent: &mut Agent) -> Result<Uffd, SetupError> {
    if agent.hello().signal_mode {
        return open_user_uffd(agent);
    }
    let opened = match agent.uffd_device() {
        Some(device) => step("userfaultfd", Uffd::from_device(device, ReadMode::NonBlocking))?,
        None => match Uffd::open(Reach::Full, ReadMode::NonBlocking) {
            Ok((uffd, _door)) => uffd,
            Err(refused) => {
                let errno = refused.syscall.or(refused.device).unwrap_or(Errno::EPERM);
                return Err(SetupError::Step("userfaultfd", errno));
            }
        },
    };
    let shaken = match opened.handshake(thread_features()) {
        Err(Errno::EPERM) => agent.ask_for_handshake(&opened),
        answer => answer.map(|_| ()),
    };
    step("userfaultfd features", shaken)?;
    Ok(opened)
}

/// The userfaultfd of this process in signal mode: any user may have it, and forks are not followed.
pub(crate) fn open_user_uffd(agent: &mut Agent) -> Result<Uffd, SetupError> {
    let is_by_ring =
        split_settings(&agent.hello().settings).is_ok_and(|(choices, _)| choices.engine != EngineChoice::Threads);
    if agent.record().is_some() || !is_by_ring {
        // A record is written, and I/O threads are reached, by the agent's descriptors alone.
        agent.files = None;
    }
    let shared = agent.files.take().and_then(|mut files| {
        let uffd = files.uffd.take()?;
        uffd.handshake(signal_features().with(Features::SIGBUS)).is_ok().then_some((uffd, files))
    });
    if let Some((uffd, files)) = shared {
        serve::expect();
        agent.files = Some(files);
        return Ok(uffd);
    }
    let (uffd, _door) = Uffd::open(Reach::UserMode, ReadMode::NonBlocking).map_err(|refused| {
        SetupError::Step("userfaultfd(UFFD_USER_MODE_ONLY)", refused.user_mode_only.unwrap_or(Errno::EPERM))
    })?;
    step("userfaultfd features", uffd.handshake(signal_features()))?;
    Ok(uffd)
}

/// What signal mode asks of the kernel.
pub(crate) const fn signal_features() -> Features {
    Features::EVENT_REMAP
        .with(Features::EVENT_REMOVE)
        .with(Features::EVENT_UNMAP)
        .with(Features::MOVE)
        .with(Features::POISON)
        .with(Features::THREAD_ID)
}

/// What thread mode asks of the kernel.
pub(crate) const fn thread_features() -> Features {
    Features::EVENT_FORK
        .with(Features::EVENT_REMAP)
        .with(Features::EVENT_REMOVE)
        .with(Features::EVENT_UNMAP)
        .with(Features::MOVE)
        .with(Features::POISON)
        .with(Features::THREAD_ID)
}

/// A pager for this process; `taken` is the userfaultfd of a forked child and the seed of its parent's checksums, `inherited`
/// its parent's swap files.
pub(crate) fn pager(
    agent: &mut Agent,
    taken: Option<(Uffd, u64)>,
    inherited: Vec<(DeviceId, Store)>,
) -> Result<Pager, SetupError> {
    let (uffd, seed) = match taken {
        Some((uffd, seed)) => (uffd, seed),
        None => (open_uffd(agent)?, clock::now() ^ 0x9e37_79b9_7f4a_7c15),
    };
    let share = agent.entry().share_pages.load(Ordering::Relaxed);
    let whole = agent.entry().budget_pages.load(Ordering::Relaxed);
    limits::make_room(RINGS_BYTES);
    let (choices, settings) = split_settings(&agent.hello().settings).map_err(SetupError::Io)?;
    let shared = agent.files.as_mut().and_then(|files| files.ring.take().zip(files.pagemap.take()));
    let (engine, space): (Box<dyn Engine>, Linux) = match shared {
        Some((ring, pagemap)) => {
            let engine = UringEngine::for_tables(ring)
                .map_err(|refused| SetupError::Io(format!("io_uring is refused: {refused:?}")))?;
            (Box::new(engine), Linux::with_pagemap(uffd, Some(pagemap)))
        }
        None => (open_engine(choices.engine)?, Linux::new(uffd)),
    };
    let slots =
        inherited.iter().map(|(_, store)| store.slots_max()).chain(agent.hello().devices.iter().map(|d| d.slots));
    let slots = slots.fold(0_u32, u32::saturating_add);
    let live = live_config(&settings, PAGES_MAX, share, slots.saturating_add(SLOTS_LATER));
    let config = live.build().map_err(SetupError::Knob)?;
    let taken: Vec<DeviceId> = inherited.iter().map(|(device, _)| *device).collect();
    let free = (0..).map(DeviceId).filter(|device| !taken.contains(device));
    let mut stores = inherited;
    let files = agent.take_swap_files();
    for ((device, offer), file) in free.zip(&agent.hello().devices).zip(files) {
        let mut store = open_store(file, *offer)?;
        // A place whose disk is full has no slots for now, and is tried again as one that becomes full later is.
        let _ = store.grow(agent.hello().floor_bytes, clock::now());
        stores.push((device, store));
    }
    let mut machine = machine(space, seed, whole, engine, Some(Box::new(Unsharer::new())), Some(&HELD))?;
    if let Err(errno) = machine.attach_tier(&config, whole, |bytes| own::map(bytes, false)) {
        let text = format_args!(
            "process {}: pages are not compressed: no memory can be mapped for it ({})",
            thread::getpid(),
            errno.name()
        );
        agent::say(agent.supervisor(), text);
    }
    let record = agent.record().and_then(|(directory, name)| match record::begin(directory, name, &live) {
        Ok(record) => Some(record),
        Err(errno) => {
            let pid = thread::getpid();
            let text = format_args!("process {pid}: no record: {name}.{pid} cannot be written: {}", errno.name());
            agent::say(agent.supervisor(), text);
            None
        }
    });
    let mut pager = Pager::new(Core::new(config), machine, agent.hello().floor_bytes, record);
    for (device, store) in stores {
        add_store(&mut pager, device, store);
    }
    Ok(pager)
}

/// A new swap file in `directory`.
pub(crate) fn add_swap(
    pager: &mut Pager,
    device: DeviceId,
    directory: &Fd,
    offer: DeviceOffer,
    floor_bytes: u64,
) -> Result<(), SetupError> {
    let mut store = open_store(step("the swap file", swap_file(directory))?.into(), offer)?;
    step("the swap file", store.grow(floor_bytes, clock::now()))?;
    add_store(pager, device, store);
    Ok(())
}

/// The store in an empty file.
fn open_store(file: SwapFile, offer: DeviceOffer) -> Result<Store, SetupError> {
    step("the swap file", Store::new(offer, file))
}

fn add_store(pager: &mut Pager, device: DeviceId, store: Store) {
    let spec = store.spec();
    pager.machine_mut().add_store(device, store);
    pager.step(clock::now(), Event::DeviceAdded { device, spec });
}

/// The machine over a fresh staging area that has room for the whole run's budget. In an agent nothing may fail after it: giving the area
/// back waits until its event is read, which the agent would do.
pub(crate) fn machine(
    space: Linux,
    seed: u64,
    budget_pages: u64,
    engine: Box<dyn Engine>,
    unsharer: Option<Box<dyn MakePrivate>>,
    held: Option<&'static Held>,
) -> Result<LiveMachine, SetupError> {
    let zeroes = step("the zero pages", own::map((ZEROES_PAGES as usize) << PAGE_SHIFT, false))?;
    let staging =
        map_frames(&space, frames_for(budget_pages), 0, Kind::Plain).inspect_err(|_| own::forget(zeroes.range()));
    let staging = step("the staging area", staging)?;
    let parts = MachineParts { space, engine, unsharer, held, staging, map_frames, zeroes, pages_max: PAGES_MAX, seed };
    Ok(LiveMachine::new(parts))
}

/// So many frames, registered.
fn map_frames(space: &Linux, frames: u64, _first: u32, kind: Kind) -> Result<Mapping, Errno> {
    let bytes = usize::try_from(frames << PAGE_SHIFT).expect("addresses are 64 bit");
    let staging = match kind {
        Kind::Plain => own::map(bytes, false)?,
        Kind::Executable => own::map_executable(bytes)?,
    };
    // No child inherits it anyway, but no other memory of ours is advised so: while the area is not registered, for a moment, the kernel
    // must not make it one with a neighbour, from which it cannot be split again where the program has used up all mappings.
    let registered = mem::advise(staging.range(), mem::Advice::WipeOnFork)
        .and_then(|()| space.uffd().register(staging.range(), Modes::MISSING));
    match registered {
        Ok(_) => Ok(staging),
        Err(errno) => {
            own::forget(staging.range());
            Err(errno)
        }
    }
}

/// What the core of a live process is made of.
pub(crate) fn live_config(settings: &[(String, String)], pages_max: u32, budget_pages: u64, slots: u32) -> LiveConfig {
    let budget_pages = u32::try_from(budget_pages).unwrap_or(u32::MAX);
    LiveConfig { settings: settings.to_vec(), pages_max, budget_pages, slots }
}

/// Checks a setting for a run that goes on. Err: why not; what no run takes is told of as at its start.
pub(crate) fn check_live(knob: &str, value: &str) -> Result<(), String> {
    split_settings(&[(knob.to_owned(), value.to_owned())])?;
    let config = live_config(&[], 1, 1, 1).build();
    // Not only whether there is such a value: what is refused here must not be told to those that start later either.
    config.and_then(|config| config.live_setting(knob, value)).map(|_| ()).map_err(|error| error.to_string())
}

/// An unnamed file in this directory: gone with its last descriptor, whatever happens.
pub(crate) fn swap_file(directory: &Fd) -> Result<Fd, Errno> {
    let unnamed = flags::READ_WRITE | flags::UNNAMED;
    match Fd::open_at(Some(directory), c".", unnamed | flags::DIRECT, 0o600) {
        Err(Errno::EINVAL) => Fd::open_at(Some(directory), c".", unnamed, 0o600),
        answer => answer,
    }
}

/// Make a process's counters visible to its supervisor.
pub(crate) fn publish(entry: &Entry, session: &Session) {
    let pager = &session.pager;
    let machine = pager.machine();
    let relaxed = Ordering::Relaxed;
    let spare = u64::from(machine.spare_frames());
    let measured = pager.overhead();
    let resident = pager.known_pages() + session.unseen_pages() + measured.sums;
    let metadata = measured.private + measured.sums;
    let overhead = spare + metadata;
    entry.away_pages.store(pager.core().away_pages(), relaxed);
    entry.compressed_pages.store(machine.compressed_pages(), relaxed);
    let [inactive, active, ..] = pager.core().list_sizes();
    for (word, pages) in entry.lists.iter().zip([inactive, active]) {
        word.store(u64::from(pages), relaxed);
    }
    entry.resident_pages.store(resident, relaxed);
    entry.resident_pages_max.fetch_max(resident, relaxed);
    entry.overhead_pages.store(overhead, relaxed);
    entry.overhead_pages_max.fetch_max(overhead, relaxed);
    entry.metadata_pages_max.fetch_max(metadata, relaxed);
    entry.managed_pages_max.fetch_max(machine.mappings.managed_pages(), relaxed);
    for (word, &pages) in entry.unpaged_pages_max.iter().zip(pager.unpaged().pages()) {
        word.fetch_max(pages, relaxed);
    }
    let vmstat = pager.core().vmstat();
    let mut words = entry.counters.iter();
    for ((_, value), word) in with_tier(vmstat, machine.tier_stats()).zip(words.by_ref()) {
        word.store(value, relaxed);
    }
    for (word, value) in words.zip(machine.counters(pager.core().away_pages_max())) {
        word.store(value, relaxed);
    }
    entry.major_faults.store(vmstat.get(Counter::pgmajfault), relaxed);
}

/// Make visible how long pages stayed away that came back. That is reckoned anew each time, which takes some 10 us: not at every sleep.
pub(crate) fn publish_absences(entry: &Entry, session: &Session) {
    let absences = session.pager.core().absences();
    for (words, counts) in [(&entry.returns, absences.returns()), (&entry.prices, absences.prices())] {
        for (word, &count) in words.iter().zip(counts) {
            word.store(count, Ordering::Relaxed);
        }
    }
}

/// Make visible what those who look are told often: where its pages are, and what each part of its memory does.
pub(crate) fn publish_often(entry: &Entry, session: &mut Session, now: Nanos) {
    entry.waited_us.store(session.pager.machine().stalls.some_ns(now) / 1000, Ordering::Relaxed);
    publish_places(entry, session);
    session.tell_heat(&entry.heat, now);
}

/// Make visible where its pages are. Each place keeps its words as long as it is told of.
pub(crate) fn publish_places(entry: &Entry, session: &Session) {
    let places: Vec<PlaceReport> = session.places().collect();
    for words in &entry.places {
        if words.place().is_some_and(|place| places.iter().all(|report| report.place != place)) {
            words.clear();
        }
    }
    for report in places {
        let known = entry.places.iter().find(|words| words.place() == Some(report.place));
        if let Some(words) = known.or_else(|| entry.places.iter().find(|words| words.place().is_none())) {
            words.publish(report);
            words.publish_traffic(traffic_of(session, report.place));
        }
    }
    let pager = &session.pager;
    for (device, words) in (0..).map(DeviceId).zip(&entry.files) {
        let store = pager.machine().stores().iter().find(|(id, _)| *id == device).map(|(_, store)| store);
        let used = pager.core().device_used(device).unwrap_or(0);
        words.publish(store.map(|store| (store.number(), store.place())), u64::from(used));
    }
}

/// What was read from a place and written to it.
fn traffic_of(session: &Session, place: PlaceId) -> [Traffic; 2] {
    let mut sum = [Traffic::default(); 2];
    for (_, store) in session.pager.machine().stores().iter().filter(|(_, store)| store.place() == place) {
        for (sum, way) in sum.iter_mut().zip(store.traffic()) {
            sum.add(way);
        }
    }
    sum
}

/// The core's counters, which know of no tier: what it took and gave was not read from and written to the disk, and what it
/// wrote was.
pub(crate) fn with_tier(vmstat: &Vmstat, tier: TierStats) -> impl Iterator<Item = (&'static str, u64)> {
    vmstat.iter().map(move |(name, value)| match name {
        "pswpin" => (name, value.saturating_sub(tier.zswpin)),
        "pswpout" => (name, (value + tier.zswpwb + tier.clean).saturating_sub(tier.zswpout)),
        _ => (name, value),
    })
}

/// True if the path's disk is rotational; a disk that does not say counts as solid state.
pub(crate) fn is_rotational(path: &std::path::Path) -> bool {
    let path = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).ok();
    path.and_then(|path| sysinfo::block_device_of(&path).ok()).is_some_and(|disk| disk.rotational)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_host_does_is_no_setting_of_the_policy() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let all = [pair("swappiness", "60"), pair("io", "threads"), pair("idle", "sleep"), pair("shares", "equal")];
        let chosen = Choices { engine: EngineChoice::Threads, idle: IdleChoice::Sleep, shares: SharesChoice::Equal };
        assert_eq!(split_settings(&all), Ok((chosen, vec![pair("swappiness", "60")])));
        assert_eq!(split_settings(&[]), Ok((Choices::default(), Vec::new())));
        let refused = split_settings(&[pair("io", "aio")]).expect_err("there is no such way");
        assert_eq!(refused, "io = aio: it is auto, uring or threads");
        let refused = split_settings(&[pair("idle", "0")]).expect_err("there is no such choice");
        assert_eq!(refused, "idle = 0: it is auto, poll or sleep");
        let refused = split_settings(&[pair("shares", "even")]).expect_err("there is no such choice");
        assert_eq!(refused, "shares = even: it is worth or equal");
    }

    #[test]
    fn what_the_host_does_is_chosen_at_the_start_and_a_bad_value_is_one_then_too() {
        for (key, good) in [("io", "uring"), ("idle", "poll"), ("shares", "equal"), ("profile", "pagetide")] {
            assert!(check_live(key, good).is_err_and(|text| text.contains("chosen when")), "{key}");
        }
        for key in ["io", "idle", "shares"] {
            assert!(check_live(key, "bogus").is_err_and(|text| text.contains("bogus: it is")), "{key}");
        }
        assert_eq!(check_live("page-cluster", "3"), Ok(()));
    }
}
