//! Which processes get an agent, and when: near the budget, at a bell, and at birth.

use std::sync::atomic::Ordering;

use pagetide_core::types::Nanos;
use pagetide_sys::fd::Fd;
use pagetide_sys::text::Text;
use pagetide_sys::{Errno, clock, file, proc, signal, socket, stderr};

use crate::control::Control;
use crate::foothold::{self, View};
use crate::protocol::{ALONE, CHILD, Hello};
use crate::setup::BUDGET_PAGES_MIN;
use crate::shares;
use crate::supervise::image;
use crate::supervise::near::time_to_fill_ns;
use crate::supervise::places::Place;
use crate::supervise::start::{self, Oddity, Refusal, Starting};
use crate::supervise::tree::{Link, Process, Tree, Words};
use crate::supervise::{Birth, FaultMode, Supervisor};

/// A budget may be exceeded by so much, beside a fiftieth of it, while pages are on their way out: 8 MiB.
const EXCESS_PAGES: u64 = 2048;
/// A forked child that runs has words of its own long before: 0.1 s, in which it has run for two clock ticks, or touched more than
/// it does before. One that waits for a CPU or for its first page may take long: 2 s.
const FORKED_WAIT_NS: Nanos = 100_000_000;
const FORKED_TICKS: u64 = 2;
const FORKED_FAULTS: u64 = 100;
const FORKED_WAIT_NS_MAX: Nanos = 2_000_000_000;
/// No process keeps more pages than this, whatever its page says.
const RESIDENT_MAX: u64 = 1 << 40;

impl Process {
    /// It has no agent, and could have one.
    pub(super) fn may_start(&self) -> bool {
        self.link.is_none() && self.starting.is_none() && !self.is_refused && !self.is_borrower && self.resident > 0
    }

    /// Pages that it was let fill, and is not seen to have filled.
    fn promised_pages(&self) -> u64 {
        self.promised.map_or(0, |(pages, _)| pages.saturating_sub(self.own_part()))
    }

    /// It will be managed soon.
    pub(super) fn is_about_to_start(&self) -> bool {
        let rings = self.view.is_some_and(|view| view.state == foothold::NATIVE && view.wanted_pages > 0);
        self.link.is_none() && (self.starting.is_some() || rings)
    }

    /// The thread `tid` of it is being stopped to start its agent.
    pub(super) fn is_started_by(&self, tid: i32) -> bool {
        self.starting.as_ref().is_some_and(|starting| starting.asks(tid))
    }

    /// What its agent says it keeps.
    pub(super) fn told_resident(&self) -> Option<u64> {
        let entry = self.link.as_ref()?.control.entry();
        let pages = entry.resident_pages.load(Ordering::Relaxed);
        entry.is_managed().then_some(pages.min(RESIDENT_MAX))
    }

    /// Its words are its own, not those of the process that it was copied from.
    fn has_own_words(&self) -> bool {
        self.view.is_some_and(|view| Some(view.pid) == own_number(self.pid))
    }
}

impl Tree {
    /// Where the words of process `pid` are.
    pub(super) fn words_of(&self, pid: i32) -> Option<u64> {
        self.process(pid).and_then(|process| match process.words {
            Words::At(at) => Some(at),
            Words::Sought(_) | Words::None => None,
        })
    }
}

