//! Finds the library that `run` preloads into the program.

use std::env;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Its file name.
pub(crate) const LIBRARY: &str = "libpagetide_preload.so";

/// Names the library outright.
pub(crate) const VARIABLE: &str = "PAGETIDE_PRELOAD";

/// The library's absolute path.
pub(crate) fn find() -> Result<PathBuf, Failure> {
    let path = search()?;
    // The dynamic linker splits LD_PRELOAD at blanks and colons and knows no way to quote them.
    if path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        return Err(Failure::unsupported(
            format!("{}: the dynamic linker cannot preload a path with a blank or a colon", path.display()),
            format!("copy {LIBRARY} to another directory and set {VARIABLE} to its path"),
        ));
    }
    Ok(path)
}

fn search() -> Result<PathBuf, Failure> {
    if let Some(named) = env::var_os(VARIABLE).filter(|value| !value.is_empty()) {
        let path = PathBuf::from(named);
        return usable(&path).ok_or_else(|| {
            Failure::unsupported(
                format!("{VARIABLE}={}: no such file", path.display()),
                format!("give the path of {LIBRARY}, or unset {VARIABLE}"),
            )
        });
    }
    let executable = env::current_exe().map_err(|error| {
        Failure::unsupported(format!("cannot tell where pagetide lies: {error}"), format!("set {VARIABLE}"))
    })?;
    let places = places(&executable);
    places.iter().find_map(|path| usable(path)).ok_or_else(|| {
        let looked: Vec<String> = places.iter().map(|path| path.display().to_string()).collect();
        Failure::unsupported(
            format!("{LIBRARY} was not found; looked at {}", looked.join(", ")),
            format!("build it (cargo build --release -p pagetide-preload), or set {VARIABLE} to its path"),
        )
    })
}

/// Where it is looked for: beside the program, then where a package puts it.
fn places(executable: &Path) -> Vec<PathBuf> {
    let beside = executable.parent().unwrap_or(Path::new("/"));
    let mut places = vec![beside.join(LIBRARY)];
    if let Some(prefix) = beside.parent() {
        places.push(prefix.join("lib/pagetide").join(LIBRARY));
    }
    places
}

/// The absolute path of a file that is there.
fn usable(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    path.is_file().then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_looked_for_beside_the_program_and_in_the_library_directory() {
        assert_eq!(
            places(Path::new("/usr/bin/pagetide")),
            [
                PathBuf::from("/usr/bin/libpagetide_preload.so"),
                PathBuf::from("/usr/lib/pagetide/libpagetide_preload.so")
            ]
        );
    }

    #[test]
    fn only_files_are_usable() {
        assert_eq!(usable(Path::new("/")), None);
        let executable = env::current_exe().expect("a test is a program");
        assert_eq!(usable(&executable), Some(executable));
    }
}
