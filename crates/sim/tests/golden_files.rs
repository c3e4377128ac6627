//! Rows with a file: counters of the real kernel (6.18.44, memcg v1, limit 16,384 pages, ext4 with journaled data, so single
//! pages; 128 KiB of readahead), medians of quiet runs of `make kernel-diff`, against the same accesses here.

use pagetide_sim::script::{OwnPages, PhaseResult, ScriptSpec, Timing, run_script};

fn play(script: &str, pages: u32, file: u32) -> Vec<PhaseResult> {
    let mut spec = ScriptSpec::new(script, pages, 16_384, "linux-6.18");
    spec.process_pages = 3;
    spec.own = OwnPages { hot: 3, between: 7, cold: 3 };
    spec.timing = Timing::MEMORY;
    spec.stat_accesses = 200;
    spec.file_pages = file;
    run_script(&spec).expect("a script that can be played")
}

/// Each counter within so many 1/1000 of the kernel's, or 40 pages.
fn compare(phase: &PhaseResult, permille: u64, kernel: &[(&str, u64)]) {
    for &(name, value) in kernel {
        let ours = phase.get(name);
        let off = ours.abs_diff(value);
        assert!(off <= 40 || off * 1000 <= value * permille, "{} {name}: kernel {value}, ours {ours}", phase.phase);
    }
}

#[test]
fn a_file_of_twice_the_memory_read_by_calls() {
    let phases = play("f f f4 f16", 512, 32_768);
    compare(&phases[0], 0, &[("pgscan_file", 16_520), ("pgsteal_file", 16_520), ("workingset_refault_file", 0)]);
    for again in &phases[1..] {
        let kernel = [("pgscan_file", 32_760), ("pgsteal_file", 32_760), ("workingset_refault_file", 32_768)];
        compare(again, 0, &kernel);
    }
}

#[test]
fn random_calls_find_their_working_set() {
    let phases = play("f F30000 f", 512, 32_768);
    let random = [
        ("pgscan_file", 19_709),
        ("pgsteal_file", 19_708),
        ("workingset_refault_file", 19_718),
        ("workingset_activate_file", 3_651),
    ];
    compare(&phases[1], 10, &random);
    compare(&phases[2], 10, &[("pgscan_file", 26_035), ("workingset_activate_file", 3_638)]);
}

#[test]
fn a_mapped_file_read_in_order_and_at_random() {
    let phases = play("m m M30000 m", 512, 32_768);
    compare(&phases[0], 30, &[("pgscan_file", 49_068), ("pgsteal_file", 16_588)]);
    compare(&phases[1], 30, &[("pgscan_file", 65_148), ("workingset_refault_file", 32_770)]);
    let random = [
        ("pgmajfault", 15_091),
        ("pgscan_file", 558_151),
        ("pgsteal_file", 373_579),
        ("workingset_refault_file", 373_530),
        ("workingset_activate_file", 86_755),
    ];
    compare(&phases[2], 30, &random);
}

#[test]
fn anonymous_pages_and_a_file_share_the_memory() {
    let phases = play("w A40000 A40000", 12_288, 12_288);
    let last = [
        ("pgscan_anon", 25_751),
        ("pgsteal_anon", 7_380),
        ("pgscan_file", 32_331),
        ("pgsteal_file", 32_325),
        ("pswpin", 6_704),
        ("pswpout", 4_314),
        ("workingset_refault_anon", 6_704),
        ("workingset_refault_file", 32_892),
        ("workingset_activate_anon", 2_505),
        ("workingset_activate_file", 19_831),
    ];
    compare(&phases[2], 30, &last);
}

#[test]
fn a_phase_without_its_file_is_refused() {
    let error = run_script(&ScriptSpec::new("w f", 512, 512, "linux-6.18")).expect_err("there is no file");
    assert_eq!(error.to_string(), "phase `f` uses a file: give its size");
}
