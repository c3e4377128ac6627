//! Workloads of one's own: a TOML text says the machine, the devices and the tasks.
//!
//! Every error names its line and its key, and an unknown key the nearest known one. `docs/sim.md` shows the whole
//! language; a test holds its example and the tables of keys below against each other.

mod files;
mod host;

use pagetide_core::types::Nanos;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::device::{self, DeviceParams};
use crate::nearest::hint;
use crate::pattern::Pattern;
use crate::rng::Zipf;
use crate::units;
use crate::world::HostModel;

pub use files::{FILE_KEYS, FileSetup, FileUse};
pub use host::HOST_KEYS;

/// What is wrong with a workload, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct WorkloadError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong.
    pub what: String,
}

/// Who has the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// A memory cgroup: reclaim when the limit is hit.
    Group,
    /// A whole machine: watermarks and kswapd.
    Machine,
}

/// A swap device of the workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSetup {
    /// Its times.
    pub params: DeviceParams,
    /// Its size.
    pub pages: u32,
    /// Its swap priority.
    pub priority: Option<i16>,
}

/// Some equal tasks.
#[derive(Clone, Debug)]
pub struct TaskSetup {
    /// For the report.
    pub name: String,
    /// How many.
    pub count: u32,
    /// Region of each, or of all if shared.
    pub pages: u32,
    /// One region for all of them.
    pub shared: bool,
    /// Instead of a region of anonymous memory.
    pub file: Option<FileUse>,
    /// Order of pages.
    pub pattern: Pattern,
    /// Of 100 accesses, so many are stores.
    pub write_percent: u32,
    /// Writes every page once before the pattern begins, and its accesses count only from then.
    pub fill: bool,
    /// CPU time before each access.
    pub think_ns: Nanos,
    /// CPU time of an access that hits.
    pub access_ns: Nanos,
    /// Ends after so many accesses; `None`: when the duration is over.
    pub accesses: Option<u64>,
    /// Begins then.
    pub start_ns: Nanos,
}

impl TaskSetup {
    /// Regions of anonymous memory that the group has.
    pub const fn regions(&self) -> u32 {
        match (self.file.is_some(), self.shared) {
            (true, _) => 0,
            (false, true) => 1,
            (false, false) => self.count,
        }
    }
}

/// A knob of the core to be set: key, value, line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Name in the knob table.
    pub key: String,
    /// Value as text.
    pub value: String,
    /// Where.
    pub line: usize,
}

/// A whole workload.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Decides every random choice.
    pub seed: u64,
    /// The kernel, or ours.
    pub profile: String,
    /// Where the text says so.
    pub profile_line: usize,
    /// Memory.
    pub memory_pages: u32,
    /// Of whom.
    pub memory_kind: MemoryKind,
    /// Who plays the host.
    pub host: HostModel,
    /// CPUs.
    pub cpus: u32,
    /// Ends then at the latest.
    pub duration_ns: Nanos,
    /// Knobs.
    pub settings: Vec<Setting>,
    /// Swap devices.
    pub devices: Vec<DeviceSetup>,
    /// Files.
    pub files: Vec<FileSetup>,
    /// Tasks.
    pub tasks: Vec<TaskSetup>,
}

/// Keys of the text.
pub const TOP_KEYS: [&str; 11] =
    ["seed", "profile", "memory", "memory_kind", "cpus", "duration", "set", "host", "device", "file", "task"];
/// Keys of `[[device]]`.
pub const DEVICE_KEYS: [&str; 9] =
    ["preset", "size", "priority", "channels", "read", "write", "read_page", "write_page", "cpu"];
/// Keys of `[[task]]`.
pub const TASK_KEYS: [&str; 19] = [
    "name",
    "count",
    "size",
    "shared",
    "file",
    "by",
    "request",
    "pattern",
    "stride",
    "exponent",
    "hot",
    "hot_share",
    "write_percent",
    "fill",
    "think",
    "access",
    "accesses",
    "laps",
    "start",
];
/// Values of `pattern`.
pub const PATTERNS: [&str; 6] = ["sequential", "backward", "stride", "random", "zipf", "hot"];

/// Tasks over all groups.
const TASKS_MAX: u32 = 4096;
/// Pages over all regions: 4 TiB.
const PAGES_MAX: u64 = 1 << 30;

/// Accesses of a run: some hours of real time.
const ACCESSES_MAX: u64 = 100_000_000_000;

