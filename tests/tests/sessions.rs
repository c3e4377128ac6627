//! The session that pages for a tree of processes: who may talk to it, and what processes do to it without meaning to.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use pagetide_tests::need::{self, Feature};
use pagetide_tests::pagetide::{FaultMode, PagetideRun, binary};
use pagetide_tests::program::{Exit, Program};
use pagetide_tests::scratch::Scratch;
use pagetide_tests::stats::Stats;
use pagetide_tests::{MIB, clock, serial, victim};
use rustix::process::Signal;

const BUDGET: u64 = 16 * MIB;

/// The victim's arguments.
fn session(scratch: &Scratch, arguments: &[&str]) -> Program {
    let binary = victim::build(scratch, "session");
    Program::new(std::iter::once(OsString::from(binary)).chain(arguments.iter().map(OsString::from)))
}

/// Sockets between the processes of a run have no names: whoever called at one would be handed the page of shares and
/// counters, the swap directory and /dev/userfaultfd, and at a fork the child's memory.
#[test]
fn another_user_is_handed_nothing_of_a_run() {
    if !need::has(&[Feature::Uffd, Feature::Root, Feature::Tool("setpriv"), Feature::Tool("unshare")]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).expect("our own directory");
    let stranger = victim::build(&scratch, "stranger");
    let run = PagetideRun::new(&scratch, BUDGET);
    let session = run.wrap(&session(&scratch, &["forks", "48", "3"]));
    // In a network of their own, so that the stranger meets no other run of this machine.
    let script = "setpriv --reuid=65534 --regid=65534 --clear-groups \"$0\" 6 & sleep 0.1; \"$@\"; status=$?; wait; exit $status";
    let both = ["unshare".into(), "--net".into(), "sh".into(), "-c".into(), script.into(), stranger.into_os_string()];
    let ended = session.behind(both).directory("/".as_ref()).deadline_s(240).run(&scratch, "run");
    ended.expect_success().expect_no_process_left();
    assert!(ended.stdout().contains("ready\n") && ended.stdout().contains("ok\n"), "{}", ended.report());
    assert!(ended.stdout().contains(", 0 messages, 0 descriptors"), "{}", ended.report());
    run.stats().expect_paging(8 * 256);
}

/// Runs the victim with these arguments in `memory` bytes; it must end as it does natively. What it said beside that, and its
/// statistics.
fn expect_ok(arguments: &[&str], memory: u64, features: &[Feature]) -> Option<(String, Stats)> {
    if !need::has(&[&[Feature::Uffd], features].concat()) {
        return None;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).expect("our own directory");
    let run = PagetideRun::new(&scratch, memory);
    let ended = run.wrap(&session(&scratch, arguments)).deadline_s(240).run(&scratch, "run");
    ended.expect_success().expect_no_process_left();
    assert!(ended.stdout().ends_with("ok\n"), "{}", ended.report());
    let stats = run.stats();
    stats.expect_laws();
    Some((ended.stderr(), stats))
}

/// The same, and it must have paged.
fn expect_paging(arguments: &[&str], memory: u64, features: &[Feature]) {
    if let Some((_, stats)) = expect_ok(arguments, memory, features) {
        stats.expect_paging(4 * 256);
    }
}

/// More ranges than can wait at once are shared since a fork: those beyond were taken for memory that the kernel pins.
#[test]
fn pages_that_a_fork_shares_wait_until_they_are_private() {
    if let Some((_, stats)) = expect_ok(&["private", "40", "3"], 16 * MIB, &[]) {
        stats.expect_paging(4 * 256);
        assert_eq!(stats.counter("uffd_busy"), 0, "nothing is pinned");
    }
}

/// A line of ours in the midst of a file of the program is a wrong byte.
#[test]
fn a_file_that_has_the_number_of_standard_error_is_not_written_to() {
    expect_paging(&["reused", "24"], 12 * MIB, &[]);
}

/// Sixteen generations: a packet takes 32 descriptors, and each generation needs three more than the one before.
#[test]
fn sixteen_generations_of_forks_see_every_byte() {
    expect_paging(&["nested", "24", "16"], 12 * MIB, &[]);
}

/// What it inherited lies in the slots of its parent's parent, which are kept although nobody between them lives.
#[test]
fn an_orphan_sees_what_its_parents_parent_had_at_the_fork() {
    expect_paging(&["orphan", "24"], 12 * MIB, &[]);
}

