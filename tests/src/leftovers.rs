//! What a run left behind: processes of its tree (found by a tag in their environment), files in its swap directory, open
//! descriptors on deleted files there.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Pid, Signal, kill_process};

/// The environment variable that every child of the harness carries.
pub const TAG_VARIABLE: &str = "PAGETIDE_TEST_TAG";

/// A tag that no other run has.
pub fn fresh_tag() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Living processes whose environment carries `tag` (zombies have no environment).
pub fn processes(tag: &str) -> Vec<Pid> {
    let needle = format!("{TAG_VARIABLE}={tag}");
    all_pids()
        .filter(|pid| {
            fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|environment| environment.split(|byte| *byte == 0).any(|entry| entry == needle.as_bytes()))
        })
        .filter_map(Pid::from_raw)
        .collect()
}

/// Kills what carries `tag`, and says how many processes that were. Only processes of our own carry it.
pub fn kill_all(tag: &str) -> usize {
    let found = processes(tag);
    for pid in &found {
        // It may have ended meanwhile: that is what is wanted.
        let _ = kill_process(*pid, Signal::KILL);
    }
    found.len()
}

/// Where each thread of the tagged processes stands: state, kernel function, system call, kernel stack. For messages about hangs.
pub fn describe(tag: &str) -> String {
    let mut text = String::new();
    for pid in processes(tag) {
        let pid = pid.as_raw_nonzero();
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().replace('\0', " ");
        text.push_str(&format!("  process {pid}: {command}\n"));
        let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for task in tasks.flatten().take(24) {
            let read =
                |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default().trim().replace('\n', " < ");
            let stat = read("stat");
            let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).unwrap_or('?');
            text.push_str(&format!(
                "    thread {} '{}' {state} wchan={} syscall={} stack={}\n",
                task.file_name().display(),
                read("comm"),
                read("wchan"),
                read("syscall"),
                read("stack"),
            ));
        }
    }
    text
}

/// Files in `directory`, and descriptors of any process on deleted files that were in it.
pub fn files(directory: &Path) -> Vec<String> {
    let mut found: Vec<String> = fs::read_dir(directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        .flatten()
        .map(|entry| entry.path().display().to_string())
        .collect();
    for pid in all_pids() {
        for (descriptor, target) in descriptors(pid) {
            if target.starts_with(directory) {
                found.push(format!("{} is {}", descriptor.display(), target.display()));
            }
        }
    }
    found
}

/// Every descriptor of a process, with what it is open on: of all its threads, since a thread may have a table of its own.
pub fn descriptors(pid: i32) -> Vec<(PathBuf, PathBuf)> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let tables = tasks.filter_map(|task| fs::read_dir(task.path().join("fd")).ok());
    let links = tables.flat_map(Iterator::flatten).map(|descriptor| descriptor.path());
    links.filter_map(|link| fs::read_link(&link).ok().map(|target| (link, target))).collect()
}

fn all_pids() -> impl Iterator<Item = i32> {
    let own = std::process::id().cast_signed();
    fs::read_dir("/proc")
        .expect("/proc is mounted")
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(move |pid| *pid != own)
}
