//! Compiles the C programs of `victims/`: C, so that nothing of our language's run time stands between them and the kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::need::source_directory;
use crate::scratch::Scratch;

/// The victim `name` (source `victims/NAME.c`) in `scratch`. It is compiled once for all tests, and again when its source or this
/// program is newer than it.
pub fn build(scratch: &Scratch, name: &str) -> PathBuf {
    let sources = source_directory().join("victims");
    let source = sources.join(format!("{name}.c"));
    let program = std::env::current_exe().expect("a test knows its own path");
    let kept = program.with_file_name(format!("victim-{name}"));
    if !is_newer(&kept, &[&source, &sources.join("expect.h"), &sources.join("storm.h"), &program]) {
        // Renamed into its place, so that another test, of this process or another, never finds half of it; /var/tmp may be another disk
        // than this. No other scratch directory has the name of this one.
        let unique = scratch.path().file_name().expect("a directory has a name");
        let fresh = kept.with_extension(unique);
        compile(&source, &fresh, &[]);
        fs::rename(&fresh, &kept).expect("both are in one directory");
    }
    let binary = scratch.file(name);
    // The one before may run.
    let _ = fs::remove_file(&binary);
    fs::copy(&kept, &binary).unwrap_or_else(|error| panic!("{}: {error}", kept.display()));
    binary
}

/// True if `made` is there and was made after all of `from`.
fn is_newer(made: &Path, from: &[&Path]) -> bool {
    let time = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
    time(made).is_some_and(|made| from.iter().all(|path| time(path).is_some_and(|from| from < made)))
}

/// The same as a static binary, which `pagetide run` must refuse.
pub fn build_static(scratch: &Scratch, name: &str) -> PathBuf {
    compile(
        &source_directory().join("victims").join(format!("{name}.c")),
        &scratch.file(&format!("{name}-static")),
        &["-static"],
    )
}

/// Compiles `source` to `binary` with the C compiler. Flags come last: a library is searched for what stands before it.
pub fn compile(source: &Path, binary: &Path, flags: &[&str]) -> PathBuf {
    let output = Command::new("cc")
        .args(["-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .arg("-o")
        .arg(binary)
        .arg(source)
        .args(flags)
        .output()
        .expect("cc is installed (tests/setup.sh)");
    assert!(output.status.success(), "cc {}:\n{}", source.display(), String::from_utf8_lossy(&output.stderr));
    binary.to_owned()
}
