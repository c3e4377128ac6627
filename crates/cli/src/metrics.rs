//! `--metrics`: what a run has counted and how it stands, as OpenMetrics text.
//!
//! The text is also what the collector of text files of node_exporter takes (Prometheus' older form): only the types that both know
//! are used. Every counter is explained by the table that docs/counters.md is made of. Invariant: one family, one name, all its
//! samples together.

mod sink;

use std::fmt::{Display, Write as _};

use pagetide::MACHINE_COUNTERS;
use pagetide_core::vmstat::COUNTERS;

pub(crate) use sink::{Sink, Target, parse_target};

use crate::backend::{Progress, Snapshot};
use crate::snapshot::state;

/// The text for a run as it stands.
pub(crate) fn text(progress: &Progress) -> String {
    let Progress { report, snapshot, spans: _ } = progress;
    let run = &snapshot.run;
    let name = if run.name.is_empty() { run.pid.to_string() } else { run.name.clone() };
    let mut out = Exposition::new(&name);
    out.gauge("running", "", "1 while the program runs, 0 when it has ended.", u8::from(report.exit_status.is_none()));
    out.gauge("start_time_seconds", "seconds", "When the run began, since 1970.", Seconds(run.started_unix_ns));
    out.gauge("processes", "", "Processes that live.", run.processes);
    out.gauge("managed_processes", "", "Processes whose memory is managed.", run.managed_processes);
    for (name, help, bytes) in [
        ("memory_budget_bytes", "What the processes may keep resident.", run.budget_bytes),
        ("resident_bytes", "What the processes keep resident, our frames and tables included.", run.resident_bytes),
        ("peak_resident_bytes", "The most that was resident.", report.peak_resident_bytes),
        ("swapped_bytes", "What the processes have in swap space and not in memory as well.", run.swapped_bytes),
        ("peak_overhead_bytes", "Our frames that held nothing and our tables, at most.", report.peak_overhead_bytes),
        ("peak_metadata_bytes", "Our tables, at most.", report.peak_metadata_bytes),
        ("peak_managed_bytes", "Memory under management, at most.", report.peak_managed_bytes),
    ] {
        out.gauge(name, "bytes", help, bytes);
    }
    out.family("peak_unpaged_bytes", "gauge", "bytes", "Memory that is not paged, by reason, at most (docs/run.md).");
    for (reason, bytes) in &report.peak_unpaged_bytes {
        out.sample("", &[("reason", reason)], bytes);
    }
    let explained = COUNTERS.iter().map(|&(_, name, help)| (name, help)).chain(MACHINE_COUNTERS);
    for (name, help) in explained {
        out.vmstat(name, help.trim(), snapshot.counter(name));
    }
    out.latency(snapshot);
    out.processes(snapshot);
    out.places(snapshot);
    out.end()
}

/// Nanoseconds, written as seconds.
struct Seconds(u64);

impl Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:09}", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}

/// Text that grows by families and their samples.
struct Exposition {
    text: String,
    /// Which run, as a label.
    run: String,
    family: String,
}

impl Exposition {
    fn new(run: &str) -> Self {
        Self { text: String::with_capacity(32 << 10), run: format!("run=\"{}\"", Escaped(run)), family: String::new() }
    }

    /// A family begins. `unit`: what its name ends in, or nothing.
    fn family(&mut self, name: &str, kind: &str, unit: &str, help: &str) {
        self.family = format!("pagetide_{name}");
        // Writing to a String does not fail, here and below.
        let _ = writeln!(self.text, "# TYPE {} {kind}", self.family);
        if !unit.is_empty() {
            let _ = writeln!(self.text, "# UNIT {} {unit}", self.family);
        }
        let _ = writeln!(self.text, "# HELP {} {}", self.family, Escaped(help));
    }

