//! The own binary format, little-endian:
//!
//! ```text
//! magic        8   "PTTRACE1"
//! page_shift   1   12
//! kind         1   0 packed, 1 wide
//! tasks        2
//! regions      4
//! seed         8
//! reduced      8   reduced_above_pages
//! region       16  first page, pages; as many as `regions` says
//! block        4   number of records n, 1..=65536, then n records of 4 or 8 bytes
//! ...
//! end          4   0, then 8: number of all records
//! ```
//!
//! Blocks with an end mark make truncation visible without a seek, so a trace can be written into a pipe.

use std::io::{Read, Write};

use crate::error::{Place, TraceError};
use crate::record::{Header, Op, PAGES_MAX, Record, RecordKind, RecordSource, TracedRegion};

/// First bytes of the format.
pub const MAGIC: [u8; 8] = *b"PTTRACE1";

/// Most records of one block.
const BLOCK_RECORDS: usize = 65_536;

/// Most regions of a header: more than any process has mappings by default, little enough to allocate.
const REGIONS_MAX: u32 = 1 << 20;

/// Bytes of the header before the regions.
const FIXED_LEN: usize = 32;

const WIDE_TASK_SHIFT: u32 = 2;
const WIDE_TASK_BITS: u32 = 12;
const WIDE_PAGE_SHIFT: u32 = WIDE_TASK_SHIFT + WIDE_TASK_BITS;

/// Pages that a wide record can name.
pub const WIDE_PAGES: u64 = 1 << (64 - WIDE_PAGE_SHIFT);
/// Pages that a packed record can name.
pub const PACKED_PAGES: u64 = 1 << 31;
const _: () = assert!(WIDE_PAGES < PAGES_MAX, "a wide record's page is a legal page");

/// Reads the format from any byte stream.
#[derive(Debug)]
pub struct BinaryReader<R> {
    input: R,
    header: Header,
    at: u64,
    block: Vec<u8>,
    next: usize,
    records: u64,
    ended: bool,
}

impl<R: Read> BinaryReader<R> {
    /// Reads the header.
    ///
    /// # Errors
    /// Not this format, or truncated.
    pub fn new(input: R) -> Result<Self, TraceError> {
        let mut this =
            Self { input, header: Header::default(), at: 0, block: Vec::new(), next: 0, records: 0, ended: false };
        let mut fixed = [0u8; FIXED_LEN];
        this.fill(&mut fixed, "the header")?;
        if fixed[..8] != MAGIC {
            return Err(TraceError::malformed(Place::Byte(0), "not a pagetide trace: the magic PTTRACE1 is missing"));
        }
        this.header.page_shift = fixed[8];
        if !(12..=30).contains(&fixed[8]) {
            return Err(TraceError::malformed(Place::Byte(8), format!("page shift {} is not in 12..=30", fixed[8])));
        }
        this.header.kind = match fixed[9] {
            0 => RecordKind::Packed,
            1 => RecordKind::Wide,
            other => return Err(TraceError::malformed(Place::Byte(9), format!("unknown record kind {other}"))),
        };
        this.header.tasks = u16::from_le_bytes([fixed[10], fixed[11]]);
        if this.header.tasks == 0 || this.header.tasks > 1 << WIDE_TASK_BITS {
            return Err(TraceError::malformed(Place::Byte(10), format!("{} tasks", this.header.tasks)));
        }
        let regions = u32::from_le_bytes(four(&fixed[12..16]));
        if regions > REGIONS_MAX {
            return Err(TraceError::malformed(Place::Byte(12), format!("{regions} regions, more than {REGIONS_MAX}")));
        }
        this.header.seed = u64::from_le_bytes(eight(&fixed[16..24]));
        this.header.reduced_above_pages = u64::from_le_bytes(eight(&fixed[24..32]));
        this.read_regions(regions)?;
        Ok(this)
    }

    fn read_regions(&mut self, regions: u32) -> Result<(), TraceError> {
        let mut floor = 0u64;
        for _ in 0..regions {
            let place = Place::Byte(self.at);
            let mut raw = [0u8; 16];
            self.fill(&mut raw, "the region table")?;
            let first_page = u64::from_le_bytes(eight(&raw[..8]));
            let pages = u64::from_le_bytes(eight(&raw[8..]));
            let end = first_page.checked_add(pages).filter(|end| *end <= PAGES_MAX && pages > 0);
            let Some(end) = end.filter(|_| first_page >= floor) else {
                let what = format!("region of {pages} pages at {first_page} is empty, too large or out of order");
                return Err(TraceError::malformed(place, what));
            };
            floor = end;
            self.header.regions.push(TracedRegion { first_page, pages });
        }
        Ok(())
    }

