//! The shape of most tests: a program natively; killed under a hard limit without us; under `pagetide run` inside the same
//! limit with the same output, and once more as nobody in signal mode.

use std::path::PathBuf;

use crate::MIB;
use crate::cgroup::{Cgroup, KernelSwap};
use crate::leftovers;
use crate::need::{self, Feature};
use crate::nobody;
use crate::pagetide::{FaultMode, PagetideRun};
use crate::program::{Exit, Finished, Program};
use crate::scratch::{Scratch, difference};

/// A program, and what of its output counts.
#[derive(Debug)]
pub struct Budgeted {
    program: Program,
    outputs: Vec<PathBuf>,
    divisor: u64,
    compares_stdout: bool,
    native_peak_bytes: Option<u64>,
    peak_gap: Option<&'static str>,
    native: Option<Program>,
    arguments: Vec<&'static str>,
    is_for_both: bool,
    is_compressing: bool,
}

/// What the program did natively.
struct Native<'a> {
    finished: &'a Finished,
    outputs: &'a [PathBuf],
    peak: u64,
}

impl Budgeted {
    /// `program`, under a quarter of its native peak.
    pub fn new(program: Program) -> Self {
        Self {
            program,
            outputs: Vec::new(),
            divisor: 4,
            compares_stdout: true,
            native_peak_bytes: None,
            peak_gap: None,
            native: None,
            arguments: Vec::new(),
            is_for_both: false,
            is_compressing: false,
        }
    }

    /// A file that the program writes, to be equal as well.
    #[must_use]
    pub fn output(mut self, path: PathBuf) -> Self {
        self.outputs.push(path);
        self
    }

    /// The budget is the native peak divided by this.
    #[must_use]
    pub fn divisor(mut self, divisor: u64) -> Self {
        assert!(divisor >= 4, "issue 2: at most a quarter of the native peak");
        self.divisor = divisor;
        self
    }

    /// Its standard output holds times or rates; only the verdict in the exit status counts.
    #[must_use]
    pub fn ignoring_stdout(mut self) -> Self {
        self.compares_stdout = false;
        self
    }

    /// Its peak, where `ru_maxrss` (one process) does not tell that of the tree.
    #[must_use]
    pub fn native_peak_bytes(mut self, bytes: u64) -> Self {
        self.native_peak_bytes = Some(bytes);
        self
    }

    /// It is known why the peak exceeds the budget by more than it may.
    #[must_use]
    pub const fn peak_gap(mut self, gap: &'static str) -> Self {
        self.peak_gap = Some(gap);
        self
    }

    /// What runs natively for the comparison, where the paged run does the same for longer.
    #[must_use]
    pub fn native(mut self, program: Program) -> Self {
        self.native = Some(program);
        self
    }

