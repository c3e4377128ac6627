//! How the budget is divided among the processes of a run.
//!
//! Max-min fair: nobody gets more than it can use while another would use more. A process that reads from its swap file can use what it fills
//! until the next division, and then more, within a part by its weight; one that does not can use what it keeps and some room to grow.
//! Shares shrink at once and grow only into what is really free, so that the sum of what is kept never exceeds the budget by more than what is
//! in flight. Below a floor no share falls: where the floors are more than the budget, they are what is kept.

use crate::setup::{BUDGET_PAGES_MIN, SHARE_PAGES_MIN};

/// One managed process, as the supervisor sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// Pages it keeps.
    pub(crate) resident: u64,
    /// Pages it may keep at present.
    pub(crate) share: u64,
    /// It cannot keep fewer: [`floor`], and what cannot be paged.
    pub(crate) least: u64,
    /// It read from its swap file since the last look, or is at its share.
    pub(crate) pressed: bool,
    /// It sleeps, and is to keep no more than this while it does.
    pub(crate) keeps: Option<u64>,
    /// It keeps so much more than a moment ago.
    pub(crate) grown: u64,
    /// It gets so many parts; without pressure an equal part at least.
    pub(crate) weight: u64,
}

/// What each of so many processes that page keeps, whatever others need: 2 MiB, as long as that is no more than half of the budget, and
/// never less than [`SHARE_PAGES_MIN`].
pub(crate) fn floor(budget: u64, processes: usize) -> u64 {
    let part = budget / 2 / u64::try_from(processes.max(1)).expect("a length");
    part.clamp(u64::from(SHARE_PAGES_MIN), BUDGET_PAGES_MIN)
}

/// The least that one may fill until the next division.
const STEP_PAGES_MIN: u64 = 128;

/// The weight of one of whom nothing is known.
pub(crate) const WEIGHT: u64 = 1024;

/// What a process can use: under pressure a `step` more than it keeps. Room to grow that one without pressure is given: a quarter of what
/// it keeps, at least 4 MiB, within `room_max`, and an eighth and 256 KiB in any case. Beside one that is pressed (`is_tight`) no more than it
/// has grown by of late, but a 32nd and 256 KiB at least: with less it would seem to be at its share.
fn demand(claim: Claim, room_max: u64, step: u64, is_tight: bool) -> u64 {
    if claim.pressed {
        return claim.resident.saturating_add(step);
    }
    if let Some(keeps) = claim.keeps {
        return keeps;
    }
    let room = (claim.resident / 4).max(1024).min(room_max).max(claim.resident / 8 + 64);
    claim.resident + if is_tight { room.min(claim.grown.max(rooms_min(claim.resident, 1))) } else { room }
}

/// The least room that `processes` have that keep `resident` pages together.
pub(crate) const fn rooms_min(resident: u64, processes: usize) -> u64 {
    resident / 32 + 64 * processes as u64
}

/// Room to grow that each of those without pressure has at most. Room lies idle: it takes no more than what nobody keeps, and beside
/// somebody who is pressed a sixteenth of all. Else the sleeping processes of a server, a dozen of them, would keep what the one that
/// works is short of.
fn room_max(available: u64, claims: &[Claim]) -> u64 {
    let calm = claims.iter().filter(|claim| !claim.pressed).count();
    let resident: u64 = claims.iter().map(|claim| claim.resident).sum();
    let rooms = if calm < claims.len() { available / 16 } else { available.saturating_sub(resident) };
    rooms / u64::try_from(calm.max(1)).expect("a length")
}

/// What one that is pressed may fill until the next division. Others that are pressed keep the rest of its part until it has filled this:
/// pages leave much faster than they come back, and what is given up before somebody fills it lies idle.
fn step(available: u64, claims: &[Claim]) -> u64 {
    let pressed = claims.iter().filter(|claim| claim.pressed).count();
    (available / 32 / u64::try_from(pressed.max(1)).expect("a length")).max(STEP_PAGES_MIN)
}

/// What a process may keep from when its agent starts until the next division: what it has, and its part of what is `left`
/// when `starting` others start as well. Less would page out what fits; where all have too much (`resident` pages in all), each gives up
/// the same part.
pub(crate) fn first(budget: u64, own: u64, resident: u64, starting: u64) -> u64 {
    let kept = if resident > budget { own * budget / resident } else { own };
    let left = budget.saturating_sub(resident);
    (kept + left / (starting + 1)).max(budget / 16).min(budget)
}

