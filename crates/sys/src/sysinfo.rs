//! Numbers of the machine: memory, CPUs, the device below a path, the memory limit of our cgroup.

use core::ffi::CStr;
use core::fmt::Write;

use linux_raw_sys::general::__NR_getrandom;

use crate::fd::Fd;
use crate::file::{self, FileKind, flags};
use crate::syscall;
use crate::syscall::{Errno, retry_eintr};
use crate::text::{Text, decimal};
use crate::thread;
use crate::word::addr_of;

/// /proc/meminfo, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemInfo {
    /// `MemTotal`
    pub total_bytes: u64,
    /// `MemFree`
    pub free_bytes: u64,
    /// `MemAvailable`
    pub available_bytes: u64,
    /// `SwapTotal`
    pub swap_total_bytes: u64,
    /// `SwapFree`
    pub swap_free_bytes: u64,
    /// `CommitLimit`
    pub commit_limit_bytes: u64,
}

/// Bytes that nobody can guess, from the kernel.
pub fn random() -> Result<[u64; 2], Errno> {
    let mut bytes = [0; 2];
    let len = size_of_val(&bytes);
    // SAFETY: the kernel writes `len` bytes, which any value is made of.
    let written = retry_eintr(|| unsafe { syscall!(__NR_getrandom, addr_of(&raw mut bytes), len, 0) })?;
    if written == len { Ok(bytes) } else { Err(Errno::EIO) }
}

/// Read the memory of the machine.
pub fn meminfo() -> Result<MemInfo, Errno> {
    let mut buf = [0; 8192];
    let text = file::read_path(c"/proc/meminfo", &mut buf)?;
    let mut info = MemInfo::default();
    for line in text.split(|byte| *byte == b'\n') {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let Some((kib, _)) = decimal(&line[colon + 1..]) else { continue };
        let place = match &line[..colon] {
            b"MemTotal" => &mut info.total_bytes,
            b"MemFree" => &mut info.free_bytes,
            b"MemAvailable" => &mut info.available_bytes,
            b"SwapTotal" => &mut info.swap_total_bytes,
            b"SwapFree" => &mut info.swap_free_bytes,
            b"CommitLimit" => &mut info.commit_limit_bytes,
            _ => continue,
        };
        *place = kib * 1024;
    }
    Ok(info)
}

/// Memory that a program here can use, in bytes: the machine's, or a smaller limit of the control group that we are in (a container).
/// None: /proc/meminfo cannot be read.
pub fn usable_memory_bytes() -> Option<u64> {
    let machine = meminfo().ok()?.total_bytes;
    Some(cgroup_memory().limit_bytes.map_or(machine, |limit| limit.min(machine)))
}

/// CPUs on which this thread may run.
pub fn usable_cpus() -> u32 {
    thread::affinity(0).map_or(1, |set| set.count().max(1))
}

/// The number in a small file; `None` if there is no such file or no number.
pub fn number_in(path: &CStr) -> Option<u64> {
    let mut buf = [0; 64];
    let text = file::read_path(path, &mut buf).ok()?;
    decimal(text).map(|(value, _)| value)
}

/// What is known of the block device below a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockDevice {
    /// Its number: (major, minor), of the partition if it is one.
    pub number: (u32, u32),
    /// It has a seeking head, or says so: virtual disks often say so without one.
    pub rotational: bool,
    /// The kernel does write-back caching in front of it.
    pub write_back_cache: bool,
    /// The smallest request it likes.
    pub logical_block_bytes: u32,
}

/// The device of a path, a file's or a block device's own. ENODEV: no block device below (tmpfs, overlay, network).
pub fn block_device_of(path: &CStr) -> Result<BlockDevice, Errno> {
    let info = file::info_of_path(path)?;
    let number = if info.kind == FileKind::Block { info.is_device } else { info.device };
    if number.0 == 0 {
        return Err(Errno::ENODEV);
    }
    let attribute = |name: &str| {
        // A partition has no queue of its own: its parent's is one level up.
        let (major, minor) = number;
        let own = Text::<96>::format(format_args!("/sys/dev/block/{major}:{minor}/queue/{name}"));
        let parents = Text::<96>::format(format_args!("/sys/dev/block/{major}:{minor}/../queue/{name}"));
        [own, parents].into_iter().find_map(|path| {
            let mut buf = [0; 64];
            let text = file::read_path(path.as_c_str(), &mut buf).ok()?;
            let mut value = Text::<64>::new();
            value.push_bytes(text.trim_ascii());
            Some(value)
        })
    };
    let is = |name: &str, value: &str| attribute(name).is_some_and(|text| text.as_str() == value);
    let block = attribute("logical_block_size").and_then(|text| decimal(text.as_bytes()).map(|(value, _)| value));
    Ok(BlockDevice {
        number,
        rotational: is("rotational", "1"),
        write_back_cache: is("write_cache", "write back"),
        logical_block_bytes: block.and_then(|bytes| u32::try_from(bytes).ok()).unwrap_or(512),
    })
}

