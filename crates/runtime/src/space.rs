//! The program's address space: what each mapping is, which are managed and as which pages of the core, and why the others are not.

pub(crate) mod held;
pub(crate) mod inherit;
pub(crate) mod locks;
mod mapping;
pub(crate) mod recent;
mod regions;
pub(crate) mod unshare;

pub(crate) use mapping::{Backing, Census, Mapping, Standing, Why};
pub(crate) use regions::{Change, PAGE_BYTES, PAGE_SHIFT, Spans};
