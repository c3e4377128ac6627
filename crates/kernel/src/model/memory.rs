//! Pages, page table entries and mappings: the nouns of the model.

use super::World;

/// A page of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageId(u32);

/// What a page holds, and who holds it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    pub(super) value: u64,
    /// Entries that name it.
    pub(super) mapped: u32,
    /// Direct I/O under way.
    pub(super) pins: u32,
    /// The huge page that it is a part of; 0: none. The kernel pins and splits a huge page as a whole.
    pub(super) huge: u32,
}

/// A page table entry that is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// The shared page of zeroes.
    Zero,
    /// A page.
    Page {
        page: PageId,
        /// Nobody else has it since it was last written: it may be moved.
        exclusive: bool,
    },
    /// SIGBUS.
    Poison,
    /// SIGSEGV, by `MADV_GUARD_INSTALL`.
    Guard,
}

/// Access rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rights {
    /// None.
    None,
    /// Loads.
    Read,
    /// Loads and stores.
    ReadWrite,
    /// And execution.
    All,
}

impl Rights {
    /// A load, or a store, is allowed.
    pub const fn allow(self, write: bool) -> bool {
        match self {
            Self::None => false,
            Self::Read => !write,
            Self::ReadWrite | Self::All => true,
        }
    }
}

/// What a forked child gets of a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForkPolicy {
    /// A copy.
    Copy,
    /// Nothing: the addresses are free.
    Dont,
    /// The mapping without its contents.
    Wipe,
}

/// What a mapping is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Anonymous memory.
    Anon,
    /// The first thread's stack, which grows downward.
    Stack,
    /// Anonymous memory that is shared with children.
    Shared,
}

/// A mapping: `[start, end)` in page numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First page number.
    pub start: u64,
    /// Page number behind the last.
    pub end: u64,
    /// What it is.
    pub kind: Kind,
    /// What may be done.
    pub rights: Rights,
    /// What a child gets.
    pub fork: ForkPolicy,
    /// Locked into memory.
    pub locked: bool,
    /// `MADV_HUGEPAGE`.
    pub huge: bool,
    /// Its faults are told.
    pub registered: bool,
}

impl Mapping {
    /// Plain anonymous memory.
    pub const fn anon(start: u64, end: u64) -> Self {
        Self {
            start,
            end,
            kind: Kind::Anon,
            rights: Rights::ReadWrite,
            fork: ForkPolicy::Copy,
            locked: false,
            huge: false,
            registered: false,
        }
    }

    /// True if the kernel makes one mapping of this one and `next`.
    pub(super) fn joins(&self, next: &Self) -> bool {
        let moved = Self { start: next.start, end: next.end, ..*self };
        self.end == next.start && moved == *next
    }
}

impl World {
    pub(super) fn new_page(&mut self, value: u64) -> Entry {
        let page = Page { value, mapped: 1, pins: 0, huge: 0 };
        let id = if let Some(id) = self.free_pages.pop() {
            self.pages[id.0 as usize] = page;
            id
        } else {
            self.pages.push(page);
            PageId(u32::try_from(self.pages.len() - 1).expect("few pages"))
        };
        Entry::Page { page: id, exclusive: true }
    }

    pub(super) fn page(&self, id: PageId) -> &Page {
        &self.pages[id.0 as usize]
    }

    pub(super) fn page_mut(&mut self, id: PageId) -> &mut Page {
        &mut self.pages[id.0 as usize]
    }

    /// What a load from this entry gives.
    pub(super) fn value_of(&self, entry: Entry) -> u64 {
        match entry {
            Entry::Page { page, .. } => self.page(page).value,
            Entry::Zero | Entry::Poison | Entry::Guard => 0,
        }
    }

    /// An entry is no more.
    pub(super) fn release(&mut self, entry: Entry) {
        if let Entry::Page { page, .. } = entry {
            self.page_mut(page).mapped -= 1;
            self.reuse(page);
        }
    }

    fn reuse(&mut self, id: PageId) {
        let page = self.page(id);
        if page.mapped == 0 && page.pins == 0 {
            self.free_pages.push(id);
        }
    }

    /// True if a device uses the page, or another part of its huge page.
    pub(super) fn is_pinned(&self, id: PageId) -> bool {
        let page = self.page(id);
        page.pins > 0 || (page.huge > 0 && self.pages.iter().any(|other| other.huge == page.huge && other.pins > 0))
    }

    /// One pin less.
    pub(super) fn unpin(&mut self, id: PageId) {
        self.page_mut(id).pins -= 1;
        self.reuse(id);
    }
}