impl Supervisor {
    /// Threads that have mapped more than was left wait for a word.
    pub(super) fn answer_bells(&mut self) {
        let now = clock::now();
        for process in &mut self.tree.list {
            process.promised = process.promised.filter(|&(_, until)| now < until && process.link.is_none());
        }
        let left_of_all = self.left_pages();
        let mut promised: u64 = self.tree.list.iter().map(Process::promised_pages).sum();
        for index in 0..self.tree.list.len() {
            let process = &self.tree.list[index];
            let (Words::At(at), Some(view)) = (process.words, process.view) else { continue };
            if process.is_complete {
                self.tree.list[index].let_wait_no_more(at);
            }
            let process = &self.tree.list[index];
            if view.state != foothold::NATIVE || process.link.is_some() {
                continue;
            }
            if view.budget_pages != self.budget_pages {
                process.correct_budget(at, view, self.budget_pages);
            }
            // What it was let fill itself it may never fill, as a JVM does.
            let of_others = promised.saturating_sub(process.promised_pages());
            let left = left_of_all.saturating_sub(of_others);
            if view.wanted_pages == 0 {
                if view.left_pages != u64::MAX && view.left_pages != left && process.rings {
                    start::write(process.thread, at + foothold::LEFT_AT, &left.to_ne_bytes());
                }
                continue;
            }
            if view.wanted_pages > left && !process.is_refused {
                self.ask(index);
                continue;
            }
            let process = &mut self.tree.list[index];
            // The program may write any number; one that can have no agent gets what it asks for.
            let wanted = view.wanted_pages.min(left);
            process.promised = Some((process.own_part() + wanted, now + time_to_fill_ns(wanted)));
            process.rings = true;
            promised = of_others + process.promised_pages();
            let word = if process.is_refused { u64::MAX } else { left - wanted };
            start::write(process.thread, at + foothold::LEFT_AT, &word.to_ne_bytes());
            start::write(process.thread, at + foothold::WANTED_AT, &0_u64.to_ne_bytes());
        }
    }

    /// Begin to start the agent of a process.
    pub(super) fn ask(&mut self, index: usize) {
        let process = &mut self.tree.list[index];
        if process.starting.is_some() || process.link.is_some() {
            return;
        }
        match process.words {
            // It may be loading the object.
            Words::Sought(_) => return,
            Words::None => {
                let pid = process.pid;
                let Some(why) = image::why_absent(pid, &self.library) else { return };
                process.is_refused = true;
                let name = name_of(pid);
                return self
                    .tell_once("library", &format!("process {name} {why}: its memory counts, and cannot be paged"));
            }
            Words::At(_) => {}
        }
        let Some(view) = process.view else { return };
        if !process.has_own_words() {
            return self.refuse_copy(index, view.pid);
        }
        process.foreign = None;
        if view.state == foothold::NATIVE {
            self.begin(index);
        }
    }

    /// A forked child takes words of its own as soon as it runs. Who keeps those of its maker is a copy of which no fork handler was told
    /// (`clone`, `_Fork`, the program's own system call instructions), and knows nothing of us.
    fn refuse_copy(&mut self, index: usize, maker: i32) {
        let process = &mut self.tree.list[index];
        let (pid, parent, now) = (process.pid, process.parent, clock::now());
        if process.is_complete || is_stopped(pid) || self.births.iter().any(|birth| birth.parent == parent) {
            process.foreign = None;
            return;
        }
        let (since, _) = *process.foreign.get_or_insert((now, maker));
        let runs = || {
            proc::stat(Some(pid)).is_ok_and(|stat| {
                stat.user_ticks + stat.system_ticks >= FORKED_TICKS || stat.minor_faults >= FORKED_FAULTS
            })
        };
        let waited = now - since;
        if waited < FORKED_WAIT_NS || (waited < FORKED_WAIT_NS_MAX && !runs()) {
            return;
        }
        // Its threads wait for no agent.
        process.is_refused = true;
        let why = "was copied by a system call that no fork handler is told of (clone, _Fork)";
        self.tell_once("copy", &format!("process {} {why}: its memory counts, and cannot be paged", name_of(pid)));
    }

    fn begin(&mut self, index: usize) {
        let process = &self.tree.list[index];
        let Words::At(at) = process.words else { panic!("an agent is started in a process whose words are known") };
        match Starting::ask(process.pid, at, self.mode()) {
            Ok(starting) => self.tree.list[index].starting = Some(starting),
            Err(refusal) => self.refuse(index, refusal),
        }
    }

