//! The child's side of a fork: what the parent's agent hands over becomes the child's own.

use pagetide_core::event::Event;
use pagetide_core::page::{Flight, PageState};
use pagetide_core::types::{DeviceId, Nanos, PageIdx, PageRange, SlotIdx};
use pagetide_kernel::AddressSpace;
use pagetide_sys::fd::Fd;
use pagetide_sys::socket::{self, Received};
use pagetide_sys::uffd::Uffd;
use pagetide_sys::{Errno, clock};

use super::asked;
use super::snapshot::{RegionRecord, SlotRun, read_records};
use crate::agent::{Agent, Managed};
use crate::pager::Pager;
use crate::protocol::{DEVICE_FDS, HANDOVER_FDS, Handover, PACKET_BYTES, PACKET_FDS, TAKEN};
use crate::setup::{self, SetupError};
use crate::store::Store;

/// What a forked child's agent gets from its parent's.
#[derive(Debug)]
pub(crate) struct Inheritance {
    /// The userfaultfd, where the kernel has made one for the child.
    pub(crate) faults: Option<Fd>,
    /// Of the parent's checksums.
    pub(crate) seed: u64,
    pub(crate) stores: Vec<(DeviceId, Store)>,
    pub(crate) regions: Vec<RegionRecord>,
    pub(crate) runs: Vec<SlotRun>,
}

impl Inheritance {
    /// `has_faults`: a userfaultfd comes with it.
    pub(crate) fn receive(call: &Fd, has_faults: bool) -> Result<Self, SetupError> {
        let own_fds = HANDOVER_FDS - usize::from(!has_faults);
        let broken = |errno| SetupError::Step("the handover", errno);
        let (handover, fds) = receive_handover(call, own_fds).map_err(broken)?;
        let mut fds = fds.into_iter();
        let mut next = || fds.next().ok_or_else(|| broken(Errno::EPROTO));
        let faults = if has_faults { Some(next()?) } else { None };
        let snapshot = next()?;
        let mut stores = Vec::new();
        for what in &handover.devices {
            let store = Store::inherit(next()?, next()?, next()?, what);
            let store = store.map_err(|errno| SetupError::Step("the parent's swap file", errno))?;
            stores.push((DeviceId(what.device), store));
        }
        let unread = |errno| SetupError::Step("the snapshot", errno);
        let regions = read_records::<RegionRecord>(&snapshot, 0, handover.regions).map_err(unread)?;
        let runs = read_records(&snapshot, size_of_val(regions.as_slice()), handover.runs).map_err(unread)?;
        Ok(Self { faults, seed: handover.seed, stores, regions, runs })
    }

    /// Pages that are in the parent's slots. What is there already was taken over with its regions.
    pub(crate) fn take_over_runs<K: AddressSpace>(&self, pager: &mut Pager<K>, now: Nanos) {
        self.runs.iter().for_each(|run| take_over_run(pager, now, *run));
    }
}

/// Let the parent's agent know that it is needed no more.
pub(crate) fn tell_taken(call: &Fd) -> Result<(), SetupError> {
    socket::send(call, TAKEN, &[], true).map_err(|errno| SetupError::Step("the handover", errno))
}

/// The descriptors and the text of a handover.
fn receive_handover(call: &Fd, own_fds: usize) -> Result<(Handover, Vec<Fd>), Errno> {
    let mut packet = vec![0; PACKET_BYTES];
    let mut fds = [const { None }; PACKET_FDS];
    let Received::Message { bytes, .. } = socket::receive(call, &mut packet, &mut fds, true)? else {
        return Err(Errno::ECONNRESET);
    };
    let handover = Handover::decode(&packet[..bytes]).ok_or(Errno::EPROTO)?;
    let mut all: Vec<Fd> = fds.iter_mut().filter_map(Option::take).collect();
    while all.len() < handover.fds {
        let Received::Message { fds: 1.., .. } = socket::receive(call, &mut packet, &mut fds, true)? else {
            return Err(Errno::EPROTO);
        };
        all.extend(fds.iter_mut().filter_map(Option::take));
    }
    if all.len() != own_fds + DEVICE_FDS * handover.devices.len() {
        return Err(Errno::EPROTO);
    }
    Ok((handover, all))
}

/// In a forked child's agent: take over from the parent's agent, which is at the other end of `call`.
pub(crate) fn take_over(agent: &mut Agent, call: &Fd) -> Result<Managed, SetupError> {
    // In signal mode the kernel has registered nothing of the copy: this does, before anybody touches it.
    let mut inheritance = Inheritance::receive(call, !agent.hello().signal_mode)?;
    let faults = match inheritance.faults.take() {
        Some(faults) => Uffd::from_fd(faults),
        None => setup::open_user_uffd(agent)?,
    };
    clock::init();
    let now = clock::now();
    let holes = agent.fill_holes(&inheritance.regions);
    let stores = std::mem::take(&mut inheritance.stores);
    let mut pager = setup::pager(agent, Some((faults, inheritance.seed)), stores)?;
    drop(holes);
    agent.exclude_initial(&mut pager);
    agent.take_over_regions(&mut pager, now, &inheritance.regions);
    inheritance.take_over_runs(&mut pager, now);
    pager.note_for_maker(asked::of_maker());
    let forks = super::begin(agent, &pager);
    let managed = Managed::new(pager, agent.hello().floor_bytes, forks, now);
    managed.forks.publish(agent.entry());
    tell_taken(call)?;
    Ok(managed)
}

/// Pages of a run that are not present already are in the parent's slots.
fn take_over_run<K: AddressSpace>(pager: &mut Pager<K>, now: Nanos, run: SlotRun) {
    let mut offset = 0;
    while offset < run.len {
        let mappings = &pager.machine().mappings;
        let Some(page) = mappings.page(run.vpn + u64::from(offset)) else {
            // Left out of the copy (MADV_DONTFORK).
            offset += 1;
            continue;
        };
        // A run may go on in the next region, whose pages have other indices.
        let (_, in_region) = mappings.place(page).expect("a page of a region has a place");
        let most = in_region.min(run.len - offset);
        let untouched = |pager: &Pager<K>, ahead: u32| {
            let view = pager.core().page(PageIdx(page.0 + ahead));
            view.state == PageState::Untouched && view.flight == Flight::None
        };
        let len = u32::try_from((0..most).take_while(|&ahead| untouched(pager, ahead)).count()).expect("a run");
        if len > 0 {
            let device = DeviceId(u8::try_from(run.device).expect("few devices"));
            let slot = SlotIdx(run.slot + offset);
            let range = PageRange::new(page, len);
            pager.step(now, Event::Inherited { range, device, slot });
            for page in range.pages() {
                let state = pager.core().page(page).state;
                assert!(
                    state == PageState::Swapped,
                    "I5: inherited page {page:?} is {state:?}: its content would be lost"
                );
            }
        }
        offset += len.max(1);
    }
}
