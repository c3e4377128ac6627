//! What /proc/self/smaps tells of mappings beyond the list of them: the flags of each (fork policy, locks, guards).
//!
//! The kernel looks at every page of the process for it, about 30 ns each: for rare questions.

use crate::fd::Fd;
use crate::file;
use crate::maps::{self, NAME_BYTES, Vma};
use crate::proc;
use crate::syscall::Errno;

/// Flags of a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(u32);

impl Flags {
    /// None of them.
    pub const NONE: Self = Self(0);
    /// `dc`: a forked child does not have it (`MADV_DONTFORK`).
    pub const DONT_COPY: Self = Self(1);
    /// `wf`: a forked child finds zeroes (`MADV_WIPEONFORK`).
    pub const WIPE_ON_FORK: Self = Self(2);
    /// `lo`: locked (`mlock`).
    pub const LOCKED: Self = Self(4);
    /// `gd`: grows downwards: a stack.
    pub const GROWS_DOWN: Self = Self(8);
    /// `sr`: read in order (`MADV_SEQUENTIAL`).
    pub const SEQUENTIAL: Self = Self(16);
    /// `rr`: read at random (`MADV_RANDOM`).
    pub const RANDOM: Self = Self(32);
    /// `um`: a userfaultfd is told of missing pages.
    pub const USERFAULT: Self = Self(64);
    /// `io`, `pf` or `mm`: pages that the kernel does not manage as memory (devices).
    pub const DEVICE: Self = Self(128);

    const NAMES: [(&[u8], Self); 10] = [
        (b"dc", Self::DONT_COPY),
        (b"wf", Self::WIPE_ON_FORK),
        (b"lo", Self::LOCKED),
        (b"gd", Self::GROWS_DOWN),
        (b"sr", Self::SEQUENTIAL),
        (b"rr", Self::RANDOM),
        (b"um", Self::USERFAULT),
        (b"io", Self::DEVICE),
        (b"pf", Self::DEVICE),
        (b"mm", Self::DEVICE),
    ];

    /// Both sets.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// True if something is in both.
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The words behind `VmFlags:`; words that are not known here say nothing.
    fn parse(words: &[u8]) -> Self {
        let known =
            |word: &[u8]| Self::NAMES.iter().find(|(name, _)| *name == word).map_or(Self::NONE, |(_, flag)| *flag);
        words.split(|byte| *byte == b' ').map(known).fold(Self::NONE, Self::with)
    }
}

/// A mapping and its flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flagged {
    /// As in the list of mappings, without its name.
    pub vma: Vma<'static>,
    /// Its flags.
    pub flags: Flags,
}

/// Reads the flags of this process's mappings, in ascending order, with a buffer of the caller.
#[derive(Debug)]
pub struct SmapsText<'b> {
    fd: Option<Fd>,
    buf: &'b mut [u8],
    head: usize,
    tail: usize,
}

impl<'b> SmapsText<'b> {
    /// Read this process's. The buffer must hold the longest line: [`NAME_BYTES`] and 128 more.
    pub fn open(buf: &'b mut [u8]) -> Result<Self, Errno> {
        assert!(buf.len() >= NAME_BYTES + 128, "the buffer holds the longest line");
        Ok(Self { fd: Some(proc::open(c"self/smaps")?), buf, head: 0, tail: 0 })
    }

    /// Read `text` instead, which the buffer holds already: `len` bytes of it.
    pub fn over(buf: &'b mut [u8], len: usize) -> Self {
        Self { fd: None, buf, head: 0, tail: len }
    }

    /// The next mapping; `None` after the last. EIO: a text that this reader does not understand, or one that ends in the
    /// middle of a mapping.
    pub fn next_mapping(&mut self) -> Result<Option<Flagged>, Errno> {
        let Some(line) = self.next_line()? else { return Ok(None) };
        let vma = maps::parse_line(&self.buf[line.0..line.1]).ok_or(Errno::EIO)?;
        if vma.is_empty() || vma.end < vma.start {
            return Err(Errno::EIO);
        }
        let vma = Vma { name: b"", ..vma };
        loop {
            let (from, to) = self.next_line()?.ok_or(Errno::EIO)?;
            if let Some(words) = self.buf[from..to].strip_prefix(b"VmFlags:") {
                return Ok(Some(Flagged { vma, flags: Flags::parse(words) }));
            }
        }
    }

