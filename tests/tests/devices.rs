//! Places to swap to that come and go under a running program, and its budget, knobs and paging out steered from outside.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use pagetide_tests::need::{self, Feature};
use pagetide_tests::scratch::Scratch;
use pagetide_tests::stats::Stats;
use pagetide_tests::steered::{NAME, Steered};
use pagetide_tests::{MIB, clock, leftovers, serial};
use rustix::process::{Pid, Signal, kill_process};

const BUDGET: u64 = 16 * MIB;

/// A further directory for swap, as text.
fn directory(run: &Steered, name: &str) -> (PathBuf, String) {
    let path = run.scratch().directory(name);
    let text = path.to_str().expect("UTF-8").to_owned();
    (path, text)
}

fn first(run: &Steered) -> (PathBuf, String) {
    let path = run.scratch().file("swap");
    let text = path.to_str().expect("UTF-8").to_owned();
    (path, text)
}

/// A place that the run knows no more, and in which no process has a file open.
fn expect_closed(run: &Steered, path: &Path) {
    assert!(run.place(path).is_none(), "{}", run.stat());
    let files = leftovers::files(path);
    assert!(files.is_empty(), "{files:?}");
}

#[test]
fn a_place_is_taken_away_from_a_program_that_works_and_comes_back() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let run = Steered::family(48, 0, BUDGET, &[]);
    let ((one, one_text), (two, two_text)) = (first(&run), directory(&run, "two"));
    run.expect_refusal(&["swapoff", &one_text], &["it is the only place"]);
    run.tell(&["swapon", &format!("{two_text}:256M")]);
    for mode in ["no-lookup", "lookup", "lookup-stats"] {
        run.wait_until("filling the first place", || run.used_bytes(&one) > 20 * MIB);
        let told = run.tell(&["swapoff", &one_text, "--mode", mode]);
        assert!(told.contains("empty, and forgotten"), "{told}");
        expect_closed(&run, &one);
        assert!(run.used_bytes(&two) > 20 * MIB, "{}", run.stat());
        run.tell(&["swapon", &format!("{one_text}:256M:10")]);
    }
    assert!(run.counter("pt_swapoff_in") > 1000, "{}", run.stat());
    run.expect_good_end();
}

/// As with swapon(8): places with a priority come first, whatever it is, and then the others, in the order in which they came.
#[test]
fn places_are_filled_by_priority_and_then_in_the_order_in_which_they_came() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let [zero, five, last] = ["zero", "five", "last"].map(|name| scratch.directory(name));
    let places = [format!("{}:6M:0", zero.display()), format!("{}:6M:5", five.display()), last.display().to_string()];
    let extra = places.iter().flat_map(|place| ["--swap", place]);
    // The run's own place, which has no priority, comes before the last.
    let run = Steered::idle(30, 2 * BUDGET, &extra.collect::<Vec<_>>());
    let (own, _) = first(&run);
    let used = || [&five, &zero, &own, &last].map(|place| run.used_bytes(place));
    run.tell(&["page-out", "4M"]);
    run.wait_until("filling a place", || used()[0] > 2 * MIB);
    assert_eq!(used()[1..], [0; 3], "{}", run.stat());
    run.tell(&["page-out", "5M"]);
    run.wait_until("filling two places", || used()[1] > 2 * MIB);
    assert_eq!(used()[2..], [0; 2], "{}", run.stat());
    run.tell(&["page-out", "1G"]);
    run.wait_until("filling the third place", || used()[2] > 2 * MIB);
    assert_eq!(used()[3], 0, "{}", run.stat());
    for place in [&five, &zero] {
        let stands = run.place(place).expect("it is on");
        assert_eq!(stands["state"], "full", "{stands}");
    }
    let told = run.end_well();
    assert!(!told.contains("the disk is full"), "what is as large as it may be lacks nothing: {told}");
}

#[test]
fn the_size_of_a_directory_is_that_of_all_processes_that_use_it() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let [one, two] = ["one", "two"].map(|name| scratch.directory(name));
    let place = format!("{}:24M:5", one.display());
    let run = Steered::family(32, 3, BUDGET, &["--swap", &place]);
    run.wait_until("swapping more than one process may", || run.used_bytes(&one) > 26 * MIB);
    let stands = run.place(&one).expect("it is on");
    let [size, used] = ["size_bytes", "used_bytes"].map(|key| stands[key].as_u64().expect("a number"));
    assert!(used <= size && size > 24 * MIB, "{stands}");
    let told = run.tell(&["swapon", &format!("{}:24M", two.display())]);
    assert!(told.contains("up to 24 MiB of each process"), "{told}");
    run.expect_good_end();
}

