//! How a process that has no descriptor of ours knows that its run has ended: a word that the kernel itself changes when the supervisor does.
//!
//! The word is that of a robust mutex (pthread_mutexattr_setrobust(3)) that the supervisor's thread holds for as long as it lives. However
//! that ends, the kernel marks it. Every process whose memory is managed maps it, to be read only, and its forked children inherit the
//! mapping: one that waits for an agent looks there, since nobody else may be left who could wake it or end it.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use pagetide_sys::fd::{self, Fd};
use pagetide_sys::mem::{Mapping, PAGE_BYTES, Protection};
use pagetide_sys::text::Text;
use pagetide_sys::{Errno, file};

/// `FUTEX_OWNER_DIED`
const HOLDER_ENDED: u32 = 0x4000_0000;

/// Where this process has it; 0: it has none.
static WORD: AtomicUsize = AtomicUsize::new(0);

/// The supervisor's end.
#[derive(Debug)]
pub(crate) struct Lifeline {
    reader: Fd,
    // What the thread holds stays where it is.
    _mapping: ManuallyDrop<Mapping>,
}

impl Lifeline {
    /// Held by the calling thread until it ends.
    pub(crate) fn begin() -> Result<Self, Errno> {
        let whole = fd::memfd(c"pagetide-lifeline")?;
        file::truncate(&whole, PAGE_BYTES as u64)?;
        let mapping = ManuallyDrop::new(Mapping::shared(&whole, 0, PAGE_BYTES, Protection::ReadWrite)?);
        let path = Text::<64>::format(format_args!("/proc/self/fd/{}", whole.raw()));
        let reader = Fd::open(path.as_c_str(), file::flags::READ, 0)?;
        let mutex = mapping.range().as_ptr().cast::<libc::pthread_mutex_t>();
        let mut attributes = std::mem::MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        let attributes = attributes.as_mut_ptr();
        let succeeds = |result: libc::c_int| if result == 0 { Ok(()) } else { Err(Errno::EINVAL) };
        // SAFETY: a place for attributes.
        succeeds(unsafe { libc::pthread_mutexattr_init(attributes) })?;
        // SAFETY: they have just been initialised.
        succeeds(unsafe { libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST) })?;
        // SAFETY: a place for a mutex, in a page of ours that is never unmapped.
        succeeds(unsafe { libc::pthread_mutex_init(mutex, attributes) })?;
        // SAFETY: it has just been initialised.
        succeeds(unsafe { libc::pthread_mutex_lock(mutex) })?;
        Ok(Self { reader, _mapping: mapping })
    }

    /// For [`take`], in another process.
    pub(crate) const fn reader(&self) -> &Fd {
        &self.reader
    }
}

/// Have it here, and in what is forked from here.
pub(crate) fn take(reader: &Fd) -> Result<(), Errno> {
    if WORD.load(Ordering::Relaxed) == 0 {
        let mapping = Mapping::shared(reader, 0, PAGE_BYTES, Protection::Read)?;
        WORD.store(mapping.into_range().start(), Ordering::Relaxed);
    }
    Ok(())
}

/// The supervisor has ended. False where that is not known.
pub(crate) fn is_cut() -> bool {
    let word = WORD.load(Ordering::Relaxed);
    // SAFETY: a page that stays mapped, whose first word is the mutex's.
    word != 0
        && unsafe { AtomicU32::from_ptr(std::ptr::with_exposed_provenance_mut(word)) }.load(Ordering::Acquire)
            & HOLDER_ENDED
            != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_cut_when_its_holder_ends_and_not_before() {
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let holder = std::thread::spawn(move || {
            let lifeline = Lifeline::begin().expect("a memfd");
            take(lifeline.reader()).expect("a mapping");
            ready.send(()).expect("the test waits");
            let _ = ends.recv();
        });
        assert!(!is_cut(), "there is none");
        is_ready.recv().expect("the holder has it");
        assert!(!is_cut(), "it is held");
        drop(end);
        holder.join().expect("it does not panic");
        assert!(is_cut());
    }
}
