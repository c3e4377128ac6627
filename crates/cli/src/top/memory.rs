//! The looks at one process's memory: its regions, and what its parts did, as far back as the screen shows them.

use std::collections::VecDeque;

use crate::backend::{HeatView, Memory};

/// Looks that are remembered: the height of a tall screen.
const LOOKS_MAX: usize = 128;

/// Faults of a part in an interval at most: what is more was forged.
const FAULTS_MAX: u64 = 1 << 40;

/// A column of the map: its share of the addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Column {
    /// Of it, resident, in hundredths of a percent.
    pub(super) resident_bp: u64,
    /// Faults a second.
    pub(super) faults: u64,
}

/// One look: its parts, and the time for which they tell.
#[derive(Debug)]
struct Look {
    interval_ns: u64,
    parts: Vec<HeatView>,
}

/// The looks.
#[derive(Debug)]
pub(super) struct MemoryCourse {
    pub(super) pid: u64,
    /// The first region that is shown, of those that are sorted by size.
    pub(super) first: usize,
    last: Option<Memory>,
    looks: VecDeque<Look>,
}

impl MemoryCourse {
    pub(super) const fn new(pid: u64) -> Self {
        Self { pid, first: 0, last: None, looks: VecDeque::new() }
    }

    /// A look. One before anything was counted is none.
    pub(super) fn push(&mut self, memory: Memory) {
        if memory.interval_ns == 0 {
            return;
        }
        if self.looks.len() == LOOKS_MAX {
            self.looks.pop_front();
        }
        self.looks.push_back(Look { interval_ns: memory.interval_ns, parts: memory.heat.clone() });
        self.last = Some(memory);
    }

    /// The last look.
    pub(super) const fn last(&self) -> Option<&Memory> {
        self.last.as_ref()
    }

    /// The addresses of the last look side by side, in so many columns: the looks at them, the newest first.
    pub(super) fn map(&self, columns: usize, rows: usize) -> Vec<Vec<Column>> {
        let Some(last) = &self.last else { return Vec::new() };
        let scale = Scale::new(last, columns);
        self.looks.iter().rev().take(rows).map(|look| scale.row(look)).collect()
    }

    /// Where in so many columns each region of the last look begins and ends, ascending.
    pub(super) fn borders(&self, columns: usize) -> Vec<(usize, usize, &str)> {
        let Some(last) = &self.last else { return Vec::new() };
        let scale = Scale::new(last, columns);
        let column = |place: u64| usize::try_from(scale.column(place)).unwrap_or(columns);
        let regions = last.regions.iter().zip(&scale.places);
        regions
            .map(|(region, &(_, _, place))| {
                (column(place), column(place.saturating_add(region.size_bytes)), region.mapping.as_str())
            })
            .collect()
    }
}

/// Regions side by side: from which address to which, and how many addresses lie before.
struct Scale {
    places: Vec<(u64, u64, u64)>,
    bytes: u64,
    columns: u64,
}

impl Scale {
    fn new(memory: &Memory, columns: usize) -> Self {
        let mut bytes = 0_u64;
        let mut places = Vec::with_capacity(memory.regions.len());
        for region in &memory.regions {
            places.push((region.start, region.start.saturating_add(region.size_bytes), bytes));
            bytes = bytes.saturating_add(region.size_bytes);
        }
        Self { places, bytes: bytes.max(1), columns: u64::try_from(columns).unwrap_or(u64::MAX).max(1) }
    }

    /// The column in which a place lies.
    fn column(&self, place: u64) -> u64 {
        let column = u128::from(place) * u128::from(self.columns) / u128::from(self.bytes);
        u64::try_from(column).unwrap_or(u64::MAX)
    }

    fn row(&self, look: &Look) -> Vec<Column> {
        let count = usize::try_from(self.columns).unwrap_or(usize::MAX);
        let (mut faults, mut resident) = (vec![0_u128; count], vec![0_u128; count]);
        for part in &look.parts {
            let (from, to) = (part.start, part.start.saturating_add(part.size_bytes));
            for &(start, end, before) in &self.places {
                let (low, high) = (from.max(start), to.min(end));
                if low < high {
                    let place = |address: u64| before.saturating_add(address - start);
                    let (low, high) = (place(low), place(high));
                    self.spread(part, low, high, (&mut faults, &mut resident));
                }
            }
        }
        let width = u128::from(self.bytes).div_ceil(u128::from(self.columns));
        let small = |value: u128| u64::try_from(value).unwrap_or(u64::MAX);
        let columns = faults.into_iter().zip(resident).map(|(faults, resident)| Column {
            resident_bp: small(resident / width).min(10_000),
            // In thousandths, so that halves of a fault are not lost.
            faults: small(faults * 1_000_000 / u128::from(look.interval_ns.max(1))),
        });
        columns.collect()
    }