    /// A thread that was asked to stop has changed.
    pub(super) fn note_stop(&mut self, index: usize, tid: i32, status: i32) {
        let Some(starting) = &mut self.tree.list[index].starting else { return };
        match starting.note(tid, status) {
            Ok(()) => self.note_end(tid, status),
            Err(refusal) => self.refuse(index, refusal),
        }
    }

    fn mode(&self) -> FaultMode {
        if self.hello.signal_mode { FaultMode::Signal } else { FaultMode::Thread }
    }

    /// Go on with the processes whose agents are being started.
    pub(super) fn serve_starting(&mut self) {
        for index in 0..self.tree.list.len() {
            let Some(mut starting) = self.tree.list[index].starting.take() else { continue };
            let mode = self.mode();
            let process = &mut self.tree.list[index];
            if starting.is_leaving() {
                self.let_go(index, starting);
                continue;
            }
            if starting.is_held() {
                if process.link.is_some() && !process.is_managed() && !starting.is_overdue() {
                    process.starting = Some(starting);
                } else {
                    self.let_go(index, starting);
                }
                continue;
            }
            let Words::At(at) = process.words else {
                // It became another program meanwhile.
                self.let_go(index, starting);
                continue;
            };
            match starting.is_ready() {
                Ok(false) => process.starting = Some(starting),
                Ok(true) => {
                    let (pid, state) = (process.pid, process.view.map(|view| view.state));
                    let is_copy = state.is_some_and(|state| state != foothold::NATIVE);
                    let takes_written = state == Some(foothold::NATIVE)
                        && starting.may_have_written()
                        && self.tree.has_memory_alone(pid);
                    let mut meanwhile = || self.note_copies_if_due(clock::now());
                    let started = starting.finish(pid, at, mode, is_copy, takes_written, &mut meanwhile);
                    if started.is_err() || is_copy {
                        // A forked child waits for its agent by itself.
                        self.let_go(index, starting);
                    } else {
                        self.tree.list[index].starting = Some(starting);
                    }
                    match started {
                        Ok(socket) => self.link(index, socket),
                        Err(refusal) => self.refuse(index, refusal),
                    }
                }
                Err(refusal) => {
                    starting.let_others_go();
                    self.refuse(index, refusal);
                }
            }
        }
    }

    fn let_go(&mut self, index: usize, starting: Starting) {
        match starting.let_go() {
            Ok(left) => self.tree.list[index].starting = left,
            Err(refusal) => self.refuse(index, refusal),
        }
    }

