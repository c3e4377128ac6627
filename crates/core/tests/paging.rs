//! Paging under a budget, with both kinds of hosts: the right content at every access, an audit after every event.

mod common;

use common::{Pending, TASK, World, device_spec};
use pagetide_core::event::Outcome;
use pagetide_core::types::{Access, DeviceId, IoId, PageIdx, PageRange, RegionId, TaskId};
use pagetide_core::{Config, Core, Counter, Effect, Effects, Event, HostKind, MemoryMode};

const KINDS: [HostKind; 2] = [HostKind::Exact, HostKind::Blind];

#[test]
fn four_times_the_budget_is_paged_with_every_profile() {
    for kind in KINDS {
        for profile in pagetide_core::config::PROFILES {
            let mut world = World::simple(profile, kind, 256, 64, 600);
            for _ in 0..3 {
                (0..256).for_each(|p| world.write(p));
                (0..256).for_each(|p| world.read(p));
                (0..256).rev().for_each(|p| world.read(p));
            }
            world.settle();
            assert!(world.core.charged() <= 64);
            assert!(world.count("pswpin") > 256, "{profile} on {kind:?} reads {}", world.count("pswpin"));
        }
    }
}

#[test]
fn random_accesses_find_what_was_written() {
    for kind in KINDS {
        for profile in ["linux-6.18", "pagetide"] {
            let mut world = World::simple(profile, kind, 200, 40, 400);
            let mut x = 88_172_645_463_325_252_u64;
            for _ in 0..4000 {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                let p = u32::try_from(x % 200).expect("small");
                if x & 1 << 40 == 0 { world.read(p) } else { world.write(p) }
            }
        }
    }
}

#[test]
fn a_stream_costs_a_few_faults_per_window() {
    for kind in KINDS {
        let mut world = World::simple("pagetide", kind, 8192, 2048, 70_000);
        world.audits = false;
        (0..8192).for_each(|p| world.write(p));
        world.settle();
        let before = (world.count("pgfault"), world.count("pgmajfault"), world.count("pswpin"));
        for p in 0..8192 {
            world.read(p);
            world.settle();
        }
        world.core.audit();
        assert!(
            world.count("pgfault") - before.0 <= 2 * 8192 / 64,
            "{kind:?}: {} faults",
            world.count("pgfault") - before.0
        );
        assert!(world.count("pgmajfault") - before.1 < 10, "{kind:?}");
        assert!(world.count("pswpin") - before.2 <= 8192, "nothing is read twice");
    }
}

#[test]
fn a_pass_over_watched_pages_costs_a_few_soft_faults() {
    let mut world = World::simple("pagetide", HostKind::Blind, 4096, 2048, 20_000);
    world.audits = false;
    (0..1900).for_each(|p| world.write(p));
    // New pages press on the memory: the oldest are taken out of the page table, and watched.
    (2000..2150).for_each(|p| world.write(p));
    world.settle();
    let watched = world.count("pt_sampled");
    let before = (world.count("pgfault"), world.count("pswpin"));
    (0..1900).for_each(|p| world.write(p));
    world.settle();
    world.core.audit();
    let faults = world.count("pgfault") - before.0;
    assert!(watched > 250, "{watched} pages are watched");
    assert!(faults < 50 + (world.count("pswpin") - before.1) / 8, "{faults} faults");
}

/// An array that is read in no order beside a file's worth of data that is read once: each of its pages made a soft fault at each look.
#[test]
fn where_all_that_is_watched_is_used_one_page_tells_of_its_neighbours() {
    const HOT: u32 = 1200;
    let mut world = World::simple("pagetide", HostKind::Blind, 20_000, 2048, 40_000);
    world.audits = false;
    (0..HOT).for_each(|p| world.write(p));
    let mut next = HOT;
    for i in 0..60_000 {
        world.read(i * 389 % HOT);
        if i % 4 == 0 {
            world.write(next);
            next += 1;
        }
        world.settle();
    }
    world.core.audit();
    let (looks, soft) = (world.count("pt_sampled"), world.count("pt_soft_fault"));
    assert!(world.count("pgmajfault") < 400, "the array stays: {} major faults", world.count("pgmajfault"));
    assert!(looks > 15_000 && soft * 4 < looks, "{soft} soft faults for {looks} looks");
}

