//! process_vm_readv(2) and process_vm_writev(2) of another process's memory, in signal mode, where the kernel does not wait for pages that are
//! out: they are asked for, and the call is made again.
//!
//! ```text
//!   caller -- ask --> its agent -- a pidfd --> supervisor --> the agent of that process: faults on the pages
//!     '-------- tries again until they are there ------------------------------------------------'
//! ```
//!
//! Nobody answers: the pages are what is waited for. They may leave again before they are read; then they are asked for once more.

use std::sync::atomic::{AtomicBool, Ordering};

use pagetide_core::types::Access;
use pagetide_sys::fd::{self, Fd};
use pagetide_sys::maps::{MapsText, NAME_BYTES};
use pagetide_sys::mem::PAGE_BYTES;
use pagetide_sys::sync::Mutex;
use pagetide_sys::text::{Text, decimal};
use pagetide_sys::{file, socket};

use crate::protocol::BRING;
use crate::serve;
use crate::sleepers::Sleepers;
use crate::vmas::each_in;

/// Requests that wait for the agent, at most; who finds no place asks again.
const WANTS_MAX: usize = 8;
/// Bytes that are asked for at once, at most.
const BYTES_MAX: usize = 512 << 10;

/// Part of a process's memory, and what is to be done to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) start: usize,
    pub(crate) bytes: usize,
    pub(crate) access: Access,
}

impl Part {
    /// As a packet.
    fn encode(self) -> Vec<u8> {
        let is_write = u8::from(self.access == Access::Write);
        [BRING, format!("{} {} {is_write}", self.start, self.bytes).as_bytes()].concat()
    }

    /// From what follows [`BRING`]; None if it is no part. Any process may have written it.
    fn decode(text: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(text).ok()?.split(' ');
        let mut next = || words.next()?.parse::<usize>().ok();
        let (start, bytes, is_write) = (next()?, next()?, next()?);
        start.checked_add(bytes)?;
        let access = if is_write == 1 { Access::Write } else { Access::Read };
        (words.next().is_none() && bytes <= BYTES_MAX).then_some(Self { start, bytes, access })
    }

    /// The numbers of its pages.
    pub(crate) fn pages(self) -> std::ops::Range<usize> {
        self.start / PAGE_BYTES..(self.start + self.bytes).div_ceil(PAGE_BYTES)
    }
}

/// For the agent.
static WANTED: Mutex<[Option<(i32, Part)>; WANTS_MAX]> = Mutex::new([None; WANTS_MAX]);
/// There is something: the agent looks in every turn.
static IS_WANTED: AtomicBool = AtomicBool::new(false);

/// In a thread whose call found nothing at the start of this part of another process. False: nothing can come there.
pub(crate) fn ask(pid: i32, part: Part) -> bool {
    if !may_be_out(pid, part) {
        return false;
    }
    let Some(bell) = serve::bell(false) else { return false };
    // A thread may stand for its process.
    let wanted = (process_of(pid), Part { bytes: part.bytes.min(BYTES_MAX), ..part });
    if let Some(place) = WANTED.lock("memory of another process is asked for").iter_mut().find(|place| place.is_none())
    {
        *place = Some(wanted);
    }
    IS_WANTED.store(true, Ordering::Release);
    Sleepers::ring(bell);
    true
}

/// Private memory that no file fills, with the right to do so.
fn may_be_out(pid: i32, part: Part) -> bool {
    let mut buffer = [0; NAME_BYTES + 1024];
    let Ok(mut maps) = MapsText::open_pid(pid, &mut buffer) else { return false };
    while let Ok(Some(vma)) = maps.next_vma() {
        if vma.end > part.start {
            let may = if part.access == Access::Write { vma.write } else { vma.read };
            return vma.start <= part.start && vma.is_private_anon() && may && !is_guard(pid, part.start);
        }
    }
    false
}

