//! The messages between the supervisor and the agents, and between a parent's agent and its forked child's.
//!
//! Sequenced packets on abstract unix sockets: no file is left behind, a packet is whole or absent, and the end of either side
//! is seen by the other at once. Bodies are text lines `key=value`; descriptors travel beside them.

use std::fmt::Write as _;

/// Bytes of a packet at most.
pub(crate) const PACKET_BYTES: usize = 8192;
/// Descriptors in a packet at most.
pub(crate) const PACKET_FDS: usize = 32;

/// The supervisor to an agent: take your memory under management. An agent to the supervisor: that happens now, unasked.
pub(crate) const ADOPT: &[u8] = b"adopt";
/// An agent to the supervisor: what follows is for the person's eyes.
pub(crate) const SAY: &[u8] = b"say ";
/// A child's agent to its parent's: everything has been taken over.
pub(crate) const TAKEN: &[u8] = b"taken";

/// A swap device as the agents know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeviceOffer {
    /// Slots at most.
    pub(crate) slots: u32,
    /// As in `DeviceSpec`.
    pub(crate) priority: Option<i16>,
    pub(crate) rotational: bool,
}

/// What an agent learns when it calls. Its descriptors: the control file, one directory for each device, the
/// directory of the records if there are any, then a /dev/userfaultfd if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// Its entry in the control page.
    pub(crate) entry: usize,
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
        line("entry", &self.entry);
        line("signal", &u8::from(self.signal_mode));
        line("floor", &self.floor_bytes);
        for device in &self.devices {
            let priority = device.priority.map_or_else(|| "auto".to_owned(), |priority| priority.to_string());
            line("device", &format_args!("{} {priority} {}", device.slots, u8::from(device.rotational)));
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
            entry: usize::MAX,
            signal_mode: false,
            floor_bytes: 0,
            devices: Vec::new(),
            record: None,
            settings: Vec::new(),
        };
        for line in std::str::from_utf8(packet).ok()?.split_terminator('\n') {
            let (key, value) = line.split_once('=')?;
            match key {
                "entry" => hello.entry = value.parse().ok()?,
                "signal" => hello.signal_mode = value == "1",
                "floor" => hello.floor_bytes = value.parse().ok()?,
                "device" => {
                    let mut words = value.split(' ');
                    let slots = words.next()?.parse().ok()?;
                    let priority = match words.next()? {
                        "auto" => None,
                        number => Some(number.parse().ok()?),
                    };
                    hello.devices.push(DeviceOffer { slots, priority, rotational: words.next()? == "1" });
                }
                "record" => hello.record = Some(value.to_owned()),
                "set" => {
                    let (knob, value) = value.split_once(' ')?;
                    hello.settings.push((knob.to_owned(), value.to_owned()));
                }
                _ => return None,
            }
        }
        (hello.entry != usize::MAX).then_some(hello)
    }
}

/// What a forked child takes over, beside the descriptors: its userfaultfd, the snapshot, its lease (the end of a pipe that
/// says "still needed" as long as it is open), then for each device its file and its checksums, then the parent's own leases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Handover {
    pub(crate) seed: u64,
    /// `(device, slots_max, slots_backed)` of each device.
    pub(crate) devices: Vec<(u8, u32, u32)>,
    /// Entries of the snapshot.
    pub(crate) spans: usize,
    pub(crate) runs: usize,
}

impl Handover {
    /// As a packet.
    pub(crate) fn encode(&self) -> String {
        let mut text = format!("{} {} {}", self.seed, self.spans, self.runs);
        for (device, slots_max, backed) in &self.devices {
            write!(text, " {device} {slots_max} {backed}").expect("writing to a String does not fail");
        }
        text
    }

    /// From a packet.
    pub(crate) fn decode(packet: &[u8]) -> Option<Self> {
        let mut numbers = std::str::from_utf8(packet).ok()?.split(' ').map(str::parse::<u64>);
        let mut next = || numbers.next()?.ok();
        let seed = next()?;
        let spans = usize::try_from(next()?).ok()?;
        let runs = usize::try_from(next()?).ok()?;
        let mut devices = Vec::new();
        while let Some(device) = next() {
            let slots_max = u32::try_from(next()?).ok()?;
            devices.push((u8::try_from(device).ok()?, slots_max, u32::try_from(next()?).ok()?));
        }
        Some(Self { seed, devices, spans, runs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded() {
        let hello = Hello {
            entry: 7,
            signal_mode: true,
            floor_bytes: 1 << 30,
            devices: vec![
                DeviceOffer { slots: 100, priority: None, rotational: true },
                DeviceOffer { slots: 5, priority: Some(9), rotational: false },
            ],
            record: Some("a=b\r".to_owned()),
            settings: vec![("swappiness".to_owned(), "60".to_owned())],
        };
        assert_eq!(Hello::decode(hello.encode().as_bytes()), Some(hello));
        let handover = Handover { seed: u64::MAX, devices: vec![(0, 1, 2), (9, 3, 4)], spans: 5, runs: 6 };
        assert_eq!(Handover::decode(handover.encode().as_bytes()), Some(handover));
    }

    #[test]
    fn a_foreign_packet_is_refused() {
        assert_eq!(Hello::decode(b""), None);
        assert_eq!(Hello::decode(b"entry=x\n"), None);
        assert_eq!(Hello::decode(&[0xff, 0xfe]), None);
        assert_eq!(Handover::decode(b"1 2"), None);
    }
}
