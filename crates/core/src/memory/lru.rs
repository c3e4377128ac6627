//! The LRU lists: five of the kernel, one of discarded pages whose frames are still to be dropped, and two of pages that are
//! watched.
//!
//! Insert at the head, scan from the tail. New pages may pass through a batch in which they are on no list (the kernel's
//! per-CPU batches); a page with a frame is on exactly one list or in the batch. No policy here.

mod landmarks;
mod times;

use landmarks::Landmarks;
use times::Times;

use super::page::{ACTIVE, BUSY, FILE, LRU, NIL, PCP, PageTable, ROTATE, UNEVICTABLE};

/// Inactive anonymous.
pub(crate) const IA: usize = 0;
/// Active anonymous.
pub(crate) const AA: usize = 1;
/// Inactive file.
pub(crate) const IF: usize = 2;
/// Active file.
pub(crate) const AF: usize = 3;
/// Unevictable.
pub(crate) const UN: usize = 4;
/// Discarded, frame not yet dropped.
pub(crate) const DI: usize = 5;
/// Out of the page table for a while, to see whether they are used (see `reclaim::watch`): of the pages on probation.
pub(crate) const PW: usize = 6;
/// The same of those that are kept.
pub(crate) const MW: usize = 7;

const BATCH_MAX: usize = 31;
/// Batches of new pages, one per CPU of the host.
const CPUS_MAX: usize = 16;
/// A CPU's batch for every so many pages of budget, so that the batches together stay small.
const BUDGET_PER_CPU: u32 = 2048;

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
    len: u32,
}

#[derive(Debug)]
pub(super) struct Lru {
    lists: [List; 8],
    /// Of the kept pages that are watched.
    times: Times,
    /// Of the lists that are scanned.
    landmarks: [Landmarks; 4],
    add: [[u32; BATCH_MAX]; CPUS_MAX],
    add_len: [usize; CPUS_MAX],
    cpus: u32,
    /// The CPU on which the core works just now.
    cpu: usize,
    rotate: [u32; BATCH_MAX],
    rotate_len: usize,
    /// Writes end on a CPU of their own: only a full batch moves its pages.
    ends_elsewhere: bool,
    /// Pages a batch holds before it is drained; 0: no batches.
    batch: usize,
}

impl Lru {
    pub(super) fn new(batch: usize, budget: u32, ends_elsewhere: bool) -> Self {
        let empty = List { head: NIL, tail: NIL, len: 0 };
        let batch = if batch > BATCH_MAX { BATCH_MAX } else { batch };
        Self {
            lists: [empty; 8],
            times: Times::new(budget / 8),
            // A blind host, which has no batches, scans a page or two at a time.
            landmarks: core::array::from_fn(|_| Landmarks::new(if batch == 0 { 0 } else { budget })),
            add: [[0; BATCH_MAX]; CPUS_MAX],
            add_len: [0; CPUS_MAX],
            cpus: (budget / BUDGET_PER_CPU).clamp(1, 16),
            cpu: 0,
            rotate: [0; BATCH_MAX],
            rotate_len: 0,
            ends_elsewhere,
            batch,
        }
    }

    pub(super) const fn len(&self, list: usize) -> u32 {
        self.lists[list].len
    }

    /// From now on the core works for `task`, on its CPU.
    pub(super) const fn on_cpu_of(&mut self, task: u32) {
        self.cpu = (task % self.cpus) as usize;
    }

    pub(super) const fn tail(&self, list: usize) -> u32 {
        self.lists[list].tail
    }

    /// The tail, at which a scan is about to look.
    pub(super) fn scan_tail(&mut self, pages: &PageTable, list: usize) -> u32 {
        let p = self.tail(list);
        self.landmarks[list].pass(pages, p, self.lists[list].len);
        p
    }

    /// Inactive anon, active anon, inactive file, active file; with those that are watched.
    pub(super) const fn sizes(&self) -> [u32; 4] {
        let anon = [self.lists[IA].len + self.lists[PW].len, self.lists[AA].len + self.lists[MW].len];
        [anon[0], anon[1], self.lists[IF].len, self.lists[AF].len]
    }

    /// The list that the flags of a page name.
    pub(super) fn list_of(pages: &PageTable, p: u32) -> usize {
        let word = pages.word(p);
        if word & (UNEVICTABLE | BUSY) != 0 {
            UN
        } else {
            usize::from(word & FILE != 0) * 2 + usize::from(word & ACTIVE != 0)
        }
    }

    pub(super) fn push_head(&mut self, pages: &mut PageTable, list: usize, p: u32) {
        debug_assert!(!pages.is(p, LRU | PCP));
        let head = self.lists[list].head;
        pages.set_prev(p, NIL);
        pages.set_next(p, head);
        if head == NIL {
            self.lists[list].tail = p;
        } else {
            pages.set_prev(head, p);
        }
        self.lists[list].head = p;
        self.lists[list].len += 1;
        if let Some(landmarks) = self.landmarks.get_mut(list) {
            landmarks.push(pages, p);
        }
        pages.set(p, LRU);
        pages.set_list(p, list);
    }

