//! How much of what is read around faults is used, by place.
//!
//! A page that was read for nobody has one of two ends: somebody asks for it, or it goes without. Each end moves the share of its place
//! (8 MiB of addresses) a little, and that of all places less; a place that nothing is known of yet starts with the share of all.

use alloc::boxed::Box;
use alloc::vec;

/// The share that says: all of it.
pub(crate) const ALL: u32 = 1024;

/// From here on it is nearly all.
pub(crate) const SURE: u32 = ALL / 8 * 7;
/// Of so many pages one says for all of them whether they are used.
const WITNESSES: u32 = 4;

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

/// What is known of the use of pages that are read around faults.
#[derive(Clone, Debug)]
pub(crate) struct Around {
    places: Box<[Place]>,
    used: u16,
}

impl Around {
    pub(super) fn new() -> Self {
        let nowhere = Place { number: u32::MAX, used: 0, faults: 0 };
        Self { places: vec![nowhere; PLACES].into(), used: AT_FIRST }
    }

    fn place(&mut self, p: u32) -> &mut Place {
        let number = p >> PLACE_SHIFT;
        let place = &mut self.places[number as usize % PLACES];
        if place.number != number {
            *place = Place { number, used: self.used, faults: 0 };
        }
        place
    }

    /// A page that was read for nobody was asked for, or went.
    pub(crate) fn note(&mut self, p: u32, is_used: bool) {
        let place = self.place(p);
        place.used = toward(place.used, is_used, PACE);
        self.used = toward(self.used, is_used, PACE_OF_ALL);
    }

    /// Nearly all that is read around faults there is used. Of four pages one is not said to be, so that it stays known.
    pub(crate) fn is_sure(&self, p: u32) -> bool {
        let number = p >> PLACE_SHIFT;
        let place = &self.places[number as usize % PLACES];
        place.number == number && u32::from(place.used) >= SURE && !p.is_multiple_of(WITNESSES)
    }

    /// A fault at `p`: of what is read around faults there the part that is used, of [`ALL`], and the number of this fault there.
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
        let mut around = Around::new();
        for _ in 0..100 {
            around.note(5, false);
            around.note(1 << PLACE_SHIFT, true);
        }
        let (unused, used) = (around.on_fault(5).0, around.on_fault(1 << PLACE_SHIFT).0);
        assert!(unused < ALL / 32 && used > ALL - ALL / 32, "{unused} and {used}");
        let elsewhere = around.on_fault(7 << PLACE_SHIFT).0;
        assert!((ALL / 4..ALL / 4 * 3).contains(&elsewhere), "{elsewhere}");
        // Another place of the same entry, and back.
        around.note(256 << PLACE_SHIFT, true);
        assert!((ALL / 4..ALL / 4 * 3).contains(&around.on_fault(5).0));
    }
}
