//! Calls that name more memory than may be held at once: made piece by piece, where that is as good.
//!
//! Files are read and written on to the end, and so are pipes, streams and terminals that do not block: who is told of edges takes a short
//! read for all that there was (epoll(7)). Those that block may be read short. Datagrams go at once (`messages`); to other devices a call
//! may mean one message as well (/dev/fuse), so it is made as a whole. Of a buffer
//! for what never fills it (names, events) no more is named than may be held. All else is held as a whole; where that is more than the
//! budget, the budget gives way to it.

use pagetide_core::types::{Access, Nanos};
use pagetide_sys::dispatch::call;
use pagetide_sys::{Errno, clock, thread};

use super::dispatch::{make, read};
use super::messages;
use super::threads::Thread;
use crate::foreign::{self, Part};

/// What one piece holds at most.
pub(super) const PIECE_BYTES: usize = 512 << 10;
/// `MSG_DONTWAIT`
pub(super) const DONT_WAIT: usize = 0x40;
/// As the kernel: vectors of one call.
const VECTORS_MAX: usize = 1024;
/// Of `preadv2` and `pwritev2`: the file's own position.
const AT_POSITION: usize = usize::MAX;
const READ: u32 = 0;
const WRITE: u32 = 1;
const PREAD: u32 = 17;
const PWRITE: u32 = 18;
const READV: u32 = 19;
const WRITEV: u32 = 20;
const MADVISE: u32 = 28;
const SENDTO: u32 = 44;
const RECVFROM: u32 = 45;
const PREADV: u32 = 295;
const PWRITEV: u32 = 296;
pub(super) const PREADV2: u32 = 327;
pub(super) const PWRITEV2: u32 = 328;
const PROCESS_VM_READV: u32 = 310;
const PROCESS_VM_WRITEV: u32 = 311;
const GETRANDOM: u32 = 318;
/// Memory of another process is looked at again after this time, and asked for at every sixteenth look; after so long without a byte of it
/// the call ends as the kernel says.
const AGAIN_NS: Nanos = 200_000;
const ASKED_EVERY: u32 = 16;
const FOREIGN_NS: Nanos = 5_000_000_000;
/// Calls whose answers are short, however long the buffer is: number, the argument that tells its length, and in how many bytes.
const SHORT_ANSWERS: [(u32, usize, usize); 15] = [
    // `getdents`, `getcwd`, `readlink`, `getxattr`, `lgetxattr`, `fgetxattr`, `listxattr`, `llistxattr`, `flistxattr`, `getdents64`
    (78, 2, 1),
    (79, 1, 1),
    (89, 2, 1),
    (191, 3, 1),
    (192, 3, 1),
    (193, 3, 1),
    (194, 2, 1),
    (195, 2, 1),
    (196, 2, 1),
    (217, 2, 1),
    // `epoll_wait`, `readlinkat`, `epoll_pwait`, `epoll_pwait2`
    (232, 2, 12),
    (267, 3, 1),
    (281, 2, 12),
    (441, 2, 12),
    // `listmount`
    (458, 2, 8),
];

/// The answer to a call that is made in pieces; `None`: it is made at once.
pub(super) fn make_long(block: &Thread, number: u32, arguments: [usize; 6]) -> Option<isize> {
    let [first, second, third, ..] = arguments;
    match number {
        READ | WRITE | PREAD | PWRITE | SENDTO | RECVFROM if third > PIECE_BYTES => match kind_of(block, first) {
            Kind::Message => messages::make_at_once(block, number, arguments),
            Kind::Device => None,
            kind @ (Kind::File | Kind::Stream) => Some(transfer(block, number, arguments, kind)),
        },
        READV | WRITEV | PREADV | PWRITEV | PREADV2 | PWRITEV2 if third <= VECTORS_MAX => {
            vectors(block, number, arguments)
        }
        PROCESS_VM_READV | PROCESS_VM_WRITEV => between_processes(block, number, arguments),
        GETRANDOM if second > PIECE_BYTES => Some(each_piece(first, second, Short::Ends, |start, bytes, _| {
            let answer = make(block, number, [start, bytes, third, 0, 0, 0]);
            block.release();
            answer
        })),
        // `MADV_POPULATE_READ`, `MADV_POPULATE_WRITE`: what is there stays no longer than its piece.
        MADVISE if matches!(third, 22 | 23) && second > PIECE_BYTES => Some(populate(block, arguments)),
        _ => messages::make_long(block, number, arguments).or_else(|| short_answer(block, number, arguments)),
    }
}

