//! What the memory of a process holds and does, for who asks: the agent's parts, joined with the names of the kernel's mappings.
//!
//! The agent counts while somebody who has asked is connected (`heat.rs`). The list of mappings is read for an answer only.

use pagetide_sys::maps::{MapsText, NAME_BYTES};

use super::Supervisor;
use super::tree::Process;
use crate::heat::Part;
use crate::space::{PAGE_BYTES, PAGE_SHIFT};
use crate::watch::message::MAPPING_BYTES_MAX;
use crate::watch::{Answer, HeatView, Memory, RegionView};

/// Bytes of the list of mappings that are read together.
const MAPS_BYTES: usize = NAME_BYTES + (60 << 10);

/// A mapping, by page numbers.
struct Named {
    from: u64,
    to: u64,
    name: String,
}

impl Supervisor {
    /// The memory of a process, as its agent told of it last.
    pub(super) fn memory_of(&self, pid: u64) -> Answer {
        let is_it = |process: &&Process| i64::from(process.pid) == i64::try_from(pid).unwrap_or(0) && !process.is_gone;
        let Some(process) = self.tree.list.iter().find(is_it) else {
            return Answer::Refused(format!("process {pid} does not belong to the run"));
        };
        let Some(link) = process.link.as_ref().filter(|link| link.control.entry().is_managed()) else {
            return Answer::Refused(format!("process {pid} is not paged: it runs natively"));
        };
        let mut told = link.control.entry().heat.read().unwrap_or_default();
        // The program may write its page: what no address can be is left out.
        told.parts.retain(|part| part.vpn < 1 << (64 - PAGE_SHIFT) && part.pages < 1 << (64 - PAGE_SHIFT));
        told.parts.sort_by_key(|part| part.vpn);
        let names = names(process.pid, &told.parts);
        Answer::Regions(Box::new(Memory {
            pid,
            interval_ns: told.interval_ns,
            regions: regions(&told.parts, &names),
            heat: told.parts.iter().map(heat).collect(),
        }))
    }
}

const fn bytes(pages: u64) -> u64 {
    pages.saturating_mul(PAGE_BYTES)
}

const fn heat(part: &Part) -> HeatView {
    HeatView {
        start: bytes(part.vpn),
        size_bytes: bytes(part.pages),
        resident_bytes: bytes(part.resident),
        faults: part.counts.faults,
        major_faults: part.counts.major_faults,
    }
}

/// The mappings in which parts lie, ascending. Of a process that ends meanwhile: as many as were read.
fn names(pid: i32, parts: &[Part]) -> Vec<Named> {
    let mut names = Vec::new();
    let mut buffer = vec![0; MAPS_BYTES];
    let Ok(mut maps) = MapsText::open_pid(pid, &mut buffer) else { return names };
    while let Ok(Some(vma)) = maps.next_vma() {
        let (from, to) = ((vma.start >> PAGE_SHIFT) as u64, (vma.end >> PAGE_SHIFT) as u64);
        let next = parts.partition_point(|part| part.vpn.saturating_add(part.pages) <= from);
        if parts.get(next).is_some_and(|part| part.vpn < to) {
            names.push(Named { from, to, name: mapping_name(vma.name) });
        }
    }
    names
}

/// What the kernel calls a mapping; of a long name the end.
fn mapping_name(name: &[u8]) -> String {
    if name.is_empty() {
        return "[anon]".to_owned();
    }
    let name = super::printable(name);
    let from = name.len().saturating_sub(MAPPING_BYTES_MAX);
    name[name.ceil_char_boundary(from)..].to_owned()
}

/// Parts side by side in mappings of one name are one region: what was registered piece by piece is a mapping for each piece.
fn regions(parts: &[Part], names: &[Named]) -> Vec<RegionView> {
    let mut regions: Vec<RegionView> = Vec::new();
    for part in parts {
        let after = names.partition_point(|named| named.from <= part.vpn);
        let named = after.checked_sub(1).map(|index| &names[index]).filter(|named| part.vpn < named.to);
        let mapping = named.map_or("[anon]", |named| named.name.as_str());
        let goes_on = regions.last().is_some_and(|region| {
            region.start.saturating_add(region.size_bytes) == bytes(part.vpn) && region.mapping == mapping
        });
        if !goes_on {
            let mapping = mapping.to_owned();
            regions.push(RegionView { start: bytes(part.vpn), mapping, ..RegionView::default() });
        }
        let region = regions.last_mut().expect("there is one");
        for (sum, value) in [
            (&mut region.size_bytes, bytes(part.pages)),
            (&mut region.resident_bytes, bytes(part.resident)),
            (&mut region.swapped_bytes, bytes(part.swapped)),
            (&mut region.compressed_bytes, bytes(part.compressed)),
            (&mut region.faults, part.counts.faults),
            (&mut region.major_faults, part.counts.major_faults),
            (&mut region.refaults, part.counts.refaults),
            (&mut region.read_ahead_hits, part.counts.read_ahead_hits),
            (&mut region.read_ahead_unused, part.counts.read_ahead_unused),
            (&mut region.waited_us, part.waited / 1000),
        ] {
            *sum = sum.saturating_add(value);
        }
    }
    regions.truncate(crate::heat::REGIONS_MAX);
    regions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(vpn: u64, pages: u64) -> Part {
        Part { vpn, pages, resident: 1, waited: 5000, ..Part::default() }
    }

    fn named(from: u64, to: u64, name: &str) -> Named {
        Named { from, to, name: name.to_owned() }
    }

    #[test]
    fn parts_of_mappings_of_one_name_are_a_region() {
        let parts = [part(10, 5), part(15, 5), part(20, 1), part(21, 1), part(40, 2), part(90, 1)];
        let names =
            [named(8, 20, "[heap]"), named(20, 21, "[anon]"), named(21, 30, "[anon]"), named(40, 50, "[anon:arena]")];
        let told: Vec<_> = regions(&parts, &names)
            .into_iter()
            .map(|region| (region.start / 4096, region.size_bytes / 4096, region.waited_us, region.mapping))
            .collect();
        let expected =
            [(10, 10, 10, "[heap]"), (20, 2, 10, "[anon]"), (40, 2, 5, "[anon:arena]"), (90, 1, 5, "[anon]")];
        assert_eq!(told, expected.map(|(start, size, us, name)| (start, size, us, name.to_owned())));
    }

    #[test]
    fn names_are_cut_at_their_beginning_and_may_not_end_a_line() {
        assert_eq!(mapping_name(b""), "[anon]");
        let long = format!("/a/{}/b\nc", "\u{e4}".repeat(80));
        let name = mapping_name(long.as_bytes());
        assert!(name.len() <= MAPPING_BYTES_MAX && !name.contains('\n') && name.starts_with('\u{e4}'), "{name}");
    }

    #[test]
    fn forged_numbers_do_not_overflow() {
        let all = u64::MAX >> PAGE_SHIFT;
        let forged = Part { vpn: all, pages: all, resident: u64::MAX, ..Part::default() };
        let regions = regions(&[forged, forged], &[]);
        assert!(regions.iter().all(|region| region.resident_bytes == u64::MAX));
        assert_eq!(heat(&forged).resident_bytes, u64::MAX);
    }
}
