//! The page that a managed process shares with its supervisor: its share of the budget, and what it counts.
//!
//! The supervisor (`pagetide run`) makes one for each process whose memory is to be managed, in a file of its own: what a process
//! writes into it, other processes do not see. Plain atomic words, no lock: a process that is killed at any moment leaves at worst a
//! number that is a few milliseconds old. A hostile program may write anything: the supervisor uses the words as numbers to
//! add and compare only.
//!
//! What is written by whom: `budget_pages`, `share_pages`, `given_at_fork` and `short_places` by the supervisor; `asked` by forked
//! children, who inherit the mapping; everything else by the agent of the process.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pagetide_core::absences;
use pagetide_core::vmstat::COUNTERS;
use pagetide_sys::fd::{self, Fd};
use pagetide_sys::mem::{Mapping, Protection};
use pagetide_sys::{Errno, file};

use crate::fork::asked::Asked;
use crate::heat::Heat;
use crate::protocol::DEVICES_MAX;
use crate::space::unpaged::UNPAGED;
use crate::spans::Spans;

use crate::session::command::{PlaceId, PlaceReport, PlaceState};
use crate::store::Traffic;

/// Buckets of the latency histogram: four to each power of two of nanoseconds.
pub(crate) const LATENCY_BUCKETS: usize = 160;
/// Counters of the machine, beside the core's: name, what it counts.
pub const MACHINE_COUNTERS: [(&str, &str); 22] = [
    ("uffd_moved_in", "Pages moved into the program."),
    ("uffd_moved_out", "Pages moved out of the program."),
    ("uffd_copied", "Pages copied into the program."),
    ("uffd_zero_filled", "Zero pages filled in."),
    ("uffd_moves", "Calls that moved pages."),
    ("uffd_busy", "Pages that could not be moved at the moment."),
    ("io_read_requests", "Reads that the disk was asked for."),
    ("io_write_requests", "Writes that the disk was asked for."),
    ("io_read_us", "Time that reads of the disk took, one by one, in microseconds."),
    ("io_write_us", "The same of writes."),
    ("zswpin", "Pages read from the compressed tier instead of the disk."),
    ("zswpout", "Pages taken into the compressed tier."),
    ("zswpwb", "Pages written to the disk from the compressed tier."),
    ("pt_zswap_reject_compress_poor", "Pages that did not compress to three quarters: left to the disk."),
    ("pt_zswap_pool_pages_max", "Memory of the compressed tier, at most, in pages."),
    ("pt_zswap_stored_pages_max", "Pages in the compressed tier, at most."),
    ("pt_managed_us", "Time under management, in microseconds: the sum over the processes."),
    ("pt_stall_some_us", "Time of it in which at least one thread of the process waited for memory."),
    ("pt_stall_full_us", "Time of that in which none of its threads did anything else; sampled."),
    ("pt_stall_read_us", "Time of `pt_stall_some_us` in which the disk was read."),
    ("pt_stall_first_touch_us", "Time of `pt_stall_some_us` that was waited for pages that had never been used."),
    ("pt_away_pages_max", "Pages of a process that were paged out at once, at most: the sum over the processes."),
];
/// Where a counter of the machine is among an entry's.
pub(crate) fn machine_counter(name: &str) -> Option<usize> {
    MACHINE_COUNTERS.iter().position(|(known, _)| *known == name).map(|index| COUNTERS.len() + index)
}

/// Counters of an entry: the core's, then the machine's.
pub(crate) const COUNTERS_MAX: usize = 128;
const _: () = assert!(COUNTERS.len() + MACHINE_COUNTERS.len() <= COUNTERS_MAX);

/// What a process is to its supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Phase {
    /// Its memory is managed.
    Managed = 2,
}

/// Places that a process tells of at most: the devices that a core can have.
pub(crate) const PLACES_MAX: usize = 32;

/// How one place of a process stands.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct PlaceWords {
    /// The place's number and 1; 0: no place.
    place: AtomicU32,
    state: AtomicU32,
    pub(crate) used: AtomicU64,
    pub(crate) inherited: AtomicU64,
    pub(crate) backed: AtomicU64,
    pub(crate) lost: AtomicU64,
    /// Reads and writes: requests, pages, nanoseconds.
    pub(crate) traffic: [[AtomicU64; 3]; 2],
}

impl PlaceWords {
    /// Whose words they are.
    pub(crate) fn place(&self) -> Option<PlaceId> {
        self.place.load(Ordering::Acquire).checked_sub(1).map(PlaceId)
    }

    /// They are nobody's.
    pub(crate) fn clear(&self) {
        self.place.store(0, Ordering::Release);
    }

