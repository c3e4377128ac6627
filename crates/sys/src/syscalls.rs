//! What a system call of x86-64 may touch of its caller's memory: the table of all calls up to Linux 6.18, and what follows from it
//! for one call and its registers.
//!
//! For memory whose pages may be out while the kernel does not wait for them: the ranges that are told here have to be there, and
//! have to stay, from before the call until its end. Structures that hold addresses (vectors, messages, lists of strings) are read
//! through [`Memory`], which may say that an address leads nowhere: the rest of that argument is then left out, and the kernel finds
//! the same and answers EFAULT.
//!
//! Not told: what the kernel writes after a call has returned (class [`Class::Lasting`]), and what further addresses an `ioctl`,
//! `bpf` or `keyctl` finds in its structures.
//!
//! Pure: nothing is called here. The ranges may be more than the kernel touches, never less.

mod table;

use crate::mem::{Memory, PAGE_BYTES};

use table::TABLE;

/// No list of strings or vectors is followed further.
const LIST_MAX: usize = 1 << 20;
/// As the kernel: vectors (`UIO_MAXIOV`) and messages of one call.
const VECTORS_MAX: usize = 1024;
/// A string is looked at in pieces of at most so many bytes.
const PIECE_BYTES: usize = 256;
/// No string that the kernel reads is longer (`MAX_ARG_STRLEN`).
const TEXT_MAX: usize = 128 << 10;
/// What an `ioctl` touches whose number tells no size.
const IOCTL_BYTES: usize = 4096;

/// What kind of call it is: what a repeat, a short count, or an early return would mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It may be made again: it gives the same answer.
    Plain,
    /// It may end short, and the rest may be asked for.
    Stream,
    /// It takes something away (a datagram, a child's status, an old value) before it writes the answer.
    Consuming,
    /// It may sleep, and may be made again.
    Waiting,
    /// It changes the address space.
    Space,
    /// It makes a process or a thread, or another program of this one.
    Process,
    /// It ends the thread or the process.
    End,
    /// It is about the actions, masks and stacks of signals.
    Signals,
    /// The kernel uses memory of the caller after the call has returned, or lets others use it.
    Lasting,
    /// No kernel of today has it.
    Gone,
}

/// What the kernel does with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It reads.
    In,
    /// It writes.
    Out,
    /// It does both.
    Both,
}

/// How long the memory behind an argument is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// So many bytes.
    Bytes(u32),
    /// As many as the argument of this index says.
    Arg(u8),
    /// That, and so many more.
    ArgPlus(u8, u32),
    /// That many, each of so many bytes.
    Times(u8, u32),
    /// A set of as many bits as the argument says, in words of 64.
    Bits(u8),
    /// A byte for each page of so many bytes.
    PagesOf(u8),
    /// As many as the 32-bit word says that the argument points to.
    At(u8),
    /// As many as its own first 32-bit word says.
    Own,
    /// That, and so many more.
    OwnPlus(u32),
    /// At most so many, as far as there is memory.
    Loose(u32),
}

/// What an argument is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// No address.
    V,
    /// Memory that is read.
    In(Size),
    /// Memory that is written.
    Out(Size),
    /// Memory that is read and written.
    Both(Size),
    /// A string.
    Text,
    /// Addresses of strings, up to a 0.
    Texts,
    /// As many `iovec`s as the argument says, of memory that is read.
    VectorsIn(u8),
    /// The same, of memory that is written.
    VectorsOut(u8),
    /// A message that is sent.
    MessageIn,
    /// A message that is filled.
    MessageOut,
    /// As many messages as the argument says, that are sent.
    MessagesIn(u8),
    /// The same, that are filled.
    MessagesOut(u8),
    /// By rules of its own.
    Odd(Odd),
}

/// Arguments with rules of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Odd {
    /// `capget`, `capset`: by the version in the header.
    Capabilities,
    /// `clone3`: its arguments name further words.
    CloneArgs,
    /// `fcntl`: by the command.
    Fcntl,
    /// `getsockopt`: a few options have lengths of their own, or name further memory.
    GetOption,
    /// `seccomp`: by the operation; a filter is a list.
    Filter,
    /// `futex`: by the operation.
    Futex,
    /// `ioctl`: by the number.
    Ioctl,
    /// `keyctl`: by the operation.
    Keys,
    /// A set of signals and its size, behind a pair.
    MaskPair,
    /// `mq_notify`, `timer_create`: a `sigevent`, which may name 32 bytes more.
    Notify,
    /// `prctl`: by the option.
    Prctl,
    /// `semctl`: by the command.
    Semaphores,
    /// `setsockopt`: some options are filters, which name their instructions.
    SetOption,
    /// `ptrace`: by the request.
    Trace,
    /// `futex_waitv`, `futex_requeue`: a list of words.
    Waiters,
    /// `getxattrat`, `setxattrat`: the value behind a structure.
    Xattr,
}

