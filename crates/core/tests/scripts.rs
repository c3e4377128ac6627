//! Script tests: `testdata/*.txt` holds commands, a line of dashes, and the full answer of the core. `UPDATE=1` rewrites
//! the answers; review reads the difference.
//!
//! A command is answered with the effects it brought, in order. Effects are executed and answered only when the script says
//! so (`done`), but for maps and unmaps of exact hosts.

mod common;

use common::{World, device_spec};
use pagetide_core::event::{Advice, DeviceSpec, Outcome};
use pagetide_core::types::{Access, DeviceId, PageIdx, PageRange, RegionId, SlotIdx, TaskId};
use pagetide_core::{Config, Event, HostKind, MemoryMode};
use std::fmt::Write as _;
use std::path::Path;

fn number(word: &str) -> u32 {
    word.parse().unwrap_or_else(|_| panic!("`{word}` is no number"))
}

fn range(word: &str) -> PageRange {
    let (from, to) = word.split_once('-').unwrap_or((word, word));
    PageRange::new(PageIdx(number(from)), number(to) - number(from) + 1)
}

fn place(word: &str) -> (DeviceId, SlotIdx) {
    let (device, slot) = word.split_once(':').expect("device:slot");
    (DeviceId(u8::try_from(number(device)).expect("small")), SlotIdx(number(slot)))
}

fn new_world(words: &[&str]) -> World {
    let kind = if words[1] == "blind" { HostKind::Blind } else { HostKind::Exact };
    let mut config = Config::profile(words[0], kind).expect("a profile");
    let (mut pages, mut budget, mut slots, mut memory) = (8, 4, 64, MemoryMode::Watermarks);
    for word in &words[2..] {
        match word.split_once('=').expect("key=value") {
            ("pages", value) => pages = number(value),
            ("budget", value) => budget = number(value),
            ("slots", value) => slots = number(value),
            ("memory", value) => memory = MemoryMode::Memcg { v1: value == "v1" },
            _ => config.set(word).expect("a setting"),
        }
    }
    let mut world = World::new(config.memory(memory, pages, budget).slots_max(4096), kind == HostKind::Blind);
    world.event(Event::RegionAdded { region: RegionId(0), range: PageRange::new(PageIdx(0), pages) });
    if slots > 0 {
        world.event(Event::DeviceAdded { device: DeviceId(0), spec: device_spec(slots) });
    }
    world
}

fn advice(word: &str) -> Advice {
    match word {
        "normal" => Advice::Normal,
        "sequential" => Advice::Sequential,
        "random" => Advice::Random,
        "willneed" => Advice::WillNeed,
        "cold" => Advice::Cold,
        "pageout" => Advice::PageOut,
        "lock" => Advice::Lock,
        "unlock" => Advice::Unlock,
        _ => panic!("no advice `{word}`"),
    }
}