/// Reads a workload.
///
/// # Errors
/// The first thing that is wrong, with its line.
pub fn parse(text: &str) -> Result<Workload, WorkloadError> {
    let table = DeTable::parse(text).map_err(|e| {
        let at = e.span().map_or(0, |span| span.start);
        WorkloadError { line: line_of(text, at), what: e.message().to_owned() }
    })?;
    let top = Section { text, name: "workload", table: table.get_ref(), line: 1 };
    top.known(&TOP_KEYS)?;
    let files = files::parse_files(&top)?;
    let workload = Workload {
        seed: top.integer("seed", 0..=u64::MAX)?.unwrap_or(1),
        profile: top.string("profile")?.unwrap_or("linux-6.18").to_owned(),
        profile_line: top.error(Some("profile"), "").line,
        memory_pages: top.required("memory", top.pages("memory")?)?,
        memory_kind: match top.word("memory_kind", &["group", "machine"])? {
            Some("machine") => MemoryKind::Machine,
            Some(_) | None => MemoryKind::Group,
        },
        host: host::parse_host(&top)?,
        cpus: narrow(top.integer("cpus", 1..=1024)?.unwrap_or(1)),
        duration_ns: top.nanos("duration")?.unwrap_or(3_600_000_000_000),
        settings: settings(&top)?,
        devices: top.sections("device")?.iter().map(parse_device).collect::<Result<_, _>>()?,
        tasks: top.sections("task")?.iter().map(|s| parse_task(s, &files)).collect::<Result<_, _>>()?,
        files,
    };
    if workload.tasks.is_empty() {
        return Err(top.error(None, "no [[task]]: nothing would run"));
    }
    if workload.tasks.iter().map(|t| u64::from(t.count)).sum::<u64>() > u64::from(TASKS_MAX) {
        return Err(top.error(Some("task"), format!("more than {TASKS_MAX} tasks")));
    }
    let pages = |t: &TaskSetup| u64::from(t.pages) * u64::from(t.regions());
    let files = workload.files.iter().map(|f| u64::from(f.pages)).sum::<u64>();
    if workload.tasks.iter().map(pages).sum::<u64>() + files > PAGES_MAX {
        return Err(top.error(Some("task"), "the sizes of tasks and files sum to more than 4 TiB"));
    }
    let accesses = workload.tasks.iter().map(|t| accesses_max(t, workload.duration_ns)).fold(0u64, u64::saturating_add);
    if accesses > ACCESSES_MAX {
        let what = format!(
            "up to {accesses} accesses would take hours to simulate: shorten `duration`, or give `think` or `laps`"
        );
        return Err(top.error(Some("duration"), what));
    }
    Ok(workload)
}

/// Accesses that the tasks can make before the time is over.
fn accesses_max(setup: &TaskSetup, duration_ns: Nanos) -> u64 {
    let fitting = duration_ns / (setup.think_ns + setup.access_ns).max(1);
    setup.accesses.map_or(fitting, |accesses| accesses.min(fitting)).saturating_mul(u64::from(setup.count))
}

fn settings(top: &Section<'_>) -> Result<Vec<Setting>, WorkloadError> {
    let Some(value) = top.table.get("set") else { return Ok(Vec::new()) };
    let Some(table) = value.get_ref().as_table() else {
        return Err(top.error(Some("set"), "`set` is a table: write [set] and one `knob = value` per line"));
    };
    let mut out = Vec::new();
    for (key, value) in table {
        let text = match value.get_ref() {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) => number.as_str().to_owned(),
            DeValue::Boolean(yes) => yes.to_string(),
            DeValue::Float(_) | DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
                return Err(top.at(key.span().start, format!("`{}`: a word, a number or true/false", key.get_ref())));
            }
        };
        let line = line_of(top.text, key.span().start);
        out.push(Setting { key: key.get_ref().to_string(), value: text, line });
    }
    Ok(out)
}

