//! The runtime inside a program that `pagetide run` started: one thread of ours, beside the program's, from when the budget is near.
//!
//! The thread is made by raw clone with a descriptor table of its own: a program that closes all descriptors does not close
//! ours, and none of the program's pipes stays open because of us. It blocks all signals, uses memory of our own only, and
//! makes its system calls without libc. It takes the program's private anonymous memory under management in place and serves its
//! faults from then on.
//!
//! The end of the supervisor (its socket closes) ends the program: its budget would hold no more, and nothing may be left
//! behind. The end of the program ends the thread with it.

mod alone;
mod answers;
mod begin;
mod beside;
mod grant;
mod inherited;
mod look;
mod native;
mod rest;
mod stalled;
mod stuck;
mod unsupervised;
mod voice;

use std::sync::atomic::{AtomicPtr, Ordering};

use pagetide_core::types::Nanos;
use pagetide_kernel::Linux;
use pagetide_sys::credentials::Credentials;
use pagetide_sys::fd::{Fd, PollFd, events};
use pagetide_sys::proc::{self, Given, LoadFile, StatmFile};
use pagetide_sys::socket::{self, Received};
use pagetide_sys::uffd::Uffd;
use pagetide_sys::{Errno, clock, stderr, thread};

pub(crate) use unsupervised::{end_unsupervised, end_with_run};
use voice::say_left;
pub(crate) use voice::{die, say};

use crate::agent::grant::Grant;
use crate::agent::rest::Rest;
use crate::agent::stuck::{PINNED_FADES, is_starved, pages_in_calls, pages_kept};
use crate::control::{Control, Entry};
use crate::fork::Forks;
use crate::pager::Pager;
use crate::protocol::{ALONE, CHILD, DeviceOffer, HANDSHAKE, Hello, PACKET_BYTES, PACKET_FDS, RING};
use crate::serve::{self, Files, Served};
use crate::session::{Host, Kept, MappingsMark, POLL_NS, Session};
use crate::space::held::HELD;
use crate::store::SwapFile;
use crate::{credentials, foothold, foreign, leaving, lifeline, limits, setup, spans};

/// Time between two looks at the resident size while memory is managed. A program that fills fresh memory natively (a
/// mapping that glibc made and that is not known yet) gets at most 2 GiB/s: 4 MiB in this time.
const TICK_NS: Nanos = 2_000_000;
/// Time between two looks at what our tables take.
const MEASURE_NS: Nanos = 100_000_000;
/// A fault that waits this long is told of.
const STALL_TOLD_NS: Nanos = 3_000_000_000;
/// A fault that waits this long ends the program.
const STALL_MAX_NS: Nanos = 120_000_000_000;
/// Looks at what waits come every few milliseconds; with such a gap between two the process was stopped.
const PAUSE_NS: Nanos = 1_000_000_000;
/// By how much our threads are less nice than the program's.
const NICER: i32 = 5;
/// Events told of when an invariant breaks.
const TOLD_EVENTS: usize = 40;
/// Pages that could not be moved, until it is asked why.
const STUCK_BUSY: u64 = 64;
/// Pages that may be resident unseen before the maps are read again: 1 MiB.
const UNSEEN_PAGES: u64 = 256;
/// The agent of one process.
#[derive(Debug)]
pub(crate) struct Agent {
    supervisor: Fd,
    control: Control,
    hello: Hello,
    /// One swap file for each device, until the pager has them.
    swap_files: Vec<SwapFile>,
    uffd_device: Option<Fd>,
    /// In signal mode: what the program's threads need to serve their own faults. None: they do not.
    pub(crate) files: Option<Files>,
    /// Where records of events go.
    record_directory: Option<Fd>,
    /// Address ranges that existed before the runtime.
    initial: Vec<(u64, u64)>,
    maps_buffer: Vec<u8>,
    /// Reasons for which memory stays native, of which the person was told: one bit for each.
    native_told: u32,
    /// After its last turn, it was worth looking for the next thing without sleeping, and there was nothing else to do.
    looks: bool,
}

