//! Messages that name more memory than may be held at once.
//!
//! A datagram is sent and received as a whole. One that is larger than its socket may send is refused as the kernel refuses it, without
//! having been held. For one that is received the socket is asked first how long it is: of a buffer that is larger, the rest is not named.
//! Streams go in pieces, control data with the first; of several messages as many go as may be held together.

use pagetide_sys::Errno;

use super::dispatch::{make, read, write};
use super::pieces::{DONT_WAIT, Kind, PIECE_BYTES, bytes_of, has_more, kind_of, option_of, vector_at};
use super::threads::Thread;

const READ: u32 = 0;
const PREAD: u32 = 17;
const PWRITE: u32 = 18;
const RECVFROM: u32 = 45;
const SENDMSG: u32 = 46;
const RECVMSG: u32 = 47;
const READV: u32 = 19;
const PREADV2: u32 = super::pieces::PREADV2;
const RECVMMSG: u32 = 299;
const SENDMMSG: u32 = 307;
const PEEK: usize = 2;
const TRUNCATED: usize = 0x20;
const WAIT_ALL: usize = 0x100;
/// Out of band, `PEEK`, and errors: of these there is one answer.
const ONCE: usize = 1 | PEEK | ERRORS;
const ERRORS: usize = 0x2000;
const WAIT_FOR_ONE: usize = 0x1_0000;
/// Vectors of one piece; what has more before it is full is left as it is.
const VECTORS: usize = 64;
/// Bytes of a message in a list of them, and where it says how long it is.
const LISTED_BYTES: usize = 64;
const LENGTH_AT: usize = 56;

/// `struct msghdr`: name, its length, vectors, their count, control data, its length, flags.
type Header = [usize; 7];
const VECTORS_AT: usize = 2;
const COUNT_AT: usize = 3;
const CONTROL_AT: usize = 4;
const FLAGS_AT: usize = 6;

/// As `pieces::make_long`, of the calls that take headers.
pub(super) fn make_long(block: &Thread, number: u32, arguments: [usize; 6]) -> Option<isize> {
    let [fd, place, third, flags, ..] = arguments;
    match number {
        SENDMSG | RECVMSG => {
            let header: Header = read(place).ok()?;
            if bytes_of(header[VECTORS_AT], header[COUNT_AT])? <= PIECE_BYTES {
                return None;
            }
            let kind = kind_of(block, fd);
            if number == RECVMSG {
                receive(block, fd, Some(place), &header, third, kind)
            } else if kind == Kind::Message {
                refused(block, fd, bytes_of(header[VECTORS_AT], header[COUNT_AT])?)
            } else {
                Some(send_in_pieces(block, fd, &header, third))
            }
        }
        SENDMMSG | RECVMMSG => several(block, number, arguments, third, flags),
        _ => None,
    }
}

/// `read`, `write`, `sendto` and `recvfrom` of a datagram.
pub(super) fn make_at_once(block: &Thread, number: u32, arguments: [usize; 6]) -> Option<isize> {
    let [fd, _, len, flags, ..] = arguments;
    match number {
        READ | RECVFROM => {
            let flags = if number == READ { 0 } else { flags };
            let most = match next_bytes(block, fd, flags) {
                Ok(bytes) => bytes.max(PIECE_BYTES),
                Err(answer) => return Some(answer),
            };
            let mut shorter = arguments;
            shorter[2] = len.min(most);
            // With `MSG_TRUNC` the answer tells what there was, of the longest buffer as of this one.
            Some(make(block, number, shorter))
        }
        // A socket has no offset.
        PREAD | PWRITE => None,
        _ => refused(block, fd, len),
    }
}

/// The same of vectors.
pub(super) fn vectors_at_once(block: &Thread, number: u32, arguments: [usize; 6]) -> Option<isize> {
    let [fd, list, count, ..] = arguments;
    match number {
        READV | PREADV2 => {
            let header = [0, 0, list, count, 0, 0, 0];
            receive(block, fd, None, &header, 0, Kind::Message)
        }
        _ => refused(block, fd, bytes_of(list, count)?),
    }
}

/// The refusal of a datagram that is larger than its socket may send.
fn refused(block: &Thread, fd: usize, bytes: usize) -> Option<isize> {
    const SO_SNDBUF: usize = 7;
    let most = option_of(block, fd, SO_SNDBUF).ok()?;
    (bytes > most as usize).then(|| Errno::EMSGSIZE.negated())
}

/// Bytes of the datagram that comes next, which is waited for as by the call itself; or the call's answer.
fn next_bytes(block: &Thread, fd: usize, flags: usize) -> Result<usize, isize> {
    if flags & ERRORS != 0 {
        return Ok(0);
    }
    let answer = make(block, RECVFROM, [fd, 0, 0, flags | PEEK | TRUNCATED, 0, 0]);
    usize::try_from(answer).map_err(|_| answer)
}

/// Vectors from `at` (index and offset) on that name at most `most` bytes, and where they end.
fn part(
    header: &Header,
    at: &mut (usize, usize),
    most: usize,
    into: &mut [[usize; 2]; VECTORS],
) -> Option<(usize, usize)> {
    let (mut used, mut bytes) = (0, 0);
    while at.0 < header[COUNT_AT] && bytes < most {
        if used == VECTORS {
            return None;
        }
        let [start, len] = vector_at(header[VECTORS_AT], at.0)?;
        let take = (len - at.1.min(len)).min(most - bytes);
        into[used] = [start.wrapping_add(at.1), take];
        (used, bytes) = (used + 1, bytes + take);
        *at = if at.1 + take == len { (at.0 + 1, 0) } else { (at.0, at.1 + take) };
    }
    Some((used, bytes))
}