    /// Say how a place stands.
    pub(crate) fn publish(&self, report: PlaceReport) {
        let relaxed = Ordering::Relaxed;
        self.used.store(report.used, relaxed);
        self.inherited.store(report.inherited, relaxed);
        self.backed.store(report.backed, relaxed);
        self.lost.store(report.lost, relaxed);
        self.state.store(report.state as u32, relaxed);
        self.place.store(report.place.0 + 1, Ordering::Release);
    }

    /// Say what was read from it and written to it.
    pub(crate) fn publish_traffic(&self, traffic: [Traffic; 2]) {
        for (words, way) in self.traffic.iter().zip(traffic) {
            for (word, value) in words.iter().zip([way.requests, way.pages, way.ns]) {
                word.store(value, Ordering::Relaxed);
            }
        }
    }

    /// What was read from it and written to it.
    pub(crate) fn traffic(&self) -> [Traffic; 2] {
        let read = |words: &[AtomicU64; 3]| {
            let [requests, pages, ns] = words.each_ref().map(|word| word.load(Ordering::Relaxed));
            Traffic { requests, pages, ns }
        };
        self.traffic.each_ref().map(read)
    }

    /// Slots in which the process has pages or keeps some for forked children, wherever they are: what a swapoff has to move.
    pub(crate) fn pages(&self) -> u64 {
        let [used, inherited] = [&self.used, &self.inherited].map(|word| word.load(Ordering::Relaxed));
        used.saturating_add(inherited)
    }

    /// What it is used for. What is not known counts as used.
    pub(crate) fn state(&self) -> PlaceState {
        PlaceState::from_word(self.state.load(Ordering::Acquire)).unwrap_or(PlaceState::Draining)
    }
}

/// A file of a place in which a process has slots: its own, or that of a process it was forked from.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct FileWords {
    /// The same in all processes that have it; 0: no file.
    file: AtomicU64,
    place: AtomicU32,
    used: AtomicU64,
}

impl FileWords {
    /// Say how many slots of it are in use; `file` is None: there is none.
    pub(crate) fn publish(&self, file: Option<(u64, PlaceId)>, used: u64) {
        let relaxed = Ordering::Relaxed;
        let (number, place) = file.map_or((0, 0), |(number, place)| (number, place.0));
        if self.file.load(relaxed) != number {
            self.file.store(0, Ordering::Release);
        }
        self.place.store(place, relaxed);
        self.used.store(used, relaxed);
        self.file.store(number, Ordering::Release);
    }

    /// Its number and the slots in use, if it is of this place.
    pub(crate) fn of(&self, place: PlaceId) -> Option<(u64, u64)> {
        let number = self.file.load(Ordering::Acquire);
        let is_there = number != 0 && self.place.load(Ordering::Relaxed) == place.0;
        is_there.then(|| (number, self.used.load(Ordering::Relaxed)))
    }
}

/// One process.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Entry {
    pub(crate) phase: AtomicU32,
    /// Minor faults of the process before its program could go on under management: its agent's. 0: not known.
    pub(crate) begun_faults: AtomicU64,
    /// The CPU time of the process when its agent went to rest; 0: it does not rest.
    pub(crate) rests_at: AtomicU64,
    /// Since when no thread of the program has run, by the monotonic clock; 0: they run, wait for memory, or it is not known.
    pub(crate) quiet_since: AtomicU64,
    /// The whole run's.
    pub(crate) budget_pages: AtomicU64,
    /// What the process may keep resident.
    pub(crate) share_pages: AtomicU64,
    /// Pages that it pages out before a fork, up to half of what it may keep.
    pub(crate) given_at_fork: AtomicU64,
    /// Places whose room processes need that find none: a bit for each, by its number.
    pub(crate) short_places: AtomicU64,
    /// What it keeps: program, our frames and our metadata.
    pub(crate) resident_pages: AtomicU64,
    /// The most it kept.
    pub(crate) resident_pages_max: AtomicU64,
    /// Of that, our frames that hold nothing and our metadata.
    pub(crate) overhead_pages: AtomicU64,
    pub(crate) overhead_pages_max: AtomicU64,
    /// Our metadata alone, at most.
    pub(crate) metadata_pages_max: AtomicU64,
    /// Addresses under management, at most.
    pub(crate) managed_pages_max: AtomicU64,
    /// Memory that is not paged, by the reasons of `UNPAGED`, at most.
    pub(crate) unpaged_pages_max: [AtomicU64; UNPAGED.len()],
    /// Reads that a fault waited for, so far: the pressure that shares are weighed by.
    pub(crate) major_faults: AtomicU64,
    /// Microseconds in which at least one thread of it waited for memory, so far; told while it waits, too.
    pub(crate) waited_us: AtomicU64,
    /// Pages that are in swap space and not in memory as well.
    pub(crate) away_pages: AtomicU64,
    /// Of those, pages that are compressed in memory.
    pub(crate) compressed_pages: AtomicU64,
    /// Pages of the lists: inactive, active.
    pub(crate) lists: [AtomicU64; 2],
    /// What cannot leave: locked or read-only pages, memory that is not managed, our tables.
    pub(crate) pinned_pages: AtomicU64,
    /// Where its pages are.
    pub(crate) places: [PlaceWords; PLACES_MAX],
    /// By device of the core.
    pub(crate) files: [FileWords; DEVICES_MAX],
    pub(crate) counters: [AtomicU64; COUNTERS_MAX],
    pub(crate) latency: [AtomicU64; LATENCY_BUCKETS],
    /// Pages that came back, by how long they were away.
    pub(crate) returns: [AtomicU64; absences::BUCKETS],
    /// The same, by how much more memory would have spared them.
    pub(crate) prices: [AtomicU64; absences::BUCKETS],
    pub(crate) spans: Spans,
    pub(crate) heat: Heat,
    /// What its children ask for.
    pub(crate) asked: Asked,
}

