//! The one error of the runtime: a kind that programs match on, and a text that says what to do.

use std::fmt;

/// What kind of failure it is. Each has a section in docs/errors.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// An option or knob has a value that cannot be used.
    Config,
    /// The machine lacks something that paging needs.
    Unsupported,
    /// The user may not do what paging needs.
    Permission,
    /// A system call failed that should not.
    Io,
    /// There is no room for the swap file, or the place to swap to cannot be used.
    NoSwapSpace,
    /// The program cannot be started.
    Command,
}

/// What a person is told about a kind of error: a section of docs/errors.md, which is made from these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorPage {
    /// The kind's name.
    pub name: &'static str,
    /// When it occurs.
    pub what: &'static str,
    /// What to do.
    pub remedy: &'static str,
    /// How `pagetide run` ends with it.
    pub exit_code: u8,
}

impl ErrorKind {
    /// Every kind.
    pub const ALL: [Self; 6] =
        [Self::Config, Self::Unsupported, Self::Permission, Self::NoSwapSpace, Self::Command, Self::Io];

    /// The kind's section.
    pub const fn page(self) -> ErrorPage {
        let (name, what, remedy, exit_code) = match self {
            Self::Config => (
                "Config",
                "An option or a knob has a value that cannot be used. The message names it and the values it takes.",
                "correct the value; `pagetide knobs` lists the knobs",
                2,
            ),
            Self::Unsupported => (
                "Unsupported",
                "The machine lacks something that paging needs, mostly a full userfaultfd.",
                "`pagetide doctor` says what is missing and how to get it",
                3,
            ),
            Self::Permission => (
                "Permission",
                "The user may not do what paging needs.",
                "`pagetide doctor` says which permission is missing and how it can be given",
                3,
            ),
            Self::NoSwapSpace => (
                "NoSwapSpace",
                "There is no room for the swap file, it cannot be made there, or the place lies in memory (tmpfs); a block device is in use, \
                 holds something, or may not be written.",
                "name a directory on a disk with room (`--swap DIR`), ask for less (`--swap DIR:SIZE`), or say that a device is for \
                 swapping (`mkswap DEVICE`)",
                3,
            ),
            Self::Command => (
                "Command",
                "The program cannot be started.",
                "check that it exists and may be executed; a missing one ends with 127",
                126,
            ),
            Self::Io => (
                "Io",
                "A system call failed that does not fail in the normal course: descriptors or memory are exhausted.",
                "the message names the resource; raise its limit (`ulimit -a`) or free some",
                1,
            ),
        };
        ErrorPage { name, what, remedy, exit_code }
    }
}

/// A failure.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    context: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self { kind, context: context.into(), source: None }
    }

    pub(crate) fn because(mut self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// What kind of failure it is.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.context)?;
        self.source.as_ref().map_or(Ok(()), |source| write!(f, ": {source}"))
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| {
            let source: &(dyn std::error::Error + 'static) = source.as_ref();
            source
        })
    }
}
