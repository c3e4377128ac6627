//! Programs that do nothing cost nothing: whoever looks after them sleeps, and is there as soon as they run again.

use std::ffi::OsString;
use std::fs;
use std::time::Duration;

use pagetide_tests::need::{self, Feature};
use pagetide_tests::pagetide::PagetideRun;
use pagetide_tests::program::Program;
use pagetide_tests::scratch::Scratch;
use pagetide_tests::steered::Steered;
use pagetide_tests::{MIB, clock, serial, victim};

/// Sleeps of an agent in a second in which nothing happens, at most; and of the supervisor. Each tried some hundred times a second
/// what there is to do.
const AGENT_SLEEPS: u64 = 6;
const SUPERVISOR_SLEEPS: u64 = 150;
/// What a program fills before it is seen that it runs again: 96 ms of its CPU time.
const LATE: u64 = 24 * MIB;

/// Sleeps so far of the threads of a process.
fn sleeps(pid: i32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let status = tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
    let count = |status: String| {
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).map(str::trim);
        line.and_then(|count| count.parse::<u64>().ok()).unwrap_or(0)
    };
    status.map(count).sum()
}

fn expect_rest(mode: &str) {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::alone();
    let run = Steered::idle(48, 16 * MIB, &["--fault-mode", mode]);
    let supervisor = run.running().pid().as_raw_pid();
    let program = run.running().descendants().first().expect("the program").as_raw_pid();
    let mut seen = Vec::new();
    // The first seconds are for what filling the memory has left to do.
    let rests = clock::wait_until(Duration::from_secs(30), || {
        let before = [program, supervisor].map(sleeps);
        clock::pause(Duration::from_secs(1));
        let after = [program, supervisor].map(sleeps);
        let grown = [after[0] - before[0], after[1] - before[1]];
        seen.push(grown);
        grown[0] <= AGENT_SLEEPS && grown[1] <= SUPERVISOR_SLEEPS
    });
    assert!(rests, "sleeps of the process and of the supervisor, second by second: {seen:?}");
    run.tell(&["memory", "12M"]);
    run.wait_until("its share", || run.stat()["budget_bytes"] == 12 * MIB);
    run.wait_until("a smaller process", || {
        run.stat()["resident_bytes"].as_u64().is_some_and(|resident| resident <= 12 * MIB + MIB)
    });
    run.expect_good_end();
}

#[test]
fn an_idle_program_is_let_alone_and_served_when_it_goes_on_in_thread_mode() {
    expect_rest("thread");
}

#[test]
fn an_idle_program_is_let_alone_and_served_when_it_goes_on_in_signal_mode() {
    expect_rest("signal");
}

/// It is asked of the whole machine, and ends with the supervisor.
#[test]
fn idle_cpus_are_kept_awake_only_while_the_program_waits_for_its_memory() {
    const DEVICE: &str = "/dev/cpu_dma_latency";
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    if fs::OpenOptions::new().write(true).open(DEVICE).is_err() {
        eprintln!("{DEVICE} cannot be opened here: nothing is kept awake");
        return;
    }
    let _turn = serial::alone();
    let holds = |run: &Steered| {
        let files =
            fs::read_dir(format!("/proc/{}/fd", run.running().pid().as_raw_pid())).into_iter().flatten().flatten();
        files.filter_map(|file| fs::read_link(file.path()).ok()).any(|link| link.as_os_str() == DEVICE)
    };
    let works = |choice: &str| Steered::family(48, 0, 16 * MIB, &["--set", choice]);
    let run = works("idle=poll");
    run.wait_until("idle CPUs are kept awake", || holds(&run));
    run.expect_good_end();
    let run = works("idle=sleep");
    let is_held = clock::wait_until(Duration::from_secs(1), || holds(&run));
    assert!(!is_held, "nobody asked for it");
    run.expect_good_end();
    let run = Steered::idle(48, 16 * MIB, &["--set", "idle=poll"]);
    run.wait_until("idle CPUs may sleep", || !holds(&run));
    clock::pause(Duration::from_millis(500));
    assert!(!holds(&run), "nothing waits");
    run.expect_good_end();
}

/// Nothing tells of memory that malloc maps itself: the agent sees it when it looks, which it does not while the program sleeps.
#[test]
fn memory_that_is_filled_after_a_rest_stays_in_the_budget() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::alone();
    let scratch = Scratch::new();
    let binary = victim::build(&scratch, "session");
    let argv = [OsString::from(binary), "rested".into(), "24".into(), "96".into()];
    for mode in ["thread", "signal"] {
        let run = PagetideRun::new(&scratch, 16 * MIB).argument("--fault-mode").argument(mode);
        let ended = run.wrap(&Program::new(argv.clone())).deadline_s(60).run(&scratch, mode);
        ended.expect_success().expect_no_process_left();
        let stats = run.stats();
        stats.expect_laws();
        let peak = stats.number("peak_resident_bytes");
        assert!(peak <= run.memory_bytes() + LATE, "{mode} mode: {} MiB", peak / MIB);
    }
}
