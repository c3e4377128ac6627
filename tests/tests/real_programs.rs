//! Unmodified programs at a quarter of their native peak: the same bytes come out, inside a hard limit that kills them natively.
//!
//! Sizes: the native peak must exceed a quarter of itself by 10 % and 32 MiB, or the limit would not bind (so 50 MiB and more), and
//! at a quarter of its memory a program that jumps about waits for the disk most of the time. So they hold few large things rather
//! than many small ones: each page is used as often as it has things on it.

use pagetide_tests::budgeted::Budgeted;
use pagetide_tests::need::{self, Feature};
use pagetide_tests::pagetide::PagetideRun;
use pagetide_tests::program::Program;
use pagetide_tests::scratch::Scratch;
use pagetide_tests::sources::{java_classes, shuffled_lines, source, very_large_c_file};
use pagetide_tests::{MIB, serial};

fn check(tools: &[Feature], budgeted: impl FnOnce(&Scratch) -> Budgeted) {
    if need::has(&[Feature::Uffd]) && need::has(tools) {
        let _turn = serial::turn();
        let scratch = Scratch::new();
        budgeted(&scratch).in_both_modes().check(&scratch);
    }
}

#[test]
fn python_sorts_large_dicts_and_dumps_the_same_json() {
    check(&[Feature::Tool("python3")], |_| {
        Budgeted::new(Program::new(["python3", &source("dicts.py"), "46000", "450"]).env("PYTHONHASHSEED", "0"))
    });
}

/// What a process has already is part of its share: a share of what is left beside it would have all of that paged out first.
#[test]
fn what_fits_stays_in_memory_when_an_agent_starts() {
    // Whether the agent starts before the end, and after how much, is a matter of time.
    const RUNS: usize = 3;
    if !need::has(&[Feature::Uffd, Feature::Tool("python3")]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let program = Program::new(["python3", &source("grow.py"), "50"]).deadline_s(60);
    for _ in 0..RUNS {
        let run = PagetideRun::new(&scratch, 64 * MIB);
        run.wrap(&program).run(&scratch, "run").expect_success();
        let written = run.stats().counter("pswpout");
        assert!(written < 1024, "{written} pages of a program that fits went to the disk");
    }
}

#[test]
fn python_workers_forked_with_memory_paged_out_see_every_byte() {
    check(&[Feature::Tool("python3")], |_| {
        Budgeted::new(Program::new(["python3", &source("forks.py"), "40"]).env("PYTHONHASHSEED", "0"))
    });
}

#[test]
fn python_workers_forked_see_every_byte_where_threads_read_and_write() {
    check(&[Feature::Tool("python3")], |_| {
        Budgeted::new(Program::new(["python3", &source("forks.py"), "40"]).env("PYTHONHASHSEED", "0"))
            .arguments(&["--set", "io=threads"])
    });
}

#[test]
fn gnu_sort_with_a_large_buffer_and_two_threads_sorts_the_same() {
    check(&[Feature::Tool("sort")], |scratch| {
        let lines = shuffled_lines(scratch, 650_000, 10);
        let sorted = scratch.file("sorted");
        let argv =
            ["sort", "-S", "500M", "--parallel=2", "-o", &sorted.display().to_string(), &lines.display().to_string()];
        Budgeted::new(Program::new(argv).env("LC_ALL", "C")).output(sorted)
    });
}

#[test]
fn sqlite_joins_and_indexes_in_memory_with_the_same_rows() {
    check(&[Feature::Tool("sqlite3")], |_| {
        Budgeted::new(
            Program::new(["sqlite3", "-init", "/dev/null", ":memory:", &format!(".read {}", source("joins.sql"))])
                .deadline_s(300),
        )
    });
}

#[test]
fn gcc_compiles_a_very_large_file_to_the_same_object() {
    check(&[Feature::Tool("gcc")], |scratch| {
        let c_file = very_large_c_file(scratch, 1_500);
        let object = scratch.file("large.o");
        let argv = ["gcc", "-O0", "-c", &c_file.display().to_string(), "-o", &object.display().to_string()];
        Budgeted::new(Program::new(argv)).output(object)
    });
}

#[test]
fn perl_hashes_of_hashes_come_out_the_same() {
    check(&[Feature::Tool("perl")], |_| {
        Budgeted::new(Program::new(["perl", &source("words.pl"), "52000"]).env("PERL_HASH_SEED", "0"))
    });
}

#[test]
fn node_objects_and_typed_arrays_come_out_the_same() {
    check(&[Feature::Tool("node")], |_| {
        Budgeted::new(
            Program::new(["node", "--max-old-space-size=2000", &source("objects.js"), "80000", "180"]).deadline_s(300),
        )
    });
}

#[test]
fn java_with_its_own_heap_and_collector_prints_the_same() {
    check(&[Feature::Tool("java"), Feature::Tool("javac")], |scratch| {
        let classes = java_classes(scratch, "Heap.java");
        // A heap that is touched at once is the peak, whatever of the machine's own files is in the page cache already.
        let heap = ["-Xms64m", "-Xmx200m", "-XX:+AlwaysPreTouch", "-XX:+UseSerialGC"];
        let classes = classes.display().to_string();
        let argv = [&["java"][..], &heap, &["-cp", &classes, "Heap", "90000"]].concat();
        let program = Program::new(argv).deadline_s(300);
        Budgeted::new(program)
            .peak_gap("its class archive is written after paging has begun: a private file mapping that is not paged")
    });
}

/// Its workers check what they wrote; a wrong bit ends it with a status of its own. `all` takes the methods in turn until its
/// operations are used up, which some methods do alone, so that each of the others runs by its name as well, once
/// over its memory. Left out by name: `cache-lines` and `prime-incdec`, of which one pass takes minutes natively.
#[test]
fn stress_ng_vm_verifies_all_its_methods() {
    const METHODS: &str = "all cache-stripe checkerboard flip fwdrev galpat-0 galpat-1 gray grayflip rowhammer incdec \
        inc-nybble lfsr32 rand-set rand-sum read64 ror swap move-inv modulo-x mscan wrrd128nt prime-0 prime-1 prime-gray-0 \
        prime-gray-1 walk-0d walk-1d walk-0a walk-1a write64 write64nt write1024v zero-one";
    check(&[Feature::Tool("stress-ng")], |scratch| {
        let script = format!(
            "for method in {METHODS}; do test $method = all && ops=57000 || ops=1; \
             stress-ng --vm 2 --vm-bytes 64M --vm-method $method --verify --vm-ops $ops --vm-keep --oomable --quiet \
             || {{ echo \"$method: $?\"; exit 1; }}; done"
        );
        let program = Program::new(["/bin/sh", "-c", &script]).directory(scratch.path()).deadline_s(300);
        // Two workers of half the bytes each: the tree's peak is the sum.
        Budgeted::new(program).native_peak_bytes(64 * MIB).peak_gap("many processes fill memory natively at once")
    });
}
