//! How the program ends: exit codes, and errors that say what is wrong and what to do about it.
//!
//! What ends the program is said by `main`, once, so that a message never appears twice.

use std::fmt;
use std::io::{self, Write};

use crate::ps::plain;

/// The exit codes of `pagetide` itself. Under `run` a program's own status passes through instead, so these can be
/// mistaken for it: a message on standard error always goes with the ones of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Something went wrong while doing what was asked.
    Failed,
    /// The command line is wrong.
    Usage,
    /// This machine, program or budget cannot be served; nothing was started.
    Unsupported,
    /// The command exists and cannot be executed (as shells say it).
    NotExecutable,
    /// The command does not exist (as shells say it).
    NotFound,
}

impl Exit {
    /// Every way to end badly.
    pub(crate) const ALL: [Self; 5] =
        [Self::Failed, Self::Usage, Self::Unsupported, Self::NotExecutable, Self::NotFound];

    /// The number.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Unsupported => 3,
            Self::NotExecutable => 126,
            Self::NotFound => 127,
        }
    }
}

/// Lines on standard error, as soon as there is room for them. Where they cannot be written nobody reads them, and that is no reason to end.
pub(crate) fn say(lines: fmt::Arguments<'_>) {
    let _ = io::stderr().write_all(format!("{lines}\n").as_bytes());
}

/// A reason to end.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The reader of our output went away: not an error (`pagetide sim ... | head`).
    BrokenPipe,
    /// An error to be shown.
    Told(Told),
}

/// An error message: what is wrong, and the remedy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// How the program ends.
    pub(crate) exit: Exit,
    /// What is wrong: names the flag or the file, and the value.
    pub(crate) what: String,
    /// What the reader can do.
    pub(crate) remedy: String,
}

impl Failure {
    /// An error to be shown.
    pub(crate) fn told(exit: Exit, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Told(Told { exit, what: what.into(), remedy: remedy.into() })
    }

    /// What this machine, program or budget does not allow.
    pub(crate) fn unsupported(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::told(Exit::Unsupported, what, remedy)
    }
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It may name what somebody has called so: no control character but the end of a line reaches the terminal.
        let lines: Vec<String> = self.what.split('\n').map(plain).collect();
        write!(f, "pagetide: {}", lines.join("\n"))?;
        if self.remedy.is_empty() {
            return Ok(());
        }
        write!(f, "\n  remedy: {}", self.remedy)
    }
}
