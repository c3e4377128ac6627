//! What a record or a trace of a run shows: how many pages would have been read in other budgets, by the simulator's word, and which
//! memory was used when.
//!
//! A record (`pagetide run --record`) has the faults and the pages that were mapped, and no access to a page that was there. What is a hit
//! in the recorded budget is one in every larger budget, so these are enough for larger ones; for smaller ones it is a lower bound.

use std::path::Path;
use std::rc::Rc;

use pagetide_core::Event;
use pagetide_core::types::{Access, Nanos, PageRange};
use pagetide_driver::record::{MAGIC, RecordReader};
use pagetide_trace::dense::{self, DenseTrace};
use pagetide_trace::record::{Op, Record};

use crate::device;
use crate::replay::{ReplaySetup, replay};
use crate::world::HostModel;

/// Accesses that are replayed at most: the first ones.
const ACCESSES_MAX: usize = 4_000_000;
/// Between two accesses of a record lie those that made no fault.
const ACCESS_NS: u64 = 2000;

/// What is replayed.
#[derive(Clone, Debug)]
pub struct Curve {
    trace: Rc<DenseTrace>,
    /// When each access of a record was, since the first one; of a trace nobody knows.
    times: Vec<Nanos>,
    setup: ReplaySetup,
    /// It was a record, not a trace of all accesses.
    pub is_record: bool,
    /// There was more than is replayed.
    pub is_cut: bool,
}

/// Pages of a row of a map, at least.
const ROW_PAGES_MIN: usize = 64;

/// Which memory was used when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UseMap {
    /// The first page of each row, in the order of addresses. A trace's are the program's; a record numbers the pages that are managed.
    pub rows: Vec<u64>,
    /// Uses by row and column.
    pub counts: Vec<Vec<u64>>,
    /// What all columns are together: nanoseconds, or accesses.
    pub length: u64,
    /// Columns are time, not accesses.
    pub is_time: bool,
}

