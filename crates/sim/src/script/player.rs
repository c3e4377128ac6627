//! Plays a script: the task that touches pages, the host that carries out what the core orders, and the clock.

use std::collections::BTreeMap;

use pagetide_core::effect::{EFFECTS_MAX, Source};
use pagetide_core::event::{DeviceSpec, FILE_DEVICE_FIRST, Outcome};
use pagetide_core::types::{Access, DeviceId, Nanos, PMD_PAGES, PageIdx, PageRange, RegionId, SlotIdx, TaskId};
use pagetide_core::{Config, Core, Counter, Effect, Effects, Event, HostKind, MemoryMode, Touch};

use super::device::{Line, Part};
use super::file::File;
use super::{Phase, PhaseResult, ScriptError, ScriptSpec};

/// Names the region of the program's own pages.
const OWN_REGION: RegionId = RegionId(1 << 29);
const _: () = assert!(EFFECTS_MAX >= 64, "the host's loop relies on the core going on at its deadline");

/// What a process more has, that was forked from the first.
const FORKED_PAGES: u32 = 24;
/// An access that hits, with the player's loop around it.
const HIT_NS: Nanos = 60;
/// A fault without I/O.
const FAULT_NS: Nanos = 1_800;
/// A page looked at by reclaim.
const SCAN_NS: Nanos = 800;
/// A page of a file brought into the page cache: allocated, charged, inserted.
const CACHE_PAGE_NS: Nanos = 1_000;
/// What a page adds to pgpgin.
const KIB_OF_A_PAGE: u64 = 4;
/// A page written out: slot, unmap, submission.
const PAGEOUT_NS: Nanos = 3_700;
/// What pages hold before the program's first store, and the file's pages never.
const NEVER_WRITTEN: u32 = 0;
/// Pages of a script, at most.
const PAGES_MAX: u32 = 1 << 26;

pub(super) struct Player {
    pub(super) core: Core,
    regions: Vec<PageRange>,
    pages: u32,
    /// The program's own pages: cold ones, those written between phases, hot ones.
    own: PageRange,
    own_hot: PageRange,
    own_between: PageRange,
    /// The limit less what the processes need for themselves; page tables take from it as they are needed.
    pub(super) budget: u32,
    overhead: u32,
    /// The 2 MiB ranges that have their page table.
    tables: Vec<bool>,
    pub(super) now: Nanos,
    pub(super) line: Line,
    pub(super) file: Option<File>,
    /// Pages that the kernel took for itself and that are not yet off the budget.
    pub(super) kernel_pages_due: u32,
    /// What the program wrote last, what the frames hold, what the slots hold.
    pub(super) truth: Vec<u32>,
    pub(super) frames: Vec<u32>,
    slots: Vec<Vec<u32>>,
    /// Pages of which the program has loaded and that it has not written yet: they are mapped to the page of zeroes.
    zeroes: Vec<bool>,
    version: u32,
    pub(super) woken: bool,
    pub(super) out_of_memory: bool,
    random: u64,
    trace: Vec<(u32, Access)>,
    pause_ns: Nanos,
    /// Accesses between two looks at memory.stat, and until the next.
    stat_accesses: u32,
    stat_left: u32,
    /// Windows of more than one page so far, and passes of reclaim.
    windows: u64,
    passes: u64,
    /// Reclaim calls by pages looked at; the call going on; limit hits so far.
    scans: BTreeMap<u64, u64>,
    call: u64,
    limit_hits: u64,
}

/// The regions one after the other, each at a 2 MiB border with a hole behind it; and the table that holds them.
fn lay_out(sizes: &[u32]) -> Result<(Vec<PageRange>, u32), ScriptError> {
    let all: u64 = sizes.iter().copied().map(u64::from).sum();
    if sizes.contains(&0) || all == 0 || all > u64::from(PAGES_MAX) {
        return Err(ScriptError::Size(format!("pages: {all} is not in 1..={PAGES_MAX}")));
    }
    let mut regions = Vec::new();
    let mut next = 0;
    for &size in sizes {
        regions.push(PageRange::new(PageIdx(next), size));
        next += if sizes.len() > 1 { (size.div_ceil(PMD_PAGES) + 1) * PMD_PAGES } else { size };
    }
    Ok((regions, next))
}

