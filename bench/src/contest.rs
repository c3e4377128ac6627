//! One program under several pagers in turns: rows with everything that was counted, and the ratios that have a target.
//!
//! A run that the kernel kills, that hangs until its deadline or that fails is a result, too: the row goes on. A run that ended
//! wrongly has no time; the row says so, and its ratio is missing, except that a program which the kernel kills and we
//! finish counts as won.

use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::path::PathBuf;
use std::time::Duration;

use pagetide_tests::MIB;
use pagetide_tests::program::{Exit, Program};
use serde_json::json;

use crate::figure::{Figure, Sample, Target, grouped};
use crate::side::{Bench, Outcome, Side};

/// A program under a budget.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// What `--row` is compared with.
    pub(crate) name: String,
    /// What runs.
    pub(crate) program: Program,
    /// A file that it writes, if its standard output is not all.
    pub(crate) output: Option<PathBuf>,
    /// The budget, and the limit of the kernel's sides.
    pub(crate) budget_bytes: u64,
    /// Major faults over the kernel's, at most, in hundredths.
    pub(crate) faults_most: u64,
}

/// How one run ended, and what it cost.
#[derive(Clone, Debug)]
pub(crate) struct Trial {
    /// How.
    pub(crate) end: End,
    /// From start to end.
    pub(crate) wall: Duration,
    /// Paging.
    pub(crate) counts: Counts,
    /// Of standard output and the output file.
    pub(crate) digest: u64,
    /// The largest process.
    pub(crate) peak_bytes: u64,
    cpu_user: Duration,
    cpu_system: Duration,
    report: String,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With status 0.
    Well,
    /// The kernel killed one of its processes for memory.
    Killed,
    /// It still ran at its deadline.
    Late,
    /// In another way.
    Failed,
}

/// What the pager counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// Faults that waited for a read.
    pub(crate) major_faults: u64,
    /// Pages that came back, from a disk or decompressed.
    pub(crate) pages_in: u64,
    /// Pages that went, to a disk or compressed.
    pub(crate) pages_out: u64,
    /// Pages read ahead.
    pub(crate) ahead: u64,
    /// Pages read ahead that are known to have been touched while they were there.
    pub(crate) ahead_used: u64,
    /// And those that are known not to have been.
    pub(crate) ahead_unused: u64,
    /// The most that the kernel's compressed pages took; no limit counts them under control groups of version 1.
    pub(crate) pool_peak_bytes: u64,
}

impl Trial {
    /// What `outcome` amounts to; `oom_kills` is what the kernel counted.
    pub(crate) fn of(outcome: &Outcome, output: Option<&PathBuf>) -> Self {
        let finished = &outcome.finished;
        let end = match finished.exit {
            Exit::Code(0) => End::Well,
            Exit::Deadline => End::Late,
            Exit::Code(_) | Exit::Signal(_) if outcome.oom_kills > 0 => End::Killed,
            Exit::Code(_) | Exit::Signal(_) => End::Failed,
        };
        Self {
            end,
            wall: finished.wall,
            counts: outcome.counts,
            digest: digest(std::iter::once(&finished.stdout_path).chain(output)),
            peak_bytes: finished.peak_rss_bytes,
            cpu_user: finished.cpu_user,
            cpu_system: finished.cpu_system,
            report: if end == End::Failed { finished.report() } else { String::new() },
        }
    }

    fn cpu_ms(&self) -> u64 {
        millis(self.cpu_user + self.cpu_system)
    }

    fn cells(&self, side: Side, right: Option<u64>) -> String {
        let seconds = |time: Duration| format!("{:.1}", time.as_secs_f64());
        let result = match (self.end, right) {
            (End::Well, Some(right)) if self.digest != right => "DIFFERENT",
            (End::Well, _) => "equal",
            (End::Killed, _) => "killed",
            (End::Late, _) => "LATE",
            (End::Failed, _) => "FAILED",
        };
        let counts = &self.counts;
        let mut cells = format!("  {:<24}{:>8} s", side.name(), seconds(self.wall));
        for count in [counts.major_faults, counts.pages_in, counts.pages_out, counts.ahead] {
            cells.push_str(&format!("{:>12}", grouped(count)));
        }
        let used = (counts.ahead_used * 100).checked_div(counts.ahead_used + counts.ahead_unused);
        cells.push_str(&format!("{:>8}", used.map_or_else(|| "-".to_owned(), |percent| format!("{percent} %"))));
        cells.push_str(&format!("{:>8}{:>8}  {result}", seconds(self.cpu_user), seconds(self.cpu_system)));
        if counts.pool_peak_bytes > 0 {
            cells.push_str(&format!(", compressed pages took {} MiB", counts.pool_peak_bytes / MIB));
        }
        cells
    }
}

/// Above the rows' cells.
const HEAD: &str =
    "  side                        wall      majflt          in         out       ahead    used    user  system";

