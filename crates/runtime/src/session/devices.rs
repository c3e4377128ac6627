//! Places to swap to that come and go while the session runs.
//!
//! A place is one device of the core with a file of the session's own, and as many inherited devices as forked parents had there.
//! Swapoff closes its file first and drains one device after the other: the core brings the pages back, as far as the budget goes,
//! and reclaim takes them to other places. A device is closed when the core says that neither a page nor a child names a slot.
//!
//! To close a large file is to free its disk space, which takes half a second a GiB: a host in whose thread the program's faults wait
//! hands it to somebody else (`supervised`), and the place is gone when that has been done.
//!
//! A place that fails is drained without being asked, if another takes pages. What fits nowhere is given up: it stays where it is, and
//! is not tried again before a further place comes or somebody asks.
//!
//! Invariants: at most one device is drained at a time; a place that is being drained is not grown; a file is closed only when no
//! request names it; a drain tries a bounded number of times.

use pagetide_core::event::Event;
use pagetide_core::types::{DeviceId, Nanos, SlotIdx};
use pagetide_kernel::AddressSpace;
use pagetide_sys::fd::{self, Fd, PollFd, events};

use crate::pager::Pager;
use crate::protocol::{DEVICES_MAX, DeviceOffer};
use crate::session::command::{PlaceId, PlaceReport, PlaceState};
use crate::store::{Store, SwapFile};

/// A drain that the core gave up for want of room begins anew after this time ...
const AGAIN_NS: Nanos = 50_000_000;
/// ... so many times without getting further than before: what it brought in may go back where it came from meanwhile.
const TRIES_MAX: u32 = 40;
/// Time between two looks at a file that requests still name.
const CLOSE_NS: Nanos = 1_000_000;
/// Time between two reminders of the core, which may wait for a child to end.
const POKE_NS: Nanos = 1_000_000_000;
/// Places that are gone and still told of, at most.
const GONE_MAX: usize = 8;

/// A place that is being drained.
#[derive(Clone, Copy, Debug)]
struct Drain {
    place: PlaceId,
    /// It fails, and nobody asked for this.
    has_failed: bool,
    /// The fewest slots in use when the core was asked for the device; None: it was not asked yet.
    least: Option<u32>,
    tries: u32,
    again: Nanos,
    /// When the core is reminded.
    poke: Nanos,
}

/// A file that somebody else is to close, and has not closed yet.
#[derive(Debug)]
struct Closing {
    place: PlaceId,
    /// To be handed over: the file, and what is closed after it.
    files: Option<[Fd; 2]>,
    /// The other end of a pipe: hung up when that has happened.
    end: Fd,
}

impl Closing {
    fn is_over(&self) -> bool {
        let mut fds = [PollFd::new(&self.end, 0)];
        self.files.is_none() && fd::poll(&mut fds, Some(0)).is_ok() && fds[0].seen() & events::HUP != 0
    }
}

/// What changes about the places.
#[derive(Debug)]
pub(super) struct Devices {
    floor_bytes: u64,
    is_supervised: bool,
    closing: Vec<Closing>,
    drains: Vec<Drain>,
    gone: Vec<PlaceId>,
    given_up: Vec<PlaceId>,
    /// Places that were given up, and are not drained without being asked.
    left_alone: Vec<PlaceId>,
}

impl Devices {
    pub(super) const fn new(floor_bytes: u64) -> Self {
        Self {
            floor_bytes,
            is_supervised: false,
            closing: Vec::new(),
            drains: Vec::new(),
            gone: Vec::new(),
            given_up: Vec::new(),
            left_alone: Vec::new(),
        }
    }

    /// A supervisor closes what `next_file_to_close` tells, and looks before a swapoff whether all processes together have room.
    pub(super) const fn supervised(&mut self) {
        self.is_supervised = true;
    }

    /// A file to be closed by somebody else, and what he is to close after it.
    pub(super) fn next_file_to_close(&mut self) -> Option<[Fd; 2]> {
        self.closing.iter_mut().find_map(|closing| closing.files.take())
    }

