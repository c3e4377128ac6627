//! System call filters (seccomp): what one would answer, told before it is installed.
//!
//! A filter is a program of classic BPF without loops, over the number of a call and its arguments. [`judge`] follows each way through it
//! that a call may take whose arguments are known in part, and reports the worst end.

use linux_raw_sys::general as k;

use crate::mem::{KINDS, Memory, Protection};
use crate::signal::can_read;
use crate::uffd::{UFFDIO_COPY, UFFDIO_MOVE};
use crate::word::{addr_of, low_u32, u64_of};

/// `AUDIT_ARCH_X86_64`
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
/// `AUDIT_ARCH_AARCH64`
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// `SECCOMP_SET_MODE_FILTER`
pub const SET_FILTER: u32 = 1;
/// `SECCOMP_FILTER_FLAG_TSYNC`: for all threads of the process, or none.
pub const ALL_THREADS: u32 = 1;
/// `SECCOMP_FILTER_FLAG_TSYNC_ESRCH`: a thread that cannot take it over is told of by ESRCH, not by its number.
pub const ALL_THREADS_OR_ERROR: u32 = 1 << 4;

/// Calls that our threads must be able to make, whatever their arguments: without them no page comes or goes. (And ioctl and mmap, of which
/// it is known what is asked.)
const NEEDED: &[u32] = &[
    k::__NR_read,
    k::__NR_close,
    k::__NR_munmap,
    k::__NR_rt_sigprocmask,
    k::__NR_pread64,
    k::__NR_preadv,
    k::__NR_pwritev,
    k::__NR_madvise,
    k::__NR_sendmsg,
    k::__NR_recvmsg,
    k::__NR_futex,
];
/// Calls that they make now and then, and that may fail.
const USED: &[u32] = &[
    k::__NR_ppoll,
    k::__NR_clone,
    k::__NR_fcntl,
    k::__NR_openat,
    k::__NR_prlimit64,
    k::__NR_io_uring_enter,
    k::__NR_io_uring_register,
    k::__NR_prctl,
    k::__NR_capget,
    k::__NR_capset,
    k::__NR_setgroups,
    k::__NR_setresuid,
    k::__NR_setresgid,
    k::__NR_getresuid,
    k::__NR_getresgid,
    k::__NR_munlock,
    k::__NR_mlock2,
    k::__NR_mincore,
    k::__NR_mremap,
    k::__NR_mprotect,
    k::__NR_preadv2,
    k::__NR_pwritev2,
    k::__NR_pwrite64,
    k::__NR_write,
    k::__NR_writev,
    k::__NR_readv,
    k::__NR_clock_gettime,
    k::__NR_sched_yield,
    k::__NR_sched_setaffinity,
    k::__NR_sched_getaffinity,
    k::__NR_setpriority,
    k::__NR_getpid,
    k::__NR_gettid,
    k::__NR_exit,
    k::__NR_exit_group,
    k::__NR_kill,
    k::__NR_tgkill,
    k::__NR_fallocate,
    k::__NR_ftruncate,
    k::__NR_fstatfs,
    k::__NR_statx,
    k::__NR_dup3,
    k::__NR_eventfd2,
    k::__NR_pipe2,
    k::__NR_close_range,
    k::__NR_getdents64,
    k::__NR_readlinkat,
    k::__NR_process_vm_readv,
    k::__NR_kcmp,
    k::__NR_unshare,
    k::__NR_getrandom,
];
/// Calls of our handlers in a thread of the program, in signal mode, and the worst that may become of each.
const OF_HANDLERS: &[(u32, Verdict)] = &[
    (k::__NR_rt_sigreturn, Verdict::Allowed),
    (k::__NR_write, Verdict::Allowed),
    (k::__NR_rt_sigprocmask, Verdict::Allowed),
    (k::__NR_futex, Verdict::Refused),
    (k::__NR_sched_yield, Verdict::Refused),
];
/// Where these cannot be made: as strict mode leaves them.
const OF_CONFINED_HANDLERS: &[(u32, Verdict)] =
    &[(k::__NR_rt_sigreturn, Verdict::Allowed), (k::__NR_write, Verdict::Allowed), (k::__NR_read, Verdict::Allowed)];
