//! `pagetide-bench`: figures of `pagetide run` as ratios to the kernel's own swap, or to a native run, with their recipe.
//!
//! Every figure compares two sides that run in turns (A, B, A, B, ...) on the same machine in the same session, and is the
//! ratio of the medians. It is not a profiler, and it decides nothing: a ratio that misses its target is printed as missed.

#![expect(clippy::print_stdout, reason = "its output is what it is for")]

mod calls;
mod contest;
mod figure;
mod hot;
mod programs;
mod recipe;
mod region;
mod side;
mod simulator;
mod suite;
mod swapoff;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use figure::Figure;
use side::Bench;
use suite::SUITES;

/// Compares pagetide with the kernel's own swap and with native runs.
#[derive(Debug, Parser)]
struct Arguments {
    /// One short run of everything: shows that it works, proves nothing
    #[arg(long)]
    quick: bool,
    /// Only the suite of this name (see --list)
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Of the suites `programs` and `hot` only the rows in whose names all these words occur, such as 'python3 1/2'
    #[arg(long, value_name = "WORDS")]
    row: Option<String>,
    /// Of those suites only this side (native, kernel, zswap, pagetide, "pagetide signal"); may be given several times
    #[arg(long = "side", value_name = "NAME")]
    sides: Vec<String>,
    /// The suite `programs` at a quarter of its size, for quick turns
    #[arg(long)]
    small: bool,
    /// Of those suites: a run that lasts longer is ended and counts as late
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    deadline_s: u64,
    /// A setting of the policy on our side of those suites; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Name the suites and what they measure
    #[arg(long)]
    list: bool,
    /// Runs of each side
    #[arg(long, default_value_t = 5, value_name = "N")]
    runs: usize,
    /// The memory budget, and the limit of the kernel's side
    #[arg(long, default_value_t = 128, value_name = "MIB")]
    budget_mib: u64,
    /// vm.swappiness of the kernel's side
    #[arg(long, default_value_t = 60, value_name = "0..200")]
    swappiness: u32,
    /// A directory on the disk to swap to, for both sides
    #[arg(long, default_value = "/var/tmp", value_name = "DIR")]
    directory: PathBuf,
    /// Also write the figures to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only the reference side (no pagetide needed)
    #[arg(long)]
    reference_only: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.list {
        for suite in SUITES {
            println!("{:<12} {}", suite.name, suite.about);
        }
        return ExitCode::SUCCESS;
    }
    if let Some(name) = &arguments.only
        && !SUITES.iter().any(|suite| suite.name == name)
    {
        eprintln!("pagetide-bench: no suite '{name}'; --list names them");
        return ExitCode::from(2);
    }
    match measure(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("pagetide-bench: {message}");
            ExitCode::FAILURE
        }
    }
}

fn measure(arguments: &Arguments) -> Result<(), String> {
    let bench = Bench::new(arguments)?;
    let recipe = recipe::describe(&bench);
    for line in &recipe {
        println!("# {line}");
    }
    let mut figures: Vec<Figure> = Vec::new();
    for suite in SUITES.iter().filter(|suite| arguments.only.as_ref().is_none_or(|name| suite.name == name)) {
        println!("\n== {}: {}", suite.name, suite.about);
        for figure in (suite.run)(&bench)?.into_iter().filter(Figure::is_measured) {
            println!("{}", figure.text());
            figures.push(figure);
        }
    }
    if let Some(path) = &arguments.json {
        let object = figure::to_json(&recipe, &figures, &bench.logged());
        std::fs::write(path, object).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}
