//! The flight recorder: the last events, and if asked a record of all.

use pagetide_core::effect::{Effect, EffectHash};
use pagetide_core::{event::Event, types::Nanos};

use crate::record::RecordWriter;

/// Ring of the last events.
#[derive(Debug)]
pub struct Recorder {
    ring: Vec<(Nanos, Event)>,
    seen: u64,
    record: Option<(RecordWriter, EffectHash)>,
}

impl Recorder {
    /// Keep the last `events` events (at least 1), and all of them in `record`.
    pub fn new(events: usize, record: Option<RecordWriter>) -> Self {
        let record = record.map(|record| (record, EffectHash::new()));
        Self { ring: vec![(0, Event::Timeout); events.max(1)], seen: 0, record }
    }

    /// The core is about to be told.
    pub(crate) fn note(&mut self, now: Nanos, event: Event) {
        let len = self.ring.len() as u64;
        let place = usize::try_from(self.seen % len).expect("less than the length of a Vec");
        self.ring[place] = (now, event);
        self.seen += 1;
        if let Some((record, hash)) = &mut self.record {
            record.put(now, event, *hash);
        }
    }

    /// What it ordered.
    pub(crate) fn note_effects(&mut self, effects: &[Effect]) {
        if let Some((_, hash)) = &mut self.record {
            hash.add(effects);
        }
    }

    /// The last events, oldest first, as `(time, event)`; the last of them may not have been handled to its end.
    pub fn last(&self) -> impl Iterator<Item = &(Nanos, Event)> {
        let len = self.ring.len() as u64;
        let kept = self.seen.min(len);
        (self.seen - kept..self.seen)
            .map(move |n| &self.ring[usize::try_from(n % len).expect("less than a Vec's length")])
    }
}
