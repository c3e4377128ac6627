//! Pages of private file mappings that the program had written before it began to page: they become anonymous memory, which a
//! userfaultfd takes, and this file knows where they came from.
//!
//! A page that was written is the program's own copy, and the file has no more part in it, until the program gives it back
//! (`MADV_DONTNEED`): then it reads as the file has it. So the mapping itself is not given up but moved aside, empty, and moved back for the
//! pages that are given back; these stay native from then on.
//!
//! ```text
//!   before       [ file, written ]
//!   take         [ anonymous, the same bytes ]         aside: [ file, nothing in memory ]
//!   give back    [ anonymous ][ file ][ anonymous ]    aside: [ file ]      [ file ]
//! ```
//!
//! `take` runs while all threads are stopped (`supervise/start.rs`), before there is an agent. What a program does to such a range later
//! is seen where it calls the kernel: by name (the preload object), or in signal mode wherever. In thread mode the kernel tells of what a
//! program does by its own instructions, too late to bring the file back: discarding or moving such a range then ends the process, in
//! place of wrong bytes. All of it is inherited by forked children as it is.
//!
//! What the dynamic linker has written and then made read-only (RELRO, the tables of addresses that a C++ library has by the MiB) is *sealed*:
//! the kernel moves no page out of memory that may not be written, so it may be for the moment in which pages are taken out
//! ([`while_open`]), and no longer once the program gives it other rights. A store that natively is an error is not seen in such a moment, and
//! what takes its place within one (unmapped by one thread, mapped by another) is left read-only.
//!
//! Different from native: such a range cannot be moved or resized by mremap(2) (ENOMEM), a file that is cut does not take the pages
//! away, and /proc/PID/maps shows anonymous memory.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pagetide_sys::maps::{MapsText, NAME_BYTES};
use pagetide_sys::mem::{self, Advice, ManagedRange, Mapping, PAGE_BYTES, Protection, Remap};
use pagetide_sys::stderr;
use pagetide_sys::sync::Mutex;
use pagetide_sys::syscall::answer_of;
use pagetide_sys::text::{Text, die};
use pagetide_sys::{Errno, proc, thread};

use crate::limits;
use crate::remap;

/// Ranges at most; what is given back in the midst of one makes two of it.
const RANGES: usize = 256;
/// Ranges that are taken at the start, at most: the largest.
pub(crate) const TAKEN_MAX: usize = 64;
/// So much is there twice while it is copied.
const STEP_BYTES: usize = 2 << 20;

pub(crate) const MMAP: u32 = number(libc::SYS_mmap);
pub(crate) const MUNMAP: u32 = number(libc::SYS_munmap);
pub(crate) const MREMAP: u32 = number(libc::SYS_mremap);
const MPROTECT: u32 = number(libc::SYS_mprotect);
const PKEY_MPROTECT: u32 = number(libc::SYS_pkey_mprotect);
pub(crate) const MADVISE: u32 = number(libc::SYS_madvise);

/// `MADV_DONTNEED`, `MADV_DONTNEED_LOCKED`, `MADV_GUARD_INSTALL`: what was written is gone.
const GIVES_BACK: [usize; 3] = [4, 24, 102];
/// `PROT_READ | PROT_WRITE`
const WRITABLE: usize = 3;

/// In the word that says what is aside: the range is sealed.
const SEALED: usize = 1;

/// `MADV_FREE`, `MADV_REMOVE`, `MADV_WIPEONFORK`: not for private mappings of files.
const ONLY_ANONYMOUS: [usize; 3] = [8, 9, 18];

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "numbers of system calls are small")]
pub(crate) const fn number(of: libc::c_long) -> u32 {
    of as u32
}

/// Anonymous now, and where its mapping is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Origin {
    start: usize,
    end: usize,
    aside: usize,
    is_sealed: bool,
}

impl Origin {
    /// The part of it in `[start, end)`.
    fn part(self, start: usize, end: usize) -> Option<Self> {
        let (from, to) = (self.start.max(start), self.end.min(end));
        (from < to).then(|| Self { start: from, end: to, aside: self.aside + (from - self.start), ..self })
    }

    const fn bytes(self) -> usize {
        self.end - self.start
    }
}

/// The same, to be read by anyone at any moment, as `meet` does in the midst of other calls: without a lock, which whoever handles a
/// signal there may hold. One that is not in use is empty, and entries keep their places.
#[derive(Debug)]
struct Entry {
    start: AtomicUsize,
    end: AtomicUsize,
    aside: AtomicUsize,
}

