//! How reclaim learns whether a page was used since it looked last: a strategy, chosen by the kind of host.
//!
//! | r (used) | R (used before) | anonymous | file |
//! | --- | --- | --- | --- |
//! | 1 | 1 | activate | activate |
//! | 1 | 0 | keep, R := 1 (until 5.8: activate) | keep, R := 1; executable: activate |
//! | 0 | 1 | reclaim, R := 0 | reclaim if clean, R := 0 |
//! | 0 | 0 | reclaim | reclaim |
//!
//! With an exact host `r` is the accessed bit. A blind host has none: a mapped page at the tail that was used, or may have
//! been, is *kept* by taking it out of the page table with its frame kept (a sample): a use brings a soft fault, which maps
//! it again and sets `r`. So a page that is still unmapped at its next look was not used.

use crate::config::{Config, HostKind, Sample};
use crate::memory::page::{FILE, MAPPED, PageTable, REFERENCED, YOUNG};

/// Where the answer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum References {
    /// From the accessed bit.
    AccessedBit,
    /// From soft faults: the mark `YOUNG` says "used, or unknown" until the page is sampled.
    SoftFaults,
    /// From nowhere: a page at the tail goes.
    Unseen,
}

/// What the use of a page at the inactive tail speaks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// Used twice: it belongs on the active list.
    Active,
    /// Used, or unknown: it stays for another lap.
    Referenced,
    /// A file page used before, not lately: it goes if that costs no write.
    Once,
    /// Not used: it goes.
    Cold,
}

impl References {
    pub(crate) fn of(config: &Config) -> Self {
        match (config.host, config.sample) {
            (HostKind::Exact, _) => Self::AccessedBit,
            (HostKind::Blind, Sample::Lap) => Self::SoftFaults,
            (HostKind::Blind, Sample::None) => Self::Unseen,
        }
    }

    /// A look at the tail of an active list: was the page used since the last one?
    pub(crate) fn look_active(self, pages: &mut PageTable, p: u32) -> bool {
        match self {
            Self::AccessedBit => pages.is(p, MAPPED) && pages.take(p, YOUNG),
            Self::SoftFaults | Self::Unseen => false,
        }
    }

    /// A look at the tail of an inactive list, which starts the next interval. `at_once`: one use makes it active.
    pub(crate) fn look_inactive(self, pages: &mut PageTable, p: u32, at_once: bool) -> Use {
        let word = pages.word(p);
        pages.clear(p, YOUNG | REFERENCED);
        if self == Self::Unseen {
            return Use::Cold;
        }
        let young = word & MAPPED != 0 && word & YOUNG != 0;
        let before = word & REFERENCED != 0;
        if !young {
            return if before && word & FILE != 0 { Use::Once } else { Use::Cold };
        }
        pages.set(p, REFERENCED);
        if before || at_once { Use::Active } else { Use::Referenced }
    }

    /// A page that stays may be taken out of the page table meanwhile, so that its next use is seen.
    pub(crate) const fn samples(self) -> bool {
        matches!(self, Self::SoftFaults)
    }
}
