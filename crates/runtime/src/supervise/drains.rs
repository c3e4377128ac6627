//! What becomes of the places of a run: drained ones go, failing ones are drained, room is given back where it is short, full ones are told
//! of.
//!
//! Agents say in their shared pages how each place stands for them. A place goes when every agent says that it has nothing there.

use std::sync::atomic::Ordering;

use pagetide_core::types::Nanos;
use pagetide_sys::{clock, stderr};

use crate::machine::{SLOTS_AHEAD, short_bit};
use crate::session::command::{Command, PlaceId, PlaceState};
use crate::store::piece_slots;
use crate::supervise::Supervisor;
use crate::supervise::commands::Drain;
use crate::supervise::places::{FLOOR_BYTES, Place};

/// A place is full if a process finds no room for this time, in which all have given back what they do not need.
const FULL_NS: Nanos = 500_000_000;
/// Time between two looks whether there is room for all again.
const ROOM_LOOK_NS: Nanos = 1_000_000_000;

impl Supervisor {
    /// Look at what the agents say of the places.
    pub(super) fn look_at_places(&mut self) {
        self.look_at_room();
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
            stderr::tell(format_args!("pagetide: {}: nothing is swapped there any more", place.path.display()));
        } else if self.is_any(id, PlaceState::GivenUp) {
            let left = self.status_of(&self.places[index]).used_pages;
            self.give_up(index);
            let (path, mib) = (self.places[index].path.display(), left.div_ceil(256));
            stderr::tell(format_args!("pagetide: {path}: {mib} MiB fit nowhere else: it stays in use"));
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
            stderr::tell(format_args!(
                "pagetide: {path}: reads or writes fail: nothing more is written there, what can be read is moved away"
            ));
        } else if !self.places[index].is_full_told && self.is_full(&self.places[index]) {
            self.places[index].is_full_told = true;
            let (left, floor) = (self.unused_pages(id).1 >> 8, FLOOR_BYTES >> 20);
            let place = &self.places[index];
            let why = if place.is_device() {
                "the device is full".to_owned()
            } else {
                format!("the disk is full up to {floor} MiB, or a quota or a limit of the size of files is reached")
            };
            stderr::tell(format_args!(
                "pagetide: {}: {why}: processes get no more of it; of what they have there {left} MiB are unused",
                place.path.display()
            ));
        }
    }

    /// Where a process has found no more room, all keep just what they need, as long as there is not enough for all to keep more.
    fn look_at_room(&mut self) {
        let now = clock::now();
        let mut short = 0;
        for index in 0..self.places.len() {
            let is_lacking = self.lacks_room(&self.places[index]);
            let place = &self.places[index];
            let is_short = is_lacking
                || place.short_since.is_some()
                    && (now < place.next_room_look || place.free_pages() < self.wanted_ahead(place));
            let place = &mut self.places[index];
            if is_lacking || now >= place.next_room_look {
                place.next_room_look = now + ROOM_LOOK_NS;
            }
            place.short_since = is_short.then(|| place.short_since.unwrap_or(now));
            short |= if is_short { short_bit(place.offer.place) } else { 0 };
        }
        for link in self.tree.list.iter().filter_map(|process| process.link.as_ref()) {
            if link.control.entry().short_places.swap(short, Ordering::SeqCst) != short {
                link.ring();
            }
        }
    }

    /// What processes would keep of the place beyond what they use, if it were not short.
    fn wanted_ahead(&self, place: &Place) -> u64 {
        let used = self.words_of_place(place.offer.place).map(|(_, words)| words.used.load(Ordering::Relaxed));
        used.map(|used| (used / 2).max(u64::from(SLOTS_AHEAD))).fold(0, u64::saturating_add)
    }

    /// A place takes no more pages although it is not as large as it may be. One of its full size is full as it was meant to be.
    fn lacks_room(&self, place: &Place) -> bool {
        let slots = u64::from(place.offer.slots);
        self.words_of_place(place.offer.place).any(|(_, words)| {
            let [backed, used] = [&words.backed, &words.used].map(|word| word.load(Ordering::Relaxed));
            words.state() == PlaceState::Full && (backed < slots || used.saturating_add(1) < slots)
        })
    }

    /// A process finds no room, and that is not because others have yet to give back what they do not use, or have just done so.
    fn is_full(&self, place: &Place) -> bool {
        if !self.lacks_room(place) {
            return false;
        }
        // What a process gives back at a time, which is about what it keeps where room is short.
        let piece = u64::from(piece_slots(place.offer.division));
        let (processes, unused) = self.unused_pages(place.offer.place);
        let is_spent = place.free_pages() < piece;
        let is_all_given = processes < 2 || is_spent && unused <= processes * 2 * piece;
        let is_old = place.short_since.is_some_and(|since| clock::now() >= since + FULL_NS);
        // Of a file system there may be more than a quota grants.
        is_all_given || is_old && (is_spent || !place.is_device())
    }

    /// Processes that have a part of a place, and what all of them together do not use of it.
    fn unused_pages(&self, place: PlaceId) -> (u64, u64) {
        self.words_of_place(place).fold((0, 0), |(processes, unused), (_, words)| {
            let [backed, used] = [&words.backed, &words.used].map(|word| word.load(Ordering::Relaxed));
            (processes + 1, unused.saturating_add(backed.saturating_sub(used)))
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
