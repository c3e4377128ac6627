//! Access traces: which task touched which page, in which order.
//!
//! This crate reads traces (the own binary format, valgrind lackey text, CSV; each of them plain, gzip or zstd), writes
//! the binary format, and packs a trace into dense page numbers for replay. It knows nothing of paging.
//!
//! Invariants: no input panics or makes a reader allocate more than it has bytes to justify; every error names its place.

#![forbid(unsafe_code)]

pub mod record;
pub mod error;
pub mod binary;
pub mod lackey;
pub mod csv;
pub mod open;
pub mod dense;

pub use error::{Place, TraceError};
pub use record::{Header, Op, Record, RecordKind, RecordSource, TracedRegion};
