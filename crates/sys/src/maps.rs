//! The mappings of a process, one by one, without allocation: the PROCMAP_QUERY ioctl (Linux 6.11) and the text of
//! /proc/PID/maps, which every kernel has. Both give equal answers.
//!
//! The list may change between two steps. A step asks for the first mapping at or after an address, so a change is seen or not
//! seen, but never makes the walk go back or end early.

use core::ffi::CStr;

use linux_raw_sys::general as k;

use crate::fd::Fd;
use crate::file;
use crate::proc;
use crate::syscall::Errno;
use crate::text::{Text, hexadecimal};
use crate::word::{addr_of, u64_of, usize_of};

/// `_IOWR('f', 17, struct procmap_query)`
const PROCMAP_QUERY: u32 = 0xc068_6611;
const _: () = assert!(size_of::<k::procmap_query>() == 0x68);

/// Most bytes of a mapping's name that are kept: a path of the longest length, and what the kernel appends to it.
pub const NAME_BYTES: usize = 4096 + 64;

/// What lies behind a mapping, by its name in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Anonymous, without a name.
    Anon,
    /// `[heap]`: the brk area.
    Heap,
    /// `[stack]`: the first thread's.
    Stack,
    /// `[vdso]`, `[vvar]`, `[vsyscall]`, `[uprobes]` and the like: the kernel's own.
    Kernel,
    /// `[anon:NAME]` or `[anon_shmem:NAME]`: anonymous, named by the program.
    AnonNamed,
    /// A file, a device, a memory file, System V memory or /dev/zero.
    File,
}

impl Kind {
    fn of(name: &[u8], inode: u64) -> Self {
        match name {
            b"" if inode == 0 => Self::Anon,
            b"[heap]" => Self::Heap,
            b"[stack]" => Self::Stack,
            _ if name.starts_with(b"[anon:") || name.starts_with(b"[anon_shmem:") => Self::AnonNamed,
            _ if name.starts_with(b"[") && inode == 0 => Self::Kernel,
            _ => Self::File,
        }
    }
}

/// One mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vma<'a> {
    /// First address.
    pub start: usize,
    /// First address after it.
    pub end: usize,
    /// May be read.
    pub read: bool,
    /// May be written.
    pub write: bool,
    /// May be executed.
    pub exec: bool,
    /// Shared with others who map the same thing.
    pub shared: bool,
    /// Where in the file it begins.
    pub offset: u64,
    /// Device of the file: (major, minor).
    pub device: (u32, u32),
    /// Inode of the file; 0 for anonymous memory.
    pub inode: u64,
    /// What it is.
    pub kind: Kind,
    /// The name as the list has it; empty for plain anonymous memory.
    pub name: &'a [u8],
}

impl Vma<'_> {
    /// Bytes.
    pub const fn len(&self) -> usize {
        self.end - self.start
    }

    /// Never true: mappings have bytes.
    pub const fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Private memory that no file fills: what can be adopted, as far as the list tells.
    pub const fn is_private_anon(&self) -> bool {
        !self.shared && self.inode == 0 && matches!(self.kind, Kind::Anon | Kind::Heap | Kind::AnonNamed)
    }
}

/// Asks the kernel for mappings by address.
#[derive(Debug)]
pub struct MapsQuery {
    fd: Fd,
}

impl MapsQuery {
    /// Ask about this process; ENOTTY if the kernel has no such question. After a fork it still asks about the parent.
    pub fn open() -> Result<Self, Errno> {
        let fd = match proc::given(proc::Given::Maps) {
            Some(fd) => fd,
            None => proc::open(c"self/maps")?,
        };
        let query = Self { fd };
        match query.ask(0, 0) {
            Ok(_) | Err(Errno::ENOENT) => Ok(query),
            Err(error) => Err(error),
        }
    }

    /// The same under a high number.
    pub fn moved_high(self, lowest: u32) -> Self {
        Self { fd: self.fd.moved_high(lowest) }
    }

    fn ask(&self, addr: usize, name: usize) -> Result<k::procmap_query, Errno> {
        let covering_or_next = k::procmap_query_flags::PROCMAP_QUERY_COVERING_OR_NEXT_VMA as u64;
        let mut query = k::procmap_query {
            size: u64_of(size_of::<k::procmap_query>()),
            query_flags: covering_or_next,
            query_addr: u64_of(addr),
            vma_start: 0,
            vma_end: 0,
            vma_flags: 0,
            vma_page_size: 0,
            vma_offset: 0,
            inode: 0,
            dev_major: 0,
            dev_minor: 0,
            vma_name_size: 0,
            build_id_size: 0,
            vma_name_addr: 0,
            build_id_addr: 0,
        };
        if name != 0 {
            query.vma_name_addr = u64_of(name);
            query.vma_name_size = NAME_SIZE;
        }
        // SAFETY: the kernel reads and writes `query` and at most `vma_name_size` bytes at `name`, which the callers below
        // lend it.
        unsafe { self.fd.ioctl(PROCMAP_QUERY, addr_of(&raw mut query)) }?;
        Ok(query)
    }

