//! What the threads of the programs do: loads, stores and system calls, each in steps between which anything may happen.
//!
//! A thread sleeps in a fault until the page is given or it is woken, and in a system call until its message has been read. The
//! count of changes falls when the *thread* goes on, not when the message is read.

use std::collections::VecDeque;

use pagetide_sys::Errno;

use super::gate::Gate;
use super::memory::{Entry, ForkPolicy, Rights};
use super::{Pid, World};

/// A thread of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tid(pub u32);

/// Pages from one page number to another, which is not part of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First page number.
    pub start: u64,
    /// Page number behind the last.
    pub end: u64,
}

impl Extent {
    /// `pages` pages from `start` on.
    pub const fn new(start: u64, pages: u64) -> Self {
        Self { start, end: start + pages }
    }

    /// Pages.
    pub const fn pages(self) -> u64 {
        self.end - self.start
    }

    /// As many pages from `start` on.
    pub const fn at(self, start: u64) -> Self {
        Self::new(start, self.pages())
    }
}

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Load from this page.
    Load(u64),
    /// Store to this page: page and value.
    Store(u64, u64),
    /// mmap of anonymous memory at a place that must be free
    Map(Extent),
    /// munmap
    Unmap(Extent),
    /// The same where it fails (EPERM) once it has told: a page is sealed (mseal). As an mmap that is to replace the pages, for want of
    /// memory that may be accounted.
    UnmapInVain(Extent),
    /// mremap to a place that is as long or longer, replacing what is there.
    Remap(Extent, Extent),
    /// mremap to a place of the same length that begins at this page, with `MREMAP_DONTUNMAP`: the old place stays mapped, and is empty.
    RemapKeeping(Extent, u64),
    /// mremap of the end of a mapping that stays where it is, and has so many pages more if there is room behind it
    Grow(Extent, u64),
    /// `MADV_DONTNEED`
    Discard(Extent),
    /// `MADV_POPULATE_WRITE`
    Populate(Extent),
    /// `MADV_COLLAPSE`: huge pages of what is there.
    Collapse(Extent),
    /// `MADV_GUARD_INSTALL`
    GuardInstall(Extent),
    /// `MADV_GUARD_REMOVE`
    GuardRemove(Extent),
    /// mprotect
    Protect(Extent, Rights),
    /// mlock2 with `MLOCK_ONFAULT`
    Lock(Extent),
    /// munlock
    Unlock(Extent),
    /// `MADV_DONTFORK`, `MADV_WIPEONFORK`, and back
    OnFork(Extent, ForkPolicy),
    /// A device begins to use this page, which is faulted in for that.
    Pin(u64),
    /// The device has written this value, and is done.
    Unpin(u64),
    /// fork
    Fork,
    /// `PR_SET_THP_DISABLE`: no page of the process, and of children that are copied from it, becomes a huge one; or they may again.
    ForbidHuge(bool),
    /// What the threads of a program do at a gate of their own.
    AtGate(Gate),
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Done.
    Done,
    /// A load's value.
    Value(u64),
    /// The new process.
    Child(Pid),
    /// SIGSEGV.
    Segv,
    /// SIGBUS.
    Bus,
    /// An error.
    Failed(Errno),
}

/// Where a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// In no call.
    Idle,
    /// Has more to do.
    Runs,
    /// Sleeps.
    Sleeps,
    /// The call has ended.
    Ended(Answer),
}

/// What happened to the programs, in the order in which it took effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// The thread began the call.
    Began(Tid, Call),
    /// The address space was copied for this child, in a call that has not ended yet.
    Copied(Tid, Pid),
    /// The call ended.
    Ended(Tid, Call, Answer),
    /// What the thread has copied runs, as this process and this first thread.
    Started(Tid, Pid, Tid),
    /// The runtime looked which of these pages are there.
    Looked(Pid, Extent),
    /// The runtime filled this page, which had a guard, and it has none any more.
    Covered(Pid, u64),
}

