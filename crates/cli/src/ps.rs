//! `pagetide ps`: the runs of this user, one a line.

use std::time::SystemTime;

use pagetide_core::absences::Waited;

use crate::args::PsArgs;
use crate::backend::{self, RunView, Snapshot};
use crate::failure::{self, Failure};
use crate::size::Short;
use crate::{output, snapshot};

/// Prints them. A run that cannot be asked is told of on standard error.
pub(crate) fn run(args: &PsArgs) -> Result<(), Failure> {
    let mut snapshots = Vec::new();
    for answer in backend::runs() {
        match answer {
            Ok(snapshot) => snapshots.push(snapshot),
            Err((name, error)) => failure::say(format_args!("pagetide: {name}: {error}")),
        }
    }
    if args.json {
        let list: Vec<_> = snapshots.iter().map(snapshot::to_json).collect();
        return output::print(&format!("{}\n", serde_json::to_string_pretty(&list).expect("numbers and names")));
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    output::print(&table(&snapshots, now))
}

/// The table, at `now` seconds since 1970.
fn table(snapshots: &[Snapshot], now: u64) -> String {
    let mut text = format!(
        "{:<16} {:>8} {:>8} {:>8} {:>8} {:>8} {:>6} {:>9}  {}\n",
        "NAME", "PID", "BUDGET", "RESIDENT", "SWAPPED", "MAJ/S", "STALL%", "SINCE", "COMMAND"
    );
    for snapshot in snapshots {
        let run = &snapshot.run;
        let name = if run.name.is_empty() { "-" } else { &run.name };
        let since = now.saturating_sub(run.started_unix_ns / 1_000_000_000);
        text.push_str(&format!(
            "{name:<16} {:>8} {:>8} {:>8} {:>8} {:>8} {:>6} {:>9}  {}\n",
            run.pid,
            Short(run.budget_bytes).to_string(),
            Short(run.resident_bytes).to_string(),
            Short(run.swapped_bytes).to_string(),
            recent_majors(run),
            recent_stall_percent(run),
            duration(since),
            plain(&snapshot.command),
        ));
    }
    text
}

/// Faults a second for which a page was read, in the last ten seconds.
fn recent_majors(run: &RunView) -> u64 {
    let per_second = u128::from(run.recent_major_faults) * 1_000_000_000 / u128::from(run.recent_ns.max(1));
    u64::try_from(per_second).unwrap_or(u64::MAX)
}

/// Of the last ten seconds, the share in which at least one thread waited for memory, in percent; of several processes the mean.
fn recent_stall_percent(run: &RunView) -> u64 {
    let ran = run.recent_managed_us.max(run.recent_ns / 1000);
    (Waited { ran, stalled: run.recent_stall_us, ..Waited::default() }.share_bp() + 50) / 100
}

/// `2-03:04:05`, `3:04:05`, `04:05`: days, hours, minutes, seconds, as ps(1) has them.
fn duration(seconds: u64) -> String {
    let (days, hours, minutes, rest) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    match (days, hours) {
        (0, 0) => format!("{minutes:02}:{rest:02}"),
        (0, _) => format!("{hours}:{minutes:02}:{rest:02}"),
        _ => format!("{days}-{hours:02}:{minutes:02}:{rest:02}"),
    }
}

/// A command may hold anything: no control character reaches the terminal.
pub(crate) fn plain(text: &str) -> String {
    text.chars().map(|sign| if sign.is_control() { ' ' } else { sign }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_a_line_without_control_characters() {
        let run = RunView {
            pid: 7,
            budget_bytes: 3 << 29,
            started_unix_ns: 1_000_000_000_000,
            recent_ns: 2_000_000_000,
            recent_major_faults: 50,
            recent_managed_us: 1_900_000,
            recent_stall_us: 500_000,
            ..RunView::default()
        };
        let snapshot = Snapshot { run, command: "sort\u{1b}[2J".to_owned(), ..Snapshot::default() };
        let text = table(&[snapshot], 1_000 + 3_725);
        let line: Vec<&str> = text.lines().nth(1).expect("a line for the run").split_whitespace().collect();
        assert_eq!(line, ["-", "7", "1.5G", "0", "0", "25", "25", "1:02:05", "sort", "[2J"]);
    }
}
