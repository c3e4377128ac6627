//! Running something as user nobody, who has no privilege at all.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::need::{self, Feature};
use crate::pagetide::{PagetideRun, binary};
use crate::program::Program;
use crate::scratch::Scratch;

/// The number of user and group nobody.
const NOBODY: u32 = 65534;

/// True if this machine can run whole programs in signal mode as nobody.
pub fn can_run() -> bool {
    cfg!(target_arch = "x86_64") && need::has(&[Feature::Root, Feature::Tool("setpriv")])
}

/// A run whose binary, swap place and statistics nobody can use; all in `scratch`, which becomes open to all.
pub fn pagetide(scratch: &Scratch, memory_bytes: u64) -> PagetideRun {
    let readable = scratch.directory("bin");
    for entry in fs::read_dir(binary().parent().expect("a file has a directory")).expect("readable").flatten() {
        let name = entry.file_name();
        if name == "pagetide" || name.to_string_lossy().ends_with(".so") {
            fs::copy(entry.path(), readable.join(&name)).expect("copied");
        }
    }
    let run = PagetideRun::new(scratch, memory_bytes).binary(&readable.join("pagetide"));
    open_to_all(scratch.path());
    open_to_all(&scratch.file("swap"));
    run
}

fn open_to_all(directory: &Path) {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o777)).expect("our own directory");
}

/// The same program as nobody; needs root and setpriv.
pub fn program(program: &Program) -> Program {
    let identity = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"), "--clear-groups".to_owned()];
    program.behind(std::iter::once("setpriv".to_owned()).chain(identity))
}