/// The mapping.
#[derive(Debug)]
pub(crate) struct Control {
    mapping: Mapping,
}

/// Bytes of the shared file.
pub(crate) const CONTROL_BYTES: usize = size_of::<Entry>().next_multiple_of(4096);

impl Control {
    /// A new one, and its file.
    pub(crate) fn create() -> Result<(Self, Fd), Errno> {
        let file = fd::memfd(c"pagetide-control")?;
        file::truncate(&file, CONTROL_BYTES as u64)?;
        Self::open(&file).map(|control| (control, file))
    }

    /// Of a file that `create` made.
    pub(crate) fn open(file: &Fd) -> Result<Self, Errno> {
        let mapping = Mapping::shared(file, 0, CONTROL_BYTES, Protection::ReadWrite)?;
        Ok(Self { mapping })
    }

    /// The words.
    pub(crate) fn entry(&self) -> &Entry {
        // SAFETY: the mapping is at least that long, page aligned, lives as long as self, and consists of atomics.
        unsafe { &*self.mapping.range().as_ptr().cast::<Entry>() }
    }
}

impl Entry {
    /// True once its memory is managed.
    pub(crate) fn is_managed(&self) -> bool {
        self.phase.load(Ordering::Acquire) == Phase::Managed as u32
    }

    /// The words of a place, if the process has told of it.
    pub(crate) fn place(&self, place: PlaceId) -> Option<&PlaceWords> {
        self.places.iter().find(|words| words.place() == Some(place))
    }
}

impl Entry {
    /// Count a fault of this bucket.
    pub(crate) fn note_latency(&self, bucket: usize) {
        self.latency[bucket].fetch_add(1, Ordering::Relaxed);
    }
}

/// The bucket of a latency: four to each power of two.
pub(crate) fn latency_bucket(ns: u64) -> usize {
    let ns = ns.max(4);
    let power = 63 - ns.leading_zeros();
    let quarter = (ns >> (power - 2)) & 3;
    (((power - 2) * 4) as usize + usize::try_from(quarter).expect("two bits")).min(LATENCY_BUCKETS - 1)
}

/// The upper end of a bucket, in nanoseconds.
pub(crate) const fn latency_of_bucket(bucket: usize) -> u64 {
    let power = bucket / 4 + 2;
    let quarter = (bucket % 4) as u64;
    ((4 + quarter + 1) << (power - 2)) - 1
}

/// Distribution of the time from reading a fault to mapping its page, in nanoseconds. Values are upper ends of buckets that
/// are at most 25 % wide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LatencySummary {
    /// Faults counted.
    pub count: u64,
    /// Half took at most this.
    pub p50: u64,
    /// 90 % took at most this.
    pub p90: u64,
    /// 99 % took at most this.
    pub p99: u64,
    /// The slowest.
    pub max: u64,
}

/// What a histogram says.
pub(crate) fn summary(buckets: &[u64; LATENCY_BUCKETS]) -> LatencySummary {
    let count = buckets.iter().fold(0, |sum: u64, &faults| sum.saturating_add(faults));
    let at = |percent: u64| {
        let rank = (count / 100 * percent + (count % 100 * percent).div_ceil(100)).max(1);
        let mut seen = 0_u64;
        let bucket = buckets.iter().position(|&faults| {
            seen = seen.saturating_add(faults);
            seen >= rank
        });
        bucket.map_or(0, latency_of_bucket)
    };
    LatencySummary { count, p50: at(50), p90: at(90), p99: at(99), max: if count > 0 { at(100) } else { 0 } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_latency_lies_at_or_below_the_end_of_its_bucket_and_above_the_one_before() {
        for ns in (4..4096).chain([1_000_000, 123_456_789, 9_999_999_999]) {
            let bucket = latency_bucket(ns);
            assert!(ns <= latency_of_bucket(bucket), "{ns} ns is in bucket {bucket}");
            assert!(bucket == 0 || ns > latency_of_bucket(bucket - 1), "{ns} ns is in bucket {bucket}");
        }
    }
}