#[test]
fn places_of_equal_priority_are_filled_in_turn() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let [one, two] = ["one", "two"].map(|name| scratch.directory(name));
    let places = [&one, &two].map(|path| format!("{}:128M:5", path.display()));
    let extra = places.iter().flat_map(|place| ["--swap", place]);
    let run = Steered::idle(64, BUDGET, &extra.collect::<Vec<_>>());
    let [one, two] = [&one, &two].map(|path| run.used_bytes(path));
    assert!(one + two > 40 * MIB, "{}", run.stat());
    // They take turns by clusters of 256 pages.
    assert!(one.abs_diff(two) <= 2 * MIB, "{}", run.stat());
    run.expect_good_end();
}

/// A child's pages lie in its parent's slots until it needs them no more: the parent's place is closed once the child has been
/// drained as well, not only when it ends.
#[test]
fn a_place_is_closed_while_forked_children_live_that_had_their_pages_there() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    // What the children inherit lies in both places: the second holds but a part.
    let scratch_two = Scratch::new();
    let two = scratch_two.path().to_owned();
    let run = Steered::family(24, 3, BUDGET, &["--swap", &format!("{}:8M:5", two.display())]);
    let (three, three_text) = directory(&run, "three");
    run.tell(&["swapon", &format!("{three_text}:512M:3")]);
    let (one, one_text) = first(&run);
    for (path, text) in [(&one, one_text.as_str()), (&two, two.to_str().expect("UTF-8"))] {
        run.tell(&["swapoff", text]);
        expect_closed(&run, path);
    }
    assert!(run.used_bytes(&three) > 20 * MIB, "{}", run.stat());
    run.expect_good_end();
}

#[test]
fn a_process_ends_and_another_works_while_their_place_is_drained() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let binary = pagetide_tests::victim::build(&scratch, "session");
    let pid = scratch.file("pid");
    let both = "\"$0\" idle 40 > /dev/null & echo $! > \"$1\"; exec \"$0\" family 40 0";
    let argv = ["/bin/sh".into(), "-c".into(), both.into(), binary.into(), pid.clone().into()];
    let run = Steered::program(scratch, argv, BUDGET, &[]);
    let ((one, one_text), (two, two_text)) = (first(&run), directory(&run, "two"));
    run.tell(&["swapon", &format!("{two_text}:256M")]);
    run.wait_until("filling the first place", || run.used_bytes(&one) > 48 * MIB);
    run.tell(&["swapoff", &one_text, "--no-wait"]);
    let pid = std::fs::read_to_string(pid).expect("the shell has written it");
    let pid = rustix::process::Pid::from_raw(pid.trim().parse().expect("a number")).expect("no process is 0");
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("it is ours");
    run.wait_until("draining", || run.place(&one).is_none());
    expect_closed(&run, &one);
    run.wait_until("forgetting who was killed", || run.used_bytes(&two) < 48 * MIB);
    assert!(run.used_bytes(&two) > 16 * MIB, "{}", run.stat());
    run.expect_good_end();
}

/// Shares grow when they are needed: what a process does not have yet counts as room.
#[test]
fn a_swapoff_that_fits_into_memory_is_not_refused_to_a_family() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let run = Steered::family(24, 3, BUDGET, &[]);
    let ((one, one_text), (_, two_text)) = (first(&run), directory(&run, "two"));
    run.wait_until("filling the first place", || run.used_bytes(&one) > 32 * MIB);
    run.tell(&["swapon", &format!("{two_text}:1M")]);
    run.tell(&["memory", "192M"]);
    run.tell(&["swapoff", &one_text]);
    expect_closed(&run, &one);
    run.expect_good_end();
}

#[test]
fn a_swapoff_is_stopped_and_begun_again_and_told_of_meanwhile() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let run = Steered::family(40, 0, BUDGET, &[]);
    let ((one, one_text), (_, two_text)) = (first(&run), directory(&run, "two"));
    run.tell(&["swapon", &format!("{two_text}:256M")]);
    run.wait_until("filling the first place", || run.used_bytes(&one) > 16 * MIB);
    for _ in 0..3 {
        run.tell(&["swapoff", &one_text, "--no-wait"]);
        run.tell(&["swapoff", &one_text, "--stop"]);
        assert_eq!(run.place(&one).expect("it is on")["state"], "open");
    }
    run.expect_refusal(&["swapoff", &one_text, "--stop"], &["it is not being emptied"]);
    assert!(run.tell(&["swapoff", &one_text]).contains("empty, and forgotten"));
    expect_closed(&run, &one);
    run.expect_good_end();
}

