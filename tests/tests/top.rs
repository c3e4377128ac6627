//! `pagetide top` in a real terminal (tmux): it shows a run, its keys steer it, and whoever ends it ends nothing else.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::Duration;

use pagetide_tests::need::{self, Feature};
use pagetide_tests::pagetide::{self, PagetideRun};
use pagetide_tests::program::{Exit, Program, Running};
use pagetide_tests::scratch::Scratch;
use pagetide_tests::{MIB, clock, serial, victim};
use rustix::process::{Pid, Signal, kill_process};

const PATIENCE: Duration = Duration::from_secs(30);

/// A terminal of its own server, with one window in which `top` runs.
struct Terminal {
    /// No two servers have one: that of the last may still be there, on its way out.
    socket: PathBuf,
}

impl Terminal {
    /// In so many columns and lines, no two of a test alike. When `top` has ended, it says how, and in which mode the terminal is.
    fn open(scratch: &Scratch, size: [&str; 2], term: &str) -> Self {
        Self::open_after(":", scratch, size, term)
    }

    /// The same, and the shell does `first` before.
    fn open_after(first: &str, scratch: &Scratch, size: [&str; 2], term: &str) -> Self {
        let terminal = Self { socket: scratch.file(&format!("tmux-{}", size.join("x"))) };
        let session = scratch.file("session").display().to_string();
        let top =
            format!("TERM={term} XDG_RUNTIME_DIR={session} {} top shown --interval 0.2", pagetide::binary().display());
        let script = format!("{first}; {top}; echo ended with $?; stty -a; read forever");
        let [width, height] = size;
        terminal.tmux(&["new-session", "-d", "-s", "top", "-x", width, "-y", height, "sh", "-c", &script]);
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(&self.socket).args(["-f", "/dev/null"]).args(arguments).env_remove("TMUX");
        command.output().expect("tmux starts")
    }

    fn shows(&self) -> String {
        String::from_utf8_lossy(&self.tmux(&["capture-pane", "-p", "-t", "top"]).stdout).into_owned()
    }

    fn wait_for(&self, parts: &[&str]) -> String {
        let has_all = |text: &str| parts.iter().all(|part| text.contains(part));
        clock::wait_until(PATIENCE, || has_all(&self.shows()));
        let text = self.shows();
        assert!(has_all(&text), "not all of {parts:?} in\n{text}");
        text
    }

