//! The border to the live runtime: what `run` hands over and gets back, how runs are watched, and how its errors end the program.

pub(crate) use pagetide::supervise::{
    BUDGET_BYTES_MIN, FaultMode, IfUnsupported, LatencySummary, Progress, RunOptions, RunReport, SwapSpec,
};
pub(crate) use pagetide::watch::{
    Answer, Connection, DeviceView, HeatView, Memory, PRIORITY_BY_ORDER, ProcessView, RegionView, Request, RunView,
    Snapshot, TEXT_BYTES_MAX, WatchError, check_name, runs,
};
pub(crate) use pagetide_core::config::SwapoffMode;

use crate::failure::{Exit, Failure};
use crate::ps::plain;

/// Why a run cannot be watched.
pub(crate) fn unwatchable(run: &str, error: &WatchError) -> Failure {
    let remedy = match error {
        WatchError::Unknown(_) => "`pagetide ps` lists the runs of this user",
        WatchError::Ended | WatchError::Busy(_) | WatchError::Dropped | WatchError::Silent | WatchError::System(_) => {
            ""
        }
        WatchError::Foreign(_) => "use the pagetide that the run was started with",
    };
    Failure::told(Exit::Failed, plain(&format!("{run}: {error}")), remedy)
}

/// Runs the program inside its budget; returns when the last process of its tree has ended.
///
/// `progress` is called at the end, and about every `progress_ns` of the options with what is known so far, on a thread of its own.
pub(crate) fn run(options: &RunOptions, progress: &mut (dyn FnMut(&Progress) + Send)) -> Result<RunReport, Failure> {
    pagetide::supervise::run(options, progress).map_err(|error| {
        let code = error.kind().page().exit_code;
        let exit = Exit::ALL.into_iter().find(|exit| exit.code() == code).unwrap_or(Exit::Failed);
        // The text of a runtime error says its remedy.
        Failure::told(exit, error.to_string(), "")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetide::ErrorKind;

    #[test]
    fn every_kind_of_error_has_an_exit_of_ours() {
        for kind in ErrorKind::ALL {
            let code = kind.page().exit_code;
            assert!(Exit::ALL.iter().any(|exit| exit.code() == code), "{kind:?} ends with {code}");
        }
    }
}