    fn fill(&mut self, into: &mut [u8], within: &'static str) -> Result<(), TraceError> {
        let mut done = 0;
        while done < into.len() {
            match self.input.read(&mut into[done..]) {
                Ok(0) => return Err(TraceError::Truncated { place: Place::Byte(self.at), within }),
                Ok(n) => {
                    done += n;
                    self.at += n as u64;
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(TraceError::io(Place::Byte(self.at), e)),
            }
        }
        Ok(())
    }

    /// Reads the next block; false at the end mark.
    fn next_block(&mut self) -> Result<bool, TraceError> {
        let place = Place::Byte(self.at);
        let mut raw = [0u8; 4];
        self.fill(&mut raw, "a block header")?;
        let count = u32::from_le_bytes(raw);
        if count == 0 {
            let mut total = [0u8; 8];
            self.fill(&mut total, "the end mark")?;
            let total = u64::from_le_bytes(total);
            if total != self.records {
                let what = format!("the end mark says {total} records, but {} were read", self.records);
                return Err(TraceError::malformed(place, what));
            }
            return Ok(false);
        }
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count > BLOCK_RECORDS {
            let what = format!("a block of {count} records, more than {BLOCK_RECORDS}");
            return Err(TraceError::malformed(place, what));
        }
        let mut block = std::mem::take(&mut self.block);
        block.resize(count * self.record_len(), 0);
        self.fill(&mut block, "a block")?;
        self.block = block;
        self.next = 0;
        Ok(true)
    }

    const fn record_len(&self) -> usize {
        match self.header.kind {
            RecordKind::Packed => 4,
            RecordKind::Wide => 8,
        }
    }

    fn decode(&self, raw: &[u8]) -> Result<Record, TraceError> {
        let record = match self.header.kind {
            RecordKind::Packed => {
                let word = u32::from_le_bytes(four(raw));
                let op = if word & 1 == 1 { Op::Write } else { Op::Read };
                Record { page: u64::from(word >> 1), task: 0, op }
            }
            RecordKind::Wide => {
                let word = u64::from_le_bytes(eight(raw));
                let op = match word & 3 {
                    0 => Op::Read,
                    1 => Op::Write,
                    2 => Op::Discard,
                    other => return Err(self.bad_record(format!("unknown operation {other}"))),
                };
                let task = (word >> WIDE_TASK_SHIFT) & ((1 << WIDE_TASK_BITS) - 1);
                let task = u16::try_from(task).map_err(|_| self.bad_record("task"))?;
                Record { page: word >> WIDE_PAGE_SHIFT, task, op }
            }
        };
        if record.task >= self.header.tasks {
            return Err(self.bad_record(format!("task {} of {}", record.task, self.header.tasks)));
        }
        Ok(record)
    }

    fn bad_record(&self, what: impl Into<String>) -> TraceError {
        let back = (self.block.len() - self.next) as u64;
        TraceError::malformed(Place::Byte(self.at - back), what)
    }
}

impl<R: Read> RecordSource for BinaryReader<R> {
    fn header(&self) -> &Header {
        &self.header
    }

    fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        if self.ended {
            return Ok(None);
        }
        if self.next == self.block.len() && !self.next_block()? {
            self.ended = true;
            return Ok(None);
        }
        let len = self.record_len();
        let record = self.decode(&self.block[self.next..self.next + len])?;
        self.next += len;
        self.records += 1;
        Ok(Some(record))
    }
}

/// Writes the format. [`BinaryWriter::finish`] must be called, or the trace is truncated.
#[derive(Debug)]
pub struct BinaryWriter<W> {
    output: W,
    header: Header,
    block: Vec<u8>,
    in_block: u32,
    records: u64,
}

