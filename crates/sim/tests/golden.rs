//! The golden rows: counters of the real kernel (6.18.44, memcg v1, limit 16,384 pages, 32,768 pages of anonymous memory)
//! against the same accesses here. Each of the main counters is within 3 % or 40 pages, but for those in `MISSES`.

use pagetide_sim::script::{OwnPages, PhaseResult, ScriptSpec, run_script};

const COUNTERS: [&str; 8] = [
    "pswpin",
    "pswpout",
    "pgscan_anon",
    "pgsteal_anon",
    "pgmajfault",
    "swap_ra",
    "swap_ra_hit",
    "workingset_refault_anon",
];

struct Row {
    script: &'static str,
    phase: usize,
    setting: Option<&'static str>,
    kernel: [u64; 8],
}

const fn row(script: &'static str, phase: usize, setting: Option<&'static str>, kernel: [u64; 8]) -> Row {
    Row { script, phase, setting, kernel }
}

const ROWS: [Row; 12] = [
    row("w", 0, None, [16, 16_651, 65_481, 16_529, 9, 7, 4, 0]),
    row("w r", 1, None, [32_787, 16_149, 79_131, 32_784, 4_113, 28_674, 28_671, 32_785]),
    row("w r w", 2, None, [32_782, 17_040, 81_387, 32_781, 4_110, 28_672, 28_670, 32_771]),
    row("w r w r", 3, None, [32_781, 15_740, 79_468, 32_800, 4_110, 28_671, 28_670, 32_790]),
    row("w r r", 2, None, [32_781, 6, 65_381, 32_782, 4_110, 28_671, 28_670, 32_769]),
    row("w b", 1, None, [16_551, 5_708, 50_483, 16_561, 2_083, 14_468, 14_464, 16_533]),
    row("w s", 1, None, [16_566, 16_011, 33_527, 16_548, 16_179, 387, 130, 16_560]),
    row("w R40000", 1, None, [20_321, 11_685, 58_564, 20_276, 20_263, 58, 14, 20_332]),
    row("w r", 1, Some("page-cluster=5"), [32_775, 16_078, 80_215, 32_744, 1_036, 31_739, 31_736, 32_795]),
    row("w r", 1, Some("page-cluster=0"), [32_784, 16_186, 81_430, 32_720, 32_784, 0, 0, 32_810]),
    row("w r", 1, Some("readahead=cluster"), [32_797, 16_019, 77_828, 32_794, 4_120, 28_677, 28_664, 32_819]),
    row("w R40000", 1, Some("readahead=cluster"), [20_291, 11_802, 55_854, 20_216, 20_281, 10, 5, 20_273]),
];

/// What misses its band, by how much at most (1/1000), and why.
const MISSES: [(&str, Option<&str>, &str, u64); 1] = [
    // Passes over whole lists, some thousand pages each, that fall into the phase or not: 48,722 to 59,820 in 16 runs of this row
    // on the kernel (loop device on ext4 and in memory, no statistics gathered but by the kernel itself).
    ("w R40000", Some("readahead=cluster"), "pgscan_anon", 50),
];

/// When the kernel gathered its statistics first, in ms of the row's run: chance, and fitted where a row depends on it. The
/// writes of `w b` on the kernel: some 150 in runs without a gathering, 5,708 in the row's, 8,300 in another with one.
const GATHERED: [(&str, Option<&str>, u64); 2] = [("w b", None, 394), ("w R40000", Some("readahead=cluster"), 980)];

/// The program had 22 pages of its own in the first slots, and they took the first window of eight: nine of its faults in `w`
/// were major. Of the other pages that it needs, nothing is known but their number. How many pages lie before the region's
/// decides how the blocks of cluster readahead divide it: with 1 to 24 pages more than the player of kernel-diff has, the kernel
/// read 9 to 63 pages ahead in `w R40000` (17 runs), the simulator 9 to 80.
const OWN: OwnPages = OwnPages { hot: 0, between: 9, cold: 13 };
const PROCESS_PAGES: u32 = 14;

