//! The one place that prints results. A reader that goes away (`| head`) is not an error.

use std::io::{self, Write};

use crate::failure::{Exit, Failure};

/// Writes `text` to standard output.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Failure::BrokenPipe;
        }
        Failure::told(Exit::Failed, format!("cannot write to standard output: {error}"), "")
    })
}
