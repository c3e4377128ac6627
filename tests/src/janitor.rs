//! Undoes what a benchmark set on the machine, whatever happens to the benchmark: a shell in a process group of its own waits
//! until our end of its pipe is closed (normal end, panic, Ctrl-C, SIGKILL) and then runs the undo commands, last first.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};

const SCRIPT: &str = r#"undo=:
while IFS= read -r line; do undo="$line
$undo"; done
eval "$undo""#;

/// Undo commands that run when this value, or the process, is gone.
#[derive(Debug)]
pub struct Janitor {
    shell: Child,
    pipe: Option<ChildStdin>,
}

impl Janitor {
    /// Starts it, with nothing to undo yet.
    pub fn start() -> Self {
        let mut shell = Command::new("/bin/sh")
            .args(["-c", SCRIPT])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .expect("/bin/sh starts");
        let pipe = shell.stdin.take();
        Self { shell, pipe }
    }

    /// Adds one shell line, to be run before those added earlier. Register it before doing what it undoes.
    pub fn at_end(&mut self, line: &str) {
        assert!(!line.contains('\n'), "one line per undo: {line}");
        let pipe = self.pipe.as_mut().expect("open until dropped");
        writeln!(pipe, "{line}").expect("the shell reads until the end");
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        drop(self.pipe.take());
        if let Err(error) = self.shell.wait() {
            eprintln!("janitor: {error}");
        }
    }
}
