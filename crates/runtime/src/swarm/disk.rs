//! A modelled swap device: requests end in any order, late, short or not at all as asked.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pagetide_kernel::model::Model;
use pagetide_sys::Errno;
use pagetide_sys::fd::Fd;

use super::Dice;
use crate::io::{Direction, Engine, Request, WATCHED};

/// A request that the device has.
#[derive(Debug)]
struct Job {
    token: u32,
    direction: Direction,
    /// The frames, page by page.
    frames: Vec<usize>,
    /// What a write's frames held when it began.
    began_with: Vec<u64>,
    file: i32,
    slot: u64,
}

#[derive(Debug, Default)]
struct State {
    slots: BTreeMap<(i32, u64), u64>,
    jobs: Vec<Job>,
    ended: VecDeque<(u32, Result<usize, Errno>)>,
    failing_bp: u64,
    /// Files that take no write.
    broken: Vec<i32>,
    failed_reads: u32,
    failed_writes: u32,
}

/// The device, for the test.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    state: Arc<Mutex<State>>,
    space: Model,
}

/// The device, for the machine.
#[derive(Debug)]
pub(super) struct DiskEngine(Disk);

impl Disk {
    /// A device of which so many requests in 10,000 fail.
    pub(super) fn new(space: Model, failing_bp: u64) -> Self {
        Self { state: Arc::new(Mutex::new(State { failing_bp, ..State::default() })), space }
    }

    pub(super) fn engine(&self) -> DiskEngine {
        DiskEngine(self.clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every write to this file fails from now on.
    pub(super) fn break_file(&self, file: i32) {
        self.state().broken.push(file);
    }

    /// Nothing fails any more.
    pub(super) fn heal(&self) {
        let mut state = self.state();
        state.failing_bp = 0;
        state.broken.clear();
    }

    /// Reads that failed: each may have lost pages.
    pub(super) fn failed_reads(&self) -> u32 {
        self.state().failed_reads
    }

    /// Requests that failed.
    pub(super) fn failed(&self) -> u32 {
        let state = self.state();
        state.failed_reads + state.failed_writes
    }

    pub(super) fn is_idle(&self) -> bool {
        let state = self.state();
        state.jobs.is_empty() && state.ended.is_empty()
    }

    /// What a slot holds.
    pub(super) fn slot(&self, file: i32, slot: u64) -> u64 {
        self.state().slots.get(&(file, slot)).copied().expect("a slot that was written")
    }

    /// One of the requests ends.
    pub(super) fn end_one(&self, dice: &mut Dice) {
        let mut state = self.state();
        if state.jobs.is_empty() {
            return;
        }
        let index = dice.index(state.jobs.len());
        let job = state.jobs.swap_remove(index);
        let is_broken = job.direction == Direction::Write && state.broken.contains(&job.file);
        let fails = dice.chance(state.failing_bp) || is_broken;
        // What ends badly was done in part.
        let done = if fails { dice.index(job.frames.len()) } else { job.frames.len() };
        for (index, (&frame, slot)) in job.frames.iter().zip(job.slot..).enumerate() {
            match job.direction {
                Direction::Write => {
                    let value = self.space.device_load(frame);
                    assert_eq!(value, job.began_with[index], "a frame changed while the device read it");
                    let torn = if index < done { value } else { 0xdead };
                    state.slots.insert((job.file, slot), torn);
                }
                Direction::Read if index < done => {
                    let value = state.slots.get(&(job.file, slot)).copied().unwrap_or(0);
                    self.space.device_store(frame, value);
                }
                Direction::Read => self.space.device_store(frame, 0xbad),
            }
        }
        if fails {
            match job.direction {
                Direction::Read => state.failed_reads += 1,
                Direction::Write => state.failed_writes += 1,
            }
        }
        let result = match (fails, dice.chance(5_000)) {
            (false, _) => Ok(job.frames.len() * 4096),
            (true, true) => Ok(done * 4096),
            (true, false) => Err(Errno::EIO),
        };
        state.ended.push_back((job.token, result));
    }
}

impl Engine for DiskEngine {
    fn submit(&mut self, token: u32, request: &Request) {
        let frames =
            request.pieces().iter().flat_map(|piece| (piece.start()..piece.start() + piece.len()).step_by(4096));
        let frames: Vec<usize> = frames.collect();
        let direction = request.direction;
        let began_with = frames.iter().map(|&frame| self.0.space.device_load(frame)).collect();
        let (file, slot) = (request.fd, u64::from(request.slot.0));
        self.0.state().jobs.push(Job { token, direction, frames, began_with, file, slot });
    }

    fn flush(&mut self) {}

    fn reap(&mut self, done: &mut dyn FnMut(u32, Result<usize, Errno>) -> bool) {
        loop {
            let ended = self.0.state().ended.pop_front();
            let Some((token, result)) = ended else { return };
            if !done(token, result) {
                return;
            }
        }
    }

    fn event(&self) -> &Fd {
        unreachable!("the model's host never sleeps")
    }

    fn wait(&mut self, _watched: [&Fd; WATCHED], _timeout_ns: u64) -> [bool; WATCHED] {
        unreachable!("the model's host never sleeps")
    }
}
