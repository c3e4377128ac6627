//! `run --summary`: what a run waited for and what would have helped, in three lines that a person understands; and a line now and then.
//!
//! Whatever is said of more memory is `pagetide_core::absences`' word, which the simulator gives for the same pages, too. What is promised
//! is a time at most, and no share of the run's time: why, is said there.

use std::io::{self, IsTerminal};

use pagetide_core::absences::{Absences, UNNOTICED_BP, Waited};
use pagetide_sys::stderr;

use crate::backend::{Progress, RunReport, Snapshot};
use crate::size::{Bytes, parse_seconds};
use crate::{failure, machine};

/// When `run` tells of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// At the end.
    End,
    /// And so many nanoseconds apart.
    Every(u64),
    /// Not even on a terminal.
    Never,
}

/// `--summary` alone.
pub(crate) const END: &str = "end";

/// Reads what follows `--summary=`.
pub(crate) fn parse(text: &str) -> Result<When, String> {
    match text {
        END => Ok(When::End),
        "never" => Ok(When::Never),
        seconds => parse_seconds(seconds).map(When::Every).map_err(|why| format!("{why}, or end, or never")),
    }
}

/// Tells on standard error while the program runs, and when it has ended.
#[derive(Debug)]
pub(crate) struct Teller {
    when: When,
    last: Option<Snapshot>,
}

impl Teller {
    /// Without a word of the user: at the end, if that goes to a terminal.
    pub(crate) fn new(asked: Option<When>) -> Self {
        let unasked = || if io::stderr().is_terminal() { When::End } else { When::Never };
        Self { when: asked.unwrap_or_else(unasked), last: None }
    }

    /// How often it has something to tell while the program runs.
    pub(crate) const fn interval_ns(&self) -> Option<u64> {
        match self.when {
            When::Every(ns) => Some(ns),
            When::End | When::Never => None,
        }
    }

    /// How it goes.
    pub(crate) fn tell(&mut self, progress: &Progress) {
        let Some(interval_ns) = self.interval_ns().filter(|_| progress.report.exit_status.is_none()) else { return };
        let now_ns = progress.snapshot.run.now_ns;
        let ns = self.last.as_ref().map_or(progress.report.elapsed_ns, |last| now_ns.saturating_sub(last.run.now_ns));
        // A turn of the supervisor's loop may come a little early.
        if ns >= interval_ns - interval_ns / 16 {
            stderr::tell(format_args!("{}", line(self.last.as_ref(), &progress.snapshot, ns)));
            self.last = Some(progress.snapshot.clone());
        }
    }

    /// How it went.
    pub(crate) fn conclude(&self, report: &RunReport) {
        if self.when != When::Never {
            let lines = lines(report, machine::memory_bytes().unwrap_or(u64::MAX));
            failure::say(format_args!("{}", lines.trim_end()));
        }
    }
}

/// What the three lines are made of.
#[derive(Debug)]
struct Facts<'a> {
    waited: Waited,
    /// Of the waiting, what no thread did anything else in.
    full: u64,
    budget_bytes: u64,
    peak_bytes: u64,
    /// Processes at once, in the mean.
    at_once: u64,
    absences: &'a Absences,
    paged_out: u64,
    /// Of the waiting, what the disk was read in.
    reading: u64,
    read_us: u64,
    reads: u64,
    machine_bytes: u64,
    /// Shared memory and shared file mappings of a process, at most.
    shared_bytes: u64,
}

/// The three lines of a run that has ended, on a machine with so much memory.
fn lines(report: &RunReport, machine_bytes: u64) -> String {
    let counter = |name| report.vmstat.iter().find(|(known, _)| *known == name).map_or(0, |&(_, value)| value);
    let (elapsed_us, managed_us) = (report.elapsed_ns / 1000, counter("pt_managed_us"));
    // Several processes at once: the mean of them.
    let ran = elapsed_us.max(managed_us);
    let at_once = managed_us.div_ceil(elapsed_us.max(1)).max(1);
    let reading = counter("pt_stall_read_us");
    let facts = Facts {
        waited: Waited {
            ran,
            stalled: counter("pt_stall_some_us").min(ran),
            first_touch: counter("pt_stall_first_touch_us"),
            first_touch_pages: counter("uffd_zero_filled").div_ceil(at_once),
            from_disk: as_from_disk(reading, counter("pswpin"), counter("zswpin")),
        },
        full: counter("pt_stall_full_us").min(ran),
        budget_bytes: report.memory_budget_bytes,
        peak_bytes: report.peak_resident_bytes,
        at_once,
        absences: &report.absences,
        paged_out: counter("pswpout") + counter("zswpout"),
        reading,
        read_us: counter("io_read_us"),
        reads: counter("io_read_requests"),
        machine_bytes,
        shared_bytes: report
            .peak_unpaged_bytes
            .iter()
            .find(|(name, _)| *name == "shared")
            .map_or(0, |&(_, bytes)| bytes),
    };
    let beside = beside(&facts).unwrap_or_default();
    let all = [waiting(&facts, report.elapsed_ns), memory(&facts) + &beside, disk(&facts)];
    all.map(|line| format!("pagetide: {line}\n")).concat()
}

