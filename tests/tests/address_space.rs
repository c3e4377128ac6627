//! What a pager must know of mappings, threads, locks and limits beside their addresses. Each case is a small program that passes
//! natively; a pager without that knowledge gives it wrong bytes, a hang, an end without need, or another answer.

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
fn run_case(case: &str) -> Option<(String, Stats)> {
    run_case_in(case, FaultMode::Default)
}

fn run_case_in(case: &str, mode: FaultMode) -> Option<(String, Stats)> {
    run_case_within(case, mode, BUDGET)
}

fn run_case_within(case: &str, mode: FaultMode, budget: u64) -> Option<(String, Stats)> {
    if !need::has(&[Feature::Uffd]) {
        return None;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let binary = victim::build(&scratch, "space");
    let run = PagetideRun::new(&scratch, budget).mode(mode);
    let ballast = (budget * 5 / 2 / MIB).to_string();
    let argv = [OsString::from(binary), case.into(), ballast.into()];
    // Restartable sequences keep a thread's control block in use, and would hide what happens where they are not to be had.
    let program = Program::new(argv).env("GLIBC_TUNABLES", "glibc.pthread.rseq=0").deadline_s(240);
    let ended = run.wrap(&program).run(&scratch, case);
    ended.expect_success();
    assert_eq!(ended.stdout(), format!("{case}: right\n"), "{}", ended.report());
    ended.expect_no_process_left();
    let stats = run.stats();
    stats.expect_laws();
    Some((ended.stderr(), stats))
}

fn expect_right(case: &str) {
    if let Some((_, stats)) = run_case(case) {
        stats.expect_paging(6 * 256).expect_peak();
    }
}

/// Cases that are right and page in each fault mode; the statistics of the runs. Empty: they cannot run here.
fn paged_in_both_modes(cases: &[&str]) -> Vec<Stats> {
    let mut runs = Vec::new();
    for mode in [FaultMode::Thread, FaultMode::Signal] {
        for case in cases {
            if let Some((_, stats)) = run_case_in(case, mode) {
                stats.expect_paging(6 * 256);
                runs.push(stats);
            }
        }
    }
    runs
}

/// Right, beyond the budget by what cannot be paged.
fn expect_right_beyond_the_budget(case: &str) {
    if let Some((_, stats)) = run_case(case) {
        stats.expect_paging(256);
    }
}

#[test]
fn memory_to_be_wiped_at_a_fork_reads_as_zero_in_the_child() {
    expect_right("wipe-on-fork");
}

#[test]
fn memory_to_be_wiped_reads_as_zero_in_a_child_that_was_not_announced() {
    // All of it is filled into the child at once.
    expect_right_beyond_the_budget("wipe-on-clone");
}

/// An agent that looks after the copy what the child gets, while another thread changes that, gave the child what was to be wiped.
#[test]
fn memory_that_is_to_be_copied_again_in_the_moment_of_a_fork_reads_as_zero_in_the_child() {
    expect_right("wiped-beside-a-fork");
}

#[test]
fn guard_pages_fault_and_read_as_zero_once_removed() {
    expect_right("guard-pages");
    expect_right("guard-pages-by-syscall");
    expect_right("guard-pages-by-process");
}

/// A fork between the steps of a guard must not give the child the guard, and under it what was there before.
#[test]
fn a_child_finds_a_guard_that_is_made_beside_the_fork_or_what_was_there_before() {
    expect_right("guards-and-forks");
}

/// An agent that looked now and then found 10 MiB filled beyond a budget of 16.
#[test]
fn memory_that_is_mapped_while_others_page_keeps_to_the_budget() {
    expect_right("fresh-memory");
}

/// What a process was let fill counts against others: a JVM had its agent early, before it had written what is taken when it starts.
#[test]
fn memory_that_is_mapped_and_never_filled_starts_no_agent() {
    if let Some((_, stats)) = run_case("before-mapped-only") {
        assert_eq!(stats.number("managed_processes"), 0, "{}", stats.text());
    }
}

/// Who waits for a page is not woken when its place is unmapped, and was forgotten with it: it waited for ever, on a busy machine in one run
/// of four.
#[test]
fn memory_that_is_replaced_while_others_wait_for_its_pages_is_found_in_both_modes() {
    paged_in_both_modes(&["replaced-under-readers"]);
}

/// The kernel tells of an end that does not come: all of it read as zero.
#[test]
fn memory_that_a_call_could_not_unmap_keeps_its_bytes_in_both_modes() {
    paged_in_both_modes(&["mapped-in-vain", "sealed-in-vain", "sealed-in-vain-in-copies"]);
}

/// It had the old bytes of what had made room, whose end was taken for one that did not come.
#[test]
fn what_memory_grows_by_as_it_moves_over_other_memory_is_empty_in_both_modes() {
    paged_in_both_modes(&["moved-over", "moved-over-in-copies"]);
}

/// The threads of the process could not be listed, and the process was killed; its children, too.
#[test]
fn a_program_that_shuts_itself_in_pages_and_forks_in_both_modes() {
    paged_in_both_modes(&["behind-rules", "before-behind-rules"]);
}

/// Our own memory began at such a place, where a program's MAP_FIXED replaced it.
#[test]
fn round_addresses_are_the_programs_in_both_modes() {
    for mode in [FaultMode::Thread, FaultMode::Signal] {
        run_case_in("round-places", mode);
    }
}

/// The supervisor looked some milliseconds after they had begun: two budgets were resident.
#[test]
fn memory_that_the_first_threads_fill_keeps_to_the_budget_in_both_modes() {
    for stats in paged_in_both_modes(&["before-first-threads"]) {
        stats.expect_peak();
    }
}

#[test]
fn pages_lent_to_a_pipe_by_number_arrive_as_they_were() {
    expect_right("raw-vmsplice");
}

#[test]
fn zero_copy_of_a_socket_asked_for_by_number_is_refused_or_right() {
    expect_right("raw-zerocopy");
}

#[test]
fn what_a_ring_sends_without_copying_arrives_as_it_was() {
    expect_right("ring-send-zc");
}

#[test]
fn a_process_that_shares_memory_never_outlives_its_pager() {
    if let Some((said, _)) = run_case("outlives-its-maker") {
        assert!(said.contains("clone(CLONE_VM)"), "refused without a word: {said}");
    }
}

#[test]
fn thousands_of_short_threads_are_joined() {
    expect_right("short-threads");
}

/// The kernel clears a word at a thread's end and waits for no page: where the word is out, pthread_join waits for ever.
#[test]
fn threads_that_slept_for_long_are_joined() {
    expect_right("sleeping-threads");
}

#[test]
fn threads_end_by_exit_and_cancellation() {
    expect_right("unwinding-threads");
}

#[test]
fn the_robust_mutexes_of_a_thread_that_ends_are_handed_on() {
    expect_right("robust-mutexes");
}

/// The child's agent and the supervisor hardly had the CPU: the child's first thread waited for them there without sleeping.
#[test]
fn a_real_time_process_on_one_cpu_forks_in_both_modes() {
    for stats in paged_in_both_modes(&["real-time-fork"]) {
        stats.expect_peak();
    }
}

#[test]
fn priority_inheriting_locks_work_where_their_words_were_out() {
    expect_right("pi-futex");
    expect_right("pi-mutex");
}

/// Each child has a share of 128 pages, and 240 that are never taken: no fault had room, and the run hung.
#[test]
fn children_with_more_words_for_the_kernel_than_their_share_go_on() {
    expect_right_beyond_the_budget("pi-words-in-children");
}

/// What moves a waiter to a lock, and what changes a second word, found EFAULT where that word was out; and a word that is no memory
/// ended the program.
#[test]
fn futexes_that_are_moved_to_a_lock_or_change_a_second_word_work_where_it_was_out() {
    expect_right("pi-requeue");
    expect_right("wake-op");
}

#[test]
fn a_program_may_lock_all_its_memory_that_fits() {
    if let Some((said, stats)) = run_case("lock-all") {
        stats.expect_paging(6 * 256).expect_peak();
        // Before that, all that does not fit.
        assert_eq!(said.matches("more memory is to be locked").count(), 1, "{said}");
    }
}

#[test]
fn more_locked_memory_than_the_budget_carries_is_refused_when_it_is_asked_for() {
    expect_right_beyond_the_budget("lock-much");
    // First of all, before the runtime has begun to look.
    if let Some((said, _)) = run_case("lock-first") {
        assert!(!said.contains("cannot be paged out"), "{said}");
    }
}

#[test]
fn limits_of_the_program_are_not_used_up_by_the_runtime() {
    for case in ["limit-of-addresses", "limit-of-data", "limit-of-files", "limit-of-file-sizes"] {
        expect_right(case);
    }
}

#[test]
fn a_program_may_take_a_root_without_proc() {
    expect_right("without-proc");
}

/// A browser's sandbox does so. Each look at what is there says ESRCH, where a root without /proc says ENOENT: both modes ended the process.
#[test]
fn a_program_may_take_a_directory_of_an_ended_process_as_its_root_in_both_modes() {
    if !need::has(&[Feature::Root]) {
        return;
    }
    for stats in paged_in_both_modes(&["before-ended-root", "ended-root"]) {
        stats.expect_peak();
    }
}

/// The kernel moves pages only out of writable mappings, so this memory cannot be paged: the budget gives way, with a word.
#[test]
fn memory_made_read_only_goes_beyond_the_budget_and_is_told_of() {
    if let Some((said, stats)) = run_case("read-only") {
        assert!(said.contains("read-only"), "beyond the budget without a word: {said}");
        assert!(stats.unpaged("made_read_only") > 8 * MIB, "{}", stats.text());
    }
}

#[test]
fn pages_freed_and_taken_back_are_found_though_others_are_freed_all_the_time() {
    expect_right("freed-and-taken-back");
}

#[test]
fn a_deep_stack_of_a_thread_is_paged() {
    expect_right("deep-stack-of-a-thread");
}

/// Ruby was told of 8 MiB that are not paged, of which it had 24 KiB.
#[test]
fn a_stack_that_is_long_and_hardly_used_is_not_told_of() {
    if let Some((said, stats)) = run_case_within("far-end-of-the-stack", FaultMode::Default, 24 * MIB) {
        assert!(!said.contains("stack of the first thread"), "{said}");
        assert!(stats.unpaged("stack") < MIB, "{}", stats.text());
    }
}

#[test]
fn a_deep_stack_of_the_first_thread_is_counted_and_told_of() {
    if let Some((said, stats)) = run_case("deep-stack") {
        assert!(said.contains("stack of the first thread"), "not paged without a word: {said}");
        assert!(stats.unpaged("stack") > 200 * MIB, "{}", stats.text());
    }
}

#[test]
fn written_pages_of_private_file_mappings_are_counted_and_told_of() {
    if let Some((said, stats)) = run_case("private-file") {
        assert!(said.contains("MiB of private file mappings were written"), "not paged without a word: {said}");
        assert!(stats.unpaged("private_file") >= 40 * MIB, "{}", stats.text());
        assert!(stats.number("peak_resident_bytes") >= 40 * MIB, "it counts: {}", stats.text());
        stats.expect_paging(6 * 256);
    }
}

/// "All fitted: 176 KiB of 32 MiB", the summary said, of a program that had 200 MiB; nothing else was said or counted.
#[test]
fn shared_memory_is_told_of_where_nothing_else_is_paged_in_both_modes() {
    for mode in [FaultMode::Thread, FaultMode::Signal] {
        if let Some((said, stats)) = run_case_in("before-shared-alone", mode) {
            let told = said.matches("MiB of shared memory: not counted, not paged").count();
            assert_eq!(told, 1, "not paged without a word: {said}");
            assert!(stats.unpaged("shared") >= 38 * MIB, "{}", stats.text());
        }
    }
}

/// Whoever collects the stop of a thread that is about to receive a signal takes the signal away: of 25 runs, 4 lost one.
#[test]
fn no_signal_is_lost_while_the_threads_that_run_are_stopped_for_paging_to_begin() {
    for mode in [FaultMode::Thread, FaultMode::Signal] {
        for _ in 0..3 {
            run_case_in("before-signals", mode);
        }
    }
}

/// They are made anonymous when paging begins. (A second process has its own of what both write.) In a budget of 16 MiB it begins while
/// the last of the 8 MiB are written, on a busy machine while half of them are: what is written after that stays native.
#[test]
fn pages_of_private_file_mappings_that_were_written_before_are_paged_and_given_back_to_the_file_in_both_modes() {
    for mode in [FaultMode::Thread, FaultMode::Signal] {
        if let Some((_, stats)) = run_case_within("before-private-file", mode, 2 * BUDGET) {
            assert!(stats.unpaged("private_file") < 2 * MIB, "{}", stats.text());
            stats.expect_paging(6 * 256).expect_peak();
        }
    }
}

/// Each mapping was small beside the budget, and all of them were filled before anybody looked.
#[test]
fn memory_that_is_filled_while_the_supervisor_has_no_cpu_keeps_to_the_budget() {
    for stats in paged_in_both_modes(&["before-late-look"]) {
        stats.expect_peak();
    }
}

/// An allocator that takes the place of the C library's reserves its addresses before the runtime is loaded: the whole heap of such a
/// program (a browser) looks like what the loader and the libraries have put there.
#[test]
fn addresses_that_were_reserved_before_the_runtime_are_paged_once_they_are_used() {
    expect_right("reserved-at-load");
}

/// An allocator in place of the C library's (redis has one) is there before the runtime: what it has in use already is the program's.
#[test]
fn memory_that_was_in_use_before_the_runtime_is_paged_in_both_modes() {
    for stats in paged_in_both_modes(&["used-at-load"]) {
        stats.expect_peak();
        assert!(stats.unpaged("before_runtime") < MIB, "{}", stats.text());
    }
}

/// They look like the data of the libraries, which stay native; a program of large static tables must not run without a budget.
#[test]
fn large_static_tables_of_a_program_are_paged() {
    expect_right("static-data");
}

#[test]
fn memory_beyond_64_gib_of_addresses_stays_native_and_is_told_of() {
    if let Some((said, stats)) = run_case("beyond-64-gib") {
        assert!(said.contains("beyond the 64 GiB of addresses"), "not paged without a word: {said}");
        assert!(stats.unpaged("beyond_64_gib") >= 8 * MIB, "{}", stats.text());
    }
}

#[test]
fn a_userfaultfd_of_the_program_has_memory_that_is_managed() {
    if need::runs_gap("managed memory is refused to another userfaultfd (EBUSY)") {
        expect_right("own-userfaultfd");
    }
}

/// Mappings below 64 KiB are left alone only while they are few: 24 MiB of them have no place in a budget of 16. They are looked at in
/// pieces, because a look through all of them for each block that comes keeps faults waiting.
#[test]
fn thousands_of_small_mappings_are_paged_in_both_modes() {
    for stats in paged_in_both_modes(&["small-mappings"]) {
        stats.expect_peak();
    }
}

/// Every mapping was asked for its rights at each 64th page that could not be moved: with 20,000 of them 40,000 pages were not read in 50 s.
/// And emptying a doorbell took a mapping more, which a program that has them all is not granted.
#[test]
fn a_program_that_has_all_mappings_half_of_them_read_only_pages_and_forks_in_both_modes() {
    for mode in [FaultMode::Thread, FaultMode::Signal] {
        if let Some((_, stats)) = run_case_within("all-mappings", mode, 80 * MIB) {
            stats.expect_paging(80 * 256);
        }
    }
}

/// What children ask for comes back where they have it from: each of 24 read 151 pages from the disk that the one before had read.
#[test]
fn what_each_child_reads_and_its_maker_does_not_is_read_once_in_both_modes() {
    for stats in paged_in_both_modes(&["read-by-children"]) {
        assert!(stats.counter("pgmajfault") < 24 * 151 / 2, "{}", stats.text());
    }
}
