//! Memory of the tier: cells of size classes, cut from slabs.
//!
//! The addresses are mapped once; memory comes behind them slab by slab and goes back to the kernel the same way. A slab is cut
//! into cells of one class; cells of a slab may cross its pages, so that at most a cell's length of it is lost. Each cell
//! begins with the number of its owner, so that a slab can be emptied into others of its class.
//!
//! What it is not: it does not know what is in the cells, nor how much memory it may take. Invariants: a slab is unbacked, empty
//! or of one class; a bit of `live` stands for a cell that somebody owns; slabs with free cells are on the list of their class.

use pagetide_sys::Errno;
use pagetide_sys::mem::{self, ManagedRange, Mapping};

use crate::own;

/// Cells are multiples of this.
const UNIT: usize = 64;
/// Pages of a slab.
pub(crate) const SLAB_PAGES: u32 = 8;
const SLAB_BYTES: usize = (SLAB_PAGES as usize) << 12;
/// Units of a slab.
const SLAB_UNITS: usize = SLAB_BYTES / UNIT;
const _: () = assert!(SLAB_UNITS == SLAB_PAGES as usize * 64);
/// The largest cell: three quarters of a page.
const CLASSES: usize = 48;
/// A cell begins with its owner.
const HEAD_BYTES: usize = 4;
/// The most that a cell holds.
pub(crate) const CELL_BYTES_MAX: usize = CLASSES * UNIT - HEAD_BYTES;
/// Where no slab of the right class has room, larger cells will do, up to so many classes further.
const CLASSES_UP: usize = 4;
const NONE: u32 = u32::MAX;

/// A cell, by its place in units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell(u32);

#[derive(Clone, Copy, Debug)]
struct Slab {
    live: [u64; SLAB_UNITS / 64],
    /// Neighbours on the list of the class.
    prev: u32,
    next: u32,
    count: u16,
    class: u8,
}

const UNUSED: Slab = Slab { live: [0; SLAB_UNITS / 64], prev: NONE, next: NONE, count: 0, class: 0 };

/// The slabs and their cells.
#[derive(Debug)]
pub(crate) struct Cells {
    memory: Mapping,
    slabs: Vec<Slab>,
    /// Slabs with a free cell, by class.
    partial: [u32; CLASSES],
    /// Free cells of each class.
    free: [u32; CLASSES],
    /// Backed, and of no class.
    empty: Vec<u32>,
    unbacked: Vec<u32>,
    backed: u32,
    live_bytes: u64,
}

impl Cells {
    /// Room for so many pages of memory, none of which is backed.
    pub(crate) fn new(pages: u32) -> Result<Self, Errno> {
        let slabs = (pages / SLAB_PAGES).max(1);
        let memory = own::map(slabs as usize * SLAB_BYTES, false)?;
        // 4 KiB pages: the kernel is not to back more than what is asked for.
        let _ = mem::advise(memory.range(), mem::Advice::NoHugePage);
        Ok(Self {
            memory,
            slabs: vec![UNUSED; slabs as usize],
            partial: [NONE; CLASSES],
            free: [0; CLASSES],
            empty: Vec::with_capacity(slabs as usize),
            unbacked: (0..slabs).rev().collect(),
            backed: 0,
            live_bytes: 0,
        })
    }

    /// Where it is.
    pub(crate) const fn range(&self) -> ManagedRange {
        self.memory.range()
    }

    /// Pages with memory.
    pub(crate) const fn backed_pages(&self) -> u32 {
        self.backed * SLAB_PAGES
    }

    /// Backed bytes that hold nothing.
    pub(crate) fn free_bytes(&self) -> u64 {
        u64::from(self.backed) * SLAB_BYTES as u64 - self.live_bytes
    }

    /// Back one slab more. False: there is no memory, or no address, for it.
    pub(crate) fn back(&mut self) -> bool {
        let Some(slab) = self.unbacked.pop() else { return false };
        if mem::advise(self.slab_memory(slab), mem::Advice::PopulateWrite).is_err() {
            self.unbacked.push(slab);
            return false;
        }
        self.empty.push(slab);
        self.backed += 1;
        true
    }

