//! Keeping idle CPUs awake while the program waits for its memory.
//!
//! A thread that waits for a page leaves its CPU idle, and a CPU that has gone to sleep takes 10 to 50 us to come back on a virtual
//! machine: once for the thread, and once for the agent that answers it. As long as somebody has opened /dev/cpu_dma_latency and written 0
//! there (Linux's PM QoS, root only), idle CPUs poll instead. That is all CPUs of the machine, so it is asked for only while at least a
//! twentieth of the time is waited, and by itself only where there are few of them. It ends with the supervisor, however that ends.
//!
//! What is polled is idle time to the kernel: no CPU seconds, but power, and time of the other hardware thread of a core.

use std::sync::atomic::Ordering;

use pagetide_core::types::Nanos;
use pagetide_sys::fd::Fd;
use pagetide_sys::file;

use super::Supervisor;
use crate::setup::IdleChoice;

/// CPUs that are kept awake without having been asked to, at most.
const CPUS_MAX: usize = 8;
/// Time between two looks at what was waited.
const LOOK_NS: Nanos = 10_000_000;
/// One part in so many of the time has to be waited.
const SHARE: u64 = 20;
/// They are kept awake for so long after that was so.
const KEPT_NS: Nanos = 100_000_000;

/// Whether idle CPUs are kept awake.
#[derive(Debug)]
pub(super) struct Awake {
    is_allowed: bool,
    /// While this is open, they are.
    held: Option<Fd>,
    until: Nanos,
    looked_at: Nanos,
    waited_us: u64,
}

impl Awake {
    pub(super) fn new(choice: IdleChoice) -> Self {
        let is_allowed = match choice {
            IdleChoice::Poll => true,
            IdleChoice::Sleep => false,
            IdleChoice::Auto => {
                let online = std::fs::read_to_string("/sys/devices/system/cpu/online");
                online.is_ok_and(|list| cpus(&list).is_some_and(|cpus| cpus <= CPUS_MAX))
            }
        };
        Self { is_allowed, held: None, until: 0, looked_at: 0, waited_us: 0 }
    }

    /// So long at least one thread of each process has waited by now, all processes together.
    fn look(&mut self, now: Nanos, waited_us: u64, hold: impl FnOnce() -> Option<Fd>) {
        if !self.is_allowed || now < self.looked_at + LOOK_NS {
            return;
        }
        // Processes that have ended took theirs away.
        let waited_ns = waited_us.saturating_sub(self.waited_us) * 1000;
        let is_much = self.looked_at > 0 && waited_ns * SHARE >= now - self.looked_at;
        (self.looked_at, self.waited_us) = (now, waited_us);
        if is_much {
            self.until = now + KEPT_NS;
            if self.held.is_none() {
                self.held = hold();
                // Who may not ask once need not ask again.
                self.is_allowed = self.held.is_some();
            }
        } else if now >= self.until {
            self.held = None;
        }
    }
}

impl Supervisor {
    /// Keep idle CPUs awake, or no longer.
    pub(super) fn tend_idle_cpus(&mut self, now: Nanos) {
        let links = self.tree.list.iter().filter_map(|process| process.link.as_ref());
        let waited_us =
            links.map(|link| link.control.entry().waited_us.load(Ordering::Relaxed)).fold(0, u64::wrapping_add);
        self.awake.look(now, waited_us, || {
            let device = Fd::open(c"/dev/cpu_dma_latency", file::flags::WRITE, 0).ok()?;
            let none = 0_i32.to_ne_bytes();
            (file::write(&device, &none) == Ok(none.len())).then_some(device)
        });
    }
}

/// How many CPUs a list of the kernel names: `0-3,8`.
fn cpus(list: &str) -> Option<usize> {
    let number = |text: &str| text.parse::<usize>().ok();
    let ranges = list.trim().split(',').map(|range| match range.split_once('-') {
        Some((first, last)) => number(last)?.checked_sub(number(first)?)?.checked_add(1),
        None => number(range).map(|_| 1),
    });
    ranges.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any_file() -> Option<Fd> {
        Fd::open(c"/dev/null", file::flags::WRITE, 0).ok()
    }

    #[test]
    fn idle_cpus_are_kept_awake_while_much_is_waited_and_a_little_longer() {
        let mut awake = Awake { is_allowed: true, ..Awake::new(IdleChoice::Sleep) };
        let ms = |ms: u64| ms * 1_000_000;
        awake.look(ms(100), 5_000_000, any_file);
        assert!(awake.held.is_none(), "nothing is known of the time before");
        awake.look(ms(105), 5_005_000, any_file);
        assert!(awake.held.is_none(), "it is too early for a look");
        awake.look(ms(120), 5_000_999, any_file);
        assert!(awake.held.is_none(), "less than a twentieth");
        awake.look(ms(140), 5_001_999, any_file);
        assert!(awake.held.is_some());
        awake.look(ms(160), 5_001_999, any_file);
        assert!(awake.held.is_some(), "a little longer");
        awake.look(ms(241), 1_000_000, any_file);
        assert!(awake.held.is_none(), "nobody waits any more, or has ended");
    }

    #[test]
    fn who_may_not_ask_does_so_once() {
        let mut awake = Awake { is_allowed: true, looked_at: 1, ..Awake::new(IdleChoice::Sleep) };
        awake.look(20_000_000, 20_000, || None);
        awake.look(40_000_000, 40_000, || panic!("asked again"));
        assert!(!awake.is_allowed && awake.held.is_none());
    }

    #[test]
    fn lists_of_cpus_are_counted() {
        assert_eq!([cpus("0-1\n"), cpus("0"), cpus("0-3,8,10-11\n")], [Some(2), Some(1), Some(7)]);
        assert_eq!([cpus(""), cpus("3-1"), cpus("a-b"), cpus("0-18446744073709551615")], [None; 4]);
    }
}