/// Pages that cannot be paged out leave too little of a share, so that it is told of. Less than a MiB is not: it is a large buffer of
/// a call while the share is still small, and the budget has room for it.
pub(crate) const fn is_stuck(stuck: u64, share: u64) -> bool {
    stuck > share / 4 * 3 && stuck >= 256
}

/// Divide `available` pages. The result has the order of `claims`.
pub(crate) fn divide(available: u64, claims: &[Claim]) -> Vec<u64> {
    let mut order: Vec<usize> = (0..claims.len()).collect();
    let room_max = room_max(available, claims);
    let step = step(available, claims);
    let is_pressed = claims.iter().any(|claim| claim.pressed);
    let demands: Vec<u64> = claims.iter().map(|&claim| demand(claim, room_max, step, is_pressed)).collect();
    // Who uses less than its part comes first: those that come later have the rest.
    order.sort_by_key(|&index| {
        let (claim, demand) = (claims[index], demands[index]);
        if claim.pressed { demand.saturating_mul(WEIGHT) / claim.weight } else { demand }
    });
    let mut fair = vec![0; claims.len()];
    let mut left = available;
    let mut weights: u64 = claims.iter().map(|claim| claim.weight).sum();
    for (place, &index) in order.iter().enumerate() {
        let claim = claims[index];
        let heads = u64::try_from(claims.len() - place).expect("a length");
        let weighed = left.saturating_mul(claim.weight) / weights;
        let part = if claim.pressed { weighed } else { weighed.max(left / heads) };
        fair[index] = demands[index].min(part.max(claim.least));
        left = left.saturating_sub(fair[index]);
        weights -= claim.weight;
    }
    // What nobody asks for is free, and asking takes time: it goes to those that are pressed by their weights, or to all alike.
    let part = |claim: &Claim| match (is_pressed, claim.pressed) {
        (true, true) => claim.weight,
        (true, false) => 0,
        (false, _) => 1,
    };
    let parts: u64 = claims.iter().map(part).sum();
    for (share, claim) in fair.iter_mut().zip(claims) {
        *share += left.saturating_mul(part(claim)) / parts.max(1);
    }

    // Growth waits until the others have given up what they keep beyond their new share.
    let kept: u64 = claims.iter().zip(&fair).map(|(claim, &share)| claim.resident.max(share.min(claim.share))).sum();
    let mut free = available.saturating_sub(kept);
    claims
        .iter()
        .zip(fair)
        .map(|(claim, fair)| {
            let base = fair.min(claim.resident.max(claim.share));
            let grown = (fair - base).min(free);
            free -= grown;
            base + grown
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn claim(resident: u64, share: u64, pressed: bool) -> Claim {
        Claim { resident, share, least: 0, pressed, keeps: None, grown: resident, weight: WEIGHT }
    }

    #[test]
    fn who_fits_keeps_all_it_has_when_its_agent_starts() {
        assert_eq!(first(14_848, 11_800, 12_400, 0), 11_800 + 2_448);
        assert_eq!(first(100_000, 40_000, 70_000, 1), 40_000 + 15_000);
    }

    #[test]
    fn those_that_have_too_much_give_up_the_same_part() {
        assert_eq!(first(100_000, 90_000, 150_000, 1), 60_000);
        assert_eq!(first(100_000, 60_000, 150_000, 1), 40_000);
        assert_eq!(first(100_000, 10, 150_000, 1), 6_250, "room to begin with");
    }

    #[test]
    fn a_buffer_of_a_small_process_is_not_told_of() {
        assert!(!is_stuck(200, 256) && !is_stuck(3_000, 4_000));
        assert!(is_stuck(3_001, 4_000) && is_stuck(256, 256));
    }

    #[test]
    fn floors_are_half_of_the_budget_at_most_and_no_share_falls_below() {
        let floors = [1, 4, 16, 64, 1_000].map(|processes| floor(16_384, processes));
        assert_eq!(floors, [512, 512, 512, 128, 128]);
        assert_eq!(floor(16_384, 32), 256);
        let light = Claim { least: 700, weight: 1, ..claim(900, 900, true) };
        assert_eq!(
            divide(10_000, &[light, claim(9_400, 9_400, true)]),
            [700, 9_400],
            "what it gives up is not free yet"
        );
        let calm = Claim { least: 700, ..claim(50, 60, false) };
        assert!(divide(10_000, &[calm, claim(9_900, 9_900, true)])[0] < 700, "it does not use it");
        let shares = divide(1_000, &[light; 5]);
        assert_eq!(shares, [700; 5], "floors are kept beyond the budget");
    }

    #[test]
    fn one_process_gets_everything() {
        assert_eq!(divide(10_000, &[claim(100, 0, false)]), [10_000]);
        assert_eq!(divide(10_000, &[claim(9_000, 9_000, true)]), [10_000]);
    }

    #[test]
    fn the_idle_keep_what_they_have_and_the_pressed_get_the_rest() {
        let shares = divide(100_000, &[claim(4_000, 4_000, false), claim(50_000, 50_000, true)]);
        assert!(shares[0] >= 5_024 && shares[1] > 90_000 && shares.iter().sum::<u64>() <= 100_000, "{shares:?}");
    }

    #[test]
    fn what_those_that_sleep_have_lent_goes_to_those_that_are_pressed() {
        let lends = Claim { keeps: Some(3_000), ..claim(4_000, 5_000, false) };
        let shares = divide(10_000, &[lends, claim(5_000, 5_000, true)]);
        assert_eq!(shares, [3_000, 6_000], "what it still keeps is not there yet");
        let lends = Claim { resident: 3_000, share: 3_000, ..lends };
        assert_eq!(divide(10_000, &[lends, claim(6_000, 6_000, true)]), [3_000, 7_000]);
    }

    #[test]
    fn those_that_are_pressed_get_parts_by_their_weights() {
        let heavy = Claim { weight: 3 * WEIGHT, ..claim(7_400, 7_400, true) };
        assert_eq!(divide(10_000, &[heavy, claim(2_500, 2_500, true)]), [7_500, 2_500]);
        let heavy = Claim { resident: 0, share: 0, ..heavy };
        let calm = Claim { pressed: false, resident: 6_000, share: 6_000, ..heavy };
        assert!(divide(10_000, &[calm, claim(3_000, 3_000, true)])[0] > 6_000, "it has what it needs");
        let shares = divide(100_000, &[heavy, claim(4_000, 4_000, false), claim(0, 0, true)]);
        assert!(shares[1] >= 5_000 && shares[0] > 2 * shares[2] && shares.iter().sum::<u64>() <= 100_000, "{shares:?}");
    }

    #[test]
    fn what_one_has_not_filled_yet_the_other_keeps() {
        let heavy = Claim { weight: 16 * WEIGHT, ..claim(30_000, 31_000, true) };
        let shares = divide(100_000, &[heavy, claim(70_000, 70_000, true)]);
        assert_eq!(shares[1], 68_438, "it would take twice as long to read back what is given up too early");
        let heavy = Claim { resident: 60_000, ..heavy };
        assert_eq!(divide(100_000, &[heavy, claim(40_000, 40_000, true)])[1], 38_438, "it fills more");
    }

    #[test]
    fn processes_that_sleep_keep_no_room_from_the_one_that_works() {
        let mut claims = [claim(800, 1_700, false); 7];
        claims[6] = claim(1_650, 1_700, true);
        let shares = divide(12_000, &claims);
        assert!(shares[6] >= 12_000 - 6 * 1_000, "{shares:?}");
        assert!(shares[..6].iter().all(|&share| share > 850), "they do not seem to be at their shares: {shares:?}");
    }

    #[test]
    fn who_has_not_grown_gets_little_room_beside_one_that_is_pressed() {
        let still = Claim { grown: 0, ..claim(6_000, 7_000, false) };
        assert_eq!(divide(18_000, &[still, claim(11_000, 11_000, true)])[0], 6_251);
        let grows = Claim { grown: 700, ..still };
        assert_eq!(divide(18_000, &[grows, claim(11_000, 11_000, true)])[0], 6_700);
        assert!(divide(18_000, &[still, claim(5_000, 5_000, false)])[0] > 7_000, "nobody is short");
    }

    #[test]
    fn room_to_grow_takes_nothing_that_somebody_keeps() {
        let mut claims = [claim(800, 900, false); 7];
        claims[6] = claim(5_000, 6_000, false);
        let shares = divide(12_000, &claims);
        assert!(shares[6] > 5_000, "it grows, and has not read yet: {shares:?}");
    }

    #[test]
    fn equals_get_equal_shares_and_growth_waits_for_the_shrinking() {
        let claims = [claim(90_000, 100_000, true), claim(90_000, 0, true)];
        let shares = divide(100_000, &claims);
        assert_eq!(shares[0], 50_000, "the large one shrinks at once");
        assert_eq!(shares[1], 50_000, "the new one shrinks too: it keeps more than its share");
        let small = divide(100_000, &[claim(90_000, 100_000, true), claim(1_000, 1_000, true)]);
        assert!(small[0] + small[1] <= 100_000 || small[1] <= 10_000, "growth only into what is free: {small:?}");
    }
}
