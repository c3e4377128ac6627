//! Run memory that does not fit inside a fixed budget, from user space, on a stock Linux kernel.

pub mod error;
mod shares;
pub mod supervise;
mod control;
mod protocol;
pub mod agent_entry;
mod agent;
mod bell;
mod fork;
mod record;
mod setup;
mod pager;
mod spans;
mod machine;
mod frames;
mod io;
mod engine;
mod store;
pub mod alloc;
mod own;
mod unshare;
mod pool;

pub use error::{Error, ErrorKind, ErrorPage};
pub use pool::{Advice, EngineChoice, Hold, Pool, PoolBuilder, Region};
