//! The file side: page-cache readahead as the kernel traces it, refaults, write-back, and the balance with anonymous memory.

mod common;

use common::{Pending, TASK, World, device_spec};
use pagetide_core::types::{Access, DeviceId, PageIdx, PageRange, RegionId, TaskId};
use pagetide_core::{Config, Event, HostKind, MemoryMode};
use proptest::prelude::*;

/// Anonymous pages from 0, and a file behind them, under a memcg limit.
fn world(profile: &str, settings: &[&str], anon: u32, file: u32, budget: u32) -> World {
    let mut config = Config::profile(profile, HostKind::Exact).expect("a profile");
    for setting in settings {
        config.set(setting).expect("a setting");
    }
    let config = config.memory(MemoryMode::Memcg { v1: true }, anon + file, budget).slots_max(anon * 4 + 512);
    let mut world = World::new(config, false);
    world.audits = anon + file < 300;
    world.event(Event::RegionAdded { region: RegionId(0), range: PageRange::new(PageIdx(0), anon) });
    world.event(Event::DeviceAdded { device: DeviceId(0), spec: device_spec(anon * 4 + 16) });
    world.add_file(anon, file, 32);
    world
}

/// The file pages whose reads one call brings, relative to the file.
fn reads(world: &mut World, first: u32, pages: u32) -> Vec<(u32, u32)> {
    let base = world.file.expect("there is a file");
    world.log = Some(Vec::new());
    world.file_call(first, pages, Access::Read);
    let log = world.log.take().expect("set above");
    let range = |line: &String| {
        let pages = line.split(' ').nth(1).expect("pages");
        let (from, to) = pages.split_once('-').unwrap_or((pages, pages));
        (from.parse::<u32>().expect("a page") - base, to.parse::<u32>().expect("a page") - base + 1)
    };
    log.iter().filter(|line| line.starts_with("read")).map(range).collect()
}

#[test]
fn four_kib_reads_double_their_windows() {
    let mut world = world("linux-6.18", &[], 8, 256, 4_096);
    assert_eq!(reads(&mut world, 0, 1), [(0, 4)]);
    assert_eq!(reads(&mut world, 1, 1), [(4, 12)], "the marker on page 1");
    assert_eq!(reads(&mut world, 2, 2), []);
    assert_eq!(reads(&mut world, 4, 1), [(12, 28)]);
    (5..12).for_each(|i| assert_eq!(reads(&mut world, i, 1), []));
    assert_eq!(reads(&mut world, 12, 1), [(28, 60)]);
    (13..28).for_each(|i| assert_eq!(reads(&mut world, i, 1), []));
    assert_eq!(reads(&mut world, 28, 1), [(60, 92)]);
}

#[test]
fn mapped_accesses_read_around() {
    let mut world = world("linux-6.18", &[], 8, 600, 4_096);
    let base = world.file.expect("there is a file");
    for i in [100, 115, 116, 123, 124, 125, 140, 500, 0, 1, 16, 24, 32] {
        world.read(base + i);
    }
    let majors = world.count("pgmajfault");
    assert_eq!(majors, 4, "100, 116, 500 and 0");
    assert_eq!(
        world.count("pgpgin"),
        4 * (32 + 16 + 32 + 32 + 32 + 32 + 20),
        "from 84, 116, 132, 484, 0, 32 and 64: what is cached is not read again"
    );
}

#[test]
fn a_load_maps_what_its_block_holds() {
    let mut world = world("linux-6.18", &[], 16, 600, 4_096);
    let base = world.file.expect("there is a file");
    let faults = |world: &mut World, page: u32| {
        let before = world.count("pgfault");
        world.read(base + page);
        world.count("pgfault") - before
    };
    world.read(base + 100);
    assert_eq!(faults(&mut world, 103), 0, "it was read with page 100, and mapped when that fault began anew");
    assert_eq!(faults(&mut world, 90), 1, "it was read, too, and lies in another block");
    assert_eq!(faults(&mut world, 95), 0, "its block was mapped for page 90");
    assert_eq!(faults(&mut world, 108), 1, "the marker is not mapped along");
}

#[test]
fn a_fault_holds_its_page_while_it_reads_ahead() {
    let (memory, file) = (80, 600);
    let mut world = world("linux-6.18", &[], 8, file, memory);
    let base = world.file.expect("there is a file");
    for page in base..base + file {
        world.log = Some(Vec::new());
        world.read(page);
        let log = world.log.take().expect("set above");
        for dropped in log.iter().filter_map(|line| line.strip_prefix("drop ")) {
            let (from, to) = dropped.split_once('-').unwrap_or((dropped, dropped));
            let taken = from.parse::<u32>().expect("a page")..=to.parse::<u32>().expect("a page");
            assert!(!taken.contains(&page), "page {} was taken from its own fault: {log:?}", page - base);
        }
    }
}

