//! Tells how the run goes, on a thread of its own: who is told writes to files and terminals, and may wait for them as long as they like.
//! The supervisor must not: what processes without an agent fill meanwhile is beyond the budget.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::{Builder, Scope};

use crate::error::{Error, ErrorKind};
use crate::supervise::Progress;

/// Dropped: what it was given is told still, then its thread ends.
#[derive(Debug)]
pub(super) struct Teller<'a> {
    tells: Sender<Progress>,
    is_telling: &'a AtomicBool,
}

impl<'a> Teller<'a> {
    /// Calls `progress` with what it is given.
    pub(super) fn spawn<'scope>(
        scope: &'scope Scope<'scope, 'a>,
        is_telling: &'a AtomicBool,
        progress: &'a mut (dyn FnMut(&Progress) + Send),
    ) -> Result<Self, Error> {
        let (tells, told) = mpsc::channel();
        let tell = move || {
            for what in told {
                progress(&what);
                is_telling.store(false, Ordering::Release);
            }
        };
        let failed = |error: io::Error| Error::new(ErrorKind::Io, "the thread that writes statistics").because(error);
        Builder::new().name("teller".to_owned()).spawn_scoped(scope, tell).map_err(failed)?;
        Ok(Self { tells, is_telling })
    }

    /// True once all that it was given has been told.
    pub(super) fn is_free(&self) -> bool {
        !self.is_telling.load(Ordering::Acquire)
    }

    pub(super) fn tell(&self, what: Progress) {
        self.is_telling.store(true, Ordering::Release);
        // Its thread ends after this only.
        let _ = self.tells.send(what);
    }
}
