//! The runtime inside a program that `pagetide run` started: one thread of ours, beside the program's, from when the budget is near.
//!
//! The thread is made by raw clone with a descriptor table of its own: a program that closes all descriptors does not close
//! ours, and none of the program's pipes stays open because of us. It blocks all signals, uses memory of our own only, and
//! makes its system calls without libc. It takes the program's private anonymous memory under management in place and serves its
//! faults from then on.
//!
//! The end of the supervisor (its socket closes) ends the program: its budget would hold no more, and nothing may be left
//! behind. The end of the program ends the thread with it.

mod inherited;

use std::sync::atomic::{AtomicPtr, Ordering};

use pagetide_core::types::{Access, Nanos, TaskId};
use pagetide_kernel::{AddressSpace, Message};
use pagetide_sys::fd::Fd;
use pagetide_sys::maps::MapsWalk;
use pagetide_sys::mem::Mapping;
use pagetide_sys::proc::{self, Given, StatmFile};
use pagetide_sys::socket::{self, Received};
use pagetide_sys::uffd::Uffd;
use pagetide_sys::{Errno, clock, signal, thread};

use crate::control::{Control, Entry, Phase};
use crate::fork::{self, Forks};
use crate::pager::{FaultAnswer, Followup, Pager};
use crate::protocol::{ALONE, CHILD, DID, DO, HANDSHAKE, Hello, PACKET_BYTES, PACKET_FDS, SAY};
use crate::session::command::{Answer, Command};
use crate::space::PAGE_SHIFT;
use crate::space::held::HELD;
use crate::space::{Why, locks};
use crate::{foothold, limits, own, setup};

/// Time between two looks at the resident size while memory is managed. A program that fills fresh memory natively (a
/// mapping that glibc made and that is not known yet) gets at most 2 GiB/s: 4 MiB in this time.
const TICK_NS: Nanos = 2_000_000;
/// Time between two looks at what our tables take.
const MEASURE_NS: Nanos = 100_000_000;
/// Time between two tries of what the kernel refused for the moment, and two looks at a newborn child.
const POLL_NS: Nanos = 50_000;
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
/// Time between two searches of all managed memory for pages that are there without our knowing.
const RECONCILE_NS: Nanos = 50_000_000;
/// Pages that could not be moved, until it is asked why.
const STUCK_BUSY: u64 = 64;
/// Messages read in one turn at most.
const MESSAGES: usize = 1024;
/// Faults noted before the list grows: threads of the program that fault at once.
const FAULTS: usize = 1024;
/// Pages that may be resident unseen before the maps are read again: 1 MiB.
const UNSEEN_PAGES: u64 = 256;
/// The agent of one process.
#[derive(Debug)]
pub(crate) struct Agent {
    supervisor: Fd,
    control: Control,
    hello: Hello,
    /// One swap file for each device.
    swap_files: Vec<Fd>,
    uffd_device: Option<Fd>,
    /// Where records of events go.
    record_directory: Option<Fd>,
    /// Address ranges that existed before the runtime.
    initial: Vec<(u64, u64)>,
    maps_buffer: Vec<u8>,
}

