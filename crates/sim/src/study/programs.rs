//! The programs of the study set: patterns, and the page accesses of real algorithms that run here at their natural size.
//!
//! Each algorithm computes on real data and notes every access to its arrays as the page that it falls on; accesses to one page
//! that follow each other are one record. Deterministic: a program and a size are one trace.

use pagetide_trace::dense::DenseTrace;
use pagetide_trace::{Op, Record};

use crate::rng::{XorShift64, Zipf};

const PAGE_BYTES: u64 = 4096;
/// Pages between two arrays: they are mappings of their own.
const HOLE_PAGES: u64 = 512;

/// A program of the study, with the memory that it is studied in.
#[derive(Clone, Copy, Debug)]
pub struct StudyProgram {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub what: &'static str,
    /// Pages of memory, for which it is written.
    pub memory_pages: u32,
    /// CPU time between two records.
    pub access_ns: u64,
    /// Bytes that a page of it takes compressed, as an assumption; a page: it does not compress.
    pub packed_bytes: u32,
    pub(super) make: fn(u32) -> Notes,
}

impl StudyProgram {
    /// The same, of data that compress so far.
    const fn packs_to(self, packed_bytes: u32) -> Self {
        Self { packed_bytes, ..self }
    }

    /// Its accesses.
    ///
    /// # Panics
    /// Never: every program touches memory.
    pub fn trace(&self) -> DenseTrace {
        let notes = (self.make)(self.memory_pages);
        DenseTrace::of_records(&notes.records).expect("a study program touches some memory")
    }
}

/// What a program has touched so far.
#[derive(Debug, Default)]
pub(super) struct Notes {
    records: Vec<Record>,
    next_page: u64,
    last: [u64; 3],
}

/// An array of equal items in the program's memory.
#[derive(Clone, Copy, Debug)]
struct Array {
    first_byte: u64,
    item_bytes: u64,
}

impl Notes {
    fn array(&mut self, items: usize, item_bytes: u64) -> Array {
        let first_byte = self.next_page * PAGE_BYTES;
        let pages = (items as u64 * item_bytes).div_ceil(PAGE_BYTES);
        self.next_page = (self.next_page + pages + 2 * HOLE_PAGES) / HOLE_PAGES * HOLE_PAGES;
        Array { first_byte, item_bytes }
    }

    fn pages(&mut self, pages: u32) -> Array {
        self.array(pages as usize, PAGE_BYTES)
    }

    fn note(&mut self, array: Array, item: usize, op: Op) {
        let page = (array.first_byte + item as u64 * array.item_bytes) / PAGE_BYTES;
        // The page before is surely there; of reads so are the last few.
        let word = page << 1 | u64::from(op == Op::Write);
        if self.last.contains(&word) {
            return;
        }
        self.last = [word, self.last[0], self.last[1]];
        self.records.push(Record { page, task: 0, op });
    }

    fn read(&mut self, array: Array, item: usize) {
        self.note(array, item, Op::Read);
    }

    fn write(&mut self, array: Array, item: usize) {
        self.note(array, item, Op::Write);
    }

    fn fill(&mut self, array: Array, items: usize) {
        (0..items).for_each(|item| self.write(array, item));
    }
}

/// Numbers 0..n in random order.
fn shuffled(n: usize, rng: &mut XorShift64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        let other = rng.below(u32::try_from(i + 1).expect("small")) as usize;
        order.swap(i, other);
    }
    order
}

fn below(rng: &mut XorShift64, n: usize) -> usize {
    rng.below(u32::try_from(n).expect("study sizes are small")) as usize
}

/// `hot` scattered pages of `all` get `percent` of the accesses, the others the rest; a tenth are writes.
fn hot(all: usize, hot: usize, percent: u32, accesses: usize) -> Notes {
    let mut notes = Notes::default();
    let mut rng = XorShift64::new(11);
    let array = notes.pages(u32::try_from(all).expect("small"));
    notes.fill(array, all);
    let order = shuffled(all, &mut rng);
    for _ in 0..accesses {
        let page = if rng.chance_bp(percent * 100) {
            order[below(&mut rng, hot)]
        } else {
            order[hot + below(&mut rng, all - hot)]
        };
        let op = if rng.chance_bp(1000) { Op::Write } else { Op::Read };
        notes.note(array, page, op);
    }
    notes
}

