//! Workloads and scripts of any text at all: an error or a run, never a panic.

use pagetide_sim::script::{Access, ScriptSpec, run_script};
use pagetide_sim::{replay::Budget, units, workload};
use proptest::prelude::*;

const GOOD: &str = "memory = \"1MiB\"\nduration = \"1s\"\n[set]\nswappiness = 60\n[[device]]\npreset = \"nvme\"\n\
                    size = \"4MiB\"\n[[task]]\nsize = \"2MiB\"\npattern = \"hot\"\nhot = \"64K\"\naccesses = 500\n";

/// What a person does with a workload: parse it, and run it if that worked.
fn use_it(text: &str) {
    if let Ok(workload) = workload::parse(text) {
        let small = workload.tasks.iter().all(|t| t.pages <= 4096 && t.count <= 8);
        let short = workload.tasks.iter().all(|t| t.accesses.is_some_and(|n| n <= 5_000));
        let modest = workload.devices.iter().all(|d| d.pages <= 1 << 16) && workload.memory_pages <= 1 << 16;
        if small && short && modest {
            let _ = pagetide_sim::run::run(&workload, |_| {});
        }
    }
}

#[test]
fn the_good_one_runs() {
    let workload = workload::parse(GOOD).expect("it is right");
    let report = pagetide_sim::run::run(&workload, |_| {}).expect("its settings are known");
    assert_eq!(report.end, pagetide_sim::world::RunEnd::Finished);
    assert_eq!(report.groups[0].accesses, 500);
}

#[test]
fn a_run_without_end_is_refused() {
    let text = GOOD.replace("accesses = 500\n", "access = \"1ns\"\n").replace("\"1s\"", "\"8000h\"");
    let error = workload::parse(&text).expect_err("ages");
    assert_eq!(error.line, 2, "{error}");
    assert!(error.what.contains("would take hours"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_an_error_or_a_workload(text in "[a-z\\[\\]=\"0-9 \\n.-]{0,200}") {
        use_it(&text);
    }

    #[test]
    fn a_damaged_workload_never_panics(at in 0usize..GOOD.len(), with in "[ -~\\n]{0,6}", cut in 0usize..8) {
        let mut text = GOOD.to_owned();
        let end = (at + cut).min(text.len());
        text.replace_range(at..end, &with);
        use_it(&text);
    }

    #[test]
    fn sizes_and_times_never_panic(text in "[0-9.]{0,22}[a-zA-Zµ%]{0,5}") {
        let _ = (units::pages(&text), units::nanos(&text), Budget::parse(&text));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn any_script_ends_with_a_result_or_an_error(
        script in "((w|r|b|s|x|X|t|s[0-9]|R[0-9]{1,3}|W[0-9]{1,3}|L[0-9]{2,4}|o[0-2]|q) ){0,8}",
        regions in proptest::collection::vec(1u32..1_500, 1..4),
        memory in 100u32..1_500,
        device in 0u32..3_000,
        processes in 1u32..4,
        stat_accesses in 0u32..300,
    ) {
        let mut spec = ScriptSpec::new(&script, 1, memory, "linux-6.18");
        spec.trace = (0..regions[0]).map(|page| (page, Access::Write)).collect();
        spec.regions = regions;
        spec.devices.push((device, Some(3)));
        spec.processes = processes;
        spec.stat_accesses = stat_accesses;
        if let Ok(phases) = run_script(&spec) {
            prop_assert_eq!(phases.len(), script.split_whitespace().count());
        }
    }
}