    /// Give the memory of at most so many empty slabs back. How many were.
    pub(crate) fn give_back(&mut self, most: u32) -> u32 {
        let mut given = 0;
        while given < most {
            let Some(slab) = self.empty.pop() else { break };
            let advised = mem::advise(self.slab_memory(slab), mem::Advice::DontNeed);
            debug_assert!(advised.is_ok(), "the memory is ours: {advised:?}");
            self.unbacked.push(slab);
            self.backed -= 1;
            given += 1;
        }
        given
    }

    /// A cell for these bytes. None: no memory that is backed has room.
    pub(crate) fn put(&mut self, owner: u32, bytes: &[u8]) -> Option<Cell> {
        assert!(bytes.len() <= CELL_BYTES_MAX, "{} bytes are too many for a cell", bytes.len());
        let class = (bytes.len() + HEAD_BYTES).div_ceil(UNIT) - 1;
        if self.partial[class] == NONE
            && let Some(slab) = self.empty.pop()
        {
            self.begin(slab, class);
        }
        let class = self.class_with_room(class, CLASSES_UP)?;
        let cell = self.take(class);
        self.memory_of(cell, HEAD_BYTES + bytes.len(), |memory| {
            memory[..HEAD_BYTES].copy_from_slice(&owner.to_le_bytes());
            memory[HEAD_BYTES..].copy_from_slice(bytes);
        });
        Some(cell)
    }

    /// The first `len` bytes that a cell holds.
    pub(crate) fn get<T>(&mut self, cell: Cell, len: usize, read: impl FnOnce(&[u8]) -> T) -> T {
        self.memory_of(cell, HEAD_BYTES + len, |memory| read(&memory[HEAD_BYTES..]))
    }

    /// The cell is free again.
    pub(crate) fn free(&mut self, cell: Cell) {
        let slab = cell.slab();
        let entry = &mut self.slabs[slab as usize];
        let (word, bit) = (cell.unit() / 64, cell.unit() % 64);
        assert!(entry.live[word] >> bit & 1 != 0, "a cell of the tier is freed twice");
        entry.live[word] &= !(1 << bit);
        entry.count -= 1;
        let class = usize::from(entry.class);
        let (count, most) = (usize::from(entry.count), cells_of(class));
        self.free[class] += 1;
        self.live_bytes -= bytes_of(class);
        if count + 1 == most {
            self.list(slab, class);
        }
        if count == 0 {
            self.unlist(slab, class);
            self.free[class] -= u32::try_from(most).expect("at most the units of a slab");
            self.empty.push(slab);
        }
    }

    /// Empty one slab into others of its class, if some class has a slab's worth of free cells. `moved` is told the owner, the
    /// cell it had and the one it has now; what it does not know stays.
    pub(crate) fn compact(&mut self, moved: impl FnMut(u32, Cell, Cell) -> bool) {
        let Some(class) = (0..CLASSES).find(|&class| self.free[class] as usize > cells_of(class)) else { return };
        if let Some(slab) = self.emptiest(class) {
            self.empty_out(slab, 0, moved);
        }
    }

    /// Empty a slab into free cells of its class and of larger ones, so that it can become one of any class: where cells are free,
    /// but none of the size that is asked for. As `compact`.
    pub(crate) fn squeeze(&mut self, moved: impl FnMut(u32, Cell, Cell) -> bool) {
        let units = |slab: u32| {
            let Slab { count, class, .. } = self.slabs[slab as usize];
            usize::from(count) * (usize::from(class) + 1)
        };
        let emptiest = (0..CLASSES).filter_map(|class| self.emptiest(class)).min_by_key(|&slab| units(slab));
        if let Some(slab) = emptiest {
            self.empty_out(slab, CLASSES_UP, moved);
        }
    }

    /// The slab of a class that has the most free cells.
    fn emptiest(&self, class: usize) -> Option<u32> {
        let listed = |slab: u32| (slab != NONE).then_some(slab);
        let slabs = std::iter::successors(listed(self.partial[class]), |&slab| listed(self.slabs[slab as usize].next));
        slabs.min_by_key(|&slab| self.slabs[slab as usize].count)
    }