/// What the agent holds while memory is managed.
#[derive(Debug)]
pub(crate) struct Managed {
    pub(crate) session: Session,
    pub(crate) forks: Forks,
    /// Resident pages that cannot be taken out: locked, not to be written, or used by system calls that are under way.
    stuck_pages: u64,
    /// Pages that the kernel holds (it has pinned them for direct reads, say), counted since a fault had to wait because of them.
    pinned_pages: u64,
    /// What the machine had counted as busy when they were counted.
    busy_seen: u64,
    /// Until when they are not counted again, unless a fault waits for it.
    stuck_rest_until: Nanos,
    stuck_told: bool,
    full_told: bool,
    frames_told: bool,
    grant: Grant,
    /// The same of swap space.
    room: Grant,
    next_tick: Nanos,
    next_measure: Nanos,
    /// Who the program's first thread was.
    first: Option<Credentials>,
    statm: StatmFile,
    load: Option<LoadFile>,
    stall_told: bool,
    last_watch: Nanos,
    /// When it may be looked at what the threads do.
    next_thread_look: Nanos,
    /// When this thread went on after a pause.
    resumed: Nanos,
    rest: Rest,
}

/// The pager that this process's agent serves, for what is told when an invariant breaks.
static SERVED: AtomicPtr<Pager> = AtomicPtr::new(std::ptr::null_mut());

/// Tell of the last events before the process ends, oldest first.
///
/// Only for the agent's own thread, when it goes no further.
pub(crate) fn tell_last_events(supervisor: &Fd) {
    let pager = SERVED.load(Ordering::Relaxed);
    if pager.is_null() {
        return;
    }
    // SAFETY: the pager lies on the agent's stack, which never returns; this thread is the only one that uses it, and it has
    // stopped in the middle of the last event of the ring.
    let pager = unsafe { &*pager };
    for (now, event) in pager.last_events(TOLD_EVENTS) {
        say(supervisor, format_args!("{now} {event:?}"));
    }
}

impl Agent {
    /// Learn what there is to know, and get the socket of the parent's agent if there is one. `initial`: mappings to leave alone.
    pub(crate) fn meet(supervisor: Fd, initial: Vec<(u64, u64)>) -> Result<(Self, Option<Fd>), Errno> {
        let mut packet = vec![0; PACKET_BYTES];
        let mut fds = [const { None }; PACKET_FDS];
        let Received::Message { bytes, fds: count } = socket::receive(&supervisor, &mut packet, &mut fds, true)? else {
            return Err(Errno::ECONNREFUSED);
        };
        let hello = Hello::decode(&packet[..bytes]).ok_or(Errno::EPROTO)?;
        let expected = 6
            + usize::from(hello.forked)
            + hello.devices.iter().map(DeviceOffer::fds).sum::<usize>()
            + usize::from(hello.record.is_some());
        if count < expected {
            return Err(Errno::EPROTO);
        }
        let mut fds = fds.into_iter().flatten();
        let control = Control::open(&fds.next().ok_or(Errno::EPROTO)?)?;
        foothold::note_budget(control.entry().budget_pages.load(Ordering::Relaxed));
        proc::stay(&fds.next().ok_or(Errno::EPROTO)?)?;
        lifeline::take(&fds.next().ok_or(Errno::EPROTO)?)?;
        for which in [Given::Pagemap, Given::Maps, Given::Statm] {
            proc::give(which, fds.next());
        }
        let call = if hello.forked { fds.next() } else { None };
        let mut file_of = |device: &DeviceOffer| SwapFile::take(&mut fds, device.division.is_some());
        let swap_files: Vec<SwapFile> = hello.devices.iter().filter_map(&mut file_of).collect();
        let record_directory = hello.record.is_some().then(|| fds.next()).flatten();
        let uffd_device = fds.next();
        let maps_buffer = vec![0; 64 << 10];
        let agent = Self {
            supervisor,
            control,
            hello,
            swap_files,
            uffd_device,
            files: serve::take(),
            record_directory,
            initial,
            maps_buffer,
            native_told: 0,
            looks: false,
        };
        Ok((agent, call))
    }

    /// Let the supervisor make the handshake: the program may have given up the privilege that following forks needs.
    pub(crate) fn ask_for_handshake(&self, uffd: &Uffd) -> Result<(), Errno> {
        socket::send(&self.supervisor, HANDSHAKE, &[uffd.fd()], true)?;
        let mut packet = [0; 64];
        match socket::receive(&self.supervisor, &mut packet, &mut [], true)? {
            Received::Message { bytes, .. } if &packet[..bytes] == HANDSHAKE => Ok(()),
            Received::Message { .. } | Received::Empty | Received::Cut => Err(Errno::EPERM),
            Received::Closed => end_with_run(),
        }
    }