/// Slots of each device, and of all together, each in whole clusters. A size of 0 is one that is large enough.
fn device_sizes(spec: &ScriptSpec, pages: u32) -> Result<(Vec<u32>, u32), ScriptError> {
    let needed = pages.saturating_mul(4).max(4096);
    let sizes: Vec<u32> = spec.devices.iter().map(|&(size, _)| if size == 0 { needed } else { size }).collect();
    let total: u64 = sizes.iter().map(|size| u64::from(*size).next_multiple_of(512)).sum();
    match u32::try_from(total) {
        Ok(total) if total <= 1 << 30 => Ok((sizes, total)),
        Ok(_) | Err(_) => Err(ScriptError::Size("the devices' sizes sum to more than 4 TiB".to_owned())),
    }
}

impl Player {
    pub(super) fn new(spec: &ScriptSpec) -> Result<Self, ScriptError> {
        let (regions, anonymous) = lay_out(&spec.regions)?;
        let (file, with_file) = File::place(spec, anonymous)?;
        let own = PageRange::new(PageIdx(with_file.next_multiple_of(PMD_PAGES) + PMD_PAGES), spec.own.all());
        let table = if own.len > 0 { own.end().0 } else { with_file };
        let pages: u32 = spec.regions.iter().sum();
        let overhead = spec.process_pages + FORKED_PAGES * spec.processes.clamp(1, 4).saturating_sub(1);
        let tables: u32 = spec.regions.iter().chain([&spec.file_pages]).map(|size| size.div_ceil(PMD_PAGES)).sum();
        let least = overhead + spec.own.all() + tables + 64;
        if spec.memory < least {
            return Err(ScriptError::Size(format!("memory: {} pages is less than {least}", spec.memory)));
        }
        if let Some(&(page, _)) = spec.trace.iter().find(|(page, _)| *page >= pages) {
            return Err(ScriptError::Size(format!("trace: page {page} is not one of {pages}")));
        }
        let mut config = Config::profile(&spec.profile, HostKind::Exact)?;
        for setting in &spec.settings {
            config.set(setting)?;
        }
        let (sizes, total) = device_sizes(spec, pages)?;
        let config = config
            .memory(MemoryMode::Memcg { v1: true }, table, spec.memory - overhead)
            .slots_max(total)
            .stat_interval_ns(spec.stat_interval_ns, spec.stat_first_ns, spec.stat_start)
            .request_ends()
            .writes_end_elsewhere();
        let mut player = Self {
            core: Core::new(config),
            regions,
            pages,
            own,
            own_hot: own.part(spec.own.cold + spec.own.between, spec.own.hot),
            own_between: own.part(spec.own.cold, spec.own.between),
            budget: spec.memory - overhead,
            overhead,
            tables: vec![false; table.div_ceil(PMD_PAGES) as usize],
            now: 0,
            line: Line::new(spec.timing),
            file,
            kernel_pages_due: 0,
            truth: vec![NEVER_WRITTEN; table as usize],
            frames: vec![NEVER_WRITTEN; table as usize],
            slots: sizes.iter().map(|&size| vec![0; size as usize]).collect(),
            zeroes: vec![false; table as usize],
            version: NEVER_WRITTEN,
            woken: false,
            out_of_memory: false,
            random: 88_172_645_463_325_252,
            trace: spec.trace.clone(),
            pause_ns: spec.trace_pause_ns,
            stat_accesses: spec.stat_accesses,
            stat_left: spec.stat_accesses,
            windows: 0,
            passes: 0,
            scans: BTreeMap::new(),
            call: 0,
            limit_hits: 0,
        };
        player.set_up(spec, &sizes)?;
        Ok(player)
    }

    /// Tell the core of regions and devices, and write the player's own pages.
    fn set_up(&mut self, spec: &ScriptSpec, sizes: &[u32]) -> Result<(), ScriptError> {
        for (id, range) in (0..).zip(self.regions.clone()) {
            self.event(Event::RegionAdded { region: RegionId(id), range });
        }
        self.add_file();
        if self.own.len > 0 {
            self.event(Event::RegionAdded { region: OWN_REGION, range: self.own });
        }
        for (at, (&slots, &(_, priority))) in sizes.iter().zip(&spec.devices).enumerate() {
            let device = DeviceId(u8::try_from(at).map_err(|_| ScriptError::Size("too many devices".to_owned()))?);
            let spec = DeviceSpec { slots, priority, rotational: false, synchronous: false, inherited: false };
            self.event(Event::DeviceAdded { device, spec });
        }
        for page in self.own.pages() {
            self.reach(page.0, Access::Write);
        }
        Ok(())
    }

