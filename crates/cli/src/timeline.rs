//! `--timeline FILE`: how a run goes, as a trace for Perfetto's viewer (TrackEvent).
//!
//! Lines of numbers (what is resident and swapped, faults and pages a second, every counter so far) and, for each process, slices: when
//! faults of each thread waited for their page, when windows were read ahead, when the device read and wrote. Slices that overlap
//! lie on lines of their own.
//!
//! The file is bounded: slices are drawn until three quarters of it are used, and counted from then on; numbers are told half as often
//! each time that half of what was left has been used. It is whole at every moment (`pages.rs`). Nothing here ends the run.

mod pages;
mod proto;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use pagetide::{ProcessSpans, Span, SpanKind};
use pagetide_sys::stderr;

use self::pages::Pages;
use self::proto::{
    Clock, ClockSnapshot, CounterDescriptor, ProcessDescriptor, ThreadDescriptor, TracePacket, TrackDescriptor,
    TrackEvent, clock, kind, unit,
};
pub(crate) use pages::packets;
pub(crate) use proto::{TracePacket as Packet, kind as event_kind};

use crate::backend::{ProcessView, Progress};
use crate::failure::Failure;
use crate::snapshot::Rates;
use crate::whole_file;

/// Time between two samples at first.
pub(crate) const INTERVAL_NS: u64 = 100_000_000;
/// Bytes of the file at least: its lines have to be told.
pub(crate) const SIZE_MIN: u64 = 1 << 20;
/// Lines of slices of one kind in a process at most, and threads of it that have a line; the waits of the others share lines.
const LANES_MAX: usize = 32;
const THREADS_MAX: usize = 128;
/// Processes that have lines of their own at most.
const PROCESSES_MAX: usize = 256;
/// The line of the run; those below it are numbered on.
pub(crate) const RUN: u64 = 1;
/// The packets are of one sequence.
const SEQUENCE: u32 = 1;
const STATE_CLEARED: u32 = 1;
/// What a wait is called on its line.
pub(crate) const WAIT: &str = "wait";
/// The line that tells how many slices are missing.
pub(crate) const NOT_DRAWN: &str = "slices not drawn";

/// The lines of numbers a second, in the order of `rates`.
const RATES: [&str; 6] =
    ["faults/s", "major faults/s", "refaults/s", "pages in/s", "pages out/s", "pages read ahead/s"];
/// The lines of sizes, in the order of `sizes`.
const SIZES: [&str; 3] = ["budget", "resident", "swapped"];

/// The timeline of a run.
#[derive(Debug)]
pub(crate) struct Timeline {
    path: PathBuf,
    /// There was no file, and nothing was written yet.
    is_unwritten: bool,
    /// None: it has ended before the run, and this was said.
    pages: Option<Pages>,
    size_max: u64,
    interval_ns: u64,
    /// Bytes that are left when the interval doubles.
    doubles_at: u64,
    next_ns: u64,
    lines: Lines,
    processes: BTreeMap<u64, Process>,
    not_drawn: u64,
    before: Option<Progress>,
}

/// The numbers of lines, and what was told last on those that have numbers.
#[derive(Debug)]
struct Lines {
    next: u64,
    told: BTreeMap<(u64, String), (u64, i64)>,
}

/// The lines of a process.
#[derive(Debug)]
struct Process {
    line: u64,
    lanes: Vec<Lane>,
}

/// What lies on a line together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneKind {
    Thread(u32),
    Waits,
    Windows,
    Reads,
    Writes,
}

/// A line of slices.
#[derive(Debug)]
struct Lane {
    kind: LaneKind,
    line: u64,
    end_ns: u64,
}