/// A fault that is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FaultNote {
    pub(super) thread: Tid,
    pub(super) vpn: u64,
    pub(super) write: bool,
}

/// A change that is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EventNote {
    pub(super) thread: Tid,
    pub(super) change: Change,
}

/// A change of the address space, in page numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Fork(Pid),
    Remap { from: u64, to: u64, pages: u64 },
    Remove { vpn: u64, end: u64 },
    Unmap { vpn: u64, end: u64 },
}

/// What keeps a thread asleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sleep {
    No,
    /// In a fault on this page.
    Fault(u64),
    /// Until its message is read.
    Event,
}

/// A thread.
#[derive(Debug)]
pub(super) struct Thread {
    pub(super) pid: Pid,
    /// Calls that it makes one after the other.
    next: VecDeque<Call>,
    /// Those that the first thread of the next child begins with.
    in_child: VecDeque<Call>,
    call: Option<Call>,
    /// The call as it was begun.
    begun: Option<Call>,
    sleep: Sleep,
    /// Its message was read: the change is over when the thread goes on.
    was_read: bool,
    /// Changes that it has yet to tell, one after the other.
    pub(super) untold: VecDeque<Change>,
    /// What the call answers once all is told.
    answer: Option<Answer>,
    /// How far a call on a range has come.
    at: u64,
    /// What a discard has told and not done yet: first page number, and the one behind the last.
    told: Option<(u64, u64)>,
    /// A page that a device uses for this thread.
    pin: Option<super::PageId>,
}

/// The copy that this thread makes, while it does not run yet.
pub(super) fn unborn(thread: &Thread) -> Option<Pid> {
    if let Some(Answer::Child(child)) = thread.answer
        && thread.call.is_some()
    {
        return Some(child);
    }
    None
}

/// What one step of an access came to.
enum Touch {
    There(Entry),
    Sleep,
    Dead(Answer),
}

impl World {
    /// A thread of this process.
    pub fn new_thread(&mut self, pid: Pid) -> Tid {
        let tid = Tid(self.next_tid);
        self.next_tid += 1;
        let thread = Thread {
            pid,
            next: VecDeque::new(),
            in_child: VecDeque::new(),
            call: None,
            begun: None,
            sleep: Sleep::No,
            was_read: false,
            untold: VecDeque::new(),
            answer: None,
            at: 0,
            told: None,
            pin: None,
        };
        self.threads.insert(tid, thread);
        tid
    }

    /// The thread makes this call when it has made those before.
    pub fn will(&mut self, tid: Tid, call: Call) {
        self.thread(tid).next.push_back(call);
    }

    /// The next child that the thread forks has a thread from the start, which makes this call when it has made those before.
    pub fn will_in_child(&mut self, tid: Tid, call: Call) {
        self.thread(tid).in_child.push_back(call);
    }

    /// Calls that the thread has yet to end.
    pub fn calls_left(&self, tid: Tid) -> usize {
        self.threads.get(&tid).map_or(0, |thread| thread.next.len() + usize::from(thread.call.is_some()))
    }

    /// The threads of all processes.
    pub fn threads(&self) -> impl Iterator<Item = Tid> {
        self.threads.keys().copied()
    }

    /// What has happened since the last call.
    pub fn take_log(&mut self) -> Vec<Happened> {
        std::mem::take(&mut self.log)
    }

    /// Now and then the programs go on: one step of one thread.
    pub(super) fn interlude(&mut self) {
        if !self.chance(self.quirks.interlude) {
            return;
        }
        let count = u64::try_from(self.threads.len()).expect("few threads");
        let drawn = self.threads.keys().nth(usize::try_from(self.dice % count.max(1)).expect("few threads")).copied();
        if let Some(tid) = drawn {
            self.step(tid);
        }
    }

    fn thread(&mut self, tid: Tid) -> &mut Thread {
        self.threads.get_mut(&tid).expect("the thread lives")
    }

