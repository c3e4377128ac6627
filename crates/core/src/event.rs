//! What the host tells the core. Every event is total: late, unknown or repeated ones are ignored and counted (I7).

use crate::config::LiveSetting;
use crate::types::{Access, DeviceId, IoId, PageIdx, PageRange, RegionId, SlotIdx, TaskId};

/// A fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Pages `range` are managed from now on, as one region. Their content is zero until [`Event::Adopted`] or
    /// [`Event::Inherited`] says otherwise. The only event, with `Core::new`, that may allocate.
    RegionAdded {
        /// Chosen by the host; not in use.
        region: RegionId,
        /// Pages that belong to no region.
        range: PageRange,
    },
    /// The page cache of a file: as `RegionAdded`, for pages whose content is on a file's device. Page `i` of the region is
    /// slot `i` of `device` in the effects. A program's accesses through a mapping are touches and faults, as always.
    FileAdded {
        /// Chosen by the host; not in use.
        region: RegionId,
        /// Pages that belong to no region: the file from its start to its end.
        range: PageRange,
        /// Names the file in reads and writes: at least [`FILE_DEVICE_FIRST`], not in use.
        device: DeviceId,
        /// What it is.
        spec: FileSpec,
    },
    /// A task reads pages of a file by a system call; it is woken (with the first page) when all have been there.
    FileRead {
        /// The pages, all of one file.
        range: PageRange,
        /// Who waits.
        task: TaskId,
    },
    /// A task overwrites pages of a file by a system call; it is woken when all are in the page cache, dirty.
    FileWrite {
        /// The pages, all of one file.
        range: PageRange,
        /// Who waits.
        task: TaskId,
    },
    /// The region now covers `range`, which overlaps or touches what it covered. Pages that fall out are discarded.
    RegionResized {
        /// The region.
        region: RegionId,
        /// Its new pages.
        range: PageRange,
    },
    /// The region is split: pages from `at` on now belong to `upper`. No page changes state (munmap in the middle,
    /// mprotect, mremap of a part).
    RegionSplit {
        /// The region that keeps the lower part.
        region: RegionId,
        /// First page of the upper part.
        at: PageIdx,
        /// The new region.
        upper: RegionId,
    },
    /// The region is gone with all its contents.
    RegionRemoved {
        /// The region.
        region: RegionId,
    },
    /// These pages exist already and are mapped in the program: they are charged and put on the inactive list
    /// (adoption in place of a process that ran natively; pages the host found that the core did not know).
    Adopted {
        /// Pages of a region that the core holds as untouched; others in the range are left alone.
        range: PageRange,
    },
    /// These untouched pages have their content in `len` consecutive slots of an inherited device (a forked child
    /// takes over what its parent had swapped out).
    Inherited {
        /// The pages.
        range: PageRange,
        /// The device, added with `inherited` set.
        device: DeviceId,
        /// Slot of the first page.
        slot: SlotIdx,
    },
    /// Swapoff of the device is given up: it takes slots again, and what came back stays where it is.
    SwapoffStopped {
        /// The device of [`Event::Swapoff`].
        device: DeviceId,
    },
    /// A knob has another value from now on.
    KnobSet {
        /// Which and what, from [`crate::config::Config::live_setting`].
        setting: LiveSetting,
    },
    /// A task touched a page that is not mapped (or, where the host write-protects, may not be written).
    Fault {
        /// The page.
        page: PageIdx,
        /// Load or store.
        access: Access,
        /// Who waits.
        task: TaskId,
    },
    /// Answer to [`crate::effect::Effect::Map`] of a blind host: done, or refused, for a part or the whole of the range.
    Mapped {
        /// The pages this answer covers.
        range: PageRange,
        /// What happened.
        answer: MoveAnswer,
    },
    /// Answer to [`crate::effect::Effect::Unmap`] of a blind host.
    Unmapped {
        /// The pages this answer covers.
        range: PageRange,
        /// What happened.
        answer: MoveAnswer,
    },
    /// A read or write ended for some or all of its pages. The I/O is over when every page has been answered for.
    IoDone {
        /// The identifier in the effect.
        io: IoId,
        /// The pages this answer covers.
        range: PageRange,
        /// How it ended.
        outcome: Outcome,
    },
    /// The contents of these pages are gone: munmap, MADV_DONTNEED, brk down. They read as zero from now on. Mapped pages go
    /// with the program's page table entries: no `Drop` is ordered for them. A map of such a page that a blind host has not
    /// carried out yet must be answered `Gone` (with its frame freed): old contents never come back.
    Discarded {
        /// The pages.
        range: PageRange,
    },
    /// The host saw that these pages were used since it last looked.
    Referenced {
        /// The pages.
        range: PageRange,
    },
    /// A hint of the program.
    Advice {
        /// The pages.
        range: PageRange,
        /// The hint.
        advice: Advice,
    },
    /// The budget is now this many pages. Below the charge: the core reclaims until it holds again.
    BudgetChanged {
        /// Pages.
        pages: u32,
    },
    /// A swap device is there.
    DeviceAdded {
        /// Chosen by the host; not in use.
        device: DeviceId,
        /// What it is.
        spec: DeviceSpec,
    },
    /// The device now has this many usable slots (the host backed more of the file with disk space). Never shrinks;
    /// for slots within it that go, see `SlotsBacked`.
    DeviceGrown {
        /// The device.
        device: DeviceId,
        /// Usable slots, slot 0 included.
        slots: u32,
    },
    /// Slots of a device that nobody has are not backed any more (the host has given their disk space back), or are again.
    SlotsBacked {
        /// The device.
        device: DeviceId,
        /// First slot.
        slot: SlotIdx,
        /// Number of slots; the device has all of them, and slot 0 is none of them.
        len: u32,
        /// Again, or no longer.
        is_backed: bool,
    },
    /// Bring everything in from the device, then forget it.
    Swapoff {
        /// The device.
        device: DeviceId,
    },
    /// While held, the core unmaps nothing, and maps every page that is resident but unmapped (swap cache, staging) back
    /// in: the moments around a fork, when the child copies the page tables. Faults are still answered; the budget may be
    /// exceeded by what they need. `Core::is_settled()` tells when no effect is in flight.
    Hold {
        /// Begin or end.
        on: bool,
    },
    /// `len` slots got one more (pin) or one less (unpin) holder outside this core: a forked child. A slot with such a
    /// holder is never rewritten or reused.
    SlotsPinned {
        /// The device.
        device: DeviceId,
        /// First slot.
        slot: SlotIdx,
        /// Number of slots; those that are free are passed over.
        len: u32,
        /// One more, or one less.
        pin: bool,
    },
    /// Dirty pages of files are to be written now (the host's clock, or a task that waits for it).
    Writeback,
    /// The moment that `Core::deadline()` named has come.
    Timeout,
}

