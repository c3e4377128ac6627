//! Linux: the port over userfaultfd and /proc/self.
//!
//! Safety rests on what the ranges promise ([`ManagedRange::new`]): the caller of [`AddressSpace::look`] and
//! [`AddressSpace::clear`] names memory of its own.

use pagetide_sys::fd::{self, Fd};
use pagetide_sys::maps::{MapsQuery, MapsText, Vma};
use pagetide_sys::mem::{self, Advice, ManagedRange, Mapping};
use pagetide_sys::pagemap::{Categories, Pagemap, Run, Scanned};
use pagetide_sys::smaps::{Flags, SmapsText};
use pagetide_sys::uffd::{Features, Modes, Msg, RangeAnswer, RawMsg, Reach, ReadAnswer, ReadMode, Uffd, Wake};
use pagetide_sys::{Errno, clock, proc};

use crate::port::{AddressSpace, Faults, Message, OwnMapping, Sizes};

/// Text of /proc/self/maps that is read at once.
const MAPS_BYTES: usize = 64 << 10;

/// This process.
#[derive(Debug)]
pub struct Linux {
    uffd: Uffd,
    /// None where /proc is not to be had.
    pagemap: Option<Pagemap>,
    /// Where the kernel answers questions about single addresses; else the text of all mappings is read.
    query: Option<MapsQuery>,
    maps_buffer: Vec<u8>,
    /// A second one, which catches nothing and so knows of no change: it is asked what is registered. None: there is none to be had.
    witness: Option<Uffd>,
}

impl Linux {
    /// This process through `uffd`, its handshake done.
    pub fn new(uffd: Uffd) -> Self {
        Self::with_pagemap(uffd, Pagemap::open().ok())
    }

    /// The same with a page map that is open.
    pub fn with_pagemap(uffd: Uffd, pagemap: Option<Pagemap>) -> Self {
        let query = MapsQuery::open().ok();
        let witness = Uffd::open(Reach::UserMode, ReadMode::NonBlocking).ok().map(|(uffd, _)| uffd);
        let witness = witness.filter(|uffd| uffd.handshake(Features::NONE).is_ok());
        Self { uffd, pagemap, query, maps_buffer: vec![0; MAPS_BYTES], witness }
    }

    /// The userfaultfd.
    pub const fn uffd(&self) -> &Uffd {
        &self.uffd
    }
}

impl OwnMapping for Mapping {
    fn range(&self) -> ManagedRange {
        Self::range(self)
    }
}

impl Faults for Uffd {
    type Child = Self;

    fn next_message(&self) -> Result<Option<Message<Self>>, Errno> {
        let mut message = [RawMsg::EMPTY];
        match self.read(&mut message)? {
            ReadAnswer::Empty | ReadAnswer::Interrupted | ReadAnswer::Read(0) => return Ok(None),
            ReadAnswer::Read(_) => {}
        }
        Ok(Some(match message[0].take() {
            Msg::PageFault { addr, write, tid, .. } => {
                Message::Fault { address: addr, write, thread: tid.cast_unsigned() }
            }
            Msg::Fork { fd } => Message::Fork(Self::from_fd(fd)),
            Msg::Remap { from, to, len } => Message::Remap { from, to, len },
            Msg::Remove { start, end } => Message::Remove { start, end },
            Msg::Unmap { start, end } => Message::Unmap { start, end },
            Msg::Unknown { event } => Message::Unknown(event),
        }))
    }

    fn wake(&self, range: ManagedRange) -> Result<(), Errno> {
        self.wake(range)
    }

    fn copy(&self, to: ManagedRange, from: ManagedRange, wake: Wake) -> RangeAnswer {
        self.copy(to, from, false, wake)
    }

    fn zeropage(&self, to: ManagedRange, wake: Wake) -> RangeAnswer {
        self.zeropage(to, wake)
    }

    fn poison(&self, range: ManagedRange, wake: Wake) -> RangeAnswer {
        self.poison(range, wake)
    }

    fn is_registered(&self, page: ManagedRange) -> Result<bool, Errno> {
        self.is_registered(page)
    }

    fn descriptor(&self) -> Option<&Fd> {
        Some(self.fd())
    }
}

impl Faults for Linux {
    type Child = Uffd;

    fn next_message(&self) -> Result<Option<Message<Uffd>>, Errno> {
        self.uffd.next_message()
    }

    fn wake(&self, range: ManagedRange) -> Result<(), Errno> {
        self.uffd.wake(range)
    }