#[test]
fn whoever_stopped_waiting_for_a_swapoff_waits_again_whatever_he_calls_the_place() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let run = Steered::family(40, 0, BUDGET, &[]);
    let ((one, one_text), (_, two_text)) = (first(&run), directory(&run, "two"));
    run.tell(&["swapon", &format!("{two_text}:256M")]);
    run.wait_until("filling the first place", || run.used_bytes(&one) > 16 * MIB);
    let link = run.scratch().file("link");
    std::os::unix::fs::symlink(&one, &link).expect("our own directory");
    let link = link.to_str().expect("UTF-8");
    let program = i32::try_from(run.stat()["main_pid"].as_u64().expect("a number")).expect("a process number");
    let program = Pid::from_raw(program).expect("a process number");
    // Stopped, it empties nothing.
    kill_process(program, Signal::STOP).expect("it is ours");
    run.tell(&["swapoff", &one_text, "--no-wait"]);
    assert!(run.tell(&["swapoff", link, "--no-wait"]).contains("it is being emptied"));
    run.expect_refusal(&["swapoff", &one_text, "--mode", "lookup"], &["already, with other statistics"]);
    kill_process(program, Signal::CONT).expect("it is ours");
    run.tell(&["swapoff", &one_text, "--stop"]);
    assert!(run.tell(&["swapoff", link]).contains("empty, and forgotten"));
    assert!(run.place(&one).is_none(), "{}", run.stat());
    run.expect_good_end();
}

/// Once it was: a setting that every process had refused was that of those that started later.
#[test]
fn a_setting_that_is_refused_is_not_told_to_programs_that_start_later() {
    if !need::has(&[Feature::Uffd, Feature::Tool("python3")]) {
        return;
    }
    let _turn = serial::turn();
    let pages = "memory = bytearray(b'x') * (64 << 20)
for value in range(8):
    for at in range(0, len(memory), 4096):
        memory[at] = value";
    let waits = "trap 'on=1' TERM; echo steered; while [ -z \"$on\" ]; do sleep 0.05; done; python3 -c \"$0\"; echo ok";
    let run = Steered::program(Scratch::new(), ["/bin/sh", "-c", waits, pages].map(Into::into), BUDGET, &[]);
    run.expect_refusal(&["set", "sample=none"], &["chosen when"]);
    let (scratch, _) = run.end_and_keep("ok\n");
    let stats = Stats::read(&scratch.file("stats.json"));
    assert!(stats.counter("pt_sampled") > 0, "accesses are sampled as ever");
}

/// What the kernel's swapoff taught its statistics from 5.1 to 5.7, since 6.18, and between: windows of 2, of 1 and 2 in turn, and of 8. (A
/// disk that rotates has the windows of neighbouring slots, which here are those of neighbouring pages.)
#[test]
fn swapoff_of_a_running_program_teaches_readahead_what_its_mode_says() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    for (mode, most, hits) in
        [("no-lookup", "pt_ra_window_2", false), ("lookup", "", false), ("lookup-stats", "pt_ra_window_8", true)]
    {
        let settings = ["--set", "readahead=vma", "--set", &format!("swapoff={mode}")];
        let run = Steered::idle(48, BUDGET, &settings);
        let ((one, one_text), (_, two_text)) = (first(&run), directory(&run, "two"));
        run.tell(&["swapon", &format!("{two_text}:1M")]);
        run.tell(&["memory", "96M"]);
        let pages = run.used_bytes(&one) / 4096;
        assert!(pages > 7000, "{}", run.stat());
        let names = ["pt_ra_window_1", "pt_ra_window_2", "pt_ra_window_4", "pt_ra_window_8", "swap_ra", "swap_ra_hit"];
        let before = names.map(|name| run.counter(name));
        run.tell(&["swapoff", &one_text]);
        expect_closed(&run, &one);
        let counted: Vec<u64> = names.iter().zip(before).map(|(name, before)| run.counter(name) - before).collect();
        let windows: u64 = counted[..4].iter().sum();
        let share = |name: &str| counted[names.iter().position(|known| *known == name).expect("known")] * 100 / windows;
        if most.is_empty() {
            assert!(share("pt_ra_window_1") > 25 && share("pt_ra_window_2") > 25, "{mode}: {names:?} {counted:?}");
        } else {
            assert!(share(most) > 80, "{mode}: {names:?} {counted:?}");
        }
        assert_eq!(counted[5] * 100 > counted[4] * 90, hits, "{mode}: {names:?} {counted:?}");
        assert!(run.counter("pt_swapoff_in") >= pages, "{mode}");
        run.expect_good_end();
    }
}

