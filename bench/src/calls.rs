//! The suite `calls`: what signal mode adds to a system call, before anything of the program is paged out and afterwards.

use std::path::Path;

use pagetide_tests::pagetide::FaultMode;
use pagetide_tests::program::Program;
use pagetide_tests::{MIB, victim};

use crate::figure::{Figure, Sample, Target};
use crate::side::{Bench, Side};

/// The program of the paging runs fills so much.
const PAGED_MIB: u64 = 64;
/// In such a budget.
const BUDGET_MIB: u64 = 32;
/// Nothing is paged out in this one.
const ROOMY_MIB: u64 = 4096;

/// A call, and the nanoseconds that it may cost more.
struct Call {
    name: &'static str,
    before_ns: u64,
    paging_ns: u64,
}

const fn call(name: &'static str, paging_ns: u64) -> Call {
    Call { name, before_ns: 20, paging_ns }
}

/// As the program prints them. The clock is read without a system call.
const CALLS: [Call; 10] = [
    call("getpid", 1500),
    call("clock_gettime", 20),
    call("write", 100),
    call("read", 100),
    call("send", 100),
    call("recv", 100),
    call("futex", 100),
    call("epoll_wait", 100),
    call("writev", 1500),
    call("stat", 1500),
];

/// What each call took in one run, in the order of [`CALLS`].
fn measure(bench: &Bench, side: Side, binary: &Path, mib: u64, budget_mib: u64) -> Result<Vec<u64>, String> {
    let program = Program::new([binary.as_os_str().to_owned(), mib.to_string().into()]).deadline_s(bench.deadline_s);
    let outcome = bench.run_with(side, &program, budget_mib * MIB)?;
    let output = outcome.finished.stdout();
    CALLS
        .iter()
        .map(|call| {
            let value = output.lines().find_map(|line| line.strip_prefix(call.name)?.trim().parse().ok());
            value.ok_or_else(|| format!("calls printed nothing of {}:\n{output}", call.name))
        })
        .collect()
}

/// What the kernel alone takes for a call that is stopped, of which the program makes the least of many.
fn floor(bench: &Bench) -> Result<Figure, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("victims/stopped.c");
    let binary = victim::compile(&source, &bench.scratch().file("stopped"), &[]);
    let program = Program::new([binary]).deadline_s(bench.deadline_s);
    let mut samples = ["native", "stopped"].map(Sample::new);
    for _ in 0..bench.runs {
        let output = bench.run_with(Side::Native, &program, 0)?.finished.stdout();
        for sample in &mut samples {
            let value = output.lines().find_map(|line| line.strip_prefix(&sample.side)?.trim().parse().ok());
            sample.values.push(value.ok_or_else(|| format!("stopped printed nothing of {}:\n{output}", sample.side))?);
        }
    }
    let [native, stopped] = samples;
    let name = "a call that is stopped by a signal, without us".to_owned();
    Ok(Figure { name, unit: "ns", reference: Some(native), ours: Some(stopped), target: Target::None })
}

/// Native, under `run` with room for all, and under `run` while it pages, in turns.
pub(crate) fn run(bench: &Bench) -> Result<Vec<Figure>, String> {
    if bench.reference_only {
        return Ok(Vec::new());
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("victims/calls.c");
    let binary = victim::compile(&source, &bench.scratch().file("calls"), &[]);
    let signal = Side::Pagetide(FaultMode::Signal);
    let mut sides =
        [(Side::Native, 0, 0), (signal, 0, ROOMY_MIB), (signal, PAGED_MIB, BUDGET_MIB)].map(|side| (side, Vec::new()));
    for _ in 0..bench.runs {
        for ((side, mib, budget_mib), runs) in &mut sides {
            runs.push(measure(bench, *side, &binary, *mib, *budget_mib)?);
        }
    }
    let [(_, native), (_, before), (_, paging)] = sides;
    let floor = floor(bench)?;
    let each = CALLS.iter().enumerate().flat_map(|(index, call)| {
        figures(call, [&native, &before, &paging].map(|runs| runs.iter().map(|run| run[index]).collect()))
    });
    Ok(std::iter::once(floor).chain(each).collect())
}

fn figures(call: &Call, [native, before, paging]: [Vec<u64>; 3]) -> [Figure; 3] {
    let added = |ours: &[u64], what: &str, allowed_ns: u64| Figure {
        name: format!("{}, added {what}", call.name),
        unit: "ns",
        reference: Some(Sample { side: "allowed".to_owned(), values: vec![allowed_ns] }),
        ours: Some(Sample {
            side: "pagetide".to_owned(),
            values: ours.iter().zip(&native).map(|(ours, native)| ours.saturating_sub(*native)).collect(),
        }),
        target: Target::AtMost(100),
    };
    [
        Figure {
            name: format!("{}, natively and while paging", call.name),
            unit: "ns",
            reference: Some(Sample { side: "native".to_owned(), values: native.clone() }),
            ours: Some(Sample { side: "pagetide".to_owned(), values: paging.clone() }),
            target: Target::None,
        },
        added(&before, "before paging", call.before_ns),
        added(&paging, "while paging", call.paging_ns),
    ]
}
