//! Credentials of the calling thread. To the kernel they are the thread's: a C library that changes "the process's" goes through the
//! threads that it knows.

use linux_raw_sys::general::{
    __NR_capget, __NR_capset, __NR_getresgid, __NR_getresuid, __NR_prctl, __NR_setgroups, __NR_setresgid,
    __NR_setresuid,
};
use linux_raw_sys::prctl::{PR_GET_DUMPABLE, PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS};

use crate::syscall;
use crate::syscall::Errno;
use crate::word::{addr_of, low_u32, u64_of};

/// `_LINUX_CAPABILITY_VERSION_3`: two words for each set.
const CAPABILITY_VERSION: u32 = 0x2008_0522;

/// Whom a thread acts for, and what it may. Supplementary groups are not part of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    /// Real, effective and saved user.
    pub users: [u32; 3],
    /// Real, effective and saved group.
    pub groups: [u32; 3],
    /// Capabilities, one bit each: effective, permitted and inheritable.
    pub capabilities: [u64; 3],
}

#[repr(C)]
struct Header {
    version: u32,
    pid: i32,
}

impl Credentials {
    /// Those of the calling thread.
    pub fn own() -> Result<Self, Errno> {
        Ok(Self { users: three(__NR_getresuid)?, groups: three(__NR_getresgid)?, capabilities: capabilities()? })
    }

    /// Become this: users and groups as they are, no supplementary group, no capability that the thread does not have or that is
    /// not among these. Errors: EPERM, where the thread may not become it; it may be part of the way then.
    ///
    /// Whether the process may be traced and dumped stays as it was, though a change of users clears it.
    pub fn take(&self) -> Result<(), Errno> {
        let dumpable = prctl(PR_GET_DUMPABLE, 0)?;
        let before = capabilities()?;
        // Who gave up the effective ones for the moment may still change users.
        set_capabilities([before[1], before[1], before[2]])?;
        let no_groups = call(__NR_setgroups, [0; 3]);
        let became =
            call(__NR_setresgid, self.groups.map(word)).and_then(|_| call(__NR_setresuid, self.users.map(word)));
        let left = capabilities()?;
        let [effective, permitted, inheritable] = self.capabilities;
        let permitted = left[1] & permitted;
        set_capabilities([effective & permitted, permitted, left[2] & inheritable])?;
        if dumpable == 1 {
            prctl(PR_SET_DUMPABLE, 1)?;
        }
        became?;
        // Without the right to leave groups the thread has those that it was started with: the program's.
        if no_groups == Err(Errno::EPERM) { Ok(()) } else { no_groups.map(|_| ()) }
    }
}

/// No program that the calling thread might execute gains anything, for ever.
pub fn gain_nothing() -> Result<(), Errno> {
    prctl(PR_SET_NO_NEW_PRIVS, 1).map(|_| ())
}

fn word(id: u32) -> usize {
    usize::try_from(id).expect("64 bits hold 32")
}

fn call(number: u32, [a, b, c]: [usize; 3]) -> Result<usize, Errno> {
    // SAFETY: numbers and no addresses; they change the calling thread's credentials only.
    unsafe { syscall!(number, a, b, c) }
}

fn prctl(option: u32, value: usize) -> Result<u64, Errno> {
    // SAFETY: the options used here read or set an attribute, and write no memory.
    unsafe { syscall!(__NR_prctl, word(option), value, 0, 0, 0) }.map(u64_of)
}

fn three(number: u32) -> Result<[u32; 3], Errno> {
    let mut ids = [0u32; 3];
    let [real, effective, saved] = ids.each_mut().map(|id| addr_of(core::ptr::from_mut(id)));
    // SAFETY: the kernel writes three numbers.
    unsafe { syscall!(number, real, effective, saved) }?;
    // SAFETY: the kernel wrote them behind our back.
    Ok(unsafe { (&raw const ids).read_volatile() })
}

fn capabilities() -> Result<[u64; 3], Errno> {
    let header = Header { version: CAPABILITY_VERSION, pid: 0 };
    let mut words = [[0u32; 3]; 2];
    // SAFETY: the kernel reads the header, and writes two triples.
    unsafe { syscall!(__NR_capget, addr_of(&raw const header), addr_of(words.as_mut_ptr())) }?;
    // SAFETY: the kernel wrote them behind our back.
    let [low, high] = unsafe { (&raw const words).read_volatile() };
    Ok(core::array::from_fn(|set| u64::from(high[set]) << 32 | u64::from(low[set])))
}

fn set_capabilities(sets: [u64; 3]) -> Result<(), Errno> {
    let header = Header { version: CAPABILITY_VERSION, pid: 0 };
    let words: [[u32; 3]; 2] = [sets.map(low_u32), sets.map(|set| low_u32(set >> 32))];
    // SAFETY: the kernel reads the header and two triples.
    unsafe { syscall!(__NR_capset, addr_of(&raw const header), addr_of(words.as_ptr())) }.map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_becomes_less_and_the_others_stay_as_they_are() {
        let before = Credentials::own().expect("always told");
        if before.users != [0; 3] {
            std::eprintln!("skipped: not root");
            return;
        }
        let nobody = Credentials { users: [65534; 3], groups: [65534; 3], capabilities: [0; 3] };
        let (dumpable, became) =
            (prctl(PR_GET_DUMPABLE, 0), std::thread::spawn(move || (nobody.take(), Credentials::own())));
        assert_eq!(became.join().expect("no panic"), (Ok(()), Ok(nobody)));
        assert_eq!((Credentials::own(), prctl(PR_GET_DUMPABLE, 0)), (Ok(before), dumpable));
    }

    #[test]
    fn root_for_the_moment_nobody_becomes_root_again() {
        let before = Credentials::own().expect("always told");
        if before.users != [0; 3] {
            std::eprintln!("skipped: not root");
            return;
        }
        let thread = std::thread::spawn(move || {
            let [_, permitted, inheritable] = before.capabilities;
            let between = Credentials { users: [0, 65534, 0], capabilities: [0, permitted, inheritable], ..before };
            between.take().expect("root may");
            assert_eq!(Credentials::own(), Ok(between));
            before.take().expect("who may be root again may");
            assert_eq!(Credentials::own(), Ok(before));
        });
        thread.join().expect("no panic");
    }
}
