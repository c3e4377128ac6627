//! `pagetide run` is transparent: exit status, signals and standard streams are the program's.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::time::Duration;

use pagetide_tests::need::{self, Feature};
use pagetide_tests::pagetide::{self, PagetideRun};
use pagetide_tests::program::{Exit, Program};
use pagetide_tests::scratch::{Scratch, difference};
use pagetide_tests::{MIB, serial, victim};
use rustix::process::Signal;

const BUDGET: u64 = 16 * MIB;
/// Two and a half budgets: it pages. Half of one: it fits, and the runtime may never have taken it over.
const SIZES_MIB: [&str; 2] = ["40", "8"];

fn hostile(scratch: &Scratch, arguments: &[&str]) -> Program {
    let binary = victim::build(scratch, "hostile");
    let argv = std::iter::once(OsString::from(binary)).chain(arguments.iter().map(OsString::from));
    PagetideRun::new(scratch, BUDGET).wrap(&Program::new(argv)).deadline_s(30)
}

#[test]
fn the_exit_status_is_the_programs() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    for size in SIZES_MIB {
        for status in [0, 1, 2, 3, 7, 126, 127, 255] {
            hostile(&scratch, &["exit", size, &status.to_string()])
                .run(&scratch, "exit")
                .expect_exit(Exit::Code(status));
        }
    }
}

/// What is said on the way was an abort where it could not be written, and took the run with it.
#[test]
fn where_nothing_can_be_said_the_exit_status_is_the_programs() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let (binary, directory) = (victim::build(&scratch, "hostile"), scratch.path().display());
    for (options, to) in [
        ("--summary=0.1", "2>/dev/full"),
        ("--stats /dev/full", "2>/dev/full"),
        ("--stats /dev/full", "2>/dev/null"),
        ("--summary=0.1", "2> >(exec true)"),
    ] {
        let inside = format!("sleep 0.5; {} exit 40 7", binary.display());
        let run = format!(
            "{} run --memory 16M --swap {directory}:256M {options} -- sh -c '{inside}' {to}",
            pagetide::binary().display()
        );
        let ended = Program::new(["bash", "-c", &run]).deadline_s(30).run(&scratch, "unheard");
        ended.expect_exit(Exit::Code(7));
    }
}

#[test]
fn a_death_by_signal_is_128_and_its_number() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    for size in SIZES_MIB {
        for signal in
            [libc::SIGKILL, libc::SIGTERM, libc::SIGABRT, libc::SIGSEGV, libc::SIGBUS, libc::SIGPIPE, libc::SIGUSR1]
        {
            let ended = hostile(&scratch, &["die", size, &signal.to_string()]).run(&scratch, "die");
            ended.expect_exit(Exit::Code(128 + signal));
        }
        hostile(&scratch, &["crash", size]).run(&scratch, "crash").expect_exit(Exit::Code(128 + libc::SIGSEGV));
    }
}

#[test]
fn signals_to_pagetide_reach_the_program() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let expected = [
        ("trap", Signal::TERM, 42),
        ("trap", Signal::INT, 42),
        ("wait", Signal::TERM, 143),
        ("wait", Signal::INT, 130),
        ("wait", Signal::HUP, 129),
    ];
    for size in SIZES_MIB {
        for (mode, signal, status) in expected {
            // Who starts the tests in the background may ignore these, and that is handed down.
            let program = hostile(&scratch, &[mode, size]).behind(["env", "--default-signal=HUP,INT"]);
            let run = program.start(&scratch, "signalled");
            run.wait_for_output("ready");
            run.signal(signal);
            run.finish().expect_exit(Exit::Code(status)).expect_no_process_left();
        }
    }
}

#[test]
fn a_program_that_stops_can_be_continued() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let run = hostile(&scratch, &["trap", SIZES_MIB[0]]).start(&scratch, "stopped");
    run.wait_for_output("ready");
    for pid in run.descendants() {
        rustix::process::kill_process(pid, Signal::STOP).expect("it runs");
    }
    pagetide_tests::clock::pause(Duration::from_millis(300));
    for pid in run.descendants() {
        rustix::process::kill_process(pid, Signal::CONT).expect("it is stopped");
    }
    run.signal(Signal::TERM);
    run.finish().expect_exit(Exit::Code(42)).expect_no_process_left();
}

