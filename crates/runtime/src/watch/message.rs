//! The packets between a run and who watches it: requests and answers, as text.
//!
//! The first line is the version, the second says what the packet is. Whatever comes may be anything: decoding checks lengths, counts
//! and ranges, and touches nothing else. What was decoded is encoded as it was (`fuzz/fuzz_targets/watch.rs`).

use std::fmt::Write as _;

use pagetide_core::config::SwapoffMode;

use super::record::{DeviceView, ProcessView, RegionView, RunView, decimal, next_number, push_text, read_text};

/// Bytes of a packet at most.
pub const PACKET_BYTES: usize = 64 << 10;
/// The first line, but for the version.
const MARK: &str = "pagetide-watch ";
/// Of the packets' form.
pub(crate) const VERSION: u64 = 1;
/// Entries of each list at most: no packet holds more, and a decoder allocates for no more.
const LIST_MAX: usize = 256;
/// Processes that are told of one by one: the largest.
pub(crate) const PROCESSES_MAX: usize = 64;
/// Callers that a run serves at once at most.
pub(crate) const CALLERS_MAX: usize = 16;

/// Bytes of a mapping's name at most: the end of a longer one is told.
pub(crate) const MAPPING_BYTES_MAX: usize = 96;

/// What is left to the run.
const AUTO: &str = "auto";

/// What a run is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// How it goes.
    Stat,
    /// What the memory of a process of it holds and does. It is counted as long as somebody who has asked is connected.
    Regions {
        /// The process; 0: none any more.
        pid: u64,
    },
    /// A budget of so many bytes from now on.
    Memory(u64),
    /// So many bytes leave that the budget has room for.
    PageOut(u64),
    /// Page nothing out until `Resume`.
    Pause,
    /// The budget holds again.
    Resume,
    /// A knob has another value from now on.
    Set {
        /// Its name.
        key: String,
        /// As the knob spells it.
        value: String,
    },
    /// A further place to swap to.
    SwapOn {
        /// A directory.
        path: String,
        /// As in [`crate::supervise::SwapSpec`].
        size_bytes: Option<u64>,
        /// As in [`crate::supervise::SwapSpec`].
        priority: Option<i16>,
    },
    /// Empty a place, and forget it.
    SwapOff {
        /// As it was named.
        path: String,
        /// What the statistics of readahead learn; None: as the settings say.
        mode: Option<SwapoffMode>,
    },
    /// Use a place again that is being emptied.
    StopSwapOff {
        /// As it was named.
        path: String,
    },
}

/// What a run answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// How it goes.
    Snapshot(Box<Snapshot>),
    /// What the memory of a process holds and does.
    Regions(Box<Memory>),
    /// It was done; the text says what, for a person.
    Done(String),
    /// It was not done, and nothing has changed; the text says why, for a person.
    Refused(String),
}

/// What the memory of a process holds and does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// The process.
    pub pid: u64,
    /// The time for which is told what was done; 0: nothing was counted yet, ask again later.
    pub interval_ns: u64,
    /// Its largest regions, ascending by address.
    pub regions: Vec<RegionView>,
    /// The same memory in parts of about one size, ascending by address.
    pub heat: Vec<HeatView>,
}

/// A part of a process's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeatView {
    /// Its first address.
    pub start: u64,
    /// Addresses of it.
    pub size_bytes: u64,
    /// What is resident.
    pub resident_bytes: u64,
    /// Faults on it in the interval.
    pub faults: u64,
    /// Those for which a page had to be read.
    pub major_faults: u64,
}

