//! `pagetide run`: checks everything that can be checked before the program exists, then hands over to the runtime.

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use crate::args::{FaultMode, IfUnsupported, RunArgs};
use crate::backend::{self, BUDGET_BYTES_MIN, RunOptions};
use crate::failure::{self, Exit, Failure, Told};
use crate::observe::Observers;
use crate::size::{Amount, Bytes};
use crate::{machine, preflight, preload, settings, swap};

/// Runs the program; the answer is its exit status.
pub(crate) fn run(args: &RunArgs) -> Result<ExitCode, Failure> {
    let settings = settings::collect(args.profile.as_deref(), args.swappiness, &args.set)?;
    let observers = Observers::open(args, &settings)?;
    match supervised(args, settings, observers) {
        Err(Failure::Told(told)) if told.exit == Exit::Unsupported && args.if_unsupported == IfUnsupported::Run => {
            unprotected(args, &told)
        }
        answer => answer,
    }
}

/// Runs it inside the budget.
fn supervised(args: &RunArgs, settings: Vec<(String, String)>, mut observers: Observers) -> Result<ExitCode, Failure> {
    if args.fault_mode == FaultMode::Signal && !cfg!(target_arch = "x86_64") {
        return Err(Failure::unsupported(
            "--fault-mode signal: programs are served in signal mode on x86-64 only",
            "leave the flag out; `pagetide doctor` tells whether this machine grants thread mode",
        ));
    }
    let program = args.command.first().expect("clap requires a command");
    preflight::examine(program)?;
    let budget_bytes = budget_bytes(args.memory)?;
    let options = RunOptions {
        budget_bytes,
        swap: swap::places(&args.swap, budget_bytes)?,
        settings,
        fault_mode: args.fault_mode.into(),
        command: args.command.clone(),
        name: args.name.clone(),
        preload: preload::find()?,
        record: args.record.clone(),
        if_unsupported: args.if_unsupported.into(),
        progress_ns: observers.interval_ns(),
        draws_spans: observers.draw(),
    };
    let report = backend::run(&options, &mut |progress| observers.tell(progress))?;
    observers.conclude(&report);
    let status = u8::try_from(report.exit_status.unwrap_or(1)).expect("a status in the shell's convention is one byte");
    Ok(ExitCode::from(status))
}

/// The budget in bytes: not so small that nothing could run.
fn budget_bytes(amount: Amount) -> Result<u64, Failure> {
    let memory_bytes = machine::required_memory_bytes()?;
    let bytes = amount.bytes(memory_bytes);
    if let Some(text) = cannot_bind(bytes, memory_bytes) {
        failure::say(format_args!("pagetide: warning: {text}"));
    }
    if bytes >= BUDGET_BYTES_MIN {
        return Ok(bytes);
    }
    let hint = match amount {
        Amount::Bytes(bytes) if bytes < 4096 => " (a lone number is bytes: write 512M for mebibytes)",
        Amount::Bytes(_) | Amount::ShareBp(_) => "",
    };
    Err(Failure::unsupported(
        format!("--memory: a budget of {} is under the minimum of {}{hint}", Bytes(bytes), Bytes(BUDGET_BYTES_MIN)),
        format!("give at least --memory {}M", BUDGET_BYTES_MIN >> 20),
    ))
}

/// What to say of a budget that is larger than what there is: the kernel would run out of memory first. Not an error: a script that
/// serves many machines may name what the largest has.
fn cannot_bind(budget_bytes: u64, memory_bytes: u64) -> Option<String> {
    (budget_bytes > memory_bytes).then(|| {
        format!(
            "--memory {} is more than the {} that there are (of this machine, or of its control group): such a budget cannot \
             hold the program back, and nothing is paged; give less, or a share such as 75%",
            Bytes(budget_bytes),
            Bytes(memory_bytes)
        )
    })
}

/// Runs it as if `pagetide` were not there, because the user asked for that in this case.
fn unprotected(args: &RunArgs, told: &Told) -> Result<ExitCode, Failure> {
    let (program, arguments) = args.command.split_first().expect("clap requires a command");
    failure::say(format_args!("pagetide: {}; running without a budget (--if-unsupported=run)", told.what));
    let error = Command::new(program).args(arguments).exec();
    Err(Failure::told(Exit::NotExecutable, format!("cannot start {}: {error}", program.to_string_lossy()), ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_beyond_the_machine_has_a_word() {
        let text = cannot_bind(64 << 30, 24 << 30).expect("it is more");
        assert!(text.contains("--memory 64 GiB") && text.contains("24 GiB"), "{text}");
        assert_eq!(cannot_bind(24 << 30, 24 << 30), None);
    }
}
