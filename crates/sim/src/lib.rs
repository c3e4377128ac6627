//! To be filled by the first change of this crate.
