//! A device at work: requests in, completion times out.
//!
//! A parallel device serves as many reads at once as it has channels; writes go into its memory, and both share the
//! medium, see `parallel`. A rotational device serves one request at a time, in the order of its elevator, which makes one
//! request of neighbours. A synchronous device has no queue: its time is the caller's CPU time, see [`Disk::call_ns`].

mod parallel;

use pagetide_core::types::Nanos;

use crate::device::{DeviceParams, Mechanism};
use crate::elevator::{Elevator, Merged};
use crate::rng::XorShift64;
use parallel::Parallel;

/// Read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the device.
    Read,
    /// To the device.
    Write,
}

/// A request as the device sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The caller's number.
    pub id: u64,
    /// Which way.
    pub direction: Direction,
    /// First page on the device.
    pub at: u64,
    /// Pages.
    pub pages: u32,
    /// A task waits for it: reads, and writes past the page cache.
    pub urgent: bool,
}

/// A request that began, and when it will end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Begun {
    /// The caller's number.
    pub id: u64,
    /// When.
    pub ends_at: Nanos,
}

/// What the end of a request brings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Requests that end with it, for they became parts of it.
    pub joined: Vec<u64>,
    /// The next one, if it waited.
    pub next: Option<Begun>,
}

/// What a device has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Requests read, written.
    pub requests: [u64; 2],
    /// Pages read, written.
    pub pages: [u64; 2],
    /// Sum of the times from submission to end, per direction.
    pub wait_ns: [u64; 2],
    /// Longest of them.
    pub wait_ns_max: [u64; 2],
    /// Time during which at least one request was there.
    pub busy_ns: u64,
}

/// A device with its queue.
#[derive(Debug)]
pub struct Disk {
    params: DeviceParams,
    rng: XorShift64,
    parallel: Parallel,
    /// Rotational: the waiting requests.
    elevator: Elevator,
    head_at: u64,
    /// Rotational: the numbers of what is being served.
    serving: Vec<u64>,
    stats: DiskStats,
    busy_until: Nanos,
}

impl Disk {
    /// An idle device; `rng` decides its spread.
    pub fn new(params: DeviceParams, rng: XorShift64) -> Self {
        Self {
            parallel: Parallel::new(params.channels),
            params,
            rng,
            elevator: Elevator::new(),
            head_at: 0,
            serving: Vec::new(),
            stats: DiskStats::default(),
            busy_until: 0,
        }
    }

    /// Its numbers.
    pub const fn params(&self) -> &DeviceParams {
        &self.params
    }

    /// What it has done.
    pub const fn stats(&self) -> DiskStats {
        self.stats
    }

    /// Synchronous: the CPU time of the call.
    pub fn call_ns(&mut self, direction: Direction, pages: u32) -> Nanos {
        self.count(direction, pages);
        self.params.cpu_ns + u64::from(pages) * self.page_ns(direction)
    }

    /// Takes a request in. `Some`: it begins at once. `None`: it waits, and [`Disk::ended`] will name it.
    pub fn submit(&mut self, now: Nanos, request: Request) -> Option<Begun> {
        self.count(request.direction, request.pages);
        match self.params.mechanism {
            Mechanism::Parallel | Mechanism::Synchronous => Some(self.begin_parallel(now, request)),
            Mechanism::Rotational if self.serving.is_empty() => {
                Some(self.begin_rotational(now, Merged::new(request, now)))
            }
            Mechanism::Rotational => {
                if self.elevator.add(now, request) {
                    self.stats.requests[way(request.direction)] -= 1;
                }
                None
            }
        }
    }

    /// A request that began has ended now.
    pub fn ended(&mut self, now: Nanos, waited_ns: Nanos, direction: Direction) -> Ended {
        let way = way(direction);
        self.stats.wait_ns[way] += waited_ns;
        self.stats.wait_ns_max[way] = self.stats.wait_ns_max[way].max(waited_ns);
        match self.params.mechanism {
            Mechanism::Parallel | Mechanism::Synchronous => Ended::default(),
            Mechanism::Rotational => {
                let joined = self.serving.split_off(self.serving.len().min(1));
                self.serving.clear();
                let next = self.elevator.next(now, self.head_at).map(|next| self.begin_rotational(now, next));
                Ended { joined, next }
            }
        }
    }

    fn count(&mut self, direction: Direction, pages: u32) {
        self.stats.requests[way(direction)] += 1;
        self.stats.pages[way(direction)] += u64::from(pages);
    }

    const fn page_ns(&self, direction: Direction) -> Nanos {
        match direction {
            Direction::Read => self.params.read_page_ns,
            Direction::Write => self.params.write_page_ns,
        }
    }

    const fn base_ns(&self, direction: Direction) -> Nanos {
        match direction {
            Direction::Read => self.params.read_ns,
            Direction::Write => self.params.write_ns,
        }
    }

    fn spread(&mut self, ns: Nanos) -> Nanos {
        let bp = self.params.jitter_bp;
        if bp == 0 {
            return ns;
        }
        let draw = u64::from(self.rng.below(2 * bp + 1));
        (ns * (10_000 + draw)).saturating_sub(ns * u64::from(bp)) / 10_000
    }

    fn note_busy(&mut self, from: Nanos, to: Nanos) {
        self.stats.busy_ns += to.saturating_sub(from.max(self.busy_until));
        self.busy_until = self.busy_until.max(to);
    }