    /// The agent has started: tell it what it needs.
    fn link(&mut self, index: usize, socket: Fd) {
        let Process { pid, thread, .. } = self.tree.list[index];
        let control = Control::create();
        let others = self.tree.list.iter().filter(|process| process.is_about_to_start()).count() as u64;
        let own = self.tree.list[index].resident;
        self.note_linked(pid);
        // From now on it counts whole, as do those with an agent.
        let again = self.tree.list[index].shared_pages();
        let share = shares::first(self.countable_pages() + again, own, self.counted_pages() + again, others);
        let birth = self.births.iter_mut().find(|birth| birth.child == Some(pid) && !birth.is_answered);
        let is_born = birth.is_some();
        let call = birth.and_then(|birth| {
            let (ours, theirs) = socket::pair().ok()?;
            let parent = self.tree.process(birth.parent)?.link.as_ref()?;
            socket::send(&parent.socket, CHILD, &[&ours], false).ok()?;
            birth.is_answered = true;
            Some(theirs)
        });
        let is_forked = call.is_some();
        if is_born && !is_forked {
            // As a fresh process's its agent would serve zeroes until the end of its parent is heard of.
            return self.end_unserved(index, "its parent ended before its memory was handed over");
        }
        let linked = control.and_then(|(control, page)| {
            let relaxed = Ordering::Relaxed;
            control.entry().budget_pages.store(self.budget_pages, relaxed);
            control.entry().share_pages.store(share, relaxed);
            if self.draws_spans {
                control.entry().spans.want();
            }
            // The program may have given up the right to make files there. Where none can be made, it does without that place.
            let open = self.places.iter_mut().filter(|place| place.drain.is_none());
            let swap: Vec<(Fd, &Place)> = open.filter_map(|place| Some((place.file_for(pid)?, &*place))).collect();
            let devices = swap.iter().map(|(_, place)| place.offer).collect();
            let hello = Hello { forked: call.is_some(), devices, ..self.hello.clone() };
            let open = |name: &str| {
                let path = Text::<64>::format(format_args!("/proc/{thread}/{name}"));
                Fd::open(path.as_c_str(), file::flags::READ, 0)
            };
            let [pagemap, maps, statm] = [open("pagemap")?, open("maps")?, open("statm")?];
            let mut fds = vec![&page, &self.proc, self.lifeline.reader(), &pagemap, &maps, &statm];
            fds.extend(&call);
            fds.extend(swap.iter().flat_map(|(file, place)| std::iter::once(file).chain(place.claim())));
            fds.extend(&self.record_directory);
            fds.extend(&self.uffd_device);
            socket::send(&socket, hello.encode().as_bytes(), &fds, false)?;
            Ok(Link { socket, control, is_signal_mode: self.hello.signal_mode })
        });
        match linked {
            Ok(link) => {
                self.tree.list[index].link = Some(link);
                self.say_what_is_given();
                self.greet(pid, is_forked);
            }
            Err(errno) => {
                // An agent that hears nothing ends its process; so does this.
                stderr::tell(format_args!(
                    "pagetide: process {pid}: its agent cannot be told anything ({}): it is killed",
                    errno.name()
                ));
                let _ = signal::kill(pid, signal::number::KILL);
            }
        }
    }

    fn refuse(&mut self, index: usize, refusal: Refusal) {
        let process = &mut self.tree.list[index];
        process.is_refused = true;
        let pid = process.pid;
        let name = name_of(pid);
        let counts = "its memory counts, and cannot be paged";
        match refusal {
            Refusal::Ended(Some(status)) => self.note_end(pid, status),
            Refusal::Ended(None) => self.tree.list[index].is_refused = false,
            // It runs another program by now: the next look seeks its words.
            Refusal::Foreign(Oddity::Words) if !process.has_words() => {}
            Refusal::Filter => self.tell_once("filter", &format!("process {name} has a system call filter: {counts}")),
            Refusal::Lasting => {
                let why = "uses io_uring or AIO, which signal mode cannot serve";
                self.tell_once("lasting", &format!("process {name} {why}: {counts}"));
            }
            Refusal::Emulator => {
                let why = "is a program that runs another one inside itself";
                self.tell_once("emulator", &format!("process {name} {why}: {counts}"));
            }
            Refusal::Foreign(what) => {
                self.tell_once("foreign", &format!("process {name} does not answer ({what}): {counts}"));
            }
            Refusal::Errno(errno) => {
                let why = match errno {
                    Errno::EPERM => "another process traces it",
                    Errno::EMFILE => "its limit on descriptors, ulimit -n, is too low",
                    other => other.name(),
                };
                self.tell_once("errno", &format!("process {name}: no agent can be started ({why}): {counts}"));
            }
        }
        if self.hello.signal_mode && self.births.iter().any(|birth| birth.child == Some(pid) && !birth.is_answered) {
            self.end_unserved(index, "no agent can be started in it");
        }
        self.answer_alone(pid);
    }

    /// A forked child finds pages missing that nobody will bring, and must not go on.
    fn end_unserved(&mut self, index: usize, why: &str) {
        let process = &mut self.tree.list[index];
        process.is_ended = true;
        let pid = process.pid;
        stderr::tell(format_args!("pagetide: process {pid}: its memory was forked, and {why}: it is killed"));
        let _ = signal::kill(pid, signal::number::KILL);
    }