fn parse_device(section: &Section<'_>) -> Result<DeviceSetup, WorkloadError> {
    section.known(&DEVICE_KEYS)?;
    let names: Vec<&str> = device::names().collect();
    let name = section.word("preset", &names)?.unwrap_or("nvme");
    let mut params = device::preset(name).expect("`word` admits only presets").params.clone();
    if let Some(channels) = section.integer("channels", 1..=4096)? {
        params.channels = narrow(channels);
    }
    for (key, field) in [
        ("read", &mut params.read_ns),
        ("write", &mut params.write_ns),
        ("read_page", &mut params.read_page_ns),
        ("write_page", &mut params.write_page_ns),
        ("cpu", &mut params.cpu_ns),
    ] {
        if let Some(ns) = section.nanos(key)? {
            *field = ns;
        }
    }
    let priority = section.integer("priority", 0..=32_767)?;
    Ok(DeviceSetup {
        params,
        pages: section.required("size", section.pages("size")?)?,
        priority: priority.and_then(|p| i16::try_from(p).ok()),
    })
}

fn parse_task(section: &Section<'_>, files: &[FileSetup]) -> Result<TaskSetup, WorkloadError> {
    section.known(&TASK_KEYS)?;
    let file = files::parse_use(section, files)?;
    let pages = match file {
        Some(used) => files[used.file].pages,
        None => section.required("size", section.pages("size")?)?,
    };
    let pattern = parse_pattern(section, pages)?;
    let lap = files::lap(&pattern, pages, file);
    let accesses = section.integer("accesses", 1..=u64::MAX / 2)?;
    let laps = section.integer("laps", 1..=1 << 32)?;
    if accesses.is_some() && laps.is_some() {
        return Err(section.error(Some("laps"), "`laps` and `accesses` say the same thing: keep one"));
    }
    Ok(TaskSetup {
        name: section.string("name")?.unwrap_or("task").to_owned(),
        count: narrow(section.integer("count", 1..=u64::from(TASKS_MAX))?.unwrap_or(1)),
        pages,
        shared: section.boolean("shared")?.unwrap_or(false),
        file,
        pattern,
        write_percent: narrow(section.integer("write_percent", 0..=100)?.unwrap_or(0)),
        fill: section.boolean("fill")?.unwrap_or(true),
        think_ns: section.nanos("think")?.unwrap_or(0),
        access_ns: section.nanos("access")?.unwrap_or(100),
        accesses: accesses.or_else(|| laps.map(|laps| laps * lap)),
        start_ns: section.nanos("start")?.unwrap_or(0),
    })
}

fn parse_pattern(section: &Section<'_>, pages: u32) -> Result<Pattern, WorkloadError> {
    let name = section.word("pattern", &PATTERNS)?.unwrap_or("sequential");
    for (key, owner) in [("stride", "stride"), ("exponent", "zipf"), ("hot", "hot"), ("hot_share", "hot")] {
        if section.table.contains_key(key) && name != owner {
            return Err(section.error(Some(key), format!("`{key}` belongs to pattern = \"{owner}\"")));
        }
    }
    Ok(match name {
        "backward" => Pattern::Backward,
        "stride" => Pattern::Stride(narrow(section.integer("stride", 1..=1 << 30)?.unwrap_or(2))),
        "random" => Pattern::Random,
        "zipf" => Pattern::Zipf(Zipf::new(pages, section.exponent("exponent")?.unwrap_or(1.0))),
        "hot" => Pattern::Hot {
            pages: section.required("hot", section.pages("hot")?)?,
            share_bp: narrow(section.integer("hot_share", 0..=100)?.unwrap_or(90)) * 100,
        },
        _ => Pattern::Sequential,
    })
}

/// Numbers whose range was checked to fit.
fn narrow(number: u64) -> u32 {
    u32::try_from(number).expect("the range given to `integer` fits")
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at.min(text.len())].iter().filter(|b| **b == b'\n').count()
}

/// A table of the text, with what errors need.
struct Section<'a> {
    text: &'a str,
    name: &'static str,
    table: &'a DeTable<'a>,
    line: usize,
}

impl<'a> Section<'a> {
    fn at(&self, at: usize, what: impl Into<String>) -> WorkloadError {
        WorkloadError { line: line_of(self.text, at), what: what.into() }
    }

    fn error(&self, key: Option<&str>, what: impl Into<String>) -> WorkloadError {
        let span = key.and_then(|key| self.table.get_key_value(key)).map(|(key, _)| key.span().start);
        span.map_or_else(
            || WorkloadError { line: self.line, what: String::new() },
            |at| WorkloadError { line: line_of(self.text, at), what: String::new() },
        )
        .with(what.into())
    }

