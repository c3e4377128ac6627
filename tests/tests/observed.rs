//! What a run writes for others to read while it runs is read by programs that are not ours: metrics, timelines.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use pagetide_tests::need::{self, Feature};
use pagetide_tests::pagetide::{self, PagetideRun};
use pagetide_tests::program::{Exit, Program, Running};
use pagetide_tests::scratch::Scratch;
use pagetide_tests::{MIB, clock, serial, victim};
use rustix::process::Signal;
use serde_json::Value;

const BUDGET: u64 = 16 * MIB;

/// A run that pages four times its budget, and goes on until it is told to end.
fn start(scratch: &Scratch, arguments: &[&str]) -> Running {
    let binary = victim::build(scratch, "hostile");
    let argv = [OsString::from(binary), "hold".into(), "64".into()];
    let run = arguments.iter().fold(PagetideRun::new(scratch, BUDGET), |run, argument| run.argument(argument));
    let running = run.wrap(&Program::new(argv)).deadline_s(60).start(scratch, "observed");
    running.wait_for_output("ready");
    running
}

/// What a script of `tests/checks` prints of a file.
fn checked(script: &str, file: &Path) -> Value {
    let output = Command::new(need::readers_python())
        .arg(need::source_directory().join("checks").join(script))
        .arg(file)
        .output()
        .expect("the readers are installed");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script} {}: {errors}", file.display());
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn sample(metrics: &Value, name: &str) -> f64 {
    metrics[name].as_f64().unwrap_or_else(|| panic!("no {name} in {metrics}"))
}