/// A system call.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// The kernel's number.
    pub number: u32,
    name: &'static str,
    /// What kind of call it is.
    pub class: Class,
    /// Its arguments, the trailing ones that are no addresses left out.
    pub places: &'static [Place],
}

impl Call {
    /// The call of this number; `None`: newer than this table.
    pub fn find(number: u32) -> Option<&'static Self> {
        TABLE.binary_search_by_key(&number, |call| call.number).ok().map(|index| &TABLE[index])
    }

    /// The kernel's name.
    pub fn name(&self) -> &'static str {
        self.name.strip_prefix("__NR_").unwrap_or(self.name)
    }

    /// True if it touches no memory of its caller, and makes and changes nothing that matters to who pages it.
    pub fn is_free(&self) -> bool {
        self.places.is_empty() && matches!(self.class, Class::Plain | Class::Waiting | Class::Stream | Class::Gone)
    }

    /// Tell every range that the call may touch, given its arguments. A structure is told before what it names.
    pub fn ranges(&self, arguments: &[usize; 6], memory: &mut impl Memory, each: &mut impl FnMut(Range)) {
        let mut teller = Teller { arguments, memory, each };
        for (&place, index) in self.places.iter().zip(0..) {
            teller.place(place, index);
        }
    }
}

/// Bytes that a call may touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First address, not 0.
    pub start: usize,
    /// How many, not 0. The range may reach beyond the addresses that there are.
    pub len: usize,
    /// What for.
    pub direction: Direction,
}

struct Teller<'a, M, E> {
    arguments: &'a [usize; 6],
    memory: &'a mut M,
    each: &'a mut E,
}