/// A call whose answer is short, with a buffer of no more than it may be.
fn short_answer(block: &Thread, number: u32, mut arguments: [usize; 6]) -> Option<isize> {
    let &(_, at, unit) = SHORT_ANSWERS.iter().find(|(known, ..)| *known == number)?;
    let most = PIECE_BYTES / unit;
    // Counts are integers of 32 bits, and negative ones are refused.
    if arguments[at] <= most || arguments[at] > i32::MAX as usize {
        return None;
    }
    arguments[at] = most;
    Some(make(block, number, arguments))
}

/// What may be read and written in pieces.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// To the end.
    File,
    /// As far as it has something.
    Stream,
    /// Not in pieces.
    Message,
    /// One whose calls may be messages.
    Device,
}

/// What follows a piece that was transferred as a whole.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Short {
    /// The next one; one that was not ends it.
    Ends,
    /// The end: what was asked for may come short.
    AtOnce,
}

/// Pieces of `len` bytes from `start` on, each with its offset, until one ends short or fails: how many bytes, or the error of the first.
fn each_piece(start: usize, len: usize, short: Short, mut transfer: impl FnMut(usize, usize, usize) -> isize) -> isize {
    let mut done = 0;
    while done < len {
        let piece = PIECE_BYTES.min(len - done);
        let answer = transfer(start + done, piece, done);
        match usize::try_from(answer) {
            Ok(bytes) => done += bytes,
            Err(_) if done > 0 => break,
            Err(_) => return answer,
        }
        if answer.cast_unsigned() < piece || short == Short::AtOnce {
            break;
        }
    }
    done.cast_signed()
}

fn transfer(block: &Thread, number: u32, arguments: [usize; 6], kind: Kind) -> isize {
    const PEEK: usize = 2;
    const WAIT_ALL: usize = 0x100;
    let [fd, start, len, offset, fifth, sixth] = arguments;
    let short = match number {
        // Peeked at are the first bytes only.
        RECVFROM if offset & PEEK != 0 => Short::AtOnce,
        _ => Short::Ends,
    };
    let flags = if number == RECVFROM { offset } else { 0 };
    let is_asked = match number {
        RECVFROM => flags & WAIT_ALL == 0,
        READ | PREAD | PREADV2 => kind == Kind::Stream,
        _ => false,
    };
    let moves = match number {
        PREAD | PWRITE => true,
        PREADV2 | PWRITEV2 => offset != AT_POSITION,
        _ => false,
    };
    // What a socket has it gives without waiting, also one that would.
    let further = if number == RECVFROM { flags | DONT_WAIT } else { flags };
    each_piece(start, len, short, |start, bytes, done| {
        if done > 0 && is_asked && !has_more(block, fd, further) {
            return Errno::EAGAIN.negated();
        }
        let offset = match number {
            _ if moves => offset.wrapping_add(done),
            RECVFROM if done > 0 && is_asked => further,
            _ => offset,
        };
        let vector = [start, bytes];
        let answer = if matches!(number, PREADV2 | PWRITEV2) {
            make(block, number, [fd, vector.as_ptr().addr(), 1, offset, fifth, sixth])
        } else {
            make(block, number, [fd, start, bytes, offset, fifth, sixth])
        };
        block.release();
        answer
    })
}

/// Bytes that a list of vectors names; None: it cannot be read, or is refused.
pub(super) fn bytes_of(list: usize, count: usize) -> Option<usize> {
    if count > VECTORS_MAX {
        return None;
    }
    let bytes = (0..count).try_fold(0_usize, |total, index| total.checked_add(vector_at(list, index)?[1]))?;
    (bytes <= isize::MAX.cast_unsigned()).then_some(bytes)
}

pub(super) fn vector_at(list: usize, index: usize) -> Option<[usize; 2]> {
    read(list.checked_add(index * 16)?).ok()
}

/// Each vector as a call of its own, if they are long together.
fn vectors(block: &Thread, number: u32, arguments: [usize; 6]) -> Option<isize> {
    const ATOMIC: usize = 0x40;
    let [fd, list, count, offset, high, flags] = arguments;
    let is_flagged = matches!(number, PREADV2 | PWRITEV2);
    if bytes_of(list, count)? <= PIECE_BYTES || (is_flagged && flags & ATOMIC != 0) {
        return None;
    }
    let kind = kind_of(block, fd);
    match kind {
        Kind::Message => return messages::vectors_at_once(block, number, arguments),
        Kind::Device => return None,
        Kind::File | Kind::Stream => {}
    }
    let single = match number {
        READV => READ,
        WRITEV => WRITE,
        PREADV => PREAD,
        PWRITEV => PWRITE,
        other => other,
    };
    let is_read = matches!(number, READV | PREADV | PREADV2);
    let mut done = 0_usize;
    for index in 0..count {
        let Some([start, len]) = vector_at(list, index) else { break };
        let offset = if offset == AT_POSITION { offset } else { offset.wrapping_add(done) };
        let rest = if is_flagged { [high, flags] } else { [0, 0] };
        let answer = transfer(block, single, [fd, start, len, offset, rest[0], rest[1]], kind);
        match usize::try_from(answer) {
            Ok(bytes) => done += bytes,
            Err(_) if done > 0 => break,
            Err(_) => return Some(answer),
        }
        // A stream may have no more, and would be waited for.
        let is_asked = kind == Kind::Stream && is_read && len > 0;
        if answer.cast_unsigned() < len || (is_asked && !has_more(block, fd, 0)) {
            break;
        }
    }
    Some(done.cast_signed())
}

