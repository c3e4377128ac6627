//! Calls by `int 0x80`, which 64-bit code may use as well: numbers and arguments are those of 32-bit programs.
//!
//! The table of calls is about those of 64 bits. What means the same with both, structures included, is made as such a call; all else is
//! refused, because nobody here knows what memory it touches.

use std::sync::atomic::{AtomicBool, Ordering};

use pagetide_sys::dispatch::{Context, Register};
use pagetide_sys::word::low_u32;
use pagetide_sys::{stderr, text, thread};

/// `AUDIT_ARCH_I386`
const I386: u32 = 0x4000_0003;

/// Numbers of 32-bit calls, and of those of 64 bits that do the same.
const SAME: [(u32, u32); 37] = [
    (1, 60),    // exit
    (2, 57),    // fork
    (3, 0),     // read
    (4, 1),     // write
    (5, 2),     // open
    (6, 3),     // close
    (8, 85),    // creat
    (9, 86),    // link
    (10, 87),   // unlink
    (12, 80),   // chdir
    (15, 90),   // chmod
    (20, 39),   // getpid
    (33, 21),   // access
    (37, 62),   // kill
    (38, 82),   // rename
    (39, 83),   // mkdir
    (40, 84),   // rmdir
    (41, 32),   // dup
    (42, 22),   // pipe
    (60, 95),   // umask
    (63, 33),   // dup2
    (64, 110),  // getppid
    (66, 112),  // setsid
    (83, 88),   // symlink
    (85, 89),   // readlink
    (91, 11),   // munmap
    (118, 74),  // fsync
    (125, 10),  // mprotect
    (158, 24),  // sched_yield
    (168, 7),   // poll
    (199, 102), // getuid
    (200, 104), // getgid
    (201, 107), // geteuid
    (202, 108), // getegid
    (219, 28),  // madvise
    (224, 186), // gettid
    (252, 231), // exit_group
];

/// True if a call of this architecture is meant.
pub(super) const fn is_meant(architecture: u32) -> bool {
    architecture == I386
}

/// The same call as one of 64 bits, with its arguments. None: there is none that does the same.
pub(super) fn translate(context: &Context) -> Option<(u32, [usize; 6])> {
    use Register::{Rbp, Rbx, Rcx, Rdi, Rdx, Rsi};
    let wanted = low_u32(context.get(Register::Rax));
    let (_, number) = SAME.into_iter().find(|&(number, _)| number == wanted)?;
    Some((number, [Rbx, Rcx, Rdx, Rsi, Rdi, Rbp].map(|register| low_u32(context.get(register)) as usize)))
}

/// A line for the person, once.
pub(super) fn tell_of_refusal(number: u32) {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        let pid = thread::getpid();
        let why = "is refused (ENOSYS): what it does with memory is not known";
        let line = text::Text::<192>::format(format_args!(
            "pagetide: process {pid}: system call {number} of 32 bits (int 0x80) {why}\n"
        ));
        stderr::write(line.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use pagetide_sys::syscalls::Call;

    use super::*;

    #[test]
    fn numbers_ascend_and_are_known() {
        assert!(SAME.is_sorted_by(|(before, _), (after, _)| before < after));
        assert!(SAME.iter().all(|&(_, number)| Call::find(number).is_some()));
    }
}
