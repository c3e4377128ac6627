//! `pagetide report`: one HTML file that shows how a run went, from what `run --stats`, `run --timeline` and `run --record` wrote.
//!
//! The page needs no network and has no script: pictures are SVG, and colours follow the reader's scheme. Everything that comes from
//! the files is escaped. What a file does not tell is left out.

mod chart;
mod course;
mod page;

use std::fs;
use std::path::Path;

use pagetide_sim::curve::Curve;
use serde_json::Value;

use crate::args::ReportArgs;
use crate::failure::{Exit, Failure};
use crate::whole_file::{self, WholeFile};

/// Bytes of a file that is read at most: a timeline of the largest size.
const FILE_MAX: u64 = 64 << 30;

/// What is known of the run.
#[derive(Debug, Default)]
struct Known {
    stats: Option<Value>,
    course: Option<course::Course>,
    /// What the simulator replays.
    curve: Option<Curve>,
}

/// Writes the page.
pub(crate) fn run(args: &ReportArgs) -> Result<(), Failure> {
    if let Some(input) = args.files.iter().find(|input| whole_file::is_same(input, &args.output)) {
        return Err(Failure::told(
            Exit::Usage,
            format!("--output {}: the report is made of this file ({})", args.output.display(), input.display()),
            "give the page a file of its own",
        ));
    }
    let output = WholeFile::open("--output", &args.output, None)?;
    let mut known = Known::default();
    for path in &args.files {
        known.take(path)?;
    }
    let text = page::page(&known);
    output.put(&text).map_err(|error| whole_file::failed("--output", &args.output, &error))
}

impl Known {
    /// Read a file of any kind: statistics are an object of JSON, a record and a timeline are known by their beginning; what else the
    /// simulator can read is a trace.
    fn take(&mut self, path: &Path) -> Result<(), Failure> {
        let told =
            |what: String, remedy: &str| Failure::told(Exit::Failed, format!("{}: {what}", path.display()), remedy);
        let metadata = fs::metadata(path).map_err(|error| told(format!("cannot read: {error}"), ""))?;
        if !metadata.is_file() || metadata.len() > FILE_MAX {
            return Err(told("it is no file that `run` writes".to_owned(), "name what --stats or --timeline wrote"));
        }
        let bytes = fs::read(path).map_err(|error| told(format!("cannot read: {error}"), ""))?;
        let (is_second, kind) = if bytes.first() == Some(&b'{') {
            let stats = read_stats(&bytes).map_err(|what| told(what, "name what `run --stats` wrote"))?;
            (self.stats.replace(stats).is_some(), "statistics")
        } else if Curve::is_record(&bytes) {
            let curve = Curve::of_record(&bytes);
            let curve = curve.map_err(|what| told(format!("this record cannot be used: {what}"), ""))?;
            (self.curve.replace(curve).is_some(), "records or traces")
        } else if let Some(course) = course::read(&bytes) {
            (self.course.replace(course).is_some(), "timelines")
        } else {
            let curve = Curve::of_trace(path).map_err(|what| {
                let what = format!("it is neither statistics, a timeline, a record nor a trace of accesses ({what})");
                told(what, "name what `run --stats`, `--timeline` or `--record` wrote")
            })?;
            (self.curve.replace(curve).is_some(), "records or traces")
        };
        if is_second {
            return Err(told(format!("a report is of one run: there are two {kind}"), "name one of each kind at most"));
        }
        Ok(())
    }
}

/// An object with the keys that every version has written.
fn read_stats(bytes: &[u8]) -> Result<Value, String> {
    let stats: Value =
        serde_json::from_slice(bytes).map_err(|error| format!("it is cut, or no statistics: {error}"))?;
    let is_known = stats["memory_budget_bytes"].is_u64() && stats["vmstat"].is_object();
    if is_known { Ok(stats) } else { Err("it is JSON, but not the statistics of a version that is known".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_statistics_is_named() {
        assert!(read_stats(b"{\"memory_budget_bytes\": 5, \"vmstat\": {}}").is_ok());
        for (bytes, part) in [(&b"{\"memory_budget"[..], "cut"), (b"{\"version\": 9}", "version that is known")] {
            assert!(read_stats(bytes).is_err_and(|what| what.contains(part)));
        }
    }
}
