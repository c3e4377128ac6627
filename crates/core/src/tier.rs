//! How much of the budget a tier of compressed pages gets.
//!
//! ```text
//!                 resident               compressed                     on the disk
//!   distance  |<--- B - T --->|<------ T * depth of a page ------>|
//! ```
//!
//! Of a budget of `B` pages the tier has `T`. A page of its memory holds several pages that left, so more is in memory in all, and
//! less of it at once. What that is worth depends on how far apart the uses of a page are, in pages that were used between them
//! (its *distance*, as in `workingset`): below `B - T` a use costs nothing, up to the end of the tier it costs a fault and a
//! decompression, beyond that a read of the disk. Every page that leaves costs its compression if there is a tier at all.
//!
//! Each return of a page tells its distance: what is resident, and the pages that left after it. They are counted in bins of a
//! sixteenth of the budget, and forgotten by half at each look. From the bins follows what the same returns would have cost with
//! each size of the tier, and the tier goes one step towards the cheapest. So it is nothing where everything fits, where
//! nothing compresses, where the disk is cheap because it is read in large windows, or where the next use is always further
//! away than any tier reaches; and it is most of the budget for uniform access. Uses below `B - T` are not seen: when a larger
//! tier is considered, those that it would turn into faults are taken to be as frequent as those just beyond, and as those of the coldest
//! pages that stay in memory (which the policy for blind hosts measures). Both may be too few; the next look, a step later, sees them.
//! So a step up has to wait until the tier has the memory of the last one.
//!
//! A tier that comes and goes costs more than it gives, and in most programs it would pay for a moment now and then. So the first
//! step waits for evidence: what each size would have cost is summed over [`EVIDENCE_NS`] of waiting and more (older sums count half), and some
//! size must have saved one part in [`WORTH_BEGINNING`]. Who waits for less than that in all never gets a tier. It ends when by these sums no tier
//! would have been cheaper; what a fork waited until all was written counts as well.
//!
//! What it is not: it stores nothing and knows no clock; prices come from its host. Invariants: integers only; the same calls
//! give the same answers; the share never exceeds [`SHARE_MAX`].

use crate::config::Compress;
use crate::types::USE_RATE;

/// The share is counted in so many parts of the budget.
pub const PARTS: u32 = 16;
/// The most that the tier gets, in parts: the rest is what the program works in.
pub const SHARE_MAX: u32 = 14;
const SHARES: usize = SHARE_MAX as usize + 1;
/// Distances are told apart up to eight budgets.
const BINS: usize = 128;
/// Divided out beforehand, so that products fit.
const USES_PER: u64 = 1 << 10;
/// A part of a bin.
const FINE: u64 = 256;
/// So much must have been waited for pages, by what they cost, until there is a tier that begins by itself.
const EVIDENCE_NS: u64 = 2_000_000_000;
/// A move must save one part in so many.
const WORTH: u64 = 32;
/// To begin must save one part in so many.
const WORTH_BEGINNING: u64 = 8;
/// Of 10,000 pages, so many must compress for a tier to be considered.
const ACCEPTED_BP_MIN: u32 = 500;

/// Pages of one write to the disk at most.
pub const RUN_PAGES: u32 = 32;
/// Slots looked at in one turn, whether somebody still uses them.
pub const SWEEP: usize = 8;
/// Granted in one step, in pages.
pub const GRANT_PAGES: u32 = 256;
/// Without a tier, one page in so many is compressed to see what it would give.
pub const SAMPLE: u32 = 32;
/// Pages that the core keeps at least.
pub const CORE_PAGES_MIN: u32 = 512;
/// Prices before anything was measured.
pub const PRICES: Prices = Prices { disk_ns: 80_000, tier_ns: 20_000, pack_ns: 5_000 };

/// What things cost now, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prices {
    /// A page that comes from the disk.
    pub disk_ns: u64,
    /// A page that comes from the tier.
    pub tier_ns: u64,
    /// Compressing a page that leaves.
    pub pack_ns: u64,
}

/// How well pages compress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    /// Bytes of memory that a page in the tier takes, 1 to 4096.
    pub bytes: u32,
    /// Of 10,000 pages, how many compress well enough to be held.
    pub accepted_bp: u32,
}

