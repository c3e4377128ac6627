//! A record of all events of a run, from its start: what it takes to have the same run again.
//!
//! ```text
//! magic     8   "PTEVENT1"
//! length    4   of the text (little-endian, as all numbers of fixed size)
//! text          the configuration: lines `key=value`
//! sum       4   of all bytes before it
//! event     1   kind; the number of its words follows from it
//!           n   nanoseconds since the event before (signed), then the words, each in 7-bit groups, lowest first
//!           4   hash of all effects before this event
//!           4   sum of all bytes before it
//! ...
//! end       1   0: the process ended; 255: the record was full, and the run went on
//! ```
//!
//! An event is recorded before the core handles it, so the last one of a record is the one that broke an invariant. The first
//! byte of an event is written last: a process that is killed in the middle leaves a record that ends before it.

use pagetide_core::config::{Config, ConfigError, HostKind, LiveSetting, MemoryMode};
use pagetide_core::effect::EffectHash;
use pagetide_core::event::{Advice, DeviceSpec, Event, FileSpec, MoveAnswer, Outcome};
use pagetide_core::types::{Access, DeviceId, IoId, Nanos, PageIdx, PageRange, RegionId, SlotIdx, TaskId};

/// First bytes of the format.
pub const MAGIC: [u8; 8] = *b"PTEVENT1";
/// Bytes of one event at most: its kind, a time and words in up to 10 bytes each, hash and sum.
pub const EVENT_BYTES_MAX: usize = 1 + (1 + WORDS_MAX) * 10 + 8;
/// Words of an event at most.
const WORDS_MAX: usize = 7;
/// The record ends here, because the process did.
const END: u8 = 0;
/// The record ends here, because its file is full.
const FULL: u8 = 255;
/// Words of each kind of event, from kind 1 on.
const WORDS: [usize; 27] = [3, 7, 3, 3, 3, 3, 1, 2, 4, 3, 3, 3, 4, 2, 2, 3, 1, 4, 2, 1, 1, 4, 0, 0, 1, 2, 4];

/// What a live core is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveConfig {
    /// `profile`, and knobs in order.
    pub settings: Vec<(String, String)>,
    /// Pages of the table.
    pub pages_max: u32,
    /// Pages of the budget at the start.
    pub budget_pages: u32,
    /// Slots of all devices.
    pub slots: u32,
}

impl LiveConfig {
    /// The core's configuration: the profile that `settings` name, else ours, then their knobs in order.
    pub fn build(&self) -> Result<Config, ConfigError> {
        let profile = self.settings.iter().rfind(|(key, _)| key == "profile").map_or("pagetide", |(_, name)| name);
        let config = Config::profile(profile, HostKind::Blind)?;
        let mut config = config.memory(MemoryMode::Watermarks, self.pages_max, self.budget_pages).slots_max(self.slots);
        for (key, value) in self.settings.iter().filter(|(key, _)| key != "profile") {
            config.set(&format!("{key}={value}"))?;
        }
        Ok(config)
    }

    fn encode(&self) -> String {
        let Self { settings, pages_max, budget_pages, slots } = self;
        let settings: String = settings.iter().map(|(key, value)| format!("set={key} {value}\n")).collect();
        format!("pages={pages_max}\nbudget={budget_pages}\nslots={slots}\n{settings}")
    }

    fn decode(text: &str) -> Option<Self> {
        let mut this = Self { settings: Vec::new(), pages_max: 0, budget_pages: 0, slots: 0 };
        for line in text.lines() {
            match line.split_once('=')? {
                ("pages", value) => this.pages_max = value.parse().ok()?,
                ("budget", value) => this.budget_pages = value.parse().ok()?,
                ("slots", value) => this.slots = value.parse().ok()?,
                ("set", setting) => {
                    let (key, value) = setting.split_once(' ')?;
                    this.settings.push((key.to_owned(), value.to_owned()));
                }
                _ => return None,
            }
        }
        (this.pages_max > 0).then_some(this)
    }
}

