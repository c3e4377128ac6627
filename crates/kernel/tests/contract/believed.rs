//! Linux 6.18 says of some moves that the pages were there already, after it has moved them: what becomes of such an answer.

use std::sync::atomic::{AtomicBool, Ordering};

use pagetide_kernel::{AddressSpace, Faults, Linux, OwnSide};
use pagetide_sys::mem::{self, Advice, ManagedRange, PAGE_BYTES};
use pagetide_sys::uffd::{Features, Modes, RangeAnswer, Stop, Wake};

use crate::linux;

const PAGE: usize = PAGE_BYTES;

fn done(pages: usize) -> RangeAnswer {
    RangeAnswer { done: pages * PAGE, stop: None }
}

fn word(range: ManagedRange, index: usize) -> *mut u64 {
    range.page(index).as_ptr().cast()
}

/// Something else clears accessed bits meanwhile, as DAMON does: Linux 6.18 then says of some moves that the pages were there
/// already, after it has moved them.
#[test]
fn a_move_that_had_to_try_again_is_believed_by_its_frames() {
    const PAGES: usize = 16;
    const ROUNDS: usize = 20_000;
    let _alone = linux::alone();
    let Some(uffd) = linux::uffd(Features::MOVE) else { return };
    let space = Linux::new(uffd);
    let (region, staging) = (linux::frames(16), linux::frames(16));
    let (region, staging) = (region.range(), staging.range());
    for index in 0..PAGES {
        // SAFETY: the test's own memory, mapped and writable.
        unsafe { word(region, index).write_volatile(1 + index as u64) };
    }
    space.register(region, Modes::MISSING).expect("register");
    space.register(staging, Modes::MISSING).expect("register");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                for range in [region, staging] {
                    mem::advise(range, Advice::Cold).expect("madvise");
                }
            }
        });
        let mut believed = Ok(());
        for round in 0..ROUNDS {
            let out = space.move_frames(staging, region, OwnSide::To, Wake::Now);
            let back = space.move_frames(region, staging, OwnSide::From, Wake::Now);
            if (out, back) != (done(PAGES), done(PAGES)) {
                believed = Err((round, out, back));
                break;
            }
        }
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(believed, Ok(()));
    });
    for index in 0..PAGES {
        // SAFETY: the test's own memory, present by the last answer.
        assert_eq!(unsafe { word(region, index).read_volatile() }, 1 + index as u64);
    }
    // A page that is in the way is still one.
    assert_eq!(space.move_frames(staging, region, OwnSide::To, Wake::Now), done(PAGES));
    assert_eq!(space.zeropage(region.part(3 * PAGE, PAGE), Wake::Now), done(1));
    let back = space.move_frames(region, staging, OwnSide::From, Wake::Now);
    assert_eq!(back, RangeAnswer { done: 3 * PAGE, stop: Some(Stop::Present) });
}
