//! The kernel's clock function in the page it maps into every process, found without libc.
//!
//! The function is plain code: it reads a data page of the kernel and, if it cannot, makes the system call. It touches no
//! thread-local storage. Only its address is looked up here, by name, in the object's own symbol table.

use core::ffi::CStr;

use crate::file;
use crate::word::usize_of;

/// `AT_SYSINFO_EHDR`
const OBJECT_START: u64 = 33;

#[cfg(target_arch = "x86_64")]
const CLOCK_NAME: &CStr = c"__vdso_clock_gettime";
#[cfg(target_arch = "aarch64")]
const CLOCK_NAME: &CStr = c"__kernel_clock_gettime";

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_HASH: u64 = 4;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
/// Entries looked at in any table: the object has a dozen symbols.
const ENTRIES_MAX: usize = 64;

/// Address of the clock function, if the object is there and has it.
pub(crate) fn clock_function() -> Option<usize> {
    // SAFETY: the auxiliary vector names the object, which the kernel has mapped and never unmaps.
    let object = unsafe { Object::at(object_start()?) }?;
    object.find(CLOCK_NAME)
}

/// Where the kernel says the object is.
fn object_start() -> Option<usize> {
    let mut buf = [0; 1024];
    let bytes = file::read_path(c"/proc/self/auxv", &mut buf).ok()?;
    let word = |piece: &[u8]| piece.try_into().map_or(0, u64::from_ne_bytes);
    let mut pairs = bytes.chunks_exact(16).map(|pair| (word(&pair[..8]), word(&pair[8..])));
    pairs.find(|(key, _)| *key == OBJECT_START).map(|(_, value)| usize_of(value))
}

/// A mapped ELF object: addresses of its tables.
struct Object {
    /// What is added to an address of the file.
    shift: usize,
    strings: usize,
    symbols: usize,
    nr_symbols: usize,
}

/// Read a value of the object.
///
/// # Safety
/// `addr` lies in the mapped object and is aligned for `T`, an integer.
unsafe fn get<T: Copy>(addr: usize) -> T {
    let pointer: *const T = core::ptr::with_exposed_provenance(addr);
    // SAFETY: the caller vouches for the address.
    unsafe { pointer.read() }
}

impl Object {
    /// Find the tables.
    ///
    /// # Safety
    /// A well-formed object of this machine is mapped at `start` as one piece.
    unsafe fn at(start: usize) -> Option<Self> {
        // SAFETY: the header is at the start: a magic number, program header offset at 32, entry size at 54, count at 56.
        let magic = unsafe { get::<u32>(start) };
        if magic != u32::from_le_bytes(*b"\x7fELF") {
            return None;
        }
        // SAFETY: as above.
        let headers = start + usize_of(unsafe { get::<u64>(start + 32) });
        // SAFETY: as above.
        let [header_bytes, nr_headers] = unsafe { get::<[u16; 2]>(start + 54) };
        let (mut shift, mut dynamic) = (None, None);
        for index in 0..usize::from(nr_headers).min(ENTRIES_MAX) {
            let header = headers + index * usize::from(header_bytes);
            // SAFETY: a program header: kind at 0, file offset at 8, address at 16.
            let kind = unsafe { get::<u32>(header) };
            // SAFETY: as above.
            let [offset, addr] = unsafe { get::<[u64; 2]>(header + 8) };
            match kind {
                PT_LOAD if shift.is_none() => shift = Some((start + usize_of(offset)).wrapping_sub(usize_of(addr))),
                PT_DYNAMIC => dynamic = Some(start + usize_of(offset)),
                0.. => {}
            }
        }
        // SAFETY: the dynamic section of the object.
        unsafe { Self::from_dynamic(shift?, dynamic?) }
    }

