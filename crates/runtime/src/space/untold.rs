//! Places that are taken again before the end of what was there is told.
//!
//! Linux frees addresses while it holds its lock, and tells of it afterwards: meanwhile another thread's mremap may get the same
//! addresses, and tell of that first. What was there before is then set aside, at a number that is no address, until its own end or
//! move is told; and what is told of the end of a place that was moved away from is not about who came there since.
//!
//! Invariants: an entry is made by a message and claimed by one message; none is left when no change is under way.

use super::regions::PAGE_SHIFT;

/// From this page number on lie regions that were set aside: no address of a program is as high.
const ASIDE_VPN: u64 = 1 << (63 - PAGE_SHIFT);

/// True of a page that was set aside: nothing can be done with it at present.
pub(crate) const fn is_aside(vpn: u64) -> bool {
    vpn >= ASIDE_VPN
}

/// What is still to be told of the pages `[vpn, end)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    vpn: u64,
    end: u64,
    /// Where what was there is; None: it was moved away, and the end of its old place is to be told.
    aside: Option<u64>,
}

/// A message, as far as it is about who was there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    Unmap,
    Remap,
}

/// A part of what a message is about: the pages from `vpn` on, and where they are. None: nowhere, any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) vpn: u64,
    pub(super) pages: u64,
    pub(super) place: Option<u64>,
}

/// The entries, oldest first.
#[derive(Debug)]
pub(super) struct Untold {
    entries: Vec<Entry>,
    next: u64,
}

impl Untold {
    pub(super) const fn new() -> Self {
        Self { entries: Vec::new(), next: ASIDE_VPN }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Some entry is about a page of `[vpn, end)`.
    pub(super) fn is_about(&self, vpn: u64, end: u64) -> bool {
        self.entries.iter().any(|entry| entry.vpn < end && vpn < entry.end)
    }

    /// Somebody came to these pages, and what was there is still known: where it is set aside.
    pub(super) fn set_aside(&mut self, vpn: u64, pages: u64) -> u64 {
        let aside = self.next;
        self.next += pages;
        self.entries.push(Entry { vpn, end: vpn + pages, aside: Some(aside) });
        aside
    }

    /// These pages were moved away: the end of their place is told next.
    pub(super) fn owe(&mut self, vpn: u64, pages: u64) {
        self.entries.push(Entry { vpn, end: vpn + pages, aside: None });
    }

    /// What a message about `[vpn, end)` is about, part by part: who was there first.
    pub(super) fn claim(&mut self, told: Told, vpn: u64, end: u64) -> Vec<Piece> {
        let mut pieces = Vec::with_capacity(1);
        let mut left = vec![(vpn, end)];
        for entry in std::mem::take(&mut self.entries) {
            let mut kept = vec![entry];
            if entry.aside.is_some() || told == Told::Unmap {
                for (from, to) in std::mem::take(&mut left) {
                    let (first, stop) = (from.max(entry.vpn).min(to), to.min(entry.end).max(from));
                    if first >= stop {
                        left.push((from, to));
                        continue;
                    }
                    let place = entry.aside.map(|aside| aside + (first - entry.vpn));
                    pieces.push(Piece { vpn: first, pages: stop - first, place });
                    left.extend([(from, first), (stop, to)].into_iter().filter(|(from, to)| from < to));
                    kept = kept.iter().flat_map(|kept| kept.without(first, stop)).collect();
                }
            }
            self.entries.extend(kept);
        }
        pieces.extend(left.into_iter().map(|(from, to)| Piece { vpn: from, pages: to - from, place: Some(from) }));
        pieces
    }

    /// Nothing is under way: nothing is to be told any more. What is set aside is no more: first page and the one behind the last.
    pub(super) fn clear(&mut self) -> Vec<(u64, u64)> {
        let aside = |entry: Entry| entry.aside.map(|aside| (aside, aside + entry.end - entry.vpn));
        self.entries.drain(..).filter_map(aside).collect()
    }
}

impl Entry {
    /// The parts of it outside of `[from, to)`.
    fn without(&self, from: u64, to: u64) -> impl Iterator<Item = Self> + use<> {
        let this = *self;
        let part = move |from: u64, to: u64| {
            let aside = this.aside.map(|aside| aside + (from - this.vpn));
            Self { vpn: from, end: to, aside }
        };
        let parts = [(this.vpn, from.min(this.end)), (to.max(this.vpn), this.end)];
        parts.into_iter().filter(|(from, to)| from < to).map(move |(from, to)| part(from, to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn piece(vpn: u64, pages: u64, place: Option<u64>) -> Piece {
        Piece { vpn, pages, place }
    }

    #[test]
    fn a_message_is_about_who_was_there_first() {
        let mut untold = Untold::new();
        let aside = untold.set_aside(10, 10);
        assert!(is_aside(aside));
        assert_eq!(
            untold.claim(Told::Remap, 5, 12),
            [piece(10, 2, Some(aside)), piece(5, 5, Some(5))],
            "what was set aside is moved, beside what is there"
        );
        assert_eq!(untold.claim(Told::Unmap, 10, 15), [piece(12, 3, Some(aside + 2)), piece(10, 2, Some(10))]);
        assert_eq!(untold.clear(), [(aside + 5, aside + 10)]);
        assert!(untold.is_empty());
    }

    #[test]
    fn the_end_of_a_place_that_was_moved_away_from_is_not_about_who_came_since() {
        let mut untold = Untold::new();
        untold.owe(10, 10);
        assert_eq!(untold.claim(Told::Remap, 10, 12), [piece(10, 2, Some(10))]);
        assert_eq!(untold.claim(Told::Unmap, 10, 20), [piece(10, 10, None)]);
        assert_eq!(untold.claim(Told::Unmap, 10, 20), [piece(10, 10, Some(10))]);
    }
}