#[test]
fn metrics_are_read_by_prometheus_and_count_what_the_statistics_count() {
    if !need::has(&[Feature::Uffd, Feature::Readers]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let file = scratch.file("job.prom");
    let run = start(&scratch, &["--name", "a.job", "--metrics", file.to_str().expect("text")]);
    let text = || std::fs::read_to_string(&file).unwrap_or_default();
    assert!(clock::wait_until(Duration::from_secs(20), || !text().contains("pgmajfault_total{run=\"a.job\"} 0\n")));
    assert!(text().contains("pagetide_running{run=\"a.job\"} 1\n"), "{}", text());
    run.signal(Signal::TERM);
    run.finish().expect_exit(Exit::Code(143)).expect_no_process_left();

    let metrics = checked("openmetrics.py", &file);
    let stats = PagetideRun::new(&scratch, BUDGET).stats();
    for counter in ["pgfault", "pgmajfault", "pswpin", "pswpout", "swap_ra", "uffd_moves"] {
        let told = sample(&metrics, &format!("pagetide_vmstat_{counter}_total"));
        assert!((told - stats.counter(counter) as f64).abs() < 0.5, "{counter}: {told}\n{}", stats.text());
    }
    stats.expect_paging(4096);
    assert_eq!(sample(&metrics, "pagetide_running"), 0.0);
    assert_eq!(sample(&metrics, "pagetide_memory_budget_bytes"), BUDGET as f64);
    let faults = sample(&metrics, "pagetide_fault_latency_seconds_bucket{le=+Inf}");
    assert!((faults - stats.fault_latency_ns("count").unwrap_or(0) as f64).abs() < 0.5, "{faults}");
    let names = std::fs::read_dir(scratch.path()).expect("own directory").flatten();
    assert!(!names.map(|entry| entry.file_name()).any(|name| name.to_string_lossy().contains(".partial")));
}

#[test]
fn who_does_not_take_what_it_is_told_leaves_the_budget_as_it_is() {
    // Grows by the heap's end, of which nothing tells.
    const GROWS: &str = r#"$| = 1; print "begun\n"; select undef, undef, undef, 1; push @kept, "x" x 1000 . $_ for 1 .. 60000;
        open my $status, "<", "/proc/self/status"; print grep /VmHWM/, <$status>"#;
    if !need::has(&[Feature::Uffd]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let (mut taken, mut full) = std::io::pipe().expect("descriptors are left");
    let mut run = Command::new(pagetide::binary())
        .args(["run", "--memory", "16M", "--summary=0.1", "--swap"])
        .arg(scratch.path())
        .args(["--", "perl", "-e", GROWS])
        .stdout(Stdio::piped())
        .stderr(full.try_clone().expect("descriptors are left"))
        .spawn()
        .expect("pagetide starts");
    let mut lines = BufReader::new(run.stdout.take().expect("piped")).lines().map_while(Result::ok);
    assert_eq!(lines.next().as_deref(), Some("begun"));
    rustix::io::ioctl_fionbio(&full, true).expect("a pipe");
    while full.write(&[b' '; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&full, false).expect("a pipe");
    drop(full);
    let most = lines.next().expect("it says what it took");
    std::io::copy(&mut taken, &mut std::io::sink()).expect("it is drained");
    assert!(run.wait().expect("it ends").success());
    let kib = most.split_whitespace().nth(1).and_then(|number| number.parse::<u64>().ok()).expect("VmHWM: N kB");
    assert!(kib * 1024 < BUDGET + 16 * MIB, "{most}");
}

#[test]
fn metrics_are_served_at_a_port_and_at_a_socket_and_readers_that_stall_hold_nobody_up() {
    if !need::has(&[Feature::Uffd, Feature::Readers]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let get = |mut reader: Box<dyn ReadWrite>| {
        reader.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n").expect("somebody listens");
        let mut answer = String::new();
        reader.read_to_string(&mut answer).expect("text");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with("HTTP/1.1 200 OK") && head.contains("openmetrics-text; version=1.0.0"), "{head}");
        let run = checked("openmetrics.py", &scratch.write("answer.prom", body));
        assert_eq!(sample(&run, "pagetide_running"), 1.0);
    };

    let run = start(&scratch, &["--metrics", "127.0.0.1:0"]);
    let errors = std::fs::read_to_string(scratch.file("observed.err")).expect("what it said");
    let address = errors.split("http://").nth(1).and_then(|rest| rest.split('/').next()).expect("where it listens");
    let address: SocketAddr = address.parse().expect("an address");
    let mut silent = TcpStream::connect(address).expect("somebody listens");
    silent.write_all(b"GET /met").expect("it is read");
    get(Box::new(TcpStream::connect(address).expect("somebody listens")));
    let second = Command::new(pagetide::binary())
        .args(["run", "--memory", "16M", "--metrics", &address.to_string(), "--", "echo", "started"])
        .output()
        .expect("pagetide starts");
    let errors = String::from_utf8_lossy(&second.stderr);
    assert!(second.status.code() == Some(1) && errors.contains("another program listens there"), "{errors}");
    assert!(second.stdout.is_empty(), "nothing was started");
    run.signal(Signal::TERM);
    run.finish().expect_exit(Exit::Code(143)).expect_no_process_left();

    let socket = scratch.file("metrics.sock");
    let run = start(&scratch, &["--metrics", &format!("unix:{}", socket.display())]);
    get(Box::new(UnixStream::connect(&socket).expect("somebody listens")));
    run.signal(Signal::TERM);
    run.finish().expect_exit(Exit::Code(143)).expect_no_process_left();
    assert!(!socket.exists(), "the socket is removed");
}

/// What the vendor's own messages make of a timeline.
fn drawn(file: &Path) -> Value {
    checked("timeline.py", file)
}

#[test]
fn a_timeline_is_read_by_perfettos_messages_and_has_what_was_counted() {
    if !need::has(&[Feature::Uffd, Feature::Readers]) {
        return;
    }
    let _turn = serial::turn();
    let [all, missing] = drawn_and_missing("compress=off");
    assert!(missing < all / 4, "{missing} slices are not drawn, {all} are");
    // The writes of compressed pages are the tier's own. So many windows are read from it that they use up the room for slices.
    drawn_and_missing("compress=lz4");
}

/// A run's waits and requests that its timeline draws, which must be those that were counted; the slices for which there was no room.
fn drawn_and_missing(setting: &str) -> [u64; 2] {
    let scratch = Scratch::new();
    let (file, metrics) = (scratch.file("job.pftrace"), scratch.file("job.prom"));
    let [timeline, prom] = [&file, &metrics].map(|path| path.to_str().expect("text"));
    let run = start(&scratch, &["--timeline", timeline, "--metrics", prom, "--set", setting]);
    // The file is whole while it is written, and was written to since.
    let majors = |drawn: &Value| drawn["numbers"]["pgmajfault"].as_u64().unwrap_or(0);
    let before = majors(&drawn(&file));
    assert!(clock::wait_until(Duration::from_secs(20), || majors(&drawn(&file)) > before + 100));
    run.signal(Signal::TERM);
    run.finish().expect_exit(Exit::Code(143)).expect_no_process_left();

    let drawn = drawn(&file);
    let stats = PagetideRun::new(&scratch, BUDGET).stats();
    for counter in ["pgfault", "pgmajfault", "pswpin", "pswpout", "swap_ra", "io_read_requests"] {
        let last = drawn["numbers"][counter].as_u64().unwrap_or(0);
        assert_eq!(last, stats.counter(counter), "{counter}: {}", stats.text());
    }
    let metrics = checked("openmetrics.py", &metrics);
    let bucket = |le: &str| sample(&metrics, &format!("pagetide_fault_latency_seconds_bucket{{le={le}}}"));
    let short = metrics["pagetide_fault_latency_seconds_bucket{le=0.000049151}"].as_f64().unwrap_or(0.0);
    let slices = |kind: &str| drawn["slices"][kind].as_u64().unwrap_or(0);
    let missing = drawn["numbers"]["slices not drawn"].as_u64().unwrap_or(0);
    let all = slices("wait") + slices("read") + slices("write");
    let waited = bucket("+Inf") - short;
    let requests = stats.counter("io_read_requests") + stats.counter("io_write_requests");
    assert!(slices("wait") > 0 && slices("read") > 0 && slices("write") > 0 && slices("window") > 0, "{drawn}");
    // The thread that waited is told by its number and name.
    let threads = drawn["threads"].as_object().expect("an object");
    assert!(threads.values().any(|name| name == "hostile"), "{drawn}");
    // What was under way at the end is counted and not drawn: as many requests as an engine has. Of those for which there was no room
    // some were windows.
    let expected = waited + requests as f64;
    let most = 128.0 + missing as f64;
    assert!((0.0..=most).contains(&(expected - all as f64)), "{all} of {expected}: {drawn}\n{}", stats.text());
    [all, missing]
}

#[test]
fn a_timeline_of_a_run_that_is_killed_is_whole_and_one_that_cannot_be_written_is_refused() {
    if !need::has(&[Feature::Uffd, Feature::Readers]) {
        return;
    }
    let _turn = serial::turn();
    let scratch = Scratch::new();
    let file = scratch.file("job.pftrace");
    for round in 0..3 {
        let run = start(&scratch, &["--timeline", file.to_str().expect("text")]);
        clock::pause(Duration::from_millis(130 + 37 * round));
        run.signal(Signal::KILL);
        run.finish().expect_no_process_left();
        assert!(drawn(&file)["slices"]["wait"].as_u64().unwrap_or(0) > 0);
    }
    for (arguments, parts) in [
        (&["--timeline", "/nonexistent/x"][..], &["--timeline /nonexistent/x", "cannot write"][..]),
        (&["--timeline", "/dev"], &["it is no file"]),
        (&["--timeline", "/tmp/x", "--timeline-size", "1K"], &["1M to 64G"]),
    ] {
        let run = Command::new(pagetide::binary())
            .args(["run", "--memory", "16M"])
            .args(arguments)
            .args(["--", "echo", "started"])
            .output()
            .expect("pagetide starts");
        let errors = String::from_utf8_lossy(&run.stderr);
        assert!(run.stdout.is_empty() && parts.iter().all(|part| errors.contains(part)), "{arguments:?}: {errors}");
    }
}

#[test]
fn a_run_that_does_not_begin_leaves_old_files_as_they_were_and_no_new_ones() {
    let scratch = Scratch::new();
    for flag in ["--timeline", "--stats", "--metrics"] {
        let (file, fresh) = (scratch.write("old", "of an earlier run\n"), scratch.file("fresh"));
        for (memory, program) in [("16M", "/nonexistent/program"), ("1K", "true")] {
            for file in [&file, &fresh] {
                let run = Command::new(pagetide::binary())
                    .args(["run", "--memory", memory, flag])
                    .arg(file)
                    .args(["--", program])
                    .output()
                    .expect("pagetide starts");
                assert!(!run.status.success(), "{flag}: {}", String::from_utf8_lossy(&run.stderr));
            }
            let left = std::fs::read_to_string(&file).expect("it is there");
            assert_eq!(left, "of an earlier run\n", "{flag} of a run of {program} with {memory}");
            assert!(!fresh.exists(), "{flag} of a run of {program} with {memory}");
        }
    }
}

/// The browser that is there.
fn browser() -> &'static str {
    if need::on_path("chromium-headless-shell") { "chromium-headless-shell" } else { "chromium" }
}

/// Shows a page in the browser, in a colour scheme: how bright the picture is, and how many colours it has. Nothing may be said on
/// the console, and nothing fetched.
fn shown(scratch: &Scratch, page: &Path, scheme: &str) -> (u64, u64) {
    let picture = scratch.file(&format!("{scheme}.png"));
    let output = Command::new(browser())
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr", "--v=0"])
        .arg(format!("--blink-settings=preferredColorScheme={}", if scheme == "dark" { 0 } else { 1 }))
        .arg(format!("--user-data-dir={}", scratch.file("browser").display()))
        .arg(format!("--screenshot={}", picture.display()))
        .arg("--window-size=800,600")
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("the browser starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !errors.contains("CONSOLE"), "{scheme}: {errors}");
    let told = checked("brightness.py", &picture);
    (told["mean"].as_u64().expect("a number"), told["colours"].as_u64().expect("a number"))
}

#[test]
fn a_report_is_shown_by_a_browser_light_and_dark_and_bad_input_is_named() {
    let has_shell = need::on_path("chromium-headless-shell");
    let browser = Feature::Tool(if has_shell { "chromium-headless-shell" } else { "chromium" });
    if !need::has(&[Feature::Uffd, Feature::Readers, browser]) {
        return;
    }
    let scratch = Scratch::new();
    let (timeline, page) = (scratch.file("job.pftrace"), scratch.file("job.html"));
    let records = scratch.directory("records");
    let [drawn, recorded] = [&timeline, &records.join("job")].map(|path| path.to_str().expect("text").to_owned());
    let turn = serial::turn();
    let named = ["--name", "job", "--set", "page-cluster=5"];
    let run = start(&scratch, &[&named[..], &["--timeline", &drawn, "--record", &recorded]].concat());
    clock::pause(Duration::from_millis(700));
    run.signal(Signal::TERM);
    run.finish().expect_exit(Exit::Code(143)).expect_no_process_left();
    drop(turn);
    let report = |files: &[&Path]| {
        let mut command = Command::new(pagetide::binary());
        let output = command.arg("report").args(files).arg("-o").arg(&page).output().expect("pagetide starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let stats = scratch.file("stats.json");
    assert_eq!(report(&[&stats, &timeline]), (Some(0), String::new()));
    let html = std::fs::read_to_string(&page).expect("it was written");
    for part in [
        "Summary",
        "Memory",
        "Faults a second",
        "waited for memory",
        "larger budget would save",
        "page-cluster",
        "pgmajfault",
    ] {
        assert!(html.contains(part), "no {part} in the report");
    }
    assert!(!html.contains("<script") && !html.contains("http"), "it needs nothing but itself");
    let (light, dark) = (shown(&scratch, &page, "light"), shown(&scratch, &page, "dark"));
    assert!(light.0 > 200 && dark.0 < 70, "light {light:?}, dark {dark:?}");
    assert!(light.1 > 8 && dark.1 > 8, "there are pictures: light {light:?}, dark {dark:?}");

    let record =
        std::fs::read_dir(&records).expect("own directory").flatten().next().expect("one process was managed").path();
    assert_eq!(report(&[&record]), (Some(0), String::new()));
    let html = std::fs::read_to_string(&page).expect("it was written");
    assert!(html.contains("Which memory was used when"), "no heat map: {html}");
    let (light, dark) = (shown(&scratch, &page, "light"), shown(&scratch, &page, "dark"));
    assert!(light.0 > 200 && light.1 > 4 && dark.0 < 90 && dark.1 > 4, "light {light:?}, dark {dark:?}");

    let cut = std::fs::read(&timeline).expect("it was written");
    let cut = scratch.write("cut.pftrace", &cut[..cut.len() - 7]);
    assert_eq!(report(&[&cut]), (Some(0), String::new()));
    assert!(std::fs::read_to_string(&page).expect("it was written").contains("ends inside of a packet"));
    let other = scratch.write("other.json", "{\"version\": 99}");
    let noise = scratch.write("noise", [0x0a, 0xff, 0xff, 0x00, 0x17]);
    for (files, part) in [
        (&[other.as_path()][..], "not the statistics of a version that is known"),
        (&[noise.as_path()], "neither statistics, a timeline"),
        (&[&stats, &stats], "there are two statistics"),
        (&[Path::new("/nonexistent")], "cannot read"),
    ] {
        let (code, errors) = report(files);
        assert!(code == Some(1) && errors.contains(part), "{files:?}: {errors}");
    }
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}