    /// # Safety
    /// `dynamic` is the dynamic section of a well-formed object whose addresses are moved by `shift`.
    unsafe fn from_dynamic(shift: usize, dynamic: usize) -> Option<Self> {
        let (mut strings, mut symbols, mut hash, mut gnu_hash) = (None, None, None, None);
        for index in 0..ENTRIES_MAX {
            // SAFETY: entries are pairs of words up to one with a zero.
            let [tag, value] = unsafe { get::<[u64; 2]>(dynamic + index * 16) };
            let addr = shift.wrapping_add(usize_of(value));
            match tag {
                0 => break,
                DT_STRTAB => strings = Some(addr),
                DT_SYMTAB => symbols = Some(addr),
                DT_HASH => hash = Some(addr),
                DT_GNU_HASH => gnu_hash = Some(addr),
                1.. => {}
            }
        }
        let nr_symbols = match (hash, gnu_hash) {
            // SAFETY: the second word of the old table is the number of symbols.
            (Some(hash), _) => usize_of(u64::from(unsafe { get::<u32>(hash + 4) })),
            // SAFETY: a well-formed table.
            (None, Some(table)) => unsafe { count_by_gnu_hash(table) },
            (None, None) => return None,
        };
        Some(Self { shift, strings: strings?, symbols: symbols?, nr_symbols: nr_symbols.min(ENTRIES_MAX) })
    }

    fn find(&self, wanted: &CStr) -> Option<usize> {
        for index in 0..self.nr_symbols {
            let symbol = self.symbols + index * 24;
            // SAFETY: a symbol: name at 0, section at 6, value at 8.
            let name = unsafe { get::<u32>(symbol) };
            // SAFETY: as above.
            let section = unsafe { get::<u16>(symbol + 6) };
            // SAFETY: as above.
            let value = unsafe { get::<u64>(symbol + 8) };
            let name: *const core::ffi::c_char = core::ptr::with_exposed_provenance(self.strings + name as usize);
            // SAFETY: the table holds zero-terminated names.
            let name = unsafe { CStr::from_ptr(name) };
            if section != 0 && name == wanted {
                return Some(self.shift.wrapping_add(usize_of(value)));
            }
        }
        None
    }
}

/// The number of symbols that a GNU hash table covers: one past the last of the longest chain.
///
/// # Safety
/// `table` is such a table, well-formed.
unsafe fn count_by_gnu_hash(table: usize) -> usize {
    // SAFETY: the head: buckets, first symbol, words of the filter, its shift.
    let [nr_buckets, first, filter_words, _] = unsafe { get::<[u32; 4]>(table) }.map(|word| word as usize);
    let buckets = table + 16 + filter_words * 8;
    let chains = buckets + nr_buckets * 4;
    let mut last = 0;
    for index in 0..nr_buckets.min(ENTRIES_MAX) {
        // SAFETY: one word per bucket.
        last = last.max(unsafe { get::<u32>(buckets + index * 4) } as usize);
    }
    if last < first {
        return first;
    }
    // The chain of the last bucket ends at a word with its lowest bit set. Bounded as every table here.
    while last < first + ENTRIES_MAX {
        // SAFETY: one word per symbol from the first covered one.
        let word = unsafe { get::<u32>(chains + (last - first) * 4) };
        last += 1;
        if word & 1 == 1 {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newer_table_is_counted_to_the_end_of_its_last_chain() {
        // Two buckets; symbols 1 and 2 in the first, 3 in the second; a filter of one word.
        let table: [u32; 11] = [2, 1, 1, 0, 0, 0, 1, 3, 8, 9, 7];
        // SAFETY: a well-formed table.
        assert_eq!(unsafe { count_by_gnu_hash(table.as_ptr().expose_provenance()) }, 4);
        // No symbol at all: only those before the first covered one.
        let table: [u32; 8] = [1, 5, 1, 0, 0, 0, 0, 0];
        // SAFETY: as above.
        assert_eq!(unsafe { count_by_gnu_hash(table.as_ptr().expose_provenance()) }, 5);
    }
}
