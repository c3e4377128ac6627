//! The file of a record of events: `pagetide run --record FILE`, one for each process under management.
//!
//! It is written through a shared mapping, so that what was recorded stays when the process is killed or aborts, without a
//! system call for each event. Disk space is allocated before it is mapped: a full disk ends the record, not the program.

use pagetide_driver::record::{LiveConfig, RecordWriter, Tape};
use pagetide_sys::fd::Fd;
use pagetide_sys::file::{self, flags};
use pagetide_sys::mem::{Mapping, Protection};
use pagetide_sys::{Errno, thread};

use crate::limits;

/// Bytes of a record at most: 256 MiB.
const RECORD_BYTES_MAX: u64 = 256 << 20;
/// Bytes that are mapped at a time: 1 MiB.
const WINDOW_BYTES: usize = 1 << 20;
const _: () = assert!(RECORD_BYTES_MAX.is_multiple_of(4096) && WINDOW_BYTES.is_multiple_of(4096));

/// The file, written from its start.
#[derive(Debug)]
struct RecordFile {
    file: Fd,
    /// What is mapped, from this byte of the file on.
    window: Mapping,
    from: u64,
    /// Bytes of the window that are written.
    len: usize,
}

/// A record of this process, whose core is made of `config`, in the file `name.PID` of `directory`.
pub(crate) fn begin(directory: &Fd, name: &str, config: &LiveConfig) -> Result<RecordWriter, Errno> {
    let path = std::ffi::CString::new(format!("{name}.{}", thread::getpid())).map_err(|_zero_byte| Errno::EINVAL)?;
    let file = Fd::open_at(Some(directory), &path, flags::READ_WRITE | flags::CREATE | flags::TRUNCATE, 0o600)?;
    let window = window(&file, 0)?;
    Ok(RecordWriter::new(Box::new(RecordFile { file, window, from: 0, len: 0 }), config))
}

fn window(file: &Fd, from: u64) -> Result<Mapping, Errno> {
    if from + WINDOW_BYTES as u64 > RECORD_BYTES_MAX {
        return Err(Errno::EFBIG);
    }
    file::allocate(file, from, WINDOW_BYTES as u64)?;
    limits::make_room(WINDOW_BYTES);
    Mapping::shared(file, from, WINDOW_BYTES, Protection::ReadWrite)
}

impl RecordFile {
    fn write(&self, at: usize, byte: u8) {
        assert!(at < WINDOW_BYTES, "a byte of the window");
        // SAFETY: inside the mapping, which nobody else in this process uses; volatile keeps the order of the writes.
        unsafe { self.window.range().as_ptr().wrapping_add(at).write_volatile(byte) };
    }
}

impl Tape for RecordFile {
    fn put(&mut self, bytes: &[u8]) -> bool {
        if self.len + bytes.len() >= WINDOW_BYTES {
            // The page that is written in part begins the next window.
            let page_start = self.len & !4095;
            let from = self.from + page_start as u64;
            let Ok(window) = window(&self.file, from) else { return false };
            (self.window, self.from, self.len) = (window, from, self.len - page_start);
        }
        if self.len + bytes.len() >= WINDOW_BYTES {
            return false;
        }
        for (index, &byte) in bytes.iter().enumerate().rev() {
            self.write(self.len + index, byte);
        }
        self.len += bytes.len();
        true
    }

    fn put_last(&mut self, byte: u8) {
        self.write(self.len, byte);
    }
}