#[test]
fn random_loads_keep_their_readahead_while_blocks_hold_neighbours() {
    // Twice the memory. Each load meets on average half of its block, which makes up for its own miss.
    let mut world = world("linux-6.18", &[], 8, 2_048, 1_024);
    let base = world.file.expect("there is a file");
    let mut x = 1u32;
    for _ in 0..3_000 {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        world.read(base + (x >> 8) % 2_048);
    }
    let (read, misses) = (world.count("pgpgin") / 4, world.count("pgmajfault"));
    assert!(read > misses * 20, "{read} pages for {misses} misses: a window is 32 pages");
    world.core.audit();
}

#[test]
fn one_pass_leaves_shadows_and_a_second_read_activates() {
    let mut world = world("linux-6.18", &[], 8, 2_048, 1_024);
    (0..512).for_each(|i| world.file_call(i, 1, Access::Read));
    assert_eq!(world.core.list_sizes()[3], 0, "one read leaves a page inactive");
    (0..512).for_each(|i| world.file_call(i, 1, Access::Read));
    assert_eq!(world.core.list_sizes()[3], 512, "a second one activates it");
    assert_eq!(world.count("pgactivate"), 512);
    (0..2_048).for_each(|i| world.file_call(i, 1, Access::Read));
    (512..2_048).for_each(|i| world.file_call(i, 1, Access::Read));
    assert!(world.count("workingset_refault_file") > 1_000, "{}", world.count("workingset_refault_file"));
    assert!(world.core.list_sizes()[3] > 256, "what was used twice survives the scan");
    assert!(world.count("pgsteal_file") <= world.count("pgscan_file"));
    world.core.audit();
}

/// Measured on 6.18.44 in a memory cgroup: a file of 64 MiB written three times in calls of 1 MiB, or once in calls of 512
/// bytes, has 0 to 3 MiB of active pages; read twice it has 51 MiB. All written pages were activated here, by one write.
#[test]
fn writes_alone_activate_no_page() {
    let mut world = world("linux-6.18", &["lru-batch=0"], 8, 256, 1_024);
    (0..3).for_each(|_| world.file_call(0, 64, Access::Write));
    world.file_call(0, 64, Access::Read);
    assert_eq!(world.core.list_sizes()[3], 0, "three writes and one read");
    world.file_call(0, 64, Access::Read);
    assert_eq!(world.core.list_sizes()[3], 64, "the second read activates");
}

/// Before 4.7 a write counted like a read: each call marks the pages it writes once.
#[test]
fn the_second_write_activated_in_old_kernels() {
    let mut world = world("linux-3.10", &["lru-batch=0"], 8, 256, 1_024);
    world.file_call(0, 64, Access::Write);
    assert_eq!(world.core.list_sizes()[3], 0, "one write marks a page once");
    world.file_call(0, 64, Access::Write);
    assert_eq!(world.core.list_sizes()[3], 64, "a second one activates it");
}

#[test]
fn dirty_pages_are_written_before_they_go() {
    let mut world = world("linux-6.18", &[], 8, 512, 192);
    (0..512).for_each(|i| world.file_call(i, 1, Access::Write));
    world.settle();
    assert!(world.count("pgpgout") >= 4 * 300, "{}", world.count("pgpgout"));
    // Every page is read back as it was written: checked by the host.
    (0..512).for_each(|i| world.file_call(i, 1, Access::Read));
    world.core.audit();
}

/// A writer whose fresh page was the one too many that is dirty used to wait with the page's zeroes in the page cache: the
/// flusher wrote them, and others read them.
#[test]
fn a_fresh_page_holds_its_writers_bytes_when_others_see_it() {
    let mut world = world("linux-6.18", &[], 8, 3_500, 4_000);
    let base = world.file.expect("there is a file");
    // No write of the flusher ends here; 800 pages may be dirty or under write before writers wait.
    for i in 0..3_500 {
        let page = base + i;
        for (task, access) in [(TASK, Access::Write), (2, Access::Read)] {
            world.blocked.insert(task, (page, access));
            let (range, task) = (PageRange::one(PageIdx(page)), TaskId(task));
            // The host checks what the reader gets when it is woken.
            world.event(match access {
                Access::Write => Event::FileWrite { range, task },
                Access::Read => Event::FileRead { range, task },
            });
        }
        if world.blocked.contains_key(&TASK) {
            assert!(i >= 800, "page {i}: writers wait when a fifth of the memory is dirty or under write");
            return;
        }
    }
    panic!("no writer ever waits");
}

