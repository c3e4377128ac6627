//! Scripts of page accesses under a memory cgroup limit: the language of the golden rows.
//!
//! A small exact host around the core: one task, one anonymous region, one asynchronous swap device, virtual time. It is not
//! the simulator proper (no CPUs, no queueing devices, no files); what it models is just what the counters of a
//! single-threaded run depend on. A script is a list of phases: `w` write all pages ascending, `r` read all, `b` read all
//! descending, `s` read every second page, `RN`/`WN` N random reads or writes.
//!
//! Invariants: the same spec gives the same result, and no access is answered wrongly: page versions are checked.

use pagetide_core::effect::{EFFECTS_MAX, Source};
use pagetide_core::event::{DeviceSpec, Outcome};
use pagetide_core::types::{Access, DeviceId, IoId, Nanos, PageIdx, PageRange, RegionId, SlotIdx, TaskId};
use pagetide_core::{Config, ConfigError, Core, Effect, Effects, Event, HostKind, MemoryMode, Touch};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;

const _: () = assert!(EFFECTS_MAX >= 64, "the host's loop relies on the core going on at its deadline");

/// Pages that a process has beside the region: page tables come on top, one per 512 pages of the region.
const PROCESS_PAGES: u32 = 36;
/// An access that hits, with the player's loop around it.
const HIT_NS: Nanos = 60;
/// A fault without I/O.
const FAULT_NS: Nanos = 900;
/// A page looked at by reclaim.
const SCAN_NS: Nanos = 120;
/// A page written out: slot, unmap, submission.
const PAGEOUT_NS: Nanos = 1_500;
/// A read: the loop device's thread, the file system, the disk; then each page of it.
const READ_NS: Nanos = 60_000;
const READ_PAGE_NS: Nanos = 2_000;
/// A write; then each page of it.
const WRITE_NS: Nanos = 100_000;
const WRITE_PAGE_NS: Nanos = 500;

/// The kernel gathers a group's statistics every two seconds.
const STAT_INTERVAL_NS: Nanos = 2_000_000_000;
/// When it does so first is chance; fitted to the row `b after w`, which alone among the golden rows depends on it.
const STAT_FIRST_NS: Nanos = 189_000_000;

/// One phase of a script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// `w`: write all pages, ascending.
    Write,
    /// `r`: read all pages, ascending.
    Read,
    /// `b`: read all pages, descending.
    Back,
    /// `s`: read every second page.
    Stride,
    /// `RN` and `WN`: N random accesses.
    Random(u64, Access),
}

/// What is to be played.
#[derive(Clone, Debug)]
pub struct ScriptSpec {
    /// The phases, separated by blanks.
    pub script: String,
    /// Pages of the region.
    pub pages: u32,
    /// The cgroup's limit in pages.
    pub memory: u32,
    /// A profile of the core.
    pub profile: String,
    /// Settings of the core, `KEY=VALUE`: `page-cluster`, `readahead`, `swappiness`...
    pub settings: Vec<String>,
    /// Swap devices: size in slots (0: as large as needed) and priority.
    pub devices: Vec<(u32, Option<i16>)>,
    /// Age of the statistics that reclaim decides by (the kernel: 2 s; 0: fresh, as when memory.stat is read often).
    pub stat_interval_ns: Nanos,
    /// When they are gathered first.
    pub stat_first_ns: Nanos,
    /// What they are before (inactive and active anonymous, inactive and active file pages): left by earlier runs in the
    /// same group.
    pub stat_start: [u32; 4],
}

impl ScriptSpec {
    /// A script on one device, with the defaults of a profile.
    pub fn new(script: &str, pages: u32, memory: u32, profile: &str) -> Self {
        Self {
            script: script.to_owned(),
            pages,
            memory,
            profile: profile.to_owned(),
            settings: Vec::new(),
            devices: vec![(0, None)],
            stat_interval_ns: STAT_INTERVAL_NS,
            stat_first_ns: STAT_FIRST_NS,
            stat_start: [0; 4],
        }
    }
}