    /// To the head of the kept pages that are watched, at this time.
    pub(super) fn push_kept(&mut self, pages: &mut PageTable, p: u32, now: u64) {
        self.push_head(pages, MW, p);
        self.times.pushed(p, now);
    }

    /// Since when the oldest of them is there, at the latest.
    pub(super) fn oldest_kept(&self) -> Option<u64> {
        self.times.oldest()
    }

    pub(super) fn push_tail(&mut self, pages: &mut PageTable, list: usize, p: u32) {
        debug_assert!(!pages.is(p, LRU | PCP));
        let tail = self.lists[list].tail;
        pages.set_next(p, NIL);
        pages.set_prev(p, tail);
        if tail == NIL {
            self.lists[list].head = p;
        } else {
            pages.set_next(tail, p);
        }
        self.lists[list].tail = p;
        self.lists[list].len += 1;
        pages.set(p, LRU);
        pages.set_list(p, list);
    }

    /// Take the page off its list, or out of the batch.
    pub(super) fn remove(&mut self, pages: &mut PageTable, p: u32) {
        if pages.is(p, PCP) {
            let held = |cpu: &usize| self.add[*cpu][..self.add_len[*cpu]].contains(&p);
            let cpu = (0..CPUS_MAX).find(held).expect("PCP: the page is in a batch");
            let batch = &mut self.add[cpu];
            let at = batch.iter().position(|&q| q == p).expect("it was found");
            batch.copy_within(at + 1..self.add_len[cpu], at);
            self.add_len[cpu] -= 1;
            pages.clear(p, PCP);
            return;
        }
        if pages.take(p, ROTATE) {
            let at =
                self.rotate[..self.rotate_len].iter().position(|&q| q == p).expect("ROTATE: the page is in the batch");
            self.rotate.copy_within(at + 1..self.rotate_len, at);
            self.rotate_len -= 1;
        }
        self.unlink(pages, p);
    }

    fn unlink(&mut self, pages: &mut PageTable, p: u32) {
        debug_assert!(pages.is(p, LRU), "page {p} is on no list");
        let list = pages.list(p);
        if list == MW {
            self.times.leaves(pages, p);
        }
        let (prev, next) = (pages.prev(p), pages.next(p));
        if prev == NIL {
            self.lists[list].head = next;
        } else {
            pages.set_next(prev, next);
        }
        if next == NIL {
            self.lists[list].tail = prev;
        } else {
            pages.set_prev(next, prev);
        }
        self.lists[list].len -= 1;
        pages.clear(p, LRU);
    }

    /// A page that just got a frame: to the list its flags name, through the batch if there is one.
    pub(super) fn add(&mut self, pages: &mut PageTable, p: u32) {
        if self.batch == 0 {
            let list = Self::list_of(pages, p);
            self.push_head(pages, list, p);
            return;
        }
        pages.set(p, PCP);
        let len = &mut self.add_len[self.cpu];
        self.add[self.cpu][*len] = p;
        *len += 1;
        if *len >= self.batch {
            self.drain_add(pages, self.cpu);
        }
    }

    /// Move to the head of the list its flags name. What waits on another CPU to go to the tail waits on.
    pub(super) fn putback(&mut self, pages: &mut PageTable, p: u32) {
        if self.ends_elsewhere && pages.is(p, ROTATE) {
            self.unlink(pages, p);
        } else {
            self.remove(pages, p);
        }
        let list = Self::list_of(pages, p);
        self.push_head(pages, list, p);
    }

    /// Queue the move to the tail of the inactive list. Returns how many were moved by a drain.
    pub(super) fn rotate(&mut self, pages: &mut PageTable, p: u32) -> u32 {
        if self.batch == 0 {
            self.move_tail(pages, p);
            return 1;
        }
        if pages.is(p, PCP | ROTATE) {
            return 0;
        }
        pages.set(p, ROTATE);
        self.rotate[self.rotate_len] = p;
        self.rotate_len += 1;
        if self.rotate_len >= self.batch { self.drain_rotate(pages) } else { 0 }
    }

    fn move_tail(&mut self, pages: &mut PageTable, p: u32) {
        self.remove(pages, p);
        pages.clear(p, ACTIVE);
        let list = Self::list_of(pages, p);
        self.push_tail(pages, list, p);
    }

    fn drain_add(&mut self, pages: &mut PageTable, cpu: usize) {
        for at in 0..self.add_len[cpu] {
            let p = self.add[cpu][at];
            pages.clear(p, PCP);
            let list = Self::list_of(pages, p);
            self.push_head(pages, list, p);
        }
        self.add_len[cpu] = 0;
    }

