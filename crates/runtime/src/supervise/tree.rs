//! The processes of a run, as they are seen from outside: who there is, and what they keep.
//!
//! The supervisor is their subreaper, so every process of the tree is its descendant, whatever started it and whatever it loaded. It
//! walks the lists of children that the kernel keeps, now and then, and as soon as somebody opens the preloaded object.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use pagetide_core::types::Nanos;
use pagetide_sys::fd::Fd;
use pagetide_sys::proc::{self, Statm, StatmFile};
use pagetide_sys::{Errno, clock};

use crate::control::{Control, Entry};
use crate::foothold::{self, View};
use crate::space::PAGE_SHIFT;
use crate::supervise::brief::Children;
use crate::supervise::divide::{Exchange, Growth, Lent};
use crate::supervise::probe::Probe;
use crate::supervise::rest::RestTimer;
use crate::supervise::sharing::Shared;
use crate::supervise::start::{self, Object, Starting};
use crate::supervise::worth::Worth;

/// Looks at a process of which nothing is known before it counts as one without the object: it may be in the midst of its exec.
const LOOKS_MAX: u32 = 8;
/// The same where the environment names the object: a static program, unless the dynamic linker has not come to it.
const AWAITED_LOOKS_MAX: u32 = 100;
/// The same while the object is mapped but silent: a program of hundreds of MiB of objects takes seconds to link.
const LINKING_LOOKS_MAX: u32 = 10_000;

/// An agent, and what it shares with us.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) socket: Fd,
    pub(super) control: Control,
    /// Threads serve their faults themselves, and the kernel does not count these.
    pub(super) is_signal_mode: bool,
}

/// Where the words of a process's preloaded object are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Words {
    /// Not found so far, in so many looks.
    Sought(u32),
    At(u64),
    /// It has none: another environment, or a static program.
    None,
}

/// One process of the tree.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) parent: i32,
    statm: Option<StatmFile>,
    pub(super) words: Words,
    pub(super) view: Option<View>,
    /// When its words were read.
    words_read: Nanos,
    /// What it kept at the last look.
    pub(super) sized: Option<u64>,
    /// Forks that were looked after.
    forks: u64,
    /// A thread of it that has not ended, as far as is known: what the kernel tells of the first one's memory ends with it.
    pub(super) thread: i32,
    /// It runs in its parent's address space (`vfork`).
    pub(super) is_borrower: bool,
    pub(super) link: Option<Link>,
    pub(super) starting: Option<Starting>,
    /// It cannot have an agent.
    pub(super) is_refused: bool,
    /// Its threads have mapped more than was left before.
    pub(super) rings: bool,
    /// What it keeps, and has just been let fill; and until when it may not have done so yet.
    pub(super) promised: Option<(u64, Nanos)>,
    /// A forked child whose memory was filled by its parent's agent, and which may still wait for an agent of its own.
    pub(super) is_complete: bool,
    /// Since when it is seen to have the words of the process that it was copied from, where an agent was to be started in it, and that
    /// one's number in them.
    pub(super) foreign: Option<(Nanos, i32)>,
    /// It waits for an agent, and nobody has told of it, at the last look.
    pub(super) is_orphan: bool,
    pub(super) is_gone: bool,
    /// It was killed, because nobody can serve it.
    pub(super) is_ended: bool,
    /// CPU time that it had used at the last look, and since when it has used no more; None: it cannot be told.
    pub(super) used: Option<(Nanos, Nanos)>,
    /// Tells when it has used more than that, from when it rests.
    pub(super) timer: Option<RestTimer>,
    /// In pages.
    pub(super) resident: u64,
    pub(super) major_faults: u64,
    /// When it was seen to have more of them.
    pub(super) read_at: Nanos,
    pub(super) lent: Lent,
    pub(super) growth: Growth,
    /// Pages that it has paged out.
    pub(super) stolen: u64,
    pub(super) probe: Probe,
    pub(super) exchange: Exchange,
    pub(super) worth: Worth,
    /// What its children were like.
    pub(super) children: Children,
    /// Pages of files and of shared memory that it had at the last look.
    not_own: u64,
    /// Those of shared memory when they were asked for last, and how much `not_own` was then.
    shared_memory: u64,
    asked_at: u64,
    /// What it shares with others; None: nobody has asked.
    pub(super) shared: Option<Shared>,
}