    /// Move the cells of a slab to others, of at most `up` classes further.
    fn empty_out(&mut self, slab: u32, up: usize, mut moved: impl FnMut(u32, Cell, Cell) -> bool) {
        let class = usize::from(self.slabs[slab as usize].class);
        // Off the list: no cell is to move within it.
        self.unlist(slab, class);
        for unit in 0..cells_of(class) {
            let unit = unit * (class + 1);
            if self.slabs[slab as usize].live[unit / 64] >> (unit % 64) & 1 == 0 {
                continue;
            }
            let Some(larger) = self.class_with_room(class, up) else { break };
            let from = Cell::new(slab, unit);
            let to = self.take(larger);
            let owner = self.copy(from, to, bytes_of(class));
            let stale = if moved(owner, from, to) { from } else { to };
            self.free_unlisted(stale, slab, class);
        }
        if self.slabs[slab as usize].count == 0 {
            self.free[class] -= u32::try_from(cells_of(class)).expect("at most the units of a slab");
            self.empty.push(slab);
        } else {
            self.list(slab, class);
        }
    }

    fn class_with_room(&self, class: usize, up: usize) -> Option<usize> {
        (class..CLASSES.min(class + up + 1)).find(|&class| self.partial[class] != NONE)
    }

    /// Free a cell while `unlisted` is on no list.
    fn free_unlisted(&mut self, cell: Cell, unlisted: u32, class: usize) {
        if cell.slab() != unlisted {
            self.free(cell);
            return;
        }
        let entry = &mut self.slabs[unlisted as usize];
        entry.live[cell.unit() / 64] &= !(1 << (cell.unit() % 64));
        entry.count -= 1;
        self.free[class] += 1;
        self.live_bytes -= bytes_of(class);
    }

    /// Change a byte of what a cell holds.
    #[cfg(test)]
    pub(super) fn damage(&mut self, cell: Cell, at: usize) {
        self.memory_of(cell, HEAD_BYTES + at + 1, |memory| memory[HEAD_BYTES + at] ^= 0x11);
    }

    fn copy(&mut self, from: Cell, to: Cell, bytes: u64) -> u32 {
        let len = usize::try_from(bytes).expect("at most a page");
        let mut buffer = [0; CLASSES * UNIT];
        self.memory_of(from, len, |memory| buffer[..len].copy_from_slice(memory));
        self.memory_of(to, len, |memory| memory.copy_from_slice(&buffer[..len]));
        u32::from_le_bytes([buffer[0], buffer[1], buffer[2], buffer[3]])
    }

    fn begin(&mut self, slab: u32, class: usize) {
        self.slabs[slab as usize] = Slab { class: u8::try_from(class).expect("a class of the few"), ..UNUSED };
        self.free[class] += u32::try_from(cells_of(class)).expect("at most the units of a slab");
        self.list(slab, class);
    }

    /// The first free cell of a class that has one.
    fn take(&mut self, class: usize) -> Cell {
        let slab = self.partial[class];
        let entry = &mut self.slabs[slab as usize];
        let free = (0..cells_of(class)).map(|index| index * (class + 1));
        let unit = { free }.find(|unit| entry.live[unit / 64] >> (unit % 64) & 1 == 0).expect("a listed slab has room");
        entry.live[unit / 64] |= 1 << (unit % 64);
        entry.count += 1;
        self.free[class] -= 1;
        self.live_bytes += bytes_of(class);
        if usize::from(entry.count) == cells_of(class) {
            self.unlist(slab, class);
        }
        Cell::new(slab, unit)
    }

    fn list(&mut self, slab: u32, class: usize) {
        let head = self.partial[class];
        let entry = &mut self.slabs[slab as usize];
        (entry.prev, entry.next) = (NONE, head);
        if head != NONE {
            self.slabs[head as usize].prev = slab;
        }
        self.partial[class] = slab;
    }

    fn unlist(&mut self, slab: u32, class: usize) {
        let Slab { prev, next, .. } = self.slabs[slab as usize];
        if prev == NONE {
            self.partial[class] = next;
        } else {
            self.slabs[prev as usize].next = next;
        }
        if next != NONE {
            self.slabs[next as usize].prev = prev;
        }
    }

    fn slab_memory(&self, slab: u32) -> ManagedRange {
        self.memory.range().part(slab as usize * SLAB_BYTES, SLAB_BYTES)
    }

    fn memory_of<T>(&mut self, cell: Cell, len: usize, use_it: impl FnOnce(&mut [u8]) -> T) -> T {
        let memory = self.memory.range().part(cell.0 as usize * UNIT, len);
        // SAFETY: the part lies in our own mapping, cells are disjoint, and `self` is borrowed for as long as it is used.
        use_it(unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), len) })
    }
}

