//! Advice that the kernel tells no userfaultfd of as the program means it: guards over holes, and advice for several places at once.
//!
//! A guard (MADV_GUARD_INSTALL) empties its pages, and nobody hears of it. MADV_DONTNEED on the same pages is heard, and changes nothing for a
//! guard; the guard is installed once more, because a page that was on its way may have taken its place meanwhile. Where the call fails
//! it has installed what comes before: a hole is passed over (ENOMEM), all else ends it.
//!
//! process_madvise(2) gives a process any advice about itself (Linux 6.13), and others only what changes no byte.

use pagetide_sys::mem::PAGE_BYTES;
use pagetide_sys::{Errno, proc, thread};

use crate::origins::{MADVISE, is_error};
use crate::remap::ADDRESSES;
use crate::vmas::each_in;

/// `MADV_DONTNEED`, `MADV_GUARD_INSTALL`
const DISCARD: usize = 4;
pub(crate) const GUARD_INSTALL: usize = 102;
/// `MADV_WILLNEED`, `MADV_COLD`, `MADV_PAGEOUT`, `MADV_COLLAPSE`: for others, too.
const OF_OTHERS: [usize; 4] = [3, 20, 21, 25];
/// As the kernel: vectors of one call.
const VECTORS_MAX: usize = 1024;
/// The same for bytes: 2 GiB less a page.
const BYTES_MAX: usize = 0x7fff_f000;
pub(crate) const PROCESS_MADVISE: u32 = 440;

/// The kernel has answered a guard in this range: what is known of the pages under it is forgotten. `advise` takes a start, a length and advice.
pub(crate) fn forget_under_guard(
    start: usize,
    bytes: usize,
    answer: isize,
    mut advise: impl FnMut(usize, usize, usize) -> isize,
) {
    let Some(end) = start.checked_add(bytes).filter(|_| start.is_multiple_of(PAGE_BYTES)) else { return };
    let mut forget = |start: usize, bytes: usize| {
        let _ = advise(start, bytes, DISCARD);
        advise(start, bytes, GUARD_INSTALL)
    };
    if !is_error(answer) {
        forget(start, bytes);
        return;
    }
    // Of the part that stopped it none is a guard, or all are that can be.
    let _ = each_in(&(start..end), |_, part| {
        !is_error(advise(part.start, part.len(), GUARD_INSTALL)) && {
            let _ = advise(part.start, part.len(), DISCARD);
            !is_error(advise(part.start, part.len(), GUARD_INSTALL))
        }
    });
}

/// process_madvise(2) made by `call`; advice about the caller itself is given place by place, by madvise(2). `vector` reads one of a list:
/// a start and a length.
pub(crate) fn by_process(
    arguments: [usize; 6],
    vector: impl Fn(usize) -> Option<[usize; 2]>,
    mut call: impl FnMut(u32, [usize; 6]) -> isize,
) -> isize {
    let [process, list, count, advice, flags, _] = arguments;
    if OF_OTHERS.contains(&advice) || count > VECTORS_MAX {
        return call(PROCESS_MADVISE, arguments);
    }
    // Of others it is refused, and by older kernels.
    let allowed = call(PROCESS_MADVISE, [process, list, 0, advice, flags, 0]);
    if allowed != 0 {
        return allowed;
    }
    let vector = |index: usize| vector(list.wrapping_add(index * 16));
    // The kernel looks at all of them before it begins.
    for index in 0..count {
        match vector(index) {
            Some([_, bytes]) if bytes > isize::MAX.cast_unsigned() => return Errno::EINVAL.negated(),
            Some([start, bytes]) if start.checked_add(bytes).is_some_and(|end| end <= ADDRESSES) => {}
            Some(_) | None => return Errno::EFAULT.negated(),
        }
    }
    let mut done = 0;
    for index in 0..count {
        let Some([start, bytes]) = vector(index) else { break };
        let bytes = bytes.min(BYTES_MAX - done);
        if bytes == 0 {
            continue;
        }
        let answer = call(MADVISE, [start, bytes, advice, 0, 0, 0]);
        if is_error(answer) {
            return if done > 0 { done.cast_signed() } else { answer };
        }
        done += bytes;
    }
    done.cast_signed()
}

/// A vector of the program's, read by the kernel: it may be paged out, or nowhere.
pub(crate) fn vector_of(address: usize) -> Option<[usize; 2]> {
    let mut bytes = [0; 16];
    proc::read_memory(thread::getpid(), address as u64, &mut bytes).ok()?;
    let word = |at: usize| usize::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    Some([word(0), word(8)])
}