/// Calls of ours in a new thread, and of who makes it.
const OF_NEW_THREADS: &[(u32, Verdict)] =
    &[(k::__NR_gettid, Verdict::Allowed), (k::__NR_sigaltstack, Verdict::Allowed), (k::__NR_prctl, Verdict::Allowed)];
/// Calls of ours in a thread of the program that writes a line for the person, or waits for memory to be looked at; they may fail.
const OF_PROGRAMS: &[u32] =
    &[k::__NR_newfstatat, k::__NR_ppoll, k::__NR_fcntl, k::__NR_write, k::__NR_madvise, k::__NR_futex];
/// What of ioctl is needed.
const REQUESTS: [u32; 2] = [UFFDIO_COPY, UFFDIO_MOVE];
/// The rights of our mappings, and the worst that may become of one: frames that may be executed are done without.
const RIGHTS: [(Protection, Verdict); 4] = [
    (Protection::ReadWrite, Verdict::Allowed),
    (Protection::None, Verdict::Allowed),
    (Protection::Read, Verdict::Allowed),
    (Protection::ReadWriteExecute, Verdict::Refused),
];

/// Longer filters are not judged. (The kernel takes 4096 steps.)
pub const STEPS_MAX: usize = 2048;

/// `struct sock_filter`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// What it does.
    pub code: u16,
    /// Steps to leave out if a condition holds.
    pub then: u8,
    /// If not.
    pub otherwise: u8,
    /// A constant.
    pub value: u32,
}

/// `struct sock_fprog`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Program {
    len: u16,
    steps: *const Step,
}

/// What a filter would deny us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Denied {
    /// A call of our threads, without which paging could not go on.
    pub needed: Option<u32>,
    /// A thread of the program behind it may end at what it does for us beside its own.
    pub confines: bool,
}

impl Program {
    /// What the filter at `program` would deny us. Read once; where the kernel could not read it: nothing.
    ///
    /// # Safety
    /// A filter that the caller's program hands to the kernel: if it is there, nobody changes it.
    pub unsafe fn denied(program: *const Self) -> Denied {
        let mut steps = [Step::default(); STEPS_MAX];
        if !can_read(addr_of(program), size_of::<Self>()) {
            return Denied::default();
        }
        // SAFETY: the caller's.
        let Self { len, steps: from } = unsafe { program.read_unaligned() };
        let Some(steps) = steps.get_mut(..usize::from(len)) else {
            return Denied { needed: Some(k::__NR_seccomp), confines: true };
        };
        let bytes = size_of_val(steps);
        if bytes == 0 || !can_read(addr_of(from), bytes) {
            return Denied::default();
        }
        // SAFETY: the caller's; as bytes, because it may lie anywhere.
        unsafe { from.cast::<u8>().copy_to_nonoverlapping(steps.as_mut_ptr().cast::<u8>(), bytes) };
        denied(steps)
    }
}

/// The steps of the filter that a program hands to the kernel at `address`. None: nothing is there, or it is too long to be judged.
pub fn read<'s>(memory: &mut impl Memory, address: usize, into: &'s mut [Step; STEPS_MAX]) -> Option<&'s [Step]> {
    let (mut len, mut from) = ([0; 2], [0; 8]);
    let is_there = memory.read(address, &mut len) && memory.read(address.checked_add(8)?, &mut from);
    let steps = into.get_mut(..usize::from(u16::from_ne_bytes(len)))?;
    let mut at = usize::from_ne_bytes(from);
    for step in is_there.then_some(&mut *steps)? {
        let mut bytes = [0; 8];
        memory.read(at, &mut bytes).then_some(())?;
        let [a, b, then, otherwise, value @ ..] = bytes;
        *step = Step { code: u16::from_ne_bytes([a, b]), then, otherwise, value: u32::from_ne_bytes(value) };
        at = at.checked_add(bytes.len())?;
    }
    Some(steps)
}

