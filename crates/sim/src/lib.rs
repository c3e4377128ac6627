//! The simulator: the policy core in virtual time.
//!
//! The same core that pages a live process is driven here by tasks, CPUs and devices that are models. Time is a number,
//! every run is decided by its seed, and the content of every page is known, so that a wrong byte cannot pass unseen.
//! What it is not: a model of anything but memory. Computation is a duration, a file system is a device.
//!
//! Invariants: same input and seed, same result to the last count; no input of a person panics; no run is endless.

#![forbid(unsafe_code)]

pub mod rng;
pub mod queue;
pub mod device;
pub mod disk;
mod elevator;
pub mod injection;
pub mod oracle;
pub mod histogram;
pub mod pattern;
pub mod nearest;
pub mod units;
pub mod task;
pub mod files;
pub mod cpu;
pub mod world;
pub mod workload;
pub mod script;
pub mod run;
pub mod replay;
pub mod belady;
pub mod study;
pub mod reproduce;
pub mod rerun;
pub mod curve;
pub mod swarm;
pub mod lru;
pub mod bench;
pub mod cli;
