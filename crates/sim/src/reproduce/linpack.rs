//! S0, linpack: the machine of [`super::vma`] factors a matrix larger than its memory.
//!
//! | parameter | value | |
//! | --- | --- | --- |
//! | memory that it gets | as the writers of [`super::vma`] get | |
//! | matrix | 1.25 times that | assumed: the letter says only "larger than RAM" |
//! | threads | 8, a stripe of columns each | assumed |
//! | order | 8 blocks: a block is factored, then what is left is updated, in order | assumed: how LU goes over memory |
//! | computing | 60 us a page | assumed; the elapsed time comes out a third short |
//! | scale | 1/64 of sizes and times | |

use pagetide_core::Counter;
use pagetide_core::types::{Access, Nanos, PageIdx, PageRange};

use super::vma::{self, FLASH_S0, MEMORY_GIB, PAGES_PER_GIB, SCALE};
use super::{Metrics, Modelled, Place};
use crate::task::{Behaviour, Program, Step, Task};
use crate::world::World;

const THREADS: u32 = 8;
const BLOCKS: u32 = 8;
const COMPUTE_NS: Nanos = 60_000;
/// Nothing takes longer.
const LIMIT_NS: Nanos = 1_000_000_000_000;

/// A thread and its stripe.
#[derive(Debug)]
struct Stripe {
    region: PageRange,
    block: u32,
    at: u32,
    computes: bool,
}

impl Behaviour for Stripe {
    fn step(&mut self, _now: Nanos) -> Option<Step> {
        if self.at >= self.region.len {
            self.block += 1;
            // The first pass makes the matrix; each block leaves less to be updated.
            self.at = self.region.len / BLOCKS * self.block.saturating_sub(1);
        }
        if self.block > BLOCKS {
            return None;
        }
        self.computes = !self.computes;
        if self.computes {
            return Some(Step::Think(COMPUTE_NS));
        }
        self.at += 1;
        Some(Step::Touch(PageIdx(self.region.first.0 + self.at - 1), Access::Write))
    }
}

fn measure(readahead: &str) -> Metrics {
    let share = MEMORY_GIB * (PAGES_PER_GIB / SCALE) / 4 * 5 / THREADS;
    let mut world: World = vma::world(std::iter::repeat_n(share, THREADS as usize), readahead, FLASH_S0, SCALE);
    for _ in 0..THREADS {
        let region = world.add_region(share);
        let stripe = Stripe { region, block: 0, at: 0, computes: false };
        world.spawn(Task::new(Program::Custom(Box::new(stripe)), 0, 300), 0);
    }
    world.run(LIMIT_NS);
    let get = |counter| super::full(world.core.vmstat().get(counter), 1);
    let elapsed = world.tasks.iter().filter_map(|t| t.stats.ended_at).max().unwrap_or(LIMIT_NS);
    Metrics::from([
        ("elapsed_s".to_owned(), super::full(elapsed, SCALE) / 1e9),
        ("ra_hit_pct".to_owned(), 100.0 * get(Counter::swap_ra_hit) / get(Counter::swap_ra).max(1.0)),
    ])
}

/// Elapsed time and hits.
pub(super) fn table() -> Modelled {
    Modelled {
        doc: "S0",
        table: "linpack",
        place: Place::Objects {
            before: "/S0_vma_readahead_v4/linpack/base",
            after: "/S0_vma_readahead_v4/linpack/optimized",
        },
        before: measure("cluster"),
        after: measure("vma"),
        recipe: format!(
            "LU of a matrix of 1.25 times the memory by {THREADS} threads, profile linux-4.10, readahead cluster against vma, {MEMORY_GIB} GiB / {SCALE}, device nvme"
        ),
    }
}
