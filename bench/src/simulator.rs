//! How fast the simulator is, and how much memory it needs: absolute targets, and libCacheSim's LRU on the same traces.
//!
//! The traces are made before anything is timed. libCacheSim is called once for a whole trace, which it maps from a file, so
//! that no call of Python stands between two accesses; its time is that of this call alone.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

use pagetide_sim::bench::{self, BenchTrace, DenseTrace, Speed};
use pagetide_tests::scratch::Scratch;

use crate::figure::{Figure, Sample, Target};
use crate::side::Bench;

/// What the whole simulator has to reach when everything fits, and with a tenth of misses.
const FITS_PER_S: u64 = 30_000_000;
const TENTH_PER_S: u64 = 5_000_000;
/// Bytes of memory for each simulated page, at most.
const PAGE_BYTES_MAX: u64 = 40;
const WRITE_PERCENT: u32 = 25;

/// All figures of the suite.
pub(crate) fn run(bench: &Bench) -> Result<Vec<Figure>, String> {
    let (accesses, pages) = if bench.quick { (1_000_000, 100_000) } else { (20_000_000, 1_000_000) };
    let mut figures = Vec::new();
    for (name, exponent) in [("zipf 0.8", 0.8), ("zipf 1.0", 1.0)] {
        let trace = bench::zipf_trace(BenchTrace { accesses, pages, exponent, write_percent: WRITE_PERCENT });
        figures.extend(on_trace(bench, name, &trace)?);
    }
    figures.extend(scaling(bench));
    figures.push(memory_per_page(bench)?);
    Ok(figures)
}

fn wanted(value: u64) -> Option<Sample> {
    let mut sample = Sample::new("wanted");
    sample.values.push(value);
    Some(sample)
}

fn repeat(side: &str, runs: usize, mut value: impl FnMut() -> u64) -> Sample {
    let mut sample = Sample::new(side);
    sample.values.extend((0..runs).map(|_| value()));
    sample
}

fn figure(name: impl Display, unit: &'static str, sides: (Option<Sample>, Sample), target: Target) -> Figure {
    Figure { name: name.to_string(), unit, reference: sides.0, ours: Some(sides.1), target }
}

/// One trace: everything fits, a tenth of misses, and libCacheSim at that memory.
fn on_trace(bench: &Bench, name: &str, trace: &Rc<DenseTrace>) -> Result<Vec<Figure>, String> {
    let rate = |speed: Speed| speed.accesses_per_s;
    let all = trace.pages + 1024;
    let fits = repeat("simulator", bench.runs, || rate(bench::core_speed(trace, all)));
    let tenth = bench::memory_for_misses(trace, 1_000);
    let core = repeat("simulator", bench.runs, || rate(bench::core_speed(trace, tenth)));
    let misses = bench::core_speed(trace, tenth).misses_bp;
    let mut lru_misses = 0;
    let lru = repeat("simulator's plain LRU", bench.runs, || {
        let speed = bench::lru_speed(trace, tenth);
        lru_misses = speed.misses;
        speed.accesses_per_s
    });
    let percent = format!("{}.{:02} % misses", misses / 100, misses % 100);
    let mut figures = vec![
        figure(format!("{name}, all fits"), "accesses/s", (wanted(FITS_PER_S), fits), Target::AtLeast(100)),
        figure(
            format!("{name}, reclaim, write-back and device times on, {percent} in {tenth} pages"),
            "accesses/s",
            (wanted(TENTH_PER_S), core.clone()),
            Target::AtLeast(100),
        ),
    ];
    let rival = match libcachesim(bench, trace, tenth) {
        Ok(rival) => rival,
        Err(why) => {
            eprintln!("pagetide-bench: no comparison with libCacheSim: {why}");
            return Ok(figures);
        }
    };
    let ours = repeat("simulator's plain LRU", 1, || lru_misses);
    figures.extend([
        figure(
            format!("{name}, plain LRU, the same memory"),
            "accesses/s",
            (Some(rival.rate.clone()), lru),
            Target::AtLeast(300),
        ),
        figure(
            format!("{name}, the whole simulator against a plain LRU"),
            "accesses/s",
            (Some(rival.rate), core),
            Target::None,
        ),
        figure(format!("{name}, misses of a plain LRU"), "misses", (Some(rival.misses), ours), Target::Equal),
    ]);
    Ok(figures)
}

