//! A recorded run, told to a fresh core: the same effects come out, for each process; a record that is not whole is refused.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use pagetide_tests::need::{self, Feature, source_directory};
use pagetide_tests::pagetide::{PagetideRun, binary};
use pagetide_tests::program::Program;
use pagetide_tests::scratch::Scratch;
use pagetide_tests::{MIB, serial, victim};

/// Runs `program` in 32 MiB with records, which are given back.
fn recorded(scratch: &Scratch, program: &Program) -> Vec<PathBuf> {
    let directory = scratch.directory("records");
    let run = PagetideRun::new(scratch, 32 * MIB).argument("--record").argument(directory.join("run"));
    run.wrap(program).deadline_s(120).run(scratch, "recorded").expect_success();
    let entries = std::fs::read_dir(&directory).expect("it was made above");
    entries.map(|entry| entry.expect("it can be read").path()).collect()
}

fn rerun(record: &Path) -> Output {
    Command::new(binary()).args(["sim", "rerun", "--json"]).arg(record).output().expect("pagetide starts")
}

fn expect_same(record: &Path) {
    let output = rerun(record);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let value: serde_json::Value = serde_json::from_str(&text).expect("it prints JSON");
    assert!(value["difference"].is_null() && value["full"] == false, "{text}");
    assert!(value["events"].as_u64() > Some(1_000) && value["effects"].as_u64() > Some(1_000), "{text}");
}

#[test]
fn a_recorded_run_decides_the_same_again_and_damage_is_named() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let program =
        Program::new([victim::build(&scratch, "threads").display().to_string().as_str(), "128", "8", "1", "1"]);
    let records = recorded(&scratch, &program);
    assert_eq!(records.len(), 1, "one process was managed");
    expect_same(&records[0]);

    let whole = std::fs::read(&records[0]).expect("it was read a moment ago");
    let mut damaged = whole.clone();
    damaged[20_000] ^= 4;
    for (bytes, part) in [(&whole[..20_000], "cut short"), (&damaged[..], "damaged"), (&whole[1..], "not a record")] {
        let output = rerun(&scratch.write("broken", bytes));
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains(part) && told.contains("byte "), "{told}");
    }
}

#[test]
fn forked_processes_have_records_of_their_own_that_decide_the_same() {
    if !need::has(&[Feature::Uffd, Feature::Tool("python3")]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let source = source_directory().join("programs/forks.py").display().to_string();
    let records = recorded(&scratch, &Program::new(["python3", &source, "60"]).env("PYTHONHASHSEED", "0"));
    assert!(records.len() > 1, "{records:?}");
    records.iter().for_each(|record| expect_same(record));
}
