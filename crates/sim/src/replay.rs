//! A trace under one budget after another: how much memory does this job need?

use std::fmt::Write as _;
use std::rc::Rc;

use pagetide_core::absences::{Absences, Waited};
use pagetide_core::types::{Nanos, PageIdx, PageRange};
use pagetide_core::{Config, HostKind, MemoryMode};
use pagetide_trace::dense::DenseTrace;
use serde_json::{Value, json};

use crate::device::{DeviceParams, Mechanism};
use crate::run::{end_word, latency_json, vmstat_json};
use crate::task::{Program, Task};
use crate::units::{PAGE_BYTES, pages, show_nanos, show_pages};
use crate::world::{Costs, HostModel, RunEnd, SwapDevice, TierCosts, TierCounts, World};

/// A budget, as a person says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// Pages.
    Pages(u32),
    /// Hundredths of the pages that the trace touches.
    Percent(u32),
}

impl Budget {
    /// Reads `512M` or `25%`.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(percent) = text.trim().strip_suffix('%') else {
            return match pages(text)? {
                0 => Err(format!("`{text}` is no memory at all")),
                pages => Ok(Self::Pages(pages)),
            };
        };
        let percent = percent.trim().parse().ok().filter(|p| (1..=1000).contains(p));
        percent.map(Self::Percent).ok_or_else(|| format!("`{text}`: 1% to 1000% expected"))
    }

    /// In pages, of a trace that touches so many; a share is at least what a replay needs.
    pub fn pages(self, touched: u32) -> u32 {
        match self {
            Self::Pages(pages) => pages,
            Self::Percent(percent) => {
                let pages = u64::from(touched) * u64::from(percent) / 100;
                u32::try_from(pages).unwrap_or(u32::MAX).max(MEMORY_PAGES_MIN)
            }
        }
    }
}

/// How to replay.
#[derive(Clone, Debug)]
pub struct ReplaySetup {
    /// Profile of the core.
    pub profile: String,
    /// `KEY=VALUE` for the core's knobs.
    pub settings: Vec<String>,
    /// The swap device.
    pub device: DeviceParams,
    /// CPU time of an access that hits; what the program computes between accesses belongs in here.
    pub access_ns: Nanos,
    /// Bytes that a page takes if the settings let the host compress (`compress=lz4` or `zstd`).
    pub packed_bytes: u32,
    /// Who plays the host. A blind one has watermarks, as live.
    pub host: HostModel,
    /// Watermarks and kswapd instead of a group's limit.
    pub machine: bool,
    /// Decides the device's spread.
    pub seed: u64,
}