    fn known(&self, keys: &[&str]) -> Result<(), WorkloadError> {
        for (key, _) in self.table {
            if !keys.contains(&key.get_ref().as_ref()) {
                let what = format!(
                    "unknown key `{}` in {}{}",
                    key.get_ref(),
                    self.name,
                    hint(key.get_ref(), keys.iter().copied())
                );
                return Err(self.at(key.span().start, what));
            }
        }
        Ok(())
    }

    fn required<T>(&self, key: &str, value: Option<T>) -> Result<T, WorkloadError> {
        value.ok_or_else(|| self.error(None, format!("`{key}` is missing in {}", self.name)))
    }

    fn get(&self, key: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.table.get(key)
    }

    fn string(&self, key: &str) -> Result<Option<&'a str>, WorkloadError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.get_ref().as_str().map(Some).ok_or_else(|| self.error(Some(key), format!("`{key}` is a text in quotes")))
    }

    fn word(&self, key: &str, words: &[&str]) -> Result<Option<&'a str>, WorkloadError> {
        let Some(word) = self.string(key)? else { return Ok(None) };
        if words.contains(&word) {
            return Ok(Some(word));
        }
        let what = format!("`{key}`: \"{word}\" is none of {}{}", words.join(", "), hint(word, words.iter().copied()));
        Err(self.error(Some(key), what))
    }

    fn boolean(&self, key: &str) -> Result<Option<bool>, WorkloadError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.get_ref().as_bool().map(Some).ok_or_else(|| self.error(Some(key), format!("`{key}` is true or false")))
    }

    fn integer(&self, key: &str, range: std::ops::RangeInclusive<u64>) -> Result<Option<u64>, WorkloadError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = value.get_ref().as_integer().and_then(|n| u64::from_str_radix(n.as_str(), n.radix()).ok());
        let fits = number.filter(|n| range.contains(n));
        let what = || format!("`{key}` is a whole number from {} to {}", range.start(), range.end());
        fits.map(Some).ok_or_else(|| self.error(Some(key), what()))
    }

    fn exponent(&self, key: &str) -> Result<Option<f64>, WorkloadError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let text = match value.get_ref() {
            DeValue::Float(number) => number.as_str(),
            DeValue::Integer(number) => number.as_str(),
            DeValue::String(_) | DeValue::Boolean(_) | DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
                ""
            }
        };
        let number = text.parse().ok().filter(|x: &f64| (0.0..=5.0).contains(x));
        number.map(Some).ok_or_else(|| self.error(Some(key), format!("`{key}` is a number from 0 to 5")))
    }

    fn pages(&self, key: &str) -> Result<Option<u32>, WorkloadError> {
        self.unit(key, units::pages, "a size in quotes, as \"64MiB\"")?
            .map(|pages| if pages == 0 { Err(self.error(Some(key), format!("`{key}` is zero"))) } else { Ok(pages) })
            .transpose()
    }

    fn nanos(&self, key: &str) -> Result<Option<Nanos>, WorkloadError> {
        self.unit(key, units::nanos, "a time in quotes, as \"24us\"")
    }

    fn unit<T>(&self, key: &str, read: fn(&str) -> Result<T, String>, form: &str) -> Result<Option<T>, WorkloadError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let text = match value.get_ref() {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) => number.as_str().to_owned(),
            DeValue::Float(_) | DeValue::Boolean(_) | DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
                return Err(self.error(Some(key), format!("`{key}` is {form}")));
            }
        };
        read(&text).map(Some).map_err(|what| self.error(Some(key), format!("`{key}`: {what}")))
    }

    fn sections(&self, key: &'static str) -> Result<Vec<Section<'a>>, WorkloadError> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let wrong = || self.error(Some(key), format!("`{key}` is a list of tables: write [[{key}]]"));
        let mut out = Vec::new();
        for item in value.get_ref().as_array().ok_or_else(wrong)? {
            let table = item.get_ref().as_table().ok_or_else(wrong)?;
            let line = line_of(self.text, item.span().start);
            let name = match key {
                "device" => "[[device]]",
                "file" => "[[file]]",
                _ => "[[task]]",
            };
            out.push(Section { text: self.text, name, table, line });
        }
        Ok(out)
    }
}

