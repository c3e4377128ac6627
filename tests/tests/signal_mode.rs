//! `run` in signal mode, as user nobody: whole programs without any privilege.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use pagetide_tests::need::{self, Feature};
use pagetide_tests::nobody::can_run;
use pagetide_tests::pagetide::{FaultMode, PagetideRun};
use pagetide_tests::program::{Finished, Program};
use pagetide_tests::scratch::Scratch;
use pagetide_tests::{MIB, leftovers, nobody, serial, victim};

/// `program` as nobody inside `budget_bytes`; it must succeed and page.
fn paged(scratch: &Scratch, budget_bytes: u64, program: &Program) -> Finished {
    let run = nobody::pagetide(scratch, budget_bytes).mode(FaultMode::Signal);
    let ended = under(&run, scratch, program);
    ended.expect_success().expect_no_process_left();
    run.stats().expect_laws().expect_peak().expect_paging(1000);
    assert!(leftovers::files(&scratch.file("swap")).is_empty(), "no swap file is left");
    ended
}

fn under(run: &PagetideRun, scratch: &Scratch, program: &Program) -> Finished {
    nobody::program(&run.wrap(program)).run(scratch, "paged")
}

/// The same as natively, as far as standard output tells.
fn expect_same(budget_bytes: u64, make: impl FnOnce(&Scratch) -> Program) {
    if !can_run() {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let program = make(&scratch);
    let native = program.run(&scratch, "native");
    native.expect_success();
    let ended = paged(&scratch, budget_bytes, &program);
    assert_eq!(ended.stdout(), native.stdout(), "{}", ended.report());
}

fn program(binary: &Path, arguments: &[&str]) -> Program {
    let argv = std::iter::once(OsString::from(binary)).chain(arguments.iter().map(OsString::from));
    Program::new(argv).deadline_s(300)
}

#[test]
fn as_nobody_system_calls_work_on_paged_out_memory() {
    const CASES: [&str; 13] = [
        "read_write",
        "vectors",
        "direct_io",
        "sockets",
        "getdents",
        "futex",
        "structures",
        "other_process",
        "signals",
        "spawn",
        "fork",
        "generations",
        "fork_with_threads",
    ];
    let arguments: Vec<&str> = std::iter::once("32").chain(CASES).collect();
    expect_same(16 * MIB, |scratch| program(&victim::build(scratch, "syscalls"), &arguments).directory(scratch.path()));
}

/// Counters, children, connections, datagrams, descriptors, signals, messages, terminals, old values, counts, errors, interruptions.
#[test]
fn as_nobody_calls_of_every_class_lose_nothing() {
    if !can_run() {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let program = program(&victim::build(&scratch, "classes"), &["16"]).directory(scratch.path());
    let native = program.run(&scratch, "native");
    native.expect_success();
    let ended = paged(&scratch, 8 * MIB, &program);
    assert_eq!(ended.stdout(), native.stdout(), "{}", ended.report());
    let told = ended.stderr();
    let counts: Vec<u32> = told.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    // Further numbers are those of calls that are told of.
    let [.., out, asked] = counts[..] else { panic!("{told}") };
    assert!(asked > 50 && out * 4 >= asked * 3, "what the calls use was paged out before them: {told}");
    assert!(told.contains("system call 999 (?) is not known"), "{told}");
}

/// Streams, datagrams, several messages at once, vectors, devices, buffers that are never filled, memory of processes.
#[test]
fn as_nobody_calls_that_name_more_memory_than_the_budget_are_made_inside_it() {
    const CASES: [&str; 9] =
        ["24", "streams", "datagrams", "several", "files", "short_answers", "edges", "sockets", "another_process"];
    expect_same(8 * MIB, |scratch| program(&victim::build(scratch, "long"), &CASES));
}

/// MPI moves large messages so. The kernel does not wait for a page of another process there: EFAULT, for which OpenMPI tried again for ever.
#[test]
fn as_nobody_processes_read_and_write_each_others_memory_that_is_out() {
    expect_same(16 * MIB, |scratch| program(&victim::build(scratch, "between"), &["24"]));
}

/// A thread for each of 64 reads that wait: together thrice the budget. They ended the run.
#[test]
fn as_nobody_calls_that_hold_more_than_the_budget_go_beyond_it_and_are_told_of() {
    if !can_run() {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let run = nobody::pagetide(&scratch, 8 * MIB).mode(FaultMode::Signal);
    let program = program(&victim::build(&scratch, "long"), &["24", "many_at_once"]);
    let ended = under(&run, &scratch, &program);
    ended.expect_success().expect_no_process_left();
    assert_eq!(ended.stdout(), "many_at_once: right\n", "{}", ended.report());
    assert!(ended.stderr().contains("used by system calls"), "{}", ended.report());
    run.stats().expect_laws();
}

/// Made by name, by the program's own instructions, as about another process, and beside forks and signals: once a signal waited, the
/// second of the calls that make a guard was not made, and what was under it came back.
#[test]
fn as_nobody_guards_fault_and_read_as_zero_once_removed() {
    let cases = [
        "guard-pages",
        "guard-pages-by-syscall",
        "guard-pages-by-process",
        "guard-pages-and-signals",
        "guards-and-forks",
    ];
    for case in cases {
        expect_same(16 * MIB, |scratch| program(&victim::build(scratch, "space"), &[case, "40"]));
    }
}

/// A program that knows what it has mapped sets its limit by that: a child was killed, because nothing of ours fitted.
#[test]
fn as_nobody_a_limit_of_data_is_without_what_the_runtime_takes() {
    expect_same(16 * MIB, |scratch| program(&victim::build(scratch, "space"), &["limit-of-data", "40"]));
}

#[test]
fn as_nobody_futexes_that_are_moved_to_a_lock_or_change_a_second_word_work_where_it_was_out() {
    for case in ["pi-requeue", "wake-op"] {
        expect_same(16 * MIB, |scratch| program(&victim::build(scratch, "space"), &[case, "40"]));
    }
}

#[test]
fn as_nobody_what_was_written_of_a_private_file_mapping_is_paged_and_given_back() {
    expect_same(32 * MIB, |scratch| program(&victim::build(scratch, "space"), &["before-private-file", "80"]));
}

/// Its first mapping beyond what was left waited for 2 s for a supervisor that may not look into it, in 4,000 pieces.
#[test]
fn as_nobody_a_process_that_may_not_be_looked_into_waits_for_nobody() {
    if !can_run() {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let run = nobody::pagetide(&scratch, 16 * MIB).mode(FaultMode::Signal);
    let ended = under(&run, &scratch, &program(&victim::build(&scratch, "space"), &["before-unseen", "8"]));
    ended.expect_success().expect_no_process_left();
    assert!(ended.stderr().contains("may not be looked into"), "{}", ended.report());
}

#[test]
fn as_nobody_threads_with_a_filter_vforked_children_and_faults_of_their_own_are_served_or_told() {
    expect_same(16 * MIB, |scratch| program(&victim::build(scratch, "faults"), &["48"]).directory(scratch.path()));
}

/// A filter that leaves too little to serve a thread, or to serve all, is refused and told of: installed, it would end the process.
#[test]
fn as_nobody_filters_that_leave_too_little_are_refused_and_told_of() {
    if !can_run() {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let ended = paged(&scratch, 12 * MIB, &program(&victim::build(&scratch, "faults"), &["24", "refused"]));
    for told in
        ["the filter denies what a thread needs", "its system call filter denies call", "what a new thread does"]
    {
        assert!(ended.stderr().contains(told), "{}", ended.report());
    }
}

#[test]
fn as_nobody_handlers_masks_and_stacks_work_where_they_are_paged_out() {
    expect_same(16 * MIB, |scratch| program(&victim::build(scratch, "signals"), &["24"]));
}

/// Each ended the process in two runs of three where they came faster than a frame was written.
#[test]
fn as_nobody_fault_signals_that_others_send_arrive_as_natively() {
    expect_same(12 * MIB, |scratch| program(&victim::build(scratch, "sent"), &["24"]));
}

#[test]
fn as_nobody_eight_threads_lose_no_byte() {
    if !can_run() {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    paged(&scratch, 16 * MIB, &program(&victim::build(&scratch, "threads"), &["64", "8", "2", "1"]));
}

#[test]
fn as_nobody_calls_that_wait_from_before_paging_find_their_memory() {
    if !can_run() {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    paged(&scratch, 16 * MIB, &program(&victim::build(&scratch, "waits"), &["64"]));
}

/// Dictionaries, threads, an interval timer, children by vfork, sockets and files.
const PYTHON: &str = r#"
import hashlib, json, os, signal, socket, subprocess, tempfile, threading
table = {i: str(i) * 3 for i in range(150000)}
digest = hashlib.sha256()
for key, value in sorted(table.items(), key=lambda item: item[1]): digest.update(value.encode())
print(digest.hexdigest())
blob = b''.join(bytes(str(i * 7), 'ascii') for i in range(600000))
ticks = []
signal.signal(signal.SIGALRM, lambda number, frame: ticks.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
while len(ticks) < 20: sum(len(value) for value in table.values())
signal.setitimer(signal.ITIMER_REAL, 0)
def fill(mark):
    block = bytearray(2 << 20)
    block[::64] = bytes([mark]) * (len(block) // 64)
    assert block.count(mark) == len(block) // 64
threads = [threading.Thread(target=fill, args=(i + 1,)) for i in range(6)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(subprocess.run(['echo', 'a child'], capture_output=True).stdout)
near, far = socket.socketpair()
sender = threading.Thread(target=lambda: (near.sendall(blob), near.close()))
sender.start()
pieces = []
while piece := far.recv(1 << 20): pieces.append(piece)
sender.join()
print(b''.join(pieces) == blob)
with tempfile.TemporaryFile() as file:
    file.write(blob); file.seek(0)
    print(file.read() == blob)
print(len(json.dumps(table)))
"#;

#[test]
fn as_nobody_python_computes_the_same() {
    if !need::has(&[Feature::Tool("python3")]) {
        return;
    }
    expect_same(32 * MIB, |_| Program::new(["python3", "-c", PYTHON]).deadline_s(300));
}

#[test]
fn as_nobody_gnu_sort_with_threads_sorts_the_same() {
    expect_same(12 * MIB, |scratch| {
        let lines: String = (0..250_000_u64).map(|i| format!("{}\n", i.wrapping_mul(0x9E37_79B9_7F4A_7C15))).collect();
        let input = scratch.write("lines", lines);
        Program::new(["sort", "-S", "64M", "--parallel=2"].map(OsString::from).into_iter().chain([input.into()]))
            .env("LC_ALL", "C")
            .deadline_s(300)
    });
}

#[test]
fn as_nobody_sqlite_joins_the_same() {
    if !need::has(&[Feature::Tool("sqlite3")]) {
        return;
    }
    const SCRIPT: &str = "PRAGMA cache_size=-200000; CREATE TABLE a(k INTEGER, t TEXT); \
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n WHERE i<150000) \
        INSERT INTO a SELECT (i*7919)%150001, printf('%064d', i) FROM n; CREATE INDEX x ON a(t); \
        SELECT count(*), sum(k), max(t) FROM a WHERE t > '0'; SELECT sum(p.k*q.k) FROM a p JOIN a q ON p.t=q.t;";
    expect_same(16 * MIB, |_| Program::new(["sqlite3", ":memory:", SCRIPT]).deadline_s(300));
}

/// Forks of every kind, by a program of our own that knows every byte.
#[test]
fn as_nobody_forked_children_see_every_byte_and_end() {
    if !can_run() {
        return;
    }
    let _turn = serial::turn();
    // Seven generations at once keep 3.3 MiB each, whatever the budget is, once they share nothing any more.
    let kinds = [
        (12, &["forks", "24", "3"][..]),
        (16, &["nested", "24", "6"]),
        (12, &["orphan", "24"]),
        (12, &["hidden", "24"]),
        (12, &["hole", "24"]),
        (12, &["raw", "24", "3"]),
        (12, &["handler", "24", "2"]),
        (12, &["both", "24", "2"]),
        (12, &["taken", "24"]),
        (16, &["untold", "24", "2"]),
        (16, &["private", "24", "2"]),
        (16, &["cleared", "24", "2"]),
    ];
    for (budget_mib, arguments) in kinds {
        let scratch = Scratch::new();
        let binary = victim::build(&scratch, "session");
        let ended = paged(&scratch, budget_mib * MIB, &program(&binary, arguments).deadline_s(60));
        assert!(ended.stdout().ends_with("ok\n"), "{}", ended.report());
    }
}

/// Workers forked by a pool read what their parent had, make memory of their own, and send it back; shells and pipes beside them.
const PROCESSES: &str = r#"
import hashlib, multiprocessing, os, subprocess
data = [bytes([i & 255]) * 3000 + str(i).encode() for i in range(9000)]
def work(part):
    digest = hashlib.sha256()
    for i in range(part, len(data), 8): digest.update(data[i])
    own = [os.urandom(1000) for _ in range(2000)]
    return part, digest.hexdigest(), sum(map(len, own))
expected = [work(part) for part in range(8)]
with multiprocessing.get_context('fork').Pool(3) as pool:
    print(pool.map(work, range(8)) == expected)
print(subprocess.run('for i in 1 2 3; do (echo $i); done | sort -r', shell=True, capture_output=True).stdout)
print(subprocess.run(['sh', '-c', 'exit 5'], preexec_fn=lambda: None).returncode)
"#;

#[test]
fn as_nobody_pools_of_processes_and_shells_compute_the_same() {
    if !need::has(&[Feature::Tool("python3")]) {
        return;
    }
    expect_same(24 * MIB, |_| Program::new(["python3", "-c", PROCESSES]).deadline_s(300));
}

/// What a program that is executed finds blocked and ignored, in each way to execute one.
const EXECUTED: &str = r#"
import os, signal, subprocess, sys
from signal import SIGBUS, SIGPIPE, SIGSEGV, SIGSYS, SIGUSR1, SIGUSR2, SIG_DFL, SIG_IGN
blocks = [bytearray([i & 255]) * (1 << 20) for i in range(48)]
print(sum(block[4096 * (i & 127)] for i, block in enumerate(blocks)))
show = ['/bin/grep', '-E', '^Sig(Blk|Ign)', '/proc/self/status']
def state(blocked, ignored, handled):
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    for number in (SIGBUS, SIGPIPE, SIGSEGV, SIGSYS, SIGUSR1, SIGUSR2): signal.signal(number, SIG_DFL)
    for number in ignored: signal.signal(number, SIG_IGN)
    for number in handled: signal.signal(number, lambda number, frame: None)
def say(what): print(what, flush=True)
def wait(child): say(os.waitpid(child, 0)[1])
def execute_all():
    say('posix_spawn'); wait(os.posix_spawn(show[0], show, os.environ))
    say('vfork'); subprocess.run(show, restore_signals=False, close_fds=False)
    say('fork')
    child = os.fork()
    if child == 0: os.execv(show[0], show)
    wait(child)
    try: os.execv('/nowhere/at/all', show)
    except FileNotFoundError: say('not there')
    say(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
    say(sum(block[4096 * (i & 127)] for i, block in enumerate(blocks)))
for blocked, ignored, handled in (
    ([], [], [SIGSEGV, SIGBUS, SIGUSR1]),
    ([SIGSYS], [SIGSYS, SIGSEGV, SIGBUS], [SIGUSR2]),
    ([SIGSEGV, SIGBUS, SIGUSR1], [SIGPIPE, SIGUSR2, SIGBUS], [SIGUSR1, SIGSEGV]),
):
    state(blocked, ignored, handled)
    execute_all()
os.execv(show[0], show)
"#;

/// Firefox's crash reporter took 128 MiB of ours for each thread's stack, in a budget of 184.
#[test]
fn as_nobody_who_looks_at_a_thread_from_outside_sees_a_stack_of_the_usual_size() {
    expect_same(12 * MIB, |scratch| program(&victim::build(scratch, "readers"), &["sight", "24"]).deadline_s(60));
}

#[test]
fn as_nobody_an_executed_program_finds_signals_blocked_and_ignored_as_natively() {
    if !need::has(&[Feature::Tool("python3")]) {
        return;
    }
    expect_same(24 * MIB, |_| Program::new(["python3", "-c", EXECUTED]).deadline_s(120));
}

/// A child that could have no agent does not come to be, and says so.
#[test]
fn as_nobody_a_fork_behind_a_system_call_filter_is_refused() {
    if !can_run() {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let run = nobody::pagetide(&scratch, 12 * MIB).mode(FaultMode::Signal);
    let ended = under(&run, &scratch, &program(&victim::build(&scratch, "session"), &["filter", "24"]).deadline_s(60));
    assert!(ended.stderr().contains("Cannot allocate memory"), "{}", ended.report());
    assert!(ended.stderr().contains("system call filter"), "{}", ended.report());
}

#[test]
fn rings_and_switches_of_the_program_are_refused_in_signal_mode() {
    if !can_run() || !need::has(&[Feature::Tool("python3")]) {
        return;
    }
    const SCRIPT: &str = "
import ctypes, mmap, socket
block = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
block[:] = b'some text' * 3728270 + b'ab'
libc = ctypes.CDLL(None, use_errno=True)
parameters = ctypes.create_string_buffer(120)
print(libc.syscall(425, 8, parameters), ctypes.get_errno())
print(libc.syscall(206, 8, parameters), ctypes.get_errno())
print(libc.prctl(59, 1, 0, 0, parameters), ctypes.get_errno())
print(libc.setsockopt(socket.socket().fileno(), 1, 60, ctypes.byref(ctypes.c_int(1)), 4), ctypes.get_errno())
";
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let ended = paged(&scratch, 16 * MIB, &Program::new(["python3", "-c", SCRIPT]));
    assert_eq!(ended.stdout(), "-1 38\n-1 38\n-1 22\n-1 95\n", "{}", ended.report());
    for told in ["io_uring_setup", "io_setup", "PR_SET_SYSCALL_USER_DISPATCH"] {
        assert!(ended.stderr().contains(told), "{}", ended.report());
    }
}

/// They wait for an agent until the signal arrives, which takes long beside programs that compute; and a dead child is nobody's orphan.
#[test]
fn children_that_are_killed_at_once_are_not_taken_for_orphans() {
    if !can_run() || !need::has(&[Feature::Tool("python3")]) {
        return;
    }
    const SCRIPT: &str = "
import os, subprocess, time
block = bytearray(b'some text' * 1631121)
busy = [subprocess.Popen(['sh', '-c', 'while :; do :; done']) for _ in range(6)]
for _ in range(40):
    child = os.fork()
    if child == 0:
        time.sleep(5)
        os._exit(0)
    os.kill(child, 9)
    time.sleep(.1)
    os.waitpid(child, 0)
for program in busy:
    program.kill()
    program.wait()
print(block.count(b'some text'))
";
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let ended = paged(&scratch, 9 * MIB, &Program::new(["python3", "-c", SCRIPT]));
    assert_eq!(ended.stdout(), "1631121\n", "{}", ended.report());
    assert!(!ended.stderr().contains("was forked"), "{}", ended.report());
}

/// A program that had a ring before it is paged would not be paged at all: libraries are told at once to do without.
#[test]
fn rings_are_refused_to_libraries_before_anything_is_paged() {
    if !can_run() || !need::has(&[Feature::Tool("python3")]) {
        return;
    }
    const SCRIPT: &str = "
import ctypes, mmap
libc = ctypes.CDLL(None, use_errno=True)
parameters = ctypes.create_string_buffer(256)
print(libc.syscall(425, 8, parameters), ctypes.get_errno())
print(libc.syscall(206, 8, parameters), ctypes.get_errno())
print(libc.io_uring_queue_init(8, parameters, 0), libc.io_uring_queue_init_params(8, parameters, parameters))
print(libc.io_setup(8, parameters), libc.io_queue_init(8, parameters))
block = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
block[:] = b'some text' * 3728270 + b'ab'
print(block[9 * 3728270:])
";
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let ended = paged(&scratch, 16 * MIB, &Program::new(["python3", "-c", SCRIPT]));
    assert_eq!(ended.stdout(), "-1 38\n-1 38\n-38 -38\n-38 -38\nb'ab'\n", "{}", ended.report());
}

/// The program runs as nobody, has what nobody has, and is served in the mode that is granted.
#[test]
fn as_nobody_the_program_keeps_its_user() {
    if !can_run() {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    // Nothing has to be asked for.
    let run = nobody::pagetide(&scratch, 64 * MIB);
    let ended = under(&run, &scratch, &Program::new(["id", "-u"]));
    ended.expect_success();
    assert_eq!((ended.stdout().trim(), ended.stderr().as_str()), ("65534", ""));
    assert!(fs::metadata(run.stats_path()).is_ok(), "statistics are written");
}