impl Curve {
    /// True if these bytes are a record's.
    pub fn is_record(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    /// Of a recorded run.
    ///
    /// # Errors
    /// The record is cut, damaged or without a fault.
    pub fn of_record(bytes: &[u8]) -> Result<Self, String> {
        let mut reader = RecordReader::new(bytes).map_err(|error| error.to_string())?;
        let settings = reader.config().settings.clone();
        let (mut records, mut times) = (Vec::new(), Vec::new());
        let mut begin = None;
        while records.len() < ACCESSES_MAX {
            let Some(recorded) = reader.next_event().map_err(|error| error.to_string())? else { break };
            note(recorded.event, &mut records);
            if records.len() > times.len() {
                let begin = *begin.get_or_insert(recorded.now);
                times.resize(records.len(), recorded.now.saturating_sub(begin));
            }
        }
        let is_cut = records.len() >= ACCESSES_MAX || reader.is_full();
        if records.is_empty() {
            return Err("it has no fault".to_owned());
        }
        let trace = DenseTrace::of_records(&records).map_err(|error| error.to_string())?;
        Ok(Self { trace: Rc::new(trace), times, setup: setup(&settings), is_record: true, is_cut })
    }

    /// Of a trace of accesses.
    ///
    /// # Errors
    /// It is none, or cannot be read.
    pub fn of_trace(path: &Path) -> Result<Self, String> {
        let mut source = pagetide_trace::open::open(path).map_err(|error| error.to_string())?;
        let mut trace = dense::load(&mut *source, |_| {}).map_err(|error| error.to_string())?;
        let is_cut = trace.records.len() > ACCESSES_MAX;
        trace.records.truncate(ACCESSES_MAX);
        Ok(Self { trace: Rc::new(trace), times: Vec::new(), setup: setup(&[]), is_record: false, is_cut })
    }

    /// Accesses that are replayed.
    pub fn accesses(&self) -> usize {
        self.trace.records.len()
    }

    /// Which memory was used when: at most so many columns of time and rows of pages. Memory that nobody used is left out, in steps of
    /// 2 MiB.
    pub fn map(&self, columns: usize, rows: usize) -> UseMap {
        let pages = self.trace.pages.max(1) as usize;
        let row_pages = pages.div_ceil(rows.max(1)).max(ROW_PAGES_MIN);
        let length = self.times.last().map_or(self.accesses() as u64, |&last| last) + 1;
        let mut counts = vec![vec![0; columns.max(1)]; pages.div_ceil(row_pages)];
        for (at, record) in self.trace.records.iter().enumerate() {
            let when = self.times.get(at).map_or(at as u64, |&time| time);
            let column = u128::from(when.min(length - 1)) * columns.max(1) as u128 / u128::from(length);
            let column = usize::try_from(column).expect("less than the columns");
            counts[record.page() as usize / row_pages][column] += u64::from(record.op() != Op::Discard);
        }
        let rows = (0..counts.len()).map(|row| self.virtual_page(u32::try_from(row * row_pages).expect("a page")));
        UseMap { rows: rows.collect(), counts, length, is_time: !self.times.is_empty() }
    }

    fn virtual_page(&self, page: u32) -> u64 {
        let regions = &self.trace.regions;
        let region = &regions[regions.partition_point(|region| region.first <= page).saturating_sub(1)];
        region.virtual_first + u64::from(page - region.first)
    }

    /// Pages that are read with so many pages of budget, readahead included.
    ///
    /// # Errors
    /// The budget is too small for any replay, or the run's settings are none that the simulator has.
    pub fn reads(&self, budget_pages: u32) -> Result<u64, String> {
        replay(&self.trace, budget_pages, &self.setup).map(|row| row.counter("pswpin"))
    }
}

fn setup(settings: &[(String, String)]) -> ReplaySetup {
    let profile = settings.iter().rfind(|(key, _)| key == "profile").map_or("pagetide", |(_, name)| name);
    let knobs = settings.iter().filter(|(key, _)| key != "profile");
    ReplaySetup {
        profile: profile.to_owned(),
        settings: knobs.map(|(key, value)| format!("{key}={value}")).collect(),
        device: device::preset("nvme").expect("there is such a model").params.clone(),
        access_ns: ACCESS_NS,
        packed_bytes: 1365,
        host: HostModel::named("blind-thread").expect("there is such a host"),
        machine: false,
        seed: 1,
    }
}

/// The pages that an event shows to be used.
fn note(event: Event, records: &mut Vec<Record>) {
    let mut push = |range: PageRange, op| {
        records.extend(range.pages().map(|page| Record { page: u64::from(page.0), task: 0, op }));
    };
    if let Event::Fault { page, access, .. } = event {
        let op = if access == Access::Write { Op::Write } else { Op::Read };
        push(PageRange::one(page), op);
    } else if let Event::Mapped { range, .. } = event {
        // Mapped because they are about to be used: with a fault of their own they would have been told.
        push(range, Op::Read);
    } else if let Event::Discarded { range } = event {
        push(range, Op::Discard);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetide_core::event::MoveAnswer;
    use pagetide_core::types::{PageIdx, TaskId};

    #[test]
    fn a_loop_is_read_again_and_again_until_it_fits() {
        let mut records = Vec::new();
        for page in (0..1000).cycle().take(10_000) {
            note(Event::Fault { page: PageIdx(1 + page), access: Access::Write, task: TaskId(0) }, &mut records);
        }
        let trace = DenseTrace::of_records(&records).expect("a small trace");
        let curve =
            Curve { trace: Rc::new(trace), times: Vec::new(), setup: setup(&[]), is_record: true, is_cut: false };
        let reads = |pages| curve.reads(pages).expect("a budget that a replay takes");
        assert_eq!(curve.accesses(), 10_000);
        assert!(reads(500) > 2000 && reads(2000) == 0, "{} {}", reads(500), reads(2000));
    }

    #[test]
    fn a_map_shows_each_use_once_where_and_when_it_was() {
        let page = |at: u64| if at < 500 { 4096 + at % 100 } else { (9 << 20) + at % 600 };
        let records: Vec<Record> = (0..1000).map(|at| Record { page: page(at), task: 0, op: Op::Read }).collect();
        let trace = Rc::new(DenseTrace::of_records(&records).expect("a small trace"));
        let times: Vec<Nanos> = (0..1000).map(|at| at * at).collect();
        let by_access = Curve { trace, times: Vec::new(), setup: setup(&[]), is_record: false, is_cut: false };
        let by_time = Curve { times, is_record: true, ..by_access.clone() };
        for (curve, half) in [(by_access, 5), (by_time, 2)] {
            let map = curve.map(10, 24);
            assert_eq!(map.counts.iter().flatten().sum::<u64>(), 1000);
            assert_eq!(map.rows[0], 4096);
            assert!(map.rows.is_sorted() && map.rows.last().is_some_and(|&row| row > 9 << 20), "{map:?}");
            // What was used first was used in the first half only.
            assert!(
                map.counts[0][..half].iter().sum::<u64>() > 0 && map.counts[0][half + 1..].iter().sum::<u64>() == 0
            );
        }
    }

    #[test]
    fn what_was_mapped_was_used_and_what_is_no_record_is_named() {
        let mut records = Vec::new();
        note(Event::Mapped { range: PageRange::new(PageIdx(5), 3), answer: MoveAnswer::Done }, &mut records);
        note(Event::Timeout, &mut records);
        assert_eq!(records.iter().map(|record| record.page).collect::<Vec<_>>(), [5, 6, 7]);
        assert!(!Curve::is_record(b"{}") && Curve::of_record(b"PTEVENT1").is_err());
    }
}