    /// Where the next line lies in the buffer.
    fn next_line(&mut self) -> Result<Option<(usize, usize)>, Errno> {
        let len = loop {
            if let Some(len) = self.buf[self.head..self.tail].iter().position(|byte| *byte == b'\n') {
                break len;
            }
            if !self.fill()? {
                return if self.head == self.tail { Ok(None) } else { Err(Errno::EIO) };
            }
        };
        let line = (self.head, self.head + len);
        self.head += len + 1;
        Ok(Some(line))
    }

    /// Read more; false at the end.
    fn fill(&mut self) -> Result<bool, Errno> {
        let Some(fd) = &self.fd else { return Ok(false) };
        self.buf.copy_within(self.head..self.tail, 0);
        self.tail -= self.head;
        self.head = 0;
        if self.tail == self.buf.len() {
            return Err(Errno::EIO);
        }
        let len = file::read(fd, &mut self.buf[self.tail..])?;
        self.tail += len;
        Ok(len > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::mem::{self, Advice, Mapping, PAGE_BYTES};

    fn read(text: &[u8]) -> Vec<Result<Flagged, Errno>> {
        let mut buf = text.to_vec();
        let len = buf.len();
        let mut smaps = SmapsText::over(&mut buf, len);
        let mut found = Vec::new();
        // Each turn takes a line at least.
        loop {
            match smaps.next_mapping() {
                Ok(None) => return found,
                Ok(Some(mapping)) => found.push(Ok(mapping)),
                Err(errno) => {
                    found.push(Err(errno));
                    return found;
                }
            }
        }
    }

    #[test]
    fn flags_are_told_of_the_mapping_above_them() {
        let text = b"1000-3000 rw-p 00000000 00:00 0 \nSize: 8 kB\nAnonymous:            4 kB\nVmFlags: rd wr mr mw me ac wf dc zz\n\
            3000-4000 r--p 00000000 fd:01 7   /tmp/VmFlags: lo\nAnonymous: 0 kB\nVmFlags: rd lo \n";
        let flags = Flags::WIPE_ON_FORK.with(Flags::DONT_COPY);
        let found: Vec<_> = read(text).into_iter().map(|found| found.expect("a good text")).collect();
        let told: Vec<_> = found.iter().map(|found| (found.vma.start, found.vma.end, found.flags)).collect();
        assert_eq!(told, [(0x1000, 0x3000, flags), (0x3000, 0x4000, Flags::LOCKED)]);
        assert_eq!((found[0].vma.kind, found[1].vma.kind), (maps::Kind::Anon, maps::Kind::File));
    }

    #[test]
    fn a_text_that_is_cut_or_no_such_text_is_an_error_and_never_a_mapping() {
        let cut: [&[u8]; 6] = [
            b"1000-2000 rw-p 00000000 00:00 0 \nSize: 4 kB\n",
            b"1000-2000 rw-p 00000000 00:00 0 \nVmFlags: wf",
            b"VmFlags: wf\n",
            b"2000-1000 rw-p 00000000 00:00 0 \nVmFlags: wf\n",
            b"1000-1000 rw-p 00000000 00:00 0 \nVmFlags: wf\n",
            b"\n\n\n",
        ];
        for text in cut {
            assert_eq!(read(text), [Err(Errno::EIO)], "{:?}", std::string::String::from_utf8_lossy(text));
        }
        assert_eq!(read(b""), []);
    }

    #[test]
    #[cfg_attr(miri, ignore = "asks the kernel")]
    fn the_kernel_tells_what_it_was_advised() {
        let mapping = Mapping::plain(4 * PAGE_BYTES, PAGE_BYTES).expect("mmap");
        mem::advise(mapping.range().page(1), Advice::WipeOnFork).expect("madvise");
        mem::advise(mapping.range().page(2), Advice::DontFork).expect("madvise");
        let mut buf = std::vec![0; 64 << 10];
        let mut smaps = SmapsText::open(&mut buf).expect("smaps");
        let mut found = Vec::new();
        while let Some(mapping) = smaps.next_mapping().expect("the kernel's own text") {
            found.push(mapping);
        }
        let of = |page: usize| {
            let at = mapping.range().page(page).start();
            found.iter().find(|mapping| mapping.vma.start <= at && at < mapping.vma.end).expect("it is mapped").flags
        };
        assert!(of(1).meets(Flags::WIPE_ON_FORK) && !of(1).meets(Flags::DONT_COPY));
        assert!(of(2).meets(Flags::DONT_COPY) && !of(3).meets(Flags::DONT_COPY.with(Flags::WIPE_ON_FORK)));
    }
}
