//! mremap(2) of what is one mapping natively, or several that the kernel moves at once, and may be neither here.
//!
//! Linux joins a fresh mapping with its neighbours if they are alike; one whose neighbour is registered is not joined, nor may be once both
//! have pages. And since 6.17 a call that moves without resizing takes all mappings of its range, but stops in the midst at the first that
//! is registered, because a userfaultfd is told of one move at a time. Both are EFAULT, which no program expects: what the kernel has left is
//! moved here one mapping after the other.
//!
//! A call that moves and cuts is made as two: before 6.17 Linux tells of the move with the length before the cut, and what lies behind the
//! new place, managed and other than what was moved, would be taken for gone.
//!
//! Seen where `origins` sees calls. A program's own instructions in thread mode are not: they find EFAULT, and what was moved is at its new
//! place, told of as any other.

use std::cmp::Ordering;
use std::ops::Range;

use pagetide_sys::Errno;
use pagetide_sys::mem::{self, ManagedRange, PAGE_BYTES};
use pagetide_sys::syscall::answer_of;
use pagetide_sys::text::die;

use crate::foothold;
use crate::origins::{MMAP, MREMAP, MUNMAP, end_of, is_error};
use crate::vmas::each_in;

/// `MREMAP_MAYMOVE`, `MREMAP_FIXED`.
const MAY_MOVE: usize = 1;
const FIXED: usize = 2;
/// `MREMAP_DONTUNMAP`
const KEEP_OLD: usize = 4;
const KNOWN: usize = MAY_MOVE | FIXED | KEEP_OLD;
/// Behind the last address that a program has where it does not ask for higher ones.
#[cfg(target_arch = "x86_64")]
pub(crate) const ADDRESSES: usize = (1 << 47) - PAGE_BYTES;
#[cfg(not(target_arch = "x86_64"))]
pub(crate) const ADDRESSES: usize = 1 << 48;
/// `MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE`, without rights: never managed.
const RESERVED: usize = 0x2 | 0x20 | 0x4000;

/// Make the call by `call`, and others for what it leaves. Answers as the kernel does.
pub(crate) fn around(arguments: [usize; 6], mut call: impl FnMut(u32, [usize; 6]) -> isize) -> isize {
    let [old, bytes, new_bytes, flags, target, _] = arguments;
    let (Some(end), Some(new_end), true) = (end_of(old, bytes), end_of(old, new_bytes), foothold::is_managed()) else {
        return call(MREMAP, arguments);
    };
    let (is_fixed, keeps_old) = (flags & FIXED != 0, flags & KEEP_OLD != 0);
    // A range whose beginning is not mapped is refused natively, too. What was moved is not mapped any more.
    let moves = is_fixed && end == new_end && is_mapped(old);
    if moves && keeps_old && flags & !KNOWN == 0 && are_several(&(old..end)) {
        // Or it is mapped still, and does not show what was moved. What the kernel says of the whole must be said before.
        if !are_apart(old..end, target, bytes) {
            return Errno::EINVAL.negated();
        }
        return move_rest(old..end, target, flags, &mut call);
    }
    let cuts = flags == MAY_MOVE | FIXED && new_bytes != 0 && new_end < end;
    // What is several mappings natively is refused.
    if cuts && are_apart(old..end, target, new_bytes) && are_alike(&(old..new_end)) {
        return move_and_cut(old..end, new_end, target, &mut call);
    }
    let answer = call(MREMAP, arguments);
    if answer != Errno::EFAULT.negated() {
        return answer;
    }
    if moves && !keeps_old {
        return move_rest(old..end, target, flags, &mut call);
    }
    if !are_alike(&(old..end.min(new_end))) {
        return answer;
    }
    match new_end.cmp(&end) {
        Ordering::Greater if !keeps_old => grow(old..end, new_end - end, flags, target, &mut call),
        Ordering::Equal if keeps_old => move_elsewhere(old..end, flags, &mut call),
        Ordering::Less | Ordering::Equal | Ordering::Greater => answer,
    }
}

/// Can `range` move to a place of `bytes` from `target` on?
fn are_apart(range: Range<usize>, target: usize, bytes: usize) -> bool {
    let is_behind = |to| to <= ADDRESSES && (to <= range.start || range.end <= target);
    target.is_multiple_of(PAGE_BYTES) && end_of(target, bytes).is_some_and(is_behind)
}

/// One mapping natively, of which what is behind `cut` ends, and the rest moves.
fn move_and_cut(
    range: Range<usize>,
    cut: usize,
    target: usize,
    call: &mut impl FnMut(u32, [usize; 6]) -> isize,
) -> isize {
    let bytes = cut - range.start;
    let mut answer = call(MREMAP, [range.start, bytes, bytes, MAY_MOVE | FIXED, target, 0]);
    if answer == Errno::EFAULT.negated() {
        answer = move_rest(range.start..cut, target, MAY_MOVE | FIXED, call);
    }
    let rest = if is_error(answer) { 0 } else { call(MUNMAP, [cut, range.end - cut, 0, 0, 0, 0]) };
    if is_error(rest) { rest } else { answer }
}

