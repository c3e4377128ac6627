//! Runs are seen and steered from outside: `pagetide ps`, `stat` and `ctl`; and whoever watches does a run no harm.

use std::ffi::OsString;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use pagetide_tests::need::{self, Feature};
use pagetide_tests::pagetide::{self, PagetideRun};
use pagetide_tests::program::{Exit, Program, Running};
use pagetide_tests::scratch::Scratch;
use pagetide_tests::steered::{self, Steered};
use pagetide_tests::{MIB, clock, serial, victim};
use rustix::process::Signal;
use serde_json::Value;

const BUDGET: u64 = 16 * MIB;

/// A directory for sockets that no other run uses, and a run in it that works until it is told to end.
struct Watched {
    scratch: Scratch,
    run: Option<Running>,
}

impl Watched {
    fn new(name: &str) -> Self {
        let scratch = Scratch::new();
        scratch.directory("session");
        let mut watched = Self { scratch, run: None };
        watched.start(name);
        watched
    }

    fn start(&mut self, name: &str) {
        let binary = victim::build(&self.scratch, "hostile");
        let argv = [OsString::from(binary), "hold".into(), "64".into()];
        let run = PagetideRun::new(&self.scratch, BUDGET).argument("--name").argument(name);
        let program = run.wrap(&Program::new(argv)).env("XDG_RUNTIME_DIR", self.scratch.file("session"));
        let running = program.deadline_s(60).start(&self.scratch, name);
        running.wait_for_output("ready");
        self.run = Some(running);
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(pagetide::binary());
        command.args(arguments).env("XDG_RUNTIME_DIR", self.scratch.file("session"));
        command
    }

    fn ask(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("pagetide starts")
    }

    /// What it prints; it must end well.
    fn tell(&self, arguments: &[&str]) -> String {
        let output = self.ask(arguments);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "pagetide {arguments:?}: {errors}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// It must be refused with 1, for a reason that has all of `parts`.
    fn expect_refusal(&self, arguments: &[&str], parts: &[&str]) {
        let output = self.ask(arguments);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "pagetide {arguments:?}: {errors}");
        assert!(output.stdout.is_empty() && errors.lines().count() <= 2, "pagetide {arguments:?}: {errors}");
        for part in parts {
            assert!(errors.contains(part), "pagetide {arguments:?}: no '{part}' in: {errors}");
        }
    }

    fn stat(&self, name: &str) -> Value {
        serde_json::from_str(&self.tell(&["stat", name, "--json"])).expect("JSON")
    }

    /// It has checked every byte again and again; a wrong one would have ended it with 1.
    fn expect_good_end(&mut self) {
        let run = self.run.take().expect("it runs");
        run.signal(Signal::TERM);
        run.finish().expect_exit(Exit::Code(143)).expect_no_process_left();
    }
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no number '{key}' in {value}"))
}