/// What a filter leaves to our handlers in a thread of the program, in signal mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Leaves {
    /// All that they do.
    Everything,
    /// All but to begin a new thread.
    NoThreads,
    /// To read, to write, and to return, as strict mode does.
    Little,
    /// Not even that: they would end the thread.
    Nothing,
}

/// What this filter leaves.
pub fn leaves(program: &[Step]) -> Leaves {
    let allows =
        |calls: &[(u32, Verdict)]| calls.iter().all(|&(number, worst)| judge(program, Asked::any(number)) <= worst);
    if !allows(OF_HANDLERS) {
        return if allows(OF_CONFINED_HANDLERS) { Leaves::Little } else { Leaves::Nothing };
    }
    if allows(OF_NEW_THREADS) { Leaves::Everything } else { Leaves::NoThreads }
}

/// A call.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    number: u32,
    /// Its arguments, where they are known and have 32 bits.
    arguments: [Option<u32>; 6],
}

impl Asked {
    /// With whatever arguments.
    pub const fn any(number: u32) -> Self {
        Self { number, arguments: [None; 6] }
    }

    /// With this argument, counted from 0.
    #[must_use]
    pub const fn with(mut self, index: usize, argument: u32) -> Self {
        self.arguments[index] = Some(argument);
        self
    }

    /// What a filter finds at this offset of `struct seccomp_data`.
    const fn word(self, at: u32) -> Value {
        match at {
            NUMBER_AT => Value::Known(self.number),
            ARCHITECTURE_AT => Value::Known(ARCHITECTURE),
            ARGUMENTS_AT..ARGUMENTS_END if at.is_multiple_of(4) => {
                match self.arguments[((at - ARGUMENTS_AT) / 8) as usize] {
                    Some(argument) => Value::Known(if at.is_multiple_of(8) { argument } else { 0 }),
                    None => Value::Unknown,
                }
            }
            _ => Value::Unknown,
        }
    }
}

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It is made.
    Allowed,
    /// It fails with an error.
    Refused,
    /// It ends the thread or the process, is a signal, or is somebody else's to answer.
    Ends,
}

/// The accumulator before a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Value {
    /// No way leads here.
    Unreached,
    Known(u32),
    Unknown,
}

impl Value {
    /// One way more leads here.
    fn join(&mut self, other: Self) {
        *self = match *self {
            Self::Unreached => other,
            same if same == other => same,
            Self::Known(_) | Self::Unknown => Self::Unknown,
        };
    }

    fn map(self, change: impl FnOnce(u32) -> u32) -> Self {
        match self {
            Self::Known(value) => Self::Known(change(value)),
            Self::Unreached | Self::Unknown => self,
        }
    }
}

/// What this filter would deny us.
pub fn denied(program: &[Step]) -> Denied {
    let may = |number: u32, worst: Verdict| judge(program, Asked::any(number)) <= worst;
    let moves = |&request: &u32| judge(program, Asked::any(k::__NR_ioctl).with(1, request)) == Verdict::Allowed;
    let maps = |&(protection, worst): &(Protection, Verdict)| {
        let asked = Asked::any(k::__NR_mmap).with(2, low_u32(u64_of(protection.bits())));
        KINDS.iter().all(|&kind| judge(program, asked.with(3, kind)) <= worst)
    };
    let pages = (!REQUESTS.iter().all(moves)).then_some(k::__NR_ioctl);
    let memory = (!RIGHTS.iter().all(maps)).then_some(k::__NR_mmap);
    let needed = NEEDED.iter().copied().find(|&number| !may(number, Verdict::Allowed));
    let used = || USED.iter().copied().find(|&number| !may(number, Verdict::Refused));
    Denied {
        needed: pages.or(memory).or(needed).or_else(used),
        confines: !OF_PROGRAMS.iter().all(|&number| may(number, Verdict::Refused)),
    }
}

