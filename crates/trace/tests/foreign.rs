//! Any bytes at all: an error or a trace, never a panic, and always an end.

use pagetide_trace::binary::BinaryWriter;
use pagetide_trace::{Header, Op, Record, RecordKind, dense, open};
use proptest::prelude::*;

fn load(bytes: Vec<u8>) -> Result<usize, pagetide_trace::TraceError> {
    let mut source = open::from_reader(Box::new(std::io::Cursor::new(bytes)))?;
    dense::load(&mut *source, |_| {}).map(|trace| trace.records.len())
}

fn sample(kind: RecordKind, n: u64) -> Vec<u8> {
    let header = Header { kind, ..Header::default() };
    let mut writer = BinaryWriter::new(Vec::new(), header).expect("a plain header");
    for i in 0..n {
        writer.push(Record { page: i * 37 % 4096, task: 0, op: Op::Write }).expect("fits");
    }
    writer.finish().expect("a vector takes it")
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
        let _ = load(bytes);
    }

    #[test]
    fn random_text_never_panics(text in "[ LSMI=0-9a-frw,\\n-]{0,400}") {
        let _ = load(text.into_bytes());
    }

    #[test]
    fn a_flipped_byte_is_an_error_or_another_trace(at in 0usize..400, to in any::<u8>(), zip in 0..3) {
        let mut bytes = sample(RecordKind::Wide, 40);
        match zip {
            1 => bytes = zstd::encode_all(bytes.as_slice(), 1).expect("a vector"),
            2 => {
                use std::io::Write;
                let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                gz.write_all(&bytes).expect("a vector");
                bytes = gz.finish().expect("a vector");
            }
            _ => {}
        }
        let at = at % bytes.len();
        bytes[at] = to;
        let _ = load(bytes);
    }

    #[test]
    fn a_truncated_trace_is_an_error(cut in 1usize..300, packed in any::<bool>(), zip in any::<bool>()) {
        let kind = if packed { RecordKind::Packed } else { RecordKind::Wide };
        let mut bytes = sample(kind, 30);
        if zip {
            bytes = zstd::encode_all(bytes.as_slice(), 1).expect("a vector");
        }
        let keep = bytes.len().saturating_sub(cut % bytes.len()).min(bytes.len() - 1);
        bytes.truncate(keep);
        prop_assert!(load(bytes).is_err());
    }

    #[test]
    fn what_was_written_comes_back(pages in proptest::collection::vec((0u64..1 << 31, any::<bool>()), 1..300)) {
        let header = Header { kind: RecordKind::Packed, ..Header::default() };
        let mut writer = BinaryWriter::new(Vec::new(), header).expect("a plain header");
        for (page, write) in &pages {
            let op = if *write { Op::Write } else { Op::Read };
            writer.push(Record { page: *page, task: 0, op }).expect("fits");
        }
        let bytes = writer.finish().expect("a vector takes it");
        let mut source = open::from_reader(Box::new(std::io::Cursor::new(bytes))).expect("own format");
        for (page, write) in pages {
            let got = source.next_record().expect("sound").expect("as many as written");
            prop_assert_eq!((got.page, got.op == Op::Write), (page, write));
        }
        prop_assert!(source.next_record().expect("sound").is_none());
    }
}
