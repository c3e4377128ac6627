//! The session that pages for a tree of processes: who may talk to it, and what processes do to it without meaning to.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;

use pagetide_tests::need::{self, Feature};
use pagetide_tests::pagetide::PagetideRun;
use pagetide_tests::program::Program;
use pagetide_tests::scratch::Scratch;
use pagetide_tests::{MIB, serial, victim};

const BUDGET: u64 = 16 * MIB;

/// The victim's arguments.
fn session(scratch: &Scratch, arguments: &[&str]) -> Program {
    let binary = victim::build(scratch, "session");
    Program::new(std::iter::once(OsString::from(binary)).chain(arguments.iter().map(OsString::from)))
}

/// A run's sockets once had names: whoever called first was handed the page of shares and counters, the swap directory and
/// /dev/userfaultfd, and at a fork the child's memory.
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
    let ended = session.behind(both).directory("/".as_ref()).deadline_s(60).run(&scratch, "run");
    ended.expect_success().expect_no_process_left();
    assert!(ended.stdout().contains("ready\nok\n"), "{}", ended.report());
    assert!(ended.stdout().contains(", 0 messages, 0 descriptors"), "{}", ended.report());
    run.stats().expect_paging(8 * 256);
}