/// Which cgroup hierarchies are mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// None.
    None,
    /// Version 1 (a memory controller among others).
    V1,
    /// Version 2.
    V2,
}

/// The memory limit that binds this process: the smallest on the way up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CgroupMemory {
    /// Which hierarchy has the memory controller.
    pub version: CgroupVersion,
    /// The limit in bytes; `None`: no limit.
    pub limit_bytes: Option<u64>,
    /// What the group (not its parents) uses, if it is told.
    pub used_bytes: Option<u64>,
}

const PATH_BYTES: usize = 4352;

/// The memory controller of this process. Looks at the usual mount points only.
pub fn cgroup_memory() -> CgroupMemory {
    let mut buf = [0; 8192];
    let text = file::read_path(c"/proc/self/cgroup", &mut buf).unwrap_or_default();
    let v1 = text.split(|byte| *byte == b'\n').find_map(|line| group_path(line, has_memory));
    if let Some(path) = v1 {
        let tree = Tree { version: CgroupVersion::V1, mount: "/sys/fs/cgroup/memory", limit: "memory.limit_in_bytes" };
        return tree.read(path, "memory.usage_in_bytes");
    }
    let v2 = text.split(|byte| *byte == b'\n').find_map(|line| group_path(line, <[u8]>::is_empty));
    match v2 {
        Some(path) => {
            let mount = if Fd::open(c"/sys/fs/cgroup/cgroup.controllers", flags::READ, 0).is_ok() {
                "/sys/fs/cgroup"
            } else {
                "/sys/fs/cgroup/unified"
            };
            Tree { version: CgroupVersion::V2, mount, limit: "memory.max" }.read(path, "memory.current")
        }
        None => CgroupMemory { version: CgroupVersion::None, limit_bytes: None, used_bytes: None },
    }
}

fn has_memory(list: &[u8]) -> bool {
    list.split(|byte| *byte == b',').any(|name| name == b"memory")
}

/// The path of a line `number:controllers:path` whose controllers are wanted.
fn group_path(line: &[u8], wanted: impl Fn(&[u8]) -> bool) -> Option<&[u8]> {
    let mut parts = line.splitn(3, |byte| *byte == b':');
    let (_number, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
    wanted(controllers).then_some(path)
}

struct Tree {
    version: CgroupVersion,
    mount: &'static str,
    limit: &'static str,
}

impl Tree {
    fn read(&self, path: &[u8], usage: &str) -> CgroupMemory {
        let used_bytes = self.number(path, usage);
        let mut limit_bytes = None;
        let mut level = path;
        // Bounded by the depth of the path. `max` is no number, and version 1 says "none" by a huge one.
        loop {
            if let Some(bytes) = self.number(level, self.limit).filter(|bytes| *bytes < 1 << 62) {
                limit_bytes = Some(limit_bytes.map_or(bytes, |smallest: u64| smallest.min(bytes)));
            }
            let Some(slash) = level.iter().rposition(|byte| *byte == b'/') else { break };
            level = &level[..slash];
        }
        CgroupMemory { version: self.version, limit_bytes, used_bytes }
    }

    fn number(&self, group: &[u8], name: &str) -> Option<u64> {
        let mut path = Text::<PATH_BYTES>::new();
        path.push_bytes(self.mount.as_bytes());
        path.push_bytes(group);
        write!(path, "/{name}").ok()?;
        if path.is_cut() {
            return None;
        }
        number_in(path.as_c_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_both_versions_are_told_apart() {
        assert_eq!(group_path(b"4:cpu,memory:/a/b", has_memory), Some(b"/a/b".as_slice()));
        assert_eq!(group_path(b"4:cpu,memoryx:/a", has_memory), None);
        assert_eq!(group_path(b"0::/user.slice/x:y", <[u8]>::is_empty), Some(b"/user.slice/x:y".as_slice()));
        assert_eq!(group_path(b"", <[u8]>::is_empty), None);
    }

    #[test]
    fn the_machine_has_memory_cpus_and_a_disk() {
        let info = meminfo().expect("meminfo");
        assert!(info.available_bytes <= info.total_bytes && info.total_bytes > 1 << 20);
        assert!(usable_cpus() >= 1);
        assert_eq!(block_device_of(c"/proc"), Err(Errno::ENODEV));
    }
}