static ENTRIES: [Entry; RANGES] =
    [const { Entry { start: AtomicUsize::new(0), end: AtomicUsize::new(0), aside: AtomicUsize::new(0) } }; RANGES];
/// So many entries have ever been used.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Held by whoever changes entries.
static CHANGES: Mutex<()> = Mutex::new(());
static IS_TOLD: AtomicBool = AtomicBool::new(false);

impl Entry {
    fn get(&self) -> Origin {
        let of = |word: &AtomicUsize| word.load(Ordering::Acquire);
        let aside = of(&self.aside);
        Origin { start: of(&self.start), end: of(&self.end), aside: aside & !SEALED, is_sealed: aside & SEALED != 0 }
    }

    fn set(&self, origin: Origin) {
        self.aside.store(origin.aside | if origin.is_sealed { SEALED } else { 0 }, Ordering::Release);
        self.start.store(origin.start, Ordering::Release);
        self.end.store(origin.end, Ordering::Release);
    }
}

fn entries() -> &'static [Entry] {
    &ENTRIES[..USED.load(Ordering::Acquire)]
}

/// One more; false: there is no room. By who holds `CHANGES`.
fn add(origin: Origin) -> bool {
    if let Some(free) = entries().iter().find(|entry| entry.get().bytes() == 0) {
        free.set(origin);
        return true;
    }
    let used = USED.load(Ordering::Relaxed);
    let Some(next) = ENTRIES.get(used) else { return false };
    next.set(origin);
    USED.store(used + 1, Ordering::Release);
    true
}

/// Take the first part in `[start, end)` out. None: nothing is there. ENOMEM: two would be left of one, and there is no room.
fn claim(start: usize, end: usize) -> Result<Option<Origin>, Errno> {
    let _changes = CHANGES.lock("what came from a file changes");
    let found = entries().iter().find_map(|entry| Some((entry, entry.get().part(start, end)?)));
    let Some((entry, part)) = found else { return Ok(None) };
    let whole = entry.get();
    let head = Origin { end: part.start, ..whole };
    let tail = Origin { start: part.end, aside: part.aside + part.bytes(), ..whole };
    match (head.bytes() > 0, tail.bytes() > 0) {
        (true, true) if !add(tail) => return Err(Errno::ENOMEM),
        (false, true) => entry.set(tail),
        _ => entry.set(head),
    }
    Ok(Some(part))
}

/// Make these pages anonymous: written ones of one private mapping of a file, all of which are in memory, and may be read only if it
/// `is_sealed`. While all other threads of the process are stopped. An error: as far as it has come, no byte is lost.
pub(crate) fn take(start: usize, bytes: usize, is_sealed: bool) -> Result<(), Errno> {
    limits::make_room(2 * bytes);
    let fresh = Mapping::plain(bytes, PAGE_BYTES)?;
    // A program may lock whatever it will map.
    let _ = mem::unlock(fresh.range());
    let aside = Mapping::plain(bytes, PAGE_BYTES)?;
    let (fresh, aside) = (fresh.into_range(), aside.into_range());
    let mut done = 0;
    let mut taken = Ok(());
    while done < bytes && taken.is_ok() {
        let step = STEP_BYTES.min(bytes - done);
        taken = take_step(start + done, fresh.part(done, step), aside.part(done, step), is_sealed);
        done += if taken.is_ok() { step } else { 0 };
    }
    if done < bytes {
        for rest in [fresh.skip(done), aside.skip(done)] {
            // SAFETY: nothing of the program was moved there.
            let _ = unsafe { mem::unmap(rest) };
        }
    }
    if done > 0 {
        let _changes = CHANGES.lock("pages of files are taken");
        let is_added = add(Origin { start, end: start + done, aside: aside.start(), is_sealed });
        assert!(is_added, "at most {TAKEN_MAX} ranges are taken");
    }
    taken
}

