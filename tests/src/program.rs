//! Runs one program with a deadline, its output in files, its peak from `wait4`, and whatever it leaves behind killed. It dies
//! with the thread that started it, so that a test killed from outside leaves nothing running.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process, kill_process_group, pidfd_open, set_parent_process_death_signal,
};

use crate::cgroup::Cgroup;
use crate::clock;
use crate::leftovers;
use crate::scratch::Scratch;

/// A copy of a victim is written for no longer than this.
const BUSY_MAX: Duration = Duration::from_secs(10);

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// It returned this status.
    Code(i32),
    /// This signal killed it.
    Signal(i32),
    /// It was still running at its deadline and was killed by the harness.
    Deadline,
}

/// What to run and how.
#[derive(Clone, Debug)]
pub struct Program {
    argv: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    directory: Option<PathBuf>,
    stdin: Option<PathBuf>,
    cgroup_procs: Option<PathBuf>,
    deadline: Duration,
}

impl Program {
    /// The program and its arguments. Deadline: two minutes.
    pub fn new<I, S>(argv: I) -> Self
    where
        I: IntoIterator<Item = S>,
        S: Into<OsString>,
    {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            environment: Vec::new(),
            directory: None,
            stdin: None,
            cgroup_procs: None,
            deadline: Duration::from_secs(120),
        }
    }

    /// The arguments, program first.
    pub fn argv(&self) -> &[OsString] {
        &self.argv
    }

    /// The same run with `prefix` before its arguments (`pagetide run ... --`).
    #[must_use]
    pub fn behind<I, S>(&self, prefix: I) -> Self
    where
        I: IntoIterator<Item = S>,
        S: Into<OsString>,
    {
        let mut run = self.clone();
        run.argv = prefix.into_iter().map(Into::into).chain(self.argv.iter().cloned()).collect();
        run
    }

    /// Sets an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Runs in `directory`.
    #[must_use]
    pub fn directory(mut self, directory: &Path) -> Self {
        self.directory = Some(directory.to_owned());
        self
    }

    /// Reads its standard input from `path` (default: nothing).
    #[must_use]
    pub fn stdin(mut self, path: &Path) -> Self {
        self.stdin = Some(path.to_owned());
        self
    }

    /// Starts inside `cgroup`: a shell puts itself there and executes the program, so that not a page escapes.
    #[must_use]
    pub fn inside(mut self, cgroup: &Cgroup) -> Self {
        self.cgroup_procs = Some(cgroup.procs_file());
        self
    }

    /// Killed, with its whole tree, after this time.
    #[must_use]
    pub fn deadline_s(mut self, seconds: u64) -> Self {
        self.deadline = Duration::from_secs(seconds);
        self
    }

    /// Starts it. Output goes to `LABEL.out` and `LABEL.err` in `scratch`.
    #[expect(clippy::zombie_processes, reason = "Running::finish waits with wait4, which also tells the peak")]
    pub fn start(&self, scratch: &Scratch, label: &str) -> Running {
        let (stdout_path, stderr_path) = (scratch.file(&format!("{label}.out")), scratch.file(&format!("{label}.err")));
        let tag = leftovers::fresh_tag();
        let mut command = self.command();
        command
            .env(leftovers::TAG_VARIABLE, &tag)
            .stdin(self.stdin.as_ref().map_or_else(Stdio::null, |path| open_input(path)))
            .stdout(create(&stdout_path))
            .stderr(create(&stderr_path))
            .process_group(0);
        // SAFETY: the closure runs between fork and exec and makes one system call; it allocates nothing and takes no lock.
        unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?)) };
        let begin = clock::now();
        // Another test may fork while a victim is being copied, and has it open for writing until its child executes.
        let mut spawned = command.spawn();
        while spawned.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::ExecutableFileBusy)
            && begin.elapsed() < BUSY_MAX
        {
            std::thread::yield_now();
            spawned = command.spawn();
        }
        let child = spawned.unwrap_or_else(|error| panic!("{:?}: {error}", self.argv));
        let pid = Pid::from_raw(child.id().cast_signed()).expect("a child has a positive pid");
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).expect("the child is not reaped before wait");
        Running { pid, pidfd, tag, begin, deadline: self.deadline, stdout_path, stderr_path, argv: self.argv.clone() }
    }

    /// Runs it to its end.
    pub fn run(&self, scratch: &Scratch, label: &str) -> Finished {
        self.start(scratch, label).finish()
    }

    fn command(&self) -> Command {
        let mut command = match &self.cgroup_procs {
            None => Command::new(&self.argv[0]),
            Some(procs) => {
                let mut shell = Command::new("/bin/sh");
                shell.args(["-c", "echo $$ >\"$0\" && exec \"$@\""]).arg(procs).arg(&self.argv[0]);
                shell
            }
        };
        command.args(&self.argv[1..]).envs(self.environment.iter().map(|(name, value)| (name, value)));
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        command
    }
}

