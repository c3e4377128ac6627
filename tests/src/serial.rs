//! A few tests at a time on this machine, across threads and test binaries: most of what a test does is waiting. Who measures, or changes
//! what is everybody's, is [`alone`].

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use crate::clock;

/// Tests at a time: as many as a machine of two CPUs takes without any of them being late.
const PLACES: usize = 2;

/// No test takes so long.
const PATIENCE: Duration = Duration::from_hours(1);

/// Held while a test runs. The locks are the files', so they end with the process whatever happens.
#[derive(Debug)]
pub struct Turn {
    _locks: Vec<File>,
}

/// Waits for a place among the tests that run.
pub fn turn() -> Turn {
    // Who waits at the door is next.
    let _door = lock("door");
    let mut taken = None;
    let is_free = || {
        taken = places().into_iter().find(is_taken_now);
        taken.is_some()
    };
    assert!(clock::wait_until(PATIENCE, is_free), "tests have been running for {PATIENCE:?}");
    Turn { _locks: taken.into_iter().collect() }
}

/// Waits until no other test runs.
pub fn alone() -> Turn {
    let _door = lock("door");
    let places = places();
    for place in &places {
        place.lock().expect("flock waits until the lock is free");
    }
    Turn { _locks: places }
}

fn places() -> Vec<File> {
    (0..PLACES).map(|place| open(&place.to_string())).collect()
}

fn is_taken_now(place: &File) -> bool {
    match place.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(error)) => panic!("a test's place cannot be locked: {error}"),
    }
}

fn lock(name: &str) -> File {
    let file = open(name);
    file.lock().expect("flock waits until the lock is free");
    file
}

fn open(name: &str) -> File {
    let path = std::env::temp_dir().join(format!("pagetide-tests.{name}"));
    let file = OpenOptions::new().create(true).append(true).mode(0o666).open(&path);
    file.unwrap_or_else(|error| panic!("lock file {}: {error}", path.display()))
}
