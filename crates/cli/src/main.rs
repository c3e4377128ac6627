//! The `pagetide` program: reads the command line, asks the library crates, prints, and turns answers into exit codes.
//!
//! It is not the runtime (crate `pagetide`) and decides nothing about pages. Invariants:
//! - whatever can be refused is refused before a program is started, with the flag, the value and the remedy;
//! - one message per failure, on standard error; results go to standard output;
//! - a closed pipe on standard output ends it quietly with 0.
#![forbid(unsafe_code)]
// It panics where nothing can be written: `failure::say` and `stderr::tell` do not.
#![deny(clippy::print_stderr)]

mod failure;
mod output;
mod whole_file;

mod args;
mod settings;
mod size;
mod swap;

mod machine;
mod preflight;
mod preload;

mod backend;
mod run;
mod stats;
mod metrics;
mod timeline;
mod observe;

mod summary;

mod ctl;
mod ps;
mod snapshot;
mod stat;
mod top;
mod report;

mod doctor;
mod sim;
mod knobs;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use args::{Cli, Command};
use failure::{Exit, Failure};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(message) => return show_usage(&message),
    };
    match dispatch(cli.command) {
        Ok(code) => code,
        Err(Failure::BrokenPipe) => ExitCode::SUCCESS,
        Err(Failure::Told(told)) => {
            failure::say(format_args!("{told}"));
            ExitCode::from(told.exit.code())
        }
    }
}

/// Help and version go to standard output with 0, mistakes to standard error with 2.
fn show_usage(message: &clap::Error) -> ExitCode {
    // Nothing is left to do if nobody reads the message.
    let _ = message.print();
    if message.use_stderr() { ExitCode::from(Exit::Usage.code()) } else { ExitCode::SUCCESS }
}

fn dispatch(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Run(args) => run::run(&args),
        Command::Sim(args) => sim::run(args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Knobs(args) => knobs::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Ps(args) => ps::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Stat(args) => stat::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Report(args) => report::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Top(args) => top::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Ctl(args) => ctl::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "pagetide", &mut script);
            output::print(&String::from_utf8_lossy(&script)).map(|()| ExitCode::SUCCESS)
        }
    }
}
