//! A block device of a test's own: a file of its scratch directory behind a loop device, until it is dropped. Needs root.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::MIB;
use crate::janitor::Janitor;
use crate::scratch::Scratch;

/// The device.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    janitor: Janitor,
}

impl LoopDevice {
    /// `mib` MiB of zeroes.
    pub fn new(scratch: &Scratch, mib: u64) -> Self {
        let image = scratch.file("device.image");
        let made = File::create(&image).and_then(|file| file.set_len(mib * MIB));
        made.unwrap_or_else(|error| panic!("{}: {error}", image.display()));
        let mut janitor = Janitor::start();
        // A device that was made read-only would stay so for whoever has it next.
        let each = "blockdev --setrw $device; losetup --detach $device";
        janitor.at_end(&format!("for device in $(losetup -j '{}' | cut -d: -f1); do {each}; done", image.display()));
        let path = PathBuf::from(told(Command::new("losetup").args(["--find", "--show"]).arg(&image)).trim());
        Self { path, janitor }
    }

    /// Its node.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The same, as text.
    pub fn text(&self) -> String {
        self.path.display().to_string()
    }

    /// Runs a tool on it; what it printed.
    pub fn tool(&self, name: &str, arguments: &[&str]) -> String {
        told(Command::new(name).args(arguments).arg(&self.path))
    }

    /// Mounts the file system that is on it, as `name` in the scratch directory.
    pub fn mount(&mut self, scratch: &Scratch, name: &str) -> PathBuf {
        let directory = scratch.directory(name);
        self.janitor.at_end(&format!("umount --lazy '{}' 2>/dev/null", directory.display()));
        told(Command::new("mount").arg(&self.path).arg(&directory));
        directory
    }

    /// It is mounted no more.
    pub fn unmount(&self, directory: &Path) {
        told(Command::new("umount").arg(directory));
    }
}

fn told(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}
