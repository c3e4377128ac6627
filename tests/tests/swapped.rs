//! What is said of a run's memory in swap space is what is there: of forked processes, too, whose parents keep slots for them.

use std::path::Path;

use pagetide_tests::need::{self, Feature};
use pagetide_tests::scratch::Scratch;
use pagetide_tests::sources::source;
use pagetide_tests::steered::Steered;
use pagetide_tests::{MIB, serial};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

const BUDGET: u64 = 20 * MIB;
/// What the program fills, and each third of it that one process writes to after the fork.
const FILLED: u64 = 60 * MIB;
const THIRD: u64 = FILLED / 3;
/// What an interpreter has besides is less, and so is what its counting of references copies after a fork.
const INTERPRETER: u64 = 14 * MIB;

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("no number '{key}' in {value}"))
}

/// Resident and swapped bytes of each process that is paged, the first one first.
fn processes(stat: &Value) -> Vec<(u64, u64)> {
    let mut told: Vec<&Value> = stat["processes"].as_array().expect("a list").iter().collect();
    told.sort_by_key(|process| number(process, "pid"));
    told.iter().map(|process| (number(process, "resident_bytes"), number(process, "swapped_bytes"))).collect()
}

/// It has all of what was filled: what is not in memory is in swap space, and nothing besides.
fn has_all_once((resident, swapped): (u64, u64)) -> bool {
    resident + swapped >= FILLED && swapped <= FILLED + INTERPRETER
}

fn stands(run: &Steered, place: &Path) -> [u64; 2] {
    let place = run.place(place).expect("it is on");
    ["used_bytes", "size_bytes"].map(|key| number(&place, key))
}

fn what_is_swapped_counts_once(mode: &str) {
    if !need::has(&[Feature::Uffd, Feature::Tool("python3")]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let argv = ["python3".into(), source("family.py").into(), (FILLED / MIB).to_string().into()];
    let run = Steered::program(scratch, argv, BUDGET, &["--fault-mode", mode]);
    let place = run.scratch().file("swap");

    // Parent, a child that has written, and one that only sleeps.
    let is_settled = || processes(&run.stat()).iter().filter(|&&process| has_all_once(process)).count() == 3;
    run.wait_until("each process having its memory once", is_settled);
    let stat = run.stat();
    let swapped: u64 = processes(&stat).iter().map(|&(_, swapped)| swapped).sum();
    assert!(number(&stat, "swapped_bytes").abs_diff(swapped) < MIB, "{stat}");
    // What was filled and what the parent and one child have written since; the rest is the same slots for all.
    let [used, size] = stands(&run, &place);
    let written = FILLED + 2 * THIRD;
    assert!((written - BUDGET..=written + 3 * INTERPRETER).contains(&used), "{stat}");
    assert!(used <= size, "{stat}");

    // One child becomes another program and the other one ends: what was kept for them is free.
    let parent = stat["processes"].as_array().expect("a list").iter().map(|process| number(process, "pid")).min();
    let parent = Pid::from_raw(i32::try_from(parent.expect("processes")).expect("a process number")).expect("not 0");
    kill_process(parent, Signal::USR1).expect("it is ours");
    let is_parent_alone = || {
        let (swapped, [used, size]) = (number(&run.stat(), "swapped_bytes"), stands(&run, &place));
        swapped <= FILLED + INTERPRETER && (swapped..=FILLED + INTERPRETER).contains(&used) && used <= size
    };
    run.wait_until("the children's memory going", is_parent_alone);
    assert!(has_all_once(processes(&run.stat())[0]), "{}", run.stat());
    run.expect_good_end();
}

#[test]
fn what_forked_processes_have_swapped_counts_once() {
    what_is_swapped_counts_once("thread");
}

#[test]
fn what_forked_processes_have_swapped_counts_once_in_signal_mode() {
    what_is_swapped_counts_once("signal");
}