/// Its parent is killed before the supervisor has heard of it. What is out of its memory is nowhere any more: it ends, and with it the run,
/// which waited for it.
#[test]
fn a_forked_child_whose_parent_ends_before_it_was_told_of_ends() {
    if let Some((told, _)) = expect_ok(&["bereft", "24"], 12 * MIB, &[]) {
        assert!(told.contains("its parent has ended before it was handed over"), "{told}");
    }
}

/// No table has a fixed number of places: 1,100 children at once are all counted, and end.
#[test]
fn eleven_hundred_children_at_once_are_no_hindrance() {
    expect_ok(&["crowd", "1", "1100"], 64 * MIB, &[]);
}

/// The kernel tells of a fork only if the child inherits something that is registered: who relies on that waits for ever.
#[test]
fn a_child_that_inherits_none_of_the_memory_starts() {
    expect_paging(&["hidden", "24"], 12 * MIB, &[]);
}

/// Our own mappings in the child may lie where the copy has left something out, and the child's own where the parent's are.
#[test]
fn a_child_may_map_its_own_memory_where_the_copy_left_a_hole() {
    expect_paging(&["hole", "24"], 12 * MIB, &[]);
}

#[test]
fn a_raw_clone_that_unmaps_at_once_sees_every_byte() {
    expect_paging(&["raw", "24", "3"], 12 * MIB, &[]);
}

/// They have every byte, and are beyond the budget in thread mode, and where the copy was made before anything was paged: without a word
/// they were three budgets, and waited for 2 s for an agent when they mapped memory.
#[test]
fn copies_that_no_fork_handler_is_told_of_are_paged_or_told_of() {
    const TOLD: &str = "was copied by a system call that no fork handler is told of";
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    for (mode, arguments, is_told) in [
        (FaultMode::Thread, ["copied", "24", "2"], true),
        (FaultMode::Thread, ["copied-early", "24", "0"], true),
        (FaultMode::Signal, ["copied", "24", "2"], false),
        (FaultMode::Signal, ["copied-early", "24", "0"], true),
    ] {
        let scratch = Scratch::new();
        let run = PagetideRun::new(&scratch, 12 * MIB).mode(mode);
        let ended = run.wrap(&session(&scratch, &arguments)).deadline_s(60).run(&scratch, "run");
        ended.expect_success().expect_no_process_left();
        assert_eq!(ended.stdout(), "ready\nok\n", "{}", ended.report());
        assert_eq!(ended.stderr().matches(TOLD).count(), usize::from(is_told), "{}", ended.report());
        run.stats().expect_laws().expect_paging(4 * 256);
    }
}

/// They touched the doorbell of their parent, which they do not have, and ended by SIGSEGV.
#[test]
fn children_that_were_not_announced_fork_themselves() {
    expect_paging(&["untold", "24", "4"], 12 * MIB, &[]);
    expect_paging(&["cleared", "24", "2"], 12 * MIB, &[]);
}

#[test]
fn a_fork_in_a_handler_that_interrupts_a_fork_ends() {
    expect_paging(&["handler", "24", "8"], 12 * MIB, &[]);
}

#[test]
fn a_child_that_is_stopped_at_birth_keeps_its_memory_and_its_parent_goes_on() {
    expect_paging(&["stopped", "24"], 12 * MIB, &[]);
}

#[test]
fn parent_and_child_may_be_stopped_together() {
    expect_paging(&["both", "24", "4"], 12 * MIB, &[]);
}

#[test]
fn a_program_may_leave_its_network_namespace() {
    expect_paging(&["network", "24"], 12 * MIB, &[Feature::Root]);
}

