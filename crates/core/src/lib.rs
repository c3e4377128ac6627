//! The paging policy of Pagetide: facts in, orders out, into a buffer that the caller owns.
#![no_std]
#![forbid(unsafe_code)]
extern crate alloc;

pub mod types;
pub mod event;
pub mod effect;