    fn sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        let _ = write!(self.text, "{}{suffix}{{{}", self.family, self.run);
        for (label, of) in labels {
            let _ = write!(self.text, ",{label}=\"{}\"", Escaped(of));
        }
        let _ = writeln!(self.text, "}} {value}");
    }

    fn gauge(&mut self, name: &str, unit: &str, help: &str, value: impl Display) {
        self.family(name, "gauge", unit, help);
        self.sample("", &[], value);
    }

    /// A counter of the table; those that say how much there was at most may not be added up, and are gauges.
    fn vmstat(&mut self, name: &str, help: &str, value: u64) {
        let is_peak = name.ends_with("_max");
        self.family(&format!("vmstat_{name}"), if is_peak { "gauge" } else { "counter" }, "", help);
        self.sample(if is_peak { "" } else { "_total" }, &[], value);
    }

    /// Without a sum, which nobody keeps, the form wants no count: the last bucket is one.
    fn latency(&mut self, snapshot: &Snapshot) {
        let help = "Time from reading a fault to mapping its page.";
        self.family("fault_latency_seconds", "histogram", "seconds", help);
        let mut faults = 0_u64;
        for &(ns, of_bucket) in &snapshot.latency {
            faults = faults.saturating_add(of_bucket);
            self.sample("_bucket", &[("le", &Seconds(ns).to_string())], faults);
        }
        self.sample("_bucket", &[("le", "+Inf")], faults);
    }

    /// The largest processes.
    fn processes(&mut self, snapshot: &Snapshot) {
        self.family(
            "process_resident_bytes",
            "gauge",
            "bytes",
            "What a process keeps resident (the largest processes).",
        );
        for process in &snapshot.processes {
            let labels = [("pid", process.pid.to_string()), ("command", process.command.clone())];
            self.sample("", &labels.each_ref().map(|(label, of)| (*label, of.as_str())), process.resident_bytes);
        }
        self.family(
            "process_swapped_bytes",
            "gauge",
            "bytes",
            "What a process has in swap space and not in memory as well.",
        );
        for process in &snapshot.processes {
            self.sample("", &[("pid", &process.pid.to_string())], process.swapped_bytes);
        }
        self.family("process_major_faults", "counter", "", "Faults of a process for which a page was read.");
        for process in &snapshot.processes {
            self.sample("_total", &[("pid", &process.pid.to_string())], process.major_faults);
        }
    }

    fn places(&mut self, snapshot: &Snapshot) {
        let places = || snapshot.devices.iter().enumerate().map(|(number, place)| (number.to_string(), place));
        self.family("swap_place_used_bytes", "gauge", "bytes", "What of a place to swap to holds something.");
        for (number, place) in places() {
            self.sample("", &[("place", &number), ("path", &place.path)], place.used_bytes);
        }
        self.family(
            "swap_place_size_bytes",
            "gauge",
            "bytes",
            "What the processes that use it may take there together at most.",
        );
        for (number, place) in places() {
            self.sample("", &[("place", &number), ("path", &place.path)], place.size_bytes);
        }
        self.family("swap_place_lost_bytes", "gauge", "bytes", "What could not be read back.");
        for (number, place) in places() {
            self.sample("", &[("place", &number), ("path", &place.path)], place.lost_bytes);
        }
        self.family("swap_place_state", "gauge", "", "1: open, full, draining, failed or given up.");
        for (number, place) in places() {
            self.sample("", &[("place", &number), ("state", state(place))], 1);
        }
    }

    fn end(mut self) -> String {
        self.text.push_str("# EOF\n");
        self.text
    }
}

/// A text as a label's value or an explanation may hold it.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for sign in self.0.chars() {
            match sign {
                '\\' => f.write_str("\\\\")?,
                '"' => f.write_str("\\\"")?,
                '\n' => f.write_str("\\n")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::RunView;

    fn progress(name: &str) -> Progress {
        let run = RunView { pid: 7, name: name.to_owned(), budget_bytes: 1 << 30, ..RunView::default() };
        let latency = vec![(1_023, 3), (2_047, 4)];
        Progress {
            report: crate::stats::tests::report(),
            snapshot: Snapshot { run, latency, ..Snapshot::default() },
            spans: Vec::new(),
        }
    }

    #[test]
    fn every_counter_is_explained_and_the_end_is_marked() {
        let text = text(&progress("job"));
        for (_, name, help) in COUNTERS {
            assert!(text.contains(&format!("# HELP pagetide_vmstat_{name} {}\n", Escaped(help.trim()))), "{name}");
        }
        assert!(text.contains("pagetide_memory_budget_bytes{run=\"job\"} 1073741824\n"), "{text}");
        assert!(text.contains("pagetide_vmstat_pt_zswap_pool_pages_max{run=\"job\"} 0\n"), "a peak is no counter");
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn buckets_hold_what_lies_below_them_and_names_are_escaped() {
        let text = text(&progress("a\"b\\\n"));
        let run = "run=\"a\\\"b\\\\\\n\"";
        assert!(text.contains(&format!("_bucket{{{run},le=\"0.000001023\"}} 3\n")), "{text}");
        assert!(text.contains(&format!("_bucket{{{run},le=\"+Inf\"}} 7\n")), "{text}");
    }
}