#[test]
fn a_run_is_listed_while_it_runs_and_its_counters_are_told() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let mut watched = Watched::new("seen");
    let pid = watched.run.as_ref().expect("it runs").pid().as_raw_nonzero().to_string();
    // Its name, process, budget and so on, up to the share of time that it waits: it does nothing else.
    let is_told = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [name, process, budget, resident, swapped, majors, stall, _, rest @ ..] = fields.as_slice() else {
            return false;
        };
        let number = |text: &str| text.parse::<u64>().unwrap_or(0);
        assert!(
            (*name, *process, *budget) == ("seen", pid.as_str(), "16M") && line.ends_with("hostile hold 64"),
            "{line}"
        );
        assert!(resident.ends_with('M') && swapped.ends_with('M') && rest.len() == 3, "{line}");
        number(majors) > 0 && (1..=100).contains(&number(stall))
    };
    let line = || watched.tell(&["ps"]).lines().nth(1).unwrap_or_default().to_owned();
    assert!(clock::wait_until(Duration::from_secs(20), || is_told(&line())), "{}", line());

    let counters = watched.tell(&["stat", "seen"]);
    let swapped = counters.lines().find_map(|line| line.strip_prefix("pt_swapped_pages "));
    assert!(swapped.is_some_and(|pages| pages.parse::<u64>().is_ok_and(|pages| pages > 8192)), "{counters}");
    assert!(counters.lines().any(|line| line.starts_with("pgmajfault ")), "{counters}");
    let stat = watched.stat(&pid);
    let program = number(&stat["processes"][0], "pid").to_string();
    assert_eq!(watched.stat(&program)["name"], "seen", "any process of the run means it");
    let course = watched.tell(&["stat", "seen", "--interval", "0.1", "--count", "3"]);
    assert_eq!(course.lines().count(), 2 + 3, "{course}");

    // Who watches a run that ends meanwhile has seen all of it: no error.
    let watcher =
        watched.command(&["stat", "seen", "--interval", "0.1"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let watcher = watcher.expect("pagetide starts");
    clock::pause(Duration::from_millis(300));
    watched.expect_good_end();
    let seen = watcher.wait_with_output().expect("it was started");
    assert!(seen.status.success() && seen.stderr.is_empty(), "{}", String::from_utf8_lossy(&seen.stderr));
    assert_eq!(watched.tell(&["ps"]).lines().count(), 1, "only the heads of the columns");
    watched.expect_refusal(&["stat", "seen"], &["there is no run 'seen'", "pagetide ps"]);
}

/// The largest 64 are told of one by one.
#[test]
fn any_of_a_hundred_processes_means_their_run() {
    let _turn = serial::turn();
    let script = "trap 'kill $(jobs -p); on=1' TERM
for i in $(seq 100); do sleep 100 & done
echo steered
while [ -z \"$on\" ]; do wait; done
echo ok";
    let run = Steered::program(Scratch::new(), ["/bin/bash", "-c", script].map(Into::into), 16 * MIB, &[]);
    let main = number(&run.stat(), "main_pid");
    let children = std::fs::read_to_string(format!("/proc/{main}/task/{main}/children")).expect("it runs");
    let children: Vec<&str> = children.split_whitespace().collect();
    assert_eq!(children.len(), 100);
    for child in children {
        let told = run.command(&["stat", child, "--json"]).output().expect("pagetide starts");
        let told: Value = serde_json::from_slice(&told.stdout).expect("a run has it");
        assert_eq!(told["name"], steered::NAME);
    }
    run.expect_good_end();
}

/// What was only read since it came back lies in swap space as well: that was once told of as swapped.
#[test]
fn what_is_in_memory_again_is_not_swapped_and_nothing_is_left_at_the_end() {
    if !need::has(&[Feature::Uffd, Feature::Tool("python3")]) {
        return;
    }
    let _turn = serial::turn();
    let reads = "import signal, time
over = []
signal.signal(signal.SIGTERM, lambda *_: over.append(1))
memory = bytearray(b'x') * (64 << 20)
print('steered', flush=True)
while not over:
    assert memory[::4096].count(b'x') == len(memory) // 4096
    time.sleep(0.05)
print('ok')";
    let scratch = Scratch::new();
    let metrics = scratch.file("metrics.prom");
    let extra = ["--metrics", metrics.to_str().expect("UTF-8")];
    let run = Steered::program(scratch, ["python3", "-c", reads].map(Into::into), 24 * MIB, &extra);
    let swapped = || number(&run.stat(), "swapped_bytes");
    run.wait_until("paging out", || swapped() > 32 * MIB);
    run.tell(&["memory", "256M"]);
    // What Python itself needs no more stays out.
    run.wait_until("reading all of it", || swapped() < 12 * MIB);
    let stat = run.stat();
    assert!(number(&stat["devices"][0], "used_bytes") > 32 * MIB, "{stat}");
    // It is written each second: what it says first may be of the shells that found the interpreter.
    let one_process = || {
        let text = std::fs::read_to_string(&metrics).expect("it is there from the start");
        text.contains("\npagetide_processes{run=\"steered\"} 1\n")
    };
    run.wait_until("being told of as one process", one_process);
    let (_scratch, _) = run.end_and_keep("ok\n");
    let text = std::fs::read_to_string(&metrics).expect("it stays");
    for gone in ["processes", "managed_processes", "resident_bytes", "swapped_bytes"] {
        assert!(text.contains(&format!("\npagetide_{gone}{{run=\"steered\"}} 0\n")), "{gone}: {text}");
    }
}

#[test]
fn a_budget_is_changed_both_ways_while_the_program_works() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let mut watched = Watched::new("steered");
    assert!(watched.tell(&["ctl", "steered", "memory", "28M"]).contains("28 MiB, was 16 MiB"));
    let grows = || number(&watched.stat("steered"), "resident_bytes") > 20 * MIB;
    assert!(clock::wait_until(Duration::from_secs(20), grows), "{}", watched.stat("steered"));
    watched.tell(&["ctl", "steered", "memory", "12M"]);
    let shrinks = || number(&watched.stat("steered"), "resident_bytes") <= 12 * MIB + 12 * MIB / 50 + 8 * MIB;
    assert!(clock::wait_until(Duration::from_secs(20), shrinks), "{}", watched.stat("steered"));
    for (arguments, parts) in [
        (["ctl", "steered", "memory", "1M"], &["minimum of 8 MiB"][..]),
        (["ctl", "steered", "memory", "9999G"], &["the machine has"]),
        (["ctl", "nobody", "memory", "16M"], &["there is no run 'nobody'"]),
    ] {
        watched.expect_refusal(&arguments, parts);
    }
    assert_eq!(number(&watched.stat("steered"), "budget_bytes"), 12 * MIB, "what is refused changes nothing");
    watched.expect_good_end();
}

#[test]
fn a_name_belongs_to_one_run_until_it_ends_however_it_ends() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let mut watched = Watched::new("once");
    let second = watched.ask(&["run", "--memory", "16M", "--name", "once", "--", "echo", "started"]);
    let errors = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(second.status.code() == Some(2) && errors.contains("another run has this name"), "{errors}");
    assert!(second.stdout.is_empty(), "nothing was started");
    let run = watched.run.take().expect("it runs");
    run.signal(Signal::KILL);
    run.finish().expect_no_process_left();
    // The socket is still there, and nobody listens.
    watched.start("once");
    watched.expect_good_end();
}