    /// The mapping that covers `addr`, or the next one; `None` after the last. Its name goes into `name`.
    pub fn at_or_after<'a>(&self, addr: usize, name: &'a mut [u8; NAME_BYTES]) -> Result<Option<Vma<'a>>, Errno> {
        let query = match self.ask(addr, addr_of(name.as_mut_ptr())) {
            Ok(query) => query,
            Err(Errno::ENOENT) => return Ok(None),
            Err(error) => return Err(error),
        };
        // The size counts the closing zero; 0 says that there is no name.
        let len = (query.vma_name_size as usize).saturating_sub(1).min(NAME_BYTES);
        Ok(Some(vma_of(&query, &name[..len])))
    }

    /// The same without the name (cheaper): `kind` tells files from anonymous memory only.
    pub fn at_or_after_unnamed(&self, addr: usize) -> Result<Option<Vma<'static>>, Errno> {
        match self.ask(addr, 0) {
            Ok(query) => Ok(Some(vma_of(&query, b""))),
            Err(Errno::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

const NAME_SIZE: u32 = 4096 + 64;
const _: () = assert!(NAME_SIZE as usize == NAME_BYTES);

fn vma_of<'a>(query: &k::procmap_query, name: &'a [u8]) -> Vma<'a> {
    use k::procmap_query_flags as f;
    let has = |flag: k::procmap_query_flags| query.vma_flags & flag as u64 != 0;
    Vma {
        start: usize_of(query.vma_start),
        end: usize_of(query.vma_end),
        read: has(f::PROCMAP_QUERY_VMA_READABLE),
        write: has(f::PROCMAP_QUERY_VMA_WRITABLE),
        exec: has(f::PROCMAP_QUERY_VMA_EXECUTABLE),
        shared: has(f::PROCMAP_QUERY_VMA_SHARED),
        offset: query.vma_offset,
        device: (query.dev_major, query.dev_minor),
        inode: query.inode,
        kind: Kind::of(name, query.inode),
        name,
    }
}

/// Reads the text of a map list, with a buffer of the caller.
#[derive(Debug)]
pub struct MapsText<'b> {
    fd: Fd,
    buf: &'b mut [u8],
    /// What of the buffer is read and not yet given out.
    head: usize,
    tail: usize,
}

impl<'b> MapsText<'b> {
    /// Read this process's list. The buffer must hold the longest line: [`NAME_BYTES`] and 128 more.
    pub fn open(buf: &'b mut [u8]) -> Result<Self, Errno> {
        Self::open_path(c"self/maps", buf)
    }

    /// Read another process's list.
    pub fn open_pid(pid: i32, buf: &'b mut [u8]) -> Result<Self, Errno> {
        let path = Text::<32>::format(format_args!("{pid}/maps"));
        Self::open_path(path.as_c_str(), buf)
    }

    fn open_path(path: &CStr, buf: &'b mut [u8]) -> Result<Self, Errno> {
        assert!(buf.len() >= NAME_BYTES + 128, "the buffer holds the longest line");
        Ok(Self { fd: proc::open(path)?, buf, head: 0, tail: 0 })
    }

    /// The next mapping; `None` after the last. EIO: a line that this reader does not understand.
    pub fn next_vma(&mut self) -> Result<Option<Vma<'_>>, Errno> {
        let line_len = loop {
            let unread = &self.buf[self.head..self.tail];
            if let Some(len) = unread.iter().position(|byte| *byte == b'\n') {
                break len;
            }
            if !self.fill()? {
                return Ok(None);
            }
        };
        let line = &self.buf[self.head..self.head + line_len];
        self.head += line_len + 1;
        parse_line(line).map(Some).ok_or(Errno::EIO)
    }

    /// Read more; false at the end of the list.
    fn fill(&mut self) -> Result<bool, Errno> {
        self.buf.copy_within(self.head..self.tail, 0);
        self.tail -= self.head;
        self.head = 0;
        if self.tail == self.buf.len() {
            return Err(Errno::EIO);
        }
        let len = file::read(&self.fd, &mut self.buf[self.tail..])?;
        self.tail += len;
        Ok(len > 0)
    }
}