    /// The process of `top`.
    fn top(&self) -> Pid {
        let shell = self.asks("#{pane_pid}");
        let children =
            std::fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).expect("the shell lives");
        children.trim().parse().ok().and_then(Pid::from_raw).unwrap_or_else(|| panic!("one child: {children}"))
    }

    /// What tmux says of it.
    fn asks(&self, what: &str) -> String {
        let answer = self.tmux(&["display-message", "-p", "-t", "top", what]).stdout;
        String::from_utf8_lossy(&answer).trim().to_owned()
    }

    /// End `top` by a signal.
    fn kill(&self, signal: Signal) {
        kill_process(self.top(), signal).expect("it is ours");
    }

    /// Is it as before: lines, echo, its first screen, a cursor?
    fn expect_usable(&self) {
        let text = self.wait_for(&["ended with", "icanon"]);
        let modes: Vec<_> = text.split_whitespace().collect();
        assert!(["icanon", "echo", "isig", "opost"].iter().all(|mode| modes.contains(mode)), "{text}");
        assert_eq!(self.asks("#{alternate_on} #{cursor_flag}"), "0 1", "{text}");
    }

    fn press(&self, key: &str) {
        self.tmux(&["send-keys", "-t", "top", key]);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

/// A run by the name of `shown` that checks its bytes until it is told to end.
fn start(scratch: &Scratch) -> Running {
    scratch.directory("session");
    let argv = [OsString::from(victim::build(scratch, "hostile")), "hold".into(), "64".into()];
    let run = PagetideRun::new(scratch, 16 * MIB).argument("--name").argument("shown");
    let program = run.wrap(&Program::new(argv)).env("XDG_RUNTIME_DIR", scratch.file("session"));
    let running = program.deadline_s(120).start(scratch, "shown");
    running.wait_for_output("ready");
    running
}

#[test]
fn a_run_is_shown_in_a_terminal_steered_by_keys_and_unharmed_by_a_kill() {
    if !need::has(&[Feature::Uffd, Feature::Tool("tmux")]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let run = start(&scratch);
    let terminal = Terminal::open(&scratch, ["80", "24"], "screen-256color");
    let text = terminal.wait_for(&[" pagetide top: shown", "16M", "hostile", "all threads", "q: quit"]);
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    terminal.press("+");
    terminal.wait_for(&["of 17M"]);
    terminal.press("p");
    terminal.wait_for(&["paging out is paused"]);
    terminal.press("r");
    terminal.wait_for(&["the budget holds"]);
    terminal.press("o");
    terminal.wait_for(&["paging out"]);
    terminal.tmux(&["resize-window", "-t", "top", "-x", "180", "-y", "50"]);
    let text = terminal.wait_for(&["of 17M", "COMMAND"]);
    assert!(text.lines().count() > 24, "the wide screen is not used:\n{text}");
    terminal.press("q");
    terminal.wait_for(&["ended with 0"]);
    drop(terminal);

    let terminal = Terminal::open(&scratch, ["100", "30"], "screen-256color");
    terminal.wait_for(&["of 17M"]);
    terminal.kill(Signal::KILL);
    terminal.wait_for(&["ended with 137"]);
    drop(terminal);

    let terminal = Terminal::open(&scratch, ["101", "30"], "screen-256color");
    terminal.wait_for(&["of 17M"]);
    // It has checked every byte again and again; a wrong one would have ended it with 1.
    run.signal(Signal::TERM);
    run.finish().expect_exit(Exit::Code(143)).expect_no_process_left();
    terminal.wait_for(&["shown: the run has ended", "ended with 0"]);
    terminal.expect_usable();
}

#[test]
fn a_signal_from_outside_leaves_the_terminal_usable() {
    if !need::has(&[Feature::Uffd, Feature::Tool("tmux")]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let run = start(&scratch);
    for (signal, code, width) in [(Signal::TERM, 143, "90"), (Signal::INT, 130, "91"), (Signal::HUP, 129, "92")] {
        let terminal = Terminal::open(&scratch, [width, "30"], "screen-256color");
        terminal.wait_for(&[" pagetide top: shown"]);
        terminal.kill(signal);
        terminal.wait_for(&[&format!("ended with {code}")]);
        terminal.expect_usable();
    }
    // A run that does not answer holds `top`, and not its end.
    let terminal = Terminal::open(&scratch, ["93", "30"], "screen-256color");
    terminal.wait_for(&[" pagetide top: shown"]);
    run.signal(Signal::STOP);
    clock::pause(Duration::from_millis(300));
    terminal.kill(Signal::TERM);
    terminal.wait_for(&["ended with 143"]);
    terminal.expect_usable();
    run.signal(Signal::CONT);
    run.signal(Signal::TERM);
    run.finish().expect_exit(Exit::Code(143)).expect_no_process_left();
}

#[test]
fn a_terminal_that_is_gone_leaves_no_process() {
    if !need::has(&[Feature::Uffd, Feature::Tool("tmux")]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let run = start(&scratch);
    // Where SIGHUP is ignored, only the terminal itself tells that it is gone.
    for (first, width) in [(":", "90"), ("trap '' HUP", "91")] {
        let terminal = Terminal::open_after(first, &scratch, [width, "30"], "screen-256color");
        terminal.wait_for(&[" pagetide top: shown"]);
        let top = terminal.top().as_raw_nonzero();
        terminal.tmux(&["kill-pane", "-t", "top"]);
        // One that has ended may wait for whoever inherited it.
        let is_gone = || {
            let stat = std::fs::read_to_string(format!("/proc/{top}/stat")).unwrap_or_default();
            stat.rsplit(") ").next().is_none_or(|rest| rest.is_empty() || rest.starts_with(['Z', 'X']))
        };
        let ended = clock::wait_until(Duration::from_secs(2), is_gone);
        if !ended {
            let _ = Pid::from_raw(top.get()).map(|top| kill_process(top, Signal::KILL));
        }
        assert!(ended, "`top` goes on without its terminal, after `{first}`");
    }
    run.signal(Signal::TERM);
    run.finish().expect_exit(Exit::Code(143)).expect_no_process_left();
}

#[test]
fn the_memory_of_a_process_is_shown_by_region_and_address() {
    if !need::has(&[Feature::Uffd, Feature::Tool("tmux")]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let run = start(&scratch);
    for size in [["80", "24"], ["160", "50"]] {
        let terminal = Terminal::open(&scratch, size, "screen-256color");
        terminal.wait_for(&[" pagetide top: shown", "inactive"]);
        terminal.press("Enter");
        // What leaves and comes back is told of its mapping.
        let text = terminal.wait_for(&["MAPPING", "[anon]", "in mem", "newest on top"]);
        let width: usize = size[0].parse().expect("a number");
        assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
        terminal.press("Escape");
        terminal.wait_for(&["inactive"]);
        terminal.press("q");
        terminal.wait_for(&["ended with 0"]);
    }
    run.signal(Signal::TERM);
    run.finish().expect_exit(Exit::Code(143)).expect_no_process_left();
}

#[test]
fn what_cannot_be_drawn_on_is_refused_with_the_way_out() {
    if !need::has(&[Feature::Tool("tmux")]) {
        return;
    }
    let piped = Command::new(pagetide::binary()).args(["top", "shown"]).output().expect("pagetide starts");
    let errors = String::from_utf8_lossy(&piped.stderr).into_owned();
    assert!(piped.status.code() == Some(2) && errors.contains("pagetide stat RUN"), "{errors}");
    assert!(piped.stdout.is_empty());
    let scratch = Scratch::new();
    let terminal = Terminal::open(&scratch, ["80", "24"], "dumb");
    terminal.wait_for(&["TERM", "dumb", "pagetide stat RUN", "ended with 2"]);
}