    /// Forked children whose parents have ended before they were told of, or before they were found, wait for nobody.
    pub(super) fn end_orphans(&mut self) {
        let is_expected = self.births.iter().any(|birth| birth.child.is_none());
        for index in 0..self.tree.list.len() {
            let process = &self.tree.list[index];
            let is_waiting = process.view.is_some_and(|view| view.state == foothold::FORKED);
            let is_known = process.link.is_some() || process.starting.is_some() || is_expected || process.is_complete;
            let is_told = self.births.iter().any(|birth| birth.child == Some(process.pid));
            // In signal mode a child is told of before it is made, else by an agent that has yet to read of the copy.
            let mut others = self.tree.list.iter().filter(|other| other.pid == process.parent);
            let may_be_told = !self.hello.signal_mode && others.any(|parent| parent.link.is_some());
            let is_ending = process.is_gone || process.is_ended;
            let is_orphan = is_waiting && !is_ending && !is_known && !is_told && !may_be_told;
            // What has been told since is heard before the next look.
            if is_orphan && process.is_orphan && !is_killed(process.pid) {
                self.end_unserved(index, "its parent has ended before it was handed over");
            }
            self.tree.list[index].is_orphan = is_orphan;
        }
    }

    /// If process `pid` was just born: its parent's agent is to complete its memory.
    fn answer_alone(&mut self, pid: i32) {
        let birth = self.births.iter_mut().find(|birth| birth.child == Some(pid) && !birth.is_answered);
        let Some(birth) = birth else { return };
        birth.is_answered = true;
        let parent = self.tree.process(birth.parent);
        if let Some(link) = parent.and_then(|parent| parent.link.as_ref()) {
            let _ = socket::send(&link.socket, ALONE, &[], false);
        }
    }

    /// Find the children that agents have told of, and start their agents.
    pub(super) fn serve_births(&mut self) {
        for index in 0..self.births.len() {
            let Birth { parent, child: None, is_answered: false } = self.births[index] else { continue };
            let Some(at) = self.tree.words_of(parent) else { continue };
            self.tree.scan_children(parent);
            let taken: Vec<i32> = self.births.iter().filter_map(|birth| birth.child).collect();
            let child = self.tree.list.iter_mut().position(|process| {
                let is_free = process.link.is_none() && process.starting.is_none() && !taken.contains(&process.pid);
                process.parent == parent && is_free && process.is_newborn(at)
            });
            if let Some(child) = child {
                // What it has decides what it may keep.
                self.totals.processes += u32::from(self.tree.list[child].look(&self.library));
                let pid = self.tree.list[child].pid;
                let is_stopped = is_stopped(pid);
                if self.hello.signal_mode && is_stopped {
                    // Only an agent of its own can serve it: it and its parent wait until it is continued.
                    continue;
                }
                self.births[index].child = Some(pid);
                if self.hello.signal_mode {
                    self.expect_sparing(pid, parent);
                    self.begin(child);
                } else if is_stopped || self.is_small(parent) {
                    // No thread of it runs, so none of ours would; or an agent would take more than it could save. It goes on
                    // without, and may get one when it has grown.
                    self.answer_alone(pid);
                } else {
                    self.expect_sparing(pid, parent);
                    self.begin(child);
                }
            }
        }
    }

    /// True if so little of a process is managed that a child of it need not be.
    fn is_small(&self, pid: i32) -> bool {
        let process = self.tree.process(pid);
        let link = process.and_then(|process| process.link.as_ref());
        let managed = |link: &Link| link.control.entry().managed_pages_max.load(Ordering::Relaxed);
        link.is_some_and(|link| managed(link) <= 4 * BUDGET_PAGES_MIN)
    }