/// Pages under a guard (MADV_GUARD_INSTALL) never come. Kernels before 6.15 do not tell.
fn is_guard(pid: i32, address: usize) -> bool {
    const GUARD: u64 = 1 << 58;
    let path = Text::<32>::format(format_args!("/proc/{pid}/pagemap"));
    let mut entry = [0; 8];
    let at = (address / PAGE_BYTES * size_of::<u64>()) as u64;
    let read = Fd::open(path.as_c_str(), file::flags::READ, 0).and_then(|map| file::pread(&map, &mut entry, at));
    read == Ok(entry.len()) && u64::from_ne_bytes(entry) & GUARD != 0
}

/// The process of a thread.
fn process_of(tid: i32) -> i32 {
    let path = Text::<32>::format(format_args!("/proc/{tid}/status"));
    let mut text = [0; 512];
    let read = Fd::open(path.as_c_str(), file::flags::READ, 0).and_then(|status| file::pread(&status, &mut text, 0));
    let text = &text[..read.unwrap_or(0)];
    let line = text.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"Tgid:"));
    line.and_then(decimal).and_then(|(pid, _)| i32::try_from(pid).ok()).unwrap_or(tid)
}

/// May the caller's own memory at this address take what is read (or give what is written) there?
pub(crate) fn is_usable(address: usize, access: Access) -> bool {
    let mut may = false;
    let walked = each_in(&(address..address.saturating_add(1)), |vma, _| {
        may = if access == Access::Read { vma.write } else { vma.read };
        false
    });
    walked.is_err() || may
}

/// In the agent: let the supervisor know.
pub(crate) fn send(supervisor: &Fd) {
    if !IS_WANTED.load(Ordering::Relaxed) {
        return;
    }
    IS_WANTED.store(false, Ordering::Relaxed);
    let wanted = std::mem::take(&mut *WANTED.lock("what was asked for is taken"));
    for (pid, part) in wanted.into_iter().flatten() {
        // Who has ended needs nothing, and who is not heard asks again.
        if let Ok(process) = fd::pidfd(pid) {
            let _ = socket::send(supervisor, &part.encode(), &[&process], false);
        }
    }
}

/// In a forked child: the lock may have been copied while it was held, and what was asked for was the parent's.
///
/// # Safety
/// The caller is the only thread.
pub(crate) unsafe fn after_fork() {
    IS_WANTED.store(false, Ordering::Relaxed);
    // SAFETY: no other thread exists.
    unsafe { (&raw const WANTED).cast_mut().write(Mutex::new([None; WANTS_MAX])) };
}

/// In the supervisor: a word of an agent is such a request. `link`: the socket of the agent of a process, by its number.
pub(crate) fn pass_on<'a>(word: &[u8], process: Option<Fd>, link: impl FnOnce(i32) -> Option<&'a Fd>) {
    let part = word.strip_prefix(BRING).and_then(Part::decode);
    let (Some(part), Some(process)) = (part, process) else { return };
    let Ok(told) = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", process.raw())) else { return };
    let pid = told.lines().find_map(|line| line.strip_prefix("Pid:")?.trim().parse().ok());
    if let Some(socket) = pid.and_then(link) {
        let _ = socket::send(socket, &part.encode(), &[], false);
    }
}

/// In the agent of the process that has the memory: the part that the supervisor's word names.
pub(crate) fn asked_for(word: &[u8]) -> Option<Part> {
    Part::decode(word.strip_prefix(BRING)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_decoded_as_they_were_encoded_and_others_refused() {
        let part = Part { start: 0x7000_0123, bytes: BYTES_MAX, access: Access::Write };
        assert_eq!(asked_for(&part.encode()), Some(part));
        assert_eq!(part.pages(), 0x70000..0x70081);
        let read = Part { access: Access::Read, bytes: 1, ..part };
        assert_eq!(asked_for(&read.encode()), Some(read));
        for word in
            ["bring", "bring 1 2", "bring 1 2 0 0", "bring 0 600000 0", "bring 18446744073709551615 2 0", "do 1 2 0"]
        {
            assert_eq!(asked_for(word.as_bytes()), None, "{word}");
        }
    }
}