    /// One step of the thread's call.
    pub fn step(&mut self, tid: Tid) -> Progress {
        let thread = self.thread(tid);
        let pid = thread.pid;
        let is_move = |call: &Call| matches!(call, Call::Remap(..) | Call::RemapKeeping(..) | Call::Grow(..));
        let moves_next = thread.call.is_none() && thread.next.front().is_some_and(is_move);
        if moves_next && self.process_mut(pid).monitor.keeps_moves {
            return Progress::Sleeps;
        }
        let thread = self.thread(tid);
        let Some(call) = thread.call.or_else(|| thread.next.pop_front()) else { return Progress::Idle };
        if thread.begun.is_none() {
            (thread.call, thread.begun, thread.answer, thread.at) = (Some(call), Some(call), None, 0);
            self.log.push(Happened::Began(tid, call));
        }
        let &mut Thread { sleep, was_read, .. } = self.thread(tid);
        match sleep {
            Sleep::Fault(_) => return Progress::Sleeps,
            Sleep::Event if !was_read => return Progress::Sleeps,
            Sleep::Event => {
                let thread = self.thread(tid);
                (thread.sleep, thread.was_read) = (Sleep::No, false);
                self.process_mut(pid).monitor.changing -= 1;
            }
            Sleep::No => {}
        }
        if let Some(change) = self.thread(tid).untold.pop_front() {
            self.thread(tid).sleep = Sleep::Event;
            self.process_mut(pid).monitor.events.push_back(EventNote { thread: tid, change });
            return Progress::Sleeps;
        }
        let answer = match self.thread(tid).answer {
            Some(answer) => Some(answer),
            None => self.go_on(tid, pid, call),
        };
        let thread = self.thread(tid);
        match answer {
            Some(answer) if thread.untold.is_empty() && thread.sleep == Sleep::No => {
                thread.call = None;
                let begun = thread.begun.take().expect("it was begun");
                self.log.push(Happened::Ended(tid, begun, answer));
                if let Answer::Child(child) = answer {
                    self.begin_child(tid, child);
                }
                Progress::Ended(answer)
            }
            Some(answer) => {
                thread.answer = Some(answer);
                Progress::Runs
            }
            None if thread.sleep == Sleep::No => Progress::Runs,
            None => Progress::Sleeps,
        }
    }

    /// A copy runs as soon as the call that made it ends.
    fn begin_child(&mut self, tid: Tid, child: Pid) {
        let calls = std::mem::take(&mut self.thread(tid).in_child);
        if !calls.is_empty() && self.is_alive(child) {
            let first = self.new_thread(child);
            self.thread(first).next = calls;
            self.log.push(Happened::Started(tid, child, first));
        }
    }