    /// What a part has between two places, over the columns there: faults in thousandths, resident bytes in ten-thousandths.
    fn spread(&self, part: &HeatView, low: u64, high: u64, (faults, resident): (&mut [u128], &mut [u128])) {
        let size = u128::from(part.size_bytes.max(1));
        let mut at = low;
        while at < high {
            let column = self.column(at);
            // The first place of the next column.
            let next = (u128::from(column + 1) * u128::from(self.bytes)).div_ceil(u128::from(self.columns));
            let next = u64::try_from(next).unwrap_or(u64::MAX).clamp(at + 1, high);
            let (index, share) = (usize::try_from(column).unwrap_or(usize::MAX), u128::from(next - at));
            if let (Some(faults), Some(resident)) = (faults.get_mut(index), resident.get_mut(index)) {
                *faults += u128::from(part.faults.min(FAULTS_MAX)) * 1000 * share / size;
                *resident += u128::from(part.resident_bytes.min(part.size_bytes)) * 10_000 / size * share;
            }
            at = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::RegionView;

    const PART: u64 = 1 << 20;

    fn memory(heat: Vec<HeatView>, regions: &[(u64, u64)]) -> Memory {
        let regions = regions.iter().map(|&(start, size_bytes)| RegionView {
            start,
            size_bytes,
            mapping: "[heap]".to_owned(),
            ..RegionView::default()
        });
        Memory { pid: 1, interval_ns: 500_000_000, regions: regions.collect(), heat }
    }

    fn part(start: u64, faults: u64, resident_bytes: u64) -> HeatView {
        HeatView { start, size_bytes: PART, resident_bytes, faults, major_faults: 0 }
    }

    #[test]
    fn what_happened_in_a_part_is_in_its_columns() {
        let mut course = MemoryCourse::new(1);
        course.push(memory(vec![part(0, 10, PART), part(8 * PART, 40, 0)], &[(0, PART), (8 * PART, PART)]));
        let map = course.map(4, 9);
        let half = Column { resident_bp: 10_000, faults: 10 };
        let other = Column { resident_bp: 0, faults: 40 };
        assert_eq!(map, [[half, half, other, other]]);
        assert_eq!(course.borders(4), [(0, 2, "[heap]"), (2, 4, "[heap]")]);
    }

    #[test]
    fn earlier_looks_lie_where_their_addresses_lie_now() {
        let mut course = MemoryCourse::new(1);
        course.push(memory(vec![part(0, 10, 0)], &[(0, PART)]));
        course.push(memory(vec![part(0, 0, 0), part(PART, 20, 0)], &[(0, 2 * PART)]));
        let faults: Vec<Vec<u64>> =
            course.map(2, 9).iter().map(|row| row.iter().map(|column| column.faults).collect()).collect();
        assert_eq!(faults, [[0, 40], [20, 0]], "the newest first");
    }

    #[test]
    fn before_anything_was_counted_there_is_nothing() {
        let mut course = MemoryCourse::new(1);
        course.push(Memory { pid: 1, ..Memory::default() });
        assert!(course.last().is_none() && course.map(80, 9).is_empty());
    }

    #[test]
    fn any_numbers_make_a_map() {
        let most = u64::MAX;
        let forged = HeatView { start: most, size_bytes: most, resident_bytes: most, faults: most, major_faults: most };
        let mut course = MemoryCourse::new(1);
        course.push(memory(vec![forged, part(most - 5, most, most)], &[(most - 9, most), (5, most), (0, 0)]));
        course.push(Memory {
            interval_ns: 1,
            heat: vec![part(3, most, 5)],
            ..memory(Vec::new(), &[(0, 1), (1, most)])
        });
        assert_eq!(course.map(7, 9).len(), 2);
        assert_eq!(course.borders(7).len(), 2);
    }
}