/// A database's pages, a heap's objects: what lies together is used together, in no order that is a stream. Each page was read by itself.
#[test]
fn what_lies_together_and_is_used_together_is_read_together() {
    let mut world = World::simple("pagetide", HostKind::Blind, 8192, 1024, 20_000);
    world.audits = false;
    let mut visit = |group: u32, seed: u32| {
        for i in 0..16 {
            world.write(group * 16 + (i * 5 + seed) % 16);
            world.settle();
        }
        (world.count("pswpin"), world.count("pgmajfault"))
    };
    (0..512).for_each(|group| _ = visit(group, 0));
    (0..512).for_each(|i| _ = visit(i * 211 % 512, i));
    let before = visit(0, 0);
    let after = (0..512).fold((0, 0), |_, i| visit(i * 293 % 512, i));
    let (pages, majors) = (after.0 - before.0, after.1 - before.1);
    assert!(pages > 6000 && majors * 10 < pages, "{majors} major faults for {pages} pages");
}

/// Each order is a system call that interrupts the CPUs of the program, each write a request to the device.
#[test]
fn pages_that_came_together_leave_together() {
    let mut world = World::simple("pagetide", HostKind::Blind, 8192, 2048, 20_000);
    world.audits = false;
    world.log = Some(Vec::new());
    for p in 0..8192 {
        world.write(p);
        world.settle();
    }
    let log = world.log.take().expect("it was begun");
    let orders = |name: &str| log.iter().filter(|line| line.starts_with(name)).count();
    let (unmaps, writes) = (orders("unmap"), orders("write"));
    assert!(unmaps > 0 && unmaps <= 8192 / 16, "{unmaps} orders to unmap");
    assert!(writes > 0 && writes <= 8192 / 16, "{writes} orders to write");
}

/// Inactive and active pages of a machine with 4,096 pages, after more than that were written.
fn lists(scale: u32) -> (u32, u32) {
    let config = Config::profile("linux-4.10", HostKind::Exact).expect("a profile");
    let config = config.memory(MemoryMode::Watermarks, 6_000, 4_096).slots_max(8_000).min_free(32).scaled(scale);
    let mut world = World::new(config, false);
    world.audits = false;
    world.event(Event::RegionAdded { region: RegionId(1), range: PageRange::new(PageIdx(0), 6_000) });
    world.event(Event::DeviceAdded { device: DeviceId(0), spec: device_spec(7_000) });
    (0..6_000).for_each(|p| world.write(p));
    let sizes = world.core.list_sizes();
    (sizes[0], sizes[1])
}

/// A model of 8 GiB with 1/512 of the pages had lists of equal length, as if it were 16 MiB.
#[test]
fn a_scaled_machine_has_the_lists_of_the_full_one() {
    let (inactive, active) = lists(1);
    assert!(inactive * 3 > active * 2, "16 MiB: {inactive} inactive and {active} active pages");
    // 8 GiB ask for a ratio of 1 to the square root of 70 to 80.
    let (inactive, active) = lists(512);
    assert!(inactive * 7 < active && active < inactive * 10, "8 GiB: {inactive} inactive and {active} active pages");
}

/// Pages that leave only when somebody has gone on who waits for a page, no slot for others, and a budget that is cut again and again
/// meanwhile: the room that there is afterwards is found.
#[test]
fn budgets_that_are_cut_again_and_again_leave_room_for_faults() {
    const PAGES: u32 = 1024;
    for cuts in [1, 2, 600] {
        let mut world = World::simple("pagetide", HostKind::Blind, PAGES, PAGES, 100);
        world.audits = false;
        (0..600).for_each(|p| world.write(p));
        world.settle();
        for cut in 0..cuts {
            world.event(Event::BudgetChanged { pages: 100 + cut % 2 });
            tick(&mut world);
            if cut == 0 {
                // From here on nothing is carried out.
                world.answer(0);
            }
            tick(&mut world);
        }
        world.begin(2, PAGES - 1, Access::Write);
        tick(&mut world);
        assert!(world.core.deadline().is_none_or(|at| at > world.now), "there is nothing to do but to wait");
        world.event(Event::BudgetChanged { pages: world.core.charged() + 16 });
        tick(&mut world);
        let has = |order: &Pending| matches!(order, Pending::Map { range, .. } if range.contains(PageIdx(PAGES - 1)));
        assert!(world.pending.iter().any(has), "after {cuts} cuts {} pages are charged", world.core.charged());
    }
}

