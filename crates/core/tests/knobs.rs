//! Every knob changes something that can be seen: the effects of a life with its default and with another value differ.

mod common;

use common::{World, device_spec};
use pagetide_core::config::KNOBS;
use pagetide_core::types::{Access, DeviceId, PageIdx, PageRange, RegionId};
use pagetide_core::{Config, Event, HostKind, MemoryMode};

/// Anonymous memory over the budget, a file, a swapoff: passes up, down and at random. The hash of all effects, and the
/// sum of what was charged at each access.
fn life(profile: &str, kind: HostKind, memory: MemoryMode, slots: u32, setting: Option<&str>) -> (u64, u64) {
    let mut config = Config::profile(profile, kind).expect("a profile");
    if let Some(setting) = setting {
        config.set(setting).expect("a setting");
    }
    let file = kind == HostKind::Exact;
    let config = config.memory(memory, 1_500, 500).slots_max(8_192);
    let mut world = World::new(config, kind == HostKind::Blind);
    world.audits = false;
    world.event(Event::RegionAdded { region: RegionId(0), range: PageRange::new(PageIdx(0), 1_000) });
    world.event(Event::DeviceAdded { device: DeviceId(0), spec: device_spec(slots) });
    if file {
        world.add_file(1_000, 500, 32);
    }
    let mut charged = 0;
    let mut access = |world: &mut World, p: u32, write: bool| {
        // Without swap left some accesses fail; that is a result like any other.
        world.access(p, if write { Access::Write } else { Access::Read });
        charged += u64::from(world.core.charged());
    };
    (0..1_000).for_each(|p| access(&mut world, p, true));
    let mut x = 88_172_645_463_325_252_u64;
    for i in 0..3_000_u32 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        let random = u32::try_from(x % 1_000).expect("small");
        access(&mut world, if i % 3 == 0 { random } else { i % 1_000 }, i % 5 == 0);
        if file && i % 2 == 0 {
            world.try_file_call(i % 500, 1, Access::Read);
        }
    }
    world.event(Event::BudgetChanged { pages: 1_600 });
    world.event(Event::Swapoff { device: DeviceId(0) });
    world.settle();
    (world.hash.value(), charged)
}

#[test]
fn every_knob_changes_what_the_core_does() {
    let memcg = MemoryMode::Memcg { v1: true };
    for knob in KNOBS {
        let (profile, kind, memory, slots, value) = match knob.name {
            "swappiness" => ("linux-6.18", HostKind::Exact, memcg, 4_000, "180"),
            "page-cluster" => ("linux-6.18", HostKind::Exact, memcg, 4_000, "2"),
            "readahead" => ("linux-6.18", HostKind::Exact, memcg, 4_000, "cluster"),
            "readahead-max" => ("pagetide", HostKind::Blind, MemoryMode::Watermarks, 4_000, "8"),
            "zero-ahead" => ("pagetide", HostKind::Blind, MemoryMode::Watermarks, 4_000, "0"),
            "balance" => ("linux-6.18", HostKind::Exact, memcg, 4_000, "cost-io"),
            "swapoff" => ("linux-6.18", HostKind::Exact, memcg, 4_000, "no-lookup"),
            // Swap for a hundred pages only: out of memory is near.
            "min-scan-priority" => ("linux-6.18", HostKind::Exact, memcg, 100, "1"),
            "watermark-scale" => ("linux-6.18", HostKind::Exact, MemoryMode::Watermarks, 4_000, "500"),
            "reclaim-batch" => ("linux-6.18", HostKind::Exact, memcg, 4_000, "8"),
            "sample" => ("pagetide", HostKind::Blind, MemoryMode::Watermarks, 4_000, "none"),
            "free-on-write-done" => ("linux-6.18", HostKind::Exact, memcg, 4_000, "on"),
            "anon-list" => ("linux-6.18", HostKind::Exact, memcg, 4_000, "active"),
            "lru-batch" => ("linux-6.18", HostKind::Exact, memcg, 4_000, "0"),
            "charge-batch" => ("linux-6.18", HostKind::Exact, memcg, 4_000, "0"),
            // The host reads it: pages are compressed behind the core's back.
            "compress" => continue,
            other => panic!("the knob `{other}` has no test"),
        };
        let setting = format!("{}={value}", knob.name);
        let before = life(profile, kind, memory, slots, None);
        assert_ne!(before, life(profile, kind, memory, slots, Some(&setting)), "{setting} changes nothing");
        assert_eq!(before, life(profile, kind, memory, slots, None), "I8: the same life twice");
    }
}