/// Runs `row` on all `sides` in turns and compares ours with each of the others.
pub(crate) fn run(bench: &Bench, row: &Row, sides: &[Side], right: Option<u64>) -> Result<Vec<Figure>, String> {
    println!("\n{}: budget {} MiB\n{HEAD}", row.name, row.budget_bytes / MIB);
    let mut trials: Vec<Vec<Trial>> = vec![Vec::new(); sides.len()];
    // Without a native run, the first that ends well says what is right.
    let mut right = right;
    for _ in 0..bench.runs {
        for (side, trials) in sides.iter().zip(&mut trials) {
            let outcome = bench.outcome(*side, &row.program, row.budget_bytes)?;
            let trial = Trial::of(&outcome, row.output.as_ref());
            right = right.or((trial.end == End::Well).then_some(trial.digest));
            println!("{}", trial.cells(*side, right));
            if trial.end == End::Failed {
                eprintln!("{}", trial.report);
            }
            bench.log(json!({
                "row": row.name, "side": side.name(), "budget_bytes": row.budget_bytes,
                "end": format!("{:?}", trial.end), "equal": right == Some(trial.digest), "wall_ms": millis(trial.wall),
                "major_faults": trial.counts.major_faults, "pages_in": trial.counts.pages_in,
                "pages_out": trial.counts.pages_out, "ahead": trial.counts.ahead, "ahead_used": trial.counts.ahead_used,
                "ahead_unused": trial.counts.ahead_unused,
                "cpu_user_ms": millis(trial.cpu_user), "cpu_system_ms": millis(trial.cpu_system),
                "pool_peak_bytes": trial.counts.pool_peak_bytes,
            }));
            trials.push(trial);
        }
    }
    Ok(figures(row, sides, &trials, right))
}

fn figures(row: &Row, sides: &[Side], trials: &[Vec<Trial>], right: Option<u64>) -> Vec<Figure> {
    let is_ours = |index: &usize| sides[*index].is_ours();
    let (ours, references): (Vec<usize>, Vec<usize>) = (0..sides.len()).partition(is_ours);
    let compared =
        |ours: Option<usize>| references.iter().flat_map(move |index| pair(row, sides, trials, right, *index, ours));
    if ours.is_empty() {
        return compared(None).collect();
    }
    ours.into_iter().flat_map(|ours| compared(Some(ours)).collect::<Vec<_>>()).collect()
}

/// One of ours beside one reference.
fn pair(
    row: &Row,
    sides: &[Side],
    trials: &[Vec<Trial>],
    right: Option<u64>,
    index: usize,
    ours: Option<usize>,
) -> Vec<Figure> {
    let mut figures = Vec::new();
    let side = sides[index];
    let sample = |whose: usize, value: fn(&Trial) -> u64| {
        let well = trials[whose].iter().all(|trial| trial.end == End::Well && Some(trial.digest) == right);
        let values = trials[whose].iter().map(value).collect();
        well.then_some(Sample { side: sides[whose].name().to_owned(), values })
    };
    let pager = ours.map_or("pagetide", |ours| sides[ours].name());
    let mut figure = |what: &str, unit, value: fn(&Trial) -> u64, target| {
        let (reference, ours) = (sample(index, value), ours.and_then(|ours| sample(ours, value)));
        if reference.is_none() && ours.is_some() && trials[index].iter().any(|trial| trial.end == End::Killed) {
            println!("  {what} of {pager} against {}: won, it was killed", side.name());
        }
        let name = format!("{}, {what} of {pager} against {}", row.name, side.name());
        figures.push(Figure { name, unit, reference, ours, target });
    };
    let wall_time = if side == Side::Native { Target::None } else { Target::AtMost(105) };
    figure("wall time", "ms", |trial| millis(trial.wall), wall_time);
    if side == Side::Kernel {
        figure("major faults", "faults", |trial| trial.counts.major_faults, Target::AtMost(row.faults_most));
        figure("CPU time", "ms", Trial::cpu_ms, Target::None);
        let cost = |trial: &Trial| (trial.cpu_ms() * 1_000_000).checked_div(trial.counts.major_faults).unwrap_or(0);
        figure("CPU time of a major fault", "ns", cost, Target::AtMost(130));
    }
    figures
}

/// Says how the wall times of all rows with a figure of `ours` against `side` compare, as the geometric mean of reference over ours.
pub(crate) fn print_mean(figures: &[Figure], ours: Side, side: Side) {
    let ending = format!("wall time of {} against {}", ours.name(), side.name());
    let ratios: Vec<f64> = figures
        .iter()
        .filter(|figure| figure.name.ends_with(&ending))
        .filter_map(|figure| Some((figure.reference.as_ref()?.median(), figure.ours.as_ref()?.median())))
        .filter_map(|(reference, ours)| {
            Some(f64::from(u32::try_from(reference).ok()?) / f64::from(u32::try_from(ours).ok()?))
        })
        .collect();
    if let Ok(rows @ 1..) = u32::try_from(ratios.len()) {
        let mean = (ratios.iter().map(|ratio| ratio.ln()).sum::<f64>() / f64::from(rows)).exp();
        println!(
            "\n{}: {mean:.2} times as fast as {} (geometric mean of the wall times of {rows} rows)",
            ours.name(),
            side.name()
        );
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).expect("a run lasts minutes")
}

/// Of the bytes of all files in order.
fn digest<'a>(files: impl Iterator<Item = &'a PathBuf>) -> u64 {
    let mut hasher = DefaultHasher::new();
    let mut chunk = vec![0; 1 << 16];
    for path in files {
        let Ok(mut file) = File::open(path) else { continue };
        while let Ok(bytes @ 1..) = file.read(&mut chunk) {
            hasher.write(&chunk[..bytes]);
        }
    }
    hasher.finish()
}
