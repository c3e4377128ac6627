//! Tasks: their faults, the jobs that faults become, and what each waits for.

mod completion;
mod fault;
pub(crate) mod job;
pub(crate) mod waiters;
