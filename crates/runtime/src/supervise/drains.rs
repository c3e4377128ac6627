//! What becomes of the places of a run: drained ones go, failing ones are drained, full ones are told of.
//!
//! Agents say in their shared pages how each place stands for them. A place goes when every agent says that it has nothing there.

use std::sync::atomic::Ordering;

use crate::session::command::{Command, PlaceId, PlaceState};
use crate::supervise::Supervisor;
use crate::supervise::commands::Drain;
use crate::supervise::places::{FLOOR_BYTES, Place};

impl Supervisor {
    /// Look at what the agents say of the places.
    pub(super) fn look_at_places(&mut self) {
        let ids: Vec<PlaceId> = self.places.iter().map(|place| place.offer.place).collect();
        for id in ids {
            let Some(index) = self.places.iter().position(|place| place.offer.place == id) else { continue };
            if self.places[index].drain.is_some() {
                self.look_at_drain(index);
            } else {
                self.look_at_open(index);
            }
        }
    }

    /// Some place is drained.
    pub(super) fn has_drains(&self) -> bool {
        self.places.iter().any(|place| place.drain.is_some())
    }

    fn is_any(&self, place: PlaceId, state: PlaceState) -> bool {
        self.words_of_place(place).any(|(_, words)| words.state() == state)
    }

    fn look_at_drain(&mut self, index: usize) {
        let id = self.places[index].offer.place;
        if self.is_drained(id) {
            let place = self.places.remove(index);
            eprintln!("pagetide: {}: nothing is swapped there any more", place.path.display());
        } else if self.is_any(id, PlaceState::GivenUp) {
            let left = self.status_of(&self.places[index]).used_pages;
            self.give_up(index);
            let (path, mib) = (self.places[index].path.display(), left.div_ceil(256));
            eprintln!("pagetide: {path}: {mib} MiB fit nowhere else: it stays in use");
        }
    }

    /// Nothing is drained any more: not everywhere was there room.
    pub(super) fn give_up(&mut self, index: usize) {
        self.places[index].drain = None;
        self.places[index].is_given_up = true;
        let command = Command::StopSwapOff { place: self.places[index].offer.place };
        let ticket = self.tell_all(&command);
        self.forget(ticket);
    }

    fn look_at_open(&mut self, index: usize) {
        let id = self.places[index].offer.place;
        let has_other = self.places.iter().any(|place| place.offer.place != id && place.drain.is_none());
        if self.is_any(id, PlaceState::Failed) && has_other {
            self.places[index].drain = Some(Drain::new(self.pages_to_move(id), None));
            let ticket = self.tell_all(&Command::SwapOff { place: id, mode: None });
            self.forget(ticket);
            let path = self.places[index].path.display();
            eprintln!(
                "pagetide: {path}: reads or writes fail: nothing more is written there, what can be read is moved away"
            );
        } else if self.lacks_room(&self.places[index]) && !self.places[index].is_full_told {
            self.places[index].is_full_told = true;
            let left = self.words_of_place(id).map(|(_, words)| {
                words.backed.load(Ordering::Relaxed).saturating_sub(words.used.load(Ordering::Relaxed))
            });
            let (left, floor) = (left.fold(0, u64::saturating_add) >> 8, FLOOR_BYTES >> 20);
            let place = &self.places[index];
            let why = if place.is_device() {
                "the device is full".to_owned()
            } else {
                format!("the disk is full up to {floor} MiB, or a quota is reached")
            };
            eprintln!(
                "pagetide: {}: {why}: processes get no more of it; of what they have there {left} MiB are unused",
                place.path.display()
            );
        }
    }

    /// A place takes no more pages although it is not as large as it may be. One of its full size is full as it was meant to be.
    fn lacks_room(&self, place: &Place) -> bool {
        let slots = u64::from(place.offer.slots);
        self.words_of_place(place.offer.place).any(|(_, words)| {
            let [backed, used] = [&words.backed, &words.used].map(|word| word.load(Ordering::Relaxed));
            words.state() == PlaceState::Full && (backed < slots || used.saturating_add(1) < slots)
        })
    }

    /// Every agent was told, and says that it has nothing there; no agent is about to take over what its parent has there.
    fn is_drained(&self, place: PlaceId) -> bool {
        let mut linked = self.tree.list.iter().filter_map(|process| Some((process.pid, process.link.as_ref()?)));
        self.births.is_empty()
            && linked.all(|(pid, link)| {
                let entry = link.control.entry();
                let is_empty = entry.place(place).is_none_or(|words| words.state() == PlaceState::Gone);
                !self.commands.will_drain(pid, place) && entry.is_managed() && is_empty
            })
    }

    /// An agent has refused to drain the place: it has more there than fits elsewhere.
    pub(super) fn drain_refused(&mut self, place: PlaceId) {
        let index = self.places.iter().position(|known| known.offer.place == place && known.drain.is_some());
        if let Some(index) = index {
            self.give_up(index);
        }
    }

    /// No agent could use the place.
    pub(super) fn place_refused(&mut self, id: PlaceId) {
        let is_used = |place: &Place| place.offer.place == id && self.words_of_place(id).next().is_some();
        if let Some(index) = self.places.iter().position(|place| place.offer.place == id && !is_used(place)) {
            self.places.remove(index);
        }
    }
}