/// Where a record goes. All bytes behind what was put are zero.
pub trait Tape: Send + std::fmt::Debug {
    /// Append these bytes, the first one last. False: there is no room for them and one byte more; nothing was appended.
    fn put(&mut self, bytes: &[u8]) -> bool;
    /// Append the one byte that there is always room for.
    fn put_last(&mut self, byte: u8);
}

/// Writes a record.
#[derive(Debug)]
pub struct RecordWriter {
    tape: Option<Box<dyn Tape>>,
    sum: Sum,
    now: Nanos,
}

impl RecordWriter {
    /// Begins a record; a tape without room for its head stays empty.
    pub fn new(mut tape: Box<dyn Tape>, config: &LiveConfig) -> Self {
        let text = config.encode();
        let mut head = MAGIC.to_vec();
        head.extend(u32::try_from(text.len()).expect("a few knobs").to_le_bytes());
        head.extend(text.as_bytes());
        let mut sum = Sum::new();
        sum.add(&head);
        head.extend(sum.0.to_le_bytes());
        sum.add(&head[head.len() - 4..]);
        let fits = tape.put(&head);
        Self { tape: fits.then_some(tape), sum, now: 0 }
    }

    pub(crate) fn put(&mut self, now: Nanos, event: Event, effects: EffectHash) {
        let Some(tape) = &mut self.tape else { return };
        let (kind, words) = to_words(event);
        let mut line = Line { bytes: [0; EVENT_BYTES_MAX], len: 0 };
        line.push(&[kind]);
        let passed = now.wrapping_sub(self.now).cast_signed();
        line.push_word((passed << 1 ^ passed >> 63).cast_unsigned());
        words[..words_of(kind).expect("a kind of ours")].iter().for_each(|&word| line.push_word(word));
        line.push(&short(effects).to_le_bytes());
        let mut sum = self.sum;
        sum.add(line.as_slice());
        line.push(&sum.0.to_le_bytes());
        if !tape.put(line.as_slice()) {
            tape.put_last(FULL);
            self.tape = None;
            return;
        }
        sum.add(&line.as_slice()[line.len - 4..]);
        self.sum = sum;
        self.now = now;
    }
}

/// An event under construction.
#[derive(Debug)]
struct Line {
    bytes: [u8; EVENT_BYTES_MAX],
    len: usize,
}

impl Line {
    fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    fn push_word(&mut self, mut word: u64) {
        loop {
            let group = (word & 0x7f).to_le_bytes()[0];
            word >>= 7;
            self.push(&[if word > 0 { group | 0x80 } else { group }]);
            if word == 0 {
                return;
            }
        }
    }
}

/// FNV-1a, 32 bit: finds damage, not malice.
#[derive(Clone, Copy, Debug)]
struct Sum(u32);

impl Sum {
    const fn new() -> Self {
        Self(0x811c_9dc5)
    }

    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        }
    }
}

/// The part of a hash that records keep.
pub fn short(hash: EffectHash) -> u32 {
    u32::try_from((hash.value() ^ hash.value() >> 32) & u64::from(u32::MAX)).expect("masked")
}

/// Why a record cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordError {
    /// Where, in bytes from the start.
    pub at: usize,
    /// What is wrong.
    pub what: &'static str,
}

impl std::fmt::Display for RecordError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "byte {}: {}", self.at, self.what)
    }
}

impl std::error::Error for RecordError {}

/// One recorded event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// When the core was told.
    pub now: Nanos,
    /// What it was told.
    pub event: Event,
    /// [`short`] hash of all effects before it.
    pub effects: u32,
}

/// Reads a record.
#[derive(Debug)]
pub struct RecordReader<'a> {
    bytes: &'a [u8],
    at: usize,
    sum: Sum,
    config: LiveConfig,
    now: Nanos,
    is_full: bool,
}

const CUT: &str = "the record is cut short here";
const DAMAGED: &str = "the record is damaged at or before this place";

