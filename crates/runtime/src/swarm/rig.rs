//! The host of one process in the model: what the agent's loop does, turn by turn, over the real pager and machine.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use pagetide_core::Core;
use pagetide_core::event::{DeviceSpec, Event};
use pagetide_core::page::{Flight, PageState};
use pagetide_core::types::{DeviceId, Nanos};
use pagetide_kernel::model::{
    Answer, Call, Extent, ForkPolicy, Model, ModelMapping, Pid, Progress, Quirks, Tid, World,
};
use pagetide_kernel::{AddressSpace, OwnMapping};
use pagetide_sys::Errno;
use pagetide_sys::fd::Fd;
use pagetide_sys::file::flags;
use pagetide_sys::mem::{ManagedRange, PAGE_BYTES};
use pagetide_sys::uffd::{Modes, Stop, Wake};

use super::Dice;
use super::disk::Disk;
use crate::machine::{LiveMachine, MachineParts, ZEROES_PAGES, managed};
use crate::pager::Pager;
use crate::session::command::{Answer as Done, Command, PlaceId};
use crate::session::{Host, Kept, Session};
use crate::setup::{live_config, swap_file};
use crate::space::PAGE_SHIFT;
use crate::space::unshare::MakePrivate;
use crate::store::{Store, SwapFile};

/// Where the runtime's own memory is; the program's lies below.
pub(super) const OWN_VPN: u64 = 1 << 30;
/// Pages that the core can name.
const PAGES_MAX: u32 = 1 << 17;
/// Slots of the swap device.
const SLOTS: u32 = 1 << 14;
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

/// One process with its pager.
#[derive(Debug)]
pub(super) struct Rig {
    space: Model,
    pub(super) session: Session<Model>,
    pub(super) disk: Disk,
    bounce: ModelMapping,
    share: u32,
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
        let mut world = World::new(seed, quirks);
        // Small ones, so that many fit into a small process.
        world.have_huge_pages(16);
        let pid = world.new_process();
        let private = world.new_thread(pid);
        let space = Model::new(Arc::new(Mutex::new(world)), pid);
        let frames = u64::from(share) * 2 + 4096;
        let staging = space.map_own(OWN_VPN, frames);
        space.register(staging.range(), Modes::MISSING).expect("it was mapped just now");
        let zeroes = space.map_own(OWN_VPN * 2, u64::from(ZEROES_PAGES));
        let bounce = space.map_own(OWN_VPN * 3, 1);
        bounce_page(&space, &bounce);
        let disk = Disk::new(space.clone(), failing_bp);
        let store = Store::modelled(SLOTS);
        let is_refused = Arc::new(AtomicBool::new(false));
        let unsharer =
            ModelPrivate { space: space.clone(), thread: private, asked: 0, is_refused: Arc::clone(&is_refused) };
        let parts = MachineParts {
            space: space.clone(),
            engine: Box::new(disk.engine()),
            unsharer: Some(Box::new(unsharer)),
            held: None,
            staging,
            map_frames,
            zeroes,
            pages_max: PAGES_MAX,
            seed,
        };
        let config =
            live_config(settings, PAGES_MAX, u64::from(share), SLOTS * 4).build().expect("the settings are known");
        let mut pager = Pager::new(Core::new(config), LiveMachine::new(parts), 0, None);
        pager.exclude(OWN_VPN << PAGE_SHIFT, (OWN_VPN * 8) << PAGE_SHIFT);
        pager.machine_mut().add_store(DeviceId(0), store);
        let spec = DeviceSpec { slots: SLOTS, priority: None, rotational: false, synchronous: false, inherited: false };
        pager.step(1, Event::DeviceAdded { device: DeviceId(0), spec });
        let session = Session::new(pager, 0, UNSEEN_PAGES);
        Self { space, session, disk, bounce, share, private, is_refused, out_of_memory: false }
    }

    pub(super) fn world(&self) -> MutexGuard<'_, World> {
        self.space.world()
    }

    pub(super) const fn pid(&self) -> Pid {
        self.space.pid()
    }

    fn now(&self) -> Nanos {
        self.space.now()
    }

    pub(super) const fn pager(&self) -> &Pager<Model> {
        &self.session.pager
    }

    /// As the agent adopts.
    pub(super) fn adopt(&mut self) {
        let now = self.now();
        let Self { session, disk, bounce, space, .. } = self;
        Serving { disk, bounce, space }.look(&mut session.pager, now, None);
    }

    /// One turn of the loop.
    pub(super) fn turn(&mut self, dice: &mut Dice) {
        let now = self.now();
        let Self { session, disk, bounce, space, .. } = self;
        let mut serving = Serving { disk, bounce, space };
        session.read_messages(now, &mut serving).expect("the model can be read");
        session.answer_faults(now, &mut serving);
        session.work(now);
        session.mark_lost(|_| {});
        self.out_of_memory |= session.take_failed_fault(now).is_some();
        if dice.chance(2_000) {
            self.tick();
        }
    }

    fn resident(&self) -> u64 {
        self.world().resident(self.pid(), 0, OWN_VPN * 2)
    }

    fn tick(&mut self) {
        let (now, anon_pages) = (self.now(), self.resident());
        let Self { session, disk, bounce, space, .. } = self;
        session.pager.begin_writes(now);
        // Mappings may have changed since the last look.
        let kept = Kept { size_pages: now, anon_pages };
        session.look_at_memory(now, kept, &mut Serving { disk, bounce, space });
        let unseen = u32::try_from(session.unseen_pages()).expect("few pages");
        session.set_budget(now, self.share.saturating_sub(unseen).max(64));
    }

    /// Nothing is under way.
    pub(super) fn is_quiet(&self) -> bool {
        self.disk.is_idle() && !self.session.is_polling()
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
            self.disk.end_one(dice);
            self.turn(dice);
            self.world().pass(1_000);
        }
        progress
    }

    /// So many turns of the pager, of 0.1 ms each, in which no thread of the program goes on.
    pub(super) fn turns(&mut self, count: u32, dice: &mut Dice) {
        for _ in 0..count {
            self.disk.end_one(dice);
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
        let file = stores.iter().find(|(_, store)| store.place() == place).map(|(_, store)| store.file().raw());
        self.disk.break_file(file.expect("a place of the session"));
    }

    /// From now on the process may have so many pages.
    pub(super) fn set_share(&mut self, pages: u32) {
        self.share = pages;
        let now = self.now();
        self.session.set_budget(now, pages);
    }
}