/// One line: `start-end rwxp offset major:minor inode   name`; `None` if it is none.
pub fn parse_line(line: &[u8]) -> Option<Vma<'_>> {
    let (start, rest) = hexadecimal(line)?;
    let (end, rest) = hexadecimal(rest.strip_prefix(b"-")?)?;
    let rest = rest.strip_prefix(b" ")?;
    let (rights, rest) = rest.split_at_checked(4)?;
    let (offset, rest) = hexadecimal(rest)?;
    let (major, rest) = hexadecimal(rest)?;
    let (minor, rest) = hexadecimal(rest.strip_prefix(b":")?)?;
    let (inode, rest) = crate::text::decimal(rest)?;
    let name = rest.trim_ascii_start();
    // Whoever subtracts the ends may rely on their order.
    (start < end).then_some(())?;
    Some(Vma {
        start: usize_of(start),
        end: usize_of(end),
        read: rights[0] == b'r',
        write: rights[1] == b'w',
        exec: rights[2] == b'x',
        shared: rights[3] == b's',
        offset,
        device: (u32::try_from(major).ok()?, u32::try_from(minor).ok()?),
        inode,
        kind: Kind::of(name, inode),
        name,
    })
}

/// Walks the mappings of this process by whichever way the kernel has.
#[derive(Debug)]
pub struct MapsWalk<'b> {
    way: Way,
    next: usize,
    text: Option<MapsText<'b>>,
    name: [u8; NAME_BYTES],
}

#[derive(Debug)]
enum Way {
    Query(MapsQuery),
    Text,
}

impl<'b> MapsWalk<'b> {
    /// Start at the lowest address; `buf` as for [`MapsText::open`].
    pub fn open(buf: &'b mut [u8]) -> Result<Self, Errno> {
        match MapsQuery::open() {
            Ok(query) => Ok(Self { way: Way::Query(query), next: 0, text: None, name: [0; NAME_BYTES] }),
            Err(_) => Ok(Self { way: Way::Text, next: 0, text: Some(MapsText::open(buf)?), name: [0; NAME_BYTES] }),
        }
    }

    /// False: this kernel (before 6.11) has the list as a text, which can be read from its beginning only.
    pub const fn can_skip(&self) -> bool {
        matches!(self.way, Way::Query(_))
    }

    /// Go on with the first mapping that ends behind `address`, if it can.
    pub const fn skip_to(&mut self, address: usize) {
        self.next = address;
    }

    /// The next mapping; `None` after the last.
    pub fn next_vma(&mut self) -> Result<Option<Vma<'_>>, Errno> {
        match (&self.way, &mut self.text) {
            (Way::Query(query), _) => {
                let vma = query.at_or_after(self.next, &mut self.name)?;
                if let Some(vma) = &vma {
                    self.next = vma.end;
                }
                Ok(vma)
            }
            (Way::Text, Some(text)) => text.next_vma(),
            (Way::Text, None) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_understood_or_refused() {
        let line = b"7f00a0000000-7f00a0021000 rw-s 00001000 fd:01 131 /tmp/a b (deleted)";
        let vma = parse_line(line).expect("a good line");
        assert_eq!((vma.start, vma.end), (0x7f00_a000_0000, 0x7f00_a002_1000));
        assert_eq!((vma.read, vma.write, vma.exec, vma.shared), (true, true, false, true));
        assert_eq!((vma.offset, vma.device, vma.inode), (0x1000, (0xfd, 1), 131));
        assert_eq!((vma.kind, vma.name), (Kind::File, b"/tmp/a b (deleted)".as_slice()));
        assert_eq!(parse_line(b"7f00a0000000 rw-p"), None);
        assert_eq!(parse_line(b"2000-1000 rw-p 00000000 00:00 0 "), None);
        assert_eq!(parse_line(b"1000-1000 rw-p 00000000 00:00 0 "), None);
        let anon = parse_line(b"1000-2000 ---p 00000000 00:00 0 ").expect("a good line");
        assert_eq!((anon.kind, anon.is_private_anon()), (Kind::Anon, true));
        let vdso = parse_line(b"1000-2000 r-xp 00000000 00:00 0       [vdso]").expect("a good line");
        assert_eq!(vdso.kind, Kind::Kernel);
        let named = parse_line(b"1000-2000 rw-p 00000000 00:00 0       [anon:glibc: malloc]").expect("a good line");
        assert_eq!((named.kind, named.is_private_anon()), (Kind::AnonNamed, true));
    }
}