/// A world of so many pages, nearly all in use, whose budget is a tenth of it now.
fn cut_to_a_tenth(pages: u32) -> World {
    let mut world = World::simple("pagetide", HostKind::Blind, pages, pages, 4096);
    world.audits = false;
    (0..pages - 64).for_each(|p| world.write(p));
    world.settle();
    world.event(Event::BudgetChanged { pages: pages / 10 });
    world
}

/// While a slow disk had all frames that pages leave through, none could be moved, and all that were left were set aside: the budget was
/// exceeded for good where nobody faulted.
#[test]
fn a_cut_goes_on_when_what_could_not_be_moved_for_a_moment_can_be() {
    const PAGES: u32 = 2048;
    const FRAMES: usize = 256;
    let mut world = cut_to_a_tenth(PAGES);
    // The disk writes all it has at once, now and then.
    let (end, mut written) = (world.now + 10_000_000_000, world.now);
    while world.now < end {
        if let Some(at) = world.pending.iter().position(|order| matches!(order, Pending::Unmap { .. })) {
            let order = world.pending.remove(at);
            let unmapped = world.frames.keys().filter(|p| !world.mapped.contains(p)).count();
            world.answer_with(order, if unmapped < FRAMES { Outcome::Done } else { Outcome::Failed });
        } else if world.core.deadline().is_some_and(|at| at <= world.now) {
            world.event(Event::Timeout);
        } else if !world.pending.is_empty() && world.now >= written + 30_000_000 {
            (0..world.pending.len()).for_each(|_| world.answer(0));
            written = world.now;
        } else {
            let next = if world.pending.is_empty() { end } else { written + 30_000_000 };
            world.now = world.core.deadline().map_or(next, |at| at.min(next));
        }
    }
    assert!(world.core.charged() <= PAGES / 10, "{} pages of {} are charged", world.core.charged(), PAGES / 10);
    assert!(world.core.is_settled(), "it goes on for ever");
}

/// Direct reads that pinned more than the budget: all of it was tried again and again, so that nothing else was done, and not all of it
/// was ever set aside, which would have told that the budget has to grow.
#[test]
fn what_cannot_be_moved_is_seldom_tried_and_goes_soon_after_it_can_be() {
    const PAGES: u32 = 2048;
    const MOVE_NS: u64 = 9_000;
    let mut world = cut_to_a_tenth(PAGES);
    let (freed, end) = (world.now + 5_000_000_000, world.now + 5_400_000_000);
    let (mut tries, mut moving) = (0, 0);
    while world.now < end {
        if let Some(at) = world.pending.iter().position(|order| matches!(order, Pending::Unmap { .. })) {
            let order = world.pending.remove(at);
            let Pending::Unmap { range } = order else { unreachable!("it was looked for") };
            world.now += MOVE_NS * u64::from(range.len);
            if world.now < freed {
                tries += range.len;
                moving += MOVE_NS * u64::from(range.len);
                world.answer_with(order, Outcome::Failed);
            } else {
                world.answer_with(order, Outcome::Done);
            }
        } else if world.core.deadline().is_some_and(|at| at <= world.now) {
            world.event(Event::Timeout);
        } else if !world.pending.is_empty() {
            world.answer(0);
        } else {
            world.now = world.core.deadline().map_or(end, |at| at.min(end));
        }
    }
    assert!(
        tries > 5 * PAGES && moving < 1_000_000_000,
        "{tries} tries of {PAGES} pages took {} ms",
        moving / 1_000_000
    );
    assert!(world.core.charged() <= PAGES / 10, "{} pages of {} are charged", world.core.charged(), PAGES / 10);
}

