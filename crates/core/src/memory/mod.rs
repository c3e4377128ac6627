//! Memory: what is known of each page, the lists it is on, and the charge against the budget.

pub(crate) mod budget;
pub(crate) mod lru;
pub mod page;