/// Counter changes of one phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhaseResult {
    /// As it is spelled in the script.
    pub phase: String,
    /// Every counter by name, as it changed.
    pub vmstat: Vec<(&'static str, u64)>,
    /// Virtual time it took.
    pub elapsed_ns: Nanos,
    /// Reclaim calls: pages looked at, and how many calls looked at so many.
    pub reclaim_calls: Vec<(u64, u64)>,
}

impl PhaseResult {
    /// The change of one counter; 0 for a name that is none.
    pub fn get(&self, name: &str) -> u64 {
        self.vmstat.iter().find(|(n, _)| *n == name).map_or(0, |&(_, value)| value)
    }
}

/// A script that cannot be played.
#[derive(Debug, PartialEq, Eq)]
pub enum ScriptError {
    /// Not a phase.
    Phase {
        /// The word.
        word: String,
        /// Its place among the phases, from 1.
        place: usize,
    },
    /// Sizes that make no sense.
    Size(String),
    /// A wrong setting.
    Config(ConfigError),
    /// Memory and swap are used up.
    OutOfMemory {
        /// The phase in which it happened.
        phase: String,
    },
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Phase { word, place } => {
                write!(f, "phase {place}: `{word}` is none of w, r, b, s, RN, WN (as in `w r R40000`)")
            }
            Self::Size(what) => f.write_str(what),
            Self::Config(error) => error.fmt(f),
            Self::OutOfMemory { phase } => write!(f, "phase `{phase}`: out of memory and swap; give a larger device"),
        }
    }
}

impl std::error::Error for ScriptError {}

impl From<ConfigError> for ScriptError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

/// The phases of a script, with their spelling.
pub fn parse(script: &str) -> Result<Vec<(String, Phase)>, ScriptError> {
    let phase = |(at, word): (usize, &str)| {
        let error = || ScriptError::Phase { word: word.to_owned(), place: at + 1 };
        let phase = match word {
            "w" => Phase::Write,
            "r" => Phase::Read,
            "b" => Phase::Back,
            "s" => Phase::Stride,
            _ => {
                let access = match word.as_bytes().first() {
                    Some(b'R') => Access::Read,
                    Some(b'W') => Access::Write,
                    Some(_) | None => return Err(error()),
                };
                Phase::Random(word[1..].parse().map_err(|_| error())?, access)
            }
        };
        Ok((word.to_owned(), phase))
    };
    script.split_whitespace().enumerate().map(phase).collect()
}

/// Play a script.
pub fn run_script(spec: &ScriptSpec) -> Result<Vec<PhaseResult>, ScriptError> {
    let phases = parse(&spec.script)?;
    let mut player = Player::new(spec)?;
    phases.into_iter().map(|(word, phase)| player.play(word, phase)).collect()
}

/// An I/O under way: when it ends, its number, and what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Ending {
    at: Nanos,
    number: u64,
    io: u32,
    first: u32,
    len: u32,
    place: (u8, u32),
    write: bool,
}

struct Player {
    core: Core,
    pages: u32,
    now: Nanos,
    endings: BinaryHeap<Reverse<Ending>>,
    numbers: u64,
    /// When the device's read and write sides are free.
    read_free: Nanos,
    write_free: Nanos,
    /// What the program wrote last, what the frames hold, what the slots hold.
    truth: Vec<u32>,
    frames: Vec<u32>,
    slots: Vec<Vec<u32>>,
    version: u32,
    woken: bool,
    out_of_memory: bool,
    random: u64,
    /// Reclaim calls by pages looked at; the call going on; limit hits so far.
    scans: std::collections::BTreeMap<u64, u64>,
    call: u64,
    limit_hits: u64,
}

