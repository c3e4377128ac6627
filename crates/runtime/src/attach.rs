//! shmat(2) with SHM_REMAP: a segment that takes the place of what is mapped there. It is the one call by which Linux unmaps memory that is
//! registered and tells no userfaultfd of it: the pager would go on with pages that are no more, and what is mapped there next would be taken
//! for them. So the place is emptied by mmap(2) first, which is told.

use pagetide_sys::mem::PAGE_BYTES;
use pagetide_sys::syscall::answer_of;
use pagetide_sys::word::usize_of;

pub(crate) const SHMAT: u32 = number(libc::SYS_shmat);
const SHMCTL: u32 = number(libc::SYS_shmctl);
const SHMDT: u32 = number(libc::SYS_shmdt);
const MMAP: u32 = number(libc::SYS_mmap);

/// `SHM_RND`, `SHM_REMAP`
const ROUNDS: usize = 0o20_000;
const REPLACES: usize = 0o40_000;
/// `IPC_STAT`
const STATUS: usize = 2;
/// `PROT_NONE`
const NONE: usize = 0;
/// `MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS | MAP_NORESERVE`: never managed, and nobody else is given the place meanwhile.
const EMPTY: usize = 0x2 | 0x10 | 0x20 | 0x4000;

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "numbers of system calls are small")]
const fn number(of: libc::c_long) -> u32 {
    of as u32
}

/// The kernel's `shmid64_ds`, as far as the size of the segment.
#[repr(C)]
#[derive(Default)]
struct Status {
    rights: [u64; 6],
    bytes: u64,
    rest: [u64; 7],
}

/// Make the call by `call`, and others before it where it replaces something. Answers as the kernel does.
pub(crate) fn around(arguments: [usize; 6], mut call: impl FnMut(u32, [usize; 6]) -> isize) -> isize {
    let [id, place, flags, ..] = arguments;
    let start = if flags & ROUNDS == 0 { place } else { place & !(PAGE_BYTES - 1) };
    // What the kernel refuses, or puts where nothing is.
    if flags & REPLACES == 0 || start == 0 || !start.is_multiple_of(PAGE_BYTES) {
        return call(SHMAT, arguments);
    }
    let is_error = |answer: isize| answer_of(answer.cast_unsigned()).is_err();
    let mut status = Status::default();
    // Who may attach a segment may also ask for its size.
    let answer = call(SHMCTL, [id, STATUS, (&raw mut status).addr(), 0, 0, 0]);
    if is_error(answer) {
        return answer;
    }
    // What is refused must take nothing away: it is tried elsewhere first.
    let tried = call(SHMAT, [id, 0, flags & !(REPLACES | ROUNDS), 0, 0, 0]);
    if is_error(tried) {
        return tried;
    }
    let bytes = usize_of(status.bytes).next_multiple_of(PAGE_BYTES);
    let emptied = call(MMAP, [start, bytes, NONE, EMPTY, usize::MAX, 0]);
    let answer = if is_error(emptied) { emptied } else { call(SHMAT, arguments) };
    call(SHMDT, [tried.cast_unsigned(), 0, 0, 0, 0, 0]);
    answer
}
