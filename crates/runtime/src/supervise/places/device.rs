//! A block device as a place to swap to: what is asked of it before anything is written.
//!
//! Whatever is on it is overwritten, so it must be meant for that, as mkswap(8) makes it, or hold nothing. It must not be in use:
//! opened exclusively, as mount(8), swapon(8) and mkfs(8) open it, it is neither theirs nor another run's.

use std::ffi::CString;
use std::path::Path;

use pagetide_sys::fd::Fd;
use pagetide_sys::file::{self, flags};
use pagetide_sys::{Errno, block};

use crate::extents::{Division, END_BYTES};

/// What stands where on a device that is in use for something.
const SIGNATURES: [(u64, &[u8], &str); 18] = [
    (0x438, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
    (0, b"XFSB", "an XFS file system"),
    (0x1_0040, b"_BHRfS_M", "a btrfs file system"),
    (0x400, b"\x10\x20\xf5\xf2", "an F2FS file system"),
    (0x8001, b"CD001", "an ISO 9660 file system"),
    (0, b"hsqs", "a squashfs file system"),
    (0x400, b"\xe2\xe1\xf5\xe0", "an EROFS file system"),
    (0x1018, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca", "a bcache device"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (0, b"LUKS\xba\xbe", "an encrypted volume (LUKS)"),
    (0x218, b"LVM2 001", "a volume of LVM"),
    (0, b"\xfc\x4e\x2b\xa9", "a part of a RAID (md)"),
    (0x1000, b"\xfc\x4e\x2b\xa9", "a part of a RAID (md)"),
    (0x200, b"EFI PART", "a partition table (GPT)"),
    (0x1000, b"EFI PART", "a partition table (GPT)"),
    (0xff6, b"S1SUSPEND", "a suspended system"),
    (0x1fe, b"\x55\xaa", "a partition table or a FAT file system"),
];
/// Where mkswap(8) writes its signature for pages of 4 KiB.
const SWAP_SIGNATURE: (u64, &[u8]) = (0xff6, b"SWAPSPACE2");

/// What the two ends of a device say of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// It was made for swapping.
    Swap,
    /// Zeroes.
    Nothing,
    /// Something that was recognised.
    Known(&'static str),
    /// Something.
    Unknown,
}

/// Open a device for a run alone, and divide it, or its first `asked` bytes. The error says why it cannot be used.
pub(super) fn open(path: &Path, asked: Option<u64>) -> Result<(Fd, Division), String> {
    let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_| "a zero byte in its name".to_owned())?;
    let device = Fd::open(&name, flags::READ_WRITE | flags::EXCLUSIVE, 0).map_err(|errno| why_not(errno).to_owned())?;
    let failed = |errno: Errno| format!("the device cannot be read ({})", errno.name());
    if block::is_read_only(&device).map_err(failed)? {
        return Err(why_not(Errno::EROFS).to_owned());
    }
    let size = block::size_bytes(&device).map_err(failed)?;
    let division = divide(size, asked)?;
    let ends = read_ends(&device, size).map_err(failed)?;
    let what = match content(&ends) {
        Content::Swap | Content::Nothing => return Ok((device, division)),
        Content::Known(what) => what,
        Content::Unknown => "something",
    };
    let shown = path.display();
    Err(format!("the device holds {what}, which would be overwritten; if it is not needed, say so: mkswap {shown}"))
}

/// A further open description of the device, for one process.
pub(super) fn open_again(device: &Fd) -> Result<Fd, Errno> {
    let path = pagetide_sys::text::Text::<64>::format(format_args!("/proc/self/fd/{}", device.raw()));
    Fd::open(path.as_c_str(), flags::READ_WRITE | flags::DIRECT, 0)
}

fn why_not(errno: Errno) -> &'static str {
    match errno {
        Errno::EBUSY => "the device is in use: mounted, swapped to, a part of another device, or another run's",
        Errno::EROFS => "the device is read-only",
        Errno::EACCES | Errno::EPERM => "this user may not write the device",
        Errno::ENXIO | Errno::ENODEV => "there is no device behind this name, or no medium in it",
        other => other.name(),
    }
}

fn divide(size: u64, asked: Option<u64>) -> Result<Division, String> {
    let mib = |bytes: u64| bytes >> 20;
    if let Some(asked) = asked.filter(|&asked| asked > size) {
        return Err(format!("{} MiB are asked for; the device has {} MiB: give a smaller SIZE", mib(asked), mib(size)));
    }
    let used = asked.unwrap_or(size);
    Division::of_bytes(used).ok_or_else(|| {
        let least = mib(2 * END_BYTES) + 1;
        format!(
            "{} KiB are too small: at least {least} MiB of a device are needed, 1 MiB at either end stays as it is",
            used >> 10
        )
    })
}

/// The first and the last bytes, one after the other.
fn read_ends(device: &Fd, size: u64) -> Result<Vec<u8>, Errno> {
    let end = usize::try_from(END_BYTES).expect("a small constant");
    let mut ends = vec![0; 2 * end];
    for (part, offset) in ends.chunks_exact_mut(end).zip([0, size - END_BYTES]) {
        let mut done = 0;
        while done < end {
            match file::pread(device, &mut part[done..], offset + done as u64)? {
                0 => return Err(Errno::EIO),
                read => done += read,
            }
        }
    }
    Ok(ends)
}

fn content(ends: &[u8]) -> Content {
    let has = |at: u64, what: &[u8]| {
        usize::try_from(at).is_ok_and(|at| ends.get(at..).is_some_and(|bytes| bytes.starts_with(what)))
    };
    if let Some((.., what)) = SIGNATURES.iter().find(|(at, bytes, _)| has(*at, bytes)) {
        return Content::Known(what);
    }
    match has(SWAP_SIGNATURE.0, SWAP_SIGNATURE.1) {
        true => Content::Swap,
        false if ends.iter().all(|&byte| byte == 0) => Content::Nothing,
        false => Content::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends_with(parts: &[(u64, &[u8])]) -> Vec<u8> {
        let mut ends = vec![0; 2 << 20];
        for (at, bytes) in parts {
            let at = usize::try_from(*at).expect("a small offset");
            ends[at..at + bytes.len()].copy_from_slice(bytes);
        }
        ends
    }

    #[test]
    fn only_swap_areas_and_empty_devices_are_taken() {
        assert_eq!(content(&ends_with(&[])), Content::Nothing);
        assert_eq!(content(&ends_with(&[SWAP_SIGNATURE])), Content::Swap);
        assert_eq!(content(&ends_with(&[SWAP_SIGNATURE, (0x2_0000, b"old bytes")])), Content::Swap);
        assert_eq!(content(&ends_with(&[(2 * END_BYTES - 1, b"x")])), Content::Unknown);
        for (at, bytes, what) in SIGNATURES {
            assert!(matches!(content(&ends_with(&[(at, bytes)])), Content::Known(_)), "{what}");
            if at != SWAP_SIGNATURE.0 {
                assert!(matches!(content(&ends_with(&[(at, bytes), SWAP_SIGNATURE])), Content::Known(_)), "{what}");
            }
        }
    }

    #[test]
    fn a_device_without_room_is_told_the_sizes() {
        assert!(divide(64 << 20, None).is_ok());
        let told = divide(64 << 20, Some(65 << 20)).expect_err("more than it has");
        assert!(told.contains("65 MiB are asked for; the device has 64 MiB"), "{told}");
        assert!(divide(2 << 20, None).expect_err("no room").contains("2048 KiB are too small: at least 3 MiB"));
    }
}