impl Player {
    fn new(spec: &ScriptSpec) -> Result<Self, ScriptError> {
        let overhead = spec.pages.div_ceil(512) + PROCESS_PAGES;
        if spec.pages == 0 || spec.pages > 1 << 26 {
            return Err(ScriptError::Size(format!("pages: {} is not in 1..=67108864", spec.pages)));
        }
        if spec.memory < overhead + 64 {
            return Err(ScriptError::Size(format!("memory: {} pages is less than {}", spec.memory, overhead + 64)));
        }
        let mut config = Config::profile(&spec.profile, HostKind::Exact)?;
        for setting in &spec.settings {
            config.set(setting)?;
        }
        let needed = spec.pages.saturating_mul(4).max(4096);
        let sizes: Vec<u32> = spec.devices.iter().map(|&(size, _)| if size == 0 { needed } else { size }).collect();
        let total: u32 = sizes.iter().map(|size| size.next_multiple_of(512)).sum();
        let config = config
            .memory(MemoryMode::Memcg { v1: true }, spec.pages, spec.memory - overhead)
            .slots_max(total)
            .stat_interval_ns(spec.stat_interval_ns, spec.stat_first_ns, spec.stat_start);
        let mut player = Self {
            core: Core::new(config),
            pages: spec.pages,
            now: 0,
            endings: BinaryHeap::new(),
            numbers: 0,
            read_free: 0,
            write_free: 0,
            truth: vec![0; spec.pages as usize],
            frames: vec![0; spec.pages as usize],
            slots: sizes.iter().map(|&size| vec![0; size as usize]).collect(),
            version: 0,
            woken: false,
            out_of_memory: false,
            random: 88_172_645_463_325_252,
            scans: std::collections::BTreeMap::new(),
            call: 0,
            limit_hits: 0,
        };
        player.event(Event::RegionAdded { region: RegionId(0), range: PageRange::new(PageIdx(0), spec.pages) });
        for (at, (&slots, &(_, priority))) in sizes.iter().zip(&spec.devices).enumerate() {
            let device = DeviceId(u8::try_from(at).map_err(|_| ScriptError::Size("too many devices".to_owned()))?);
            let spec = DeviceSpec { slots, priority, rotational: false, synchronous: false, inherited: false };
            player.event(Event::DeviceAdded { device, spec });
        }
        Ok(player)
    }

    fn play(&mut self, word: String, phase: Phase) -> Result<PhaseResult, ScriptError> {
        let before = self.core.vmstat().clone();
        let start = self.now;
        self.scans.clear();
        let n = self.pages;
        let mut each = |page: u32, access: Access| {
            if self.access(page, access) { Ok(()) } else { Err(ScriptError::OutOfMemory { phase: word.clone() }) }
        };
        match phase {
            Phase::Write => (0..n).try_for_each(|p| each(p, Access::Write))?,
            Phase::Read => (0..n).try_for_each(|p| each(p, Access::Read))?,
            Phase::Back => (0..n).rev().try_for_each(|p| each(p, Access::Read))?,
            Phase::Stride => (0..n).step_by(2).try_for_each(|p| each(p, Access::Read))?,
            Phase::Random(count, access) => {
                let mut x = self.random;
                for _ in 0..count {
                    x ^= x << 13;
                    x ^= x >> 7;
                    x ^= x << 17;
                    let page = u32::try_from(x % u64::from(n)).expect("less than a u32");
                    if !self.access(page, access) {
                        return Err(ScriptError::OutOfMemory { phase: word });
                    }
                }
                self.random = x;
            }
        }
        self.end_call();
        let vmstat =
            self.core.vmstat().iter().zip(before.iter()).map(|((name, new), (_, old))| (name, new - old)).collect();
        let reclaim_calls = self.scans.iter().map(|(&size, &times)| (size, times)).collect();
        Ok(PhaseResult { phase: word, vmstat, elapsed_ns: self.now - start, reclaim_calls })
    }

    /// One access, with all that its fault brings. False: out of memory.
    fn access(&mut self, page: u32, access: Access) -> bool {
        self.now += HIT_NS;
        self.end_ios();
        while self.core.touch(PageIdx(page), access) == Touch::Fault {
            self.now += FAULT_NS;
            self.woken = false;
            self.event(Event::Fault { page: PageIdx(page), access, task: TaskId(0) });
            while !self.woken {
                self.step();
            }
            if self.out_of_memory {
                return false;
            }
        }
        let at = page as usize;
        assert_eq!(self.frames[at], self.truth[at], "page {page} has the wrong content");
        if access == Access::Write {
            self.version = self.version.wrapping_add(1);
            self.frames[at] = self.version;
            self.truth[at] = self.version;
        }
        true
    }