/// File pages that are dirtied before a writer waits, in 4,000 pages of which 3,200 hold anonymous memory; and pages of them
/// that the flusher has under write then, none of which ends.
fn dirtied(profile: &str, write_queue: u32) -> (u32, u32) {
    let config = Config::profile(profile, HostKind::Exact).expect("a profile");
    let config = config.memory(MemoryMode::Watermarks, 3_200 + 2_000, 4_000).slots_max(8_192).min_free(16);
    let mut world = World::new(config.write_queue(write_queue), false);
    world.audits = false;
    world.event(Event::RegionAdded { region: RegionId(0), range: PageRange::new(PageIdx(0), 3_200) });
    world.event(Event::DeviceAdded { device: DeviceId(0), spec: device_spec(6_400) });
    world.add_file(3_200, 2_000, 32);
    (0..3_200).for_each(|p| world.write(p));
    for i in 0..2_000 {
        world.blocked.insert(TASK, (3_200 + i, Access::Write));
        world.event(Event::FileWrite { range: PageRange::one(PageIdx(3_200 + i)), task: TaskId(TASK) });
        if world.blocked.contains_key(&TASK) {
            return (i, u32::try_from(world.count("pgpgout") / 4).expect("few"));
        }
    }
    (2_000, 0)
}

/// Since 3.14 anonymous memory does not count as memory that may be dirty.
#[test]
fn writers_wait_when_a_fifth_of_what_holds_files_is_dirty() {
    let (old, new) = (dirtied("linux-3.10", 0).0, dirtied("linux-4.10", 0).0);
    assert!((140..=180).contains(&new), "{new}: a fifth of 800, but for what waits to be put on a list");
    assert!((590..=597).contains(&old), "{old}: between a tenth and a fifth of all memory above the high watermark");
}

#[test]
fn the_flusher_writes_what_the_queue_of_the_disk_holds() {
    assert!(dirtied("linux-3.10", 0).1 > 64, "a queue without end");
    assert_eq!(dirtied("linux-3.10", 64).1, 64);
}

/// A task's system call on a page of the file; false if the task has to wait.
fn call(world: &mut World, page: u32, task: u32, access: Access) -> bool {
    let (range, id) = (PageRange::one(PageIdx(page)), TaskId(task));
    world.blocked.insert(task, (page, access));
    world.event(match access {
        Access::Read => Event::FileRead { range, task: id },
        Access::Write => Event::FileWrite { range, task: id },
    });
    !world.blocked.contains_key(&task)
}

fn answer_reads(world: &mut World) {
    while let Some(at) = world.pending.iter().position(|p| matches!(p, Pending::Read { .. })) {
        world.answer(at);
    }
}

/// System calls on these file pages, one after the other; no write ends.
fn call_each(world: &mut World, pages: std::ops::Range<u32>, access: Access) {
    for page in pages {
        call(world, page, TASK, access);
        answer_reads(world);
        let_time_pass(world);
    }
}

fn profile(name: &str) -> Config {
    Config::profile(name, HostKind::Exact).expect("a profile")
}

/// Until the task has what it called for, or waits for more than time.
fn let_time_pass(world: &mut World) {
    while world.blocked.contains_key(&TASK) {
        world.now = world.core.deadline().expect("nothing but time is waited for");
        world.event(Event::Timeout);
        answer_reads(world);
    }
}

/// What kswapd does with 140 dirty pages, of which the disk takes four and ends none, while clean pages are read until all have
/// gone round: pages that it handed to the file system, pages that it marked to go when they are written, and the time that it took.
fn dirty_tail(config: Config) -> (u64, u64, u64) {
    let config = config.memory(MemoryMode::Watermarks, 8_000, 1_000).slots_max(512).min_free(16);
    let mut world = World::new(config.write_queue(4), false);
    world.audits = false;
    world.add_file(0, 8_000, 0);
    call_each(&mut world, 0..140, Access::Write);
    call_each(&mut world, 2_000..8_000, Access::Read);
    assert_eq!(world.count("pgpgout") / 4, 4, "what the flusher has sent");
    (world.count("nr_vmscan_write"), world.count("nr_vmscan_immediate_reclaim"), world.now)
}

