//! Disks that are full, or fail, under a running program: the rest of a disk stays others', the program goes on elsewhere, and what is
//! lost is told of.

use std::fs::OpenOptions;
use std::time::Duration;

use pagetide_tests::need::{self, Feature};
use pagetide_tests::program::Exit;
use pagetide_tests::scratch::Scratch;
use pagetide_tests::small_disk::SmallDisk;
use pagetide_tests::steered::Steered;
use pagetide_tests::{MIB, clock, leftovers, serial};

const BUDGET: u64 = 16 * MIB;
/// What a run leaves free on a disk.
const FLOOR: u64 = 256 * MIB;

/// What is said of one that has no more than that.
const FULL: &str = "the disk is full up to 256 MiB, or a quota or a limit of the size of files is reached";

/// A disk for the test, if it may make one.
fn has_disk() -> bool {
    need::has(&[Feature::Uffd, Feature::Root, Feature::Tool("mkfs.ext4"), Feature::Tool("mount")])
}

#[test]
fn a_run_leaves_the_last_of_a_disk_to_others() {
    if !has_disk() {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let disk = SmallDisk::new(&scratch, 340);
    // It is filled first.
    let run = Steered::family(128, 0, BUDGET, &["--swap", &format!("{}::5", disk.path().display())]);
    let elsewhere = run.scratch().file("swap");
    run.wait_until("going on elsewhere", || run.used_bytes(&elsewhere) > 16 * MIB);
    let free = disk.free_bytes();
    assert!((FLOOR..FLOOR + 16 * MIB).contains(&free), "{} MiB are free", free / MIB);
    run.expect_good_end();
}

#[test]
fn a_place_whose_disk_others_have_filled_takes_no_more_pages_and_loses_none() {
    if !has_disk() {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let mut disk = SmallDisk::new(&scratch, 512);
    let small = disk.path().to_owned();
    let run = Steered::family(96, 0, 300 * MIB, &["--swap", &format!("{}::5", small.display())]);
    let elsewhere = run.scratch().file("swap");
    // Others come after its size was chosen, and before it is needed: a part of it can be had.
    disk.fill(FLOOR + 40 * MIB);
    run.tell(&["memory", "16M"]);
    run.wait_until("being full", || run.place(&small).is_some_and(|place| place["state"] == "full"));
    run.wait_until("going on elsewhere", || run.used_bytes(&elsewhere) > 8 * MIB);
    assert!(run.used_bytes(&small) > 16 * MIB, "{}", run.stat());
    disk.fill(8 * MIB);
    let beside = small.join("beside");
    std::fs::create_dir(&beside).expect("the disk has room for a directory");
    run.expect_refusal(&["swapon", &format!("{}:64M", beside.display())], &["64 MiB are asked for", "stay free"]);
    // Each page is read, checked and written again meanwhile.
    let read = run.counter("pswpin");
    run.wait_until("paging with a full disk", || run.counter("pswpin") > read + 20_000);
    let told = run.end_well();
    assert_eq!(told.matches(FULL).count(), 1, "{told}");
}

/// Two places that share a file system do not have its room twice.
#[test]
fn a_swapoff_that_fits_on_no_disk_is_refused_before_it_begins() {
    if !has_disk() {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let mut disk = SmallDisk::new(&scratch, 512);
    let run = Steered::idle(192, 400 * MIB, &[]);
    run.tell(&["memory", "16M"]);
    let full = run.scratch().file("swap");
    run.wait_until("having paged out", || run.used_bytes(&full) > 164 * MIB);
    let beside = ["one", "two"].map(|name| disk.path().join(name));
    for directory in &beside {
        std::fs::create_dir(directory).expect("the disk has room for a directory");
        run.tell(&["swapon", &format!("{}:128M", directory.display())]);
    }
    // What the new files have already is counted, too.
    disk.fill(FLOOR + 70 * MIB);
    run.expect_refusal(&["swapoff", &full.display().to_string()], &["on other disks and in memory"]);
    run.tell(&["swapoff", &beside[0].display().to_string()]);
    run.expect_good_end();
}

/// Where a file system reserves nothing, the last block is missed only when a page is written to it.
#[test]
fn a_disk_that_is_found_full_at_a_write_takes_no_more_pages_and_loses_none() {
    if !has_disk() || !need::has(&[Feature::Tool("mkfs.ext2")]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let mut disk = SmallDisk::without_reserving(&scratch, 340);
    let small = disk.path().to_owned();
    let run = Steered::idle(48, 300 * MIB, &["--swap", &format!("{}::5", small.display())]);
    let elsewhere = run.scratch().file("swap");
    run.tell(&["memory", "46M"]);
    run.wait_until("using the small disk", || run.used_bytes(&small) > MIB);
    // Slots are there ahead of need; of their blocks there are none.
    disk.fill_by_writing();
    run.tell(&["memory", "12M"]);
    run.wait_until("a write that finds no space", || run.counter("pt_write_failed") > 0);
    run.wait_until("swapping elsewhere", || run.used_bytes(&elsewhere) > 24 * MIB);
    let stands = run.place(&small).map_or_else(|| "gone".into(), |place| place["state"].clone());
    assert_ne!(stands, "open", "{}", run.stat());
    assert_eq!(run.counter("pt_poisoned"), 0, "{}", run.stat());
    let told = run.end_well();
    assert!(told.contains(small.to_str().expect("UTF-8")), "{told}");
}

/// Of a disk that has room, a quota leaves none: said at a write, also of what had been written there before.
#[test]
fn a_quota_that_is_reached_takes_no_more_pages_and_loses_none() {
    if !need::has(&[Feature::Uffd, Feature::Root, Feature::FileSystem("btrfs")]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let disk = SmallDisk::with_quota(&scratch, 1024, 48);
    let limited = disk.path().to_owned();
    let run = Steered::family(96, 0, BUDGET, &["--swap", &format!("{}::5", limited.display())]);
    let elsewhere = run.scratch().file("swap");
    run.wait_until("being full", || run.place(&limited).is_some_and(|place| place["state"] == "full"));
    run.wait_until("going on elsewhere", || run.used_bytes(&elsewhere) > 16 * MIB);
    assert!(disk.free_bytes() > FLOOR, "the disk itself is not full");
    let read = run.counter("pswpin");
    run.wait_until("to have read all again", || run.counter("pswpin") > read + 96 * 256);
    let told = run.end_well();
    assert_eq!(told.matches(FULL).count(), 1, "{told}");
}

#[test]
fn a_process_that_starts_to_page_on_a_full_disk_swaps_elsewhere() {
    if !has_disk() {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let mut disk = SmallDisk::new(&scratch, 512);
    let small = disk.path().to_owned();
    let run = Steered::family(96, 0, 300 * MIB, &["--swap", &format!("{}::5", small.display())]);
    let elsewhere = run.scratch().file("swap");
    // Nothing pages yet. Of the disk, not one step is left.
    disk.fill(FLOOR + MIB);
    run.tell(&["memory", "16M"]);
    run.wait_until("swapping elsewhere", || run.used_bytes(&elsewhere) > 64 * MIB);
    assert_eq!(run.place(&small).expect("it is on")["state"], "full", "{}", run.stat());
    assert_eq!(run.used_bytes(&small), 0, "{}", run.stat());
    // What has room again is used again.
    disk.empty();
    run.wait_until("using the disk that has room again", || run.used_bytes(&small) > 16 * MIB);
    assert_eq!(run.place(&small).expect("it is on")["state"], "open", "{}", run.stat());
    let told = run.end_well();
    assert_eq!(told.matches(FULL).count(), 1, "{told}");
}

#[test]
fn a_place_in_which_no_file_can_be_made_is_refused_and_done_without() {
    if !has_disk() {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let mut disk = SmallDisk::new(&scratch, 340);
    let small = disk.path().to_owned();
    let run = Steered::family(96, 0, 300 * MIB, &["--swap", &format!("{}::5", small.display())]);
    let (elsewhere, text) = (run.scratch().file("swap"), small.display().to_string());
    disk.make_read_only();
    // It is found when the first process is to page.
    run.tell(&["memory", "16M"]);
    run.wait_until("swapping elsewhere", || run.used_bytes(&elsewhere) > 64 * MIB);
    run.tell(&["swapoff", &text]);
    run.expect_refusal(&["swapon", &text], &["no swap file can be made there (EROFS)"]);
    let told = run.end_well();
    assert_eq!(told.matches("swaps elsewhere: no swap file can be made there (EROFS)").count(), 1, "{told}");
}

#[test]
fn a_place_that_fails_is_closed_drained_as_far_as_it_can_be_read_and_told_of() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let run = Steered::idle(48, BUDGET, &[]);
    let (one, two) = (run.scratch().file("swap"), run.scratch().directory("two"));
    run.tell(&["swapon", &format!("{}:256M", two.display())]);
    let used = run.used_bytes(&one);
    assert!(used > 16 * MIB, "{}", run.stat());
    // Half of what was written cannot be read back: of the file, the end is missing.
    let of_run = run.running().descendants().into_iter().map(|pid| pid.as_raw_nonzero().get());
    let mut files = of_run.flat_map(leftovers::descriptors).filter(|(_, target)| target.starts_with(&one));
    let (file, _) = files.next().expect("the program's swap file");
    let file = OpenOptions::new().write(true).open(file).expect("a file of ours");
    file.set_len(used / 2).expect("it may be cut");
    let text = one.to_str().expect("UTF-8");
    run.tell(&["swapoff", text]);
    assert!(run.place(&one).is_none(), "{}", run.stat());
    run.expect_refusal(&["swapoff", text], &["no such swap place"]);
    assert!(run.counter("pt_poisoned") >= 16 * MIB / 2 / 4096, "{}", run.stat());
    assert!(run.counter("pt_swapoff_in") >= 16 * MIB / 4 / 4096, "{}", run.stat());
    // The program touches all of its memory when it is told to end.
    let (exit, told) = run.end();
    assert_eq!(exit, Exit::Code(128 + 7), "{told}");
    assert!(told.contains("cannot be read back from the swap file"), "{told}");
}

#[test]
fn statistics_that_cannot_be_written_while_a_run_goes_on_are_told_of_once() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let run = Steered::idle(24, BUDGET, &[]);
    let stats = run.scratch().file("stats.json");
    run.wait_until("the first statistics", || stats.is_file());
    std::fs::remove_file(&stats).expect("a file of ours");
    // No file takes the place of a directory. (It may be written once more before it is there.)
    let in_the_way = || std::fs::create_dir(&stats).is_ok() || std::fs::remove_file(&stats).is_err() && stats.is_dir();
    run.wait_until("a directory in its place", in_the_way);
    // It is tried every second.
    clock::pause(Duration::from_millis(2_500));
    let (exit, told) = run.end();
    assert_eq!(told.matches("tried again every second").count(), 1, "{told}");
    assert!(told.contains(": cannot write: "), "those of the end are missing: {told}");
    assert_eq!(exit, Exit::Code(0), "it is the program's");
}