fn is_mapped(page: usize) -> bool {
    // SAFETY: the kernel is asked about it, nothing else.
    page.is_multiple_of(PAGE_BYTES) && mem::in_core(unsafe { ManagedRange::new(page, PAGE_BYTES) }, &mut [0]).is_ok()
}

/// One by one, to `target`; where nothing is mapped, nothing is moved. As the kernel does, it ends at the first that cannot be moved.
fn move_rest(
    range: Range<usize>,
    target: usize,
    flags: usize,
    call: &mut impl FnMut(u32, [usize; 6]) -> isize,
) -> isize {
    let mut answer = target.cast_signed();
    let walked = each_in(&range, |_, part| {
        let to = target + (part.start - range.start);
        let moved = call(MREMAP, [part.start, part.len(), part.len(), flags, to, 0]);
        if is_error(moved) {
            answer = moved;
        }
        !is_error(moved)
    });
    walked.map_or_else(Errno::negated, |()| answer)
}

/// To where there is room.
fn move_elsewhere(range: Range<usize>, flags: usize, call: &mut impl FnMut(u32, [usize; 6]) -> isize) -> isize {
    let place = call(MMAP, [0, range.len(), 0, RESERVED, usize::MAX, 0]);
    let Ok(to) = answer_of(place.cast_unsigned()) else { return place };
    let answer = move_rest(range.clone(), to, flags | FIXED, call);
    if is_error(answer) {
        if has_rights(to) {
            die(format_args!("pagetide: memory that was moved in parts cannot be moved as a whole"));
        }
        let _ = call(MUNMAP, [to, range.len(), 0, 0, 0, 0]);
    }
    answer
}

/// Something was moved there: what is reserved has none.
fn has_rights(at: usize) -> bool {
    let mut has = false;
    let walked = each_in(&(at..at + PAGE_BYTES), |vma, _| {
        has = vma.read || vma.write || vma.exec;
        false
    });
    walked.is_err() || has
}

fn are_several(range: &Range<usize>) -> bool {
    let mut count = 0;
    let walked = each_in(range, |_, _| {
        count += 1;
        count < 2
    });
    walked.is_ok() && count > 1
}

/// Would this be one mapping if none of it were registered?
fn are_alike(range: &Range<usize>) -> bool {
    let (mut first, mut end, mut are) = (None, range.start, true);
    let walked = each_in(range, |vma, part| {
        let rights = (vma.read, vma.write, vma.exec);
        are = vma.is_private_anon() && part.start == end && *first.get_or_insert(rights) == rights;
        end = part.end;
        are
    });
    walked.is_ok() && are && end == range.end
}

/// The last one grows, in place if there is room, or all go where there is.
fn grow(
    range: Range<usize>,
    by: usize,
    flags: usize,
    target: usize,
    call: &mut impl FnMut(u32, [usize; 6]) -> isize,
) -> isize {
    let mut last = range.clone();
    if let Err(errno) = each_in(&range, |_, part| {
        last = part;
        true
    }) {
        return errno.negated();
    }
    if flags & FIXED == 0 {
        let answer = call(MREMAP, [last.start, last.len(), last.len() + by, 0, 0, 0]);
        if !is_error(answer) {
            return range.start.cast_signed();
        }
        if flags & MAY_MOVE == 0 {
            return answer;
        }
    }
    let bytes = range.len() + by;
    let place =
        if flags & FIXED == 0 { call(MMAP, [0, bytes, 0, RESERVED, usize::MAX, 0]) } else { target.cast_signed() };
    let Ok(to) = answer_of(place.cast_unsigned()) else { return place };
    let moves = MAY_MOVE | FIXED;
    // The last first: it is what may find no room.
    let answer = call(MREMAP, [last.start, last.len(), last.len() + by, moves, to + (last.start - range.start), 0]);
    let answer = if is_error(answer) { answer } else { move_rest(range.start..last.start, to, moves, call) };
    if !is_error(answer) {
        return to.cast_signed();
    }
    // What has moved goes back, without what it has grown by: its old place is empty.
    let _ = each_in(&(to..to + range.len()), |_, part| {
        let back = range.start + (part.start - to);
        if !is_mapped(back) && is_error(call(MREMAP, [part.start, part.len(), part.len(), moves, back, 0])) {
            die(format_args!("pagetide: memory that was moved to grow cannot be moved back"));
        }
        true
    });
    let _ = call(MUNMAP, [to, bytes, 0, 0, 0, 0]);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_call_that_moves_has_two_lengths() {
        let (old, cut, target) = (0x10_0000, 0x10_3000, 0x20_0000_usize);
        for moved in [target.cast_signed(), Errno::ENOMEM.negated()] {
            let mut calls = Vec::new();
            let answer = move_and_cut(old..0x10_8000, cut, target, &mut |number, arguments| {
                calls.push((number, arguments));
                if number == MREMAP { moved } else { 0 }
            });
            assert_eq!(answer, moved);
            assert_eq!(calls[0], (MREMAP, [old, 0x3000, 0x3000, MAY_MOVE | FIXED, target, 0]));
            let rest: &[_] = if is_error(moved) { &[] } else { &[(MUNMAP, [cut, 0x5000, 0, 0, 0, 0])] };
            assert_eq!(&calls[1..], rest, "nothing is cut where nothing moves");
        }
    }
}
