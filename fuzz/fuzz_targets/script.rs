//! Scripts of the simulator: sizes from the first bytes, then the phases. An error or a run, and what is short runs to its end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pagetide_sim::script::{Phase, ScriptSpec, parse, run_script};

fuzz_target!(|input: ([u8; 4], &str)| {
    let ([pages, memory, file, profile], script) = input;
    let Ok(phases) = parse(script) else { return };
    let is_short = |phase: &Phase| match phase {
        Phase::Random(count, _) | Phase::RandomCalls(count) | Phase::RandomMapped(count) | Phase::Mixed(count, _) => {
            *count <= 300
        }
        _ => true,
    };
    if phases.len() > 8 || !phases.iter().all(|(_, phase)| is_short(phase)) {
        return;
    }
    let profile = ["linux-6.18", "linux-3.10", "pagetide", "none"][usize::from(profile % 4)];
    let mut spec = ScriptSpec::new(script, u32::from(pages) * 2, u32::from(memory) + 64, profile);
    spec.file_pages = u32::from(file);
    let _ = run_script(&spec);
});
