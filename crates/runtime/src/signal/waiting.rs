//! SIGSYS, SIGSEGV and SIGBUS that somebody has sent: they are never blocked in the kernel, so what the program believes to wait for a
//! thread waits here.
//!
//! Each has one place: a signal that waits already is not kept twice, as in the kernel. What was sent to the process may be taken by any
//! thread that asks for it (`sigtimedwait`); one that asks while it sleeps is told, and the kernel hands the signal over.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use pagetide_sys::signal::{self, SignalSet, number};
use pagetide_sys::word::low_u32;
use pagetide_sys::{Errno, thread};

use super::actions::SYS;
use super::threads::{self, INFO_WORDS, Thread};
use super::{OURS, dispatch};

/// What comes with a signal.
pub(super) type Info = [u64; INFO_WORDS];

/// `si_code` of what `kill` and `sigqueue` send; both go to a process.
const BY_KILL: i32 = 0;
const BY_QUEUE: i32 = -1;
const PLACES: [u32; 3] = [SYS, number::SEGV, number::BUS];

/// `si_code` of what came with a signal.
pub(super) const fn code_of(info: &Info) -> i32 {
    low_u32(info[1]).cast_signed()
}

/// At most one of each.
#[derive(Debug)]
pub(super) struct Slots {
    /// Which of [`PLACES`] are taken.
    has: AtomicU32,
    infos: [UnsafeCell<Info>; PLACES.len()],
}

// SAFETY: a place that is taken is only read, and by one at a time; one that is not is only written, by its thread.
unsafe impl Sync for Slots {}

impl Slots {
    /// Keep it, unless there is one already.
    pub(super) fn put(&self, signal: u32, info: &Info) {
        let Some(index) = PLACES.iter().position(|&place| place == signal) else { return };
        if self.has.load(Ordering::SeqCst) & 1 << index == 0 {
            // SAFETY: nobody reads a place that is not taken.
            unsafe { self.infos[index].get().write(*info) };
            self.has.fetch_or(1 << index, Ordering::SeqCst);
        }
    }

    /// One of `set` that `suits`.
    pub(super) fn take(&self, set: SignalSet, suits: impl Fn(&Info) -> bool) -> Option<(u32, Info)> {
        let has = self.has.load(Ordering::SeqCst);
        PLACES.iter().enumerate().filter(|&(index, &signal)| has & 1 << index != 0 && set.has(signal)).find_map(
            |(index, &signal)| {
                // SAFETY: the place is taken, so nobody writes it.
                let info = unsafe { self.infos[index].get().read() };
                suits(&info).then(|| {
                    self.has.fetch_and(!(1 << index), Ordering::SeqCst);
                    (signal, info)
                })
            },
        )
    }

    pub(super) fn clear(&self) {
        self.has.store(0, Ordering::SeqCst);
    }

    fn set(&self) -> SignalSet {
        let has = self.has.load(Ordering::SeqCst);
        let signals = PLACES.iter().enumerate().filter(|(index, _)| has & 1 << index != 0);
        SignalSet(signals.fold(0, |set, (_, &signal)| set | SignalSet::one(signal).0))
    }
}

/// What waits for a thread, and what the thread waits for.
#[derive(Debug)]
pub(super) struct Waiting {
    slots: Slots,
    /// Somebody looks into the slots.
    is_locked: AtomicBool,
    /// The signals that its `sigtimedwait` asks for.
    asked: AtomicU64,
}

impl Waiting {
    pub(super) fn clear(&self) {
        self.slots.clear();
        self.is_locked.store(false, Ordering::Relaxed);
        self.asked.store(0, Ordering::Relaxed);
    }

    /// No handler that interrupts the holder takes the lock: it is held for a moment.
    fn with<R>(&self, look: impl FnOnce(&Slots) -> R) -> R {
        while self.is_locked.swap(true, Ordering::SeqCst) {
            thread::yield_now();
        }
        let answer = look(&self.slots);
        self.is_locked.store(false, Ordering::SeqCst);
        answer
    }

    /// One that the thread does not block any more.
    pub(super) fn take_unblocked(&self, hidden: SignalSet) -> Option<(u32, Info)> {
        if self.slots.has.load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.with(|slots| slots.take(SignalSet(!hidden.0), |_| true))
    }
}

