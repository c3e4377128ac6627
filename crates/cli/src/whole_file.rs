//! Files that others read while they are written: such a file is complete or not there.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::failure::{Exit, Failure};

/// Says before the program starts whether the file of this flag can be written, so that hours of work do not end in an error.
pub(crate) fn check(flag: &str, path: &Path) -> Result<(), Failure> {
    let temporary = temporary_beside(path);
    fs::write(&temporary, b"")
        .and_then(|()| fs::remove_file(&temporary))
        .map_err(|error| failed(flag, path, &error))?;
    if path.is_dir() {
        return Err(failed(flag, path, &io::ErrorKind::IsADirectory.into()));
    }
    Ok(())
}

/// Writes the file in one step: beside it, then into its place.
pub(crate) fn replace(path: &Path, text: &str) -> io::Result<()> {
    let temporary = temporary_beside(path);
    fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, path)).inspect_err(|_| {
        // The error says what matters; a temporary file that cannot be removed either is part of it.
        let _ = fs::remove_file(&temporary);
    })
}

/// What is said of a file that cannot be written.
pub(crate) fn failed(flag: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::told(
        Exit::Failed,
        format!("{flag} {}: cannot write: {error}", path.display()),
        "name a file in a directory that exists and that you can write to",
    )
}

fn temporary_beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.partial", std::process::id()));
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_replaces_an_older_one_and_leaves_nothing_beside_it() {
        let directory = std::env::temp_dir().join(format!("pagetide-whole-file-{}", std::process::id()));
        fs::create_dir(&directory).expect("a fresh name");
        let path = directory.join("stats.json");
        fs::write(&path, "old").expect("a few bytes fit");
        assert!(check("--stats", &path).is_ok());
        assert!(replace(&path, "new").is_ok());
        let names: Vec<_> = fs::read_dir(&directory).expect("own directory").collect();
        let text = fs::read_to_string(&path).expect("just written");
        fs::remove_dir_all(&directory).expect("own directory");
        assert_eq!((names.len(), text.as_str()), (1, "new"));
    }

    #[test]
    fn what_cannot_be_a_file_is_named() {
        for path in ["/nonexistent/stats.json", "/tmp"] {
            let Err(Failure::Told(told)) = check("--stats", Path::new(path)) else { panic!("{path} is no file") };
            assert!(told.what.contains(&format!("--stats {path}")), "{}", told.what);
        }
    }
}