/// A budget that is cut to a tenth while the swap file is still small: a thousand writes end one by one, and none of their
/// ends may look through all pages for one that could go.
#[test]
fn a_full_swap_is_not_searched_again_after_every_write() {
    const PAGES: u32 = 2048;
    let mut world = World::simple("pagetide", HostKind::Blind, PAGES, PAGES, 1024);
    world.audits = false;
    (0..PAGES - 64).for_each(|p| world.write(p));
    world.event(Event::BudgetChanged { pages: PAGES / 10 });
    // A task that waits for memory meanwhile.
    world.begin(2, PAGES - 1, Access::Write);
    world.settle();
    let scanned = world.count("pgscan_anon");
    // Before it gives up, kswapd makes 16 fruitless runs and the task as many; a run looks at each page about twice.
    assert!(scanned <= 100 * u64::from(PAGES), "{scanned} looks at {PAGES} pages");
    assert!(world.count("pswpout") >= 1000, "{} pages were written", world.count("pswpout"));
    assert_eq!(world.oom, [2], "the task is told");
    world.oom.clear();
    world.event(Event::DeviceGrown { device: DeviceId(0), slots: PAGES });
    world.settle();
    assert!(world.core.charged() <= PAGES / 10, "{} pages are charged", world.core.charged());
    world.core.audit();
    (0..PAGES - 64).for_each(|p| world.read(p));
}

/// A group whose reclaim has begun to write so many pages out at least, and these.
fn begin_to_write(config: Config, at_least: usize) -> (Core, Vec<(IoId, PageIdx)>) {
    let config = config.memory(MemoryMode::Memcg { v1: true }, 512, 128).slots_max(2048);
    let (mut core, mut out) = (Core::new(config), Effects::new());
    let region = Event::RegionAdded { region: RegionId(0), range: PageRange::new(PageIdx(0), 512) };
    core.handle(0, &region, &mut out);
    core.handle(0, &Event::DeviceAdded { device: DeviceId(0), spec: device_spec(1024) }, &mut out);
    let mut writes = Vec::new();
    let mut faults = (0..512).map(|p| Event::Fault { page: PageIdx(p), access: Access::Write, task: TaskId(0) });
    while writes.len() < at_least {
        let event = if writes.is_empty() { faults.next().expect("more pages than memory") } else { Event::Timeout };
        core.handle(0, &event, &mut out);
        for effect in out.as_slice() {
            if let Effect::Write { io, range, .. } = *effect {
                writes.extend(range.pages().map(|page| (io, page)));
            }
        }
        out.clear();
    }
    assert!(core.deadline().is_some(), "reclaim stopped after a batch that wrote");
    (core, writes)
}

fn end_write(core: &mut Core, io: IoId, page: PageIdx, out: &mut Effects) {
    core.handle(0, &Event::IoDone { io, range: PageRange::one(page), outcome: Outcome::Done }, out);
}

fn linux_6_18() -> Config {
    Config::profile("linux-6.18", HostKind::Exact).expect("a profile").request_ends()
}

#[test]
fn reclaim_takes_in_the_ends_of_a_request_together() {
    let (mut core, writes) = begin_to_write(linux_6_18(), 1);
    let scanned = |core: &Core| core.vmstat().get(Counter::pgscan_anon);
    let before = scanned(&core);
    let mut out = Effects::new();
    for (io, page) in writes {
        end_write(&mut core, io, page, &mut out);
        assert_eq!(scanned(&core), before, "a part of the request has ended");
    }
    core.handle(0, &Event::Timeout, &mut out);
    assert!(scanned(&core) > before);
}

// The reclaim trace of the running kernel: with the device's thread on another CPU than the task, pages come back 31 at a time,
// also across requests.
#[test]
fn pages_whose_writes_end_on_another_cpu_are_freed_by_the_batch() {
    let freed_after = |config: Config, ended: usize| {
        let (mut core, writes) = begin_to_write(config, 31);
        let mut out = Effects::new();
        for (io, page) in writes.into_iter().take(ended) {
            end_write(&mut core, io, page, &mut out);
        }
        out.clear();
        core.handle(0, &Event::Timeout, &mut out);
        core.audit();
        core.vmstat().get(Counter::pgsteal_anon)
    };
    assert_eq!(freed_after(linux_6_18(), 30), 30, "the reclaiming CPU empties its own batch");
    assert_eq!(freed_after(linux_6_18().writes_end_elsewhere(), 30), 0);
    assert_eq!(freed_after(linux_6_18().writes_end_elsewhere(), 31), 31);
}

