//! A modelled swap device: requests end in any order, late, short or not at all as asked.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pagetide_kernel::model::Model;
use pagetide_sys::fd::Fd;
use pagetide_sys::mem::{ManagedRange, PAGE_BYTES};
use pagetide_sys::{Errno, file};

use super::Dice;
use crate::io::{Direction, Engine, Request, WATCHED};

/// A page of a file: its inode, and where it lies.
type Place = (u64, u64);

/// A request that the device has.
#[derive(Debug)]
struct Job {
    token: u32,
    direction: Direction,
    /// The frames, page by page.
    frames: Vec<usize>,
    /// What a write's frames held when it began.
    began_with: Vec<u64>,
    first: Place,
}

/// What all processes see.
#[derive(Debug, Default)]
struct Platter {
    pages: BTreeMap<Place, u64>,
    failing_bp: u64,
    /// Files that take no write.
    broken: Vec<u64>,
    failed_reads: u32,
    failed_writes: u32,
}

/// One process's requests.
#[derive(Debug, Default)]
struct Queue {
    /// The files that requests name, with their inodes.
    files: Vec<(i32, u64)>,
    jobs: Vec<Job>,
    ended: VecDeque<(u32, Result<usize, Errno>)>,
}

/// The device as one process has it, for the test.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    platter: Arc<Mutex<Platter>>,
    queue: Arc<Mutex<Queue>>,
    space: Model,
}

/// The device, for the machine.
#[derive(Debug)]
pub(super) struct DiskEngine(Disk);

fn inode(file: &Fd) -> u64 {
    file::info(file).expect("an open file").inode
}

fn locked<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Disk {
    /// A device of which so many requests in 10,000 fail.
    pub(super) fn new(space: Model, failing_bp: u64) -> Self {
        let platter = Platter { failing_bp, ..Platter::default() };
        Self { platter: Arc::new(Mutex::new(platter)), queue: Arc::default(), space }
    }

    /// The same device, for another process.
    pub(super) fn of_process(&self, space: Model) -> Self {
        Self { platter: Arc::clone(&self.platter), queue: Arc::default(), space }
    }

    pub(super) fn engine(&self) -> DiskEngine {
        DiskEngine(self.clone())
    }

    fn platter(&self) -> MutexGuard<'_, Platter> {
        locked(&self.platter)
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        locked(&self.queue)
    }

    /// Every write to this file fails from now on.
    pub(super) fn break_file(&self, file: &Fd) {
        self.platter().broken.push(inode(file));
    }

    /// Nothing fails any more.
    pub(super) fn heal(&self) {
        let mut platter = self.platter();
        platter.failing_bp = 0;
        platter.broken.clear();
    }

    /// Reads that failed, of all processes: each may have lost pages.
    pub(super) fn failed_reads(&self) -> u32 {
        self.platter().failed_reads
    }

    /// Requests that failed.
    pub(super) fn failed(&self) -> u32 {
        let platter = self.platter();
        platter.failed_reads + platter.failed_writes
    }

    pub(super) fn is_idle(&self) -> bool {
        let queue = self.queue();
        queue.jobs.is_empty() && queue.ended.is_empty()
    }

    /// One of the requests ends.
    pub(super) fn end_one(&self, dice: &mut Dice) {
        let (mut platter, mut queue) = (self.platter(), self.queue());
        if queue.jobs.is_empty() {
            return;
        }
        let index = dice.index(queue.jobs.len());
        let job = queue.jobs.swap_remove(index);
        let (file, first) = job.first;
        let is_broken = job.direction == Direction::Write && platter.broken.contains(&file);
        let fails = dice.chance(platter.failing_bp) || is_broken;
        // What ends badly was done in part.
        let done = if fails { dice.index(job.frames.len()) } else { job.frames.len() };
        for (index, &frame) in job.frames.iter().enumerate() {
            let place = (file, first + index as u64);
            match job.direction {
                Direction::Write => {
                    let value = self.space.device_load(frame);
                    assert_eq!(value, job.began_with[index], "a frame changed while the device read it");
                    let torn = if index < done { value } else { 0xdead };
                    platter.pages.insert(place, torn);
                }
                Direction::Read if index < done => {
                    let value = platter.pages.get(&place).copied().unwrap_or(0);
                    self.space.device_store(frame, value);
                }
                Direction::Read => self.space.device_store(frame, 0xbad),
            }
        }
        if fails {
            match job.direction {
                Direction::Read => platter.failed_reads += 1,
                Direction::Write => platter.failed_writes += 1,
            }
        }
        let result = match (fails, dice.chance(5_000)) {
            (false, _) => Ok(job.frames.len() * PAGE_BYTES),
            (true, true) => Ok(done * PAGE_BYTES),
            (true, false) => Err(Errno::EIO),
        };
        queue.ended.push_back((job.token, result));
    }
}

impl Engine for DiskEngine {
    fn submit(&mut self, token: u32, request: &Request) {
        let frames =
            request.pieces().iter().flat_map(|piece| (piece.start()..piece.start() + piece.len()).step_by(PAGE_BYTES));
        let frames: Vec<usize> = frames.collect();
        let direction = request.direction;
        let began_with = frames.iter().map(|&frame| self.0.space.device_load(frame)).collect();
        let mut queue = self.0.queue();
        let file = queue.files.iter().find(|(raw, _)| *raw == request.fd).expect("an open file").1;
        let first = (file, request.offset / PAGE_BYTES as u64);
        queue.jobs.push(Job { token, direction, frames, began_with, first });
    }

    fn read_now(&self, file: &Fd, offset: u64, to: ManagedRange) -> Result<usize, Errno> {
        let place = (inode(file), offset / PAGE_BYTES as u64);
        let value = self.0.platter().pages.get(&place).copied().unwrap_or(0);
        self.0.space.device_store(to.start(), value);
        Ok(PAGE_BYTES)
    }

    fn opened(&mut self, file: &Fd) {
        self.0.queue().files.push((file.raw(), inode(file)));
    }

    fn closing(&mut self, file: &Fd) {
        self.0.queue().files.retain(|(raw, _)| *raw != file.raw());
    }

    fn flush(&mut self) {}

    fn reap(&mut self, done: &mut dyn FnMut(u32, Result<usize, Errno>) -> bool) {
        loop {
            let ended = self.0.queue().ended.pop_front();
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
