//! The host of one process in the model: what the agent's loop does, turn by turn, over the real pager, machine and forks.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use pagetide_core::Core;
use pagetide_core::config::Compress;
use pagetide_core::event::Event;
use pagetide_core::types::{DeviceId, Nanos};
use pagetide_kernel::model::{
    Answer, Call, Extent, Model, ModelChild, ModelMapping, Pid, Progress, Quirks, Tid, World,
};
use pagetide_kernel::{AddressSpace, Faults, Message, OwnMapping};
use pagetide_sys::Errno;
use pagetide_sys::fd::{self, Fd};
use pagetide_sys::file::{self, flags};
use pagetide_sys::mem::{ManagedRange, PAGE_BYTES};
use pagetide_sys::text::Text;
use pagetide_sys::uffd::{Modes, Wake};

use super::Dice;
use super::disk::Disk;
use crate::extents::Division;
use crate::fork::doorbells::Doorbells;
use crate::fork::seen::Talk;
use crate::fork::takeover::{Inheritance, tell_taken};
use crate::fork::{Forks, Voice};
use crate::frames::Kind;
use crate::machine::{LiveMachine, MachineParts, ZEROES_PAGES};
use crate::pager::{Followup, Pager};
use crate::protocol::DeviceOffer;
use crate::session::command::{Answer as Done, Command, PlaceId};
use crate::session::{Host, Kept, MappingsMark, Session};
use crate::setup::{SetupError, live_config, swap_file};
use crate::space::PAGE_SHIFT;
use crate::space::unshare::MakePrivate;
use crate::store::{Store, SwapFile};

/// Where the runtime's own memory is; the program's lies below.
pub(super) const OWN_VPN: u64 = 1 << 30;
/// Pages that the core can name.
const PAGES_MAX: u32 = 1 << 17;
/// Slots of the swap device.
const SLOTS: u32 = 1 << 14;
/// Of a device that processes share.
const DEVICE_BYTES: u64 = 130 << 20;
/// Pages that may be resident unseen before all that is managed is searched.
const UNSEEN_PAGES: u64 = 16;
/// Mappings that a look in pieces sees at a time.
const LOOKED_AT_ONCE: u32 = 12;

/// The thread that makes pages private.
#[derive(Debug)]
struct ModelPrivate {
    space: Model,
    thread: Tid,
    asked: u32,
    /// The process may have no further thread: nobody makes pages private.
    is_refused: Arc<AtomicBool>,
}

impl MakePrivate for ModelPrivate {
    fn ask(&mut self, range: ManagedRange) -> bool {
        if self.is_refused.load(Ordering::Relaxed) {
            return false;
        }
        let pages = |bytes: usize| (bytes / PAGE_BYTES) as u64;
        let extent = Extent::new(pages(range.start()), pages(range.len()));
        self.space.world().will(self.thread, Call::Populate(extent));
        self.asked = self.asked.wrapping_add(1);
        true
    }

    fn done(&self) -> u32 {
        let left = self.space.world().calls_left(self.thread);
        self.asked.wrapping_sub(u32::try_from(left).expect("few are asked for"))
    }
}

/// What an agent has said to its supervisor.
#[derive(Debug, Default)]
struct Said(RefCell<Vec<Vec<u8>>>);

impl Voice for Said {
    fn tell(&self, word: &[u8]) {
        self.0.borrow_mut().push(word.to_vec());
    }

    fn say(&self, text: std::fmt::Arguments<'_>) {
        eprintln!("{text}");
    }

    fn die(&self, text: std::fmt::Arguments<'_>) -> ! {
        panic!("an agent ends its process: {text}")
    }
}

/// How forks come to a process's agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ForkMode {
    /// The kernel tells of each.
    Told,
    /// Their makers tell before and after; the kernel tells nothing.
    Seen,
}

/// What a process has beside its pager, and its children have in turn.
#[derive(Clone, Debug)]
pub(super) struct Ground {
    space: Model,
    pub(super) disk: Disk,
    /// Knobs of sessions.
    settings: Vec<(String, String)>,
    /// What all of them swap to, if there is one.
    device: Option<Arc<Fd>>,
    /// Pages of memory.
    share: u32,
    pub(super) forks: ForkMode,
}