/// What libCacheSim's LRU did.
struct Rival {
    rate: Sample,
    misses: Sample,
}

fn libcachesim(bench: &Bench, trace: &DenseTrace, pages: u32) -> Result<Rival, String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("libcachesim");
    let environment = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/libcachesim");
    let setup = Command::new(directory.join("setup.sh")).arg(&environment).output().map_err(|e| e.to_string())?;
    if !setup.status.success() {
        return Err(String::from_utf8_lossy(&setup.stderr).trim().to_owned());
    }
    let scratch = Scratch::new();
    let file = scratch.file("trace.oracleGeneral");
    write_oracle_general(&file, trace).map_err(|e| format!("{}: {e}", file.display()))?;
    let output = Command::new(environment.join("bin/python"))
        .arg(directory.join("lru.py"))
        .arg(&file)
        .args([pages.to_string(), bench.runs.to_string()])
        .output()
        .map_err(|e| e.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    let mut rival = Rival { rate: Sample::new("libCacheSim LRU"), misses: Sample::new("libCacheSim LRU") };
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let numbers: Vec<u64> = line.split_whitespace().flat_map(str::parse).collect();
        let &[ns, misses] = numbers.as_slice() else { continue };
        rival.rate.values.push(trace.records.len() as u64 * 1_000_000_000 / ns.max(1));
        rival.misses.values.push(misses);
    }
    if rival.rate.values.is_empty() { Err("lru.py printed nothing".to_owned()) } else { Ok(rival) }
}

/// Records of 24 bytes: time (4), object (8), size (4), when it comes next (8; -1: not known).
fn write_oracle_general(path: &PathBuf, trace: &DenseTrace) -> std::io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    for (record, time) in trace.records.iter().zip(0u32..) {
        out.write_all(&time.to_le_bytes())?;
        out.write_all(&(u64::from(record.page()) + 1).to_le_bytes())?;
        out.write_all(&4096u32.to_le_bytes())?;
        out.write_all(&(-1i64).to_le_bytes())?;
    }
    out.flush()
}

/// Cost of an access from 2^14 to 2^24 pages: the dearest size against the cheapest.
fn scaling(bench: &Bench) -> Vec<Figure> {
    let sizes: &[u32] = if bench.quick { &[14, 16] } else { &[14, 16, 18, 20, 22, 24] };
    let accesses = if bench.quick { 400_000 } else { 8_000_000 };
    let costs: Vec<(u32, (u64, u64))> = sizes.iter().map(|&log2| (log2, bench::scaling(log2, accesses))).collect();
    let mut figures = Vec::new();
    for (what, pick) in [("all fits", 0), ("every tenth access a miss", 1)] {
        let cost = |&(log2, cost): &(u32, (u64, u64))| (if pick == 0 { cost.0 } else { cost.1 }, log2);
        let (Some(least), Some(most)) = (costs.iter().map(cost).min(), costs.iter().map(cost).max()) else { continue };
        let reference = repeat(&format!("2^{} pages", least.1), 1, || least.0);
        let ours = repeat(&format!("2^{} pages", most.1), 1, || most.0);
        let list: Vec<String> = costs.iter().map(cost).map(|(c, log2)| format!("2^{log2} {}", c / 100)).collect();
        let name = format!("cost of an access, {what}, the cheapest and the dearest size ({} ns)", list.join(", "));
        figures.push(figure(name, "1/100 ns", (Some(reference), ours), Target::AtMost(200)));
    }
    figures
}

/// Resident memory that a world adds, all of whose pages were written and half of which are in swap.
fn memory_per_page(bench: &Bench) -> Result<Figure, String> {
    let pages = if bench.quick { 1 << 18 } else { 1 << 22 };
    let before = resident_bytes()?;
    let world = bench::filled_world(pages, pages / 2);
    let bytes = resident_bytes()?.saturating_sub(before) / u64::from(pages);
    drop(world);
    let name = format!("memory for each of {pages} pages, half of them in swap");
    Ok(figure(name, "bytes", (wanted(PAGE_BYTES_MAX), repeat("simulator", 1, || bytes)), Target::AtMost(100)))
}

fn resident_bytes() -> Result<u64, String> {
    let text = fs::read_to_string("/proc/self/statm").map_err(|e| format!("/proc/self/statm: {e}"))?;
    let pages = text.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok());
    pages.map(|pages| pages * 4096).ok_or_else(|| "/proc/self/statm has no second number".to_owned())
}
