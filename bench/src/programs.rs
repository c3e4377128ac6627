//! The suite `programs`: real programs in a half and in a quarter of the memory that they take natively.

use std::path::{Path, PathBuf};
use std::process::Command;

use pagetide_tests::kernel_swap::has_zswap;
use pagetide_tests::need;
use pagetide_tests::pagetide::FaultMode;
use pagetide_tests::program::Program;
use pagetide_tests::sources::{java_classes, shuffled_lines, source, very_large_c_file};
use pagetide_tests::victim;

use crate::contest::{self, End, Row, Trial};
use crate::figure::Figure;
use crate::side::{Bench, Side};
use crate::suite::{SIGNAL, THREAD, interpreter};

const SHARES: [(&str, u64); 2] = [("1/2", 2), ("1/4", 4)];

/// A program, and the file that it writes, if its standard output is not all.
type Made = Result<(Program, Option<PathBuf>), String>;

/// A program that is not made before its row is wanted: some need a set-up.
struct Candidate {
    name: &'static str,
    tools: &'static [&'static str],
    make: fn(&Bench, u64) -> Made,
}

const CANDIDATES: [Candidate; 10] = [
    Candidate { name: "python3 dict", tools: &["python3"], make: dict },
    Candidate { name: "duckdb", tools: &["python3"], make: duckdb },
    Candidate { name: "pagerank", tools: &["cc"], make: pagerank },
    Candidate { name: "numpy", tools: &["python3"], make: numpy },
    Candidate { name: "sqlite3", tools: &["sqlite3"], make: sqlite },
    Candidate { name: "sort", tools: &["sort"], make: sort },
    Candidate { name: "gcc", tools: &["gcc"], make: gcc },
    Candidate { name: "node", tools: &["node"], make: node },
    Candidate { name: "java", tools: &["java", "javac"], make: java },
    Candidate { name: "hash join", tools: &["cc"], make: hash_join },
];

/// All rows.
pub(crate) fn run(bench: &Bench) -> Result<Vec<Figure>, String> {
    let mut figures = Vec::new();
    let sides = sides(bench);
    for candidate in CANDIDATES {
        let shares: Vec<(String, u64)> = SHARES
            .iter()
            .map(|(share, divisor)| (format!("{}, {share}", candidate.name), *divisor))
            .filter(|(name, _)| bench.wants(name))
            .collect();
        if shares.is_empty() || !candidate.tools.iter().all(|tool| need::on_path(tool)) {
            continue;
        }
        let (program, output) = (candidate.make)(bench, if bench.quick || bench.small { 4 } else { 1 })?;
        let program = program.deadline_s(bench.deadline_s);
        let native = Trial::of(&bench.outcome(Side::Native, &program, 0)?, output.as_ref());
        if native.end != End::Well {
            return Err(format!("{} does not run natively: {native:?}", candidate.name));
        }
        for (name, divisor) in shares {
            let budget_bytes = (native.peak_bytes / divisor) & !4095;
            let row = Row { name, program: program.clone(), output: output.clone(), budget_bytes, faults_most: 110 };
            figures.extend(contest::run(bench, &row, &sides, Some(native.digest))?);
        }
    }
    let (ours, references): (Vec<Side>, Vec<Side>) = sides.iter().partition(|side| side.is_ours());
    for ours in ours {
        references.iter().for_each(|side| contest::print_mean(&figures, ours, *side));
    }
    Ok(figures)
}

/// Ours is last; a compressor that the kernel lacks is left out.
fn sides(bench: &Bench) -> Vec<Side> {
    let zswap = ["lzo", "lz4"].into_iter().filter(|compressor| has_zswap(compressor)).map(Side::Zswap);
    let compressing =
        [FaultMode::Thread, FaultMode::Signal].map(|mode| ["off", "lz4"].map(|how| Side::Compressing(mode, how)));
    let ours = [THREAD, SIGNAL].into_iter().chain(compressing.into_iter().flatten());
    let sides = [Side::Native, Side::Kernel].into_iter().chain(zswap).chain(ours);
    sides.filter(|side| bench.runs_on(*side)).collect()
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name)
}

