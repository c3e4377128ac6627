//! Files that others read while they are written: such a file is complete or not there.
//!
//! A link is followed, and stays. What stands there and is no file (a terminal, `/dev/null`, a pipe) is written as it is, one text
//! behind the other, and so is a file that a descriptor of ours stands for (`/dev/stdout`): others write there too, from where it is.
//! Nobody who does not read holds a run up: a text that nobody takes for [`PATIENCE_NS`] is given up.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use pagetide_sys::fd::{self, Fd, PollFd, events};
use pagetide_sys::file::{self, flags};
use pagetide_sys::{Errno, clock};

use crate::failure::{Exit, Failure};

/// How long a reader may take nothing of a text.
pub(crate) const PATIENCE_NS: u64 = 1_000_000_000;
/// Links behind each other at most, as in the kernel.
const LINKS_MAX: usize = 40;

/// Where texts go.
#[derive(Debug)]
pub(crate) struct WholeFile {
    /// As given by the user.
    path: PathBuf,
    way: Way,
    /// None: a reader may take all the time.
    patience_ns: Option<u64>,
}

#[derive(Debug)]
enum Way {
    /// Beside this path, which is no link, then into its place.
    Replace(PathBuf),
    /// As it is.
    InPlace(Fd),
}

/// What a path leads to, behind all links.
#[derive(Debug, PartialEq, Eq)]
enum Goal {
    /// A file, or nothing.
    File(PathBuf),
    /// A file that is open under this number of ours.
    Descriptor(i32),
    /// A character device or a pipe.
    Stream,
}

impl WholeFile {
    /// Says before the program starts whether the file of this flag can be written, so that hours of work do not end in an error.
    pub(crate) fn open(flag: &str, path: &Path, patience_ns: Option<u64>) -> Result<Self, Failure> {
        let way = Way::open(path).map_err(|error| failed(flag, path, &error))?;
        Ok(Self { path: path.to_owned(), way, patience_ns })
    }

    /// As given by the user.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the file in one step, as far as it is one.
    pub(crate) fn put(&self, text: &str) -> io::Result<()> {
        match &self.way {
            Way::Replace(path) => replace(path, text),
            Way::InPlace(fd) => append(fd, text.as_bytes(), self.patience_ns),
        }
    }
}

impl Way {
    fn open(path: &Path) -> io::Result<Self> {
        match goal(path)? {
            Goal::File(path) => {
                let temporary = temporary_beside(&path);
                fs::write(&temporary, b"").and_then(|()| fs::remove_file(&temporary))?;
                Ok(Self::Replace(path))
            }
            Goal::Descriptor(number) => fd::pidfd(pagetide_sys::thread::getpid())
                .and_then(|own| fd::take_from(&own, number))
                .map(Self::InPlace)
                .map_err(of_errno),
            Goal::Stream => {
                let path = CString::new(path.as_os_str().as_bytes())?;
                match Fd::open(&path, flags::WRITE | flags::NONBLOCK | flags::NO_TERMINAL, 0) {
                    Ok(fd) => Ok(Self::InPlace(fd)),
                    Err(Errno::ENXIO) => Err(io::Error::other("it is a pipe that nobody reads")),
                    Err(errno) => Err(of_errno(errno)),
                }
            }
        }
    }
}

/// What is said of a file that cannot be written.
pub(crate) fn failed(flag: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::told(
        Exit::Failed,
        format!("{flag} {}: cannot write: {error}", path.display()),
        "name a file in a directory that exists and that you can write to",
    )
}

/// Follows links. Err: nothing can be written there.
fn goal(path: &Path) -> io::Result<Goal> {
    let is_file = match fs::metadata(path).map(|found| (found.is_file(), found.file_type())) {
        Ok((true, _)) => true,
        Ok((_, kind)) if kind.is_char_device() || kind.is_fifo() => return Ok(Goal::Stream),
        Ok((_, kind)) if kind.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
        Ok((_, kind)) if kind.is_socket() => return Err(io::Error::other("it is a socket")),
        Ok(_) => return Err(io::Error::other("it is a block device")),
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => return Err(error),
    };
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        let Some(name) = path.file_name() else { return Err(io::ErrorKind::IsADirectory.into()) };
        let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
        let directory = fs::canonicalize(directory.unwrap_or(Path::new(".")))?;
        if is_file
            && is_descriptors(&directory)
            && let Some(number) = name.to_str().and_then(|name| name.parse().ok())
        {
            return Ok(Goal::Descriptor(number));
        }
        let place = directory.join(name);
        match fs::read_link(&place) {
            Ok(link) => path = directory.join(link),
            // It is no link, or nothing.
            Err(error) if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::NotFound) => {
                return Ok(Goal::File(place));
            }
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other("too many links"))
}

