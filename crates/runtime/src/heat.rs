//! What each part of a process's memory holds and does, told while somebody looks (`pagetide top`).
//!
//! The parts are pieces of the managed regions, all of about one size; small regions are one part each. They lie in the page of shares and
//! counters (`control.rs`), whose memory is taken as it is touched. While nobody looks, the agent looks at one word now and then. While
//! somebody does, the core counts by parts, and each [`INTERVAL_NS`] the agent walks through its table of pages, a piece at a time: what
//! a walk takes is a hundredth of the time at most.
//!
//! One writer, one reader. A hostile program may write anything: the reader bounds how much it takes, and the numbers are numbers.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use pagetide_core::types::{Nanos, PageIdx, PageRange};
use pagetide_core::{PageState, PartCounts};
use pagetide_kernel::AddressSpace;
use pagetide_sys::sync::Version;

use crate::pager::Pager;
use crate::space::Region;

/// Parts at most.
pub(crate) const PARTS_MAX: usize = 256;
/// Regions that are told of: the largest. Each has one part at least.
pub(crate) const REGIONS_MAX: usize = 64;
/// Time in which is counted what is told.
const INTERVAL_NS: Nanos = 500_000_000;
/// How long a piece of a walk may keep the agent, and pages between two looks at the clock.
const PIECE_NS: Nanos = 100_000;
const PIECE_PAGES: u32 = 1024;
/// A walk takes one part of the time in so many.
const WALK_SHARE: Nanos = 100;
/// Tries of a reader that meets the writer.
const TRIES: u32 = 16;

/// Numbers of a part.
const WORDS: usize = 11;

/// A part of the managed memory: what it holds, and what it did in the last interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    /// Its first page, by virtual page number.
    pub(crate) vpn: u64,
    pub(crate) pages: u64,
    pub(crate) resident: u64,
    pub(crate) swapped: u64,
    /// Of `swapped`: in memory, compressed.
    pub(crate) compressed: u64,
    pub(crate) counts: PartCounts,
    /// Time that faults on it waited, one by one, in nanoseconds.
    pub(crate) waited: Nanos,
}

/// What was told last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    /// Time in which was counted what the parts did.
    pub(crate) interval_ns: Nanos,
    /// In no order.
    pub(crate) parts: Vec<Part>,
}

impl Part {
    fn words(&self) -> [u64; WORDS] {
        let PartCounts { faults, major_faults, refaults, read_ahead_hits, read_ahead_unused } = self.counts;
        let sizes = [self.vpn, self.pages, self.resident, self.swapped, self.compressed];
        let counts = [faults, major_faults, refaults, read_ahead_hits, read_ahead_unused, self.waited];
        let mut words = [0; WORDS];
        words.iter_mut().zip(sizes.into_iter().chain(counts)).for_each(|(word, value)| *word = value);
        words
    }

    const fn of_words(words: [u64; WORDS]) -> Self {
        let [vpn, pages, resident, swapped, compressed, counts @ .., waited] = words;
        let [faults, major_faults, refaults, read_ahead_hits, read_ahead_unused] = counts;
        let counts = PartCounts { faults, major_faults, refaults, read_ahead_hits, read_ahead_unused };
        Self { vpn, pages, resident, swapped, compressed, counts, waited }
    }
}

/// The shared words.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Heat {
    /// Set by the supervisor while somebody looks.
    is_wanted: AtomicU32,
    /// Of the words below.
    version: Version,
    interval_ns: AtomicU64,
    parts: AtomicU64,
    words: [[AtomicU64; WORDS]; PARTS_MAX],
}