/// Hot sets of eighths of memory over four memories.
fn hot_eighths(memory: u32, eighths: usize, percent: u32) -> Notes {
    let memory = memory as usize;
    hot(memory * 4, memory * eighths / 8, percent, memory * 40)
}

fn zipf(memory: u32, exponent: f64) -> Notes {
    let mut notes = Notes::default();
    let mut rng = XorShift64::new(12);
    let all = memory as usize * 4;
    let array = notes.pages(memory * 4);
    notes.fill(array, all);
    let order = shuffled(all, &mut rng);
    let zipf = Zipf::new(memory * 4, exponent);
    for _ in 0..memory * 40 {
        let page = order[zipf.draw(&mut rng) as usize];
        let op = if rng.chance_bp(1000) { Op::Write } else { Op::Read };
        notes.note(array, page, op);
    }
    notes
}

/// Eight laps in one random order over so many percent of memory.
fn lap(memory: u32, percent: u32) -> Notes {
    laps(memory, percent, 8)
}

pub(super) fn laps(memory: u32, percent: u32, count: usize) -> Notes {
    let mut notes = Notes::default();
    let mut rng = XorShift64::new(13);
    let all = memory as usize * percent as usize / 100;
    let array = notes.pages(u32::try_from(all).expect("small"));
    let order = shuffled(all, &mut rng);
    for lap in 0..=count {
        for &page in &order {
            notes.note(array, page, if lap == 0 { Op::Write } else { Op::Read });
        }
    }
    notes
}

/// A loop over 1.25 memories half of the time, a hot quarter of memory the other half.
fn lap_and_hot(memory: u32) -> Notes {
    let mut notes = Notes::default();
    let mut rng = XorShift64::new(14);
    let (all, hot) = (memory as usize * 5 / 4, memory as usize / 4);
    let array = notes.pages(memory * 5 / 4);
    let kept = notes.pages(memory / 4);
    let order = shuffled(all, &mut rng);
    for _ in 0..9 {
        for &page in &order {
            notes.write(array, page);
            let other = below(&mut rng, hot);
            notes.read(kept, other);
        }
    }
    notes
}

/// Six tables of three quarters of memory, one after another, each written at random while the next pages of an input are read: nobody
/// comes back to an earlier one.
fn tables(memory: u32) -> Notes {
    let mut notes = Notes::default();
    let mut rng = XorShift64::new(16);
    let (input_pages, table_pages) = (memory as usize, memory as usize * 3 / 4);
    let input = notes.pages(memory);
    notes.fill(input, input_pages);
    for _ in 0..6 {
        let table = notes.pages(memory * 3 / 4);
        for page in 0..input_pages {
            notes.read(input, page);
            for _ in 0..4 {
                let at = below(&mut rng, table_pages);
                notes.write(table, at);
            }
        }
    }
    notes
}

/// The hot set of three quarters of memory is another one four times.
fn phases(memory: u32) -> Notes {
    let mut notes = Notes::default();
    let mut rng = XorShift64::new(15);
    let all = memory as usize * 4;
    let hot = memory as usize * 3 / 4;
    let array = notes.pages(memory * 4);
    notes.fill(array, all);
    for _ in 0..4 {
        let order = shuffled(all, &mut rng);
        for _ in 0..memory * 10 {
            let is_hot = rng.chance_bp(9_700);
            let at = if is_hot { below(&mut rng, hot) } else { hot + below(&mut rng, all - hot) };
            notes.read(array, order[at]);
        }
    }
    notes
}

fn steps(memory: u32, order: impl Fn(usize) -> Vec<usize>) -> Notes {
    let mut notes = Notes::default();
    let all = memory as usize * 4;
    let array = notes.pages(memory * 4);
    notes.fill(array, all);
    for _ in 0..3 {
        order(all).into_iter().for_each(|page| notes.write(array, page));
    }
    notes
}

/// Uniformly random over four memories.
fn uniform(memory: u32) -> Notes {
    let mut notes = Notes::default();
    let mut rng = XorShift64::new(16);
    let all = memory as usize * 4;
    let array = notes.pages(memory * 4);
    notes.fill(array, all);
    for _ in 0..memory * 12 {
        let page = below(&mut rng, all);
        notes.write(array, page);
    }
    notes
}

