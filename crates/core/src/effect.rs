//! What the core orders. Effects carry ranges, so that one system call or one I/O covers many pages.
//!
//! An *exact* host (the simulator) keeps young and dirty bits in the core's page table and carries `Map` and `Unmap` out at
//! once: they need no answer. A *blind* host (the live runtime) answers each with [`crate::event::Event::Mapped`] or
//! [`crate::event::Event::Unmapped`]. `Read` and `Write` are answered by [`crate::event::Event::IoDone`] by every host.
//! Until it is answered the effect is in flight, and no other effect touches its pages (I2).

use crate::types::{Access, DeviceId, IoId, PageIdx, PageRange, SlotIdx, TaskId};

/// At most this many effects per event (I1).
pub const EFFECTS_MAX: usize = 64;

/// How many effects back a neighbour is looked for.
const MERGE_LOOK: usize = 8;
/// Pages one effect carries at most.
pub const RANGE_MAX: u32 = 256;

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

impl Effect {
    /// Widen by a map, unmap or drop of the pages next to it. (Reads and writes need their I/O entry widened too.)
    fn absorb(&mut self, new: &Self) -> bool {
        match (self, new) {
            (Self::Unmap { range }, Self::Unmap { range: more })
            | (Self::Drop { range }, Self::Drop { range: more }) => join(range, *more),
            (Self::Map { range, source, access }, Self::Map { range: more, source: s, access: a }) => {
                *source == *s && *access == *a && join(range, *more)
            }
            (
                Self::Read { .. }
                | Self::Write { .. }
                | Self::Map { .. }
                | Self::Unmap { .. }
                | Self::Drop { .. }
                | Self::Wake { .. }
                | Self::Poison { .. }
                | Self::OutOfMemory { .. },
                _,
            ) => false,
        }
    }

    fn range(&self) -> Option<PageRange> {
        match *self {
            Self::Read { range, .. }
            | Self::Write { range, .. }
            | Self::Map { range, .. }
            | Self::Unmap { range }
            | Self::Drop { range }
            | Self::Poison { range } => Some(range),
            Self::Wake { .. } | Self::OutOfMemory { .. } => None,
        }
    }

    /// The effect is about this page.
    pub(crate) fn touches(&self, page: u32) -> bool {
        self.range().is_some_and(|range| range.contains(PageIdx(page)))
    }

    fn shares_page(&self, range: PageRange) -> bool {
        self.range().is_some_and(|own| own.first < range.end() && range.first < own.end())
    }

    /// The effect is about pages of the range, or a neighbour of it.
    fn meets(&self, range: PageRange) -> bool {
        self.range().is_some_and(|own| own.first <= range.end() && range.first <= own.end())
    }

    /// The effect in a few words, for hashing (I8).
    fn words(&self) -> [u64; 5] {
        let pages = |r: PageRange| (u64::from(r.first.0) << 32) | u64::from(r.len);
        match *self {
            Self::Read { io, device, slot, range, demand } => {
                let place = (u64::from(device.0) << 32) | u64::from(slot.0);
                [1, pages(range), place, u64::from(io.0), u64::from(demand)]
            }
            Self::Write { io, device, slot, range } => {
                [2, pages(range), (u64::from(device.0) << 32) | u64::from(slot.0), u64::from(io.0), 0]
            }
            Self::Map { range, source, access } => {
                [3, pages(range), u64::from(source == Source::Zero), u64::from(access == Access::Write), 0]
            }
            Self::Unmap { range } => [4, pages(range), 0, 0, 0],
            Self::Drop { range } => [5, pages(range), 0, 0, 0],
            Self::Wake { task, page } => [6, u64::from(task.0), u64::from(page.0), 0, 0],
            Self::Poison { range } => [7, pages(range), 0, 0, 0],
            Self::OutOfMemory { task, page } => [8, u64::from(task.0), u64::from(page.0), 0, 0],
        }
    }
}

fn join(range: &mut PageRange, more: PageRange) -> bool {
    if range.len + more.len > RANGE_MAX {
        return false;
    }
    if range.end() == more.first {
        range.len += more.len;
    } else if more.end() == range.first {
        range.first = more.first;
        range.len += more.len;
    } else {
        return false;
    }
    true
}

/// Hash of a stream of effects, the same on every machine: two runs are the same if their hashes are (I8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EffectHash(u64);

impl EffectHash {
    /// Of no effects.
    pub const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    /// Add what one event brought.
    pub fn add(&mut self, effects: &[Effect]) {
        for effect in effects {
            for word in effect.words() {
                self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3);
                self.0 ^= self.0 >> 29;
            }
        }
    }

    /// The hash so far.
    pub const fn value(self) -> u64 {
        self.0
    }
}

impl Default for EffectHash {
    fn default() -> Self {
        Self::new()
    }
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
    /// Orders of earlier events, which may be executed already: they are not widened.
    earlier: usize,
}

impl Effects {
    /// An empty buffer.
    pub const fn new() -> Self {
        Self { list: [Effect::Unmap { range: PageRange::new(PageIdx(0), 0) }; EFFECTS_MAX], len: 0, earlier: 0 }
    }

    /// The orders, oldest first.
    #[inline]
    pub fn as_slice(&self) -> &[Effect] {
        &self.list[..self.len]
    }

    /// Forget them.
    pub fn clear(&mut self) {
        self.len = 0;
        self.earlier = 0;
    }

    /// An event begins: what is there may be executed already.
    pub(crate) const fn begin_event(&mut self) {
        self.earlier = self.len;
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

    /// The fault of a task is answered.
    pub(crate) fn wake(&mut self, page: u32, task: TaskId) {
        self.push(Effect::Wake { task, page: PageIdx(page) });
    }

    /// Append, or widen one of the latest effects of the same kind that ends or begins where this one begins or ends.
    /// The host may execute effects in any order, so it does not matter what lies between.
    pub(crate) fn push_merged(&mut self, effect: Effect) {
        if let Some(range) = effect.range() {
            for old in self.recent_mut().filter(|old| old.meets(range)) {
                if old.absorb(&effect) {
                    return;
                }
                if old.shares_page(range) {
                    // An exact host maps and unmaps in the order of emission.
                    break;
                }
            }
        }
        self.push(effect);
    }

    /// The latest orders that a neighbour may widen, newest first.
    pub(crate) fn recent_mut(&mut self) -> impl Iterator<Item = &mut Effect> {
        let low = self.earlier.max(self.len.saturating_sub(MERGE_LOOK));
        self.list[low..self.len].iter_mut().rev()
    }
}

impl Default for Effects {
    fn default() -> Self {
        Self::new()
    }
}
