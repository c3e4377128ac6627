//! Who is told of a run while it runs: the files and addresses that `run` was given for that.
//!
//! Nothing here ends the run: what cannot be written is said once.

use pagetide_sys::stderr;

use crate::args::RunArgs;
use crate::backend::{Progress, RunReport};
use crate::failure::{self, Exit, Failure};
use crate::timeline::{self, Timeline};
use crate::whole_file::{self, PATIENCE_NS, WholeFile};
use crate::{metrics, stats, summary};

/// Time between two writings of statistics and metrics.
const INTERVAL_NS: u64 = 1_000_000_000;
/// Bytes of a timeline at most, unless its user says otherwise.
const TIMELINE_BYTES: u64 = 64 << 20;

/// What one of them writes the other would overwrite.
fn check_that_files_differ(args: &RunArgs) -> Result<(), Failure> {
    let metrics = args.metrics.as_ref().and_then(|target| match target {
        metrics::Target::File(path) | metrics::Target::Socket(path) => Some(path),
        metrics::Target::Address(_) => None,
    });
    let files = [("--stats", args.stats.as_ref()), ("--metrics", metrics), ("--timeline", args.timeline.as_ref())];
    for (index, &(flag, path)) in files.iter().enumerate() {
        let earlier = files[..index]
            .iter()
            .find(|(_, earlier)| path.zip(*earlier).is_some_and(|(path, earlier)| whole_file::is_same(path, earlier)));
        if let Some(((earlier, _), path)) = earlier.zip(path) {
            return Err(Failure::told(
                Exit::Usage,
                format!("{flag} {}: {earlier} writes the same file", path.display()),
                "give each a file of its own",
            ));
        }
    }
    Ok(())
}

/// Those who are told.
#[derive(Debug)]
pub(crate) struct Observers {
    stats: Option<WholeFile>,
    settings: Vec<(String, String)>,
    metrics: Option<metrics::Sink>,
    timeline: Option<Timeline>,
    next_ns: u64,
    /// It was said that the statistics cannot be written.
    is_failure_told: bool,
    summary: summary::Teller,
}

impl Observers {
    /// Before the program starts: what cannot be written is an error.
    pub(crate) fn open(args: &RunArgs, settings: &[(String, String)]) -> Result<Self, Failure> {
        check_that_files_differ(args)?;
        let stats = args.stats.as_ref().map(|path| WholeFile::open("--stats", path, Some(PATIENCE_NS))).transpose()?;
        let metrics =
            args.metrics.as_ref().map(|target| metrics::Sink::open(target, args.metrics_exposed)).transpose()?;
        let size = args.timeline_size.unwrap_or(TIMELINE_BYTES);
        let timeline = args.timeline.as_ref().map(|path| Timeline::create(path, size)).transpose()?;
        let summary = summary::Teller::new(args.summary);
        Ok(Self { stats, settings: settings.to_vec(), metrics, timeline, next_ns: 0, is_failure_told: false, summary })
    }

    /// How often to tell; None if nobody is told while the run goes on.
    pub(crate) fn interval_ns(&self) -> Option<u64> {
        let files = (self.stats.is_some() || self.metrics.is_some()).then_some(INTERVAL_NS);
        let timeline = self.timeline.is_some().then_some(timeline::INTERVAL_NS);
        [files, timeline, self.summary.interval_ns()].into_iter().flatten().min()
    }

    /// True if they want to know what the processes do with their time.
    pub(crate) const fn draw(&self) -> bool {
        self.timeline.is_some()
    }

    /// What is known so far. Of a run that is killed, what was known a second before is there.
    pub(crate) fn tell(&mut self, progress: &Progress) {
        if let Some(timeline) = &mut self.timeline {
            timeline.tell(progress);
        }
        self.summary.tell(progress);
        let now = progress.snapshot.run.now_ns;
        let has_ended = progress.report.exit_status.is_some();
        if now < self.next_ns && !has_ended {
            return;
        }
        self.next_ns = now + INTERVAL_NS;
        if let Some(metrics) = &mut self.metrics {
            metrics.put(metrics::text(progress));
        }
        // Those of the end are written by `conclude`.
        if let Some(file) = self.stats.as_ref().filter(|_| !has_ended)
            && let Err(Failure::Told(told)) = stats::write(file, &progress.report, &self.settings)
            && !self.is_failure_told
        {
            self.is_failure_told = true;
            stderr::tell(format_args!("pagetide: {}; it is tried again every second", told.what));
        }
    }

    /// The run has ended, with a status of its own: what cannot be written is said, and changes nothing.
    pub(crate) fn conclude(&self, report: &RunReport) {
        let written = self.stats.as_ref().map_or(Ok(()), |file| stats::write(file, report, &self.settings));
        if let Err(Failure::Told(told)) = written {
            failure::say(format_args!("{told}"));
        }
        self.summary.conclude(report);
    }
}
