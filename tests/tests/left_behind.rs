//! Nothing stays behind: no process, no swap file, no control group, however a run ends.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Duration;

use pagetide_tests::need::{self, Feature};
use pagetide_tests::pagetide::{FaultMode, PagetideRun};
use pagetide_tests::program::{Exit, Program, Running};
use pagetide_tests::scratch::Scratch;
use pagetide_tests::{MIB, clock, leftovers, serial, victim};
use rustix::process::{Signal, kill_process};

const BUDGET: u64 = 16 * MIB;

/// Runs the victim in `mode`, lets `end` end it while it pages, and looks for what is left.
fn expect_nothing_left(mode: &str, exits: &[Exit], end: impl FnOnce(&Running)) {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let groups_before = control_groups();
    let binary = victim::build(&scratch, "hostile");
    let argv = [OsString::from(binary), mode.into(), "64".into(), "5".into()];
    let run = PagetideRun::new(&scratch, BUDGET).wrap(&Program::new(argv)).deadline_s(60).start(&scratch, "run");
    run.wait_for_output("ready");
    let swap = scratch.file("swap");
    end(&run);
    let ended = run.finish();
    assert!(exits.contains(&ended.exit), "expected one of {exits:?}\n{}", ended.report());
    ended.expect_no_process_left();
    let gone = clock::wait_until(Duration::from_secs(5), || leftovers::files(&swap).is_empty());
    assert!(gone, "left in the swap directory: {:?}\n{}", leftovers::files(&swap), ended.report());
    let groups: Vec<_> = control_groups().difference(&groups_before).cloned().collect();
    assert!(groups.is_empty(), "control groups left: {groups:?}");
}

#[test]
fn after_a_normal_end() {
    expect_nothing_left("exit", &[Exit::Code(5)], |_| {});
}

#[test]
fn after_a_crash_of_the_program() {
    expect_nothing_left("crash", &[Exit::Code(139)], |_| {});
}

#[test]
fn after_the_program_was_killed() {
    expect_nothing_left("hold", &[Exit::Code(137)], |run| {
        let victims: Vec<_> =
            run.descendants().into_iter().filter(|pid| is_hostile(pid.as_raw_nonzero().get())).collect();
        assert_eq!(victims.len(), 1, "{}", leftovers::describe(run.tag()));
        kill_process(victims[0], Signal::KILL).expect("it runs");
    });
}

#[test]
fn after_pagetide_itself_was_killed() {
    expect_nothing_left("hold", &[Exit::Signal(libc::SIGKILL)], |run| run.signal(Signal::KILL));
}

/// What ends because its run was killed says so where the program tells of errors. (The first process ends with `pagetide` itself.)
#[test]
fn a_process_whose_run_was_killed_says_why_it_ends() {
    const SAID: &str = "the run has ended: it is killed";
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let binary = victim::build(&scratch, "hostile");
    let script = format!("{} hold 64 5; true", binary.display());
    let program = Program::new(["sh", "-c", &script]).deadline_s(60);
    let run = PagetideRun::new(&scratch, BUDGET).wrap(&program).start(&scratch, "run");
    run.wait_for_output("ready");
    run.signal(Signal::KILL);
    let ended = run.finish();
    let is_said = clock::wait_until(Duration::from_secs(5), || ended.stderr().contains(SAID));
    assert!(is_said, "{}", ended.report());
    ended.expect_no_process_left();
}

/// A forked child that waits for an agent has no descriptor of the run, and its parent may be gone before it: it waited for ever.
#[test]
fn a_forked_child_that_waits_for_its_agent_ends_with_the_run_in_both_modes() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    for mode in [FaultMode::Thread, FaultMode::Signal] {
        let _turn = serial::turn();
        let scratch = Scratch::new();
        let argv = [OsString::from(victim::build(&scratch, "hostile")), "two-when-told".into(), "64".into()];
        let run = PagetideRun::new(&scratch, BUDGET).mode(mode);
        let run = run.wrap(&Program::new(argv)).deadline_s(60).start(&scratch, "run");
        run.wait_for_output("ready");
        let own = || run.descendants().into_iter().filter(|pid| is_hostile(pid.as_raw_nonzero().get()));
        let parent = own().next().expect("it is ready");
        // Who would start an agent, or hear of the child's parent, does nothing.
        run.signal(Signal::STOP);
        kill_process(parent, Signal::USR1).expect("it waits for it");
        let is_forked = clock::wait_until(Duration::from_secs(10), || own().count() == 2);
        assert!(is_forked, "{}", leftovers::describe(run.tag()));
        run.signal(Signal::KILL);
        run.finish().expect_no_process_left();
    }
}

#[test]
fn after_pagetide_was_terminated() {
    expect_nothing_left("hold", &[Exit::Code(143)], |run| run.signal(Signal::TERM));
}

/// The program's first process has ended, and another one of it sleeps: the signal is that one's.
#[test]
fn after_pagetide_was_terminated_when_the_first_process_had_ended() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let program = Program::new(["sh", "-c", "sleep 50 & exit 7"]).deadline_s(20);
    let run = PagetideRun::new(&scratch, BUDGET).wrap(&program).start(&scratch, "run");
    let is_named =
        |pid: &i32, name: &str| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|found| found.trim() == name);
    let is_left_alone = clock::wait_until(Duration::from_secs(10), || {
        let others: Vec<_> = run.descendants().into_iter().map(|pid| pid.as_raw_nonzero().get()).collect();
        others.iter().any(|pid| is_named(pid, "sleep")) && !others.iter().any(|pid| is_named(pid, "sh"))
    });
    assert!(is_left_alone, "{}", leftovers::describe(run.tag()));
    run.signal(Signal::TERM);
    let ended = run.finish();
    assert_eq!(ended.exit, Exit::Code(7), "{}", ended.report());
    ended.expect_no_process_left();
}

/// The swap file has no name while the run lasts, so that a crash of the machine leaves nothing either.
#[test]
fn the_swap_file_has_no_name() {
    expect_nothing_left("hold", &[Exit::Code(143)], |run| {
        let held = held_swap_files(run);
        assert!(!held.is_empty(), "no process of the run holds a swap file\n{}", leftovers::describe(run.tag()));
        assert!(held.iter().all(|target| target.ends_with(" (deleted)")), "named swap files: {held:?}");
        run.signal(Signal::TERM);
    });
}

fn held_swap_files(run: &Running) -> Vec<String> {
    let pids = leftovers::processes(run.tag()).into_iter().map(|pid| pid.as_raw_nonzero().get());
    let targets = pids.flat_map(leftovers::descriptors).map(|(_, target)| target.display().to_string());
    targets.filter(|target| target.contains("/swap/")).collect()
}

fn is_hostile(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "hostile")
}

/// Names of the control groups right under each mounted controller.
/// All but those that other tests on this machine make and remove meanwhile.
fn control_groups() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for controller in list(Path::new("/sys/fs/cgroup")) {
        found.extend(list(Path::new(&controller)).into_iter().filter(|group| !group.contains("/pagetide-test-")));
    }
    found
}

fn list(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter(|entry| entry.path().is_dir()).map(|entry| entry.path().display().to_string()).collect()
}