impl Ground {
    /// The first process of a world whose `quirks` show by `seed`, of which `failing_bp` requests in 10,000 fail.
    pub(super) fn new(
        (seed, quirks): (u64, Quirks),
        (share, failing_bp): (u32, u64),
        (settings, device): (&[(String, String)], Option<Fd>),
        forks: ForkMode,
    ) -> Self {
        let mut world = World::new(seed, quirks);
        // Small ones, so that many fit into a small process.
        world.have_huge_pages(16);
        let pid = world.new_process();
        let space = Model::new(Arc::new(Mutex::new(world)), pid);
        let disk = Disk::new(space.clone(), failing_bp);
        Self { space, disk, settings: settings.to_vec(), device: device.map(Arc::new), share, forks }
    }

    /// The same for another process.
    fn of_process(&self, pid: Pid) -> Self {
        let space = self.space.of_process(pid);
        Self { disk: self.disk.of_process(space.clone()), space, ..self.clone() }
    }

    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        self.space.world()
    }

    pub(super) const fn pid(&self) -> Pid {
        self.space.pid()
    }
}

/// One process with its pager.
#[derive(Debug)]
pub(super) struct Rig {
    pub(super) ground: Ground,
    pub(super) session: Session<Model>,
    pub(super) forks: Forks<Model>,
    /// Where forks are seen: what a forking thread says and hears.
    pub(super) talk: Option<&'static Talk>,
    said: Said,
    /// Pages that it pages out before a fork.
    pub(super) given_at_fork: u32,
    /// The thread that makes pages private.
    pub(super) private: Tid,
    /// No thread can be had that makes pages private.
    pub(super) is_refused: Arc<AtomicBool>,
    /// Orders that could not be answered: the run ends with a message.
    pub(super) out_of_memory: bool,
}

impl Rig {
    /// A process whose memory may be `share` pages.
    pub(super) fn new(seed: u64, quirks: Quirks, share: u32, settings: &[(String, String)], failing_bp: u64) -> Self {
        let ground = Ground::new((seed, quirks), (share, failing_bp), (settings, None), ForkMode::Told);
        Self::over(ground, seed, Vec::new())
    }

    /// A process that has yet to take anything under management; `inherited` are its parent's stores, `seed` is that of its checksums.
    pub(super) fn over(ground: Ground, seed: u64, inherited: Vec<(DeviceId, Store)>) -> Self {
        let (space, share) = (ground.space.clone(), ground.share);
        let pid = space.pid();
        if ground.forks == ForkMode::Seen {
            space.world().tells_no_copy(pid);
        }
        let private = space.world().new_thread(pid);
        let frames = u64::from(share) * 2 + 4096;
        let staging = space.map_own(OWN_VPN, frames);
        space.register(staging.range(), Modes::MISSING).expect("it was mapped just now");
        let zeroes = space.map_own(OWN_VPN * 2, u64::from(ZEROES_PAGES));
        let is_refused = Arc::new(AtomicBool::new(false));
        let unsharer =
            ModelPrivate { space: space.clone(), thread: private, asked: 0, is_refused: Arc::clone(&is_refused) };
        let parts = MachineParts {
            space: space.clone(),
            engine: Box::new(ground.disk.engine()),
            unsharer: Some(Box::new(unsharer)),
            held: None,
            staging,
            map_frames,
            zeroes,
            pages_max: PAGES_MAX,
            seed,
        };
        let own = ground.device.as_deref().map_or_else(|| Store::modelled(SLOTS), on_device);
        let slots: u32 = inherited.iter().map(|(_, store)| store.slots_max()).sum();
        let slots = slots + own.slots_max() + SLOTS * 3;
        let config =
            live_config(&ground.settings, PAGES_MAX, u64::from(share), slots).build().expect("the settings are known");
        let mut machine = LiveMachine::new(parts);
        let map = |bytes: usize| {
            let mapping = space.map_own(OWN_VPN * 6, (bytes >> PAGE_SHIFT) as u64);
            space.register(mapping.range(), Modes::MISSING)?;
            let filled = space.zeropage_run(mapping.range(), Wake::Later);
            assert_eq!(filled.stop, None, "it was mapped just now");
            Ok(mapping)
        };
        machine.attach_tier(&config, u64::from(share), map).expect("memory");
        if config.compress() != Compress::Auto
            && let Some(tier) = machine.tier_mut()
        {
            tier.keep_to(u32::try_from(seed % 10).expect("a digit") + 1);
        }
        let mut pager = Pager::new(Core::new(config), machine, 0, None);
        pager.exclude(OWN_VPN << PAGE_SHIFT, (OWN_VPN * 8) << PAGE_SHIFT);
        let free = (0..).map(DeviceId).find(|device| inherited.iter().all(|(taken, _)| taken != device));
        let own = (free.expect("few devices are inherited"), own);
        for (id, store) in inherited.into_iter().chain([own]) {
            let spec = store.spec();
            pager.machine_mut().add_store(id, store);
            pager.step(1, Event::DeviceAdded { device: id, spec });
        }
        let session = Session::new(pager, 0, UNSEEN_PAGES);
        let talk = (ground.forks == ForkMode::Seen).then(|| &*Box::leak(Box::new(Talk::new())));
        let forks = Forks::new(doorbells(&space), talk);
        let said = Said::default();
        Self { ground, session, forks, talk, said, given_at_fork: 0, private, is_refused, out_of_memory: false }
    }

