//! The messages between the supervisor and the agents, and between a parent's agent and its forked child's.
//!
//! Sequenced packets on pairs of unix sockets without a name: nobody else can reach them, a packet is whole or absent, and the end of
//! either side is seen by the other at once. Bodies are words, or text lines `key=value`; descriptors travel beside them. What
//! comes from a process of the program may be anything: decoding checks lengths, counts and ranges, and touches nothing else.

use std::fmt::Write as _;

use crate::extents::Division;
use crate::session::command::PlaceId;

/// Bytes of a packet at most.
pub(crate) const PACKET_BYTES: usize = 8192;
/// Descriptors in a packet at most.
pub(crate) const PACKET_FDS: usize = 32;

/// Of the packets' form: the two ends are of one build, or do not talk.
const VERSION: u32 = 5;

/// An agent to the supervisor: what follows is for the person's eyes.
pub(crate) const SAY: &[u8] = b"say ";
/// An agent to the supervisor, with its userfaultfd: make the handshake, which asks for a privilege that the program may have
/// given up. The supervisor to the agent: done.
pub(crate) const HANDSHAKE: &[u8] = b"handshake";
/// The supervisor to the agent: the kernel refused the handshake.
pub(crate) const REFUSED: &[u8] = b"refused";
/// An agent to the supervisor: a child was forked, which waits for an agent.
pub(crate) const BORN: &[u8] = b"born";
/// An agent to the supervisor: the child of `BORN` is on its own, or gone.
pub(crate) const OVER: &[u8] = b"over";
/// The supervisor to an agent, with a socket: that of its child's agent.
pub(crate) const CHILD: &[u8] = b"child";
/// The supervisor to an agent: the child gets no agent, its memory must be completed.
pub(crate) const ALONE: &[u8] = b"alone";
/// From the supervisor: there is something to look at, for an agent that rests.
pub(crate) const RING: &[u8] = b"ring";
/// An agent to the supervisor: the memory of the child of `ALONE` is complete.
pub(crate) const COMPLETE: &[u8] = b"complete";
/// An agent to the supervisor, with a pidfd, and the supervisor to the agent of that process: memory of it is to be brought in (`foreign.rs`).
pub(crate) const BRING: &[u8] = b"bring ";
/// A parent's agent to its child's: more descriptors.
pub(crate) const MORE: &[u8] = b"more";
/// Descriptors of a handover that do not belong to a device: the userfaultfd (not in signal mode) and the snapshot.
pub(crate) const HANDOVER_FDS: usize = 2;
/// Descriptors of a device: its file, its checksums and its lease.
pub(crate) const DEVICE_FDS: usize = 3;
/// Descriptors of a handover at most.
pub(crate) const HANDOVER_FDS_MAX: usize = HANDOVER_FDS + DEVICE_FDS * DEVICES_MAX;
/// Devices that a core knows at most.
pub(crate) const DEVICES_MAX: usize = 32;
/// A child's agent to its parent's: everything has been taken over.
pub(crate) const TAKEN: &[u8] = b"taken";

/// The supervisor to an agent: a number, and a command of `session/command.rs`; a swap file if it is one that needs it, as in `Hello`.
pub(crate) const DO: &[u8] = b"do ";
/// An agent to the supervisor: the number, and the answer.
pub(crate) const DID: &[u8] = b"did ";

/// An agent to the supervisor, with a swap file that nothing names any more and one end of a pipe: both are to be closed, the file
/// first. That frees its disk space, for which the program would wait.
pub(crate) const CLOSE: &[u8] = b"close";

/// A swap device as the agents know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceOffer {
    /// The place of the run that it lies in.
    pub(crate) place: PlaceId,
    /// Slots at most.
    pub(crate) slots: u32,
    /// As in `DeviceSpec`.
    pub(crate) priority: Option<i16>,
    pub(crate) rotational: bool,
    /// It is a device that all processes share.
    pub(crate) division: Option<Division>,
}

