//! Where the sockets of a user's runs lie, and how they are named.
//!
//! `$XDG_RUNTIME_DIR/pagetide`, which the system makes for each session; else `pagetide/run` in the user's state directory. Each is the user's
//! own with mode 0700, or is not used. A socket's name is that of the run, or its supervisor's process number. Binding, and removing what a
//! killed run left, happen under a lock of the directory: a socket that nobody answers is stale then, and not one that is being made.

use std::ffi::CString;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use pagetide_sys::fd::Fd;
use pagetide_sys::{Errno, socket};

/// Bytes of a name at most.
const NAME_BYTES_MAX: usize = 64;
/// Runs and callers that wait to be heard.
const BACKLOG: u32 = 32;
/// Sockets of killed runs that one that starts removes, at most.
const SWEPT_MAX: usize = 64;

/// The directory, open.
#[derive(Debug)]
pub(crate) struct Place {
    directory: File,
    pub(crate) path: PathBuf,
}

/// A name can be a run's: letters, digits and `. _ -`, not a number (that means a process), at most 64 bytes. Err: why not.
pub fn check_name(name: &str) -> Result<(), String> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(format!("a name has 1 to {NAME_BYTES_MAX} characters"));
    }
    if !name.bytes().all(is_plain) || name.starts_with(['.', '-']) {
        return Err("a name has letters, digits, '.', '_' and '-', and begins with a letter, a digit or '_'".to_owned());
    }
    if name.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err("a number means a process: give a name with a letter in it".to_owned());
    }
    Ok(())
}

/// The directories that may be it, in order: each is made in a directory that exists.
fn candidates() -> Vec<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let runtime = variable("XDG_RUNTIME_DIR").filter(|path| is_own(path)).map(|path| path.join("pagetide"));
    let state = variable("XDG_STATE_HOME").or_else(|| variable("HOME").map(|home| home.join(".local/state")));
    runtime.into_iter().chain(state.map(|state| state.join("pagetide/run"))).collect()
}

/// A directory that belongs to us: with `sudo` the variables may still be those of another user.
fn is_own(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == user())
}

/// Whose runs are ours: who the kernel says calls from here. Nobody, if it does not say.
pub(crate) fn user() -> u32 {
    let own = socket::pair().and_then(|(one, _other)| socket::peer(&one));
    own.map_or(u32::MAX, |peer| peer.uid)
}

impl Place {
    /// The directory; made if it is not there and `make` is true.
    pub(crate) fn open(make: bool) -> io::Result<Self> {
        let mut refused = io::Error::new(io::ErrorKind::NotFound, "neither XDG_RUNTIME_DIR nor HOME names a directory");
        for path in candidates() {
            if make {
                // What stands in its way is told by what follows.
                let _ = DirBuilder::new().recursive(true).mode(0o700).create(&path);
            }
            match Self::open_at(path.clone()) {
                Ok(place) => return Ok(place),
                Err(error) => refused = io::Error::new(error.kind(), format!("{}: {error}", path.display())),
            }
        }
        Err(refused)
    }

    fn open_at(path: PathBuf) -> io::Result<Self> {
        let directory = File::open(&path)?;
        let found = directory.metadata()?;
        if !found.is_dir() || found.uid() != user() {
            return Err(io::Error::other("not a directory of this user"));
        }
        if found.mode() & 0o077 != 0 {
            directory.set_permissions(Permissions::from_mode(0o700))?;
        }
        Ok(Self { directory, path })
    }