/// A run of 2,048 pages whose budget has just been raised so that all fit, of which the first `here` are there again; then the swapoff begins.
fn swapoff_beside(here: u32, is_at_work: bool) -> World {
    let mut world = World::simple("pagetide", HostKind::Blind, 2048, 256, 4096);
    (0..2048).for_each(|p| world.write(p));
    world.settle();
    world.event(Event::BudgetChanged { pages: 4096 });
    // Not read: that would be a stream, which a fault reads ahead of.
    world.discard(0, here);
    (0..here).for_each(|p| world.write(p));
    world.now = 1_000_000_000;
    if is_at_work {
        fault(&mut world, 1780);
    }
    world.event(Event::Swapoff { device: DeviceId(0) });
    tick(&mut world);
    world
}

fn fault(world: &mut World, p: u32) {
    world.blocked.insert(TASK, (p, Access::Read));
    world.event(Event::Fault { page: PageIdx(p), access: Access::Read, task: TaskId(TASK) });
}

fn tick(world: &mut World) {
    (0..64).for_each(|_| world.event(Event::Timeout));
}

fn reading(world: &World) -> u32 {
    let pages = |pending: &Pending| if let Pending::Read { range, .. } = pending { range.len } else { 0 };
    world.pending.iter().map(pages).sum()
}

/// Swapoff had half a megabyte of reads under way before each fault of the program, whose accesses took milliseconds; and what it
/// had brought in cost a fault more when it was used.
#[test]
fn swapoff_reads_little_beside_a_program_that_faults_and_maps_what_it_brings() {
    // Much is out: two large windows. Little: a small one.
    for (here, is_at_work, least, most) in [(0, false, 256, 512), (0, true, 64, 128 + 1), (1740, true, 16, 16 + 1)] {
        let mut world = swapoff_beside(here, is_at_work);
        assert!((least..=most).contains(&reading(&world)), "{here} {is_at_work}: {} pages", reading(&world));
        world.settle();
        assert_eq!(world.core.device_used(DeviceId(0)), None, "it is forgotten");
        let mapped = world.mapped.len();
        assert!(mapped > 2048 - 256, "{mapped} pages are mapped");
        (0..2048).for_each(|p| world.read(p));
    }
}

#[test]
fn a_swapoff_that_has_little_left_begins_nothing_while_a_fault_waits_but_not_for_long() {
    let mut world = swapoff_beside(1740, true);
    let is_other = |pending: &Pending| matches!(pending, Pending::Read { range, .. } if !range.contains(PageIdx(1780)));
    while let Some(at) = world.pending.iter().position(is_other) {
        world.answer(at);
    }
    assert_eq!(reading(&world), 1, "the read of the fault alone");
    tick(&mut world);
    assert_eq!(reading(&world), 1);
    world.now += 1_000_000;
    tick(&mut world);
    assert_eq!(reading(&world), 16 + 1, "programs in which some thread waits at all times hold nothing up");
    world.settle();
    assert_eq!(world.core.device_used(DeviceId(0)), None, "it is forgotten");
}

/// The last windows followed one another without a pause: each fault met one, and the program's accesses meanwhile were fewer than
/// beside a kernel's swapoff.
#[test]
fn a_swapoff_that_has_little_left_leaves_the_device_to_the_program_between_two_windows() {
    let mut world = swapoff_beside(1740, true);
    let of_fault = |pending: &Pending| matches!(pending, Pending::Read { range, .. } if range.contains(PageIdx(1780)));
    world.answer(world.pending.iter().position(of_fault).expect("it is being read"));
    // Seen beside swapoff.
    fault(&mut world, 1790);
    world.now += 100_000;
    while !world.pending.is_empty() {
        world.answer(0);
    }
    tick(&mut world);
    assert_eq!(reading(&world), 0, "it took 100 us, and pauses for three times as long");
    assert_eq!(world.core.deadline(), Some(world.now + 300_000));
    world.now += 300_000;
    tick(&mut world);
    assert_eq!(reading(&world), 16, "nothing else has happened");
    world.now += 50_000_000;
    world.answer(0);
    tick(&mut world);
    assert!(reading(&world) > 16, "the program does not fault any more");
    world.settle();
    assert_eq!(world.core.device_used(DeviceId(0)), None, "it is forgotten");
}