    /// Each process that pages keeps something, however many there are: where that is more than the budget and `resident` pages are, too,
    /// no paging helps.
    pub(super) fn tell_of_floors(&mut self, resident: u64) {
        let allowed = self.budget_pages + self.budget_pages / 50 + EXCESS_PAGES;
        if self.is_paused || resident <= allowed || self.pinned_pages(self.budget_pages) <= self.budget_pages {
            return;
        }
        let paging = self.tree.list.iter().filter(|process| process.is_managed()).count();
        let floor_kib = shares::floor(self.budget_pages, paging) * 4;
        let [resident, budget] = [resident, self.budget_pages].map(|pages| pages >> 8);
        let (who, advice) = match paging {
            1 => ("the process that pages".into(), "give it more"),
            _ => (format!("{paging} processes page at once, and each"), "give it more, or start fewer at once"),
        };
        let text = format!(
            "{who} keeps {floor_kib} KiB and what cannot be paged: {resident} MiB in all, beyond the budget of {budget} MiB; {advice}"
        );
        self.tell_once("floors", &text);
    }

    /// Shared memory stays where it is, whoever has it; an agent tells nothing of it, and there may be none.
    pub(super) fn look_at_shared_memory(&mut self) {
        let quarter = (self.budget_pages / 4).max(1);
        let shared = self.tree.list.iter_mut().map(|process| (process.shared_memory(quarter), process.pid));
        let Some((pages, pid)) = shared.max().filter(|(pages, _)| *pages >= quarter) else { return };
        self.totals.note_shared(pages);
        if !self.told.contains("shared") {
            let (name, mib) = (name_of(pid), pages.div_ceil(256));
            self.tell_once("shared", &format!("process {name} has {mib} MiB of shared memory: not counted, not paged"));
        }
    }

    /// A line for the person, once for each `kind`.
    fn tell_once(&mut self, kind: &'static str, text: &str) {
        if self.told.insert(kind) {
            stderr::tell(format_args!("pagetide: {text}"));
        }
    }
}

impl Process {
    /// What its environment said was right when the run began.
    fn correct_budget(&self, at: u64, view: View, budget_pages: u64) {
        start::write(self.thread, at + foothold::BUDGET_AT, &budget_pages.to_ne_bytes());
        // Who has rung knows what is left, and who is refused need not ring.
        if !self.rings && view.left_pages != u64::MAX {
            let left = foothold::left_at_first(budget_pages);
            start::write(self.thread, at + foothold::LEFT_AT, &left.to_ne_bytes());
        }
    }

    /// Its memory is complete: let it go on, wherever it has come to.
    fn let_wait_no_more(&mut self, at: u64) {
        let Some(view) = start::read(self.thread, at) else { return };
        let is_copy = view.state == foothold::MANAGED && Some(view.pid) != own_number(self.pid);
        if view.state == foothold::FORKED || is_copy {
            start::write(self.thread, at + foothold::STATE_AT, &foothold::COMPLETE.to_ne_bytes());
        } else if view.state == foothold::NATIVE {
            self.is_complete = false;
        }
    }

    /// A forked child that waits for its agent, or was stopped before it could: its words are at the parent's address.
    fn is_newborn(&mut self, at: u64) -> bool {
        let Some(view) = start::read(self.thread, at) else { return false };
        let is_copy = view.state == foothold::MANAGED && Some(view.pid) != own_number(self.pid) && is_stopped(self.pid);
        if view.state != foothold::FORKED && !is_copy {
            return false;
        }
        self.words = Words::At(at);
        self.view = Some(view);
        true
    }
}

fn is_stopped(pid: i32) -> bool {
    proc::stat(Some(pid)).is_ok_and(|stat| matches!(stat.state, b'T' | b't'))
}

/// The number that a process has in its own namespace.
fn own_number(pid: i32) -> Option<i32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    line.map_or(Some(pid), |line| line.split_ascii_whitespace().last()?.parse().ok())
}

/// A process's number and name.
fn name_of(pid: i32) -> String {
    let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("{pid} ({})", crate::supervise::printable(name.trim_ascii()))
}

/// True if somebody has killed the process, and it has not got to ending yet.
fn is_killed(pid: i32) -> bool {
    proc::status(Some(pid)).is_ok_and(|status| status.pending >> (signal::number::KILL - 1) & 1 != 0)
}
