//! Programs that take away what a pager needs, and places that fill: each ends right or with a message, none hangs.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt;

use pagetide_tests::need::{self, Feature};
use pagetide_tests::pagetide::{FaultMode, PagetideRun};
use pagetide_tests::program::{Exit, Finished, Program, Running};
use pagetide_tests::scratch::Scratch;
use pagetide_tests::stats::Stats;
use pagetide_tests::{MIB, leftovers, nobody, serial, victim};
use rustix::process::{Signal, kill_process};

const BUDGET: u64 = 16 * MIB;

/// `mode` with its argument, if it has one.
fn run_hostile(scratch: &Scratch, mode: &str, run: &PagetideRun) -> Finished {
    run.wrap(&hostile(scratch, mode, "64")).deadline_s(180).run(scratch, mode)
}

fn hostile(scratch: &Scratch, mode: &str, mib: &str) -> Program {
    let binary = victim::build(scratch, "hostile");
    let mut words = mode.split(' ');
    let mode = words.next().expect("a name");
    let argv = [OsString::from(binary), mode.into(), mib.into()];
    Program::new(argv.into_iter().chain(words.map(OsString::from)))
}

/// Four budgets of memory, rewritten and checked before, during and after the mode's misdeed.
fn expect_right(mode: &str, fault_mode: FaultMode) {
    if let Some(stats) = run_right(mode, fault_mode) {
        stats.expect_peak();
    }
}

/// Right, whatever the peak. None where the machine lacks what it takes.
fn run_right(mode: &str, fault_mode: FaultMode) -> Option<Stats> {
    if !need::has(&[Feature::Uffd]) {
        return None;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let run = PagetideRun::new(&scratch, BUDGET).mode(fault_mode);
    let ended = run_hostile(&scratch, mode, &run);
    ended.expect_success();
    assert_eq!(ended.stdout(), "ready\nok\n", "{}", ended.report());
    ended.expect_no_process_left();
    assert!(leftovers::files(&scratch.file("swap")).is_empty());
    let stats = run.stats();
    stats.expect_paging(12 * 256).expect_laws();
    Some(stats)
}

/// The same in signal mode, with three budgets of memory.
fn as_nobody(mode: &str) {
    if !nobody::can_run() {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let run = nobody::pagetide(&scratch, BUDGET).mode(FaultMode::Signal);
    let program = hostile(&scratch, mode, "48");
    let ended = nobody::program(&run.wrap(&program)).deadline_s(180).run(&scratch, mode);
    ended.expect_success();
    assert_eq!(ended.stdout(), "ready\nok\n", "{}", ended.report());
    ended.expect_no_process_left();
    assert!(leftovers::files(&scratch.file("swap")).is_empty());
    run.stats().expect_paging(8 * 256).expect_laws();
}

#[test]
fn a_program_that_blocks_all_signals_pages_in_thread_mode() {
    expect_right("block-signals", FaultMode::Thread);
}

#[test]
fn a_program_that_replaces_fault_handlers_sees_only_its_own_faults_in_thread_mode() {
    expect_right("replace-signals", FaultMode::Thread);
}

#[test]
fn a_program_that_closes_all_descriptors_goes_on() {
    expect_right("close-all", FaultMode::Default);
}

#[test]
fn a_program_that_closes_descriptors_one_by_one_goes_on() {
    expect_right("close-loop", FaultMode::Default);
}

#[test]
fn a_program_without_free_descriptors_pages_and_forks() {
    expect_right("exhaust-files", FaultMode::Default);
}

#[test]
fn a_program_without_free_mappings_goes_on() {
    expect_right("exhaust-maps", FaultMode::Default);
}

#[test]
fn a_program_with_two_hundred_threads_pages() {
    expect_right("exhaust-threads", FaultMode::Default);
}

#[test]
fn a_program_at_its_address_space_limit_pages() {
    expect_right("no-new-memory", FaultMode::Default);
}

#[test]
fn parent_and_child_share_the_budget_while_both_rewrite() {
    expect_right("two", FaultMode::Default);
}

#[test]
fn a_handler_on_a_paged_out_alternate_stack_runs() {
    expect_right("alternate-stack", FaultMode::Default);
}

/// The requests that the ring has are not lost, and the next ones go another way. The forked child, all of whose threads have a filter,
/// has no agent: its memory counts and is not paged (K13).
#[test]
fn a_program_that_denies_io_uring_while_it_pages_goes_on() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        run_right(&format!("deny-ring {errno}"), FaultMode::Default);
    }
}

/// An error that the kernel itself gives for a moment, for ever.
#[test]
fn a_program_that_makes_io_uring_ask_again_for_ever_goes_on() {
    run_right(&format!("deny-ring {}", libc::EAGAIN), FaultMode::Default);
}

/// The ring stays open in the program's own table, and its requests were waited for until then: the run ended after two minutes.
#[test]
fn as_nobody_a_program_that_denies_io_uring_while_it_pages_goes_on() {
    for errno in [libc::EPERM, libc::EAGAIN] {
        as_nobody(&format!("deny-ring-alone {errno}"));
    }
}

/// What these do to files, mappings, threads, limits, children and stacks is done to a pager that shares their process.
#[test]
fn as_nobody_programs_that_take_away_what_a_pager_needs_go_on() {
    const MODES: [&str; 10] = [
        "block-signals",
        "replace-signals",
        "close-all",
        "close-loop",
        "exhaust-files",
        "exhaust-maps",
        "exhaust-threads",
        "no-new-memory",
        "two",
        "alternate-stack",
    ];
    MODES.into_iter().for_each(as_nobody);
}

