//! Reading, writing, placing and measuring files, into buffers of the caller or into ranges of frames.

use core::ffi::CStr;
use core::mem::MaybeUninit;

use linux_raw_sys::general as k;
use linux_raw_sys::general::{
    __NR_fallocate, __NR_fstatfs, __NR_fsync, __NR_ftruncate, __NR_newfstatat, __NR_pread64, __NR_preadv, __NR_preadv2,
    __NR_pwrite64, __NR_pwritev, __NR_pwritev2, __NR_read, __NR_readlinkat, __NR_statx, __NR_unlinkat, __NR_write,
    __NR_writev, AT_EMPTY_PATH, AT_FDCWD, FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE,
};

use crate::fd::Fd;
use crate::mem::ManagedRange;
use crate::syscall;
use crate::syscall::{Errno, retry_eintr};
use crate::word::{addr_of, int_arg, low_u32, usize_of};

/// Flags of [`Fd::open`].
pub mod flags {
    use linux_raw_sys::general as k;

    /// `O_RDONLY`
    pub const READ: u32 = k::O_RDONLY;
    /// `O_WRONLY`
    pub const WRITE: u32 = k::O_WRONLY;
    /// `O_RDWR`
    pub const READ_WRITE: u32 = k::O_RDWR;
    /// `O_CREAT`
    pub const CREATE: u32 = k::O_CREAT;
    /// `O_EXCL`
    pub const EXCLUSIVE: u32 = k::O_EXCL;
    /// `O_TRUNC`
    pub const TRUNCATE: u32 = k::O_TRUNC;
    /// `O_DIRECT`
    pub const DIRECT: u32 = k::O_DIRECT;
    /// `O_TMPFILE`
    pub const UNNAMED: u32 = k::O_TMPFILE;
    /// `O_NONBLOCK`
    pub const NONBLOCK: u32 = k::O_NONBLOCK;
    /// `O_NOCTTY`
    pub const NO_TERMINAL: u32 = k::O_NOCTTY;
    /// `O_DIRECTORY`
    pub const DIRECTORY: u32 = k::O_DIRECTORY;
    /// `O_PATH`
    pub const PATH: u32 = k::O_PATH;
}

/// Flags of the positioned vectored calls (`RWF_*`).
pub mod rw {
    /// `RWF_NOWAIT`: EAGAIN instead of waiting.
    pub const NO_WAIT: u32 = 0x8;
}

/// One piece of a vectored request: the kernel's `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoVec {
    base: usize,
    len: usize,
}

impl IoVec {
    /// The memory of `range`.
    pub const fn new(range: ManagedRange) -> Self {
        Self { base: range.start(), len: range.len() }
    }

    /// First address.
    pub const fn start(&self) -> usize {
        self.base
    }

    /// Length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "a piece of a request is a length, not a collection")]
    pub const fn len(&self) -> usize {
        self.len
    }
}

impl Default for IoVec {
    /// An empty piece.
    fn default() -> Self {
        Self { base: 0, len: 0 }
    }
}

/// Read what is there, at most `buf.len()` bytes. 0 at the end of the file.
pub fn read(fd: &Fd, buf: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the kernel writes at most `buf.len()` bytes into `buf`.
    retry_eintr(|| unsafe { syscall!(__NR_read, fd.arg(), addr_of(buf.as_mut_ptr()), buf.len()) })
}

/// Write what fits, at most `buf.len()` bytes.
pub fn write(fd: &Fd, buf: &[u8]) -> Result<usize, Errno> {
    // SAFETY: the kernel only reads `buf`.
    retry_eintr(|| unsafe { syscall!(__NR_write, fd.arg(), addr_of(buf.as_ptr()), buf.len()) })
}

/// Write all of `buf`; a call that writes nothing is an I/O error.
pub fn write_all(fd: &Fd, mut buf: &[u8]) -> Result<(), Errno> {
    while !buf.is_empty() {
        match write(fd, buf)? {
            0 => return Err(Errno::EIO),
            done => buf = &buf[done..],
        }
    }
    Ok(())
}

/// Read until the end of the file or of `buf`; the part of `buf` that was filled.
pub fn read_to_end<'a>(fd: &Fd, buf: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let mut filled = 0;
    while filled < buf.len() {
        match read(fd, &mut buf[filled..])? {
            0 => break,
            done => filled += done,
        }
    }
    Ok(&buf[..filled])
}

/// Open, read at most `buf.len()` bytes, close. For the small files of /proc and /sys.
pub fn read_path<'a>(path: &CStr, buf: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let fd = Fd::open(path, flags::READ, 0)?;
    read_to_end(&fd, buf)
}

