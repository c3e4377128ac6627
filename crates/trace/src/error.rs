//! What can be wrong with a trace, and where.

use std::fmt;

/// Where in the input an error was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The input as a whole.
    Whole,
    /// A line of a text format, from 1.
    Line(u64),
    /// An offset into the (decompressed) bytes of a binary format.
    Byte(u64),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => write!(f, "trace"),
            Self::Line(line) => write!(f, "line {line}"),
            Self::Byte(byte) => write!(f, "byte {byte}"),
        }
    }
}

/// A trace that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The bytes are not what the format says.
    #[error("{place}: {what}")]
    Malformed {
        /// Where.
        place: Place,
        /// What is wrong, and what was expected.
        what: String,
    },
    /// The input ends in the middle.
    #[error("{place}: the trace ends here, in the middle of {within}; it was truncated")]
    Truncated {
        /// Where.
        place: Place,
        /// The thing that is incomplete.
        within: &'static str,
    },
    /// The operating system or the decompressor refused.
    #[error("{place}: {source}")]
    Io {
        /// Where.
        place: Place,
        /// Why.
        source: std::io::Error,
    },
}

impl TraceError {
    /// A malformed input at `place`.
    pub(crate) fn malformed(place: Place, what: impl Into<String>) -> Self {
        Self::Malformed { place, what: what.into() }
    }

    /// An I/O error at `place`; an early end of a compressed stream becomes `Truncated`.
    pub(crate) fn io(place: Place, source: std::io::Error) -> Self {
        if source.kind() == std::io::ErrorKind::UnexpectedEof {
            return Self::Truncated { place, within: "the compressed stream" };
        }
        Self::Io { place, source }
    }

    /// Where the error lies.
    pub fn place(&self) -> Place {
        match self {
            Self::Malformed { place, .. } | Self::Truncated { place, .. } | Self::Io { place, .. } => *place,
        }
    }
}
