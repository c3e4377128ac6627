//! A run's snapshot as JSON, and the rates between two of them.

use serde_json::{Map, Value, json};

use crate::backend::{DeviceView, PRIORITY_BY_ORDER, Snapshot};

/// All of it.
pub(crate) fn to_json(snapshot: &Snapshot) -> Value {
    let run = &snapshot.run;
    let counters: Map<String, Value> =
        snapshot.counters.iter().map(|(name, value)| (name.clone(), Value::from(*value))).collect();
    let processes: Vec<Value> = snapshot
        .processes
        .iter()
        .map(|process| {
            json!({
                "pid": process.pid,
                "command": process.command,
                "managed": process.is_managed == 1,
                "share_bytes": process.share_bytes,
                "resident_bytes": process.resident_bytes,
                "swapped_bytes": process.swapped_bytes,
                "faults": process.faults,
                "major_faults": process.major_faults,
                "compressed_bytes": process.compressed_bytes,
                "inactive_bytes": process.inactive_bytes,
                "active_bytes": process.active_bytes,
                "refaults": process.refaults,
                "read_ahead": process.read_ahead,
                "read_ahead_hits": process.read_ahead_hits,
                "read_ahead_unused": process.read_ahead_unused,
                "managed_us": process.managed_us,
                "stall_some_us": process.stall_some_us,
                "stall_full_us": process.stall_full_us,
            })
        })
        .collect();
    let devices: Vec<Value> = snapshot.devices.iter().map(device_json).collect();
    json!({
        "name": if run.name.is_empty() { Value::Null } else { Value::from(run.name.clone()) },
        "pid": run.pid,
        "main_pid": run.main_pid,
        "command": snapshot.command,
        "started_unix_ns": run.started_unix_ns,
        "budget_bytes": run.budget_bytes,
        "resident_bytes": run.resident_bytes,
        "peak_resident_bytes": run.peak_resident_bytes,
        "swapped_bytes": run.swapped_bytes,
        "recent_ns": run.recent_ns,
        "recent_major_faults": run.recent_major_faults,
        "recent_managed_us": run.recent_managed_us,
        "recent_stall_us": run.recent_stall_us,
        "process_count": run.processes,
        "managed_process_count": run.managed_processes,
        "vmstat": counters,
        "fault_latency_ns": snapshot.latency,
        "returns_after_pages": snapshot.returns,
        "processes": processes,
        "devices": devices,
    })
}

fn device_json(device: &DeviceView) -> Value {
    json!({
        "path": device.path,
        "state": state(device),
        "size_bytes": device.size_bytes,
        "used_bytes": device.used_bytes,
        "lost_bytes": device.lost_bytes,
        "priority": Some(device.priority).filter(|&priority| priority < PRIORITY_BY_ORDER),
        "drain_pages_per_s": device.pages_per_s,
        "drain_left_ns": Some(device.left_ns).filter(|&ns| ns > 0),
        "read_requests": device.read_requests,
        "read_bytes": device.read_bytes,
        "read_ns": device.read_ns,
        "write_requests": device.write_requests,
        "write_bytes": device.write_bytes,
        "write_ns": device.write_ns,
    })
}

/// What a place to swap to is used for, in a word.
pub(crate) const fn state(device: &DeviceView) -> &'static str {
    match device.state {
        0 => "open",
        1 => "full",
        2 => "draining",
        3 => "failed",
        _ => "given up",
    }
}

/// What happened between two snapshots of a run, each a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rates {
    /// Pages that came in, from the disk or from the compressed tier.
    pub(crate) pages_in: u64,
    /// Pages that went out.
    pub(crate) pages_out: u64,
    /// Faults.
    pub(crate) faults: u64,
    /// Faults for which a page was read.
    pub(crate) major_faults: u64,
    /// Pages that were read again soon enough to belong to the working set.
    pub(crate) refaults: u64,
    /// Pages read ahead.
    pub(crate) read_ahead: u64,
    /// Of 100 pages read ahead of which it is known, those that were touched; None if it is known of none.
    pub(crate) hit_percent: Option<u64>,
}

/// Of 100 pages read ahead of which it is known whether somebody touched them, those that were touched. None: it is known of none.
pub(crate) fn used_percent(hits: u64, unused: u64) -> Option<u64> {
    hits.saturating_mul(100).checked_div(hits.saturating_add(unused))
}

impl Rates {
    /// From `before` to `after`, `ns` later. Without a `before`: since the beginning.
    pub(crate) fn between(before: Option<&Snapshot>, after: &Snapshot, ns: u64) -> Self {
        let grown = |name| after.counter(name).saturating_sub(before.map_or(0, |before| before.counter(name)));
        let per_second =
            |grown: u64| u64::try_from(u128::from(grown) * 1_000_000_000 / u128::from(ns.max(1))).unwrap_or(u64::MAX);
        Self {
            pages_in: per_second(grown("pswpin") + grown("zswpin")),
            pages_out: per_second(grown("pswpout") + grown("zswpout")),
            faults: per_second(grown("pgfault")),
            major_faults: per_second(grown("pgmajfault")),
            refaults: per_second(grown("workingset_refault_anon")),
            read_ahead: per_second(grown("swap_ra")),
            hit_percent: used_percent(grown("swap_ra_hit"), grown("pt_ra_unused")),
        }
    }

    /// As a JSON object.
    pub(crate) fn to_json(self) -> Value {
        json!({
            "pages_in": self.pages_in,
            "pages_out": self.pages_out,
            "faults": self.faults,
            "major_faults": self.major_faults,
            "refaults": self.refaults,
            "read_ahead": self.read_ahead,
            "readahead_hit_percent": self.hit_percent,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_what_grew_in_a_second() {
        let with = |swap_ra: u64, hits: u64, faults: u64| {
            let unused = hits / 3;
            let counters = [("swap_ra", swap_ra), ("swap_ra_hit", hits), ("pt_ra_unused", unused), ("pgfault", faults)];
            Snapshot {
                counters: counters.map(|(name, value)| (name.to_owned(), value)).to_vec(),
                ..Snapshot::default()
            }
        };
        let rates = Rates::between(Some(&with(100, 0, 10)), &with(300, 150, 1010), 500_000_000);
        assert_eq!((rates.faults, rates.read_ahead, rates.hit_percent), (2000, 400, Some(75)));
        assert_eq!(Rates::between(None, &with(0, 0, 3), 1_000_000_000).hit_percent, None);
    }
}