#[test]
fn watchers_that_are_killed_or_never_listen_do_a_run_no_harm() {
    if !need::has(&[Feature::Uffd, Feature::Tool("python3")]) {
        return;
    }
    let _turn = serial::turn();
    let mut watched = Watched::new("patient");
    // Asks without ever reading an answer, and sends what is no request.
    let rude = "
import os, socket, sys
calls = []
for call in range(40):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.setblocking(False)
    try:
        s.connect(sys.argv[1])
        for packet in [b'pagetide-watch 1\\nstat\\n'] * 60 + [os.urandom(4000), b'x' * 60000, b'']:
            s.send(packet)
    except OSError:
        pass
    calls.append(s)
print('asked', flush=True)
sys.stdin.read()
";
    let socket = watched.scratch.file("session").join("pagetide/patient");
    let mut silent = Command::new("python3")
        .args(["-c", rude])
        .arg(&socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("python3 starts");
    for round in 0..10 {
        let mut watcher = watched
            .command(&["stat", "patient", "--interval", "0.1"])
            .stdout(Stdio::null())
            .spawn()
            .expect("pagetide starts");
        clock::pause(Duration::from_millis(7 * round));
        watcher.kill().expect("it is ours");
        watcher.wait().expect("it was killed");
    }
    // Those that never listen hold all places until they are dropped.
    let is_answered = || watched.ask(&["stat", "patient"]).status.success();
    assert!(clock::wait_until(Duration::from_secs(10), is_answered), "they are dropped");
    assert_eq!(number(&watched.stat("patient"), "budget_bytes"), BUDGET);
    watched.expect_good_end();
    silent.kill().expect("it is ours");
    silent.wait().expect("it was killed");
}

#[test]
fn a_caller_too_many_is_told_so_and_those_that_are_served_stay() {
    /// Calls that ask once, or never, until a line comes.
    const CALLS: &str = "
import socket, sys
calls = []
for call in range(int(sys.argv[2])):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(sys.argv[1])
    if sys.argv[3] == 'ask':
        s.send(b'pagetide-watch 1\\nstat\\n')
        assert b'snapshot' in s.recv(65536)
    calls.append(s)
print('connected', flush=True)
sys.stdin.readline()
for s in calls:
    s.send(b'pagetide-watch 1\\nstat\\n')
    assert b'snapshot' in s.recv(65536)
";
    if !need::has(&[Feature::Uffd, Feature::Tool("python3")]) {
        return;
    }
    let _turn = serial::turn();
    let mut watched = Watched::new("wanted");
    let socket = watched.scratch.file("session").join("pagetide/wanted");
    let call = |calls: &str, how: &str| {
        let mut python = Command::new("python3");
        let python = python.args(["-c", CALLS]).arg(&socket).args([calls, how]);
        let mut child = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python3 starts");
        let mut line = String::new();
        let said = child.stdout.as_mut().expect("piped");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(said), &mut line).expect("a line");
        assert_eq!(line, "connected\n");
        child
    };
    let mut served = call("16", "ask");
    for arguments in [&["stat", "wanted"][..], &["ctl", "wanted", "pause"]] {
        watched.expect_refusal(arguments, &["16 callers watch this run"]);
    }
    let listed = watched.ask(&["ps"]);
    assert!(String::from_utf8_lossy(&listed.stderr).contains("wanted: 16 callers"), "{listed:?}");
    drop(served.stdin.take());
    assert!(served.wait().expect("it is ours").success(), "those that were served stay");
    // Those that never ask give way.
    let mut mute = call("16", "wait");
    let is_answered = || watched.ask(&["stat", "wanted"]).status.success();
    assert!(clock::wait_until(Duration::from_secs(10), is_answered), "who asks nothing keeps nobody out");
    mute.kill().expect("it is ours");
    mute.wait().expect("it was killed");
    watched.expect_good_end();
}

