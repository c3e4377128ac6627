//! The port: an address space as the runtime sees it.
//!
//! Ranges and answers are values. A call on a run of pages says how far it came and why it stopped; what the kernel says in the
//! normal course is a variant, the rest is an [`Errno`].
//!
//! Every call is about whole pages. None of them may fault: the thread that makes them is the one that answers faults.

use core::fmt::Debug;

use pagetide_sys::Errno;
use pagetide_sys::fd::Fd;
use pagetide_sys::maps::Vma;
use pagetide_sys::mem::ManagedRange;
use pagetide_sys::pagemap::{Categories, Run, Scanned};
use pagetide_sys::smaps::Flags;
use pagetide_sys::uffd::{Modes, RangeAnswer, Stop, Wake, run};

/// Memory that the runtime has mapped for itself; unmapped when dropped.
pub trait OwnMapping: Debug + Send {
    /// The addresses.
    fn range(&self) -> ManagedRange;
}

/// What happened in a registered range.
#[derive(Debug, PartialEq, Eq)]
pub enum Message<C> {
    /// A thread touched a page and waits.
    Fault {
        /// The address, of the page or to the byte.
        address: usize,
        /// It was a write.
        write: bool,
        /// The thread, if that was asked for; else 0.
        thread: u32,
    },
    /// The process forked; this is the child's address space.
    Fork(C),
    /// A range was moved by mremap.
    Remap {
        /// Old start.
        from: usize,
        /// New start.
        to: usize,
        /// Bytes.
        len: usize,
    },
    /// The pages of a range are given back by madvise, and read as zero from then on.
    Remove {
        /// First address.
        start: usize,
        /// First address after it.
        end: usize,
    },
    /// A range is unmapped.
    Unmap {
        /// First address.
        start: usize,
        /// First address after it.
        end: usize,
    },
    /// An event that was not asked for, by the kernel's number.
    Unknown(u8),
}

/// Sizes of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Of its page tables, in bytes.
    pub page_table_bytes: u64,
    /// Of what is locked, in bytes of addresses.
    pub locked_bytes: u64,
}

/// Which side of a move nobody but the caller uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnSide {
    /// The destination, which was missing.
    To,
    /// The source, which was there.
    From,
}

/// What waits in one address space, and what answers it: a userfaultfd of this process, or a forked child's, whose pages are filled
/// from here until it serves itself.
pub trait Faults: Debug + Send {
    /// A forked child's, as its parent receives it.
    type Child: Faults<Child = Self::Child>;

    /// The next message, if there is one. Who waits for a change to be read goes on by it.
    ///
    /// # Errors
    /// The queue cannot be read.
    fn next_message(&self) -> Result<Option<Message<Self::Child>>, Errno>;

    /// Let the threads that wait for a page of `range` try again.
    ///
    /// # Errors
    /// Nothing is mapped there.
    fn wake(&self, range: ManagedRange) -> Result<(), Errno>;

    /// One call: fill the missing pages of `to` with copies of the pages from `from` (same length).
    fn copy(&self, to: ManagedRange, from: ManagedRange, wake: Wake) -> RangeAnswer;

    /// One call: fill the missing pages of `to` with the zero page.
    fn zeropage(&self, to: ManagedRange, wake: Wake) -> RangeAnswer;

    /// One call: make every access to the missing pages of `range` fail with SIGBUS.
    fn poison(&self, range: ManagedRange, wake: Wake) -> RangeAnswer;

    /// Is this page of private anonymous memory registered, with whatever userfaultfd? Nothing is filled.
    ///
    /// # Errors
    /// The address space is changing (EAGAIN), or there is none any more.
    fn is_registered(&self, page: ManagedRange) -> Result<bool, Errno>;

    /// [`Self::copy`], with the reason of a stop in the middle.
    fn copy_run(&self, to: ManagedRange, from: ManagedRange, wake: Wake) -> RangeAnswer {
        run(to.len(), |done| self.copy(to.skip(done), from.skip(done), wake))
    }

    /// [`Self::zeropage`], with the reason of a stop in the middle.
    fn zeropage_run(&self, to: ManagedRange, wake: Wake) -> RangeAnswer {
        run(to.len(), |done| self.zeropage(to.skip(done), wake))
    }

    /// [`Self::poison`], with the reason of a stop in the middle.
    fn poison_run(&self, range: ManagedRange, wake: Wake) -> RangeAnswer {
        run(range.len(), |done| self.poison(range.skip(done), wake))
    }

    /// What another process needs to take this over. A model has none.
    fn descriptor(&self) -> Option<&Fd>;
}

/// One process's address space, and the runtime's hold on it.
pub trait AddressSpace: Faults {
    /// Memory of our own.
    type Mapping: OwnMapping;

    /// Monotonic time in nanoseconds.
    fn now(&self) -> u64;