    pub(crate) const fn supervisor(&self) -> &Fd {
        &self.supervisor
    }

    pub(crate) const fn hello(&self) -> &Hello {
        &self.hello
    }

    /// The files, for the pager to have: they end with their devices.
    pub(crate) fn take_swap_files(&mut self) -> Vec<SwapFile> {
        std::mem::take(&mut self.swap_files)
    }

    pub(crate) const fn uffd_device(&self) -> Option<&Fd> {
        self.uffd_device.as_ref()
    }

    /// The directory of this run's records of events, and how they are named.
    pub(crate) fn record(&self) -> Option<(&Fd, &str)> {
        self.record_directory.as_ref().zip(self.hello.record.as_deref())
    }

    pub(crate) fn entry(&self) -> &Entry {
        self.control.entry()
    }

    pub(crate) fn exclude_initial(&self, pager: &mut Pager) {
        for &(start, end) in &self.initial {
            pager.exclude(start, end);
        }
    }

    /// The loop of the managed phase.
    fn serve(mut self, served: &'static Served) -> ! {
        let mut state = served.lock("the agent's first turn");
        SERVED.store(&raw mut state.managed.session.pager, Ordering::Relaxed);
        if self.entry().spans.is_wanted() {
            state.managed.session.pager.machine_mut().note_requests();
        }
        let (mut timeout, mut asked) = (0, 0);
        loop {
            let seen;
            if let Some(sleepers) = &served.sleepers {
                let event = beside::event_of_own(&state, sleepers);
                let uffd = PollFd::new(state.managed.session.pager.machine().uffd().fd(), events::IN);
                drop(state);
                seen = self.sleep_beside(sleepers, [uffd, event], timeout, &mut asked);
                state = served.lock("the agent's turn");
                timeout = self.turn_beside(&mut state, sleepers, seen);
                // Whoever leaves it something to do from here on rings for it.
                state.is_agent_asleep = timeout > 0;
                state = served.pass_on(state, thread::gettid()).0;
            } else {
                seen = state.managed.session.pager.machine_mut().wait(&self.supervisor, timeout);
                timeout = self.turn(&mut state.managed, seen, false);
            }
        }
    }

    /// One turn; how long nothing has to be done after it unless something happens. `are_served`: the threads of the program look for what
    /// they wait for themselves.
    fn turn(&mut self, managed: &mut Managed, [is_message, is_supervisor]: [bool; 2], are_served: bool) -> Nanos {
        let now = clock::now();
        credentials::follow();
        if is_message || is_supervisor {
            managed.end_rest(now);
        }
        if is_message {
            self.read_messages(managed, now);
        }
        let Managed { session, forks, .. } = managed;
        forks.look_at_copy(self, &mut session.pager, now);
        if !forks.is_frozen() {
            session.answer_faults(now, &mut Serving { agent: self, forks });
        }
        // A child's agent is met, and given what it needs, through descriptors.
        let files = managed.forks.is_under_way().then(limits::for_files);
        if is_supervisor {
            self.hear_supervisor(managed);
        }
        let mut busy = managed.session.work(now);
        busy |= managed.forks.serve(self, &mut managed.session.pager, now);
        drop(files);
        answers::send(&self.supervisor, &mut managed.session);
        foreign::send(&self.supervisor);
        self.look_at_outbox(managed);
        stderr::take_left(|line| say_left(&self.supervisor, line));
        if managed.session.pager.machine().has_waiting_requests(false) {
            managed.end_rest(now);
        }
        let is_awaited = foothold::is_awaited();
        if is_awaited {
            managed.end_rest(now);
        }
        if is_awaited || now >= managed.next_tick {
            self.tick(managed, now);
        }
        let has_more = busy || foothold::is_awaited();
        let is_free = || managed.load.as_ref().is_some_and(LoadFile::has_cpus_for_all);
        self.looks = !has_more && !are_served && managed.session.pager.is_worth_looking(now, is_free);
        if has_more || self.looks {
            return 0;
        }
        self.publish(managed);
        managed.sleep_ns(now)
    }