    /// Pages of all regions.
    pub(super) const fn pages(&self) -> u32 {
        self.pages
    }

    pub(super) fn play(&mut self, word: String, phase: Phase) -> Result<PhaseResult, ScriptError> {
        for page in self.own_between.pages() {
            self.reach(page.0, Access::Write);
        }
        if self.stat_accesses > 0 {
            self.core.gather_stats();
        }
        let before = self.core.vmstat().clone();
        let start = self.now;
        self.scans.clear();
        if !self.phase(phase)? {
            return Err(ScriptError::OutOfMemory { phase: word });
        }
        self.end_call();
        let vmstat =
            self.core.vmstat().iter().zip(before.iter()).map(|((name, new), (_, old))| (name, new - old)).collect();
        let reclaim_calls = self.scans.iter().map(|(&size, &times)| (size, times)).collect();
        Ok(PhaseResult { phase: word, vmstat, elapsed_ns: self.now - start, reclaim_calls })
    }

    /// One phase. False: out of memory.
    fn phase(&mut self, phase: Phase) -> Result<bool, ScriptError> {
        let n = self.pages;
        Ok(match phase {
            Phase::Write => (0..n).all(|p| self.access(p, Access::Write)),
            Phase::Read => (0..n).all(|p| self.access(p, Access::Read)),
            Phase::Back => (0..n).rev().all(|p| self.access(p, Access::Read)),
            Phase::Stride(step) => (0..n).step_by(step as usize).all(|p| self.access(p, Access::Read)),
            Phase::Turns(access) => self.in_turns(access),
            Phase::Random(count, access) => (0..count).all(|_| {
                let page = self.random_page();
                self.access(page, access)
            }),
            Phase::Calls(pages) => self.read_in_order(pages),
            Phase::RandomCalls(count) => (0..count).all(|_| self.read_at_random()),
            Phase::Mapped => self.load_in_order(),
            Phase::RandomMapped(count) => (0..count).all(|_| self.load_at_random()),
            Phase::Mixed(count, random) => (0..count).all(|_| {
                let page = self.random_page();
                self.access(page, Access::Read) && if random { self.read_at_random() } else { self.read_next() }
            }),
            Phase::Trace => {
                let trace = std::mem::take(&mut self.trace);
                let done = trace.iter().all(|&(page, access)| {
                    self.now += self.pause_ns;
                    self.access(page, access)
                });
                self.trace = trace;
                done
            }
            Phase::Limit(pages) => {
                let taken = u32::try_from(self.tables.len()).expect("built from a u32");
                let least = self.overhead + taken + 64;
                if pages < least {
                    return Err(ScriptError::Size(format!("limit: {pages} pages is less than {least}")));
                }
                let tables = self.tables.iter().filter(|there| **there).count();
                self.budget = pages - self.overhead - u32::try_from(tables).expect("fewer than ranges");
                self.event(Event::BudgetChanged { pages: self.budget });
                self.settle();
                true
            }
            Phase::Swapoff(device) => {
                let device = DeviceId(device);
                if self.core.device_used(device).is_none() {
                    return Err(ScriptError::Size(format!("swapoff: there is no device {}", device.0)));
                }
                self.event(Event::Swapoff { device });
                self.settle();
                self.core.device_used(device).is_none()
            }
        })
    }

    fn in_turns(&mut self, access: Access) -> bool {
        let sizes: Vec<u32> = self.regions.iter().map(|region| region.len).collect();
        (0..sizes.iter().copied().max().unwrap_or(0)).all(|i| {
            let mut first = 0;
            sizes.iter().all(|&size| {
                let page = first + i;
                first += size;
                i >= size || self.access(page, access)
            })
        })
    }

    fn random_page(&mut self) -> u32 {
        self.random_below(self.pages)
    }

    pub(super) fn random_below(&mut self, end: u32) -> u32 {
        let x = &mut self.random;
        *x ^= *x << 13;
        *x ^= *x >> 7;
        *x ^= *x << 17;
        u32::try_from(*x % u64::from(end)).expect("less than a u32")
    }

    /// The table's page of a script's page.
    fn place(&self, page: u32) -> u32 {
        let mut left = page;
        for region in &self.regions {
            if left < region.len {
                return region.first.0 + left;
            }
            left -= region.len;
        }
        unreachable!("page {page} was checked against the sum of the regions")
    }

