//! The deterministic simulator around the policy core.
#![forbid(unsafe_code)]

pub mod script;