/// `/proc/self/fd`, or a thread's, behind all links.
fn is_descriptors(directory: &Path) -> bool {
    let own = Path::new("/proc").join(std::process::id().to_string());
    directory.starts_with(own) && directory.ends_with("fd")
}

/// Both are one file, or will be. What takes texts of several writers (a terminal, `/dev/null`) is none.
pub(crate) fn is_same(one: &Path, other: &Path) -> bool {
    match (fs::metadata(one), fs::metadata(other)) {
        (Ok(one), Ok(other)) => {
            (one.dev(), one.ino()) == (other.dev(), other.ino()) && !one.file_type().is_char_device()
        }
        _ => matches!((goal(one), goal(other)), (Ok(Goal::File(one)), Ok(Goal::File(other))) if one == other),
    }
}

/// Writes a file beside it, then puts it into its place.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    // It was one, or nothing, when it was opened.
    if fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(io::Error::other("what is there now is no file"));
    }
    let temporary = temporary_beside(path);
    fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, path)).inspect_err(|_| {
        // The error says what matters; a temporary file that cannot be removed either is part of it.
        let _ = fs::remove_file(&temporary);
    })
}

/// Writes all, unless nothing is taken for so long.
fn append(fd: &Fd, mut text: &[u8], patience_ns: Option<u64>) -> io::Result<()> {
    let mut since = clock::now();
    while !text.is_empty() {
        match file::write(fd, text) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => (text, since) = (&text[written..], clock::now()),
            Err(Errno::EAGAIN) => {
                let waited_ns = clock::now().saturating_sub(since);
                let left_ns = patience_ns.map(|patience_ns| patience_ns.saturating_sub(waited_ns));
                if left_ns == Some(0) {
                    return Err(io::Error::other("nobody reads it"));
                }
                // A signal cuts the wait short, and the next turn goes on with it.
                let _ = fd::poll(&mut [PollFd::new(fd, events::OUT)], left_ns);
            }
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(of_errno(errno)),
        }
    }
    Ok(())
}

fn of_errno(errno: Errno) -> io::Error {
    io::Error::from_raw_os_error(errno.code())
}

