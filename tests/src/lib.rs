//! The harness of the end-to-end tests and of the benchmarks: run a program natively, under `pagetide run`, or under the
//! kernel's own limit and swap, and compare what came out.
//!
//! It holds no test and no policy. Invariants: every child has a deadline and a tag in its environment, so that whatever
//! it leaves behind is found; every cgroup, swap file and sysfs value set here is undone, on a panic as well; few tests run
//! at a time on a machine, and one that measures is alone ([`serial`]).

pub mod clock;
pub mod serial;
pub mod scratch;
pub mod need;
pub mod program;
pub mod leftovers;
pub mod cgroup;
pub mod janitor;
pub mod kernel_swap;
pub mod victim;
pub mod sources;
pub mod pagetide;
pub mod steered;
pub mod small_disk;
pub mod loop_device;
pub mod nobody;
pub mod stats;
pub mod budgeted;

/// One mebibyte.
pub const MIB: u64 = 1 << 20;
