//! What this machine has: memory and disk space. Reads /proc, /sys and statfs only.

use std::fs;
use std::io;
use std::path::Path;

use rustix::fs::{StatVfs, statfs, statvfs};

/// Memory that a program here can use: the machine's, or a smaller limit of the control group that we are in (a container).
pub(crate) fn memory_bytes() -> Option<u64> {
    let machine = meminfo_bytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemTotal")?;
    Some(cgroup_limit_bytes().map_or(machine, |limit| limit.min(machine)))
}

/// One line of /proc/meminfo.
fn meminfo_bytes(meminfo: &str, key: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024)
}

/// The smallest `memory.max` from our control group (version 2) up to the root, if any is set.
fn cgroup_limit_bytes() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Path::new("/sys/fs/cgroup")
        .join(path)
        .ancestors()
        .take_while(|directory| directory.starts_with("/sys/fs/cgroup"))
        .filter_map(|directory| fs::read_to_string(directory.join("memory.max")).ok()?.trim().parse().ok())
        .min()
}

/// A file system as a place for swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Volume {
    /// Keeps its files in memory (tmpfs, ramfs): paging to it frees nothing.
    pub(crate) in_memory: bool,
    /// Cannot be written.
    pub(crate) read_only: bool,
    /// Its size.
    pub(crate) total_bytes: u64,
    /// What this user can still write.
    pub(crate) free_bytes: u64,
}

impl Volume {
    /// The file system that holds `path`.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        const TMPFS_MAGIC: u64 = 0x0102_1994;
        const RAMFS_MAGIC: u64 = 0x8584_58f6;
        let magic = u64::try_from(statfs(path)?.f_type).unwrap_or(0) & 0xffff_ffff;
        let StatVfs { f_frsize, f_blocks, f_bavail, f_flag, .. } = statvfs(path)?;
        Ok(Self {
            in_memory: magic == TMPFS_MAGIC || magic == RAMFS_MAGIC,
            read_only: f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY),
            total_bytes: f_blocks.saturating_mul(f_frsize),
            free_bytes: f_bavail.saturating_mul(f_frsize),
        })
    }

    /// What swap may take: the free space less a floor that stays free for everybody else, the larger of 1 GiB and
    /// a twentieth of the file system (at most half of what is free, so that small file systems can be used at all).
    pub(crate) fn usable_bytes(self) -> u64 {
        let floor = (self.total_bytes / 20).max(1 << 30).min(self.free_bytes / 2);
        self.free_bytes - floor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_lines_are_read_by_their_whole_key() {
        let meminfo = "MemTotalX:  1 kB\nMemTotal:       24683908 kB\nMemFree: 5 kB\n";
        assert_eq!(meminfo_bytes(meminfo, "MemTotal"), Some(24_683_908 * 1024));
        assert_eq!(meminfo_bytes(meminfo, "MemAvailable"), None);
    }

    #[test]
    fn this_machine_has_memory_and_a_file_system() {
        assert!(memory_bytes().expect("Linux has /proc/meminfo") > 1 << 20);
        let volume = Volume::of(Path::new("/")).expect("the root can be asked");
        assert!(volume.free_bytes <= volume.total_bytes);
        assert!(Volume::of(Path::new("/dev/shm")).is_ok_and(|shm| shm.in_memory));
    }

    #[test]
    fn a_floor_of_free_space_is_kept() {
        let volume = |total_bytes, free_bytes| Volume { in_memory: false, read_only: false, total_bytes, free_bytes };
        assert_eq!(volume(100 << 30, 50 << 30).usable_bytes(), 45 << 30);
        assert_eq!(volume(10 << 30, 10 << 30).usable_bytes(), 9 << 30);
        assert_eq!(volume(1 << 30, 512 << 20).usable_bytes(), 256 << 20);
        assert_eq!(volume(0, 0).usable_bytes(), 0);
    }
}