/// Read at most `buf.len()` bytes at `offset`.
pub fn pread(fd: &Fd, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let (addr, len, offset) = (addr_of(buf.as_mut_ptr()), buf.len(), usize_of(offset));
    // SAFETY: the kernel writes at most `len` bytes into `buf`.
    retry_eintr(|| unsafe { syscall!(__NR_pread64, fd.arg(), addr, len, offset) })
}

/// Write at most `buf.len()` bytes at `offset`.
pub fn pwrite(fd: &Fd, buf: &[u8], offset: u64) -> Result<usize, Errno> {
    let (addr, len, offset) = (addr_of(buf.as_ptr()), buf.len(), usize_of(offset));
    // SAFETY: the kernel only reads `buf`.
    retry_eintr(|| unsafe { syscall!(__NR_pwrite64, fd.arg(), addr, len, offset) })
}

/// Read into frames at `offset`; `rw_flags` from [`rw`]. May be short.
pub fn preadv(fd: &Fd, pieces: &[IoVec], offset: u64, rw_flags: u32) -> Result<usize, Errno> {
    let nr = if rw_flags == 0 { __NR_preadv } else { __NR_preadv2 };
    // SAFETY: the pieces were made from managed ranges, which anyone may write at any time.
    unsafe { vectored(nr, fd, pieces, offset, rw_flags) }
}

/// Write frames at `offset`; `rw_flags` from [`rw`]. May be short.
pub fn pwritev(fd: &Fd, pieces: &[IoVec], offset: u64, rw_flags: u32) -> Result<usize, Errno> {
    let nr = if rw_flags == 0 { __NR_pwritev } else { __NR_pwritev2 };
    // SAFETY: the kernel only reads the pieces.
    unsafe { vectored(nr, fd, pieces, offset, rw_flags) }
}

/// Write frames to a pipe or socket, or where a file is. May be short.
pub fn writev(fd: &Fd, pieces: &[IoVec]) -> Result<usize, Errno> {
    let (addr, count) = (addr_of(pieces.as_ptr()), pieces.len());
    // SAFETY: the kernel only reads the pieces.
    retry_eintr(|| unsafe { syscall!(__NR_writev, fd.arg(), addr, count) })
}

/// # Safety
/// The memory of the pieces may be read or written by the kernel as call `nr` does.
unsafe fn vectored(nr: u32, fd: &Fd, pieces: &[IoVec], offset: u64, rw_flags: u32) -> Result<usize, Errno> {
    let (addr, count, offset, rw_flags) = (addr_of(pieces.as_ptr()), pieces.len(), usize_of(offset), rw_flags as usize);
    // The offset is one register on 64-bit machines; the second half is ignored there.
    // SAFETY: the caller vouches for the pieces.
    retry_eintr(|| unsafe { syscall!(nr, fd.arg(), addr, count, offset, 0, rw_flags) })
}

/// Set the length.
pub fn truncate(fd: &Fd, len: u64) -> Result<(), Errno> {
    // SAFETY: changes the file only.
    retry_eintr(|| unsafe { syscall!(__NR_ftruncate, fd.arg(), usize_of(len)) }).map(|_| ())
}

/// Give `offset..offset + len` blocks on the device, growing the file if need be.
pub fn allocate(fd: &Fd, offset: u64, len: u64) -> Result<(), Errno> {
    // SAFETY: changes the file only.
    retry_eintr(|| unsafe { syscall!(__NR_fallocate, fd.arg(), 0, usize_of(offset), usize_of(len)) }).map(|_| ())
}

/// Give the blocks of `offset..offset + len` back; the length stays.
pub fn punch(fd: &Fd, offset: u64, len: u64) -> Result<(), Errno> {
    let mode = (FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE) as usize;
    // SAFETY: changes the file only.
    retry_eintr(|| unsafe { syscall!(__NR_fallocate, fd.arg(), mode, usize_of(offset), usize_of(len)) }).map(|_| ())
}

/// Wait until everything written is on the device.
pub fn sync(fd: &Fd) -> Result<(), Errno> {
    // SAFETY: changes no memory.
    retry_eintr(|| unsafe { syscall!(__NR_fsync, fd.arg()) }).map(|_| ())
}

/// Remove a name.
pub fn unlink(path: &CStr) -> Result<(), Errno> {
    // SAFETY: the kernel reads the path.
    unsafe { syscall!(__NR_unlinkat, int_arg(AT_FDCWD), addr_of(path.as_ptr()), 0) }.map(|_| ())
}

