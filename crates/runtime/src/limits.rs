//! Limits that a program or its shell has set on its process, of which our mappings, descriptors and files must not use up any.
//!
//! Addresses and data: our tables stay mapped, so the limit is raised by what they take and stays so, and one that the program sets
//! later is raised by what they have taken. Descriptors and the size of files: ours have a table of their own and no name, yet the
//! kernel asks the process's limit when they are made or written; it is raised for that moment. Where raising is not allowed (the hard
//! limit of a user), the soft one goes as far as it can.

use std::sync::atomic::{AtomicU64, Ordering};

use pagetide_sys::mem::PAGE_BYTES;
use pagetide_sys::proc::{self, Limit, Resource, StatmFile, UNLIMITED};
use pagetide_sys::thread;

/// Descriptors that one step of ours needs at most, beside the program's.
const FILES: u64 = 4096;

/// Those that an agent has open where there is one swap place, in thread mode and in signal mode, and no table holds fewer.
const AGENT_FILES: [u64; 2] = [17, 64];

/// Bytes that were mapped for us, in this process and those that it is a copy of.
static OURS: AtomicU64 = AtomicU64::new(0);

/// Make room for a mapping of ours.
pub(crate) fn make_room(bytes: usize) {
    OURS.fetch_add(bytes as u64, Ordering::Relaxed);
    for of in [Resource::Addresses, Resource::Data] {
        raise_by(of, bytes as u64);
    }
}

/// A limit that leaves less than this was set by who has looked what there is, and that is with ours.
const MEASURED_BYTES: u64 = 16 << 20;

/// The program has set the limit of this number of a process; 0 is its own.
pub(crate) fn was_set(process: i32, number: usize) {
    if process != 0 && process != thread::getpid() {
        return;
    }
    let Some(of) = [Resource::Addresses, Resource::Data].into_iter().find(|of| of.number() == number) else { return };
    let now = StatmFile::open_self().and_then(|statm| statm.read());
    let used = now.map(|now| if matches!(of, Resource::Data) { now.data_pages } else { now.size_pages });
    let left =
        used.ok().zip(proc::limit(of).ok()).and_then(|(used, limit)| limit.soft.checked_sub(used * PAGE_BYTES as u64));
    if left.is_none_or(|left| left >= MEASURED_BYTES) {
        raise_by(of, OURS.load(Ordering::Relaxed));
    }
}

fn raise_by(of: Resource, bytes: u64) {
    if let Ok(limit) = proc::limit(of)
        && limit.soft != UNLIMITED
    {
        raise(of, limit, limit.soft.saturating_add(bytes));
    }
}

/// Raise a limit as far as allowed; what it is then.
fn raise(of: Resource, limit: Limit, soft: u64) -> Option<Limit> {
    let wanted = Limit { soft, hard: limit.hard.max(soft) };
    if proc::set_limit(of, wanted).is_ok() {
        return Some(wanted);
    }
    let less = Limit { soft: soft.min(limit.hard), hard: limit.hard };
    proc::set_limit(of, less).ok().map(|()| less)
}

/// A limit that is raised as long as this value lives.
#[derive(Debug)]
#[must_use]
pub(crate) struct Raised {
    of: Resource,
    before: Limit,
    during: Limit,
}

/// The limit on descriptors as the program has it, while it is raised; [`NONE`]: it is not.
static FILES_BEFORE: [AtomicU64; 2] = [const { AtomicU64::new(NONE) }; 2];
const NONE: u64 = u64::MAX - 1;

/// For descriptors of ours. None: there is room.
pub(crate) fn for_files() -> Option<Raised> {
    raised(Resource::Files, FILES)
}

/// An agent can have the descriptors that it needs.
pub(crate) fn leaves_files(is_signal_mode: bool) -> bool {
    let _raised = for_files();
    proc::limit(Resource::Files).is_ok_and(|limit| limit.soft >= AGENT_FILES[usize::from(is_signal_mode)])
}

/// In a copy of the process, which has the limits of the moment in which it was made: it has the program's.
pub(crate) fn after_fork() {
    let [soft, hard] = FILES_BEFORE.each_ref().map(|word| word.swap(NONE, Ordering::Relaxed));
    if soft != NONE && hard != NONE && proc::limit(Resource::Files).is_ok_and(|limit| limit.soft > soft) {
        let _ = proc::set_limit(Resource::Files, Limit { soft, hard });
    }
}

/// For a write to, or the growth of, a file of ours. None: there is no limit.
pub(crate) fn for_file_size() -> Option<Raised> {
    raised(Resource::FileSize, UNLIMITED)
}

/// Bytes that a file of ours may have at most: a hard limit that cannot be raised.
pub(crate) fn largest_file() -> Option<u64> {
    let raised = for_file_size();
    let limit = proc::limit(Resource::FileSize).ok()?.soft;
    drop(raised);
    (limit != UNLIMITED).then_some(limit)
}

fn raised(of: Resource, need: u64) -> Option<Raised> {
    let before = proc::limit(of).ok()?;
    if before.soft >= need {
        return None;
    }
    note_files(of, before.soft, before.hard);
    let Some(during) = raise(of, before, need) else {
        note_files(of, NONE, NONE);
        return None;
    };
    Some(Raised { of, before, during })
}

fn note_files(of: Resource, soft: u64, hard: u64) {
    if matches!(of, Resource::Files) {
        FILES_BEFORE[0].store(soft, Ordering::Release);
        FILES_BEFORE[1].store(hard, Ordering::Release);
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        // A limit that the program has set meanwhile stays.
        if proc::limit(self.of) == Ok(self.during) {
            let _ = proc::set_limit(self.of, self.before);
        }
        note_files(self.of, NONE, NONE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_raised_for_the_moment_and_stays_as_it_was_where_there_is_room() {
        let before = proc::limit(Resource::Files).expect("prlimit");
        let few = Limit { soft: 100, hard: before.hard };
        proc::set_limit(Resource::Files, few).expect("lowering is allowed");
        let raised = for_files();
        assert!(raised.is_some() && proc::limit(Resource::Files).is_ok_and(|limit| limit.soft > 100));
        after_fork();
        assert_eq!(proc::limit(Resource::Files), Ok(few), "a copy has the program's");
        let again = for_files();
        drop(raised);
        drop(again);
        assert_eq!(proc::limit(Resource::Files), Ok(few));
        proc::set_limit(Resource::Files, before).expect("back to what it was");
        if before.soft >= FILES {
            assert!(for_files().is_none());
        }
    }
}
