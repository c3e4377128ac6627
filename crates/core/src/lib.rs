//! The paging policy of Pagetide: facts in, orders out, into a buffer that the caller owns.
//!
//! The core has no clock, no I/O, no threads and no randomness: [`Core::handle`] takes an [`event::Event`] and appends
//! [`effect::Effect`]s; [`Core::deadline`] tells when it wants a [`event::Event::Timeout`]. Hosts are the live runtime
//! (*blind*: it sees no accessed bits, and answers maps and unmaps) and the simulator (*exact*: accessed and dirty bits live
//! in the core's page table, see [`Core::touch`]). The invariants I1..I10 that the comments name:
//!
//! 1. `handle` is total and bounded: at most 64 effects an event; long work goes on at `deadline()`.
//! 2. A page has at most one effect in flight; a fault on it waits and is answered later.
//! 3. Charged pages never exceed the budget plus what holding, adoption and the in-flight allowance force.
//! 4. A slot is free, or owned by the page that names it, or held from outside.
//! 5. The only copy of a page is never dropped before its write is done.
//! 6. A clean page whose slot still holds its bytes is dropped without a write.
//! 7. Late or unknown completions are ignored and counted.
//! 8. Same config and same events: same effects, bit for bit.
//! 9. Every waiting fault is answered or poisoned within finitely many events once I/O heals.
//! 10. The counters obey their laws.
//!
//! The modules in reading order: the nouns, the layers from memory up to tasks, and the core that ties them together
//! (ARCHITECTURE.md has the picture).
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
