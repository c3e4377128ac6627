//! Moving, copying, zeroing and poisoning runs of pages: what is done, and why a run stops.

use crate::common::{PAGE, alone, done, frames, program_memory, skip, stamp, stamp_all, stamp_of, stopped, uffd};
use pagetide_sys::file::{self, IoVec};
use pagetide_sys::mem::{self, Advice};
use pagetide_sys::pagemap::{Categories, Pagemap, Run};
use pagetide_sys::syscall::Errno;
use pagetide_sys::uffd::{Features, Modes, Reach, ReadMode, Stop, Uffd, Wake};
use pagetide_sys::{fd, syscall};

fn mover() -> Option<Uffd> {
    uffd(Reach::Best, ReadMode::NonBlocking, Features::MOVE)
}

#[test]
fn a_run_moved_out_and_in_keeps_its_bytes() {
    let _alone = alone();
    let Some(uffd) = mover() else { return };
    let (region, staging) = (program_memory(64), frames(64));
    let (region, staging) = (region.range(), staging.range());
    stamp_all(region, 100);
    // A populated range is registered in place.
    uffd.register(region, Modes::MISSING).expect("register");
    uffd.register(staging, Modes::MISSING).expect("register");
    assert_eq!(
        uffd.move_pages(staging.part(0, 32 * PAGE), region.part(8 * PAGE, 32 * PAGE), false, Wake::Now),
        done(32)
    );
    for index in 0..32 {
        assert_eq!(stamp_of(staging, index), Some(108 + index as u64));
    }
    let mut there = [0; 64];
    mem::in_core(region, &mut there).expect("mincore");
    assert!((0..64).all(|index| (there[index] & 1 == 1) != (8..40).contains(&index)));
    assert_eq!(
        uffd.move_pages(region.part(8 * PAGE, 32 * PAGE), staging.part(0, 32 * PAGE), false, Wake::Now),
        done(32)
    );
    for index in 0..64 {
        assert_eq!(stamp_of(region, index), Some(100 + index as u64));
    }
}

#[test]
fn a_run_stops_at_a_present_page_and_says_so() {
    let _alone = alone();
    let Some(uffd) = mover() else { return };
    let (region, staging) = (program_memory(8), frames(8));
    let (region, staging) = (region.range(), staging.range());
    stamp_all(region, 1);
    stamp(staging, 5, 77);
    uffd.register(staging, Modes::MISSING).expect("register");
    // The kernel's own answer hides the reason once something was done..
    assert_eq!(uffd.move_pages(staging, region, false, Wake::Now), stopped(5, Stop::Again));
    // ..and tells it from the place where it stopped.
    assert_eq!(
        uffd.move_pages(staging.skip(5 * PAGE), region.skip(5 * PAGE), false, Wake::Now),
        stopped(0, Stop::Present)
    );
    assert_eq!(stamp_of(staging, 5), Some(77));
    assert_eq!(stamp_of(region, 5), Some(6));
    assert_eq!(stamp_of(staging, 4), Some(5));

    let (region, staging) = (program_memory(8), frames(8));
    let (region, staging) = (region.range(), staging.range());
    stamp_all(region, 1);
    stamp(staging, 3, 77);
    uffd.register(staging, Modes::MISSING).expect("register");
    assert_eq!(uffd.move_run(staging, region, false, Wake::Now), stopped(3, Stop::Present));
}

#[test]
fn a_hole_stops_a_run_unless_it_is_allowed() {
    let _alone = alone();
    let Some(uffd) = mover() else { return };
    let (region, staging) = (program_memory(8), frames(8));
    let (region, staging) = (region.range(), staging.range());
    stamp_all(region.part(0, 4 * PAGE), 1);
    stamp_all(region.skip(6 * PAGE), 7);
    uffd.register(staging, Modes::MISSING).expect("register");
    assert_eq!(uffd.move_run(staging, region, false, Wake::Now), stopped(4, Stop::Hole));
    // With holes allowed the two missing pages count as moved, and stay missing on the other side.
    let rest = (staging.skip(4 * PAGE), region.skip(4 * PAGE));
    assert_eq!(uffd.move_pages(rest.0, rest.1, true, Wake::Now), done(4));
    assert_eq!(stamp_of(staging, 6), Some(7));
    assert_eq!(uffd.zeropage(staging.part(4 * PAGE, 2 * PAGE), Wake::Now), done(2));
}

