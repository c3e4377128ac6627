//! The blind host: what the live runtime is, in virtual time.
//!
//! No access leaves a trace; a page's use is seen only by the fault that it makes while the page is out of the page table. Maps
//! and unmaps are carried out when ordered and answered at once, as the live machine's system calls are: an unmap says whether
//! the page's slot still holds it (live: by its checksum). The costs are those of the two ways to catch a fault.

use pagetide_core::Event;
use pagetide_core::event::MoveAnswer;
use pagetide_core::types::{Nanos, PageRange};

use super::World;

/// Who plays the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostModel {
    /// Sees accessed and dirty bits: a kernel.
    Exact,
    /// Sees neither: the live runtime.
    Blind(BlindCosts),
}

/// CPU time of a blind host's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlindCosts {
    /// Catching a fault and answering it, when nothing has to be read.
    pub fault_ns: Nanos,
    /// A call that moves pages into or out of the program.
    pub move_ns: Nanos,
    /// Each page of it.
    pub move_page_ns: Nanos,
}

impl BlindCosts {
    /// A thread of ours reads the fault and wakes the program's: 17 us where the scheduler places both (docs/doctor.md), and 1.2 us to
    /// move a page alone, 0.07 us in a run of many.
    pub const THREAD: Self = Self { fault_ns: 17_000, move_ns: 1_130, move_page_ns: 70 };
    /// The faulting thread answers its own fault.
    pub const SIGNAL: Self = Self { fault_ns: 4_000, ..Self::THREAD };
}

/// The hosts by name.
pub const HOSTS: [(&str, HostModel); 4] = [
    ("exact", HostModel::Exact),
    ("blind", HostModel::Blind(BlindCosts::THREAD)),
    ("blind-thread", HostModel::Blind(BlindCosts::THREAD)),
    ("blind-signal", HostModel::Blind(BlindCosts::SIGNAL)),
];

impl HostModel {
    /// The host of that name.
    pub fn named(name: &str) -> Option<Self> {
        HOSTS.iter().find(|(n, _)| *n == name).map(|(_, host)| *host)
    }

    /// What the core has to know of it.
    pub const fn kind(self) -> pagetide_core::HostKind {
        match self {
            Self::Exact => pagetide_core::HostKind::Exact,
            Self::Blind(_) => pagetide_core::HostKind::Blind,
        }
    }
}

impl World {
    /// The costs of a blind host, whose core was made for one.
    ///
    /// # Panics
    /// The core was made for another kind.
    pub fn set_host(&mut self, host: HostModel) {
        assert_eq!(host.kind(), self.core.config().host(), "the core is of another kind");
        self.blind = match host {
            HostModel::Exact => None,
            HostModel::Blind(costs) => Some(costs),
        };
    }

    pub(super) fn answer_map(&mut self, range: PageRange) {
        if let Some(blind) = self.blind {
            self.settle_tier(range);
            self.cost_ns += blind.move_ns + u64::from(range.len) * blind.move_page_ns;
            self.follow_ups.push_back(Event::Mapped { range, answer: MoveAnswer::Done });
        }
    }

    pub(super) fn answer_unmap(&mut self, range: PageRange) {
        let Some(blind) = self.blind else { return };
        self.cost_ns += blind.move_ns + u64::from(range.len) * blind.move_page_ns;
        for page in range.pages() {
            let slot = self.core.page(page).slot;
            let is_clean = slot.is_some_and(|(device, slot)| {
                !self.is_lost(device, slot)
                    && self.oracle.peek_slot(self.backing(device).store, slot.0) == self.oracle.peek(page)
            });
            let answer = if is_clean { MoveAnswer::Clean } else { MoveAnswer::Done };
            match self.follow_ups.back_mut() {
                Some(Event::Unmapped { range, answer: last }) if *last == answer && range.end() == page => {
                    range.len += 1
                }
                _ => self.follow_ups.push_back(Event::Unmapped { range: PageRange::one(page), answer }),
            }
        }
    }
}