    fn close(&mut self, store: Store) {
        let place = store.place();
        // A lease and a parent's file: whose it is frees its space.
        if !self.is_supervised || store.is_inherited() {
            return;
        }
        // Without a pipe the file is closed here.
        if let Ok((end, told)) = fd::pipe(0) {
            self.closing.push(Closing { place, files: Some([store.into_file(), told]), end });
        }
    }

    /// A further place, in an empty file.
    pub(super) fn swapon<K: AddressSpace>(
        &mut self,
        pager: &mut Pager<K>,
        now: Nanos,
        offer: DeviceOffer,
        file: Option<SwapFile>,
    ) -> Result<(), String> {
        let Some(file) = file else { return Err("no swap file came with the command".to_owned()) };
        let stores = pager.machine().stores();
        if stores.iter().any(|(_, store)| store.place() == offer.place && !store.is_inherited()) {
            return Err("the place is in use already".to_owned());
        }
        let free = (0..).take(DEVICES_MAX).map(DeviceId).find(|device| stores.iter().all(|(id, _)| id != device));
        let Some(device) = free else { return Err(format!("{DEVICES_MAX} devices are in use")) };
        let failed = |errno: pagetide_sys::Errno| format!("the swap file: {}", errno.name());
        let mut store = Store::new(offer, file).map_err(failed)?;
        let grown = store.grow(self.floor_bytes, now);
        // A supervisor has seen that there was room: what others have taken since may come back.
        if !self.is_supervised {
            grown.map_err(failed)?;
        }
        let spec = store.spec();
        pager.machine_mut().add_store(device, store);
        pager.step(now, Event::DeviceAdded { device, spec });
        if pager.core().device_used(device).is_none() {
            let closed = pager.machine_mut().remove_store(device);
            debug_assert!(closed.is_some(), "nothing names a file that was never used");
            return Err("the core knows no further device".to_owned());
        }
        self.gone.retain(|gone| *gone != offer.place);
        self.left_alone.clear();
        Ok(())
    }

    /// Begin to drain a place.
    pub(super) fn swapoff<K: AddressSpace>(
        &mut self,
        pager: &mut Pager<K>,
        now: Nanos,
        place: PlaceId,
    ) -> Result<(), String> {
        if self.drains.iter().any(|drain| drain.place == place) {
            return Err("it is being drained already".to_owned());
        }
        let used = used_of(pager, place);
        if !pager.machine().stores().iter().any(|(_, store)| store.place() == place) {
            // Nothing of this session is there: no more is to be done.
            self.note_gone(place);
            return Ok(());
        }
        if !pager.machine().stores().iter().any(|(_, store)| store.is_open() && store.place() != place) {
            return Err("it is the only place: what does not fit into memory would have none".to_owned());
        }
        let room = self.room_beside(pager, place);
        // The share of a process grows while it is being drained: only who divides knows how far.
        if u64::from(used) > room && !self.is_supervised {
            let text = format!("{used} pages are there, and {room} fit elsewhere or into memory");
            return Err(text);
        }
        self.begin(pager, now, place, false);
        Ok(())
    }

    fn begin<K: AddressSpace>(&mut self, pager: &mut Pager<K>, now: Nanos, place: PlaceId, has_failed: bool) {
        self.given_up.retain(|given_up| *given_up != place);
        self.left_alone.retain(|left_alone| *left_alone != place);
        pager.machine_mut().close_place(place, true);
        self.drains.push(Drain { place, has_failed, least: None, tries: 0, again: now, poke: now });
        self.serve(pager, now);
    }

    /// A place is being drained, or waits for its turn.
    pub(super) const fn are_draining(&self) -> bool {
        !self.drains.is_empty()
    }

    /// Pages that may go to the slots of other places, and into free memory.
    fn room_beside<K: AddressSpace>(&self, pager: &Pager<K>, place: PlaceId) -> u64 {
        let core = pager.core();
        let memory = u64::from(core.budget().saturating_sub(core.charged()));
        let is_other = |entry: &&(DeviceId, Store)| entry.1.place() != place && takes_pages(pager, entry);
        let others = pager.machine().stores().iter().filter(is_other);
        let free = others.map(|(device, store)| {
            let used = core.device_used(*device).unwrap_or(0);
            // One that fails is not grown.
            let slots = if store.has_failed() { store.slots_backed() } else { store.slots_possible(self.floor_bytes) };
            u64::from(slots.saturating_sub(used + 1))
        });
        free.fold(memory, u64::saturating_add)
    }