/// What one budget means.
#[derive(Clone, Debug)]
pub struct ReplayRow {
    /// The budget.
    pub memory_pages: u32,
    /// How it ended.
    pub end: RunEnd,
    /// Virtual time.
    pub time_ns: Nanos,
    /// The accesses alone, without any fault.
    pub compute_ns: Nanos,
    /// The program's own times, and what it waited for. Here it is managed from the first page on.
    pub waited: Waited,
    /// How long its pages were away.
    pub absences: Absences,
    /// The core's counters.
    pub vmstat: Vec<(&'static str, u64)>,
    /// What a compressed tier did.
    pub tier: TierCounts,
    /// Time of an access, as JSON.
    pub latency: Value,
}

/// Fewest pages that a replay accepts: less cannot hold what one fault needs.
const MEMORY_PAGES_MIN: u32 = 64;

/// Slots over the dense pages, so that no replay ends for want of swap.
const SPARE_SLOTS: u32 = 4096;

/// Replays the trace once, in so many pages.
///
/// # Errors
/// A profile or knob that the core does not know, or a budget below the minimum.
pub fn replay(trace: &Rc<DenseTrace>, memory_pages: u32, setup: &ReplaySetup) -> Result<ReplayRow, String> {
    if memory_pages < MEMORY_PAGES_MIN {
        let least = show_pages(u64::from(MEMORY_PAGES_MIN));
        return Err(format!("--memory: {memory_pages} pages are too few; the least is {least}"));
    }
    let mut world = build(trace, memory_pages, setup)?;
    let program = Program::Trace { trace: Rc::clone(trace), next: 0 };
    world.spawn(Task::new(program, 0, setup.access_ns), 0);
    let end = world.run(Nanos::MAX);
    let task = &mut world.tasks[0];
    task.settle();
    let time_ns = task.stats.ended_at.unwrap_or(task.clock);
    let compute_ns = trace.records.len() as u64 * setup.access_ns;
    Ok(ReplayRow {
        memory_pages,
        end,
        time_ns,
        compute_ns,
        waited: Waited {
            ran: time_ns,
            stalled: time_ns.saturating_sub(compute_ns),
            first_touch: task.stats.first_touch_ns,
            first_touch_pages: 0,
            // What of it was waited for the disk is not told apart here.
            from_disk: 0,
        },
        absences: world.core.absences(),
        latency: latency_json(&task.stats.latency),
        vmstat: world.core.vmstat().iter().collect(),
        tier: world.tier_counts(),
    })
}

fn build(trace: &DenseTrace, memory_pages: u32, setup: &ReplaySetup) -> Result<World, String> {
    let mut world = world_of(trace.pages, memory_pages, setup)?;
    for region in &trace.regions {
        world.add_region_at(PageRange::new(PageIdx(region.first), region.pages));
    }
    Ok(world)
}

/// A world for so many pages on one swap device, still without a region.
pub(crate) fn world_of(pages: u32, memory_pages: u32, setup: &ReplaySetup) -> Result<World, String> {
    let mut config = Config::profile(&setup.profile, setup.host.kind()).map_err(|e| format!("--profile: {e}"))?;
    for setting in &setup.settings {
        config.set(setting).map_err(|e| format!("--set: {e}"))?;
    }
    let tier = TierCosts::of(config.compress(), setup.packed_bytes).filter(|_| setup.host.kind() == HostKind::Blind);
    let is_machine = setup.machine || setup.host.kind() == HostKind::Blind;
    let mode = if is_machine { MemoryMode::Watermarks } else { MemoryMode::Memcg { v1: true } };
    let swap_pages = pages + SPARE_SLOTS;
    let config = config.memory(mode, pages, memory_pages).slots_max(swap_pages + SPARE_SLOTS);
    let mut world = World::new(config, pages, memory_pages, 1, Costs::default(), setup.seed);
    world.set_host(setup.host);
    if let Some(tier) = tier {
        world.set_tier(tier);
    }
    world.add_device(&SwapDevice {
        params: setup.device.clone(),
        pages: swap_pages,
        priority: None,
        rotational: setup.device.mechanism == Mechanism::Rotational,
    });
    Ok(world)
}

impl ReplayRow {
    /// The counter of that name.
    pub fn counter(&self, name: &str) -> u64 {
        self.vmstat.iter().find(|(n, _)| *n == name).map_or(0, |(_, value)| *value)
    }

    /// Time over the time of the accesses alone, in hundredths.
    pub fn slowdown_percent(&self) -> u64 {
        self.time_ns.saturating_mul(100) / self.compute_ns.max(1)
    }

    /// For programs.
    pub fn json(&self) -> Value {
        json!({
            "memory_budget_bytes": u64::from(self.memory_pages) * PAGE_BYTES,
            "end": end_word(self.end, self.counter("oom_kill")),
            "virtual_ns": self.time_ns,
            "compute_ns": self.compute_ns,
            "latency_ns": self.latency,
            "vmstat": vmstat_json(&self.vmstat),
        })
    }
}

/// All budgets, for people.
pub fn text(trace: &DenseTrace, rows: &[ReplayRow]) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "{} accesses of {} distinct pages ({})\n",
        trace.records.len(),
        trace.touched_pages,
        show_pages(u64::from(trace.touched_pages))
    );
    let _ = writeln!(
        out,
        "{:>12} {:>12} {:>10} {:>12} {:>12} {:>12}  end",
        "memory", "time", "slower", "majfaults", "swapped in", "swapped out"
    );
    for row in rows {
        let slower = row.slowdown_percent();
        let _ = writeln!(
            out,
            "{:>12} {:>12} {:>8}.{:02} {:>11} {:>12} {:>12}  {}",
            show_pages(u64::from(row.memory_pages)),
            show_nanos(row.time_ns),
            slower / 100,
            slower % 100,
            row.counter("pgmajfault"),
            show_pages(row.counter("pswpin")),
            show_pages(row.counter("pswpout")),
            end_word(row.end, row.counter("oom_kill"))
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_sizes_or_parts() {
        assert_eq!(Budget::parse("64M"), Ok(Budget::Pages(16_384)));
        assert_eq!(Budget::parse("25%").map(|b| b.pages(1000)), Ok(250));
        assert_eq!(Budget::parse("25%").map(|b| b.pages(2)), Ok(MEMORY_PAGES_MIN), "a short trace can be asked about");
        for bad in ["0%", "-5%", "0", "x", "5000%"] {
            assert!(Budget::parse(bad).is_err(), "{bad}");
        }
    }
}
