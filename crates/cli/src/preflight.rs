//! Looks at the program before anything starts: can it be found, can it be executed, and can a library be preloaded
//! into it? What cannot is said now, with the reason, and not by a program that silently runs without its budget.
//!
//! Scripts are followed to their interpreter, and `env NAME` to the program it names.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use crate::failure::{Exit, Failure};
use pagetide::elf::{self, Kind};

/// Interpreters of interpreters that are followed; the kernel stops at 5.
const SCRIPT_DEPTH_MAX: u32 = 5;

/// Where commands are looked for when `PATH` is not set.
const PATH_DEFAULT: &str = "/usr/local/bin:/usr/bin:/bin";

/// Finds the program and refuses it if it cannot run inside a budget.
pub(crate) fn examine(command: &OsStr) -> Result<PathBuf, Failure> {
    let path = find(command)?;
    follow(&path, 0)?;
    Ok(path)
}

/// The file that `command` names, as a shell would find it.
pub(crate) fn find(command: &OsStr) -> Result<PathBuf, Failure> {
    if command.is_empty() {
        return Err(Failure::told(Exit::NotFound, "the command is empty", "name a program after --"));
    }
    if command.as_bytes().contains(&b'/') {
        let path = PathBuf::from(command);
        return match fs::metadata(&path) {
            Ok(metadata) => check_executable(&path, &metadata).map(|()| path),
            Err(error) => Err(Failure::told(
                Exit::NotFound,
                format!("cannot find the program {}: {error}", path.display()),
                "check the path",
            )),
        };
    }
    let search = env::var_os("PATH").unwrap_or_else(|| OsString::from(PATH_DEFAULT));
    let mut refused = None;
    for directory in env::split_paths(&search) {
        let path = directory.join(command);
        let Ok(metadata) = fs::metadata(&path) else { continue };
        match check_executable(&path, &metadata) {
            Ok(()) => return Ok(path),
            Err(failure) => refused = refused.or(Some(failure)),
        }
    }
    Err(refused.unwrap_or_else(|| {
        let name = command.to_string_lossy();
        let remedy = if Path::new(command).exists() {
            format!("a file of that name is in this directory: write ./{name}")
        } else {
            "check the spelling, or give the program's path".to_owned()
        };
        Failure::told(Exit::NotFound, format!("command not found: {name}"), remedy)
    }))
}

/// A regular file with execute permission.
fn check_executable(path: &Path, metadata: &Metadata) -> Result<(), Failure> {
    let shown = path.display();
    if metadata.is_dir() {
        return Err(Failure::told(Exit::NotExecutable, format!("{shown} is a directory"), "name a program"));
    }
    if !metadata.is_file() || access(path, Access::EXEC_OK).is_err() {
        return Err(Failure::told(
            Exit::NotExecutable,
            format!("{shown} is not executable"),
            format!("chmod +x {shown}, or start it through its interpreter"),
        ));
    }
    Ok(())
}

/// Refuses what cannot be wrapped; goes on with the interpreter of a script.
fn follow(path: &Path, depth: u32) -> Result<(), Failure> {
    let shown = path.display();
    let file = match File::open(path) {
        Ok(file) => file,
        // Executable but not readable: the kernel will run it, and nothing can be said about it. Such a program is
        // not dumpable, and the preloaded library will speak up if it cannot serve it.
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => return Ok(()),
        Err(error) => return Err(Failure::told(Exit::NotExecutable, format!("cannot open {shown}: {error}"), "")),
    };
    let kind = elf::kind_of(&file)
        .map_err(|error| Failure::told(Exit::NotExecutable, format!("cannot read {shown}: {error}"), ""))?;
    match kind {
        Kind::Script { interpreter, argument } => follow_script(path, &interpreter, &argument, depth),
        Kind::Dynamic { loader, machine, go } => {
            check_machine(path, machine)?;
            check_go(path, go)?;
            check_privileges(path, &file)?;
            check_loader(path, &loader)
        }
        // A dynamic linker, which starts the program that its first argument names, and what is preloaded with it.
        Kind::Static { is_library: true, machine, .. } => {
            check_machine(path, machine)?;
            check_loader(path, &shown.to_string())
        }
        Kind::Static { is_library: false, machine, go } => {
            check_machine(path, machine)?;
            check_go(path, go)?;
            Err(Failure::unsupported(
                format!("{shown} is statically linked: no library can be preloaded into it"),
                "link it dynamically, or use the pagetide library inside it",
            ))
        }
        Kind::OtherWord => Err(Failure::unsupported(
            format!("{shown} is a 32-bit or big-endian program; pagetide serves 64-bit programs of this machine"),
            "build it for 64 bits",
        )),
        Kind::Other => Err(Failure::told(
            Exit::NotExecutable,
            format!("{shown} is neither a program nor a script with a #! line"),
            format!("start it through its interpreter, for example: sh {shown}"),
        )),
    }
}