/// How a run goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The run as a whole.
    pub run: RunView,
    /// Its command.
    pub command: String,
    /// The counters of `docs/counters.md`, in the order of the table, ended processes included.
    pub counters: Vec<(String, u64)>,
    /// Fault latency: the upper end of a bucket in nanoseconds, and faults in it. Empty buckets are left out.
    pub latency: Vec<(u64, u64)>,
    /// Pages that came back: the most pages that left meanwhile, and how many came back so. Empty buckets are left out; see
    /// [`pagetide_core::absences`].
    pub returns: Vec<(u64, u64)>,
    /// Its largest processes.
    pub processes: Vec<ProcessView>,
    /// Where it swaps to.
    pub devices: Vec<DeviceView>,
}

impl Snapshot {
    /// The value of a counter; 0 if the run does not know it.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.iter().find(|(known, _)| known == name).map_or(0, |&(_, value)| value)
    }
}

/// What a caller beyond [`CALLERS_MAX`] is told.
pub(crate) fn too_many() -> String {
    format!(
        "{CALLERS_MAX} callers watch this run already, and it serves no more at a time: end one of them, or try again"
    )
}

/// The second line and what follows, of a packet of our version. Err: the version, if it is another one's.
fn body(packet: &[u8]) -> Result<Option<(&str, &str)>, u64> {
    let Ok(text) = std::str::from_utf8(packet) else { return Ok(None) };
    let Some((version, rest)) = text.strip_prefix(MARK).and_then(|rest| rest.split_once('\n')) else { return Ok(None) };
    match decimal(version) {
        Some(VERSION) => Ok(rest.split_once('\n')),
        Some(other) => Err(other),
        None => Ok(None),
    }
}

fn begin(kind: &str) -> String {
    format!("{MARK}{VERSION}\n{kind}\n")
}

fn with_text(kind: &str, text: &str) -> String {
    let mut packet = begin(kind);
    push_text(text, &mut packet);
    packet.push('\n');
    packet
}

impl Request {
    /// As a packet.
    pub fn encode(&self) -> String {
        match self {
            Self::Stat => begin("stat"),
            Self::Regions { pid } => format!("{}{pid}\n", begin("regions")),
            Self::Memory(bytes) => format!("{}{bytes}\n", begin("memory")),
            Self::PageOut(bytes) => format!("{}{bytes}\n", begin("page-out")),
            Self::Pause => begin("pause"),
            Self::Resume => begin("resume"),
            Self::Set { key, value } => with_text("set", &format!("{key} {value}")),
            Self::SwapOn { path, size_bytes, priority } => {
                let size = size_bytes.map_or_else(|| AUTO.to_owned(), |bytes| bytes.to_string());
                let priority = priority.map_or_else(|| AUTO.to_owned(), |priority| priority.to_string());
                with_text("swapon", &format!("{size} {priority} {path}"))
            }
            Self::SwapOff { path, mode } => {
                with_text("swapoff", &format!("{} {path}", mode.map_or(AUTO, SwapoffMode::name)))
            }
            Self::StopSwapOff { path } => with_text("stop-swapoff", path),
        }
    }

    /// From a packet; Err: why not, for a person.
    pub fn decode(packet: &[u8]) -> Result<Self, String> {
        let unknown = || "this run does not understand the request: it is of another version of pagetide".to_owned();
        let (kind, rest) = body(packet)
            .map_err(|version| {
                format!("this run speaks version {VERSION} of the watching protocol, you version {version}")
            })?
            .ok_or_else(unknown)?;
        let line = rest.strip_suffix('\n').filter(|line| !line.contains('\n'));
        let text = || line.and_then(read_text);
        let request = match kind {
            "stat" if rest.is_empty() => Some(Self::Stat),
            "pause" if rest.is_empty() => Some(Self::Pause),
            "resume" if rest.is_empty() => Some(Self::Resume),
            "regions" => line.and_then(decimal).map(|pid| Self::Regions { pid }),
            "memory" => line.and_then(decimal).map(Self::Memory),
            "page-out" => line.and_then(decimal).map(Self::PageOut),
            "set" => text().and_then(|text| Self::set(&text)),
            "swapon" => text().and_then(|text| Self::swapon(&text)),
            "swapoff" => text().and_then(|text| Self::swapoff(&text)),
            "stop-swapoff" => text().map(|path| Self::StopSwapOff { path }),
            _ => None,
        };
        request.ok_or_else(unknown)
    }

