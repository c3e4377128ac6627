//! Block devices: how large one is, and ranges of it that one open description keeps others from.

use linux_raw_sys::general::{__NR_fcntl, F_OFD_GETLK, F_OFD_SETLK, F_UNLCK, F_WRLCK};

use crate::fd::Fd;
use crate::syscall;
use crate::syscall::{Errno, retry_eintr};
use crate::word::addr_of;

const BLKROGET: u32 = 0x125e;
const BLKGETSIZE64: u32 = 0x8008_1272;

/// The kernel's `struct flock` of 64-bit machines.
#[repr(C)]
struct Flock {
    kind: i16,
    whence: i16,
    start: i64,
    len: i64,
    pid: i32,
}

/// The device's bytes.
pub fn size_bytes(device: &Fd) -> Result<u64, Errno> {
    let mut bytes = 0_u64;
    // SAFETY: the request writes eight bytes there.
    unsafe { device.ioctl(BLKGETSIZE64, addr_of(&raw mut bytes)) }?;
    Ok(bytes)
}

/// True if nothing can be written to the device.
pub fn is_read_only(device: &Fd) -> Result<bool, Errno> {
    let mut answer = 0_i32;
    // SAFETY: the request writes four bytes there.
    unsafe { device.ioctl(BLKROGET, addr_of(&raw mut answer)) }?;
    Ok(answer != 0)
}

fn lock(file: &Fd, command: u32, kind: u32, offset: u64, len: u64) -> Result<Flock, Errno> {
    let [start, len] = [offset, len].map(|bytes| i64::try_from(bytes).map_err(|_| Errno::EINVAL));
    let kind = i16::try_from(kind).expect("a small constant");
    let mut lock = Flock { kind, whence: 0, start: start?, len: len?, pid: 0 };
    // SAFETY: the command reads the lock, and may write it.
    retry_eintr(|| unsafe { syscall!(__NR_fcntl, file.arg(), command as usize, addr_of(&raw mut lock)) })?;
    Ok(lock)
}

/// Keep a range from all other open descriptions of the file, until the last descriptor of this one is closed, in whatever process.
/// False: another one has a part of it.
pub fn try_lock(file: &Fd, offset: u64, len: u64) -> Result<bool, Errno> {
    match lock(file, F_OFD_SETLK, F_WRLCK, offset, len) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Let others have a range that this open description has kept.
pub fn unlock(file: &Fd, offset: u64, len: u64) -> Result<(), Errno> {
    lock(file, F_OFD_SETLK, F_UNLCK, offset, len).map(|_| ())
}

/// True if no other open description keeps a part of the range.
pub fn is_unlocked(file: &Fd, offset: u64, len: u64) -> Result<bool, Errno> {
    lock(file, F_OFD_GETLK, F_WRLCK, offset, len).map(|lock| u32::try_from(lock.kind) == Ok(F_UNLCK))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fd::memfd;
    use crate::file::flags;
    use crate::text::Text;

    #[test]
    fn a_range_is_kept_until_the_last_descriptor_is_closed() {
        let first = memfd(c"pagetide-test").expect("a memory file");
        let path = Text::<64>::format(format_args!("/proc/self/fd/{}", first.raw()));
        let second = Fd::open(path.as_c_str(), flags::READ_WRITE, 0).expect("it may be opened again");
        assert_eq!(try_lock(&first, 4096, 4096), Ok(true));
        assert_eq!(try_lock(&first, 4096, 4096), Ok(true), "its own");
        assert_eq!(try_lock(&second, 8191, 1), Ok(false));
        assert_eq!(is_unlocked(&second, 0, 4096), Ok(true));
        assert_eq!(is_unlocked(&second, 0, 4097), Ok(false));
        assert_eq!((unlock(&first, 4096, 2048), try_lock(&second, 4096, 2048)), (Ok(()), Ok(true)));
        assert_eq!((try_lock(&second, 4096, 4096), unlock(&second, 4096, 2048)), (Ok(false), Ok(())));
        assert_eq!(try_lock(&first, 4096, 4096), Ok(true));
        let copy = first.dup_high(0).expect("a descriptor is left");
        drop(first);
        assert_eq!(try_lock(&second, 4096, 4096), Ok(false));
        drop(copy);
        assert_eq!(try_lock(&second, 4096, 4096), Ok(true));
    }

    #[test]
    fn a_file_is_no_device() {
        let file = memfd(c"pagetide-test").expect("a memory file");
        assert!(size_bytes(&file).is_err() && is_read_only(&file).is_err());
    }
}
