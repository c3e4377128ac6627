//! What `pagetide run` must refuse before the program starts, with a message that names the fault and the remedy.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use pagetide_tests::need::{self, Feature};
use pagetide_tests::pagetide::{FaultMode, PagetideRun, binary};
use pagetide_tests::program::{Exit, Finished, Program};
use pagetide_tests::scratch::Scratch;
use pagetide_tests::{MIB, nobody, serial, victim};

const BUDGET: u64 = 16 * MIB;

/// Ended with `status`, said all of `words`, and printed nothing where the program's output belongs.
fn expect_refusal(ended: &Finished, status: i32, words: &[&str]) {
    ended.expect_exit(Exit::Code(status));
    let message = ended.stderr();
    for word in words {
        assert!(message.contains(word), "the message does not say '{word}'\n{}", ended.report());
    }
    assert_eq!(ended.stdout(), "", "the program ran all the same\n{}", ended.report());
    ended.expect_no_process_left();
}

#[test]
fn an_unknown_command_is_127_and_named() {
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let run = PagetideRun::new(&scratch, BUDGET);
    let ended = run.wrap(&Program::new(["no-such-command-here"])).run(&scratch, "unknown");
    expect_refusal(&ended, 127, &["no-such-command-here"]);
}

#[test]
fn a_file_that_cannot_be_executed_is_126_and_named() {
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let plain = scratch.write("plain", "not a program");
    let run = PagetideRun::new(&scratch, BUDGET);
    let ended = run.wrap(&Program::new([plain])).run(&scratch, "plain");
    expect_refusal(&ended, 126, &["plain"]);
}

#[test]
fn a_static_binary_is_refused_before_it_runs() {
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let program = victim::build_static(&scratch, "hostile");
    let run = PagetideRun::new(&scratch, BUDGET);
    let ended = run.wrap(&Program::new([program.as_os_str(), "exit".as_ref(), "1".as_ref()])).run(&scratch, "static");
    expect_refusal(&ended, 3, &["static"]);
}

#[test]
fn a_setuid_binary_is_refused_before_it_runs() {
    if !need::has(&[Feature::Root]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let program = victim::build(&scratch, "hostile");
    let owner = Command::new("chown").arg("nobody").arg(&program).status().expect("chown starts");
    assert!(owner.success());
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).expect("our own file");
    let run = PagetideRun::new(&scratch, BUDGET);
    let ended = run.wrap(&Program::new([program.as_os_str(), "exit".as_ref(), "1".as_ref()])).run(&scratch, "setuid");
    expect_refusal(&ended, 3, &["setuid"]);
}

#[test]
fn a_budget_under_the_minimum_is_refused_with_the_flag_named() {
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let ended = PagetideRun::new(&scratch, 64 << 10).wrap(&Program::new(["/bin/true"])).run(&scratch, "small");
    expect_refusal(&ended, 3, &["--memory"]);
}

#[test]
fn a_size_that_is_no_size_is_a_usage_error_with_the_value_named() {
    let _turn = serial::turn();
    let scratch = Scratch::new();
    for wrong in ["", "12Q", "-5M", "nonsense", "99999999999999999999G"] {
        let argv = [
            binary().into_os_string(),
            "run".into(),
            format!("--memory={wrong}").into(),
            "--".into(),
            "/bin/true".into(),
        ];
        let ended = Program::new(argv).run(&scratch, "size");
        expect_refusal(&ended, 2, &["--memory", wrong]);
    }
}

#[test]
fn a_swap_place_that_does_not_exist_is_refused_and_named() {
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let argv = ["run", "--memory", "64M", "--swap", "/no/such/place", "--", "/bin/true"];
    let ended =
        Program::new(std::iter::once(binary().into_os_string()).chain(argv.map(Into::into))).run(&scratch, "swap");
    expect_refusal(&ended, 3, &["/no/such/place"]);
}

#[test]
fn a_disk_without_room_is_refused_with_the_room_it_has() {
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let run = PagetideRun::new(&scratch, BUDGET).swap_size(1 << 50);
    let ended = run.wrap(&Program::new(["/bin/true"])).run(&scratch, "room");
    expect_refusal(&ended, 3, &["--swap", "256 MiB stay free"]);
}

#[test]
fn a_place_that_is_named_twice_or_lies_in_memory_is_refused() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let link = scratch.file("link");
    std::os::unix::fs::symlink(scratch.directory("swap"), &link).expect("our own directory");
    let file = scratch.file("a-file");
    std::fs::write(&file, "not a page").expect("our own directory");
    for (place, status, words) in [
        (link.as_path(), 2, "named twice"),
        ("/dev/shm".as_ref(), 3, "tmpfs"),
        (file.as_path(), 3, "neither a directory"),
        ("/nonexistent".as_ref(), 3, "no such directory"),
    ] {
        let run = PagetideRun::new(&scratch, BUDGET).argument("--swap").argument(place);
        let ended = run.wrap(&Program::new(["/bin/echo", "it ran"])).run(&scratch, "twice");
        expect_refusal(&ended, status, &["--swap", &place.display().to_string(), words]);
    }
}

#[test]
fn a_setting_or_a_profile_that_does_not_exist_is_refused_with_where_they_are_listed() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    for (option, value) in [("--set", "nonsense=1"), ("--set", "idle=nonsense"), ("--profile", "nonsense")] {
        let run = PagetideRun::new(&scratch, BUDGET).argument(option).argument(value);
        let ended = run.wrap(&Program::new(["/bin/echo", "it ran"])).run(&scratch, "setting");
        expect_refusal(&ended, 2, &["nonsense", "`pagetide knobs`"]);
    }
}

/// Not refused: a script may name what the largest of its machines has.
#[test]
fn a_budget_beyond_what_the_machine_has_is_told_of_and_runs() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let ended = PagetideRun::new(&scratch, 1 << 50).wrap(&Program::new(["/bin/true"])).run(&scratch, "beyond");
    ended.expect_success();
    assert!(ended.stderr().contains("--memory 1024 TiB is more than"), "{}", ended.report());
    let ended = PagetideRun::new(&scratch, BUDGET).wrap(&Program::new(["/bin/true"])).run(&scratch, "within");
    assert_eq!(ended.stderr(), "", "{}", ended.report());
}

/// Thread mode needs a privilege: `run` as nobody must say so, name the other way, and not run the program.
#[test]
fn as_nobody_run_says_what_is_missing_and_ends_with_3() {
    if !need::has(&[Feature::Root, Feature::Tool("setpriv")]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let run = nobody::pagetide(&scratch, BUDGET).mode(FaultMode::Thread);
    let program = nobody::program(&run.wrap(&Program::new(["/bin/echo", "it ran"])));
    let ended = program.directory("/".as_ref()).run(&scratch, "nobody");
    expect_refusal(&ended, 3, &["userfaultfd", "--fault-mode auto"]);
}