impl DeviceOffer {
    /// Descriptors that belong to it: a file, and what keeps others from a device.
    pub(crate) fn fds(&self) -> usize {
        1 + usize::from(self.division.is_some())
    }

    /// As words.
    pub(crate) fn encode(&self) -> String {
        let priority = self.priority.map_or_else(|| "auto".to_owned(), |priority| priority.to_string());
        let (place, slots, rotational) = (self.place.0, self.slots, u8::from(self.rotational));
        let Division { extent_slots, extents } = self.division.unwrap_or_default();
        format!("{place} {slots} {priority} {rotational} {extent_slots} {extents}")
    }

    /// From words.
    pub(crate) fn decode<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<Self> {
        let place = PlaceId(words.next()?.parse().ok()?);
        let slots = words.next()?.parse().ok()?;
        let priority = match words.next()? {
            "auto" => None,
            number => Some(number.parse().ok().filter(|&priority: &i16| priority >= 0)?),
        };
        let rotational = words.next()? == "1";
        let division = Division::of(words.next()?.parse().ok()?, words.next()?.parse().ok()?)?;
        Some(Self { place, slots, priority, rotational, division })
    }
}

/// What an agent learns when it starts. Its descriptors: the control file, /proc, the lifeline, its pagemap, maps and statm, the socket of the parent's agent if it is a forked
/// child's, an empty swap file for each device (of a device that is divided two: `DeviceOffer::fds`), the directory of the records if there are any, then a /dev/userfaultfd if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// It takes over from its parent's agent.
    pub(crate) forked: bool,
    /// `thread` or `signal`.
    pub(crate) signal_mode: bool,
    /// Bytes to leave free on the file systems of the devices.
    pub(crate) floor_bytes: u64,
    pub(crate) devices: Vec<DeviceOffer>,
    /// The run records events: the files' name, before a dot and the process.
    pub(crate) record: Option<String>,
    /// Knobs for the core.
    pub(crate) settings: Vec<(String, String)>,
}

impl Hello {
    /// As a packet.
    pub(crate) fn encode(&self) -> String {
        let mut text = String::new();
        let mut line = |key: &str, value: &dyn std::fmt::Display| {
            writeln!(text, "{key}={value}").expect("writing to a String does not fail");
        };
        line("pagetide", &VERSION);
        line("forked", &u8::from(self.forked));
        line("signal", &u8::from(self.signal_mode));
        line("floor", &self.floor_bytes);
        for device in &self.devices {
            line("device", &device.encode());
        }
        if let Some(name) = &self.record {
            line("record", name);
        }
        for (key, value) in &self.settings {
            line("set", &format_args!("{key} {value}"));
        }
        text
    }

    /// From a packet; None if it is not one of this version's.
    pub(crate) fn decode(packet: &[u8]) -> Option<Self> {
        let mut hello = Self {
            forked: false,
            signal_mode: false,
            floor_bytes: 0,
            devices: Vec::new(),
            record: None,
            settings: Vec::new(),
        };
        let mut lines = std::str::from_utf8(packet).ok()?.split_terminator('\n');
        if lines.next()?.strip_prefix("pagetide=")?.parse() != Ok(VERSION) {
            return None;
        }
        for line in lines {
            let (key, value) = line.split_once('=')?;
            match key {
                "forked" => hello.forked = value == "1",
                "signal" => hello.signal_mode = value == "1",
                "floor" => hello.floor_bytes = value.parse().ok()?,
                "device" => {
                    let mut words = value.split(' ');
                    hello.devices.push(DeviceOffer::decode(&mut words).filter(|_| words.next().is_none())?);
                }
                "record" => hello.record = Some(value.to_owned()),
                "set" => {
                    let (knob, value) = value.split_once(' ')?;
                    hello.settings.push((knob.to_owned(), value.to_owned()));
                }
                _ => return None,
            }
        }
        Some(hello)
    }
}

