//! Forks in signal mode: the kernel tells nobody of the copy, but the call that makes it is seen.
//!
//! What differs from `fork`: the state at the copy is settled before the copy is made.
//!
//! 1. The forking thread waits until no call changes the address space (`signal::forks`) and touches doorbell 0. The agent shrinks and
//!    holds, answers no fault any more, and lets end what is in flight. It takes the snapshot, pins the slots, tells the supervisor
//!    of the child to come, and fills the doorbell.
//! 2. The kernel copies. The child's mappings are registered with nobody: what is out would read as zeroes there.
//! 3. The forking thread says what came of it and touches doorbell 1: faults are answered again.
//! 4. The child waits, before any code of the program, until its agent has a userfaultfd of its own, has registered what its parent had
//!    registered, and has taken the snapshot over.
//!
//! A page that cannot be brought in time to where a child finds it makes the fork fail: ENOMEM, and never a child without it.

use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use pagetide_core::types::{DeviceId, Nanos, SlotIdx};
use pagetide_kernel::{AddressSpace, Faults};
use pagetide_sys::fd::{self, PollFd};
use pagetide_sys::{Errno, mem};

use super::newborn::Newborn;
use super::snapshot::{SlotRun, snapshot};
use super::{DOORBELLS, FORKING, Forks, Voice, touch};
use crate::foothold;
use crate::pager::Pager;
use crate::protocol::{BORN, OVER};

/// What is held must be where a child finds it within this time, or there is no fork. Busy disks have taken more than 10 s for a write.
const REFUSE_NS: Nanos = 60_000_000_000;

/// The copy is yet to be made.
const TO_COME: i32 = 0;
/// There is none.
pub(crate) const NONE: i32 = -1;

/// What the forking thread and the agent say to each other about the fork that is under way.
#[derive(Debug)]
pub(crate) struct Talk {
    /// What came of it: [`TO_COME`], [`NONE`], or the child's number.
    copied: AtomicI32,
    /// The agent refuses it.
    is_refused: AtomicBool,
}

/// About those of this process.
pub(super) static TALK: Talk = Talk::new();

impl Talk {
    pub(crate) const fn new() -> Self {
        Self { copied: AtomicI32::new(TO_COME), is_refused: AtomicBool::new(false) }
    }

    /// In the forking thread, before it touches doorbell 0.
    pub(crate) fn begin(&self) {
        self.copied.store(TO_COME, Ordering::Relaxed);
        self.is_refused.store(false, Ordering::Relaxed);
    }

    /// In the forking thread, when doorbell 0 was answered: the copy must not be made.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::Acquire)
    }

    /// In the forking thread, before it touches doorbell 1. `child`: its number, or [`NONE`].
    pub(crate) fn end(&self, child: i32) {
        self.copied.store(child, Ordering::Release);
    }
}

/// What an agent knows of a fork that is seen.
#[derive(Debug)]
pub(super) struct Seen<C: Faults> {
    talk: &'static Talk,
    /// The child to come.
    expected: Option<Newborn<C>>,
    /// The forking thread has said what came of it.
    is_over: bool,
}

/// Before a copy, in the forking thread, with all signals blocked: when this returns, the state of all memory is settled. False: the
/// copy must not be made, but [`copied`] is to be called.
pub(crate) fn announce() -> bool {
    foothold::wait_until_managed();
    FORKING.take();
    TALK.begin();
    touch(DOORBELLS.load(Ordering::Acquire));
    !TALK.is_refused()
}

/// After the copy, in the forking thread: returns when the child needs its parent no more. `child`: its number, or [`NONE`].
pub(crate) fn copied(child: i32) {
    TALK.end(child);
    touch(DOORBELLS.load(Ordering::Acquire) + mem::PAGE_BYTES);
    FORKING.give_back();
}

impl<C: Faults> Seen<C> {
    pub(super) const fn new(talk: &'static Talk) -> Self {
        Self { talk, expected: None, is_over: false }
    }

    /// Doorbell 0 was touched.
    pub(super) const fn begin(&mut self) {
        self.is_over = false;
    }
}

impl<K: AddressSpace> Forks<K> {
    /// True while the state of memory is settled for a copy: no fault is answered.
    pub(crate) const fn is_frozen(&self) -> bool {
        matches!(&self.seen, Some(seen) if self.held && !seen.is_over)
    }

    /// Where forks are seen: note where everything is that the copy will not have. True: the copy may be made, or is refused.
    pub(super) fn expect_copy(&mut self, voice: &impl Voice, pager: &mut Pager<K>, now: Nanos) -> bool {
        let Some(talk) = self.seen.as_ref().filter(|seen| seen.expected.is_none()).map(|seen| seen.talk) else {
            return true;
        };
        if let Err(errno) = pager.look_at_fork_policies() {
            voice.say(format_args!("what a forked child is to get cannot be read: {}", errno.name()));
            talk.is_refused.store(true, Ordering::Release);
            return true;
        }
        let (content, regions) = snapshot(pager);
        let is_in_tier = |run: &SlotRun| {
            let device = DeviceId(u8::try_from(run.device).expect("few devices"));
            (0..run.len).any(|ahead| pager.machine().is_only_in_tier(device, SlotIdx(run.slot + ahead)))
        };
        // What is to leave is where it was noted only as long as it has not left.
        let is_unsettled = pager.machine().is_taking_out() || !content.frames.is_empty();
        if is_unsettled || content.runs.iter().any(is_in_tier) {
            let is_late = now > self.held_at + REFUSE_NS;
            if is_late {
                let text = "a fork is refused (ENOMEM): pages cannot be taken out and written in time";
                voice.say(format_args!("process {}: {text}", pagetide_sys::thread::getpid()));
            }
            talk.is_refused.store(is_late, Ordering::Release);
            return is_late;
        }
        let mut newborn = Newborn::new(None, content, regions);
        self.pin(pager, now, &mut newborn);
        if let Some(seen) = &mut self.seen {
            seen.expected = Some(newborn);
        }
        self.answered = None;
        voice.tell(BORN);
        true
    }

    /// The forking thread may have said what came of it.
    pub(crate) fn look_at_copy(&mut self, voice: &impl Voice, pager: &mut Pager<K>, now: Nanos) {
        let is_frozen = self.is_frozen();
        let Some(seen) = self.seen.as_mut().filter(|_| is_frozen) else { return };
        let child = seen.talk.copied.load(Ordering::Acquire);
        if child == TO_COME {
            return;
        }
        seen.is_over = true;
        let Some(mut newborn) = seen.expected.take() else { return };
        if child == NONE {
            newborn.give_back(pager, now);
            return voice.tell(OVER);
        }
        newborn.process = pager.machine().space().end_of(child);
        self.newborn = Some(newborn);
    }
}

impl<C: Faults> Newborn<C> {
    /// True if the process is known to have ended.
    pub(super) fn has_ended(&self) -> bool {
        match &self.process {
            Ok(process) => {
                let mut poll = [PollFd::new(process, fd::events::IN)];
                fd::poll(&mut poll, Some(0)).is_ok() && poll[0].seen() != 0
            }
            Err(errno) => *errno == Errno::ESRCH,
        }
    }
}