/// As many requests are under way as the core can count.
#[test]
fn calls_wait_for_the_end_of_a_request_when_no_more_can_be_sent() {
    const READERS: u32 = 1 << 14;
    let config = profile("linux-6.18").memory(MemoryMode::Watermarks, 4 * READERS, 4 * READERS).slots_max(512);
    let mut world = World::new(config, false);
    world.audits = false;
    world.add_file(0, 4 * READERS, 0);
    for reader in 0..READERS {
        assert!(!call(&mut world, 2 * reader, reader, Access::Read));
    }
    assert_eq!(world.pending.len(), READERS as usize);
    assert!(call(&mut world, 3 * READERS, READERS, Access::Write), "a page that is new needs no request");
    assert!(!call(&mut world, 3 * READERS + 1, READERS + 1, Access::Read));
    assert_eq!(world.pending.len(), READERS as usize);
    world.answer(0);
    world.settle();
    assert!(world.blocked.is_empty(), "{:?}", world.blocked);
}

// From memory of 3.10: below its first three priorities kswapd gives dirty pages to the file system, and ext4 gives those of a new
// file back. It marks what it meets before that, and only that.
#[test]
fn kswapd_of_3_10_hands_dirty_pages_to_the_file_system_that_writes_none() {
    let (handed, marked, _) = dirty_tail(profile("linux-3.10"));
    assert!(handed > 0 && marked < handed, "{handed} handed over, {marked} marked");
    let (handed, marked, _) = dirty_tail(profile("linux-4.10"));
    assert!(handed == 0 && marked > 0);
}

// From memory of 3.11: a batch of nothing but dirty pages stops kswapd and tasks for a tenth of a second, and kswapd hands such
// pages over from then on.
#[test]
fn reclaim_of_2013_naps_when_all_that_it_finds_is_dirty() {
    const NAP_NS: u64 = 100_000_000;
    let limited = |nap_ns| dirty_tail(profile("linux-3.10").kswapd_limited(nap_ns));
    let (none, all, at_once) = limited(0);
    assert_eq!((none, at_once), (0, 0));
    let (handed, marked, elapsed) = limited(NAP_NS);
    assert!(handed > 0 && marked < all, "{handed} handed over, {marked} marked, {all} without naps");
    assert!(elapsed >= NAP_NS && elapsed.is_multiple_of(NAP_NS), "{elapsed}");
}

/// From memory of 3.10: kswapd begins again at the first priority when it has freed a batch, so that its passes look at no more
/// of the lists than that takes.
#[test]
fn kswapd_of_3_10_begins_again_at_the_first_priority() {
    let config = profile("linux-3.10").memory(MemoryMode::Watermarks, 80_000, 40_000).slots_max(512).min_free(2_048);
    let mut world = World::new(config, false);
    world.audits = false;
    world.add_file(0, 80_000, 0);
    call_each(&mut world, 0..80_000, Access::Read);
    // 9 pages of 38,000, then 18, then 37: a batch of 32.
    let (passes, freed) = (world.count("pt_reclaim_pass"), world.count("pgsteal_kswapd"));
    assert!(freed > 40_000);
    assert!((20 * passes..24 * passes).contains(&freed), "{freed} pages in {passes} passes");
}

/// From memory of 4.10: the waits of direct reclaim are short, and a task that finds memory free after one is done.
#[test]
fn a_direct_run_that_waited_ends_when_others_have_made_room() {
    let config = profile("linux-4.10").memory(MemoryMode::Watermarks, 2_000, 1_000).slots_max(4_096).min_free(64);
    let mut world = World::new(config, false);
    world.audits = false;
    for (id, first, pages) in [(0, 0, 600), (1, 600, 300), (2, 900, 1_100)] {
        world.event(Event::RegionAdded { region: RegionId(id), range: PageRange::new(PageIdx(first), pages) });
    }
    world.event(Event::DeviceAdded { device: DeviceId(0), spec: device_spec(4_000) });
    let waits = |world: &mut World, page: u32| {
        world.begin(TASK, page, Access::Write);
        world.blocked.contains_key(&TASK)
    };
    // No write ends.
    assert!((0..2_000).any(|page| waits(&mut world, page)), "there are more pages than memory");
    while world.count("pt_wait_memory") == 0 {
        world.event(Event::Timeout);
    }
    let looked_at = world.count("pgscan_direct");
    assert!(looked_at > 0);
    world.event(Event::RegionRemoved { region: RegionId(1) });
    assert!(!world.blocked.contains_key(&TASK));
    assert_eq!(world.count("pgscan_direct"), looked_at);
}

