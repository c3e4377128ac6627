//! What the runtime asks of the kernel about an address space: the port, and Linux behind it.
//!
//! The pager, its deferred orders and its table of spans are written against [`AddressSpace`] alone, so that they run over a
//! model as they run over Linux.
//!
//! What this crate is not: it decides nothing, and it does no I/O to devices (that is the engine's).

mod port;
mod linux;

pub use linux::Linux;
pub use port::{AddressSpace, Message, OwnMapping};
