//! A run that works until it is told to end, and orders to it from outside: `pagetide stat` and `ctl`. Its socket lies in a
//! directory that no other run uses.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::Value;

use crate::pagetide::{self, PagetideRun};
use crate::program::{Exit, Program, Running};
use crate::scratch::Scratch;
use crate::{clock, leftovers, victim};

/// The run's name.
pub const NAME: &str = "steered";
/// What is waited for here takes far less on a quiet machine.
const LIMIT: Duration = Duration::from_secs(30);

/// The run.
#[derive(Debug)]
pub struct Steered {
    scratch: Scratch,
    run: Running,
}

impl Steered {
    /// The victim `session family CHILDREN` with `mib` MiB in a budget of `budget_bytes`, which works; `extra`: arguments of `pagetide run`.
    /// It swaps in the directory `swap` of its scratch directory.
    pub fn family(mib: u32, children: u32, budget_bytes: u64, extra: &[&str]) -> Self {
        Self::start("family", mib, children, budget_bytes, extra)
    }

    /// The same, with a program that touches its memory only when it is told to end.
    pub fn idle(mib: u32, budget_bytes: u64, extra: &[&str]) -> Self {
        Self::start("idle", mib, 0, budget_bytes, extra)
    }

    fn start(mode: &str, mib: u32, argument: u32, budget_bytes: u64, extra: &[&str]) -> Self {
        let scratch = Scratch::new();
        let binary = victim::build(&scratch, "session");
        let argv = [OsString::from(binary), mode.into(), mib.to_string().into(), argument.to_string().into()];
        Self::program(scratch, argv, budget_bytes, extra)
    }

    /// Another program, which says "steered" when it has begun.
    pub fn program<const N: usize>(scratch: Scratch, argv: [OsString; N], budget_bytes: u64, extra: &[&str]) -> Self {
        scratch.directory("sockets");
        let run = PagetideRun::new(&scratch, budget_bytes).argument("--name").argument(NAME);
        let run = extra.iter().fold(run, |run, argument| run.argument(argument));
        let program = run.wrap(&Program::new(argv)).env("XDG_RUNTIME_DIR", scratch.file("sockets"));
        let run = program.deadline_s(90).start(&scratch, NAME);
        run.wait_for_output("steered\n");
        Self { scratch, run }
    }

    /// Its scratch directory.
    pub const fn scratch(&self) -> &Scratch {
        &self.scratch
    }

    /// The process of `pagetide run`.
    pub const fn running(&self) -> &Running {
        &self.run
    }

    /// A call of `pagetide` that finds the run.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(pagetide::binary());
        command.args(arguments).env("XDG_RUNTIME_DIR", self.scratch.file("sockets"));
        command
    }

    /// `pagetide ctl RUN ORDER...`.
    pub fn ctl(&self, order: &[&str]) -> Output {
        let mut call = self.command(&[&["ctl", NAME], order].concat());
        let call = call.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("pagetide starts");
        let pidfd = pidfd_open(Pid::from_child(&call), PidfdFlags::empty()).expect("it is not waited for yet");
        let mut poll_fds = [PollFd::new(&pidfd, PollFlags::IN)];
        let limit = Timespec { tv_sec: LIMIT.as_secs().cast_signed(), tv_nsec: 0 };
        if !poll(&mut poll_fds, Some(&limit)).is_ok_and(|ready| ready > 0) {
            let stands = format!("{}\n{}", self.stat(), leftovers::describe(self.run.tag()));
            kill_process(Pid::from_child(&call), Signal::KILL).expect("it is ours");
            panic!("ctl {order:?} takes more than {LIMIT:?}: {stands}");
        }
        call.wait_with_output().expect("it is ours")
    }

    /// The same; it must end well. What it prints.
    pub fn tell(&self, order: &[&str]) -> String {
        let output = self.ctl(order);
        assert!(output.status.success(), "ctl {order:?}: {}", errors(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// It must be refused with 1, for a reason that has all of `parts`, in at most two lines.
    pub fn expect_refusal(&self, order: &[&str], parts: &[&str]) {
        let (output, before) = (self.ctl(order), self.stat());
        let errors = errors(&output);
        assert_eq!(output.status.code(), Some(1), "ctl {order:?}: {errors}");
        assert!(output.stdout.is_empty() && errors.lines().count() <= 2, "ctl {order:?}: {errors}");
        for part in parts {
            assert!(errors.contains(part), "ctl {order:?}: no '{part}' in: {errors}");
        }
        let paths = |stat: &Value| -> Vec<Value> {
            stat["devices"].as_array().expect("a list").iter().map(|device| device["path"].clone()).collect()
        };
        let after = self.stat();
        assert_eq!(
            (&before["budget_bytes"], paths(&before)),
            (&after["budget_bytes"], paths(&after)),
            "what is refused changes nothing"
        );
    }

    /// `pagetide stat RUN --json`.
    pub fn stat(&self) -> Value {
        let output = self.command(&["stat", NAME, "--json"]).output().expect("pagetide starts");
        let told = serde_json::from_slice(&output.stdout);
        told.unwrap_or_else(|error| panic!("stat: {error}: {}", errors(&output)))
    }

    /// A counter of the whole run.
    pub fn counter(&self, name: &str) -> u64 {
        let stat = self.stat();
        stat["vmstat"][name].as_u64().unwrap_or_else(|| panic!("no counter '{name}' in {stat}"))
    }

    /// How one place stands; `None` if the run has it not.
    pub fn place(&self, path: &Path) -> Option<Value> {
        let stat = self.stat();
        let places = stat["devices"].as_array().expect("a list");
        places.iter().find(|place| place["path"].as_str().map(Path::new) == Some(path)).cloned()
    }

    /// Bytes of pages in one place; 0 if the run has it not.
    pub fn used_bytes(&self, path: &Path) -> u64 {
        self.place(path).and_then(|place| place["used_bytes"].as_u64()).unwrap_or(0)
    }

    /// Waits until `ready` holds.
    pub fn wait_until(&self, what: &str, ready: impl FnMut() -> bool) {
        let held = clock::wait_until(LIMIT, ready);
        assert!(held, "{what} takes more than {LIMIT:?}: {}\n{}", self.stat(), leftovers::describe(self.run.tag()));
    }

    /// Tells it to end: all of its processes have checked every byte again and again, and once more.
    pub fn expect_good_end(self) {
        self.end_well();
    }

    /// The same; what it has told on standard error.
    pub fn end_well(self) -> String {
        self.end_with("ok\n")
    }

    /// The same; the last that it prints is `words`.
    pub fn end_with(self, words: &str) -> String {
        self.end_and_keep(words).1
    }

    /// The same, and what it has written.
    pub fn end_and_keep(self, words: &str) -> (Scratch, String) {
        self.run.signal(Signal::TERM);
        let ended = self.run.finish();
        ended.expect_success().expect_no_process_left();
        assert!(ended.stdout().ends_with(words), "{}", ended.report());
        (self.scratch, ended.stderr())
    }

    /// Tells it to end; how it does, and what it has told on standard error.
    pub fn end(self) -> (Exit, String) {
        self.run.signal(Signal::TERM);
        let ended = self.run.finish();
        ended.expect_no_process_left();
        (ended.exit, ended.stderr())
    }
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
