//! Small rules that no other tool checks, over the files that git knows.
//!
//! - a Rust file opens with a header and has at most [`LINES_MAX`] lines;
//! - no leftovers: reminders, ignored tests, tests that expect any panic;
//! - crates that promise to be free of unsafe say so to the compiler; the others stay under their ceiling;
//! - every promise in GUARANTEES.md names a test that exists;
//! - a document has one title, and its links lead somewhere.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::shell;

/// "About 600" lines a file: beyond this it is to be split.
const LINES_MAX: usize = 650;

/// Files that are longer and await their split, with the length that they may not exceed. No file is added here.
const LONG_FILES: [(&str, usize); 1] = [("crates/sim/src/world.rs", 800)];

/// Crates whose root forbids unsafe code.
const SAFE_ROOTS: [&str; 6] = [
    "crates/core/src/lib.rs",
    "crates/trace/src/lib.rs",
    "crates/driver/src/lib.rs",
    "crates/sim/src/lib.rs",
    "crates/cli/src/main.rs",
    "xtask/src/main.rs",
];

/// The ceiling of unsafe uses per crate: `crates/NAME COUNT`, one a line.
const UNSAFE_CEILING: &str = "xtask/unsafe-ceiling.txt";

/// Checks all files.
pub(crate) fn check() -> Result<(), String> {
    let mut findings = Vec::new();
    let mut rust = Vec::new();
    let mut documents = Vec::new();
    for path in shell::files()? {
        let full = shell::root().join(&path);
        if path.ends_with(".rs") {
            rust.push((path, read(&full)?));
        } else if path.ends_with(".md") {
            documents.push((path, read(&full)?));
        }
    }
    for (path, text) in &rust {
        findings.extend(in_rust_file(path, text).into_iter().map(|finding| format!("tidy: {path}{finding}")));
    }
    findings.extend(unsafe_code(&rust)?);
    for (path, text) in &documents {
        findings.extend(in_document(path, text).into_iter().map(|finding| format!("tidy: {path}{finding}")));
        if path == "GUARANTEES.md" {
            findings.extend(promises(text, &shell::files()?)?);
        }
    }
    if findings.is_empty() { Ok(()) } else { Err(findings.join("\n")) }
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("tidy: {}: {error}", path.display()))
}

/// Findings in one Rust file, each with its place.
fn in_rust_file(path: &str, text: &str) -> Vec<String> {
    // Built from halves, so that this file does not find itself.
    let leftovers = [
        (concat!("TO", "DO"), "open an issue instead"),
        (concat!("FIX", "ME"), "open an issue instead"),
        (concat!("XX", "X"), "open an issue instead"),
        (concat!("#[ig", "nore"), "a test that cannot run says which feature is missing"),
        (concat!("#[should_", "panic"), "assert the message of the panic, or make it an error"),
    ];
    let mut findings = Vec::new();
    let lines = text.lines().count();
    let lines_max = LONG_FILES.iter().find(|(long, _)| *long == path).map_or(LINES_MAX, |(_, lines)| *lines);
    if lines > lines_max {
        findings.push(format!(": {lines} lines, at most {lines_max}: split it"));
    }
    if !text.starts_with("//!") && !path.ends_with("build.rs") {
        findings.push(":1: no header: say in `//!` what the file is, what it is not, and its invariants".to_owned());
    }
    for (index, line) in text.lines().enumerate() {
        for (word, instead) in leftovers {
            if line.contains(word) {
                findings.push(format!(":{}: {word}: {instead}", index + 1));
            }
        }
    }
    findings
}

/// Crates without unsafe say so; the others keep under their ceiling, which only a reviewed line raises.
fn unsafe_code(rust: &[(String, String)]) -> Result<Vec<String>, String> {
    let mut findings = Vec::new();
    for root in SAFE_ROOTS {
        let forbids = rust.iter().any(|(path, text)| path == root && text.contains("#![forbid(unsafe_code)]"));
        if !forbids {
            findings.push(format!("tidy: {root}: must say #![forbid(unsafe_code)]"));
        }
    }
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (path, text) in rust.iter().filter(|(path, _)| path != "xtask/src/tidy.rs") {
        let uses = text.lines().filter(|line| is_unsafe_use(line)).count();
        let name: Vec<&str> = path.split('/').take(2).collect();
        if uses > 0 {
            *counts.entry(name.join("/")).or_default() += uses;
        }
    }
    let ceiling = read(&shell::root().join(UNSAFE_CEILING))?;
    for (name, uses) in counts {
        let line = ceiling.lines().find_map(|line| line.strip_prefix(&name)?.strip_prefix(' '));
        let allowed: usize = line.and_then(|count| count.trim().parse().ok()).unwrap_or(0);
        if uses > allowed {
            findings.push(format!("tidy: {name}: {uses} uses of unsafe, {UNSAFE_CEILING} allows {allowed}"));
        }
    }
    Ok(findings)
}

