//! Pools whose budget, places and settings change while threads use their regions.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pagetide::{EngineChoice, ErrorKind, Pool, PoolBuilder, Region, SwapState};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;
/// What is bounded here is bounded by far less on a quiet machine.
const LIMIT: Duration = Duration::from_mins(1);

/// Directories on a disk: /tmp may lie in memory.
fn directory(name: &str) -> PathBuf {
    let place = std::env::var_os("PAGETIDE_SWAP_PLACE")
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from)
        .join(format!("{}-{name}", std::process::id()));
    std::fs::create_dir_all(&place).expect("a directory can be made");
    place
}

/// Directories that are removed at the end of a test.
struct Directories(Vec<PathBuf>);

impl Directories {
    fn new(names: &[&str]) -> Self {
        Self(names.iter().map(|name| directory(name)).collect())
    }
}

impl Drop for Directories {
    fn drop(&mut self) {
        for directory in &self.0 {
            let _ = std::fs::remove_dir(directory);
        }
    }
}

fn builder(budget: usize, place: &PathBuf) -> PoolBuilder {
    Pool::builder(budget as u64).swap(place, 1024 * MIB as u64).floor(0).engine(EngineChoice::Auto)
}

fn word(region: &Region, page: usize) -> *mut u64 {
    assert!(page * PAGE < region.len(), "a page of the region");
    // SAFETY: inside the region.
    unsafe { region.as_ptr().add(page * PAGE) }.cast()
}

fn put(region: &Region, page: usize, value: u64) {
    // SAFETY: inside the region; each page is used by one thread.
    unsafe { word(region, page).write_volatile(value) };
}

fn get(region: &Region, page: usize) -> u64 {
    // SAFETY: as in `put`.
    unsafe { word(region, page).read_volatile() }
}

fn counter(pool: &Pool, name: &str) -> u64 {
    pool.vmstat().into_iter().find(|(counter, _)| *counter == name).expect("the counter exists").1
}

/// What happens in the background has no event to wait for.
#[expect(
    clippy::disallowed_methods,
    reason = "the pool's own thread works in real time, and is looked at from outside"
)]
fn wait_until(what: &str, mut ready: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !ready() {
        assert!(begin.elapsed() < LIMIT, "{what} takes more than {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Threads that load and store all pages of a region in turn, and check them, until told to end.
fn under_load(region: &Region, run: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    let pages = region.len() / PAGE;
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let is_over = &is_over;
            scope.spawn(move || {
                let mut round = 0;
                while !is_over.load(Ordering::Relaxed) {
                    for page in (thread..pages).step_by(2) {
                        let expected = if round == 0 { 0 } else { (page as u64) << 32 | round };
                        assert_eq!(get(region, page), expected, "page {page}, round {round}");
                        put(region, page, (page as u64) << 32 | (round + 1));
                        if is_over.load(Ordering::Relaxed) {
                            break;
                        }
                    }
                    round += 1;
                }
            });
        }
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        is_over.store(true, Ordering::Relaxed);
        if let Err(told) = ended {
            std::panic::resume_unwind(told);
        }
    });
}

/// The frames were counted by the first budget: what was read ahead of its use into a budget that had grown since found none.
#[test]
fn pages_are_read_ahead_into_a_budget_that_has_grown() {
    let directories = Directories::new(&["ahead"]);
    let pool = builder(8 * MIB, &directories.0[0]).build().expect("a pool");
    let region = pool.region(192 * MIB).expect("a region");
    let pages = region.len() / PAGE;
    (0..pages).for_each(|page| put(&region, page, page as u64 + 1));
    pool.set_budget(256 * MIB as u64).expect("memory is free");
    region.advise(0..region.len(), pagetide::Advice::WillNeed).expect("a part of the region");
    wait_until("reading ahead", || pool.resident_bytes() > 180 * MIB as u64);
    (0..pages).for_each(|page| assert_eq!(get(&region, page), page as u64 + 1, "page {page}"));
    pool.set_budget(8 * MIB as u64).expect("nothing is held");
    wait_until("shrinking to the first budget", || pool.resident_bytes() < 10 * MIB as u64);
    (0..pages).for_each(|page| assert_eq!(get(&region, page), page as u64 + 1, "page {page}"));
}

#[test]
fn a_budget_grows_fourfold_and_shrinks_again_under_load() {
    let directories = Directories::new(&["grow"]);
    let pool = builder(24 * MIB, &directories.0[0]).build().expect("a pool");
    let region = pool.region(640 * MIB).expect("a region");
    under_load(&region, || {
        pool.set_budget(512 * MIB as u64).expect("memory is free");
        wait_until("growing into a larger budget", || pool.resident_bytes() > 400 * MIB as u64);
        pool.set_budget(24 * MIB as u64).expect("nothing is held");
        wait_until("shrinking to a smaller budget", || pool.resident_bytes() < 28 * MIB as u64);
        pool.set_budget(96 * MIB as u64).expect("memory is free");
        wait_until("growing again", || pool.resident_bytes() > 80 * MIB as u64);
    });
}

