//! How much memory is behind mappings that stay native, by reason.
//!
//! To know it the page table is looked at, a piece at a time: the agent must not be away from its faults for long. A pass over all
//! native mappings may take many calls, and its counts are told when it is complete.

use pagetide_core::types::Nanos;

use super::Why;
use super::mapping::Backing;

/// Reasons by which statistics sort what cannot be paged: name, what it is. The last two are of managed memory.
pub const UNPAGED: [(&str, &str); 13] = [
    ("stack", "The first thread's stack."),
    ("private_file", "Pages of private file mappings that were written."),
    ("shared", "Shared memory and shared file mappings; it does not count against the budget."),
    ("read_only", "Anonymous memory that may not be written."),
    ("no_access", "Anonymous memory without any access right."),
    ("executable", "Anonymous memory that may be executed."),
    ("before_runtime", "What was in use before the runtime, in mappings of less than 1 MiB."),
    ("small", "Mappings of less than 64 KiB, while they are few."),
    ("other_userfaultfd", "Mappings that belong to another userfaultfd."),
    ("beyond_64_gib", "Mappings beyond the 64 GiB of addresses that can be managed."),
    ("new", "Mappings that have come since the last look."),
    ("locked", "Locked memory (mlock), of whatever kind."),
    ("made_read_only", "Managed memory that was written and then made read-only."),
];

/// Where `locked` and `made_read_only` stand.
const LOCKED: usize = UNPAGED.len() - 2;
const MADE_READ_ONLY: usize = UNPAGED.len() - 1;

impl Why {
    /// Where the reason stands in [`UNPAGED`]. None: what the kernel or the runtime has is not the program's.
    pub(crate) const fn unpaged(self) -> Option<usize> {
        match self {
            Self::Kernel | Self::Ours => None,
            Self::Stack => Some(0),
            Self::PrivateFile => Some(1),
            Self::Shared => Some(2),
            Self::ReadOnly => Some(3),
            Self::NoAccess => Some(4),
            Self::Executable => Some(5),
            Self::Before => Some(6),
            Self::Small => Some(7),
            Self::Refused => Some(8),
            Self::NoIndices => Some(9),
            Self::New => Some(10),
        }
    }
}

/// One part in so many of the time goes into looking: these are counts for people.
const TIME_SHARE: u64 = 200;

/// The counts, and how far the pass under way has come.
#[derive(Debug, Default)]
pub(crate) struct Unpaged {
    /// The next page to look at; 0: no pass is under way.
    at: u64,
    /// When the last pass began, and how long it took itself.
    began: Nanos,
    spent: Nanos,
    found: [u64; UNPAGED.len()],
    told: [u64; UNPAGED.len()],
}

impl Unpaged {
    /// True if a pass is under way, or if the last one began so long ago, and took no more than a part of the time since.
    pub(crate) fn begins_or_goes_on(&mut self, now: Nanos, every: Nanos) -> bool {
        if self.at > 0 {
            return true;
        }
        if self.began > 0 && now < self.began + every.max(self.spent.saturating_mul(TIME_SHARE)) {
            return false;
        }
        (self.began, self.spent) = (now, 0);
        true
    }

    /// A piece of the pass took so long.
    pub(crate) const fn spend(&mut self, time: Nanos) {
        self.spent += time;
    }

    pub(crate) const fn at(&self) -> u64 {
        self.at
    }

    /// A pass has begun since, and is complete.
    pub(crate) const fn has_looked_since(&self, then: Nanos) -> bool {
        self.at == 0 && self.began >= then
    }

    /// Up to the page `to` there are so many pages with memory, native for this reason.
    pub(crate) const fn add(&mut self, why: Why, pages: u64, to: u64) {
        if let Some(reason) = why.unpaged() {
            self.found[reason] += pages;
        }
        self.at = to;
    }

    /// The pass is complete; so many pages are locked.
    pub(crate) fn end_pass(&mut self, locked: u64) {
        self.told[..LOCKED].copy_from_slice(&self.found[..LOCKED]);
        self.told[LOCKED] = locked;
        (self.at, self.found) = (0, [0; UNPAGED.len()]);
    }

    /// So many managed pages may not be written.
    pub(crate) const fn note_read_only(&mut self, pages: u64) {
        self.told[MADE_READ_ONLY] = pages;
    }

    /// In the order of [`UNPAGED`], in pages.
    pub(crate) const fn pages(&self) -> &[u64; UNPAGED.len()] {
        &self.told
    }
}

/// True if pages of a file that nobody has written count for a mapping of this kind: where all of them are shared.
pub(crate) fn counts_file_pages(backing: Backing) -> bool {
    backing == Backing::Shared
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_is_told_when_it_is_complete() {
        let mut unpaged = Unpaged::default();
        assert!(unpaged.begins_or_goes_on(1000, 50) && !unpaged.begins_or_goes_on(1049, 50));
        unpaged.add(Why::Stack, 5, 100);
        unpaged.add(Why::Kernel, 7, 200);
        assert_eq!((unpaged.at(), unpaged.pages()[0]), (200, 0));
        assert!(unpaged.begins_or_goes_on(1001, 50), "a pass goes on at once");
        unpaged.end_pass(3);
        unpaged.note_read_only(9);
        let told: Vec<_> = UNPAGED.iter().zip(unpaged.pages()).filter(|(_, pages)| **pages > 0).collect();
        let told: Vec<_> = told.iter().map(|((name, _), pages)| (*name, **pages)).collect();
        assert_eq!(told, [("stack", 5), ("locked", 3), ("made_read_only", 9)]);
        unpaged.end_pass(0);
        assert_eq!((unpaged.at(), unpaged.pages()[0]), (0, 0));
        unpaged.spend(3);
        let next = 1000 + 3 * TIME_SHARE;
        assert!(!unpaged.begins_or_goes_on(next - 1, 50) && unpaged.begins_or_goes_on(next, 50));
        assert!(unpaged.begins_or_goes_on(next + 50, 50), "that took no time");
    }
}