    fn begin_parallel(&mut self, now: Nanos, request: Request) -> Begun {
        let base_ns = self.spread(self.base_ns(request.direction));
        let ends_at = match request.direction {
            Direction::Read => self.parallel.read(&self.params, now, request.pages, base_ns, &mut self.rng),
            Direction::Write => self.parallel.write(&self.params, now, request.pages, base_ns),
        };
        self.note_busy(now, ends_at);
        Begun { id: request.id, ends_at }
    }

    fn begin_rotational(&mut self, now: Nanos, request: Merged) -> Begun {
        let mut cost = self.base_ns(request.direction);
        if request.at != self.head_at {
            let distance = request.at.abs_diff(self.head_at).min(self.params.disk_pages);
            let (least, most) = self.params.seek_ns;
            cost += least + (most - least) * root_ratio_bp(distance, self.params.disk_pages) / 10_000;
            cost += u64::from(self.rng.below(u32::try_from(self.params.turn_ns).unwrap_or(u32::MAX)));
        }
        cost += u64::from(request.pages) * self.page_ns(request.direction);
        self.head_at = request.at + u64::from(request.pages);
        self.note_busy(now, now + cost);
        let begun = Begun { id: request.ids[0], ends_at: now + cost };
        self.serving = request.ids;
        begun
    }
}

/// Index of a direction in the statistics.
pub const fn way(direction: Direction) -> usize {
    match direction {
        Direction::Read => 0,
        Direction::Write => 1,
    }
}

/// 10,000 x the square root of part/whole.
fn root_ratio_bp(part: u64, whole: u64) -> u64 {
    (u128::from(part) * 100_000_000 / u128::from(whole.max(1))).isqrt().try_into().unwrap_or(10_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::preset;

    fn disk(name: &str) -> Disk {
        let params = DeviceParams { jitter_bp: 0, ..preset(name).expect("a preset").params.clone() };
        Disk::new(params, XorShift64::new(1))
    }

    fn read(id: u64, at: u64, pages: u32) -> Request {
        Request { id, direction: Direction::Read, at, pages, urgent: true }
    }

    #[test]
    fn an_idle_flash_read_takes_base_and_pages() {
        let begun = disk("nvme").submit(1000, read(1, 7, 8)).expect("channels are free");
        assert_eq!(begun.ends_at, 1000 + 75_000 + 8 * 5_000 + 8 * 1_600);
    }

    #[test]
    fn a_loaded_flash_disk_reaches_the_lower_of_channels_and_medium() {
        for (pages, want_ns_per_page) in [(1u32, 80_000 / 32), (64, 1_600)] {
            let mut disk = disk("nvme");
            let mut last = 0;
            for id in 0..10_000 {
                last = disk.submit(0, read(id, id, pages)).expect("parallel").ends_at;
            }
            let per_page = last / (10_000 * u64::from(pages));
            assert!(per_page.abs_diff(want_ns_per_page) * 10 < want_ns_per_page, "{pages} pages: {per_page} ns");
        }
    }

    #[test]
    fn a_rotational_disk_sweeps_and_streams() {
        let mut disk = disk("disk");
        let first = disk.submit(0, read(0, 1_000_000, 32)).expect("idle");
        for (id, at) in [(1, 500), (2, 9_000_000), (3, 1_000_032)] {
            assert_eq!(disk.submit(1, read(id, at, 32)), None);
        }
        let mut order = Vec::new();
        let mut at = first.ends_at;
        let mut streamed_ns = 0;
        while let Some(begun) = disk.ended(at, 0, Direction::Read).next {
            if begun.id == 3 {
                streamed_ns = begun.ends_at - at;
            }
            order.push(begun.id);
            at = begun.ends_at;
        }
        assert_eq!(order, [3, 2, 1]);
        assert_eq!(streamed_ns, 100_000 + 32 * 34_000, "the neighbour needs no seek");
    }

    #[test]
    fn a_write_that_a_task_waits_for_goes_before_the_others() {
        let mut disk = disk("disk");
        let write = |id, at, urgent| Request { id, direction: Direction::Write, at, pages: 1, urgent };
        let begun = disk.submit(0, write(0, 0, false)).expect("idle");
        for (id, urgent) in [(1, false), (2, false), (3, true)] {
            disk.submit(0, write(id, id * 1000, urgent));
        }
        let next = disk.ended(begun.ends_at, 0, Direction::Write).next.expect("three wait");
        assert_eq!(next.id, 3);
    }

    #[test]
    fn neighbours_that_wait_end_together() {
        let mut disk = disk("disk");
        let first = disk.submit(0, read(0, 1_000_000, 8)).expect("idle");
        for (id, at) in [(1, 500), (2, 501), (3, 502)] {
            assert_eq!(disk.submit(1, read(id, at, 1)), None);
        }
        let Ended { joined, next } = disk.ended(first.ends_at, 0, Direction::Read);
        assert_eq!((joined, next.map(|next| next.id)), (vec![], Some(1)), "nothing joined what was alone");
        let ends_at = next.expect("it waits").ends_at;
        assert_eq!(disk.ended(ends_at, 0, Direction::Read), Ended { joined: vec![2, 3], next: None });
        assert_eq!(disk.stats().requests, [2, 0], "what was merged is one request");
    }
}
