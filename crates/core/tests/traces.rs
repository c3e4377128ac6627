//! The readahead traces of the kernel: windows, page by page, in the order of facts sections 6 and 7.

mod common;

use common::World;
use pagetide_core::event::Advice;
use pagetide_core::types::{Access, DeviceId, PageIdx, PageRange, RegionId};
use pagetide_core::{Config, Event, HostKind, MemoryMode};

/// A world in which `pages` pages are swapped out, in ascending slots from 1.
fn swapped(profile: &str, settings: &[&str], pages: u32) -> World {
    let mut config = Config::profile(profile, HostKind::Exact).expect("a profile");
    for setting in settings {
        config.set(setting).expect("a setting");
    }
    let config = config.memory(MemoryMode::Memcg { v1: true }, pages, pages + 200).slots_max(pages * 3);
    let mut world = World::new(config, false);
    world.audits = false;
    world.event(Event::RegionAdded { region: RegionId(0), range: PageRange::new(PageIdx(0), pages) });
    world.event(Event::DeviceAdded { device: DeviceId(0), spec: common::device_spec(pages * 3) });
    (0..pages).for_each(|p| world.write(p));
    // Once to write, once more to drop what is clean then.
    for _ in 0..2 {
        world.event(Event::Advice { range: PageRange::new(PageIdx(0), pages), advice: Advice::PageOut });
        world.settle();
    }
    assert_eq!(world.count("pswpout"), u64::from(pages));
    world
}

/// The windows of the reads that one access brings, as `from-to` with pages up to but not including `to`.
fn windows(world: &mut World, page: u32) -> String {
    world.log = Some(Vec::new());
    assert!(world.access(page, Access::Read));
    let log = world.log.take().expect("set above");
    log.iter()
        .filter(|line| line.starts_with("read"))
        .map(|line| line.split(' ').nth(1).expect("pages"))
        .collect::<Vec<_>>()
        .join(" ")
}

#[test]
fn forward_windows_start_clipped_grow_and_are_cut_at_page_tables() {
    let mut world = swapped("linux-6.18", &[], 1_024);
    assert_eq!(windows(&mut world, 0), "0-4", "8 pages around page 0, clipped");
    assert_eq!(windows(&mut world, 1), "");
    (2..5).for_each(|p| world.read(p));
    assert_eq!(windows(&mut world, 5), "5-12");
    (6..13).for_each(|p| world.read(p));
    assert_eq!(windows(&mut world, 13), "13-20");
    (14..509).for_each(|p| world.read(p));
    assert_eq!(windows(&mut world, 509), "509-511", "cut at the end of the page table");
    (510..512).for_each(|p| world.read(p));
    assert_eq!(windows(&mut world, 512), "512-515", "2 hits make 4 pages");
    (513..516).for_each(|p| world.read(p));
    assert_eq!(windows(&mut world, 516), "516-523");
}

#[test]
fn a_backward_read_gets_windows_behind_it() {
    let mut world = swapped("linux-6.18", &[], 512);
    assert_eq!(windows(&mut world, 511), "508-511", "8 pages around, clipped");
    (508..511).rev().for_each(|p| world.read(p));
    assert_eq!(windows(&mut world, 507), "500-507");
}

#[test]
fn random_faults_let_the_window_shrink() {
    let mut world = swapped("linux-6.18", &[], 512);
    assert_eq!(windows(&mut world, 100), "97-104");
    assert_eq!(windows(&mut world, 300), "299-302");
    assert_eq!(windows(&mut world, 200), "200-201");
    assert_eq!(windows(&mut world, 400), "400");
    assert_eq!(windows(&mut world, 50), "50");
}

#[test]
fn page_cluster_0_reads_single_pages() {
    let mut world = swapped("linux-6.18", &["page-cluster=0"], 64);
    (0..64).for_each(|p| assert_eq!(windows(&mut world, p), format!("{p}")));
}

#[test]
fn cluster_windows_are_aligned_blocks_of_slots() {
    let mut world = swapped("linux-6.18", &["readahead=cluster"], 512);
    // Page p lies in slot p + 1.
    assert_eq!(windows(&mut world, 100), "95-102", "slots 96 to 103");
    (101..103).for_each(|p| world.read(p));
    assert_eq!(windows(&mut world, 300), "299-302", "2 hits make 4 slots: 300 to 303");
}