impl<M: Memory, E: FnMut(Range)> Teller<'_, M, E> {
    fn tell(&mut self, start: usize, len: usize, direction: Direction) {
        if start != 0 && len != 0 {
            (self.each)(Range { start, len, direction });
        }
    }

    fn argument(&self, index: u8) -> usize {
        self.arguments[usize::from(index)]
    }

    /// An `int` argument, as a count.
    fn count(&self, index: u8) -> usize {
        (self.argument(index) & 0xffff_ffff).min(LIST_MAX)
    }

    fn word(&mut self, address: usize) -> Option<usize> {
        let mut bytes = [0; 8];
        self.memory.read(address, &mut bytes).then(|| usize::from_ne_bytes(bytes))
    }

    fn half(&mut self, address: usize) -> Option<usize> {
        let mut bytes = [0; 4];
        self.memory.read(address, &mut bytes).then(|| crate::word::usize_of(u64::from(u32::from_ne_bytes(bytes))))
    }

    fn place(&mut self, place: Place, index: u8) {
        let address = self.argument(index);
        if address == 0 {
            return;
        }
        match place {
            Place::V => {}
            Place::In(size) => self.sized(address, size, Direction::In),
            Place::Out(size) => self.sized(address, size, Direction::Out),
            Place::Both(size) => self.sized(address, size, Direction::Both),
            Place::Text => self.text(address),
            Place::Texts => self.texts(address),
            Place::VectorsIn(count) => self.vectors(address, self.count(count), Direction::In),
            Place::VectorsOut(count) => self.vectors(address, self.count(count), Direction::Out),
            Place::MessageIn => self.message(address, Direction::In),
            Place::MessageOut => self.message(address, Direction::Out),
            Place::MessagesIn(count) => self.messages(address, self.count(count), Direction::In),
            Place::MessagesOut(count) => self.messages(address, self.count(count), Direction::Out),
            Place::Odd(odd) => self.odd(odd, index),
        }
    }

    fn sized(&mut self, address: usize, size: Size, direction: Direction) {
        let len = match size {
            Size::Bytes(bytes) | Size::Loose(bytes) => bytes as usize,
            Size::Arg(index) => self.argument(index),
            Size::ArgPlus(index, more) => self.argument(index).saturating_add(more as usize),
            Size::Times(index, bytes) => self.count(index).saturating_mul(bytes as usize),
            Size::Bits(index) => self.count(index).div_ceil(64) * 8,
            Size::PagesOf(index) => self.argument(index).div_ceil(PAGE_BYTES),
            Size::At(index) => {
                let place = self.argument(index);
                if place == 0 {
                    return;
                }
                self.tell(place, 4, Direction::Both);
                match self.half(place) {
                    Some(len) => len,
                    None => return,
                }
            }
            Size::Own | Size::OwnPlus(_) => {
                self.tell(address, 4, direction);
                let more = if let Size::OwnPlus(more) = size { more as usize } else { 0 };
                match self.half(address) {
                    Some(len) => len.min(LIST_MAX) + more,
                    None => return,
                }
            }
        };
        self.tell(address, len, direction);
    }

    /// A string: up to and with its end.
    fn text(&mut self, address: usize) {
        let mut len = 0;
        let mut piece = [0; PIECE_BYTES];
        while len < TEXT_MAX {
            // No further than the page: the next may not be there.
            let Some(from) = address.checked_add(len) else { break };
            let bytes = PIECE_BYTES.min(PAGE_BYTES - from % PAGE_BYTES);
            if !self.memory.read(from, &mut piece[..bytes]) {
                break;
            }
            if let Some(end) = piece[..bytes].iter().position(|&byte| byte == 0) {
                len += end + 1;
                break;
            }
            len += bytes;
        }
        self.tell(address, len, Direction::In);
    }

    fn texts(&mut self, address: usize) {
        for index in 0..LIST_MAX {
            let Some(place) = address.checked_add(index * 8) else { return };
            let Some(text) = self.word(place) else { return };
            self.tell(place, 8, Direction::In);
            if text == 0 {
                return;
            }
            self.text(text);
        }
    }

    fn vectors(&mut self, address: usize, count: usize, direction: Direction) {
        if count > VECTORS_MAX {
            return;
        }
        self.tell(address, count * 16, Direction::In);
        for index in 0..count {
            let place = address.saturating_add(index * 16);
            let (Some(base), Some(len)) = (self.word(place), self.word(place.saturating_add(8))) else { return };
            self.tell(base, len, direction);
        }
    }

    /// `struct msghdr`: name, its length, vectors, their count, control data, its length, flags.
    fn message(&mut self, address: usize, direction: Direction) {
        self.tell(address, 56, Direction::Both);
        let mut words = [0; 7];
        for (word, index) in words.iter_mut().zip(0..) {
            match self.word(address.saturating_add(index * 8)) {
                Some(value) => *word = value,
                None => return,
            }
        }
        let [name, name_len, vectors, count, control, control_len, _flags] = words;
        self.tell(name, name_len & 0xffff_ffff, direction);
        self.tell(control, control_len, direction);
        if vectors != 0 {
            self.vectors(vectors, count, direction);
        }
    }

    fn messages(&mut self, address: usize, count: usize, direction: Direction) {
        let count = count.min(VECTORS_MAX);
        self.tell(address, count * 64, Direction::Both);
        for index in 0..count {
            self.message(address.saturating_add(index * 64), direction);
        }
    }

    fn odd(&mut self, odd: Odd, index: u8) {
        let address = self.argument(index);
        match odd {
            Odd::Capabilities => self.tell(address, 24, Direction::Both),
            Odd::CloneArgs => self.clone_args(address),
            Odd::Fcntl => self.fcntl(address),
            Odd::Filter => self.filter(address),
            Odd::Futex => self.futex(),
            Odd::GetOption => self.get_option(address),
            Odd::Ioctl => self.ioctl(address),
            Odd::Keys => self.keys(),
            Odd::MaskPair => self.mask_pair(address),
            Odd::Notify => self.notify(address),
            Odd::Prctl => self.prctl(address),
            Odd::Semaphores => self.semaphores(address),
            Odd::SetOption => self.set_option(address),
            Odd::Trace => self.trace(address),
            Odd::Waiters => self.waiters(address),
            Odd::Xattr => self.xattr(address),
        }
    }

    /// `struct clone_args`: words of 64 bits, of which four are addresses of words and one of a list of numbers.
    fn clone_args(&mut self, address: usize) {
        let len = self.argument(1).min(PAGE_BYTES);
        self.tell(address, len, Direction::In);
        for offset in [8, 16, 24] {
            if let Some(place) = self.word(address.saturating_add(offset)) {
                self.tell(place, 4, Direction::Both);
            }
        }
        if len >= 80
            && let (Some(list), Some(count)) = (self.word(address + 64), self.word(address + 72))
        {
            self.tell(list, count.min(32) * 4, Direction::In);
        }
    }

    fn fcntl(&mut self, address: usize) {
        const F_OWNER_UIDS: usize = 17;
        match self.argument(1) & 0xffff_ffff {
            // Locks: of the process, and of the open file.
            5..=7 | 36..=38 => self.tell(address, 32, Direction::Both),
            // The owner, hints about writes, leases' words.
            15 | 16 | F_OWNER_UIDS | 1035..=1040 => self.tell(address, 8, Direction::Both),
            _ => {}
        }
    }

    fn filter(&mut self, address: usize) {
        const SET_FILTER: usize = 1;
        self.tell(address, 16, Direction::Both);
        if self.argument(0) == SET_FILTER {
            self.program(address);
        }
    }

    /// `struct sock_fprog`: a count, and as many instructions.
    fn program(&mut self, address: usize) {
        if let (Some(count), Some(list)) = (self.half(address), self.word(address.saturating_add(8))) {
            self.tell(list, (count & 0xffff) * 8, Direction::In);
        }
    }

    fn set_option(&mut self, address: usize) {
        // `SO_ATTACH_FILTER`, `SO_ATTACH_REUSEPORT_CBPF`; `PACKET_FANOUT_DATA`
        const FILTERS: [(usize, usize); 3] = [(1, 26), (1, 51), (263, 22)];
        self.sized(address, Size::Arg(4), Direction::In);
        if FILTERS.contains(&(self.count(1), self.count(2))) {
            self.program(address);
        }
    }

    fn get_option(&mut self, address: usize) {
        const FILTER: (usize, usize) = (1, 26);
        const WITHOUT_COPY: (usize, usize) = (6, 35);
        self.sized(address, Size::At(4), Direction::Both);
        match (self.count(1), self.count(2)) {
            // The length counts instructions.
            FILTER => {
                if let Some(count) = self.half(self.argument(4)) {
                    self.tell(address, (count & 0xffff) * 8, Direction::Out);
                }
            }
            // `struct tcp_zerocopy_receive`: what fills no page goes to a buffer beside.
            WITHOUT_COPY => {
                if let (Some(buffer), Some(len)) =
                    (self.word(address.saturating_add(24)), self.half(address.saturating_add(32)))
                {
                    self.tell(buffer, len, Direction::Out);
                }
                if let (Some(control), Some(len)) =
                    (self.word(address.saturating_add(40)), self.word(address.saturating_add(48)))
                {
                    self.tell(control, len, Direction::Out);
                }
            }
            _ => {}
        }
    }

    /// The third argument is an address of the other process, or tells which or how much; the fourth, which is given here, a structure.
    fn trace(&mut self, address: usize) {
        const PEEK_SIGNALS: usize = 0x4209;
        const FILTER_MAX: usize = 4096 * 8;
        const REGISTERS_MAX: usize = 64 << 10;
        let which = self.argument(2);
        match self.argument(0) {
            // `PTRACE_GETREGSET`, `PTRACE_SETREGSET`: a vector.
            0x4204 | 0x4205 => {
                self.tell(address, 16, Direction::Both);
                if let (Some(base), Some(len)) = (self.word(address), self.word(address.saturating_add(8))) {
                    self.tell(base, len.min(REGISTERS_MAX), Direction::Both);
                }
            }
            PEEK_SIGNALS => {
                self.tell(which, 16, Direction::In);
                let count = self.half(which.saturating_add(12)).unwrap_or(0).min(LIST_MAX);
                self.tell(address, count * 128, Direction::Out);
            }
            // `PTRACE_SECCOMP_GET_FILTER`
            0x420c => self.tell(address, FILTER_MAX, Direction::Out),
            _ => self.tell(address, PAGE_BYTES, Direction::Both),
        }
    }

    fn futex(&mut self) {
        const COMMAND: usize = 0x7f;
        let [word, operation, _, time, second, _] = *self.arguments;
        self.tell(word, 4, Direction::Both);
        match operation & COMMAND {
            // Waiting, with or without a set of bits, and locking.
            0 | 6 | 9 | 13 => self.tell(time, 16, Direction::In),
            // Moving waiters, and waking at two words.
            3..=5 | 12 => self.tell(second, 4, Direction::Both),
            // Waiting to be moved.
            11 => {
                self.tell(time, 16, Direction::In);
                self.tell(second, 4, Direction::Both);
            }
            _ => {}
        }
    }

    /// The number of an `ioctl` tells the size of its structure, but for those older than this custom.
    fn ioctl(&mut self, address: usize) {
        const SIOCGIFCONF: usize = 0x8912;
        const FICLONE: usize = 0x4004_9409;
        const FIEMAP: usize = 0xc020_660b;
        /// The largest structure about sockets, of a route, has 120.
        const SOCKET_BYTES: usize = 128;
        let command = self.argument(1) & 0xffff_ffff;
        let size = (command >> 16) & 0x3fff;
        match command {
            FICLONE => {}
            FIEMAP => {
                let extents = self.half(address.saturating_add(24)).unwrap_or(0);
                self.tell(
                    address,
                    extents.saturating_mul(56).saturating_add(32).clamp(IOCTL_BYTES, 1 << 26),
                    Direction::Both,
                );
            }
            // Some structures are followed by a list.
            _ if size > 0 => self.tell(address, size.max(IOCTL_BYTES), Direction::Both),
            // Terminals and descriptors: some of them take a number.
            0x5400..=0x54ff => self.tell(address, 64, Direction::Both),
            SIOCGIFCONF => {
                self.tell(address, 16, Direction::Both);
                if let (Some(len), Some(list)) = (self.half(address), self.word(address.saturating_add(8))) {
                    self.tell(list, len, Direction::Out);
                }
            }
            0x8900..=0x89ff => self.tell(address, SOCKET_BYTES, Direction::Both),
            _ => self.tell(address, IOCTL_BYTES, Direction::Both),
        }
    }

    fn keys(&mut self) {
        let [operation, _, second, third, fourth, _] = *self.arguments;
        match operation {
            // A payload, or room for one, and its length.
            2 | 6 | 11 | 12 | 17 => self.tell(second, third, Direction::Both),
            // `KEYCTL_INSTANTIATE_IOV`
            20 => self.vectors(second, third, Direction::In),
            // Strings, or structures of less than a page.
            _ => {
                for address in [self.argument(1), second, third, fourth] {
                    self.tell(address, PAGE_BYTES, Direction::Both);
                }
            }
        }
    }

    fn mask_pair(&mut self, address: usize) {
        self.tell(address, 16, Direction::In);
        if let Some(set) = self.word(address) {
            self.tell(set, 8, Direction::In);
        }
    }

    /// `struct sigevent`; the first word may be the address of what a notification carries.
    fn notify(&mut self, address: usize) {
        const SIGEV_THREAD: usize = 2;
        self.tell(address, 64, Direction::In);
        if self.half(address.saturating_add(12)) == Some(SIGEV_THREAD)
            && let Some(carried) = self.word(address)
        {
            self.tell(carried, 32, Direction::In);
        }
    }

    fn prctl(&mut self, address: usize) {
        const SET_NAME: usize = 15;
        const GET_NAME: usize = 16;
        const SET_SECCOMP: usize = 22;
        const SET_VMA: usize = 0x5356_4d41;
        const GET_AUXV: usize = 0x4155_5856;
        let [option, _, second, third, fourth, _] = *self.arguments;
        match option {
            // Words that are asked for.
            2 | 5 | 9 | 11 | 19 | 25 | 37 | 40 => self.tell(address, 8, Direction::Out),
            SET_NAME | GET_NAME => self.tell(address, 16, Direction::Both),
            SET_SECCOMP if second != 0 => {
                self.tell(second, 16, Direction::In);
                self.program(second);
            }
            // Parts of the address space: a structure of less than a page, or a list.
            35 => self.tell(second, third.clamp(8, PAGE_BYTES), Direction::Both),
            // Scheduling of cores: a cookie.
            62 => self.tell(fourth, 8, Direction::Out),
            SET_VMA if fourth != 0 => self.text(fourth),
            GET_AUXV => self.tell(address, second, Direction::Out),
            _ => {}
        }
    }

    fn semaphores(&mut self, address: usize) {
        const GET_ALL: usize = 13;
        const SET_ALL: usize = 17;
        match self.argument(2) & 0xff {
            GET_ALL | SET_ALL => self.tell(address, 2 * 32_000, Direction::Both),
            // Status, change and limits.
            1..=3 | 18..=20 => self.tell(address, 104, Direction::Both),
            _ => {}
        }
    }

    /// `struct futex_waitv`: value, address, flags.
    fn waiters(&mut self, address: usize) {
        const WAITERS_MAX: usize = 128;
        // `futex_requeue` has two, and says elsewhere how many to wake.
        let count = self.count(1).clamp(2, WAITERS_MAX);
        for index in 0..count {
            let place = address.saturating_add(index * 24);
            self.tell(place, 24, Direction::In);
            match self.word(place.saturating_add(8)) {
                Some(word) => self.tell(word, 8, Direction::Both),
                None => return,
            }
        }
    }

    /// `struct xattr_args`: address and size of the value.
    fn xattr(&mut self, address: usize) {
        self.tell(address, self.argument(5).clamp(16, PAGE_BYTES), Direction::In);
        if let (Some(value), Some(len)) = (self.word(address), self.half(address.saturating_add(8))) {
            self.tell(value, len, Direction::Both);
        }
    }
}

#[cfg(test)]
mod tests;