/// What the model's process asks of a session.
struct Serving<'a> {
    disk: &'a Disk,
    bounce: &'a ModelMapping,
    space: &'a Model,
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

    fn forked(&mut self, pager: &mut Pager<Model>, _now: Nanos, child: Model) {
        self.fill_child(pager, &child);
    }
}

impl Serving<'_> {
    /// What the parent's agent does for a child that was not announced: everything is filled in.
    fn fill_child(&self, pager: &Pager<Model>, child: &Model) {
        let machine = pager.machine();
        let mappings: Vec<_> = child.world().mappings(child.pid()).to_vec();
        let wiped = |vpn: u64| {
            let mut wiped = mappings.iter().filter(|mapping| mapping.fork == ForkPolicy::Wipe);
            wiped.any(|mapping| (mapping.start..mapping.end).contains(&vpn))
        };
        for region in machine.mappings.regions() {
            for (vpn, page) in (region.vpn..).zip(region.range.pages()) {
                let view = pager.core().page(page);
                if view.discarded || wiped(vpn) {
                    continue;
                }
                if view.flight != Flight::Reading
                    && let Some(frame) = machine.resident_frame(page)
                {
                    fill(child, vpn, frame);
                    continue;
                }
                if view.state == PageState::Mapped && view.flight != Flight::Reading {
                    continue;
                }
                let Some((device, slot)) = view.slot else {
                    if view.state == PageState::Poisoned {
                        let _ = child.poison_run(managed(vpn, 1), Wake::Later);
                    }
                    continue;
                };
                let stores = machine.stores();
                let (_, store) = stores.iter().find(|(id, _)| *id == device).expect("a slot's device is there");
                let value = self.disk.slot(store.file().raw(), u64::from(slot.0));
                self.space.device_store(self.bounce.range().start(), value);
                fill(child, vpn, self.bounce.range());
            }
        }
        // It runs natively from then on.
        for mapping in mappings.iter().filter(|mapping| mapping.registered) {
            let pages = u32::try_from(mapping.end - mapping.start).expect("few pages");
            child.unregister(managed(mapping.start, pages)).expect("it is registered");
        }
    }
}

/// More frames, beside those that there are.
fn map_frames(space: &Model, frames: u64, first: u32) -> Result<ModelMapping, Errno> {
    let staging = space.map_own(OWN_VPN * 4 + 2 * u64::from(first), frames);
    space.register(staging.range(), Modes::MISSING).map(|()| staging)
}

fn fill(child: &Model, vpn: u64, from: ManagedRange) {
    for _ in 0..1000 {
        let filled = child.copy_run(managed(vpn, 1), from, Wake::Later);
        match filled.stop {
            None | Some(Stop::Present | Stop::Gone | Stop::Hole) => return,
            Some(Stop::NoMemory | Stop::Again) => {}
            Some(_) => panic!("a page of a forked child cannot be filled: {filled:?}"),
        }
    }
    panic!("a page of a forked child cannot be filled");
}

/// The bounce page has memory from the start.
fn bounce_page(space: &Model, bounce: &ModelMapping) {
    let mut world = space.world();
    let thread = world.new_thread(space.pid());
    world.will(thread, Call::Store((bounce.range().start() / PAGE_BYTES) as u64, 1));
    world.step(thread);
    world.take_log();
}