/// What the lists of both sides name at the same place, piece by piece.
fn between_processes(block: &Thread, number: u32, arguments: [usize; 6]) -> Option<isize> {
    let [process, here, here_count, there, there_count, flags] = arguments;
    let lists = [(here, here_count), (there, there_count)];
    let pid = i32::try_from(process & 0xffff_ffff).unwrap_or(0);
    let is_own = pid == thread::getpid();
    let [near, far] = [bytes_of(here, here_count)?, bytes_of(there, there_count)?];
    if (is_own && near.max(far) <= PIECE_BYTES) || near.min(far) == 0 {
        return None;
    }
    let access = if number == PROCESS_VM_READV { Access::Read } else { Access::Write };
    let (mut tries, mut since) = (0, 0);
    // The vector of each list, and how much of it is done.
    let (mut at, mut done_of, mut done) = ([0; 2], [0; 2], 0_usize);
    while at[0] < here_count && at[1] < there_count {
        let mut pieces = [[0; 2]; 2];
        for side in 0..2 {
            let Some([start, len]) = vector_at(lists[side].0, at[side]) else { return Some(done.cast_signed()) };
            pieces[side] = [start.wrapping_add(done_of[side]), len.saturating_sub(done_of[side])];
        }
        let ended = pieces.map(|[_, left]| left == 0);
        if ended.contains(&true) {
            for side in (0..2).filter(|&side| ended[side]) {
                (at[side], done_of[side]) = (at[side] + 1, 0);
            }
            continue;
        }
        let bytes = pieces[0][1].min(pieces[1][1]).min(PIECE_BYTES);
        let [near, far] = pieces.map(|[start, _]| [start, bytes]);
        let answer = make(block, number, [process, near.as_ptr().addr(), 1, far.as_ptr().addr(), 1, flags]);
        block.release();
        let moved = usize::try_from(answer).unwrap_or(0);
        done += moved;
        done_of = done_of.map(|done| done + moved);
        if moved > 0 {
            tries = 0;
        }
        if moved == bytes {
            continue;
        }
        // Pages of another process that are out come if they are asked for.
        let now = clock::now();
        since = if tries == 0 { now } else { since };
        let left = Part { start: far[0] + moved, bytes: bytes - moved, access };
        let is_missing = !is_own && (answer >= 0 || answer == Errno::EFAULT.negated()) && now < since + FOREIGN_NS;
        let may_come =
            || tries % ASKED_EVERY != 0 || (foreign::is_usable(near[0] + moved, access) && foreign::ask(pid, left));
        if !is_missing || !may_come() {
            return Some(if done > 0 { done.cast_signed() } else { answer });
        }
        tries += 1;
        wait_a_moment(block);
    }
    Some(done.cast_signed())
}

fn wait_a_moment(block: &Thread) {
    const NANOSLEEP: u32 = 35;
    let moment = [0, AGAIN_NS];
    // SAFETY: the kernel reads our own record; a signal that ends it does no harm.
    unsafe { call(block.switch(), NANOSLEEP, &[moment.as_ptr().addr(), 0, 0, 0, 0, 0]) };
}

fn populate(block: &Thread, [start, len, advice, ..]: [usize; 6]) -> isize {
    let mut at = start;
    let end = start.saturating_add(len);
    while at < end {
        let answer = make(block, MADVISE, [at, PIECE_BYTES.min(end - at), advice, 0, 0, 0]);
        block.release();
        if answer != 0 {
            return answer;
        }
        at += PIECE_BYTES;
    }
    0
}

