//! Records of events: an error or events, and a configuration that is refused or can be built. Sums do not count under the fuzzer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagetide_driver::record::RecordReader;

fuzz_target!(|bytes: &[u8]| {
    let Ok(mut reader) = RecordReader::new(bytes) else { return };
    let _ = reader.config().build();
    while let Ok(Some(_)) = reader.next_event() {}
});