    /// Begin to catch the faults of `range`, which may hold pages already. Holes in it are passed over.
    ///
    /// # Errors
    /// Nothing is mapped there, it is of a kind that cannot be registered, or mappings are used up (ENOMEM).
    fn register(&self, range: ManagedRange, modes: Modes) -> Result<(), Errno>;

    /// Stop catching the faults of `range`; sleepers wake, and missing pages read as zero.
    ///
    /// # Errors
    /// As for [`Self::register`].
    fn unregister(&self, range: ManagedRange) -> Result<(), Errno>;

    /// [`Faults::is_registered`], answered while the address space changes as well. None: it cannot be told.
    fn is_registered_now(&self, page: ManagedRange) -> Option<bool>;

    /// One call: move the pages of `from` to the missing pages of `to` (same length), writable.
    fn move_pages(&self, to: ManagedRange, from: ManagedRange, wake: Wake) -> RangeAnswer;

    /// [`Self::move_pages`] with the reason of a stop in the middle, and an answer that can be believed; `own` is the side that
    /// nobody but the caller uses: its frames.
    ///
    /// Linux 6.18 answers EEXIST after it has moved the pages if it had to try again inside (it saw a page's accessed bit change
    /// between two looks, by DAMON or `MADV_COLD`): it moves them, forgets that it did, and finds them in its way. What has become
    /// of the frames tells. Where they cannot be looked at, the answer is [`Stop::Other`].
    fn move_frames(&self, to: ManagedRange, from: ManagedRange, own: OwnSide, wake: Wake) -> RangeAnswer {
        run(to.len(), |done| {
            let (to, from) = (to.skip(done), from.skip(done));
            let answer = self.move_pages(to, from, wake);
            // Behind pages that were moved, one may have been moved and denied, and the call that asks for the reason of the stop may
            // give another one: the address space has begun to change since.
            let may_be_denied = answer.stop == Some(Stop::Present) || (done > 0 && answer.done == 0);
            if !may_be_denied {
                return answer;
            }
            let moved = match own {
                OwnSide::To => self.leading(to, true),
                OwnSide::From => self.leading(from, false),
            };
            match moved {
                Ok(0) => answer,
                Ok(bytes) => {
                    if wake == Wake::Now {
                        // An error says that the place is not registered any more: then nobody waits there.
                        let _ = self.wake(to.part(0, bytes));
                    }
                    RangeAnswer { done: bytes, stop: (bytes < to.len()).then_some(Stop::Again) }
                }
                Err(errno) => RangeAnswer { done: 0, stop: Some(Stop::Other(errno)) },
            }
        })
    }

    /// Bytes of the pages at the start of `range` that are all there (in memory, in the kernel's swap or on their way), or all
    /// missing.
    ///
    /// # Errors
    /// The page table cannot be looked at.
    fn leading(&self, range: ManagedRange, there: bool) -> Result<usize, Errno>;

    /// Bytes of the pages at the start of `range` that are in memory, and in that of another process as well: so is the page of zeroes.
    ///
    /// # Errors
    /// The page table cannot be looked at.
    fn shared(&self, range: ManagedRange) -> Result<usize, Errno>;

    /// Give back the memory of `range`, which is the caller's and not registered.
    ///
    /// # Errors
    /// Nothing is mapped there, or it is locked.
    fn give_back(&self, range: ManagedRange) -> Result<(), Errno>;

    /// Find the runs of pages of `range` that are of any category of `wanted`, ascending.
    ///
    /// # Errors
    /// The page table cannot be looked at.
    fn scan(&self, range: ManagedRange, wanted: Categories, runs: &mut [Run]) -> Result<Scanned, Errno>;

    /// The mapping that covers `address`, or the next one. Its name is not told.
    ///
    /// # Errors
    /// The list of mappings cannot be read.
    fn mapping_at_or_after(&mut self, address: usize) -> Result<Option<Vma<'static>>, Errno>;

    /// Tell `each` of all mappings with their flags, ascending. The kernel looks at every page for it: for rare questions.
    ///
    /// # Errors
    /// The list cannot be read, or is not understood.
    fn flagged_mappings(&self, each: &mut dyn FnMut(&Vma<'_>, Flags)) -> Result<(), Errno>;

    /// What is readable, or hung up, as soon as process `number` has ended: a child of this one.
    ///
    /// # Errors
    /// ESRCH: it has ended, and nothing is left of it.
    fn end_of(&self, number: i32) -> Result<Fd, Errno>;

    /// What the process has beside its pages, as far as is known.
    fn sizes(&self) -> Sizes;

    /// Look at the bytes of `range`, which is the caller's, has memory, and is written by nobody meanwhile.
    fn look<R>(&self, range: ManagedRange, at: impl FnOnce(&[u8]) -> R) -> R;

    /// Write the bytes of `range`, which is the caller's, has memory, and is used by nobody meanwhile.
    fn edit<R>(&self, range: ManagedRange, at: impl FnOnce(&mut [u8]) -> R) -> R;

    /// Clear `range`, which is the caller's and has memory.
    fn clear(&self, range: ManagedRange);
}