impl Drop for Cells {
    fn drop(&mut self) {
        own::forget(self.memory.range());
    }
}

impl Cell {
    fn new(slab: u32, unit: usize) -> Self {
        Self(u32::try_from(slab as usize * SLAB_UNITS + unit).expect("256 GiB of cells"))
    }

    const fn slab(self) -> u32 {
        self.0 / (SLAB_PAGES * 64)
    }

    const fn unit(self) -> usize {
        self.0 as usize % SLAB_UNITS
    }
}

const fn cells_of(class: usize) -> usize {
    SLAB_UNITS / (class + 1)
}

const fn bytes_of(class: usize) -> u64 {
    ((class + 1) * UNIT) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(seed: u32, len: usize) -> Vec<u8> {
        (0..len).map(|at| (seed.wrapping_mul(31).wrapping_add(u32::try_from(at).expect("short")) % 251) as u8).collect()
    }

    #[test]
    fn cells_of_every_size_keep_their_bytes_through_frees_and_compaction() {
        let mut cells = Cells::new(512).expect("memory");
        for _ in 0..64 {
            assert!(cells.back());
        }
        let mut held: Vec<Option<(Cell, usize)>> = Vec::new();
        let mut state = 1_u32;
        for _ in 0..20_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let len = 1 + (state >> 8) as usize % CELL_BYTES_MAX;
            if state >> 30 != 0 {
                let owner = u32::try_from(held.len()).expect("few");
                if let Some(cell) = cells.put(owner, &filled(owner, len)) {
                    held.push(Some((cell, len)));
                    continue;
                }
            }
            if !held.is_empty() {
                let index = (state >> 4) as usize % held.len();
                for index in index..held.len().min(index + 8) {
                    if let Some((cell, _)) = held[index].take() {
                        cells.free(cell);
                    }
                }
            }
            let mut moved = |owner: u32, from, to| {
                let entry = held[owner as usize].as_mut().expect("a live cell has its owner");
                assert_eq!(entry.0, from);
                entry.0 = to;
                true
            };
            cells.compact(&mut moved);
            if state >> 24 & 15 == 0 {
                cells.squeeze(&mut moved);
            }
        }
        for (owner, entry) in (0..).zip(&held) {
            if let Some((cell, len)) = *entry {
                cells.get(cell, len, |bytes| assert!(bytes == filled(owner, len), "owner {owner}"));
            }
        }
        for (cell, _) in held.into_iter().flatten() {
            cells.free(cell);
        }
        assert_eq!((cells.empty.len(), cells.live_bytes), (64, 0), "all slabs are empty again");
        assert_eq!(cells.give_back(100), 64);
        assert_eq!(cells.backed_pages(), 0);
    }

    /// Pages of a program have all sizes. A sixteenth of the memory was free, in cells that were too small or far too large for the
    /// page at hand, and it went to the disk while older ones stayed.
    #[test]
    fn free_cells_of_other_sizes_become_one_of_the_size_that_is_asked_for() {
        let mut cells = Cells::new(8 * SLAB_PAGES).expect("memory");
        while cells.back() {}
        let (small, large) = (vec![1; 400], vec![2; 2_000]);
        let held: Vec<Cell> = (0..).map_while(|owner| cells.put(owner, &small)).collect();
        assert_eq!(cells.put(0, &large), None, "all is taken by small ones");
        let mut held: Vec<Option<Cell>> = held.into_iter().map(Some).collect();
        // No slab is empty, and half of the memory is free.
        for cell in held.iter_mut().step_by(2).filter_map(Option::take) {
            cells.free(cell);
        }
        assert_eq!(cells.put(0, &large), None, "no slab has room for it");
        cells.squeeze(|owner, from, to| held[owner as usize].replace(to) == Some(from));
        assert!(cells.put(0, &large).is_some(), "a slab was emptied into the others");
        for (owner, cell) in held.iter().enumerate().filter_map(|(owner, cell)| Some((owner, (*cell)?))) {
            cells.get(cell, small.len(), |bytes| assert!(bytes == small, "owner {owner}"));
        }
    }

    #[test]
    fn without_backed_memory_there_is_no_cell() {
        let mut cells = Cells::new(8).expect("memory");
        assert_eq!(cells.put(0, &[1]), None);
        assert!(cells.back() && !cells.back(), "one slab");
        assert!(cells.put(0, &[1]).is_some());
    }
}
