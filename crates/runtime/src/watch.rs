//! Watching and steering a run from outside: what `pagetide ps`, `stat`, `top` and `ctl` are made of.
//!
//! Each run listens at a socket in a directory of its user's own ([`place`]). Who calls sends one request and gets one answer, each a
//! packet of text lines ([`message`]); the two ends may be of different builds, so each packet begins with the version of the form.
//! The supervisor of the run answers from its loop (`supervise::watched`): it waits for nobody, and a caller that is slow, silent or
//! killed costs it nothing but a descriptor.

mod client;
pub(crate) mod message;
pub(crate) mod place;
mod record;

pub use client::{Connection, WatchError, runs};
pub use message::{Answer, HeatView, Memory, PACKET_BYTES, Request, Snapshot};
pub use place::check_name;
pub(crate) use record::is_same;
pub use record::{DeviceView, PRIORITY_BY_ORDER, ProcessView, RegionView, RunView, TEXT_BYTES_MAX};
