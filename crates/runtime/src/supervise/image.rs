//! Why a process cannot be served, as its program file and its environment tell it.

use std::fs::File;

use pagetide_sys::proc;

use crate::elf::{self, Kind};

/// True if process `pid`, in which the object was found, runs another program inside itself: a static program loads no object, so who
/// did is of a program that it emulates, and no code of ours may be run in it by the machine itself.
pub(super) fn is_emulator(pid: i32) -> bool {
    is_static(pid)
}

/// Why process `pid` has not loaded the object, and what helps. `library` is the object's file name. None: it cannot be asked any more, for
/// it is at its end.
pub(super) fn why_absent(pid: i32, library: &str) -> Option<String> {
    if is_static(pid) {
        return Some("is statically linked".to_owned());
    }
    let why = match named(pid, library) {
        Named::Nowhere => {
            "runs without the preloaded library, which its environment does not name any more; hand LD_PRELOAD and \
                           PAGETIDE_RUN down to it"
                .to_owned()
        }
        Named::OutOfSight(path) => {
            format!("sees no file {path} from where it runs (a container); make pagetide's directory visible there")
        }
        Named::InSight => {
            "was not given the preloaded library by its dynamic linker (it has gained privileges, or uses another C \
                         library)"
                .to_owned()
        }
        Named::Forbidden => {
            "may not be looked into (PR_SET_DUMPABLE, or a program file that may not be read)".to_owned()
        }
        Named::Unknown => return None,
    };
    Some(why)
}

/// What the environment of a process says of the object.
pub(super) enum Named {
    /// The object's path, which leads there.
    InSight,
    /// The object's path, which leads nowhere for this process.
    OutOfSight(String),
    Nowhere,
    /// Nobody but root may ask.
    Forbidden,
    Unknown,
}

/// What the environment of process `pid` says of the object called `library`.
pub(super) fn named(pid: i32, library: &str) -> Named {
    let Ok(stat) = proc::stat(Some(pid)) else { return Named::Unknown };
    let environment = match std::fs::read(format!("/proc/{pid}/environ")) {
        Ok(environment) if stat.has_environment => environment,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied && !proc::is_over(stat.state) => {
            return Named::Forbidden;
        }
        Ok(_) | Err(_) => return Named::Unknown,
    };
    let lists = environment.split(|&byte| byte == 0).filter_map(|word| word.strip_prefix(b"LD_PRELOAD="));
    let mut paths = lists.flat_map(|list| list.split(|byte| matches!(byte, b' ' | b':')));
    match paths.find(|path| path.ends_with(library.as_bytes())) {
        Some(path) => {
            let path = String::from_utf8_lossy(path).into_owned();
            let seen = std::fs::exists(format!("/proc/{pid}/root{path}"));
            if seen.is_ok_and(|is_seen| !is_seen) { Named::OutOfSight(path) } else { Named::InSight }
        }
        None => Named::Nowhere,
    }
}

/// True if no dynamic linker has to do with the program of process `pid`.
fn is_static(pid: i32) -> bool {
    // It opens the program itself, also where its name is not to be seen from here.
    let kind = File::open(format!("/proc/{pid}/exe")).and_then(|file| elf::kind_of(&file));
    matches!(kind, Ok(Kind::Static { is_library: false, .. }))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// It was said of those that they "run without the preloaded library".
    #[test]
    fn nothing_is_said_of_a_process_that_is_at_its_end() {
        let mut child = Command::new("true").spawn().expect("a program of every system");
        let pid = i32::try_from(child.id()).expect("a process id");
        while !proc::is_over(proc::stat(Some(pid)).expect("it is not waited for yet").state) {
            std::thread::yield_now();
        }
        assert_eq!(why_absent(pid, "libpagetide_preload.so"), None);
        child.wait().expect("our child");
        assert_eq!(why_absent(pid, "libpagetide_preload.so"), None, "gone");
    }
}
