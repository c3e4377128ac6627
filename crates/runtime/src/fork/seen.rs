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
//! A page that cannot be written in time to where a child finds it makes the fork fail: ENOMEM, and never a child without it.

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

/// What is held must be where a child finds it within this time, or there is no fork.
const REFUSE_NS: Nanos = 10_000_000_000;

/// The copy is yet to be made.
const TO_COME: i32 = 0;
/// There is none.
pub(crate) const NONE: i32 = -1;

/// What came of the fork: [`TO_COME`], [`NONE`], or the child's number.
static COPIED: AtomicI32 = AtomicI32::new(TO_COME);
/// The agent refuses the fork that is announced.
static IS_REFUSED: AtomicBool = AtomicBool::new(false);

/// Before a copy, in the forking thread, with all signals blocked: when this returns, the state of all memory is settled. False: the
/// copy must not be made, but [`copied`] is to be called.
pub(crate) fn announce() -> bool {
    foothold::wait_until_managed();
    FORKING.take();
    COPIED.store(TO_COME, Ordering::Relaxed);
    IS_REFUSED.store(false, Ordering::Relaxed);
    touch(DOORBELLS.load(Ordering::Acquire));
    !IS_REFUSED.load(Ordering::Acquire)
}

/// After the copy, in the forking thread: returns when the child needs its parent no more. `child`: its number, or [`NONE`].
pub(crate) fn copied(child: i32) {
    COPIED.store(child, Ordering::Release);
    touch(DOORBELLS.load(Ordering::Acquire) + mem::PAGE_BYTES);
    FORKING.give_back();
}

impl<K: AddressSpace> Forks<K> {
    /// True while the state of memory is settled for a copy: no fault is answered.
    pub(crate) const fn is_frozen(&self) -> bool {
        self.is_seen && self.held && !self.is_copied
    }

    /// Note where everything is that the copy will not have. True: the copy may be made, or is refused.
    pub(super) fn expect_copy(&mut self, voice: &impl Voice, pager: &mut Pager<K>, now: Nanos) -> bool {
        if let Err(errno) = pager.look_at_fork_policies() {
            voice.say(format_args!("what a forked child is to get cannot be read: {}", errno.name()));
            IS_REFUSED.store(true, Ordering::Release);
            return true;
        }
        let (content, regions) = snapshot(pager);
        let is_in_tier = |run: &SlotRun| {
            let device = DeviceId(u8::try_from(run.device).expect("few devices"));
            (0..run.len).any(|ahead| pager.machine().is_only_in_tier(device, SlotIdx(run.slot + ahead)))
        };
        if !content.frames.is_empty() || content.runs.iter().any(is_in_tier) {
            let is_late = now > self.held_at + REFUSE_NS;
            if is_late {
                let text = "a fork is refused (ENOMEM): pages cannot be written in time";
                voice.say(format_args!("process {}: {text}", pagetide_sys::thread::getpid()));
            }
            IS_REFUSED.store(is_late, Ordering::Release);
            return is_late;
        }
        let mut newborn = Newborn::new(None, content, regions);
        self.pin(pager, now, &mut newborn);
        self.expected = Some(newborn);
        self.answered = None;
        voice.tell(BORN);
        true
    }

    /// The forking thread may have said what came of it.
    pub(crate) fn look_at_copy(&mut self, voice: &impl Voice, pager: &mut Pager<K>, now: Nanos) {
        let child = COPIED.load(Ordering::Acquire);
        if !self.is_frozen() || child == TO_COME {
            return;
        }
        self.is_copied = true;
        let Some(mut newborn) = self.expected.take() else { return };
        if child == NONE {
            newborn.give_back(pager, now);
            return voice.tell(OVER);
        }
        newborn.process = fd::pidfd(child);
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