impl<W: Write> BinaryWriter<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// The output refuses, or the header cannot be said in this format.
    pub fn new(mut output: W, header: Header) -> Result<Self, TraceError> {
        let regions = u32::try_from(header.regions.len()).ok().filter(|n| *n <= REGIONS_MAX);
        let Some(regions) = regions else {
            return Err(TraceError::malformed(Place::Whole, format!("{} regions", header.regions.len())));
        };
        let mut raw = Vec::with_capacity(FIXED_LEN + header.regions.len() * 16);
        raw.extend_from_slice(&MAGIC);
        raw.push(header.page_shift);
        raw.push(match header.kind {
            RecordKind::Packed => 0,
            RecordKind::Wide => 1,
        });
        raw.extend_from_slice(&header.tasks.to_le_bytes());
        raw.extend_from_slice(&regions.to_le_bytes());
        raw.extend_from_slice(&header.seed.to_le_bytes());
        raw.extend_from_slice(&header.reduced_above_pages.to_le_bytes());
        for region in &header.regions {
            raw.extend_from_slice(&region.first_page.to_le_bytes());
            raw.extend_from_slice(&region.pages.to_le_bytes());
        }
        output.write_all(&raw).map_err(|e| TraceError::io(Place::Byte(0), e))?;
        Ok(Self { output, header, block: Vec::new(), in_block: 0, records: 0 })
    }

    /// Appends one record.
    ///
    /// # Errors
    /// The output refuses, or the record does not fit the header's layout.
    pub fn push(&mut self, record: Record) -> Result<(), TraceError> {
        if record.task >= self.header.tasks {
            return Err(self.unfit(format!("task {} of {}", record.task, self.header.tasks)));
        }
        match self.header.kind {
            RecordKind::Packed => {
                let write = match record.op {
                    Op::Read => 0,
                    Op::Write => 1,
                    Op::Discard => return Err(self.unfit("packed records know no discard".to_owned())),
                };
                let page = u32::try_from(record.page).ok().filter(|p| u64::from(*p) < PACKED_PAGES);
                let Some(page) = page else { return Err(self.unfit(format!("page {} of 2^31", record.page))) };
                self.block.extend_from_slice(&(page << 1 | write).to_le_bytes());
            }
            RecordKind::Wide => {
                if record.page >= WIDE_PAGES {
                    return Err(self.unfit(format!("page {} of 2^50", record.page)));
                }
                let op = match record.op {
                    Op::Read => 0,
                    Op::Write => 1,
                    Op::Discard => 2,
                };
                let word = record.page << WIDE_PAGE_SHIFT | u64::from(record.task) << WIDE_TASK_SHIFT | op;
                self.block.extend_from_slice(&word.to_le_bytes());
            }
        }
        self.in_block += 1;
        self.records += 1;
        if self.block.len() >= BLOCK_RECORDS * 4 {
            self.flush_block()?;
        }
        Ok(())
    }

    fn unfit(&self, what: String) -> TraceError {
        TraceError::malformed(Place::Whole, format!("record {}: {what}", self.records))
    }

    fn flush_block(&mut self) -> Result<(), TraceError> {
        if self.in_block == 0 {
            return Ok(());
        }
        let wrote = self.output.write_all(&self.in_block.to_le_bytes());
        wrote.and_then(|()| self.output.write_all(&self.block)).map_err(|e| TraceError::io(Place::Whole, e))?;
        self.block.clear();
        self.in_block = 0;
        Ok(())
    }

    /// Writes the end mark and gives the output back.
    ///
    /// # Errors
    /// The output refuses.
    pub fn finish(mut self) -> Result<W, TraceError> {
        self.flush_block()?;
        let mut end = [0u8; 12];
        end[4..].copy_from_slice(&self.records.to_le_bytes());
        let wrote = self.output.write_all(&end).and_then(|()| self.output.flush());
        wrote.map_err(|e| TraceError::io(Place::Whole, e))?;
        Ok(self.output)
    }
}

fn four(raw: &[u8]) -> [u8; 4] {
    raw.try_into().expect("the caller slices four bytes")
}

fn eight(raw: &[u8]) -> [u8; 8] {
    raw.try_into().expect("the caller slices eight bytes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let header = Header {
            tasks: 3,
            seed: 7,
            regions: vec![TracedRegion { first_page: 512, pages: 20 }, TracedRegion { first_page: 1024, pages: 1 }],
            ..Header::default()
        };
        let mut writer = BinaryWriter::new(Vec::new(), header).expect("a plain header");
        for i in 0..100u16 {
            let op = if i % 3 == 0 { Op::Write } else { Op::Read };
            writer.push(Record { page: 512 + u64::from(i % 20), task: i % 3, op }).expect("fits");
        }
        writer.finish().expect("a vector takes it all")
    }

    fn count(bytes: &[u8]) -> Result<u64, TraceError> {
        let mut reader = BinaryReader::new(bytes)?;
        let mut n = 0;
        while reader.next_record()?.is_some() {
            n += 1;
        }
        Ok(n)
    }

    #[test]
    fn what_is_written_is_read_back() {
        let bytes = sample();
        let mut reader = BinaryReader::new(bytes.as_slice()).expect("own format");
        assert_eq!(reader.header().regions.len(), 2);
        assert_eq!(reader.header().seed, 7);
        let first = reader.next_record().expect("sound").expect("not empty");
        assert_eq!(first, Record { page: 512, task: 0, op: Op::Write });
        assert_eq!(count(&bytes).expect("sound"), 100);
    }

    #[test]
    fn every_truncation_is_an_error_with_its_place() {
        let bytes = sample();
        for len in 0..bytes.len() {
            let error = count(&bytes[..len]).expect_err("a truncated trace");
            assert!(matches!(error, TraceError::Truncated { .. }), "at {len}: {error}");
        }
    }

    #[test]
    fn a_record_that_does_not_fit_is_refused() {
        let header = Header { kind: RecordKind::Packed, ..Header::default() };
        let mut writer = BinaryWriter::new(Vec::new(), header).expect("a plain header");
        assert!(writer.push(Record { page: PACKED_PAGES, task: 0, op: Op::Read }).is_err());
        assert!(writer.push(Record { page: 1, task: 1, op: Op::Read }).is_err());
        assert!(writer.push(Record { page: 1, task: 0, op: Op::Discard }).is_err());
        assert!(writer.push(Record { page: 1, task: 0, op: Op::Write }).is_ok());
    }
}
