//! Unix sockets: pairs without a name between the processes of one tree, and names in a directory for those who watch it. Whole
//! messages, descriptors passed along.
//!
//! A message is one `sendmsg` of bytes and up to [`FDS_MAX`] descriptors. Sequenced packets keep the borders of messages.

use core::ffi::CStr;
use core::mem::MaybeUninit;

use linux_raw_sys::general::{
    __NR_accept4, __NR_bind, __NR_connect, __NR_getsockopt, __NR_listen, __NR_recvmsg, __NR_sendmsg, __NR_socket,
    __NR_socketpair,
};
use linux_raw_sys::net as k;

use crate::fd::Fd;
use crate::syscall;
use crate::syscall::{Errno, retry_eintr};
use crate::word::{addr_of, low_u32, u64_of};

/// Most descriptors in one message (the kernel would take 253).
pub const FDS_MAX: usize = 32;

/// Most bytes of a name: a path, and its closing zero.
pub const PATH_MAX: usize = 107;

/// `SOCK_CLOEXEC`
const CLOSE_ON_EXEC: u32 = 0o2_000_000;
/// `SOCK_NONBLOCK`
const NON_BLOCKING: u32 = 0o4000;
/// `MSG_DONTWAIT`
const DONT_WAIT: u32 = 0x40;
/// `MSG_CTRUNC`: descriptors did not fit and are lost.
const CONTROL_CUT: u32 = 0x8;
/// `MSG_TRUNC`: bytes did not fit and are lost.
const BYTES_CUT: u32 = 0x20;

/// `struct sockaddr_un` with a path.
#[repr(C)]
struct Address {
    family: u16,
    path: [u8; 108],
}

impl Address {
    /// The address and its length. ENAMETOOLONG: the path has more than [`PATH_MAX`] bytes.
    fn of(path: &CStr) -> Result<(Self, usize), Errno> {
        let bytes = path.to_bytes();
        let mut address = Self { family: 1, path: [0; 108] };
        address.path[..PATH_MAX].get_mut(..bytes.len()).ok_or(Errno::ENAMETOOLONG)?.copy_from_slice(bytes);
        Ok((address, size_of::<u16>() + bytes.len() + 1))
    }
}

const _: () = assert!(k::AF_UNIX == 1);

fn new_socket(flags: u32) -> Result<Fd, Errno> {
    let kind = k::SOCK_SEQPACKET | CLOSE_ON_EXEC | flags;
    // SAFETY: makes a new descriptor.
    let register = unsafe { syscall!(__NR_socket, k::AF_UNIX as usize, kind as usize, 0) }?;
    // SAFETY: socket returned it.
    Ok(unsafe { Fd::from_register(register) })
}

/// A socket that is bound to a path (EADDRINUSE: something is there), on which nobody can call before [`listen`]. Non-blocking.
pub fn bind(path: &CStr) -> Result<Fd, Errno> {
    let socket = new_socket(NON_BLOCKING)?;
    let (address, len) = Address::of(path)?;
    // SAFETY: the kernel reads the address.
    unsafe { syscall!(__NR_bind, socket.arg(), addr_of(&raw const address), len) }?;
    Ok(socket)
}

/// Take calls from now on.
pub fn listen(socket: &Fd, backlog: u32) -> Result<(), Errno> {
    // SAFETY: changes the socket only.
    unsafe { syscall!(__NR_listen, socket.arg(), backlog as usize) }.map(|_| ())
}

