//! `run --summary` promises what more memory would have saved: with that memory it is so.

use std::ffi::OsString;

use pagetide_tests::need::{self, Feature};
use pagetide_tests::pagetide::PagetideRun;
use pagetide_tests::program::{Exit, Program};
use pagetide_tests::scratch::Scratch;
use pagetide_tests::{MIB, serial, victim};
use serde_json::Value;

/// A program over 64 MiB, run with so much memory.
struct Seen {
    stats: Value,
    summary: Vec<String>,
}

impl Seen {
    fn run(scratch: &Scratch, arguments: [&str; 3], budget: u64) -> Self {
        let argv = std::iter::once(OsString::from(victim::build(scratch, "uses"))).chain(arguments.map(OsString::from));
        let run = PagetideRun::new(scratch, budget).argument("--summary");
        let program = run.wrap(&Program::new(argv)).deadline_s(120);
        let outcome = program.run(scratch, "uses");
        outcome.expect_exit(Exit::Code(0)).expect_no_process_left();
        let lines = outcome.stderr().lines().map(str::to_owned).collect();
        Self { stats: serde_json::from_str(&run.stats().text()).expect("JSON"), summary: lines }
    }

    fn reads(&self) -> u64 {
        self.stats["vmstat"]["pswpin"].as_u64().expect("a counter")
    }

    /// Reads that are promised to be left with so much more memory.
    fn promised(&self, more: u64) -> u64 {
        let pairs = self.stats["reads_left_bp_with_more_bytes"].as_array().expect("pairs");
        let pairs = pairs.iter().map(|pair| (pair[0].as_u64().expect("bytes"), pair[1].as_u64().expect("a share")));
        let (_, left_bp) = pairs.take_while(|&(bytes, _)| bytes <= more).last().expect("no more is the first");
        self.reads() * left_bp / 10_000
    }

    /// The budget that the second of the three lines advises.
    fn advised(&self) -> u64 {
        let [first, second, third] = self.summary.as_slice() else { panic!("no three lines: {:?}", self.summary) };
        assert!(first.starts_with("pagetide: waited for memory: "), "{first}");
        assert!(third.starts_with("pagetide: a faster disk: "), "{third}");
        let size = second.strip_prefix("pagetide: more memory: with ").unwrap_or_else(|| panic!("{second}"));
        let (mib, _) = size.split_once(" MiB instead of ").unwrap_or_else(|| panic!("{second}"));
        mib.parse::<u64>().unwrap_or_else(|error| panic!("{second}: {error}")) * MIB
    }
}

#[test]
fn with_the_advised_memory_a_run_reads_as_little_as_was_promised() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let budget = 16 * MIB;
    // A loop needs all of it: half of what is missing saves nothing. A hot set is saved in part by each part.
    for (arguments, more) in [(["loop", "64", "4"], 24 * MIB), (["hot", "64", "30000"], 16 * MIB)] {
        let first = Seen::run(&scratch, arguments, budget);
        let (reads, advised) = (first.reads(), first.advised());
        assert!((60..80).contains(&(advised / MIB)), "{arguments:?}: {:?}", first.summary);
        for budget in [budget + more, advised] {
            let promised = first.promised(budget - 16 * MIB);
            let then = Seen::run(&scratch, arguments, budget);
            // A twentieth of all is no promise: the buckets of what pages were away are as coarse.
            let slack = promised / 3 + reads / 20;
            let what = format!("{arguments:?} with {} MiB: of {reads} reads", budget / MIB);
            assert!(then.reads().abs_diff(promised) <= slack, "{what} {} are left, {promised} promised", then.reads());
        }
    }
}
