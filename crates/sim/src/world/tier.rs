//! The compressed tier of a blind host, in virtual time.
//!
//! What the live tier does (`runtime/src/tier.rs`) as far as it decides anything: a page that leaves is compressed into memory that is
//! taken from the budget, its oldest pages move on to the disk, and `core::tier` says how much memory that is, by prices that are measured
//! here as they are there. Contents stay in the oracle's slots; only times, counts and the budget differ. Every page takes the
//! same memory, which is the workload's parameter; there are no size classes, and no page waits for a write.

use std::collections::VecDeque;

use pagetide_core::Event;
use pagetide_core::config::Compress;
use pagetide_core::event::FILE_DEVICE_FIRST;
use pagetide_core::tier::{
    CORE_PAGES_MIN, GRANT_PAGES, PARTS, PRICES, Packing, Prices, RUN_PAGES, Resident, SAMPLE, SWEEP, TierShare,
};
use pagetide_core::types::{DeviceId, Nanos, PageIdx, PageRange, SlotIdx};

use super::World;
use crate::units::PAGE_BYTES;

/// What a page that comes in costs beside its fault: another has to be taken out.
const TURNOVER_NS: Nanos = 5_000;

/// What compressing costs, and gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TierCosts {
    /// CPU time to compress a page.
    pub pack_ns: Nanos,
    /// CPU time to decompress one.
    pub unpack_ns: Nanos,
    /// Bytes that a page takes; at a page or more, nothing is held.
    pub page_bytes: u32,
    /// How they are compressed, and when that begins.
    pub how: Compress,
}

impl TierCosts {
    /// Of pages that take so many bytes. None: they are not compressed.
    pub const fn of(how: Compress, page_bytes: u32) -> Option<Self> {
        let (pack_ns, unpack_ns) = match how {
            Compress::Off => return None,
            Compress::Auto | Compress::Lz4 => (5_000, 1_500),
            Compress::Zstd => (13_000, 6_000),
        };
        Some(Self { pack_ns, unpack_ns, page_bytes, how })
    }
}

/// Counters, with the kernel's names and meanings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierCounts {
    /// Pages read from the tier.
    pub zswpin: u64,
    /// Pages taken in.
    pub zswpout: u64,
    /// Pages written to the disk from it.
    pub zswpwb: u64,
}

/// What is known of a slot's page.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// When it left; 0: it is in memory, or was never there.
    stamp: u32,
    is_held: bool,
    /// The disk does not have it.
    is_dirty: bool,
    /// Nobody has it: it was dropped when the program got it.
    is_lost: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Measured {
    disk_pages: u64,
    disk_faults: u64,
    disk_wait_ns: u64,
    tier_pages: u64,
    tier_faults: u64,
}

/// The tier.
#[derive(Debug)]
pub(super) struct SimTier {
    costs: TierCosts,
    counts: TierCounts,
    share: TierShare,
    prices: Prices,
    measured: Measured,
    /// Of the whole run, the tier's part included.
    budget: u32,
    granted: u32,
    target: u32,
    /// Pages that have left.
    left: u32,
    held: u32,
    places: Vec<Vec<Place>>,
    /// Oldest first; what is not held with this stamp any more is passed over.
    queue: VecDeque<(DeviceId, SlotIdx, u32)>,
    swept: usize,
}

impl SimTier {
    fn new(costs: TierCosts, budget: u32) -> Self {
        Self {
            costs,
            counts: TierCounts::default(),
            share: TierShare::new(costs.how),
            prices: PRICES,
            measured: Measured::default(),
            budget,
            granted: 0,
            target: 0,
            left: 0,
            held: 0,
            places: Vec::new(),
            queue: VecDeque::new(),
            swept: 0,
        }
    }

    fn place(&mut self, device: DeviceId, slot: SlotIdx) -> &mut Place {
        &mut self.places[device.0 as usize][slot.0 as usize]
    }

    fn leaves(&mut self) {
        self.left = self.left.wrapping_add(1).max(1);
        self.share.note_leave();
    }

    /// Without memory, and where hardly anything compresses, only a sample is compressed.
    fn is_worth_a_try(&self) -> bool {
        self.target > 0 && u64::from(self.costs.page_bytes) < PAGE_BYTES || self.left.is_multiple_of(SAMPLE)
    }

    /// So many pages fit, with what is held.
    fn fits(&self, pages: u32) -> bool {
        let bytes = u64::from(self.held + pages) * u64::from(self.costs.page_bytes);
        self.target > 0 && bytes <= u64::from(self.granted) * PAGE_BYTES
    }