/// The interpreter must be one that can be wrapped; behind `env`, so must the program it looks up.
fn follow_script(path: &Path, interpreter: &str, argument: &str, depth: u32) -> Result<(), Failure> {
    let shown = path.display();
    if depth == SCRIPT_DEPTH_MAX {
        return Err(Failure::told(
            Exit::NotExecutable,
            format!("{shown}: more than {SCRIPT_DEPTH_MAX} interpreters of interpreters"),
            "",
        ));
    }
    let interpreter_path = PathBuf::from(interpreter);
    let usable = fs::metadata(&interpreter_path)
        .map_err(|error| {
            Failure::told(
                Exit::NotExecutable,
                format!("{shown}: its interpreter {interpreter} cannot be found: {error}"),
                "install the interpreter, or correct the script's first line",
            )
        })
        .and_then(|metadata| check_executable(&interpreter_path, &metadata));
    usable?;
    follow(&interpreter_path, depth + 1)?;
    if interpreter_path.file_name() == Some(OsStr::new("env")) {
        let named = argument.split_whitespace().find(|word| !word.starts_with('-') && !word.contains('='));
        if let Some(named) = named {
            follow(&find(OsStr::new(named))?, depth + 1)?;
        }
    }
    Ok(())
}

fn check_machine(path: &Path, machine: u16) -> Result<(), Failure> {
    if machine == elf::MACHINE_HERE {
        return Ok(());
    }
    Err(Failure::unsupported(
        format!("{} is built for another machine (ELF machine {machine}, here {})", path.display(), elf::MACHINE_HERE),
        "build it for this machine; emulated programs are not served",
    ))
}

fn check_go(path: &Path, go: bool) -> Result<(), Failure> {
    if !go {
        return Ok(());
    }
    Err(Failure::unsupported(
        format!(
            "{} is a Go program: its runtime takes memory by raw system calls that pagetide does not follow",
            path.display()
        ),
        "set GOMEMLIMIT and use kernel swap",
    ))
}

/// The dynamic linker ignores preloaded libraries in programs that gain privileges.
fn check_privileges(path: &Path, file: &File) -> Result<(), Failure> {
    const SETUID: u32 = 0o4000;
    const SETGID: u32 = 0o2000;
    const GROUP_EXECUTE: u32 = 0o0010;
    let (mode, owner, group) =
        file.metadata().map_or((0, 0, 0), |metadata| (metadata.mode(), metadata.uid(), metadata.gid()));
    // A process's directory in /proc belongs to its effective user and group.
    let (user, own_group) = fs::metadata("/proc/self").map_or((u32::MAX, u32::MAX), |own| (own.uid(), own.gid()));
    let mut value = [0_u8; 64];
    // Root runs `su` as root: nothing is gained, and the dynamic linker sees no difference.
    let gains = if mode & SETUID != 0 && owner != user {
        "setuid"
    } else if mode & SETGID != 0 && mode & GROUP_EXECUTE != 0 && group != own_group {
        "setgid"
    } else if user != 0 && rustix::fs::fgetxattr(file, "security.capability", &mut value).is_ok() {
        "given file capabilities"
    } else {
        return Ok(());
    };
    Err(Failure::unsupported(
        format!("{} is {gains}: the dynamic linker ignores preloaded libraries in it", path.display()),
        "run a copy without that privilege, as the user who has it",
    ))
}

