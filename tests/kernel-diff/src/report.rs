//! What is printed: the values of a row, and the distribution of all errors.

use serde_json::json;

use crate::rows::Row;
use crate::{COUNTERS, Compared, WANTED_BP, out};

/// The values of one row.
pub(crate) fn row(row: &Row, compared: &[Compared], disturbed: usize) {
    out(&format!("\n{}: {}", row.name, row.describe()));
    if !row.note.is_empty() {
        out(&format!("note: {}", row.note));
    }
    if disturbed > 0 {
        out(&format!("{disturbed} of the kernel's runs were disturbed by other programs"));
    }
    out(&format!(
        "{:<10} {:<26} {:>10} {:>10} {:>9} {:>12}   {}",
        "phase", "counter", "kernel", "simulated", "error", "its spread", "its runs"
    ));
    for c in compared.iter().filter(|c| c.counts()) {
        let (error, spread) = (percent(c.error_bp()), percent(c.spread_bp()));
        let verdict = match (c.error_bp() > WANTED_BP, c.is_met()) {
            (false, _) => "",
            (true, true) => " within its runs",
            (true, false) => " missed",
        };
        out(&format!(
            "{:<10} {:<26} {:>10} {:>10} {error:>8} % {spread:>10} %   {}..{}{verdict}",
            c.phase, c.counter, c.kernel, c.simulated, c.least, c.most
        ));
    }
}

/// Errors of some values and the kernel's own spread of them, each sorted.
struct Distribution {
    errors: Vec<u64>,
    spreads: Vec<u64>,
}

impl Distribution {
    /// Of the values that are more than noise.
    fn of(all: &[Compared], chosen: impl Fn(&Compared) -> bool) -> Self {
        let counted: Vec<&Compared> = all.iter().filter(|c| c.counts() && chosen(c)).collect();
        let sorted = |value: fn(&Compared) -> u64| {
            let mut values: Vec<u64> = counted.iter().map(|c| value(c)).collect();
            values.sort_unstable();
            values
        };
        Self { errors: sorted(Compared::error_bp), spreads: sorted(Compared::spread_bp) }
    }

    fn line(&self, name: &str) -> String {
        let of =
            |values: &[u64]| [50, 75, 90, 95, 99].map(|p| format!("{:>8}", percent(percentile(values, p)))).concat();
        format!("{name:<26} {:>6}  {}   {}", self.errors.len(), of(&self.errors), of(&self.spreads))
    }

    fn json(&self) -> serde_json::Value {
        json!({"values": self.errors.len(), "median_error_bp": percentile(&self.errors, 50),
               "p90_error_bp": percentile(&self.errors, 90), "p95_error_bp": percentile(&self.errors, 95),
               "median_spread_bp": percentile(&self.spreads, 50), "p95_spread_bp": percentile(&self.spreads, 95)})
    }
}

/// Parts of all values: name, and what belongs to it.
type Part = (&'static str, fn(&Compared) -> bool);

const PARTS: [Part; 8] = [
    ("anonymous rows", |c| !c.file && c.is_main()),
    ("file rows", |c| c.file && c.is_main()),
    ("all rows", Compared::is_main),
    ("anonymous, quiet runs", |c| !c.file && c.is_main() && !c.disturbed),
    ("file, quiet runs", |c| c.file && c.is_main() && !c.disturbed),
    ("anonymous, activations", |c| !c.file && !c.is_main()),
    ("file, activations", |c| c.file && !c.is_main()),
    ("all rows, all counters", |_| true),
];

/// The distribution of the errors, and of the kernel's own spread.
pub(crate) fn summary(all: &[Compared]) {
    let head = ["p50", "p75", "p90", "p95", "p99"].map(|p| format!("{p:>8}")).concat();
    out(&format!("\n{:<26} {:>6}  {:<40}   kernel's runs among themselves, %", "", "", "error, %"));
    out(&format!("{:<26} {:>6}  {head}   {head}", "", "values"));
    for (name, chosen) in PARTS {
        out(&Distribution::of(all, chosen).line(name));
    }
    let beyond = |c: &&Compared| c.counts() && c.is_main() && c.error_bp() > WANTED_BP;
    let misses = all.iter().filter(beyond).count();
    let unlike = all.iter().filter(beyond).filter(|c| !c.is_met()).count();
    let values = all.iter().filter(|c| c.counts() && c.is_main()).count();
    out(&format!(
        "{misses} of {values} values of all rows miss by more than {} %; {unlike} of them are outside of what the kernel's runs gave",
        WANTED_BP / 100
    ));
    for counter in COUNTERS {
        out(&Distribution::of(all, |c| c.counter == counter).line(counter));
    }
}

/// The same, and every value, for programs.
pub(crate) fn json(all: &[Compared]) {
    let item = |c: &Compared| {
        json!({"row": c.row, "phase": c.phase, "counter": c.counter, "kernel": c.kernel, "kernel_least": c.least, "kernel_most": c.most,
               "simulated": c.simulated, "error_bp": c.error_bp(), "met": c.is_met(), "disturbed": c.disturbed})
    };
    let parts: serde_json::Map<String, serde_json::Value> =
        PARTS.iter().map(|&(name, chosen)| (name.to_owned(), Distribution::of(all, chosen).json())).collect();
    out(&json!({"rows": all.iter().map(item).collect::<Vec<_>>(), "parts": parts}).to_string());
}

fn percentile(sorted: &[u64], p: usize) -> u64 {
    sorted.get((sorted.len() * p / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0)
}

fn percent(bp: u64) -> String {
    format!("{}.{:02}", bp / 100, bp % 100)
}