fn open_input(path: &Path) -> Stdio {
    File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).into()
}

fn create(path: &Path) -> Stdio {
    File::create(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).into()
}

/// A program that runs.
#[derive(Debug)]
pub struct Running {
    pid: Pid,
    pidfd: OwnedFd,
    tag: String,
    begin: Instant,
    deadline: Duration,
    stdout_path: PathBuf,
    stderr_path: PathBuf,
    argv: Vec<OsString>,
}

impl Running {
    /// The process started (`pagetide` itself, if it was put in front).
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// The tag in the environment of its whole tree.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// What it has written to standard output so far.
    pub fn stdout_so_far(&self) -> String {
        fs::read_to_string(&self.stdout_path).unwrap_or_default()
    }

    /// Waits until it has written `text` to standard output; panics if it ends or the deadline passes before.
    pub fn wait_for_output(&self, text: &str) {
        let seen = clock::wait_until(self.deadline, || self.stdout_so_far().contains(text) || self.has_ended());
        let errors = fs::read_to_string(&self.stderr_path).unwrap_or_default();
        assert!(
            seen && self.stdout_so_far().contains(text),
            "{:?} did not print '{text}'; stdout: {}; stderr: {errors}\n{}",
            self.argv,
            self.stdout_so_far(),
            leftovers::describe(&self.tag)
        );
    }

    /// Other processes of its tree.
    pub fn descendants(&self) -> Vec<Pid> {
        leftovers::processes(&self.tag).into_iter().filter(|pid| *pid != self.pid).collect()
    }

    /// Sends a signal to the process started, and to no other.
    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).expect("it runs, or is not yet waited for");
    }

    /// True once its deadline has passed.
    pub fn is_late(&self) -> bool {
        self.begin.elapsed() >= self.deadline
    }

    /// True once it has ended (and waits to be waited for).
    pub fn has_ended(&self) -> bool {
        self.ends_within(Duration::ZERO)
    }

    /// Waits for its end, at most this long; true if it has ended.
    pub fn ends_within(&self, limit: Duration) -> bool {
        let mut poll_fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let timeout = Timespec { tv_sec: limit.as_secs().cast_signed(), tv_nsec: limit.subsec_nanos().into() };
        poll(&mut poll_fds, Some(&timeout)).is_ok_and(|ready| ready > 0)
    }

    /// Waits for the end, at most until the deadline.
    pub fn finish(self) -> Finished {
        let mut hang = None;
        if !self.ends_within(self.deadline.saturating_sub(self.begin.elapsed())) {
            hang = Some(leftovers::describe(&self.tag));
            // Gone in between is as good.
            let _ = kill_process_group(self.pid, Signal::KILL);
            leftovers::kill_all(&self.tag);
        }
        let (status, usage) = wait4(self.pid);
        let wall = self.begin.elapsed();
        let exit = match (hang.is_some(), libc::WIFSIGNALED(status)) {
            (true, _) => Exit::Deadline,
            (false, true) => Exit::Signal(libc::WTERMSIG(status)),
            (false, false) => Exit::Code(libc::WEXITSTATUS(status)),
        };
        Finished {
            exit,
            wall,
            peak_rss_bytes: usage.ru_maxrss.cast_unsigned() * 1024,
            cpu_user: duration(usage.ru_utime),
            cpu_system: duration(usage.ru_stime),
            tag: self.tag,
            stdout_path: self.stdout_path,
            stderr_path: self.stderr_path,
            argv: self.argv,
            hang: hang.unwrap_or_default(),
        }
    }
}