#[test]
fn an_unregistered_or_locked_place_is_refused() {
    let _alone = alone();
    let Some(uffd) = mover() else { return };
    let (region, staging) = (program_memory(2), frames(2));
    let (region, staging) = (region.range(), staging.range());
    stamp_all(region, 1);
    // A destination of no userfaultfd.
    assert_eq!(uffd.move_pages(staging, region, false, Wake::Now), stopped(0, Stop::Invalid));
    uffd.register(staging, Modes::MISSING).expect("register");
    // SAFETY: locks the test's own pages.
    let locked = unsafe { syscall!(linux_raw_sys::general::__NR_mlock, region.start(), region.len()) };
    if let Err(error) = locked {
        return skip("mlock", &error);
    }
    assert_eq!(uffd.move_pages(staging, region, false, Wake::Now), stopped(0, Stop::Invalid));
}

#[test]
fn copies_stop_at_present_pages_and_zero_pages_can_be_moved() {
    let _alone = alone();
    let Some(uffd) = mover() else { return };
    let (region, source, staging) = (program_memory(8), frames(8), frames(8));
    let (region, source, staging) = (region.range(), source.range(), staging.range());
    stamp_all(source, 50);
    stamp(region, 2, 1);
    uffd.register(region, Modes::MISSING).expect("register");
    uffd.register(staging, Modes::MISSING).expect("register");
    assert_eq!(uffd.copy_run(region, source, false, Wake::Now), stopped(2, Stop::Present));
    assert_eq!(stamp_of(region, 1), Some(51));
    assert_eq!(stamp_of(region, 2), Some(1));
    assert_eq!(uffd.zeropage_run(region.skip(3 * PAGE), Wake::Now), done(5));
    assert_eq!(uffd.zeropage_run(region, Wake::Now), stopped(0, Stop::Present));
    assert_eq!(uffd.move_run(staging.skip(3 * PAGE), region.skip(3 * PAGE), false, Wake::Now), done(5));
    // SAFETY: the test's own memory, present by the answer.
    assert_eq!(unsafe { staging.page(3).as_ptr().read_volatile() }, 0);
}

#[test]
fn direct_io_into_a_registered_missing_page_needs_someone_to_answer() {
    let _alone = alone();
    // In user mode only, the kernel answers EFAULT at once: staging is registered only while it is a destination.
    let Some(uffd) = uffd(Reach::UserMode, ReadMode::NonBlocking, Features::NONE) else { return };
    let staging = frames(2);
    let staging = staging.range();
    uffd.register(staging, Modes::MISSING).expect("register");
    let source = fd::memfd(c"pagetide-test").expect("memfd");
    file::truncate(&source, 8192).expect("truncate");
    file::pwrite(&source, &[7; 4096], 0).expect("write");
    assert_eq!(file::preadv(&source, &[IoVec::new(staging)], 0, 0), Err(Errno::EFAULT));
    uffd.unregister(staging).expect("unregister");
    assert_eq!(file::preadv(&source, &[IoVec::new(staging)], 0, 0), Ok(8192));
}

#[test]
fn poisoned_pages_fail_in_system_calls_and_present_pages_cannot_be_poisoned() {
    let _alone = alone();
    let Some(uffd) = uffd(Reach::Best, ReadMode::NonBlocking, Features::POISON) else { return };
    let region = program_memory(4);
    let region = region.range();
    stamp(region, 2, 5);
    uffd.register(region, Modes::MISSING).expect("register");
    assert_eq!(uffd.poison_run(region, Wake::Now), stopped(2, Stop::Present));
    let (_read, write) = fd::pipe(0).expect("pipe");
    // SAFETY: the kernel reads the test's own memory, or finds that it cannot.
    let answer = unsafe { syscall!(linux_raw_sys::general::__NR_write, arg(&write), region.start(), 8) };
    assert_eq!(answer, Err(Errno::EFAULT));
    assert_eq!(stamp_of(region, 2), Some(5));
    // A poisoned page is not a page: it can be dropped, and is missing again.
    mem::advise(region.page(0), Advice::DontNeed).expect("madvise");
    assert_eq!(uffd.zeropage(region.page(0), Wake::Now), done(1));
}