#[test]
fn the_first_proposal_reads_ahead_of_a_cached_page() {
    let mut world = swapped("linux-4.10", &["readahead=vma-rfc"], 64);
    // Windows of 1, 1, 2, 2, 4, 4, 8 pages, also when the fault itself finds its page; the step to 13 finds enough there.
    let seen: Vec<String> = (8..16).map(|p| windows(&mut world, p)).collect();
    assert_eq!(seen, ["8", "9", "10-11", "12-13", "14-17", "", "18-25", ""], "the reader never waits again");
    assert!(world.count("pt_ra_found") > 0, "what a fault looks up and finds is counted");
}

/// Up to 5.8 all came back active here; only 4.8 to 5.8 did that.
#[test]
fn swapped_pages_come_back_to_the_list_of_their_kernel() {
    for (profile, active) in [("linux-3.10", 0), ("linux-4.10", 8), ("linux-5.6", 8), ("linux-6.18", 0)] {
        let mut world = swapped(profile, &["readahead=vma", "lru-batch=0"], 64);
        world.read(32);
        assert_eq!(world.core.list_sizes()[1], active, "{profile}: a window of 8 pages was read");
    }
}

fn swapoff_counts(profile: &str, settings: &[&str], pages: u32) -> (u64, u64, u64) {
    let mut world = swapped(profile, settings, pages);
    let before = (world.count("pswpin"), world.count("swap_ra"), world.count("swap_ra_hit"));
    world.event(Event::Swapoff { device: DeviceId(0) });
    world.settle();
    assert_eq!(world.core.device_used(DeviceId(0)), None, "the device is gone");
    (world.count("pswpin") - before.0, world.count("swap_ra") - before.1, world.count("swap_ra_hit") - before.2)
}

#[test]
fn swapoff_teaches_the_statistics_what_its_kernel_teaches() {
    // 6.18: hits are never counted: windows 8, 4, 2, 1, 2, 1...
    let (reads, ahead, hits) = swapoff_counts("linux-6.18", &[], 16_504);
    assert_eq!((reads, hits), (16_504, 0));
    assert!(ahead.abs_diff(5_499) <= 5, "a third of the pages are read ahead: {ahead}, the kernel 5,499");
    let (reads, ahead, hits) = swapoff_counts("linux-6.18", &["readahead=cluster"], 16_541);
    assert_eq!((reads, hits), (16_541, 0));
    assert!(ahead.abs_diff(4_134) <= 8, "a quarter: {ahead}, the kernel 4,134");
    // 5.8 to 6.17: the windows stay at their largest.
    let (reads, ahead, hits) = swapoff_counts("linux-6.18", &["swapoff=lookup-stats"], 16_504);
    assert_eq!(reads, 16_504);
    assert_eq!(ahead, hits);
    assert!(ahead.abs_diff(14_439) <= 40, "{ahead} pages in windows of 8");
    // Before: called for every page, always next to the call before: windows of 2, of which one page is there already.
    let (reads, ahead, hits) = swapoff_counts("linux-5.6", &[], 16_504);
    assert_eq!((reads, hits), (16_504, 0));
    assert_eq!(ahead, 16_504 - 33, "all but the first page of each page table");
}

/// Half of what was read ahead and used was told of as if it had been in vain: what is mapped when it arrives tells nothing by itself.
#[test]
fn of_pages_read_ahead_those_that_went_unused_are_counted_apart() {
    let pages = 4096;
    let mut world = swapped("pagetide", &[], pages);
    let mut read_and_let_go = |order: &mut dyn Iterator<Item = u32>| {
        let names = ["swap_ra", "swap_ra_hit", "pt_ra_unused"];
        let before = names.map(|name| world.count(name));
        order.for_each(|p| world.read(p));
        for _ in 0..2 {
            world.event(Event::Advice { range: PageRange::new(PageIdx(0), pages), advice: Advice::PageOut });
            world.settle();
        }
        let after = names.map(|name| world.count(name));
        let [ahead, used, unused] = [0, 1, 2].map(|at| after[at] - before[at]);
        assert!(ahead > 0 && used + unused <= ahead, "{ahead} ahead, {used} used, {unused} not");
        (used, unused)
    };
    let (used, unused) = read_and_let_go(&mut (0..512).map(|i| (i * i * 8 + i * 5 + 1) % 512 * 8 + 3));
    assert!(unused > 10 * used, "one page of eight, in no order: {used} used, {unused} not");
    let (used, unused) = read_and_let_go(&mut (0..pages));
    assert!(used > 10 * unused, "all in order: {used} used, {unused} not");
}