/// A library built for one C library cannot be loaded by the dynamic linker of another.
fn check_loader(path: &Path, loader: &str) -> Result<(), Failure> {
    let here = File::open("/proc/self/exe").and_then(|file| elf::kind_of(&file));
    let Ok(Kind::Dynamic { loader: ours, .. }) = here else { return Ok(()) };
    let name = |path: &str| Path::new(path).file_name().map(OsStr::to_owned);
    if name(&ours) == name(loader) {
        return Ok(());
    }
    Err(Failure::unsupported(
        format!(
            "{} is started by {loader}, pagetide was built for {ours}: the two use different C libraries",
            path.display()
        ),
        "build pagetide for that C library",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Told;
    use std::os::unix::fs::PermissionsExt;

    /// A directory of this test's own, removed at its end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = env::temp_dir().join(format!("pagetide-preflight-{}-{name}", std::process::id()));
            fs::create_dir(&path).expect("a fresh name");
            Self(path)
        }

        fn file(&self, name: &str, content: &[u8], mode: u32) -> PathBuf {
            let path = self.0.join(name);
            fs::write(&path, content).expect("a few bytes fit");
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("own file");
            path
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).expect("own directory");
        }
    }

    fn refusal(path: &Path) -> Told {
        match examine(path.as_os_str()) {
            Err(Failure::Told(told)) => told,
            Err(Failure::BrokenPipe) => panic!("nothing is printed here"),
            Ok(path) => panic!("{} was accepted", path.display()),
        }
    }

    #[test]
    fn a_dynamic_program_is_accepted_by_name_and_by_path() {
        let by_name = examine(OsStr::new("sh")).expect("every machine has sh");
        examine(by_name.as_os_str()).expect("the same program");
    }

    #[test]
    fn a_dynamic_linker_may_start_the_program() {
        let own = File::open("/proc/self/exe").and_then(|file| elf::kind_of(&file)).expect("readable");
        let Kind::Dynamic { loader, .. } = own else { panic!("a test is linked dynamically: {own:?}") };
        examine(OsStr::new(&loader)).expect("it loads what is preloaded");
        let scratch = Scratch::new("linker");
        let other = scratch.file("ld-other.so.1", &fs::read(loader).expect("readable"), 0o755);
        assert!(refusal(&other).what.contains("different C libraries"));
    }

    #[test]
    fn what_is_missing_ends_as_in_a_shell() {
        assert_eq!(refusal(Path::new("no-such-command-here")).exit, Exit::NotFound);
        assert_eq!(refusal(Path::new("/nonexistent/program")).exit, Exit::NotFound);
        assert_eq!(refusal(Path::new("")).exit, Exit::NotFound);
        assert_eq!(refusal(Path::new("/tmp")).exit, Exit::NotExecutable);
    }

    #[test]
    fn text_without_an_interpreter_is_not_executable() {
        let scratch = Scratch::new("text");
        assert_eq!(refusal(&scratch.file("plain", b"#!/bin/sh\n", 0o644)).exit, Exit::NotExecutable);
        let told = refusal(&scratch.file("noline", b"echo hello\n", 0o755));
        assert_eq!(told.exit, Exit::NotExecutable);
        assert!(told.remedy.contains("sh "), "{}", told.remedy);
    }

    #[test]
    fn a_script_is_judged_by_its_interpreter() {
        let scratch = Scratch::new("script");
        examine(scratch.file("good", b"#!/bin/sh\n", 0o755).as_os_str()).expect("sh is dynamic");
        examine(scratch.file("env", b"#!/usr/bin/env sh\n", 0o755).as_os_str()).expect("env and sh are dynamic");
        let missing = refusal(&scratch.file("missing", b"#!/nonexistent/interpreter\n", 0o755));
        assert_eq!(missing.exit, Exit::NotExecutable);
        assert!(missing.what.contains("/nonexistent/interpreter"), "{}", missing.what);
        let circle = scratch.0.join("circle");
        let line = format!("#!{}\n", circle.display());
        assert!(refusal(&scratch.file("circle", line.as_bytes(), 0o755)).what.contains("interpreters of"));
    }

    #[test]
    fn static_and_foreign_programs_are_unsupported() {
        let scratch = Scratch::new("elf");
        let mut elf = vec![0_u8; 64];
        elf[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', 2, 1]);
        elf[18..20].copy_from_slice(&elf::MACHINE_HERE.to_le_bytes());
        let told = refusal(&scratch.file("static", &elf, 0o755));
        assert_eq!(told.exit, Exit::Unsupported);
        assert!(told.what.contains("statically linked"), "{}", told.what);
        elf[18..20].copy_from_slice(&243_u16.to_le_bytes());
        assert!(refusal(&scratch.file("riscv", &elf, 0o755)).what.contains("another machine"));
        elf[4] = 1;
        assert!(refusal(&scratch.file("narrow", &elf, 0o755)).what.contains("32-bit"));
    }

    #[test]
    fn a_setuid_copy_of_a_program_is_refused_unless_nothing_is_gained() {
        let scratch = Scratch::new("setuid");
        let sh = fs::read(find(OsStr::new("sh")).expect("every machine has sh")).expect("readable");
        let own = scratch.file("own", &sh, 0o4755);
        assert!(examine(own.as_os_str()).is_ok(), "it stays the user who starts it");
        let path = scratch.file("suid", &sh, 0o755);
        if std::os::unix::fs::chown(&path, Some(65534), Some(65534)).is_err() {
            eprintln!("SKIPPED: files of others need root");
            return;
        }
        let set = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("root");
        set(0o4755);
        let told = refusal(&path);
        assert_eq!(told.exit, Exit::Unsupported);
        assert!(told.what.contains("setuid"), "{}", told.what);
        set(0o2755);
        assert!(refusal(&path).what.contains("setgid"));
    }
}
