//! Core and machine behind one small trait.
//!
//! A [`Machine`] carries the core's orders out (the live runtime with system calls, the simulator in virtual time). The
//! [`Driver`] holds the core and the machine, feeds one event at a time, hands the orders over, feeds the answers back
//! until none is left, and notes every event in a [`Recorder`].
//!
//! What this crate is not: it has no policy (that is the core), no lock and no thread (that is the host).
//!
//! Invariants: events reach the core one at a time, in the order in which they happened; the answers that a machine knows
//! at once are fed before the next outside event.
#![forbid(unsafe_code)]

pub mod record;
mod recorder;

pub use recorder::Recorder;

use std::collections::VecDeque;

use pagetide_core::{Core, effect::Effect, event::Event, types::Nanos};

/// Carries orders out.
pub trait Machine {
    /// Carry `effects` out, in any order. What is known at once is pushed to `answers`; the rest comes as an event later.
    fn execute(&mut self, core: &Core, now: Nanos, effects: &[Effect], answers: &mut Answers);
}

/// Answers that the queue holds before it grows.
const ANSWERS: usize = 4096;

/// Events that a machine answers with, waiting to be fed to the core. Bounded by the pages that are in flight.
#[derive(Debug)]
pub struct Answers {
    queue: VecDeque<Event>,
}

impl Answers {
    fn new() -> Self {
        Self { queue: VecDeque::with_capacity(ANSWERS) }
    }

    /// Append an answer.
    pub fn push(&mut self, event: Event) {
        self.queue.push_back(event);
    }

    fn pop(&mut self) -> Option<Event> {
        let event = self.queue.pop_front();
        if self.queue.is_empty() {
            // It begins again at the start of its memory, and so never uses more of it than it is long.
            self.queue.clear();
        }
        event
    }
}

/// The core, a machine and what has happened lately.
#[derive(Debug)]
pub struct Driver<M> {
    core: Core,
    machine: M,
    recorder: Recorder,
    effects: pagetide_core::effect::Effects,
    answers: Answers,
}

impl<M: Machine> Driver<M> {
    /// A driver that has seen no event. Allocates everything it will ever need.
    pub fn new(core: Core, machine: M, recorder: Recorder) -> Self {
        Self { core, machine, recorder, effects: pagetide_core::effect::Effects::new(), answers: Answers::new() }
    }

    /// The policy.
    pub const fn core(&self) -> &Core {
        &self.core
    }

    /// The policy, for what is not an event: the bits that an exact host sets on every access.
    pub const fn core_mut(&mut self) -> &mut Core {
        &mut self.core
    }

    /// The machine.
    pub const fn machine(&self) -> &M {
        &self.machine
    }

    /// The machine, for the host's own business between events.
    pub const fn machine_mut(&mut self) -> &mut M {
        &mut self.machine
    }

    /// The flight recorder.
    pub const fn recorder(&self) -> &Recorder {
        &self.recorder
    }

    /// One outside event, and all answers that follow at once.
    pub fn step(&mut self, now: Nanos, event: Event) {
        self.feed(now, event);
        while let Some(answer) = self.answers.pop() {
            self.feed(now, answer);
        }
    }

    /// Feed what the machine pushed outside of a step (completions it collected).
    pub fn drain(&mut self, now: Nanos, collect: impl FnOnce(&mut M, &Core, &mut Answers)) {
        collect(&mut self.machine, &self.core, &mut self.answers);
        while let Some(answer) = self.answers.pop() {
            self.feed(now, answer);
        }
    }

    fn feed(&mut self, now: Nanos, event: Event) {
        self.effects.clear();
        self.recorder.note(now, event);
        self.core.handle(now, &event, &mut self.effects);
        self.recorder.note_effects(self.effects.as_slice());
        if !self.effects.as_slice().is_empty() {
            self.machine.execute(&self.core, now, self.effects.as_slice(), &mut self.answers);
        }
    }
}