fn take_step(start: usize, fresh: ManagedRange, aside: ManagedRange, is_sealed: bool) -> Result<(), Errno> {
    // SAFETY: `fresh` is memory of our own.
    let bytes = unsafe { std::slice::from_raw_parts_mut(fresh.as_ptr(), fresh.len()) };
    // By the kernel: a page that is lost to a cut file is an error, and no signal.
    proc::read_memory(thread::getpid(), start as u64, bytes)?;
    if is_sealed {
        mem::protect(fresh, Protection::Read)?;
    }
    // SAFETY: memory of the program that is mapped; its threads are stopped.
    let written = unsafe { ManagedRange::new(start, fresh.len()) };
    // SAFETY: nobody runs who would miss it meanwhile; what is replaced is ours.
    unsafe { mem::remap(written, fresh.len(), Remap::To(aside.start())) }?;
    // SAFETY: nothing is mapped there now, and nobody else maps anything.
    if let Err(errno) = unsafe { mem::remap(fresh, fresh.len(), Remap::To(start)) } {
        // SAFETY: it is put back where it was.
        unsafe { mem::remap(aside, aside.len(), Remap::To(start)) }.expect("a mapping can be moved back");
        return Err(errno);
    }
    // The copies that the file's mapping had. Nobody uses it, and what may be written counts as data (RLIMIT_DATA). If it cannot be, the bytes are
    // where they belong all the same.
    let _ = mem::advise(aside, Advice::DontNeed);
    let _ = mem::protect(aside, Protection::None);
    Ok(())
}

/// True if some of these pages came from a file.
pub(crate) fn meet(start: usize, end: usize) -> bool {
    entries().iter().any(|entry| entry.get().part(start, end).is_some())
}

/// True if all of these pages are sealed.
pub(crate) fn is_sealed(start: usize, end: usize) -> bool {
    entries().iter().map(Entry::get).any(|origin| origin.is_sealed && origin.start <= start && end <= origin.end)
}

/// Take pages out of `range`, which is sealed, by `take`: they may be written meanwhile. None: they cannot be now. It waits for nobody: who changes
/// entries may be a thread whose signal handler waits for the caller.
pub(crate) fn while_open<T>(range: ManagedRange, take: impl FnOnce() -> T) -> Option<T> {
    let _changes = CHANGES.try_lock()?;
    // The program may have opened it since.
    let is_sealed = is_sealed(range.start(), range.start() + range.len());
    if is_sealed && mem::protect(range, Protection::ReadWrite).is_err() {
        return None;
    }
    let taken = take();
    if is_sealed {
        // If that cannot be it stays open: no byte depends on it.
        let _ = mem::protect(range, Protection::Read);
    }
    Some(taken)
}

/// The program gives these pages other rights: from now on they are what it says.
fn unseal(start: usize, end: usize) {
    let meets = |origin: Origin| origin.is_sealed && origin.part(start, end).is_some();
    if !entries().iter().any(|entry| meets(entry.get())) {
        return;
    }
    let _changes = CHANGES.lock("what is sealed is opened");
    for entry in entries().iter().filter(|entry| meets(entry.get())) {
        entry.set(Origin { is_sealed: false, ..entry.get() });
    }
}

/// Something else is mapped there by now, or nothing.
pub(crate) fn forget(start: usize, end: usize) {
    while meet(start, end) {
        let part = match claim(start, end) {
            Ok(Some(part)) => part,
            Ok(None) => return,
            // What is not known to be gone would come back in place of what is mapped there next.
            Err(_) => die(format_args!(
                "pagetide: more than {RANGES} pieces of private file mappings: no more can be told apart"
            )),
        };
        // SAFETY: it is mapped since it was moved there.
        let aside = unsafe { ManagedRange::new(part.aside, part.bytes()) };
        // SAFETY: nobody knows of it any more.
        let _ = unsafe { mem::unmap(aside) };
    }
}

/// In a forked child: the lock may have been copied while it was held.
///
/// # Safety
/// The caller is the only thread.
pub(crate) unsafe fn after_fork() {
    // SAFETY: no other thread exists.
    unsafe { (&raw const CHANGES).cast_mut().write(Mutex::new(())) };
}

/// Make a call that may change mappings by `call`, so that the program finds what it finds natively. Answers as the kernel does.
pub(crate) fn around(number: u32, arguments: [usize; 6], mut call: impl FnMut(u32, [usize; 6]) -> isize) -> isize {
    if number == MREMAP {
        return remap::around(arguments, |number, arguments| around_one(number, arguments, &mut call));
    }
    around_one(number, arguments, call)
}