/// Processes of one run that have the same numbers, their children too: a fork that goes by the number waits for the other one's.
#[test]
fn processes_with_equal_numbers_in_two_namespaces_page_and_fork() {
    if !need::has(&[Feature::Uffd, Feature::Root, Feature::Tool("unshare")]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let run = PagetideRun::new(&scratch, BUDGET);
    let binary = victim::build(&scratch, "session").into_os_string();
    let script = "for i in 1 2; do unshare --pid --fork \"$0\" forks 24 3 & all=\"$all $!\"; done; for i in $all; do wait $i || exit; done";
    let program = Program::new(["sh".into(), "-c".into(), script.into(), binary]);
    let ended = run.wrap(&program).deadline_s(240).run(&scratch, "run");
    ended.expect_success().expect_no_process_left();
    assert_eq!(ended.stdout().matches("ok\n").count(), 2, "{}", ended.report());
    run.stats().expect_laws().expect_paging(4 * 256);
}

/// `program` with these arguments as the first process of a pid namespace, under a run.
fn first_of_namespace(scratch: &Scratch, run: &PagetideRun, name: &str, arguments: &[&str]) -> Program {
    let program = victim::build(scratch, name).into_os_string();
    let argv = ["unshare", "--pid", "--fork"].map(OsString::from).into_iter().chain([program]);
    run.wrap(&Program::new(argv.chain(arguments.iter().map(OsString::from)))).deadline_s(60)
}

/// A signal that the first process of a pid namespace sends itself is ignored, SIGKILL too: whoever ends it so from inside waits for ever.
#[test]
fn the_first_process_of_a_namespace_ends_where_there_is_no_memory_or_no_run_any_more() {
    if !need::has(&[Feature::Uffd, Feature::Root, Feature::Tool("unshare")]) {
        return;
    }
    let _turn = serial::turn();
    for mode in [FaultMode::Thread, FaultMode::Signal] {
        let scratch = Scratch::new();
        let run = PagetideRun::new(&scratch, BUDGET).swap_size(16 * MIB).mode(mode);
        let ended = first_of_namespace(&scratch, &run, "hostile", &["close-loop", "64"]).run(&scratch, "full");
        ended.expect_exit(Exit::Code(137)).expect_no_process_left();
        assert!(ended.stderr().contains("out of memory: the budget is full"), "{}", ended.report());
        assert!(!ended.stderr().contains("broken invariant"), "{}", ended.report());

        let run = PagetideRun::new(&scratch, BUDGET).mode(mode);
        let running = first_of_namespace(&scratch, &run, "hostile", &["hold", "64"]).start(&scratch, "left");
        running.wait_for_output("ready");
        running.signal(Signal::KILL);
        let ended = running.finish();
        ended.expect_exit(Exit::Signal(libc::SIGKILL)).expect_no_process_left();
        assert!(ended.stderr().contains("the run has ended: it is killed"), "{}", ended.report());
    }
}

/// The kernel lets only a process with one thread do so.
#[test]
fn a_program_that_has_not_paged_yet_may_leave_its_user_namespace() {
    expect_paging(&["user", "24"], 12 * MIB, &[Feature::Root]);
}

#[test]
fn a_program_that_gives_up_root_pages_forks_and_executes() {
    expect_paging(&["drop", "24"], 12 * MIB, &[Feature::Root]);
}

/// Root is given up, or left behind in a namespace, by whoever starts the program.
#[test]
fn programs_behind_setpriv_runuser_and_unshare_page_and_fork() {
    let tools = ["setpriv", "runuser", "unshare"].map(Feature::Tool);
    if !need::has(&[&[Feature::Uffd, Feature::Root], &tools[..]].concat()) {
        return;
    }
    let _turn = serial::turn();
    for before in [
        &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"][..],
        &["runuser", "-u", "nobody", "--"],
        &["unshare", "--user", "--map-root-user"],
    ] {
        let scratch = Scratch::new();
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).expect("our own directory");
        let program = victim::build(&scratch, "session");
        let argv = before.iter().map(OsString::from);
        let argv = argv.chain([program.into(), "forks".into(), "24".into(), "3".into()]);
        let run = PagetideRun::new(&scratch, 12 * MIB);
        let ended = run.wrap(&Program::new(argv)).deadline_s(240).run(&scratch, before[0]);
        ended.expect_success().expect_no_process_left();
        assert!(ended.stdout().ends_with("ok\n"), "{}", ended.report());
        run.stats().expect_laws().expect_paging(4 * 256);
    }
}

/// The C library gives up root thread by thread, and does not know ours: it would stay root in the program's memory.
#[test]
fn a_program_that_gives_up_root_has_no_thread_that_keeps_it() {
    expect_paging(&["unrooted", "24"], 12 * MIB, &[Feature::Root]);
}

#[test]
fn a_program_that_denies_itself_sockets_goes_on() {
    expect_ok(&["filter", "24"], 12 * MIB, &[]);
}

/// Our threads take it over with the others.
#[test]
fn a_filter_of_all_threads_that_lets_paging_go_on_is_installed() {
    expect_paging(&["filter", "24", "1"], 12 * MIB, &[]);
}

