//! A look through the kernel's list of mappings, whole or piece by piece.

use pagetide_core::types::Nanos;
use pagetide_sys::clock;
use pagetide_sys::maps::MapsWalk;

use super::{Agent, die};
use crate::limits;
use crate::pager::Pager;

/// Mappings looked at between two looks at the clock.
const LOOKED_AT_ONCE: u32 = 64;

impl Agent {
    /// Look through all mappings, and take what is wanted of them under management.
    pub(crate) fn adopt(&mut self, pager: &mut Pager, now: Nanos) {
        self.look_at_mappings(pager, now, None);
    }

    /// The same until a time, from where the last call stopped: true at the end of the list.
    pub(super) fn look_at_mappings(&mut self, pager: &mut Pager, now: Nanos, until: Option<Nanos>) -> bool {
        let files = limits::for_files();
        let mut walk = match MapsWalk::open(&mut self.maps_buffer) {
            Ok(walk) => walk,
            Err(errno) => die(&self.supervisor, format_args!("/proc/self/maps cannot be read: {}", errno.name())),
        };
        // A text that begins anew each time would never be read to its end piece by piece.
        let until = until.filter(|_| walk.can_skip());
        let goes_on_at = pager.look_at().filter(|_| until.is_some());
        match goes_on_at.and_then(|address| usize::try_from(address).ok()) {
            Some(address) => walk.skip_to(address),
            None => pager.begin_look(),
        }
        let mut seen = 0_u32;
        while let Ok(Some(vma)) = walk.next_vma() {
            pager.adopt_vma(now, &vma);
            seen += 1;
            if seen.is_multiple_of(LOOKED_AT_ONCE) && until.is_some_and(|until| clock::now() >= until) {
                return false;
            }
        }
        drop((walk, files));
        pager.end_look();
        self.tell_of_native(pager);
        true
    }
}