impl<'a> RecordReader<'a> {
    /// Reads the head.
    ///
    /// # Errors
    /// Not this format, cut short, or damaged.
    pub fn new(bytes: &'a [u8]) -> Result<Self, RecordError> {
        let config = LiveConfig { settings: Vec::new(), pages_max: 0, budget_pages: 0, slots: 0 };
        let mut this = Self { bytes, at: 0, sum: Sum::new(), config, now: 0, is_full: false };
        if !bytes.starts_with(&MAGIC) {
            return Err(this.error("not a record of events: the magic PTEVENT1 is missing"));
        }
        this.take(MAGIC.len())?;
        let len = usize::try_from(this.number()?).unwrap_or(usize::MAX);
        let text = this.take(len)?;
        this.check_sum()?;
        let text = std::str::from_utf8(text).ok().and_then(LiveConfig::decode);
        this.config = text.ok_or_else(|| this.error("the configuration is not one of this version's"))?;
        Ok(this)
    }

    /// What the core was made of.
    pub const fn config(&self) -> &LiveConfig {
        &self.config
    }

    /// True if the run went on when the record was full.
    pub const fn is_full(&self) -> bool {
        self.is_full
    }

    /// The next event; none at the end.
    ///
    /// # Errors
    /// Cut short, or damaged.
    pub fn next_event(&mut self) -> Result<Option<Recorded>, RecordError> {
        let kind = *self.bytes.get(self.at).ok_or_else(|| self.error(CUT))?;
        if kind == END || kind == FULL {
            // Behind the end lies at most an event that was being written. More says that it is none.
            if self.bytes[self.at + 1..].iter().skip(EVENT_BYTES_MAX).any(|&byte| byte != 0) {
                return Err(self.error(DAMAGED));
            }
            self.is_full = kind == FULL;
            return Ok(None);
        }
        let count = words_of(kind).ok_or_else(|| self.error(DAMAGED))?;
        self.take(1)?;
        let passed = self.word()?;
        let passed = (passed >> 1).cast_signed() ^ -(passed & 1).cast_signed();
        self.now = self.now.wrapping_add(passed.cast_unsigned());
        let mut words = [0; WORDS_MAX];
        for word in &mut words[..count] {
            *word = self.word()?;
        }
        let effects = self.number()?;
        self.check_sum()?;
        let event = to_event(kind, words).ok_or_else(|| self.error(DAMAGED))?;
        Ok(Some(Recorded { now: self.now, event, effects }))
    }

    const fn error(&self, what: &'static str) -> RecordError {
        RecordError { at: self.at, what }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], RecordError> {
        let end = self.at.checked_add(len).filter(|&end| end <= self.bytes.len());
        let bytes = &self.bytes[self.at..end.ok_or_else(|| self.error(CUT))?];
        self.at += len;
        self.sum.add(bytes);
        Ok(bytes)
    }

    fn number(&mut self) -> Result<u32, RecordError> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().expect("four bytes were taken")))
    }

    fn check_sum(&mut self) -> Result<(), RecordError> {
        let sum = self.sum.0;
        // A fuzzer would not get past the first sum, and what it is to try lies behind it.
        if self.number()? == sum || cfg!(fuzzing) { Ok(()) } else { Err(self.error(DAMAGED)) }
    }

    fn word(&mut self) -> Result<u64, RecordError> {
        let mut word = 0;
        for shift in (0..64).step_by(7) {
            let group = self.take(1)?[0];
            word |= u64::from(group & 0x7f) << shift;
            if group & 0x80 == 0 {
                return Ok(word);
            }
        }
        Err(self.error(DAMAGED))
    }
}

/// Words of an event of this kind.
fn words_of(kind: u8) -> Option<usize> {
    WORDS.get(usize::from(kind).checked_sub(1)?).copied()
}

