//! S2: a KVM guest of 8 GiB whose swap file lies on a virtio disk; 85 % of memory is allocated, hibernation pushes a
//! part of it to swap, then swapoff is timed.
//!
//! | parameter | value | |
//! | --- | --- | --- |
//! | memory, allocated part | 8 GiB, 85 % | known |
//! | pages swapped out | 870,000 | fitted to the 658,160 calls before (at most the 1,004,966 pages of all windows after) |
//! | who allocates | 8 processes, an eighth each | assumed; it makes runs of neighbouring slots as long as the per-CPU batches of 15 pages, which give the calls of 1 and 2 |
//! | who goes on | the last three of them write their memory in order, a page every 10 us, from the beginning of swapoff | fitted to the calls of 4 and 8 before (44,151 and 36,948): swapoff itself gives no hits there, programs that find their pages read ahead do. Tried: none, and one or two of four or of eight; three of six; 1 to 300 us a page; runs at random places. From 16 us the windows stay at one page (see docs/sim.md), with other times of the disk once below that, too |
//! | scale | 1/16 of all sizes; times and counts are multiplied back | |
//! | disk | the `virtio` preset with reads of 32 us and 11 us for each page | fitted to the two times in cluster mode (22.09 and 12.19 s); tried: 28 to 40 us and 7 to 12 us. Chosen with the windows in view: at 40 us, or below 9 us a page, up to half of them stay at one page |

use pagetide_core::types::{Nanos, PageRange};
use pagetide_core::{Config, Counter, HostKind, MemoryMode};

use super::{Metrics, Modelled, Place};
use crate::device::{DeviceParams, preset};
use crate::pattern::{Pattern, Walk};
use crate::rng::XorShift64;
use crate::task::{Program, Task, WalkProgram};
use crate::world::{Costs, SwapDevice, World};

const SCALE: u32 = 16;
const MEMORY: u32 = 8 * 262_144 / SCALE;
/// Pages in swap, at full size.
const PAGES: u32 = 870_000;
const SWAPPED: u32 = PAGES / SCALE;
const CPUS: u32 = 4;
const PROCESSES: u32 = 8;
/// So many of them go on using their memory, a page every so often.
const GOING_ON: u32 = 3;
const USE_NS: Nanos = 10_000;
/// A read through the guest's virtio disk, and each page of it; see the table above.
const READ_NS: Nanos = 32_000;
const READ_PAGE_NS: Nanos = 11_000;
/// No swapoff takes longer.
const LIMIT_NS: Nanos = 600_000_000_000;

/// Pages that hibernation pushes out at a time.
const HIBERNATE_STEP: u32 = 512;

/// Calls by window, and the time.
struct Swapoff {
    windows: [u64; 4],
    seconds: f64,
}

/// Writes a region in order: once, or, if that was done, for ever.
fn writer(region: PageRange, is_filled: bool, think_ns: Nanos) -> Task {
    let program = WalkProgram {
        region,
        owned: !is_filled,
        walk: Walk::new(Pattern::Sequential, region.len),
        write_percent: 100,
        filled: if is_filled { region.len } else { 0 },
        left: (!is_filled).then_some(0),
        rng: XorShift64::new(1),
    };
    Task::new(Program::Walk(program), think_ns, 300)
}

/// One swapoff, while so many processes go on using their memory.
fn measure(readahead: &str, mode: &str, going_on: u32) -> Swapoff {
    let share = MEMORY / 100 * 85 / PROCESSES;
    let pages_max = World::table_pages(std::iter::repeat_n(share, PROCESSES as usize));
    let mut config = Config::profile("linux-5.6", HostKind::Exact).expect("a known profile");
    for setting in [format!("readahead={readahead}"), format!("swapoff={mode}")] {
        config.set(&setting).expect("known settings");
    }
    let swap = 2 * MEMORY;
    let config = config.memory(MemoryMode::Watermarks, pages_max, MEMORY).slots_max(swap + 1024).min_free(MEMORY / 512);
    let config = config.scaled(SCALE);
    let mut world = World::new(config, pages_max, MEMORY, CPUS, Costs::default(), 1);
    let params = DeviceParams {
        read_ns: READ_NS,
        read_page_ns: READ_PAGE_NS,
        ..preset("virtio").expect("a preset").params.clone()
    };
    let device =
        world.add_device(&SwapDevice { params, pages: swap, priority: None, rotational: readahead == "cluster" });
    let regions: Vec<PageRange> = (0..PROCESSES).map(|_| world.add_region(share)).collect();
    for region in &regions {
        world.spawn(writer(*region, false, 0), 0);
    }
    world.run(LIMIT_NS);
    hibernate(&mut world, share * PROCESSES - SWAPPED);
    let begun = world.now();
    for region in regions.iter().rev().take(going_on as usize) {
        world.spawn(writer(*region, true, USE_NS), begun);
    }
    let before = windows(&world);
    world.swapoff(device);
    let mut until = begun;
    while world.core.device_used(device).is_some() && until < begun + LIMIT_NS {
        until += 1_000_000;
        world.drain(until);
    }
    let after = windows(&world);
    let mut counts = [0; 4];
    for (n, count) in counts.iter_mut().enumerate() {
        *count = after[n] - before[n];
    }
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds far below 2^52")]
    let seconds = (world.now() - begun) as f64 * f64::from(SCALE) / 1e9;
    Swapoff { windows: counts, seconds }
}

