//! Whether anything runs in the processes, seen by their CPU time: a look at who has used none since the last one would show nothing new.
//!
//! An agent rests while its process uses none, and is rung as soon as it does (`agent::rest`). A timer on the process's CPU time tells of
//! that, at the scheduler's next tick (1 to 10 ms); not while a thread is inside a long system call, or works for less than a tick, so
//! it is looked at now and then as well. Processes without an agent are taken to rest only where so much of the budget is left that what
//! they fill until then does not matter.

use std::sync::atomic::Ordering;

use pagetide_core::types::Nanos;
use pagetide_sys::cpu_timer::CpuTimer;
use pagetide_sys::{clock, socket};

use super::Supervisor;
use super::signals::CPU_TIMER;
use super::tree::{Link, Process, Words};
use crate::protocol::RING;

/// Time between two looks at the CPU time of processes that rest; and where a timer cannot be had.
const CPU_LOOK_NS: Nanos = 10_000_000;
const TIMELESS_LOOK_NS: Nanos = 4_000_000;
/// A process without an agent rests when it has used no CPU time for so long: several ticks.
const QUIET_NS: Nanos = 100_000_000;
/// What a process fills until it is seen to run, generously: 64 MiB.
const UNSEEN_PAGES: u64 = 64 << 8;
/// So much CPU time an agent needs until it sleeps, and to see that it may sleep on.
const FALLS_ASLEEP_NS: Nanos = 250_000;
/// All is looked at after this time, whatever happens.
const LOOK_NS: Nanos = 1_000_000_000;

/// A timer, and what it is set to.
#[derive(Debug)]
pub(super) struct RestTimer {
    /// None: the kernel gave none.
    timer: Option<CpuTimer>,
    at: Nanos,
}

impl Link {
    /// Wake the agent, if it rests: there is something to look at.
    pub(super) fn ring(&self) {
        if self.control.entry().rests_at.swap(0, Ordering::SeqCst) != 0 {
            // One that is not rung looks a little later.
            let _ = socket::send(&self.socket, RING, &[], false);
        }
    }

    fn rests_at(&self) -> Option<Nanos> {
        let entry = self.control.entry();
        Some(entry.rests_at.load(Ordering::Acquire)).filter(|&at| at != 0 && entry.is_managed())
    }
}

impl Process {
    /// Look at its CPU time.
    pub(super) fn note_cpu_time(&mut self) {
        let (used, now) = (clock::process_cpu(Some(self.pid)).ok(), clock::now());
        let before = self.used;
        let since = |used| before.filter(|&(before, _)| before == used).map_or(now, |(_, since)| since);
        self.used = used.map(|used| (used, since(used)));
    }

    /// Be told when it has used more CPU time than this. Before it is looked at: what it uses between would be missed.
    fn tell_beyond(&mut self, used: Nanos) {
        let pid = self.pid;
        let make = || RestTimer { timer: CpuTimer::new(pid, CPU_TIMER).ok(), at: 0 };
        let timer = self.timer.get_or_insert_with(make);
        if timer.at != used {
            timer.at = used;
            let _ = timer.timer.take_if(|timer| timer.set(used + 1).is_err());
        }
    }

    /// Has nothing happened in it since the last look? An agent that rests is rung if something has.
    fn is_quiet(&mut self, now: Nanos, is_room: bool) -> bool {
        let is_known = !matches!(self.words, Words::Sought(_)) && !self.is_gone && !self.is_orphan && !self.is_complete;
        if !is_known || self.is_borrower || self.starting.is_some() {
            return false;
        }
        let rests_at = self.link.as_ref().map(Link::rests_at);
        let most = match rests_at {
            Some(None) => return false,
            Some(Some(at)) => at + FALLS_ASLEEP_NS,
            None => match self.used {
                Some((used, since)) if is_room && now >= since + QUIET_NS => used,
                Some(_) | None => return false,
            },
        };
        self.tell_beyond(most);
        let is_quiet = clock::process_cpu(Some(self.pid)).is_ok_and(|used| used <= most);
        if let Some(link) = self.link.as_ref().filter(|_| !is_quiet) {
            link.ring();
        }
        is_quiet
    }
}

/// Who rests.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Resting {
    /// All do, and nothing is under way that a look takes further.
    is_all: bool,
    /// How often those that do are looked at; None: nobody does.
    look_ns: Option<Nanos>,
    /// When all are looked at though all rest.
    next_look: Nanos,
}

impl Resting {
    /// Time between two looks, of which others ask for one every `interval_ns`.
    pub(super) fn interval_ns(self, interval_ns: Nanos) -> Nanos {
        match self.look_ns {
            Some(look_ns) if self.is_all => look_ns,
            Some(look_ns) => look_ns.min(interval_ns),
            None => interval_ns,
        }
    }
}

impl Supervisor {
    /// True if nobody has done anything since the last look, and nothing is under way that a look takes further.
    pub(super) fn nothing_runs(&mut self) -> bool {
        let now = clock::now();
        let is_room = self.left_pages() >= UNSEEN_PAGES;
        let is_pending = !self.births.is_empty() || self.commands.are_waiting() || self.has_drains();
        let mut resting = Resting { is_all: !is_pending, look_ns: None, next_look: self.resting.next_look };
        for process in &mut self.tree.list {
            if process.is_quiet(now, is_room) {
                let is_timed = process.timer.as_ref().is_some_and(|timer| timer.timer.is_some());
                let look_ns = if is_timed { CPU_LOOK_NS } else { TIMELESS_LOOK_NS };
                resting.look_ns = Some(resting.look_ns.map_or(look_ns, |least| least.min(look_ns)));
            } else {
                resting.is_all = false;
            }
        }
        let nothing_runs = resting.is_all && resting.look_ns.is_some() && now < resting.next_look;
        if !nothing_runs {
            resting.next_look = now + LOOK_NS;
        }
        self.resting = resting;
        nothing_runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_all_rest_are_looked_at_seldom_and_the_others_as_ever() {
        let all = Resting { is_all: true, look_ns: Some(CPU_LOOK_NS), next_look: 0 };
        assert_eq!(all.interval_ns(1_000_000), CPU_LOOK_NS);
        let some = Resting { is_all: false, ..all };
        assert_eq!((some.interval_ns(1_000_000), some.interval_ns(2 * CPU_LOOK_NS)), (1_000_000, CPU_LOOK_NS));
        assert_eq!(Resting::default().interval_ns(20_000_000), 20_000_000);
    }
}
