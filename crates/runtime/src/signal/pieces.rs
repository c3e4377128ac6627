//! Calls that name more memory than may be held at once: made piece by piece, where that is as good.
//!
//! Files are read and written on to the end; pipes and streams may be read short. What has to be read or written at once (a datagram, a
//! message of a queue) is held as a whole.

use pagetide_sys::dispatch::call;

use super::dispatch::{make, read};
use super::threads::Thread;

/// What one piece holds at most.
pub(super) const PIECE_BYTES: usize = 512 << 10;
/// As the kernel: vectors of one call.
const VECTORS_MAX: usize = 1024;
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
const GETRANDOM: u32 = 318;

/// The answer to a call that is made in pieces; `None`: it is made at once.
pub(super) fn make_long(block: &Thread, number: u32, arguments: [usize; 6]) -> Option<isize> {
    let [first, second, third, fourth, ..] = arguments;
    match number {
        READ | WRITE | PREAD | PWRITE | SENDTO | RECVFROM if third > PIECE_BYTES => {
            let kind = kind_of(block, first)?;
            let has_address = matches!(number, SENDTO | RECVFROM) && arguments[4] != 0;
            (!has_address).then(|| transfer(block, number, arguments, kind))
        }
        READV | WRITEV | PREADV | PWRITEV if third <= VECTORS_MAX => {
            vectors(block, number, [first, second, third, fourth])
        }
        GETRANDOM if second > PIECE_BYTES => Some(each_piece(first, second, Short::Ends, |start, bytes, _| {
            let answer = make(block, number, [start, bytes, third, 0, 0, 0]);
            block.release();
            answer
        })),
        // `MADV_POPULATE_READ`, `MADV_POPULATE_WRITE`: what is there stays no longer than its piece.
        MADVISE if matches!(third, 22 | 23) && second > PIECE_BYTES => Some(populate(block, arguments)),
        _ => None,
    }
}

/// What may be read and written in pieces.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Stream,
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
    let [fd, start, len, offset, ..] = arguments;
    let short = match number {
        // Peeked at are the first bytes only.
        RECVFROM if offset & PEEK != 0 || offset & WAIT_ALL == 0 => Short::AtOnce,
        READ | PREAD if kind == Kind::Stream => Short::AtOnce,
        _ => Short::Ends,
    };
    let moves = matches!(number, PREAD | PWRITE);
    each_piece(start, len, short, |start, bytes, done| {
        let fourth = if moves { offset.wrapping_add(done) } else { offset };
        let answer = make(block, number, [fd, start, bytes, fourth, 0, 0]);
        block.release();
        answer
    })
}

/// Each vector as a call of its own, if they are long together.
fn vectors(block: &Thread, number: u32, [fd, list, count, offset]: [usize; 4]) -> Option<isize> {
    let vector = |index: usize| read::<[usize; 2]>(list.checked_add(index * 16)?).ok();
    let mut total = 0_usize;
    for index in 0..count {
        total = total.checked_add(vector(index)?[1])?;
    }
    if total <= PIECE_BYTES || total > isize::MAX.cast_unsigned() {
        return None;
    }
    let kind = kind_of(block, fd)?;
    let single = match number {
        READV => READ,
        WRITEV => WRITE,
        PREADV => PREAD,
        _ => PWRITE,
    };
    let mut done = 0_usize;
    for index in 0..count {
        let Some([start, len]) = vector(index) else { break };
        let answer = transfer(block, single, [fd, start, len, offset.wrapping_add(done), 0, 0], kind);
        match usize::try_from(answer) {
            Ok(bytes) => done += bytes,
            Err(_) if done > 0 => break,
            Err(_) => return Some(answer),
        }
        // A stream may have no more, and would be waited for.
        if answer.cast_unsigned() < len || (kind == Kind::Stream && single == READ && len > 0) {
            break;
        }
    }
    Some(done.cast_signed())
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

/// What a descriptor is; None: what has to be read and written at once.
fn kind_of(block: &Thread, fd: usize) -> Option<Kind> {
    const FSTAT: u32 = 5;
    const GETSOCKOPT: u32 = 55;
    const SO_TYPE: usize = 3;
    let mut stat = [0_u32; 36];
    // SAFETY: the kernel fills our own record.
    let answer = unsafe { call(block.switch(), FSTAT, &[fd, stat.as_mut_ptr().addr(), 0, 0, 0, 0]) };
    // The mode is the seventh word of 32 bits.
    match (answer, stat[6] & 0o170_000) {
        (0, 0o100_000 | 0o060_000) => Some(Kind::File),
        (0, 0o010_000) => Some(Kind::Stream),
        (0, 0o140_000) => {
            let (mut kind, mut len) = (0_u32, 4_u32);
            let arguments = [fd, 1, SO_TYPE, (&raw mut kind).addr(), (&raw mut len).addr(), 0];
            // SAFETY: the kernel fills two words of ours.
            let answer = unsafe { call(block.switch(), GETSOCKOPT, &arguments) };
            (answer == 0 && kind == 1).then_some(Kind::Stream)
        }
        _ => None,
    }
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
    fn an_error_counts_where_nothing_was_transferred() {
        assert_eq!(played(2 * PIECE_BYTES, Short::Ends, &[-4]).0, -4);
        assert_eq!(played(2 * PIECE_BYTES, Short::Ends, &[PIECE_BYTES.cast_signed(), -4]).0, PIECE_BYTES.cast_signed());
        assert_eq!(played(2 * PIECE_BYTES, Short::Ends, &[0]).0, 0);
    }
}
