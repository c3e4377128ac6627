//! The mappings of a part of this process's memory, in the midst of a call that changes them.

use std::ops::Range;

use pagetide_sys::Errno;
use pagetide_sys::maps::{MapsWalk, NAME_BYTES, Vma};

/// The mappings of this range, cut to it, until `each` ends it. No part is met twice: what the walk has passed may have become one mapping
/// with what follows, as where a part that was registered later joins its neighbours.
pub(crate) fn each_in(range: &Range<usize>, mut each: impl FnMut(&Vma<'_>, Range<usize>) -> bool) -> Result<(), Errno> {
    let mut buffer = [0; NAME_BYTES + 1024];
    let mut walk = MapsWalk::open(&mut buffer)?;
    walk.skip_to(range.start);
    let mut passed = range.start;
    while let Some(vma) = walk.next_vma()? {
        let part = vma.start.max(passed)..vma.end.min(range.end);
        passed = passed.max(part.end);
        if vma.start >= range.end || (!part.is_empty() && !each(&vma, part)) {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use pagetide_sys::mem::{self, AnonOptions, Mapping, PAGE_BYTES, Protection};

    use super::*;

    /// MREMAP_DONTUNMAP moved the first of three parts twice, the second time its old place, which was empty, over what had been moved.
    #[test]
    fn mappings_that_become_one_on_the_way_are_not_met_twice() {
        let options = AnonOptions { protection: Protection::ReadWrite, populate: false, inherit: true };
        let mapping = Mapping::anonymous(3 * PAGE_BYTES, options).expect("memory");
        let whole = mapping.range();
        let middle = || whole.part(PAGE_BYTES, PAGE_BYTES);
        mem::protect(middle(), Protection::Read).expect("it is ours");
        let (start, end) = (whole.start(), whole.end());
        let mut parts = Vec::new();
        each_in(&(start..end), |_, part| {
            parts.push(part);
            mem::protect(middle(), Protection::ReadWrite).is_ok()
        })
        .expect("our own memory is listed");
        assert_eq!(parts[0], start..start + PAGE_BYTES);
        assert!(parts.windows(2).all(|parts| parts[0].end == parts[1].start), "{parts:x?}");
        assert_eq!(parts.last().map(|part| part.end), Some(end));
    }
}
