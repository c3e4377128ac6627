//! How fast the simulator is: accesses per second of wall time, bytes per page, and the same trace through an exact LRU.
//!
//! The only place of this crate that looks at a clock.

use std::rc::Rc;
use std::time::Instant;

use pagetide_core::Counter;
use pagetide_core::types::Nanos;
pub use pagetide_trace::dense::DenseTrace;
use pagetide_trace::{Op, Record, RecordSource, TraceError};

use crate::device::preset;
use crate::lru::ExactLru;
use crate::pattern::{Pattern, Walk};
use crate::replay::{self, ReplaySetup, replay};
use crate::rng::{XorShift64, Zipf};
use crate::task::{Program, Task, WalkProgram};
use crate::world::{HostModel, RunEnd, World};

/// A trace to be measured.
#[derive(Clone, Copy, Debug)]
pub struct BenchTrace {
    /// Accesses.
    pub accesses: u64,
    /// Pages.
    pub pages: u32,
    /// Exponent of the zipf law.
    pub exponent: f64,
    /// Of 100 accesses, so many are stores.
    pub write_percent: u32,
}

/// A zipf stream as a record source.
struct ZipfSource {
    header: pagetide_trace::Header,
    walk: Walk,
    rng: XorShift64,
    left: u64,
    write_percent: u32,
}

impl RecordSource for ZipfSource {
    fn header(&self) -> &pagetide_trace::Header {
        &self.header
    }

    fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let page = u64::from(self.walk.step(&mut self.rng));
        let op = if self.rng.chance_bp(self.write_percent * 100) { Op::Write } else { Op::Read };
        Ok(Some(Record { page, task: 0, op }))
    }
}

/// Makes the trace: a zipf law over all pages, its ranks spread over the region.
pub fn zipf_trace(spec: BenchTrace) -> Rc<DenseTrace> {
    let mut source = ZipfSource {
        header: pagetide_trace::Header::default(),
        walk: Walk::new(Pattern::Zipf(Zipf::new(spec.pages, spec.exponent)), spec.pages),
        rng: XorShift64::stream(7, 1),
        left: spec.accesses.max(1),
        write_percent: spec.write_percent,
    };
    let trace = pagetide_trace::dense::load(&mut source, |_| {}).expect("a made trace has no faults");
    Rc::new(trace)
}

/// What one measurement found.
#[derive(Clone, Debug)]
pub struct Speed {
    /// Accesses measured.
    pub accesses: u64,
    /// Accesses per second of wall time.
    pub accesses_per_s: u64,
    /// Misses of 10,000 accesses.
    pub misses_bp: u64,
    /// Misses.
    pub misses: u64,
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures wall time")]
fn timed<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let begun = Instant::now();
    let result = work();
    (result, u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1))
}

fn speed(accesses: u64, misses: u64, ns: u64) -> Speed {
    let rate = u128::from(accesses) * 1_000_000_000 / u128::from(ns);
    let accesses_per_s = u64::try_from(rate).unwrap_or(u64::MAX);
    Speed { accesses, accesses_per_s, misses_bp: misses * 10_000 / accesses.max(1), misses }
}

/// The whole core with its device, readahead off.
fn setup() -> ReplaySetup {
    ReplaySetup {
        packed_bytes: 4096,
        profile: "linux-6.18".to_owned(),
        settings: vec!["readahead=off".to_owned()],
        device: preset("nvme").expect("a preset").params.clone(),
        access_ns: 50,
        host: HostModel::Exact,
        machine: false,
        seed: 1,
    }
}

/// The core under `pages` of memory, readahead off, reclaim, write-back and device timing on.
pub fn core_speed(trace: &Rc<DenseTrace>, pages: u32) -> Speed {
    let setup = setup();
    let (row, ns) = timed(|| replay(trace, pages, &setup).expect("a sound set-up"));
    let get = |name: &str| row.vmstat.iter().find(|(n, _)| *n == name).map_or(0, |(_, v)| *v);
    speed(trace.records.len() as u64, get("pgfault"), ns)
}

/// An exact LRU of `pages` pages.
pub fn lru_speed(trace: &DenseTrace, pages: u32) -> Speed {
    let (misses, ns) = timed(|| {
        let mut lru = ExactLru::new(trace.pages, pages);
        trace.records.iter().filter(|record| !lru.touch(record.page())).count() as u64
    });
    speed(trace.records.len() as u64, misses, ns)
}