#[test]
fn the_socket_and_its_directory_are_their_users_own() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let mut watched = Watched::new("closed");
    let directory = watched.scratch.file("session").join("pagetide");
    let mode = |path: &Path| std::fs::symlink_metadata(path).expect("it is there").permissions().mode() & 0o7777;
    assert_eq!(mode(&directory), 0o700, "{}", directory.display());
    let entries = std::fs::read_dir(&directory).expect("readable").map(|entry| entry.expect("readable"));
    let sockets: Vec<_> = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_socket())).collect();
    assert!(!sockets.is_empty(), "{}", directory.display());
    for socket in sockets {
        assert_eq!(mode(&socket.path()), 0o600, "{:?}", socket.path());
    }
    watched.expect_good_end();
}

#[test]
fn another_user_may_not_watch_a_run() {
    if !need::has(&[Feature::Uffd, Feature::Root, Feature::Tool("setpriv")]) {
        return;
    }
    let _turn = serial::turn();
    let mut watched = Watched::new("private");
    let pid = watched.run.as_ref().expect("it runs").pid().as_raw_nonzero().to_string();
    let binary = watched.scratch.path().join("copy");
    std::fs::copy(pagetide::binary(), &binary).expect("a copy that others may run");
    let ask = |arguments: &[&str]| {
        let output = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&binary)
            .args(arguments)
            .env("XDG_RUNTIME_DIR", watched.scratch.file("session"))
            .env("HOME", "/nonexistent")
            .output()
            .expect("setpriv starts");
        let [told, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
        (output.status.code(), told + &errors)
    };
    std::process::Command::new("chmod")
        .args(["-R", "a+rX"])
        .arg(watched.scratch.path())
        .status()
        .expect("chmod starts");
    let (code, errors) = ask(&["stat", &pid]);
    assert!(code == Some(1) && errors.contains("belongs to user 0"), "{errors}");
    let (code, listed) = ask(&["ps"]);
    assert!(code == Some(0) && !listed.contains("private") && !listed.contains(&pid), "{listed}");
    let (code, errors) = ask(&["ctl", "private", "memory", "8M"]);
    assert!(code == Some(1) && errors.contains("there is no run 'private'"), "{errors}");
    for order in [&["memory", "8M"][..], &["pause"], &["swapon", "/tmp"], &["set", "page-cluster=0"]] {
        let (code, errors) = ask(&[&["ctl", &pid], order].concat());
        assert!(code == Some(1) && errors.contains("belongs to user 0"), "{order:?}: {errors}");
    }
    assert_eq!(number(&watched.stat("private"), "budget_bytes"), BUDGET);
    watched.expect_good_end();
}