/// Kind and words; [`to_event`] is the way back.
fn to_words(event: Event) -> (u8, [u64; WORDS_MAX]) {
    let mut words = [0; WORDS_MAX];
    let mut set = |values: &[u32]| words.iter_mut().zip(values).for_each(|(word, &value)| *word = u64::from(value));
    let kind = match event {
        Event::RegionAdded { region, range } => (1, set(&[region.0, range.first.0, range.len])),
        Event::FileAdded { region, range, device, spec } => {
            let FileSpec { ra_pages, io_pages, executable } = spec;
            let device = u32::from(device.0);
            (2, set(&[region.0, range.first.0, range.len, device, ra_pages, io_pages, u32::from(executable)]))
        }
        Event::FileRead { range, task } => (3, set(&[range.first.0, range.len, task.0])),
        Event::FileWrite { range, task } => (4, set(&[range.first.0, range.len, task.0])),
        Event::RegionResized { region, range } => (5, set(&[region.0, range.first.0, range.len])),
        Event::RegionSplit { region, at, upper } => (6, set(&[region.0, at.0, upper.0])),
        Event::RegionRemoved { region } => (7, set(&[region.0])),
        Event::Adopted { range } => (8, set(&[range.first.0, range.len])),
        Event::Inherited { range, device, slot } => (9, set(&[range.first.0, range.len, u32::from(device.0), slot.0])),
        Event::Fault { page, access, task } => (10, set(&[page.0, access as u32, task.0])),
        Event::Mapped { range, answer } => (11, set(&[range.first.0, range.len, answer as u32])),
        Event::Unmapped { range, answer } => (12, set(&[range.first.0, range.len, answer as u32])),
        Event::IoDone { io, range, outcome } => (13, set(&[io.0, range.first.0, range.len, outcome as u32])),
        Event::Discarded { range } => (14, set(&[range.first.0, range.len])),
        Event::Referenced { range } => (15, set(&[range.first.0, range.len])),
        Event::Advice { range, advice } => (16, set(&[range.first.0, range.len, advice as u32])),
        Event::BudgetChanged { pages } => (17, set(&[pages])),
        Event::DeviceAdded { device, spec } => {
            let DeviceSpec { slots, priority, rotational, synchronous, inherited } = spec;
            let priority = priority.map_or(0, |priority| 1 + u32::from(priority.cast_unsigned()));
            let flags = u32::from(rotational) | u32::from(synchronous) << 1 | u32::from(inherited) << 2;
            (18, set(&[u32::from(device.0), slots, priority, flags]))
        }
        Event::DeviceGrown { device, slots } => (19, set(&[u32::from(device.0), slots])),
        Event::Swapoff { device } => (20, set(&[u32::from(device.0)])),
        Event::Hold { on } => (21, set(&[u32::from(on)])),
        Event::SlotsPinned { device, slot, len, pin } => (22, set(&[u32::from(device.0), slot.0, len, u32::from(pin)])),
        Event::Writeback => (23, ()),
        Event::Timeout => (24, ()),
        Event::SwapoffStopped { device } => (25, set(&[u32::from(device.0)])),
        Event::KnobSet { setting } => (26, set(&[setting.knob, setting.value])),
        Event::SlotsBacked { device, slot, len, is_backed } => {
            (27, set(&[u32::from(device.0), slot.0, len, u32::from(is_backed)]))
        }
    };
    (kind.0, words)
}