#[test]
fn a_budget_goes_to_eight_times_and_to_half_of_what_it_was() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let run = Steered::family(160, 0, BUDGET, &[]);
    let resident = || run.stat()["resident_bytes"].as_u64().expect("a number");
    run.tell(&["memory", "128M"]);
    run.wait_until("growing", || resident() > 110 * MIB);
    run.tell(&["memory", "8M"]);
    run.wait_until("shrinking", || resident() < 8 * MIB + 8 * MIB / 50 + 8 * MIB);
    run.expect_refusal(&["memory", "1M"], &["minimum of 8 MiB"]);
    run.expect_refusal(&["memory", "1000G"], &["the machine has"]);
    run.expect_good_end();
}

#[test]
fn a_budget_under_what_cannot_be_paged_out_is_refused() {
    if !need::has(&[Feature::Uffd, Feature::Tool("python3")]) {
        return;
    }
    let _turn = serial::turn();
    let locks = "import ctypes, mmap, signal
size = 24 << 20
locked = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
at = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(locked)))
assert ctypes.CDLL(None).mlock(at, ctypes.c_size_t(size)) == 0
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
memory = bytearray(b'x') * (96 << 20)
print('steered', flush=True)
signal.sigwait([signal.SIGTERM])
print('ok')";
    let scratch = Scratch::new();
    let run = Steered::program(scratch, ["python3", "-c", locks].map(Into::into), 4 * BUDGET, &[]);
    run.expect_refusal(&["memory", "20M"], &["20 MiB are less than the", "cannot be paged out"]);
    run.tell(&["memory", "48M"]);
    run.expect_good_end();
}

/// Programs inherit an environment that says what the budget was when the run began.
#[test]
fn a_program_that_starts_later_hears_of_the_budget_of_its_time() {
    if !need::has(&[Feature::Uffd, Feature::Tool("python3")]) {
        return;
    }
    let _turn = serial::turn();
    // So much more than three quarters of the smaller budget is not to be locked. (It hears a moment after it has begun.)
    let locks = "import ctypes, mmap, sys, time
size = 24 << 20
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
at = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
libc, size = ctypes.CDLL(None), ctypes.c_size_t(size)
for _ in range(400):
    answer = libc.mlock(at, size)
    if answer == int(sys.argv[1]):
        break
    libc.munlock(at, size)
    time.sleep(0.05)
print('locked', answer)";
    let waits =
        "trap 'on=1' TERM; echo steered; while [ -z \"$on\" ]; do sleep 0.05; done; python3 -c \"$0\" \"$1\"; echo ok";
    for (first, then, answer) in [("16M", "256M", "0"), ("256M", "16M", "-1")] {
        let scratch = Scratch::new();
        let argv = ["/bin/sh", "-c", waits, locks, answer].map(Into::into);
        let budget = if first == "16M" { BUDGET } else { 16 * BUDGET };
        let run = Steered::program(scratch, argv, budget, &[]);
        run.tell(&["memory", then]);
        let told = run.end_with(&format!("locked {answer}\nok\n"));
        assert!(!told.contains("cannot be paged"), "{told}");
    }
}

#[test]
fn knobs_change_while_it_works_and_paging_out_is_paused() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let run = Steered::family(32, 1, BUDGET, &[]);
    run.tell(&["set", "page-cluster=0"]);
    run.tell(&["set", "swapoff=lookup-stats"]);
    run.expect_refusal(&["set", "page-cluster=99"], &["is not one of"]);
    run.expect_refusal(&["set", "swapiness=1"], &["did you mean"]);
    run.expect_refusal(&["set", "nonsense=1"], &["no setting `nonsense`\n", "pagetide knobs"]);
    run.expect_refusal(&["set", "io=bogus"], &["bogus: it is auto"]);
    run.tell(&["set", "page-cluster=0 "]);
    for fixed in ["sample=none", "profile=linux-6.18", "io=threads", "shares=equal"] {
        run.expect_refusal(&["set", fixed], &["chosen when"]);
    }
    let resident = || run.stat()["resident_bytes"].as_u64().expect("a number");
    run.tell(&["pause"]);
    run.wait_until("exceeding the budget", || resident() > 30 * MIB);
    run.tell(&["resume"]);
    run.wait_until("keeping to the budget", || resident() < BUDGET + BUDGET / 50 + 8 * MIB);
    run.expect_good_end();
}

