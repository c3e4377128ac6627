//! What is changed about a running session: its budget, its places, a device that fails.

use super::{Dice, Swarm};
use crate::protocol::DeviceOffer;
use crate::session::command::{Answer, Command, PlaceId, PlaceState};

/// Places at a time, the first one included.
const PLACES_MAX: usize = 3;
/// Slots of a place that comes later: as many as all pages of the program, wherever the others are.
const SLOTS: u32 = 1 << 14;

/// The commands of one seed.
#[derive(Debug)]
pub(super) struct Changes {
    dice: Dice,
    places: u32,
    /// Places that were drained to the end.
    pub(super) drained: u32,
}

impl Changes {
    pub(super) fn new(seed: u64) -> Self {
        Self { dice: Dice::new(seed ^ 0xc4a6_6e5d), places: 1, drained: 0 }
    }
}

impl Swarm {
    /// Perhaps a command.
    pub(super) fn change_something(&mut self) {
        let Some(mut changes) = self.changes.take() else { return };
        if changes.dice.chance(400) {
            self.change(&mut changes);
        }
        let gone = self.first().session.places().filter(|place| place.state == PlaceState::Gone).count();
        changes.drained = changes.drained.max(u32::try_from(gone).expect("few places"));
        self.changes = Some(changes);
    }

    fn change(&mut self, changes: &mut Changes) {
        let places: Vec<_> = self.first().session.places().filter(|place| place.state != PlaceState::Gone).collect();
        let place = places[changes.dice.index(places.len())].place;
        match changes.dice.below(10) {
            0..2 => self.first().set_share(80 + u32::try_from(changes.dice.below(500)).expect("a small number")),
            2..5 if places.len() < PLACES_MAX => {
                let priority = changes.dice.chance(5_000).then_some(5);
                let id = PlaceId(changes.places);
                changes.places += 1;
                let command = Command::SwapOn(DeviceOffer {
                    place: id,
                    slots: SLOTS,
                    priority,
                    rotational: false,
                    division: None,
                });
                assert_eq!(self.first().carry_out(command), Answer::Done, "there is room for a place");
            }
            2..8 => {
                // What does not fit is refused, and what is under way goes on.
                let mode = None;
                let _ = self.first().carry_out(Command::SwapOff { place, mode });
            }
            8 => {
                let _ = self.first().carry_out(Command::StopSwapOff { place });
            }
            _ if places.len() > 1 => self.first().break_place(place),
            _ => {}
        }
    }

    /// What is being drained comes to its end, or is given up.
    pub(super) fn finish_changes(&mut self) {
        if self.changes.is_none() {
            return;
        }
        for _ in 0..super::CALM_TURNS {
            let draining = |state| matches!(state, PlaceState::Draining | PlaceState::Failed);
            if !self.first().session.places().any(|place| draining(place.state)) || self.first().out_of_memory {
                return;
            }
            self.turn();
        }
        let places: Vec<_> = self.first().session.places().collect();
        panic!("a place is not drained: {places:?}");
    }
}

#[test]
fn a_swarm_loses_no_store_while_places_and_budgets_change() {
    let (mut checked, mut drained) = (0, 0);
    let (seeds, are_usual) = super::seeds(super::SEEDS, &super::FOUND);
    for seed in seeds {
        eprintln!("seed {seed}");
        let mut swarm = Swarm::new(seed, 0);
        swarm.changes = Some(Changes::new(seed));
        swarm.run();
        checked += swarm.truth.checked;
        drained += swarm.changes.map_or(0, |changes| changes.drained);
    }
    assert!(checked > 1_000 || !are_usual, "{checked} accesses were checked");
    assert!(drained > 5 || !are_usual, "{drained} places were drained");
}