    /// Read what the kernel tells. A child's userfaultfd needs a descriptor, beyond what the program may have: its message waits.
    fn read_messages(&mut self, managed: &mut Managed, now: Nanos) {
        let Managed { session, forks, .. } = managed;
        let mut read = || leaving::hear(|| session.read_messages(now, &mut Serving { agent: self, forks }));
        let mut answer = read();
        if answer == Err(Errno::EMFILE) {
            let _files = limits::for_files();
            answer = read();
        }
        if let Err(errno) = answer {
            die(&self.supervisor, format_args!("the userfaultfd cannot be read: {}", errno.name()));
        }
    }

    fn hear_supervisor(&self, managed: &mut Managed) {
        let mut packet = [0; 1024];
        let mut fds = [const { None }; 2];
        match socket::receive(&self.supervisor, &mut packet, &mut fds, false) {
            Ok(Received::Closed) => end_with_run(),
            Err(errno) => {
                die(&self.supervisor, format_args!("the supervisor of the run cannot be heard: {}", errno.name()))
            }
            Ok(Received::Message { bytes, .. }) => match &packet[..bytes] {
                CHILD => managed.forks.on_child(fds[0].take()),
                ALONE => managed.forks.on_child(None),
                // It has ended the rest already.
                RING => {}
                other if let Some(part) = foreign::asked_for(other) => {
                    managed.session.bring(clock::now(), part.pages(), part.access);
                }
                other => {
                    answers::hear(&mut managed.session, other, SwapFile::take(&mut fds.into_iter().flatten(), true))
                }
            },
            Ok(Received::Empty | Received::Cut) => {}
        }
    }

    /// Keep the budget: compare what is resident with what we know, and read what share we have.
    fn tick(&mut self, managed: &mut Managed, now: Nanos) {
        if let Some(until) = self.rest(managed, now) {
            // A place may have been emptied since the last look: whoever waits for that would not be told before the program works again.
            setup::publish_places(self.entry(), &managed.session);
            managed.next_tick = until;
            return;
        }
        managed.next_tick = now + TICK_NS;
        self.watch(managed, now);
        managed.session.pager.begin_writes(now);
        let Ok(statm) = managed.statm.read() else { return };
        let mappings = MappingsMark { size_pages: statm.size_pages, asked: foothold::asked() };
        let Managed { session, forks, .. } = managed;
        session.look_at_memory(
            now,
            Kept { mappings, anon_pages: statm.anon_pages() },
            &mut Serving { agent: self, forks },
        );
        foothold::looked(session.looked_for());
        setup::publish_often(self.entry(), &mut managed.session, now);
        managed.session.pager.count_unpaged(now);
        self.tell_of_unpaged(&managed.session.pager);
        if now >= managed.next_thread_look && managed.session.pager.machine().waiting_count() > 0 {
            stalled::look_at_threads(managed, now);
        }
        let is_time = now >= managed.next_measure;
        if is_time {
            setup::publish_absences(self.entry(), &managed.session);
            self.measure(managed, now);
            managed.pinned_pages -= managed.pinned_pages.div_ceil(PINNED_FADES);
        }
        let busy = managed.session.pager.machine().stats.busy_pages;
        let half = u64::from(managed.session.pager.core().budget()) / 2;
        let is_crowded = pages_in_calls(managed) + pages_kept(managed) > managed.stuck_pages.max(half);
        let is_starved = is_starved(managed, now);
        if is_starved {
            managed.pinned_pages = managed.pinned_pages.max(1);
        }
        let is_due = busy > managed.busy_seen + STUCK_BUSY || (is_time && managed.stuck_pages > 0) || is_crowded;
        if is_starved || (is_due && now >= managed.stuck_rest_until) {
            managed.busy_seen = busy;
            self.measure_stuck(managed);
        }
        if !managed.forks.is_under_way() {
            self.set_budget(managed, now);
            let short = self.entry().short_places.load(Ordering::Relaxed);
            managed.rest.note_short_places(short);
            managed.session.pager.follow_short_places(now, short);
        }
    }

    /// Look at what our tables take.
    fn measure(&self, managed: &mut Managed, now: Nanos) {
        managed.next_measure = now + MEASURE_NS;
        let files = limits::for_files();
        managed.session.pager.measure_overhead();
        credentials::follow_first(&mut managed.first);
        alone::end_if_alone();
        drop(files);
        if HELD.is_full() && !managed.full_told {
            managed.full_told = true;
            say(
                &self.supervisor,
                format_args!(
                    "process {}: more than {} pages with words for the kernel (thread control blocks, robust mutexes): a thread's \
                     end may be missed by those who wait for it",
                    thread::getpid(),
                    HELD.count(),
                ),
            );
        }
    }

