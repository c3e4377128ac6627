//! A region of the library under load: faults in signal mode.

use pagetide::Pool;
use pagetide::supervise::LatencySummary;
use pagetide_sim::rng::XorShift64;

use crate::side::Bench;

const PAGE: usize = 4096;

/// Fills a region of four budgets and rewrites `count` random pages of it, by one thread: how long its faults took.
pub(crate) fn random_rewrites(bench: &Bench, count: u64) -> Result<LatencySummary, String> {
    let budget = bench.budget_mib << 20;
    let pool = Pool::builder(budget).swap(&bench.directory, 16 * budget).build().map_err(|error| error.to_string())?;
    let bytes = usize::try_from(4 * budget).map_err(|error| error.to_string())?;
    let region = pool.region(bytes).map_err(|error| error.to_string())?;
    let write = |page: usize, value: u64| {
        let word = region.as_ptr().wrapping_add(page * PAGE).cast::<u64>();
        // SAFETY: the first word of a page of the region, which this thread alone uses.
        unsafe { word.write_volatile(value) };
    };
    let pages = u32::try_from(bytes / PAGE).map_err(|error| error.to_string())?;
    (0..pages).for_each(|page| write(page as usize, u64::from(page)));
    let mut random = XorShift64::new(1);
    for value in 0..count {
        write(random.below(pages) as usize, value);
    }
    Ok(pool.fault_latency_ns())
}
