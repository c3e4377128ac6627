//! The paging policy of Pagetide: facts in, orders out, into a buffer that the caller owns.
//!
//! The core has no clock, no I/O, no threads and no randomness: [`Core::handle`] takes an [`event::Event`] and appends
//! [`effect::Effect`]s; [`Core::deadline`] tells when it wants a [`event::Event::Timeout`]. Hosts are the live runtime
//! (*blind*: it sees no accessed bits, and answers maps and unmaps) and the simulator (*exact*: accessed and dirty bits live
//! in the core's page table, see [`Core::touch`]).
//!
//! The invariants I1 to I10 that comments and messages name are a table in ARCHITECTURE.md, which also has the picture of the layers.
//! The modules in reading order: the nouns, the layers from memory up to tasks, and the core that ties them together.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;
#[cfg(test)]
extern crate std;

// The nouns, and the border: events in, effects out.
pub mod config;
pub mod effect;
pub mod event;
pub mod absences;
pub mod tier;
pub mod types;
pub mod vmstat;

// The layers, lowest first; each names what stands before it only.
mod host;
mod io;
mod memory;
mod swap;

mod readahead;
mod reclaim;

mod paging;

mod files;
mod tasks;

// The core: dispatch.
mod audit;
mod control;
mod policy;

pub use config::{Config, ConfigError, HostKind, MemoryMode};
pub use effect::{Effect, Effects};
pub use event::Event;
pub use memory::page::{self, Flight, PageState, PageView};
pub use memory::tally::PartCounts;
pub use policy::{Core, Touch};
pub use vmstat::{Counter, Vmstat};
