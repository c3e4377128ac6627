//! Compressed pages under a device that fails, and under damage of the memory that they are in.

use std::sync::atomic::Ordering;

use super::faults::{ALONE, ARMED, Fault, MADE, MIB, builder, choose, engines, faulty, get, held, put};
use super::*;

/// Accesses until the tier must have grown.
const ACCESSES_MAX: usize = 400_000;

fn counter(pool: &Pool, name: &str) -> u64 {
    pool.vmstat().into_iter().find(|(counter, _)| *counter == name).expect("the counter exists").1
}

/// A region of three times its pool, used in random order until many of its pages are compressed. Page `p` holds `p + 1`.
fn compressed(engine: EngineChoice, how: &str) -> (Pool, Region) {
    let pool = builder(8 * MIB, engine).set("compress", how).build_with(faulty).expect("a pool");
    let region = pool.region(24 * MIB).expect("a region");
    let pages = region.len() / PAGE_BYTES;
    (0..pages).for_each(|page| put(&region, page, page as u64 + 1));
    let mut state = 1_usize;
    for _ in 0..ACCESSES_MAX {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let page = (state >> 33) % pages;
        assert_eq!(get(&region, page), page as u64 + 1, "page {page}");
        put(&region, page, page as u64 + 1);
        if state >> 56 == 0 && counter(&pool, "zswpin") > 2_000 {
            return (pool, region);
        }
    }
    panic!("nothing was compressed: {:?}", pool.vmstat());
}

fn all_are_right(region: &Region, what: &str) {
    for page in 0..region.len() / PAGE_BYTES {
        assert_eq!(held(region, page, || get(region, page)), Ok(page as u64 + 1), "{what}: page {page}");
    }
}

#[test]
fn damaged_compressed_pages_are_errors_and_never_other_bytes() {
    for how in ["lz4", "zstd"] {
        damaged_pages_are_errors(how);
    }
}

fn damaged_pages_are_errors(how: &str) {
    let _alone = ALONE.lock().expect("no test panics here");
    choose(Fault::ReadFails);
    let (pool, region) = compressed(EngineChoice::Auto, how);
    let damaged = pool.running.shared.lock("damage").session.pager.machine_mut().tier_mut().expect("a tier").damage();
    assert!(damaged > 500, "{damaged} pages are compressed");
    let mut lost = 0;
    for page in 0..region.len() / PAGE_BYTES {
        match held(&region, page, || get(&region, page)) {
            Ok(value) => assert_eq!(value, page as u64 + 1, "other bytes"),
            Err(kind) => {
                assert_eq!(kind, ErrorKind::Io);
                lost += 1;
            }
        }
    }
    assert!(lost > 0, "no damage was noticed");
}

/// The device fails at writes of the tier's own, and at those of pages that leave memory without having been compressed. One of these
/// that finds no space closes it: what is only in memory stays there then, and a hold is refused where nothing can make room, until
/// the budget has room for all.
fn writes_fail(engine: EngineChoice, fault: Fault) {
    choose(fault);
    let (pool, region) = compressed(engine, "lz4");
    let pages = region.len() / PAGE_BYTES;
    ARMED.store(true, Ordering::SeqCst);
    // What is compressed is to make room.
    pool.running.shared.lock("a flush").session.pager.machine_mut().flush_tier(true);
    let (end, mut page) = (clock::now() + 60_000_000_000, 0);
    while MADE.load(Ordering::SeqCst) < 3 || pool.swap_places()[0].state != SwapState::Full {
        assert!(clock::now() < end, "{fault:?}: the device never failed, or was never closed");
        let mut state = pool.running.shared.lock("a turn");
        state.session.pager.pump(clock::now());
        state.session.pager.machine_mut().flush();
        drop(state);
        // Refused once nothing can leave.
        let _ = held(&region, page, || put(&region, page, page as u64 + 1));
        page = (page + 1) % pages;
    }
    ARMED.store(false, Ordering::SeqCst);
    pool.running.shared.lock("no flush").session.pager.machine_mut().flush_tier(false);
    for page in 0..pages {
        match held(&region, page, || get(&region, page)) {
            Ok(value) => assert_eq!(value, page as u64 + 1, "{fault:?}: other bytes"),
            Err(kind) => assert_eq!(kind, ErrorKind::NoSwapSpace, "{fault:?}: page {page}"),
        }
    }
    pool.set_budget(2 * region.len() as u64).expect("large enough");
    all_are_right(&region, &format!("{fault:?}"));
}

#[test]
fn a_device_that_fails_loses_no_compressed_page() {
    let _alone = ALONE.lock().expect("no test panics here");
    for engine in engines() {
        for fault in [Fault::WriteFails, Fault::WriteIsShort, Fault::NoSpace] {
            writes_fail(engine, fault);
        }
    }
}

#[test]
fn what_is_flushed_is_on_the_disk() {
    let _alone = ALONE.lock().expect("no test panics here");
    choose(Fault::ReadFails);
    for engine in engines() {
        let (pool, region) = compressed(engine, "lz4");
        let shared = &pool.running.shared;
        shared.lock("a flush").session.pager.machine_mut().flush_tier(true);
        let end = clock::now() + 10_000_000_000;
        while !shared.lock("is it").session.pager.machine().is_tier_flushed() {
            assert!(clock::now() < end, "the flush does not end");
            let mut state = shared.lock("a turn");
            state.session.pager.pump(clock::now());
            state.session.pager.machine_mut().flush();
        }
        // The disk has what is damaged here.
        assert!(shared.lock("damage").session.pager.machine_mut().tier_mut().expect("a tier").damage() > 500);
        shared.lock("no flush").session.pager.machine_mut().flush_tier(false);
        all_are_right(&region, "flushed");
    }
}

#[test]
fn a_smaller_budget_takes_the_memory_of_compressed_pages_too() {
    let _alone = ALONE.lock().expect("no test panics here");
    choose(Fault::ReadFails);
    let (pool, region) = compressed(EngineChoice::Auto, "lz4");
    assert!(pool.resident_bytes() <= 8 * MIB as u64 + 512 * 1024, "{} bytes resident", pool.resident_bytes());
    pool.set_budget(4 * MIB as u64).expect("large enough");
    let end = clock::now() + 10_000_000_000;
    while pool.resident_bytes() > 4 * MIB as u64 + 512 * 1024 {
        assert!(clock::now() < end, "{} bytes resident", pool.resident_bytes());
        all_are_right(&region, "a smaller budget");
    }
    all_are_right(&region, "a smaller budget");
}