    fn hold(&mut self, device: DeviceId, slot: SlotIdx, is_dirty: bool) {
        let stamp = self.left;
        let place = self.place(device, slot);
        let is_new = !place.is_held;
        *place = Place { stamp, is_held: true, is_dirty, is_lost: false };
        self.held += u32::from(is_new);
        self.queue.push_back((device, slot, stamp));
        self.counts.zswpout += 1;
    }

    /// Hold the slot's page no longer. True if the disk is to get it first, or it is lost.
    fn release(&mut self, device: DeviceId, slot: SlotIdx) -> bool {
        let place = self.place(device, slot);
        let was_held = std::mem::take(&mut place.is_held);
        let is_dirty = std::mem::take(&mut place.is_dirty) && was_held;
        self.held -= u32::from(was_held);
        is_dirty
    }

    /// A page that is to be written leaves. True: it is held here.
    fn take(&mut self, device: DeviceId, slot: SlotIdx, fits: bool) -> bool {
        self.leaves();
        self.release(device, slot);
        if fits {
            self.hold(device, slot, true);
        } else {
            *self.place(device, slot) = Place { stamp: self.left, ..Place::default() };
        }
        fits
    }

    fn note_return(&mut self, stamp: u32) {
        if stamp != 0 {
            self.share.note_return(self.budget, self.budget - self.granted, self.left.wrapping_sub(stamp));
        }
    }

    /// The size that pays, by what was measured.
    fn look(&mut self, fault_ns: Nanos, uses: u64) {
        let (m, fault_ns) = (&mut self.measured, fault_ns + TURNOVER_NS);
        if m.disk_pages >= 16 {
            self.prices.disk_ns = (m.disk_wait_ns + m.disk_faults * fault_ns) / m.disk_pages;
            self.prices.tier_ns = m.disk_faults * fault_ns / m.disk_pages + self.costs.unpack_ns;
        }
        if m.tier_pages >= 16 {
            self.prices.tier_ns = m.tier_faults * fault_ns / m.tier_pages + self.costs.unpack_ns;
        }
        self.prices.pack_ns = self.costs.pack_ns;
        for sum in [&mut m.disk_pages, &mut m.disk_faults, &mut m.disk_wait_ns, &mut m.tier_pages, &mut m.tier_faults] {
            *sum /= 2;
        }
        let accepted_bp = if u64::from(self.costs.page_bytes) < PAGE_BYTES { 10_000 } else { 0 };
        let resident = Resident { budget: self.budget, has_all: self.granted >= self.target, uses };
        self.share.look(Packing { bytes: self.costs.page_bytes, accepted_bp }, self.prices, resident);
        let most = self.budget.saturating_sub(CORE_PAGES_MIN);
        self.target = (self.budget / PARTS * self.share.share()).min(most);
    }
}

impl World {
    /// Pages that leave are compressed from now on. Before any device.
    ///
    /// # Panics
    /// The host is not blind: a kernel's zswap is another thing.
    pub fn set_tier(&mut self, costs: TierCosts) {
        assert!(self.blind.is_some() && self.swaps.is_empty(), "a tier is a blind host's, and knows every device");
        self.tier = Some(Box::new(SimTier::new(costs, self.budget)));
    }

    /// What the tier has done; nothing without one.
    pub fn tier_counts(&self) -> TierCounts {
        self.tier.as_ref().map_or_else(TierCounts::default, |tier| tier.counts)
    }

    pub(super) fn add_to_tier(&mut self, slots: u32) {
        if let Some(tier) = &mut self.tier {
            tier.places.push(vec![Place::default(); slots as usize]);
        }
    }

    /// The pages are to be written to their slots. True: the tier has them.
    pub(super) fn offer_to_tier(&mut self, device: DeviceId, slot: SlotIdx, pages: u32) -> bool {
        let Some(tier) = self.tier.as_mut().filter(|_| device.0 < FILE_DEVICE_FIRST) else { return false };
        let fits = tier.fits(pages);
        let packed = if tier.is_worth_a_try() { pages } else { 0 };
        self.cost_ns += u64::from(packed) * tier.costs.pack_ns;
        (0..pages).for_each(|i| {
            tier.take(device, SlotIdx(slot.0 + i), fits);
        });
        fits
    }

    /// True if the slot's page comes from the tier.
    pub(super) fn reads_from_tier(&mut self, device: DeviceId, slot: SlotIdx, is_fault: bool) -> bool {
        let Some(tier) = self.tier.as_mut().filter(|_| device.0 < FILE_DEVICE_FIRST) else { return false };
        let place = *tier.place(device, slot);
        if place.is_held {
            tier.note_return(place.stamp);
            tier.measured.tier_pages += 1;
            tier.measured.tier_faults += u64::from(is_fault);
            tier.counts.zswpin += 1;
            self.cost_ns += tier.costs.unpack_ns;
        } else {
            let stamp = std::mem::take(&mut tier.place(device, slot).stamp);
            tier.note_return(stamp);
            tier.measured.disk_pages += 1;
            tier.measured.disk_faults += u64::from(is_fault);
        }
        place.is_held
    }

