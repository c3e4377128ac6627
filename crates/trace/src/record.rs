//! The nouns of a trace: a record, and the header that says how to take it.

use crate::error::TraceError;

/// The highest page number plus one: 2^52 pages of 4 KiB are a 64-bit address space.
pub const PAGES_MAX: u64 = 1 << 52;

/// What a record says was done to its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A load.
    Read,
    /// A store.
    Write,
    /// The content was thrown away (munmap, MADV_DONTNEED); the next load reads zero.
    Discard,
}

/// One access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Virtual page number, below [`PAGES_MAX`].
    pub page: u64,
    /// Who, counted from 0.
    pub task: u16,
    /// What.
    pub op: Op,
}

/// How records lie in the binary format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    /// Four bytes: page times two, plus one for a write. One task, pages below 2^31, no discards.
    Packed,
    /// Eight bytes: kind in bits 0..=1, task in bits 2..=13, page in bits 14..=63. Up to 4096 tasks, pages below 2^50.
    Wide,
}

/// A range of pages that was one mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracedRegion {
    /// First virtual page.
    pub first_page: u64,
    /// Number of pages.
    pub pages: u64,
}

/// What a trace says of itself. Text formats say nothing and get the defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// log2 of the page size in bytes.
    pub page_shift: u8,
    /// Layout of the records.
    pub kind: RecordKind,
    /// Number of tasks; every record's task is below it.
    pub tasks: u16,
    /// Seed of the generator that made the trace; 0 for a recorded one.
    pub seed: u64,
    /// Records that were left out because they could not change the result above this many resident pages; 0: none.
    pub reduced_above_pages: u64,
    /// The mappings, ascending, not overlapping. Empty: not known.
    pub regions: Vec<TracedRegion>,
}

impl Default for Header {
    fn default() -> Self {
        Self { page_shift: 12, kind: RecordKind::Wide, tasks: 1, seed: 0, reduced_above_pages: 0, regions: Vec::new() }
    }
}

/// A stream of records.
pub trait RecordSource {
    /// What is known before the first record.
    fn header(&self) -> &Header;

    /// The next record; `None` at a proper end.
    ///
    /// # Errors
    /// A malformed or truncated input. After an error the source may not be read on.
    fn next_record(&mut self) -> Result<Option<Record>, TraceError>;
}
