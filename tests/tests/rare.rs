//! What few programs do to their memory, their CPU and their children, in both modes. Each case is a small program that passes natively;
//! a pager that does not think of it gives it wrong bytes, a hang, an end without need, or another answer.

use std::ffi::OsString;

use pagetide_tests::need::{self, Feature};
use pagetide_tests::pagetide::{FaultMode, PagetideRun};
use pagetide_tests::program::Program;
use pagetide_tests::scratch::Scratch;
use pagetide_tests::stats::Stats;
use pagetide_tests::{MIB, serial, victim};

const BUDGET: u64 = 16 * MIB;

/// One case with two and a half budgets of memory, which is right; what was said on standard error, and the statistics. None: it
/// cannot run here.
fn run_case(case: &str, mode: FaultMode) -> Option<(String, Stats)> {
    if !need::has(&[Feature::Uffd]) {
        return None;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let binary = victim::build(&scratch, "rare");
    let run = PagetideRun::new(&scratch, BUDGET).mode(mode);
    let argv = [OsString::from(binary), case.into(), "40".into()];
    let ended = run.wrap(&Program::new(argv).deadline_s(240)).run(&scratch, case);
    ended.expect_success();
    assert_eq!(ended.stdout(), format!("{case}: right\n"), "{}", ended.report());
    ended.expect_no_process_left();
    let stats = run.stats();
    stats.expect_laws().expect_paging(6 * 256);
    Some((ended.stderr(), stats))
}

fn expect_right(case: &str, mode: FaultMode) -> Option<String> {
    run_case(case, mode).map(|(said, stats)| {
        stats.expect_peak();
        said
    })
}

/// Linux unmaps for it without a message: what was mapped there next read as zero where the page before it had been zero.
#[test]
fn a_segment_that_takes_the_place_of_memory_leaves_nothing_of_it_in_both_modes() {
    for mode in [FaultMode::Thread, FaultMode::Signal] {
        expect_right("segment", mode);
        expect_right("segment-by-number", mode);
    }
}

/// Ours inherited that, and ended with the process: forked children, and in signal mode any.
#[test]
fn a_program_that_may_not_read_the_counter_of_its_cpu_is_served_in_both_modes() {
    for mode in [FaultMode::Thread, FaultMode::Signal] {
        expect_right("counter", mode);
    }
}

/// The frames of a child's pager had other rights than its memory, which could not leave: it waited for ever.
#[test]
fn memory_that_may_be_executed_because_it_may_be_read_is_paged_in_both_modes() {
    for mode in [FaultMode::Thread, FaultMode::Signal] {
        expect_right("execution", mode);
    }
}

/// A child that shares descriptors closed those of its parent's pager; one with another parent was never found.
#[test]
fn children_of_rare_kinds_see_every_byte_or_are_refused_in_both_modes() {
    if let Some(said) = expect_right("children", FaultMode::Signal) {
        assert!(said.contains("(clone) with CLONE_FILES is refused"), "{said}");
    }
    // A copy that is not announced is filled by its maker's agent, whole.
    if let Some((said, _)) = run_case("children", FaultMode::Thread) {
        assert!(!said.contains("refused"), "{said}");
    }
}

/// In signal mode the call holds what they lie on: with all that lies between, that was all memory there is.
#[test]
fn a_program_is_executed_with_thousands_of_arguments_inside_the_budget_in_both_modes() {
    for mode in [FaultMode::Thread, FaultMode::Signal] {
        if let Some((said, stats)) = run_case("arguments", mode) {
            assert!(!said.contains("134217"), "{said}");
            let peak = stats.number("peak_resident_bytes");
            assert!(peak < BUDGET + 3000 * 4096 + 16 * MIB, "{peak}");
        }
    }
}

/// They are copied, by a call that not every pipe knows with the word that says so: EOPNOTSUPP.
#[test]
fn pages_are_lent_to_a_pipe_and_taken_from_it_without_waiting_in_both_modes() {
    for mode in [FaultMode::Thread, FaultMode::Signal] {
        expect_right("lent", mode);
    }
}

/// In signal mode a handler of ours found itself told of its own accesses: the process ended.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_thread_that_is_told_of_unaligned_accesses_is_served_in_both_modes() {
    for mode in [FaultMode::Thread, FaultMode::Signal] {
        expect_right("alignment", mode);
    }
}

/// In signal mode they were taken for calls of 64 bits, where each number means something else.
#[cfg(target_arch = "x86_64")]
#[test]
fn calls_of_32_bits_from_64_bit_code_do_what_they_do_natively_or_are_refused_in_both_modes() {
    for mode in [FaultMode::Thread, FaultMode::Signal] {
        expect_right("interrupt", mode);
    }
}

/// Libraries of rings and of AIO are called past functions of ours of the same names, also those that only a plugin sees.
#[test]
fn a_plugin_finds_the_library_of_rings_that_only_it_has_loaded() {
    if !need::has(&[Feature::Uffd, Feature::Tool("python3"), Feature::Tool("cc")]) {
        return;
    }
    const SCRIPT: &str = "
import ctypes, os, subprocess
here = os.getcwd()
open('rings.c', 'w').write('''
int io_uring_queue_init(unsigned entries, void *ring, unsigned flags) { return entries + flags; }
int io_setup(int events, void *context) { return events + 1; }''')
open('plugin.c', 'w').write('''
int io_uring_queue_init(unsigned entries, void *ring, unsigned flags);
int io_setup(int events, void *context);
int both(void) { return 1000 * io_uring_queue_init(4, 0, 2) + io_setup(7, 0); }''')
def build(name, *rest):
    subprocess.check_call(['cc', '-shared', '-fPIC', '-o', name, *rest])
build('librings.so', 'rings.c')
build('plugin.so', 'plugin.c', '-L.', '-lrings', '-Wl,-rpath,' + here)
build('whole.so', 'plugin.c', 'rings.c')
print(*(ctypes.CDLL(here + '/' + name).both() for name in ['plugin.so', 'whole.so']))
";
    let _turn = serial::turn();
    for (mode, answer) in [(FaultMode::Thread, "6008 6008\n"), (FaultMode::Signal, "-38038 -38038\n")] {
        let scratch = Scratch::new();
        let run = PagetideRun::new(&scratch, 64 * MIB).mode(mode);
        let program = Program::new(["python3", "-c", SCRIPT]).directory(scratch.path());
        let ended = run.wrap(&program).run(&scratch, "run");
        ended.expect_success();
        assert_eq!(ended.stdout(), answer, "{}", ended.report());
    }
}

/// vmsplice wrote into a file, a filter's address where nothing is ended the program, and longer structures than were known of were EFAULT.
#[test]
fn what_names_nothing_is_an_error_and_long_structures_are_found_in_both_modes() {
    for mode in [FaultMode::Thread, FaultMode::Signal] {
        expect_right("errors", mode);
        expect_right("structures", mode);
    }
}

/// Ours sat at 3 to 9 where the hard limit was 1024: a shell's `exec 3>file` failed.
#[test]
fn a_program_with_few_descriptors_has_the_low_ones_in_both_modes() {
    for mode in [FaultMode::Thread, FaultMode::Signal] {
        expect_right("descriptors", mode);
    }
}

/// The supervisor is in the group: it passed on what had come already, and ended at what it did not know.
#[test]
fn a_signal_to_the_process_group_comes_once_and_ends_nothing_in_both_modes() {
    for mode in [FaultMode::Thread, FaultMode::Signal] {
        expect_right("group", mode);
    }
}
