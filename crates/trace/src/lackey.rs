//! Text of `valgrind --tool=lackey --trace-mem=yes`: one line per access.
//!
//! Data accesses only: instruction fetches touch file pages of the program text, which no swap device ever sees.
//! Consecutive accesses of one page become one record (a write if any of them wrote): between them nothing can have
//! changed the page's state, so replay sees the same faults.

use std::io::BufRead;

use crate::error::TraceError;
use crate::open::Lines;
use crate::record::{Header, Op, Record, RecordSource};

/// Largest single access that is believed (a vector register is 64 bytes, a save area a few KiB).
const ACCESS_BYTES_MAX: u64 = 1 << 16;

/// Reads lackey text.
#[derive(Debug)]
pub struct LackeyReader<R> {
    lines: Lines<R>,
    header: Header,
    /// The record that later lines may still be merged into.
    held: Option<Record>,
    /// Pages of a crossing access that are still to be delivered: next, last.
    rest: Option<(u64, u64, Op)>,
}

impl<R: BufRead> LackeyReader<R> {
    /// A reader of the text.
    pub fn new(input: R) -> Self {
        Self { lines: Lines::new(input), header: Header::default(), held: None, rest: None }
    }

    /// The next page touched, unmerged.
    fn next_touch(&mut self) -> Result<Option<Record>, TraceError> {
        loop {
            if let Some((page, last, op)) = self.rest {
                self.rest = (page < last).then_some((page + 1, last, op));
                return Ok(Some(Record { page, task: 0, op }));
            }
            let Some(line) = self.lines.next()? else { return Ok(None) };
            if line.is_empty() || line.starts_with("==") || line.starts_with("--") || line.starts_with("I ") {
                continue;
            }
            match parse(line) {
                Ok(touch) => self.rest = Some(touch),
                Err(what) => return Err(TraceError::malformed(self.lines.place(), what)),
            }
        }
    }
}

fn parse(line: &str) -> Result<(u64, u64, Op), String> {
    let op = match line.get(..3) {
        Some(" L ") => Op::Read,
        Some(" S " | " M ") => Op::Write,
        _ => {
            return Err("not a lackey line (` L `, ` S `, ` M ` or `I  ` and address,size); \
                        run valgrind with --log-file, so that the program's own output stays apart"
                .to_owned());
        }
    };
    let Some((address, size)) = line[3..].split_once(',') else { return Err("address,size expected".to_owned()) };
    let address = u64::from_str_radix(address.trim(), 16).map_err(|_| format!("`{address}` is no hex address"))?;
    let size: u64 = size.trim().parse().map_err(|_| format!("`{size}` is no size in bytes"))?;
    if size == 0 || size > ACCESS_BYTES_MAX {
        return Err(format!("an access of {size} bytes"));
    }
    let last = address.checked_add(size - 1).ok_or("the access leaves the address space")?;
    Ok((address >> 12, last >> 12, op))
}

impl<R: BufRead> RecordSource for LackeyReader<R> {
    fn header(&self) -> &Header {
        &self.header
    }

    fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        loop {
            let Some(next) = self.next_touch()? else { return Ok(self.held.take()) };
            match &mut self.held {
                Some(held) if held.page == next.page => {
                    if next.op == Op::Write {
                        held.op = Op::Write;
                    }
                }
                held => {
                    if let Some(done) = held.replace(next) {
                        return Ok(Some(done));
                    }
                }
            }
        }
    }
}
