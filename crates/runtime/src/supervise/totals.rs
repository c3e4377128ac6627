//! What the processes of a run have counted together.

use std::sync::atomic::Ordering;

use pagetide_core::absences::{self, Absences};

use crate::control::{COUNTERS_MAX, Entry, LATENCY_BUCKETS, machine_counter};
use crate::space::Why;
use crate::space::unpaged::UNPAGED;

/// What ended processes counted.
#[derive(Clone, Debug)]
pub(super) struct Totals {
    pub(super) counters: [u64; COUNTERS_MAX],
    pub(super) latency: [u64; LATENCY_BUCKETS],
    pub(super) returns: [u64; absences::BUCKETS],
    pub(super) prices: [u64; absences::BUCKETS],
    pub(super) metadata_pages_max: u64,
    pub(super) managed_pages_max: u64,
    pub(super) unpaged_pages_max: [u64; UNPAGED.len()],
    pub(super) processes: u32,
    pub(super) managed_processes: u32,
}

impl Totals {
    pub(super) const fn new() -> Self {
        Self {
            counters: [0; COUNTERS_MAX],
            latency: [0; LATENCY_BUCKETS],
            returns: [0; absences::BUCKETS],
            prices: [0; absences::BUCKETS],
            metadata_pages_max: 0,
            managed_pages_max: 0,
            unpaged_pages_max: [0; UNPAGED.len()],
            processes: 0,
            managed_processes: 0,
        }
    }

    /// How long pages stayed away that came back.
    pub(super) fn absences(&self) -> Absences {
        let away = machine_counter("pt_away_pages_max").map_or(0, |index| self.counters[index]);
        Absences::of(self.returns, self.prices, away)
    }

    /// A process has so many pages of shared memory.
    pub(super) fn note_shared(&mut self, pages: u64) {
        if let Some(reason) = Why::Shared.unpaged() {
            self.unpaged_pages_max[reason] = self.unpaged_pages_max[reason].max(pages);
        }
    }

    /// Add what a process counted. The words may be forged: numbers, and no more.
    pub(super) fn add(&mut self, entry: &Entry) {
        let relaxed = Ordering::Relaxed;
        for (total, word) in self.counters.iter_mut().zip(&entry.counters) {
            *total = total.saturating_add(word.load(relaxed));
        }
        for (total, word) in self.latency.iter_mut().zip(&entry.latency) {
            *total = total.saturating_add(word.load(relaxed));
        }
        for (totals, words) in [(&mut self.returns, &entry.returns), (&mut self.prices, &entry.prices)] {
            for (total, word) in totals.iter_mut().zip(words) {
                *total = total.saturating_add(word.load(relaxed));
            }
        }
        self.metadata_pages_max = self.metadata_pages_max.max(entry.metadata_pages_max.load(relaxed));
        self.managed_pages_max = self.managed_pages_max.max(entry.managed_pages_max.load(relaxed));
        for (most, word) in self.unpaged_pages_max.iter_mut().zip(&entry.unpaged_pages_max) {
            *most = (*most).max(word.load(relaxed));
        }
        self.managed_processes += u32::from(entry.is_managed());
    }
}