    /// A fault that waits for long is told of, once; one that is never answered ends the program: a hang helps nobody.
    fn watch(&self, managed: &mut Managed, now: Nanos) {
        let fault = managed.session.pager.machine().oldest_fault();
        if now > managed.last_watch + PAUSE_NS {
            // The whole process was stopped, the machine slept: nobody has waited for us.
            managed.resumed = now;
        }
        managed.last_watch = now;
        let Some(since) = fault.map(|(_, since)| since).into_iter().chain(managed.forks.waits_since()).min() else {
            managed.stall_told = false;
            return;
        };
        let waited = now.saturating_sub(since.max(managed.resumed));
        if waited < STALL_TOLD_NS || (managed.stall_told && waited < STALL_MAX_NS) {
            return;
        }
        let core = managed.session.pager.core();
        let text = std::fmt::from_fn(|f| {
            let (pid, seconds) = (thread::getpid(), waited / 1_000_000_000);
            match fault {
                Some((page, _)) => {
                    let view = core.page(page);
                    let (awaited, state) = (stalled::awaited(view.flight), view.state);
                    write!(f, "process {pid}: a fault waits for {seconds} s, for {awaited}; page {state:?}, ")?;
                }
                None => {
                    let awaited = managed.forks.awaited();
                    write!(f, "process {pid}: a fork waits for {seconds} s, for {awaited}; ")?;
                }
            }
            write!(f, "charged {} of {} pages, lists {:?}, ", core.charged(), core.budget(), core.list_sizes())?;
            write!(
                f,
                "swap slots free {}, settled {}, {}, ",
                core.swap_free(),
                core.is_settled(),
                managed.session.pager.machine().describe()
            )?;
            write!(f, "fork under way {}", managed.forks.is_under_way())
        });
        if waited >= STALL_MAX_NS {
            die(&self.supervisor, format_args!("{text}"));
        }
        say(&self.supervisor, format_args!("{text}"));
        managed.stall_told = true;
    }

    /// What the core may charge: the share, less what lies outside of it, our checksums and the page tables.
    fn set_budget(&self, managed: &mut Managed, now: Nanos) {
        let share = self.entry().share_pages.load(Ordering::Relaxed);
        managed.rest.note_share(share);
        let overhead = managed.session.pager.overhead();
        let outside = managed.session.unseen_pages() + overhead.sums + overhead.page_tables;
        self.entry().pinned_pages.store(outside + managed.stuck_pages, Ordering::Relaxed);
        foothold::note_budget(self.entry().budget_pages.load(Ordering::Relaxed));
        let budget = share.saturating_sub(outside).max(u64::from(setup::SHARE_PAGES_MIN));
        // Beside what cannot be taken out, the rest needs room to be paged in. What is pinned page by page grows until all of it is there.
        let room = if managed.pinned_pages > 0 { budget.max(managed.stuck_pages) } else { budget } / 4;
        let budget = if managed.stuck_pages == 0 { budget } else { budget.max(managed.stuck_pages + room) };
        if !managed.session.set_budget(now, u32::try_from(budget).unwrap_or(u32::MAX)) && !managed.frames_told {
            managed.frames_told = true;
            let text = "no addresses can be mapped for the frames of its budget: it keeps to less";
            say(&self.supervisor, format_args!("process {}: {text}", thread::getpid()));
        }
    }