    /// More arguments of `pagetide run`.
    #[must_use]
    pub fn arguments(mut self, arguments: &[&'static str]) -> Self {
        self.arguments.extend(arguments);
        self
    }

    /// Pages are compressed as `how` (`compress=lz4`, say) as soon as it saves anything; some are to come back so.
    #[must_use]
    pub fn compressing(mut self, how: &'static str) -> Self {
        self.is_compressing = true;
        self.arguments(&["--set", how])
    }

    /// In signal mode, too, as nobody.
    #[must_use]
    pub const fn in_both_modes(mut self) -> Self {
        self.is_for_both = true;
        self
    }

    /// Runs all three and compares. Prints one line of figures.
    pub fn check(&self, scratch: &Scratch) {
        let native = self.native.as_ref().unwrap_or(&self.program).run(scratch, "native");
        native.expect_success();
        let native_outputs = self.keep_outputs("native");
        let peak = self.native_peak_bytes.unwrap_or(native.peak_rss_bytes);
        let budget = peak / self.divisor;
        let limit = budget + budget / 10 + 32 * MIB;
        let limited = need::has(&[Feature::Cgroup]);
        if limited {
            assert!(limit < peak, "native peak of {} MiB is too small for this test", peak / MIB);
            self.expect_killed_natively(scratch, limit);
        }

        let outcome = Native { finished: &native, outputs: &native_outputs, peak };
        self.run_paged(scratch, PagetideRun::new(scratch, budget), &self.program, &outcome);
        if self.is_for_both && nobody::can_run() {
            for path in &self.outputs {
                // It is the other user's.
                std::fs::remove_file(path).expect("it was compared");
            }
            let run = nobody::pagetide(scratch, budget).mode(FaultMode::Signal);
            self.run_paged(scratch, run, &self.program, &outcome);
        }
    }

    /// One paged run, in a hard limit where the machine has them.
    fn run_paged(&self, scratch: &Scratch, run: PagetideRun, program: &Program, native: &Native<'_>) {
        let (budget, peak) = (run.memory_bytes(), native.peak);
        let run = self.arguments.iter().fold(run, |run, argument| run.argument(argument));
        let limit = budget + budget / 10 + 32 * MIB;
        let group = need::has(&[Feature::Cgroup]).then(|| Cgroup::limited(limit, KernelSwap::Forbidden));
        let mut program = run.wrap(program);
        if run.fault_mode() == FaultMode::Signal {
            program = nobody::program(&program);
        }
        if let Some(group) = &group {
            program = program.inside(group);
        }
        let paged = program.run(scratch, "paged");
        self.judge(native.finished, native.outputs, &paged, group.as_ref());
        let stats = run.stats();
        stats.expect_laws().expect_paging((peak - budget) / 4096 / 4);
        if self.is_compressing {
            assert!(stats.counter("zswpin") > 0, "no page was compressed: the test says nothing");
        }
        if self.peak_gap.is_none_or(need::runs_gap) {
            stats.expect_peak();
        }
        let left = leftovers::files(&scratch.file("swap"));
        assert!(left.is_empty(), "swap files remain: {left:?}");
        eprintln!(
            "{:?}: peak {} MiB, budget {} MiB: native {:.2} s, paged {:.2} s, {} pages out, {} in ({} compressed), resident at most {} MiB{}",
            run.fault_mode(),
            peak / MIB,
            budget / MIB,
            native.finished.wall.as_secs_f64(),
            paged.wall.as_secs_f64(),
            stats.counter("pswpout"),
            stats.counter("pswpin") + stats.counter("zswpin"),
            stats.counter("zswpin"),
            stats.number("peak_resident_bytes") / MIB,
            group.map_or_else(String::new, |group| format!("; {}", group.summary())),
        );
    }

    fn judge(&self, native: &Finished, native_outputs: &[PathBuf], paged: &Finished, group: Option<&Cgroup>) {
        let place = group.map_or_else(String::new, Cgroup::summary);
        assert!(paged.exit == Exit::Code(0), "{}\n{place}", paged.report());
        if self.compares_stdout {
            let found = difference(&native.stdout_path, &paged.stdout_path);
            assert!(found.is_none(), "wrong output: {found:?}\n{}", paged.report());
        }
        for (own, kept) in self.outputs.iter().zip(native_outputs) {
            let found = difference(kept, own);
            assert!(found.is_none(), "wrong output: {found:?}\n{}", paged.report());
        }
        if let Some(group) = group {
            assert!(group.oom_kills() == 0, "killed for memory inside the limit: {place}\n{}", paged.report());
        }
        paged.expect_no_process_left();
    }

    /// The limit is real: without us the kernel kills the program in it.
    fn expect_killed_natively(&self, scratch: &Scratch, limit: u64) {
        let group = Cgroup::limited(limit, KernelSwap::Forbidden);
        let killed = self.native.as_ref().unwrap_or(&self.program).clone().inside(&group).run(scratch, "killed");
        assert!(
            group.oom_kills() > 0,
            "survived a limit of {} MiB natively: {}\n{}",
            limit / MIB,
            group.summary(),
            killed.report()
        );
        leftovers::kill_all(&killed.tag);
        for path in &self.outputs {
            // What it wrote before it was killed must not be taken for the next run's.
            let _ = std::fs::remove_file(path);
        }
    }

    /// Moves the program's files aside so that the next run cannot pass by leaving them as they are.
    fn keep_outputs(&self, label: &str) -> Vec<PathBuf> {
        let keep = |path: &PathBuf| {
            let kept = path.with_extension(label);
            std::fs::rename(path, &kept).unwrap_or_else(|error| panic!("{} was not written: {error}", path.display()));
            kept
        };
        self.outputs.iter().map(keep).collect()
    }
}