/// The target of a symbolic link, into `buf`; cut if it does not fit.
pub fn read_link<'a>(path: &CStr, buf: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let (dir, path, out) = (int_arg(AT_FDCWD), addr_of(path.as_ptr()), addr_of(buf.as_mut_ptr()));
    // SAFETY: the kernel reads the path and writes at most `buf.len()` bytes into `buf`.
    let len = unsafe { syscall!(__NR_readlinkat, dir, path, out, buf.len()) }?;
    Ok(&buf[..len])
}

/// The kind of file system a file lies on, as far as it matters for swapping to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsKind {
    /// tmpfs: memory, not a disk.
    Tmpfs,
    /// ramfs: memory, not a disk.
    Ramfs,
    /// overlayfs: direct I/O depends on the file system below.
    Overlay,
    /// NFS: a network.
    Nfs,
    /// CIFS or SMB: a network.
    Cifs,
    /// FUSE: a program answers, which may itself be paged.
    Fuse,
    /// ext2, ext3 or ext4.
    Ext,
    /// XFS.
    Xfs,
    /// Btrfs: copy on write, checksums.
    Btrfs,
    /// F2FS.
    F2fs,
    /// ZFS.
    Zfs,
    /// procfs: what the kernel tells of processes.
    Proc,
    /// Another one, by its magic number.
    Other(u32),
}

impl FsKind {
    /// True if what is written there stays in memory: swapping to it frees nothing.
    pub const fn is_memory(self) -> bool {
        matches!(self, Self::Tmpfs | Self::Ramfs)
    }

    const fn of(magic: u32) -> Self {
        match magic {
            0x0102_1994 => Self::Tmpfs,
            0x8584_58f6 => Self::Ramfs,
            0x794c_7630 => Self::Overlay,
            0x6969 => Self::Nfs,
            0xff53_4d42 | 0xfe53_4d42 => Self::Cifs,
            0x6573_5546 => Self::Fuse,
            0xef53 => Self::Ext,
            0x5846_5342 => Self::Xfs,
            0x9123_683e => Self::Btrfs,
            0xf2f5_2010 => Self::F2fs,
            0x2fc1_2fc1 => Self::Zfs,
            0x9fa0 => Self::Proc,
            other => Self::Other(other),
        }
    }
}

/// Space and kind of the file system of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsInfo {
    /// Which.
    pub kind: FsKind,
    /// Bytes in all.
    pub size_bytes: u64,
    /// Bytes that an ordinary user may still take.
    pub available_bytes: u64,
}

/// The file system of `fd`.
pub fn fs_info(fd: &Fd) -> Result<FsInfo, Errno> {
    // The layout is the same on both machines: eleven words and a reserve, the first the magic number.
    let mut words = [0u64; 16];
    // SAFETY: the kernel writes a struct statfs of 120 bytes into 128.
    unsafe { syscall!(__NR_fstatfs, fd.arg(), addr_of(&raw mut words)) }?;
    let [magic, block_bytes, blocks, _free, available, ..] = words;
    Ok(FsInfo {
        kind: FsKind::of(low_u32(magic)),
        size_bytes: block_bytes.saturating_mul(blocks),
        available_bytes: block_bytes.saturating_mul(available),
    })
}

/// What kind of thing a path names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A block device.
    Block,
    /// A character device.
    Char,
    /// A pipe, socket or link.
    Other,
}

impl FileKind {
    const fn of(mode: u32) -> Self {
        match mode & k::S_IFMT {
            k::S_IFREG => Self::Regular,
            k::S_IFDIR => Self::Directory,
            k::S_IFBLK => Self::Block,
            k::S_IFCHR => Self::Char,
            0.. => Self::Other,
        }
    }
}

/// Identity and size of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// What it is.
    pub kind: FileKind,
    /// Permission bits, setuid and setgid among them.
    pub mode: u32,
    /// Length in bytes.
    pub size_bytes: u64,
    /// Bytes of blocks that it holds.
    pub allocated_bytes: u64,
    /// Inode number.
    pub inode: u64,
    /// Number of names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Device the file lies on: (major, minor).
    pub device: (u32, u32),
    /// Device that the file is, if it is one: (major, minor).
    pub is_device: (u32, u32),
    /// Alignment of memory and of offsets for direct I/O in bytes; 0 if refused or not known.
    pub direct_align_bytes: (u32, u32),
}

/// Look at an open file.
pub fn info(fd: &Fd) -> Result<FileInfo, Errno> {
    stat(fd.arg(), c"", AT_EMPTY_PATH)
}

