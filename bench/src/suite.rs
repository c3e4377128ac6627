//! What is measured. A suite is a function from the bench to figures.

use std::process::Command;

use pagetide_tests::MIB;
use pagetide_tests::need::{self, source_directory};
use pagetide_tests::pagetide::FaultMode;
use pagetide_tests::program::Program;
use pagetide_tests::sources::shuffled_lines;

use crate::figure::{Figure, Sample, Target};
use crate::region;
use crate::side::{Bench, Outcome, Phase, Side, phases};

/// A named measurement.
#[derive(Debug)]
pub(crate) struct Suite {
    /// For `--only`.
    pub(crate) name: &'static str,
    /// What it measures.
    pub(crate) about: &'static str,
    /// Measures it.
    pub(crate) run: fn(&Bench) -> Result<Vec<Figure>, String>,
}

/// All suites, in the order in which they run.
pub(crate) const SUITES: &[Suite] = &[
    Suite { name: "fits", about: "wall time when everything fits, against native", run: fits },
    Suite { name: "resident", about: "peak memory of program and pager over the budget; metadata", run: resident },
    Suite { name: "sequential", about: "ascending rewrite of 4x the budget, 1 thread", run: sequential },
    Suite { name: "random", about: "uniform random rewrites over 4x the budget, 1 thread", run: random },
    Suite {
        name: "threads",
        about: "uniform random rewrites over 4x the budget, 2 and 8 threads, and ascending ones",
        run: threads,
    },
    Suite {
        name: "combined",
        about: "one thread ascending in the lower half, one random in the upper half",
        run: combined,
    },
    Suite {
        name: "programs",
        about: "real programs in 1/2 and 1/4 of their memory, against the kernel's swap and zswap",
        run: crate::programs::run,
    },
    Suite { name: "hot", about: "hot sets, zipf and loops: major faults against the kernel's", run: crate::hot::run },
    Suite {
        name: "swapoff",
        about: "swapoff of 1 GiB of an idle and of a busy program, for each statistics mode",
        run: crate::swapoff::run,
    },
    Suite {
        name: "calls",
        about: "what signal mode adds to a system call, before anything is paged out and afterwards",
        run: crate::calls::run,
    },
    Suite { name: "latency", about: "what a fault costs, in both fault modes", run: latency },
    Suite {
        name: "simulator",
        about: "accesses per second of the simulator, against libCacheSim; cost and memory per page",
        run: crate::simulator::run,
    },
];

/// Ours, as `run` is by default where it may.
pub(crate) const THREAD: Side = Side::Pagetide(FaultMode::Thread);
/// Ours, as `run` is for a user without privilege.
pub(crate) const SIGNAL: Side = Side::Pagetide(FaultMode::Signal);

/// Runs all sides in turns, and reads one value from each outcome.
fn in_turns<const SIDES: usize>(
    bench: &Bench,
    sides: [Side; SIDES],
    mut run: impl FnMut(Side) -> Result<u64, String>,
) -> Result<[Sample; SIDES], String> {
    let mut samples = sides.map(|side| Sample::new(side.name()));
    for _ in 0..bench.runs {
        for (side, sample) in sides.iter().zip(&mut samples) {
            if !(bench.reference_only && side.is_ours()) {
                sample.values.push(run(*side)?);
            }
        }
    }
    Ok(samples)
}

fn measured(sample: Sample) -> Option<Sample> {
    Some(sample).filter(|sample| !sample.values.is_empty())
}

fn wall_us(outcome: &Outcome) -> u64 {
    u64::try_from(outcome.finished.wall.as_micros()).expect("a run lasts minutes")
}

/// The last phase of a memload run: those before it bring the lists into their steady state.
fn last_phase(bench: &Bench, side: Side, program: &Program) -> Result<Phase, String> {
    let outcome = bench.run(side, program)?;
    phases(&outcome).pop().ok_or_else(|| outcome.finished.report())
}