    fn look_at_outbox(&self, managed: &mut Managed) {
        managed.session.mark_lost(|pages| {
            say(
                &self.supervisor,
                format_args!(
                    "process {}: {pages} page(s) cannot be read back from the swap file (I/O error or checksum mismatch); \
                     the program gets SIGBUS when it touches them",
                    thread::getpid(),
                ),
            );
        });
        if !managed.session.has_failed_fault() {
            return;
        }
        let now = clock::now();
        let before = managed.session.pager.core().budget();
        if !managed.forks.is_under_way() {
            self.set_budget(managed, now);
        }
        let is_raised = managed.session.pager.core().budget() > before;
        let [share, budget] =
            [&self.entry().share_pages, &self.entry().budget_pages].map(|word| word.load(Ordering::Relaxed));
        let [backed, most] = managed.session.pager.machine().backed_slots();
        let Managed { grant, room, .. } = managed;
        let may_be_raised = || is_raised || grant.may_come(now, share, budget) || room.may_come(now, backed, most);
        if let Some((_, page)) = managed.session.take_failed_fault(now, may_be_raised) {
            if self.measure_stuck(managed) {
                self.set_budget(managed, now);
                managed.session.pager.machine_mut().wake_waiters(page);
                return;
            }
            let (pid, limit) = (thread::getpid(), limits::largest_file());
            let text = std::fmt::from_fn(|f| {
                write!(f, "process {pid}: out of memory: the budget is full and so is the swap space; ")?;
                match limit {
                    Some(bytes) => write!(f, "its files may not be larger than {} MiB (RLIMIT_FSIZE)", bytes >> 20),
                    None => write!(f, "give --memory or --swap more"),
                }
            });
            die(&self.supervisor, format_args!("{text}"));
        }
    }

    /// Make the counters visible.
    fn publish(&self, managed: &mut Managed) {
        let entry = self.entry();
        spans::publish(entry, &mut managed.session);
        setup::publish(entry, &managed.session);
    }
}

/// What the program's own process asks of a session: an agent, and the forks that it follows.
struct Serving<'a> {
    agent: &'a mut Agent,
    forks: &'a mut Forks,
}

impl Host<Linux> for Serving<'_> {
    fn look(&mut self, pager: &mut Pager, now: Nanos, until: Option<Nanos>) -> bool {
        self.agent.look_at_mappings(pager, now, until)
    }

    fn takes(&mut self, pager: &mut Pager, now: Nanos, address: u64) -> bool {
        let Ok(address) = usize::try_from(address) else { return false };
        let is_doorbell = self.forks.is_doorbell(address);
        if is_doorbell {
            // What the copy is to get is read of the mappings, and handed over through pipes.
            let _files = limits::for_files();
            if !self.forks.is_under_way() {
                self.agent.entry().asked.take(|vpn| pager.bring_for_child(now, vpn));
            }
            let given = self.agent.entry().given_at_fork.load(Ordering::Relaxed);
            self.forks.ring(pager, now, address, u32::try_from(given).unwrap_or(u32::MAX));
        }
        is_doorbell
    }

    fn forked(&mut self, pager: &mut Pager, now: Nanos, child: Uffd) {
        let _files = limits::for_files();
        self.forks.on_fork(self.agent, pager, now, child);
    }
}

impl Managed {
    pub(crate) fn new(pager: Pager, floor_bytes: u64, forks: Forks, now: Nanos) -> Self {
        let statm = StatmFile::open_self().expect("/proc is mounted: the maps were read from it");
        let mut session = Session::new(pager, floor_bytes, UNSEEN_PAGES);
        session.supervised();
        Self {
            session,
            forks,
            stuck_pages: 0,
            pinned_pages: 0,
            busy_seen: 0,
            stuck_rest_until: 0,
            stuck_told: false,
            full_told: false,
            frames_told: false,
            grant: Grant::default(),
            room: Grant::default(),
            next_tick: now,
            next_measure: now,
            first: Credentials::own().ok(),
            statm,
            load: LoadFile::open().ok(),
            stall_told: false,
            last_watch: now,
            next_thread_look: now,
            resumed: 0,
            rest: Rest::default(),
        }
    }

    /// How long nothing has to be done unless something happens.
    fn sleep_ns(&self, now: Nanos) -> Nanos {
        let is_polling = self.session.is_polling() || self.forks.is_waiting_for_child();
        if is_polling { POLL_NS } else { self.session.deadline().min(self.next_tick).saturating_sub(now) }
    }
}

/// Run before the program's threads where both want a CPU: who waits for us cannot go on, and the budget holds only if we look in
/// time. Where the user may not (no root, no RLIMIT_NICE), all are equal.
pub(crate) fn go_first() {
    let _ = thread::set_nice((thread::nice() - NICER).max(-20));
}

/// In a forked child: the pager that the parent's agent served is not there.
pub(crate) fn forget_served() {
    SERVED.store(std::ptr::null_mut(), Ordering::Relaxed);
}