impl Drop for Timeline {
    /// Of a run that has not begun nothing is left.
    fn drop(&mut self) {
        if self.is_unwritten {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Timeline {
    /// A file of at most `size_max` bytes. An old one stays until there is something to tell: the run may not begin at all.
    pub(crate) fn create(path: &Path, size_max: u64) -> Result<Self, Failure> {
        let (pages, is_unwritten) =
            pages::create(path).map_err(|error| whole_file::failed("--timeline", path, &error))?;
        Ok(Self {
            path: path.to_owned(),
            is_unwritten,
            pages: Some(pages),
            size_max,
            interval_ns: INTERVAL_NS,
            doubles_at: size_max / 2,
            next_ns: 0,
            lines: Lines { next: RUN + 1, told: BTreeMap::new() },
            processes: BTreeMap::new(),
            not_drawn: 0,
            before: None,
        })
    }

    /// How it goes. The slices are drawn at once, the numbers when it is time.
    pub(crate) fn tell(&mut self, progress: &Progress) {
        let Some(mut pages) = self.pages.take() else { return };
        self.is_unwritten = false;
        match self.write(&mut pages, progress).and_then(|()| pages.flush()) {
            Ok(()) => self.pages = Some(pages),
            Err(error) => {
                let path = self.path.display();
                stderr::tell(format_args!(
                    "pagetide: --timeline {path}: cannot write: {error}; it ends here, the run goes on"
                ));
            }
        }
    }

    fn write(&mut self, pages: &mut Pages, progress: &Progress) -> io::Result<()> {
        let now = progress.snapshot.run.now_ns;
        if self.before.is_none() {
            self.begin(pages, progress)?;
        }
        for process in &progress.spans {
            self.draw(pages, process, progress)?;
        }
        let has_ended = progress.report.exit_status.is_some();
        // The last packets are kept room for.
        let left = self.size_max.saturating_sub(pages.len());
        if (now < self.next_ns || left < SIZE_MIN / 4) && !has_ended {
            return Ok(());
        }
        self.next_ns = now + self.interval_ns;
        if left < self.doubles_at {
            self.interval_ns *= 2;
            self.doubles_at /= 2;
        }
        self.sample(pages, progress)?;
        self.before = Some(Progress { spans: Vec::new(), ..progress.clone() });
        Ok(())
    }

    /// How the clocks stand, and the line of the run.
    fn begin(&mut self, pages: &mut Pages, progress: &Progress) -> io::Result<()> {
        pages.empty()?;
        let run = &progress.snapshot.run;
        let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH).unwrap_or_default();
        let of = |clock, timestamp| Clock { clock: Some(clock), timestamp: Some(timestamp) };
        let unix_ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
        let clocks = vec![of(clock::MONOTONIC, run.now_ns), of(clock::REALTIME, unix_ns)];
        pages.push(&TracePacket {
            clock_snapshot: Some(ClockSnapshot { clocks, primary: Some(clock::MONOTONIC) }),
            sequence: Some(SEQUENCE),
            sequence_flags: Some(STATE_CLEARED),
            ..TracePacket::default()
        })?;
        let name = if run.name.is_empty() { "pagetide run".to_owned() } else { format!("pagetide run {}", run.name) };
        let command = vec![progress.snapshot.command.clone()];
        let process = ProcessDescriptor { pid: pid(run.pid), command, name: Some(name) };
        let track = TrackDescriptor { uuid: Some(RUN), process: Some(process), ..TrackDescriptor::default() };
        pages.push(&told(track))
    }

    /// All numbers that have changed.
    fn sample(&mut self, pages: &mut Pages, progress: &Progress) -> io::Result<()> {
        let snapshot = &progress.snapshot;
        let (run, now) = (&snapshot.run, snapshot.run.now_ns);
        for (name, bytes) in SIZES.into_iter().zip([run.budget_bytes, run.resident_bytes, run.swapped_bytes]) {
            self.lines.number(pages, RUN, name, unit::SIZE_BYTES, now, bytes)?;
        }
        if let Some(before) = &self.before {
            let ns = now.saturating_sub(before.snapshot.run.now_ns);
            let rates = Rates::between(Some(&before.snapshot), snapshot, ns);
            let values =
                [rates.faults, rates.major_faults, rates.refaults, rates.pages_in, rates.pages_out, rates.read_ahead];
            for (name, value) in RATES.into_iter().zip(values) {
                self.lines.number(pages, RUN, name, unit::COUNT, now, value)?;
            }
        }
        for (name, value) in &snapshot.counters {
            self.lines.number(pages, RUN, name, unit::COUNT, now, *value)?;
        }
        self.lines.number(pages, RUN, NOT_DRAWN, unit::COUNT, now, self.not_drawn)?;
        for process in &snapshot.processes {
            if let Some(line) = self.process(pages, process.pid, Some(process))? {
                self.lines.number(pages, line, "resident", unit::SIZE_BYTES, now, process.resident_bytes)?;
                self.lines.number(pages, line, "swapped", unit::SIZE_BYTES, now, process.swapped_bytes)?;
                self.lines.number(pages, line, "major faults", unit::COUNT, now, process.major_faults)?;
            }
        }
        Ok(())
    }

    /// The line of a process, if it gets one.
    fn process(&mut self, pages: &mut Pages, number: u64, view: Option<&ProcessView>) -> io::Result<Option<u64>> {
        if let Some(process) = self.processes.get(&number) {
            return Ok(Some(process.line));
        }
        if self.processes.len() == PROCESSES_MAX {
            return Ok(None);
        }
        let line = self.lines.fresh();
        self.processes.insert(number, Process { line, lanes: Vec::new() });
        let name = view.map_or_else(|| format!("process {number}"), |view| view.command.clone());
        let process = ProcessDescriptor { pid: pid(number), command: Vec::new(), name: Some(name) };
        let track = TrackDescriptor { uuid: Some(line), process: Some(process), ..TrackDescriptor::default() };
        pages.push(&told(track)).map(|()| Some(line))
    }

    /// The slices of a process.
    fn draw(&mut self, pages: &mut Pages, process: &ProcessSpans, progress: &Progress) -> io::Result<()> {
        self.not_drawn += process.dropped;
        let mut spans = process.spans.clone();
        spans.sort_by_key(|span| span.begin_ns);
        let (now, number) = (progress.snapshot.run.now_ns, u64::from(process.pid));
        let view = progress.snapshot.processes.iter().find(|view| view.pid == number);
        for span in spans {
            let is_full = pages.len() > self.size_max / 4 * 3;
            // What ends after now was forged.
            if is_full || span.end_ns > now {
                self.not_drawn += 1;
                continue;
            }
            let Some(line) = self.process(pages, number, view)? else {
                self.not_drawn += 1;
                continue;
            };
            let lanes = &mut self.processes.get_mut(&number).expect("it has a line").lanes;
            match lane(pages, &mut self.lines, lanes, (line, process.pid), &span)? {
                Some(lane) => slice(pages, lane, &span)?,
                None => self.not_drawn += 1,
            }
        }
        Ok(())
    }
}

impl Lines {
    fn fresh(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// A number, if it is another than before; the line is told of with its first.
    fn number(
        &mut self,
        pages: &mut Pages,
        parent: u64,
        name: &str,
        unit: i32,
        now: u64,
        value: u64,
    ) -> io::Result<()> {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        let key = (parent, name.to_owned());
        let line = match self.told.get(&key) {
            Some(&(_, before)) if before == value => return Ok(()),
            Some(&(line, _)) => line,
            None => {
                let line = self.fresh();
                let counter = Some(CounterDescriptor { unit: Some(unit) });
                pages.push(&told(TrackDescriptor {
                    uuid: Some(line),
                    name: Some(name.to_owned()),
                    parent_uuid: Some(parent),
                    counter,
                    ..TrackDescriptor::default()
                }))?;
                line
            }
        };
        self.told.insert(key, (line, value));
        pages
            .push(&at(now, TrackEvent { kind: Some(kind::COUNTER), track: Some(line), name: None, value: Some(value) }))
    }
}

/// The first line of its kind that is free when the span begins, below that of its process; None: there are too many.
fn lane(
    pages: &mut Pages,
    lines: &mut Lines,
    lanes: &mut Vec<Lane>,
    (parent, process): (u64, u32),
    span: &Span,
) -> io::Result<Option<u64>> {
    let kind = lane_kind(lanes, span.kind);
    let of_kind = || lanes.iter().filter(|lane| lane.kind == kind);
    let count = of_kind().count();
    let free = lanes.iter_mut().find(|lane| lane.kind == kind && lane.end_ns <= span.begin_ns);
    if let Some(lane) = free {
        lane.end_ns = span.end_ns;
        return Ok(Some(lane.line));
    }
    if count == LANES_MAX {
        return Ok(None);
    }
    let line = lines.fresh();
    lanes.push(Lane { kind, line, end_ns: span.end_ns });
    let named = |name: &str| TrackDescriptor { name: Some(name.to_owned()), ..TrackDescriptor::default() };
    let track = match kind {
        LaneKind::Thread(thread) => thread_track(process, thread),
        LaneKind::Waits => named("waits for memory"),
        LaneKind::Windows => named("readahead windows"),
        LaneKind::Reads => named("device reads"),
        LaneKind::Writes => named("device writes"),
    };
    pages.push(&told(TrackDescriptor { uuid: Some(line), parent_uuid: Some(parent), ..track })).map(|()| Some(line))
}

/// Waits lie on the line of their thread, as far as there are lines for threads.
fn lane_kind(lanes: &[Lane], kind: SpanKind) -> LaneKind {
    match kind {
        SpanKind::Wait { thread } => {
            let own = LaneKind::Thread(thread);
            let is_known = lanes.iter().any(|lane| lane.kind == own);
            let threads = lanes.iter().filter(|lane| matches!(lane.kind, LaneKind::Thread(_))).count();
            if thread > 0 && (is_known || threads < THREADS_MAX) { own } else { LaneKind::Waits }
        }
        SpanKind::Window { .. } => LaneKind::Windows,
        SpanKind::Read { .. } => LaneKind::Reads,
        SpanKind::Write { .. } => LaneKind::Writes,
    }
}

/// The line of a thread, by the name that it has now; it may have ended.
fn thread_track(process: u32, thread: u32) -> TrackDescriptor {
    let comm = std::fs::read(format!("/proc/{process}/task/{thread}/comm")).unwrap_or_default();
    let name = String::from_utf8_lossy(comm.trim_ascii_end()).into_owned();
    let descriptor = ThreadDescriptor { pid: pid(process.into()), tid: pid(thread.into()), name: Some(name) };
    TrackDescriptor { thread: Some(descriptor), ..TrackDescriptor::default() }
}

/// A span on its line.
fn slice(pages: &mut Pages, line: u64, span: &Span) -> io::Result<()> {
    let name = match span.kind {
        SpanKind::Wait { .. } => WAIT.to_owned(),
        SpanKind::Window { pages } => format!("window {pages}"),
        SpanKind::Read { pages } => format!("read {pages}"),
        SpanKind::Write { pages } => format!("write {pages}"),
    };
    let event = |kind, name| TrackEvent { kind: Some(kind), track: Some(line), name, value: None };
    pages.push(&at(span.begin_ns, event(kind::SLICE_BEGIN, Some(name))))?;
    pages.push(&at(span.end_ns, event(kind::SLICE_END, None)))
}

fn told(track: TrackDescriptor) -> TracePacket {
    TracePacket { track: Some(track), sequence: Some(SEQUENCE), ..TracePacket::default() }
}

fn at(now: u64, event: TrackEvent) -> TracePacket {
    TracePacket {
        timestamp: Some(now),
        clock: Some(clock::MONOTONIC),
        sequence: Some(SEQUENCE),
        event: Some(event),
        ..TracePacket::default()
    }
}

fn pid(number: u64) -> Option<i32> {
    i32::try_from(number).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{RunView, Snapshot};

    fn progress(now_ns: u64, spans: u64) -> Progress {
        let mut report = crate::stats::tests::report();
        report.exit_status = None;
        let run = RunView { pid: 7, now_ns, resident_bytes: now_ns, ..RunView::default() };
        let counters = vec![("pgfault".to_owned(), now_ns / 7)];
        let span = |number| {
            let begin_ns = now_ns - 1000 + number;
            Span { kind: SpanKind::Wait { thread: 0 }, begin_ns, end_ns: begin_ns + 50 }
        };
        let spans = vec![ProcessSpans { pid: 8, spans: (0..spans).map(span).collect(), dropped: 1 }];
        Progress { report, snapshot: Snapshot { run, counters, ..Snapshot::default() }, spans }
    }

    /// What is in a timeline of a megabyte after so many tellings with so many slices each: its bytes and packets.
    fn drawn(name: &str, tellings: u64, spans: u64) -> (usize, Vec<TracePacket>) {
        let path = std::env::temp_dir().join(format!("pagetide-timeline-{name}-{}", std::process::id()));
        let mut timeline = Timeline::create(&path, SIZE_MIN).expect("a fresh file");
        for telling in 1..=tellings {
            timeline.tell(&progress(telling * INTERVAL_NS, spans));
        }
        let mut last = progress((tellings + 1) * INTERVAL_NS, 0);
        last.report.exit_status = Some(0);
        timeline.tell(&last);
        let bytes = std::fs::read(&path).expect("it was written");
        std::fs::remove_file(&path).expect("own file");
        let (packets, rest) = pages::packets(&bytes);
        assert_eq!(rest, 0);
        (bytes.len(), packets)
    }

    #[test]
    fn a_timeline_keeps_to_its_size() {
        let (bytes, packets) = drawn("size", 40_000, 3);
        assert!(bytes <= usize::try_from(SIZE_MIN).expect("small"), "{bytes}");
        let values = |line: &str| -> Vec<i64> {
            let named = |packet: &&TracePacket| packet.track.as_ref().is_some_and(|track| track.name() == line);
            let number = packets.iter().find(named).and_then(|packet| packet.track.as_ref()?.uuid);
            let events = packets.iter().filter_map(|packet| packet.event.as_ref());
            events.filter(|event| event.track == number).filter_map(|event| event.value).collect()
        };
        let begun = packets.iter().filter_map(|packet| packet.event.as_ref()?.kind);
        let slices = begun.filter(|&kind| kind == kind::SLICE_BEGIN).count();
        let not_drawn = values(NOT_DRAWN).last().copied().expect("it is told at the end");
        assert_eq!(usize::try_from(not_drawn).expect("few") + slices, 40_000 * 4 + 1, "each is drawn or counted");
        let resident = values("resident");
        assert!(resident.len() > 500 && resident.last() == Some(&(40_001 * 100_000_000)), "it goes on to the end");
    }

    #[test]
    fn each_thread_has_a_line_and_too_many_share_some() {
        let mut lanes = Vec::new();
        for thread in 1..=200 {
            let kind = lane_kind(&lanes, SpanKind::Wait { thread });
            let is_own = usize::try_from(thread).expect("few") <= THREADS_MAX;
            assert_eq!(kind, if is_own { LaneKind::Thread(thread) } else { LaneKind::Waits });
            lanes.push(Lane { kind, line: thread.into(), end_ns: 0 });
        }
        assert_eq!(lane_kind(&lanes, SpanKind::Wait { thread: 7 }), LaneKind::Thread(7));
        assert_eq!(lane_kind(&[], SpanKind::Wait { thread: 0 }), LaneKind::Waits);
    }

    #[test]
    fn slices_that_overlap_lie_on_lines_of_their_own() {
        let (_, packets) = drawn("lanes", 1, 40);
        let lanes = packets.iter().filter_map(|packet| packet.track.as_ref());
        assert_eq!(lanes.filter(|track| track.name() == "waits for memory").count(), LANES_MAX);
    }
}
