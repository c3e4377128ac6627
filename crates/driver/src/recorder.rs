//! The flight recorder: the last events, and a running hash of all effects.
//!
//! Two runs with the same configuration and the same events have the same hash (I8).

use std::fmt::Write as _;
use std::hash::{Hash, Hasher};

use pagetide_core::{effect::Effect, event::Event, types::Nanos};

/// FNV-1a, 64 bit: the same on every machine and in every run, unlike the default hasher.
#[derive(Clone, Copy, Debug)]
struct Fnv(u64);

impl Hasher for Fnv {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// The hash of `effects`, continued from `seed` (0 to start).
pub fn effects_hash(seed: u64, effects: &[Effect]) -> u64 {
    let mut hasher = Fnv(seed ^ 0xcbf2_9ce4_8422_2325);
    for effect in effects {
        effect.hash(&mut hasher);
    }
    hasher.finish()
}

/// Ring of the last events.
#[derive(Debug)]
pub struct Recorder {
    ring: Vec<(Nanos, Event)>,
    seen: u64,
    hash: Option<u64>,
}

impl Recorder {
    /// Keep the last `events` events (at least 1); hash the effects too if `hashed` (a few nanoseconds an effect).
    pub fn new(events: usize, hashed: bool) -> Self {
        Self { ring: vec![(0, Event::Timeout); events.max(1)], seen: 0, hash: hashed.then_some(0) }
    }

    pub(crate) fn note(&mut self, now: Nanos, event: Event, effects: &[Effect]) {
        let len = self.ring.len() as u64;
        let place = usize::try_from(self.seen % len).expect("less than the length of a Vec");
        self.ring[place] = (now, event);
        self.seen += 1;
        if let Some(hash) = &mut self.hash {
            *hash = effects_hash(*hash, effects);
        }
    }

    /// The hash of all effects so far, if asked for at the start.
    pub const fn hash(&self) -> Option<u64> {
        self.hash
    }

    /// The last events, oldest first, as `(time, event)`.
    pub fn last(&self) -> impl Iterator<Item = &(Nanos, Event)> {
        let len = self.ring.len() as u64;
        let kept = self.seen.min(len);
        (self.seen - kept..self.seen)
            .map(move |n| &self.ring[usize::try_from(n % len).expect("less than a Vec's length")])
    }

    /// The last events as text, one a line, into `out`.
    pub fn dump(&self, out: &mut impl std::fmt::Write) -> std::fmt::Result {
        for (now, event) in self.last() {
            writeln!(out, "{now} {event:?}")?;
        }
        let mut footer = String::new();
        if let Some(hash) = self.hash {
            write!(footer, " effects {hash:016x}")?;
        }
        writeln!(out, "# {} events seen{footer}", self.seen)
    }
}
