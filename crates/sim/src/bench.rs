//! How fast the simulator is: accesses per second of wall time, bytes per page, and the same trace through an exact LRU.
//!
//! The only place of this crate that looks at a clock.

use std::rc::Rc;
use std::time::Instant;

use pagetide_trace::dense::DenseTrace;
use pagetide_trace::{Op, Record, RecordSource, TraceError};
use serde_json::{Value, json};

use crate::device::preset;
use crate::lru::ExactLru;
use crate::pattern::{Pattern, Walk};
use crate::replay::{Budget, ReplaySetup, replay};
use crate::rng::{XorShift64, Zipf};

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

fn speed(trace: &DenseTrace, misses: u64, ns: u64) -> Speed {
    let n = trace.records.len() as u64;
    let rate = u128::from(n) * 1_000_000_000 / u128::from(ns);
    Speed { accesses_per_s: u64::try_from(rate).unwrap_or(u64::MAX), misses_bp: misses * 10_000 / n.max(1), misses }
}

/// The core under `pages` of memory, readahead off, reclaim, write-back and device timing on.
pub fn core_speed(trace: &Rc<DenseTrace>, pages: u32) -> Speed {
    let setup = ReplaySetup {
        profile: "linux-6.18".to_owned(),
        settings: vec!["readahead=off".to_owned()],
        device: preset("nvme").expect("a preset").params.clone(),
        access_ns: 50,
        machine: false,
        seed: 1,
    };
    let (row, ns) = timed(|| replay(trace, Budget::Pages(pages), &setup).expect("a sound set-up"));
    let get = |name: &str| row.vmstat.iter().find(|(n, _)| *n == name).map_or(0, |(_, v)| *v);
    speed(trace, get("pgfault"), ns)
}

/// An exact LRU of `pages` pages.
pub fn lru_speed(trace: &DenseTrace, pages: u32) -> Speed {
    let (misses, ns) = timed(|| {
        let mut lru = ExactLru::new(trace.pages, pages);
        trace.records.iter().filter(|record| !lru.touch(record.page())).count() as u64
    });
    speed(trace, misses, ns)
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

impl Speed {
    /// For programs.
    pub fn json(&self) -> Value {
        json!({"accesses_per_s": self.accesses_per_s, "misses": self.misses, "misses_bp": self.misses_bp})
    }
}

/// The whole benchmark as one JSON object.
pub fn report(accesses: u64, pages: u32) -> Value {
    let mut rows = Vec::new();
    for exponent in [0.8, 1.0] {
        let trace = zipf_trace(BenchTrace { accesses, pages, exponent, write_percent: 25 });
        let fits = trace.pages + 1024;
        let tenth = memory_for_misses(&trace, 1_000);
        rows.push(json!({
            "exponent": exponent,
            "accesses": accesses,
            "pages": pages,
            "all_fits": core_speed(&trace, fits).json(),
            "tenth_misses_pages": tenth,
            "tenth_misses": core_speed(&trace, tenth).json(),
            "exact_lru": lru_speed(&trace, tenth).json(),
        }));
    }
    json!({ "speed": rows, "scaling": scaling() })
}

/// Cost of an access from 2^14 to 2^24 pages, same law, memory for a tenth of the pages.
fn scaling() -> Value {
    let row = |log2: u32| {
        let pages = 1u32 << log2;
        let spec = BenchTrace { accesses: 4_000_000, pages, exponent: 1.0, write_percent: 25 };
        let trace = zipf_trace(spec);
        json!({"pages_log2": log2, "all_fits": core_speed(&trace, trace.pages + 1024).json(),
               "tenth_of_pages": core_speed(&trace, pages / 10).json()})
    };
    Value::Array([14, 16, 18, 20, 22, 24].into_iter().map(row).collect())
}