/// What so many pages that came back compressed would have been waited for, had they been read as the others were.
fn as_from_disk(reading: u64, read: u64, compressed: u64) -> u64 {
    u64::try_from(u128::from(reading) * u128::from(compressed) / u128::from(read.max(1))).unwrap_or(u64::MAX)
}

fn waiting(facts: &Facts, elapsed_ns: u64) -> String {
    let (share, ran) = (percent(facts.waited.share_bp()), seconds(elapsed_ns / 1000));
    let full = Waited { stalled: facts.full, ..facts.waited }.share_bp();
    format!("waited for memory: {share} of {ran}; while no thread did anything else: {}", percent(full))
}

fn memory(facts: &Facts) -> String {
    let (now, share) = (Bytes(facts.budget_bytes), facts.waited.share_bp());
    if facts.paged_out == 0 {
        return format!("more memory: no need, all fitted: {} of {now}", Bytes(facts.peak_bytes));
    }
    if share < UNNOTICED_BP {
        return format!("more memory: no need, it hardly waited ({now})");
    }
    let Some(prospect) = facts.absences.advise_against(facts.waited) else {
        return format!("more memory: would not have helped ({now}): what was paged out was not needed again");
    };
    let extra = prospect.extra_pages.saturating_mul(facts.at_once).saturating_mul(4096);
    let advised = facts.budget_bytes.saturating_add(extra).div_ceil(1 << 20) << 20;
    let left = at_most(facts.waited.with(prospect).stalled / facts.at_once);
    let before = seconds(facts.waited.stalled / facts.at_once);
    if prospect.extra_pages == 0 {
        return format!(
            "more memory: no need by now: with {now}, to which it was raised, it waits at most {left}, not {before}"
        );
    }
    let beyond = if advised > facts.machine_bytes { ": more than there is here" } else { "" };
    format!("more memory: with {} instead of {now} it waits at most {left}, not {before}{beyond}", Bytes(advised))
}

/// What is not in the other figures, where it is much.
fn beside(facts: &Facts) -> Option<String> {
    let is_much = facts.shared_bytes >= facts.budget_bytes / 4;
    is_much.then(|| format!(" (beside {} of shared memory and files, which do not count)", Bytes(facts.shared_bytes)))
}

fn disk(facts: &Facts) -> String {
    let read_us = facts.read_us / facts.reads.max(1);
    if facts.waited.share_bp() < UNNOTICED_BP || facts.reads == 0 {
        return "a faster disk: no need".to_owned();
    }
    let saved = facts.reading.min(facts.waited.stalled) / 2;
    let (ran, stalled) = (facts.waited.ran.saturating_sub(saved), facts.waited.stalled - saved);
    let then = about(Waited { ran, stalled, ..facts.waited }.share_bp());
    format!("a faster disk: with one twice as fast (a read took {read_us} us) {then}")
}

/// Of the `ns` between two looks at a run; without a `before`, from its beginning on.
fn line(before: Option<&Snapshot>, after: &Snapshot, ns: u64) -> String {
    let run = &after.run;
    let grown = |name| after.counter(name).saturating_sub(before.map_or(0, |before| before.counter(name)));
    let ran = grown("pt_managed_us").max(ns / 1000);
    let share = Waited { ran, stalled: grown("pt_stall_some_us"), ..Waited::default() }.share_bp();
    let majors = u128::from(grown("pgmajfault")) * 1_000_000_000 / u128::from(ns.max(1));
    format!(
        "pagetide: {} of {} resident, {} paged out, {majors} faults a second that read, waited {}",
        Bytes(run.resident_bytes),
        Bytes(run.budget_bytes),
        Bytes(run.swapped_bytes),
        percent(share),
    )
}

/// Microseconds, as a person reads them.
fn seconds(us: u64) -> String {
    let tenths = us / 100_000;
    format!("{}.{} s", tenths / 10, tenths % 10)
}

/// No more than that, of so many microseconds that are left as reckoned: which is right within a third.
fn at_most(us: u64) -> String {
    seconds((us + us / 3).next_multiple_of(100_000))
}

