//! What this machine has, as far as a budget and a place for swap need it.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use pagetide_sys::fd::Fd;
use pagetide_sys::file::{self, FsInfo};
use pagetide_sys::sysinfo;
use rustix::fs::{Access, access};

use crate::failure::Failure;

/// Memory that a program here can use.
pub(crate) fn memory_bytes() -> Option<u64> {
    sysinfo::usable_memory_bytes()
}

/// The same, where nothing can be done without.
pub(crate) fn required_memory_bytes() -> Result<u64, Failure> {
    memory_bytes().ok_or_else(|| {
        Failure::unsupported("cannot read the size of this machine's memory from /proc/meminfo", "mount /proc")
    })
}

/// A directory as a place for swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// It lies on a disk (not in memory, as tmpfs does) and files can be made in it.
    pub(crate) usable: bool,
    /// What this user can still write.
    pub(crate) free_bytes: u64,
}

impl Place {
    /// Looks at a directory.
    pub(crate) fn of(directory: &Path) -> io::Result<Self> {
        let name = CString::new(directory.as_os_str().as_bytes())?;
        let failed = |errno: pagetide_sys::Errno| io::Error::from_raw_os_error(errno.code());
        let open = Fd::open(&name, file::flags::READ | file::flags::DIRECTORY, 0).map_err(failed)?;
        let FsInfo { kind, available_bytes, .. } = file::fs_info(&open).map_err(failed)?;
        let writable = access(directory, Access::WRITE_OK).is_ok();
        Ok(Self { usable: writable && !kind.is_memory(), free_bytes: available_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_memory() {
        assert!(memory_bytes().expect("Linux has /proc/meminfo") > 1 << 20);
    }

    #[test]
    fn a_file_system_in_memory_is_no_place_for_swap() {
        assert!(Place::of(Path::new("/dev/shm")).is_ok_and(|place| !place.usable));
        assert!(Place::of(Path::new("/nonexistent")).is_err());
        assert!(Place::of(Path::new("/proc/self/cmdline")).is_err());
    }
}