/// Our next call would have ended the process: the kernel's answer where a thread cannot take a filter over, and a line for the person.
#[test]
fn a_filter_that_would_end_the_pager_is_refused_and_told_of() {
    for arguments in [&["strict", "24"][..], &["strict", "24", "1"]] {
        let Some((said, stats)) = expect_ok(arguments, 12 * MIB, &[]) else { return };
        assert!(said.contains("its system call filter denies call"), "{said}");
        stats.expect_paging(4 * 256);
    }
}

/// gdb tries for ever to attach to a thread that refuses it.
#[test]
fn a_tracer_may_attach_to_every_thread_of_a_process_that_pages() {
    if !need::has(&[Feature::Uffd, Feature::Root]) {
        return;
    }
    let _turn = serial::turn();
    for mode in [FaultMode::Thread, FaultMode::Signal] {
        let scratch = Scratch::new();
        let readers = victim::build(&scratch, "readers").into_os_string();
        let run = PagetideRun::new(&scratch, 12 * MIB).mode(mode);
        let ended =
            run.wrap(&Program::new([readers, "traced".into(), "24".into()])).deadline_s(60).run(&scratch, "run");
        ended.expect_success().expect_no_process_left();
        assert!(ended.stdout().ends_with("ok\n"), "{}", ended.report());
        run.stats().expect_paging(8 * 256);
    }
}

/// The runtime's memory needs addresses, too. Where a hard limit leaves none, and the program has no right to raise it, the end has a reason,
/// whatever it is that finds no room.
#[test]
fn a_hard_limit_that_leaves_no_room_ends_the_program_with_a_message() {
    if !need::has(&[Feature::Uffd, Feature::Root, Feature::Tool("setpriv"), Feature::Tool("prlimit")]) {
        return;
    }
    let _turn = serial::turn();
    for (limit, reason) in [
        // What fails may have something registered: to give that back is to wait for who would read of it.
        ("--as=199800000", "memory cannot be managed: the staging area"),
        ("--as=300000000", "its limits of addresses and data"),
        ("--fsize=4194304", "its files may not be larger than 4 MiB (RLIMIT_FSIZE)"),
    ] {
        let scratch = Scratch::new();
        let program = victim::build(&scratch, "session");
        let limited = ["setpriv", "--bounding-set=-sys_resource", "prlimit", limit].map(OsString::from);
        let argv = limited.into_iter().chain([program.into(), "forks".into(), "24".into(), "1".into()]);
        let ended = PagetideRun::new(&scratch, 12 * MIB).wrap(&Program::new(argv)).run(&scratch, "limited");
        ended.expect_exit(Exit::Code(137)).expect_no_process_left();
        assert!(ended.stderr().contains(reason), "{}", ended.report());
    }
}

/// What an agent has open is known before it begins.
#[test]
fn a_hard_limit_on_descriptors_that_leaves_no_room_leaves_the_program_as_it_is_in_both_modes() {
    if !need::has(&[Feature::Uffd, Feature::Root, Feature::Tool("setpriv"), Feature::Tool("prlimit")]) {
        return;
    }
    let _turn = serial::turn();
    for (mode, limits) in [(FaultMode::Thread, [4, 16]), (FaultMode::Signal, [4, 63])] {
        for limit in limits {
            let scratch = Scratch::new();
            let program = victim::build(&scratch, "session");
            let limit = format!("--nofile={limit}");
            let limited = ["setpriv", "--bounding-set=-sys_resource", "prlimit", &limit].map(OsString::from);
            let argv = limited.into_iter().chain([program.into(), "forks".into(), "24".into(), "1".into()]);
            let run = PagetideRun::new(&scratch, 12 * MIB).mode(mode);
            let ended = run.wrap(&Program::new(argv)).run(&scratch, "limited");
            ended.expect_exit(Exit::Code(0)).expect_no_process_left();
            assert!(ended.stderr().contains("its limit on descriptors, ulimit -n, is too low"), "{}", ended.report());
        }
    }
}

