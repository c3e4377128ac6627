//! `--stats FILE`: one JSON object, written every second and when the program has ended. The file is complete or not there.

use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::backend::{LatencySummary, RunReport};
use crate::failure::Failure;
use crate::whole_file::{self, WholeFile};

/// The object as it is written. Counters keep the order of the counter table.
#[derive(serde::Serialize)]
struct Document<'a> {
    /// Null while the program runs.
    exit_status: Option<i32>,
    processes: u32,
    managed_processes: u32,
    settings: Settings<'a>,
    memory_budget_bytes: u64,
    peak_resident_bytes: u64,
    peak_overhead_bytes: u64,
    peak_metadata_bytes: u64,
    peak_managed_bytes: u64,
    peak_unpaged_bytes: Counters<'a>,
    vmstat: Counters<'a>,
    fault_latency_ns: Latency,
    elapsed_ns: u64,
    returns_after_pages: Vec<(u64, u64)>,
    reads_left_bp_with_more_bytes: Vec<(u64, u64)>,
}

struct Counters<'a>(&'a [(&'static str, u64)]);

impl Serialize for Counters<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

/// What was set on the command line.
struct Settings<'a>(&'a [(String, String)]);

impl Serialize for Settings<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

#[derive(serde::Serialize)]
struct Latency {
    count: u64,
    p50: u64,
    p90: u64,
    p99: u64,
    max: u64,
}

/// What more memory would have made of the reads, each memory once.
fn prospects(report: &RunReport) -> Vec<(u64, u64)> {
    let mut all: Vec<(u64, u64)> = Vec::new();
    for prospect in report.absences.prospects() {
        let bytes = prospect.extra_pages.saturating_mul(4096);
        all.pop_if(|last| last.0 == bytes);
        all.push((bytes, prospect.left_bp));
    }
    all
}

/// The text of the file.
pub(crate) fn to_json(report: &RunReport, settings: &[(String, String)]) -> String {
    let LatencySummary { count, p50, p90, p99, max } = report.fault_latency_ns;
    let document = Document {
        exit_status: report.exit_status,
        processes: report.processes,
        managed_processes: report.managed_processes,
        settings: Settings(settings),
        memory_budget_bytes: report.memory_budget_bytes,
        peak_resident_bytes: report.peak_resident_bytes,
        peak_overhead_bytes: report.peak_overhead_bytes,
        peak_metadata_bytes: report.peak_metadata_bytes,
        peak_managed_bytes: report.peak_managed_bytes,
        peak_unpaged_bytes: Counters(&report.peak_unpaged_bytes),
        vmstat: Counters(&report.vmstat),
        fault_latency_ns: Latency { count, p50, p90, p99, max },
        elapsed_ns: report.elapsed_ns,
        returns_after_pages: report.absences.buckets().collect(),
        reads_left_bp_with_more_bytes: prospects(report),
    };
    let mut text = serde_json::to_string_pretty(&document).expect("numbers and names are always JSON");
    text.push('\n');
    text
}

/// Writes the file in one step.
pub(crate) fn write(file: &WholeFile, report: &RunReport, settings: &[(String, String)]) -> Result<(), Failure> {
    file.put(&to_json(report, settings)).map_err(|error| whole_file::failed("--stats", file.path(), &error))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Some report.
    pub(crate) fn report() -> RunReport {
        RunReport {
            exit_status: Some(143),
            memory_budget_bytes: 1 << 30,
            peak_resident_bytes: 1_000,
            peak_overhead_bytes: 10,
            peak_metadata_bytes: 5,
            peak_managed_bytes: 900,
            peak_unpaged_bytes: vec![("stack", 5), ("small", 6)],
            processes: 2,
            managed_processes: 1,
            vmstat: vec![("pgmajfault", 7), ("pgfault", 9)],
            fault_latency_ns: LatencySummary { count: 9, p50: 1, p90: 2, p99: 3, max: 4 },
            elapsed_ns: 5,
            absences: pagetide_core::absences::Absences::new(),
        }
    }

    fn settings() -> Vec<(String, String)> {
        vec![("profile".to_owned(), "linux-6.18".to_owned())]
    }

    #[test]
    fn the_document_has_the_promised_keys() {
        let value: serde_json::Value = serde_json::from_str(&to_json(&report(), &settings())).expect("own output");
        assert_eq!(value["memory_budget_bytes"], 1 << 30);
        assert_eq!(value["exit_status"], 143);
        assert_eq!(value["settings"]["profile"], "linux-6.18");
        assert_eq!(value["peak_unpaged_bytes"]["small"], 6);
        assert_eq!(value["vmstat"]["pgmajfault"], 7);
        assert_eq!(value["fault_latency_ns"]["p99"], 3);
    }

    #[test]
    fn every_reason_of_the_file_is_explained() {
        let text = include_str!("../../../docs/run.md");
        for (reason, what) in pagetide::UNPAGED {
            assert!(text.contains(&format!("`{reason}`")), "docs/run.md does not say what {reason} is: {what}");
        }
    }

    #[test]
    fn counters_keep_the_order_of_the_table() {
        let text = to_json(&report(), &settings());
        assert!(text.find("pgmajfault") < text.find("\"pgfault"), "{text}");
    }
}