    /// One access to a page of a region.
    fn access(&mut self, page: u32, access: Access) -> bool {
        let page = if self.regions.len() == 1 { page } else { self.place(page) };
        self.access_at(page, access)
    }

    /// One access of the script. False: out of memory.
    pub(super) fn access_at(&mut self, page: u32, access: Access) -> bool {
        if !self.reach(page, access) {
            return false;
        }
        self.note_access();
        true
    }

    /// An access, with all that its fault brings. False: out of memory.
    fn reach(&mut self, page: u32, access: Access) -> bool {
        self.now += HIT_NS;
        self.end_ios();
        if access == Access::Read && self.truth[page as usize] == NEVER_WRITTEN {
            self.read_zero_page(page);
            return true;
        }
        if !self.until_resident(page, access) {
            return false;
        }
        self.check(page, access);
        true
    }

    /// A load from a page that nobody has written: all such pages are one frame of zeroes, which nobody is charged for.
    fn read_zero_page(&mut self, page: u32) {
        if !std::mem::replace(&mut self.zeroes[page as usize], true) {
            self.now += FAULT_NS;
            self.need_table(page);
        }
    }

    /// Fault until the access hits. False: out of memory.
    fn until_resident(&mut self, page: u32, access: Access) -> bool {
        while self.core.touch(PageIdx(page), access) == Touch::Fault {
            self.now += FAULT_NS;
            self.need_table(page);
            if !self.until_woken(Event::Fault { page: PageIdx(page), access, task: TaskId(0) }) {
                return false;
            }
        }
        true
    }

    /// The task is in the kernel until what it asked for is there. False: out of memory.
    pub(super) fn until_woken(&mut self, event: Event) -> bool {
        let due = std::mem::take(&mut self.kernel_pages_due);
        if due > 0 {
            self.budget -= due;
            self.event(Event::BudgetChanged { pages: self.budget });
        }
        self.woken = false;
        self.event(event);
        while !self.woken {
            assert!(self.go_on(), "I9: the task waits for nothing");
        }
        self.line.end_window(self.now);
        if let Some(file) = &mut self.file {
            file.line.end_window(self.now);
        }
        !self.out_of_memory
    }

    /// Every so many accesses the player reads memory.stat.
    pub(super) fn note_access(&mut self) {
        for page in self.own_hot.pages() {
            if self.core.touch(page, Access::Write) == Touch::Fault {
                self.until_resident(page.0, Access::Write);
            }
            self.check(page.0, Access::Write);
        }
        if self.stat_accesses > 0 {
            self.stat_left -= 1;
            if self.stat_left == 0 {
                self.stat_left = self.stat_accesses;
                self.core.gather_stats();
            }
        }
    }

    /// The first fault in a 2 MiB range needs a page for its page table.
    fn need_table(&mut self, page: u32) {
        let there = &mut self.tables[(page / PMD_PAGES) as usize];
        // The program has some tables from its start.
        if !std::mem::replace(there, true) && !self.own.contains(PageIdx(page)) {
            self.budget -= 1;
            self.event(Event::BudgetChanged { pages: self.budget });
            self.settle();
        }
    }

    pub(super) fn check(&mut self, page: u32, access: Access) {
        let at = page as usize;
        assert_eq!(self.frames[at], self.truth[at], "page {page} has the wrong content");
        if access == Access::Write {
            self.version = self.version.wrapping_add(1);
            self.frames[at] = self.version;
            self.truth[at] = self.version;
        }
    }

    /// Let the core go on, or the clock to the next end of an I/O. False: nothing will happen any more.
    fn go_on(&mut self) -> bool {
        self.end_ios();
        if self.woken {
            return true;
        }
        if self.core.deadline().is_some_and(|at| at <= self.now) {
            self.event(Event::Timeout);
            return true;
        }
        // It sleeps: what it held back goes to the device.
        self.line.flush(self.now);
        let mut at = self.line.next_at();
        if let Some(file) = &mut self.file {
            file.line.flush(self.now);
            at = at.into_iter().chain(file.line.next_at()).min();
        }
        let Some(at) = at else { return false };
        self.now = self.now.max(at);
        self.end_ios();
        true
    }

    /// Until nothing happens any more.
    fn settle(&mut self) {
        self.woken = false;
        while self.go_on() {}
        self.line.end_window(self.now);
    }

