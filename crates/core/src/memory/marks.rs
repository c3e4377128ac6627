//! What is noted of a page without a change of its state: uses, places on lists, marks of readahead and of those who wait.

use super::Memory;
use super::lru::{Lru, UN};
use super::page::{
    ACTIVE, BUSY, DIRTY, Flags, JOB_WAIT, LRU, MAPPED, MARKER, PCP, READAHEAD, RECLAIM, REFERENCED, UNEVICTABLE,
    WAITED, WORKINGSET, WRITABLE, YOUNG,
};
use super::tally::Tallied;
use crate::types::Access;

impl Memory {
    /// An access of the program: sets the young and dirty bits that the host can see, if the page is mapped. No list is touched.
    /// False: it is not mapped.
    #[inline]
    pub(crate) fn touch(&mut self, p: u32, access: Access) -> bool {
        let word = self.table.word_mut(p);
        if *word & MAPPED == 0 {
            return false;
        }
        let bits = match access {
            Access::Read => YOUNG,
            Access::Write => YOUNG | DIRTY,
        } & self.seen_bits;
        // Mostly they are set: the line of the host's cache stays clean.
        if *word & bits != bits {
            *word |= bits;
        }
        true
    }

    /// A fault used the page.
    #[inline]
    pub(crate) fn mark_used(&mut self, p: u32, access: Access) {
        self.table.set(p, if access == Access::Write { YOUNG | DIRTY } else { YOUNG });
    }

    /// The host saw that it was used, if it is mapped.
    #[inline]
    pub(crate) fn mark_seen(&mut self, p: u32) {
        if self.table.is(p, MAPPED) {
            self.table.set(p, YOUNG);
        }
    }

    /// The program may write it.
    #[inline]
    pub(crate) fn mark_writable(&mut self, p: u32) {
        self.table.set(p, WRITABLE);
    }

    /// No slot or file holds what it holds.
    #[inline]
    pub(crate) fn mark_dirty(&mut self, p: u32) {
        self.table.set(p, DIRTY);
    }

    /// Its slot holds what it holds.
    #[inline]
    pub(crate) fn mark_clean(&mut self, p: u32) {
        self.table.clear(p, DIRTY);
    }

    /// A use before now is of no account any more. What was known: used, and used before.
    #[inline]
    pub(crate) fn age(&mut self, p: u32) -> Flags {
        let was = self.at(p);
        self.table.clear(p, YOUNG | REFERENCED);
        was
    }

    /// True if it is mapped and was used since the last look.
    #[inline]
    pub(crate) fn take_young(&mut self, p: u32) -> bool {
        self.table.is(p, MAPPED) && self.table.take(p, YOUNG)
    }

    /// A use of an unmapped page does not count.
    #[inline]
    pub(crate) fn clear_young(&mut self, p: u32) {
        self.table.clear(p, YOUNG);
    }

    #[inline]
    pub(crate) fn mark_referenced(&mut self, p: u32) {
        self.table.set(p, REFERENCED);
    }

    #[inline]
    pub(crate) fn mark_workingset(&mut self, p: u32) {
        self.table.set(p, WORKINGSET);
    }

    /// The list on which it starts is the active one.
    #[inline]
    pub(crate) fn start_active(&mut self, p: u32) {
        self.table.set(p, ACTIVE);
    }

    // Lists.

    /// A page enters its list for the first time.
    #[inline]
    pub(crate) fn add_to_list(&mut self, p: u32) {
        self.lru.add(&mut self.table, p);
    }

    /// To the head of its list.
    #[inline]
    pub(crate) fn putback(&mut self, p: u32) {
        self.lru.putback(&mut self.table, p);
    }

    /// To the head of the active list.
    #[inline]
    pub(crate) fn activate(&mut self, p: u32) {
        self.table.set(p, ACTIVE);
        self.lru.putback(&mut self.table, p);
    }

    /// To the head of the inactive list.
    #[inline]
    pub(crate) fn deactivate(&mut self, p: u32) {
        self.lru.remove(&mut self.table, p);
        self.table.clear(p, ACTIVE);
        self.table.set(p, WORKINGSET);
        let list = Lru::list_of(&self.table, p);
        self.lru.push_head(&mut self.table, list, p);
    }

    /// Used a second time by a call: to the active list, at once if it is on a list. True if it was.
    #[inline]
    pub(crate) fn promote(&mut self, p: u32) -> bool {
        self.table.clear(p, REFERENCED);
        self.table.set(p, ACTIVE);
        let is_listed = self.table.is(p, LRU) && !self.table.is(p, PCP);
        if is_listed {
            self.lru.putback(&mut self.table, p);
        }
        is_listed
    }