/// 64 sorted runs become one.
fn merge_64(memory: u32) -> Notes {
    let mut notes = Notes::default();
    let mut rng = XorShift64::new(17);
    let pages = memory as usize * 2;
    let (from, to) = (notes.pages(memory * 2), notes.pages(memory * 2));
    notes.fill(from, pages);
    let run = pages / 64;
    let mut next = [0usize; 64];
    for page in 0..pages {
        // A page of output takes something from most runs.
        for _ in 0..16 {
            let which = below(&mut rng, 64);
            let at = (next[which] / 16).min(run - 1);
            next[which] += 1;
            notes.read(from, which * run + at);
        }
        notes.write(to, page);
    }
    notes
}

/// Python's dictionary: a sparse index table, entries in the order of insertion, and key and value objects of their own. Random
/// keys are put in, sorted (references to the objects move, the objects are compared), and looked up in sorted order.
fn dict(memory: u32) -> Notes {
    let mut notes = Notes::default();
    let mut rng = XorShift64::new(18);
    // Index 4 bytes in a table at most 2/3 full, entry 24, key 32, value 32, two lists of 8.
    let n = memory as usize * 2 * 4096 / 116;
    let slots = (n * 3 / 2).next_power_of_two();
    let index = notes.array(slots, 4);
    let entries = notes.array(n, 24);
    let objects = notes.array(n, 64);
    let list = notes.array(n, 8);
    let keys: Vec<u64> = (0..n).map(|_| rng.draw()).collect();
    let mut table = vec![usize::MAX; slots];
    let hash = |key: u64| usize::try_from(key % slots as u64).expect("below a usize");
    for (i, &key) in keys.iter().enumerate() {
        notes.write(objects, i);
        let mut at = hash(key);
        notes.read(index, at);
        while table[at] != usize::MAX {
            notes.read(entries, table[at]);
            at = (at * 5 + 1) % slots;
            notes.read(index, at);
        }
        table[at] = i;
        notes.write(index, at);
        notes.write(entries, i);
    }
    let order = merge_sort(&mut notes, list, objects, &keys);
    for &i in &order {
        notes.read(objects, i);
        let mut at = hash(keys[i]);
        notes.read(index, at);
        while table[at] != i {
            notes.read(entries, table[at]);
            at = (at * 5 + 1) % slots;
            notes.read(index, at);
        }
        notes.read(entries, i);
    }
    notes
}

/// Sorts references to objects by merging, bottom up; each comparison looks at both objects.
fn merge_sort(notes: &mut Notes, list: Array, objects: Array, keys: &[u64]) -> Vec<usize> {
    let n = keys.len();
    let scratch = notes.array(n, list.item_bytes);
    let mut order: Vec<usize> = (0..n).collect();
    let (mut from, mut to) = (list, scratch);
    // Runs of 64 are sorted in place first, as library sorts do.
    for (run, chunk) in order.chunks_mut(64).enumerate() {
        for (i, &item) in chunk.iter().enumerate() {
            notes.read(objects, item);
            notes.write(list, run * 64 + i);
        }
        chunk.sort_by_key(|&item| keys[item]);
    }
    let mut width = 64;
    while width < n {
        let mut next = Vec::with_capacity(n);
        for start in (0..n).step_by(2 * width) {
            let (middle, end) = ((start + width).min(n), (start + 2 * width).min(n));
            let (mut a, mut b) = (start, middle);
            while a < middle || b < end {
                let first = b >= end || a < middle && keys[order[a]] <= keys[order[b]];
                let at = if first { a } else { b };
                notes.read(from, at);
                notes.read(objects, order[at]);
                notes.write(to, next.len());
                next.push(order[at]);
                *(if first { &mut a } else { &mut b }) += 1;
            }
        }
        order = next;
        (from, to) = (to, from);
        width *= 2;
    }
    order
}

/// GNU sort in memory: lines as they came, references with lengths behind them, merged; then written out in order.
fn sort_lines(memory: u32) -> Notes {
    let mut notes = Notes::default();
    let mut rng = XorShift64::new(19);
    let n = memory as usize * 2 * 4096 / 128;
    let lines = notes.array(n, 64);
    let references = notes.array(n, 32);
    let keys: Vec<u64> = (0..n).map(|_| rng.draw()).collect();
    notes.fill(lines, n);
    let order = merge_sort(&mut notes, references, lines, &keys);
    for (at, &line) in order.iter().enumerate() {
        notes.read(references, at);
        notes.read(lines, line);
    }
    notes
}