/// What is known of the pages that are in memory as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resident {
    /// Pages of memory in all, the tier's included.
    pub budget: u32,
    /// The tier has the memory of its share. Before, what a larger one would cost is not known, and it does not grow.
    pub has_all: bool,
    /// Uses of one of the coldest pages while one page leaves, in parts of [`USE_RATE`]; 0: not known.
    pub uses: u64,
}

/// The judge of the tier's size.
#[derive(Clone, Debug)]
pub struct TierShare {
    returns: [u64; BINS],
    leaves: u64,
    /// Returns since the last look.
    fresh: u32,
    share: u32,
    /// What each share would have cost, in nanoseconds: over the last one to two [`EVIDENCE_NS`] of waiting without a tier.
    sums: [u64; SHARES],
    /// It begins as soon as it saves anything.
    is_wanted: bool,
}

impl TierShare {
    /// No tier yet. One that is asked for by its name is there as soon as it saves anything, and for as long, whatever was before.
    pub const fn new(how: Compress) -> Self {
        let is_wanted = !matches!(how, Compress::Auto);
        Self { returns: [0; BINS], leaves: 0, fresh: 0, share: 0, sums: [0; SHARES], is_wanted }
    }

    /// The share of the budget that the tier may have, in [`PARTS`].
    pub const fn share(&self) -> u32 {
        self.share
    }

    /// A page left the program's memory.
    pub const fn note_leave(&mut self) {
        self.leaves += 1;
    }

    /// A page came back, of `budget` pages while `resident` may be in memory as they are; `age` pages have left since it did.
    pub fn note_return(&mut self, budget: u32, resident: u32, age: u32) {
        let distance = u64::from(resident) + u64::from(age);
        let bin = distance * u64::from(PARTS) / u64::from(budget.max(1));
        let bin = usize::try_from(bin).unwrap_or(BINS).min(BINS - 1);
        self.returns[bin] += 1;
        self.fresh += 1;
    }

    /// True once enough has come back to judge by.
    pub fn is_due(&self, budget: u32) -> bool {
        self.fresh >= (budget / 32).clamp(128, 4096)
    }

    /// Go one step towards the cheapest size. The share from now on.
    pub fn look(&mut self, packing: Packing, prices: Prices, resident: Resident) -> u32 {
        let mut costs = [0; SHARES];
        for (share, cost) in (0..).zip(&mut costs) {
            *cost = self.cost(share, packing, prices, resident);
        }
        self.note_costs(&costs);
        let best = if packing.accepted_bp < ACCEPTED_BP_MIN || !self.pays() {
            0
        } else {
            let (cheapest, there) = (0..).zip(costs).min_by_key(|&(_, cost)| cost).unwrap_or_default();
            let here = costs[self.share as usize];
            if there + here / WORTH < here { cheapest } else { self.share }
        };
        self.share = match best.cmp(&self.share) {
            core::cmp::Ordering::Less => self.share - 1,
            core::cmp::Ordering::Equal => self.share,
            core::cmp::Ordering::Greater => self.share + u32::from(resident.has_all),
        };
        self.returns.iter_mut().for_each(|returns| *returns /= 2);
        self.leaves /= 2;
        self.fresh = 0;
        self.share
    }

    /// Returns are forgotten by half at each look, so each is met twice.
    fn note_costs(&mut self, costs: &[u64; SHARES]) {
        let is_old = self.sums[0] >= 2 * EVIDENCE_NS;
        for (sum, cost) in self.sums.iter_mut().zip(costs) {
            *sum = if is_old { *sum / 2 } else { *sum } + cost / 2;
        }
    }

    /// By what was summed, having a tier is better than having none; to begin with one, by more.
    fn pays(&self) -> bool {
        if self.is_wanted {
            return true;
        }
        let [without, with @ ..] = self.sums;
        let least = with.into_iter().min().unwrap_or(u64::MAX);
        if self.share > 0 {
            return least <= without;
        }
        without >= EVIDENCE_NS && least <= without - without / WORTH_BEGINNING
    }

    /// Somebody waited so long, and would not have without a tier.
    pub fn note_loss(&mut self, ns: u64) {
        self.sums[1..].iter_mut().for_each(|sum| *sum = sum.saturating_add(ns));
    }