/// Pushes out what is more than `keep`, as hibernation does to make room for its image, and gives the room back. In
/// steps, so that the writes of one are done before the next begins.
fn hibernate(world: &mut World, keep: u32) {
    let mut until = world.now();
    while world.core.charged() > keep && until < LIMIT_NS {
        let step = world.core.charged().saturating_sub(HIBERNATE_STEP).max(keep);
        world.set_budget(step);
        while world.core.charged() > step && until < LIMIT_NS {
            until += 1_000_000;
            world.drain(until);
        }
    }
    world.set_budget(MEMORY);
    world.drain(until + 1_000_000_000);
}

fn windows(world: &World) -> [u64; 4] {
    use Counter::{pt_ra_window_1, pt_ra_window_2, pt_ra_window_4, pt_ra_window_8};
    [pt_ra_window_1, pt_ra_window_2, pt_ra_window_4, pt_ra_window_8].map(|c| world.core.vmstat().get(c))
}

fn histogram_metrics(swapoff: &Swapoff) -> Metrics {
    #[expect(clippy::cast_precision_loss, reason = "counts far below 2^52")]
    let scaled = |n: u64| n as f64 * f64::from(SCALE);
    ["1", "2", "4", "8"].iter().zip(swapoff.windows).map(|(name, n)| ((*name).to_owned(), scaled(n))).collect()
}

/// How often each window size was chosen.
pub(super) fn histogram() -> Modelled {
    Modelled {
        doc: "S2",
        table: "histogram",
        place: Place::Objects {
            before: "/S2_swapoff_2020/swapin_nr_pages_histogram/before",
            after: "/S2_swapoff_2020/swapin_nr_pages_histogram/after",
        },
        before: histogram_metrics(&measure("cluster", "no-lookup", GOING_ON)),
        after: histogram_metrics(&measure("cluster", "lookup-stats", GOING_ON)),
        recipe: format!(
            "swapoff of {PAGES} pages while {GOING_ON} of {PROCESSES} programs go on, profile linux-5.6, readahead cluster, swapoff no-lookup against lookup-stats, sizes / {SCALE}"
        ),
    }
}

/// How long swapoff took, in both readahead modes. The source puts the kernels below the modes.
pub(super) fn times() -> Modelled {
    let both = |mode: &str| {
        let times =
            ["cluster", "vma"].map(|readahead| (readahead.to_owned(), measure(readahead, mode, GOING_ON).seconds));
        Metrics::from(times)
    };
    Modelled {
        doc: "S2",
        table: "swapoff",
        place: Place::Columns { at: "/S2_swapoff_2020/swapoff_s", before: "vanilla", after: "patched" },
        before: both("no-lookup"),
        after: both("lookup-stats"),
        recipe: format!(
            "swapoff of {PAGES} pages while {GOING_ON} of {PROCESSES} programs go on, profile linux-5.6, swapoff no-lookup against lookup-stats, sizes / {SCALE}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The source's own arithmetic: the old kernel asked once for every page that was swapped out.
    #[test]
    fn without_lookup_every_page_is_asked_for_once() {
        let calls: u64 = measure("cluster", "no-lookup", 0).windows.iter().sum();
        let pages = u64::from(SWAPPED);
        assert!(calls.abs_diff(pages) * 100 < pages, "{calls} calls for {pages} pages");
    }
}