/// The event of a kind and its words; none if there is no such event.
fn to_event(kind: u8, words: [u64; WORDS_MAX]) -> Option<Event> {
    let word = |at: usize| u32::try_from(words[at]).ok();
    let range = |at: usize| {
        let (first, len) = (word(at)?, word(at + 1)?);
        first.checked_add(len).map(|_end| PageRange::new(PageIdx(first), len))
    };
    let device = |at: usize| u8::try_from(words[at]).ok().map(DeviceId);
    let flag = |at: usize| (words[at] < 2).then_some(words[at] == 1);
    let task = |at: usize| word(at).map(TaskId);
    let region = |at: usize| word(at).map(RegionId);
    let slot = |at: usize| word(at).map(SlotIdx);
    Some(match kind {
        1 => Event::RegionAdded { region: region(0)?, range: range(1)? },
        2 => {
            let spec = FileSpec { ra_pages: word(4)?, io_pages: word(5)?, executable: flag(6)? };
            Event::FileAdded { region: region(0)?, range: range(1)?, device: device(3)?, spec }
        }
        3 => Event::FileRead { range: range(0)?, task: task(2)? },
        4 => Event::FileWrite { range: range(0)?, task: task(2)? },
        5 => Event::RegionResized { region: region(0)?, range: range(1)? },
        6 => Event::RegionSplit { region: region(0)?, at: PageIdx(word(1)?), upper: region(2)? },
        7 => Event::RegionRemoved { region: region(0)? },
        8 => Event::Adopted { range: range(0)? },
        9 => Event::Inherited { range: range(0)?, device: device(2)?, slot: slot(3)? },
        10 => Event::Fault { page: PageIdx(word(0)?), access: pick(&ACCESSES, words[1])?, task: task(2)? },
        11 => Event::Mapped { range: range(0)?, answer: pick(&ANSWERS, words[2])? },
        12 => Event::Unmapped { range: range(0)?, answer: pick(&ANSWERS, words[2])? },
        13 => Event::IoDone { io: IoId(word(0)?), range: range(1)?, outcome: pick(&OUTCOMES, words[3])? },
        14 => Event::Discarded { range: range(0)? },
        15 => Event::Referenced { range: range(0)? },
        16 => Event::Advice { range: range(0)?, advice: pick(&ADVICE, words[2])? },
        17 => Event::BudgetChanged { pages: word(0)? },
        18 => {
            let priority = match words[2] {
                0 => None,
                above => Some(u16::try_from(above - 1).ok()?.cast_signed()),
            };
            let flags = (words[3] < 8).then_some(words[3])?;
            let (rotational, synchronous, inherited) = (flags & 1 > 0, flags & 2 > 0, flags & 4 > 0);
            let spec = DeviceSpec { slots: word(1)?, priority, rotational, synchronous, inherited };
            Event::DeviceAdded { device: device(0)?, spec }
        }
        19 => Event::DeviceGrown { device: device(0)?, slots: word(1)? },
        20 => Event::Swapoff { device: device(0)? },
        21 => Event::Hold { on: flag(0)? },
        22 => Event::SlotsPinned { device: device(0)?, slot: slot(1)?, len: word(2)?, pin: flag(3)? },
        23 => Event::Writeback,
        24 => Event::Timeout,
        25 => Event::SwapoffStopped { device: device(0)? },
        26 => Event::KnobSet { setting: LiveSetting { knob: word(0)?, value: word(1)? } },
        27 => Event::SlotsBacked { device: device(0)?, slot: slot(1)?, len: word(2)?, is_backed: flag(3)? },
        _ => return None,
    })
}

/// In the order of their numbers.
const ACCESSES: [Access; 2] = [Access::Read, Access::Write];
const ANSWERS: [MoveAnswer; 5] =
    [MoveAnswer::Done, MoveAnswer::Clean, MoveAnswer::Present, MoveAnswer::Gone, MoveAnswer::Busy];
const OUTCOMES: [Outcome; 5] = [Outcome::Done, Outcome::Unchanged, Outcome::Zero, Outcome::Failed, Outcome::NoSpace];
const ADVICE: [Advice; 8] = [
    Advice::Normal,
    Advice::Sequential,
    Advice::Random,
    Advice::WillNeed,
    Advice::Cold,
    Advice::PageOut,
    Advice::Lock,
    Advice::Unlock,
];