    /// What the returns would have cost with this share.
    fn cost(&self, share: u32, packing: Packing, prices: Prices, seen: Resident) -> u64 {
        let accepted = u64::from(packing.accepted_bp.clamp(1, 10_000));
        let resident = u64::from(PARTS - share) * FINE;
        let depth = u64::from(share) * FINE * 4096 * 10_000 / (u64::from(packing.bytes.max(1)) * accepted);
        let end = resident + depth;
        let tier_ns = (prices.tier_ns * accepted + prices.disk_ns * (10_000 - accepted)) / 10_000;
        let mut cost = if share > 0 { self.leaves * prices.pack_ns } else { 0 };
        for bin in 0..BINS {
            let (from, to) = (bin as u64 * FINE, (bin as u64 + 1) * FINE);
            let beyond = to - end.clamp(from, to);
            let inside = to - resident.clamp(from, to) - beyond;
            cost += self.returns_at(bin, seen) * (inside * tier_ns + beyond * prices.disk_ns) / FINE;
        }
        cost
    }

    /// Returns in a bin; below what is seen, as many as at the same distance beyond the edge, and at least what the coldest pages
    /// in memory are used.
    fn returns_at(&self, bin: usize, seen: Resident) -> u64 {
        let edge = (PARTS - self.share) as usize;
        if bin >= edge {
            return self.returns[bin];
        }
        let mirrored = self.returns[(2 * edge - 1 - bin).min(BINS - 1)];
        let pages = u64::from(seen.budget / PARTS);
        // At most so often is a page used that has not been used since it is watched; half of that is a guess.
        let coldest = self.leaves * pages / USES_PER * (seen.uses / 2) / (USE_RATE / USES_PER);
        self.returns[bin].max(mirrored).max(coldest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: u32 = 16_000;
    const RANDOM: Prices = Prices { disk_ns: 80_000, tier_ns: 15_000, pack_ns: 4_000 };
    const THIRD: Packing = Packing { bytes: 1365, accepted_bp: 10_000 };

    /// A program whose uses have the distances that `weights` tell, in sixteenths of the budget; what is resident is not seen.
    /// The share after each of `looks` looks.
    fn after(tier: &mut TierShare, looks: u32, packing: Packing, prices: Prices, weights: impl Fn(u32) -> u32) -> u32 {
        for _ in 0..looks {
            let resident = BUDGET / PARTS * (PARTS - tier.share());
            for part in PARTS - tier.share()..8 * PARTS {
                for _ in 0..weights(part) {
                    tier.note_leave();
                    tier.note_return(BUDGET, resident, part * (BUDGET / PARTS) - resident);
                }
            }
            tier.look(packing, prices, Resident { budget: BUDGET, has_all: true, uses: 0 });
        }
        tier.share()
    }

    #[test]
    fn uniform_use_of_far_more_than_the_budget_gives_the_tier_most() {
        assert!(after(&mut TierShare::new(Compress::Lz4), 40, THIRD, RANDOM, |_| 10) >= 12);
    }

    #[test]
    fn uniform_use_of_twice_the_budget_gives_the_tier_what_it_needs_to_hold_it() {
        let share = after(&mut TierShare::new(Compress::Lz4), 40, THIRD, RANDOM, |part| if part < 32 { 10 } else { 0 });
        // 8 parts hold 24, beside 8 that are resident: 32.
        assert!((7..=9).contains(&share), "{share}");
    }

    #[test]
    fn what_does_not_compress_gets_no_tier() {
        let poor = Packing { bytes: 3072, accepted_bp: 400 };
        assert_eq!(after(&mut TierShare::new(Compress::Lz4), 40, poor, RANDOM, |_| 10), 0);
        let mut tier = TierShare::new(Compress::Lz4);
        after(&mut tier, 40, THIRD, RANDOM, |_| 10);
        assert_eq!(after(&mut tier, 40, poor, RANDOM, |_| 10), 0, "and gives it back");
    }

    #[test]
    fn a_disk_that_is_read_in_large_windows_is_not_worth_a_tier() {
        let stream = Prices { disk_ns: 3_000, tier_ns: 2_500, pack_ns: 4_000 };
        assert_eq!(
            after(&mut TierShare::new(Compress::Lz4), 40, THIRD, stream, |part| if part == 40 { 1000 } else { 0 }),
            0
        );
    }

    #[test]
    fn a_hot_set_that_just_fits_keeps_its_memory() {
        // 200 in each part of the budget, then hardly anything.
        let share =
            after(&mut TierShare::new(Compress::Lz4), 40, THIRD, RANDOM, |part| if part < 17 { 200 } else { 1 });
        assert!(share <= 2, "{share}");
    }

    #[test]
    fn a_loop_gets_a_tier_that_holds_it_and_none_if_none_can() {
        let share =
            after(&mut TierShare::new(Compress::Lz4), 60, THIRD, RANDOM, |part| if part == 28 { 1000 } else { 0 });
        assert!(share > 5, "{share}");
        assert_eq!(
            after(&mut TierShare::new(Compress::Lz4), 60, THIRD, RANDOM, |part| if part == 100 { 1000 } else { 0 }),
            0
        );
    }

    #[test]
    fn a_tier_shrinks_when_the_program_gets_smaller() {
        let mut tier = TierShare::new(Compress::Lz4);
        assert!(after(&mut tier, 40, THIRD, RANDOM, |_| 10) >= 12);
        let share = after(&mut tier, 60, THIRD, RANDOM, |part| if part < 18 { 10 } else { 0 });
        assert!(share <= 3, "{share}");
    }

    /// 9,323 major faults became 18,707 in a hot set of seven eighths: its pages were not seen until they had gone.
    #[test]
    fn pages_in_memory_that_are_used_often_stay_there() {
        let share = |uses| {
            let mut tier = TierShare::new(Compress::Lz4);
            for part in PARTS..8 * PARTS {
                (0..10).for_each(|_| tier.note_return(BUDGET, BUDGET, (part - PARTS) * (BUDGET / PARTS)));
                (0..10).for_each(|_| tier.note_leave());
            }
            tier.look(THIRD, RANDOM, Resident { budget: BUDGET, has_all: true, uses })
        };
        assert_eq!((share(0), share(USE_RATE / 100)), (1, 0));
    }

    #[test]
    fn a_tier_grows_no_further_before_it_has_its_memory() {
        let mut tier = TierShare::new(Compress::Lz4);
        for _ in 0..20 {
            (0..1000).for_each(|_| tier.note_return(BUDGET, BUDGET, BUDGET));
            tier.look(THIRD, RANDOM, Resident { budget: BUDGET, has_all: tier.share() == 0, uses: 0 });
        }
        assert_eq!(tier.share(), 1);
    }

    /// java and node, which a tier would have served for a moment now and then, took 3 to 7 % longer with one.
    #[test]
    fn a_tier_begins_when_enough_was_waited_and_enough_would_have_been_saved() {
        let uniform = |part| if part < 32 { 10 } else { 0 };
        let mut tier = TierShare::new(Compress::Auto);
        // Each look is 160 pages from the disk: 12.8 ms, counted as they fade.
        assert_eq!(after(&mut tier, 150, THIRD, RANDOM, uniform), 0, "too little was waited for");
        assert!(after(&mut tier, 20, THIRD, RANDOM, uniform) > 0);
        let now_and_then = |tier: &mut TierShare, look: u32| match look % 8 {
            0 => after(tier, 1, THIRD, RANDOM, |part| if part < 17 { 100 } else { 0 }),
            _ => after(tier, 1, THIRD, RANDOM, |part| if part > 80 { 20 } else { 0 }),
        };
        let mut tier = TierShare::new(Compress::Auto);
        assert!((0..1000).all(|look| now_and_then(&mut tier, look) == 0), "it would have paid in one look of eight");
    }

    #[test]
    fn a_tier_ends_where_forks_wait_longer_than_it_saves() {
        let looks_with_a_tier = |ns| {
            let mut tier = TierShare::new(Compress::Auto);
            let mut look = || {
                let share = after(&mut tier, 1, THIRD, RANDOM, |part| if part < 32 { 100 } else { 0 });
                tier.note_loss(if share > 0 { ns } else { 0 });
                share > 0
            };
            (0..500).filter(|_| look()).count()
        };
        // A look is 128 ms without a tier.
        assert!(looks_with_a_tier(0) > 480 && looks_with_a_tier(10_000_000) > 480);
        assert!(looks_with_a_tier(1_000_000_000) < 100, "{}", looks_with_a_tier(1_000_000_000));
    }

    #[test]
    fn the_same_calls_give_the_same_shares() {
        let run = |looks| after(&mut TierShare::new(Compress::Lz4), looks, THIRD, RANDOM, |part| part % 7);
        for looks in 0..30 {
            assert_eq!(run(looks), run(looks));
        }
    }
}