    fn set(text: &str) -> Option<Self> {
        let (key, value) = text.split_once(' ')?;
        Some(Self::Set { key: key.to_owned(), value: value.to_owned() })
    }

    fn swapon(text: &str) -> Option<Self> {
        let mut words = text.splitn(3, ' ');
        let size_bytes = match words.next()? {
            AUTO => None,
            bytes => Some(decimal(bytes)?),
        };
        let priority = match words.next()? {
            AUTO => None,
            number => Some(i16::try_from(decimal(number)?).ok()?),
        };
        Some(Self::SwapOn { path: words.next()?.to_owned(), size_bytes, priority })
    }

    fn swapoff(text: &str) -> Option<Self> {
        let (mode, path) = text.split_once(' ')?;
        let mode = if mode == AUTO { None } else { Some(SwapoffMode::parse(mode)?) };
        Some(Self::SwapOff { path: path.to_owned(), mode })
    }
}

impl Answer {
    /// As a packet.
    pub fn encode(&self) -> String {
        match self {
            Self::Done(text) => with_text("done", text),
            Self::Refused(text) => with_text("refused", text),
            Self::Snapshot(snapshot) => snapshot.encode(),
            Self::Regions(memory) => memory.encode(),
        }
    }

    /// From a packet; Err: why not, for a person.
    pub fn decode(packet: &[u8]) -> Result<Self, String> {
        let unknown = || "the run answers what this version of pagetide does not understand".to_owned();
        let (kind, rest) = body(packet)
            .map_err(|version| {
                format!("the run speaks version {version} of the watching protocol, this pagetide {VERSION}")
            })?
            .ok_or_else(unknown)?;
        let text =
            || rest.strip_suffix('\n').filter(|line| !line.contains('\n')).and_then(read_text).ok_or_else(unknown);
        match kind {
            "done" => text().map(Self::Done),
            "refused" => text().map(Self::Refused),
            "regions" => Memory::decode(rest).map(|memory| Self::Regions(Box::new(memory))).ok_or_else(unknown),
            "snapshot" => Snapshot::decode(rest).map(|snapshot| Self::Snapshot(Box::new(snapshot))).ok_or_else(unknown),
            _ => Err(unknown()),
        }
    }
}

impl Snapshot {
    fn encode(&self) -> String {
        let mut out = begin("snapshot");
        self.run.write("run", &mut out);
        out.push_str("command ");
        push_text(&self.command, &mut out);
        out.push('\n');
        for (name, value) in &self.counters {
            writeln!(out, "counter {value} {name}").expect("writing to a String does not fail");
        }
        for (ns, faults) in &self.latency {
            writeln!(out, "latency {ns} {faults}").expect("writing to a String does not fail");
        }
        for (pages, returns) in &self.returns {
            writeln!(out, "return {pages} {returns}").expect("writing to a String does not fail");
        }
        self.processes.iter().for_each(|process| process.write("process", &mut out));
        self.devices.iter().for_each(|device| device.write("device", &mut out));
        out
    }

    /// From what follows the second line.
    fn decode(text: &str) -> Option<Self> {
        let mut snapshot = Self::default();
        let mut rest = text;
        while !rest.is_empty() {
            let (line, behind) = rest.split_once('\n')?;
            rest = behind;
            let (key, line) = line.split_once(' ')?;
            snapshot.take_line(key, line)?;
        }
        Some(snapshot)
    }