    /// The agent of a forked child, which takes over what comes through `call`. None: its parent has ended. `is_careless`: by mistake some of
    /// it is left out.
    pub(super) fn of_child(ground: &Ground, child: Pid, call: &Fd, is_careless: bool) -> Option<Self> {
        let mut inheritance = match Inheritance::receive(call, false) {
            Ok(inheritance) => inheritance,
            Err(SetupError::Step(_, Errno::ECONNRESET)) => return None,
            Err(error) => panic!("a child cannot take over its memory: {error}"),
        };
        let inherited = std::mem::take(&mut inheritance.stores);
        let mut rig = Self::over(ground.of_process(child), inheritance.seed, inherited);
        let (now, pager) = (rig.now(), &mut rig.session.pager);
        let mut at = 0;
        while let Ok(Some(vma)) = pager.machine_mut().space_mut().mapping_at_or_after(at) {
            let is_to_register = ground.forks == ForkMode::Seen;
            pager.take_over_vma(now, &vma, &inheritance.regions, is_to_register).expect("it can be registered");
            at = vma.end;
        }
        if is_careless {
            inheritance.runs.pop();
        }
        inheritance.take_over_runs(pager, now);
        // Who has ended meanwhile needs no word.
        let _ = tell_taken(call);
        rig.adopt();
        Some(rig)
    }

    /// What its agent has told the supervisor since it was heard last.
    pub(super) fn hear(&self) -> Vec<Vec<u8>> {
        self.said.0.take()
    }

    /// Forks of it are announced.
    pub(super) fn is_managed(&self) -> bool {
        self.pager().machine().mappings.managed_pages() > 0
    }

