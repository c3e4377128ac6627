//! A file of packets that is whole at every moment, and bounded.
//!
//! A kill may end a write between two pages of the file, never inside of one: no write crosses the end of a page, and none ends inside
//! of a packet. What is left of a page that has no room for the next packet is filled with a packet that says nothing. A disk
//! that is full cuts the file behind the last whole packet.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use prost::Message;

use super::proto::{PACKET_TAG, TracePacket};

/// Bytes of a page.
const PAGE: usize = 4096;
/// The least that can be filled: tag and length of the packet, tag and length of a field in it.
const FILL_MIN: usize = 7;

/// Where packets go.
pub(crate) trait Disk: std::fmt::Debug {
    /// Append these bytes; what was written of them stays if it is not all.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;
    /// Cut what lies behind this.
    fn cut(&mut self, bytes: u64) -> io::Result<()>;
}

impl Disk for File {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write_all(bytes)
    }

    fn cut(&mut self, bytes: u64) -> io::Result<()> {
        self.set_len(bytes)
    }
}

/// The file.
#[derive(Debug)]
pub(crate) struct Pages<D = File> {
    disk: D,
    /// Bytes that are in the file.
    written: u64,
    /// What is to be written, inside of one page.
    pending: Vec<u8>,
    packet: Vec<u8>,
}

/// A file to be filled, and whether there was none; an old one of the name stays as it is until then. Nothing but a file: a pipe would
/// hold up the run.
pub(crate) fn create(path: &Path) -> io::Result<(Pages, bool)> {
    if path.metadata().is_ok_and(|metadata| !metadata.is_file()) {
        return Err(io::Error::other("it is no file"));
    }
    let is_new = path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    let disk = OpenOptions::new().create(true).write(true).truncate(false).open(path)?;
    Ok((Pages::new(disk), is_new))
}

impl<D: Disk> Pages<D> {
    pub(crate) fn new(disk: D) -> Self {
        Self { disk, written: 0, pending: Vec::with_capacity(PAGE), packet: Vec::with_capacity(PAGE) }
    }

    /// What an earlier run left goes.
    pub(crate) fn empty(&mut self) -> io::Result<()> {
        self.disk.cut(0)
    }

    /// Bytes of the file, with what is to be written.
    pub(crate) fn len(&self) -> u64 {
        self.written + self.pending.len() as u64
    }

    /// Take a packet. It is written at the next flush, or when its page is full.
    pub(crate) fn push(&mut self, packet: &TracePacket) -> io::Result<()> {
        self.packet.clear();
        self.packet.push(PACKET_TAG);
        packet.encode_length_delimited(&mut self.packet).expect("a vector grows");
        assert!(self.packet.len() <= PAGE / 2, "packets are small: {}", self.packet.len());
        let left = self.left();
        let fits = self.packet.len() == left || self.packet.len() + FILL_MIN <= left;
        if !fits {
            fill(&mut self.pending, left);
            self.flush()?;
        }
        self.pending.extend_from_slice(&self.packet);
        if self.left() == PAGE { self.flush() } else { Ok(()) }
    }

    /// Bytes up to the end of the page.
    fn left(&self) -> usize {
        let used = usize::try_from(self.len() % PAGE as u64).expect("less than a page");
        PAGE - used
    }

    /// Write what was taken.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.disk.append(&self.pending) {
            self.pending.clear();
            self.disk.cut(self.written)?;
            return Err(error);
        }
        self.written += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }
}

/// A packet of `bytes` bytes that says nothing: a field of a number that the format does not use, with lengths of two bytes each.
fn fill(out: &mut Vec<u8>, bytes: usize) {
    assert!((FILL_MIN..=PAGE).contains(&bytes), "room for a filling packet was kept: {bytes}");
    let length = |out: &mut Vec<u8>, bytes: usize| {
        let low = u8::try_from(bytes & 0x7f).expect("seven bits");
        out.extend([low | 0x80, u8::try_from(bytes >> 7).expect("less than a page")]);
    };
    out.push(PACKET_TAG);
    length(out, bytes - 3);
    // Field 1000, bytes.
    out.extend([0xc2, 0x3e]);
    length(out, bytes - FILL_MIN);
    out.resize(out.len() + bytes - FILL_MIN, 0);
}

/// The packets of a file; how many bytes behind them are no whole packet.
pub(crate) fn packets(mut bytes: &[u8]) -> (Vec<TracePacket>, usize) {
    let mut packets = Vec::new();
    while let Some((&PACKET_TAG, mut rest)) = bytes.split_first() {
        let Ok(packet) = TracePacket::decode_length_delimited(&mut rest) else { break };
        packets.push(packet);
        bytes = rest;
    }
    (packets, bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that remembers where each write ended, and has so much room.
    #[derive(Debug)]
    struct Noted {
        bytes: Vec<u8>,
        ends: Vec<usize>,
        room: usize,
    }

    impl Disk for Noted {
        fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
            let count = bytes.len().min(self.room - self.bytes.len());
            self.bytes.extend(&bytes[..count]);
            self.ends.push(self.bytes.len());
            if count == bytes.len() { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
        }

        fn cut(&mut self, bytes: u64) -> io::Result<()> {
            self.bytes.truncate(usize::try_from(bytes).expect("small"));
            Ok(())
        }
    }

    fn packet(number: u64) -> TracePacket {
        let sequence_flags = number.is_multiple_of(7).then_some(1);
        TracePacket { timestamp: Some(number << (number % 50)), sequence_flags, ..TracePacket::default() }
    }

    fn pages(room: usize) -> Pages<Noted> {
        Pages::new(Noted { bytes: Vec::new(), ends: Vec::new(), room })
    }

    #[test]
    fn no_write_crosses_a_page_and_each_ends_with_a_whole_packet() {
        let mut pages = pages(usize::MAX);
        for number in 0..9_000 {
            pages.push(&packet(number)).expect("there is room");
            if number % 100 == 0 {
                pages.flush().expect("there is room");
            }
        }
        pages.flush().expect("there is room");
        let disk = &pages.disk;
        let mut begin = 0;
        for &end in &disk.ends {
            assert_eq!(begin / PAGE, (end - 1) / PAGE, "{begin} to {end}");
            assert_eq!(packets(&disk.bytes[..end]).1, 0, "up to {end}");
            begin = end;
        }
        let (read, rest) = packets(&disk.bytes);
        let told: Vec<_> = read.into_iter().filter(|packet| packet.timestamp.is_some()).collect();
        assert!(told == (0..9_000).map(packet).collect::<Vec<_>>() && rest == 0);
    }

    #[test]
    fn a_full_disk_leaves_whole_packets() {
        let mut pages = pages(10_000);
        let full = (0..9_000).find(|&number| pages.push(&packet(number)).is_err());
        assert!(full.is_some(), "10,000 bytes do not hold all");
        let (read, rest) = packets(&pages.disk.bytes);
        assert!(read.len() > 500 && rest == 0, "{} packets, {rest} bytes", read.len());
    }

    #[test]
    fn a_cut_file_is_read_up_to_the_cut() {
        let mut pages = pages(usize::MAX);
        (0..50).for_each(|number| pages.push(&packet(number)).expect("there is room"));
        pages.flush().expect("there is room");
        let bytes = &pages.disk.bytes;
        let (all, _) = packets(bytes);
        for end in 0..bytes.len() {
            let (read, rest) = packets(&bytes[..end]);
            assert!(read == all[..read.len()] && rest < 20, "{end}");
        }
        assert_eq!(packets(b"{\"exit_status\": 0}").1, 18, "another file has no packets");
    }
}
