//! The mappings of a part of this process's memory, in the midst of a call that changes them.

use std::ops::Range;

use pagetide_sys::Errno;
use pagetide_sys::maps::{MapsWalk, NAME_BYTES, Vma};

/// The mappings of this range, cut to it, until `each` ends it.
pub(crate) fn each_in(range: &Range<usize>, mut each: impl FnMut(&Vma<'_>, Range<usize>) -> bool) -> Result<(), Errno> {
    let mut buffer = [0; NAME_BYTES + 1024];
    let mut walk = MapsWalk::open(&mut buffer)?;
    walk.skip_to(range.start);
    while let Some(vma) = walk.next_vma()? {
        let part = vma.start.max(range.start)..vma.end.min(range.end);
        if vma.start >= range.end || (!part.is_empty() && !each(&vma, part)) {
            break;
        }
    }
    Ok(())
}
