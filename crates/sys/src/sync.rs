//! Words that threads of ours and of the program share, where an order of steps could lose a wake, a page or a fork.
//!
//! Each is a small machine that knows nothing of what it is for. `make loom` builds it with loom's words in place of the processor's and
//! tries every order of its threads' steps, with all that the orders of memory let a load see (`tests/orders`).
#![expect(clippy::new_without_default, reason = "they are statics, which are made by constant functions")]

#[cfg(not(loom))]
use core::sync::atomic;
#[cfg(loom)]
use loom::sync::atomic;

#[cfg(not(loom))]
use crate::futex::{wait, wake};
#[cfg(loom)]
use model::{wait, wake};

/// A function that is `const` but for loom, whose words are made while a model runs.
macro_rules! constant {
    ($(#[$meta:meta])* pub fn $($rest:tt)*) => {
        $(#[$meta])*
        #[cfg(not(loom))]
        pub const fn $($rest)*

        $(#[$meta])*
        #[cfg(loom)]
        pub fn $($rest)*
    };
}

#[cfg(loom)]
mod model;

mod baton;
mod errand;
mod gate;
mod held;
mod mutex;
mod still;
mod turns;
mod version;

pub use baton::Baton;
pub use errand::{Errand, Errands};
pub use gate::Gate;
pub use held::{HeldPages, HeldRuns, Taking};
pub use mutex::{Guard, Mutex};
pub use still::{Changing, Stillness};
pub use turns::{Turns, Watch};
pub use version::Version;