/// Look at a path, following links.
pub fn info_of_path(path: &CStr) -> Result<FileInfo, Errno> {
    stat(int_arg(AT_FDCWD), path, 0)
}

fn stat(dir: usize, path: &CStr, at_flags: u32) -> Result<FileInfo, Errno> {
    let mask = (k::STATX_BASIC_STATS | k::STATX_DIOALIGN) as usize;
    let mut out = MaybeUninit::<k::statx>::zeroed();
    let (path, out_addr) = (addr_of(path.as_ptr()), addr_of(out.as_mut_ptr()));
    // SAFETY: the kernel reads the path and writes one struct statx.
    unsafe { syscall!(__NR_statx, dir, path, at_flags as usize, mask, out_addr) }?;
    // SAFETY: every field is an integer, for which zeroes or what the kernel wrote are values.
    let out = unsafe { out.assume_init() };
    let mode = u32::from(out.stx_mode);
    Ok(FileInfo {
        kind: FileKind::of(mode),
        mode: mode & !k::S_IFMT,
        size_bytes: out.stx_size,
        allocated_bytes: out.stx_blocks * 512,
        inode: out.stx_ino,
        links: out.stx_nlink,
        uid: out.stx_uid,
        device: (out.stx_dev_major, out.stx_dev_minor),
        is_device: (out.stx_rdev_major, out.stx_rdev_minor),
        direct_align_bytes: (out.stx_dio_mem_align, out.stx_dio_offset_align),
    })
}

/// Which file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Device and inode, as fstat(2) has them.
    pub number: [u64; 2],
    /// Its kind.
    pub kind: FileKind,
}

/// The same of an open file, by the call that C libraries make as well: a system call filter that lets programs begin allows it.
pub fn identity(fd: &Fd) -> Result<Identity, Errno> {
    let mut out = MaybeUninit::<k::stat>::zeroed();
    let (path, out_addr) = (addr_of(c"".as_ptr()), addr_of(out.as_mut_ptr()));
    // SAFETY: the kernel reads the path and writes one struct stat.
    unsafe { syscall!(__NR_newfstatat, fd.arg(), path, out_addr, AT_EMPTY_PATH as usize) }?;
    // SAFETY: every field is an integer, for which zeroes or what the kernel wrote are values.
    let out = unsafe { out.assume_init() };
    Ok(Identity { number: [out.st_dev, out.st_ino], kind: FileKind::of(out.st_mode) })
}

/// Add `value` to an event counter.
pub fn signal_event(fd: &Fd, value: u64) -> Result<(), Errno> {
    write(fd, &value.to_ne_bytes()).map(|_| ())
}

/// Take the value of an event counter and set it to zero; `None` if it is zero.
pub fn take_event(fd: &Fd) -> Result<Option<u64>, Errno> {
    let mut value = [0; 8];
    match read(fd, &mut value) {
        Ok(8) => Ok(Some(u64::from_ne_bytes(value))),
        Ok(_) => Err(Errno::EINVAL),
        Err(Errno::EAGAIN) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memory_file_is_told_from_a_disk() {
        let fd = crate::fd::memfd(c"pagetide-test").expect("memfd");
        truncate(&fd, 8192).expect("truncate");
        assert_eq!(pwrite(&fd, b"tide", 4096), Ok(4));
        let mut buf = [0; 6];
        assert_eq!(pread(&fd, &mut buf, 4095), Ok(6));
        assert_eq!(&buf, b"\0tide\0");
        let info = info(&fd).expect("statx");
        assert_eq!((info.kind, info.size_bytes, info.links), (FileKind::Regular, 8192, 0));
        assert!(fs_info(&fd).expect("statfs").kind.is_memory());
    }

    #[test]
    fn an_event_counter_is_taken_once() {
        let fd = crate::fd::eventfd(0).expect("eventfd");
        assert_eq!(take_event(&fd), Ok(None));
        signal_event(&fd, 3).expect("signal");
        signal_event(&fd, 4).expect("signal");
        assert_eq!(take_event(&fd), Ok(Some(7)));
        assert_eq!(take_event(&fd), Ok(None));
    }

    #[test]
    fn paths_are_read_whole_or_not_found() {
        let mut buf = [0; 128];
        assert!(read_path(c"/proc/self/stat", &mut buf).is_ok_and(|text| text.len() > 20));
        assert_eq!(read_path(c"/proc/no-such-file", &mut buf), Err(Errno::ENOENT));
        assert_eq!(info_of_path(c"/proc").map(|info| info.kind), Ok(FileKind::Directory));
    }
}
