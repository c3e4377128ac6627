//! Programs that bring with them what others take from the C library: memory functions of their own, sanitizers.

use std::ffi::OsString;
use std::path::Path;

use pagetide_tests::need::{self, Feature};
use pagetide_tests::pagetide::PagetideRun;
use pagetide_tests::program::{Finished, Program};
use pagetide_tests::scratch::Scratch;
use pagetide_tests::{MIB, nobody, serial, victim};

/// The program's end in `budget` bytes, and the run, in each fault mode.
fn in_both_modes(scratch: &Scratch, program: &Program, budget: u64, check: impl Fn(&Finished, &PagetideRun)) {
    let thread = PagetideRun::new(scratch, budget);
    check(&thread.wrap(program).run(scratch, "thread"), &thread);
    let signal = nobody::pagetide(scratch, budget);
    check(&nobody::program(&signal.wrap(program)).run(scratch, "signal"), &signal);
}

/// It says "ok" and nothing else, and leaves nobody.
fn expect_ok(ended: &Finished) {
    ended.expect_success();
    assert_eq!(ended.stdout(), "ok\n", "{}", ended.report());
    ended.expect_no_process_left();
}

#[test]
fn a_program_with_memory_functions_of_its_own_pages() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let source = need::source_directory().join("victims/interposed.c");
    // Its functions are not to become calls of themselves, and are to be seen by the dynamic linker.
    let binary = victim::compile(Path::new(&source), &scratch.file("interposed"), &["-fno-builtin", "-rdynamic"]);
    let program = Program::new([OsString::from(binary), "16".into()]).deadline_s(180);
    in_both_modes(&scratch, &program, 16 * MIB, |ended, run| {
        expect_ok(ended);
        let stats = run.stats();
        stats.expect_laws();
        stats.expect_paging(256).expect_peak();
    });
}

/// The hooks of UCX, which MPI comes with: each called itself without end, because what is called by number came back to it.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_program_that_patches_exported_functions_and_calls_them_by_number_pages() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let binary = victim::build(&scratch, "patched");
    let program = Program::new([OsString::from(binary), "40".into()]).deadline_s(180);
    in_both_modes(&scratch, &program, 16 * MIB, |ended, run| {
        ended.expect_success();
        assert_eq!(ended.stdout(), "patched: right\n", "{}", ended.report());
        run.stats().expect_paging(256);
    });
}

/// The object that valgrind loads is its guest's: code of ours that the machine itself ran there ended the program.
#[test]
fn a_program_inside_another_one_is_left_alone_and_told_of() {
    if !need::has(&[Feature::Uffd, Feature::Tool("valgrind")]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let inside = victim::build(&scratch, "hostile");
    let argv = ["valgrind", "-q", "--tool=none"].map(OsString::from).into_iter();
    let argv = argv.chain([inside.into(), "exit".into(), "48".into(), "0".into()]);
    let program = Program::new(argv).deadline_s(180);
    in_both_modes(&scratch, &program, 32 * MIB, |ended, run| {
        ended.expect_success();
        ended.expect_no_process_left();
        assert!(ended.stderr().contains("runs another one inside itself"), "{}", ended.report());
        assert!(run.stats().number("peak_resident_bytes") > 32 * MIB, "{}", run.stats().text());
    });
}

/// It refuses to start where a library is loaded before its own, as ours is; and its search for leaks stops all threads, whoever pages
/// among them, and would wait for a page for ever.
#[test]
fn a_program_with_an_address_sanitizer_pages_and_is_not_searched_for_leaks() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let source = need::source_directory().join("victims/sanitized.c");
    for (name, flags) in
        [("shared", &["-fsanitize=address"][..]), ("static", &["-fsanitize=address", "-static-libasan"])]
    {
        let scratch = Scratch::new();
        let binary = victim::compile(&source, &scratch.file(name), flags);
        let program = Program::new([OsString::from(binary), "24".into()]).deadline_s(60);
        in_both_modes(&scratch, &program, 32 * MIB, |ended, run| {
            expect_ok(ended);
            assert!(ended.stderr().contains("does not look for leaks"), "{}", ended.report());
            run.stats().expect_paging(256);
        });
    }
}