#[test]
fn standard_streams_are_the_programs() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let bytes: Vec<u8> = (0..20_000_000_u32).map(|index| index.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    let input = scratch.write("input", bytes);
    let run = PagetideRun::new(&scratch, BUDGET);
    let program = run.wrap(&Program::new(["/bin/sh", "-c", "cat; echo to stderr >&2"])).stdin(&input);
    let ended = program.run(&scratch, "streams");
    ended.expect_success();
    assert_eq!(difference(&input, &ended.stdout_path), None);
    assert_eq!(ended.stderr(), "to stderr\n", "pagetide adds nothing of its own to a run that works");
}

/// Services are started with SIGPIPE ignored, and programs with streams that are closed. The program had SIGPIPE as the default, and /dev/null
/// in the place of what was closed.
#[test]
fn closed_streams_and_an_ignored_sigpipe_are_the_programs() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let program = Program::new(["/bin/sh", "-c", "grep SigIgn /proc/self/status; cat; echo $?"]);
    for given in ["trap '' PIPE; exec \"$@\" <&-", "trap '' PIPE; exec \"$@\"", "exec \"$@\" <&-"] {
        let shell = ["/bin/sh", "-c", given, "sh"];
        let native = program.behind(shell).run(&scratch, "native");
        let ended = PagetideRun::new(&scratch, BUDGET).wrap(&program).behind(shell).run(&scratch, "wrapped");
        assert_eq!((ended.stdout(), ended.stderr()), (native.stdout(), native.stderr()), "{given}");
    }
}

/// What a new thread does for the preloaded object took locks of the allocator; a fork that the thread's handler waited for needs them.
#[test]
fn a_thread_that_is_interrupted_as_soon_as_it_exists_holds_nothing_that_a_fork_needs() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let binary = victim::build(&scratch, "space");
    let program = Program::new([binary.as_os_str(), "fresh-threads".as_ref(), "4".as_ref()]).deadline_s(100);
    let ended = PagetideRun::new(&scratch, BUDGET).wrap(&program).run(&scratch, "fresh-threads");
    assert_eq!(ended.stdout(), "fresh-threads: right\n", "{}", ended.report());
}

/// Each process of the program loads it; libgcc's unwinder would be the larger part of the price.
#[test]
fn the_preloaded_object_brings_no_other_library() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let libraries = |maps: &str| -> BTreeSet<String> {
        maps.split_whitespace().filter(|word| word.contains(".so")).map(str::to_owned).collect()
    };
    let program = Program::new(["/bin/cat", "/proc/self/maps"]);
    let native = libraries(&program.run(&scratch, "native").expect_success().stdout());
    let paged = PagetideRun::new(&scratch, BUDGET).wrap(&program).run(&scratch, "paged");
    let added: Vec<_> = libraries(&paged.expect_success().stdout()).difference(&native).cloned().collect();
    assert!(matches!(&added[..], [one] if one.ends_with("/libpagetide_preload.so")), "{added:?}");
}

#[test]
fn arguments_environment_and_directory_are_the_programs() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let program = Program::new([
        "/bin/sh",
        "-c",
        "pwd; printf '<%s>' \"$@\"; echo; echo \"$OWN\"",
        "name",
        "--memory",
        "a b",
        "",
        "--",
    ]);
    let program = program.env("OWN", "value with spaces").directory(scratch.path());
    let native = program.run(&scratch, "native");
    let paged = PagetideRun::new(&scratch, BUDGET).wrap(&program).run(&scratch, "paged");
    paged.expect_success();
    assert_eq!(native.stdout(), paged.stdout());
}

/// While everything fits nothing is paged, and the program is not slowed by being watched.
#[test]
fn a_program_that_fits_is_left_alone() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let binary = victim::build(&scratch, "hostile");
    let run = PagetideRun::new(&scratch, 256 * MIB);
    let argv = [OsString::from(binary), "two".into(), "64".into()];
    run.wrap(&Program::new(argv)).deadline_s(30).run(&scratch, "fits").expect_success();
    let stats = run.stats();
    assert_eq!((stats.counter("pswpout"), stats.counter("pgmajfault")), (0, 0), "{}", stats.text());
}
