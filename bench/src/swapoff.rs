//! Swapoff of a running program: how long it takes, and what the program gets done meanwhile, against the kernel's swapoff of as much.
//!
//! The program fills eight budgets and one more; then the budget is raised so that everything fits, and the place is taken away.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use pagetide_tests::cgroup::{Cgroup, KernelSwap};
use pagetide_tests::kernel_swap::KernelSwapFile;
use pagetide_tests::pagetide::{self, PagetideRun};
use pagetide_tests::program::{Exit, Program, Running};
use pagetide_tests::{MIB, clock, victim};
use rustix::process::Signal;

use crate::figure::{Figure, Sample, Target};
use crate::side::Bench;

/// What the kernel's side may have swapped out when its limit is raised, and ours.
const SWAPPED_BUDGETS: u64 = 8;
/// Name of our run.
const NAME: &str = "pagetide-bench-swapoff";
/// A swapoff that takes longer is a failure.
const LIMIT: Duration = Duration::from_mins(5);

/// One swapoff.
struct Swapoff {
    took_us: u64,
    accesses_per_s: u64,
}

/// The suite: an idle program and one that uses its memory at random, for each way to treat the statistics.
pub(crate) fn run(bench: &Bench) -> Result<Vec<Figure>, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("victims/swapoff.c");
    let binary = victim::compile(&source, &bench.scratch().file("swapoff"), &[]);
    let swapped_mib = if bench.quick { 128 } else { 1024 };
    let mut figures = Vec::new();
    for load in ["idle", "busy"] {
        for mode in ["no-lookup", "lookup", "lookup-stats"] {
            if !bench.wants(&format!("{load} {mode}")) {
                continue;
            }
            let mut times = (Sample::new("kernel"), Sample::new("pagetide"));
            let mut accesses = times.clone();
            for _ in 0..bench.runs {
                let reference = kernel(bench, &binary, load, swapped_mib)?;
                times.0.values.push(reference.took_us);
                accesses.0.values.push(reference.accesses_per_s);
                if !bench.reference_only {
                    let ours = ours(bench, &binary, load, mode, swapped_mib)?;
                    times.1.values.push(ours.took_us);
                    accesses.1.values.push(ours.accesses_per_s);
                }
            }
            let target = if bench.quick { Target::None } else { Target::AtMost(20) };
            let name = format!("swapoff of {swapped_mib} MiB, {load} program, {mode}");
            figures.push(figure(name, "us", times, target));
            if load == "busy" {
                let target = if bench.quick { Target::None } else { Target::AtLeast(100) };
                figures.push(figure(format!("accesses meanwhile, {mode}"), "pages/s", accesses, target));
            }
        }
    }
    Ok(figures)
}

fn figure(name: String, unit: &'static str, (reference, ours): (Sample, Sample), target: Target) -> Figure {
    let ours = Some(ours).filter(|sample| !sample.values.is_empty());
    Figure { name, unit, reference: Some(reference), ours, target }
}

fn program(binary: &Path, load: &str, swapped_mib: u64) -> Program {
    let mib = swapped_mib + swapped_mib / SWAPPED_BUDGETS;
    Program::new([OsString::from(binary), mib.to_string().into(), load.into()]).deadline_s(600)
}

/// Does it with the program at work, and ends the program.
fn timed(running: Running, swapoff: &mut Command) -> Result<Swapoff, String> {
    running.signal(Signal::USR1);
    let begin = clock::now();
    let output = swapoff.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    let took = begin.elapsed();
    if !output.status.success() || took > LIMIT {
        return Err(format!("{swapoff:?} after {took:?}: {}", String::from_utf8_lossy(&output.stderr)));
    }
    running.signal(Signal::TERM);
    let ended = running.finish();
    if ended.exit != Exit::Code(0) {
        return Err(ended.report());
    }
    let out = ended.stdout();
    let accesses = out.lines().find_map(|line| line.strip_prefix("accesses_per_s ")?.parse().ok());
    let took_us = u64::try_from(took.as_micros()).expect("a run lasts minutes");
    Ok(Swapoff { took_us, accesses_per_s: accesses.ok_or_else(|| ended.report())? })
}

fn kernel(bench: &Bench, binary: &Path, load: &str, swapped_mib: u64) -> Result<Swapoff, String> {
    let mut swap = KernelSwapFile::on(&bench.directory, 2 * swapped_mib * MIB)?;
    let group = Cgroup::limited(swapped_mib / SWAPPED_BUDGETS * MIB, KernelSwap::Allowed(bench.swappiness));
    swap.janitor().at_end(&group.removal_line());
    let running = program(binary, load, swapped_mib).inside(&group).start(bench.scratch(), "swapoff");
    running.wait_for_output("ready");
    group.raise_limit(2 * swapped_mib * MIB);
    timed(running, Command::new("swapoff").arg(swap.path()))
}

fn ours(bench: &Bench, binary: &Path, load: &str, mode: &str, swapped_mib: u64) -> Result<Swapoff, String> {
    let place = |name: &str| -> Result<PathBuf, String> {
        let path = bench.scratch().file(name);
        std::fs::create_dir_all(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(path)
    };
    let (sockets, second) = (place("sockets")?, place("second")?);
    let run = PagetideRun::new(bench.scratch(), swapped_mib / SWAPPED_BUDGETS * MIB).argument("--name").argument(NAME);
    // A run keeps one place.
    let run = run.argument("--swap").argument(format!("{}:1M:0", second.display()));
    let wrapped = run.wrap(&program(binary, load, swapped_mib)).env("XDG_RUNTIME_DIR", &sockets);
    let running = wrapped.start(bench.scratch(), "swapoff");
    running.wait_for_output("ready");
    let first = bench.scratch().file("swap");
    let ctl = |order: &[&str]| {
        let mut command = Command::new(pagetide::binary());
        command.args(["ctl", NAME]).args(order).env("XDG_RUNTIME_DIR", &sockets);
        command
    };
    let raised = ctl(&["memory", &format!("{}M", 2 * swapped_mib)]).output().map_err(|error| error.to_string())?;
    if !raised.status.success() {
        return Err(format!("ctl memory: {}", String::from_utf8_lossy(&raised.stderr)));
    }
    timed(running, &mut ctl(&["swapoff", &first.display().to_string(), "--mode", mode]))
}
