//! Pages that a fork shares leave last.
//!
//! What another process maps as well frees nothing when it leaves here alone, and to be moved it has to be copied first: who shares all that it
//! has and takes some of it out, so that there is room, has no more room than before. And if the others use it, each of them reads a copy of its
//! own. So unless far too much is charged it stays: it could not be moved, as the core sees it, and is looked at again a while later. Others go
//! instead. That must not keep cold pages for ever, nor starve a process that has no others: a part of those that leave may be shared, and a
//! few in any time in which a fault waits. Whether a shared page is in use nobody sees until it has left, so the part follows from what came
//! of the last ones: it is halved for each that comes back soon, and doubled for each that does not.

use pagetide_core::types::{Nanos, PageIdx, PageRange};

/// Of so many pages that leave one may be shared, at most and at least.
const PART_MIN: u32 = 8;
const PART_MAX: u32 = 1024;
/// One may go in this time while a fault waits, as long as the part is the largest.
const TIME_NS: Nanos = 400_000;
/// The same whatever the part is once a fault has waited for so long.
const LONG_NS: Nanos = 20_000_000;
/// So many at once at most.
const SAVED_MAX: u32 = 512;
/// What was spared is tried again within this time.
const AGAIN_NS: Nanos = 500_000_000;
/// So many that went are remembered: one that is mapped again while it is has come back soon.
const GONE_MAX: usize = 64;

/// How many pages that are shared may leave.
#[derive(Debug)]
pub(super) struct Sparing {
    /// Of so many that leave one may be shared.
    part: u32,
    /// Pages that have left and were not counted yet.
    left: u32,
    /// Those that are shared and may leave.
    saved: u32,
    /// Time is counted since then.
    counted: Nanos,
    /// Pages were spared for the last time.
    spared: Option<Nanos>,
    /// The last ones that went, in turn; None: it has come back.
    gone: [Option<PageIdx>; GONE_MAX],
    next: usize,
    are_gone: bool,
}

impl Sparing {
    /// None so far.
    pub(super) const fn new() -> Self {
        Self {
            part: PART_MIN,
            left: 0,
            saved: 0,
            counted: 0,
            spared: None,
            gone: [None; GONE_MAX],
            next: 0,
            are_gone: false,
        }
    }

    fn save(&mut self, pages: u32) {
        self.saved = self.saved.saturating_add(pages).min(SAVED_MAX);
    }

    /// So many pages have left.
    pub(super) fn note_left(&mut self, pages: u32) {
        let left = self.left.saturating_add(pages);
        self.save(left / self.part);
        self.left = left % self.part;
    }

    /// Of these pages, which are shared, how many may leave now. A fault waits since `since`.
    pub(super) fn take(&mut self, now: Nanos, since: Option<Nanos>, pages: PageRange) -> u32 {
        let is_long = since.is_some_and(|since| now.saturating_sub(since) > LONG_NS);
        let time = if is_long { TIME_NS } else { TIME_NS * Nanos::from(self.part / PART_MIN) };
        let by_time = now.saturating_sub(self.counted) / time;
        if since.is_some() && by_time > 0 {
            self.counted = now;
            self.save(u32::try_from(by_time).unwrap_or(SAVED_MAX));
        }
        let taken = pages.len.min(self.saved);
        self.saved -= taken;
        if taken == 0 {
            self.spared = Some(now);
        }
        for page in PageRange::new(pages.first, taken).pages() {
            self.go(page);
        }
        taken
    }

    fn go(&mut self, page: PageIdx) {
        self.are_gone = true;
        if self.gone[self.next].replace(page).is_some() {
            self.part = (self.part / 2).max(PART_MIN);
        }
        self.next = (self.next + 1) % GONE_MAX;
    }

    /// Pages are mapped.
    pub(super) fn note_mapped(&mut self, pages: PageRange) {
        if !self.are_gone {
            return;
        }
        for gone in &mut self.gone {
            if gone.take_if(|page| pages.contains(*page)).is_some() {
                self.part = (self.part * 2).min(PART_MAX);
                self.saved = 0;
            }
        }
    }

    /// True while some stay because of this, and will be tried again.
    pub(super) fn spares(&self, now: Nanos) -> bool {
        self.spared.is_some_and(|spared| now < spared.saturating_add(AGAIN_NS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn some(pages: u32) -> PageRange {
        PageRange::new(PageIdx(1000), pages)
    }

    #[test]
    fn one_in_eight_may_go_and_a_few_while_a_fault_waits() {
        let mut sparing = Sparing::new();
        assert_eq!(sparing.take(Nanos::MAX, None, some(1)), 0, "nobody needs it");
        sparing.note_left(20);
        assert_eq!([1, 9, 1].map(|pages| sparing.take(0, Some(0), some(pages))), [1, 1, 0]);
        sparing.note_left(4);
        assert_eq!(sparing.take(0, Some(0), some(1)), 1, "nothing is lost");
        assert_eq!([TIME_NS - 1, 3 * TIME_NS].map(|now| sparing.take(now, Some(0), some(9))), [0, 3]);
        assert!(sparing.spares(TIME_NS) && !sparing.spares(TIME_NS + AGAIN_NS));
        sparing.note_left(u32::MAX);
        assert_eq!(sparing.take(Nanos::MAX, Some(0), some(1000)), SAVED_MAX);
    }

    #[test]
    fn what_comes_back_soon_makes_others_stay() {
        let mut sparing = Sparing::new();
        let mut part = |came_back: bool| {
            sparing.note_left(sparing.part);
            assert_eq!(sparing.take(0, None, some(1)), 1);
            if came_back {
                sparing.note_mapped(some(1));
            }
            sparing.part
        };
        assert_eq!([true, true, true].map(&mut part), [16, 32, 64]);
        assert_eq!((0..9).map(|_| part(true)).last(), Some(PART_MAX));
        assert_eq!((0..GONE_MAX).map(|_| part(false)).last(), Some(PART_MAX), "it may yet come back");
        assert_eq!([false, false].map(&mut part), [512, 256]);
        assert_eq!((0..9).map(|_| part(false)).last(), Some(PART_MIN));
    }
}
