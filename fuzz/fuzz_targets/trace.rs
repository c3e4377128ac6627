//! Traces of any format, plain or compressed: an error or a trace, in bounded memory.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagetide_trace::{dense, open};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(mut source) = open::from_reader(Box::new(std::io::Cursor::new(bytes.to_vec()))) {
        let _ = dense::load(&mut *source, |_| {});
    }
});