fn arg(fd: &fd::Fd) -> usize {
    usize::try_from(fd.raw()).expect("a descriptor")
}

/// The ground truth is what the test did; the scan and the table must both show it.
#[test]
fn the_page_scan_and_the_page_table_show_what_was_done() {
    let _alone = alone();
    let region = program_memory(600);
    let region = region.range();
    let written = |index: usize| index.is_multiple_of(7) || (256..300).contains(&index);
    let read_only = |index: usize| index % 7 == 3 && !written(index);
    for index in 0..600 {
        if written(index) {
            stamp(region, index, 1);
        } else if read_only(index) {
            assert_eq!(stamp_of(region, index), None);
        }
    }
    let pagemap = Pagemap::open().expect("pagemap");
    let present = |runs: &[Run]| {
        let mut pages = vec![false; 600];
        for run in runs {
            let first = (usize::try_from(run.start).expect("64 bits") - region.start()) / PAGE;
            for index in 0..usize::try_from(run.pages()).expect("64 bits") {
                assert!(!pages[first + index], "runs do not overlap");
                pages[first + index] = true;
            }
        }
        pages
    };
    let truth: Vec<bool> = (0..600).map(|index| written(index) || read_only(index)).collect();
    let mut runs = [Run::default(); 256];
    let table = pagemap.read(region, Categories::PRESENT, &mut runs).expect("table");
    assert_eq!(table.walked_to, region.end());
    assert_eq!(present(&runs[..table.runs]), truth);
    let by_table = runs[..table.runs].to_vec();

    let wanted = Categories::PRESENT;
    let scanned = match pagemap.scan(region, wanted, &mut runs) {
        Ok(scanned) => scanned,
        Err(error) => return skip("pagemap_scan", &error),
    };
    assert_eq!(scanned.walked_to, region.end());
    assert_eq!(runs[..scanned.runs], by_table);

    // The zero page is told from written ones.
    let scanned = pagemap.scan(region, Categories::ZERO, &mut runs).expect("scan");
    let zero: Vec<bool> = (0..600).map(read_only).collect();
    assert_eq!(present(&runs[..scanned.runs]), zero);

    // A small buffer is filled, and the walk says where to go on.
    let mut found = Vec::new();
    let mut at = region;
    while !at.is_empty() {
        let mut few = [Run::default(); 5];
        let scanned = pagemap.scan(at, wanted, &mut few).expect("scan");
        found.extend_from_slice(&few[..scanned.runs]);
        at = at.skip(scanned.walked_to - at.start());
    }
    assert_eq!(found, by_table);
    let mut found = Vec::new();
    let mut at = region;
    while !at.is_empty() {
        let mut few = [Run::default(); 5];
        let table = pagemap.read(at, wanted, &mut few).expect("table");
        found.extend_from_slice(&few[..table.runs]);
        at = at.skip(table.walked_to - at.start());
    }
    assert_eq!(found, by_table);
}

#[test]
fn written_pages_are_taken_once() {
    let _alone = alone();
    let features = Features::WP_ASYNC.with(Features::PAGEFAULT_FLAG_WP).with(Features::WP_UNPOPULATED);
    let Some(uffd) = uffd(Reach::Best, ReadMode::NonBlocking, features) else { return };
    let region = program_memory(100);
    let region = region.range();
    stamp_all(region, 0);
    uffd.register(region, Modes::WP).expect("register");
    uffd.protect(region).expect("protect");
    let pagemap = Pagemap::open().expect("pagemap");
    let mut runs = [Run::default(); 64];
    assert_eq!(pagemap.take_written(region, &mut runs).map(|scanned| scanned.runs), Ok(0));
    for index in [3, 4, 50] {
        stamp(region, index, 9);
    }
    let scanned = pagemap.take_written(region, &mut runs).expect("scan");
    let pages: Vec<u64> = runs[..scanned.runs].iter().map(Run::pages).collect();
    assert_eq!(pages, [2, 1]);
    assert_eq!(pagemap.take_written(region, &mut runs).map(|scanned| scanned.runs), Ok(0));
    stamp(region, 50, 10);
    let scanned = pagemap.take_written(region, &mut runs).expect("scan");
    assert_eq!((scanned.runs, runs[0].start), (1, region.page(50).start() as u64));
}
