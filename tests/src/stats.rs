//! The object that `pagetide run --stats` writes, and the laws that its counters obey.

use std::path::Path;

use serde_json::Value;

/// One run's statistics.
#[derive(Clone, Debug)]
pub struct Stats {
    object: Value,
}

impl Stats {
    /// Reads the file; panics with its text if it is no such object.
    pub fn read(path: &Path) -> Self {
        let text =
            std::fs::read_to_string(path).unwrap_or_else(|error| panic!("statistics {}: {error}", path.display()));
        let object = serde_json::from_str(&text).unwrap_or_else(|error| panic!("statistics: {error} in {text}"));
        Self { object }
    }

    /// A number at the top of the object.
    pub fn number(&self, key: &str) -> u64 {
        self.object[key].as_u64().unwrap_or_else(|| panic!("no number '{key}' in {}", self.object))
    }

    /// A counter under its kernel name.
    pub fn counter(&self, name: &str) -> u64 {
        self.object["vmstat"][name].as_u64().unwrap_or_else(|| panic!("no counter '{name}' in {}", self.object))
    }

    /// A counter that this version may lack.
    pub fn counter_if_any(&self, name: &str) -> u64 {
        self.object["vmstat"][name].as_u64().unwrap_or(0)
    }

    /// Bytes that were not paged for this reason, at most.
    pub fn unpaged(&self, reason: &str) -> u64 {
        self.object["peak_unpaged_bytes"][reason]
            .as_u64()
            .unwrap_or_else(|| panic!("no reason '{reason}' in {}", self.object))
    }

    /// A percentile of the fault latency; `None` if no fault was answered.
    pub fn fault_latency_ns(&self, percentile: &str) -> Option<u64> {
        self.object["fault_latency_ns"][percentile].as_u64()
    }

    /// The whole object.
    pub fn text(&self) -> String {
        self.object.to_string()
    }

    /// Panics unless the counters' laws hold.
    pub fn expect_laws(&self) -> &Self {
        let counter = |name| self.counter(name);
        let law = |holds: bool, text: &str| assert!(holds, "law broken: {text}\n{}", self.text());
        let known = counter("swap_ra_hit") + counter("pt_ra_unused");
        law(known <= counter("swap_ra"), "swap_ra_hit + pt_ra_unused <= swap_ra");
        law(counter("pgsteal_anon") <= counter("pgscan_anon"), "pgsteal_anon <= pgscan_anon");
        law(counter("pgmajfault") <= counter("pgfault"), "pgmajfault <= pgfault");
        law(counter("swap_ra") <= counter("pswpin") + counter("zswpin"), "swap_ra <= pswpin + zswpin");
        self
    }

    /// Panics unless the peak keeps to the budget (2 % and 8 MiB over, our own memory included).
    pub fn expect_peak(&self) -> &Self {
        let (peak, budget) = (self.number("peak_resident_bytes"), self.number("memory_budget_bytes"));
        let allowed = budget + budget / 50 + 8 * crate::MIB;
        assert!(peak <= allowed, "a peak of {peak} bytes exceeds the budget + 2 % + 8 MiB\n{}", self.text());
        self
    }

    /// Panics unless at least `pages` pages went out and some came back: a run that never paged proves nothing.
    pub fn expect_paging(&self, pages: u64) -> &Self {
        let both = |disk, compressed| self.counter(disk) + self.counter(compressed);
        let (out, back) = (both("pswpout", "zswpout"), both("pswpin", "zswpin"));
        assert!(out >= pages && back > 0, "only {out} pages went out and {back} came back\n{}", self.text());
        self
    }
}