/// Take the next connection; `None` if nobody waits.
pub fn accept(listener: &Fd) -> Result<Option<Fd>, Errno> {
    // SAFETY: makes a new descriptor; no address is asked for.
    match retry_eintr(|| unsafe { syscall!(__NR_accept4, listener.arg(), 0, 0, CLOSE_ON_EXEC as usize) }) {
        // SAFETY: accept4 returned it.
        Ok(register) => Ok(Some(unsafe { Fd::from_register(register) })),
        Err(Errno::EAGAIN | Errno::ECONNABORTED) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Call who listens at a path. ECONNREFUSED: nobody; EAGAIN: too many wait to be heard. Non-blocking.
pub fn connect(path: &CStr) -> Result<Fd, Errno> {
    let socket = new_socket(NON_BLOCKING)?;
    let (address, len) = Address::of(path)?;
    // SAFETY: the kernel reads the address.
    retry_eintr(|| unsafe { syscall!(__NR_connect, socket.arg(), addr_of(&raw const address), len) })?;
    Ok(socket)
}

/// Two connected sockets, blocking.
pub fn pair() -> Result<(Fd, Fd), Errno> {
    let mut ends = [0i32; 2];
    let kind = (k::SOCK_SEQPACKET | CLOSE_ON_EXEC) as usize;
    // SAFETY: the kernel writes two numbers into `ends`.
    unsafe { syscall!(__NR_socketpair, k::AF_UNIX as usize, kind, 0, addr_of(&raw mut ends)) }?;
    // SAFETY: socketpair returned it.
    let one = unsafe { Fd::from_raw(ends[0]) };
    // SAFETY: socketpair returned it.
    let other = unsafe { Fd::from_raw(ends[1]) };
    Ok((one, other))
}

/// Who is at the other end, as of its connect or listen.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peer {
    /// Process.
    pub pid: i32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// Ask who is at the other end.
pub fn peer(socket: &Fd) -> Result<Peer, Errno> {
    let mut peer = Peer::default();
    let mut len = low_u32(u64_of(size_of::<Peer>()));
    let (level, option) = (k::SOL_SOCKET as usize, k::SO_PEERCRED as usize);
    let (out, out_len) = (addr_of(&raw mut peer), addr_of(&raw mut len));
    // SAFETY: the kernel writes at most `len` bytes into `peer`, and `len`.
    unsafe { syscall!(__NR_getsockopt, socket.arg(), level, option, out, out_len) }?;
    Ok(peer)
}

/// Is it a unix socket for sequenced packets, as [`pair`] makes?
pub fn is_packets(socket: &Fd) -> bool {
    let ask = |option: u32| {
        let mut value = 0u32;
        let mut len = low_u32(u64_of(size_of::<u32>()));
        let (out, out_len) = (addr_of(&raw mut value), addr_of(&raw mut len));
        // SAFETY: the kernel writes at most `len` bytes into `value`, and `len`.
        unsafe { syscall!(__NR_getsockopt, socket.arg(), k::SOL_SOCKET as usize, option as usize, out, out_len) }
            .map(|_| value)
    };
    ask(k::SO_DOMAIN) == Ok(k::AF_UNIX) && ask(k::SO_TYPE) == Ok(k::SOCK_SEQPACKET)
}

#[repr(C)]
struct Piece {
    base: usize,
    len: usize,
}

/// `struct msghdr`.
#[repr(C)]
struct Header {
    name: usize,
    name_len: u32,
    pieces: usize,
    pieces_len: usize,
    control: usize,
    control_len: usize,
    flags: u32,
}

/// One control message with room for [`FDS_MAX`] descriptors: `struct cmsghdr` and its data.
#[repr(C, align(8))]
struct Control {
    len: usize,
    level: u32,
    kind: u32,
    fds: [i32; FDS_MAX],
}

const CONTROL_HEAD_BYTES: usize = 16;
const _: () = assert!(size_of::<Control>() == CONTROL_HEAD_BYTES + FDS_MAX * 4);
const _: () = assert!(size_of::<Header>() == 56);

/// Send one message with descriptors. EAGAIN if the other end's queue is full and `wait` is false; EPIPE if it is gone.
pub fn send(socket: &Fd, bytes: &[u8], fds: &[&Fd], wait: bool) -> Result<(), Errno> {
    assert!(fds.len() <= FDS_MAX, "at most {FDS_MAX} descriptors in a message");
    let mut control = Control {
        len: CONTROL_HEAD_BYTES + fds.len() * 4,
        level: k::SOL_SOCKET,
        kind: k::SCM_RIGHTS,
        fds: [0; FDS_MAX],
    };
    for (place, fd) in control.fds.iter_mut().zip(fds) {
        *place = fd.raw();
    }
    let piece = Piece { base: addr_of(bytes.as_ptr()), len: bytes.len() };
    let header = Header {
        name: 0,
        name_len: 0,
        pieces: addr_of(&raw const piece),
        pieces_len: 1,
        control: if fds.is_empty() { 0 } else { addr_of(&raw const control) },
        control_len: if fds.is_empty() { 0 } else { control.len.next_multiple_of(8) },
        flags: 0,
    };
    let flags = k::MSG_NOSIGNAL | if wait { 0 } else { DONT_WAIT };
    // SAFETY: the kernel only reads the header and what it names, all of which lives across the call.
    let call = || unsafe { syscall!(__NR_sendmsg, socket.arg(), addr_of(&raw const header), flags as usize) };
    let sent = retry_eintr(call)?;
    if sent == bytes.len() { Ok(()) } else { Err(Errno::EMSGSIZE) }
}

/// What [`receive`] got.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// A message: so many bytes in the buffer, so many descriptors in the list.
    Message {
        /// Bytes.
        bytes: usize,
        /// Descriptors.
        fds: usize,
    },
    /// Nothing at the moment.
    Empty,
    /// The other end is gone.
    Closed,
    /// The message had more bytes or descriptors than there was room for; its descriptors are closed, the rest is lost.
    Cut,
}

/// Receive one message; its descriptors go to the front of `fds`, which is emptied first.
pub fn receive(socket: &Fd, bytes: &mut [u8], fds: &mut [Option<Fd>], wait: bool) -> Result<Received, Errno> {
    fds.fill_with(|| None);
    let mut control = MaybeUninit::<Control>::zeroed();
    let piece = Piece { base: addr_of(bytes.as_mut_ptr()), len: bytes.len() };
    let mut header = Header {
        name: 0,
        name_len: 0,
        pieces: addr_of(&raw const piece),
        pieces_len: 1,
        control: addr_of(control.as_mut_ptr()),
        control_len: size_of::<Control>(),
        flags: 0,
    };
    let flags = k::MSG_CMSG_CLOEXEC | if wait { 0 } else { DONT_WAIT };
    // SAFETY: the kernel writes into the header, the buffer and the control message, all of which live across the call.
    let call = || unsafe { syscall!(__NR_recvmsg, socket.arg(), addr_of(&raw mut header), flags as usize) };
    let len = match retry_eintr(call) {
        Ok(len) => len,
        Err(Errno::EAGAIN) => return Ok(Received::Empty),
        Err(Errno::ECONNRESET) => return Ok(Received::Closed),
        Err(error) => return Err(error),
    };
    // SAFETY: all fields are integers, for which zeroes or what the kernel wrote are values.
    let control = unsafe { control.assume_init() };
    let is_rights = control.level == k::SOL_SOCKET && control.kind == k::SCM_RIGHTS;
    let has_rights = header.control_len >= CONTROL_HEAD_BYTES && is_rights;
    let nr_fds = if has_rights { control.len.saturating_sub(CONTROL_HEAD_BYTES) / 4 } else { 0 };
    let mut cut = header.flags & (CONTROL_CUT | BYTES_CUT) != 0;
    for (place, raw) in control.fds[..nr_fds.min(FDS_MAX)].iter().enumerate() {
        // SAFETY: the kernel put this new descriptor into our table with the message.
        let fd = unsafe { Fd::from_raw(*raw) };
        match fds.get_mut(place) {
            Some(slot) => *slot = Some(fd),
            None => cut = true,
        }
    }
    if cut {
        fds.fill_with(|| None);
        return Ok(Received::Cut);
    }
    // A sequenced-packet socket cannot tell an empty message from the end: we send none.
    if len == 0 && nr_fds == 0 { Ok(Received::Closed) } else { Ok(Received::Message { bytes: len, fds: nr_fds }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fd::{eventfd, pipe};
    use crate::file::{signal_event, take_event};

    #[test]
    fn descriptors_travel_with_their_bytes_and_messages_keep_their_borders() {
        let (one, other) = pair().expect("socketpair");
        let event = eventfd(0).expect("eventfd");
        let name = [0u8; 8];
        assert_eq!(receive(&other, &mut [0; 8], &mut [], false), Ok(Received::Empty));
        send(&one, b"fork", &[&event, &event], false).expect("send");
        send(&one, b"next", &[], false).expect("send");

        let mut bytes = name;
        let mut fds = [const { None }; 4];
        let got = receive(&other, &mut bytes, &mut fds, true);
        assert_eq!(got, Ok(Received::Message { bytes: 4, fds: 2 }));
        assert_eq!(&bytes[..4], b"fork");
        let passed = fds[1].take().expect("two came");
        assert_ne!(passed.raw(), event.raw());
        signal_event(&passed, 9).expect("signal");
        assert_eq!(take_event(&event), Ok(Some(9)));

        assert_eq!(receive(&other, &mut bytes, &mut fds, true), Ok(Received::Message { bytes: 4, fds: 0 }));
        drop(one);
        assert_eq!(receive(&other, &mut bytes, &mut fds, true), Ok(Received::Closed));
    }

    #[test]
    fn what_does_not_fit_is_told_and_its_descriptors_do_not_leak() {
        let (one, other) = pair().expect("socketpair");
        let (read, write) = pipe(0).expect("pipe");
        send(&one, b"long", &[&write, &write], false).expect("send");
        drop(write);
        let mut fds = [const { None }; 1];
        assert_eq!(receive(&other, &mut [0; 8], &mut fds, true), Ok(Received::Cut));
        assert!(fds[0].is_none());
        // No write end is left anywhere.
        assert_eq!(crate::file::read(&read, &mut [0; 1]), Ok(0));
        send(&one, b"long", &[], false).expect("send");
        assert_eq!(receive(&other, &mut [0; 2], &mut fds, true), Ok(Received::Cut));
    }

    #[test]
    fn a_path_has_one_listener_and_peers_are_known() {
        let pid = crate::thread::getpid();
        let path = crate::text::Text::<64>::format(format_args!("/tmp/pagetide-socket-{pid}"));
        let path = path.as_c_str();
        let listener = bind(path).expect("bind");
        assert_eq!(connect(path), Err(Errno::ECONNREFUSED));
        listen(&listener, 4).expect("listen");
        assert_eq!(bind(path), Err(Errno::EADDRINUSE));
        assert_eq!(accept(&listener), Ok(None));
        let client = connect(path).expect("connect");
        let server = accept(&listener).expect("accept").expect("one waits");
        assert_eq!(peer(&server).map(|peer| peer.pid), Ok(pid));
        assert_eq!(peer(&client).map(|peer| peer.pid), Ok(pid));
        drop(listener);
        assert_eq!(connect(path), Err(Errno::ECONNREFUSED));
        std::fs::remove_file(path.to_str().expect("ASCII")).expect("our own");
    }

    #[test]
    fn a_path_that_is_too_long_is_told() {
        let long = std::ffi::CString::new(std::vec![b'x'; PATH_MAX + 1]).expect("no zero");
        assert_eq!(bind(&long), Err(Errno::ENAMETOOLONG));
        assert_eq!(connect(&long), Err(Errno::ENAMETOOLONG));
    }
}