    /// Deliver the I/Os that have ended.
    fn end_ios(&mut self) {
        self.end_file_reads();
        while let Some(part) = self.line.ended(self.now) {
            for (i, page) in part.pages().pages().enumerate() {
                let content = &mut self.slots[usize::from(part.device)][part.slot as usize + i];
                let frame = &mut self.frames[page.0 as usize];
                if part.write {
                    *content = *frame;
                } else {
                    *frame = *content;
                }
            }
            self.event(Event::IoDone { io: part.io(), range: part.pages(), outcome: Outcome::Done });
        }
    }

    pub(super) fn event(&mut self, event: Event) {
        let before = (self.scanned(), self.counted(Counter::pswpout), self.counted(Counter::pgpgin));
        let mut out = Effects::new();
        self.core.handle(self.now, &event, &mut out);
        let scanned = self.scanned() - before.0;
        self.note_calls(scanned);
        self.note_plugs();
        self.now += scanned * SCAN_NS + (self.counted(Counter::pswpout) - before.1) * PAGEOUT_NS;
        self.now += (self.counted(Counter::pgpgin) - before.2) / KIB_OF_A_PAGE * CACHE_PAGE_NS;
        for &effect in out.as_slice() {
            self.take(effect);
        }
    }

    /// A window of several pages is submitted through a plug; so are the writes of a pass of reclaim.
    fn note_plugs(&mut self) {
        let passes = self.counted(Counter::pt_reclaim_pass);
        if passes != self.passes {
            self.passes = passes;
            self.line.end_pass(self.now);
        }
        let counters =
            [Counter::pt_ra_window_2, Counter::pt_ra_window_4, Counter::pt_ra_window_8, Counter::pt_ra_window_more];
        let windows = counters.iter().map(|&counter| self.counted(counter)).sum();
        if windows != self.windows {
            self.windows = windows;
            self.line.begin_window();
        }
    }

    /// Split what was looked at into reclaim calls: each begins with a charge that hit the limit.
    fn note_calls(&mut self, scanned: u64) {
        let limit_hits = self.counted(Counter::max);
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

    /// Pages that reclaim has looked at.
    fn scanned(&self) -> u64 {
        self.counted(Counter::pgscan_anon) + self.counted(Counter::pgscan_file)
    }

    fn counted(&self, counter: Counter) -> u64 {
        self.core.vmstat().get(counter)
    }

    fn take(&mut self, effect: Effect) {
        match effect {
            Effect::Read { io, device, slot, range, .. } => self.submit(io.0, device, slot, range, false),
            Effect::Write { io, device, slot, range } => self.submit(io.0, device, slot, range, true),
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

    fn submit(&mut self, io: u32, device: DeviceId, slot: SlotIdx, range: PageRange, write: bool) {
        if device.0 >= FILE_DEVICE_FIRST {
            assert!(!write, "no phase makes pages of the file dirty");
            self.submit_file(io, slot, range);
            return;
        }
        let part = Part { io, first: range.first.0, len: range.len, device: device.0, slot: slot.0, write };
        self.line.submit(self.now, part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::OwnPages;

    #[test]
    fn memory_stat_is_read_after_so_many_accesses_of_the_script() {
        let mut spec = ScriptSpec::new("R150", 64, 1_024, "linux-6.18");
        spec.own = OwnPages { hot: 3, between: 7, cold: 3 };
        spec.stat_accesses = 200;
        let mut player = Player::new(&spec).expect("a script that can be played");
        assert_eq!(player.stat_left, 200, "the program's start is none of the script");
        player.play("R150".to_owned(), Phase::Random(150, Access::Read)).expect("no size is wrong");
        assert_eq!(player.stat_left, 50);
    }

    #[test]
    fn what_is_only_read_costs_no_memory() {
        let mut player =
            Player::new(&ScriptSpec::new("r w", 128, 1_024, "linux-6.18")).expect("a script that can be played");
        let room = player.budget;
        player.play("r".to_owned(), Phase::Read).expect("no size is wrong");
        assert_eq!(
            (player.core.charged(), player.budget),
            (0, room - 1),
            "all are the page of zeroes; they need a page table"
        );
        player.play("w".to_owned(), Phase::Write).expect("no size is wrong");
        assert!(player.core.charged() >= 128, "{} pages", player.core.charged());
    }
}
