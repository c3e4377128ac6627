//! Compressing one page at a time, without allocating.

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use pagetide_core::config::Compress;
use pagetide_sys::Errno;
use pagetide_sys::mem::PAGE_BYTES;
use zstd_safe::{CCtx, CParameter, DCtx, DParameter, FrameFormat};

/// The least level at which zstd compresses what it finds nowhere else, too.
const ZSTD_LEVEL: i32 = 1;

/// What compresses, with the memory that it needs.
pub(crate) enum Packer {
    /// LZ4: a table of 8 KiB.
    Lz4(CompressTable),
    /// Zstandard: 170 KiB.
    Zstd(Zstd),
}

/// What takes no memory of its own after its first page, for all are of one size.
pub(crate) struct Zstd {
    packs: CCtx<'static>,
    unpacks: DCtx<'static>,
}

impl Zstd {
    /// Nothing is stored that is known: the format, a page's length, its checksum.
    fn new() -> Result<Self, usize> {
        let (mut packs, mut unpacks) = (CCtx::try_create().ok_or(0_usize)?, DCtx::try_create().ok_or(0_usize)?);
        packs.set_parameter(CParameter::CompressionLevel(ZSTD_LEVEL))?;
        packs.set_parameter(CParameter::Format(FrameFormat::Magicless))?;
        packs.set_parameter(CParameter::ContentSizeFlag(false))?;
        unpacks.set_parameter(DParameter::Format(FrameFormat::Magicless))?;
        let mut room = [0; PAGE_BYTES];
        let len = packs.compress2(&mut room[..], &[0; PAGE_BYTES])?;
        unpacks.decompress(&mut [0; PAGE_BYTES][..], &room[..len])?;
        Ok(Self { packs, unpacks })
    }
}

impl std::fmt::Debug for Packer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Lz4(_) => f.write_str("lz4"),
            Self::Zstd(_) => f.write_str("zstd"),
        }
    }
}

impl Packer {
    /// None: nothing is to be compressed.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(crate) fn new(how: Compress) -> Result<Option<Self>, Errno> {
        Ok(match how {
            Compress::Off => None,
            Compress::Auto | Compress::Lz4 => Some(Self::Lz4(CompressTable::small())),
            Compress::Zstd => Some(Self::Zstd(Zstd::new().map_err(|_| Errno::ENOMEM)?)),
        })
    }

    /// Bytes that a page may take at worst.
    pub(super) fn room_bytes() -> usize {
        get_maximum_output_size(PAGE_BYTES)
    }

    /// Compress `page` into `room`, which is of `room_bytes`; the bytes used.
    pub(super) fn pack(&mut self, page: &[u8], room: &mut [u8]) -> Option<usize> {
        match self {
            Self::Lz4(table) => compress_into_with_table(page, room, table).ok(),
            Self::Zstd(zstd) => zstd.packs.compress2(room, page).ok(),
        }
    }

    /// Fill `page` with what `bytes` were made of. False: they are damaged.
    pub(super) fn unpack(&mut self, bytes: &[u8], page: &mut [u8]) -> bool {
        match self {
            Self::Lz4(_) => decompress_into(bytes, page).is_ok_and(|len| len == page.len()),
            Self::Zstd(zstd) => zstd.unpacks.decompress(page, bytes).is_ok_and(|len| len == PAGE_BYTES),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page of which the first `noise` bytes do not compress.
    fn page(noise: usize) -> Vec<u8> {
        let mut state = 88_172_645_463_325_252_u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[0]
        };
        (0..PAGE_BYTES).map(|at| if at < noise { next() } else { 7 }).collect()
    }

    #[test]
    fn every_page_comes_back_and_damage_never_reaches_beyond_it() {
        every_page_comes_back(Compress::Lz4);
        every_page_comes_back(Compress::Zstd);
    }

    fn every_page_comes_back(how: Compress) {
        let mut packer = Packer::new(how).expect("memory").expect("a way to compress");
        let mut room = vec![0; Packer::room_bytes()];
        for noise in [0, 1, 64, 1000, 2048, 4000, PAGE_BYTES] {
            let page = page(noise);
            let len = packer.pack(&page, &mut room).expect("the room is enough for any page");
            assert!(len < noise + 64, "{noise} bytes of noise take {len}");
            let mut back = vec![0; PAGE_BYTES];
            assert!(packer.unpack(&room[..len], &mut back) && back == page);
            for at in 0..len.min(300) {
                let mut damaged = room[..len].to_vec();
                damaged[at] ^= 0x55;
                // Refused, or other bytes: the checksum tells. Never more than the page.
                let _ = packer.unpack(&damaged, &mut back);
                let _ = packer.unpack(&damaged[..at], &mut back);
            }
        }
    }
}