/// The worst that may become of this call. `program` comes from wherever; a step out of place leads nowhere, as the kernel refuses it.
pub fn judge(program: &[Step], asked: Asked) -> Verdict {
    if program.len() > STEPS_MAX {
        return Verdict::Ends;
    }
    let mut before = [Value::Unreached; STEPS_MAX];
    before[0] = Value::Known(0);
    let mut worst = Verdict::Allowed;
    for (at, &step) in program.iter().enumerate() {
        let value = before[at];
        if value == Value::Unreached {
            continue;
        }
        let mut go = |skipped: u32, value: Value| {
            let next = usize::try_from(skipped).ok().and_then(|skipped| at.checked_add(1)?.checked_add(skipped));
            if let Some(next) = next.and_then(|next| before.get_mut(next)) {
                next.join(value);
            }
        };
        match step.code & CLASS {
            LOAD => go(0, step.loaded(asked)),
            ARITHMETIC => go(0, step.computed(value)),
            JUMP if step.code & OPERATION == ALWAYS => go(step.value, value),
            JUMP => {
                let holds = step.holds(value);
                if holds != Some(false) {
                    go(u32::from(step.then), value);
                }
                if holds != Some(true) {
                    go(u32::from(step.otherwise), value);
                }
            }
            RETURN => worst = worst.max(step.verdict(value)),
            MOVE if step.code & OPERATION_OF_MOVE == INDEX_TO_ACCUMULATOR => go(0, Value::Unknown),
            // What is kept elsewhere is not followed.
            _ => go(0, value),
        }
    }
    worst
}

// Codes of steps: `BPF_CLASS`, and for each class what it distinguishes.
const CLASS: u16 = 0x07;
const LOAD: u16 = 0x00;
const ARITHMETIC: u16 = 0x04;
const JUMP: u16 = 0x05;
const RETURN: u16 = 0x06;
const MOVE: u16 = 0x07;
const MODE: u16 = 0xe0;
const IMMEDIATE: u16 = 0x00;
const ABSOLUTE: u16 = 0x20;
const OPERATION: u16 = 0xf0;
const BY_INDEX: u16 = 0x08;
const OR: u16 = 0x40;
const AND: u16 = 0x50;
const ALWAYS: u16 = 0x00;
const EQUAL: u16 = 0x10;
const GREATER: u16 = 0x20;
const GREATER_OR_EQUAL: u16 = 0x30;
const ANY_BIT: u16 = 0x40;
const RETURNED: u16 = 0x18;
const ACCUMULATOR: u16 = 0x10;
const OPERATION_OF_MOVE: u16 = 0xf8;
const INDEX_TO_ACCUMULATOR: u16 = 0x80;
// Where `struct seccomp_data` has the number, the architecture, and the arguments, lower halves first.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const ARGUMENTS_AT: u32 = 16;
const ARGUMENTS_END: u32 = 64;
// What a filter returns, in its upper half.
const ACTION: u32 = 0xffff_0000;
const ALLOW: u32 = 0x7fff_0000;
const LOG: u32 = 0x7ffc_0000;
const ERRNO: u32 = 0x0005_0000;

impl Step {
    const fn loaded(self, asked: Asked) -> Value {
        match (self.code & MODE, self.value) {
            (IMMEDIATE, value) => Value::Known(value),
            (ABSOLUTE, at) => asked.word(at),
            _ => Value::Unknown,
        }
    }

    fn computed(self, value: Value) -> Value {
        match self.code & (OPERATION | BY_INDEX) {
            OR => value.map(|value| value | self.value),
            AND => value.map(|value| value & self.value),
            _ => Value::Unknown,
        }
    }

    /// None: that is not known.
    const fn holds(self, value: Value) -> Option<bool> {
        let Value::Known(value) = value else { return None };
        match self.code & (OPERATION | BY_INDEX) {
            EQUAL => Some(value == self.value),
            GREATER => Some(value > self.value),
            GREATER_OR_EQUAL => Some(value >= self.value),
            ANY_BIT => Some(value & self.value != 0),
            _ => None,
        }
    }

