//! One test at a time on this machine, across threads and test binaries.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;

/// Held while a test runs.
#[derive(Debug)]
pub struct Turn {
    _lock: File,
}

/// Waits for its turn. The lock is the file's, so it ends with the process whatever happens.
pub fn turn() -> Turn {
    let path = std::env::temp_dir().join("pagetide-tests.lock");
    let lock = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o666)
        .open(&path)
        .unwrap_or_else(|error| panic!("lock file {}: {error}", path.display()));
    lock.lock().expect("flock waits until the lock is free");
    Turn { _lock: lock }
}
