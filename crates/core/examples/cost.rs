//! What the core costs: touches that hit, faults and evictions, each alone, on one thread.
//!
//! `cargo run --release -p pagetide-core --example cost`
#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "it measures and prints")]

use pagetide_core::event::{DeviceSpec, MoveAnswer, Outcome};
use pagetide_core::types::{Access, DeviceId, PageIdx, PageRange, RegionId, TaskId};
use pagetide_core::{Config, Core, Effect, Effects, Event, HostKind, MemoryMode, Touch};
use std::time::Instant;

struct Host {
    core: Core,
    out: Effects,
    answers: std::collections::VecDeque<Event>,
    blind: bool,
    events: u64,
    woken: bool,
}

impl Host {
    fn new(profile: &str, kind: HostKind, pages: u32, budget: u32) -> Self {
        let slots = pages * 2 + 1024;
        let config = Config::profile(profile, kind).expect("a profile");
        let core = Core::new(config.memory(MemoryMode::Watermarks, pages, budget).slots_max(slots + 512));
        let blind = kind == HostKind::Blind;
        let mut host = Self {
            core,
            out: Effects::new(),
            answers: std::collections::VecDeque::with_capacity(1 << 16),
            blind,
            events: 0,
            woken: false,
        };
        host.step(Event::RegionAdded { region: RegionId(0), range: PageRange::new(PageIdx(0), pages) });
        let spec = DeviceSpec { slots, priority: None, rotational: false, synchronous: false, inherited: false };
        host.step(Event::DeviceAdded { device: DeviceId(0), spec });
        host
    }

    fn step(&mut self, event: Event) {
        self.out.clear();
        self.core.handle(0, &event, &mut self.out);
        self.events += 1;
        for effect in self.out.as_slice() {
            match *effect {
                Effect::Read { io, range, .. } | Effect::Write { io, range, .. } => {
                    self.answers.push_back(Event::IoDone { io, range, outcome: Outcome::Done });
                }
                Effect::Map { range, .. } if self.blind => {
                    self.answers.push_back(Event::Mapped { range, answer: MoveAnswer::Done });
                }
                Effect::Unmap { range } if self.blind => {
                    self.answers.push_back(Event::Unmapped { range, answer: MoveAnswer::Done });
                }
                Effect::Wake { .. } | Effect::OutOfMemory { .. } => self.woken = true,
                Effect::Map { .. } | Effect::Unmap { .. } | Effect::Drop { .. } | Effect::Poison { .. } => {}
            }
        }
    }

    fn access(&mut self, page: u32, access: Access) {
        while self.core.touch(PageIdx(page), access) == Touch::Fault {
            self.woken = false;
            self.step(Event::Fault { page: PageIdx(page), access, task: TaskId(0) });
            while !self.woken {
                match self.answers.pop_front() {
                    Some(event) => self.step(event),
                    None => self.step(Event::Timeout),
                }
            }
        }
    }
}

fn main() {
    let pages = 1 << 20;
    let mut host = Host::new("linux-6.18", HostKind::Exact, pages, pages + 4096);
    (0..pages).for_each(|p| host.access(p, Access::Write));
    let n = 50_000_000_u64;
    let (mut x, mut hits) = (1_u64, 0_u64);
    let start = Instant::now();
    for _ in 0..n {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let page = PageIdx(u32::try_from(x >> 44).expect("20 bits"));
        hits += u64::from(host.core.touch(page, Access::Read) == Touch::Hit);
    }
    let ns = start.elapsed().as_nanos();
    println!("random touches, 2^20 pages: {:.1} M/s ({hits} hits)", 1000.0 * n as f64 / ns as f64);

    for (profile, kind) in
        [("linux-6.18", HostKind::Exact), ("pagetide", HostKind::Exact), ("pagetide", HostKind::Blind)]
    {
        for (name, random) in [("sequential", false), ("random", true)] {
            let pages = 1 << 18;
            let mut host = Host::new(profile, kind, pages, pages / 4);
            (0..pages).for_each(|p| host.access(p, Access::Write));
            let before = (host.core.vmstat().clone(), host.events);
            let mut x = 1_u64;
            let accesses = 1_000_000_u32;
            let start = Instant::now();
            for i in 0..accesses {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let page = if random { u32::try_from(x >> 46).expect("18 bits") } else { i % pages };
                host.access(page, Access::Write);
            }
            let ns = start.elapsed().as_nanos() as f64;
            let delta = |c: pagetide_core::Counter| host.core.vmstat().get(c) - before.0.get(c);
            let faults = delta(pagetide_core::Counter::pgfault);
            let reads = delta(pagetide_core::Counter::pswpin);
            println!(
                "{profile} {kind:?} {name}: {:.0} ns/access, {:.0} ns/page read, {:.0} ns/event; {faults} faults, {reads} reads, {} writes, {} events",
                ns / f64::from(accesses),
                ns / reads as f64,
                ns / (host.events - before.1) as f64,
                delta(pagetide_core::Counter::pswpout),
                host.events - before.1,
            );
        }
    }
}