/// `PageRank` in compressed rows: edges in order, ranks of their ends at random; six rounds.
fn pagerank(memory: u32) -> Notes {
    let mut notes = Notes::default();
    let mut rng = XorShift64::new(20);
    // 16 edges of 4 bytes for each vertex, offsets and two ranks of 8.
    let vertices = memory as usize * 2 * 4096 / (16 * 4 + 24);
    let offsets = notes.array(vertices, 8);
    let edges = notes.array(vertices * 16, 4);
    let ranks = [notes.array(vertices, 8), notes.array(vertices, 8)];
    notes.fill(offsets, vertices);
    let ends: Vec<u32> = (0..vertices * 16).map(|_| rng.below(u32::try_from(vertices).expect("small"))).collect();
    notes.fill(edges, vertices * 16);
    notes.fill(ranks[0], vertices);
    for round in 0..6 {
        // Two threads, each with its half.
        for v in 0..vertices / 2 {
            for vertex in [v, v + vertices / 2] {
                notes.read(offsets, vertex);
                // Most edges and ranks fall on pages that were just used: a sample is enough.
                for edge in (vertex * 16..vertex * 16 + 16).step_by(8) {
                    notes.read(edges, edge);
                    notes.read(ranks[round % 2], ends[edge] as usize);
                }
                notes.write(ranks[1 - round % 2], vertex);
            }
        }
    }
    notes
}

/// A hash join: the smaller table is hashed, the larger one looks its rows up.
fn hash_join(memory: u32) -> Notes {
    let mut notes = Notes::default();
    let mut rng = XorShift64::new(21);
    let rows = memory as usize * 4096 / 64;
    let slots = rows.next_power_of_two();
    let build = notes.array(rows, 16);
    let table = notes.array(slots, 16);
    let probe = notes.array(rows * 4, 16);
    let out = notes.array(rows, 32);
    notes.fill(build, rows);
    notes.fill(probe, rows * 4);
    for row in 0..rows {
        notes.read(build, row);
        let slot = below(&mut rng, slots);
        notes.write(table, slot);
    }
    for row in 0..rows * 4 {
        notes.read(probe, row);
        // Every second key matches.
        let slot = below(&mut rng, slots);
        notes.read(table, slot);
        if row % 4 == 0 {
            notes.write(out, row / 4);
        }
    }
    notes
}

/// A database in memory: look-ups through a tree of pages with 100 children each, and a scan of the table now and then.
fn tree(memory: u32) -> Notes {
    let mut notes = Notes::default();
    let mut rng = XorShift64::new(22);
    let leaves = memory as usize * 3 / 2;
    let inner = leaves.div_ceil(100);
    let (leaf, node) = (notes.pages(memory * 3 / 2), notes.array(inner, PAGE_BYTES));
    let rows = notes.pages(memory / 2);
    let order = shuffled(leaves, &mut rng);
    let zipf = Zipf::new(u32::try_from(leaves).expect("small"), 0.7);
    for i in 0..leaves {
        notes.write(node, i / 100);
        notes.write(leaf, i);
    }
    notes.fill(rows, memory as usize / 2);
    for query in 0..memory * 15 {
        let at = zipf.draw(&mut rng) as usize;
        notes.read(node, at / 100);
        if query % 10 == 0 {
            notes.write(leaf, order[at]);
        } else {
            notes.read(leaf, order[at]);
        }
        if query % (memory * 4) == memory {
            (0..memory as usize / 2).for_each(|row| notes.read(rows, row));
        }
    }
    notes
}

/// A sort with many runs: each eighth of memory is sorted and laid down as a run, and all runs are merged.
fn sort_runs(memory: u32) -> Notes {
    let mut notes = Notes::default();
    let mut rng = XorShift64::new(23);
    let pages = memory as usize * 2;
    let (from, work, to) = (notes.pages(memory * 2), notes.pages(memory / 8), notes.pages(memory * 2));
    notes.fill(from, pages);
    let run = memory as usize / 8;
    for start in (0..pages).step_by(run) {
        for page in 0..run {
            notes.read(from, start + page);
            notes.write(work, page);
        }
        for _ in 0..run * 8 {
            let (a, b) = (below(&mut rng, run), below(&mut rng, run));
            notes.write(work, a);
            notes.write(work, b);
        }
        for page in 0..run {
            notes.read(work, page);
            notes.write(from, start + page);
        }
    }
    let runs = pages / run;
    let mut next = vec![0usize; runs];
    for page in 0..pages {
        for _ in 0..8 {
            let which = below(&mut rng, runs);
            let at = (next[which] / 8).min(run - 1);
            next[which] += 1;
            notes.read(from, which * run + at);
        }
        notes.write(to, page);
    }
    notes
}

