//! A small file system of a test's own: ext4, ext2 or btrfs in a file of its scratch directory, mounted until it is dropped. Needs root.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FallocateFlags, fallocate, statvfs};

use crate::MIB;
use crate::janitor::Janitor;
use crate::scratch::Scratch;

/// The file system.
#[derive(Debug)]
pub struct SmallDisk {
    path: PathBuf,
    others: Vec<File>,
    // Last: what is mounted is not busy any more when it undoes that.
    _janitor: Janitor,
}

impl SmallDisk {
    /// `mib` MiB, hardly less for files; mounted at `small` in the scratch directory.
    pub fn new(scratch: &Scratch, mib: u64) -> Self {
        Self::formatted(scratch, mib, &["mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal"])
    }

    /// The same on which no space can be reserved for a file: what is missing is found at a write.
    pub fn without_reserving(scratch: &Scratch, mib: u64) -> Self {
        Self::formatted(scratch, mib, &["mkfs.ext2", "-q", "-m", "0"])
    }

    /// A directory of which nobody can use more than `quota_mib` MiB, on a disk that has far more.
    pub fn with_quota(scratch: &Scratch, mib: u64, quota_mib: u64) -> Self {
        let mut disk = Self::formatted(scratch, mib, &["mkfs.btrfs", "-q"]);
        let limited = disk.path.join("limited");
        let btrfs = |arguments: &[&str], path: &Path| tool(Command::new("btrfs").args(arguments).arg(path));
        btrfs(&["quota", "enable"], &disk.path);
        btrfs(&["subvolume", "create"], &limited);
        btrfs(&["qgroup", "limit", &format!("{quota_mib}M")], &limited);
        disk.path = limited;
        disk
    }

    fn formatted(scratch: &Scratch, mib: u64, mkfs: &[&str]) -> Self {
        let (image, path) = (scratch.file("small.image"), scratch.directory("small"));
        let made = File::create(&image).and_then(|file| file.set_len(mib * MIB));
        made.unwrap_or_else(|error| panic!("{}: {error}", image.display()));
        let mut janitor = Janitor::start();
        // Lazily: what a failed test has left there ends with it.
        janitor.at_end(&format!("umount --lazy '{}'", path.display()));
        tool(Command::new(mkfs[0]).args(&mkfs[1..]).arg(&image));
        tool(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&path));
        Self { path, others: Vec::new(), _janitor: janitor }
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes that are free.
    pub fn free_bytes(&self) -> u64 {
        let told = statvfs(&self.path).unwrap_or_else(|error| panic!("{}: {error}", self.path.display()));
        told.f_bavail * told.f_frsize
    }

    /// Others take all but so much of what is free.
    pub fn fill(&mut self, but_bytes: u64) {
        let path = self.path.join(format!("others{}", self.others.len()));
        let file = File::create(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let bytes = self.free_bytes().saturating_sub(but_bytes);
        let filled = fallocate(&file, FallocateFlags::empty(), 0, bytes);
        filled.unwrap_or_else(|error| panic!("{} with {bytes} bytes: {error}", path.display()));
        self.others.push(file);
    }

    /// Others take all that is free, by writing.
    pub fn fill_by_writing(&mut self) {
        let path = self.path.join(format!("others{}", self.others.len()));
        let mut file = File::create(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let zeroes = vec![0; 1 << 20];
        let filled = std::iter::repeat_with(|| file.write_all(&zeroes)).find_map(Result::err).expect("it ends");
        assert_eq!(filled.kind(), ErrorKind::StorageFull, "{}: {filled}", path.display());
        self.others.push(file);
    }

    /// Others give back what they took.
    pub fn empty(&mut self) {
        for (number, _) in self.others.drain(..).enumerate() {
            let path = self.path.join(format!("others{number}"));
            fs::remove_file(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
    }

    /// No file can be made there any more.
    pub fn make_read_only(&mut self) {
        tool(Command::new("mount").args(["-o", "remount,ro"]).arg(&self.path));
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        self.others.clear();
    }
}

fn tool(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}