fn temporary_beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.partial", std::process::id()));
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn directory(tag: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("pagetide-whole-file-{tag}-{}", std::process::id()));
        fs::create_dir(&path).expect("a fresh name");
        fs::canonicalize(path).expect("just made")
    }

    fn open(path: &Path) -> Result<WholeFile, Failure> {
        WholeFile::open("--stats", path, Some(1_000_000))
    }

    fn pipe_at(path: &Path) {
        rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::from_raw_mode(0o600)).expect("a fresh name");
    }

    #[test]
    fn the_file_replaces_an_older_one_and_leaves_nothing_beside_it() {
        let directory = directory("file");
        let path = directory.join("stats.json");
        fs::write(&path, "old").expect("a few bytes fit");
        let file = open(&path).expect("a file");
        assert!(file.put("new").is_ok());
        let names: Vec<_> = fs::read_dir(&directory).expect("own directory").collect();
        let text = fs::read_to_string(&path).expect("just written");
        fs::remove_dir_all(&directory).expect("own directory");
        assert_eq!((names.len(), text.as_str()), (1, "new"));
    }

    #[test]
    fn a_link_stays_and_what_it_leads_to_is_written() {
        let directory = directory("links");
        let at = |name: &str| directory.join(name);
        fs::write(at("there"), "old").expect("a few bytes fit");
        for (link, to) in [("one", "two"), ("two", "there"), ("dangling", "made"), ("round", "round")] {
            std::os::unix::fs::symlink(to, at(link)).expect("a fresh name");
        }
        for link in ["one", "dangling"] {
            open(&at(link)).expect("it leads to a file").put("new").expect("a few bytes fit");
            assert!(fs::symlink_metadata(at(link)).expect("it stays").is_symlink(), "{link}");
        }
        let texts = ["there", "made"].map(|name| fs::read_to_string(at(name)).expect("it was written"));
        assert!(open(&at("round")).is_err());
        fs::remove_dir_all(&directory).expect("own directory");
        assert_eq!(texts, ["new", "new"]);
    }

    #[test]
    fn a_pipe_is_written_as_it_is_and_one_that_nobody_reads_holds_nobody_up() {
        let directory = directory("pipe");
        let path = directory.join("pipe");
        pipe_at(&path);
        let Err(Failure::Told(told)) = open(&path) else { panic!("nobody reads") };
        assert!(told.what.contains("a pipe that nobody reads"), "{told}");
        // Both ends, so that opening waits for nobody.
        let reader = fs::OpenOptions::new().read(true).write(true).open(&path).expect("own pipe");
        let file = open(&path).expect("somebody reads");
        file.put("text").expect("there is room");
        let mut bytes = [0; 4];
        io::Read::read_exact(&mut &reader, &mut bytes).expect("it was written");
        assert_eq!(&bytes, b"text");
        let error = file.put(&"x".repeat(1 << 20)).expect_err("nobody takes it");
        assert!(error.to_string().contains("nobody reads it"), "{error}");
        assert!(fs::metadata(&path).expect("it stays").file_type().is_fifo());
        fs::remove_dir_all(&directory).expect("own directory");
    }

    #[test]
    fn devices_stay_devices() {
        let is_device = |path: &str| fs::symlink_metadata(path).expect("there").file_type().is_char_device();
        assert!(open(Path::new("/dev/null")).expect("a device").put("text").is_ok());
        let error = open(Path::new("/dev/full")).expect("a device").put("text").expect_err("it is full");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(is_device("/dev/null") && is_device("/dev/full"));
    }

    #[test]
    fn a_descriptors_file_is_written_where_the_descriptor_stands() {
        use std::os::fd::AsRawFd;
        let directory = directory("descriptor");
        let path = directory.join("out");
        let out = fs::File::create(&path).expect("a fresh name");
        io::Write::write_all(&mut &out, b"one ").expect("a few bytes fit");
        let link = PathBuf::from(format!("/proc/self/fd/{}", out.as_raw_fd()));
        open(&link).expect("it is open").put("two ").expect("a few bytes fit");
        io::Write::write_all(&mut &out, b"three").expect("a few bytes fit");
        let text = fs::read_to_string(&path).expect("just written");
        fs::remove_dir_all(&directory).expect("own directory");
        assert_eq!(text, "one two three");
    }

    #[test]
    fn one_file_under_two_names_is_known() {
        let directory = directory("same");
        let at = |name: &str| directory.join(name);
        fs::write(at("file"), "").expect("a few bytes fit");
        fs::hard_link(at("file"), at("hard")).expect("a fresh name");
        for (link, to) in [("link", "file"), ("dangling", "made")] {
            std::os::unix::fs::symlink(to, at(link)).expect("a fresh name");
        }
        for (one, other, expected) in [
            ("file", "file", true),
            ("file", "hard", true),
            ("file", "link", true),
            ("made", "dangling", true),
            ("made", "../made", false),
            ("file", "made", false),
            ("new", "./new", true),
        ] {
            assert_eq!(is_same(&at(one), &at(other)), expected, "{one} and {other}");
        }
        fs::remove_dir_all(&directory).expect("own directory");
        assert!(!is_same(Path::new("/dev/null"), Path::new("/dev/null")), "it takes all");
    }

    #[test]
    fn what_cannot_be_a_file_is_named() {
        let directory = directory("none");
        let socket = directory.join("socket");
        let _listener = UnixListener::bind(&socket).expect("a fresh name");
        let socket = socket.to_str().expect("text");
        for (path, part) in [("/nonexistent/stats.json", "No such"), ("/tmp", "directory"), (socket, "a socket")] {
            let Err(Failure::Told(told)) = open(Path::new(path)) else { panic!("{path} is no file") };
            assert!(told.what.contains(&format!("--stats {path}")) && told.what.contains(part), "{}", told.what);
        }
        fs::remove_dir_all(&directory).expect("own directory");
    }
}