    /// A read of the disk has ended.
    pub(super) fn note_disk_wait(&mut self, range: PageRange, waited: Nanos) {
        let is_waited = |page: PageIdx| range.contains(page);
        let Some(tier) = &mut self.tier else { return };
        if self.tasks.iter().any(|task| task.pending.is_some_and(|(page, ..)| is_waited(page))) {
            tier.measured.disk_wait_ns += waited;
        }
    }

    /// The program has the pages: what is held of them is dropped, for what it does with them is not seen.
    pub(super) fn settle_tier(&mut self, range: PageRange) {
        let Some(tier) = &mut self.tier else { return };
        for page in range.pages() {
            if let Some((device, slot)) = self.core.page(page).slot {
                let is_lost = tier.release(device, slot);
                let place = tier.place(device, slot);
                place.is_lost |= is_lost;
                place.stamp = 0;
            }
        }
    }

    /// True if the slot holds nothing, whatever its owner may think.
    pub(super) fn is_lost(&mut self, device: DeviceId, slot: SlotIdx) -> bool {
        self.tier.as_mut().is_some_and(|tier| tier.place(device, slot).is_lost)
    }

    /// Frames are dropped: what came from the disk and is as it was there may stay, compressed.
    pub(super) fn keep_clean(&mut self, range: PageRange) {
        let Some(tier) = &mut self.tier else { return };
        for page in range.pages() {
            let Some((device, slot)) = self.core.page(page).slot else { continue };
            let place = *tier.place(device, slot);
            if place.is_held || place.stamp != 0 {
                continue;
            }
            tier.leaves();
            if tier.fits(1) {
                self.cost_ns += tier.costs.pack_ns;
                tier.hold(device, slot, false);
            } else {
                tier.place(device, slot).stamp = tier.left;
            }
        }
    }

    /// One turn of what the tier has to do besides: drop what is not needed, make room, follow the share.
    #[inline]
    pub(super) fn tend_tier(&mut self, now: Nanos) {
        if let Some(tier) = self.tier.take() {
            self.tend(tier, now);
        }
    }

    fn tend(&mut self, mut tier: Box<SimTier>, now: Nanos) {
        for _ in 0..SWEEP.min(tier.queue.len()) {
            tier.swept = (tier.swept + 1) % tier.queue.len();
            let (device, slot, stamp) = tier.queue[tier.swept];
            let place = *tier.place(device, slot);
            if place.is_held && place.stamp == stamp && !self.core.is_slot_used(device, slot) {
                tier.release(device, slot);
            }
        }
        if tier.share.is_due(tier.budget) {
            tier.look(self.blind.map_or(0, |blind| blind.fault_ns), self.core.kept_worth());
        }
        let is_tight = !tier.fits(RUN_PAGES) && tier.held > 0;
        let before = tier.granted;
        if tier.granted > tier.target {
            let needed = u64::from(tier.held) * u64::from(tier.costs.page_bytes) / PAGE_BYTES;
            tier.granted = tier.target.max(u32::try_from(needed).unwrap_or(u32::MAX).min(tier.granted));
        } else if is_tight || tier.granted == 0 {
            tier.granted = tier.target.min(tier.granted + GRANT_PAGES);
        }
        if is_tight && tier.granted >= tier.target {
            self.write_back(now, &mut tier);
        }
        let (granted, budget) = (tier.granted, tier.budget);
        self.tier = Some(tier);
        if granted != before {
            self.step(now, Event::BudgetChanged { pages: budget - granted }, None);
        }
    }

    /// The oldest pages go to the disk, in one write.
    fn write_back(&mut self, now: Nanos, tier: &mut SimTier) {
        let (mut pages, mut at) = (0, None);
        while pages < RUN_PAGES {
            let Some((device, slot, stamp)) = tier.queue.pop_front() else { break };
            let place = *tier.place(device, slot);
            if !place.is_held || place.stamp != stamp {
                continue;
            }
            if tier.release(device, slot) && self.core.is_slot_used(device, slot) {
                pages += 1;
                at = at.or(Some((device, slot)));
            }
        }
        if let Some((device, slot)) = at {
            tier.counts.zswpwb += u64::from(pages);
            let unpack_ns = u64::from(pages) * tier.costs.unpack_ns;
            self.kernel_free_at = self.kernel_free_at.max(now) + unpack_ns;
            self.write_for_nobody(now, device, slot, pages);
        }
    }
}
