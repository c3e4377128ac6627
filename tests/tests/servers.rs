//! Programs of several processes that nobody waits for one by one: a browser with its helpers, and a server that forks to save what
//! it holds while it is written. Their results are right, and the tree keeps its budget.

use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use pagetide_tests::need::{self, Feature};
use pagetide_tests::pagetide::PagetideRun;
use pagetide_tests::program::{Program, Running};
use pagetide_tests::scratch::Scratch;
use pagetide_tests::sources::source;
use pagetide_tests::stats::Stats;
use pagetide_tests::{MIB, clock, serial, victim};

/// What the script of `rows.html` adds up to.
const SUM: &str = "<div id=\"sum\">sum 261522661</div>";

/// Its allocator reserves addresses before the runtime is loaded, so nearly all of its heap and of its helpers' looks like what the loader
/// has put there. Each of its processes has written pages of its file in memory (14 MiB), which
/// are not paged: what else it takes (some 240 MiB in all) has to fit beside them.
#[test]
fn a_browser_of_many_processes_shows_its_page_inside_its_budget() {
    if !need::has(&[Feature::Uffd, Feature::Tool("chromium")]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let profile = format!("--user-data-dir={}", scratch.file("profile").display());
    let page = format!("file://{}", source("rows.html"));
    let argv =
        ["chromium", "--headless", "--no-sandbox", "--no-zygote", "--disable-gpu", &profile, "--dump-dom", &page];
    let run = PagetideRun::new(&scratch, 200 * MIB);
    let shown = run.wrap(&Program::new(argv).deadline_s(900)).run(&scratch, "browser");
    shown.expect_success().expect_no_process_left();
    let (document, stats) = (shown.stdout(), run.stats());
    assert!(document.contains(SUM) && document.contains("<p>row 499</p>"), "{}", shown.report());
    stats.expect_laws().expect_peak();
    assert!(stats.number("managed_processes") >= 3, "{}", stats.text());
    assert!(stats.unpaged("before_runtime") < 8 * MIB, "{}", stats.text());
}

/// Runs processes that sleep beside one that works; all must find what they had. The statistics.
fn sleepers(arguments: [&str; 4], memory: u64) -> Option<Stats> {
    if !need::has(&[Feature::Uffd]) {
        return None;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let binary = victim::build(&scratch, "sleepers").display().to_string();
    let run = PagetideRun::new(&scratch, memory);
    let program = Program::new(std::iter::once(&*binary).chain(arguments)).deadline_s(600);
    let ended = run.wrap(&program).run(&scratch, "sleepers");
    ended.expect_success().expect_no_process_left();
    assert_eq!(ended.stdout(), format!("{} processes slept, 0 pages were wrong\n", arguments[0]));
    let stats = run.stats();
    stats.expect_laws().expect_peak();
    Some(stats)
}

/// Eight sleeping processes kept 4 MiB of room each from the one that worked: it had 100,000 major faults, and half of the budget lay
/// idle (PostgreSQL sorted for minutes in a budget that was larger than all it takes natively).
#[test]
fn processes_that_sleep_leave_the_budget_to_the_one_that_works() {
    let Some(stats) = sleepers(["8", "32", "1", "0"], 64 * MIB) else { return };
    assert!(stats.number("managed_processes") == 9 && stats.counter("pgmajfault") < 5000, "{}", stats.text());
}

/// It had half of the budget for three quarters of what it used, and 100,000 major faults.
#[test]
fn a_process_that_sleeps_lends_what_it_keeps_to_the_one_that_works() {
    let Some(stats) = sleepers(["1", "30", "28", "0"], 40 * MIB) else { return };
    assert!(stats.counter("pswpout") > 4000 && stats.counter("pgmajfault") < 20_000, "{}", stats.text());
}

/// Three MiB counted as seventeen times as much, and all were paged out for them.
#[test]
fn what_forked_processes_share_is_counted_once_where_the_budget_is_divided() {
    let Some(stats) = sleepers(["16", "24", "0", "3"], 40 * MIB) else { return };
    assert!(stats.counter("pgmajfault") < 2000, "{}", stats.text());
}

/// Equal shares made one wait for a quarter of its touches, 140,000 times; the other one waits as much with any.
#[test]
fn memory_goes_to_the_process_that_waits_less_with_it() {
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let binary = victim::build(&scratch, "unequal").display().to_string();
    let run = PagetideRun::new(&scratch, 64 * MIB);
    let program = Program::new([&*binary, "100", "44", "400000"]).deadline_s(600);
    let ended = run.wrap(&program).run(&scratch, "unequal");
    ended.expect_success().expect_no_process_left();
    assert_eq!(ended.stdout(), "0 pages were wrong\n");
    let stats = run.stats();
    stats.expect_laws();
    assert!(stats.counter("pgmajfault") < 60_000, "{}", stats.text());
}

const KEYS: usize = 12_000;
const VALUE_BYTES: usize = 2000;
/// Commands that are sent before their answers are read.
const BATCH: usize = 100;
/// Keys that are written between two looks at the save.
const ROUND: usize = 500;

/// A connection to the server.
struct Client {
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Waits until it serves.
    fn connect(socket: &Path, running: &Running) -> Self {
        let mut stream = None;
        let is_there = clock::wait_until(Duration::from_secs(60), || {
            stream = UnixStream::connect(socket).ok();
            stream.is_some() || running.has_ended()
        });
        assert!(is_there && stream.is_some(), "no server at {}: {}", socket.display(), running.stdout_so_far());
        let stream = stream.expect("just seen");
        stream.set_read_timeout(Some(Duration::from_secs(120))).expect("a limit");
        let mut client = Self { stream: BufReader::new(stream) };
        let is_loaded = clock::wait_until(Duration::from_secs(60), || client.ask(&["PING"]) == "PONG");
        assert!(is_loaded, "it still loads");
        client
    }

    fn send(&mut self, words: &[&str]) {
        let mut text = format!("*{}\r\n", words.len());
        for word in words {
            write!(text, "${}\r\n{word}\r\n", word.len()).expect("a String takes all");
        }
        self.stream.get_mut().write_all(text.as_bytes()).expect("the server reads");
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("the server answers");
        let line = line.trim_end();
        let Some(length) = line.strip_prefix('$') else { return line.trim_start_matches('+').to_owned() };
        let Ok(length) = length.parse::<usize>() else { return String::new() };
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes).expect("as many bytes as were said");
        bytes.truncate(length);
        String::from_utf8(bytes).expect("what was stored is text")
    }

    fn ask(&mut self, words: &[&str]) -> String {
        self.send(words);
        self.answer()
    }

    /// Stores for each key the value of its version.
    fn store(&mut self, keys: &[usize], version: impl Fn(usize) -> usize) {
        for batch in keys.chunks(BATCH) {
            batch.iter().for_each(|&key| self.send(&["SET", &key.to_string(), &value(key, version(key))]));
            batch.iter().for_each(|key| assert_eq!(self.answer(), "OK", "key {key}"));
        }
    }

    /// Every key has the value of its version.
    fn check(&mut self, version: impl Fn(usize) -> usize) {
        let keys: Vec<usize> = (0..KEYS).collect();
        for batch in keys.chunks(BATCH) {
            batch.iter().for_each(|key| self.send(&["GET", &key.to_string()]));
            batch.iter().for_each(|&key| assert!(self.answer() == value(key, version(key)), "key {key}"));
        }
    }

    fn end(mut self, running: Running) {
        self.send(&["SHUTDOWN", "NOSAVE"]);
        running.finish().expect_success().expect_no_process_left();
    }
}

fn value(key: usize, version: usize) -> String {
    let mut text = format!("{key} {version} ").repeat(VALUE_BYTES / 4);
    text.truncate(VALUE_BYTES);
    text
}

/// The child that saves shares its memory with the server, which is written meanwhile: what both have counts twice as soon as it
/// is written.
#[test]
fn redis_saves_what_it_held_at_the_fork_while_it_is_written() {
    // The package of the tools has the server under this name, and starts none.
    let server = "redis-check-rdb";
    if !need::has(&[Feature::Uffd, Feature::Tool(server)]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let (binary, socket) = (scratch.file("redis-server"), scratch.file("socket"));
    let found = std::env::split_paths(&std::env::var_os("PATH").expect("it was found there"))
        .map(|directory| directory.join(server))
        .find(|path| path.exists());
    symlink(found.expect("just seen"), &binary).expect("a link");
    let [binary, path, directory] = [&binary, &socket, scratch.path()].map(|path| path.display().to_string());
    let program = Program::new([&binary, "--port", "0", "--unixsocket", &path, "--save", "", "--dir", &directory]);
    let program = program.deadline_s(600);

    let run = PagetideRun::new(&scratch, 20 * MIB);
    let running = run.wrap(&program).start(&scratch, "paged");
    let mut client = Client::connect(&socket, &running);
    let mut versions = vec![0; KEYS];
    client.store(&(0..KEYS).collect::<Vec<_>>(), |_| 0);
    assert_eq!(client.ask(&["BGSAVE"]), "Background saving started");
    for round in 1.. {
        let keys: Vec<usize> = (0..ROUND).map(|index| (round * ROUND + index * 7919) % KEYS).collect();
        keys.iter().for_each(|&key| versions[key] = round);
        client.store(&keys, |_| round);
        let told = client.ask(&["INFO", "persistence"]);
        if told.contains("rdb_bgsave_in_progress:0") {
            assert!(told.contains("rdb_last_bgsave_status:ok"), "{told}");
            break;
        }
    }
    client.check(|key| versions[key]);
    client.end(running);
    run.stats().expect_laws().expect_peak().expect_paging(4 * 256);

    // What was saved is what it held when it was told to.
    let running = program.start(&scratch, "native");
    let mut client = Client::connect(&socket, &running);
    client.check(|_| 0);
    client.end(running);
}