    /// None: there is more to do.
    fn go_on(&mut self, tid: Tid, pid: Pid, call: Call) -> Option<Answer> {
        match call {
            Call::Load(vpn) => match self.touch(tid, pid, vpn, false) {
                Touch::There(entry) => Some(Answer::Value(self.value_of(entry))),
                Touch::Sleep => None,
                Touch::Dead(answer) => Some(answer),
            },
            Call::Store(vpn, value) => self.on_page(tid, pid, vpn, |world, page| {
                world.page_mut(page).value = value;
                Answer::Done
            }),
            Call::Pin(vpn) => self.on_page(tid, pid, vpn, |world, page| {
                world.page_mut(page).pins += 1;
                world.thread(tid).pin = Some(page);
                Answer::Done
            }),
            Call::Unpin(value) => {
                // None where the page could not be pinned.
                if let Some(page) = self.thread(tid).pin.take() {
                    self.page_mut(page).value = value;
                    self.unpin(page);
                }
                Some(Answer::Done)
            }
            Call::Map(Extent { start, end }) => {
                if self.process(pid).within(start, end).next().is_some() {
                    return Some(Answer::Failed(Errno::EEXIST));
                }
                self.process_mut(pid).insert(super::Mapping::anon(start, end));
                Some(Answer::Done)
            }
            Call::Unmap(extent) => {
                self.unmap(tid, pid, extent.start, extent.end);
                Some(Answer::Done)
            }
            Call::UnmapInVain(extent) => {
                self.tell_unmap(tid, pid, extent.start, extent.end);
                Some(Answer::Failed(Errno::EPERM))
            }
            Call::Remap(from, to) => Some(self.remap(tid, pid, from, to, false)),
            Call::RemapKeeping(from, to) => Some(self.remap(tid, pid, from, from.at(to), true)),
            Call::Grow(extent, by) => Some(self.grow(pid, extent, by)),
            Call::Discard(extent) => self.discard(tid, pid, extent.start, extent.end),
            Call::Populate(extent) => self.populate(tid, pid, extent.start, extent.end),
            Call::Collapse(extent) => Some(self.collapse(pid, extent)),
            Call::GuardInstall(extent) => Some(self.guard_install(pid, extent)),
            Call::GuardRemove(extent) => Some(self.guard_remove(pid, extent)),
            Call::Protect(extent, rights) => Some(self.set(pid, extent, |mapping| mapping.rights = rights)),
            Call::Lock(extent) => Some(self.set(pid, extent, |mapping| mapping.locked = true)),
            Call::Unlock(extent) => Some(self.set(pid, extent, |mapping| mapping.locked = false)),
            Call::OnFork(extent, policy) => Some(self.set(pid, extent, |mapping| mapping.fork = policy)),
            Call::Fork => Some(self.fork(tid, pid)),
            Call::ForbidHuge(is_forbidden) => {
                self.process_mut(pid).has_no_huge = is_forbidden;
                Some(Answer::Done)
            }
            Call::AtGate(what) => self.at_gate(pid, what),
        }
    }

    /// Do something with a page that may be written.
    fn on_page(
        &mut self,
        tid: Tid,
        pid: Pid,
        vpn: u64,
        what: impl FnOnce(&mut Self, super::PageId) -> Answer,
    ) -> Option<Answer> {
        match self.touch(tid, pid, vpn, true) {
            Touch::There(Entry::Page { page, .. }) => Some(what(self, page)),
            Touch::There(entry) => unreachable!("a page that may be written is one: {entry:?}"),
            Touch::Sleep => None,
            Touch::Dead(answer) => Some(answer),
        }
    }

    /// An access, as the processor and the fault handler make it.
    fn touch(&mut self, tid: Tid, pid: Pid, vpn: u64, write: bool) -> Touch {
        let process = self.process(pid);
        let Some(&mapping) = process.at(vpn) else { return Touch::Dead(Answer::Segv) };
        if !mapping.rights.allow(write) {
            return Touch::Dead(Answer::Segv);
        }
        match process.entries.get(&vpn).copied() {
            Some(Entry::Poison) => Touch::Dead(Answer::Bus),
            Some(Entry::Guard) => Touch::Dead(Answer::Segv),
            None if mapping.registered => {
                self.thread(tid).sleep = Sleep::Fault(vpn);
                self.process_mut(pid).monitor.faults.push_back(FaultNote { thread: tid, vpn, write });
                Touch::Sleep
            }
            None | Some(Entry::Zero) if !write => {
                self.process_mut(pid).entries.insert(vpn, Entry::Zero);
                Touch::There(Entry::Zero)
            }
            None if self.huge_place(pid, vpn).is_some() => {
                let (start, end) = self.huge_place(pid, vpn).expect("it was asked for");
                self.make_huge(pid, start, end);
                Touch::There(self.process(pid).entries[&vpn])
            }
            None | Some(Entry::Zero) => Touch::There(self.set_entry(pid, vpn, 0)),
            Some(entry @ Entry::Page { page, exclusive }) => {
                if !write || exclusive {
                    return Touch::There(entry);
                }
                if self.page(page).mapped > 1 {
                    let value = self.page(page).value;
                    return Touch::There(self.set_entry(pid, vpn, value));
                }
                let own = Entry::Page { page, exclusive: true };
                self.process_mut(pid).entries.insert(vpn, own);
                Touch::There(own)
            }
        }
    }