/// So long what a process says may wait while memory is filled.
const WORDS_NS: Nanos = 20_000_000;

impl Process {
    fn new(pid: i32, parent: i32) -> Self {
        Self {
            pid,
            parent,
            statm: StatmFile::open(pid).ok(),
            words: Words::Sought(0),
            view: None,
            words_read: 0,
            sized: None,
            forks: 0,
            thread: pid,
            is_borrower: proc::share_memory(parent, pid).unwrap_or(false),
            link: None,
            starting: None,
            is_refused: false,
            rings: false,
            promised: None,
            is_complete: false,
            foreign: None,
            is_orphan: false,
            is_gone: false,
            is_ended: false,
            used: None,
            timer: None,
            resident: 0,
            major_faults: 0,
            read_at: 0,
            lent: Lent::default(),
            growth: Growth::default(),
            stolen: 0,
            probe: Probe::default(),
            exchange: Exchange::default(),
            worth: Worth::new(),
            children: Children::new(),
            not_own: 0,
            shared_memory: 0,
            asked_at: 0,
            shared: None,
        }
    }

    pub(super) fn is_managed(&self) -> bool {
        self.link.as_ref().is_some_and(|link| link.control.entry().is_managed())
    }

    /// Its words are where they were found.
    pub(super) fn has_words(&self) -> bool {
        matches!(self.words, Words::At(at) if start::read(self.thread, at).is_some())
    }

    /// Pages of it that are paged out, and not in memory as well.
    pub(super) fn swapped_pages(&self) -> u64 {
        self.told(|entry| &entry.away_pages)
    }

    /// Frames that hold nothing and tables of its agent.
    pub(super) fn overhead_pages(&self) -> u64 {
        self.told(|entry| &entry.overhead_pages)
    }

    /// What its agent says; 0 without one.
    fn told(&self, word: impl Fn(&Entry) -> &AtomicU64) -> u64 {
        self.link.as_ref().map_or(0, |link| word(link.control.entry()).load(Ordering::Relaxed))
    }

    /// Its numbers, as the kernel counts them.
    pub(super) fn statm(&self) -> Result<Statm, Errno> {
        match &self.statm {
            Some(statm) => statm.read(),
            // Without a descriptor to spare.
            None => StatmFile::open(self.pid).and_then(|statm| statm.read()),
        }
    }

    /// Look at what it keeps and says, from outside. True if it runs a program that was not seen before.
    pub(super) fn look(&mut self, library: &str) -> bool {
        self.look_at_size();
        self.look_at_words(library, false)
    }

    /// What it keeps.
    pub(super) fn look_at_size(&mut self) {
        self.resident = 0;
        // Before all else: what it does meanwhile is seen at the next look.
        self.note_cpu_time();
        if self.is_borrower {
            self.is_borrower = proc::share_memory(self.parent, self.pid).unwrap_or(false);
        }
        let statm = match self.statm() {
            Ok(statm) if statm.size_pages > 0 => Some(statm),
            Ok(_) | Err(_) => self.ask_another_thread(),
        };
        self.is_gone = statm.is_none();
        if let Some(statm) = statm.filter(|_| !self.is_borrower) {
            self.resident = self.told_resident().unwrap_or(statm.anon_pages());
            self.not_own = statm.shared_pages;
        }
    }