fn python(interpreter: PathBuf, name: &str, count: u64) -> Program {
    Program::new([interpreter.into_os_string(), script(name).into(), count.to_string().into()])
        .env("PYTHONHASHSEED", "0")
}

fn dict(_bench: &Bench, divisor: u64) -> Made {
    Ok((python(interpreter().into(), "dict.py", 1_500_000 / divisor), None))
}

fn duckdb(_bench: &Bench, divisor: u64) -> Made {
    Ok((python(packages()?, "analytics.py", 6_000_000 / divisor), None))
}

fn numpy(_bench: &Bench, divisor: u64) -> Made {
    Ok((python(packages()?, "arrays.py", 17_500_000 / divisor), None))
}

fn pagerank(bench: &Bench, divisor: u64) -> Made {
    let vertices = if divisor == 1 { "20" } else { "18" };
    let binary = victim(bench, "pagerank");
    Ok((Program::new([binary.as_path(), Path::new(vertices), Path::new("64"), Path::new("4"), Path::new("2")]), None))
}

fn hash_join(bench: &Bench, divisor: u64) -> Made {
    let rows = (3_000_000 / divisor).to_string();
    let binary = victim(bench, "hashjoin");
    Ok((Program::new([binary.as_path(), Path::new(&rows), Path::new("64"), Path::new("2")]), None))
}

fn sqlite(bench: &Bench, divisor: u64) -> Made {
    let path = script("joins.sql");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let filled = text.replace("@ROWS@", &(1_000_000 / divisor).to_string());
    let read = format!(".read {}", bench.scratch().write("joins.sql", filled).display());
    Ok((Program::new(["sqlite3", "-init", "/dev/null", ":memory:", &read]), None))
}

fn sort(bench: &Bench, divisor: u64) -> Made {
    let lines = shuffled_lines(bench.scratch(), 1_500_000 / divisor, 1).display().to_string();
    let sorted = bench.scratch().file("sorted");
    let argv = ["sort", "-S", "500M", "--parallel=2", "-o", &sorted.display().to_string(), &lines];
    Ok((Program::new(argv).env("LC_ALL", "C"), Some(sorted)))
}

fn gcc(bench: &Bench, divisor: u64) -> Made {
    let functions = u32::try_from(4_000 / divisor).expect("some thousands");
    let c_file = very_large_c_file(bench.scratch(), functions).display().to_string();
    let object = bench.scratch().file("large.o");
    Ok((Program::new(["gcc", "-O1", "-c", &c_file, "-o", &object.display().to_string()]), Some(object)))
}

/// In a control group its young generation is a sixteenth as large unless it is told, and the program needs a fifth less memory.
fn node(_bench: &Bench, divisor: u64) -> Made {
    let count = (600_000 / divisor).to_string();
    let script = source("objects.js");
    let argv = ["node", "--max-old-space-size=2000", "--max-semi-space-size=16", &script, &count];
    Ok((Program::new(argv), None))
}

/// The machine's size and its processors are told, so that a control group's limit changes nothing.
fn java(bench: &Bench, divisor: u64) -> Made {
    let (heap, count) = (format!("-Xmx{}m", 400 / divisor), (500_000 / divisor).to_string());
    let classes = java_classes(bench.scratch(), "Heap.java").display().to_string();
    let sizes = ["-XX:-UseContainerSupport", "-XX:ActiveProcessorCount=2", "-Xms64m", &heap];
    let argv = ["java", "-XX:+UseG1GC"].into_iter().chain(sizes).chain(["-cp", &classes, "Heap", &count]);
    Ok((Program::new(argv), None))
}

fn victim(bench: &Bench, name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("victims").join(format!("{name}.c"));
    victim::compile(&source, &bench.scratch().file(name), &[])
}

/// A python with the packages that the scripts import, made once below `target`.
fn packages() -> Result<PathBuf, String> {
    let target = need::source_directory().parent().expect("tests/ is in the workspace").join("target");
    let directory = target.join("bench-python");
    let setup =
        Command::new(script("setup.sh")).arg(&directory).output().map_err(|error| format!("setup.sh: {error}"))?;
    if !setup.status.success() {
        return Err(format!("bench/programs/setup.sh: {}", String::from_utf8_lossy(&setup.stderr).trim()));
    }
    Ok(directory.join("bin/python"))
}