#[test]
fn memory_is_paged_out_by_order_and_comes_back_when_it_is_touched() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let run = Steered::idle(64, 2 * BUDGET, &[]);
    let resident = || run.stat()["resident_bytes"].as_u64().expect("a number");
    let before = resident();
    assert!(before > BUDGET, "{before} bytes are resident");
    run.expect_refusal(&["page-out", "100"], &["less than a page"]);
    run.tell(&["page-out", "8M"]);
    run.wait_until("paging out by order", || resident() <= before - 7 * MIB);
    run.tell(&["pause"]);
    run.expect_refusal(&["page-out", "8M"], &["paused", "resume"]);
    run.tell(&["resume"]);
    // More than there is: what a process needs stays, and the order ends.
    run.tell(&["page-out", "1G"]);
    run.wait_until("paging all out", || resident() < 10 * MIB);
    run.expect_good_end();
}

#[test]
fn places_that_cannot_be_are_refused_by_name_and_nothing_changes() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let run = Steered::family(32, 0, BUDGET, &[]);
    let ((_, one_text), (_, two_text)) = (first(&run), directory(&run, "two"));
    run.expect_refusal(&["swapon", &one_text], &["swaps there already"]);
    run.expect_refusal(&["swapon", &format!("{two_text}:900000G")], &["MiB are asked for", "stay free"]);
    let file = run.scratch().file("a-file");
    std::fs::write(&file, "not a page").expect("our own directory");
    let file_text = file.to_str().expect("UTF-8");
    for (place, why) in [
        ("/dev/shm", "it lies in memory (tmpfs)"),
        ("/nonexistent/at/all", "there is no such directory"),
        ("/nonexistent", "there is no such directory"),
        (file_text, "it is neither a directory nor a block device"),
    ] {
        run.expect_refusal(&["swapon", place], &[&format!("{NAME}: {place}: {why}")]);
    }
    assert_eq!(std::fs::read(&file).expect("it is there"), b"not a page");
    run.expect_refusal(&["swapoff", &two_text], &["no such swap place"]);
    run.expect_refusal(&["swapoff", &one_text], &["it is the only place"]);
    run.tell(&["swapon", &format!("{two_text}:1M")]);
    run.expect_refusal(&["swapoff", &one_text], &["MiB are there", "MiB are free"]);
    let nobody = run.command(&["ctl", "nobody", "swapoff", &one_text]).output().expect("pagetide starts");
    assert_eq!(nobody.status.code(), Some(1), "{nobody:?}");
    run.expect_good_end();
}

#[test]
fn who_gives_orders_may_be_killed_at_any_moment() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let run = Steered::family(32, 1, BUDGET, &[]);
    let ((one, one_text), (two, two_text)) = (first(&run), directory(&run, "two"));
    run.tell(&["swapon", &format!("{two_text}:256M")]);
    let orders: [&[&str]; 6] = [
        &["swapoff", &one_text],
        &["swapoff", &one_text, "--stop"],
        &["memory", "24M"],
        &["memory", "16M"],
        &["pause"],
        &["resume"],
    ];
    for round in 0..24 {
        let order = [&["ctl", NAME], orders[round % orders.len()]].concat();
        let call = run.command(&order).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut call = call.expect("pagetide starts");
        clock::pause(Duration::from_millis(u64::try_from(round).expect("few") / 3));
        call.kill().expect("it is ours");
        call.wait().expect("it was killed");
    }
    run.tell(&["resume"]);
    // Whether it was begun, stopped or neither.
    run.ctl(&["swapoff", &one_text, "--no-wait"]);
    run.wait_until("draining", || run.place(&one).is_none());
    expect_closed(&run, &one);
    assert!(run.place(&two).is_some());
    run.expect_good_end();
}

#[test]
fn an_order_to_a_run_that_ends_meanwhile_is_answered() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let run = Steered::family(32, 0, BUDGET, &[]);
    let ((_, one_text), (_, two_text)) = (first(&run), directory(&run, "two"));
    run.tell(&["swapon", &format!("{two_text}:256M")]);
    let mut drain: Command = run.command(&["ctl", NAME, "swapoff", &one_text]);
    let drain = drain.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("pagetide starts");
    run.expect_good_end();
    let ended = drain.wait_with_output().expect("it is ours");
    let told = String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned();
    assert!(["forgotten", "the run has ended", "no run"].iter().any(|word| told.contains(word)), "{told}");
}
