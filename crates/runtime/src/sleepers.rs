//! Where threads sleep that serve their own faults, and how one is woken.
//!
//! A fault whose page has to be read is waited for by its own thread. One of those that wait *watches* the engine: it looks for
//! results while that takes no CPU from anybody (a CPU that goes idle for a read is awake only 20 us after its end), and then sleeps
//! on the engine's event. The others sleep on a word that it changes. Who watches collects the results for all. A thread of ours (the
//! pool's, or a process's agent) does what nobody waits for, and is rung for.
//!
//! Invariants: nobody sleeps with the lock held; every sleep is bounded, so a wake that is lost costs time, not life.

use pagetide_core::types::Nanos;
use pagetide_kernel::AddressSpace;
use pagetide_sys::fd::{self, Fd, PollFd, events};
use pagetide_sys::file;
use pagetide_sys::proc::LoadFile;
use pagetide_sys::sync::Turns;

pub(crate) use pagetide_sys::sync::Watch;

use crate::io::Signs;
use crate::machine::LiveMachine;

/// A waiting thread looks again after this long, whatever happens.
const LOOK_NS: Nanos = 1_000_000;
/// Turns between two looks, some 1 us: who wants the lock finds it free.
const LOOK_TURNS: u32 = 40;
/// The same where a look would find nothing, some 10 us.
const IDLE_TURNS: u32 = 400;

/// Between two looks, without the lock.
pub(crate) fn spin() {
    (0..LOOK_TURNS).for_each(|_| std::hint::spin_loop());
}

/// Pass on all requests that are queued, without the lock: others serve their faults meanwhile. False: the kernel has not taken all.
/// `caller`: as for [`crate::io::Engine::set_caller`].
pub(crate) fn pass_on<G, K: AddressSpace>(
    mut held: G,
    caller: i32,
    machine: impl Fn(&mut G) -> &mut LiveMachine<K>,
    lock: impl Fn() -> G,
) -> (G, bool) {
    while let Some(passing) = machine(&mut held).begin_passing(caller) {
        drop(held);
        let passed = passing.pass_on();
        held = lock();
        machine(&mut held).end_passing(&passed);
        if !passed.left().is_empty() {
            return (held, false);
        }
    }
    (held, true)
}

/// What the threads share beside the lock.
#[derive(Debug)]
pub(crate) struct Sleepers {
    /// Of those who wait without watching the engine.
    turns: Turns,
    /// Wakes the thread of ours.
    bell: Fd,
    /// Wakes the thread that watches the engine, when another one has taken results.
    again: Fd,
    /// The engine's event, which is open as long as anybody sleeps here.
    event: i32,
    /// Results are there. None: that is not to be seen.
    signs: Option<Signs>,
    /// What the machine has to do. None: nothing is known of that.
    load: Option<LoadFile>,
}

impl Sleepers {
    pub(crate) const fn new(event: i32, signs: Option<Signs>, bell: Fd, again: Fd, load: Option<LoadFile>) -> Self {
        Self { turns: Turns::new(), bell, again, event, signs, load }
    }

    /// Wait without sleeping, and without the lock, until results are there or something else `has_come`, for a moment at most.
    pub(crate) fn look(&self, has_come: impl Fn() -> bool) {
        let Some(signs) = &self.signs else { return spin() };
        for _ in 0..IDLE_TURNS {
            std::hint::spin_loop();
            if signs.are_there() || has_come() {
                return;
            }
        }
    }

    /// Has every thread that can run a CPU?
    pub(crate) fn is_cpu_free(&self) -> bool {
        self.load.as_ref().is_some_and(LoadFile::has_cpus_for_all)
    }

    /// Results were taken, or pages mapped, that others wait for.
    pub(crate) fn next_turn(&self, watch: &Watch) {
        self.turns.next(watch);
    }

    /// The result that the watching thread sleeps for may be among those that another one has taken.
    pub(crate) fn tell_watcher(&self) {
        let told = file::signal_event(&self.again, 1);
        debug_assert!(told.is_ok(), "the counter is open: {told:?}");
    }

    /// Wake the thread of ours.
    pub(crate) fn ring(&self) {
        let rung = file::signal_event(&self.bell, 1);
        debug_assert!(rung.is_ok(), "the bell is open: {rung:?}");
    }

    /// What the thread of ours sleeps on.
    pub(crate) const fn bell(&self) -> &Fd {
        &self.bell
    }

    /// The engine's event, unless somebody watches it.
    pub(crate) fn unwatched_event(&self, is_watched: bool) -> PollFd {
        if is_watched { PollFd::none() } else { PollFd::new(&self.engine(), events::IN) }
    }

    fn engine(&self) -> std::mem::ManuallyDrop<Fd> {
        // SAFETY: see the field; the value is not dropped.
        std::mem::ManuallyDrop::new(unsafe { Fd::from_raw(self.event) })
    }

    /// Let others have the lock for a moment (`looks`), or sleep without it until something may have changed.
    pub(crate) fn wait<G>(
        &self,
        held: G,
        looks: bool,
        watch: impl Fn(&mut G) -> &mut Watch,
        lock: impl FnOnce() -> G,
    ) -> G {
        self.turns.wait(held, watch, lock, (LOOK_NS, looks), || {
            if looks {
                self.look(|| false);
            } else {
                self.wait_for_engine(LOOK_NS);
            }
        })
    }

    /// Sleep until results are there.
    pub(crate) fn wait_for_engine(&self, timeout_ns: Nanos) {
        // An interrupted wait is one that saw nothing.
        let engine = self.engine();
        let _ = fd::poll(&mut [&*engine, &self.again].map(|fd| PollFd::new(fd, events::IN)), Some(timeout_ns));
        let _ = file::take_event(&self.again);
    }
}