/// The same, of a call that changes one mapping or is another's part.
fn around_one(number: u32, arguments: [usize; 6], mut call: impl FnMut(u32, [usize; 6]) -> isize) -> isize {
    if entries().is_empty() {
        return call(number, arguments);
    }
    let [first, second, third, fourth, fifth, _] = arguments;
    // What the kernel refuses changes nothing.
    let (Some(end), true) = (end_of(first, second), first.is_multiple_of(PAGE_BYTES)) else {
        return call(number, arguments);
    };
    match number {
        MADVISE if GIVES_BACK.contains(&third) => match give_back(first, end, &mut call) {
            Ok(()) => call(number, arguments),
            Err(answer) => answer,
        },
        MADVISE if ONLY_ANONYMOUS.contains(&third) && meet(first, end) => Errno::EINVAL.negated(),
        MPROTECT | PKEY_MPROTECT => {
            unseal(first, end);
            call(number, arguments)
        }
        MREMAP if meet(first, end) => {
            if !IS_TOLD.swap(true, Ordering::Relaxed) {
                let pid = thread::getpid();
                let text = "memory of a private file mapping that is paged cannot be moved or resized (mremap: ENOMEM)";
                stderr::write(Text::<192>::format(format_args!("pagetide: process {pid}: {text}\n")).as_bytes());
            }
            Errno::ENOMEM.negated()
        }
        _ => {
            let answer = call(number, arguments);
            let replaced = match number {
                MUNMAP => Some((first, end)),
                // `MAP_FIXED`
                MMAP if fourth & 0x10 != 0 => Some((first, end)),
                // `MREMAP_FIXED`
                MREMAP if fourth & 2 != 0 => end_of(fifth, third).map(|end| (fifth, end)),
                _ => None,
            };
            if let Some((start, end)) = replaced.filter(|_| !is_error(answer)) {
                forget(start, end);
            }
            answer
        }
    }
}

/// The end of a range in whole pages; None: there is none.
pub(crate) fn end_of(start: usize, bytes: usize) -> Option<usize> {
    start.checked_add(bytes.checked_next_multiple_of(PAGE_BYTES)?)
}

pub(crate) const fn is_error(answer: isize) -> bool {
    answer_of(answer.cast_unsigned()).is_err()
}

/// Put the file's mapping back where the program gives pages up. The kernel's answer where that cannot be.
fn give_back(start: usize, end: usize, call: &mut impl FnMut(u32, [usize; 6]) -> isize) -> Result<(), isize> {
    while let Some(part) = claim(start, end).map_err(Errno::negated)? {
        if let Err((at, answer)) = move_back(part, call) {
            let rest = part.part(at, part.end).expect("not all of it was moved");
            let _changes = CHANGES.lock("pages of a file stay");
            // An entry has just become free, or smaller.
            let _ = add(rest);
            return Err(answer);
        }
    }
    Ok(())
}

/// Piece by piece, as far as rights are the same; where it ends early, and the kernel's answer.
fn move_back(part: Origin, call: &mut impl FnMut(u32, [usize; 6]) -> isize) -> Result<(), (usize, isize)> {
    /// `MREMAP_MAYMOVE | MREMAP_FIXED`
    const MOVE: usize = 3;
    let mut at = part.start;
    while at < part.end {
        let aside = part.aside + (at - part.start);
        let (rights, bytes) = piece(at, aside).unwrap_or((WRITABLE, PAGE_BYTES));
        let bytes = bytes.min(part.end - at);
        for (number, arguments) in
            [(MPROTECT, [aside, bytes, rights, 0, 0, 0]), (MREMAP, [aside, bytes, bytes, MOVE, at, 0])]
        {
            let answer = call(number, arguments);
            if is_error(answer) {
                return Err((at, answer));
            }
        }
        at += bytes;
    }
    Ok(())
}

/// What may be done at `at` (the program may have changed it), and for how many bytes that holds of one mapping there and one at `aside`.
/// None: the list cannot be read.
fn piece(at: usize, aside: usize) -> Option<(usize, usize)> {
    let mut buffer = [0; NAME_BYTES + 1024];
    let mut maps = MapsText::open(&mut buffer).ok()?;
    let (mut rights, mut here, mut there) = (None, 0, 0);
    while let Ok(Some(vma)) = maps.next_vma() {
        if (vma.start..vma.end).contains(&at) {
            rights = Some(usize::from(vma.read) | (usize::from(vma.write) << 1) | (usize::from(vma.exec) << 2));
            here = vma.end - at;
        }
        if (vma.start..vma.end).contains(&aside) {
            there = vma.end - aside;
        }
    }
    Some((rights?, here.min(there).max(PAGE_BYTES)))
}
