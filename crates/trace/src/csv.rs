//! Plain CSV: `page,kind` or `page,kind,task`; kind is `r`/`read`/`0`, `w`/`write`/`1` or `d`/`discard`.
//! Pages are decimal or 0x-hexadecimal. A first line of names, empty lines and lines that begin with `#` are passed over.

use std::io::BufRead;

use crate::error::TraceError;
use crate::open::Lines;
use crate::record::{Header, Op, PAGES_MAX, Record, RecordSource};

/// Tasks that a CSV may name: as many as a wide binary record.
const TASKS_MAX: u16 = 4096;

/// Reads CSV.
#[derive(Debug)]
pub struct CsvReader<R> {
    lines: Lines<R>,
    header: Header,
    begun: bool,
}

impl<R: BufRead> CsvReader<R> {
    /// A reader of the text.
    pub fn new(input: R) -> Self {
        Self { lines: Lines::new(input), header: Header { tasks: TASKS_MAX, ..Header::default() }, begun: false }
    }
}

impl<R: BufRead> RecordSource for CsvReader<R> {
    fn header(&self) -> &Header {
        &self.header
    }

    fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        loop {
            let Some(line) = self.lines.next()? else { return Ok(None) };
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let names = !self.begun && line.split(',').next().is_some_and(|c| c.trim().eq_ignore_ascii_case("page"));
            self.begun = true;
            if names {
                continue;
            }
            return parse(line).map(Some).map_err(|what| TraceError::malformed(self.lines.place(), what));
        }
    }
}

fn parse(line: &str) -> Result<Record, String> {
    let mut columns = line.split(',').map(str::trim);
    let page = columns.next().unwrap_or("");
    let parsed = page.strip_prefix("0x").map_or_else(|| page.parse(), |hex| u64::from_str_radix(hex, 16));
    let page = parsed.map_err(|_| format!("`{page}` is no page number (expected page,kind[,task])"))?;
    if page >= PAGES_MAX {
        return Err(format!("page {page} is beyond 2^52"));
    }
    let op = match columns.next() {
        Some("r" | "R" | "read" | "0") => Op::Read,
        Some("w" | "W" | "write" | "1") => Op::Write,
        Some("d" | "D" | "discard") => Op::Discard,
        Some(other) => return Err(format!("kind `{other}`: r, w or d expected")),
        None => return Err("the kind is missing (expected page,kind[,task])".to_owned()),
    };
    let task = match columns.next() {
        None | Some("") => 0,
        Some(text) => {
            let task = text.parse().ok().filter(|t: &u16| *t < TASKS_MAX);
            task.ok_or_else(|| format!("task `{text}`: a number below {TASKS_MAX} expected"))?
        }
    };
    match columns.next() {
        None => Ok(Record { page, task, op }),
        Some(more) => Err(format!("`{more}` is one column too many")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Record>, TraceError> {
        let mut reader = CsvReader::new(text.as_bytes());
        let mut out = Vec::new();
        while let Some(record) = reader.next_record()? {
            out.push(record);
        }
        Ok(out)
    }

    #[test]
    fn names_comments_hex_and_tasks_are_understood() {
        let got = read("page,kind\n# note\n\n5,r\n0x10 , w , 3\n7,d\n").expect("sound");
        let want = [(5, 0, Op::Read), (16, 3, Op::Write), (7, 0, Op::Discard)];
        assert_eq!(got, want.map(|(page, task, op)| Record { page, task, op }));
    }

    #[test]
    fn an_error_names_its_line() {
        for (text, line) in
            [("1,r\n-2,r\n", 2), ("1,x\n", 1), ("1,r,0,0\n", 1), ("5\n", 1), ("99999999999999999,r\n", 1)]
        {
            let error = read(text).expect_err("malformed").to_string();
            assert!(error.starts_with(&format!("line {line}:")), "{text:?}: {error}");
        }
    }
}
