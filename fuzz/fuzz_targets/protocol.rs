//! Packets between supervisor and agents: refused, or what says the same when it is sent again.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|packet: &[u8]| pagetide::fuzzing::packet(packet));