impl Heat {
    /// Somebody looks from now on, or nobody.
    pub(crate) fn want(&self, is_wanted: bool) {
        if self.is_wanted() != is_wanted {
            self.is_wanted.store(u32::from(is_wanted), Ordering::Relaxed);
        }
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed) == 1
    }

    fn tell(&self, told: &Told) {
        self.version.write(|| {
            self.interval_ns.store(told.interval_ns, Ordering::Relaxed);
            self.parts.store(told.parts.len() as u64, Ordering::Relaxed);
            for (words, part) in self.words.iter().zip(&told.parts) {
                words.iter().zip(part.words()).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
            }
        });
    }

    /// Nothing is told any more: what comes next is new.
    fn fall_silent(&self) {
        self.version.fall_silent();
    }

    /// What was told last. None: nothing was, or it is being written for long.
    pub(crate) fn read(&self) -> Option<Told> {
        self.version.read(TRIES, || {
            let interval_ns = self.interval_ns.load(Ordering::Relaxed);
            let count = usize::try_from(self.parts.load(Ordering::Relaxed)).unwrap_or(usize::MAX).min(PARTS_MAX);
            let read =
                |words: &[AtomicU64; WORDS]| Part::of_words(words.each_ref().map(|word| word.load(Ordering::Relaxed)));
            let parts = self.words[..count].iter().map(read).collect();
            Told { interval_ns, parts }
        })
    }
}

/// The agent's side: what it counts and how far it has come.
#[derive(Debug, Default)]
pub(crate) struct Look {
    /// Nobody looks: none. Ascending by page index.
    parts: Vec<(Part, PageRange)>,
    /// Since when is counted.
    since: Nanos,
    next_walk: Nanos,
    /// Where the walk under way is: the part, and pages of it.
    at: Option<(usize, u32)>,
    /// What the walk under way took so far.
    took: Nanos,
}

impl Look {
    /// Now and then: begin, go on or end, as it is wanted.
    pub(crate) fn serve<K: AddressSpace>(&mut self, heat: &Heat, pager: &mut Pager<K>, now: Nanos) {
        if !heat.is_wanted() {
            if self.since > 0 {
                *self = Self::default();
                pager.core_mut().tally_by(&[]);
                heat.fall_silent();
            }
            return;
        }
        if self.since == 0 {
            self.begin(pager, now);
        }
        if now < self.next_walk {
            return;
        }
        let ends = now + PIECE_NS;
        let (mut part, mut page) = self.at.unwrap_or((0, 0));
        let mut end = now;
        while part < self.parts.len() && end < ends {
            (part, page) = self.walk(pager, part, page);
            end = pager.machine().space().now();
        }
        self.took += end.saturating_sub(now);
        self.at = Some((part, page));
        if part >= self.parts.len() {
            self.tell(heat, pager, end);
            self.begin(pager, end);
        }
    }

    /// A fault on this page has waited so long.
    pub(crate) fn note_wait<K: AddressSpace>(&mut self, pager: &Pager<K>, page: PageIdx, ns: Nanos) {
        if let Some(at) = pager.core().tallied_in(page)
            && let Some((part, _)) = self.parts.get_mut(at)
        {
            part.waited += ns;
        }
    }

    /// True while somebody looks.
    pub(crate) const fn is_on(&self) -> bool {
        self.since > 0
    }

    /// Count anew, by the regions that there are now.
    fn begin<K: AddressSpace>(&mut self, pager: &mut Pager<K>, now: Nanos) {
        self.parts = parts_of(pager.machine().mappings.regions());
        let ranges: Vec<_> = self.parts.iter().map(|(_, range)| *range).collect();
        pager.core_mut().tally_by(&ranges);
        self.next_walk = now + INTERVAL_NS.max(WALK_SHARE * self.took);
        (self.since, self.at, self.took) = (now, None, 0);
    }

    /// A piece of a part: where it goes on.
    fn walk<K: AddressSpace>(&mut self, pager: &Pager<K>, at: usize, from: u32) -> (usize, u32) {
        let (part, range) = &mut self.parts[at];
        let piece = range.part(from, PIECE_PAGES.min(range.len - from));
        for page in piece.pages() {
            match pager.core().state(page) {
                PageState::Mapped | PageState::Cached => part.resident += 1,
                PageState::Swapped => {
                    part.swapped += 1;
                    part.compressed += u64::from(pager.is_compressed(page));
                }
                PageState::Untouched | PageState::Poisoned => {}
            }
        }
        if from + piece.len == range.len { (at + 1, 0) } else { (at, from + piece.len) }
    }