    pub(super) fn drain_rotate(&mut self, pages: &mut PageTable) -> u32 {
        let batch = self.rotate;
        let len = self.rotate_len;
        self.rotate_len = 0;
        for &p in &batch[..len] {
            pages.clear(p, ROTATE);
            self.move_tail(pages, p);
        }
        u32::try_from(len).expect("at most 31")
    }

    /// Empty the batches of this CPU (the kernel's `lru_add_drain`). Returns how many pages were rotated.
    pub(super) fn drain(&mut self, pages: &mut PageTable) -> u32 {
        self.drain_add(pages, self.cpu);
        if self.ends_elsewhere { 0 } else { self.drain_rotate(pages) }
    }

    /// The same with the new pages of all CPUs.
    pub(super) fn drain_all(&mut self, pages: &mut PageTable) -> u32 {
        for cpu in 0..CPUS_MAX {
            self.drain_add(pages, cpu);
        }
        self.drain(pages)
    }

    /// The pages of a list, head first.
    pub(super) fn iter<'a>(&'a self, pages: &'a PageTable, list: usize) -> impl Iterator<Item = u32> + 'a {
        let mut at = self.lists[list].head;
        core::iter::from_fn(move || {
            let p = at;
            if p == NIL {
                return None;
            }
            at = pages.next(p);
            Some(p)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::VecDeque;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const PAGES: u32 = 12;

    /// The lists as anyone would write them: head first.
    #[derive(Default)]
    struct Twin {
        lists: [VecDeque<u32>; 6],
        batch: Vec<u32>,
    }

    impl Twin {
        fn remove(&mut self, p: u32) {
            self.batch.retain(|&q| q != p);
            self.lists.iter_mut().for_each(|list| list.retain(|&q| q != p));
        }

        fn drain(&mut self, pages: &PageTable) {
            for p in core::mem::take(&mut self.batch) {
                self.lists[Lru::list_of(pages, p)].push_front(p);
            }
        }
    }

    #[test]
    fn what_waits_for_another_cpu_keeps_waiting_wherever_it_is_put() {
        let (mut pages, mut lru) = (PageTable::new(PAGES), Lru::new(3, 1, true));
        (0..6).for_each(|p| lru.add(&mut pages, p));
        assert_eq!(lru.rotate(&mut pages, 5) + lru.rotate(&mut pages, 4), 0);
        assert_eq!(lru.drain(&mut pages), 0, "it is not this CPU's batch");
        lru.putback(&mut pages, 4);
        assert!(lru.iter(&pages, IA).eq([4, 5, 3, 2, 1, 0]));
        assert_eq!(lru.rotate(&mut pages, 3), 3, "full");
        assert!(lru.iter(&pages, IA).eq([2, 1, 0, 5, 4, 3]));
    }

    proptest! {
        #[test]
        fn lists_are_what_naive_lists_are(
            batch in 0..5usize,
            steps in proptest::collection::vec((0..6u32, 0..PAGES, 0..4u32), 0..200),
        ) {
            let mut pages = PageTable::new(PAGES);
            let (mut lru, mut twin) = (Lru::new(batch, 1, false), Twin::default());
            for (kind, p, flags) in steps {
                let on = pages.is(p, LRU | PCP);
                match kind {
                    0 | 1 if !on => {
                        pages.clear(p, ACTIVE | FILE);
                        pages.set(p, if flags & 1 != 0 { ACTIVE } else { 0 } | if flags & 2 != 0 { FILE } else { 0 });
                        lru.add(&mut pages, p);
                        twin.batch.push(p);
                        if twin.batch.len() >= batch {
                            twin.drain(&pages);
                        }
                    }
                    2 if on => {
                        lru.remove(&mut pages, p);
                        twin.remove(p);
                    }
                    3 if on && batch == 0 => {
                        pages.clear(p, ACTIVE);
                        pages.set(p, if flags & 1 != 0 { ACTIVE } else { 0 });
                        lru.putback(&mut pages, p);
                        twin.remove(p);
                        twin.lists[Lru::list_of(&pages, p)].push_front(p);
                    }
                    4 if on && batch == 0 => {
                        lru.rotate(&mut pages, p);
                        twin.remove(p);
                        twin.lists[Lru::list_of(&pages, p)].push_back(p);
                    }
                    5 => {
                        lru.drain(&mut pages);
                        twin.drain(&pages);
                    }
                    _ => {}
                }
                for list in 0..6 {
                    let ours: Vec<u32> = lru.iter(&pages, list).collect();
                    prop_assert!(ours.iter().eq(twin.lists[list].iter()), "list {list}: {ours:?}, {:?}", twin.lists[list]);
                    prop_assert_eq!(ours.len(), lru.len(list) as usize);
                }
            }
        }
    }
}
