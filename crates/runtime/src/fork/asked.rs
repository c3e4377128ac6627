//! What forked children ask for of the pages that they have from here.
//!
//! Where the kernel pages, a page that a family shares stays as long as one of it uses it. Here every process has pages of its own, and does not
//! see what its children use: what each of them touches first and their maker never does (tables that an interpreter goes through after a
//! fork) each of them had to read from the disk. So a child notes what it asks for first in memory that it has from its maker, who brings it in
//! at its next fork, as if it had been used there: the next child finds it present.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::control::Entry;

/// Pages that are noted until they are brought in, and by one child.
const ASKED_MAX: usize = 512;

/// A list that children append to. They may write anything: it names pages to be read, no more.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Asked {
    count: AtomicU32,
    /// Numbers of pages in the address space, plus 1.
    vpns: [AtomicU64; ASKED_MAX],
}

/// The list of this process, or, in a child that has no agent yet, of its maker; 0: there is none.
static LIST: AtomicUsize = AtomicUsize::new(0);

/// Children append to the list of this process from now on.
pub(super) fn publish(entry: &Entry) {
    LIST.store(std::ptr::from_ref(&entry.asked).expose_provenance(), Ordering::Release);
}

/// In a forked child that has no agent yet: the list of its maker, whose mapping it has inherited.
pub(super) fn of_maker() -> Option<Notes> {
    let list = std::ptr::with_exposed_provenance::<Asked>(LIST.load(Ordering::Acquire));
    // SAFETY: the mapping was shared with this process by the fork, and nothing of ours unmaps it; it holds plain atomic words.
    unsafe { list.as_ref() }.map(|list| Notes { list, left: ASKED_MAX })
}

impl Asked {
    /// Each page that was asked for since the last time.
    pub(crate) fn take(&self, mut each: impl FnMut(u64)) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let count = self.count.swap(0, Ordering::Acquire) as usize;
        for vpn in &self.vpns[..count.min(ASKED_MAX)] {
            // One that is being noted is lost: the next child asks again.
            if let Some(vpn) = vpn.swap(0, Ordering::Relaxed).checked_sub(1) {
                each(vpn);
            }
        }
    }
}

/// What a child may still note.
#[derive(Debug)]
pub(crate) struct Notes {
    list: &'static Asked,
    left: usize,
}

impl Notes {
    /// This page was asked for. False: no more is noted.
    pub(crate) fn note(&mut self, vpn: u64) -> bool {
        let at = self.list.count.fetch_add(1, Ordering::AcqRel) as usize;
        if let Some(place) = self.list.vpns.get(at) {
            place.store(vpn + 1, Ordering::Release);
        }
        self.left -= 1;
        self.left > 0 && at < ASKED_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_children_ask_for_is_taken_once_and_a_full_list_ends_the_notes() {
        let list: &Asked =
            Box::leak(Box::new(Asked { count: AtomicU32::new(0), vpns: [const { AtomicU64::new(0) }; ASKED_MAX] }));
        let taken = || {
            let mut vpns = Vec::new();
            list.take(|vpn| vpns.push(vpn));
            vpns
        };
        let mut notes = Notes { list, left: ASKED_MAX };
        assert!(notes.note(0) && notes.note(7));
        assert_eq!((taken(), taken()), (vec![0, 7], vec![]));
        let mut other = Notes { list, left: ASKED_MAX };
        assert!((0..510).all(|vpn| other.note(vpn)) && notes.note(1) && notes.note(2) && !notes.note(3), "it is full");
        assert_eq!(taken().len(), ASKED_MAX);
        assert!(other.note(1) && !other.note(2), "one child notes no more");
    }
}
