//! The checkers themselves: each must see a wrong byte, a hang and a leftover, or every other test here proves nothing.

use std::time::Duration;

use pagetide_tests::cgroup::{Cgroup, KernelSwap};
use pagetide_tests::need::{self, Feature};
use pagetide_tests::program::{Exit, Program};
use pagetide_tests::scratch::{Scratch, difference};
use pagetide_tests::{MIB, clock, leftovers, serial, victim};

/// Each victim with a byte damaged behind its back must end with 1 and say so.
#[test]
fn every_victim_reports_a_damaged_byte() {
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let runs: [(&str, &[&str]); 3] = [
        ("threads", &["32", "2", "1", "1", "--corrupt"]),
        ("ranges", &["32", "500", "1", "--corrupt"]),
        ("syscalls", &["16", "--corrupt"]),
    ];
    for (name, arguments) in runs {
        let binary = victim::build(&scratch, name);
        let argv = std::iter::once(binary.into_os_string()).chain(arguments.iter().map(Into::into));
        let ended = Program::new(argv).directory(scratch.path()).deadline_s(60).run(&scratch, name);
        ended.expect_exit(Exit::Code(1));
        assert!(ended.stderr().contains("WRONG"), "no word of the damage\n{}", ended.report());
    }
}

#[test]
fn every_victim_is_right_natively() {
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let runs: [(&str, &[&str]); 4] = [
        ("threads", &["32", "8", "1", "1"]),
        ("ranges", &["64", "3000", "1"]),
        ("syscalls", &["16"]),
        ("syscalls", &["16", "daemon"]),
    ];
    for (name, arguments) in runs {
        let binary = victim::build(&scratch, name);
        let argv = std::iter::once(binary.into_os_string()).chain(arguments.iter().map(Into::into));
        Program::new(argv).directory(scratch.path()).deadline_s(60).run(&scratch, name).expect_success();
    }
}

#[test]
fn one_different_byte_is_found_with_its_place() {
    let scratch = Scratch::new();
    let mut bytes = vec![7_u8; 200_000];
    let left = scratch.write("left", &bytes);
    let same = scratch.write("same", &bytes);
    bytes[123_456] ^= 1;
    let right = scratch.write("right", &bytes);
    let shorter = scratch.write("shorter", &bytes[..100]);
    assert_eq!(difference(&left, &same), None);
    let found = difference(&left, &right).expect("they differ");
    assert!(found.contains("byte 123456"), "{found}");
    let found = difference(&left, &shorter).expect("they differ");
    assert!(found.contains("byte 100:"), "{found}");
}

#[test]
fn a_hang_ends_at_the_deadline_and_tells_where_it_stood() {
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let ended = Program::new(["/bin/sh", "-c", "sleep 60 & sleep 60"]).deadline_s(1).run(&scratch, "hang");
    ended.expect_exit(Exit::Deadline);
    assert!(ended.wall < Duration::from_secs(10), "{}", ended.report());
    assert!(ended.report().contains("nanosleep"), "no place in {}", ended.report());
    ended.expect_no_process_left();
}

#[test]
fn a_process_that_left_its_group_is_still_found() {
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let ended = Program::new(["/bin/sh", "-c", "setsid sleep 60 >/dev/null 2>&1 & exit 0"]).run(&scratch, "left");
    ended.expect_success();
    // Until the last of its programs runs: in the middle of an exec a process shows no environment.
    let sleeps = || leftovers::describe(&ended.tag).contains(": sleep 60");
    assert!(clock::wait_until(Duration::from_secs(5), sleeps), "{}", ended.report());
    assert_eq!(leftovers::kill_all(&ended.tag), 1);
    ended.expect_no_process_left();
}

#[test]
fn a_deleted_file_that_is_still_open_is_found() {
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let directory = scratch.directory("swap");
    assert!(leftovers::files(&directory).is_empty());
    let script = format!("exec 9>'{0}/x'; rm '{0}/x'; echo open; sleep 60", directory.display());
    let run = Program::new(["/bin/sh", "-c", &script]).start(&scratch, "holder");
    run.wait_for_output("open");
    assert!(!leftovers::files(&directory).is_empty(), "the open deleted file was not found");
    leftovers::kill_all(run.tag());
    run.finish();
    assert!(leftovers::files(&directory).is_empty());
}

#[test]
fn a_hard_limit_without_swap_kills_and_a_wide_one_does_not() {
    if !need::has(&[Feature::Cgroup]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let binary = victim::build(&scratch, "hostile");
    let program = Program::new([binary.as_os_str(), "exit".as_ref(), "64".as_ref(), "0".as_ref()]);
    let narrow = Cgroup::limited(32 * MIB, KernelSwap::Forbidden);
    program.clone().inside(&narrow).run(&scratch, "narrow").expect_exit(Exit::Signal(libc::SIGKILL));
    assert_eq!(narrow.oom_kills(), 1, "{}", narrow.summary());
    let wide = Cgroup::limited(128 * MIB, KernelSwap::Forbidden);
    program.inside(&wide).run(&scratch, "wide").expect_success();
    assert!(wide.oom_kills() == 0 && wide.peak_bytes() > 64 * MIB, "{}", wide.summary());
}