    const fn verdict(self, value: Value) -> Verdict {
        let returned = match (self.code & RETURNED, value) {
            (ACCUMULATOR, Value::Known(value)) => value,
            (ACCUMULATOR, Value::Unknown | Value::Unreached) => return Verdict::Ends,
            _ => self.value,
        };
        match returned & ACTION {
            ALLOW | LOG => Verdict::Allowed,
            ERRNO => Verdict::Refused,
            _ => Verdict::Ends,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use super::*;

    const fn step(code: u16, then: u8, otherwise: u8, value: u32) -> Step {
        Step { code, then, otherwise, value }
    }

    const LOAD_WORD: u16 = LOAD | ABSOLUTE;
    const IF_EQUAL: u16 = JUMP | EQUAL;
    const IOCTL: u32 = 16;

    fn of(program: &[Step], number: u32) -> Verdict {
        judge(program, Asked::any(number))
    }

    #[test]
    fn a_list_of_numbers_allows_these_and_ends_the_others() {
        let program = [
            step(LOAD_WORD, 0, 0, ARCHITECTURE_AT),
            step(IF_EQUAL, 1, 0, ARCHITECTURE),
            step(RETURN, 0, 0, 0),
            step(LOAD_WORD, 0, 0, NUMBER_AT),
            step(IF_EQUAL, 2, 0, 1),
            step(IF_EQUAL, 1, 0, 60),
            step(RETURN, 0, 0, 0x8000_0000),
            step(RETURN, 0, 0, ALLOW),
        ];
        assert_eq!([0, 1, 60, 61].map(|number| of(&program, number)), {
            use Verdict::{Allowed, Ends};
            [Ends, Allowed, Allowed, Ends]
        });
    }

    #[test]
    fn arguments_that_are_not_known_may_be_the_worst() {
        let program = [
            step(LOAD_WORD, 0, 0, NUMBER_AT),
            step(IF_EQUAL, 0, 3, IOCTL),
            step(LOAD_WORD, 0, 0, ARGUMENTS_AT + 8),
            step(IF_EQUAL, 0, 1, 0x5412),
            step(RETURN, 0, 0, ERRNO | 1),
            step(RETURN, 0, 0, ALLOW),
        ];
        assert_eq!(of(&program, IOCTL), Verdict::Refused);
        assert_eq!(judge(&program, Asked::any(IOCTL).with(1, 0xaa05)), Verdict::Allowed);
        assert_eq!(of(&program, IOCTL + 1), Verdict::Allowed);
    }

    #[test]
    fn paging_goes_on_without_what_may_fail_and_not_without_what_it_needs() {
        let program = |number: u32, verdict: u32| {
            [
                step(LOAD_WORD, 0, 0, NUMBER_AT),
                step(IF_EQUAL, 0, 1, number),
                step(RETURN, 0, 0, verdict),
                step(RETURN, 0, 0, ALLOW),
            ]
        };
        let needed = |number, verdict| denied(&program(number, verdict)).needed;
        assert_eq!(needed(k::__NR_execve, 0), None);
        assert_eq!(needed(k::__NR_io_uring_enter, ERRNO | 1), None);
        assert_eq!(needed(k::__NR_io_uring_enter, 0), Some(k::__NR_io_uring_enter));
        assert_eq!(needed(k::__NR_madvise, ERRNO | 1), Some(k::__NR_madvise));
        // A thread of the program is asked for nothing that may end it.
        let confines = |number, verdict| denied(&program(number, verdict)).confines;
        assert!(!confines(k::__NR_execve, 0) && !confines(k::__NR_ppoll, ERRNO | 1));
        assert!(confines(k::__NR_ppoll, 0) && confines(k::__NR_madvise, 0));
    }

    /// As systemd denies memory that may be written and executed, and Firefox mappings with flags that it does not know.
    #[test]
    fn mappings_that_are_never_made_may_be_denied() {
        let program = |at: u32, code: u16, bits: u32| {
            [
                step(LOAD_WORD, 0, 0, NUMBER_AT),
                step(IF_EQUAL, 0, 3, k::__NR_mmap),
                step(LOAD_WORD, 0, 0, at),
                step(JUMP | code, 0, 1, bits),
                step(RETURN, 0, 0, ERRNO | 1),
                step(RETURN, 0, 0, ALLOW),
            ]
        };
        let (rights, flags) = (ARGUMENTS_AT + 16, ARGUMENTS_AT + 24);
        let needed = |at, code, bits| denied(&program(at, code, bits)).needed;
        assert_eq!(needed(rights, ANY_BIT, k::PROT_EXEC), None);
        assert_eq!(needed(rights, EQUAL, k::PROT_READ), Some(k::__NR_mmap));
        assert_eq!(needed(flags, ANY_BIT, k::MAP_HUGETLB), None);
        assert_eq!(needed(flags, ANY_BIT, k::MAP_POPULATE), Some(k::__NR_mmap));
        assert_eq!(needed(ARGUMENTS_AT, ANY_BIT, 1), Some(k::__NR_mmap), "an address may be any");
    }

    #[test]
    fn handlers_have_what_a_filter_leaves_them() {
        let only = |numbers: &[u32]| {
            let count = u8::try_from(numbers.len()).expect("a few");
            let tests = numbers.iter().zip((1..=count).rev()).map(|(&number, left)| step(IF_EQUAL, left, 0, number));
            let ends = [step(RETURN, 0, 0, 0), step(RETURN, 0, 0, ALLOW)];
            std::iter::once(step(LOAD_WORD, 0, 0, NUMBER_AT)).chain(tests).chain(ends).collect::<Vec<_>>()
        };
        let strict = [k::__NR_read, k::__NR_write, k::__NR_rt_sigreturn, k::__NR_exit];
        let handlers =
            [k::__NR_rt_sigreturn, k::__NR_write, k::__NR_rt_sigprocmask, k::__NR_futex, k::__NR_sched_yield];
        let threads = [k::__NR_gettid, k::__NR_sigaltstack, k::__NR_prctl];
        assert_eq!(leaves(&only(&strict)), Leaves::Little);
        assert_eq!(leaves(&only(&strict[1..])), Leaves::Nothing);
        assert_eq!(leaves(&only(&handlers)), Leaves::NoThreads);
        assert_eq!(leaves(&only(&[&handlers[..], &threads].concat())), Leaves::Everything);
        assert_eq!(leaves(&[step(RETURN, 0, 0, ERRNO | 1)]), Leaves::Nothing);
    }

    #[test]
    fn a_filter_is_read_as_far_as_it_is_there() {
        struct Bytes(Vec<u8>);
        impl Memory for Bytes {
            fn read(&mut self, address: usize, into: &mut [u8]) -> bool {
                let found = self.0.get(address..address + into.len());
                found.map(|found| into.copy_from_slice(found)).is_some()
            }
        }
        let mut bytes = vec![0; 32];
        bytes[..2].copy_from_slice(&2_u16.to_ne_bytes());
        bytes[8..16].copy_from_slice(&16_usize.to_ne_bytes());
        bytes[16..24].copy_from_slice(&[0x20, 0, 0, 0, 0, 0, 0, 0]);
        bytes[24..].copy_from_slice(&[0x06, 0, 1, 2, 0, 0, 0xff, 0x7f]);
        let mut steps = [Step::default(); STEPS_MAX];
        let expected = [step(LOAD_WORD, 0, 0, 0), step(RETURN, 1, 2, ALLOW)];
        assert_eq!(read(&mut Bytes(bytes.clone()), 0, &mut steps), Some(&expected[..]));
        assert_eq!(read(&mut Bytes(bytes[..31].to_vec()), 0, &mut steps), None);
        bytes[..2].copy_from_slice(&u16::MAX.to_ne_bytes());
        assert_eq!(read(&mut Bytes(bytes), 0, &mut steps), None);
    }

    #[test]
    fn what_cannot_be_followed_is_the_worst() {
        assert_eq!(
            of(&[step(MOVE | INDEX_TO_ACCUMULATOR, 0, 0, 0), step(RETURN | ACCUMULATOR, 0, 0, 0)], 1),
            Verdict::Ends
        );
        assert_eq!(of(&[step(RETURN, 0, 0, ALLOW); STEPS_MAX + 1], 1), Verdict::Ends);
        assert_eq!(of(&[step(JUMP, 0, 0, u32::MAX), step(RETURN, 0, 0, 0)], 1), Verdict::Allowed);
    }
}