fn duration(time: libc::timeval) -> Duration {
    Duration::from_secs(time.tv_sec.cast_unsigned()) + Duration::from_micros(time.tv_usec.cast_unsigned())
}

fn wait4(pid: Pid) -> (i32, libc::rusage) {
    let mut status = 0;
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: both pointers are to live locals of the right types; the child is ours and not yet waited for.
    let answer = unsafe { libc::wait4(pid.as_raw_nonzero().get(), &raw mut status, 0, usage.as_mut_ptr()) };
    assert!(answer == pid.as_raw_nonzero().get(), "wait4 of our own child: {}", std::io::Error::last_os_error());
    // SAFETY: all-zero is a valid rusage, and wait4 filled it.
    let usage = unsafe { usage.assume_init() };
    (status, usage)
}

/// A program that ended.
#[derive(Debug)]
pub struct Finished {
    /// How.
    pub exit: Exit,
    /// From before the fork until after the wait.
    pub wall: Duration,
    /// The largest resident size of the process or of a descendant it waited for (`ru_maxrss`).
    pub peak_rss_bytes: u64,
    /// CPU time in user mode of the process and of the descendants that were waited for.
    pub cpu_user: Duration,
    /// The same in the kernel.
    pub cpu_system: Duration,
    /// The tag of its tree.
    pub tag: String,
    /// Its standard output.
    pub stdout_path: PathBuf,
    /// Its standard error.
    pub stderr_path: PathBuf,
    argv: Vec<OsString>,
    hang: String,
}

impl Finished {
    /// Standard output as text.
    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.stdout_path).unwrap_or_default()).into_owned()
    }

    /// Standard error as text.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.stderr_path).unwrap_or_default()).into_owned()
    }

    /// Everything a failure message needs.
    pub fn report(&self) -> String {
        format!(
            "command: {:?}\nended: {:?} after {:.1} s, peak of one process {} MiB\nstdout tail:\n{}\nstderr tail:\n{}\n{}",
            self.argv,
            self.exit,
            self.wall.as_secs_f64(),
            self.peak_rss_bytes >> 20,
            tail(&self.stdout(), 10),
            tail(&self.stderr(), 40),
            if self.hang.is_empty() { String::new() } else { format!("at the deadline:\n{}", self.hang) },
        )
    }

    /// Panics with the report unless it ended with status 0.
    pub fn expect_success(&self) -> &Self {
        self.expect_exit(Exit::Code(0))
    }

    /// Panics with the report unless it ended this way.
    pub fn expect_exit(&self, exit: Exit) -> &Self {
        assert!(self.exit == exit, "expected {exit:?}\n{}", self.report());
        self
    }

    /// Panics if a process of the tree is still alive after five seconds (and kills it).
    pub fn expect_no_process_left(&self) -> &Self {
        let gone = clock::wait_until(Duration::from_secs(5), || leftovers::processes(&self.tag).is_empty());
        let text = leftovers::describe(&self.tag);
        leftovers::kill_all(&self.tag);
        assert!(gone, "processes remain:\n{text}\n{}", self.report());
        self
    }
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    let kept: Vec<String> = all[all.len().saturating_sub(lines)..].iter().map(|line| format!("  {line}")).collect();
    kept.join("\n")
}