    /// The pages of the two doorbells.
    pub(super) fn doorbells(&self) -> [u64; 2] {
        let range = self.forks.doorbells();
        [0, 1].map(|which| (range.page(which).start() / PAGE_BYTES) as u64)
    }

    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        self.ground.world()
    }

    pub(super) const fn pid(&self) -> Pid {
        self.ground.pid()
    }

    fn now(&self) -> Nanos {
        self.ground.space.now()
    }

    pub(super) const fn pager(&self) -> &Pager<Model> {
        &self.session.pager
    }

    /// As the agent adopts.
    pub(super) fn adopt(&mut self) {
        let now = self.now();
        let Self { session, forks, said, given_at_fork: given, .. } = self;
        Serving { forks, said, given: *given }.look(&mut session.pager, now, None);
    }

    /// One turn of the loop.
    pub(super) fn turn(&mut self, dice: &mut Dice) {
        let now = self.now();
        let Self { session, forks, said, given_at_fork: given, .. } = self;
        let mut serving = Serving { forks, said, given: *given };
        // As where the program's calls are seen (`leaving`).
        let pid = self.ground.pid();
        self.ground.world().keep_moves(pid, true);
        session.read_messages(now, &mut serving).expect("the model can be read");
        self.ground.world().keep_moves(pid, false);
        serving.forks.look_at_copy(serving.said, &mut session.pager, now);
        if !serving.forks.is_frozen() {
            session.answer_faults(now, &mut serving);
        }
        session.work(now);
        forks.serve(said, &mut session.pager, now);
        let is_flushed = session.pager.machine().is_tier_flushed();
        assert!(
            is_flushed || !forks.is_holding(),
            "what is asked for beyond the budget comes while the disk is waited for"
        );
        session.mark_lost(|_| {});
        self.out_of_memory |= session.take_failed_fault(now, || false).is_some();
        if self.ground.device.is_some() && !forks.is_under_way() {
            // The device is short of room every other millisecond.
            session.pager.follow_short_places(now, now >> 20 & 1);
        }
        if dice.chance(2_000) {
            self.tick();
        }
    }

    /// Read a message, and no other one. False: there is none.
    pub(super) fn read_message(&mut self) -> bool {
        let now = self.now();
        let message = self.session.pager.machine().space().next_message().expect("the model can be read");
        message.is_some_and(|message| {
            assert!(matches!(self.session.pager.on_message(now, message), Followup::None));
            true
        })
    }

    /// Read the message of a fork. The agent looks what the child is to get when the programs have gone on by `meanwhile`.
    pub(super) fn read_fork(&mut self, meanwhile: impl FnOnce(&mut World)) {
        let now = self.now();
        let Self { session, forks, said, .. } = self;
        let message = session.pager.machine().space().next_message();
        let Ok(Some(Message::Fork(child))) = message else { panic!("a fork is told of: {message:?}") };
        meanwhile(&mut session.pager.machine().space().world());
        forks.on_fork(said, &mut session.pager, now, child);
    }

    fn resident(&self) -> u64 {
        self.world().resident(self.pid(), 0, OWN_VPN * 2)
    }

    fn tick(&mut self) {
        let (now, anon_pages) = (self.now(), self.resident());
        let Self { session, forks, said, given_at_fork: given, .. } = self;
        let mut serving = Serving { forks, said, given: *given };
        session.pager.begin_writes(now);
        // Mappings may have changed since the last look.
        let mappings = MappingsMark { size_pages: now, asked: 0 };
        session.look_at_memory(now, Kept { mappings, anon_pages }, &mut serving);
        let unseen = u32::try_from(session.unseen_pages()).expect("few pages");
        if !serving.forks.is_under_way() {
            session.set_budget(now, self.ground.share.saturating_sub(unseen).max(64));
        }
    }

    /// Nothing is under way.
    pub(super) fn is_quiet(&self) -> bool {
        let is_forking = self.forks.is_under_way() || self.forks.is_waiting_for_child();
        self.ground.disk.is_idle() && !self.session.is_polling() && !is_forking
    }

    /// One thread's call, to its end, with the pager at work.
    pub(super) fn perform(&mut self, tid: Tid, call: Call) -> Answer {
        self.world().will(tid, call);
        self.finish(tid)
    }

    /// The call that a thread is in, or that it makes next, to its end.
    pub(super) fn finish(&mut self, tid: Tid) -> Answer {
        let mut dice = Dice::new(1);
        for _ in 0..100_000 {
            if let Progress::Ended(answer) = self.step(tid, &mut dice) {
                return answer;
            }
        }
        panic!("the call of {tid:?} does not end");
    }

    /// One step of a thread, with the pager at work.
    pub(super) fn step(&mut self, tid: Tid, dice: &mut Dice) -> Progress {
        let progress = self.world().step(tid);
        if !matches!(progress, Progress::Ended(_)) {
            self.ground.disk.end_one(dice);
            self.turn(dice);
            self.world().pass(1_000);
        }
        progress
    }

    /// So many turns of the pager, of 0.1 ms each, in which no thread of the program goes on.
    pub(super) fn turns(&mut self, count: u32, dice: &mut Dice) {
        for _ in 0..count {
            self.ground.disk.end_one(dice);
            self.turn(dice);
            self.world().pass(100_000);
        }
    }

    /// The pager works until nothing is left to do for the moment.
    pub(super) fn rest(&mut self) {
        self.turns(2_000, &mut Dice::new(1));
    }

    /// A command, carried out at once. A place that comes gets a file that the model keeps the content of.
    pub(super) fn carry_out(&mut self, command: Command) -> Done {
        let directory = || {
            let path = std::ffi::CString::new(env!("CARGO_MANIFEST_DIR")).expect("a path");
            Fd::open(&path, flags::READ | flags::DIRECTORY, 0)
        };
        let is_swapon = matches!(command, Command::SwapOn { .. });
        let file = is_swapon.then(|| directory().and_then(|at| swap_file(&at)).expect("a file without a name"));
        let now = self.now();
        self.session.carry_out(now, command, file.map(SwapFile::from))
    }

    /// Everything that is written to this place fails from now on.
    pub(super) fn break_place(&mut self, place: PlaceId) {
        let stores = self.session.pager.machine().stores();
        let store = stores.iter().find(|(_, store)| store.place() == place).map(|(_, store)| store);
        self.ground.disk.break_file(store.expect("a place of the session").file());
    }

    /// From now on the process may have so many pages.
    pub(super) fn set_share(&mut self, pages: u32) {
        self.ground.share = pages;
        let now = self.now();
        self.session.set_budget(now, pages);
    }
}

