//! Opening a file: which compression, which format.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use crate::binary::{BinaryReader, MAGIC};
use crate::csv::CsvReader;
use crate::error::{Place, TraceError};
use crate::lackey::LackeyReader;
use crate::record::RecordSource;

/// Bytes looked at to tell the text formats apart.
const SNIFF_BYTES: usize = 4096;

/// Opens a trace of any format, plain, gzip or zstd, told apart by content and not by name.
///
/// # Errors
/// The file cannot be read, or its beginning is of no known format.
pub fn open(path: &Path) -> Result<Box<dyn RecordSource>, TraceError> {
    let file = File::open(path).map_err(|e| TraceError::io(Place::Whole, e))?;
    from_reader(Box::new(file))
}

/// As [`open`], from any byte stream.
///
/// # Errors
/// As [`open`].
pub fn from_reader(input: Box<dyn Read>) -> Result<Box<dyn RecordSource>, TraceError> {
    let mut raw = BufReader::with_capacity(1 << 16, input);
    let start = peek(&mut raw)?;
    if start.starts_with(&[0x1f, 0x8b]) {
        return plain(BufReader::new(Box::new(flate2::bufread::MultiGzDecoder::new(raw)) as Box<dyn Read>));
    }
    if start.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        let decoder = zstd::stream::read::Decoder::with_buffer(raw).map_err(|e| TraceError::io(Place::Whole, e))?;
        return plain(BufReader::new(Box::new(decoder) as Box<dyn Read>));
    }
    plain(BufReader::new(Box::new(raw) as Box<dyn Read>))
}

fn peek<R: Read>(input: &mut BufReader<R>) -> Result<Vec<u8>, TraceError> {
    let seen = input.fill_buf().map_err(|e| TraceError::io(Place::Byte(0), e))?;
    Ok(seen[..seen.len().min(SNIFF_BYTES)].to_vec())
}

fn plain(mut input: BufReader<Box<dyn Read>>) -> Result<Box<dyn RecordSource>, TraceError> {
    let start = peek(&mut input)?;
    if start.is_empty() {
        return Err(TraceError::malformed(Place::Whole, "the trace is empty"));
    }
    if start.starts_with(&MAGIC[..start.len().min(MAGIC.len())]) {
        return Ok(Box::new(BinaryReader::new(input)?));
    }
    if start.contains(&0) {
        let what =
            "binary data of no known format; known are pagetide traces, valgrind lackey text and CSV (page,kind)";
        return Err(TraceError::malformed(Place::Byte(0), what));
    }
    if looks_like_lackey(&start) {
        return Ok(Box::new(LackeyReader::new(input)));
    }
    Ok(Box::new(CsvReader::new(input)))
}

fn looks_like_lackey(start: &[u8]) -> bool {
    let first = start.split(|b| *b == b'\n').find(|line| !line.is_empty()).unwrap_or(&[]);
    [&b"=="[..], b"--", b"I ", b" L", b" S", b" M"].iter().any(|prefix| first.starts_with(prefix))
}

/// One line at a time, with its number and a bound on its length.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    input: R,
    line: Vec<u8>,
    number: u64,
}

/// No line of a text format is longer.
const LINE_BYTES_MAX: u64 = 4096;

impl<R: BufRead> Lines<R> {
    pub(crate) const fn new(input: R) -> Self {
        Self { input, line: Vec::new(), number: 0 }
    }

    pub(crate) const fn place(&self) -> Place {
        Place::Line(self.number)
    }

    /// The next line without its end, or `None`.
    pub(crate) fn next(&mut self) -> Result<Option<&str>, TraceError> {
        self.line.clear();
        self.number += 1;
        let place = Place::Line(self.number);
        let mut bounded = (&mut self.input).take(LINE_BYTES_MAX + 1);
        let read = bounded.read_until(b'\n', &mut self.line).map_err(|e| TraceError::io(place, e))?;
        if read == 0 {
            return Ok(None);
        }
        if self.line.len() as u64 > LINE_BYTES_MAX {
            return Err(TraceError::malformed(place, format!("longer than {LINE_BYTES_MAX} bytes")));
        }
        let text = std::str::from_utf8(&self.line).map_err(|_| TraceError::malformed(place, "not text (UTF-8)"))?;
        Ok(Some(text.trim_end_matches(['\n', '\r'])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn pages(bytes: Vec<u8>) -> Result<Vec<u64>, TraceError> {
        let mut source = from_reader(Box::new(std::io::Cursor::new(bytes)))?;
        let mut out = Vec::new();
        while let Some(record) = source.next_record()? {
            out.push(record.page);
        }
        Ok(out)
    }

    const LACKEY: &[u8] = b"==12== Lackey\nI  04000a30,3\n L 1000,8\n S 2ffc,8\n M 5000,4\n";

    #[test]
    fn lackey_is_found_and_a_crossing_access_touches_both_pages() {
        assert_eq!(pages(LACKEY.to_vec()).expect("sound"), [1, 2, 3, 5]);
    }

    #[test]
    fn gzip_and_zstd_are_seen_through() {
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(LACKEY).expect("a vector");
        let gz = gz.finish().expect("a vector");
        assert_eq!(pages(gz.clone()).expect("sound"), [1, 2, 3, 5]);
        let zst = zstd::encode_all(LACKEY, 1).expect("a vector");
        assert_eq!(pages(zst.clone()).expect("sound"), [1, 2, 3, 5]);
        assert!(pages(gz[..gz.len() - 9].to_vec()).is_err());
        assert!(pages(zst[..zst.len() - 3].to_vec()).is_err());
    }

    #[test]
    fn a_foreign_file_is_refused_by_name() {
        let elf = b"\x7fELF\x02\x01\x01\0\0\0".to_vec();
        let error = pages(elf).expect_err("not a trace").to_string();
        assert!(error.contains("no known format"), "{error}");
        let prose = b"once upon a time\n".to_vec();
        assert!(pages(prose).expect_err("not a trace").to_string().starts_with("line 1"));
    }
}