/// Anonymous memory and file in turn, each alone larger than the memory.
fn mixed(swappiness: &str, profile: &str) -> (u64, u64) {
    let mut world = world(profile, &[swappiness], 1_024, 2_048, 1_200);
    for round in 0..4 {
        for i in 0..1_024 {
            world.write(i);
            world.file_call((round * 512 + i) % 2_048, 1, Access::Read);
        }
    }
    world.core.audit();
    (world.count("pgsteal_anon"), world.count("pgsteal_file"))
}

#[test]
fn swappiness_shifts_the_pressure() {
    let (none, file) = mixed("swappiness=0", "linux-6.18");
    assert_eq!(none, 0, "swappiness 0 in a memcg never swaps");
    assert!(file > 1_000, "{file}");
    let (some, _) = mixed("swappiness=60", "linux-6.18");
    let (more, less) = mixed("swappiness=200", "linux-6.18");
    assert!(more > some, "{some} at 60, {more} at 200");
    assert!(less < file);
}

/// Idle anonymous memory, and a file read round and round that would fit without it. Pages stolen: anonymous, file; and
/// file pages read in the last of ten rounds.
fn thrash(profile: &str, setting: &str) -> (u64, u64, u64) {
    let mut world = world(profile, &[setting], 1_024, 1_200, 1_600);
    (0..1_024).for_each(|p| world.write(p));
    for _ in 0..9 {
        (0..1_200).for_each(|i| world.file_call(i, 1, Access::Read));
    }
    let before = world.count("pgpgin");
    (0..1_200).for_each(|i| world.file_call(i, 1, Access::Read));
    (world.count("pgsteal_anon"), world.count("pgsteal_file"), (world.count("pgpgin") - before) / 4)
}

#[test]
fn the_balances_tell_vanilla_from_cost() {
    // Up to 5.7 only what lies within the active file list counts as a refault, and with plenty of inactive cache
    // anonymous memory is spared, idle as it is: the cache thrashes.
    for profile in ["linux-3.10", "linux-4.10", "linux-5.6"] {
        let (anon, file, reads) = thrash(profile, "swappiness=100");
        assert_eq!(anon, 0, "{profile}: {file} file pages");
        assert!(reads > 1_000, "{profile}: {reads}");
    }
    // What S1 set out to change, as posted and as merged: the idle pages go, the file stays.
    for (profile, setting) in
        [("linux-4.10", "balance=lru-cost-2016"), ("linux-6.1", "swappiness=100"), ("linux-6.18", "swappiness=100")]
    {
        let (anon, file, reads) = thrash(profile, setting);
        assert!(anon > 400, "{profile} {setting}: {anon} anonymous, {file} file pages, {reads} reads");
        assert!(reads < 600, "{profile} {setting}: {reads} reads in the last round");
    }
}

/// Active pages that reclaim takes down where some pages come back just after they went, and the inactive list is the longer one.
fn deactivated(profile: &str) -> u64 {
    let mut world = world(profile, &[], 8, 1_600, 1_000);
    for _ in 0..2 {
        (0..200).for_each(|i| world.file_call(i, 1, Access::Read));
    }
    for i in (300..1_150).chain(300..330).chain(1_150..1_300) {
        world.file_call(i, 1, Access::Read);
    }
    let [_, _, inactive, active, _] = world.core.list_sizes();
    assert!(inactive > active && world.count("workingset_activate_file") > 0, "{inactive} and {active}");
    world.count("pgdeactivate")
}

#[test]
fn pages_that_come_back_open_the_active_list_since_4_12() {
    assert_eq!(deactivated("linux-4.10"), 0);
    assert!(deactivated("linux-5.6") > 0);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mixed_lives_keep_every_byte(
        steps in proptest::collection::vec((0..5u32, 0..96u32, 1..9u32), 1..250),
        profile in 0..5usize,
    ) {
        let profile = pagetide_core::config::PROFILES[profile];
        let mut world = world(profile, &["charge-batch=4", "lru-batch=3"], 48, 96, 40);
        for (kind, page, len) in steps {
            let len = len.min(96 - page);
            match kind {
                0 => world.write(page % 48),
                1 => world.file_call(page, len, Access::Read),
                2 => world.file_call(page, 1, Access::Write),
                3 => world.read(48 + page),
                _ => world.write(48 + page),
            }
        }
        world.settle();
        (0..96).for_each(|i| world.file_call(i, 1, Access::Read));
        (0..48).for_each(|p| world.read(p));
    }
}
