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
use crate::memory::Memory;

/// Where the answer comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum References {
    /// From the accessed bit.
    AccessedBit,
    /// From soft faults: the mark `YOUNG` says "used, or unknown" until the page is sampled.
    SoftFaults,
    /// From soft faults, as `watch` wants them: nothing here is asked.
    Watched,
    /// From nowhere: a page at the tail goes.
    Unseen,
}

/// What the use of a page at the inactive tail speaks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
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
    pub(super) fn of(config: &Config) -> Self {
        match (config.host, config.sample) {
            (HostKind::Exact, _) => Self::AccessedBit,
            (HostKind::Blind, Sample::Watch) => Self::Watched,
            (HostKind::Blind, Sample::Lap) => Self::SoftFaults,
            (HostKind::Blind, Sample::None) => Self::Unseen,
        }
    }

    /// A look at the tail of an active list: was the page used since the last one?
    pub(super) fn look_active(self, mem: &mut Memory, p: u32) -> bool {
        match self {
            Self::AccessedBit => mem.take_young(p),
            Self::SoftFaults | Self::Watched | Self::Unseen => false,
        }
    }

    /// A look at the tail of an inactive list, which starts the next interval. `at_once`: one use makes it active.
    pub(super) fn look_inactive(self, mem: &mut Memory, p: u32, at_once: bool) -> Use {
        let was = mem.age(p);
        if self == Self::Unseen {
            return Use::Cold;
        }
        if !(was.is_mapped() && was.is_young()) {
            return if was.is_referenced() && was.is_file() { Use::Once } else { Use::Cold };
        }
        mem.mark_referenced(p);
        if was.is_referenced() || at_once { Use::Active } else { Use::Referenced }
    }

    /// A page that stays may be taken out of the page table meanwhile, so that its next use is seen.
    pub(super) const fn samples(self) -> bool {
        matches!(self, Self::SoftFaults)
    }
}
