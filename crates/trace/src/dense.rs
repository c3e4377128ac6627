//! A trace in memory, with page numbers made dense for replay.
//!
//! Readahead looks at neighbours inside 2 MiB page-table ranges, so numbers are not simply counted up: every 512-page
//! block that is touched keeps its 512 places, and blocks that touch each other stay neighbours. A gap between blocks
//! ends a region, as a gap in an address space does. So do [`HOLE_PAGES`] in a row that are never touched: a trace does not say
//! what is mapped, and pages that are filled ahead of first touches would else fill addresses that do not exist.

use crate::error::{Place, TraceError};
use crate::record::{Op, Record, RecordSource};

/// Pages of a block: one page-table page.
const BLOCK_PAGES: u64 = 512;

/// So many pages that are never touched, one after the other, belong to no region.
pub const HOLE_PAGES: u32 = 64;

/// Dense pages that a trace may have: 2^30 pages are 4 TiB.
const DENSE_PAGES_MAX: u64 = 1 << 30;

/// One record with a dense page number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenseRecord {
    word: u32,
    /// Who.
    pub task: u16,
    discard: bool,
}

impl DenseRecord {
    /// The dense page number.
    pub const fn page(self) -> u32 {
        self.word >> 1
    }

    /// What was done.
    pub const fn op(self) -> Op {
        if self.discard {
            Op::Discard
        } else if self.word & 1 == 1 {
            Op::Write
        } else {
            Op::Read
        }
    }
}

/// A run of dense page numbers that were neighbours in the traced address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DenseRegion {
    /// First dense page.
    pub first: u32,
    /// Number of pages.
    pub pages: u32,
    /// The virtual page that `first` stands for.
    pub virtual_first: u64,
}

/// A whole trace, ready for replay.
#[derive(Clone, Debug, Default)]
pub struct DenseTrace {
    /// The accesses, in order.
    pub records: Vec<DenseRecord>,
    /// The address space.
    pub regions: Vec<DenseRegion>,
    /// Dense pages over all regions.
    pub pages: u32,
    /// Distinct pages that are touched.
    pub touched_pages: u32,
    /// One more than the highest task.
    pub tasks: u16,
}

/// Reads a source to its end. `progress` is told the number of records now and then.
///
/// # Errors
/// What the source says; or an address space too large to hold.
pub fn load(source: &mut dyn RecordSource, mut progress: impl FnMut(u64)) -> Result<DenseTrace, TraceError> {
    let mut raw: Vec<Record> = Vec::new();
    while let Some(record) = source.next_record()? {
        raw.push(record);
        if raw.len().is_multiple_of(1 << 20) {
            progress(raw.len() as u64);
        }
    }
    if raw.is_empty() {
        return Err(TraceError::malformed(Place::Whole, "the trace has no access"));
    }
    densify(&raw)
}

impl DenseTrace {
    /// The trace of these records.
    ///
    /// # Errors
    /// An address space too large to hold.
    pub fn of_records(records: &[Record]) -> Result<Self, TraceError> {
        densify(records)
    }
}

/// Gives every page its dense number.
fn densify(raw: &[Record]) -> Result<DenseTrace, TraceError> {
    let mut blocks: Vec<u64> = Vec::new();
    for record in raw {
        let block = record.page / BLOCK_PAGES;
        if blocks.last() != Some(&block) {
            blocks.push(block);
        }
        // Keeps the list near the number of distinct blocks instead of the number of records.
        if blocks.len() > 1 << 22 {
            blocks.sort_unstable();
            blocks.dedup();
        }
    }
    blocks.sort_unstable();
    blocks.dedup();
    let pages = blocks.len() as u64 * BLOCK_PAGES;
    let fits = u32::try_from(pages).ok().filter(|_| pages <= DENSE_PAGES_MAX);
    let Some(pages) = fits else {
        let what = format!("the accesses spread over {} ranges of 2 MiB, too many to simulate", blocks.len());
        return Err(TraceError::malformed(Place::Whole, what));
    };
    let mut trace = DenseTrace { pages, ..DenseTrace::default() };
    trace.records.reserve_exact(raw.len());
    let mut touched = vec![false; pages as usize];
    let (mut last_block, mut last_base) = (u64::MAX, 0u32);
    for record in raw {
        let block = record.page / BLOCK_PAGES;
        if block != last_block {
            last_block = block;
            let index = blocks.binary_search(&block).expect("every block was collected above");
            last_base = u32::try_from(index as u64 * BLOCK_PAGES).expect("below `pages`");
        }
        let page = last_base + u32::try_from(record.page % BLOCK_PAGES).expect("below 512");
        trace.touched_pages += u32::from(!std::mem::replace(&mut touched[page as usize], true));
        trace.tasks = trace.tasks.max(record.task + 1);
        let word = page << 1 | u32::from(record.op == Op::Write);
        trace.records.push(DenseRecord { word, task: record.task, discard: record.op == Op::Discard });
    }
    trace.regions = regions_of(&blocks, &touched);
    Ok(trace)
}

/// Runs of neighbours from the first that is touched to the last, without holes.
fn regions_of(blocks: &[u64], touched: &[bool]) -> Vec<DenseRegion> {
    let mut regions: Vec<DenseRegion> = Vec::new();
    for page in (0..).zip(touched).filter_map(|(page, is_touched): (u32, _)| is_touched.then_some(page)) {
        let virtual_page =
            blocks[(u64::from(page) / BLOCK_PAGES) as usize] * BLOCK_PAGES + u64::from(page) % BLOCK_PAGES;
        match regions.last_mut() {
            Some(region) if virtual_page - (region.virtual_first + u64::from(region.pages)) < u64::from(HOLE_PAGES) => {
                region.pages = page - region.first + 1;
            }
            Some(_) | None => regions.push(DenseRegion { first: page, pages: 1, virtual_first: virtual_page }),
        }
    }
    regions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dense(pages: &[u64]) -> DenseTrace {
        let raw: Vec<Record> = pages.iter().map(|page| Record { page: *page, task: 0, op: Op::Read }).collect();
        densify(&raw).expect("small")
    }

    #[test]
    fn neighbours_stay_neighbours_and_gaps_end_regions() {
        let trace = dense(&[1023, 1024, 9_000_000, 1023]);
        let got: Vec<u32> = trace.records.iter().map(|r| r.page()).collect();
        assert_eq!(got[1], got[0] + 1);
        assert_eq!(got[0] % 512, 511);
        assert_eq!(u64::from(got[2]) % 512, 9_000_000 % 512);
        let bounds = |region: &DenseRegion| (region.first, region.pages, region.virtual_first);
        assert_eq!(trace.regions.iter().map(bounds).collect::<Vec<_>>(), [(511, 2, 1023), (got[2], 1, 9_000_000)]);
        assert_eq!((trace.pages, trace.touched_pages), (1536, 3));
    }

    #[test]
    fn many_pages_in_a_row_that_are_never_touched_belong_to_no_region() {
        let hole = u64::from(HOLE_PAGES);
        let trace = dense(&[512, 512 + hole, 512 + 2 * hole + 1, 511]);
        let got: Vec<_> = trace.regions.iter().map(|region| (region.virtual_first, region.pages)).collect();
        assert_eq!(got, [(511, HOLE_PAGES + 2), (512 + 2 * hole + 1, 1)]);
    }
}
