//! Lines of /proc/PID/maps: refused, or a mapping with bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagetide_sys::maps;

fuzz_target!(|line: &[u8]| {
    if let Some(vma) = maps::parse_line(line) {
        assert!(vma.start < vma.end && vma.len() > 0);
        let _ = vma.is_private_anon();
    }
});