    fn take_line(&mut self, key: &str, mut line: &str) -> Option<()> {
        match key {
            "run" => self.run = RunView::read(line)?,
            "command" => self.command = read_text(line)?,
            "counter" => {
                let value = next_number(&mut line)?;
                push(&mut self.counters, (line.to_owned(), value))?;
            }
            "latency" => {
                let ns = next_number(&mut line)?;
                push(&mut self.latency, (ns, decimal(line)?))?;
            }
            "return" => {
                let pages = next_number(&mut line)?;
                push(&mut self.returns, (pages, decimal(line)?))?;
            }
            "process" => push(&mut self.processes, ProcessView::read(line)?)?,
            "device" => push(&mut self.devices, DeviceView::read(line)?)?,
            _ => return None,
        }
        Some(())
    }
}

impl Memory {
    fn encode(&self) -> String {
        let mut out = begin("regions");
        writeln!(out, "process {} {}", self.pid, self.interval_ns).expect("writing to a String does not fail");
        self.regions.iter().for_each(|region| region.write("region", &mut out));
        for HeatView { start, size_bytes, resident_bytes, faults, major_faults } in &self.heat {
            writeln!(out, "heat {start} {size_bytes} {resident_bytes} {faults} {major_faults}")
                .expect("writing to a String does not fail");
        }
        out
    }

    /// From what follows the second line.
    fn decode(text: &str) -> Option<Self> {
        let mut memory = Self::default();
        let mut rest = text;
        while !rest.is_empty() {
            let (line, behind) = rest.split_once('\n')?;
            rest = behind;
            let (key, mut line) = line.split_once(' ')?;
            match key {
                "process" => {
                    memory.pid = next_number(&mut line)?;
                    memory.interval_ns = decimal(line)?;
                }
                "region" => push(&mut memory.regions, RegionView::read(line)?)?,
                "heat" => {
                    let mut next = || next_number(&mut line);
                    let [start, size_bytes, resident_bytes, faults] = [next()?, next()?, next()?, next()?];
                    let major_faults = decimal(line)?;
                    let part = HeatView { start, size_bytes, resident_bytes, faults, major_faults };
                    push(&mut memory.heat, part)?;
                }
                _ => return None,
            }
        }
        Some(memory)
    }
}

/// None: the list is full.
fn push<T>(list: &mut Vec<T>, entry: T) -> Option<()> {
    (list.len() < LIST_MAX).then(|| list.push(entry))
}