    /// Use a place again that was being drained.
    pub(super) fn stop_swapoff<K: AddressSpace>(
        &mut self,
        pager: &mut Pager<K>,
        now: Nanos,
        place: PlaceId,
    ) -> Result<(), String> {
        // Whoever asked for it has heard that it was given up.
        self.given_up.retain(|given_up| *given_up != place);
        let Some(index) = self.drains.iter().position(|drain| drain.place == place) else {
            self.gone.retain(|gone| *gone != place);
            return Ok(());
        };
        self.drains.remove(index);
        self.stop(pager, now, place);
        self.left_alone.push(place);
        Ok(())
    }

    fn stop<K: AddressSpace>(&self, pager: &mut Pager<K>, now: Nanos, place: PlaceId) {
        if let Some(device) = pager.core().swapoff()
            && place_of(pager, device) == Some(place)
        {
            pager.step(now, Event::SwapoffStopped { device });
        }
        pager.machine_mut().close_place(place, false);
        // What the core is done with already, and was not closed yet: the file is its device again.
        let is_forgotten = |(device, store): &&(DeviceId, Store)| {
            store.place() == place && pager.core().device_used(*device).is_none()
        };
        let forgotten =
            pager.machine().stores().iter().find(is_forgotten).map(|(device, store)| (*device, store.spec()));
        if let Some((device, spec)) = forgotten {
            pager.step(now, Event::DeviceAdded { device, spec });
            let store = pager.machine().stores().iter().find(|(id, _)| *id == device);
            let given: Vec<(SlotIdx, u32)> = store.into_iter().flat_map(|(_, store)| store.given_back()).collect();
            for (slot, len) in given {
                pager.step(now, Event::SlotsBacked { device, slot, len, is_backed: false });
            }
        }
    }

    /// The slots of places that are being drained are needed: they are given back. True if there were any.
    pub(super) fn give_back<K: AddressSpace>(&mut self, pager: &mut Pager<K>, now: Nanos) -> bool {
        let Some(index) = self.drains.iter().position(|drain| !drain.has_failed) else { return false };
        self.give_up(pager, now, index);
        true
    }

    /// Go on with what is being drained. True if there is more at once.
    pub(super) fn serve<K: AddressSpace>(&mut self, pager: &mut Pager<K>, now: Nanos) -> bool {
        self.drain_failed(pager, now);
        let Some(drain) = self.drains.first_mut() else { return false };
        if pager.core().swapoff().is_some() {
            if now >= drain.poke {
                // It looks again for what was held outside, if that is what it waits for.
                drain.poke = now + POKE_NS;
                pager.step(now, Event::Timeout);
            }
            return false;
        }
        if now < drain.again {
            return false;
        }
        let place = drain.place;
        // The file that may be written first.
        let mut devices: Vec<(bool, DeviceId)> = pager
            .machine()
            .stores()
            .iter()
            .filter(|(_, store)| store.place() == place)
            .map(|(device, store)| (store.is_inherited(), *device))
            .collect();
        devices.sort_unstable_by_key(|&(is_inherited, device)| (is_inherited, device.0));
        let Some(&(_, device)) = devices.first() else {
            self.closing.retain(|closing| !closing.is_over());
            if self.closing.iter().any(|closing| closing.place == place) {
                drain.again = now + CLOSE_NS;
                return false;
            }
            self.drains.remove(0);
            self.note_gone(place);
            return true;
        };
        let Some(used) = pager.core().device_used(device) else {
            let Some(store) = pager.machine_mut().remove_store(device) else {
                drain.again = now + CLOSE_NS;
                return false;
            };
            drain.least = None;
            self.close(store);
            return true;
        };
        let is_further = drain.least.is_none_or(|least| used < least);
        drain.tries = if is_further { 0 } else { drain.tries + 1 };
        if drain.tries > TRIES_MAX {
            self.give_up(pager, now, 0);
            return false;
        }
        drain.least = Some(drain.least.map_or(used, |least| least.min(used)));
        drain.again = now + if drain.tries == 0 { 0 } else { AGAIN_NS };
        pager.step(now, Event::Swapoff { device });
        true
    }

