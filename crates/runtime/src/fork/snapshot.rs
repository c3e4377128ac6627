//! What a forked child is told: the regions of its parent, and where each of their pages is.
//!
//! What the child gets of a mapping (a copy, zeroes, nothing) was looked up when the kernel had copied the address space and the
//! forking thread still waited.

use pagetide_core::page::{Flight, PageState};
use pagetide_core::types::PageRange;
use pagetide_kernel::AddressSpace;
use pagetide_sys::fd::Fd;
use pagetide_sys::{Errno, file};

use super::newborn::Content;
use crate::pager::Pager;
use crate::space::ForkPolicy;

/// A run of pages in neighbouring slots, as a child receives it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotRun {
    pub(crate) vpn: u64,
    pub(crate) len: u32,
    pub(crate) device: u32,
    pub(crate) slot: u32,
    pub(crate) _pad: u32,
}

/// A region, as a child receives it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionRecord {
    pub(crate) vpn: u64,
    pub(crate) pages: u64,
}

/// What a child has to know: the managed ranges, those included that it does not get, and where their pages are.
pub(crate) fn snapshot<K: AddressSpace>(pager: &Pager<K>) -> (Content, Vec<RegionRecord>) {
    let (mut content, mut records) = (Content::default(), Vec::new());
    let mappings = &pager.machine().mappings;
    for region in mappings.regions() {
        let mut from = region.vpn;
        while from < region.end_vpn() {
            let (policy, to) = mappings.fork_policy(from, region.end_vpn());
            let first = u32::try_from(from - region.vpn).expect("inside the region");
            let range = region.range.part(first, u32::try_from(to - from).expect("inside the region"));
            records.push(RegionRecord { vpn: from, pages: to - from });
            if policy == ForkPolicy::Copy {
                snapshot_of(pager, from, range, &mut content);
            }
            from = to;
        }
    }
    (content, records)
}

/// The same for `pages`, from address `vpn` on, that the child is to see.
fn snapshot_of<K: AddressSpace>(pager: &Pager<K>, vpn: u64, pages: PageRange, content: &mut Content) {
    let machine = pager.machine();
    for (vpn, page) in (vpn..).zip(pages.pages()) {
        let view = pager.core().page(page);
        if view.discarded {
            continue;
        }
        if view.flight != Flight::Reading
            && let Some(frame) = machine.resident_frame(page)
        {
            content.frames.push((vpn, frame));
            continue;
        }
        if view.state == PageState::Mapped && view.flight != Flight::Reading {
            continue;
        }
        let Some((device, slot)) = view.slot else {
            if view.state == PageState::Poisoned {
                content.lost.push(vpn);
            }
            continue;
        };
        match content.runs.last_mut() {
            Some(run)
                if run.vpn + u64::from(run.len) == vpn
                    && run.device == u32::from(device.0)
                    && run.slot + run.len == slot.0 =>
            {
                run.len += 1;
            }
            _ => content.runs.push(SlotRun { vpn, len: 1, device: u32::from(device.0), slot: slot.0, _pad: 0 }),
        }
    }
}

/// `count` records from `offset` of a file on.
pub(crate) fn read_records<T: Copy>(from: &Fd, offset: usize, count: usize) -> Result<Vec<T>, Errno> {
    let bytes = count * size_of::<T>();
    let mut records: Vec<T> = Vec::with_capacity(count);
    // SAFETY: the capacity is reserved, and reading into it as bytes forms no value yet.
    let buffer = unsafe { std::slice::from_raw_parts_mut(records.as_mut_ptr().cast::<u8>(), bytes) };
    let mut done = 0;
    while done < bytes {
        match file::pread(from, &mut buffer[done..], (offset + done) as u64)? {
            0 => return Err(Errno::EPROTO),
            read => done += read,
        }
    }
    // SAFETY: all bytes were read, and any bytes are values of a record of integers.
    unsafe { records.set_len(count) };
    Ok(records)
}
