//! Refault distance: did a page that comes back miss memory by so little that it belongs to the working set?
//!
//! ```text
//!   clock (nonresident age):  +1 for every eviction and every activation
//!   eviction stores the clock in the shadow entry;  refault distance = clock now - clock then
//!
//!   inactive list                      gone                      back
//!   |<----- in memory, unseen ----->|<------ distance ------>|
//!                                   E                         R
//! ```
//!
//! Had the inactive list been `distance` longer, at the cost of the active lists, the page would still be here. So it is
//! activated if `distance <=` what the others could give: for an anonymous page all file pages and the active anonymous
//! ones (if swap is there), for a file page the active file pages and all anonymous ones (if swap is there).

use super::Reclaim;
use super::references::References;
use crate::absences::STAMP_BITS;
use crate::config::Balance;
use crate::memory::Memory;
use crate::memory::lru::{AA, AF, IA, IF};
use crate::memory::tally::Tallied;
use crate::swap::Space;
use crate::vmstat::Counter;

/// Bits of the clock that fit in a shadow entry of the kernel.
const AGE_MASK: u64 = (1 << 36) - 1;
/// What decisions see of a shadow entry. Above it stands when the page left, for those who ask what more memory would have saved.
const JUDGED_BITS: u32 = 64 - STAMP_BITS;
const JUDGED: u64 = (1 << JUDGED_BITS) - 1;
const _: () = assert!((AGE_MASK << 1) & !JUDGED == 0);

impl Reclaim {
    /// The shadow entry of a page that is reclaimed now, if this kind of page leaves one.
    pub(super) fn evict_shadow(&mut self, space: &Space, p: u32) -> Option<u64> {
        let judged = self.judged_shadow(&space.mem, p)?;
        if space.mem.at(p).is_file() {
            return Some(judged);
        }
        let left = self.absences.note_leave(space.mem.counts().away() + 1);
        Some(judged | (left << JUDGED_BITS))
    }

    /// The part that decisions see.
    fn judged_shadow(&mut self, mem: &Memory, p: u32) -> Option<u64> {
        if self.references == References::Watched {
            return Some(self.last_use(mem, p) & JUDGED);
        }
        let page = mem.at(p);
        let kept = if page.is_file() { self.cfg.file_shadows } else { self.cfg.anon_shadows };
        let shadow = ((self.age & AGE_MASK) << 1) | u64::from(page.is_workingset());
        self.age += 1;
        kept.then_some(shadow)
    }

    /// The page gets a frame again: judge it by its shadow entry. May make it active; before the page is put on a list.
    /// `demand`: a task waits for it.
    pub(crate) fn refault(&mut self, space: &mut Space, p: u32, shadow: u64, demand: bool) {
        if !space.mem.at(p).is_file() {
            self.absences.note_return(shadow >> JUDGED_BITS);
        }
        let shadow = shadow & JUDGED;
        if self.references == References::Watched {
            self.came_back(&mut space.mem, p, shadow, demand);
            return;
        }
        let file = space.mem.at(p).is_file();
        let kind = usize::from(file);
        if file {
            space.mem.count(Counter::workingset_refault_file, 1);
        } else {
            space.mem.count_at(p, Tallied::Refault, 1);
        }
        let distance = self.age.wrapping_sub(shadow >> 1) & AGE_MASK;
        let sizes = self.policy_sizes(&space.mem);
        let swap = space.slots.free() > 0;
        let only_active = self.cfg.refault_active_file && self.cfg.balance != Balance::LruCost2016;
        let size = if file && only_active {
            sizes[AF]
        } else if file {
            sizes[AF] + if swap { sizes[AA] + sizes[IA] } else { 0 }
        } else {
            sizes[AF] + sizes[IF] + if swap { sizes[AA] } else { 0 }
        };
        if distance > u64::from(size) {
            return;
        }
        space.mem.start_active(p);
        self.age += 1;
        self.ws_activate[kind] += 1;
        space.mem.count([Counter::workingset_activate_anon, Counter::workingset_activate_file][kind], 1);
        if self.cfg.balance == Balance::LruCost2016 {
            // The posted series marks what it puts on an active list.
            space.mem.mark_workingset(p);
        }
        if shadow & 1 != 0 {
            space.mem.mark_workingset(p);
            self.note_cost(&space.mem, kind, 1, 0);
            space.mem.count([Counter::workingset_restore_anon, Counter::workingset_restore_file][kind], 1);
        }
    }

    /// A call has used a page twice: it moved to the active list, which is an event of the nonresident clock.
    pub(crate) const fn note_promoted(&mut self) {
        self.age += 1;
    }
}