impl WorkloadError {
    fn with(mut self, what: String) -> Self {
        self.what = what;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
memory = "64MiB"
cpus = 2
duration = "10s"

[set]
swappiness = 100

[[device]]
preset = "sata-ssd"
size = "1GiB"
priority = 5
read = "90us"

[[task]]
name = "scan"
count = 4
size = "32MiB"
pattern = "sequential"
write_percent = 100
think = "24us"
laps = 3
"#;

    #[test]
    fn a_workload_is_read_whole() {
        let w = parse(GOOD).expect("sound");
        assert_eq!((w.memory_pages, w.cpus, w.duration_ns), (16_384, 2, 10_000_000_000));
        assert_eq!(w.settings[0], Setting { key: "swappiness".into(), value: "100".into(), line: 7 });
        assert_eq!((w.devices[0].params.read_ns, w.devices[0].params.write_ns), (90_000, 60_000));
        assert_eq!((w.tasks[0].accesses, w.tasks[0].think_ns), (Some(3 * 8192), 24_000));
    }

    #[test]
    fn the_workload_of_the_documentation_is_one() {
        let page = include_str!("../../../docs/sim.md");
        let block = page.split("```toml").nth(1).and_then(|rest| rest.split("```").next());
        let workload = parse(block.expect("docs/sim.md shows a workload")).expect("it is right");
        assert_eq!((workload.devices.len(), workload.files.len(), workload.tasks.len()), (1, 1, 2));
        for key in TASK_KEYS.iter().chain(&DEVICE_KEYS).chain(&FILE_KEYS).chain(&TOP_KEYS).chain(&HOST_KEYS) {
            assert!(page.contains(key), "docs/sim.md does not say what `{key}` is");
        }
    }

    /// Each `(from, to, line, part)`: with `to` for `from`, `good` is refused at this line, with this in the message.
    fn assert_refused(good: &str, cases: &[(&str, &str, usize, &str)]) {
        for &(from, to, line, part) in cases {
            let error = parse(&good.replacen(from, to, 1)).expect_err(to);
            assert_eq!(error.line, line, "{to}: {error}");
            assert!(error.what.contains(part), "{to}: {error}");
        }
    }

    #[test]
    fn every_error_names_its_line_and_helps() {
        let cases = [
            ("memory = \"64MiB\"", "memroy = \"64MiB\"", 2, "did you mean \"memory\"?"),
            ("size = \"32MiB\"", "size = \"32QiB\"", 18, "not a unit of size"),
            ("think = \"24us\"", "think = \"-24us\"", 21, "negative"),
            ("\"sequential\"", "\"sequental\"", 19, "did you mean \"sequential\"?"),
            ("laps = 3", "laps = 0", 22, "from 1"),
            ("preset = \"sata-ssd\"", "preset = \"ssd\"", 10, "none of"),
            ("name = \"scan\"", "name = \"scan", 16, ""),
            ("size = \"1GiB\"", "", 9, "`size` is missing in [[device]]"),
            ("laps = 3", "laps = 3\nstride = 2", 23, "belongs to pattern = \"stride\""),
            ("cpus = 2", "cpus = 99999999999999999999", 3, "whole number"),
        ];
        assert_refused(GOOD, &cases);
        assert!(parse("memory = \"1M\"").expect_err("no task").what.contains("[[task]]"));
    }

    #[test]
    fn files_are_read_and_their_errors_named() {
        const FILES: &str = r#"
memory = "64MiB"
[[file]]
name = "table"
size = "1GiB"
preset = "disk"
read_ahead = "1MiB"
[[task]]
file = "table"
by = "call"
request = "16KiB"
laps = 2
"#;
        let w = parse(FILES).expect("sound");
        assert_eq!((w.files[0].pages, w.files[0].ra_pages, w.files[0].on_swap), (262_144, 256, false));
        assert_eq!(w.tasks[0].file, Some(FileUse { file: 0, request: Some(4) }));
        assert_eq!(w.tasks[0].accesses, Some(2 * 65_536), "a lap is counted in calls");
        let cases = [
            ("file = \"table\"", "file = \"tabel\"", 9, "did you mean \"table\"?"),
            ("by = \"call\"", "by = \"map\"", 11, "belongs to by = \"call\""),
            ("laps = 2", "size = \"1MiB\"", 12, "no meaning beside `file`"),
            ("preset = \"disk\"", "on_swap = true", 6, "no [[device]]"),
            ("request = \"16KiB\"", "request = \"16MiB\"", 11, "at most 4 MiB"),
            ("file = \"table\"", "size = \"1MiB\"", 10, "`by` belongs to `file`"),
        ];
        assert_refused(FILES, &cases);
    }
}