/// A window of 1,024 pages that moves on by one page every ten accesses, over all pages and then from the start: the same
/// locality at every size, so that what grows with the size is our cost and not that of the host's caches.
pub fn sliding_trace(pages: u32, accesses: u32) -> Rc<DenseTrace> {
    let rng = XorShift64::stream(7, 2);
    let header = pagetide_trace::Header::default();
    let mut source = SlidingSource { header, rng, pages: pages.max(2048), at: 0, accesses: accesses.max(1) };
    Rc::new(pagetide_trace::dense::load(&mut source, |_| {}).expect("a made trace has no faults"))
}

/// The window, and the pages from one access to the next at which it moves on.
const WINDOW: u32 = 1024;
const ACCESSES_PER_PAGE: u32 = 10;

struct SlidingSource {
    header: pagetide_trace::Header,
    rng: XorShift64,
    pages: u32,
    at: u32,
    accesses: u32,
}

impl RecordSource for SlidingSource {
    fn header(&self) -> &pagetide_trace::Header {
        &self.header
    }

    fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        if self.at == self.accesses {
            return Ok(None);
        }
        let front = self.at / ACCESSES_PER_PAGE + WINDOW;
        let back = if self.at.is_multiple_of(ACCESSES_PER_PAGE) { 0 } else { 1 + self.rng.below(WINDOW - 1) };
        self.at += 1;
        let page = u64::from((front - back) % self.pages);
        let op = if self.rng.chance_bp(2_500) { Op::Write } else { Op::Read };
        Ok(Some(Record { page, task: 0, op }))
    }
}

/// A world of so many pages, all of which were written once, in `memory` pages.
pub fn filled_world(pages: u32, memory: u32) -> World {
    let mut world = replay::world_of(pages, memory, &setup()).expect("a sound set-up");
    let region = world.add_region(pages);
    let program = Program::Walk(WalkProgram {
        region,
        owned: true,
        walk: Walk::new(Pattern::Sequential, pages),
        write_percent: 100,
        filled: 0,
        left: Some(0),
        rng: XorShift64::stream(7, 3),
    });
    world.spawn(Task::new(program, 0, 50), 0);
    assert_eq!(world.run(Nanos::MAX), RunEnd::Finished, "a filling needs nothing but memory and swap");
    world
}

/// A trace over the first region of a world in which all its pages were written before.
pub fn warm_speed(world: &mut World, trace: &Rc<DenseTrace>) -> Speed {
    let faults = world.core.vmstat().get(Counter::pgfault);
    let program = Program::Trace { trace: Rc::clone(trace), next: 0 };
    let now = world.now();
    world.spawn(Task::new(program, 0, 50), now);
    let (end, ns) = timed(|| world.run(Nanos::MAX));
    assert_eq!(end, RunEnd::Finished, "a replay needs nothing but memory and swap");
    speed(trace.records.len() as u64, world.core.vmstat().get(Counter::pgfault) - faults, ns)
}

/// Cost of an access, in 1/100 ns, over 2^`pages_log2` pages: all in memory, and with every tenth access a miss.
pub fn scaling(pages_log2: u32, accesses: u32) -> (u64, u64) {
    let pages = 1u32 << pages_log2.clamp(12, 26);
    let trace = sliding_trace(pages, accesses);
    let cost = |memory: u32| {
        let mut world = filled_world(pages, memory);
        let speed = warm_speed(&mut world, &trace);
        100_000_000_000 / speed.accesses_per_s.max(1)
    };
    (cost(pages + 1024), cost(pages / 2))
}

/// Memory at which the trace misses `bp` of 10,000 accesses under an exact LRU.
pub fn memory_for_misses(trace: &DenseTrace, bp: u64) -> u32 {
    let (mut low, mut high) = (64, trace.touched_pages.max(65));
    while high - low > trace.touched_pages / 200 + 1 {
        let middle = low.midpoint(high);
        if lru_speed(trace, middle).misses_bp > bp { low = middle } else { high = middle }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tenth_access_of_a_sliding_window_is_a_miss_in_half_the_memory() {
        let trace = sliding_trace(16_384, 200_000);
        let mut all = filled_world(16_384, 16_384 + 1024);
        assert_eq!(warm_speed(&mut all, &trace).misses, 0);
        let mut half = filled_world(16_384, 8_192);
        let bp = warm_speed(&mut half, &trace).misses_bp;
        assert!((900..=1_400).contains(&bp), "{bp} of 10,000 accesses miss");
    }

    #[test]
    fn the_memory_for_a_tenth_of_misses_is_found() {
        let spec = BenchTrace { accesses: 60_000, pages: 4_096, exponent: 0.8, write_percent: 25 };
        let trace = zipf_trace(spec);
        let pages = memory_for_misses(&trace, 1_500);
        let bp = lru_speed(&trace, pages).misses_bp;
        assert!((1_400..=1_500).contains(&bp), "{bp}");
    }
}
