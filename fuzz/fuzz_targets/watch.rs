//! What a run and its watchers say to each other: refused, or what says the same when it is sent again.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|packet: &[u8]| pagetide::fuzzing::watch(packet));
