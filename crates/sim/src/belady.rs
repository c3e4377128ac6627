//! Belady's optimum (MIN): what no policy can do better, knowing the future.
//!
//! A page that is not there takes the place of the one whose next use is furthest away. First touches cost no read, so only
//! misses of pages that were there before are counted.

use std::collections::BinaryHeap;

use pagetide_trace::Op;
use pagetide_trace::dense::DenseTrace;

const NEVER: u32 = u32::MAX;

/// A trace with the next use of every access.
#[derive(Debug)]
pub struct Belady<'a> {
    trace: &'a DenseTrace,
    next: Vec<u32>,
}

impl<'a> Belady<'a> {
    /// Looks through the trace once, from its end.
    ///
    /// # Panics
    /// A trace of 2^32 accesses or more.
    pub fn new(trace: &'a DenseTrace) -> Self {
        let mut seen = vec![NEVER; trace.pages as usize];
        let mut next = vec![NEVER; trace.records.len()];
        for (at, record) in trace.records.iter().enumerate().rev() {
            let last = &mut seen[record.page() as usize];
            // What is thrown away is not used again.
            next[at] = if record.op() == Op::Discard { NEVER } else { *last };
            *last =
                if record.op() == Op::Discard { NEVER } else { u32::try_from(at).expect("fewer than 2^32 accesses") };
        }
        Self { trace, next }
    }

    /// Reads of the optimum in so many pages.
    pub fn major_faults(&self, memory_pages: u32) -> u64 {
        // The next use of each resident page; pages are resident while this is not `None`.
        let mut due: Vec<Option<u32>> = vec![None; self.trace.pages as usize];
        let mut touched = vec![false; self.trace.pages as usize];
        // Furthest first; entries whose page has been used since are passed over.
        let mut furthest: BinaryHeap<(u32, u32)> = BinaryHeap::new();
        let (mut resident, mut reads) = (0, 0);
        for (record, &next) in self.trace.records.iter().zip(&self.next) {
            let page = record.page();
            let index = page as usize;
            if record.op() == Op::Discard {
                resident -= u32::from(due[index].take().is_some());
                touched[index] = false;
                continue;
            }
            if due[index].is_none() {
                reads += u64::from(touched[index]);
                if resident >= memory_pages.max(1) {
                    while let Some((when, victim)) = furthest.pop() {
                        if due[victim as usize] == Some(when) {
                            due[victim as usize] = None;
                            break;
                        }
                    }
                } else {
                    resident += 1;
                }
            }
            touched[index] = true;
            due[index] = Some(next);
            furthest.push((next, page));
        }
        reads
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pagetide_trace::Record;

    fn reads(pages: &[u64], memory: u32) -> u64 {
        let records: Vec<Record> = pages.iter().map(|&page| Record { page, task: 0, op: Op::Read }).collect();
        Belady::new(&DenseTrace::of_records(&records).expect("small")).major_faults(memory)
    }

    #[test]
    fn it_keeps_what_is_used_soonest() {
        // The example of his paper's kind: 1 2 3 1 2 4 1 2 3 in three frames misses only 4 and the last 3.
        assert_eq!(reads(&[1, 2, 3, 1, 2, 4, 1, 2, 3], 3), 1);
        assert_eq!(reads(&[1, 2, 3, 1, 2, 4, 1, 2, 3], 4), 0);
    }

    #[test]
    fn a_loop_misses_just_what_does_not_fit() {
        let pages: Vec<u64> = (0..10).flat_map(|_| 0..20).collect();
        let missed = reads(&pages, 16);
        // 4 of 19 in each of the nine laps after the first, to a page.
        assert!((36..=45).contains(&missed), "{missed}");
    }
}
