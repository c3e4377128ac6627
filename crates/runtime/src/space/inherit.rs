//! What a forked child gets of each mapping: a copy, zeroes (MADV_WIPEONFORK), or nothing (MADV_DONTFORK).
//!
//! The kernel tells it at no other place than smaps, and of no change to it. It is read when the kernel has copied the address
//! space and the forking thread still waits.
//!
//! Invariant: exceptions are ascending and do not overlap.

use pagetide_core::page::{Flight, PageState};
use pagetide_core::types::PageRange;
use pagetide_sys::fd::Fd;
use pagetide_sys::smaps::{Flags, SmapsText};
use pagetide_sys::{Errno, file};

use crate::fork::newborn::Content;
use crate::pager::Pager;
use crate::space::PAGE_SHIFT;

/// What a child finds at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inherit {
    /// The same bytes.
    Copy,
    /// Zeroes.
    Zeroes,
    /// No mapping.
    Nothing,
}

/// The mappings that are not copied, by page number.
#[derive(Debug, Default)]
pub(crate) struct Exceptions {
    list: Vec<(u64, u64, Inherit)>,
}

impl Exceptions {
    /// Of this process, now.
    pub(crate) fn read() -> Result<Self, Errno> {
        let mut buffer = vec![0; 64 << 10];
        let mut exceptions = Self::default();
        let mut smaps = SmapsText::open(&mut buffer)?;
        while let Some(mapping) = smaps.next_mapping()? {
            let inherit = if mapping.flags.meets(Flags::DONT_COPY) {
                Inherit::Nothing
            } else if mapping.flags.meets(Flags::WIPE_ON_FORK) {
                Inherit::Zeroes
            } else {
                continue;
            };
            exceptions.push((mapping.start >> PAGE_SHIFT) as u64, (mapping.end >> PAGE_SHIFT) as u64, inherit);
        }
        Ok(exceptions)
    }

    fn push(&mut self, from: u64, to: u64, inherit: Inherit) {
        // The list may have changed between two pieces of its text: what was told first counts.
        let from = from.max(self.list.last().map_or(0, |&(_, end, _)| end));
        if from < to {
            self.list.push((from, to, inherit));
        }
    }

    /// What holds for `vpn`, and up to which page it does (at most `end`).
    pub(crate) fn at(&self, vpn: u64, end: u64) -> (Inherit, u64) {
        let after = self.list.partition_point(|&(_, to, _)| to <= vpn);
        match self.list.get(after) {
            Some(&(from, to, inherit)) if from <= vpn => (inherit, to.min(end)),
            Some(&(from, ..)) => (Inherit::Copy, from.min(end)),
            None => (Inherit::Copy, end),
        }
    }
}

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

/// A span, as a child receives it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpanRecord {
    pub(crate) vpn: u64,
    pub(crate) pages: u64,
}

/// What a child has to know: the managed ranges, those included that it does not get, and where their pages are.
pub(crate) fn snapshot(pager: &Pager, exceptions: &Exceptions) -> (Content, Vec<SpanRecord>) {
    let (mut content, mut spans) = (Content::default(), Vec::new());
    for span in pager.machine().spans.all() {
        let mut from = span.vpn;
        while from < span.end_vpn() {
            let (inherit, to) = exceptions.at(from, span.end_vpn());
            let first = u32::try_from(from - span.vpn).expect("inside the span");
            let range = span.range.part(first, u32::try_from(to - from).expect("inside the span"));
            spans.push(SpanRecord { vpn: from, pages: to - from });
            if inherit == Inherit::Copy {
                snapshot_of(pager, from, range, &mut content);
            }
            from = to;
        }
    }
    (content, spans)
}

/// The same for `pages`, from address `vpn` on, that the child is to see.
fn snapshot_of(pager: &Pager, vpn: u64, pages: PageRange, content: &mut Content) {
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
        let Some((device, slot)) = view.slot else { continue };
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_between_exceptions_are_copied() {
        let mut exceptions = Exceptions::default();
        exceptions.push(10, 20, Inherit::Zeroes);
        exceptions.push(20, 30, Inherit::Nothing);
        exceptions.push(25, 28, Inherit::Zeroes);
        assert_eq!(exceptions.at(0, 15), (Inherit::Copy, 10));
        assert_eq!(exceptions.at(10, 15), (Inherit::Zeroes, 15));
        assert_eq!(exceptions.at(19, 100), (Inherit::Zeroes, 20));
        assert_eq!(exceptions.at(26, 100), (Inherit::Nothing, 30));
        assert_eq!(exceptions.at(30, 100), (Inherit::Copy, 100));
    }
}