/// A device of a forked parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceHandover {
    pub(crate) device: u8,
    pub(crate) place: PlaceId,
    pub(crate) slots_max: u32,
    pub(crate) slots_end: u32,
    pub(crate) division: Option<Division>,
}

/// What a forked child takes over, beside the descriptors: its userfaultfd in thread mode, the snapshot, then for each device its file, its
/// checksums and its lease (the end of a pipe that says "still needed" as long as it is open). A packet takes [`PACKET_FDS`]; the
/// rest comes in packets [`MORE`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Handover {
    pub(crate) seed: u64,
    pub(crate) devices: Vec<DeviceHandover>,
    /// Descriptors in all.
    pub(crate) fds: usize,
    /// Entries of the snapshot.
    pub(crate) regions: usize,
    pub(crate) runs: usize,
}

impl Handover {
    /// As a packet.
    pub(crate) fn encode(&self) -> String {
        let mut text = format!("{} {} {} {}", self.seed, self.fds, self.regions, self.runs);
        for &DeviceHandover { device, place, slots_max, slots_end, division } in &self.devices {
            let Division { extent_slots, extents } = division.unwrap_or_default();
            write!(text, " {device} {} {slots_max} {slots_end} {extent_slots} {extents}", place.0)
                .expect("writing to a String does not fail");
        }
        text
    }

    /// From a packet.
    pub(crate) fn decode(packet: &[u8]) -> Option<Self> {
        let numbers: Vec<u64> =
            std::str::from_utf8(packet).ok()?.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?;
        let mut numbers = numbers.into_iter();
        let mut next = || numbers.next();
        let seed = next()?;
        let fds = usize::try_from(next()?).ok().filter(|&fds| fds <= HANDOVER_FDS_MAX)?;
        let regions = usize::try_from(next()?).ok()?;
        let runs = usize::try_from(next()?).ok()?;
        let mut devices = Vec::new();
        while let Some(device) = next() {
            let device = u8::try_from(device).ok()?;
            let mut number = || u32::try_from(next()?).ok();
            let (place, slots_max, slots_end) = (PlaceId(number()?), number()?, number()?);
            let division = Division::of(number()?, number()?)?;
            devices.push(DeviceHandover { device, place, slots_max, slots_end, division });
        }
        Some(Self { seed, devices, fds, regions, runs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let division = Division::of(512, 9).expect("a good division");
        let hello = Hello {
            forked: true,
            signal_mode: true,
            floor_bytes: 1 << 30,
            devices: vec![
                DeviceOffer { place: PlaceId(0), slots: 100, priority: None, rotational: true, division: None },
                DeviceOffer { place: PlaceId(7), slots: 5, priority: Some(9), rotational: false, division },
            ],
            record: Some("a=b\r".to_owned()),
            settings: vec![("swappiness".to_owned(), "60".to_owned())],
        };
        assert_eq!(Hello::decode(hello.encode().as_bytes()), Some(hello));
        let device = |device| DeviceHandover { device, place: PlaceId(3), slots_max: 2, slots_end: 1, division };
        let handover = Handover { seed: u64::MAX, devices: vec![device(0), device(9)], fds: 33, regions: 5, runs: 6 };
        assert_eq!(Handover::decode(handover.encode().as_bytes()), Some(handover));
    }

    #[test]
    fn a_foreign_packet_is_refused() {
        assert_eq!(Hello::decode(b""), None);
        assert_eq!(Hello::decode(b"pagetide=1\nforked=1\n"), None);
        assert_eq!(Hello::decode(b"pagetide=4\nfloor=x\n"), None);
        assert_eq!(Hello::decode(&[0xff, 0xfe]), None);
        assert_eq!(Handover::decode(b"1 2"), None);
        assert_eq!(Handover::decode(b"1 99 2 3"), None);
        assert_eq!(Handover::decode(b"1 5 2 3 x"), None);
    }
}
