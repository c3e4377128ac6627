//! When the pages of a list were put there: the times of a few of them, oldest first.
//!
//! A page's word has no room for a time. So of the pages pushed at the head of the list every so many is noted with the time; when
//! one leaves the list, its older neighbour stands in for it. The first mark therefore never says that the oldest page has been
//! there for longer than it has.

use crate::memory::page::{NIL, PageTable};

/// Marks at most.
const MARKS: usize = 64;

#[derive(Debug)]
pub(super) struct Times {
    at: [(u32, u64); MARKS],
    len: usize,
    /// Pages for each mark, and pushed since the last one.
    stride: u32,
    since: u32,
}

impl Times {
    /// For a list of at most about so many pages.
    pub(super) const fn new(pages: u32) -> Self {
        let stride = pages / 32;
        Self { at: [(NIL, 0); MARKS], len: 0, stride: if stride == 0 { 1 } else { stride }, since: 0 }
    }

    pub(super) fn pushed(&mut self, p: u32, now: u64) {
        self.since += 1;
        if self.since >= self.stride && self.len < MARKS {
            self.since = 0;
            self.at[self.len] = (p, now);
            self.len += 1;
        }
    }

    /// The page is about to leave the list.
    pub(super) fn leaves(&mut self, pages: &PageTable, p: u32) {
        let Some(at) = self.at[..self.len].iter().position(|mark| mark.0 == p) else { return };
        let older = pages.next(p);
        if older == NIL || at > 0 && self.at[at - 1].0 == older {
            self.at.copy_within(at + 1..self.len, at);
            self.len -= 1;
        } else {
            self.at[at].0 = older;
        }
    }

    /// Since when the oldest page is there, at the latest.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.at[..self.len].first().map(|mark| mark.1)
    }
}