    fn copy(&self, to: ManagedRange, from: ManagedRange, wake: Wake) -> RangeAnswer {
        self.uffd.copy(to, from, false, wake)
    }

    fn zeropage(&self, to: ManagedRange, wake: Wake) -> RangeAnswer {
        self.uffd.zeropage(to, wake)
    }

    fn poison(&self, range: ManagedRange, wake: Wake) -> RangeAnswer {
        self.uffd.poison(range, wake)
    }

    fn is_registered(&self, page: ManagedRange) -> Result<bool, Errno> {
        self.uffd.is_registered(page)
    }

    fn descriptor(&self) -> Option<&Fd> {
        Some(self.uffd.fd())
    }
}

impl AddressSpace for Linux {
    type Mapping = Mapping;

    fn now(&self) -> u64 {
        clock::now()
    }

    fn register(&self, range: ManagedRange, modes: Modes) -> Result<(), Errno> {
        self.uffd.register(range, modes).map(|_| ())
    }

    fn unregister(&self, range: ManagedRange) -> Result<(), Errno> {
        self.uffd.unregister(range)
    }

    fn is_registered_now(&self, page: ManagedRange) -> Option<bool> {
        self.witness.as_ref()?.is_registered(page).ok()
    }

    fn move_pages(&self, to: ManagedRange, from: ManagedRange, wake: Wake) -> RangeAnswer {
        self.uffd.move_pages(to, from, false, wake)
    }

    fn leading(&self, range: ManagedRange, there: bool) -> Result<usize, Errno> {
        self.pagemap.as_ref().ok_or(Errno::ENOENT)?.leading(range, there)
    }

    fn shared(&self, range: ManagedRange) -> Result<usize, Errno> {
        self.pagemap.as_ref().ok_or(Errno::ENOENT)?.shared(range)
    }

    fn give_back(&self, range: ManagedRange) -> Result<(), Errno> {
        mem::advise(range, Advice::DontNeed)
    }

    fn scan(&self, range: ManagedRange, wanted: Categories, runs: &mut [Run]) -> Result<Scanned, Errno> {
        let pagemap = self.pagemap.as_ref().ok_or(Errno::ENOENT)?;
        match pagemap.scan(range, wanted, runs) {
            Err(Errno::ENOTTY | Errno::EINVAL) => pagemap.read(range, wanted, runs),
            answer => answer,
        }
    }

    fn mapping_at_or_after(&mut self, address: usize) -> Result<Option<Vma<'static>>, Errno> {
        if let Some(query) = &self.query {
            return query.at_or_after_unnamed(address);
        }
        let mut maps = MapsText::open(&mut self.maps_buffer)?;
        while let Some(vma) = maps.next_vma()? {
            if vma.end > address {
                return Ok(Some(Vma { name: b"", ..vma }));
            }
        }
        Ok(None)
    }

    fn flagged_mappings(&self, each: &mut dyn FnMut(&Vma<'_>, Flags)) -> Result<(), Errno> {
        let mut buffer = vec![0; MAPS_BYTES];
        let mut smaps = SmapsText::open(&mut buffer)?;
        while let Some(mapping) = smaps.next_mapping()? {
            each(&mapping.vma, mapping.flags);
        }
        Ok(())
    }

    fn end_of(&self, number: i32) -> Result<Fd, Errno> {
        fd::pidfd(number)
    }

    fn sizes(&self) -> Sizes {
        let told = |status: proc::Status| Sizes {
            page_table_bytes: status.page_table_bytes,
            locked_bytes: status.locked_bytes,
        };
        proc::status(None).map_or_else(|_| Sizes::default(), told)
    }

    fn look<R>(&self, range: ManagedRange, at: impl FnOnce(&[u8]) -> R) -> R {
        // SAFETY: the memory is the caller's, and nobody writes it while the call lasts: the program cannot reach it, and a device
        // reads it at most.
        at(unsafe { std::slice::from_raw_parts(range.as_ptr(), range.len()) })
    }

    fn edit<R>(&self, range: ManagedRange, at: impl FnOnce(&mut [u8]) -> R) -> R {
        // SAFETY: the memory is the caller's, and nobody else uses it while the call lasts.
        at(unsafe { std::slice::from_raw_parts_mut(range.as_ptr(), range.len()) })
    }

    fn clear(&self, range: ManagedRange) {
        // SAFETY: the memory is the caller's and holds nothing that is needed.
        unsafe { range.as_ptr().write_bytes(0, range.len()) };
    }
}
