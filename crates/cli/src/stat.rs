//! `pagetide stat RUN`: the counters as `/proc/vmstat` has them, or a line of rates each interval, as vmstat(8).

use std::time::SystemTime;

use serde_json::Value;

use crate::args::StatArgs;
use crate::backend::{Connection, Snapshot, WatchError, unwatchable};
use crate::failure::Failure;
use crate::output;
use crate::snapshot::{Rates, to_json};

/// Lines between two headers.
const HEADER_LINES: u64 = 20;

/// Prints them.
pub(crate) fn run(args: &StatArgs) -> Result<(), Failure> {
    let mut connection = Connection::open(&args.run).map_err(|error| unwatchable(&args.run, &error))?;
    let first = connection.stat().map_err(|error| unwatchable(&args.run, &error))?;
    match args.interval {
        None if args.json => output::print(&format!("{:#}\n", to_json(&first))),
        None => output::print(&counters(&first)),
        Some(interval_ns) => course(args, interval_ns, &mut connection, first),
    }
}

/// Name and value, a line each.
fn counters(snapshot: &Snapshot) -> String {
    let run = &snapshot.run;
    let sizes = [
        ("pt_budget_pages", run.budget_bytes),
        ("pt_resident_pages", run.resident_bytes),
        ("pt_swapped_pages", run.swapped_bytes),
    ];
    let sizes = sizes.map(|(name, bytes)| format!("{name} {}\n", bytes / 4096));
    let counted = snapshot.counters.iter().map(|(name, value)| format!("{name} {value}\n"));
    sizes.into_iter().chain(counted).collect()
}

/// A line each interval, until the run ends.
fn course(args: &StatArgs, interval_ns: u64, connection: &mut Connection, first: Snapshot) -> Result<(), Failure> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    let age_ns = now_ns.saturating_sub(first.run.started_unix_ns);
    print_line(args.json, 0, &first, Rates::between(None, &first, age_ns))?;
    let mut before = first;
    for line in 1..args.count.unwrap_or(u64::MAX) {
        let after = match connection.wait(interval_ns).and_then(|()| connection.stat()) {
            Ok(after) => after,
            Err(WatchError::Ended) => return Ok(()),
            Err(error) => return Err(unwatchable(&args.run, &error)),
        };
        let ns = after.run.now_ns.saturating_sub(before.run.now_ns);
        print_line(args.json, line, &after, Rates::between(Some(&before), &after, ns))?;
        before = after;
    }
    Ok(())
}

fn print_line(json: bool, line: u64, snapshot: &Snapshot, rates: Rates) -> Result<(), Failure> {
    if json {
        let mut object = to_json(snapshot);
        object["per_second"] = rates.to_json();
        return output::print(&format!("{}\n", Value::to_string(&object)));
    }
    let header = if line.is_multiple_of(HEADER_LINES) { HEADER } else { "" };
    output::print(&format!("{header}{}", row(snapshot, rates)))
}

const HEADER: &str = "\
--------memory------- ------pages----- ------faults----- --readahead-
budget  resid    swpd     in/s   out/s  flt/s maj/s ref/s   pages hit%
";

fn row(snapshot: &Snapshot, rates: Rates) -> String {
    let run = &snapshot.run;
    let mib = |bytes: u64| bytes >> 20;
    let hits = rates.hit_percent.map_or_else(|| "-".to_owned(), |percent| percent.to_string());
    format!(
        "{:>6} {:>6} {:>7} {:>8} {:>7} {:>6} {:>5} {:>5} {:>7} {hits:>4}\n",
        mib(run.budget_bytes),
        mib(run.resident_bytes),
        mib(run.swapped_bytes),
        rates.pages_in,
        rates.pages_out,
        rates.faults,
        rates.major_faults,
        rates.refaults,
        rates.read_ahead,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_under_their_heads() {
        let widths: Vec<usize> = HEADER.lines().map(str::len).collect();
        let rates = Rates { pages_in: 123_456, hit_percent: Some(100), ..Rates::default() };
        assert_eq!(row(&Snapshot::default(), rates).trim_end().len(), widths[1]);
    }

    #[test]
    fn counters_are_names_and_numbers() {
        let counters_of = Snapshot { counters: vec![("pgfault".to_owned(), 7)], ..Snapshot::default() };
        assert!(counters(&counters_of).ends_with("\npgfault 7\n"));
    }
}