/// What a descriptor is. One that is none is refused, whatever it is taken for.
pub(super) fn kind_of(block: &Thread, fd: usize) -> Kind {
    const FSTAT: u32 = 5;
    const SO_TYPE: usize = 3;
    const SOCK_STREAM: u32 = 1;
    let mut stat = [0_u32; 36];
    // SAFETY: the kernel fills our own record.
    let answer = unsafe { call(block.switch(), FSTAT, &[fd, stat.as_mut_ptr().addr(), 0, 0, 0, 0]) };
    if answer != 0 {
        return Kind::Stream;
    }
    // The mode is the seventh word of 32 bits, the device's number the eleventh.
    match stat[6] & 0o170_000 {
        0o100_000 | 0o060_000 => Kind::File,
        0o020_000 => kind_of_device(stat[10] >> 8 & 0xfff),
        0o140_000 if option_of(block, fd, SO_TYPE) != Ok(SOCK_STREAM) => Kind::Message,
        _ => Kind::Stream,
    }
}

/// By the major number of a character device.
const fn kind_of_device(major: u32) -> Kind {
    match major {
        // `/dev/zero` and its like.
        1 => Kind::File,
        // Terminals, and pseudo terminals.
        4 | 5 | 128..=143 => Kind::Stream,
        _ => Kind::Device,
    }
}

/// A further read of a stream does not wait, and takes no error that the program's next call is to be told of.
pub(super) fn has_more(block: &Thread, fd: usize, flags: usize) -> bool {
    const POLL: u32 = 7;
    const FCNTL: u32 = 72;
    const GETFL: usize = 3;
    const NONBLOCK: isize = 0o4000;
    const IN: i16 = 1;
    const ERR: i16 = 8;
    // SAFETY: the call refers to no memory.
    let status = unsafe { call(block.switch(), FCNTL, &[fd, GETFL, 0, 0, 0, 0]) };
    if status < 0 || (status & NONBLOCK == 0 && flags & DONT_WAIT == 0) {
        return false;
    }
    let descriptor = i32::try_from(fd & 0x7fff_ffff).expect("31 bits");
    let mut asked = libc::pollfd { fd: descriptor, events: IN, revents: 0 };
    // SAFETY: the kernel reads and fills our own record: the descriptor, what is asked, what is so.
    let answer = unsafe { call(block.switch(), POLL, &[(&raw mut asked).addr(), 1, 0, 0, 0, 0]) };
    answer == 1 && asked.revents & IN != 0 && asked.revents & ERR == 0
}

/// An option of a socket, of its own level.
pub(super) fn option_of(block: &Thread, fd: usize, option: usize) -> Result<u32, Errno> {
    const GETSOCKOPT: u32 = 55;
    const SOL_SOCKET: usize = 1;
    let (mut value, mut len) = (0_u32, 4_u32);
    let arguments = [fd, SOL_SOCKET, option, (&raw mut value).addr(), (&raw mut len).addr(), 0];
    // SAFETY: the kernel fills two words of ours.
    let answer = unsafe { call(block.switch(), GETSOCKOPT, &arguments) };
    if answer == 0 { Ok(value) } else { Err(Errno::EINVAL) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn played(len: usize, short: Short, answers: &[isize]) -> (isize, Vec<(usize, usize)>) {
        let mut asked = Vec::new();
        let mut answers = answers.iter();
        let answer = each_piece(1000, len, short, |start, bytes, done| {
            assert_eq!(start, 1000 + done);
            asked.push((done, bytes));
            *answers.next().expect("no further piece is asked for")
        });
        (answer, asked)
    }

    #[test]
    fn pieces_go_on_until_the_end_or_a_short_one() {
        const PIECE: isize = PIECE_BYTES.cast_signed();
        let whole = played(2 * PIECE_BYTES + 5, Short::Ends, &[PIECE, PIECE, 5]);
        assert_eq!(whole.0, 2 * PIECE + 5);
        assert_eq!(whole.1, [(0, PIECE_BYTES), (PIECE_BYTES, PIECE_BYTES), (2 * PIECE_BYTES, 5)]);
        assert_eq!(played(3 * PIECE_BYTES, Short::Ends, &[PIECE, 7]).0, PIECE + 7);
        assert_eq!(played(3 * PIECE_BYTES, Short::AtOnce, &[PIECE]).0, PIECE);
    }

    #[test]
    fn only_memory_and_terminals_are_read_and_written_in_pieces() {
        let [zero, terminal, pseudo_terminal, fuse] = [1, 4, 136, 10].map(kind_of_device);
        assert!(zero == Kind::File && terminal == Kind::Stream && pseudo_terminal == Kind::Stream);
        assert!(fuse == Kind::Device);
    }

    #[test]
    fn an_error_counts_where_nothing_was_transferred() {
        assert_eq!(played(2 * PIECE_BYTES, Short::Ends, &[-4]).0, -4);
        assert_eq!(played(2 * PIECE_BYTES, Short::Ends, &[PIECE_BYTES.cast_signed(), -4]).0, PIECE_BYTES.cast_signed());
        assert_eq!(played(2 * PIECE_BYTES, Short::Ends, &[0]).0, 0);
    }
}
