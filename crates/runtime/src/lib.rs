//! Run memory that does not fit inside a fixed budget, from user space, on a stock Linux kernel.
// It panics where nothing can be written: `stderr::tell` does not.
#![deny(clippy::print_stderr)]
#![cfg_attr(
    not(target_arch = "x86_64"),
    expect(dead_code, reason = "some of it serves signal mode only, which is for x86-64")
)]

pub mod error;
mod shares;
pub mod supervise;
pub mod watch;
mod control;
mod spans;
mod heat;
mod protocol;
pub mod agent_entry;
mod advice;
mod agent;
mod foothold;
#[cfg(target_arch = "x86_64")]
mod signal;
mod fork;
mod lifeline;
mod foreign;
mod record;
mod remap;
mod setup;
mod session;
mod pager;
mod patience;
mod space;
mod machine;
mod frames;
mod io;
mod engine;
mod extents;
mod store;
mod tier;
mod vmas;
pub mod alloc;
#[doc(hidden)]
pub mod elf;
mod origins;
mod leaving;
mod attach;
mod lent;
mod own;
mod limits;
mod credentials;
mod filters;
mod pool;
mod sleepers;
mod serve;
#[cfg(test)]
mod swarm;

pub use control::MACHINE_COUNTERS;
pub use error::{Error, ErrorKind, ErrorPage};
pub use pool::{Advice, EngineChoice, Hold, Pool, PoolBuilder, Region, SwapPlace, SwapState};
#[cfg(target_arch = "x86_64")]
#[doc(hidden)]
pub use signal::call_in_place;
pub use space::unpaged::UNPAGED;
pub use spans::{ProcessSpans, Span, SpanKind, WAIT_DRAWN_NS};

/// What a fuzzer may call of what nobody else may. Not part of the library: it is built with `--cfg fuzzing` only.
#[cfg(fuzzing)]
pub mod fuzzing {
    use crate::protocol::{Handover, Hello};
    use crate::session::command::{Answer, Command};

    /// Decodes a packet as each message; what is understood must be so again when it is encoded.
    pub fn packet(bytes: &[u8]) {
        if let Some(hello) = Hello::decode(bytes) {
            assert_eq!(Hello::decode(hello.encode().as_bytes()), Some(hello));
        }
        if let Some(handover) = Handover::decode(bytes) {
            assert_eq!(Handover::decode(handover.encode().as_bytes()), Some(handover));
        }
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        if let Some(command) = Command::decode(text) {
            assert_eq!(Command::decode(&command.encode()), Some(command));
        }
        if let Some(answer) = Answer::decode(text) {
            assert_eq!(Answer::decode(&answer.encode()), Some(answer));
        }
    }

    /// The same of what a run and its watchers say to each other.
    pub fn watch(bytes: &[u8]) {
        crate::watch::message::decode_as_each(bytes);
    }
}