    /// What is left of this place fits nowhere else: it stays in use.
    fn give_up<K: AddressSpace>(&mut self, pager: &mut Pager<K>, now: Nanos, index: usize) {
        let place = self.drains.remove(index).place;
        self.stop(pager, now, place);
        self.given_up.push(place);
        self.left_alone.push(place);
    }

    /// A place that fails takes nothing any more, and is drained, if there is another that takes pages.
    fn drain_failed<K: AddressSpace>(&mut self, pager: &mut Pager<K>, now: Nanos) {
        let stores = pager.machine().stores();
        let fails = |store: &Store| store.is_open() && store.has_failed() && !self.left_alone.contains(&store.place());
        let Some(place) = stores.iter().find(|(_, store)| fails(store)).map(|(_, store)| store.place()) else { return };
        if stores.iter().any(|entry| !entry.1.has_failed() && takes_pages(pager, entry)) {
            self.begin(pager, now, place, true);
        }
    }

    fn note_gone(&mut self, place: PlaceId) {
        self.gone.retain(|gone| *gone != place);
        if self.gone.len() == GONE_MAX {
            self.gone.remove(0);
        }
        self.gone.push(place);
    }

    /// When `serve` has something to do, if the core does not end first what it was asked for.
    pub(super) fn deadline<K: AddressSpace>(&self, pager: &Pager<K>) -> Nanos {
        let is_busy = pager.core().swapoff().is_some();
        self.drains.first().map_or(Nanos::MAX, |drain| if is_busy { drain.poke } else { drain.again })
    }

    /// How each place stands.
    pub(super) fn reports<K: AddressSpace>(&self, pager: &Pager<K>) -> impl Iterator<Item = PlaceReport> {
        let mut reports: Vec<PlaceReport> = Vec::new();
        for (device, store) in pager.machine().stores() {
            let place = store.place();
            let index = reports.iter().position(|report| report.place == place).unwrap_or(reports.len());
            if index == reports.len() {
                reports.push(PlaceReport::empty(place, PlaceState::Open));
            }
            let report = &mut reports[index];
            let (used, is_closed) = (pager.core().device_used(*device), pager.core().is_device_closed(*device));
            let used = used.unwrap_or(0);
            report.lost += u64::from(store.lost_pages());
            if store.is_inherited() {
                report.inherited += u64::from(used);
            } else {
                report.used += u64::from(used);
                report.backed += u64::from(if is_closed { used } else { store.slots_backed() });
                if store.is_stuck() || store.is_full(used) || is_closed {
                    report.state = PlaceState::Full;
                }
            }
        }
        for report in &mut reports {
            if self.given_up.contains(&report.place) {
                report.state = PlaceState::GivenUp;
            }
            if let Some(drain) = self.drains.iter().find(|drain| drain.place == report.place) {
                report.state = if drain.has_failed { PlaceState::Failed } else { PlaceState::Draining };
            }
        }
        reports.extend(self.gone.iter().map(|&place| PlaceReport::empty(place, PlaceState::Gone)));
        reports.into_iter()
    }
}

/// Pages go there: it is not being drained, and not so many writes have failed that the core gave it up.
fn takes_pages<K: AddressSpace>(pager: &Pager<K>, (device, store): &(DeviceId, Store)) -> bool {
    store.is_open() && !pager.core().is_device_closed(*device)
}

fn place_of<K: AddressSpace>(pager: &Pager<K>, device: DeviceId) -> Option<PlaceId> {
    pager.machine().stores().iter().find(|(id, _)| *id == device).map(|(_, store)| store.place())
}

/// Slots of a place that are in use.
fn used_of<K: AddressSpace>(pager: &Pager<K>, place: PlaceId) -> u32 {
    let devices = pager.machine().stores().iter().filter(|(_, store)| store.place() == place);
    devices.filter_map(|(device, _)| pager.core().device_used(*device)).fold(0, u32::saturating_add)
}