/// As recvmsg(2), with what of the buffer may be filled. `place`: where the program's header is.
fn receive(
    block: &Thread,
    fd: usize,
    place: Option<usize>,
    header: &Header,
    flags: usize,
    kind: Kind,
) -> Option<isize> {
    if kind != Kind::Message && flags & WAIT_ALL != 0 {
        return None;
    }
    let most = match kind {
        Kind::Message => match next_bytes(block, fd, flags) {
            Ok(bytes) => bytes.max(PIECE_BYTES),
            Err(answer) => return Some(answer),
        },
        Kind::File | Kind::Stream | Kind::Device => PIECE_BYTES,
    };
    let mut list = [[0; 2]; VECTORS];
    let mut at = (0, 0);
    let (used, bytes) = part(header, &mut at, most, &mut list)?;
    let mut own = *header;
    (own[VECTORS_AT], own[COUNT_AT]) = (list.as_ptr().addr(), used);
    let mut answer = make(block, RECVMSG, [fd, (&raw mut own).addr(), flags, 0, 0, 0]);
    if kind == Kind::Stream && flags & ONCE == 0 && answer == bytes.cast_signed() {
        answer = go_on_receiving(block, fd, header, &mut own, at, flags, bytes);
    }
    let Some(place) = place.filter(|_| answer >= 0) else { return Some(answer) };
    // What the kernel writes: the lengths of the name and of the control data, and flags.
    let words = [1, 5, 6].map(|word| (place + word * 8, own[word]));
    let is_told = words.iter().all(|(place, word)| write(*place, word).is_ok());
    Some(if is_told { answer } else { Errno::EFAULT.negated() })
}

/// A stream goes on while it has more and nothing but bytes came: a program may wait to be told of more that it believes to have taken. `own`
/// is what the kernel has answered; so many bytes have come, and the next go to `at`.
fn go_on_receiving(
    block: &Thread,
    fd: usize,
    header: &Header,
    own: &mut Header,
    mut at: (usize, usize),
    flags: usize,
    mut done: usize,
) -> isize {
    // What it has it gives without waiting, also one that would.
    let flags = flags | DONT_WAIT;
    while at.0 < header[COUNT_AT] && (header[CONTROL_AT] == 0 || own[CONTROL_AT + 1] == 0) && has_more(block, fd, flags)
    {
        let mut list = [[0; 2]; VECTORS];
        let Some((used, bytes)) = part(header, &mut at, PIECE_BYTES, &mut list) else { break };
        let mut next = *header;
        (next[0], next[1]) = (0, 0);
        (next[VECTORS_AT], next[COUNT_AT]) = (list.as_ptr().addr(), used);
        block.release();
        let answer = make(block, RECVMSG, [fd, (&raw mut next).addr(), flags, 0, 0, 0]);
        let Ok(received) = usize::try_from(answer) else { break };
        done += received;
        // The name is the first piece's, control data and flags are the last one's.
        (own[CONTROL_AT + 1], own[FLAGS_AT]) = (next[CONTROL_AT + 1], next[FLAGS_AT]);
        if received < bytes {
            break;
        }
    }
    done.cast_signed()
}

/// As sendmsg(2) into a stream.
fn send_in_pieces(block: &Thread, fd: usize, header: &Header, flags: usize) -> isize {
    let (mut at, mut done) = ((0, 0), 0_usize);
    let mut own = *header;
    while at.0 < header[COUNT_AT] {
        let mut list = [[0; 2]; VECTORS];
        // Lists of many short vectors end early: the next piece goes on there.
        let mut most = PIECE_BYTES;
        let before = at;
        let (used, bytes) = loop {
            at = before;
            match part(header, &mut at, most, &mut list) {
                Some(part) => break part,
                None if most > 1 => most /= 2,
                None => return if done > 0 { done.cast_signed() } else { Errno::EFAULT.negated() },
            }
        };
        (own[VECTORS_AT], own[COUNT_AT]) = (list.as_ptr().addr(), used);
        let answer = make(block, SENDMSG, [fd, (&raw const own).addr(), flags, 0, 0, 0]);
        block.release();
        match usize::try_from(answer) {
            Ok(sent) => done += sent,
            Err(_) if done > 0 => break,
            Err(_) => return answer,
        }
        if answer.cast_unsigned() < bytes {
            break;
        }
        (own[CONTROL_AT], own[CONTROL_AT + 1]) = (0, 0);
    }
    done.cast_signed()
}

/// As many of several messages as may be held together; None: all.
fn several(block: &Thread, number: u32, arguments: [usize; 6], count: usize, flags: usize) -> Option<isize> {
    let [fd, list, ..] = arguments;
    let count = count & 0xffff_ffff;
    let (mut fitting, mut bytes) = (0, 0_usize);
    while fitting < count {
        let header: Header = read(list.checked_add(fitting * LISTED_BYTES)?).ok()?;
        bytes = bytes.checked_add(bytes_of(header[VECTORS_AT], header[COUNT_AT])?)?;
        if bytes > PIECE_BYTES {
            break;
        }
        fitting += 1;
    }
    if fitting == count {
        return None;
    }
    if fitting > 0 {
        let mut fewer = arguments;
        fewer[2] = fitting;
        return Some(make(block, number, fewer));
    }
    let single = [fd, list, flags & !WAIT_FOR_ONE, 0, 0, 0];
    let one = if number == SENDMMSG { SENDMSG } else { RECVMSG };
    let answer = make_long(block, one, single).unwrap_or_else(|| make(block, one, single));
    let Ok(length) = u32::try_from(answer) else { return Some(answer) };
    Some(if write(list + LENGTH_AT, &length).is_ok() { 1 } else { Errno::EFAULT.negated() })
}
