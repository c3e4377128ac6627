//! Block devices as places to swap to: who may use them, what becomes of what is on them, and how the processes of a run share one.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

use pagetide_tests::loop_device::LoopDevice;
use pagetide_tests::need::{self, Feature};
use pagetide_tests::pagetide::{FaultMode, PagetideRun, binary};
use pagetide_tests::program::{Exit, Program};
use pagetide_tests::scratch::Scratch;
use pagetide_tests::steered::Steered;
use pagetide_tests::{MIB, nobody, serial, victim};

const BUDGET: u64 = 16 * MIB;

/// A device for the test, if it may make one.
fn has_device() -> bool {
    need::has(&[Feature::Uffd, Feature::Root, Feature::Tool("losetup"), Feature::Tool("mkfs.ext4")])
}

/// Opens a device as mount and mkfs do: nobody else uses it.
fn is_free(device: &Path) -> bool {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_EXCL).open(device).is_ok()
}

#[test]
fn a_family_swaps_to_a_device_and_leaves_it_as_a_swap_area() {
    if !has_device() {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let device = LoopDevice::new(&scratch, 256);
    device.tool("mkswap", &["--quiet"]);
    let (path, text) = (device.path().to_owned(), device.text());
    let run = Steered::family(24, 3, BUDGET, &["--swap", &format!("{text}::5")]);
    run.wait_until("swapping to the device", || run.used_bytes(&path) > 40 * MIB);
    assert_eq!(run.used_bytes(&run.scratch().file("swap")), 0, "{}", run.stat());
    assert!(!is_free(&path));
    let read = run.counter("pswpin");
    run.wait_until("paging", || run.counter("pswpin") > read + 20_000);
    assert!(run.tell(&["swapoff", &text]).contains("empty, and forgotten"));
    assert!(run.place(&path).is_none(), "{}", run.stat());
    assert!(is_free(&path), "mount and mkfs may have it");
    // What says that it is meant for swapping is still there.
    run.tell(&["swapon", &format!("{text}:64M:5")]);
    let link = run.scratch().file("link");
    std::os::unix::fs::symlink(&path, &link).expect("our own directory");
    run.expect_refusal(&["swapon", link.to_str().expect("UTF-8")], &["swaps there already"]);
    run.wait_until("swapping to its first part", || run.used_bytes(&path) > 40 * MIB);
    run.expect_good_end();
    assert!(is_free(&path));
}

#[test]
fn a_device_with_content_in_use_or_out_of_reach_is_refused_by_name() {
    if !has_device() {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let mut device = LoopDevice::new(&scratch, 64);
    let (path, text) = (device.path().to_owned(), device.text());
    let run = Steered::family(32, 0, BUDGET, &[]);
    let refused = |place: &str, parts: &[&str]| run.expect_refusal(&["swapon", place], parts);
    refused(&format!("{text}:65M"), &["65 MiB are asked for", "has 64 MiB"]);
    refused(&format!("{text}:2M"), &["2048 KiB are too small"]);
    device.tool("mkfs.ext4", &["-q"]);
    refused(&text, &["holds an ext2, ext3 or ext4 file system", "mkswap /dev/"]);
    let mounted = device.mount(&scratch, "mounted");
    refused(&text, &["in use"]);
    std::fs::write(mounted.join("kept"), "kept").expect("there is room");
    device.unmount(&mounted);
    device.tool("blockdev", &["--setro"]);
    refused(&text, &["read-only"]);
    device.tool("blockdev", &["--setrw"]);
    let mounted = device.mount(&scratch, "again");
    assert_eq!(std::fs::read(mounted.join("kept")).expect("nothing was written"), b"kept");
    device.unmount(&mounted);
    device.tool("mkswap", &["--quiet"]);
    // Another run has it.
    run.tell(&["swapon", &text]);
    let other = Scratch::new();
    let ended = PagetideRun::new(&other, BUDGET)
        .argument("--swap")
        .argument(&text)
        .wrap(&Program::new(["/bin/echo", "it ran"]))
        .run(&other, "other");
    ended.expect_exit(Exit::Code(3));
    assert!(ended.stderr().contains("in use") && ended.stderr().contains(&text), "{}", ended.report());
    assert_eq!(ended.stdout(), "", "{}", ended.report());
    run.tell(&["swapoff", &text]);
    assert!(is_free(&path));
    run.expect_good_end();
}

/// A device that belongs to who runs the program is enough.
#[test]
fn as_nobody_a_device_of_ones_own_is_swapped_to_and_no_other() {
    if !has_device() || !need::has(&[Feature::Tool("setpriv")]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let device = LoopDevice::new(&scratch, 128);
    let program = victim::build(&scratch, "session");
    let run = nobody::pagetide(&scratch, BUDGET).argument("--swap").argument(format!("{}::5", device.text()));
    let argv = [OsString::from(program), "forks".into(), "40".into(), "2".into()];
    let as_nobody = || nobody::program(&run.wrap(&Program::new(argv.clone()))).directory("/".as_ref()).deadline_s(60);
    let refused = as_nobody().run(&scratch, "others");
    refused.expect_exit(Exit::Code(3));
    assert!(refused.stderr().contains("this user may not write the device"), "{}", refused.report());
    let before = written(&scratch);
    let status = Command::new("chown").arg("nobody").arg(device.path()).status().expect("chown starts");
    assert!(status.success());
    let ended = as_nobody().run(&scratch, "own");
    let status = Command::new("chown").arg("root").arg(device.path()).status().expect("chown starts");
    assert!(status.success());
    ended.expect_success();
    assert!(written(&scratch) > before + 16 * MIB, "{}", ended.report());
}

/// A copy that nobody has announced is filled in by its parent's agent, which read its pages from where they would lie in a file.
#[test]
fn copies_that_have_no_agent_find_what_lies_on_a_device() {
    if !has_device() {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let device = LoopDevice::new(&scratch, 128);
    let argv = [OsString::from(victim::build(&scratch, "session")), "raw".into(), "24".into(), "3".into()];
    let run = PagetideRun::new(&scratch, 12 * MIB).argument("--swap").argument(format!("{}::5", device.text()));
    let ended = run.wrap(&Program::new(argv)).deadline_s(60).run(&scratch, "run");
    ended.expect_success();
    assert!(ended.stdout().ends_with("ok\n"), "{}", ended.report());
    assert!(written(&scratch) > 8 * MIB, "{}", ended.report());
}

/// Bytes of the device's file that have ever been written.
fn written(scratch: &Scratch) -> u64 {
    use std::os::unix::fs::MetadataExt;
    File::open(scratch.file("device.image")).and_then(|file| file.metadata()).map_or(0, |of| of.blocks() * 512)
}

/// One after the other the processes need twice what the device has.
#[test]
fn what_a_process_had_of_a_device_comes_back_when_it_has_ended_or_was_killed() {
    if !has_device() {
        return;
    }
    let _turn = serial::turn();
    for mode in [FaultMode::Thread, FaultMode::Signal] {
        let scratch = Scratch::new();
        let device = LoopDevice::new(&scratch, 160);
        let program = victim::build(&scratch, "session");
        let script = "for turn in 1 2 3; do \"$0\" forks 24 1 || exit 1; \
                      \"$0\" idle 40 0 & sleep 0.5; kill -9 $!; wait $! 2>/dev/null; done; echo all";
        let argv = [OsString::from("/bin/sh"), "-c".into(), script.into(), program.into()];
        // Whatever is written goes there: what has no room ends the process.
        let mut run = vec![binary().into_os_string(), "run".into(), "--memory".into(), "16M".into(), "--swap".into()];
        run.push(device.text().into());
        let name = if mode == FaultMode::Thread { "thread" } else { "signal" };
        run.extend(["--fault-mode".into(), name.into(), "--".into()]);
        let ended = Program::new(run.into_iter().chain(argv)).deadline_s(90).run(&scratch, name);
        ended.expect_success().expect_no_process_left();
        assert!(ended.stdout().ends_with("all\n"), "{}", ended.report());
        assert!(is_free(device.path()));
    }
}

#[test]
fn a_device_that_is_full_is_passed_over_and_told_of() {
    if !has_device() {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let device = LoopDevice::new(&scratch, 18);
    let run = Steered::family(24, 2, BUDGET, &["--swap", &format!("{}::5", device.text())]);
    let elsewhere = run.scratch().file("swap");
    run.wait_until("going on elsewhere", || run.used_bytes(&elsewhere) > 16 * MIB);
    run.wait_until("being full", || run.place(device.path()).is_some_and(|place| place["state"] == "full"));
    let read = run.counter("pswpin");
    run.wait_until("paging", || run.counter("pswpin") > read + 20_000);
    let told = run.end_well();
    assert_eq!(told.matches("the device is full: processes get no more of it").count(), 1, "{told}");
}

/// Nobody asked for it: what is written there would be lost.
#[test]
fn a_device_that_fails_is_closed_and_drained_by_itself_while_the_program_works() {
    if !has_device() {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let device = LoopDevice::new(&scratch, 128);
    let run = Steered::family(48, 0, BUDGET, &["--swap", &format!("{}::5", device.text())]);
    let elsewhere = run.scratch().file("swap");
    run.wait_until("swapping to the device", || run.used_bytes(device.path()) > 24 * MIB);
    device.tool("blockdev", &["--setro"]);
    run.wait_until("being drained", || run.place(device.path()).is_none());
    assert!(is_free_for_reading(device.path()), "{}", run.stat());
    assert!(run.used_bytes(&elsewhere) > 16 * MIB, "{}", run.stat());
    let told = run.end_well();
    let words = ["reads or writes fail: nothing more is written there", "nothing is swapped there any more"];
    assert!(words.iter().all(|word| told.contains(word)), "{told}");
}

fn is_free_for_reading(device: &Path) -> bool {
    OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(device).is_ok()
}

/// Each of eleven processes would keep 16 MiB ahead: what ten that sleep do not use is the one's that works.
#[test]
fn room_that_processes_keep_ahead_is_there_for_one_that_needs_it() {
    if !has_device() {
        return;
    }
    let _turn = serial::turn();
    for mode in [FaultMode::Thread, FaultMode::Signal] {
        let scratch = Scratch::new();
        let device = LoopDevice::new(&scratch, 256);
        let program = victim::build(&scratch, "session");
        let script = "start() { \"$0\" idle $2 0 > $1 & pids=\"$pids $!\"; \
                      until grep -q steered $1; do kill -0 $! || { kill $pids; exit 1; }; sleep 0.1; done; }; \
                      for small in 0 1 2 3 4 5 6 7 8 9; do start small$small 8; done; start large 100; \
                      kill $pids; for pid in $pids; do wait $pid || exit 1; done; echo all";
        let argv = [OsString::from("/bin/bash"), "-c".into(), script.into(), program.into()];
        let mut run = vec![binary().into_os_string(), "run".into(), "--memory".into(), "40M".into(), "--swap".into()];
        run.push(device.text().into());
        let name = if mode == FaultMode::Thread { "thread" } else { "signal" };
        run.extend(["--fault-mode".into(), name.into(), "--".into()]);
        let program = Program::new(run.into_iter().chain(argv)).directory(scratch.path()).deadline_s(90);
        let ended = program.run(&scratch, name);
        ended.expect_success().expect_no_process_left();
        assert!(ended.stdout().ends_with("all\n") && !ended.stderr().contains("full"), "{}", ended.report());
        assert!(is_free(device.path()));
    }
}
