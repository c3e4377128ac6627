//! One process's address space: its mappings and what is done to ranges of them.
//!
//! Invariants: mappings are ascending and do not overlap; an entry lies in a mapping.

use std::collections::BTreeMap;

use pagetide_sys::fd::Fd;

use super::calls::{Change, EventNote};
use super::gate::Passers;
use super::memory::{Entry, ForkPolicy, Kind, Mapping};
use super::{Monitor, Pid, World};

/// A process.
#[derive(Debug, Default)]
pub(super) struct Process {
    pub(super) mappings: Vec<Mapping>,
    pub(super) entries: BTreeMap<u64, Entry>,
    pub(super) monitor: Monitor,
    pub(super) gate: Passers,
    /// No page of it becomes a huge one.
    pub(super) has_no_huge: bool,
    /// Each closes when the process ends.
    pub(super) ends: Vec<Fd>,
}

impl Process {
    /// The mapping that covers this page.
    pub(super) fn at(&self, vpn: u64) -> Option<&Mapping> {
        self.at_or_after(vpn).filter(|mapping| mapping.start <= vpn)
    }

    pub(super) fn at_or_after(&self, vpn: u64) -> Option<&Mapping> {
        self.mappings.get(self.mappings.partition_point(|mapping| mapping.end <= vpn))
    }

    /// The mappings that overlap `[vpn, end)`.
    pub(super) fn within(&self, vpn: u64, end: u64) -> impl Iterator<Item = &Mapping> {
        self.mappings.iter().filter(move |mapping| mapping.start < end && vpn < mapping.end)
    }

    /// True if every page of `[vpn, end)` is mapped.
    pub(super) fn covers(&self, vpn: u64, end: u64) -> bool {
        self.within(vpn, end).map(|mapping| mapping.end.min(end) - mapping.start.max(vpn)).sum::<u64>() == end - vpn
    }

    pub(super) fn insert(&mut self, mapping: Mapping) {
        let index = self.mappings.partition_point(|other| other.start < mapping.start);
        self.mappings.insert(index, mapping);
        self.join();
    }

    fn split(&mut self, vpn: u64) {
        let Some(index) = self.mappings.iter().position(|mapping| mapping.start < vpn && vpn < mapping.end) else {
            return;
        };
        let upper = Mapping { start: vpn, ..self.mappings[index] };
        self.mappings[index].end = vpn;
        self.mappings.insert(index + 1, upper);
    }

    fn join(&mut self) {
        self.mappings.dedup_by(|next, mapping| {
            let joins = mapping.joins(next);
            if joins {
                mapping.end = next.end;
            }
            joins
        });
    }

    /// Change what is mapped in `[vpn, end)`.
    pub(super) fn change(&mut self, vpn: u64, end: u64, mut how: impl FnMut(&mut Mapping)) {
        self.split(vpn);
        self.split(end);
        self.mappings.iter_mut().filter(|mapping| vpn <= mapping.start && mapping.end <= end).for_each(&mut how);
        self.join();
    }

    /// Take the mappings of `[vpn, end)` out; their entries stay.
    pub(super) fn cut(&mut self, vpn: u64, end: u64) -> Vec<Mapping> {
        self.split(vpn);
        self.split(end);
        let (gone, kept) =
            std::mem::take(&mut self.mappings).into_iter().partition(|m: &Mapping| vpn <= m.start && m.end <= end);
        self.mappings = kept;
        gone
    }
}

impl World {
    /// A new mapping at a free place.
    pub fn map(&mut self, pid: Pid, mapping: Mapping) {
        let process = self.process_mut(pid);
        assert!(process.within(mapping.start, mapping.end).next().is_none(), "the place is free");
        process.insert(mapping);
    }

    /// The mappings of a process, ascending.
    pub fn mappings(&self, pid: Pid) -> &[Mapping] {
        &self.process(pid).mappings
    }

    /// Pages with memory of their own in `[vpn, end)`.
    pub fn resident(&self, pid: Pid, vpn: u64, end: u64) -> u64 {
        let entries = self.process(pid).entries.range(vpn..end);
        entries.filter(|(_, entry)| matches!(entry, Entry::Page { .. })).count() as u64
    }

    /// Nobody answers the process's faults any more: nothing of it is registered, and who waits goes on.
    pub(super) fn close_faults(&mut self, pid: Pid) {
        let Some(process) = self.processes.get_mut(&pid).filter(|process| !process.monitor.is_own) else { return };
        process.change(0, u64::MAX, |mapping| mapping.registered = false);
        // Who has more to tell is not heard any more.
        let untold =
            self.threads.values_mut().filter(|thread| thread.pid == pid).map(|thread| thread.untold.drain(..).count());
        process.monitor.changing -= untold.map(|count| u32::try_from(count).expect("few changes")).sum::<u32>();
        let events = std::mem::take(&mut process.monitor.events);
        for EventNote { thread, change } in events {
            self.was_read(thread);
            if let Change::Fork(child) = change {
                self.close_faults(child);
            }
        }
        self.wake_faults(pid, 0, u64::MAX);
    }

    /// The entries of `[vpn, end)` are no more.
    pub(super) fn zap(&mut self, pid: Pid, vpn: u64, end: u64) {
        let entries = &mut self.process_mut(pid).entries;
        let gone: Vec<u64> = entries.range(vpn..end).map(|(&vpn, _)| vpn).collect();
        let gone: Vec<Entry> = gone.iter().filter_map(|vpn| entries.remove(vpn)).collect();
        for entry in gone {
            self.release(entry);
        }
    }

    /// A copy of the address space, as fork makes it.
    pub(super) fn copy_space(&mut self, parent: Pid) -> Pid {
        let child = self.new_process();
        let from = self.process_mut(parent);
        let mut copy = Process { has_no_huge: from.has_no_huge, ..Process::default() };
        copy.mappings = from.mappings.iter().filter(|m| m.fork != ForkPolicy::Dont).copied().collect();
        let mut shared = Vec::new();
        let Process { mappings, entries, .. } = from;
        for mapping in mappings.iter().filter(|m| m.fork == ForkPolicy::Copy) {
            for (&vpn, entry) in entries.range_mut(mapping.start..mapping.end) {
                if let Entry::Page { page, exclusive } = entry {
                    *exclusive &= mapping.kind == Kind::Shared;
                    shared.push((vpn, *page));
                }
                copy.entries.insert(vpn, *entry);
            }
        }
        for (vpn, page) in shared {
            if self.is_pinned(page) {
                // What a device may write stays the parent's alone.
                let value = self.page(page).value;
                let own = self.new_page(value);
                copy.entries.insert(vpn, own);
                self.process_mut(parent).entries.insert(vpn, Entry::Page { page, exclusive: true });
            } else {
                self.page_mut(page).mapped += 1;
            }
        }
        self.processes.insert(child, copy);
        child
    }
}