/// In signal mode that may be known before anything has begun.
#[test]
fn in_signal_mode_a_hard_limit_that_leaves_no_room_leaves_the_program_as_it_is() {
    if !need::has(&[Feature::Uffd, Feature::Root, Feature::Tool("setpriv"), Feature::Tool("prlimit")]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let program = victim::build(&scratch, "session");
    let limited = ["setpriv", "--bounding-set=-sys_resource", "prlimit", "--as=100000000"].map(OsString::from);
    let argv = limited.into_iter().chain([program.into(), "forks".into(), "24".into(), "1".into()]);
    let run = PagetideRun::new(&scratch, 12 * MIB).mode(FaultMode::Signal);
    let ended = run.wrap(&Program::new(argv)).run(&scratch, "limited");
    ended.expect_exit(Exit::Code(0)).expect_no_process_left();
    assert!(ended.stderr().contains("no agent can be started (ENOMEM)"), "{}", ended.report());
}

/// Nothing can be loaded into a program whose environment was cleaned: it is counted, and said.
#[test]
fn a_cleaned_environment_is_told_of_and_counted() {
    if let Some((said, stats)) = expect_ok(&["bare", "24"], 12 * MIB, &[]) {
        assert!(said.contains("its environment does not name any more"), "{said}");
        assert!(stats.number("peak_resident_bytes") > 20 * MIB && stats.number("processes") > 0, "{}", stats.text());
    }
}

/// Not the same as a cleaned environment: what helps is another thing.
#[test]
fn a_process_that_cannot_see_the_library_is_told_of_and_counted() {
    if !need::has(&[Feature::Uffd, Feature::Root, Feature::Tool("unshare")]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let program = victim::build(&scratch, "hostile");
    let hide = "mount -t tmpfs none \"$0\" && exec \"$@\"";
    let directory = binary().parent().expect("a file has a directory").to_owned();
    let argv = ["unshare", "-m", "sh", "-c", hide].map(OsString::from);
    let argv = argv.into_iter().chain([directory.into(), program.into(), "exit".into(), "24".into(), "0".into()]);
    let run = PagetideRun::new(&scratch, 12 * MIB);
    let ended = run.wrap(&Program::new(argv)).run(&scratch, "hidden");
    ended.expect_success();
    assert!(ended.stderr().contains("sees no file"), "{}", ended.report());
    assert!(run.stats().number("peak_resident_bytes") > 20 * MIB, "{}", run.stats().text());
}

/// A run that is killed leaves the statistics of a second before.
#[test]
fn statistics_survive_a_kill() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let run = PagetideRun::new(&scratch, BUDGET);
    let hold = victim::build(&scratch, "hostile");
    let program = Program::new([hold.into_os_string(), "hold".into(), "64".into()]);
    let running = run.wrap(&program).deadline_s(240).start(&scratch, "run");
    running.wait_for_output("ready");
    assert!(clock::wait_until(Duration::from_secs(30), || run.stats_path().exists()), "no statistics after 30 s");
    running.signal(Signal::KILL);
    running.finish().expect_exit(Exit::Signal(libc::SIGKILL)).expect_no_process_left();
    run.stats().expect_laws();
    assert!(run.stats().text().contains("\"exit_status\":null"), "{}", run.stats().text());
}

/// A daemon's first process ends at once; the run goes on, and is told of.
#[test]
fn statistics_are_written_while_any_process_goes_on() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let run = PagetideRun::new(&scratch, BUDGET);
    let running = run.wrap(&Program::new(["sh", "-c", "sleep 6 & exit 3"])).start(&scratch, "run");
    let elapsed_ns = || if run.stats_path().exists() { run.stats().number("elapsed_ns") } else { 0 };
    assert!(
        clock::wait_until(Duration::from_secs(30), || elapsed_ns() > 2_500_000_000),
        "told of for {} ns",
        elapsed_ns()
    );
    let told = run.stats().text().to_owned();
    running.finish().expect_exit(Exit::Code(3)).expect_no_process_left();
    assert!(told.contains("\"exit_status\":null"), "ended while a process went on: {told}");
    assert_eq!(run.stats().number("exit_status"), 3);
}

/// No thread of ours, no descriptor and no socket is in a process that fits.
#[test]
fn a_process_that_fits_has_one_thread() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let run = PagetideRun::new(&scratch, BUDGET);
    // Without a pipe: while a shell sets one up it has descriptors of its own, now more and now fewer.
    let script = "sleep 0.2; set -- /proc/$$/task/*; echo $#; set -- /proc/$$/fd/*; echo $#";
    let natively = Program::new(["sh", "-c", script]).run(&scratch, "native").stdout();
    let ended = run.wrap(&Program::new(["sh", "-c", script])).run(&scratch, "run");
    ended.expect_success();
    assert_eq!(ended.stdout(), natively, "{}", ended.report());
}
