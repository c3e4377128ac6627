//! `run --summary` promises what more memory would have saved: with that memory it is so.
//!
//! What is counted (reads, first touches) is held to a third. Times are as the machine is loaded, and whatever else it does only adds to
//! them: the least of three runs waits for no longer than was promised.

use std::ffi::OsString;
use std::process::{Command, Stdio};

use pagetide_tests::need::{self, Feature};
use pagetide_tests::pagetide::{FaultMode, PagetideRun};
use pagetide_tests::program::{Exit, Program};
use pagetide_tests::scratch::Scratch;
use pagetide_tests::steered::Steered;
use pagetide_tests::{MIB, serial, victim};
use serde_json::Value;

/// A dict that is used at random: what a program that hashes does with memory.
const DICT: &str = "\
import random
random.seed(1)
numbers = {random.getrandbits(60): at for at in range(300_000)}
keys = list(numbers)
random.shuffle(keys)
print(sum(numbers[keys[random.randrange(len(keys))]] for _ in range(30_000)))";

/// A program, run with so much memory.
struct Seen {
    stats: Value,
    summary: Vec<String>,
}

impl Seen {
    /// A program over 64 MiB.
    fn run(scratch: &Scratch, arguments: [&str; 3], budget: u64) -> Self {
        let argv = std::iter::once(OsString::from(victim::build(scratch, "uses"))).chain(arguments.map(OsString::from));
        Self::of(scratch, &Program::new(argv), FaultMode::Default, budget)
    }

    fn of(scratch: &Scratch, program: &Program, mode: FaultMode, budget: u64) -> Self {
        // What is promised are reads of a disk that has all pages: a part of them would come from compressed ones of the smaller budget.
        let run = PagetideRun::new(scratch, budget)
            .mode(mode)
            .argument("--summary")
            .argument("--set")
            .argument("compress=off");
        let outcome = run.wrap(program).deadline_s(120).run(scratch, "advised");
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

    fn counter(&self, name: &str) -> u64 {
        self.stats["vmstat"][name].as_u64().unwrap_or_else(|| panic!("{name}: {}", self.stats))
    }

    /// Tenths of a second for which it waited, as it says itself.
    fn waited_tenths(&self) -> u64 {
        self.counter("pt_stall_some_us") / 100_000
    }

    /// The budget that the second of the three lines advises, and the tenths of a second that would be waited then at most, and were.
    fn advised(&self) -> (u64, [u64; 2]) {
        let [first, second, third] = self.summary.as_slice() else { panic!("no three lines: {:?}", self.summary) };
        assert!(first.starts_with("pagetide: waited for memory: "), "{first}");
        assert!(third.starts_with("pagetide: a faster disk: "), "{third}");
        let size = second.strip_prefix("pagetide: more memory: with ").unwrap_or_else(|| panic!("{second}"));
        let (mib, rest) = size.split_once(" MiB instead of ").unwrap_or_else(|| panic!("{second}"));
        let (_, times) = rest.split_once(" it waits at most ").unwrap_or_else(|| panic!("{second}"));
        let (left, before) = times.split_once(" s, not ").unwrap_or_else(|| panic!("{second}"));
        let before = before.strip_suffix(" s").unwrap_or_else(|| panic!("{second}"));
        let number = |text: &str| text.parse::<u64>().unwrap_or_else(|error| panic!("{second}: {error}"));
        (number(mib) * MIB, [left, before].map(|seconds| number(&seconds.replace('.', ""))))
    }
}

#[test]
fn with_the_advised_memory_a_run_reads_as_little_as_was_promised() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::alone();
    let scratch = Scratch::new();
    let budget = 16 * MIB;
    // A loop needs all of it: half of what is missing saves nothing. A hot set is saved in part by each part.
    for (arguments, more) in [(["loop", "64", "4"], 24 * MIB), (["hot", "64", "30000"], 16 * MIB)] {
        let first = Seen::run(&scratch, arguments, budget);
        let (reads, (advised, [left, before])) = (first.reads(), first.advised());
        assert_eq!(before, first.waited_tenths(), "{:?}", first.summary);
        assert!((60..80).contains(&(advised / MIB)), "{arguments:?}: {:?}", first.summary);
        for budget in [budget + more, advised] {
            let promised = first.promised(budget - 16 * MIB);
            let then = Seen::run(&scratch, arguments, budget);
            // A twentieth of all is no promise: the buckets of what pages were away are as coarse.
            let slack = promised / 3 + reads / 20;
            let what = format!("{arguments:?} with {} MiB: of {reads} reads", budget / MIB);
            assert!(then.reads().abs_diff(promised) <= slack, "{what} {} are left, {promised} promised", then.reads());
            if budget < advised {
                continue;
            }
            // As many pages more are filled before the program is managed.
            let filled = first.counter("uffd_zero_filled");
            let promised = filled - filled.min((advised - 16 * MIB) / 4096);
            let then_filled = then.counter("uffd_zero_filled");
            assert!(then_filled <= promised + filled / 8, "{what}: {then_filled} of {filled}, {promised} promised");
            // What is said is a third more than what was reckoned.
            let saved = before.saturating_sub(then.waited_tenths());
            assert!(
                saved >= (before - left * 3 / 4) * 2 / 3,
                "{what}: {before}, {left} promised, waited {}",
                then.waited_tenths()
            );
        }
    }
}

