//! The program as a user meets it: exit codes, and messages that name the flag, the value and the remedy. Nothing here
//! pages: the tests of real programs are in `tests/`.

use std::path::Path;
use std::process::{Child, Command, Stdio};

/// What a command line answers: exit code, standard output, standard error.
fn pagetide(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_pagetide"))
        .args(arguments)
        .env_remove("PAGETIDE_PRELOAD")
        .output()
        .expect("the program is built before its tests");
    let text = |bytes| String::from_utf8(bytes).expect("messages are text");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// Ends with `code`, says nothing on standard output, and all of `parts` on standard error.
#[track_caller]
fn refuses(arguments: &[&str], code: i32, parts: &[&str]) {
    let (status, out, err) = pagetide(arguments);
    assert_eq!(status, Some(code), "{arguments:?}: {err}");
    assert_eq!(out, "", "{arguments:?}");
    for part in parts {
        assert!(err.contains(part), "{arguments:?}: no \"{part}\" in: {err}");
    }
}

#[test]
fn help_teaches_by_examples_units_and_exit_codes() {
    let (status, out, _) = pagetide(&["run", "--help"]);
    assert_eq!(status, Some(0));
    for part in ["Examples:", "512M", "powers of 1024", "Exit codes:", "127"] {
        assert!(out.contains(part), "no \"{part}\" in: {out}");
    }
}

#[test]
fn wrong_usage_ends_with_2() {
    refuses(&[], 2, &["Usage"]);
    refuses(&["run", "--memory", "8Q", "--", "true"], 2, &["--memory", "8Q", "512M"]);
    refuses(&["run", "--", "true"], 2, &["--memory"]);
    refuses(&["run", "--memory", "1G", "--swapiness", "5", "--", "true"], 2, &["--swapiness", "--swappiness"]);
    let twice = ["run", "--memory", "1G", "--swappiness", "5", "--set", "swappiness=6", "--", "true"];
    refuses(&twice, 2, &["swappiness", "twice"]);
}

#[test]
fn a_missing_command_ends_as_in_a_shell() {
    refuses(&["run", "--memory", "1G", "--", "no-such-command"], 127, &["no-such-command", "remedy"]);
    refuses(&["run", "--memory", "1G", "--", "/etc/passwd"], 126, &["/etc/passwd", "not executable"]);
}

#[test]
fn a_budget_too_small_for_anything_ends_with_3() {
    refuses(&["run", "--memory", "512", "--", "true"], 3, &["--memory", "512 bytes", "512M"]);
}

#[test]
fn a_stats_file_that_cannot_be_written_is_told_before_the_program_starts() {
    refuses(
        &["run", "--memory", "1G", "--stats", "/nonexistent/x.json", "--", "echo", "ran"],
        1,
        &["--stats", "/nonexistent"],
    );
}

#[test]
fn no_name_that_is_given_reaches_the_terminal_as_it_is() {
    let name = "a\x1b[31mb\n\rc";
    let no_directory = "/nonexistent/\x1b[31m";
    for arguments in [
        &["stat", name][..],
        &["ctl", name, "pause"],
        &["report", no_directory, "-o", "/tmp/x"],
        &["run", "--memory", "64M", "--stats", no_directory, "--", "true"],
        &["run", "--memory", "64M", "--", no_directory],
    ] {
        let (status, out, err) = pagetide(arguments);
        assert!(status != Some(0) && out.is_empty() && err.contains("[31m"), "{arguments:?}: {err}");
        assert!(err.chars().all(|sign| sign == '\n' || !sign.is_control()), "{arguments:?}: {err:?}");
    }
}

/// Statistics of which a report can be made.
const STATS: &str = "{\"memory_budget_bytes\": 5, \"vmstat\": {}}";

#[test]
fn no_file_is_overwritten_by_what_is_made_of_it_or_beside_it() {
    let directory = std::env::temp_dir().join(format!("pagetide-same-file-{}", std::process::id()));
    std::fs::create_dir(&directory).expect("a fresh name");
    let at = |name: &str| directory.join(name).into_os_string().into_string().expect("a plain path");
    let (stats, link, fresh) = (at("s.json"), at("link"), at("fresh"));
    std::fs::write(&stats, STATS).expect("room for a few bytes");
    std::os::unix::fs::symlink("s.json", &link).expect("a fresh name");
    refuses(&["report", &stats, "-o", &stats], 2, &["--output", "is made of this file"]);
    refuses(&["report", &stats, "-o", &link], 2, &["--output", "is made of this file"]);
    for (one, other) in [("--stats", "--timeline"), ("--metrics", "--timeline"), ("--stats", "--metrics")] {
        for (path, again) in [(&stats, &link), (&fresh, &fresh)] {
            let arguments = ["run", "--memory", "64M", one, path, other, again, "--", "echo", "ran"];
            refuses(&arguments, 2, &[one, other, "the same file"]);
        }
    }
    let (text, is_made) = (std::fs::read_to_string(&stats), Path::new(&fresh).exists());
    std::fs::remove_dir_all(&directory).expect("own directory");
    assert!(text.is_ok_and(|text| text == STATS) && !is_made);
}

#[test]
fn a_report_leaves_links_and_devices_what_they_are() {
    let directory = std::env::temp_dir().join(format!("pagetide-report-{}", std::process::id()));
    std::fs::create_dir(&directory).expect("a fresh name");
    let at = |name: &str| directory.join(name).into_os_string().into_string().expect("a plain path");
    std::fs::write(at("s.json"), STATS).expect("room for a few bytes");
    std::os::unix::fs::symlink("page.html", at("link")).expect("a fresh name");
    let linked = pagetide(&["report", &at("s.json"), "-o", &at("link")]);
    let (link, page) = (std::fs::read_link(at("link")), std::fs::read_to_string(at("page.html")));
    let (status, out, err) = pagetide(&["report", &at("s.json"), "-o", "/dev/stdout"]);
    std::fs::remove_dir_all(&directory).expect("own directory");
    assert_eq!(linked, (Some(0), String::new(), String::new()));
    assert!(link.is_ok_and(|to| to == Path::new("page.html")), "the link stays");
    assert_eq!((status, err.as_str()), (Some(0), ""));
    assert!(out.starts_with("<!doctype html>") && page.is_ok_and(|page| page == out), "{out}");
}

#[test]
fn a_program_that_cannot_be_wrapped_runs_only_when_asked_for() {
    // A copy with the setuid bit: the dynamic linker would ignore the preloaded library.
    let directory = std::env::temp_dir().join(format!("pagetide-exit-codes-{}", std::process::id()));
    std::fs::create_dir(&directory).expect("a fresh name");
    let program = directory.join("setuid-sh");
    let shell =
        ["/bin/sh", "/usr/bin/sh"].into_iter().find(|path| Path::new(path).exists()).expect("every machine has sh");
    std::fs::copy(shell, &program).expect("room for a shell");
    // Of another user: to become who one is already gains nothing, and is not refused.
    if std::os::unix::fs::chown(&program, Some(65_534), None).is_err() {
        std::fs::remove_dir_all(&directory).expect("own directory");
        eprintln!("skipped: files of another user can be made by root only");
        return;
    }
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
    std::fs::set_permissions(&program, mode).expect("own file");
    let program = program.to_str().expect("a plain path");
    refuses(&["run", "--memory", "1G", "--", program, "-c", "exit 7"], 3, &["setuid", "remedy"]);
    let (status, _, err) = pagetide(&["run", "--memory", "1G", "--if-unsupported=run", "--", program, "-c", "exit 7"]);
    std::fs::remove_dir_all(&directory).expect("own directory");
    assert_eq!(status, Some(7), "{err}");
    assert!(err.contains("without a budget"), "{err}");
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let (reader, writer) = std::io::pipe().expect("two descriptors");
    drop(reader);
    let output = Command::new(env!("CARGO_BIN_EXE_pagetide"))
        .args(["completions", "bash"])
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .and_then(Child::wait_with_output)
        .expect("the program is built before its tests");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(output.stderr, b"");
}

#[test]
fn doctor_says_the_same_to_people_and_to_programs() {
    let (status, table, _) = pagetide(&["doctor"]);
    let (json_status, json, _) = pagetide(&["doctor", "--json"]);
    assert_eq!(status, json_status);
    let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(value["can_run"].as_bool(), Some(status == Some(0)));
    for check in value["checks"].as_array().expect("a list") {
        let name = check["name"].as_str().expect("a name");
        assert!(table.contains(name), "{name} is missing in: {table}");
    }
}

#[test]
fn sim_script_prints_one_object_a_phase_with_the_kernels_counters() {
    let script = ["sim", "script", "w r", "--pages", "32768", "--memory", "16384", "--json"];
    let (status, out, err) = pagetide(&script);
    assert_eq!(status, Some(0), "{err}");
    let phases: Vec<serde_json::Value> = out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((phases.len(), &phases[1]["phase"]), (2, &serde_json::json!("r")));
    // What Linux 6.18 counts for a forward read of twice its memory.
    assert_eq!(phases[1]["vmstat"]["swap_ra"], 28_670);
    assert_eq!(phases[1]["vmstat"]["pgmajfault"], 4_098);
}

#[test]
fn sim_names_what_is_wrong_with_its_input() {
    refuses(&["sim", "script", "w q", "--pages", "32768", "--memory", "16384"], 2, &["phase 2", "`q`"]);
    refuses(&["sim", "script", "w", "--pages", "0", "--memory", "16384"], 2, &["pages"]);
    let profile = ["sim", "script", "w", "--pages", "32768", "--memory", "16384", "--profile", "linux-6.19"];
    refuses(&profile, 2, &["linux-6.19", "did you mean `linux-6.1`"]);
    refuses(&["sim", "run", "/nonexistent.toml"], 2, &["/nonexistent.toml"]);
    refuses(&["sim", "reproduce", "--table", "S9"], 2, &["S0/combined"]);
}

#[test]
fn knobs_are_listed_for_people_and_for_programs() {
    let (status, out, _) = pagetide(&["knobs", "--profile", "linux-6.18"]);
    assert_eq!(status, Some(0));
    assert!(out.contains("swappiness") && out.contains("linux-3.10"), "{out}");
    refuses(&["knobs", "--profile", "linux-6.17"], 2, &["--profile", "linux-6.1"]);
}