/// A block, function, implementation or trait; not a comment, a lint's name or an `unsafe` attribute.
fn is_unsafe_use(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern", "unsafe trait"].iter().any(|form| code.contains(form))
}

/// One title; links to files of the project lead somewhere.
fn in_document(path: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    let mut in_code = false;
    let mut titles = 0;
    let directory = Path::new(path).parent().unwrap_or(Path::new(""));
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        titles += usize::from(line.starts_with("# "));
        for target in links(line) {
            let file = target.split('#').next().unwrap_or_default();
            let outside = file.is_empty() || file.contains("://");
            if !outside && !shell::root().join(directory).join(file).exists() {
                findings.push(format!(":{}: link to {target}, which does not exist", index + 1));
            }
        }
    }
    if titles != 1 {
        findings.push(format!(": {titles} titles (`# `), must be one"));
    }
    findings
}

/// The targets of the inline links of a line.
fn links(line: &str) -> Vec<&str> {
    line.split("](").skip(1).filter_map(|rest| rest.split(')').next()).collect()
}

/// Every row of the tables in GUARANTEES.md names a test, in backquotes in its last column, and the test exists.
fn promises(text: &str, files: &[String]) -> Result<Vec<String>, String> {
    let mut sources = String::new();
    for path in files.iter().filter(|path| path.ends_with(".rs") || path.ends_with(".py") || path.ends_with(".sh")) {
        sources.push_str(&read(&shell::root().join(path))?);
    }
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
        let is_row = line.starts_with('|') && cells.len() >= 3 && !cells[0].starts_with('-') && cells[0] != "#";
        if !is_row {
            continue;
        }
        let tests: Vec<&str> = cells[cells.len() - 1].split('`').skip(1).step_by(2).collect();
        if tests.is_empty() {
            findings.push(format!("tidy: GUARANTEES.md:{}: a promise without a test", index + 1));
        }
        for test in tests {
            let name = test.rsplit("::").next().unwrap_or(test);
            let exists = sources.contains(&format!("fn {name}(")) || files.iter().any(|path| path == test);
            if !exists {
                findings.push(format!("tidy: GUARANTEES.md:{}: no test `{test}`", index + 1));
            }
        }
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_header_or_with_leftovers_is_found() {
        let text = concat!("fn f() {}\n// TO", "DO later\n#[ig", "nore]\n");
        let findings = in_rust_file("a.rs", text);
        assert_eq!(findings.len(), 3, "{findings:?}");
        assert!(findings[1].starts_with(":2:"), "{findings:?}");
        assert!(in_rust_file("a.rs", "//! Fine.\n").is_empty());
    }

    #[test]
    fn a_long_file_is_found() {
        let text = "//! x\n".repeat(LINES_MAX + 1);
        assert_eq!(in_rust_file("a.rs", &text).len(), 1);
    }

    #[test]
    fn unsafe_in_code_counts_and_in_words_does_not() {
        assert!(is_unsafe_use("    let x = unsafe { f() };"));
        assert!(is_unsafe_use("pub unsafe fn f() {}"));
        assert!(!is_unsafe_use("// unsafe { f() }"));
        assert!(!is_unsafe_use("#![forbid(unsafe_code)]"));
    }

    #[test]
    fn a_document_needs_one_title_and_links_that_lead_somewhere() {
        assert!(in_document("a.md", "# One\n[x](Cargo.toml) [y](https://example.org)\n").is_empty());
        assert_eq!(in_document("a.md", "# One\n[x](no-such-file)\n").len(), 1);
        assert_eq!(in_document("a.md", "no title\n").len(), 1);
        assert!(in_document("a.md", "# One\n```\n# two\n```\n").is_empty());
    }

    #[test]
    fn a_promise_without_an_existing_test_is_found() {
        let text =
            "| # | promise | test |\n| --- | --- | --- |\n| G1 | a | `no_such_test_anywhere` |\n| G2 | b | none |\n";
        assert_eq!(promises(text, &[]).expect("nothing is read").len(), 2);
    }
}