    /// The path of a socket in it, by the descriptor: short enough for a socket's address however long the directory's path is.
    fn socket_path(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.directory.as_raw_fd()))
    }

    /// The names in it.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.socket_path("")).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.retain(|name| is_socket_name(name));
        names.sort();
        names
    }

    /// Call the run with this name. ECONNREFUSED: it is gone; ENOENT: there is none.
    pub(crate) fn connect(&self, name: &str) -> Result<Fd, Errno> {
        if !is_socket_name(name) {
            return Err(Errno::ENOENT);
        }
        socket::connect(&c_path(&self.socket_path(name)))
    }

    /// Remove the sockets of this name that a killed run left.
    pub(crate) fn clean(&self, name: &str) {
        if self.directory.try_lock().is_ok() {
            self.remove_stale(name);
            let _ = self.directory.unlock();
        }
    }

    /// The sockets without a name of runs that were killed: nobody else takes those over. Only under the lock.
    fn sweep(&self) {
        let is_gone = |name: &&String| is_number(name) && !Path::new("/proc").join(name.as_str()).exists();
        self.names().iter().filter(is_gone).take(SWEPT_MAX).for_each(|name| self.remove_stale(name));
    }

    /// Only under the lock. What is no socket refuses calls as well.
    fn remove_stale(&self, name: &str) {
        let found = fs::symlink_metadata(self.socket_path(name));
        let is_own = found.is_ok_and(|found| found.file_type().is_socket() && found.uid() == user());
        if is_own && self.connect(name) == Err(Errno::ECONNREFUSED) {
            // If it cannot be removed, binding will tell.
            let _ = fs::remove_file(self.socket_path(name));
        }
    }

    /// Listen under a name. EADDRINUSE: a run that lives has it.
    pub(crate) fn listen(&self, name: &str) -> Result<Fd, Errno> {
        // Whoever holds the lock makes a few calls and lets go.
        self.directory.lock().map_err(|_| Errno::EIO)?;
        self.sweep();
        let listener = self.listen_locked(name);
        let _ = self.directory.unlock();
        listener
    }

    fn listen_locked(&self, name: &str) -> Result<Fd, Errno> {
        let path = self.socket_path(name);
        let bound = match socket::bind(&c_path(&path)) {
            Err(Errno::EADDRINUSE) => {
                self.remove_stale(name);
                socket::bind(&c_path(&path))
            }
            answer => answer,
        };
        let listener = bound?;
        // Nobody can call before `listen`.
        fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(|_| Errno::EACCES)?;
        socket::listen(&listener, BACKLOG)?;
        Ok(listener)
    }

    /// Take a name of ours away.
    pub(crate) fn remove(&self, name: &str) {
        // If the whole directory is gone so is the name.
        let _ = fs::remove_file(self.socket_path(name));
    }
}

/// A run's name or a process number.
fn is_socket_name(name: &str) -> bool {
    check_name(name).is_ok() || is_number(name)
}

fn is_number(name: &str) -> bool {
    name.len() <= 10 && !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit())
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_encoded_bytes()).expect("a number and a name that was checked")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(tag: &str) -> Place {
        let path = std::env::temp_dir().join(format!("pagetide-place-{tag}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a fresh name");
        Place::open_at(path).expect("our own")
    }

    #[test]
    fn names_that_could_mean_something_else_are_refused() {
        for name in ["job", "job-1", "_x", "7zip", "a.b"] {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in ["", "12", "../x", "a/b", ".x", "-x", "a b", "a\n", "ä", &"x".repeat(65)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_name_has_one_run_and_what_a_killed_one_left_is_taken_over() {
        let place = place("names");
        let first = place.listen("job").expect("it is free");
        assert_eq!(place.listen("job"), Err(Errno::EADDRINUSE));
        let mode = fs::metadata(place.path.join("job")).expect("it is there").mode();
        assert_eq!(mode & 0o777, 0o600);
        // A killed process closes its descriptors and removes nothing.
        drop(first);
        let second = place.listen("job").expect("the one before is gone");
        assert!(place.connect("job").is_ok());
        drop(second);
        place.clean("job");
        assert_eq!(place.names(), Vec::<String>::new());
        assert_eq!(place.connect("../job"), Err(Errno::ENOENT));
        fs::remove_dir_all(&place.path).expect("our own");
    }

    #[test]
    fn a_run_that_starts_removes_what_killed_ones_without_a_name_left_and_nothing_else() {
        let place = place("sweep");
        let lives = place.listen("4194999").expect("it is free");
        let dead = ["4194998", "dead"].map(|name| place.listen(name).expect("it is free"));
        fs::write(place.path.join("4194997"), "no socket").expect("a fresh name");
        drop(dead);
        let _job = place.listen("job").expect("it is free");
        assert_eq!(place.names(), ["4194997", "4194999", "dead", "job"]);
        // Who asks for the runs removes the others, and no file.
        ["4194997", "4194999", "dead"].iter().for_each(|name| place.clean(name));
        assert_eq!(place.names(), ["4194997", "4194999", "job"]);
        drop(lives);
        fs::remove_dir_all(&place.path).expect("our own");
    }

    #[test]
    fn the_directory_becomes_private() {
        let path = std::env::temp_dir().join(format!("pagetide-place-open-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a fresh name");
        fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("our own");
        let place = Place::open_at(path).expect("our own");
        assert_eq!(fs::metadata(&place.path).expect("it is there").mode() & 0o777, 0o700);
        fs::remove_dir_all(&place.path).expect("our own");
    }
}