    /// A page of its own for this address.
    fn set_entry(&mut self, pid: Pid, vpn: u64, value: u64) -> Entry {
        let entry = self.new_page(value);
        if let Some(before) = self.process_mut(pid).entries.insert(vpn, entry) {
            self.release(before);
        }
        entry
    }

    /// Threads that sleep in faults on `[vpn, end)` try again.
    pub(super) fn wake_faults(&mut self, pid: Pid, vpn: u64, end: u64) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.monitor.faults.retain(|fault| !(vpn..end).contains(&fault.vpn));
        }
        for thread in self.threads.values_mut().filter(|thread| thread.pid == pid) {
            if matches!(thread.sleep, Sleep::Fault(at) if (vpn..end).contains(&at)) {
                thread.sleep = Sleep::No;
            }
        }
    }

    /// The message of this thread was read.
    pub(super) fn was_read(&mut self, tid: Tid) {
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.was_read = true;
        }
    }

    /// The change is to be told by the thread.
    fn tell(&mut self, tid: Tid, pid: Pid, change: Change) {
        self.process_mut(pid).monitor.changing += 1;
        self.thread(tid).untold.push_back(change);
    }

    fn is_registered(&self, pid: Pid, vpn: u64, end: u64) -> bool {
        self.process(pid).within(vpn, end).any(|mapping| mapping.registered)
    }

    fn tell_unmap(&mut self, tid: Tid, pid: Pid, vpn: u64, end: u64) {
        if self.is_registered(pid, vpn, end) {
            self.tell(tid, pid, Change::Unmap { vpn, end });
        }
    }

    fn unmap(&mut self, tid: Tid, pid: Pid, vpn: u64, end: u64) {
        self.tell_unmap(tid, pid, vpn, end);
        self.process_mut(pid).cut(vpn, end);
        self.zap(pid, vpn, end);
        self.wake_faults(pid, vpn, end);
    }

    fn remap(&mut self, tid: Tid, pid: Pid, from: Extent, to: Extent, is_kept: bool) -> Answer {
        assert!(from.pages() <= to.pages(), "what is cut is unmapped first");
        let (pages, from) = (from.pages(), from.start);
        let Extent { start: to, end: to_end } = to;
        let process = self.process(pid);
        if process.at(from).is_none_or(|mapping| mapping.end < from + pages) {
            return Answer::Failed(Errno::EFAULT);
        }
        if from < to_end && to < from + pages {
            return Answer::Failed(Errno::EINVAL);
        }
        self.unmap(tid, pid, to, to_end);
        if self.is_registered(pid, from, from + pages) {
            self.tell(tid, pid, Change::Remap { from, to, pages });
            if !is_kept {
                self.tell(tid, pid, Change::Unmap { vpn: from, end: from + pages });
            }
        }
        let process = self.process_mut(pid);
        for mapping in process.cut(from, from + pages) {
            if is_kept {
                process.insert(mapping);
            }
            process.insert(super::Mapping { start: to, end: to_end, ..mapping });
        }
        let moved: Vec<u64> = process.entries.range(from..from + pages).map(|(&vpn, _)| vpn).collect();
        for vpn in moved {
            let entry = process.entries.remove(&vpn).expect("it was found");
            process.entries.insert(vpn - from + to, entry);
        }
        self.wake_faults(pid, from, from + pages);
        Answer::Done
    }

    /// Nobody is told of it.
    fn grow(&mut self, pid: Pid, Extent { start, end }: Extent, by: u64) -> Answer {
        let process = self.process_mut(pid);
        let Some(&mapping) = process.at(start).filter(|mapping| mapping.end >= end) else {
            return Answer::Failed(Errno::EFAULT);
        };
        if mapping.end > end || process.within(end, end + by).next().is_some() {
            return Answer::Failed(Errno::ENOMEM);
        }
        process.insert(super::Mapping { start: end, end: end + by, ..mapping });
        Answer::Done
    }

    /// One mapping after the other: its message is read before its pages go. What has been joined to it meanwhile was not told, and is
    /// next.
    fn discard(&mut self, tid: Tid, pid: Pid, vpn: u64, end: u64) -> Option<Answer> {
        let told = self.thread(tid).told.take();
        let at = told.map_or(vpn, |(first, _)| first);
        let found = self.process(pid).at_or_after(at).filter(|mapping| mapping.start < end);
        let Some(&mapping) = found.filter(|mapping| told.is_none() || mapping.start <= at) else {
            let is_covered = told.is_none() && self.process(pid).covers(vpn, end);
            return Some(if is_covered { Answer::Done } else { Answer::Failed(Errno::ENOMEM) });
        };
        if mapping.locked {
            return Some(Answer::Failed(Errno::EINVAL));
        }
        let first = mapping.start.max(at);
        let stop = mapping.end.min(told.map_or(end, |(_, stop)| stop));
        if mapping.registered && told.is_none() {
            self.thread(tid).told = Some((first, stop));
            self.tell(tid, pid, Change::Remove { vpn: first, end: stop });
            return None;
        }
        // Guards stay.
        for at in first..stop {
            if self.process(pid).entries.get(&at) != Some(&Entry::Guard) {
                self.zap(pid, at, at + 1);
            }
        }
        if stop >= end {
            return Some(if self.process(pid).covers(vpn, end) { Answer::Done } else { Answer::Failed(Errno::ENOMEM) });
        }
        self.thread(tid).call = Some(Call::Discard(Extent { start: stop, end }));
        None
    }

    fn populate(&mut self, tid: Tid, pid: Pid, vpn: u64, end: u64) -> Option<Answer> {
        let at = self.thread(tid).at.max(vpn);
        if at == end {
            return Some(Answer::Done);
        }
        match self.touch(tid, pid, at, true) {
            Touch::There(_) => {
                self.thread(tid).at = at + 1;
                None
            }
            Touch::Sleep => None,
            Touch::Dead(_) => Some(Answer::Failed(Errno::EFAULT)),
        }
    }

    fn guard_install(&mut self, pid: Pid, Extent { start, end }: Extent) -> Answer {
        let process = self.process(pid);
        if process.within(start, end).any(|mapping| mapping.locked) {
            return Answer::Failed(Errno::EINVAL);
        }
        if !process.covers(start, end) {
            return Answer::Failed(Errno::ENOMEM);
        }
        self.zap(pid, start, end);
        self.process_mut(pid).entries.extend((start..end).map(|vpn| (vpn, Entry::Guard)));
        Answer::Done
    }

    fn guard_remove(&mut self, pid: Pid, Extent { start, end }: Extent) -> Answer {
        if !self.process(pid).covers(start, end) {
            return Answer::Failed(Errno::ENOMEM);
        }
        self.process_mut(pid).entries.retain(|vpn, entry| !(start..end).contains(vpn) || *entry != Entry::Guard);
        Answer::Done
    }

    fn set(&mut self, pid: Pid, Extent { start, end }: Extent, how: impl FnMut(&mut super::Mapping)) -> Answer {
        if !self.process(pid).covers(start, end) {
            return Answer::Failed(Errno::ENOMEM);
        }
        self.process_mut(pid).change(start, end, how);
        Answer::Done
    }

    fn fork(&mut self, tid: Tid, pid: Pid) -> Answer {
        let child = self.copy_space(pid);
        self.log.push(Happened::Copied(tid, child));
        if self.process(pid).monitor.tells_no_copy {
            self.process_mut(child).change(0, u64::MAX, |mapping| mapping.registered = false);
        }
        if self.process(child).mappings.iter().any(|mapping| mapping.registered) {
            self.tell(tid, pid, Change::Fork(child));
        }
        Answer::Child(child)
    }
}