/// What the agent holds while memory is managed.
#[derive(Debug)]
pub(crate) struct Managed {
    pub(crate) pager: Pager,
    pub(crate) forks: Forks,
    last_size_pages: u64,
    unseen_pages: u64,
    next_reconcile: Nanos,
    /// Resident pages that cannot be taken out: locked, or not to be written.
    stuck_pages: u64,
    /// What the machine had counted as busy when they were counted.
    busy_seen: u64,
    stuck_told: bool,
    full_told: bool,
    /// One bit for each reason.
    native_told: u32,
    next_tick: Nanos,
    next_measure: Nanos,
    statm: StatmFile,
    stall_told: bool,
    last_watch: Nanos,
    /// When this thread went on after a pause.
    resumed: Nanos,
    /// Faults that were read and are not answered or with the core yet.
    faults: Vec<(u64, Access)>,
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

/// Why the runtime cannot go on.
pub(crate) fn die(supervisor: &Fd, text: std::fmt::Arguments<'_>) -> ! {
    say(supervisor, text);
    // SIGKILL as the kernel's own memory killer does: no handler of the program runs on memory that is not there.
    let killed = signal::kill(thread::getpid(), signal::number::KILL);
    unreachable!("a process may kill itself: {killed:?}")
}

/// A line for the person who started the run.
pub(crate) fn say(supervisor: &Fd, text: std::fmt::Arguments<'_>) {
    let mut packet = pagetide_sys::text::Text::<1024>::new();
    packet.push_bytes(SAY);
    let _ = std::fmt::Write::write_fmt(&mut packet, text);
    // If nobody listens any more there is nobody to tell.
    let _ = socket::send(supervisor, packet.as_bytes(), &[], true);
}

impl Agent {
    /// Learn from the supervisor what there is to know, and get the socket of the parent's agent if there is one. `initial` are the
    /// mappings to leave alone.
    pub(crate) fn meet(supervisor: Fd, initial: Vec<(u64, u64)>) -> Result<(Self, Option<Fd>), Errno> {
        let mut packet = vec![0; PACKET_BYTES];
        let mut fds = [const { None }; PACKET_FDS];
        let Received::Message { bytes, fds: count } = socket::receive(&supervisor, &mut packet, &mut fds, true)? else {
            return Err(Errno::ECONNREFUSED);
        };
        let hello = Hello::decode(&packet[..bytes]).ok_or(Errno::EPROTO)?;
        let expected = 5 + usize::from(hello.forked) + hello.devices.len() + usize::from(hello.record.is_some());
        if count < expected {
            return Err(Errno::EPROTO);
        }
        let mut fds = fds.into_iter().flatten();
        let control = Control::open(&fds.next().ok_or(Errno::EPROTO)?)?;
        locks::note_budget(control.entry().budget_pages.load(Ordering::Relaxed));
        proc::stay(&fds.next().ok_or(Errno::EPROTO)?)?;
        for which in [Given::Pagemap, Given::Maps, Given::Statm] {
            proc::give(which, fds.next());
        }
        let call = if hello.forked { fds.next() } else { None };
        let swap_files: Vec<Fd> = fds.by_ref().take(hello.devices.len()).collect();
        let record_directory = hello.record.is_some().then(|| fds.next()).flatten();
        let uffd_device = fds.next();
        let maps_buffer = vec![0; 64 << 10];
        let agent =
            Self { supervisor, control, hello, swap_files, uffd_device, record_directory, initial, maps_buffer };
        Ok((agent, call))
    }

    /// Let the supervisor make the handshake: the program may have given up the privilege that following forks needs.
    pub(crate) fn ask_for_handshake(&self, uffd: &Uffd) -> Result<(), Errno> {
        socket::send(&self.supervisor, HANDSHAKE, &[uffd.fd()], true)?;
        let mut packet = [0; 64];
        match socket::receive(&self.supervisor, &mut packet, &mut [], true)? {
            Received::Message { bytes, .. } if &packet[..bytes] == HANDSHAKE => Ok(()),
            Received::Message { .. } | Received::Empty | Received::Cut => Err(Errno::EPERM),
            Received::Closed => self.orphaned(),
        }
    }

    pub(crate) const fn supervisor(&self) -> &Fd {
        &self.supervisor
    }

    pub(crate) const fn hello(&self) -> &Hello {
        &self.hello
    }