fn fits(bench: &Bench) -> Result<Vec<Figure>, String> {
    let scale = if bench.quick { 10 } else { 1 };
    let script = source_directory().join("programs/dicts.py").display().to_string();
    let dicts = |python: &str| {
        let argv = [python.to_owned(), script.clone(), (150_000 / scale).to_string()];
        Program::new(argv).env("PYTHONHASHSEED", "0")
    };
    let lines = shuffled_lines(bench.scratch(), 2_000_000 / scale, 1);
    let argument = |text: &str| text.to_owned();
    let candidates = [
        (
            "memload, 256 MiB",
            "cc",
            bench.memload(256, if bench.quick { "w W100000" } else { "w W9000000 r w W9000000" }, 1, false),
        ),
        ("python3 dicts", "python3", dicts(&interpreter())),
        ("python3 dicts, by the name in PATH (with pyenv a chain of processes)", "python3", dicts("python3")),
        (
            "sort with 2 threads",
            "sort",
            Program::new([
                argument("sort"),
                argument("-S"),
                argument("500M"),
                argument("--parallel=2"),
                lines.display().to_string(),
            ])
            .env("LC_ALL", "C"),
        ),
        ("true (start and end only)", "true", Program::new(["true"])),
    ];
    let mut figures = Vec::new();
    for (name, tool, program) in candidates.into_iter().filter(|(_, tool, _)| need::on_path(tool)) {
        let run = |side| bench.run_with(side, &program, 4096 * MIB).map(|outcome| wall_us(&outcome));
        let [reference, ours] = in_turns(bench, [Side::Native, THREAD], run)?;
        let target = if tool == "true" { Target::None } else { Target::AtMost(102) };
        figures.push(Figure {
            name: format!("wall time, {name}"),
            unit: "us",
            reference: Some(reference),
            ours: measured(ours),
            target,
        });
    }
    Ok(figures)
}

/// The python that `python3` starts in the end; without one, the name.
pub(crate) fn interpreter() -> String {
    let told = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output();
    let told = told.map_or_else(|_| String::new(), |told| String::from_utf8_lossy(&told.stdout).trim().to_owned());
    if told.is_empty() { "python3".to_owned() } else { told }
}

/// The budget stands in as the reference, so that the ratio is peak over budget.
fn resident(bench: &Bench) -> Result<Vec<Figure>, String> {
    if bench.reference_only {
        return Ok(Vec::new());
    }
    let budget = bench.budget_mib * MIB;
    let managed = 4 * budget;
    let program = bench.memload(4 * bench.budget_mib, "w W50000 r", 1, false);
    let [mut outside, mut reported, mut overhead] =
        ["pagetide, seen from outside", "pagetide, as --stats says", "pagetide"].map(Sample::new);
    for _ in 0..bench.runs {
        let outcome = bench.run_watched(&program)?;
        let stats = outcome.stats.expect("a pagetide run that ended well has statistics");
        outside.values.push(outcome.anon_peak_bytes);
        reported.values.push(stats.number("peak_resident_bytes"));
        overhead.values.push(stats.number("peak_metadata_bytes"));
    }
    let fixed = |side: &str, value| Some(Sample { side: side.to_owned(), values: vec![value] });
    // 2 % and 8 MiB over the budget, in hundredths of the budget.
    let most = Target::AtMost(102 + 800 * MIB / budget);
    let figure = |name: &str, reference, sample, target| Figure {
        name: name.to_owned(),
        unit: "bytes",
        reference,
        ours: Some(sample),
        target,
    };
    Ok(vec![
        figure("peak anonymous memory of the tree", fixed("budget", budget), outside, most),
        figure("peak resident", fixed("budget", budget), reported, most),
        figure(
            "our metadata over 1 % of the managed bytes",
            fixed("1 % of managed", managed / 100),
            overhead,
            Target::AtMost(150),
        ),
    ])
}

/// Both fault modes against the kernel, and what they must reach.
fn pages_per_s(
    bench: &Bench,
    name: &str,
    program: &Program,
    thread: Target,
    signal: Target,
) -> Result<Vec<Figure>, String> {
    let run = |side| last_phase(bench, side, program).map(|phase| phase.pages_per_s);
    let [kernel, in_thread_mode, in_signal_mode] = in_turns(bench, [Side::Kernel, THREAD, SIGNAL], run)?;
    let figure = |mode: &str, ours, target| Figure {
        name: format!("{name}, {mode} mode"),
        unit: "pages/s",
        reference: Some(kernel.clone()),
        ours: measured(ours),
        target,
    };
    Ok(vec![figure("thread", in_thread_mode, thread), figure("signal", in_signal_mode, signal)])
}

