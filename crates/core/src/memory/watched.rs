//! The places of pages under the policy of `reclaim::watch`: on probation or kept, and of each some that are watched.

use super::Memory;
use super::lru::{AA, IA, MW, PW};
use super::page::{ACTIVE, LRU, REFERENCED, WORKINGSET};

/// Pages that are out of the page table to see whether they are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Watched {
    /// Of those that have come in lately.
    OnProbation,
    /// Of those that are kept.
    Kept,
}

impl Memory {
    /// Among which watched pages it is.
    pub(crate) fn watched(&self, p: u32) -> Option<Watched> {
        if !self.table.is(p, LRU) {
            return None;
        }
        match self.table.list(p) {
            PW => Some(Watched::OnProbation),
            MW => Some(Watched::Kept),
            _ => None,
        }
    }

    /// To the newest of the kept pages.
    pub(crate) fn keep(&mut self, p: u32) {
        self.lru.remove(&mut self.table, p);
        self.table.set(p, ACTIVE);
        self.lru.push_head(&mut self.table, AA, p);
    }

    /// To the newest of the pages on probation.
    pub(crate) fn put_on_probation(&mut self, p: u32) {
        self.lru.remove(&mut self.table, p);
        self.table.clear(p, ACTIVE);
        self.lru.push_head(&mut self.table, IA, p);
    }

    /// To the newest of the watched pages on probation. (One that was kept keeps that mark.)
    pub(crate) fn watch_on_probation(&mut self, p: u32) {
        self.lru.remove(&mut self.table, p);
        self.lru.push_head(&mut self.table, PW, p);
    }

    /// To the newest of the watched kept pages, at this time of the policy's clock.
    pub(crate) fn watch_kept(&mut self, p: u32, now: u64) {
        self.lru.remove(&mut self.table, p);
        self.lru.push_kept(&mut self.table, p, now);
    }

    /// Since when the oldest watched kept page is watched, at the latest.
    pub(crate) fn oldest_kept(&self) -> Option<u64> {
        self.lru.oldest_kept()
    }

    /// How often a kept page is passed over. (The two marks mean nothing else under this policy.)
    pub(crate) fn level(&self, p: u32) -> u32 {
        u32::from(self.table.is(p, REFERENCED)) + 2 * u32::from(self.table.is(p, WORKINGSET))
    }

    /// From 0 to 3.
    pub(crate) fn set_level(&mut self, p: u32, level: u32) {
        self.table.clear(p, REFERENCED | WORKINGSET);
        let low = if level & 1 != 0 { REFERENCED } else { 0 };
        let high = if level & 2 != 0 { WORKINGSET } else { 0 };
        self.table.set(p, low | high);
    }
}
