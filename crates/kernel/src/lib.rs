//! What the runtime asks of the kernel about an address space: the port, Linux behind it, and a model.
//!
//! The pager, its deferred orders and its table of mappings are written against [`AddressSpace`] alone, so that they run over the
//! model as they run over Linux. The contract suite (`tests/contract`) plays the same scripts on both.
//!
//! What this crate is not: it decides nothing, and it does no I/O to devices (that is the engine's).

mod port;
mod linux;
pub mod model;

pub use linux::Linux;
pub use port::{AddressSpace, Faults, Message, OwnMapping, OwnSide, Sizes};
