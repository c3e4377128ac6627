//! The child's side of a fork: what the parent's agent hands over becomes the child's own.

use pagetide_core::event::Event;
use pagetide_core::page::{Flight, PageState};
use pagetide_core::types::{DeviceId, Nanos, PageIdx, PageRange, SlotIdx};
use pagetide_sys::fd::Fd;
use pagetide_sys::socket::{self, Received};
use pagetide_sys::uffd::Uffd;
use pagetide_sys::{Errno, clock};

use super::snapshot::{RegionRecord, SlotRun, read_records};
use super::{Forks, publish};
use crate::agent::{Agent, Managed};
use crate::pager::Pager;
use crate::protocol::{DEVICE_FDS, HANDOVER_FDS, Handover, PACKET_BYTES, PACKET_FDS, TAKEN};
use crate::setup;
use crate::store::Store;

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
pub(crate) fn take_over(agent: &mut Agent, call: &Fd) -> Result<Managed, setup::SetupError> {
    let step = |name, errno| setup::SetupError::Step(name, errno);
    let is_signal_mode = agent.hello().signal_mode;
    let (handover, fds) = receive_handover(call, HANDOVER_FDS - usize::from(is_signal_mode))
        .map_err(|errno| step("the handover", errno))?;
    let broken = || step("the handover", Errno::EPROTO);
    let mut fds = fds.into_iter();
    let mut next = || fds.next().ok_or_else(broken);
    // In signal mode the kernel has registered nothing of the copy: this does, before anybody touches it.
    let uffd = if is_signal_mode { setup::open_user_uffd(agent)? } else { Uffd::from_fd(next()?) };
    let snapshot = next()?;
    let mut stores = Vec::new();
    for what in &handover.devices {
        let store = Store::inherit(next()?, next()?, next()?, what);
        let store = store.map_err(|errno| step("the parent's swap file", errno))?;
        stores.push((DeviceId(what.device), store));
    }
    clock::init();
    let now = clock::now();
    let regions =
        read_records::<RegionRecord>(&snapshot, 0, handover.regions).map_err(|errno| step("the snapshot", errno))?;
    let holes = agent.fill_holes(&regions);
    let mut pager = setup::pager(agent, Some((uffd, handover.seed)), stores)?;
    drop(holes);
    agent.exclude_initial(&mut pager);
    let runs = read_records::<SlotRun>(&snapshot, size_of_val(regions.as_slice()), handover.runs)
        .map_err(|errno| step("the snapshot", errno))?;
    agent.take_over_regions(&mut pager, now, &regions);
    for run in &runs {
        take_over_run(&mut pager, now, *run);
    }
    let mut managed = Managed::new(pager, agent.hello().floor_bytes, Forks::new(), now);
    publish(agent, &mut managed);
    socket::send(call, TAKEN, &[], true).map_err(|errno| step("the handover", errno))?;
    Ok(managed)
}

/// Pages of a run that are not present already are in the parent's slots.
fn take_over_run(pager: &mut Pager, now: Nanos, run: SlotRun) {
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
        let untouched = |pager: &Pager, ahead: u32| {
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
