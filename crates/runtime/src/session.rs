//! What drives one pager, whoever catches its faults.

pub(crate) mod command;