/// What is promised.
fn about(share_bp: u64) -> String {
    if share_bp < UNNOTICED_BP { "under 1 %".to_owned() } else { format!("about {}", percent(share_bp)) }
}

/// Hundredths of a percent, as a person reads them.
fn percent(share_bp: u64) -> String {
    match share_bp {
        0 => "0 %".to_owned(),
        1..100 => "under 1 %".to_owned(),
        100.. => format!("{} %", (share_bp + 50) / 100),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Absences of a loop over 800 MiB in 200 MiB.
    fn looped() -> Absences {
        let mut prices = [0; pagetide_core::absences::BUCKETS];
        let bucket = (0..prices.len()).find(|&index| pagetide_core::absences::longest_pages(index) >= 600 << 8);
        prices[bucket.expect("far less than all")] = 1_000_000;
        Absences::of(prices, prices, 600 << 8)
    }

    fn facts(absences: &Absences) -> Facts<'_> {
        Facts {
            waited: Waited { ran: 20_000_000, stalled: 12_000_000, first_touch: 2_000_000, ..Waited::default() },
            full: 11_000_000,
            budget_bytes: 200 << 20,
            peak_bytes: 200 << 20,
            at_once: 1,
            absences,
            paged_out: 1_150_000,
            reading: 10_000_000,
            read_us: 10_000_000,
            reads: 50_000,
            machine_bytes: 4 << 30,
            shared_bytes: 49 << 20,
        }
    }

    #[test]
    fn what_would_have_helped_is_said_with_what_would_have_been_left() {
        let absences = looped();
        let facts = facts(&absences);
        let first = waiting(&facts, 20_000_000_000);
        assert_eq!(first, "waited for memory: 60 % of 20.0 s; while no thread did anything else: 55 %");
        assert_eq!(memory(&facts), "more memory: with 819 MiB instead of 200 MiB it waits at most 2.7 s, not 12.0 s");
        assert_eq!(disk(&facts), "a faster disk: with one twice as fast (a read took 200 us) about 47 %");
        assert!(memory(&Facts { machine_bytes: 512 << 20, ..facts }).ends_with("more than there is here"));
    }

    #[test]
    fn what_came_back_compressed_is_reckoned_as_what_was_read() {
        assert_eq!(
            [(10, 50, 100), (10, 50, 0), (0, 0, 5)].map(|(us, read, packed)| as_from_disk(us, read, packed)),
            [20, 0, 0]
        );
    }

    #[test]
    fn where_nothing_would_have_helped_it_is_said_why() {
        let (none, looped) = (Absences::new(), looped());
        assert!(memory(&Facts { paged_out: 0, ..facts(&none) }).contains("all fitted"));
        assert!(memory(&facts(&none)).contains("not needed again"));
        assert_eq!(beside(&facts(&none)), None);
        let shared = beside(&Facts { shared_bytes: 51 << 20, ..facts(&none) });
        assert_eq!(shared.as_deref(), Some(" (beside 51 MiB of shared memory and files, which do not count)"));
        let quick = Facts { waited: Waited { stalled: 100_000, ..facts(&looped).waited }, ..facts(&looped) };
        assert!(memory(&quick).contains("hardly waited") && disk(&quick).contains("no need"));
    }

    #[test]
    fn a_budget_that_was_raised_to_what_it_takes_is_said_to_do() {
        let (absences, mut repriced) = (looped(), pagetide_core::absences::Repriced::new());
        repriced.change(&absences, 200 << 8, 1000 << 8);
        let absences = repriced.absences(absences, 0);
        let facts = Facts { budget_bytes: 1000 << 20, ..facts(&absences) };
        assert_eq!(
            memory(&facts),
            "more memory: no need by now: with 1000 MiB, to which it was raised, it waits at most 2.7 s, not 12.0 s"
        );
    }

    #[test]
    fn a_line_tells_of_the_time_since_the_last() {
        let with = |majors: u64, stalled: u64, managed: u64| Snapshot {
            counters: [("pgmajfault", majors), ("pt_stall_some_us", stalled), ("pt_managed_us", managed)]
                .map(|(name, value)| (name.to_owned(), value))
                .to_vec(),
            ..Snapshot::default()
        };
        let text = line(Some(&with(10, 0, 0)), &with(1010, 1_000_000, 2_000_000), 2_000_000_000);
        assert!(text.ends_with("500 faults a second that read, waited 50 %"), "{text}");
    }

    #[test]
    fn when_to_tell_is_seconds_or_a_word() {
        assert_eq!(parse("2.5"), Ok(When::Every(2_500_000_000)));
        assert_eq!(parse("never"), Ok(When::Never));
        assert!(parse("often").is_err_and(|why| why.contains("0.1 to 3600") && why.contains("never")));
    }
}