fn spec(script: &str, setting: Option<&str>) -> ScriptSpec {
    let mut spec = ScriptSpec::new(script, 32_768, 16_384, "linux-6.18");
    spec.own = OWN;
    spec.process_pages = PROCESS_PAGES;
    spec.settings.extend(setting.map(str::to_owned));
    spec
}

fn play(row: &Row) -> PhaseResult {
    let mut spec = spec(row.script, row.setting);
    if row.script == "w s" {
        // The group had been used before, for `w b`, whose active list the statistics still showed: the row's 14,083
        // activations need an active list of 15,600 pages, which no page of its own run had been on. The kernel's runs have 3,747
        // to 6,988 activations if the statistics were read at the end of such a `w b`, else none.
        spec.stat_start = [700, 15_600, 0, 0];
        spec.stat_first_ns = spec.stat_interval_ns;
    }
    if let Some(&(_, _, ms)) = GATHERED.iter().find(|g| g.0 == row.script && g.1 == row.setting) {
        spec.stat_first_ns = ms * 1_000_000;
    }
    run_script(&spec).expect("a script that can be played").swap_remove(row.phase)
}

#[test]
fn the_golden_rows_are_within_their_bands() {
    let mut wrong = Vec::new();
    for row in &ROWS {
        let got = play(row);
        for (name, kernel) in COUNTERS.iter().zip(row.kernel) {
            let ours = got.get(name);
            let known = MISSES.iter().find(|m| m.0 == row.script && m.1 == row.setting && m.2 == *name);
            let permille = known.map_or(30, |m| m.3);
            let off = ours.abs_diff(kernel);
            if off > 40 && off * 1000 > kernel * permille {
                wrong.push(format!("{} {:?} {name}: kernel {kernel}, ours {ours}", row.script, row.setting));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_steady_reclaim_call_looks_at_41_pages() {
    let spec = ScriptSpec::new("w r", 32_768, 16_384, "linux-6.18");
    let phases = run_script(&spec).expect("a script that can be played");
    let reads = &phases[1].reclaim_calls;
    let (most, times) = reads.iter().max_by_key(|&&(_, times)| times).copied().expect("there are calls");
    assert_eq!(most, 41, "1 + 2 + 5 + 11 + 22 pages at priorities 11 to 7");
    assert!(times > 600, "{times} calls of 41 pages");
}

#[test]
fn windows_of_the_readahead_traces() {
    let counts = |script: &str, setting: Option<&str>| {
        let mut spec = ScriptSpec::new(script, 32_768, 16_384, "linux-6.18");
        spec.settings.extend(setting.map(str::to_owned));
        let last = run_script(&spec).expect("a script that can be played").pop().expect("a phase");
        (last.get("pgmajfault"), last.get("swap_ra"), last.get("swap_ra_hit"))
    };
    assert_eq!(counts("w r", None), (4_098, 28_670, 28_670));
    assert_eq!(counts("w r", Some("page-cluster=5")), (1_028, 31_740, 31_740));
    let (_, ahead, hits) = counts("w s", None);
    assert_eq!((ahead, hits), (385, 128), "every second page");
}

#[test]
fn the_same_script_gives_the_same_result() {
    let spec = ScriptSpec::new("w R5000 b W3000", 8_192, 4_096, "linux-6.18");
    assert_eq!(run_script(&spec), run_script(&spec));
}

#[test]
fn a_wrong_script_says_where() {
    let error = run_script(&ScriptSpec::new("w q", 512, 512, "linux-6.18")).expect_err("q is no phase");
    assert_eq!(
        error.to_string(),
        "phase 2: `q` is none of w, r, b, s, sN, RN, WN, x, X, f, fN, FN, m, MN, aN, AN, t, LN, oN (as in `w r R40000`)"
    );
    let error = run_script(&ScriptSpec::new("w", 512, 8, "linux-6.18")).expect_err("too small");
    assert_eq!(error.to_string(), "memory: 8 pages is less than 101");
}

#[test]
fn a_device_that_is_too_small_is_out_of_memory() {
    let mut spec = ScriptSpec::new("w", 4_096, 1_024, "linux-6.18");
    spec.devices = vec![(512, None)];
    let error = run_script(&spec).expect_err("3,072 pages do not fit 511 slots");
    assert!(error.to_string().contains("out of memory"), "{error}");
}