    pub(crate) fn swap_files(&self) -> &[Fd] {
        &self.swap_files
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

    /// The supervisor is gone.
    fn orphaned(&self) -> ! {
        let killed = signal::kill(thread::getpid(), signal::number::KILL);
        unreachable!("a process may kill itself: {killed:?}")
    }

    /// Take the program's memory under management and serve it until the program ends.
    pub(crate) fn manage(mut self) -> ! {
        clock::init();
        let files = limits::for_files();
        self.hold_threads();
        let now = clock::now();
        let pager = match setup::pager(&self, None, Vec::new()) {
            Ok(pager) => pager,
            Err(error) => die(&self.supervisor, format_args!("memory cannot be managed: {error}")),
        };
        let mut managed = Managed::new(pager, Forks::new(), now);
        self.exclude_initial(&mut managed.pager);
        self.adopt(&mut managed, now);
        fork::publish(&self, &mut managed);
        self.entry().phase.store(Phase::Managed as u32, Ordering::Release);
        foothold::managed();
        drop(files);
        self.serve(managed)
    }

    /// The control blocks of the threads that exist stay in memory. Later ones say so themselves, as they begin.
    fn hold_threads(&self) {
        let told = proc::each_thread(|tid| {
            if let Ok(Some(list)) = thread::robust_list(tid) {
                HELD.hold(list.start(), list.len());
            }
        });
        if let Err(errno) = told {
            die(&self.supervisor, format_args!("the threads of the program are not told: {}", errno.name()));
        }
    }

    pub(crate) fn exclude_initial(&self, pager: &mut Pager) {
        for &(start, end) in &self.initial {
            pager.exclude(start, end);
        }
    }

    /// A forked child that has taken over its memory.
    pub(crate) fn serve_child(mut self, mut managed: Managed) -> ! {
        let now = clock::now();
        self.hold_threads();
        self.adopt(&mut managed, now);
        self.entry().phase.store(Phase::Managed as u32, Ordering::Release);
        foothold::managed();
        self.serve(managed)
    }

    /// The loop of the managed phase.
    fn serve(mut self, mut managed: Managed) -> ! {
        SERVED.store(&raw mut managed.pager, Ordering::Relaxed);
        let mut timeout = 0;
        loop {
            let [is_message, is_supervisor] = managed.pager.machine_mut().wait(&self.supervisor, timeout);
            let now = clock::now();
            if is_message {
                self.read_messages(&mut managed, now);
            }
            if !managed.faults.is_empty() {
                self.answer_faults(&mut managed, now);
            }
            // A child's agent is met, and given what it needs, through descriptors.
            let files = managed.forks.is_under_way().then(limits::for_files);
            if is_supervisor {
                self.hear_supervisor(&mut managed);
            }
            let mut busy = managed.pager.pump(now);
            busy |= managed.forks.serve(&self, &mut managed.pager, now);
            drop(files);
            self.look_at_outbox(&mut managed);
            if now >= managed.next_tick {
                self.tick(&mut managed, now);
            }
            timeout = 0;
            if !busy && now >= managed.pager.spin_until() {
                self.publish(&mut managed);
                timeout = managed.sleep_ns(now);
            }
        }
    }

    /// One at a time: as soon as a change of the address space has been read, the kernel lets moves through again, and none may be
    /// made by a table that does not know of the change yet.
    ///
    /// The kernel hands out faults before changes, so faults are only noted here: threads that are sent back to fault again would
    /// keep the changes from being read for ever.
    fn read_messages(&mut self, managed: &mut Managed, now: Nanos) {
        let mut files = None;
        for _ in 0..MESSAGES {
            match managed.pager.machine().space().next_message() {
                Ok(Some(message)) => self.on_message(managed, now, message),
                Ok(None) => return,
                // A child's userfaultfd needs a descriptor, beyond what the program may have; the message waits.
                Err(Errno::EMFILE) if files.is_none() => files = limits::for_files(),
                Err(errno) => die(&self.supervisor, format_args!("the userfaultfd cannot be read: {}", errno.name())),
            }
        }
    }

    fn on_message(&mut self, managed: &mut Managed, now: Nanos, message: Message<Uffd>) {
        match managed.pager.on_message(now, message) {
            Followup::None => {}
            Followup::Fault { address, access } => managed.faults.push((address, access)),
            Followup::Forked(uffd) => managed.forks.on_fork(self, &mut managed.pager, now, uffd),
        }
    }

    /// Answer the faults that were read. One in a registered mapping that no span covers: it grew in place since the maps were
    /// read. What cannot be answered yet is kept.
    fn answer_faults(&mut self, managed: &mut Managed, now: Nanos) {
        let mut faults = std::mem::take(&mut managed.faults);
        let mut was_adopted = false;
        faults.retain(|&(address, access)| {
            if let Ok(address) = usize::try_from(address)
                && managed.forks.is_doorbell(address)
            {
                managed.forks.ring(&mut managed.pager, now, address);
                return false;
            }
            let mut answer = managed.pager.on_fault(now, address, access, TaskId(0));
            if answer == FaultAnswer::Unknown {
                if !was_adopted {
                    self.adopt(managed, now);
                    was_adopted = true;
                }
                answer = managed.pager.on_fault(now, address, access, TaskId(0));
            }
            if answer == FaultAnswer::Unknown {
                answer = managed.pager.fill_unknown(address);
            }
            answer == FaultAnswer::Later
        });
        managed.faults = faults;
    }

    fn hear_supervisor(&self, managed: &mut Managed) {
        let mut packet = [0; 1024];
        let mut fds = [const { None }; 1];
        match socket::receive(&self.supervisor, &mut packet, &mut fds, false) {
            Ok(Received::Closed) | Err(_) => self.orphaned(),
            Ok(Received::Message { bytes, .. }) => match &packet[..bytes] {
                CHILD => managed.forks.on_child(fds[0].take()),
                ALONE => managed.forks.on_child(None),
                other => self.obey(other),
            },
            Ok(Received::Empty | Received::Cut) => {}
        }
    }

    /// A command. None can be carried out here.
    fn obey(&self, packet: &[u8]) {
        let text = packet.strip_prefix(DO).and_then(|text| std::str::from_utf8(text).ok());
        let Some((number, command)) = text.and_then(|text| text.split_once(' ')) else { return };
        let answer = Answer::Refused(match Command::decode(command) {
            Some(_) => "not supported".to_owned(),
            None => "not understood".to_owned(),
        });
        let mut packet = DID.to_vec();
        packet.extend(format!("{number} {}", answer.encode()).as_bytes());
        // If nobody listens any more there is nobody to tell.
        let _ = socket::send(&self.supervisor, &packet, &[], true);
    }

    pub(crate) fn adopt(&mut self, managed: &mut Managed, now: Nanos) {
        let _files = limits::for_files();
        let mut walk = match MapsWalk::open(&mut self.maps_buffer) {
            Ok(walk) => walk,
            Err(errno) => die(&self.supervisor, format_args!("/proc/self/maps cannot be read: {}", errno.name())),
        };
        managed.pager.begin_look();
        while let Ok(Some(vma)) = walk.next_vma() {
            managed.pager.adopt_vma(now, &vma);
        }
        self.tell_of_native(managed);
    }

    /// Memory that is not paged, where it matters: once for each reason.
    fn tell_of_native(&self, managed: &mut Managed) {
        let quarter = self.entry().budget_pages.load(Ordering::Relaxed) / 4;
        let reasons = [
            (Why::NoIndices, 1, "lie beyond the 64 GiB of addresses that can be managed"),
            (Why::Refused, 1, "belong to another userfaultfd"),
            (Why::ReadOnly, quarter, "may not be written"),
            (Why::Executable, quarter, "may be executed"),
            (Why::Stack, quarter, "are the stack of the first thread"),
        ];
        for (why, least, text) in reasons {
            let pages = managed.pager.census().pages(why);
            let bit = 1 << (why as u32);
            if pages >= least && managed.native_told & bit == 0 {
                managed.native_told |= bit;
                let (pid, mib) = (thread::getpid(), pages.div_ceil(256));
                say(&self.supervisor, format_args!("process {pid}: {mib} MiB of addresses {text}: counted, not paged"));
            }
        }
    }

    /// Keep the budget: compare what is resident with what we know, and read what share we have.
    fn tick(&mut self, managed: &mut Managed, now: Nanos) {
        managed.next_tick = now + TICK_NS;
        self.watch(managed, now);
        managed.pager.begin_writes(now);
        let Ok(statm) = managed.statm.read() else { return };
        let anon = statm.anon_pages();
        let unseen = anon.saturating_sub(managed.pager.known_pages());
        if statm.size_pages != managed.last_size_pages || unseen > managed.unseen_pages + UNSEEN_PAGES {
            self.adopt(managed, now);
            managed.last_size_pages = statm.size_pages;
            let unseen = anon.saturating_sub(managed.pager.known_pages());
            if unseen > managed.unseen_pages + UNSEEN_PAGES && now >= managed.next_reconcile {
                managed.pager.reconcile(now);
                // It looks at every page that is managed: a twentieth of the time at most.
                let end = clock::now();
                managed.next_reconcile = end + RECONCILE_NS.max(20 * end.saturating_sub(now));
            }
        }
        let is_time = now >= managed.next_measure;
        if is_time {
            self.measure(managed, now);
        }
        let busy = managed.pager.machine().stats.busy_pages;
        if busy > managed.busy_seen + STUCK_BUSY || (is_time && managed.stuck_pages > 0) {
            managed.busy_seen = busy;
            self.measure_stuck(managed);
        }
        let unseen = anon.saturating_sub(managed.pager.known_pages());
        managed.unseen_pages = unseen;
        if !managed.forks.is_under_way() {
            self.set_budget(managed, now, unseen);
        }
    }

    /// Look at what our tables take.
    fn measure(&self, managed: &mut Managed, now: Nanos) {
        managed.next_measure = now + MEASURE_NS;
        let files = limits::for_files();
        managed.pager.measure_overhead();
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

    /// A fault that is not answered for this long is told of, once; one that is not answered at all ends the program: a hang
    /// helps nobody.
    fn watch(&self, managed: &mut Managed, now: Nanos) {
        let fault = managed.pager.machine().oldest_fault();
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
        let core = managed.pager.core();
        let text = std::fmt::from_fn(|f| {
            let (pid, seconds) = (thread::getpid(), waited / 1_000_000_000);
            match fault {
                Some((page, _)) => write!(f, "process {pid}: a fault waits for {seconds} s: {:?}; ", core.page(page))?,
                None => write!(f, "process {pid}: a fork waits for {seconds} s; ")?,
            }
            write!(f, "charged {} of {} pages, lists {:?}, ", core.charged(), core.budget(), core.list_sizes())?;
            write!(
                f,
                "swap slots free {}, settled {}, {}, ",
                core.swap_free(),
                core.is_settled(),
                managed.pager.machine().describe()
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
    fn set_budget(&self, managed: &mut Managed, now: Nanos, unseen: u64) {
        let share = self.entry().share_pages.load(Ordering::Relaxed);
        let overhead = managed.pager.overhead();
        let outside = unseen + overhead.sums + overhead.page_tables;
        let budget = share.saturating_sub(outside).max(setup::BUDGET_PAGES_MIN);
        // Beside what cannot be taken out, the rest needs room to be paged in.
        let budget = if managed.stuck_pages == 0 { budget } else { budget.max(managed.stuck_pages + budget / 4) };
        managed.pager.set_budget(now, u32::try_from(budget).unwrap_or(u32::MAX));
    }

    /// Count the pages that cannot be taken out. True if there are more than before.
    fn measure_stuck(&self, managed: &mut Managed) -> bool {
        let files = limits::for_files();
        let locked = proc::status(None).map_or(0, |status| status.locked_bytes >> PAGE_SHIFT);
        drop(files);
        let read_only = managed.pager.read_only_pages();
        let charged = u64::from(managed.pager.core().charged());
        let stuck = (read_only + locked).min(charged);
        let is_more = stuck > managed.stuck_pages;
        managed.stuck_pages = stuck;
        let share = self.entry().share_pages.load(Ordering::Relaxed);
        if stuck > share / 4 * 3 && !managed.stuck_told {
            managed.stuck_told = true;
            say(
                &self.supervisor,
                format_args!(
                    "process {}: {} MiB of its memory cannot be paged out ({} MiB read-only, {} MiB locked); where they do not fit, \
                     the budget is exceeded",
                    thread::getpid(),
                    stuck >> 8,
                    read_only >> 8,
                    locked >> 8,
                ),
            );
        }
        is_more
    }

    fn look_at_outbox(&self, managed: &mut Managed) {
        let outbox = std::mem::take(&mut managed.pager.machine_mut().outbox);
        if !outbox.poisoned.is_empty() {
            say(
                &self.supervisor,
                format_args!(
                    "process {}: {} page(s) cannot be read back from the swap file (I/O error or checksum mismatch); \
                     the program gets SIGBUS when it touches them",
                    thread::getpid(),
                    outbox.poisoned.iter().map(|range| range.len).sum::<u32>()
                ),
            );
        }
        for range in outbox.poisoned.into_iter().chain(outbox.unmarked) {
            managed.pager.machine_mut().poison(range);
        }
        if let Some((_, page)) = outbox.out_of_memory {
            if self.measure_stuck(managed) {
                self.set_budget(managed, clock::now(), managed.unseen_pages);
                managed.pager.machine_mut().wake_waiters(page);
                return;
            }
            die(
                &self.supervisor,
                format_args!(
                    "process {}: out of memory: the budget is full and so is the swap space; give --memory or --swap more",
                    thread::getpid()
                ),
            );
        }
    }

    /// Make the counters visible.
    fn publish(&self, managed: &mut Managed) {
        let entry = self.entry();
        managed.pager.take_latencies(|ns| entry.note_latency(ns));
        setup::publish(entry, &managed.pager, managed.unseen_pages);
    }
}

impl Managed {
    pub(crate) fn new(pager: Pager, forks: Forks, now: Nanos) -> Self {
        let statm = StatmFile::open_self().expect("/proc is mounted: the maps were read from it");
        Self {
            pager,
            forks,
            last_size_pages: 0,
            unseen_pages: 0,
            next_reconcile: now,
            stuck_pages: 0,
            busy_seen: 0,
            stuck_told: false,
            full_told: false,
            native_told: 0,
            next_tick: now,
            next_measure: now,
            statm,
            stall_told: false,
            last_watch: now,
            resumed: 0,
            faults: Vec::with_capacity(FAULTS),
        }
    }

    /// How long nothing has to be done unless something happens.
    fn sleep_ns(&self, now: Nanos) -> Nanos {
        let work = self.pager.core().deadline().unwrap_or(Nanos::MAX);
        let work = if self.pager.core().can_wait() { work.max(self.pager.quiet_until()) } else { work };
        let deadline = work.min(self.next_tick);
        let is_polling =
            self.pager.machine().has_deferred() || !self.faults.is_empty() || self.forks.is_waiting_for_child();
        if is_polling { POLL_NS } else { deadline.saturating_sub(now) }
    }
}

/// A stack for a thread of ours.
pub(crate) fn stack(bytes: usize) -> Result<Mapping, Errno> {
    own::map(bytes, false)
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