/// How a blind host fared with a map or unmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MoveAnswer {
    /// Done. Unmap: what the page's slot holds, if it has one, is not known to be the page's content any more.
    Done,
    /// Unmap: done, and the page's slot holds just its content: it need not be written.
    Clean,
    /// Map: a page is there already, and it is the truth; the frame is dropped. (UFFDIO: EEXIST.)
    Present,
    /// Unmap: no page is there (ENOENT). Map: the address is gone. The page is untouched from now on.
    Gone,
    /// The page cannot be moved at present (EBUSY: pinned, shared after fork; or not writable): it stays as it was, and
    /// goes to the unevictable list for a while. Map: only of a page that has its frame already; it is asked for again.
    Busy,
}

/// How a read or write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// Read, or written.
    Done,
    /// A write that was not needed: the content equals what the slot holds.
    Unchanged,
    /// A write that was not needed: the page is all zero. The slot is freed and the page is untouched from now on.
    Zero,
    /// The device failed, or a read did not match its checksum. A read poisons its pages; a written page stays in memory.
    Failed,
    /// The device has no space for this write. As a failed write; the device takes no more new slots.
    NoSpace,
}

/// A hint of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Advice {
    /// Forget the hint given before.
    Normal,
    /// Expect ascending access: read ahead at the largest window.
    Sequential,
    /// Expect random access: no readahead.
    Random,
    /// Bring the pages in.
    WillNeed,
    /// Move the pages to the tail of the inactive list.
    Cold,
    /// Reclaim the pages now.
    PageOut,
    /// The pages may not be reclaimed (mlock).
    Lock,
    /// They may again (munlock).
    Unlock,
}

/// What a swap device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceSpec {
    /// Usable slots, slot 0 included (slot 0 is never used).
    pub slots: u32,
    /// 0..=32767, higher is used first; `None`: below all of those, in order of arrival.
    pub priority: Option<i16>,
    /// Seeks cost time: VMA readahead is off while any such device is on.
    pub rotational: bool,
    /// Reads and writes end inside the call (zram): no swap cache and no readahead.
    pub synchronous: bool,
    /// Holds a forked parent's pages: read only, no slot of it is ever allocated.
    pub inherited: bool,
}

/// Device numbers from here on name files.
pub const FILE_DEVICE_FIRST: u8 = 32;

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileSpec {
    /// Limit of readahead in pages (`read_ahead_kb / 4`).
    pub ra_pages: u32,
    /// Largest request its device likes, in pages: a larger limit for larger reads; 0: none.
    pub io_pages: u32,
    /// Mapped as a program: its pages are kept more eagerly.
    pub executable: bool,
}
