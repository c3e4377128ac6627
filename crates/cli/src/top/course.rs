//! The looks at one run, as far back as the screen shows them.

use std::collections::VecDeque;

use pagetide_core::absences::Waited;

use crate::backend::{DeviceView, ProcessView, Snapshot};
use crate::snapshot::{Rates, used_percent};

/// Looks that are remembered: the width of a wide screen.
const LOOKS_MAX: usize = 512;

/// Of the time between two looks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Span {
    pub(super) rates: Rates,
    /// Shares of the time that was waited, in hundredths of a percent: at least one thread, and while none did anything else.
    pub(super) some_bp: u64,
    pub(super) full_bp: u64,
}

/// One process between the last two looks.
#[derive(Clone, Debug)]
pub(super) struct ProcessSpan<'a> {
    pub(super) now: &'a ProcessView,
    pub(super) faults: u64,
    pub(super) major_faults: u64,
    pub(super) refaults: u64,
    pub(super) hit_percent: Option<u64>,
    pub(super) some_bp: u64,
    pub(super) full_bp: u64,
}

/// One way of a place between the last two looks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flow {
    pub(super) bytes_per_s: u64,
    /// A request took so long in the mean; None: there was none.
    pub(super) us: Option<u64>,
}

/// The looks.
#[derive(Debug, Default)]
pub(super) struct Course {
    before: Option<Snapshot>,
    last: Option<Snapshot>,
    spans: VecDeque<Span>,
}

impl Course {
    /// A look.
    pub(super) fn push(&mut self, snapshot: Snapshot) {
        self.before = self.last.take();
        self.last = Some(snapshot);
        if let (Some(before), Some(after)) = (&self.before, &self.last) {
            if self.spans.len() == LOOKS_MAX {
                self.spans.pop_front();
            }
            self.spans.push_back(span(before, after));
        }
    }

    /// The last look.
    pub(super) const fn last(&self) -> Option<&Snapshot> {
        self.last.as_ref()
    }

    /// What happened between the looks, the oldest first.
    pub(super) fn spans(&self) -> impl ExactSizeIterator<Item = &Span> {
        self.spans.iter()
    }

    fn ns(&self) -> u64 {
        let at = |snapshot: &Option<Snapshot>| snapshot.as_ref().map_or(0, |snapshot| snapshot.run.now_ns);
        if self.before.is_some() { at(&self.last).saturating_sub(at(&self.before)) } else { 0 }
    }

    /// The processes, the largest first.
    pub(super) fn processes(&self) -> Vec<ProcessSpan<'_>> {
        let ns = self.ns();
        let list = self.last.iter().flat_map(|last| &last.processes);
        list.map(|now| {
            let known = self.before.iter().flat_map(|before| &before.processes).find(|known| known.pid == now.pid);
            let first = known.unwrap_or(now);
            let unused = now.read_ahead_unused.saturating_sub(first.read_ahead_unused);
            let hits = now.read_ahead_hits.saturating_sub(first.read_ahead_hits);
            let ran = now.managed_us.saturating_sub(first.managed_us);
            let some_bp = share(ran, now.stall_some_us.saturating_sub(first.stall_some_us));
            ProcessSpan {
                now,
                faults: per_second(now.faults.saturating_sub(first.faults), ns),
                major_faults: per_second(now.major_faults.saturating_sub(first.major_faults), ns),
                refaults: per_second(now.refaults.saturating_sub(first.refaults), ns),
                hit_percent: used_percent(hits, unused),
                some_bp,
                full_bp: share(ran, now.stall_full_us.saturating_sub(first.stall_full_us)).min(some_bp),
            }
        })
        .collect()
    }

    /// The places to swap to: reads and writes.
    pub(super) fn places(&self) -> Vec<(&DeviceView, [Flow; 2])> {
        let ns = self.ns();
        let flow = |bytes: [u64; 2], requests: [u64; 2], took: [u64; 2]| {
            let grown = |pair: [u64; 2]| pair[1].saturating_sub(pair[0]);
            let count = grown(requests);
            Flow { bytes_per_s: per_second(grown(bytes), ns), us: (count > 0).then(|| grown(took) / count / 1000) }
        };
        let list = self.last.iter().flat_map(|last| &last.devices);
        list.map(|now| {
            let known = self.before.iter().flat_map(|before| &before.devices).find(|known| known.path == now.path);
            let first = known.unwrap_or(now);
            let reads = flow(
                [first.read_bytes, now.read_bytes],
                [first.read_requests, now.read_requests],
                [first.read_ns, now.read_ns],
            );
            let writes = flow(
                [first.write_bytes, now.write_bytes],
                [first.write_requests, now.write_requests],
                [first.write_ns, now.write_ns],
            );
            (now, [reads, writes])
        })
        .collect()
    }

    /// Of the faults between the last two looks, the time in which so many of a hundred were answered at most, in nanoseconds.
    pub(super) fn latency_ns(&self, percent: u64) -> Option<u64> {
        let before = |ns: u64| {
            let known = self.before.iter().flat_map(|before| &before.latency).find(|bucket| bucket.0 == ns);
            known.map_or(0, |bucket| bucket.1)
        };
        let list = self.last.iter().flat_map(|last| &last.latency);
        let grown: Vec<(u64, u64)> = list.map(|&(ns, faults)| (ns, faults.saturating_sub(before(ns)))).collect();
        let all = grown.iter().fold(0, |sum: u64, bucket| sum.saturating_add(bucket.1));
        let mut seen = 0_u64;
        grown.into_iter().find_map(|(ns, faults)| {
            seen = seen.saturating_add(faults);
            (all > 0 && u128::from(seen) * 100 >= u128::from(all) * u128::from(percent)).then_some(ns)
        })
    }
}

fn span(before: &Snapshot, after: &Snapshot) -> Span {
    let ns = after.run.now_ns.saturating_sub(before.run.now_ns);
    let grown = |name| after.counter(name).saturating_sub(before.counter(name));
    // Several processes at once: the mean of them.
    let ran = grown("pt_managed_us").max(ns / 1000);
    let some_bp = share(ran, grown("pt_stall_some_us"));
    // A sample, which is told at its end: it may be of the time before, too.
    let full_bp = share(ran, grown("pt_stall_full_us")).min(some_bp);
    Span { rates: Rates::between(Some(before), after, ns), some_bp, full_bp }
}

fn share(ran: u64, stalled: u64) -> u64 {
    Waited { ran, stalled, ..Waited::default() }.share_bp()
}

fn per_second(grown: u64, ns: u64) -> u64 {
    u64::try_from(u128::from(grown) * 1_000_000_000 / u128::from(ns.max(1))).unwrap_or(u64::MAX)
}
