//! The checks of the project: `cargo xtask` lists them. Each looks at one thing, prints what it found with file and line, and
//! fails; `lint` runs all of them. Nothing here runs the product.
#![forbid(unsafe_code)]
#![expect(clippy::print_stdout, reason = "the findings are the output")]

mod deny;
mod directions;
mod docs;
mod layers;
mod shell;
mod tidy;

use std::process::ExitCode;

/// A check: fails with the findings.
type Check = fn() -> Result<(), String>;

/// Name, what it checks, and the check; in the order in which `lint` runs them, quick ones first.
const CHECKS: [(&str, &str, Check); 9] = [
    ("fmt", "the code is formatted", fmt),
    ("tidy", "file lengths, headers, leftovers, unsafe, promises and links", tidy::check),
    (
        "directions",
        "crates, and the layers of the core, use each other only as ARCHITECTURE.md says",
        directions::check,
    ),
    ("docs-fresh", "docs/knobs.md, counters.md and errors.md are what their tables say", docs::check),
    ("no-std", "the core builds and links without the standard library", no_std),
    ("deny", "licences, duplicates and sources of dependencies (cargo-deny)", deny::check),
    ("clippy", "no warning in any target", clippy),
    ("aarch64", "the program compiles for aarch64 without warning (rustup's target is added)", aarch64),
    ("doc", "documentation of all items builds without warning", doc),
];

/// Macros, and what build scripts compile, are there from `make build`.
const RELEASE: &str = "--release";
/// What is only checked is checked once: tests unwind, so with a program that aborts every dependency would be checked for both.
const UNWIND: (&str, &str) = ("CARGO_PROFILE_RELEASE_PANIC", "unwind");

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let answer = match words.as_slice() {
        ["lint"] => lint(),
        ["docs"] => docs::write(),
        [name] => match CHECKS.iter().find(|(check, _, _)| check == name) {
            Some((_, _, check)) => check(),
            None => Err(list()),
        },
        _ => Err(list()),
    };
    match answer {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

/// The list of checks.
fn list() -> String {
    let lines: Vec<String> = CHECKS.iter().map(|(name, what, _)| format!("  {name:<12}{what}")).collect();
    format!(
        "cargo xtask CHECK, where CHECK is\n  lint        all of these\n{}\n  docs        write the generated pages again",
        lines.join("\n")
    )
}

/// Every check, all findings at once.
fn lint() -> Result<(), String> {
    let mut failed = Vec::new();
    for (name, what, check) in CHECKS {
        println!("lint: {name}: {what}");
        if let Err(message) = check() {
            eprintln!("{message}");
            failed.push(name);
        }
    }
    if failed.is_empty() {
        println!("lint: ok, {} checks", CHECKS.len());
        return Ok(());
    }
    Err(format!("lint: failed: {}", failed.join(", ")))
}

fn fmt() -> Result<(), String> {
    shell::cargo(&["fmt", "--all", "--check"], &[])
}

fn clippy() -> Result<(), String> {
    shell::cargo(&["clippy", "--quiet", RELEASE, "--workspace", "--all-targets", "--", "-D", "warnings"], &[UNWIND])
}

/// The program is checked, and the object that it preloads compiled, which alone assembles what is written for the machine. Nothing is
/// linked, so C code may be compiled for the wrong machine, by the compiler that is there.
fn aarch64() -> Result<(), String> {
    const TARGET: &str = "aarch64-unknown-linux-gnu";
    if let Err(why) = shell::output("rustup", &["target", "add", TARGET]) {
        println!("lint: aarch64: left out: {why}");
        return Ok(());
    }
    let here = [
        ("CC_aarch64_unknown_linux_gnu", "cc"),
        ("AR_aarch64_unknown_linux_gnu", "ar"),
        // Nobody runs it.
        ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0"),
        ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    ];
    let (how, object) = (["--quiet", "--locked", RELEASE, "--target", TARGET], ["--package", "pagetide-preload"]);
    let cargo = |words: &[&[&str]]| shell::cargo(&words.concat(), &here);
    cargo(&[&["clippy"], &how, &object, &["--package", "pagetide-cli", "--", "-D", "warnings"]])?;
    cargo(&[&["rustc"], &how, &object, &["--lib", "--crate-type", "rlib"]])
}

/// Private items are documented too, and may be linked to: the readers are those who change the code.
fn doc() -> Result<(), String> {
    let arguments = ["doc", "--quiet", RELEASE, "--workspace", "--no-deps", "--document-private-items"];
    shell::cargo(&arguments, &[UNWIND, ("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links")])
}

/// Builds `xtask/nostd`, which defines the panic handler itself and so cannot be linked with std.
fn no_std() -> Result<(), String> {
    let target = shell::root().join("target/nostd");
    shell::cargo(
        &["build", "--quiet", "--locked", "--manifest-path", "xtask/nostd/Cargo.toml"],
        &[("CARGO_TARGET_DIR", &target.to_string_lossy())],
    )
}
