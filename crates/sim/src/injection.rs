//! Fault injection, from a seed: what a device or a person may do that nobody planned.
//!
//! A swarm run draws a random subset of these (so that some runs see one kind alone), runs with them on, then heals
//! the world and asks that every waiting fault be answered.

use pagetide_core::types::Nanos;

use crate::rng::XorShift64;

/// How often each fault happens, in 1/10,000 of the requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultInjection {
    /// A read fails.
    pub read_fails_bp: u32,
    /// A write fails.
    pub write_fails_bp: u32,
    /// A request is answered in parts, at different moments.
    pub short_bp: u32,
    /// A request takes far longer.
    pub late_bp: u32,
    /// A write finds the device full.
    pub full_bp: u32,
    /// No fault after this moment.
    pub heals_at: Nanos,
    /// The budget is cut to so many percent at this moment, and restored when the world heals.
    pub budget_cut: Option<(Nanos, u32)>,
    /// A region is removed at this moment, whatever is in flight.
    pub remove_region_at: Option<Nanos>,
}

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is served.
    Good,
    /// It fails.
    Fails,
    /// A write finds no space.
    Full,
    /// Its first part is answered in time, the rest after this long.
    Short(Nanos),
    /// All of it comes this much later.
    Late(Nanos),
}

impl FaultInjection {
    /// A random subset of faults.
    pub fn swarm(seed: u64, heals_at: Nanos) -> Self {
        let mut rng = XorShift64::stream(seed, 900);
        let mut often = |max: u32| if rng.chance_bp(5_000) { 1 + rng.below(max) } else { 0 };
        let (short_bp, late_bp) = (often(3_000), often(2_000));
        let (read_fails_bp, write_fails_bp, full_bp) = (often(300), often(500), often(200));
        let cut = rng.chance_bp(5_000).then(|| (heals_at / 4 + u64::from(rng.below(1_000_000)), 30 + rng.below(60)));
        let remove = rng.chance_bp(3_000).then(|| heals_at / 3 + u64::from(rng.below(1_000_000)));
        Self {
            read_fails_bp,
            write_fails_bp,
            short_bp,
            late_bp,
            full_bp,
            heals_at,
            budget_cut: cut,
            remove_region_at: remove,
        }
    }

    /// Decides over a request that is submitted at `now`.
    pub fn fate(&self, now: Nanos, write: bool, pages: u32, rng: &mut XorShift64) -> Fate {
        if now >= self.heals_at {
            return Fate::Good;
        }
        if rng.chance_bp(if write { self.write_fails_bp } else { self.read_fails_bp }) {
            return Fate::Fails;
        }
        if write && rng.chance_bp(self.full_bp) {
            return Fate::Full;
        }
        if pages > 1 && rng.chance_bp(self.short_bp) {
            return Fate::Short(u64::from(rng.below(3_000_000)));
        }
        if rng.chance_bp(self.late_bp) {
            return Fate::Late(u64::from(rng.below(50_000_000)));
        }
        Fate::Good
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_healed_world_does_no_harm() {
        let injection = FaultInjection { read_fails_bp: 10_000, heals_at: 50, ..FaultInjection::default() };
        let mut rng = XorShift64::new(1);
        assert_eq!(injection.fate(49, false, 1, &mut rng), Fate::Fails);
        assert_eq!(injection.fate(50, false, 1, &mut rng), Fate::Good);
    }

    #[test]
    fn seeds_draw_different_subsets() {
        let swarm: Vec<FaultInjection> = (0..64).map(|seed| FaultInjection::swarm(seed, 1_000_000_000)).collect();
        assert!(swarm.iter().any(|m| m.late_bp > 0 && m.read_fails_bp == 0));
        assert!(swarm.iter().any(|m| m.read_fails_bp > 0 && m.short_bp == 0));
        assert!(swarm.iter().any(|m| m.budget_cut.is_some()));
    }
}