/// Run one command; the answer is what it says beside the effects.
fn command(world: &mut World, words: &[&str]) -> String {
    let access = |at: usize| if words.get(at) == Some(&"w") { Access::Write } else { Access::Read };
    let mut answer = String::new();
    match words[0] {
        "fault" => {
            let task = words.get(3).map_or(1, |word| number(word));
            for page in range(words[1]).pages() {
                world.event(Event::Fault { page, access: access(2), task: TaskId(task) });
            }
        }
        // The whole of an access by task 1, with all it needs.
        "access" => range(words[1]).pages().for_each(|p| assert!(world.access(p.0, access(2)), "out of memory")),
        "store" => range(words[1]).pages().for_each(|p| {
            assert!(world.mapped.contains(&p.0), "page {} is not mapped", p.0);
            world.begin(1, p.0, Access::Write);
        }),
        "load" => range(words[1]).pages().for_each(|p| {
            assert!(world.mapped.contains(&p.0), "page {} is not mapped", p.0);
            world.begin(1, p.0, Access::Read);
        }),
        "done" => world.answer(words.get(1).map_or(0, |word| number(word)) as usize),
        "fail" => {
            let pending = world.pending.remove(words.get(1).map_or(0, |word| number(word)) as usize);
            world.answer_with(pending, Outcome::Failed);
            world.forget_poisoned();
        }
        "nospace" => {
            let pending = world.pending.remove(0);
            world.answer_with(pending, Outcome::NoSpace);
        }
        "settle" => world.settle(),
        "timeout" => world.event(Event::Timeout),
        "discard" => {
            let pages = range(words[1]);
            world.discard(pages.first.0, pages.len);
        }
        "adopt" => {
            // They are there already, with content.
            for page in range(words[1]).pages() {
                world.version += 1;
                world.frames.insert(page.0, world.version);
                world.truth.insert(page.0, world.version);
                world.mapped.insert(page.0);
            }
            world.event(Event::Adopted { range: range(words[1]) });
        }
        "budget" => world.event(Event::BudgetChanged { pages: number(words[1]) }),
        "hold" => world.event(Event::Hold { on: words[1] == "on" }),
        "advise" => world.event(Event::Advice { range: range(words[1]), advice: advice(words[2]) }),
        "swapoff" => world.event(Event::Swapoff { device: DeviceId(u8::try_from(number(words[1])).expect("small")) }),
        "pin" | "unpin" => {
            let (device, slot) = place(words[1]);
            world.event(Event::SlotsPinned { device, slot, len: number(words[2]), pin: words[0] == "pin" });
        }
        "inherit" => {
            let (device, slot) = place(words[2]);
            for (i, page) in range(words[1]).pages().enumerate() {
                world.version += 1;
                world.slots.insert((device.0, slot.0 + u32::try_from(i).expect("small")), world.version);
                world.truth.insert(page.0, world.version);
            }
            world.event(Event::Inherited { range: range(words[1]), device, slot });
        }
        "device" => {
            let mut spec = DeviceSpec { ..device_spec(number(words[2])) };
            for word in &words[3..] {
                match *word {
                    "inherited" => spec.inherited = true,
                    "rotational" => spec.rotational = true,
                    "synchronous" => spec.synchronous = true,
                    priority => spec.priority = Some(i16::try_from(number(priority)).expect("small")),
                }
            }
            world.event(Event::DeviceAdded { device: DeviceId(u8::try_from(number(words[1])).expect("small")), spec });
        }
        "split" => {
            let (at, upper) = (PageIdx(number(words[1])), RegionId(number(words[2])));
            world.event(Event::RegionSplit { region: RegionId(0), at, upper });
        }
        "remove" => world.event(Event::RegionRemoved { region: RegionId(number(words[1])) }),
        "lru" => answer = world.core.dump(),
        "page" => {
            for page in range(words[1]).pages() {
                let view = world.core.page(page);
                let slot = view.slot.map_or(String::new(), |(device, slot)| format!(" {}:{}", device.0, slot.0));
                let flight = format!("{:?}", view.flight).to_lowercase();
                let flight = if flight == "none" { String::new() } else { format!(" {flight}") };
                let state = format!("{:?}", view.state).to_lowercase();
                let bits = [(view.dirty, " dirty"), (view.young, " young")];
                let bits: String = bits.iter().filter(|b| b.0).map(|b| b.1).collect();
                writeln!(answer, "{}: {state}{slot}{flight}{bits}", page.0).expect("a string grows");
            }
        }
        "count" => {
            for name in &words[1..] {
                writeln!(answer, "{name} {}", world.count(name)).expect("a string grows");
            }
        }
        "charged" => answer = format!("{} of {}\n", world.core.charged(), world.core.budget()),
        "pending" => {
            for pending in &world.pending {
                writeln!(answer, "{pending:?}").expect("a string grows");
            }
        }
        other => panic!("no command `{other}`"),
    }
    answer
}

/// Drops of neighbours, which come one by one as the host answers page by page, in one line.
fn joined(effects: Vec<String>) -> Vec<String> {
    let dropped = |line: &str| line.strip_prefix("drop ").map(range);
    let mut lines: Vec<String> = Vec::new();
    for effect in effects {
        let (last, next) = (lines.last().and_then(|line| dropped(line)), dropped(&effect));
        match (last, next) {
            (Some(last), Some(next)) if last.end() == next.first => {
                lines.pop();
                lines.push(format!("drop {}-{}", last.first.0, next.end().0 - 1));
            }
            _ => lines.push(effect),
        }
    }
    lines
}

/// The text of a script with the answers of today.
fn play(text: &str) -> String {
    let mut world: Option<World> = None;
    let mut result = String::new();
    for block in text.split("\n\n").filter(|b| !b.trim().is_empty()) {
        let question = block.split("\n----").next().expect("there is a first part").trim_matches('\n');
        result.push_str(question);
        result.push_str("\n----\n");
        for line in question.lines() {
            let line = line.split('#').next().expect("there is a first part").trim();
            let words: Vec<&str> = line.split_whitespace().collect();
            if words.is_empty() {
                continue;
            }
            if words[0] == "new" {
                world = Some(new_world(&words[1..]));
                continue;
            }
            let world = world.as_mut().expect("a script begins with `new`");
            world.log = Some(Vec::new());
            let answer = command(world, &words);
            for effect in joined(world.log.take().expect("set above")) {
                result.push_str(&effect);
                result.push('\n');
            }
            result.push_str(&answer);
        }
        result.push('\n');
    }
    result.truncate(result.trim_end().len());
    result.push('\n');
    result
}

#[test]
fn scripts_are_answered_as_written() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let update = std::env::var_os("UPDATE").is_some();
    let mut played = 0;
    for entry in std::fs::read_dir(&folder).expect("testdata is there") {
        let path = entry.expect("testdata can be read").path();
        let text = std::fs::read_to_string(&path).expect("a script can be read");
        let answered = play(&text);
        if update {
            std::fs::write(&path, answered).expect("a script can be written");
        } else {
            assert_eq!(text, answered, "{}: run with UPDATE=1 and read the difference", path.display());
        }
        played += 1;
    }
    assert!(played >= 8, "only {played} scripts");
}
