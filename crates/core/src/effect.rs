//! What the core orders. Effects carry ranges, so that one system call or one I/O covers many pages.
//!
//! An *exact* host (the simulator) keeps young and dirty bits in the core's page table and carries `Map` and `Unmap` out at
//! once: they need no answer. A *blind* host (the live runtime) answers each with [`crate::event::Event::Mapped`] or
//! [`crate::event::Event::Unmapped`]. `Read` and `Write` are answered by [`crate::event::Event::IoDone`] by every host.
//! Until it is answered the effect is in flight, and no other effect touches its pages (I2).

use crate::types::{Access, DeviceId, IoId, PageIdx, PageRange, SlotIdx, TaskId};

/// At most this many effects per event (I1).
pub const EFFECTS_MAX: usize = 64;

/// An order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Read `range.len` consecutive slots into fresh frames of the pages.
    Read {
        /// To be named in the answer.
        io: IoId,
        /// From where.
        device: DeviceId,
        /// Slot of the first page.
        slot: SlotIdx,
        /// The pages.
        range: PageRange,
        /// True if a task waits for a page of the range; false for readahead, which may come later.
        demand: bool,
    },
    /// Write the frames of the pages to `range.len` consecutive slots. The pages are unmapped. A blind host, which cannot
    /// see dirty bits, may answer `Unchanged` or `Zero` for some of the pages instead of writing them.
    Write {
        /// To be named in the answer.
        io: IoId,
        /// To where.
        device: DeviceId,
        /// Slot of the first page.
        slot: SlotIdx,
        /// The pages.
        range: PageRange,
    },
    /// Make the pages accessible to the program.
    Map {
        /// The pages.
        range: PageRange,
        /// Where their content is.
        source: Source,
        /// The access that asked for it (`Read`: the host may map read only).
        access: Access,
    },
    /// Take the pages out of the program's page table; keep their frames.
    Unmap {
        /// The pages.
        range: PageRange,
    },
    /// Free the frames of these unmapped pages; their content is in their slots or is not needed.
    Drop {
        /// The pages.
        range: PageRange,
    },
    /// The task's fault is answered: let it try again.
    Wake {
        /// Who.
        task: TaskId,
        /// The page it waited for.
        page: PageIdx,
    },
    /// The content of these pages is lost: every access must fail (SIGBUS), never see other bytes.
    Poison {
        /// The pages.
        range: PageRange,
    },
    /// No page can be freed for this fault and no swap slot is left: the host decides as its world does when out of memory.
    OutOfMemory {
        /// Whose fault cannot be answered.
        task: TaskId,
        /// The page.
        page: PageIdx,
    },
}

/// Where the content of a page to be mapped is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// A fresh page of zeroes.
    Zero,
    /// The frame the host holds for the page.
    Frame,
}

/// The caller's buffer of orders.
#[derive(Clone, Debug)]
pub struct Effects {
    list: [Effect; EFFECTS_MAX],
    len: usize,
}

impl Effects {
    /// An empty buffer.
    pub const fn new() -> Self {
        Self { list: [Effect::Unmap { range: PageRange::new(PageIdx(0), 0) }; EFFECTS_MAX], len: 0 }
    }

    /// The orders, oldest first.
    pub fn as_slice(&self) -> &[Effect] {
        &self.list[..self.len]
    }

    /// Forget them.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// How many more fit.
    pub const fn room(&self) -> usize {
        EFFECTS_MAX - self.len
    }

    /// Append one. The core checks `room()` first and goes on at its deadline when there is none (I1).
    pub(crate) fn push(&mut self, effect: Effect) {
        assert!(self.len < EFFECTS_MAX, "I1: more than {EFFECTS_MAX} effects for one event");
        self.list[self.len] = effect;
        self.len += 1;
    }

    /// The newest, to be widened by a neighbour.
    pub(crate) fn last_mut(&mut self) -> Option<&mut Effect> {
        self.list[..self.len].last_mut()
    }
}

impl Default for Effects {
    fn default() -> Self {
        Self::new()
    }
}