fn pick<T: Copy>(all: &[T], number: u64) -> Option<T> {
    all.get(usize::try_from(number).ok()?).copied()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Memory of so many bytes.
    #[derive(Clone, Debug)]
    struct Buffer(Arc<Mutex<(Vec<u8>, usize)>>);

    impl Tape for Buffer {
        fn put(&mut self, bytes: &[u8]) -> bool {
            let mut inner = self.0.lock().expect("one thread");
            let fits = inner.0.len() + bytes.len() < inner.1;
            if fits {
                inner.0.extend(bytes);
            }
            fits
        }

        fn put_last(&mut self, byte: u8) {
            self.0.lock().expect("one thread").0.push(byte);
        }
    }

    fn events() -> Vec<Event> {
        let range = PageRange::new(PageIdx(300), 70_000);
        let (device, region, slot, task) = (DeviceId(40), RegionId(9), SlotIdx(1 << 30), TaskId(u32::MAX));
        let spec =
            DeviceSpec { slots: 5, priority: Some(32_767), rotational: true, synchronous: false, inherited: true };
        let file = FileSpec { ra_pages: 32, io_pages: 256, executable: true };
        let mut all = vec![
            Event::RegionAdded { region, range },
            Event::FileAdded { region, range, device, spec: file },
            Event::FileRead { range, task },
            Event::FileWrite { range, task },
            Event::RegionResized { region, range },
            Event::RegionSplit { region, at: PageIdx(7), upper: RegionId(10) },
            Event::RegionRemoved { region },
            Event::Adopted { range },
            Event::Inherited { range, device, slot },
            Event::Discarded { range },
            Event::Referenced { range },
            Event::BudgetChanged { pages: 0 },
            Event::DeviceAdded { device, spec },
            Event::DeviceAdded { device, spec: DeviceSpec { priority: None, ..spec } },
            Event::DeviceGrown { device, slots: 77 },
            Event::Swapoff { device },
            Event::SwapoffStopped { device },
            Event::KnobSet { setting: LiveSetting { knob: 1, value: 5 } },
            Event::Hold { on: true },
            Event::Hold { on: false },
            Event::SlotsPinned { device, slot, len: 3, pin: true },
            Event::SlotsBacked { device, slot, len: 512, is_backed: false },
            Event::Writeback,
            Event::Timeout,
        ];
        all.extend(ACCESSES.map(|access| Event::Fault { page: PageIdx(1), access, task }));
        all.extend(ANSWERS.map(|answer| Event::Mapped { range, answer }));
        all.extend(ANSWERS.map(|answer| Event::Unmapped { range, answer }));
        all.extend(OUTCOMES.map(|outcome| Event::IoDone { io: IoId(16_384), range, outcome }));
        all.extend(ADVICE.map(|advice| Event::Advice { range, advice }));
        all
    }

    fn config() -> LiveConfig {
        let settings = vec![("profile".to_owned(), "linux-6.18".to_owned()), ("swappiness".to_owned(), "7".to_owned())];
        LiveConfig { settings, pages_max: 1024, budget_pages: 512, slots: 99 }
    }

    /// The record of these events, 1 us apart but for the last, which is earlier than the one before.
    fn record(room: usize) -> Vec<u8> {
        let buffer = Buffer(Arc::new(Mutex::new((Vec::new(), room))));
        let mut writer = RecordWriter::new(Box::new(buffer.clone()), &config());
        let all = events();
        for (n, &event) in (0..).zip(&all) {
            writer.put(if n + 1 == all.len() { 5 } else { 1_000 * n as u64 }, event, EffectHash::new());
        }
        let mut bytes = buffer.0.lock().expect("one thread").0.clone();
        bytes.push(0);
        bytes
    }

    fn read(bytes: &[u8]) -> Result<(Vec<Recorded>, bool), RecordError> {
        let mut reader = RecordReader::new(bytes)?;
        let mut all = Vec::new();
        while let Some(recorded) = reader.next_event()? {
            all.push(recorded);
        }
        Ok((all, reader.is_full()))
    }

    #[test]
    fn every_event_is_read_back_as_it_was_written() {
        let bytes = record(1 << 20);
        assert_eq!(RecordReader::new(&bytes).expect("own format").config(), &config());
        let (read, is_full) = read(&bytes).expect("own format");
        assert_eq!(read.iter().map(|recorded| recorded.event).collect::<Vec<_>>(), events());
        assert_eq!((read[3].now, read.last().map(|last| last.now), is_full), (3_000, Some(5), false));
    }

    #[test]
    fn every_cut_and_every_changed_byte_is_an_error() {
        let bytes = record(1 << 20);
        for len in 0..bytes.len() {
            assert!(read(&bytes[..len]).is_err(), "cut to {len}");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            match read(&damaged) {
                Err(_) => {}
                // Its kind is that of an end now, as if it had been the one that was being written.
                Ok((left, _)) => {
                    assert!(damaged[at] == END && bytes.len() - at <= EVENT_BYTES_MAX, "byte {at} changed");
                    assert_eq!(left[..], read(&bytes).expect("own format").0[..left.len()]);
                }
            }
        }
    }

    #[test]
    fn a_full_record_ends_where_it_was_full_and_says_so() {
        let (read, is_full) = read(&record(200)).expect("own format");
        assert!(is_full && !read.is_empty() && read.len() < events().len());
        assert_eq!(read[..], self::read(&record(1 << 20)).expect("own format").0[..read.len()]);
    }
}