    /// The task waits: go on to what happens next.
    fn step(&mut self) {
        self.end_ios();
        if self.woken {
            return;
        }
        if self.core.deadline().is_some_and(|at| at <= self.now) {
            self.event(Event::Timeout);
            return;
        }
        let Some(&Reverse(next)) = self.endings.peek() else { panic!("I9: the task waits for nothing") };
        self.now = self.now.max(next.at);
        self.end_ios();
    }

    /// Deliver the I/Os that have ended.
    fn end_ios(&mut self) {
        while let Some(&Reverse(ending)) = self.endings.peek() {
            if ending.at > self.now {
                return;
            }
            self.endings.pop();
            let pages = PageRange::new(PageIdx(ending.first), ending.len);
            let (device, slot) = ending.place;
            for (i, page) in pages.pages().enumerate() {
                let content = &mut self.slots[usize::from(device)][slot as usize + i];
                let frame = &mut self.frames[page.0 as usize];
                if ending.write {
                    *content = *frame;
                } else {
                    *frame = *content;
                }
            }
            self.event(Event::IoDone { io: IoId(ending.io), range: pages, outcome: Outcome::Done });
        }
    }

    fn event(&mut self, event: Event) {
        let before = (self.scanned(), self.written());
        let mut out = Effects::new();
        self.core.handle(self.now, event, &mut out);
        let scanned = self.scanned() - before.0;
        self.note_calls(scanned);
        self.now += scanned * SCAN_NS + (self.written() - before.1) * PAGEOUT_NS;
        for &effect in out.as_slice() {
            self.take(effect);
        }
    }

    /// Split what was looked at into reclaim calls: each begins with a charge that hit the limit.
    fn note_calls(&mut self, scanned: u64) {
        let limit_hits = self.core.vmstat().get(pagetide_core::Counter::max);
        let begun = limit_hits - self.limit_hits;
        self.limit_hits = limit_hits;
        match scanned.checked_div(begun) {
            Some(each) => {
                self.end_call();
                if begun > 1 {
                    *self.scans.entry(each).or_insert(0) += begun - 1;
                }
                self.call = scanned - each * (begun - 1);
            }
            None => self.call += scanned,
        }
    }

    fn end_call(&mut self) {
        if self.call > 0 {
            *self.scans.entry(self.call).or_insert(0) += 1;
        }
        self.call = 0;
    }

    fn scanned(&self) -> u64 {
        self.core.vmstat().get(pagetide_core::Counter::pgscan_anon)
    }

    fn written(&self) -> u64 {
        self.core.vmstat().get(pagetide_core::Counter::pswpout)
    }

    fn take(&mut self, effect: Effect) {
        match effect {
            Effect::Read { io, device, slot, range, .. } => {
                let cost = READ_NS + u64::from(range.len) * READ_PAGE_NS;
                // Requests of one window overlap; the device takes the next when half of this one is done.
                let start = self.now.max(self.read_free);
                self.read_free = start + cost / 2;
                self.begin(start + cost, io, device, slot, range, false);
            }
            Effect::Write { io, device, slot, range } => {
                let cost = WRITE_NS + u64::from(range.len) * WRITE_PAGE_NS;
                let start = self.now.max(self.write_free);
                self.write_free = start + cost / 2;
                self.begin(start + cost, io, device, slot, range, true);
            }
            Effect::Map { range, source: Source::Zero, .. } => {
                range.pages().for_each(|p| self.frames[p.0 as usize] = 0);
            }
            // Page tables are the core's own; a frame's content is not needed after its drop.
            Effect::Map { source: Source::Frame, .. } | Effect::Unmap { .. } => {}
            Effect::Drop { range } => range.pages().for_each(|p| self.frames[p.0 as usize] = u32::MAX),
            Effect::Wake { .. } => self.woken = true,
            Effect::Poison { range } => {
                panic!("page {} is lost, on a device without faults", range.first.0)
            }
            Effect::OutOfMemory { .. } => {
                self.woken = true;
                self.out_of_memory = true;
            }
        }
    }

    fn begin(&mut self, at: Nanos, io: IoId, device: DeviceId, slot: SlotIdx, range: PageRange, write: bool) {
        self.numbers += 1;
        self.endings.push(Reverse(Ending {
            at,
            number: self.numbers,
            io: io.0,
            first: range.first.0,
            len: range.len,
            place: (device.0, slot.0),
            write,
        }));
    }
}