const MEMORY: u32 = 8192;

const fn program(
    name: &'static str,
    what: &'static str,
    memory_pages: u32,
    access_ns: u64,
    make: fn(u32) -> Notes,
) -> StudyProgram {
    StudyProgram { name, what, memory_pages, access_ns, packed_bytes: 4096, make }
}

/// All programs.
pub const PROGRAMS: &[StudyProgram] = &[
    program("hot-1/2-95", "hot half of memory, 95 %", MEMORY, 400, |m| hot_eighths(m, 4, 95)),
    program("hot-1/2-99", "hot half of memory, 99 %", MEMORY, 400, |m| hot_eighths(m, 4, 99)),
    program("hot-3/4-95", "hot three quarters, 95 %", MEMORY, 400, |m| hot_eighths(m, 6, 95)),
    program("hot-3/4-99", "hot three quarters, 99 %", MEMORY, 400, |m| hot_eighths(m, 6, 99)),
    program("hot-7/8-95", "hot seven eighths, 95 %", MEMORY, 400, |m| hot_eighths(m, 7, 95)),
    program("hot-7/8-99", "hot seven eighths, 99 %", MEMORY, 400, |m| hot_eighths(m, 7, 99)),
    program("hot-0.92-99", "hot 0.92 of memory, 99 %", 7_750, 400, |_| hot(32_768, 7_168, 99, 250_000)),
    program("hot-128M", "96 MiB of 512 in 128, 95 %, 1 M accesses", 32_768, 400, |_| {
        hot(131_072, 24_576, 95, 1_000_000)
    }),
    program("hot-120M", "112 MiB of 512 in 120, 95 %, 1 M accesses", 30_720, 400, |_| {
        hot(131_072, 28_672, 95, 1_000_000)
    }),
    program("zipf-0.8", "zipf over four memories", MEMORY, 400, |m| zipf(m, 0.8)),
    program("zipf-1.0", "zipf over four memories", MEMORY, 400, |m| zipf(m, 1.0)),
    program("zipf-1.2", "zipf over four memories", MEMORY, 400, |m| zipf(m, 1.2)),
    program("loop-1.1", "eight laps in one random order", MEMORY, 400, |m| lap(m, 110)),
    program("loop-1.25", "eight laps in one random order", MEMORY, 400, |m| lap(m, 125)),
    program("loop-1.5", "eight laps in one random order", MEMORY, 400, |m| lap(m, 150)),
    program("loop-2", "eight laps in one random order", MEMORY, 400, |m| lap(m, 200)),
    program("loop+hot", "a loop of 1.25 and a hot quarter", MEMORY, 400, lap_and_hot),
    program("phases", "a hot set of three quarters that changes", MEMORY, 400, phases),
    program("tables", "tables of three quarters, one after another", MEMORY, 400, tables),
    program("uniform", "random rewrites of four memories", MEMORY, 400, uniform),
    program("up", "sequential rewrites of four memories", MEMORY, 1_000, |m| steps(m, |n| (0..n).collect())),
    program("down", "the same backwards", MEMORY, 1_000, |m| steps(m, |n| (0..n).rev().collect())),
    program("stride", "every third page", MEMORY, 1_000, |m| steps(m, |n| (0..n).step_by(3).collect())),
    program("merge-64", "64 runs become one", MEMORY, 500, merge_64),
    program("dict", "python: dict of random keys, sorted, looked up", 12_288, 60, dict).packs_to(1600),
    program("sort", "GNU sort", 12_288, 60, sort_lines).packs_to(2400),
    program("pagerank", "PageRank, two threads", 12_288, 30, pagerank).packs_to(3300),
    program("hash-join", "build and probe", 12_288, 60, hash_join).packs_to(2400),
    program("tree", "tree look-ups, table scans", MEMORY, 400, tree).packs_to(2000),
    program("sort-runs", "sort with sixteen runs", MEMORY, 400, sort_runs),
];