#[test]
fn with_the_advised_memory_a_run_waits_no_longer_than_was_promised_in_both_modes() {
    if !need::has(&[Feature::Uffd, Feature::Tool("python3")]) {
        return;
    }
    let _turn = serial::alone();
    let scratch = Scratch::new();
    let hot: [OsString; 4] = [victim::build(&scratch, "uses").into(), "hot".into(), "64".into(), "30000".into()];
    let programs =
        [(Program::new(hot), [16, 24]), (Program::new(["python3", "-c", DICT]).env("PYTHONHASHSEED", "0"), [28, 34])];
    for ((program, budgets), mode) in
        programs.iter().flat_map(|program| [FaultMode::Thread, FaultMode::Signal].map(|mode| (program, mode)))
    {
        for budget in budgets.map(|mib: u64| mib * MIB) {
            let first = Seen::of(&scratch, program, mode, budget);
            let (advised, [most, before]) = first.advised();
            assert!(most < before, "more memory would have helped: {:?}", first.summary);
            let waited = (0..3).map(|_| Seen::of(&scratch, program, mode, advised).waited_tenths()).min();
            assert!(waited.is_some_and(|tenths| tenths <= most), "{mode:?}: {:?}: waited {waited:?}", first.summary);
        }
    }
}

/// What a run waited for before its budget was raised, it has now: that is no advice any more.
#[test]
fn a_budget_that_was_raised_to_what_it_takes_is_not_advised_to_be_raised() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::alone();
    let run = Steered::family(40, 0, 16 * MIB, &["--summary"]);
    run.wait_until("to read what it had once", || run.counter("pswpin") > 20_000);
    run.tell(&["memory", "128M"]);
    run.wait_until("to have all in memory", || run.stat()["resident_bytes"].as_u64() > Some(40 * MIB));
    let told = run.end_well();
    let more =
        told.lines().find(|line| line.starts_with("pagetide: more memory: ")).unwrap_or_else(|| panic!("{told}"));
    assert!(more.contains(": no need by now: with 128 MiB, to which it was raised, it waits at most "), "{told}");
}

#[test]
fn a_run_tells_of_itself_on_a_terminal_and_between_only_when_asked() {
    if !need::has(&[Feature::Uffd, Feature::Tool("script")]) {
        return;
    }
    let _turn = serial::alone();
    let scratch = Scratch::new();
    let program = victim::build(&scratch, "uses");
    let run = |options: &str| {
        let (pagetide, swap) = (pagetide_tests::pagetide::binary(), scratch.file("swap"));
        let command = format!("{} run --memory 16M --swap {} {options} --", pagetide.display(), swap.display());
        format!("{command} {} random 32 20000", program.display())
    };
    scratch.directory("swap");
    let told = |mut command: Command| {
        let output = command.stdin(Stdio::null()).output().expect("it starts");
        let [out, errors] = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(output.status.success() && out.contains("ok"), "{out}{errors}");
        let lines = out.lines().chain(errors.lines()).filter(|line| line.starts_with("pagetide: "));
        lines.map(|line| line.trim_end().to_owned()).collect::<Vec<_>>()
    };
    let shell = |options: &str| {
        let mut command = Command::new("sh");
        command.arg("-c").arg(run(options));
        command
    };
    let terminal = |options: &str| {
        let mut command = Command::new("script");
        command.arg("-qec").arg(run(options)).arg("/dev/null");
        command
    };
    let is_summary = |lines: &[String]| {
        let starts = ["pagetide: waited for memory: ", "pagetide: more memory: ", "pagetide: a faster disk: "];
        lines.len() == 3 && lines.iter().zip(starts).all(|(line, start)| line.starts_with(start))
    };
    assert!(is_summary(&told(terminal(""))), "by itself on a terminal: {:?}", told(terminal("")));
    assert_eq!(told(terminal("--summary=never")), Vec::<String>::new());
    assert_eq!(told(shell("")), Vec::<String>::new(), "not to a file that nobody asked for it");
    let lines = told(shell("--summary=0.1"));
    let (between, end) = lines.split_at(lines.len().saturating_sub(3));
    assert!(is_summary(end), "{lines:?}");
    let tells = |line: &String| line.contains(" resident, ") && line.contains(" faults a second that read, waited ");
    assert!(!between.is_empty() && between.iter().all(tells), "{lines:?}");
}