    fn tell<K: AddressSpace>(&self, heat: &Heat, pager: &Pager<K>, now: Nanos) {
        let counted = self.parts.iter().zip(pager.core().tallied());
        let parts = counted.map(|((part, _), &counts)| Part { counts, ..*part }).collect();
        heat.tell(&Told { interval_ns: now.saturating_sub(self.since), parts });
    }
}

/// The largest regions, cut into parts of about one size, ascending by page index.
fn parts_of(regions: &[Region]) -> Vec<(Part, PageRange)> {
    let mut largest = regions.to_vec();
    largest.sort_by_key(|region| std::cmp::Reverse(region.range.len));
    largest.truncate(REGIONS_MAX);
    largest.sort_by_key(|region| region.range.first);
    let pages: u64 = largest.iter().map(|region| u64::from(region.range.len)).sum();
    let unit =
        u32::try_from(pages.div_ceil((PARTS_MAX - REGIONS_MAX) as u64)).expect("page indices have 32 bits").max(1);
    let cut = largest.iter().flat_map(|region| {
        let offsets = (0..region.range.len).step_by(unit as usize);
        offsets.map(move |offset| {
            let range = region.range.part(offset, unit.min(region.range.len - offset));
            let part = Part { vpn: region.vpn + u64::from(offset), pages: u64::from(range.len), ..Part::default() };
            (part, range)
        })
    });
    let parts: Vec<_> = cut.collect();
    assert!(parts.len() <= PARTS_MAX, "{} parts of memory", parts.len());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetide_core::types::RegionId;

    fn heat() -> Box<Heat> {
        Box::new(Heat {
            is_wanted: AtomicU32::new(0),
            version: Version::new(),
            interval_ns: AtomicU64::new(0),
            parts: AtomicU64::new(0),
            words: std::array::from_fn(|_| [const { AtomicU64::new(0) }; WORDS]),
        })
    }

    #[test]
    fn what_is_told_is_read_and_what_is_half_written_is_not() {
        let heat = heat();
        assert_eq!(heat.read(), None);
        let counts = PartCounts { faults: 6, major_faults: 7, refaults: 8, read_ahead_hits: 9, read_ahead_unused: 10 };
        let part = Part { vpn: 1, pages: 2, resident: 3, swapped: 4, compressed: 5, counts, waited: 11 };
        let told = Told { interval_ns: 12, parts: vec![part; PARTS_MAX] };
        heat.tell(&told);
        assert_eq!(heat.read(), Some(told));
        heat.version.write(|| assert_eq!(heat.read(), None));
        heat.version.fall_silent();
        assert_eq!(heat.read(), None);
        heat.tell(&Told::default());
        assert_eq!(heat.read(), Some(Told::default()));
    }

    #[test]
    fn forged_words_are_bounded() {
        let heat = heat();
        heat.version.write(|| heat.parts.store(u64::MAX, Ordering::Relaxed));
        assert_eq!(heat.read().map(|told| told.parts.len()), Some(PARTS_MAX));
    }

    #[test]
    fn every_page_of_the_largest_regions_is_in_one_part() {
        let region = |number: u32, len: u32| Region {
            vpn: u64::from(number) << 30,
            range: PageRange::new(PageIdx(1 + number * 100_000), len),
            id: RegionId(number),
        };
        for regions in [
            Vec::new(),
            vec![region(0, 1)],
            (0..100).map(|number| region(number, 1 + number * 997)).collect(),
            (0..100).map(|number| region(number, 3)).collect::<Vec<_>>(),
        ] {
            let parts = parts_of(&regions);
            let mut sizes: Vec<_> = regions.iter().map(|region| u64::from(region.range.len)).collect();
            sizes.sort_unstable_by(|a, b| b.cmp(a));
            let wanted: u64 = sizes.iter().take(REGIONS_MAX).sum();
            assert_eq!(parts.iter().map(|(part, _)| part.pages).sum::<u64>(), wanted);
            assert!(parts.is_sorted_by(|(_, a), (_, b)| a.end() <= b.first), "they are apart");
            assert!(parts.len() <= PARTS_MAX && parts.len() >= regions.len().min(REGIONS_MAX));
        }
    }
}