#[test]
fn a_place_is_taken_away_under_load_and_its_pages_go_to_another() {
    let directories = Directories::new(&["first", "second"]);
    let [first, second] = [&directories.0[0], &directories.0[1]];
    let pool = builder(16 * MIB, first).build().expect("a pool");
    let region = pool.region(64 * MIB).expect("a region");
    let used = |index: usize| pool.swap_places()[index].used_bytes;
    under_load(&region, || {
        wait_until("filling the first place", || used(0) > 20 * MIB as u64);
        let refused = pool.swapoff(first).expect_err("there is no other place");
        assert_eq!(refused.kind(), ErrorKind::NoSwapSpace);
        pool.swapon(second, 256 * MIB as u64, None).expect("a second place");
        assert_eq!(pool.swapon(second, 1 << 30, None).expect_err("it is on").kind(), ErrorKind::Config);
        for mode in ["no-lookup", "lookup", "lookup-stats"] {
            pool.set("swapoff", mode).expect("a knob that may change");
            pool.swapoff(first).expect("there is room");
            wait_until("draining", || pool.swap_places().len() == 1);
            assert_eq!(pool.swap_places()[0].directory, *second);
            pool.swapon(first, 256 * MIB as u64, Some(10)).expect("the place comes back");
            wait_until("filling the place with the highest priority", || used(1) > 20 * MIB as u64);
        }
    });
    assert!(counter(&pool, "pt_swapoff_in") > 1000, "pages were brought back");
}

#[test]
fn a_swapoff_can_be_stopped_and_begun_again() {
    let directories = Directories::new(&["stopped", "other"]);
    let [first, second] = [&directories.0[0], &directories.0[1]];
    let pool = builder(16 * MIB, first).build().expect("a pool");
    pool.swapon(second, 256 * MIB as u64, None).expect("a second place");
    let region = pool.region(48 * MIB).expect("a region");
    let pages = region.len() / PAGE;
    (0..pages).for_each(|page| put(&region, page, page as u64 + 1));
    pool.swapoff(first).expect("there is room");
    assert_eq!(pool.swapoff(first).expect_err("it is under way").kind(), ErrorKind::NoSwapSpace);
    assert_eq!(pool.swap_places()[0].state, SwapState::Draining);
    pool.stop_swapoff(first).expect("a place of the pool");
    assert_eq!(pool.swap_places()[0].state, SwapState::Open);
    pool.swapoff(first).expect("there is room");
    wait_until("draining", || pool.swap_places().len() == 1);
    (0..pages).for_each(|page| assert_eq!(get(&region, page), page as u64 + 1, "page {page}"));
    let unknown = pool.swapoff(first).expect_err("it is gone");
    assert_eq!(unknown.kind(), ErrorKind::Config);
}

#[test]
fn the_place_with_the_highest_priority_is_filled_first_and_equal_ones_alike() {
    let directories = Directories::new(&["low", "high-a", "high-b"]);
    let bytes = 96 * MIB as u64;
    let mut builder = Pool::builder(8 * MIB as u64).floor(0).swap_with_priority(&directories.0[0], bytes, 1);
    for place in &directories.0[1..] {
        builder = builder.swap_with_priority(place, bytes, 7);
    }
    let pool = builder.build().expect("a pool");
    let region = pool.region(160 * MIB).expect("a region");
    (0..region.len() / PAGE).for_each(|page| put(&region, page, page as u64 + 1));
    let used: Vec<u64> = pool.swap_places().iter().map(|place| place.used_bytes / MIB as u64).collect();
    assert_eq!(used[0], 0, "{used:?} MiB: the others have room");
    assert!(used[1] > 60 && used[2] > 60, "{used:?} MiB: both are used alike");
}

#[test]
fn knobs_that_can_change_do_and_the_others_say_why_not() {
    let directories = Directories::new(&["knobs"]);
    let pool = builder(4 * MIB, &directories.0[0]).build().expect("a pool");
    pool.set("page-cluster", "0").expect("it may change");
    for (key, value, why) in
        [("page-cluster", "99", "is not one of"), ("sample", "none", "chosen when"), ("swapiness", "1", "did you mean")]
    {
        let refused = pool.set(key, value).expect_err("it cannot be");
        assert!(refused.to_string().contains(why), "{refused}");
    }
}

#[test]
fn a_pool_that_does_not_page_out_exceeds_its_budget_until_it_does_again() {
    let directories = Directories::new(&["pause"]);
    let pool = builder(8 * MIB, &directories.0[0]).build().expect("a pool");
    let region = pool.region(32 * MIB).expect("a region");
    pool.pause_paging_out();
    (0..region.len() / PAGE).for_each(|page| put(&region, page, page as u64 + 1));
    assert!(pool.resident_bytes() >= 32 * MIB as u64);
    pool.resume_paging_out();
    wait_until("paging out", || pool.resident_bytes() <= 9 * MIB as u64);
    (0..region.len() / PAGE).for_each(|page| assert_eq!(get(&region, page), page as u64 + 1, "page {page}"));
}