/// Decodes a packet as each message; what is understood must be so again when it is encoded.
#[cfg(any(test, fuzzing))]
pub(crate) fn decode_as_each(packet: &[u8]) {
    if let Ok(request) = Request::decode(packet) {
        assert_eq!(Request::decode(request.encode().as_bytes()), Ok(request));
    }
    if let Ok(answer) = Answer::decode(packet) {
        assert_eq!(Answer::decode(answer.encode().as_bytes()), Ok(answer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heat::{PARTS_MAX, REGIONS_MAX};
    use crate::watch::TEXT_BYTES_MAX;

    fn snapshot() -> Snapshot {
        Snapshot {
            run: RunView { pid: 7, budget_bytes: 1 << 30, name: "long job".to_owned(), ..RunView::default() },
            command: "a\nb".to_owned(),
            counters: vec![("pgfault".to_owned(), 5)],
            latency: vec![(1023, 9), (u64::MAX, 1)],
            returns: vec![(15, 3)],
            processes: vec![ProcessView { pid: 8, command: "sort".to_owned(), ..ProcessView::default() }],
            devices: vec![DeviceView { size_bytes: 1 << 40, path: "/var/tmp".to_owned(), ..DeviceView::default() }],
        }
    }

    fn memory(regions: usize, parts: usize) -> Memory {
        let mapping = "\n".repeat(MAPPING_BYTES_MAX);
        let (most, of) = (u64::MAX, RegionView::default());
        let region = RegionView { start: most, size_bytes: most, resident_bytes: most, swapped_bytes: most, ..of };
        let region = RegionView { compressed_bytes: most, faults: most, major_faults: most, refaults: most, ..region };
        let region = RegionView { read_ahead_hits: most, read_ahead_unused: most, waited_us: most, mapping, ..region };
        let part = HeatView { start: most, size_bytes: most, resident_bytes: most, faults: most, major_faults: most };
        Memory { pid: most, interval_ns: most, regions: vec![region; regions], heat: vec![part; parts] }
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let path = || "/a \n b".to_owned();
        for request in [
            Request::Stat,
            Request::Regions { pid: 7 },
            Request::Memory(u64::MAX),
            Request::PageOut(4096),
            Request::Pause,
            Request::Resume,
            Request::Set { key: "swappiness".to_owned(), value: "6 0".to_owned() },
            Request::SwapOn { path: path(), size_bytes: Some(1 << 40), priority: None },
            Request::SwapOn { path: path(), size_bytes: None, priority: Some(i16::MAX) },
            Request::SwapOff { path: path(), mode: Some(SwapoffMode::Lookup) },
            Request::SwapOff { path: path(), mode: None },
            Request::StopSwapOff { path: path() },
        ] {
            assert_eq!(Request::decode(request.encode().as_bytes()), Ok(request));
        }
        let answers = [
            Answer::Done("two\nlines".to_owned()),
            Answer::Refused(String::new()),
            Answer::Snapshot(Box::new(snapshot())),
            Answer::Regions(Box::new(memory(2, 3))),
            Answer::Regions(Box::default()),
        ];
        for answer in answers {
            assert_eq!(Answer::decode(answer.encode().as_bytes()), Ok(answer));
        }
    }

    #[test]
    fn a_packet_of_another_version_is_named() {
        let refused = Request::decode(b"pagetide-watch 2\nstat\n").expect_err("we speak 1");
        assert!(refused.contains("version 1") && refused.contains("version 2"), "{refused}");
        assert!(Answer::decode(b"pagetide-watch 9\ndone\nx\n").is_err_and(|text| text.contains("version 9")));
    }

    #[test]
    fn what_is_cut_or_foreign_is_refused_and_breaks_nothing() {
        let packet = Answer::Snapshot(Box::new(snapshot())).encode();
        for end in 0..packet.len() {
            decode_as_each(&packet.as_bytes()[..end]);
        }
        for foreign in [
            &b""[..],
            b"\xff",
            b"pagetide-watch 1\nmemory\n",
            b"pagetide-watch 1\nmemory -1\n",
            b"pagetide-watch 1\nswapon auto -1 /x\n",
            b"GET / HTTP/1.0\n",
        ] {
            assert!(Request::decode(foreign).is_err(), "{foreign:?}");
        }
        let long = format!("{}{}", begin("snapshot"), "latency 1 1\n".repeat(LIST_MAX + 1));
        assert!(Answer::decode(long.as_bytes()).is_err());
    }

    #[test]
    fn the_largest_snapshot_fits_a_packet() {
        let text = "\n".repeat(TEXT_BYTES_MAX);
        let full = Snapshot {
            run: RunView { name: text.clone(), ..RunView::default() },
            command: text.clone(),
            counters: vec![("x".repeat(40), u64::MAX); crate::control::COUNTERS_MAX],
            latency: vec![(u64::MAX, u64::MAX); crate::control::LATENCY_BUCKETS],
            returns: vec![(u64::MAX, u64::MAX); pagetide_core::absences::BUCKETS],
            processes: vec![
                ProcessView { pid: u64::MAX, command: "x".repeat(16), ..ProcessView::default() };
                PROCESSES_MAX
            ],
            devices: vec![DeviceView { path: text, ..DeviceView::default() }; 8],
        };
        assert!(Answer::Snapshot(Box::new(full)).encode().len() <= PACKET_BYTES);
        let full = Answer::Regions(Box::new(memory(REGIONS_MAX, PARTS_MAX)));
        assert!(full.encode().len() <= PACKET_BYTES && Answer::decode(full.encode().as_bytes()) == Ok(full));
    }
}