    /// What it says. True if it runs a program that was not seen before. Where that `may_wait`, it is not asked again at once: the kernel
    /// reads its words under a lock for which all wait whose threads fill memory.
    pub(super) fn look_at_words(&mut self, library: &str, may_wait: bool) -> bool {
        if self.is_gone || self.is_borrower {
            return false;
        }
        match self.words {
            Words::At(at) => {
                let is_native = self.view.is_some_and(|view| view.state == foothold::NATIVE && view.wanted_pages == 0);
                let now = clock::now();
                if may_wait && is_native && self.may_start() && now < self.words_read + WORDS_NS {
                    return false;
                }
                self.words_read = now;
                self.view = start::read(self.thread, at);
                if self.foreign.is_some_and(|(_, maker)| self.view.is_some_and(|view| view.pid != maker)) {
                    // Another program, at the same address.
                    (self.foreign, self.is_refused) = (None, false);
                }
                // A process with an agent may have forbidden to look into it.
                if self.view.is_none() && self.link.is_none() {
                    self.words = Words::Sought(0);
                    (self.foreign, self.is_refused) = (None, false);
                    return self.seek(library);
                }
            }
            Words::Sought(_) => return self.seek(library),
            Words::None => {}
        }
        false
    }

    /// Its words are not known, after fewer looks than these.
    pub(super) fn is_sought_for_less(&self, looks: u32) -> bool {
        matches!(self.words, Words::Sought(made) if made < looks)
    }

    /// Pages of its shared memory, if they may be as many as these. The kernel is asked when they may have grown by a thirty-second: its
    /// answer is long.
    pub(super) fn shared_memory(&mut self, least: u64) -> u64 {
        if self.not_own >= least.max(self.asked_at + self.asked_at / 32 + 1) {
            self.asked_at = self.not_own;
            self.shared_memory =
                proc::status(Some(self.thread)).map_or(0, |status| status.resident_shmem_bytes >> PAGE_SHIFT);
        }
        self.shared_memory
    }

    /// The thread that was asked so far has ended: what does another one show? None: there is no such process.
    fn ask_another_thread(&mut self) -> Option<Statm> {
        let lives = |tid: &i32| proc::stat(Some(*tid)).is_ok_and(|stat| !proc::is_over(stat.state));
        self.thread = start::threads(self.pid).into_iter().find(lives).unwrap_or(self.pid);
        self.statm = StatmFile::open(self.thread).ok();
        self.statm.as_ref()?.read().ok()
    }

    fn seek(&mut self, library: &str) -> bool {
        let Words::Sought(looks) = self.words else { return false };
        self.words = match start::find(self.thread, library) {
            Object::At(at) => Words::At(at),
            Object::Silent if looks < LINKING_LOOKS_MAX => Words::Sought(looks + 1),
            Object::Awaited if looks < AWAITED_LOOKS_MAX => Words::Sought(looks + 1),
            Object::Unknown if looks < LOOKS_MAX => Words::Sought(looks + 1),
            Object::Silent | Object::Awaited | Object::Unknown | Object::Absent => Words::None,
        };
        if let Words::At(at) = self.words {
            self.view = start::read(self.thread, at);
        }
        !matches!(self.words, Words::Sought(_))
    }
}

/// The processes that are known.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) list: Vec<Process>,
    known: BTreeSet<i32>,
}

impl Tree {
    /// Walk all lists of children from `root` on, which is not of the tree itself.
    pub(super) fn scan(&mut self, root: i32) {
        let mut next = vec![root];
        let mut seen = BTreeSet::new();
        while let Some(pid) = next.pop() {
            for child in children(pid) {
                if seen.insert(child) {
                    self.add(child, pid);
                    next.push(child);
                }
            }
        }
    }

    /// True if there may be processes that nobody counts: children of others than the first, or of one without words.
    pub(super) fn may_grow_unseen(&self) -> bool {
        self.list.len() > 1 || self.list.iter().any(|process| process.words == Words::None)
    }

    /// Somebody opened the object: a process that had none may have become another program.
    pub(super) fn seek_again(&mut self) {
        for process in &mut self.list {
            if process.words == Words::None {
                process.words = Words::Sought(1);
                process.is_refused = false;
            }
        }
    }

