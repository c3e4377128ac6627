//! A model of Linux's address spaces in virtual time: mappings, page tables, faults and the messages about them.
//!
//! It holds processes with their mappings and pages, and the threads of the programs, each inside one [`Call`] (a load, a store,
//! a system call) that goes on step by step, as the test lets it. Between two steps anything else may happen: so every order that
//! the kernel allows can be played. A page's content is one number; 0 is the page of zeroes.
//!
//! What is modelled is what the runtime can be hurt by; what the kernel answers is compared with Linux by the contract suite.
//! What is not: files, kernel swap, the huge page of zeroes, NUMA, time that passes by itself.
//!
//! Invariants: a page is counted once for each entry that names it; the runtime's own memory is never touched where it is missing
//! (a pager that waits for itself), which the model asserts.

mod calls;
mod gate;
mod huge;
mod memory;
mod port;
mod space;

pub use calls::{Answer, Call, Extent, Happened, Progress, Tid};
pub use gate::Gate;
pub use memory::{ForkPolicy, Kind, Mapping, Rights};
pub use port::{Model, ModelChild, ModelMapping};

use std::collections::{BTreeMap, VecDeque};

use memory::{Page, PageId};
use space::Process;

/// A process of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pid(pub u32);

/// How often, in basis points, the kernel shows a face that it shows rarely.
#[derive(Clone, Copy, Debug)]
pub struct Quirks {
    /// A move that is done and answered as EEXIST (Linux 6.18).
    pub moved_and_denied: u32,
    /// A run that is cut short, or refused with EAGAIN although nothing changes.
    pub cut_short: u32,
    /// A page that someone holds for a moment: EBUSY.
    pub held_for_a_moment: u32,
    /// A mapping that is looked up before it is asked whether mappings change: ENOENT where EAGAIN was due.
    pub looked_up_early: u32,
    /// A page whose move takes 20 us: another CPU is interrupted.
    pub interrupts: u32,
    /// A copy without memory for it: ENOMEM.
    pub no_memory: u32,
    /// A huge page made of the pages around some page (khugepaged), just before a call of the runtime.
    pub collapsed: u32,
    /// A step of a thread of the programs, just before a call of the runtime.
    pub interlude: u32,
    /// A move that brings another content than the page had: what no kernel does, to see that a test would notice.
    pub spoiled: u32,
}

impl Quirks {
    /// Nothing rare ever happens.
    pub const NONE: Self = Self {
        moved_and_denied: 0,
        cut_short: 0,
        held_for_a_moment: 0,
        looked_up_early: 0,
        interrupts: 0,
        no_memory: 0,
        collapsed: 0,
        interlude: 0,
        spoiled: 0,
    };
}

/// All processes, and the time.
#[derive(Debug)]
pub struct World {
    now: u64,
    processes: BTreeMap<Pid, Process>,
    pages: Vec<Page>,
    free_pages: Vec<PageId>,
    threads: BTreeMap<Tid, calls::Thread>,
    log: Vec<Happened>,
    next_pid: u32,
    next_tid: u32,
    quirks: Quirks,
    dice: u64,
    /// Pages in a huge page; 0: there are none.
    huge_pages: u64,
    huge_made: u32,
}

impl World {
    /// An empty world; `seed` decides when a quirk shows.
    pub fn new(seed: u64, quirks: Quirks) -> Self {
        Self {
            now: 1,
            processes: BTreeMap::new(),
            pages: Vec::new(),
            free_pages: Vec::new(),
            threads: BTreeMap::new(),
            log: Vec::new(),
            next_pid: 1,
            next_tid: 1,
            quirks,
            dice: seed | 1,
            huge_pages: 0,
            huge_made: 0,
        }
    }

    /// Mappings that are advised so have huge pages of so many pages. Linux's have 512.
    pub const fn have_huge_pages(&mut self, pages: u64) {
        self.huge_pages = pages;
    }

    /// From now on nothing rare happens.
    pub const fn calm(&mut self) {
        self.quirks = Quirks::NONE;
    }

    /// A process with an empty address space.
    pub fn new_process(&mut self) -> Pid {
        let pid = Pid(self.next_pid);
        self.next_pid += 1;
        self.processes.insert(pid, Process::default());
        pid
    }

    /// A runtime that sees its program's calls keeps those of mremap, or lets them begin again.
    pub fn keep_moves(&mut self, pid: Pid, keeps: bool) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.monitor.keeps_moves = keeps;
        }
    }

    /// True until the process has ended.
    pub fn is_alive(&self, pid: Pid) -> bool {
        self.processes.contains_key(&pid)
    }

    /// Let time pass.
    pub const fn pass(&mut self, nanos: u64) {
        self.now += nanos;
    }

    /// Virtual nanoseconds.
    pub const fn now(&self) -> u64 {
        self.now
    }

    /// True with this chance.
    fn chance(&mut self, basis_points: u32) -> bool {
        if basis_points == 0 {
            return false;
        }
        self.dice ^= self.dice << 13;
        self.dice ^= self.dice >> 7;
        self.dice ^= self.dice << 17;
        self.dice % 10_000 < u64::from(basis_points)
    }

    /// The runtime of this process serves it from now on: its faults end with it, and not with what its parent holds.
    pub fn serves_itself(&mut self, pid: Pid) {
        self.process_mut(pid).monitor.is_own = true;
    }

    /// The runtime of this process has not asked to be told of copies: nothing of them is registered, and nobody waits.
    pub fn tells_no_copy(&mut self, pid: Pid) {
        self.process_mut(pid).monitor.tells_no_copy = true;
    }

    /// The process ends, wherever its threads are: its memory is gone at once, and so is a copy whose call has not ended.
    pub fn end_process(&mut self, pid: Pid) {
        let unborn: Vec<Pid> =
            self.threads.values().filter(|thread| thread.pid == pid).filter_map(calls::unborn).collect();
        unborn.into_iter().for_each(|child| self.end_process(child));
        let Some(process) = self.processes.remove(&pid) else { return };
        for entry in process.entries.into_values() {
            self.release(entry);
        }
        self.threads.retain(|_, thread| thread.pid != pid);
    }

    fn process(&self, pid: Pid) -> &Process {
        self.processes.get(&pid).expect("the process lives")
    }

    fn process_mut(&mut self, pid: Pid) -> &mut Process {
        self.processes.get_mut(&pid).expect("the process lives")
    }
}

/// What one process's userfaultfd holds.
#[derive(Debug, Default)]
struct Monitor {
    /// Faults that were not read yet.
    faults: VecDeque<calls::FaultNote>,
    /// Changes that were not read yet; each one's thread waits.
    events: VecDeque<calls::EventNote>,
    /// Changes under way.
    changing: u32,
    /// The process's own runtime has it. A parent that closes what it holds of it ends nothing.
    is_own: bool,
    /// Nobody has asked for messages about forks.
    tells_no_copy: bool,
    /// The process's mremap calls are kept until this is over.
    keeps_moves: bool,
}
