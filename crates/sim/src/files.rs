//! A program that reads and writes a file by calls, in the order of a pattern.

use pagetide_core::types::{Nanos, PageRange};

use crate::pattern::Walk;
use crate::rng::XorShift64;
use crate::task::{Behaviour, Call, Step};

/// Calls over a file: the walk counts requests, not pages.
#[derive(Debug)]
pub struct FileWalk {
    /// The file's pages.
    pub file: PageRange,
    /// Pages of a call.
    pub request: u32,
    /// The order of requests.
    pub walk: Walk,
    /// Of 100 calls, so many write.
    pub write_percent: u32,
    /// Calls still to come; `None`: no end.
    pub left: Option<u64>,
    /// CPU time before each call.
    pub think_ns: Nanos,
    /// Decides places and kinds.
    pub rng: XorShift64,
    /// The next step is a call.
    pub has_thought: bool,
}

impl Behaviour for FileWalk {
    fn step(&mut self, _now: Nanos) -> Option<Step> {
        if self.think_ns > 0 && !self.has_thought && self.left != Some(0) {
            self.has_thought = true;
            return Some(Step::Think(self.think_ns));
        }
        self.has_thought = false;
        if let Some(left) = &mut self.left {
            *left = left.checked_sub(1)?;
        }
        let range = self.file.part(self.walk.step(&mut self.rng) * self.request, self.request);
        let write = match self.write_percent {
            0 => false,
            100 => true,
            percent => self.rng.chance_bp(percent * 100),
        };
        Some(Step::Call(if write { Call::Write(range) } else { Call::Read(range) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::preset;
    use crate::pattern::Pattern;
    use crate::task::{Program, Task};
    use crate::world::{Costs, NewFile, RunEnd, SimFile, World};
    use pagetide_core::event::FileSpec;
    use pagetide_core::{Config, Counter, HostKind, MemoryMode};

    const MEMORY: u32 = 4096;
    const SPEC: FileSpec = FileSpec { ra_pages: 32, io_pages: 0, executable: false };
    const FOREVER: Nanos = 3_600_000_000_000;

    fn world(mode: MemoryMode, file_pages: u32, device: &str) -> (World, SimFile) {
        let pages_max = World::table_pages([file_pages, 8192]);
        let config = Config::profile("linux-6.18", HostKind::Exact).expect("a profile");
        let config = config.memory(mode, pages_max, MEMORY).slots_max(1024).min_free(MEMORY / 64);
        let mut world = World::new(config, pages_max, MEMORY, 2, Costs::default(), 1);
        let disk = world.add_disk(&preset(device).expect("a preset").params);
        let file = world.add_file(NewFile { pages: file_pages, disk, at: 0, spec: SPEC });
        (world, file)
    }

    fn calls(file: SimFile, request: u32, pattern: Pattern, write_percent: u32, left: u64) -> Task {
        let walk = Walk::new(pattern, file.range.len / request);
        let rng = XorShift64::new(5);
        let left = Some(left);
        let walk =
            FileWalk { file: file.range, request, walk, write_percent, left, think_ns: 0, rng, has_thought: false };
        Task::new(Program::Custom(Box::new(walk)), 0, 100)
    }

    fn count(world: &World, counter: Counter) -> u64 {
        world.core.vmstat().get(counter)
    }

    #[test]
    fn a_file_read_in_order_is_read_once_in_large_requests() {
        let (mut world, file) = world(MemoryMode::Memcg { v1: true }, 8192, "nvme");
        world.spawn(calls(file, 4, Pattern::Sequential, 0, 2048), 0);
        assert_eq!(world.run(FOREVER), RunEnd::Finished);
        let disk = world.disk_stats()[0];
        assert_eq!(disk.pages, [8192, 0]);
        assert_eq!(count(&world, Counter::pgpgin), 4 * 8192);
        assert!(disk.requests[0] < 8192 / 24, "{} requests: readahead makes windows of 32 pages", disk.requests[0]);
        assert_eq!(count(&world, Counter::workingset_refault_file), 0);
    }

    #[test]
    fn readahead_hides_the_disk_from_a_reader_that_thinks() {
        let elapsed = |ra_pages: u32| {
            let pages_max = World::table_pages([4096]);
            let config = Config::profile("linux-6.18", HostKind::Exact).expect("a profile");
            let config = config.memory(MemoryMode::Watermarks, pages_max, 8192).slots_max(512).min_free(64);
            let mut world = World::new(config, pages_max, 8192, 1, Costs::default(), 1);
            let disk = world.add_disk(&preset("nvme").expect("a preset").params);
            let spec = FileSpec { ra_pages, ..SPEC };
            let file = world.add_file(NewFile { pages: 4096, disk, at: 0, spec });
            world.spawn(calls(file, 1, Pattern::Sequential, 0, 4096), 0);
            world.run(FOREVER);
            world.now()
        };
        let (without, with) = (elapsed(0), elapsed(32));
        assert!(with * 8 < without, "{with} ns with readahead, {without} ns without");
    }

    #[test]
    fn a_second_lap_over_a_file_larger_than_memory_reads_it_again() {
        let (mut world, file) = world(MemoryMode::Memcg { v1: true }, 8192, "nvme");
        world.spawn(calls(file, 4, Pattern::Sequential, 0, 4096), 0);
        assert_eq!(world.run(FOREVER), RunEnd::Finished);
        let refaults = count(&world, Counter::workingset_refault_file);
        assert!((8_000..=8_192).contains(&refaults), "{refaults} refaults of 8192 pages");
    }

    #[test]
    fn what_is_written_comes_to_the_disk_without_being_asked_for() {
        let (mut world, file) = world(MemoryMode::Watermarks, 8192, "nvme");
        // A quarter of the memory: above the limit that wakes the flusher.
        world.spawn(calls(file, 4, Pattern::Sequential, 100, 256), 0);
        assert_eq!(world.run(FOREVER), RunEnd::Finished);
        let now = world.now();
        world.drain(now + 1_000_000_000);
        let written = world.disk_stats()[0].pages[1];
        assert!((600..=1024).contains(&written), "{written} of 1024 dirty pages, of which 409 may stay");
        assert_eq!(world.disk_stats()[0].pages[0], 0, "a page that is overwritten whole is not read");
    }

    #[test]
    fn a_writer_that_outruns_its_disk_is_slowed_down_to_it() {
        let (mut world, file) = world(MemoryMode::Watermarks, 8192, "sata-ssd");
        world.spawn(calls(file, 8, Pattern::Sequential, 100, 8 * 1024), 0);
        assert_eq!(world.run(FOREVER), RunEnd::Finished);
        // 64 Ki pages at 8.4 us each are 550 ms; a fifth of the memory is ahead of that at most.
        let ms = world.now() / 1_000_000;
        assert!((450..=800).contains(&ms), "{ms} ms for 256 MiB at 490 MB/s");
    }

    #[test]
    fn a_sync_waits_for_the_disk() {
        #[derive(Debug)]
        struct WriteAndSync(PageRange, u32);
        impl Behaviour for WriteAndSync {
            fn step(&mut self, _now: Nanos) -> Option<Step> {
                self.1 += 1;
                match self.1 {
                    1 => Some(Step::Call(Call::Write(self.0.part(0, 64)))),
                    2 => Some(Step::Call(Call::Sync(self.0))),
                    _ => None,
                }
            }
        }
        let (mut world, file) = world(MemoryMode::Watermarks, 1024, "nvme");
        world.spawn(Task::new(Program::Custom(Box::new(WriteAndSync(file.range, 0))), 0, 100), 0);
        assert_eq!(world.run(FOREVER), RunEnd::Finished);
        assert_eq!(world.disk_stats()[0].pages[1], 64);
    }

    #[test]
    fn what_two_tasks_write_and_reclaim_takes_is_what_a_third_reads() {
        let (mut world, file) = world(MemoryMode::Memcg { v1: true }, 8192, "virtio");
        for (pattern, write_percent) in [(Pattern::Random, 100), (Pattern::Sequential, 50), (Pattern::Random, 0)] {
            world.spawn(calls(file, 2, pattern, write_percent, 20_000), 0);
        }
        assert_eq!(world.run(FOREVER), RunEnd::Finished);
        assert!(count(&world, Counter::pgsteal_file) > 20_000, "memory was short");
    }
}
