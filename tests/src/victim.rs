//! Compiles the C programs of `victims/`: C, so that nothing of our language's run time stands between them and the kernel.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::need::source_directory;
use crate::scratch::Scratch;

/// The victim `name` (source `victims/NAME.c`), compiled into `scratch`.
pub fn build(scratch: &Scratch, name: &str) -> PathBuf {
    compile(&source_directory().join("victims").join(format!("{name}.c")), &scratch.file(name), &[])
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
