//! userfaultfd against the real kernel. One program, one test at a time: a fork makes the pages of all tests shared, and events
//! stop whoever changes the address space.

mod common;

mod events;
mod moving;
mod signal_mode;