/// 16 MiB of memory and 16 MiB of swap for 64 MiB: it cannot work. It ends soon, with a message that names the swap.
#[test]
fn a_swap_file_that_fills_ends_the_program_with_a_message() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let run = PagetideRun::new(&scratch, BUDGET).swap_size(16 * MIB);
    let ended = run_hostile(&scratch, "two", &run);
    assert!(!matches!(ended.exit, Exit::Code(0) | Exit::Deadline), "{}", ended.report());
    assert!(ended.stderr().contains("swap") && !ended.stderr().contains("WRONG"), "{}", ended.report());
    ended.expect_no_process_left();
    assert!(leftovers::files(&scratch.file("swap")).is_empty());
}

/// 64 MiB of memory, 16 MiB of budget and two places of 32 MiB: neither alone has room for what must go out.
#[test]
fn two_swap_places_hold_together_what_neither_holds_alone() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let second = scratch.directory("second");
    let run = PagetideRun::new(&scratch, BUDGET).swap_size(32 * MIB);
    let run = run.argument("--swap").argument(format!("{}:32MiB", second.display()));
    let ended = run_hostile(&scratch, "close-loop", &run);
    ended.expect_success().expect_no_process_left();
    assert_eq!(ended.stdout(), "ready\nok\n", "{}", ended.report());
    run.stats().expect_paging(12 * 256).expect_laws().expect_peak();
}

/// Damages the swap file behind everyone's back while the program waits, then lets it check its memory.
fn expect_no_wrong_byte_after(damage: impl Fn(&File)) {
    if !need::has(&[Feature::Uffd, Feature::Root]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let binary = victim::build(&scratch, "hostile");
    let argv = [OsString::from(binary), "recheck".into(), "64".into()];
    let run = PagetideRun::new(&scratch, BUDGET).wrap(&Program::new(argv)).deadline_s(60).start(&scratch, "damaged");
    run.wait_for_output("ready");
    let files = open_swap_files(&run);
    assert!(!files.is_empty(), "no process of the run holds a swap file\n{}", leftovers::describe(run.tag()));
    files.iter().for_each(damage);
    for pid in run.descendants() {
        let is_victim = fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero()))
            .is_ok_and(|name| name.trim() == "hostile");
        if is_victim {
            kill_process(pid, Signal::USR1).expect("it waits");
        }
    }
    let ended = run.finish();
    ended.expect_exit(Exit::Code(128 + libc::SIGBUS));
    assert!(ended.stderr().contains("pagetide") && !ended.stderr().contains("WRONG"), "{}", ended.report());
    ended.expect_no_process_left();
}

/// The swap files of a run, opened for writing through the descriptors of the processes that hold them.
fn open_swap_files(run: &Running) -> Vec<File> {
    let mut files = Vec::new();
    for pid in leftovers::processes(run.tag()) {
        for (descriptor, target) in leftovers::descriptors(pid.as_raw_nonzero().get()) {
            if target.to_string_lossy().contains("/swap/") {
                files.extend(OpenOptions::new().write(true).open(&descriptor));
            }
        }
    }
    files
}

/// The checksum of every page that comes back must tell: the program gets SIGBUS and a message, never other bytes.
#[test]
fn a_page_damaged_on_the_disk_is_never_served() {
    expect_no_wrong_byte_after(|file| {
        let bytes = file.metadata().expect("an open file").len();
        let noise = vec![0x5A; 1 << 20];
        for offset in (0..bytes).step_by(1 << 20) {
            file.write_all_at(&noise, offset).expect("our own file");
        }
    });
}

/// Reads beyond the end of a truncated file come back short: the same.
#[test]
fn a_page_that_cannot_be_read_is_never_served() {
    expect_no_wrong_byte_after(|file| file.set_len(0).expect("our own file"));
}

/// The interpreter's own structures alone come near 4 MiB: it runs slowly and right, or is refused or ended with a message.
#[test]
fn a_budget_under_the_programs_unmanageable_part_is_a_message_or_works_and_never_a_hang() {
    if !need::has(&[Feature::Uffd, Feature::Tool("python3")]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let run = PagetideRun::new(&scratch, 4 * MIB);
    let script = "x = [bytes([i % 251]) * 4096 for i in range(8000)]\nassert all(x[i][0] == i % 251 for i in range(8000))\nprint('right')";
    let ended = run.wrap(&Program::new(["python3", "-c", script])).deadline_s(60).run(&scratch, "tiny");
    let right = ended.exit == Exit::Code(0) && ended.stdout() == "right\n";
    let told = ended.exit != Exit::Code(0) && ended.exit != Exit::Deadline && ended.stderr().contains("pagetide");
    assert!(right || told, "neither right nor told\n{}", ended.report());
    ended.expect_no_process_left();
}

/// What the kernel tells of a process's memory under its first thread's number ends with that thread: another one's number shows its words
/// and size. A process whose last thread ends without the C library still has ours, which must not keep it.
#[test]
fn processes_without_their_first_thread_fork_and_end() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    for mode in [FaultMode::Thread, FaultMode::Signal] {
        let scratch = Scratch::new();
        let binary = victim::build(&scratch, "leaderless");
        let run = PagetideRun::new(&scratch, BUDGET).mode(mode);
        let program = Program::new([OsString::from(binary), "32".into()]).deadline_s(60);
        let ended = run.wrap(&program).run(&scratch, "leaderless");
        ended.expect_success().expect_no_process_left();
        assert_eq!(ended.stdout(), "ok\n", "{}", ended.report());
        run.stats().expect_paging(256);
    }
}