    /// To the unevictable list.
    #[inline]
    pub(crate) fn cull(&mut self, p: u32) {
        self.lru.remove(&mut self.table, p);
        self.lru.push_head(&mut self.table, UN, p);
    }

    /// Queue the move to the tail of the inactive list. How many were moved by a drain.
    #[inline]
    pub(crate) fn rotate(&mut self, p: u32) -> u32 {
        self.lru.rotate(&mut self.table, p)
    }

    /// To the tail of the inactive list: the next to go.
    #[inline]
    pub(crate) fn move_to_tail(&mut self, p: u32) {
        self.lru.remove(&mut self.table, p);
        self.table.clear(p, ACTIVE);
        let list = Lru::list_of(&self.table, p);
        self.lru.push_tail(&mut self.table, list, p);
    }

    /// The same, and what is known of its use is forgotten.
    #[inline]
    pub(crate) fn make_cold(&mut self, p: u32) {
        self.lru.remove(&mut self.table, p);
        self.table.clear(p, ACTIVE | YOUNG | REFERENCED);
        let list = Lru::list_of(&self.table, p);
        self.lru.push_tail(&mut self.table, list, p);
    }

    /// The program has locked it.
    #[inline]
    pub(crate) fn lock(&mut self, p: u32) {
        self.table.set(p, UNEVICTABLE);
    }

    /// It may be reclaimed again. True if it left the unevictable list for that.
    #[inline]
    pub(crate) fn unlock(&mut self, p: u32) -> bool {
        let rescued = self.table.take(p, UNEVICTABLE) && self.table.is(p, LRU) && self.table.list(p) == UN;
        if rescued {
            self.lru.putback(&mut self.table, p);
        }
        rescued
    }

    /// Its region is gone, and the lock with it.
    #[inline]
    pub(crate) fn forget_lock(&mut self, p: u32) {
        self.table.clear(p, UNEVICTABLE);
    }

    /// Pages that could not be moved some time ago may be looked at again: at most so many now. How many were given free, and false if there
    /// are more.
    pub(crate) fn end_busy(&mut self, most: u32) -> (u32, bool) {
        let mut p = self.lru.tail(UN);
        let (mut looks, mut rescued) = (0, 0);
        while p != super::page::NIL && looks < most {
            let prev = self.table.prev(p);
            if self.table.take(p, BUSY) && !self.table.is(p, UNEVICTABLE) {
                self.lru.putback(&mut self.table, p);
                rescued += 1;
            }
            p = prev;
            looks += 1;
        }
        (rescued, p == super::page::NIL)
    }

    // Readahead.

    /// It was read before anybody asked for it.
    #[inline]
    pub(crate) fn mark_readahead(&mut self, p: u32) {
        self.table.set(p, READAHEAD);
    }

    #[inline]
    pub(crate) fn take_readahead(&mut self, p: u32) -> bool {
        self.table.take(p, READAHEAD)
    }

    /// It goes. If it was read before anybody asked for it, nobody has.
    #[inline]
    pub(crate) fn goes_unasked(&mut self, p: u32) {
        if self.table.take(p, READAHEAD) {
            self.around.note(p, false);
            self.count_at(p, Tallied::ReadAheadUnused, 1);
        }
    }

    /// The same where that mark and that of a page to be freed after its write are one bit.
    #[inline]
    pub(crate) fn take_shared_readahead(&mut self, p: u32) -> bool {
        self.table.take(p, READAHEAD | RECLAIM)
    }

    /// Its touch starts the next window of its stream.
    #[inline]
    pub(crate) fn mark_marker(&mut self, p: u32) {
        self.table.set(p, MARKER);
    }

    #[inline]
    pub(crate) fn take_marker(&mut self, p: u32) -> bool {
        self.table.take(p, MARKER)
    }

    /// To be moved to the tail, or freed, when its write ends.
    #[inline]
    pub(crate) fn mark_reclaim(&mut self, p: u32) {
        self.table.set(p, RECLAIM);
    }

    #[inline]
    pub(crate) fn clear_reclaim(&mut self, p: u32) {
        self.table.clear(p, RECLAIM);
    }

    // Those who wait.

    /// Faults wait for the flight to end.
    #[inline]
    pub(crate) fn mark_waited(&mut self, p: u32) {
        self.table.set(p, WAITED);
    }

    #[inline]
    pub(crate) fn take_waited(&mut self, p: u32) -> bool {
        self.table.take(p, WAITED)
    }

    /// A job waits for the flight to end.
    #[inline]
    pub(crate) fn mark_job_waited(&mut self, p: u32) {
        self.table.set(p, JOB_WAIT);
    }
}