fn is_of_process(info: &Info) -> bool {
    matches!(code_of(info), BY_KILL | BY_QUEUE)
}

/// A signal came that `block`'s thread believes to be blocked.
pub(super) fn put(block: &Thread, signal: u32, info: &Info) {
    let asks = |other: &&Thread| {
        let asked = SignalSet(other.waiting().asked.load(Ordering::SeqCst));
        !std::ptr::eq(*other, block) && other.runs_with(block) && asked.has(signal)
    };
    block.waiting().with(|slots| slots.put(signal, info));
    fence(Ordering::SeqCst);
    if is_of_process(info)
        && let Some(other) = threads::all().find(asks)
        && let Some((signal, info)) = block.waiting().with(|slots| slots.take(SignalSet::one(signal), is_of_process))
    {
        // The record waits there: the kernel lets nobody send another thread what only it may say. The signal ends the other's call.
        other.waiting().with(|slots| slots.put(signal, &info));
        let mut sent = info;
        sent[1] = info[1] & !u64::from(u32::MAX) | u64::from(BY_QUEUE.cast_unsigned());
        let _ = signal::queue_to_thread(thread::getpid(), other.tid(), signal, &sent);
    }
}

/// As rt_sigtimedwait(2).
pub(super) fn wait(block: &Thread, number: u32, arguments: [usize; 6]) -> isize {
    let [set, info, _, bytes, ..] = arguments;
    let asked = dispatch::read::<SignalSet>(set).map_or(0, |set| set.0 & OURS.0);
    if asked == 0 || bytes != size_of::<SignalSet>() {
        return dispatch::make(block, number, arguments);
    }
    let waiting = block.waiting();
    waiting.asked.store(asked, Ordering::SeqCst);
    fence(Ordering::SeqCst);
    let own = waiting.with(|slots| slots.take(SignalSet(asked), |_| true));
    let found = own.or_else(|| {
        let others = threads::all().filter(|other| other.runs_with(block));
        others.into_iter().find_map(|other| other.waiting().with(|slots| slots.take(SignalSet(asked), is_of_process)))
    });
    // Unblocked as they are, they end the call.
    let answer = if found.is_none() { dispatch::make(block, number, arguments) } else { 0 };
    waiting.asked.store(0, Ordering::SeqCst);
    // Another thread may have handed over what this one was told of.
    let told = u32::try_from(answer).ok().filter(|&signal| signal != 0);
    let found = found.or_else(|| waiting.with(|slots| slots.take(SignalSet::one(told?), |_| true)));
    match found {
        // Natively it is gone as well where its record cannot be written.
        Some((_, record)) if info != 0 && dispatch::write(info, &record).is_err() => Errno::EFAULT.negated(),
        Some((signal, _)) => isize::try_from(signal).expect("a small number"),
        None => answer,
    }
}

/// As rt_sigpending(2).
pub(super) fn pending(block: &Thread, number: u32, arguments: [usize; 6]) -> isize {
    let answer = dispatch::make(block, number, arguments);
    let own = block.waiting().with(Slots::set);
    if answer == 0
        && own.0 != 0
        && let Ok(set) = dispatch::read::<SignalSet>(arguments[0])
        && dispatch::write(arguments[0], &SignalSet(set.0 | own.0)).is_err()
    {
        return Errno::EFAULT.negated();
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_signal_waits_once_and_is_taken_by_who_asks_for_it() {
        let slots = Slots { has: AtomicU32::new(0), infos: [const { UnsafeCell::new([0; INFO_WORDS]) }; 3] };
        let mut info = [0; INFO_WORDS];
        info[2] = 7;
        slots.put(number::SEGV, &info);
        slots.put(number::SEGV, &[0; INFO_WORDS]);
        slots.put(number::BUS, &info);
        assert_eq!(slots.take(SignalSet::one(SYS), |_| true), None);
        assert_eq!(slots.take(SignalSet::one(number::SEGV), |_| false), None);
        assert_eq!(slots.take(SignalSet::one(number::SEGV), |_| true), Some((number::SEGV, info)));
        assert_eq!(slots.take(OURS, |_| true), Some((number::BUS, info)));
        assert_eq!(slots.take(OURS, |_| true), None);
    }
}