    /// Find the children of processes that have forked since the last look.
    pub(super) fn scan_forked(&mut self) {
        for index in 0..self.list.len() {
            let process = &mut self.list[index];
            let forks = process.view.map_or(process.forks, |view| view.forks);
            if forks != process.forks {
                process.forks = forks;
                let pid = process.pid;
                self.scan_children(pid);
            }
        }
    }

    /// True if no other process has the memory of this one.
    pub(super) fn has_memory_alone(&self, pid: i32) -> bool {
        let mut others = children(pid);
        others.extend(self.list.iter().map(|process| process.pid).filter(|&other| other != pid));
        others
            .into_iter()
            .all(|other| proc::share_memory(pid, other).map_or_else(|errno| errno == Errno::ESRCH, |shared| !shared))
    }

    /// The children of one process are known from now on.
    pub(super) fn scan_children(&mut self, pid: i32) {
        for child in children(pid) {
            self.add(child, pid);
        }
    }

    /// Process `pid`, a child of `parent`, is of the run.
    pub(super) fn add(&mut self, pid: i32, parent: i32) {
        if self.known.insert(pid) {
            let process = Process::new(pid, parent);
            let copied = (!process.is_borrower && self.process(parent).is_some()).then(|| process.statm());
            self.list.push(process);
            if let Some(Ok(statm)) = copied {
                self.share_among(pid, parent, statm.anon_pages());
            }
        }
    }

    /// Forget a process.
    pub(super) fn remove(&mut self, index: usize) -> Process {
        let process = self.list.swap_remove(index);
        self.known.remove(&process.pid);
        process
    }

    /// All have ended.
    pub(super) fn clear(&mut self) {
        self.list.clear();
        self.known.clear();
    }

    pub(super) fn resident(&self) -> u64 {
        self.list.iter().map(|process| process.resident).fold(0, u64::saturating_add)
    }

    /// The process of this number, if it is known.
    pub(super) fn process(&self, pid: i32) -> Option<&Process> {
        self.list.iter().find(|process| process.pid == pid)
    }

    /// What is in swap space and not in memory as well.
    pub(super) fn away(&self) -> u64 {
        self.list.iter().map(Process::swapped_pages).fold(0, u64::saturating_add)
    }

    /// The processes that have most, in memory and in swap space: so many at most.
    pub(super) fn largest(&self, most: usize) -> Vec<&Process> {
        let mut largest: Vec<&Process> = self.list.iter().filter(|process| !process.is_gone).collect();
        // Each is asked once: an agent may say another number a moment later, and an order that changes ends the sorting.
        largest.sort_by_cached_key(|process| Reverse(process.resident.saturating_add(process.swapped_pages())));
        largest.truncate(most);
        largest
    }
}

/// The children of all threads of a process.
fn children(pid: i32) -> Vec<i32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

#[cfg(test)]
mod tests {
    use pagetide_sys::{socket, thread};

    use super::*;

    /// The supervisor panicked in the midst of a run of a hundred processes, which ended with it.
    #[test]
    fn the_largest_are_found_while_their_agents_say_other_numbers() {
        let mut tree = Tree::default();
        let mut pages = Vec::new();
        for number in 0..200 {
            let (control, file) = Control::create().expect("a memfd");
            pages.push(Control::open(&file).expect("the same page"));
            let (socket, _) = socket::pair().expect("a socket pair");
            let mut process = Process::new(thread::getpid(), 1);
            (process.resident, process.link) = (number, Some(Link { socket, control, is_signal_mode: false }));
            tree.list.push(process);
        }
        std::thread::scope(|scope| {
            let agents = scope.spawn(|| {
                let mut number = 1_u64;
                for _ in 0..20_000 {
                    for page in &pages {
                        number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        page.entry().away_pages.store(number >> 33, Ordering::Relaxed);
                    }
                }
            });
            while !agents.is_finished() {
                assert_eq!(tree.largest(16).len(), 16);
            }
        });
        pages.iter().for_each(|page| page.entry().away_pages.store(0, Ordering::Relaxed));
        assert_eq!(tree.largest(2).iter().map(|process| process.resident).collect::<Vec<_>>(), [199, 198]);
    }
}