fn accesses(bench: &Bench, full: u64) -> u64 {
    if bench.quick { full / 10 } else { full }
}

fn sequential(bench: &Bench) -> Result<Vec<Figure>, String> {
    let program = bench.memload(4 * bench.budget_mib, "w w", 1, false);
    pages_per_s(bench, "sequential rewrite", &program, Target::AtLeast(400), Target::AtLeast(400))
}

fn random(bench: &Bench) -> Result<Vec<Figure>, String> {
    let count = accesses(bench, 100_000);
    let program = bench.memload(4 * bench.budget_mib, &format!("W{count} W{count}"), 1, false);
    pages_per_s(bench, "random rewrite", &program, Target::AtLeast(100), Target::AtLeast(110))
}

fn threads(bench: &Bench) -> Result<Vec<Figure>, String> {
    let count = accesses(bench, 200_000);
    let script = format!("W{count} W{count}");
    let mut figures = Vec::new();
    for (threads, least) in [(2, 100), (8, 120)] {
        let random = bench.memload(4 * bench.budget_mib, &script, threads, false);
        let name = format!("random rewrite, {threads} threads");
        figures.extend(pages_per_s(bench, &name, &random, Target::None, Target::AtLeast(least))?);
    }
    let ascending = bench.memload(4 * bench.budget_mib, "w w", 8, false);
    figures.extend(pages_per_s(bench, "ascending rewrite, 8 threads", &ascending, Target::None, Target::None)?);
    Ok(figures)
}

fn combined(bench: &Bench) -> Result<Vec<Figure>, String> {
    let count = accesses(bench, 100_000);
    let program = bench.memload(4 * bench.budget_mib, &format!("c{count} c{count}"), 2, false);
    pages_per_s(bench, "combined", &program, Target::None, Target::None)
}

/// Three views: what the program waits for an access of 1 us and more, on either side; what the runtime measured of a fault in
/// thread mode; and the same in signal mode, which regions of the library have.
fn latency(bench: &Bench) -> Result<Vec<Figure>, String> {
    let count = accesses(bench, 100_000);
    let program = bench.memload(4 * bench.budget_mib, &format!("W{count} W{count}"), 1, true);
    let [mut kernel_p50, mut kernel_p99] = ["kernel", "kernel"].map(Sample::new);
    let [mut p50, mut p99, mut fault_p50, mut fault_p99] = [THREAD.name(); 4].map(Sample::new);
    let [mut region_p50, mut region_p99] = ["region"; 2].map(Sample::new);
    for _ in 0..bench.runs {
        let phase = last_phase(bench, Side::Kernel, &program)?;
        kernel_p50.values.push(phase.slow_p50_ns);
        kernel_p99.values.push(phase.slow_p99_ns);
        if !bench.reference_only {
            let outcome = bench.run(THREAD, &program)?;
            let phase = phases(&outcome).pop().ok_or_else(|| outcome.finished.report())?;
            p50.values.push(phase.slow_p50_ns);
            p99.values.push(phase.slow_p99_ns);
            let stats = outcome.stats.as_ref().expect("a pagetide run that ended well has statistics");
            fault_p50.values.push(stats.fault_latency_ns("p50").unwrap_or(0));
            fault_p99.values.push(stats.fault_latency_ns("p99").unwrap_or(0));
            let faults = region::random_rewrites(bench, 2 * count)?;
            region_p50.values.push(faults.p50);
            region_p99.values.push(faults.p99);
        }
    }
    let figure = |name: &str, reference, ours| Figure {
        name: name.to_owned(),
        unit: "ns",
        reference,
        ours: measured(ours),
        target: Target::None,
    };
    Ok(vec![
        figure("random access over 1 us, p50", measured(kernel_p50), p50),
        figure("random access over 1 us, p99", measured(kernel_p99), p99),
        figure("fault latency of the whole run in thread mode, p50", None, fault_p50),
        figure("fault latency of the whole run in thread mode, p99", None, fault_p99),
        figure("fault latency of the whole run in signal mode, p50", None, region_p50),
        figure("fault latency of the whole run in signal mode, p99", None, region_p99),
    ])
}