/// What the model's process asks of a session.
struct Serving<'a> {
    forks: &'a mut Forks<Model>,
    said: &'a Said,
    /// Pages that are paged out before a fork.
    given: u32,
}

impl Host<Model> for Serving<'_> {
    fn look(&mut self, pager: &mut Pager<Model>, now: Nanos, until: Option<Nanos>) -> bool {
        let goes_on_at = pager.look_at().filter(|_| until.is_some());
        let mut at = usize::try_from(goes_on_at.unwrap_or(0)).expect("addresses are 64 bit");
        if goes_on_at.is_none() {
            pager.begin_look();
        }
        let mut seen = 0;
        while let Ok(Some(vma)) = pager.machine_mut().space_mut().mapping_at_or_after(at) {
            if until.is_some() && seen == LOOKED_AT_ONCE {
                return false;
            }
            at = vma.end;
            pager.adopt_vma(now, &vma);
            seen += 1;
        }
        pager.end_look();
        true
    }

    fn takes(&mut self, pager: &mut Pager<Model>, now: Nanos, address: u64) -> bool {
        let address = usize::try_from(address).expect("addresses are 64 bit");
        let is_doorbell = self.forks.is_doorbell(address);
        if is_doorbell {
            self.forks.ring(pager, now, address, self.given);
        }
        is_doorbell
    }

    fn forked(&mut self, pager: &mut Pager<Model>, now: Nanos, child: ModelChild) {
        self.forks.on_fork(self.said, pager, now, child);
    }
}

/// More frames, beside those that there are.
fn map_frames(space: &Model, frames: u64, first: u32, kind: Kind) -> Result<ModelMapping, Errno> {
    let vpn = OWN_VPN * 4 + 2 * u64::from(first);
    let staging = match kind {
        Kind::Plain => space.map_own(vpn, frames),
        Kind::Executable => space.map_own_executable(vpn, frames),
    };
    space.register(staging.range(), Modes::MISSING).map(|()| staging)
}

/// A block device that processes share: a file stands for it.
pub(super) fn device() -> Fd {
    let device = fd::memfd(c"pagetide-test").expect("a memory file");
    file::truncate(&device, DEVICE_BYTES).expect("it may grow");
    device
}

/// A process's own part of a device.
fn on_device(device: &Fd) -> Store {
    let path = Text::<64>::format(format_args!("/proc/self/fd/{}", device.raw()));
    let opened = Fd::open(path.as_c_str(), flags::READ_WRITE, 0).expect("it may be opened again");
    let division = Division::of_bytes(DEVICE_BYTES);
    let slots = division.expect("there is room").slots();
    let offer = DeviceOffer { place: PlaceId(0), slots, priority: None, rotational: false, division };
    let mut store = Store::new(offer, opened.into()).expect("a few checksums");
    // Where others have taken all, it has no slots for now.
    let _ = store.grow(0, 0);
    store
}

/// The doorbells, with a page behind them that has memory, and the page that children inherit.
fn doorbells(space: &Model) -> Doorbells<ModelMapping> {
    let pages = Doorbells::<ModelMapping>::PAGES as u64;
    let bells = space.map_own(OWN_VPN * 3, pages);
    let pid = space.pid();
    // Where no parent has its own.
    let witness = space.map_own_inherited(OWN_VPN * 7 + u64::from(pid.0), 1);
    let mut world = space.world();
    let thread = world.new_thread(pid);
    world.will(thread, Call::Store(OWN_VPN * 3 + pages - 1, 1));
    world.step(thread);
    drop(world);
    Doorbells::new(space, bells, witness).expect("they were mapped just now")
}
