//! How many pages of a kind are used, by place: of those read around faults, and of those that are watched.
//!
//! Such a page has one of two ends: somebody asks for it, or it goes without. Each end moves the share of its place
//! (8 MiB of addresses) a little, and that of all places less; a place that nothing is known of yet starts with the share of all.
//!
//! Where nearly all are used, one page in eight (the *witness* of its group) need be asked for each time, and the others need not.

use alloc::boxed::Box;
use alloc::vec;

/// The share that says: all of it.
pub(crate) const ALL: u32 = 1024;

/// From here on it is nearly all.
pub(crate) const SURE: u32 = ALL / 8 * 7;
/// And so much is as good as all.
pub(crate) const CERTAIN: u32 = ALL / 16 * 15;
/// Pages of a group, aligned. The first is its witness.
const GROUP: u32 = 8;

/// Pages of a place, as a power of two.
const PLACE_SHIFT: u32 = 11;
/// Places that are remembered; two whose numbers differ by a multiple of it push each other out.
const PLACES: usize = 256;
/// An end moves the share of its place by the `1 << PACE`th part of the difference, and that of all places by the `1 << PACE_OF_ALL`th.
const PACE: u32 = 4;
const PACE_OF_ALL: u32 = 7;
/// The share before anything is known. That pages are used is known long before it is known that they are not: it is low.
const AT_FIRST: u16 = 448;

#[derive(Clone, Copy, Debug)]
struct Place {
    number: u32,
    used: u16,
    /// Faults so far, around.
    faults: u16,
}

/// What is known of the use of pages of a kind.
#[derive(Clone, Debug)]
pub(crate) struct Used {
    places: Box<[Place]>,
    used: u16,
}

impl Used {
    pub(super) fn new() -> Self {
        let nowhere = Place { number: u32::MAX, used: 0, faults: 0 };
        Self { places: vec![nowhere; PLACES].into(), used: AT_FIRST }
    }

    /// The number of a page's place, and its entry.
    const fn find(p: u32) -> (u32, usize) {
        let number = p >> PLACE_SHIFT;
        (number, number as usize % PLACES)
    }

    fn place(&mut self, p: u32) -> &mut Place {
        let (number, at) = Self::find(p);
        let place = &mut self.places[at];
        if place.number != number {
            *place = Place { number, used: self.used, faults: 0 };
        }
        place
    }

    /// A page was asked for, or went without.
    pub(crate) fn note(&mut self, p: u32, is_used: bool) {
        let place = self.place(p);
        place.used = toward(place.used, is_used, PACE);
        self.used = toward(self.used, is_used, PACE_OF_ALL);
    }

    /// At least this share is used there. It is not said of witnesses, so that it stays known.
    pub(crate) fn is_sure(&self, p: u32, share: u32) -> bool {
        let (number, at) = Self::find(p);
        let place = &self.places[at];
        place.number == number && u32::from(place.used) >= share && !p.is_multiple_of(GROUP)
    }

    /// The pages of a page's group.
    pub(crate) const fn group(p: u32) -> core::ops::Range<u32> {
        let first = p / GROUP * GROUP;
        first..first.saturating_add(GROUP)
    }

    /// A fault at `p`: of such pages there the part that is used, of [`ALL`], and the number of this fault there.
    pub(crate) fn on_fault(&mut self, p: u32) -> (u32, u32) {
        let place = self.place(p);
        place.faults = place.faults.wrapping_add(1);
        (u32::from(place.used), u32::from(place.faults))
    }
}

fn toward(share: u16, is_used: bool, pace: u32) -> u16 {
    let share = u32::from(share);
    let moved = if is_used { share + ((ALL - share) >> pace) } else { share - (share >> pace) };
    u16::try_from(moved).expect("at most ALL")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_follows_what_is_used_there_and_a_new_place_starts_with_what_holds_elsewhere() {
        let mut used = Used::new();
        for _ in 0..100 {
            used.note(5, false);
            used.note(1 << PLACE_SHIFT, true);
        }
        let (none, all) = (used.on_fault(5).0, used.on_fault(1 << PLACE_SHIFT).0);
        assert!(none < ALL / 32 && all > ALL - ALL / 32, "{none} and {all}");
        assert!(
            used.is_sure((1 << PLACE_SHIFT) + 9, CERTAIN) && !used.is_sure((1 << PLACE_SHIFT) + 8, CERTAIN),
            "a witness"
        );
        let elsewhere = used.on_fault(7 << PLACE_SHIFT).0;
        assert!((ALL / 4..ALL / 4 * 3).contains(&elsewhere), "{elsewhere}");
        // Another place of the same entry, and back.
        used.note(256 << PLACE_SHIFT, true);
        assert!((ALL / 4..ALL / 4 * 3).contains(&used.on_fault(5).0));
    }
}
