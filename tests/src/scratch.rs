//! A directory of one test, removed at its end, and comparison of the files in it.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory that exists as long as this value.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// A fresh directory under `PAGETIDE_TEST_DIR` (default `/var/tmp`: a real disk, where /tmp may be memory).
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let base = std::env::var_os("PAGETIDE_TEST_DIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("pagetide-test-{}-{number}", std::process::id()));
        fs::create_dir(&path).unwrap_or_else(|error| panic!("scratch directory {}: {error}", path.display()));
        Self { path }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// `name` in the directory.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Writes `bytes` to `name` and returns its path.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.file(name);
        fs::write(&path, bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }

    /// A fresh directory `name`.
    pub fn directory(&self, name: &str) -> PathBuf {
        let path = self.file(name);
        fs::create_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        path
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if std::env::var_os("PAGETIDE_TEST_KEEP").is_some() {
            eprintln!("kept: {}", self.path.display());
        } else if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("scratch directory {}: {error}", self.path.display());
        }
    }
}

/// `None` if both files hold the same bytes, else what differs first.
pub fn difference(left: &Path, right: &Path) -> Option<String> {
    const CHUNK: usize = 1 << 16;
    let (mut left_file, mut right_file) = (open(left), open(right));
    let (mut left_bytes, mut right_bytes) = (Vec::with_capacity(CHUNK), Vec::with_capacity(CHUNK));
    let mut offset = 0;
    loop {
        read_chunk(&mut left_file, &mut left_bytes, CHUNK);
        read_chunk(&mut right_file, &mut right_bytes, CHUNK);
        if left_bytes != right_bytes {
            let place = left_bytes.iter().zip(&right_bytes).position(|(a, b)| a != b);
            let place = place.unwrap_or(left_bytes.len().min(right_bytes.len()));
            let (a, b) = (left_bytes.get(place), right_bytes.get(place));
            let position = offset + place;
            return Some(format!(
                "{} and {} differ at byte {position}: {a:02x?} and {b:02x?}",
                left.display(),
                right.display()
            ));
        }
        if left_bytes.is_empty() {
            return None;
        }
        offset += left_bytes.len();
    }
}

/// The next `limit` bytes, fewer only at the end of the file.
fn read_chunk(file: &mut fs::File, into: &mut Vec<u8>, limit: usize) {
    into.clear();
    file.take(u64::try_from(limit).expect("a chunk is small")).read_to_end(into).expect("output files are readable");
}

fn open(path: &Path) -> fs::File {
    fs::File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
